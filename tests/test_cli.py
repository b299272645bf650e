"""The command line: results on stdout, one line for a mistake, and exit codes that say whose it is."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import adlro
import adlro.catalogue.clusters
from adlro.cli.app import run
from adlro.cli.output import print_json
from adlro.decide.catalogue import policies as catalogue
from adlro.experiment.conditions import DEFAULT_POLICIES
from adlro.measure.numbers import number, unit_for

JSON_PAGE = (Path(__file__).parent.parent / "docs" / "json.md").read_text()
FEW = ["--jobs", "40"]
COMPARE = ["compare", "--policies", "fcfs,sjf", "--seeds", "2", *FEW]
SIMULATE = ["simulate", "--policy", "sjf", *FEW]

CONTRACT = {
    "jct_mean_s", "jct_p95_s", "wait_mean_s", "makespan_s", "throughput_per_h", "utilisation", "effective_utilisation",
    "unfinished", "refused",
}  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON that a command prints, and nothing else."""
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def keys(value: Any) -> set[str]:
    """Every key of a JSON value, but not the names of policies and GPU models."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    below = [
        keys(list(item.values()) if key in ("policies", "models", "speeds") and isinstance(item, dict) else item)
        for key, item in value.items()
    ]
    return set(value).union(*below)


def test_help_teaches_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    bare = capsys.readouterr().out
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert re.sub(r"\s", "", bare) == re.sub(r"\s", "", text)
    assert "To simulate: choose a cluster" in text
    assert all(f"adlro {command}" in text for command in ("compare", "compare -c gavel108", "simulate -c my.toml"))


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"adlro {adlro.__version__}\n"


def test_compare_keeps_its_json_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *COMPARE, "--first-seed", "7")
    assert (found["cluster"], found["workload"], found["seeds"], found["baseline"]) == (
        "paper16",
        "paper",
        [7, 8],
        "fcfs",
    )
    assert list(found["policies"]) == ["fcfs", "sjf"]
    for policy in found["policies"].values():
        assert set(policy) > CONTRACT
        assert policy["jct_mean_s"] == pytest.approx(sum(policy["per_seed"]["jct_mean_s"]) / 2)
        low, high = policy["interval"]["jct_mean_s"]
        assert low < policy["jct_mean_s"] < high
    assert found["version"] == adlro.__version__
    assert found["settings"]["jobs"] == 40


def test_compare_shows_a_row_for_each_policy_and_the_papers_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMPARE) == 0
    shown = capsys.readouterr()
    assert re.search(r"^fcfs +[\d,.]+ ± [\d,.]+", shown.out, re.MULTILINE)
    assert re.search(r"^sjf +[\d,.]+ ± [\d,.]+ +[−+][\d.]+ %", shown.out, re.MULTILINE)
    assert re.search(r"^ADLRO \(DQN\) +– +19\.5 +– +9\.10 +– +79\.8", shown.out, re.MULTILINE)
    assert "Comparing 2 policies on 2 seeds" in shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "--seeds", "0"], "--seeds is 0; expected a number from 1."),
        (["compare", "--seeds", "abc"], "--seeds is abc; expected a whole number."),
        (["compare", "--repair-h", "x"], "--repair-h is x; expected a number."),
        (["submit", "--priority", "3", "--", "true"], "--priority is 3; expected a number of at most 1."),
    ],
)
def test_a_wrong_number_is_told_with_what_was_expected(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert f"adlro: {said} Try 'adlro {words[0]} --help'.\n" == capsys.readouterr().err


def test_the_papers_table_is_shown_for_the_papers_experiment_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMPARE, "--workload", "paper-surge"]) == 0
    assert "Table 1" not in capsys.readouterr().out
    assert run([*COMPARE, "--slow-gpus", "0.5"]) == 0
    assert "Table 1" not in capsys.readouterr().out


def test_the_papers_table_is_left_out_if_none_of_its_policies_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    for policies, is_shown in (("sjf,random", False), ("sjf,fcfs", True)):
        assert run(["compare", "-p", policies, "--jobs", "20", "--seeds", "1"]) == 0
        assert ("Table 1" in capsys.readouterr().out) == is_shown


def test_compare_says_where_the_reasons_of_refusals_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("submit_s,work,gpus\n0,60,1\n1,60,500\n")
    assert run(["compare", "--policies", "fcfs", "--workload", str(tmp_path / "jobs.csv")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Refused jobs can never run on paper16: `adlro simulate` lists the reasons." in shown
    assert run(["compare", "--policies", "fcfs", "--seeds", "1", "--jobs", "20"]) == 0
    assert "Refused" not in capsys.readouterr().out


def test_the_default_policies_are_in_the_catalogue() -> None:
    assert set(DEFAULT_POLICIES) <= {policy.name for policy in catalogue()}
    assert {"fcfs", "static-affinity", "sjf", "sjf-picky"} <= set(DEFAULT_POLICIES)


def test_simulate_prints_the_measures_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SIMULATE, "--seed", "3")
    assert (found["policy"], found["seed"], found["jobs"], found["finished"]) == ("sjf", 3, 40, 40)
    assert set(found) > CONTRACT
    assert found["lower_bounds"]["best_s"] <= found["jct_mean_s"]


def test_simulate_writes_the_event_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    assert run([*SIMULATE, "--events", str(log)]) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0]["event"] == "run"
    assert sum(line["event"] == "finish" for line in lines) == 40


def test_simulate_groups_refused_jobs_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", "--policy", "sjf", "--workload", "openb-like", "--jobs", "200"]
    found = answer(capsys, *asked)
    assert sum(row["jobs"] for row in found["refusals"]) == found["refused"] > 0
    assert run(asked) == 0
    assert found["refusals"][0]["reason"] in capsys.readouterr().out


def test_the_settings_reach_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    rougher = ["--mtbf-h", "3", "--repair-h", "1", "--wear-per-day", "0.1", "--queue-window", "5"]
    rougher += ["--weights", "priority"]
    rough = answer(capsys, *SIMULATE, *rougher)
    assert rough["failures"] > 0
    assert rough["settings"] == {
        "jobs": 40, "estimates": "oracle", "estimate_sigma": 0.0,
        "restart_s": 30.0, "kill_at_limit": False, "window": 5, "weights": "priority",
        "mtbf_h": 3.0, "repair_h": 1.0,
        "wear_per_day": 0.1, "thermal_room_c": None, "slow_gpus": 0.0, "slow_speed": 0.6, "measured_pace": False,
        "disturbances": None, "load": None, "speeds": "known", "speed_table": None,
    }  # fmt: skip


def test_with_heat_gpus_lower_their_clocks_and_a_run_says_how_far(capsys: pytest.CaptureFixture[str]) -> None:
    cold, hot = (answer(capsys, *SIMULATE, *more) for more in ([], ["--thermal", "--room-c", "45"]))
    assert cold["throttled"] is cold["hottest_c"] is None
    assert hot["settings"]["thermal_room_c"] == 45.0
    assert hot["hottest_c"] == pytest.approx(100.0)  # the limit of the AMD GPUs of paper16
    assert 0.0 < hot["throttled"] < 1.0
    assert hot["jct_mean_s"] > cold["jct_mean_s"]
    assert hot["energy_kwh"] < cold["energy_kwh"] * hot["makespan_s"] / cold["makespan_s"]


def test_slow_gpus_can_be_seen_and_avoided(capsys: pytest.CaptureFixture[str]) -> None:
    healthy, blind, seeing = (
        answer(capsys, *SIMULATE, *more)
        for more in ([], ["--slow-gpus", "0.25"], ["--slow-gpus", "0.25", "--slow-speed", "0.6", "--measured-pace"])
    )
    assert (seeing["settings"]["slow_gpus"], seeing["settings"]["slow_speed"]) == (0.25, 0.6)
    assert seeing["settings"]["measured_pace"] is True
    assert healthy["jct_mean_s"] < seeing["jct_mean_s"] < blind["jct_mean_s"]


@pytest.mark.parametrize("wrong", [["--slow-gpus", "1.5"], ["--slow-gpus", "0.1", "--slow-speed", "0"]])
def test_a_wrong_share_of_slow_gpus_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATE, *wrong]) != 0
    assert wrong[-2] in capsys.readouterr().err


def test_lists_have_a_line_for_each_item_and_all_of_it_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("policies", "clusters", "gpus", "workloads"):
        found = answer(capsys, command)
        assert run([command]) == 0
        lines = capsys.readouterr().out.splitlines()
        for item in found:
            assert sum(line.split()[:1] == [item["name"]] for line in lines) == 1
    assert set(answer(capsys, "policies")[0]) == {
        "name",
        "summary",
        "preemptive",
        "resizes",
        "stops",
        "weighs",
        "needs",
    }


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--job", "job.toml"], "--learn FILE or --live"),
        (["--ran-on", "t4"], "--learn FILE"),
        (["--csv"], "--learn FILE, --learned or --live"),
    ],
)
def test_options_of_learnt_speeds_are_refused_without_something_to_learn_from(
    words: list[str], needed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["speeds", *words]) == 2
    assert capsys.readouterr().err == (
        f"adlro: {words[0]} is about learnt speeds: expected {needed} with it (docs/speeds.md).\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--room-c", "35"], "--room-c has no effect without --thermal."),
        (["--slow-speed", "0.5"], "--slow-speed has no effect without --slow-gpus."),
        (["--repair-h", "8"], "--repair-h has no effect without --mtbf-h."),
        (["--weights", "priority"], "--weights has no effect on sjf."),
    ],
)
def test_options_without_effect_are_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATE, *words]) == 0
    assert f"adlro: {said}\n" in capsys.readouterr().err


def test_an_option_with_what_it_needs_is_no_surprise(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATE, "--thermal", "--room-c", "35"]) == 0
    assert run([*SIMULATE, "--policy", "eft-reserving", "--weights", "priority"]) == 0
    assert "no effect" not in capsys.readouterr().err


def test_speeds_say_whether_they_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    speeds = {row["family"]: row["speeds"] for row in answer(capsys, "speeds", "--cluster", "gavel108")}
    assert {speed["source"] for speed in speeds["gavel/a3c"].values()} == {"measured"}
    assert {speed["source"] for speed in speeds["simulation"].values()} == {"modelled"}
    assert run(["speeds", "--cluster", "gavel108"]) == 0
    assert re.search(r"^gavel/a3c +\d\.\d\d m", capsys.readouterr().out, re.MULTILINE)


def test_bench_prints_what_was_measured_next_to_its_floor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run_bench(progress: Any, only: tuple[str, ...] = ()) -> dict[str, Any]:
        asked.append(only)
        progress("running")
        row = {"name": "simulate-paper16", "value": 2.5e6, "unit": "jobs/s", "floor": 1e6}
        rows = [row, row | {"name": "lp-round-64", "floor": None}]
        return {"machine": {"cpu": "x"}, "results": rows, "skipped": [{"name": "read-lcg", "why": "it is not there"}]}

    module = ModuleType("adlro.bench")
    module.run_bench = run_bench  # type: ignore[attr-defined]
    module.check_names = lambda only: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "adlro.bench", module)
    assert run(["bench", "--only", "simulate-paper16", "--only", "lp-round-64"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^simulate-paper16 +2,500,000 +1,000,000 +jobs/s", shown, re.MULTILINE)
    assert "read-lcg was skipped: it is not there." in shown
    assert asked == [("simulate-paper16", "lp-round-64")]
    assert answer(capsys, "bench")["results"][0]["floor"] == 1e6


def test_bench_refuses_an_unknown_name_before_it_measures_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def bench_nothing() -> str:
        measured.append("lp")
        return "there is nothing to measure"

    monkeypatch.setattr("adlro.bench.BENCHES", {"lp-round-64": bench_nothing})
    assert run(["bench", "--only", "lp-round-64", "--only", "lp-round-65"]) == 2
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "adlro: --only: no measurement 'lp-round-65'. Did you mean 'lp-round-64'? Expected one of: lp-round-64."
    ]
    assert measured == []
    assert run(["bench", "--only", "lp-round-64"]) == 0
    assert measured == ["lp"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["comapre"], "Did you mean 'compare'"),
        (["--nope"], "No such option"),
        (["compare", "--cluster", "paper17"], "Did you mean 'paper16'"),
        (["compare", "--workload", "papr"], "Did you mean 'paper'"),
        (["compare", "--policies", "fcfs,sjff"], "Did you mean 'sjf'"),
        (["compare", "--policies", ","], "expected names separated by commas"),
        (["compare", "--seeds", "0"], "--seeds"),
        (["compare", "--mtbf-h", "0"], "expected a number above 0"),
        (["compare", "--restart-s", "nan"], "expected a number from 0"),
        (["simulate", "--policy", "nobody"], "no policy 'nobody'"),
        (["simulate", "--jobs", "many"], "--jobs"),
        (["simulate", "--events", "/no/such/folder/x.jsonl"], "expected a file in a folder that exists"),
        (["simulate", "--disturbances", "none.toml"], "No such file"),
        (["speeds", "--cluster", "none.toml"], "No such file"),
        (["policies", "--jsn"], "--json"),
        (["gpus", "v100"], "unexpected"),
    ],
)
def test_bad_usage_is_answered_in_one_line_with_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("adlro: ")
    assert said.err.count("\n") == 1
    assert expected in said.err


def test_bad_data_is_answered_in_one_line_with_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cluster = tmp_path / "bad.toml"
    cluster.write_text('name = "x"\n')
    policy = tmp_path / "bad.py"
    policy.write_text("def choose(view):\n    return None\n")
    for arguments in (["speeds", "--cluster", str(cluster)], ["simulate", *FEW, "--policy", f"{policy}:choose"]):
        assert run(arguments) == 1
        assert re.search(r"^adlro: .*bad\.(toml|py)", capsys.readouterr().err.splitlines()[-1])


def test_a_bug_is_one_line_and_a_traceback_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down() -> list[str]:
        raise KeyError("surprise")

    monkeypatch.setattr(adlro.catalogue.clusters, "cluster_names", break_down)
    assert run(["clusters"]) == 1
    said = capsys.readouterr().err
    assert said == "adlro: KeyError: 'surprise'. This is a bug: please report it, with --debug.\n"
    assert run(["clusters", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(adlro.catalogue.clusters, "cluster_names", interrupt)
    assert run(["clusters"]) == 130
    assert capsys.readouterr().err == "adlro: interrupted.\n"


def test_what_is_not_a_number_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), 1.0, float("inf")], "b": (2, "[\n3]")})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": [None, 1.0, None], "b": [2, "[\n3]"]}
    assert "[null, 1.0, null]" in text


def test_every_key_of_the_json_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    commands = (COMPARE, SIMULATE, ["policies"], ["clusters"], ["gpus"], ["workloads"], ["speeds"])
    found = set().union(*(keys(answer(capsys, *command)) for command in commands))
    assert found > CONTRACT
    assert sorted(key for key in found if f"`{key}`" not in JSON_PAGE) == []


def test_lists_do_not_wait_for_the_compiler() -> None:
    code = "import sys; from adlro.cli.app import run; run(['gpus']); run(['--help']); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="this system has no broken pipes")
def test_a_closed_pipe_ends_it_without_a_word() -> None:
    command = [sys.executable, "-m", "adlro", "gpus", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


def test_times_are_shown_in_a_unit_that_suits_them() -> None:
    assert [unit_for([value])[1] for value in (5.0, 150.0, 8000.0, 2e5)] == ["s", "min", "h", "d"]
    assert unit_for([8000.0, 150.0])[1] == "min"
    assert [number(value) for value in (None, 1.234, 12.34, 1234.5)] == ["–", "1.23", "12.3", "1,234"]


def test_estimates_can_be_asked_for_and_nonsense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for asked in ("lognormal:0.5", "noisy:0.5"):
        settings = answer(capsys, *COMPARE, "--estimates", asked)["settings"]
        assert (settings["estimates"], settings["estimate_sigma"]) == ("lognormal", 0.5)
    assert answer(capsys, *COMPARE, "--estimates", "predicted")["settings"]["estimates"] == "predicted"
    for wrong in ("nobody", "predicted:1", "noisy", "lognormal:much", "lognormal:-1", "oracle:0.5"):
        assert run([*COMPARE, "--estimates", wrong]) == 2
        assert "expected oracle, user (the limit), predicted, or noisy:SIGMA" in capsys.readouterr().err
