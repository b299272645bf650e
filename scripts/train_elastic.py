"""Trains the network of `adlro-elastic`: the mean completion time on many lists of jobs, by an evolution strategy.

    python scripts/train_elastic.py prepare --out lists.npz              # the lists and the speeds, once
    python scripts/train_elastic.py train --lists lists.npz --out out/   # NumPy and Numba are enough for this
    python scripts/train_elastic.py write --out out/ --checkpoint adlro-elastic.safetensors --device "16 cores"
    python scripts/train_elastic.py check --lists lists.npz --checkpoint adlro-elastic.safetensors

The jobs are those of scripts/elastic.py. Each generation plays new lists of 160 jobs on `sia64`, drawn by seed:
arrivals at random or from a part of Sia's newtrace lists, models by the mix of `sia-philly` or of newtrace, the batch
adapted or (one in six) as listed; in a quarter of the lists the work of jobs and the cost of restarts vary too. In one
list of twenty each job has one size only, and in one of twenty no job may be stopped.

The score of a network on a list is the logarithm of its mean completion time over that of `rank-elastic`. Each
generation tries pairs of opposite steps from the middle and moves it by their ranks. Every tenth middle is tried on
Sia's seven Saturn lists and on lists of other seeds; the best there is kept. Sia's Philly lists are not read. `check`
plays lists in the simulator, of seeds that neither trained a network nor chose one.
"""

import argparse
import csv
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from adlro.decide.network.sizing_net import JOB_INPUTS, SIZE_INPUTS, SizingWeights
from adlro.learn.worlds.rounds import Kinds, RoundJobs, mean_completion

Array = npt.NDArray[Any]
MIX: Final = {"deepspeech2": 85, "cifar10": 754, "yolov3": 41, "bert": 62, "imagenet": 18}
"""Jobs of each model in the workload `sia-philly`."""
INTERARRIVAL_S: Final = 175.0
JOBS: Final = 160
LONGEST_S: Final = 72 * 3600.0
SINGLE: Final = (1, 2, 4, 8, 16)
"""Sizes of jobs that cannot be resized."""
SETTINGS: Final = ("processes", "minutes", "generations", "pairs", "lists_each", "hidden", "sigma", "rate", "seed")
"""What the provenance of a network tells of the command line."""
CHECKED: Final = 89
"""Lists of other seeds on which a middle is tried."""


def prepare(out: Path) -> None:
    """Write the kinds of jobs with their speeds, and Sia's Saturn and newtrace lists."""
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from scripts.elastic import LISTS, RESTART_S, SIZES, SLOWED, WORK

    from adlro.catalogue.clusters import load_cluster
    from adlro.catalogue.speeds import speed_of
    from adlro.core.plan import plan_cluster
    from adlro.core.records import Job
    from adlro.decide.rules.elastic import Configurations
    from adlro.normalise.pack import pack, pack_jobs

    families = sorted(WORK)
    families += [each for each in families if each.startswith("sia-adapted/") for _ in SINGLE]
    sizes = [SIZES] * len(WORK) + [
        f"{size}" for _ in range((len(families) - len(WORK)) // len(SINGLE)) for size in SINGLE
    ]
    view = pack(
        plan_cluster(load_cluster("sia64")),
        pack_jobs(
            [
                Job(family, 1.0, gpus=int(size.split(",")[0]), sizes=size)
                for family, size in zip(families, sizes, strict=True)
            ]
        ),
        speed_of,
    )
    known = [Configurations(view).of(j) for j in range(len(families))]
    apps = [each.partition("/")[2].partition("-b")[0] for each in families]
    arrays: dict[str, Array] = {
        "families": np.array(families),
        "work": np.array([WORK[each] * SLOWED.get(app, 1.2) for each, app in zip(families, apps, strict=True)]),
        "restart": np.array([float(RESTART_S[app]) for app in apps]),
        "first": np.cumsum([0, *(len(each[0]) for each in known)]),
        "pool": np.concatenate([each[0] for each in known]),
        "size": np.concatenate([each[1] for each in known]),
        "rate": np.concatenate([each[3] for each in known]),
        "capacity": view.pools.gpus.astype(np.float64),
    }
    for mix in ("saturn", "newtrace"):
        for file in sorted((LISTS / mix).glob("*.csv")):
            with file.open(newline="") as lines:
                rows = list(csv.DictReader(lines))
            arrays[f"{mix}-{file.stem}-submit"] = np.array([float(row["time"]) for row in rows])
            arrays[f"{mix}-{file.stem}-app"] = np.array([row["application"] for row in rows])
            arrays[f"{mix}-{file.stem}-batch"] = np.array([row["batch_size"] for row in rows])
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]


class Lists:
    """Draws lists of jobs."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self._of = {name: file[name] for name in file.files}
        of = self._of
        self.kinds = Kinds(of["first"], of["pool"], of["size"], of["rate"], of["capacity"])
        self._families: list[str] = of["families"].tolist()
        self._real = {name: sorted(k[:-7] for k in of if k.startswith(name) and k.endswith("-submit"))
                      for name in ("saturn", "newtrace")}  # fmt: skip
        self._batches = {
            app: [i for i, each in enumerate(self._families) if each.startswith(f"sia-fixed/{app}-b")] for app in MIX
        }

    def real(self, mix: str) -> list[RoundJobs]:
        """The lists of a mix, with the batch adapted."""
        return [
            self._jobs(self._of[f"{name}-submit"], [self._adapted(app) for app in self._of[f"{name}-app"].tolist()])
            for name in self._real[mix]
        ]

    def drawn(self, seed: int) -> RoundJobs:
        """A list drawn at random."""
        random = np.random.default_rng(seed)
        name = self._real["newtrace"][random.integers(len(self._real["newtrace"]))]
        begin = int(random.integers(len(self._of[f"{name}-submit"]) - JOBS))
        if random.random() < 0.5:
            submit = np.cumsum(random.exponential(INTERARRIVAL_S, JOBS))
        else:
            submit = self._of[f"{name}-submit"][begin : begin + JOBS]
            submit = submit - submit[0]
            submit = submit * (INTERARRIVAL_S * JOBS / submit[-1])
        submit = submit * random.uniform(0.8, 1.4)
        if random.random() < 0.7:
            share = np.array(list(MIX.values()), float)
            apps = random.choice(list(MIX), JOBS, p=share / share.sum()).tolist()
        else:
            apps = self._of[f"{name}-app"][begin : begin + JOBS].tolist()
        if random.random() < 5 / 6:
            kind = [self._adapted(app) for app in apps]
        else:
            kind = [int(random.choice(self._batches[app])) for app in apps]
        if random.random() < 0.05:
            single = len(self._families) - len(MIX) * len(SINGLE)
            kind = [
                self._families.index(f"sia-adapted/{app}", single) + int(random.integers(len(SINGLE))) for app in apps
            ]
        jobs = self._jobs(submit, kind)
        if random.random() < 0.05:
            jobs = jobs._replace(stoppable=np.zeros(JOBS, np.bool_))
        if random.random() < 0.75:
            return jobs
        return jobs._replace(
            work=jobs.work * random.lognormal(0.0, 0.5, JOBS), restart=jobs.restart * random.lognormal(0.0, 0.5)
        )

    def is_bound(self, jobs: RoundJobs) -> bool:
        """Whether the jobs may not be stopped, or not be resized."""
        return bool(not jobs.stoppable[0] or jobs.kind[0] >= len(self._families) - len(MIX) * len(SINGLE))

    def records(self, jobs: RoundJobs) -> list[dict[str, Any]]:
        """The jobs of a list as rows of our own table."""
        found = []
        for submit, kind, work, restart in zip(jobs.submit, jobs.kind, jobs.work, jobs.restart, strict=True):
            sizes = sorted(set(self.kinds.size[self.kinds.first[kind] : self.kinds.first[kind + 1]].tolist()))
            found.append(
                {
                    "family": self._families[kind], "work": float(work), "submit_s": float(submit), "gpus": sizes[0],
                    "sizes": ",".join(map(str, sizes)), "checkpoint": 0.0, "start_s": float(restart),
                    "restart_s": float(restart),
                }
            )  # fmt: skip
        return found

    def _adapted(self, app: str) -> int:
        return self._families.index(f"sia-adapted/{app}")

    def _jobs(self, submit: Array, kind: list[int]) -> RoundJobs:
        kinds = np.array(kind, np.int64)
        return RoundJobs(
            submit.astype(np.float64),
            kinds,
            self._of["work"][kinds],
            self._of["restart"][kinds],
            np.ones(len(kinds), np.bool_),
        )


def weights_of(middle: Array, hidden: int) -> SizingWeights:
    """The weights in one long array."""
    inputs, seen = len(JOB_INPUTS) + len(SIZE_INPUTS), len(JOB_INPUTS) * hidden
    return SizingWeights(
        middle[:seen].reshape(-1, hidden).copy(), middle[seen : inputs * hidden].reshape(-1, hidden).copy(),
        middle[inputs * hidden : -hidden].copy(), middle[-hidden:].copy(),
    )  # fmt: skip


LISTS_READ: dict[str, Lists] = {}


def played(task: tuple[str, Array, int, tuple[int, ...]]) -> Array:
    """The mean completion times of one network on the lists of these seeds; a negative seed is a Saturn list."""
    path, middle, hidden, seeds = task
    if path not in LISTS_READ:
        LISTS_READ[path] = Lists(Path(path))
    lists = LISTS_READ[path]
    weights = weights_of(middle, hidden)
    found = [lists.real("saturn")[-1 - seed] if seed < 0 else lists.drawn(seed) for seed in seeds]
    return np.array([mean_completion(each, lists.kinds, weights, LONGEST_S) for each in found])


def train(given: argparse.Namespace) -> None:
    """The evolution strategy; writes training.json, best.npz and log.jsonl into the folder."""
    given.out.mkdir(parents=True, exist_ok=True)
    config = {name: getattr(given, name) for name in SETTINGS}
    (given.out / "training.json").write_text(json.dumps(config | {"start": given.start and str(given.start)}))
    random = np.random.default_rng(given.seed)
    hidden, path, began = given.hidden, str(given.lists), time.monotonic()
    inputs = len(JOB_INPUTS) + len(SIZE_INPUTS)
    rule = np.zeros((inputs + 2) * hidden)
    middle = rule.copy()
    middle[: (inputs + 1) * hidden] = random.normal(0.0, 0.3, (inputs + 1) * hidden)  # the answer stays 0: the rule
    if given.start is not None:
        with np.load(given.start) as file:
            middle = file["middle"]
    checks = tuple(-1 - k for k in range(7)) + tuple(900_000_000 + k for k in range(CHECKED))
    played((path, rule, hidden, checks[:1]))  # compiled once, before other processes need it
    read = LISTS_READ[path]
    bound = np.array([read.is_bound(read.drawn(seed)) for seed in checks[7:]])
    log = (given.out / "log.jsonl").open("w")
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        many: Callable[[list[Any]], list[Array]] = lambda tasks: pool.map(played, tasks, chunksize=1)  # noqa: E731
        parts = [checks[k :: max(1, given.processes)] for k in range(max(1, given.processes))]
        order = np.argsort(np.concatenate([np.arange(len(checks))[k :: len(parts)] for k in range(len(parts))]))

        def checked(array: Array) -> Array:
            return np.concatenate(many([(path, array, hidden, part) for part in parts if part]))[order]

        known, best = checked(rule), np.inf
        speed, spread = np.zeros_like(middle), np.zeros_like(middle)
        generation, taken, average = 0, 0.0, middle.copy()
        while True:
            taken = time.monotonic() - began
            done = max(taken / (60 * given.minutes), generation / given.generations)
            if generation % 10 == 0 or done >= 1.0:
                score = np.log(checked(average) / known)
                saturn, drawn = float(score[:7].mean()), float(score[7:][~bound].mean())
                row = {
                    "generation": generation, "seconds": round(taken), "saturn": saturn, "drawn": drawn,
                    "bound": float(score[7:][bound].mean()),
                }  # fmt: skip
                print(json.dumps(row), flush=True)
                log.write(json.dumps(row) + "\n")
                log.flush()
                if (saturn + drawn) / 2 < best:
                    best = (saturn + drawn) / 2
                    np.savez(given.out / "best.npz", middle=average, hidden=hidden, seed=given.seed, **row)  # type: ignore[arg-type]
            if done >= 1.0:
                break
            seeds = tuple(int(each) for each in random.integers(0, 800_000_000, given.lists_each))
            steps = random.normal(0.0, 1.0, (given.pairs, len(middle)))
            sigma = given.sigma * (1 - 0.6 * done)
            tried = [middle + sign * sigma * step for step in steps for sign in (1.0, -1.0)]
            times = np.log(np.array(many([(path, each, hidden, seeds) for each in (rule, *tried)])))
            # Lists differ in how much a network can change; each counts the same.
            score = ((times[1:] - times[0]) / np.maximum(times[1:].std(axis=0), 0.003)).mean(axis=1)
            place = np.argsort(np.argsort(-score)) / (len(score) - 1) - 0.5
            slope = ((place[0::2] - place[1::2])[:, None] * steps).mean(axis=0)
            generation += 1
            speed += 0.1 * (slope - speed)
            spread += 0.02 * (slope * slope - spread)
            sure = speed / (1 - 0.9**generation) / (np.sqrt(spread / (1 - 0.98**generation)) + 1e-8)
            middle = middle + given.rate * (1 - 0.9 * done) * sure
            average = middle if generation < 5 else average + 0.2 * (middle - average)


def write(out: Path, checkpoint: Path, device: str) -> None:
    """Write the best network as a checkpoint."""
    from adlro.decide.network.sizing_q import ELASTIC
    from adlro.learn.train.checkpoint import write_checkpoint

    with np.load(out / "best.npz") as file:
        weights = weights_of(file["middle"], int(file["hidden"]))
        told = {name: file[name].item() for name in ("seed", "generation", "seconds", "saturn", "drawn", "bound")}
    curve = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    arrays = {name: array.astype(np.float32) for name, array in weights._asdict().items()}
    provenance = {
        "preset": ELASTIC, "training": "scripts/train_elastic.py",
        "config": json.loads((out / "training.json").read_text()), "device": device, **told,
        "generations": curve[-1]["generation"], "seconds_in_all": curve[-1]["seconds"], "curve": curve,
    }  # fmt: skip
    write_checkpoint(checkpoint, arrays, provenance)


def check(path: Path, checkpoint: Path, first: int, count: int) -> None:
    """Print what the simulator finds on the lists of these seeds, for `rank-elastic` and for the network."""
    from pyarrow import Table

    import adlro
    from adlro.decide.checkpoint import read_arrays
    from adlro.decide.network.sizing_q import sizing_weights

    lists = Lists(path)
    weights = sizing_weights(read_arrays(checkpoint)[0], str(checkpoint))
    rule = SizingWeights(*(np.zeros_like(each) for each in weights))

    def simulated(jobs: Table, policy: str) -> float:
        found = adlro.simulate("sia64", jobs, policy=policy).metrics.as_dict()["jct_mean_s"]
        assert found is not None
        return found / 3600

    names = ("seed", "jobs are bound", "rank-elastic, h", "network, h", "difference", "in the world of rounds")
    print("| " + " | ".join(names) + " |\n|--:|---|--:|--:|--:|--:|")
    ratios: dict[str, list[float]] = {"": [], "yes": []}
    for seed in range(first, first + count):
        drawn = lists.drawn(seed)
        jobs = Table.from_pylist(lists.records(drawn))
        stops = "" if drawn.stoppable[0] else "+stops(0)"
        rank, found = simulated(jobs, f"rank-elastic{stops}"), simulated(jobs, f"{checkpoint}{stops}")
        known, learnt = (mean_completion(drawn, lists.kinds, each, LONGEST_S) for each in (rule, weights))
        bound = "yes" if lists.is_bound(drawn) else ""
        ratios[bound].append(found / rank)
        cells = (
            f"{seed}",
            bound,
            f"{rank:.3f}",
            f"{found:.3f}",
            f"{found / rank - 1:+.1%}",
            f"{learnt / known - 1:+.1%}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)
    for bound, each in ratios.items():
        mean = np.exp(np.log(each).mean()) - 1 if each else 0.0
        print(
            f"jobs are bound: {bound or 'no'}; {mean:+.2%}; better on {sum(k < 1 for k in each)} of {len(each)} lists"
        )


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "train", "write", "check"])
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--lists", type=Path, default=Path("lists.npz"))
    parser.add_argument("--checkpoint", type=Path, default=Path("adlro-elastic.safetensors"))
    parser.add_argument("--first", type=int, default=850_000_000, help="the first seed of a check")
    parser.add_argument("--count", type=int, default=12, help="lists of a check")
    parser.add_argument("--device", default="", help="the machine of the training, in words, for the provenance")
    parser.add_argument("--start", type=Path, default=None, help="best.npz of an earlier training, to begin with")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--generations", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--lists-each", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--sigma", type=float, default=0.06)
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.what == "prepare":
        prepare(given.out)
    elif given.what == "train":
        train(given)
    elif given.what == "check":
        check(given.lists, given.checkpoint, given.first, given.count)
    else:
        write(given.out, given.checkpoint, given.device)


if __name__ == "__main__":
    main()
