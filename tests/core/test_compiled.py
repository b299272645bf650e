"""The cache of compiled code: many processes at once compile each function once, and none of them fails."""

import fcntl
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ADDING = "".join(f"\n\n@compiled\ndef add{number}(x):\n    return x + {number}\n" for number in range(6))

MODULE = f"""
import sys

import numba.core.event
import numpy as np

from adlro.core.compiled import compiled


@compiled
def twice(x):
    return x + x


@compiled
def call(f, x):
    return f(x) + twice(x)
{ADDING}

TYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.float32, np.float64)


class Compiled(numba.core.event.Listener):
    names = []

    def on_start(self, event):
        self.names.append(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event):
        pass


numba.core.event.register("numba:compile", Compiled())
"""

SMALL_QUEUE = {"NUMBA_FUNCTION_CACHE_SIZE": "2"}
"""So many functions of other processes Numba keeps hold of; 128 without it."""


def started(folder: Path, body: str, **more: str) -> "subprocess.Popen[str]":
    """A process that runs `body` with the module `many`, and prints the names of what it compiled."""
    module = folder / "many.py"
    if not module.exists():  # a process that started before us may be reading it
        module.write_text(MODULE)
    text = f"from many import *\n{textwrap.dedent(body)}\nprint(*Compiled.names)\n"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **more}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", text], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def compiled_by(*processes: "subprocess.Popen[str]") -> list[str]:
    """What processes compiled; all must have ended well."""
    said = [process.communicate(timeout=120) for process in processes]
    assert [err for _, err in said if err] == []
    return [name for out, _ in said for name in out.split()]


def test_processes_that_compile_at_once_do_not_fail_on_functions_that_are_passed_as_values(tmp_path: Path) -> None:
    body = "for f in (add0, add1, add2, add3, add4, add5):\n    assert call(f, 1.0) >= 3.0"
    compiled_by(*[started(tmp_path, body, **SMALL_QUEUE) for _ in range(4)])
    compiled_by(started(tmp_path, body, **SMALL_QUEUE))


def test_processes_that_start_at_once_on_an_empty_cache_compile_each_function_once(tmp_path: Path) -> None:
    body = "for kind in TYPES:\n    assert twice(kind(3)) == 6"
    assert compiled_by(*[started(tmp_path, body) for _ in range(4)]) == ["twice"] * 9
    assert compiled_by(started(tmp_path, body)) == []


def test_a_compilation_that_fails_or_dies_keeps_nobody_waiting(tmp_path: Path) -> None:
    died = started(tmp_path, "import os\nCompiled.on_start = lambda *_: os._exit(9)\ntwice(1)")
    died.communicate(timeout=60)
    assert died.returncode == 9
    failing = """
        import numba
        try:
            twice(None)
        except numba.core.errors.TypingError:
            pass
        else:
            raise SystemExit("it did not fail")
        print("failed", flush=True)
        input()
    """
    failed = started(tmp_path, failing)
    assert failed.stdout is not None
    try:
        assert failed.stdout.readline() == "failed\n"
        assert compiled_by(started(tmp_path, "assert twice(1) == 2")) == ["twice"]
    finally:
        failed.kill()
        failed.communicate()


def test_without_locks_of_the_file_system_all_is_compiled_all_the_same(tmp_path: Path) -> None:
    body = """
        import fcntl
        def refuse(*_):
            raise OSError(37, "No locks available")
        fcntl.flock = refuse
        assert twice(1) == 2
    """
    assert compiled_by(started(tmp_path, body)) == ["twice"]
    assert compiled_by(started(tmp_path, "assert twice(1) == 2")) == []


def test_a_warm_start_waits_for_nobody_who_compiles(tmp_path: Path) -> None:
    assert compiled_by(started(tmp_path, "assert twice(1) == 2")) == ["twice"]
    (lock,) = tmp_path.rglob("locks/*")
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert compiled_by(started(tmp_path, "assert twice(1) == 2")) == []
