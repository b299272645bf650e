"""The clock of a simulated cluster: starts and ends jobs by the rules, and logs everything that happens.

It is in `core` because two stages use it: the simulator plays whole runs, and a look-ahead policy plays a copy of the
cluster forward inside a decision. `Truth` holds what policies may not know (true work, ends, wear); a look-ahead policy
makes its own truth from estimates.

Over 500 lines: events, queue and log of one clock; each part writes the same few tables in the same order.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import types

from adlro.core.compiled import compiled, compiled_with
from adlro.core.policy import CHOOSE_TYPE, FLOATS, FLOATS_2D, INTS, VIEW_TYPE, Choose, table_type
from adlro.core.readings import read_bandwidth
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    dequeue,
    enqueue,
    fits,
    learn,
    may_resize,
    note_release,
    read_pace,
    refresh,
    release,
    renew_paces,
    resize,
    restart_cost,
    settle_usage,
    take,
)
from adlro.core.tables import (
    DISTURBANCE,
    DONE,
    DOWN,
    EVENT,
    FAILED,
    FINISHED,
    FOREVER,
    HEAT,
    ILLEGAL,
    KILLED,
    MANY_STARTS,
    NOBODY,
    OVERRAN,
    QUEUED,
    REFUSED,
    RESIZE,
    RESIZED,
    RUNNING,
    SPEED,
    SPREAD,
    START,
    STARTED,
    STOP,
    STOPPED,
    TURNED_AWAY,
    UP,
    WAIT,
    Choice,
    Floats,
    Ints,
    Table,
    View,
)

# Why `advance` returned.
DECIDE: Final = 0
OVER: Final = 1
LOG_FULL: Final = 2

IDLE_WAKES: Final = 100
"""How often a policy may wait while nothing runs and nothing will arrive. Then the run ends."""

LIVE = np.dtype(
    [
        ("end", "f8"),
        ("pace", "f8"),  # work per second now, with wear
        ("job", "i4"),
        ("heap", "i4"),  # its index in Truth.heap
        ("place", "i4"),  # its index in View.running
        ("kills", "i4"),  # 1 if it ends at its walltime limit
        ("next", "i4"),  # the next unused row, if this row is unused
    ],
    align=True,
)
"""A running job, with data that only the simulator knows."""

PROGRESS = np.dtype(
    [
        ("events", "i8"),
        ("disturbances", "i4"),
        ("ending", "i4"),  # number of jobs in the heap
        ("slots", "i4"),  # number of rows of Truth.live that were ever used
        ("free_slot", "i4"),  # first unused row that was used before
        ("choices", "i4"),  # number of choices at this moment
        ("deciding", "i4"),
        ("halfway", "i4"),  # 1 if the log was full in the middle of this moment, which is not finished
        ("idle_wakes", "i4"),
        ("kill", "i4"),
        ("worn", "i4"),  # 1 if any GPU's speed factor is not 1
        ("asked_when_none_waits", "i4"),
    ],
    align=True,
)


class Truth(NamedTuple):
    """What policies may not see."""

    work: Floats  # [J] true work, GPU-seconds on the reference model
    live: Table  # LIVE, one row for each running job
    heap: Ints  # rows of `live`, a heap with the soonest end first
    factor: Floats  # [G] speed factor of each GPU
    disturbances: Table  # DISTURBANCE [D], in time order
    events: Table  # EVENT, the log
    progress: Table  # PROGRESS [1]
    heat: Table  # HEAT [G], or no rows in a run without heat
    rate: Floats  # [K, H] work per second, as View.rate; another array where policies do not know the speeds
    bandwidth: Floats  # [K, H] share of its GPUs' memory bandwidth that a job on whole GPUs uses; no rows: not read


TRUTH_TYPE = types.NamedTuple(
    [
        FLOATS,
        table_type(LIVE),
        INTS,
        FLOATS,
        table_type(DISTURBANCE),
        table_type(EVENT),
        table_type(PROGRESS),
        table_type(HEAT),
        FLOATS_2D,
        FLOATS_2D,
    ],
    Truth,
)


# ---- the log -----------------------------------------------------------------------------------------------------


@compiled
def note(view: View, truth: Truth, what: int, j: int, s: int, mask: int, value: float) -> None:
    """Log that something happened now."""
    progress = truth.progress[0]
    event = truth.events[progress.events]
    event.time = view.clock[0].now
    event.what = what
    event.job = j
    event.site = s
    event.mask = mask
    event.value = value
    progress.events += 1


@compiled
def log_is_full(view: View, truth: Truth) -> bool:
    """Whether the log might have no room for one more moment or choice."""
    margin = view.clock[0].running + 2 * len(view.sites) + 16 + len(truth.heat)
    return truth.progress[0].events + margin > len(truth.events)


# ---- the heap of ends: soonest first, ties by job index ----------------------------------------------------------


@compiled
def sooner(truth: Truth, a: int, b: int) -> bool:
    """Whether row a ends before row b."""
    first, second = truth.live[a], truth.live[b]
    return first.end < second.end or (first.end == second.end and first.job < second.job)


@compiled
def put(truth: Truth, at: int, row: int) -> None:
    """Put a row at an index of the heap."""
    truth.heap[at] = row
    truth.live[row].heap = at


@compiled
def rise(truth: Truth, at: int) -> None:
    """Move a row up to its position in the heap."""
    row = truth.heap[at]
    while at > 0:
        parent = (at - 1) // 2
        if not sooner(truth, row, truth.heap[parent]):
            break
        put(truth, at, truth.heap[parent])
        at = parent
    put(truth, at, row)


@compiled
def sink(truth: Truth, at: int) -> None:
    """Move a row down to its position in the heap."""
    row = truth.heap[at]
    size = truth.progress[0].ending
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and sooner(truth, truth.heap[child + 1], truth.heap[child]):
            child += 1
        if not sooner(truth, truth.heap[child], row):
            break
        put(truth, at, truth.heap[child])
        at = child
    put(truth, at, row)


@compiled
def drop_end(truth: Truth, at: int) -> None:
    """Remove a row from the heap."""
    progress = truth.progress[0]
    progress.ending -= 1
    last = truth.heap[progress.ending]
    if at < progress.ending:
        put(truth, at, last)
        rise(truth, at)
        sink(truth, truth.live[last].heap)


# ---- a job begins and ends ---------------------------------------------------------------------------------------


@compiled
def slowest_factor(view: View, truth: Truth, s: int, mask: int) -> float:
    """The lowest speed factor of these GPUs, which a job holds. Where paces are seen, this measures them."""
    least = FOREVER
    site = view.sites[s]
    for g in range(site.gpus):
        if mask >> g & 1:
            factor = truth.factor[site.first_gpu + g]
            least = min(least, factor)
            if view.clock[0].paced != 0:
                read_pace(view, site.first_gpu + g, factor)
    return least if least < FOREVER else 1.0


@compiled
def pace_of(view: View, truth: Truth, j: int) -> float:
    """Work per second of the job on the GPUs that it holds, with wear."""
    run = view.runs[j]
    rate = truth.rate[view.jobs[j].kind, view.sites[run.site].form]
    if truth.progress[0].worn == 0:
        return rate
    factor = slowest_factor(view, truth, run.site, run.mask)
    p = run.parts
    while p != NOBODY:
        factor = min(factor, slowest_factor(view, truth, view.parts[p].site, view.parts[p].mask))
        p = view.parts[p].next
    if view.clock[0].paced != 0:
        run.pace = factor
    return rate * factor


@compiled
def set_end(view: View, truth: Truth, j: int) -> None:
    """Compute when the job will end, from its work done up to `since` and its pace after that."""
    run = view.runs[j]
    live = truth.live[run.slot]
    live.pace = pace_of(view, truth, j)
    live.end = run.since + (truth.work[j] - run.done) / live.pace
    live.kills = 0
    if truth.progress[0].kill != 0:
        limit = run.started + view.jobs[j].limit - run.held
        if limit < live.end:
            live.end = max(limit, view.clock[0].now)
            live.kills = 1


@compiled
def begin(view: View, truth: Truth, j: int, s: int) -> None:
    """Start the job at the site: take its resources and compute when it will end."""
    clock = view.clock[0]
    progress = truth.progress[0]
    run = view.runs[j]
    dequeue(view, j)
    take(view, j, s)
    run.state = RUNNING
    run.started = clock.now
    run.since = clock.now + restart_cost(view, j)
    if run.starts < MANY_STARTS:
        run.starts += 1
    run.saved = run.done
    slot = progress.free_slot
    if slot == NOBODY:
        slot = progress.slots
        progress.slots += 1
    else:
        progress.free_slot = truth.live[slot].next
    run.slot = slot
    live = truth.live[slot]
    live.job = j
    live.place = clock.running
    view.running[clock.running] = j
    clock.running += 1
    set_end(view, truth, j)
    truth.heap[progress.ending] = slot
    live.heap = progress.ending
    progress.ending += 1
    rise(truth, live.heap)
    settle_usage(view, view.jobs[j].user, view.jobs[j].gpus * view.jobs[j].share / WHOLE_GPU)
    note(view, truth, STARTED, j, run.site, run.mask, 0.0)
    p = run.parts
    while p != NOBODY:
        note(view, truth, SPREAD, j, view.parts[p].site, view.parts[p].mask, 0.0)
        p = view.parts[p].next
    progress.idle_wakes = 0


@compiled
def settle(view: View, truth: Truth, j: int) -> None:
    """Add the work done up to now."""
    run = view.runs[j]
    now = view.clock[0].now
    if now > run.since:
        run.done = min(truth.work[j], run.done + (now - run.since) * truth.live[run.slot].pace)
        run.since = now


@compiled
def leave(view: View, truth: Truth, j: int) -> None:
    """Release the job's GPUs. The caller then sets its new state."""
    clock = view.clock[0]
    progress = truth.progress[0]
    run = view.runs[j]
    settle(view, truth, j)
    run.held += clock.now - run.started
    live = truth.live[run.slot]
    drop_end(truth, live.heap)
    clock.running -= 1
    last = view.running[clock.running]
    view.running[live.place] = last
    truth.live[view.runs[last].slot].place = live.place
    live.next = progress.free_slot
    progress.free_slot = run.slot
    run.slot = NOBODY
    settle_usage(view, view.jobs[j].user, -(view.jobs[j].gpus * view.jobs[j].share / WHOLE_GPU))
    release(view, j)


@compiled
def end_first(view: View, truth: Truth) -> None:
    """End the job with the soonest end."""
    live = truth.live[truth.heap[0]]
    j = live.job
    killed = live.kills != 0
    run = view.runs[j]
    s = run.site
    mask = run.mask
    leave(view, truth, j)
    if killed:
        run.state = KILLED
        note(view, truth, OVERRAN, j, s, mask, 0.0)
        return
    run.state = FINISHED
    run.done = truth.work[j]
    if view.clock[0].learn != 0:
        learn(view, j, truth.work[j])
    note(view, truth, DONE, j, s, mask, 0.0)


@compiled
def halt(view: View, truth: Truth, j: int) -> None:
    """Stop the job at the policy's request: it keeps its work and waits again."""
    run = view.runs[j]
    s = run.site
    mask = run.mask
    leave(view, truth, j)
    enqueue(view, j)
    note(view, truth, STOPPED, j, s, mask, 0.0)


@compiled
def lose(view: View, truth: Truth, j: int) -> None:
    """The job's node failed: the job falls back to its last checkpoint and waits again."""
    run = view.runs[j]
    s = run.site
    mask = run.mask
    leave(view, truth, j)
    done = run.done
    step = view.jobs[j].checkpoint
    kept = done
    if step == FOREVER:
        kept = 0.0
    elif step > 0.0:
        kept = math.floor(done / step) * step
    run.done = max(run.saved, kept)
    enqueue(view, j)
    note(view, truth, FAILED, j, s, mask, done - run.done)


# ---- disturbances of the hardware --------------------------------------------------------------------------------


@compiled
def stands_on(view: View, j: int, n: int) -> bool:
    """Whether a running job holds anything on the node."""
    run = view.runs[j]
    if view.sites[run.site].node == n:
        return True
    p = run.parts
    while p != NOBODY:
        if view.sites[view.parts[p].site].node == n:
            return True
        p = view.parts[p].next
    return False


@compiled
def node_down(view: View, truth: Truth, n: int) -> None:
    """Take a node down; its jobs return to the queue, in job order."""
    node = view.nodes[n]
    if node.up == 0:
        return
    node.up = 0
    note(view, truth, DOWN, NOBODY, n, 0, 0.0)
    while True:
        j = NOBODY
        for i in range(view.clock[0].running):
            other = view.running[i]
            if (j == NOBODY or other < j) and stands_on(view, other, n):
                j = other
        if j == NOBODY:
            break
        lose(view, truth, j)
    refresh(view, n)


@compiled
def node_up(view: View, truth: Truth, n: int) -> None:
    """Bring a node back up."""
    if view.nodes[n].up != 0:
        return
    view.nodes[n].up = 1
    note_release(view, n)
    refresh(view, n)
    note(view, truth, UP, NOBODY, n, 0, 0.0)


@compiled
def note_new_end(view: View, j: int) -> None:
    """Record at its sites that a running job is now expected to end at another time."""
    run = view.runs[j]
    view.sites[run.site].changes += 1
    p = run.parts
    while p != NOBODY:
        view.sites[view.parts[p].site].changes += 1
        p = view.parts[p].next


@compiled
def change_speed(view: View, truth: Truth, n: int, gpu: int, factor: float) -> None:
    """Give a GPU a new speed factor; the jobs on it continue at their new pace."""
    truth.factor[gpu] = factor
    truth.progress[0].worn = 1
    s = view.nodes[n].first_site
    while gpu >= view.sites[s].first_gpu + view.sites[s].gpus:
        s += 1
    note(view, truth, SPEED, NOBODY, s, 1 << (gpu - view.sites[s].first_gpu), factor)
    for i in range(view.clock[0].running):
        j = view.running[i]
        if stands_on(view, j, n):
            settle(view, truth, j)
            set_end(view, truth, j)
            if view.clock[0].paced != 0:
                note_new_end(view, j)
            at = truth.live[view.runs[j].slot].heap
            rise(truth, at)
            sink(truth, truth.live[view.runs[j].slot].heap)


@compiled
def disturb(view: View, truth: Truth) -> None:
    """Apply the next disturbance."""
    progress = truth.progress[0]
    disturbance = truth.disturbances[progress.disturbances]
    progress.disturbances += 1
    if disturbance.what == DOWN:
        node_down(view, truth, disturbance.node)
    elif disturbance.what == UP:
        node_up(view, truth, disturbance.node)
    else:
        change_speed(view, truth, disturbance.node, disturbance.gpu, disturbance.factor)


# ---- whether the policy is asked ---------------------------------------------------------------------------------


@compiled
def set_asked(view: View, truth: Truth, may_ask: bool) -> None:
    """Ask the policy if `may_ask` and a job waits (or runs, for a preemptive policy); else let the clock move on.

    This is the only function that writes `deciding`.
    """
    clock = view.clock[0]
    progress = truth.progress[0]
    waits = clock.queued > 0 or (progress.asked_when_none_waits != 0 and clock.running > 0)
    progress.deciding = may_ask and waits
    if may_ask and waits and clock.paced != 0:
        renew_paces(view)
        if len(truth.bandwidth) > 0:
            read_bandwidth(view, truth.bandwidth)


@compiled
def is_asked(truth: Truth) -> bool:
    """Whether the policy has to choose before the clock moves on."""
    return truth.progress[0].deciding != 0


@compiled
def clear_progress(view: View, truth: Truth) -> None:
    """Reset to the beginning of a run: empty log, no running jobs, policy not asked."""
    progress = truth.progress[0]
    progress.events = 0
    progress.disturbances = 0
    progress.ending = 0
    progress.slots = 0
    progress.free_slot = NOBODY
    progress.choices = 0
    progress.halfway = 0
    progress.idle_wakes = 0
    set_asked(view, truth, False)


@compiled
def resume(view: View, truth: Truth, j: int, place: int) -> None:
    """Compute when a job that already runs will end. `place` is its index in View.running."""
    progress = truth.progress[0]
    row = progress.slots
    progress.slots += 1
    view.runs[j].slot = row
    live = truth.live[row]
    live.job = j
    live.place = place
    set_end(view, truth, j)
    truth.heap[progress.ending] = row
    live.heap = progress.ending
    progress.ending += 1
    rise(truth, live.heap)


@compiled
def copy_truth(truth: Truth, other: Truth) -> None:
    """Copy the used part of this truth, without the log. Both must have the same work and disturbances."""
    progress = truth.progress[0]
    other.progress[0] = progress
    other.progress[0].events = 0
    for i in range(progress.slots):
        other.live[i] = truth.live[i]
    for i in range(progress.ending):
        other.heap[i] = truth.heap[i]
    for g in range(len(truth.factor)):
        other.factor[g] = truth.factor[g]


# ---- the clock ---------------------------------------------------------------------------------------------------


@compiled
def next_moment(view: View, truth: Truth) -> float:
    """When something happens next; FOREVER if the run is over."""
    clock = view.clock[0]
    progress = truth.progress[0]
    moment = FOREVER
    if clock.arrived < len(view.jobs):
        moment = view.jobs[clock.arrived].submit
    elif clock.queued == 0 and clock.running == 0:
        return FOREVER
    if progress.ending > 0:
        moment = min(moment, truth.live[truth.heap[0]].end)
    if progress.disturbances < len(truth.disturbances):
        moment = min(moment, truth.disturbances[progress.disturbances].time)
    if clock.wake < moment:
        if moment == FOREVER:
            progress.idle_wakes += 1
            if progress.idle_wakes > IDLE_WAKES:
                return FOREVER
        moment = clock.wake
    return max(moment, clock.now)


@compiled
def arrive(view: View, truth: Truth) -> None:
    """Put the next job of the table into the queue, or refuse it."""
    clock = view.clock[0]
    j = clock.arrived
    clock.arrived += 1
    if view.runs[j].state == REFUSED:
        note(view, truth, TURNED_AWAY, j, NOBODY, 0, 0.0)
    else:
        enqueue(view, j)


@compiled
def undisturbed(view: View, truth: Truth) -> None:
    """Replaces `disturb` in runs without disturbances: `disturb` takes as long to compile as all the rest."""


@compiled
def unheated(view: View, truth: Truth) -> float:
    """Replaces `warm` in runs without heat."""
    return FOREVER


@compiled
def advance_with(view: View, truth: Truth, disturb_next: Any, warm: Any) -> int:
    """Move the clock until the policy must be asked, the run is over, or the log is full.

    `disturb_next(view, truth)` applies the next disturbance. `warm(view, truth)` lets the heat follow what has changed,
    and returns when a GPU reaches its limit next.
    """
    clock = view.clock[0]
    progress = truth.progress[0]
    if is_asked(truth):
        return DECIDE
    while True:
        if log_is_full(view, truth):
            return LOG_FULL
        hot = warm(view, truth)
        moment = clock.now if progress.halfway != 0 else next_moment(view, truth)
        if hot < moment < FOREVER:
            moment = hot
        if moment == FOREVER:
            return OVER
        clock.now = moment
        while progress.ending > 0 and truth.live[truth.heap[0]].end <= moment and not log_is_full(view, truth):
            end_first(view, truth)
        while (
            progress.disturbances < len(truth.disturbances)
            and truth.disturbances[progress.disturbances].time <= moment
            and not log_is_full(view, truth)
        ):
            disturb_next(view, truth)
        while (
            clock.arrived < len(view.jobs)
            and view.jobs[clock.arrived].submit <= moment
            and not log_is_full(view, truth)
        ):
            arrive(view, truth)
        progress.halfway = log_is_full(view, truth)
        if progress.halfway != 0:
            return LOG_FULL  # this moment continues once the log has room again
        if clock.wake <= moment:
            clock.wake = FOREVER
        set_asked(view, truth, True)
        if is_asked(truth):
            clock.wake = FOREVER
            progress.choices = 0
            return DECIDE


@compiled
def advance(view: View, truth: Truth) -> int:
    """Move the clock until the policy must be asked, the run is over, or the log is full."""
    return advance_with(view, truth, disturb, unheated)


@compiled
def apply(view: View, truth: Truth, choice: Choice) -> bool:
    """Apply the policy's choice; True if it was a start, a stop or a resize and was carried out.

    `is_asked` says whether the policy may choose again.
    """
    clock = view.clock[0]
    progress = truth.progress[0]
    j = choice.job
    progress.choices += 1
    too_many = progress.choices > 4 * (clock.queued + clock.running) + 16
    is_done = False
    if choice.verb != WAIT and not too_many:
        known = 0 <= j < len(view.jobs)
        if choice.verb == START and known and 0 <= choice.site < len(view.sites):
            if view.runs[j].state == QUEUED and fits(view, j, choice.site):
                begin(view, truth, j, choice.site)
                is_done = True
        elif choice.verb == STOP and known and view.runs[j].state == RUNNING:
            halt(view, truth, j)
            is_done = True
        elif choice.verb == RESIZE and known and may_resize(view, j, choice.site):
            resize(view, j, choice.site)
            note(view, truth, RESIZED, j, NOBODY, 0, float(choice.site))
            is_done = True
    set_asked(view, truth, is_done)
    if is_done:
        return True
    clock.wake = FOREVER
    if too_many:
        return False
    if choice.verb != WAIT:
        clock.illegal += 1
        note(view, truth, ILLEGAL, j, choice.site, choice.verb, 0.0)
    elif choice.until > clock.now:
        clock.wake = choice.until
    return False


@compiled
def drive(view: View, truth: Truth, choose: Choose, look: Any, kept: Any, disturb_next: Any, warm: Any) -> int:
    """The one loop of a run: advance, look, ask, apply, until the run is over or the log is full.

    `look(view, truth, kept)` is called before the first choice at each moment, `disturb_next(view, truth)` for each
    disturbance, `warm(view, truth)` before the clock moves (`unheated` in a run without heat).
    """
    while True:
        status = advance_with(view, truth, disturb_next, warm)
        if status != DECIDE:
            return status
        if log_is_full(view, truth):
            return LOG_FULL
        if truth.progress[0].choices == 0:
            look(view, truth, kept)
        while is_asked(truth):
            if log_is_full(view, truth):
                return LOG_FULL
            apply(view, truth, choose(view))


@compiled
def look_nowhere(view: View, truth: Truth, kept: int) -> None:
    """Used when nobody watches the run."""


@compiled_with(types.int64(VIEW_TYPE, TRUTH_TYPE, CHOOSE_TYPE))
def play_undisturbed(view: View, truth: Truth, choose: Choose) -> int:
    """Like `play`, without disturbances."""
    return drive(view, truth, choose, look_nowhere, 0, undisturbed, unheated)


@compiled_with(types.int64(VIEW_TYPE, TRUTH_TYPE, CHOOSE_TYPE))
def play_disturbed(view: View, truth: Truth, choose: Choose) -> int:
    """Like `play`, with disturbances."""
    return drive(view, truth, choose, look_nowhere, 0, disturb, unheated)


def play(view: View, truth: Truth, choose: Choose) -> int:
    """Run a compiled policy until the run is over or the log is full."""
    return (play_disturbed if len(truth.disturbances) else play_undisturbed)(view, truth, choose)
