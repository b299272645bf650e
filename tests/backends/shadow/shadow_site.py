"""A site that schedules itself, for tests of the shadow: the simulator under a policy, told as a live cluster would."""

from dataclasses import replace
from typing import Final

from adlro.backends.shadow.record import Record
from adlro.core.copying import copied
from adlro.core.ports import JobState, LiveJob, Part
from adlro.decide.catalogue import find_policy
from adlro.experiment.instance import draw, play_out
from adlro.experiment.scenario import load_scenario
from adlro.measure.events import stretches
from adlro.normalise.pack import unpack_job

BEGIN_S: Final = 1_700_000_000.0


def watched(
    policy: str = "fcfs-easy", jobs: int = 120, until: float = 1.0, since: float = 0.0, load: float = 0.9, seed: int = 3
) -> Record:
    """What is seen of `paper16` under a policy, from one share of the time to another."""
    instance = draw(load_scenario("paper16", "paper", jobs=jobs, load=load), seed)
    run = play_out(instance, copied(instance.view), find_policy(policy))
    held: dict[int, list[Part]] = {}
    times: dict[int, tuple[float, float]] = {}
    for row in stretches(run):
        site, number = int(row["site"]), int(row["job"])
        node = run.cluster.nodes[run.site_node[site]].name
        held.setdefault(number, []).append(Part(node, run.site_model[site], int(row["mask"]).bit_count()))
        times[number] = float(row["start"]), float(row["end"])
    last = max(end for _, end in times.values())
    begin, end = since * last, until * last
    live = []
    for j in range(len(instance.jobs)):
        start, finish = times[j]
        told = unpack_job(instance.jobs, j)
        job = replace(told, submit_s=BEGIN_S + told.submit_s, work=0.0, estimate=None)
        if told.submit_s > end or finish <= begin:
            continue
        if start > end:
            live.append(LiveJob(str(j), job, JobState.WAITING))
        elif finish > end:
            live.append(LiveJob(str(j), job, JobState.RUNNING, tuple(held[j]), BEGIN_S + start, starts=1))
        else:
            at = BEGIN_S + start, BEGIN_S + finish
            live.append(LiveJob(str(j), job, JobState.FINISHED, tuple(held[j]), *at, starts=1))
    return Record("a site", run.cluster, BEGIN_S + begin, BEGIN_S + end, tuple(live))
