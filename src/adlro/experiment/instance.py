"""One policy on one seed: draw the jobs and disturbances of a seed, and play a policy on them to the end."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from adlro.catalogue.families import is_family
from adlro.catalogue.speeds import bandwidth_used
from adlro.core.copying import copied
from adlro.core.driver import NO_HEAT, UNREAD, Player
from adlro.core.errors import AdlroError, PolicyError, UsageError
from adlro.core.heat import new_heat
from adlro.core.learned import KNOWN_SPEEDS, LEARNED_SPEEDS
from adlro.core.plan import is_paced
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU, Cluster, Disturbance
from adlro.core.rules import gpu_share
from adlro.core.run import Run
from adlro.core.tables import Floats, Ints, Jobs, Table, View
from adlro.core.units import DAY_S, HOUR_S
from adlro.experiment.scenario import Recorded, Scenario, find_workload, gpu_seconds, named_as_in
from adlro.experiment.unknown_speeds import Believed, believe, learning_player
from adlro.ingest.disturbances import failures, slow_gpus, wear
from adlro.ingest.signatures import with_signatures
from adlro.ingest.synthetic import generate
from adlro.ingest.traces.windows import cut, misjudged
from adlro.normalise.pack import pack, pack_disturbances, refusals
from adlro.normalise.telemetry import THROTTLE_C
from adlro.predict.following import traits_of, untold
from adlro.predict.online import Predicting
from adlro.simulation.simulator import simulate

WEAR_SPREAD: Final = 0.5
"""Sigma of the logarithm of a GPU's own drift: some wear at half the average rate, some at twice."""

HEAT_SPREAD: Final = 0.1
"""Sigma of the logarithm of how hot a GPU becomes by its own power: some are cooled worse than others."""

_HEAT_STREAM: Final = 4
"""Kind of random stream; those below are in ingest/disturbances.py."""

WEAR_STEP_S: Final = 6 * HOUR_S
"""Speed drifts in steps of this length: short against the drift, and few enough for thousands of GPUs."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A scenario with a seed: the jobs and the disturbances that every policy meets alike."""

    scenario: Scenario
    seed: int
    jobs: Jobs
    view: View
    disturbances: list[tuple[float, int, int, int, float]]
    refusals: dict[int, str]
    traits: "Table | None" = None  # what a predictor sees of the jobs, where policies are told what is predicted
    believed: Believed | None = None  # where policies do not know the speeds


def load_jobs(workload: str, seed: int, count: int | None = None) -> Jobs:
    """Jobs drawn from a shipped workload or a TOML file, in submit order."""
    return generate(find_workload(workload), seed, count)


def draw(scenario: Scenario, seed: int) -> Instance:
    """Draw the jobs and disturbances of a seed, and pack them for the cluster."""
    workload = scenario.workload
    if isinstance(workload, Recorded):
        jobs = jobs_of(workload, seed, scenario.jobs)
    else:
        jobs = generate(workload, seed, scenario.jobs)
    jobs = named_as_in(scenario.cluster, jobs)
    shown = jobs if scenario.speeds == KNOWN_SPEEDS or isinstance(workload, Recorded) else with_signatures(jobs, seed)
    traits = None
    if workload.estimates.source == "predicted":
        jobs, traits = untold(jobs), traits_of(shown)
    view = pack(scenario.plan, jobs, scenario.speed)
    believed = None
    if scenario.speeds != KNOWN_SPEEDS:
        believed = believe(scenario.plan, jobs, view, shown, scenario.speeds)
        if traits is not None:
            traits["family"] = 0  # who does not know the speeds does not know the family either
    disturbances = pack_disturbances(scenario.plan, disturbances_of(scenario, jobs, seed))
    return Instance(scenario, seed, jobs, view, disturbances, refusals(scenario.plan, jobs, view), traits, believed)


def jobs_of(recorded: Recorded, seed: int, most: int | None) -> Jobs:
    """The jobs of a trace, or of the window for this seed, in a table of their own."""
    first, count = 0, recorded.jobs
    if recorded.windows:
        if not 0 <= seed < len(recorded.windows):
            raise UsageError(
                f"there is no window {seed}: '{recorded.name}' has {len(recorded.windows)} windows, counted from 0."
            )
        first, count = recorded.windows[seed].first_job, recorded.windows[seed].jobs
    jobs = cut(recorded.all_jobs, first, count if most is None else min(most, count))
    told = recorded.estimates
    return misjudged(jobs, told.sigma, seed) if told.source == "lognormal" else jobs


def disturbances_of(scenario: Scenario, jobs: Jobs, seed: int) -> list[Disturbance]:
    """All disturbances of the cluster, for longer than any sensible policy needs for these jobs."""
    hazards, nodes = scenario.hazards, scenario.cluster.nodes
    found = list(hazards.listed)
    gpus = {node.name: sum(group.count for group in node.gpus) for node in nodes}
    slow = slow_gpus(gpus, hazards.slow_gpus, seed)
    found += [Disturbance(0.0, "speed", node, gpu, hazards.slow_speed) for node, gpu in sorted(slow)]
    if hazards.mtbf_h is None and not hazards.wear_per_day:
        return found
    at_best_s = float(jobs.table["submit"].max() + jobs.work.sum() / max(1, scenario.cluster.gpu_count))
    until_s = DAY_S + 4 * at_best_s
    if hazards.mtbf_h is not None:
        names = [node.name for node in nodes]
        found += failures(names, hazards.mtbf_h * HOUR_S, hazards.repair_h * HOUR_S, until_s, seed)
    if hazards.wear_per_day:
        for each in wear(gpus, hazards.wear_per_day, WEAR_SPREAD, WEAR_STEP_S, until_s, seed):
            usual = hazards.slow_speed if (each.node, each.gpu) in slow else 1.0
            found.append(each if usual == 1.0 else replace(each, factor=usual * each.factor))
    return sorted(found, key=lambda item: item.time_s)


def heat_of(scenario: Scenario, seed: int) -> Table:
    """The GPUs of the cluster as cold as when idle, each cooled a little better or worse; no rows without heat."""
    room_c = scenario.hazards.room_c
    return NO_HEAT if room_c is None else cold_gpus(scenario.cluster, room_c, seed)


def cold_gpus(cluster: Cluster, room_c: float, seed: int) -> Table:
    """The heat of the GPUs of a cluster, node by node, in a room of this temperature; nobody uses them yet."""
    models = [cluster.models[group.model] for node in cluster.nodes for group in node.gpus for _ in range(group.count)]
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_HEAT_STREAM,))))
    spread = random.lognormal(0.0, HEAT_SPREAD, len(models)).tolist()
    limits = [THROTTLE_C.get(model.vendor.lower(), THROTTLE_C["nvidia"]) for model in models]
    return new_heat([model.tdp_w for model in models], limits, spread, room_c)


def bandwidth_of(instance: Instance) -> Floats:
    """What share of the memory bandwidth of a GPU each kind of job uses on each form; no rows where nobody reads it.

    It is read where paces are measured and jobs share GPUs: on a whole GPU nobody else wants what is left.
    """
    plan, jobs, view = instance.scenario.plan, instance.jobs, instance.view
    if not is_paced(plan) or not (jobs.table["share"] < WHOLE_GPU).any():
        return UNREAD
    used = np.zeros(view.rate.shape)
    kinds, firsts = np.unique(view.jobs["kind"], return_index=True)
    for kind, j in zip(kinds.tolist(), firsts.tolist(), strict=True):
        family, units = jobs.families[jobs.table["family"][j]], gpu_share(view, j)
        for h, form in enumerate(plan.form_records):
            if form.gpus and view.rate[kind, h] > 0.0 and is_family(family):
                model = plan.cluster.models[form.model]
                used[kind, h] = bandwidth_used(family, model, float(view.rate[kind, h]) / units) or 0.0
    return used if instance.believed is None else used[view.jobs["kind"]]


def offered_load(instance: Instance) -> float:
    """GPU-seconds of work at its fastest, over those of the cluster while jobs arrive; inf if all come at once."""
    needed, submit = float(gpu_seconds(instance.jobs, instance.view).sum()), instance.jobs.table["submit"]
    there = instance.scenario.cluster.gpu_count * float(submit[-1] - submit[0])
    return needed / there if there else math.inf


def run_one(scenario: Scenario, policy: Policy, seed: int) -> Run:
    """One policy on one seed, to the end."""
    instance = draw(scenario, seed)
    return play_out(instance, instance.view, policy)


def play_out(instance: Instance, view: View, policy: Policy) -> Run:
    """Run the policy on a fresh view of the instance."""
    scenario, plan, believed = instance.scenario, instance.scenario.plan, instance.believed
    player: Player | None = None
    rate, true_rate = None, view.rate
    if believed is not None:
        view = copied(believed.view)._replace(rate=believed.view.rate.copy(), fastest=believed.view.fastest.copy())
        rate = believed.rate
    if instance.traits is not None:
        player = Predicting.new(instance.traits)
    if player is not None or len(view.shapes):
        view = view._replace(jobs=view.jobs.copy())  # what is told of them, or their sizes, change in each run
    if believed is not None and believed.how == LEARNED_SPEEDS:
        player = learning_player(believed, plan, player)
    try:
        outcome = simulate(
            view, instance.jobs.work, policy, scenario.settings, instance.disturbances, instance.seed, player,
            heat_of(scenario, instance.seed), rate, bandwidth_of(instance),
        )  # fmt: skip
    except (AdlroError, MemoryError):
        raise
    except Exception as error:  # a policy may be anybody's code
        said = (str(error).strip().splitlines() or [""])[0]
        raise PolicyError(f"the policy '{policy.name}' failed: {type(error).__name__}: {said}") from error
    return Run(
        cluster=plan.cluster,
        jobs=instance.jobs,
        events=outcome.events,
        rate=true_rate,
        site_form=_column(plan.sites["form"]),
        site_model=tuple(plan.models[model] for model in plan.sites["model"]),
        site_gpus=_column(plan.sites["gpus"]),
        site_node=_column(plan.sites["node"]),
        policy=policy.name,
        seed=instance.seed,
        unfinished=outcome.unfinished,
        refusals=instance.refusals,
        illegal=outcome.illegal,
        shapes=view.shapes,
        heat=outcome.heat,
    )


def _column(values: Ints) -> Ints:
    """A field of a table as an array of its own."""
    return np.ascontiguousarray(values, np.int32)
