"""The page that Prometheus reads: what the daemon does, and how the cluster stands (docs/monitoring.md).

No label has users or jobs: how many series there are depends on the hardware, the partitions and the policies only.
"""

import math
import re
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest

from adlro.core.ports import ENDED, PLACES, RESERVED, JobState, LiveJob, Setback, Snapshot
from adlro.core.records import WHOLE_GPU
from adlro.live.service import Alarm, State, Tick

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the histogram of a turn's time; 1 s is what we promise for 10,000 jobs."""

WAITS_S: Final = (
    1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0,
)  # fmt: skip
"""Bounds of the histogram of the time that jobs waited."""

_LIVE: Final = (JobState.WAITING, JobState.PLACED, JobState.RUNNING)
WAITED: Final = (JobState.WAITING, JobState.PLACED)
BEGAN: Final = (JobState.RUNNING, JobState.FINISHED, JobState.FAILED)

HeldByNode = dict[tuple[str, str], float]
"""GPUs that jobs hold, by node and model."""

ALARMS: Final = (
    "api", "back", "backend", "clock", "config", "drift", "fault", "given-back", "illegal", "kept", "left-out", "limit",
    "misplaced", "nan", "policy", "preempt", "refused", "settled", "slow", "stale", "starving", "store", "telemetry",
    "vanished", "worse",
)  # fmt: skip
"""Kinds of alarms that are shown from the beginning, with 0: an increase from nothing would not be seen."""

GIVEN_BACK: Final = "given-back"
"""The kind of alarm of a job that is left to the cluster's own scheduler."""


REFUSALS: Final = (
    ("limit", re.compile(r"qos|assoc|limit|max\w*per|license|quota", re.IGNORECASE)),
    ("reservation", re.compile(r"reserv", re.IGNORECASE)),
    ("gone", re.compile(r"invalid job id|no such job|not there|already|unknown job|no job", re.IGNORECASE)),
    ("invalid", re.compile(r"invalid|unsupported|not available|not supported|cannot be satisfied", re.IGNORECASE)),
    ("rights", re.compile(r"denied|permission|not permitted|access", re.IGNORECASE)),
    ("busy", re.compile(r"busy|in use|resources|waits still|not enough|unavailable", re.IGNORECASE)),
    ("time-out", re.compile(r"timed? ?-?out|did not answer", re.IGNORECASE)),
    ("other", re.compile("")),
)
"""Classes of what the cluster says when it refuses an order; the first that fits counts."""


@final
class DaemonMetrics:
    """Counts turns and shows the latest state. It has a registry of its own: two daemons in one process are two.

    `is_ready` and `store_bytes` are asked when the page is read.
    """

    def __init__(
        self,
        version: str = "",
        is_ready: Callable[[], bool] | None = None,
        store_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._ticks = Counter("adlro_ticks", "Turns, by who decided.", ["decided_by"], registry=registry)
        self._seconds = Histogram("adlro_tick_seconds", "Time of a turn.", buckets=_SECONDS, registry=registry)
        self._decisions = Counter(
            "adlro_decisions", "Decisions, by verb and policy.", ["verb", "policy"], registry=registry
        )
        self._orders = Counter(
            "adlro_orders", "Answers of the cluster to orders: done or refused.", ["answer"], registry=registry
        )
        self._alarms = Counter("adlro_alarms", "Alarms, by kind.", ["kind"], registry=registry)
        self._failed = Counter("adlro_failed_ticks", "Turns that failed with an error.", registry=registry)
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
        self._more(registry)
        self._is_ready, self._store_bytes = is_ready, store_bytes
        self._seen: dict[str, JobState] | None = None  # by job, in the latest snapshot
        Gauge("adlro_info", "1, with the version.", ["version"], registry=registry).labels(version).set(1)
        for state in JobState:
            self._jobs.labels(state.value).set(0)
        self._leader.set(0)
        for kind in ALARMS:
            self._alarms.labels(kind)
        for answer in ("done", "refused"):
            self._orders.labels(answer)
        for reason, _ in REFUSALS:
            self._refusals.labels(reason)
        for ended in sorted(ENDED):
            self._ended.labels(ended.value)

    def _more(self, registry: CollectorRegistry) -> None:
        """What operators look at when something is wrong."""
        self._ready = Gauge("adlro_ready", "1 if it leads and its latest reading is recent.", registry=registry)
        self._read = Gauge(
            "adlro_last_read_timestamp_seconds",
            "When the cluster was last read whole, seconds since 1970 by this machine's clock; 0: never.",
            registry=registry,
        )
        self._cut = Counter(
            "adlro_cut_ticks", "Turns whose time was over before every job had been asked for.", registry=registry
        )
        self._refusals = Counter(
            "adlro_refusals", "Orders that the cluster refused, by class of its reason.", ["reason"], registry=registry
        )
        self._stopped = Counter(
            "adlro_stops", "Running jobs that were stopped so that others could run.", ["policy"], registry=registry
        )
        self._stops_left = Gauge(
            "adlro_stops_last_hour",
            "Running jobs that were stopped in the last hour, and how many may be.",
            ["what"],
            registry=registry,
        )
        self._stop_s = Gauge(
            "adlro_stop_seconds", "Median time from the order to stop a job to its end; 0: none yet.", registry=registry
        )
        self._given_back = Counter(
            "adlro_given_back", "Jobs that were left to the cluster's own scheduler.", registry=registry
        )
        self._waits = Histogram(
            "adlro_job_wait_seconds",
            "Time from submission to start, of jobs that started.",
            buckets=WAITS_S,
            registry=registry,
        )
        self._ended = Counter("adlro_ended_jobs", "Jobs that ended, by state.", ["state"], registry=registry)
        self._oldest = Gauge(
            "adlro_oldest_wait_seconds", "How long the oldest job that waits for us has waited.", registry=registry
        )
        self._by_model = Gauge(
            "adlro_jobs_by_model",
            "Jobs by state and GPU model: where they run; while they wait, the model they need, several or any.",
            ["state", "model"],
            registry=registry,
        )
        self._by_partition = Gauge(
            "adlro_jobs_by_partition", "Jobs by state and partition.", ["state", "partition"], registry=registry
        )
        self._by_partition_gpus = Gauge(
            "adlro_gpus_by_partition",
            "GPUs that the jobs of a partition hold, and that those which wait ask for.",
            ["partition", "what"],
            registry=registry,
        )
        self._by_partition_oldest = Gauge(
            "adlro_oldest_wait_by_partition_seconds",
            "How long the oldest job of a partition that waits for us has waited.",
            ["partition"],
            registry=registry,
        )
        self._unplaceable = Gauge(
            "adlro_unplaceable_jobs", "Jobs that wait for us, and that no node can take as they are.", registry=registry
        )
        self._missing_rights = Gauge(
            "adlro_missing_rights", "Things that the cluster does not let us do; /readyz names them.", registry=registry
        )
        self._by_state = Gauge(
            "adlro_gpus_by_state",
            "GPUs by model and state: free, held, down or reserved. Together they are all GPUs.",
            ["model", "state"],
            registry=registry,
        )
        self._largest = Gauge(
            "adlro_largest_free_gpus", "The most free GPUs that one node has.", ["model"], registry=registry
        )
        self._smallest = Gauge(
            "adlro_smallest_waiting_gpus",
            "The fewest whole GPUs that a job asks for which waits for us and may have this model.",
            ["model"],
            registry=registry,
        )
        self._size = Gauge("adlro_store_bytes", "Size of the store's files.", ["kind"], registry=registry)

    def ticked(self, tick: Tick) -> None:
        """Count a turn."""
        with self._lock:
            self._ticks.labels(tick.decided_by).inc()
            self._seconds.observe(tick.seconds)
            for decision in tick.decisions:
                self._decisions.labels(decision.verb, decision.policy).inc()
                is_done = any(answer.job == decision.job and answer.done for answer in tick.answers)
                if decision.verb == "stop" and is_done:
                    self._stopped.labels(decision.policy).inc()
            for answer in tick.answers:
                self._orders.labels("done" if answer.done else "refused").inc()
                if not answer.done:
                    self._refusals.labels(refusal_class(answer.said)).inc()
            self._cut.inc(tick.is_cut)
            self._latest.set(tick.time_s)

    def alarmed(self, alarm: Alarm) -> None:
        """Count an alarm."""
        self._alarms.labels(alarm.kind).inc()
        if alarm.kind == GIVEN_BACK and alarm.job:
            self._given_back.inc()

    def failed(self) -> None:
        """Count a turn that broke off."""
        self._failed.inc()

    def read(self) -> None:
        """Note that the cluster was read whole now."""
        self._read.set(time.time())

    def led(self, is_leader: bool) -> None:
        """Note whether we lead. A standby shows no cluster: else its old figures would be added to the leader's."""
        self._leader.set(is_leader)
        if is_leader:
            return
        with self._lock:
            self._seen = None
            self._guarded.set(0)
            self._oldest.set(0)
            self._gaps.set(0)
            for state in JobState:
                self._jobs.labels(state.value).set(0)
            for gauge in (
                self._gpus, self._used, self._nodes, self._drift, self._jct, self._by_model, self._by_partition,
                self._by_state, self._largest, self._smallest, self._size, self._stops_left, self._by_partition_gpus,
                self._by_partition_oldest,
            ):  # fmt: skip
                gauge.clear()
            self._unplaceable.set(0)
            self._missing_rights.set(0)

    def show(self, state: State) -> None:
        """Show a state in place of the one before."""
        with self._lock:
            self._guarded.set(state.is_guarded)
            if (stopping := state.stopping) is not None:
                self._stops_left.labels("stopped").set(stopping.last_hour)
                self._stops_left.labels("allowed").set(stopping.per_hour if stopping.is_on else 0)
                self._stop_s.set(stopping.took_s or 0.0)
            self._show_cluster(state.snapshot)
            self._show_jobs(state.snapshot)
            self._notice(state.snapshot)
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
        by_node = held_by_node(snapshot)
        held = held_gpus(by_node)
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
        self._by_state.clear()
        self._largest.clear()
        for model, counts in gpu_states(snapshot, by_node).items():
            for kind, many in counts.items():
                self._by_state.labels(model, kind).set(many)
        for model, most in largest_free(snapshot, by_node).items():
            self._largest.labels(model).set(most)

    def _show_jobs(self, snapshot: Snapshot) -> None:
        """Jobs by model and partition, and who waits for us."""
        by_model: Tally[tuple[str, str]] = Tally()
        by_partition: Tally[tuple[str, str]] = Tally()
        for job in snapshot.jobs:
            if job.state in _LIVE:
                by_model[job.state.value, _model_of(job)] += 1
                if partition := job.partition:
                    by_partition[job.state.value, partition] += 1
        for gauge, counts in (
            (self._by_model, by_model),
            (self._by_partition, by_partition),
            (self._by_partition_gpus, gpus_by_partition(snapshot)),
        ):
            gauge.clear()
            for labels, count in counts.items():
                gauge.labels(*labels).set(count)
        self._unplaceable.set(sum(job.setback is Setback.UNPLACEABLE for job in snapshot.jobs))
        self._missing_rights.set(len(snapshot.lacks))
        ours = [job for job in snapshot.jobs if job.state is JobState.WAITING and job.managed]
        self._oldest.set(max((snapshot.time_s - job.job.submit_s for job in ours), default=0.0))
        oldest: dict[str, float] = {}
        for job in ours:
            oldest[job.partition] = max(oldest.get(job.partition, 0.0), snapshot.time_s - job.job.submit_s)
        self._by_partition_oldest.clear()
        for partition, seconds in oldest.items():
            if partition:
                self._by_partition_oldest.labels(partition).set(seconds)
        fewest: dict[frozenset[str], int] = {}  # by the models that will do
        for job in ours:
            if job.job.gpus and may_start(job):
                fewest[job.job.models] = min(job.job.gpus, fewest.get(job.job.models, job.job.gpus))
        self._smallest.clear()
        for model in snapshot.cluster.models:
            if asked := [gpus for models, gpus in fewest.items() if not models or model in models]:
                self._smallest.labels(model).set(min(asked))

    def _notice(self, snapshot: Snapshot) -> None:
        """Count what happened to jobs since the latest snapshot: how long they waited, and how they ended."""
        before, self._seen = self._seen, {job.id: job.state for job in snapshot.jobs}
        if before is None:
            return  # what was there before us is not counted
        for job in snapshot.jobs:
            was = before.get(job.id, JobState.WAITING)
            if was in WAITED and job.state in BEGAN and job.started_s is not None and job.starts <= 1:
                self._waits.observe(max(0.0, job.started_s - job.job.submit_s))
            if job.state in ENDED and was not in ENDED:
                self._ended.labels(job.state.value).inc()

    def page(self) -> str:
        """The page, in Prometheus' text format."""
        is_ready = self._is_ready is not None and self._is_ready()
        size = self._store_bytes() if self._store_bytes is not None else None
        with self._lock:
            self._ready.set(is_ready)
            if size is not None:
                self._size.labels("sqlite").set(size)
            return generate_latest(self.registry).decode()


def held_by_node(snapshot: Snapshot) -> HeldByNode:
    """How many GPUs jobs hold by node and model; a share of one counts as its share."""
    held: HeldByNode = {}
    for live in snapshot.jobs:
        if live.state in PLACES:
            for part in live.parts:
                at = (part.node, part.model)
                held[at] = held.get(at, 0.0) + part.count * live.job.share / WHOLE_GPU
    return held


def gpus_by_partition(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """By partition, the GPUs that its jobs hold, and those that its waiting jobs ask for."""
    found: dict[tuple[str, str], float] = {}
    for live in snapshot.jobs:
        if live.partition and live.state in _LIVE:
            what = "asked" if live.state is JobState.WAITING else "held"
            gpus = live.job.gpus if live.state is JobState.WAITING else sum(part.count for part in live.parts)
            at = (live.partition, what)
            found[at] = found.get(at, 0.0) + gpus * live.job.share / WHOLE_GPU
    return found


def held_gpus(by_node: HeldByNode) -> dict[str, float]:
    """The same by model."""
    held: dict[str, float] = {}
    for (_, model), count in by_node.items():
        held[model] = held.get(model, 0.0) + count
    return held


def gpu_states(snapshot: Snapshot, held: HeldByNode) -> dict[str, dict[str, float]]:
    """By model, how many GPUs are free, held by jobs, down and reserved; a held GPU of a node that is down is held."""
    found: dict[str, dict[str, float]] = {}
    for node in snapshot.cluster.nodes:
        reason = snapshot.down.get(node.name)
        rest = "free" if reason is None else RESERVED if reason.startswith(RESERVED) else "down"
        for group in node.gpus:
            counts = found.setdefault(group.model, dict.fromkeys(("free", "held", "down", RESERVED), 0.0))
            taken = min(held.get((node.name, group.model), 0.0), group.count)
            counts["held"] += taken
            counts[rest] += group.count - taken
    return found


def largest_free(snapshot: Snapshot, held: HeldByNode) -> dict[str, int]:
    """By model, the most free whole GPUs that one node has."""
    found: dict[str, int] = {}
    for node in snapshot.cluster.nodes:
        for group in node.gpus:
            free = math.floor(group.count - held.get((node.name, group.model), 0.0))
            found[group.model] = max(found.get(group.model, 0), 0 if node.name in snapshot.down else free)
    return found


def _model_of(job: LiveJob) -> str:
    """The model that a job holds; of one that waits the model that it needs, "several", or "any"."""
    if job.parts:
        return job.parts[0].model
    models = job.job.models
    return next(iter(models)) if len(models) == 1 else "several" if models else "any"


def may_start(job: LiveJob) -> bool:
    """Whether nothing but room keeps a waiting job from starting, as far as the cluster says."""
    return not job.setback


def refusal_class(said: str) -> str:
    """The class of what the cluster said when it refused an order."""
    return next(name for name, words in REFUSALS if words.search(said))


def file_bytes(path: Path | None) -> int | None:
    """Bytes of the files of a database; None if it is in memory or on a server."""
    if path is None:
        return None
    size = 0
    for file in (path, *path.parent.glob(f"{path.name}-*")):
        with suppress(OSError):  # it is gone again
            size += file.stat().st_size
    return size
