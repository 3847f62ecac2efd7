// One conversation as this browser knows it: turns, cursor, and the reader's rule of contract §3 (drop what
// was seen; a larger attempt begins the text anew). No DOM, no socket, no storage.

const MAX_TURNS = 1000; // of one conversation; older ones are forgotten here, the worker has them
const MAX_TITLE_CHARS = 80;

function randomHex(digits) {
  const bytes = crypto.getRandomValues(new Uint8Array(Math.ceil(digits / 2)));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("").slice(0, digits);
}

// `req_` + UUIDv7, as the gateway makes them: the time in it says where to look in the log.
function newRequestId() {
  const time = Date.now().toString(16).padStart(12, "0");
  const variant = "89ab"[Math.floor(Math.random() * 4)];
  return `req_${time}7${randomHex(3)}${variant}${randomHex(15)}`;
}

function fresh() {
  return { sessionId: `web-${randomHex(24)}`, title: null, turns: [], cursor: null, updatedMs: Date.now() };
}

function isTurn(turn) {
  return ["user", "assistant"].includes(turn?.role) && typeof turn.text === "string";
}

export class Transcript {
  live = false; // whether its events come in, in this tab

  constructor(state = fresh()) {
    this.state = state;
  }

  // A stored conversation, or null where the text holds none.
  static parse(text) {
    try {
      const found = JSON.parse(text);
      if (typeof found.sessionId !== "string" || !found.turns.every(isTurn)) return null;
      for (const turn of found.turns) turn.workers ??= turn.worker ? [turn.worker] : [];
      return new Transcript({ ...fresh(), cursor: null, ...found });
    } catch {
      return null;
    }
  }

  get id() { return this.state.sessionId; }
  get turns() { return this.state.turns; }
  get updatedMs() { return this.state.updatedMs; }
  get cursor() { return this.state.cursor; }
  set cursor(place) { this.state.cursor = place; }

  get title() {
    const first = this.turns.find((turn) => turn.role === "user")?.text ?? "";
    return this.state.title ?? (first.trim().replace(/\s+/g, " ").slice(0, MAX_TITLE_CHARS) || "New chat");
  }

  set title(text) {
    this.state.title = text.trim().slice(0, MAX_TITLE_CHARS) || null;
  }

  // The answers that are still being written, the oldest first.
  get running() { return this.turns.filter((turn) => turn.role === "assistant" && !turn.done); }

  // The one that a new question has to wait for: an answer that was told to stop is not waited for.
  get current() { return this.running.findLast((turn) => !turn.stopping) ?? null; }

  answerTo(requestId) {
    return this.turns.findLast((turn) => turn.role === "assistant" && turn.requestId === requestId) ?? null;
  }

  question(requestId) {
    return this.turns.find((turn) => turn.role === "user" && turn.requestId === requestId) ?? null;
  }

  ask(text) {
    const requestId = newRequestId();
    this.turns.push({ role: "user", text, requestId });
    const turn = this.#newAnswer(requestId);
    turn.accepted = false;
    return turn;
  }

  // Take an event in. Returns the turn that it belongs to, and whether it is "new", "old", or after a "gap".
  take(event, cursor) {
    const turn = this.answerTo(event.id) ?? this.#newAnswer(event.id);
    const isLater = turn.attempt !== null && event.attempt > turn.attempt;
    const isOver = turn.done && !isLater;
    if (isOver || event.attempt < turn.attempt) return this.#took(turn, "old", cursor);
    const expected = isLater ? 0 : turn.next;
    if (event.sequence_number > expected) return { turn, kind: "gap" };
    if (event.sequence_number < expected) return this.#took(turn, "old", cursor);
    if (isLater) Object.assign(turn, { text: "", done: false, error: null, code: null });
    Object.assign(turn, { attempt: event.attempt, next: expected + 1, accepted: true, retryAtMs: null });
    this.#apply(turn, event);
    return this.#took(turn, "new", cursor);
  }

  // Take in the name, and the questions, that another tab has and this one has not. Returns whether it had.
  merge(theirs) {
    const added = theirs.turns.filter((it) => it.role === "user" && !this.question(it.requestId));
    for (const question of added) {
      const answer = this.turns.findIndex((it) => it.requestId === question.requestId);
      this.turns.splice(answer < 0 ? this.turns.length : answer, 0, question);
    }
    const isRenamed = theirs.state.title !== null && theirs.state.title !== this.state.title;
    if (isRenamed) this.state.title = theirs.state.title;
    return isRenamed || added.length > 0;
  }

  // End an answer that cannot go on.
  fail(turn, { message, code }) {
    Object.assign(turn, { done: true, error: message, code, retryAtMs: null });
  }

  // End an answer that nobody was asked for yet.
  withdraw(turn) {
    Object.assign(turn, { done: true, reason: "cancelled", retryAtMs: null });
  }

  #took(turn, kind, cursor) {
    this.state.cursor = cursor;
    return { turn, kind };
  }

  #apply(turn, event) {
    const { worker } = event;
    if (worker && turn.workers.at(-1) !== worker) turn.workers.push(worker);
    turn.eventMs = Date.now();
    this.state.updatedMs = turn.eventMs;
    if (event.object === "error") {
      this.fail(turn, event.error);
      return;
    }
    const choice = event.choices[0];
    const text = (choice.delta ?? choice.message ?? {}).content ?? "";
    if (text && !turn.firstMs) turn.firstMs = Date.now() - turn.askedMs;
    turn.text += text;
    if (choice.finish_reason === null) return;
    Object.assign(turn, { done: true, reason: choice.finish_reason, usage: event.usage, timings: event.timings });
  }

  #newAnswer(requestId) {
    const turn = {
      role: "assistant", requestId, text: "", attempt: null, next: 0, done: false, accepted: true,
      workers: [], askedMs: Date.now(),
    };
    this.turns.push(turn);
    this.state.updatedMs = turn.askedMs;
    if (this.turns.length > MAX_TURNS) this.turns.splice(0, this.turns.length - MAX_TURNS);
    return turn;
  }
}
