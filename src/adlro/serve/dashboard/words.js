/** Numbers, times and places as people say them. */

const count = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const second = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const MISSING = "–";
const GLUE = "\u00a0"; // a number and its unit stay on one line

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const number = (value) => (isNumber(value) ? count.format(value) : MISSING);
export const score = (value) => (isNumber(value) ? short.format(value).replace("-", "−") : MISSING);
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
  return `${Math.round((seconds / size) * 10) / 10}${GLUE}${unit}`;
}

/** A moment on the wall clock; with its day, if that is not the day of `now`. */
export function moment(seconds, now = seconds, precise = false) {
  if (!isNumber(seconds)) return MISSING;
  const date = new Date(seconds * 1000);
  const time = (precise ? second : minute).format(date);
  return day.format(date) === day.format(new Date(now * 1000)) ? time : `${day.format(date)} ${time}`;
}

/** How far a moment is from now. */
export function away(seconds, now) {
  if (!isNumber(seconds)) return MISSING;
  const apart = seconds - now;
  if (Math.abs(apart) < 1) return "now";
  return apart > 0 ? `in ${duration(apart)}` : `${duration(-apart)} ago`;
}

/** The interval of a predicted start; "not foreseen" where there is none. */
export function interval(start, now) {
  if (!start || !isNumber(start.middle_s)) return "not foreseen";
  const [low, high] = [moment(start.low_s, now), moment(start.high_s, now)];
  return low === MISSING || high === MISSING || low === high ? moment(start.middle_s, now) : `${low} – ${high}`;
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
