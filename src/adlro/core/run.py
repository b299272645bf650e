"""The result of a finished simulation, which measures, report and event log read."""

from dataclasses import dataclass, field

from adlro.core.records import Cluster
from adlro.core.tables import NO_SHAPES, Floats, Ints, Jobs, Table


@dataclass(frozen=True, slots=True)
class Run:
    """One finished simulation: its input and everything that happened."""

    cluster: Cluster
    jobs: Jobs
    events: Table  # EVENT, in time order, without submissions (they are in jobs)
    rate: Floats  # [K, H] as in View
    site_form: Ints  # [S] form of each site
    site_model: tuple[str, ...]  # [S] model name
    site_gpus: Ints  # [S]
    site_node: Ints  # [S] node of each site
    policy: str
    seed: int
    unfinished: int  # jobs that were waiting or running when the run ended
    refusals: dict[int, str]  # job index -> reason
    illegal: int
    shapes: Table = field(default_factory=lambda: NO_SHAPES)  # SHAPE [E] as in View
    heat: "Table | None" = None  # HEAT at the end; None or no rows in a run without heat
