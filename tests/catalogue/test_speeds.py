"""Speeds: measured where a table exists, modelled else, and sane in both."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.catalogue.families import REFERENCE, Mix, families, find_family
from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.catalogue.speeds import roofline, speed_of
from adlro.core.errors import CatalogueError
from adlro.core.records import MEASURED, MODELLED, GpuModel, Link, Placing, Speed

NVLINK = Link("nvlink", 300)
SLOW = Link("ethernet", 6.25)
FAMILIES = sorted(families())
MODELS = sorted(gpu_models())


def at(model: str | GpuModel, gpus: int = 1, nodes: int = 1, link: Link = NVLINK, network: Link = SLOW) -> Placing:
    return Placing(find_gpu(model) if isinstance(model, str) else model, gpus, nodes, link, network)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_model_alone_has_speed_one(family: str) -> None:
    assert speed_of(family, at(REFERENCE)).value == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_speed_is_finite_says_its_source_and_why_it_is_zero(family: str) -> None:
    for model in gpu_models().values():
        for gpus, nodes in ((1, 1), (2, 1), (3, 1), (8, 1), (8, 2), (100, 13)):
            speed = speed_of(family, at(model, gpus, nodes))
            assert 0 <= speed.value < 100
            assert speed.source in (MEASURED, MODELLED)
            assert speed.detail


@pytest.mark.parametrize(
    ("family", "t4", "mi50"), [("simulation", 0.15, 0.94), ("learning", 0.46, 0.35), ("data", 0.38, 1.06)]
)
def test_the_papers_families_prefer_the_cards_that_suit_them(family: str, t4: float, mi50: float) -> None:
    assert speed_of(family, at("t4")).value == pytest.approx(t4, abs=0.005)
    assert speed_of(family, at("mi50")).value == pytest.approx(mi50, abs=0.005)
    assert speed_of(family, at("mi50")).source == MODELLED


def test_a_gavel_speed_is_the_rate_of_one_gpu_over_that_of_one_v100() -> None:
    speed = speed_of("gavel/resnet-50-b64", at("p100", 4))
    assert speed.value == pytest.approx(10.365 / (4 * 4.395), rel=1e-3)
    assert (speed.source, speed.detail) == (MEASURED, "Gavel, OSDI 2020: 4 GPUs on one node")
    across = speed_of("gavel/resnet-50-b64", at("p100", 4, 2))
    assert across.value == pytest.approx(10.564 / (4 * 4.395), rel=1e-3)


def test_gavels_zero_means_that_it_does_not_fit() -> None:
    assert speed_of("gavel/resnet-50-b128", at("k80")).value > 0
    for nodes in (1, 2):
        speed = speed_of("gavel/resnet-50-b128", at("k80", 2, nodes))
        assert (speed.value, speed.source) == (0, MEASURED)


def test_between_measured_numbers_of_gpus_the_smaller_counts() -> None:
    assert speed_of("gavel/lm-b5", at("k80", 3)).value == speed_of("gavel/lm-b5", at("k80", 2)).value
    far = speed_of("gavel/lm-b5", at("k80", 64, 16))
    assert far.value == speed_of("gavel/lm-b5", at("k80", 8, 2)).value
    assert far.detail.endswith("8 GPUs across nodes, the most measured up to 64")


def test_a_gang_of_a_family_measured_alone_pays_modelled_communication() -> None:
    one, gang = speed_of("gavel/cyclegan", at("p100")), speed_of("gavel/cyclegan", at("p100", 4, link=Link("pcie", 32)))
    share = families()["gavel/cyclegan"].communication
    assert gang.value == pytest.approx(one.value / (1 - share + share * 300 / 32))
    assert (one.source, gang.source) == (MEASURED, MODELLED)


def test_where_crossing_was_not_measured_it_is_modelled_on_the_measured_speed() -> None:
    one = speed_of("gavel/resnet-50-b64", at("k80", 4))
    across = speed_of("gavel/resnet-50-b64", at("k80", 4, 2))
    share = families()["gavel/resnet-50-b64"].communication
    assert one.source == MEASURED
    assert across.source == MODELLED
    assert across.value == pytest.approx(one.value / (1 - share + share * 300 / 6.25))


def test_sia_speeds_are_measured_on_its_five_models() -> None:
    for model in ("t4", "v100", "a100", "rtx6000", "2080ti"):
        assert speed_of("sia/bert", at(model)).source == MEASURED
    assert speed_of("sia/bert", at("a100")).value == pytest.approx(2.02, abs=0.01)


@pytest.mark.parametrize(("name", "gpus"), [("sia/ncf", 1), ("sia/gpt-pmp", 2)])
def test_a_family_not_measured_on_the_reference_is_tied_to_it_by_its_anchor(name: str, gpus: int) -> None:
    speed = speed_of(name, at("a100", gpus))
    assert speed.value == pytest.approx(roofline(families()[name], find_gpu("a100")).value)
    assert speed.source == MEASURED
    assert "whose own speed is modelled" in speed.detail


def test_a_pipeline_does_not_run_on_fewer_gpus_than_it_has_stages() -> None:
    assert speed_of("sia/gpt-pmp", at("2080ti", 4)).value == 0
    assert speed_of("sia/gpt-pmp", at("2080ti", 8)).value > 0
    assert speed_of("sia/gpt-pmp", at("2080ti", 8, 2)).source == MODELLED


def test_the_v100_with_more_memory_takes_the_measured_rows_of_its_chip() -> None:
    assert speed_of("sia/bert", at("v100m32")) == speed_of("sia/bert", at("v100"))
    assert speed_of("sia/bert", at("v100 pcie 16gb")).source == MODELLED


def test_a_missing_figure_gives_no_speed_and_says_which() -> None:
    speed = speed_of("simulation", at("a10"))
    assert speed == Speed(0.0, MODELLED, "no FP64 figure for A10: add a [gpus.NAME] table with fp64_tflops")
    assert speed_of("learning", at("a10")).value > 0


def test_tensor_work_runs_on_the_fastest_unit_there_is() -> None:
    family = replace(families()["learning"], mix=Mix(tensor=1.0))
    assert roofline(family, find_gpu("mi50")).value == pytest.approx(26.5 / 125)
    assert roofline(family, find_gpu("p4")).value == pytest.approx(5.7 / 125)


def test_a_job_without_gpus_has_rate_one_and_one_with_gpus_needs_some() -> None:
    assert speed_of("data", Placing(None, 0, 1, SLOW, SLOW)).value == 1
    assert speed_of("data", Placing(None, 1, 1, SLOW, SLOW)).value == 0


@given(
    st.sampled_from(FAMILIES),
    st.sampled_from(MODELS),
    st.sampled_from(["fp64_tflops", "fp32_tflops", "fp16_tensor_tflops", "memory_bandwidth_gb_s"]),
    st.floats(1, 10),
)
def test_a_faster_datasheet_is_never_slower(family: str, model: str, figure: str, factor: float) -> None:
    slower = gpu_models()[model]
    changes: dict[str, Any] = {figure: (getattr(slower, figure) or 1.0) * factor}
    faster = replace(slower, **changes)
    kind = families()[family]
    assert roofline(kind, faster).value >= roofline(kind, slower).value * (1 - 1e-12)


@given(
    st.sampled_from(FAMILIES),
    st.sampled_from(MODELS),
    st.integers(2, 64),
    st.floats(1, 2000),
    st.floats(1, 2000),
)
def test_modelled_crossing_is_never_faster(family: str, model: str, gpus: int, link: float, network: float) -> None:
    links = Link("link", link), Link("network", network)
    one = speed_of(family, Placing(gpu_models()[model], gpus, 1, *links))
    across = speed_of(family, Placing(gpu_models()[model], gpus, 2, *links))
    if across.source == MODELLED:
        assert across.value <= one.value * (1 + 1e-12)


def test_a_faster_network_is_never_slower_and_no_gang_beats_its_gpus_alone() -> None:
    values = [speed_of("learning", at("mi50", 8, 2, network=Link("n", gb_s))).value for gb_s in (1, 10, 100, 1000)]
    assert values == sorted(values)
    assert speed_of("learning", at("h100", 8, link=Link("nvlink", 900))).value == speed_of("learning", at("h100")).value


def test_a_family_is_found_by_the_name_in_its_table() -> None:
    assert find_family("ResNet-18 (batch size 16)").name == "gavel/resnet-18-b16"
    assert find_family("gpt_pmp").name == "sia/gpt-pmp"
    assert find_family("Learning").name == "learning"
    originals = [family.original for family in families().values() if family.original]
    assert len(originals) == len(set(originals)) == 26 + 7


def test_an_unknown_family_gets_the_nearest_name() -> None:
    with pytest.raises(CatalogueError, match=r"no family 'lerning'\. Did you mean 'learning'\?"):
        speed_of("lerning", at("t4"))
