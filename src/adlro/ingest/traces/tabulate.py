"""Rows of a trace become a table of jobs: checked, counted by reason, put in order, and cut to what was asked for."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from adlro.core.errors import TraceError, UsageError
from adlro.core.jobs import job_table
from adlro.core.memory import release_temporaries
from adlro.core.records import WHOLE_GPU, Job
from adlro.core.schema import property_of
from adlro.core.sizes import sizes_of
from adlro.core.tables import FOREVER, Floats, Jobs
from adlro.core.toml import nearest
from adlro.core.units import HOUR_S
from adlro.ingest.traces.rows import CodeColumn, Labels, Mask, Rows
from adlro.ingest.traces.source import TraceFile, quoted

_MOST_GPUS: Final = int(property_of(Job, "gpus").most)
_LONGEST_S: Final = 1e10
LATEST_S: Final = property_of(Job, "submit_s").most
_SIZES: Final = ("cpus", "memory_gb", "gpu_memory_gb")
BAD_SHARE: Final = 0.05
QUOTED: Final = 3
SAMPLE_SEED: Final = 0

WRONG_CELLS: Final = "wrong number of cells"

_NUMBERS: Final = (
    "line", "submit", "duration", "gpus", "share", "limit", "estimate", "nodes",
)  # fmt: skip
_TEXTS: Final = ("user", "name", "models", "sizes", "family", "column", "types", "places")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is read; None leaves a choice to the trace."""

    format: str | None = None
    families: str | None = None  # a family, hash:sia, hash:gavel, column:NAME or the path of a map
    estimates: str | None = None  # limit or oracle
    gpus_per_unit: float = 1.0  # GPUs that stand for one processor or node, in traces that count those
    skip_bad_rows: bool = False
    scale_load: float = 1.0
    window: str | None = None  # FROM:TO in hours, or as shares of the span
    sample: float = 1.0
    columns: str | None = None  # the path of a map that says what the columns of a table mean
    ran_on: str | None = None  # a GPU model, a cluster, or the path of a map: where the jobs ran


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What was read, what was left out and why, and the rules by which the rest became jobs."""

    file: str
    format: str
    sha256: str
    rows: int
    kept: int
    dropped: dict[str, int]  # rows that are wrong, by reason
    set_aside: dict[str, int]  # rows that are no jobs of their own, by reason
    out_of_order: int  # rows that came before an earlier one; they were sorted
    not_asked_for: int  # jobs outside the window or the sample
    unit: str  # what one GPU of a job is in the trace
    families: str
    estimates: str
    span_s: float
    start_unix: float | None  # when the first job was submitted, if the trace tells
    scale_load: float = 1.0
    window: str | None = None
    sample: float = 1.0
    notes: tuple[str, ...] = field(default=())
    ran_on: str = ""  # on which GPU models the jobs ran, as far as that is known
    warnings: tuple[str, ...] = ()  # what was assumed because the trace does not tell it, and what to do about it


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that a reader found in a file."""

    parts: Iterable[Rows]
    broken: list[int]  # lines that are no rows; filled while the parts are read
    unit: str = "GPU"
    clock: Callable[[], float | None] = lambda: 0.0  # Unix time of the trace's 0; None: not known
    notes: tuple[str, ...] = ()
    late_notes: Callable[[], tuple[str, ...]] = lambda: ()  # what is known only when the parts have been read
    warnings: Callable[[], tuple[str, ...]] = lambda: ()  # the same, about what was guessed or is missing
    columns: tuple[str, ...] = ()  # by which names columns may be asked for; user and name are always known
    quote: Callable[[Iterable[int]], dict[int, str]] | None = None  # rows by their number; None: lines of the file


@dataclass(frozen=True, slots=True)
class RanOn:
    """Where each job of a table ran, as far as the trace tells; None for what it does not tell of any."""

    types: Labels | None  # what the trace calls its GPUs, with | between several
    places: Labels | None  # its nodes, as a list of Slurm
    nodes: Floats | None  # [J] how many they were; nan: not told


@dataclass(frozen=True, slots=True)
class Tabulated:
    """The jobs of a trace in submit order with their times as recorded, the report on them, and where they ran."""

    jobs: Jobs
    report: TraceReport
    ran: RanOn


@dataclass(frozen=True, slots=True)
class FamilyRule:
    """Which families jobs get: all the only one, jobs alike one of several by a hash, or by what a column says."""

    text: str
    names: tuple[str, ...] = ()
    column: str | None = None
    family_of: Callable[[str], str | None] = lambda _value: None  # by a value of the column; None: not known
    hint: str = ""  # what to do about a value that is not known


def tabulate(source: TraceFile, format_name: str, trace: Trace, options: TraceOptions, rule: FamilyRule) -> Tabulated:
    """The jobs of a trace in submit order, from time 0, and the report on them."""
    rows, id_column = _joined(list(trace.parts))
    total = len(rows) + len(trace.broken)
    if total == 0:
        raise TraceError(f"'{source.path}' has no jobs in it; expected at least one row of {format_name}.")
    bad, aside = _judge(rows, id_column)
    good = np.ones(len(rows), bool)
    dropped, set_aside = dict[str, int](), dict[str, int]()
    culprits: list[tuple[int, str]] = [(line, WRONG_CELLS) for line in trace.broken]
    if trace.broken:
        dropped[WRONG_CELLS] = len(trace.broken)
    for counts, masks in ((set_aside, aside), (dropped, bad)):
        for reason, mask in masks.items():
            hit = mask & good
            if found := int(np.count_nonzero(hit)):
                counts[reason] = found
                good &= ~hit
                if counts is dropped:
                    culprits += [(int(line), reason) for line in rows.line[np.flatnonzero(hit)[:QUOTED]]]
    _check_share(source, trace, total, dropped, culprits, options)
    if not good.any():
        raise TraceError(
            f"'{source.path}': none of its {total:,} rows is a job that ran ({_told(dropped, set_aside)})."
        )
    kept = np.flatnonzero(good)
    submit = rows.submit[kept]
    out_of_order = int(np.count_nonzero(np.diff(submit) < 0))
    if out_of_order:
        kept = kept[np.argsort(submit, kind="stable")]
    kept, start = _asked_for(source, rows.submit, kept, options)
    _check_estimates(source, rows, kept, options)
    rows = _with_column(source, format_name, trace, rows, rule)
    jobs = _table(source, rows, kept, trace, options, rule)
    clock = trace.clock()
    own = rows.family is not None and options.families is None
    release_temporaries(len(kept))
    report = TraceReport(
        file=source.name, format=format_name, sha256=source.sha256, rows=total, kept=len(kept), dropped=dropped,
        set_aside=set_aside, out_of_order=out_of_order, not_asked_for=int(np.count_nonzero(good)) - len(kept),
        unit=trace.unit if trace.unit == "GPU" else f"{trace.unit} = {options.gpus_per_unit:g} GPU",
        families="as in the trace" if own else rule.text, estimates=_estimates_of(rows, kept, options),
        span_s=float(jobs.table["submit"][-1]), start_unix=None if clock is None else clock + start,
        scale_load=options.scale_load, window=options.window, sample=options.sample,
        notes=(*trace.notes, *trace.late_notes()), warnings=(*trace.warnings(), *_no_gpus(jobs)),
    )  # fmt: skip
    ran = RanOn(_of(rows.types, kept), _of(rows.places, kept), None if rows.nodes is None else rows.nodes[kept])
    return Tabulated(jobs, report, ran)


# ---- checking ----------------------------------------------------------------------------------------------------


def _judge(rows: Rows, ids: Any) -> tuple[dict[str, Mask], dict[str, Mask]]:
    """The invalid rows and the rows that are not jobs, by reason."""
    bad = dict(rows.bad)
    with np.errstate(invalid="ignore"):
        bad["submit time missing or no number"] = ~np.isfinite(rows.submit)
        bad["negative submit time"] = rows.submit < 0
        bad["impossible submit time"] = rows.submit > LATEST_S
        bad["duration missing or no number"] = ~np.isfinite(rows.duration)
        bad["negative duration"] = rows.duration < 0
        bad["impossible duration"] = rows.duration > _LONGEST_S
        bad["number of GPUs missing or no number"] = ~np.isfinite(rows.gpus)
        bad["impossible size"] = (rows.gpus < 0) | (rows.gpus > _MOST_GPUS) | (rows.gpus != np.floor(rows.gpus))
        if rows.share is not None:
            bad["impossible size"] |= ~((rows.share >= 1) & (rows.share <= WHOLE_GPU))
            bad["impossible size"] |= (rows.share < WHOLE_GPU) & (rows.gpus != 1)
        for name in _SIZES:
            if name in rows.given:
                bad["impossible size"] |= property_of(Job, name).are_wrong(rows.given[name])
        for column, name, words in (
            (rows.limit, "limit_s", "requested time"),
            (rows.estimate, "estimate", "estimate"),
            (rows.given.get("checkpoint"), "checkpoint", "checkpoint"),
        ):
            if column is not None:
                each = property_of(Job, name)
                bad[f"negative {words}"] = column < each.least
                bad[f"impossible {words}"] = (column > each.most) & ((column < FOREVER) | (name == "estimate"))
        for name, column in rows.given.items():
            if name not in (*_SIZES, "checkpoint"):
                each = property_of(Job, name)
                bad[f"{name} not{each.range_words}"] = each.are_wrong(column)
    if ids is not None:
        bad["id seen before"] = _repeated(ids)
    return bad, dict(rows.aside)


def _repeated(ids: Any) -> Mask:
    """Which ids were in an earlier row; missing ids never repeat."""
    import pyarrow.compute as pc

    again = np.zeros(len(ids), bool)
    if pc.count_distinct(ids, mode="only_valid").as_py() < len(ids) - ids.null_count:
        codes = pc.fill_null(ids.dictionary_encode().combine_chunks().indices, -1).to_numpy(zero_copy_only=False)
        again[:] = True
        again[np.unique(codes, return_index=True)[1]] = False
        again[codes < 0] = False
    return again


def _check_share(
    source: TraceFile,
    trace: Trace,
    total: int,
    dropped: dict[str, int],
    culprits: list[tuple[int, str]],
    options: TraceOptions,
) -> None:
    """Stop if too many rows are invalid; the error quotes the first rows of the most frequent kinds."""
    wrong = sum(dropped.values())
    if wrong <= BAD_SHARE * total or options.skip_bad_rows:
        return
    worst = sorted(culprits, key=lambda culprit: (-dropped[culprit[1]], culprit[0]))[:QUOTED]
    numbers = [line for line, _reason in worst]
    texts = quoted(source, numbers) if trace.quote is None else trace.quote(numbers)
    lines = "; ".join(f"row {line} ({reason}): {texts.get(line, '')!r}" for line, reason in worst)
    aside = " leave out rows that did not run ([set_aside] in the map)," if options.columns else ""
    raise TraceError(
        f"'{source.path}': {wrong:,} of {total:,} rows are bad ({_told(dropped)}), more than {BAD_SHARE:.0%}. "
        f"{lines}. Fix them,{aside} or skip them with --skip-bad-rows."
    )


def _told(*counts: dict[str, int]) -> str:
    """Reasons with their counts, the most frequent first."""
    pairs = [pair for some in counts for pair in some.items()]
    return ", ".join(f"{reason}: {count:,}" for reason, count in sorted(pairs, key=lambda pair: -pair[1]))


# ---- putting together --------------------------------------------------------------------------------------------


def _joined(parts: Sequence[Rows]) -> tuple[Rows, Any]:
    """All parts as one, with labels numbered over all of them; the ids apart."""
    import pyarrow

    if not parts:
        empty = np.zeros(0)
        return Rows(np.zeros(0, np.int64), empty, empty, empty), None
    first, columns = parts[0], dict[str, Any]()
    for name in _NUMBERS:
        if getattr(first, name) is not None:
            columns[name] = np.concatenate([getattr(part, name) for part in parts])
    columns["given"] = {name: np.concatenate([part.given[name] for part in parts]) for name in first.given}
    for name in _TEXTS:
        if getattr(first, name) is not None:
            columns[name] = _joined_labels([getattr(part, name) for part in parts])
    for name in ("bad", "aside"):
        reasons = dict.fromkeys(reason for part in parts for reason in getattr(part, name))
        columns[name] = {
            reason: np.concatenate([getattr(part, name).get(reason, np.zeros(len(part), bool)) for part in parts])
            for reason in reasons
        }
    ids = None if first.id is None else pyarrow.chunked_array([part.id for part in parts])
    return Rows(**columns), ids


def _joined_labels(parts: Sequence[Labels]) -> Labels:
    """Columns of labels one after another, each text once. There may be as many texts as rows, so pyarrow does it."""
    import pyarrow

    texts = [pyarrow.array(part.texts, pyarrow.string()) for part in parts]
    encoded = pyarrow.concat_arrays(texts).dictionary_encode()
    number = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    begin = np.cumsum([0, *(len(some) for some in texts)])
    codes = [number[begin[place] + part.codes] for place, part in enumerate(parts)]
    return Labels(np.concatenate(codes), encoded.dictionary)


def _asked_for(source: TraceFile, submit: Floats, kept: CodeColumn, options: TraceOptions) -> tuple[CodeColumn, float]:
    """The rows in the window and the sample, and when the first of them was submitted."""
    if options.window is not None:
        first, last = float(submit[kept[0]]), float(submit[kept[-1]])
        low, high = window_of(options.window, last - first)
        times = submit[kept] - first
        kept = kept[(times >= low) & ((times < high) | ((high >= last - first) & (times <= high)))]
    if options.sample < 1.0:
        rng = np.random.Generator(np.random.PCG64(SAMPLE_SEED))
        kept = kept[rng.random(len(kept)) < options.sample]
    if not len(kept):
        raise TraceError(f"'{source.path}' has no jobs in this --window and --sample. Choose a larger part.")
    return kept, float(submit[kept[0]])


def window_of(text: str, span_s: float) -> tuple[float, float]:
    """Seconds from the first submission: FROM:TO are shares of the span if neither is above 1, else hours."""
    low, _, high = text.partition(":")
    try:
        start, end = float(low or 0), float(high)
    except ValueError:
        start, end = 0.0, -1.0
    if not 0 <= start < end < FOREVER:
        raise UsageError(f"--window is {text!r}; expected FROM:TO in hours, or fractions of the span as in 0.25:0.5.")
    unit = span_s if end <= 1 else HOUR_S
    return start * unit, end * unit


def check_options(options: TraceOptions) -> None:
    """Refuse options that no trace could fulfil."""
    if not 0 < options.scale_load < FOREVER:
        raise UsageError(f"--scale-load is {options.scale_load:g}; expected a number above 0, as in 1.2.")
    if not 0 < options.sample <= 1:
        raise UsageError(f"--sample is {options.sample:g}; expected a fraction above 0 and at most 1.")
    if options.estimates not in (None, "limit", "oracle"):
        raise UsageError(f"--estimates is {options.estimates!r}; expected user or oracle.")
    if not 0 < options.gpus_per_unit <= _MOST_GPUS:
        raise UsageError(f"--unit is {options.gpus_per_unit:g} GPUs; expected a number above 0, as in processors=1.")
    if options.window is not None:
        window_of(options.window, 1.0)


def _check_estimates(source: TraceFile, rows: Rows, kept: CodeColumn, options: TraceOptions) -> None:
    """Refuse the requested time as an estimate if no job requested one."""
    if options.estimates == "limit" and (rows.limit is None or not np.isfinite(rows.limit[kept]).any()):
        raise UsageError(
            f"'{source.path}' has no requested times, so there are no estimates of users. Pass --estimates oracle."
        )


def _with_column(source: TraceFile, format_name: str, trace: Trace, rows: Rows, rule: FamilyRule) -> Rows:
    """The rows with the column that the rule needs; every trace has `user` and `name`."""
    if rule.column is None or rows.column is not None:
        return rows
    column = {"user": rows.user, "name": rows.name}.get(rule.column)
    if column is not None:
        return replace(rows, column=column)
    known = [*trace.columns, *(name for name in ("user", "name") if getattr(rows, name) and name not in trace.columns)]
    raise UsageError(
        f"--families: '{source.path}' has no column '{rule.column}'.{nearest(rule.column, known)} "
        f"Columns of this {format_name} trace are {', '.join(known) or 'without names'}."
    )


def _estimates_of(rows: Rows, kept: CodeColumn, options: TraceOptions) -> str:
    """Where the estimates come from."""
    if options.estimates != "oracle":
        if rows.estimate is not None and options.estimates is None:
            return "as in the trace"
        if rows.limit is not None and (asked := int(np.count_nonzero(np.isfinite(rows.limit[kept])))):
            return "limit" if asked == len(kept) else f"limit for {asked:,} of {len(kept):,} jobs, oracle for the rest"
    return "oracle"


def _table(
    source: TraceFile, rows: Rows, kept: CodeColumn, trace: Trace, options: TraceOptions, rule: FamilyRule
) -> Jobs:
    """The kept rows as jobs, in this order."""
    count = len(kept)
    gpus = rows.gpus[kept]
    if trace.unit != "GPU":
        gpus = np.where(gpus > 0, np.maximum(1, np.ceil(gpus * options.gpus_per_unit - 1e-9)), 0)
    share = np.full(count, float(WHOLE_GPU)) if rows.share is None else rows.share[kept]
    units = np.where(gpus > 0, gpus * share / WHOLE_GPU, 1.0)
    work = rows.duration[kept] * units
    limit = np.full(count, FOREVER) if rows.limit is None else _or(rows.limit[kept], FOREVER)
    limit = np.where(limit > _LONGEST_S, FOREVER, limit)  # some systems write three centuries for "no limit"
    told = work if rows.estimate is None or options.estimates else _or(rows.estimate[kept], work)
    has_limit = np.isfinite(limit)
    if options.estimates == "limit" or (options.estimates is None and rows.estimate is None):
        told = np.where(has_limit, np.where(has_limit, limit, 0.0) * units, work)
    submit = (rows.submit[kept] - rows.submit[kept[0]]) / options.scale_load
    amounts = {"submit_s": submit, "gpus": gpus, "share": share, "limit_s": limit, "estimate": told}
    amounts |= {name: column[kept] for name, column in rows.given.items()}
    user, users = _numbered(rows.user, kept, "")
    name_codes, names = _numbered(rows.name, kept, "")
    group, group_names = _groups(user, name_codes, names)
    allowed, models = _models(rows.models, kept)
    size_codes, size_texts = _numbered(rows.sizes, kept, "")
    family, families = _families(source, rows, kept, user, group, users, group_names, rule, options)
    labels = {"user": user, "group": group, "allowed": allowed, "family": family, "sizes": size_codes}
    table = job_table(work, amounts, labels)
    return Jobs(table, work, families, users, group_names, models, tuple(sizes_of(text) for text in size_texts))


def _no_gpus(jobs: Jobs) -> tuple[str, ...]:
    """A warning if no job of a trace has a GPU."""
    if (jobs.table["gpus"] > 0).any():
        return ()
    return (
        f"none of its {len(jobs):,} jobs has a GPU. If jobs had GPUs, their number is in a column that is not read: "
        "name it in a map (--columns)",
    )


def _of(labels: Labels | None, kept: CodeColumn) -> Labels | None:
    """The labels of the kept rows; None if they all say nothing."""
    codes, texts = _numbered(labels, kept, "")
    return Labels(codes, texts) if len(texts) > 1 else None


def _or(column: Floats, other: Any) -> Floats:
    """The column with a default where it has no value."""
    return np.where(np.isnan(column), other, column)


def _numbered(labels: Labels | None, kept: CodeColumn, first: str) -> tuple[Any, tuple[str, ...]]:
    """CodeColumn and texts of the kept rows, with `first` as number 0."""
    if labels is None:
        return np.zeros(len(kept), np.int64), (first,)
    import pyarrow
    import pyarrow.compute as pc

    codes = labels.codes[kept]
    used = np.zeros(len(labels.texts), bool)
    used[codes] = True
    used &= ~pc.equal(labels.texts, first).to_numpy(zero_copy_only=False)
    number = np.where(used, np.cumsum(used), 0)
    return number[codes], (first, *labels.texts.filter(pyarrow.array(used)).to_pylist())


def _groups(users: Any, name_codes: CodeColumn, names: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """One number for each user and name, and the name behind it."""
    key = users.astype(np.int64) * len(names) + name_codes
    known, numbers = _distinct(key)
    return numbers, tuple(map(names.__getitem__, (known % len(names)).tolist()))


def _distinct(key: CodeColumn) -> tuple[CodeColumn, CodeColumn]:
    """The distinct numbers in order, and which each row has; by counting where that is less than sorting."""
    if int(key.max(initial=0)) > 16 * len(key) + 1_000_000:
        known, numbers = np.unique(key, return_inverse=True)
        return known, numbers
    present = np.zeros(int(key.max(initial=0)) + 1, bool)
    present[key] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[key]


def _models(labels: Labels | None, kept: CodeColumn) -> tuple[Any, tuple[frozenset[str], ...]]:
    """The sets of allowed models; number 0 is any."""
    codes, texts = _numbered(labels, kept, "")
    sets = [frozenset(word.strip() for word in text.split("|") if word.strip()) for text in texts]
    distinct = list(dict.fromkeys(sets))
    return np.array([distinct.index(one) for one in sets], np.int64)[codes], tuple(distinct)


def _families(
    source: TraceFile, rows: Rows, kept: CodeColumn, user: Any, group: Any, users: tuple[str, ...],
    names: tuple[str, ...], rule: FamilyRule, options: TraceOptions,
) -> tuple[Any, tuple[str, ...]]:  # fmt: skip
    """The family of each job: its own, or by the rule; a hash gives jobs of one user and name the same family."""
    if rule.column is not None and rows.column is not None:
        return _by_column(source, rows.column, kept, rule)
    if rows.family is not None and options.families is None:
        codes, texts = _numbered(rows.family, kept, rule.names[0])
        used = np.unique(codes)  # the rule's family stands first, and may not be needed
        return np.searchsorted(used, codes), tuple(texts[code] for code in used)
    if len(rule.names) == 1:
        return np.zeros(len(kept), np.int64), rule.names
    if len(names) > 1:
        user_of = np.zeros(len(names), np.int64)
        user_of[group] = user
        keys = [f"{users[owner]}\0{name}" for owner, name in zip(user_of, names, strict=True)]
        chosen = np.array([zlib.crc32(key.encode()) % len(rule.names) for key in keys])[group]
    else:  # jobs differ only by their place in the file
        chosen = np.array([zlib.crc32(b"%d" % line) for line in rows.line[kept]]) % len(rule.names)
    return chosen, rule.names


def _by_column(source: TraceFile, column: Labels, kept: CodeColumn, rule: FamilyRule) -> tuple[Any, tuple[str, ...]]:
    """The family of each job by what stands in the column."""
    codes, values = _numbered(column, kept, "")
    counts = np.bincount(codes, minlength=len(values))
    families = [rule.family_of(value) if count else "" for value, count in zip(values, counts, strict=True)]
    unknown = sorted((place for place, family in enumerate(families) if family is None), key=lambda i: -counts[i])
    if unknown:
        shown = ", ".join(f"{values[place][:60]!r} ({counts[place]:,} jobs)" for place in unknown[:QUOTED])
        more = f" and {len(unknown) - QUOTED:,} other values" if len(unknown) > QUOTED else ""
        raise TraceError(
            f"'{source.path}': column '{rule.column}' holds {shown}{more}, for which there is no family. {rule.hint}"
        )
    names = tuple(dict.fromkeys(family for family in families if family))
    return np.array([names.index(family) if family else 0 for family in families], np.int64)[codes], names
