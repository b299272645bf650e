"""Where the jobs of a trace ran: a job that took an hour on a T4 takes an hour when it is replayed on a T4."""

from pathlib import Path

import pytest
from tests.ingest.traces.samples import SACCT, SAMPLES

import adlro
from adlro.cli.app import run
from adlro.core.errors import AdlroError
from adlro.core.tables import Jobs
from adlro.experiment.traces import read_history, read_trace
from adlro.ingest.traces.describe import describe_trace
from adlro.ingest.traces.slurm import gpus_in_tres, type_in
from adlro.ingest.traces.tabulate import TraceOptions, TraceReport

HEADER = "JobID|User|JobName|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|"


def sacct(*rows: str, columns: str = "AllocTRES|NodeList|NNodes") -> str:
    """Jobs of one hour each, with a limit of two, by what these columns say."""
    common = "ann|train|COMPLETED|2024-03-04T08:00:00|2024-03-04T08:01:00|2024-03-04T09:01:00|3600|120"
    return HEADER + columns + "\n" + "".join(f"{100 + n}|{common}|{row}\n" for n, row in enumerate(rows))


def read(folder: Path, text: str, ran_on: str | None = None, families: str = "learning") -> tuple[Jobs, TraceReport]:
    (folder / "jobs.txt").write_text(text)
    return read_trace(str(folder / "jobs.txt"), TraceOptions(families=families, ran_on=ran_on))


T4 = """\
name = "turing"
network = { kind = "ethernet-100g", gb_s = 25.0 }
nodes = [{ name = "t", count = 2, gpu = "t4", gpus = 4, cpus = 32, memory_gb = 128 }]
"""


def replayed_s(folder: Path, text: str, ran_on: str | None = None, cluster: str = T4) -> list[float]:
    """How long each job runs when it is replayed on the cluster, alone on its GPUs."""
    (folder / "jobs.txt").write_text(text)
    (folder / "cluster.toml").write_text(cluster)
    jobs = adlro.trace(folder / "jobs.txt", families="learning", ran_on=ran_on)
    found = adlro.simulate(adlro.cluster(folder / "cluster.toml"), jobs, "fcfs").to_pandas()
    return (found["end_s"] - found["start_s"]).tolist()


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ("billing=8,cpu=8,gres/gpu=1,gres/gpu:t4=1|t0|1", "AllocTRES|NodeList|NNodes"),
        ("cpu=8,gres/gpu:t4=2|t0|1", "AllocTRES|NodeList|NNodes"),
        ("cpu=8|gpu:t4:4", "AllocTRES|AllocGRES"),
        ("cpu=8,gres/gpu=1|cpu=8,gres/gpu:t4=1", "AllocTRES|ReqTRES"),
        ("cpu=8,gres/gpu:t4_0=1,gres/gpu:t4_3=1|t0|1", "AllocTRES|NodeList|NNodes"),
    ],
)
def test_a_job_of_an_hour_on_a_t4_is_replayed_in_an_hour_on_a_t4(row: str, columns: str, tmp_path: Path) -> None:
    assert replayed_s(tmp_path, sacct(row, columns=columns)) == pytest.approx([3600])


def test_a_gang_over_two_nodes_is_replayed_in_its_time_too(tmp_path: Path) -> None:
    assert replayed_s(tmp_path, sacct("cpu=8,gres/gpu:t4=8|t[0-1]|2")) == pytest.approx([3600])
    # On one node the same job would have been faster, so more work was done in that hour.
    two = read(tmp_path, sacct("cpu=8,gres/gpu:t4=8|t[0-1]|2"))[0].work[0]
    assert read(tmp_path, sacct("cpu=8,gres/gpu:t4=8|t0|1"))[0].work[0] > 1.05 * two


def test_nodes_tell_the_model_by_a_cluster_or_by_a_map(tmp_path: Path) -> None:
    text = sacct("cpu=8,gres/gpu=1|t1|1")
    slow = replayed_s(tmp_path, text)[0]
    assert slow > 2 * 3600  # nobody says what the node has: it counts as the reference model
    assert replayed_s(tmp_path, text, str(tmp_path / "cluster.toml")) == pytest.approx([3600])
    for nodes in ('"t[0-3]" = "t4"', '"t*" = "t4"', 't1 = "t4"'):
        (tmp_path / "map.toml").write_text(f"[nodes]\n{nodes}\n")
        assert replayed_s(tmp_path, text, str(tmp_path / "map.toml")) == pytest.approx([3600])
    assert replayed_s(tmp_path, text, "t4") == pytest.approx([3600])


def test_types_of_a_site_get_their_model_from_a_map(tmp_path: Path) -> None:
    text = sacct("cpu=8,gres/gpu:turing=1|x1|1", "cpu=8,gres/gpu:volta=1|x2|1")
    jobs, report = read(tmp_path, text)
    assert jobs.work.tolist() == [3600, 3600]
    assert "'turing' (1 jobs), 'volta' (1 jobs) are no models" in report.warnings[-1]
    (tmp_path / "map.toml").write_text('default = "v100"\n[types]\nTuring = "t4"\n')
    jobs, report = read(tmp_path, text, str(tmp_path / "map.toml"))
    assert jobs.work[0] < 0.5 * 3600
    assert jobs.work[1] == 3600
    assert report.ran_on.startswith("2 of 2 GPU jobs on t4 (1), v100-sxm2-16gb (1);")
    assert report.warnings == ()


def test_nodes_without_a_model_are_said_only_where_speeds_differ(tmp_path: Path) -> None:
    text = sacct("cpu=8,gres/gpu=1|t1|1")
    assert "1 jobs name their nodes, but not their GPUs" in read(tmp_path, text)[1].warnings[-1]
    assert read(tmp_path, text, families="uniform")[1].warnings == ()


def test_limits_stay_and_estimates_follow_the_work(tmp_path: Path) -> None:
    jobs, _report = read(tmp_path, sacct("gres/gpu:t4=1|t0|1"))
    assert jobs.table["limit"].tolist() == [7200]
    assert jobs.table["estimate"][0] == pytest.approx(2 * jobs.work[0])


def test_describe_shows_times_as_they_were_recorded(tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").write_text(sacct("gres/gpu:t4=2|t0|1"))
    recorded, jobs, report = read_history(str(tmp_path / "jobs.txt"), TraceOptions(families="learning"))
    assert describe_trace(recorded, report)["duration_s"]["p50"] == 3600
    assert describe_trace(recorded, report)["gpu_hours"] == 2
    assert jobs.work[0] < recorded.work[0]


def test_the_slowest_gpu_of_a_mixed_gang_counts(tmp_path: Path) -> None:
    mixed, slow = sacct("gres/gpu:t4=1,gres/gpu:v100=1|a,b|2"), sacct("gres/gpu:t4=2|a,b|2")
    assert read(tmp_path, mixed)[0].work == pytest.approx(read(tmp_path, slow)[0].work)


def test_a_job_on_gpus_that_cannot_run_its_family_keeps_its_time_and_is_counted(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, sacct("gres/gpu:a10=1|a|1"), families="simulation")  # no FP64 figure for A10
    assert jobs.work.tolist() == [3600]
    assert "1 jobs ran on GPUs on which their family has no speed" in report.warnings[-1]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_trace_that_does_not_say_where_jobs_ran_keeps_its_work(name: str, tmp_path: Path) -> None:
    text = SAMPLES[name].replace("gres/gpu:a100=2", "gres/gpu=2")
    (tmp_path / "trace").write_text(text)
    options = TraceOptions(families="learning")
    recorded, jobs, report = read_history(str(tmp_path / "trace"), options)
    assert jobs is recorded
    assert report.ran_on == ""


def test_jobs_without_gpus_and_families_alike_everywhere_keep_their_times(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, sacct("cpu=8|t0|1", "gres/gpu:t4=1|t0|1"), families="uniform")
    assert jobs.work.tolist() == [3600, 3600]
    assert report.ran_on.startswith("1 of 1 GPU jobs on t4 (1)")


def test_gpus_in_the_words_of_old_and_new_versions_are_counted() -> None:
    assert gpus_in_tres("billing=8,cpu=8,gres/gpu=4,gres/gpu:a100=4") == 4
    assert gpus_in_tres("gres/gpu:a100=2,gres/gpu:t4=1") == 3
    assert gpus_in_tres("gpu:2") == 2
    assert gpus_in_tres("gpu:v100:2,mic:1") == 2
    assert gpus_in_tres("cpu=4") == 0
    assert type_in("gres/gpu=2,gres/gpu:a100=2") == "a100"


def test_what_old_slurm_asks_of_each_node_is_multiplied_by_its_nodes(tmp_path: Path) -> None:
    asked = sacct("gpu:2|2", columns="ReqGRES|NNodes")
    assert read(tmp_path, asked)[0].table["gpus"].tolist() == [4]
    held = sacct("gpu:2|2", columns="AllocGRES|NNodes")
    assert read(tmp_path, held)[0].table["gpus"].tolist() == [2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "Did you mean 't4'"),
        ("[nodes]\nx = 'nothing'\n", "'nodes.x': there is no GPU model 'nothing'"),
        ("[node]\nx = 't4'\n", "Did you mean 'nodes'"),
        ("= 3", "this is not TOML"),
        ("[types]\nx = 3\n", "expected"),
    ],
)
def test_a_wrong_ran_on_is_one_line(text: str | None, said: str, tmp_path: Path) -> None:
    path = str(tmp_path / "map.toml") if text is not None else "t44"
    if text is not None:
        Path(path).write_text(text)
    with pytest.raises(AdlroError, match=said) as error:
        read(tmp_path, SACCT, path)
    assert "\n" not in str(error.value)


def test_runs_say_what_a_trace_does_not_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.txt").write_text(sacct("gres/gpu:turing=1|t0|1"))
    words = ["simulate", "-w", str(tmp_path / "jobs.txt"), "-p", "fcfs", "--families", "learning"]
    assert run([*words, "--json"]) == 0
    assert "adlro: jobs.txt: GPU types 'turing' (1 jobs) are no models" in capsys.readouterr().err


ASKED = sacct("gres/gpu=1,gres/gpu:turing=1|gres/gpu:turing=1|t0", columns="AllocTRES|ReqTRES|NodeList")


def test_a_job_that_asked_for_a_type_of_the_map_may_run_on_that_model(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text("[types]\nTuring = 't4'\n")
    jobs, _report = read(tmp_path, ASKED, str(tmp_path / "map.toml"))
    assert jobs.allowed[int(jobs.table["allowed"][0])] == {"t4"}
    assert replayed_s(tmp_path, ASKED, str(tmp_path / "map.toml")) == pytest.approx([3600])


@pytest.mark.parametrize("word", ["t4_1", "nvidia t4"])
def test_a_job_that_asked_for_a_model_in_the_words_of_its_driver_may_run_on_it(word: str, tmp_path: Path) -> None:
    rows = f"gres/gpu=1,gres/gpu:{word}=1|gres/gpu:{word}=1|t0"
    assert replayed_s(tmp_path, sacct(rows, columns="AllocTRES|ReqTRES|NodeList")) == pytest.approx([3600])


@pytest.mark.parametrize("words", [["simulate", "-p", "fcfs"], ["compare", "-p", "fcfs"]])
def test_runs_say_that_jobs_are_refused_because_of_a_type_that_the_cluster_lacks(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.txt").write_text(ASKED)
    (tmp_path / "cluster.toml").write_text(T4)
    assert run([*words, "-w", str(tmp_path / "jobs.txt"), "-c", str(tmp_path / "cluster.toml"), "--json"]) == 0
    assert "1 of its 1 jobs allow only GPUs that turing does not have ('turing')" in capsys.readouterr().err


def test_describe_says_that_jobs_would_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.txt").write_text(ASKED)
    assert run(["trace", "describe", str(tmp_path / "jobs.txt"), "--cluster", "paper16"]) == 0
    assert "1 of its 1 jobs allow only GPUs that paper16 does not have ('turing')" in capsys.readouterr().out
    (tmp_path / "map.toml").write_text("[types]\nturing = 't4'\n")
    words = ["--cluster", "paper16", "--ran-on", str(tmp_path / "map.toml")]
    assert run(["trace", "describe", str(tmp_path / "jobs.txt"), *words]) == 0
    assert "allow only" not in capsys.readouterr().out
