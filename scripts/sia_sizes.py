"""Speeds of Sia's jobs by number of GPUs: writes catalogue/throughputs/sia-fixed.csv and sia-adapted.csv.

    python scripts/sia_sizes.py ../shared/throughputs/sia

The folder has the tables of Sia's simulator (siasosp23/artifacts, sia-simulator/traces). A job's throughput on some
GPUs follows from its global batch B: every GPU computes its part of it in one or more steps, of which only the last
synchronises. Step times between two measured local batches are interpolated; below the smallest the smallest counts.

- fixed: B is the batch of the list. Samples per second.
- adapted: in each epoch B is the measured batch with the most progress per second. An iteration at batch B makes the
  progress (difference of `progress` over that of `iteration`) of that epoch of validation-B.csv, in iterations at the
  smallest batch: that is Pollux' statistical efficiency, as its authors measured it. The figure is the progress of the
  whole training over its time, so it is exact for a job that keeps its place.

It also prints the work of a whole training: its seconds on one V100.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Final

OUT: Final = Path(__file__).resolve().parents[1] / "src" / "adlro" / "catalogue" / "throughputs"
REFERENCE_MODEL: Final = "v100-sxm2-16gb"
MACHINES: Final = {
    "t4": ("aws", 4), REFERENCE_MODEL: ("azure", 8), "a100-sxm4-40gb": ("dgx-ext", 8), "rtx-2080-ti": ("rtx", 8),
    "quadro-rtx-6000": ("quad", 4),
}  # fmt: skip
"""By GPU model, the suffix of its files and the GPUs of a node."""

BATCHES: Final = {
    "bert": (384,), "cifar10": (2048, 4096), "deepspeech2": (320, 640), "imagenet": (1600, 3200), "yolov3": (64,),
}  # fmt: skip
"""The families of Sia's lists, with the batch sizes there."""

GPUS: Final = (*range(1, 17), 20, 24)
MOST_STEPS: Final = 64

Steps = dict[float, tuple[float, float]]
"""By local batch, the seconds of a step and those of them that synchronise."""


def rows_of(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def measured_steps(folder: Path, machine: str) -> dict[tuple[int, int], Steps]:
    """By number of nodes and GPUs, the step times: means over the placements there."""
    found: dict[tuple[int, int], dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(folder / f"placements-{machine}.csv"):
        digits = row["placement"]
        here = found[len(digits), sum(map(int, digits))]
        here[float(row["local_bsz"])].append((float(row["step_time"]), float(row["sync_time"])))
    placed = set(found)
    for row in rows_of(folder / f"scalability-{machine}.csv"):
        where = int(row["num_nodes"]), int(row["num_replicas"])
        if where not in placed:
            found[where][float(row["local_bsz"])].append((float(row["step_time"]), float(row["sync_time"])))
    return {
        where: {batch: (fmean(s for s, _ in times), fmean(y for _, y in times)) for batch, times in steps.items()}
        for where, steps in found.items()
    }


def step_at(steps: Steps, batch: float) -> tuple[float, float] | None:
    """Seconds of a step and of its synchronisation with this local batch; None if it is above all measured ones."""
    known = sorted(steps)
    if batch > known[-1]:
        return None
    if batch <= known[0]:
        return steps[known[0]]
    high = next(size for size in known if size >= batch)
    low = max(size for size in known if size < batch)
    part = (batch - low) / (high - low)
    one, two = (steps[low][i] + part * (steps[high][i] - steps[low][i]) for i in (0, 1))
    return one, two


def iteration_s(steps: Steps, batch: float, gpus: int) -> float:
    """Seconds of an iteration with this global batch, with as many steps as are fastest."""
    best = float("inf")
    for count in range(1, MOST_STEPS + 1):
        at = step_at(steps, batch / gpus / count)
        if at is not None:
            best = min(best, (count - 1) * (at[0] - at[1]) + at[0])
    return best


def epochs_of(folder: Path) -> dict[int, list[tuple[float, float]]]:
    """By batch size, the progress and the iterations of each epoch."""
    found = {}
    for file in folder.glob("validation-*.csv"):
        rows = [(0.0, 0.0)] + [(float(row["progress"]), float(row["iteration"])) for row in rows_of(file)]
        found[int(file.stem.split("-")[1])] = [
            (after[0] - before[0], after[1] - before[1]) for before, after in pairwise(rows)
        ]
    return found


def training_s(steps: Steps, gpus: int, epochs: Mapping[int, list[tuple[float, float]]]) -> float:
    """Seconds of a whole training if the batch is the best one in every epoch."""
    smallest = min(epochs)
    seconds = {batch: iteration_s(steps, batch, gpus) for batch in epochs}
    total = 0.0
    for epoch, (progress, _) in enumerate(epochs[smallest]):
        rates = [
            epochs[batch][epoch][0] / max(epochs[batch][epoch][1], 1e-9) / seconds[batch]
            for batch in epochs
            if epoch < len(epochs[batch]) and seconds[batch] < float("inf")
        ]
        total += progress / max(rates)
    return total


def main() -> None:
    """Write both tables."""
    source = Path(sys.argv[1])
    fixed, adapted = list[tuple[str, str, int, int, float]](), list[tuple[str, str, int, int, float]]()
    for app, batches in BATCHES.items():
        epochs = epochs_of(source / app)
        progress = sum(one for one, _ in epochs[min(epochs)])
        for model, (machine, on_a_node) in MACHINES.items():
            steps = measured_steps(source / app, machine)
            for gpus in GPUS:
                nodes = -(-gpus // on_a_node)
                here = steps.get((nodes, gpus))
                if here is None:
                    continue
                for batch in batches:
                    seconds = iteration_s(here, batch, gpus)
                    fixed.append((f"sia-fixed/{app}-b{batch}", model, gpus, int(nodes > 1), batch / seconds))
                    if (model, gpus) == (REFERENCE_MODEL, 1):
                        iterations = sum(count for _, count in epochs[batch])
                        print(f'"sia-fixed/{app}-b{batch}": {iterations * seconds:.0f},')
                whole = training_s(here, gpus, epochs)
                adapted.append((f"sia-adapted/{app}", model, gpus, int(nodes > 1), progress / whole))
                if (model, gpus) == (REFERENCE_MODEL, 1):
                    print(f'"sia-adapted/{app}": {whole:.0f},')
    about = (
        "# Source: Sia (Jayaram Subramanya et al., SOSP 2023), siasosp23/artifacts (AdaptDL lineage, Apache-2.0),\n"
        "# sia-simulator/traces/MODEL/{placements,scalability,validation}-*.csv, by scripts/sia_sizes.py.\n"
        "# across: 0 all GPUs in one node, 1 over the fewest nodes of the machine that was measured.\n"
    )
    for name, first, rows in (
        ("sia-fixed", "# Training samples per second at a fixed global batch (-bN), by number of GPUs.\n", fixed),
        (
            "sia-adapted",
            "# Goodput: progress per second with the best batch in every epoch, by number of GPUs.\n",
            adapted,
        ),
    ):
        lines = [",".join((*map(str, row[:4]), f"{row[4]:.6g}")) for row in sorted(rows)]
        (OUT / f"{name}.csv").write_text(
            first + about + "family,gpu,gpus,across,per_second\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
