/** How the timeline is drawn. A `view` has the pen, the colours, and where a moment is: scale(time). */

import { FONT } from "./cells.js";
import { cut, cutApart, isLight } from "./dom.js";
import { asked, dayOf, duration, mode, moment, places, startPhrase, title } from "./words.js";

export const AXIS = 22; // height of the axis at the top
export const NEXT_HEIGHT = 18; // of the line of a waiting job
const STEPS = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const LEAST_LETTERS = 5; // of a name that is cut
const FAR = 1e5; // beyond any edge; the clip does the rest

/** Round times at the top, with lines down to `bottom`. */
export function drawAxis({ pen, paint, scale, from, until, now }, bottom) {
  const wanted = (until - from) / Math.max(3, (scale(until) - scale(from)) / 90);
  const step = STEPS.find((each) => each >= wanted) ?? STEPS.at(-1);
  const shift = new Date(now * 1000).getTimezoneOffset() * 60; // so that they are round on the wall clock
  pen.font = `11px ${FONT}`;
  pen.textAlign = "center";
  pen.strokeStyle = paint.grid;
  pen.fillStyle = paint.quiet;
  pen.lineWidth = 1;
  for (let time = Math.ceil((from - shift) / step) * step + shift; time < until; time += step) {
    const x = Math.round(scale(time)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, AXIS - 4);
    pen.lineTo(x, bottom);
    pen.stroke();
    const hasRoom = Math.abs(x - scale(now)) > 34 && x > scale(from) + 14 && x < scale(until) - 14;
    const isMidnight = (time - shift) % 86400 === 0;
    if (hasRoom) pen.fillText(isMidnight ? dayOf(time) : moment(time), x, 8);
  }
  pen.textAlign = "left";
}

/** The line between what happened and what is predicted. */
export function drawNow({ pen, paint, scale, now }, height) {
  const x = scale(now);
  pen.strokeStyle = paint.chosen;
  pen.fillStyle = paint.chosen;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x, 16);
  pen.lineTo(x, height - 6);
  pen.stroke();
  pen.font = `600 11px ${FONT}`;
  pen.textAlign = "center";
  pen.fillText("now", x, 8);
  pen.textAlign = "left";
}

/** Names at the left; where rows are too thin for all, some are left out. */
export function drawRowNames({ pen, paint, gutter }, rows) {
  pen.font = `12px ${FONT}`;
  const texts = cutApart(pen, rows.map((row) => (row.isDown ? `✕ ${row.name}` : row.name)), gutter - 8);
  let last = -Infinity;
  for (const row of rows) {
    const y = row.y + row.height / 2;
    if (y - last < 13) continue;
    pen.fillStyle = row.isDown ? paint.warn : paint.quiet;
    pen.fillText(texts.get(row.isDown ? `✕ ${row.name}` : row.name), 0, y);
    last = y;
  }
}

// ---- a row for each GPU ---------------------------------------------------------------------------------------------

/** Bars on the lanes of their GPUs; neighbouring lanes of one job are one bar. What can be pointed at. */
export function drawBars(view, rows, bars, families) {
  const texts = new Map(); // cut names, and whose they are
  const { pen, paint, scale, gutter, now } = view;
  const byNode = new Map(rows.map((row) => [row.name, { ...row, busyUntil: row.gpus.map(() => -Infinity) }]));
  pen.fillStyle = paint.lane;
  for (const row of rows) pen.fillRect(gutter, row.y, FAR, row.height);
  const items = [];
  for (const bar of bars) {
    const x = scale(bar.from);
    const width = Math.max(2, scale(bar.until) - x);
    const boxes = bar.job.parts.flatMap((part) => {
      const row = byNode.get(part.node);
      if (!row || !part.count) return [];
      return runs(lanes(part, row, bar)).map(([first, length]) =>
        ({ x, y: row.y + first * row.lane, width, height: length * row.lane - 1 }));
    });
    if (!boxes.length) continue;
    const colour = families.get(bar.job.job.family);
    for (const box of boxes) drawBar(view, box, bar.job, scale(bar.end ?? now), colour, texts);
    items.push({ job: bar.job, boxes, words: barWords(bar, now) });
  }
  return items;
}

/** The lanes of a node that a part takes: those it names, else the first of its model that are free by then. */
function lanes(part, row, bar) {
  let taken = (part.indices ?? []).filter((index) => index < row.gpus.length);
  if (!taken.length) {
    const isBusy = (lane) => row.busyUntil[lane] > bar.from;
    const own = [...row.gpus.keys()].filter((lane) => row.gpus[lane].model === part.model);
    taken = own.sort((a, b) => isBusy(a) - isBusy(b) || a - b).slice(0, part.count);
  }
  for (const lane of taken) row.busyUntil[lane] = Math.max(row.busyUntil[lane], bar.until);
  return taken;
}

/** Runs of neighbouring numbers: [first, length]. */
function runs(numbers) {
  const found = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[0] + last[1] === number) last[1] += 1;
    else found.push([number, 1]);
  }
  return found;
}

/** A bar: strong until `solidUntil`, faint where it is predicted, with the job's name where there is room. */
function drawBar({ pen, paint, gutter }, { x, y, width, height }, job, solidUntil, colour, texts) {
  const solid = Math.max(0, Math.min(width, solidUntil - x));
  pen.fillStyle = colour;
  pen.globalAlpha = 0.3;
  pen.fillRect(x, y, width, height);
  pen.globalAlpha = 1;
  pen.fillRect(x, y, solid, height);
  if (job.state === "failed") {
    pen.fillStyle = paint.warn;
    pen.fillRect(x + width - 4, y, 4, height);
  }
  pen.strokeStyle = paint.page;
  pen.lineWidth = 1;
  pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);

  if (height < 11) return;
  const left = Math.max(x, gutter) + 5;
  const isOnSolid = x + solid - left > 60 || solid > width / 2;
  const start = isOnSolid ? left : x + solid + 5;
  const room = x + (isOnSolid ? solid : width) - start - 4;
  if (room < 24) return;
  pen.font = `11px ${FONT}`;
  pen.fillStyle = !isOnSolid ? paint.ink : isLight(colour) ? "#101418" : "#ffffff";
  const [whole, text] = [title(job), cut(pen, title(job), room)];
  if (text !== whole && (text.length < LEAST_LETTERS || (texts.get(text) ?? whole) !== whole)) return;
  texts.set(text, whole); // two names are never cut to the same text: the second has none
  pen.fillText(text, start, y + height / 2 + 0.5);
}

const whose = (job) => title(job) + (job.job.user ? ` of ${job.job.user}` : "");

function barWords({ job, from, end, until }, now) {
  const who = `${whose(job)}, ${places(job.parts)}: ${job.state}`;
  if (end !== null) return `${who}, ${moment(from, now)} to ${moment(end, now)}, ran ${duration(end - from)}.`;
  const rest = until > now ? `expected to end at ${moment(until, now)}` : "longer than predicted, or without a prediction";
  return `${who} since ${moment(from, now)}, ${rest}.`;
}

// ---- a row for each pool --------------------------------------------------------------------------------------------

/** GPUs allocated in each pool over time. */
export function drawAreas({ pen, paint, scale, now }, rows, bars) {
  for (const row of rows) {
    pen.fillStyle = paint.lane;
    pen.fillRect(0, row.y, FAR, row.height);
    const path = area(row, bars, scale);
    for (const [from, until, strength] of [[-FAR, scale(now), 1], [scale(now), FAR, 0.3]]) {
      pen.save();
      pen.beginPath();
      pen.rect(from, row.y, until - from, row.height);
      pen.clip();
      pen.globalAlpha = strength;
      pen.fillStyle = paint.used;
      pen.fill(path);
      pen.restore();
    }
  }
}

/** The outline of a row's area: up where a job begins, down where it ends. */
function area(row, bars, scale) {
  const changes = [];
  for (const bar of bars) {
    const own = bar.job.parts.filter((part) => part.model === row.name);
    const count = own.reduce((sum, part) => sum + part.count, 0);
    if (count) changes.push([bar.from, count], [bar.until, -count]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  const bottom = row.y + row.height;
  let level = 0;
  const y = () => bottom - row.height * Math.min(1, level / row.total);
  const path = new Path2D();
  path.moveTo(-FAR, bottom);
  for (const [time, change] of changes) {
    path.lineTo(scale(time), y());
    level += change;
    path.lineTo(scale(time), y());
  }
  path.lineTo(FAR, y());
  path.lineTo(FAR, bottom);
  return path;
}

// ---- who is next ----------------------------------------------------------------------------------------------------

/** Waiting jobs: the interval of the predicted start as a line, its middle as a mark. What can be pointed at. */
export function drawNext(view, waiting, top) {
  if (!waiting.length) return [];
  const { pen, paint } = view;
  pen.font = `600 11px ${FONT}`;
  pen.fillStyle = paint.quiet;
  pen.fillText(mode.isShadow ? "Would start" : "Next", 0, top + 8);
  return waiting.map(({ job, start }, number) => drawStart(view, job, start, top + 8 + number * NEXT_HEIGHT));
}

function drawStart({ pen, paint, scale, until, now, gutter, width }, job, start, y) {
  const end = scale(until);
  const ahead = (time) => Math.min(end, scale(Math.max(now, time))); // a start to come is not in the past
  const low = ahead(start.low_s ?? start.middle_s);
  const high = ahead(start.high_s ?? start.middle_s);
  const isBeyond = start.middle_s > until;
  pen.strokeStyle = paint.quiet;
  pen.fillStyle = paint.quiet;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(low, y);
  pen.lineTo(Math.max(low + 1, high), y);
  for (const x of [low, high]) {
    pen.moveTo(x, y - 3);
    pen.lineTo(x, y + 3);
  }
  pen.stroke();
  if (!isBeyond) {
    pen.beginPath();
    pen.arc(ahead(start.middle_s), y, 3.5, 0, 2 * Math.PI);
    pen.fill();
  }

  pen.font = `11px ${FONT}`;
  const label = isBeyond ? `${title(job)} → ${moment(start.middle_s, now)}` : title(job);
  const whole = pen.measureText(label).width;
  const isRight = high + 8 + whole <= width - 4;
  const room = isRight ? whole : Math.min(whole, low - gutter - 12);
  const x = isRight ? high + 8 : Math.max(gutter, low - 8 - room);
  const shown = cut(pen, label, room + 1);
  pen.strokeStyle = paint.page;
  pen.lineWidth = 4;
  pen.strokeText(shown, x, y); // so that a line behind does not cross the letters
  pen.fillStyle = paint.ink;
  pen.fillText(shown, x, y);

  const left = Math.min(x, low);
  const verb = mode.isShadow ? "would start" : "predicted to start";
  return {
    job,
    boxes: [{ x: left, y: y - 8, width: Math.max(x + room, high) - left, height: 16 }],
    words: `${whose(job)}, ${asked(job)}: waits, ${verb} ${startPhrase(start, now)}.`,
  };
}
