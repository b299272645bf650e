/** One GPU as a small picture, from a card with words down to six pixels; its state is told by shape and by colour. */

import { colours, cut, element, find, prepared } from "./dom.js";
import { percent, title } from "./words.js";
import { HOT, summed } from "./world.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

const WIDE = 110; // a card with room for words

/** Draw one cell. Its state is told by shape as well as by colour: fill height, stripes, cross, corner. */
export function drawCell(pen, paint, cell, figure, kind) {
  const { x, y, width, height, gpus } = cell;
  const [gpu] = gpus;
  const sum = gpus.length > 1 ? summed(gpus) : null;
  const value = sum ? (figure === "busy" ? sum.busy : sum.hottest) : gpu[figure];
  const isUsed = gpus.some((each) => each.jobs.length);
  const [strong, soft] = figure === "busy" ? [paint.used, paint["used-soft"]] : [paint.heat, paint["heat-soft"]];
  const round = kind.name === "card" ? 6 : kind.name === "chip" ? 4 : kind.name === "dot" ? 2 : 0;

  if (gpu.down !== null) {
    box(pen, x, y, width, height, round, paint.lane);
    cross(pen, cell, paint.quiet, kind);
    if (kind.name === "card") text(pen, paint.quiet, gpuName(gpu, width), x + 8, y + 15, width - 16, "12px");
    return;
  }
  box(pen, x, y, width, height, round, isUsed ? soft : paint.page);
  if (value === null) {
    if (isUsed || kind.name !== "card") stripes(pen, x, y, width, height, round, isUsed ? strong : paint.grid);
  } else if (value > 0) {
    pen.save();
    pen.beginPath();
    pen.roundRect(x, y, width, height, round);
    pen.clip();
    pen.fillStyle = strong;
    if (kind.name === "card") pen.fillRect(x, y + height - 5, width * Math.min(1, value), 5);
    else pen.fillRect(x, y + height * (1 - Math.min(1, value)), width, height);
    pen.restore();
  }
  outline(pen, x, y, width, height, round, isUsed ? strong : paint.grid);
  if (gpus.some((each) => each.heat !== null && each.heat >= HOT)) corner(pen, cell, paint, kind);
  if (kind.name === "card") drawCard(pen, paint, cell, value, kind.names);
  else if (kind.name === "chip") {
    const covered = value !== null && value > 0.55;
    pen.font = `11px ${FONT}`;
    pen.textAlign = "center";
    pen.fillStyle = value === null ? paint.quiet : covered ? paint["on-used"] : paint.ink;
    pen.fillText(value === null ? "?" : String(Math.round(value * 100)), x + width / 2, y + height / 2 + 1);
    pen.textAlign = "left";
  }
}

const gpuName = (gpu, width) => (width > WIDE ? `GPU ${gpu.index}` : `${gpu.index}`);

/** The words on a large cell: which GPU, who runs there, how busy. */
function drawCard(pen, paint, cell, value, names) {
  const { x, y, width } = cell;
  const [gpu] = cell.gpus;
  const right = value !== null ? percent(value) : width > WIDE ? "no data" : "?";
  pen.font = `600 12px ${FONT}`;
  const rightWidth = pen.measureText(right).width;
  const hot = gpu.heat !== null && gpu.heat >= HOT ? 12 : 0;
  pen.fillStyle = value === null ? paint.quiet : paint.ink;
  pen.fillText(right, x + width - 8 - hot - rightWidth, y + 15);
  text(pen, paint.quiet, gpuName(gpu, width), x + 8, y + 15, width - 24 - hot - rightWidth, "12px");
  const [job] = gpu.jobs;
  const more = gpu.jobs.length > 1 ? ` +${gpu.jobs.length - 1}` : "";
  const name = job ? (names?.get(title(job)) ?? title(job)) + more : "free";
  const user = job?.job.user ?? "";
  text(pen, job ? paint.ink : paint.quiet, name, x + 8, y + 31, width - 16, `${job ? "600 " : ""}12px`);
  if (user) text(pen, paint.quiet, user, x + 8, y + 45, width - 16, "11px");
}

function text(pen, colour, words, x, y, width, font) {
  pen.font = `${font} ${FONT}`;
  pen.fillStyle = colour;
  pen.fillText(cut(pen, words, width), x, y);
}

function box(pen, x, y, width, height, round, fill) {
  pen.fillStyle = fill;
  pen.beginPath();
  pen.roundRect(x, y, width, height, round);
  pen.fill();
}

function outline(pen, x, y, width, height, round, colour) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.roundRect(x + 0.5, y + 0.5, width - 1, height - 1, round);
  pen.stroke();
}

function stripes(pen, x, y, width, height, round, colour) {
  pen.save();
  pen.beginPath();
  pen.roundRect(x, y, width, height, round);
  pen.clip();
  pen.strokeStyle = colour;
  pen.globalAlpha = 0.45;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = -height; at < width; at += Math.max(3, Math.min(6, width / 3))) {
    pen.moveTo(x + at, y + height);
    pen.lineTo(x + at + height, y);
  }
  pen.stroke();
  pen.restore();
}

function cross(pen, { x, y, width, height }, colour, kind) {
  const half = kind.name === "card" ? 8 : Math.min(width, height) / 2 - 1;
  const [middleX, middleY] = [x + width / 2, y + height / 2 + (kind.name === "card" ? 6 : 0)];
  pen.strokeStyle = colour;
  pen.lineWidth = kind.name === "card" || kind.name === "chip" ? 1.5 : 1;
  pen.beginPath();
  pen.moveTo(middleX - half, middleY - half);
  pen.lineTo(middleX + half, middleY + half);
  pen.moveTo(middleX + half, middleY - half);
  pen.lineTo(middleX - half, middleY + half);
  pen.stroke();
}

/** A triangle in the corner: this GPU is hot. */
function corner(pen, { x, y, width }, paint, kind) {
  const size = { card: 14, chip: 11, dot: 7 }[kind.name] ?? 4;
  pen.fillStyle = paint.ink;
  pen.strokeStyle = paint.page;
  pen.lineWidth = kind.name === "tiny" || kind.name === "node" ? 0.5 : 1.5;
  pen.beginPath();
  pen.moveTo(x + width - size, y);
  pen.lineTo(x + width, y);
  pen.lineTo(x + width, y + size);
  pen.closePath();
  pen.stroke();
  pen.fill();
}

/** A frame around a cell; within it where there is room, so that no edge cuts it. */
export function drawFrame(pen, { x, y, width, height }, colour) {
  const isLarge = width > 20;
  const inset = isLarge ? 1 : -0.5;
  pen.strokeStyle = colour;
  pen.lineWidth = isLarge ? 2.5 : 2;
  pen.beginPath();
  pen.roundRect(x + inset, y + inset, width - 2 * inset, height - 2 * inset, isLarge ? 5 : 1);
  pen.stroke();
}

/** The legend is drawn by the same hand as the cells. */
export function showLegend(figure) {
  const gpu = (more) => ({ down: null, busy: 0, heat: 0, jobs: [], index: 0, node: "", ...more });
  const value = { [figure]: 0.6 };
  const samples = [
    [`in use, filled by ${figure === "busy" ? "utilisation" : "temperature"}`, gpu({ jobs: [{}], ...value })],
    ["free", gpu({})],
    ["telemetry missing", gpu({ jobs: [{}], busy: null, heat: null })],
    ["hot", gpu({ jobs: [{}], ...value, heat: figure === "heat" ? 0.95 : HOT })],
    ["node down", gpu({ down: "" })],
  ];
  const kind = { name: "dot" };
  const colour = colours();
  find("#legend").replaceChildren(...samples.map(([label, sample]) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    drawCell(prepared(canvas, 15, 15), colour, { x: 1, y: 1, width: 13, height: 13, gpus: [sample] }, figure, kind);
    return element("li", {}, canvas, label);
  }));
}
