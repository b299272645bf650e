"""A small report for tests, and one in which every name that users choose is hostile."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from adlro.cli.app import run
from adlro.measure.detail import read_detail, write_detail

COMPARE = ["compare", "--policies", "fcfs,sjf,srtf", "--seeds", "8", "--jobs", "60", "--load", "1.2"]

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp; $\\frac{1}{2}$ \x07 李 " + "very" * 60


def make_report(folder: Path, *more: str) -> Path:
    """Compare three policies and write a report into the folder."""
    assert run([*COMPARE, "--report", str(folder), *more]) == 0
    return folder


def make_data(folder: Path, *more: str) -> Path:
    """The same without the page and its figures, which take most of the time: the result and the detail alone."""

    def write(folder: Path, result: str, detail: dict[str, Any]) -> Path:
        folder.mkdir()
        (folder / "result.json").write_text(result)
        write_detail(detail, folder / "detail.json.gz")
        return folder / "report.html"

    with patch("adlro.experiment.report.write_files", write):
        return make_report(folder, *more)


def contents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result and the detail of a report."""
    return json.loads((folder / "result.json").read_text()), read_detail(folder / "detail.json.gz")


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The same value with other names, as keys and as values."""
    if isinstance(value, dict):
        return {names.get(key, key): renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def make_hostile(source: Path, folder: Path) -> Path:
    """Copy a report, with hostile names of policies, users, families, cluster, trace and command."""
    result, detail = contents(source)
    names = {"fcfs": f"0{HOSTILE}", "sjf": f"1{HOSTILE}", "paper16": f"2{HOSTILE}", "paper": f"3{HOSTILE}"}
    names |= {"user0": f"4{HOSTILE}", "learning": f"5{HOSTILE}", "v100-sxm2-16gb": f"6{HOSTILE}"}
    result, detail = renamed(result, names), renamed(detail, names)
    result["command"] = result["version"] = HOSTILE
    detail["shown"]["why"] = HOSTILE
    detail["refusals"] = [{"reason": HOSTILE, "jobs": 3}]
    result["trace"] = {
        "file": HOSTILE, "format": HOSTILE, "sha256": HOSTILE, "rows": 9, "kept": 7, "dropped": {HOSTILE: 1},
        "set_aside": {HOSTILE: 1}, "out_of_order": 1, "not_asked_for": 1, "unit": HOSTILE, "families": HOSTILE,
        "estimates": HOSTILE, "span_s": 1.0, "start_unix": None, "scale_load": 1.5, "window": None, "sample": 1.0,
        "notes": [HOSTILE],
    }  # fmt: skip
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result))
    write_detail(detail, folder / "detail.json.gz")
    assert run(["report", str(folder)]) == 0
    return folder
