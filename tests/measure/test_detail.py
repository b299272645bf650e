"""What the figures of a report rest on, by hand: six GPUs, a few jobs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adlro.core.errors import AdlroError
from adlro.core.run import Run
from adlro.core.tables import DONE, STARTED, STOPPED
from adlro.measure import detail
from adlro.measure.detail import (
    completion_times,
    look_closely,
    pooled,
    queue_lengths,
    read_detail,
    size_classes,
    stacked,
    touching,
    write_detail,
)

# Ann's job holds both GPUs of node a from 0 to 100; Bob's waits for 50 s, holds one GPU of node c, is stopped, goes on.
JOBS = (
    {"submit": 0.0, "work": 200.0, "gpus": 2, "user": 0},
    {"submit": 10.0, "work": 60.0, "gpus": 1, "user": 1},
)
EVENTS = (
    (0.0, STARTED, 0, 0, 0b11),
    (60.0, STARTED, 1, 2, 0b10),
    (100.0, DONE, 0),
    (120.0, STOPPED, 1),
    (140.0, STARTED, 1, 2, 0b10),
    (200.0, DONE, 1),
)

Build = Callable[..., Run]


def test_times_in_the_figures_are_those_of_the_run(build: Build) -> None:
    found = look_closely([build(JOBS, EVENTS)])
    assert found["time_s"] == [0.0, 200.0]
    assert found["gantt"]["window_s"] == [0.0, 200.0]
    assert [row["node"] for row in found["gantt"]["rows"]] == ["a", "a", "b", "b", "c", "c"]
    assert found["gantt"]["bars"]["by-hand"] == [
        [0.0, 100.0, 0, 2, 0, 1000, 0],
        [60.0, 120.0, 5, 1, 0, 1000, 0],
        [140.0, 200.0, 5, 1, 0, 1000, 0],
    ]


def test_utilisation_adds_up_to_what_was_held(build: Build) -> None:
    heat = look_closely([build(JOBS, EVENTS)])["heat"]
    assert [row["gpus"] for row in heat["rows"]] == [1] * 6
    table = np.array(heat["per_mille"]["by-hand"])
    assert table.mean(axis=1) * 200 / 1000 == pytest.approx([100, 100, 0, 0, 0, 120], abs=0.1)
    half = detail.TIME_BINS // 2
    assert (table[0, :half] == 1000).all()
    assert (table[0, half:] == 0).all()


def test_a_stopped_job_is_in_the_queue_again(build: Build) -> None:
    lengths = np.array(queue_lengths(build(JOBS, EVENTS), 0.0, 200.0))
    assert lengths.mean() * 200 == pytest.approx(50 + 20, rel=1e-3)
    at = (np.arange(len(lengths)) + 0.5) * 200 / len(lengths)
    assert (lengths[(at > 61) & (at < 119)] == 0).all()
    assert (lengths[(at > 121) & (at < 139)] == 1).all()


def test_waits_are_until_the_first_start_by_user_and_by_size(build: Build) -> None:
    waits = look_closely([build(JOBS, EVENTS)])["waits"]
    assert [(row["name"], row["jobs"], row["wait_s"]["by-hand"]) for row in waits["by_user"]] == [
        ("ann", 1, 0.0),
        ("bob", 1, 50.0),
    ]
    assert [(row["name"], row["wait_s"]["by-hand"]) for row in waits["by_size"]] == [("1", 50.0), ("2", 0.0)]


def test_users_beyond_the_first_twenty_are_one_group(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "MOST_USERS", 1)
    third = {"submit": 0.0, "work": 10.0, "gpus": 1, "user": 2}
    events = ((0.0, STARTED, 0, 0, 0b11), (60.0, STARTED, 1, 2, 0b10), (5.0, STARTED, 2, 1, 0b1))
    waits = look_closely([build((*JOBS, third), sorted(events))])["waits"]
    assert [(row["name"], row["jobs"]) for row in waits["by_user"]] == [("ann", 1), (None, 2)]
    assert waits["users"] == 3


def test_a_large_cluster_shows_the_nodes_that_were_used(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "MOST_GPUS", 3)
    monkeypatch.setattr(detail, "MOST_BLOCKS", 3)
    events = [(time, what, job, 1 if site == 0 else site, mask) for time, what, job, site, mask in EVENTS[:2]]
    found = look_closely([build(JOBS, events)])
    assert [row["node"] for row in found["gantt"]["rows"]] == ["b", "b", "c", "c"]
    assert found["heat"]["rows"] == [
        {"model": "v100", "gpus": 2},
        {"model": "v100", "gpus": 2},
        {"model": "t4", "gpus": 2},
    ]


def test_a_run_with_too_many_bars_is_shown_around_its_longest_queue(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detail, "BARS_PER_GPU", 0.25)
    begin, end = look_closely([build(JOBS, EVENTS)])["gantt"]["window_s"]
    assert end - begin == pytest.approx(200 * 0.25 * 6 / 4)
    assert begin == 0.0


def test_shares_of_one_gpu_stand_beside_each_other() -> None:
    shared = [(0.0, 10.0, 500, 1), (1.0, 4.0, 300, 2), (5.0, 9.0, 400, 3), (6.0, 8.0, 100, 4)]
    assert [(job, low) for _, _, low, _, job in stacked(shared)] == [(1, 0), (2, 500), (3, 500), (4, 900)]


def test_neighbours_are_one_bar() -> None:
    assert list(touching([0, 1, 4, 5, 6, 9])) == [(0, 2), (4, 3), (9, 1)]


def test_sizes_have_names(build: Build) -> None:
    sizes = (0, 1, 2, 3, 4, 5, 8, 9, 1000)
    run = build([{"work": 1.0, "gpus": gpus} for gpus in sizes] + [{"work": 1.0, "gpus": 1, "share": 300}])
    assert size_classes(run) == ["no GPU", "1", "2", "3–4", "3–4", "5–8", "5–8", "9–16", "513–1024", "part of one"]


def test_quantiles_of_several_runs_are_those_of_all_their_jobs(build: Build) -> None:
    count, times = completion_times(build(JOBS, EVENTS))
    assert (count, times[0], times[-1]) == (2, pytest.approx(100, abs=1), pytest.approx(190, abs=1))
    low, high = np.full(detail.QUANTILES, 1.0), np.full(detail.QUANTILES, 5.0)
    both = pooled([(300, low), (100, high), (0, np.empty(0))])
    assert both["finished"] == 400
    assert np.mean(np.array(both["quantiles_s"]) < 3) == pytest.approx(0.75, abs=0.01)
    assert pooled([(0, np.empty(0))]) == {"finished": 0, "quantiles_s": []}


def test_reasons_beyond_the_most_frequent_are_one_row(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "MOST_REASONS", 1)
    run = build(JOBS, EVENTS, refusals={0: "too wide", 1: "too wide", 2: "too long", 3: "too dear"})
    assert detail.refusal_reasons(run) == [{"reason": "too wide", "jobs": 2}, {"reason": "2 other reasons", "jobs": 2}]


def test_nothing_happened_is_shown_as_nothing(build: Build) -> None:
    found = look_closely([build([{"work": 1.0, "gpus": 1}])])
    assert found["gantt"]["bars"] == {"by-hand": []}
    assert found["waits"] == {"users": 0, "by_user": [], "by_size": []}


def test_detail_is_read_as_it_was_written_and_damage_is_told(tmp_path: Path, build: Build) -> None:
    file = tmp_path / "detail.json.gz"
    found = {"format": detail.DETAIL_FORMAT, **look_closely([build(JOBS, EVENTS)])}
    write_detail(found, file)
    first = file.read_bytes()
    assert read_detail(file) == found
    write_detail(found, file)
    assert file.read_bytes() == first
    for wrong in (b"", b"{}", first[:-20], first[:30] + b"x" * 40):
        file.write_bytes(wrong)
        with pytest.raises(AdlroError, match="is damaged; expected compressed JSON"):
            read_detail(file)
    write_detail({"format": 99}, file)
    with pytest.raises(AdlroError, match="has the format 99; expected 1"):
        read_detail(file)
    with pytest.raises(AdlroError, match=r"cannot read .*No such file"):
        read_detail(tmp_path / "none.gz")
