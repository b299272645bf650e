#!/usr/bin/env python3
"""A day of the daemon in a few minutes: does its memory grow?

    scripts/soak_memory.py                       24 simulated hours of the demo's cluster, a turn every 30 s of them
    scripts/soak_memory.py --hours 2 --step 60   less of it

The cluster's clock is moved by hand, so that every turn is made however slow the machine is. Memory is what the system
says that the process holds (RSS), taken every simulated hour; the first hours fill what is kept on purpose (events,
history, compiled code), so growth is counted from --from on. Exit code 1 if it is more than --most.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from adlro.backends.kind import Opened
from adlro.backends.simulated.clock import ByHand
from adlro.backends.simulated.demo import demo_backend, telemetry
from adlro.daemon.config import Config, load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.opening import open_memory, open_orchestrator
from adlro.daemon.running import DaemonParts

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Hour:
    """What stands after a simulated hour."""

    hour: float
    rss_mb: float
    turns: int
    ended: int
    longest_turn_s: float
    store_mb: float


def rss_mb() -> float:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def day(folder: Path, hours: float, step_s: float, policy: str) -> Iterator[Hour]:
    """Live through some hours, and tell after each."""
    clock = ByHand()
    cluster = demo_backend(clock=clock)
    store = folder / "adlro.db"
    config = load_config(None, {"policy.name": policy, "store.url": f"sqlite:{store}"})

    def build(config: Config) -> DaemonParts:
        memory, notes = open_memory(config)
        opened = Opened(cluster, lambda: cluster.now_s, partial(telemetry, cluster))
        return DaemonParts(cluster, memory, partial(open_orchestrator, opened=opened), opened.clock, notes)

    daemon = Daemon(config, build)
    turns = ended = heard = 0
    longest = 0.0
    try:
        for hour in range(1, int(hours) + 1):
            while clock.seconds < hour * HOUR_S:
                clock.move(step_s)
                tick = daemon.tick()
                assert tick is not None
                turns += 1
                longest = max(longest, tick.seconds) if turns > 1 else 0.0  # the first one compiles
                news = daemon.events(heard, 0.0)
                heard = news[-1].number
                ended += sum(event.kind == "ended" for event in news)
            yield Hour(hour, rss_mb(), turns, ended, longest, store.stat().st_size / 1e6)
    finally:
        daemon.close()


def main() -> int:
    """Run the day and print it."""
    asked = argparse.ArgumentParser(description="A day of the daemon: does its memory grow?")
    asked.add_argument("--hours", type=float, default=24.0)
    asked.add_argument("--step", type=float, default=30.0, help="simulated seconds between two turns")
    asked.add_argument("--policy", default="adlro")
    asked.add_argument("--from", dest="start", type=float, default=2.0, help="count growth from this hour on")
    asked.add_argument("--most", type=float, default=0.1, help="the growth that is allowed")
    given = asked.parse_args()
    began = time.monotonic()
    hours = []
    with tempfile.TemporaryDirectory() as folder:
        for hour in day(Path(folder), given.hours, given.step, given.policy):
            hours.append(hour)
            print(
                f"hour {hour.hour:4.0f}: {hour.rss_mb:7.1f} MB, {hour.turns} turns, {hour.ended} jobs ended, "
                f"longest turn {hour.longest_turn_s:.3f} s, store {hour.store_mb:.1f} MB",
                file=sys.stderr,
                flush=True,
            )
    first = next((hour for hour in hours if hour.hour >= given.start), hours[0])
    growth = hours[-1].rss_mb / first.rss_mb - 1
    seconds = time.monotonic() - began
    found = {
        "policy": given.policy, "hours": hours[-1].hour, "turns": hours[-1].turns, "jobs_ended": hours[-1].ended,
        "seconds": round(seconds, 1), "speed": round(hours[-1].hour * HOUR_S / seconds),
        "rss_mb_first": round(first.rss_mb, 1), "rss_mb_last": round(hours[-1].rss_mb, 1), "growth": round(growth, 4),
        "longest_turn_s": round(hours[-1].longest_turn_s, 3), "store_mb": round(hours[-1].store_mb, 2),
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    return int(growth > given.most)


if __name__ == "__main__":
    sys.exit(main())
