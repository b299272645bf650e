"""Why a running job was stopped, and what that brings: for the decision, and for its owner who asks later."""

from collections.abc import Sequence
from dataclasses import replace

from adlro.core.ports import JobState, LiveJob
from adlro.core.tables import START
from adlro.decide.rules.reserving import by_expected_end
from adlro.live.corrections import Corrections
from adlro.live.explain_places import mention_of
from adlro.live.guard import Chosen
from adlro.live.predicting import PaceOf, pace
from adlro.live.scene import Scene
from adlro.live.service import Decision, Mention, Why
from adlro.live.words import moment, spell


def why_stopped(
    scene: Scene, chosen: Sequence[Chosen], at: int, corrections: Corrections, pace_of: PaceOf = pace
) -> tuple[str, tuple[Mention, ...]]:
    """Why the choice at this place of a turn stops a job, and the jobs that the sentence names."""
    stop = chosen[at]
    job = scene.live[stop.job]
    now_s = scene.snapshot.time_s
    ran = "" if job.started_s is None else f" after {spell(max(0.0, now_s - job.started_s))}"
    goes_on = "It waits again in its old place in the queue, and restarts when there is room for it."
    again = next((each for each in chosen[at + 1 :] if each.verb == START and each.job == stop.job), None)
    had, gets = (sum(part.count for part in parts) for parts in (job.parts, again.parts if again else ()))
    if again is not None and gets != had:
        return f"{stop.by} stops it{ran} to give it {gets} GPUs instead of {had}. It goes on when they are free.", ()
    gains = taker(scene, chosen, at)
    if gains is None:
        return f"{stop.by} stops it{ran} and gives its GPUs to other jobs. {goes_on}", ()
    other = scene.live[gains.job]
    seconds = float(scene.predicted[gains.job, 1]) / max(
        pace_of(other.job, gains.parts, scene.plan.cluster, corrections), 1e-9
    )
    rows, ends = by_expected_end(scene.view)
    left_s = next(float(end) for row, end in zip(rows, ends, strict=True) if row == stop.job) - float(
        scene.view.clock[0].now
    )
    text = (
        f"{stop.by} stops it{ran} so that job {other.id} can start, which needs about {spell(seconds)}: that job gains "
        f"up to {spell(max(0.0, left_s))}. {goes_on}"
    )
    return text, (mention_of(scene, other.id),)


def taker(scene: Scene, chosen: Sequence[Chosen], at: int) -> Chosen | None:
    """The first start after a stop that uses a node of the stopped job; None if there is none."""
    nodes = {part.node for part in scene.live[chosen[at].job].parts}
    return next(
        (
            each
            for each in chosen[at + 1 :]
            if each.verb == START and each.job != chosen[at].job and nodes & {part.node for part in each.parts}
        ),
        None,
    )


def with_stop(why: Why, job: LiveJob, stop: Decision, stops: int, most: int, now_s: float) -> Why:
    """The answer about a job that was stopped, and waits or is about to: first when and why it was stopped."""
    is_over = job.state is JobState.WAITING
    verb = "It was stopped" if is_over else "It was told to stop"
    text = f"{verb} at {moment(stop.time_s, now_s)} ({stops} of at most {most} times): {stop.reason}"
    short = f"stopped {moment(stop.time_s, now_s)}; {why.short}" if is_over else "is being stopped"
    return replace(why, text=f"{text} {why.text}", short=short, mentions=(*stop.mentions, *why.mentions))
