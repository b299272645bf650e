"""Every policy by name, and policies from a user's own file."""

import importlib.util
import inspect
import math
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import numpy as np

from adlro.core.compiled import compiled_here, is_compiled
from adlro.core.errors import CatalogueError, PolicyError
from adlro.core.policy import NEVER, VIEW_TYPE, Choose, Policy, starting, waiting
from adlro.core.tables import Choice, View
from adlro.core.toml import nearest
from adlro.decide import allox, baselines, gavel, preemptive, reserving
from adlro.decide.choosing import Pair, best_pair, legal_pairs

MODULES = (baselines, reserving, preemptive, gavel, allox)
"""Adding a policy: its function and its Policy in a module, and the module here."""

LONGEST_REASON: Final = 160


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
    if not path.is_file():
        raise CatalogueError(f"{path_text}: no such file; expected path.py:NAME, a function in a Python file.")
    if not name:
        raise CatalogueError(f"{where}: which function? Write {where}:NAME.")
    module = run_file(path)
    thing = getattr(module, name, None)
    if isinstance(thing, Policy):
        return thing
    if not callable(thing):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise CatalogueError(f"{path_text}: no function {name!r}.{nearest(name, names)}")
    plain = getattr(thing, "py_func", thing)
    summary = (inspect.getdoc(plain) or "a policy of your own").splitlines()[0]
    parameters = len(inspect.signature(plain).parameters)
    if parameters not in (1, 4):
        raise PolicyError(
            f"{where} takes {parameters} arguments; expected choose(view), or score(job, site, pair, now). "
            "See CONTRIBUTING.md for an example of each."
        )
    if is_compiled(thing):
        choose = compiled_choose(thing) if parameters == 1 else compiled_score(thing)
        return Policy(name, summary, choose=compiled_now(where, choose))
    choose = thing if parameters == 1 else plain_score(where, thing)
    return Policy(name, summary, make=lambda view, seed: guarded(where, choose))


def run_file(path: Path) -> ModuleType:
    """The module of a user's file."""
    spec = importlib.util.spec_from_file_location(f"adlro_user_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"{path}: not a Python file; expected a name that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PolicyError(f"{path}: cannot be loaded: {in_one_line(error, path)}") from error
    return module


def in_one_line(error: BaseException, path: Path) -> str:
    """The kind of an error, what it says first, and the last line of the user's file that it came by."""
    said = (str(error).strip().splitlines() or [""])[0]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"{type(error).__name__}: {said}" + (f" (line {lines[-1]})" if lines else "")


def compiled_choose(choose: Callable[..., Any]) -> Choose:
    """A user's compiled policy, with its answer in exactly the types that the simulator was compiled for."""

    @compiled_here
    def ask(view: View) -> Choice:
        verb, job, site, until = choose(view)
        return Choice(np.int64(verb), np.int64(job), np.int64(site), np.float64(until))

    return ask


def compiled_score(score: Callable[..., float]) -> Choose:
    """A policy that starts the legal pair with the best score, compiled around a user's compiled score."""

    @compiled_here
    def scored(view: View, j: int, s: int, pair: Pair) -> float:
        return score(view.jobs[j], view.sites[s], pair, view.clock[0].now)

    @compiled_here
    def choose(view: View) -> Choice:
        return best_pair(view, scored)

    return choose


def compiled_now(where: str, choose: Choose) -> Choose:
    """The same policy, compiled before the run, so that what cannot be compiled is told at once and in one line."""
    try:
        cast(Any, choose).compile((VIEW_TYPE,))
    except Exception as error:
        lines = str(error).splitlines() or [""]
        # Numba's first line names the pass in which it failed, the second the reason, with all types in full.
        said = lines[1 if len(lines) > 1 else 0]
        said = said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} …"
        raise PolicyError(
            f"{where} cannot be compiled: {type(error).__name__}: {said} Without @compiled it runs as plain Python."
        ) from error
    return choose


def plain_score(where: str, score: Callable[..., float]) -> Choose:
    """A policy that starts the legal pair with the best score, in plain Python."""

    def choose(view: View) -> Choice:
        pairs, known = legal_pairs(view)
        best, chosen = NEVER, None
        now = float(view.clock[0].now)
        for (j, s), (runtime_s, best_s, leftover) in zip(pairs.tolist(), known.tolist(), strict=True):
            home = bool(view.home[view.jobs[j].kind, view.sites[s].form])
            value: Any = score(view.jobs[j], view.sites[s], Pair(runtime_s, best_s, leftover, home), now)
            if not isinstance(value, int | float | np.number) or math.isnan(value):
                raise PolicyError(f"{where} answered {value!r} as a score; expected a number, or NEVER to rather wait.")
            if value > best:
                best, chosen = value, (j, s)
        return waiting() if chosen is None else starting(*chosen)

    return choose


def guarded(where: str, choose: Choose) -> Choose:
    """The same plain policy, whose mistakes are told as the user's mistakes."""
    path = Path(where.partition(":")[0])

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
