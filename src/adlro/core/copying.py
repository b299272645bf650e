"""Copies of a View: which arrays a run changes, and how to copy them. No other module knows this.

CLUSTER: arrays that taking and releasing resources change. LISTS: which sites are worth a look, and recent releases.
JOBS: the state of the jobs. The table of jobs changes only if some can be resized. All other arrays never change and
are shared by all copies.
"""

from typing import Final

from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.tables import View

CLUSTER: Final = ("sites", "nodes", "gpus", "forms", "pools", "parts", "spare", "bits")
LISTS: Final = ("clock", "open", "released")
JOBS: Final = ("runs", "users", "groups", "queue", "running", "demands", "home", "mix")


def copied(view: View, names: tuple[str, ...] = CLUSTER + LISTS + JOBS) -> View:
    """A view with its own copies of these arrays. The default copies everything that a run changes."""
    if "runs" in names and len(view.shapes):
        names = (*names, "jobs")
    return view._replace(**{name: getattr(view, name).copy() for name in names})


@compiled_allocating
def imagined(view: View) -> View:
    """A view with its own copy of the cluster's tables; the jobs are shared. Releases there do not affect this view."""
    return View(
        view.jobs,
        view.runs,
        view.sites.copy(),
        view.nodes.copy(),
        view.gpus.copy(),
        view.forms.copy(),
        view.pools.copy(),
        view.parts,
        view.users,
        view.groups,
        view.open.copy(),
        view.clock.copy(),
        view.demands,
        view.shapes,
        view.queue,
        view.running,
        view.released.copy(),
        view.spread,
        view.bits.copy(),
        view.form_sites,
        view.pool_sites,
        view.rate,
        view.width,
        view.spare.copy(),
        view.fastest,
        view.home,
        view.mix,
    )


@compiled
def copy_cluster(view: View, other: View) -> None:
    """Copy CLUSTER into the other view, which has arrays of the same size."""
    for s in range(len(view.sites)):
        other.sites[s] = view.sites[s]
    for n in range(len(view.nodes)):
        other.nodes[n] = view.nodes[n]
    for g in range(len(view.gpus)):
        other.gpus[g] = view.gpus[g]
    for h in range(len(view.forms)):
        other.forms[h] = view.forms[h]
    for p in range(len(view.pools)):
        other.pools[p] = view.pools[p]
        for free in range(view.spare.shape[1]):
            other.spare[p, free] = view.spare[p, free]
    for p in range(len(view.parts)):
        other.parts[p] = view.parts[p]
    for w in range(len(view.bits)):
        other.bits[w] = view.bits[w]


@compiled
def copy_lists(view: View, other: View) -> None:
    """Copy the used part of LISTS into the other view."""
    for i in range(view.clock[0].open):
        other.open[i] = view.open[i]
    for v in range(len(view.released)):
        other.released[v] = view.released[v]
    other.clock[0] = view.clock[0]


@compiled
def copy_queue(view: View, other: View) -> None:
    """Copy which jobs wait, run or are known to fit nowhere. The caller must copy the clock too."""
    clock = view.clock[0]
    for i in range(clock.head, clock.head + clock.queued):
        other.queue[i] = view.queue[i]
    for i in range(clock.running):
        other.running[i] = view.running[i]
    for d in range(len(view.demands)):
        other.demands[d] = view.demands[d]
