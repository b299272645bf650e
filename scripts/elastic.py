"""What resizing jobs brings on Sia's own lists: the tables of docs/results/elastic.md.

    python scripts/elastic.py --keep out/                       # the six Philly lists, all three columns
    python scripts/elastic.py --lists saturn newtrace --keep out/
    python scripts/elastic.py --policies sia --columns adapted  # one cell

Each list is written as a table of our own, once for each column, with Sia's slowdowns in the work (1.2; CIFAR-10 1.8)
and its restart costs (25 to 250 s), which the first start pays too. Then it runs on `sia64`, as
`adlro simulate -c sia64 -w TABLE -p POLICY` does.

- fixed: the sizes of the list, at its batch sizes;
- resized: any of SIZES, at the batch sizes of the list (families sia-fixed/…);
- adapted: the same with the batch adapted to the GPUs (families sia-adapted/…, goodput).
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import adlro

LISTS: Final = Path(__file__).resolve().parents[2] / "shared" / "traces" / "sia_workloads"
SIZES: Final = "1,2,4,8,12,16"
COLUMNS: Final = ("fixed", "resized", "adapted")
POLICIES: Final = (
    "srtf",
    "plan",
    "gavel-maxmin",
    "gavel-maxsum",
    "adlro-elastic",
    "rank-elastic",
    "plan-elastic",
    "sia",
    "pollux",
    "afs",
    "optimus",
)

RESTART_S: Final = {"deepspeech2": 25, "cifar10": 50, "yolov3": 80, "bert": 120, "imagenet": 250}
"""Seconds of a start in Sia's simulator (siasosp23/artifacts, sia-simulator)."""

SLOWED: Final = {"cifar10": 1.8}
"""By how much Sia's simulator slows its jobs; 1.2 where nothing else is said."""

WORK: Final = {
    "sia-fixed/bert-b384": 4363, "sia-adapted/bert": 4263, "sia-fixed/cifar10-b2048": 1396,
    "sia-fixed/cifar10-b4096": 1767, "sia-adapted/cifar10": 1262, "sia-fixed/deepspeech2-b320": 8976,
    "sia-fixed/deepspeech2-b640": 11283, "sia-adapted/deepspeech2": 7330, "sia-fixed/imagenet-b1600": 189622,
    "sia-fixed/imagenet-b3200": 203596, "sia-adapted/imagenet": 181947, "sia-fixed/yolov3-b64": 18963,
    "sia-adapted/yolov3": 17252,
}  # fmt: skip
"""GPU-seconds of a whole training on one V100, as scripts/sia_sizes.py prints them."""


def written(source: Path, column: str, target: Path) -> Path:
    """The list as a table of our own."""
    with source.open(newline="") as file, target.open("w", newline="") as out:
        names = ("submit_s", "work", "gpus", "family", "name", "checkpoint", "sizes", "start_s", "restart_s")
        table = csv.DictWriter(out, names)
        table.writeheader()
        for row in csv.DictReader(file):
            app = row["application"]
            family = f"sia-adapted/{app}" if column == "adapted" else f"sia-fixed/{app}-b{row['batch_size']}"
            table.writerow(
                {
                    "submit_s": row["time"], "work": WORK[family] * SLOWED.get(app, 1.2), "gpus": row["num_replicas"],
                    "family": family, "name": app, "checkpoint": 0, "sizes": "" if column == "fixed" else SIZES,
                    "start_s": RESTART_S[app], "restart_s": RESTART_S[app],
                }
            )  # fmt: skip
    return target


def ran(source: Path, column: str, policy: str, folder: Path) -> dict[str, Any]:
    """The measures of one run; what is in the folder is not run again."""
    name = f"{source.parent.name}-{source.stem}-{column}"
    kept = folder / f"{name}-{policy}.json"
    if not kept.exists():
        table = written(source, column, folder / f"{name}.csv")
        kept.write_text(json.dumps(adlro.simulate("sia64", str(table), policy=policy).metrics.as_dict()))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def main() -> None:
    """Run the comparisons and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", nargs="+", default=["philly"], choices=["philly", "saturn", "newtrace"])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--columns", nargs="+", default=list(COLUMNS), choices=COLUMNS)
    parser.add_argument("--most", type=int, default=100, help="lists of each mix, at most")
    parser.add_argument("--keep", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for mix in given.lists:
            print(f"\n**{mix}** (mean JCT in hours, p95 JCT, stops of a job)\n")
            print("| policy | " + " | ".join(given.columns) + " |\n|---|" + "--:|" * len(given.columns))
            for policy in given.policies:
                cells = []
                for column in given.columns:
                    files = sorted((LISTS / mix).glob("*.csv"))[: given.most]
                    rows = [ran(file, column, policy, folder) for file in files]
                    jct, late, stops, jobs = (
                        fmean(row[name] for row in rows)
                        for name in ("jct_mean_s", "jct_p95_s", "preemptions", "finished")
                    )
                    cells.append(f"{jct / 3600:.3f} ({late / 3600:.2f}; {stops / jobs:.1f})")
                print(f"| `{policy}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
