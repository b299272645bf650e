"""Tables of records, as arrays that compiled code reads. `normalise.pack` builds them.

Every table is a structured record array, so `table[i].field` works both compiled and uncompiled (NUMBA_DISABLE_JIT=1).
Axes: J jobs, S sites, N nodes, G GPUs, H forms, P pools, K kinds, U users, E shapes of all jobs.
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
"""Index that means no job, no site or no part."""

FOREVER: Final = np.inf

NOT_ASKED: Final = -1.0
"""In View.fastest: the best rate of this demand has not been computed yet."""

RECENT: Final = 64
"""How many releases of capacity are remembered."""

MIX_ROWS: Final = 32
MIX_COLUMNS: Final = 3

MANY_STARTS: Final = 30_000

# The state of a job.
FUTURE: Final = 0
QUEUED: Final = 1
RUNNING: Final = 2
FINISHED: Final = 3
KILLED: Final = 4
REFUSED: Final = 5

# What a policy can choose.
WAIT: Final = 0
START: Final = 1
STOP: Final = 2
RESIZE: Final = 3


class Choice(NamedTuple):
    """A policy's answer: start a job at a site, stop or resize one, or wait until something happens (or until a time).

    For RESIZE, `site` is the new number of GPUs.
    """

    verb: int
    job: int
    site: int
    until: float


ALL_SPENT: Final = 1000
"""Of `spent` in JOB: the job's budget of stops is used up."""

JOB = np.dtype(
    [
        *columns_for(Job),
        ("family", "i4"),
        ("allowed", "i4"),  # index into Jobs.allowed
        ("kind", "i4"),  # row of View.rate; set by pack
        ("demand", "i4"),  # row of View.demands, shared by jobs with equal needs; set by pack
        ("user", "i4"),
        ("stoppable", "i2"),  # 1: a policy may stop it, 0: not; set by pack, and live by who may be stopped there
        ("spent", "i2"),  # thousandths of its budget of stops that are used up; 0: none are, or it has no budget
        ("group", "i4"),  # one number for each pair of user and job name, to find similar past jobs
        ("sizes", "i4"),  # index into Jobs.sizes
        ("first_shape", "i4"),  # its first row in View.shapes; set by pack
        ("shapes", "i4"),  # number of its rows there, by GPUs; 0: it cannot be resized; set by pack
    ],
    align=True,
)
"""What is known about a job when it is submitted. The true work is not here: policies never see it.

The amounts are those that `Job` declares, in table units: MiB, and thousandths of cores and GPUs. A limit or checkpoint
interval of inf means none, a restart of inf that the job costs what the run says. When a job is resized, its GPUs,
cores, memory, kind and demand become those of its new shape; nothing else in this table changes in a run.
"""

RUN = np.dtype(
    [
        ("done", "f8"),  # work done and kept, up to `since`
        ("saved", "f8"),  # work that a failure cannot destroy: what it had at its last start
        ("held", "f8"),  # seconds for which it held its GPUs in earlier stretches
        ("more", "f8"),  # GPU-seconds of earlier stretches beyond `held` times its GPUs now; 0 if it was never resized
        ("started", "f8"),  # when this stretch began
        ("since", "f8"),  # work counts from this time: after the restart cost, or after the last change of speed
        ("mask", "i8"),  # GPUs held at `site`, one bit each
        ("site", "i4"),
        ("parts", "i4"),  # first row in View.parts of the other parts of a gang over several nodes
        ("slot", "i4"),  # its row in the simulator's Truth.live
        ("next", "i4"),  # while it waits: the next waiting job of its demand in submit order …
        ("previous", "i4"),  # … and the one before
        ("pace", "f8"),  # lowest pace of the GPUs that it holds; only where paces are seen
        ("starts", "i2"),  # how often it was started, at most MANY_STARTS
        ("state", "i2"),
    ],
    align=True,
)
"""The state of a job now; visible to policies."""

SITE = np.dtype(
    [
        ("free_mask", "i8"),  # wholly free GPUs, one bit each
        ("free_gpus", "i4"),  # number of bits set in free_mask
        ("free_share", "i4"),  # thousandths free, summed over all its GPUs
        ("open_share", "i4"),  # the largest free share on a partly used GPU
        ("gpus", "i4"),
        ("node", "i4"),
        ("model", "i4"),
        ("form", "i4"),
        ("pool", "i4"),
        ("first_gpu", "i4"),  # row of its first GPU in View.gpus
        ("rank", "i4"),  # index among the sites of its form
        ("slot", "i4"),  # index in View.open; NOBODY if it is not open
        ("place", "i4"),  # index among the sites of its pool
        ("changes", "i4"),  # grows with every change on its node
        ("ranked", "i4"),  # `changes` when its GPUs were last ordered by pace
    ],
    align=True,
)
"""The GPUs of one model on one node."""

NODE = np.dtype(
    [
        *columns_for(Node),
        ("free_cpus", "i4"),
        ("free_memory", "i4"),
        ("jobs", "i4"),  # parts of jobs that run here
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
        ("holder", "i4"),  # the job that holds the whole GPU; only valid while one does
        ("pace", "f8"),  # as measured while a job last ran on it, relative to its model; 1: usual, or not measured yet
        ("gang", "f8"),  # of the first GPU of a site: the pace of a job of 1 GPU there; of the second: of 2 GPUs; …
        ("order", "i4"),  # of the first GPU of a site: the number there of the GPU to take first; of the second: …
        ("headroom", "f4"),  # C below the limit where its clock falls, as last read; FOREVER: not read
        ("bandwidth", "f4"),  # share of its memory bandwidth that is left, as last read; 1: all, or not read
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
        ("sites", "i4"),  # number of sites
        ("first_site", "i4"),  # start of its list of sites in View.form_sites
        ("first_word", "i4"),  # start of the bits of its idle sites in View.bits
        ("words", "i4"),
        ("idle_sites", "i4"),  # number of idle sites now
    ],
    align=True,
)
"""Identical sites share a form: if several are idle, a policy only looks at the first."""

POOL = np.dtype(
    [
        ("model", "i4"),
        ("gpus", "i4"),
        ("free_gpus", "i4"),
        ("largest", "i4"),  # number of GPUs of its largest site
        ("anchor", "i4"),  # its first site, which stands for the pool when a gang needs several nodes
        ("first_site", "i4"),  # start of its list of sites in View.pool_sites
        ("sites", "i4"),
        ("first_word", "i4"),  # start of its bits in View.bits: for 0, 1, 2 … free GPUs, the sites that have them
        ("words", "i4"),  # number of words for each number of free GPUs
        ("pace", "f8"),  # of a gang over several nodes: mean over the sites of the slowest GPU on each
    ],
    align=True,
)
"""All sites of one GPU model."""

PART = np.dtype([("mask", "i8"), ("site", "i4"), ("next", "i4")], align=True)
"""One of the other parts of a gang over several nodes."""

USER = np.dtype(
    [("usage", "f8"), ("settled", "f8"), ("finished", "f8"), ("log_work", "f8"), ("gpus", "f8")], align=True
)
"""What a user has used (with a half-life), and the work of the user's finished jobs."""

GROUP = np.dtype([("finished", "f8"), ("log_work", "f8")], align=True)
"""The work of the finished jobs of one user and job name."""

DEMAND = np.dtype(
    [
        ("fastest", "f8"),  # as View.fastest, at the measured paces; valid if `read` is clock.readings + 1
        ("read", "i4"),
        ("tried", "i4"),  # capacity version at which no site could take a job of this demand; NOBODY: unknown
        ("first", "i4"),  # its first waiting job in submit order, NOBODY if none waits; RUN.next has the following ones
        ("last", "i4"),
        ("waiting", "i4"),  # number of waiting jobs
        ("next", "i4"),  # the next demand with waiting jobs, ordered by when its first job came
        ("previous", "i4"),
    ],
    align=True,
)
"""Jobs with exactly equal needs: where one of them fits, all of them fit."""

SHAPE = np.dtype([("gpus", "i4"), ("cpus", "i4"), ("memory", "i4"), ("kind", "i4"), ("demand", "i4")], align=True)
"""What a job that can be resized asks for at one of its sizes. Jobs alike share their rows."""

OFFER = np.dtype(
    [
        ("site", "i4"),
        ("form", "i4"),
        ("most", "i4"),  # thousandths of a GPU that one job could get: whole GPUs plus the largest open share
        ("free_share", "i4"),
        ("cpus", "i4"),
        ("memory", "i4"),
    ],
    align=True,
)
"""What the open sites offer, in one compact table: for most jobs it rules out most sites quickly."""

CLOCK = np.dtype(
    [
        ("now", "f8"),
        ("wake", "f8"),  # when the policy wants to be asked again
        ("restart", "f8"),  # s that a job loses at each restart
        ("half_life", "f8"),  # s after which a user's usage counts half; 0: usage is not recorded
        ("random", "i8"),  # state of the policy's random generator
        ("finished", "f8"),  # finished jobs recorded
        ("log_work", "f8"),  # sum of the logarithms of their work
        ("usage", "f8"),  # of all users together, at the last summation
        ("illegal", "i8"),  # number of illegal choices
        ("arrived", "i4"),  # jobs of the table that have been submitted
        ("head", "i4"),  # start of the queue in View.queue
        ("queued", "i4"),
        ("running", "i4"),
        ("open", "i4"),
        ("version", "i4"),  # grows with every release of capacity on a node
        ("clear", "i4"),  # this many jobs at the head of the queue fit nowhere …
        ("clear_version", "i4"),  # … at this version of the capacity
        ("window", "i4"),  # how many queued jobs a policy sees; 0 means all
        ("free_part", "i4"),  # first unused row of View.parts
        ("demand", "i4"),  # first demand with a waiting job, NOBODY if none waits; DEMAND.next has the following ones
        ("last_demand", "i4"),  # the last demand with a waiting job
        ("learn", "i4"),  # 1 if finished jobs are recorded by group and user
        ("weighted", "i4"),  # 1 if a job counts by its priority, 0 if all count the same
        ("paced", "i4"),  # 1 if policies see the measured pace of each GPU; then every site has a form of its own
        ("readings", "i4"),  # grows with every change of a measured pace
        ("renewed", "i4"),  # `readings` when the paces of the pools were computed
        ("metered", "i4"),  # 1 if the headroom or the bandwidth of a GPU was read
    ],
    align=True,
)
"""One row with all single values: the time, the lengths of the lists, and the settings that policies may know."""


class View(NamedTuple):
    """Everything that a policy may see and the rules use: the state of one cluster at one moment."""

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
    open: Table  # OFFER [S] partly used sites and what they offer; the first clock.open entries count
    clock: Table  # CLOCK [1]
    demands: Table  # DEMAND [demands]
    shapes: Table  # SHAPE [E] of the jobs that can be resized, by GPUs: from JOB.first_shape on, JOB.shapes rows
    queue: Ints  # waiting jobs in submit order, from index clock.head on; read it with rules.in_queue
    running: Ints  # [J or fewer] running jobs, unordered; the first clock.running entries count
    released: Ints  # [RECENT] node of each of the latest releases, by clock.version
    spread: Ints  # [demands] 1 where a job of that demand may take several nodes
    bits: Ints  # [words] bits of sites: the idle ones by form, then by pool those with each number of free GPUs
    form_sites: Ints  # [S] sites ordered by form
    pool_sites: Ints  # [S] sites ordered by pool
    rate: Floats  # [K, H] work per second
    width: Ints  # [K, H] number of nodes: 0 never runs there, 1 one node, more for a gang over several
    spare: Ints  # [P, GPUs + 1] number of sites of a pool by their number of wholly free GPUs
    fastest: Floats  # [demands] best rate anywhere on the empty cluster; 0: can never run
    # Behind them, where rates are believed: how unsure they are [K * H] (core/readings.py). With one more array in a
    # View, compiled calls are three times as slow (docs/decisions.md).
    home: Ints  # [K, H] 1 if the operator's fixed map allows the kind there; all 1 unless a policy needs the map
    mix: Floats  # [MIX_ROWS, MIX_COLUMNS] the usual mix of demands: thousandths of a GPU, cores, frequency; for fgd


EVENT = np.dtype(
    [("time", "f8"), ("mask", "i8"), ("job", "i4"), ("site", "i4"), ("value", "f4"), ("what", "i4")], align=True
)
"""A logged event. `site` is the node for DOWN and UP; for SPEED, `mask` is the GPU of the site."""

SUBMITTED: Final = 0
STARTED: Final = 1
SPREAD: Final = 2  # another part of the gang that has just started
DONE: Final = 3
OVERRAN: Final = 4  # killed at its walltime limit
STOPPED: Final = 5  # by the policy; no work is lost
FAILED: Final = 6  # its node went down; value is the work lost
TURNED_AWAY: Final = 7  # refused at submission: it can never run here
ILLEGAL: Final = 8  # the policy made an illegal choice, which counts as waiting
DOWN: Final = 9
UP: Final = 10
SPEED: Final = 11  # a GPU changed its speed; value is the factor
RESIZED: Final = 12  # a waiting job asks for another number of GPUs; value is the number

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
    "resize",
)

DISTURBANCE = np.dtype([("time", "f8"), ("factor", "f8"), ("node", "i4"), ("gpu", "i4"), ("what", "i4")], align=True)
"""Disturbances of the hardware, in time order; `gpu` is a row of View.gpus."""


HEAT = np.dtype(
    [
        ("tdp", "f8"),  # W
        ("room", "f8"),  # C, of the air that enters the node
        ("limit", "f8"),  # C, above which the clock is lowered
        ("resistance", "f8"),  # how much hotter than usual it becomes by its own power; 1 is usual
        ("use", "f8"),  # share of it that jobs hold
        ("temperature", "f8"),  # C, at `since`
        ("since", "f8"),  # when its node last changed
        ("settles", "f8"),  # C, where its temperature goes from there
        ("power", "f8"),  # as a share of the TDP
        ("clock", "f8"),  # as a share of its highest
        ("wear", "f8"),  # its speed factor without heat
        ("reaches", "f8"),  # when it reaches its limit; FOREVER: never, as things are
        ("energy", "f8"),  # J, up to `since`
        ("throttled", "f8"),  # s with a lowered clock, up to `since`
        ("hottest", "f8"),  # C, up to `since`
        ("held", "i4"),  # 1 while its clock is lowered
        ("changes", "i4"),  # SITE.changes when its node was last looked at
    ],
    align=True,
)
"""The heat of a GPU (core/heat.py); a run without heat has no rows."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """A table of jobs in submit order, their true work, and the names behind the numbers."""

    table: Table  # JOB [J]
    work: Floats  # [J] the true work
    families: tuple[str, ...]
    users: tuple[str, ...] = ("",)
    names: tuple[str, ...] = ()
    allowed: tuple[frozenset[str], ...] = (frozenset(),)
    sizes: tuple[tuple[int, ...], ...] = ((),)  # the numbers of GPUs that a job can run with; (): only its own

    def __len__(self) -> int:
        return len(self.table)


def records(dtype: np.dtype[Any], count: int) -> Table:
    """An empty table of records. Its fields can be read by name, compiled or not."""
    return np.zeros(count, dtype).view(np.recarray)


NO_SHAPES: Final = records(SHAPE, 0)
"""The shapes of jobs of which none can be resized."""


class Numbers:
    """Numbers things in the order in which they are first seen."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._known: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        """The number of this thing; a new thing gets the next number."""
        if thing not in self._known:
            self._known[thing] = len(self.things)
            self.things.append(thing)
        return self._known[thing]
