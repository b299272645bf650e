"""The GPU catalogue."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.core.errors import CatalogueError
from adlro.core.records import GpuModel

OWN = GpuModel("mine", "My card", "me", "", 8, 100, 50, 32, fp32_tflops=1, aliases=("Minnie",))
CSV = Path(__file__).parents[2].parent / "shared" / "gpus.csv"


def test_kepler_to_blackwell_and_mi50_to_mi355x_are_there() -> None:
    models = gpu_models().values()
    assert {"Kepler", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"} <= {
        model.architecture for model in models
    }
    assert {"mi50", "mi100", "mi250x", "mi300x", "mi355x"} <= set(gpu_models())
    assert len(models) >= 50


def test_every_model_says_where_its_figures_were_read() -> None:
    assert [model.name for model in gpu_models().values() if not model.source] == []


def test_no_name_title_or_alias_means_two_models() -> None:
    words = Counter(
        word
        for model in gpu_models().values()
        for word in {model.name.lower(), model.title.lower(), *(alias.lower() for alias in model.aliases)}
    )
    assert [word for word, times in words.items() if times > 1] == []


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("V100", "v100-sxm2-16gb"),
        ("v100m32", "v100-sxm2-32gb"),
        ("A100", "a100-sxm4-40gb"),
        ("h100", "h100-sxm5-80gb"),
        ("Instinct MI50", "mi50"),
        ("Radeon-Instinct-MI50", "mi50"),
        ("2080ti", "rtx-2080-ti"),
        ("T4", "t4"),
    ],
)
def test_a_model_is_found_by_alias_and_title_in_any_case(word: str, name: str) -> None:
    assert find_gpu(word).name == name


def test_a_figure_that_is_not_known_is_none_and_not_zero() -> None:
    assert gpu_models()["a10"].fp64_tflops is None
    assert gpu_models()["t4"].link_gb_s is None


def test_the_users_own_models_are_found_too() -> None:
    assert find_gpu("MINNIE", {"mine": OWN}) is OWN


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(CatalogueError, match=r"no GPU model 'mi3000x' in the catalogue\. Did you mean 'mi300x'\?"):
        find_gpu("mi3000x")


@pytest.mark.skipif(not CSV.exists(), reason="the full table is not beside this repository")
def test_every_figure_is_that_of_the_table_it_came_from() -> None:
    columns = {
        "memory_gb": "memory_gb",
        "mem_bw_gb_s": "memory_bandwidth_gb_s",
        "tdp_w": "tdp_w",
        "fp64_tflops": "fp64_tflops",
        "fp32_tflops": "fp32_tflops",
        "fp16_vector_tflops": "fp16_vector_tflops",
        "fp16_tensor_tflops_dense": "fp16_tensor_tflops",
        "link_gb_s_bidir_total": "link_gb_s",
        "pcie_gb_s_bidir": "pcie_gb_s",
        "launch_year": "launch_year",
    }
    by_title = {model.title: model for model in gpu_models().values()}
    with CSV.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(by_title)
    for row in rows:
        for column, field in columns.items():
            expected = float(row[column]) if row[column] else None
            assert getattr(by_title[row["gpu"]], field) == expected, (row["gpu"], column)
