/** The pages of one job, node, user or partition. */

import { ask } from "./api.js";
import { drawColumns } from "./chart.js";
import { element, find, say } from "./dom.js";
import { decided, isTheirs, jobActions, jobContent, jobFacts, jobTitle, placeLinks, readJob, speedsOf } from "./job.js";
import { nodeContent, tilesOf } from "./node.js";
import { address, link } from "./route.js";
import {
  brief, bytes, capital, duration, fullDate, gpuHours, many, MISSING, mode, moment, number, score, short, title,
} from "./words.js";

const DAYS = 28; // of usage
const PAST = 15; // jobs of the past at a time
const SHOWN_BYTES = 64 * 1024; // of each output
const HEADS = { job: "Job", node: "Node", user: "User" };
const headOf = (kind) => (kind === "partition" ? capital(mode.partition) : HEADS[kind] ?? "");
const CARDS = ["#jobs-card", "#past"]; // beside the page itself

/** Make the pages. `world` gives what is known now, `me` who asks, `changed` reads all again. */
export function makePages({ world, me, changed }) {
  const holder = find("#page");
  let route = { kind: "overview", name: "" };
  let shown = ""; // what is shown, as text: the page is built again only if that changes
  let past = null; // jobs of the past: {jobs, next}
  let pastAt = 0;

  /** Go to a page. */
  function open(next) {
    route = next;
    [shown, past, pastAt] = ["", null, 0];
    const kind = headOf(route.kind);
    entitle();
    holder.replaceChildren();
    find("#past-body").replaceChildren();
    find("#usage-chart").replaceChildren();
    find("#wait-chart").replaceChildren();
    if (kind) holder.append(crumbs(kind, route.name), element("p", { class: "quiet" }, "Reading …"));
  }

  function entitle() {
    const kind = headOf(route.kind);
    document.title = kind ? `${kind} ${short(route.name, 60)} · ADLRO` : "ADLRO";
  }

  /** Read the page again. */
  async function refresh() {
    const mine = route;
    const makers = { job: showJob, node: showNode, user: showWhose, partition: showWhose };
    const make = makers[route.kind];
    if (!make || !world()) return;
    try {
      await make(mine);
    } catch (error) {
      if (mine !== route) return;
      if (error.status === 401 || error.status === 0) throw error;
      const unknown = "There is no such job. It may have ended before the oldest job in the store.";
      missing(mine, mine.kind === "job" && error.status === 404 ? unknown : error.message);
    }
  }

  /** Put content on the page, unless it is there already. */
  function put(mine, key, ...content) {
    if (mine !== route) return false;
    const text = JSON.stringify(key);
    if (text === shown) return false;
    shown = text;
    entitle();
    const there = content.filter(Boolean);
    for (const card of CARDS.map((each) => find(each))) card.hidden = !card.dataset.in.split(" ").includes(mine.kind);
    keepOpen(holder, () => holder.replaceChildren(crumbs(headOf(mine.kind), mine.name), ...there));
    return true;
  }

  function missing(mine, words) {
    const lines = [
      element("h2", {}, `${headOf(mine.kind)} ${short(mine.name, 80)}`),
      element("p", { class: "notice" }, words),
      element("p", {}, element("a", { href: address() }, "Go to the overview")),
    ];
    put(mine, ["missing", words], element("div", { class: "card missing" }, lines));
    for (const card of CARDS) find(card).hidden = true;
  }

  // ---- a job ----

  async function showJob(mine) {
    const none = () => ({ decisions: [] });
    const [[job, why], made, believed] = await Promise.all([
      readJob(mine.name), ask("decisions", { asked: { job: mine.name, limit: 20 } }).catch(none),
      ask(`jobs/${encodeURIComponent(mine.name)}/speeds`).catch(() => ({ speeds: {} }))]);
    if (mine !== route) return;
    const { now } = world();
    if (put(mine, "job", jobPage())) showOutput(mine, job); // made once: what is in use stays as it is
    say(find(".page-title", holder), jobTitle(job));
    document.title = `${jobTitle(job)} · job ${job.id} · ADLRO`;
    fresh(".job-content", [job, why, moment(now)], () => jobContent(job, why, now));
    fresh(".job-facts", [job, why.decision, moment(now)], () => [jobFacts(job, why, now)]);
    const earlier = made.decisions.filter((decision) => decision.id !== why.decision?.id);
    fresh(".job-decisions", [made, why.decision?.id], () => [decisionsOf(made.decisions, earlier, now)]);
    find(".job-speeds", holder).parentElement.hidden = !Object.keys(believed.speeds).length;
    fresh(".job-speeds", believed, () => (Object.keys(believed.speeds).length ? speedsOf(believed) : []));
    jobActions(find(".panel-actions", holder), job, me(), changed);
  }

  function jobPage() {
    return element("div", { class: "job-page" },
      element("div", { class: "card" },
        element("h2", { class: "page-title" }), element("div", { class: "job-content" }),
        element("div", { class: "panel-actions" })),
      element("div", { class: "column" },
        element("div", { class: "card" },
          element("h3", { class: "card-title" }, "About it"), element("div", { class: "job-facts" })),
        element("div", { class: "card", hidden: true },
          element("h3", { class: "card-title" }, "Speed by GPU model"), element("div", { class: "job-speeds" })),
        element("div", { class: "card" },
          element("h3", { class: "card-title" }, "Decisions about it"), element("div", { class: "job-decisions" })),
        element("div", { class: "card output" })));
  }

  /** Fill a part of the page again if what it is made of changed; what was unfolded stays so. */
  function fresh(selector, key, make) {
    const part = find(selector, holder);
    const text = JSON.stringify(key);
    if (part.dataset.text === text) return;
    part.dataset.text = text;
    keepOpen(part, () => part.replaceChildren(...make()));
  }

  function decisionsOf(all, earlier, now) {
    if (!all.length) return element("p", { class: "empty" }, "ADLRO has decided nothing about it.");
    return element("ol", { class: "decisions" }, all.map((decision) => element("li", {},
      element("time", { class: "quiet" }, moment(decision.time_s, now)),
      element("div", {},
        element("p", {}, decision.verb === "start" ? ["Start: ", placeLinks(decision.parts)] : "Stop, to wait again"),
        earlier.includes(decision)
          && element("details", {}, element("summary", {}, "Why"), decided(decision, now, ""))))));
  }

  /** What the job wrote, for those who may read it. */
  function showOutput(mine, job, output = null) {
    const card = find(".output", holder);
    card.hidden = world().state.backend !== "local" || !isTheirs(job, me()); // no other back end keeps output
    const button = element("button", { type: "button" }, output === null ? "Show" : "Refresh");
    button.addEventListener("click", async () => {
      button.disabled = true;
      const refusal = (error) => ({ refused: error.message });
      const found = await ask(`jobs/${encodeURIComponent(job.id)}/output`).catch(refusal);
      if (mine !== route) return;
      showOutput(mine, job, found);
      find("button", card).focus();
    });
    card.replaceChildren(
      element("div", { class: "head" }, element("h3", { class: "card-title" }, "Output"), button),
      ...outputParts(output).flat());
  }

  // ---- a node ----

  async function showNode(mine) {
    const here = world();
    const node = here.state.snapshot.cluster.nodes.find((each) => each.name === mine.name);
    const used = await readPast(mine, { node: mine.name });
    if (!node) {
      const before = used?.jobs ? ` ${many(used.jobs, "job")} ran on it in the last ${DAYS} days.` : "";
      return missing(mine, `There is no node of this name in the cluster.${before}`);
    }
    const { key, state, content } = nodeContent(here, node, used, DAYS);
    put(mine, key, pageHead(mine.name, state), ...content);
    showUsage(used);
  }

  // ---- a user or a partition ----

  async function showWhose(mine) {
    const { kind, name } = mine;
    const who = me();
    if (kind === "user" && who && who.sees !== "all" && who.name !== name) {
      return missing(mine, "You see your own jobs only. An operator sees those of all users.");
    }
    const count = (state) => ask("jobs", { asked: { [kind]: name, state, limit: 1 } });
    const [waiting, running, used] = await Promise.all([
      count(["waiting"]), count(["placed", "running"]), readPast(mine, { [kind]: name })]);
    if (!waiting.total && !running.total && !used.jobs && !past?.jobs.length) {
      return missing(mine, `No job of a ${kind === "partition" ? mode.partition : kind} of this name is known, neither now nor in the last ${DAYS} days.`);
    }
    const here = world();
    const own = here.running.filter((job) => (kind === "user" ? job.job.user : job.partition) === name);
    const held = (job) => (job.parts.reduce((sum, part) => sum + part.count, 0) * job.job.share) / 1000;
    const gpus = own.reduce((sum, job) => sum + held(job), 0);
    const longest = used.waited_p90_s === null ? "median" : `median; one in ten over ${duration(used.waited_p90_s)}`;
    const tiles = [
      ["Running", number(running.total), `on ${many(gpus, "GPU")}`],
      ["Waiting", number(waiting.total), ""],
      ["GPU time", gpuHours(used.gpu_s), `in the last ${DAYS} days`],
      ["Ended", number(used.jobs), used.failed ? `${number(used.failed)} of them failed` : `in the last ${DAYS} days`],
      ["Waited", duration(used.waited_median_s), longest],
      ["Ran", duration(used.ran_s), "mean"],
    ];
    put(mine, tiles, pageHead(name), tilesOf(tiles));
    showUsage(used);
  }

  // ---- the past ----

  /** Usage and the latest jobs that ended; read again now and then. */
  async function readPast(mine, wanted) {
    if (past && performance.now() - pastAt < 30_000) return past.used;
    const [used, list] = await Promise.all([
      ask("usage", { asked: { ...wanted, days: DAYS, steps: DAYS } }),
      ask("past", { asked: { ...wanted, limit: PAST } })]);
    if (mine !== route) return used;
    const older = past?.isLonger ? past : { ...list, isLonger: false };
    past = { ...older, used, wanted };
    pastAt = performance.now();
    showPast(mine);
    return used;
  }

  function showPast(mine) {
    const { now } = world();
    const heads = [["Job", ""], ["User", "wide-only"], ["How it ended", ""], ["Ran for", "right"], ["Ended", "right"]];
    const rows = past.jobs.map((job) => {
      const code = job.signal ? `, signal ${job.signal}` : job.exit_code ? `, exit code ${job.exit_code}` : "";
      return [
        [link("job", job.id, title(job), { class: "job" }), element("small", { class: "quiet" }, `#${job.id}`)],
        job.job.user ? link("user", job.job.user, short(job.job.user, 24)) : MISSING,
        job.state + code,
        job.started_s === null ? "never ran" : duration(job.ended_s - job.started_s),
        moment(job.ended_s, now),
      ];
    });
    const cell = (tag) => (content, at) => element(tag, { class: heads[at][1] || null }, content);
    const button = element("button", { type: "button" }, "Show earlier ones");
    button.addEventListener("click", async () => {
      button.disabled = true;
      const next = await ask("past", { asked: { ...past.wanted, before: past.next, limit: 50 } }).catch(() => null);
      if (!next || mine !== route) return;
      past = { ...past, jobs: [...past.jobs, ...next.jobs], next: next.next, isLonger: true };
      showPast(mine);
    });
    find("#past-body").replaceChildren(
      rows.length ? element("table", { class: "list" },
        element("thead", {}, element("tr", {}, heads.map(([name], at) => cell("th")(name, at)))),
        element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell("td"))))))
        : element("p", { class: "empty" }, "No ended jobs are stored."),
      past.next === null ? "" : button);
  }

  function showUsage(used) {
    if (!used) return;
    const points = (key) => used.spent.map((each) => [each.time_s, each[key]]);
    const hours = (seconds) => (seconds === null ? MISSING : score(seconds / 3600));
    drawColumns(find("#usage-chart"), points("gpu_s"), {
      until: used.until_s, written: gpuHours, axis: hours, name: "used", empty: "No job ended in this time." });
    drawColumns(find("#wait-chart"), points("waited_s"), {
      until: used.until_s, written: duration, axis: brief, name: "waited", empty: "No job started in this time." });
    say(find("#usage-said"), `Last ${DAYS} days, until ${fullDate(used.until_s)}`);
  }

  return { open, refresh };
}

/** Change what is in a part of the page; what was unfolded stays so. */
function keepOpen(part, change) {
  const open = new Set([...part.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
  change();
  for (const summary of part.querySelectorAll("summary")) {
    if (open.has(summary.textContent)) summary.parentElement.open = true;
  }
}

function outputParts(output) {
  const quiet = (words) => [element("p", { class: "quiet" }, words)];
  if (output === null) return quiet("The end of its output.");
  if (output.refused) return quiet(output.refused);
  const part = (name, text, size) => {
    const all = size ? ` ${bytes(size)}` : "";
    const cut = size > SHOWN_BYTES ? ` the last ${bytes(SHOWN_BYTES)} of${all}` : all;
    return [element("h4", {}, name, element("small", { class: "quiet" }, cut)),
      text ? element("pre", { tabindex: "0" }, text) : element("p", { class: "empty" }, "Nothing.")];
  };
  const { out, err, out_bytes: outBytes, err_bytes: errBytes } = output;
  return [part("Standard output", out, outBytes), part("Standard error", err, errBytes)];
}

// ---- pieces ---------------------------------------------------------------------------------------------------------

function crumbs(kind, name) {
  return element("nav", { class: "crumbs", "aria-label": "Where you are" },
    element("a", { href: address() }, "Overview"),
    element("span", { class: "quiet" }, ` › ${kind} ${short(name, 60)}`));
}

function pageHead(name, state = null) {
  return element("div", { class: "page-head" },
    element("h2", { class: "page-title" }, short(name, 100)),
    state && element("span", { class: `state ${state[0]}` }, state[1]));
}
