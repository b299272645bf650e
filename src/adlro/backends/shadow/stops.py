"""What stopping jobs would have brought in a replay, and to whom it would have happened."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adlro.backends.shadow.replay import SHOWN, ReplayTimes, in_system, mean_s
from adlro.backends.shadow.tables import Prepared
from adlro.core.records import WHOLE_GPU
from adlro.core.units import HOUR_S


@dataclass(frozen=True, slots=True)
class StoppedUser:
    """A user whose jobs would have been stopped."""

    user: str
    jobs: int  # that would have been stopped
    stops: int
    lost_gpu_h: float  # GPU hours that their restarts would have cost


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """A job that would have been stopped."""

    id: str
    user: str
    name: str
    gpus: int
    stops: int
    lost_gpu_h: float
    difference_s: float | None  # of its end, with stops against without; None: it does not end in both


@dataclass(frozen=True, slots=True)
class StopEffect:
    """The same policy with and without stops, in the same replay. JCTs are means over the jobs that had ended."""

    policy: str
    jct_s: float
    jct_without_s: float
    in_system_s: float  # mean time in the system up to the end of the record
    in_system_without_s: float
    stops: int
    jobs: int  # that would have been stopped
    most: int  # stops of one job
    lost_gpu_h: float
    restart_s: float  # what a restart costs in the replay
    restartable: int  # jobs of the record that are marked as restartable …
    of_jobs: int  # … of so many. In the replay every job may be stopped
    users: tuple[StoppedUser, ...]  # all of them, most stops first
    often: tuple[StoppedJob, ...]  # the jobs with most stops


def stop_effect(
    made: Prepared,
    policy: str,
    times: ReplayTimes,
    without: ReplayTimes,
    over: npt.NDArray[np.intp],
    restart_s: float,
) -> StopEffect:
    """Compare a policy with itself without stops."""
    table = made.jobs.table
    # A job that is stopped pays for its restart on all its GPUs.
    lost = times.stops * restart_s / HOUR_S * table["gpus"] * table["share"] / WHOLE_GPU
    stopped = np.flatnonzero(times.stops)

    def jct(each: ReplayTimes) -> float:
        return float((each.finish - made.submit)[over].mean()) if len(over) else 0.0

    def job(j: int) -> StoppedJob:
        live = made.live[j]
        difference = float(times.finish[j] - without.finish[j])
        return StoppedJob(
            live.id, live.job.user, live.job.name, int(table[j].gpus), int(times.stops[j]), float(lost[j]),
            difference if np.isfinite(difference) else None,
        )  # fmt: skip

    mine: dict[str, list[int]] = defaultdict(list)
    for j in stopped:
        mine[made.live[j].job.user].append(int(j))
    users = [
        StoppedUser(user, len(rows), int(times.stops[rows].sum()), float(lost[rows].sum()))
        for user, rows in mine.items()
    ]
    often = sorted(stopped.tolist(), key=lambda j: -int(times.stops[j]))[:SHOWN]
    return StopEffect(
        policy=policy,
        jct_s=jct(times),
        jct_without_s=jct(without),
        in_system_s=mean_s(in_system(made, times)),
        in_system_without_s=mean_s(in_system(made, without)),
        stops=int(times.stops.sum()),
        jobs=len(stopped),
        most=int(times.stops.max(initial=0)),
        lost_gpu_h=float(lost.sum()),
        restart_s=restart_s,
        restartable=sum(live.job.restartable for live in made.live),
        of_jobs=len(made.live),
        users=tuple(sorted(users, key=lambda user: -user.stops)),
        often=tuple(job(j) for j in often),
    )
