"""Live readings → a table [GPU, feature] of numbers from 0 to 1, in which what is missing is NaN and says why.

A value is used while it is fresh. Later it is missing: a GPU that went silent is not a GPU that still runs at 90 %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adlro.core.records import Cluster, GpuModel
from adlro.core.telemetry import EARLIER, METRIC, METRICS, GpuSeen, ModelOf, Readings

_Floats = NDArray[np.float64]

GPU_FEATURES: Final[Mapping[str, str]] = {
    "utilisation": "share of the time busy",
    "temperature": "0 C to where the device slows down: as it reports, else THROTTLE_C",
    "memory_temperature": "0 C to MEMORY_THROTTLE_C",
    "memory": "used against the memory there is: as reported, else the catalogue's",
    "bandwidth": "GB/s against the catalogue's peak, or the share of the time in which the memory interface was busy",
    "power": "against the catalogue's TDP, else the limit that the device reports",
    "sm_clock": "against the highest clock that the device reports",
    "memory_clock": "against the highest clock that the device reports",
    "throttle": "1 while heat or power lowers the clocks, or the share of the time in which they did",
    "xid": "1 if there was an XID error",
    "ecc_corrected": "new errors since the last look, 1 for MANY_CORRECTED or more",
    "ecc_uncorrected": "1 if there was a new error since the last look",
}
"""The columns of `level`, and what 0 to 1 means in each."""

FEATURE: Final = {name: index for index, name in enumerate(GPU_FEATURES)}

THROTTLE_C: Final = {"nvidia": 87.0, "amd": 100.0}
"""Where GPUs slow down, by vendor, if they do not say it themselves. A choice of ours: datasheets do not tell it, and
the drivers' own figures (NVIDIA: slowdown, AMD: critical at the hottest spot) differ from card to card."""

MEMORY_THROTTLE_C: Final = 95.0
"""The same for GPU memory; a choice of ours as well."""

MANY_CORRECTED: Final = 100.0

SLOWING_BITS: Final = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons that slow a GPU against the user's will: power cap, hardware, heat (twice), power brake."""

REASONS: Final = (
    "there",
    "the GPU does not send it",
    "the expected GPU is silent",
    "not a number",
    "not plausible",
    "from the future",
    "too old",
    "nothing to scale it by",
    "a counter seen for the first time",
)
"""Why a feature is missing, by its code in `gap`; 0 means that it is there."""

THERE, ABSENT, SILENT, NAN, IMPLAUSIBLE, _FUTURE, OLD, NO_RANGE, FIRST = range(len(REASONS))

DUPLICATE: Final = "told twice"
OUTRANKED: Final = "told by a better source too"
USED: Final = "used"

_PLAUSIBLE: Final[Mapping[str, tuple[float, float]]] = {
    "ratio": (0.0, 1.05),
    "C": (-40.0, 250.0),
    "MiB": (0.0, 16e6),
    "GB/s": (0.0, 1e6),
    "W": (0.0, 10e3),
    "MHz": (0.0, 20e3),
    "bits": (0.0, 2.0**53),
    "code": (0.0, 1e6),
    "errors": (0.0, 1e15),
}
"""What lies outside is a driver's word for "not known" (DCGM: a number near 2**63, AMD: 65535) or a fault."""

_LOW: Final = np.array([_PLAUSIBLE[metric.unit][0] for metric in METRICS])
_HIGH: Final = np.array([_PLAUSIBLE[metric.unit][1] for metric in METRICS])
_IS_COUNTER: Final = np.array([metric.counter for metric in METRICS])


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old a value may be, and how far ahead of the source's clock."""

    oldest_s: float = 60.0
    ahead_s: float = 5.0


_USUAL: Final = Freshness()


@dataclass(frozen=True, slots=True, eq=False)
class Telemetry:
    """The live cluster: GPUs [G], what they said in the units of METRICS [G, M], and as features from 0 to 1 [G, F].

    `rows` counts the readings by what became of them; they add up to all that were given.
    """

    now_s: float
    gpus: tuple[GpuSeen, ...]
    models: tuple[GpuModel | None, ...]
    raw: _Floats
    level: _Floats
    gap: NDArray[np.int8]
    age_s: _Floats
    rows: Mapping[str, int]
    resets: int = 0
    clipped: int = 0
    unknown: tuple[str, ...] = ()
    unexpected: int = 0
    counted: _Floats = field(default_factory=lambda: np.empty((0, len(METRICS))))
    counted_at: _Floats = field(default_factory=lambda: np.empty((0, len(METRICS))))

    def gaps(self) -> dict[str, int]:
        """How many features are missing, by reason; only reasons that occur."""
        counts = np.bincount(self.gap.ravel(), minlength=len(REASONS)).tolist()
        return {reason: count for reason, count in zip(REASONS, counts, strict=True) if count and reason != "there"}

    def gaps_by_feature(self) -> dict[str, dict[str, int]]:
        """The same for each feature that has a gap."""
        found: dict[str, dict[str, int]] = {}
        for column, feature in enumerate(GPU_FEATURES):
            counts = np.bincount(self.gap[:, column], minlength=len(REASONS)).tolist()
            here = {REASONS[code]: count for code, count in enumerate(counts) if count and code != THERE}
            if here:
                found[feature] = here
        return found


def normalise(
    readings: Readings,
    model_of: ModelOf,
    expected: Sequence[GpuSeen] = (),
    previous: Telemetry | None = None,
    freshness: Freshness = _USUAL,
) -> Telemetry:
    """The live cluster by these readings. GPUs that are expected, or were there before, and say nothing are gaps."""
    gpus, place, unexpected = _roster(readings.gpus, expected, previous.gpus if previous else ())
    size, width = len(gpus), len(METRICS)
    row, column = place[readings.gpu] if len(readings) else readings.gpu, readings.metric
    cell = row.astype(np.int64) * width + column
    fault = _faults(readings, freshness)
    good = fault == THERE

    raw = np.full(size * width, np.nan)
    gap = np.full(size * width, ABSENT, np.int8)
    has_spoken = np.zeros(size, bool)
    has_spoken[row] = True
    gap.reshape(size, width)[~has_spoken] = SILENT
    np.maximum.at(gap, cell[~good], fault[~good])
    best, rows = _best(cell[good], readings.rank[good], readings.time_s[good], size * width)
    raw[cell[good][best]] = readings.value[good][best]
    gap[cell[good][best]] = THERE
    for code in range(NAN, OLD + 1):
        rows[REASONS[code]] = int(np.count_nonzero(fault == code))
    # An old value beside a fresh one of the same figure is its past, and nothing is amiss.
    past = int(np.count_nonzero(gap[cell[fault == OLD]] == THERE))
    rows[REASONS[OLD]] -= past
    rows[EARLIER] = rows.get(EARLIER, 0) + past

    newest = np.full(size, -np.inf)
    np.maximum.at(newest, row[good], readings.time_s[good])
    age_s = np.where(np.isfinite(newest), readings.now_s - newest, np.nan)

    told = raw.reshape(size, width)
    counters = _counters(readings, cell, good, told, gpus, previous)
    models, unknown = _models(gpus, model_of)
    level, gaps, clipped = _levels(told, gap.reshape(size, width), counters.increase, models, gpus)
    return Telemetry(
        readings.now_s,
        gpus,
        models,
        told,
        level,
        gaps,
        age_s,
        {reason: count for reason, count in rows.items() if count},
        counters.resets,
        clipped,
        unknown,
        unexpected,
        counters.value,
        counters.time_s,
    )


def _roster(
    seen: tuple[GpuSeen, ...], expected: Sequence[GpuSeen], before: tuple[GpuSeen, ...]
) -> tuple[tuple[GpuSeen, ...], NDArray[np.int32], int]:
    """All GPUs that should be there or are, the row of each one seen, and how many were seen but not expected."""
    if not expected and seen == before:
        return seen, np.arange(len(seen), dtype=np.int32), 0
    rows: dict[tuple[str, int], int] = {}
    gpus: list[GpuSeen] = []
    for gpu in (*expected, *before):
        key = (gpu.node, gpu.index)
        if key not in rows:
            rows[key] = len(gpus)
            gpus.append(gpu)
    names = {(gpu.node, gpu.index) for gpu in expected}
    place = np.empty(len(seen), np.int32)
    unexpected = 0
    for number, gpu in enumerate(seen):
        key = (gpu.node, gpu.index)
        unexpected += bool(names) and key not in names
        at = rows.get(key)
        if at is None:
            at = rows[key] = len(gpus)
            gpus.append(gpu)
        else:
            told = gpus[at]
            gpus[at] = GpuSeen(gpu.node, gpu.index, gpu.uuid or told.uuid, gpu.name or told.name)
        place[number] = at
    return tuple(gpus), place, unexpected


def _faults(readings: Readings, freshness: Freshness) -> NDArray[np.int8]:
    """What is wrong with each reading [R]: the code of its reason, or THERE."""
    fault = np.zeros(len(readings), np.int8)
    value, time_s = readings.value, readings.time_s
    fault[(value < _LOW[readings.metric]) | (value > _HIGH[readings.metric])] = IMPLAUSIBLE
    fault[np.isnan(value)] = NAN
    fault[time_s > readings.now_s + freshness.ahead_s] = _FUTURE
    fault[~(time_s >= readings.now_s - freshness.oldest_s)] = OLD  # a time that is no number is no fresh one
    return fault


def _best(
    cell: NDArray[np.int64], rank: NDArray[np.int16], time_s: _Floats, cells: int
) -> tuple[NDArray[np.intp], dict[str, int]]:
    """The reading to use for each cell: of the best source the latest. And what became of all of them."""
    times = np.bincount(cell, minlength=cells)
    alone = times[cell] == 1
    if alone.all():
        return np.arange(len(cell)), {USED: len(cell)}
    several = np.flatnonzero(~alone)
    order = several[np.lexsort((time_s[several], -rank[several], cell[several]))]
    c, r, t = cell[order], rank[order], time_s[order]
    is_last = np.append(c[1:] != c[:-1], True)
    chosen = order[is_last]
    # For every row of the order: the chosen one of its cell.
    of = np.flatnonzero(is_last)[np.cumsum(np.append(0, is_last[:-1]))]
    outranked = r > r[of]
    duplicate = ~is_last & ~outranked & (t == t[of])
    counts = {
        USED: int(np.count_nonzero(alone)) + len(chosen),
        OUTRANKED: int(np.count_nonzero(outranked)),
        DUPLICATE: int(np.count_nonzero(duplicate)),
        EARLIER: int(np.count_nonzero(~is_last & ~outranked & ~duplicate)),
    }
    return np.concatenate([np.flatnonzero(alone), chosen]), counts


@dataclass(frozen=True, slots=True, eq=False)
class _Counters:
    """By how much counters grew [G, M] (NaN: not known), their last values and times, and how many began anew."""

    increase: _Floats
    value: _Floats
    time_s: _Floats
    resets: int


def _counters(
    readings: Readings,
    cell: NDArray[np.int64],
    good: NDArray[np.bool_],
    raw: _Floats,
    gpus: tuple[GpuSeen, ...],
    previous: Telemetry | None,
) -> _Counters:
    """The growth of counters since the last look, or since the first reading of this one. A fall is a reset to 0."""
    shape = raw.shape
    value, at = _before(gpus, shape, previous)
    known = np.flatnonzero(np.isfinite(value.ravel()) & np.isfinite(raw.ravel()))
    mine = good & _IS_COUNTER[readings.metric]
    if not mine.any():
        return _Counters(np.full(shape, np.nan), value, at, 0)
    rank = np.full(raw.size, np.iinfo(np.int16).max, np.int16)
    np.minimum.at(rank, cell[mine], readings.rank[mine])
    mine &= (readings.rank == rank[cell]) & ~(readings.time_s < at.ravel()[cell])
    cells = np.concatenate([known, cell[mine]])
    times = np.concatenate([at.ravel()[known], readings.time_s[mine]])
    values = np.concatenate([value.ravel()[known], readings.value[mine]])
    order = np.lexsort((times, cells))
    cells, times, values = cells[order], times[order], values[order]
    is_new = np.append(True, (cells[1:] != cells[:-1]) | (times[1:] != times[:-1]))
    cells, times, values = cells[is_new], times[is_new], values[is_new]
    follows = cells[1:] == cells[:-1]
    step = values[1:] - values[:-1]
    fell = follows & (step < 0)
    grown = np.where(fell, values[1:], step)[follows]
    increase = np.bincount(cells[1:][follows], grown, raw.size).astype(np.float64)  # whole numbers if there are none
    counted = np.bincount(cells[1:][follows], minlength=raw.size)
    # The same value at the same time as at the last look: it was counted then, and did not grow since.
    seen_again = np.zeros(raw.size, bool)
    seen_again[known] = True
    increase[(counted == 0) & ~seen_again] = np.nan
    is_last = np.append(~follows, True)
    value, at = value.ravel().copy(), at.ravel().copy()
    value[cells[is_last]], at[cells[is_last]] = values[is_last], times[is_last]
    return _Counters(increase.reshape(shape), value.reshape(shape), at.reshape(shape), int(np.count_nonzero(fell)))


def _before(gpus: tuple[GpuSeen, ...], shape: tuple[int, ...], previous: Telemetry | None) -> tuple[_Floats, _Floats]:
    """The last values and times of counters, in the rows of now; NaN where there are none."""
    if previous is not None and previous.gpus is gpus:
        return previous.counted, previous.counted_at
    value, at = np.full(shape, np.nan), np.full(shape, np.nan)
    if previous is not None:
        rows = {(gpu.node, gpu.index): row for row, gpu in enumerate(gpus)}
        places = [rows[gpu.node, gpu.index] for gpu in previous.gpus]  # whoever was there before is still listed
        value[places], at[places] = previous.counted, previous.counted_at
    return value, at


def _models(gpus: tuple[GpuSeen, ...], model_of: ModelOf) -> tuple[tuple[GpuModel | None, ...], tuple[str, ...]]:
    """The model of each GPU, and the names that the catalogue does not have, each once."""
    found = {name: model_of(name) for name in dict.fromkeys(gpu.name for gpu in gpus) if name}
    unknown = tuple(name for name, model in found.items() if model is None)
    return tuple([found.get(gpu.name) for gpu in gpus]), unknown


def _levels(
    raw: _Floats,
    gap: NDArray[np.int8],
    increase: _Floats,
    models: tuple[GpuModel | None, ...],
    gpus: tuple[GpuSeen, ...],
) -> tuple[_Floats, NDArray[np.int8], int]:
    """The features [G, F], why some are missing, and how many lay above their range."""

    def told(metric: str) -> _Floats:
        return raw[:, METRIC[metric]]

    limit_c, peak_gb_s, tdp_w, memory_mib = _ranges(models, gpus)
    total = _first(told("memory_total"), told("memory_used") + told("memory_free"), memory_mib)
    bits = told("throttle_reasons")
    slowed = np.where(np.isnan(bits), np.nan, (np.nan_to_num(bits).astype(np.int64) & SLOWING_BITS) != 0)
    levels = {
        "utilisation": (told("utilisation"), "utilisation"),
        "temperature": (_share(told("temperature"), _first(told("temperature_limit"), limit_c)), "temperature"),
        "memory_temperature": (told("memory_temperature") / MEMORY_THROTTLE_C, "memory_temperature"),
        "memory": (_share(told("memory_used"), total), "memory_used"),
        "bandwidth": (_first(_share(told("memory_bandwidth"), peak_gb_s), told("memory_busy")), "memory_busy"),
        "power": (_share(told("power"), _first(tdp_w, told("power_limit"))), "power"),
        "sm_clock": (_share(told("sm_clock"), told("sm_clock_max")), "sm_clock"),
        "memory_clock": (_share(told("memory_clock"), told("memory_clock_max")), "memory_clock"),
        "throttle": (_first(slowed, told("throttled")), "throttle_reasons"),
        "xid": (np.where(np.isnan(told("xid")), np.nan, told("xid") > 0), "xid"),
        "ecc_corrected": (increase[:, METRIC["ecc_corrected"]] / MANY_CORRECTED, "ecc_corrected"),
        "ecc_uncorrected": (increase[:, METRIC["ecc_uncorrected"]], "ecc_uncorrected"),
    }
    others = {"memory_busy": "memory_bandwidth", "throttle_reasons": "throttled"}
    level = np.empty((len(gpus), len(GPU_FEATURES)))
    gaps = np.empty(level.shape, np.int8)
    for feature, (values, metric) in levels.items():
        column, place = FEATURE[feature], METRIC[metric]
        level[:, column] = values
        why = gap[:, place].copy()
        if other := others.get(metric):
            why = np.maximum(why, gap[:, METRIC[other]])
        why[why == THERE] = FIRST if METRICS[place].counter else NO_RANGE
        gaps[:, column] = np.where(np.isnan(values), why, THERE)
    above = level > 1.0
    np.clip(level, 0.0, 1.0, out=level)
    is_counter = [FEATURE["ecc_corrected"], FEATURE["ecc_uncorrected"]]
    above[:, is_counter] = False  # many errors are many errors
    return level, gaps, int(np.count_nonzero(above))


def _ranges(
    models: tuple[GpuModel | None, ...], gpus: tuple[GpuSeen, ...]
) -> tuple[_Floats, _Floats, _Floats, _Floats]:
    """By the catalogue, for each GPU: throttle point, peak bandwidth, TDP, memory. NaN: the model is not known."""
    kinds: dict[str, int] = {}
    figures: list[tuple[float, float, float, float]] = []
    which = np.empty(len(gpus), np.int32)
    for row, model in enumerate(models):
        key = model.name if model is not None else ""
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = len(figures)
            figures.append(_figures(model))
        which[row] = kind
    table = np.array(figures or [_figures(None)])
    columns = table[which]
    return columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3]


def _figures(model: GpuModel | None) -> tuple[float, float, float, float]:
    if model is None:
        return np.nan, np.nan, np.nan, np.nan
    throttle = THROTTLE_C.get(model.vendor.lower(), min(THROTTLE_C.values()))
    return throttle, model.memory_bandwidth_gb_s, model.tdp_w, model.memory_gb * 1024


def _share(value: _Floats, whole: _Floats) -> _Floats:
    """Value against its range; NaN where there is no range."""
    return value / np.where(whole > 0, whole, np.nan)


def _first(*choices: _Floats) -> _Floats:
    """For each GPU the first choice that is a number."""
    found = choices[0]
    for choice in choices[1:]:
        found = np.where(np.isnan(found), choice, found)
    return found


def expected_gpus(cluster: Cluster | None) -> tuple[GpuSeen, ...]:
    """The GPUs that a cluster should report, numbered from 0 on each node in the order of the cluster file."""
    found: list[GpuSeen] = []
    for node in cluster.nodes if cluster else ():
        models = [group.model for group in node.gpus for _ in range(group.count)]
        found += [GpuSeen(node.name, index, name=model) for index, model in enumerate(models)]
    return tuple(found)


def with_our_names(readings: Readings, expected: Sequence[GpuSeen]) -> Readings:
    """The readings with the cluster's node names: some sources add the domain to a node's name."""
    known = {gpu.node for gpu in expected}
    gpus = tuple(
        replace(gpu, node=short) if gpu.node not in known and (short := gpu.node.partition(".")[0]) in known else gpu
        for gpu in readings.gpus
    )
    return replace(readings, gpus=gpus)
