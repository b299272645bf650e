"""The page for Prometheus: what is on it, and that Prometheus' own reader can read it."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.live.live_records import tick
from tests.live.stand_in import EPOCH_S, running, snapshot, waiting

from adlro.api.metrics import Requests
from adlro.core.ports import Answer, JobState, LiveJob, MissingRight, Part, Setback
from adlro.core.records import Job
from adlro.daemon.metrics import DaemonMetrics, file_bytes, gpu_states, held_by_node, held_gpus, largest_free
from adlro.live.service import Alarm, Compared, Drift, State, Stopping

V100 = "v100-sxm2-16gb"
HERE = Part("volta0", V100, 1)
DOC = Path(__file__).parents[2] / "docs" / "monitoring.md"


def read(metrics: DaemonMetrics) -> dict[tuple[str, ...], float]:
    """The page as Prometheus reads it: name and values of labels, in the order of their names, to the number."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.page())
        for sample in family.samples
    }


def state(*jobs: LiveJob, **more: object) -> State:
    seen = snapshot(*jobs, down={"volta1": "drained"})
    return State(seen, None, "simulated", "sjf", "fcfs", False, True, **more)  # type: ignore[arg-type]


def test_turns_decisions_answers_and_alarms_are_counted() -> None:
    metrics = DaemonMetrics("1.2.3")
    metrics.ticked(replace(tick(1), answers=(Answer("1", True), Answer("2", False))))
    metrics.ticked(tick(2))
    metrics.alarmed(Alarm(1.0, "stale", "old"))
    page = read(metrics)
    assert page["adlro_ticks_total", "sjf"] == 2
    assert page["adlro_decisions_total", "sjf", "start"] == 2
    assert page["adlro_orders_total", "done"] == 1
    assert page["adlro_orders_total", "refused"] == 1
    assert page["adlro_alarms_total", "stale"] == 1
    assert page[("adlro_tick_seconds_count",)] == 2
    assert page["adlro_info", "1.2.3"] == 1


def test_stops_that_were_carried_out_are_counted_beside_what_is_allowed() -> None:
    metrics = DaemonMetrics()
    (made,) = tick(1).decisions
    stops = (replace(made, job="1", verb="stop", parts=()), replace(made, job="2", verb="stop", parts=()))
    metrics.ticked(replace(tick(1), decisions=stops, answers=(Answer("1", True, is_pending=True), Answer("2", False))))
    found = Stopping(True, 5, 3, 100, 20, 10, ("1",), 42.0, 72.0)
    metrics.show(state(stopping=found))
    page = read(metrics)
    assert page["adlro_stops_total", "sjf"] == 1
    assert (page["adlro_stops_last_hour", "stopped"], page["adlro_stops_last_hour", "allowed"]) == (3, 100)
    assert page[("adlro_stop_seconds",)] == 42.0
    metrics.show(state(stopping=replace(found, is_on=False)))
    assert read(metrics)["adlro_stops_last_hour", "allowed"] == 0


def test_the_cluster_is_shown_by_model_and_a_node_that_is_down_is_not_up() -> None:
    metrics = DaemonMetrics()
    metrics.show(state(running("1", (Part("volta0", V100, 2),)), waiting("2"), waiting("3")))
    page = read(metrics)
    assert page["adlro_jobs", "waiting"] == 2
    assert page["adlro_jobs", "running"] == 1
    assert page["adlro_gpus", V100, "all"] == 8
    assert page["adlro_gpus", V100, "up"] == 4
    assert page["adlro_gpus", V100, "held"] == 2
    assert page["adlro_utilisation", V100] == 0.5
    assert page["adlro_nodes", "down"] == 1


def test_a_share_of_a_gpu_counts_as_its_share() -> None:
    half = LiveJob("1", Job("learning", 1.0, share=500), JobState.RUNNING, (Part("volta0", V100, 1),))
    assert held_gpus(held_by_node(snapshot(half, waiting("2")))) == {V100: 0.5}


def test_drift_and_completion_times_are_shown_while_they_hold() -> None:
    metrics = DaemonMetrics()
    metrics.show(state(drifts=(Drift(V100, 0.7, 20, 0.0, gpu=1),), history=(Compared(1.0, 0.5, 100.0, 120.0),)))
    page = read(metrics)
    assert page["adlro_drift_factor", "", "1", V100, ""] == 0.7
    assert page["adlro_jct_seconds", "measured"] == 100.0
    metrics.show(state())
    assert not [key for key in read(metrics) if key[0] in ("adlro_drift_factor", "adlro_jct_seconds")]


def test_gpus_that_say_nothing_are_counted() -> None:
    metrics = DaemonMetrics()
    metrics.show(state(telemetry={"volta0/0": {"power": None}, "volta0/1": {"power": 0.4, "memory": None}}))
    assert read(metrics)[("adlro_telemetry_gaps",)] == 1


def test_it_says_whether_it_leads() -> None:
    metrics = DaemonMetrics()
    assert read(metrics)[("adlro_leader",)] == 0
    metrics.led(True)
    assert read(metrics)[("adlro_leader",)] == 1


def test_a_standby_shows_no_cluster() -> None:
    metrics = DaemonMetrics()
    empty = set(read(metrics))
    metrics.led(True)
    metrics.show(state(waiting("1"), running("2", (HERE,)), drifts=(Drift(V100, 0.7, 20, 0.0),)))
    metrics.led(False)
    page = read(metrics)
    assert set(page) == empty
    assert page["adlro_jobs", "waiting"] == 0


def test_two_daemons_in_one_process_count_apart() -> None:
    one, two = DaemonMetrics(), DaemonMetrics()
    one.ticked(tick(1))
    assert ("adlro_ticks_total", "sjf") not in read(two)


def test_a_label_that_somebody_else_wrote_cannot_break_the_page() -> None:
    metrics = DaemonMetrics()
    metrics.alarmed(Alarm(1.0, 'x"}\nadlro_leader 5', "text"))
    assert read(metrics)[("adlro_leader",)] == 0


def test_gpus_are_free_held_down_or_reserved_and_together_all_of_them() -> None:
    seen = snapshot(
        running("1", (Part("volta0", V100, 2),)), running("2", (Part("volta1", V100, 1),)),
        down={"volta1": "drained", "turing": "reserved (maintenance) until 18:00"},
    )  # fmt: skip
    found = gpu_states(seen, held_by_node(seen))
    assert found[V100] == {"free": 2, "held": 3, "down": 3, "reserved": 0}
    assert found["t4"] == {"free": 0, "held": 0, "down": 0, "reserved": 4}
    assert sum(sum(counts.values()) for counts in found.values()) == seen.cluster.gpu_count
    assert largest_free(seen, held_by_node(seen)) == {V100: 2, "t4": 0, "mi50": 4}


def test_jobs_are_counted_by_the_model_they_hold_or_need() -> None:
    metrics = DaemonMetrics()
    jobs = (
        running("1", (Part("volta0", V100, 2),)), waiting("2"), waiting("3", models=frozenset(["t4"]), gpus=3),
        waiting("4", models=frozenset(["t4", V100]), gpus=2),
    )  # fmt: skip
    metrics.show(state(*jobs))
    page = read(metrics)
    assert page["adlro_jobs_by_model", V100, "running"] == 1
    assert [page["adlro_jobs_by_model", model, "waiting"] for model in ("any", "t4", "several")] == [1, 1, 1]
    assert page["adlro_smallest_waiting_gpus", "t4"] == 1
    metrics.show(state(*jobs[:1], *jobs[2:]))
    page = read(metrics)
    assert [page.get(("adlro_smallest_waiting_gpus", model)) for model in ("t4", V100, "mi50")] == [2, 2, None]


def test_waits_and_ends_are_counted_once_and_what_was_there_before_is_not() -> None:
    metrics = DaemonMetrics()
    late = replace(running("1", (HERE,)), started_s=EPOCH_S + 50.0)
    metrics.show(state(running("0", (HERE,)), waiting("1"), waiting("2")))
    for _ in range(2):
        metrics.show(state(running("0", (HERE,)), late, replace(waiting("2"), state=JobState.CANCELLED)))
    metrics.show(state(replace(late, state=JobState.FINISHED)))
    page = read(metrics)
    assert page[("adlro_job_wait_seconds_count",)] == 1
    assert page[("adlro_job_wait_seconds_sum",)] == 50.0
    assert page["adlro_ended_jobs_total", "finished"] == 1
    assert page["adlro_ended_jobs_total", "cancelled"] == 1
    assert page["adlro_ended_jobs_total", "failed"] == 0


def test_the_oldest_wait_is_of_a_job_that_is_ours() -> None:
    metrics = DaemonMetrics()
    old = replace(waiting("1"), managed=False)
    metrics.show(State(snapshot(old, waiting("2", at_s=60.0), at_s=100.0), None, "x", "sjf", "fcfs", False, True))
    assert read(metrics)[("adlro_oldest_wait_seconds",)] == 40.0


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Job violates accounting/QOS policy (QOSMaxGRESPerUser)", "limit"),
        ("AssocGrpGRES", "limit"),
        ("Requested node is in a reservation", "reservation"),
        ("Invalid generic resource (gres) specification", "invalid"),
        ("Invalid job id specified", "gone"),
        ("Access/permission denied", "rights"),
        ("the cluster took the order, and the job waits still", "busy"),
        ("Socket timed out on send/recv operation", "time-out"),
        ("", "other"),
        ("something new", "other"),
    ],
)
def test_refusals_are_counted_by_class_and_never_by_the_words(said: str, reason: str) -> None:
    metrics = DaemonMetrics()
    metrics.ticked(replace(tick(1), answers=(Answer("1", False, said),), is_cut=True))
    page = read(metrics)
    counts = {key[1]: value for key, value in page.items() if key[0] == "adlro_refusals_total"}
    assert {name for name, count in counts.items() if count} == {reason}
    assert page[("adlro_cut_ticks_total",)] == 1


def test_jobs_that_are_given_back_are_counted() -> None:
    metrics = DaemonMetrics()
    assert read(metrics)["adlro_alarms_total", "given-back"] == 0
    metrics.alarmed(Alarm(1.0, "given-back", "job 1 is back", "1"))
    metrics.alarmed(Alarm(1.0, "given-back", "job 2 could not be given back"))
    assert read(metrics)[("adlro_given_back_total",)] == 1


def test_readiness_the_store_and_the_latest_reading_are_shown(tmp_path: Path) -> None:
    store = tmp_path / "adlro.db"
    store.write_bytes(b"x" * 100)
    (tmp_path / "adlro.db-wal").write_bytes(b"x" * 11)
    is_ready = [False]
    metrics = DaemonMetrics("1", lambda: is_ready[0], lambda: file_bytes(store))
    assert read(metrics)[("adlro_ready",)] == 0
    is_ready[0] = True
    metrics.read()
    page = read(metrics)
    assert page[("adlro_ready",)] == 1
    assert page["adlro_store_bytes", "sqlite"] == 111
    assert time.time() - page[("adlro_last_read_timestamp_seconds",)] < 60
    assert ("adlro_store_bytes", "sqlite") not in read(DaemonMetrics("1", None, lambda: file_bytes(None)))


def test_no_label_is_a_user_a_job_or_a_name() -> None:
    metrics = DaemonMetrics()
    jobs = [
        *(waiting(f"id-{n}", user=f"user-{n}", name=f"name-{n}") for n in range(50)),
        *(running(f"r-{n}", (HERE,), user=f"user-{n}", name=f"name-{n}") for n in range(50)),
    ]
    metrics.show(state())
    series = len(read(metrics))
    metrics.show(state(*jobs))
    assert len(read(metrics)) < series + 12
    assert not re.search(r"user-|name-|id-", metrics.page())


def test_the_document_lists_every_metric_and_no_other() -> None:
    metrics = DaemonMetrics()
    metrics.ticked(tick(1))
    metrics.show(state(drifts=(Drift(V100, 0.7, 20, 0.0),), history=(Compared(1.0, 0.5, 1.0, 1.0),)))
    assert "adlro_failed_ticks_total" in metrics.page()
    there = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(metrics.page() + Requests().page())
        if family.name.startswith("adlro_") and not family.name.endswith("_created")
    }
    listed = set(re.findall(r"^\| `(adlro_\w+)", DOC.read_text(), re.MULTILINE))
    assert listed == there


def test_gpus_and_waits_are_shown_by_namespace_and_what_no_node_can_take_and_rights_that_are_missing() -> None:
    metrics = DaemonMetrics()
    held = replace(running("1", (Part("volta0", V100, 2),)), partition="team-a")
    asks = replace(waiting("2", at_s=-60, gpus=4), partition="team-a")
    never = replace(waiting("3", gpus=99), partition="team-b", managed=False, setback=Setback.UNPLACEABLE)
    shown = state(held, asks, never)
    metrics.show(replace(shown, snapshot=replace(shown.snapshot, lacks=(MissingRight("create pods/binding", True),))))
    page = read(metrics)
    assert page["adlro_gpus_by_partition", "team-a", "held"] == 2
    assert page["adlro_gpus_by_partition", "team-a", "asked"] == 4
    assert page["adlro_gpus_by_partition", "team-b", "asked"] == 99
    assert page["adlro_oldest_wait_by_partition_seconds", "team-a"] == pytest.approx(60, abs=1)
    assert ("adlro_oldest_wait_by_partition_seconds", "team-b") not in page
    assert page[("adlro_unplaceable_jobs",)] == page[("adlro_missing_rights",)] == 1
    metrics.led(False)
    page = read(metrics)
    assert page[("adlro_unplaceable_jobs",)] == page[("adlro_missing_rights",)] == 0
    assert ("adlro_gpus_by_partition", "team-a", "held") not in page
