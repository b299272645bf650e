"""Watches over one start of one job of the local back end, and outlives the daemon: run by backend.py, never imported.

It needs only the standard library, and is given one folder. There it finds `order.json` and writes, each whole or not
at all: `runner.json` (who it is), `child.json` (the job is about to begin), `end.json` (how it ended). It holds a lock
(file descriptor 3, taken by the daemon before this process was made) for as long as it lives. A file `stop` tells it to
end the job. The job begins only after `child.json` is on the disk, and is killed by the kernel if this process dies.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, Final

LOOK_EVERY_S: Final = 0.1
WEIGH_EVERY_S: Final = 0.5
LEFTOVERS_S: Final = 1.0
RETRY_S: Final = 1.0
_CHUNK: Final = 65536
_RESERVED: Final = 4096  # bytes kept for the end, so that a full disk cannot lose it

_PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127


class OutputStream:
    """One stream of the job on its way to a file: so many bytes of it, and never an error to the job."""

    def __init__(self, name: str, pipe: int, most: int, account: Any = None) -> None:
        self.name, self.pipe, self.most = name, pipe, most
        self.written = 0
        self.lost = 0
        self.why = ""
        self.file = -1
        try:
            if account is None:
                self.file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            else:  # a new file, which its user may read; only we may write into this folder
                self.file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                os.fchown(self.file, account[0], account[1])
        except OSError as error:
            self.why = error.strerror or "error"

    def copy(self) -> bool:
        """Take what is there; False when the job has closed its end."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self.keep(data)
        return True

    def keep(self, data: bytes) -> None:
        """Write what still may be written."""
        fits = data[: max(0, self.most - self.written)] if not self.why else b""
        try:
            while fits:
                count = os.write(self.file, fits)
                self.written += count
                data, fits = data[count:], fits[count:]
        except OSError as error:  # a full disk costs the output, not the job
            self.why = error.strerror or "error"
        self.lost += len(data)

    def said(self) -> str:
        """What is missing of it, in words."""
        if not self.lost and not self.why:
            return ""
        return f"{self.name}: {self.lost} bytes not kept" + (f" ({self.why})" if self.why else "")


def main() -> None:
    """Run the job of this folder."""
    os.chdir(sys.argv[1])
    with contextlib.suppress(OSError):
        os.setsid()
    os.umask(0o077)
    os.set_inheritable(3, False)
    told = {"stop": False}
    wake, waker = os.pipe()
    for pipe in (wake, waker):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.update(stop=True))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open("order.json", encoding="utf-8") as file:
        order = json.load(file)
    write("runner.json", {"pid": os.getpid(), "ticks": ticks_of(os.getpid()), "boot": boot()})
    _reserve()
    if os.path.exists("stop"):
        end({"why": "not begun", "said": "stopped before it began"})
        return
    _run(order, told, wake)


def _run(order: dict[str, Any], told: dict[str, bool], wake: int) -> None:
    """Begin the job, watch it, and write down how it ended."""
    go, begin = os.pipe()
    said, say = os.pipe()
    out, to_out = os.pipe()
    err, to_err = os.pipe()
    pid = os.fork()
    if pid == 0:
        become(order, go, begin, say, to_out, to_err)
    for each in (go, say, to_out, to_err):
        os.close(each)
    started = time.monotonic()
    try:
        write("child.json", {"pid": pid, "ticks": ticks_of(pid), "wall": time.time(), "mono": started, "boot": boot()})
    except OSError as error:
        os.close(begin)  # without a word to go, the child ends before it becomes the job
        os.waitpid(pid, 0)
        end({"why": "not begun", "said": f"its start could not be written down: {error.strerror}"})
        return
    with contextlib.suppress(BrokenPipeError):  # somebody may have killed it already
        os.write(begin, b"!")
    os.close(begin)
    failed = os.read(said, _CHUNK).decode(errors="replace")  # ends at once when the command is there
    most, account = order["most_output"], order.get("account")
    outputs = [OutputStream("out", out, most, account), OutputStream("err", err, most, account)]
    for pipe in (out, err):
        os.set_blocking(pipe, False)
    status, why, text = _watch(pid, order, told, wake, outputs)
    clear_away()
    drain(outputs)
    for output in outputs:
        if output.file >= 0:
            os.close(output.file)
    code = os.waitstatus_to_exitcode(status)
    notes = [note for note in (failed or text, *(output.said() for output in outputs)) if note]
    end(
        {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "wall": time.time(),
            "mono": time.monotonic(),
            "boot": boot(),
            "why": "command" if failed else why,
            "said": "; ".join(notes),
        }
    )


def become(order: dict[str, Any], go: int, begin: int, say: int, out: int, err: int) -> None:
    """In the child: become the job, once the word to go has come. Never returns."""
    code, what = CANNOT_RUN, "its process"
    try:
        os.close(begin)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if order["most_memory"] is not None:
            resource.setrlimit(resource.RLIMIT_AS, (order["most_memory"], order["most_memory"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("500")  # if memory runs out, the job goes before the daemon
        os.umask(0o022)
        if order.get("account") is not None:
            what = "its account"
            take_account((out, err), *order["account"])
            what = "its process"
        # After the change of account, which takes this away; before the word to go, which never comes from the dead.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.read(go, 1) != b"!":
            os._exit(CANNOT_RUN)
        what = order["directory"]
        os.chdir(what)
        what = order["command"][0]
        os.execvpe(what, order["command"], order["environment"])
    except BaseException as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
        said = error.strerror if isinstance(error, OSError) else str(error)
        with contextlib.suppress(OSError):
            os.write(say, f"cannot run it: {said}: {what!r}".encode())
    os._exit(code)


def take_account(streams: tuple[int, ...], uid: int, gid: int, groups: list[int]) -> None:
    """Become this user for good, with these groups only. Raises OSError unless all of it came about."""
    for stream in streams:
        os.fchown(stream, uid, gid)  # so that the job may open /dev/stdout
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    took = os.getresuid() == (uid,) * 3 and os.getresgid() == (gid,) * 3 and set(os.getgroups()) == set(groups)
    if not took or uid == 0:
        raise PermissionError(errno.EPERM, "it cannot run as its user")
    try:
        os.setresuid(0, 0, 0)
    except PermissionError:
        return
    raise PermissionError(errno.EPERM, "it could become root again")


def _watch(
    pid: int, order: dict[str, Any], told: dict[str, bool], wake: int, outputs: list[OutputStream]
) -> tuple[int, str, str]:
    """Wait for the end of the job, or bring it about; its status, and if we ended it, why: one word, and a sentence."""
    began = time.monotonic()
    weighed, ending, killed = began, 0.0, False
    why = text = ""
    open_pipes = {output.pipe: output for output in outputs}
    while True:
        ready, _, _ = select.select([wake, *open_pipes], [], [], LOOK_EVERY_S)
        for pipe in ready:
            if pipe == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, _CHUNK)
            elif not open_pipes[pipe].copy():
                del open_pipes[pipe]
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            send(pid, signal.SIGTERM)  # to those it leaves behind, while its number is still its own
            return os.waitpid(pid, 0)[1], why, text
        now = time.monotonic()
        if not why:
            why, text = wants_end(order, told, now - began)
            if not why and order["memory"] is not None and now - weighed >= WEIGH_EVERY_S:
                weighed, held = now, weight()
                if held > order["memory"]:
                    why = "memory"
                    text = f"held {held >> 20} MiB of memory; it may hold {order['memory'] >> 20}"
            if why:
                ending = now
                send(pid, signal.SIGTERM if why != "memory" else signal.SIGKILL)
        elif not killed and now - ending >= order["grace_s"]:
            send(pid, signal.SIGKILL)
            killed = True


def wants_end(order: dict[str, Any], told: dict[str, bool], seconds: float) -> tuple[str, str]:
    """Why the job must end now, in a word and a sentence; nothing if it may go on."""
    if os.path.exists("stop"):
        return "stopped", "stopped"
    if told["stop"]:
        return "lost", "its runner was told to end"
    if order["limit_s"] is not None and seconds >= order["limit_s"]:
        return "limit", f"reached its limit of {order['limit_s']:g} s"
    return "", ""


def send(group: int, number: int) -> None:
    """A signal to the whole process group of the job."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def weight() -> int:
    """Bytes of memory that the processes of the job hold: all that descend from us, whatever group they are in."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = stat_of(int(name))
                children.setdefault(int(fields[1]), []).append(int(name))
                pages[int(name)] = int(fields[21])
    total, ours = 0, list(children.get(os.getpid(), ()))
    while ours:
        pid = ours.pop()
        total += pages[pid]
        ours += children.get(pid, ())
    return total * os.sysconf("SC_PAGE_SIZE")


def clear_away() -> None:
    """End what the job has left behind: whoever loses its parent comes to us, so that nobody is missed."""
    asked: set[int] = set()
    until = time.monotonic() + LEFTOVERS_S
    while left := reaped_children():
        is_late = time.monotonic() >= until
        for child in left:
            if is_late or child not in asked:
                asked.add(child)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(0.02)


def reaped_children() -> list[int]:
    """The processes that are ours to wait for and still run."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]
    return []


def drain(outputs: list[OutputStream]) -> None:
    """Take what is still in the pipes; nobody is left to write into them."""
    for output in outputs:
        while select.select([output.pipe], [], [], 0)[0] and output.copy():
            pass


def _reserve() -> None:
    """Room on the disk for the end."""
    with contextlib.suppress(OSError), open("end.tmp", "wb") as file:
        file.write(b" " * _RESERVED)
        file.flush()
        os.fsync(file.fileno())


def end(record: dict[str, Any]) -> None:
    """Write how it ended; if that cannot be written, try until it can. Until then the job counts as running."""
    text = json.dumps(record).encode()
    while True:
        try:
            file = os.open("end.tmp", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(file, text.ljust(_RESERVED), 0)
                os.fsync(file)
            finally:
                os.close(file)
            os.rename("end.tmp", "end.json")
            sync_folder()
            return
        except FileNotFoundError:
            if not os.path.exists("order.json"):
                return  # the folder was taken away: nobody wants to know
        except OSError:
            pass
        time.sleep(RETRY_S)


def write(name: str, record: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    with open(f"{name}.tmp", "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{name}.tmp", name)
    sync_folder()


def sync_folder() -> None:
    """Make renames last."""
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third one on; a name may have any characters in it."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def ticks_of(pid: int) -> int:
    """When a process began, in ticks since the machine did: tells it from a later one with its number."""
    return int(stat_of(pid)[19])


def boot() -> str:
    """Which run of the machine this is."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


if __name__ == "__main__":
    main()
