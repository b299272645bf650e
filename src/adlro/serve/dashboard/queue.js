/** The jobs as a table: search, filter, pages. The daemon filters and pages; the page shows. */

import { ask } from "./api.js";
import { element, find, keep, say } from "./dom.js";
import { asked, away, duration, interval, many, MISSING, moment, number, places, title } from "./words.js";
import { ENDED } from "./world.js";

const PAGE = 12;
const SEARCHED = 5000; // jobs looked through for a text, the first to start first
const AT_ONCE = 1000; // the most that the daemon hands over in one answer

// What the filter offers: the states, the heads of the last two columns, and what is said when there is nothing.
const VIEWS = {
  waiting: [["waiting"], "Waited", "Predicted start", "Nothing waits. Jobs start as soon as they come."],
  running: [["placed", "running"], "Runs for", "Where", "Nothing runs."],
  ended: [[...ENDED], "Ran for", "How it ended", "Nothing has ended yet."],
  "": [[], "Time", "Where or when", "There are no jobs yet."],
};

/** Show the table in the page; `open` is called with the id of a job. */
export function makeQueue(open) {
  const body = find("#queue tbody");
  const search = find("#search");
  const filter = find("#state-filter");
  let offset = 0;
  let total = 0;
  let question = 0; // only the latest question's answer is shown
  let current = ""; // the row that Tab comes to

  /** Read the page again and show it. */
  async function refresh() {
    const mine = ++question;
    const text = search.value.trim().toLowerCase();
    const page = text ? await found(text) : await read(offset, PAGE);
    if (mine !== question) return;
    if (offset && offset >= page.total) {
      offset = Math.max(0, Math.ceil(page.total / PAGE) * PAGE - PAGE);
      return refresh();
    }
    show(page);
  }

  const read = (from, limit) => ask("jobs", { asked: { state: VIEWS[filter.value][0], offset: from, limit } });

  /** Jobs with a text in their name, user, family or number. */
  async function found(text) {
    const jobs = [];
    const starts = {};
    let answer;
    do {
      answer = await read(jobs.length, AT_ONCE);
      jobs.push(...answer.jobs);
      Object.assign(starts, answer.starts);
    } while (answer.jobs.length && jobs.length < Math.min(answer.total, SEARCHED));
    const has = ({ id, job }) => [id, job.name, job.user, job.family].some((each) => each.toLowerCase().includes(text));
    const hits = jobs.filter(has);
    return {
      jobs: hits.slice(offset, offset + PAGE),
      starts,
      total: hits.length,
      time_s: answer.time_s,
      searched: jobs.length < answer.total ? jobs.length : null,
    };
  }

  function show(page) {
    total = page.total;
    if (!page.jobs.some((job) => job.id === current)) current = page.jobs[0]?.id ?? "";
    const [, since, last, nothing] = VIEWS[filter.value];
    say(find("#since-head"), since);
    say(find("#start-head"), last);
    keep(body, page.jobs, (job) => job.id, makeRow, (row, job) => updateRow(row, job, page));
    const isEmpty = !page.jobs.length;
    find("#queue").classList.toggle("hollow", isEmpty);
    find("#queue-empty").hidden = !isEmpty;
    say(find("#queue-empty"), search.value.trim() ? "No job matches." : nothing);
    const until = offset + page.jobs.length;
    const some = page.searched ? ` (looked through the first ${number(page.searched)})` : "";
    const range = `${number(offset + 1)}–${number(until)} of ${many(total, "job")}${some}`;
    say(find("#page-said"), isEmpty ? "" : range);
    find("#previous").disabled = offset === 0;
    find("#next").disabled = until >= total;
  }

  function makeRow(job) {
    return element("tr", { onclick: () => open(job.id) },
      element("td", {},
        element("button", { type: "button", class: "job" }), // a click on it reaches the row
        element("small", { class: "quiet under" })),
      element("td", { class: "wide-only" }),
      element("td", { class: "wide-only" }),
      element("td", { class: "right" }),
      element("td", {}, element("span"), element("small", { class: "quiet" })));
  }

  function updateRow(row, job, page) {
    const [name, user, wants, since, last] = row.cells;
    const button = find("button", name);
    say(button, title(job));
    button.tabIndex = job.id === current ? 0 : -1;
    const state = filter.value === "" || job.state === "placed" ? job.state : "";
    const under = find("small", name);
    say(under, [state, `#${job.id}`, job.job.family].filter(Boolean).join(" · "));
    under.dataset.more = [job.job.user, asked(job)].filter(Boolean).join(" · ");
    say(user, job.job.user || MISSING);
    say(wants, asked(job));
    const [time, where, more] = rowWords(job, page);
    say(since, time);
    say(find("span", last), where);
    say(find("small", last), more);
  }

  function turn(by) {
    const next = offset + by * PAGE;
    if (next < 0 || next >= total) return;
    offset = next;
    restart();
  }

  // What goes wrong here goes wrong for the whole page too, and is told there.
  const restart = () => refresh().catch(() => {});

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
    for (const each of body.rows) find("button", each).tabIndex = each === row ? 0 : -1;
    find("button", row).focus();
  }

  find("#previous").addEventListener("click", () => turn(-1));
  find("#next").addEventListener("click", () => turn(1));
  find("#filter").addEventListener("submit", (event) => event.preventDefault());
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    offset = 0;
    typing = setTimeout(restart, 200);
  });
  filter.addEventListener("change", () => {
    offset = 0;
    restart();
  });

  return { refresh };
}

/** The last two columns: how long, and where or when. */
function rowWords(job, { time_s: now, starts }) {
  if (job.state === "waiting") {
    const start = starts[job.id];
    const likely = start && start.middle_s !== null ? `likely ${away(start.middle_s, now)}` : "";
    return [duration(now - job.job.submit_s), interval(start, now), likely];
  }
  if (ENDED.has(job.state)) {
    const ran = job.started_s === null ? "never ran" : duration(job.ended_s - job.started_s);
    const code = job.signal ? `, signal ${job.signal}` : job.exit_code ? `, exit code ${job.exit_code}` : "";
    return [ran, job.state + code, moment(job.ended_s, now)];
  }
  return [job.started_s === null ? "starting" : duration(now - job.started_s), places(job.parts), ""];
}
