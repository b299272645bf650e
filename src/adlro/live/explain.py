"""Why a job waits, and why it runs where it does, by the rules that decide. docs/live-decisions.md has the words."""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, final

import numpy as np

from adlro.core.compiled import compiled_alone, widened
from adlro.core.copying import copied, imagined
from adlro.core.occupancy import open_nodes
from adlro.core.ports import PLACES, JobState, LiveJob, Part
from adlro.core.records import CPU_ONLY, WHOLE_GPU
from adlro.core.rules import fits, in_queue, queue_position, runtime
from adlro.core.tables import FOREVER, NOBODY, REFUSED, Floats, Ints, View
from adlro.decide.catalogue import CHECKPOINT
from adlro.decide.checkpoint import read_arrays, read_weights
from adlro.decide.network.greedy_q import ROWS, Mind, new_mind, rank_by_q, shipped
from adlro.decide.network.inference import Weights
from adlro.decide.outlook import tightest_spot
from adlro.decide.rules.reserving import by_expected_end, reserve
from adlro.decide.wrappers import sites_taken
from adlro.live.guard import STARVATION, Chosen
from adlro.live.scene import Scene
from adlro.live.service import Alternative, Decision, Mention, Start, Why, why_placed
from adlro.live.words import about, clock, day, plain_ascii, short_names, spell, zone
from adlro.normalise.pack import why_refused

FASTER: Final = 1.5
"""A busy place counts as what a policy waits for, if the job would end there in this much less time."""

LONGEST_LINE: Final = 100
"""Characters of a line for squeue."""

MOST_OLDER: Final = 4
"""Older jobs at the head of the queue that are looked at when a job is started."""

MOST_PLACES: Final = 2
"""Other open places that a sentence names."""

CLEARLY: Final = 0.1
"""A busy model is named if the job would run there in this much less time."""

MARGIN: Final = 0.05
"""Runtimes that differ by less than this share count as equal."""

LATER_S: Final = 300.0
"""A start that is predicted so long after GPUs come free is behind other jobs."""

STARTS_LATER: Final = frozenset(["resources", "down", "reserved", "policy", "priority", "turn", "new"])
"""Reasons beside which the predicted start is shown."""

TRIED_AGAIN: Final = re.compile(r"\((.+)\); it is tried again (.+?)\.?$")
"""What the cluster said and when a job is tried again, in the sentence about a job that is passed over."""

RULE_FITS: Final = "What fits where"
RULE_ORDER: Final = "Time and order"

NETWORKS: Final[Mapping[str, Callable[[], Weights]]] = {"adlro": shipped, "adlro-lookahead": shipped}
"""The policies of the catalogue with a network behind them."""


@dataclass(frozen=True)
class Standing:
    """What is known after a turn: all that questions are answered from. Nothing in it changes.

    What takes a look at every job or node is worked out once, when it is first asked for.
    """

    scene: Scene
    view: View  # after the choices of the turn
    policy: str
    decided_by: str
    starts: Mapping[str, Start] = field(default_factory=dict)
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # job -> nodes kept for it
    held: Mapping[str, str] = field(default_factory=dict)  # job -> why it is not asked for
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


@dataclass(frozen=True, slots=True)
class Older:
    """A job that had waited longer than one that was started: whether it fitted then, and its shortest runtime."""

    job: int
    fits: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Around:
    """What stood around a start: places that would be faster and were taken, and the oldest jobs that waited longer."""

    busy: tuple[tuple[str, float], ...] = ()  # model and runtime there
    older: tuple[Older, ...] = ()
    ahead: int = 0  # how many waited longer


@final
class Explaining:
    """Says what else was open when a job was started; for the first choices of a turn only, since it takes time."""

    def __init__(self, scene: Scene, judge: Judge, most: int) -> None:
        self._scene, self._judge, self._left = scene, judge, most
        self.around: dict[int, Around] = {}  # by job
        self._nowhere: set[int] = set()  # fit nowhere: starts only take room
        self._running = 0

    def __call__(self, view: View, j: int, s: int) -> tuple[tuple[Alternative, ...], float | None]:
        """The alternatives of a start, the chosen one first, and its score."""
        self.around.pop(j, None)
        if self._left <= 0:
            return (), None
        self._left -= 1
        scores, _ = self._judge.scores(view)
        spots, seconds = places_of(view, j)
        chosen_pool = int(view.sites[s].pool)
        mine = float(runtime(view, j, s))
        found = [Alternative(parts_at(self._scene, view, j, s), scores.get((j, s)), round(mine, 3), True)]
        for p, spot in enumerate(spots.tolist()):
            if spot != NOBODY and p != chosen_pool:
                parts = parts_at(self._scene, view, j, spot)
                found.append(Alternative(parts, scores.get((j, spot)), round(float(seconds[p]), 3)))
        models = self._scene.plan.models
        busy = tuple(
            (models[p], float(seconds[p]))
            for p, spot in enumerate(spots.tolist())
            if spot == NOBODY and p != chosen_pool and seconds[p] < (1.0 - CLEARLY) * mine
        )
        older = self._older(view, j)
        self.around[j] = Around(busy, older, int(queue_position(view, j)))
        return tuple(found), found[0].score

    def _older(self, view: View, j: int) -> tuple[Older, ...]:
        """The oldest jobs before this one in the queue."""
        if int(view.clock[0].running) < self._running:
            self._nowhere.clear()  # a job was stopped: there is room again
        self._running = int(view.clock[0].running)
        found = []
        for position in range(min(int(queue_position(view, j)), MOST_OLDER)):
            other = int(in_queue(view, position))
            fastest = FOREVER
            if other not in self._nowhere:
                spots, seconds = places_of(view, other)
                fastest = float(seconds[spots != NOBODY].min(initial=FOREVER))
                if fastest == FOREVER:
                    self._nowhere.add(other)
            found.append(Older(other, fastest < FOREVER, fastest))
        return tuple(found)


def why_started(
    scene: Scene, chosen: Chosen, around: Around | None, runtime_s: float, started: Collection[int]
) -> tuple[str, tuple[Mention, ...]]:
    """Why a job was started where it was and before whom, in words, and the jobs that this names.

    `started` are all jobs of the turn: who starts in the same turn has not been overtaken.
    """
    where = how_long(scene, chosen, around, runtime_s)
    if chosen.by == STARVATION:
        waited = max(0.0, float(scene.view.clock[0].now - scene.view.jobs[chosen.job].submit))
        return f"{where} It goes first, because it has waited {spell(waited)} and no job may wait longer.", ()
    if around is None:
        return where, ()
    left = [one for one in around.older if one.job not in started]
    ahead = around.ahead - (len(around.older) - len(left))
    if not left:
        return f"{where} No older job waits." if ahead <= 0 else where, ()
    rival = next((one for one in left if one.fits), None)
    other = rival or left[0]
    id = scene.live[other.job].id
    before = f"Starts before job {id}, which is older" if ahead == 1 else f"Starts before {ahead:,} older jobs"
    if rival is None:
        but = " but fits nowhere now." if ahead == 1 else f": job {id}, the oldest, fits nowhere now."
    else:
        but = ", " if ahead == 1 else f", such as job {id}, "
        but += because(scene, chosen, runtime_s, rival)
    return f"{where} {before}{but}", (mention_of(scene, id),)


def how_long(scene: Scene, chosen: Chosen, around: Around | None, runtime_s: float) -> str:
    """How long a job runs where it starts, where else it could have started, and where it would be faster."""
    here = chosen.alternatives[0].runtime_s if chosen.alternatives else runtime_s
    if not chosen.parts or chosen.parts[0].count == 0:
        return f"About {spell(here)}."
    names = short_names(scene.plan.models)
    said = [f"{spell(here)} on {names[chosen.parts[0].model]} here"]
    if free := sorted(chosen.alternatives[1:], key=lambda one: one.runtime_s)[:MOST_PLACES]:
        said += [f"{spell(one.runtime_s)} on {names[one.parts[0].model]}" for one in free]
    if around is not None and around.busy:
        model, seconds = min(around.busy, key=lambda one: one[1])
        said.append(f"{spell(seconds)} on {names[model]}, which is not free")
    elif chosen.alternatives and not free:
        said.append("no other model is free")
    return f"{', '.join(said)}."


def because(scene: Scene, chosen: Chosen, runtime_s: float, rival: Older) -> str:
    """Why a job went before an older one that fitted too."""
    here = chosen.alternatives[0].runtime_s if chosen.alternatives else runtime_s
    if rival.seconds - here > max(MARGIN * rival.seconds, 1.0):
        return f"because it ends {spell(rival.seconds - here)} sooner."
    mine, other = (max(1, scene.live[j].job.gpus) for j in (chosen.job, rival.job))
    if mine * here < (1.0 - MARGIN) * other * rival.seconds:
        return f"because it needs fewer GPUs: {mine}, not {other}."
    return f"as {chosen.by} ranks it higher."


def mention_of(scene: Scene, id: str) -> Mention:
    """A job of the scene as a sentence names it."""
    job = scene.live[scene.index[id]].job
    return Mention(id, job.name, job.user)


# ---- one line for squeue -----------------------------------------------------------------------------------------


def short_reason(why: Why, start: Start | None = None, now_s: float | None = None) -> str:
    """What a job waits for and its predicted start, in one line for the comment of a Slurm job.

    "waits for 4 v100 on one node; start about 14:20 (13:50-16:10) CET". Times are in the daemon's time zone; the
    date is there unless it is today's. `start` is `why.start` unless given.
    """
    what = why.short or f"{why.state}, {why.dominant}"
    if why.dominant not in STARTS_LATER:
        return one_line(what)
    return one_line(what, when_in_short(start or why.start, time.time() if now_s is None else now_s))


def one_line(what: str, then: str = "") -> str:
    """A line that scontrol takes as it is: plain ASCII without quotes, at most LONGEST_LINE characters.

    What is too long is cut in `what`; `then` stays whole as far as that is possible.
    """
    rest = f"; {plain_ascii(then)}" if then else ""
    room = max(LONGEST_LINE - len(rest), 20)
    what = plain_ascii(what)
    if len(what) > room:
        what = what[: room - 3].rstrip() + "..."
    return f"{what}{rest}"[:LONGEST_LINE]


def when_in_short(start: Start | None, now_s: float) -> str:
    """A predicted start with its interval, as in: start about 14:20 (13:50-16:10) CET."""
    if start is None or start.middle_s is None:
        return "start not foreseen yet"
    if start.middle_s <= now_s:
        return "start expected any moment"
    text = f"start about {day(start.middle_s, now_s)}{clock(start.middle_s)}"
    if start.low_s is not None and start.high_s is not None:
        low_s = max(start.low_s, now_s)
        low = f"{day(low_s, start.middle_s) and (day(low_s, now_s) or 'today ')}{clock(low_s)}"
        text += f" ({low}-{day(start.high_s, start.middle_s)}{clock(start.high_s)})"
    return f"{text} {zone(start.middle_s)}"


# ---- why ---------------------------------------------------------------------------------------------------------


def why(standing: Standing, job: LiveJob, decision: Decision | None, in_full: bool = True) -> Why:
    """Why a job stands as it does. In a text other jobs have their ids only; `mentions` has their names.

    Not `in_full`: only as much as the line for squeue needs, for whoever asks for every job of a long queue.
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
class Told:
    """Why a job waits: the word, the sentence, the rule, an answer for each pool, and the same in a few words."""

    dominant: str
    text: str
    rule: str = ""
    short: str = ""
    places: tuple[Mapping[str, str], ...] = ()
    mentions: tuple[Mention, ...] = ()


def why_waiting(standing: Standing, job: LiveJob, in_full: bool = True) -> Told:
    """Why a job waits."""
    if not job.managed:
        text = f"It is not ours to place: the cluster schedules it itself. {job.reason}".strip()
        return Told("unmanaged", text, short="not scheduled by adlro")
    scene, view = standing.scene, standing.view
    j = scene.index.get(job.id)
    if j is None:
        about_it = re.compile(rf"(?<![\w.+-]){re.escape(job.id)}(?![\w+-]|\.\w)")
        left_out = next((note for note in scene.notes if about_it.search(note)), "It came after the latest turn.")
        return Told("new", left_out, RULE_ORDER, "new in the queue")
    if view.runs[j].state == REFUSED:
        lacks = why_refused(scene.plan, scene.jobs, view, j)
        return Told("never", f"It can never run here: it {lacks}.", RULE_FITS, f"can never run here: it {lacks}")
    if job.id in standing.held:
        text = standing.held[job.id]
        found = TRIED_AGAIN.search(text)
        short = f"{found[1]}; tried again {found[2]}" if found else text
        return Told("refused", text, RULE_ORDER, f"passed over: {short}")
    if int(view.runs[j].state) != int(scene.view.runs[j].state):
        text = "It was decided in the latest turn, and has not been seen to run yet."
        return Told("starting", text, RULE_ORDER, "starts now")
    return why_not_now(standing, j, in_full)


def why_not_now(standing: Standing, j: int, in_full: bool = True) -> Told:
    """As why_waiting, for a job in the queue that could run here."""
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
        text, named = others_first(standing, j, f"Fits on {models[best]} now ({spell(seconds[best])})")
        return Told("priority", text, f"policy {by}", f"fits on {models[best]}, others go first", places, named)
    need = need_in_words(standing, j, able)
    if any(with_kept[p] != NOBODY for p in able):
        other = next((id for id in standing.kept if id != scene.live[j].id), "")
        text = f"Waits for {need}: free nodes are kept for job {other}, which has waited too long."
        named = (mention_of(scene, other),) if other in scene.index else ()
        return Told(
            "reserved", text, "starvation guard", f"waits for {need}: free nodes are kept for older jobs", places, named
        )
    if any(with_down[p] != NOBODY for p in able):
        downs = [name for name in scene.snapshot.down if name in numbers]
        reason = scene.snapshot.down[downs[0]] or "no reason is given"
        text = f"Waits for {need}: would fit if {', '.join(downs[:3])} were up ({reason})."
        return Told("down", text, RULE_FITS, f"waits for {need}: {downs[0]} is down", places)
    coming, named = coming_free(standing, j) if in_full else ("all of it is busy", ())
    return Told("resources", f"Waits for {need}: {coming}.", RULE_FITS, f"waits for {need}", places, named)


def others_first(standing: Standing, j: int, fits_there: str) -> tuple[str, tuple[Mention, ...]]:
    """That a job fits and others go first; who is the next of them, if that is foreseen."""
    scene, by = standing.scene, standing.decided_by
    id = scene.live[j].id
    first, mine = standing.first_to_start, standing.starts.get(id)
    mine_s = mine.middle_s if mine is not None and mine.middle_s is not None else np.inf
    if first is None or first.middle_s is None or first.middle_s >= mine_s:
        return f"{fits_there}, but {by} lets others go first.", ()
    when = about(first.middle_s, scene.snapshot.time_s)
    text = f"{fits_there}, but {by} lets job {first.job} go first, which starts {when}."
    return text, (mention_of(scene, first.job),)


def coming_free(standing: Standing, j: int) -> tuple[str, tuple[Mention, ...]]:
    """Where what a job needs is expected to come free first: how much of it, when, and by the end of which job."""
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
    when = about(scene.time_s(found.time), scene.snapshot.time_s)
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
        return bisect_left(standing.start_times, mine.middle_s)
    j = standing.scene.index.get(id)
    view = standing.view
    if j is None or view.clock[0].queued == 0:
        return None
    position = int(queue_position(view, j))
    is_there = position < view.clock[0].queued and int(in_queue(view, position)) == j
    return position if is_there else None
