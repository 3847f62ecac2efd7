// The chat page: what is on screen, and what it asks of the gateway. Text goes in as text, never as HTML.

import { Connection } from "./connection.js";
import { STORE, Transcript } from "./transcript.js";

const KEY_STORE = "headrace.key";
const GAP = "resume_gap";
const NEAR_END_PX = 80;
const STATES = { connecting: "Connecting…", open: "Connected", waiting: "Reconnecting…" };

const $ = (id) => document.getElementById(id);
const transcript = new Transcript();
const rows = new Map(); // turn -> its elements
let askedKey = false;

const connection = new Connection({
  getKey: () => sessionStorage.getItem(KEY_STORE),
  onState: (state) => {
    $("connection").dataset.state = state;
    $("connection").textContent = STATES[state];
    if (state === "waiting") checkKey();
  },
  onOpen: resume,
  onFrame: (frame) => handlers[frame.type]?.(frame),
});

// --- the conversation over the socket

// Go on where this browser was: first the session from its cursor, then a question that may never have
// arrived. The same request id may be sent again: the first one counts.
function resume() {
  const place = transcript.cursor ? { cursor: transcript.cursor } : {};
  connection.send({ type: "subscribe", session_id: transcript.sessionId, ...place });
  const turn = transcript.current;
  if (!turn) return;
  if (!turn.accepted) generate(turn);
  else if (!transcript.cursor) follow(turn);
}

function generate(turn) {
  const question = transcript.turns.find((it) => it.role === "user" && it.requestId === turn.requestId);
  connection.send({
    type: "generate",
    request_id: turn.requestId,
    session_id: transcript.sessionId,
    context: "append",
    max_tokens: 512,
    temperature: 0, // small models wander; a person wants the likely answer
    frequency_penalty: 0.4, // and small models repeat themselves
    messages: [{ role: "user", content: question.text }],
  });
}

function follow(turn) {
  connection.send({
    type: "subscribe",
    session_id: transcript.sessionId,
    request_id: turn.requestId,
    starting_after: turn.next - 1,
  });
}

const handlers = {
  accepted({ request_id }) {
    const turn = transcript.current;
    if (turn?.requestId === request_id) {
      turn.accepted = true;
      transcript.save();
    }
  },

  event({ event, cursor, worker }) {
    if (event.session_id !== transcript.sessionId) return; // of a chat that was left
    const turn = transcript.take({ ...event, worker }, cursor);
    if (turn) showAnswer(turn);
  },

  error({ error, request_id, session_id }) {
    if (session_id && session_id !== transcript.sessionId) return;
    const turn = transcript.current;
    if (error.code === GAP && !request_id) {
      transcript.state.cursor = null; // the place is gone from the log: ask for the answer itself
      connection.send({ type: "subscribe", session_id: transcript.sessionId });
      if (turn) follow(turn);
    } else if (turn && (!request_id || request_id === turn.requestId)) {
      transcript.fail(turn, error);
      showAnswer(turn);
    }
  },
};

function ask(text) {
  const turn = transcript.ask(text);
  render();
  toEnd();
  generate(turn);
}

function stop() {
  const turn = transcript.current;
  if (!turn) return;
  const names = { request_id: turn.requestId, session_id: transcript.sessionId };
  if (connection.send({ type: "cancel", ...names })) $("stop").disabled = true;
}

function newChat() {
  stop();
  transcript.reset();
  render();
  connection.send({ type: "subscribe", session_id: transcript.sessionId });
  $("text").focus();
}

// --- on screen

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function render() {
  rows.clear();
  $("turns").replaceChildren(...transcript.turns.map(newRow));
  for (const turn of transcript.turns) if (turn.role === "assistant") fill(turn);
  showControls();
}

function newRow(turn) {
  const row = element("li", `turn ${turn.role}`);
  row.append(element("span", "unseen", turn.role === "user" ? "You:" : "Answer:"));
  const text = element("div", "text", turn.role === "user" ? turn.text : undefined);
  row.append(text);
  if (turn.role === "assistant") {
    const facts = element("p", "facts");
    row.append(facts);
    rows.set(turn, { row, text, facts });
  }
  return row;
}

function showAnswer(turn) {
  if (!rows.has(turn)) $("turns").append(newRow(turn));
  const wasAtEnd = atEnd();
  fill(turn);
  showControls();
  if (wasAtEnd) toEnd();
  if (turn.done) $("announce").textContent = turn.error ? `Error: ${turn.error}` : turn.text;
}

function fill(turn) {
  const { row, text, facts } = rows.get(turn);
  row.classList.toggle("writing", !turn.done);
  row.classList.toggle("empty", !turn.text);
  row.classList.toggle("failed", Boolean(turn.error));
  text.textContent = turn.text;
  facts.replaceChildren(...factsOf(turn));
}

function factsOf(turn) {
  const found = [];
  const add = (text, title, className) => {
    const fact = element("span", className, text);
    if (title) fact.title = title;
    found.push(fact);
  };
  if (turn.error) add(turn.error, turn.code, "bad");
  if (!turn.done && !turn.text) add("Waiting for a worker");
  if (turn.reason === "cancelled") add("Stopped", "", "mark");
  if (turn.reason === "length") add("Cut at the token limit", "", "mark");
  if (turn.usage) {
    const { decode_ms: decodeMs } = turn.timings ?? {};
    const tokens = turn.usage.completion_tokens;
    add(`${tokens} tokens`, `${turn.usage.prompt_tokens} prompt tokens`);
    if (decodeMs > 0 && tokens > 1) add(`${((tokens - 1) / decodeMs * 1000).toFixed(1)} tokens/s`);
  }
  const firstMs = turn.timings?.ttft_ms || turn.firstMs;
  if (firstMs) add(`first token ${seconds(firstMs)}`, "time to the first token");
  if (turn.worker) add(turn.worker, "the worker that wrote this", "worker");
  return found;
}

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function showControls() {
  const busy = transcript.current !== null;
  $("welcome").hidden = transcript.turns.length > 0;
  $("stop").hidden = !busy;
  if (!busy) $("stop").disabled = false;
  $("send").hidden = busy;
  $("send").disabled = !$("text").value.trim();
}

function atEnd() {
  const view = $("scroll");
  return view.scrollHeight - view.scrollTop - view.clientHeight < NEAR_END_PX;
}

function toEnd() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function fit() {
  const box = $("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

// --- keys of the gateway

async function authorized() {
  const key = sessionStorage.getItem(KEY_STORE);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch("/v1/models", { headers });
  if (answer.ok) {
    $("model").textContent = (await answer.json()).data[0]?.id ?? "";
    $("model").hidden = !$("model").textContent;
  }
  return answer.status !== 401;
}

async function checkKey() {
  try {
    if (askedKey || await authorized()) return;
  } catch {
    return; // the gateway is away: the socket tries again
  }
  askedKey = true;
  $("key-dialog").showModal();
}

// --- what the user does

$("ask").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  const text = $("text").value.trim();
  if (!text || transcript.current) return;
  $("text").value = "";
  fit();
  ask(text);
});
$("text").addEventListener("input", () => { fit(); showControls(); });
$("text").addEventListener("keydown", (pressed) => {
  if (pressed.key !== "Enter" || pressed.shiftKey || pressed.isComposing) return;
  pressed.preventDefault();
  $("ask").requestSubmit();
});
addEventListener("storage", (change) => {
  const found = change.key === STORE ? transcript.merge(change.newValue) : null;
  if (!found) return;
  render();
  toEnd();
  if (found === "other") resume();
});
addEventListener("keydown", (pressed) => { if (pressed.key === "Escape") stop(); });
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", newChat);
for (const idea of document.querySelectorAll(".idea")) {
  idea.addEventListener("click", () => ask(idea.textContent));
}
$("key-form").addEventListener("submit", () => {
  sessionStorage.setItem(KEY_STORE, $("key").value);
  askedKey = false;
  checkKey();
  connection.open();
});

render();
toEnd();
checkKey();
connection.open();
