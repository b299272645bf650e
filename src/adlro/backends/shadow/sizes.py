"""What other numbers of GPUs would have brought in a replay, and to whom it would have happened."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from adlro.backends.shadow.replay import SHOWN, ReplayTimes, in_system, mean_s
from adlro.backends.shadow.tables import Prepared


@dataclass(frozen=True, slots=True)
class ResizedUser:
    """A user whose jobs would have got other numbers of GPUs."""

    user: str
    jobs: int  # that would have been resized
    more: int  # starts with more GPUs than the job had
    fewer: int  # starts with fewer
    difference_s: float  # of the mean end of these jobs, with resizing against without


@dataclass(frozen=True, slots=True)
class ResizedJob:
    """A job that would have got other numbers of GPUs."""

    id: str
    user: str
    name: str
    gpus: int  # that it had
    more: int
    fewer: int
    difference_s: float | None  # of its end, with resizing against without; None: it does not end in both


@dataclass(frozen=True, slots=True)
class ResizeEffect:
    """The same policy with and without other numbers of GPUs, in the same replay."""

    policy: str
    in_system_s: float  # mean time in the system up to the end of the record
    in_system_without_s: float
    jobs: int  # that would have been resized
    more: int  # starts with more GPUs than the job had
    fewer: int
    stops: int
    stops_without: int
    with_sizes: int  # jobs of the record that name sizes …
    of_jobs: int  # … of so many. Others are never resized
    users: tuple[ResizedUser, ...]  # all of them, most resized jobs first
    often: tuple[ResizedJob, ...]  # the jobs that were resized most often


def resize_effect(made: Prepared, policy: str, times: ReplayTimes, without: ReplayTimes) -> ResizeEffect:
    """Compare a policy with itself where every job has the number of GPUs that it had."""
    often = times.more + times.fewer
    resized = np.flatnonzero(often)
    later = times.finish - without.finish

    def job(j: int) -> ResizedJob:
        live = made.live[j]
        return ResizedJob(
            live.id, live.job.user, live.job.name, int(made.jobs.table[j].gpus), int(times.more[j]),
            int(times.fewer[j]), float(later[j]) if np.isfinite(later[j]) else None,
        )  # fmt: skip

    mine: dict[str, list[int]] = defaultdict(list)
    for j in resized:
        mine[made.live[j].job.user].append(int(j))
    users = [
        ResizedUser(
            user, len(rows), int(times.more[rows].sum()), int(times.fewer[rows].sum()),
            mean_s(later[rows][np.isfinite(later[rows])]),
        )
        for user, rows in mine.items()
    ]  # fmt: skip
    return ResizeEffect(
        policy=policy,
        in_system_s=mean_s(in_system(made, times)),
        in_system_without_s=mean_s(in_system(made, without)),
        jobs=len(resized),
        more=int(times.more.sum()),
        fewer=int(times.fewer.sum()),
        stops=int(times.stops.sum()),
        stops_without=int(without.stops.sum()),
        with_sizes=sum(bool(live.job.sizes) for live in made.live),
        of_jobs=len(made.live),
        users=tuple(sorted(users, key=lambda user: -user.jobs)),
        often=tuple(job(int(j)) for j in sorted(resized.tolist(), key=lambda j: -int(often[j]))[:SHOWN]),
    )
