// All conversations of this browser, in localStorage: one entry each, so that several tabs write only what
// they change. Bounded: the oldest make room. Knows nothing of sockets or the screen.

import { local, ofTab } from "./storage.js";
import { Transcript } from "./transcript.js";

const PREFIX = "headrace.chat.2.";
const OLD_STORE = "headrace.chat.1"; // one conversation, before there was a list
const SHOWN = "headrace.shown"; // of this tab
const MAX_SESSIONS = 100;
const SAVE_PAUSE_MS = 150;
const SAVE_PAUSE_PER_MB_MS = 1000; // a long conversation is written as a whole: less often

export class Sessions {
  #all = new Map(); // session id -> Transcript
  #stored = new Set(); // ids that storage had when this tab last looked
  #timers = new Map();
  #sizes = new Map();
  #shown = null;

  // onChange(id): another tab changed this one; onFull(isFull): whether the newest could not be kept
  constructor({ onChange, onFull }) {
    Object.assign(this, { onChange, onFull });
    addEventListener("storage", (change) => this.#heard(change));
    addEventListener("pagehide", () => this.flush());
    document.addEventListener("visibilitychange", () => this.flush());
  }

  load() {
    for (const key of Object.keys(local)) {
      const found = key.startsWith(PREFIX) ? Transcript.parse(local.getItem(key)) : null;
      if (found) this.#keep(found);
    }
    this.#migrate();
  }

  // The newest first; those without a question are not listed.
  list() {
    const asked = [...this.#all.values()].filter((it) => it.turns.length);
    return asked.sort((one, other) => other.updatedMs - one.updatedMs);
  }

  get(id) {
    return this.#all.get(id) ?? null;
  }

  // What this tab showed before it was reloaded, or else the newest.
  last() {
    const shown = ofTab.getItem(SHOWN);
    return shown === null ? this.list()[0] ?? this.begin() : this.get(shown) ?? this.begin();
  }

  begin() {
    const made = new Transcript();
    this.#all.set(made.id, made);
    return made;
  }

  // Remember what this tab shows; an empty conversation that it leaves is forgotten.
  show(transcript) {
    for (const other of this.#all.values()) {
      if (other !== transcript && !other.turns.length) this.#all.delete(other.id);
    }
    this.#shown = transcript;
    this.#all.set(transcript.id, transcript);
    ofTab.setItem(SHOWN, transcript.id);
  }

  // Write it within a moment.
  saveSoon(transcript) {
    if (this.#timers.has(transcript.id)) return;
    const pauseMs = SAVE_PAUSE_MS + (this.#sizes.get(transcript.id) ?? 0) / 1e6 * SAVE_PAUSE_PER_MB_MS;
    this.#timers.set(transcript.id, setTimeout(() => this.save(transcript), pauseMs));
  }

  save(transcript) {
    clearTimeout(this.#timers.get(transcript.id));
    this.#timers.delete(transcript.id);
    if (!transcript.turns.length || this.get(transcript.id) !== transcript) return;
    const key = PREFIX + transcript.id;
    if (this.#stored.has(transcript.id) && local.getItem(key) === null) {
      this.#lose(transcript.id); // another tab deleted it
      return;
    }
    this.#makeRoom(transcript);
    this.#write(transcript, key, JSON.stringify(transcript.state));
  }

  remove(transcript) {
    this.#forget(transcript.id);
    local.removeItem(PREFIX + transcript.id);
  }

  flush() {
    for (const id of [...this.#timers.keys()]) this.save(this.get(id));
  }

  #keep(transcript) {
    this.#all.set(transcript.id, transcript);
    this.#stored.add(transcript.id);
  }

  #forget(id) {
    clearTimeout(this.#timers.get(id));
    this.#timers.delete(id);
    this.#all.delete(id);
    this.#stored.delete(id);
  }

  #lose(id) {
    this.#forget(id);
    this.onChange(id);
  }

  #write(transcript, key, text) {
    for (;;) {
      try {
        local.setItem(key, text);
        this.#stored.add(transcript.id);
        this.#sizes.set(transcript.id, text.length);
        return this.onFull(false);
      } catch {
        const oldest = this.#oldestBut(transcript);
        if (!oldest) return this.onFull(true);
        this.remove(oldest);
        this.onChange(oldest.id);
      }
    }
  }

  #makeRoom(transcript) {
    while (this.#stored.size >= MAX_SESSIONS && !this.#stored.has(transcript.id)) {
      const oldest = this.#oldestBut(transcript);
      if (!oldest) return;
      this.remove(oldest);
      this.onChange(oldest.id);
    }
  }

  #oldestBut(transcript) {
    const kept = [transcript, this.#shown];
    const others = this.list().filter((it) => !kept.includes(it) && this.#stored.has(it.id));
    return others.findLast((it) => !it.running.length) ?? others.at(-1);
  }

  #heard({ key, newValue }) {
    if (!key?.startsWith(PREFIX)) return;
    const id = key.slice(PREFIX.length);
    if (newValue === null) {
      if (this.#all.has(id)) this.#lose(id);
      return;
    }
    const theirs = Transcript.parse(newValue);
    if (!theirs) return;
    const ours = this.get(id);
    this.#stored.add(id);
    if (!ours) this.#keep(theirs);
    else if (!ours.live) ours.state = theirs.state; // that tab is ahead: this one does not follow it
    else if (!ours.merge(theirs)) return;
    this.onChange(id);
  }

  #migrate() {
    const old = Transcript.parse(local.getItem(OLD_STORE));
    if (!old) return;
    local.removeItem(OLD_STORE);
    this.#all.set(old.id, old);
    this.save(old);
  }
}
