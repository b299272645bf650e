"""For administrators of a Slurm: what is missing there for ADLRO, and the files that set it up. Nothing is changed."""

import difflib
import getpass
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

from adlro.backends.slurm.backend import Parts, slurm_parts
from adlro.backends.slurm.jobs import Site
from adlro.backends.slurm.live import Commands, Rest
from adlro.backends.slurm.options import SlurmOptions
from adlro.backends.slurm.parse import INDEX_TYPE
from adlro.core.errors import BackendError, ConfigError

COMMANDS: Final = ("scontrol", "squeue", "sinfo", "sbatch", "scancel")
UNITS: Final = "/etc/systemd/system"
CONFIG: Final = "/etc/adlro/adlro.toml"
STATE: Final = "/var/lib/adlro"
CACHE: Final = "/var/cache/adlro"
"""The folders of StateDirectory= and CacheDirectory= in the unit."""

OURS: Final = "ADLRO's job_submit plugin"
"""What the first line of our job_submit.lua says."""

CHAINED: Final = "adlro.lua"
"""The name of our plugin where the site has a job_submit.lua of its own, which loads it."""


# ---- what the site has -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SiteNow:
    """What a Slurm site has now, as far as ADLRO needs to know it."""

    nodes: Mapping[str, Site] = field(default_factory=dict)
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
            problems = _unknown_types(parts.reader.read().notes)
        return _site_of(parts, options, problems)


def _site_of(parts: Parts, options: SlurmOptions, problems: tuple[str, ...] = ()) -> SiteNow:
    """The same, of nodes that were read already."""
    config: dict[str, str] = {}
    if parts.commands is not None:
        with suppress(BackendError):
            config = read_config(parts.commands)
    conf = config.get("SLURM_CONF") or options.conf or SiteNow().conf
    return SiteNow(parts.reader.sites, read_partitions(parts), config, conf, _read_files(conf), problems)


def read_config(commands: Commands) -> dict[str, str]:
    """What `scontrol show config` tells, by name; an option that is not set is ""."""
    ran = commands.run(["scontrol", "show", "config"])
    if ran.code != 0:
        raise BackendError(f"'scontrol show config' fails: {ran.said}")
    pairs = (line.partition("=") for line in ran.out.splitlines() if "=" in line)
    return {name.strip(): "" if value.strip() == "(null)" else value.strip() for name, _, value in pairs}


def read_partitions(parts: Parts) -> dict[str, dict[str, str]]:
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


def _unknown_types(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(note for note in notes if "the GPU type" in note)


# ---- what is missing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `verdict` is good, odd (works, but) or missing."""

    what: str
    verdict: str
    text: str


def check(options: SlurmOptions, find: Callable[[str], str | None] = shutil.which) -> list[Finding]:
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


def _cluster_findings(parts: Parts, options: SlurmOptions) -> Iterator[Finding]:
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
    now = _site_of(parts, options)
    yield from _plugin_findings(options.partitions, now)
    yield from _partition_findings(options.partitions, now.partitions)
    yield from (Finding("partitions", "odd", line) for line in split_models(options.partitions, now.nodes))
    yield from _node_findings(parts.reader.sites, _unknown_types(snapshot.notes))


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
        config = read_config(commands)
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
    if _has_no_default_memory(config, {}):
        yield Finding(
            "DefMemPerCPU",
            "odd",
            "is not set: a job that names no memory gets all of its node's, and none fits beside it, unless its "
            "partition has a DefMemPerCPU of its own",
        )


def _has_no_default_memory(config: Mapping[str, str], partition: Mapping[str, str]) -> bool:
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
        if why := _left_to_slurm(known.get(name, {})):
            yield Finding("partitions", "odd", f"{name} has {why}: ADLRO leaves its jobs to Slurm")


def _plugin_findings(partitions: Sequence[str], now: SiteNow) -> Iterator[Finding]:
    """Whether Slurm calls our plugin, and whether it knows these partitions and nodes."""
    if "lua" not in _words(now.config.get("JobSubmitPlugins", "")):
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
        table = _lua_table(partitions_table([name for name in held if name in (partitions or held)], now))
        is_old = any(line not in ours.splitlines() for line in table.splitlines())
        if absent:
            yield Finding("plugin", "odd", f"does not hold the jobs of {', '.join(absent)}: {again}")
        elif is_old:
            yield Finding(
                "plugin", "odd", f"was made for other nodes, and leaves jobs that fit none of them to Slurm: {again}"
            )
        else:
            yield Finding("plugin", "good", f"holds the jobs of {', '.join(held)}")


def split_models(partitions: Sequence[str], nodes: Mapping[str, Site]) -> list[str]:
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


def _left_to_slurm(partition: Mapping[str, str]) -> str:
    """The setting for which ADLRO leaves all jobs of a partition to Slurm; "" if there is none."""
    share = partition.get("OverSubscribe", "")
    if share == "EXCLUSIVE" or (share.startswith("FORCE") and share not in ("FORCE", "FORCE:1")):
        return f"OverSubscribe={share}"
    return "ExclusiveUser=YES" if partition.get("ExclusiveUser") == "YES" else ""


def _admin_level(commands: Commands, user: str) -> str:
    """What slurmdbd lets a user do; "" where there is none, or it does not say."""
    try:
        ran = commands.run(["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=adminlevel"])
    except BackendError:
        return ""
    return ran.out.strip() if ran.code == 0 else ""


def _node_findings(sites: Mapping[str, Site], problems: Sequence[str]) -> Iterator[Finding]:
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


# ---- how to set it up --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """A file to put in place, and why. With `is_diff` the text is a unified diff of the file at `path`."""

    path: str
    text: str
    why: str
    is_diff: bool = False

    @property
    def name(self) -> str:
        """Its name in a folder with the others."""
        return Path(self.path).name + (".diff" if self.is_diff else "")


def setup(
    options: SlurmOptions, now: SiteNow, *, user: str, uid: int | None, ready: str, adlro: str = ""
) -> list[Setup]:
    """The files that a site needs for ADLRO: the plugin, what changes in Slurm's files, the config and the units."""
    partitions = options.partitions or sorted(now.partitions)
    program = adlro or shutil.which("adlro") or f"{sys.executable} -m adlro"
    return [
        *_plugin_files(partitions, now, uid),
        *_conf_files(now),
        Setup(CONFIG, config_of(options, partitions, now), "ADLRO's config"),
        Setup(
            f"{UNITS}/adlro.service",
            _unit(
                "adlro.service",
                User=user,
                ExecStartPre=f"-{program} warm --config {CONFIG}",
                ExecStart=f"{program} serve --config {CONFIG}",
            ),
            "the daemon",
        ),
        Setup(
            f"{UNITS}/adlro-release.service",
            _unit("adlro-release.service", User=user, ExecStart=_release_command(program, options, ready)),
            "gives the queue back to Slurm when ADLRO does not answer for two minutes",
        ),
        Setup(
            f"{UNITS}/adlro-release.timer",
            _shipped_unit("adlro-release.timer"),
            "calls it every minute",
        ),
    ]


def notes_of(options: SlurmOptions, now: SiteNow, files: Sequence[Setup]) -> list[str]:
    """What an administrator should know before putting the files in place."""
    notes = list(now.problems)
    if not now.nodes:
        notes.append(
            "Slurm does not answer, so the plugin knows no nodes: it leaves all jobs to Slurm. Start slurmctld, or "
            "name slurm.conf with --conf, and call this again."
        )
    elif now.conf not in now.files:
        notes.append(
            f"{now.conf} cannot be read here. Call this on the machine of slurmctld to see what changes in it; or add "
            f"'JobSubmitPlugins={_plugins(now)}' to it yourself."
        )
    notes += [f"Partition {line}." for line in split_models(options.partitions, now.nodes)]
    for name in options.partitions:
        partition = now.partitions.get(name, {})
        if why := _left_to_slurm(partition):
            notes.append(f"Partition {name} has {why}: ADLRO leaves all of its jobs to Slurm.")
        if _has_no_default_memory(now.config, partition):
            notes.append(
                f"A job in {name} that names no memory gets all memory of its node, and no job fits beside it. If you "
                f"do not want that, add DefMemPerCPU={_memory_per_cpu(name, now)} to the line PartitionName={name} "
                "of slurm.conf. Other partitions need no change."
            )
    program = next((line for file in files for line in file.text.splitlines() if line.startswith("ExecStart=")), "")
    if re.match(r"ExecStart=/(root|home)/", program):
        notes.append(
            f"{program.split()[0][len('ExecStart=') :]} is in a home folder, which the daemon's account may not be "
            "able to read. Install ADLRO in /opt/adlro instead."
        )
    return notes


def steps(options: SlurmOptions, now: SiteNow, files: Sequence[Setup]) -> list[str]:
    """How to put the files in place, as commands in the folder with the files.

    The daemon comes first: from the moment when Slurm has the plugin, jobs wait for it.
    """
    plugin = [
        f"patch {file.path} {file.name}" if file.is_diff else f"install -m 644 {file.name} {file.path}"
        for file in files
        if file.path != CONFIG and not file.path.startswith(UNITS)
    ]
    names = [file.name for file in files]
    if CHAINED in names and "job_submit.lua.diff" not in names:
        plugin.append(_said(f"touch {now.folder}/job_submit.lua", f"else slurmctld does not load the new {CHAINED}"))
    if _restarts(now, files):
        plugin.append(_said("systemctl restart slurmctld", "running jobs go on; every node needs the same slurm.conf"))
    types = "".join(f" --types {shlex.quote(f'{kind}={model}')}" for kind, model in options.types.items())
    return [
        f"install -D -m 644 {Path(CONFIG).name} {CONFIG}",
        f"install -m 644 adlro.service adlro-release.service adlro-release.timer {UNITS}",
        *_warm_up(files),
        "systemctl daemon-reload",
        "systemctl enable --now adlro adlro-release.timer",
        *plugin,
        f"adlro slurm check{_flags(options)}{types}",
    ]


def _warm_up(files: Sequence[Setup]) -> list[str]:
    """How to compile before the first start, as the daemon's account and into the folder that its unit uses."""
    unit = next(file.text for file in files if file.path == f"{UNITS}/adlro.service")
    user, warm = (re.search(rf"^{key}=-?(.+)$", unit, re.M) for key in ("User", "ExecStartPre"))
    if user is None or warm is None:
        return []
    command = f"runuser -u {user[1]} -- env -C / XDG_CACHE_HOME={CACHE} {warm[1].replace('%%', '%')}"
    return [f"install -d -o {user[1]} {CACHE}", _said(command, "compiles for some minutes")]


def undo(options: SlurmOptions, now: SiteNow, files: Sequence[Setup]) -> list[str]:
    """How to take it all away again, as commands in the folder with the files.

    The plugin goes first: a job that is submitted after `release-all` must not be held again.
    """
    lines = [_said(f"patch -R {file.path} {file.name}", "no more jobs are held") for file in files if file.is_diff]
    plugin = next(file.path for file in files if file.path.endswith(".lua") and not file.is_diff)
    if not lines and not plugin.endswith(CHAINED):
        lines.append(
            f"# take lua out of JobSubmitPlugins in {now.conf}: without job_submit.lua slurmctld does not start"
        )
    return [
        *lines,
        _said("systemctl restart slurmctld", "running jobs go on"),
        f"rm {plugin}",
        _said("systemctl disable --now adlro adlro-release.timer", "ADLRO stops deciding"),
        _said(f"adlro slurm release-all{_flags(options)}", "every job that waits for ADLRO is Slurm's again"),
        f"rm {UNITS}/adlro.service {UNITS}/adlro-release.*; systemctl daemon-reload",
        _said(f"rm -r {Path(CONFIG).parent} {STATE} {CACHE}", "config, tokens and history: keep what you need"),
    ]


def _said(command: str, why: str) -> str:
    return f"{command:<50}  # {why}"


def _restarts(now: SiteNow, files: Sequence[Setup]) -> bool:
    """Whether slurmctld must be started again: it reads job_submit.lua by itself, but not JobSubmitPlugins."""
    return not now.config or any(file.is_diff and not file.path.endswith(".lua") for file in files)


def _plugin_files(partitions: Sequence[str], now: SiteNow, uid: int | None) -> Iterator[Setup]:
    """The plugin, as job_submit.lua or, beside one of the site's own, as a file that it loads."""
    values = {
        "PARTITIONS": _lua_table(partitions_table(partitions, now)),
        "PLACERS": "" if uid in (None, 0) else f", [{uid}] = true",
        "FEATURES": ", ".join(f'["{_plain(word)}"] = true' for word in common_features(now.nodes)),
        "TYPES": ", ".join(f'["{_plain(kind)}"] = "{_plain(word)}"' for kind, word in features_of(now.nodes).items()),
    }
    plugin = re.sub(
        r"@([A-Z]+)@", lambda found: values[found[1]], _text("adlro.backends.slurm", "files/job_submit.lua")
    )
    path = f"{now.folder}/job_submit.lua"
    why = "marks and holds the jobs that ADLRO places"
    theirs = now.files.get(path, "")
    if not theirs or OURS in theirs:
        yield Setup(path, plugin, why)
        return
    own = f"{now.folder}/{CHAINED}"
    yield Setup(own, plugin, f"{why}; your job_submit.lua loads it")
    if own not in theirs:
        load = [
            f'local is_loaded, problem = pcall(dofile, "{own}")',
            'if not is_loaded then slurm.log_error("adlro.lua is not used: %s", tostring(problem)) end',
        ]
        lines = theirs.splitlines()
        end = max((n for n, line in enumerate(lines) if re.match(r"return\b", line)), default=len(lines))
        changed = [*lines[:end], *load, *lines[end:]]
        yield Setup(path, _diff(path, theirs, "\n".join(changed) + "\n"), "loads ADLRO's after your own", True)


def _conf_files(now: SiteNow) -> Iterator[Setup]:
    """What changes in slurm.conf: JobSubmitPlugins, where it does not name lua."""
    if "lua" in _words(now.config.get("JobSubmitPlugins", "")) or now.conf not in now.files:
        return
    why = "calls the plugin when a job is submitted; nothing else changes"
    setting = re.compile(r"^[ \t]*JobSubmitPlugins[ \t]*=.*$", re.I | re.M)
    for path, text in now.files.items():
        if not path.endswith(".lua") and setting.search(text):
            new = setting.sub(f"JobSubmitPlugins={_plugins(now)}", text)
            yield Setup(path, _diff(path, text, new), why, True)
            return
    text = now.files[now.conf]
    end = "" if text.endswith("\n") or not text else "\n"
    yield Setup(now.conf, _diff(now.conf, text, f"{text}{end}JobSubmitPlugins={_plugins(now)}\n"), why, True)


def _plugins(now: SiteNow) -> str:
    """JobSubmitPlugins as it is, with lua after what is there."""
    return ",".join(dict.fromkeys([*_words(now.config.get("JobSubmitPlugins", "")), "lua"]))


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text) if word]


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), path, f"{path} (new)")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def config_of(options: SlurmOptions, partitions: Sequence[str], now: SiteNow) -> str:
    """A config for this site."""
    lines = [
        "# ADLRO on this Slurm. 'adlro serve --print-config' shows every option.",
        "[backend]",
        'kind = "slurm"',
        "",
    ]
    lines += ["[slurm]", f"partitions = {json.dumps(list(partitions))}"]
    for key in ("rest", "user", "jwt_file", "conf"):
        if value := getattr(options, key):
            lines.append(f"{key} = {json.dumps(value)}")
    if options.types or now.problems:
        lines += [
            "",
            "# The GPU models ('adlro gpus') of GRES types that the catalogue does not know.",
            "[slurm.types]",
        ]
        lines += [f"{json.dumps(kind)} = {json.dumps(model)}" for kind, model in options.types.items()]
        lines += [f"# {problem}" for problem in now.problems]
    lines += [
        "",
        "# Which jobs are alike, so that ADLRO knows how fast they run on which GPU ('adlro speeds').",
        "# [[slurm.families]]",
        '# field = "name"',
        '# pattern = "^(train|bert|resnet)"',
        '# family = "learning"',
    ]
    return "\n".join(lines) + "\n"


# ---- what the plugin knows of the nodes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of node. `most` is the largest number of GPUs of one model."""

    cpus: int
    memory_mib: int
    most: int
    gpus: tuple[tuple[str, int], ...]


def partitions_table(partitions: Sequence[str], now: SiteNow) -> dict[str, dict[Shape, int]]:
    """For each of ADLRO's partitions its kinds of nodes, and how many there are of each."""
    table: dict[str, dict[Shape, int]] = {name: {} for name in partitions}
    kinds = features_of(now.nodes)
    for name in partitions:
        if _left_to_slurm(now.partitions.get(name, {})):
            continue
        for site in now.nodes.values():
            if name in site.node.partitions:
                shape = shape_of(site, kinds)
                table[name][shape] = table[name].get(shape, 0) + 1
    return table


def shape_of(site: Site, kinds: Iterable[str] = ()) -> Shape:
    """What a job can find on a node, as far as ADLRO knows its GPUs.

    Where each device has a type of its own, users ask for one of `kinds`, which the plugin makes a feature.
    """
    gpus: dict[str, int] = {}
    for devices in site.devices.values():
        for word in devices.types:
            kind = INDEX_TYPE.sub("", word) if devices.have_types_each else word
            if kind and (kind in kinds or not devices.have_types_each):
                gpus[kind] = gpus.get(kind, 0) + 1
    most = max((len(devices.types) for devices in site.devices.values()), default=0)
    return Shape(int(site.node.cpus), int(site.node.memory_mib), most, tuple(sorted(gpus.items())))


def _lua_table(table: Mapping[str, Mapping[Shape, int]]) -> str:
    lines = []
    for name, shapes in table.items():
        lines.append(f'   ["{_plain(name)}"] = {{')
        for shape, count in shapes.items():
            gpus = ", ".join(f'["{_plain(kind)}"] = {many}' for kind, many in shape.gpus)
            lines.append(
                f"      {{nodes = {count}, cpus = {shape.cpus}, memory = {shape.memory_mib}, most = {shape.most}, "
                f"gpus = {{{gpus}}}}},"
            )
        lines.append("   },")
    return "\n" + "\n".join(lines) + "\n"


def common_features(sites: Mapping[str, Site]) -> list[str]:
    """Features that, of each GPU model, all nodes have or none: with them a job asks for models, not for nodes."""
    words = sorted({word for site in sites.values() for word in site.node.features})
    models = {model for site in sites.values() for model in site.devices}

    def splits(word: str, model: str) -> bool:
        return len({word in site.node.features for site in sites.values() if model in site.devices}) > 1

    return [word for word in words if not any(splits(word, model) for model in models)]


def features_of(sites: Mapping[str, Site]) -> dict[str, str]:
    """On a site with a type for each device: what users may ask for, and the node feature that means it."""
    found: dict[str, str] = {}
    for site in sites.values():
        for devices in site.devices.values():
            if not devices.have_types_each:
                continue
            kind = INDEX_TYPE.sub("", devices.types[0])
            others = {
                word
                for other in sites.values()
                if set(other.devices) != set(site.devices)
                for word in other.node.features
            }
            own = [word for word in site.node.features if word not in others]
            if own:
                found[kind] = own[0]
    return found


def _memory_per_cpu(partition: str, now: SiteNow) -> int:
    """Memory in MB that each CPU of a partition's nodes can have, rounded down."""
    nodes = [site.node for site in now.nodes.values() if partition in site.node.partitions and site.node.cpus]
    return max(min((int(node.memory_mib / node.cpus) // 100 * 100 for node in nodes), default=2000), 100)


# ---- units -------------------------------------------------------------------------------------------------------


def _unit(name: str, **values: str) -> str:
    """A unit of the package with other values for some of its keys."""
    text = _shipped_unit(name)
    for key, value in values.items():
        line = f"{key}={value.replace('%', '%%')}"  # % begins a specifier of systemd
        text = "\n".join(line if each.startswith(f"{key}=") else each for each in text.split("\n"))
    return text


def _release_command(program: str, options: SlurmOptions, ready: str) -> str:
    flags = _flags(options)
    return f"{program} slurm release-all{flags} --unless-ready {shlex.quote(ready)} --patience 120 --unit adlro.service"


def _flags(options: SlurmOptions) -> str:
    """The options as flags of a command, with a space before them."""
    values = {"--rest": options.rest, "--user": options.user, "--jwt-file": options.jwt_file, "--conf": options.conf}
    words = [word for flag, value in values.items() if value for word in (flag, value)]
    words += [word for partition in options.partitions for word in ("--partition", partition)]
    return " " + shlex.join(words) if words else ""


def _shipped_unit(name: str) -> str:
    return _text("adlro.daemon", f"units/{name}")


def _text(package: str, path: str) -> str:
    return resources.files(package).joinpath(path).read_text(encoding="utf-8")


def _plain(name: str) -> str:
    """A name that can stand between quotes."""
    return re.sub(r"[^\w.@-]", "", name)
