"""Ask a policy once on a small cluster, so that it is compiled before its time is measured."""

from adlro.core.policy import Policy
from adlro.core.ports import JobState, LiveJob, Snapshot
from adlro.live.explain_start import Explaining, Judge
from adlro.live.guard import Guarded
from adlro.live.limits import GuardTable, Limits
from adlro.live.scene import Scenes


def warm_up(policy: Policy, judge: Judge) -> None:
    """Ask a policy once on a small cluster, so that its code is compiled."""
    from adlro.catalogue.clusters import load_cluster
    from adlro.core.records import Job
    from adlro.live.said import as_said

    cluster = load_cluster("paper16")
    jobs = tuple(
        LiveJob(f"warm{number}", Job("uniform", 0.0, gpus=number, estimate=60.0), JobState.WAITING)
        for number in (1, 2, 8)
    )
    scene = Scenes().scene(Snapshot(0.0, cluster, jobs), as_said)
    patient = Limits(decide_s=60.0, decision_s=120.0, guard=GuardTable(max_wait_s=1.0))
    guarded = Guarded(policy, policy, patient)
    guarded.decide(scene, explain=Explaining(scene, judge, 8), check=judge.check)
