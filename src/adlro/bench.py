"""Speed and memory, measured: every figure with its floor, on this machine, in this run.

Over 500 lines: a list of measurements that share nothing but the table they are printed in.
"""

import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numba
import numpy as np

import adlro
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.compiled import compiled
from adlro.core.errors import UsageError
from adlro.core.jobs import JobNames, job_rows
from adlro.core.plan import Plan, plan_cluster
from adlro.core.records import Cluster, Gpus, Job, Link, Node
from adlro.core.rules import dequeue, in_queue, release
from adlro.core.tables import Ints, Jobs, View
from adlro.core.toml import nearest
from adlro.decide.catalogue import find_policy
from adlro.experiment.instance import load_jobs, run_one
from adlro.experiment.scenario import load_scenario, named_as_in
from adlro.experiment.side_by_side import usable_cores
from adlro.normalise.pack import pack
from adlro.simulation.simulator import SimulationSettings, simulate

GAVEL_JOBS_PER_CPU_S: Final = 43.0
"""What Gavel's own simulator did on two shared cores, FIFO on 108 GPUs at one job in 600 s."""

CLUSTERS_SIDE_BY_SIDE: Final = 256

_QUEUE: Final = 40
_LONG_QUEUE: Final = 1000
_PLAN_QUEUE: Final = 100

_RUN_FOR_S: Final = 600.0
"""How long the jobs of a full cluster have run when a policy that may stop them is measured."""

LCG: Final = Path(__file__).resolve().parents[3] / "shared" / "traces" / "lcg_2005" / "LCG.swf.xz"

UNSEEN_512: Final = Path(__file__).resolve().parents[2] / "examples" / "unseen512.toml"

TellStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One figure. `floor` is the least (or, when `less_is_better`, the most) that is good enough."""

    name: str
    value: float
    unit: str
    floor: float
    less_is_better: bool
    what: str

    @property
    def met(self) -> bool:
        """Whether the figure is good enough."""
        return self.value <= self.floor if self.less_is_better else self.value >= self.floor


def check_names(only: tuple[str, ...]) -> None:
    """Refuse a name that is not a measurement."""
    for name in only:
        if name not in BENCHES:
            raise UsageError(
                f"--only: no measurement {name!r}.{nearest(name, BENCHES)} Expected one of: {', '.join(BENCHES)}."
            )


def run_bench(progress: TellStep, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measure everything, or only what is named."""
    check_names(only)
    results: list[BenchResult] = []
    skipped: list[dict[str, str]] = []
    for name in [name for name in BENCHES if not only or name in only]:
        progress(name)
        found = BENCHES[name]()
        if isinstance(found, str):
            skipped.append({"name": name, "why": found})
        else:
            results.append(BenchResult(name, *found))
    rows = [{**asdict(result), "met": result.met} for result in results]
    return {"machine": machine(), "results": rows, "skipped": skipped}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "load_average": os.getloadavg()[0],
        "loop_ns": 1e9 * timed_loop(),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "adlro": adlro.__version__,
    }


def processor() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


@compiled
def scalar_loop(count: int) -> float:
    """A fixed piece of scalar work, to compare machines by."""
    total = 0.0
    for i in range(count):
        total += 1.0 / (1.0 + total * total + i)
    return total


def timed_loop() -> float:
    """Seconds of one step of the fixed work: how fast this core is just now."""
    scalar_loop(1000)
    begin = time.process_time()
    scalar_loop(5_000_000)
    return (time.process_time() - begin) / 5_000_000


# ---- one core -----------------------------------------------------------------------------------------------------


def drawn(cluster: str, workload: str, count: int, seed: int = 0) -> tuple[Plan, Jobs]:
    """A cluster and jobs for it."""
    scenario = load_scenario(cluster, workload, count)
    return scenario.plan, named_as_in(scenario.cluster, load_jobs(workload, seed, count))


def cpu_seconds(plan: Plan, jobs: Jobs, policy_name: str, repeats: int = 3) -> float:
    """CPU seconds of a run, the least of a few: other load on the machine only ever adds."""
    policy = find_policy(policy_name)
    warm = jobs_first(jobs, 64)
    simulate(pack(plan, warm, speed_of), warm.work, policy)
    times = []
    for _ in range(repeats):
        view = pack(plan, jobs, speed_of)
        begin = time.thread_time()
        simulate(view, jobs.work, policy)
        times.append(time.thread_time() - begin)
    return min(times)


def jobs_first(jobs: Jobs, count: int) -> Jobs:
    """The first few jobs, in a table of their own."""
    table = jobs.table[:count].copy().view(np.recarray)
    return Jobs(table, jobs.work[:count], jobs.families, jobs.users, jobs.names, jobs.allowed)


Measurement = tuple[float, str, float, bool, str]
"""Value, unit, floor, whether less is better, and what it is; a text in its place says why it was not measured."""


def bench_paper16() -> Measurement:
    """One core, one cluster, a million jobs."""
    plan, jobs = drawn("paper16", "paper", 1_000_000)
    rate = len(jobs) / cpu_seconds(plan, jobs, "sjf")
    return rate, "jobs/s", 1.0e6, False, "sjf, paper16, 1 M jobs, one core (CPU time)"


def bench_all_cores() -> Measurement:
    """Many clusters side by side: the share of one core's speed that each core keeps."""
    plan, jobs = drawn("paper16", "paper", 20_000)
    policy = find_policy("sjf")
    views: list[View] = [pack(plan, jobs, speed_of) for _ in range(CLUSTERS_SIDE_BY_SIDE)]
    simulate(pack(plan, jobs, speed_of), jobs.work, policy)

    def run(view: View) -> None:
        simulate(view, jobs.work, policy)

    few = [pack(plan, jobs, speed_of) for _ in range(32)]
    begin = time.perf_counter()
    for view in few:
        run(view)
    alone = (time.perf_counter() - begin) / len(few)
    begin = time.perf_counter()
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(run, views))
    together = (time.perf_counter() - begin) / len(views)
    return (
        alone / together / usable_cores(),
        "of one core's speed, per core",
        0.8,
        False,
        f"sjf, {CLUSTERS_SIDE_BY_SIDE} clusters of 20,000 jobs side by side on {usable_cores()} cores: "
        f"{len(jobs) / together:,.0f} jobs/s together",
    )


def bench_openb() -> Measurement:
    """A cluster of thousands of GPUs."""
    plan, jobs = drawn("openb", "openb-like", 100_000)
    rate = len(jobs) / cpu_seconds(plan, jobs, "best-fit")
    return rate, "jobs/s", 50_000.0, False, "best-fit, openb (6,212 GPUs), 100,000 tasks, one core (CPU time)"


def bench_growth() -> Measurement:
    """How the cost of a job grows from 16 to 6,212 GPUs, as a share of the growth in sites."""
    small_plan, small = drawn("paper16", "paper", 100_000)
    large_plan, large = drawn("openb", "openb-like", 100_000)
    small_s = cpu_seconds(small_plan, small, "best-fit") / len(small)
    large_s = cpu_seconds(large_plan, large, "best-fit") / len(large)
    growth = large_s / small_s
    sites = len(large_plan.sites) / len(small_plan.sites)
    what = f"cost of a job x{growth:.1f} while the sites grow x{sites:.0f}, best-fit, 16 to 6,212 GPUs"
    return growth / sites, "of the growth in sites", 1.0, True, what


def bench_gavel108() -> Measurement:
    """Against Gavel's own simulator."""
    plan, jobs = drawn("gavel108", "gavel", 100_000)
    rate = len(jobs) / cpu_seconds(plan, jobs, "fcfs")
    what = f"fcfs, gavel108, Gavel's distribution: {rate:,.0f} jobs per CPU second against {GAVEL_JOBS_PER_CPU_S:g}"
    return rate / GAVEL_JOBS_PER_CPU_S, "x Gavel", 10_000.0, False, what


# ---- wide gangs, large clusters ------------------------------------------------------------------------------------

LARGE_NODES: Final = 12_500
GPUS_ON_A_NODE: Final = 8
LARGE_LOAD: Final = 0.9
LONGEST_QUEUE: Final = 10_000


def large_cluster(nodes: int, gpus: int, models: int) -> Plan:
    """A cluster of so many nodes with so many GPUs each, of up to three models by turns."""
    small = load_cluster("paper16")
    names = tuple(small.models)
    link = Link("nvlink", 300.0)
    members = tuple(Node(f"n{n}", 64.0, 512.0, (Gpus(names[n % models], gpus),), link) for n in range(nodes))
    return plan_cluster(Cluster("large", "", members, Link("infiniband-hdr", 50.0), small.models))


def drawn_gangs(count: int, sizes: Ints, gpus: int, seed: int = 0) -> Jobs:
    """So many jobs with gangs of these sizes, all as likely, at a load of LARGE_LOAD on so many GPUs.

    All GPU models run them equally fast. Their times are log-normal, with a median of 50 minutes.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    names = JobNames()
    first, work = job_rows([Job("uniform", 1.0)], names)
    jobs = names.jobs(np.repeat(first, count).view(np.recarray), np.repeat(work, count))
    table = jobs.table
    table.gpus = rng.choice(sizes, count)
    jobs.work[:] = table.gpus * rng.lognormal(8.0, 1.0, count)
    table.estimate = jobs.work
    table.submit = np.cumsum(rng.exponential(jobs.work.mean() / (LARGE_LOAD * gpus), count))
    return jobs


MOSTLY_SMALL: Final = np.array([1, 1, 1, 1, 2, 2, 4, 8, 8, 16], np.int32)


def drawn_large(count: int) -> tuple[Plan, Jobs]:
    """A cluster of 100,000 GPUs, and jobs that fill it: 4.4 GPUs each on average, of which some take two nodes."""
    plan = large_cluster(LARGE_NODES, GPUS_ON_A_NODE, models=3)
    return plan, drawn_gangs(count, MOSTLY_SMALL, LARGE_NODES * GPUS_ON_A_NODE)


def bench_wide_gangs() -> Measurement:
    """How the cost of a job grows with the cluster, if gangs grow with it: up to half of its nodes."""
    costs = []
    for nodes in (100, 10_000):
        sizes = np.unique(np.geomspace(1, nodes / 2, 40).astype(np.int32))
        plan, jobs = large_cluster(nodes, 1, models=1), drawn_gangs(2_000, sizes, nodes)
        costs.append(cpu_seconds(plan, jobs, "sjf") / len(jobs))
    growth = costs[1] / costs[0]
    what = (
        f"cost of a job x{growth:.0f} ({1e6 * costs[1]:.0f} us) while nodes and gangs grow x100, sjf, to 10,000 nodes"
    )
    return growth / 100, "of the growth in nodes", 1.0, True, what


def bench_openb_like_100k() -> Measurement:
    """A long queue of many demands: the slowest of four rules."""
    plan, jobs = drawn("openb", "openb-like", 100_000)
    jobs.table.submit *= 0.8  # the workload has a load of 0.8
    seconds = {name: cpu_seconds(plan, jobs, name, repeats=1) for name in ("sjf", "unicep", "best-fit", "fgd")}
    each = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    what = f"openb (6,212 GPUs), 100,000 tasks at load 1, the slowest of: {each} s, one core (CPU time)"
    return max(seconds.values()), "s", 3.0, True, what


def bench_gpus_100k() -> Measurement:
    """A million jobs on a hundred thousand GPUs."""
    script = (
        "from adlro.bench import cpu_seconds, drawn_large, peak_mb\n"
        "print(cpu_seconds(*drawn_large(1_000_000), 'sjf', repeats=1), peak_mb())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    seconds, peak = map(float, done.stdout.split())
    what = f"sjf, 100,000 GPUs in 12,500 nodes, 1 M jobs at load 0.9, one core (CPU time); {peak:.0f} MB at the most"
    return seconds, "s", 60.0, True, what


def bench_gpus_100k_adlro() -> Measurement:
    """The network on the same cluster, for a tenth of the jobs."""
    plan, jobs = drawn_large(100_000)
    rate = len(jobs) / cpu_seconds(plan, jobs, "adlro", repeats=1)
    what = "adlro, 100,000 GPUs in 12,500 nodes, 100,000 jobs at load 0.9, one core (CPU time)"
    return rate, "jobs/s", 1e6 / 600, False, what


def bench_decide_100k() -> Measurement:
    """One answer of the network on a hundred thousand GPUs with a long queue."""
    plan, jobs = drawn_large(60_000)
    view = filled_view(plan, jobs)
    assert view.clock[0].queued >= LONGEST_QUEUE
    value = decision_ms("adlro", view, LONGEST_QUEUE)
    what = f"adlro, one decision on 100,000 GPUs with {int(view.clock[0].queued):,} jobs waiting, one core"
    return value, "ms", 20.0, True, what


# ---- the rest -------------------------------------------------------------------------------------------------------


def bench_lp_round() -> Measurement:
    """One round of an LP policy on a full cluster with a queue."""
    from adlro.decide.rules.gavel import solve_round  # SciPy's solver takes a while to import
    from adlro.decide.rules.pools import ViewReader

    view = busy_view("sia64", "sia-philly", waiting=40)
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        solve_round(ViewReader(view), "maxmin")
        times.append(time.perf_counter() - begin)
    value = 1000 * statistics.median(times[3:])
    return value, "ms", 20.0, True, "gavel-maxmin, one round on sia64 (64 GPUs), full, with 40 jobs waiting"


def busy_view(cluster: str, workload: str, waiting: int) -> View:
    """A cluster in the middle of a run: all jobs submitted at once, as many as fit running, some waiting."""
    return filled_view(*drawn(cluster, workload, 100 + waiting))


def filled_view(plan: Plan, jobs: Jobs) -> View:
    """A cluster to which all these jobs have been submitted at once, and as many as fit have been started."""
    from adlro.core.engine import DECIDE, advance, apply
    from adlro.simulation.simulator import prepare

    jobs.table.submit = 0.0
    view = pack(plan, jobs, speed_of)
    policy = find_policy("fcfs-first-fit")
    assert policy.choose is not None
    truth = prepare(view, jobs.work, policy, SimulationSettings(), (), 0)
    assert advance(view, truth) == DECIDE
    while apply(view, truth, policy.choose(view)):
        pass
    return view


def answered_s(arguments: Sequence[str], cache: Path | None = None) -> float:
    """Seconds from a command to its result; with a folder for compiled code other than the user's, if one is given."""
    environment = dict(os.environ) if cache is None else {**os.environ, "XDG_CACHE_HOME": str(cache)}
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "adlro", *arguments], check=True, capture_output=True, env=environment)
    return time.perf_counter() - begin


def bench_first_answer() -> Measurement:
    """From the command to its first result, when nothing is compiled yet."""
    with TemporaryDirectory() as folder:
        value = answered_s(["compare", "-p", "sjf", "--seeds", "1", "--json"], Path(folder))
    return value, "s", 25.0, True, "adlro compare -p sjf --seeds 1, the first start: nothing is compiled"


def bench_second_answer() -> Measurement:
    """From the command to its first result, when compiled code is in the cache."""
    command = ["compare", "--seeds", "1", "--json"]
    answered_s(command)
    value = min(answered_s(command) for _ in range(5))
    return value, "s", 1.0, True, "adlro compare --seeds 1 (eight policies), a second start"


def bench_ray_speedup() -> Measurement | str:
    """The same runs on Ray's processes and on the threads of this process, with as many cores."""
    from adlro.experiment.compare import Runs
    from adlro.experiment.on_ray import LOCAL_RAY, RayCluster
    from adlro.experiment.places import Group, RunPlace, ThreadPlace

    if find_spec("ray") is None:
        return "Ray is not installed: pip install 'adlro[ray]'"
    policies = tuple(find_policy(name) for name in ("fcfs", "sjf", "eft", "srtf"))
    runs = Runs(load_scenario("paper16", "paper"), policies, 0, False)

    def seconds(place: RunPlace, seeds: int) -> float:
        groups = [Group(runs, seed, tuple(range(len(policies)))) for seed in range(seeds)]
        begin = time.perf_counter()
        done = sum(1 for _ in place.spread(groups, lambda _what: None))
        assert done == seeds * len(policies)
        return time.perf_counter() - begin

    with RayCluster(LOCAL_RAY, usable_cores()) as cluster:
        for place in (ThreadPlace(usable_cores()), cluster):  # compiled code is loaded, and Ray's processes start
            seconds(place, 10 * usable_cores())
        seeds = max(20, int(20 * 20.0 / seconds(ThreadPlace(usable_cores()), 20)))  # some 20 s of work
        ratios = [seconds(ThreadPlace(usable_cores()), seeds) / seconds(cluster, seeds) for _ in range(3)]
    what = (
        f"runs a second on Ray over those on threads, {usable_cores()} cores, 4 policies x {seeds:,} seeds on paper16"
    )
    return max(ratios), "x", 0.8, False, what


def bench_memory() -> Measurement:
    """What a million jobs add to the memory of a process that has run a few."""
    script = (
        "from adlro.bench import drawn, find_policy, pack, simulate, speed_of, peak_mb\n"
        "for count in (1_000, 1_000_000):\n"
        "    plan, jobs = drawn('paper16', 'paper', count)\n"
        "    simulate(pack(plan, jobs, speed_of), jobs.work, find_policy('sjf'))\n"
        "    print(peak_mb())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    few, many = map(float, done.stdout.split())
    what = f"draw, pack and simulate 1 M jobs: the process grows from {few:.0f} to {many:.0f} MB at its most"
    return many - few, "MB", 400.0, True, what


def bench_read_lcg() -> Measurement | str:
    """A large log of the Parallel Workloads Archive, where it lies beside the repository."""
    if not LCG.is_file():
        return f"{LCG.name} is not in {'/'.join(LCG.parts[-4:-1])} beside the repository"
    return read_and_packed_s(LCG, 188_041), "s", 1.0, True, "188,041 rows of LCG (SWF, .xz) read and packed"


def bench_read_parquet() -> Measurement:
    """A million jobs as our own Parquet."""
    from adlro.ingest.traces.own import write_own

    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.parquet"
        write_own(load_jobs("paper", 0, 1_000_000), str(path))
        return read_and_packed_s(path, 1_000_000), "s", 1.0, True, "1 M rows of our own Parquet read and packed"


def bench_predict_1() -> Measurement:
    """One job's runtime."""
    return 1e3 * predicted_s(1), "ms", 1.0, True, "runtime of one job, 100,000 jobs learnt, one core (CPU time)"


def bench_predict_1000() -> Measurement:
    """The runtimes of many jobs at once."""
    return 1e3 * predicted_s(1000), "ms", 50.0, True, "runtimes of 1,000 jobs, 100,000 jobs learnt, one core (CPU time)"


def bench_recall_1() -> Measurement:
    """One job's runtime, from the hypervector memory."""
    return 1e3 * predicted_s(1, "memory"), "ms", 1.0, True, "the same by the memory of hypervectors, all 100,000 in it"


def bench_recall_1000() -> Measurement:
    """The runtimes of many jobs at once, from the hypervector memory."""
    return 1e3 * predicted_s(1000, "memory"), "ms", 50.0, True, "1,000 jobs by the memory, all 100,000 in it"


def predicted_s(count: int, method: str = "habits") -> float:
    """CPU seconds of predicting so many jobs from what a hundred thousand others taught, the least of a few."""
    from adlro.predict.evaluate import find_method
    from adlro.predict.following import seconds_of, text_hash, traits_of

    learnt = 100_000
    jobs = load_jobs("paper", 0, learnt + count)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    # As many users and names as a large site has, so that every place that is looked at is another.
    rng = np.random.Generator(np.random.PCG64(0))
    names = np.array([text_hash(str(number)) for number in range(8000)], np.uint64)
    group = rng.integers(0, 8000, len(jobs))
    traits["group"], traits["user"] = names[group], names[group // 4]
    predictor = find_method(method).make()
    predictor.follow(traits, seconds, ~np.arange(learnt))
    asked, events = traits[learnt:].view(np.recarray), np.arange(count)
    times = []
    for _ in range(20):
        begin = time.thread_time()
        predictor.follow(asked, seconds[learnt:], events)
        times.append(time.thread_time() - begin)
    return min(times)


def read_and_packed_s(path: Path, rows: int) -> float:
    """Seconds from a file to a table that the simulator can play, the least of a few."""
    from adlro.experiment.traces import read_trace
    from adlro.ingest.traces.tabulate import TraceOptions

    plan = load_scenario("paper16", "paper", 1).plan
    times = []
    for _ in range(4):  # the first one may have to compile, and to load pyarrow
        begin = time.perf_counter()
        jobs, _report = read_trace(str(path), TraceOptions())
        pack(plan, jobs, speed_of)
        times.append(time.perf_counter() - begin)
        assert len(jobs) == rows
    return min(times)


def bench_env_steps() -> Measurement:
    """The batched environment with actions by chance, what is seen included: a group of environments on each core.

    A training has groups too, of which one steps while the next is acted on.
    """
    from adlro.learn.worlds.batch import BY_CHANCE, Batch, make_batch, step
    from adlro.learn.worlds.draw import make_world, stack
    from adlro.learn.worlds.envs import Draw

    worlds = stack([make_world(*drawn("paper16", "paper", 2000))])
    how = Draw(0.9, 0.9, backlog=0, burst=0.0, sigma=0.0, jitter=0.0, failures=0.0, shaped=False)
    count, calls = 256, 128  # few enough that their state stays in the caches; calls for more than an episode
    groups = [make_batch(worlds, count, 64, 16, worlds.pools.shape[1], how, seed, 1) for seed in range(usable_cores())]

    def some(group: Batch) -> None:
        actions = np.empty(count, np.int32)
        for _ in range(calls):
            actions[:] = BY_CHANCE
            step(group, actions)

    times = []
    with ThreadPoolExecutor(usable_cores()) as pool:
        for block in range(24):
            begin = time.perf_counter()
            list(pool.map(some, groups))
            if block >= 4:  # all begin at once, with short queues; by then they are at different points of episodes
                times.append(time.perf_counter() - begin)
    rate = count * calls * len(groups) / min(times)
    what = (
        f"{len(groups)} groups of {count} environments, each on a core, paper16, legal actions by chance, "
        "observations included"
    )
    return rate, "steps/s", 1.0e6, False, what


def bench_normalise() -> Measurement:
    """One look at a large cluster as numbers from 0 to 1, the one before it known."""
    from adlro.catalogue.gpus import find_gpu
    from adlro.core.telemetry import METRIC, GpuSeen, Readings
    from adlro.normalise.telemetry import normalise

    metrics = (
        "utilisation", "temperature", "memory_temperature", "memory_used", "memory_busy", "power", "sm_clock",
        "memory_clock", "throttle_reasons", "xid", "ecc_corrected", "ecc_uncorrected",
    )  # fmt: skip
    count = 10_000
    places = np.array([METRIC[metric] for metric in metrics], np.int16)

    def look(second: float) -> Readings:
        gpus = tuple(GpuSeen(f"node{g // 8}", g % 8, f"GPU-{g}", "a100" if g % 3 else "mi300x") for g in range(count))
        size = count * len(metrics)
        gpu = np.repeat(np.arange(count, dtype=np.int32), len(metrics))
        return Readings(
            "bench", second, gpus, gpu, np.tile(places, count), np.ones(size), np.full(size, second - 1.0),
            np.zeros(size, np.int16),
        )  # fmt: skip

    times, previous = [], None
    for number in range(12):
        readings = look(1.8e9 + 15 * number)
        begin = time.perf_counter()
        previous = normalise(readings, find_gpu, previous=previous)
        times.append(time.perf_counter() - begin)
    what = f"{count:,} GPUs x {len(metrics)} metrics normalised, the median of {len(times) - 2} looks"
    return 1000 * statistics.median(times[2:]), "ms", 50.0, True, what


def bench_scrape() -> Measurement:
    """The answers of a Prometheus server for a large cluster: read and mapped to nodes and GPUs."""
    from adlro.ingest.telemetry.prometheus import parse_answer, take_samples
    from adlro.ingest.telemetry.series import NVIDIA_SERIES, Collector

    count, names = 2_000, list(NVIDIA_SERIES)[:14]
    answers = []
    for name in names:
        result = [
            {
                "metric": {
                    "__name__": name, "gpu": str(g % 8), "UUID": f"GPU-0b1c2d3e-4f50-6172-8394-{g:012d}",
                    "device": f"nvidia{g % 8}", "modelName": "NVIDIA A100-SXM4-80GB", "Hostname": f"node{g // 8}",
                    "DCGM_FI_DRIVER_VERSION": "535.104.12", "instance": f"node{g // 8}:9400", "job": "dcgm",
                },
                "values": [[1.8e9 + 15 * s, "42"] for s in range(8)],
            }
            for g in range(count)
        ]  # fmt: skip
        answers.append(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode())
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        collector = Collector("bench")
        for answer in answers:
            take_samples(parse_answer(answer, "bench"), collector)
        readings = collector.readings(1.8e9)
        times.append(time.perf_counter() - begin)
        assert (len(readings.gpus), len(readings)) == (count, count * len(names))
    size = sum(map(len, answers)) / 1e6
    what = f"Prometheus' answers for {count:,} GPUs x {len(names)} series ({size:.0f} MB, two minutes) read and mapped"
    return statistics.median(times), "s", 1.0, True, what


def bench_decide_16() -> Measurement:
    """One answer of the network on the paper's cluster."""
    value = decision_ms("adlro", busy_view("paper16", "paper", waiting=_QUEUE), _QUEUE)
    return value, "ms", 1.0, True, f"adlro, one decision on paper16 with {_QUEUE} jobs waiting, one core"


def bench_decide_6212() -> Measurement:
    """One answer of the network on a large cluster with a long queue."""
    view = busy_view("openb", "openb-like", waiting=20_000)
    value = decision_ms("adlro", view, _LONG_QUEUE)
    what = f"adlro, one decision on openb (6,212 GPUs) with {int(view.clock[0].queued):,} jobs waiting, one core"
    return value, "ms", 10.0, True, what


def with_dear_restarts(view: View) -> View:
    """The cluster later, with restarts so dear that every job is planned to the end and none is stopped or started."""
    view.clock[0].now, view.clock[0].restart = _RUN_FOR_S, 1e6
    return view


def bench_plan_108() -> Measurement:
    """One answer of `plan` on a middling cluster."""
    view = with_dear_restarts(busy_view("gavel108", "gavel", waiting=400))
    value = decision_ms("plan", view, _PLAN_QUEUE, freed=0)
    return value, "ms", 1.0, True, f"plan, one decision on gavel108 with {_PLAN_QUEUE} jobs waiting, one core"


def bench_plan_6212() -> Measurement:
    """One answer of `plan` on a large cluster."""
    view = with_dear_restarts(busy_view("openb", "paper", waiting=8_000))
    value = decision_ms("plan", view, _LONG_QUEUE, freed=0)
    what = f"plan, one decision on openb (6,212 GPUs) with {int(view.clock[0].queued):,} jobs waiting, one core"
    return value, "ms", 20.0, True, what


def bench_preemptive_16() -> Measurement:
    """One answer of the network and `plan` together on the paper's cluster, on which nothing is free."""
    view = with_dear_restarts(busy_view("paper16", "paper", waiting=_QUEUE))
    value = decision_ms("adlro-preemptive", view, _QUEUE, freed=0)
    return value, "ms", 1.0, True, f"adlro-preemptive, one decision on paper16 with {_QUEUE} jobs waiting, one core"


def bench_preemptive_6212() -> Measurement:
    """The same on a large cluster."""
    view = with_dear_restarts(busy_view("openb", "paper", waiting=8_000))
    value = decision_ms("adlro-preemptive", view, _LONG_QUEUE, freed=0)
    queued = int(view.clock[0].queued)
    what = f"adlro-preemptive, one decision on openb (6,212 GPUs) with {queued:,} jobs waiting, one core"
    return value, "ms", 10.0, True, what


def bench_lookahead_16() -> Measurement:
    """One answer of look-ahead on the paper's cluster."""
    value = decision_ms("adlro-lookahead", busy_view("paper16", "paper", waiting=_QUEUE), _QUEUE)
    return value, "ms", 5.0, True, f"adlro-lookahead, one decision on paper16 with {_QUEUE} jobs waiting, one core"


def bench_preemptive_lookahead_16() -> Measurement:
    """One answer of look-ahead that may stop jobs on the paper's cluster."""
    name = "adlro-preemptive-lookahead"
    value = decision_ms(name, busy_view("paper16", "paper", waiting=_QUEUE), _QUEUE)
    return value, "ms", 5.0, True, f"{name}, one decision on paper16 with {_QUEUE} jobs waiting, one core"


def bench_lookahead_512() -> Measurement | str:
    """Whole runs of the strongest look-ahead policies on a large cluster of several models; the slower one counts."""
    if not UNSEEN_512.is_file():
        return f"{UNSEEN_512.name} is not in the repository's examples"
    seconds = {}
    for name in ("lookahead-eft-reserving", "adlro-lookahead", "adlro-preemptive-lookahead"):
        for count in (16, 800):  # the first only to compile
            scenario = load_scenario(str(UNSEEN_512), "paper", count, load=0.9)
            begin = time.thread_time()
            run_one(scenario, find_policy(name), 0)
            seconds[name] = time.thread_time() - begin
    slowest = max(seconds, key=lambda name: seconds[name])
    what = f"{slowest}, a run of 800 jobs at load 0.9 on unseen512 (512 GPUs), one core (CPU time)"
    return seconds[slowest], "s", 30.0, True, what


def decision_ms(policy_name: str, view: View, waiting: int, freed: int = 2) -> float:
    """Milliseconds of CPU time that a policy takes to answer, the median over many times.

    The queue is cut to `waiting` jobs, and `freed` running jobs are taken off their GPUs: there is something to decide.
    """
    while view.clock[0].queued > waiting:
        dequeue(view, int(in_queue(view, waiting)))
    policy = find_policy(policy_name)
    for j in np.sort(view.running[: view.clock[0].running])[:freed].tolist():
        release(view, j)
        view.clock[0].running -= 1
        view.running[: view.clock[0].running] = [
            other for other in view.running[: view.clock[0].running + 1].tolist() if other != j
        ]
    choose = policy.choose or policy.make(view, 0)  # type: ignore[misc]
    times = []
    for _ in range(60):
        view.clock[0].now += 1e-6  # a new moment: a policy may remember what it decided at this one
        begin = time.process_time()
        choose(view)
        times.append(time.process_time() - begin)
    return 1000 * statistics.median(times[10:])


def bench_train_paper() -> Measurement | str:
    """The paper's protocol on a GPU."""
    found = trained_on_gpu("paper", episodes=200_000)
    if isinstance(found, str):
        return found
    episodes_per_s, _ = found
    return 1e6 / episodes_per_s / 60, "min", 10.0, True, "1,000,000 episodes of the preset paper, from 200,000 of them"


def bench_train_adlro() -> Measurement | str:
    """Steps of the default preset on a GPU, with one sample learnt for each."""
    found = trained_on_gpu("adlro", steps=20_000_000)
    if isinstance(found, str):
        return found
    _, steps_per_s = found
    return steps_per_s, "steps/s", 200e3, False, "preset adlro, a sample learnt for each step, 20 M steps"


def trained_on_gpu(preset: str, **limit: int) -> tuple[float, float] | str:
    """Episodes and steps in a second of a training on this machine's GPU, or why there is none."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed: pip install 'adlro[learn]'"
    if not torch.cuda.is_available():
        return "needs a GPU that PyTorch can use (CUDA or ROCm)"
    with TemporaryDirectory() as folder:
        words = [f"--{name}={value}" for name, value in limit.items()]
        words += ["--set", "evaluate_every=0", "--set", "checkpoint_every=0"]
        command = [sys.executable, "-m", "adlro", "train", "--preset", preset, *words, "--out", folder, "--json"]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
    (training,) = json.loads(ended.stdout)["trainings"]
    return training["episodes"] / training["seconds"], training["steps"] / training["seconds"]


_TURNS: Final = 40
NODES: Final = 1000
JOBS_WAITING: Final = 10_000


def bench_serve_tick() -> Measurement:
    """Turns of the live orchestrator on a large simulated cluster."""
    seconds = sorted(turns_of("adlro"))
    slow = seconds[int(0.99 * (len(seconds) - 1) + 0.5)]
    return slow, "s", 1.0, True, f"p99 of {_TURNS} turns, adlro, 10,000 jobs waiting on 1,000 nodes, store in a file"


def turns_of(policy: str) -> list[float]:
    """How long the turns took, with as many jobs waiting at each; the first ones, in which all is new, left out."""
    from adlro.backends.simulated.backend import Simulated
    from adlro.backends.simulated.clock import ByHand
    from adlro.core.ports import JobState, Submission
    from adlro.daemon.store import open_store
    from adlro.live.turn import Orchestrator

    small = load_cluster("paper16")
    models = [group.model for node in small.nodes for group in node.gpus]
    nodes = tuple(
        Node(f"n{n}", 64.0, 512.0, (Gpus(models[n % len(models)], 8),), Link("nvlink", 300.0)) for n in range(NODES)
    )
    clock, random = ByHand(), np.random.default_rng(3)
    backend = Simulated(Cluster("large", "", nodes, Link("infiniband-hdr", 50.0), small.models), speed_of, clock=clock)

    def submit(count: int) -> None:
        for _ in range(count):
            gpus, work = int(random.choice([1, 1, 1, 2, 4, 8])), float(random.lognormal(8.0, 1.0))
            family = str(random.choice(["simulation", "learning", "data"]))
            who, name = f"u{random.integers(40)}", f"n{random.integers(50)}"
            backend.submit(Submission(Job(family, work * gpus, gpus=gpus, user=who, name=name, limit_s=20 * work)))

    found: list[float] = []
    with TemporaryDirectory() as folder:
        memory = open_store(f"sqlite:{folder}/adlro.db")
        orchestrator = Orchestrator(backend, memory, policy)
        submit(JOBS_WAITING)
        for _ in range(_TURNS + 3):
            tick = orchestrator.tick()
            found.append(tick.seconds)
            clock.move(60.0)
            waiting = sum(job.state is JobState.WAITING for job in backend.read().jobs)
            submit(max(0, JOBS_WAITING - waiting))
        memory.close()
    backend.close()
    return found[3:]


# ---- Kubernetes, on a real API server -----------------------------------------------------------------------------


def why_no_kubernetes() -> str:
    """What is missing to measure on a control plane; "" if nothing is. From now on SIGPIPE does not end this process.

    Commands end by that signal, but servers close connections.
    """
    from adlro.backends.kubernetes.lab import why_no_control_plane

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return why_no_control_plane()


def bench_kubernetes_binds() -> Measurement | str:
    """Pods that the daemon binds."""
    from adlro.bench_kubernetes import daemon_figures

    if said := why_no_kubernetes():
        return said
    what = "pods bound by adlro serve, 1,000 nodes, 5,000 pods waiting, real API server beside it"
    return daemon_figures()[0], "pods/s", 150.0, False, what


def bench_kubernetes_latency() -> Measurement | str:
    """How soon a single pod is bound."""
    from adlro.bench_kubernetes import daemon_figures

    if said := why_no_kubernetes():
        return said
    what = "p99 from the creation of a pod until it is bound, 200 pods one by one, idle cluster of 1,000 nodes"
    return 1e3 * daemon_figures()[1], "ms", 500.0, True, what


def bench_kubernetes_turn() -> Measurement | str:
    """Turns on a large cluster."""
    from adlro.bench_kubernetes import turn_figures

    if said := why_no_kubernetes():
        return said
    seconds, cpu, _ = turn_figures()
    what = "p99 of 100 turns, adlro, 5,000 nodes (40,000 GPUs), 10,000 pods waiting, 20 pods end in each turn"
    return seconds, "s", 2.0, True, f"{what}; {cpu:.2f} s of CPU time"


def bench_kubernetes_memory() -> Measurement | str:
    """The memory of these turns."""
    from adlro.bench_kubernetes import turn_figures

    if said := why_no_kubernetes():
        return said
    return turn_figures()[2], "MB", 1500.0, True, "the process of these turns at its most: copy, turn and store"


def bench_kubernetes_extender() -> Measurement | str:
    """How soon kube-scheduler has an answer."""
    from adlro.bench_kubernetes import extender_figures

    if said := why_no_kubernetes():
        return said
    by_name, by_node = extender_figures()
    what = f"p99 of filter and prioritise, 1,000 node names; {1e3 * by_node:.0f} ms with whole nodes in the request"
    return 1e3 * by_name, "ms", 20.0, True, what


def peak_mb() -> float:
    """The most memory that this process has held, in MB."""
    try:
        # The kernel's own figure: getrusage's includes what the parent held when it started this process.
        with open("/proc/self/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


BENCHES: Final[dict[str, Callable[[], Measurement | str]]] = {
    "simulate-paper16": bench_paper16,
    "simulate-paper16-all-cores": bench_all_cores,
    "simulate-openb": bench_openb,
    "growth-16-to-6212": bench_growth,
    "simulate-gavel108": bench_gavel108,
    "wide-gangs": bench_wide_gangs,
    "openb-like-100k": bench_openb_like_100k,
    "gpus-100k": bench_gpus_100k,
    "gpus-100k-adlro": bench_gpus_100k_adlro,
    "lp-round-64": bench_lp_round,
    "first-answer": bench_first_answer,
    "second-answer": bench_second_answer,
    "ray-speedup": bench_ray_speedup,
    "memory-1m-jobs": bench_memory,
    "read-lcg": bench_read_lcg,
    "read-parquet-1m": bench_read_parquet,
    "normalise-10000-gpus": bench_normalise,
    "scrape-2000-gpus": bench_scrape,
    "predict-1": bench_predict_1,
    "predict-1000": bench_predict_1000,
    "recall-1": bench_recall_1,
    "recall-1000": bench_recall_1000,
    "env-steps": bench_env_steps,
    "serve-tick": bench_serve_tick,
    "decide-16": bench_decide_16,
    "decide-6212": bench_decide_6212,
    "decide-100k": bench_decide_100k,
    "plan-108": bench_plan_108,
    "plan-6212": bench_plan_6212,
    "preemptive-16": bench_preemptive_16,
    "preemptive-6212": bench_preemptive_6212,
    "lookahead-16": bench_lookahead_16,
    "lookahead-512": bench_lookahead_512,
    "preemptive-lookahead-16": bench_preemptive_lookahead_16,
    "train-paper-episodes": bench_train_paper,
    "train-adlro-steps": bench_train_adlro,
    "kubernetes-binds": bench_kubernetes_binds,
    "kubernetes-latency": bench_kubernetes_latency,
    "kubernetes-turn": bench_kubernetes_turn,
    "kubernetes-memory": bench_kubernetes_memory,
    "kubernetes-extender": bench_kubernetes_extender,
}
