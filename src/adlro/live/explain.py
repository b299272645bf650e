"""Why a job waits, and why it runs where it does, by the rules that decide. docs/live-decisions.md has the words."""

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from adlro.core.copying import copied, imagined
from adlro.core.occupancy import open_nodes
from adlro.core.ports import PLACES, JobState, LiveJob, Part, Setback
from adlro.core.records import CPU_ONLY, WHOLE_GPU
from adlro.core.rules import in_queue, queue_position
from adlro.core.tables import NOBODY, REFUSED, Ints, View
from adlro.decide.rules.reserving import by_expected_end, reserve
from adlro.decide.wrappers import sites_taken
from adlro.live.explain_places import mention_of, places_of
from adlro.live.scene import Scene
from adlro.live.service import Decision, Mention, Start, Why, why_placed
from adlro.live.words import short_names, spell, when_expected
from adlro.normalise.pack import why_refused

FASTER: Final = 1.5
"""A policy is said to wait for a busy place if the job would run this many times faster there."""

LONGEST_LINE: Final = 100
"""Characters of a line for squeue."""

LATER_S: Final = 300.0
"""If a start is predicted this long after GPUs come free, other jobs are first."""

STARTS_LATER: Final = frozenset(["resources", "down", "reserved", "policy", "priority", "turn", "new"])
"""Reasons that are shown with the predicted start."""

TRIED_AGAIN: Final = re.compile(r"\((.+)\); it is tried again (.+?)\.?$")
"""Finds the cluster's answer and the time of the next try in the sentence about a job that is passed over."""

RULE_FITS: Final = "What fits where"
RULE_ORDER: Final = "Time and order"


@dataclass(frozen=True)
class Standing:
    """All that is known after a turn; questions are answered from it.

    It never changes.

    What needs a pass over every job or node is computed once, on first use.
    """

    scene: Scene
    view: View  # after the choices of the turn
    policy: str
    decided_by: str
    starts: Mapping[str, Start] = field(default_factory=dict)
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # job -> nodes kept for it
    held: Mapping[str, str] = field(default_factory=dict)  # job -> why the policy is not asked about it
    is_cut: bool = False  # time was over before everybody had been asked for

    @cached_property
    def start_times(self) -> list[float]:
        """The moments at which jobs are predicted to start, in order."""
        return sorted(start.middle_s for start in self.starts.values() if start.middle_s is not None)

    @cached_property
    def first_to_start(self) -> Start | None:
        """The job of the scene that is predicted to start first."""
        found = (
            start for start in self.starts.values() if start.middle_s is not None and start.job in self.scene.index
        )
        return min(found, key=lambda start: start.middle_s or 0.0, default=None)

    @cached_property
    def node_numbers(self) -> Mapping[str, int]:
        """The place of each node in the cluster's list."""
        return {node.name: n for n, node in enumerate(self.scene.plan.cluster.nodes)}


# ---- why ---------------------------------------------------------------------------------------------------------


def explain_job(standing: Standing, job: LiveJob, decision: Decision | None, in_full: bool = True) -> Why:
    """Why a job waits, runs or ended.

    The text names other jobs by id only; `mentions` has their names. Without `in_full` only the parts for the line in
    squeue are filled, because callers ask for every job of a long queue.
    """
    if job.state is not JobState.WAITING:
        return why_placed(job, decision)
    start = standing.starts.get(job.id)
    told = why_waiting(standing, job, in_full)
    ahead = jobs_ahead(standing, job.id) if in_full else None
    return Why(
        job.id, job.state, told.dominant, told.text, told.rule, start, told.places, ahead, decision, told.short,
        told.mentions,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    """Why a job waits: reason word, sentence, rule, an answer for each pool, and a short form."""

    dominant: str
    text: str
    rule: str = ""
    short: str = ""
    places: tuple[Mapping[str, str], ...] = ()
    mentions: tuple[Mention, ...] = ()


def why_waiting(standing: Standing, job: LiveJob, in_full: bool = True) -> WaitExplanation:
    """Why a job waits."""
    if not job.managed and job.setback is Setback.UNPLACEABLE:
        return WaitExplanation("never", f"ADLRO cannot place it: {job.reason}", short=f"cannot be placed: {job.reason}")
    if not job.managed:
        text = f"It is not ours to place: the cluster schedules it itself. {job.reason}".strip()
        return WaitExplanation("unmanaged", text, short="not scheduled by adlro")
    scene, view = standing.scene, standing.view
    j = scene.index.get(job.id)
    if j is None:
        about_it = re.compile(rf"(?<![\w.+-]){re.escape(job.id)}(?![\w+-]|\.\w)")
        left_out = next((note for note in scene.notes if about_it.search(note)), "It came after the latest turn.")
        return WaitExplanation("new", left_out, RULE_ORDER, "new in the queue")
    if view.runs[j].state == REFUSED:
        lacks = why_refused(scene.plan, scene.jobs, view, j)
        return WaitExplanation(
            "never", f"It can never run here: it {lacks}.", RULE_FITS, f"can never run here: it {lacks}"
        )
    if job.id in standing.held:
        text = standing.held[job.id]
        found = TRIED_AGAIN.search(text)
        short = f"{found[1]}; tried again {found[2]}" if found else text
        return WaitExplanation("refused", text, RULE_ORDER, f"passed over: {short}")
    if int(view.runs[j].state) != int(scene.view.runs[j].state):
        text = "It was decided in the latest turn, and has not been seen to run yet."
        return WaitExplanation("starting", text, RULE_ORDER, "starts now")
    return why_not_now(standing, j, in_full)


def why_not_now(standing: Standing, j: int, in_full: bool = True) -> WaitExplanation:
    """Why a job of the queue that could run on this cluster waits."""
    scene, view = standing.scene, standing.view
    spots, seconds = places_of(view, j)
    numbers = standing.node_numbers
    kept = sorted({numbers[name] for id, names in standing.kept.items() for name in names if name in numbers})
    down = sorted(numbers[name] for name in scene.snapshot.down if name in numbers)
    with_kept, with_down = spots_with(view, j, kept), spots_with(view, j, down)
    places = tuple(
        {"model": model, "answer": answer_of(standing, j, p, int(spots[p]), int(with_kept[p]), int(with_down[p]))}
        for p, model in enumerate(scene.plan.models)
        if in_full and (model != CPU_ONLY or view.jobs[j].gpus == 0)
    )
    able = [p for p in range(len(spots)) if np.isfinite(seconds[p])]
    fastest = min(able, key=lambda p: float(seconds[p]))
    here = [p for p in able if spots[p] != NOBODY]
    names = short_names(scene.plan.models)
    models = [names[model] for model in scene.plan.models]
    by = standing.decided_by
    if here:
        if standing.is_cut:
            text = "It fits, but the time for decisions of the latest turn was over before its turn came."
            return WaitExplanation("turn", text, RULE_ORDER, "fits, is decided in the next turn", places)
        best = min(here, key=lambda p: float(seconds[p]))
        if seconds[best] > FASTER * seconds[fastest]:
            there, now = spell(seconds[fastest]), spell(seconds[best])
            text = (
                f"Waits for {models[fastest]}, where it runs about {there}: {models[best]} is free, but it would take "
                f"{now} there."
            )
            short = f"waits for {models[fastest]}: {there} there, {now} on {models[best]}"
            return WaitExplanation("policy", text, f"policy {by}", short, places)
        text, named = others_first(standing, j, f"Fits on {models[best]} now ({spell(seconds[best])})")
        return WaitExplanation(
            "priority", text, f"policy {by}", f"fits on {models[best]}, others go first", places, named
        )
    need = need_in_words(standing, j, able)
    if any(with_kept[p] != NOBODY for p in able):
        other = next((id for id in standing.kept if id != scene.live[j].id), "")
        text = f"Waits for {need}: free nodes are kept for job {other}, which has waited too long."
        named = (mention_of(scene, other),) if other in scene.index else ()
        return WaitExplanation(
            "reserved", text, "starvation guard", f"waits for {need}: free nodes are kept for older jobs", places, named
        )
    if any(with_down[p] != NOBODY for p in able):
        downs = [name for name in scene.snapshot.down if name in numbers]
        reason = scene.snapshot.down[downs[0]] or "no reason is given"
        text = f"Waits for {need}: would fit if {', '.join(downs[:3])} were up ({reason})."
        return WaitExplanation("down", text, RULE_FITS, f"waits for {need}: {downs[0]} is down", places)
    coming, named = coming_free(standing, j) if in_full else ("all of it is busy", ())
    return WaitExplanation("resources", f"Waits for {need}: {coming}.", RULE_FITS, f"waits for {need}", places, named)


def others_first(standing: Standing, j: int, fits_there: str) -> tuple[str, tuple[Mention, ...]]:
    """The explanation for a job that fits while other jobs go first; names the next of them if it is predicted."""
    scene, by = standing.scene, standing.decided_by
    id = scene.live[j].id
    first, mine = standing.first_to_start, standing.starts.get(id)
    mine_s = mine.middle_s if mine is not None and mine.middle_s is not None else np.inf
    if first is None or first.middle_s is None or first.middle_s >= mine_s:
        return f"{fits_there}, but {by} lets others go first.", ()
    when = when_expected(first.middle_s, scene.snapshot.time_s)
    text = f"{fits_there}, but {by} lets job {first.job} go first, which starts {when}."
    return text, (mention_of(scene, first.job),)


def coming_free(standing: Standing, j: int) -> tuple[str, tuple[Mention, ...]]:
    """Where the job's needs are expected to come free first: how much, when, and at the end of which job."""
    scene, view = standing.scene, standing.view
    world = imagined(view)
    found = reserve(view, world, j)
    if found.site == NOBODY:
        return "no running job whose end would make room for it is known", ()
    sites, counts = np.zeros(len(view.sites), np.int32), np.zeros(len(view.sites), np.int32)
    many = int(sites_taken(world, j, int(found.site), sites, counts))
    mine = sites[:many].tolist()
    names = list(dict.fromkeys(scene.plan.cluster.nodes[scene.plan.sites[s].node].name for s in mine))
    where = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if len(names) < 4 else "they"
    asked = int(view.jobs[j].gpus)
    free = sum(min(int(view.sites[s].free_gpus), int(count)) for s, count in zip(mine, counts, strict=False))
    rows, ends = by_expected_end(view)
    ending = (k for k, end in zip(rows.tolist()[::-1], ends.tolist()[::-1], strict=True) if end <= found.time)
    last = next((scene.live[k].id for k in ending if any(part.node in names for part in parts_now(standing, k))), "")
    when = when_expected(scene.time_s(found.time), scene.snapshot.time_s)
    has = "has" if len(names) == 1 else "have"
    if asked == 0:
        text = f"{where} {has} room for it {when}"
    elif free >= asked:
        text = f"{where} {has} the GPUs, and the cores and the memory beside them {when}"
    else:
        rest = "the next comes" if asked - free == 1 else f"the next {asked - free} come"
        text = f"{where} {has} {free} free; {rest} free {when}"
    if last:
        text += f" (job {last})"
    start = standing.starts.get(scene.live[j].id)
    if start is not None and start.middle_s is not None and start.middle_s > scene.time_s(found.time) + LATER_S:
        text += ", and jobs ahead of it take them first"
    return text, (mention_of(scene, last),) if last else ()


def parts_now(standing: Standing, j: int) -> tuple[Part, ...]:
    """Where a job stands after the turn."""
    live = standing.scene.live[j]
    return live.parts if live.state in PLACES else standing.scene.parts_of(standing.view, j)


def need_in_words(standing: Standing, j: int, able: list[int]) -> str:
    """The job's needs in words, for example "4 v100 on one node". `able` are the pools that could run it."""
    scene, view = standing.scene, standing.view
    job = view.jobs[j]
    if job.gpus == 0:
        said = scene.live[j].job
        asked = [f"{said.cpus:g} cores"] * (said.cpus > 0) + [f"{said.memory_gb:g} GB"] * (said.memory_gb > 0)
        return f"a node with {' and '.join(asked)} free" if asked else "a node with room"
    names = short_names(scene.plan.models)
    gpu_pools = [p for p, model in enumerate(scene.plan.models) if model != CPU_ONLY]
    if set(able) >= set(gpu_pools) and len(gpu_pools) > 1:
        model = "GPU" if job.gpus == 1 else "GPUs of one model"
    else:
        mine = [names[scene.plan.models[p]] for p in able]
        model = mine[0] if len(mine) == 1 else f"{', '.join(mine[:-1])} or {mine[-1]}"
    if job.share < WHOLE_GPU:
        return f"{int(job.share) / WHOLE_GPU:g} of a {model}"
    if job.gpus == 1:
        return f"1 {model}"
    widths = {int(view.width[job.kind][view.forms["pool"] == p].max()) for p in able}
    width = widths.pop() if len(widths) == 1 else 0
    where = {0: "", 1: " on one node"}.get(width, f" on {width} nodes")
    return f"{int(job.gpus)} {model}{where}"


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
        return bisect_left(standing.start_times, mine.middle_s)
    j = standing.scene.index.get(id)
    view = standing.view
    if j is None or view.clock[0].queued == 0:
        return None
    position = int(queue_position(view, j))
    is_there = position < view.clock[0].queued and int(in_queue(view, position)) == j
    return position if is_there else None
