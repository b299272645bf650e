"""Every job of a soak against Slurm's own records and against what the jobs wrote themselves."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from scripts.soak_watch import Job, Row, Stamp

Runs = list[tuple[Stamp, Stamp | None]]

FORGETS_S: Final = 15.0
"""A slurmctld that is killed forgets what it was told in its last seconds: it saves its state that seldom."""
LAUNCH_S: Final = 60.0
"""A job may fail to start around a kill: also because it got the number of one that was forgotten and still runs."""
RECOVERS_S: Final = 30.0
"""Until the nodes have registered with a slurmctld that came back, it starts jobs without the GPUs they ask for."""
HELD_AT_END: Final = "held in the end"
ENDED: Final = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must not be. `kind` counts alike ones."""

    kind: str
    job: str
    text: str


@dataclass(slots=True)
class Happened:
    """What was done to the cluster, and when."""

    kills: dict[str, list[float]] = field(default_factory=dict)  # by what was killed
    crashes: list[tuple[str, float]] = field(default_factory=list)  # a node and the moment

    def controller_died(self, begin: float, end: float) -> bool:
        """Whether slurmctld was killed in between, or so shortly after that it forgot what was."""
        return any(begin - 1 <= at <= end + FORGETS_S for at in self.kills.get("slurmctld", ()))

    def crashed(self, node: str, begin: float, end: float) -> bool:
        """Whether a node crashed in between; any node if none is named."""
        return any(name == (node or name) and begin - 1 <= at <= end for name, at in self.crashes)


@dataclass(slots=True)
class Account:
    """What became of all jobs."""

    ends: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def account(
    jobs: Mapping[str, Job],
    runs: Mapping[str, Runs],
    records: Sequence[Mapping[str, str]],
    left: Sequence[Row],
    happened: Happened,
) -> Account:
    """Hold each job against the records. `left` is what is in the queue although all should have ended."""
    found = Account()
    by_key: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        by_key.setdefault(_key(record), []).append(record)
    rows = {row.key: row for row in left}
    for job in jobs.values():
        wish = job.wish
        keys = [wish.name] if wish.tasks == 1 else [f"{wish.name}_{task}" for task in range(wish.tasks)]
        for key in keys:
            mine = by_key.get(key) or by_key.get(wish.name, [])
            end = _end(key, job, mine, runs.get(key, []), rows.get(key), happened, found)
            found.ends[end] += 1
            if job.number:
                _again(key, job, runs.get(key, []), happened, found)
    found.problems += _shared_gpus(runs, happened)
    return found


def _key(record: Mapping[str, str]) -> str:
    task = record["JobID"].partition("_")[2]
    return f"{record['JobName']}_{task}" if task.isdigit() else record["JobName"]


def _end(
    key: str,
    job: Job,
    records: Sequence[Mapping[str, str]],
    runs: Runs,
    left: Row | None,
    happened: Happened,
    found: Account,
) -> str:
    """How a job ended, in a word; what must not be is added to the problems."""
    wish = job.wish

    def wrong(kind: str, text: str) -> str:
        found.problems.append(Problem(kind, key, f"{wish.shape}: {text}"))
        return kind

    if job.submitted_s is None:
        return "not handed in"
    if wish.is_impossible:
        if not job.number:
            return "refused, as it should be"
        return wrong("impossible, and accepted", f"job {job.number}, sbatch {' '.join(wish.options)}")
    if not job.number:
        return wrong("refused", f"sbatch {' '.join(wish.options)}: {job.said}")
    if left is not None:
        text = f"job {left.number} is {left.state} {left.reason} priority={left.priority} {left.partition} in the end"
        return wrong(HELD_AT_END if left.is_held else "in the queue in the end", text)
    # An attempt whose end slurmdbd never heard of, because slurmctld was killed, stands as open for ever.
    states = [record["State"].split()[0] for record in records]
    ended = [state for state in states if state in ENDED]
    finished = any(end is not None for _, end in runs)
    killed = any(happened.controller_died(began.at_s, began.at_s + wish.seconds) for began, _ in runs)
    if "COMPLETED" in ended:
        if not runs:
            return wrong("completed and never began", f"job {job.number}, sacct {states}")
        for record in records:
            if record["State"] == "COMPLETED" and (text := _differs(job, record)):
                if killed or any(happened.controller_died(began.at_s - RECOVERS_S, began.at_s) for began, _ in runs):
                    return "completed with other GPUs than it asked for: slurmctld had been killed"
                return wrong("got something else than it asked for", f"job {job.number}: {text}")
        return "completed"
    if finished and killed:
        return "completed; slurmctld was killed before it told slurmdbd"
    if "CANCELLED" in ended and job.cancelled_s is not None:
        return "cancelled by its user"
    launched = happened.controller_died(job.submitted_s - LAUNCH_S, job.submitted_s + LAUNCH_S)
    if ended and (killed or (launched and not runs)) and ended[-1] in ("CANCELLED", "FAILED"):
        return f"ended by Slurm as {ended[-1]}: slurmctld was killed, and its second start failed"
    if "CANCELLED" in ended:
        return wrong("cancelled by nobody", f"job {job.number}, sacct {states}")
    if "NODE_FAIL" in ended and any(happened.crashed(began.node, began.at_s, began.at_s + 600) for began, _ in runs):
        if not wish.may_requeue:
            return "its node crashed, and it was handed in with --no-requeue"
        return wrong("lost with its node", f"job {job.number}, sacct {states}")
    if not runs and not records and job.cancelled_s is not None:
        return "cancelled by its user while it was held: Slurm keeps no record of such a job"
    if not ended and happened.controller_died(job.submitted_s, job.submitted_s):
        return "forgotten by slurmctld, which was killed seconds after"
    if ended:
        return wrong(f"ended as {ended[-1]}", f"job {job.number}, sacct {states}, {len(runs)} runs")
    return wrong("lost", f"job {job.number}, sacct {states or 'has no record'}, {len(runs)} runs")


def _differs(job: Job, record: Mapping[str, str]) -> str:
    """How what a job got differs from what it asked for; "" if it does not."""
    need = job.wish.need
    found = re.search(r"gres/gpu=(\d+)", record.get("AllocTRES", ""))
    gpus, nodes = int(found[1]) if found else 0, int(record.get("NNodes") or 0)
    if gpus != need.gpus and not (need.whole and gpus > need.gpus):
        return f"{gpus} GPUs on {record.get('NodeList')} instead of {need.gpus}"
    if not need.in_all and nodes != need.nodes:
        return f"{nodes} nodes ({record.get('NodeList')}) instead of {need.nodes}"
    return ""


def _again(key: str, job: Job, runs: Runs, happened: Happened, found: Account) -> None:
    """Count how often a job began again, and why it may have."""
    need = job.wish.need
    is_wide = need.nodes > 1 or need.in_all  # the stamps name its first node only
    for (before, _), (after, _) in pairwise(runs):
        same = after.restarts == before.restarts
        if happened.controller_died(before.at_s, after.at_s):
            why = (
                "slurmctld was killed, the same restart count" if same else "slurmctld was killed, counted as a restart"
            )
        elif same:
            why = ""
        elif happened.crashed("" if is_wide else before.node, before.at_s, after.at_s):
            why = "its node crashed"
        elif any(before.at_s - 1 <= at <= after.at_s for at in job.put_back_s):
            why = "it was put back by hand"
        else:
            why = ""
        if why:
            found.again[why] += 1
            continue
        text = f"job {job.number} at {before.at_s:.1f} on {before.node} (restarts {before.restarts}) and at "
        text += f"{after.at_s:.1f} on {after.node} (restarts {after.restarts}), for no reason that we know"
        found.problems.append(Problem("began again", key, f"{job.wish.shape}: {text}"))
    for (one, end), (other, _) in combinations(runs, 2):
        if end is not None and one.at_s <= other.at_s < end.at_s - 0.5:
            what = f"job {job.number} on {one.node} until {end.at_s:.1f} and on {other.node} from {other.at_s:.1f}"
            if happened.controller_died(one.at_s, other.at_s):
                found.again["slurmctld was killed, and two runs overlap"] += 1
            else:
                found.problems.append(Problem("twice at a time", key, f"{job.wish.shape}: {what}"))


def _shared_gpus(runs: Mapping[str, Runs], happened: Happened) -> Iterator[Problem]:
    """Two jobs on one GPU at a time, by their own stamps."""
    uses: dict[tuple[str, int], list[tuple[Stamp, Stamp]]] = {}
    for mine in runs.values():
        for began, ended in mine:
            if ended is not None:
                for device in began.devices:
                    uses.setdefault((began.node, device), []).append((began, ended))
    for (node, device), spans in uses.items():
        spans.sort(key=lambda span: span[0].at_s)
        for (_, ended), (began, _) in pairwise(spans):
            if began.at_s < ended.at_s - 0.2 and not happened.controller_died(began.at_s - 60, ended.at_s):
                text = f"GPU {device} of {node}: {ended.key} until {ended.at_s:.1f}, {began.key} from {began.at_s:.1f}"
                yield Problem("two jobs on one GPU", began.key, text)
