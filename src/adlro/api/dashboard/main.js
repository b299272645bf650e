/** The page: it reads the state, hands it to each part, and listens for what happens. */

import { ask, illness, listen, token } from "./api.js";
import { makeCluster } from "./cluster.js";
import { makeCourse } from "./course.js";
import { makeDeciding, makePolicies, showTiles } from "./deciding.js";
import { find, say } from "./dom.js";
import { openSubmit, openToken, openWhatIf } from "./forms.js";
import { makeGantt } from "./gantt.js";
import { makePages } from "./pages.js";
import { makePanel, openJob } from "./panel.js";
import { makeQueue } from "./queue.js";
import { address, follow, here } from "./route.js";
import { fullDate, many, mode, moment, short, zoneOf } from "./words.js";
import { arrange, expectedEnd } from "./world.js";

const LEAST_MS = 500; // between two readings of the state; more if a reading takes long …
const MOST_MS = 5000; // … but not for ever: a machine that slept seems slow
const POLL_MS = 5000; // how often to ask while there is no stream
const SILENT_MS = 30_000; // a stream without a tick for so long: ask whether the daemon is well
const SHOWN = { waiting: 200, ended: 500 }; // jobs of the state; the table asks for its own

const etag = { value: null };
const foreseen = new Map(); // by job: what its latest decision predicts
let world = null; // the state, arranged; null until it was read
let me = null; // who asks; null if the daemon does not know
let route = here();
let rereadJob = null; // reads the job in the panel again
let hasDecisions = false;

const panel = makePanel(() => {
  rereadJob = null;
  mark(null);
});
const go = follow(showPage, peek);
const cluster = makeCluster(showJob, (name) => go("node", name));
const gantt = makeGantt(showJob);
const queue = makeQueue(showJob, (job) => endOf(job));
const deciding = makeDeciding();
const course = makeCourse();
const policies = makePolicies(refresh);
const pages = makePages({ world: () => world, me: () => me, changed: refresh });
course.useRange(() => world);

// ---- pages ----------------------------------------------------------------------------------------------------------

const isOverview = () => route.kind === "overview";
const WAIT_OR_RUN = ["live", "Jobs that wait or run"];
const JOBS_OF = { node: ["live", "Jobs here now"], user: WAIT_OR_RUN, partition: WAIT_OR_RUN };

/** Show the page of an address. */
function showPage(next) {
  route = next;
  panel.close();
  for (const part of document.querySelectorAll("[data-in]")) {
    part.hidden = !part.dataset.in.split(" ").includes(route.kind);
  }
  const [state, heading] = JOBS_OF[route.kind] ?? ["waiting", "Jobs"];
  queue.use(isOverview() || route.kind === "job" ? {} : { [route.kind]: route.name }, state, heading);
  pages.open(route);
  if (isOverview()) nameOverview();
  if (world) {
    queue.offer(world);
    show(world.state);
  }
  if (world) Promise.all([pages.refresh(), route.kind !== "job" && queue.refresh()]).catch(() => {});
}

function nameOverview() {
  document.title = world ? `ADLRO · ${world.state.snapshot.cluster.name}` : "ADLRO";
}

/** A click on a job in the overview opens the panel; everywhere else, and from the panel, the page. */
function peek({ kind, name }, anchor) {
  if (kind !== "job" || !isOverview() || anchor.closest("#panel")) return false;
  showJob(name);
  return true;
}

/** When a job that runs is expected to end; null if nobody knows. */
const endOf = (job) => expectedEnd(job, foreseen.get(job.id)?.runtime_s);

function showJob(id) {
  if (!isOverview()) {
    go("job", id);
    return;
  }
  mark(id);
  rereadJob = openJob(panel, id, { now: () => world.now, me: () => me, changed: refresh });
}

function mark(id) {
  cluster.mark(id);
  gantt.mark(id);
}

// ---- reading --------------------------------------------------------------------------------------------------------

let reading = null;
let isAgain = false;

/** Read all and show it; one reading at a time, and one more after it if something happened meanwhile. */
function refresh() {
  if (reading) {
    isAgain = true;
    return reading;
  }
  isAgain = false;
  const began = performance.now();
  reading = readAll().finally(() => {
    const rest = Math.min(MOST_MS, Math.max(LEAST_MS, 3 * (performance.now() - began)));
    setTimeout(() => {
      reading = null;
      if (isAgain) refresh();
    }, rest);
  });
  return reading;
}

async function readAll() {
  try {
    const state = await ask("state", { etag, asked: SHOWN });
    fresh.answered();
    if (state) await show(state);
    await Promise.all([
      route.kind !== "job" && queue.refresh(), rereadJob?.(), pages.refresh(), isOverview() && course.refresh(world)]);
    complain("");
  } catch (error) {
    fresh.failed(error.status);
    if (error.status === undefined) console.error(error); // a mistake of the page, not of the daemon
    if (error.status === 401) {
      complain("The daemon requires a token. Sign in to see the cluster.");
      if (!panel.isOpen()) signIn();
    } else if (!world) complain(`${error.message} It is asked again every ${POLL_MS / 1000} s.`);
  }
  fresh.show();
}

async function show(state) {
  fresh.ticked(state.tick?.number ?? null);
  world = arrange(state);
  find("#main").removeAttribute("aria-busy");
  document.body.classList.add("ready");
  const { name, nodes } = state.snapshot.cluster;
  const size = `${many(world.gpus.length, "GPU")} on ${many(nodes.length, "node")}`;
  say(find("#cluster-name"), [short(name, 60), size, state.backend].join(" · "));
  say(find("#clock"), `${fullDate(world.now)}, ${moment(world.now)} ${zoneOf(world.now)}`);
  mode.isShadow = state.backend === "shadow";
  mode.partition = state.partition_word ?? "partition";
  queue.offer(world);
  deciding.show(world);
  if (isOverview()) {
    nameOverview();
    showTiles(world);
    cluster.show(world);
    gantt.show(world, foreseen);
  }
  await readDecisions();
}

/** The latest decisions, and what they predict for the jobs that run; read again when a job runs by an unknown one. */
async function readDecisions() {
  const isKnown = (job) => !job.decision || foreseen.get(job.id)?.id === job.decision;
  const unknown = world.running.filter((job) => !isKnown(job));
  if (!unknown.length && hasDecisions) return;
  const { decisions } = await ask("decisions", { asked: { limit: hasDecisions ? 100 : 1000 } });
  hasDecisions = true;
  for (const decision of [...decisions].reverse()) if (decision.verb === "start") foreseen.set(decision.job, decision);
  for (const job of unknown) if (!isKnown(job)) foreseen.set(job.id, { id: job.decision, runtime_s: null });
  for (const id of foreseen.keys()) if (!world.jobs.has(id)) foreseen.delete(id);
  deciding.showDecisions(decisions);
  if (isOverview()) gantt.show(world, foreseen);
}

function complain(text) {
  const node = find("#trouble");
  node.hidden = !text;
  say(node, text);
}

// ---- how fresh it is ------------------------------------------------------------------------------------------------

/** Whether what is shown is what is so, and since when not. */
const fresh = {
  isStreaming: false,
  refusal: null, // the status of the last refusal, 0 for no answer; null while the daemon answers
  answeredAt: Date.now(),
  tick: null,
  tickedAt: Date.now(),
  illness: "", // what the daemon says of itself, if it is not well

  answered() {
    this.refusal = null;
    this.answeredAt = Date.now();
  },
  failed(status) {
    this.refusal = status ?? 0;
  },
  ticked(number) {
    if (number === this.tick) return;
    this.tick = number;
    this.tickedAt = Date.now();
    this.illness = "";
  },
  words() {
    const since = (time) => `stale since ${moment(time / 1000, Date.now() / 1000, true)}`;
    if (this.refusal === 401) return ["gone", "not signed in"];
    if (this.refusal !== null) return world ? ["stale", since(this.answeredAt)] : ["gone", "no answer"];
    if (this.illness) return ["stale", `${since(this.tickedAt)}: ${this.illness}`];
    return this.isStreaming ? ["live", "live"] : ["polling", `no stream, asking every ${POLL_MS / 1000} s`];
  },
  show() {
    const [kind, words] = this.words();
    find("#stream").dataset.kind = kind;
    document.body.classList.toggle("stale", kind === "stale");
    say(find("#stream"), words);
  },
};

/** While there is no stream, ask; while there is one but no tick, ask whether the daemon is well. */
async function watch() {
  if (!fresh.isStreaming) return refresh();
  if (Date.now() - fresh.tickedAt < SILENT_MS) return;
  fresh.illness = await illness().catch(() => "the daemon does not answer");
  fresh.show();
}

// ---- people ---------------------------------------------------------------------------------------------------------

async function readMe() {
  me = await ask("me").catch(() => null);
  find("#open-token").hidden = me !== null && !token(); // it answers without one: there is nothing to sign in to
  say(find("#open-token"), me ? `${me.name}, ${me.role}` : "Sign in");
  const mayAct = me !== null && me.role !== "viewer";
  find("#open-submit").hidden = !mayAct;
  find("#open-what-if").hidden = !mayAct;
  if (me) await policies.read(me).catch(() => {}); // without them the rest works
}

function signIn() {
  openToken(panel, me, async () => {
    etag.value = null;
    await readMe();
    refresh();
    comeBack();
  });
}

find("#open-token").addEventListener("click", signIn);
find("#open-submit").addEventListener("click", () => world && openSubmit(panel, world, refresh));
find("#open-what-if").addEventListener("click", () => world && openWhatIf(panel, world, policies.names()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => world && show(world.state));
window.addEventListener("resize", () => world && isOverview() && course.show());
window.addEventListener("online", () => comeBack());

// ---- begin ----------------------------------------------------------------------------------------------------------

const comeBack = listen((event) => {
  if (event.kind === "policy") readMe();
  refresh();
}, (isUp) => {
  if (isUp === fresh.isStreaming) return; // it tried again, in vain
  fresh.isStreaming = isUp;
  if (isUp && !me) readMe();
  refresh(); // what happened meanwhile was not told
});
setInterval(watch, POLL_MS);
find("#home").href = address();
showPage(route);
readMe();
refresh();
