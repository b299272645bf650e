/** The last hours and the predicted ones: who ran where, until when, and who is next. */

import { AXIS, drawAreas, drawAxis, drawBars, drawNext, drawNow, drawRowNames, NEXT_HEIGHT } from "./bars.js";
import { colours, element, find, prepared, say } from "./dom.js";
import { many } from "./words.js";
import { expectedEnd } from "./world.js";

const MOST_ROWS = 160; // above that a row for each GPU is too thin: each pool becomes an area
const MOST_NEXT = 8; // waiting jobs shown
const ROWS_HEIGHT = 440; // of all rows of GPUs together, as far as each can still be seen
const AREA_HEIGHT = 40;

/** Show the timeline in the page; `open` is called with the id of a job. */
export function makeGantt(open) {
  const holder = find("#gantt");
  const canvas = find("#gantt-canvas");
  const buttons = [...document.querySelectorAll("[data-hours]")];
  let world = null;
  let foreseen = new Map();
  let chosenHours = null; // until someone chooses: as many as there is something to see in
  let items = []; // what can be pointed at: {job, boxes: [{x, y, width, height}], words}
  let current = null;
  let isHovered = false;
  let marked = null; // the job whose panel is open
  let drawnWidth = 0;

  /** `predicted` has, by job, what its decision foresaw. */
  function show(next, predicted) {
    world = next;
    foreseen = predicted;
    draw();
  }

  function draw() {
    if (!world) return;
    const width = holder.clientWidth;
    drawnWidth = width;
    if (!width) return; // another page is open
    const all = timed(world, foreseen);
    const hours = chosenHours ?? fitting(all[0]?.from ?? world.now, world.now);
    for (const button of buttons) button.setAttribute("aria-pressed", Number(button.dataset.hours) === hours);
    const [from, until] = [world.now - hours * 3600, world.now + hours * 1800];
    const bars = all.filter((bar) => bar.until > from && bar.from < until);
    const next = foreseenStarts(world);
    const shown = next.slice(0, MOST_NEXT);
    const isAreas = world.gpus.length > MOST_ROWS;
    const [rows, bottom] = isAreas ? poolRows(world) : gpuRows(world);
    const height = bottom + (shown.length ? 26 + shown.length * NEXT_HEIGHT : 0) + 8;
    const gutter = width < 560 ? 56 : 96;
    const scale = (time) => gutter + ((time - from) / (until - from)) * (width - gutter - 6);
    const pen = prepared(canvas, width, height);
    pen.textBaseline = "middle";
    const view = { pen, paint: colours(), scale, from, until, now: world.now, gutter, width };

    items = [];
    drawAxis(view, bottom);
    pen.save();
    pen.beginPath();
    pen.rect(gutter, 0, width - gutter, height);
    pen.clip();
    const families = familyColours(world, view.paint);
    if (isAreas) drawAreas(view, rows, bars);
    else items.push(...drawBars(view, rows, bars, families));
    pen.restore();
    drawRowNames(view, rows);
    drawNow(view, height);
    items.push(...drawNext(view, shown, bottom + 8));

    current = current && (items.find((item) => item.job.id === current.job.id) ?? null);
    for (const item of items) if (item.job.id === marked) outline(pen, item, view.paint.chosen);
    if (current && (isHovered || holder.matches(":focus"))) outline(pen, current, view.paint.ink);
    say(find("#gantt-detail"), current ? current.words : hint(bars.length, next.length, isAreas));
    showLegend(view.paint, isAreas, [...families].filter(([name]) => bars.some((bar) => bar.job.job.family === name)));
  }

  const isUnder = (box, x, y) =>
    x >= box.x && x <= box.x + box.width && y >= box.y - 1 && y <= box.y + box.height + 1;
  const under = ({ offsetX, offsetY }) =>
    items.findLast((item) => item.boxes.some((box) => isUnder(box, offsetX, offsetY))) ?? null;

  function move(by) {
    if (!items.length) return;
    const at = current ? items.indexOf(current) + by : 0;
    current = items[Math.max(0, Math.min(items.length - 1, at))];
    draw();
    say(find("#gantt-current"), current.words);
  }

  holder.addEventListener("pointermove", (event) => {
    const item = under(event);
    if (item === current) return;
    current = item;
    isHovered = item !== null;
    holder.style.cursor = isHovered ? "pointer" : "";
    draw();
  });
  holder.addEventListener("pointerleave", () => {
    isHovered = false;
    if (!holder.matches(":focus")) current = null;
    draw();
  });
  holder.addEventListener("click", (event) => {
    const item = under(event);
    if (item) open(item.job.id);
  });
  holder.addEventListener("focus", () => move(0));
  holder.addEventListener("blur", () => draw());
  holder.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };
    if (event.key in moves) move(moves[event.key]);
    else if (event.key !== "Enter" && event.key !== " ") return;
    else if (current) open(current.job.id);
    event.preventDefault();
  });
  for (const button of buttons) {
    button.addEventListener("click", () => {
      chosenHours = Number(button.dataset.hours);
      draw();
    });
  }
  new ResizeObserver(() => {
    if (holder.clientWidth !== drawnWidth) draw();
  }).observe(holder);

  function mark(job) {
    marked = job;
    draw();
  }
  return { show, mark };
}

function hint(bars, waiting, isAreas) {
  if (!bars && !waiting) return "Nothing ran in these hours, and nothing waits.";
  const byJob = "Point at a job, or move with the arrow keys, to read more.";
  const first = isAreas ? "With so many GPUs, the timeline shows allocated GPUs by model." : byJob;
  if (waiting <= MOST_NEXT) return first;
  return `${first} The next ${MOST_NEXT} of ${many(waiting, "waiting job")} with a predicted start are shown.`;
}

/** The fewest hours in which everything that is known fits. */
const fitting = (oldest, now) => [1, 6].find((hours) => now - oldest <= hours * 3600) ?? 24;

/** The jobs that began, as bars: until when they ran, or are expected to. */
function timed(world, foreseen) {
  const began = [...world.jobs.values()].filter((job) => job.started_s !== null && job.parts.length);
  return began.map((job) => {
    const from = job.started_s;
    if (job.ended_s !== null) return { job, from, end: job.ended_s, until: job.ended_s };
    const own = job.job.estimate ? job.job.estimate / Math.max(1, job.job.gpus) : null; // as its owner says
    const until = expectedEnd(job, foreseen.get(job.id)?.runtime_s ?? own) ?? world.now;
    return { job, from, end: null, until: Math.max(world.now, until) };
  }).sort((a, b) => a.from - b.from);
}

/** The waiting jobs whose start is foreseen, the first to start first. */
function foreseenStarts(world) {
  return world.waiting
    .map((job) => ({ job, start: world.state.starts[job.id] }))
    .filter(({ start }) => start && start.middle_s !== null)
    .sort((a, b) => a.start.middle_s - b.start.middle_s);
}

/** A colour for each family; the same order each time, so that colours stay. */
function familyColours(world, paint) {
  const names = [...new Set([...world.jobs.values()].map((job) => job.job.family))].sort();
  return new Map(names.map((name, number) => [name, paint[`f${number % 8}`]]));
}

/** A lane for each GPU, a row for each node. */
function gpuRows(world) {
  const lane = Math.max(3, Math.min(15, Math.floor(ROWS_HEIGHT / Math.max(1, world.gpus.length))));
  const rows = [];
  let y = AXIS;
  for (const [name, gpus] of world.byNode) {
    if (!gpus.length) continue;
    rows.push({ name, gpus, y, lane, height: gpus.length * lane, isDown: gpus[0].down !== null });
    y += gpus.length * lane + (lane > 6 ? 6 : 3);
  }
  return [rows, y];
}

/** A row for each pool. */
function poolRows(world) {
  const step = AREA_HEIGHT + 8;
  const rows = world.pools.map((pool, number) =>
    ({ name: pool.model, total: pool.total, y: AXIS + number * step, height: AREA_HEIGHT, isDown: !pool.up }));
  return [rows, AXIS + rows.length * step];
}

function outline(pen, item, colour) {
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  for (const box of item.boxes) pen.strokeRect(box.x, box.y, box.width, box.height);
}

function showLegend(paint, isAreas, families) {
  const line = (colour, kind, label) => {
    const swatch = element("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
    swatch.style.setProperty("--colour", colour);
    return element("li", {}, swatch, label);
  };
  const named = families.map(([name, colour]) => line(colour, "", name || "no family"));
  const own = isAreas ? [line(paint.used, "", "GPUs allocated")] : [...named, line(paint.warn, "failed", "failed")];
  find("#families").replaceChildren(...own, line(paint.quiet, "soft", "predicted"));
}
