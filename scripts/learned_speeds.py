"""Measure learned speeds: how much of the gap between agnostic and known they close, and which learner errs least.

python scripts/learned_speeds.py gap gavel108 gavel --policies eft,adlro --first-seed 100 --seeds 6
python scripts/learned_speeds.py learners gavel108 gavel --first-seed 100 --seeds 3
python scripts/learned_speeds.py late gavel108 gavel --policies sjf --first-seed 0 --seeds 12
python scripts/learned_speeds.py names gavel108 gavel --policies sjf --first-seed 0 --seeds 60
python scripts/learned_speeds.py telemetry gavel108 gavel --policies sjf,eft,adlro --first-seed 0 --seeds 12
python scripts/learned_speeds.py drift

LightGBM is a development package: the package itself does not need it.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from adlro.catalogue.families import find_family
from adlro.core.copying import copied
from adlro.core.learned import SPEEDS
from adlro.core.records import Disturbance
from adlro.core.tables import DONE, STARTED
from adlro.experiment.compare import run_comparison
from adlro.experiment.instance import draw, play_out
from adlro.experiment.policies import find_policies
from adlro.experiment.scenario import Hazards, load_scenario
from adlro.experiment.unknown_speeds import job_parts_of, learning_player, memory_bounds
from adlro.predict.job_parts import JobParts, job_vectors, name_words
from adlro.predict.speed_memory import ON_REFERENCE, SpeedMemory, rates_believed, similarities
from adlro.predict.speed_player import LearningSpeeds
from adlro.simulation.simulator import simulate

# ---- the gap -------------------------------------------------------------------------------------------------------


def gap(cluster: str, workload: str, policies: list[str], seeds: range, jobs: int) -> None:
    """Print the mean JCT of each policy by what it knows, and the share of the gap that is closed."""
    scenario, chosen = load_scenario(cluster, workload, jobs), find_policies(policies)
    found: dict[str, dict[str, Any]] = {}
    for how in SPEEDS:
        made = run_comparison(replace(scenario, speeds=how), chosen, seeds)
        found[how] = {
            name: np.array([each.jct_mean_s or np.nan for each in of]) / 3600 for name, of in made.metrics.items()
        }
    print(f"{workload} on {cluster}, {jobs} jobs, seeds {seeds[0]} to {seeds[-1]}, mean JCT in h")
    print("| policy | known | agnostic | prior | learned | gap | prior closes | learned closes |")
    print("|---|---|---|---|---|---|---|---|")
    draws = np.random.default_rng(0).integers(0, len(seeds), (_DRAWS, len(seeds)))
    for name in found["known"]:
        of = {how: found[how][name] for how in SPEEDS}
        known, prior, agnostic, learned = (of[how].mean() for how in SPEEDS)
        print(
            f"| `{name}` | {known:.2f} | {agnostic:.2f} | {prior:.2f} | {learned:.2f} | {agnostic / known - 1:+.0%} | "
            f"{_closed(of, 'prior', draws)} | {_closed(of, 'learned', draws)} |",
            flush=True,
        )


_DRAWS = 4000


def _closed(of: dict[str, Any], how: str, draws: Any) -> str:
    """The share of the gap that is closed, with its 95 % interval: seeds are drawn anew, with repetition."""

    def share(known: Any, agnostic: Any, believed: Any) -> Any:
        return (agnostic - believed) / (agnostic - known)

    among = [of[each] for each in ("known", "agnostic", how)]
    low, high = np.quantile(share(*(each[draws].mean(axis=1) for each in among)), (0.025, 0.975))
    return f"{share(*(each.mean() for each in among)):.0%} ({low:.0%} to {high:.0%})"


# ---- how early one must know ---------------------------------------------------------------------------------------


class Late:
    """A player with the first beliefs of a memory that learns nothing, and from a time on with the true rates."""

    def __init__(self, believed: Any, plan: Any, hours: float) -> None:
        first = learning_player(believed, plan, None)
        self.rate = rates_believed(believed.view.rate, first.memory.shift_of(first._vectors), first._model_of)
        self.believed, self.from_s = believed, hours * 3600.0

    def look(self, view: Any, truth: Any) -> None:
        """Tell what is known by now."""
        view.rate[:] = self.believed.rate if float(view.clock[0].now) >= self.from_s else self.rate
        view.fastest[: len(view.demands)] = np.where(self.believed.possible, view.rate, 0.0).max(axis=1)

    def play(self, view: Any, truth: Any, choose: Any) -> int:
        """As LearningSpeeds plays."""
        return LearningSpeeds.play(self, view, truth, choose)  # type: ignore[arg-type]

    _then = None


def late(cluster: str, workload: str, policies: list[str], seeds: range, jobs: int) -> None:
    """Print the mean JCT if the true speeds are told after some hours, and nothing is learnt before."""
    scenario = replace(load_scenario(cluster, workload, jobs), speeds="learned")
    print(f"{workload} on {cluster}, {jobs} jobs, seeds {seeds[0]} to {seeds[-1]}, mean JCT in h")
    for hours in (0.0, 10.0, 20.0, 30.0, np.inf):
        means = _means(scenario, policies, seeds, lambda made, after=hours: Late(made.believed, scenario.plan, after))
        print(f"told after {hours:g} h: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()), flush=True)


def _means(scenario: Any, policies: list[str], seeds: range, player_of: Callable[[Any], Any]) -> dict[str, float]:
    """The mean JCT of each policy in hours, with a player of its own for each run."""
    means: dict[str, list[float]] = {}
    for seed in seeds:
        instance = draw(scenario, seed)
        believed = instance.believed
        assert believed is not None
        for policy in find_policies(policies):
            view = copied(believed.view)._replace(rate=believed.view.rate.copy(), fastest=believed.view.fastest.copy())
            made = simulate(
                view, instance.jobs.work, policy, scenario.settings, instance.disturbances, seed, player_of(instance),
                rate=believed.rate,
            )  # fmt: skip
            ended = made.events[made.events["what"] == DONE]
            jct = ended["time"] - instance.jobs.table["submit"][ended["job"]]
            means.setdefault(policy.name, []).append(float(jct.mean()) / 3600)
    return {name: float(np.mean(each)) for name, each in means.items()}


# ---- what telemetry could add --------------------------------------------------------------------------------------


def what_bounds_it(family: str) -> str:
    """A word for the shares of its time that FP64, FP32, tensor units and bandwidth bound, in tenths.

    It is modelled: the mix of the family in the catalogue, which its datasheet speeds rest on, and not how fast it is.
    """
    mix = find_family(family).mix
    return "mix" + "".join(
        "abcdefghijk"[round(10 * share)] for share in (mix.fp64, mix.fp32, mix.tensor, mix.bandwidth)
    )


class Seeing:
    """A player that sees what bounds a job from its start on, and guesses it by the names of such jobs before."""

    def __init__(self, player: LearningSpeeds, parts: list[JobParts], words: list[str], at_once: bool) -> None:
        self.player, self.at_once = player, at_once
        kinds = sorted(set(words))
        self.kind = np.array([kinds.index(word) for word in words])
        self.told = [job_vectors([each._replace(name=f"{kind}-{each.name}") for each in parts]) for kind in kinds]
        self.plain = job_vectors(parts)
        self.seen = np.zeros(len(parts), bool)
        self.read = self.arrived = 0

    def look(self, view: Any, truth: Any) -> None:
        """See the jobs that have started, guess those that have arrived, and look."""
        last, arrived, vectors = int(truth.progress[0].events), int(view.clock[0].arrived), self.player._vectors
        for event in truth.events[self.read : last]:
            if event.what == STARTED:
                self.seen[event.job] = True
                vectors[event.job] = self.told[self.kind[event.job]][event.job]
        for j in range(self.arrived, arrived):
            if (kind := self.kind[j] if self.at_once else self._guess(j)) is not None:
                vectors[j] = self.told[kind][j]
        self.read, self.arrived = last, arrived
        self.player.look(view, truth)

    def _guess(self, j: int) -> int | None:
        """What probably bounds a job, by the jobs alike that have started; None if that is not clear."""
        there = np.flatnonzero(self.seen)
        alike = np.maximum(similarities(self.plain[j][None], self.plain[there])[0], 0.0) ** 3
        share = np.bincount(self.kind[there], alike, len(self.told)) / max(float(alike.sum()), 1e-9)
        return int(share.argmax()) if share.max() > 0.5 else None

    def play(self, view: Any, truth: Any, choose: Any) -> int:
        """As LearningSpeeds plays."""
        return LearningSpeeds.play(self, view, truth, choose)  # type: ignore[arg-type]

    _then = None


def telemetry(cluster: str, workload: str, policies: list[str], seeds: range, jobs: int) -> None:
    """Print the mean JCT with learned speeds if telemetry tells what bounds a job: never, once it runs, or at once."""
    scenario = replace(load_scenario(cluster, workload, jobs), speeds="learned")
    print(f"{workload} on {cluster}, {jobs} jobs, seeds {seeds[0]} to {seeds[-1]}, mean JCT in h")
    for when in ("never", "once it runs", "at once"):

        def player_of(made: Any, when: str = when) -> Any:
            player = learning_player(made.believed, scenario.plan, None)
            words = [what_bounds_it(made.jobs.families[family]) for family in made.jobs.table["family"]]
            if when == "never":
                return player
            return Seeing(player, job_parts_of(made.believed.signed), words, when == "at once")

        means = _means(scenario, policies, seeds, player_of)
        print(f"{when}: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()), flush=True)


# ---- how much names can tell ---------------------------------------------------------------------------------------


class Told:
    """A player that knows the table, and learns the family of each job when it ends (or starts).

    Before, it has what a learner has: users, the words of names, and GPUs. It guesses the family by naive Bayes from
    the jobs of which it was told, and believes the mean of the families' log speeds, or of their speeds (`plain`).
    So it shows how much names tell.
    """

    _then = None

    def __init__(self, made: Any, when: int, plain: bool) -> None:
        believed, self.plain = made.believed, plain
        self.believed, self.when, self.family = believed, when, np.asarray(made.jobs.table["family"])
        count = len(made.jobs.families)
        log = np.log(np.maximum(believed.rate, 1e-9) / np.maximum(believed.view.rate, 1e-9))
        here = [self.family == each for each in range(count)]
        self.speeds = np.array([log[each].mean(axis=0) if each.any() else np.zeros(log.shape[1]) for each in here])
        self.words = [self._words(parts) for parts in job_parts_of(believed.signed)]
        self.told: dict[tuple[str, str], Any] = {}
        self.jobs = np.zeros(count)
        self.read = self.arrived = 0

    @staticmethod
    def _words(parts: JobParts) -> list[tuple[str, str]]:
        names = [("word", word) for word in name_words(parts.name) if not word.isdigit()]
        return [("user", parts.user), ("gpus", str(parts.gpus)), *names]

    def look(self, view: Any, truth: Any) -> None:
        """Be told of jobs, then guess those that wait."""
        clock, last = view.clock[0], int(truth.progress[0].events)
        waiting = set(range(self.arrived, int(clock.arrived)))
        for event in truth.events[self.read : last]:
            if event.what == self.when:
                family = self.family[event.job]
                self.jobs[family] += 1
                for word in self.words[event.job]:
                    self.told.setdefault(word, np.zeros(len(self.jobs)))[family] += 1
                waiting |= set(view.queue[int(clock.head) : int(clock.head) + int(clock.queued)].tolist())
            if event.what == STARTED:
                view.rate[event.job] = self.believed.rate[event.job]
        self.read, self.arrived = last, int(clock.arrived)
        for j in waiting:
            log = np.log(self.jobs + 1.0)
            for role, word in self.words[j]:
                much, all_words = _SMOOTH[role]
                seen = self.told.get((role, word), 0.0)
                log = log + np.log((seen + much) / (self.jobs + all_words))
            share = np.exp(log - log.max())
            share /= share.sum()
            mean = share @ np.exp(self.speeds) if self.plain else np.exp(share @ self.speeds)
            view.rate[j] = self.believed.view.rate[j] * mean
            view.fastest[j] = np.where(self.believed.possible[j], view.rate[j], 0.0).max()

    def play(self, view: Any, truth: Any, choose: Any) -> int:
        """As LearningSpeeds plays."""
        return LearningSpeeds.play(self, view, truth, choose)  # type: ignore[arg-type]


_SMOOTH = {"user": (0.3, 6.0), "gpus": (0.5, 5.0), "word": (0.1, 1.0)}
"""What is added to a count of naive Bayes, and to the number of jobs that it is divided by."""


def names(cluster: str, workload: str, policies: list[str], seeds: range, jobs: int) -> None:
    """Print the mean JCT if the table is known, and the family of each job is told when it ends, or when it starts."""
    scenario = replace(load_scenario(cluster, workload, jobs), speeds="learned")
    print(f"{workload} on {cluster}, {jobs} jobs, seeds {seeds[0]} to {seeds[-1]}, mean JCT in h")
    for word, when, plain in (("ends", DONE, False), ("ends, mean of speeds", DONE, True), ("starts", STARTED, False)):
        means = _means(scenario, policies, seeds, lambda made, when=when, plain=plain: Told(made, when, plain))
        print(f"told when it {word}: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()), flush=True)


# ---- which learner errs least --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Past:
    """What happened in one run: the jobs as learners see them, log speeds, and who was submitted or ended when."""

    parts: list[JobParts]
    models: list[Any]
    true: Any  # [J, M] log speed over the prior's
    runs: Any  # [J, M] whether a job can run on a model
    model_of: dict[int, int]
    events: list[tuple[float, int, int]]  # time, 0 for an end and 1 for a submission, job


class Learner(Protocol):
    """Learns log speeds over the prior's."""

    def learn(self, j: int, m: int, log: float) -> None:
        """A job has ended."""

    def predict(self, j: int) -> Any:
        """Log speed over the prior's on each model."""


def past_of(cluster: str, workload: str, seed: int, jobs: int) -> Past:
    """One run of `eft` that knows no speeds, so that all models are used."""
    scenario = replace(load_scenario(cluster, workload, jobs), speeds="agnostic")
    instance, told = draw(scenario, seed), draw(replace(scenario, speeds="prior"), seed)
    run, plan = play_out(instance, instance.view, find_policies(["eft"])[0]), scenario.plan
    assert instance.believed is not None
    assert told.believed is not None
    pools = np.asarray(plan.forms.pool)
    forms = [int(np.flatnonzero(pools == p)[0]) for p in range(len(plan.models))]
    true, prior = instance.believed.rate[:, forms], told.believed.view.rate[:, forms]
    events, where = [(float(row.submit), 1, j) for j, row in enumerate(instance.jobs.table)], {}
    for event in run.events:
        if event.what == STARTED:
            where[int(event.job)] = int(plan.sites[event.site].pool)
        if event.what == DONE:
            events.append((float(event.time), 0, int(event.job)))
    log = np.log(np.maximum(true, 1e-9) / np.maximum(prior, 1e-9))
    models = [plan.cluster.models[name] for name in plan.models]
    return Past(job_parts_of(instance.believed.signed), models, log, true > 0, where, sorted(events))


def stem(parts: JobParts) -> str:
    """A name without its numbers."""
    return " ".join(word for word in name_words(parts.name) if not word.isdigit())


class Datasheet:
    """Learns nothing."""

    def __init__(self, past: Past) -> None:
        self._models = len(past.models)

    def learn(self, j: int, m: int, log: float) -> None:
        """Nothing."""

    def predict(self, j: int) -> Any:
        """The prior."""
        return np.zeros(self._models)


class RunningMean:
    """The mean by user, name without numbers, and model; else by model; else the prior."""

    def __init__(self, past: Past) -> None:
        self._past, self._sums = past, dict[Any, tuple[int, float]]()

    def _keys(self, j: int, m: int) -> list[Any]:
        parts = self._past.parts[j]
        return [(parts.user, stem(parts), m), m]

    def learn(self, j: int, m: int, log: float) -> None:
        """Add it to both means."""
        for key in self._keys(j, m):
            count, total = self._sums.get(key, (0, 0.0))
            self._sums[key] = (count + 1, total + log)

    def predict(self, j: int) -> Any:
        """The narrowest mean that there is."""
        out = np.zeros(len(self._past.models))
        for m in range(len(out)):
            known = next((self._sums[key] for key in self._keys(j, m) if key in self._sums), (1, 0.0))
            out[m] = known[1] / known[0]
        return out


class Factors:
    """Matrix factorisation of (user and name without numbers) × model, rank 2, by alternating least squares."""

    def __init__(self, past: Past, rank: int = 2, ridge: float = 1.0) -> None:
        self._past, self._rank, self._ridge = past, rank, ridge
        self._rows: dict[str, int] = {}
        self._seen: list[tuple[int, int, float]] = []
        self._fit: tuple[Any, Any, Any] | None = None

    def _row(self, j: int) -> int:
        parts = self._past.parts[j]
        return self._rows.setdefault(f"{parts.user} {stem(parts)}", len(self._rows))

    def learn(self, j: int, m: int, log: float) -> None:
        """Store it; factorise after every twentieth."""
        self._seen.append((self._row(j), m, log))
        if len(self._seen) % 20 == 0:
            self._factorise()

    def _factorise(self) -> None:
        rows, models, logs = (np.array(column) for column in zip(*self._seen, strict=True))
        mean = np.array(
            [logs[models == m].mean() if (models == m).any() else logs.mean() for m in range(len(self._past.models))]
        )
        left = logs - mean[models]
        rng = np.random.default_rng(0)
        a, b = rng.normal(0, 0.1, (len(self._rows), self._rank)), rng.normal(0, 1, (len(mean), self._rank))
        for _ in range(10):
            for here, one, other, keys in ((rows, a, b, models), (models, b, a, rows)):
                for k in np.unique(here):
                    x, y = other[keys[here == k]], left[here == k]
                    one[k] = np.linalg.solve(x.T @ x + self._ridge * np.eye(self._rank), x.T @ y)
        self._fit = mean, a, b

    def predict(self, j: int) -> Any:
        """The mean of each model, and the factors if the row was there."""
        if self._fit is None:
            return np.zeros(len(self._past.models))
        mean, a, b = self._fit
        row = self._row(j)
        return mean + (b @ a[row] if row < len(a) else 0.0)


class Boosted:
    """LightGBM on user, words, GPUs and model, trained again after every twentieth job."""

    def __init__(self, past: Past) -> None:
        codes: dict[str, int] = {}
        self._features = []
        for parts in past.parts:
            words = [*name_words(parts.name), "", "", "", ""][:4]
            numbers = [codes.setdefault(word, len(codes)) for word in (f"user {parts.user}", *words)]
            self._features.append([*numbers, parts.gpus])
        self._models = len(past.models)
        self._x: list[list[int]] = []
        self._y: list[float] = []
        self._fit: Any = None

    def learn(self, j: int, m: int, log: float) -> None:
        """Store it, and train again now and then."""
        import lightgbm

        self._x.append([*self._features[j], m])
        self._y.append(log)
        if len(self._y) % 20 == 0:
            data = lightgbm.Dataset(
                np.array(self._x, float), np.array(self._y), categorical_feature=[0, 1, 2, 3, 4, 6],
                params={"min_data_in_bin": 1, "verbose": -1},
            )  # fmt: skip
            options = {
                "objective": "l2", "num_leaves": 15, "min_data_in_leaf": 3, "verbose": -1, "num_threads": 1,
                "cat_smooth": 2, "min_data_per_group": 3,
            }  # fmt: skip
            self._fit = lightgbm.train(options, data, 60)

    def predict(self, j: int) -> Any:
        """What the trees say of each model."""
        if self._fit is None:
            return np.zeros(self._models)
        return self._fit.predict(np.array([[*self._features[j], m] for m in range(self._models)], float))


class Hypervectors:
    """The memory that ships."""

    def __init__(self, past: Past) -> None:
        self._memory = SpeedMemory(past.models, memory_bounds(past.models), on_reference=ON_REFERENCE)
        self._vectors = job_vectors(past.parts)

    def learn(self, j: int, m: int, log: float) -> None:
        """An experience."""
        self._memory.learn(self._vectors[j], m, log, j)

    def predict(self, j: int) -> Any:
        """The belief."""
        return self._memory.believe(self._vectors[j][None]).shift[0]


LEARNERS: dict[str, Callable[[Past], Learner]] = {
    "prior": Datasheet,
    "running mean": RunningMean,
    "matrix factorisation": Factors,
    "lightgbm": Boosted,
    "hypervectors": Hypervectors,
}


def learners(cluster: str, workload: str, seeds: range, jobs: int) -> None:
    """Print the root mean square error of the log speeds that each learner predicts at submission."""
    pasts = [past_of(cluster, workload, seed, jobs) for seed in seeds]
    parts = ((0, 50), (50, 150), (150, jobs))
    print(f"{workload} on {cluster}, {jobs} jobs, seeds {seeds[0]} to {seeds[-1]}")
    print(f"| learner | {' | '.join(f'jobs {low} to {high}' for low, high in parts)} | new names | within a job |")
    print("|---|---|---|---|---|---|")
    for name, make in LEARNERS.items():
        rows = np.concatenate([_errors(past, make(past)) for past in pasts])
        cells = [np.sqrt(rows[(rows[:, 0] >= low) & (rows[:, 0] < high), 2].mean()) for low, high in parts]
        cells += [np.sqrt(rows[(rows[:, 1] > 0) & (rows[:, 0] >= 150), 2].mean()), np.sqrt(rows[:, 3].mean())]
        print(f"| {name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)


def _errors(past: Past, learner: Learner) -> Any:
    """By job: number, whether its user and name had not ended before, mean square error, and that within the job."""
    rows, known = [], set[tuple[str, str]]()
    for _time, what, j in past.events:
        key = (past.parts[j].user, stem(past.parts[j]))
        if what == 0:
            learner.learn(j, past.model_of[j], past.true[j, past.model_of[j]])
            known.add(key)
        else:
            off = (learner.predict(j) - past.true[j])[past.runs[j]]
            rows.append((j, key not in known, float(np.mean(off**2)), float(np.var(off))))
    return np.array(rows, float)


# ---- drift ---------------------------------------------------------------------------------------------------------


CHANGE_S = 40 * 3600.0
SLOWER = 0.4


class Following:
    """A player that passes everything on, and notes how far the beliefs about the P100 are off, every 8 h."""

    def __init__(self, player: LearningSpeeds, true: Any, forms: list[int]) -> None:
        self.player, self.true, self.forms = player, true, forms
        self.off: dict[int, float] = {}

    def look(self, view: Any, truth: Any) -> None:
        """Look, then note the mean of log(believed / true) over the latest 40 jobs that have arrived."""
        self.player.look(view, truth)
        now, last = float(view.clock[0].now), int(view.clock[0].arrived)
        if (step := int(now // (8 * 3600.0))) not in self.off:
            rows = np.arange(max(0, last - 40), last)
            rows = rows[(self.true[rows][:, self.forms] > 0.0).all(axis=1)]
            true = self.true[rows][:, self.forms] * (SLOWER if now >= CHANGE_S else 1.0)
            self.off[step] = float(np.log(view.rate[rows][:, self.forms] / true).mean()) if len(rows) else 0.0

    def play(self, view: Any, truth: Any, choose: Any) -> int:
        """As LearningSpeeds plays."""
        return LearningSpeeds.play(self, view, truth, choose)  # type: ignore[arg-type]

    _then = None


def drift(seeds: range, jobs: int) -> None:
    """Let all P100 of gavel108 lose 60 % of their speed: the mean JCT by what `eft` knows, and how beliefs follow."""
    plain = load_scenario("gavel108", "gavel", jobs)
    slow = [
        Disturbance(CHANGE_S, "speed", node.name, gpu, SLOWER)
        for node in plain.cluster.nodes
        if node.gpus[0].model.startswith("p100")
        for gpu in range(node.gpus[0].count)
    ]
    changed = replace(plain, hazards=Hazards(listed=tuple(slow), source="P100 at 0.4 after 40 h"))
    for how in ("known", "prior", "learned"):
        means = []
        for scenario in (plain, changed):
            made = run_comparison(replace(scenario, speeds=how), find_policies(["eft"]), seeds)
            means.append(float(np.mean([each.jct_mean_s or np.nan for each in made.metrics["eft"]])) / 3600)
        print(f"{how}: {means[0]:.2f} h without the change, {means[1]:.2f} h with it", flush=True)
    scenario = replace(changed, speeds="learned")
    forms = [h for h, form in enumerate(scenario.plan.form_records) if form.model.startswith("p100")]
    for seed in seeds:
        instance = draw(scenario, seed)
        believed = instance.believed
        assert believed is not None
        following = Following(learning_player(believed, scenario.plan, None), believed.rate, forms)
        view = believed.view._replace(rate=believed.view.rate.copy(), fastest=believed.view.fastest.copy())
        simulate(
            view, instance.jobs.work, find_policies(["eft"])[0], scenario.settings, instance.disturbances, seed,
            following, rate=believed.rate,
        )  # fmt: skip
        words = ", ".join(f"{8 * step} h: {np.exp(off):.2f}" for step, off in following.off.items())
        print(f"seed {seed}, P100 believed over true: {words}", flush=True)


def main() -> None:
    """Read the command line."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("what", choices=("gap", "late", "names", "telemetry", "learners", "drift"))
    reader.add_argument("cluster", nargs="?", default="gavel108")
    reader.add_argument("workload", nargs="?", default="gavel")
    reader.add_argument("--policies", default="sjf,sjf-picky,eft,adlro")
    reader.add_argument("--first-seed", type=int, default=100)
    reader.add_argument("--seeds", type=int, default=6)
    reader.add_argument("--jobs", type=int, default=500)
    given = reader.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if given.what == "gap":
        gap(given.cluster, given.workload, given.policies.split(","), seeds, given.jobs)
    elif given.what == "learners":
        learners(given.cluster, given.workload, seeds, given.jobs)
    elif given.what == "late":
        late(given.cluster, given.workload, given.policies.split(","), seeds, given.jobs)
    elif given.what == "names":
        names(given.cluster, given.workload, given.policies.split(","), seeds, given.jobs)
    elif given.what == "telemetry":
        telemetry(given.cluster, given.workload, given.policies.split(","), seeds, given.jobs)
    else:
        drift(seeds, given.jobs)


if __name__ == "__main__":
    main()
