// The WebSocket to /v1/stream: kept open with growing pauses, one JSON object per frame.
// Knows nothing of what the frames mean.

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 8000;
const PING_INTERVAL_MS = 20000;
const PONG_TIMEOUT_MS = 10000;

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

  // onOpen(), onFrame(frame), onState("connecting" | "open" | "waiting"), needsKey() -> key or null
  constructor({ onOpen, onFrame, onState, getKey }) {
    Object.assign(this, { onOpen, onFrame, onState, getKey });
    addEventListener("online", () => this.open());
  }

  open() {
    clearTimeout(this.#timer);
    if (this.#socket && this.#socket.readyState <= WebSocket.OPEN) return;
    this.onState("connecting");
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const key = this.getKey();
    const protocols = key ? ["headrace.v1", `headrace.key.${base64url(key)}`] : [];
    const socket = new WebSocket(`${scheme}://${location.host}/v1/stream`, protocols);
    this.#socket = socket;
    socket.onopen = () => this.#opened(socket);
    socket.onmessage = (message) => this.#received(message);
    socket.onclose = () => this.#closed(socket);
  }

  // Whether the frame was handed to an open socket; it may still be lost with it.
  send(frame) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #opened(socket) {
    this.onState("open");
    this.onOpen();
    this.#pinger = setInterval(() => {
      this.send({ type: "ping" });
      clearTimeout(this.#pongTimer);
      this.#pongTimer = setTimeout(() => this.#closed(socket), PONG_TIMEOUT_MS);
    }, PING_INTERVAL_MS);
  }

  #received(message) {
    clearTimeout(this.#pongTimer); // anything that comes shows that the socket lives
    this.#pauseMs = FIRST_PAUSE_MS;
    const frame = JSON.parse(message.data);
    if (frame.type !== "pong") this.onFrame(frame);
  }

  #closed(socket) {
    if (socket !== this.#socket) return;
    clearInterval(this.#pinger);
    clearTimeout(this.#pongTimer);
    this.#socket = null;
    socket.onclose = socket.onmessage = null;
    socket.close();
    this.onState("waiting");
    const jitter = 0.75 + Math.random() / 2;
    this.#timer = setTimeout(() => this.open(), this.#pauseMs * jitter);
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS);
  }
}
