/** Lines over time, drawn as SVG: crisp, light and dark by the style sheet. */

import { element, shape } from "./dom.js";
import { moment } from "./words.js";

const HEIGHT = 168;
const EDGE = { top: 10, right: 10, bottom: 20, left: 46 };

/** Draw lines into a holder: [{name, kind, points: [[time, value or null], …]}]; `written` writes a value. */
export function drawChart(holder, lines, { written, axis = written, range = null, empty }) {
  const values = lines.flatMap((line) => line.points.map(([, value]) => value)).filter((value) => value !== null);
  if (values.length < 2) {
    holder.replaceChildren(element("p", { class: "empty" }, empty));
    return;
  }
  const times = lines.flatMap((line) => line.points.map(([time]) => time));
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const [low, high] = range ?? around(Math.min(...values), Math.max(...values));
  const width = Math.max(240, holder.clientWidth);
  const x = (time) => EDGE.left + ((time - first) / Math.max(1, last - first)) * (width - EDGE.left - EDGE.right);
  const y = (value) => EDGE.top + (1 - (value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);

  const label = summary(lines, written, first, last);
  const picture = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    const value = low + part * (high - low);
    picture.append(
      shape("line", { class: "rule", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
      shape("text", { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, axis(value)));
  }
  for (const [time, anchor] of [[first, "start"], [last, "end"]]) {
    picture.append(shape("text", { x: x(time), y: HEIGHT - 4, "text-anchor": anchor }, moment(time, last)));
  }
  for (const line of lines) picture.append(shape("path", { class: `line ${line.kind}`, d: path(line.points, x, y) }));
  const pointer = shape("line", { class: "pointer", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  picture.append(pointer);

  const legend = element("p", { class: "chart-legend" });
  const tell = (number) => {
    const time = lines[0].points[number]?.[0];
    const stroke = (kind) => shape("path", { class: `line ${kind}`, d: "M1 4H21" });
    legend.replaceChildren(...lines.map((line) => element("span", { class: "key" },
      shape("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, stroke(line.kind)),
      `${line.name} `, element("strong", {}, written(line.points[number]?.[1] ?? null)))),
    element("span", { class: "quiet" }, number === lines[0].points.length - 1 ? "now" : moment(time, last)));
  };
  tell(lines[0].points.length - 1);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    const time = first + ((at - EDGE.left) / (width - EDGE.left - EDGE.right)) * (last - first);
    const number = nearest(lines[0].points, time);
    pointer.setAttribute("x1", x(lines[0].points[number][0]));
    pointer.setAttribute("x2", x(lines[0].points[number][0]));
    pointer.setAttribute("visibility", "visible");
    tell(number);
  });
  picture.addEventListener("pointerleave", () => {
    pointer.setAttribute("visibility", "hidden");
    tell(lines[0].points.length - 1);
  });
  holder.replaceChildren(picture, legend);
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

function nearest(points, time) {
  let best = 0;
  points.forEach(([each], number) => {
    if (Math.abs(each - time) < Math.abs(points[best][0] - time)) best = number;
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
  return `From ${moment(first, last)} to ${moment(last, last)}; at the end: ${now}.`;
}
