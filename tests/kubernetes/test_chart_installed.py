"""The chart on a real server: Helm installs, upgrades and removes it, and its account may do what the daemon does."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes.charts import CHART, SPACE, Raw, helm
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.client import MERGE, Api, ApiError
from adlro.backends.kubernetes.credentials import door_of
from adlro.backends.kubernetes.lab import ControlPlane
from adlro.backends.kubernetes.leading import LEADER_LABEL
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.opening import leadership_for, open_parts

pytestmark = pytest.mark.real_only

SCHEDULER = ("mode=scheduler", "config.policy.name=fcfs-first-fit")
OBJECTS = (
    "/api/v1/serviceaccounts", "/api/v1/configmaps", "/api/v1/secrets", "/api/v1/services",
    "/apis/apps/v1/statefulsets", "/apis/apps/v1/deployments", "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/policy/v1beta1/poddisruptionbudgets", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
)  # fmt: skip

Helm = Callable[..., str]


@pytest.fixture
def at(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Helm]:
    """Helm at the control plane; what it installed is removed at the end."""
    homes = {name: str(tmp_path / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}

    def ask(*words: str, values: tuple[str, ...] = ()) -> str:
        settings = [word for value in values for word in ("--set", value)]
        done = helm(*words, "--namespace", SPACE, *settings, KUBECONFIG=str(control_plane.kubeconfig), **homes)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield ask
    if "adlro" in ask("list", "--short"):
        ask("uninstall", "adlro")


def install(at: Helm, *values: str) -> None:
    at("install", "adlro", str(CHART), "--create-namespace", values=values)


def ours(world: World) -> list[Raw]:
    """All objects of the release on the server."""
    query = {"labelSelector": "app.kubernetes.io/instance=adlro"}
    return [each for path in OBJECTS for each in world.api.get(path, query)["items"]]


def account_options(world: World, plane: ControlPlane, folder: Path) -> KubernetesOptions:
    """How the daemon reaches the server with the token of the chart's account."""
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/adlro/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = world.api.ask("POST", path, None, body)["status"]["token"]
    config = json.loads(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = folder / "account.json"
    file.write_text(json.dumps(config))
    return KubernetesOptions(kubeconfig=str(file))


@pytest.fixture
def account(world: World, control_plane: ControlPlane, at: Helm, tmp_path: Path) -> Iterator[Api]:
    """The server as the account of the installed scheduler sees it."""
    install(at, *SCHEDULER)
    with_token = Api(door_of(account_options(world, control_plane, tmp_path)))
    yield with_token
    with_token.close()


def status_of(api: Api, method: str, path: str, body: Raw | None = None, kind: str = "application/json") -> int:
    """The HTTP status of a request."""
    try:
        api.ask(method, path, None, body, kind)
    except ApiError as error:
        return error.status
    return 200


def test_the_account_of_the_chart_schedules_through_the_daemon_of_its_config_and_lacks_no_right(
    world: World, control_plane: ControlPlane, at: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(at, *SCHEDULER)
    file = tmp_path / "adlro.toml"
    config_map = world.api.get(f"/api/v1/namespaces/{SPACE}/configmaps/adlro")
    file.write_text(config_map["data"]["adlro.toml"])
    here = {
        "kubernetes.kubeconfig": account_options(world, control_plane, tmp_path).kubeconfig,
        "store.url": f"sqlite:{tmp_path}/adlro.db",
    }
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "adlro-0"}}
    own["spec"] = {"containers": [{"name": "adlro", "image": "adlro"}]}
    pods = f"/api/v1/namespaces/{SPACE}/pods"
    world.api.ask("POST", pods, None, own)
    monkeypatch.setenv("ADLRO_POD", f"{SPACE}/adlro-0")
    world.node("a", gpus=2)
    world.pod("runs", gpus=2)
    world.pod("huge", gpus=64)
    config = load_config(file, here)
    daemon = Daemon(config, open_parts, leadership_for(config))
    try:
        eventually(lambda: daemon.tick() is not None and world.node_of("runs") == "a")
        eventually(lambda: daemon.tick() is not None and bool(world.events()))
        assert daemon.is_ready() == (True, "ready")
        lease = world.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/adlro")
        assert lease["spec"]["holderIdentity"]
        assert world.api.get(f"{pods}/adlro-0")["metadata"]["labels"] == {LEADER_LABEL: "true"}
    finally:
        daemon.close()
    assert LEADER_LABEL not in world.api.get(f"{pods}/adlro-0")["metadata"].get("labels", {})
    world.api.ask("DELETE", f"{pods}/adlro-0", {"gracePeriodSeconds": "0"})


def test_a_shadow_of_the_chart_watches_with_rights_to_read_only_and_lacks_none(
    world: World, control_plane: ControlPlane, at: Helm, tmp_path: Path
) -> None:
    install(at, "mode=shadow", "config.policy.name=fcfs-first-fit")
    file = tmp_path / "adlro.toml"
    file.write_text(world.api.get(f"/api/v1/namespaces/{SPACE}/configmaps/adlro")["data"]["adlro.toml"])
    options = account_options(world, control_plane, tmp_path)
    here = {"kubernetes.kubeconfig": options.kubeconfig, "store.url": f"sqlite:{tmp_path}/adlro.db"}
    world.node("a", gpus=2)
    made = world.pod("theirs", scheduler="default-scheduler")
    config = load_config(file, here)
    daemon = Daemon(config, open_parts, leadership_for(config))
    try:
        eventually(lambda: daemon.tick() is not None and '"wished"' in (tmp_path / "shadow.jsonl").read_text())
        assert daemon.is_ready() == (True, "ready")
    finally:
        daemon.close()
    assert world.get("theirs")["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    alone = Api(door_of(options))
    binding = {"target": {"kind": "Node", "name": "a"}, "metadata": {"name": "theirs"}}
    assert status_of(alone, "POST", f"{world.path('theirs')}/binding", binding) == 403
    alone.close()


def test_the_account_of_the_chart_may_do_nothing_else(world: World, account: Api) -> None:
    world.node("a")
    world.pod("p")
    labels = {"metadata": {"labels": {"mine": "true"}}}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"}}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    refused = [
        ("GET", "/api/v1/secrets", None),
        ("GET", f"/api/v1/namespaces/{SPACE}/secrets/adlro-clients", None),
        ("GET", "/api/v1/configmaps", None),
        ("POST", "/api/v1/namespaces/default/pods", pod),
        ("DELETE", "/api/v1/namespaces/default/pods/p", None),
        ("PATCH", "/api/v1/namespaces/default/pods/p", labels),
        ("PATCH", f"/api/v1/namespaces/{SPACE}/pods/other", labels),
        ("PATCH", "/api/v1/nodes/a", labels),
        ("DELETE", "/api/v1/nodes/a", None),
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease),
        ("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/other", None),
        ("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/adlro", None),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", None),
    ]
    allowed = [each[:2] for each in refused if status_of(account, *each, kind=MERGE) != 403]
    assert allowed == []
    assert status_of(account, "GET", "/api/v1/pods") == 200


def test_an_upgrade_keeps_the_tokens_and_a_shadow_loses_the_rights_of_the_scheduler(world: World, at: Helm) -> None:
    def token() -> str:
        found = world.api.get(f"/api/v1/namespaces/{SPACE}/secrets/adlro-clients")["data"]["operator"]
        return base64.b64decode(found).decode()

    install(at, *SCHEDULER)
    made, before = {(each["kind"], each["metadata"]["name"]) for each in manifest(at)}, token()
    there = {each["metadata"]["name"] for each in ours(world)}
    assert {name for _, name in made} <= there
    assert ("Role", "adlro") in made
    at("upgrade", "adlro", str(CHART), values=("mode=shadow",))
    assert token() == before
    role = world.api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/adlro")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SPACE}/roles"
    assert [each["metadata"]["name"] for each in world.api.get(roles)["items"]] == []
    at("upgrade", "adlro", str(CHART), values=SCHEDULER)
    assert token() == before


@pytest.mark.parametrize("mode", ["shadow", "scheduler", "extender"])
def test_the_server_takes_the_objects_of_every_mode_and_an_uninstall_leaves_nothing(
    world: World, at: Helm, mode: str
) -> None:
    install(at, f"mode={mode}", "replicas=3", "persistence.enabled=false", "networkPolicy.enabled=true")
    assert len(ours(world)) == len(manifest(at))
    at("uninstall", "adlro")
    assert ours(world) == []


def manifest(at: Helm) -> list[Raw]:
    """What Helm installed."""
    return [each for each in yaml.safe_load_all(at("get", "manifest", "adlro")) if each]
