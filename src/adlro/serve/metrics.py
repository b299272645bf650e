"""The page that Prometheus reads: what the daemon does, and how the cluster stands (docs/daemon.md)."""

import threading
from collections import Counter as Tally
from typing import Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from adlro.core.ports import JobState, Snapshot
from adlro.core.records import WHOLE_GPU
from adlro.serve.service import Alarm, State, Tick

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the histogram of a turn's time; 1 s is what we promise for 10,000 jobs."""


@final
class Metrics:
    """Counts turns and shows the latest state. It has a registry of its own: two daemons in one process are two."""

    def __init__(self, version: str = "") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._ticks = Counter("adlro_ticks", "Turns, by who decided.", ["decided_by"], registry=registry)
        self._seconds = Histogram("adlro_tick_seconds", "Time of a turn.", buckets=SECONDS, registry=registry)
        self._decisions = Counter(
            "adlro_decisions", "Decisions, by verb and policy.", ["verb", "policy"], registry=registry
        )
        self._orders = Counter(
            "adlro_orders", "Answers of the cluster to orders: done or refused.", ["answer"], registry=registry
        )
        self._alarms = Counter("adlro_alarms", "Alarms, by kind.", ["kind"], registry=registry)
        self._failed = Counter("adlro_failed_ticks", "Turns that broke off by a fault of ours.", registry=registry)
        self._leader = Gauge("adlro_leader", "1 if this daemon leads, 0 if it stands by.", registry=registry)
        self._guarded = Gauge("adlro_guarded", "1 while the fallback decides.", registry=registry)
        self._latest = Gauge(
            "adlro_last_tick_time_seconds", "Moment of the latest turn, by the cluster's clock.", registry=registry
        )
        self._jobs = Gauge("adlro_jobs", "Jobs that the cluster shows, by state.", ["state"], registry=registry)
        self._gpus = Gauge(
            "adlro_gpus", "GPUs by model: all, up, and held by jobs.", ["model", "what"], registry=registry
        )
        self._used = Gauge(
            "adlro_utilisation", "Share of the GPUs that are up and held by jobs.", ["model"], registry=registry
        )
        self._nodes = Gauge("adlro_nodes", "Nodes: all, and those that take no jobs.", ["what"], registry=registry)
        self._drift = Gauge(
            "adlro_drift_factor",
            "Speed against what was expected; empty labels are all of them.",
            ["model", "family", "node", "gpu"],
            registry=registry,
        )
        self._jct = Gauge(
            "adlro_jct_seconds",
            "Mean time in the system within the window: measured, and as the fallback is predicted.",
            ["of"],
            registry=registry,
        )
        self._gaps = Gauge(
            "adlro_telemetry_gaps", "GPUs without any figure, of those that should have some.", registry=registry
        )
        Gauge("adlro_info", "1, with the version.", ["version"], registry=registry).labels(version).set(1)
        for state in JobState:
            self._jobs.labels(state.value).set(0)
        self._leader.set(0)

    def ticked(self, tick: Tick) -> None:
        """Count a turn."""
        with self._lock:
            self._ticks.labels(tick.decided_by).inc()
            self._seconds.observe(tick.seconds)
            for decision in tick.decisions:
                self._decisions.labels(decision.verb, decision.policy).inc()
            for answer in tick.answers:
                self._orders.labels("done" if answer.done else "refused").inc()
            self._latest.set(tick.time_s)

    def alarmed(self, alarm: Alarm) -> None:
        """Count an alarm."""
        self._alarms.labels(alarm.kind).inc()

    def failed(self) -> None:
        """Count a turn that broke off."""
        self._failed.inc()

    def led(self, is_leader: bool) -> None:
        """Note whether we lead."""
        self._leader.set(is_leader)

    def show(self, state: State) -> None:
        """Show a state in place of the one before."""
        with self._lock:
            self._guarded.set(state.is_guarded)
            self._show_cluster(state.snapshot)
            self._drift.clear()
            for drift in state.drifts:
                gpu = "" if drift.gpu is None else str(drift.gpu)
                self._drift.labels(drift.model, drift.family, drift.node, gpu).set(drift.factor)
            self._jct.clear()
            if state.history:
                for name, seconds in (
                    ("measured", state.history[-1].jct_s),
                    ("fallback", state.history[-1].fallback_jct_s),
                ):
                    if seconds is not None:
                        self._jct.labels(name).set(seconds)
            silent = [levels for levels in state.telemetry.values() if all(level is None for level in levels.values())]
            self._gaps.set(len(silent))

    def _show_cluster(self, snapshot: Snapshot) -> None:
        states = Tally(job.state for job in snapshot.jobs)
        for state in JobState:
            self._jobs.labels(state.value).set(states[state])
        all_gpus: Tally[str] = Tally()
        up: Tally[str] = Tally()
        for node in snapshot.cluster.nodes:
            for group in node.gpus:
                all_gpus[group.model] += group.count
                up[group.model] += 0 if node.name in snapshot.down else group.count
        held = held_gpus(snapshot)
        self._gpus.clear()
        self._used.clear()
        for model, count in all_gpus.items():
            self._gpus.labels(model, "all").set(count)
            self._gpus.labels(model, "up").set(up[model])
            self._gpus.labels(model, "held").set(held.get(model, 0.0))
            if up[model]:
                self._used.labels(model).set(min(1.0, held.get(model, 0.0) / up[model]))
        self._nodes.labels("all").set(len(snapshot.cluster.nodes))
        self._nodes.labels("down").set(len(snapshot.down))

    def page(self) -> str:
        """The page, in Prometheus' text format."""
        with self._lock:
            return generate_latest(self.registry).decode()


def held_gpus(snapshot: Snapshot) -> dict[str, float]:
    """How many GPUs of each model jobs hold; a share of one counts as its share."""
    held: dict[str, float] = {}
    for live in snapshot.jobs:
        if live.state in (JobState.RUNNING, JobState.PLACED):
            for part in live.parts:
                held[part.model] = held.get(part.model, 0.0) + part.count * live.job.share / WHOLE_GPU
    return held
