"""How work travels to another process: as bytes, with its policies.

Compiled functions of this package are sent by name, so that the other side loads them from its own cache. Functions of
a user (a file, a notebook) are sent with their code, and the other side compiles them: it need not have the file.
"""

import hashlib
import io
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
import numpy.rec
from numba import cloudpickle

from adlro import __version__
from adlro.core.compiled import is_compiled
from adlro.core.policy import Policy
from adlro.decide.catalogue import find_policy, shipped_policies

_OURS: Final = "adlro."
"""Prefix of the modules that the other side has too."""

NOT_OPTIONS: Final = ("cache", "nopython")
"""Options that Numba reports for a function but does not accept, or not for a function without a file."""


def packed_for_sending(thing: Any) -> bytes:
    """An object as bytes."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(thing)
    return file.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Sends compiled functions and the policies that ship by name, and everything of a user with its code."""

    def reducer_override(self, thing: Any) -> Any:
        """How one object is sent; NotImplemented means the usual way."""
        if isinstance(thing, Policy) and any(thing is each for each in shipped_policies()):
            return find_policy, (thing.name,)
        if is_compiled(thing):
            plain = thing.py_func
            if _found(plain.__module__, plain.__qualname__) is thing:
                return _found, (plain.__module__, plain.__qualname__)
            options = {name: value for name, value in thing.targetoptions.items() if name not in NOT_OPTIONS}
            return _compiled_again, (plain, options)
        if callable(thing) and _is_of_a_user(getattr(thing, "__module__", None)):
            cloudpickle.register_pickle_by_value(sys.modules[thing.__module__])
        return super().reducer_override(thing)


def _is_of_a_user(module: str | None) -> bool:
    """Whether a module was loaded from a user's policy file: the other side cannot import it."""
    return module is not None and module.startswith("adlro_policy_") and module in sys.modules


def _found(module: str, name: str) -> Any:
    """The object that a module of this package has under this name; None for anything else."""
    if not module.startswith(_OURS) or "<locals>" in name:
        return None
    return getattr(import_module(module), name, None)


def _compiled_again(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return numba.njit(**options)(function)


# ---- both sides must be the same ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Versions:
    """What results depend on besides the work: two machines with the same versions give the same answer."""

    adlro: str
    sources: str  # hash of the package's Python files
    python: str
    numpy: str
    numba: str


@cache
def versions() -> Versions:
    """The versions in this process."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return Versions(
        __version__, digest.hexdigest()[:16], platform.python_version(), np.__version__, str(numba.__version__)
    )


def difference(here: Versions, there: Versions) -> str | None:
    """The first difference between two machines, in words; None if there is none."""
    for name in ("adlro", "python", "numpy", "numba"):
        if getattr(here, name) != getattr(there, name):
            return f"{name} {getattr(there, name)} instead of {getattr(here, name)}"
    if here.sources != there.sources:
        return f"other source files of adlro {here.adlro}"
    return None
