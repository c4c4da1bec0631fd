"use strict";
/* A recorded game at any of its moves. No drawing here. */

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
  /** @param game what `pebblesim.views.replay.content.of_game` gives; `graph` the graph that is in it. */
  constructor(game, graph) {
    this.game = game;
    this.graph = graph;
    this.referee = new Referee(graph, game.M, game.rules);
    for (const name of ["moves", "starts", "lines", "turns"]) this[name] = decoded(game.arrays[name], Uint32Array);
    this.length = this.moves.length;
    this.tileOf = new Int32Array(game.text.length).fill(-1); // of each line that is a loop, the tile it is at
    [this.at, this.turn] = [0, 0];
    this.takeTurns();
    // A copy of everything every so many moves, so that any move is near one: 64 MB of them at most.
    this.every = Math.max(512, Math.ceil((this.length * graph.vertices) / 64e6));
    this.history = new Uint32Array(this.length + 1); // words in cache at each move
    this.transfers = []; // the moves that cost words
    this.frames = [this.frame()];
    while (this.at < this.length) {
      const kind = this.moves[this.at] & 3;
      this.next();
      if (kind === READ || kind === WRITE) this.transfers.push(this.at);
      this.history[this.at] = this.referee.red;
      if (this.at % this.every === 0) this.frames.push(this.frame());
    }
    this.highest = this.referee.peak;
    this.io = this.referee.io;
    this.seek(0);
  }

  /** Go to a move; 0 is before the first. */
  seek(move) {
    const target = Math.min(this.length, Math.max(0, Math.round(move)));
    const frame = this.frames[Math.floor(target / this.every)];
    if (target < this.at || frame.at > this.at) this.back(frame);
    while (this.at < target) this.next();
  }

  /** Go to where the next step begins (direction 1), or to where this one or the one before does (-1). */
  seekStep(direction) {
    const step = lastUpTo(this.starts, this.at);
    if (direction > 0) this.seek(step + 1 < this.starts.length ? this.starts[step + 1] : this.length);
    else this.seek(this.starts[step] < this.at ? this.starts[step] : this.starts[Math.max(0, step - 1)] ?? 0);
  }

  /** Go to where the next word would move when so many have: all that is free is done by then. */
  seekTransfer(words) {
    this.seek(words < this.transfers.length ? this.transfers[words] - 1 : this.length);
  }

  /** The line of the pseudo-code that the present move comes from; at 0, the first move's. */
  get line() {
    return this.lines.length ? this.lines[Math.max(0, lastUpTo(this.starts, Math.max(0, this.at - 1)))] : 0;
  }

  /** The kind of the present move and the number in it; null before the first. */
  get last() {
    return this.at ? [this.moves[this.at - 1] & 3, this.moves[this.at - 1] >>> 2] : null;
  }

  /** The vertex of the present move; -1 before the first. */
  get vertex() {
    return this.at ? this.referee.vertexOf(...this.last) : -1;
  }

  next() {
    const move = this.moves[this.at];
    this.referee.play(move & 3, move >>> 2);
    this.at += 1;
    this.takeTurns();
  }

  /** Loops that have begun an iteration by now: those in front of the next move. */
  takeTurns() {
    while (this.turn < this.turns.length && this.turns[this.turn] < Math.max(1, this.at)) {
      this.tileOf[this.turns[this.turn + 1]] = this.turns[this.turn + 2];
      this.turn += 3;
    }
  }

  frame() {
    return { at: this.at, turn: this.turn, tileOf: this.tileOf.slice(), referee: this.referee.save() };
  }

  back(frame) {
    [this.at, this.turn] = [frame.at, frame.turn];
    this.tileOf.set(frame.tileOf);
    this.referee.restore(frame.referee);
  }
}
