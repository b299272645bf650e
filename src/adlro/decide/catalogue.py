"""Every policy by name, and policies from a user's own file."""

import importlib.util
import inspect
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from adlro.core.compiled import compiled_here, is_compiled
from adlro.core.errors import CatalogueError, PolicyError
from adlro.core.policy import NEVER, Choose, Policy, starting, waiting
from adlro.core.tables import Choice, View
from adlro.core.toml import nearest
from adlro.decide import allox, baselines, gavel, preemptive, reserving
from adlro.decide.choosing import Pair, best_pair, legal_pairs

MODULES = (baselines, reserving, preemptive, gavel, allox)
"""Adding a policy: its function and its Policy in a module, and the module here."""


@cache
def policies() -> tuple[Policy, ...]:
    """All policies that ship, in the order of their modules."""
    return tuple(policy for module in MODULES for policy in module.POLICIES)


def find_policy(name: str) -> Policy:
    """The policy of this name, or the function in a user's file: `path.py:function`."""
    if ":" in name or name.endswith(".py"):
        return load_policy(name)
    for policy in policies():
        if policy.name == name:
            return policy
    names = [policy.name for policy in policies()]
    raise CatalogueError(
        f"no policy {name!r}.{nearest(name, names)} `adlro policies` lists them; path.py:function loads your own."
    )


def load_policy(where: str) -> Policy:
    """A policy from a user's file: a Policy, `choose(view)`, or `score(job, site, pair, now)`; compiled or plain."""
    path_text, _, name = where.partition(":")
    path = Path(path_text)
    if not name:
        raise PolicyError(f"{where}: which function? Write {where}:NAME.")
    if not path.is_file():
        raise PolicyError(f"{path_text}: no such file; expected a Python file with a function {name!r}.")
    module = run_file(path)
    thing = getattr(module, name, None)
    if isinstance(thing, Policy):
        return thing
    if not callable(thing):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise PolicyError(f"{path_text}: no function {name!r}.{nearest(name, names)}")
    plain = getattr(thing, "py_func", thing)
    summary = (inspect.getdoc(plain) or "a policy of your own").splitlines()[0]
    parameters = len(inspect.signature(plain).parameters)
    if parameters == 1:
        if is_compiled(thing):
            return Policy(name, summary, choose=cast(Choose, thing))
        return Policy(name, summary, make=lambda view, seed: guarded(where, cast(Choose, thing)))
    if parameters == 4:
        if is_compiled(thing):
            return Policy(name, summary, choose=compiled_score(thing))
        return Policy(name, summary, make=lambda view, seed: guarded(where, plain_score(thing)))
    raise PolicyError(
        f"{where} takes {parameters} arguments; expected choose(view), or score(job, site, pair, now). "
        "See CONTRIBUTING.md for an example of each."
    )


def run_file(path: Path) -> ModuleType:
    """The module of a user's file."""
    spec = importlib.util.spec_from_file_location(f"adlro_user_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"{path}: not a Python file; expected a name that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PolicyError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def compiled_score(score: Callable[..., float]) -> Choose:
    """A policy that starts the legal pair with the best score, compiled around a user's compiled score."""

    @compiled_here
    def scored(view: View, j: int, s: int, pair: Pair) -> float:
        return score(view.jobs[j], view.sites[s], pair, view.clock[0].now)

    @compiled_here
    def choose(view: View) -> Choice:
        return best_pair(view, scored)

    return choose


def plain_score(score: Callable[..., float]) -> Choose:
    """A policy that starts the legal pair with the best score, in plain Python."""

    def choose(view: View) -> Choice:
        pairs, known = legal_pairs(view)
        best, chosen = NEVER, None
        now = float(view.clock[0].now)
        for (j, s), (runtime_s, best_s, leftover) in zip(pairs.tolist(), known.tolist(), strict=True):
            home = bool(view.home[view.jobs[j].kind, view.sites[s].form])
            value = score(view.jobs[j], view.sites[s], Pair(runtime_s, best_s, leftover, home), now)
            if not isinstance(value, int | float) and not hasattr(value, "__float__"):
                raise TypeError(f"the score is {value!r}; expected a number")
            if value > best:
                best, chosen = value, (j, s)
        return waiting() if chosen is None else starting(*chosen)

    return choose


def guarded(where: str, choose: Choose) -> Choose:
    """The same plain policy, whose mistakes are told as the user's mistakes."""

    def ask(view: View) -> Choice:
        try:
            answer: Any = choose(view)
        except Exception as error:
            raise PolicyError(f"{where} failed: {type(error).__name__}: {error}") from error
        if not isinstance(answer, Choice):
            raise PolicyError(f"{where} answered {answer!r}; expected starting(job, site), stopping(job) or waiting().")
        verb, job, site, until = answer
        if math.isnan(until):
            raise PolicyError(f"{where} waits until NaN; expected a time in seconds.")
        return Choice(int(verb), int(job), int(site), float(until))

    return ask
