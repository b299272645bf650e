"""Whatever dies, fills up, breaks or jumps: no job is lost, and none runs twice (docs/daemon.md has the table)."""

import importlib.util
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from tests.accounts import temporary_account
from tests.daemon.daemons import until
from tests.daemon.mortal import FLAGS, QUICK, World
from tests.daemon.processes import Served, served

from adlro.api.tokens import TokenFile
from adlro.core.accounts import own_account_name
from adlro.core.ports import ENDED, JobState, Submission
from adlro.core.records import Job
from adlro.live.limits import PreemptTable

ROOT = Path(__file__).parents[2]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.daemon.close()


def kinds(world: World) -> list[str]:
    return [alarm.kind for alarm in world.daemon.state().alarms]


@pytest.mark.parametrize(
    "place",
    [
        "before intend", "after intend", "before act", "after an order", "after act", "before answered",
        "after answered", "before ticked", "after ended", "after first_seen",
    ],
)  # fmt: skip
def test_a_daemon_that_is_killed_at_this_point_loses_nothing_and_runs_nothing_twice(world: World, place: str) -> None:
    world.submitted(12)
    world.fuse.at = place
    jobs = world.played_to_the_end()
    assert world.fuse.places == [place]
    world.check_all_ran_once(jobs)


def test_after_a_death_between_act_and_record_the_cluster_is_asked_what_is_true(world: World) -> None:
    world.submitted(3)
    world.fuse.at = "after act"
    assert not world.turn()
    assert world.turn()
    assert world.store is not None
    assert world.store.unanswered() == []
    answers = [world.store.answer_to(made.id) for made in world.store.decisions()]
    assert all(answer is not None and answer.done for answer in answers)
    assert "settled" in kinds(world)


def test_after_a_death_between_decide_and_act_the_decision_is_made_again(world: World) -> None:
    world.submitted(3)
    world.fuse.at = "before act"
    assert not world.turn()
    assert world.orders == []
    world.clock.move(1)
    assert world.turn()
    assert world.store is not None
    assert len(world.store.decisions()) == 6, "three that came to nothing, and three that did not"
    world.check_all_ran_once(world.played_to_the_end())


def test_a_hundred_deaths_at_random_points_lose_nothing_and_run_nothing_twice(world: World) -> None:
    chance = random.Random(20)
    while world.fuse.deaths < 100:
        if chance.random() < 0.7:
            world.fuse.left = chance.randint(1, 25)
        for _ in range(chance.choice([0, 1, 2]) if world.daemon.is_leader else 0):
            job = Job("learning", chance.uniform(30, 400), gpus=chance.choice([1, 1, 2, 4, 8]), user="ada")
            if not world.outlive(partial(world.daemon.submit, Submission(job))):
                break
        world.turn()
        world.clock.move(chance.uniform(0, 60))
    world.fuse.left = float("inf")
    jobs = world.played_to_the_end()
    assert world.fuse.deaths == 100
    assert len(set(world.fuse.places)) >= 10, "at many different points"
    assert len(jobs) > 50
    assert {job.id for job in jobs} == set(world.handed_in)
    world.check_all_ran_once(jobs)


STOPPING = replace(QUICK, preempt=PreemptTable(is_on=True, least_run_s=0.0, per_job=2))


@pytest.fixture
def stopping(tmp_path: Path) -> Iterator[World]:
    """A world in which marked jobs are stopped."""
    made = World(tmp_path, flags=FLAGS | {"policy.name": "srtf"}, can_stop=True, settings=STOPPING)
    yield made
    made.daemon.close()


def stops_of(world: World) -> Counter[str]:
    return Counter(order.job for order in world.orders if not order.is_start)


@pytest.mark.parametrize(
    "place",
    [
        "before put", "after put", "before intend", "after intend", "before act", "after an order", "after act",
        "before answered", "after answered", "before ticked",
    ],
)  # fmt: skip
def test_a_daemon_that_is_killed_around_a_stop_stops_the_job_once_and_runs_it_again_once(
    stopping: World, place: str
) -> None:
    where = frozenset(["v100-sxm2-16gb"])
    long, short = (Job("learning", work, gpus=8, estimate=work, models=where, restartable=True) for work in (9e3, 9e2))
    first = stopping.cluster.submit(Submission(long))
    stopping.turn()
    stopping.clock.move(60.0)
    second = stopping.cluster.submit(Submission(short))
    stopping.fuse.at = place
    assert not stopping.turn()
    jobs = stopping.played_to_the_end()
    assert {job.id: job.starts for job in jobs} == {first: 2, second: 1}
    assert stops_of(stopping) == {first: 1}
    stopping.check_all_ran_once(jobs, starts=2)


@pytest.fixture
def resizing(tmp_path: Path) -> Iterator[World]:
    """A world in which marked jobs with sizes are resized."""
    flags = FLAGS | {"policy.name": "rank-elastic"}
    made = World(tmp_path, flags=flags, can_stop=True, can_resize=True, settings=STOPPING)
    yield made
    made.daemon.close()


@pytest.mark.parametrize("place", ["before put", "after intend", "after an order", "after act", "after answered"])
def test_a_daemon_that_is_killed_around_a_resize_runs_the_job_once_at_a_time_and_stops_it_no_more_than_it_may(
    resizing: World, place: str
) -> None:
    world = resizing
    where = frozenset(["v100-sxm2-16gb"])
    elastic = Job("learning", 9e3, gpus=4, estimate=9e3, sizes="4,8", models=where, restartable=True)
    first = world.cluster.submit(Submission(elastic))
    world.turn()
    world.clock.move(90.0)
    second = world.cluster.submit(Submission(Job("learning", 1e3, gpus=4, estimate=1e3, models=where)))
    world.fuse.at = place
    assert not world.turn()
    jobs = world.played_to_the_end()
    stops = stops_of(world)
    assert {job.id: job.starts for job in jobs} == {first: stops[first] + 1, second: 1}
    assert 1 <= stops[first] <= STOPPING.preempt.per_job
    world.check_all_ran_once(jobs, starts=stops[first] + 1)
    sizes = {sum(part.count for part in order.parts) for order in world.orders if order.job == first and order.is_start}
    assert {4, 8} <= sizes


def test_deaths_at_random_points_lose_no_stopped_job_and_stop_none_too_often_or_without_its_mark(
    stopping: World,
) -> None:
    chance, number = random.Random(21), 0
    while stopping.fuse.deaths < 30:
        if chance.random() < 0.7:
            stopping.fuse.left = chance.randint(1, 40)
        for _ in range(chance.choice([1, 2])):
            number += 1
            work, gpus = chance.choice([30, 60, 900]), chance.choice([1, 2, 4, 8])
            job = Job("learning", work * gpus, gpus=gpus, estimate=work * gpus, restartable=number % 3 > 0)
            stopping.cluster.submit(Submission(job))
        stopping.turn()
        stopping.clock.move(chance.uniform(0, 60))
    stopping.fuse.left = float("inf")
    jobs = stopping.played_to_the_end(step_s=200.0)
    stops = stops_of(stopping)
    assert sum(stops.values()) > 8
    assert max(stops.values()) == 2
    assert {job.id: job.starts for job in jobs} == {job.id: 1 + stops[job.id] for job in jobs}
    assert {job.job.restartable for job in jobs if job.id in stops} == {True}
    stopping.check_all_ran_once(jobs, starts=3)


def test_a_cluster_that_is_gone_for_a_while_is_waited_for_and_is_never_taken_for_an_empty_one(world: World) -> None:
    world.submitted(12)
    world.turn()
    shown = len(world.daemon.state().snapshot.jobs)
    world.is_gone = True
    for _ in range(5):
        world.turn()
        world.clock.move(30)
    assert len(world.daemon.state().snapshot.jobs) == shown
    assert not world.daemon.is_ready()[0]
    assert "backend" in kinds(world)
    world.is_gone = False
    world.check_all_ran_once(world.played_to_the_end())
    assert world.daemon.is_ready()[0]


def test_the_jobs_of_a_node_that_crashes_run_again_elsewhere_and_finish_once(world: World) -> None:
    world.submitted(12)
    world.turn()
    world.clock.move(10)
    hit = [job.id for job in world.cluster.read().jobs if any(part.node == "volta0" for part in job.parts)]
    assert hit
    world.cluster.fail_node("volta0")
    jobs = world.played_to_the_end()
    assert {job.id for job in jobs if job.starts > 1} <= set(hit)
    assert all(part.node != "volta0" for job in jobs for part in job.parts)
    world.check_all_ran_once(jobs, starts=2)


def test_a_node_that_is_drained_gets_no_more_jobs_and_keeps_those_it_has(world: World) -> None:
    world.submitted(30)
    world.turn()
    world.clock.move(10)
    had = {job.id for job in world.cluster.read().jobs if any(part.node == "volta0" for part in job.parts)}
    world.cluster.drain("volta0")
    jobs = world.played_to_the_end()
    assert {job.id for job in jobs if any(part.node == "volta0" for part in job.parts)} == had
    world.check_all_ran_once(jobs)


@pytest.mark.parametrize("jump_s", [-86400.0, -30.0, 86400.0, 3.2e7])
def test_a_clock_that_jumps_ends_or_loses_no_job(world: World, jump_s: float) -> None:
    world.submitted(12)
    world.turn()
    world.clock.move(20)
    world.shift_s = jump_s
    world.turn()
    world.clock.move(20)
    world.turn()
    world.shift_s = 0.0
    world.check_all_ran_once(world.played_to_the_end())


def test_on_a_full_disk_it_goes_on_scheduling_and_writes_everything_down_when_there_is_room(world: World) -> None:
    world.submitted(12)
    world.turn()
    assert world.store is not None
    pages = world.store._writer.rows("PRAGMA page_count")[0][0]
    world.store._writer.rows(f"PRAGMA max_page_count = {pages}")
    for number in range(40):
        world.cluster.submit(Submission(Job("learning", 60.0, user="ada", name=f"more{number}", estimate=60.0)))
        world.turn()
        world.clock.move(60)
    assert "store" in kinds(world)
    assert len([job for job in world.cluster.read().jobs if job.state in ENDED]) > 30, "it went on"
    world.store._writer.rows("PRAGMA max_page_count = 1000000")
    world.check_all_ran_once(world.played_to_the_end())


def test_a_database_that_is_broken_at_the_start_is_kept_aside_and_the_cluster_has_the_truth(world: World) -> None:
    world.submitted(12)
    world.turn()
    world.clock.move(10)
    world.daemon.close()
    (world.folder / "adlro.db").write_bytes(b"no database at all, but forty-two bytes. " * 100)
    world.daemon = world.born()
    jobs = world.played_to_the_end()
    assert {str(job.state) for job in jobs} == {"finished"}
    assert {job.starts for job in jobs} == {1}
    assert world.store is not None
    assert {job.id for job in world.store.history(1000)} == {job.id for job in jobs}
    assert "store" in kinds(world)
    assert list(world.folder.glob("adlro.db.corrupt-*"))


def test_a_database_that_breaks_in_the_middle_of_life_stops_nothing(world: World) -> None:
    world.submitted(12)
    world.turn()
    assert world.store is not None
    world.store._writer.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    file = world.folder / "adlro.db"
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.write(b"\xff" * size)
    jobs = world.played_to_the_end()
    assert {(str(job.state), job.starts) for job in jobs} == {("finished", 1)}


def test_a_job_that_is_cancelled_while_the_daemon_is_dead_stays_cancelled(world: World) -> None:
    world.submitted(6)
    world.fuse.at = "after intend"
    world.turn()
    world.cluster.cancel("1")
    jobs = world.played_to_the_end()
    assert {job.id: str(job.state) for job in jobs}["1"] == "cancelled"
    assert {job.starts for job in jobs if job.state is JobState.FINISHED} == {1}


LOCAL = """
tick_s = 0.2

[backend]
kind = "local"

[local]
gpus = "v100:4"
folder = "{folder}/jobs"

[store]
url = "sqlite:{folder}/adlro.db"

[policy]
name = "fcfs"
fallback = "fcfs"
"""


@pytest.fixture
def somebody(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Whose jobs our daemon runs, and a folder of theirs: a new account if we are root, else ourselves."""
    if os.geteuid() != 0:
        yield own_account_name(), tmp_path
        return
    with temporary_account() as account:
        yield account.name, Path(account.home)


def test_real_daemons_that_are_killed_with_9_lose_no_job_and_run_none_twice_and_a_standby_takes_over(
    tmp_path: Path, somebody: tuple[str, Path]
) -> None:
    ran = somebody[1] / "ran"
    token = TokenFile(tmp_path / "tokens.json").add(somebody[0], "user")
    handed_in: list[str] = []

    def hand_in(daemon: Served, count: int) -> None:
        for _ in range(count):
            name = f"job{len(handed_in)}"
            command = ["/bin/sh", "-c", f"echo {name} >> {ran}; sleep 0.3"]
            job = {"family": "learning", "gpus": 1, "name": name}
            assert daemon.ask("api/v1/jobs", {"job": job, "command": command}) is not None
            handed_in.append(name)

    def lines() -> list[str]:
        return ran.read_text().split() if ran.exists() else []

    with (
        served(tmp_path, config=LOCAL.format(folder=tmp_path), token=token) as first,
        served(tmp_path, waits=False, token=token) as standby,
    ):
        until(lambda: standby.address and "a standby: process" in standby.err.read_text(), seconds=60)
        hand_in(first, 8)
        until(lines)
        first.process.send_signal(signal.SIGKILL)
        until(standby.is_ready)
        hand_in(standby, 4)
        standby.process.send_signal(signal.SIGKILL)
    with served(tmp_path, token=token) as last:
        until(lambda: len(lines()) >= 12)
        until(lambda: {job["state"] for job in last.ask("api/v1/jobs")["jobs"]} == {"finished"})
        jobs = last.ask("api/v1/jobs")["jobs"]
        last.process.terminate()
        assert last.process.wait(timeout=60) == 0
    assert sorted(lines()) == sorted(handed_in), "each ran once"
    assert ran.owner() == somebody[0]
    assert len(jobs) == 12


def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_memory", ROOT / "scripts/soak_memory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_memory"] = module
    spec.loader.exec_module(module)
    return module


def test_memory_does_not_grow_over_three_hours_of_a_busy_cluster(tmp_path: Path) -> None:
    hours = list(soak().day(tmp_path, hours=3, step_s=120.0, policy="sjf"))
    assert hours[-1].ended > 50
    assert hours[-1].rss_mb < 1.1 * hours[0].rss_mb
