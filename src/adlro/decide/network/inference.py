"""The Q-network as compiled code, for decisions without the library that trained it.

Planes over (job, pool) pairs pass through layers whose weights all pairs share. Each layer adds the mean of the pair's
row (the job), of its column (the pool) and of all pairs, so that a pair is judged relative to the others.
`learn/train/network.py` has the same arithmetic for training; a test checks that both agree.
"""

from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.tables import Floats
from adlro.decide.network.planes import CLAIM, PAIR_PLANES, POOL_PLANES, ROW_PLANES, WHOLE_PLANES, Planes, Singles
from adlro.decide.outlook import IDLE

FEATURES: Final = len(ROW_PLANES) + len(POOL_PLANES) + len(PAIR_PLANES) + len(WHOLE_PLANES)


class Weights(NamedTuple):
    """The weights of a network with C channels and L layers."""

    row: Singles  # [ROW_PLANES, C]
    pool: Singles  # [POOL_PLANES, C]
    pair: Singles  # [PAIR_PLANES, C]
    whole: Singles  # [WHOLE_PLANES, C]
    first: Singles  # [C] bias of the first layer
    own: Singles  # [L, C, C] from the pair itself
    along: Singles  # [L, C, C] from its row
    across: Singles  # [L, C, C] from its column
    common: Singles  # [L, 2 * C, C] from all pairs: their mean and their maximum
    bias: Singles  # [L, C]
    advantage: Singles  # [C]
    hidden: Singles  # [2 * C, C] from all pairs to the value and to waiting
    hidden_bias: Singles  # [C]
    waiting: Singles  # [C + 1] the advantage of waiting, bias last
    value: Singles  # [C + 1] the value of the state, bias last
    trust: Singles  # [1] weight of the prior
    claim: Singles = np.zeros(0, np.float32)  # [C + 1] the advantage of claims and moves over waiting, the weight of
    # the rule's judgement last; empty in a network that never stops a job, which has no planes for it either


class Scratch(NamedTuple):
    """Scratch arrays."""

    pairs: Singles  # [W, P, C]
    sums: Singles  # [W, P, C]
    rows: Singles  # [W, C]
    columns: Singles  # [P, C]
    all: Singles  # [2 * C]
    added: Singles  # [C]
    counts: Singles  # [W + P]
    added_rows: Singles  # [W, C]
    added_columns: Singles  # [P, C]


@compiled_allocating
def new_scratch(rows: int, pools: int, channels: int) -> Scratch:
    """Scratch arrays for `rows` × `pools` pairs."""
    return Scratch(
        np.zeros((rows, pools, channels), np.float32),
        np.zeros((rows, pools, channels), np.float32),
        np.zeros((rows, channels), np.float32),
        np.zeros((pools, channels), np.float32),
        np.zeros(2 * channels, np.float32),
        np.zeros(channels, np.float32),
        np.zeros(rows + pools, np.float32),
        np.zeros((rows, channels), np.float32),
        np.zeros((pools, channels), np.float32),
    )


@compiled
def knows_stops(weights: Weights) -> bool:
    """Whether the network was made to stop and move jobs too."""
    return len(weights.claim) > 0


@compiled
def is_a_pair(planes: Planes, w: int, p: int) -> bool:
    """Whether the pair has a Q. A move may be made, but is not present: it does not count in any mean over pairs."""
    return planes.present[w, p] != 0 or planes.legal[w, p] != 0


@compiled
def add_product(vector: Singles, matrix: Singles, result: Singles) -> None:
    """Add a vector times a matrix to the result."""
    for i in range(len(vector)):
        x = vector[i]
        if x != 0.0:
            row = matrix[i]
            for o in range(len(result)):
                result[o] += x * row[o]


@compiled
def pool_up(planes: Planes, x: Singles, scratch: Scratch, rows: int) -> None:
    """The mean of each row and column, and the mean and the maximum of all present pairs."""
    channels = x.shape[2]
    pools = planes.pools.shape[0]
    count = 0
    for w in range(rows):
        for o in range(channels):
            scratch.rows[w, o] = 0.0
        scratch.counts[w] = 0.0
    for p in range(pools):
        for o in range(channels):
            scratch.columns[p, o] = 0.0
        scratch.counts[rows + p] = 0.0
    for o in range(channels):
        scratch.all[o] = 0.0
        scratch.all[channels + o] = 0.0
    for w in range(rows):
        for p in range(pools):
            if planes.present[w, p] == 0:
                continue
            count += 1
            scratch.counts[w] += 1.0
            scratch.counts[rows + p] += 1.0
            here = x[w, p]
            for o in range(channels):
                scratch.rows[w, o] += here[o]
                scratch.columns[p, o] += here[o]
                scratch.all[o] += here[o]
                scratch.all[channels + o] = max(scratch.all[channels + o], here[o])
    for w in range(rows):
        share = np.float32(1.0) / max(scratch.counts[w], np.float32(1.0))
        for o in range(channels):
            scratch.rows[w, o] *= share
    for p in range(pools):
        share = np.float32(1.0) / max(scratch.counts[rows + p], np.float32(1.0))
        for o in range(channels):
            scratch.columns[p, o] *= share
    for o in range(channels):
        scratch.all[o] /= max(count, 1)


@compiled
def forward(planes: Planes, rows: int, weights: Weights, scratch: Scratch, q: Floats) -> float:
    """Compute Q of every pair (row by row) and of waiting (last), without the state's value, which is returned."""
    channels = len(weights.first)
    pools = planes.pools.shape[0]
    x = scratch.pairs
    added = scratch.added
    for o in range(channels):
        added[o] = weights.first[o]
    add_product(planes.whole, weights.whole, added)
    for w in range(rows):
        for o in range(channels):
            scratch.added_rows[w, o] = added[o]
        add_product(planes.rows[w], weights.row, scratch.added_rows[w])
    for p in range(pools):
        for o in range(channels):
            scratch.added_columns[p, o] = 0.0
        add_product(planes.pools[p], weights.pool, scratch.added_columns[p])
    for w in range(rows):
        for p in range(pools):
            if not is_a_pair(planes, w, p):
                continue
            here = x[w, p]
            for o in range(channels):
                here[o] = scratch.added_rows[w, o] + scratch.added_columns[p, o]
            add_product(planes.pairs[w, p], weights.pair, here)
            for o in range(channels):
                here[o] = max(here[o], np.float32(0.0))
    for layer in range(len(weights.bias)):
        one_layer(planes, rows, weights, scratch, layer)
    pool_up(planes, x, scratch, rows)
    for o in range(channels):
        added[o] = weights.hidden_bias[o]
    add_product(scratch.all, weights.hidden, added)
    wait = weights.waiting[channels]
    value = weights.value[channels]
    for o in range(channels):
        if added[o] > 0.0:
            wait += added[o] * weights.waiting[o]
            value += added[o] * weights.value[o]
    trust = weights.trust[0]
    stops = knows_stops(weights)
    for w in range(rows):
        for p in range(pools):
            if not is_a_pair(planes, w, p):
                continue
            here = x[w, p]
            total = np.float32(0.0)
            if stops and planes.pairs[w, p, CLAIM] != 0.0:
                for o in range(channels):
                    total += here[o] * weights.claim[o]
                judged = weights.claim[channels] * (planes.prior[w, p] - IDLE)
                q[w * pools + p] = wait + trust * IDLE + total + judged
                continue
            for o in range(channels):
                total += here[o] * weights.advantage[o]
            q[w * pools + p] = total + trust * planes.prior[w, p]
    q[planes.rows.shape[0] * pools] = wait + trust * IDLE
    return float(value)


@compiled
def one_layer(planes: Planes, rows: int, weights: Weights, scratch: Scratch, layer: int) -> None:
    """Apply one layer: combine each pair with its row, its column and all pairs, and add the result to it."""
    x = scratch.pairs
    channels = len(weights.first)
    pools = planes.pools.shape[0]
    pool_up(planes, x, scratch, rows)
    added = scratch.added
    for o in range(channels):
        added[o] = weights.bias[layer, o]
    add_product(scratch.all, weights.common[layer], added)
    for w in range(rows):
        for o in range(channels):
            scratch.added_rows[w, o] = added[o]
        add_product(scratch.rows[w], weights.along[layer], scratch.added_rows[w])
    for p in range(pools):
        for o in range(channels):
            scratch.added_columns[p, o] = 0.0
        add_product(scratch.columns[p], weights.across[layer], scratch.added_columns[p])
    for w in range(rows):
        for p in range(pools):
            if not is_a_pair(planes, w, p):
                continue
            here = x[w, p]
            new = scratch.sums[w, p]
            for o in range(channels):
                new[o] = scratch.added_rows[w, o] + scratch.added_columns[p, o]
            add_product(here, weights.own[layer], new)
            for o in range(channels):
                here[o] += max(new[o], np.float32(0.0))
