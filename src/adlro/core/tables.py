"""Tables: the plural of the records, as arrays that compiled code reads. `normalise.pack` builds them.

Every table is a structured array; `table[i].field` reads the same compiled and plain (under NUMBA_DISABLE_JIT=1),
because the arrays are record arrays. Axes: J jobs, S sites, N nodes, G GPUs, H forms, P pools, K kinds, U users.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from adlro.core.records import Job, Node
from adlro.core.schema import columns_for

Table: TypeAlias = "np.recarray[Any, Any]"
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int32]
Masks: TypeAlias = npt.NDArray[np.int64]
"""GPUs of sites, one bit each."""

NOBODY: Final = -1
"""No job, no site, no part: the index of nothing."""

FOREVER: Final = np.inf

NOT_ASKED: Final = -1.0
"""In View.fastest: nobody has asked yet how fast jobs of this demand could run."""

RECENT: Final = 64
"""How many releases of capacity are remembered."""

MIX_ROWS: Final = 32
MIX_COLUMNS: Final = 3

MANY_STARTS: Final = 30_000

# What state a job is in.
FUTURE: Final = 0
QUEUED: Final = 1
RUNNING: Final = 2
FINISHED: Final = 3
KILLED: Final = 4
REFUSED: Final = 5

# What a policy can say.
WAIT: Final = 0
START: Final = 1
STOP: Final = 2


class Choice(NamedTuple):
    """A policy's answer: start a job at a site, stop a job, or wait until something happens (or until a time)."""

    verb: int
    job: int
    site: int
    until: float


JOB = np.dtype(
    [
        *columns_for(Job),
        ("family", "i4"),
        ("allowed", "i4"),  # index into Jobs.allowed
        ("kind", "i4"),  # row of View.rate; set by pack
        ("demand", "i4"),  # row of View.demands: jobs that need exactly the same; set by pack
        ("user", "i4"),
        ("group", "i4"),  # one number for the same user and name: past jobs alike
    ],
    align=True,
)
"""What is known of a job when it is submitted. The true work is not here: policies never see it.

The amounts are those that `Job` declares, in the units of the table: MiB, and thousandths of cores and GPUs. A limit or
checkpoint of inf means none.
"""

RUN = np.dtype(
    [
        ("done", "f8"),  # work done and kept, up to `since`
        ("saved", "f8"),  # work that a failure cannot take: what it had when it last started
        ("held", "f8"),  # seconds for which it held its GPUs in earlier stretches
        ("started", "f8"),  # when this stretch began
        ("since", "f8"),  # work counts from here: after the restart cost, or after the last change of speed
        ("mask", "i8"),  # GPUs held at `site`, one bit each
        ("site", "i4"),
        ("parts", "i4"),  # first of the further parts of a gang over several nodes, in View.parts
        ("slot", "i4"),  # where the simulator keeps its end
        ("next", "i4"),  # while it waits: the next waiting job of its demand, in submit order …
        ("previous", "i4"),  # … and the one before
        ("starts", "i2"),  # how often it was started, counted up to MANY_STARTS
        ("state", "i2"),
    ],
    align=True,
)
"""How a job stands now; visible to policies."""

SITE = np.dtype(
    [
        ("free_mask", "i8"),  # wholly free GPUs, one bit each
        ("free_gpus", "i4"),  # how many bits are set
        ("free_share", "i4"),  # thousandths free over all its GPUs
        ("open_share", "i4"),  # the largest free share on a GPU that is partly used
        ("gpus", "i4"),
        ("node", "i4"),
        ("model", "i4"),
        ("form", "i4"),
        ("pool", "i4"),
        ("first_gpu", "i4"),  # row of its first GPU in View.gpus
        ("rank", "i4"),  # place among the sites of its form
        ("slot", "i4"),  # where it stands in View.open; NOBODY: not open
        ("place", "i4"),  # place among the sites of its pool
        ("changes", "i4"),  # grows with everything that changes on its node
    ],
    align=True,
)
"""The GPUs of one model on one node."""

NODE = np.dtype(
    [
        *columns_for(Node),
        ("free_cpus", "i4"),
        ("free_memory", "i4"),
        ("jobs", "i4"),  # parts of jobs running here
        ("first_site", "i4"),
        ("sites", "i4"),
        ("up", "i4"),
    ],
    align=True,
)

GPU = np.dtype(
    [
        ("free_share", "i4"),
        ("free_memory", "i4"),
        ("memory", "i4"),
        ("holder", "i4"),  # the job that holds the whole GPU; meaningless while none does
    ],
    align=True,
)

FORM = np.dtype(
    [
        ("gpus", "i4"),
        ("cpus", "i4"),
        ("memory", "i4"),
        ("gpu_memory", "i4"),
        ("model", "i4"),
        ("pool", "i4"),
        ("sites", "i4"),  # how many
        ("first_site", "i4"),  # where its list of sites begins in View.form_sites
        ("first_word", "i4"),  # where the bits of its idle sites begin in View.bits
        ("words", "i4"),
        ("idle_sites", "i4"),  # how many are idle now
    ],
    align=True,
)
"""Identical sites share a form: of several idle ones a policy need look at only the first."""

POOL = np.dtype(
    [
        ("model", "i4"),
        ("gpus", "i4"),
        ("free_gpus", "i4"),
        ("largest", "i4"),  # GPUs of its largest site
        ("anchor", "i4"),  # its first site: stands for the pool when a gang is wider than one node
        ("first_site", "i4"),  # where its list of sites begins in View.pool_sites
        ("sites", "i4"),
        ("first_word", "i4"),  # where its bits begin in View.bits: for 0, 1, 2 … free GPUs the sites that have them
        ("words", "i4"),  # words for each number of free GPUs
    ],
    align=True,
)
"""All sites of one GPU model."""

PART = np.dtype([("mask", "i8"), ("site", "i4"), ("next", "i4")], align=True)
"""A further part of a gang over several nodes."""

USER = np.dtype(
    [("usage", "f8"), ("settled", "f8"), ("finished", "f8"), ("log_work", "f8"), ("gpus", "f8")], align=True
)
"""What a user has used (with a half-life) and how long his finished jobs were."""

GROUP = np.dtype([("finished", "f8"), ("log_work", "f8")], align=True)
"""How long the finished jobs of one user and name were."""

DEMAND = np.dtype(
    [
        ("tried", "i4"),  # capacity version at which no site could take a job of this demand; NOBODY: not known
        ("first", "i4"),  # its first waiting job in submit order, NOBODY if none waits; the next one is in its RUN
        ("last", "i4"),
        ("waiting", "i4"),  # how many wait
        ("next", "i4"),  # the next demand with a waiting job, in the order in which the first one of each came
        ("previous", "i4"),
    ],
    align=True,
)
"""Jobs that need exactly the same: what is known of one where it fits is known of all."""

OFFER = np.dtype(
    [
        ("site", "i4"),
        ("form", "i4"),
        ("most", "i4"),  # thousandths of a GPU that one job could have: whole GPUs, and the largest open share
        ("free_share", "i4"),
        ("cpus", "i4"),
        ("memory", "i4"),
    ],
    align=True,
)
"""What an open site has to give, side by side with the others: most jobs pass over most of them at a glance."""

CLOCK = np.dtype(
    [
        ("now", "f8"),
        ("wake", "f8"),  # when the policy wants to be asked again
        ("restart", "f8"),  # s that a job loses each time it is started again
        ("half_life", "f8"),  # s after which a user's usage counts half; 0: usage is not kept
        ("random", "i8"),  # state of the generator that belongs to the policy
        ("finished", "f8"),  # jobs learnt from
        ("log_work", "f8"),  # sum of their log work
        ("usage", "f8"),  # of all users together, when last summed
        ("illegal", "i8"),  # choices that may not be
        ("arrived", "i4"),  # jobs of the table that have been submitted
        ("head", "i4"),  # where the queue begins in View.queue
        ("queued", "i4"),
        ("running", "i4"),
        ("open", "i4"),
        ("version", "i4"),  # grows with every release of capacity on a node
        ("clear", "i4"),  # that many jobs at the head of the queue fit nowhere …
        ("clear_version", "i4"),  # … at this version of the capacity
        ("window", "i4"),  # how many queued jobs a policy sees; 0: all
        ("free_part", "i4"),  # first unused row of View.parts
        ("demand", "i4"),  # first demand with a waiting job, NOBODY if none waits; the next one is in its row
        ("last_demand", "i4"),  # the last one of these
        ("learn", "i4"),  # finished jobs are remembered by group and user
    ],
    align=True,
)
"""The one row that holds what is single: the time, the counts of the lists, the settings that policies may know."""


class View(NamedTuple):
    """All that a policy may see, and the rules work on: the state of one cluster at one moment."""

    jobs: Table  # JOB [J]
    runs: Table  # RUN [J]
    sites: Table  # SITE [S]
    nodes: Table  # NODE [N]
    gpus: Table  # GPU [G]
    forms: Table  # FORM [H]
    pools: Table  # POOL [P]
    parts: Table  # PART [G]
    users: Table  # USER [U]
    groups: Table  # GROUP
    open: Table  # OFFER [S] sites partly used and what they have to give; the first clock.open count
    clock: Table  # CLOCK [1]
    demands: Table  # DEMAND [demands]
    queue: Ints  # waiting jobs in submit order, from clock.head on; read it with rules.in_queue
    running: Ints  # [J or fewer] running jobs in no order; the first clock.running count
    released: Ints  # [RECENT] node of each of the latest releases, by clock.version
    spread: Ints  # [demands] 1 where a job of that demand may take several nodes
    bits: Ints  # [words] bits of sites: the idle ones by form, then those with so many GPUs free by pool
    form_sites: Ints  # [S] sites by form
    pool_sites: Ints  # [S] sites by pool
    rate: Floats  # [K, H] work done in a second
    width: Ints  # [K, H] nodes it takes: 0 never runs there, 1 one node, more: a gang over several
    spare: Ints  # [P, GPUs + 1] how many sites of a pool have so many GPUs wholly free
    fastest: Floats  # [demands] best rate anywhere on this cluster when it is empty; 0: can never run
    home: Ints  # [K, H] 1 where the site's fixed map sends the kind; all 1 unless a policy needs the map
    mix: Floats  # [MIX_ROWS, MIX_COLUMNS] the usual demand: thousandths of a GPU, cores, how often; for fgd


EVENT = np.dtype(
    [("time", "f8"), ("mask", "i8"), ("job", "i4"), ("site", "i4"), ("value", "f4"), ("what", "i4")], align=True
)
"""Something that happened. `site` is the node for DOWN and UP; SPEED has the GPU of its site in `mask`."""

SUBMITTED: Final = 0
STARTED: Final = 1
SPREAD: Final = 2  # a further part of the gang that has just started
DONE: Final = 3
OVERRAN: Final = 4  # killed at its walltime limit
STOPPED: Final = 5  # by the policy; nothing lost
FAILED: Final = 6  # its node went down; value is the work lost
TURNED_AWAY: Final = 7  # refused at submission: it can never run here
ILLEGAL: Final = 8  # the policy chose what may not be; counted as waiting
DOWN: Final = 9
UP: Final = 10
SPEED: Final = 11  # a GPU changed its speed; value is the factor

EVENT_NAMES: Final = (
    "submit",
    "start",
    "spread",
    "finish",
    "kill",
    "stop",
    "fail",
    "refuse",
    "illegal",
    "down",
    "up",
    "speed",
)

DISTURBANCE = np.dtype([("time", "f8"), ("factor", "f8"), ("node", "i4"), ("gpu", "i4"), ("what", "i4")], align=True)
"""What befalls the hardware, in time order; `gpu` is a row of View.gpus."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The plural of Job: a table in submit order, the truth beside it, and the names behind the numbers."""

    table: Table  # JOB [J]
    work: Floats  # [J] the truth
    families: tuple[str, ...]
    users: tuple[str, ...] = ("",)
    names: tuple[str, ...] = ()
    allowed: tuple[frozenset[str], ...] = (frozenset(),)

    def __len__(self) -> int:
        return len(self.table)


def records(dtype: np.dtype[Any], count: int) -> Table:
    """An empty table of records whose fields can be read by name, compiled or not."""
    return np.zeros(count, dtype).view(np.recarray)


class Numbers:
    """Numbers for things in the order in which they are first seen."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._known: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        """The number of this thing."""
        if thing not in self._known:
            self._known[thing] = len(self.things)
            self.things.append(thing)
        return self._known[thing]
