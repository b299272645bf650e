"""`adlro ingest`: the live cluster for people and for programs, and what it says when something is wrong."""

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.ingest.telemetry.exporters import amd_page, dcgm_page, says, served

from adlro.cli.app import run
from adlro.normalise.telemetry import GPU_FEATURES

JSON_PAGE = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
CLUSTER = """
name = "two"
[network]
kind = "x"
gb_s = 1
[[nodes]]
name = "a0"
gpu = "a100-sxm4-80gb"
gpus = 3
cpus = 8
memory_gb = 64
"""


def test_the_table_has_a_line_for_each_node_and_the_gaps_below(capsys: pytest.CaptureFixture[str]) -> None:
    with served(says(dcgm_page("a0") + amd_page("m0"))) as url:
        assert run(["ingest", "--metrics", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert run(["ingest", "--metrics", url, "--each"]) == 0
        each = capsys.readouterr().out
    (a0,) = [line for line in lines if line.startswith("a0")]
    assert " ".join(a0.split()) == "a0 a100-sxm4-80gb 2 80 % 61 C 50 % 25 % 600 W 1200/1593 2 0"
    (m0,) = [line for line in lines if line.startswith("m0")]
    assert "mi300x" in m0
    assert any(line.startswith("missing: ") for line in lines)
    assert any("the GPU does not send it: " in line for line in lines)
    assert "a0:1" in each


def test_the_json_is_one_object_with_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with served(says(dcgm_page("a0"))) as url:
        assert run(["ingest", "--metrics", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    gpu = found["gpus"][0]
    assert gpu["model"] == "a100-sxm4-80gb"
    assert gpu["levels"]["utilisation"] == pytest.approx(0.8)
    assert list(gpu["levels"]) == list(GPU_FEATURES)
    assert all(gpu["levels"][feature] is None for feature in gpu["gaps"])
    section = JSON_PAGE.partition("## `adlro ingest`")[2].partition("\n## ")[0]
    assert [key for key in {*found, *gpu} if f"`{key}`" not in section] == []


def test_the_command_in_the_json_has_no_credentials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(says(dcgm_page("a0"))) as url:
        words = ["ingest", f"--metrics={url.replace('http://', 'http://me:hunter@')}/metrics", "--json"]
        monkeypatch.setattr("sys.argv", ["adlro", *words])
        assert run(words) == 0
    told = capsys.readouterr().out
    assert "hunter" not in told
    assert json.loads(told)["command"] == f"adlro ingest --metrics={url}/metrics --json"


def test_a_gpu_of_the_cluster_file_that_is_silent_is_a_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.toml"
    path.write_text(CLUSTER)
    with served(says(dcgm_page("a0.example"))) as url:
        assert run(["ingest", "--metrics", url, "--cluster", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2/3" in shown
    assert "the expected GPU is silent" in shown


def test_watching_goes_on_when_the_source_fails_and_shows_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [0]

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked[0] += 1
        says(dcgm_page("a0", DCGM_FI_DEV_ECC_SBE_VOL_TOTAL=asked[0]), 500 if asked[0] == 2 else 200)(request)

    with served(answer) as url:
        words = ["ingest", "--metrics", url, "--watch", "--looks", "3", "--every", "0.1", "--json"]
        assert run(words) == 0
    first, failed, third = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["gpus"][0]["levels"]["utilisation"] == pytest.approx(0.8)
    assert first["gpus"][0]["gaps"]["ecc_corrected"] == "a counter seen for the first time"
    assert failed["gaps"] == {"the expected GPU is silent": 2 * len(GPU_FEATURES)}
    assert "HTTP 500" in failed["notes"][0]
    assert third["gpus"][0]["levels"]["ecc_corrected"] == pytest.approx(0.02)


def test_an_unknown_name_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    with served(says(dcgm_page("a0", gpus=4, name="NVIDIA H20"))) as url:
        words = ["ingest", "--metrics", url, "--watch", "--looks", "2", "--every", "0.1"]
        assert run(words) == 0
    assert capsys.readouterr().err.count("'NVIDIA H20' is not in the catalogue") == 1


def test_a_name_of_ones_own_is_an_alias_in_the_cluster_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = """
[gpus.h20]
title = "H20"
vendor = "NVIDIA"
memory_gb = 96
memory_bandwidth_gb_s = 4000
tdp_w = 400
fp32_tflops = 44
aliases = ["NVIDIA H20"]
"""
    path = tmp_path / "own.toml"
    path.write_text(CLUSTER.replace("a100-sxm4-80gb", "h20") + own)
    with served(says(dcgm_page("a0", name="NVIDIA H20"))) as url:
        assert run(["ingest", "--metrics", url, "--cluster", str(path), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["gpus"][0]["model"] == "h20"
    assert said.err == ""


@pytest.mark.parametrize("words", [[], ["--nvml", "--amdsmi"], ["--metrics", "ftp://x"], ["--prometheus", "nonsense"]])
def test_no_source_two_sources_or_no_address_is_bad_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ingest", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_source_that_fails_at_the_first_look_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with served(says("", 503)) as url:
        assert run(["ingest", "--prometheus", url, "--watch"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_names_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with served(says(dcgm_page("a0\x1b[2J[bold]", name="x\x1b]0;y\x07"))) as url:
        assert run(["ingest", "--metrics", url]) == 0
    said = capsys.readouterr()
    assert "\x1b[2J" not in said.out
    assert "[bold]" in said.out
    assert "\x1b" not in said.err
