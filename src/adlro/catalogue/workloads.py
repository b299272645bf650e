"""The workloads that ship with the package, as text."""

from importlib import resources
from typing import Final

from adlro.core.errors import CatalogueError
from adlro.core.toml import nearest

SUFFIX: Final = ".toml"


def workload_names() -> tuple[str, ...]:
    """What can be given as a workload by name alone."""
    files = (resources.files("adlro.catalogue") / "workloads").iterdir()
    return tuple(sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX)))


def workload_text(name: str) -> tuple[str, str]:
    """The text of a shipped workload, and where it stands, for error messages."""
    names = workload_names()
    if name not in names:
        guess = nearest(name, names)
        raise CatalogueError(
            f"there is no workload {name!r}.{guess} Workloads that ship: {', '.join(names)}; or pass a TOML file."
        )
    file = resources.files("adlro.catalogue") / "workloads" / f"{name}{SUFFIX}"
    return file.read_text(encoding="utf-8"), f"workloads/{name}{SUFFIX}"
