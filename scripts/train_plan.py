"""Trains the network of `adlro-plan`, which corrects the numbers of `plan` for each job, by an evolution strategy.

    python scripts/train_plan.py prepare --lists lists.xz               # the lists of jobs, once (10 MB)
    python scripts/train_plan.py train --lists lists.xz --out one --by-rank --models all --minutes 9
    python scripts/train_plan.py train --lists lists.xz --out two --start one/last.npz --minutes 9.2
    python scripts/train_plan.py write --out two --checkpoint adlro-plan.safetensors --device "16 cores"

`train` needs NumPy, Numba and SciPy only. A list is jobs on a cluster, and what a restart costs them there:

- drawn (80 % of 1,100): the random clusters and workloads on which networks are trained, 8 to 160 GPUs and 120 to 360
  jobs;
- paper (20 %): the workload `paper` on `paper16`, 200 to 700 jobs, seeds drawn from 0 to 2³¹;
- traced (348): parts of the traces Theta and Lublin on clusters of one and of several models.

Loads are 0.55 to 1.2 of what the cluster could do at best, and 0.7 to 1.1 for traces. Estimates are exact in 70 % of
the lists; in the others they have a log-normal error, sigma 0 to 0.8. A restart costs 30 s in half of them, else 5 to
1,800 s. Every fifth list is only used to judge.

The score of a network on a list is the logarithm of its mean completion time over that of `plan`, plus a hundredth of
the logarithm of its p99 of waits over that of `srtf`, if that is above 0. Each generation tries pairs of opposite steps
from the middle. Each pair has lists of its own, and the middle moves by the steps, weighted by what they gained. With
`--by-rank` all pairs have the same lists, and the steps are weighted by their ranks.
"""

import argparse
import json
import lzma
import multiprocessing
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.copying import copied
from adlro.core.driver import Driver, new_truth
from adlro.core.policy import Policy
from adlro.core.records import Cluster
from adlro.core.tables import DONE, FOREVER, REFUSED, STARTED, STOPPED, View
from adlro.decide.rules.corrections import INPUTS, OUTPUTS, Corrector, no_corrections
from adlro.decide.rules.preemptive import srtf
from adlro.learn.worlds.planning import play_plan

Array = npt.NDArray[Any]
Random = np.random.Generator
HIDDEN: Final = 12
SIZE: Final = (len(INPUTS) + OUTPUTS) * HIDDEN + 1
KINDS: Final = ("paper", "drawn", "traced")
SHARES: Final = {"all": (0.2, 0.45, 0.35), "several": (0.35, 0.4, 0.25), "one": (0.0, 0.5, 0.5)}
"""Shares of the three kinds among the lists of a generation, by the clusters that are used."""
DRAWN: Final = 1100
FIRST_SEED: Final = 10_000
JUDGED: Final = 5
"""Every so-manieth list is only used to judge."""
FOR_WAITS: Final = 0.01
EVENTS: Final = 60
"""Room for so many events of each job."""
SETTINGS: Final = ("minutes", "models", "by_rank", "pairs", "lists_each", "sigma", "rate", "seed", "start")


class JobList(NamedTuple):
    """Jobs on a cluster, their true work, and what a restart costs."""

    view: View
    work: Array
    restart_s: float


class Played(NamedTuple):
    """What came of a run: the mean completion time, the p99 of waits, and the most stops of a job."""

    mean_s: float
    late_s: float
    most_stops: int


# ---- the lists of jobs -------------------------------------------------------------------------------------------


def finished(view: View, work: Array, random: Random) -> JobList:
    """The list with errors of its estimates and the cost of a restart drawn."""
    sigma = float(random.uniform(0, 0.8)) if random.random() < 0.3 else 0.0
    view.jobs.estimate[:] = work * np.exp(sigma * random.standard_normal(len(work)))
    view.jobs.stoppable[:] = 1
    dear = float(np.exp(random.uniform(np.log(5.0), np.log(1800.0))))
    return JobList(view, work, 30.0 if random.random() < 0.5 else dear)


def drawn(seed: int) -> JobList:
    """A list drawn at random: one in five is of `paper16`."""
    from adlro.catalogue.clusters import load_cluster
    from adlro.catalogue.speeds import speed_of
    from adlro.core.plan import plan_cluster
    from adlro.experiment.scenario import find_workload
    from adlro.ingest.synthetic import generate
    from adlro.learn.worlds.draw import Range, capacity_load, random_cluster, random_workload, wrong_by
    from adlro.normalise.pack import pack

    random = np.random.default_rng(seed)
    is_paper = random.random() < 0.2
    count = int(random.integers(120, 360))
    if is_paper:
        plan, workload = plan_cluster(load_cluster("paper16")), find_workload("paper")
        count = int(random.integers(200, 700))
    else:
        within = Range(gpus=(8, 160), one_model=0.35, giants=0.25)
        if random.random() < 0.3:
            within = Range((16, 160), one_model=0.6, gangs=(1, 2, 3, 4, 5, 8, 10, 16, 24, 32, 48, 64), giants=0.25)
        plan = plan_cluster(random_cluster(random, within))
        workload = random_workload(random, plan, within)
    jobs = generate(workload, int(random.integers(2**31)), count)
    view = pack(plan, jobs, speed_of if is_paper else wrong_by(random, within.speed_error))
    if np.count_nonzero(view.runs.state != REFUSED) < 0.9 * count:
        return drawn(seed + 1_000_003)
    load = random.uniform(0.55, 1.2)
    submit = view.jobs.submit - view.jobs.submit.min()
    if random.random() < 0.3:  # bursts
        gaps = np.diff(submit, prepend=0.0)
        gaps[random.random(len(gaps)) < 0.75] *= 0.05
        submit = np.cumsum(gaps)
    view.jobs.submit[:] = submit * (capacity_load(view, jobs.work) / load / max(submit.max(), 1.0))
    return finished(view, jobs.work, random)


def one_model(nodes: int, gpus: int) -> Cluster:
    """A cluster of one GPU model."""
    from adlro.catalogue.gpus import gpu_models
    from adlro.core.records import Gpus, Link, Node

    name = "v100-sxm2-16gb"
    node = (64.0 * gpus, 512.0 * gpus, (Gpus(name, gpus),), Link("nvlink", 300.0))
    members = tuple(Node(f"n{i}", *node) for i in range(nodes))
    return Cluster("one", "of one GPU model", members, Link("infiniband-hdr", 25.0), {name: gpu_models()[name]})


def traced(folder: Path) -> list[JobList]:
    """Parts of traces that no comparison uses, on clusters of one model and on mixed ones."""
    from adlro.core.errors import AdlroError
    from adlro.experiment.instance import draw
    from adlro.experiment.scenario import load_scenario
    from adlro.ingest.traces.tabulate import TraceOptions
    from adlro.learn.worlds.draw import Range, random_cluster

    random = np.random.default_rng(77)
    theta, lublin = folder / "theta_2022" / "theta_2022.swf.xz", folder / "lublin_256" / "lublin_256.swf.xz"
    # a trace, a cluster, GPUs for a node or processor, families, number of parts, how many of them are used
    rows: list[tuple[Path, Cluster, float, str | None, int, int]] = [
        (theta, one_model(36, 1), 1 / 128, None, 40, 14), (theta, one_model(10, 4), 1 / 128, None, 40, 14),
        (theta, one_model(5, 8), 1 / 128, None, 40, 10), (lublin, one_model(128, 1), 0.5, None, 24, 12),
        (lublin, one_model(32, 4), 0.5, None, 24, 12), (lublin, one_model(16, 4), 0.25, None, 24, 12),
    ]  # fmt: skip
    for k in range(10):
        cluster = random_cluster(random, Range(gpus=(32, 128), models=(2, 5), one_model=0.0))
        families = "hash:gavel" if k % 3 else "hash:sia"
        rows.append(
            (theta, cluster, 1 / 128, families, 40, 10) if k % 2 else (lublin, cluster, 0.125, families, 20, 10)
        )
    found: list[JobList] = []
    for trace, cluster, unit, families, windows, used in rows:
        for load in random.choice((0.7, 0.8, 0.9, 1.0, 1.1), 2, replace=False):
            options = TraceOptions(gpus_per_unit=unit, families=families)
            try:
                scenario = load_scenario(
                    cluster, str(trace), estimates="oracle", trace=options, windows=windows, load=float(load)
                )
            except AdlroError as error:
                print(f"left out: {error}")
                continue
            for window in random.choice(windows, min(used, windows), replace=False):
                instance = draw(scenario, int(window))
                jobs = len(instance.jobs.work)
                if jobs >= 100 and np.count_nonzero(instance.view.runs.state != REFUSED) >= 0.8 * jobs:
                    view = instance.view._replace(jobs=instance.view.jobs.copy())
                    found.append(finished(view, instance.jobs.work.copy(), random))
    return found


def prepare(given: argparse.Namespace) -> None:
    """Write the lists, in a random order."""
    found = [(each, "traced") for each in traced(given.traces)]
    for seed in range(FIRST_SEED, FIRST_SEED + DRAWN):
        found.append((drawn(seed), "paper" if np.random.default_rng(seed).random() < 0.2 else "drawn"))
    order = np.random.default_rng(5).permutation(len(found))
    text = pickle.dumps(([found[i][0] for i in order], [found[i][1] for i in order]))
    given.lists.write_bytes(lzma.compress(text, preset=6))


# ---- playing them ------------------------------------------------------------------------------------------------


def corrector_of(middle: Array) -> Corrector:
    """The weights in one long array."""
    first, second = len(INPUTS) * HIDDEN, (len(INPUTS) + OUTPUTS) * HIDDEN
    return Corrector(
        middle[:first].reshape(-1, HIDDEN).copy(), middle[first:second].reshape(HIDDEN, -1).copy(),
        float(np.exp(middle[second])),
    )  # fmt: skip


def play(each: JobList, corrector: Corrector | None) -> Played:
    """Play a list to its end with corrections; None: with `srtf`."""
    view = copied(each.view)
    view.clock[0].restart, view.clock[0].wake = each.restart_s, FOREVER
    truth = new_truth(view, each.work, EVENTS * len(each.work) + 2000, True)
    if corrector is None:
        driver = Driver(view, truth, Policy("srtf", "", choose=srtf, preemptive=True))
        driver.run()
        truth = driver.truth
    elif not play_plan(view, truth, corrector):
        return Played(FOREVER, FOREVER, 0)
    events = truth.events[: truth.progress[0].events]
    done, started, stopped = (events[events.what == what] for what in (DONE, STARTED, STOPPED))
    first = np.full(len(each.work), np.inf)
    np.minimum.at(first, started.job, started.time)
    waits = (first - view.jobs.submit)[np.isfinite(first)]
    mean = float((done.time - view.jobs.submit[done.job]).mean()) if len(done) else FOREVER
    return Played(mean, float(np.percentile(waits, 99)), int(np.bincount(stopped.job, minlength=1).max()))


LISTS: list[JobList] = []
KNOWN: list[tuple[Played, Played]] = []
"""What `plan` and `srtf` reach on each list."""


def known_of(k: int) -> tuple[Played, Played]:
    """What `plan` and `srtf` reach on a list."""
    return play(LISTS[k], no_corrections()), play(LISTS[k], None)


def scored(task: tuple[Array, Array]) -> Array:
    """For each list: the logarithm of the mean over that of `plan`, that of the waits over `srtf`'s, and most stops."""
    corrector = corrector_of(task[0])
    rows = []
    for k in task[1]:
        plan, least = KNOWN[k]
        found = play(LISTS[k], corrector)
        usual = 0.05 * plan.mean_s
        late = max(0.0, float(np.log((found.late_s + usual) / (least.late_s + usual))))
        rows.append((np.log(found.mean_s / plan.mean_s), late, found.most_stops))
    return np.array(rows)


# ---- the evolution strategy --------------------------------------------------------------------------------------


def train(given: argparse.Namespace) -> None:
    """The evolution strategy; writes training.json, last.npz and log.jsonl into the folder."""
    given.out.mkdir(parents=True, exist_ok=True)
    config = {name: getattr(given, name) for name in SETTINGS}
    (given.out / "training.json").write_text(json.dumps(config | {"start": given.start and str(given.start)}))
    began, random = time.monotonic(), np.random.default_rng(given.seed)
    lists, names = pickle.loads(lzma.decompress(given.lists.read_bytes()))
    LISTS[:], kinds = lists, np.array(names)
    known_of(0)  # compiled once, before other processes need it
    fork = multiprocessing.get_context("fork")
    with fork.Pool(given.processes) as pool:
        KNOWN[:] = pool.map(known_of, range(len(LISTS)), chunksize=4)
    several = np.array([len(each[0].pools) > 1 for each in LISTS])
    used = {"all": np.ones(len(LISTS), bool), "several": several, "one": ~several}[given.models]
    used &= np.array([plan.mean_s < FOREVER and other.mean_s < FOREVER for plan, other in KNOWN])
    judged = np.arange(len(LISTS)) % JUDGED == JUDGED - 1
    shares = dict(zip(KINDS, SHARES[given.models], strict=True))
    by_kind = {kind: np.flatnonzero(used & ~judged & (kinds == kind)) for kind in KINDS if shares[kind]}
    checks = np.flatnonzero(used & judged)
    middle = np.zeros(SIZE)
    middle[: len(INPUTS) * HIDDEN] = random.normal(0.0, 0.4, len(INPUTS) * HIDDEN)  # the answer stays 0: the rule
    middle[-1] = np.log(0.5)
    if given.start is not None:
        with np.load(given.start) as file:
            middle = file["middle"]
    average, speed, spread = middle.copy(), np.zeros(SIZE), np.zeros(SIZE)
    generation = 0
    log = (given.out / "log.jsonl").open("w")

    def some_lists() -> Array:
        parts = [random.choice(by_kind[k], round(shares[k] * given.lists_each), replace=False) for k in by_kind]
        return np.concatenate(parts)

    with fork.Pool(given.processes) as pool:
        many: Callable[[list[Any]], list[Array]] = lambda tasks: pool.map(scored, tasks, chunksize=1)  # noqa: E731
        while True:
            taken = time.monotonic() - began
            done = taken / (60 * given.minutes)
            if generation % given.every == 0 or done >= 1.0:
                parts = [part for part in np.array_split(checks, 4 * given.processes) if len(part)]
                found = np.concatenate(many([(average, part) for part in parts]))
                row: dict[str, Any] = {"generation": generation, "seconds": round(taken)}
                row |= {kind: float(found[kinds[checks] == kind, 0].mean()) for kind in by_kind}
                row |= {"late": float(found[:, 1].mean()), "worst": float(found[:, 0].max())}
                print(json.dumps(row), flush=True)
                log.write(json.dumps(row) + "\n")
                log.flush()
                np.savez(given.out / "last.npz", middle=average, **row)
            if done >= 1.0:
                break
            steps = random.normal(0.0, 1.0, (given.pairs, SIZE))
            steps[:, -1] *= 2
            sigma = given.sigma * (1 - 0.5 * done)
            same = some_lists()
            tasks = []
            for step in steps:
                mine = same if given.by_rank else some_lists()
                tasks += [(middle + sign * sigma * step, mine) for sign in (1.0, -1.0)]
            slope = (weights_of(np.array(many(tasks)), given.by_rank)[:, None] * steps).mean(axis=0)
            generation += 1
            speed += 0.1 * (slope - speed)
            spread += 0.02 * (slope * slope - spread)
            sure = speed / (1 - 0.9**generation) / (np.sqrt(spread / (1 - 0.98**generation)) + 1e-8)
            middle = middle + given.rate * (1 - 0.9 * done) * sure
            average = middle if generation < 5 else average + (0.2 if given.by_rank else 0.08) * (middle - average)


def weights_of(found: Array, by_rank: bool) -> Array:
    """What each pair of steps gained, from the scores of both on its lists."""
    if by_rank:
        score = np.clip(found[:, :, 0], -1, 1) + FOR_WAITS * found[:, :, 1]
        score = (score / np.maximum(score.std(axis=0), 0.02)).mean(axis=1)
        place = np.argsort(np.argsort(-score)) / (len(score) - 1) - 0.5
        return np.asarray(place[0::2] - place[1::2])
    score = np.clip(found[:, :, 0], -0.5, 0.5) + FOR_WAITS * found[:, :, 1]
    gain = (score[1::2] - score[0::2]).mean(axis=1)
    return np.clip(gain / (1.5 * np.median(np.abs(gain)) + 1e-6), -2, 2)


def write(given: argparse.Namespace) -> None:
    """Write the network of the last generation as a checkpoint."""
    from adlro.decide.network.corrected_plan import PLAN
    from adlro.learn.train.checkpoint import write_checkpoint

    with np.load(given.out / "last.npz") as file:
        corrector = corrector_of(file["middle"])
    arrays = {
        "first": corrector.first, "second": corrector.second, "slower": np.full(1, corrector.slower),
    }  # fmt: skip
    curve = [json.loads(line) for line in (given.out / "log.jsonl").read_text().splitlines()]
    provenance = {
        "preset": PLAN, "training": "scripts/train_plan.py", "device": given.device,
        "config": json.loads((given.out / "training.json").read_text()), "curve": curve,
    }  # fmt: skip
    if given.before is not None:
        before = given.before
        provenance["before"] = {
            "config": json.loads((before / "training.json").read_text()),
            "curve": [json.loads(line) for line in (before / "log.jsonl").read_text().splitlines()],
        }
    write_checkpoint(given.checkpoint, {name: each.astype(np.float32) for name, each in arrays.items()}, provenance)


def main() -> None:
    """Prepare lists, train a network, or write it as a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "train", "write"))
    parser.add_argument("--lists", type=Path, default=Path("lists.xz"))
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--start", type=Path, default=None, help="last.npz of another training")
    parser.add_argument("--models", choices=tuple(SHARES), default="several", help="GPU models of the clusters")
    parser.add_argument("--by-rank", action="store_true")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--lists-each", type=int, default=14)
    parser.add_argument("--sigma", type=float, default=0.06)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="generations between two lines of the log")
    parser.add_argument("--checkpoint", type=Path, default=Path("adlro-plan.safetensors"))
    parser.add_argument("--before", type=Path, default=None, help="folder of the training before it")
    parser.add_argument("--device", default="")
    given = parser.parse_args()
    {"prepare": prepare, "train": train, "write": write}[given.what](given)


if __name__ == "__main__":
    main()
