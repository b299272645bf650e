"""Orders to the cluster: what was decided, whether it was carried out, and which jobs go back to its own scheduler."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from adlro.core.errors import BackendError
from adlro.core.ports import PLACES, Answer, Backend, JobState, LiveJob, Order, Part, Setback, Snapshot
from adlro.live.service import Decision
from adlro.live.setbacks import Setbacks
from adlro.live.stops import REFUSED_S, StopLedger
from adlro.live.telling import Heard, Notes


@final
class Orders:
    """Gives the orders of a turn, and remembers them until a snapshot shows their result."""

    def __init__(self, backend: Backend, notes: Notes, stops: StopLedger, monotonic: Callable[[], float]) -> None:
        self._backend, self._notes, self._stops = backend, notes, stops
        self.setbacks = Setbacks(monotonic)
        self.by_job: dict[str, Decision] = {}
        """The decision that started each job."""
        self.is_unsettled = True  # decisions from before a restart, or of a turn that broke off, may have no answer
        self._unchecked: dict[str, Decision] = {}
        self._not_taken: set[str] = set()  # jobs that nobody else takes: they stay with us
        self._last_id: str | None = None

    def forget_all_but(self, there: Mapping[str, object]) -> None:
        """Forget jobs that are gone, once there are many."""
        if len(self.by_job) > 2 * len(there) + 1000:
            self.by_job = {id: made for id, made in self.by_job.items() if id in there}
        if len(self._not_taken) > 2 * len(there) + 1000:
            self._not_taken &= there.keys()

    def resume(self, time_s: float, heard: Heard) -> None:
        """Continue the decision ids of the time before a restart; called in the first turn."""
        if self._last_id is None:
            none: Sequence[Decision] = []
            made = self._notes.write(heard, time_s, lambda: self._notes.memory.decisions(limit=1), none)
            self._last_id = made[0].id if made else ""

    def settle(self, snapshot: Snapshot, now_s: float, heard: Heard) -> None:
        """Find out from the cluster what became of decisions without an answer:

        the daemon died, or the cluster was unreachable.
        """
        if not self.is_unsettled:
            return
        found = self._notes.write(heard, now_s, self._notes.memory.unanswered, None)
        if found is None:
            return
        self.is_unsettled = False
        if not found:
            return
        there = {job.id: job for job in snapshot.jobs}
        answers = [_settled(decision, there.get(decision.job)) for decision in found]
        for decision, answer in zip(found, answers, strict=True):
            # A job that is gone may have been stopped, and come back: the stop counts.
            if decision.verb == "stop" and not answer.done and decision.job in there:
                self._stops.take_back(decision.job)
        self._notes.write(heard, now_s, lambda: self._notes.memory.answered(found, answers), None)
        done = sum(answer.done for answer in answers)
        self._notes.tell(
            heard, now_s, "settled", f"{len(found)} decisions had no answer: {done} of them were carried out."
        )

    def check_placed(self, snapshot: Snapshot, heard: Heard) -> None:
        """Compare the decisions with the snapshot."""
        if not self._unchecked:
            return
        there = {job.id: job for job in snapshot.jobs}
        for id, decision in list(self._unchecked.items()):
            job = there.get(id)
            if job is not None and decision.verb == "start":
                if job.setback is not Setback.NONE:
                    continue  # `meet_setbacks` knows why
                if job.state is JobState.WAITING:
                    self.refuse(id, "the cluster took the order, and the job waits still", snapshot.time_s, heard)
                elif job.state in PLACES and not stands_as(job, decision):
                    wanted, there_is = in_places(decision.parts), in_places(job.parts)
                    text = f"job {id} was to start on {wanted} and has {there_is}."
                    self._notes.tell(
                        heard, snapshot.time_s, "misplaced", text, id, job.parts[0].node if job.parts else ""
                    )
                elif job.state in PLACES:
                    self.setbacks.accept(id)
        self._unchecked.clear()

    def carry_out(self, decisions: Sequence[Decision], time_s: float, heard: Heard) -> list[Decision] | None:
        """Record the decisions, give the orders and record the answers; returns the decisions that were carried out.

        None: the cluster is unreachable, and some orders may have been carried out. The next snapshot shows which;
        until then nothing is decided.
        """
        self._notes.write(heard, time_s, lambda: self._notes.memory.intend(decisions), None)
        orders = [order_of(each) for each in decisions]
        try:
            answers = self._backend.act(orders)
        except BackendError as error:
            self.is_unsettled = True
            self._notes.tell_once(heard, time_s, "backend", f"the cluster did not accept the orders: {error}")
            return None
        heard.answers += tuple(answers)
        self._notes.write(heard, time_s, lambda: self._notes.memory.answered(decisions, answers), None)
        done = []
        for decision, answer in zip(decisions, answers, strict=True):
            if answer.is_final:
                self.give_back({decision.job: answer.said}, time_s, heard)
            if not answer.done:
                self._note_refusal(decision, answer.said or "the cluster gave no reason", time_s, heard)
                continue
            self._unchecked[decision.job] = decision
            if decision.verb == "start":
                self.by_job[decision.job] = decision
            elif not answer.is_pending:
                self._stops.finish(decision.job)
            done.append(decision)
        return done

    def _note_refusal(self, decision: Decision, said: str, time_s: float, heard: Heard) -> None:
        """Note that a decision was not carried out."""
        if decision.verb == "start":
            self.refuse(decision.job, said, time_s, heard)
            return
        self._stops.refuse(decision.job, time_s)
        text = f"job {decision.job} could not be stopped: {said}. It is left alone for {REFUSED_S:.0f} s."
        self._notes.tell(heard, time_s, "refused", text, decision.job)

    def go_on_stopping(self, snapshot: Snapshot, heard: Heard) -> None:
        """Give the order again for jobs that are stopping: a back end that has warned them ends them in time."""
        stopping = [job for job in snapshot.jobs if job.is_stopping and job.managed]
        found = {job.id: self.stop_of(job) for job in stopping}
        orders = [order_of(stop) if stop is not None else Order(id, "") for id, stop in found.items()]
        if not orders:
            return
        try:
            answers = self._backend.act(orders)
        except BackendError as error:
            text = f"the cluster did not accept the orders: {error}"
            self._notes.tell_once(heard, snapshot.time_s, "backend", text)
            return
        for answer in answers:
            if not answer.done:
                text = f"job {answer.job} was told to stop, and has not ended: {answer.said}."
                self._notes.tell_once(heard, snapshot.time_s, "refused", text)

    def stop_of(self, job: LiveJob) -> Decision | None:
        """The decision that stopped a job, if it is stopping or waits because of it."""
        if not job.is_stopping and not (job.state is JobState.WAITING and job.starts):
            return None
        none: Sequence[Decision] = []
        found = self._notes.ask(lambda: self._notes.memory.decisions(job=job.id, limit=1), none)
        return found[0] if found and found[0].verb == "stop" else None

    def refuse(self, id: str, said: str, time_s: float, heard: Heard) -> None:
        """Note that an order was not carried out: the job is left alone for a while."""
        again = f"It is tried again after {self.setbacks.refuse(id, said):.0f} s."
        self._notes.tell(heard, time_s, "refused", f"job {id} could not be started: {said}. {again}", id)

    def meet_setbacks(self, snapshot: Snapshot, heard: Heard) -> None:
        """Give back jobs that we cannot place, hold jobs again that a limit blocks, and report both."""
        seen = self.setbacks.look(snapshot)
        for id, said in seen.limits.items():
            text = f"job {id} cannot start now: {said}. It is skipped until that may have changed."
            self._notes.tell(heard, snapshot.time_s, "limit", text, id)
        if seen.withdraw:
            try:
                answers = self._backend.act([Order(id, "") for id in seen.withdraw])
            except BackendError as error:
                answers = []
                self._notes.tell_once(
                    heard, snapshot.time_s, "backend", f"the cluster did not accept the orders: {error}"
                )
            for answer in answers:
                if not answer.done:
                    text = f"job {answer.job} could not be held again: {answer.said}."
                    self._notes.tell_once(heard, snapshot.time_s, "refused", text)
        self.give_back(seen.give_back, snapshot.time_s, heard)

    def give_back(self, reasons: Mapping[str, str], time_s: float, heard: Heard) -> None:
        """Give jobs back to the cluster's own scheduler, and say why."""
        new = {id: reason for id, reason in reasons.items() if id not in self._not_taken}
        if not new:
            return
        try:
            answers = self._backend.give_back(new)
        except BackendError as error:
            self._notes.tell_once(heard, time_s, "backend", f"jobs could not be given back: {error}")
            return
        for answer in answers:
            if answer.done:
                heard.given_back.add(answer.job)
                text = f"job {answer.job} was given back to the cluster's own scheduler: {new[answer.job]}."
                self._notes.tell(heard, time_s, "given-back", text, answer.job)
            elif answer.is_final:
                self._not_taken.add(answer.job)
            else:
                text = f"job {answer.job} could not be given back: {answer.said}. It is tried again."
                self._notes.tell_once(heard, time_s, "given-back", text)

    def id_of(self, time_s: float, turn: int, number: int) -> str:
        """A unique id for a decision; later ids sort after earlier ones, also across restarts."""
        found = f"{max(0, round(time_s * 1000)):015d}-{turn % 1_000_000:06d}-{number:05d}"
        if self._last_id is not None and found <= self._last_id:  # the clock stood still or went back
            stem, _, tail = self._last_id.rpartition("-")
            can_count = tail.isascii() and tail.isdigit() and len(tail) == 5 and tail != "99999"
            found = f"{stem}-{int(tail) + 1:05d}" if can_count else f"{self._last_id}-00001"
        self._last_id = found
        return found

    def decision_of(self, job: LiveJob) -> Decision | None:
        """The decision that placed a job."""
        made = self.by_job.get(job.id)
        if made is not None and job.state is not JobState.WAITING:
            return made
        if job.state is JobState.WAITING:
            return None
        none: Sequence[Decision] = []
        found = self._notes.ask(lambda: self._notes.memory.decisions(job=job.id, limit=10), none)
        return next((decision for decision in found if decision.verb == "start"), None)


def order_of(decision: Decision) -> Order:
    """The order that carries out a decision. A stop names the job that it makes room for."""
    if decision.verb == "start":
        return Order(decision.job, decision.id, decision.parts)
    return Order(decision.job, decision.id, for_job=decision.mentions[0].job if decision.mentions else "")


def _settled(decision: Decision, job: LiveJob | None) -> Answer:
    """What became of a decision without an answer, according to the snapshot that was read after it."""
    if job is None:
        return Answer(decision.job, False, "the job is not there any more")
    waits = job.state is JobState.WAITING
    done = waits or job.is_stopping if decision.verb == "stop" else not waits
    said = "found so after it had no answer" if done else "not carried out: it had no answer"
    return Answer(decision.job, done, said)


def stands_as(job: LiveJob, decision: Decision) -> bool:
    """Whether a job has as many GPUs of the same models on the same nodes as decided.

    Which GPUs of a node they are, and how they are divided over several nodes, does not count: the cluster chooses.
    """
    if not job.parts:
        return True
    if job.job.gpus == 0:
        return {part.node for part in job.parts} == {part.node for part in decision.parts}
    there, wanted = gpus_by_place(job.parts), gpus_by_place(decision.parts)
    return there.keys() == wanted.keys() and sum(there.values()) == sum(wanted.values())


def gpus_by_place(parts: Sequence[Part]) -> dict[tuple[str, str], int]:
    """How many GPUs by node and model."""
    found: dict[tuple[str, str], int] = {}
    for part in parts:
        found[part.node, part.model] = found.get((part.node, part.model), 0) + part.count
    return found


def in_places(parts: Sequence[Part]) -> str:
    """Parts in words."""
    return ", ".join(
        f"{count} {model} on {node}" if count else node for (node, model), count in gpus_by_place(parts).items()
    )
