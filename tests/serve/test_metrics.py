"""The page for Prometheus: what is on it, and that Prometheus' own reader can read it."""

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.serve.live_records import tick
from tests.serve.stand_in import running, snapshot, waiting

from adlro.core.ports import Answer, JobState, LiveJob, Part
from adlro.core.records import Job
from adlro.serve.metrics import Metrics, held_gpus
from adlro.serve.service import Alarm, Compared, Drift, State

V100 = "v100-sxm2-16gb"
DOC = Path(__file__).parents[2] / "docs" / "daemon.md"


def read(metrics: Metrics) -> dict[tuple[str, ...], float]:
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
    metrics = Metrics("1.2.3")
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


def test_the_cluster_is_shown_by_model_and_a_node_that_is_down_is_not_up() -> None:
    metrics = Metrics()
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
    assert held_gpus(snapshot(half, waiting("2"))) == {V100: 0.5}


def test_drift_and_completion_times_are_shown_while_they_hold() -> None:
    metrics = Metrics()
    metrics.show(state(drifts=(Drift(V100, 0.7, 20, 0.0, gpu=1),), history=(Compared(1.0, 0.5, 100.0, 120.0),)))
    page = read(metrics)
    assert page["adlro_drift_factor", "", "1", V100, ""] == 0.7
    assert page["adlro_jct_seconds", "measured"] == 100.0
    metrics.show(state())
    assert not [key for key in read(metrics) if key[0] in ("adlro_drift_factor", "adlro_jct_seconds")]


def test_gpus_that_say_nothing_are_counted() -> None:
    metrics = Metrics()
    metrics.show(state(telemetry={"volta0/0": {"power": None}, "volta0/1": {"power": 0.4, "memory": None}}))
    assert read(metrics)[("adlro_telemetry_gaps",)] == 1


def test_it_says_whether_it_leads() -> None:
    metrics = Metrics()
    assert read(metrics)[("adlro_leader",)] == 0
    metrics.led(True)
    assert read(metrics)[("adlro_leader",)] == 1


def test_two_daemons_in_one_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.ticked(tick(1))
    assert ("adlro_ticks_total", "sjf") not in read(two)


def test_a_label_that_somebody_else_wrote_cannot_break_the_page() -> None:
    metrics = Metrics()
    metrics.alarmed(Alarm(1.0, 'x"}\nadlro_leader 5', "text"))
    assert read(metrics)[("adlro_leader",)] == 0


def test_the_document_lists_every_metric_and_no_other() -> None:
    metrics = Metrics()
    metrics.ticked(tick(1))
    metrics.show(state(drifts=(Drift(V100, 0.7, 20, 0.0),), history=(Compared(1.0, 0.5, 1.0, 1.0),)))
    there = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(metrics.page())
        if family.name.startswith("adlro_") and not family.name.endswith("_created")
    }
    listed = set(re.findall(r"^\| `(adlro_\w+)", DOC.read_text(), re.MULTILINE))
    assert listed == there
