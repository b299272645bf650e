/** A job in words: what it is, why it waits or runs where it does, what was decided about it. */

import { ask } from "./api.js";
import { element, say } from "./dom.js";
import { link } from "./route.js";
import {
  asked, away, duration, many, mode, moment, percent, places, score, short, startHead, startWords, stateWord, title,
} from "./words.js";
import { ENDED, expectedEnd } from "./world.js";

export const jobTitle = (job) => short(title(job), 100);

/** A job, and why it is where it is; of another's job only {refused}. */
export function readJob(id) {
  const path = `jobs/${encodeURIComponent(id)}`;
  const refusal = (error) => ({ refused: error.message });
  return Promise.all([ask(path), ask(`${path}/why`).catch(refusal)]);
}

/** Why a job is where it is: the sentence first, figures and scores behind a click. */
export function jobContent(job, why, now) {
  const answer = why.refused ? [element("p", { class: "answer" }, why.refused)] : answerTo(job, why, now);
  return [leadOf(job), ...answer];
}

/** What a job asks for, when it came, where it runs. */
export const jobFacts = (job, why, now) => facts(factsOf(job, why, now));

function answerTo(job, why, now) {
  if (job.state === "waiting") {
    const before = why.decision && element("details", {},
      element("summary", {}, "Where it was placed before"), decided(why.decision, now));
    return [whyWaiting(why, now), before ?? ""];
  }
  const isSaid = why.decision && why.text.includes(why.decision.reason);
  return [whyHere(job, why), why.decision ? decided(why.decision, now, "The decision", isSaid) : ""];
}

/** State, number, and whose it is. */
function leadOf(job) {
  return element("p", { class: "lead" },
    element("span", { class: `state ${job.state}` }, stateWord(job)),
    element("span", { class: "quiet" }, `#${job.id}`),
    job.job.user && job.job.user !== job.partition && link("user", job.job.user),
    job.partition && link("partition", job.partition));
}

/** Names and values; those without a value are left out. */
export function facts(rows) {
  return element("dl", { class: "facts" },
    rows.filter(([, value]) => value).map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** Properties of a job that have words of their own, here or in the queue. Others are shown by their names. */
const TOLD_ELSEWHERE = new Set([
  "family", "work", "submit_s", "gpus", "share", "cpus", "memory_gb", "gpu_memory_gb", "models", "priority", "user",
  "name", "limit_s", "estimate", "checkpoint",
]);

function factsOf(job, why, now) {
  const asks = job.job;
  const isEnded = ENDED.has(job.state);
  const hasStarted = job.started_s !== null;
  const end = isEnded ? null : expectedEnd(job, why.decision?.runtime_s);
  const late = end !== null && end < now ? `${duration(now - end)} longer than expected` : null;
  const wants = [
    asked(job),
    asks.cpus && many(asks.cpus, "core"),
    asks.memory_gb && `${score(asks.memory_gb)} GB`,
    asks.gpu_memory_gb && `${score(asks.gpu_memory_gb)} GB on each GPU`,
    ...Object.entries(asks).filter(([name, value]) => value && !TOLD_ELSEWHERE.has(name))
      .map(([name, value]) => `${name} ${typeof value === "number" ? score(value) : value}`),
  ].filter(Boolean).join(", ");
  const waited = hasStarted && `, after waiting ${duration(job.started_s - asks.submit_s)}`;
  const ran = hasStarted && isEnded ? `, after running ${duration(job.ended_s - job.started_s)}` : "";
  return [
    ["Name", [...title(job)].length > 100 && title(job)],
    ["Asks for", wants],
    ["Family", asks.family],
    ["Submitted", `${moment(asks.submit_s, now)}, ${away(asks.submit_s, now)}`],
    ["Time limit", asks.limit_s && duration(asks.limit_s)],
    [mode.isShadow && job.state === "placed" ? "Would run" : "Where", job.parts.length && placeLinks(job.parts)],
    ["Started", hasStarted && moment(job.started_s, now) + waited],
    ["Expected end", end !== null && `${moment(end, now)}, ${late ?? away(end, now)}`],
    ["Ended", isEnded && moment(job.ended_s, now) + ran],
    ["Exit code", isEnded && job.exit_code !== null && String(job.exit_code)],
    ["Signal", job.signal && String(job.signal)],
    ["Began", job.starts > 1 && `${job.starts} times`],
    ["The back end says", job.reason],
    ["Placed by", !job.managed && !job.setback && "the cluster itself, not by ADLRO"],
  ];
}

/** Where parts are, with a link to each node; of many nodes the first. */
export function placeLinks(parts, most = 12) {
  if (!parts.length) return [];
  const shown = parts.slice(0, most);
  const rest = parts.length - shown.length;
  const amount = (part) => (part.count ? `${part.count} × ${part.model} on ` : "no GPU, on ");
  const isUniform = parts.length > 3 && parts.every((part) => part.model === parts[0].model);
  if (isUniform) {
    const total = parts.reduce((sum, part) => sum + part.count, 0);
    return [`${total} × ${parts[0].model} on `, listed(shown.map((part) => link("node", part.node))), more(rest)];
  }
  return [listed(shown.map((part) => [amount(part), link("node", part.node)])), more(rest)];
}

const listed = (items) => items.flatMap((item, at) => (at ? [", ", item] : [item]));
const more = (rest) => (rest > 0 ? ` and ${many(rest, "node")} more` : "");

function whyWaiting(why, now) {
  const [when, likely] = startWords(why.start, now);
  return element("section", {},
    element("h3", {}, "Why waiting"),
    element("p", { class: "answer" }, why.text),
    element("p", { class: "start" },
      element("span", { class: "quiet" }, startHead()),
      element("strong", {}, when),
      likely && element("span", { class: "quiet" }, likely)),
    why.ahead !== null && element("p", { class: "quiet" },
      why.ahead ? `${many(why.ahead, "job")} ${why.ahead === 1 ? "is" : "are"} expected to start before it.`
        : "No job is expected to start before it."),
    why.places.length > 0 && table("Why it does not start there now", [], why.places.map((place) => [place.model, place.answer])),
    ruleOf(why));
}

function whyHere(job, why) {
  return element("section", {},
    element("h3", {}, ENDED.has(job.state) ? "How it ended" : "Why here"),
    element("p", { class: "answer" }, why.text),
    ruleOf(why));
}

const ruleOf = (why) => why.rule && element("details", {},
  element("summary", {}, "The rule behind it"),
  facts([["Reason", why.dominant], ["Rule", why.rule]]));

/** What is believed of a job's speed on each GPU model, and the past jobs behind it. */
export function speedsOf({ reference, speeds, because }) {
  const rows = Object.entries(speeds).sort(([, a], [, b]) => b.value - a.value).map(([model, speed]) => {
    const isFastest = model === reference;
    const hasRange = !isFastest && speed.source === "learned";
    const range = hasRange && element("small", { class: "quiet" }, `${amount(speed.low)} to ${amount(speed.high)}`);
    return [model, [amount(speed.value), " ", range], isFastest ? "the fastest" : surely(speed), learntFrom(speed)];
  });
  const past = because.map((each) => [
    each.name || each.user ? link("job", each.job, each.name || `job ${each.job}`) : `job ${each.job}`,
    each.model, percent(each.share), each.parts.join(", ")]);
  return [
    table("", ["GPU model", "Speed", "How sure", "Learnt from"], rows),
    element("p", { class: "quiet" }, "Against the fastest model; the range holds it in eight of ten cases."),
    past.length > 0 && element("details", { class: "reasons" },
      element("summary", {}, "The past jobs that it rests on most"),
      table("", ["Job", "Ran on", "Weight", "In common"], past)),
  ].filter(Boolean);
}

const amount = (value) => value.toFixed(2);

/** How narrow the interval is. */
function surely({ low, high, source }) {
  if (source !== "learned") return source;
  const factor = Math.sqrt(high / low);
  return factor < 1.2 ? "sure" : factor < 1.6 ? "fairly sure" : "a guess";
}

function learntFrom({ jobs, source }) {
  if (source === "measured") return "the table";
  if (source !== "learned" || !jobs) return "the datasheet";
  return `${many(jobs, "job")} there`;
}

/** A decision: its words, unless they are said already, what it expects, past jobs like it; scores behind a click. */
export function decided(decision, now, heading = "The decision", isSaid = false) {
  const isSure = decision.low_s !== null && decision.high_s !== null;
  const range = isSure ? ` (${duration(decision.low_s)} to ${duration(decision.high_s)})` : "";
  const runtime = decision.runtime_s === null ? "" : ` Expected to run ${duration(decision.runtime_s)}${range}.`;
  const like = decision.like.map((each) => [
    each.name || each.user ? link("job", each.job, each.name || `job ${each.job}`) : `job ${each.job}`,
    each.user && link("user", each.user), duration(each.runtime_s), percent(each.similarity)]);
  return element("section", {},
    heading && element("h3", {}, heading),
    decision.reason && !isSaid && element("p", {}, decision.reason),
    element("p", { class: "quiet" },
      `By ${decision.policy} at ${moment(decision.time_s, now)}, turn ${decision.tick}.${runtime}`),
    decision.alternatives.length > 0 && alternatives(decision.alternatives),
    like.length > 0 && table("Similar past jobs", ["Job", "User", "Ran", "Similarity"], like));
}

/** A small table; from the third column on there are figures. */
export function table(caption, heads, rows) {
  const place = (at) => (at > 1 ? "right" : null);
  return element("table", { class: "small" },
    caption && element("caption", {}, caption),
    heads.length > 0 && element("thead", {}, element("tr", {},
      heads.map((name, at) => element("th", { scope: "col", class: place(at) }, name)))),
    element("tbody", {}, rows.map((row) => element("tr", {},
      row.map((value, at) => element(at ? "td" : "th", { scope: at ? null : "row", class: place(at) }, value))))));
}

/** The places that were open, the best first. A bar's length is the score between the worst and the best. */
function alternatives(given) {
  const scores = given.map((each) => each.score).filter((value) => value !== null);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const length = (value) => (value === null ? 0 : high === low ? 1 : 0.06 + 0.94 * ((value - low) / (high - low)));
  const ordered = [...given].sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity));
  const all = `The ${many(given.length, "place")} that were open`;
  const name = given.length === 1 ? "The only place that was open" : all;
  return element("details", { class: "alternatives" },
    element("summary", {}, scores.length ? `${name}, with scores` : name),
    element("ol", {}, ordered.map((each) => {
      const bar = element("span", { class: "bar" });
      bar.style.width = `${Math.round(length(each.score) * 100)}%`;
      return element("li", { class: each.chosen ? "chosen" : null },
        element("span", { class: "place" },
          each.chosen && element("span", { class: "tick" }, "✓ chosen "), places(each.parts)),
        element("span", { class: "value" }, each.score === null ? "no score" : score(each.score)),
        scores.length > 0 && element("span", { class: "track", "aria-hidden": "true" }, bar),
        element("small", { class: "quiet" }, `would run ${duration(each.runtime_s)}`));
    })));
}

export const isTheirs = (job, me) =>
  me?.role === "operator" || (me?.role === "user" && Boolean(job.job.user) && me.name === job.job.user);

/** Cancel, for those who may; asked twice, because it cannot be undone. */
export function jobActions(holder, job, me, changed) {
  if (!isTheirs(job, me) || ENDED.has(job.state)) {
    holder.replaceChildren();
    return;
  }
  if (holder.childElementCount) return;
  const said = element("p", { class: "said", role: "status" });
  const button = element("button", { type: "button", class: "danger" }, "Cancel this job");
  let isSure = false;
  button.addEventListener("click", async () => {
    if (!isSure) {
      isSure = true;
      button.textContent = "Yes, cancel it";
      return;
    }
    button.disabled = true;
    try {
      await ask(`jobs/${encodeURIComponent(job.id)}`, { method: "DELETE" });
      say(said, "It is being cancelled.");
      changed();
    } catch (error) {
      say(said, error.message);
      button.disabled = false;
    }
  });
  button.addEventListener("blur", () => {
    isSure = false;
    if (!button.disabled) button.textContent = "Cancel this job";
  });
  holder.replaceChildren(button, said);
}
