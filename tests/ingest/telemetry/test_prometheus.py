"""A real Prometheus that scrapes stand-ins for exporters, and answers that are not what they should be."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ingest.telemetry.exporters import AMD, DCGM, amd_page, dcgm_page, says, served
from tests.parts import program
from tests.ports import free_ports

from adlro.catalogue.gpus import find_gpu
from adlro.cli.app import run
from adlro.core.errors import TelemetryError
from adlro.core.telemetry import EARLIER, Readings
from adlro.ingest.telemetry.names import model_of
from adlro.ingest.telemetry.prometheus import parse_answer, scrape_prometheus, take_samples
from adlro.ingest.telemetry.series import Collector
from adlro.normalise.telemetry import FEATURE, Telemetry, normalise

PATIENCE_S = 60.0


def settings(targets: list[str]) -> str:
    listed = ", ".join(json.dumps(target.removeprefix("http://")) for target in targets)
    return (
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs:\n  - job_name: gpus\n    static_configs: [{{targets: [{listed}]}}]\n"
    )


@contextmanager
def prometheus_of(folder: Path, targets: list[str]) -> Iterator[str]:
    """The address of a Prometheus that scrapes these; it is stopped at the end, whatever happens."""
    binary, port = program("prometheus"), free_ports(1)[0]
    config = folder / "prometheus.yml"
    config.write_text(settings(targets))
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def until(url: str, gpus: int, rows: int) -> Readings:
    """What it says as soon as it has scraped everything."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = scrape_prometheus(url)
            if (
                len(found.gpus) >= gpus
                and len(set(zip(found.gpu.tolist(), found.metric.tolist(), strict=True))) >= rows
            ):
                return found
        except TelemetryError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, "Prometheus did not scrape in time"
        time.sleep(0.1)


def picture_of(readings: Readings, previous: Telemetry | None = None) -> Telemetry:
    return normalise(readings, lambda name: model_of(name, find_gpu), previous=previous)


def test_a_real_prometheus_is_read_and_mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program("prometheus")
    with (
        served(says(dcgm_page("a0"))) as nvidia,
        served(says(amd_page("m0", prefix="amd_"))) as amd,
        prometheus_of(tmp_path, [nvidia, amd]) as url,
    ):
        found = until(url, gpus=4, rows=2 * (len(DCGM) - 1) + 2 * (len(AMD) + 2))
        seen = {(gpu.node, gpu.index): gpu for gpu in found.gpus}
        assert sorted(seen) == [("a0", 0), ("a0", 1), ("m0", 0), ("m0", 1)]
        assert (seen["a0", 1].uuid, seen["a0", 1].name) == ("GPU-a0-1", "NVIDIA A100-SXM4-80GB")
        assert (seen["m0", 0].uuid, seen["m0", 0].name) == ("ccff-m0-0", "AMD Instinct MI300X OAM")
        assert abs(found.time_s - found.now_s).max() < PATIENCE_S
        one = {r.metric: (r.value, r.unit) for r in found if (r.node, r.gpu) == ("m0", 1)}
        assert one["utilisation"][0] == pytest.approx(0.55)
        assert one["utilisation"][1] == "ratio"
        assert one["power"] == (375.0, "W")
        assert (one["sm_clock"], one["memory_clock"]) == ((1533.0, "MHz"), (1292.0, "MHz"))
        assert found.lost["another clock"] >= 2
        assert set(found.lost) <= {"another clock", EARLIER}

        picture = picture_of(found)
        level = picture.level[[gpu.node == "a0" for gpu in picture.gpus]][0]
        assert level[FEATURE["utilisation"]] == pytest.approx(0.8)
        assert level[FEATURE["temperature"]] == pytest.approx(61 / 90)
        assert level[FEATURE["bandwidth"]] == pytest.approx(0.25)  # the better of two series
        assert level[FEATURE["power"]] == pytest.approx(300 / 400)
        assert level[FEATURE["throttle"]] == 1.0

        assert run(["ingest", "--prometheus", url]) == 0
        shown = capsys.readouterr().out
        assert "a100-sxm4-80gb" in shown
        assert "mi300x" in shown
        assert "80 %" in shown
        assert "missing:" in shown
        assert run(["ingest", "--prometheus", url, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert {gpu["model"] for gpu in told["gpus"]} == {"a100-sxm4-80gb", "mi300x"}


def test_a_scrape_that_stops_becomes_a_gap_and_not_the_last_value(tmp_path: Path) -> None:
    program("prometheus")
    is_up = [True]

    def answer(request: BaseHTTPRequestHandler) -> None:
        says(dcgm_page("a0") if is_up[0] else "gone", 200 if is_up[0] else 500)(request)

    with served(answer) as exporter, prometheus_of(tmp_path, [exporter]) as url:
        before = picture_of(until(url, gpus=2, rows=2 * (len(DCGM) - 1)))
        is_up[0] = False
        deadline = time.monotonic() + PATIENCE_S
        while float(urlvalue(url, "up")) != 0.0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # Time is not awaited: the stretch that is asked for ends before now, as it will in a minute.
        late = scrape_prometheus(url, stretch_s=1.0)
        while len(late):
            assert time.monotonic() < deadline
            time.sleep(0.1)
            late = scrape_prometheus(url, stretch_s=1.0)
        after = picture_of(late, previous=before)
        assert len(after.gpus) == 2
        assert (after.level != after.level).all()
        assert after.gaps() == {"the expected GPU is silent": after.level.size}


def test_a_value_has_the_time_at_which_it_was_true_and_not_that_of_asking(tmp_path: Path) -> None:
    stamp = int(time.time()) - 90  # an exporter that stamps its values, and has stood still since
    page = f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",Hostname="a0"}} 80 {stamp}000\n'
    with served(says(page)) as exporter, prometheus_of(tmp_path, [exporter]) as url:
        found = until(url, gpus=1, rows=1)
        assert float(urlvalue(url, "DCGM_FI_DEV_GPU_UTIL")) == 80.0  # an instant query still gives it as if it were new
    assert found.time_s.tolist() == [stamp]
    assert picture_of(found).gaps()["too old"] == 1


def urlvalue(url: str, query: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={query}", timeout=30) as answer:
        return json.load(answer)["data"]["result"][0]["value"][1]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("<html>Please log in</html>", "found a web page"),
        ("not json", "bytes of something else"),
        ('{"status":"error","error":"query timed out"}', "the query failed: query timed out"),
        ("[1,2]", "not an answer of its API"),
        ('{"status":"success","data":[]}', "not an answer of its API"),
        ("[" * 100_000, "bytes of something else"),
    ],
)
def test_an_answer_that_is_not_prometheus_says_so(body: str, word: str) -> None:
    with served(says(body)) as url, pytest.raises(TelemetryError, match=word):
        scrape_prometheus(url)


ODD = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*DCGM, "gpu_clock", "amd_gpu_gfx_activity", "up"]) | st.text(max_size=5)
LABELS = st.fixed_dictionaries(
    {"__name__": NAMES},
    optional={
        "gpu": st.sampled_from(["0", "1", "99999", "nvidia3", ""]) | st.text(max_size=3),
        "Hostname": st.text(max_size=5),
        "instance": st.sampled_from(["a:9400", "[::1]:9400", ""]),
        "modelName": st.text(max_size=5),
        "UUID": st.text(max_size=5),
        "clock_type": st.sampled_from(["system", "memory", "odd"]),
        "clock_index": st.text(max_size=3),
        "GPU_I_ID": st.sampled_from(["", "7"]),
    },
)
PAIRS = st.tuples(st.integers(0, 10**10), st.sampled_from(["1", "NaN", "+Inf", "1e400", "-3"])).map(list)


@given(st.lists(st.tuples(LABELS, st.lists(PAIRS, max_size=3)), max_size=5))
def test_every_sample_of_an_answer_is_a_reading_or_is_counted(series: list[tuple[dict[str, str], list[Any]]]) -> None:
    collector = Collector("test")
    data = {"resultType": "matrix", "result": [{"metric": labels, "values": values} for labels, values in series]}
    take_samples(parse_answer(json.dumps({"status": "success", "data": data}).encode(), "test"), collector)
    readings = collector.readings(1e9)
    assert len(readings) + sum(readings.lost.values()) == sum(len(values) for _, values in series)
    picture = picture_of(readings)
    assert sum(picture.rows.values()) == len(readings)
    assert ((picture.level >= 0) & (picture.level <= 1) | (picture.level != picture.level)).all()


@given(ODD, ODD, ODD)
def test_no_json_makes_it_crash(result: Any, metric: Any, values: Any) -> None:
    for data in (result, {"result": result}, {"result": [{"metric": metric, "values": values}, {"metric": {}}]}):
        collector = Collector("test")
        try:
            take_samples(parse_answer(json.dumps({"status": "success", "data": data}).encode(), "test"), collector)
        except TelemetryError:
            continue
        picture_of(collector.readings(1e9))


@given(st.binary(max_size=200))
def test_no_body_makes_it_crash(body: bytes) -> None:
    with pytest.raises(TelemetryError):
        parse_answer(body, "test")
