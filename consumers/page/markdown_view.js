// Shows Markdown that grows. Elements come from a list and from `createElement`, text from text nodes: no
// HTML is ever parsed. What is finished is left alone; of the rest, only what differs is changed.

import { copyButton } from "./copy.js";
import { parseBlocks } from "./markdown.js";

const TAGS = new Set([
  "p", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "table", "thead", "tbody", "tr", "th", "td",
  "strong", "em", "del", "code", "a", "br",
]);
const BLOCKS = new Set(["p", "h4", "h5", "h6", "ul", "ol", "blockquote", "table"]);
const DIRECTION_MARKS = /([\u202a-\u202e\u2066-\u2069])/; // they would turn the text that follows around

export class MarkdownView {
  #text = "";
  #done = false;
  #stable = { chars: 0, blocks: 0 }; // what no further text can change

  constructor(root) {
    this.root = root;
  }

  // Show `text`; cheap where it is the last one and more. `done`: no more will come.
  update(text, { done = true } = {}) {
    if (text === this.#text && done === this.#done) return;
    if (!text.startsWith(this.#text)) {
      this.#stable = { chars: 0, blocks: 0 };
      this.root.replaceChildren();
    }
    this.#text = text;
    this.#done = done;
    const blocks = parseBlocks(text.slice(this.#stable.chars), { open: !done });
    patch(this.root, blocks, this.#stable.blocks);
    this.#settle();
  }

  // All blocks of whole lines but the last are final: a block ends where the next one begins.
  #settle() {
    const { chars, blocks } = this.#stable;
    const end = this.#text.lastIndexOf("\n") + 1;
    if (this.#done || end <= chars) return;
    const whole = parseBlocks(this.#text.slice(chars, end));
    if (whole.length < 2) return;
    this.#stable = { chars: chars + whole.at(-1).start, blocks: blocks + whole.length - 1 };
  }
}

// Make the children of `parent`, from the one at `first` on, show `nodes`.
function patch(parent, nodes, first = 0) {
  nodes.forEach((node, place) => {
    const old = parent.childNodes[first + place];
    const made = shown(node, old);
    if (!old) parent.append(made);
    else if (made !== old) old.replaceWith(made);
  });
  while (parent.childNodes.length > first + nodes.length) parent.lastChild.remove();
}

// `old` changed to show `node`, or a new node where it cannot.
function shown(node, old) {
  if (typeof node === "string") return textNode(node, old);
  if (node.mark) return directionMark(node.mark);
  if (node.tag === "pre") return codeBlock(node, old);
  if (node.tag === "table") return tableBlock(node, old);
  return element(node, old);
}

function element(node, old) {
  if (!TAGS.has(node.tag)) throw new Error(`no element for ${node.tag}`);
  const attrs = Object.entries(node.attrs ?? {});
  const fits = old?.localName === node.tag && attrs.every(([name, value]) => old.getAttribute(name) === value);
  const made = fits ? old : document.createElement(node.tag);
  if (!fits) {
    if (BLOCKS.has(node.tag)) made.dir = "auto";
    for (const [name, value] of attrs) made.setAttribute(name, value);
    if (node.tag === "a") Object.assign(made, { target: "_blank", rel: "noopener noreferrer" });
  }
  patch(made, (node.children ?? []).flatMap(withMarksApart));
  return made;
}

// A direction mark stands in an element of its own, where it turns nothing around.
function withMarksApart(node) {
  if (typeof node !== "string" || !DIRECTION_MARKS.test(node)) return [node];
  return node.split(DIRECTION_MARKS).filter(Boolean).map((part) => (
    DIRECTION_MARKS.test(part) ? { mark: part } : part
  ));
}

function textNode(text, old) {
  if (old?.nodeType !== Node.TEXT_NODE) return document.createTextNode(text);
  if (old.data === text) return old;
  if (text.startsWith(old.data)) old.appendData(text.slice(old.data.length)); // keeps a selection
  else old.data = text;
  return old;
}

function directionMark(char) {
  const made = document.createElement("span");
  made.className = "direction-mark";
  made.dataset.code = `U+${char.codePointAt(0).toString(16).toUpperCase()}`;
  made.textContent = char;
  return made;
}

function codeBlock({ language, code }, old) {
  const fits = old?.classList?.contains("code") && old.dataset.language === language;
  const made = fits ? old : newCodeBlock(language);
  patch(made.querySelector("code"), withMarksApart(code));
  return made;
}

function newCodeBlock(language) {
  const made = document.createElement("div");
  made.className = "code";
  made.dataset.language = language;
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const label = document.createElement("span");
  label.textContent = language || "text";
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // it scrolls, with the keyboard too
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  const code = pre.appendChild(document.createElement("code"));
  bar.append(label, copyButton(() => code.textContent, "Copy code"));
  made.append(bar, pre);
  return made;
}

function tableBlock(node, old) {
  const fits = old?.classList?.contains("table");
  const made = fits ? old : document.createElement("div");
  if (!fits) {
    Object.assign(made, { className: "table", tabIndex: 0 });
    made.setAttribute("role", "group");
    made.setAttribute("aria-label", "Table");
  }
  const table = element(node, made.firstChild);
  if (table !== made.firstChild) made.replaceChildren(table);
  return made;
}
