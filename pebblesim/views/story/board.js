"use strict";
// The board: every tensor as a grid of its elements. A frame says that an element is in memory, a filled square that it is
// in the cache. K and V lie on their sides, so that a score stands where its query's row meets its key's column.

const CELL = 10, GAP = 14, HEAD = 14;
const PLACES = {
  forward: { left: ["Q"], top: ["K"], bottom: ["V"], right: ["O"] },
  "backward-qkv": { left: ["Q", "dO", "O"], top: ["dK", "K"], bottom: ["V", "dV"], right: ["dQ"] },
};
const STATES = ["absent", "memory", "cache", "cache memory"];

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A run that is watched: the state of each element after any number of steps. */
class Replay {
  constructor(machine, inputs) {
    Object.assign(this, { steps: machine.steps, machine, inputs });
    this.length = machine.steps.length;
    this.start();
  }

  start() {
    this.at = 0;
    this.held = new Map();
    this.there = new Set(this.inputs.flatMap((name) => {
      const { there, shape } = this.machine.memory.get(name), width = shape[1] ? this.machine.sizes[shape[1]] : 1;
      return [...there.keys()].map((place) => this.key(name, [Math.floor(place / width), place % width]));
    }));
  }

  key(name, [row, column]) { return `${name} ${row} ${column}`; }

  /** To after this many steps; calls `changed` with the name and place of each element that changes. */
  seek(at, changed) {
    if (at < this.at) {
      const before = [...this.held.keys(), ...this.there];
      this.start();
      for (const key of before) changed(key);
    }
    for (; this.at < at; this.at++) {
      const { changes, leaves = [] } = this.steps[this.at];
      for (const [name, cell, by] of [...changes, ...leaves]) {
        const key = this.key(name, cell);
        if (by === 0) this.there.add(key);
        else this.held.set(key, (this.held.get(key) ?? 0) + by);
        changed(key);
      }
    }
  }

  state(key) { return (this.there.has(key) ? 1 : 0) + (this.held.get(key) > 0 ? 2 : 0); }
  get step() { return this.at ? this.steps[this.at - 1] : null; }
  get moved() { return this.step ? this.step.reads + this.step.writes : 0; }
  get red() { return this.step ? this.step.redAfter ?? this.step.red : 0; }

  /** The number of steps after which as many words have moved, and no more. */
  stepsAt(words) {
    let [low, high] = [0, this.length];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2), { reads, writes } = this.steps[middle - 1];
      if (reads + writes <= words) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

class Board {
  constructor(svg) { this.svg = svg; }

  /** Lays out the tensors of a run; `spills` are those that are neither given nor asked for, and go through memory. */
  show(replay, problem, outputs) {
    const { machine, inputs } = replay, { sizes } = machine;
    this.replay = replay;
    const shapes = new Map([...machine.memory].map(([name, { shape }]) => [name, shape]));
    const met = new Set(replay.steps.flatMap(({ changes }) => changes.map(([name]) => name)));
    for (const name of met) if (!shapes.has(name)) shapes.set(name, this.guessed(replay, name, sizes));
    const used = [...shapes.keys()].filter((name) => met.has(name) || inputs.includes(name) || outputs.includes(name));
    const spills = used.filter((name) => machine.by[name] && !inputs.includes(name) && !outputs.includes(name));
    this.lay(used, shapes, sizes, PLACES[problem], { inputs, outputs, spills });
    for (const key of this.cells.keys()) this.paint(key);
  }

  /** The shape of what is in the cache alone, by the elements that it ever has. */
  guessed({ steps }, name, { n, d }) {
    const cells = steps.flatMap(({ changes }) => changes.filter(([each]) => each === name).map(([, cell]) => cell));
    const columns = 1 + Math.max(...cells.map(([, column]) => column)), vector = /^[a-z]/.test(name) && columns === 1;
    return vector ? ["n"] : ["n", columns <= d && n !== d && !/^(S|A|P|dS|dP)$/.test(name) ? "d" : "n"];
  }

  lay(used, shapes, { n, d }, places, roles) {
    const is = (side) => places[side].filter((name) => used.includes(name)), placed = ["left", "top", "bottom", "right"].flatMap(is);
    const rest = used.filter((name) => !placed.includes(name)), square = rest.filter((name) => shapes.get(name)[1] === "n");
    const vectors = rest.filter((name) => shapes.get(name).length < 2), wide = rest.filter((name) => !square.includes(name) && !vectors.includes(name));
    const side = n * CELL, deep = d * CELL, stack = (names) => names.length * (deep + GAP);
    const middle = stack(is("top")) + HEAD;
    let x = 2;
    this.cells = new Map();
    this.svg.replaceChildren();
    const put = (name, left, top, turned) => this.grid(name, left, top, shapes.get(name).length < 2 ? [n, 1] : [n, shapes.get(name)[1] === "n" ? n : d], turned, roles);
    const column = (names, width) => names.forEach((name) => { put(name, x, middle, false); x += width + GAP; });
    column(is("left"), deep);
    const centre = x;
    column(square, side);
    if (!square.length) x += side + GAP;
    is("top").forEach((name, at) => put(name, centre, HEAD + at * (deep + GAP), true));
    const under = centre + Math.max(0, square.length - 1) * (side + GAP); // V lies under P, the last square
    is("bottom").forEach((name, at) => put(name, places.right.includes("O") ? under : centre, middle + side + GAP + at * (deep + GAP), true));
    column([...wide, ...is("right")], deep);
    column(vectors, CELL * 1.6);
    this.svg.setAttribute("viewBox", `0 0 ${x - GAP + 2} ${middle + side + GAP + stack(is("bottom")) - GAP + 2}`);
    this.svg.style.maxWidth = `${x * 2}px`;
  }

  grid(name, left, top, [rows, columns], turned, { inputs, outputs, spills }) {
    const role = inputs.includes(name) ? "input" : outputs.includes(name) ? "output" : spills.includes(name) ? "spill" : "inner";
    const group = drawn("g", { class: `grid ${role}`, transform: `translate(${left} ${top})` });
    group.append(drawn("text", { x: 0, y: -3 }, name + (turned ? "ᵀ" : "")));
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const [x, y] = (turned ? [row, column] : [column, row]).map((place) => place * CELL);
        const cell = drawn("g", {});
        cell.append(drawn("rect", { class: "frame", x: x + 0.8, y: y + 0.8, width: CELL - 1.6, height: CELL - 1.6, rx: 1 }));
        cell.append(drawn("rect", { class: "fill", x: x + 2.2, y: y + 2.2, width: CELL - 4.4, height: CELL - 4.4, rx: 0.6 }));
        this.cells.set(`${name} ${row} ${column}`, cell);
        group.append(cell);
      }
    }
    this.svg.append(group);
  }

  paint(key) { this.cells.get(key)?.setAttribute("class", STATES[this.replay.state(key)]); }
  seek(at) { this.replay.seek(at, (key) => this.paint(key)); }
}
