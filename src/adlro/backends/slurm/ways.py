"""Two ways to tell Slurm something, slurmrestd and its commands, and what they need of the reader."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from adlro.core.accounts import Account
from adlro.core.errors import BackendError
from adlro.core.ports import LiveJob, Snapshot

NEW_API: Final = 39
"""From v0.0.39 on the nodes of a job are a list, and its GPUs have another key."""

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
CONTROLLER_GONE: Final = re.compile(
    r"contact slurm controller|Zero Bytes were transmitted|connect failure|Socket timed out|communication error"
    r"|Unspecified error",  # what slurmrestd of 22.05 says of it
    re.I,
)
ARRAY_UPDATE: Final = "job array update"
"""22.05's slurmrestd says that this failed when it has been done."""
WITHDRAWN_IN_S: Final = 10
"""A job that is held again may not begin for this time before the hold. The commands of a withdrawal take less."""


class RefusedError(Exception):
    """Slurm said no to an order; the text is what it said."""


class NotNowError(Exception):
    """An order that does not fit the job as it is now; Slurm was not asked."""


class KnownJob(Protocol):
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
    def stop(self) -> str:
        """When it is put back, if it was told to stop: a moment, or comments.ASKED; "" if it was not."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended in Slurm's eyes, although it was told to stop and waits again soon."""

    @property
    def restarts(self) -> int:
        """How often it began and was put back."""

    @property
    def requeued_s(self) -> float:
        """When it was last put back; 0 if it never was."""

    @property
    def begins_s(self) -> float:
        """It does not start before this time; 0 if no time is set."""

    @property
    def asked(self) -> str:
        """The GPUs asked for on each node, in Slurm's words."""

    @property
    def asked_for(self) -> str:
        """The GPUs, cores and memory that it was submitted with, as its word says them."""

    def size_words(self, gpus: int) -> tuple[str, ...]:
        """What scontrol is told so that its cores and memory belong to this many GPUs."""

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


class ClusterReader(Protocol):
    """What was last read of the cluster."""

    def read(self) -> Snapshot:
        """Read it now."""

    def has_changed(self) -> bool:
        """Whether it has changed since, asked cheaply."""

    def told(self, job: str) -> KnownJob | None:
        """A job as it was last read."""

    def all_told(self) -> Sequence[KnownJob]:
        """All of them."""

    def types(self, node: str, model: str) -> tuple[str, ...] | None:
        """Slurm's type for each device of a model on a node, if each has one of its own."""

    def type_of(self, node: str, model: str) -> str:
        """Slurm's type for a model on a node that has others too."""


class RestClient(Protocol):
    """A slurmrestd."""

    @property
    def api(self) -> int:
        """The N of the v0.0.N that is spoken."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, again: bool = True) -> tuple[int, Any]:
        """The status and the JSON of an answer. No answer is a BackendError."""

    def close(self) -> None:
        """Let the connection go."""


class CommandResult(Protocol):
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


class CommandRunner(Protocol):
    """Slurm's own commands."""

    def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> CommandResult:
        """Run one to its end: as this account, or as ourselves."""


@dataclass(frozen=True, slots=True)
class SlurmOrder:
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

    def place(self, place: SlurmOrder) -> None:
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

    def __init__(self, rest: RestClient) -> None:
        """Nothing is said yet."""
        self._rest = rest

    def place(self, place: SlurmOrder) -> None:
        """Pin a job to nodes and let it go, all or nothing."""
        new = self._rest.api >= NEW_API
        body: dict[str, Any] = {"hold": False, "comment": place.comment}
        if place.nodes is not None:
            body["required_nodes" if new else "nodelist"] = list(place.nodes) if new else ",".join(place.nodes)
        if place.gres is not None:
            body["tres_per_node" if new else "gres"] = _with_prefix(place.gres) if new else place.gres
        if place.begin_s is not None:
            body["begin_time"] = {"set": True, "number": int(place.begin_s)} if new else _moment(place.delay_s)
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
            raise BackendError("slurmrestd accepted a job, but its answer has no job id.")
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


def _moment(delay_s: int) -> str:
    """From when on a job may start, in Slurm's words."""
    return f"now+{delay_s}" if delay_s else "now"


def _with_prefix(gres: str) -> str:
    """gres/gpu:2 for gpu:2, as newer versions want it."""
    return ",".join(f"gres/{part}" for part in gres.split(",") if part)


# ---- the command line --------------------------------------------------------------------------------------------


@final
class CommandWay:
    """With Slurm's commands: what slurmrestd cannot do, and all of it where there is none."""

    def __init__(self, commands: CommandRunner) -> None:
        """Nothing is said yet."""
        self._commands = commands

    def place(self, place: SlurmOrder) -> None:
        """Pin a job to nodes, then let it go. Between the two it is held as before."""
        words = [f"Comment={place.comment}"]
        if place.nodes is not None:
            words.append(f"ReqNodeList={','.join(place.nodes)}")
        if place.gres is not None:
            words.append(f"Gres={place.gres}")
        if place.begin_s is not None:
            words.append(f"StartTime={_moment(place.delay_s)}")
        self._run(["scontrol", "update", f"JobId={place.job}", *words])
        self._run(["scontrol", "release", place.job])

    def withdraw(self, job: str, marked: str, comment: str, begins_in_s: int) -> None:
        """Hold a job that was let go and has not begun, then unpin it; refused if it has begun.

        Slurm also holds a job that has just begun, and then slurmdbd may never hear of that job. But it refuses another
        start time for such a job. So a later start time comes first, and the job cannot begin before the hold. It is
        only WITHDRAWN_IN_S later, because whoever dies here leaves a job that is let go. In the end the job gets back
        the start time that it had, in `begins_in_s` (0: it has passed); one that is later anyway is left alone.

        `marked` says before the hold whose it is: whoever dies after that leaves a job that is held for us, and not one
        that its user seems to hold.

        slurmrestd has no word for this: its hold is an administrator's, which is not ours to end.
        """
        may_begin = begins_in_s <= WITHDRAWN_IN_S
        if may_begin:
            self._run(["scontrol", "update", f"JobId={job}", f"StartTime={_moment(WITHDRAWN_IN_S)}"])
        self.note(job, marked)
        self._run(["scontrol", "uhold", job])
        begin = [f"StartTime={_moment(begins_in_s)}"] if may_begin else []
        self._run(["scontrol", "update", f"JobId={job}", "ReqNodeList=", *begin, f"Comment={comment}"])

    def note(self, job: str, comment: str) -> None:
        """Write the comment of a job."""
        self._run(["scontrol", "update", f"JobId={job}", f"Comment={comment}"])

    def note_both(self, job: str, comment: str, admin_comment: str) -> None:
        """Write both comments of a job."""
        self._run(["scontrol", "update", f"JobId={job}", f"Comment={comment}", f"AdminComment={admin_comment}"])

    def note_as_admin(self, job: str, comment: str) -> None:
        """Write the admin comment of a job, which only operators of Slurm can write."""
        self._run(["scontrol", "update", f"JobId={job}", f"AdminComment={comment}"])

    def clear_gpus(self, job: str, comment: str, admin_comment: str) -> None:
        """Take away what GPUs a held job asks for, and note in its admin comment how many they were.

        Slurm does not let a request without a type become one with types otherwise.
        """
        words = ["TresPerNode=", f"Comment={comment}", f"AdminComment={admin_comment}"]
        self._run(["scontrol", "update", f"JobId={job}", *words])

    def resize(self, job: str, admin_comment: str, words: Sequence[str]) -> None:
        """Let a held job ask for other cores and memory, and note in its admin comment what it asked for at first."""
        self._run(["scontrol", "update", f"JobId={job}", f"AdminComment={admin_comment}", *words])

    def put_back(self, job: str, comment: str = "", admin_comment: str = "") -> None:
        """End a running job so that it waits, held. The comment, unless it stays as it is, says first for whom."""
        if comment:
            self.note_both(job, comment, admin_comment)
        self._run(["scontrol", "requeuehold", job])

    def warn(self, job: str, signal: str, to_script: bool) -> None:
        """Send a running job a signal: to its batch script, or to its steps."""
        self._run(["scancel", f"--signal={signal}", *(["--batch"] if to_script else []), job])

    def script(self, job: str) -> str:
        """The batch script of a job; all tasks of an array have one."""
        return self._run(["scontrol", "write", "batch_script", job.partition("_")[0], "-"])

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
            raise BackendError("sbatch accepted a job, but printed no job id.")
        return found

    def administrator(self) -> int:
        """The uid of SlurmUser, who may do everything in Slurm."""
        found = re.search(r"^SlurmUser\s*=\s*\S*\(([0-9]+)\)\s*$", self._run(["scontrol", "show", "config"]), re.M)
        if found is None:
            raise BackendError("'scontrol show config' does not print SlurmUser.")
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
