// The live panel: what the gateway's /metrics says, asked while the panel can be seen.

import { metricsText } from "./api.js";

const INTERVAL_MS = 2000;
const MAX_SAMPLES = 60; // two minutes
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 48;
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)/;

// The samples of Prometheus' text format: [{name, labels, value}], labels as they are written.
export function samplesOf(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = line.startsWith("#") ? [] : SAMPLE.exec(line) ?? [];
    if (name) found.push({ name: name.replace(/^headrace_/, ""), labels, value: Number(value) });
  }
  return found;
}

export function figuresOf(text) {
  const samples = samplesOf(text);
  const values = (name, label = "") => samples
    .filter((it) => it.name === name && it.labels.includes(label)).map((it) => it.value);
  const sum = (...of) => values(...of).reduce((total, value) => total + value, 0);
  const isKnown = values("consumer_lag").length > 0;
  const running = sum("answers_running");
  return {
    running,
    waiting: isKnown ? Math.max(0, sum("consumer_lag", '.requests"') - running) : null,
    oldestS: isKnown ? Math.max(0, ...values("consumer_lag_seconds", '.requests"')) : null,
    backlogTokens: values("lag_tokens")[0] ?? null,
    readers: sum("gateway_websockets"),
    tokens: sum("answer_tokens_total"),
  };
}

function duration(seconds) {
  if (seconds < 1) return "0 s";
  return seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

export class LivePanel {
  #timer = 0;
  #last = null; // {tokens, atMs}
  #rates = [];

  constructor(root) {
    this.root = root;
    document.addEventListener("visibilitychange", () => this.#schedule(0));
  }

  get isOpen() {
    return !this.root.hidden;
  }

  toggle(isOpen = !this.isOpen) {
    this.root.hidden = !isOpen;
    this.#schedule(0);
  }

  #schedule(pauseMs) {
    clearTimeout(this.#timer);
    if (this.isOpen && !document.hidden) this.#timer = setTimeout(() => this.#ask(), pauseMs);
    else this.#last = null; // the next rate begins anew
  }

  async #ask() {
    try {
      this.#show(figuresOf(await metricsText()));
      this.#note("");
    } catch {
      this.#last = null;
      this.#note("No figures: the gateway does not answer.");
    }
    this.#schedule(INTERVAL_MS);
  }

  #show(figures) {
    const atMs = performance.now();
    if (this.#last) {
      const made = Math.max(0, figures.tokens - this.#last.tokens); // a gateway that was restarted counts anew
      this.#rates = [...this.#rates, made / (atMs - this.#last.atMs) * 1000].slice(-MAX_SAMPLES);
    }
    this.#last = { tokens: figures.tokens, atMs };
    const known = (value, text = String) => (value === null ? "–" : text(value));
    this.#figure("rate", this.#rates.length ? this.#rates.at(-1).toFixed(1) : "–");
    this.#figure("running", known(figures.running));
    this.#figure("waiting", known(figures.waiting));
    this.#figure("oldest", known(figures.oldestS, duration));
    this.#figure("backlog", known(figures.backlogTokens, (it) => Math.round(it).toLocaleString("en")));
    this.#figure("readers", known(figures.readers));
    this.#drawRates();
  }

  #figure(name, text) {
    this.root.querySelector(`[data-figure="${name}"]`).textContent = text;
  }

  #note(text) {
    const note = this.root.querySelector(".note");
    if (note.textContent !== text) note.textContent = text;
  }

  #drawRates() {
    const chart = this.root.querySelector("svg");
    const highest = Math.max(1, ...this.#rates);
    const now = this.#rates.at(-1) ?? 0;
    const step = WIDTH / (MAX_SAMPLES - 1);
    const left = WIDTH - (this.#rates.length - 1) * step;
    const points = this.#rates.map((rate, place) => {
      const y = HEIGHT - 2 - rate / highest * (HEIGHT - 4);
      return `${(left + place * step).toFixed(1)},${y.toFixed(1)}`;
    });
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.join(" "));
    const area = document.createElementNS(SVG, "polygon");
    area.setAttribute("points", `${left.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
    chart.replaceChildren(...(points.length > 1 ? [area, line] : []));
    chart.setAttribute("aria-label", `Tokens a second in the last two minutes: now ${now.toFixed(1)}, `
      + `highest ${Math.max(0, ...this.#rates).toFixed(1)}`);
  }
}
