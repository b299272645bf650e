"""Steps of environments in which jobs may be stopped: claims and moves are actions too.

As in `batch.py`, with `eft-claiming` as the rule: it starts jobs as `eft-reserving` does, and when that waits it makes
the claim or move that gains most (`decide/rules/claiming.py`). In episodes in which no job may be stopped, it is
`eft-reserving`, and there are no claims and moves.
"""

from adlro.core.compiled import compiled, compiled_alone, widened
from adlro.core.engine import OVER, Truth, advance, apply, is_asked, next_moment, set_asked
from adlro.core.rules import has_room
from adlro.core.tables import FOREVER, NOBODY, START, STOP, WAIT, Choice, View
from adlro.decide.network.planes import Bytes, Planes
from adlro.decide.network.stop_planes import observe_stops
from adlro.decide.outlook import WISEST, Outlook, is_worth_a_look
from adlro.decide.rules.claiming import BEST_STOP, Claims, fill_victims, look_around
from adlro.learn.worlds.envs import Came, Envs, Foreseen, Worlds, copy_state, outlook_of, truth_of, view_of
from adlro.learn.worlds.episodes import area


@compiled
def claims_of(foreseen: Foreseen, row: int) -> Claims:
    """The claims and moves stored in a row."""
    claims = foreseen.claims
    return Claims(
        claims.free[row],
        claims.holder[row],
        claims.order[row],
        claims.keys[row],
        claims.victims[row],
        claims.have[row],
        claims.levels[row],
        claims.effort[row],
        claims.pressure[row],
        claims.place[row],
        claims.gain[row],
        claims.loss[row],
        claims.stopped[row],
        claims.idle[row],
        claims.rest[row],
        claims.counts[row],
    )


@compiled
def may_decide(view: View) -> bool:
    """Whether something could be done now, as far as that is quickly seen. All jobs of an episode are alike in this."""
    if view.jobs[0].stoppable != 0:
        return view.clock[0].queued > 0 or has_room(view)
    return view.clock[0].queued > 0 and has_room(view) and is_worth_a_look(view)


@compiled_alone
def move_on_or_stop(view: View, truth: Truth, outlook: Outlook, claims: Claims, whole: bool) -> float:
    """Move on to the next start, claim or move; returns the job time t (s) on the way, or -1 - t if the run is over.

    Without `whole`, only what the rule needs is filled.
    """
    total = 0.0
    clock = view.clock[0]
    while True:
        if is_asked(truth):
            truth.progress[0].events = 0  # these are only starts and stops, no ends
            if may_decide(view) and look_around(view, outlook, claims, whole) > 0:
                return total
            set_asked(view, truth, False)
        before, jobs, arrived = clock.now, clock.queued + clock.running, clock.arrived
        status = advance(view, truth)
        total += area(view, truth, before, jobs, arrived)
        if status == OVER:
            return -1.0 - total


@compiled
def rule_of(outlook: Outlook, claims: Claims) -> tuple[int, int]:
    """The row and pool of the rule's choice; NOBODY: it waits."""
    if outlook.counts[WISEST] != NOBODY:
        return widened(outlook.counts[WISEST]), widened(outlook.counts[WISEST + 1])
    return widened(claims.counts[BEST_STOP]), widened(claims.counts[BEST_STOP + 1])


@compiled_alone
def perform(view: View, truth: Truth, outlook: Outlook, claims: Claims, w: int, p: int) -> None:
    """Start the job of a row in a pool, after the stops that this takes; wait if the row is NOBODY.

    The outlook and the claims are of this state of the cluster, or of the one that it was copied from.
    """
    if w == NOBODY:
        apply(view, truth, Choice(WAIT, NOBODY, NOBODY, FOREVER))
        return
    s = outlook.spot[w, p]
    if claims.place[w, p] != NOBODY:
        s = claims.place[w, p]
        for k in range(fill_victims(view, outlook, claims, w, p)):
            apply(view, truth, Choice(STOP, widened(claims.victims[k]), NOBODY, FOREVER))
    apply(view, truth, Choice(START, widened(outlook.rows[w]), widened(s), FOREVER))


@compiled_alone
def cost_after_stop(
    worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, spare: int, limit: int, w: int, p: int
) -> float:
    """Job time (s) until the first `limit` jobs end, if the rule decides after this choice. Played in a spare row."""
    copy_state(worlds, envs, b, spare, limit)
    view = view_of(worlds, envs, b, spare, limit)
    truth = truth_of(worlds, envs, b, spare)
    perform(view, truth, outlook_of(foreseen, b), claims_of(foreseen, b), w, p)
    outlook, claims = outlook_of(foreseen, spare), claims_of(foreseen, spare)
    total = 0.0
    while True:
        passed = move_on_or_stop(view, truth, outlook, claims, False)
        if passed < 0.0:
            return total - passed - 1.0
        total += passed
        row, pool = rule_of(outlook, claims)
        perform(view, truth, outlook, claims, row, pool)


@compiled_alone
def act_or_stop(
    worlds: Worlds,
    envs: Envs,
    foreseen: Foreseen,
    legal: Bytes,
    came: Came,
    action: int,
    pools: int,
    shaped: bool,
    limit: int,
    b: int,
    spare: int,
) -> float:
    """Take an action, write its shaped reward, and move on as `move_on_or_stop` does."""
    state = envs.state[b]
    view = view_of(worlds, envs, b, b)
    truth = truth_of(worlds, envs, b, b)
    outlook, claims = outlook_of(foreseen, b), claims_of(foreseen, b)
    rule_w, rule_p = rule_of(outlook, claims)
    w, p = NOBODY, NOBODY
    if 0 <= action < len(legal) - 1 and legal[action] != 0:
        w, p = action // pools, action % pools
    if w == NOBODY and next_moment(view, truth) == FOREVER:
        w, p = rule_w, rule_p  # nothing runs and nothing will arrive: waiting would leave the jobs undone
    agreed = w == rule_w and (w == NOBODY or p == rule_p)
    reward = 0.0
    if shaped and not agreed:
        if state.known == 0 or state.limit != limit:
            state.cost = cost_after_stop(worlds, envs, foreseen, b, spare, limit, rule_w, rule_p)
        after = cost_after_stop(worlds, envs, foreseen, b, spare, limit, w, p)
        reward = (state.cost - after) / worlds.info[state.world].scale
        state.cost = after
        state.known = 1
        state.limit = limit
    came.reward[b] = reward
    came.agreed[b] = agreed
    perform(view, truth, outlook, claims, w, p)
    return move_on_or_stop(view, truth, outlook, claims, True)


@compiled_alone
def observe_stops_here(view: View, outlook: Outlook, claims: Claims, planes: Planes) -> None:
    """Write the observation of one environment."""
    observe_stops(view, outlook, claims, planes)
