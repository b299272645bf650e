"""The daemon's side of the API's process: starts it, tells it what happens, answers it, and starts it again."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from adlro import __version__
from adlro.api.link import (
    OTHER_VERSION,
    SERVICE_CALLS,
    Answered,
    Call,
    DaemonFaultError,
    Failed,
    Hello,
    ProcessLink,
    StateUpdate,
    Stop,
    state_changes,
)
from adlro.api.security import error_place
from adlro.api.settings import ApiSettings
from adlro.core.errors import AdlroError, BackendError
from adlro.live.service import Service, State

MODULE: Final = "adlro.api.process"

TELL_S: Final = 0.5
"""How often the API hears of the daemon at least."""

LEAST_S: Final = 0.05
"""The least time between two tellings: what happens meanwhile goes together."""

THREADS: Final = 2
"""Calls of one method that are answered at a time. A slow method holds up no other; and few threads leave the
interpreter to the turn."""

STORE: Final = frozenset(["decisions", "past", "points", "usage"])
MOST_LATE: Final = 16
_QUEUE: Final = "the store"
"""Questions that the store answers, possibly from very many rows. They have one thread together, and only so many may
wait for it."""

API_SILENT_S: Final = 30.0
"""A process that has said nothing for so long hangs, and is ended."""

_STARTING_S: Final = 120.0
"""The same for one that starts, maybe on a machine that is very busy."""

CHECK_S: Final = 0.5
"""How often that is checked."""

STOP_S: Final = 5.0

PORT_S: Final = 0.2
"""How often a port that another program has is tried again; after an error the pauses grow."""

FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
LIVED_S: Final = 60.0
"""The pause before it is started again grows, until it has lived so long."""

log = logging.getLogger("adlro.api")


@final
class ApiHost:
    """Keeps an API process running on a listening socket until it is closed.

    `more` are questions besides the methods of the service. `alarm` is told of a process that ended by itself.
    """

    def __init__(
        self,
        service: Service,
        settings: ApiSettings,
        listen: Callable[[], socket.socket | None],
        more: Mapping[str, Callable[[], Any]],
        alarm: Callable[[str], None],
        secrets: tuple[str, ...] = (),
        dashboard: Path = Path("."),
    ) -> None:
        """`listen` gives the socket, or None while another program has the port."""
        self._service, self._settings, self._listen, self._more = service, settings, listen, more
        self._alarm, self._secrets, self._dashboard = alarm, secrets, dashboard
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: ProcessLink | None = None
        # The kernel ends the process when the thread that made it ends: so this one makes it and stays.
        self._thread = threading.Thread(target=self._keep_running, name="api", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process that answers now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def close(self) -> None:
        """End it: politely, then not."""
        self._closing.set()
        process, link = self._process, self._link
        if link is not None:  # aside: while the process hangs, sending may take for ever
            threading.Thread(target=say_stop, args=(link,), name="api stop", daemon=True).start()
        if process is not None:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(STOP_S)

    # ---- its life ----------------------------------------------------------------------------------------------------

    def _keep_running(self) -> None:
        listener = self._listener()
        if listener is None:
            return
        pause_s = FIRST_PAUSE_S
        with listener:
            while not self._closing.is_set():
                began = time.monotonic()
                try:
                    what = f"{self._run_once(listener)} after {time.monotonic() - began:.0f} s; it is started again"
                except Exception as error:  # no memory, process, thread or file is left: that may pass
                    what = f"cannot be started ({error}); it is tried again"
                if self._closing.is_set():
                    return
                lived_s = time.monotonic() - began
                pause_s = FIRST_PAUSE_S if lived_s > LIVED_S else min(2 * pause_s, _LONGEST_PAUSE_S)
                self._tell_trouble(f"the API's process {what}. Turns go on.")
                self._closing.wait(pause_s)

    def _listener(self) -> socket.socket | None:
        """The listening socket, as soon as there is one; None if we are closed before. What is wrong is told once."""
        told = ""
        pause_s = PORT_S
        while not self._closing.is_set():
            try:
                if (found := self._listen()) is not None:
                    return found
                pause_s = PORT_S
            except Exception as error:  # nobody else would notice that this thread ends
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if str(error) != told:
                    told = str(error)
                    self._tell_trouble(f"the API cannot be started: {told} It is tried again. Turns go on.")
            self._closing.wait(pause_s)
        return None

    def _tell_trouble(self, text: str) -> None:
        log.error(text)
        self._alarm(text)

    def _run_once(self, listener: socket.socket) -> str:
        """Start the process and serve it until it ends; how it ended."""
        (ours, theirs), (telling, hearing) = socket.socketpair(), socket.socketpair()
        with ours, telling:
            with theirs, hearing:
                self._process = process = spawn(theirs, hearing, listener)
            self._link = link = ProcessLink(ours)
            session = ApiSession(self._service, self._more, link, ProcessLink(telling), process)
            try:
                link.send(Hello(self._settings, logging.getLogger().level, self._secrets, self._dashboard))
                if self._closing.is_set():
                    link.send(Stop())
                return session.serve()
            except OSError:
                return _ended(process)
            finally:
                session.close()
                self._link = None
                process.kill()
                process.wait()


def say_stop(link: ProcessLink) -> None:
    """Tell the process to end, if it is there."""
    with suppress(OSError):
        link.send(Stop())


def spawn(*sockets: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the process, with its end of the link for questions, its end of the one for news, and the listener."""
    # It finds what we found, and nothing in the folder that we happen to be in (-P).
    known = os.pathsep.join(path for path in sys.path if path)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NOTIFY_", "WATCHDOG_"))}
    numbers = [each.fileno() for each in sockets]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, *map(str, numbers), str(os.getpid()), __version__],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=numbers,
        env=env | {"PYTHONPATH": known},
    )


def _ended(process: "subprocess.Popen[bytes]") -> str:
    """How a process ended, in words."""
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    if code == OTHER_VERSION:
        return "found another version of ADLRO installed than the daemon runs (restart the daemon) and ended"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def queue_of(name: str) -> str:
    """The queue in which calls of a method wait: its own, or that of the store."""
    return _QUEUE if name in STORE else name


@final
class ApiSession:
    """One life of the API's process: what it is told, and what it asks.

    News have a link of their own: a new state can be megabytes, and an answer on the same link would wait behind it.
    """

    def __init__(
        self,
        service: Service,
        more: Mapping[str, Callable[[], Any]],
        link: ProcessLink,
        news: ProcessLink,
        process: "subprocess.Popen[bytes]",
    ) -> None:
        self._service, self._more, self._process = service, more, process
        self._link, self._news = link, news
        self._taking, self._counting = threading.Lock(), threading.Lock()
        self._busy: Counter[str] = Counter()  # threads that answer calls of a queue
        self._late: dict[str, deque[Call]] = {}
        self._is_over = threading.Event()
        self._heard_s = time.monotonic() + _STARTING_S - API_SILENT_S
        self._telling = threading.Thread(target=self._tell, name="api news", daemon=True)

    def serve(self) -> str:
        """Answer until the process ends; how it ended. One that hangs is killed.

        This thread checks that, because those that send may wait for ever for a process that reads nothing.
        """
        self._telling.start()
        for _ in range(THREADS * (len(SERVICE_CALLS) + len(self._more)) + 1):
            threading.Thread(target=self._work, name="api answers", daemon=True).start()
        is_hung = False
        while not self._is_over.wait(CHECK_S):
            if not is_hung and time.monotonic() - self._heard_s > API_SILENT_S:
                is_hung = True
                self._process.kill()
        return "did not answer, and was ended," if is_hung else _ended(self._process)

    def close(self) -> None:
        """Tell and answer nothing more."""
        self._is_over.set()
        self._link.close()
        self._news.close()

    # ---- what it asks ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take a message and answer it, again and again, until the process is gone.

        Whoever takes a message answers it, and another thread takes the next one: while a turn is busy, each change of
        threads takes milliseconds. There are so many threads that one is always there to take a message.
        """
        while not self._is_over.is_set():
            with self._taking:
                if self._is_over.is_set():
                    return
                try:
                    message = self._link.receive()
                except EOFError:
                    self._is_over.set()
                    return
                self._heard_s = time.monotonic()
            call = message if isinstance(message, Call) and self._may_answer(message) else None
            while call is not None:
                self._answer(call)
                call = self._next(call.name)

    def _may_answer(self, call: Call) -> bool:
        """Whether a call is to be answered now; else those who answer calls of the same queue do it later."""
        queue = queue_of(call.name)
        with self._counting:
            if self._busy[queue] < (1 if queue == _QUEUE else THREADS):
                self._busy[queue] += 1
                return True
            late = self._late.setdefault(queue, deque())
            if queue != _QUEUE or len(late) < MOST_LATE:
                late.append(call)
                return False
        self._send(call, Failed(call.number, BackendError("too many questions wait for the store. Ask again later.")))
        return False

    def _next(self, name: str) -> Call | None:
        """A call of the same queue that waits."""
        queue = queue_of(name)
        with self._counting:
            if late := self._late.get(queue):
                return late.popleft()
            self._busy[queue] -= 1
            return None

    def _answer(self, call: Call) -> None:
        """Answer one call, whatever comes of it."""
        answer: Answered | Failed
        try:
            answer = Answered(call.number, self._method(call.name)(*call.args, **call.named))
        except AdlroError as error:
            answer = Failed(call.number, error)
        except Exception as error:
            # The words of an error may hold what a user sent; its kind and place do not.
            log.error("a question of the API failed", extra={"question": call.name, "where": error_place(error)})
            answer = Failed(call.number, DaemonFaultError(error_place(error)))
        self._send(call, answer)

    def _send(self, call: Call, answer: Answered | Failed) -> None:
        """Send the answer to a call, if the process is still there."""
        with suppress(OSError):
            try:
                self._link.send(answer)
            except OSError:
                raise
            except Exception as error:  # it cannot be pickled
                log.error("an answer cannot be sent", extra={"question": call.name, "where": error_place(error)})
                self._link.send(Failed(call.number, DaemonFaultError(error_place(error))))

    def _method(self, name: str) -> Callable[..., Any]:
        if name in self._more:
            return self._more[name]
        if name not in SERVICE_CALLS:
            raise LookupError(name)
        found: Callable[..., Any] = getattr(self._service, name)
        return found

    # ---- what it is told ---------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Tell what happens until the process is gone."""
        state: State | None = None
        number, wait_s = 0, 0.0
        with suppress(OSError):
            while not self._is_over.is_set():
                try:
                    events = tuple(self._service.events(number, wait_s))
                    state = self._tell_once(state, events)
                    number, wait_s = (events[-1].number if events else number), TELL_S
                except OSError:
                    raise
                except Exception:  # else the API would show an old state for ever
                    log.exception("the API could not be told what has changed; it is told everything")
                    state = None
                    self._is_over.wait(TELL_S)
                self._is_over.wait(LEAST_S)

    def _tell_once(self, known: State | None, events: tuple[Any, ...]) -> State | None:
        """Tell what has changed since the state that is known there; the one that is known now."""
        ready, level = self._service.is_ready(), logging.getLogger().level
        try:
            state = self._service.state()
        except AdlroError as error:
            self._news.send(StateUpdate(ready, level, no_state=error, events=events))
            return None
        changed, snapshot = state_changes(known, state)
        told = changed if known is None or changed or snapshot else None
        self._news.send(StateUpdate(ready, level, told, snapshot, events=events, is_whole=known is None))
        return state
