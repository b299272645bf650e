"""The cache of compiled code: many processes at once compile each function once, and none of them fails.

Functions that compiled code calls are parts of it, and are not compiled by themselves.
"""

import fcntl
import os
import shutil
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


@compiled
def positive(x):
    if x < 0:
        raise ValueError("it is negative")
    return x


@compiled
def sum_of_positive(x):
    return positive(x) + positive(np.int32(x)) + positive(3)
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
    environment["PYTHONPATH"] = more.get("PYTHONPATH") or os.pathsep.join([str(folder), *sys.path])
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


def test_a_run_adds_no_types_to_numbas_table_while_other_threads_read_it() -> None:
    code = (
        "import adlro, adlro.core.compiled; from numba.extending import typeof_impl; known = len(typeof_impl.registry);"
        "adlro.compare(policies=['fcfs', 'sjf'], seeds=1, job_count=5); assert len(typeof_impl.registry) == known"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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


def test_who_compiles_one_function_keeps_nobody_waiting_for_another(tmp_path: Path) -> None:
    assert compiled_by(started(tmp_path, "assert twice(1) == 2")) == ["twice"]
    (lock,) = tmp_path.rglob("locks/*")
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert compiled_by(started(tmp_path, "assert add1(1) == 2")) == ["add1"]


def test_a_fresh_copy_of_the_same_text_finds_what_was_compiled_and_an_edited_one_does_not(tmp_path: Path) -> None:
    assert compiled_by(started(tmp_path, "assert twice(1) == 2")) == ["twice"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "many.py").write_text(MODULE)
    os.utime(elsewhere / "many.py", (1, 1))
    path = os.pathsep.join([str(elsewhere), *sys.path])
    again = "import sys\nassert 'elsewhere' in sys.modules['many'].__file__\nassert twice(1) == 2"
    assert compiled_by(started(tmp_path, again, PYTHONPATH=path)) == []
    (elsewhere / "many.py").write_text(MODULE.replace("x + x", "x + x + x"))
    assert compiled_by(started(tmp_path, "assert twice(1) == 3", PYTHONPATH=path)) == ["twice"]


def test_a_wheel_can_bring_compiled_code_along(tmp_path: Path) -> None:
    assert compiled_by(started(tmp_path, "assert twice(1) == 2")) == ["twice"]
    (folder,) = (tmp_path / "cache" / "adlro" / "compiled").iterdir()
    shutil.move(folder, tmp_path / "shipped")
    body = f"""
        from pathlib import Path
        import adlro.core.code_cache
        adlro.core.code_cache.shipped_folder = lambda: Path({str(tmp_path / "shipped")!r})
        assert twice(1) == 2
    """
    assert compiled_by(started(tmp_path, body)) == []
    assert list((tmp_path / "cache").rglob("*.nbc")) == []


def test_a_part_is_compiled_once_for_all_widths_and_constants_and_only_the_whole_is_cached(tmp_path: Path) -> None:
    body = "assert sum_of_positive(2) == 7\nassert sum_of_positive(5) == 13"
    assert compiled_by(started(tmp_path, body)) == ["sum_of_positive", "positive"]
    assert [path.name.split("-")[0] for path in tmp_path.rglob("*.nbc")] == ["many.sum_of_positive"]
    assert compiled_by(started(tmp_path, body)) == []


def test_a_function_can_be_called_by_python_and_by_compiled_code_in_any_order(tmp_path: Path) -> None:
    part_first = "assert sum_of_positive(2) == 7\nassert positive(2) == 2\nassert sum_of_positive(2.5) == 7.5"
    of_floats = ["sum_of_positive", "positive"]
    assert compiled_by(started(tmp_path, part_first)) == ["sum_of_positive", "positive", "positive", *of_floats]
    whole_first = "assert positive(2) == 2\nassert call(positive, 2) == 6\nassert positive(3) == 3"
    assert compiled_by(started(tmp_path, whole_first)) == ["call", "positive", "twice"]


def test_an_error_that_a_part_raises_reaches_python_from_fresh_code_and_from_the_cache(tmp_path: Path) -> None:
    body = """
        try:
            sum_of_positive(-1)
        except ValueError as error:
            assert str(error) == "it is negative"
        else:
            raise SystemExit("no error")
    """
    assert compiled_by(started(tmp_path, body)) == ["sum_of_positive", "positive"]
    assert compiled_by(started(tmp_path, body)) == []
