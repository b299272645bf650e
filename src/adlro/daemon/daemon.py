"""The daemon around the orchestrator: its turns, what it tells those who listen, its config, its life and death.

Over 500 lines: one class, because turns, requests, reloads and the lead share one lock. Most methods of `Service` are
a line or two.
"""

import json
import logging
import math
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from adlro import __version__
from adlro.core.errors import AdlroError, BackendError, CatalogueError, StoreError
from adlro.core.learned import JobSpeeds, LearnedTable
from adlro.core.ports import (
    JobState,
    Leadership,
    LiveJob,
    Output,
    Submission,
)
from adlro.daemon.config import Config, changes, load_config
from adlro.daemon.leader import Alone
from adlro.daemon.metrics import DaemonMetrics, file_bytes
from adlro.daemon.pacing import LEAST_PAUSE_S, Pacing
from adlro.daemon.store_sqlite import AwayError
from adlro.daemon.systemd import Systemd
from adlro.live.news import News
from adlro.live.service import (
    Alarm,
    Compared,
    Decision,
    Event,
    HistoryQuery,
    State,
    Tick,
    Usage,
    WhatIf,
    WhatIfAnswer,
    Why,
)
from adlro.process.collector import unhurried_collector

if TYPE_CHECKING:  # it imports the compiler, which tests of the daemon do without
    from adlro.daemon.warming import TellProgress, Warmed, WarmProgress
from adlro.daemon.fence import Fenced, log
from adlro.daemon.hook import StopHook, check_hook
from adlro.daemon.running import DaemonParts, Running

KEPT_ALARMS: Final = 200

STANDBY_S: Final = 0.1
"""How often a standby tries to lead."""

PROBE_S: Final = 1.0
"""How often the back end is asked whether anything has changed unless it wants to be asked more often, …"""

PROBE_SHARE: Final = 0.04
"""… as long as that takes at most this share of the time."""

_LATE: Final = 3.0
"""The daemon is ready while its latest reading is not older than this many turns …"""

LATE_S: Final = 30.0
"""… or than this."""

_AT_ONCE: Final = frozenset(["tick_s", "policy", "guard", "preempt", "log", "telemetry"])
"""Tables that take effect as soon as the config is read again; the others need a restart."""

POLICY_KEY: Final = "policy"
"""The name under which the memory keeps the policy that an operator switched to."""


Build = Callable[[Config], DaemonParts]
"""Opens the back end and the store. It is called when we lead, so that a standby touches neither."""

Warm = Callable[[Sequence[str], "TellProgress", Callable[[], bool]], "Warmed"]
"""Compiles what turns with these policies need, the fallback last (warming.warm_daemon)."""


@final
class Daemon:
    """A Service (service.py). `run` and `tick` are for one thread, all else for any.

    `stop` and `reload` take no lock, so that signals may call them.
    """

    def __init__(
        self,
        config: Config,
        build: Build,
        leadership: Leadership | None = None,
        path: Path | None = None,
        flags: Mapping[str, Any] | None = None,
        warm: Warm | None = None,
    ) -> None:
        """`path` and `flags` are where the config came from: a reload reads them again.

        Without `warm` code is compiled when a turn first needs it.
        """
        self.config = config
        self._warm = warm
        self._warmed: set[str] = set()
        self._compiling = ""
        self._build, self._path, self._flags = build, path, dict(flags or {})
        self._leadership = leadership or Alone()
        self._systemd = Systemd()
        self.metrics_page = DaemonMetrics(__version__, lambda: self.is_ready()[0], self._store_bytes)
        self._pacing = Pacing()
        self._hook = StopHook()
        self._running: Running | None = None
        self._is_stopping = self._wants_reload = False
        self._why_not, self._again_s = "the daemon is starting.", STANDBY_S
        self._alarms: deque[Alarm] = deque(maxlen=KEPT_ALARMS)
        self._later: deque[Callable[[], None]] = deque()
        self._bell, self._ring = socket.socketpair()
        for end in (self._bell, self._ring):
            end.setblocking(False)
        # Numbers go on growing over a restart, so that whoever listens sees a gap and not a repetition.
        self._news = News(int(time.time() * 1000))

    # ---- life ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run turns until `stop`; stand by while another daemon leads."""
        is_first = True
        try:
            self._compile(self.config)
            with unhurried_collector() as collect:
                while not self._is_stopping:
                    began, processor = time.monotonic(), time.thread_time()
                    tick = self.tick()
                    self._pacing.spent(time.thread_time() - processor)
                    if is_first:
                        self._systemd.tell("READY=1")
                        is_first = False
                    self._systemd.alive()
                    goes_on = tick is not None and tick.is_cut and bool(tick.decisions)
                    self._wait(began, self._again_s if self._running is None else self._pause_s(tick), goes_on)
                    collect()
        finally:
            self._systemd.tell("STOPPING=1")
            self.close()

    def tick(self) -> Tick | None:
        """Run one turn and report it; None as a standby, or if the turn broke off."""
        if not self._lead():
            return None
        running = self._running
        assert running is not None
        if self._wants_reload:
            self._wants_reload = False
            self._reload()
        while self._later:
            self._later.popleft()()
        try:
            tick = running.decider.tick()
            self._tell_notes(running)
            self._tell_rights(running)
            self._tell(running, tick)
        except Exception as error:
            # A fault of ours, or of a user's policy: the cluster must not stand still for it.
            log.exception("a turn broke off")
            self.metrics_page.failed()
            self.alarm("fault", f"a turn failed: {type(error).__name__}: {error}")
            return None
        return tick

    def stop(self) -> None:
        """End after the current turn."""
        self._is_stopping = True
        self._wake()

    def reload(self) -> None:
        """Read the config again before the next turn; a wrong config raises an alarm, and the old one stays."""
        self._wants_reload = True
        self._wake()

    def close(self) -> None:
        """Close the back end, then the store, then release the lock."""
        self._is_stopping = True
        self._step_down("the daemon has ended.")
        self._news.close()
        self._hook.close()
        self._bell.close()
        self._ring.close()

    def _compile(self, config: Config, policy: str = "", is_turning: bool = False) -> None:
        """Compile what turns by this config need, or with this policy in place of the config's.

        A start with an empty cache takes minutes. Until it is done we are not ready, and systemd is told to be patient
        and that we are alive; not so if we go on turning meanwhile, in another thread.
        """
        names = [policy or config.policy.name, config.policy.fallback]
        if self._warm is None or self._warmed.issuperset(names):
            return
        with nullcontext() if is_turning else self._systemd.patient():
            try:
                done = self._warm(
                    names, (lambda progress: None) if is_turning else self._note_progress, lambda: self._is_stopping
                )
            except AdlroError:
                raise
            except Exception:
                if not self._is_stopping:
                    log.exception("compiling broke off")  # the turn that needs the rest compiles it
                return
            finally:
                if not is_turning:
                    self._compiling = ""
        self._warmed.update(names)
        for text in done.failed:
            log.warning("not all could be compiled", extra={"why": text})
        log.info("compiled", extra={"functions": len(done.compiled), "seconds": round(done.seconds, 1)})

    def _note_progress(self, progress: "WarmProgress") -> None:
        """Report how far compiling is: for readiness, to systemd, and in the log."""
        if progress.compiled and (progress.function or progress.words != self._compiling):
            self._systemd.tell(f"STATUS={progress.words}")
            extra = {"function": progress.function, "seconds": round(progress.seconds, 1)}
            log.info(progress.words, extra=extra)
        self._compiling = progress.words

    @property
    def is_stopping(self) -> bool:
        """Whether it ends, or has ended: streams should end too."""
        return self._is_stopping

    # ---- who leads -----------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether it decides for the cluster."""
        return self._running is not None

    def _lead(self) -> bool:
        """Whether we lead; take the lead if it is free."""
        if self._running is not None:
            if self._leadership.holds():
                return True
            log.error("the leader's lock is lost; standing by")
            self._step_down("a standby: this daemon has lost the leader's lock.")
        try:
            if not self._leadership.take():
                self._stand_by(f"a standby: {self._leadership.holder()} leads.")
                return False
            self._running = self._begin()
        except (BackendError, AwayError) as error:
            self._stand_by(f"the cluster or the store cannot be opened: {error}", self.config.tick_s)
            self._leadership.release()
            return False
        self.metrics_page.led(True)
        log.info("leading", extra={"backend": self._running.backend.name, "policy": self.config.policy.name})
        self._systemd.tell("STATUS=leading")
        return True

    def _stand_by(self, why: str, again_s: float = STANDBY_S) -> None:
        """Note why we do not lead, and try again after this many seconds."""
        self._again_s = again_s
        if why != self._why_not:
            log.warning("standing by", extra={"why": why})
            self._systemd.tell(f"STATUS={why}")
        self._why_not = why

    def _step_down(self, why: str) -> None:
        """Close everything that only a leader may hold."""
        running, self._running, self._why_not = self._running, None, why
        self.metrics_page.led(False)
        if running is not None:
            running.close()
        self._leadership.release()

    def _begin(self) -> "Running":
        """Open everything. The policy is the config's, or the one that an operator switched to."""
        parts = self._build(self.config)
        try:
            running = Running(parts, Fenced(parts.backend, self._leadership), self.config)
        except BaseException:
            parts.backend.close()
            parts.memory.close()
            raise
        for note in parts.notes:
            self._alarm_at(parts.clock(), "store", note)
        with suppress(StoreError, ValueError, KeyError, CatalogueError):
            kept = json.loads(parts.memory.get(POLICY_KEY) or "{}")
            if kept.get("instead_of") == self.config.policy.name:
                self._compile(self.config, kept["name"])
                running.decider.use_policy(kept["name"])
                log.info("the policy is the one that was switched to", extra={"policy": kept["name"]})
        return running

    # ---- the config ----------------------------------------------------------------------------------------------

    def _reload(self) -> None:
        """Read the config again, and apply what can change without a restart."""
        running = self._running
        assert running is not None
        try:
            new = load_config(self._path, self._flags)
            check_hook(new.preempt.tell)
            changed = changes(self.config, new)
            self._compile(new)
            same_but_name = new.policy.model_copy(update={"name": self.config.policy.name}) == self.config.policy
            if changed & {"guard", "preempt", "telemetry"} or not same_but_name:
                in_use = running.policy_in_use()
                running.decide_by(new)
                if new.policy.name == self.config.policy.name and in_use:
                    running.decider.use_policy(in_use)
            elif "policy" in changed:
                running.decider.use_policy(new.policy.name)
        except AdlroError as error:
            self.alarm("config", f"the old config stays, because the new one has an error: {error}")
            return
        old, self.config = self.config, new
        if old.log != new.log:
            logging.getLogger().setLevel(new.log.level.upper())
        if waits := sorted(changed - _AT_ONCE):
            self.alarm("config", f"changes in {', '.join(f'[{name}]' for name in waits)} take effect after a restart.")
        log.info("the config was read again", extra={"changed": sorted(changed)})
        if old.policy.name != new.policy.name:
            self._emit("policy", {"name": new.policy.name})

    # ---- what is asked (service.Service) -------------------------------------------------------------------------

    def state(self) -> State:
        """The latest state; it does not wait for a tick."""
        running = self._leading()
        state = running.decider.state()
        alarms = state.alarms
        if self._alarms:
            # The orchestrator may know ours from the memory.
            both = sorted({*state.alarms, *self._alarms}, key=lambda alarm: alarm.time_s)
            alarms = tuple(both[-KEPT_ALARMS:])
        return replace(state, is_leader=True, alarms=alarms)

    def job(self, id: str) -> LiveJob | None:
        """One job, also one that was submitted a moment ago or ended a while ago."""
        running = self._leading()
        return running.jobs.get(id) or running.fresh.get(id) or running.memory.job(id)

    def submit(self, submission: Submission) -> str:
        """Submit a job; returns its id. The next turn comes at once."""
        running = self._leading()
        id = running.backend.submit(submission)
        now = running.clock()
        running.add(LiveJob(id, replace(submission.job, submit_s=now), JobState.WAITING))
        self._emit("submitted", {"job": id, "user": submission.job.user, "name": submission.job.name}, now)
        self._wake()
        return id

    def cancel(self, job: str) -> None:
        """End a job for good."""
        running = self._leading()
        running.backend.cancel(job)
        known = running.jobs.get(job) or running.fresh.get(job)
        running.cancelled.add(job)
        self._emit("cancelled", {"job": job, **_whose(known)}, running.clock())
        self._wake()

    def why(self, job: str) -> Why | None:
        """Why a job waits, or why it runs where it does; None if there is no such job."""
        return self._leading().decider.why(job)

    def speeds(self, job: str) -> JobSpeeds | None:
        """What is believed of a job's speed on each GPU model, and why; None if there is no such job."""
        return self._leading().decider.speeds(job)

    def learned_speeds(self) -> LearnedTable:
        """The families of jobs that were found, with their speeds; none unless speeds are learnt."""
        return self._leading().decider.learned_speeds()

    def what_if(self, question: WhatIf) -> WhatIfAnswer:
        """The effect of a change, played forward from the latest snapshot."""
        return self._leading().decider.what_if(question)

    def decisions(self, job: str = "", before: str = "", limit: int = 100) -> Sequence[Decision]:
        """Decisions, the latest first."""
        return self._leading().memory.decisions(job, before, limit)

    def points(self, since_s: float, until_s: float) -> Sequence[Compared]:
        """The measured history between two moments, the oldest first; the older the coarser."""
        return self._leading().memory.points(since_s, until_s)

    def past(self, asked: HistoryQuery, before_s: float | None, limit: int) -> Sequence[LiveJob]:
        """Jobs that ended before a moment (None: now), the latest first."""
        return self._leading().memory.past(asked, before_s, limit)

    def usage(self, asked: HistoryQuery, since_s: float, until_s: float, step_s: float) -> Usage:
        """What jobs that ended between two moments used, in total and in steps of `step_s`."""
        return self._leading().memory.usage(asked, since_s, until_s, step_s)

    def output(self, job: str) -> Output | None:
        """The end of a job's output; None where the back end keeps no output, or has none for this job."""
        return self._leading().backend.output(job)

    def use_policy(self, name: str) -> None:
        """Decide with this policy from the next tick on, also after a restart. Raises CatalogueError without one."""
        running = self._leading()
        self._compile(self.config, name, is_turning=True)
        running.decider.use_policy(name)
        kept = json.dumps({"name": name, "instead_of": self.config.policy.name})
        self._later.append(lambda: self._keep_policy(kept))
        log.info("another policy decides", extra={"policy": name})
        self._emit("policy", {"name": name}, running.clock())
        self._wake()

    def events(self, after: int, wait_s: float) -> Sequence[Event]:
        """Events with a number above `after`, at once if there are some, else after waiting for one so long.

        A number that was never given out is of another life: all that is kept is new then.
        """
        return self._news.since(after, wait_s)

    def is_ready(self) -> tuple[bool, str]:
        """Whether we lead and the latest reading is recent and whole; else why not."""
        running = self._running
        if self._compiling:
            return False, self._compiling
        if running is None:
            return False, self._why_not
        if running.backend.trouble:
            return False, f"the cluster cannot be read: {running.backend.trouble}"
        if not running.has_looked:
            return False, "the first turn is still running."
        age_s = time.monotonic() - running.backend.read_s
        if age_s > max(LATE_S, _LATE * self.config.tick_s):
            return False, f"the latest reading of the cluster is too old: {age_s:.0f} s old."
        lacks = running.backend.latest.lacks if running.backend.latest is not None else ()
        if any(each.is_needed for each in lacks):
            return False, f"rights are missing: {', '.join(each.right for each in lacks)}"
        return True, f"ready, without the rights to {', '.join(each.right for each in lacks)}" if lacks else "ready"

    def metrics(self) -> str:
        """The page for Prometheus, in its text format (api.PROMETHEUS)."""
        return self.metrics_page.page()

    def _store_bytes(self) -> int | None:
        running = self._running
        return file_bytes(running.memory.path) if running is not None else None

    def _leading(self) -> "Running":
        running = self._running
        if running is None:
            raise BackendError(f"not ready: {self._why_not}")
        return running

    def _keep_policy(self, text: str) -> None:
        with suppress(StoreError):  # it counts all the same, until the next start
            self._leading().memory.put(POLICY_KEY, text)

    # ---- what is told --------------------------------------------------------------------------------------------

    def alarm_soon(self, kind: str, text: str) -> None:
        """Raise an alarm from another thread: the next turn comes at once and reports it."""
        self._later.append(lambda: self.alarm(kind, text))
        self._wake()

    def alarm(self, kind: str, text: str) -> None:
        """Raise an alarm of the daemon's own."""
        running = self._running
        self._alarm_at(running.clock() if running else time.time(), kind, text)

    def _alarm_at(self, time_s: float, kind: str, text: str) -> None:
        alarm = Alarm(time_s, kind, text)
        self._alarms.append(alarm)
        running = self._running
        if running is not None:
            with suppress(StoreError):
                running.memory.alarmed([alarm])
        self._tell_alarm(alarm)

    def _tell_alarm(self, alarm: Alarm) -> None:
        log.warning(alarm.text, extra={"kind": alarm.kind, "job": alarm.job, "node": alarm.node})
        self.metrics_page.alarmed(alarm)
        data = {"kind": alarm.kind, "text": alarm.text, "job": alarm.job, "node": alarm.node}
        self._emit("alarm", data, alarm.time_s)

    def _tell_rights(self, running: "Running") -> None:
        """Report rights that are missing now and were not before."""
        lacks = {each.right for each in running.backend.latest.lacks} if running.backend.latest is not None else set()
        for right in sorted(lacks - running.lacks):
            self.alarm("backend", f"the right to {right} is missing; grant it to the daemon's account.")
        for right in sorted(running.lacks - lacks):
            log.info("a right is there again", extra={"right": right})
        running.lacks = lacks

    def _tell_notes(self, running: "Running") -> None:
        """Report what happened to the store."""
        while running.memory.notes:
            self.alarm("store", running.memory.notes.pop(0))

    def _tell(self, running: "Running", tick: Tick) -> None:
        """Report a turn: to the log, to the metrics, and to listeners."""
        self.metrics_page.ticked(tick)
        if not running.backend.trouble:
            self.metrics_page.read()
        for decision in tick.decisions:
            self._emit("decided", _told(decision), tick.time_s)
            if decision.verb == "stop":
                log.info("a running job is stopped", extra={"job": decision.job, "why": decision.reason})
        for alarm in tick.alarms:
            self._tell_alarm(alarm)
        with suppress(BackendError):  # it was never read
            state = running.decider.state()
            self.metrics_page.show(state)
            for kind, job in running.look(state.snapshot):
                data = {"job": job.id, "state": str(job.state), **_whose(job)}
                self._emit(kind, data, state.snapshot.time_s)
        self._tell_stops(running, tick)
        summary = {
            "number": tick.number, "policy": tick.policy, "decided_by": tick.decided_by,
            "seconds": round(tick.seconds, 6), "waiting": tick.waiting, "running": tick.running,
            "decisions": len(tick.decisions), "alarms": len(tick.alarms), "is_cut": tick.is_cut,
        }  # fmt: skip
        log.log(logging.INFO if tick.decisions or tick.alarms else logging.DEBUG, "turn", extra=summary)
        self._emit("tick", summary, tick.time_s)

    def _tell_stops(self, running: "Running", tick: Tick) -> None:
        """Tell the site's own program which jobs were stopped. It hears of other jobs by their ids only."""
        if not (program := self.config.preempt.tell):
            return
        done = {answer.job for answer in tick.answers if answer.done}
        for decision in tick.decisions:
            if decision.verb == "stop" and decision.job in done:
                job = running.jobs.get(decision.job)
                told = {"event": "stop", "time_s": tick.time_s, "decision": decision.id, "job": decision.job}
                told |= {**_whose(job), "gpus": job.job.gpus if job is not None else None}
                self._hook.tell(program, told | {"policy": decision.policy, "reason": decision.reason})

    def _emit(self, kind: str, data: Mapping[str, Any], time_s: float | None = None) -> None:
        self._news.happen(kind, time.time() if time_s is None else time_s, data)

    # ---- waiting -------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """End the wait for the next turn. It takes no lock, so a signal handler may call it."""
        with suppress(OSError):  # a wake-up is already waiting, or the daemon has ended
            self._ring.send(b"!")

    def _pause_s(self, tick: Tick | None) -> float:
        """Seconds until the next turn: as configured, or less if the policy wants to be asked before."""
        wake_s = self._running.decider.wake_s if self._running is not None else math.inf
        if tick is None or wake_s == math.inf:
            return self.config.tick_s
        return min(self.config.tick_s, max(LEAST_PAUSE_S, wake_s - tick.time_s))

    def _wait(self, began: float, seconds: float, goes_on: bool = False) -> None:
        """Wait until so long after the beginning of a turn, until somebody wakes us, or until the cluster has changed.

        A pause is always kept, as long as the turn took if that was long: the cluster has other things to do too. A
        turn whose time was over goes on after the shortest pause.
        """
        now = time.monotonic()
        took = now - began
        running = self._running
        every_s = PROBE_S if running is None else min(PROBE_S, running.backend.probe_s)
        is_told = every_s < PROBE_S
        least_s = self._pacing.least_s(is_told)
        pause = now + min(seconds, max(least_s, took))
        until = max(began + seconds, now + min(least_s, took))
        changed = now + self._pacing.early_s(took, is_told)  # not before then because of a change
        if not is_told:
            changed = max(pause, changed)
        probe = now + every_s
        if goes_on:
            until = now + min(seconds, least_s)
        while not self._is_stopping and (left := until - time.monotonic()) > 0:
            wait = min(left, self._systemd.alive_every_s or left)
            if running is not None:
                wait = min(wait, max(0.0, probe - time.monotonic()))
            if select.select([self._bell], [], [], wait)[0]:
                with suppress(BlockingIOError):
                    self._bell.recv(4096)
                until = min(until, pause)
            self._systemd.alive()
            asked = time.monotonic()
            if running is not None and asked >= probe:
                has_changed = running.backend.has_changed()
                answered = time.monotonic()
                if has_changed is None:
                    running = None  # the next turn looks
                elif has_changed:
                    until, running = min(until, max(answered, changed)), None
                else:
                    probe = answered + max(every_s, (answered - asked) / PROBE_SHARE)


@contextmanager
def obeying_signals(daemon: Daemon) -> Iterator[None]:
    """SIGTERM and SIGINT end the daemon after its turn, a second SIGINT at once; SIGHUP reads the config again.

    SIGPIPE is ignored, though commands end by it (`adlro … | head`): whoever closes a connection to the daemon, as a
    slurmrestd that is killed does, would end the daemon too.
    """

    def end(number: int, frame: object) -> None:
        daemon.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    handlers = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGHUP: lambda number, frame: daemon.reload()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    before[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _whose(job: LiveJob | None) -> dict[str, str]:
    return {"user": job.job.user, "name": job.job.name} if job is not None else {"user": "", "name": ""}


def _told(decision: Decision) -> dict[str, Any]:
    parts = [{"node": p.node, "model": p.model, "count": p.count, "indices": list(p.indices)} for p in decision.parts]
    return {
        "decision": decision.id, "job": decision.job, "verb": decision.verb, "parts": parts,
        "policy": decision.policy, "reason": decision.reason,
    }  # fmt: skip
