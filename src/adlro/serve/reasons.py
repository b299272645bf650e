"""Why a job waits, and why it runs where it does, by the rules that decide. docs/live-decisions.md has the words."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

import numpy as np

from adlro.core.compiled import compiled_alone, widened
from adlro.core.ports import ENDED, JobState, LiveJob, Part
from adlro.core.records import CPU_ONLY, WHOLE_GPU
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

LONGEST_LINE: Final = 100
"""Characters of a line for squeue."""

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

STARTS_LATER: Final = frozenset(["resources", "down", "reserved", "policy", "priority", "turn", "new"])
"""Reasons beside which the predicted start is shown."""

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
    """A length of time in words, short."""
    if not np.isfinite(seconds):
        return "for ever"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            count = seconds / length
            return f"{count:.1f} {unit}" if count < 9.95 and unit != "min" else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


def short_names(models: Iterable[str]) -> dict[str, str]:
    """GPU models as people say them: v100-sxm2-16gb is v100, unless the cluster has another v100."""
    known = set(models)
    found = {}
    for model in known:
        words = model.split("-")
        stems = ("-".join(words[:count]) for count in range(1, len(words) + 1))
        found[model] = next(
            (stem for stem in stems if not any(f"{other}-".startswith(f"{stem}-") for other in known - {model})), model
        )
    return found


# ---- one line for squeue -----------------------------------------------------------------------------------------


def short_reason(why: Why, start: Start | None = None, now_s: float | None = None) -> str:
    """What a job waits for and its predicted start, in one line for Slurm's AdminComment.

    "adlro: waits for 4 v100 on one node; start about 14:20 (13:50-16:10) CET". Times are in the daemon's time zone; the
    date is there unless it is today's. `start` is `why.start` unless given.
    """
    what = why.short or f"{why.state}, {why.dominant}"
    if why.dominant not in STARTS_LATER:
        return one_line(what)
    return one_line(what, when_in_short(start or why.start, time.time() if now_s is None else now_s))


def given_back(reason: str) -> str:
    """The line of a job that ADLRO leaves to Slurm."""
    return one_line(f"given back to Slurm: {reason}")


def passed_over(reason: str, until: str = "") -> str:
    """The line of a job that the cluster refused to start: the cause, and what must change before it is tried again."""
    return one_line(f"passed over: {reason}", f"tried again {until}" if until else "")


def one_line(what: str, then: str = "") -> str:
    """A line that scontrol takes as it is: plain ASCII without quotes, at most LONGEST_LINE characters.

    What is too long is cut in `what`; `then` stays whole as far as that is possible.
    """
    rest = f"; {plain_ascii(then)}" if then else ""
    room = max(LONGEST_LINE - len("adlro: ") - len(rest), 20)
    what = plain_ascii(what)
    if len(what) > room:
        what = what[: room - 3].rstrip() + "..."
    return f"adlro: {what}{rest}"[:LONGEST_LINE]


def plain_ascii(text: str) -> str:
    """Text without what scontrol, squeue or a script around them could misread: one line, no quotes, = or |."""
    for sign, instead in (("×", "x"), ("–", "-"), ("—", "-"), ("…", "..."), ("'s ", " "), ("’s ", " "), ("=", ":")):
        text = text.replace(sign, instead)
    text = re.sub(r"[\"'`’“”\\]", "", text)
    text = re.sub(r"[^A-Za-z0-9 _.,:;()+/@<>*-]", " ", text)
    return " ".join(text.split()).rstrip(".;, ")


def when_in_short(start: Start | None, now_s: float) -> str:
    """A predicted start with its interval, as in: start about 14:20 (13:50-16:10) CET."""
    if start is None or start.middle_s is None:
        return "start not foreseen yet"
    if start.middle_s <= now_s:
        return "start expected any moment"
    middle, day = clock(start.middle_s), date(start.middle_s)
    today = date(now_s)
    text = f"start about {middle}" if day == today else f"start about {day} {middle}"
    if start.low_s is not None and start.high_s is not None:
        ends = []
        for end_s in (max(start.low_s, now_s), start.high_s):
            is_same_day, day = date(end_s) == day, date(end_s)
            ends.append(clock(end_s) if is_same_day else f"{day} {clock(end_s)}")
        text += f" ({ends[0]}-{ends[1]})"
    return f"{text} {zone(start.middle_s)}"


def moment(time_s: float, now_s: float) -> str:
    """A moment in the daemon's time zone: 14:20 CET, with the date if it is not today."""
    day = "" if date(time_s) == date(now_s) else f"{date(time_s)} "
    return f"{day}{clock(time_s)} {zone(time_s)}"


def clock(time_s: float) -> str:
    """Hours and minutes."""
    return time.strftime("%H:%M", time.localtime(time_s))


def date(time_s: float) -> str:
    """Month and day."""
    at = time.localtime(time_s)
    return f"{MONTHS[at.tm_mon - 1]} {at.tm_mday}"


def zone(time_s: float) -> str:
    """The time zone as people write it."""
    return plain_ascii(time.strftime("%Z", time.localtime(time_s))) or "local time"


# ---- why ---------------------------------------------------------------------------------------------------------


def why(standing: Standing, job: LiveJob, decision: Decision | None) -> Why:
    """Why a job stands as it does."""
    if job.state in ENDED:
        text = {
            JobState.FINISHED: "It has finished.",
            JobState.FAILED: "It ended with an error, or at its limit.",
        }.get(job.state, "It was cancelled.")
        return Why(job.id, job.state, "ended", f"{text} {job.reason}".strip(), "", decision=decision, short=job.state)
    if job.state is not JobState.WAITING:
        where = ", ".join(f"{part.count} × {part.model} on {part.node}" for part in job.parts) or "an unknown place"
        dominant = "running" if job.state is JobState.RUNNING else "starting"
        verb = "It runs on" if job.state is JobState.RUNNING else "It is about to start on"
        because = f" {decision.reason}" if decision is not None else " No decision of ours put it there."
        short = f"{'runs' if job.state is JobState.RUNNING else 'starts'} on {where}"
        return Why(job.id, job.state, dominant, f"{verb} {where}.{because}", "", decision=decision, short=short)
    start = standing.starts.get(job.id)
    told = why_waiting(standing, job)
    ahead = jobs_ahead(standing, job.id)
    return Why(
        job.id, job.state, told.dominant, told.text, told.rule, start, told.places, ahead, decision, told.short
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """Why a job waits: the word, the sentence, the rule, an answer for each pool, and the same in a few words."""

    dominant: str
    text: str
    rule: str = ""
    short: str = ""
    places: tuple[Mapping[str, str], ...] = ()


def why_waiting(standing: Standing, job: LiveJob) -> Told:
    """Why a job waits."""
    if not job.managed:
        text = f"It is not ours to place: the cluster schedules it itself. {job.reason}".strip()
        return Told("unmanaged", text, short="not scheduled by adlro")
    scene, view = standing.scene, standing.view
    j = scene.index.get(job.id)
    if j is None:
        left_out = next((note for note in scene.notes if job.id in note), "It came after the latest turn.")
        return Told("new", left_out, RULE_ORDER, "new in the queue")
    if view.runs[j].state == REFUSED:
        lacks = why_refused(scene.plan, scene.jobs, view, j)
        return Told("never", f"It can never run here: it {lacks}.", RULE_FITS, f"can never run here: it {lacks}")
    if job.id in standing.held:
        return Told("refused", standing.held[job.id], RULE_ORDER, f"passed over: {standing.held[job.id]}")
    if int(view.runs[j].state) != int(scene.view.runs[j].state):
        text = "It was decided in the latest turn, and has not been seen to run yet."
        return Told("starting", text, RULE_ORDER, "starts now")
    return why_not_now(standing, j)


def why_not_now(standing: Standing, j: int) -> Told:
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
    names = short_names(scene.plan.models)
    models = [names[model] for model in scene.plan.models]
    by = standing.decided_by
    if here:
        if standing.is_cut:
            text = "It fits, but the time for decisions of the latest turn was over before its turn came."
            return Told("turn", text, RULE_ORDER, "fits, is decided in the next turn", places)
        best = min(here, key=lambda p: float(seconds[p]))
        if seconds[best] > FASTER * seconds[fastest]:
            there, now = spell(seconds[fastest]), spell(seconds[best])
            text = (
                f"Waits for {models[fastest]}, where it runs about {there}: {models[best]} is free, but it would take "
                f"{now} there."
            )
            short = f"waits for {models[fastest]}: {there} there, {now} on {models[best]}"
            return Told("policy", text, f"policy {by}", short, places)
        text = f"It fits on {models[best]}, but {by} lets others go first."
        return Told("priority", text, f"policy {by}", f"fits on {models[best]}, others go first", places)
    need = need_in_words(standing, j, able)
    if any(with_kept[p] != NOBODY for p in able):
        others = [id for id in standing.kept if id != scene.live[j].id]
        text = f"It would fit on nodes that are kept for job {others[0] if others else '?'}, which has waited too long."
        return Told(
            "reserved", text, "starvation guard", f"waits for {need}: free nodes are kept for older jobs", places
        )
    if any(with_down[p] != NOBODY for p in able):
        downs = [name for name in scene.snapshot.down if name in numbers]
        text = (
            f"It would fit if {', '.join(downs[:3])} were up: {scene.snapshot.down[downs[0]] or 'no reason is given'}."
        )
        return Told("down", text, RULE_FITS, f"waits for {need}: {downs[0]} is down", places)
    text = f"All places where it could run are busy; it would run fastest on {models[fastest]}."
    return Told("resources", text, RULE_FITS, f"waits for {need}", places)


def need_in_words(standing: Standing, j: int, able: list[int]) -> str:
    """What a job needs, as in: 4 v100 on one node. `able` are the pools that could run it."""
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
        others = (start.middle_s for start in standing.starts.values())
        return sum(1 for other in others if other is not None and other < mine.middle_s)
    j = standing.scene.index.get(id)
    view = standing.view
    if j is None or view.clock[0].queued == 0:
        return None
    position = int(queue_position(view, j))
    is_there = position < view.clock[0].queued and int(in_queue(view, position)) == j
    return position if is_there else None
