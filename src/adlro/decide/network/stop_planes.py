"""What a network that may stop jobs sees besides the planes of `planes.py`: claims, moves, and what they cost.

It also sees the load of the last arrivals, and whether jobs may be stopped at all. Where none may, there are no claims
and no moves, and the row plane "may be stopped" is 0.
"""

from typing import Final

from adlro.core.compiled import compiled
from adlro.core.rules import attained, gpu_share, restart_of, work_done, work_left
from adlro.core.tables import FOREVER, NOBODY, RUNNING, View
from adlro.decide.network.planes import (
    CLAIM,
    FAR,
    ROW_PLANES,
    WHOLE_PLANES,
    Planes,
    log_of_count,
    log_of_more,
    observe,
    observe_row,
)
from adlro.decide.outlook import Outlook, quick_log
from adlro.decide.rules.claiming import CLAIMED, MOVED, MOVES, STOPPABLE, Claims
from adlro.decide.rules.timelines import MOST_STARTS

LAST_ARRIVALS: Final = 32
"""How many jobs the load of the last arrivals counts."""

HIGHEST_LOAD: Final = 4.0


@compiled
def signed_log(ratio: float) -> float:
    """`log_of_more` with the sign of the ratio."""
    return log_of_more(ratio) if ratio >= 0.0 else -log_of_more(-ratio)


@compiled
def recent_load(view: View, unit: float, gpus: int) -> float:
    """The work of the last arrivals on their fastest GPUs, as a share of what all GPUs could do since the first."""
    clock = view.clock[0]
    arrived = min(clock.arrived, len(view.jobs))
    first = max(0, arrived - LAST_ARRIVALS)
    if arrived - first < 2:
        return 0.0
    work = 0.0
    for j in range(first, arrived):
        fastest = view.fastest[view.jobs[j].demand]
        if fastest > 0.0:
            work += view.jobs[j].estimate / fastest * gpu_share(view, j)
    span = max(clock.now - view.jobs[first].submit, unit)
    return min(work / (span * max(gpus, 1)), HIGHEST_LOAD)


@compiled
def observe_stops(view: View, outlook: Outlook, claims: Claims, planes: Planes) -> None:
    """Write the whole observation. `look_around` has filled the outlook and the claims, and there is something to do.

    The rows of moves are legal, but not present: what the network thinks of starts does not depend on them.
    """
    observe(view, outlook, planes)
    waiting = outlook.counts[0]
    pools = min(len(view.pools), planes.pools.shape[0])
    unit = outlook.unit[0]
    gpus = len(view.gpus)
    for w in range(waiting, waiting + claims.counts[MOVED]):
        observe_row(view, outlook, planes, w, pools, 1.0 / unit, quick_log(unit), gpus)
        for p in range(pools):
            planes.present[w, p] = 0
    for w in range(waiting + claims.counts[MOVED]):
        observe_stops_of_row(view, outlook, claims, planes, w, unit)
        for p in range(pools):
            if claims.place[w, p] != NOBODY:
                planes.legal[w, p] = 1
            observe_claim(claims, planes, w, p, unit, gpus)
    clock = view.clock[0]
    whole = planes.whole
    whole[4] = waiting / (planes.rows.shape[0] - MOVES)
    at = len(WHOLE_PLANES)
    whole[at] = claims.counts[STOPPABLE] / max(clock.running, 1)
    whole[at + 1] = log_of_more(clock.restart / unit)
    whole[at + 2] = recent_load(view, unit, gpus)
    whole[at + 3] = log_of_count(claims.counts[CLAIMED] + claims.counts[MOVED])


@compiled
def observe_stops_of_row(view: View, outlook: Outlook, claims: Claims, planes: Planes, w: int, unit: float) -> None:
    """Write the further planes of one job."""
    j = outlook.rows[w]
    job = view.jobs[j]
    run = view.runs[j]
    done = work_done(view, j)
    row = planes.rows[w]
    at = len(ROW_PLANES)
    row[at] = 1.0 if job.stoppable != 0 else 0.0
    row[at + 1] = 1.0 if run.state == RUNNING else 0.0
    row[at + 2] = 1.0 if run.starts > 0 else 0.0
    row[at + 3] = done / (done + work_left(view, j)) if done > 0.0 else 0.0
    row[at + 4] = log_of_more(attained(view, j) / unit)
    row[at + 5] = log_of_more(restart_of(view, j) / unit) if job.stoppable != 0 else 0.0
    row[at + 6] = 1.0 - min(run.starts, MOST_STARTS) / MOST_STARTS


@compiled
def observe_claim(claims: Claims, planes: Planes, w: int, p: int, unit: float, gpus: int) -> None:
    """Write the further planes of one pair, 0 if it is neither a claim nor a move."""
    pair = planes.pairs[w, p]
    for i in range(CLAIM, len(pair)):
        pair[i] = 0.0
    if claims.place[w, p] == NOBODY:
        return
    gain, loss = claims.gain[w, p], claims.loss[w, p]
    pair[CLAIM] = 1.0
    pair[CLAIM + 1] = signed_log(gain / unit)
    pair[CLAIM + 2] = log_of_more(loss / unit)
    pair[CLAIM + 3] = signed_log((gain - loss) / unit)
    pair[CLAIM + 4] = log_of_count(claims.stopped[w, p])
    pair[CLAIM + 5] = log_of_count(claims.idle[w, p])
    rest = claims.rest[w, p]
    pair[CLAIM + 6] = log_of_more(rest / unit) if rest < FOREVER else FAR
