"""The short form of scripts/soak.py, and that its checks find what they are there for."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from scripts.soak import Settings, soak
from scripts.soak_account import Happened, account
from scripts.soak_faults import KINDS, faults
from scripts.soak_jobs import MACHINES, SHAPES, Free, Need, Plan, Wish, fits, wishes
from scripts.soak_watch import FORGOTTEN_S, Job, Look, Row, Watch, runs_of, stamps_in


def room(gpus: int, cpus: int = 16, memory_mib: int = 64_000, is_empty: bool = False) -> Free:
    return Free(frozenset(range(gpus)), cpus, memory_mib, is_empty)


def row(name: str, state: str = "PENDING", reason: str = "JobHeldUser", priority: int = 0, **more: str) -> Row:
    words = {"task": "N/A", "partition": "gpu", "nodes": "", "after": "(null)", "qos": "normal", **more}
    return Row(
        "7", "7", words["task"], name, state, reason, priority, words["partition"], words["nodes"], words["after"],
        words["qos"], words.get("pins", ""), words.get("planned", ""),
    )  # fmt: skip


def job(name: str = "s1", need: Need = Need(each=1), **more: object) -> Job:  # noqa: B008  (frozen)
    wish = Wish(name, "gres 1", 0.0, "games", (), need, 5.0, **more)  # type: ignore[arg-type]
    return Job(wish, number="7", submitted_s=0.0)


# ---- the whole of it ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand jobs in as several users")
def test_jobs_of_every_shape_are_all_accounted_for_whatever_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        minutes=0.8, jobs=50, seed=2, tick_s=1.0, policy="sjf", every_s=4.5, drain_s=240.0, slack_s=20.0
    )
    said: list[str] = []
    result = soak(settings, said.append)
    told = "\n".join([*said, *result.lines()])
    with capsys.disabled():
        print(f"\n{result.lines()[0]}, {sum(result.faults.values())} faults")
    assert not result.problems, told
    assert set(result.faults) == set(KINDS), told
    assert sum(result.account.ends.values()) >= settings.jobs


# ---- the plan ----------------------------------------------------------------------------------------------------


def test_a_plan_is_the_same_for_the_same_seed_and_has_every_shape_and_every_fault() -> None:
    plan = Plan(100, 300.0, 5, ("games", "mail"), "news")
    assert [*wishes(plan)] == [*wishes(plan)]
    assert [*wishes(plan)] != [*wishes(Plan(100, 300.0, 6, ("games", "mail"), "news"))]
    assert {wish.shape for wish in wishes(plan)} == set(SHAPES)
    assert {fault.kind for fault in faults(600.0, 5, tuple(KINDS), 30.0)} == set(KINDS)


@pytest.mark.parametrize(
    ("need", "free", "is_so"),
    [
        (Need(each=2), {"volta0": room(2)}, True),
        (Need(each=2), {"volta0": room(1), "volta1": room(1)}, False),
        (Need(each=1, cpus=4), {"volta0": room(4, cpus=3)}, False),
        (Need(each=1, memory_mib=2000), {"volta0": room(4, memory_mib=1000)}, False),
        (Need(each=1, whole=True), {"volta0": room(3)}, False),
        (Need(each=1, whole=True), {"volta0": room(4, is_empty=True)}, True),
        (Need(each=1, kinds=frozenset(["t4"])), {"volta0": room(4)}, False),
        (Need(each=1, features=frozenset(["amd"])), {"radeon0": room(1)}, True),
        (Need(each=1, nodes=2), {"volta0": room(4)}, False),
        (Need(each=1, nodes=2), {"volta0": room(4), "volta1": room(1)}, True),
        (Need(in_all=6), {"volta0": room(4), "volta1": room(4)}, False),  # perhaps: in doubt it is no
        (Need(in_all=6), {"volta0": room(4, is_empty=True), "volta1": room(4, is_empty=True)}, True),
        (Need(in_all=6), {"volta0": room(4, is_empty=True), "turing0": room(2, is_empty=True)}, False),  # two models
        (Need(each=2, sockets=2), {"volta0": room(4)}, False),
        (Need(), {"plain0": room(0)}, True),
    ],
)
def test_a_job_fits_only_where_slurm_could_start_it_for_certain(need: Need, free: dict[str, Free], is_so: bool) -> None:
    assert fits(need, free) is is_so


# ---- idle GPUs ---------------------------------------------------------------------------------------------------


def looks(*rooms: Free, rows: tuple[Row, ...]) -> Iterator[Look]:
    for second, free in enumerate(rooms):
        yield Look(float(second), rows, {"volta0": free}, {"volta0": "MIXED"})


def idle_s(one: Job, what: Row, *rooms: Free) -> float:
    watch = Watch({one.wish.name: one}, limit=2)
    for each in looks(*rooms, rows=(what,)):
        watch.see(each)
    return max((found.seconds for found in watch.idle.values()), default=0.0)


def test_a_gpu_that_idles_beside_a_job_that_fits_is_found_with_its_time() -> None:
    assert idle_s(job(), row("s1"), *[room(1)] * 11) == 10.0


def test_a_gpu_that_was_free_for_a_moment_only_does_not_idle() -> None:
    first, second = Free(frozenset([0]), 16, 64_000, False), Free(frozenset([1]), 16, 64_000, False)
    assert idle_s(job(), row("s1"), *[first, second] * 5) == 0.0


@pytest.mark.parametrize(
    ("one", "what"),
    [
        (job(is_held=True), row("s1")),
        (job(), row("s1", after="afterok:5(unfulfilled)")),
        (job(begin_s=60.0), row("s1")),
        (job(need=Need(each=4), qos="small"), row("s1", qos="small")),
        (job(), row("s1", reason="BeginTime", priority=5)),
        (job(), row("s1", state="RUNNING", reason="None", priority=5)),
    ],
)
def test_a_job_that_may_not_run_makes_no_gpu_idle(one: Job, what: Row) -> None:
    assert idle_s(one, what, *[room(4)] * 11) == 0.0


def test_a_job_that_slurmctld_may_have_forgotten_to_run_is_not_missed_for_a_while() -> None:
    ran = job()
    ran.ran_s = 0.0
    watch = Watch({"s1": ran}, limit=2, back_s=0.0)
    for each in looks(*[room(4)] * 60, rows=(row("s1"),)):
        watch.see(each)
    assert max(found.seconds for found in watch.idle.values()) == 59 - FORGOTTEN_S


def test_idleness_is_counted_from_the_last_disturbance_on_and_not_on_reserved_nodes() -> None:
    watch = Watch({"s1": job()}, limit=2)
    for each in looks(*[room(4)] * 11, rows=(row("s1"),)):
        watch.upset(7.0)
        watch.see(each)
    assert max(found.seconds for found in watch.idle.values()) == 3.0
    watch = Watch({"s1": job()}, limit=2, reserved={"volta0"})
    for each in looks(*[room(4)] * 11, rows=(row("s1"),)):
        watch.see(each)
    assert not any(found.seconds for found in watch.idle.values())


def test_a_node_that_slurm_plans_for_a_job_of_its_own_is_not_free_and_counts_separately() -> None:
    planned = row("x", partition="other", reason="Resources", priority=9, planned="volta0")
    held = replace(planned, priority=0, reason="JobHeldUser")  # Slurm plans nothing for a job that is held
    pinned = replace(planned, partition="gpu", pins="volta0")  # ADLRO chose the place of this one
    for rivals, idle, kept_looks in (((planned,), 0.0, 11), ((held, pinned), 10.0, 0)):
        watch = Watch({"s1": job()}, limit=2)
        for each in looks(*[room(4)] * 11, rows=(row("s1"), *rivals)):
            watch.see(each)
        assert max((found.seconds for found in watch.idle.values()), default=0.0) == idle
        assert watch.idle_or_kept["s1"].seconds == 10.0
        assert watch.kept_looks == kept_looks


def chosen_and_idle_s(*rows: Row, until_s: float = float("inf")) -> tuple[float, float]:
    """How long a job of these rows, one a second, waited by the policy's choice, and how long for no reason."""
    watch = Watch({"s1": job()}, limit=2, chose=lambda _: watch.looks[-1].at_s <= until_s, ask_s=8.0)
    for second, what in enumerate(rows):
        watch.see(Look(float(second), (what,), {"volta0": room(4)}, {"volta0": "MIXED"}))
    found = (max((each.seconds for each in those.values()), default=0.0) for those in (watch.chosen, watch.idle))
    chosen, idle = found
    return chosen, idle


def test_a_wait_that_the_policy_chose_is_counted_separately_for_as_long_as_it_says_so() -> None:
    assert chosen_and_idle_s(*[row("s1")] * 37) == (36.0, 8.0)  # asked at 9, 18, 27 and 36 s
    assert chosen_and_idle_s(*[row("s1")] * 37, until_s=20.0) == (18.0, 18.0)
    assert chosen_and_idle_s(*[row("s1")] * 37, until_s=0.0) == (0.0, 36.0)


def test_the_time_after_the_policy_let_a_job_go_is_not_its_choice() -> None:
    let_go = row("s1", reason="None", priority=5, pins="volta0")
    assert chosen_and_idle_s(*[row("s1")] * 20, let_go) == (19.0, 8.0)  # Slurm has not started it within the second
    assert chosen_and_idle_s(*[row("s1")] * 20, *[let_go] * 15) == (19.0, 15.0)
    assert chosen_and_idle_s(*[row("s1")] * 20, *[let_go] * 15, until_s=0.0) == (0.0, 34.0)


def test_an_array_makes_as_many_gpus_idle_as_its_limit_has_room_for() -> None:
    at_work = row("s1", state="RUNNING", reason="None", priority=5, task="0")
    given_back = row("s1", reason="Priority", priority=5, task="3")
    for tasks, found in (
        ([at_work, row("s1", task="1"), row("s1", task="2")], {"s1_1"}),
        ([row("s1", task="1"), row("s1", task="2"), row("s1", task="3")], {"s1_1", "s1_2"}),
        ([at_work, row("s1", task="1"), row("s1", task="2", priority=5, reason="None", pins="volta0")], {"s1_2"}),
        ([at_work, row("s1", task="1"), row("s1", task="2"), given_back], {"s1_1", "s1_3"}),
    ):
        watch = Watch({"s1": job(tasks=4, at_once=2)}, limit=2)
        for each in looks(*[room(4)] * 3, rows=tuple(tasks)):
            watch.see(each)
        assert watch.idle.keys() == found


def test_a_job_whose_dependency_failed_can_never_run_whatever_slurm_gives_as_reason() -> None:
    for reason, after, is_so in (
        ("DependencyNeverSatisfied", "(null)", True),
        ("JobHeldAdmin", "afterok:577(failed)", True),  # after a kill of slurmctld
        ("JobHeldAdmin", "(null)", False),
        ("Dependency", "afterok:577(unfulfilled)", False),
    ):
        assert row("s1", reason=reason, after=after).can_never_run is is_so


def test_a_hold_of_a_user_that_another_ended_is_found() -> None:
    watch = Watch({"s1": job(is_held=True)}, limit=2)
    for each in looks(room(4), rows=(row("s1", state="RUNNING", reason="None", priority=5, nodes="volta0"),)):
        watch.see(each)
    assert "volta0" in watch.released_for_users["s1"]


# ---- accounts ----------------------------------------------------------------------------------------------------


def kinds(
    one: Job, text: str, *states: str, happened: Happened | None = None, left: tuple[Row, ...] = (), gpus: int = 1
) -> set[str]:
    tres = {"NNodes": "1", "NodeList": "volta0", "AllocTRES": f"cpu=1,gres/gpu={gpus}"}
    records = [{"JobID": "7", "JobName": one.wish.name, "State": state, **tres} for state in states]
    found = account({one.wish.name: one}, runs_of([*stamps_in(text)]), records, left, happened or Happened())
    return {problem.kind for problem in found.problems}


RAN = "s1 began 100.0 0 volta0 0 7\ns1 ended 105.0 0 volta0 0 7\n"


def test_a_job_that_ran_once_and_is_in_the_records_is_accounted_for() -> None:
    assert kinds(job(), RAN, "COMPLETED") == set()


@pytest.mark.parametrize(
    ("one", "text", "states", "kind"),
    [
        (job(), "", (), "lost"),
        (job(), RAN, ("RUNNING",), "lost"),
        (job(), "", ("COMPLETED",), "completed and never began"),
        (job(), RAN, ("CANCELLED by 0",), "cancelled by nobody"),
        (job(), RAN, ("FAILED",), "ended as FAILED"),
        (job(is_impossible=True), "", ("PENDING",), "impossible, and accepted"),
        (job(), RAN + RAN.replace("10", "20"), ("COMPLETED",), "began again"),
        (job(), RAN + RAN.replace("10", "20").replace(" 0 volta", " 1 volta"), ("COMPLETED",), "began again"),
        (
            job(),
            "s1 began 100.0 0 volta0 0 7\ns1 began 102.0 0 volta1 0 7\n"
            "s1 ended 105.0 0 volta0 0 7\ns1 ended 107.0 0 volta1 0 7\n",
            ("COMPLETED",),
            "twice at a time",
        ),
        (job(), RAN + RAN.replace("s1", "s2").replace("100.0", "103.0"), ("COMPLETED",), "two jobs on one GPU"),
    ],
)
def test_what_must_not_be_is_found(one: Job, text: str, states: tuple[str, ...], kind: str) -> None:
    assert kind in kinds(one, text, *states)


def test_a_job_that_got_other_gpus_than_it_asked_for_is_found() -> None:
    assert kinds(job(), RAN, "COMPLETED", gpus=2) == {"got something else than it asked for"}
    assert kinds(job(need=Need(each=1, nodes=2)), RAN, "COMPLETED", gpus=2) == {"got something else than it asked for"}
    assert kinds(job(need=Need(each=1, whole=True)), RAN, "COMPLETED", gpus=4) == set()


def test_a_job_that_is_held_in_the_end_is_found() -> None:
    assert kinds(job(), "", "PENDING", left=(row("s1"),)) == {"held in the end"}


def test_what_slurm_does_by_itself_after_a_kill_is_no_problem() -> None:
    killed = Happened(kills={"slurmctld": [106.0]})
    assert kinds(job(), RAN + RAN.replace("10", "20"), "COMPLETED", happened=killed) == set()
    at_once = Happened(kills={"slurmctld": [3.0]})
    assert kinds(job(), "", "PENDING", happened=at_once) == set()  # forgotten: handed in seconds before
    crashed = Happened(crashes=[("volta0", 103.0)])
    again = "s1 began 100.0 0 volta0 0 7\ns1 began 120.0 1 volta1 0 7\ns1 ended 125.0 1 volta1 0 7\n"
    assert kinds(job(), again, "NODE_FAIL", "COMPLETED", happened=crashed) == set()
    assert kinds(job(may_requeue=False), again[:28], "NODE_FAIL", happened=crashed) == set()


def test_every_machine_of_the_soak_has_a_name_of_its_own() -> None:
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)
