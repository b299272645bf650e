/** The measured history from the store, an hour or eight weeks of it: allocated GPUs, the queue, time in the system. */

import { ask } from "./api.js";
import { drawChart } from "./chart.js";
import { find, say } from "./dom.js";
import { brief, dated, duration, number, percent, zoneOf } from "./words.js";

const POINTS = 600; // the most that a chart shows
const STALE_MS = 15_000; // after so long the history is read again
const GAP = 4; // a pause of so many steps is shown as a gap
const LEAST_GAP_S = 240;

/** Show the charts in the page. */
export function makeCourse() {
  const buttons = [...document.querySelectorAll("[data-range]")];
  let hours = 24;
  let answer = null;
  let readAt = -Infinity;
  let question = 0;
  let names = { policy: "", fallback: "" };

  /** Read again what has become old. */
  async function refresh(world, isForced = false) {
    names = world.state;
    if (!isForced && performance.now() - readAt < STALE_MS) return;
    const mine = ++question;
    readAt = performance.now();
    const since = Math.max(0, Math.floor((world.now - hours * 3600) / 60) * 60);
    const found = await ask("history", { asked: { since, limit: POINTS } });
    if (mine !== question) return;
    answer = found;
    show();
  }

  function show() {
    if (!answer) return;
    const points = withGaps(answer.history, answer.step_s);
    const line = (name, kind, key) => ({ name, kind, points: points.map((each) => [each.time_s, each[key] ?? null]) });
    const [first, last] = [points[0]?.time_s, points.at(-1)?.time_s];
    const resolution = answer.step_s ? `, means over ${duration(answer.step_s)}` : "";
    const whole = points.length > 1 ? `${dated(first)} – ${dated(last)} ${zoneOf(last)}${resolution}` : "";
    say(find("#course-said"), whole);
    drawChart(find("#utilisation-chart"), [line("allocated", "own", "utilisation")],
      { written: percent, range: [0, 1], empty: "Too little was measured yet." });
    const most = points.reduce((sum, each) => Math.max(sum, each.waiting ?? 0, each.running ?? 0), 4);
    drawChart(find("#queue-chart"), [line("running", "own", "running"), line("waiting", "other", "waiting")],
      { written: (value) => number(value === null ? null : Math.round(value)), range: [0, rounded(most)],
        empty: "Too little was measured yet." });
    const both = [line(names.policy, "own", "jct_s"), line(`${names.fallback}, predicted`, "other", "fallback_jct_s")];
    drawChart(find("#jct-chart"), both, { written: duration, axis: brief, empty: "Too few jobs have ended yet." });
  }

  function useRange(world) {
    for (const button of buttons) {
      button.addEventListener("click", () => {
        hours = Number(button.dataset.range);
        for (const other of buttons) other.setAttribute("aria-pressed", other === button);
        if (world()) refresh(world(), true).catch(() => {});
      });
    }
  }
  return { refresh, show, useRange };
}

/** The points with an empty one where the daemon did not measure for a while. */
function withGaps(points, step) {
  const apart = points.slice(1).map((each, number) => each.time_s - points[number].time_s).sort((a, b) => a - b);
  const usual = Math.max(LEAST_GAP_S, GAP * step, GAP * (apart[apart.length >> 1] ?? 0));
  return points.flatMap((each, number) => {
    const before = points[number - 1];
    return before && each.time_s - before.time_s > usual ? [{ time_s: before.time_s + 1 }, each] : [each];
  });
}

/** A round number from a value on. */
function rounded(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return Math.ceil((value * 1.05) / size) * size;
}
