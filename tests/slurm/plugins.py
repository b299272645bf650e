"""A lab with the plugin that `adlro slurm install` makes for it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.slurm.lab import Lab, running

from adlro.backends.slurm.options import SlurmOptions
from adlro.backends.slurm.setup import SetupFile, setup
from adlro.backends.slurm.site import site_now

NO_RULES: Final = """
function slurm_job_submit(job, partitions, uid) return slurm.SUCCESS end
function slurm_job_modify(wish, job, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


def put(lab: Lab, name: str, text: str) -> None:
    """Put a file beside slurm.conf. Slurm loads job_submit.lua again when it is newer than before, in whole seconds."""
    path = Path(lab.environment["SLURM_CONF"]).with_name(name)
    newer = max(time.time(), path.stat().st_mtime if path.exists() else 0) + 10
    path.write_text(text)
    os.utime(path, (newer, newer))


def files_for(lab: Lab, *partitions: str, uid: int | None = None) -> list[SetupFile]:
    """The files of `adlro slurm install` for a lab that runs."""
    options = SlurmOptions(conf=lab.environment["SLURM_CONF"], partitions=list(partitions))
    now = site_now(options)
    assert now.nodes, "Slurm does not answer"
    return setup(options, now, user="slurm", uid=uid, ready="http://127.0.0.1:1/readyz")


def plugin_for(lab: Lab, *partitions: str, uid: int | None = None) -> str:
    """The plugin for a lab that runs and has no rules of its own."""
    put(lab, "job_submit.lua", "")
    return files_for(lab, *partitions, uid=uid)[0].text


@contextmanager
def with_plugin(lab: Lab, *partitions: str) -> Iterator[Lab]:
    """The lab (of `lua=NO_RULES`), started, with our plugin for these partitions."""
    with running(lab):
        put(lab, "job_submit.lua", plugin_for(lab, *partitions))
        yield lab
