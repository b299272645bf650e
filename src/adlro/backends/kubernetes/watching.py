"""List and watch: a copy of all objects of one kind, kept up to date by a thread of its own.

A list is the truth at one version, a watch tells what changed since then. When the server has forgotten that version
(410), or the watch cannot be resumed, the list is read again: objects that are gone meanwhile are told as deleted.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from adlro.backends.kubernetes.client import OPENED, Api, ApiError, Raw
from adlro.core.errors import AdlroError, BackendError
from adlro.process.logs import LOGGER

log = logging.getLogger(LOGGER)

_PAGE: Final = 1000
WATCH_S: Final = 240
SILENT_S: Final = 330.0
"""A watch is asked for so long, and counts as broken if nothing at all, not even its end, comes for longer."""

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 20.0
ABSENT_S: Final = 60.0
"""A kind that the server does not have, or that we may not read, is asked for again after so long."""


@final
class Watching:
    """The objects of one path. `put` and `drop` are called from the thread, one after the other."""

    def __init__(
        self,
        api: Api,
        path: str,
        put: Callable[[Raw], None],
        drop: Callable[[Raw], None],
        is_needed: bool = True,
        pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._api, self.path, self._put, self._drop = api, path, put, drop
        self._is_needed, self._pause_s = is_needed, pause_s
        self._version = ""
        self._uids: dict[tuple[str, str], Raw] = {}  # metadata of all objects, by namespace and name
        self._stopping = threading.Event()
        self.listed = threading.Event()
        self.trouble = ""
        """What went wrong last; "" while the watch stands."""
        self.heard_s = -float("inf")
        """When the copy was last known to be up to date, by the monotonic clock."""
        self.lists = 0
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        """Begin to list and watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; close the connections first, so that it wakes."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread.is_alive():
            self._thread.join(5.0)

    @property
    def is_current(self) -> bool:
        """Whether the copy is up to date now."""
        return self.listed.is_set() and not self.trouble

    def _run(self) -> None:
        pause = self._pause_s
        while not self._stopping.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
                pause = self._pause_s
                continue
            except ApiError as error:
                if error.status == 410:  # the server has forgotten our version
                    self._version = ""
                    continue
                if error.status in (403, 404) and not self._is_needed:
                    self.trouble, pause = str(error), ABSENT_S
                    self.listed.set()
                else:
                    self.trouble = str(error)
                    pause = max(pause, error.retry_s)
            except AdlroError as error:
                self.trouble = str(error)
            except Exception as error:  # a fault of ours must not silence the copy: all is read again
                log.exception("an object could not be taken in", extra={"path": self.path})
                self.trouble, self._version = f"{self.path}: {error}", ""
            if self._stopping.wait(pause * random.uniform(0.75, 1.25)):
                return
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _list(self) -> None:
        """Take in all objects, and tell which are gone."""
        found: dict[tuple[str, str], Raw] = {}
        query = {"limit": str(_PAGE)}
        while True:
            page = self._api.get(self.path, query)
            for each in page.get("items") or ():
                self._take(each, found)
            meta = page.get("metadata") or {}
            if not (token := meta.get("continue")):
                break
            query = {"limit": str(_PAGE), "continue": token}
        for key in [key for key in self._uids if key not in found]:
            self._drop({"metadata": self._uids[key]})
        self._uids = found
        self._version = str(meta.get("resourceVersion", ""))
        self.lists += 1
        self._is_well()

    def _take(self, each: Raw, into: dict[tuple[str, str], Raw]) -> None:
        """Take in one object; one of the same name that it replaced is gone."""
        meta = each["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        before = self._uids.get(key)
        if before is not None and before["uid"] != meta.get("uid"):
            self._drop({"metadata": before})
        into[key] = _in_short(meta)
        self._put(each)

    def _watch(self) -> None:
        """Follow what changes, until the server ends the watch."""
        query = {"resourceVersion": self._version, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        for event in self._api.watch(self.path, query, SILENT_S):
            if self._stopping.is_set():
                return
            if event is OPENED:
                self._is_well()
                continue
            what, each = event.get("type"), event.get("object") or {}
            if what == "ERROR":
                code = int(each.get("code", 500))
                raise ApiError(code, str(each.get("message", "the watch ended with an error")))
            meta = each.get("metadata") or {}
            if what == "DELETED":
                self._uids.pop((meta.get("namespace", ""), meta["name"]), None)
                self._drop(each)
            elif what != "BOOKMARK":
                self._take(each, self._uids)
            self._version = str(meta["resourceVersion"])
            self._is_well()

    def _is_well(self) -> None:
        self.trouble, self.heard_s = "", time.monotonic()
        self.listed.set()


def _in_short(meta: Mapping[str, Any]) -> Raw:
    """What a later deletion needs."""
    return {"namespace": meta.get("namespace", ""), "name": meta["name"], "uid": meta.get("uid", "")}


def wait_until_listed(watches: "list[Watching]", seconds: float) -> None:
    """Wait until all are listed. Raises BackendError with what is wrong if one is not by then."""
    until = time.monotonic() + seconds
    for each in watches:
        if not each.listed.wait(max(0.0, until - time.monotonic())):
            raise BackendError(f"{each.path} cannot be listed: {each.trouble or 'no answer yet'}")
