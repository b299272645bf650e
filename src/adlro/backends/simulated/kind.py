"""The simulated cluster in the config."""

from functools import partial
from typing import Final

from pydantic import Field

from adlro.backends.kind import Kind, Opened, Site
from adlro.core.toml import Schema
from adlro.experiment.conditions import UNCHANGED


class SimulatedTable(Schema):
    """[simulated]: a cluster that is not there."""

    cluster: str = Field(
        default="", description='A cluster that ships (adlro clusters), or a file; "": the demo with its jobs.'
    )
    workload: str = Field(
        default="", description='The workload or trace whose jobs arrive (adlro workloads); "": none.'
    )
    speed: float = Field(default=60.0, gt=0, le=1e6, description="How many times faster than real time.")
    seed: int = Field(default=0, ge=0, description="Random seed of its jobs.")
    thermal: bool = Field(
        default=False, description="Whether its GPUs become hot and lower their clocks (docs/semantics.md#heat)."
    )
    room_c: float = Field(
        default=UNCHANGED.room_c,
        ge=-40,
        le=60,
        description="With thermal: temperature of the air that enters the nodes, in C.",
    )


def open_simulated(table: SimulatedTable, site: Site) -> Opened:
    """The cluster that the table names, else the demo cluster."""
    from adlro.backends.simulated.demo import demo_backend, simulated_backend, telemetry

    room_c = table.room_c if table.thermal else None
    if table.cluster:
        backend = simulated_backend(table.cluster, table.workload or None, table.speed, table.seed, room_c=room_c)
    else:
        backend = demo_backend(table.speed, table.seed, room_c=room_c)
    return Opened(backend, lambda: backend.now_s, partial(telemetry, backend))


SIMULATED: Final = Kind(
    "simulated", "nodes that are not there", SimulatedTable, open_simulated, ends_with_daemon=True
)  # fmt: skip
