"""Ask a daemon's API at a steady rate, and print how long the answers took.

    python scripts/api_load.py --url http://127.0.0.1:8321 --rate 500 --seconds 30

Requests are sent at the times planned for them, whether the ones before are answered or not, and a latency counts from
the planned time: a server that stops for a second is seen as slow by all that came in that second. A token is in
ADLRO_TOKEN. The last line says how many decisions the daemon made meanwhile, and in how many turns; `--rate 0` asks
nothing, to compare.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

MIX = {
    "state, unchanged or new": 20,
    "page of jobs": 25,
    "one job": 25,
    "why": 10,
    "decisions": 10,
    "cluster, unchanged or new": 5,
    "health": 5,
}
"""Kinds of requests, and how many of a hundred each has."""


@dataclass
class Asker:
    """One connection that is kept open, with the ETags of the answers so far."""

    host: str
    port: int
    headers: str
    tags: dict[str, str] = field(default_factory=dict)
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        if self.writer is None or self.reader is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=2**26)
        tag = f"If-None-Match: {self.tags[path]}\r\n" if path in self.tags else ""
        self.writer.write(f"GET {path} HTTP/1.1\r\n{self.headers}{tag}\r\n".encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(fields.get("content-length", 0)))
        if "etag" in fields:
            self.tags[path] = fields["etag"]
        return int(head[0].split()[1]), body


async def counted(asker: Asker) -> tuple[float, float]:
    """Decisions and turns that the daemon has made so far."""
    _, page = await asker.ask("/metrics")
    lines = [line.rpartition(" ") for line in page.decode().splitlines()]
    names = ("adlro_decisions_total", "adlro_ticks_total")
    decisions, turns = (sum(float(value) for key, _, value in lines if key.startswith(name)) for name in names)
    return decisions, turns


@dataclass
class Outcome:
    """What came back from the requests."""

    took: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in MIX})  # s from the planned time
    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Target:
    """The API that is asked."""

    host: str
    port: int
    headers: str

    def asker(self) -> Asker:
        """A new connection."""
        return Asker(self.host, self.port, self.headers)


Planned: TypeAlias = tuple[float, str, str]
"""When a request is sent, its kind in MIX, and its path."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8321")
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def target_of(url: str) -> Target:
    """The API at a URL, with the token of ADLRO_TOKEN."""
    place = urlsplit(url)
    host, port = place.hostname or "127.0.0.1", place.port or 80
    token = os.environ.get("ADLRO_TOKEN")
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    return Target(host, port, f"Host: {host}:{port}\r\nAccept-Encoding: gzip\r\n{authorization}")


def paths_by_kind(jobs: list[str], pick: random.Random) -> dict[str, Callable[[], str]]:
    """For each kind of request in MIX, a function that draws its path."""
    return {
        "state, unchanged or new": lambda: "/api/v1/state",
        "page of jobs": lambda: f"/api/v1/jobs?state=waiting&limit=50&offset={50 * pick.randrange(20)}",
        "one job": lambda: f"/api/v1/jobs/{pick.choice(jobs)}",
        "why": lambda: f"/api/v1/jobs/{pick.choice(jobs)}/why",
        "decisions": lambda: "/api/v1/decisions?limit=20",
        "cluster, unchanged or new": lambda: "/api/v1/cluster",
        "health": lambda: "/healthz",
    }


async def answer_planned(target: Target, plan: "asyncio.Queue[Planned]", outcome: Outcome) -> None:
    """Send the planned requests over one connection, one after another, until cancelled."""
    own = target.asker()
    while True:
        planned, kind, path = await plan.get()
        try:
            status, _ = await own.ask(path)
            outcome.statuses[status] += 1
            outcome.took[kind].append(time.perf_counter() - planned)
        except (OSError, asyncio.IncompleteReadError) as error:
            outcome.errors[type(error).__name__] += 1
            own = target.asker()
        plan.task_done()


async def run_load(target: Target, given: argparse.Namespace, jobs: list[str]) -> tuple[Outcome, float]:
    """Send the requests at the planned times; what came back, and how many seconds it took."""
    pick = random.Random(given.seed)
    paths = paths_by_kind(jobs, pick)
    kinds = pick.choices(list(MIX), list(MIX.values()), k=int(given.rate * given.seconds))
    plan: asyncio.Queue[Planned] = asyncio.Queue()
    outcome = Outcome()
    workers = [asyncio.create_task(answer_planned(target, plan, outcome)) for _ in range(given.connections)]
    began = time.perf_counter()
    for number, kind in enumerate(kinds):
        planned = began + number / given.rate
        if (ahead := planned - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        plan.put_nowait((planned, kind, paths[kind]()))
    await plan.join()
    if not given.rate:
        await asyncio.sleep(given.seconds)
    lasted = time.perf_counter() - began
    for worker in workers:
        worker.cancel()
    return outcome, lasted


def show(outcome: Outcome, lasted: float) -> None:
    """Print the latencies of each kind of request, and of all."""
    everything = [seconds for kind in outcome.took.values() for seconds in kind]
    print(f"{'':28}{'asked':>8}{'p50 ms':>9}{'p90 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for name, values in (*outcome.took.items(), ("all", everything)):
        if values:
            ranked = sorted(values)
            cells = [1000 * ranked[min(int(q * len(ranked)), len(ranked) - 1)] for q in (0.5, 0.9, 0.99, 1.0)]
            print(f"{name:28}{len(values):>8,}" + "".join(f"{cell:>9.1f}" for cell in cells))
    statuses, errors = dict(sorted(outcome.statuses.items())), dict(outcome.errors)
    print(f"{len(everything) / lasted:.0f} answers/s; statuses {statuses}; errors {errors}")


async def main() -> int:
    """Run the load and print the latencies."""
    given = arguments()
    target = target_of(given.url)
    asker = Asker(target.host, target.port, target.headers.replace("gzip", "identity"))
    status, body = await asker.ask("/api/v1/jobs?limit=500")
    if status != 200:
        print(f"{given.url} answered {status}: {body.decode()}", file=sys.stderr)
        return 1
    page = json.loads(body)
    _, body = await asker.ask("/api/v1/jobs?state=waiting&limit=500")
    jobs = [job["id"] for job in page["jobs"] + json.loads(body)["jobs"]]  # first those that hold GPUs
    print(f"{page['total']:,} jobs; {given.rate:g} requests/s for {given.seconds:g} s, {given.connections} connections")
    before = await counted(asker)
    outcome, lasted = await run_load(target, given, jobs)
    show(outcome, lasted)
    decisions, turns = (now - was for now, was in zip(await counted(target.asker()), before, strict=True))
    print(f"{decisions:.0f} decisions in {turns:.0f} turns")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
