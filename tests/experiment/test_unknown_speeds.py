"""Runs in which policies do not know the speeds."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import adlro
from adlro.catalogue.families import guessed_family
from adlro.core.errors import UsageError
from adlro.core.policy import Policy, waiting
from adlro.core.readings import unsure_in
from adlro.core.tables import DONE, STARTED, Choice, View
from adlro.decide.rules.baselines import sjf
from adlro.experiment.instance import draw, play_out, run_one
from adlro.experiment.learned_speeds import learn_for_job, learn_history, learn_run
from adlro.experiment.policies import policy
from adlro.experiment.scenario import Scenario, load_scenario
from adlro.experiment.unknown_speeds import learning_player
from adlro.ingest.traces.tabulate import TraceOptions
from adlro.predict.job_parts import JobParts
from adlro.simulation.simulator import simulate

TWO = adlro.cluster(
    nodes=[
        adlro.nodes("volta", gpu="v100", gpus=4, cpus=32, memory_gb=256),
        adlro.nodes("kepler", gpu="k80", gpus=4, cpus=32, memory_gb=256),
    ]
)


def scenario(speeds: str, jobs: int = 60) -> Scenario:
    return load_scenario(TWO, "gavel", jobs, speeds=speeds, load=0.8)


def test_known_speeds_are_the_default_and_hide_nothing() -> None:
    made = draw(load_scenario(TWO, "gavel", 20), 0)
    assert made.believed is None
    assert np.shares_memory(made.view.jobs, made.jobs.table)


@pytest.mark.parametrize("how", ["prior", "agnostic", "learned"])
def test_policies_see_neither_families_nor_true_rates(how: str) -> None:
    made = draw(scenario(how), 0)
    assert made.believed is not None
    view = made.believed.view
    assert set(np.unique(view.jobs["family"])) == {0}
    assert list(view.jobs["kind"]) == list(range(60))
    slow = made.believed.rate[:, 1]
    assert len(np.unique(slow)) > 3
    assert len(np.unique(view.rate[:, 1])) == 1
    if how == "agnostic":
        assert (view.rate == 1.0).all()


@pytest.mark.parametrize("how", ["prior", "agnostic", "learned"])
def test_jobs_run_as_fast_as_they_really_do_whatever_is_believed(how: str) -> None:
    made = draw(scenario(how), 0)
    run = run_one(scenario(how), policy("sjf"), 0)
    started = {int(event.job): event for event in run.events if event.what == STARTED}
    ended = [event for event in run.events if event.what == DONE]
    assert len(ended) == 60
    for event in ended:
        j, start = int(event.job), started[int(event.job)]
        rate = made.view.rate[made.jobs.table["kind"][j], made.view.sites[start.site].form]
        assert event.time - start.time == pytest.approx(made.jobs.work[j] / rate)


def test_where_a_job_can_run_is_known() -> None:
    made = draw(scenario("agnostic"), 0)
    assert made.believed is not None
    assert ((made.believed.view.rate > 0) == (made.believed.rate > 0)).all()


def test_beliefs_at_the_end_are_nearer_to_the_truth_than_the_prior() -> None:
    asked = scenario("learned", 150)
    made = draw(asked, 1)
    assert made.believed is not None
    believed = made.believed
    player = learning_player(believed, asked.plan, None)
    view = believed.view._replace(rate=believed.view.rate.copy(), fastest=believed.view.fastest.copy())
    simulate(view, made.jobs.work, policy("sjf"), asked.settings, (), 1, player, rate=believed.rate)
    late = np.arange(100, 150)
    off = np.abs(np.log(view.rate[late] / believed.rate[late])).mean()
    prior_off = np.abs(np.log(believed.view.rate[late] / believed.rate[late])).mean()
    assert off < 0.5 * prior_off
    assert view.fastest[late] == pytest.approx(view.rate[late].max(axis=1))


def test_a_policy_in_plain_python_meets_the_same_run_as_the_compiled_one() -> None:
    def make(_view: View, _seed: int) -> "object":
        return lambda view: Choice(*sjf(view))

    plain = Policy("plain-sjf", "sjf in Python", make=make)  # type: ignore[arg-type]
    one, other = run_one(scenario("learned"), policy("sjf"), 0), run_one(scenario("learned"), plain, 0)
    assert np.array_equal(one.events["time"], other.events["time"])
    assert np.array_equal(one.events["job"], other.events["job"])


def told_to(choose_at: Callable[[View], Choice]) -> View:
    """What policies are told in the end, if `choose_at` chooses."""
    asked = scenario("learned")
    made = draw(asked, 0)
    assert made.believed is not None
    believed = made.believed
    view = believed.view._replace(rate=believed.view.rate.copy(), fastest=believed.view.fastest.copy())
    policy = Policy("own", "for a test", make=lambda _view, _seed: choose_at)
    player = learning_player(believed, asked.plan, None)
    simulate(view, made.jobs.work, policy, asked.settings, (), 0, player, rate=believed.rate)
    return view


def test_only_cheap_jobs_are_told_to_try_a_model() -> None:
    view = told_to(lambda _view: waiting())
    estimate = np.array(view.jobs["estimate"])
    dear = np.array([math.log(estimate[j] / np.median(estimate[: j + 1])) for j in range(len(estimate))])
    kepler, volta = view.rate[:, 1], view.rate[:, 0]
    assert volta == pytest.approx(1.0)  # nothing is told of the model that is known best
    assert np.ptp(kepler[dear <= 0.0]) == pytest.approx(0.0)
    assert np.ptp(kepler[dear >= 1.0]) == pytest.approx(0.0)
    assert kepler[dear <= 0.0].min() == pytest.approx(kepler[dear >= 1.0].max() * math.exp(0.6), rel=0.02)


def test_a_job_that_runs_is_believed_without_any_hope() -> None:
    running: dict[int, float] = {}
    last = -1.0

    def watch(view: View) -> Choice:
        nonlocal last
        is_first = view.clock[0].now > last  # choice of this moment: what has started since is known
        last = float(view.clock[0].now)
        if view.clock[0].arrived <= 6 and is_first:
            running.update({j: float(view.rate[j, 1]) for j in view.running[: int(view.clock[0].running)].tolist()})
        return Choice(*sjf(view))

    told_to(watch)
    hoped = told_to(lambda _view: waiting()).rate[:, 1]
    cheap = [j for j in running if hoped[j] > 1.5 * hoped.min()]
    assert cheap
    assert [running[j] for j in cheap] == pytest.approx([hoped.min()] * len(cheap), rel=0.05)


def test_learned_and_predicted_work_together() -> None:
    asked = load_scenario(TWO, "gavel", 60, speeds="learned", estimates="predicted", load=0.8)
    run = run_one(asked, policy("sjf"), 0)
    assert run.unfinished == 0
    traits = draw(asked, 0).traits
    assert traits is not None
    assert (traits["family"] == 0).all()


def test_two_runs_of_one_instance_do_not_teach_each_other() -> None:
    made = draw(scenario("learned"), 0)
    first, second = (play_out(made, made.view, policy("sjf")) for _ in range(2))
    assert np.array_equal(first.events["time"], second.events["time"])


def test_policies_see_how_sure_a_speed_is() -> None:
    spreads: dict[str, list[np.ndarray]] = {"prior": [], "learned": []}
    for how, seen in spreads.items():
        made = draw(scenario(how), 0)

        def look(view: View, seen: list[np.ndarray] = seen) -> Choice:
            last = int(view.clock[0].arrived) - 1
            seen.append(unsure_in(view)[last].copy())
            return sjf(view)

        assert made.believed is not None
        play_out(made, made.believed.view, Policy("look", "", make=lambda *_, look=look: look))
        assert (unsure_in(made.believed.view) == seen[0]).all(), "what is learnt in a run is its own"
    assert all((each == spreads["prior"][0]).all() for each in spreads["prior"]), "the prior stays as unsure as it was"
    assert (spreads["prior"][0] > 0.2).all()
    assert spreads["learned"][0] == pytest.approx(spreads["prior"][0])
    assert (spreads["learned"][-1] < 0.8 * spreads["prior"][0]).all(), "each job that has ended makes it surer"


@pytest.mark.parametrize("how", ["known", "agnostic"])
def test_who_knows_the_speeds_or_takes_all_gpus_to_be_alike_has_no_doubt(how: str) -> None:
    made, seen = draw(scenario(how, 10), 0), list[int]()

    def look(view: View) -> Choice:
        seen.append(len(unsure_in(view)))
        return sjf(view)

    play_out(made, made.view, Policy("look", "", make=lambda *_: look))
    assert set(seen) == {0}


def test_the_regret_is_told_against_known_speeds_on_the_same_jobs() -> None:
    found = adlro.compare(TWO, "gavel", "sjf", seeds=2, job_count=40, load=0.8, speeds="agnostic", regret=True)
    known = adlro.compare(TWO, "gavel", "sjf", seeds=2, job_count=40, load=0.8)
    told = found.as_dict()["regret"]["sjf"]
    assert told["known_jct_mean_s"] == known.as_dict()["policies"]["sjf"]["jct_mean_s"]
    assert told["relative"] == pytest.approx(told["jct_mean_s"] / told["known_jct_mean_s"] - 1.0)
    assert found.as_dict()["settings"]["speeds"] == "agnostic"
    assert "regret" in repr(found)
    assert "regret" not in known.as_dict()


def test_unknown_words_and_a_regret_of_known_speeds_are_refused() -> None:
    with pytest.raises(UsageError, match="expected known, prior, agnostic or learned"):
        scenario("guessed")
    with pytest.raises(UsageError, match="regret compares with known speeds"):
        adlro.compare(TWO, "gavel", "sjf", seeds=1, job_count=10, regret=True)


def test_a_run_finds_the_families_that_run_unlike_the_others() -> None:
    found = learn_run("gavel108", "gavel", "sjf", 0, 250)
    odd = max(found.families, key=lambda family: family.speeds["p100-pcie-16gb"].value)
    assert "recommendation" in odd.words
    assert odd.speeds["p100-pcie-16gb"].value > 1.3
    assert found.families[0].jobs >= found.families[-1].jobs


def history(folder: Path, rows: list[tuple[str, str, str, int]]) -> tuple[str, str]:
    """The paths of a history of jobs on one GPU (user, name, model, seconds), and of a cluster of A100 and T4."""
    lines = ["JobID|User|JobName|State|Submit|Start|End|AllocTRES|NodeList|NCPUS|ReqMem|Timelimit"]
    for number, (user, name, gpu, seconds) in enumerate(rows):
        start = np.datetime64("2026-01-01T00:00:00") + np.timedelta64(number, "h")
        end = start + np.timedelta64(seconds, "s")
        lines.append(f"{number}|{user}|{name}|COMPLETED|{start}|{start}|{end}|gres/gpu:{gpu}=1|n1|4|16G|1-00:00:00")
    (folder / "jobs.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    nodes = "".join(
        f'[[nodes]]\nname = "{gpu}"\ngpu = "{gpu}"\ngpus = 4\ncpus = 32\nmemory_gb = 256\n' for gpu in ("a100", "t4")
    )
    cluster = f'name = "two"\n[network]\nkind = "ethernet-25g"\ngb_s = 6.25\n{nodes}'
    (folder / "two.toml").write_text(cluster, encoding="utf-8")
    return str(folder / "jobs.txt"), str(folder / "two.toml")


def test_a_history_teaches_how_much_slower_a_model_is_for_each_family(tmp_path: Path) -> None:
    rows = []
    for number in range(80):
        bert, on_t4 = number % 2 == 0, number % 4 < 2
        seconds = (7200 if bert else 1800) * ((4 if bert else 1) if on_t4 else 1) + number
        name, user = ("train-bert", "ann") if bert else ("etl-load", "bob")
        rows.append((user, f"{name}-{number // 24}", "t4" if on_t4 else "a100", seconds))
    files = history(tmp_path, rows)
    found = learn_history(*files, TraceOptions())
    speeds = {family.words[0]: family.speeds["t4"] for family in found.families}
    assert found.jobs == 80
    assert speeds["bert"].value == pytest.approx(0.25, rel=0.3)
    assert speeds["etl"].value == pytest.approx(1.0, rel=0.4)
    assert speeds["bert"].low < 0.25 < speeds["bert"].high
    assert speeds["bert"].jobs == 20
    assert math.isclose(found.families[0].speeds["a100-sxm4-40gb"].value, 1.0)
    asked = JobParts("ann", "train-bert-new", 1)
    one = learn_for_job(*files, TraceOptions(), asked)
    assert one.speeds["t4"].value == pytest.approx(0.25, rel=0.35)
    reason = one.because[0]
    assert reason.user == "ann"
    assert {"user ann", "word bert"} <= set(reason.parts)


def test_jobs_of_one_family_found_may_have_had_different_priors(tmp_path: Path) -> None:
    assert guessed_family("train-bert") != guessed_family("gromacs")
    rows = [
        (user, name, gpu, length * (3 if gpu == "t4" else 1) + number)
        for number in range(40)
        for user, name, length in (("ann", "train-bert", 1200), ("bob", "gromacs", 600))
        for gpu in ("t4", "a100")
    ]
    (found,) = learn_history(*history(tmp_path, rows), TraceOptions()).families
    assert found.users == ("ann", "bob")
    assert found.speeds["t4"].value == pytest.approx(1 / 3, rel=0.15)
