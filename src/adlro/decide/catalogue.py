"""Every policy by name, and policies from a user's own file."""

import hashlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import numpy as np

from adlro.core.compiled import compiled_here, is_compiled, widened
from adlro.core.errors import CatalogueError, PolicyError
from adlro.core.policy import NEVER, VIEW_TYPE, Choose, Policy, starting, waiting
from adlro.core.tables import Choice, View
from adlro.core.toml import nearest
from adlro.decide import lookahead, outlook
from adlro.decide.checkpoint import read_arrays, read_weights
from adlro.decide.choosing import Pair, best_pair, legal_pairs
from adlro.decide.network import corrected_plan, greedy_q, preemptive_q, readings, sizing_q, stopping_q
from adlro.decide.network.paper_q import PAPER_DQN, paper_policy, paper_weights
from adlro.decide.rules import (
    allox,
    baselines,
    earliest,
    eft_claiming,
    gavel,
    marginal,
    plan,
    plan_elastic,
    preemptive,
    reserving,
    sizing,
)
from adlro.decide.wrappers import unwrapped, wrapped

MODULES = (
    baselines,
    reserving,
    earliest,
    outlook,
    preemptive,
    plan,
    eft_claiming,
    gavel,
    allox,
    sizing,
    marginal,
    plan_elastic,
    lookahead,
    greedy_q,
    corrected_plan,
    preemptive_q,
    sizing_q,
)
"""The modules with policies. A new policy needs its function and its Policy in a module, and the module here."""

LONGEST_REASON: Final = 160

COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Colour codes for terminals."""

CHECKPOINT: Final = ".safetensors"
"""File suffix of a checkpoint."""


@cache
def policies() -> tuple[Policy, ...]:
    """All policies that ship and run on any cluster, in the order of their modules."""
    return tuple(policy for module in MODULES for policy in module.POLICIES)


FITTED: Final = (PAPER_DQN,)
"""Policies that ship for one cluster."""


def shipped_policies() -> tuple[Policy, ...]:
    """All policies that ship, also those for one cluster, which `policies()` and "all" leave out."""
    return (*policies(), *FITTED)


def find_policy(name: str) -> Policy:
    """The policy with this name, or the function of a user's file (`path.py:function`), with any wrappers."""
    if (found := unwrapped(name)) is not None:
        inner, wrapper, number = found
        return wrapped(find_policy(inner), wrapper, number)
    if name.endswith(CHECKPOINT):
        return policy_of_checkpoint(Path(name))
    if ":" in name or name.endswith(".py"):
        return load_policy(name)
    for policy in (*shipped_policies(), lookahead.CLAIRVOYANT):
        if policy.name == name:
            return policy
    names = [policy.name for policy in shipped_policies()]
    raise CatalogueError(
        f"there is no policy {name!r}.{nearest(name, names)} `adlro policies` lists them. Also possible: "
        "path.py:function, NAME+starvation(SECONDS), NAME+least-run(SECONDS) and NAME+stops(NUMBER)."
    )


def policy_of_checkpoint(path: Path) -> Policy:
    """The policy of a network that a user has trained, of any preset. It is named after its file."""
    arrays, provenance = read_arrays(path)
    if provenance.get("preset") == "paper":
        return paper_policy(paper_weights(arrays, str(path)), path.stem)
    if provenance.get("preset") == sizing_q.ELASTIC:
        return sizing_q.sizing_policy(sizing_q.sizing_weights(arrays, str(path)), path)
    if provenance.get("preset") == corrected_plan.PLAN:
        return corrected_plan.corrected_policy(corrected_plan.corrector_of(arrays, str(path)), path)
    if provenance.get("preset") == readings.PRESET:
        return greedy_q.policy_of_readings(readings.worth_of_arrays(arrays, str(path)), path)
    weights = read_weights(path)[0]
    return stopping_q.stopping_q(weights, path) if weights.claim.size else greedy_q.policy_of_weights(weights, path)


def load_policy(where: str) -> Policy:
    """A policy from a user's file: a Policy, `choose(view)`, or `score(job, site, pair, now)`, compiled or plain."""
    path_text, _, name = where.partition(":")
    path = Path(path_text)
    if not path.is_file():
        raise CatalogueError(f"{path_text}: no such file; expected path.py:NAME, a function in a Python file.")
    if not name:
        raise CatalogueError(f"{path_text}: the name of a function is missing; expected {path_text}:NAME.")
    module = run_file(path)
    thing = getattr(module, name, None)
    if isinstance(thing, Policy):
        return thing
    if not callable(thing):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise CatalogueError(f"{path_text}: no function {name!r}.{nearest(name, names)}")
    return policy_of(thing, name, where)


def policy_of(thing: Callable[..., Any], name: str, where: str) -> Policy:
    """The policy made from a function: `choose(view)` or `score(job, site, pair, now)`, compiled or plain.

    `where` names the function in error messages.
    """
    plain = getattr(thing, "py_func", thing)
    summary = (inspect.getdoc(plain) or "a policy of your own").splitlines()[0]
    parameters = len(inspect.signature(plain).parameters)
    if parameters not in (1, 4):
        raise PolicyError(
            f"{where} takes {parameters} arguments; expected choose(view), or score(job, site, pair, now). "
            "See CONTRIBUTING.md for an example of each."
        )
    if is_compiled(thing):
        build = compiled_choose if parameters == 1 else compiled_score
        return Policy(name, summary, choose=compiled_now(where, lambda allocating: build(thing, allocating)))
    choose = thing if parameters == 1 else plain_score(where, thing)
    file = getattr(getattr(plain, "__code__", None), "co_filename", "")
    return Policy(name, summary, make=lambda view, seed: guarded(where, Path(file), choose))


def run_file(path: Path) -> ModuleType:
    """Load a user's file as a module."""
    # Cached compiled code finds its module by name, so each file gets a fixed name, the same at every start.
    name = f"adlro_policy_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"{path}: not a Python file; expected a name that ends in .py.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PolicyError(f"{path}: cannot be loaded: {in_one_line(error, path)}") from error
    return module


def in_one_line(error: BaseException, path: Path) -> str:
    """The type of an error, the first line of its message, and the last line of the user's file in its traceback."""
    said = (str(error).strip().splitlines() or [""])[0]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"{type(error).__name__}: {said}" + (f" (line {lines[-1]})" if lines else "")


def compiled_choose(choose: Callable[..., Any], allocating: bool) -> Choose:
    """A user's compiled policy, with its answer converted to exactly the types that the simulator expects."""

    def ask(view: View) -> Choice:
        verb, job, site, until = choose(view)
        return Choice(widened(verb), widened(job), widened(site), float(until))

    return compiled_here(ask, allocating)


def compiled_score(score: Callable[..., float], allocating: bool) -> Choose:
    """A policy that starts the legal pair with the highest score, compiled together with a user's compiled score."""

    def scored(view: View, j: int, s: int, pair: Pair) -> float:
        return score(view.jobs[j], view.sites[s], pair, view.clock[0].now)

    compiled_scored = compiled_here(scored, allocating)

    def choose(view: View) -> Choice:
        return best_pair(view, compiled_scored)

    return compiled_here(choose, allocating)


def compiled_now(where: str, build: Callable[[bool], Choose]) -> Choose:
    """Compile a user's policy before the run, so that compile errors are reported at once, in one line.

    It is first compiled like our own policies. If that fails because it creates arrays, it is compiled as one that may.
    """
    choose = build(False)
    try:
        cast(Any, choose).compile((VIEW_TYPE,))
        return choose
    except Exception:
        choose = build(True)
    try:
        cast(Any, choose).compile((VIEW_TYPE,))
    except Exception as error:
        # Numba first names the pass that failed, once for each function in the call chain, then the reason with all
        # types in full.
        text = COLOURS.sub("", str(error))  # Numba colours its errors if colorama is installed
        lines = [line for line in text.splitlines() if not line.startswith("Failed in nopython mode")]
        said = f"{type(error).__name__}: {lines[0] if lines else ''}"[:LONGEST_REASON]
        raise PolicyError(f"{where} cannot be compiled: {said}. Remove @compiled to run it as plain Python.") from error
    return choose


def plain_score(where: str, score: Callable[..., float]) -> Choose:
    """A policy in plain Python that starts the legal pair with the highest score."""

    def choose(view: View) -> Choice:
        pairs, known = legal_pairs(view)
        best, chosen = NEVER, None
        now = float(view.clock[0].now)
        for (j, s), (runtime_s, best_s, leftover) in zip(pairs.tolist(), known.tolist(), strict=True):
            home = bool(view.home[view.jobs[j].kind, view.sites[s].form])
            value: Any = score(view.jobs[j], view.sites[s], Pair(runtime_s, best_s, leftover, home), now)
            if not isinstance(value, int | float | np.number) or math.isnan(value):
                raise PolicyError(
                    f"{where} answered {value!r} as a score; expected a number, or NEVER to wait instead."
                )
            if value > best:
                best, chosen = float(value), (j, s)
        return waiting() if chosen is None else starting(*chosen)

    return choose


def guarded(where: str, path: Path, choose: Choose) -> Choose:
    """The same plain policy, but its exceptions are reported as the user's errors, with the line of the user's file."""

    def ask(view: View) -> Choice:
        try:
            answer: Any = choose(view)
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(f"{where} failed: {in_one_line(error, path)}") from error
        if not isinstance(answer, Choice):
            raise PolicyError(f"{where} answered {answer!r}; expected starting(job, site), stopping(job) or waiting().")
        verb, job, site, until = answer
        if math.isnan(until):
            raise PolicyError(f"{where} waits until NaN; expected a time in seconds.")
        return Choice(int(verb), int(job), int(site), float(until))

    return ask
