"""The Grafana dashboard and the rules, held against a real daemon, a real Prometheus and promtool."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.processes import served
from tests.parts import program
from tests.ports import free_ports

from adlro.api.tokens import TokenFile
from adlro.cli.app import run
from adlro.cli.monitoring import GRAFANA, RULES_FILE, shipped_file

DOC = Path(__file__).parents[2] / "docs" / "monitoring.md"
PATIENCE_S = 90.0

MAY_BE_EMPTY = (
    "by_partition",  # a simulated cluster has no partitions
    "adlro_jct_seconds",  # after ten jobs of a window have ended
    "adlro_drift_factor",  # only of speeds that have changed
    "adlro_alarms_total",  # only of kinds that occurred
    "adlro_smallest_waiting_gpus",  # only while a job waits
)
VARIABLES = {"$__rate_interval": "30s", "$instance": ".*", "$job": "adlro", "$partition": ".*"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(shipped_file(GRAFANA))["panels"] if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    """Title of the panel and expression, for every query of the dashboard."""
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def plain(expression: str) -> str:
    """An expression as Grafana sends it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def asked(url: str, path: str) -> Any:
    """What Prometheus answers; None while it does not."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=30) as answer:
            return json.loads(answer.read())["data"]
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None
        raise AssertionError(f"{path}: {error.read().decode()}") from None
    except (urllib.error.URLError, ConnectionError):
        return None


def rows(url: str, expression: str) -> list[Any]:
    """What an expression comes to now."""
    found = asked(url, "query?" + urllib.parse.urlencode({"query": plain(expression)}))
    return [] if found is None else list(found["result"])


@contextmanager
def scraping(folder: Path, target: str, token: str) -> Iterator[str]:
    """The address of a Prometheus that scrapes a daemon as docs/monitoring.md says, with our rules."""
    binary, port = program("prometheus"), free_ports(1)[0]
    (folder / "token").write_text(token)
    (folder / RULES_FILE).write_text(shipped_file(RULES_FILE))
    example = re.search(r"```yaml\n(scrape_configs:.*?)```", DOC.read_text(), re.DOTALL)
    assert example is not None
    scrape = example[1].replace("/etc/prometheus/adlro.token", str(folder / "token"))
    scrape = scrape.replace("HOST:8321", target).replace("15s", "500ms")
    assert target in scrape
    assert str(folder / "token") in scrape
    text = "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
    (folder / "prometheus.yml").write_text(f"{text}rule_files: [{folder / RULES_FILE}]\n{scrape}")
    command = [binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def test_a_real_prometheus_answers_every_expression_of_the_dashboard_and_every_rule(tmp_path: Path) -> None:
    program("prometheus")
    token = TokenFile(tmp_path / "tokens.json").add("prometheus", "viewer")
    config = (
        'tick_s = 0.25\n[backend]\nkind = "simulated"\n[simulated]\nspeed = 3600\n[policy]\nname = "sjf"\n'
        f'[store]\nurl = "sqlite:{tmp_path / "adlro.db"}"\n[api]\ntokens = "{tmp_path / "tokens.json"}"\n'
        '[log]\nlevel = "error"\n'
    )
    must = [one for _, one in expressions() if not any(name in one for name in MAY_BE_EMPTY)]
    with served(tmp_path, config=config) as daemon:
        target = daemon.address.removeprefix("http://").rstrip("/")
        with scraping(tmp_path, target, token) as url:
            end = time.monotonic() + PATIENCE_S
            while empty := [one for one in must if not rows(url, one)]:
                log = (tmp_path / "prometheus.log").read_text()[-1500:]
                assert time.monotonic() < end, f"no data for {empty}; targets: {asked(url, 'targets')}; {log}"
                time.sleep(0.5)
            for _, one in expressions():
                rows(url, one)
            groups = asked(url, "rules")["groups"]
            found = [rule for group in groups for rule in group["rules"]]
            assert found
            assert {rule["name"]: rule.get("lastError") for rule in found if rule["health"] != "ok"} == {}
            assert float(rows(url, 'up{job="adlro"}')[0]["value"][1]) == 1
            assert float(rows(url, "adlro:gpus_held:ratio")[0]["value"][1]) >= 0


def test_the_rules_are_right_and_fire_when_they_should(tmp_path: Path) -> None:
    promtool = program("promtool")
    rules = tmp_path / RULES_FILE
    rules.write_text(shipped_file(RULES_FILE))
    checked = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
    cases = tmp_path / "cases.yml"
    cases.write_text((Path(__file__).parent / "rules_test.yml").read_text().replace("RULES", str(rules), 2))
    tested = subprocess.run([promtool, "test", "rules", str(cases)], capture_output=True, text=True, timeout=120)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_dashboard_and_rules_use_only_metrics_that_there_are() -> None:
    listed = set(re.findall(r"^\| `(adlro_\w+)", DOC.read_text(), re.MULTILINE))
    text = " ".join(one for _, one in expressions()) + "".join(
        re.findall(r"expr:.*?\n +(?:for|labels)", shipped_file(RULES_FILE), re.S)
    )
    used = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\badlro_\w+", text)}
    assert used
    assert used <= listed, used - listed


def test_the_dashboard_can_be_imported_anywhere() -> None:
    dashboard = json.loads(shipped_file(GRAFANA))
    assert "id" not in dashboard
    assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource", "job", "instance", "partition"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["title"]
    spots = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(spots)) == len(spots), "two panels overlap"


@pytest.mark.parametrize(("words", "name"), [("grafana", GRAFANA), ("rules", RULES_FILE)])
def test_the_files_are_printed_as_they_are(words: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["monitoring", words]) == 0
    assert capsys.readouterr().out == shipped_file(name)
