"""The workloads that ship with the package can be read, and are what their comments say."""

import csv
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from adlro.catalogue.workloads import workload_names, workload_text
from adlro.core.errors import CatalogueError
from adlro.ingest.synthetic import generate, long_run_load, mean_duration
from adlro.ingest.workload_file import Workload, load_workload

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def shipped(name: str) -> Workload:
    return load_workload(*workload_text(name))


def test_the_promised_workloads_are_there() -> None:
    assert set(workload_names()) >= {"paper", "paper-surge", "openb-like", "sia-philly", "gavel"}


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_is_called_like_its_file_and_can_be_drawn(name: str) -> None:
    workload = shipped(name)
    jobs = generate(workload, 0, 200)
    assert workload.name == name
    assert workload.summary
    assert len(jobs) >= 200
    assert np.all(jobs.work > 0)
    assert np.all(jobs.table["estimate"] > 0)


def test_a_misspelt_workload_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(CatalogueError, match="Did you mean 'paper'"):
        workload_text("papr")


def test_paper_has_gangs_of_four_sizes_and_jobs_of_twenty_three_minutes() -> None:
    workload = shipped("paper")
    assert {name for part in workload.families for name in part.family} == {"simulation", "learning", "data"}
    assert all(part.gpus == {1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1} for part in workload.families)
    weights = [part.weight for part in workload.families]
    means = [mean_duration(part.duration) for part in workload.families]
    assert np.average(means, weights=weights) == pytest.approx(1380, rel=0.02)


def test_paper_surge_is_paper_with_more_learning_jobs() -> None:
    calm, surging = shipped("paper"), shipped("paper-surge")
    assert surging.model_copy(update={"name": calm.name, "summary": calm.summary, "surge": None}) == calm
    assert surging.surge is not None
    assert surging.surge.family == "learning"
    assert len(generate(surging, 0)) > len(generate(calm, 0))


def test_gavel_draws_26_families_on_one_gpu_and_durations_of_its_generator() -> None:
    workload = shipped("gavel")
    jobs = generate(workload, 0, 20_000)
    assert len(jobs.families) == 26
    assert np.bincount(jobs.table["family"]).min() > 20_000 / 26 * 0.85
    assert set(jobs.table["gpus"]) == {1}
    exponent = np.log10(jobs.work / 60)
    assert np.all((exponent > 1.5) & (exponent < 4))
    assert np.mean(exponent > 3) == pytest.approx(0.2, abs=0.01)
    assert exponent[exponent < 3].mean() == pytest.approx(2.25, abs=0.01)
    assert exponent[exponent > 3].mean() == pytest.approx(3.5, abs=0.02)


def test_openb_like_loads_the_cluster_to_four_fifths() -> None:
    assert long_run_load(shipped("openb-like"), 6212) == pytest.approx(0.8, abs=0.005)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the openb task list")
def test_openb_like_has_the_counts_of_the_task_list() -> None:
    path = SHARED / "alibaba_gpu_v2023" / "openb_pod_list_gpuspec33_until_12000000s.csv.xz"
    with lzma.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    listed = Counter((int(row["num_gpu"]), int(row["cpu_milli"]), int(row["memory_mib"])) for row in rows)
    ours: Counter[tuple[int, int, int]] = Counter()
    for part in shipped("openb-like").families:
        assert part.weight == sum(row.seen for row in part.classes)
        for row in part.classes:
            ours[row.gpus, row.cpu_milli, row.memory_mib] += int(row.seen)
    assert ours == listed


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs Sia's lists")
def test_sia_philly_has_the_applications_and_gangs_of_its_lists() -> None:
    listed: Counter[tuple[str, int]] = Counter()
    for path in (SHARED / "sia_workloads" / "philly").glob("*.csv"):
        with path.open() as file:
            listed.update((f"sia/{row['application']}", int(row["num_replicas"])) for row in csv.DictReader(file))
    ours: Counter[tuple[str, int]] = Counter()
    for part in shipped("sia-philly").families:
        ours[part.family[0], next(iter(part.gpus))] += int(part.weight)
    assert ours == listed
