"""What is handed in to Slurm for a job of the API: its script, and our words in its comment."""

import re
import shlex
from collections.abc import Iterator, Sequence

from adlro.backends.slurm.comments import DEFAULT_PRIORITY, IN_COMMENT, word_for
from adlro.backends.slurm.ways import PATH
from adlro.core.errors import BackendError
from adlro.core.ports import Snapshot, Submission
from adlro.core.records import Job


def most_on_a_node(snapshot: Snapshot) -> int:
    """The most GPUs of one model on one node."""
    return max((gpus.count for node in snapshot.cluster.nodes for gpus in node.gpus), default=0)


def script_of(submission: Submission, first: Sequence[str] = ()) -> str:
    """The script of a job, with its words quoted. `first` are lines before its own."""
    names = [name for name in submission.environment if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
    if odd := set(submission.environment) - set(names):
        raise BackendError(f"'{sorted(odd)[0]}' is not a name of an environment variable.")
    if any("\0" in word for word in (*submission.command, *submission.environment.values())):
        raise BackendError("a command cannot have a zero byte in it.")
    exports = {"PATH": PATH, **submission.environment}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    return "\n".join(["#!/bin/sh", *first, *lines, f"exec {shlex.join(submission.command)}", ""])


def words_of_request(job: Job, token: str, as_whom: str) -> Iterator[str]:
    """Requests for which Slurm has no field, as words of the comment."""
    yield "adlro:held"
    yield f"adlro:token={token}"
    if job.family:
        yield f"adlro:family={job.family}"
    if job.estimate:
        yield f"adlro:estimate={job.estimate:.6g}"
    if job.priority != DEFAULT_PRIORITY and as_whom == "self":
        yield f"adlro:priority={job.priority:g}"
    for each in IN_COMMENT:
        if (value := getattr(job, each.name)) != each.default:
            yield word_for(each, value)
    if job.models:
        yield f"adlro:models={'+'.join(sorted(job.models))}"
    if job.user and as_whom == "self":
        yield f"adlro:user={''.join(sign for sign in job.user if sign.isalnum() or sign in '._-@')[:64]}"
