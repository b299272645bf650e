/** Elements from plain data. Text goes in as text only: nothing on this page is ever read as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** Fill a node with attributes, listeners (onclick, …) and children; null, false and "" are left out. */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== false && child !== undefined));
  return node;
}

/** An HTML element. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const find = (selector, inside = document) => inside.querySelector(selector);

/** Set a text, but only if it changed: live regions then speak once. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show one child for each item. Children are kept by key, so that focus and selection outlive an update. */
export function keep(parent, items, key, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = before.get(name);
    before.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    update?.(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of before.values()) gone.remove();
}

/** A canvas made ready to be drawn on in CSS pixels, sharp on every screen. */
export function prepared(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/** The colours of the style sheet, as a canvas needs them; each is looked up once. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const known = {};
  return new Proxy(known, { get: (_, name) => (known[name] ??= style.getPropertyValue(`--${name}`).trim()) });
}

/** A text cut to a width, with … in its middle: names that begin alike mostly end differently. */
export function cut(pen, text, width) {
  return fitted(pen, text, width, (letters, kept) => {
    const tail = Math.max(1, Math.floor(kept * 0.45));
    return `${letters.slice(0, kept - tail).join("")}…${letters.slice(letters.length - tail).join("")}`;
  });
}

/** The longest form of a text that is not wider: `form` makes one from its letters and how many of them to keep. */
function fitted(pen, text, width, form) {
  if (pen.measureText(text).width <= width) return text;
  const letters = [...text];
  let low = 1; // one letter and … say nothing: then there is no text
  let high = letters.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(form(letters, middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? form(letters, low) : "";
}

/** Names cut to a width so that no two of them look the same: {name: text}. Those that would are cut where they
 * differ; if even that does not fit, they get a number. */
export function cutApart(pen, names, width) {
  const found = new Map([...new Set(names)].map((name) => [name, cut(pen, name, width)]));
  const alike = new Map();
  for (const [name, text] of found) alike.set(text, [...(alike.get(text) ?? []), name]);
  const taken = new Set();
  for (const [text, group] of alike) {
    if (group.length === 1) taken.add(text);
    else apart(pen, group, width, taken).forEach((each, at) => found.set(group[at], each));
  }
  return found;
}

function apart(pen, group, width, taken) {
  const [first, ...others] = group;
  let same = 0;
  while (others.every((name) => name[same] !== undefined && name[same] === first[same])) same += 1;
  return group.map((name, at) => {
    const tail = `…${name.slice(same)}`;
    let text = fitted(pen, tail, width, (letters, kept) => letters.slice(0, kept).join(""));
    if (!text || text === "…" || taken.has(text)) text = `…${at + 1}`;
    for (let more = at + 2; taken.has(text); more++) text = `…${more}`;
    taken.add(text);
    return text;
  });
}

/** Whether letters on a colour of the style sheet (#rrggbb) should be dark. */
export function isLight(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 135;
}
