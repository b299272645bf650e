/** The cluster as a grid of GPUs, pool by pool on canvases: sixteen large cells or eight thousand small ones. */

import { drawCell, drawFrame, FONT, showLegend } from "./cells.js";
import { colours, cutApart, element, find, keep, prepared, say } from "./dom.js";
import { placed } from "./layout.js";
import { duration, many, number, percent, title } from "./words.js";
import { HOT, summed } from "./world.js";

const NEAR = 3; // pixels around a cell that its frame may reach
const HEADER = 60; // height of what stays at the top of the page

/** Show the grid in the page; `open` is called with the id of a job, `openNode` with the name of a node. */
export function makeCluster(open, openNode) {
  const grid = find("#grid");
  const holder = find("#pools");
  const buttons = [...document.querySelectorAll("[data-figure]")];
  const search = find("#find-node");
  const tip = find("#grid-tip");
  let world = null;
  let pools = []; // those of the nodes that are looked for
  let figure = "busy"; // or heat
  let kind = null; // of the cells
  let places = []; // of each pool: {height, cells, labels}
  let cells = []; // of all pools, each with its canvas
  let current = null; // the cell under the keys or the pointer
  let isHovered = false;
  let marked = null; // the job whose panel is open
  let drawnWidth = 0;

  function show(next) {
    world = next;
    drawnWidth = holder.clientWidth;
    if (!drawnWidth) return; // another page is open
    pools = matching(world.pools, search.value.trim().toLowerCase());
    keep(holder, pools, (pool) => pool.model, makePool, updatePool);
    ({ kind, places } = pools.length ? placed(pools, drawnWidth) : { kind: null, places: [] });
    find("#find").hidden = world.byNode.size < 12 && !search.value;
    say(find("#find-said"), search.value.trim() ? foundWords(pools, world) : "");
    cells = places.flatMap((place, number) =>
      place.cells.map((cell) => ({ ...cell, canvas: holder.children[number].lastElementChild })));
    const before = current && cellName(current);
    if (!cells.length) hideTip();
    current = before ? (cells.find((cell) => cellName(cell) === before) ?? null) : null;
    showLegend(figure);
    showNotes(world);
    draw();
  }

  function makePool(pool) {
    return element("div", { class: "pool" },
      element("h3", {}, pool.model, " ", element("small", { class: "quiet" })),
      element("canvas", { "aria-hidden": "true" }));
  }

  function updatePool(node, pool) {
    say(find("small", node), poolWords(pool));
  }

  // ---- drawing ----

  function draw() {
    if (!world) return;
    const paint = colours();
    const pens = new Map();
    places.forEach(({ height, labels }, number) => {
      const canvas = holder.children[number].lastElementChild;
      const pen = prepared(canvas, drawnWidth, height);
      pen.textBaseline = "middle";
      pens.set(canvas, pen);
      pen.font = `${labels[0]?.isRuler ? 11 : 12}px ${FONT}`;
      const texts = cutApart(pen, labels.map(labelText), labels[0]?.width ?? 0);
      for (const label of labels) drawLabel(pen, paint, label, texts.get(labelText(label)));
    });
    if (kind?.name === "card") kind = { ...kind, names: cardNames(pens.values().next().value) };
    for (const cell of cells) drawCell(pens.get(cell.canvas), paint, cell, figure, kind);
    for (const cell of cells) drawFrames(pens.get(cell.canvas), paint, cell);
    showDetail();
  }

  /** The names of jobs as they fit on a card, no two the same. */
  function cardNames(pen) {
    pen.font = `600 12px ${FONT}`;
    const shared = world.gpus.some((gpu) => gpu.jobs.length > 1) ? 20 : 0; // room for "+1"
    return cutApart(pen, world.running.map(title), cells[0].width - 16 - shared);
  }

  const labelText = ({ node, isRuler }) => (node.down === null || isRuler ? node.name : `✕ ${node.name} is down`);

  function drawLabel(pen, paint, { node, x, y, isRuler }, text) {
    pen.fillStyle = node.down === null || isRuler ? paint.quiet : paint.warn;
    pen.fillText(text, x, y);
  }

  /** Frames around the cells of the job in the panel, and around the one that is pointed at. */
  function drawFrames(pen, paint, cell) {
    const holds = (gpu) => gpu.jobs.some((job) => job.id === marked);
    if (marked && cell.gpus.some(holds)) drawFrame(pen, cell, paint.chosen);
    if (cell === current && (isHovered || grid.matches(":focus"))) drawFrame(pen, cell, paint.ink);
  }

  /** Point at another cell, or at none: only what is around the two is drawn again. */
  function pointAt(cell) {
    const before = current;
    current = cell;
    const paint = colours();
    for (const each of [before, cell]) if (each) drawAround(each, paint);
    if (world) showDetail();
  }

  function drawAround(cell, paint) {
    const pen = cell.canvas.getContext("2d");
    const [left, top] = [cell.x - NEAR, cell.y - NEAR];
    const [width, height] = [cell.width + 2 * NEAR, cell.height + 2 * NEAR];
    const near = cells.filter((other) => other.canvas === cell.canvas
      && other.x < left + width && other.x + other.width > left
      && other.y < top + height && other.y + other.height > top);
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.clearRect(left, top, width, height);
    for (const other of near) drawCell(pen, paint, other, figure, kind);
    for (const other of near) drawFrames(pen, paint, other);
    pen.restore();
  }

  function showDetail() {
    const hint = "Point at a GPU, or move with the arrow keys, to see who runs there.";
    const nothing = world.gpus.length ? hint : "This cluster has no GPUs.";
    say(find("#grid-detail"), current ? cellWords(current, world.now) : nothing);
  }

  // ---- moving ----

  /** Go to a cell by key: say it, and bring it into view. */
  function goTo(cell) {
    if (!cell) return;
    pointAt(cell);
    say(find("#grid-current"), cellWords(cell, world.now)); // spoken on a move only, not at every tick
    const top = cell.canvas.getBoundingClientRect().top + cell.y;
    const isInView = top > HEADER && top + cell.height < window.innerHeight;
    if (!isInView) window.scrollBy({ top: top - window.innerHeight / 2 });
  }

  /** The nearest cell in the next row, above (−1) or below (1). */
  function nextRow(direction) {
    const tops = new Map([...holder.querySelectorAll("canvas")].map((canvas) => [canvas, canvas.offsetTop]));
    const place = (cell) => [cell.x + cell.width / 2, tops.get(cell.canvas) + cell.y];
    const [x, y] = place(current);
    let best = null;
    let least = Infinity;
    for (const cell of cells) {
      const [otherX, otherY] = place(cell);
      const ahead = (otherY - y) * direction;
      const cost = ahead * 1000 + Math.abs(otherX - x); // the next row first, then the nearest in it
      if (ahead > 1 && cost < least) [best, least] = [cell, cost];
    }
    return best;
  }

  function under({ target, offsetX: x, offsetY: y }) {
    if (!kind) return null;
    const isUnder = (cell) => cell.canvas === target
      && x >= cell.x && x < cell.x + cell.width + kind.gap && y >= cell.y && y < cell.y + cell.height + kind.gap;
    return cells.find(isUnder) ?? null;
  }

  /** The node whose name is under the pointer. */
  function labelUnder({ target, offsetX: x, offsetY: y }) {
    const at = [...holder.querySelectorAll("canvas")].indexOf(target);
    const isUnder = (label) => x >= label.x && x < label.x + label.width && Math.abs(y - label.y) < 8;
    return places[at]?.labels.find(isUnder)?.node ?? null;
  }

  /** Open the job on a cell; the node if it is free, or if the cell stands for all of it. */
  function openCurrent() {
    if (!current) return;
    const [job] = current.gpus.flatMap((gpu) => gpu.jobs);
    if (job && kind.name !== "node") open(job.id);
    else openNode(current.node.name);
  }

  /** Name what is pointed at beside the pointer, where the cells are too small for names. */
  function showTip(event) {
    tip.hidden = !current || !["dot", "tiny", "node"].includes(kind.name);
    if (tip.hidden) return;
    say(tip, cellWords(current, world.now));
    const box = grid.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${y + 18}px`;
  }

  function hideTip() {
    tip.hidden = true;
  }

  grid.addEventListener("pointermove", (event) => {
    const cell = under(event);
    isHovered = cell !== null;
    grid.style.cursor = cell || labelUnder(event) ? "pointer" : "";
    if (cell !== current) pointAt(cell);
    showTip(event);
  });
  grid.addEventListener("pointerleave", () => {
    isHovered = false;
    hideTip();
    pointAt(grid.matches(":focus") ? current : null);
  });
  grid.addEventListener("click", (event) => {
    const cell = under(event);
    const node = cell ? null : labelUnder(event);
    if (node) openNode(node.name);
    if (!cell) return;
    pointAt(cell);
    openCurrent();
  });
  grid.addEventListener("focus", () => goTo(current ?? cells[0]));
  grid.addEventListener("blur", () => pointAt(isHovered ? current : null));
  grid.addEventListener("keydown", (event) => {
    const at = cells.indexOf(current);
    const moves = {
      ArrowLeft: () => cells[Math.max(0, at - 1)],
      ArrowRight: () => cells[Math.min(cells.length - 1, at + 1)],
      ArrowUp: () => current && nextRow(-1),
      ArrowDown: () => current && nextRow(1),
      Home: () => cells[0],
      End: () => cells.at(-1),
    };
    if (event.key in moves) goTo(moves[event.key]());
    else if (event.key === "Enter" || event.key === " ") openCurrent();
    else if (event.key === "n" && current) openNode(current.node.name);
    else return;
    event.preventDefault();
  });
  search.addEventListener("input", () => world && show(world));
  find("#find").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = search.value.trim().toLowerCase();
    const names = [...world.byNode.keys()];
    const exact = names.find((name) => name.toLowerCase() === text);
    const hits = names.filter((name) => text && name.toLowerCase().includes(text));
    if (exact || hits.length === 1) openNode(exact ?? hits[0]);
  });
  for (const button of buttons) {
    button.addEventListener("click", () => {
      figure = button.dataset.figure;
      for (const other of buttons) other.setAttribute("aria-pressed", other === button);
      if (world) show(world);
    });
  }
  new ResizeObserver(() => {
    if (world && holder.clientWidth !== drawnWidth) show(world);
  }).observe(holder);

  function mark(job) {
    marked = job;
    draw();
  }
  return { show, mark };
}

/** The pools with only the nodes whose name has a text in it. */
function matching(pools, text) {
  if (!text) return pools;
  return pools.flatMap((pool) => {
    const nodes = pool.nodes.filter((node) => node.name.toLowerCase().includes(text));
    const gpus = nodes.flatMap((node) => node.gpus);
    return nodes.length ? [{ ...pool, nodes, gpus, ...summed(gpus) }] : [];
  });
}

function foundWords(pools, world) {
  const names = new Set(pools.flatMap((pool) => pool.nodes.map((node) => node.name)));
  if (!names.size) return "No node matches.";
  return `${number(names.size)} of ${many(world.byNode.size, "node")}`;
}

// ---- words ----------------------------------------------------------------------------------------------------------

const cellName = (cell) => `${cell.node.name}/${cell.gpus[0].index}`;

/** What the back end could not read as it should, and what the grid does not show. */
function showNotes({ state, emptyNodes, running }) {
  const bare = new Set(emptyNodes.map((node) => node.name));
  const there = running.filter((job) => job.parts.some((part) => bare.has(part.node))).length;
  const more = bare.size ? [`${many(bare.size, "node")} without GPUs, with ${many(there, "job")}.`] : [];
  const notes = [...state.snapshot.notes, ...more];
  find("#notes").hidden = !notes.length;
  keep(find("#notes"), notes, (note) => note, (note) => element("li", {}, note));
}

function poolWords(pool) {
  const down = pool.nodes.filter((node) => node.down !== null).length;
  const isHot = pool.hottest !== null && pool.hottest >= HOT;
  return [
    pool.up ? `${number(pool.used)} of ${many(pool.up, "GPU")} in use` : many(pool.total, "GPU"),
    pool.busy !== null ? `${percent(pool.busy)} busy` : pool.up ? "no telemetry" : "",
    isHot ? `hottest at ${percent(pool.hottest)} of the throttle point` : "",
    pool.silent && pool.busy !== null ? `${number(pool.silent)} without telemetry` : "",
    down ? `${many(down, "node")} down` : "",
  ].filter(Boolean).join(" · ");
}

/** What a cell shows, in words: for the line below the grid, and for those who hear the page. */
function cellWords(cell, now) {
  const [gpu] = cell.gpus;
  const isWhole = cell.gpus.length > 1;
  const which = isWhole ? many(cell.gpus.length, "GPU") : `GPU ${gpu.index}`;
  const place = `${cell.node.name}, ${which}, ${gpu.model}`;
  if (gpu.down !== null) return `${place}: down${gpu.down ? `, ${gpu.down}` : ""}`;
  if (isWhole) {
    const { used, busy } = summed(cell.gpus);
    return `${place}: ${used} in use, ${busy === null ? "telemetry missing" : `${percent(busy)} busy`}.`;
  }
  const who = gpu.jobs.length ? gpu.jobs.map((job) => jobWords(job, now)).join("; ") : "Free";
  const guess = gpu.guessed ? " The cluster does not say which of the node's GPUs." : "";
  return `${place}: ${figureWords(gpu)}. ${who}.${guess}`;
}

function figureWords({ busy, heat, memory, bandwidth, clock }) {
  if (busy === null && heat === null && memory === null) return "telemetry missing";
  return [
    busy === null ? "utilisation missing" : `${percent(busy)} busy`,
    heat === null ? "temperature missing" : `at ${percent(heat)} of the throttle point${heat >= HOT ? " (hot)" : ""}`,
    memory === null ? "" : `${percent(memory)} of the memory in use`,
    bandwidth === null ? "" : `${percent(bandwidth)} of the memory bandwidth`,
    clock === null || clock >= 1 ? "" : `its clock at ${percent(clock)}`,
  ].filter(Boolean).join(", ");
}

function jobWords(job, now) {
  const since = job.started_s === null ? "about to start" : `for ${duration(now - job.started_s)}`;
  return `${title(job)}${job.job.user ? ` of ${job.job.user}` : ""}, ${since}`;
}
