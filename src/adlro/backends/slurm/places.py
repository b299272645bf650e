"""Where a job of Slurm runs, or was let go to: its parts."""

from collections.abc import Iterator, Mapping, Sequence

from adlro.backends.slurm.fields import devices_in
from adlro.backends.slurm.nodes import NamedNode
from adlro.backends.slurm.parse_jobs import SlurmJob
from adlro.core.ports import JobState, Part
from adlro.core.records import CPU_ONLY
from adlro.ingest.host_lists import gpus_in, hosts_in


def parts_of(
    job: SlurmJob, state: JobState, words: Mapping[str, str], sites: Mapping[str, NamedNode]
) -> tuple[Part, ...]:
    """Where a job runs or ran, or was let go to."""
    if state is JobState.WAITING:
        return ()
    nodes = hosts_in(job.node_list or (job.required_nodes if state is JobState.PLACED else ""))
    if not nodes:
        return ()
    if len(job.detail) == len(nodes) and any(devices_in(line) for line in job.detail):
        told = zip(nodes, job.detail, strict=True)
        return tuple(part for node, line in told for part in _held_parts(node, line, sites.get(node)))
    return tuple(_asked_parts(job, words, nodes, sites))


def _held_parts(node: str, line: str, site: NamedNode | None) -> Iterator[Part]:
    """The devices that Slurm tells, by our models and our index among those of a model on the node."""
    numbers = [number for _, found in devices_in(line) for number in found]
    for model, devices in site.devices.items() if site else ():
        ours = tuple(devices.numbers.index(number) for number in sorted(numbers) if number in devices.numbers)
        if ours:
            yield Part(node, model, len(ours), ours)


def _asked_parts(
    job: SlurmJob, words: Mapping[str, str], nodes: Sequence[str], sites: Mapping[str, NamedNode]
) -> Iterator[Part]:
    """What it asked for, spread over its nodes: of a job that has not begun, or has ended, Slurm tells no devices."""
    left = sum(count for _, count in job.gres) or whole_in(words.get("gpus", "0"))
    if not left:
        yield from (Part(node, CPU_ONLY, 0) for node in nodes)
        return
    types = {word for word, _ in gpus_in(job.per_node) if word}
    for position, node in enumerate(nodes):
        site = sites.get(node)
        if site is None or not site.devices:
            continue
        model, devices = next(
            ((m, d) for m, d in site.devices.items() if types & set(d.types)), next(iter(site.devices.items()))
        )
        count = min(-(-left // (len(nodes) - position)), len(devices.types), left)
        left -= count
        if count:
            asked = tuple(index for index, word in enumerate(devices.types) if word in types)
            yield Part(node, model, count, asked if devices.have_types_each and len(asked) == count else ())


def whole_in(text: str) -> int:
    """A whole number, or 0 for what is none."""
    return int(text) if text.isdigit() else 0
