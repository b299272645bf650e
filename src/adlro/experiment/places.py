"""Where runs are executed: on the threads of this process, or on the nodes of a Ray cluster (`on_ray.py`).

Whoever has runs to do (a comparison, a sweep) describes them as a `Work` with groups, and takes the results as they
come. The results are the same in every place; only their order differs.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, final

Tell = Callable[[str], None]
"""Receives what takes time before the first result."""


class Work(Protocol):
    """Runs that have something in common. It is sent to another machine once; what is sent for each run is small."""

    def warm_up(self, tell: Tell) -> None:
        """Compile what the runs need, before several of them run side by side in one process."""

    def prepare(self, key: int) -> Any:
        """Make what all runs of a group share, for example the jobs of a seed. It may not change later."""

    def run(self, prepared: Any, item: int) -> Any:
        """Do one run."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of a work that share what is prepared for `key`; each item is one run."""

    work: Work
    key: int
    items: tuple[int, ...]
    cores: int = 1  # that each run uses
    one_at_a_time: bool = False  # in one process: a training uses all of its cores and PyTorch's own state


@dataclass(frozen=True, slots=True)
class Done:
    """The result of one run."""

    work: Work
    key: int
    item: int
    result: Any


class RunPlace(Protocol):
    """Where runs are executed."""

    def spread(self, groups: Iterable[Group], tell: Tell) -> Iterator[Done]:
        """Do all runs and give each result once, in any order."""


@final
class ThreadPlace:
    """The threads of this process. Compiled policies run side by side; plain Python takes turns."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1

    def spread(self, groups: Iterable[Group], tell: Tell) -> Iterator[Done]:
        """Do all runs, and give their results in the order of the groups."""
        pool = ThreadPoolExecutor(self.count)
        under_way: deque[list[tuple[Group, int, Future[Any]]]] = deque()
        warm: set[int] = set()  # works, by their identity
        try:
            for group in groups:
                if id(group.work) not in warm:
                    group.work.warm_up(tell)
                    warm.add(id(group.work))
                if group.one_at_a_time:
                    while under_way:
                        yield from results_of_runs(under_way.popleft())
                prepared = group.work.prepare(group.key)
                under_way.append([(group, item, pool.submit(group.work.run, prepared, item)) for item in group.items])
                if len(under_way) > self.count:  # so that many seeds of many jobs need not lie in memory at once
                    yield from results_of_runs(under_way.popleft())
            while under_way:
                yield from results_of_runs(under_way.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def results_of_runs(runs: Iterable[tuple[Group, int, Future[Any]]]) -> Iterator[Done]:
    """The results of runs, each as soon as it is there."""
    for group, item, run in runs:
        yield Done(group.work, group.key, item, run.result())


def run_place(ray: str | None, threads: int | None) -> AbstractContextManager[RunPlace]:
    """The place that is asked for: a Ray cluster by its address, `auto` or `local`; else the threads of this process.

    `threads` is how many runs are executed at the same time; by default one for each core.
    """
    if ray is None:
        return nullcontext(ThreadPlace(threads))
    from adlro.experiment.on_ray import RayCluster

    return RayCluster(ray, threads)
