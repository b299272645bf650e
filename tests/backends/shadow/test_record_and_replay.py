"""The record of a shadow, and what its replays promise."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.backends.shadow.shadow_site import BEGIN_S, watched

from adlro.backends.shadow.dry_run import Note, Shadow
from adlro.backends.shadow.record import (
    Journal,
    Record,
    read_notes,
    read_record,
    read_sacct_record,
    record_of,
    record_of_memory,
    shadowed,
)
from adlro.backends.shadow.replay import HAPPENED, happened, in_system, under
from adlro.backends.shadow.report import Report, replay_report
from adlro.backends.shadow.tables import prepared
from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import StoreError, TraceError, UsageError
from adlro.core.ports import Answer, JobState, LiveJob, Order, Part, Snapshot, Submission
from adlro.core.records import Cluster, Job
from adlro.daemon.store import open_store
from adlro.decide.catalogue import find_policy

PAPER16 = load_cluster("paper16")
ON_VOLTA = (Part("volta0", "v100-sxm2-16gb", 2),)
ON_TURING = (Part("turing", "t4", 2),)


def waits(id: str = "1", submit_s: float = BEGIN_S) -> LiveJob:
    job = Job("learning", math.nan, submit_s, 2, cpus=4, memory_gb=8, user="ann", name="train", limit_s=3600.0)
    return LiveJob(id, job, JobState.WAITING, managed=False, reason="Resources")


def runs(job: LiveJob, parts: tuple[Part, ...], at_s: float) -> LiveJob:
    return replace(job, state=JobState.RUNNING, parts=parts, started_s=at_s, starts=1)


class Site:
    """A cluster that shows one scene after another, ten seconds apart."""

    name, can_stop, can_resize, places_gpus, can_annotate = "site", False, False, False, False

    def __init__(self, *scenes: Sequence[LiveJob], cluster: Cluster = PAPER16) -> None:
        self.scenes, self.time_s, self.cluster = list(scenes), BEGIN_S, cluster

    def read(self) -> Snapshot:
        self.time_s += 10
        return Snapshot(
            self.time_s, self.cluster, tuple(self.scenes.pop(0) if len(self.scenes) > 1 else self.scenes[0])
        )

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        raise AssertionError

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        raise AssertionError

    def annotate(self, lines: Mapping[str, str]) -> None:
        raise AssertionError

    def submit(self, submission: Submission) -> str:
        raise AssertionError

    def cancel(self, job: str) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


def summed(record: Record, **more: str) -> Report:
    return replay_report(record, others=["fcfs-first-fit", "fcfs-easy"], **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole() -> Record:
    return watched()


# ---- the file ------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back_with_work_that_nobody_knows_as_0(tmp_path: Path) -> None:
    job = runs(waits(), ON_TURING, BEGIN_S + 5)
    notes = [
        Note("cluster", BEGIN_S, cluster=PAPER16),
        Note("looked", BEGIN_S, down=("volta1",)),
        Note("started", BEGIN_S, "1", job, "d1", ON_VOLTA),
    ]
    assert Journal(tmp_path / "state" / "shadow.jsonl").write(notes) == ""
    found, broken = read_notes(tmp_path / "state" / "shadow.jsonl")
    known = replace(job, job=replace(job.job, work=0.0))
    assert (found, broken) == ([*notes[:2], replace(notes[2], job=known)], 0)


def test_a_line_that_a_crash_cut_off_costs_itself_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "shadow.jsonl"
    Journal(path).write([Note("looked", 1.0)])
    with path.open("ab") as file:
        file.write(b'{"what":"started","time_')
    Journal(path).write([Note("looked", 2.0)])
    assert read_notes(path) == ([Note("looked", 1.0), Note("looked", 2.0)], 1)


def test_a_full_disk_is_told_and_writing_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "shadow.jsonl")

    def full(file: int, text: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert journal.write([Note("looked", 1.0)]) == "1 lines could not be written: No space left on device"
    assert journal.write([Note("looked", 2.0)]) == ""
    assert read_notes(tmp_path / "shadow.jsonl")[0] == [Note("looked", 2.0)]


def test_a_record_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write the shadow record"):
        Journal(tmp_path / "file" / "shadow.jsonl")


def test_a_shadow_goes_on_from_its_record_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "shadow.jsonl"
    first = shadowed(Site([waits()]), path)
    first.read()
    first.act([Order("1", "d1", ON_VOLTA)])
    second: Shadow = shadowed(Site([waits()]), path)
    (job,) = second.read().jobs
    assert (job.state, job.decision) == (JobState.PLACED, "d1")
    assert [note.what for note in read_notes(path)[0]].count("wished") == 1


def test_of_a_long_record_only_the_end_is_recalled(tmp_path: Path) -> None:
    path = tmp_path / "shadow.jsonl"
    Journal(path).write([Note("looked", float(time)) for time in range(100)])
    notes, broken = read_notes(path, last=100)
    assert 1 <= len(notes) <= 4
    assert (notes[-1].time_s, broken) == (99.0, 0)


def test_an_empty_record_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "shadow.jsonl").write_text("")
    with pytest.raises(StoreError, match="Let the daemon run in shadow mode"):
        read_record(tmp_path / "shadow.jsonl")
    with pytest.raises(StoreError, match="cannot read"):
        read_record(tmp_path / "none.jsonl")


# ---- what it tells -------------------------------------------------------------------------------------------------


def test_the_course_of_a_job_and_the_fate_of_a_wish_are_put_together_from_the_notes(tmp_path: Path) -> None:
    job = waits()
    running = runs(job, ON_TURING, BEGIN_S + 15)
    over = replace(running, state=JobState.FINISHED, parts=(), ended_s=BEGIN_S + 25)
    shadow = shadowed(Site([job], [running], [over]), tmp_path / "shadow.jsonl")
    shadow.read()
    shadow.act([Order("1", "d1", ON_VOLTA)])
    shadow.read()
    shadow.read()
    record = read_record(tmp_path / "shadow.jsonl")
    (found,) = record.jobs
    assert (found.state, found.parts) == (JobState.FINISHED, ON_TURING), "Slurm forgets where a finished job ran"
    (fate,) = record.fates
    assert (fate.outcome, fate.lead_s, fate.same_model, fate.same_nodes) == ("started", 5.0, False, False)


def test_a_time_in_which_nobody_watched_and_nodes_that_were_down_are_counted() -> None:
    looks = [0.0, 60.0, 120.0, 4000.0, 4060.0]
    notes = [Note("cluster", 0.0, cluster=PAPER16)]
    notes += [Note("looked", time, down=("turing",) if time < 100 else ()) for time in looks]
    record = record_of(notes, "x")
    assert record.unwatched_s == 3880.0
    assert record.down_gpu_s == 4 * 120.0


def test_a_job_that_was_missed_while_it_ran_is_taken_to_have_ended_then() -> None:
    job = runs(waits(), ON_TURING, BEGIN_S + 5)
    notes = [
        Note("cluster", BEGIN_S, cluster=PAPER16),
        Note("looked", BEGIN_S),
        Note("seen", BEGIN_S, "1", waits()),
        Note("started", BEGIN_S + 10, "1", job),
        Note("gone", BEGIN_S + 50, "1"),
    ]
    record = record_of(notes, "x")
    assert (record.jobs[0].state, record.jobs[0].ended_s) == (JobState.FINISHED, BEGIN_S + 50)
    assert "the ends of 1 jobs were not seen" in record.notes[0]


def test_a_number_that_a_later_job_got_again_is_another_job() -> None:
    first = replace(runs(waits(), ON_TURING, BEGIN_S + 5), state=JobState.FINISHED, ended_s=BEGIN_S + 30)
    later = waits(submit_s=BEGIN_S + 500)
    notes = [
        Note("cluster", BEGIN_S, cluster=PAPER16),
        Note("looked", BEGIN_S),
        Note("ended", BEGIN_S + 30, "1", first),
    ]
    record = record_of([*notes, Note("seen", BEGIN_S + 501, "1", later)], "x")
    assert [(job.state, job.job.submit_s) for job in record.jobs] == [
        (JobState.FINISHED, BEGIN_S),
        (JobState.WAITING, BEGIN_S + 500),
    ]


# ---- the replay ----------------------------------------------------------------------------------------------------


def test_replayed_as_it_happened_every_job_ends_when_it_did(whole: Record) -> None:
    made = prepared(whole)
    times, _ = happened(made, find_policy("adlro"))
    np.testing.assert_allclose(times.finish, made.end, rtol=0, atol=1e-3)
    assert replay_report(whole).calibration.error == pytest.approx(0.0, abs=1e-9)


def test_the_sites_own_policy_replayed_on_its_record_gives_what_happened(whole: Record) -> None:
    (line,) = [line for line in summed(whole, estimates="oracle").lines if line.policy == "fcfs-easy"]
    assert line.relative == pytest.approx(0.0, abs=1e-9)


def test_asked_beside_what_happened_the_sites_own_policy_agrees_at_every_moment(whole: Record) -> None:
    made = prepared(whole, "oracle")
    _, agreement = happened(made, find_policy("fcfs-easy"))
    assert agreement.moments > 50
    assert agreement.same_node == agreement.same_job == agreement.moments
    _, other = happened(made, find_policy("adlro"))
    assert 0 < other.same_job < other.moments
    assert other.same_job + other.other_job + other.waits == other.moments


@pytest.mark.parametrize("policy", ["adlro", "sjf", "fcfs-easy"])
def test_up_to_the_end_of_a_record_cut_short_time_in_the_system_is_told_as_if_all_were_known(policy: str) -> None:
    """What comes later cannot change it; only the runtimes of jobs that had not ended can, and little."""
    made, cut = prepared(watched(jobs=300)), prepared(watched(jobs=300, until=0.5))
    end = cut.record.end_s - cut.record.begin_s
    known = {job.id: j for j, job in enumerate(made.live)}
    rows = [known[job.id] for job in cut.live]
    told = in_system(cut, under(cut, find_policy(policy))).mean()
    full = under(made, find_policy(policy)).finish[rows]
    assert told == pytest.approx((np.minimum(full, end) - made.submit[rows]).mean(), rel=0.05)


def test_a_record_that_begins_on_a_busy_cluster_is_replayed_from_there() -> None:
    record = watched(since=0.3, until=0.7)
    made = prepared(record, "oracle")
    assert made.carried.sum() > 3
    times, agreement = happened(made, find_policy("adlro"))
    over = made.compared
    later = made.start[(made.start > 0.0) & np.isfinite(made.start)]
    assert agreement.moments == len(np.unique(later)), "nobody could choose what ran already"
    np.testing.assert_allclose(times.finish[over], made.end[over], rtol=0, atol=1e-3)
    for policy in ("adlro", "fcfs"):
        assert (under(made, find_policy(policy)).start[made.carried] == 0.0).all()


def test_on_the_models_they_ran_on_jobs_run_as_long_as_they_did(whole: Record) -> None:
    made = prepared(whole, same_models=True)
    times = under(made, find_policy("sjf"))
    np.testing.assert_allclose(times.finish - times.start, made.end - made.start, rtol=1e-6)


def test_a_job_that_moves_to_another_model_runs_at_the_speed_of_the_table() -> None:
    job = replace(waits(), job=replace(waits().job, work=0.0, models=frozenset()))
    over = replace(runs(job, ON_TURING, BEGIN_S + 10), state=JobState.FINISHED, ended_s=BEGIN_S + 1010)
    made = prepared(Record("x", PAPER16, BEGIN_S - 1, BEGIN_S + 2000, (over,)))
    kind = made.view.jobs[0].kind
    here, there = (made.plan.sites[s].form for s in (made.site[0], 0))
    times = under(made, find_policy("sjf"))
    faster = made.view.rate[kind, there] / made.view.rate[kind, here]
    assert faster > 1.5
    assert times.finish[0] - times.start[0] == pytest.approx(1000 / faster)


def test_jobs_that_cannot_be_replayed_are_set_aside_and_counted_by_reason() -> None:
    good = replace(runs(waits(), ON_TURING, BEGIN_S + 10), state=JobState.FINISHED, ended_s=BEGIN_S + 99)
    odd = [
        replace(good, id="2", parts=()),
        replace(good, id="3", parts=(Part("elsewhere", "t4", 2),)),
        replace(good, id="4", parts=(*ON_TURING, *ON_VOLTA)),
        replace(waits("5"), state=JobState.CANCELLED, ended_s=BEGIN_S + 50),
        replace(waits("6"), reason="Dependency"),
    ]
    found = prepared(Record("x", PAPER16, BEGIN_S, BEGIN_S + 200, (good, *odd)))
    assert [job.id for job in found.live] == ["1"]
    assert found.set_aside == {
        "ran on unknown GPUs (a node that the cluster does not have, or one with several GPU models)": 1,
        "ran on a node or GPU that the cluster does not have": 1,
        "ran on two GPU models at once": 1,
        "never started": 1,
        "wait for something else than room": 1,
    }


def test_a_job_that_ran_although_our_rules_refuse_it_is_replayed_with_a_smaller_request() -> None:
    greedy = replace(waits(), job=replace(waits().job, cpus=1000.0, models=frozenset(["v100-sxm2-16gb"])))
    over = replace(runs(greedy, ON_TURING, BEGIN_S + 10), state=JobState.FINISHED, ended_s=BEGIN_S + 99)
    made = prepared(Record("x", PAPER16, BEGIN_S, BEGIN_S + 200, (over,)))
    assert (len(made.live), made.reshaped) == (1, 1)


# ---- trust ---------------------------------------------------------------------------------------------------------


def test_a_whole_record_is_trusted_and_says_who_gains(whole: Record) -> None:
    found = summed(whole)
    assert found.doubts == ()
    assert [line.policy for line in found.lines] == [
        HAPPENED, "adlro", "fcfs-first-fit", "fcfs-easy", "adlro, same models",
    ]  # fmt: skip
    ours = found.lines[1]
    assert ours.relative is not None
    assert ours.relative < -0.1
    assert ours.low_s is not None
    assert ours.high_s is not None
    assert ours.low_s < (ours.difference_s or 0.0) < ours.high_s
    assert len(found.gain) == 10
    assert found.gain[0].difference_s == min(job.difference_s for job in found.gain)
    assert sum(user.jobs for user in found.users) == found.jobs.compared
    assert json.loads(json.dumps(found.as_json()))["trusted"] is True


def test_a_policy_that_stops_jobs_says_what_that_brings_and_to_whom_it_happens(whole: Record) -> None:
    found = replay_report(whole, "srtf", [])
    effect = found.stopping
    assert effect is not None
    lines = {line.policy: line for line in found.lines}
    assert (effect.in_system_s, effect.jct_s) == (lines["srtf"].in_system_s, lines["srtf"].jct_s)
    assert (effect.in_system_without_s, effect.jct_without_s) == (
        lines["srtf+stops(0)"].in_system_s, lines["srtf+stops(0)"].jct_s,
    )  # fmt: skip
    assert effect.in_system_s < effect.in_system_without_s
    assert effect.stops == sum(user.stops for user in effect.users) >= effect.jobs > 0
    assert effect.jobs == sum(user.jobs for user in effect.users)
    assert effect.lost_gpu_h == pytest.approx(sum(user.lost_gpu_h for user in effect.users))
    assert max(job.stops for job in effect.often) == effect.most
    first = effect.often[0]
    assert first.lost_gpu_h == pytest.approx(first.stops * first.gpus * effect.restart_s / 3600.0)
    assert (effect.restartable, effect.of_jobs) == (0, 120)


def test_a_policy_that_resizes_jobs_says_what_that_brings_and_to_whom_it_happens(whole: Record) -> None:
    named = [bool(job.job.gpus and job.job.share == 1000 and number % 2) for number, job in enumerate(whole.jobs)]
    jobs = [
        replace(job, job=replace(job.job, sizes="1,2,4,8")) if is_named else job
        for job, is_named in zip(whole.jobs, named, strict=True)
    ]
    found = replay_report(replace(whole, jobs=tuple(jobs)), "rank-elastic", [])
    effect, lines = found.resizing, {line.policy: line for line in found.lines}
    assert effect is not None
    assert effect.in_system_s == lines["rank-elastic"].in_system_s
    assert effect.in_system_without_s == lines["rank-elastic, same sizes"].in_system_s
    assert effect.in_system_s < effect.in_system_without_s
    assert (effect.with_sizes, effect.of_jobs) == (sum(named), len(jobs))
    assert effect.more > 0
    assert effect.fewer > 0
    assert (effect.more, effect.fewer) == tuple(
        sum(getattr(user, side) for user in effect.users) for side in ("more", "fewer")
    )
    assert effect.jobs == sum(user.jobs for user in effect.users)
    # Only jobs that name sizes are resized.
    assert {job.id for job in effect.often} <= {job.id for job, is_named in zip(jobs, named, strict=True) if is_named}
    fixed = replay_report(whole, "rank-elastic", []).resizing
    assert fixed is not None
    assert (fixed.jobs, fixed.in_system_s) == (0, effect.in_system_without_s)


def test_a_report_with_weights_says_what_they_bring_and_to_which_priorities(whole: Record) -> None:
    found = replay_report(whole, "eft-reserving", [], weights="priority")
    effect, lines = found.weighing, {line.policy: line for line in found.lines}
    assert effect is not None
    assert effect.weighted_s < effect.equal_s < effect.happened_s
    low, high = effect.shares[0], effect.shares[-1]
    assert high.weighted_s < high.equal_s
    assert low.weighted_s > low.equal_s
    for line, side in (("eft-reserving", "weighted_s"), ("eft-reserving, equal weights", "equal_s")):
        total = sum(share.jobs * getattr(share, side) for share in effect.shares)
        assert total / sum(share.jobs for share in effect.shares) == pytest.approx(lines[line].in_system_s)


def test_weights_change_nothing_in_a_record_of_one_priority_and_the_report_says_so(whole: Record) -> None:
    same = replace(whole, jobs=tuple(replace(job, job=replace(job.job, priority=0.7)) for job in whole.jobs))
    found = replay_report(same, "eft-reserving", [], weights="priority")
    assert found.weighing is None
    assert any("have the same priority" in note for note in found.notes)
    assert found.lines == replay_report(same, "eft-reserving", []).lines


def test_a_policy_that_stops_no_jobs_has_no_such_part(whole: Record) -> None:
    found = replay_report(whole, "sjf", [])
    assert found.stopping is None
    assert found.resizing is None
    assert found.weighing is None
    assert [line.policy for line in found.lines] == [HAPPENED, "sjf", "sjf, same models"]


def test_a_record_that_the_simulator_cannot_tell_again_is_not_to_be_trusted(whole: Record) -> None:
    """Two jobs on the same GPUs at the same time: the description of the cluster is wrong."""
    crowded = tuple(replace(job, parts=(Part("turing", "t4", part.count),)) if (part := job.parts[0]).count < 4 else job
                    for job in whole.jobs)  # fmt: skip
    found = summed(replace(whole, jobs=crowded))
    assert any("replay of what happened does not match it" in doubt for doubt in found.doubts)


def test_too_few_jobs_many_unfinished_ones_and_gaps_are_doubts(whole: Record) -> None:
    found = summed(replace(whole, jobs=whole.jobs[:15], unwatched_s=1e9))
    assert any("at least 30 are needed" in doubt for doubt in found.doubts)
    assert any("nobody watched" in doubt for doubt in found.doubts)
    early = summed(watched(jobs=300, until=0.3, load=3.0))
    assert any("watch longer" in doubt for doubt in early.doubts)


def test_jobs_so_short_that_the_pauses_of_a_scheduler_count_are_a_doubt(whole: Record) -> None:
    short = tuple(replace(job, ended_s=(job.started_s or 0.0) + 20.0) for job in whole.jobs if job.ended_s)
    assert any("pauses" in doubt for doubt in summed(replace(whole, jobs=short)).doubts)


def test_a_wrong_word_for_the_estimates_is_refused(whole: Record) -> None:
    with pytest.raises(UsageError, match="expected predicted, limit, oracle"):
        replay_report(whole, estimates="guess")


def test_the_speed_table_is_held_against_jobs_that_ran_on_two_models() -> None:
    base = waits()
    jobs = []
    for number in range(6):
        parts, length = (ON_TURING, 1000.0) if number < 3 else (ON_VOLTA, 500.0)
        at = BEGIN_S + 2000.0 * number
        done = runs(replace(base, id=str(number), job=replace(base.job, submit_s=at)), parts, at + 1)
        jobs.append(replace(done, state=JobState.FINISHED, ended_s=at + 1 + length))
    found = replay_report(Record("x", PAPER16, BEGIN_S - 1, BEGIN_S + 20_000, tuple(jobs)), others=[])
    assert found.speeds.pairs == 1
    made = prepared(Record("x", PAPER16, BEGIN_S - 1, BEGIN_S + 20_000, tuple(jobs)))
    rate = [made.view.rate[made.view.jobs[j].kind, made.plan.sites[made.site[j]].form] for j in (0, 5)]
    assert found.speeds.median_error == pytest.approx(math.exp(abs(math.log(2 * rate[0] / rate[1]))) - 1)


# ---- from elsewhere ------------------------------------------------------------------------------------------------


def test_the_daemons_memory_will_do_where_there_is_no_record(tmp_path: Path, whole: Record) -> None:
    store = open_store(f"sqlite:{tmp_path / 'adlro.db'}")
    store.ended([job for job in whole.jobs if job.state is JobState.FINISHED])
    record = record_of_memory(store, PAPER16, "adlro.db")
    store.close()
    found = summed(record)
    assert abs(found.calibration.error) < 1e-6
    assert "no record of a shadow" in found.notes[0]


SACCT = """\
JobID|User|JobName|Partition|State|Submit|Start|End|Timelimit|AllocCPUS|ReqTRES|AllocTRES|NodeList
7|ann|train|gpu|COMPLETED|2024-03-04T08:00:00|2024-03-04T08:00:10|2024-03-04T08:10:00|1:00:00|8|cpu=8|cpu=8,mem=64G,gres/gpu=4|turing
7.batch||batch||COMPLETED|2024-03-04T08:00:10|2024-03-04T08:00:10|2024-03-04T08:10:00|||||turing
8|ann|train|gpu|COMPLETED|2024-03-04T08:01:00|2024-03-04T08:10:00|2024-03-04T08:20:00|1:00:00|8|cpu=8,gres/gpu:v100=8|cpu=8,mem=64G,gres/gpu=8|volta[0-1]
9|bob|prep|gpu|TIMEOUT|2024-03-04T08:02:00|2024-03-04T08:11:00|2024-03-04T08:12:00|UNLIMITED|1|cpu=1|cpu=1,mem=512M|radeon
10|bob|prep|gpu|CANCELLED by 7|2024-03-04T08:03:00|2024-03-04T08:04:00|2024-03-04T08:04:00|10:00|1|cpu=1||None assigned
11|bob|prep|gpu|RUNNING|2024-03-04T08:03:00|2024-03-04T08:12:00|Unknown|10:00|1|cpu=1|cpu=1,gres/gpu=1|turing
12|bob|prep|gpu|PENDING|2024-03-04T08:15:00|Unknown|Unknown|10:00|1|cpu=1,gres/gpu=1||None assigned
"""


def test_a_sites_history_from_sacct_has_places_states_and_limits(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    record = read_sacct_record(str(tmp_path / "sacct.txt"), PAPER16)
    jobs = {job.id: job for job in record.jobs}
    assert [(id, job.state) for id, job in jobs.items()] == [
        ("7", JobState.FINISHED),
        ("8", JobState.FINISHED),
        ("9", JobState.FAILED),
        ("10", JobState.CANCELLED),
        ("11", JobState.RUNNING),
        ("12", JobState.WAITING),
    ]
    assert jobs["7"].parts == (Part("turing", "t4", 4),)
    assert jobs["8"].parts == (Part("volta0", "v100-sxm2-16gb", 4), Part("volta1", "v100-sxm2-16gb", 4))
    assert (jobs["8"].job.models, jobs["8"].job.gpus) == (frozenset(["v100-sxm2-16gb"]), 8)
    assert (jobs["7"].job.limit_s, jobs["9"].job.limit_s) == (3600.0, None)
    assert jobs["10"].started_s is None, "sacct gives a start to a job that was cancelled while it waited"
    assert record.begin_s == jobs["7"].ended_s, "before the first end the list may not be whole"
    made = prepared(record)
    assert {job.id for job in made.live} == {"8", "9", "11", "12"}


def test_a_history_without_the_nodes_is_refused_with_the_command_that_gives_them(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT.replace("NodeList", "Comment"))
    with pytest.raises(TraceError, match="no column 'NodeList'; expected the output of: sacct"):
        read_sacct_record(str(tmp_path / "sacct.txt"), PAPER16)


def test_a_requeued_job_counts_once_from_its_first_submission(tmp_path: Path) -> None:
    lines = SACCT.splitlines()
    again = lines[1].replace("T08:00:00", "T08:30:00").replace("T08:00:10", "T08:31:00").replace("T08:10", "T08:40")
    (tmp_path / "sacct.txt").write_text("\n".join([*lines, again]) + "\n")
    (job,) = [job for job in read_sacct_record(str(tmp_path / "sacct.txt"), PAPER16).jobs if job.id == "7"]
    assert job.starts == 2
    assert job.ended_s is not None
    assert job.ended_s - job.job.submit_s == 40 * 60


def test_the_nodes_of_a_job_are_read_as_slurm_writes_them(tmp_path: Path) -> None:
    names = ("rack0n0", "rack0n1", "rack1n0", "rack1n1")
    cluster = replace(PAPER16, nodes=tuple(replace(PAPER16.nodes[0], name=name) for name in names))
    (tmp_path / "sacct.txt").write_text(SACCT.replace("gpu=4|turing", "gpu=4|rack[0-1]n[0-1]"))
    jobs = {job.id: job for job in read_sacct_record(str(tmp_path / "sacct.txt"), cluster).jobs}
    assert [(part.node, part.count) for part in jobs["7"].parts] == [(name, 1) for name in names]
    assert jobs["10"].started_s is None  # "None assigned" is no node


def test_a_file_that_is_no_record_is_told_as_that(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("milk\nbread\n")
    with pytest.raises(StoreError, match="none of its 2 lines can be read"):
        read_record(other)
