"""Speed tables of one's own: what was learnt can be written as a table, and read again."""

import pickle
from pathlib import Path

import pytest

import adlro
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.gpus import gpu_models
from adlro.catalogue.speeds import read_speed_table, speed_of, speed_table, with_own_table
from adlro.cli.learned import csv_of
from adlro.core.errors import CatalogueError, ConfigError
from adlro.core.learned import FoundFamily, LearnedSpeed, LearnedTable
from adlro.core.records import MEASURED, Placing

CLUSTER = load_cluster("paper16")


def at(model: str, gpus: int = 1) -> Placing:
    return Placing(CLUSTER.models[model], gpus, 1, CLUSTER.network, CLUSTER.network)


def test_what_was_learnt_comes_back_from_its_table() -> None:
    speeds = [{name: LearnedSpeed(value, 0.1, 9.0, 3) for name, value in zip(CLUSTER.models, some, strict=True)}
              for some in ((1.0, 0.25, 0.5), (1.0, 1.5, 0.75))]  # fmt: skip
    families = tuple(FoundFamily(("train", "bert"), ("ann",), 5, each) for each in speeds)
    text = csv_of(LearnedTable(next(iter(CLUSTER.models)), families, 10, 0, "live"))
    own = with_own_table(text, "own.csv")
    for name, each in (("found/train-bert", speeds[0]), ("found/train-bert-2", speeds[1])):
        for model, speed in each.items():
            for gpus in (1, 4):
                found = own(name, at(model, gpus))
                assert found.value == pytest.approx(speed.value)
                assert found.source == MEASURED
    assert own("simulation", at("t4")) == speed_of("simulation", at("t4"))


def test_a_family_without_the_reference_model_is_relative_to_its_first_model() -> None:
    own = with_own_table(speed_table([("a", "t4", 20.0), ("a", "mi50", 5.0)], "two lines\nof comment"), "own.csv")
    assert own("a", at("t4")).value == 1.0
    assert own("a", at("mi50")).value == 0.25


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("family,gpu\na,t4\n", "own.csv: the columns are family,gpu; expected family,gpu,gpus,across,per_second."),
        ("", "own.csv: the columns are nothing; expected"),
        ("family,gpu,gpus,across,per_second\na,t4,one,0,2\n", "own.csv: row 1 (a) is wrong; expected"),
        ("family,gpu,gpus,across,per_second\na,t4,1,0,nan\n", "own.csv: row 1 (a) is wrong; expected"),
    ],
)
def test_a_table_that_is_none_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(CatalogueError) as error:
        read_speed_table(text, "own.csv")
    assert str(error.value).startswith(said)


# ---- in experiments ------------------------------------------------------------------------------------------------

OWN = speed_table([("mine", "v100-sxm2-16gb", 10.0), ("mine", "k80", 30.0), ("gavel/a3c", "k80", 7.0)], "")
WORKLOAD = """
name = "mine"
summary = "one family of a table"
jobs = 4
[arrivals]
process = "all-at-once"
[[families]]
family = "mine"
duration = { distribution = "fixed", value_s = 600 }
"""


def two_models(tmp_path: Path) -> adlro.Cluster:
    (tmp_path / "own.csv").write_text(OWN, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(WORKLOAD, encoding="utf-8")
    return adlro.cluster(
        nodes=[
            adlro.nodes("volta", gpu="v100", gpus=4, cpus=32, memory_gb=256),
            adlro.nodes("kepler", gpu="k80", gpus=4, cpus=32, memory_gb=256),
        ]
    )


def test_jobs_of_a_family_that_only_the_own_table_has_run_at_its_speeds(tmp_path: Path) -> None:
    found = adlro.simulate(two_models(tmp_path), tmp_path / "mine.toml", "sjf", speed_table=tmp_path / "own.csv")
    assert found.metrics.jct_mean_s == pytest.approx(200.0)  # all on the K80: three times as fast as the V100
    assert found.as_dict()["settings"]["speed_table"] == str(tmp_path / "own.csv")


def test_without_the_table_its_families_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no family 'mine'"):
        adlro.simulate(two_models(tmp_path), tmp_path / "mine.toml", "sjf")


def test_a_trace_may_name_a_family_of_the_own_table(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("submit_s,work,gpus,family\n0,600,1,mine\n0,600,1,uniform\n", "utf-8")
    found = adlro.simulate(two_models(tmp_path), tmp_path / "jobs.csv", "sjf", speed_table=str(tmp_path / "own.csv"))
    assert found.metrics.jct_mean_s == pytest.approx((200.0 + 600.0) / 2)
    mapped = tmp_path / "all.csv"
    mapped.write_text("submit_s,work,gpus\n0,600,1\n", "utf-8")
    jobs = adlro.trace(mapped, families="mine")
    found = adlro.simulate(two_models(tmp_path), jobs, "sjf", speed_table=str(tmp_path / "own.csv"))
    assert found.metrics.jct_mean_s == pytest.approx(200.0)


def test_a_family_without_a_row_for_a_model_of_the_cluster_is_refused(tmp_path: Path) -> None:
    cluster = two_models(tmp_path)
    (tmp_path / "own.csv").write_text(speed_table([("mine", "k80", 30.0)], ""), encoding="utf-8")
    with pytest.raises(CatalogueError, match=r"own\.csv: the family 'mine' has no row for v100-sxm2-16gb"):
        adlro.simulate(cluster, tmp_path / "mine.toml", "sjf", speed_table=str(tmp_path / "own.csv"))


def test_own_speeds_can_travel_to_other_processes() -> None:
    own = with_own_table(OWN, "own.csv")
    again = pickle.loads(pickle.dumps(own))
    assert again == own
    k80 = gpu_models()["k80"]
    assert again("mine", Placing(k80, 1, 1, CLUSTER.network, CLUSTER.network)).value == 3.0
