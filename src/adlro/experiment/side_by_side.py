"""Policies that are not compiled yet are compiled on several cores: other processes begin with the last policies.

What they compile is loaded from the cache when this process comes to it. They are only ever a help: if one fails, this
process compiles what is missing. They end with this process, however it ends.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any, Final

from adlro.core.code_cache import is_ready, outlasts_this_process
from adlro.core.compiled import is_compiled
from adlro.core.policy import CHOICE_TYPE, VIEW_TYPE, Policy

MOST_HELPERS: Final = 7
"""Each takes some 300 MB of memory."""


@contextmanager
def compiled_side_by_side(policies: Sequence[Policy]) -> Iterator[None]:
    """While the body runs the policies one after the other, compile them in other processes, the last one first."""
    missing = [policy.name for policy in reversed(policies) if not is_ready(policy.name) and ships(policy)]
    count = min(usable_cores() - 1, len(missing), MOST_HELPERS) if sys.executable and outlasts_this_process() else 0
    helpers = [started(missing[first::count]) for first in range(count)]
    try:
        yield
    finally:
        for helper in helpers:
            helper.kill()
            helper.communicate()


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ships(policy: Policy) -> bool:
    """Whether another process finds the same policy by its name."""
    from adlro.decide.catalogue import shipped_policies

    return policy in shipped_policies()


def started(names: Sequence[str]) -> "subprocess.Popen[bytes]":
    """A process that compiles these policies. It ends when its input is closed, as it is when we end."""
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-m", __name__, *names]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)


def compile_policies(names: Sequence[str]) -> None:
    """Compile these policies, in this order, and what runs those that are plain Python."""
    from adlro.decide.catalogue import find_policy
    from adlro.experiment.compare import judge_few
    from adlro.experiment.scenario import load_scenario

    for policy in map(find_policy, names):
        choose: Any = policy.choose
        if is_compiled(choose):
            choose.get_compile_result(CHOICE_TYPE(VIEW_TYPE))  # as the simulator asks for it
        else:
            judge_few(load_scenario("paper16", "paper"), policy, 0)


def end_with_input() -> None:
    """Wait until our input is closed, then end at once."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    Thread(target=end_with_input, daemon=True).start()
    compile_policies(sys.argv[1:])
