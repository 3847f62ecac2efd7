// What the page says to the gateway over its socket, and what it makes of the answers: questions, stops, and
// going on from where this browser was. No DOM.

const PASSING = new Set(["rate_limited", "overloaded"]); // errors that waiting helps against
const RETRY_PAUSE_S = 3;
const LONGEST_RETRY_PAUSE_S = 60;
const MAX_FOLLOWED = 40; // well under what a gateway lets one socket follow

export class Conversations {
  #followed = new Set(); // session ids, on the socket that is open now
  #asked = new Set(); // request ids whose missing events were asked for
  #retries = new Map(); // what waits -> its timer
  #shown = null;

  // onTurn(transcript, turn): it changed
  constructor({ connection, sessions, onTurn }) {
    Object.assign(this, { connection, sessions, onTurn });
  }

  // The socket is open: go on with what is shown, and with every answer that is still being written.
  opened() {
    this.#followed.clear();
    this.#asked.clear();
    if (this.#shown) this.#follow(this.#shown);
    const running = this.sessions.list().filter((it) => it.running.length);
    for (const transcript of running.slice(0, MAX_FOLLOWED - 1)) this.#follow(transcript);
  }

  closed() {
    for (const id of this.#followed) {
      const transcript = this.sessions.get(id);
      if (transcript) transcript.live = false;
    }
    this.#followed.clear();
  }

  show(transcript) {
    this.#shown = transcript;
    if (this.#followed.size < MAX_FOLLOWED) this.#follow(transcript);
    else this.connection.renew();
  }

  ask(transcript, text) {
    const turn = transcript.ask(text);
    this.sessions.save(transcript);
    this.#generate(transcript, turn);
    this.onTurn(transcript, turn);
  }

  // Stop every answer of the conversation. One that was never sent ends here.
  stop(transcript) {
    for (const turn of transcript.running) {
      turn.stopping = true;
      if (turn.accepted || (turn.sent && !turn.retryAtMs)) this.#cancel(transcript, turn);
      else transcript.withdraw(turn);
      this.onTurn(transcript, turn);
    }
    this.sessions.save(transcript);
  }

  // A conversation is deleted: nothing of it is wanted any more.
  leave(transcript) {
    this.stop(transcript);
    if (this.#shown === transcript) this.#shown = null;
  }

  frame(frame) {
    if (frame.type === "event") this.#event(frame);
    else if (frame.type === "accepted") this.#accepted(frame);
    else if (frame.type === "error") this.#error(frame);
  }

  // --- what is sent

  #follow(transcript) {
    if (!this.connection.isOpen || this.#followed.has(transcript.id)) return;
    this.#followed.add(transcript.id);
    transcript.live = true;
    this.#subscribe(transcript);
    for (const turn of transcript.running) {
      if (!turn.accepted) this.#generate(transcript, turn);
      else if (!transcript.cursor) this.#fetch(transcript, turn);
      if (turn.stopping) this.#cancel(transcript, turn);
    }
  }

  #subscribe({ id, cursor }) {
    this.connection.send({ type: "subscribe", session_id: id, ...(cursor ? { cursor } : {}) });
  }

  // The same request id may be sent again: the first one counts.
  #generate(transcript, turn) {
    const question = transcript.question(turn.requestId);
    const waitMs = (turn.retryAtMs ?? 0) - Date.now();
    if (waitMs > 0) this.#later(turn.requestId, waitMs / 1000, () => this.#again(transcript, turn));
    if (!question || waitMs > 0) return;
    turn.sent = this.connection.send({
      type: "generate",
      request_id: turn.requestId,
      session_id: transcript.id,
      context: "append",
      max_tokens: 512,
      temperature: 0, // small models wander; a person wants the likely answer
      frequency_penalty: 0.4, // and small models repeat themselves
      messages: [{ role: "user", content: question.text }],
    }) || turn.sent;
  }

  // The answer itself, from behind what is there.
  #fetch(transcript, turn) {
    const names = { session_id: transcript.id, request_id: turn.requestId };
    this.connection.send({ type: "subscribe", ...names, starting_after: turn.next - 1 });
  }

  #cancel(transcript, turn) {
    this.connection.send({ type: "cancel", request_id: turn.requestId, session_id: transcript.id });
  }

  // --- what comes

  #accepted({ request_id: requestId, session_id: sessionId }) {
    const transcript = this.sessions.get(sessionId);
    const turn = transcript?.answerTo(requestId);
    if (!turn) return;
    Object.assign(turn, { accepted: true, retryAtMs: null });
    this.sessions.saveSoon(transcript);
    this.onTurn(transcript, turn);
  }

  #event({ event, cursor, worker }) {
    const transcript = this.sessions.get(event.session_id);
    if (!transcript) return; // it was deleted
    const { turn, kind } = transcript.take({ ...event, worker }, cursor);
    if (kind === "gap") {
      if (!this.#asked.has(turn.requestId)) this.#fetch(transcript, turn);
      this.#asked.add(turn.requestId);
      return;
    }
    this.sessions.saveSoon(transcript);
    if (kind === "new") this.onTurn(transcript, turn);
  }

  #error({ error, request_id: requestId, session_id: sessionId, ...frame }) {
    const transcript = sessionId ? this.sessions.get(sessionId) : this.#shown;
    if (!transcript) return;
    const unnamed = sessionId ? null : transcript.running.findLast((it) => !it.accepted); // too large, say
    const turn = requestId ? transcript.answerTo(requestId) : unnamed;
    const waitS = error.retry_after_s ?? frame.retry_after_s;
    if (sessionId && !requestId) this.#notFollowed(transcript, error, waitS);
    else if (turn && !turn.done) this.#notAnswered(transcript, turn, error, waitS);
  }

  #notFollowed(transcript, error, waitS = RETRY_PAUSE_S) {
    if (PASSING.has(error.code)) {
      this.#followed.delete(transcript.id);
      this.#later(transcript.id, waitS, () => this.#follow(transcript));
    } else if (transcript.cursor) { // its place is gone from the log: ask for the answers themselves
      transcript.cursor = null;
      this.#subscribe(transcript);
      for (const turn of transcript.running.filter((it) => it.accepted)) this.#fetch(transcript, turn);
    }
  }

  #notAnswered(transcript, turn, error, waitS) {
    const isHeld = PASSING.has(error.code) && (waitS !== undefined || error.code === "overloaded");
    if (!isHeld) {
      transcript.fail(turn, error);
    } else {
      turn.numRetries = (turn.numRetries ?? 0) + 1;
      const pauseS = waitS ?? Math.min(RETRY_PAUSE_S * 2 ** (turn.numRetries - 1), LONGEST_RETRY_PAUSE_S);
      Object.assign(turn, { retryAtMs: Date.now() + pauseS * 1000, retryWhy: error.message });
      this.#later(turn.requestId, pauseS, () => this.#again(transcript, turn));
    }
    this.sessions.saveSoon(transcript);
    this.onTurn(transcript, turn);
  }

  #again(transcript, turn) {
    if (turn.done || this.sessions.get(transcript.id) !== transcript) return;
    turn.retryAtMs = null;
    if (turn.accepted) this.#fetch(transcript, turn);
    else this.#generate(transcript, turn);
    this.onTurn(transcript, turn);
  }

  #later(name, waitS, action) {
    clearTimeout(this.#retries.get(name));
    this.#retries.set(name, setTimeout(() => {
      this.#retries.delete(name);
      action();
    }, waitS * 1000));
  }
}
