"""What must hold in every run, read from the event log alone."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.both import PLAIN, Ran, Seen, looking, run_compiled
from tests.reference import Event, random_choices
from tests.strategies import Scenario, scenarios

from adlro.core.plan import plan_cluster
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import BITS_PER_WORD, place_after
from adlro.core.run import Run
from adlro.core.tables import DONE, FOREVER, NOBODY, RUNNING, Choice, View
from adlro.decide.catalogue import find_policy
from adlro.measure.bounds import lower_bounds
from adlro.normalise.pack import pack, pack_jobs, refusals

SHIPPED = ("random", "best-fit", "sjf-picky", "fcfs-easy", "multifactor", "srtf", "las")
POLICIES = [PLAIN["fcfs"][0], PLAIN["sjf"][0], *(find_policy(name) for name in SHIPPED)]

policies = st.sampled_from(POLICIES) | st.integers(0, 2**16).map(lambda seed: looking(random_choices(seed), True))


# ---- the log read again ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stretch:
    """A job on its GPUs: where, since when, and the work done up to `counted`."""

    parts: list[tuple[int, tuple[int, ...]]]  # site and its GPUs
    since: float
    counted: float
    done: float = 0.0


@dataclass(slots=True)
class Ledger:
    """What the log says of a run, checked as it is read."""

    ran: Ran
    scenario: Scenario
    holding: dict[int, Stretch] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    factor: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(lambda: 1.0))
    worked: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # by job, less what was lost
    held_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    ended: dict[int, str] = field(default_factory=dict)
    size: dict[int, int] = field(default_factory=dict)  # by job that was resized: the GPUs that it asks for since

    def read(self) -> None:
        """Go through the log, and check after each event that nothing holds more than there is."""
        for time, name, job, detail in self.ran.events:
            self.work_until(time)
            self.note(time, name, job, detail)
            self.check_room(more_to_come=name == "start")

    def work_until(self, time: float) -> None:
        """Count the work of everybody up to this time."""
        view = self.ran.view
        for job, stretch in self.holding.items():
            rate = float(view.rate[self.needs(job)["kind"], view.sites[stretch.parts[0][0]].form])
            worst = min((self.factor[site, gpu] for site, gpus in stretch.parts for gpu in gpus), default=1.0)
            stretch.done += rate * worst * max(0.0, time - stretch.counted)
            stretch.counted = max(time, stretch.counted)

    def needs(self, job: int) -> np.void:
        """What the job asks for at the size that it has now: GPUs, CPUs, memory and kind."""
        view, record = self.ran.view, self.ran.view.jobs[job]
        shapes = view.shapes[record.first_shape : record.first_shape + record.shapes]
        sized = shapes[shapes["gpus"] == self.size.get(job, int(self.ran.jobs.table[job].gpus))]
        needs: np.void = sized[0] if len(sized) else record
        return needs

    def note(self, time: float, name: str, job: int, detail: tuple[object, ...]) -> None:
        """Take in one event."""
        match name, detail:
            case "start", (int(site), tuple(gpus)):
                assert job not in self.holding
                assert job not in self.ended
                assert time >= self.ran.jobs.table[job].submit
                record = self.ran.jobs.table[job]
                again = self.scenario.options.restart_s if record.restart == FOREVER else record.restart
                cost = again if job in self.held_s else record.start
                self.holding[job] = Stretch([(site, gpus)], time, time + cost)
            case "spread", (int(site), tuple(gpus)):
                assert self.holding[job].since == time
                self.holding[job].parts.append((site, gpus))
            case (("finish" | "kill" | "stop" | "fail"), _):
                stretch = self.holding.pop(job)
                lost = detail[0] if name == "fail" else 0.0
                assert isinstance(lost, float)
                assert -1e-6 <= lost <= stretch.done + 1e-6
                self.worked[job] += stretch.done - lost
                self.held_s[job] += time - stretch.since
                if name in ("finish", "kill"):
                    self.ended[job] = name
            case "resize", (int(gpus),):
                assert job not in self.holding
                self.size[job] = gpus
            case "refuse", _:
                assert job not in self.held_s
                self.ended[job] = name
            case "down", (int(node),):
                self.down.add(node)
            case "up", (int(node),):
                self.down.remove(node)
            case "speed", (int(site), (int(gpu),), float(factor)):
                self.factor[site, gpu] = factor
            case _:
                assert name == "illegal"

    def check_room(self, more_to_come: bool) -> None:
        """Check that no GPU and no node holds more than it has, and that nobody holds half a gang."""
        view = self.ran.view
        share, gpu_memory = defaultdict[tuple[int, int], int](int), defaultdict[tuple[int, int], int](int)
        cpus, memory = defaultdict[int, int](int), defaultdict[int, int](int)
        for j, stretch in self.holding.items():
            job, needs = view.jobs[j], self.needs(j)
            wanted, parts = int(needs["gpus"]), stretch.parts
            width = view.width[needs["kind"], view.sites[parts[0][0]].form]
            assert sum(len(gpus) for _, gpus in parts) == wanted or more_to_come or len(parts) < width
            for site, gpus in parts:
                node = int(view.sites[site].node)
                cpus[node] += -(-int(needs["cpus"]) * len(gpus) // wanted) if wanted else int(needs["cpus"])
                memory[node] += -(-int(needs["memory"]) * len(gpus) // wanted) if wanted else int(needs["memory"])
                for gpu in gpus:
                    assert gpu < view.sites[site].gpus
                    share[site, gpu] += int(job.share)
                    whole = job.share == WHOLE_GPU
                    gpu_memory[site, gpu] += view.forms[view.sites[site].form].gpu_memory if whole else job.gpu_memory
        assert all(amount <= WHOLE_GPU for amount in share.values())
        assert all(amount <= view.forms[view.sites[site].form].gpu_memory for (site, _), amount in gpu_memory.items())
        assert all(amount <= view.nodes[node].cpus for node, amount in cpus.items())
        assert all(amount <= view.nodes[node].memory for node, amount in memory.items())


def ledger_of(ran: Ran, scenario: Scenario) -> Ledger:
    """The log of a run, read and checked."""
    ledger = Ledger(ran, scenario)
    ledger.read()
    return ledger


# ---- promises ------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(scenario=scenarios(), policy=policies)
def test_nothing_holds_more_than_it_has_and_no_work_appears_or_vanishes(scenario: Scenario, policy: Policy) -> None:
    ran = run_compiled(scenario, policy)
    ledger = ledger_of(ran, scenario)
    for job, end in ledger.ended.items():
        work, limit = ran.jobs.work[job], ran.jobs.table[job].limit
        if end == "finish":
            assert ledger.worked[job] == pytest.approx(work, rel=1e-6, abs=1e-5)
            assert not scenario.options.kill_at_limit or ledger.held_s[job] <= limit + 1e-6
        elif end == "kill":
            assert ledger.worked[job] <= work + 1e-6
            assert ledger.held_s[job] == pytest.approx(limit)
    assert len(ledger.ended) + ran.outcome.unfinished == len(ran.jobs)
    assert not ledger.holding  # what still waits holds nothing
    assert not any(job in ledger.held_s for job, end in ledger.ended.items() if end == "refuse")


@settings(max_examples=60)
@given(scenario=scenarios(), policy=policies)
def test_after_a_run_that_finished_everything_the_cluster_is_empty_again(scenario: Scenario, policy: Policy) -> None:
    ran = run_compiled(scenario, policy)
    fresh = pack(ran.plan, ran.jobs, scenario.speed)
    if ran.outcome.unfinished:
        return
    clock = ran.view.clock[0]
    assert (clock.queued, clock.running, clock.open) == (0, 0, 0)
    for name in ("sites", "gpus", "pools"):
        after, before = getattr(ran.view, name), getattr(fresh, name)
        for column in set(after.dtype.names) - {"changes", "holder"}:  # who was there last, and how often that changed
            assert after[column].tolist() == before[column].tolist()
    for name in ("free_cpus", "free_memory", "jobs"):
        assert (ran.view.nodes[name] == fresh.nodes[name]).all()
    check_lists(ran.view)
    assert len(free_parts(ran.view)) == len(ran.view.parts)


@settings(max_examples=60)
@given(scenario=scenarios(), seed=st.integers(0, 2**16))
def test_the_counts_and_lists_that_policies_read_are_right_at_every_moment(scenario: Scenario, seed: int) -> None:
    choose = random_choices(seed)

    def watch(view: View) -> Choice:
        check_counts(view)
        check_lists(view)
        return Choice(*choose(Seen(view)))

    run_compiled(scenario, Policy("watch", "", make=lambda view, seed: watch, preemptive=True))


def check_counts(view: View) -> None:
    """Compare every free count with what the running jobs hold."""
    free_share = [[WHOLE_GPU] * int(site.gpus) for site in view.sites]
    held_parts = 0
    for j in np.flatnonzero(view.runs.state == RUNNING):
        run, job = view.runs[j], view.jobs[j]
        rows, p = [(int(run.site), int(run.mask))], int(run.parts)
        while p != NOBODY:
            rows.append((int(view.parts[p].site), int(view.parts[p].mask)))
            held_parts, p = held_parts + 1, int(view.parts[p].next)
        for site, mask in rows:
            for gpu in range(len(free_share[site])):
                free_share[site][gpu] -= int(job.share) if mask >> gpu & 1 else 0
    for site, free in zip(view.sites, free_share, strict=True):
        whole = [gpu for gpu, share in enumerate(free) if share == WHOLE_GPU]
        assert view.gpus.free_share[site.first_gpu : site.first_gpu + site.gpus].tolist() == free
        assert (site.free_gpus, site.free_share) == (len(whole), sum(free))
        assert site.free_mask == sum(1 << gpu for gpu in whole)
        assert site.open_share == max((share for share in free if share < WHOLE_GPU), default=0)
    for p, pool in enumerate(view.pools):
        free_gpus = view.sites.free_gpus[view.sites.pool == p]
        assert pool.free_gpus == free_gpus.sum()
        assert view.spare[p].tolist() == np.bincount(free_gpus, minlength=view.spare.shape[1]).tolist()
        for level in range(pool.largest + 1):
            there = np.flatnonzero((view.sites.pool == p) & (view.sites.free_gpus == level))
            assert sites_with(view, p, level) == there.tolist()
    assert held_parts + len(free_parts(view)) == len(view.parts)


def sites_with(view: View, p: int, free: int) -> list[int]:
    """The sites of a pool that have so many GPUs free, as its bits say."""
    pool, found, place = view.pools[p], [], NOBODY
    while (place := place_after(view, p, free, place)) != NOBODY:
        found.append(int(view.pool_sites[pool.first_site + place]))
    return found


def check_lists(view: View) -> None:
    """Compare the lists of open and idle sites with what they stand for."""
    up, busy = view.nodes.up[view.sites.node] != 0, view.nodes.jobs[view.sites.node] > 0
    has_room = (view.sites.free_gpus > 0) | (view.sites.open_share > 0)
    offers = view.open[: view.clock[0].open]
    assert sorted(offers["site"].tolist()) == np.flatnonzero(up & busy & has_room).tolist()
    for offer in offers:
        site = view.sites[offer["site"]]
        node = view.nodes[site.node]
        assert (offer["form"], offer["free_share"]) == (site.form, site.free_share)
        assert offer["most"] == site.free_gpus * WHOLE_GPU + site.open_share
        assert (offer["cpus"], offer["memory"]) == (node.free_cpus, node.free_memory)
    idle = set()
    for form in view.forms:
        for rank in range(form.sites):
            if view.bits[form.first_word + rank // BITS_PER_WORD] >> (rank % BITS_PER_WORD) & 1:
                idle.add(int(view.form_sites[form.first_site + rank]))
    assert idle == set(np.flatnonzero(up & ~busy).tolist())
    check_demands(view)
    assert view.forms.idle_sites.sum() == len(idle)


def check_demands(view: View) -> None:
    """Compare the lists of waiting jobs by demand with the queue."""
    clock = view.clock[0]
    queue = view.queue[clock.head : clock.head + clock.queued]
    found: dict[int, list[int]] = {}
    d, before = int(clock.demand), NOBODY
    while d != NOBODY:
        demand, j = view.demands[d], int(view.demands[d].first)
        assert demand.previous == before
        found[d] = []
        while j != NOBODY:
            found[d].append(j)
            assert view.runs[j].previous == (found[d][-2] if len(found[d]) > 1 else NOBODY)
            j = int(view.runs[j].next)
        assert (demand.last, demand.waiting) == (found[d][-1], len(found[d]))
        d, before = int(demand.next), d
    assert not found or clock.last_demand == before
    assert found == {
        int(d): queue[view.jobs.demand[queue] == d].tolist() for d in set(view.jobs.demand[queue].tolist())
    }


def free_parts(view: View) -> list[int]:
    """The unused rows of View.parts."""
    rows, p = [], int(view.clock[0].free_part)
    while p != NOBODY:
        rows.append(p)
        p = int(view.parts[p].next)
    assert len(rows) == len(set(rows))
    return rows


@settings(max_examples=40)
@given(scenario=scenarios(), policy=policies, seed=st.integers(0, 100))
def test_the_same_seed_gives_the_same_events(scenario: Scenario, policy: Policy, seed: int) -> None:
    if policy.make is not None:  # a random source of its own goes on where it stopped
        return
    assert run_compiled(scenario, policy, seed).events == run_compiled(scenario, policy, seed).events


@settings(max_examples=60)
@given(scenario=scenarios(), policy=st.sampled_from(POLICIES))
def test_every_job_that_can_run_does_when_no_node_stays_down(scenario: Scenario, policy: Policy) -> None:
    scenario = replace(scenario, disturbances=[item for item in scenario.disturbances if item.what == "speed"])
    ran = run_compiled(scenario, policy)
    assert ran.outcome.unfinished == 0
    assert ran.outcome.illegal == 0
    assert sorted(ledger_of(ran, scenario).ended) == list(range(len(ran.jobs)))


@settings(max_examples=60)
@given(scenario=scenarios(), policy=st.sampled_from(POLICIES))
def test_a_refused_job_changes_nothing_for_the_others(scenario: Scenario, policy: Policy) -> None:
    scenario = replace(scenario, options=replace(scenario.options, window=0))
    ran = run_compiled(scenario, policy)
    refused = set(refusals(ran.plan, ran.jobs, ran.view))
    assert refused == {event[2] for event in ran.events if event[1] == "refuse"}
    if policy.name in ("random", "multifactor"):  # the one draws, the other counts users, whether they run or not
        return
    kept = [job for job in range(len(ran.jobs)) if job not in refused]
    ordered = sorted(scenario.jobs, key=lambda job: job.submit_s)
    without = run_compiled(replace(scenario, jobs=[ordered[job] for job in kept]), policy)
    numbers = {job: number for number, job in enumerate(kept)}
    expected = [renumbered(event, numbers) for event in ran.events if event[1] != "refuse"]
    assert [event for event in without.events if event[2] != NOBODY] == [e for e in expected if e[2] != NOBODY]


def renumbered(event: Event, numbers: dict[int, int]) -> Event:
    """The same event with another number for its job."""
    return (event[0], event[1], numbers.get(event[2], NOBODY), event[3])


# ---- bounds ----------------------------------------------------------------------------------------------------------


def as_run(ran: Ran, policy: str = "") -> Run:
    """The run as the measures read it."""
    view = ran.view
    return Run(
        cluster=ran.plan.cluster,
        jobs=ran.jobs,
        events=ran.outcome.events,
        rate=view.rate,
        site_form=view.sites.form.copy(),
        site_model=tuple(ran.plan.models[model] for model in view.sites.model),
        site_gpus=view.sites.gpus.copy(),
        site_node=view.sites.node.copy(),
        policy=policy,
        seed=0,
        unfinished=ran.outcome.unfinished,
        refusals={},
        illegal=ran.outcome.illegal,
        shapes=view.shapes,
    )


@settings(max_examples=100)
@given(scenario=scenarios(), policy=policies)
def test_no_mean_jct_is_below_the_bounds(scenario: Scenario, policy: Policy) -> None:
    # A GPU that is faster than new would beat the datasheet that the bounds stand on.
    slower = [replace(item, factor=min(item.factor, 1.0)) for item in scenario.disturbances]
    ran = run_compiled(replace(scenario, disturbances=slower), policy)
    log = ran.outcome.events
    done = log[log.what == DONE]
    best = lower_bounds(as_run(ran)).best_s
    if best is not None:
        assert (done.time - ran.jobs.table.submit[done.job]).mean() >= best - 1e-9


@settings(max_examples=60)
@given(scenario=scenarios(), data=st.data())
def test_more_gpus_never_make_the_pooled_bound_worse(scenario: Scenario, data: st.DataObject) -> None:
    ran = run_compiled(scenario, PLAIN["sjf"][0])
    cluster = scenario.cluster
    copied = replace(data.draw(st.sampled_from(cluster.nodes)), name="one more")
    plan, jobs = plan_cluster(replace(cluster, nodes=(*cluster.nodes, copied))), pack_jobs(scenario.jobs)
    larger = replace(ran, plan=plan, jobs=jobs, view=pack(plan, jobs, scenario.speed))
    small, large = lower_bounds(as_run(ran)), lower_bounds(as_run(larger))
    assert (small.pooled_srpt_s is None) == (large.pooled_srpt_s is None)
    if small.pooled_srpt_s is not None and large.pooled_srpt_s is not None:
        assert large.pooled_srpt_s <= small.pooled_srpt_s + 1e-9
