"""The part of a turn that stops running jobs. What needs their GPUs waits until these are free."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, final

from adlro.core.learned import KNOWN_SPEEDS
from adlro.core.ports import PLACES, Backend, Snapshot
from adlro.live.guard import Guarded
from adlro.live.orders import Orders
from adlro.live.scene import Scene
from adlro.live.seen import SeenJobs
from adlro.live.service import Decision
from adlro.live.telling import Heard, Notes

STOPS_KEY: Final = "stops"
"""The name under which the memory keeps what was stopped."""


@final
class Stopper:
    """Stops jobs in a turn, and follows them until they have ended."""

    def __init__(self, backend: Backend, guarded: Guarded, notes: Notes, orders: Orders, seen: SeenJobs) -> None:
        self._backend, self._guarded, self._notes, self._orders, self._seen = backend, guarded, notes, orders, seen
        self._ledger = guarded.stops
        self._text: str | None = None  # the stops, as they were last written down
        self._told = ""  # the policy of which it was told whether it may stop jobs

    def resume(self, policy: str, time_s: float, heard: Heard) -> None:
        """In the first turn, go on with the stops from before the restart.

        In the first turn of a policy that stops jobs, say so if no job will be stopped.
        """
        if self._text is None:
            self._text = self._notes.write(heard, time_s, lambda: self._notes.memory.get(STOPS_KEY), None) or ""
            if self._text and not self._ledger.resume(self._text):
                self._notes.tell(
                    heard, time_s, "preempt", "how often jobs were stopped cannot be read; it begins at 0."
                )
            self._take_back_unmade()
        if policy != self._told:
            self._told = policy
            if why := self._why_none():
                text = f"{policy} stops running jobs, but {why}. No running job is stopped{self._nor_resized}."
                self._notes.tell(heard, time_s, "preempt", text)
            elif self._guarded.policy.resizes and (why := self._why_no_other_size()):
                text = f"{policy} resizes jobs, but {why}. Every job has the number of GPUs that it asks for."
                self._notes.tell(heard, time_s, "preempt", text)

    def _why_no_other_size(self) -> str:
        """Why no job gets another number of GPUs than it asks for; "" if jobs may."""
        if not self._backend.can_resize:
            return f"the back end {self._backend.name} cannot give a job another number of GPUs"
        if self._seen.speeds.how != KNOWN_SPEEDS:
            return f'with speeds = "{self._seen.speeds.how}" nothing is believed about other sizes of a job'
        return ""

    def _take_back_unmade(self) -> None:
        """Uncount stops whose decisions were never recorded: the daemon died right after it had counted them."""
        none: Sequence[Decision] = []
        for id, stop in self._ledger.under_way.items():
            found = self._notes.ask(lambda id=id: self._notes.memory.decisions(job=id, limit=1), none)  # type: ignore[misc]
            if not found or found[0].verb != "stop" or found[0].time_s < stop.time_s:
                self._ledger.take_back(id)

    @property
    def _nor_resized(self) -> str:
        return ", and no job is resized" if self._guarded.policy.resizes else ""

    def _why_none(self) -> str:
        """Why no job is ever stopped although the policy wants it; "" if jobs are, or if it never does."""
        if not self._guarded.policy.preemptive:
            return ""
        if not self._ledger.table.is_on:
            return "stopping is switched off (adlro serve --preempt, docs/preemption.md)"
        return "" if self._backend.can_stop else f"the back end {self._backend.name} cannot stop jobs"

    def look(self, snapshot: Snapshot, heard: Heard) -> Sequence[str]:
        """Follow the stops that are under way; returns the jobs whose stop is over now."""
        over = self._ledger.look(snapshot)
        self._keep(snapshot.time_s, heard)
        self._orders.go_on_stopping(snapshot, heard)
        return over

    def carry_out(self, decisions: Sequence[Decision], scene: Scene, heard: Heard) -> list[Decision] | None:
        """Carry out the decisions of a turn, in order; returns those that were. None: the cluster is unreachable.

        A job that takes its time to end holds its GPUs until then. So what was to start after its stop is left out, and
        decided anew when they are free.
        """
        decisions = without_vain_stops(decisions, scene) if self._ledger.ran_out else decisions
        found: list[Decision] = []
        must_wait = False
        for verb, group in groupby(decisions, key=lambda decision: decision.verb):
            some = [each for each in group if not must_wait or (verb == "stop" and _runs(each.job, scene))]
            if not some:
                continue
            heard.decisions += tuple(some)
            done = self._stop(some, scene, heard) if verb == "stop" else self._start(some, scene, heard)
            if done is None:
                return None
            found += done
            over = {answer.job for answer in heard.answers if answer.done and not answer.is_pending}
            must_wait = must_wait or (verb == "stop" and any(each.job not in over for each in some))
        if must_wait:
            self._guarded.undo()
        return found

    def _start(self, starts: Sequence[Decision], scene: Scene, heard: Heard) -> list[Decision] | None:
        return self._orders.carry_out(starts, scene.snapshot.time_s, heard)

    def _stop(self, stops: Sequence[Decision], scene: Scene, heard: Heard) -> list[Decision] | None:
        """Stop jobs. They are counted first, so that a crash forgets none."""
        time_s = scene.snapshot.time_s
        self._ledger.count(stops, scene)
        self._keep(time_s, heard)
        done = self._orders.carry_out(stops, time_s, heard)
        if done is None:
            return None
        is_pending = {answer.job for answer in heard.answers if answer.is_pending}
        for decision in done:
            if decision.job not in is_pending:
                self._seen.note_stopped(scene.live[scene.index[decision.job]], scene.snapshot)
        self._keep(time_s, heard)
        return done

    def _keep(self, time_s: float, heard: Heard) -> None:
        """Record the stops, if they have changed."""
        if (text := self._ledger.as_text()) != self._text:
            self._text = text
            self._notes.write(heard, time_s, lambda: self._notes.memory.put(STOPS_KEY, text), None)


def _runs(job: str, scene: Scene) -> bool:
    """Whether a job runs in the snapshot of this turn."""
    return scene.live[scene.index[job]].state in PLACES


def without_vain_stops(decisions: Sequence[Decision], scene: Scene) -> Sequence[Decision]:
    """The decisions without stops of jobs that start again at once where they run now, and without these starts.

    A policy that stops several jobs for one may find that a budget has no stop left for the last of them.
    """
    stopped = {each.job for each in decisions if each.verb == "stop"}
    vain = {
        each.job
        for each in decisions
        if each.verb == "start" and each.job in stopped and each.parts == scene.live[scene.index[each.job]].parts
    }
    return [each for each in decisions if each.job not in vain]
