/** Addresses: the overview at the top, and a page for each job, node, user and partition. */

import { element } from "./dom.js";
import { short } from "./words.js";

const ROOT = new URL("./", import.meta.url); // where this file lies, whatever page is open
const KINDS = ["job", "node", "user", "partition"];
const OVERVIEW = { kind: "overview", name: "" };

/** What the address in the browser names: {kind, name}. */
export function here(url = new URL(location.href)) {
  const [kind, ...rest] = url.pathname.slice(ROOT.pathname.length).split("/");
  if (!KINDS.includes(kind)) return OVERVIEW;
  try {
    const name = decodeURIComponent(rest.join("/"));
    return name ? { kind, name } : OVERVIEW;
  } catch {
    return OVERVIEW; // % with nothing behind it
  }
}

/** The address of a page; of the overview without arguments. */
export const address = (kind = "", name = "") =>
  kind ? new URL(`${kind}/${encodeURIComponent(name)}`, ROOT).href : ROOT.href;

/** A link to a page. Its text is the name, cut in the middle if it is long. */
export function link(kind, name, text = name, attributes = {}) {
  const shown = short(text);
  const whole = shown === text ? null : text;
  return element("a", { href: address(kind, name), title: whole, ...attributes }, shown);
}

/** The part of the address behind ?, as an object. */
export const query = () => Object.fromEntries(new URLSearchParams(location.search));

/** Put values behind ? without a new entry in the browser's history; empty ones are left out. */
export function useQuery(values) {
  const text = new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
  const url = location.pathname + (text ? `?${text}` : "");
  if (url !== location.pathname + location.search) history.replaceState(null, "", url);
}

/** Follow links of the page without loading it again. `changed` is called with {kind, name} after each move;
 * `peek` may take a link over: it gets {kind, name} and says whether it did. */
export function follow(changed, peek) {
  function go(url) {
    if (url.href !== location.href) history.pushState(null, "", url);
    changed(here());
    window.scrollTo(0, 0);
  }
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href]");
    const isPlain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (!anchor || !isPlain || event.defaultPrevented || anchor.target) return;
    const url = new URL(anchor.href);
    if (url.origin !== ROOT.origin || !url.pathname.startsWith(ROOT.pathname)) return;
    if (url.hash && url.pathname === location.pathname) return; // within the page
    event.preventDefault();
    if (!peek(here(url), anchor)) go(url);
  });
  window.addEventListener("popstate", () => changed(here()));
  return (kind, name) => go(new URL(address(kind, name)));
}
