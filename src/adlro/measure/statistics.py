"""How sure one can be that policies differ: intervals, paired tests, effect sizes and the paper's regression.

docs/statistics.md says what each number means. SciPy and statsmodels do the mathematics; both are imported where they
are used, because they take long to load and most commands do without.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from adlro.core.errors import UsageError
from adlro.core.tables import Floats
from adlro.measure.metrics import Metrics

LEVEL: Final = 0.05
"""Where no policy differs from the baseline, at most this share of comparisons says of any of them that it does."""

CONFIDENCE: Final = 0.95

RESAMPLES: Final = 4000
RESAMPLING_SEED: Final = 20_000

MOST_RESAMPLED: Final = 200
"""With more seeds than this Student's interval is used: the mean is nearly normal, and resampling takes long."""

CELLS: Final = 1_000_000
"""How many numbers resampling holds at once."""

_ROUNDING: Final = 1e-9
"""Values with a smaller relative difference are equal: otherwise the last bit of a sum would count as a difference."""

FEWEST_OBSERVATIONS: Final = 8
"""A regression on four coefficients and fewer rows than this says nothing."""

EXPLAINED: Final = "completion_time_s"
REGRESSORS: Final = ("utilisation", "queue_length", "load")

Verdict = Literal["different", "no difference shown", "too few seeds"]

Values = Mapping[str, Mapping[str, Sequence[float | None]]]
"""By policy, by measure: a value for each seed. All policies met the same jobs on a seed."""

_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Against:
    """A policy against the baseline by one measure, seed by seed. None: one seed has no spread."""

    difference: float  # mean of policy - baseline
    low: float | None  # its 95 % interval
    high: float | None
    relative: float | None  # difference / mean of the baseline
    wilcoxon_p: float | None
    wilcoxon_p_holm: float | None  # corrected for the number of policies compared
    t_p: float | None
    cliffs_delta: float  # from -1, always below the baseline, to 1, always above
    verdict: Verdict
    relative_low: float | None = None  # the 95 % interval of `relative`; None if a value of the baseline is not above 0
    relative_high: float | None = None

    @property
    def significant(self) -> bool:
        """Whether a difference is shown."""
        return self.verdict == "different"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy came to on one seed, for the regression."""

    completion_time_s: float
    utilisation: float
    queue_length: float
    load: float


@dataclass(frozen=True, slots=True)
class Coefficient:
    """What one more of something adds, everything else being equal, with its 95 % interval."""

    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Regression:
    """Completion time explained by utilisation, queue length and load."""

    observations: int
    r_squared: float
    r_squared_adjusted: float
    coefficients: dict[str, Coefficient]  # "constant" and the regressors that are not left out
    left_out: tuple[str, ...]  # do not vary, or say the same as those before
    fitted: tuple[float, ...]  # by observation
    residuals: tuple[float, ...]


# ---- means -------------------------------------------------------------------------------------------------------


def mean_intervals(values: Values) -> dict[str, dict[str, tuple[float, float] | None]]:
    """By policy, by measure: the 95 % interval of the mean; None where a seed has no value or there is one seed."""
    found: dict[str, dict[str, tuple[float, float] | None]] = {
        policy: dict.fromkeys(measures) for policy, measures in values.items()
    }
    rows = [
        (policy, measure)
        for policy, measures in values.items()
        for measure, each in measures.items()
        if len(each) > 1 and None not in each
    ]
    if rows:
        table = np.array([values[policy][measure] for policy, measure in rows], np.float64)
        for (policy, measure), (low, high) in zip(rows, interval_of_mean(table).tolist(), strict=True):
            found[policy][measure] = (low, high)
    return found


def interval_of_mean(rows: Floats) -> Floats:
    """The 95 % intervals of the means of rows: BCa bootstrap, with the same draws for every row. [R, n] -> [R, 2]"""
    from scipy import stats

    mean, count = rows.mean(axis=1), rows.shape[1]
    found = np.stack([mean, mean], axis=1)
    varied = varies(rows)
    if not varied.any():
        return found
    if count > MOST_RESAMPLED:
        reach = stats.sem(rows[varied], axis=1) * stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
        found[varied] += np.stack([-reach, reach], axis=1)
        return found
    found[varied] = _bootstrapped((rows[varied],), np.mean, rows.size)
    return found


def interval_of_ratio(ours: Floats, theirs: Floats) -> Floats:
    """The 95 % intervals of mean(ours) / mean(theirs) - 1: BCa bootstrap of whole seeds. [R, n], [R, n] -> [R, 2]

    The interval of the difference over the mean of the baseline would be another: it takes that mean for exact, and
    may end below -100 %. NaN for rows in which a value of theirs is not above 0.
    """
    from scipy import stats

    count = ours.shape[1]
    found = np.full((len(ours), 2), np.nan)
    defined = (theirs > 0).all(axis=1)
    ratio = np.where(defined, ours.mean(axis=1) / np.where(defined, theirs.mean(axis=1), 1.0), np.nan)
    found[defined] = ratio[defined, None] - 1.0
    rest = ours - ratio[:, None] * theirs
    varied = defined & (np.ptp(rest, axis=1) > _ROUNDING * np.maximum(np.abs(ours), np.abs(theirs)).max(axis=1))
    if not varied.any():
        return found
    if count > MOST_RESAMPLED:
        reach = stats.sem(rest[varied], axis=1) / theirs[varied].mean(axis=1)
        reach *= stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
        found[varied] += np.stack([-reach, reach], axis=1)
        return found
    found[varied] = _bootstrapped((ours[varied], theirs[varied]), _relative_change, ours.size)
    return found


def _relative_change(ours: Floats, theirs: Floats, axis: int) -> Floats:
    return np.asarray(ours.mean(axis=axis) / theirs.mean(axis=axis) - 1.0)


def _bootstrapped(samples: tuple[Floats, ...], statistic: Callable[..., Any], size: int) -> Floats:
    """BCa intervals of a statistic, for each row; whole seeds are drawn. `size` bounds what is in memory at once."""
    from scipy import stats

    interval = stats.bootstrap(
        samples,
        statistic,
        axis=1,
        paired=len(samples) > 1,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, CELLS // size),
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(RESAMPLING_SEED),
    ).confidence_interval
    return np.stack([interval.low, interval.high], axis=1)


def varies(rows: Floats) -> _Bools:
    """Which rows hold more than one value. [R]"""
    varied: _Bools = np.ptp(rows, axis=1) > _ROUNDING * np.abs(rows).max(axis=1)
    return varied


# ---- differences -------------------------------------------------------------------------------------------------


def against(values: Values, baseline: str) -> dict[str, dict[str, Against | None]]:
    """Every other policy against the baseline, by every measure; None where a seed has no value.

    Holm's correction is over the policies, for each measure apart.
    """
    base = values[baseline]
    found: dict[str, dict[str, Against | None]] = {
        policy: dict.fromkeys(base) for policy in values if policy != baseline
    }
    pairs = [
        (policy, measure)
        for measure in base
        for policy in found
        if base[measure] and None not in base[measure] and None not in values[policy][measure]
    ]
    if not pairs:
        return found
    ours = np.array([values[policy][measure] for policy, measure in pairs], np.float64)
    theirs = np.array([base[measure] for _, measure in pairs], np.float64)
    records = compared(ours, theirs, [measure for _, measure in pairs])
    for (policy, measure), record in zip(pairs, records, strict=True):
        found[policy][measure] = record
    return found


def compared(ours: Floats, theirs: Floats, family: Sequence[str]) -> list[Against]:
    """Row against row; rows of one family are corrected together. [R, n], [R, n], [R] -> [R]"""
    rows, seeds = ours.shape
    difference = ours - theirs
    difference[np.abs(difference) <= _ROUNDING * np.maximum(np.abs(ours), np.abs(theirs))] = 0.0
    interval, by_ranks, by_t = [np.full((rows, 2), np.nan), np.full(rows, np.nan), np.full(rows, np.nan)]
    corrected, ratio = by_ranks, np.full((rows, 2), np.nan)
    if seeds > 1:
        ratio = interval_of_ratio(ours, theirs)
        interval, by_ranks, by_t = interval_of_mean(difference), wilcoxon_p(difference), paired_t_p(difference)
        corrected = holm_within(by_ranks, family)
    found = []
    for row in range(rows):
        base = float(theirs[row].mean())
        mean = float(difference[row].mean())
        found.append(
            Against(
                difference=mean,
                low=known(interval[row, 0]),
                high=known(interval[row, 1]),
                relative=mean / base if base else None,
                wilcoxon_p=known(by_ranks[row]),
                wilcoxon_p_holm=known(corrected[row]),
                t_p=known(by_t[row]),
                cliffs_delta=cliffs_delta(ours[row], theirs[row]),
                verdict=verdict(corrected[row], seeds, family.count(family[row])),
                relative_low=known(ratio[row, 0]),
                relative_high=known(ratio[row, 1]),
            )
        )
    return found


def known(value: float) -> float | None:
    """The number, or None for NaN."""
    return float(value) if math.isfinite(value) else None


def verdict(p_holm: float, seeds: int, policies: int) -> Verdict:
    """The verdict on a difference."""
    if seeds < fewest_seeds(policies):
        return "too few seeds"
    return "different" if p_holm <= LEVEL else "no difference shown"


def fewest_seeds(policies: int) -> int:
    """Seeds below which not even a policy that always wins can be shown to differ, if so many are compared.

    The least p of the signed-rank test is 2 / 2**seeds, and Holm multiplies the least p by the number of policies.
    """
    return math.ceil(1 + math.log2(policies / LEVEL))


def wilcoxon_p(differences: Floats) -> Floats:
    """Wilcoxon's signed-rank p, two-sided, for each row; pairs without a difference are left out. [R, n] -> [R]"""
    from scipy import stats

    p = np.ones(len(differences))
    size = np.sort(np.abs(differences), axis=1)
    plain = (size[:, 0] > 0) & (np.diff(size, axis=1) > 0).all(axis=1)
    # SciPy chooses one method for all rows of a call: one row with ties would cost the others their exact p.
    if plain.any():
        p[plain] = stats.wilcoxon(differences[plain], axis=1).pvalue
    for row in np.flatnonzero(~plain & differences.any(axis=1)):
        p[row] = stats.wilcoxon(differences[row][differences[row] != 0]).pvalue
    return p


def paired_t_p(differences: Floats) -> Floats:
    """Paired t test's p, two-sided, for each row; NaN where all differences are the same. [R, n] -> [R]"""
    from scipy import stats

    p = np.full(len(differences), np.nan)
    varied = varies(differences)
    if varied.any():
        p[varied] = stats.ttest_1samp(differences[varied], 0.0, axis=1).pvalue
    p[~differences.any(axis=1)] = 1.0
    return p


def holm_within(p: Floats, family: Sequence[str]) -> Floats:
    """Holm's correction within each family. [R], [R] -> [R]"""
    corrected = np.empty_like(p)
    members: dict[str, list[int]] = {}
    for row, name in enumerate(family):
        members.setdefault(name, []).append(row)
    for rows in members.values():
        corrected[rows] = holm(p[rows].tolist())
    return corrected


def holm(p: Sequence[float]) -> list[float]:
    """Holm's corrected p values, in the same order.

    As statsmodels' `multipletests`, with which a test compares it; loading that takes as long as a comparison.
    """
    corrected, largest = [1.0] * len(p), 0.0
    for done, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - done) * p[index]))
        corrected[index] = largest
    return corrected


def cliffs_delta(ours: Floats, theirs: Floats) -> float:
    """How much more often a value of ours is above one of theirs than below, over all pairs of values."""
    ordered = np.sort(theirs)
    below = np.searchsorted(ordered, ours, "left").sum()
    not_above = np.searchsorted(ordered, ours, "right").sum()
    pairs = len(ours) * len(theirs)
    return float(below - (pairs - not_above)) / pairs


# ---- regression --------------------------------------------------------------------------------------------------


def regressions(metrics: Mapping[str, Sequence[Metrics]], load: Sequence[float]) -> dict[str, Regression]:
    """The paper's regression for each policy, with a seed as an observation; refuses if they are too few."""
    found = {}
    for name, results in metrics.items():
        seen = [observed(result, offered) for result, offered in zip(results, load, strict=True)]
        found[name] = regress([row for row in seen if row])
    return found


def observed(metrics: Metrics, load: float) -> Observation | None:
    """The observation that a run makes; None if nothing finished."""
    if metrics.jct_mean_s is None or metrics.utilisation is None or not metrics.makespan_s:
        return None
    # By Little's law: the waits of all jobs together, spread over the makespan, are the mean length of the queue.
    waiting = (metrics.wait_mean_s or 0.0) * (metrics.jobs - metrics.refused) / metrics.makespan_s
    return Observation(metrics.jct_mean_s, metrics.utilisation, waiting, load)


def regress(rows: Sequence[Observation]) -> Regression:
    """Least squares of completion time on utilisation, queue length and load, with robust errors (HC3)."""
    if len(rows) < FEWEST_OBSERVATIONS:
        raise UsageError(
            f"the regression has {len(rows)} seed{'s' if len(rows) != 1 else ''} with all values; expected at least "
            f"{FEWEST_OBSERVATIONS}. Pass more with --seeds."
        )
    from statsmodels.regression.linear_model import OLS

    kept, left_out = independent({name: _column(rows, name) for name in REGRESSORS})
    design = np.column_stack([np.ones(len(rows)), *kept.values()])
    fit: Any = OLS(_column(rows, EXPLAINED), design).fit(cov_type="HC3", use_t=True)
    interval = fit.conf_int(alpha=1 - CONFIDENCE)
    coefficients = {
        name: Coefficient(float(fit.params[i]), float(interval[i, 0]), float(interval[i, 1]), float(fit.pvalues[i]))
        for i, name in enumerate(("constant", *kept))
    }
    return Regression(
        observations=len(rows),
        r_squared=float(fit.rsquared),
        r_squared_adjusted=float(fit.rsquared_adj),
        coefficients=coefficients,
        left_out=left_out,
        fitted=tuple(fit.fittedvalues.tolist()),
        residuals=tuple(fit.resid.tolist()),
    )


def _column(rows: Sequence[Observation], name: str) -> Floats:
    """One field of all observations."""
    return np.array([getattr(row, name) for row in rows], np.float64)


def independent(columns: Mapping[str, Floats]) -> tuple[dict[str, Floats], tuple[str, ...]]:
    """The columns that vary and are no combination of those before them; and the names of the others."""
    kept: dict[str, Floats] = {}
    scaled: list[Floats] = []
    for name, values in columns.items():
        if not np.isfinite(values).all() or not varies(values[None])[0]:
            continue
        candidate = (values - values.mean()) / values.std()
        if np.linalg.matrix_rank(np.column_stack([*scaled, candidate]), tol=1e-6) == len(scaled) + 1:
            kept[name] = values
            scaled.append(candidate)
    return kept, tuple(name for name in columns if name not in kept)
