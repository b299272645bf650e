"""Runs on a Ray cluster (docs/ray.md). Ray is imported here only, and only when a cluster is asked for.

The work goes into Ray's object store once, and each process that takes part reads it once. Runs are sent in parcels:
one run at first, then as many as take about a second. Ray repeats a parcel whose process or node is lost; a result
arrives once, with the parcel that it belongs to. Compiled code is cached by node: of the processes of a node one
compiles while the others wait (`core/code_cache.py`).
"""

import logging
import os
import pickle
import socket
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np

from adlro.core.errors import AdlroError, BackendError, UsageError
from adlro.experiment.places import Done, Group, Tell, Work
from adlro.experiment.sending import Versions, difference, packed_for_sending, versions

LOCAL_RAY: Final = "local"
AUTO: Final = "auto"

PARCEL_S: Final = 1.0
"""How long a parcel should take: long against what Ray spends on it (2 ms), short against what a lost node costs."""

DRIVER_S: Final = 0.005
"""On many cores parcels are longer, so many seconds for each core: else the driver would not keep up with sending them.
It needs about half of that for a parcel (docs/scale.md)."""

AHEAD: Final = 2
"""Parcels under way for each core: while one runs, the next one waits beside it."""

PARTS: Final = 4
"""The remaining runs make at least this many parcels for each core, so that all cores end at the same time."""

RETRIES: Final = 8
"""How often a parcel is repeated whose process or node was lost. After that its run fails."""

LOOK_AROUND_S: Final = 5.0
"""How often the driver looks whether nodes have come or gone."""

KNOCK_S: Final = 10.0
"""How long the head node may take to answer."""

WORKS_KEPT: Final = 4
PREPARED_KEPT: Final = 4
"""What a process keeps for the next parcel."""

RAY_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # runs that ask for no GPU see what there is: no warning
    "RAY_BACKEND_LOG_LEVEL": "error",
    "RAY_COLOR_PREFIX": "0",
}


def need_ray() -> Any:
    """Ray, or an error that says how to get it."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs Ray, which is not installed. Run: pip install 'adlro[ray]'") from None
    return ray


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Some runs of one group; `work` is the place of its work among those of the parcel."""

    work: int
    key: int
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a parcel: results in the order of its runs, or the error of the first run that failed."""

    results: list[Any]
    seconds: float
    error: AdlroError | None = None


@final
class RayCluster(AbstractContextManager["RayCluster"]):
    """A connection to a Ray cluster. `local` starts Ray on this machine and stops it at the end."""

    def __init__(self, address: str, most: int | None = None) -> None:
        self.address, self.most = address, most
        self.ray: Any = None
        self._open = ExitStack()

    def __enter__(self) -> "RayCluster":
        """Connect, unless this process is connected already."""
        self.ray = need_ray()
        if not self.ray.is_initialized():
            # Ray tells on stdout of processes that were lost; there the result will be.
            self._open.enter_context(redirect_stdout(sys.stderr))
            self._open.callback(self.ray.shutdown)
            connect_to_ray(self.ray, self.address, self.most)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def slots(self) -> int:
        """How many runs the cluster can execute at the same time now."""
        cores = int(self.ray.cluster_resources().get("CPU", 0))
        return max(1, cores if self.most is None else min(cores, self.most))

    def spread(self, groups: Iterable[Group], tell: Tell) -> Iterator[Done]:
        """Do all runs, and give each result once, as it comes."""
        ray = self.ray
        queue = Queue(list(groups))
        open_runs = Counter[int]()
        for group in queue.groups:
            open_runs[id(group.work)] += len(group.items)
        sent: dict[int, Any] = {}  # by the identity of the work: where it lies in the object store
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(do_parcel)
        under_way: dict[Any, list[Group]] = {}
        slots, looked = self.slots(), time.monotonic()
        tell(f"sending the runs to {slots} core{'s' if slots > 1 else ''} of the Ray cluster")
        try:
            while queue.left or under_way:
                if time.monotonic() - looked > LOOK_AROUND_S:
                    slots, looked = self.slots(), time.monotonic()
                ahead = AHEAD * slots if self.most is None else slots
                while queue.left and len(under_way) < ahead:
                    parcel = queue.take(slots)
                    works = list({id(group.work): group.work for group in parcel}.values())
                    for work in works:
                        if id(work) not in sent:
                            sent[id(work)] = ray.put(np.frombuffer(packed_for_sending(work), np.uint8))
                    order = {id(work): number for number, work in enumerate(works)}
                    parts = [GroupPart(order[id(group.work)], group.key, group.items) for group in parcel]
                    cores = max(group.cores for group in parcel)
                    arguments = [sent[id(work)] for work in works], parts, versions()
                    under_way[task.options(num_cpus=cores).remote(*arguments)] = parcel
                ready, _ = ray.wait(list(under_way), timeout=LOOK_AROUND_S)
                for reference in ready:
                    parcel = under_way.pop(reference)
                    for done in queue.ended(parcel, received(ray, reference, parcel)):
                        yield done
                        open_runs[id(done.work)] -= 1
                        if not open_runs[id(done.work)]:
                            sent.pop(id(done.work))  # a sweep has many: the store need not hold them to the end
        finally:
            for reference in under_way:
                ray.cancel(reference, force=False)


def connect_to_ray(ray: Any, address: str, cores: int | None) -> None:
    """Connect this process to a cluster, or start one on this machine."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL_RAY:
        options |= {"num_cpus": cores or os.cpu_count() or 1, "include_dashboard": False}
    else:
        options |= {"address": address}
    try:
        if address not in (LOCAL_RAY, AUTO):
            knock(address)
        ray.init(**options)
    except (OSError, ValueError, RuntimeError) as error:
        said = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise UsageError(
            f"--ray {address}: no connection to a Ray cluster: {said}. Expected HOST:PORT of its head node, as in "
            "10.0.0.1:6379, auto on a node of the cluster, or local. `ray status` shows whether the cluster is up. "
            "A cluster that asks for a token needs RAY_AUTH_MODE=token here (docs/ray.md)."
        ) from None


def knock(address: str) -> None:
    """See whether anybody listens at an address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("this is not an address")
    socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def received(ray: Any, reference: Any, parcel: list[Group]) -> Returned:
    """The result of a parcel; raises its own error, or that of the cluster in one line."""
    try:
        returned: Returned = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ModuleNotFoundError):
            raise BackendError(f"a node of the Ray cluster lacks a Python package: {cause}. {SAME}") from None
        raise
    except ray.exceptions.RayError as error:
        said = " ".join(str(error).split())[:300]
        keys = ", ".join(sorted({str(group.key) for group in parcel}))
        raise BackendError(
            f"the Ray cluster could not do the runs of seed {keys}, although it tried {RETRIES + 1} times: {said}"
        ) from None
    if returned.error is not None:
        raise returned.error
    return returned


SAME: Final = "Install the same adlro with the same packages on all nodes (docs/ray.md)."


@dataclass(slots=True)
class Queue:
    """The runs that are not sent yet, cut into parcels by how long runs take. State, with one owner: the driver."""

    groups: list[Group]
    first: int = 0  # the group that is next
    begun: int = 0  # how many of its runs are sent
    left: int = field(init=False)
    runs: int = 0  # that have ended
    seconds: float = 0.0  # that they took

    def __post_init__(self) -> None:
        self.left = sum(len(group.items) for group in self.groups)

    def size(self, slots: int) -> int:
        """How many runs the next parcel has."""
        if not self.runs:
            return 1
        by_time = max(PARCEL_S, slots * DRIVER_S) / max(self.seconds / self.runs, 1e-6)
        return max(1, min(int(by_time), self.left // (PARTS * slots)))

    def take(self, slots: int) -> list[Group]:
        """The next parcel: parts of one or of several groups."""
        wanted, parcel = self.size(slots), []
        while wanted and self.left:
            group = self.groups[self.first]
            items = group.items[self.begun : self.begun + wanted]
            if items:
                parcel.append(replace(group, items=items))
            self.begun += len(items)
            self.left -= len(items)
            wanted -= len(items)
            if self.begun == len(group.items):
                self.first, self.begun = self.first + 1, 0
        return parcel

    def ended(self, parcel: list[Group], returned: Returned) -> Iterator[Done]:
        """The results of a parcel, each with its run."""
        self.runs += len(returned.results)
        self.seconds += returned.seconds
        runs = [(group, item) for group in parcel for item in group.items]
        for (group, item), result in zip(runs, returned.results, strict=True):
            yield Done(group.work, group.key, item, result)


# ---- on a node ---------------------------------------------------------------------------------------------------

_works: "OrderedDict[str, Work]" = OrderedDict()
_prepared: "OrderedDict[tuple[str, int], Any]" = OrderedDict()


def do_parcel(works: list[Any], parts: list[GroupPart], wanted: Versions) -> Returned:
    """Do the runs of a parcel, in a process of a node. It does one parcel at a time."""
    began = time.monotonic()
    if (differs := difference(wanted, versions())) is not None:
        error = BackendError(f"node {socket.gethostname()} of the Ray cluster has {differs}. {SAME}")
        return Returned([], 0.0, error)
    results: list[Any] = []
    try:
        for part in parts:
            name = works[part.work].hex()
            work = kept_by_ray(_works, name, WORKS_KEPT, lambda at=works[part.work]: read_work(at))
            prepared = kept_by_ray(_prepared, (name, part.key), PREPARED_KEPT, lambda: work.prepare(part.key))  # noqa: B023
            results += [work.run(prepared, item) for item in part.items]
    except AdlroError as error:
        return Returned([], 0.0, error)
    return Returned(results, time.monotonic() - began)


def read_work(reference: Any) -> Work:
    """A work from the object store. Its arrays are copies: those in the store cannot be written to."""
    import ray

    work: Work = pickle.loads(ray.get(reference).tobytes())
    return work


def kept_by_ray(store: "OrderedDict[Any, Any]", key: Any, most: int, make: Any) -> Any:
    """The value made for this key; only the latest few values are kept."""
    if key in store:
        store.move_to_end(key)
    else:
        while len(store) >= most:
            store.popitem(last=False)
        store[key] = make()
    return store[key]
