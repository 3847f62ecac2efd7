// A conversation on screen: questions as text, answers as Markdown, and what is known of each answer.

import { copyButton } from "./copy.js";
import { MarkdownView } from "./markdown_view.js";

const NEAR_END_PX = 80;
const PAUSED_MS = 4000; // without an event: several flushes of the slowest worker, less than a failover
const TICK_MS = 1000;
const TROUBLES = { // why nothing comes, by whether the question is in the log
  away: ["The gateway is away; the answer goes on once it is back", "Sent once the gateway is back"],
  denied: ["The answer goes on once there is a key", "Sent once there is a key"],
};
const ADVICE = /; try again in \d+ s$/; // of a gateway's text: the page does it, and counts down
const MAX_SPOKEN_CHARS = 400; // longer answers are said to be there, and can be read as one likes

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

export class TurnsView {
  #rows = new Map(); // turn -> its elements
  #changed = new Set();
  #frame = 0;
  #transcript = null;
  #follows = true; // whether the view stays at the end

  // list, scroll: elements; say(text): for screen readers; trouble(): a key of TROUBLES, or false
  constructor({ list, scroll, toEnd, say, trouble }) {
    Object.assign(this, { list, scroll, toEnd, say, trouble });
    scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    toEnd.addEventListener("click", () => this.jumpToEnd());
    new ResizeObserver(() => this.#stay()).observe(list);
    setInterval(() => this.refresh(), TICK_MS);
  }

  show(transcript) {
    const isOther = transcript !== this.#transcript;
    this.#transcript = transcript;
    this.#rows.clear();
    this.#changed.clear();
    this.list.replaceChildren(...transcript.turns.map((turn) => this.#newRow(turn)));
    for (const turn of transcript.turns) if (turn.role === "assistant") this.#fill(turn);
    if (isOther) this.jumpToEnd();
  }

  // Show what is new in an answer, with the next frame.
  update(turn) {
    if (turn.done) this.#speak(turn);
    this.#changed.add(turn);
    this.#frame ||= requestAnimationFrame(() => this.#paint());
  }

  // Say anew what unfinished answers wait for.
  refresh() {
    for (const turn of this.#transcript?.running ?? []) {
      const parts = this.#rows.get(turn);
      if (parts) this.#showFacts(turn, parts.facts);
    }
  }

  jumpToEnd() {
    this.#follows = true;
    this.#stay();
    this.#scrolled();
  }

  #paint() {
    this.#frame = 0;
    for (const turn of this.#changed) this.#fill(turn);
    this.#changed.clear();
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroll;
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    this.toEnd.hidden = this.#follows;
  }

  #stay() {
    if (this.#follows) this.scroll.scrollTop = this.scroll.scrollHeight;
  }

  #speak(turn) {
    if (turn.error) this.say(`Error: ${turn.error}`);
    else if (turn.text.length <= MAX_SPOKEN_CHARS) this.say(turn.text);
    else this.say(`The answer is there: ${turn.text.split(/\s+/).length} words.`);
  }

  #newRow(turn) {
    const row = element("li", `turn ${turn.role}`);
    const heading = element("h3", "unseen", turn.role === "user" ? "You asked" : "Answer");
    const text = element("div", "text", turn.role === "user" ? turn.text : undefined);
    text.dir = "auto";
    row.append(heading, text);
    if (turn.role === "assistant") this.#rows.set(turn, this.#answerParts(turn, row, text));
    return row;
  }

  #answerParts(turn, row, text) {
    const about = element("div", "about");
    const facts = element("p", "facts");
    about.append(facts, copyButton(() => turn.text, "Copy answer"));
    row.append(about);
    return { row, facts, view: new MarkdownView(text) };
  }

  // What another tab asked, and questions of this one, come with their answers: rows are in turns' order.
  #fill(turn) {
    if (!this.#transcript.turns.includes(turn)) return;
    if (!this.#rows.has(turn)) {
      const before = this.list.children.length;
      this.list.append(...this.#transcript.turns.slice(before).map((it) => this.#newRow(it)));
    }
    if (!this.#rows.has(turn)) return this.show(this.#transcript); // its oldest turns were forgotten
    const { row, facts, view } = this.#rows.get(turn);
    row.classList.toggle("writing", !turn.done && !turn.stopping);
    row.classList.toggle("empty", !turn.text);
    row.classList.toggle("failed", Boolean(turn.error));
    row.setAttribute("aria-busy", String(!turn.done));
    view.update(turn.text, { done: turn.done });
    this.#showFacts(turn, facts);
  }

  #showFacts(turn, facts) {
    const found = turn.done ? factsOf(turn) : [this.#stateOf(turn), ...factsOf(turn)];
    const key = JSON.stringify(found);
    if (facts.dataset.shown === key) return; // a tooltip stays open
    facts.dataset.shown = key;
    facts.replaceChildren(...found.filter((it) => it.text).map(({ text, title, mark }) => {
      const fact = element("span", mark, text);
      if (title) fact.title = title;
      return fact;
    }));
  }

  // Why an unfinished answer does not grow, as far as one can see from here.
  #stateOf(turn) {
    if (turn.retryAtMs) {
      const waitS = Math.max(0, Math.ceil((turn.retryAtMs - Date.now()) / 1000));
      const why = turn.retryWhy.replace(ADVICE, "");
      return { text: `${why.charAt(0).toUpperCase()}${why.slice(1)}. Asked again in ${waitS} s`, mark: "mark" };
    }
    if (turn.stopping) return { text: "Stopping…" };
    const trouble = this.trouble();
    if (trouble) return { text: TROUBLES[trouble][turn.accepted ? 0 : 1], mark: "mark" };
    if (!turn.text) return { text: "Waiting for a worker" };
    const isPaused = Date.now() - (turn.eventMs ?? 0) > PAUSED_MS;
    return isPaused ? { text: "Paused: goes on as soon as a worker takes it over", mark: "mark" } : {};
  }
}

// What is known of an answer: its end, size, speed, and who wrote it.
function factsOf(turn) {
  const found = [];
  const add = (text, title, mark) => found.push({ text, title, mark });
  if (turn.error) add(turn.error, turn.code, "bad");
  if (turn.reason === "cancelled") add("Stopped", "", "mark");
  if (turn.reason === "length") add("Cut at the token limit", "", "mark");
  if (turn.usage) {
    const { decode_ms: decodeMs } = turn.workers.length > 1 ? {} : turn.timings ?? {}; // of the last worker alone
    const tokens = turn.usage.completion_tokens;
    add(`${tokens} tokens`, `${turn.usage.prompt_tokens} prompt tokens`);
    if (decodeMs > 0 && tokens > 1) add(`${((tokens - 1) / decodeMs * 1000).toFixed(1)} tokens/s`);
  }
  const firstMs = (turn.workers.length > 1 ? 0 : turn.timings?.ttft_ms) || turn.firstMs;
  if (firstMs && turn.done) add(`first token ${seconds(firstMs)}`, "time to the first token");
  if (turn.workers.length === 1) add(turn.workers[0], "the worker that wrote this", "worker");
  if (turn.workers.length > 1) add(turn.workers.join(" → "), "the workers that wrote this, one after the other", "worker");
  return found;
}
