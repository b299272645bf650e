/** Numbers, times and places as people say them. */

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const figures = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const form = (options) => new Intl.DateTimeFormat("en-GB", options);
const minute = form({ hour: "2-digit", minute: "2-digit" });
const second = form({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = form({ day: "numeric", month: "short" });
const dayAndYear = form({ day: "numeric", month: "short", year: "numeric" });
const weekday = form({ weekday: "short", day: "numeric", month: "short", year: "numeric" });
const zone = form({ timeZoneName: "short" });

export const MISSING = "–";
export const LONGEST = 48; // letters of a name in a table
const GLUE = "\u00a0"; // a number and its unit stay on one line

/** How the daemon works: in shadow it only says what it would do; what the cluster calls the partition of a job. */
export const mode = { isShadow: false, partition: "partition" };

/** A word as a heading has it. */
export const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const number = (value) => (isNumber(value) ? count.format(value) : MISSING);
export const score = (value) => (isNumber(value) ? figures.format(value).replace("-", "−") : MISSING);
export const percent = (value) => (isNumber(value) ? `${Math.round(value * 100)}${GLUE}%` : MISSING);

/** A noun with its number: "1 job", "12 jobs". */
export const many = (value, noun, plural = `${noun}s`) => `${number(value)} ${value === 1 ? noun : plural}`;

/** A length of time, to two figures that matter. */
export function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds > 0 && seconds < 0.95) return `${Math.max(1, Math.round(seconds * 1000))}${GLUE}ms`;
  if (seconds < 9.95) return `${Math.round(seconds * 10) / 10}${GLUE}s`;
  if (seconds < 99.5) return `${Math.round(seconds)}${GLUE}s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes}${GLUE}min`;
  const rest = String(minutes % 60).padStart(2, "0");
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)}${GLUE}h ${rest}${GLUE}min`;
  const hours = Math.round(seconds / 3600);
  return `${count.format(Math.floor(hours / 24))}${GLUE}d ${hours % 24}${GLUE}h`;
}

/** A length of time as short as an axis needs it. */
export function brief(seconds) {
  if (!isNumber(seconds)) return MISSING;
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([each]) => seconds >= 1.5 * each) ?? [1, "s"];
  const value = seconds / size;
  return `${value < 9.95 ? Math.round(value * 10) / 10 : Math.round(value)}${GLUE}${unit}`;
}

/** GPU-seconds as GPU-hours. */
export const gpuHours = (seconds) => (isNumber(seconds) ? `${figures.format(seconds / 3600)}${GLUE}GPU-h` : MISSING);

/** A size in bytes. */
export function bytes(size) {
  const units = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const [unit, name] = units.find(([each]) => size >= each) ?? [1, "B"];
  return `${figures.format(size / unit)}${GLUE}${name}`;
}

// ---- moments --------------------------------------------------------------------------------------------------------

const dateOf = (seconds) => new Date(seconds * 1000);

/** A moment on the wall clock; with its day, if that is not the day of `now`, and its year if that differs too. */
export function moment(seconds, now = seconds, precise = false) {
  if (!isNumber(seconds)) return MISSING;
  const [date, today] = [dateOf(seconds), dateOf(now)];
  const time = (precise ? second : minute).format(date);
  if (dayAndYear.format(date) === dayAndYear.format(today)) return time;
  return `${(date.getFullYear() === today.getFullYear() ? day : dayAndYear).format(date)} ${time}`;
}

/** A moment with its day, always. */
export const dated = (seconds) => (isNumber(seconds) ? `${dayOf(seconds)} ${minute.format(dateOf(seconds))}` : MISSING);
export const dayOf = (seconds) => day.format(dateOf(seconds));
export const fullDate = (seconds) => weekday.format(dateOf(seconds));

/** The name of the time zone in which moments are written, as it is at that moment. */
export const zoneOf = (seconds) =>
  zone.formatToParts(dateOf(seconds)).find((part) => part.type === "timeZoneName")?.value ?? "";

/** How far a moment is from now. */
export function away(seconds, now) {
  if (!isNumber(seconds)) return MISSING;
  const apart = seconds - now;
  if (Math.abs(apart) < 1) return "now";
  return apart > 0 ? `in ${duration(apart)}` : `${duration(-apart)} ago`;
}

/** A predicted start in two pieces, [when, more]. A start to come is never in the past: it is overdue. */
export function startWords(start, now) {
  if (!start || !isNumber(start.middle_s)) return ["not predicted yet", ""];
  const low = isNumber(start.low_s) ? start.low_s : start.middle_s;
  const high = isNumber(start.high_s) ? start.high_s : start.middle_s;
  if (high <= now) return ["any moment now", `overdue since ${moment(high, now)}`];
  if (start.middle_s <= now) return ["any moment now", `most likely by ${moment(high, now)}`];
  const [from, until] = [low <= now ? "now" : moment(low, now), moment(high, now)];
  const when = from === until ? from : `${from} – ${until}`;
  return [when, `likely ${away(start.middle_s, now)}`];
}

/** The two pieces as one phrase. */
export function startPhrase(start, now) {
  const [when, more] = startWords(start, now);
  return more ? `${when} (${more})` : when;
}

export const startHead = () => (mode.isShadow ? "Would start" : "Predicted start");

// ---- jobs -----------------------------------------------------------------------------------------------------------

/** A text cut in the middle: names that begin alike mostly end differently. */
export function short(text, most = LONGEST) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const tail = Math.floor((most - 1) * 0.4);
  return `${letters.slice(0, most - 1 - tail).join("")}…${letters.slice(letters.length - tail).join("")}`;
}

/** Where parts are: "4 × v100 on volta1". */
export function places(parts) {
  if (!parts || !parts.length) return MISSING;
  if (parts.length > 3) {
    const total = parts.reduce((sum, part) => sum + part.count, 0);
    return `${total} × ${parts[0].model} on ${many(parts.length, "node")}`;
  }
  return parts
    .map((part) => (part.count ? `${part.count} × ${part.model} on ${part.node}` : `${part.node}, no GPU`))
    .join(", ");
}

/** What a job is called: its name, else its number. */
export const title = (job) => job.job.name || `job ${job.id}`;

/** What a job asks for: "4 GPUs", "½ GPU", "no GPU". */
export function asked(job) {
  const { gpus, share = 1000, models = [] } = job.job;
  if (!gpus) return "no GPU";
  const amount = share < 1000 ? `${gpus > 1 ? `${gpus} × ` : ""}${share / 1000} GPU` : many(gpus, "GPU");
  return models.length ? `${amount}, ${models.join(" or ")}` : amount;
}

/** The state of a job. In shadow a job that was placed was only wished for. */
export const stateWord = (job) => (mode.isShadow && job.state === "placed" ? "would run" : job.state);
