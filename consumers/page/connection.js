// The WebSocket to /v1/stream: kept open with growing pauses, one JSON object per frame.
// Knows nothing of what the frames mean.

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 8000;
const PING_INTERVAL_MS = 20000;
const PONG_TIMEOUT_MS = 10000;
const WAKE_TIMEOUT_MS = 3000; // for a sign of life after the tab, or the machine, was asleep

function base64url(text) {
  const bytes = new TextEncoder().encode(text);
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export class Connection {
  #socket = null;
  #pauseMs = FIRST_PAUSE_MS;
  #timer = 0;
  #pinger = 0;
  #pongTimer = 0;

  // onOpen(), onFrame(frame), onState("connecting" | "open" | "waiting" | "offline"), getKey() -> key or null
  constructor({ onOpen, onFrame, onState, getKey }) {
    Object.assign(this, { onOpen, onFrame, onState, getKey });
    addEventListener("online", () => this.open());
    addEventListener("offline", () => this.#closed(this.#socket));
    addEventListener("pageshow", () => this.#wake());
    document.addEventListener("visibilitychange", () => this.#wake());
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  open() {
    clearTimeout(this.#timer);
    if (this.#socket) return;
    this.onState("connecting");
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const key = this.getKey();
    const protocols = key ? ["headrace.v1", `headrace.key.${base64url(key)}`] : [];
    const socket = new WebSocket(`${scheme}://${location.host}/v1/stream`, protocols);
    this.#socket = socket;
    socket.onopen = () => this.#opened();
    socket.onmessage = (message) => this.#received(message);
    socket.onclose = () => this.#closed(socket);
  }

  // Begin anew at once: with another key, or with fewer subscriptions.
  renew() {
    this.#pauseMs = FIRST_PAUSE_MS;
    if (this.#socket) this.#closed(this.#socket);
    this.open();
  }

  // Whether the frame was handed to an open socket; it may still be lost with it.
  send(frame) {
    if (!this.isOpen) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #opened() {
    this.onState("open");
    this.onOpen();
    this.#pinger = setInterval(() => this.#ping(PONG_TIMEOUT_MS), PING_INTERVAL_MS);
  }

  #ping(timeoutMs) {
    const socket = this.#socket;
    this.send({ type: "ping" });
    clearTimeout(this.#pongTimer);
    this.#pongTimer = setTimeout(() => this.#closed(socket), timeoutMs);
  }

  #wake() {
    if (document.hidden) return;
    if (this.isOpen) this.#ping(WAKE_TIMEOUT_MS);
    else this.open();
  }

  #received(message) {
    clearTimeout(this.#pongTimer); // anything that comes shows that the socket lives
    this.#pauseMs = FIRST_PAUSE_MS;
    const frame = JSON.parse(message.data);
    if (frame.type !== "pong") this.onFrame(frame);
  }

  #closed(socket) {
    if (!socket || socket !== this.#socket) return;
    clearInterval(this.#pinger);
    clearTimeout(this.#pongTimer);
    clearTimeout(this.#timer);
    this.#socket = null;
    socket.onopen = socket.onclose = socket.onmessage = null;
    socket.close();
    this.onState(navigator.onLine ? "waiting" : "offline");
    const jitter = 0.75 + Math.random() / 2;
    this.#timer = setTimeout(() => this.open(), this.#pauseMs * jitter);
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS);
  }
}
