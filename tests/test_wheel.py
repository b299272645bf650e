"""The wheel has everything, and runs in an environment that has its declared dependencies and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
MACHINE_CODE = "machine_code/0123/core.engine-4567/engine.play-1.py311.1.nbc"
SOURCES = ("LICENSE", "NOTICE", "README.md", "pyproject.toml")

# A program for the new environment: import every module, and print what each of the others misses.
IMPORT_ALL = """
import importlib, pkgutil, sys
import adlro
for module in pkgutil.walk_packages(adlro.__path__, "adlro."):
    if module.name != "adlro.__main__":
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(error.name.partition(".")[0])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves folders behind, and takes up what an earlier one has left."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "machine_code")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore)
    code = folder / "src" / "adlro" / MACHINE_CODE
    code.parent.mkdir(parents=True)
    code.write_bytes(b"code")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "-w", "dist", "."], cwd=folder, check=True)
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment, with the wheel and links to the packages that it declares."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    target = ["--target", str(site), "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *target], check=True)
    for distribution in needed_by(metadata.Distribution.at(next(site.glob("adlro-*.dist-info")))):
        for entry in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (site / entry).symlink_to(str(distribution.locate_file(entry)))
    return folder / "bin" / "python"


def needed_by(root: metadata.Distribution) -> Iterator[metadata.Distribution]:
    """The distributions that one needs, directly or through others, without optional extras."""
    waiting = [(root, frozenset({""}))]
    seen = {(canonicalize_name(root.name), "")}
    named = set()
    while waiting:
        distribution, extras = waiting.pop()
        for requirement in map(Requirement, distribution.requires or ()):
            name = canonicalize_name(requirement.name)
            wanted = {"", *requirement.extras}
            if not applies(requirement, extras) or {(name, extra) for extra in wanted} <= seen:
                continue
            seen |= {(name, extra) for extra in wanted}
            found = metadata.distribution(name)
            waiting.append((found, frozenset(wanted)))
            if name not in named:
                named.add(name)
                yield found


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement holds here, for one of the extras that were asked for."""
    here = {key: str(value) for key, value in default_environment().items()}
    return requirement.marker is None or any(requirement.marker.evaluate(here | {"extra": extra}) for extra in extras)


def run(python: Path, folder: Path, *arguments: str) -> str:
    """What a program prints in the new environment, uncompiled: the cache has no code for these paths."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA", "ADLRO"))}
    clean |= {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [str(python), *arguments], cwd=folder, env=clean, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    made = {"__pycache__", "machine_code"}
    files = [path for path in (ROOT / "src/adlro").rglob("*") if path.is_file() and not made & set(path.parts)]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files} | {f"adlro/{MACHINE_CODE}"}
    kinds = {Path(name).suffix for name in expected}
    assert {".toml", ".csv", ".lua", ".sql", ".js", ".html", ".json", ".yml", ".safetensors", ".service"} <= kinds
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("adlro/")}
        licences = {Path(name).name for name in archive.namelist() if "/licenses/" in name}
    assert found == expected
    assert licences == {"LICENSE", "NOTICE"}


def test_the_wheel_runs_outside_the_source_tree(python: Path, tmp_path: Path) -> None:
    (command,) = python.parent.parent.glob("lib/python*/site-packages/bin/adlro")
    where, version = run(python, tmp_path, "-c", "import adlro; print(adlro.__file__, adlro.__version__)").split()
    assert Path(where).is_relative_to(command.parent.parent)
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    shown = run(python, tmp_path, str(command), "compare", "--policies", "fcfs,adlro", "--jobs", "8", "--seeds", "2")
    assert re.search(r"^adlro +\d", shown, re.MULTILINE)


def test_every_module_imports_without_the_extras_or_names_a_package_of_one(python: Path, tmp_path: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    optional = {
        Requirement(text).name.replace("-", "_") for name, group in extras.items() if name != "dev" for text in group
    }
    missing = set(run(python, tmp_path, "-c", IMPORT_ALL).split())
    assert missing <= optional
    assert "torch" in missing  # else the environment has more than the wheel asks for
