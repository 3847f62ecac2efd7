// Markdown as a tree of blocks: paragraphs, headings, lists, quotes, code, tables, rules. No DOM.
// Reads what models write: a line break is one, and a nested list may be indented by two. Linear in the
// length of the text. Not covered, and shown as written: HTML, indented code, underlined headings.

import { parseInline } from "./markdown_inline.js";

const MAX_DEPTH = 6; // of lists and quotes in each other; deeper ones are text
const MAX_COLUMNS = 40;
const HEADING_OFFSET = 3; // the page's own headings stand above: h1 the chat, h2 its parts, h3 a turn
const FENCE = /^( *)(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( {1,4}|\t|$)/;

// The blocks of `text`, each with `start`, where its first line begins.
// `open`: more text will come, so what the end began is shown as it will look.
export function parseBlocks(text, { open = false } = {}) {
  const lines = text.split("\n");
  if (open && (!lines.at(-1) || isHalfLine(lines))) lines.pop();
  const starts = [0];
  for (const line of lines) starts.push(starts.at(-1) + line.length + 1);
  return new Blocks(lines.map(untabbed), 0, open).parse().map((it) => ({ ...it, start: starts[it.line] }));
}

// Whether the last line shows nothing by itself: `-` and `1.` become items, "``" a fence.
function isHalfLine(lines) {
  const last = lines.at(-1);
  if (lines.length > 1 && /^\s*\d{1,3}$/.test(last)) return true;
  return /^\s*([-*+]{1,2}|\d{1,9}[.)]|#{1,6}|`{1,3}|~{1,3}|\|[\s|:-]*)\s?$/.test(last);
}

function untabbed(line) {
  return line.replace(/\r$/, "").replace(/^[ \t]+/, (indent) => indent.replaceAll("\t", "    "));
}

function isRule(line) {
  const marks = line.replace(/[ \t]/g, "");
  return marks.length >= 3 && "-*_".includes(marks[0]) && !marks.replaceAll(marks[0], "");
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

class Blocks {
  constructor(lines, depth, open) {
    Object.assign(this, { lines, depth, open, at: 0 });
  }

  parse() {
    const found = [];
    while (this.at < this.lines.length) {
      const line = this.at;
      const block = this.lines[line].trim() ? this.#block() : null;
      if (block) found.push({ ...block, line });
      else this.at += 1;
    }
    return found;
  }

  #block() {
    const line = this.lines[this.at];
    return this.#fence(line) ?? this.#heading(line) ?? this.#rule(line) ?? this.#quote(line)
      ?? this.#list(line) ?? this.#table() ?? this.#paragraph();
  }

  // Whether the line ends a paragraph. A list does so with its first number only: "in\n1984. Then".
  #interrupts(line) {
    if (!line.trim() || FENCE.test(line) || HEADING.test(line) || isRule(line)) return true;
    if (this.depth >= MAX_DEPTH) return false;
    const item = ITEM.exec(line);
    return QUOTE.test(line) || Boolean(item && /^([-*+]|1[.)])$/.test(item[2]) && item[3]);
  }

  #isLast(line) {
    return this.open && line >= this.lines.length - 1;
  }

  #inline(text) {
    return parseInline(text.trim(), { open: this.#isLast(this.at - 1) });
  }

  #fence(line) {
    const found = FENCE.exec(line);
    if (!found) return null;
    const [, indent, marks, info] = found;
    const closes = (it) => {
      const shown = it.trim();
      return shown.length >= marks.length && !shown.replaceAll(marks[0], "");
    };
    const code = [];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      if (closes(this.lines[this.at])) break;
      const cut = Math.min(indentOf(this.lines[this.at]), indent.length);
      code.push(this.lines[this.at].slice(cut));
    }
    this.at += 1;
    return { tag: "pre", language: info.trim().split(/\s/)[0], code: code.join("\n") };
  }

  #heading(line) {
    const found = HEADING.exec(line);
    if (!found) return null;
    this.at += 1;
    const text = line.slice(found[0].length).trim();
    let end = text.length;
    while (text[end - 1] === "#") end -= 1;
    const shown = end === 0 || /\s/.test(text[end - 1]) ? text.slice(0, end) : text;
    return { tag: `h${Math.min(found[1].length + HEADING_OFFSET, 6)}`, children: this.#inline(shown) };
  }

  #rule(line) {
    if (!isRule(line)) return null;
    this.at += 1;
    return { tag: "hr" };
  }

  #nested(lines, end) {
    return new Blocks(lines, this.depth + 1, this.#isLast(end)).parse();
  }

  #quote(line) {
    if (this.depth >= MAX_DEPTH || !QUOTE.test(line)) return null;
    const inside = [];
    for (; this.at < this.lines.length && QUOTE.test(this.lines[this.at]); this.at += 1) {
      inside.push(this.lines[this.at].replace(QUOTE, ""));
    }
    return { tag: "blockquote", children: this.#nested(inside, this.at - 1) };
  }

  // --- lists

  #list(line) {
    const first = this.depth < MAX_DEPTH && ITEM.exec(line);
    if (!first) return null;
    const kind = first[2].at(-1);
    const items = [];
    let loose = false;
    for (let item = first; item; item = this.#nextItem(kind, first[1].length)) {
      const { lines, blank } = this.#itemLines(item);
      items.push({ lines, end: this.at - 1 });
      loose ||= blank || (this.#isBlank(this.at) && Boolean(this.#peekItem(kind, first[1].length)));
    }
    const children = items.map(({ lines, end }) => {
      const blocks = this.#nested(lines, end);
      return { tag: "li", children: loose ? blocks : blocks.flatMap(withoutParagraph) };
    });
    if ("-*+".includes(kind)) return { tag: "ul", children };
    return { tag: "ol", attrs: { start: String(Number.parseInt(first[2], 10)) }, children };
  }

  #isBlank(place) {
    return place < this.lines.length && !this.lines[place].trim();
  }

  #afterBlanks() {
    let place = this.at;
    while (this.#isBlank(place)) place += 1;
    return place;
  }

  // The next item of the same list, if the next line that is not empty begins one.
  #peekItem(kind, indent) {
    const line = this.lines[this.#afterBlanks()];
    const found = line !== undefined && !isRule(line) && ITEM.exec(line);
    return found && found[2].at(-1) === kind && found[1].length < indent + 2 ? found : null;
  }

  #nextItem(kind, indent) {
    const found = this.#peekItem(kind, indent);
    if (found) this.at = this.#afterBlanks();
    return found;
  }

  // What belongs to an item: its line, what is indented below it, and a paragraph's next lines.
  #itemLines([marker, indent]) {
    const lines = [this.lines[this.at].slice(marker.length)];
    let blank = false;
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const place = this.#afterBlanks();
      const next = this.lines[place];
      if (next === undefined) break;
      const inside = indentOf(next) >= indent.length + 2;
      if (place > this.at && !inside) break;
      if (!inside && (ITEM.test(next) || this.#interrupts(next) || FENCE.test(lines.at(-1)))) break;
      for (; this.at < place; this.at += 1) lines.push("");
      blank ||= lines.at(-1) === "" && lines.length > 1 && !ITEM.test(next);
      lines.push(next.slice(Math.min(indentOf(next), marker.length)));
    }
    return { lines, blank };
  }

  // --- tables

  // The names of the columns where a table begins at `place`, else null. A line that begins with | and
  // is the last one so far is taken for its header.
  #columnsAt(place) {
    const [header, rule] = [this.lines[place], this.lines[place + 1]];
    if (!header.includes("|")) return null;
    const names = cellsOf(header);
    const fits = rule === undefined ? this.open && /^\s*\|/.test(header) : isTableRule(rule, names.length);
    return fits && names.length <= MAX_COLUMNS ? names : null;
  }

  #table() {
    const names = this.#columnsAt(this.at);
    if (!names) return null;
    const sides = cellsOf(this.lines[this.at + 1] ?? "").map(sideOf);
    const row = (tag, found) => {
      const cells = names.map((_, column) => {
        const attrs = sides[column] ? { class: sides[column] } : undefined;
        return { tag, attrs, children: this.#inline(found[column] ?? "") };
      });
      return { tag: "tr", children: cells };
    };
    this.at += 1;
    const head = { tag: "thead", children: [row("th", names)] };
    const rows = [];
    for (this.at += 1; this.at < this.lines.length;) {
      const line = this.lines[this.at];
      if (this.#interrupts(line) || !line.includes("|")) break;
      this.at += 1;
      rows.push(row("td", cellsOf(line)));
    }
    return { tag: "table", children: rows.length ? [head, { tag: "tbody", children: rows }] : [head] };
  }

  #paragraph() {
    const lines = [this.lines[this.at].trim()];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      if (this.#interrupts(this.lines[this.at]) || this.#columnsAt(this.at)) break;
      lines.push(this.lines[this.at].trim());
    }
    return { tag: "p", children: this.#inline(lines.join("\n")) };
  }
}

function isTableRule(line, columns) {
  if (!line?.includes("-") || !/^[\s|:-]+$/.test(line)) return false;
  const cells = cellsOf(line);
  return cells.length === columns && (columns > 1 || line.includes("|")) && cells.every((it) => /^:?-+:?$/.test(it));
}

function sideOf(cell) {
  if (!cell.endsWith(":")) return "";
  return cell.startsWith(":") ? "middle" : "end";
}

function cellsOf(line) {
  const cells = [""];
  const text = line.trim();
  for (let at = text[0] === "|" ? 1 : 0; at < text.length; at += 1) {
    const escaped = text[at] === "\\" && text[at + 1] === "|";
    if (escaped) at += 1;
    if (escaped || text[at] !== "|") cells[cells.length - 1] += text[at];
    else if (at < text.length - 1) cells.push("");
    if (cells.length > MAX_COLUMNS + 1) break;
  }
  return cells.map((it) => it.trim());
}

function withoutParagraph(block) {
  return block.tag === "p" ? block.children : [block];
}
