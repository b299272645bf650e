/** What is on the page of a node: its GPUs with telemetry and jobs, what is free, what is wrong with it. */

import { element } from "./dom.js";
import { link } from "./route.js";
import { duration, gpuHours, many, MISSING, moment, number, percent, score, short, title } from "./words.js";
import { HOT, summed } from "./world.js";

/** The page of a node: {key, state, content}. `key` is what it is made of, to see whether that changed. */
export function nodeContent(world, node, used, days) {
  const { snapshot, drifts } = world.state;
  const gpus = world.byNode.get(node.name);
  const jobs = world.running.filter((job) => job.parts.some((part) => part.node === node.name));
  const down = snapshot.down[node.name];
  const isUp = down === undefined;
  const own = drifts.filter((drift) => drift.node === node.name);
  const tiles = tilesFor(node, gpus, takenOf(jobs, node.name), used, days);
  const figures = gpus.map((gpu) => [
    gpu.busy, gpu.heat, gpu.memory, gpu.bandwidth, gpu.power, gpu.clock, gpu.jobs.map((job) => [job.id, job.started_s]),
  ]);
  return {
    key: [tiles, figures, down, own, moment(world.now)],
    state: isUp ? ["running", "up"] : ["failed", "takes no jobs"],
    content: [
      !isUp && element("p", { class: "notice" }, down || "No reason is known."),
      tilesOf(tiles),
      gpus.length > 0 && element("div", { class: "card" },
        element("h3", { class: "card-title" }, "GPUs"),
        element("ol", { class: "gpus" }, gpus.map((gpu) => gpuCard(gpu, world.now)))),
      own.length > 0 && element("div", { class: "card" },
        element("h3", { class: "card-title" }, "Drift"),
        element("ul", { class: "lines" }, own.map((drift) => element("li", {}, driftWords(drift, world.now))))),
    ],
  };
}

function tilesFor(node, gpus, taken, used, days) {
  const { busy, silent } = summed(gpus);
  const inUse = gpus.filter((gpu) => gpu.jobs.length).length;
  const models = node.gpus.map((group) => `${group.count} × ${group.model}`).join(", ");
  const some = silent ? `${many(silent, "GPU")} without telemetry` : "mean of its GPUs";
  return [
    ["GPUs in use", gpus.length ? `${number(inUse)} of ${number(gpus.length)}` : "none", models || "it has no GPUs"],
    ["Utilisation", percent(busy), busy === null ? "no telemetry" : some],
    ["Free cores", number(Math.max(0, node.cpus - taken.cpus)), `of ${number(node.cpus)}`],
    ["Free memory", `${score(Math.max(0, node.memory_gb - taken.memory))} GB`, `of ${score(node.memory_gb)} GB`],
    ["GPU time", used ? gpuHours(used.gpu_s) : MISSING, `in the last ${days} days`],
    ["Link", node.link.kind, `${score(node.link.gb_s)} GB/s between its GPUs`],
  ];
}

/** Figures in a row: [[name, value, note], …]. */
export function tilesOf(rows) {
  return element("dl", { class: "tiles" }, rows.map(([name, value, note]) => element("div", { class: "tile" },
    element("dt", {}, name), element("dd", {}, value), element("dd", { class: "quiet" }, note))));
}

/** Cores and memory that jobs hold on a node: of a job on several nodes the share of its GPUs there. */
function takenOf(jobs, name) {
  const taken = { cpus: 0, memory: 0 };
  for (const job of jobs) {
    const total = job.parts.reduce((sum, part) => sum + part.count, 0);
    const own = job.parts.filter((part) => part.node === name).reduce((sum, part) => sum + part.count, 0);
    const share = total ? own / total : 1 / job.parts.length;
    taken.cpus += job.job.cpus * share;
    taken.memory += job.job.memory_gb * share;
  }
  return taken;
}

function gpuCard(gpu, now) {
  const level = (name, value, isWarm) => {
    const bar = element("span", { class: isWarm ? "bar warm" : "bar" });
    bar.style.width = `${Math.round(Math.min(1, value ?? 0) * 100)}%`;
    return element("div", { class: value === null ? "level silent" : "level" },
      element("span", {}, name), element("span", { class: "value" }, value === null ? "missing" : percent(value)),
      element("span", { class: "track", "aria-hidden": "true" }, bar));
  };
  const who = gpu.jobs.map((job) => element("p", {},
    link("job", job.id, title(job)), " ",
    element("small", { class: "quiet" },
      job.job.user && [link("user", job.job.user, short(job.job.user, 24)), " · "],
      job.started_s === null ? "starting" : duration(now - job.started_s))));
  return element("li", { class: gpu.jobs.length ? "gpu used" : "gpu" },
    element("h4", {}, `GPU ${gpu.index} `, element("small", { class: "quiet" }, gpu.model)),
    who.length ? who : element("p", { class: "quiet" }, gpu.down === null ? "free" : "down"),
    level("Busy", gpu.busy),
    level(gpu.heat !== null && gpu.heat >= HOT ? "Temperature, hot" : "Temperature", gpu.heat, true),
    level("Memory", gpu.memory),
    // Many sources do not send these.
    gpu.bandwidth !== null && level("Memory bandwidth", gpu.bandwidth),
    gpu.power !== null && level("Power, of its TDP", gpu.power),
    gpu.clock !== null && level("Clock, of its highest", gpu.clock));
}

function driftWords({ gpu, family, model, factor, jobs, since_s: since }, now) {
  const what = [gpu === null ? model : `GPU ${gpu}`, family && `for ${family}`].filter(Boolean).join(" ");
  const seen = `seen on ${many(jobs, "job")} since ${moment(since, now)}`;
  return `${what} runs at ${percent(factor)} of the expected speed, ${seen}.`;
}
