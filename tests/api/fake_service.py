"""A made-up cluster behind the Service protocol, all in memory: API, dashboard and terminal are tried on it.

`python -m tests.api.fake_service` serves it on 127.0.0.1:8321, with a turn every second.
"""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import BackendError, CatalogueError
from adlro.core.learned import FoundFamily, JobSpeeds, LearnedSpeed, LearnedTable, PastSpeed
from adlro.core.ports import ENDED, JobState, LiveJob, Output, Part, Snapshot, Submission
from adlro.core.records import Cluster, Gpus, Job, Link, Node
from adlro.live.history import figures_of, summed
from adlro.live.service import (
    Alarm,
    Alternative,
    Compared,
    Decision,
    Drift,
    Event,
    HistoryQuery,
    Like,
    Start,
    State,
    Tick,
    Usage,
    WhatIf,
    WhatIfAnswer,
    Why,
)

USERS: Final = ("ann", "bob", "chen", "dana", "eli")
FAMILIES: Final = ("simulation", "learning", "data")
NAMES: Final = ("train-resnet", "sweep", "lammps-melt", "md", "etl-nightly", "<b>bold</b> & 'quoted'", "gpt-ft-λ")
PARTITIONS: Final = ("gpu", "debug")
POLICIES: Final = ("adlro", "sjf", "fcfs", "fcfs-easy")
NOW: Final = 1_800_000_000.0
"""The moment at which the made-up cluster begins, seconds since 1970."""

HELD: Final = (JobState.PLACED, JobState.RUNNING)
TICK_S: Final = 60.0
"""How far the cluster's clock goes in one turn."""


class FakeService:
    """A Service without a daemon: `turn` is one tick, by hand or by `run`."""

    def __init__(self, cluster: Cluster | None = None, jobs: int = 60, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.cluster = cluster or made_up_cluster()
        self.lock = threading.Condition(threading.RLock())
        self.now = NOW
        self.number = 0
        self.jobs: dict[str, LiveJob] = {}
        self.commands: dict[str, tuple[str, ...]] = {}
        self.log: list[Decision] = []
        self.events_seen: list[Event] = []
        self.alarms: list[Alarm] = []
        self.compared: list[Compared] = []
        self.outputs: dict[str, Output] = {}
        self.policy = "adlro"
        self.ready = (True, "")
        self.broken: Exception | None = None
        self.down = {self.cluster.nodes[-1].name: "drained: fan replaced at noon"}
        self.free = {
            (node.name, index): gpus.model
            for node in self.cluster.nodes
            if node.name not in self.down
            for index, gpus in enumerate(one for group in node.gpus for one in [group] * group.count)
        }
        for number in range(jobs):
            self.add(self.some_job(NOW - 20_000 + 300 * number))
        for _ in range(3):
            self.turn()
        self.end_some()
        self.note_the_past()
        self.turn()

    # ---- what the API asks ------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The latest state."""
        return self.latest

    def job(self, id: str) -> LiveJob | None:
        """One job."""
        return self.jobs.get(id)

    def submit(self, submission: Submission) -> str:
        """Take a job; a family that it does not know is refused as the real one would."""
        self.fail_if_broken()
        if submission.job.family not in FAMILIES:
            raise CatalogueError(f"no family {submission.job.family!r}; known are {', '.join(FAMILIES)}.")
        with self.lock:
            id = self.add(replace(submission.job, submit_s=self.now))
            self.commands[id] = submission.command
            self.happen("submitted", {"job": id, "user": submission.job.user, "name": submission.job.name})
            return id

    def cancel(self, job: str) -> None:
        """End a job."""
        self.fail_if_broken()
        with self.lock:
            old = self.jobs[job]
            self.release(old)
            self.jobs[job] = replace(old, state=JobState.CANCELLED, ended_s=self.now)
            self.happen("cancelled", {"job": job, "user": old.job.user})

    def why(self, job: str) -> Why | None:
        """Why it waits, or runs where it does."""
        self.fail_if_broken()
        found = self.jobs.get(job)
        if found is None:
            return None
        made = next((decision for decision in reversed(self.log) if decision.job == job), None)
        if found.state is not JobState.WAITING:
            where = ", ".join(part.node for part in found.parts)
            text = f"It runs on {where}: the best place that was open."
            return Why(job, found.state, "placed", text, "What fits where", decision=made)
        start = self.latest.starts.get(job)
        wanted = found.job.gpus
        return Why(
            job=job,
            state="waiting",
            dominant="resources",
            text=f"It needs {wanted} GPUs of one model on one node, and no node has that many free now.",
            rule="What fits where: width 1",
            start=start,
            places=tuple(
                {"model": model, "answer": f"{free} of {wanted} GPUs are free on the emptiest node"}
                for model, free in self.most_free().items()
            ),
            ahead=sum(
                1
                for other in self.latest.starts.values()
                if start and other.middle_s and start.middle_s and other.middle_s < start.middle_s
            ),
        )

    def speeds(self, job: str) -> JobSpeeds | None:
        """Made-up speeds: each model is two thirds of the one before, and the third was measured."""
        self.fail_if_broken()
        if job not in self.jobs:
            return None
        names = list(self.cluster.models)
        speeds = {}
        for at, name in enumerate(names):
            value, width = (2 / 3) ** at, (1.0, 1.1, 1.4, 2.5)[min(at, 3)]
            source = "measured" if at == 2 else "learned"
            speeds[name] = LearnedSpeed(value, value / width, value * width, 40 // (at + 1), source)
        because = (
            PastSpeed("ann", "train-resnet", names[0], 0.4, 0.9, ("user ann", "word train", "gpus 2"), "7"),
            PastSpeed("bob", "secret-plan", names[-1], 0.3, 0.5, ("word secret", "gpus 2"), "8"),
        )
        return JobSpeeds(names[0], speeds, because)

    def learned_speeds(self) -> LearnedTable:
        """One family."""
        found = self.speeds(next(iter(self.jobs)))
        assert found is not None
        return LearnedTable(
            found.reference, (FoundFamily(("train", "resnet"), ("ann",), 12, found.speeds),), 12, 0, "live"
        )

    def what_if(self, question: WhatIf) -> WhatIfAnswer:
        """A made-up answer: more nodes are better."""
        self.fail_if_broken()
        more = sum(gpus * count for _, gpus, count in question.add_nodes)
        factor = self.cluster.gpu_count / (self.cluster.gpu_count + more)
        starts = tuple(
            Start(f"new-{index}", self.now + 60, self.now + 300, self.now + 900)
            for index in range(1, len(question.jobs) + 1)
        )
        text = f"With {more} more GPUs the jobs that wait would be done {1 - factor:.0%} sooner."
        return WhatIfAnswer(7200.0, 7200 * factor, 30_000.0, 30_000 * factor, starts, 12 if more else 0, 0.04, text)

    def decisions(self, job: str = "", before: str = "", limit: int = 100) -> Sequence[Decision]:
        """Decisions, the latest first."""
        found = [decision for decision in reversed(self.log) if job in ("", decision.job)]
        if before:
            place = next((index for index, decision in enumerate(found) if decision.id == before), len(found))
            found = found[place + 1 :]
        return found[:limit]

    def points(self, since_s: float, until_s: float) -> Sequence[Compared]:
        """The measured history between two moments."""
        return [point for point in self.compared if since_s <= point.time_s <= until_s]

    def past(self, asked: HistoryQuery, before_s: float | None, limit: int) -> Sequence[LiveJob]:
        """Jobs that ended, the latest first."""
        found = [
            live
            for live in self.jobs.values()
            if live.state in ENDED
            and live.ended_s is not None
            and (before_s is None or live.ended_s < before_s)
            and asked.user in ("", live.job.user)
            and asked.partition in ("", live.partition)
            and (not asked.node or any(part.node == asked.node for part in live.parts))
        ]
        return sorted(found, key=lambda live: -(live.ended_s or 0.0))[:limit]

    def usage(self, asked: HistoryQuery, since_s: float, until_s: float, step_s: float) -> Usage:
        """What jobs that ended used."""
        rows = []
        for live in self.past(asked, None, 10_000):
            _, _, state, gpu_s, waited_s, ran_s = figures_of(live)
            rows.append((live.ended_s, gpu_s, waited_s, ran_s, state))
        return summed(rows, since_s, until_s, step_s)

    def output(self, job: str) -> Output | None:
        """What a test has put here."""
        return self.outputs.get(job)

    def use_policy(self, name: str) -> None:
        """Decide with this policy from the next turn on."""
        if name not in POLICIES:
            raise CatalogueError(f"no policy {name!r}.")
        with self.lock:
            self.policy = name
            self.happen("policy", {"policy": name})

    def events(self, after: int, wait_s: float) -> Sequence[Event]:
        """Events above a number, after waiting for one if there is none yet."""
        with self.lock:
            self.lock.wait_for(lambda: len(self.events_seen) > max(after, 0), timeout=wait_s)
            return self.events_seen[max(after, 0) :]

    def is_ready(self) -> tuple[bool, str]:
        """What `ready` was set to."""
        return self.ready

    # ---- how it lives -----------------------------------------------------------------------------------------------

    def turn(self) -> Tick:
        """One tick: end what is through, start what fits, note it all."""
        with self.lock:
            self.number += 1
            self.now += TICK_S
            for live in list(self.jobs.values()):
                if live.state is JobState.PLACED:
                    self.jobs[live.id] = replace(live, state=JobState.RUNNING, started_s=self.now)
                elif live.started_s is not None and live.ended_s is None and self.now - live.started_s > live.job.work:
                    self.end(live, JobState.FINISHED)
            made = self.start_what_fits()
            alarms = tuple(self.raise_alarm()) if self.number % 7 == 0 else ()
            waiting = [live for live in self.jobs.values() if live.state is JobState.WAITING]
            running = [live for live in self.jobs.values() if live.state in HELD]
            tick = Tick(
                self.number, self.now, self.policy, self.policy, 0.012, len(waiting), len(running), made, (), alarms
            )
            self.latest = State(
                snapshot=Snapshot(self.now, self.cluster, tuple(self.jobs.values()), dict(self.down)),
                tick=tick,
                backend="simulated",
                policy=self.policy,
                fallback="fcfs-easy",
                is_guarded=False,
                is_leader=True,
                starts=self.predict(waiting),
                alarms=tuple(self.alarms),
                drifts=self.drifts(),
                history=tuple(self.compared),
                telemetry=self.telemetry(),
            )
            self.happen("tick", {"tick": self.number, "waiting": len(waiting), "running": len(running)})
            return tick

    def run(self, interval_s: float, stop: threading.Event, busy_s: float = 0.0) -> None:
        """Turn until told to stop; `busy_s` of plain Python in each turn stands for a scheduler at work."""
        while not stop.wait(interval_s):
            until = time.perf_counter() + busy_s
            while time.perf_counter() < until:
                sum(range(1000))
            self.turn()
            if len([live for live in self.jobs.values() if live.state is JobState.WAITING]) < 20:
                self.add(self.some_job(self.now))

    def add(self, job: Job) -> str:
        """A job into the queue; its id."""
        id = str(1001 + len(self.jobs))
        self.jobs[id] = LiveJob(id, job, JobState.WAITING, partition=PARTITIONS[len(self.jobs) % 3 == 0])
        return id

    def some_job(self, submit_s: float) -> Job:
        """A job by chance."""
        pick = self.random
        minutes = pick.lognormvariate(4, 1)
        return Job(
            family=pick.choice(FAMILIES),
            work=60 * minutes,
            submit_s=submit_s,
            gpus=pick.choice((1, 1, 1, 2, 2, 4, 8)),
            cpus=4.0,
            memory_gb=16.0,
            user=pick.choice(USERS),
            name=pick.choice(NAMES),
            limit_s=60 * (minutes + 30),
            estimate=60 * minutes * pick.uniform(0.7, 1.4),
        )

    def start_what_fits(self) -> tuple[Decision, ...]:
        """Start jobs on the first node that has the room, in the order of the queue; the decisions."""
        made = []
        for live in list(self.jobs.values()):
            if live.state is not JobState.WAITING or not self.free:
                continue
            places = self.places(live.job.gpus)
            if not places:
                continue
            runtime = live.job.work
            id = f"{self.number}-{live.id}"
            decision = Decision(
                id=id,
                time_s=self.now,
                tick=self.number,
                job=live.id,
                verb="start",
                parts=(places[0],),
                policy=self.policy,
                reason=f"Best score of the places that were open ({len(places)}): fast there, and no GPU is left idle.",
                runtime_s=runtime,
                low_s=0.6 * runtime,
                high_s=1.7 * runtime,
                alternatives=tuple(
                    Alternative((part,), round(-0.4 - 0.3 * rank, 3), runtime * (1 + 0.4 * rank), chosen=rank == 0)
                    for rank, part in enumerate(places[:6])
                ),
                like=tuple(
                    Like(str(900 + n), live.job.name, USERS[n], runtime * (0.8 + 0.1 * n), 0.95 - 0.06 * n)
                    for n in range(3)
                ),
            )
            made.append(decision)
            self.log.append(decision)
            for index in places[0].indices:
                del self.free[places[0].node, index]
            seen = self.random.random() > 0.1
            self.jobs[live.id] = replace(
                live,
                state=JobState.RUNNING if seen else JobState.PLACED,
                parts=(places[0],),
                started_s=self.now if seen else None,
                starts=live.starts + 1,
                decision=id,
            )
            self.happen("decided", {"job": live.id, "decision": id})
            self.happen("started", {"job": live.id, "node": places[0].node})
        return tuple(made)

    def places(self, wanted: int) -> list[Part]:
        """Where so many GPUs of one model on one node are free."""
        free: dict[tuple[str, str], list[int]] = {}
        for (node, index), model in self.free.items():
            free.setdefault((node, model), []).append(index)
        return [
            Part(node, model, wanted, tuple(sorted(indices)[:wanted]))
            for (node, model), indices in free.items()
            if len(indices) >= wanted
        ]

    def most_free(self) -> dict[str, int]:
        """For each model the most free GPUs that a node has."""
        most = {gpus.model: 0 for node in self.cluster.nodes for gpus in node.gpus}
        for model in most:
            by_node: dict[str, int] = {}
            for (node, _), its in self.free.items():
                by_node[node] = by_node.get(node, 0) + (its == model)
            most[model] = max(by_node.values(), default=0)
        return most

    def end(self, live: LiveJob, state: JobState) -> None:
        """End a job that runs."""
        self.release(live)
        code = 0 if state is JobState.FINISHED else 1
        self.jobs[live.id] = replace(live, state=state, ended_s=self.now, exit_code=code)
        self.happen("ended", {"job": live.id, "state": str(state)})

    def end_some(self) -> None:
        """So that there are jobs in all states."""
        running = [live for live in self.jobs.values() if live.state in HELD]
        for live, state in zip(running, (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED), strict=False):
            self.end(live, state)

    def release(self, live: LiveJob) -> None:
        """Give a job's GPUs back."""
        if live.state in HELD:
            for part in live.parts:
                self.free |= {(part.node, index): part.model for index in part.indices}

    def predict(self, waiting: Sequence[LiveJob]) -> Mapping[str, Start]:
        """Starts of the jobs that wait, one after another; the largest are not foreseen."""
        return {
            live.id: (
                Start(live.id, self.now + 200 * n, self.now + 300 * n + 120, self.now + 700 * n + 900)
                if live.job.gpus < 8
                else Start(live.id, None, None, None)
            )
            for n, live in enumerate(waiting)
        }

    def telemetry(self) -> Mapping[str, Mapping[str, float | None]]:
        """What the GPUs would say; one of them says nothing."""
        found: dict[str, Mapping[str, float | None]] = {}
        for node in self.cluster.nodes:
            for index in range(sum(gpus.count for gpus in node.gpus)):
                busy = node.name not in self.down and (node.name, index) not in self.free
                use = self.random.uniform(0.7, 1.0) if busy else 0.0
                found[f"{node.name}/{index}"] = {
                    "utilisation": round(use, 3),
                    "temperature": round(0.35 + 0.45 * use, 3),
                    "memory": round(0.8 * use, 3),
                }
        last = self.cluster.nodes[0].name, sum(gpus.count for gpus in self.cluster.nodes[0].gpus) - 1
        more = {"bandwidth": 0.31, "power": 0.62, "sm_clock": 0.74}  # few sources send these
        found["{}/{}".format(*last)] = {**found["{}/{}".format(*last)], **more}
        first = self.cluster.nodes[0].name
        found[f"{first}/0"] = {"utilisation": None, "temperature": None, "memory": None}
        return found

    def drifts(self) -> tuple[Drift, ...]:
        """A worn GPU, and a driver that made one family slower."""
        first, last = self.cluster.nodes[0], self.cluster.nodes[-1]
        return (
            Drift(first.gpus[0].model, 0.71, 17, NOW - 3600, node=first.name, gpu=1),
            Drift(last.gpus[0].model, 0.88, 42, NOW - 86_400, family="learning"),
        )

    def raise_alarm(self) -> list[Alarm]:
        """An alarm, noted."""
        node = self.cluster.nodes[0].name
        alarm = Alarm(self.now, "drift", f"GPU 1 of {node} runs at 71 % of the speed that is expected.", node=node)
        self.alarms.append(alarm)
        self.happen("alarm", {"kind": alarm.kind, "text": alarm.text, "node": node})
        return [alarm]

    def note_the_past(self) -> None:
        """Alarms and measurements of the last hours."""
        node = self.cluster.nodes[-1].name
        waiting = next(live.id for live in self.jobs.values() if live.state is JobState.WAITING)
        self.alarms += [
            Alarm(NOW - 7200, "down", f"{node} takes no jobs: {self.down[node]}.", node=node),
            Alarm(NOW - 900, "starvation", f"Job {waiting} waits longer than the site allows.", job=waiting),
        ]
        self.compared += [
            Compared(
                NOW - 60 * (240 - minute),
                min(1.0, 0.7 + 0.25 * self.random.random()),
                None if minute < 5 else 4000 + 40 * self.random.gauss(0, 10),
                None if minute < 5 else 4600 + 40 * self.random.gauss(0, 10),
            )
            for minute in range(240)
        ]

    def happen(self, kind: str, data: Mapping[str, object]) -> None:
        """Note an event and wake those who listen."""
        with self.lock:
            self.events_seen.append(Event(len(self.events_seen) + 1, self.now, kind, data))
            self.lock.notify_all()

    def fail_if_broken(self) -> None:
        """Raise what a test has put here."""
        if self.broken is not None:
            raise self.broken

    def gone(self) -> None:
        """From now on the back end does not answer."""
        self.broken = BackendError("slurmrestd does not answer at /run/slurmrestd.sock. Is it running?")

    def one(self, state: JobState, user: str | None = None) -> LiveJob:
        """A job in this state, of this user if one is named."""
        return next(j for j in self.jobs.values() if j.state is state and user in (None, j.job.user))


def made_up_cluster() -> Cluster:
    """The paper's 16 GPUs and a node with two models."""
    base = load_cluster("paper16")
    both = Node("both", 64.0, 512.0, (Gpus("v100-sxm2-16gb", 2), Gpus("t4", 2)), Link("pcie", 32.0))
    return replace(base, name="made-up", nodes=(*base.nodes[:-1], both, base.nodes[-1]))


def large_cluster(nodes: int) -> Cluster:
    """So many nodes of four GPUs."""
    base = load_cluster("paper16")
    return replace(
        base,
        name="large",
        nodes=tuple(replace(base.nodes[n % len(base.nodes)], name=f"node{n:04}") for n in range(nodes)),
    )


def main() -> None:
    """Serve the made-up cluster; everyone local is an operator."""
    import argparse
    from pathlib import Path

    from adlro.api.app import make_app
    from adlro.api.server import make_server
    from adlro.api.settings import ApiSettings

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8321)
    parser.add_argument("--nodes", type=int, default=0, help="0: the small made-up cluster")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--every-s", type=float, default=1.0)
    parser.add_argument("--busy-s", type=float, default=0.0)
    parser.add_argument("--dashboard", type=Path)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second for each address")
    given = parser.parse_args()
    service = FakeService(large_cluster(given.nodes) if given.nodes else None, given.jobs)
    settings = ApiSettings(port=given.port, auth="off", rate_per_s=given.rate)
    stop = threading.Event()
    turning = threading.Thread(target=service.run, args=(given.every_s, stop, given.busy_s), daemon=True)
    turning.start()
    try:
        make_server(make_app(service, settings, dashboard=given.dashboard), settings).run()
    finally:
        stop.set()
        turning.join()


if __name__ == "__main__":
    main()
