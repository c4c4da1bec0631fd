"use strict";
// Reads the pseudo-code that `pebblesim show` prints: loops over tiles, and the primitives. What is not understood is said
// with its line. ASCII will do, too: <- for ←, @ for ·, .T for ᵀ, * for ∘, -inf for −∞.

/** What is wrong with a line of a schedule; `line` counts from 0. */
class Wrong extends Error {
  constructor(line, message) {
    super(message);
    this.line = line;
  }
}

const ASCII = [["<-", "←"], [/\s*@\s*/g, " · "], [/\.T\b/g, "ᵀ"], [/\*/g, "∘"], [/-inf\b/g, "−∞"], [/ - /g, " − "], [/\^-1/g, "⁻¹"]];
const WORD = "[A-Za-z]\\w*";
const PART = `${WORD}(?:\\[[\\w:, ]+\\])?`;
const FORMS = {
  loop: new RegExp(`^for (${WORD}) in (?:(tiles) of (${WORD}) by (\\w+)(?: after the first (\\w+))?|the first (\\w+) of (${WORD})):$`),
  read: new RegExp(`^read (${PART})(?: as (${WORD}))?$`),
  write: new RegExp(`^write (${PART}) ← (.+)$`),
  move: new RegExp(`^move (${PART}) to (${WORD})$`),
  delete: new RegExp(`^delete (${PART})$`),
  compute: new RegExp(`^(${PART}) (←|\\+=) (.+)$`),
};
const CONSTANTS = { 0: 0, "−∞": -Infinity };

/** The phases of a schedule: [{ name, line, body }], a body being a list of nodes { kind, line, ... }. */
function parse(text) {
  const phases = [], open = []; // of each body that is open: [depth, list]
  text.split("\n").forEach((whole, line) => {
    const bare = whole.replace(/#.*$/, "").trimEnd(), said = bare.trim();
    if (!said) return;
    const depth = bare.length - bare.trimStart().length, phase = /^phase (.*):$/.exec(said);
    if (phase && depth === 0) {
      phases.push({ name: phase[1], line, body: [] });
      open.splice(0, open.length, [null, phases.at(-1).body]);
      return;
    }
    if (!phases.length) throw new Wrong(line, "a schedule begins with a line such as “phase O:”");
    while (open.length > 1 && depth < open.at(-1)[0]) open.pop();
    const inner = open.at(-1);
    if (inner[0] === null) inner[0] = depth;
    if (depth !== inner[0] || depth === 0) throw new Wrong(line, "this line is not indented as its neighbours are");
    const node = parsedLine(said, line);
    inner[1].push(node);
    if (node.kind === "loop") open.push([null, node.body]);
  });
  if (!phases.length) throw new Wrong(0, "there is no schedule here");
  for (const { body } of phases) markSums(body);
  return phases;
}

function parsedLine(said, line) {
  const plain = ASCII.reduce((made, [from, to]) => made.replaceAll(from, to), said);
  for (const [kind, form] of Object.entries(FORMS)) {
    const found = form.exec(plain);
    if (!found) continue;
    const [, a, b, c, d, e, f, g] = found;
    if (kind === "loop") return { kind, line, name: a, of: c ?? g, block: d ?? f, first: !b, after: e ?? null, body: [] };
    if (kind === "read") return { kind, line, part: partOf(a), name: b ?? a };
    if (kind === "write" && b.trim() in CONSTANTS) return { kind: "fill", line, part: partOf(a), value: CONSTANTS[b.trim()] };
    if (kind === "write") return { kind, line, part: partOf(a), name: b.trim() };
    if (kind === "move") return { kind, line, source: a, name: b };
    if (kind === "delete") return { kind, line, name: a };
    if (b === "←" && c.trim() in CONSTANTS) return { kind: "constant", line, name: a, value: CONSTANTS[c.trim()] };
    return { kind, line, target: partOf(a), adds: b === "+=", expr: new Expression(c, line).read() };
  }
  throw new Wrong(line, `not understood: “${said}”`);
}

/** "Q[i, :]" as { text, base: "Q", indices: ["i", ":"] }. */
function partOf(text) {
  const [, base, inside] = /^(\w+)(?:\[(.*)\])?$/.exec(text);
  return { text, base, indices: inside ? inside.split(",").map((each) => each.trim()) : null };
}

/** A zero to which terms are added has no pebble before the first term; a zero that is a value has one. */
function markSums(body) {
  const all = [...walk(body)];
  all.forEach((node, place) => {
    if (node.kind !== "constant") return;
    const next = all.slice(place + 1).find((each) => each.kind === "compute" && each.target.base === node.name);
    node.sum = node.value === 0 && next?.adds === true;
  });
}

function* walk(body) {
  for (const node of body) {
    yield node;
    if (node.kind === "loop") yield* walk(node.body);
  }
}

/** An expression as a tree: { op, operands }, op "tile" with its part, "product", "rowsum", "rowmax" or one by elements. */
class Expression {
  constructor(text, line) {
    this.text = text;
    this.line = line;
    this.tokens = text.match(new RegExp(`diag\\(|⁻¹|ᵀ|${PART}|[-+−∘/·(),]|\\d+|\\S`, "g")) ?? [];
    this.place = 0;
  }

  read() {
    const made = this.sum();
    if (this.place < this.tokens.length) this.fail();
    return made;
  }

  fail() { throw new Wrong(this.line, `not understood: “${this.text}”${this.place < this.tokens.length ? `, at “${this.tokens[this.place]}”` : ""}`); }
  take(...tokens) { return tokens.includes(this.tokens[this.place]) ? this.tokens[this.place++] : null; }
  expect(token) { if (!this.take(token)) this.fail(); }

  sum() {
    let left = this.product();
    for (let sign; (sign = this.take("+", "−", "-"));) left = { op: sign === "+" ? "add" : "sub", operands: [left, this.product()] };
    return left;
  }

  product() {
    let left = this.factor();
    for (let sign; (sign = this.take("∘", "/", "·"));) {
      if (sign !== "·") left = { op: sign === "/" ? "div" : "mul", operands: [left, this.factor()] };
      else if (this.take("1")) left = { op: "rowsum", operands: [left] };
      else left = { op: "product", operands: [left, this.factor()] };
    }
    return left;
  }

  factor() {
    if (this.take("diag(")) {
      const rows = this.sum();
      this.expect(")");
      const divides = this.take("⁻¹"), scaled = this.factor();
      return divides ? { op: "div", operands: [scaled, rows] } : { op: "mul", operands: [rows, scaled] };
    }
    if (this.take("(")) {
      const inner = this.sum();
      this.expect(")");
      return inner;
    }
    const word = this.tokens[this.place];
    if (word === undefined || !/^[A-Za-z]/.test(word)) this.fail();
    this.place++;
    if (["exp", "log", "rowmax", "max"].includes(word) && this.take("(")) {
      const operands = [this.sum()];
      while (this.take(",")) operands.push(this.sum());
      this.expect(")");
      if (operands.length !== (word === "max" ? 2 : 1)) this.fail();
      return { op: word, operands };
    }
    return { op: "tile", part: partOf(word), transposed: Boolean(this.take("ᵀ")), operands: [] };
  }
}
