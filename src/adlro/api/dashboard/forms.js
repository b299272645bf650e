/** What people hand in: a job, a question, a token. */

import { ask, token, useToken } from "./api.js";
import { element, find, say } from "./dom.js";
import { duration, many, MISSING, startPhrase } from "./words.js";
import { models } from "./world.js";

const OFTEN_ADDED = ["a100-sxm4-80gb", "h100-sxm5-80gb", "mi300x"]; // offered beside the models that are there
const MOST_NODES = 2000; // in the list of nodes to take away

// ---- parts of forms -------------------------------------------------------------------------------------------------

function field(label, control, hint) {
  return element("label", { class: "field" },
    element("span", {}, label), control, hint && element("small", { class: "quiet" }, hint));
}

const input = (name, attributes) => element("input", { name, autocomplete: "off", ...attributes });
const whole = (name, min, max, value) => input(name, { type: "number", min, max, value, required: true });

function choose(name, options) {
  return element("select", { name }, options.map(([value, label]) => element("option", { value }, label)));
}

function offers(id, values) {
  return element("datalist", { id }, values.map((value) => element("option", { value })));
}

const group = (name, ...content) => element("fieldset", {}, element("legend", {}, name), content);

/** The button of a form, with room for what is said after it. */
function sending(label, ...more) {
  return element("div", { class: "row" },
    element("button", { type: "submit", class: "primary" }, label), more,
    element("p", { class: "said", role: "status" }));
}

/** Call `act` when a form is sent, and say what went wrong. */
function onSend(form, act) {
  const said = find(".said", form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = find("button[type=submit]", form);
    button.disabled = true;
    say(said, "");
    said.classList.remove("wrong");
    try {
      await act(said);
    } catch (error) {
      said.classList.add("wrong");
      say(said, error.message);
    } finally {
      button.disabled = false;
    }
  });
}

// ---- a job ----------------------------------------------------------------------------------------------------------

/** The fields that describe a job. */
function jobFields(world) {
  const families = [...new Set([...world.jobs.values()].map((job) => job.job.family))].filter(Boolean).sort();
  const family = { required: true, list: "known-families", value: families[0] ?? "", maxlength: 100 };
  const minutes = { type: "number", min: 0, step: "any" };
  return [
    offers("known-families", families),
    field("Family", input("family", family), "The kind of work, which decides how fast it runs on each GPU model."),
    element("div", { class: "pair" },
      field("GPUs", whole("gpus", 0, 4096, 1)),
      field("Model", choose("model", [["", "any"], ...models(world).map((name) => [name, name])]))),
    element("div", { class: "pair" },
      field("Expected minutes", input("minutes", { ...minutes, placeholder: "not known" })),
      field("Time limit, minutes", input("limit", { ...minutes, placeholder: "none" }))),
  ];
}

/** A job from a form, as the API takes it. What was left empty is left out. */
function jobFrom(form) {
  const said = Object.fromEntries(new FormData(form));
  const gpus = Number(said.gpus);
  const job = { family: said.family.trim(), gpus };
  if (said.name) job.name = said.name;
  if (said.model) job.models = [said.model];
  if (Number(said.minutes)) job.work = job.estimate = Number(said.minutes) * 60 * Math.max(1, gpus);
  if (Number(said.limit)) job.limit_s = Number(said.limit) * 60;
  return job;
}

/** Hand a job in; `done` gets its id. */
export function openSubmit(panel, world, done) {
  const needsCommand = world.state.backend !== "simulated";
  const command = element("textarea", { name: "command", rows: 3, required: true, spellcheck: "false" });
  const form = element("form", { class: "sheet" },
    field("Name", input("name", { autofocus: true, maxlength: 200, placeholder: "optional" })),
    jobFields(world),
    needsCommand && field("Command", command, "One argument in each line. No shell interprets it."),
    sending("Submit"));
  onSend(form, async (said) => {
    const body = { job: jobFrom(form) };
    if (needsCommand) body.command = command.value.split(/\r?\n/).filter((line) => line !== "");
    const { id } = await ask("jobs", { method: "POST", body });
    say(said, `Submitted as job ${id}. It shows in the queue after the next turn.`);
    done(id);
  });
  panel.open("Submit a job", form);
}

// ---- a question -----------------------------------------------------------------------------------------------------

/** Ask what would happen. */
export function openWhatIf(panel, world, policies) {
  const { policy, snapshot } = world.state;
  const there = models(world);
  const added = there.find((name) => name.includes("a100")) ?? OFTEN_ADDED[0];
  const nodes = snapshot.cluster.nodes.slice(0, MOST_NODES).map((node) => [node.name, node.name]);
  const others = policies.filter((name) => name !== policy).map((name) => [name, name]);
  const withJob = element("input", { type: "checkbox", name: "withJob" });
  const jobPart = element("div", { class: "optional", hidden: true }, jobFields(world));
  const answer = element("div", { class: "foreseen", "aria-live": "polite" });
  const form = element("form", { class: "sheet" },
    element("p", { class: "quiet" },
      "Simulated from the present state of the cluster. Nothing on the cluster changes."),
    group("Add nodes",
      element("div", { class: "triple" },
        field("Nodes", whole("nodes", 0, 1000, 1)),
        field("GPUs on each", whole("each", 1, 16, 4)),
        field("Model", input("added", { list: "known-models", value: added, maxlength: 100 }))),
      offers("known-models", [...new Set([...there, ...OFTEN_ADDED])])),
    group("Remove a node", field("Node", choose("gone", [["", "none"], ...nodes]))),
    group("Decide with", field("Policy", choose("policy", [["", `${policy}, as now`], ...others]))),
    group(element("label", { class: "check" }, withJob, "Submit this job as well"), jobPart),
    sending("Simulate"),
    answer);
  const fit = () => {
    jobPart.hidden = !withJob.checked;
    for (const control of jobPart.querySelectorAll("input, select")) control.disabled = jobPart.hidden;
  };
  withJob.addEventListener("change", fit);
  fit();
  onSend(form, async () => {
    answer.replaceChildren();
    const fields = form.elements;
    const more = Number(fields.nodes.value);
    const body = {
      jobs: withJob.checked ? [{ job: jobFrom(form) }] : [],
      add_nodes: more ? [[fields.added.value.trim(), Number(fields.each.value), more]] : [],
      remove_nodes: fields.gone.value ? [fields.gone.value] : [],
      policy: fields.policy.value,
    };
    answer.replaceChildren(...foreseenContent(await ask("what-if", { method: "POST", body }), world.now));
    answer.scrollIntoView({ block: "nearest" });
  });
  panel.open("What if …", form);
}

function foreseenContent(foreseen, now) {
  const cell = (text) => element("td", { class: "right" }, text);
  const row = (name, was, would) => element("tr", {},
    element("th", { scope: "row" }, name), cell(duration(was)), cell(duration(would)), cell(change(was, would)));
  const starts = foreseen.starts.map((start) => `It would start: ${startPhrase(start, now)}.`);
  return [
    element("p", { class: "answer" }, foreseen.text),
    element("table", { class: "small" },
      element("thead", {}, element("tr", {},
        ["", "As it is", "If", "Change"].map((name) => element("th", { scope: "col", class: "right" }, name)))),
      element("tbody", {},
        row("Mean completion time", foreseen.jct_s, foreseen.jct_if_s),
        row("Until all is done", foreseen.makespan_s, foreseen.makespan_if_s))),
    ...starts.map((text) => element("p", {}, text)),
    element("p", { class: "quiet" }, `${many(foreseen.changed, "waiting job")} would start at another time. `,
      `Answered in ${duration(foreseen.seconds)}.`),
  ];
}

function change(was, would) {
  if (!was || would === null) return MISSING;
  const share = Math.round((would / was - 1) * 100);
  return share === 0 ? "none" : `${share > 0 ? "+" : "−"}${Math.abs(share)} %`;
}

// ---- a token --------------------------------------------------------------------------------------------------------

/** Sign in with a token, or out. `changed` is called with the new one in place. */
export function openToken(panel, me, changed) {
  const secret = { type: "password", spellcheck: "false", autofocus: true, required: true, maxlength: 500 };
  const box = input("token", secret);
  const signOut = () => {
    useToken("");
    panel.close();
    changed();
  };
  const form = element("form", { class: "sheet" },
    element("p", { class: "quiet" }, me ? `You are ${me.name}, ${me.role}.` : "The daemon requires a token."),
    field("Token", box, "Kept in this tab until it is closed; sent to this daemon only."),
    sending("Sign in", token() && element("button", { type: "button", onclick: signOut }, "Sign out")));
  onSend(form, async () => {
    const before = token();
    useToken(box.value.trim());
    try {
      await ask("me");
    } catch (error) {
      useToken(before);
      throw error;
    }
    panel.close();
    changed();
  });
  panel.open("Sign in", form);
}
