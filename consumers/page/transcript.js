// The conversation as this browser knows it, kept in localStorage: turns, cursor, and the reader's rule
// of contract §3 (drop what was seen; a larger attempt begins the text anew). No DOM, no socket.

export const STORE = "headrace.chat.1";
const SAVE_PAUSE_MS = 150;

function randomHex(digits) {
  const bytes = crypto.getRandomValues(new Uint8Array(Math.ceil(digits / 2)));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("").slice(0, digits);
}

// `req_` + UUIDv7, as the gateway makes them: the time in it says where to look in the log.
export function newRequestId() {
  const time = Date.now().toString(16).padStart(12, "0");
  const variant = "89ab"[Math.floor(Math.random() * 4)];
  return `req_${time}7${randomHex(3)}${variant}${randomHex(15)}`;
}

function fresh() {
  return { sessionId: `web-${randomHex(24)}`, turns: [], cursor: null };
}

export class Transcript {
  #timer = 0;

  constructor() {
    const stored = this.#load();
    this.state = stored ?? fresh();
    if (!stored) this.save(); // a second tab joins this session
    addEventListener("pagehide", () => this.save());
    document.addEventListener("visibilitychange", () => this.save());
  }

  get sessionId() { return this.state.sessionId; }
  get turns() { return this.state.turns; }
  get cursor() { return this.state.cursor; }

  // The answer that is still being written, if any.
  get current() {
    return this.turns.findLast((turn) => turn.role === "assistant" && !turn.done) ?? null;
  }

  reset() {
    this.state = fresh();
    this.save();
  }

  ask(text) {
    const requestId = newRequestId();
    this.turns.push({ role: "user", text, requestId });
    const turn = this.#newAnswer(requestId);
    turn.accepted = false;
    this.save();
    return turn;
  }

  // Take an event in. Returns the turn it changed, or null where it says nothing new.
  take(event, cursor) {
    this.state.cursor = cursor;
    const turn = this.turns.find((it) => it.role === "assistant" && it.requestId === event.id)
      ?? this.#newAnswer(event.id);
    if (turn.done && event.attempt <= turn.attempt) return this.#later(null);
    if (turn.attempt !== null && event.attempt < turn.attempt) return this.#later(null);
    if (turn.attempt === null || event.attempt > turn.attempt) {
      Object.assign(turn, { attempt: event.attempt, next: 0, text: "", done: false, error: null });
    }
    if (event.sequence_number < turn.next) return this.#later(null);
    turn.next = event.sequence_number + 1;
    turn.accepted = true;
    this.#apply(turn, event);
    return this.#later(turn);
  }

  // What another tab stored. Returns "other" for a new session, "more" for questions we did not have.
  merge(stored) {
    const theirs = this.#parse(stored);
    if (!theirs) return null;
    if (theirs.sessionId !== this.sessionId) {
      this.state = theirs;
      return "other";
    }
    const known = new Set(this.turns.filter((it) => it.role === "user").map((it) => it.requestId));
    const added = theirs.turns.filter((it) => it.role === "user" && !known.has(it.requestId));
    for (const question of added) {
      const answer = this.turns.findIndex((it) => it.requestId === question.requestId);
      this.turns.splice(answer < 0 ? this.turns.length : answer, 0, question);
    }
    return added.length ? "more" : null;
  }

  // End an answer that cannot go on.
  fail(turn, error) {
    Object.assign(turn, { done: true, error: error.message, code: error.code });
    this.save();
  }

  save() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    try {
      localStorage.setItem(STORE, JSON.stringify(this.state));
    } catch {
      // storage is full or forbidden: the chat works, only a reload begins anew
    }
  }

  #apply(turn, event) {
    turn.worker = event.worker ?? turn.worker;
    turn.model = event.model ?? turn.model;
    turn.fingerprint = event.system_fingerprint ?? turn.fingerprint;
    if (event.object === "error") {
      Object.assign(turn, { done: true, error: event.error.message, code: event.error.code });
      return;
    }
    const choice = event.choices[0];
    const text = (choice.delta ?? choice.message ?? {}).content ?? "";
    if (text && !turn.firstMs) turn.firstMs = Date.now() - turn.askedMs;
    turn.text += text;
    if (choice.finish_reason !== null) {
      Object.assign(turn, { done: true, reason: choice.finish_reason });
      turn.usage = event.usage;
      turn.timings = event.timings;
    }
  }

  #newAnswer(requestId) {
    const turn = {
      role: "assistant", requestId, text: "", attempt: null, next: 0, done: false, accepted: true,
      askedMs: Date.now(),
    };
    this.turns.push(turn);
    return turn;
  }

  #later(result) {
    this.#timer ||= setTimeout(() => this.save(), SAVE_PAUSE_MS);
    return result;
  }

  #load() {
    try {
      return this.#parse(localStorage.getItem(STORE));
    } catch {
      return null; // storage is forbidden
    }
  }

  #parse(text) {
    try {
      const found = JSON.parse(text);
      return found && typeof found.sessionId === "string" && Array.isArray(found.turns) ? found : null;
    } catch {
      return null;
    }
  }
}
