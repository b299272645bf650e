/** The jobs as a table: search, filters, sorting, pages. The daemon does all of it; the address has what is chosen. */

import { ask } from "./api.js";
import { element, find, keep, say } from "./dom.js";
import { placeLinks } from "./job.js";
import { address, link, query, useQuery } from "./route.js";
import {
  asked, away, capital, duration, many, MISSING, mode, moment, number, short, startHead, startWords, stateWord, title,
} from "./words.js";
import { ENDED, models } from "./world.js";

const PAGE = 15;
const LIVE = ["waiting", "placed", "running"];

// What the filter offers: the states; head and sort of the last two columns; what is said when there is nothing.
const VIEWS = {
  waiting: [["waiting"], ["Waited", "waited"], [startHead, "start"], "Nothing waits. Jobs start as soon as they arrive."],
  running: [["placed", "running"], ["Runs for", "ran"], ["Where", "place"], "Nothing runs."],
  live: [LIVE, ["Submitted", "submitted"], ["Where or when", "start"], "Nothing waits or runs."],
  ended: [[...ENDED], ["Ran for", "ran"], ["How it ended", "ended"], "Nothing has ended lately."],
  all: [[], ["Submitted", "submitted"], ["Where or when", "start"], "There are no jobs yet."],
};
const FIELDS = {
  q: "#search",
  state: "#state-filter",
  user: "#user-filter",
  model: "#model-filter",
  partition: "#partition-filter",
};
const FALLS = new Set(["waited", "ran", "gpus", "ended", "submitted"]); // the first click shows the largest first

/** Show the table in the page; `open` is called with the id of a job, `endOf` says when one is expected to end. */
export function makeQueue(open, endOf) {
  const body = find("#queue tbody");
  const heads = [...document.querySelectorAll("#queue th")];
  const fields = Object.fromEntries(Object.entries(FIELDS).map(([name, selector]) => [name, find(selector)]));
  let fixed = {}; // what the page is about: {user}, {partition} or {node}
  let usual = "waiting"; // the state that is shown if nobody chose one
  let chosen = { sort: "", order: "asc" };
  let offset = 0;
  let total = 0;
  let question = 0; // only the latest question's answer is shown
  let current = ""; // the row that Tab comes to
  let hasPartitions = false;

  /** Show the jobs of a page: what is fixed there, which state is usual, and what the address says. */
  function use(what, state, heading) {
    [fixed, usual] = [what, state];
    say(find("#jobs-title"), heading);
    fields.user.parentElement.hidden = "user" in fixed;
    read();
  }

  /** Take over what the address says. */
  function read() {
    const said = query();
    for (const name of ["q", "user"]) fields[name].value = said[name] ?? "";
    fields.state.value = said.state in VIEWS ? said.state : usual;
    for (const name of ["model", "partition"]) choose(fields[name], said[name] ?? "");
    chosen = { sort: said.sort ?? "", order: said.order === "desc" ? "desc" : "asc" };
    offset = Math.max(0, (Number.parseInt(said.page, 10) || 1) - 1) * PAGE;
  }

  /** Write into the address what is chosen. */
  function write() {
    const { q, state, user, model, partition } = filters();
    useQuery({
      q, user, model, partition,
      state: state === usual ? "" : state,
      sort: chosen.sort,
      order: chosen.sort && chosen.order === "desc" ? "desc" : "",
      page: offset ? String(offset / PAGE + 1) : "",
    });
  }

  const filters = () => Object.fromEntries(Object.entries(fields).map(([name, node]) => [name, node.value.trim()]));

  /** Read the page of jobs again and show it. */
  async function refresh() {
    const mine = ++question;
    const { q, state, user, model, partition } = filters();
    const wanted = {
      state: VIEWS[state][0], search: q, user, model, partition, ...fixed, sort: chosen.sort,
      order: chosen.sort ? chosen.order : "", offset, limit: PAGE,
    };
    const page = await ask("jobs", { asked: wanted });
    if (mine !== question) return;
    if (offset && offset >= page.total) {
      offset = Math.max(0, Math.ceil(page.total / PAGE) * PAGE - PAGE);
      return refresh();
    }
    show(page);
  }

  function show(page) {
    total = page.total;
    if (!page.jobs.some((job) => job.id === current)) current = page.jobs[0]?.id ?? "";
    const { state, ...others } = filters();
    const [, since, last, nothing] = VIEWS[state];
    nameHeads([heads[4], since], [heads[5], last]);
    find("#queue").classList.toggle("no-partitions", !hasPartitions || "partition" in fixed);
    keep(body, page.jobs, (job) => job.id, makeRow, (row, job) => updateRow(row, job, page));
    const isFiltered = Object.values(others).some(Boolean);
    const isEmpty = !page.jobs.length;
    find("#queue").classList.toggle("hollow", isEmpty);
    find("#queue-empty").hidden = !isEmpty;
    say(find("#queue-empty"), isFiltered ? "No job matches." : nothing);
    find("#clear-filters").hidden = !isFiltered && !chosen.sort;
    const until = offset + page.jobs.length;
    const range = total > PAGE ? `${number(offset + 1)}–${number(until)} of ` : "";
    say(find("#page-said"), isEmpty ? "" : range + many(total, "job"));
    find("#previous").disabled = offset === 0;
    find("#next").disabled = until >= total;
    find("#pager").hidden = isEmpty;
    find("#turns").hidden = total <= PAGE;
  }

  /** Name the columns that change with the state, and mark the one by which jobs are sorted. */
  function nameHeads(...named) {
    for (const [head, [name, sort]] of named) {
      head.dataset.sort = sort;
      say(find(".name", head), typeof name === "function" ? name() : name);
    }
    for (const head of heads) {
      const isSorted = head.dataset.sort === chosen.sort;
      const order = { asc: "ascending", desc: "descending" }[chosen.order];
      if (isSorted) head.setAttribute("aria-sort", order);
      else head.removeAttribute("aria-sort");
      say(find(".arrow", head), isSorted ? (chosen.order === "asc" ? "▲" : "▼") : "");
    }
  }

  /** Sort by a column; again: the other way round; a third time: the usual order. */
  function sortBy(sort) {
    const [first, second] = FALLS.has(sort) ? ["desc", "asc"] : ["asc", "desc"];
    if (chosen.sort !== sort) chosen = { sort, order: first };
    else if (chosen.order === first) chosen = { sort, order: second };
    else chosen = { sort: "", order: "asc" };
    restart();
  }

  function makeRow(job) {
    return element("tr", {},
      element("td", {},
        element("a", { href: address("job", job.id), class: "job" }),
        element("small", { class: "quiet under" })),
      element("td", { class: "wide-only" }),
      element("td", { class: "wide-only partition" }),
      element("td", { class: "wide-only" }),
      element("td", { class: "right" }),
      element("td", {}, element("span"), element("small", { class: "quiet" })));
  }

  function updateRow(row, job, page) {
    const [name, user, partition, wants, since, last] = row.cells;
    const text = JSON.stringify([job, page.starts[job.id], page.time_s, fields.state.value, job.id === current]);
    if (row.dataset.text === text) return;
    row.dataset.text = text;
    const anchor = find("a", name);
    const [whole, shown] = [title(job), short(title(job), 60)];
    say(anchor, shown);
    if (shown === whole) anchor.removeAttribute("title");
    else anchor.title = whole;
    anchor.tabIndex = job.id === current ? 0 : -1;
    const isMixed = ["all", "live"].includes(fields.state.value);
    const state = isMixed || job.state === "placed" ? stateWord(job) : "";
    const under = find("small", name);
    say(under, [state, `#${job.id}`, job.job.family].filter(Boolean).join(" · "));
    under.dataset.more = [short(job.job.user, 24), asked(job)].filter(Boolean).join(" · ");
    user.replaceChildren(job.job.user ? link("user", job.job.user, short(job.job.user, 24)) : MISSING);
    partition.replaceChildren(job.partition ? link("partition", job.partition, short(job.partition, 24)) : MISSING);
    say(wants, asked(job));
    const [time, where, more] = rowWords(job, page, isMixed, endOf);
    say(since, time);
    find("span", last).replaceChildren(...[where].flat(Infinity));
    say(find("small", last), more);
  }

  function turn(by) {
    const next = offset + by * PAGE;
    if (next < 0 || next >= total) return;
    offset = next;
    restart(true);
  }

  /** Ask again with what is chosen now. What goes wrong here goes wrong for the whole page too, and is told there. */
  function restart(samePage = false) {
    if (samePage !== true) offset = 0;
    write();
    return refresh().catch(() => {});
  }

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a") && !String(getSelection())) open(row.dataset.key);
  });
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const moves = {
      ArrowDown: row.nextElementSibling,
      ArrowUp: row.previousElementSibling,
      Home: body.firstElementChild,
      End: body.lastElementChild,
    };
    if (event.key in moves) focusRow(moves[event.key] ?? row);
    else if (event.key === "PageDown") turn(1);
    else if (event.key === "PageUp") turn(-1);
    else return;
    event.preventDefault();
  });

  function focusRow(row) {
    current = row.dataset.key;
    for (const each of body.rows) find("a.job", each).tabIndex = each === row ? 0 : -1;
    find("a.job", row).focus();
  }

  for (const head of heads) find("button", head).addEventListener("click", () => sortBy(head.dataset.sort));
  find("#previous").addEventListener("click", () => turn(-1));
  find("#next").addEventListener("click", () => turn(1));
  find("#filter").addEventListener("submit", (event) => event.preventDefault());
  find("#clear-filters").addEventListener("click", () => {
    for (const name of ["q", "user", "model", "partition"]) fields[name].value = "";
    chosen = { sort: "", order: "asc" };
    restart();
  });
  let typing = 0;
  for (const node of [fields.q, fields.user]) {
    node.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(restart, 200);
    });
  }
  for (const node of [fields.state, fields.model, fields.partition]) node.addEventListener("change", restart);

  /** Offer the models, partitions and users that there are. */
  function offer(world) {
    const { partitions = [] } = world.state;
    hasPartitions = partitions.length > 0;
    fields.partition.parentElement.hidden = !hasPartitions || "partition" in fixed;
    fill(fields.model, models(world), "Any model");
    fill(fields.partition, partitions, `Any ${mode.partition}`);
    const any = [...fields.partition.options].find((option) => !option.value);
    if (any) say(any, `Any ${mode.partition}`);
    for (const name of document.querySelectorAll(".partition-word")) {
      say(name, name.classList.contains("plain-word") ? mode.partition : capital(mode.partition));
    }
    const users = [...new Set(world.state.snapshot.jobs.map((job) => job.job.user).filter(Boolean))].sort();
    keep(find("#known-users"), users, (name) => name, (name) => element("option", { value: name }));
  }

  return { use, read, offer, refresh };
}

/** Set a choice, also one that is not offered yet. */
function choose(select, value) {
  if (value && ![...select.options].some((option) => option.value === value)) {
    select.append(element("option", { value }, short(value, 40)));
  }
  select.value = value;
}

function fill(select, names, any) {
  const { value } = select;
  const wanted = ["", ...names, ...(value && !names.includes(value) ? [value] : [])];
  keep(select, wanted, (name) => name, (name) => element("option", { value: name }, name ? short(name, 40) : any));
  select.value = value;
}

/** The last two columns: how long, and where or when. */
function rowWords(job, { time_s: now, starts }, isMixed, endOf) {
  const submitted = away(job.job.submit_s, now);
  if (job.state === "waiting") {
    const [when, likely] = startWords(starts[job.id], now);
    return [isMixed ? submitted : duration(now - job.job.submit_s), when, likely];
  }
  if (ENDED.has(job.state)) {
    const ran = job.started_s === null ? "never ran" : duration(job.ended_s - job.started_s);
    const code = job.signal ? `, signal ${job.signal}` : job.exit_code ? `, exit code ${job.exit_code}` : "";
    return [isMixed ? submitted : ran, job.state + code, moment(job.ended_s, now)];
  }
  const end = endOf(job);
  const until = end === null ? "" : end > now ? `likely until ${moment(end, now)}` : "longer than expected";
  const runs = job.started_s === null ? "starting" : duration(now - job.started_s);
  return [isMixed ? submitted : runs, placeLinks(job.parts, 3), until];
}
