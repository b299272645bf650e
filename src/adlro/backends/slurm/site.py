"""What a Slurm site has now: its configuration, partitions, nodes and files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from adlro.backends.slurm.backend import SlurmParts, slurm_parts
from adlro.backends.slurm.commands import Commands
from adlro.backends.slurm.nodes import NamedNode
from adlro.backends.slurm.options import SlurmOptions
from adlro.core.errors import BackendError

COMMANDS: Final = ("scontrol", "squeue", "sinfo", "sbatch", "scancel")

OURS: Final = "ADLRO's job_submit plugin"
"""What the first line of our job_submit.lua says."""

CHAINED: Final = "adlro.lua"
"""The name of our plugin where the site has a job_submit.lua of its own, which loads it."""


@dataclass(frozen=True, slots=True)
class SiteNow:
    """What a Slurm site has now, as far as ADLRO needs to know it."""

    nodes: Mapping[str, NamedNode] = field(default_factory=dict)
    """Its nodes; none: Slurm does not answer."""
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What `scontrol show partition` tells of each partition."""
    config: Mapping[str, str] = field(default_factory=dict)
    """What `scontrol show config` tells."""
    conf: str = "/etc/slurm/slurm.conf"
    """Where slurm.conf is."""
    files: Mapping[str, str] = field(default_factory=dict)
    """slurm.conf, the files that it includes, and job_submit.lua beside it: the text of those that can be read."""
    problems: tuple[str, ...] = ()
    """GPU types that the catalogue does not know."""

    @property
    def folder(self) -> str:
        """The folder of slurm.conf."""
        return str(Path(self.conf).parent)


def site_now(options: SlurmOptions) -> SiteNow:
    """What the site has; as much as Slurm and its files tell."""
    try:
        parts = slurm_parts(options)
    except BackendError:
        return SiteNow()
    with closing(parts):
        problems: tuple[str, ...] = ()
        with suppress(BackendError):
            problems = unknown_types(parts.reader.read().notes)
        return site_from_nodes(parts, options, problems)


def site_from_nodes(parts: SlurmParts, options: SlurmOptions, problems: tuple[str, ...] = ()) -> SiteNow:
    """The same, of nodes that were read already."""
    config: dict[str, str] = {}
    if parts.commands is not None:
        with suppress(BackendError):
            config = read_slurm_config(parts.commands)
    conf = config.get("SLURM_CONF") or options.conf or SiteNow().conf
    return SiteNow(parts.reader.sites, read_partitions(parts), config, conf, _read_files(conf), problems)


def read_slurm_config(commands: Commands) -> dict[str, str]:
    """What `scontrol show config` tells, by name; an option that is not set is ""."""
    ran = commands.run(["scontrol", "show", "config"])
    if ran.code != 0:
        raise BackendError(f"'scontrol show config' fails: {ran.said}")
    pairs = (line.partition("=") for line in ran.out.splitlines() if "=" in line)
    return {name.strip(): "" if value.strip() == "(null)" else value.strip() for name, _, value in pairs}


def read_partitions(parts: SlurmParts) -> dict[str, dict[str, str]]:
    """What Slurm tells of each partition, by name; nothing if it does not answer."""
    with suppress(BackendError):
        if parts.commands is not None:
            ran = parts.commands.run(["scontrol", "show", "partition", "--oneliner"])
            lines = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in ran.out.splitlines()) if ran.code == 0 else ()
            return {values["PartitionName"]: values for values in lines if "PartitionName" in values}
        if parts.rest is not None:
            status, answer = parts.rest.ask("GET", "/partitions")
            found = answer.get("partitions") if status == 200 and isinstance(answer, dict) else None
            return {str(each["name"]): {} for each in found or () if isinstance(each, dict) and each.get("name")}
    return {}


def unknown_partitions(names: Sequence[str], known: Iterable[str]) -> str:
    """One line about partitions that do not exist; "" if they all do, or Slurm does not tell its partitions."""
    there = sorted(known)
    absent = [name for name in names if name not in there]
    if not there or not absent:
        return ""
    quoted = ", ".join(f"'{name}'" for name in absent)
    return f"Slurm has no partition {quoted}; it has {', '.join(there)}."


def _read_files(conf: str) -> dict[str, str]:
    folder = Path(conf).parent
    texts: dict[str, str] = {}
    waiting = [Path(conf), folder / "job_submit.lua", folder / CHAINED]
    while waiting:
        path = waiting.pop()
        if str(path) in texts:
            continue
        with suppress(OSError, UnicodeDecodeError):
            texts[str(path)] = path.read_text(encoding="utf-8")
            if path.suffix != ".lua":
                found = re.findall(r"^\s*include\s+(\S+)", texts[str(path)], re.I | re.M)
                waiting += [folder / name for name in found]
    return texts


def unknown_types(notes: Iterable[str]) -> tuple[str, ...]:
    """The notes of a reader about GPU types that nobody knows."""
    return tuple(note for note in notes if "the GPU type" in note)


def listed_words(text: str) -> list[str]:
    """The words of a list with commas or spaces."""
    return [word for word in re.split(r"[,\s]+", text) if word]
