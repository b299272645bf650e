"""The event log and the stretches read from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.core.errors import AdlroError
from adlro.core.run import Run
from adlro.core.tables import (
    DONE,
    DOWN,
    FAILED,
    ILLEGAL,
    NOBODY,
    OVERRAN,
    SPEED,
    SPREAD,
    STARTED,
    STOPPED,
    TURNED_AWAY,
    UP,
)
from adlro.measure.events import outages, read_events, stretches, write_events

Build = Callable[..., Run]


def rows(table: np.ndarray, *fields: str) -> list[tuple[object, ...]]:
    return [tuple(row[field] for field in fields) for row in table]


def test_a_gang_over_two_nodes_holds_both_until_it_ends(build: Build) -> None:
    run = build([{"work": 40, "gpus": 4}], [(1, STARTED, 0, 0, 0b11), (1, SPREAD, 0, 1, 0b11), (11, DONE, 0)])
    assert rows(stretches(run), "site", "mask", "start", "end", "began", "ending") == [
        (0, 3, 1, 11, STARTED, DONE),
        (1, 3, 1, 11, SPREAD, DONE),
    ]


def test_each_restart_is_a_stretch_of_its_own(build: Build) -> None:
    events: list[tuple[Any, ...]] = [
        (0, STARTED, 1, 0, 1),
        (2, STOPPED, 1),
        (2, STARTED, 0, 0, 1),
        (3, STARTED, 1, 2, 2),
    ]
    events += [(4, FAILED, 1, 2, 2, 1.0), (5, DONE, 0), (5, STARTED, 1, 1, 1), (9, OVERRAN, 1)]
    run = build([{"work": 3}, {"work": 9}], events)
    assert rows(stretches(run), "job", "site", "start", "end", "ending") == [
        (0, 0, 2, 5, DONE),
        (1, 0, 0, 2, STOPPED),
        (1, 2, 3, 4, FAILED),
        (1, 1, 5, 9, OVERRAN),
    ]


def test_a_stretch_still_open_ends_with_the_last_event(build: Build) -> None:
    run = build([{"work": 9}, {"work": 2}], [(0, STARTED, 0, 0, 1), (1, STARTED, 1, 0, 2), (3, DONE, 1)])
    assert rows(stretches(run), "job", "end", "ending") == [(0, 3, NOBODY), (1, 3, DONE)]


def test_a_run_without_events_has_no_stretches(build: Build) -> None:
    assert len(stretches(build())) == 0
    assert len(outages(build())) == 0


def test_an_outage_lasts_until_its_own_node_is_up(build: Build) -> None:
    run = build([], [(1, DOWN, NOBODY, 2), (2, DOWN, NOBODY, 0), (3, UP, NOBODY, 2), (8, UP, NOBODY, 1)])
    assert rows(outages(run), "node", "start", "end") == [(0, 2, 8), (2, 1, 3)]


def test_stretches_agree_with_a_plain_loop_on_random_events(build: Build) -> None:
    random = np.random.default_rng(3)
    running: dict[int, list[tuple[int, int, int]]] = {}
    events: list[tuple[Any, ...]] = []
    expected = []
    for time in range(400):
        job = int(random.integers(20))
        if job in running:
            what = int(random.choice([STOPPED, FAILED, DONE, OVERRAN]))
            events.append((time, what, job))
            expected += [(job, begin, part, site, time, what) for begin, part, site in running.pop(job)]
        else:
            parts = range(int(random.integers(1, 4)))
            running[job] = [(time, part, part) for part in parts]
            events += [(time, SPREAD if part else STARTED, job, part, 1) for part in parts]
    expected += [(job, begin, part, site, 399, NOBODY) for job, held in running.items() for begin, part, site in held]
    run = build([{"work": 1}] * 20, events)
    found = rows(stretches(run), "job", "start", "site", "site", "end", "ending")
    assert found == sorted(expected)


def test_what_was_written_is_read_back_in_the_order_of_the_rules(build: Build, tmp_path: Path) -> None:
    jobs = [{"work": 5}, {"work": 6, "submit": 5, "share": 500, "user": 1}, {"work": 1, "submit": 5, "gpus": 9}]
    events = [(0, STARTED, 0, 2, 0b10), (5, DONE, 0), (5, SPEED, NOBODY, 1, 0b10, 0.5), (5, TURNED_AWAY, 2)]
    events += [(5, STARTED, 1, 1, 0b01), (6, DOWN, NOBODY, 1), (6, FAILED, 1, 1, 1, 0.25), (6, ILLEGAL, 1, 99)]
    write_events(build(jobs, events, refusals={2: "too wide"}), tmp_path / "log.jsonl")
    lines = list(read_events(tmp_path / "log.jsonl"))
    assert [(line["event"], line.get("job")) for line in lines] == [
        ("run", None),
        ("submit", 0),
        ("start", 0),
        ("finish", 0),
        ("speed", None),
        ("submit", 1),
        ("submit", 2),
        ("refuse", 2),
        ("start", 1),
        ("down", None),
        ("fail", 1),
        ("illegal", 1),
    ]
    assert lines[0] | {"cluster": "tiny", "policy": "by-hand", "seed": 7, "jobs": 3, "gpus": 6} == lines[0]
    assert lines[2] == {"event": "start", "time_s": 0.0, "job": 0, "node": "c", "model": "t4", "gpus": [1]}
    assert lines[4] == {"event": "speed", "time_s": 5.0, "node": "b", "model": "v100", "gpus": [1], "factor": 0.5}
    submission = {"event": "submit", "time_s": 5.0, "job": 1, "name": "", "user": "bob", "family": "data"}
    assert lines[5] == submission | {"gpus": 1, "share": 0.5, "work": 6.0}
    assert lines[7]["reason"] == "too wide"
    assert lines[9] == {"event": "down", "time_s": 6.0, "node": "b"}
    assert lines[10] == {"event": "fail", "time_s": 6.0, "job": 1, "lost": 0.25}
    assert lines[11] == {"event": "illegal", "time_s": 6.0, "job": 1}


def test_a_job_that_nothing_happens_to_is_in_the_log(build: Build, tmp_path: Path) -> None:
    write_events(build([{"work": 1, "submit": 3}], unfinished=1), tmp_path / "log.jsonl")
    assert [line["event"] for line in read_events(tmp_path / "log.jsonl")] == ["run", "submit"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"event": "sing", "time_s": 1}', '{"event": "up"}'])
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"event": "up", "time_s": 1}\n' + text + "\n")
    with pytest.raises(AdlroError, match=r"log\.jsonl:2: found .* expected a JSON object"):
        list(read_events(log))
