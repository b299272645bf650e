"""Why a job waits, and why it runs where it does, by the rules that decide. docs/live-decisions.md has the words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

import numpy as np

from adlro.core.compiled import compiled_alone, widened
from adlro.core.ports import ENDED, JobState, LiveJob, Part
from adlro.core.records import CPU_ONLY
from adlro.core.rules import fits, in_queue, queue_position, runtime
from adlro.core.tables import FOREVER, NOBODY, REFUSED, Floats, Ints, View
from adlro.decide.catalogue import CHECKPOINT
from adlro.decide.checkpoint import read_arrays, read_weights
from adlro.decide.greedy_q import ROWS, Mind, new_mind, rank_by_q, shipped
from adlro.decide.network import Weights
from adlro.decide.outlook import tightest_spot
from adlro.normalise.pack import why_refused
from adlro.serve.live_view import Scene, copied, open_nodes
from adlro.serve.service import Alternative, Decision, Start, Why
from adlro.serve.starvation import sites_taken

FASTER: Final = 1.5
"""A busy place counts as what a policy waits for, if the job would end there in this much less time."""

RULE_FITS: Final = "What fits where"
RULE_ORDER: Final = "Time and order"

NETWORKS: Final[Mapping[str, Callable[[], Weights]]] = {"adlro": shipped, "adlro-lookahead": shipped}
"""The policies of the catalogue with a network behind them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known after a turn: all that questions are answered from. Nothing in it changes."""

    scene: Scene
    view: View  # after the choices of the turn
    policy: str
    decided_by: str
    starts: Mapping[str, Start] = field(default_factory=dict)
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # job -> nodes kept for it
    held: Mapping[str, str] = field(default_factory=dict)  # job -> why it is not asked for
    is_cut: bool = False  # time was over before everybody had been asked for


# ---- places ------------------------------------------------------------------------------------------------------


@compiled_alone
def fill_places(view: View, j: int, spots: Ints, seconds: Floats) -> None:
    """For each pool, the site where the job would start now and how long it would run; NOBODY: it fits nowhere."""
    job = view.jobs[j]
    for p in range(len(view.pools)):
        spots[p] = NOBODY
        seconds[p] = FOREVER
        pool = view.pools[p]
        for i in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[i]
            if view.width[job.kind, view.sites[s].form] > 0:
                seconds[p] = min(seconds[p], runtime(view, j, s))
        if seconds[p] == FOREVER:
            continue
        spots[p] = tightest_spot(view, j, p) if job.gpus > 0 else NOBODY
        if job.gpus == 0:
            for i in range(pool.first_site, pool.first_site + pool.sites):
                if spots[p] == NOBODY and fits(view, j, view.pool_sites[i]):
                    spots[p] = widened(view.pool_sites[i])
        if spots[p] != NOBODY:
            seconds[p] = runtime(view, j, spots[p])


def places_of(view: View, j: int) -> tuple[Ints, Floats]:
    """For each pool, where the job would start now, and seconds that it would run there."""
    spots, seconds = np.zeros(len(view.pools), np.int32), np.zeros(len(view.pools))
    fill_places(view, j, spots, seconds)
    return spots, seconds


def parts_at(scene: Scene, view: View, j: int, s: int) -> tuple[Part, ...]:
    """What the job would take at a site that it fits."""
    sites, counts = np.zeros(len(view.sites), np.int32), np.zeros(len(view.sites), np.int32)
    many = sites_taken(view, j, s, sites, counts)
    names, models = scene.plan.cluster.nodes, scene.plan.models
    node_of, model_of = scene.plan.sites["node"], scene.plan.sites["model"]
    return tuple(
        Part(names[node_of[at]].name, models[model_of[at]] if count else CPU_ONLY, int(count))
        for at, count in zip(sites[:many].tolist(), counts[:many].tolist(), strict=True)
    )


@final
class Judge:
    """Reads what the network behind a policy thinks; a policy without one has no scores."""

    def __init__(self, policy: str) -> None:
        self._weights = weights_behind(policy)
        self._mind: tuple[tuple[int, ...], Mind] | None = None

    @property
    def has_network(self) -> bool:
        """Whether there is a network to read."""
        return self._weights is not None

    def scores(self, view: View) -> tuple[dict[tuple[int, int], float], float]:
        """Q of each legal (job, site) pair that the network looks at, and of waiting."""
        mind = self._mind_for(view)
        if mind is None or view.clock[0].queued == 0:
            return {}, 0.0
        most = ROWS * len(view.pools)
        jobs, sites, scores = np.zeros(most, np.int32), np.zeros(most, np.int32), np.zeros(most)
        count = rank_by_q(view, mind, jobs, sites, scores)
        pairs = zip(jobs[:count].tolist(), sites[:count].tolist(), strict=True)
        return dict(zip(pairs, scores[:count].tolist(), strict=True)), float(mind.q[-1])

    def check(self, view: View) -> str:
        """What is wrong with the network's judgement; nothing if all of it is numbers."""
        found, waiting = self.scores(view)
        if all(np.isfinite(value) for value in (*found.values(), waiting)):
            return ""
        return "the network's judgement is not a number."

    def _mind_for(self, view: View) -> Mind | None:
        if self._weights is None:
            return None
        shape = (len(view.pools), len(view.gpus), *view.spare.shape)
        if self._mind is None or self._mind[0] != shape:
            self._mind = shape, new_mind(view, self._weights, ROWS)
        return self._mind[1]


def weights_behind(policy: str) -> Weights | None:
    """The network that decides in a policy, or advises it."""
    if policy in NETWORKS:
        return NETWORKS[policy]()
    if policy.endswith(CHECKPOINT) and read_arrays(Path(policy))[1].get("preset") != "paper":
        return read_weights(Path(policy))[0]
    return None


@final
class Explaining:
    """Says what else was open when a job was started; for the first choices of a turn only, since it takes time."""

    def __init__(self, scene: Scene, judge: Judge, most: int) -> None:
        self._scene, self._judge, self._left = scene, judge, most

    def __call__(self, view: View, j: int, s: int) -> tuple[tuple[Alternative, ...], float | None]:
        """The alternatives of a start, the chosen one first, and its score."""
        if self._left <= 0:
            return (), None
        self._left -= 1
        scores, _ = self._judge.scores(view)
        spots, seconds = places_of(view, j)
        chosen_pool = int(view.sites[s].pool)
        found = [
            Alternative(
                parts_at(self._scene, view, j, s), scores.get((j, s)), round(float(runtime(view, j, s)), 3), True
            )
        ]
        for p, spot in enumerate(spots.tolist()):
            if spot != NOBODY and p != chosen_pool:
                parts = parts_at(self._scene, view, j, spot)
                found.append(Alternative(parts, scores.get((j, spot)), round(float(seconds[p]), 3)))
        return tuple(found), found[0].score


def why_started(policy: str, alternatives: tuple[Alternative, ...], model: str) -> str:
    """Why a job was started where it was, in one sentence."""
    if not alternatives:
        return f"{policy} chose it."
    mine, others = alternatives[0], alternatives[1:]
    if mine.score is not None:
        known = [each.score for each in others if each.score is not None]
        beside = f"; the next best place has {max(known):.2f}" if known else "; no other place was open"
        return f"{policy}: Q is {mine.score:.2f} on {model}{beside}."
    if not others:
        return f"{policy}: {model} was the only place open, about {spell(mine.runtime_s)} there."
    best = min(others, key=lambda each: each.runtime_s)
    return (
        f"{policy}: about {spell(mine.runtime_s)} on {model}; on {best.parts[0].model} it would be "
        f"{spell(best.runtime_s)}."
    )


def spell(seconds: float) -> str:
    """A time in words, short."""
    if not np.isfinite(seconds):
        return "for ever"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


# ---- why ---------------------------------------------------------------------------------------------------------


def why(standing: Standing, job: LiveJob, decision: Decision | None) -> Why:
    """Why a job stands as it does."""
    if job.state in ENDED:
        text = {
            JobState.FINISHED: "It has finished.",
            JobState.FAILED: "It ended with an error, or at its limit.",
        }.get(job.state, "It was cancelled.")
        return Why(job.id, job.state, "ended", f"{text} {job.reason}".strip(), "", decision=decision)
    if job.state is not JobState.WAITING:
        where = ", ".join(f"{part.count} × {part.model} on {part.node}" for part in job.parts) or "an unknown place"
        dominant = "running" if job.state is JobState.RUNNING else "starting"
        verb = "It runs on" if job.state is JobState.RUNNING else "It is about to start on"
        because = f" {decision.reason}" if decision is not None else " No decision of ours put it there."
        return Why(job.id, job.state, dominant, f"{verb} {where}.{because}", "", decision=decision)
    start = standing.starts.get(job.id)
    dominant, text, rule, places = why_waiting(standing, job)
    return Why(job.id, job.state, dominant, text, rule, start, places, jobs_ahead(standing, job.id), decision)


def why_waiting(standing: Standing, job: LiveJob) -> tuple[str, str, str, tuple[Mapping[str, str], ...]]:
    """The dominant reason, its sentence, its rule, and an answer for each pool."""
    if not job.managed:
        text = f"It is not ours to place: the cluster schedules it itself. {job.reason}".strip()
        return "unmanaged", text, "", ()
    scene, view = standing.scene, standing.view
    j = scene.index.get(job.id)
    if j is None:
        left_out = next((note for note in scene.notes if job.id in note), "It came after the latest turn.")
        return "new", left_out, RULE_ORDER, ()
    if view.runs[j].state == REFUSED:
        text = f"It can never run here: it {why_refused(scene.plan, scene.jobs, view, j)}."
        return "never", text, RULE_FITS, ()
    if job.id in standing.held:
        return "refused", standing.held[job.id], RULE_ORDER, ()
    if int(view.runs[j].state) != int(scene.view.runs[j].state):
        return "starting", "It was decided in the latest turn, and has not been seen to run yet.", RULE_ORDER, ()
    return why_not_now(standing, j)


def why_not_now(standing: Standing, j: int) -> tuple[str, str, str, tuple[Mapping[str, str], ...]]:
    """As why_waiting, for a job in the queue that could run here."""
    scene, view = standing.scene, standing.view
    spots, seconds = places_of(view, j)
    numbers = {node.name: n for n, node in enumerate(scene.plan.cluster.nodes)}
    kept = sorted({numbers[name] for id, names in standing.kept.items() for name in names if name in numbers})
    down = sorted(numbers[name] for name in scene.snapshot.down if name in numbers)
    with_kept, with_down = spots_with(view, j, kept), spots_with(view, j, down)
    places = tuple(
        {"model": model, "answer": answer_of(standing, j, p, int(spots[p]), int(with_kept[p]), int(with_down[p]))}
        for p, model in enumerate(scene.plan.models)
        if model != CPU_ONLY or view.jobs[j].gpus == 0
    )
    able = [p for p in range(len(spots)) if np.isfinite(seconds[p])]
    fastest = min(able, key=lambda p: float(seconds[p]))
    here = [p for p in able if spots[p] != NOBODY]
    models = scene.plan.models
    if here:
        if standing.is_cut:
            text = "It fits, but the time for decisions of the latest turn was over before its turn came."
            return "turn", text, RULE_ORDER, places
        best = min(here, key=lambda p: float(seconds[p]))
        if seconds[best] > FASTER * seconds[fastest]:
            text = (
                f"It fits on {models[best]} ({spell(seconds[best])}); {standing.decided_by} waits for "
                f"{models[fastest]}, where it runs {spell(seconds[fastest])}."
            )
            return "policy", text, f"policy {standing.decided_by}", places
        text = f"It fits on {models[best]}, but {standing.decided_by} lets others go first."
        return "priority", text, f"policy {standing.decided_by}", places
    if any(with_kept[p] != NOBODY for p in able):
        others = [id for id in standing.kept if id != scene.live[j].id]
        text = f"It would fit on nodes that are kept for job {others[0] if others else '?'}, which has waited too long."
        return "reserved", text, "starvation guard", places
    if any(with_down[p] != NOBODY for p in able):
        names = [name for name in scene.snapshot.down if name in numbers]
        text = (
            f"It would fit if {', '.join(names[:3])} were up: {scene.snapshot.down[names[0]] or 'no reason is given'}."
        )
        return "down", text, RULE_FITS, places
    text = f"All places where it could run are busy; it would run fastest on {models[fastest]}."
    return "resources", text, RULE_FITS, places


def spots_with(view: View, j: int, nodes: list[int]) -> Ints:
    """Where the job would start in each pool if these nodes took jobs."""
    if not nodes:
        return np.full(len(view.pools), NOBODY, np.int32)
    world = copied(view)
    open_nodes(world, np.array(nodes, np.int32))
    return places_of(world, j)[0]


def answer_of(standing: Standing, j: int, p: int, spot: int, with_kept: int, with_down: int) -> str:
    """Why a job does not start in one pool now, in a few words."""
    scene, view = standing.scene, standing.view
    job, pool, model = view.jobs[j], view.pools[p], scene.plan.models[p]
    node_of = scene.plan.sites["node"]
    if spot != NOBODY:
        return f"fits on {scene.plan.cluster.nodes[node_of[spot]].name} now"
    forms = np.flatnonzero(view.forms["pool"] == p)
    if not (view.width[job.kind][forms] > 0).any():
        allowed = scene.jobs.allowed[int(job.allowed)]
        if allowed and model not in allowed:
            return "the job does not allow this model"
        if job.gpus > pool.gpus:
            return f"needs {job.gpus} GPUs; there are {pool.gpus}"
        if job.gpu_memory > view.forms[forms[0]].gpu_memory:
            return f"needs {job.gpu_memory} MiB on each GPU; these have {view.forms[forms[0]].gpu_memory}"
        return "its family has no speed here"
    if with_kept != NOBODY:
        return f"{scene.plan.cluster.nodes[node_of[with_kept]].name} is kept for a job that has waited too long"
    if with_down != NOBODY:
        name = scene.plan.cluster.nodes[node_of[with_down]].name
        return f"{name} is down: {scene.snapshot.down.get(name, '')}".rstrip(": ")
    mine = scene.plan.sites["pool"] == p
    up = view.nodes["up"][node_of[mine]] != 0
    free = np.where(up, view.sites["free_gpus"][mine], 0)
    if job.gpus and free.max(initial=0) >= min(int(job.gpus), int(pool.largest)):
        return "GPUs are free, but not the cores or the memory beside them"
    if int(view.width[job.kind][forms].max()) > 1:
        return f"{int(free.sum())} of {pool.gpus} GPUs are free, not enough on the fewest nodes; needs {job.gpus}"
    return (
        f"{int(free.sum())} of {pool.gpus} GPUs are free, at most {free.max(initial=0)} on one node; needs {job.gpus}"
    )


def jobs_ahead(standing: Standing, id: str) -> int | None:
    """How many jobs are expected to start before this one; by the queue, if its start is not foreseen."""
    mine = standing.starts.get(id)
    if mine is not None and mine.middle_s is not None:
        others = (start.middle_s for start in standing.starts.values())
        return sum(1 for other in others if other is not None and other < mine.middle_s)
    j = standing.scene.index.get(id)
    view = standing.view
    if j is None or view.clock[0].queued == 0:
        return None
    position = int(queue_position(view, j))
    is_there = position < view.clock[0].queued and int(in_queue(view, position)) == j
    return position if is_there else None
