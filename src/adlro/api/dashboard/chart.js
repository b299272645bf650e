/** Lines and bars over time, drawn as SVG: crisp, light and dark by the style sheet. */

import { element, shape } from "./dom.js";
import { dated, dayOf, moment } from "./words.js";

const HEIGHT = 176;
const EDGE = { top: 10, right: 12, bottom: 22, left: 50 };
const STEPS = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600];
const DAY = 86400;
const LABEL = 64; // pixels that a label of the time axis needs

/** Round moments between two, as many as there is room for: [[moment, label], …]. */
export function ticks(first, last, width) {
  const wanted = (last - first) / Math.max(2, Math.floor(width / LABEL));
  const step = STEPS.find((each) => each >= wanted) ?? Math.ceil(wanted / DAY) * DAY;
  const shift = new Date(last * 1000).getTimezoneOffset() * 60; // so that they are round on the wall clock
  const found = [];
  for (let time = Math.ceil((first - shift) / step) * step + shift; time <= last; time += step) {
    const isMidnight = (time - shift) % DAY === 0;
    found.push([time, step >= DAY || isMidnight ? dayOf(time) : moment(time)]);
  }
  return found;
}

/** Draw lines into a holder: [{name, kind, points: [[time, value or null], …]}]; `written` writes a value. */
export function drawChart(holder, lines, { written, axis = written, range = null, empty }) {
  const values = lines.flatMap((line) => line.points.map(([, value]) => value)).filter((value) => value !== null);
  if (values.length < 2) {
    holder.replaceChildren(element("p", { class: "empty" }, empty));
    return;
  }
  const times = lines[0].points.map(([time]) => time);
  const [first, last] = [times[0], times.at(-1)];
  const span = range ?? around(values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b)));
  const { picture, x, y } = frame(holder, first, last, span, axis, summary(lines, written, first, last));
  for (const line of lines) picture.append(shape("path", { class: `line ${line.kind}`, d: path(line.points, x, y) }));
  const tell = legend(holder, picture, (number) => [
    lines.map((line) => [line.kind, line.name, written(line.points[number]?.[1] ?? null)]),
    number === times.length - 1 ? "now" : dated(times[number])]);
  point(picture, times, x, tell, (number) => number);
}

/** Draw bars into a holder: points [[time, value], …], each until the next; the last until `until`. */
export function drawColumns(holder, points, { until, written, axis = written, name, empty }) {
  const most = points.reduce((sum, [, value]) => Math.max(sum, value ?? 0), 0);
  if (!points.length || !most) {
    holder.replaceChildren(element("p", { class: "empty" }, empty));
    return;
  }
  const times = points.map(([time]) => time);
  const label = `${name}: ${written(points.at(-1)[1])} since ${dated(times.at(-1))}.`;
  const { picture, x, y } = frame(holder, times[0], until, [0, most * 1.08], axis, label);
  points.forEach(([time, value], number) => {
    const [left, right] = [x(time), x(times[number + 1] ?? until)];
    if (!value) return;
    picture.append(shape("rect", {
      class: "column", x: left + 1, width: Math.max(1, right - left - 2), y: y(value), height: y(0) - y(value) }));
  });
  const tell = legend(holder, picture, (number) => [
    [["own", name, written(points[number][1])]], `${dated(times[number])} – ${dated(times[number + 1] ?? until)}`]);
  point(picture, times, x, tell, (number, at) => (number && at < x(times[number]) ? number - 1 : number));
}

/** The axes. */
function frame(holder, first, last, [low, high], axis, label) {
  const width = Math.max(240, holder.clientWidth);
  const x = (time) => EDGE.left + ((time - first) / Math.max(1, last - first)) * (width - EDGE.left - EDGE.right);
  const y = (value) => EDGE.top + (1 - (value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const picture = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    const value = low + part * (high - low);
    picture.append(
      shape("line", { class: "rule", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
      shape("text", { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, axis(value)));
  }
  for (const [time, text] of ticks(first, last, width - EDGE.left - EDGE.right)) {
    const at = x(time);
    const anchor = at > width - EDGE.right - 22 ? "end" : at < EDGE.left + 18 ? "start" : "middle";
    picture.append(
      shape("line", { class: "rule", x1: at, x2: at, y1: HEIGHT - EDGE.bottom, y2: HEIGHT - EDGE.bottom + 4 }),
      shape("text", { x: at, y: HEIGHT - 5, "text-anchor": anchor }, text));
  }
  return { picture, x, y };
}

/** The names and values below a picture; the function it returns shows those of a number. */
function legend(holder, picture, valuesOf) {
  const line = element("p", { class: "chart-legend" });
  const stroke = (kind) => shape("path", { class: `line ${kind}`, d: "M1 4H21" });
  holder.replaceChildren(picture, line);
  return (number) => {
    const [values, when] = valuesOf(number);
    line.replaceChildren(...values.map(([kind, name, value]) => element("span", { class: "key" },
      shape("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, stroke(kind)),
      `${name} `, element("strong", {}, value))),
    element("span", { class: "quiet" }, when));
  };
}

/** Tell what is under the pointer, else the latest; `pick` may choose a neighbour. */
function point(picture, times, x, tell, pick) {
  const pointer = shape("line", { class: "pointer", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  picture.append(pointer);
  tell(times.length - 1);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * picture.viewBox.baseVal.width;
    const number = pick(nearest(times, at, x), at);
    for (const end of ["x1", "x2"]) pointer.setAttribute(end, x(times[number]));
    pointer.setAttribute("visibility", "visible");
    tell(number);
  });
  picture.addEventListener("pointerleave", () => {
    pointer.setAttribute("visibility", "hidden");
    tell(times.length - 1);
  });
}

/** The path of a line; where a value is missing it breaks off. */
function path(points, x, y) {
  let isDown = false;
  return points.map(([time, value]) => {
    if (value === null) {
      isDown = false;
      return "";
    }
    const step = `${isDown ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    isDown = true;
    return step;
  }).join("");
}

function nearest(times, at, x) {
  let best = 0;
  times.forEach((time, number) => {
    if (Math.abs(x(time) - at) < Math.abs(x(times[best]) - at)) best = number;
  });
  return best;
}

/** A range with round ends around values, wide enough that noise does not look like news. */
function around(least, most) {
  const middle = (least + most) / 2;
  const half = Math.max((most - least) * 0.6, middle * 0.15, 1);
  const step = 60 * 10 ** Math.floor(Math.log10(Math.max(1, half / 60)));
  return [Math.max(0, Math.floor((middle - half) / step) * step), Math.ceil((middle + half) / step) * step];
}

function summary(lines, written, first, last) {
  const now = lines.map((line) => `${line.name} ${written(line.points.at(-1)[1])}`).join(", ");
  return `From ${dated(first)} to ${dated(last)}; at the end: ${now}.`;
}
