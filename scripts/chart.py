"""Writes what follows from the Helm chart and from the daemon's config, so that each is defined once.

    python scripts/chart.py            write the files
    python scripts/chart.py --check    only say which files are out of date; exit status 1 if one is

- `config` in deploy/helm/adlro/values.schema.json, from the options of the daemon;
- deploy/kubernetes/*.yaml, the rights alone, for a daemon that runs outside of the cluster: from the chart.

It needs Helm (helm-binary of the extra dev).
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adlro.daemon.config import Config

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "deploy" / "helm" / "adlro"
VALUES_SCHEMA: Final = CHART / "values.schema.json"
NAMESPACE: Final = "adlro-system"
RIGHTS: Final = {
    "shadow.yaml": (
        "adlro-shadow",
        "shadow",
        "What a shadow needs: to read, and nothing else. kubectl apply -f shadow.yaml",
    ),
    "scheduler.yaml": ("adlro", "scheduler", "What the scheduler needs. kubectl apply -f scheduler.yaml"),
}
"""By file: the release, the mode, and its first line."""

NOT_OURS: Final = frozenset(["backend", "simulated", "local", "slurm"])
"""Tables of the config that the mode decides, or that no Kubernetes has."""

DROPPED: Final = frozenset(["title", "default"])


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    files = {VALUES_SCHEMA: schema_text(), **{ROOT / "deploy/kubernetes" / name: rights_text(name) for name in RIGHTS}}
    old = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in old:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date. Run: python scripts/chart.py")
        else:
            path.write_text(files[path], encoding="utf-8")
    return int(bool(old) and "--check" in arguments)


def schema_text() -> str:
    """The schema of the values, with the present options of the daemon."""
    schema = json.loads(VALUES_SCHEMA.read_text(encoding="utf-8"))
    found = Config.model_json_schema()
    tables = {name: each for name, each in found["properties"].items() if name not in NOT_OURS}
    config = _plain({"type": "object", "additionalProperties": False, "properties": tables}, found["$defs"])
    config["description"] = "Further tables of adlro.toml (adlro serve --print-config)."
    schema["properties"]["config"] = config
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _plain(each: Any, defined: Mapping[str, Any]) -> Any:
    """A schema without references, titles and defaults: short error lines, and no need to change with a default."""
    if isinstance(each, list):
        return [_plain(part, defined) for part in each]
    if not isinstance(each, dict):
        return each
    if reference := each.get("$ref"):
        return _plain(defined[reference.rpartition("/")[2]], defined)
    return {
        key: {name: _plain(part, defined) for name, part in value.items()}
        if key == "properties"
        else _plain(value, defined)
        for key, value in each.items()
        if key not in DROPPED
    }


def helm(*arguments: str) -> str:
    """What Helm prints."""
    beside = Path(sys.executable).parent / "helm"
    command = [str(beside) if beside.is_file() else "helm", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rights_text(name: str) -> str:
    """The namespace, the account and the rights of one mode, as the chart has them."""
    release, mode, first = RIGHTS[name]
    made = helm(
        "template", release, str(CHART), "--namespace", NAMESPACE, "--set", f"mode={mode}",
        "--show-only", "templates/rbac.yaml",
    )  # fmt: skip
    plain = re.sub(r"^# Source: .*\n", "", made, flags=re.MULTILINE)
    plain = re.sub(
        r"^    (helm\.sh/chart|app\.kubernetes\.io/(version|managed-by)): .*\n", "", plain, flags=re.MULTILINE
    )
    space = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n"
    return f"# {first}\n# Written by scripts/chart.py from deploy/helm/adlro; do not change it by hand.\n{space}{plain}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
