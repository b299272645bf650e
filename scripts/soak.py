#!/usr/bin/env python3
"""A soak on a real Slurm: short jobs of every shape, kills and changes in between, and every job accounted for.

    scripts/soak.py --minutes 120 --jobs 2000 --seed 1 --json result.json
    scripts/soak.py --minutes 5 --jobs 120 --faults slurmctld            only these kills
    scripts/soak.py --minutes 5 --jobs 120 --faults slurmctld --plain    the same jobs and kills with Slurm alone

It starts a Slurm with slurmdbd in a folder of its own on loopback, the plugin of `adlro slurm install`, and the daemon
as a process of its own. It reads Slurm with squeue and scontrol, not through ADLRO. docs/soak.md says what is checked.
Exit code 0 if everything holds, 1 if something does not. Needs the packages of scripts/test_parts.sh, and root for jobs
of several users.
"""

import argparse
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.soak_account import FORGETS_S, HELD_AT_END, Account, Happened, Problem, account  # noqa: E402
from scripts.soak_faults import KINDS, OF_ADLRO, Fault, faults  # noqa: E402
from scripts.soak_jobs import LIMITED, LIMITS, MACHINES, OTHER, PARTITION, Plan, Wish, wishes  # noqa: E402
from scripts.soak_watch import Idle, Job, Row, Stamp, Watch, look, runs_of, script_of, stamps_in  # noqa: E402
from tests.ports import free_ports  # noqa: E402
from tests.slurm.lab import Lab, running  # noqa: E402

USERS: Final = ("games", "mail", "news", "backup")
"""Accounts that every Debian has; the last one is over its QOS."""
LOOK_S: Final = 1.0
LEAKED_LOOKS: Final = 4
FAILED_LAUNCH: Final = "launch failed requeued held"
MINUTES_EACH: Final = 15
"""The time limit of the jobs."""
NO_UPDATE: Final = ("DB index is being set", "Unexpected message received")
"""What Slurm's commands say of a job that it lets nobody update, after a kill of slurmctld; they may give up first."""
NO_PARENT: Final = "Job dependency problem"
"""What sbatch says of a dependency on a job that Slurm does not know."""
CHOICES: Final = ("policy", "priority", "reserved")
"""Words of `adlro why` for a job that fits and waits because the policy wants it so."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a soak is asked for."""

    minutes: float = 5.0
    jobs: int = 120
    seed: int = 1
    tick_s: float = 5.0
    policy: str = "adlro"
    plain: bool = False  # Slurm alone
    kinds: tuple[str, ...] = tuple(KINDS)
    every_s: float = 45.0  # between two faults, about
    drain_s: float = 240.0  # for what waits at the end, at least
    slack_s: float = 3.0  # for a look, Slurm's own turn and the start of a script
    held_s: float = 60.0
    keep: Path | None = None

    @property
    def may_wait(self) -> bool:
        """Whether the policy may let a GPU idle on purpose: the learned one gathers GPUs for wide jobs."""
        return self.policy.startswith("adlro")

    @property
    def idle_s(self) -> float:
        """The longest that a GPU may idle beside a job that could have it: two ticks, and the slack."""
        return 2 * self.tick_s + self.slack_s


@dataclass(slots=True)
class Result:
    """What came of it."""

    settings: Settings
    account: Account
    idle: list[Idle]
    held: list[Idle]
    faults: Counter[str]
    drained: list[str]
    leaked: list[str]
    failed_launches: int
    seconds: float
    jobs: int
    runs: int
    looks: int
    longest_blind_s: float
    calm_share: float
    slurms_own: list[Idle]
    kept: list[Idle]
    kept_share: float
    chosen: list[Idle]
    not_updatable: dict[str, str]
    orphans: list[str]
    problems: list[Problem] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """The same as JSON."""
        settings = {**asdict(self.settings), "keep": str(self.settings.keep or "")}
        return {
            "good": not self.problems,
            "settings": settings,
            "seconds": round(self.seconds, 1),
            "jobs": self.jobs,
            "runs": self.runs,
            "looks": self.looks,
            "longest_without_a_look_s": round(self.longest_blind_s, 1),
            "share_of_looks_at_which_idle_gpus_count": round(self.calm_share, 3),
            "slurm_did_not_start": [asdict(each) for each in self.slurms_own],
            "slurm_kept_the_gpus": [asdict(each) for each in self.kept],
            "share_of_looks_at_which_slurm_kept_a_node": round(self.kept_share, 3),
            "policy_chose_to_wait": [asdict(each) for each in self.chosen],
            "slurm_lets_nobody_update": self.not_updatable,
            "handed_in_without_a_forgotten_dependency": self.orphans,
            "faults": dict(self.faults),
            "ends": dict(self.account.ends),
            "began_again": dict(self.account.again),
            "nodes_drained_by_slurm": self.drained,
            "gpus_leaked_by_slurm": self.leaked,
            "held_by_slurm_after_a_failed_launch": self.failed_launches,
            "idle_gpu": [asdict(each) for each in self.idle[:10]],
            "held": [asdict(each) for each in self.held[:10]],
            "problems": [asdict(each) for each in self.problems],
        }

    def lines(self) -> list[str]:
        """The same as a table."""
        lines = [f"{self.jobs} jobs, {self.runs} runs, {self.looks} looks, {self.seconds:.0f} s"]
        for title, counts in (
            ("how they ended", self.account.ends), ("began again", self.account.again), ("faults", self.faults)
        ):  # fmt: skip
            lines += [f"{title}:"] + [f"  {count:6d}  {what}" for what, count in counts.most_common()]
        for title, found in (("longest idle GPU beside a job that fits", self.idle), ("longest held", self.held)):
            worst = found[0] if found else None
            lines.append(f"{title}: " + (f"{worst.seconds:.1f} s ({worst.shape}: {worst.row})" if worst else "none"))
        lines.append(
            f"idle GPUs count at {self.calm_share:.0%} of the looks; at the others something had just happened"
        )
        lines.append(f"Slurm kept a node for a waiting job of its own at {self.kept_share:.0%} of the looks")
        for title, found in (
            ("given back to Slurm, which did not start it", self.slurms_own),
            ("Slurm kept it for a waiting job of its own", self.kept),
            ("the policy chose to wait", self.chosen),
        ):
            longest = f", up to {max(each.seconds for each in found):.0f} s" if found else ""
            lines.append(f"GPU idle, and {title}: {len(found)} jobs{longest}")
        lines += [f"Slurm let nobody update job {job}: {said}" for job, said in self.not_updatable.items()]
        lines += [f"handed in without its dependency, a job that slurmctld forgot: {each}" for each in self.orphans]
        lines += [f"drained by Slurm itself: {each}" for each in self.drained]
        lines += [f"GPUs that Slurm itself counted as used and no job had: {each}" for each in self.leaked]
        if self.failed_launches:
            lines.append(f"held by Slurm after a failed launch, and released by hand: {self.failed_launches}")
        for kind, count in Counter(problem.kind for problem in self.problems).most_common():
            lines.append(f"NOT GOOD, {count} times: {kind}")
            lines += [f"    {each.job} {each.text}" for each in self.problems if each.kind == kind][:5]
        return [*lines, "All checks hold." if not self.problems else f"{len(self.problems)} problems."]


class Daemon:
    """`adlro serve` as a process of its own."""

    def __init__(self, lab: Lab, settings: Settings) -> None:
        """Write its config; `start` starts it."""
        self.lab = lab
        (self.port,) = free_ports(1)
        self.folder = lab.folder / "adlro"
        self.folder.mkdir()
        self.log = lab.folder / "log" / "adlro.log"
        self.process: subprocess.Popen[bytes] | None = None
        (self.folder / "adlro.toml").write_text(
            f"tick_s = {settings.tick_s}\n"
            '[backend]\nkind = "slurm"\n'
            f'[slurm]\nrest = "unix:{lab.socket}"\nconf = "{lab.environment["SLURM_CONF"]}"\n'
            f'partitions = ["{PARTITION}"]\ntimeout_s = 7.0\n'
            f'[policy]\nname = "{settings.policy}"\n'
            f'[store]\nurl = "sqlite:{self.folder}/adlro.db"\n'
            f'[api]\nport = {self.port}\nauth = "off"\n'
        )

    def start(self) -> None:
        """Start it; it is ready some seconds later."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*adlro(), "serve", "--config", str(self.folder / "adlro.toml")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.lab.environment, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip

    def kill(self, hard: bool = True) -> None:
        """End it, and what it started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL if hard else signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def is_running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def why(self, number: str) -> tuple[str, str]:
        """Why a job waits, by `adlro why`: the word and the sentence."""
        address = f"http://127.0.0.1:{self.port}/api/v1/jobs/{number}/why"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                told = json.load(answer)
                return str(told.get("dominant")), str(told.get("text"))
        except (urllib.error.URLError, OSError, ValueError) as error:
            return "", f"no answer: {error}"

    def is_ready(self) -> bool:
        """Whether it says so."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def adlro() -> list[str]:
    """The command, of this tree."""
    return [sys.executable, "-m", "adlro"]


class Soak:
    """One soak on a lab that runs."""

    def __init__(self, lab: Lab, settings: Settings, say: Callable[[str], None]) -> None:
        """Nothing has been handed in yet."""
        self.lab, self.settings, self.say = lab, settings, say
        self.users = USERS if os.geteuid() == 0 else (pwd.getpwuid(os.geteuid()).pw_name,) * 2
        self.daemon = None if settings.plain else Daemon(lab, settings)
        self.jobs: dict[str, Job] = {}
        self.watch = Watch(self.jobs, LIMITS[0])
        if self.daemon is not None and settings.may_wait:
            self.watch.chose, self.watch.ask_s = self._chose, settings.idle_s - settings.tick_s
        self.happened = Happened()
        self.drained: list[str] = []
        self.failed_launches: set[str] = set()
        self.leaked: list[str] = []
        self._leaks: dict[str, int] = {}
        self.ours: set[str] = set()  # nodes that we have drained or ended
        self.problems: list[Problem] = []
        self.faults: Counter[str] = Counter()
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._is_up = True
        self._daemon_from_s: float | None = None  # when it was started, until it is ready
        self._begin = self._last_look = time.time()
        self._looks, self._calm, self._blind = 0, 0, 0.0
        self.why: dict[str, str] = {}  # of jobs beside which a GPU idles too long: ADLRO's word and sentence
        self.not_updatable: dict[str, str] = {}
        self.orphans: list[str] = []  # jobs handed in without their dependency: slurmctld had forgotten the other job

    # ---- before --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Users and limits; then what `adlro slurm install` writes, and the daemon."""
        self.lab.add_qos(LIMITED, f"GrpTRES=gres/gpu={LIMITS[0]}")
        for user in dict.fromkeys(self.users):
            self.lab.add_user(user, f"QOS=normal,{LIMITED}", "DefaultQOS=normal")
        if self.daemon is None:
            return
        files = self.lab.folder / "install"
        where = ["--conf", self.lab.environment["SLURM_CONF"], "--partition", PARTITION, "--daemon", self._me()]
        self.lab.run(*adlro(), "slurm", "install", "--write", str(files), *where)
        etc = self.lab.folder / "etc"
        shutil.copy(files / "job_submit.lua", etc / "job_submit.lua")
        with (etc / "slurm.conf").open("a") as conf:
            conf.write("JobSubmitPlugins=lua\n")
        self.lab.restart_controller()
        self.lab.wait(lambda: set(self.lab.node_states()) == {"idle"}, "nodes after the plugin came")
        self.daemon.start()
        end = time.monotonic() + 300  # the first time everything is compiled
        while not self.daemon.is_ready():
            assert self.daemon.is_running(), f"the daemon ended: {self.daemon.log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"the daemon is not ready: {self.daemon.log.read_text()[-2000:]}"
            time.sleep(0.2)

    def _me(self) -> str:
        return pwd.getpwuid(os.geteuid()).pw_name

    # ---- the run -------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Hand all jobs in, let all faults happen, wait until the queue is empty, and count."""
        settings, seconds = self.settings, self.settings.minutes * 60
        self._begin = self._last_look = time.time()
        plan = Plan(settings.jobs, seconds, settings.seed, tuple(self.users[:-1]), self.users[-1])
        for wish in wishes(plan):
            self._at(self._begin + wish.at_s, lambda wish=wish: self._submit(wish))  # type: ignore[misc]
        kinds = [kind for kind in settings.kinds if not (settings.plain and kind in OF_ADLRO)]
        for fault in faults(seconds, settings.seed, kinds, settings.every_s):
            self._at(self._begin + fault.at_s, lambda fault=fault: self._happen(fault))  # type: ignore[misc]
        self._until(lambda: not self._plan, self._begin + seconds + 600)
        self.say("all handed in; waiting for the queue to end")
        self._open_all()
        self._drain(max(settings.drain_s, seconds / 12))
        left = self._end_never_satisfied()
        return self._count(left)

    def _drain(self, longest_s: float) -> None:
        """Wait until the queue is empty, or until no job has ended for so long."""
        left = len(self._rows()) + 1
        while self._rows() and len(self._rows()) < left:
            left = len(self._rows())
            self._until(lambda most=left: len(self._rows()) < most, time.time() + longest_s)  # type: ignore[misc]

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._plan, (when, self._number, what))

    def _until(self, is_over: Callable[[], bool], end: float) -> None:
        """Do what is due and look, until something is so or the time is up."""
        while not is_over() and time.time() < end:
            while self._plan and self._plan[0][0] <= time.time():
                heappop(self._plan)[2]()
                if time.time() - self._last_look > LOOK_S:
                    break
            if time.time() - self._last_look >= LOOK_S:
                self._look()
            next_s = min(self._plan[0][0] if self._plan else end, self._last_look + LOOK_S)
            time.sleep(min(max(next_s - time.time(), 0.01), LOOK_S))

    def _look(self) -> None:
        now = time.time()
        found = look(self.lab, now) if self._is_up else None
        if found is None:
            self.watch.upset(time.time())
        else:
            self._blind = max(self._blind, now - self._last_look)
            if now - self._last_look > 3 * LOOK_S:
                self.watch.upset(now)  # we slept ourselves
            self.watch.see(found)
            self._looks += 1
            self._calm += now - self.watch.calm_since_s > self.settings.idle_s
            self._ask_why(found.rows)
            self._heal(found.states)
            self._free_leaked(found.leaked)
            self._release_failed_launches(found.rows)
        self._last_look = now
        if self.daemon is not None and self._daemon_from_s is not None:
            self.watch.upset(now)
            if self.daemon.is_ready():
                self.say(f"the daemon is ready {now - self._daemon_from_s:.1f} s after its start")
                self._daemon_from_s = None
        elif self.daemon is not None and not self.daemon.is_running():
            self.problems.append(Problem("the daemon died", "", self.daemon.log.read_text()[-300:]))
            self.daemon.start()
            self._daemon_from_s = now

    def _chose(self, row: Row) -> bool:
        """Whether the policy wants a held job to wait, by `adlro why` now."""
        return self._why(row)[0] in CHOICES

    def _why(self, row: Row) -> tuple[str, str]:
        assert self.daemon is not None
        return self.daemon.why(row.number if row.key == row.name else f"{row.array}_{row.task}")

    def _ask_why(self, rows: Sequence[Row]) -> None:
        """Ask ADLRO once about each job beside which a GPU idles too long, and whether Slurm lets anybody update it."""
        if self.daemon is None:
            return
        for row in rows:
            idle = self.watch.idle.get(row.key)
            if idle is None or idle.seconds <= self.settings.idle_s or row.key in self.why:
                continue
            self.why[row.key] = ": ".join(self._why(row))
            self.say(f"a GPU idles beside {idle.row} for {idle.seconds} s: {self.why[row.key]}")
            if idle.held:
                self._probe(row)

    def _probe(self, row: Row) -> None:
        """Note whether Slurm lets nobody update a job: not even root, and not even to change nothing."""
        done = self._command("scontrol", "update", f"JobId={row.number}", "Nice=0")
        if any(text in done.stderr for text in NO_UPDATE):
            self.not_updatable[row.key] = " ".join(done.stderr.split())[:150]

    def _heal(self, states: Mapping[str, str]) -> None:
        """As an administrator would: a node that Slurm drained by itself is noted, and opened again."""
        for node, state in states.items():
            if "DRAIN" in state and node not in self.ours:
                said = self.lab.run("scontrol", "--oneliner", "show", "node", node)
                reason = said.partition("Reason=")[2].partition(" Comment")[0].strip()
                self.drained.append(f"{node} at {time.time():.0f}: {reason}")
                self.say(f"Slurm drained {node}: {reason}")
                self._try("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def _free_leaked(self, leaked: Mapping[str, str]) -> None:
        """As an administrator would: GPUs that Slurm counts as used though no job has them come back by reconfigure."""
        self._leaks = {node: self._leaks.get(node, 0) + 1 for node in leaked}
        for node, looks in self._leaks.items():
            if looks == LEAKED_LOOKS:
                self.leaked.append(f"{node} at {time.time():.0f}: {leaked[node]}")
                self.say(f"Slurm counts GPUs of {node} as used that no job has: {leaked[node]}")
                self._try("scontrol", "reconfigure")
                self.watch.upset(time.time())

    def _release_failed_launches(self, rows: Sequence[Row]) -> None:
        """As an administrator would: Slurm holds a job whose launch failed. ADLRO's own jobs are ADLRO's to place."""
        for row in rows:
            if row.reason == FAILED_LAUNCH and (self.daemon is None or row.partition != PARTITION):
                self.failed_launches.add(row.key)
                self._try("scontrol", "release", row.number)

    def _rows(self) -> list[Row]:
        """What is in the queue by the last look, but for jobs whose dependency can never be met."""
        if not self.watch.looks or time.time() - self.watch.looks[-1].at_s > 3 * LOOK_S:
            return [Row("", "", "", "", "unknown", "", 0, "", "", "", "")]
        return [row for row in self.watch.looks[-1].rows if not row.can_never_run]

    def _open_all(self) -> None:
        """Nothing that we did ourselves keeps a job from running any longer."""
        self._limit(LIMITS[1])
        for job in self.jobs.values():
            if job.wish.is_held and job.let_go_s is None and job.number:
                self._release(job)
        self.watch.upset(time.time())

    def _end_never_satisfied(self) -> list[Row]:
        """Cancel the jobs whose parent did not end well; what is left else is told."""
        found = look(self.lab, time.time())
        assert found is not None, "slurmctld does not answer in the end"
        left = []
        for row in found.rows:
            if row.can_never_run:
                self.jobs[row.name].cancelled_s = time.time()
                self._try("scancel", row.number)
            else:
                left.append(row)
                self._probe(row)
        time.sleep(2.0)
        return left

    # ---- jobs ----------------------------------------------------------------------------------------------------

    def _submit(self, wish: Wish) -> None:
        if not self._is_up:
            return self._at(time.time() + 0.5, lambda: self._submit(wish))
        job = self.jobs.setdefault(wish.name, Job(wish))
        options = [f"--job-name={wish.name}", f"--partition={wish.partition}", f"--time={MINUTES_EACH}", *wish.options]
        if wish.after:
            parent = self.jobs.get(wish.after)
            if parent is not None and parent.number:
                options.append(f"--dependency=afterok:{parent.number}")
        script = f"#!/bin/sh\n{script_of(wish, str(self.lab.folder / 'jobs'))}"
        command = ["sbatch", "--parsable", "--output=/dev/null"]
        done = self._command(*command, *options, user=wish.user, stdin=script)
        if done.returncode and NO_PARENT in done.stderr and self._is_forgotten(self.jobs.get(wish.after)):
            self.say(f"slurmctld forgot {wish.after}: {wish.name} is handed in without its dependency")
            self.orphans.append(wish.name)
            done = self._command(*command, *options[:-1], user=wish.user, stdin=script)
        job.submitted_s = time.time()
        if done.returncode == 0:
            job.number = done.stdout.strip().partition(";")[0]
            for verb, after in wish.then:
                self._at(time.time() + after, lambda verb=verb: self._do(verb, job))  # type: ignore[misc]
        else:
            job.said = " ".join(done.stderr.split())[:200]

    def _do(self, verb: str, job: Job) -> None:
        """Something is done to a job by its user."""
        if not self._is_up:
            return self._at(time.time() + 0.5, lambda: self._do(verb, job))
        user = job.wish.user
        if verb == "release":
            self._release(job)
        elif verb == "cancel":
            job.cancelled_s = time.time()
            # By name too: a slurmctld that was killed may have given the number to another job.
            self._try("scancel", f"--name={job.wish.name}", job.number, user=user)
        elif verb == "move":
            self._try("scontrol", "update", f"JobId={job.number}", f"Partition={OTHER}", user=user)
        elif verb == "requeue" and self._try("scontrol", "requeue", job.number, user=user):
            job.put_back_s.append(time.time())

    def _release(self, job: Job) -> None:
        if self._is_up:
            job.let_go_s = time.time()  # before: it may run from the moment on at which Slurm hears of it
            done = self._command("scontrol", "release", job.number, user=job.wish.user)
            if done.returncode and self._has_its_number(job):
                text = f"job {job.number}: {' '.join(done.stderr.split())}"
                self.problems.append(Problem("a user cannot end the own hold", job.wish.name, text))

    def _is_forgotten(self, job: Job | None) -> bool:
        """Whether a slurmctld that was killed right after a job was handed in knows nothing of it."""
        if job is None or job.submitted_s is None or self._has_its_number(job):
            return False
        return self.happened.controller_died(job.submitted_s, job.submitted_s)

    def _has_its_number(self, job: Job) -> bool:
        """Whether its job ID is still its own: a slurmctld that was killed may have given it to another job."""
        return (
            self._command("squeue", "--noheader", "--format=%j", f"--jobs={job.number}").stdout.strip() == job.wish.name
        )

    def _command(self, *command: str, user: str | None = None, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        who = (
            {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user and os.geteuid() == 0 else {}
        )
        try:
            return subprocess.run(
                command, env=self.lab.environment, input=stdin, capture_output=True, text=True, timeout=60,
                cwd=self.lab.folder / "jobs", **who,  # type: ignore[call-overload]
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", "no answer for 60 s")

    def _try(self, *command: str, user: str | None = None) -> bool:
        done = self._command(*command, user=user)
        if done.returncode:
            self.say(f"{' '.join(command)}: {' '.join(done.stderr.split())[:150]}")
        return done.returncode == 0

    # ---- faults --------------------------------------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        if not self._is_up or self._daemon_from_s is not None:
            return self._at(time.time() + 1.0, lambda: self._happen(fault))  # one at a time
        node = fault.what
        if fault.kind in ("node", "slurmd", "drain", "reservation") and (
            node in self.ours or node in self.watch.reserved
        ):
            return self._at(time.time() + 2.0, lambda: self._happen(fault))
        about = f" {node}" if fault.kind in ("node", "slurmd", "drain", "reservation") else ""
        self.say(f"{fault.kind}{about} for {fault.for_s:g} s")
        self.faults[fault.kind] += 1
        self.watch.upset(time.time())
        self.happened.kills.setdefault(fault.kind, []).append(time.time())
        ends = {
            "daemon": self._daemon_dies, "slurmctld": self._controller_dies, "slurmrestd": self._rest_dies,
            "slurmrestd hangs": self._rest_hangs, "node": lambda: self._node_crashes(node),
            "slurmd": lambda: self._slurmd_dies(node), "drain": lambda: self._node_drains(node),
            "reservation": lambda: self._reserved(node), "limit": self._limit_changes,
        }[fault.kind]()  # fmt: skip
        if ends is not None:
            self._at(time.time() + fault.for_s, lambda: self._is_over(ends))

    def _is_over(self, ends: Callable[[], None]) -> None:
        ends()
        self.watch.upset(time.time())

    def _daemon_dies(self) -> Callable[[], None]:
        assert self.daemon is not None
        daemon = self.daemon
        daemon.kill()
        self._daemon_from_s = time.time()

        def start() -> None:
            daemon.start()
            self._daemon_from_s = time.time()

        return start

    def _controller_dies(self) -> Callable[[], None]:
        self.lab.kill("slurmctld")
        killed = time.time()
        self._is_up = False

        def start() -> None:
            self.lab.start_controller()
            self._at(time.time() + 0.3, answers)

        def answers() -> None:
            if look(self.lab, time.time()) is None:
                return self._at(time.time() + 0.5, answers)
            self._is_up = True
            self.watch.back_s = time.time()
            self.watch.upset(self.watch.back_s)
            for job in self.jobs.values():  # slurmctld may have forgotten that their users let them go
                if job.number and job.let_go_s is not None and killed - FORGETS_S < job.let_go_s <= killed:
                    self._try("scontrol", "release", job.number, user=job.wish.user)

        return start

    def _rest_dies(self) -> Callable[[], None]:
        self.lab.kill("slurmrestd")
        return self.lab.start_rest

    def _rest_hangs(self) -> Callable[[], None]:
        process = self.lab.daemons["slurmrestd"]
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)

    def _node_crashes(self, node: str) -> Callable[[], None]:
        self.ours.add(node)
        self.lab.crash(node)
        self.happened.crashes.append((node, time.time()))

        def start() -> None:
            self.lab.start_node(node)
            self.ours.discard(node)

        return start

    def _slurmd_dies(self, node: str) -> Callable[[], None]:
        self.lab.kill(f"slurmd {node}")
        return lambda: self.lab.start_node(node)

    def _node_drains(self, node: str) -> Callable[[], None]:
        self.ours.add(node)
        self._try("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=soak")

        def resume() -> None:
            if not self._is_up:
                return self._at(time.time() + 0.5, resume)
            self._try("scontrol", "update", f"NodeName={node}", "State=RESUME")
            self.ours.discard(node)

        return resume

    def _reserved(self, node: str) -> Callable[[], None]:
        self.watch.reserved.add(node)
        words = ["StartTime=now", "Duration=60", f"Nodes={node}", "Users=root", "Flags=IGNORE_JOBS"]
        self._try("scontrol", "create", "reservation", f"ReservationName=soak_{node}", *words)

        def delete() -> None:
            if not self._is_up:
                return self._at(time.time() + 0.5, delete)
            self._try("scontrol", "delete", f"ReservationName=soak_{node}")
            self.watch.reserved.discard(node)
            self.watch.upset(time.time())

        return delete

    def _limit_changes(self) -> None:
        self._limit(LIMITS[0] if self.watch.limit == LIMITS[1] else LIMITS[1])

    def _limit(self, limit: int) -> None:
        self.lab.limit(LIMITED, f"GrpTRES=gres/gpu={limit}")
        self.watch.limit = limit

    # ---- after ---------------------------------------------------------------------------------------------------

    def _count(self, left: Sequence[Row]) -> Result:
        """Everything against Slurm's records and the jobs' own stamps."""
        stamps: list[Stamp] = []
        for file in sorted((self.lab.folder / "jobs").glob("*.stamps")):
            stamps += stamps_in(file.read_text())
        runs = runs_of(stamps)
        records = self.lab.sacct("JobID", "JobName%32", "State", "NNodes", "NodeList", "AllocTRES%120")
        found = account(self.jobs, runs, records, left, self.happened)
        idle = sorted(self.watch.idle.values(), key=lambda each: -each.seconds)
        held = sorted(self.watch.longest_held.values(), key=lambda each: -each.seconds)
        problems = [*self.problems, *found.problems]
        for name, text in self.watch.released_for_users.items():
            problems.append(Problem("a user's hold was ended by another", name, text))
        problems = [each for each in problems if not (each.kind == HELD_AT_END and each.job in self.not_updatable)]
        too_long = [each for each in idle if each.seconds > self.settings.idle_s]
        too_long += [each for each in held if each.seconds > self.settings.held_s]
        slurms_own = [each for each in too_long if not each.held and not each.is_pinned]
        chosen = [each for each in self.watch.chosen.values() if each.seconds > self.settings.idle_s]
        known = {each.job for each in [*too_long, *chosen]}
        kept = [
            each for each in self.watch.idle_or_kept.values()
            if each.seconds > self.settings.idle_s and each.job not in known and (each.held or each.is_pinned)
        ]  # fmt: skip
        for each in too_long if self.daemon is not None else ():
            if each in slurms_own or each.job in self.not_updatable:
                continue
            kind = "a GPU idled beside a job that ADLRO held" if each.held else "a GPU idled beside a job let go"
            text = f"{each.shape}: {each.seconds} s until {each.until_s:.0f}: {each.row}; free {each.free}"
            problems.append(Problem(kind, each.job, f"{text}. {self.why.get(each.job, '')}"))
        return Result(
            self.settings, found, idle, held, self.faults, self.drained, self.leaked, len(self.failed_launches),
            time.time() - self._begin, len(self.jobs),
            sum(map(len, runs.values())), self._looks, self._blind, self._calm / max(self._looks, 1),
            slurms_own, kept, self.watch.kept_looks / max(self._looks, 1), chosen, self.not_updatable,
            self.orphans, problems,
        )  # fmt: skip


def soak(settings: Settings, say: Callable[[str], None]) -> Result:
    """A soak from beginning to end, with a Slurm of its own."""
    conf = ["DebugFlags=NO_CONF_HASH", f"PartitionName={OTHER} Nodes=ALL MaxTime=INFINITE State=UP"]
    lab = Lab(MACHINES, dbd=True, conf=conf, min_job_age_s=120)
    try:
        with running(lab):
            it = Soak(lab, settings, say)
            try:
                it.prepare()
                say("everything is up")
                result = it.run()
                if settings.keep is not None:
                    _keep(lab, settings.keep, result)
                return result
            except BaseException:
                if settings.keep is not None:
                    _keep(lab, settings.keep, None)
                raise
            finally:
                if it.daemon is not None:
                    it.daemon.kill(hard=False)
    finally:
        lab.stop()


def _keep(lab: Lab, folder: Path, result: Result | None) -> None:
    """Copy the logs and the jobs' stamps out of a lab that is about to go."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("log", "jobs", "adlro"):
        if (lab.folder / name).exists():
            shutil.copytree(
                lab.folder / name, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock")
            )
    for line, command in {
        "sacct.txt": [
            "sacct",
            "-aDXP",
            "-S",
            "now-7days",
            "-o",
            "JobID,JobName,User,State,Submit,Start,End,NodeList,AllocTRES",
        ],
        "squeue.txt": ["squeue", "-a", "-o", "%i|%j|%T|%r|%Q|%P|%N|%E|%q|%u|%k"],
        "nodes.txt": ["scontrol", "-d", "-o", "show", "nodes"],
    }.items():
        done = subprocess.run(command, env=lab.environment, capture_output=True, text=True, timeout=60)
        (folder / line).write_text(done.stdout + done.stderr)
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result.told(), indent=2))


def main(words: Sequence[str] | None = None) -> int:
    """Run a soak and print what came of it."""
    asked = argparse.ArgumentParser(description="A soak on a real Slurm: every job is accounted for.")
    asked.add_argument("--minutes", type=float, default=5.0, help="how long jobs are handed in")
    asked.add_argument("--jobs", type=int, default=120, help="how many")
    asked.add_argument("--seed", type=int, default=1, help="of the jobs and of what happens to the cluster")
    asked.add_argument("--tick", type=float, default=5.0, metavar="S", help="seconds between two turns of the daemon")
    asked.add_argument("--policy", default="adlro", help="who decides (adlro policies)")
    asked.add_argument("--plain", action="store_true", help="Slurm alone: no plugin and no daemon")
    asked.add_argument("--faults", default=",".join(KINDS), help="which of these happen; '' is none")
    asked.add_argument("--every", type=float, default=45.0, metavar="S", help="about so long between two faults")
    asked.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    asked.add_argument("--keep", type=Path, metavar="FOLDER", help="copy logs, stamps and sacct here")
    given = asked.parse_args(words)
    kinds = tuple(kind.strip() for kind in given.faults.split(",") if kind.strip())
    if odd := set(kinds) - set(KINDS):
        asked.error(f"there is no fault '{sorted(odd)[0]}'; expected some of {', '.join(KINDS)}")
    for name, least in (("minutes", 0.1), ("jobs", 1), ("tick", 0.5), ("every", 1.0)):
        if (value := getattr(given, name)) < least:
            asked.error(f"--{name} is {value:g}; expected {least:g} or more")
    settings = Settings(
        given.minutes,
        given.jobs,
        given.seed,
        given.tick,
        given.policy,
        given.plain,
        kinds,
        given.every,
        keep=given.keep,
    )
    began = time.time()
    result = soak(settings, lambda text: print(f"{time.time() - began:7.1f} s  {text}", file=sys.stderr, flush=True))
    print("\n".join(result.lines()))
    if given.json is not None:
        given.json.write_text(json.dumps(result.told(), indent=2) + "\n")
    return int(bool(result.problems))


if __name__ == "__main__":
    sys.exit(main())
