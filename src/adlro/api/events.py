"""What happens, told to many listeners by one thread that asks the daemon."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, final

from anyio import CapacityLimiter, to_thread

from adlro.api.pictures import json_bytes
from adlro.core.errors import AdlroError
from adlro.live.service import Event

MOST_EVENTS_KEPT: Final = 1000
"""Events that are kept for those who are behind; who is further behind asks the daemon, or has a gap."""

ASK_S: Final = 1.0
"""How long one question to the daemon waits for an event."""

_MOST_QUESTIONS: Final = 16
"""Questions to the daemon at a time; the other requests have their own threads."""

STILL_HERE: Final = b": still here\n\n"


def _as_text(event: Event) -> bytes:
    """An event as the stream has it."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, event.kind.encode(), json_bytes(event))


@final
class Listeners:
    """Streams of events. Belongs to one event loop; asks the daemon only while somebody listens."""

    def __init__(self, ask: Callable[[int, float], Sequence[Event]], heartbeat_s: float, stream_s: float) -> None:
        self._ask = ask
        self._heartbeat_s = heartbeat_s
        self._stream_s = stream_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: deque[Event] = deque(maxlen=MOST_EVENTS_KEPT)
        self._news = asyncio.Event()
        self._limiter = CapacityLimiter(_MOST_QUESTIONS)
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False
        self.count = 0

    async def stream(
        self, after: int | None, shown: Callable[[Event], Awaitable[Event]], still: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """The events after a number (of None: from now on), as text; ends when told to, or when `still` says no."""
        until = time.monotonic() + self._stream_s
        self.count += 1
        try:
            last, behind = await self._first(after)
            yield STILL_HERE
            while not self._is_closed and time.monotonic() < until:
                for event in behind:
                    last = event.number
                    yield _as_text(await shown(event))
                news = self._news
                behind = await self._since(last)
                if behind:
                    continue
                wait_s = max(min(self._heartbeat_s, until - time.monotonic()), 0.0)
                try:
                    await asyncio.wait_for(news.wait(), wait_s)
                except TimeoutError:
                    if not still():
                        return
                    yield STILL_HERE
        finally:
            self.count -= 1

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._news.set()

    async def _first(self, after: int | None) -> tuple[int, Sequence[Event]]:
        """The number to go on from, and what has happened since it."""
        self._begin_anew_on_another_loop()
        kept = await self._in_thread(0, 0.0)
        newest = kept[-1].number if kept else 0
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._keep_asking(newest))
        if after is None:
            return newest, ()
        if after > newest:
            after = 0  # the numbers began anew: the daemon was started again
        return after, [event for event in kept if event.number > after]

    async def _since(self, last: int) -> Sequence[Event]:
        """What has happened since a number."""
        if not self._kept or self._kept[-1].number <= last:
            return ()
        if self._kept[0].number > last + 1:
            return await self._in_thread(last, 0.0)
        return [event for event in self._kept if event.number > last]

    async def _keep_asking(self, last: int) -> None:
        """Ask the daemon for events as long as anybody listens, and wake them."""
        while self.count and not self._is_closed:
            try:
                found = await self._in_thread(last, ASK_S)
            except AdlroError:
                await asyncio.sleep(ASK_S)
                continue
            if found:
                self._kept.extend(found)
                last = found[-1].number
                self._news.set()
                self._news = asyncio.Event()

    async def _in_thread(self, after: int, wait_s: float) -> Sequence[Event]:
        """Ask the daemon without holding up the others."""
        return await to_thread.run_sync(self._ask, after, wait_s, limiter=self._limiter, abandon_on_cancel=True)

    def _begin_anew_on_another_loop(self) -> None:
        """Nothing that belongs to an event loop may be used on another; a test has one for each request."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._asking = loop, None
            self._news, self._limiter = asyncio.Event(), CapacityLimiter(_MOST_QUESTIONS)
            self._kept.clear()
