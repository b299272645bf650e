"""Speed tables of one's own: what was learnt can be written as a table, and read again."""

import pytest

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import read_speed_table, speed_of, speed_table, with_own_table
from adlro.cli.learned import csv_of
from adlro.core.errors import CatalogueError
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
