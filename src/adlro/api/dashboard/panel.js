/** The panel at the side: a job at a glance, or a form. Escape closes it, and focus goes back. */

import { element, find, say } from "./dom.js";
import { jobActions, jobContent, jobFacts, jobTitle, readJob } from "./job.js";
import { address } from "./route.js";

/** Make the panel; `closed` is called after it closed. */
export function makePanel(closed) {
  const dialog = find("#panel");
  const body = find("#panel-body");

  function open(heading, ...content) {
    say(find("#panel-title"), heading);
    body.replaceChildren(...content);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    (find("[autofocus]", body) ?? find("#panel-title")).focus();
  }

  find("#close-panel").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // a click beside the panel
  });
  dialog.addEventListener("close", () => closed());
  return { open, close: () => dialog.open && dialog.close(), isOpen: () => dialog.open };
}

/** Show a job in the panel; the function it returns reads it again. */
export function openJob(panel, id, { now, me, changed }) {
  const content = element("div", { "aria-busy": "true" }, element("p", { class: "quiet" }, "Reading …"));
  const actions = element("div", { class: "panel-actions" });
  const whole = element("p", { class: "whole" },
    element("a", { href: address("job", id), class: "button" }, "Open its page"),
    element("span", { class: "quiet" }, "with all decisions about it"));
  panel.open(`Job ${id}`, content, whole, actions);
  let before = "";

  async function read() {
    try {
      const [job, why] = await readJob(id);
      const text = JSON.stringify([job, why]);
      if (text === before) return;
      before = text;
      say(find("#panel-title"), jobTitle(job));
      content.replaceChildren(...jobContent(job, why, now()), jobFacts(job, why, now()));
      jobActions(actions, job, me(), changed);
    } catch (error) {
      before = "";
      content.replaceChildren(element("p", { class: "notice" }, error.message));
    } finally {
      content.removeAttribute("aria-busy");
    }
  }

  read();
  return read;
}
