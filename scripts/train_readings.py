"""Trains what readings of GPUs are worth to the policy `adlro` (decide/network/readings.py), by an evolution strategy.

    python scripts/train_readings.py train --out readings --minutes 20
    python scripts/train_readings.py write --out readings --checkpoint adlro-readings.safetensors --device "2 cores"
    python scripts/train_readings.py single --lists-each 60     # the mean effect of each reading by itself
    python scripts/train_readings.py judge --out readings       # of each row of the weights, on 60 other seeds
    python scripts/train_readings.py none --checkpoint none.safetensors     # readings that are worth nothing

A list is 400 jobs on `paper16`, `gavel108`, `sia64`, or a part of the trace Philly on `gavel108`. GPUs are slow, wear,
become hot in air of 35 C, or all three, and paces are measured; or speeds are learned on healthy GPUs. Seeds: 2000 to
2059; of Philly, 24 windows of its first 608 hours. The score of some weights on a list is the logarithm of the mean
completion time over that without readings. All steps of a generation are played on the same lists, each step in both
directions, and the scores of each list are divided by their spread. Every fifth list is only used to judge.

The trace is looked for in ../shared/traces, or in the folder that ADLRO_TRACES names; without it, Philly is left out.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from measured_pace import CONDITIONS, PHILLY, WORKLOADS

import adlro
from adlro.core.copying import copied
from adlro.decide.network.greedy_q import q_policy, shipped
from adlro.decide.network.readings import PRESET, READINGS, SITUATIONS, no_worth
from adlro.experiment.conditions import Conditions
from adlro.experiment.instance import Instance, draw, play_out
from adlro.experiment.public import scenario_of
from adlro.measure.metrics import measure

Array = npt.NDArray[Any]
TROUBLES: Final = ("all", "slow", "heat", "wear")
LEARNED: Final = "learned"
FIRST_SEED: Final = 2000
SEEDS: Final = 60
WINDOWS: Final = 24
JOBS: Final = 400
JUDGED: Final = 5
"""One list in this many is not trained on: it only judges the weights."""
MOST: Final = 0.3
"""Scores are cut off here, below and above zero."""
STEP: Final = np.array([0.1, 0.1, 0.1, 0.1])[:, None] * np.array([1.0, 0.5, 0.5])
"""How far a step goes, for each weight, before `--sigma`."""
SETTINGS: Final = ("minutes", "pairs", "lists_each", "sigma", "rate", "seed")


class JobList(NamedTuple):
    """Jobs on a cluster with troubles, and the name of both."""

    name: str
    instance: Instance


def lists_of(trouble: str, place: str, first_seed: int = FIRST_SEED, seeds: int = SEEDS) -> list[JobList]:
    """The lists of a place with a trouble. Those of Philly are the same for every first seed."""
    known: dict[str, Any] = {"speeds": LEARNED} if trouble == LEARNED else {"measured_pace": True}
    troubles = {} if trouble == LEARNED else CONDITIONS[trouble]
    if place == "philly":
        trace = adlro.trace(PHILLY, families="hash:gavel", window="1:608")
        scenario = scenario_of("gavel108", trace, JOBS, WINDOWS, None, Conditions(load=0.9, **troubles, **known))
        return [JobList(f"{place} {trouble}", draw(scenario, window)) for window in range(WINDOWS)]
    scenario = scenario_of(place, WORKLOADS[place], JOBS, None, None, Conditions(**troubles, **known))
    return [JobList(f"{place} {trouble}", draw(scenario, first_seed + k)) for k in range(seeds)]


def all_lists() -> list[JobList]:
    """All lists: each place with each trouble, and with learned speeds."""
    places = (*WORKLOADS, *(["philly"] if PHILLY.is_file() else []))
    found = [each for trouble in TROUBLES for place in places for each in lists_of(trouble, place)]
    return found + [each for place in WORKLOADS for each in lists_of(LEARNED, place)]


def mean_jct_s(each: JobList, worth: Array) -> float:
    """The mean completion time of a list, if readings are worth so much."""
    policy = q_policy(shipped, "adlro", "", lambda: worth)
    return measure(play_out(each.instance, copied(each.instance.view), policy)).jct_mean_s or np.inf


class Lists:
    """The lists, with what is reached on each without readings."""

    def __init__(self) -> None:
        self._lists = all_lists()
        self._usual: dict[int, float] = {}
        self.names = np.array([each.name for each in self._lists])
        judged = np.arange(len(self._lists)) % JUDGED == JUDGED - 1
        self.judged = np.flatnonzero(judged)
        self._free = {name: np.flatnonzero(~judged & (self.names == name)) for name in dict.fromkeys(self.names)}

    def some(self, random: np.random.Generator, count: int) -> Array:
        """So many lists of different kinds: one in six has learned speeds."""
        learned = [name for name in self._free if name.endswith(LEARNED)]
        others = [name for name in self._free if not name.endswith(LEARNED)]
        few = max(1, round(count / 6))
        kinds = [learned[i] for i in random.permutation(len(learned))[:few]]
        kinds += [others[i % len(others)] for i in random.permutation(max(len(others), count - few))[: count - few]]
        return np.array([random.choice(self._free[kind]) for kind in kinds])

    def scores(self, worth: Array, which: Array) -> Array:
        """The logarithm of the mean completion time on these lists, over that without readings."""
        found = []
        for k in which.tolist():
            if k not in self._usual:
                self._usual[k] = mean_jct_s(self._lists[k], no_worth())
            found.append(np.log(mean_jct_s(self._lists[k], worth) / self._usual[k]))
        return np.clip(np.array(found), -MOST, MOST)

    def by_kind(self, worth: Array, which: Array) -> dict[str, Any]:
        """The mean score of each kind of list, with its standard error."""
        scores = self.scores(worth, which)
        found = {}
        for name in dict.fromkeys(self.names[which]):
            mine = scores[self.names[which] == name]
            found[str(name)] = [round(float(mine.mean()), 4), round(float(mine.std() / max(1, len(mine)) ** 0.5), 4)]
        return found


def train(given: argparse.Namespace) -> None:
    """The evolution strategy; writes training.json, last.npz and log.jsonl into the folder."""
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "training.json").write_text(json.dumps({name: getattr(given, name) for name in SETTINGS}))
    random, lists, shape = np.random.default_rng(given.seed), Lists(), no_worth().shape
    middle, average = no_worth(), no_worth()
    speed, spread = no_worth(), no_worth()
    began, generation, done = time.monotonic(), 0, 0.0
    with (given.out / "log.jsonl").open("w") as log:
        while done < 1.0:
            same = lists.some(random, given.lists_each)
            steps = random.normal(0.0, 1.0, (given.pairs, *shape))
            tasks = [middle + sign * given.sigma * STEP * step for step in steps for sign in (1.0, -1.0)]
            score = np.array([lists.scores(task, same) for task in tasks])
            score = (score / np.maximum(score.std(axis=0), 0.002)).mean(axis=1)
            place = np.argsort(np.argsort(-score)) / (len(score) - 1) - 0.5
            slope = ((place[0::2] - place[1::2])[:, None, None] * steps).mean(axis=0)
            generation += 1
            speed += 0.1 * (slope - speed)
            spread += 0.02 * (slope * slope - spread)
            sure = speed / (1 - 0.9**generation) / (np.sqrt(spread / (1 - 0.98**generation)) + 1e-8)
            middle = middle + given.rate * (1 - 0.9 * done) * STEP * sure
            average = middle if generation < 5 else average + 0.1 * (middle - average)
            done = (time.monotonic() - began) / (60 * given.minutes)
            row = {"generation": generation, "seconds": round(time.monotonic() - began)}
            row["worth"] = np.round(average, 4).tolist()  # type: ignore[assignment]
            log.write(json.dumps(row) + "\n")
            log.flush()
            np.savez(given.out / "last.npz", worth=average)
        judged = lists.by_kind(average, lists.judged)
        log.write(json.dumps({"judged": judged}) + "\n")
    print(json.dumps(judged, indent=1))


def single(given: argparse.Namespace) -> None:
    """Print the mean score of each reading by itself, with several weights, on each kind of list."""
    lists = Lists()
    for r, reading in enumerate(READINGS):
        for value in (-0.3, -0.1, -0.03, 0.03, 0.1, 0.3):
            worth = no_worth()
            worth[r, 0] = value
            kinds = [name for name in dict.fromkeys(lists.names) if name.endswith(LEARNED) == (r == len(READINGS) - 1)]
            for name in kinds:
                which = np.flatnonzero(lists.names == name)[: given.lists_each]
                print(f"{reading} {value:+g}: {lists.by_kind(worth, which)}", flush=True)


def judge(given: argparse.Namespace) -> None:
    """Print the mean score of each trained reading alone, and of all, on lists of other seeds."""
    with np.load(given.out / "last.npz") as file:
        trained = file["worth"]
    places = (*WORKLOADS, *(["philly"] if PHILLY.is_file() else []))
    for trouble in given.under.split(","):
        rows = {READINGS[3]: [3]} if trouble == LEARNED else {READINGS[0]: [0], READINGS[1]: [1], "both": [0, 1]}
        for place in places[: len(WORKLOADS) if trouble == LEARNED else None]:
            lists = lists_of(trouble, place, given.first_seed, given.seeds)
            usual = np.array([mean_jct_s(each, no_worth()) for each in lists])
            for name, which in rows.items():
                worth = no_worth()
                worth[which] = trained[which]
                score = 100 * np.log(np.array([mean_jct_s(each, worth) for each in lists]) / usual)
                error = score.std() / len(score) ** 0.5
                print(f"{place}, {trouble}, {name}: {score.mean():+.2f} ± {error:.2f} %", flush=True)


def none(given: argparse.Namespace) -> None:
    """Write a checkpoint in which readings are worth nothing."""
    from adlro.learn.train.checkpoint import write_checkpoint

    write_checkpoint(given.checkpoint, {"worth": no_worth().astype(np.float32)}, {"preset": PRESET})


def write(given: argparse.Namespace) -> None:
    """Write the weights of the last generation as a checkpoint; those of readings that are left out are 0."""
    from adlro.learn.train.checkpoint import write_checkpoint

    with np.load(given.out / "last.npz") as file:
        worth = file["worth"]
    left_out = [name for name in given.without.split(",") if name]
    for name in left_out:
        worth[READINGS.index(name)] = 0.0
    curve = [json.loads(line) for line in (given.out / "log.jsonl").read_text().splitlines()]
    provenance = {
        "preset": PRESET, "training": "scripts/train_readings.py", "device": given.device,
        "config": json.loads((given.out / "training.json").read_text()), "left_out": left_out, "curve": curve,
        "readings": list(READINGS), "situations": list(SITUATIONS),
    }  # fmt: skip
    write_checkpoint(given.checkpoint, {"worth": worth.astype(np.float32)}, provenance)


def main() -> None:
    """Train, write a checkpoint, or look at each reading by itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "write", "single", "judge", "none"))
    parser.add_argument("--out", type=Path, default=Path("readings"))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--lists-each", type=int, default=12)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=Path("adlro-readings.safetensors"))
    parser.add_argument("--without", default="", help="readings that do not earn their place, separated by commas")
    parser.add_argument("--device", default="")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED + 100, help="of judge")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of judge")
    parser.add_argument("--under", default=",".join((*TROUBLES, LEARNED)), help="of judge: the troubles")
    given = parser.parse_args()
    {"train": train, "write": write, "single": single, "judge": judge, "none": none}[given.what](given)


if __name__ == "__main__":
    main()
