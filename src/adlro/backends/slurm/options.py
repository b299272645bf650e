"""What a site may set about its Slurm: the table [slurm] of the daemon's config."""

from typing import Literal

from pydantic import Field

from adlro.core.toml import Schema


class FamilyPatternTable(Schema):
    """[[slurm.families]]: jobs that fit a pattern are of a family."""

    field: Literal["name", "partition", "comment"] = "name"
    pattern: str = Field(min_length=1)
    family: str = Field(min_length=1)


class SlurmOptions(Schema):
    """[slurm]: a Slurm cluster (docs/slurm.md)."""

    rest: str = Field(
        default="", description='slurmrestd: unix:PATH, http://HOST:PORT or https://…; "": use Slurm commands only.'
    )
    user: str = Field(default="", description="The user of the slurmrestd token, over TCP.")
    jwt_file: str = Field(
        default="",
        description='A file with that token, read again when it has expired; "": $SLURM_JWT, else scontrol token.',
    )
    conf: str = Field(default="", description='Path of slurm.conf for Slurm commands; "": where Slurm looks for it.')
    command_line: bool = Field(
        default=True, description="Whether to use Slurm commands if slurmrestd does not answer, and to stop jobs."
    )
    partitions: list[str] = Field(default=[], description="Use only these partitions and their nodes; []: all.")
    families: list[FamilyPatternTable] = Field(
        default=[], description="Tables {field, pattern, family}: the first pattern that matches sets a job's family."
    )
    types: dict[str, str] = Field(
        default={}, description='The GPU model of a GRES type that the catalogue does not know, as in turing = "t4".'
    )
    cluster: str = Field(default="", description="A cluster file that describes links between GPUs and the network.")
    submit_as: Literal["nobody", "self", "user"] = Field(
        default="nobody",
        description="The account of jobs submitted over the API: nobody (none are accepted), self (the daemon's) or "
        "user (the user's own; the daemon must be root).",
    )
    submit_partition: str = Field(default="", description='Partition of jobs submitted over the API; "": the first.')
    grace_s: float = Field(
        default=120.0,
        ge=0,
        le=3600,
        description="Most seconds from the signal that a job wants before its end (--signal) to its requeue.",
    )
    timeout_s: float = Field(default=30.0, gt=0, le=600, description="Time limit of one request to Slurm, in seconds.")
