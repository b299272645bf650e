"""Tell a running Slurm what was decided: place and let go, put back, hand in, cancel; and give the queue back to it.

Over slurmrestd a placement is one call, so that no job is let go without its place. Slurm's commands need two, and in
between the job is held: whoever dies there leaves it waiting, not lost.
"""

import math
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from adlro.backends.slurm.jobs import DEFAULT_PRIORITY, IN_COMMENT
from adlro.core.accounts import Account, account_of, checked_name
from adlro.core.errors import AccountError, BackendError
from adlro.core.ports import ENDED, Answer, JobState, LiveJob, Order, Part, Snapshot, Submission
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Job

REQUEUED_S: Final = 3.0
"""A job that was put back does not start again sooner: within the second of its requeue its node refuses the credential
of the new start ("Job credential revoked"), and Slurm ends the job as FAILED.
"""

NEW_API: Final = 39
"""From v0.0.39 on the nodes of a job are a list, and its GPUs have another key."""

LONGEST_NAME: Final = 200
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
CONTROLLER_GONE: Final = re.compile(
    r"contact slurm controller|Zero Bytes were transmitted|connect failure|Socket timed out|communication error"
    r"|Unspecified error",  # what slurmrestd of 22.05 says of it
    re.I,
)
SAYS_NOTHING: Final = "Unexpected message received"
"""What Slurm says of an update when the controller is gone, and of some that it refuses."""

HUNG_S: Final = 5.0
BARRED_S: Final = 600.0
"""A user whose sbatch failed only after HUNG_S, while Slurm was up, may submit again after this time."""

NO_UPDATE: Final = "DB index is being set"
"""What Slurm says of a job that it lets nobody update, after 5 s. After a crash of slurmctld a job may stay so."""

NO_UPDATE_S: Final = 60.0
LONGEST_NO_UPDATE_S: Final = 3600.0
"""Such a job is not asked for again for so long, twice as long each time: each try holds up the turn."""

ARRAY_UPDATE: Final = "job array update"
"""22.05's slurmrestd says that this failed when it has been done."""


class RefusedError(Exception):
    """Slurm said no to an order; the text is what it said."""


class NotNowError(Exception):
    """An order that does not fit the job as it is now; Slurm was not asked."""


class Told(Protocol):
    """What must be known of a job to give orders about it."""

    @property
    def live(self) -> LiveJob:
        """The job as the snapshot has it."""

    @property
    def is_pending(self) -> bool:
        """Whether it waits in Slurm's eyes."""

    @property
    def is_held(self) -> bool:
        """Whether it will not start before it is let go."""

    @property
    def is_pinned(self) -> bool:
        """Whether it may start at named nodes only."""

    @property
    def is_task(self) -> bool:
        """Whether it is a task of an array."""

    @property
    def is_per_job(self) -> bool:
        """Whether its GPUs are asked for in all, however many nodes they are on."""

    @property
    def is_ours_to_give_back(self) -> bool:
        """Whether it waits because of us."""

    @property
    def may_requeue(self) -> bool:
        """Whether it may be put back once it has begun."""

    @property
    def restarts(self) -> int:
        """How often it began and was put back."""

    @property
    def requeued_s(self) -> float:
        """When it was last put back; 0 if it never was."""

    @property
    def asked(self) -> str:
        """The GPUs asked for on each node, in Slurm's words."""

    @property
    def words(self) -> Mapping[str, str]:
        """Our words in its comment."""

    @property
    def together(self) -> str:
        """It, or it with the tasks that wait in one record with it."""

    @property
    def line(self) -> str:
        """What users are told in its comment now."""

    def comment(self, line: str = "", **words: str) -> str:
        """Its comment with this line for users and these words of ours; an empty one is taken away."""

    def admin_comment(self, **words: str) -> str:
        """Its admin comment with these words of ours, which users cannot write."""


class Reader(Protocol):
    """What was last read of the cluster."""

    def read(self) -> Snapshot:
        """Read it now."""

    def has_changed(self) -> bool:
        """Whether it has changed since, asked cheaply."""

    def told(self, job: str) -> Told | None:
        """A job as it was last read."""

    def all_told(self) -> Sequence[Told]:
        """All of them."""

    def types(self, node: str, model: str) -> tuple[str, ...] | None:
        """Slurm's type for each device of a model on a node, if each has one of its own."""

    def type_of(self, node: str, model: str) -> str:
        """Slurm's type for a model on a node that has others too."""


class Rest(Protocol):
    """A slurmrestd."""

    @property
    def api(self) -> int:
        """The N of the v0.0.N that is spoken."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, again: bool = True) -> tuple[int, Any]:
        """The status and the JSON of an answer. No answer is a BackendError."""

    def close(self) -> None:
        """Let the connection go."""


class Ran(Protocol):
    """What a command came to."""

    @property
    def code(self) -> int:
        """Its exit code."""

    @property
    def out(self) -> str:
        """What it printed."""

    @property
    def said(self) -> str:
        """What it said of its failure."""


class Commands(Protocol):
    """Slurm's own commands."""

    def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> Ran:
        """Run one to its end: as this account, or as ourselves."""


@dataclass(frozen=True, slots=True)
class Place:
    """An order in Slurm's words. `nodes` and `gres` are None where they stay as they are; no nodes: any will do."""

    job: str
    nodes: tuple[str, ...] | None
    comment: str
    gres: str | None = None
    begin_s: float | None = (
        None  # from when on it may start; None: as it is. A job that was put back would wait a while
    )
    delay_s: int = 0  # how far `begin_s` lies ahead


class Way(Protocol):
    """A way to tell Slurm something. A refusal is RefusedError, silence a BackendError."""

    def place(self, place: Place) -> None:
        """Pin a job to nodes, or to none, and let it go."""

    def note(self, job: str, comment: str) -> None:
        """Write the comment of a job."""

    def cancel(self, job: str) -> None:
        """End a job for good."""

    def submit(self, script: str, job: Mapping[str, Any], name: str) -> str:
        """Hand a script in, held; its id."""

    def is_up(self) -> bool:
        """Whether the controller answers."""


# ---- slurmrestd --------------------------------------------------------------------------------------------------


@final
class RestWay:
    """Over slurmrestd: place and let go are one call."""

    def __init__(self, rest: Rest) -> None:
        """Nothing is said yet."""
        self._rest = rest

    def place(self, place: Place) -> None:
        """Pin a job to nodes and let it go, all or nothing."""
        new = self._rest.api >= NEW_API
        body: dict[str, Any] = {"hold": False, "comment": place.comment}
        if place.nodes is not None:
            body["required_nodes" if new else "nodelist"] = list(place.nodes) if new else ",".join(place.nodes)
        if place.gres is not None:
            body["tres_per_node" if new else "gres"] = _with_prefix(place.gres) if new else place.gres
        if place.begin_s is not None:
            body["begin_time"] = {"set": True, "number": int(place.begin_s)} if new else _moment(place)
        self._post(f"/job/{place.job}", body)

    def note(self, job: str, comment: str) -> None:
        """Write the comment of a job."""
        self._post(f"/job/{job}", {"comment": comment})

    def cancel(self, job: str) -> None:
        """End a job for good."""
        status, answer = self._rest.ask("DELETE", f"/job/{job}")
        _check(status, answer)

    def submit(self, script: str, job: Mapping[str, Any], name: str) -> str:
        """Hand a script in, held. It is said once: whether an answer that got lost was a yes, a look tells."""
        new = self._rest.api >= NEW_API
        wish: dict[str, Any] = {
            "name": name,
            "comment": job["comment"],
            "hold": True,
            "current_working_directory": job["directory"],
            "environment": [f"PATH={PATH}"] if new else {"PATH": PATH},
            "requeue": True,
        }
        if job["partition"]:
            wish["partition"] = job["partition"]
        if job["gpus"]:
            key = ("tres_per_job" if new else "gpus") if job["spreads"] else ("tres_per_node" if new else "gres")
            value = f"gpu:{job['gpus']}"
            wish[key] = _with_prefix(value) if new else (str(job["gpus"]) if key == "gpus" else value)
        if job["cpus"] and job["spreads"]:
            each = -(-job["cpus"] // max(job["gpus"], 1))
            wish["cpus_per_tres" if new else "cpus_per_gpu"] = f"gres/gpu:{each}" if new else str(each)
        elif job["cpus"]:
            wish["cpus_per_task"] = job["cpus"]
        if job["memory_mib"] and not job["spreads"]:
            wish["memory_per_node"] = {"set": True, "number": job["memory_mib"]} if new else job["memory_mib"]
        if job["minutes"]:
            wish["time_limit"] = {"set": True, "number": job["minutes"]} if new else job["minutes"]
        status, answer = self._rest.ask("POST", "/job/submit", {"script": script, "job": wish}, again=False)
        found = answer.get("job_id") if isinstance(answer, dict) else None
        if not found:  # with an id, 22.05 tells the hold as an error (2042)
            _check(status, answer)
            raise BackendError("slurmrestd took a job and told no id for it.")
        return str(found)

    def is_up(self) -> bool:
        """Whether the controller answers."""
        status, answer = self._rest.ask("GET", "/ping")
        pings = answer.get("pings") if isinstance(answer, dict) else None
        ups = [
            ping.get("ping") == "UP" or ping.get("responding") is True for ping in pings or () if isinstance(ping, dict)
        ]
        return status < 300 and any(ups)

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        status, answer = self._rest.ask("POST", path, body)
        _check(status, answer)


def _check(status: int, answer: Any) -> None:
    """Raise what an answer tells: Slurm is gone, or it said no."""
    errors = answer.get("errors") if isinstance(answer, dict) else None
    if not errors and status < 300:
        return
    found = errors[0] if isinstance(errors, list) and errors else None
    first: Mapping[str, Any] = found if isinstance(found, dict) else {}
    words = [str(first[key]) for key in ("error", "description") if first.get(key)]
    if status < 500 and not first.get("error_number") and any(ARRAY_UPDATE in word for word in words):
        return
    said = ": ".join(words) or f"slurmrestd answers {status}"
    raise BackendError(f"{said}.") if CONTROLLER_GONE.search(said) else RefusedError(said)


def _moment(place: Place) -> str:
    """From when on a job may start, in Slurm's words."""
    return f"now+{place.delay_s}" if place.delay_s else "now"


def _with_prefix(gres: str) -> str:
    """gres/gpu:2 for gpu:2, as newer versions want it."""
    return ",".join(f"gres/{part}" for part in gres.split(",") if part)


# ---- the command line --------------------------------------------------------------------------------------------


@final
class CommandWay:
    """With Slurm's commands: what slurmrestd cannot do, and all of it where there is none."""

    def __init__(self, commands: Commands) -> None:
        """Nothing is said yet."""
        self._commands = commands

    def place(self, place: Place) -> None:
        """Pin a job to nodes, then let it go. Between the two it is held as before."""
        words = [f"Comment={place.comment}"]
        if place.nodes is not None:
            words.append(f"ReqNodeList={','.join(place.nodes)}")
        if place.gres is not None:
            words.append(f"Gres={place.gres}")
        if place.begin_s is not None:
            words.append(f"StartTime={_moment(place)}")
        self._run(["scontrol", "update", f"JobId={place.job}", *words])
        self._run(["scontrol", "release", place.job])

    def withdraw(self, job: str, marked: str, comment: str) -> None:
        """Hold a job that was let go and has not begun, then unpin it. `marked` says first whose the hold is: whoever
        dies in between leaves a job that is held for us, and not one that its user seems to hold.

        slurmrestd has no word for this: its hold is an administrator's, which is not ours to end.
        """
        self.note(job, marked)
        self._run(["scontrol", "uhold", job])
        self._run(["scontrol", "update", f"JobId={job}", "ReqNodeList=", f"Comment={comment}"])

    def note(self, job: str, comment: str) -> None:
        """Write the comment of a job."""
        self._run(["scontrol", "update", f"JobId={job}", f"Comment={comment}"])

    def note_as_admin(self, job: str, comment: str) -> None:
        """Write the admin comment of a job, which only operators of Slurm can write."""
        self._run(["scontrol", "update", f"JobId={job}", f"AdminComment={comment}"])

    def clear_gpus(self, job: str, comment: str, admin_comment: str) -> None:
        """Take away what GPUs a held job asks for, and note in its admin comment how many they were.

        Slurm does not let a request without a type become one with types otherwise.
        """
        words = ["TresPerNode=", f"Comment={comment}", f"AdminComment={admin_comment}"]
        self._run(["scontrol", "update", f"JobId={job}", *words])

    def put_back(self, job: str, comment: str, admin_comment: str) -> None:
        """End a running job so that it waits, held. The comment says first for whom."""
        self._run(["scontrol", "update", f"JobId={job}", f"Comment={comment}", f"AdminComment={admin_comment}"])
        self._run(["scontrol", "requeuehold", job])

    def cancel(self, job: str) -> None:
        """End a job for good."""
        self._run(["scancel", job])

    def submit(self, script: str, job: Mapping[str, Any], name: str) -> str:
        """Hand a script in, held. With an account sbatch itself runs as that user: what Slurm checks of a login, it
        checks of the job, and the job gets the user's uid, gid and groups. `sbatch --uid` would keep root's group.
        """
        command = [
            "sbatch",
            "--parsable",
            "--hold",
            "--requeue",
            "--export=NIL",
            f"--job-name={name}",
            f"--comment={job['comment']}",
            f"--chdir={job['directory']}",
        ]
        if job["account"]:
            command.append("--propagate=NONE")  # the limits of this process are not the user's
        if job["partition"]:
            command.append(f"--partition={job['partition']}")
        if job["gpus"]:
            command.append(f"--gpus={job['gpus']}" if job["spreads"] else f"--gres=gpu:{job['gpus']}")
        if job["cpus"] and job["spreads"]:
            command.append(f"--cpus-per-gpu={-(-job['cpus'] // max(job['gpus'], 1))}")
        elif job["cpus"]:
            command.append(f"--cpus-per-task={job['cpus']}")
        if job["memory_mib"] and not job["spreads"]:
            command.append(f"--mem={job['memory_mib']}M")
        if job["minutes"]:
            command.append(f"--time={job['minutes']}")
        said = self._run(command, script, job["account"]).strip().splitlines()
        found = said[-1].partition(";")[0] if said else ""
        if not re.fullmatch(r"[0-9]{1,10}", found):
            raise BackendError("sbatch took a job and told no id for it.")
        return found

    def administrator(self) -> int:
        """The uid of SlurmUser, who may do everything in Slurm."""
        found = re.search(r"^SlurmUser\s*=\s*\S*\(([0-9]+)\)\s*$", self._run(["scontrol", "show", "config"]), re.M)
        if found is None:
            raise BackendError("'scontrol show config' does not tell SlurmUser.")
        return int(found[1])

    def is_up(self) -> bool:
        """Whether the controller answers."""
        return "is UP" in self._commands.run(["scontrol", "ping"]).out

    def _run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> str:
        ran = self._commands.run(command, stdin, account)
        if ran.code != 0:
            said = ran.said
            raise BackendError(f"{command[0]}: {said}.") if CONTROLLER_GONE.search(said) else RefusedError(said)
        return ran.out


# ---- the back end ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handing:
    """How jobs of the API are handed in."""

    as_whom: str = "nobody"
    """nobody: they are not, users call sbatch; self: as the daemon's account; user: as their user (needs root)."""
    partition: str = ""
    directory: str = "/tmp"
    min_uid: int = 0
    """The lowest uid that jobs may run as; 0 is UID_MIN of /etc/login.defs."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A job, or tasks of an array that wait together, and whether Slurm has it again."""

    job: str
    done: bool
    said: str = ""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A job that Slurm lets nobody update: what Slurm said, how often, and until when it is not asked again."""

    said: str
    times: int
    until: float


@final
class Slurm:
    """A Slurm cluster as a back end: the reader reads, the first way that answers carries out."""

    name: Final = "slurm"

    def __init__(
        self,
        reader: Reader,
        rest: Rest | None = None,
        commands: Commands | None = None,
        handing: Handing = Handing(),  # noqa: B008  (frozen)
        largest_node: Callable[[Snapshot], int] | None = None,
    ) -> None:
        """At least one of `rest` and `commands`."""
        self._reader, self._rest, self._handing = reader, rest, handing
        self._commands = None if commands is None else CommandWay(commands)
        self._largest = largest_node or most_on_a_node
        self._done: dict[str, str] = {}  # orders since the last reading
        self._snapshot: Snapshot | None = None
        self._slurm_user: int | None = None  # asked for once
        self._barred: dict[int, float] = {}  # uids whose sbatch did not end, and until when they wait
        self._stuck: dict[str, Stuck] = {}  # jobs that Slurm lets nobody update

    @property
    def can_annotate(self) -> bool:
        """The line stands in the comment, which squeue shows."""
        return True

    @property
    def can_stop(self) -> bool:
        """Putting a job back needs the command line: slurmrestd has no word for it."""
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
        """Carry out orders, each as far as Slurm lets us."""
        return [self._carry_out(order) for order in orders]

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Hand jobs to Slurm for good: unpinned, not held, with the reason in their comment."""
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
                given[told.together] = self._given_back(told, _freed(told, now_s, line), order)
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

    def _note(self, told: Told, comment: str) -> None:
        """Write the comment of a job."""
        self._tell(lambda way: way.note(told.live.id, comment), told.is_task)

    def _given_back(self, told: Told, place: Place, ways: Sequence[Way]) -> GivenBack:
        """Give a job back to Slurm."""
        try:
            with self._updating(told):
                given = _give_back(place, ways)
                if NO_UPDATE in given.said:
                    raise RefusedError(given.said)
                return given
        except RefusedError as no:
            return GivenBack(place.job, False, str(no))

    @contextmanager
    def _updating(self, told: Told) -> Iterator[None]:
        """Around every update of a job. A job that Slurm lets nobody update is left alone for a while."""
        name, now = told.together, time.monotonic()
        stuck = self._stuck.get(name)
        if stuck is not None and now < stuck.until:
            raise RefusedError(stuck.said)
        try:
            yield
        except RefusedError as no:
            if NO_UPDATE in str(no):
                times = stuck.times + 1 if stuck else 1
                wait_s = min(NO_UPDATE_S * 2 ** (times - 1), LONGEST_NO_UPDATE_S)
                self._stuck[name] = Stuck(str(no), times, time.monotonic() + wait_s)
            raise
        self._stuck.pop(name, None)

    def submit(self, submission: Submission) -> str:
        """Hand a job in, held for us; its id."""
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
        """The script of a job, what it asks for, its name, and the token by which it is found again."""
        job = submission.job
        if self._handing.as_whom == "nobody":
            raise BackendError(
                "this daemon hands no jobs in to Slurm: use sbatch, or set submit_as of [slurm] to 'self' or 'user'."
            )
        account = self._account_of(job.user)
        if not submission.command:
            raise BackendError("a job for Slurm needs a command.")
        if job.share != WHOLE_GPU:
            raise BackendError("Slurm gives out whole GPUs only; ask for one.")
        token = secrets.token_hex(8)
        snapshot = self._snapshot or self.read()
        wish = {
            "comment": " ".join(_words_of(job, token, self._handing.as_whom)),
            "directory": submission.directory or (account.home if account else self._handing.directory),
            "partition": self._handing.partition,
            "gpus": job.gpus,
            "spreads": job.gpus > self._largest(snapshot),
            "cpus": -int(-job.cpus // 1),
            "memory_mib": int(job.memory_gb * 1e9 / 1024**2),
            "minutes": -int(-(job.limit_s or 0.0) // 60),
            "account": account,
        }
        name = "".join(sign for sign in job.name if sign.isprintable())[:LONGEST_NAME] or "adlro"
        # sbatch runs with a umask that keeps the output file private; files that the job makes are as usual.
        script = script_of(submission, ("umask 022",) if account else ())
        return script, wish, name, token

    def _account_of(self, user: str) -> Account | None:
        """The account that a job of this user runs as; None: the daemon's own. Raises AccountError."""
        if self._handing.as_whom != "user":
            checked_name(user or "adlro")
            return None
        account = account_of(user, self._handing.min_uid)
        if self._commands is None:  # slurmrestd runs jobs as the owner of our token
            raise AccountError("a job can be submitted as its user with Slurm's commands only, and they are off.")
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
        """Let the connection go; jobs go on."""
        if self._rest is not None:
            self._rest.close()

    # ---- orders ------------------------------------------------------------------------------------------------------

    def _carry_out(self, order: Order) -> Answer:
        told = self._reader.told(order.job)
        if told is None:
            return Answer(order.job, False, "Slurm does not know this job")
        try:
            with self._updating(told):
                said = self._start(told, order) if order.is_start else self._stop(told, order)
        except NotNowError as no:
            return Answer(order.job, False, str(no))
        except RefusedError as no:
            return Answer(order.job, False, f"Slurm says: {no}", is_final=order.is_start)
        self._done[order.job] = order.decision
        return Answer(order.job, True, said)

    def _start(self, told: Told, order: Order) -> str:
        """Place a job and let it go; one that was let go already is left alone."""
        live = told.live
        earlier = self._done.get(order.job)
        if earlier == order.decision or (live.decision == order.decision and live.state is not JobState.WAITING):
            return "it is there already"
        if earlier is not None:
            raise NotNowError("it was placed by another decision in this turn")
        if live.state is not JobState.WAITING or not live.managed:
            raise NotNowError(f"it is {live.state}" if live.managed else "it is not ours to place")
        if sum(part.count for part in order.parts) != live.job.gpus:
            raise NotNowError(f"it asks for {live.job.gpus} GPUs, and the order has others")
        gres, words, said = self._request(told, order.parts)
        words |= {"decision": order.decision, "held": "", "restarts": str(told.restarts)}
        words |= {"submit": f"{live.job.submit_s:.0f}"}
        nodes = tuple(dict.fromkeys(part.node for part in order.parts))
        now_s = self._snapshot.time_s if self._snapshot else 0.0
        words |= {"placed": f"{now_s:.0f}"}
        delay_s = max(0, math.ceil(told.requeued_s + REQUEUED_S - now_s))
        begin_s = now_s + delay_s if told.restarts else None
        place = Place(live.id, nodes, told.comment(**words), gres, begin_s, delay_s)
        self._tell(lambda way: way.place(place), told.is_task)
        return said

    def _request(self, told: Told, parts: Sequence[Part]) -> tuple[str | None, dict[str, str], str]:
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
            proof = told.admin_comment(gpus=words["gpus"])
            self._say(lambda _: commands.clear_gpus(told.live.id, told.comment(gpus=words["gpus"]), proof), commands)
        return wanted, words, ""

    def _wanted(self, told: Told, parts: Sequence[Part]) -> str | None:
        """What to ask for on each node, in Slurm's words; None: what it asks for fits."""
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
            raise NotNowError("it asks for the same number of GPUs on each node, and the order has others")
        asked_each = f"gpu:{first.count}"
        return None if told.asked.rpartition(":")[2] == str(first.count) else asked_each

    def _stop(self, told: Told, order: Order) -> str:
        """Put a job back so that it waits again."""
        commands = self._commands
        if commands is None:
            raise NotNowError("putting a job back needs the command line, which was not given")
        marked, held = told.comment(held="yes"), told.comment(decision="", placed="", held="yes")
        if told.is_pending and not told.is_held:  # let go to a place, and it has not begun
            self._say(lambda _: commands.withdraw(told.live.id, marked, held), commands)
            return ""
        if told.live.state is JobState.WAITING:
            return "it waits already"
        if told.live.state is not JobState.RUNNING or not told.live.managed:
            raise NotNowError(f"it is {told.live.state}" if told.live.managed else "it is not ours to stop")
        if not told.may_requeue:
            raise NotNowError("it was handed in with --no-requeue")
        again = told.comment(held="yes")
        proof = told.admin_comment(submit=f"{told.live.job.submit_s:.0f}")
        self._say(lambda _: commands.put_back(told.live.id, again, proof), commands)
        return ""

    def _tell(self, say: Callable[[Way], None], is_task: bool = False) -> None:
        """Tell Slurm over the first way that answers. slurmrestd of 22.05 cannot tell how an update of a task went."""
        ways = self._ways()
        gone: BackendError | None = None
        for way in reversed(ways) if is_task else ways:
            try:
                return self._say(say, way)
            except BackendError as error:
                gone = gone or error
        raise gone or BackendError("there is no way to tell Slurm anything: neither slurmrestd nor its commands.")

    def _say(self, say: Callable[[Way], None], way: Way) -> None:
        """Say it over one way; a refusal that tells nothing may mean that there is nobody to refuse."""
        try:
            say(way)
        except RefusedError as no:
            if SAYS_NOTHING in str(no) and not way.is_up():
                raise BackendError("the slurm controller does not answer: is slurmctld running?") from None
            raise

    def _ways(self) -> list[Way]:
        rest: list[Way] = [] if self._rest is None else [RestWay(self._rest)]
        return rest + ([] if self._commands is None else [self._commands])

    def _hand_in(self, script: str, wish: Mapping[str, Any], name: str, token: str) -> str:
        """Hand in once. If the answer got lost, look whether the job is there before anybody tries again."""
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
        raise BackendError("there is no way to tell Slurm anything: neither slurmrestd nor its commands.")

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
        raise BackendError(f"{error} The job is not in the queue: hand it in again.")


def most_on_a_node(snapshot: Snapshot) -> int:
    """The most GPUs of one model on one node."""
    return max((gpus.count for node in snapshot.cluster.nodes for gpus in node.gpus), default=0)


def script_of(submission: Submission, first: Sequence[str] = ()) -> str:
    """The script of a job: its words are quoted, so that each is what it was. `first` are lines before its own."""
    names = [name for name in submission.environment if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
    if odd := set(submission.environment) - set(names):
        raise BackendError(f"'{sorted(odd)[0]}' is no name of a variable.")
    if any("\0" in word for word in (*submission.command, *submission.environment.values())):
        raise BackendError("a command cannot have a zero byte in it.")
    exports = {"PATH": PATH, **submission.environment}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    return "\n".join(["#!/bin/sh", *first, *lines, f"exec {shlex.join(submission.command)}", ""])


def _words_of(job: Job, token: str, as_whom: str) -> Iterator[str]:
    """What Slurm has no field for, as words of its comment."""
    yield "adlro:held"
    yield f"adlro:token={token}"
    if job.family:
        yield f"adlro:family={job.family}"
    if job.estimate:
        yield f"adlro:estimate={job.estimate:.6g}"
    if job.priority != DEFAULT_PRIORITY and as_whom == "self":
        yield f"adlro:priority={job.priority:g}"
    for each in IN_COMMENT:
        if (amount := getattr(job, each.name)) != each.default:
            yield f"adlro:{each.word}={amount:g}"
    if job.models:
        yield f"adlro:models={'+'.join(sorted(job.models))}"
    if job.user and as_whom == "self":
        yield f"adlro:user={''.join(sign for sign in job.user if sign.isalnum() or sign in '._-@')[:64]}"


# ---- the watchdog ------------------------------------------------------------------------------------------------


def release_all(reader: Reader, ways: Sequence[Way], now_s: float) -> list[GivenBack]:
    """Give every job that waits because of us back to Slurm: no pins, not held. Doing it twice does no harm.

    What runs goes on. A job without its GPUs (a turn was cut short there) gets its request back first.
    """
    reader.read()
    given: dict[str, GivenBack] = {}
    for told in reader.all_told():
        name = told.together
        if name in given or not told.is_ours_to_give_back:
            continue
        given[name] = _give_back(_freed(told, now_s), ways)
    return list(given.values())


def _freed(told: Told, now_s: float, line: str = "") -> Place:
    """What gives a job back to Slurm: no pin, no hold, and our words gone but for the moment."""
    gpus = told.words.get("gpus", "0")
    lacks = not told.asked and not told.is_per_job and gpus != "0"
    gone = dict.fromkeys(("decision", "held", "restarts", "submit", "gpus", "placed"), "")
    comment = told.comment(line, **gone, released=f"{now_s:.0f}")
    nodes = () if told.is_pinned else None  # scontrol takes no empty list for tasks that wait together
    return Place(told.together, nodes, comment, f"gpu:{gpus}" if lacks else None, now_s if told.restarts else None)


def _give_back(place: Place, ways: Sequence[Way]) -> GivenBack:
    said = "there is no way to tell Slurm"
    for way in ways:
        try:
            way.place(place)
        except (RefusedError, BackendError) as error:
            said = str(error)
        else:
            return GivenBack(place.job, True)
    return GivenBack(place.job, False, said)
