"""What a site may set about its Slurm: the table [slurm] of the daemon's config."""

from typing import Literal

from pydantic import Field

from adlro.core.toml import Schema


class FamilyTable(Schema):
    """[[slurm.families]]: jobs that fit a pattern are of a family."""

    field: Literal["name", "partition", "comment"] = "name"
    pattern: str = Field(min_length=1)
    family: str = Field(min_length=1)


class SlurmOptions(Schema):
    """[slurm]: a Slurm cluster (docs/slurm.md)."""

    rest: str = Field(
        default="", description='slurmrestd: unix:PATH, http://HOST:PORT or https://…; "" is the command line alone.'
    )
    user: str = Field(default="", description="Whom the token for slurmrestd is for, over TCP.")
    jwt_file: str = Field(
        default="",
        description='A file with that token, read again when it expired; "" is $SLURM_JWT, else scontrol token.',
    )
    conf: str = Field(default="", description='slurm.conf for the command line; "" is where Slurm looks for it.')
    command_line: bool = Field(
        default=True, description="Whether Slurm's commands may be used: as a fallback, and to put jobs back."
    )
    partitions: list[str] = Field(default=[], description="Only these partitions, with their nodes; [] is all.")
    families: list[FamilyTable] = Field(
        default=[], description="Tables {field, pattern, family}: the first whose pattern fits says a job's family."
    )
    types: dict[str, str] = Field(
        default={}, description='The GPU model of a GRES type that the catalogue does not know, as in turing = "t4".'
    )
    cluster: str = Field(default="", description="A cluster file that says how GPUs and nodes are joined.")
    submit_as: Literal["nobody", "self", "user"] = Field(
        default="nobody",
        description="Which account the jobs of the API run as: nobody (none are taken), self (the daemon's) or user "
        "(their user's; the daemon must be root).",
    )
    submit_partition: str = Field(default="", description='To which partition; "" is the first of partitions.')
    timeout_s: float = Field(default=30.0, gt=0, le=600, description="The longest that one question to Slurm may take.")
