"""What `import adlro` offers: a fixed list of names, the numbers of the commands, and errors in the words of Python."""

import inspect
import json
import pkgutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas
import pytest

import adlro
from adlro.cli.app import run
from adlro.experiment.conditions import UNCHANGED, Conditions
from adlro.experiment.python_words import reworded
from adlro.measure.json_text import json_text

ROOT = Path(__file__).resolve().parents[2]
OWN_POLICY = ROOT / "examples/own_policy.py"

PUBLIC = {
    "AdlroError", "Choice", "Cluster", "Comparison", "Disturbance", "NEVER", "Pair", "Policy", "Simulation", "Sweep",
    "Training", "View", "__version__", "cluster", "compare", "compiled", "legal_pairs", "nodes", "policy", "simulate",
    "starting", "stopping", "sweep", "trace", "train", "waiting",
}  # fmt: skip
"""The contract: names are added here, never renamed or removed."""

METHODS = {
    "Comparison": {"as_dict", "plot", "report", "to_pandas"},
    "Simulation": {"as_dict", "events", "to_pandas", "write_events"},
    "Training": {"as_dict", "log", "policy", "to_pandas"},
}


def widest(job: Any, site: Any, pair: Any, now: float) -> float:
    """Most GPUs first."""
    return float(job.gpus)


@pytest.fixture(scope="module")
def comparison() -> adlro.Comparison:
    return adlro.compare("paper16", "paper", ["fcfs", "sjf", widest], seeds=3, job_count=40)


def small_table() -> dict[str, list[Any]]:
    """Forty jobs as columns."""
    count = 40
    return {
        "submit_s": [60.0 * each for each in range(count)],
        "gpus": [1 + each % 4 for each in range(count)],
        "work": [600.0 * (1 + each % 7) for each in range(count)],
        "user": [("ann", "bob", "cy")[each % 3] for each in range(count)],
        "limit_s": [3600.0] * count,
    }


# ---- names -------------------------------------------------------------------------------------------------------


def test_the_public_names_are_these() -> None:
    assert set(adlro.__all__) == PUBLIC
    assert set(adlro.CALLS) | set(adlro.WORDS) == PUBLIC - {"__version__"}
    assert set(dir(adlro)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(adlro, name) is not None


def test_the_results_have_these_methods() -> None:
    for name, methods in METHODS.items():
        kind = getattr(adlro, name)
        found = {key for key, value in vars(kind).items() if inspect.isfunction(value) and not key.startswith("_")}
        assert methods <= found


def test_no_submodule_takes_the_place_of_a_public_name() -> None:
    assert not {module.name for module in pkgutil.iter_modules(adlro.__path__)} & PUBLIC


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = adlro.nothing  # type: ignore[attr-defined]


def test_import_adlro_brings_no_other_package() -> None:
    code = "import sys; import adlro; sys.exit(bool({'numba', 'numpy', 'pandas', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_comparison_imports_neither_pandas_nor_matplotlib() -> None:
    code = (
        "import sys, adlro; print(adlro.compare(policies=['fcfs', 'sjf'], seeds=1, job_count=20));"
        "sys.exit(bool({'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("function", [adlro.compare, adlro.simulate])
def test_every_condition_of_the_commands_is_a_keyword_with_the_same_default(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    for each in fields(Conditions):
        assert parameters[each.name].default == getattr(UNCHANGED, each.name)
        assert parameters[each.name].kind is inspect.Parameter.KEYWORD_ONLY


# ---- the same as the commands ------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The JSON that a command prints, without the command itself."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    return without_command(json.loads(capsys.readouterr().out))


def without_command(result: dict[str, Any]) -> str:
    """A result as JSON but for how it was made."""
    return json_text({key: value for key, value in result.items() if key != "command"})


def test_compare_gives_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    found = adlro.compare(
        "paper16", "paper", ["fcfs", OWN_POLICY.as_posix() + ":largest_gang"], seeds=8, first_seed=3, job_count=30,
        load=0.9, mtbf_h=40.0, regression=True, baseline="largest_gang",
    )  # fmt: skip
    words = ("--policies", f"fcfs,{OWN_POLICY}:largest_gang", "--seeds", "8", "--first-seed", "3", "--jobs", "30")
    more = ("--load", "0.9", "--mtbf-h", "40", "--regression", "--baseline", "largest_gang")
    assert without_command(found.as_dict()) == printed(capsys, "compare", *words, *more)


def test_the_papers_table_is_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    found = adlro.compare(policies="fcfs,sjf", seeds=1, job_count=20)
    assert "table_1" in found.as_dict()
    assert without_command(found.as_dict()) == printed(
        capsys, "compare", "--policies", "fcfs,sjf", "--seeds", "1", "--jobs", "20"
    )


def test_simulate_gives_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    found = adlro.simulate("paper16", "paper", "srtf", seed=4, job_count=30, restart_s=5.0, estimates="noisy:0.5")
    words = ("--policy", "srtf", "--seed", "4", "--jobs", "30", "--restart-s", "5", "--estimates", "noisy:0.5")
    assert without_command(found.as_dict()) == printed(capsys, "simulate", *words)


def test_a_trace_is_read_as_the_command_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "jobs.csv"
    pandas.DataFrame(small_table()).to_csv(file, index=False)
    found = adlro.compare(
        "paper16", adlro.trace(file, format="csv", families="hash:gavel"), "fcfs,sjf", windows=2, estimates="user"
    )
    words = ("-w", str(file), "--format", "csv", "--families", "hash:gavel", "--windows", "2", "--estimates", "user")
    assert without_command(found.as_dict()) == printed(capsys, "compare", "--policies", "fcfs,sjf", *words)


def test_a_result_says_by_which_call_it_was_made(comparison: adlro.Comparison) -> None:
    made = "adlro.compare(cluster='paper16', jobs='paper', policies=['fcfs', 'sjf', widest], seeds=3, job_count=40)"
    assert comparison.as_dict()["command"] == made


# ---- clusters, jobs and policies ---------------------------------------------------------------------------------


def test_a_cluster_made_in_python_is_that_of_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nnetwork = { kind = "ethernet-25g", gb_s = 6.25 }\n'
        '[[nodes]]\nname = "volta"\ncount = 2\ngpu = "v100"\ngpus = 4\ncpus = 32\nmemory_gb = 256\nlink = "nvlink"\n'
        '[[nodes]]\nname = "mixed"\ngpus = [{ model = "t4", count = 2 }, { model = "mi50", count = 1 }]\ncpus = 16\n'
        'memory_gb = 128\n[affinity]\ndata = ["t4"]\n'
    )
    made = adlro.cluster(
        nodes=[
            adlro.nodes("volta", count=2, gpu="v100", gpus=4, cpus=32, memory_gb=256, link="nvlink"),
            adlro.nodes("mixed", gpus={"t4": 2, "mi50": 1}, cpus=16, memory_gb=128),
        ],
        network=("ethernet-25g", 6.25),
        affinity={"data": ["t4"]},
    )
    assert made == adlro.cluster(file)
    assert adlro.cluster(made) is made


def test_a_gpu_model_of_ones_own_may_be_described_in_python() -> None:
    figures = {"title": "X", "vendor": "me", "memory_gb": 8.0, "memory_bandwidth_gb_s": 100.0, "tdp_w": 75.0}
    made = adlro.cluster(
        nodes=[adlro.nodes("a", gpu="x1", gpus=2, cpus=4, memory_gb=16)],
        gpu_models={"x1": figures | {"fp32_tflops": 10.0}},
    )
    assert made.models["x1"].memory_gb == 8.0


def test_what_a_cluster_cannot_be_is_said_in_one_line() -> None:
    with pytest.raises(adlro.AdlroError, match=r"adlro\.nodes\('a'\): 'gpus': 99 GPUs; expected a whole number"):
        adlro.nodes("a", gpu="v100", gpus=99, cpus=1, memory_gb=1)
    with pytest.raises(adlro.AdlroError, match=r"no GPU model 'v1000'.* Did you mean 'v100'"):
        adlro.cluster(nodes=[adlro.nodes("a", gpu="v1000", gpus=1, cpus=1, memory_gb=1)])
    with pytest.raises(adlro.AdlroError, match="expected one of them"):
        adlro.cluster()
    with pytest.raises(adlro.AdlroError, match="the cluster is a int; expected a shipped name"):
        adlro.compare(7)  # type: ignore[arg-type]


def test_a_data_frame_gives_what_its_csv_file_gives(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    frame = pandas.DataFrame(small_table())
    frame.to_csv(file, index=False)
    of_frame, of_file = (adlro.simulate("paper16", jobs, "sjf") for jobs in (frame, file))
    assert of_frame.metrics == of_file.metrics
    assert of_frame.run.events.tobytes() == of_file.run.events.tobytes()


def test_a_function_gives_what_its_file_gives() -> None:
    spec: dict[str, Any] = {}
    exec(compile(OWN_POLICY.read_text(), str(OWN_POLICY), "exec"), spec)
    for name in ("response_ratio", "largest_gang"):
        of_file, of_function = (
            adlro.simulate(policy=policy, job_count=40) for policy in (f"{OWN_POLICY}:{name}", spec[name])
        )
        assert of_function.run.policy == name
        assert of_function.metrics == of_file.metrics


def test_a_policy_may_be_renamed_and_made_of_anything_that_the_commands_take() -> None:
    assert adlro.policy("sjf", name="short").name == "short"
    assert adlro.policy(adlro.policy("sjf")).name == "sjf"
    assert adlro.policy(widest).summary == "Most GPUs first."
    shipped = ROOT / "src/adlro/decide/checkpoints/adlro.safetensors"
    assert adlro.policy(shipped, name="net").name == "net"


def test_two_functions_of_one_name_are_refused() -> None:
    with pytest.raises(adlro.AdlroError, match="policies: two policies are called '<lambda>'"):
        adlro.compare(policies=[lambda view: adlro.waiting(), lambda view: adlro.waiting()])


def test_a_function_that_fails_is_named_with_its_line() -> None:
    def broken(view: Any) -> Any:
        return view.nothing

    with pytest.raises(adlro.AdlroError, match=r"the policy 'broken' failed: AttributeError: .*\(line \d+\)"):
        adlro.simulate(policy=broken, job_count=5)


def test_disturbances_may_be_listed_in_python() -> None:
    down = [adlro.Disturbance(10.0, "down", "volta0"), adlro.Disturbance(500.0, "up", "volta0")]
    found = adlro.simulate(job_count=20, disturbances=down)
    assert [line["event"] for line in found.events() if line.get("node") == "volta0"][:2] == ["down", "up"]
    assert found.as_dict()["settings"]["disturbances"] == "2 given in Python"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seeds": 0}, "seeds is 0; expected a whole number from 1"),
        ({"seeds": [1, 1]}, "expected how many, or a list of different numbers"),
        ({"job_count": 1.5}, "job_count is 1.5; expected a whole number from 1"),
        ({"policies": []}, "policies is \\[\\]; expected names"),
        ({"policies": [3]}, "a policy is 3; expected a name"),
        ({"baseline": "sjff"}, "the baseline 'sjff' is not among"),
        ({"restart_s": -1.0}, "restart_s is -1; expected a number from 0"),
        ({"regression": True, "seeds": 2}, "regression=True with 2 seeds; expected at least 8: pass seeds"),
        ({"estimates": "guess"}, "estimates is 'guess'; expected oracle"),
        ({"windows": 3}, "windows is for traces; 'paper' has other jobs for every seed. Use seeds=3."),
    ],
)
def test_a_wrong_argument_is_refused_in_the_words_of_python(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(adlro.AdlroError, match=said):
        adlro.compare(**wrong)


def test_flags_become_keywords() -> None:
    assert reworded("Say --windows 4, or --skip-bad-rows.") == "Say windows=4, or skip_bad_rows=True."
    assert reworded("--report DIR too") == "report=DIR too"
    assert reworded("--queue-window is 'x'; say --unit processors=1") == (
        "queue_window is 'x'; say gpus_per_unit processors=1"
    )


# ---- results -----------------------------------------------------------------------------------------------------


def test_a_comparison_shows_itself_as_the_table_of_the_command(comparison: adlro.Comparison) -> None:
    text = repr(comparison)
    assert text.startswith("paper on paper16, 40 jobs, 3 seeds\npolicy")
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["fcfs", "sjf", "widest"]


def test_a_frame_has_a_row_for_each_run_or_each_policy(comparison: adlro.Comparison) -> None:
    runs = comparison.to_pandas()
    assert runs[["policy", "seed"]].values.tolist() == [[p, s] for p in ("fcfs", "sjf", "widest") for s in range(3)]
    means = comparison.to_pandas("policy")
    assert means.loc["sjf", "jct_mean_s"] == pytest.approx(runs[runs.policy == "sjf"].jct_mean_s.mean())
    assert means.loc["fcfs", "verdict"] is None or pandas.isna(means.loc["fcfs", "verdict"])
    assert means.loc["sjf", "verdict"] == "too few seeds"
    with pytest.raises(adlro.AdlroError, match="expected 'run' or 'policy'"):
        comparison.to_pandas("job")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["differences", "gantt"])
def test_a_figure_can_be_shown_and_saved(comparison: adlro.Comparison, name: str, tmp_path: Path) -> None:
    figure = comparison.plot(name)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.save(tmp_path / "figure.svg").read_text().startswith("<?xml")
    with pytest.raises(adlro.AdlroError, match=r"expected a name in \.svg or \.png"):
        figure.save(tmp_path / "figure.pdf")


def test_a_figure_that_does_not_exist_or_shows_nothing_is_refused(comparison: adlro.Comparison) -> None:
    with pytest.raises(adlro.AdlroError, match=r"there is no figure 'gant'\. Did you mean 'gantt'"):
        comparison.plot("gant")
    with pytest.raises(adlro.AdlroError, match="'differences' has nothing to show"):
        adlro.compare(policies=["fcfs"], seeds=1, job_count=10).plot()


def test_a_report_is_that_of_the_command(tmp_path: Path) -> None:
    found = adlro.compare(policies="fcfs,sjf", seeds=2, job_count=30)
    page = found.report(tmp_path / "ours", policy="sjf")
    words = ["compare", "--policies", "fcfs,sjf", "--seeds", "2", "--jobs", "30", "--report-policy", "sjf"]
    assert run([*words, "--report", str(tmp_path / "theirs")]) == 0
    assert page == tmp_path / "ours/report.html"
    files = {path.relative_to(tmp_path / "ours") for path in page.parent.rglob("*") if path.is_file()}
    for file in files - {Path("report.html"), Path("result.json")}:  # these two say how they were made
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()
    assert len(files) > 10
    with pytest.raises(adlro.AdlroError, match="'nobody' is not among the policies compared"):
        found.report(tmp_path / "ours", policy="nobody")


def test_without_times_there_is_no_report(tmp_path: Path) -> None:
    found = adlro.compare(policies="fcfs,sjf", seeds=1, job_count=10, keep_times=False)
    with pytest.raises(adlro.AdlroError, match="keep_times=True"):
        found.report(tmp_path / "out")


def test_a_missing_package_is_named_with_how_to_get_it(
    comparison: adlro.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(adlro.AdlroError, match=r"to_pandas\(\) needs pandas, .* pip install pandas"):
        comparison.to_pandas()
    with pytest.raises(adlro.AdlroError, match=r"plot\(\) needs matplotlib"):
        comparison.plot()


def test_a_simulation_tells_what_happened_to_each_job(tmp_path: Path) -> None:
    found = adlro.simulate("paper16", small_table(), "fcfs")
    jobs = found.to_pandas()
    assert len(jobs) == 40
    assert (jobs.end_s - jobs.submit_s).mean() == pytest.approx(found.metrics.jct_mean_s)
    assert (jobs.wait_s >= 0).all()
    assert set(jobs.state) == {"finished"}
    events = found.to_pandas("events")
    assert events.event.value_counts()["finish"] == 40
    assert len(found.write_events(tmp_path / "run.jsonl").read_text().splitlines()) == len(events) + 1
    assert repr(found).startswith("fcfs: DataFrame on paper16, seed 0\n40 jobs, 40 finished")


def test_jobs_that_never_run_are_told_apart() -> None:
    table = small_table() | {"gpus": [1 + each % 4 for each in range(39)] + [500]}
    found = adlro.simulate("paper16", table, "fcfs")
    last = found.to_pandas().iloc[-1]
    assert (last.state, last.model) == ("refused", "")
    assert pandas.isna(last.start_s)
    assert found.refusals[39].startswith("needs 500 GPUs")


def test_progress_is_told_from_the_first_check_to_the_last_run() -> None:
    told: list[tuple[str, int, int]] = []
    adlro.compare(policies="fcfs,sjf", seeds=2, job_count=10, progress=lambda *what: told.append(what))
    assert told[0] == ("Comparing 2 policies on 2 seeds", 0, 4)
    assert told[-1][1:] == (4, 4)
