"""Predictions: when waiting jobs will start, and what another cluster, other jobs or another policy would change."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np
import numpy.typing as npt

from adlro.catalogue.gpus import find_gpu
from adlro.core.errors import UsageError
from adlro.core.policy import Policy
from adlro.core.ports import JobState, LiveJob, Setback, Snapshot
from adlro.core.records import Cluster, Gpus, Link, Node
from adlro.core.tables import QUEUED, Floats, View
from adlro.decide.catalogue import find_policy
from adlro.live.forward import Played, drawn_work, play_forward, usual_work
from adlro.live.scene import Scene
from adlro.live.service import OtherWish, Start, WhatIf, WhatIfAnswer
from adlro.live.words import spell

DRAWS: Final = 9
"""How many draws of the jobs' work make an interval; spread over several turns if one turn has no time for all."""

CHEAP: Final = ("eft-reserving", "fcfs-first-fit", "fcfs")
"""Rules that play forward instead of a policy that is too slow, the most similar first."""

UNTRIED_JOBS: Final = 200
"""A policy of unknown speed is tried on queues up to this length."""

_MOST_JOBS: Final = 20_000
OTHER_START_S: Final = 1.0
JobIndices = npt.NDArray[np.int64]

NEW: Final = "new-"
"""Prefix of the names of jobs that a what-if question adds."""


@final
class Pace:
    """How long each policy took to play forward, so that one that is too slow is not tried."""

    def __init__(self) -> None:
        self._took: dict[str, tuple[int, float, bool]] = {}

    def expected_s(self, policy: Policy, jobs: int) -> float:
        """Expected seconds for this many waiting jobs; the time grows with their square."""
        if policy.name not in self._took:
            return 0.0 if jobs <= UNTRIED_JOBS or policy.choose is not None else np.inf
        before, seconds, is_whole = self._took[policy.name]
        return (1.0 if is_whole else 4.0) * seconds * (jobs / max(before, 1)) ** 2

    def note(self, policy: Policy, jobs: int, seconds: float, is_whole: bool) -> None:
        """Remember how long a policy took."""
        self._took[policy.name] = jobs, seconds, is_whole


@final
class Foresight:
    """Plays live views forward. Its draws and what it learnt about its own speed are kept between turns."""

    def __init__(self, monotonic: Callable[[], float] = time.perf_counter, seed: int = 0) -> None:
        self._monotonic = monotonic
        self._random = np.random.default_rng(seed)
        self._pace = Pace()
        self._drawn: deque[Floats] = deque(maxlen=DRAWS)  # starts in seconds since 1970, by a job's number here
        self._numbers: dict[str, int] = {}
        self._drawn_for: tuple[str, int] | None = None

    def starts(self, scene: Scene, view: View, policy: Policy, seconds: float) -> dict[str, Start]:
        """The predicted start of each waiting job.

        Draws of earlier turns count while the policy is the same. The first draw of a turn uses the expected work of
        every job.
        """
        waiting = np.flatnonzero(view.runs["state"] == QUEUED)
        if not len(waiting):
            self._drawn.clear()
            return {}
        if self._drawn_for != (policy.name, id(scene.plan)) or len(self._numbers) > 4 * len(waiting) + 1000:
            self._drawn.clear()
            self._numbers.clear()
            self._drawn_for = policy.name, id(scene.plan)
        ids = [scene.live[j].id for j in waiting.tolist()]
        numbers = np.array([self._numbers.setdefault(id, len(self._numbers)) for id in ids], np.int64)
        until = self._monotonic() + seconds
        took = 0.0
        for draw in range(DRAWS):
            began = self._monotonic()
            left = until - began
            if draw and left < 1.5 * took:
                break
            work = usual_work(view)[0] if draw == 0 else drawn_work(scene, view, self._random)
            played = self.play(view, work, policy, max(left, seconds / 2))
            seen = np.full(len(self._numbers), np.nan)
            seen[numbers] = scene.epoch_s + played.start[waiting]
            self._drawn.append(seen)
            took = self._monotonic() - began
        return self._summed_up(scene.snapshot.time_s, ids, numbers)

    def _summed_up(self, now_s: float, ids: Sequence[str], numbers: JobIndices) -> dict[str, Start]:
        """The median and the interval of the draws. Earlier draws do not contain jobs that came later."""
        table = np.full((len(self._drawn), len(ids)), np.nan)
        for row, seen in zip(table, self._drawn, strict=True):
            there = numbers < len(seen)
            row[there] = seen[numbers[there]]
        known = ~np.isnan(table)
        many = known.sum(axis=0)
        foreseen = (many * 2 > len(table)) | (many > 0) & known[-1]
        filled = np.maximum(np.where(known, table, np.inf), now_s)
        filled.sort(axis=0)
        columns = np.arange(len(ids))
        low, middle, high = (
            filled[np.clip((share * many).astype(int), 0, np.maximum(many - 1, 0)), columns].tolist()
            for share in (0.1, 0.5, 0.9)
        )
        return {
            id: Start(id, low[at], middle[at], high[at]) if is_foreseen else Start(id, None, None, None)
            for at, (id, is_foreseen) in enumerate(zip(ids, foreseen.tolist(), strict=True))
        }

    def play(self, view: View, work: Floats, policy: Policy, seconds: float) -> Played:
        """Play forward with the policy, or with a similar rule if the policy is too slow.

        If the policy gets only part of the way, a rule that gets further adds the rest.
        """
        until = self._monotonic() + seconds
        jobs = int(view.clock[0].queued)
        found: Played | None = None
        for candidate in (policy, *(find_policy(name) for name in CHEAP)):
            began = self._monotonic()
            is_last = candidate.name == CHEAP[-1]
            if not is_last and self._pace.expected_s(candidate, jobs) > until - began:
                continue
            allowed = max(until - began, seconds / 4) if is_last or found is not None else 0.7 * (until - began)
            played = play_forward(view, work, candidate, allowed, monotonic=self._monotonic)
            self._pace.note(candidate, jobs, self._monotonic() - began, played.is_whole)
            found = played if found is None else joined(found, played)
            if found.is_whole:
                break
        assert found is not None
        return found

    def play_alone(self, view: View, work: Floats, policy: Policy, seconds: float) -> tuple[Played, Policy]:
        """Play forward with the first of the policy and similar rules that has time for all of it; also its name."""
        until = self._monotonic() + seconds
        jobs = int(view.clock[0].queued)
        for candidate in (policy, *(find_policy(name) for name in CHEAP)):
            began = self._monotonic()
            is_last = candidate.name == CHEAP[-1]
            if not is_last and self._pace.expected_s(candidate, jobs) > 0.6 * (until - began):
                continue
            allowed = max(until - began, seconds / 4) if is_last else 0.6 * (until - began)
            played = play_forward(view, work, candidate, allowed, monotonic=self._monotonic)
            self._pace.note(candidate, jobs, self._monotonic() - began, played.is_whole)
            if played.is_whole or is_last:
                return played, candidate
        raise AssertionError("the last rule is always played")

    def what_if(
        self,
        before: Scene,
        after: Scene,
        policy: Policy,
        other: Policy,
        new: Sequence[str],
        seconds: float,
    ) -> WhatIfAnswer:
        """Play both scenes forward and compare them. `new` are the jobs whose starts are asked for."""
        began = self._monotonic()
        until = began + seconds
        as_is, player = self.play_alone(before.view, usual_work(before.view)[0], policy, 0.4 * seconds)
        if other is policy:
            other = player  # the same rule plays both, or the difference could come from the rules
        second = self._monotonic()
        as_if = play_forward(
            after.view, usual_work(after.view)[0], other, max(until - second, 0.05), monotonic=self._monotonic
        )
        took = self._monotonic() - second
        drawn: list[Played] = [as_if]
        while new and len(drawn) < DRAWS and until - self._monotonic() > 1.5 * took:
            work = drawn_work(after, after.view, self._random)
            drawn.append(play_forward(after.view, work, other, took * 2 + 0.01, monotonic=self._monotonic))
        waiting = [job.id for j, job in enumerate(before.live) if before.view.runs[j].state == QUEUED]
        rows = np.array([before.index[id] for id in waiting], np.int64)
        rows_if = np.array([after.index.get(id, -1) for id in waiting], np.int64)
        both = (rows_if >= 0) & ~np.isnan(as_is.end[rows]) & ~np.isnan(as_if.end[rows_if])
        jct, jct_if = mean_jct(before, as_is, rows[both]), mean_jct(after, as_if, rows_if[both])
        span, span_if = makespan(before, as_is), makespan(after, as_if)
        shift = (as_if.start[rows_if[both]] + after.epoch_s) - (as_is.start[rows[both]] + before.epoch_s)
        changed = int(np.count_nonzero(np.abs(shift) > OTHER_START_S))
        starts = tuple(_start_of(after, id, drawn) for id in new)
        return WhatIfAnswer(
            jct, jct_if, span, span_if, starts, changed, self._monotonic() - began,
            _told(jct, jct_if, starts, (before, as_is), after, changed, as_is.is_whole and as_if.is_whole),
        )  # fmt: skip


def joined(first: Played, second: Played) -> Played:
    """The results of the first run, continued with those of the second after the first had stopped."""
    reached = float(np.nanmax(first.start, initial=-np.inf))
    start = np.where(np.isnan(first.start), np.maximum(second.start, reached), first.start)
    end = np.where(np.isnan(first.end), np.maximum(second.end, reached), first.end)
    return Played(start, end, second.is_whole)


def mean_jct(scene: Scene, played: Played, rows: JobIndices) -> float | None:
    """Mean seconds from submission to end, over the given jobs that end in the run."""
    seconds = (played.end - scene.view.jobs["submit"])[rows]
    seen = seconds[~np.isnan(seconds)]
    return float(seen.mean()) if len(seen) else None


def makespan(scene: Scene, played: Played) -> float | None:
    """Seconds from now to the last end."""
    seen = played.end[~np.isnan(played.end)]
    return float(seen.max() - scene.view.clock[0].now) if len(seen) else None


def _start_of(scene: Scene, id: str, drawn: Sequence[Played]) -> Start:
    """The predicted start of a job, over several draws."""
    j = scene.index.get(id)
    if j is None:
        return Start(id, None, None, None)
    seen = np.sort([played.start[j] for played in drawn if not np.isnan(played.start[j])])
    if not len(seen):
        return Start(id, None, None, None)
    low, middle, high = (
        scene.time_s(float(seen[min(int(share * len(seen)), len(seen) - 1)])) for share in (0.1, 0.5, 0.9)
    )
    return Start(id, low, middle, high)


def _told(
    jct: float | None,
    jct_if: float | None,
    foreseen: Sequence[Start],
    now: tuple[Scene, Played],
    after: Scene,
    changed: int,
    is_whole: bool,
) -> str:
    """The answer in one sentence."""
    known_jobs = {job.id for job in now[0].snapshot.jobs}
    said = [_wished(start, *now) for start in foreseen if start.job in known_jobs]
    starts = [start for start in foreseen if start.job not in known_jobs]
    if starts:
        known = [start.middle_s for start in starts if start.middle_s is not None]
        if known:
            waits = sum(known) / len(known) - after.snapshot.time_s
            what = "The new job" if len(starts) == 1 else f"The {len(starts)} new jobs"
            said.append(f"{what} would start in about {waits:.0f} s")
        else:
            said.append("No start of the new jobs is foreseen")
    if jct is not None and jct_if is not None:
        less = (jct_if - jct) / max(jct, 1e-9)
        way = "less" if less < 0 else "more"
        said.append(
            f"jobs that wait now would take {abs(less):.1%} {way} time to their end ({changed} start at another time)"
        )
    text = "; ".join(said) or "Nothing waits, so nothing would change"
    text = text[0].upper() + text[1:]
    return text + ("." if is_whole else "; as far as could be foreseen in the time.")


def _wished(start: Start, before: Scene, as_is: Played) -> str:
    """When a job would start that asks for something else, and when it is to start as it is."""
    now_s, j = before.snapshot.time_s, before.index.get(start.job)
    at = float(as_is.start[j]) if j is not None else np.nan
    as_it_is = "no start is foreseen" if np.isnan(at) else f"in about {spell(before.time_s(at) - now_s)}"
    if start.middle_s is None:
        return f"No start of job {start.job} would be foreseen (as it is: {as_it_is})"
    return f"Job {start.job} would start in about {spell(start.middle_s - now_s)} (as it is: {as_it_is})"


# ---- another cluster, other jobs ---------------------------------------------------------------------------------


def changed_snapshot(snapshot: Snapshot, question: WhatIf) -> tuple[Snapshot, tuple[str, ...]]:
    """The snapshot with the changes of the question, and the names of the jobs that it adds or changes."""
    cluster = with_nodes(without_nodes(snapshot.cluster, question.remove_nodes), question.add_nodes)
    gone = set(question.remove_nodes)
    jobs = []
    for job in snapshot.jobs:
        if gone and any(part.node in gone for part in job.parts):
            job = replace(job, state=JobState.WAITING, parts=(), started_s=None)
        jobs.append(job)
    new = tuple(f"{NEW}{number}" for number in range(1, len(question.jobs) + 1))
    if len(jobs) + len(new) > _MOST_JOBS:
        raise UsageError(f"the question is about {len(jobs) + len(new)} jobs; expected at most {_MOST_JOBS}.")
    for name, submission in zip(new, question.jobs, strict=True):
        jobs.append(LiveJob(name, replace(submission.job, submit_s=snapshot.time_s), JobState.WAITING))
    for wish in question.change:
        at = next((at for at, job in enumerate(jobs) if job.id == wish.job), None)
        if at is None or jobs[at].state is not JobState.WAITING:
            raise UsageError(f"job {wish.job} does not wait; only a waiting job can be asked about with other wishes.")
        jobs[at] = _wishing(jobs[at], wish, cluster)
    down = {node: why for node, why in snapshot.down.items() if node not in gone}
    return Snapshot(snapshot.time_s, cluster, tuple(jobs), down), (*new, *(wish.job for wish in question.change))


def _wishing(live: LiveJob, wish: OtherWish, cluster: Cluster) -> LiveJob:
    """The job as if it asked for that, and as if nothing else kept it from starting."""
    job = live.job
    if wish.gpus is not None:
        job = replace(job, gpus=wish.gpus)
    if wish.models is not None:
        wanted = {find_gpu(word, cluster.models).name for word in wish.models}
        pools = frozenset(pool for pool, model in cluster.models.items() if model.name in wanted)
        if missing := wanted - {cluster.models[pool].name for pool in pools}:
            raise UsageError(f"the cluster has no {', '.join(sorted(missing))}; `adlro top` shows its GPU models.")
        job = replace(job, models=pools)
    return replace(live, job=job, managed=True, reason="", setback=Setback.NONE)


def without_nodes(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """The cluster without some nodes."""
    if not names:
        return cluster
    known = {node.name for node in cluster.nodes}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no node {name!r} to remove; `adlro top` shows the nodes.")
    return replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name not in names))


def with_nodes(cluster: Cluster, added: Sequence[tuple[str, int, int]]) -> Cluster:
    """The cluster with more nodes; each is like the existing nodes of its model."""
    nodes, models = list(cluster.nodes), dict(cluster.models)
    for word, gpus, count in added:
        if not (1 <= gpus <= 62 and 1 <= count <= 10_000):
            raise UsageError(f"{count} nodes of {gpus} {word}: expected 1 to 62 GPUs on each of 1 to 10000 nodes.")
        model = find_gpu(word, cluster.models)
        models[model.name] = model
        alike = next((node for node in cluster.nodes if any(each.model == model.name for each in node.gpus)), None)
        link = alike.link if alike is not None else Link("pcie", model.pcie_gb_s)
        there = sum(each.count for each in alike.gpus) if alike is not None else 0
        scale = gpus / there if there else 1.0
        cpus = alike.cpus * scale if alike is not None else 8.0 * gpus
        memory = alike.memory_gb * scale if alike is not None else 64.0 * gpus
        first = len(nodes)
        nodes += [
            Node(f"new-{model.name}-{first + number}", cpus, memory, (Gpus(model.name, gpus),), link)
            for number in range(count)
        ]
    return replace(cluster, nodes=tuple(nodes), models=models) if added else cluster
