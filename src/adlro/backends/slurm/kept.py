"""GPUs that Slurm keeps for a waiting job of its own: ADLRO counts them as taken and places its jobs elsewhere.

Slurm's backfill scheduler plans where waiting jobs will run. It starts no job that would delay this plan. ADLRO learns
of such a plan when Slurm does not start a job that ADLRO placed. Without a memory of it, ADLRO would place the next job
on the same GPUs, with the same result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.slurm.commands import Commands
from adlro.backends.slurm.nodes import NamedNode
from adlro.backends.slurm.parse_jobs import SlurmJob
from adlro.backends.slurm.told import ReportedJob, is_held, waits_for_us
from adlro.core.errors import BackendError
from adlro.core.ports import PLACES, JobState, LiveJob, Part
from adlro.core.records import Job
from adlro.ingest.host_lists import hosts_in

LONGEST_KEPT_S: Final = 60.0
"""After this time ADLRO places a job there again, because Slurm may have changed its plan."""

FAMILY: Final = "uniform"

AskPlan = Callable[[], Mapping[str, str]]
"""Asks Slurm for the nodes that it plans for each pending job, by the job's ID. Raises BackendError."""


def plan_from(commands: Commands) -> AskPlan:
    """Ask `squeue`. The JSON of Slurm 22.05 does not have the plan."""

    def ask() -> Mapping[str, str]:
        ran = commands.run(["squeue", "--noheader", "--array", "--states=PENDING", "--format=%A|%Y"])
        if ran.code != 0:
            raise BackendError(f"'squeue' fails: {ran.said}")
        rows = (line.partition("|") for line in ran.out.splitlines())
        return {job.strip(): nodes.strip() for job, _, nodes in rows if nodes.strip() not in ("", "(null)")}

    return ask


@dataclass(frozen=True, slots=True)
class Keeping:
    """A node whose free GPUs Slurm keeps for a job of its own."""

    since_s: float
    job: str  # the job of ADLRO's that Slurm did not start there
    neighbours: frozenset[str]  # the jobs that were on the node then


@final
class KeptGpus:
    """The nodes whose free GPUs Slurm keeps for jobs of its own. A stand-in job holds these GPUs in the snapshot."""

    def __init__(self, ask_plan: AskPlan | None = None) -> None:
        """`ask_plan` is needed for a Slurm whose JSON does not have the plan."""
        self._ask_plan = ask_plan
        self._nodes: dict[str, Keeping] = {}
        self._noted: set[tuple[str, str]] = set()  # jobs that Slurm did not start, each with ADLRO's decision

    def look(
        self,
        sites: Mapping[str, NamedNode],
        jobs: Sequence[SlurmJob],
        told: Sequence[ReportedJob],
        live: Sequence[LiveJob],
        now_s: float,
    ) -> list[LiveJob]:
        """A stand-in for the free GPUs of each node that Slurm keeps now."""
        held, neighbours = _held(live)
        kept_out = {(each.live.id, each.live.decision): each for each in told if each.is_kept_out}
        for key in kept_out.keys() - self._noted:
            for node in hosts_in(kept_out[key].job.required_nodes):
                self._nodes[node] = Keeping(now_s, key[0], neighbours.get(node, frozenset()))
        self._noted = set(kept_out)  # one that cannot be given back is noted once
        if not self._nodes:
            return []
        planned = self._planned(jobs)
        self._nodes = {
            node: keeping
            for node, keeping in self._nodes.items()
            if node in sites
            and now_s - keeping.since_s < LONGEST_KEPT_S
            and (node in planned if planned is not None else neighbours.get(node, frozenset()) == keeping.neighbours)
        }
        return [
            _stand_in(node, model, free, keeping)
            for node, keeping in self._nodes.items()
            for model, devices in sites[node].devices.items()
            if (free := len(devices.types) - held.get((node, model), 0)) > 0
        ]

    def _planned(self, jobs: Sequence[SlurmJob]) -> frozenset[str] | None:
        """The nodes that Slurm plans for pending jobs of its own; None if it does not say."""
        own = [job for job in jobs if job.state == "PENDING" and not is_held(job) and not waits_for_us(job)]
        plan = {job.id: job.planned_nodes for job in own if job.planned_nodes is not None}
        if own and not plan:
            if self._ask_plan is None:
                return None
            try:
                plan = dict(self._ask_plan())
            except BackendError:
                return None
        return frozenset(node for job in own for node in hosts_in(plan.get(job.id, "")))


def _held(live: Sequence[LiveJob]) -> tuple[dict[tuple[str, str], int], dict[str, frozenset[str]]]:
    """How many GPUs of each node and model are held, and which jobs are on each node."""
    held: dict[tuple[str, str], int] = {}
    on: dict[str, set[str]] = {}
    for job in live:
        for part in job.parts if job.state in PLACES else ():
            held[part.node, part.model] = held.get((part.node, part.model), 0) + part.count
            on.setdefault(part.node, set()).add(job.id)
    return held, {node: frozenset(jobs) for node, jobs in on.items()}


def _stand_in(node: str, model: str, count: int, keeping: Keeping) -> LiveJob:
    return LiveJob(
        f"kept@{node}/{model}",
        Job(FAMILY, 0.0, keeping.since_s, gpus=count, name="kept by Slurm", limit_s=LONGEST_KEPT_S),
        JobState.RUNNING,
        (Part(node, model, count),),
        keeping.since_s,
        managed=False,
        reason=f"Slurm keeps these GPUs for a waiting job of its own: it did not start job {keeping.job} there",
    )
