"""Names as drivers report them, and what is said of one that the catalogue does not have."""

import pytest

from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.ingest.telemetry.names import explain_unknown, model_of

REPORTED = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "Tesla V100-PCIE-16GB": "v100-pcie-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "Tesla V100-SXM3-32GB": "v100-sxm2-32gb",
    "Tesla T4": "t4",
    "Tesla P100-SXM2-16GB": "p100-sxm2",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla K80": "k80",
    "Tesla M40": "m40-12gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H100 NVL": "h100-nvl-94gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA B200": "b200-sxm",
    "NVIDIA L40S": "l40s",
    "NVIDIA A10": "a10",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "GeForce GTX 1080 Ti": "gtx-1080-ti",
    "Quadro RTX 6000": "quadro-rtx-6000",
    "NVIDIA TITAN RTX": "titan-rtx",
    "AMD Instinct MI250X": "mi250x",
    "AMD Instinct MI250X / MI250": "mi250x",
    "AMD Instinct MI300X OAM": "mi300x",
    "AMD Instinct MI210": "mi210",
    "AMD Radeon VII": "radeon-vii",
    "AMD Radeon Instinct MI50": "mi50",
}


@pytest.mark.parametrize(("name", "model"), REPORTED.items())
def test_a_name_that_a_driver_reports_is_found(name: str, model: str) -> None:
    found = model_of(name, find_gpu)
    assert found is not None
    assert found.name == model


@pytest.mark.parametrize("name", ["NVIDIA H20", "NVIDIA GB200", "Tesla M40 24GB", "Voodoo 2", "", "   ", "\x00"])
def test_a_name_that_is_not_there_is_not_taken_for_another(name: str) -> None:
    assert model_of(name, find_gpu) is None


def test_every_title_and_alias_of_the_catalogue_is_found_behind_its_maker() -> None:
    for model in gpu_models().values():
        for word in (model.name, model.title, *model.aliases):
            found = model_of(f"{model.vendor} {word}", find_gpu)
            assert found is not None, word
            assert found.name == model.name


def test_an_unknown_name_comes_with_the_nearest_models_and_how_to_add_it() -> None:
    text = explain_unknown("NVIDIA H20", gpu_models())
    assert "'NVIDIA H20' is not in the catalogue" in text
    assert "h200" in text
    assert "[gpus.NAME]" in text
    assert "\n" not in text
