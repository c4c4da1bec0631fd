"use strict";
/* The state of a recorded game at any move. No drawing here: this file runs in any JavaScript engine. */

const READ = 0, WRITE = 1;
const RED = 1, BLUE = 2;

/** The numbers in a base64 text, little-endian, as an array of that type. */
function decoded(text, Type) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Type(bytes.buffer);
}

/** The last index whose value is not above `limit` in a rising array; -1 if there is none. */
function lastUpTo(values, limit) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

class Player {
  /** @param game what `pebblesim.replay.data` gives. */
  constructor(game) {
    const array = (name, Type) => decoded(game.arrays[name], Type);
    this.game = game;
    this.moves = array("moves", Uint32Array);
    this.starts = array("starts", Uint32Array);
    this.lines = array("lines", Uint32Array);
    this.turns = array("turns", Uint32Array); // moves in front, line, tile; three numbers for each
    this.indptr = array("indptr", Uint32Array);
    this.preds = array("preds", Uint32Array);
    this.x = array("x", Float32Array);
    this.y = array("y", Float32Array);
    this.tensor = array("tensor", Uint16Array);
    this.cell = array("cell", Uint32Array);
    this.value = array("value", Uint8Array);
    this.tail = array("tail", Uint32Array);
    this.inputs = array("inputs", Uint32Array);
    this.outputs = array("outputs", Uint32Array);
    this.vertices = this.cell.length;
    this.length = this.moves.length;
    const last = game.tensors[game.tensors.length - 1];
    this.cells = last ? last.cell + last.rows * last.columns : 0;
    this.state = new Uint8Array(this.vertices);
    this.redValues = new Uint16Array(this.cells);
    this.redParts = new Uint32Array(this.cells);
    this.blueValues = new Uint16Array(this.cells);
    this.tileOf = new Int32Array(game.text.length).fill(-1); // of each line that is a loop, the tile it is at
    for (const v of this.inputs) this.state[v] = BLUE;
    this._count();
    Object.assign(this, { at: 0, reads: 0, writes: 0, red: 0, peak: 0, turn: 0 });
    this._turns();
    // A copy of everything every so many moves, so that any move is near one: 64 MB of them at most.
    this.every = Math.max(512, Math.ceil((this.length * this.vertices) / 64e6));
    this.history = new Uint32Array(this.length + 1); // red pebbles at each move
    this.frames = [this._frame()];
    while (this.at < this.length) {
      this._apply(this.moves[this.at]);
      this.history[this.at] = this.red;
      if (this.at % this.every === 0) this.frames.push(this._frame());
    }
    this.highest = this.peak;
    this.seek(0);
  }

  /** Go to a move; 0 is before the first. */
  seek(move) {
    const target = Math.min(this.length, Math.max(0, Math.round(move)));
    const frame = this.frames[Math.floor(target / this.every)];
    if (target < this.at || frame.at > this.at) this._restore(frame);
    while (this.at < target) this._apply(this.moves[this.at]);
  }

  /** Go to where the next primitive begins (direction 1), or to where this one or the one before does (-1). */
  seekStep(direction) {
    const step = lastUpTo(this.starts, this.at);
    if (direction > 0) this.seek(step + 1 < this.starts.length ? this.starts[step + 1] : this.length);
    else this.seek(this.starts[step] < this.at ? this.starts[step] : this.starts[Math.max(0, step - 1)] ?? 0);
  }

  /** The line of the pseudo-code that the present move comes from; at 0, the first move's. */
  get line() {
    return this.lines.length ? this.lines[Math.max(0, lastUpTo(this.starts, Math.max(0, this.at - 1)))] : 0;
  }

  /** The vertex of the present move; -1 before the first. */
  get vertex() {
    return this.at ? this.moves[this.at - 1] >>> 2 : -1;
  }

  /** The present move in words. */
  get move() {
    if (!this.at) return "before the first move";
    const kind = this.game.kinds[this.moves[this.at - 1] & 3];
    return `${kind} ${this.name(this.vertex)}`;
  }

  /** What a vertex is called. */
  name(v) {
    const tensor = this.game.tensors[this.tensor[v]];
    const [block, part] = this.game.tails[this.tail[v]];
    const element = this.cell[v] - tensor.cell;
    const index = tensor.vector ? element : `${Math.floor(element / tensor.columns)},${element % tensor.columns}`;
    return `${tensor.name}[${block}${index}]${part}`;
  }

  _apply(packed) {
    const kind = packed & 3, v = packed >>> 2;
    const before = this.state[v];
    const red = this.game.after.red[kind], blue = this.game.after.blue[kind];
    let now = before;
    if (red >= 0) now = red ? now | RED : now & ~RED;
    if (blue >= 0) now = blue ? now | BLUE : now & ~BLUE;
    if (now !== before) {
      this.state[v] = now;
      this.red += (now & RED) - (before & RED);
      this._cell(v, before, -1);
      this._cell(v, now, 1);
      if (this.red > this.peak) this.peak = this.red;
    }
    if (kind === READ) this.reads += 1;
    if (kind === WRITE) this.writes += 1;
    this.at += 1;
    this._turns();
  }

  _cell(v, state, sign) {
    const cell = this.cell[v];
    if (this.value[v]) {
      if (state & RED) this.redValues[cell] += sign;
      if (state & BLUE) this.blueValues[cell] += sign;
    } else if (state & RED) this.redParts[cell] += sign;
  }

  _count() {
    this.redValues.fill(0);
    this.redParts.fill(0);
    this.blueValues.fill(0);
    for (let v = 0; v < this.vertices; v++) if (this.state[v]) this._cell(v, this.state[v], 1);
  }

  /** Loops that have begun an iteration by now: those in front of the next move. */
  _turns() {
    while (this.turn < this.turns.length && this.turns[this.turn] < Math.max(1, this.at)) {
      this.tileOf[this.turns[this.turn + 1]] = this.turns[this.turn + 2];
      this.turn += 3;
    }
  }

  _frame() {
    const { at, reads, writes, red, peak, turn } = this;
    return { at, reads, writes, red, peak, turn, state: this.state.slice(), tileOf: this.tileOf.slice() };
  }

  _restore(frame) {
    const { at, reads, writes, red, peak, turn } = frame;
    Object.assign(this, { at, reads, writes, red, peak, turn });
    this.state.set(frame.state);
    this.tileOf.set(frame.tileOf);
    this._count();
  }
}

if (typeof module !== "undefined") module.exports = { Player, decoded, lastUpTo };
