// What the browser keeps for us, or, where it forbids that, what this tab remembers.

class Memory {
  #entries = new Map();

  getItem(name) { return this.#entries.get(name) ?? null; }
  setItem(name, value) { this.#entries.set(name, value); }
  removeItem(name) { this.#entries.delete(name); }
}

function open(name) {
  try {
    return globalThis[name];
  } catch {
    return new Memory();
  }
}

export const local = open("localStorage"); // of this browser
export const ofTab = open("sessionStorage");
