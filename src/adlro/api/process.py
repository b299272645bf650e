"""The API in a process of its own: `python -m adlro.api.process`, run by host.py and by nobody else.

It holds a copy of the daemon's state and events, and asks the daemon everything else. So requests take no time from
the turn. It imports neither NumPy nor a compiler, and it ends when the daemon does, however that ends.
"""

import asyncio
import ctypes
import itertools
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLateError
from contextlib import nullcontext
from typing import Any, Final, cast, final

from adlro import __version__
from adlro.api.app import make_app
from adlro.api.door import raise_open_files
from adlro.api.link import (
    METRICS_QUESTION,
    OTHER_VERSION,
    POLICIES_QUESTION,
    SERVICE_CALLS,
    Answered,
    Beat,
    Call,
    Failed,
    Hello,
    ProcessLink,
    StateUpdate,
    Stop,
    state_with,
)
from adlro.api.pace import paced
from adlro.api.server import ApiServer, make_server
from adlro.core.errors import BackendError
from adlro.live.news import News
from adlro.live.service import Event, Service, State
from adlro.process.collector import paused_collector
from adlro.process.logs import set_up_logs

CALL_S: Final = 120.0
"""How long the daemon may take for an answer. A submission to a slow Slurm takes the longest."""

DAEMON_SILENT_S: Final = 15.0
"""A daemon that has told nothing for so long is not ready."""

BEAT_S: Final = 2.0
"""How often the daemon hears that we are alive."""

METRICS_S: Final = 1.0
"""How long the page of metrics is shown before it is asked for again."""

_LARGE: Final = 100_000
"""Bytes from which a message is so many objects that Python's collector is paused while they are made."""

_PR_SET_PDEATHSIG: Final = 1

log = logging.getLogger("adlro.api")


@final
class Copy:
    """The daemon as the API sees it: a Service. Methods that are not here are asked of the daemon by their name."""

    def __init__(self, link: ProcessLink, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._clock = link, clock
        self._news = News()
        self._state: State | None = None
        self._no_state = "not ready: the daemon is starting."
        self._ready = (False, "the daemon is starting.")
        self._heard_s = clock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}

    # ---- what is here ------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The latest state that was told."""
        state = self._state
        if state is None:
            raise BackendError(self._no_state)
        return state

    def events(self, after: int, wait_s: float) -> Sequence[Event]:
        """Events after a number, as the daemon has them."""
        return self._news.since(after, wait_s)

    def is_ready(self) -> tuple[bool, str]:
        """What the daemon said last, if that was a moment ago."""
        silent_s = self._clock() - self._heard_s
        if silent_s > DAEMON_SILENT_S:
            return False, f"the daemon does not answer: nothing was heard of it for {silent_s:.0f} s."
        return self._ready

    # ---- what the daemon is asked ------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the daemon."""
        if name not in SERVICE_CALLS:
            raise AttributeError(name)

        def ask(*args: Any, **named: Any) -> Any:
            return self.ask(name, *args, **named)

        return ask

    def ask(self, name: str, *args: Any, **named: Any) -> Any:
        """The daemon's answer, or its error. Raises BackendError when it does not come."""
        number, answer = next(self._numbers), Future[Any]()
        self._waiting[number] = answer
        try:
            self._link.send(Call(number, name, args, named))
            return answer.result(CALL_S)
        except TooLateError:
            raise BackendError(
                f"the daemon did not answer within {CALL_S:.0f} s. It may still carry out the request: check first."
            ) from None
        except OSError:
            raise BackendError("the daemon has ended.") from None
        finally:
            self._waiting.pop(number, None)

    # ---- what the daemon says ----------------------------------------------------------------------------------------

    def hear(self, message: object) -> None:
        """Take in a message: news in one thread, answers in another."""
        match message:
            case StateUpdate():
                self._take(message)
            case Answered(number, value):
                if answer := self._waiting.get(number):
                    answer.set_result(value)
            case Failed(number, error):
                if answer := self._waiting.get(number):
                    answer.set_exception(error)

    def _take(self, told: StateUpdate) -> None:
        self._heard_s, self._ready = self._clock(), told.ready
        if told.log_level != logging.getLogger().level:
            logging.getLogger().setLevel(told.log_level)
        if told.no_state is not None:
            self._state, self._no_state = None, str(told.no_state)
        elif told.state is not None:
            self._state = state_with(None if told.is_whole else self._state, told.state, told.snapshot)
        if told.events:  # after the state: who hears of a turn finds its state
            self._news.add(*told.events)


def kept_for(seconds: float, ask: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> Callable[[], Any]:
    """The same question, asked again only after so long."""
    lock = threading.Lock()
    latest: tuple[float, Any] | None = None

    def answer() -> Any:
        nonlocal latest
        with lock:
            if latest is None or clock() - latest[0] > seconds:
                latest = clock(), ask()
            return latest[1]

    return answer


@final
class Ears(threading.Thread):
    """Hears the daemon on one link until it says stop, or is gone."""

    def __init__(self, link: ProcessLink, copy: Copy, server: ApiServer) -> None:
        super().__init__(name="daemon", daemon=True)
        self._link, self._copy, self._server = link, copy, server

    def run(self) -> None:
        """Take in one message after another."""
        while True:
            try:
                body = self._link.receive_bytes()
                with paced(), paused_collector(are_kept=True) if len(body) > _LARGE else nullcontext():
                    message = pickle.loads(body)
                    if isinstance(message, Stop):
                        self._server.should_exit = True
                    else:
                        self._copy.hear(message)
            except EOFError:
                os._exit(1)  # the daemon is gone: nothing here is worth keeping, and another may want the port
            except Exception:  # an old copy is worse than none: the daemon starts us again
                log.exception("a message of the daemon cannot be read; the API's process ends and is started again")
                os._exit(1)


async def beat(link: ProcessLink) -> None:
    """Tell the daemon now and then that the loop which answers requests is alive."""
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "beat")
    while True:
        await loop.run_in_executor(thread, link.send, Beat())
        await asyncio.sleep(BEAT_S)


def die_with(parent: int) -> None:
    """Have the kernel end this process when the daemon's ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


async def answer_all(server: ApiServer, link: ProcessLink, listener: socket.socket) -> None:
    """Serve until told to stop."""
    beating = asyncio.create_task(beat(link))
    try:
        await server.serve(sockets=[listener])
    finally:
        beating.cancel()


def main(words: Sequence[str]) -> None:
    """Answer on the socket that was handed over, for the daemon at the other one."""
    *numbers, version = words
    if version != __version__:  # before anything is read: the records of other versions may have other fields
        print(
            f"adlro: the daemon runs version {version}, and {__version__} is installed now. Restart the daemon.",
            file=sys.stderr,
        )
        os._exit(OTHER_VERSION)
    talking, hearing, listening, parent = map(int, numbers)
    # These go to all processes of a terminal or a unit; the daemon says what comes of them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with(parent)
    raise_open_files()
    link = ProcessLink(socket.socket(fileno=talking))
    hello: Hello = link.receive()
    set_up_logs(logging.getLevelName(hello.log_level), hello.secrets)
    copy = Copy(link)
    policies = kept_for(float("inf"), lambda: copy.ask(POLICIES_QUESTION))
    app = make_app(
        cast(Service, copy),
        hello.settings,
        metrics=kept_for(METRICS_S, lambda: copy.ask(METRICS_QUESTION)),
        dashboard=hello.dashboard,
        policies=cast(Callable[[], Sequence[Mapping[str, Any]]], policies),
    )
    server = make_server(app, hello.settings)
    for each in (link, ProcessLink(socket.socket(fileno=hearing))):
        Ears(each, copy, server).start()
    asyncio.run(answer_all(server, link, socket.socket(fileno=listening)))
    os._exit(0)  # threads that wait for the daemon need not end


if __name__ == "__main__":
    main(sys.argv[1:])
