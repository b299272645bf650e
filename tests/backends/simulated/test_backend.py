"""The simulated back end: the same rules as the simulator, behind the door of a live cluster."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference
from tests.reference_world import sites_of
from tests.strategies import Scenario, gpu_model, scenarios

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.clock import ByHand
from adlro.backends.simulated.entries import arriving
from adlro.core.errors import BackendError, CatalogueError, ConfigError
from adlro.core.ports import ENDED, Backend, JobState, LiveJob, Order, Part, Snapshot, Submission
from adlro.core.records import CPU_ONLY, MEASURED, Cluster, Disturbance, Gpus, Job, Link, Node, Placing, Speed

FAST, SLOW = "fast", "slow"
START_S = 1_000_000.0
LINK = Link("pcie", 32.0)


def cluster_of(*groups: dict[str, int], cpus: float = 8.0) -> Cluster:
    """A cluster with one node for each mapping of model to count."""
    nodes = tuple(
        Node(f"n{i}", cpus, 64.0, tuple(Gpus(model, count) for model, count in group.items()), LINK)
        for i, group in enumerate(groups)
    )
    return Cluster("hand", "", nodes, LINK, {FAST: gpu_model(FAST), SLOW: gpu_model(SLOW)})


def speed(family: str, placing: Placing) -> Speed:
    """The fast model works at 1, the slow at 1/4; over several nodes half."""
    if family == "unheard":
        raise CatalogueError("there is no family 'unheard'.")
    name = placing.model.name if placing.model else FAST
    return Speed({FAST: 1.0, SLOW: 0.25}[name] * (0.5 if placing.nodes > 1 else 1.0), MEASURED)


class Small:
    """A small cluster with a clock that is moved by hand."""

    def __init__(self, *groups: dict[str, int], cpus: float = 8.0, **options: object) -> None:
        self.clock = ByHand()
        self.backend = Simulated(
            cluster_of(*(groups or ({FAST: 4},)), cpus=cpus), speed, clock=self.clock, start_s=START_S,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip

    def submit(self, work: float = 10.0, **what: object) -> str:
        """Hand in a job."""
        return self.backend.submit(Submission(Job("any", work, **what)))  # type: ignore[arg-type]

    def start(self, job: str, *parts: Part, decision: str = "d") -> str:
        """Order a start, by default of one GPU of the first node; what was said, "" if it was done."""
        answer = self.backend.act([Order(job, decision, parts or (Part("n0", FAST, 1),))])[0]
        assert answer.job == job
        return "" if answer.done else answer.said

    def stop(self, job: str) -> bool:
        """Order a stop."""
        return self.backend.act([Order(job, "s")])[0].done

    def wait(self, seconds: float) -> Snapshot:
        """Let time pass, and look."""
        self.clock.move(seconds)
        return self.backend.read()

    def job(self, job: str) -> LiveJob:
        """One job as it is now."""
        return {live.id: live for live in self.backend.read().jobs}[job]


def test_it_is_a_back_end_that_can_stop_jobs() -> None:
    backend: Backend = Small().backend
    assert (backend.name, backend.can_stop) == ("simulated", True)
    backend.close()


def test_a_job_waits_runs_for_its_work_and_finishes() -> None:
    small = Small({FAST: 4, SLOW: 2})
    small.wait(5.0)
    job = small.submit(8.0, gpus=2)
    waiting = small.job(job)
    assert (waiting.state, waiting.job.submit_s, waiting.parts, waiting.starts) == ("waiting", START_S + 5, (), 0)
    small.clock.move(1.0)
    assert small.start(job, Part("n0", SLOW, 2)) == ""
    running = small.job(job)
    assert (running.state, running.started_s, running.starts) == (JobState.RUNNING, START_S + 6, 1)
    assert running.parts == (Part("n0", SLOW, 2, (4, 5)),)  # GPUs are numbered through the node
    assert running.decision == "d"
    small.wait(15.99)
    assert small.job(job).state is JobState.RUNNING
    small.wait(0.01)
    done = small.job(job)
    assert (done.state, done.ended_s, done.exit_code, done.parts) == ("finished", START_S + 22, 0, running.parts)


def test_the_true_work_is_not_shown_unless_asked_for() -> None:
    small, open_book = Small(), Small(tells_work=True)
    assert small.job(small.submit(10.0, estimate=12.0)).job.work == 0.0
    assert small.job("1").job.estimate == 12.0
    assert open_book.job(open_book.submit(10.0)).job.work == 10.0


def test_a_job_that_says_nothing_of_its_work_runs_as_long_as_its_estimate_or_some_minutes() -> None:
    small = Small()
    spoken, silent = small.submit(0.0, estimate=20.0), small.submit(0.0)
    assert small.start(spoken) == small.start(silent) == ""
    small.wait(20.0)
    assert (small.job(spoken).state, small.job(silent).state) == ("finished", "running")
    small.wait(580.0)
    assert small.job(silent).state is JobState.FINISHED


def test_an_order_that_does_not_fit_is_refused_with_a_word_and_changes_nothing() -> None:
    small = Small({FAST: 2}, {FAST: 2, SLOW: 2}, cpus=4.0)
    small.backend.drain("n1", "disk")
    cases = [
        ({"gpus": 2}, [Part("n0", FAST, 1)], "1 GPUs; the job needs 2"),
        ({"gpus": 2}, [Part("n0", FAST, 1), Part("n1", SLOW, 1)], "2 models"),
        ({"gpus": 2}, [Part("n0", FAST, 1), Part("n0", FAST, 1)], "twice"),
        ({}, [Part("nowhere", FAST, 1)], "no node 'nowhere'"),
        ({}, [Part("n0", "rare", 1)], "no rare"),
        ({}, [Part("n0", SLOW, 1)], "0 of 1 GPUs are free"),
        ({}, [Part("n1", FAST, 1)], "takes no jobs: disk"),
        ({}, [Part("n0", FAST, 1, (7,))], "no fast with the number 7"),
        ({"models": frozenset([SLOW])}, [Part("n0", FAST, 1)], "does not allow fast"),
        ({"cpus": 5.0}, [Part("n0", FAST, 1)], "4 cores free; 5"),
        ({"memory_gb": 65.0}, [Part("n0", FAST, 1)], "MiB of memory free"),
        ({"gpu_memory_gb": 17.0}, [Part("n0", FAST, 1)], "on each GPU"),
        ({"gpus": 0}, [Part("n0", FAST, 1)], "needs no GPU"),
        ({"gpus": 2}, [Part("n0", FAST, 2, (0, 0))], "1 named"),
    ]
    for what, parts, word in cases:
        job = small.submit(**what)  # type: ignore[arg-type]
        assert word in small.start(job, *parts)
        assert small.job(job).state is JobState.WAITING
    assert small.start("nobody") == "there is no such job"
    # Nothing was taken by all that.
    assert small.start(small.submit(gpus=2, cpus=4.0), Part("n0", FAST, 2)) == ""


def test_two_jobs_never_hold_one_gpu_and_shares_go_where_they_fit_tightest() -> None:
    small = Small({FAST: 2})
    shares = [small.submit(share=share) for share in (500, 750, 250, 500)]
    places = [Part("n0", FAST, 1, (0,)), Part("n0", FAST, 1), Part("n0", FAST, 1), Part("n0", FAST, 1)]
    assert [small.start(job, part) for job, part in zip(shares, places, strict=True)] == [""] * 4
    assert [small.job(job).parts[0].indices for job in shares] == [(0,), (1,), (1,), (0,)]
    assert "0 of 1 GPUs are free" in small.start(small.submit(share=1))
    assert "GPU 1 of n0 is taken" in small.start(small.submit(), Part("n0", FAST, 1, (1,)))
    small.wait(20.0)
    assert small.job(shares[0]).state is JobState.FINISHED  # half a GPU takes twice as long


def test_an_order_given_twice_is_carried_out_once() -> None:
    small = Small({FAST: 2}, {FAST: 2})
    job = small.submit(gpus=1)
    assert small.start(job, Part("n0", FAST, 1)) == ""
    assert small.start(job, Part("n0", FAST, 1)) == ""
    assert small.start(job, Part("n0", FAST, 1, (0,))) == ""
    assert small.start(job, Part("n0", FAST, 1, (1,))) == "it is running already"
    assert small.start(job, Part("n1", FAST, 1)) == "it is running already"
    assert small.job(job).starts == 1
    small.wait(10.0)
    assert small.start(job, Part("n0", FAST, 1)) == ""  # this very decision was carried out, and is over
    assert small.start(job, Part("n0", FAST, 1), decision="another") == "it is finished already"
    assert small.job(job).starts == 1
    assert not small.stop(job)


def test_a_stopped_job_waits_again_keeps_its_work_and_pays_to_come_back() -> None:
    small = Small(restart_s=3.0)
    job = small.submit(10.0, restartable=True)
    small.start(job)
    small.wait(4.0)
    assert small.stop(job)
    assert small.stop(job)  # twice does no harm
    stopped = small.wait(1.0).jobs[0]
    assert (stopped.state, stopped.starts, stopped.started_s, stopped.parts) == (JobState.WAITING, 1, None, ())
    assert stopped.job.submit_s == START_S
    assert small.start(job, decision="again") == ""
    small.wait(8.99)
    assert small.job(job).state is JobState.RUNNING
    ended = small.wait(0.01).jobs[0]
    assert (ended.state, ended.starts, ended.ended_s) == (JobState.FINISHED, 2, START_S + 14)


def test_a_failed_node_throws_its_jobs_back_to_their_checkpoint_and_takes_none_until_it_returns() -> None:
    small = Small({FAST: 2}, {FAST: 2})
    gang = small.submit(40.0, gpus=4, checkpoint=6.0)
    other = small.submit(100.0)
    assert small.start(gang, Part("n0", FAST, 2), Part("n1", FAST, 2)) == ""
    small.wait(4.0)  # over two nodes it works at half speed: 8 done, 6 of them kept
    small.backend.fail_node("n1", "power")
    snapshot = small.backend.read()
    assert snapshot.down == {"n1": "power"}
    failed = snapshot.jobs[0]
    assert (failed.state, failed.starts, failed.job.submit_s) == (JobState.WAITING, 1, START_S)
    assert "n1" in failed.reason
    assert small.start(other, Part("n0", FAST, 1)) == ""  # what the gang held elsewhere is free
    assert small.start(gang, Part("n1", FAST, 2), Part("n0", FAST, 2)) != ""
    small.backend.return_node("n1")
    assert small.backend.read().down == {}
    small.backend.cancel(other)
    assert small.start(gang, Part("n1", FAST, 2), Part("n0", FAST, 2)) == ""
    assert small.wait(17.0).jobs[0].ended_s == START_S + 21


def test_a_drained_node_lets_its_jobs_finish() -> None:
    small = Small()
    job, late = small.submit(), small.submit()
    small.start(job)
    small.backend.drain("n0")
    assert "takes no jobs" in small.start(late)
    assert small.wait(10.0).jobs[0].state is JobState.FINISHED


def test_a_worn_gpu_slows_the_jobs_on_it_from_that_moment_on() -> None:
    small = Small()
    job, elsewhere = small.submit(10.0), small.submit(10.0)
    small.start(job), small.start(elsewhere)
    small.wait(5.0)
    small.backend.wear("n0", 0, 0.5)
    assert small.backend.factor("n0", 0) == 0.5
    small.wait(5.0)
    assert [small.job(each).state for each in (job, elsewhere)] == ["running", "finished"]
    assert small.wait(5.0).jobs[0].ended_s == START_S + 15


def test_limits_kill_only_where_they_are_kept() -> None:
    small, strict = Small(), Small(kill_at_limit=True)
    for each in (small, strict):
        each.start(each.submit(10.0, limit_s=4.0))
        each.wait(10.0)
    assert small.job("1").state is JobState.FINISHED
    killed = strict.job("1")
    assert (killed.state, killed.ended_s, killed.signal, killed.exit_code) == ("failed", START_S + 4, 15, None)
    assert "limit of 4 s" in killed.reason


def test_a_cancelled_job_is_over_whether_it_waited_or_ran() -> None:
    small = Small({FAST: 1})
    running, waiting = small.submit(), small.submit()
    small.start(running)
    for job in (waiting, running, running):
        small.backend.cancel(job)
    assert {live.state for live in small.backend.read().jobs} == {JobState.CANCELLED}
    assert small.start(small.submit()) == ""
    with pytest.raises(BackendError, match="no job 'x'"):
        small.backend.cancel("x")


def test_a_job_may_fail_with_an_exit_code_or_a_signal() -> None:
    small = Small()
    coded, signalled = small.submit(), small.submit()
    small.start(coded), small.start(signalled)
    small.backend.fail_job(coded, 3)
    small.backend.fail_job(signalled, signal=9)
    assert (small.job(coded).state, small.job(coded).exit_code) == (JobState.FAILED, 3)
    assert (small.job(signalled).signal, small.job(signalled).exit_code) == (9, None)


def test_a_placed_job_holds_its_place_before_it_runs() -> None:
    small = Small({FAST: 1}, start_delay_s=2.0)
    job = small.submit(10.0)
    small.start(job)
    assert (small.job(job).state, small.job(job).started_s, small.job(job).starts) == ("placed", None, 0)
    assert small.start(job) == ""
    assert small.start(small.submit()) != ""
    assert small.wait(2.0).jobs[0].state is JobState.RUNNING
    assert small.wait(10.0).jobs[0].ended_s == START_S + 12
    small.start("2")
    assert small.stop("2")
    assert small.wait(5.0).jobs[1].state is JobState.WAITING


def test_a_running_job_without_the_mark_is_not_stopped_and_those_of_a_list_have_it() -> None:
    small = Small(arrivals=arriving([Job("any", 10.0)]))
    job = small.submit(10.0)
    assert [live.job.restartable for live in small.wait(0.0).jobs] == [True, False]
    small.start(job)
    (answer,) = small.backend.act([Order(job, "d")])
    assert (answer.done, answer.said) == (False, "it is not marked as restartable")
    assert small.job(job).state is JobState.RUNNING


def test_work_saved_by_a_stop_outlives_a_failure_before_the_job_runs_again() -> None:
    small = Small({FAST: 1}, start_delay_s=2.0)
    job = small.submit(10.0, restartable=True)
    small.start(job)
    small.wait(6.0)
    assert small.stop(job)
    small.start(job)
    small.backend.fail_node("n0")
    small.backend.return_node("n0")
    small.start(job)
    assert small.wait(8.0).jobs[0].ended_s == START_S + 14


def test_a_part_of_a_gang_takes_its_part_of_the_cores_rounded_up() -> None:
    for cpus, word in [(2.667, ""), (2.666, "n0 has 2.666 cores free; 2.667 are needed")]:
        small = Small({FAST: 2}, {FAST: 1}, cpus=cpus)
        assert small.start(small.submit(gpus=3, cpus=4.0), Part("n0", FAST, 2), Part("n1", FAST, 1)) == word


def test_a_job_without_gpus_runs_on_cores_alone() -> None:
    small = Small({FAST: 1}, {}, cpus=4.0)
    job = small.submit(10.0, gpus=0, cpus=3.0)
    assert small.start(job, Part("n1", CPU_ONLY, 0)) == ""
    assert "1 cores free" in small.start(small.submit(gpus=0, cpus=2.0), Part("n1", CPU_ONLY, 0))
    assert small.wait(10.0).jobs[0].state is JobState.FINISHED


def test_a_family_that_nobody_knows_and_a_job_that_nobody_means_are_refused_at_once() -> None:
    small = Small()
    with pytest.raises(CatalogueError, match="unheard"):
        small.backend.submit(Submission(Job("unheard", 1.0)))
    with pytest.raises(ConfigError, match="share is 500 with 2 GPUs"):
        small.submit(gpus=2, share=500)
    with pytest.raises(ConfigError, match="sizes is '1,b'"):
        small.submit(sizes="1,b")
    with pytest.raises(ConfigError, match="work is nan"):
        small.submit(float("nan"))
    with pytest.raises(ConfigError, match=r"priority is 2\.0; expected a number from 0 to 1"):
        small.submit(priority=2.0)
    assert small.backend.read().jobs == ()


def test_a_clock_that_jumps_back_stops_time_and_one_that_jumps_ahead_brings_what_is_due() -> None:
    small = Small()
    job, next_job = small.submit(10.0), small.submit(10.0)
    small.start(job)
    before = small.wait(5.0).time_s
    assert small.wait(-1000.0).time_s == before
    assert small.job(job).state is JobState.RUNNING
    assert small.start(next_job) == ""
    after = small.wait(1e9)
    assert [live.state for live in after.jobs] == [JobState.FINISHED] * 2
    assert [live.ended_s for live in after.jobs] == [START_S + 10, START_S + 15]


def test_time_runs_as_many_times_faster_as_it_is_told() -> None:
    fast = Simulated(cluster_of({FAST: 1}), speed, speed=1e6, start_s=START_S)
    real, before = time.monotonic(), fast.now_s
    time.sleep(0.002)
    assert fast.now_s - before >= 2000.0
    assert fast.now_s - before <= (time.monotonic() - real) * 1e6
    with pytest.raises(BackendError, match="speed"):
        Simulated(cluster_of({FAST: 1}), speed, speed=0.0)


def test_jobs_arrive_by_themselves_and_things_befall_the_nodes() -> None:
    small = Small(
        {FAST: 1}, {FAST: 1},
        arrivals=arriving([Job("any", 5.0, submit_s=at) for at in (0.0, 3.0, 3.0)]),
        disturbances=[
            Disturbance(2.0, "down", "n1"), Disturbance(3.0, "speed", "n0", 0, 0.5), Disturbance(4.0, "up", "n1"),
        ],
    )  # fmt: skip
    assert [live.job.submit_s for live in small.backend.read().jobs] == [START_S]
    assert small.backend.next_event_s == START_S + 2
    small.start("1")
    assert small.wait(3.0).down == {"n1": "it does not answer"}
    assert [live.job.submit_s for live in small.backend.read().jobs] == [START_S, START_S + 3, START_S + 3]
    assert small.wait(1.0).down == {}
    assert small.wait(3.0).jobs[0].ended_s == START_S + 7  # 3 done, and 2 at half speed


def test_an_endless_stream_holds_back_while_enough_jobs_wait() -> None:
    endless = (Submission(Job("any", 1.0, submit_s=float(at))) for at in count())
    small = Small(arrivals=endless, most_waiting=5)
    assert len(small.wait(1e9).jobs) == 5
    assert small.backend.next_event_s is None
    small.start("1")
    later = small.wait(0.0)
    assert [live.job.submit_s - later.time_s for live in later.jobs][-1] == 0.0
    assert len(later.jobs) == 6


def test_arrivals_that_cannot_be_taken_are_counted_and_the_rest_comes() -> None:
    small = Small(arrivals=arriving([Job("any", -1.0), Job("unheard", 1.0), Job("any", 1.0)]))
    snapshot = small.backend.read()
    assert len(snapshot.jobs) == 1
    assert snapshot.notes == ("2 arriving jobs could not be taken",)


def test_ended_jobs_are_seen_twice_at_least_and_then_forgotten() -> None:
    small = Small(keep_ended_s=5.0)
    job = small.submit(1.0)
    small.start(job)
    assert small.wait(1e6).jobs[0].state is JobState.FINISHED
    assert small.wait(1e6).jobs[0].state is JobState.FINISHED
    assert small.wait(0.0).jobs == ()
    with pytest.raises(BackendError, match="no job"):
        small.backend.cancel(job)


def test_a_long_life_leaves_nothing_behind() -> None:
    jobs = (Submission(Job("any", 2.0, submit_s=float(at))) for at in count())
    small = Small(arrivals=jobs, keep_ended_s=10.0, disturbances=worn_for_ever())
    for _ in range(3000):
        snapshot = small.wait(1.0)
        small.backend.act([Order(job.id, "d", (Part("n0", FAST, 1),)) for job in snapshot.jobs if is_waiting(job)])
    assert len(small.backend.read().jobs) < 25
    assert len(small.backend._events) < 200
    assert len(small.backend._entries) < 25


def test_a_gpu_that_changes_its_speed_again_and_again_leaves_no_trail() -> None:
    small = Small()
    small.start(small.submit(1e9))
    for number in range(1, 1000):
        small.backend.wear("n0", 0, number / 1000)  # every end comes before the one that was foreseen
    assert len(small.backend._events) < 100


def worn_for_ever() -> Iterator[Disturbance]:
    """A GPU whose speed changes every tenth of a second."""
    return (Disturbance(at / 10, "speed", "n0", 0, (0.5, 1.0)[at % 2]) for at in count())


def is_waiting(job: LiveJob) -> bool:
    """Whether it waits."""
    return job.state is JobState.WAITING


def test_threads_may_submit_and_cancel_while_another_acts() -> None:
    small = Small({FAST: 4})
    stop = threading.Event()
    wrong: list[BaseException] = []

    def users() -> None:
        try:
            for _ in range(200):
                job = small.submit(1.0)
                if int(job) % 5 == 0:
                    small.backend.cancel(job)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=users) for _ in range(4)]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        if not any(thread.is_alive() for thread in threads):
            stop.set()
        snapshot = small.wait(1.0)
        small.backend.act([Order(job.id, "d", (Part("n0", FAST, 1),)) for job in snapshot.jobs if is_waiting(job)][:8])
    for thread in threads:
        thread.join()
    assert wrong == []
    jobs = small.backend.read().jobs
    assert len({job.id for job in jobs}) == len(jobs) == 800
    assert sum(job.state is JobState.CANCELLED for job in jobs) == 160


def test_ten_thousand_queued_jobs_on_a_thousand_nodes_are_read_in_30_ms() -> None:
    small = Small(*[{FAST: 8}] * 1000)
    for _ in range(10_000):
        small.submit()
    first = small.backend.read()
    assert len(first.jobs) == 10_000
    taken = []
    for node in range(5):  # the best of five: the machine may have other things to do
        for job in range(8 * node, 8 * node + 8):
            small.start(str(job + 1), Part(f"n{node}", FAST, 1))
        began = time.perf_counter()
        second = small.backend.read()
        taken.append(time.perf_counter() - began)
    assert min(taken) <= 0.030
    second = small.backend.read()
    assert sum(job.state is JobState.RUNNING for job in second.jobs) == 40
    assert second.jobs[5000] is first.jobs[5000]  # what did not change is not made anew


# ---- against the second simulator --------------------------------------------------------------------------------


def orders_of(scenario: Scenario, events: Sequence[reference.Event]) -> Iterator[tuple[float, int, tuple[Part, ...]]]:
    """The starts and stops of a run, as orders: when, which job, where. GPUs by their number on the node."""
    sites = sites_of(scenario.cluster)
    first, before = [], dict.fromkeys(range(len(scenario.cluster.nodes)), 0)
    for site in sites:
        first.append(before[site.node])
        before[site.node] += site.gpus
    for place, (at, name, job, detail) in enumerate(events):
        if name == "stop":
            yield at, job, ()
        if name != "start":
            continue
        parts: list[Any] = [detail]
        for _, later, other, more in events[place + 1 :]:
            if later != "spread" or other != job:
                break
            parts.append(more)
        found = []
        for where, gpus in parts:
            node, model = scenario.cluster.nodes[sites[where].node].name, sites[where].model
            indices = tuple(first[where] + gpu for gpu in gpus)
            found.append(Part(node, model if gpus else CPU_ONLY, len(gpus), indices))
        yield at, job, tuple(found)


@settings(max_examples=150)
@given(scenarios(), st.integers(0, 1000), st.booleans())
def test_it_does_what_the_second_simulator_does_if_it_is_told_the_same(
    scenario: Scenario, seed: int, names_gpus: bool
) -> None:
    jobs = sorted((replace(job, work=job.work or 3.0) for job in scenario.jobs), key=lambda job: job.submit_s)
    options = scenario.options
    events = reference.simulate(
        scenario.cluster, jobs, scenario.speed, reference.random_choices(seed), options, scenario.disturbances, True
    )
    clock = ByHand()
    backend = Simulated(
        scenario.cluster, scenario.speed, clock=clock, start_s=0.0, arrivals=arriving(jobs),
        disturbances=sorted(scenario.disturbances, key=lambda item: item.time_s), restart_s=options.restart_s,
        kill_at_limit=options.kill_at_limit, keep_ended_s=1e9,
    )  # fmt: skip
    for at, job, parts in orders_of(scenario, events):
        clock.seconds = at
        asked = parts if names_gpus else tuple(replace(part, indices=()) for part in parts)
        answer = backend.act([Order(str(job + 1), "d", asked)])[0]
        assert answer.done, answer.said
        if parts:
            assert backend.read().jobs[job].parts == parts
    clock.seconds = events[-1][0] if events else 0.0
    seen = backend.read().jobs
    ends = {job: (at, name) for at, name, job, _ in events if name in ("finish", "kill")}
    verbs = {JobState.FINISHED: "finish", JobState.FAILED: "kill"}
    assert {int(live.id) - 1: (live.ended_s, verbs[live.state]) for live in seen if live.state in ENDED} == ends
    starts = [sum(name == "start" and job == each for _, name, job, _ in events) for each in range(len(seen))]
    assert [live.starts for live in seen] == starts
