"""`adlro slurm check`: what is missing at a site for ADLRO, in sentences."""

import getpass
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from adlro.backends.slurm.backend import SlurmParts, slurm_parts
from adlro.backends.slurm.commands import Commands
from adlro.backends.slurm.nodes import NamedNode
from adlro.backends.slurm.options import SlurmOptions
from adlro.backends.slurm.rest import Rest
from adlro.backends.slurm.shapes import left_to_slurm, lua_table, partitions_table
from adlro.backends.slurm.site import (
    CHAINED,
    COMMANDS,
    OURS,
    SiteNow,
    listed_words,
    read_slurm_config,
    site_from_nodes,
    unknown_partitions,
    unknown_types,
)
from adlro.core.errors import BackendError, ConfigError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `verdict` is good, odd (works, but) or missing."""

    what: str
    verdict: str
    text: str


def check_site(options: SlurmOptions, find: Callable[[str], str | None] = shutil.which) -> list[Finding]:
    """What is there and what is missing for ADLRO to place jobs in this Slurm, in words."""
    return list(_findings(options, find))


def _findings(options: SlurmOptions, find: Callable[[str], str | None]) -> Iterator[Finding]:
    if absent := [name for name in COMMANDS if find(name) is None]:
        yield Finding(
            "commands",
            "odd" if options.rest else "missing",
            f"{', '.join(absent)} not found here. Install Slurm's clients (Debian: slurm-client): without them ADLRO "
            "cannot put jobs back, and has no second way when slurmrestd is gone.",
        )
    else:
        yield Finding("commands", "good", "Slurm's commands are installed")
    try:
        parts = slurm_parts(options)
    except (BackendError, ConfigError) as error:
        yield Finding("options", "missing", str(error))
        return
    with closing(parts):
        yield from _cluster_findings(parts, options)


def _cluster_findings(parts: SlurmParts, options: SlurmOptions) -> Iterator[Finding]:
    """What the cluster itself tells."""
    if parts.rest is not None:
        yield _rest_finding(parts.rest)
    else:
        yield Finding(
            "slurmrestd", "odd", "not used: two commands a job instead of one call. Name it with --rest unix:PATH."
        )
    try:
        snapshot = parts.reader.read()
    except BackendError as error:
        yield Finding("slurmctld", "missing", str(error))
        return
    yield from _config_findings(parts.commands)
    now = site_from_nodes(parts, options)
    yield from _plugin_findings(options.partitions, now)
    yield from _partition_findings(options.partitions, now.partitions)
    yield from (Finding("partitions", "odd", line) for line in split_models(options.partitions, now.nodes))
    yield from _node_findings(parts.reader.sites, unknown_types(snapshot.notes))


def _rest_finding(rest: Rest) -> Finding:
    try:
        status, _ = rest.ask("GET", "/ping")
    except BackendError as error:
        return Finding("slurmrestd", "missing", str(error))
    if status != 200:
        return Finding("slurmrestd", "missing", f"answers {status} to a ping; is slurmctld up?")
    return Finding("slurmrestd", "good", f"answers at {rest.address}, v0.0.{rest.api}")


def _config_findings(commands: Commands | None) -> Iterator[Finding]:
    """What slurm.conf says."""
    if commands is None:
        yield Finding("slurm.conf", "odd", "not looked at: that needs the command line")
        return
    try:
        config = read_slurm_config(commands)
    except BackendError as error:
        yield Finding("slurm.conf", "missing", str(error))
        return
    me, (owner, _, number) = getpass.getuser(), config.get("SlurmUser", "").partition("(")
    is_owner = me == owner or number.rstrip(")") == str(os.geteuid())
    if os.geteuid() == 0 or is_owner or _admin_level(commands, me) in ("Operator", "Administrator"):
        yield Finding("rights", "good", f"{me} may place the jobs of others")
    else:
        yield Finding(
            "rights",
            "missing",
            f"{me} is neither root nor SlurmUser ({owner}): it may not place the jobs of others. Run the daemon as "
            f"{owner}, or give {me} the admin level Operator (sacctmgr modify user {me} set adminlevel=Operator). "
            "Shadow mode does not need this.",
        )
    wants = (
        ("SchedulerType", "sched/backfill", "odd", "sched/builtin starts jobs only in the order of their priority"),
        ("SelectType", "select/cons_tres", "missing", "only select/cons_tres gives out GPUs"),
        ("GresTypes", "gpu", "missing", "without it Slurm knows no GPUs"),
        ("JobSubmitPlugins", "lua", "odd", "ADLRO places only jobs that are submitted with --hold and "
         "--comment=adlro:held. 'adlro slurm install --dry-run' shows the plugin that does this for your users"),
        ("JobRequeue", "1", "odd", "jobs cannot be requeued, not even when their node fails"),
    )  # fmt: skip
    for key, wanted, verdict, text in wants:
        value = config.get(key, "")
        good = wanted in re.split(r"[,\s]+", value)
        yield Finding(key, "good" if good else verdict, f"is {value}" if good else f"is {value or 'not set'}: {text}")
    age = re.match(r"\d+", config.get("MinJobAge", ""))
    if age and not 30 <= int(age[0]) <= 3600:
        yield Finding("MinJobAge", "odd", f"is {age[0]} s: choose 60 to 600 s, to see jobs end and read quickly")
    if has_no_default_memory(config, {}):
        yield Finding(
            "DefMemPerCPU",
            "odd",
            "is not set: a job that names no memory gets all of its node's, and none fits beside it, unless its "
            "partition has a DefMemPerCPU of its own",
        )


def has_no_default_memory(config: Mapping[str, str], partition: Mapping[str, str]) -> bool:
    """Whether a job that names no memory gets all memory of its node."""
    keys = ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU")
    counts = "MEMORY" in config.get("SelectTypeParameters", "").upper()
    return counts and not any(has.get(key, "").isdigit() for key in keys for has in (config, partition))


def _partition_findings(partitions: Sequence[str], known: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Partitions that do not exist, and those whose jobs stay with Slurm."""
    if unknown := unknown_partitions(partitions, known):
        yield Finding("partitions", "missing", unknown)
    elif partitions:
        yield Finding("partitions", "good", f"{', '.join(partitions)}")
    for name in partitions:
        if why := left_to_slurm(known.get(name, {})):
            yield Finding("partitions", "odd", f"{name} has {why}: ADLRO leaves its jobs to Slurm")


def _plugin_findings(partitions: Sequence[str], now: SiteNow) -> Iterator[Finding]:
    """Whether Slurm calls our plugin, and whether it knows these partitions and nodes."""
    if "lua" not in listed_words(now.config.get("JobSubmitPlugins", "")):
        return
    first, chained = (now.files.get(f"{now.folder}/{name}", "") for name in ("job_submit.lua", CHAINED))
    ours = first if OURS in first else chained if OURS in chained and CHAINED in first else ""
    again = "make it anew with 'adlro slurm install'"
    if not first:
        yield Finding("plugin", "odd", f"{now.folder}/job_submit.lua cannot be read here")
    elif not ours:
        yield Finding("plugin", "odd", f"job_submit.lua is not ADLRO's and does not load {CHAINED}: {again}")
    else:
        held = re.findall(r'^   \["(.+?)"\] = \{$', ours, re.M)
        absent = [name for name in partitions if name not in held]
        table = lua_table(partitions_table([name for name in held if name in (partitions or held)], now))
        is_old = any(line not in ours.splitlines() for line in table.splitlines())
        if absent:
            yield Finding("plugin", "odd", f"does not hold the jobs of {', '.join(absent)}: {again}")
        elif is_old:
            yield Finding(
                "plugin", "odd", f"was made for other nodes, and leaves jobs that fit none of them to Slurm: {again}"
            )
        else:
            yield Finding("plugin", "good", f"holds the jobs of {', '.join(held)}")


def split_models(partitions: Sequence[str], nodes: Mapping[str, NamedNode]) -> list[str]:
    """A line for each partition that has some nodes of a GPU model while others of ADLRO's have the rest."""
    lines = []
    for name in partitions:
        here = {node for node, site in nodes.items() if name in site.node.partitions}
        models = {model for node in here for model in nodes[node].devices}
        split = sorted(
            model for model in models if any(model in site.devices for node, site in nodes.items() if node not in here)
        )
        if split:
            lines.append(
                f"{name} has some of the nodes with {', '.join(split)}, and other partitions of ADLRO's have the rest: "
                "ADLRO cannot keep these apart and gives such jobs back to Slurm"
            )
    return lines


def _admin_level(commands: Commands, user: str) -> str:
    """What slurmdbd lets a user do; "" where there is none, or it does not say."""
    try:
        ran = commands.run(["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=adminlevel"])
    except BackendError:
        return ""
    return ran.out.strip() if ran.code == 0 else ""


def _node_findings(sites: Mapping[str, NamedNode], problems: Sequence[str]) -> Iterator[Finding]:
    """What the nodes are to us."""
    gpus = sum(len(devices.types) for site in sites.values() for devices in site.devices.values())
    models = sorted({model for site in sites.values() for model in site.devices})
    verdict = "good" if gpus and not problems else "missing"
    yield Finding("nodes", verdict, f"{len(sites)} with {gpus} GPUs: {', '.join(models) or 'none that we know'}")
    yield from (Finding("GPU types", "missing", problem) for problem in problems)
    indexed = [devices.have_types_each for site in sites.values() for devices in site.devices.values()]
    text = "can be asked for by index" if indexed and all(indexed) else "Slurm chooses them on the node we choose"
    yield Finding("devices", "good", text)
    for name, site in sites.items():
        if not site.node.is_up:
            yield Finding(
                "nodes", "odd", f"{name} takes no jobs: {'+'.join(site.node.state).lower()} {site.node.reason}"
            )
