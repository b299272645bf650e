"""What the figures of a report need, in a few hundred kilobytes: plain values, ready for JSON.

Two runs on one seed are looked at closely, the baseline's and the chosen policy's; of all other runs only the
distribution of completion times is kept. docs/report.md says how rows, times and users are chosen.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from adlro.core.errors import AdlroError
from adlro.core.records import WHOLE_GPU
from adlro.core.run import Run
from adlro.core.tables import DONE, FAILED, NOBODY, STARTED, STOPPED, TURNED_AWAY, Floats, Ints, Table
from adlro.measure.events import stretches

DETAIL_FORMAT: Final = 1
"""Grows when older files can no longer be read."""

QUANTILES: Final = 401
"""Completion times kept of each run: enough for its 99th percentile and for a smooth curve."""

TIME_BINS: Final = 240
QUEUE_BINS: Final = 480

MOST_BLOCKS: Final = 128
"""Rows of the heat map; on a larger cluster a row is a block of neighbouring GPUs of one model."""

MOST_GPUS: Final = 96
"""Rows of the Gantt chart, about; of a larger cluster it shows the sites of each model that were used most."""

BARS_PER_GPU: Final = 40
"""Bars beside each other that can still be told apart; a run with more is shown around its longest queue."""

_MOST: Final = 0.95

MOST_USERS: Final = 20
_MOST_FAMILIES: Final = 7
OTHER: Final = "other"
MOST_REASONS: Final = 10

Bar = tuple[float, float, int, int, int, int, int]
"""Start and end in s, first row, rows, lowest thousandth of the row, thousandths, family."""


# ---- completion times --------------------------------------------------------------------------------------------


def completion_times(run: Run) -> tuple[int, Floats]:
    """How many jobs finished, and their completion times at QUANTILES evenly spaced levels."""
    rows = np.flatnonzero(run.events["what"] == DONE)
    if not len(rows):
        return 0, np.empty(0)
    jct = run.events["time"][rows] - run.jobs.table["submit"][run.events["job"][rows]]
    return len(rows), np.quantile(jct, (np.arange(QUANTILES) + 0.5) / QUANTILES)


def pooled(runs: Sequence[tuple[int, Floats]]) -> dict[str, Any]:
    """The distribution of all jobs of several runs: their number and QUANTILES completion times."""
    some = [(count, times) for count, times in runs if count]
    if not some:
        return {"finished": 0, "quantiles_s": []}
    times = np.concatenate([times for _, times in some])
    weight = np.repeat([count / QUANTILES for count, _ in some], QUANTILES)
    order = np.argsort(times, kind="stable")
    reached = np.cumsum(weight[order])
    middle = (reached - weight[order] / 2) / reached[-1]
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return {
        "finished": sum(count for count, _ in some),
        "quantiles_s": rounded(np.interp(levels, middle, times[order])),
    }


# ---- two runs, closely -------------------------------------------------------------------------------------------


def look_closely(runs: Sequence[Run]) -> dict[str, Any]:
    """What the figures show of runs on the same jobs; the first is the baseline's."""
    first = runs[0]
    held = [stretches(run) for run in runs]
    begin = float(first.jobs.table["submit"][0])
    end = max([begin + 1.0, *(float(each["end"].max()) for each in held if len(each))])
    queue = {run.policy: queue_lengths(run, begin, end) for run in runs}
    sites = shown_sites(first, held)
    window = busy_window(first, held, sites, queue[first.policy], begin, end)
    families, family_of = largest_families(first)
    blocks = row_blocks(first)
    return {
        "time_s": [begin, end],
        "families": families,
        "gantt": {
            "window_s": list(window),
            "gpus": int(first.site_gpus.sum()),
            "rows": [
                {"model": first.site_model[site], "node": first.cluster.nodes[first.site_node[site]].name}
                for site in sites
                for _ in range(int(first.site_gpus[site]))
            ],
            "bars": {
                run.policy: [list(bar) for bar in _bars(run, each, sites, window, family_of)]
                for run, each in zip(runs, held, strict=True)
            },
        },
        "heat": {
            "rows": [{"model": model, "gpus": gpus} for model, gpus in blocks],
            "per_mille": {
                run.policy: _utilisation(run, each, blocks, begin, end) for run, each in zip(runs, held, strict=True)
            },
        },
        "queue": queue,
        "waits": _waits(runs, held),
        "refusals": refusal_reasons(first),
    }


def refusal_reasons(run: Run) -> list[dict[str, Any]]:
    """Why jobs were refused, the most frequent reasons first and the rest as one."""
    found = Counter(run.refusals.values()).most_common()
    rows = [{"reason": reason, "jobs": jobs} for reason, jobs in found[:MOST_REASONS]]
    if rest := found[MOST_REASONS:]:
        rows.append({"reason": f"{len(rest):,} other reasons", "jobs": sum(jobs for _, jobs in rest)})
    return rows


def gpu_order(run: Run) -> list[int]:
    """The sites that have GPUs, those of one model beside each other, models in order of their first site."""
    place = {model: number for number, model in enumerate(dict.fromkeys(run.site_model))}
    sites = [site for site in range(len(run.site_gpus)) if run.site_gpus[site]]
    return sorted(sites, key=lambda site: (place[run.site_model[site]], site))


def shown_sites(run: Run, held: Sequence[Table]) -> list[int]:
    """The sites in the Gantt chart: all, or of a large cluster those of each model that all runs together used most."""
    order = gpu_order(run)
    total = int(run.site_gpus.sum())
    if total <= MOST_GPUS:
        return order
    used = np.zeros(len(run.site_gpus))
    for each in held:
        gpu_s = (each["end"] - each["start"]) * np.bitwise_count(each["mask"]) * run.jobs.table["share"][each["job"]]
        used += np.bincount(each["site"], gpu_s, minlength=len(used))
    found: list[int] = []
    for model in dict.fromkeys(run.site_model[site] for site in order):
        ours = [site for site in order if run.site_model[site] == model]
        count = max(1, round(len(ours) * MOST_GPUS / total))
        found += sorted(sorted(ours, key=lambda site: (-used[site], site))[:count])
    return found


def row_blocks(run: Run) -> list[tuple[str, int]]:
    """The rows of the heat map: model and number of GPUs, in the order of gpu_order."""
    total = int(run.site_gpus.sum())
    counts: dict[str, int] = {}
    for site in gpu_order(run):
        counts[run.site_model[site]] = counts.get(run.site_model[site], 0) + int(run.site_gpus[site])
    found: list[tuple[str, int]] = []
    for model, gpus in counts.items():
        rows = gpus if total <= MOST_BLOCKS else min(gpus, max(1, round(gpus * MOST_BLOCKS / total)))
        edges = np.linspace(0, gpus, rows + 1).round().astype(int)
        found += [(model, int(size)) for size in np.diff(edges)]
    return found


def largest_families(run: Run) -> tuple[list[str], Ints]:
    """At most _MOST_FAMILIES families with the most work, the rest as one, and the place of every family [F]."""
    work = np.bincount(run.jobs.table["family"], run.jobs.work, minlength=len(run.jobs.families))
    present = [int(family) for family in np.argsort(-work, kind="stable") if work[family] > 0]
    kept = present if len(present) <= _MOST_FAMILIES else present[: _MOST_FAMILIES - 1]
    place = np.full(len(run.jobs.families), len(kept), np.int32)
    place[kept] = np.arange(len(kept))
    names = [run.jobs.families[family] for family in kept]
    return (names if len(kept) == len(present) else [*names, OTHER]), place


def busy_window(
    run: Run, held: Sequence[Table], sites: Sequence[int], queue: Sequence[float], begin: float, end: float
) -> tuple[float, float]:
    """The time that the Gantt chart shows: all, or less if the rest is an empty tail or bars could not be told apart.

    The tail is what comes after _MOST of the bars of each run have ended; if there are still too many, it is the time
    around the longest queue of the first run.
    """
    ours = [each[np.isin(each["site"], sites)] for each in held]
    ends = [float(np.quantile(each["end"], _MOST)) for each in ours if len(each)]
    if not ends:
        return begin, end
    tail = begin + 1.1 * (max(ends) - begin)
    last = tail if tail < begin + 0.8 * (end - begin) else end
    shapes = max(int(np.bitwise_count(each["mask"][each["start"] < last]).sum()) for each in ours)
    share = BARS_PER_GPU * int(run.site_gpus[list(sites)].sum()) / max(1, shapes)
    if share >= 0.8:
        return begin, last
    length = (last - begin) * share
    middle = begin + (int(np.argmax(queue)) + 0.5) * (end - begin) / len(queue)
    start = min(max(begin, middle - length / 2), last - length)
    return start, start + length


def _bars(run: Run, held: Table, sites: Sequence[int], window: tuple[float, float], family_of: Ints) -> Iterator[Bar]:
    """What jobs held in the window, rows of a gang that touch as one bar."""
    first_row, row = {}, 0
    for site in sites:
        first_row[site] = row
        row += int(run.site_gpus[site])
    seen = np.isin(held["site"], sites) & (held["start"] < window[1]) & (held["end"] > window[0])
    table = run.jobs.table
    gangs: dict[tuple[int, float, float], list[int]] = {}
    parts: dict[int, list[tuple[float, float, int, int]]] = {}  # by row: those of shared GPUs
    for start, end, mask, job, site, _, _ in held[seen].tolist():
        rows = [first_row[site] + bit for bit in range(mask.bit_length()) if mask >> bit & 1]
        share = int(table["share"][job])
        if share < WHOLE_GPU:
            for each in rows:
                parts.setdefault(each, []).append((start, end, share, job))
        else:
            gangs.setdefault((job, start, end), []).extend(rows)
    for (job, start, end), rows in gangs.items():
        family = int(family_of[table["family"][job]])
        for top, count in touching(sorted(rows)):
            yield (*clipped(start, end, window), top, count, 0, WHOLE_GPU, family)
    for each, shared in parts.items():
        for start, end, low, share, job in stacked(sorted(shared)):
            yield (*clipped(start, end, window), each, 1, low, share, int(family_of[table["family"][job]]))


def clipped(start: float, end: float, window: tuple[float, float]) -> tuple[float, float]:
    """The part inside the window, to a tenth of a second."""
    return round(max(start, window[0]), 1), round(min(end, window[1]), 1)


def touching(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first row and the length of every run of neighbours."""
    begin = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield rows[begin], place - begin
            begin = place


def stacked(shared: Sequence[tuple[float, float, int, int]]) -> Iterator[tuple[float, float, int, int, int]]:
    """Jobs on one shared GPU, each with the lowest thousandth from which its share is free when it starts."""
    now: list[tuple[int, int, float]] = []
    for start, end, share, job in shared:
        now = sorted(each for each in now if each[2] > start)
        low = 0
        for taken, until, _ in now:
            if taken - low >= share:
                break
            low = max(low, until)
        low = min(low, WHOLE_GPU - share)  # what is free may be in pieces, then bars overlap
        now.append((low, low + share, end))
        yield start, end, low, share, job


def _utilisation(run: Run, held: Table, blocks: Sequence[tuple[str, int]], begin: float, end: float) -> list[list[int]]:
    """Thousandths of each block of GPUs that were held, in each of TIME_BINS times."""
    sizes = np.array([size for _, size in blocks])
    row_of = np.repeat(np.arange(len(blocks)), sizes)
    first = np.zeros(len(run.site_gpus), np.int64)
    order = gpu_order(run)
    first[order] = np.cumsum(run.site_gpus[order]) - run.site_gpus[order]
    share = run.jobs.table["share"][held["job"]] / WHOLE_GPU
    found = np.zeros((len(blocks), TIME_BINS))
    for bit in range(int(run.site_gpus.max(initial=0))):
        has = np.flatnonzero(held["mask"] >> np.uint64(bit) & np.uint64(1))
        row = row_of[first[held["site"][has]] + bit]
        found += _spread(held["start"][has], share[has], row, len(blocks), TIME_BINS, begin, end)
        found -= _spread(held["end"][has], share[has], row, len(blocks), TIME_BINS, begin, end)
    shares: list[list[int]] = np.clip(np.rint(1000 * found / sizes[:, None]), 0, 1000).astype(int).tolist()
    return shares


def queue_lengths(run: Run, begin: float, end: float) -> list[float]:
    """The mean number of jobs that wait, in each of QUEUE_BINS times: new ones, and those stopped or failed."""
    what, time, submit = run.events["what"], run.events["time"], run.jobs.table["submit"]
    came = np.concatenate([submit, time[(what == STOPPED) | (what == FAILED)]])
    left = time[(what == STARTED) | (what == TURNED_AWAY)]
    waiting = np.zeros(QUEUE_BINS)
    for times, sign in ((came, 1.0), (left, -1.0)):
        ones = np.ones(len(times))
        waiting += sign * _spread(times, ones, np.zeros(len(times), np.int64), 1, QUEUE_BINS, begin, end)[0]
    return rounded(np.maximum(waiting, 0.0))


def _spread(times: Floats, weight: Floats, row: Any, rows: int, bins: int, begin: float, end: float) -> Floats:
    """The mean in each bin of steps: each lasts from its time to the end and has its weight. [rows, bins]"""
    place = np.clip((times - begin) / (end - begin) * bins, 0.0, bins)
    into = np.minimum(place.astype(np.int64), bins - 1)
    part = np.zeros((rows, bins))
    whole = np.zeros((rows, bins + 1))
    np.add.at(part, (row, into), weight * (into + 1 - place))
    np.add.at(whole, (row, into + 1), weight)
    mean: Floats = part + np.cumsum(whole, axis=1)[:, :-1]
    return mean


# ---- who waits ---------------------------------------------------------------------------------------------------


def _waits(runs: Sequence[Run], held: Sequence[Table]) -> dict[str, Any]:
    """Mean wait until the first start by user and by size, over the jobs that started in any of the runs."""
    jobs = runs[0].jobs
    first = [first_waits(run, each) for run, each in zip(runs, held, strict=True)]
    started = np.logical_or.reduce([np.isfinite(each) for each in first])
    user, sizes = jobs.table["user"], size_classes(runs[0])
    by_jobs = np.bincount(user[started], minlength=len(jobs.users))
    top = [int(each) for each in np.argsort(-by_jobs, kind="stable")[: MOST_USERS + 1] if by_jobs[each]]
    present = int(np.count_nonzero(by_jobs))
    top = top if present <= MOST_USERS + 1 else top[:MOST_USERS]
    place = np.full(len(jobs.users), len(top))
    place[top] = np.arange(len(top))
    names = [jobs.users[each] for each in top] + ([None] if present > len(top) else [])
    seen = {label for label, ran in zip(sizes, started.tolist(), strict=True) if ran}
    labels = [label for label in _SIZES if label in seen]
    size_place = np.array([labels.index(label) if label in seen else NOBODY for label in sizes])
    return {
        "users": present,
        "by_user": grouped(names, np.where(started, place[user], NOBODY), runs, first),
        "by_size": grouped(labels, np.where(started, size_place, NOBODY), runs, first),
    }


def first_waits(run: Run, held: Table) -> Floats:
    """First start - submission by job; NaN for one that never started. [J]"""
    wait = np.full(len(run.jobs), np.nan)
    rows = np.flatnonzero(np.diff(held["job"], prepend=-1))
    wait[held["job"][rows]] = held["start"][rows] - run.jobs.table["submit"][held["job"][rows]]
    return wait


def grouped(names: Sequence[str | None], group: Any, runs: Sequence[Run], first: Sequence[Floats]) -> list[Any]:
    """For each group its name, its jobs, and the mean wait under each policy."""
    found = []
    for number, name in enumerate(names):
        ours = group == number
        mean = {}
        for run, wait in zip(runs, first, strict=True):
            started = wait[ours & np.isfinite(wait)]
            mean[run.policy] = round(float(started.mean()), 1) if len(started) else None
        found.append({"name": name, "jobs": int(ours.sum()), "wait_s": mean})
    return found


_SIZES: Final = ("no GPU", "part of one", "1", "2", *(f"{2**n + 1}–{2 ** (n + 1)}" for n in range(1, 16)))
"""Classes of jobs by the number of GPUs."""


def size_classes(run: Run) -> list[str]:
    """The size of each job, as one of _SIZES."""
    names = []
    for gpus, share in zip(run.jobs.table["gpus"].tolist(), run.jobs.table["share"].tolist(), strict=True):
        if gpus == 0:
            names.append(_SIZES[0])
        elif share < WHOLE_GPU:
            names.append(_SIZES[1])
        else:
            names.append(_SIZES[min(2 + (gpus - 1).bit_length(), len(_SIZES) - 1)])
    return names


# ---- the file ----------------------------------------------------------------------------------------------------


def rounded(values: Floats) -> list[float]:
    """Values with five digits: more than a picture can show."""
    return [float(f"{value:.5g}") for value in values]


def write_detail(detail: Mapping[str, Any], file: Path) -> None:
    """Write it as compressed JSON; the same detail gives the same bytes."""
    text = json.dumps(detail, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_detail(file: Path) -> dict[str, Any]:
    """What write_detail wrote."""
    again = "Write it anew with `adlro compare … --report DIR`."
    try:
        detail = json.loads(gzip.decompress(file.read_bytes()))
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error):
        raise AdlroError(f"'{file}' is damaged; expected compressed JSON. {again}") from None
    except OSError as error:
        raise AdlroError(f"cannot read '{file}': {error.strerror or error}. {again}") from None
    if not isinstance(detail, dict) or detail.get("format") != DETAIL_FORMAT:
        found = detail.get("format") if isinstance(detail, dict) else None
        raise AdlroError(f"'{file}' has the format {found!r}; expected {DETAIL_FORMAT}. {again}")
    return detail
