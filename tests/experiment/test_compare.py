"""The stages together: the same jobs for every policy, and the same results however they are computed."""

from dataclasses import replace
from pathlib import Path

import pytest

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.workloads import workload_text
from adlro.core.errors import CatalogueError, ConfigError, PolicyError, UsageError
from adlro.core.policy import Choose, Policy
from adlro.core.records import Disturbance, Job
from adlro.core.tables import DOWN, SPEED, View
from adlro.decide.catalogue import find_policy
from adlro.experiment.compare import metric_names, over_seeds, run_comparison
from adlro.experiment.instance import load_jobs, run_one
from adlro.experiment.scenario import Hazards, Scenario, find_workload, load_scenario, named_as_in
from adlro.measure.metrics import measure
from adlro.normalise.pack import pack_jobs
from adlro.simulation.simulator import SimulationSettings

JOBS = 60


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("paper16", "paper", JOBS)


def test_the_same_seed_gives_the_same_events_and_another_seed_others(scenario: Scenario) -> None:
    first, again, other = (run_one(scenario, find_policy("sjf"), seed) for seed in (3, 3, 4))
    assert first.events.tobytes() == again.events.tobytes()
    assert first.events.tobytes() != other.events.tobytes()


def test_a_comparison_gives_each_policy_what_it_gets_alone(scenario: Scenario) -> None:
    policies = [find_policy("fcfs"), find_policy("sjf")]
    together = run_comparison(scenario, policies, (5, 6))
    for policy in policies:
        alone = tuple(measure(run_one(scenario, policy, seed)) for seed in (5, 6))
        assert together.metrics[policy.name] == alone


def test_a_comparison_does_not_depend_on_the_number_of_threads_or_the_order(scenario: Scenario) -> None:
    policies = [find_policy("random"), find_policy("fcfs"), find_policy("sjf")]
    one = run_comparison(scenario, policies, range(4), threads=1)
    many = run_comparison(scenario, policies[::-1], range(4), threads=4)
    assert one.metrics == many.metrics
    assert list(one.metrics) == ["random", "fcfs", "sjf"]


def test_progress_counts_every_run(scenario: Scenario) -> None:
    told: list[tuple[str, int, int]] = []
    run_comparison(
        scenario, [find_policy("fcfs"), find_policy("sjf")], (0, 1), on_progress=lambda *what: told.append(what)
    )
    assert [(done, total) for _, done, total in told if done] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_run_names_its_cluster_sites_and_policy(scenario: Scenario) -> None:
    run = run_one(scenario, find_policy("sjf"), 0)
    assert run.site_model == ("v100-sxm2-16gb", "v100-sxm2-16gb", "t4", "mi50")
    assert (run.site_gpus.tolist(), run.site_node.tolist()) == ([4, 4, 4, 4], [0, 1, 2, 3])
    assert (run.policy, run.seed, run.unfinished, run.refusals, len(run.jobs)) == ("sjf", 0, 0, {}, JOBS)


def test_a_job_that_can_never_run_is_refused_with_its_reason() -> None:
    run = run_one(load_scenario("paper16", "openb-like", 200), find_policy("sjf"), 0)
    assert measure(run).refused == len(run.refusals) > 0
    assert any("allows only" in reason for reason in run.refusals.values())


def test_allowed_models_go_by_any_name_of_the_catalogue() -> None:
    jobs = pack_jobs([Job("data", 1.0, models=frozenset({"T4", "V100", "unheard-of"}))])
    assert named_as_in(load_cluster("paper16"), jobs).allowed[1] == {"t4", "v100-sxm2-16gb", "unheard-of"}


def test_failures_and_wear_befall_every_policy_alike(scenario: Scenario) -> None:
    rough = replace(scenario, hazards=Hazards(mtbf_h=5.0, repair_h=1.0, wear_per_day=0.2))
    runs = [run_one(rough, find_policy(name), 0) for name in ("fcfs", "sjf")]
    for what in (DOWN, SPEED):
        seen = [run.events[run.events["what"] == what][["time", "site", "value"]].tolist() for run in runs]
        shorter = min(map(len, seen))
        assert shorter > 0
        assert seen[0][:shorter] == seen[1][:shorter]
    assert all(measure(run).failures > 0 for run in runs)


def test_a_listed_disturbance_must_name_a_node_of_the_cluster() -> None:
    listed = (Disturbance(1.0, "down", "nowhere"),)
    with pytest.raises(ConfigError, match="no node 'nowhere' in cluster 'paper16'"):
        load_scenario("paper16", "paper", hazards=Hazards(listed=listed))


def test_a_workload_may_be_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = 'name = "mine"\njobs = 7\n[arrivals]\nprocess = "all-at-once"\n[[families]]\nfamily = "FAMILY"\n'
    text += 'duration = { distribution = "fixed", value_s = 60.0 }\n'
    file.write_text(text.replace("FAMILY", "data"))
    assert len(load_jobs(str(file), seed=0)) == 7
    file.write_text(text.replace("FAMILY", "dat"))
    with pytest.raises(ConfigError, match=r"mine\.toml: 'families\[0\]\.family': .*Did you mean 'data'"):
        find_workload(str(file))


def test_an_unknown_workload_is_answered_with_the_nearest_and_a_missing_file_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"Did you mean 'paper'\? Workloads that ship: gavel,"):
        find_workload("papr")
    with pytest.raises(CatalogueError, match="No such file"):
        find_workload(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_setting_that_is_no_sensible_number_is_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="restart_s is"):
        load_scenario("paper16", "paper", settings=SimulationSettings(restart_s=wrong))
    with pytest.raises(UsageError, match="mtbf_h is"):
        load_scenario("paper16", "paper", hazards=Hazards(mtbf_h=wrong))


def test_a_policy_that_breaks_is_named(scenario: Scenario) -> None:
    def make(view: View, seed: int) -> Choose:
        raise RuntimeError("out of ideas\nand more")

    with pytest.raises(PolicyError, match=r"^the policy 'mine' failed: RuntimeError: out of ideas$"):
        run_comparison(scenario, [Policy("mine", "breaks", make=make)], (0,))


def test_the_interval_is_students() -> None:
    mean = over_seeds([1.0, 2.0, 3.0])
    assert mean.value == 2.0
    assert mean.high == pytest.approx(2.0 + 4.302653 / 3**0.5)
    assert mean.low == pytest.approx(2.0 - 4.302653 / 3**0.5)


def test_one_seed_has_no_interval_and_a_missing_value_no_mean() -> None:
    assert (over_seeds([4.0]).value, over_seeds([4.0]).low) == (4.0, None)
    assert over_seeds([4.0, None]).value is None


def test_metric_names_are_those_of_a_measured_run(scenario: Scenario) -> None:
    assert tuple(measure(run_one(scenario, find_policy("sjf"), 0)).as_dict()) == metric_names()


# ---- predicted estimates -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def predicted() -> Scenario:
    return load_scenario("paper16", "paper", JOBS, estimates="predicted", load=1.2)


def test_with_predictions_each_policy_gets_alone_what_it_gets_beside_others_on_any_number_of_threads(
    predicted: Scenario,
) -> None:
    policies = [find_policy(name) for name in ("sjf", "srtf", "gavel-maxsum", "eft-reserving")]
    together = run_comparison(predicted, policies, (5, 6), threads=4)
    assert together.metrics == run_comparison(predicted, policies[::-1], (5, 6), threads=1).metrics
    for policy in policies:
        assert together.metrics[policy.name] == tuple(measure(run_one(predicted, policy, seed)) for seed in (5, 6))


def test_what_is_predicted_does_not_depend_on_what_the_workload_would_have_told(predicted: Scenario) -> None:
    wrong = load_scenario("paper16", "paper", JOBS, estimates="noisy:2", load=1.2)
    told = replace(wrong, workload=predicted.workload)
    one, other = (run_one(each, find_policy("sjf"), 3) for each in (predicted, told))
    assert one.events.tobytes() == other.events.tobytes()
    assert one.jobs.table["estimate"].tolist() != load_jobs("paper", 3, JOBS).work.tolist()


def test_predictions_go_with_failures_wear_and_kills(predicted: Scenario) -> None:
    harsh = replace(
        predicted,
        hazards=Hazards(mtbf_h=20.0, repair_h=1.0, wear_per_day=0.05),
        settings=SimulationSettings(kill_at_limit=True),
    )
    for name in ("sjf", "srtf", "fcfs-easy"):
        first, again = (run_one(harsh, find_policy(name), 2) for _ in range(2))
        assert first.events.tobytes() == again.events.tobytes()
        assert first.unfinished == 0


def test_predictions_leave_the_limits_of_a_workload_as_they_are(tmp_path: Path) -> None:
    text = workload_text("paper")[0].replace("[estimates]", "[ignored]")
    mine = tmp_path / "mine.toml"
    mine.write_text(text.split("[ignored]")[0] + '[estimates]\nsource = "lognormal"\nsigma = 0.5\n', encoding="utf-8")
    asked = load_scenario("paper16", str(mine), JOBS, estimates="predicted").workload.estimates
    assert (asked.source, asked.sigma) == ("predicted", 0.5)


@pytest.mark.parametrize("text", ["predicted:0.5", "predict", "prediction"])
def test_nonsense_about_predictions_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected oracle, user"):
        load_scenario("paper16", "paper", JOBS, estimates=text)
