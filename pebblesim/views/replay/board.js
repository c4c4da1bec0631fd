"use strict";
/* A graph with pebbles on a canvas: red pebbles are discs, blue ones squares; what is done with the pointer is told. */

const $$ = (id) => document.getElementById(id);
const MOST_EDGES = 20000; // edges that are drawn one by one
const MOST_LINES = 600; // edges between tensors that are drawn one by one, at the smallest zoom
const MOST_UNIT = 58; // pixels of the distance of two neighbours

const ink = {};
function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "ink", "dim", "line", "panel", "red", "blue", "edge", "tree", "ring", "now"])
    ink[name] = style.getPropertyValue(`--${name}`).trim();
}

/** An element; properties are attributes or, of functions, what happens at an event. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties))
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Make a canvas as sharp as the screen; returns its context, scaled to CSS pixels. */
function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

class Board {
  /** @param root the element that holds a canvas, a line for hints and buttons; `changed` is called to be drawn anew. */
  constructor(root, changed) {
    this.root = root;
    this.changed = changed;
    this.canvas = root.querySelector("canvas");
    this.hint = root.querySelector(".hint");
    this.still = document.createElement("canvas");
    Object.assign(this, { graph: null, referee: null, vertex: -1, cursor: null, onPick: null, ready: null, zoom: 1, left: 0, top: 0 });
    const press = (name, action) => root.querySelector(`.${name}`).addEventListener("click", action);
    press("open", () => this.openAll(true));
    press("close", () => this.openAll(false));
    press("nearer", () => this.zoomBy(1.5));
    press("farther", () => this.zoomBy(1 / 1.5));
    press("whole", () => this.zoomBy(0));
    this.listen();
  }

  /** Show a graph and the pebbles of a game on it. */
  show(graph, referee) {
    Object.assign(this, { graph, referee, cursor: null, zoom: 1, left: 0, top: 0 });
    for (const name of ["open", "close"]) this.root.querySelector(`.${name}`).hidden = graph.small;
    this.hint.textContent = graph.small ? "" : `Each frame is a tile of ${graph.names ? "the graph" : "a tensor"}: click on it, and it opens.`;
    this.fit();
  }

  openAll(open, tensor) {
    this.graph.openAll(open, tensor);
    this.fit();
  }

  toggle(tile) {
    tile.open = !tile.open;
    this.cursor = null;
    this.fit();
  }

  // -- sizes ------------------------------------------------------------------------------------------------------------

  fit() {
    const box = this.canvas.getBoundingClientRect(), graph = this.graph;
    if (!graph || !box.width || !box.height) return;
    const width = box.width - 28, height = box.height - 24;
    graph.arrange(width, height);
    this.unit = Math.min(MOST_UNIT, width / graph.width, height / graph.height) * this.zoom;
    [this.width, this.height] = [box.width, box.height];
    const room = (all, needed) => Math.max(0, (needed - all) / 2 + 30); // how far it may be moved
    const bound = (value, most) => Math.min(most, Math.max(-most, value));
    this.left = bound(this.left, room(box.width, this.unit * graph.width));
    this.top = bound(this.top, room(box.height, this.unit * graph.height));
    if (this.zoom === 1) [this.left, this.top] = [0, 0];
    this.x0 = (box.width - this.unit * graph.width) / 2 + this.left;
    this.y0 = (box.height - this.unit * graph.height) / 2 + this.top;
    this.canvas.style.touchAction = this.zoom > 1 ? "none" : "pan-y";
    this.context = sharp(this.canvas, box.width, box.height);
    this.drawStill();
    this.changed();
  }

  px(v) { return this.x0 + this.unit * this.graph.x[v]; }
  py(v) { return this.y0 + this.unit * this.graph.y[v]; }
  seen(x, y) { return x > -20 && y > -20 && x < this.width + 20 && y < this.height + 20; }
  box({ x, y, width, height }) {
    return [this.x0 + this.unit * (x - 0.1), this.y0 + this.unit * (y - 0.1), this.unit * (width + 0.2), this.unit * (height + 0.2)];
  }

  zoomBy(factor, x = this.width / 2, y = this.height / 2) {
    const zoom = factor ? Math.min(40, Math.max(1, this.zoom * factor)) : 1, grown = zoom / this.zoom;
    this.left = (this.left + this.width / 2 - x) * grown + x - this.width / 2;
    this.top = (this.top + this.height / 2 - y) * grown + y - this.height / 2;
    this.zoom = zoom;
    this.fit();
  }

  // -- drawing ----------------------------------------------------------------------------------------------------------

  /** What does not change from move to move: edges, vertices, frames and names. */
  drawStill() {
    const context = sharp(this.still, this.width, this.height), { graph, unit } = this;
    context.lineWidth = 1;
    for (const tile of graph.tiles) {
      if (graph.small) break;
      context.fillStyle = ink.paper;
      context.strokeStyle = ink.line;
      if (!tile.open) context.fillRect(...this.box(tile));
      context.setLineDash(tile.open ? [3, 3] : []);
      context.strokeRect(...this.box(tile));
      context.setLineDash([]);
    }
    this.drawEdges(context);
    const radius = Math.max(0.6, 0.17 * unit), cell = Math.min(1.1, 0.1 * unit);
    const rings = new Path2D(), ends = new Path2D(), dots = new Path2D();
    for (let v = 0; v < graph.vertices; v++) {
      const x = this.px(v), y = this.py(v);
      if (!this.seen(x, y) || !graph.shown(v)) continue;
      rings.moveTo(x + radius, y);
      rings.arc(x, y, radius, 0, 7);
      if (graph.isOutput[v]) {
        ends.moveTo(x + 1.5 * radius, y);
        ends.arc(x, y, 1.5 * radius, 0, 7);
      }
    }
    for (let at = 0; at < graph.cells; at++) {
      if (!graph.used[at] || graph.tiles[graph.tileOf[at]].open) continue;
      dots.rect(this.x0 + unit * graph.cellX[at] - cell / 2, this.y0 + unit * graph.cellY[at] - cell / 2, cell, cell);
    }
    context.fillStyle = ink.panel;
    context.strokeStyle = ink.ring;
    context.lineWidth = Math.min(1.4, 0.08 * unit + 0.2);
    context.fill(rings);
    context.stroke(rings);
    context.stroke(ends);
    context.fillStyle = ink.ring;
    context.fill(dots);
    this.drawNames(context);
  }

  /** Edges inside an open tensor, and those between tensors while they are few; else a line from tensor to tensor. */
  drawEdges(context) {
    const { graph, unit } = this, between = new Set(), outer = new Path2D(), inner = new Path2D(), heads = new Path2D();
    const apart = (e) => graph.names || graph.tensor[graph.preds[e]] !== graph.tensor[graph.targets[e]];
    const open = (e) => graph.shown(graph.preds[e]) || graph.shown(graph.targets[e]);
    let count = 0;
    for (let e = 0; e < graph.targets.length; e++) count += open(e) && apart(e);
    const many = !graph.small && count > MOST_LINES * this.zoom ** 2;
    for (let e = 0; e < graph.targets.length; e++) {
      const from = graph.preds[e], to = graph.targets[e], other = graph.tensor[from] !== graph.tensor[to];
      if ((!open(e) && (!graph.names || graph.targets.length > MOST_EDGES)) || (many && apart(e))) {
        if (other) between.add(graph.tensor[from] * graph.tensors.length + graph.tensor[to]);
        continue;
      }
      const path = apart(e) ? outer : inner;
      path.moveTo(this.px(from), this.py(from));
      path.lineTo(this.px(to), this.py(to));
      if (unit >= 20 && graph.shown(to)) this.arrowHead(heads, from, to);
    }
    context.strokeStyle = ink.edge;
    context.lineWidth = 1.5;
    for (const pair of between) {
      const from = graph.tensors[Math.floor(pair / graph.tensors.length)], to = graph.tensors[pair % graph.tensors.length];
      this.drawLink(context, from, to);
    }
    context.lineWidth = Math.min(1.2, 0.04 * unit + 0.4);
    context.globalAlpha = Math.min(1, Math.max(0.2, Math.sqrt(500 / Math.max(1, count)) * Math.sqrt(this.zoom)));
    context.stroke(outer);
    context.globalAlpha = 1;
    context.strokeStyle = ink.tree;
    context.stroke(inner);
    context.fillStyle = ink.tree;
    context.fill(heads);
  }

  arrowHead(path, from, to) {
    const x = this.px(to), y = this.py(to), away = 0.36 * this.unit, size = Math.max(4, 0.13 * this.unit);
    const turn = Math.atan2(y - this.py(from), x - this.px(from)), tipX = x - away * Math.cos(turn), tipY = y - away * Math.sin(turn);
    path.moveTo(tipX, tipY);
    for (const aside of [0.45, -0.45]) path.lineTo(tipX - size * Math.cos(turn + aside), tipY - size * Math.sin(turn + aside));
    path.closePath();
  }

  /** A curve from the right side of a tensor to the left side of another. */
  drawLink(context, from, to) {
    const { unit } = this, middle = (tensor) => this.y0 + unit * (tensor.y + (tensor.down + Graph.NAME) / 2);
    const end = from.tiles[0].at(-1), x = this.x0 + unit * (end.x + end.width + 0.1), x1 = this.x0 + unit * to.x;
    const y = middle(from), y1 = middle(to);
    const bend = Math.max(20, Math.min(Math.abs(x1 - x) / 2, 120));
    context.globalAlpha = x1 - x > 0.3 * this.width ? 0.35 : 0.8;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x + bend, y, x1 - bend, y1, x1, y1);
    context.stroke();
    context.globalAlpha = 1;
  }

  drawNames(context) {
    const { graph, unit } = this;
    context.fillStyle = ink.ink;
    context.textBaseline = "middle";
    context.font = `italic 600 ${Math.max(11, Math.min(17, 1.1 * unit))}px system-ui, "DejaVu Sans", sans-serif`;
    const taken = [];
    for (const tensor of graph.tensors) {
      if (!tensor.name || !tensor.rows) continue;
      const x = this.x0 + unit * (tensor.x + 0.2), y = this.y0 + unit * (tensor.y + Graph.NAME - 0.4);
      const end = x + context.measureText(tensor.name).width + 2;
      if (taken.some((other) => Math.abs(other.y - y) < 12 && x < other.end && end > other.x)) continue;
      taken.push({ x, y, end });
      context.fillText(tensor.name, x, y);
    }
    this.drawLabels(context);
  }

  /** The names of vertices, if there is room for them. */
  drawLabels(context) {
    const { graph, unit } = this;
    if (unit < 26) return;
    context.fillStyle = ink.dim;
    context.strokeStyle = ink.panel; // a seam, so that edges do not cross letters
    context.lineWidth = 4;
    context.lineJoin = "round";
    [context.textAlign, context.textBaseline] = ["center", "middle"];
    context.font = `${Math.min(13, 0.36 * unit)}px system-ui, "DejaVu Sans", sans-serif`;
    for (let v = 0; v < graph.vertices; v++)
      if (graph.shown(v) && this.seen(this.px(v), this.py(v))) {
        const place = [graph.label(v), this.px(v), this.py(v) + 0.42 * unit + 8];
        context.strokeText(...place);
        context.fillText(...place);
      }
    context.textAlign = "start";
  }

  draw() {
    if (!this.context) return;
    const { context, unit, graph, referee } = this, now = this.vertex;
    context.clearRect(0, 0, this.width, this.height);
    context.drawImage(this.still, 0, 0, this.width, this.height);
    if (now >= 0) this.drawOperands(now);
    const side = Math.max(2, 0.66 * unit), radius = Math.max(1.4, 0.29 * unit);
    const squares = new Path2D(), discs = new Path2D(), ready = new Path2D();
    for (let v = 0; v < graph.vertices; v++) {
      const state = referee.state[v] & 3;
      if (!state && !this.ready) continue;
      const x = this.px(v), y = this.py(v);
      if (!this.seen(x, y) || !graph.shown(v)) continue;
      if (state & FLAG.blue) squares.rect(x - side / 2, y - side / 2, side, side);
      if (state & FLAG.red) {
        discs.moveTo(x + radius, y);
        discs.arc(x, y, radius, 0, 7);
      } else if (this.ready?.(v)) {
        ready.moveTo(x + radius, y);
        ready.arc(x, y, radius, 0, 7);
      }
    }
    this.drawCells(squares, discs);
    context.strokeStyle = ink.blue;
    context.lineWidth = Math.max(0.9, Math.min(4, 0.1 * unit));
    context.stroke(squares);
    context.fillStyle = ink.red;
    context.fill(discs);
    context.strokeStyle = ink.ink;
    if (radius > 2.5) {
      context.lineWidth = Math.min(1.2, 0.05 * unit);
      context.stroke(discs);
    }
    context.setLineDash([3, 3]);
    context.lineWidth = 1.5;
    context.stroke(ready);
    context.setLineDash([]);
    if (now >= 0) this.ring(this.px(now), this.py(now), ink.ink, []);
    if (this.cursor) this.drawCursor();
  }

  /** The edges into a vertex. */
  drawOperands(now) {
    const { context, graph } = this;
    context.beginPath();
    for (let e = graph.indptr[now]; e < graph.indptr[now + 1]; e++) {
      context.moveTo(this.px(graph.preds[e]), this.py(graph.preds[e]));
      context.lineTo(this.px(now), this.py(now));
    }
    context.strokeStyle = ink.ink;
    context.lineWidth = Math.max(1.2, Math.min(3, 0.12 * this.unit));
    context.stroke();
    this.drawLabels(context);
  }

  /** The signs of closed tiles: a disc for a value in cache, a dot for a part of a sum, a square for one in memory. */
  drawCells(squares, discs) {
    const { graph, referee, unit, context } = this, tiny = unit < 4;
    for (let cell = 0; cell < graph.cells; cell++) {
      const red = referee.redValues[cell], part = referee.redParts[cell], blue = referee.blueValues[cell];
      if ((!red && !part && !blue) || graph.tiles[graph.tileOf[cell]].open) continue;
      const x = this.x0 + unit * graph.cellX[cell], y = this.y0 + unit * graph.cellY[cell];
      if (!this.seen(x, y)) continue;
      if (tiny) { // too small for shapes: what is in cache fills the cell, what is in memory its lower half
        context.fillStyle = red || part ? ink.red : ink.blue;
        context.fillRect(x - unit / 2, red || part ? y - unit / 2 : y, unit, red || part ? unit : unit / 2);
        continue;
      }
      if (blue) squares.rect(x - 0.34 * unit, y - 0.34 * unit, 0.68 * unit, 0.68 * unit);
      if (!red && !part) continue;
      const radius = (red ? 0.3 : 0.14) * unit;
      discs.moveTo(x + radius, y);
      discs.arc(x, y, radius, 0, 7);
    }
  }

  ring(x, y, colour, dash) {
    const { context } = this;
    context.beginPath();
    context.arc(x, y, Math.max(6, Math.min(0.52 * this.unit, 26)), 0, 7);
    context.lineWidth = 2;
    context.strokeStyle = colour;
    context.setLineDash(dash);
    context.stroke();
    context.setLineDash([]);
  }

  drawCursor() {
    const { context, cursor } = this;
    if (cursor.tile) {
      context.lineWidth = 3;
      context.strokeStyle = ink.ink;
      context.strokeRect(...this.box(cursor.tile));
    } else this.ring(this.px(cursor.vertex), this.py(cursor.vertex), ink.ink, []);
  }

  // -- the pointer and the cursor ---------------------------------------------------------------------------------------

  /** What is at a point: the nearest vertex, or the tile. */
  at(x, y) {
    const { graph, unit } = this;
    let vertex = -1, least = Math.max(12, Math.min(28, 0.6 * unit)) ** 2;
    for (let v = 0; v < graph.vertices; v++) {
      if (!graph.shown(v)) continue;
      const distance = (this.px(v) - x) ** 2 + (this.py(v) - y) ** 2;
      if (distance < least) [vertex, least] = [v, distance];
    }
    if (vertex >= 0) return { vertex };
    const tile = graph.small ? undefined : graph.tiles.find((each) => {
      const [left, top, width, height] = this.box(each);
      return x >= left && y >= top && x <= left + width && y <= top + height;
    });
    return tile ? { tile } : null;
  }

  /** What is said of a place. */
  told(place) {
    if (!place) return "";
    const { graph, referee } = this;
    if (place.tile) return `${graph.tileName(place.tile)}: a tile; ${place.tile.open ? "close" : "open"} it with a click or Enter.`;
    const v = place.vertex, state = referee.state[v];
    const role = graph.isInput[v] ? ", an input" : graph.isOutput[v] ? ", an output" : "";
    return `${graph.name(v)}${role}: ${["neither in cache nor in memory", "in cache", "in memory", "in cache and in memory"][state & 3]}.`;
  }

  /** Move the cursor to the next vertex or closed tile in a direction. */
  step(dx, dy) {
    const { graph } = this, places = [];
    for (let v = 0; v < graph.vertices; v++) if (graph.shown(v)) places.push({ vertex: v, x: graph.x[v], y: graph.y[v] });
    for (const tile of graph.tiles)
      if (!tile.open) places.push({ tile, x: tile.x + tile.width / 2, y: tile.y + tile.height / 2 });
    const here = this.cursor && places.find((each) => each.vertex === this.cursor.vertex && each.tile === this.cursor.tile);
    let best = here ?? places[0], least = Infinity;
    if (here)
      for (const each of places) {
        const along = (each.x - here.x) * dx + (each.y - here.y) * dy;
        const aside = Math.abs((each.x - here.x) * dy) + Math.abs((each.y - here.y) * dx);
        if (along > 0.05 && along + 2.5 * aside < least) [best, least] = [each, along + 2.5 * aside];
      }
    if (best) this.cursor = best.tile ? { tile: best.tile } : { vertex: best.vertex };
    this.changed();
  }

  pick(place) {
    if (place?.tile) this.toggle(place.tile);
    else if (this.onPick) this.onPick(place ? place.vertex : -1);
    this.hint.textContent = this.onPick ? "" : this.told(place);
  }

  listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, y: event.clientY, left: this.left, top: this.top, moved: false };
      if (this.zoom > 1) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held && this.zoom > 1 && Math.hypot(event.clientX - held.x, event.clientY - held.y) > 4) {
        held.moved = true;
        [this.left, this.top] = [held.left + event.clientX - held.x, held.top + event.clientY - held.y];
        this.fit();
      } else if (!held && event.pointerType === "mouse") this.hint.textContent = this.told(this.at(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.pick(this.at(event.offsetX, event.offsetY));
      held = null;
    });
    canvas.addEventListener("pointercancel", () => { held = null; });
  }
}
