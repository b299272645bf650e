/** At a glance, who decides, what is wrong: tiles, guard, policy, alarms, drift, the latest decisions. */

import { ask } from "./api.js";
import { element, find, keep, say } from "./dom.js";
import { link } from "./route.js";
import { away, duration, many, MISSING, mode, moment, number, percent, places, short, title } from "./words.js";
import { summed } from "./world.js";

const FEW = 4; // alarms shown before one asks for more
const LATEST = 20; // decisions in the list; as many as there is room for are seen without scrolling
const NONE = [null]; // stands for an empty list, so that it has a line that says so

/** Show the figures at the top. */
export function showTiles(world) {
  const { state } = world;
  const { tick, counts = {} } = state;
  const sum = summed(world.gpus);
  const last = state.history.findLast((each) => each.jct_s !== null);
  const down = sum.total - sum.up;
  const busyNote = sum.silent ? `${number(sum.silent)} without telemetry` : "of the GPUs that are up";
  const running = (counts.running ?? 0) + (counts.placed ?? 0);
  const took = tick && `${moment(tick.time_s, tick.time_s, true)}, took ${duration(tick.seconds)}`;
  const tiles = [
    ["GPUs in use", number(sum.used), `of ${number(sum.up)} that are up${down ? `, ${number(down)} down` : ""}`],
    ["Mean utilisation", percent(sum.busy), sum.busy === null ? "no telemetry" : busyNote],
    ["Running", number(mode.isShadow ? counts.running ?? 0 : running), placedNote(counts.placed)],
    ["Waiting", number(counts.waiting ?? 0), nextStart(world)],
    ["Time in the system", duration(last?.jct_s), against(last, state.fallback)],
    ["Latest turn", tick ? `#${number(tick.number)}` : MISSING, took ?? "none yet"],
  ];
  const make = ([name]) =>
    element("div", { class: "tile" }, element("dt", {}, name), element("dd"), element("dd", { class: "quiet" }));
  keep(find("#tiles"), tiles, ([name]) => name, make, (tile, [, value, note]) => {
    say(tile.children[1], value);
    say(tile.children[2], note);
  });
}

function placedNote(placed) {
  if (!placed) return "";
  return mode.isShadow ? `ADLRO would run ${number(placed)} more` : `${number(placed)} about to start`;
}

function nextStart(world) {
  if (!world.waiting.length) return "the queue is empty";
  const middles = Object.values(world.state.starts).map((start) => start.middle_s).filter((time) => time !== null);
  if (!middles.length) return "no start predicted";
  const first = middles.reduce((a, b) => Math.min(a, b));
  const when = first <= world.now ? "any moment now" : away(first, world.now);
  return mode.isShadow ? `next would start ${when}` : `next ${when}`;
}

function against(compared, fallback) {
  if (!compared?.fallback_jct_s) return "nothing to compare with yet";
  const share = Math.round((1 - compared.jct_s / compared.fallback_jct_s) * 100);
  if (share === 0) return `as ${fallback} is predicted`;
  return `${Math.abs(share)} % ${share > 0 ? "shorter" : "longer"} than ${fallback}`;
}

/** Show who decides, alarms, drift and decisions. */
export function makeDeciding() {
  let world = null;
  let isAll = false;

  function show(next) {
    world = next;
    showGuard(world.state);
    showAlarms();
    showDrifts(world);
  }

  function showAlarms() {
    const latest = grouped(world.state.alarms);
    const shown = isAll ? latest : latest.slice(0, FEW);
    keep(find("#alarms"), shown.length ? shown : NONE, (alarm) => alarm?.key ?? "none", makeAlarm, (row, alarm) => {
      if (!alarm) return;
      const again = alarm.times > 1 ? `${number(alarm.times)} times, last ` : "";
      say(find("time", row), again + moment(alarm.time_s, world.now));
    });
    const more = find("#more-alarms");
    more.hidden = latest.length <= FEW;
    say(more, isAll ? "Show fewer" : `Show all ${number(latest.length)}`);
  }

  function makeAlarm(alarm) {
    if (!alarm) return element("li", { class: "empty" }, "No alarms.");
    return element("li", {},
      element("span", { class: "kind" }, alarm.kind), element("time", { class: "quiet" }),
      element("p", {}, alarm.text,
        alarm.job && [" ", link("job", alarm.job, "Open the job")],
        alarm.node && [" ", link("node", alarm.node, "Open the node")]));
  }

  function showDecisions(decisions) {
    const shown = decisions.slice(0, LATEST);
    keep(find("#decisions"), shown.length ? shown : NONE, (decision) => decision?.id ?? "none", makeDecision,
      (row, decision) => {
        const job = decision && world.jobs.get(decision.job);
        if (job) say(find("a", row), short(title(job), 40));
      });
  }

  function makeDecision(decision) {
    if (!decision) return element("li", { class: "empty" }, "Nothing was decided yet.");
    const verb = mode.isShadow ? "would start: " : "";
    const what = decision.verb === "start" ? verb + places(decision.parts) : "stopped, so that it waits again";
    const by = decision.policy === world.state.policy ? "" : ` · by ${decision.policy}`;
    return element("li", {},
      element("time", { class: "quiet" }, moment(decision.time_s, world.now)),
      element("p", {}, link("job", decision.job, `job ${decision.job}`, { class: "job" }),
        element("small", { class: "quiet" }, what + by)));
  }

  find("#more-alarms").addEventListener("click", () => {
    isAll = !isAll;
    showAlarms();
  });
  return { show, showDecisions };
}

/** Alarms, the latest first; the same words again are one with a count. */
function grouped(alarms) {
  const groups = new Map();
  for (const alarm of [...alarms].reverse()) {
    const key = `${alarm.kind} ${alarm.job} ${alarm.text}`;
    if (groups.has(key)) groups.get(key).times += 1;
    else groups.set(key, { ...alarm, key, times: 1 });
  }
  return [...groups.values()];
}

function showGuard(state) {
  const leads = mode.isShadow ? "shadow" : state.is_guarded ? "guarded" : "decides";
  const kind = state.is_leader ? leads : "follows";
  const reason = state.alarms.findLast((alarm) => alarm.kind !== "drift" && alarm.kind !== "down")?.text ?? "";
  const words = {
    decides: `The fallback is ${state.fallback}; the guard is not active.`,
    guarded: `The guard is active: the fallback decides instead of ${state.policy}. ${reason}`,
    shadow: "Shadow mode: Slurm schedules this cluster. ADLRO changes nothing; it shows what it would do.",
    follows: "Another daemon schedules this cluster. This one watches.",
  }[kind];
  const who = state.is_guarded ? state.fallback : state.policy;
  const holder = find("#guard");
  const text = [kind, who, words].join("\n");
  if (holder.dataset.text === text) return; // it is a live region: say it once
  holder.dataset.text = text;
  holder.dataset.kind = kind;
  const mark = { decides: "●", guarded: "▲", follows: "○", shadow: "○" }[kind];
  const verb = kind === "shadow" ? " would decide" : " decides";
  holder.replaceChildren(
    element("p", { class: "decider" }, element("span", { class: "mark", "aria-hidden": "true" }, mark),
      element("span", {}, kind === "follows" ? "Watching" : [element("strong", {}, who), verb])),
    element("p", { class: "quiet" }, words));
}

function showDrifts(world) {
  const { drifts } = world.state;
  const key = (drift) => (drift ? [drift.model, drift.node, drift.gpu, drift.family].join(" ") : "none");
  keep(find("#drifts"), drifts.length ? drifts : NONE, key, makeDrift, (row, drift) => {
    if (!drift) return;
    find(".bar", row).style.width = `${Math.min(100, drift.factor * 100)}%`;
    const seen = `seen on ${many(drift.jobs, "job")} since ${moment(drift.since_s, world.now)}`;
    say(find("small", row), `${percent(drift.factor)} of the expected speed, ${seen}`);
  });
}

function makeDrift(drift) {
  if (!drift) return element("li", { class: "empty" }, "Every GPU runs as fast as expected.");
  const where = [
    drift.model,
    drift.node && ["on ", link("node", drift.node)],
    drift.gpu !== null && `GPU ${drift.gpu}`,
    drift.family && `for ${drift.family}`,
  ].filter(Boolean).flatMap((part) => [part, " "]);
  return element("li", {},
    element("p", {}, where),
    element("span", { class: "track", "aria-hidden": "true" }, element("span", { class: "bar" })),
    element("small", { class: "quiet" }));
}

/** The policy switch, for operators. */
export function makePolicies(changed) {
  const form = find("#policy-form");
  const select = find("#policy");
  let names = [];

  async function read(me) {
    const answer = await ask("policies");
    names = answer.policies.map((policy) => policy.name);
    form.hidden = me?.role !== "operator";
    if (document.activeElement === select) return; // someone is choosing
    select.replaceChildren(...answer.policies.map(({ name, summary }) =>
      element("option", { value: name, title: summary, selected: name === answer.current }, name)));
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const said = find("#policy-said");
    try {
      await ask("policies/current", { method: "PUT", body: { name: select.value } });
      say(said, `${select.value} decides from the next turn on.`);
      changed();
    } catch (error) {
      say(said, error.message);
    }
  });
  return { read, names: () => names };
}
