"""Reports: the files of a comparison for people, and its figures one by one (docs/report.md)."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median_high
from typing import Any, Final

from adlro.core.errors import AdlroError, UsageError
from adlro.core.toml import nearest
from adlro.experiment.compare import Comparison, over_seeds
from adlro.experiment.frames import need
from adlro.experiment.instance import run_one
from adlro.experiment.scenario import Recorded
from adlro.measure.detail import DETAIL_FORMAT, look_closely, pooled, read_detail, write_detail
from adlro.measure.drawing import WIDE, Figure, png, svg
from adlro.measure.json_text import json_text, without_nan
from adlro.measure.plots import FIGURE_NAMES, figures
from adlro.measure.plots_policies import differences
from adlro.measure.report import build_page
from adlro.measure.statistics import FEWEST_OBSERVATIONS, observed, regress

_PAGE: Final = "report.html"
RESULT: Final = "result.json"
DETAIL: Final = "detail.json.gz"
_FIGURES: Final = "figures"

_LEAST_S: Final = 1e-3
"""Mean JCTs closer than this are the same."""

AGAIN: Final = "Make a report with `adlro compare … --report DIR`."


def read_result(file: Path) -> dict[str, Any]:
    """A result of `adlro compare --json`."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read '{file}': {error.strerror}. {AGAIN}") from None
    except ValueError:
        raise AdlroError(f"'{file}' is not JSON; expected what `adlro compare --json` prints. {AGAIN}") from None
    wanted = {"policies", "seeds", "baseline", "command", "settings", "versions"}
    missing = sorted(wanted - set(found)) if isinstance(found, dict) else sorted(wanted)
    if missing:
        raise AdlroError(f"'{file}' has no '{missing[0]}'; expected what `adlro compare --json` prints. {AGAIN}")
    return found


def refuse_no_folder(folder: Path, option: str) -> None:
    """Refuse a path that is something else than a folder, or that has none above it."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{option}: '{folder}' is a file; expected a folder, which may not exist yet.")
    if not folder.absolute().parent.is_dir():
        raise UsageError(
            f"{option}: '{folder.name}' cannot be created; the folder '{folder.absolute().parent}' does not exist."
        )


def check_report(folder: Path, policy: str | None, names: Sequence[str], option: str) -> None:
    """Refuse a report that cannot be written, before anything is computed; `option` is what the user wrote."""
    refuse_no_folder(folder, option)
    if policy is not None and policy not in names:
        raise UsageError(
            f"{option}-policy '{policy}' is not among the policies compared.{nearest(policy, names)} "
            f"The policies compared are {', '.join(names)}."
        )


def write_report(
    comparison: Comparison,
    folder: Path,
    policy: str | None,
    result: Mapping[str, Any],
    on_progress: Callable[[str], None] = lambda _what: None,
) -> Path:
    """Play two runs again, and write the report of a comparison whose values are `result`. Returns the page."""
    detail = detail_of(comparison, policy)
    on_progress("Drawing figures")
    return write_files(folder, json_text(result) + "\n", detail)


def rebuild_report(result: Path, out: Path | None = None) -> Path:
    """Build a report again from the folder of another one, or from its result.json; the page that was written."""
    file = result / RESULT if result.is_dir() else result
    folder = out or file.parent
    refuse_no_folder(folder, "--out")
    found = read_result(file)
    detail = read_detail(file.parent / DETAIL)
    if detail.get("policies") != list(found["policies"]):
        raise AdlroError(f"'{file.parent / DETAIL}' does not belong to '{file}'. {AGAIN}")
    return write_files(folder, file.read_text(encoding="utf-8"), detail)


def figure_of(comparison: Comparison, name: str) -> Figure:
    """One figure of the report; only `differences` needs no run to be played again."""
    need("matplotlib", "plot()")
    if name not in FIGURE_NAMES:
        raise UsageError(
            f"there is no figure '{name}'.{nearest(name, FIGURE_NAMES)} Figures are {', '.join(FIGURE_NAMES)}."
        )
    result = json.loads(json_text(comparison.as_dict()))
    if name == "differences":
        found = [differences(result)]
    else:
        found = [each for each in figures(result, without_nan(detail_of(comparison, None))) if each.name == name]
    if not found or found[0] is None:
        raise UsageError(
            f"the figure '{name}' has nothing to show of this comparison. Compare several policies, on several "
            f"{comparison.over}s."
        )
    return found[0]


def detail_of(comparison: Comparison, wanted: str | None) -> dict[str, Any]:
    """What the figures of a comparison need, ready for JSON."""
    times = comparison.times
    if not times:
        raise UsageError("this comparison kept no completion times. Compare again with keep_times=True.")
    chosen = wanted or best_policy(comparison)
    seed = typical_seed(comparison, chosen)
    by_name = {policy.name: policy for policy in comparison.policies}
    shown = dict.fromkeys((comparison.baseline, chosen))
    closely = look_closely([run_one(comparison.scenario, by_name[name], seed) for name in shown])
    found, missing = regressed(comparison)
    return {
        "format": DETAIL_FORMAT,
        "policies": list(comparison.metrics),
        "shown": {
            "seed": seed,
            "baseline": comparison.baseline,
            "policy": chosen,
            "why": _why(comparison, chosen, seed, wanted is not None),
        },
        "jct": {name: pooled([times[name, each] for each in comparison.seeds]) for name in comparison.metrics},
        **closely,
        "regression": found,
        "no_regression": missing,
    }


def best_policy(comparison: Comparison) -> str:
    """The other policy with the best mean JCT, of those that finish all jobs if there are any."""

    def place(name: str) -> tuple[bool, bool, float]:
        mean = over_seeds([metrics.jct_mean_s for metrics in comparison.metrics[name]]).value
        return mean is None, any(metrics.unfinished for metrics in comparison.metrics[name]), mean or 0.0

    others = [name for name in comparison.metrics if name != comparison.baseline]
    return min(others, key=place, default=comparison.baseline)


def typical_seed(comparison: Comparison, chosen: str) -> int:
    """The seed with the median difference between both policies, of those on which they differ at all if there are any.

    Of two in the middle it is the one less in favour of the chosen policy. So it never flatters, and there is something
    to see.
    """
    ours, theirs = comparison.metrics[chosen], comparison.metrics[comparison.baseline]
    differences = {
        seed: ours[place].jct_mean_s - theirs[place].jct_mean_s  # type: ignore[operator]
        for place, seed in enumerate(comparison.seeds)
        if ours[place].jct_mean_s is not None and theirs[place].jct_mean_s is not None
    }
    if not differences:
        return comparison.seeds[0]
    differences = {seed: each for seed, each in differences.items() if abs(each) > _LEAST_S} or differences
    middle = median_high(differences.values())
    return next(seed for seed, difference in differences.items() if difference == middle)


def _why(comparison: Comparison, chosen: str, seed: int, asked_for: bool) -> str:
    """Which runs are shown closely, and why these."""
    word = "window" if comparison.scenario.windows else "seed"
    reason = "as asked for" if asked_for else "the best mean JCT of the others"
    both = (
        comparison.baseline
        if chosen == comparison.baseline
        else f"{comparison.baseline} (baseline) and {chosen} ({reason})"
    )
    if len(comparison.seeds) == 1:
        return f"Figures of single runs show {both} on {word} {seed}, the only one."
    if chosen == comparison.baseline:
        return f"Figures of single runs show {both} on {word} {seed}."
    return (
        f"Figures of single runs show {both} on {word} {seed}: of all {word}s on which they differ the one with the "
        f"median difference in mean JCT (of two in the middle, the one less in favour of {chosen})."
    )


def regressed(comparison: Comparison) -> tuple[dict[str, Any], str]:
    """The regression of each policy that has one; and if none has, why."""
    found: dict[str, Any] = {}
    for name, results in comparison.metrics.items():
        seen = [observed(metrics, load) for metrics, load in zip(results, comparison.load, strict=True)]
        rows = [row for row in seen if row]
        if len(rows) >= FEWEST_OBSERVATIONS:
            found[name] = asdict(regress(rows))
    there = len(comparison.seeds)
    word = "window" if isinstance(comparison.scenario.workload, Recorded) else "seed"
    return found, (
        f"No regression: it needs at least {FEWEST_OBSERVATIONS} runs of a policy in which jobs finished, and there "
        f"{'is' if there == 1 else 'are'} {there}. Pass more with --{word}s."
    )


def write_files(folder: Path, result_text: str, detail: Mapping[str, Any]) -> Path:
    """Write the page, its data and its figures; other files in the folder stay as they are. Returns the page."""
    result = json.loads(result_text)
    detail = without_nan(detail)
    page = build_page(result, detail)
    drawn = figures(result, detail)
    (folder / _FIGURES).mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(result_text, encoding="utf-8")
    write_detail(detail, folder / DETAIL)
    for name in {*FIGURE_NAMES} - {figure.name for figure in drawn}:  # of an earlier report in this folder
        for suffix in (".svg", ".png"):
            (folder / _FIGURES / f"{name}{suffix}").unlink(missing_ok=True)
    for figure in drawn:
        (folder / _FIGURES / f"{figure.name}.svg").write_text(svg(figure, WIDE), encoding="utf-8")
        (folder / _FIGURES / f"{figure.name}.png").write_bytes(png(figure, WIDE))
    (folder / _PAGE).write_text(page, encoding="utf-8")
    return folder / _PAGE
