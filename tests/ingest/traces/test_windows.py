"""Windows of a trace in the place of seeds, the load asked for, and estimates with errors."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from adlro.cli.app import run
from adlro.core.errors import UsageError
from adlro.decide.catalogue import find_policy
from adlro.experiment.compare import run_comparison
from adlro.experiment.instance import draw, offered_load
from adlro.experiment.scenario import load_scenario
from adlro.ingest.traces.tabulate import TraceOptions

JOBS = 43


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Forty-three jobs, later ones ever closer together and longer; users asked for twice the time they used."""
    path = tmp_path / "log.csv"
    rows = [
        f"{100 + 600 * i - 5 * i * i},{(60 + 10 * i) * (1 + i % 2)},{1 + i % 2},u{i % 3},{120 + 20 * i}"
        for i in range(JOBS)
    ]
    path.write_text("submit_s,work,gpus,user,limit_s\n" + "\n".join(rows) + "\n")
    return str(path)


def test_every_job_is_in_one_window_and_windows_differ_by_one_job_at_most(log: str) -> None:
    scenario = load_scenario("paper16", log, windows=10)
    windows = scenario.windows
    assert [window.index for window in windows] == list(range(10))
    assert sum(window.jobs for window in windows) == JOBS
    assert {window.jobs for window in windows} == {4, 5}
    assert all(a.first_job + a.jobs == b.first_job for a, b in pairwise(windows))
    together = np.concatenate([draw(scenario, window.index).jobs.work for window in windows])
    assert np.array_equal(together, draw(load_scenario("paper16", log), 0).jobs.work)


def test_a_window_begins_at_0_and_keeps_the_times_between_its_jobs(log: str) -> None:
    whole = draw(load_scenario("paper16", log), 0).jobs.table["submit"]
    scenario = load_scenario("paper16", log, windows=4)
    window = scenario.windows[2]
    submit = draw(scenario, 2).jobs.table["submit"]
    assert submit[0] == 0
    assert submit == pytest.approx(whole[window.first_job : window.first_job + window.jobs] - window.start_s)
    assert submit[-1] == pytest.approx(window.span_s)


def test_with_windows_jobs_are_the_first_of_each_window(log: str) -> None:
    scenario = load_scenario("paper16", log, jobs=3, windows=10)
    assert [window.jobs for window in scenario.windows] == [3] * 10
    assert scenario.windows[1].first_job == 4
    assert len(draw(scenario, 1).jobs) == 3


@pytest.mark.parametrize(("windows", "jobs"), [(22, None), (100, None), (5, 1)])
def test_a_window_of_one_job_is_refused(log: str, windows: int, jobs: int | None) -> None:
    with pytest.raises(UsageError, match="at least 2 jobs in a window"):
        load_scenario("paper16", log, jobs=jobs, windows=windows)


def test_windows_of_a_synthetic_workload_and_trace_options_without_a_trace_are_refused() -> None:
    with pytest.raises(UsageError, match="--seeds 10"):
        load_scenario("paper16", "paper", windows=10)
    with pytest.raises(UsageError, match=r"--scale-load is for traces.*--load sets"):
        load_scenario("paper16", "paper", trace=TraceOptions(scale_load=2.0))
    with pytest.raises(UsageError, match="--unit is for traces"):
        load_scenario("paper16", "paper", trace=TraceOptions(gpus_per_unit=2.0))


def test_a_comparison_over_windows_has_a_value_for_each_and_says_which_they_are(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "-w", log, "-p", "fcfs,sjf", "--windows", "8", "--regression", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == list(range(8))
    assert found["windows"][1] == {"index": 1, "first_job": 5, "jobs": 5, "start_s": 2875.0, "span_s": 2120.0}
    assert len(found["policies"]["sjf"]["per_seed"]["jct_mean_s"]) == len(found["load"]) == 8
    assert found["policies"]["sjf"]["against"]["jct_mean_s"]["wilcoxon_p"] is not None
    assert run(["compare", "-w", log, "-p", "fcfs,sjf", "--windows", "8"]) == 0
    shown = capsys.readouterr().out
    assert "log.csv on paper16, 6 jobs each, 8 windows" in shown
    assert "Offered load" in shown


def test_a_window_can_be_looked_at_alone_and_gives_what_the_comparison_has(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = load_scenario("paper16", log, windows=6)
    together = run_comparison(scenario, [find_policy("sjf")], range(6)).metrics["sjf"]
    assert run(["simulate", "-w", log, "-p", "sjf", "--windows", "6", "--seed", "4", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["jct_mean_s"] == together[4].jct_mean_s
    assert run(["simulate", "-w", log, "-p", "sjf", "--windows", "6", "--seed", "6"]) == 2
    assert "there is no window 6" in capsys.readouterr().err


def test_windows_and_seeds_exclude_each_other(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "-w", log, "-p", "fcfs", "--windows", "4", "--seeds", "4"]) == 2
    assert "take the place of seeds" in capsys.readouterr().err
    assert run(["compare", "-w", log, "-p", "fcfs", "--windows", "4", "--regression"]) == 2
    assert "pass --windows" in capsys.readouterr().err


def test_a_trace_without_windows_is_played_once_unless_seeds_are_asked_for(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "-w", log, "-p", "fcfs,sjf"]) == 0
    assert "--windows 10 cuts the trace" in " ".join(capsys.readouterr().out.split())
    assert run(["compare", "-w", log, "-p", "fcfs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["windows"]) == ([0], None)


def test_the_options_of_a_trace_reach_it_from_a_comparison(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--window", "0:0.5", "--sample", "0.9", "--scale-load", "2", "--families", "hash:sia", "--format", "csv"]
    assert run(["compare", "-w", log, "-p", "fcfs", *words, "--json"]) == 0
    trace = json.loads(capsys.readouterr().out)["trace"]
    assert (trace["window"], trace["sample"], trace["scale_load"]) == ("0:0.5", 0.9, 2.0)
    assert (trace["families"], trace["format"]) == ("hash:sia", "csv")
    assert 0 < trace["kept"] < JOBS


# ---- load --------------------------------------------------------------------------------------------------------


def test_the_whole_trace_gets_the_load_asked_for_and_its_windows_keep_their_differences(log: str) -> None:
    scenario = load_scenario("paper16", log, load=0.9)
    assert offered_load(draw(scenario, 0)) == pytest.approx(0.9)
    before = [offered_load(draw(load_scenario("paper16", log, windows=4), place)) for place in range(4)]
    after = [offered_load(draw(load_scenario("paper16", log, windows=4, load=0.9), place)) for place in range(4)]
    assert np.ptp(np.divide(after, before)) == pytest.approx(0, abs=1e-9)
    assert after[3] > 2 * after[0]


def test_the_table_tells_the_load_of_the_whole_from_that_of_its_windows(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "-w", log, "-p", "fcfs", "--windows", "4", "--load", "0.9"]) == 0
    assert "Offered load 0.90 over the whole trace, " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("cluster", "workload", "load"),
    [("paper16", "paper", 0.7), ("gavel108", "gavel", 1.1), ("paper16", "paper-surge", 0.9)],
)
def test_a_synthetic_workload_has_the_load_asked_for_in_the_long_run(cluster: str, workload: str, load: float) -> None:
    scenario = load_scenario(cluster, workload, 20_000, load=load)
    found = [offered_load(draw(scenario, seed)) for seed in range(8)]
    assert np.mean(found) == pytest.approx(load, rel=0.06)


def test_the_load_is_gpu_seconds_needed_over_those_there(tmp_path: Path) -> None:
    path = tmp_path / "by_hand.csv"
    # A gang of four for 100 s, a quarter of a GPU for 40 s, one that fits nowhere; 16 GPUs for 100 s.
    path.write_text("submit_s,work,gpus,share\n0,400,4,\n50,10,1,250\n100,900,32,\n")
    assert offered_load(draw(load_scenario("paper16", str(path)), 0)) == pytest.approx((400 + 10) / 1600)


def test_one_factor_holds_for_every_seed() -> None:
    plain, loaded = load_scenario("paper16", "paper", 50), load_scenario("paper16", "paper", 50, load=1.5)
    factors = [draw(loaded, seed).jobs.table["submit"] / draw(plain, seed).jobs.table["submit"] for seed in range(3)]
    assert np.ptp(factors) == pytest.approx(0, abs=1e-9)


def test_a_load_that_makes_no_sense_is_refused(log: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        load_scenario("paper16", log, load=0.9, trace=TraceOptions(scale_load=2.0))
    with pytest.raises(UsageError, match="load is 0; expected a number above 0"):
        load_scenario("paper16", log, load=0.0)
    once = tmp_path / "once.csv"
    once.write_text("submit_s,work,gpus\n5,10,1\n5,10,1\n")
    with pytest.raises(UsageError, match="come all at once"):
        load_scenario("paper16", str(once), load=0.9)
    wide = tmp_path / "wide.csv"
    wide.write_text("submit_s,work,gpus\n0,10,4000\n5,10,4000\n")
    with pytest.raises(UsageError, match="no job of it uses a GPU of paper16"):
        load_scenario("paper16", str(wide), load=0.9)


# ---- estimates ---------------------------------------------------------------------------------------------------


def test_one_trace_can_be_told_by_an_oracle_by_users_and_with_noise(log: str) -> None:
    truth = draw(load_scenario("paper16", log, estimates="oracle"), 0).jobs
    user = draw(load_scenario("paper16", log, estimates="user"), 0).jobs
    noisy = [draw(load_scenario("paper16", log, estimates="noisy:0.5"), seed).jobs for seed in (0, 0, 1)]
    assert np.array_equal(truth.table["estimate"], truth.work)
    assert user.table["estimate"] == pytest.approx(2 * truth.work)
    assert np.array_equal(noisy[0].table["estimate"], noisy[1].table["estimate"])
    assert not np.array_equal(noisy[0].table["estimate"], noisy[2].table["estimate"])
    assert np.array_equal(noisy[0].work, truth.work)
    error = np.log(noisy[0].table["estimate"] / truth.work)
    assert 0.3 < np.std(error) < 0.7


def test_estimates_of_users_are_refused_where_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("submit_s,work,gpus\n0,10,1\n5,10,1\n")
    with pytest.raises(UsageError, match="no requested times"):
        load_scenario("paper16", str(path), estimates="user")


def test_what_the_trace_itself_estimates_is_not_called_an_oracle(tmp_path: Path) -> None:
    path = tmp_path / "told.csv"
    path.write_text("submit_s,work,gpus,estimate\n0,10,1,30\n5,10,1,30\n")
    scenario = load_scenario("paper16", str(path))
    assert scenario.workload.estimates.source == "trace"
    assert draw(scenario, 0).jobs.table["estimate"].tolist() == [30.0, 30.0]
