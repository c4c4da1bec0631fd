"use strict";
/* A game in progress and the judge of its moves. The rules come as a table: the one by which games are judged outside
   of this page. No drawing here: this file runs in any JavaScript engine. */

const READ = 0, WRITE = 1, COMPUTE = 2, DELETE = 3;
const FLAG = { red: 1, blue: 2, computed: 4, written: 8, input: 16, complete: 32 };

class Referee {
  /** @param rules {table, byTerm}: a row for each kind of move, each column a list of names of flags. */
  constructor(graph, M, rules) {
    const bits = (names) => names.reduce((sum, name) => sum | FLAG[name], 0);
    const row = (each) => Object.fromEntries(Object.entries(each).map(([column, names]) => [column, bits(names)]));
    Object.assign(this, { graph, M, byTerm: rules.byTerm, table: rules.table.map(row) });
    this.state = new Uint8Array(graph.vertices);
    this.added = new Uint8Array(this.byTerm ? graph.preds.length : 0); // which terms are in, where they come one by one
    this.left = new Uint32Array(this.byTerm ? graph.vertices : 0); // how many are not
    this.redValues = new Uint16Array(graph.cells); // of each cell: finished values in cache, parts of sums, in memory
    this.redParts = new Uint32Array(graph.cells);
    this.blueValues = new Uint16Array(graph.cells);
    this.restart();
  }

  restart() {
    this.state.fill(0);
    for (const v of this.graph.inputs) this.state[v] = FLAG.input | FLAG.blue | FLAG.complete;
    this.added.fill(0);
    for (let v = 0; v < this.left.length; v++) this.left[v] = this.graph.indptr[v + 1] - this.graph.indptr[v];
    Object.assign(this, { reads: 0, writes: 0, red: 0, peak: 0, moves: 0 });
    this.countCells();
  }

  get io() { return this.reads + this.writes; }

  /** The outputs that are not in memory, finished. */
  get missing() {
    const wanted = FLAG.blue | (this.byTerm ? FLAG.complete : 0);
    return Array.from(this.graph.outputs).filter((v) => (this.state[v] & wanted) !== wanted);
  }

  /** The vertex that a move is about; where terms come one by one, a compute has the number of its term. */
  vertexOf(kind, number) {
    if (!this.byTerm || kind !== COMPUTE) return number;
    const edges = this.graph.preds.length;
    return number < edges ? this.graph.targets[number] : number - edges;
  }

  /** Why a move is against the rules, in words; an empty text if it is not. */
  broken(kind, number) {
    const { graph, state } = this;
    const v = this.vertexOf(kind, number), rule = this.table[kind], name = graph.name(v), now = state[v];
    if (now & rule.forbids & FLAG.input) return `${name} is an input: it is read, not computed.`;
    if (now & rule.forbids & FLAG.computed) return `${name} was computed before, and these rules allow it only once.`;
    if (now & rule.forbids & FLAG.red) return `${name} is in cache already.`;
    if (rule.needs & FLAG.blue & ~now) return `${name} is not in memory, so it cannot be read.`;
    if (rule.needs & FLAG.red & ~now) return `${name} is not in cache.`;
    if (kind === COMPUTE) {
      const why = this.byTerm ? this.brokenTerm(v, number) : this.brokenOperand(v, rule);
      if (why) return why;
    }
    const more = rule.sets & FLAG.red && !(now & FLAG.red) ? graph.size(v) : 0;
    if (this.red + more > this.M) return `The cache is full: it holds ${this.red} of ${this.M}. Delete something first.`;
    return "";
  }

  brokenOperand(v, rule) {
    const { graph, state } = this;
    for (let e = graph.indptr[v]; e < graph.indptr[v + 1]; e++) {
      const u = graph.preds[e];
      if (rule.predecessors & ~state[u]) return `${graph.name(v)} needs ${graph.name(u)}, which is not in cache.`;
    }
    return "";
  }

  brokenTerm(v, number) {
    const { graph, state } = this, edges = graph.preds.length, terms = graph.indptr[v + 1] - graph.indptr[v];
    if (number >= edges) {
      if (terms) return `${graph.name(v)} has ${terms} terms, which are added one by one.`;
      return state[v] & FLAG.complete ? `${graph.name(v)} was computed before.` : "";
    }
    const u = graph.preds[number], operand = graph.name(u);
    if (this.added[number]) return `${operand} is in ${graph.name(v)} already.`;
    if (!(state[u] & FLAG.red)) return `${graph.name(v)} needs ${operand}, which is not in cache.`;
    if (!(state[u] & FLAG.complete)) return `${operand} is not finished: it lacks ${this.left[u]} of its terms.`;
    if (this.left[v] < terms && !(state[v] & FLAG.red)) return `${graph.name(v)} is begun, but is not in cache.`;
    return "";
  }

  /** Make a move, without asking whether it is legal. */
  play(kind, number) {
    const v = this.vertexOf(kind, number), rule = this.table[kind], before = this.state[v], size = this.graph.size(v);
    let now = (before & ~rule.clears) | rule.sets;
    if (this.byTerm && kind === COMPUTE) {
      if (number < this.graph.preds.length) [this.added[number], this.left[v]] = [1, this.left[v] - 1];
      if (!this.left[v]) now |= FLAG.complete;
    }
    this.state[v] = now;
    if (kind === READ) this.reads += size;
    if (kind === WRITE) this.writes += size;
    this.red += size * ((now & FLAG.red) - (before & FLAG.red));
    this.peak = Math.max(this.peak, this.red);
    this.moves += 1;
    this.countCell(v, before, -1);
    this.countCell(v, now, 1);
  }

  countCell(v, state, sign) {
    const cell = this.graph.cell[v];
    if (this.graph.value[v]) {
      if (state & FLAG.red) this.redValues[cell] += sign;
      if (state & FLAG.blue) this.blueValues[cell] += sign;
    } else if (state & FLAG.red) this.redParts[cell] += sign;
  }

  countCells() {
    for (const counts of [this.redValues, this.redParts, this.blueValues]) counts.fill(0);
    for (let v = 0; v < this.state.length; v++) if (this.state[v]) this.countCell(v, this.state[v], 1);
  }

  /** All that changes in a game, to come back to. */
  save() {
    const { reads, writes, red, peak, moves } = this;
    return { reads, writes, red, peak, moves, state: this.state.slice(), added: this.added.slice(), left: this.left.slice() };
  }

  restore({ state, added, left, ...counts }) {
    Object.assign(this, counts);
    this.state.set(state);
    this.added.set(added);
    this.left.set(left);
    this.countCells();
  }
}
