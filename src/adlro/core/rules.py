"""The rules: what may start where, how fast it runs, what it takes and releases. This is docs/semantics.md in code.

The simulator, live clusters, the policies and the action mask of a learned policy all call these functions. `view` is a
tables.View, `j` a job, `s` a site. Everything is compiled, and also runs uncompiled.

Over 500 lines: the rules call each other all the time, and a reader should find each of them in one place.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.records import WHOLE_GPU, Job
from adlro.core.schema import property_of
from adlro.core.tables import FOREVER, NOBODY, QUEUED, RECENT, RUNNING, Floats, Ints, Masks, View

BITS_PER_WORD = 31
"""Bits used in each word of View.bits: all bits of an int32 except the sign."""

USUAL_PRIORITY: Final[float] = property_of(Job, "priority").default
"""The priority of a job for which none is given. Its weight is 1."""

LEAST_WEIGHT: Final = 0.1
"""The weight of a job with priority 0: it still counts."""


# ---- what may start where ----------------------------------------------------------------------------------------


@compiled
def fits(view: View, j: int, s: int) -> bool:
    """Whether the job may start at the site now. For a gang over several nodes the site is the anchor of its pool."""
    job = view.jobs[j]
    width = view.width[job.kind, view.sites[s].form]
    if width == 1:
        return fits_on_node(view, j, s)
    if width == 0:
        return False
    return fits_across(view, j, s, width)


@compiled
def fits_on_node(view: View, j: int, s: int) -> bool:
    """Whether one node has everything free that the job needs."""
    job = view.jobs[j]
    site = view.sites[s]
    if job.share == WHOLE_GPU:
        if site.free_gpus < job.gpus:
            return False
    elif site.free_gpus == 0 and shared_gpu(view, j, s) == NOBODY:
        return False
    node = view.nodes[site.node]
    return node.up != 0 and node.free_cpus >= job.cpus and node.free_memory >= job.memory


@compiled
def shared_gpu(view: View, j: int, s: int) -> int:
    """The partly used GPU of the site with the smallest free share that is enough for the job, or NOBODY."""
    job = view.jobs[j]
    site = view.sites[s]
    chosen = NOBODY
    if site.open_share < job.share:
        return chosen
    least = WHOLE_GPU
    for g in range(site.gpus):
        gpu = view.gpus[site.first_gpu + g]
        if job.share <= gpu.free_share < least and gpu.free_memory >= job.gpu_memory:
            least = gpu.free_share
            chosen = g
    return chosen


@compiled
def fits_across(view: View, j: int, s: int, width: int) -> bool:
    """Whether a gang can get its GPUs now on the fewest nodes that it can run on in this pool."""
    job = view.jobs[j]
    pool = view.pools[view.sites[s].pool]
    if s != pool.anchor or most_free_on(view, view.sites[s].pool, width) < job.gpus:
        return False
    needed = job.gpus
    last = NOBODY
    for _ in range(width):
        last = next_part(view, j, s, last, needed)
        if last == NOBODY:
            return False
        needed -= min(needed, view.sites[last].free_gpus)
    return needed == 0


@compiled
def most_free_on(view: View, p: int, width: int) -> int:
    """An upper bound of the free GPUs on `width` nodes of a pool: cores and memory are ignored."""
    return most_in(view.spare, p, view.pools[p].largest, width)


@compiled
def most_in(levels: Ints, p: int, largest: int, width: int) -> int:
    """The most GPUs on `width` sites of a pool; `levels` has the number of sites by their number of GPUs."""
    gpus = 0
    nodes = width
    for free in range(largest, 0, -1):
        taken = min(nodes, levels[p, free])
        gpus += taken * free
        nodes -= taken
        if nodes == 0:
            break
    return gpus


@compiled
def add_free(view: View, s: int, count: int) -> None:
    """Record that the site has `count` more (or fewer, if negative) wholly free GPUs."""
    site = view.sites[s]
    pool = view.pools[site.pool]
    word = pool.first_word + site.place // BITS_PER_WORD
    bit = np.int32(1 << (site.place % BITS_PER_WORD))
    view.spare[site.pool, site.free_gpus] -= 1
    view.bits[word + site.free_gpus * pool.words] ^= bit
    site.free_gpus += count
    view.spare[site.pool, site.free_gpus] += 1
    view.bits[word + site.free_gpus * pool.words] ^= bit
    pool.free_gpus += count


@compiled
def next_part(view: View, j: int, anchor: int, last: int, needed: int) -> int:
    """The site after `last`, by most free GPUs and then lowest index, that can take its part of the gang.

    The order is stored as bits (`place_after`), so that finding all parts is one pass over the sites with free GPUs.
    """
    p = view.sites[anchor].pool
    pool = view.pools[p]
    free = pool.largest
    place = NOBODY
    if last != NOBODY:
        free = view.sites[last].free_gpus
        place = view.sites[last].place
    while free > 0:
        if view.spare[p, free] > 0:
            place = place_after(view, p, free, place)
            while place != NOBODY:
                s = view.pool_sites[pool.first_site + place]
                if has_portion(view, j, s, min(free, needed)):
                    return s
                place = place_after(view, p, free, place)
        free -= 1
        place = NOBODY
    return NOBODY


@compiled
def place_after(view: View, p: int, free: int, place: int) -> int:
    """The first place of the pool after `place` whose site has `free` GPUs free; NOBODY if there is none."""
    pool = view.pools[p]
    first = pool.first_word + free * pool.words
    word = (place + 1) // BITS_PER_WORD
    skipped = (place + 1) % BITS_PER_WORD
    while word < pool.words:
        bits = view.bits[first + word] >> skipped
        if bits != 0:
            return word * BITS_PER_WORD + skipped + lowest_number(bits)
        word += 1
        skipped = 0
    return NOBODY


@compiled
def has_portion(view: View, j: int, s: int, taken: int) -> bool:
    """Whether the site's node is up, with enough cores and memory for `taken` of the job's GPUs."""
    job = view.jobs[j]
    node = view.nodes[view.sites[s].node]
    if node.up == 0 or is_short(node.free_cpus, job.cpus, taken, job.gpus):
        return False
    return not is_short(node.free_memory, job.memory, taken, job.gpus)


@compiled
def part_fits(view: View, j: int, s: int, count: int, mask: int) -> bool:
    """Whether the job may take `count` of its GPUs at the site: those of the mask, or any if the mask is 0."""
    job = view.jobs[j]
    site = view.sites[s]
    if count == job.gpus:
        if not fits_on_node(view, j, s):
            return False
    elif site.free_gpus < count or not has_portion(view, j, s, count):
        return False
    if job.share == WHOLE_GPU:
        return site.free_mask & mask == mask
    if mask == 0:
        return True
    gpu = view.gpus[site.first_gpu + lowest_number(mask)]
    return gpu.free_share >= job.share and gpu.free_memory >= job.gpu_memory


@compiled
def fits_at(view: View, j: int, sites: Ints, counts: Ints, masks: Masks) -> bool:
    """Whether the job may start on exactly these parts of one pool: on the fewest nodes, with room on each.

    It never allows more than `fits`: a job that may not start at the site (or in the pool) may not start on its parts.
    """
    first = sites[0]
    width = view.width[view.jobs[j].kind, view.sites[first].form]
    if width != len(sites):
        return False
    if not fits(view, j, first if width == 1 else view.pools[view.sites[first].pool].anchor):
        return False
    for i in range(len(sites)):
        if not part_fits(view, j, sites[i], counts[i], masks[i]):
            return False
    return True


@compiled
def portion(amount: int, taken: int, gpus: int) -> int:
    """What `taken` of a job's GPUs need of an amount that is given for the whole job, rounded up."""
    return (amount * taken + gpus - 1) // gpus


@compiled
def is_short(free: int, amount: int, taken: int, gpus: int) -> bool:
    """Whether `free` is less than the `portion`. No division: policies call this for every node of a pool."""
    return free * gpus < amount * taken


@compiled
def best_rate(view: View, j: int) -> float:
    """The best rate of the job on the empty cluster, 0 if it can never run there. Call it before anything runs."""
    kind = view.jobs[j].kind
    best = 0.0
    for h in range(len(view.forms)):
        form = view.forms[h]
        s = view.form_sites[form.first_site]
        if view.width[kind, h] > 1:
            s = view.pools[form.pool].anchor
        if view.rate[kind, h] > best and fits(view, j, s):
            best = view.rate[kind, h]
    return best


@compiled
def seen(view: View) -> int:
    """How many jobs of the queue a policy sees. Jobs enter the window in submit order."""
    clock = view.clock[0]
    if 0 < clock.window < clock.queued:
        return clock.window
    return clock.queued


@compiled
def last_seen(view: View) -> int:
    """The last job of the queue that a policy sees, or NOBODY if none waits. All waiting jobs before it are seen."""
    many = seen(view)
    return in_queue(view, many - 1) if many > 0 else NOBODY


# ---- how fast, and how long --------------------------------------------------------------------------------------


@compiled
def rate_there(view: View, j: int, s: int) -> float:
    """Work per second of the job if it started at the site now, as policies know it; 0 if it cannot run there."""
    rate = view.rate[view.jobs[j].kind, view.sites[s].form]
    if view.clock[0].paced == 0 or rate <= 0.0:
        return rate
    return rate * pace_at(view, j, s)


@compiled
def pace_at(view: View, j: int, s: int) -> float:
    """The measured pace of the job if it started at the site now."""
    job = view.jobs[j]
    site = view.sites[s]
    if job.gpus == 0 or site.gpus == 0:
        return 1.0
    if view.width[job.kind, site.form] > 1:
        return view.pools[site.pool].pace
    return view.gpus[site.first_gpu + min(job.gpus, site.gpus) - 1].gang


@compiled
def rate_on(view: View, j: int, h: int) -> float:
    """Like `rate_there`, for the sites of a form. Where paces are seen, a form has one site."""
    rate = view.rate[view.jobs[j].kind, h]
    if view.clock[0].paced == 0 or rate <= 0.0:
        return rate
    return rate * pace_at(view, j, view.form_sites[view.forms[h].first_site])


@compiled
def rate_held(view: View, j: int) -> float:
    """Work per second of a running job on the GPUs that it holds, as policies know it."""
    run = view.runs[j]
    rate = view.rate[view.jobs[j].kind, view.sites[run.site].form]
    return rate if view.clock[0].paced == 0 else rate * run.pace


@compiled
def fastest_rate(view: View, j: int) -> float:
    """The best rate of the waiting or running job on the empty cluster, as policies know it; 0: it can never run."""
    d = view.jobs[j].demand
    return view.fastest[d] if view.clock[0].paced == 0 else view.demands[d].fastest


@compiled
def work_done(view: View, j: int) -> float:
    """Work done until now: at its nominal rate in this stretch, or at the paces that were measured."""
    run = view.runs[j]
    if run.state != RUNNING:
        return run.done
    if view.clock[0].paced != 0:
        return run.done + max(0.0, view.clock[0].now - run.since) * rate_held(view, j)
    resumed = run.started + start_cost(view, j, run.starts - 1)
    worked = max(0.0, view.clock[0].now - resumed)
    return run.saved + worked * view.rate[view.jobs[j].kind, view.sites[run.site].form]


@compiled
def work_left(view: View, j: int) -> float:
    """Estimated work left. If a job has done more than its estimate, the estimate is doubled until it is enough."""
    done = work_done(view, j)
    estimate = view.jobs[j].estimate
    if done == 0.0:
        return estimate
    if estimate <= 0.0:
        estimate = 1.0
    while estimate <= done:
        estimate *= 2.0
    return estimate - done


@compiled
def restart_cost(view: View, j: int) -> float:
    """Seconds lost before work begins or continues, if the job started now."""
    return start_cost(view, j, view.runs[j].starts)


@compiled
def start_cost(view: View, j: int, starts: int) -> float:
    """Seconds that a start costs the job if it has been started so often before."""
    if starts > 0:
        return restart_of(view, j)
    return view.jobs[j].start


@compiled
def restart_of(view: View, j: int) -> float:
    """Seconds that each restart costs the job: its own cost, or that of the run."""
    own = view.jobs[j].restart
    if own == FOREVER:
        return view.clock[0].restart
    return own


@compiled
def weight_at(priority: float) -> float:
    """What a second of a job of this priority counts; a job of the usual priority has 1."""
    return max(float(priority) / USUAL_PRIORITY, LEAST_WEIGHT)


@compiled
def weight_of(view: View, j: int) -> float:
    """What a second of the job's time counts: 1, unless jobs count by their priority."""
    return 1.0 if view.clock[0].weighted == 0 else weight_at(view.jobs[j].priority)


@compiled
def fill_weights(priorities: npt.NDArray[np.float32], weights: Floats) -> None:
    """Fill in the weight of each of these priorities."""
    for i in range(len(priorities)):
        weights[i] = weight_at(priorities[i])


@compiled
def runtime(view: View, j: int, s: int) -> float:
    """Estimated seconds until the job ends if it starts at the site now; FOREVER if it cannot run there."""
    rate = rate_there(view, j, s)
    if rate <= 0.0:
        return FOREVER
    return restart_cost(view, j) + work_left(view, j) / rate


@compiled
def best_runtime(view: View, j: int) -> float:
    """Estimated seconds until the job ends if it starts now at the fastest site of the empty cluster."""
    return restart_cost(view, j) + work_left(view, j) / fastest_rate(view, j)


@compiled
def expected_end(view: View, j: int) -> float:
    """When a running job is expected to end."""
    return max(view.clock[0].now, view.runs[j].since) + work_left(view, j) / rate_held(view, j)


@compiled
def attained(view: View, j: int) -> float:
    """GPU-seconds that the job has held so far (seconds, for a job without GPUs)."""
    run = view.runs[j]
    held = run.held
    if run.state == RUNNING:
        held += view.clock[0].now - run.started
    return run.more + held * gpu_share(view, j)


@compiled
def gpu_share(view: View, j: int) -> float:
    """Number of GPUs that the job holds when it runs, with fractions; 1 for a job without GPUs."""
    job = view.jobs[j]
    if job.gpus == 0:
        return 1.0
    return job.gpus * job.share / WHOLE_GPU


# ---- taking and releasing ----------------------------------------------------------------------------------------


@compiled
def take(view: View, j: int, s: int) -> None:
    """Give the job what it needs at the site. The caller has checked `fits`."""
    job = view.jobs[j]
    run = view.runs[j]
    width = view.width[job.kind, view.sites[s].form]
    run.parts = NOBODY
    if width == 1:
        run.site = s
        run.mask = take_part(view, j, s, job.gpus, job.cpus, job.memory)
        return
    # Choose all sites before taking from any, because taking changes the order.
    needed = job.gpus
    last = NOBODY
    tail = NOBODY
    for _ in range(width):
        last = next_part(view, j, s, last, needed)
        count = min(needed, view.sites[last].free_gpus)
        part = new_part(view, last, count)
        if tail == NOBODY:
            run.parts = part
        else:
            view.parts[tail].next = part
        tail = part
        needed -= count
    p = run.parts
    while p != NOBODY:
        part_row = view.parts[p]
        count = part_row.mask
        part_row.mask = take_part(
            view, j, part_row.site, count, portion(job.cpus, count, job.gpus), portion(job.memory, count, job.gpus)
        )
        p = part_row.next
    first = run.parts
    run.site = view.parts[first].site
    run.mask = view.parts[first].mask
    run.parts = view.parts[first].next
    drop_part(view, first)


@compiled
def new_part(view: View, s: int, count: int) -> int:
    """A new row of View.parts for `count` GPUs at a site. The mask holds the count until the GPUs are taken."""
    clock = view.clock[0]
    p = clock.free_part
    clock.free_part = view.parts[p].next
    view.parts[p].site = s
    view.parts[p].mask = count
    view.parts[p].next = NOBODY
    return p


@compiled
def drop_part(view: View, p: int) -> None:
    """Free a row of View.parts."""
    clock = view.clock[0]
    view.parts[p].next = clock.free_part
    clock.free_part = p


@compiled
def take_part(view: View, j: int, s: int, gpus: int, cpus: int, memory: int) -> int:
    """Take GPUs, cores and memory at one site by the rules; returns the GPUs taken, as a mask."""
    mask = gpus_to_take(view, j, s, gpus)
    hold_part(view, j, s, mask, cpus, memory)
    return mask


@compiled
def gpus_to_take(view: View, j: int, s: int, gpus: int) -> int:
    """The GPUs that a job takes at a site with room: the first free ones; for a share, the fullest GPU with room.

    The first are the fastest as measured, if that is seen; of equal ones, those with the lowest numbers.
    """
    site = view.sites[s]
    if view.jobs[j].share < WHOLE_GPU:
        g = shared_gpu(view, j, s)
        if g != NOBODY:
            return 1 << g
        gpus = 1
    taken = 0
    i = site.first_gpu
    while gpus > 0:
        g = view.gpus[i].order
        if site.free_mask >> g & 1:
            taken |= 1 << g
            gpus -= 1
        i += 1
    return taken


@compiled
def lowest_bits(mask: int, count: int) -> int:
    """The `count` lowest bits that are set in a mask. The mask has at least that many."""
    taken = 0
    g = 0
    while count > 0:
        if mask >> g & 1:
            taken |= 1 << g
            count -= 1
        g += 1
    return taken


@compiled
def hold_part(view: View, j: int, s: int, mask: int, cpus: int, memory: int) -> None:
    """Let the job hold these GPUs (or its share of one), cores and memory at one site. `release_part` undoes it."""
    job = view.jobs[j]
    site = view.sites[s]
    node = view.nodes[site.node]
    node.free_cpus -= cpus
    node.free_memory -= memory
    node.jobs += 1
    if job.share < WHOLE_GPU:
        hold_share(view, j, s, mask)
    elif mask:
        held = 0
        for g in range(site.gpus):
            if mask >> g & 1:
                gpu = view.gpus[site.first_gpu + g]
                gpu.free_share = 0
                gpu.holder = j
                held += 1
        site.free_mask &= ~mask
        site.free_share -= held * WHOLE_GPU
        add_free(view, s, -held)
    refresh(view, site.node)


@compiled
def hold_share(view: View, j: int, s: int, mask: int) -> None:
    """Let the job hold its share of the one GPU in the mask."""
    job = view.jobs[j]
    site = view.sites[s]
    if site.free_mask & mask:
        site.free_mask &= ~mask
        add_free(view, s, -1)
    gpu = view.gpus[site.first_gpu + lowest_number(mask)]
    gpu.free_share -= job.share
    gpu.free_memory -= job.gpu_memory
    gpu.holder = NOBODY
    site.free_share -= job.share
    site.open_share = largest_open_share(view, s)


@compiled
def lowest_number(mask: int) -> int:
    """Index of the lowest bit that is set in a mask. The mask is not 0."""
    bit = 0
    if mask & 0x7FFFFFFF == 0:
        bit += BITS_PER_WORD
    if (mask >> bit) & 0xFFFF == 0:
        bit += 16
    if (mask >> bit) & 0xFF == 0:
        bit += 8
    if (mask >> bit) & 0xF == 0:
        bit += 4
    if (mask >> bit) & 0x3 == 0:
        bit += 2
    if (mask >> bit) & 0x1 == 0:
        bit += 1
    return bit


@compiled
def largest_open_share(view: View, s: int) -> int:
    """The largest free share on a partly used GPU of the site."""
    site = view.sites[s]
    largest = 0
    for g in range(site.gpus):
        free = view.gpus[site.first_gpu + g].free_share
        if largest < free < WHOLE_GPU:
            largest = free
    return largest


@compiled
def release(view: View, j: int) -> None:
    """Release everything that the job holds."""
    job = view.jobs[j]
    run = view.runs[j]
    if run.parts == NOBODY and view.width[job.kind, view.sites[run.site].form] == 1:
        release_part(view, j, run.site, run.mask, job.cpus, job.memory)
    else:
        count = count_bits(run.mask)
        cpus = portion(job.cpus, count, job.gpus)
        release_part(view, j, run.site, run.mask, cpus, portion(job.memory, count, job.gpus))
        p = run.parts
        while p != NOBODY:
            part = view.parts[p]
            following = part.next
            count = count_bits(part.mask)
            cpus = portion(job.cpus, count, job.gpus)
            release_part(view, j, part.site, part.mask, cpus, portion(job.memory, count, job.gpus))
            drop_part(view, p)
            p = following
    run.site = NOBODY
    run.parts = NOBODY
    run.mask = 0


@compiled
def release_part(view: View, j: int, s: int, mask: int, cpus: int, memory: int) -> None:
    """Release what the job holds at one site."""
    job = view.jobs[j]
    site = view.sites[s]
    node = view.nodes[site.node]
    node.free_cpus += cpus
    node.free_memory += memory
    node.jobs -= 1
    if job.share < WHOLE_GPU:
        release_share(view, j, s, mask)
    elif mask:
        freed = 0
        for g in range(site.gpus):
            if mask >> g & 1:
                view.gpus[site.first_gpu + g].free_share = WHOLE_GPU
                freed += 1
        site.free_mask |= mask
        site.free_share += freed * WHOLE_GPU
        add_free(view, s, freed)
    note_release(view, site.node)
    refresh(view, site.node)


@compiled
def note_release(view: View, n: int) -> None:
    """Record that the node has more free than before. Jobs that fitted nowhere then only check this node."""
    clock = view.clock[0]
    clock.version += 1
    view.released[clock.version % RECENT] = n


@compiled
def release_share(view: View, j: int, s: int, mask: int) -> None:
    """Release a share of one GPU."""
    job = view.jobs[j]
    site = view.sites[s]
    gpu = view.gpus[site.first_gpu + lowest_number(mask)]
    gpu.free_share += job.share
    gpu.free_memory += job.gpu_memory
    site.free_share += job.share
    if gpu.free_share == WHOLE_GPU:
        site.free_mask |= mask
        add_free(view, s, 1)
    site.open_share = largest_open_share(view, s)


@compiled
def count_bits(mask: int) -> int:
    """Number of GPUs in a mask."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


# ---- which sites are worth a look --------------------------------------------------------------------------------
# Most sites of a large cluster are full, or idle and alike. A policy looks at the open sites (partly used) and at the
# first idle site of each form. The other sites are full, or equal to one of these.


@compiled
def refresh(view: View, n: int) -> None:
    """Update the lists of open and idle sites after a change on the node."""
    node = view.nodes[n]
    for s in range(node.first_site, node.first_site + node.sites):
        site = view.sites[s]
        site.changes += 1
        idle = node.up != 0 and node.jobs == 0
        set_idle(view, s, idle)
        set_open(view, s, node.up != 0 and not idle and (site.free_gpus > 0 or site.open_share > 0))


@compiled
def has_room(view: View) -> bool:
    """Whether any site that is up has a GPU, or a share of one, free."""
    if view.clock[0].open > 0:
        return True
    for h in range(len(view.forms)):
        if view.forms[h].idle_sites > 0:
            return True
    return False


@compiled
def set_open(view: View, s: int, is_open: bool) -> None:
    """Add the site, with what it offers, to the list of open sites, or remove it."""
    site = view.sites[s]
    clock = view.clock[0]
    if is_open:
        if site.slot == NOBODY:
            site.slot = clock.open
            clock.open += 1
        node = view.nodes[site.node]
        offer = view.open[site.slot]
        offer.site = s
        offer.form = site.form
        offer.most = site.free_gpus * WHOLE_GPU + site.open_share
        offer.free_share = site.free_share
        offer.cpus = node.free_cpus
        offer.memory = node.free_memory
    elif site.slot != NOBODY:
        clock.open -= 1
        last = view.open[clock.open]
        offer = view.open[site.slot]
        offer.site = last.site
        offer.form = last.form
        offer.most = last.most
        offer.free_share = last.free_share
        offer.cpus = last.cpus
        offer.memory = last.memory
        view.sites[last.site].slot = site.slot
        site.slot = NOBODY


@compiled
def open_to(view: View, j: int, i: int) -> bool:
    """Whether the job may start at the i-th open site: like `fits_on_node`, but the offer often answers it quickly."""
    job = view.jobs[j]
    offer = view.open[i]
    if offer.most < job.gpus * job.share or offer.cpus < job.cpus or offer.memory < job.memory:
        return False
    if view.width[job.kind, offer.form] != 1:
        return False
    return job.share == WHOLE_GPU or offer.most >= WHOLE_GPU or shared_gpu(view, j, offer.site) != NOBODY


@compiled
def set_idle(view: View, s: int, is_idle: bool) -> None:
    """Set or clear the site's bit among the idle sites of its form."""
    site = view.sites[s]
    form = view.forms[site.form]
    word = form.first_word + site.rank // BITS_PER_WORD
    bit = np.int32(1 << (site.rank % BITS_PER_WORD))
    was_idle = (view.bits[word] & bit) != 0
    if is_idle == was_idle:
        return
    view.bits[word] ^= bit
    form.idle_sites += 1 if is_idle else -1


@compiled
def first_idle(view: View, h: int) -> int:
    """The idle site of this form with the lowest index, or NOBODY."""
    form = view.forms[h]
    if form.idle_sites == 0:
        return NOBODY
    word = form.first_word
    while view.bits[word] == 0:
        word += 1
    rank = (word - form.first_word) * BITS_PER_WORD + lowest_number(view.bits[word])
    return view.form_sites[form.first_site + rank]


@compiled
def first_of_form(view: View, j: int, h: int) -> int:
    """The first site of this form where the job fits, or NOBODY. Only for jobs with whole GPUs on one node."""
    job = view.jobs[j]
    form = view.forms[h]
    pool = view.pools[form.pool]
    if most_free_on(view, form.pool, 1) < job.gpus:
        return NOBODY
    for word in range(pool.words):
        bits = 0
        for free in range(job.gpus, form.gpus + 1):
            bits |= view.bits[pool.first_word + free * pool.words + word]
        while bits != 0:
            s = view.pool_sites[pool.first_site + word * BITS_PER_WORD + lowest_number(bits)]
            bits &= bits - 1
            if view.sites[s].form == h and fits_on_node(view, j, s):
                return s
    return NOBODY


# ---- measured paces ----------------------------------------------------------------------------------------------


@compiled
def read_pace(view: View, g: int, pace: float) -> None:
    """Record the measured pace of a GPU that is in use."""
    if view.gpus[g].pace != pace:
        view.gpus[g].pace = pace
        view.clock[0].readings += 1


@compiled
def pace_held(view: View, j: int) -> float:
    """The lowest measured pace of the GPUs that a job holds."""
    run = view.runs[j]
    s = run.site
    mask = run.mask
    p = run.parts
    pace = FOREVER
    while True:
        site = view.sites[s]
        for g in range(site.gpus):
            if mask >> g & 1:
                pace = min(pace, view.gpus[site.first_gpu + g].pace)
        if p == NOBODY:
            break
        s = view.parts[p].site
        mask = view.parts[p].mask
        p = view.parts[p].next
    return pace if pace < FOREVER else 1.0


# It is long and rarely needed, so it is not inlined.
@compiled_alone
def renew_paces(view: View) -> None:
    """Bring up to date what policies see of measured paces: after readings, and when free GPUs have changed."""
    clock = view.clock[0]
    for s in range(len(view.sites)):
        if view.sites[s].ranked != view.sites[s].changes:
            rank_gpus(view, s)
            view.sites[s].ranked = view.sites[s].changes
    if clock.renewed != clock.readings:
        clock.renewed = clock.readings
        for p in range(len(view.pools)):
            view.pools[p].pace = pace_of_pool(view, p)
    d = clock.demand
    while d != NOBODY:
        renew_fastest(view, view.demands[d].first)
        d = view.demands[d].next
    for i in range(clock.running):
        renew_fastest(view, view.running[i])


@compiled
def rank_gpus(view: View, s: int) -> None:
    """Order the GPUs of a site by pace, and note the pace of a job by its number of GPUs: of free ones, if enough."""
    site = view.sites[s]
    first = site.first_gpu
    for i in range(site.gpus):
        pace = view.gpus[first + i].pace
        at = i
        while at > 0 and view.gpus[first + view.gpus[first + at - 1].order].pace < pace:
            view.gpus[first + at].order = view.gpus[first + at - 1].order
            at -= 1
        view.gpus[first + at].order = i
    free = 0
    for i in range(site.gpus):
        view.gpus[first + i].gang = view.gpus[first + view.gpus[first + i].order].pace
    for i in range(site.gpus):
        g = view.gpus[first + i].order
        if site.free_mask >> g & 1:
            view.gpus[first + free].gang = view.gpus[first + g].pace
            free += 1


@compiled
def pace_of_pool(view: View, p: int) -> float:
    """The pace of a gang over several nodes: the mean over the sites of the slowest GPU on each."""
    pool = view.pools[p]
    total = 0.0
    for i in range(pool.first_site, pool.first_site + pool.sites):
        site = view.sites[view.pool_sites[i]]
        total += view.gpus[site.first_gpu + view.gpus[site.first_gpu + site.gpus - 1].order].pace if site.gpus else 1.0
    return total / pool.sites


@compiled
def renew_fastest(view: View, j: int) -> None:
    """Find the best rate of the job on the empty cluster at the measured paces, if it is not known."""
    job = view.jobs[j]
    demand = view.demands[job.demand]
    if demand.read == view.clock[0].readings + 1:
        return
    demand.read = view.clock[0].readings + 1
    demand.fastest = 0.0
    whole = max(job.gpus, 1)
    for h in range(len(view.forms)):
        form = view.forms[h]
        rate = view.rate[job.kind, h]
        part = max(min(form.gpus, job.gpus), 1)
        if rate <= 0.0 or is_short(form.cpus, job.cpus, part, whole) or is_short(form.memory, job.memory, part, whole):
            continue
        site = view.sites[view.form_sites[form.first_site]]
        if view.width[job.kind, h] > 1:
            rate *= view.pools[form.pool].pace
        elif job.gpus > 0 and site.gpus > 0:
            slowest = view.gpus[site.first_gpu + min(job.gpus, site.gpus) - 1].order
            rate *= view.gpus[site.first_gpu + slowest].pace
        demand.fastest = max(demand.fastest, rate)
    if demand.fastest == 0.0:
        demand.fastest = view.fastest[job.demand]


# ---- the queue ---------------------------------------------------------------------------------------------------


@compiled
def in_queue(view: View, position: int) -> int:
    """The job at this position of the queue; 0 is the head."""
    return view.queue[view.clock[0].head + position]


@compiled
def queue_position(view: View, j: int) -> int:
    """The position of the job in the queue, or where it would be. The queue is in job order."""
    low = 0
    high = view.clock[0].queued
    while low < high:
        middle = (low + high) // 2
        if in_queue(view, middle) < j:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def enqueue(view: View, j: int) -> None:
    """Put the job into the queue, at the position of its index."""
    clock = view.clock[0]
    if clock.queued == 0:
        clock.head = 0
    if clock.head + clock.queued == len(view.queue):
        for at in range(clock.queued):
            view.queue[at] = view.queue[clock.head + at]
        clock.head = 0
    at = clock.head + clock.queued
    while at > clock.head and view.queue[at - 1] > j:
        view.queue[at] = view.queue[at - 1]
        at -= 1
    view.queue[at] = j
    clock.queued += 1
    view.runs[j].state = QUEUED
    join_demand(view, j)


@compiled_alone
def enqueue_all(view: View, jobs: Ints) -> None:
    """Put jobs, given in submit order, into the queue."""
    for j in jobs:
        enqueue(view, j)


@compiled
def clear_demand(view: View, d: int) -> None:
    """Reset a demand: nothing is known about it, and no job waits."""
    demand = view.demands[d]
    demand.tried = NOBODY
    demand.read = 0
    demand.first = NOBODY
    demand.last = NOBODY
    demand.waiting = 0
    demand.next = NOBODY
    demand.previous = NOBODY


@compiled
def join_demand(view: View, j: int) -> None:
    """Add a job to the waiting jobs of its demand, which are in submit order."""
    d = view.jobs[j].demand
    demand = view.demands[d]
    run = view.runs[j]
    before = demand.last
    while before != NOBODY and before > j:
        before = view.runs[before].previous
    after = demand.first if before == NOBODY else view.runs[before].next
    run.previous = before
    run.next = after
    if before == NOBODY:
        demand.first = j
    else:
        view.runs[before].next = j
    if after == NOBODY:
        demand.last = j
    else:
        view.runs[after].previous = j
    demand.waiting += 1
    if demand.waiting == 1:
        clock = view.clock[0]
        demand.next = NOBODY
        demand.previous = NOBODY if clock.demand == NOBODY else clock.last_demand
        if clock.demand == NOBODY:
            clock.demand = d
        else:
            view.demands[clock.last_demand].next = d
        clock.last_demand = d


@compiled
def leave_demand(view: View, j: int) -> None:
    """Remove a job from the waiting jobs of its demand."""
    demand = view.demands[view.jobs[j].demand]
    run = view.runs[j]
    if run.previous == NOBODY:
        demand.first = run.next
    else:
        view.runs[run.previous].next = run.next
    if run.next == NOBODY:
        demand.last = run.previous
    else:
        view.runs[run.next].previous = run.previous
    demand.waiting -= 1
    if demand.waiting == 0:
        if demand.previous == NOBODY:
            view.clock[0].demand = demand.next
        else:
            view.demands[demand.previous].next = demand.next
        if demand.next == NOBODY:
            view.clock[0].last_demand = demand.previous
        else:
            view.demands[demand.next].previous = demand.previous


@compiled
def dequeue(view: View, j: int) -> None:
    """Remove the job from the queue, closing the gap from the nearer end, so that removing the head is fast."""
    clock = view.clock[0]
    position = queue_position(view, j)
    clock.queued -= 1
    if 2 * position < clock.queued:
        for at in range(clock.head + position, clock.head, -1):
            view.queue[at] = view.queue[at - 1]
        clock.head += 1
    else:
        for at in range(clock.head + position, clock.head + clock.queued):
            view.queue[at] = view.queue[at + 1]
    leave_demand(view, j)


# ---- the size of a job -------------------------------------------------------------------------------------------


@compiled
def shape_of_size(view: View, j: int, gpus: int) -> int:
    """The row of View.shapes for this job with this many GPUs; NOBODY if it has no such size."""
    job = view.jobs[j]
    for e in range(job.first_shape, job.first_shape + job.shapes):
        if view.shapes[e].gpus == gpus:
            return e
    return NOBODY


@compiled
def may_resize(view: View, j: int, gpus: int) -> bool:
    """Whether the job may ask for this many GPUs now: it waits, has that size, and fits so on the empty cluster."""
    if view.runs[j].state != QUEUED:
        return False
    e = shape_of_size(view, j, gpus)
    return e != NOBODY and view.fastest[view.shapes[e].demand] > 0.0


@compiled
def take_shape(view: View, j: int, e: int) -> None:
    """Let the job ask for what this row of View.shapes says. It is not in the queue, or the caller sees to that."""
    job = view.jobs[j]
    shape = view.shapes[e]
    job.gpus = shape.gpus
    job.cpus = shape.cpus
    job.memory = shape.memory
    job.kind = shape.kind
    job.demand = shape.demand


@compiled
def resize(view: View, j: int, gpus: int) -> None:
    """Let a waiting job ask for this many GPUs. The caller has checked `may_resize`."""
    clock = view.clock[0]
    run = view.runs[j]
    leave_demand(view, j)
    run.more += run.held * gpu_share(view, j)
    take_shape(view, j, shape_of_size(view, j, gpus))
    run.more -= run.held * gpu_share(view, j)
    join_demand(view, j)
    clock.clear = min(clock.clear, queue_position(view, j))


# ---- usage and history -------------------------------------------------------------------------------------------


@compiled
def settle_usage(view: View, u: int, gpus: float) -> None:
    """Bring a user's decayed usage up to date; from now on the user holds `gpus` more (or fewer) GPUs."""
    clock = view.clock[0]
    user = view.users[u]
    if clock.half_life > 0.0:
        user.usage = usage_now(view, u)
        user.settled = clock.now
        user.gpus += gpus


@compiled
def usage_now(view: View, u: int) -> float:
    """GPU-seconds that the user has used, decayed with the half-life."""
    clock = view.clock[0]
    user = view.users[u]
    if clock.half_life <= 0.0:
        return user.usage
    decay = math.log(2.0) / clock.half_life
    kept = math.exp(-decay * (clock.now - user.settled))
    return user.usage * kept + user.gpus * (1.0 - kept) / decay


@compiled
def learn(view: View, j: int, work: float) -> None:
    """Record the work of a finished job for its group and its user."""
    job = view.jobs[j]
    length = math.log(max(work, 1.0))
    group = view.groups[job.group]
    group.finished += 1.0
    group.log_work += length
    user = view.users[job.user]
    user.finished += 1.0
    user.log_work += length
    clock = view.clock[0]
    clock.finished += 1.0
    clock.log_work += length
