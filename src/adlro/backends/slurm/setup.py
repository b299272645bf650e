"""For administrators of a Slurm: what is missing there for ADLRO, and the files that set it up. Nothing is changed."""

import difflib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from adlro.backends.slurm.check import has_no_default_memory, split_models
from adlro.backends.slurm.options import SlurmOptions
from adlro.backends.slurm.shapes import (
    common_features,
    features_of,
    left_to_slurm,
    lua_table,
    memory_per_cpu,
    partitions_table,
    quotable,
)
from adlro.backends.slurm.site import CHAINED, OURS, SiteNow, listed_words

_UNITS: Final = "/etc/systemd/system"
CONFIG: Final = "/etc/adlro/adlro.toml"
_STATE: Final = "/var/lib/adlro"
CACHE: Final = "/var/cache/adlro"
"""The folders of StateDirectory= and CacheDirectory= in the unit."""


# ---- how to set it up --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetupFile:
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
) -> list[SetupFile]:
    """The files that a site needs for ADLRO: the plugin, what changes in Slurm's files, the config and the units."""
    partitions = options.partitions or sorted(now.partitions)
    program = adlro or shutil.which("adlro") or f"{sys.executable} -m adlro"
    return [
        *_plugin_files(partitions, now, uid),
        *_conf_files(now),
        SetupFile(CONFIG, _config_of(options, partitions, now), "ADLRO's config"),
        SetupFile(
            f"{_UNITS}/adlro.service",
            _unit(
                "adlro.service",
                User=user,
                ExecStartPre=f"-{program} warm --config {CONFIG}",
                ExecStart=f"{program} serve --config {CONFIG}",
            ),
            "the daemon",
        ),
        SetupFile(
            f"{_UNITS}/adlro-release.service",
            _unit("adlro-release.service", User=user, ExecStart=_release_command(program, options, ready)),
            "gives the queue back to Slurm when ADLRO does not answer for two minutes",
        ),
        SetupFile(
            f"{_UNITS}/adlro-release.timer",
            _shipped_unit("adlro-release.timer"),
            "calls it every minute",
        ),
    ]


def notes_of(options: SlurmOptions, now: SiteNow, files: Sequence[SetupFile]) -> list[str]:
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
        if why := left_to_slurm(partition):
            notes.append(f"Partition {name} has {why}: ADLRO leaves all of its jobs to Slurm.")
        if has_no_default_memory(now.config, partition):
            notes.append(
                f"A job in {name} that names no memory gets all memory of its node, and no job fits beside it. If you "
                f"do not want that, add DefMemPerCPU={memory_per_cpu(name, now)} to the line PartitionName={name} "
                "of slurm.conf. Other partitions need no change."
            )
    program = next((line for file in files for line in file.text.splitlines() if line.startswith("ExecStart=")), "")
    if re.match(r"ExecStart=/(root|home)/", program):
        notes.append(
            f"{program.split()[0][len('ExecStart=') :]} is in a home folder, which the daemon's account may not be "
            "able to read. Install ADLRO in /opt/adlro instead."
        )
    return notes


def steps(options: SlurmOptions, now: SiteNow, files: Sequence[SetupFile]) -> list[str]:
    """How to put the files in place, as commands in the folder with the files.

    The daemon comes first: from the moment when Slurm has the plugin, jobs wait for it.
    """
    plugin = [
        f"patch {file.path} {file.name}" if file.is_diff else f"install -m 644 {file.name} {file.path}"
        for file in files
        if file.path != CONFIG and not file.path.startswith(_UNITS)
    ]
    names = [file.name for file in files]
    if CHAINED in names and "job_submit.lua.diff" not in names:
        plugin.append(_said(f"touch {now.folder}/job_submit.lua", f"else slurmctld does not load the new {CHAINED}"))
    if _restarts(now, files):
        plugin.append(_said("systemctl restart slurmctld", "running jobs go on; every node needs the same slurm.conf"))
    types = "".join(f" --types {shlex.quote(f'{kind}={model}')}" for kind, model in options.types.items())
    return [
        f"install -D -m 644 {Path(CONFIG).name} {CONFIG}",
        f"install -m 644 adlro.service adlro-release.service adlro-release.timer {_UNITS}",
        *_warm_up(files),
        "systemctl daemon-reload",
        "systemctl enable --now adlro adlro-release.timer",
        *plugin,
        f"adlro slurm check{_flags(options)}{types}",
    ]


def _warm_up(files: Sequence[SetupFile]) -> list[str]:
    """How to compile before the first start, as the daemon's account and into the folder that its unit uses."""
    unit = next(file.text for file in files if file.path == f"{_UNITS}/adlro.service")
    user, warm = (re.search(rf"^{key}=-?(.+)$", unit, re.M) for key in ("User", "ExecStartPre"))
    if user is None or warm is None:
        return []
    command = f"runuser -u {user[1]} -- env -C / XDG_CACHE_HOME={CACHE} {warm[1].replace('%%', '%')}"
    return [f"install -d -o {user[1]} {CACHE}", _said(command, "compiles for some minutes")]


def undo(options: SlurmOptions, now: SiteNow, files: Sequence[SetupFile]) -> list[str]:
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
        f"rm {_UNITS}/adlro.service {_UNITS}/adlro-release.*; systemctl daemon-reload",
        _said(f"rm -r {Path(CONFIG).parent} {_STATE} {CACHE}", "config, tokens and history: keep what you need"),
    ]


def _said(command: str, why: str) -> str:
    return f"{command:<50}  # {why}"


def _restarts(now: SiteNow, files: Sequence[SetupFile]) -> bool:
    """Whether slurmctld must be started again: it reads job_submit.lua by itself, but not JobSubmitPlugins."""
    return not now.config or any(file.is_diff and not file.path.endswith(".lua") for file in files)


def _plugin_files(partitions: Sequence[str], now: SiteNow, uid: int | None) -> Iterator[SetupFile]:
    """The plugin, as job_submit.lua or, beside one of the site's own, as a file that it loads."""
    values = {
        "PARTITIONS": lua_table(partitions_table(partitions, now)),
        "PLACERS": "" if uid in (None, 0) else f", [{uid}] = true",
        "FEATURES": ", ".join(f'["{quotable(word)}"] = true' for word in common_features(now.nodes)),
        "TYPES": ", ".join(
            f'["{quotable(kind)}"] = "{quotable(word)}"' for kind, word in features_of(now.nodes).items()
        ),
    }
    plugin = re.sub(
        r"@([A-Z]+)@", lambda found: values[found[1]], _text("adlro.backends.slurm", "files/job_submit.lua")
    )
    path = f"{now.folder}/job_submit.lua"
    why = "marks and holds the jobs that ADLRO places"
    theirs = now.files.get(path, "")
    if not theirs or OURS in theirs:
        yield SetupFile(path, plugin, why)
        return
    own = f"{now.folder}/{CHAINED}"
    yield SetupFile(own, plugin, f"{why}; your job_submit.lua loads it")
    if own not in theirs:
        load = [
            f'local is_loaded, problem = pcall(dofile, "{own}")',
            'if not is_loaded then slurm.log_error("adlro.lua is not used: %s", tostring(problem)) end',
        ]
        lines = theirs.splitlines()
        end = max((n for n, line in enumerate(lines) if re.match(r"return\b", line)), default=len(lines))
        changed = [*lines[:end], *load, *lines[end:]]
        yield SetupFile(path, _diff(path, theirs, "\n".join(changed) + "\n"), "loads ADLRO's after your own", True)


def _conf_files(now: SiteNow) -> Iterator[SetupFile]:
    """What changes in slurm.conf: JobSubmitPlugins, where it does not name lua."""
    if "lua" in listed_words(now.config.get("JobSubmitPlugins", "")) or now.conf not in now.files:
        return
    why = "calls the plugin when a job is submitted; nothing else changes"
    setting = re.compile(r"^[ \t]*JobSubmitPlugins[ \t]*=.*$", re.I | re.M)
    for path, text in now.files.items():
        if not path.endswith(".lua") and setting.search(text):
            new = setting.sub(f"JobSubmitPlugins={_plugins(now)}", text)
            yield SetupFile(path, _diff(path, text, new), why, True)
            return
    text = now.files[now.conf]
    end = "" if text.endswith("\n") or not text else "\n"
    yield SetupFile(now.conf, _diff(now.conf, text, f"{text}{end}JobSubmitPlugins={_plugins(now)}\n"), why, True)


def _plugins(now: SiteNow) -> str:
    """JobSubmitPlugins as it is, with lua after what is there."""
    return ",".join(dict.fromkeys([*listed_words(now.config.get("JobSubmitPlugins", "")), "lua"]))


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), path, f"{path} (new)")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _config_of(options: SlurmOptions, partitions: Sequence[str], now: SiteNow) -> str:
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
