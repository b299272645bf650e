"""Results as tables for people; the same numbers for programs are JSON."""

from typing import Any, Final

from rich.text import Text

from adlro.cli.output import stdout
from adlro.experiment.compare import Comparison
from adlro.experiment.simulation import Simulation
from adlro.experiment.tables import comparison_lines, paper_lines, run_lines
from adlro.measure.hyperscore import PolicyScore, ScoreWeights
from adlro.measure.numbers import MISSING, number
from adlro.measure.statistics import Regression
from adlro.measure.text import plain_table

# ---- compare -----------------------------------------------------------------------------------------------------


def show_comparison(comparison: Comparison) -> None:
    """Print the comparison, and the paper's Table 1 where it is the paper's experiment."""
    for line in (*comparison_lines(comparison), *paper_lines(comparison)):
        stdout().print(line)


def show_scores(scores: dict[str, PolicyScore | None], weights: ScoreWeights) -> None:
    """Print the HyperScore of each policy, best first, and what it is made of."""
    shares = {part: share for part, share in weights.shares().items() if share > 0}
    table = plain_table()
    table.add_column("policy\n", style="cyan", overflow="fold")
    for heading in ("Hyper-\nScore", "V\n", *(f"{_HEADINGS[part]}\n× {share:.2f}" for part, share in shares.items())):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, score in sorted(scores.items(), key=lambda item: -item[1].score if item[1] else 0.0):
        if score is None:
            table.add_row(name, *[MISSING] * (2 + len(shares)))
        else:
            parts = (f"{score.parts[part]:.3f}" for part in shares)
            table.add_row(name, f"{score.score:.2f}", f"{score.value:.3f}", *parts)
    console = stdout()
    console.print()
    console.print(Text("HyperScore", "bold"))
    console.print(table)
    text = "Each measure relative to the best policy on the same seeds; V is their weighted geometric mean."
    if None in scores.values():
        text += f" {MISSING}: left jobs unfinished, or lacks a measure."
    console.print(Text(text, "dim"))


_HEADINGS: Final = {
    "completion_time": "JCT", "throughput": "jobs/h", "efficiency": "speed", "utilisation": "eff.", "fairness": "fair",
    "energy": "energy",
}  # fmt: skip
"""Short headings of the parts of the HyperScore."""


def show_regressions(regressions: dict[str, Regression]) -> None:
    """Print what completion time depends on, by policy."""
    table = plain_table()
    table.add_column("policy\n", style="cyan", overflow="fold")
    for heading in ("R²\n", "utilisation\nmin per 1 %", "queue length\nmin per job", "load\nmin per 1 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, found in regressions.items():
        cells = (slope(found, key, per) for key, per in (("utilisation", 0.01), ("queue_length", 1.0), ("load", 0.01)))
        table.add_row(name, f"{found.r_squared:.3f}", *cells)
    console = stdout()
    console.print()
    console.print(Text("Mean JCT by utilisation, queue length and load, over seeds", "bold"))
    console.print(table)
    console.print(Text(f"Least squares ± 95 % interval (HC3); {MISSING}: does not vary, or is redundant.", "dim"))


def slope(regression: Regression, key: str, per: float) -> str:
    """What this much more of a regressor adds to the mean JCT, in minutes."""
    if key not in regression.coefficients:
        return MISSING
    found = regression.coefficients[key]
    return f"{number(found.value * per, 60)} ± {number((found.high - found.value) * per, 60)}".replace("-", "−")


# ---- simulate ----------------------------------------------------------------------------------------------------


def show_run(simulation: Simulation) -> None:
    """Print all measures of one run, how far it is from the bound, and why jobs were refused."""
    for line in run_lines(simulation.run, simulation.workload, simulation.metrics, simulation.bounds):
        stdout().print(line)


# ---- bench -------------------------------------------------------------------------------------------------------


def show_bench(found: dict[str, Any]) -> None:
    """Print the machine and each measurement next to its floor."""
    console = stdout()
    console.print(Text(", ".join(f"{key} {value}" for key, value in found["machine"].items()), "dim"))
    table = plain_table()
    table.add_column("measurement", style="cyan", no_wrap=True)
    for heading in ("value", "floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for row in found["results"]:
        table.add_row(row["name"], number(row["value"]), number(row.get("floor")), row["unit"])
    console.print(table)
    for row in found.get("skipped", ()):
        console.print(Text(f"{row['name']} was skipped: {row['why']}.", "dim"))
