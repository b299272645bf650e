"""Tell a running Slurm what was decided: place and let go, put back, hand in, cancel; and give the queue back to it.

Over slurmrestd a placement is one call, so that no job is let go without its place. Slurm's commands need two, and in
between the job is held: whoever dies there leaves it waiting, not lost.
"""

import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, final

from adlro.backends.slurm.comments import ASKED_FOR, DEFAULT_PRIORITY
from adlro.backends.slurm.giving_back import GivenBack, hand_back, place_of_freed
from adlro.backends.slurm.putting_back import stop_running
from adlro.backends.slurm.resizing import resized
from adlro.backends.slurm.submissions import most_on_a_node, script_of, words_of_request
from adlro.backends.slurm.ways import (
    ClusterReader,
    CommandRunner,
    CommandWay,
    KnownJob,
    NotNowError,
    RefusedError,
    RestClient,
    RestWay,
    SlurmOrder,
    Way,
)
from adlro.core.accounts import Account, account_of, checked_name
from adlro.core.errors import AccountError, BackendError
from adlro.core.ports import ENDED, NOT_RESTARTABLE, Answer, JobState, Order, Part, Snapshot, Submission
from adlro.core.records import CPU_ONLY, WHOLE_GPU
from adlro.core.sizes import gpus_ordered

REQUEUED_S: Final = 3.0
"""A job that was put back does not start again sooner: within the second of its requeue its node refuses the credential
of the new start ("Job credential revoked"), and Slurm ends the job as FAILED.
"""

_LONGEST_NAME: Final = 200
SAYS_NOTHING: Final = "Unexpected message received"
"""Slurm's answer to an update when the controller is gone, and to some updates that it refuses."""

HUNG_S: Final = 5.0
BARRED_S: Final = 600.0
"""A user whose sbatch failed only after HUNG_S, while Slurm was up, may submit again after this time."""

NO_UPDATE: Final = "DB index is being set"
"""What Slurm says of a job that it lets nobody update, after 5 s. After a crash of slurmctld a job may stay so."""

SLOW_S: Final = 2.0
"""Slurm's clients do not wait for that answer: they give up after some seconds, and say nothing of the cause."""

NO_UPDATE_S: Final = 60.0
LONGEST_NO_UPDATE_S: Final = 3600.0
"""Such a job is not asked for again for so long, twice as long each time: each try holds up the turn."""


@dataclass(frozen=True, slots=True)
class Handing:
    """How jobs of the API are submitted."""

    as_whom: str = "nobody"
    """nobody: they are not, users call sbatch; self: as the daemon's account; user: as their user (needs root)."""
    partition: str = ""
    directory: str = "/tmp"
    min_uid: int = 0
    """The lowest uid that jobs may run as; 0 is UID_MIN of /etc/login.defs."""


def is_stuck(said: str, took_s: float) -> bool:
    """Whether Slurm lets nobody update the job: it says so, or the client gave up."""
    return NO_UPDATE in said or (SAYS_NOTHING in said and took_s >= SLOW_S)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A job that Slurm lets nobody update: what Slurm said, how often, and until when it is not asked again."""

    said: str
    times: int
    until: float


@final
class Slurm:
    """A Slurm cluster as a back end: the reader reads, and the first way that works carries out orders."""

    name: Final = "slurm"

    def __init__(
        self,
        reader: ClusterReader,
        rest: RestClient | None = None,
        commands: CommandRunner | None = None,
        handing: Handing = Handing(),  # noqa: B008  (frozen)
        largest_node: Callable[[Snapshot], int] | None = None,
        grace_s: float = 120.0,
    ) -> None:
        """At least one of `rest` and `commands`. `grace_s`: the most time from a job's signal to its requeue."""
        self._reader, self._rest, self._handing, self._grace_s = reader, rest, handing, grace_s
        self._commands = None if commands is None else CommandWay(commands)
        self._largest = largest_node or most_on_a_node
        self._done: dict[str, str] = {}  # orders since the last reading
        self._snapshot: Snapshot | None = None
        self._slurm_user: int | None = None  # asked for once
        self._barred: dict[int, float] = {}  # uids whose sbatch did not end, and until when they wait
        self._stuck: dict[str, Stuck] = {}  # jobs that Slurm lets nobody update

    @property
    def can_annotate(self) -> bool:
        """True: the line is in the comment, which squeue shows."""
        return True

    @property
    def can_stop(self) -> bool:
        """Whether the command line is available: slurmrestd cannot requeue a job."""
        return self._commands is not None

    @property
    def places_gpus(self) -> bool:
        """False: Slurm chooses the GPUs of a node, unless each has a type of its own."""
        return False

    @property
    def can_resize(self) -> bool:
        """Whether the command line is available: slurmrestd cannot change all that belongs to a size."""
        return self._commands is not None

    def read(self) -> Snapshot:
        """The cluster now."""
        self._snapshot = self._reader.read()
        self._done.clear()
        if self._stuck:
            there = {told.together for told in self._reader.all_told() if told.is_pending}
            self._stuck = {name: stuck for name, stuck in self._stuck.items() if name in there}
        return self._snapshot

    def has_changed(self) -> bool:
        """Whether a job or a node has changed since the latest reading."""
        return self._reader.has_changed()

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out orders, as far as Slurm allows."""
        return [self._carry_out(order) for order in orders]

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Give jobs back to Slurm for good: unpinned, not held, with the reason in their comment."""
        now_s = self._snapshot.time_s if self._snapshot else 0.0
        ways = self._ways()
        answers, given = [], dict[str, GivenBack]()
        for job, reason in reasons.items():
            told = self._reader.told(job)
            if told is None or not told.is_ours_to_give_back:
                answers.append(Answer(job, False, "it does not wait for ADLRO"))
                continue
            if told.together not in given:  # tasks that wait in one record go together
                line = f"given back to Slurm: {reason}"
                order = list(reversed(ways)) if told.is_task else ways
                given[told.together] = self._given_back(told, place_of_freed(told, now_s, line), order)
            done = given[told.together]
            if done.done:
                self._done[job] = ""
            answers.append(Answer(job, done.done, done.said))
        return answers

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Write a line into the comment of each waiting job, where `squeue -o %k` shows it."""
        for job, line in lines.items():
            told = self._reader.told(job)
            if told is None or job in self._done:  # its comment has changed since it was read
                continue
            if not told.is_pending or told.together != told.live.id or told.line == line:
                continue  # tasks that wait in one record would each become a record of their own
            with suppress(RefusedError), self._updating(told):
                self._note(told, told.comment(line))

    def _note(self, told: KnownJob, comment: str) -> None:
        """Write the comment of a job."""
        self._tell(lambda way: way.note(told.live.id, comment), told.is_task)

    def _given_back(self, told: KnownJob, place: SlurmOrder, ways: Sequence[Way]) -> GivenBack:
        """Give a job back to Slurm."""
        try:
            with self._updating(told):
                began = time.monotonic()
                given = hand_back(place, ways)
                if is_stuck(given.said, time.monotonic() - began):
                    raise RefusedError(given.said)
                return given
        except RefusedError as no:
            return GivenBack(place.job, False, str(no))

    @contextmanager
    def _updating(self, told: KnownJob) -> Iterator[None]:
        """Around every update of a job. A job that Slurm lets nobody update is left alone for a while."""
        name, now = told.together, time.monotonic()
        stuck = self._stuck.get(name)
        if stuck is not None and now < stuck.until:
            raise RefusedError(stuck.said)
        try:
            yield
        except RefusedError as no:
            if is_stuck(str(no), time.monotonic() - now):
                times = stuck.times + 1 if stuck else 1
                wait_s = min(NO_UPDATE_S * 2 ** (times - 1), LONGEST_NO_UPDATE_S)
                self._stuck[name] = Stuck(str(no), times, time.monotonic() + wait_s)
            raise
        self._stuck.pop(name, None)

    def submit(self, submission: Submission) -> str:
        """Submit a job, held for us; returns its id."""
        return self.submit_aside(submission, nullcontext())

    def submit_aside(self, submission: Submission, alone: AbstractContextManager[object]) -> str:
        """The same (ports.SubmitsAside). An sbatch that runs as its user, who can stop it, runs without the lock."""
        with alone:
            script, wish, name, token = self._wish(submission)
            if wish["account"] is None:
                return self._hand_in(script, wish, name, token)
        id = self._hand_in_as_user(script, wish, name, token, alone)
        if self._commands is not None and submission.job.priority != DEFAULT_PRIORITY:
            # A user could write such a word too, so it counts only where users cannot write. Without it the job waits
            # with the usual priority.
            with alone, suppress(RefusedError, BackendError):
                self._commands.note_as_admin(id, f"adlro:priority={submission.job.priority:g}")
        return id

    def _wish(self, submission: Submission) -> tuple[str, Mapping[str, Any], str, str]:
        """The script of a job, its request, its name, and the token by which it is found again."""
        job = submission.job
        if self._handing.as_whom == "nobody":
            raise BackendError(
                "this daemon does not submit jobs to Slurm. Use sbatch, or set [slurm] submit_as to 'self' or 'user'."
            )
        account = self._account_of(job.user)
        if not submission.command:
            raise BackendError("a job for Slurm needs a command.")
        if job.share != WHOLE_GPU:
            raise BackendError("Slurm allocates whole GPUs only. Ask for a whole one.")
        token = secrets.token_hex(8)
        snapshot = self._snapshot or self.read()
        wish = {
            "comment": " ".join(words_of_request(job, token, self._handing.as_whom)),
            "directory": submission.directory or (account.home if account else self._handing.directory),
            "partition": self._handing.partition,
            "gpus": job.gpus,
            "spreads": job.gpus > self._largest(snapshot),
            "cpus": -int(-job.cpus // 1),
            "memory_mib": int(job.memory_gb * 1e9 / 1024**2),
            "minutes": -int(-(job.limit_s or 0.0) // 60),
            "account": account,
        }
        name = "".join(sign for sign in job.name if sign.isprintable())[:_LONGEST_NAME] or "adlro"
        # sbatch runs with a umask that keeps the output file private; files that the job makes are as usual.
        script = script_of(submission, ("umask 022",) if account else ())
        return script, wish, name, token

    def _account_of(self, user: str) -> Account | None:
        """The account that a job of this user runs as; None means the daemon's own. Raises AccountError."""
        if self._handing.as_whom != "user":
            checked_name(user or "adlro")
            return None
        account = account_of(user, self._handing.min_uid)
        if self._commands is None:  # slurmrestd runs jobs as the owner of our token
            raise AccountError(
                "jobs can be submitted as their user only with Slurm's commands. Set command_line = true in [slurm]."
            )
        if (wait_s := self._barred.get(account.uid, 0.0) - time.monotonic()) > 0:
            raise AccountError(
                f"the last sbatch of {user!r} hung while Slurm was up. Find out why, and try again in {wait_s:.0f} s."
            )
        if self._slurm_user is None:
            self._slurm_user = self._commands.administrator()
        if account.uid == self._slurm_user:
            raise AccountError(f"jobs may not run as {user!r}: it is SlurmUser, who may do everything in Slurm.")
        return account

    def cancel(self, job: str) -> None:
        """End a job for good."""
        told = self._reader.told(job)
        if told is None:  # it may have come since the last look
            self.read()
            told = self._reader.told(job)
        if told is None:
            raise BackendError(f"Slurm has no job {job}.")
        if told.live.state not in ENDED:
            try:
                self._tell(lambda way: way.cancel(job), told.is_task)
            except RefusedError as said:
                raise BackendError(f"Slurm does not end job {job}: {said}.") from None

    def close(self) -> None:
        """Close the connection; jobs continue."""
        if self._rest is not None:
            self._rest.close()

    # ---- orders ------------------------------------------------------------------------------------------------------

    def _carry_out(self, order: Order) -> Answer:
        told = self._reader.told(order.job)
        if told is None:
            return Answer(order.job, False, "Slurm does not know this job")
        is_pending = False
        try:
            with self._updating(told):
                if order.is_start:
                    said = self._start(told, order)
                else:
                    said, is_pending = self._stop(told)
        except NotNowError as no:
            return Answer(order.job, False, str(no))
        except RefusedError as no:
            return Answer(order.job, False, f"Slurm says: {no}", is_final=order.is_start)
        self._done[order.job] = order.decision
        return Answer(order.job, True, said, is_pending=is_pending)

    def _start(self, told: KnownJob, order: Order) -> str:
        """Place and release a job; one that is released already is left alone."""
        live = told.live
        earlier = self._done.get(order.job)
        if earlier == order.decision or (live.decision == order.decision and live.state is not JobState.WAITING):
            return "it is there already"
        if earlier is not None:
            raise NotNowError("it was placed by another decision in this turn")
        if live.state is not JobState.WAITING or not live.managed:
            raise NotNowError(f"it is {live.state}" if live.managed else "it is not ours to place")
        proof: dict[str, str] = {}
        if gpus_ordered(live.job, order.parts) != live.job.gpus or ASKED_FOR in told.words:
            self._say(lambda _: proof.update(resized(told, order.parts, self._commands)), self._ways()[-1])
        gres, words, said = self._request(told, order.parts, proof)
        words |= {"decision": order.decision, "held": "", "stopping": "", "restarts": str(told.restarts)}
        words |= {"submit": f"{live.job.submit_s:.0f}"}
        nodes = tuple(dict.fromkeys(part.node for part in order.parts))
        now_s = self._snapshot.time_s if self._snapshot else 0.0
        words |= {"placed": f"{now_s:.0f}"}
        delay_s = max(0, math.ceil(told.requeued_s + REQUEUED_S - now_s))
        begin_s = now_s + delay_s if told.restarts else None
        place = SlurmOrder(live.id, nodes, told.comment(**words), gres, begin_s, delay_s)
        self._tell(lambda way: way.place(place), told.is_task)
        return said

    def _request(
        self, told: KnownJob, parts: Sequence[Part], proof: Mapping[str, str]
    ) -> tuple[str | None, dict[str, str], str]:
        """The GPUs to ask for at this place (None: as it asks already), words for its comment, and a remark."""
        first = parts[0]
        if first.model == CPU_ONLY or not first.count:
            return None, {}, ""
        wanted = self._wanted(told, parts)
        if wanted is None or wanted == told.asked:
            return None, {}, ""
        has_type = re.fullmatch(r"gpu:\d+", wanted) is None
        words = {"gpus": str(told.live.job.gpus), **({"bound": first.model} if has_type else {})}
        if told.asked:
            if (commands := self._commands) is None:
                return None, {}, "by node only: the command line is needed to ask for devices"
            noted = told.admin_comment(gpus=words["gpus"], **proof)
            self._say(lambda _: commands.clear_gpus(told.live.id, told.comment(gpus=words["gpus"]), noted), commands)
        return wanted, words, ""

    def _wanted(self, told: KnownJob, parts: Sequence[Part]) -> str | None:
        """The request for each node in Slurm's words; None if the present request fits."""
        first, counts = parts[0], {part.count for part in parts}
        if told.is_per_job:
            return None
        if len(parts) == 1:
            types = self._reader.types(first.node, first.model)
            if types and (first.indices or "bound" in told.words):
                chosen = first.indices or range(first.count)
                return ",".join(f"gpu:{types[index]}:1" for index in chosen)
            if kind := self._reader.type_of(first.node, first.model):
                return f"gpu:{kind}:{first.count}"
        elif len(counts) > 1:
            raise NotNowError("it asks for the same number of GPUs on each node, and the order does not")
        asked_each = f"gpu:{first.count}"
        return None if told.asked.rpartition(":")[2] == str(first.count) else asked_each

    def _stop(self, told: KnownJob) -> tuple[str, bool]:
        """Requeue a job, so that it waits again; a remark, and whether it takes time.

        A job that wants a signal first is sent it, and requeued by the order that comes after its time. The comment has
        the moment, so that a daemon that was killed in between goes on.
        """
        commands = self._commands
        if commands is None:
            raise NotNowError("stopping a job needs Slurm's commands, which are switched off (command_line)")
        marked, held = told.comment(held="yes"), told.comment(decision="", placed="", held="yes")
        if told.is_pending and not told.is_held:  # let go to a place, and it has not begun
            begins_in_s = max(0, math.ceil(told.begins_s - (self._snapshot.time_s if self._snapshot else 0.0)))
            self._say(lambda _: commands.withdraw(told.live.id, marked, held, begins_in_s), commands)
            return "", False
        if told.live.state is JobState.WAITING:
            return "it waits already", False
        if told.live.state is not JobState.RUNNING or not told.live.managed:
            raise NotNowError(f"it is {told.live.state}" if told.live.managed else "it is not ours to stop")
        if not told.may_requeue:
            raise NotNowError("it was submitted with --no-requeue")
        if not told.live.job.restartable:
            raise NotNowError(NOT_RESTARTABLE)
        now_s = self._snapshot.time_s if self._snapshot else 0.0
        said: list[str] = []
        self._say(lambda _: said.append(stop_running(told, commands, now_s, self._grace_s)), commands)
        return said[0], True

    def _tell(self, say: Callable[[Way], None], is_task: bool = False) -> None:
        """Tell Slurm over the first way that answers. slurmrestd of 22.05 cannot tell how an update of a task went."""
        ways = self._ways()
        gone: BackendError | None = None
        for way in reversed(ways) if is_task else ways:
            try:
                return self._say(say, way)
            except BackendError as error:
                gone = gone or error
        raise gone or BackendError("Slurm cannot be reached: neither slurmrestd nor its commands can be used.")

    def _say(self, say: Callable[[Way], None], way: Way) -> None:
        """Say it over one way; a refusal that tells nothing may mean that there is nobody to refuse."""
        try:
            say(way)
        except RefusedError as no:
            if SAYS_NOTHING in str(no) and not way.is_up():
                raise BackendError("slurmctld does not answer. Is it running?") from None
            raise

    def _ways(self) -> list[Way]:
        rest: list[Way] = [] if self._rest is None else [RestWay(self._rest)]
        return rest + ([] if self._commands is None else [self._commands])

    def _hand_in(self, script: str, wish: Mapping[str, Any], name: str, token: str) -> str:
        """Submit once. If the answer is lost, look for the job before anybody tries again."""
        ways = self._ways()
        for way in ways:
            try:
                if isinstance(way, RestWay) and self._rest is not None:
                    self._rest.ask("GET", "/ping")
            except BackendError:
                if way is not ways[-1]:
                    continue
                raise
            try:
                return way.submit(script, wish, name)
            except RefusedError as said:
                raise BackendError(f"Slurm does not take the job: {said}.") from None
            except BackendError as error:
                return self._found(token, None, error)
        raise BackendError("Slurm cannot be reached: neither slurmrestd nor its commands can be used.")

    def _hand_in_as_user(
        self, script: str, wish: Mapping[str, Any], name: str, token: str, alone: AbstractContextManager[object]
    ) -> str:
        """The same with an sbatch of the user's. It shares nothing with other calls but what it takes `alone` for."""
        account, commands = wish["account"], self._commands
        assert commands is not None  # _account_of has checked it
        began = time.monotonic()
        try:
            return commands.submit(script, wish, name)
        except RefusedError as said:
            raise BackendError(f"Slurm does not take the job: {said}.") from None
        except BackendError as error:
            # A user can stop a process of theirs, and a thread of ours waits for it: not again and again.
            if time.monotonic() - began >= HUNG_S and commands.is_up():
                self._barred[account.uid] = time.monotonic() + BARRED_S
            with alone:
                return self._found(token, account, error)

    def _found(self, token: str, account: Account | None, error: BackendError) -> str:
        """The job with this token, after an answer that got lost. Others can read the token: it must be its user's."""
        self.read()
        for told in self._reader.all_told():
            if told.words.get("token") == token and (account is None or told.live.job.user == account.name):
                return told.live.id
        raise BackendError(f"{error} The job is not in the queue. Submit it again.")
