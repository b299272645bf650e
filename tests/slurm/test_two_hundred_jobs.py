"""200 short jobs of three families on a real Slurm, placed by ADLRO through the orchestrator.

A job's script sleeps as long as its family would run on the GPUs that it got, and stamps when it began and ended. With
ADLRO_MEASURE=1 the same jobs also run under Slurm's own FIFO with backfill, and both mean JCTs are printed.
"""

import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.slurm.driving import options_of
from tests.slurm.lab import Lab, running

from adlro.backends.slurm.backend import slurm_backend
from adlro.catalogue.families import REFERENCE
from adlro.catalogue.gpus import find_gpu
from adlro.catalogue.speeds import speed_of
from adlro.core.ports import ENDED, JobState, LiveJob
from adlro.core.records import Link, Placing
from adlro.daemon.store import open_store
from adlro.live.service import Decision
from adlro.live.turn import Orchestrator

JOBS = 200
ARRIVALS_S = 18.0
FAMILIES = ("simulation", "learning", "data")
MEASURE = "ADLRO_MEASURE"
MODELS = {"volta": REFERENCE, "turing": "t4", "radeon": "mi50"}
"""What the first letters of a node's name say of its GPUs."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A job of the test: its name, when it comes, and how long it runs on each kind of node."""

    name: str
    at_s: float
    family: str
    gpus: int
    work: float  # GPU-seconds on the reference model
    seconds: dict[str, float]

    def script(self, log: Path) -> str:
        """What it does: stamp, sleep as long as its family runs here, stamp."""
        cases = " ".join(f"{kind}*) t={t:.3f};;" for kind, t in self.seconds.items())
        devices = "${CUDA_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}"
        return (
            f"case $SLURMD_NODENAME in {cases} esac\n"
            f'echo "{self.name} began $(date +%s.%N) $SLURMD_NODENAME {devices} $SLURM_JOB_ID" >> {log}\n'
            f"sleep $t\n"
            f'echo "{self.name} ended $(date +%s.%N) $SLURMD_NODENAME {devices} $SLURM_JOB_ID" >> {log}\n'
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """What a job's own stamps say."""

    job: str
    node: str
    devices: tuple[int, ...]
    began: float
    ended: float


def wishes(seed: int) -> list[Wish]:
    """The same jobs for both: log-normal work, gangs of 1, 2 and 4, arrivals at random."""
    random = np.random.default_rng(seed)
    arrivals = np.sort(random.uniform(0, ARRIVALS_S, JOBS))
    found = []
    for number, at in enumerate(arrivals):
        family = FAMILIES[int(random.integers(3))]
        gpus = int(random.choice([1, 2, 4], p=[0.6, 0.25, 0.15]))
        runs = float(np.clip(random.lognormal(-0.6, 0.7), 0.2, 1.6))
        seconds = {}
        for kind, model in MODELS.items():
            placing = Placing(find_gpu(model), gpus, 1, Link("pcie", 32.0), Link("ethernet-10g", 2.5))
            seconds[kind] = min(runs / speed_of(family, placing).value, 3.0)
        found.append(Wish(f"j{number:03d}", float(at), family, gpus, runs * gpus, seconds))
    return found


@pytest.fixture(scope="module")
def quick_lab() -> Iterator[Lab]:
    """A Slurm that starts what may start at once."""
    with running(Lab()) as started:
        yield started


class Arriving(threading.Thread):
    """Hands the jobs in when they come, with sbatch, as users do."""

    def __init__(self, lab: Lab, jobs: Sequence[Wish], log: Path, held: bool) -> None:
        super().__init__(daemon=True)
        self.lab, self.jobs, self.log, self.held = lab, jobs, log, held
        self.submitted: dict[str, float] = {}
        self.ids: dict[str, str] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        begin = time.monotonic()
        try:
            for job in self.jobs:
                time.sleep(max(0.0, begin + job.at_s - time.monotonic()))
                self.submitted[job.name] = time.time()
                words = f"adlro:held adlro:family={job.family} adlro:estimate={job.work:.4f}"
                ours = ("--hold", f"--comment={words}") if self.held else ()
                self.ids[job.name] = self.lab.sbatch(
                    job.script(self.log), f"--job-name={job.name}", f"--gres=gpu:{job.gpus}", "--time=1", *ours
                )
        except BaseException as error:  # told by the test itself
            self.error = error

    def done(self) -> bool:
        """Whether all are in the queue, or handing in has failed."""
        return not self.is_alive()


def stamps(log: Path) -> dict[str, Ran]:
    """What ran, by name; each began once and ended once."""
    began: dict[str, list[str]] = {}
    ended: dict[str, list[str]] = {}
    for line in log.read_text().splitlines():
        name, what, *rest = line.split()
        into = began if what == "began" else ended
        assert name not in into, f"{name} {what} twice"
        into[name] = rest
    assert began.keys() == ended.keys(), began.keys() ^ ended.keys()
    return {
        name: Ran(job, node, tuple(map(int, devices.split(","))), float(at), float(ended[name][0]))
        for name, (at, node, devices, job) in began.items()
    }


def mean_jct(ran: dict[str, Ran], submitted: dict[str, float]) -> float:
    """From handing in to the last line of the script, on average."""
    return statistics.fmean(ran[name].ended - submitted[name] for name in ran)


def with_slurm_alone(lab: Lab, jobs: Sequence[Wish]) -> tuple[float, dict[str, Ran]]:
    """Slurm's own FIFO with backfill."""
    log = lab.folder / "jobs" / "slurm.log"
    arriving = Arriving(lab, jobs, log, held=False)
    arriving.start()
    lab.wait(lambda: arriving.done() and not lab.run("squeue", "--noheader").strip(), "Slurm's own run", 120)
    assert arriving.error is None
    return mean_jct(ran := stamps(log), arriving.submitted), ran


def with_adlro(
    lab: Lab, jobs: Sequence[Wish]
) -> tuple[float, dict[str, Ran], dict[str, str], list[Decision], dict[str, LiveJob], int]:
    """ADLRO decides, Slurm carries out."""
    log = lab.folder / "jobs" / "adlro.log"
    backend = slurm_backend(options_of(lab, "socket"))
    store = open_store("sqlite::memory:")
    orchestrator = Orchestrator(backend, store)
    orchestrator.tick()  # compiles, if it has to
    arriving = Arriving(lab, jobs, log, held=True)
    arriving.start()
    end = time.monotonic() + 150
    ticks = 0
    while True:
        orchestrator.tick()
        ticks += 1
        live = {job.id: job for job in orchestrator.state().snapshot.jobs}
        if arriving.done() and all(live[name].state in ENDED for name in arriving.ids.values() if name in live):
            break
        assert time.monotonic() < end, [job for job in live.values() if job.state not in ENDED][:3]
        time.sleep(0.1)
    assert arriving.error is None
    decisions = [each for each in store.decisions(limit=10_000) if each.job in set(arriving.ids.values())]
    snapshot = {job.id: job for job in backend.read().jobs}
    backend.close()
    store.close()
    return mean_jct(ran := stamps(log), arriving.submitted), ran, arriving.ids, decisions, snapshot, ticks


def test_every_job_is_placed_as_decided_none_is_lost_and_none_runs_twice(
    quick_lab: Lab, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    jobs = wishes(seed=1)
    adlro_s, ran, ids, decisions, seen, ticks = with_adlro(quick_lab, jobs)
    odd = {name: (seen.get(id), log_of(quick_lab, id)) for name, id in ids.items() if name not in ran}
    assert not odd, f"these jobs did not run, with what Slurm's log says of them: {odd}"
    assert set(ran) == {job.name for job in jobs} == set(ids)
    by_job = {decision.job: decision for decision in decisions if decision.verb == "start"}
    assert len(by_job) == len(decisions) == JOBS  # each was decided once
    records = {line["JobId"]: line for line in quick_lab.completions()}
    assert len(quick_lab.completions()) == JOBS
    for job in jobs:
        name = ids[job.name]
        decision, slurm, told, stamped = by_job[name], records[name], seen[name], ran[job.name]
        (part,) = decision.parts
        assert {part.node} == {slurm["NodeList"], stamped.node, *(each.node for each in told.parts)}
        assert (slurm["JobState"], told.state, told.starts) == ("COMPLETED", JobState.FINISHED, 1)
        assert (told.decision, stamped.job) == (decision.id, name)
        assert part.count == len(stamped.devices) == job.gpus == sum(each.count for each in told.parts)
    assert_no_gpu_is_used_twice(ran)
    record_property("mean_jct_adlro_s", adlro_s)
    if os.environ.get(MEASURE, "0") == "0":
        return
    slurm_s, alone = with_slurm_alone(quick_lab, jobs)
    assert set(alone) == set(ran)
    record_property("mean_jct_slurm_s", slurm_s)
    with capsys.disabled():
        print(
            f"\n{JOBS} jobs on 16 GPUs, mean JCT: adlro {adlro_s:.2f} s ({ticks} turns), "
            f"Slurm's FIFO with backfill {slurm_s:.2f} s: {100 * (adlro_s / slurm_s - 1):+.0f} %"
        )


def log_of(lab: Lab, id: str) -> list[str]:
    """What slurmctld and the nodes wrote about a job."""
    logs = sorted((lab.folder / "log").glob("slurm*.log"))
    named = re.compile(rf"\b(JobId=|job |id=|JOB ){id}\b", re.IGNORECASE)
    return [f"{log.stem}: {line}" for log in logs for line in log.read_text().splitlines() if named.search(line)]


def assert_no_gpu_is_used_twice(ran: dict[str, Ran]) -> None:
    """The stamps of the jobs on a device do not overlap."""
    uses: dict[tuple[str, int], list[Ran]] = {}
    for each in ran.values():
        for device in each.devices:
            uses.setdefault((each.node, device), []).append(each)
    for found in uses.values():
        ordered = sorted(found, key=lambda each: each.began)
        assert all(before.ended <= after.began for before, after in pairwise(ordered))
