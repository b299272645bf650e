"""Quantities, what a pod asks for in all, and what it demands of a node."""

from typing import Any

import pytest

from adlro.backends.kubernetes.client import right_of
from adlro.backends.kubernetes.pods import duration_s, pod_of
from adlro.backends.kubernetes.quantities import QuantityError, amount, asked_by_pod
from adlro.backends.kubernetes.wants import (
    Requirement,
    Taint,
    Toleration,
    Wants,
    refusal,
    selector_of,
    terms_of,
    wants_of,
)


@pytest.mark.parametrize(
    ("text", "resource", "found"),
    [
        ("500m", "cpu", 500), ("2", "cpu", 2000), ("1.5", "cpu", 1500), ("1u", "cpu", 1), ("4Gi", "memory", 4 * 2**30),
        ("1e3", "memory", 1000), ("5E", "x", 5 * 10**18), ("128974848", "memory", 128974848), ("100k", "x", 100_000),
        ("+7", "x", 7), ("1E3", "memory", 1000),
    ],
)  # fmt: skip
def test_a_quantity_is_a_whole_number(text: str, resource: str, found: int) -> None:
    assert amount(text, resource) == found


@pytest.mark.parametrize("text", ["", "four", "4 Gi", "4gi", "1.2.3"])
def test_a_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="expected a quantity"):
        amount(text, "memory")


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


def test_a_pod_asks_for_its_containers_or_for_its_largest_init_container_and_the_overhead() -> None:
    spec = {
        "containers": [container("1"), container("2")],
        "initContainers": [container("5")],
        "overhead": {"cpu": "100m"},
    }
    assert asked_by_pod(spec) == {"cpu": 5100, "pods": 1}


def test_a_sidecar_counts_beside_the_containers_and_beside_later_init_containers() -> None:
    sidecar = container("1", restartPolicy="Always")
    assert asked_by_pod({"containers": [container("2")], "initContainers": [sidecar, container("4")]})["cpu"] == 5000
    assert asked_by_pod({"containers": [container("2")], "initContainers": [container("2"), sidecar]})["cpu"] == 3000


def test_a_limit_without_a_request_counts_as_the_request() -> None:
    assert asked_by_pod({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]})["nvidia.com/gpu"] == 2


def test_a_pod_with_a_wrong_quantity_is_refused_and_breaks_nothing() -> None:
    pod = pod_of({"metadata": {"name": "p"}, "spec": {"containers": [container("many")]}})
    assert "'many'" in pod.unsupported


@pytest.mark.parametrize(
    ("operator", "values", "holds"),
    [
        ("In", ["a", "b"], True), ("In", ["b"], False), ("NotIn", ["b"], True), ("NotIn", ["a"], False),
        ("Exists", [], True), ("DoesNotExist", [], False), ("Gt", ["3"], False), ("Strange", ["a"], False),
    ],
)  # fmt: skip
def test_a_condition_on_a_label(operator: str, values: list[str], holds: bool) -> None:
    assert Requirement("k", operator, tuple(values)).holds({"k": "a"}) is holds


def test_numbers_are_compared_as_numbers() -> None:
    assert Requirement("k", "Gt", ("9",)).holds({"k": "10"})
    assert not Requirement("k", "Lt", ("9",)).holds({"k": "10"})


def test_one_alternative_is_enough_and_all_of_its_conditions_must_hold() -> None:
    terms = terms_of([
        {"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        {},
    ])  # fmt: skip
    wants = Wants(affinity=(terms,))
    assert refusal(wants, "n1", {}, (), {}) == ""
    assert refusal(wants, "n2", {"a": "", "b": ""}, (), {}) == ""
    assert "affinity/selector" in refusal(wants, "n2", {"a": ""}, (), {})


def test_an_affinity_without_alternatives_matches_no_node() -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [dict[str, str]()]}}
    assert refusal(wants_of({"affinity": {"nodeAffinity": required}}, {}), "n", {}, (), {}) != ""


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("k", "Equal", "v"), True),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("k", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal"), False),
        (Toleration("k", "Exists", "", "NoExecute"), False),
        (Toleration("other", "Exists"), False),
    ],
)
def test_a_toleration_covers_the_taints_that_it_names(toleration: Toleration, covers: bool) -> None:
    assert toleration.covers(Taint("k", "NoSchedule", "v")) is covers


def test_a_taint_that_is_only_a_preference_keeps_nobody_away() -> None:
    assert refusal(Wants(), "n", {}, (Taint("k", "PreferNoSchedule"),), {}) == ""


def test_no_selector_matches_nothing_and_an_empty_one_everything() -> None:
    assert selector_of(None) is None
    assert selector_of({}) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [("90m", 5400.0), ("1h30m", 5400.0), ("2d", 172800.0), ("5400", 5400.0), ("soon", None), ("", None)],
)
def test_a_length_of_time(text: str, found: float | None) -> None:
    assert duration_s(text) == found


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/api/v1/pods", "list pods"),
        ("GET", "/api/v1/nodes/a", "get nodes"),
        ("WATCH", "/api/v1/pods", "watch pods"),
        ("POST", "/api/v1/namespaces/n/pods/p/binding", "create pods/binding"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", "update leases.coordination.k8s.io"),
    ],
)
def test_a_request_needs_the_right_that_rbac_has_for_it(method: str, path: str, right: str) -> None:
    assert right_of(method, path) == right
