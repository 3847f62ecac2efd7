// Inline Markdown as a tree: emphasis, code, links, line breaks. Nodes are strings or {tag, attrs, children}.
// Plain functions without a DOM. Linear in the length of the text, whatever it holds.
// Not covered, and shown as it was written: HTML, entities, images, footnotes, reference links.

const MAX_DEPTH = 8; // of elements in each other: a page with 100,000 of them stops its browser
const MAX_URL_CHARS = 2000;
const MAX_LABEL_CHARS = 1000;
const MAX_PARENS = 4; // in each other, in an address
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPECIAL = /[\\`*_~[\]<\n]|https?:\/\//gi;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const AUTOLINK = /<(https?:\/\/[^\s<>]{1,2000}|mailto:[^\s<>]{1,2000})>/iy;
const BARE_URL = /https?:\/\/[^\s<>"`]{1,2000}/iy;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);

// The address of a link, or null where it is none that may be followed.
export function safeUrl(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null; // no relative ones: they would name this gateway
  try {
    const url = new URL(text);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// `open`: the text is still being written, so what its last line began is shown as if it were closed.
export function parseInline(text, { open = false } = {}) {
  const source = open ? withoutHalfMarks(text) : text;
  return new Inline(source, open).parse();
}

// `**bold*` is a `**bold**` to be.
function withoutHalfMarks(text) {
  const marks = /[*_~`\\]+$/.exec(text.slice(-MAX_LABEL_CHARS));
  return marks ? text.slice(0, -marks[0].length) : text;
}

class Inline {
  #nodes = [];
  #marks = []; // openers: {char, length, at (in #nodes), before}
  #brackets = []; // {at, position, marks}
  #bottoms = new Map(); // kind of closer -> openers below this one do not fit
  #ticks = new Map(); // length of a run of backticks -> where such runs are, last first
  #labelEnds; // where "](" stands, last first

  constructor(text, open) {
    Object.assign(this, { text, open, at: 0 });
    for (const run of [...text.matchAll(/`+/g)].reverse()) {
      const { length } = run[0];
      if (!this.#ticks.has(length)) this.#ticks.set(length, []);
      this.#ticks.get(length).push(run.index);
    }
    this.#labelEnds = [...text.matchAll(/\]\(/g)].map((it) => it.index).reverse();
  }

  parse() {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(this.text);
      this.#add(this.text.slice(this.at, found ? found.index : this.text.length));
      if (!found) break;
      this.at = found.index;
      this.#special(found[0]);
    }
    if (this.open) this.#closeAll();
    return joined(this.#nodes);
  }

  #special(found) {
    const char = found[0];
    if (char === "\\") this.#escape();
    else if (char === "`") this.#code();
    else if (char === "\n") this.#break();
    else if (char === "[") this.#bracket();
    else if (char === "]") this.#label();
    else if (char === "<") this.#autolink();
    else if (found.length > 1) this.#bareUrl();
    else this.#run(char);
  }

  #add(node) {
    if (node !== "") this.#nodes.push(node);
  }

  #literal(length) {
    this.#add(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  #escape() {
    const next = this.text[this.at + 1] ?? "";
    if (!ESCAPABLE.test(next)) return this.#literal(1);
    this.#add(next);
    this.at += 2;
  }

  #break() {
    this.#add({ tag: "br" });
    this.at += 1;
    while (this.text[this.at] === " ") this.at += 1;
  }

  #code() {
    const length = runLength(this.text, this.at);
    const end = nextOf(this.#ticks.get(length) ?? [], this.at)
      ?? (this.open && length < 3 ? this.text.length : undefined);
    if (end === undefined) return this.#literal(length);
    const inside = this.text.slice(this.at + length, end).replaceAll("\n", " ");
    const padded = inside.length > 2 && inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
    this.#add({ tag: "code", children: [padded ? inside.slice(1, -1) : inside] });
    this.at = end + length;
  }

  #autolink() {
    AUTOLINK.lastIndex = this.at;
    const found = AUTOLINK.exec(this.text);
    const url = found && safeUrl(found[1]);
    if (!url) return this.#literal(1);
    this.#add(link(url, [found[1]]));
    this.at += found[0].length;
  }

  #bareUrl() {
    const inside = this.#brackets.length || /\w/.test(this.text[this.at - 1] ?? "");
    if (inside) return this.#literal(4); // of a label, which holds no link, or of a word
    BARE_URL.lastIndex = this.at;
    const shown = withoutTrail(BARE_URL.exec(this.text)?.[0] ?? "");
    const url = safeUrl(shown);
    if (!url) return this.#literal(4);
    this.#add(link(url, [shown]));
    this.at += shown.length;
  }

  // --- links: [label](address "title")

  #bracket() {
    const end = nextOf(this.#labelEnds, this.at);
    if (end !== undefined && end - this.at <= MAX_LABEL_CHARS) {
      this.#brackets.push({ at: this.#nodes.length, marks: this.#marks.length });
    }
    this.#literal(1);
  }

  #label() {
    const opener = this.#brackets.pop();
    const target = opener && this.#target();
    if (!target) return this.#literal(1);
    const label = this.#nodes.splice(opener.at).slice(1);
    this.#cutMarks(opener.marks);
    const children = joined(label);
    if (target.url && depthOf(children) < MAX_DEPTH) {
      this.#add(link(target.url, children));
      this.#brackets.length = 0; // links hold no links
    } else if (target.url === undefined) {
      for (const node of children) this.#add(node); // its address is still to come
    } else {
      for (const node of ["[", ...children, this.text.slice(this.at, target.end)]) this.#add(node);
    }
    this.at = target.end;
  }

  // Where the link leads and ends; null where none follows; `url` is undefined for half an address.
  #target() {
    if (this.text[this.at + 1] !== "(") return null;
    let place = this.at + 2;
    let depth = 0;
    const last = Math.min(this.text.length, place + MAX_URL_CHARS);
    for (; place < last && !/[\s<>]/.test(this.text[place]); place += 1) {
      if (this.text[place] === "(" && ++depth > MAX_PARENS) return null;
      if (this.text[place] === ")" && depth-- === 0) break;
    }
    const address = this.text.slice(this.at + 2, place);
    const title = /^ +(?:"[^"\n]{0,300}"|'[^'\n]{0,300}') *(?=\))/.exec(this.text.slice(place, place + 310));
    if (title) place += title[0].length;
    if (this.text[place] === ")") return { url: safeUrl(address), end: place + 1 };
    return this.open && place === this.text.length ? { url: undefined, end: place } : null;
  }

  // --- emphasis: runs of * _ ~, as CommonMark pairs them

  #run(char) {
    const length = runLength(this.text, this.at);
    const { canOpen, canClose } = this.#flanks(char, length);
    const usable = char !== "~" || length === 2;
    let left = length;
    if (usable && canClose) left = this.#close(char, length, canOpen);
    if (left && usable && canOpen) {
      this.#marks.push({ char, length: left, original: length, both: canClose, at: this.#nodes.length });
    }
    this.#add(char.repeat(left));
    this.at += length;
  }

  #flanks(char, length) {
    const before = this.at ? charBefore(this.text, this.at) : " ";
    const after = this.text.slice(this.at + length, this.at + length + 2) || " ";
    const afterChar = String.fromCodePoint(after.codePointAt(0));
    const [spaceBefore, spaceAfter] = [before, afterChar].map((it) => /\s/.test(it));
    const [markBefore, markAfter] = [before, afterChar].map((it) => PUNCTUATION.test(it));
    const left = !spaceAfter && (!markAfter || spaceBefore || markBefore);
    const right = !spaceBefore && (!markBefore || spaceAfter || markAfter);
    if (char !== "_") return { canOpen: left, canClose: right };
    return { canOpen: left && (!right || markBefore), canClose: right && (!left || markAfter) };
  }

  // Close what the run can close. Returns how much of it is left over.
  #close(char, length, canOpen) {
    const kind = `${char}${canOpen}${length % 3}`;
    let left = length;
    while (left) {
      const found = this.#openerFor(char, length, canOpen, kind);
      if (found < 0) break;
      const mark = this.#marks[found];
      const used = Math.min(mark.length, left) >= 2 ? 2 : 1;
      if (!this.#wrap(mark, used, char)) {
        this.#cutMarks(0); // whatever is open holds what is too deep
        break;
      }
      this.#cutMarks(mark.length ? found + 1 : found);
      left -= used;
    }
    return left;
  }

  #openerFor(char, length, canOpen, kind) {
    const bottom = Math.max(this.#bottoms.get(kind) ?? 0, this.#brackets.at(-1)?.marks ?? 0);
    for (let place = this.#marks.length - 1; place >= bottom; place -= 1) {
      const mark = this.#marks[place];
      const odd = (canOpen || mark.both) && (mark.original + length) % 3 === 0
        && (mark.original % 3 !== 0 || length % 3 !== 0);
      if (mark.char === char && !odd) return place;
    }
    this.#bottoms.set(kind, this.#marks.length);
    return -1;
  }

  // Take what stands behind `mark` into an element; false where it would be too deep.
  #wrap(mark, used, char) {
    const children = joined(this.#nodes.slice(mark.at + 1));
    if (depthOf(children) >= MAX_DEPTH) return false;
    this.#nodes.length = mark.at;
    mark.length -= used;
    this.#add(char.repeat(mark.length));
    if (children.length) this.#add({ tag: char === "~" ? "del" : used === 2 ? "strong" : "em", children });
    return true;
  }

  #cutMarks(length) {
    this.#marks.length = Math.min(this.#marks.length, length);
    for (const [kind, bottom] of this.#bottoms) this.#bottoms.set(kind, Math.min(bottom, length));
  }

  // The text goes on: close what began with a word (not the one in `2*3`), the last first.
  #closeAll() {
    for (const mark of this.#marks.filter((it) => !it.both).slice(-MAX_DEPTH).reverse()) {
      while (mark.length && this.#wrap(mark, Math.min(mark.length, 2), mark.char));
    }
  }
}

function link(href, children) {
  return { tag: "a", attrs: { href, title: href }, children };
}

function runLength(text, start) {
  let end = start;
  while (text[end] === text[start]) end += 1;
  return end - start;
}

function charBefore(text, place) {
  const low = text.charCodeAt(place - 1);
  return low >= 0xdc00 && low < 0xe000 ? text.slice(place - 2, place) : text[place - 1];
}

// The first of `places` (last first, consumed on the way) behind `at`.
function nextOf(places, at) {
  while (places.length && places.at(-1) <= at) places.pop();
  return places.at(-1);
}

// A sentence's end is not part of an address: `(see https://example.org/a_(b)).`
function withoutTrail(url) {
  let surplus = url.split(")").length - url.split("(").length;
  let end = url.length;
  for (; end; end -= 1) {
    const char = url[end - 1];
    if (char === ")" && surplus > 0) surplus -= 1;
    else if (!/[.,:;!?'"*_~\]]/.test(char)) break;
  }
  return url.slice(0, end);
}

function joined(nodes) {
  const found = [];
  let text = [];
  const flush = () => {
    if (text.length) found.push(text.join(""));
    text = [];
  };
  for (const node of nodes) {
    if (typeof node === "string") {
      if (node) text.push(node);
    } else {
      flush();
      found.push(node);
    }
  }
  flush();
  return found;
}

function depthOf(nodes) {
  let deepest = 0;
  for (const node of nodes) {
    if (typeof node === "string" || !node.children) continue;
    node.depth ??= 1 + depthOf(node.children);
    deepest = Math.max(deepest, node.depth);
  }
  return deepest;
}
