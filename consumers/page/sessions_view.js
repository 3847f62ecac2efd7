// The list of conversations beside the chat: choose, rename, delete.

const DAY_MS = 24 * 3600 * 1000;
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

function daysAgo(ms) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  return ms >= midnight ? 0 : Math.ceil((midnight - ms) / DAY_MS);
}

function groupOf(ms) {
  const days = daysAgo(ms);
  if (days === 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "Last seven days" : "Older";
}

function whenOf({ running, updatedMs }) {
  return running.length ? "writing…" : (daysAgo(updatedMs) ? day : clock).format(updatedMs);
}

function icon(path) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  made.setAttribute("viewBox", "0 0 24 24");
  made.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", path);
  made.append(line);
  return made;
}

const PENCIL = "M4 20l1-4L16 5l3 3L8 19l-4 1zM14 7l3 3";
const BIN = "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10 11v5M14 11v5";

export class SessionsView {
  #drawn = "";

  // onChoose(transcript), onRename(transcript), onDelete(transcript)
  constructor(root, { onChoose, onRename, onDelete }) {
    Object.assign(this, { root, onChoose, onRename, onDelete });
  }

  render(transcripts, shown) {
    const what = transcripts.map((it) => [it.id, it.title, whenOf(it), groupOf(it.updatedMs), it === shown]);
    const drawn = JSON.stringify(what);
    if (drawn === this.#drawn) return; // a button that is made anew loses the click that is on it
    this.#drawn = drawn;
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset : null;
    const groups = new Map();
    for (const transcript of transcripts) {
      const name = groupOf(transcript.updatedMs);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.#row(transcript, transcript === shown));
    }
    this.root.replaceChildren(...[...groups].flatMap(([name, rows]) => this.#group(name, rows)));
    if (!transcripts.length) this.root.append(this.#none());
    if (focused) this.#refocus(focused);
  }

  #group(name, rows) {
    const heading = document.createElement("h3");
    heading.textContent = name;
    const list = document.createElement("ul");
    list.setAttribute("aria-label", name);
    list.append(...rows);
    return [heading, list];
  }

  #none() {
    const made = document.createElement("p");
    made.className = "none";
    made.textContent = "Your chats will stand here. They are kept in this browser.";
    return made;
  }

  #row(transcript, isShown) {
    const row = document.createElement("li");
    row.className = "session";
    const open = document.createElement("button");
    Object.assign(open, { type: "button", className: "open" });
    Object.assign(open.dataset, { id: transcript.id, does: "open" });
    if (isShown) open.setAttribute("aria-current", "page");
    const title = document.createElement("bdi");
    title.className = "title";
    title.textContent = transcript.title;
    open.append(title, this.#when(transcript));
    open.addEventListener("click", () => this.onChoose(transcript));
    row.append(
      open,
      this.#tool(transcript, "Rename", PENCIL, this.onRename),
      this.#tool(transcript, "Delete", BIN, this.onDelete),
    );
    return row;
  }

  #when(transcript) {
    const made = document.createElement("span");
    made.className = transcript.running.length ? "when running" : "when";
    made.textContent = whenOf(transcript);
    return made;
  }

  #tool(transcript, name, path, action) {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", className: "tool", title: name });
    Object.assign(made.dataset, { id: transcript.id, does: name });
    made.setAttribute("aria-label", `${name}: ${transcript.title}`);
    made.append(icon(path));
    made.addEventListener("click", () => action(transcript));
    return made;
  }

  #refocus({ id, does }) {
    const same = [...this.root.querySelectorAll("button")]
      .find((it) => it.dataset.id === id && it.dataset.does === does);
    same?.focus();
  }
}
