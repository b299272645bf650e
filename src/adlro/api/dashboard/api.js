/** Talking to the daemon: one question at a time, and the stream of what happens. */

const BASE = new URL("api/v1/", import.meta.url); // beside this file, whatever page is open
const KEY = "adlro-token";
const LONGEST_MS = 15_000; // for one answer
const QUIET_S = 40; // the daemon says something at least every 15 s; after so long the stream counts as gone

/** An answer that is not the one asked for; its message is for the user. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The token lives as long as this tab, and nowhere else.
export const token = () => sessionStorage.getItem(KEY) ?? "";
export function useToken(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

function headers(more = {}) {
  return token() ? { ...more, Authorization: `Bearer ${token()}` } : more;
}

/** Ask the daemon; what it answers, or null if `etag` says that nothing changed. */
export async function ask(path, { method = "GET", body, etag, asked = {} } = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(asked)) {
    for (const each of [value].flat()) if (each !== "") url.searchParams.append(name, each);
  }
  const sent = headers(body === undefined ? {} : { "Content-Type": "application/json" });
  if (etag?.value) sent["If-None-Match"] = etag.value;
  let answer;
  try {
    answer = await fetch(url, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal: AbortSignal.timeout(LONGEST_MS),
    });
  } catch {
    throw new Refused("The daemon does not answer.", 0);
  }
  if (answer.status === 304) return null;
  const text = await answer.text();
  if (!answer.ok) throw new Refused(complaint(text, answer.status), answer.status);
  if (etag) etag.value = answer.headers.get("ETag");
  return JSON.parse(text);
}

/** Whether the daemon is well; else why not. */
export async function illness() {
  const answer = await fetch(new URL("readyz", import.meta.url), { headers: headers(), cache: "no-store" });
  return answer.ok ? "" : (await answer.json()).why || "the daemon is not ready";
}

/** What an error answer says: what is wrong, what was expected, what to do. */
function complaint(text, status) {
  try {
    const { what, expected, do: advice } = JSON.parse(text).error;
    const bare = (words) => words.replace(/\.$/, "");
    const wrong = what[0].toUpperCase() + bare(what.slice(1));
    return `${wrong}${expected ? `; expected ${bare(expected)}` : ""}. ${advice ?? ""}`.trim();
  } catch {
    return `The daemon answered ${status}.`;
  }
}

/** Follow the stream until it ends; `heard` gets each event. Comes back when it ends, and raises when it breaks. */
async function follow(last, heard, opened) {
  const stop = new AbortController();
  let timer = 0;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), QUIET_S * 1000);
  };
  alive();
  try {
    const sent = headers({ Accept: "text/event-stream" });
    if (last.id) sent["Last-Event-ID"] = last.id;
    const answer = await fetch(new URL("events", BASE), { headers: sent, cache: "no-store", signal: stop.signal });
    if (!answer.ok) throw new Refused(complaint(await answer.text(), answer.status), answer.status);
    opened();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (!event) continue;
        last.id = event.id || last.id;
        heard(event);
      }
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

/** One block of a stream; null if it is only a sign of life. */
export function parsed(block) {
  const event = { id: "", kind: "message", data: "" };
  for (const line of block.split(/\r?\n/)) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) ?? [];
    if (name === "id") event.id = value;
    else if (name === "event") event.kind = value;
    else if (name === "data") event.data += value;
  }
  return event.data ? event : null;
}

/** Listen for ever: after each end come back, later and later. `changed` hears whether the stream is up.
 *
 * The function that it returns comes back at once. */
export function listen(heard, changed) {
  const last = { id: "" };
  let wait = 1;
  let wake = () => {};
  const opened = () => {
    wait = 1;
    changed(true);
  };
  (async () => {
    for (;;) {
      await follow(last, heard, opened).catch(() => {});
      changed(false);
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, wait * 1000 * (0.8 + 0.4 * Math.random())); // not all pages at once
      });
      wait = Math.min(15, wait * 2);
    }
  })();
  return () => wake();
}
