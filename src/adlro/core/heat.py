"""Heat: how hot each GPU of a simulated cluster is, and how far it lowers its clock to stay below its limit.

A GPU draws power p (a share of its TDP): IDLE_POWER without a job, 1 when it is wholly in use at its full clock, and
IDLE_POWER + (1 - IDLE_POWER) · use · clock² in between. Its temperature goes exponentially, with the time constant
INERTIA_S, to

    room + OWN_C · resistance · p + NEAR_C · (mean p of the GPUs of its node)

When it reaches its limit, the GPU lowers its clock as far as needed to stay there, but not below LEAST_CLOCK. While it
does, the clock follows every change on the node; at the full clock it is free again. Jobs run at the speed factor
wear · clock of their slowest GPU. Between two changes on a node everything has a closed form, so a run has events only
where jobs start and end and where a limit is reached.
"""

import math
from typing import Final

import numpy as np
from numba import types

from adlro.core.compiled import compiled, compiled_alone, compiled_with
from adlro.core.engine import (
    DECIDE,
    LOG_FULL,
    TRUTH_TYPE,
    Truth,
    advance_with,
    change_speed,
    disturb,
    drive,
    log_is_full,
)
from adlro.core.policy import CHOOSE_TYPE, VIEW_TYPE, Choose
from adlro.core.records import WHOLE_GPU
from adlro.core.tables import DOWN, FOREVER, HEAT, UP, Table, View, records

IDLE_POWER: Final = 0.15
"""Share of its TDP that a GPU draws when nothing holds it: an assumption, near what idle data-centre cards report."""

OWN_C: Final = 45.0
"""By how much the power of a GPU at its TDP warms it."""

NEAR_C: Final = 15.0
"""By how much the air on the node is warmer when all its GPUs draw their TDP."""

INERTIA_S: Final = 120.0
"""Seconds in which a temperature covers 63 % of the way to where it settles."""

LEAST_CLOCK: Final = 0.3
"""The lowest clock, as a share of the highest. A GPU that is too hot even so becomes hotter than its limit."""

ROOM_C: Final = 25.0
"""Default temperature of the air that enters the nodes."""

_HALVINGS: Final = 60

_TOLERANCE_C: Final = 1e-6
"""A GPU that settles this close to its limit stays at its full clock: rounding must not hold and free it in turns."""


def new_heat(tdp_w: list[float], limit_c: list[float], resistance: list[float], room_c: float = ROOM_C) -> Table:
    """The heat of GPUs that have been idle for long, one row for each."""
    heat = records(HEAT, len(tdp_w))
    heat.tdp, heat.limit, heat.resistance, heat.room = tdp_w, limit_c, resistance, room_c
    heat.power, heat.clock, heat.wear, heat.reaches, heat.changes = IDLE_POWER, 1.0, 1.0, FOREVER, -1
    heat.settles = room_c + OWN_C * IDLE_POWER * np.array(resistance) + NEAR_C * IDLE_POWER
    heat.temperature = heat.hottest = heat.settles
    return heat


# ---- one node ----------------------------------------------------------------------------------------------------


@compiled
def temperature_at(heat: Table, g: int, now: float) -> float:
    """The temperature of a GPU at a time since its node last changed."""
    row = heat[g]
    return row.settles + (row.temperature - row.settles) * math.exp(-(now - row.since) / INERTIA_S)


@compiled
def _follow(heat: Table, g: int, now: float) -> None:
    """Bring one GPU up to date: everything was constant since its node last changed."""
    row = heat[g]
    passed = now - row.since
    row.temperature = temperature_at(heat, g, now)
    row.energy += row.power * row.tdp * passed
    if row.clock < 1.0:
        row.throttled += passed
    if row.reaches <= now:
        row.held = 1
        row.temperature = row.limit
    row.hottest = max(row.hottest, row.temperature)
    row.since = now


@compiled
def _full_power(row: Table) -> float:
    """The power of a GPU at its full clock."""
    return IDLE_POWER + (1.0 - IDLE_POWER) * row.use


@compiled
def _power_held(row: Table, air: float) -> float:
    """The power at which a GPU stays at its limit in air of this temperature, within what its clock allows."""
    wanted = (row.limit - air) / (OWN_C * row.resistance)
    least = IDLE_POWER + (1.0 - IDLE_POWER) * row.use * LEAST_CLOCK * LEAST_CLOCK
    return min(max(wanted, least), _full_power(row))


@compiled
def _mean_power(heat: Table, first: int, count: int, guess: float) -> float:
    """The mean power of the GPUs of a node, if the air is as warm as a mean power of `guess` makes it."""
    total = 0.0
    for g in range(first, first + count):
        row = heat[g]
        total += _power_held(row, row.room + NEAR_C * guess) if row.held != 0 else _full_power(row)
    return total / count


@compiled
def _balance(heat: Table, first: int, count: int) -> float:
    """The mean power of a node at which all agrees: held GPUs draw less the warmer the air, so there is just one."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _mean_power(heat, first, count, middle) > middle:
            low = middle
        else:
            high = middle
    return _mean_power(heat, first, count, high)


@compiled
def settle_node(heat: Table, first: int, count: int, now: float) -> None:
    """Bring the GPUs of a node up to date, and set their new powers and clocks; `use` holds what is new."""
    for g in range(first, first + count):
        _follow(heat, g, now)
    mean = _balance(heat, first, count)
    for g in range(first, first + count):
        row = heat[g]
        air = row.room + NEAR_C * mean
        full = _full_power(row)
        row.power = _power_held(row, air) if row.held != 0 else full
        row.clock = 1.0
        if row.power < full:
            row.clock = math.sqrt((row.power - IDLE_POWER) / ((1.0 - IDLE_POWER) * row.use))
        else:
            row.held = 0
        row.settles = air + OWN_C * row.resistance * row.power
        row.reaches = FOREVER
        if row.held == 0 and row.use > 0.0 and row.settles > row.limit + _TOLERANCE_C:
            ahead = (row.settles - row.temperature) / (row.settles - row.limit)
            row.reaches = now + INERTIA_S * math.log(ahead) if ahead > 1.0 else now


# ---- all nodes ---------------------------------------------------------------------------------------------------


@compiled
def _renew(view: View, truth: Truth, n: int, first: int, count: int) -> None:
    """Settle a node, and let its jobs go on at their new pace."""
    for g in range(first, first + count):
        truth.heat[g].use = 1.0 - view.gpus[g].free_share / WHOLE_GPU
    settle_node(truth.heat, first, count, view.clock[0].now)
    for g in range(first, first + count):
        factor = truth.heat[g].wear * truth.heat[g].clock
        if factor != truth.factor[g]:
            change_speed(view, truth, n, g, factor)


@compiled
def warm_nodes(view: View, truth: Truth) -> float:
    """Let the heat follow what has changed on each node, and return when a GPU reaches its limit next."""
    heat = truth.heat
    now = view.clock[0].now
    soonest = FOREVER
    for n in range(len(view.nodes)):
        node = view.nodes[n]
        if node.sites == 0:
            continue
        first = view.sites[node.first_site].first_gpu
        last = view.sites[node.first_site + node.sites - 1]
        count = last.first_gpu + last.gpus - first
        if count == 0:
            continue
        changes = view.sites[node.first_site].changes
        is_new = heat[first].changes != changes
        for g in range(first, first + count):
            is_new = is_new or heat[g].reaches <= now
        if is_new:
            _renew(view, truth, n, first, count)
            heat[first].changes = view.sites[node.first_site].changes
        for g in range(first, first + count):
            soonest = min(soonest, heat[g].reaches)
    return soonest


@compiled
def disturb_heated(view: View, truth: Truth) -> None:
    """Like `engine.disturb`; a new speed factor is a GPU's wear, and counts beside its clock."""
    disturbance = truth.disturbances[truth.progress[0].disturbances]
    if disturbance.what != DOWN and disturbance.what != UP:
        row = truth.heat[disturbance.gpu]
        row.wear = disturbance.factor
        truth.progress[0].disturbances += 1
        change_speed(view, truth, disturbance.node, disturbance.gpu, row.wear * row.clock)
    else:
        disturb(view, truth)


# ---- runs with heat ----------------------------------------------------------------------------------------------


@compiled
def read_headroom(view: View, truth: Truth, kept: int) -> None:
    """Read how far each GPU is below its limit, also idle ones, where policies see what is measured."""
    clock = view.clock[0]
    if clock.paced == 0:
        return
    clock.metered = 1
    for g in range(len(truth.heat)):
        view.gpus[g].headroom = truth.heat[g].limit - temperature_at(truth.heat, g, clock.now)


@compiled_with(types.int64(VIEW_TYPE, TRUTH_TYPE, CHOOSE_TYPE))
def play_heated(view: View, truth: Truth, choose: Choose) -> int:
    """Like `engine.play`, with heat."""
    return drive(view, truth, choose, read_headroom, 0, disturb_heated, warm_nodes)


@compiled_alone
def next_question_heated(view: View, truth: Truth) -> int:
    """Like `driver.next_question`, with heat."""
    status = advance_with(view, truth, disturb_heated, warm_nodes)
    if status == DECIDE and log_is_full(view, truth):
        return LOG_FULL
    if status == DECIDE and truth.progress[0].choices == 0:
        read_headroom(view, truth, 0)
    return status
