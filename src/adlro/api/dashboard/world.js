/** What the daemon tells, arranged for the eye: GPUs with who runs on them, pools of one model, jobs by id. */

export const HOT = 0.9; // of the throttle point; from here on a GPU is marked
const HOLDING = new Set(["placed", "running"]);
export const ENDED = new Set(["finished", "failed", "cancelled"]);

const known = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Everything that is shown, from one state. */
export function arrange(state) {
  const { snapshot, telemetry = {} } = state;
  const jobs = new Map(snapshot.jobs.map((job) => [job.id, job]));
  const gpus = [];
  const byNode = new Map();
  const emptyNodes = [];
  for (const node of snapshot.cluster.nodes) {
    const down = snapshot.down[node.name];
    const own = [];
    for (const { model, count } of node.gpus) {
      for (let number = 0; number < count; number++) {
        const figures = telemetry[`${node.name}/${own.length}`];
        own.push({
          node: node.name,
          index: own.length,
          model,
          down: down ?? null,
          busy: known(figures?.utilisation),
          heat: known(figures?.temperature),
          memory: known(figures?.memory),
          bandwidth: known(figures?.bandwidth),
          power: known(figures?.power),
          clock: known(figures?.sm_clock),
          jobs: [],
        });
      }
    }
    if (!own.length) emptyNodes.push(node);
    byNode.set(node.name, own);
    for (const gpu of own) gpus.push(gpu);
  }
  for (const job of snapshot.jobs) if (HOLDING.has(job.state)) seat(job, byNode);
  return {
    state,
    now: snapshot.time_s,
    jobs,
    gpus,
    byNode,
    emptyNodes,
    pools: pooled(gpus),
    waiting: snapshot.jobs.filter((job) => job.state === "waiting"),
    running: snapshot.jobs.filter((job) => HOLDING.has(job.state)),
  };
}

/** Put a job on its GPUs. Where the cluster does not say which of a node's GPUs, the first with room stand for them. */
function seat(job, byNode) {
  for (const part of job.parts) {
    const own = byNode.get(part.node) ?? [];
    const named = (part.indices ?? []).map((index) => own[index]).filter(Boolean);
    if (named.length) {
      for (const gpu of named) gpu.jobs.push(job);
      continue;
    }
    const share = job.job.share ?? 1000;
    const room = (gpu) => 1000 - gpu.jobs.reduce((sum, other) => sum + (other.job.share ?? 1000), 0) >= share;
    for (const gpu of own.filter((each) => each.model === part.model && room(each)).slice(0, part.count)) {
      gpu.jobs.push(job);
      gpu.guessed = true;
    }
  }
}

/** GPUs of one model, in the order in which the models first appear. */
function pooled(gpus) {
  const pools = new Map();
  for (const gpu of gpus) {
    if (!pools.has(gpu.model)) pools.set(gpu.model, { model: gpu.model, gpus: [], nodes: [] });
    const pool = pools.get(gpu.model);
    pool.gpus.push(gpu);
    const last = pool.nodes.at(-1);
    if (last?.name === gpu.node) last.gpus.push(gpu);
    else pool.nodes.push({ name: gpu.node, down: gpu.down, gpus: [gpu] });
  }
  for (const pool of pools.values()) Object.assign(pool, summed(pool.gpus));
  return [...pools.values()];
}

/** The figures of some GPUs together. A missing figure is left out of a mean, never counted as 0. */
export function summed(gpus) {
  const up = gpus.filter((gpu) => gpu.down === null);
  const busy = up.map((gpu) => gpu.busy).filter((value) => value !== null);
  const heat = up.map((gpu) => gpu.heat).filter((value) => value !== null);
  return {
    total: gpus.length,
    up: up.length,
    used: up.filter((gpu) => gpu.jobs.length).length,
    silent: up.filter((gpu) => gpu.busy === null).length,
    busy: busy.length ? busy.reduce((sum, value) => sum + value, 0) / busy.length : null,
    hottest: heat.length ? heat.reduce((a, b) => Math.max(a, b)) : null,
  };
}

/** When a job that runs is expected to end: as predicted, but not after its limit. null: nobody knows. */
export function expectedEnd(job, runtime) {
  const longest = job.job.limit_s ?? Infinity;
  if (job.started_s === null || runtime === null || runtime === undefined) return null;
  return job.started_s + Math.min(runtime, longest);
}

/** The models of a cluster that have GPUs. */
export const models = (world) => world.pools.map((pool) => pool.model);
