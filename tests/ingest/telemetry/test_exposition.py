"""An exporter's page: good lines are kept, bad ones are counted, nothing is lost silently."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ingest.telemetry.exporters import AMD, DCGM, amd_page, dcgm_page, says, served

from adlro.core.errors import TelemetryError
from adlro.ingest.telemetry.exposition import BAD_LINE, read_exposition, scrape_exporter
from adlro.ingest.telemetry.series import AMD_SERIES, NVIDIA_SERIES

NOW = 1_800_000_000.0
LINE = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="a"}'


def test_a_page_of_dcgm_is_read_from_its_server() -> None:
    with served(says(dcgm_page("a0", gpus=3))) as url:
        found = scrape_exporter(f"{url}/metrics")
    assert [(gpu.node, gpu.index, gpu.uuid) for gpu in found.gpus] == [("a0", g, f"GPU-a0-{g}") for g in range(3)]
    assert len(found) == 3 * len(DCGM)
    assert sum(found.lost.values()) == 0
    assert found.source == f"{url}/metrics"


def test_a_page_of_amd_is_read_with_and_without_its_prefix() -> None:
    for prefix in ("", "amd_"):
        found = read_exposition(amd_page("m0", prefix=prefix), "test", NOW)
        assert len(found) == 2 * (len(AMD) + 2)
        assert found.lost["another clock"] == 2
        assert {r.unit for r in found if r.metric == "memory_used"} == {"MiB"}
        assert {r.name for r in found} == {"AMD Instinct MI300X OAM"}


def test_every_reading_has_a_unit_a_time_and_a_source() -> None:
    for reading in read_exposition(dcgm_page("a0"), "test", NOW):
        assert reading.unit
        assert (reading.time_s, reading.source) == (NOW, "test")


def test_bad_lines_are_counted_and_good_ones_kept() -> None:
    good = dcgm_page("a0", gpus=1)
    bad = [f"{LINE} abc", LINE.replace('"}', "}") + " 1", f"{LINE[:-1]} 1", "DCGM_FI_DEV_GPU_UTIL"]
    found = read_exposition("\n".join([*bad, good, "up 1", ""]), "test", NOW)
    assert len(found) == len(DCGM)
    assert found.lost[BAD_LINE] == len(bad)
    assert found.lost["not a series of ours"] == 1


def test_labels_with_odd_characters_are_names_like_others() -> None:
    page = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="a \\"b\\" {c},=\\\\ \\n ü",modelName="x}"} 50\n'
    found = read_exposition(page, "test", NOW)
    assert (found.gpus[0].node, found.gpus[0].name) == ('a "b" {c},=\\ \n ü', "x}")


def test_a_node_without_a_name_is_that_of_the_address_and_a_port_is_no_part_of_a_name() -> None:
    assert read_exposition('gpu_gfx_activity{gpu_id="0"} 1\n', "test", NOW, "box").gpus[0].node == "box"
    assert read_exposition('gpu_gfx_activity{gpu_id="0",instance="n1:9400"} 1\n', "test", NOW).gpus[0].node == "n1"
    lost = read_exposition('gpu_gfx_activity{gpu_id="0"} 1\n', "test", NOW)
    assert (len(lost), lost.lost["no node or GPU index in its labels"]) == (0, 1)


def test_a_time_in_the_page_is_the_time_of_the_reading() -> None:
    found = read_exposition(f"{LINE} 50 1700000000123\n", "test", NOW)
    assert found.time_s[0] == pytest.approx(1_700_000_000.123)


def test_numbers_too_large_for_a_float_do_not_break_it() -> None:
    found = read_exposition(f"{LINE} {'9' * 400}\n{LINE} NaN\n{LINE} +Inf\n", "test", NOW)
    assert len(found) == 3
    assert [math.isfinite(value) for value in found.value.tolist()] == [False] * 3


def test_parts_of_a_split_gpu_are_not_taken_for_the_whole() -> None:
    text = dcgm_page("a0", gpus=1).replace('gpu="0"', 'gpu="0",GPU_I_ID="7"')
    found = read_exposition(text, "test", NOW)
    metrics = {reading.metric for reading in found}
    assert "power" in metrics
    assert not {"utilisation", "memory_used"} & metrics
    assert len(found) + found.lost["part of a GPU that is split up"] == len(DCGM)


@pytest.mark.parametrize("body", ["<!DOCTYPE html><p>Log in", b"\x00\x01\x02"])
def test_a_web_page_or_binary_data_is_told(body: str | bytes) -> None:
    with served(says(body)) as url, pytest.raises(TelemetryError, match="found a web page or binary data"):
        scrape_exporter(url)


NAMES = st.sampled_from([*NVIDIA_SERIES, *AMD_SERIES, "up"])
VALUES = st.sampled_from(["1", "0.5", "NaN", "-Inf", "1e999", "x", "", "1 2 3", "1 1700000000000", "0x1"])
LABELS = st.dictionaries(
    st.sampled_from(["gpu", "gpu_id", "Hostname", "instance", "UUID", "clock_type", "clock_index", "odd name", ""]),
    st.text(st.characters(exclude_characters="\n"), max_size=6) | st.sampled_from(["0", "7"]),
    max_size=4,
)


def line_of(name: str, labels: dict[str, str], value: str) -> str:
    inside = ",".join(f'{key}="{word}"' for key, word in labels.items())
    return f"{name}{{{inside}}} {value}"


@given(st.lists(st.builds(line_of, NAMES, LABELS, VALUES) | st.text(max_size=40), max_size=6))
def test_every_line_is_a_reading_or_is_counted(lines: list[str]) -> None:
    text = "\n".join(lines)
    found = read_exposition(text, "test", NOW, "box")
    samples = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    assert len(found) + sum(found.lost.values()) == len(samples)


@given(st.text(max_size=200))
def test_no_text_makes_it_crash(text: str) -> None:
    read_exposition(f"DCGM_FI_DEV_GPU_UTIL{text}", "test", NOW, "box")
