"""This machine in the config."""

import os
from typing import Final

from pydantic import Field

from adlro.backends.kind import Kind, Opened, Site
from adlro.core.accounts import Owners, own_account_name
from adlro.core.errors import BackendError, ConfigError
from adlro.core.toml import Schema


class LocalTable(Schema):
    """[local]: processes on this machine."""

    gpus: str = Field(
        default="",
        description='Pretend to have these GPUs, as in "v100:4,t4:2"; "": those of the cluster file, else those found.',
    )
    cluster: str = Field(default="", description='A cluster file with this machine as its only node; "": none.')
    folder: str = Field(
        default="", description='Folder of jobs and their output; "": the folder jobs beside the store.'
    )
    grace_s: float = Field(
        default=10.0, ge=0, description="Seconds from SIGTERM to SIGKILL when a job is stopped or cancelled."
    )
    shared_account: bool = Field(
        default=False,
        description="Whether a daemon that is not root accepts jobs of other users, to run as its own account.",
    )


def open_local(table: LocalTable, site: Site) -> Opened:
    """This machine with the GPUs that it has, or that are declared."""
    from adlro.backends.local.backend import Local
    from adlro.backends.local.machine import machine_of, this_machine
    from adlro.catalogue.clusters import load_cluster
    from adlro.catalogue.gpus import find_gpu, gpu_models
    from adlro.ingest.telemetry.names import model_of

    if table.cluster:
        machine = machine_of(load_cluster(table.cluster))
    else:
        machine = this_machine(lambda name: model_of(name, find_gpu), table.gpus, gpu_models())
    if not machine.cluster.gpu_count:
        raise BackendError(
            'the drivers of this machine report no GPU. Pretend to have some with [local] gpus = "v100:4", '
            "or with --gpus v100:4."
        )
    backend = Local(
        machine.cluster,
        site.file_of("jobs", table.folder),
        driver_numbers=machine.driver_numbers,
        has_gpus=machine.has_gpus,
        grace_s=table.grace_s,
        owners=_owners_of(table, site),
    )
    return Opened(backend, lambda: backend.now_s)


def _owners_of(table: LocalTable, site: Site) -> Owners:
    """A daemon that is root runs jobs as their users, any other one as itself."""
    if os.geteuid() == 0:
        return Owners(True, site.min_uid)
    is_shared = table.shared_account or not site.has_tokens
    return Owners(False, site.min_uid, "" if is_shared else own_account_name())


def check_local(table: LocalTable, site: Site) -> None:
    """Refuse jobs that would run as root."""
    if site.has_api and os.geteuid() == 0 and table.shared_account:
        raise ConfigError("[local] shared_account = true and the daemon is root: jobs never run as root.")


LOCAL: Final = Kind("local", "processes on this machine", LocalTable, open_local, _owners_of, check_local)
