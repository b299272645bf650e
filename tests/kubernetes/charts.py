"""The Helm chart of deploy/, for tests: Helm, and what it makes of values."""

import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.parts import tool

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "adlro"
SPACE = "adlro-system"
MODES = ("shadow", "scheduler", "extender")

Raw = dict[str, Any]


def helm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What Helm answers; nothing of this machine's own Helm is used."""
    kept = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment}
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, env=kept, check=False)


def template(*values: str, release: str = "adlro", more: tuple[str, ...] = ()) -> list[Raw]:
    """The objects that the chart makes of values like mode=shadow."""
    settings = [word for value in values for word in ("--set", value)]
    made = helm("template", release, str(CHART), "--namespace", SPACE, *settings, *more)
    assert made.returncode == 0, made.stderr
    return [each for each in yaml.safe_load_all(made.stdout) if each]


def one(objects: list[Raw], kind: str, name: str = "") -> Raw:
    """The only object of a kind, or the one of this name."""
    (found,) = [each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found


def rights_of(objects: list[Raw]) -> set[str]:
    """The rights of all roles among these objects, as "verb resource"."""
    return {
        f"{verb} {resource}.{group}" if group else f"{verb} {resource}"
        for each in objects
        if each["kind"] in ("ClusterRole", "Role")
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
