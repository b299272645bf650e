"""Jobs as processes of this machine: each under a runner (runner.py) that outlives the daemon, all written in a spool.

The spool is the truth. `SPOOL/jobs/ID/job.json` is a job; `run-N/` beside it is its N-th start: `order.json` before
anything happens, then what the runner writes. Who holds the lock of a run is alive, so a crash at any point leaves one
of two things: a start that never began, or one whose end can be found.

Over 500 lines: one class over one spool. Files and processes are in spool.py, the machine in machine.py.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from adlro.backends.local.spool import (
    MARK,
    end_of_file,
    ending_in_words,
    enter_folder,
    from_json,
    is_locked,
    is_taken,
    leftovers,
    numbers_by_vendor,
    passed_on,
    read_spool_file,
    submission_json,
    write_record,
    wrong_with_command,
)
from adlro.core.accounts import Account, Owners
from adlro.core.errors import AccountError, BackendError, ConfigError
from adlro.core.jobs import check_job
from adlro.core.occupancy import Occupancy, is_at
from adlro.core.ports import (
    ENDED,
    NOT_RESTARTABLE,
    Answer,
    JobState,
    LiveJob,
    Order,
    Output,
    Part,
    Snapshot,
    Submission,
    nobody_to_give_to,
)
from adlro.core.records import WHOLE_GPU, Cluster, Job
from adlro.core.sizes import as_it_runs, as_ordered

RUNNER: Final = Path(__file__).with_name("runner.py")
LOCK_FD: Final = 3
"""The file descriptor of the runner's lock."""

GIB: Final = 1 << 30
MOST_LOST: Final = 3
"""A job whose runner was lost this many times is not started again."""

_READS_OF_AN_END: Final = 2
DYING_S: Final = 0.5
"""A killed daemon may hold its locks for a moment, in a process that is just becoming a runner."""

OWN_FOLDER: Final = 0o700
OPEN_FOLDER: Final = 0o711
"""A folder that users may pass through to a file of their own, and not list. Our files in it are for us only."""


class _Entry:
    """One job of the spool, as it was last seen."""

    __slots__ = (
        "begun", "cancelled", "counted", "decision", "end_reads", "ended", "exit_code", "holds", "id", "is_open", "job",
        "live", "lost", "parts", "reason", "run", "signal", "started", "state", "stopping", "submission",
    )  # fmt: skip

    def __init__(self, id: str, job: Job, submission: Submission) -> None:
        self.id, self.job, self.submission = id, job, submission
        self.state = JobState.WAITING
        self.run = self.begun = self.lost = 0  # numbers of starts that were ordered, began, and were lost
        self.counted = 0  # the latest of those that began
        self.is_open = self.holds = False  # whether the end of the latest start is not read yet, and it holds its GPUs
        self.parts: tuple[Part, ...] = ()
        self.started: float | None = None
        self.ended: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.reason = self.decision = ""
        self.stopping = self.cancelled = False
        self.end_reads = 0
        self.live: LiveJob | None = None  # as it was last shown


class Local:
    """A back end (ports.Backend) of one machine, the only node of `cluster`. May be called from any thread.

    `spool` is a folder on a disk of this machine; one daemon at a time may use it. `driver_numbers` says by which
    number its driver knows each GPU of the node, where that is not its place among the GPUs of its vendor.
    With `has_gpus` false the GPUs are stand-ins. `owners` says whose jobs are taken, and whether each runs as the
    account of its user (this process must be root then); without it all run as the account of this process.
    Times are read off the monotonic clock and shown as seconds since 1970, so that a clock that is set forwards or back
    makes no job longer or shorter.
    """

    def __init__(
        self,
        cluster: Cluster,
        spool: Path | str,
        *,
        driver_numbers: Sequence[int] = (),
        has_gpus: bool = False,
        grace_s: float = 10.0,
        owners: Owners | None = None,
        most_output: int = 16 << 20,
        keep_ended_s: float = 3600.0,
        keep_files_s: float = 7 * 86400.0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        python: str = sys.executable,
    ) -> None:
        if len(cluster.nodes) != 1:
            raise BackendError(
                f"the cluster {cluster.name!r} has {len(cluster.nodes)} nodes; the local back end is this machine "
                "alone. Name a cluster file with one node, or declare GPUs as in --gpus v100:4."
            )
        self.cluster = cluster
        self.spool = Path(spool).absolute()
        self._node = cluster.nodes[0]
        self._has_gpus, self._grace_s, self._most_output = has_gpus, grace_s, most_output
        self._keep_ended_s, self._keep_files_s, self._python = keep_ended_s, keep_files_s, python
        self._owners = owners
        self._mode = OPEN_FOLDER if owners and owners.are_accounts else OWN_FOLDER
        self._numbers = tuple(driver_numbers) or numbers_by_vendor(cluster)
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        self._lock = threading.RLock()
        self._occupancy = Occupancy(cluster)
        self._entries: dict[str, _Entry] = {}
        self._runners: set[int] = set()
        self._reads = 0
        self._swept = monotonic()
        self._spool_lock = self._open()
        try:
            with self._told("read"):
                self._load()
        except BaseException:
            self.close()
            raise

    # ---- what the daemon asks of it ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the back end."""
        return "local"

    @property
    def can_annotate(self) -> bool:
        """False: users see their jobs only on our own pages."""
        return False

    @property
    def can_stop(self) -> bool:
        """Whether orders to stop a job are carried out."""
        return True

    @property
    def places_gpus(self) -> bool:
        """True: a job sees the GPUs of its order only."""
        return True

    @property
    def can_resize(self) -> bool:
        """Whether jobs can start with another number of GPUs."""
        return True

    def read(self) -> Snapshot:
        """The machine now. Raises BackendError when the spool cannot be read."""
        with self._lock, self._told("read"):
            self._reap()
            if not self._jobs.is_dir():
                raise FileNotFoundError(2, "the folder is gone", str(self._jobs))
            for entry in self._entries.values():
                self._look(entry)
            self._reads += 1
            jobs = tuple(map(self._record, self._entries.values()))
            self._forget()
            return Snapshot(self._now(), self.cluster, jobs, {})

    def has_changed(self) -> bool:
        """Whether a start has begun or ended since it was last shown. Raises BackendError like `read`."""
        with self._lock, self._told("read"):
            return any(self._has_news(entry) for entry in self._entries.values() if entry.is_open)

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out orders; returns an answer for each. A job that is told to stop runs until it has ended."""
        with self._lock, self._told("written"):
            return [self._start(order) if order.is_start else self._stop(order) for order in orders]

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Nothing to do: there is no other scheduler."""
        return nobody_to_give_to(reasons)

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Nothing to do: users see their jobs only on our own pages."""

    def submit(self, submission: Submission) -> str:
        """Write a job into the spool, where it waits; returns its id."""
        with self._lock, self._told("written"):
            job = replace(submission.job, submit_s=self._now())
            check_job(job)
            if wrong := wrong_with_command(submission):
                raise ConfigError(f"job {job.name!r} of user {job.user!r}: {wrong}. Correct it.")
            self._account_of(job.user)
            id = self._new_folder()
            record = submission_json(submission) | self._stamp()
            write_record(self._jobs / id / "job.json", record)
            self._entries[id] = _Entry(id, job, submission)
            return id

    def cancel(self, job: str) -> None:
        """End a job for good, whether it waits or runs. A job that has ended stays as it is."""
        with self._lock, self._told("written"):
            entry = self._entries.get(job)
            if entry is None:
                raise BackendError(f"there is no job {job!r} in the spool {self.spool}.")
            self._look(entry)
            if entry.state in ENDED:
                return
            write_record(self._jobs / job / "cancel.json", self._stamp())
            entry.cancelled = True
            self._look(entry)

    def close(self) -> None:
        """Close the spool. Running jobs continue."""
        with self._lock:
            self._reap()
            if self._spool_lock >= 0:
                os.close(self._spool_lock)
                self._spool_lock = -1

    @property
    def now_s(self) -> float:
        """The time now, by the clock of the snapshots, to tell how old a snapshot is."""
        return self._now()

    def output(self, job: str) -> Output | None:
        """The end of what the latest start of a job wrote; None if there is none, or a file is not what it should be.

        The job may have written into these folders itself, so nothing in them is followed: no link, no second name of
        a file elsewhere, no pipe.
        """
        if not (job.isascii() and job.isdigit()):
            return None
        try:
            record = read_spool_file(self._jobs / job / "job.json")
            with contextlib.ExitStack() as stack:
                folder = enter_folder(stack, self._jobs / job)
                runs = [int(name[4:]) for name in os.listdir(folder) if name[:4] == "run-" and name[4:].isdigit()]
                if record is None or not runs:
                    return None
                run = enter_folder(stack, f"run-{max(runs)}", folder)
                (out, out_bytes), (err, err_bytes) = (end_of_file(name, run) for name in ("out", "err"))
                return Output(job, str(record["job"]["user"]), out, err, out_bytes, err_bytes)
        except (OSError, KeyError, TypeError, BackendError):
            return None

    # ---- the spool ---------------------------------------------------------------------------------------------

    @property
    def _jobs(self) -> Path:
        return self.spool / "jobs"

    def _folder(self, entry: _Entry) -> Path:
        return self._jobs / entry.id / f"run-{entry.run}"

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn errors of the disk into one clear line."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.spool
            raise BackendError(f"the spool cannot be {what}: {where}: {error.strerror or error}.") from None

    def _open(self) -> int:
        """Make the spool if there is none, and keep other daemons out of it."""
        with self._told("opened"):
            for folder in (self.spool, self._jobs):
                self._open_folder(folder)
            file = os.open(self.spool / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            until = time.monotonic() + DYING_S
            while is_taken(file):
                if time.monotonic() >= until:
                    os.close(file)
                    raise BackendError(f"another daemon uses the spool {self.spool}. Stop it, or name another folder.")
                time.sleep(0.02)
        return file

    def _load(self) -> None:
        """Find the jobs again, and what became of them."""
        for id in sorted((each.name for each in self._jobs.iterdir() if each.name.isdigit()), key=int):
            record = read_spool_file(self._jobs / id / "job.json")
            if record is None:
                continue  # the daemon died before it was written: nobody knows this job
            try:
                submission = from_json(record)
            except (KeyError, TypeError, ValueError) as error:
                raise BackendError(
                    f"{self._jobs / id / 'job.json'}: this is not a job ({error}). Move the folder away, and end "
                    "its processes if there are any."
                ) from None
            job = replace(submission.job, submit_s=self._time_of(record))
            entry = _Entry(id, job, submission)
            entry.cancelled = (self._jobs / id / "cancel.json").exists()
            runs = sorted(int(each.name.removeprefix("run-")) for each in (self._jobs / id).glob("run-*"))
            for entry.run in runs:
                if (self._folder(entry) / "child.json").exists():
                    entry.begun, entry.counted = entry.begun + 1, entry.run
                if entry.run < runs[-1]:
                    entry.lost += (read_spool_file(self._folder(entry) / "end.json") or {}).get("why") == "lost"
            self._entries[id] = entry
            if runs:
                self._recall(entry)
            self._look(entry)

    def _recall(self, entry: _Entry) -> None:
        """The place of the latest start; it holds that place if it may still run."""
        folder = self._folder(entry)
        order = read_spool_file(folder / "order.json")
        if order is None:
            return  # the daemon died before it was written: that start never happened
        entry.parts = tuple(Part(p["node"], p["model"], p["count"], tuple(p["indices"])) for p in order["parts"])
        entry.decision, entry.is_open, entry.state = order["decision"], True, JobState.PLACED
        if read_spool_file(folder / "end.json") is None:
            try:
                self._occupancy.take(entry.id, as_it_runs(entry.job, entry.parts), entry.parts)
            except KeyError:
                raise BackendError(
                    f"job {entry.id} runs at {entry.parts}, which {self.cluster.name!r} does not have. Start with "
                    "the GPUs that were declared before, or end that job first."
                ) from None
            entry.holds = True

    def _new_folder(self) -> str:
        """A folder with a number that no job has had."""
        file = self.spool / "next.json"
        known = [int(each.name) for each in self._jobs.iterdir() if each.name.isdigit()]
        number = max([(read_spool_file(file) or {}).get("number", 1), *(each + 1 for each in known)])
        write_record(file, {"number": number + 1})
        self._make_folder(self._jobs / str(number))
        return str(number)

    def _open_folder(self, path: Path) -> None:
        """Make a folder of the spool, or use one that nobody else may change."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_folder(path)
        except FileExistsError:
            found = path.lstat() if self._mode == OPEN_FOLDER else path.stat()
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(path)) from None
            if self._mode == OPEN_FOLDER and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
                raise BackendError(
                    f"others may change {path}, and jobs run as their users. Name a folder in [local] that belongs to "
                    "the daemon's account, and that nobody else may write to."
                ) from None

    def _make_folder(self, path: Path) -> None:
        """Make a folder of ours, whatever the umask is."""
        path.mkdir(mode=OWN_FOLDER)
        if self._mode != OWN_FOLDER:
            path.chmod(self._mode)

    def _account_of(self, user: str) -> Account | None:
        """The account that a job of this user runs as; None means that of this process. Raises AccountError."""
        return self._owners.account(user) if self._owners else None

    def _forget(self) -> None:
        """Stop showing jobs that ended long ago and were shown; delete their files after days."""
        now = self._now()
        for entry in list(self._entries.values()):
            if entry.ended is not None and now - entry.ended > self._keep_ended_s:
                entry.end_reads += 1
                if entry.end_reads >= _READS_OF_AN_END:
                    del self._entries[entry.id]
        if self._monotonic() - self._swept < min(3600.0, self._keep_files_s):
            return
        self._swept = self._monotonic()
        for folder in self._jobs.iterdir():
            if folder.name not in self._entries and time.time() - folder.stat().st_mtime > self._keep_files_s:
                shutil.rmtree(folder, ignore_errors=True)

    # ---- time --------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._monotonic() + self._offset

    def _stamp(self) -> dict[str, Any]:
        return {"wall": self._now(), "mono": self._monotonic(), "boot": self._boot}

    def _time_of(self, stamp: Mapping[str, Any]) -> float:
        """The time of a stamp: by the monotonic clock, unless the machine was restarted since."""
        return stamp["mono"] + self._offset if stamp["boot"] == self._boot else stamp["wall"]

    # ---- what became of a job ----------------------------------------------------------------------------------

    def _look(self, entry: _Entry) -> None:
        """Read what the spool says of a job."""
        if entry.state in ENDED:
            return
        if entry.is_open:
            folder = self._folder(entry)
            found = read_spool_file(folder / "end.json")
            if found is None and not is_locked(folder / "lock"):
                found = read_spool_file(folder / "end.json") or self._lost(entry, folder)
            if found is not None:
                self._settle(entry, found)
            else:
                self._look_at_run(entry, folder)
        if entry.cancelled and entry.state is JobState.WAITING:
            self._end(entry, JobState.CANCELLED, "cancelled", read_spool_file(self._jobs / entry.id / "cancel.json"))

    def _has_news(self, entry: _Entry) -> bool:
        """Whether the spool has news about a start."""
        folder = self._folder(entry)
        has_begun = entry.started is None and (folder / "child.json").exists()
        return has_begun or (folder / "end.json").exists() or not is_locked(folder / "lock")

    def _look_at_run(self, entry: _Entry, folder: Path) -> None:
        """A start that has not ended: it may not have begun yet, and it may be about to end."""
        entry.stopping = (folder / "stop").exists()
        if entry.cancelled and not entry.stopping:
            self._tell_to_stop(entry, "")
        self._look_at_child(entry, folder)
        entry.state = JobState.PLACED if entry.started is None else JobState.RUNNING
        entry.reason = "it is being ended" if entry.stopping else ""

    def _look_at_child(self, entry: _Entry, folder: Path) -> None:
        """Whether and when the latest start began."""
        if entry.started is None and (child := read_spool_file(folder / "child.json")) is not None:
            entry.started = self._time_of(child)
            if entry.counted < entry.run:
                entry.begun, entry.counted = entry.begun + 1, entry.run

    def _settle(self, entry: _Entry, end: Mapping[str, Any]) -> None:
        """Handle the end of a start: the job ends, or waits again."""
        self._look_at_child(entry, self._folder(entry))
        if entry.holds:
            self._occupancy.release(entry.id)
        entry.is_open = entry.holds = False
        why, said = end["why"], end.get("said", "")
        entry.stopping = False
        if why in ("not begun", "stopped", "lost"):
            entry.lost += why == "lost"
            if why == "lost" and entry.lost >= MOST_LOST and not entry.cancelled:
                self._end(entry, JobState.FAILED, f"lost {entry.lost} times: {said}", end)
            elif entry.cancelled and why != "not begun":
                self._end(entry, JobState.CANCELLED, "cancelled", end)
            else:
                entry.state, entry.parts, entry.started, entry.decision = JobState.WAITING, (), None, ""
                entry.reason = said or "its start did not begin"
            return
        entry.exit_code, entry.signal = end["exit_code"], end["signal"]
        went_well = entry.exit_code == 0 and not why
        state = JobState.FINISHED if went_well else JobState.FAILED
        self._end(entry, state, "; ".join(filter(None, ("" if went_well else ending_in_words(end), said))), end)

    def _end(self, entry: _Entry, state: JobState, reason: str, stamp: Mapping[str, Any] | None) -> None:
        entry.state, entry.reason = state, reason
        entry.ended = self._time_of(stamp) if stamp is not None and "mono" in stamp else self._now()

    def _lost(self, entry: _Entry, folder: Path) -> dict[str, Any] | None:
        """Handle a start without a runner that has not ended: end its processes, and record that."""
        child = read_spool_file(folder / "child.json")
        order = read_spool_file(folder / "order.json")
        if child is None or order is None:
            end: dict[str, Any] = {"why": "not begun", "said": "its start did not begin"}
        else:
            left = leftovers(child, order["mark"]) if child["boot"] == self._boot else []
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if left:
                return None  # it counts as running until all of it is gone
            end = {"why": "lost", "said": "its runner was killed, or the machine went down"}
        end |= self._stamp()
        write_record(folder / "end.json", end)
        return end

    def _record(self, entry: _Entry) -> LiveJob:
        """The job as it is shown; the same record as before if nothing changed."""
        live = LiveJob(
            entry.id,
            entry.job,
            entry.state,
            entry.parts,
            entry.started,
            entry.ended,
            entry.begun,
            True,
            entry.exit_code,
            entry.signal,
            entry.reason,
            entry.decision,
            is_stopping=entry.stopping and not entry.cancelled,
        )
        if entry.live is None or entry.live != live:
            entry.live = live
        return entry.live

    # ---- orders ------------------------------------------------------------------------------------------------

    def _start(self, order: Order) -> Answer:
        """Start a job where the order says, if it waits and fits there."""
        entry = self._entries.get(order.job)
        if entry is None:
            return Answer(order.job, False, "there is no such job")
        self._look(entry)
        if entry.state in ENDED:
            was_this = bool(order.decision) and entry.decision == order.decision
            return Answer(order.job, was_this, f"it is {entry.state} already")
        if entry.stopping:
            return Answer(order.job, False, "it is being ended")
        if entry.state is not JobState.WAITING:
            return Answer(order.job, is_at(entry.parts, order.parts), f"it is {entry.state} already")
        job = as_ordered(entry.job, order.parts)
        if isinstance(job, str):
            return Answer(order.job, False, job)
        parts = self._occupancy.fit(job, order.parts)
        if isinstance(parts, str):
            return Answer(order.job, False, parts)
        try:
            account = self._account_of(entry.job.user)  # now: it may have been removed since the job was submitted
        except AccountError as error:
            return Answer(order.job, False, str(error))
        entry.run += 1
        try:
            self._launch(entry, order.decision, parts, account)
        except OSError as error:
            return Answer(order.job, False, f"cannot start it: {error.strerror or error}")
        entry.state, entry.parts, entry.decision = JobState.PLACED, parts, order.decision
        entry.reason, entry.started, entry.exit_code, entry.signal = "", None, None, None
        entry.is_open = entry.holds = True
        self._occupancy.take(entry.id, job, parts)
        return Answer(order.job, True)

    def _launch(self, entry: _Entry, decision: str, parts: tuple[Part, ...], account: Account | None) -> None:
        """Write the order, take the lock of the run, and give both to a runner."""
        folder = self._folder(entry)
        self._make_folder(folder)
        write_record(folder / "order.json", self._order(entry, folder, decision, parts, account))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # -I and -S: nothing of the user's reaches the runner but the folder that it is given.
            command = [self._python, "-I", "-S", str(RUNNER), str(folder)]
            files: list[tuple[Any, ...]] = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(folder / "runner.log"), os.O_WRONLY | os.O_CREAT, 0o600),
            ]
            if lock == LOCK_FD:
                os.set_inheritable(lock, True)
            else:
                files.append((os.POSIX_SPAWN_DUP2, lock, LOCK_FD))
            self._runners.add(os.posix_spawn(command[0], command, passed_on(), file_actions=files))
        finally:
            os.close(lock)

    def _order(
        self, entry: _Entry, folder: Path, decision: str, parts: tuple[Part, ...], account: Account | None
    ) -> dict[str, Any]:
        """All that the runner needs to know."""
        job, submission, mark = as_it_runs(entry.job, parts), entry.submission, secrets.token_hex(16)
        memory = round(job.memory_gb * GIB) if job.memory_gb else None
        environment = passed_on(account) | dict(submission.environment) | self._sight(job, parts)
        # Drivers reserve far more addresses than they use, so only jobs without one are held to a number of them.
        bounded = memory is not None and not (job.gpus and self._has_gpus)
        return {
            "decision": decision,
            "parts": [asdict(part) for part in parts],
            "command": list(submission.command),
            "directory": submission.directory or (account.home if account else str(folder)),
            "account": None if account is None else [account.uid, account.gid, list(account.groups)],
            "environment": environment | {"ADLRO_JOB": entry.id, MARK: mark},
            "mark": mark,
            "limit_s": job.limit_s,
            "memory": memory,
            "most_memory": 2 * memory + GIB if bounded and memory is not None else None,
            "grace_s": self._grace_s,
            "most_output": self._most_output,
        }

    def _sight(self, job: Job, parts: tuple[Part, ...]) -> dict[str, str]:
        """The environment variables that show a job its GPUs and hide the others."""
        indices = [index for part in parts for index in part.indices]
        if not indices:
            return {"CUDA_VISIBLE_DEVICES": "", "ADLRO_GPUS": "", "ADLRO_GPU_COUNT": "0", "ADLRO_GPU_MODEL": ""}
        model = self.cluster.models[parts[0].model]
        numbers = ",".join(str(self._numbers[index]) for index in indices)
        sight = {"ADLRO_GPUS": ",".join(map(str, indices)), "ADLRO_GPU_COUNT": str(len(indices))}
        sight["ADLRO_GPU_MODEL"] = model.name
        vendor = model.vendor.lower()
        if vendor == "nvidia":
            sight |= {"CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            if job.share < WHOLE_GPU:
                sight["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{max(1, job.share // 10)}"
        elif vendor == "amd":
            # Only this one: HIP counts anew what is left, and takes CUDA_VISIBLE_DEVICES for its own.
            sight["ROCR_VISIBLE_DEVICES"] = numbers
        elif vendor == "intel":
            sight["ZE_AFFINITY_MASK"] = numbers
        return sight

    def _stop(self, order: Order) -> Answer:
        """Tell a job that is restartable to end; it waits again once it has ended."""
        entry = self._entries.get(order.job)
        if entry is None:
            return Answer(order.job, False, "there is no such job")
        self._look(entry)
        if entry.state in ENDED:
            return Answer(order.job, False, f"it is {entry.state} already")
        if entry.state is JobState.WAITING:
            return Answer(order.job, True, "it waits already")
        if entry.state is JobState.RUNNING and not entry.job.restartable and not entry.stopping:
            return Answer(order.job, False, NOT_RESTARTABLE)
        if not entry.stopping:
            self._tell_to_stop(entry, order.decision)
        return Answer(order.job, True, "it is being ended", is_pending=True)

    def _tell_to_stop(self, entry: _Entry, decision: str) -> None:
        write_record(self._folder(entry) / "stop", {"decision": decision} | self._stamp())
        entry.stopping, entry.reason = True, "it is being ended"

    def _reap(self) -> None:
        """Collect runners that have ended."""
        for pid in list(self._runners):
            try:
                over = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                over = True
            if over:
                self._runners.discard(pid)
