"""The daemon's side of the API's process: starts it, tells it what happens, answers it, and starts it again."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, final

from adlro.core.errors import AdlroError
from adlro.serve.api_link import (
    CALLS,
    Answered,
    Call,
    DaemonFaultError,
    Failed,
    Hello,
    Link,
    Stop,
    Told,
    state_changes,
)
from adlro.serve.api_security import place_of
from adlro.serve.api_settings import ApiSettings
from adlro.serve.service import Service, State

MODULE: Final = "adlro.serve.api_process"

TELL_S: Final = 0.5
"""How often the API hears of the daemon at least."""

LEAST_S: Final = 0.05
"""The least time between two tellings: what happens meanwhile goes together."""

THREADS: Final = 2
"""Calls of one method that are answered at a time. A slow method holds up no other; and few threads leave the
interpreter to the turn."""

SILENT_S: Final = 30.0
"""A process that has said nothing for so long hangs, and is ended."""

STARTING_S: Final = 120.0
"""The same for one that starts, maybe on a machine that is very busy."""

STOP_S: Final = 5.0

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
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
        self._link: Link | None = None
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
        if link is not None:
            with suppress(OSError):
                link.send(Stop())
        if process is not None:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(STOP_S)

    # ---- its life ----------------------------------------------------------------------------------------------------

    def _keep_running(self) -> None:
        listener = self._listen()
        while listener is None and not self._closing.wait(0.2):
            listener = self._listen()
        if listener is None:
            return
        pause_s = FIRST_PAUSE_S
        with listener:
            while not self._closing.is_set():
                began = time.monotonic()
                how = self._run_once(listener)
                if self._closing.is_set():
                    return
                lived_s = time.monotonic() - began
                pause_s = FIRST_PAUSE_S if lived_s > LIVED_S else min(2 * pause_s, LONGEST_PAUSE_S)
                text = f"the API's process {how} after {lived_s:.0f} s; it is started again. Turns go on."
                log.error(text)
                self._alarm(text)
                self._closing.wait(pause_s)

    def _run_once(self, listener: socket.socket) -> str:
        """Start the process and serve it until it ends; how it ended."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._process = process = spawn(theirs, listener)
            self._link = link = Link(ours)
            session = Session(self._service, self._more, link, process)
            try:
                link.send(Hello(self._settings, logging.getLogger().level, self._secrets, self._dashboard))
                if self._closing.is_set():
                    link.send(Stop())
                return session.serve()
            except OSError:
                return ended(process)
            finally:
                session.close()
                self._link = None
                process.kill()
                process.wait()


def spawn(theirs: socket.socket, listener: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the process, with its end of the pair and the listening socket."""
    # It finds what we found, and nothing in the folder that we happen to be in (-P).
    known = os.pathsep.join(path for path in sys.path if path)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NOTIFY_", "WATCHDOG_"))}
    numbers = (theirs.fileno(), listener.fileno())
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, *map(str, numbers), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=numbers,
        env=env | {"PYTHONPATH": known},
    )


def ended(process: "subprocess.Popen[bytes]") -> str:
    """How a process ended, in words."""
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


@final
class Session:
    """One life of the API's process: what it is told, and what it asks."""

    def __init__(
        self,
        service: Service,
        more: Mapping[str, Callable[[], Any]],
        link: Link,
        process: "subprocess.Popen[bytes]",
    ) -> None:
        self._service, self._more, self._link, self._process = service, more, link, process
        self._asked: dict[str, SimpleQueue[Call | None]] = {}
        self._is_over = threading.Event()
        self._heard_s = time.monotonic() + STARTING_S - SILENT_S
        self._is_hung = False
        self._telling = threading.Thread(target=self._tell, name="api news", daemon=True)

    def serve(self) -> str:
        """Answer until the process ends; how it ended."""
        self._telling.start()
        while True:
            try:
                message = self._link.receive()
            except EOFError:
                return "did not answer, and was ended," if self._is_hung else ended(self._process)
            self._heard_s = time.monotonic()
            if isinstance(message, Call):
                self._queue_of(message.name).put(message)

    def close(self) -> None:
        """Tell and answer nothing more."""
        self._is_over.set()
        self._link.close()
        for queue in self._asked.values():
            for _ in range(THREADS):
                queue.put(None)

    # ---- what it asks ------------------------------------------------------------------------------------------------

    def _queue_of(self, name: str) -> "SimpleQueue[Call | None]":
        """Where calls of a method wait for the threads that answer them. A thread that hangs holds up no exit."""
        queue = self._asked.get(name)
        if queue is None:
            queue = self._asked[name] = SimpleQueue()
            for _ in range(THREADS):
                threading.Thread(target=self._answer_all, args=(queue,), name=f"api {name}", daemon=True).start()
        return queue

    def _answer_all(self, queue: "SimpleQueue[Call | None]") -> None:
        """Answer one call after another."""
        while (call := queue.get()) is not None:
            if not self._is_over.is_set():
                self._answer(call)

    def _answer(self, call: Call) -> None:
        """Answer one call, whatever comes of it."""
        answer: Answered | Failed
        try:
            answer = Answered(call.number, self._method(call.name)(*call.args, **call.named))
        except AdlroError as error:
            answer = Failed(call.number, error)
        except Exception as error:
            # The words of an error may hold what a user sent; its kind and place do not.
            log.error("a question of the API failed", extra={"question": call.name, "where": place_of(error)})
            answer = Failed(call.number, DaemonFaultError(place_of(error)))
        with suppress(OSError):
            try:
                self._link.send(answer)
            except OSError:
                raise
            except Exception as error:  # it cannot be pickled
                log.error("an answer cannot be sent", extra={"question": call.name, "where": place_of(error)})
                self._link.send(Failed(call.number, DaemonFaultError(place_of(error))))

    def _method(self, name: str) -> Callable[..., Any]:
        if name in self._more:
            return self._more[name]
        if name not in CALLS:
            raise LookupError(name)
        found: Callable[..., Any] = getattr(self._service, name)
        return found

    # ---- what it is told ---------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Tell what happens until the process is gone; end one that hangs."""
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
                if time.monotonic() - self._heard_s > SILENT_S:
                    self._is_hung = True
                    self._process.kill()
                self._is_over.wait(LEAST_S)

    def _tell_once(self, known: State | None, events: tuple[Any, ...]) -> State | None:
        """Tell what has changed since the state that is known there; the one that is known now."""
        ready, level = self._service.is_ready(), logging.getLogger().level
        try:
            state = self._service.state()
        except AdlroError as error:
            self._link.send(Told(ready, level, no_state=error, events=events))
            return None
        changed, snapshot = state_changes(known, state)
        told = changed if known is None or changed or snapshot else None
        self._link.send(Told(ready, level, told, snapshot, events=events, is_whole=known is None))
        return state
