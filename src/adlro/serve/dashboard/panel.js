/** The panel at the side: a job and why it is where it is, or a form. Escape closes it, and focus goes back. */

import { ask } from "./api.js";
import { element, find, say } from "./dom.js";
import { asked, away, duration, interval, many, moment, percent, places, score, title } from "./words.js";
import { ENDED } from "./world.js";

/** Make the panel; `closed` is called after it closed. */
export function makePanel(closed) {
  const dialog = find("#panel");
  const body = find("#panel-body");

  function open(heading, ...content) {
    say(find("#panel-title"), heading);
    body.replaceChildren(...content);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    (find("[autofocus]", body) ?? find("#panel-title")).focus();
  }

  find("#close-panel").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // a click beside the panel
  });
  dialog.addEventListener("close", () => closed());
  return { open, close: () => dialog.close(), isOpen: () => dialog.open };
}

/** Show a job in the panel; the function it returns reads it again. */
export function openJob(panel, id, { now, me, changed }) {
  const content = element("div", { "aria-busy": "true" }, element("p", { class: "quiet" }, "Reading …"));
  const actions = element("div", { class: "panel-actions" });
  panel.open(`Job ${id}`, content, actions);
  let before = "";

  async function read() {
    try {
      const path = `jobs/${encodeURIComponent(id)}`;
      const refusal = (error) => ({ refused: error.message }); // of another's job one may see what it is, not why
      const [job, why] = await Promise.all([ask(path), ask(`${path}/why`).catch(refusal)]);
      const text = JSON.stringify([job, why]);
      if (text === before) return;
      before = text;
      say(find("#panel-title"), title(job));
      content.replaceChildren(...jobContent(job, why, now()));
      showActions(actions, job, me(), changed);
    } catch (error) {
      before = "";
      content.replaceChildren(element("p", { class: "notice" }, error.message));
    } finally {
      content.removeAttribute("aria-busy");
    }
  }

  read();
  return read;
}

function jobContent(job, why, now) {
  const lead = element("p", { class: "lead" },
    element("span", { class: `state ${job.state}` }, job.state),
    element("span", { class: "quiet" }, [`#${job.id}`, job.job.user].filter(Boolean).join(" · ")));
  const known = facts(factsOf(job, why, now));
  if (why.refused) return [lead, known, element("p", { class: "answer" }, why.refused)];
  const decision = why.decision ? decided(why.decision) : "";
  if (job.state !== "waiting") return [lead, known, whyHere(job, why), decision];
  const earlier = decision && element("details", {}, element("summary", {}, "Where it was placed before"), decision);
  return [lead, known, whyWaiting(why, now), earlier];
}

/** Names and values; those without a value are left out. */
function facts(rows) {
  return element("dl", { class: "facts" },
    rows.filter(([, value]) => value).map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function factsOf(job, why, now) {
  const asks = job.job;
  const isEnded = ENDED.has(job.state);
  const hasStarted = job.started_s !== null;
  const runtime = why.decision?.runtime_s ?? null;
  const end = hasStarted && !isEnded && runtime !== null ? job.started_s + runtime : null;
  const late = end !== null && end < now ? `${duration(now - end)} longer than expected` : null;
  const wants = [
    asked(job),
    asks.cpus && many(asks.cpus, "core"),
    asks.memory_gb && `${score(asks.memory_gb)} GB`,
    asks.gpu_memory_gb && `${score(asks.gpu_memory_gb)} GB on each GPU`,
  ].filter(Boolean).join(", ");
  const waited = hasStarted && `, after waiting ${duration(job.started_s - asks.submit_s)}`;
  const ran = hasStarted && isEnded ? `, after running ${duration(job.ended_s - job.started_s)}` : "";
  return [
    ["Asks for", wants],
    ["Family", asks.family],
    ["Submitted", `${moment(asks.submit_s, now)}, ${away(asks.submit_s, now)}`],
    ["Time limit", asks.limit_s && duration(asks.limit_s)],
    ["Where", job.parts.length && places(job.parts)],
    ["Started", hasStarted && moment(job.started_s, now) + waited],
    ["Expected end", end !== null && `${moment(end, now)}, ${late ?? away(end, now)}`],
    ["Ended", isEnded && moment(job.ended_s, now) + ran],
    ["Exit code", isEnded && job.exit_code !== null && String(job.exit_code)],
    ["Signal", job.signal && String(job.signal)],
    ["Began", job.starts > 1 && `${job.starts} times`],
    ["The back end says", job.reason],
    ["Placed by", !job.managed && "the cluster itself, not by ADLRO"],
  ];
}

function whyWaiting(why, now) {
  const likely = why.start && why.start.middle_s !== null && `likely ${away(why.start.middle_s, now)}`;
  return element("section", {},
    element("h3", {}, "Why waiting"),
    element("p", { class: "answer" }, why.text),
    element("p", { class: "start" },
      element("span", { class: "quiet" }, "Predicted start"),
      element("strong", {}, interval(why.start, now)),
      likely && element("span", { class: "quiet" }, likely)),
    facts([
      ["Reason", why.dominant],
      ["Rule", why.rule],
      ["Ahead of it", why.ahead !== null && (why.ahead ? many(why.ahead, "job") : "nothing")],
    ]),
    why.places.length > 0 && table("Why not there now", [], why.places.map((place) => [place.model, place.answer])));
}

function whyHere(job, why) {
  return element("section", {},
    element("h3", {}, ENDED.has(job.state) ? "How it ended" : "Why here"),
    element("p", { class: "answer" }, why.text),
    facts([["Rule", why.rule]]));
}

/** A decision: its words, the places that were open as bars, and past jobs like this one. */
function decided(decision) {
  const isSure = decision.low_s !== null && decision.high_s !== null;
  const range = isSure ? ` (${duration(decision.low_s)} to ${duration(decision.high_s)})` : "";
  const runtime = decision.runtime_s === null ? "" : ` Expected to run ${duration(decision.runtime_s)}${range}.`;
  const like = decision.like.map((each) =>
    [each.name || `job ${each.job}`, each.user, duration(each.runtime_s), percent(each.similarity)]);
  return element("section", {},
    element("h3", {}, "The decision"),
    element("p", {}, decision.reason),
    element("p", { class: "quiet" },
      `By ${decision.policy} at ${moment(decision.time_s)}, tick ${decision.tick}.${runtime}`),
    decision.alternatives.length > 0 && alternatives(decision.alternatives),
    like.length > 0 && table("Past jobs like it", ["Job", "User", "Ran", "Alike"], like));
}

/** A small table; from the third column on there are figures. */
function table(caption, heads, rows) {
  const place = (at) => (at > 1 ? "right" : null);
  return element("table", { class: "small" },
    element("caption", {}, caption),
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
  return element("div", { class: "alternatives" },
    element("h4", {}, scores.length ? "Places that were open, by score" : "Places that were open"),
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

/** Cancel, for those who may; asked twice, because it cannot be undone. */
function showActions(holder, job, me, changed) {
  const isTheirs = me?.role === "operator" || (me?.role === "user" && me.name === job.job.user);
  if (!isTheirs || ENDED.has(job.state)) {
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
      button.textContent = "Yes, end it for good";
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
