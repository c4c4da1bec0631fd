"use strict";
// Runs a schedule on numbers: a memory of tensors, a cache of tiles, and the pebbles on each element of a tile. The same
// rules as in pebblesim.analysis.peak say how many red pebbles a primitive needs while it computes.

const MOST_STEPS = 20000, SPARED_PEBBLES = 2;

/** What a schedule may not do; `step` counts the primitives before it. */
class Illegal extends Wrong {}

/** A part of a dimension, as a tile has it. */
const stretch = (dim, start, length) => ({ dim, start, length });
const alike = (a, b) => a.dim === b.dim && a.start === b.start && a.length === b.length;
const named = ({ start, length }) => (length === 1 ? `${start}` : `${start}…${start + length - 1}`);

/** Most pebbles on intermediates, and the result, while one element of an expression is computed. */
function intermediates({ op, operands }) {
  if (op === "tile") return 0;
  let held = 0, peak = 0;
  for (const operand of operands) {
    peak = Math.max(peak, held + intermediates(operand));
    held += operand.op !== "tile";
  }
  return Math.max(peak, held + 1);
}

class Machine {
  /**
   * @param sizes the dimensions and blocks by name; `M` the cache, or nothing for as much as it needs.
   * @param tensors { name: { shape: [dims], values } } of the inputs, by rows; values null for what is not yet computed.
   */
  constructor(phases, sizes, M, tensors) {
    Object.assign(this, { phases, sizes, M: M ?? Infinity, red: 0, peak: 0, reads: 0, writes: 0, by: {}, steps: [], changes: [] });
    this.memory = new Map(Object.entries(tensors).map(([name, { shape, values }]) => [name, this.tensor(shape, values)]));
    this.cache = new Map();
    this.loops = new Map();
  }

  tensor(shape, values) {
    const size = shape.reduce((all, dim) => all * this.sizes[dim], 1);
    return { shape, values: values ?? new Float64Array(size), there: new Uint8Array(size).fill(values ? 1 : 0) };
  }

  /** All steps up to the end, or to the first thing that is illegal, which is then in `wrong`. */
  run() {
    this.wrong = null;
    try {
      for (const phase of this.phases) {
        this.phase = phase.name;
        this.body(phase.body);
      }
    } catch (error) {
      if (!(error instanceof Wrong)) throw error;
      this.wrong = error;
    }
    return this;
  }

  fail(node, message) { throw new Illegal(node.line, message); }

  body(nodes) {
    const before = new Set(this.cache.keys());
    for (const node of nodes) {
      if (node.kind === "loop") {
        this.loop(node);
        continue;
      }
      if (this.steps.length >= MOST_STEPS) this.fail(node, `the page stops after ${MOST_STEPS.toLocaleString("en-US")} steps; take smaller sizes`);
      this.node = node;
      const [reads, writes] = [this.reads, this.writes];
      this[node.kind](node);
      this.record(node, this.reads - reads, this.writes - writes);
    }
    const left = [...this.cache.keys()].filter((name) => !before.has(name));
    left.forEach((name) => this.drop(name));
    if (left.length && this.steps.length) Object.assign(this.steps.at(-1), { leaves: this.changes, redAfter: this.red });
    this.changes = [];
  }

  record(node, read, written) {
    const { name } = node, part = node.part ?? node.target;
    this.steps.push({ line: node.line, kind: node.kind, name: part?.text ?? name, read, written, reads: this.reads, writes: this.writes, red: this.red, changes: this.changes, loops: [...this.loops].map(([loop, range]) => [loop, range]) });
    this.changes = [];
  }

  loop(node) {
    const parent = this.loops.get(node.of) ?? (node.of in this.sizes ? stretch(node.of, 0, this.sizes[node.of]) : null);
    if (!parent) this.fail(node, `${node.of} is neither a dimension nor a loop around this line`);
    if (this.loops.has(node.name) && node.name !== node.of) this.fail(node, `a loop around this one already has the name ${node.name}`);
    const block = this.length(node, node.block), begin = node.after === null ? 0 : Math.min(parent.length, this.length(node, node.after));
    const end = node.first ? Math.min(block, parent.length) : parent.length, around = this.loops.get(node.name);
    for (let at = begin; at < end; at += block) {
      this.loops.set(node.name, stretch(parent.dim, parent.start + at, Math.min(block, end - at)));
      this.body(node.body);
    }
    if (around) this.loops.set(node.name, around);
    else this.loops.delete(node.name);
  }

  length(node, block) {
    const size = /^\d+$/.test(block) ? Number(block) : this.sizes[block];
    if (!(size >= 1)) this.fail(node, `${block} is no block size: write a number, or ${Object.keys(this.sizes).join(", ")}`);
    return size;
  }

  // -- pebbles -------------------------------------------------------------------------------------------------------

  reach(red) {
    if (red > this.peak) this.peak = red;
    if (red > this.M) this.fail(this.node, `needs ${red} red pebbles, and the cache has M = ${this.M}`);
  }

  /** Puts pebbles on those elements of a tile that have none. */
  hold(tile, elements) {
    for (const element of elements) {
      if (tile.on[element]) continue;
      tile.on[element] = 1;
      this.red++;
      this.changes.push([tile.family, this.cell(tile, element), 1]);
    }
    this.reach(this.red);
  }

  drop(name) {
    const tile = this.cache.get(name);
    tile.on.forEach((on, element) => {
      if (!on) return;
      this.red--;
      this.changes.push([tile.family, this.cell(tile, element), -1]);
    });
    this.cache.delete(name);
  }

  /** The row and the column of an element of a tile in its tensor. */
  cell({ ranges: [rows, columns], width }, element) {
    return [rows.start + Math.floor(element / width), columns ? columns.start + (element % width) : 0];
  }

  make(name, ranges) {
    const width = ranges[1]?.length ?? 1, size = ranges[0].length * width;
    const tile = { name, ranges, width, values: new Float64Array(size), on: new Uint8Array(size), family: this.familyOf(name, ranges) };
    this.cache.set(name, tile);
    return tile;
  }

  /** The tensor that a tile is drawn in: the one it is written to, or that of its name. */
  familyOf(name, ranges) {
    const base = /^[A-Za-z]+/.exec(name)[0], phase = this.phases.find((each) => each.name === this.phase);
    const shape = ranges.map(({ dim }) => dim).join();
    const fits = (tensor) => this.memory.has(tensor) && this.memory.get(tensor).shape.join() === shape;
    if (fits(base)) return base;
    const written = [...walk(phase.body)].find((each) => each.kind === "write" && each.name === name);
    return written ? written.part.base : base;
  }

  tile(node, part) {
    const whole = this.cache.get(part.text) ?? this.cache.get(part.base);
    if (!whole) this.fail(node, `${part.text} is not in the cache`);
    const { ranges } = whole;
    const wanted = this.cache.has(part.text) || !part.indices ? ranges : part.indices.map((index, axis) => (index === ":" ? ranges[axis] : this.loops.get(index)));
    if (wanted.length !== ranges.length || wanted.some((range, axis) => !range || range.dim !== ranges[axis].dim || range.start < ranges[axis].start || range.start + range.length > ranges[axis].start + ranges[axis].length)) {
      this.fail(node, `${part.text} is no part of the tile ${part.base}, which has ${ranges.map(named).join(", ")}`);
    }
    return { whole, ranges: wanted, elements: this.elements(whole.ranges, wanted) };
  }

  elements([allRows, allColumns], [rows, columns]) {
    const width = allColumns?.length ?? 1, from = columns ? columns.start - allColumns.start : 0, made = [];
    for (let row = rows.start - allRows.start; row < rows.start - allRows.start + rows.length; row++) {
      for (let column = from; column < from + (columns?.length ?? 1); column++) made.push(row * width + column);
    }
    return made;
  }

  // -- memory and cache ----------------------------------------------------------------------------------------------

  /** The ranges of a part of a tensor in memory, which it makes if it is new. */
  region(node, part, makes = false) {
    const given = this.memory.get(part.base);
    if (!given && (!makes || !part.indices)) this.fail(node, `there is no ${part.base} in memory`);
    const shape = given?.shape;
    if (part.indices && shape && part.indices.length !== shape.length) this.fail(node, `${part.base} has ${shape.length} ${shape.length === 1 ? "dimension" : "dimensions"}, not ${part.indices.length}`);
    const ranges = (part.indices ?? shape.map(() => ":")).map((index, axis) => {
      if (index === ":") return stretch(shape?.[axis] ?? "d", 0, this.sizes[shape?.[axis] ?? "d"]);
      const range = this.loops.get(index);
      if (!range) this.fail(node, `${index} is no loop around this line`);
      if (shape && range.dim !== shape[axis]) this.fail(node, `${part.base}[…] is cut along ${shape[axis]} here, and ${index} goes over ${range.dim}`);
      return range;
    });
    if (!given) this.memory.set(part.base, this.tensor(ranges.map(({ dim }) => dim), null));
    const tensor = this.memory.get(part.base), whole = tensor.shape.map((dim) => stretch(dim, 0, this.sizes[dim]));
    return { tensor, ranges, elements: this.elements(whole, ranges) };
  }

  tally(name, side, words) {
    this[side] += words;
    (this.by[name] ??= { reads: 0, writes: 0 })[side] += words;
  }

  read(node) {
    const { tensor, ranges, elements } = this.region(node, node.part);
    if (this.cache.has(node.name)) this.fail(node, `${node.name} is in the cache already; delete it first`);
    if (elements.some((each) => !tensor.there[each])) this.fail(node, `${node.part.base}[${ranges.map(named).join(", ")}] is not in memory: nothing wrote it`);
    const tile = this.make(node.name, ranges);
    tile.family = node.part.base;
    elements.forEach((each, place) => { tile.values[place] = tensor.values[each]; });
    this.hold(tile, tile.values.keys());
    this.tally(node.part.base, "reads", elements.length);
  }

  write(node) {
    const { whole, ranges, elements } = this.tile(node, partOf(node.name)), region = this.region(node, node.part, true);
    if (ranges.length !== region.ranges.length || !ranges.every((range, axis) => alike(range, region.ranges[axis]))) this.fail(node, `${node.name} is not the part ${node.part.text}`);
    this.hold(whole, elements);
    region.elements.forEach((each, place) => {
      region.tensor.values[each] = whole.values[elements[place]];
      region.tensor.there[each] = 1;
    });
    this.toMemory(node.part.base, region);
  }

  fill(node) {
    const region = this.region(node, node.part, true);
    this.reach(this.red + 1);
    region.elements.forEach((each) => {
      region.tensor.values[each] = node.value;
      region.tensor.there[each] = 1;
    });
    this.toMemory(node.part.base, region);
  }

  toMemory(name, { tensor, elements }) {
    const width = tensor.shape[1] ? this.sizes[tensor.shape[1]] : 1;
    for (const each of elements) this.changes.push([name, [Math.floor(each / width), each % width], 0]);
    this.tally(name, "writes", elements.length);
  }

  /** The shape of a constant, which its line does not say: that of what is added to it, or of where it is written. */
  shapeOf(node) {
    const known = new Map(), all = [...walk(this.phases.find((each) => each.name === this.phase).body)];
    let shape = null, seen = false;
    for (const each of all) {
      seen ||= each === node;
      if (each.kind === "read") known.set(each.name, this.indicesOf(each.part));
      const mine = seen && each.name === node.name;
      if (mine && each.kind === "write") shape = this.indicesOf(each.part);
      if (mine && each.kind === "move") shape = known.get(each.source) ?? null;
      if (each.kind === "compute" && !each.target.indices) {
        const made = this.shapeOfExpression(each.expr, known);
        if (seen && made && each.target.text === node.name) shape = made;
        else if (made && !known.has(each.target.text)) known.set(each.target.text, made);
      }
      if (shape) break;
    }
    shape ??= this.shapeOfName(node.name);
    if (!shape) this.fail(node, `the shape of ${node.name} is not clear: nothing is added to it, and it is not written`);
    return shape.map((index) => {
      const range = index.startsWith(":") ? stretch(index.slice(1), 0, this.sizes[index.slice(1)]) : this.loops.get(index);
      return range ?? this.fail(node, `${node.name} is used with ${index}, and no loop around this line has that name`);
    });
  }

  /** The shape that a name such as l_i or C_ij tells of, if its letters are loops around this line. */
  shapeOfName(name) {
    const [base, letters = ""] = name.split("_"), indices = [...letters];
    if (!indices.length || !indices.every((index) => this.loops.has(index))) return null;
    const shape = this.memory.get(base)?.shape ?? [];
    return shape.length > indices.length ? [...indices, ...shape.slice(indices.length).map((dim) => `:${dim}`)] : indices;
  }

  indicesOf({ base, indices }) {
    const shape = this.memory.get(base)?.shape;
    if (!indices) return shape?.map((dim) => `:${dim}`) ?? null;
    return indices.map((index, axis) => (index === ":" ? `:${shape?.[axis] ?? "d"}` : index));
  }

  shapeOfExpression({ op, part, transposed, operands }, known) {
    if (op === "tile") {
      const whole = known.get(part.text) ?? known.get(part.base);
      const shape = whole && !known.has(part.text) && part.indices ? part.indices.map((index, axis) => (index === ":" ? whole[axis] : index)) : whole;
      return shape && transposed ? [shape[1], shape[0]] : shape;
    }
    const shapes = operands.map((operand) => this.shapeOfExpression(operand, known));
    if (shapes.some((shape) => !shape)) return null;
    if (op === "product") return [shapes[0][0], shapes[1][1]];
    if (op === "rowsum" || op === "rowmax") return [shapes[0][0]];
    return shapes.reduce((a, b) => (b.length > a.length ? b : a));
  }

  constant(node) {
    if (this.cache.has(node.name)) this.fail(node, `${node.name} is in the cache already; delete it first`);
    const tile = this.make(node.name, this.shapeOf(node));
    tile.values.fill(node.value);
    if (!node.sum) this.hold(tile, tile.values.keys());
  }

  delete(node) {
    if (!this.cache.has(node.name)) this.fail(node, `${node.name} is not in the cache`);
    this.drop(node.name);
  }

  move(node) {
    for (const name of [node.source, node.name]) if (!this.cache.has(name)) this.fail(node, `${name} is not in the cache`);
    const source = this.cache.get(node.source);
    this.drop(node.name);
    this.cache.delete(node.source);
    this.cache.set(node.name, Object.assign(source, { name: node.name }));
  }

  // -- compute -------------------------------------------------------------------------------------------------------

  /** [rows, columns] of an expression, and its value at a row and a column, counted from the first of each. */
  value(node, expr) {
    if (expr.op === "tile") {
      const { whole, ranges, elements } = this.tile(node, expr.part), missing = elements.some((each) => !whole.on[each]);
      if (missing) this.fail(node, `${expr.part.text} has no value yet: it is a sum without a term`);
      const width = ranges[1]?.length ?? 1, at = (row, column) => whole.values[elements[row * width + column]];
      return expr.transposed ? { ranges: [ranges[1], ranges[0]], at: (row, column) => at(column, row) } : { ranges, at };
    }
    const operands = expr.operands.map((operand) => this.value(node, operand)), [left, right] = operands;
    if (expr.op === "product") {
      if (!left.ranges[1] || !right.ranges[1]) this.fail(node, "a product is of two matrices");
      if (!alike(left.ranges[1], right.ranges[0])) this.fail(node, `the sum goes over ${named(left.ranges[1])} of ${left.ranges[1].dim} on the left, and ${named(right.ranges[0])} of ${right.ranges[0].dim} on the right`);
      return { ranges: [left.ranges[0], right.ranges[1]], terms: left.ranges[1].length, term: (row, column, k) => left.at(row, k) * right.at(k, column), plus: (a, b) => a + b };
    }
    if (expr.op === "rowsum" || expr.op === "rowmax") {
      if (!left.ranges[1]) this.fail(node, `${expr.op} is of a matrix`);
      return { ranges: [left.ranges[0]], terms: left.ranges[1].length, term: (row, _, k) => left.at(row, k), plus: expr.op === "rowsum" ? (a, b) => a + b : Math.max };
    }
    const ranges = operands.map((each) => each.ranges).reduce((a, b) => (b.length > a.length ? b : a));
    for (const { ranges: own } of operands) {
      if (own.some((range, axis) => !alike(range, ranges[axis]))) this.fail(node, `tiles of different parts: ${own.map(named).join(", ")} and ${ranges.map(named).join(", ")}`);
    }
    const by = { add: (a, b) => a + b, sub: (a, b) => a - b, mul: (a, b) => a * b, div: (a, b) => a / b, max: Math.max, exp: Math.exp, log: Math.log }[expr.op];
    return { ranges, at: (row, column) => by(...operands.map((each) => each.at(row, each.ranges[1] ? column : 0))) };
  }

  compute(node) {
    const { target, expr, adds } = node, made = this.value(node, expr), sums = made.terms !== undefined;
    const known = this.cache.has(target.text) || this.cache.has(target.base);
    if (adds && (!sums || expr.op === "rowmax")) this.fail(node, "what is added is a product of matrices or a sum of rows");
    if (adds && !known) this.fail(node, `${target.text} is not in the cache`);
    if (!adds && sums && known) this.fail(node, `${target.text} is in the cache already; delete it first, or add to it with +=`);
    if (!known && target.indices) this.fail(node, `${target.base} is not in the cache`);
    if (!known) this.make(target.text, made.ranges);
    const { whole, ranges, elements } = this.tile(node, target), width = ranges[1]?.length ?? 1;
    if (ranges.length !== made.ranges.length || !ranges.every((range, axis) => alike(range, made.ranges[axis]))) {
      this.fail(node, `${target.text} has ${ranges.map(named).join(", ")}, and what is computed has ${made.ranges.map(named).join(", ")}`);
    }
    if (sums) this.add(node, made, whole, elements, width);
    else this.assign(node, made, whole, elements, width);
  }

  assign({ expr }, made, whole, elements, width) {
    const fresh = elements.filter((each) => !whole.on[each]).length;
    this.reach(this.red + Math.max(0, fresh - 1) + intermediates(expr));
    const values = elements.map((_, place) => made.at(Math.floor(place / width), place % width));
    elements.forEach((each, place) => { whole.values[each] = values[place]; });
    this.hold(whole, elements);
  }

  add({ expr, adds }, { terms, term, plus }, whole, elements, width) {
    const reduces = expr.op !== "product" && expr.operands[0].op !== "tile", inner = reduces ? intermediates(expr.operands[0]) : 0;
    const alone = expr.op === "product" ? 1 : Math.max(1 + Number(reduces), inner), added = reduces ? alone : SPARED_PEBBLES;
    const fresh = elements.filter((each) => !whole.on[each]).length, others = Math.max(0, fresh - 1);
    const first = fresh ? alone : 1 + added, further = terms > 1 ? 1 + added : 0, one = fresh ? 0 : 1;
    this.reach(this.red - one + others + Math.max(first, further));
    elements.forEach((each, place) => {
      let value = whole.on[each] && adds ? whole.values[each] : null;
      for (let k = 0; k < terms; k++) {
        const next = term(Math.floor(place / width), place % width, k);
        value = value === null ? next : plus(value, next);
      }
      whole.values[each] = value;
    });
    this.hold(whole, elements);
  }
}
