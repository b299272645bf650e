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

/** A text cut to a width, with … where something is missing. */
export function cut(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const letters = [...text];
  let low = 0;
  let high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(letters.slice(0, middle).join("") + "…").width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? letters.slice(0, low).join("") + "…" : "";
}

/** Whether letters on a colour of the style sheet (#rrggbb) should be dark. */
export function isLight(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 135;
}
