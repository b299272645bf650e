"""Small live jobs, decisions and turns for the tests of the daemon."""

from adlro.core.ports import JobState, LiveJob, Part
from adlro.core.records import Job
from adlro.live.service import Alarm, Alternative, Decision, Like, Tick

HERE = Part("n0", "v100", 2, (0, 1))


def job(
    id: str, state: JobState = JobState.WAITING, user: str = "ada", submit_s: float = 100.0, **more: object
) -> LiveJob:
    described = Job("learning", 60.0, submit_s, 2, models=frozenset(["v100", "t4"]), user=user, name=f"job {id}")
    return LiveJob(id, described, state, **more)  # type: ignore[arg-type]


def ended(id: str, ended_s: float, user: str = "ada") -> LiveJob:
    return job(id, JobState.FINISHED, user, parts=(HERE,), started_s=ended_s - 10, ended_s=ended_s, starts=1)


def decision(id: str, of: str = "1", time_s: float = 200.0) -> Decision:
    return Decision(
        id, time_s, 7, of, "start", (HERE,), "sjf", "the shortest", 30.0, 20.0, 60.0,
        (Alternative((HERE,), 0.5, 30.0, True), Alternative((Part("n1", "t4", 2),), None, 60.0)),
        (Like("9", "old", "ada", 31.0, 0.9),),
    )  # fmt: skip


def tick(number: int, time_s: float = 300.0, alarms: tuple[Alarm, ...] = ()) -> Tick:
    return Tick(number, time_s, "sjf", "sjf", 0.01, 3, 2, (decision(f"d{number}"),), (), alarms)
