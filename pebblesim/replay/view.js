"use strict";
/* The page: draws what the player says and tells it where to go. */

const $$ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const SPEEDS = [1, 4, 16, 60, 250, 1000, 4000, 16000, 64000];

const game = JSON.parse($$("game").textContent);
const player = new Player(game);
let playing = false;
let wanted = true; // something has changed since the last frame
let owed = 0, before = 0;
let ink = {};

// -- colours and canvases ---------------------------------------------------------------------------------------------

function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "ink", "dim", "line", "panel", "red", "blue", "edge", "tree", "ring"])
    ink[name] = style.getPropertyValue(`--${name}`).trim();
}

/** Make a canvas as sharp as the screen; returns its context, scaled to CSS pixels, and its size in them. */
function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

// -- the graph --------------------------------------------------------------------------------------------------------

const graph = { canvas: $$("graph"), still: document.createElement("canvas"), zoom: 1, left: 0, top: 0, width: 0, height: 0 };
const target = new Uint32Array(player.preds.length);
for (let v = 0; v < player.vertices; v++) target.fill(v, player.indptr[v], player.indptr[v + 1]);

function fitGraph() {
  const box = graph.canvas.parentElement.getBoundingClientRect();
  Object.assign(graph, { width: box.width, height: box.height });
  graph.unit = Math.min((box.width - 24) / (game.width + 2), (box.height - 46) / (game.height + 2)) * graph.zoom;
  graph.context = sharp(graph.canvas, box.width, box.height);
  if (graph.zoom === 1) graph.left = graph.top = 0;
  graph.x0 = (box.width - graph.unit * game.width) / 2 + graph.left;
  graph.y0 = (box.height - 16 - graph.unit * game.height) / 2 + 6 + graph.top;
  drawStill();
  wanted = true;
}

const px = (v) => graph.x0 + graph.unit * player.x[v];
const py = (v) => graph.y0 + graph.unit * player.y[v];

/** What does not change from move to move: edges, vertices, names. */
function drawStill() {
  const context = sharp(graph.still, graph.width, graph.height), unit = graph.unit;
  const edges = (within) => {
    context.beginPath();
    for (let e = 0; e < target.length; e++) {
      const from = player.preds[e], to = target[e];
      if ((player.tensor[from] === player.tensor[to]) !== within) continue;
      context.moveTo(px(from), py(from));
      context.lineTo(px(to), py(to));
    }
    context.stroke();
  };
  context.globalAlpha = Math.min(1, Math.max(0.12, Math.sqrt(500 / Math.max(1, target.length)) * Math.sqrt(graph.zoom)));
  context.strokeStyle = ink.edge;
  context.lineWidth = Math.min(1, 0.06 * unit + 0.3);
  edges(false);
  context.globalAlpha = 1;
  context.strokeStyle = ink.tree;
  edges(true);
  const radius = Math.max(0.6, 0.15 * unit);
  context.beginPath();
  for (let v = 0; v < player.vertices; v++) {
    const x = px(v), y = py(v);
    if (x < -9 || y < -9 || x > graph.width + 9 || y > graph.height + 9) continue;
    context.moveTo(x + radius, y);
    context.arc(x, y, radius, 0, 7);
  }
  context.fillStyle = ink.panel;
  context.strokeStyle = ink.ring;
  context.lineWidth = Math.min(1.2, 0.08 * unit + 0.2);
  context.fill();
  context.stroke();
  context.fillStyle = ink.ink;
  context.font = `italic ${Math.max(10, Math.min(16, unit))}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  const taken = []; // names that are there already: one that would cover another is left out until there is room
  for (const tensor of game.tensors) {
    if (tensor.x === null) continue;
    const x = graph.x0 + unit * (tensor.x - 0.3), y = graph.y0 + unit * (tensor.y + 0.4);
    const end = x + context.measureText(tensor.name).width + 2;
    if (taken.some((other) => Math.abs(other.y - y) < 12 && x < other.end && end > other.x)) continue;
    taken.push({ x, y, end });
    context.fillText(tensor.name, x, y);
  }
}

function drawGraph() {
  const { context, unit } = graph;
  context.clearRect(0, 0, graph.width, graph.height);
  context.drawImage(graph.still, 0, 0, graph.width, graph.height);
  const now = player.vertex;
  if (now >= 0) {
    context.beginPath();
    for (let e = player.indptr[now]; e < player.indptr[now + 1]; e++) {
      context.moveTo(px(player.preds[e]), py(player.preds[e]));
      context.lineTo(px(now), py(now));
    }
    context.strokeStyle = ink.ink;
    context.lineWidth = Math.max(1.2, 0.14 * unit);
    context.stroke();
  }
  const side = Math.max(2, 0.74 * unit), radius = Math.max(1.4, 0.33 * unit);
  const squares = new Path2D(), discs = new Path2D();
  for (let v = 0; v < player.vertices; v++) {
    const state = player.state[v];
    if (!state) continue;
    const x = px(v), y = py(v);
    if (x < -9 || y < -9 || x > graph.width + 9 || y > graph.height + 9) continue;
    if (state & BLUE) squares.rect(x - side / 2, y - side / 2, side, side);
    if (state & RED) {
      discs.moveTo(x + radius, y);
      discs.arc(x, y, radius, 0, 7);
    }
  }
  context.strokeStyle = ink.blue;
  context.lineWidth = Math.max(0.8, 0.11 * unit);
  context.stroke(squares);
  context.fillStyle = ink.red;
  context.fill(discs);
  if (radius > 2.5) {
    context.strokeStyle = ink.ink;
    context.lineWidth = Math.min(1, 0.05 * unit);
    context.stroke(discs);
  }
  if (now >= 0) {
    context.beginPath();
    context.arc(px(now), py(now), Math.max(5, 0.62 * unit), 0, 7);
    context.lineWidth = Math.max(1.2, 0.1 * unit);
    context.strokeStyle = ink.ink;
    context.stroke();
  }
}

/** The vertex nearest to a point of the canvas, -1 if none is near. */
function vertexAt(x, y) {
  let best = -1, least = 144;
  for (let v = 0; v < player.vertices; v++) {
    const distance = (px(v) - x) ** 2 + (py(v) - y) ** 2;
    if (distance < least) [best, least] = [v, distance];
  }
  return best;
}

function zoomBy(factor, x, y) {
  const zoom = Math.min(60, Math.max(1, graph.zoom * factor)), grown = zoom / graph.zoom;
  const middleX = graph.width / 2, middleY = (graph.height - 16) / 2 + 6;
  graph.left = (graph.left + middleX - x) * grown + x - middleX;
  graph.top = (graph.top + middleY - y) * grown + y - middleY;
  graph.zoom = zoom;
  fitGraph();
}

function watchGraph() {
  const canvas = graph.canvas;
  let held = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX - graph.left, y: event.clientY - graph.top };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (held && graph.zoom > 1) {
      graph.left = event.clientX - held.x;
      graph.top = event.clientY - held.y;
      fitGraph();
      return;
    }
    const v = vertexAt(event.offsetX, event.offsetY);
    const holds = v < 0 ? "" : ["no pebble", "red", "blue", "red and blue"][player.state[v]];
    $$("hint").textContent = v < 0 ? "" : `${player.name(v)}: ${holds}`;
  });
  canvas.addEventListener("pointerleave", () => { $$("hint").textContent = ""; });
  canvas.addEventListener("dblclick", () => { graph.zoom = 1; fitGraph(); });
}

// -- the matrices -----------------------------------------------------------------------------------------------------

const matrices = [];

function makeMatrices() {
  for (const tensor of game.tensors) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.textContent = tensor.name;
    caption.append(name, ` ${tensor.vector ? tensor.rows : `${tensor.rows}×${tensor.columns}`}`);
    const canvas = document.createElement("canvas");
    const role = tensor.role ? `, ${tensor.role}` : "";
    canvas.title = `${tensor.name}${role}: rows from top to bottom`;
    if (tensor.role) caption.append(` ${tensor.role}`);
    figure.append(caption, canvas);
    $$("matrices").append(figure);
    matrices.push({ tensor, canvas });
  }
}

function fitMatrices() {
  for (const each of matrices) {
    const { rows, columns } = each.tensor;
    each.cell = Math.max(1, Math.min(11, 140 / Math.max(rows, columns)));
    const [width, height] = [each.cell * columns + 1, each.cell * rows + 1];
    each.canvas.style.width = `${width}px`;
    each.canvas.style.height = `${height}px`;
    each.context = sharp(each.canvas, width, height);
    each.size = [width, height];
  }
  wanted = true;
}

function drawMatrix({ tensor, context, cell, size }) {
  const [width, height] = size;
  context.fillStyle = ink.paper;
  context.fillRect(0, 0, width, height);
  context.strokeStyle = ink.line;
  context.lineWidth = 1;
  context.strokeRect(0.5, 0.5, width - 1, height - 1);
  const small = cell < 5;
  for (let row = 0; row < tensor.rows; row++) {
    for (let column = 0; column < tensor.columns; column++) {
      const at = tensor.cell + row * tensor.columns + column;
      const red = player.redValues[at], part = player.redParts[at], blue = player.blueValues[at];
      if (!red && !part && !blue) continue;
      const x = 0.5 + column * cell, y = 0.5 + row * cell;
      if (small) {
        context.globalAlpha = red ? 1 : part ? 0.7 : 0.3;
        context.fillStyle = red || part ? ink.red : ink.blue;
        context.fillRect(x, y, cell, cell);
        context.globalAlpha = 1;
        continue;
      }
      if (blue) {
        context.strokeStyle = ink.blue;
        context.lineWidth = 1.4;
        context.strokeRect(x + 1.2, y + 1.2, cell - 2.4, cell - 2.4);
      }
      if (red || part) {
        context.beginPath();
        context.arc(x + cell / 2, y + cell / 2, red ? 0.33 * cell : 0.16 * cell, 0, 7);
        context.fillStyle = ink.red;
        context.fill();
        context.strokeStyle = ink.ink;
        context.lineWidth = 0.6;
        context.stroke();
      }
    }
  }
}

// -- pseudo-code, counters, timeline ----------------------------------------------------------------------------------

const code = [];
let shownLine = -1;

function makeCode() {
  for (const text of game.text) {
    const line = document.createElement("div"), note = document.createElement("i");
    line.textContent = text;
    line.append(note);
    $$("code").append(line);
    code.push({ line, note, depth: text.search(/\S/), variable: text.match(/^\s*for (\S+) in/)?.[1] });
  }
}

function drawCode() {
  if (player.line !== shownLine) {
    code[shownLine]?.line.classList.remove("now");
    shownLine = player.line;
    const { line } = code[shownLine];
    line.classList.add("now");
    const panel = $$("code-panel"), top = line.offsetTop - panel.offsetTop;
    if (top < panel.scrollTop + 30 || top > panel.scrollTop + panel.clientHeight - 50)
      panel.scrollTop = Math.max(0, top - panel.clientHeight / 2);
  }
  const around = new Set([shownLine]); // the loops that the line is in
  for (let index = shownLine, depth = code[shownLine].depth; depth > 0; index--)
    if (code[index].depth < depth) [depth] = [code[index].depth, around.add(index)];
  code.forEach(({ note, variable }, index) => {
    const tile = player.tileOf[index];
    const text = variable && tile >= 0 && around.has(index) ? `${variable} = ${tile}` : "";
    if (note.textContent !== text) note.textContent = text;
  });
}

function drawCounters() {
  const values = { at: player.at, reads: player.reads, writes: player.writes, io: player.reads + player.writes, red: player.red, peak: player.peak };
  for (const [id, value] of Object.entries(values)) $$(id).textContent = number.format(value);
  const ended = player.at === player.length && game.violation;
  $$("move").textContent = ended ? `illegal ${game.violation}` : `${player.move}`;
  $$("move").classList.toggle("bad", Boolean(ended));
  $$("scrub").value = player.at;
  $$("scrub").setAttribute("aria-valuetext", `move ${player.at}: ${player.move}`);
}

const timeline = { canvas: $$("timeline"), still: document.createElement("canvas") };

function fitTimeline() {
  const box = timeline.canvas.getBoundingClientRect();
  Object.assign(timeline, { width: box.width, height: box.height, context: sharp(timeline.canvas, box.width, box.height) });
  const context = sharp(timeline.still, box.width, box.height);
  const tall = box.height - 16, most = Math.max(game.M, player.highest, 1);
  const high = (red) => box.height - (red / most) * tall;
  context.fillStyle = ink.blue;
  context.globalAlpha = 0.5;
  for (let x = 0; x < box.width; x++) {
    const from = Math.floor((x / box.width) * (player.length + 1));
    const to = Math.max(from + 1, Math.floor(((x + 1) / box.width) * (player.length + 1)));
    let red = 0;
    for (let t = from; t < to && t <= player.length; t++) red = Math.max(red, player.history[t]);
    context.fillRect(x, high(red), 1, box.height - high(red));
  }
  context.globalAlpha = 1;
  context.strokeStyle = ink.ink;
  context.setLineDash([6, 3]);
  context.beginPath();
  context.moveTo(0, high(game.M) + 0.5);
  context.lineTo(box.width, high(game.M) + 0.5);
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = ink.dim;
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = "top";
  game.phases.forEach(([name, start], index) => {
    const x = (start / Math.max(1, player.length)) * box.width;
    if (index) context.fillRect(Math.round(x), 0, 1, box.height);
    context.fillText(name, x + 4, 1);
  });
  context.textAlign = "right";
  context.fillText(`M = ${number.format(game.M)}`, box.width - 3, 1);
  wanted = true;
}

function drawTimeline() {
  const { context, width, height } = timeline;
  context.clearRect(0, 0, width, height);
  context.drawImage(timeline.still, 0, 0, width, height);
  const x = (player.at / Math.max(1, player.length)) * width;
  context.fillStyle = ink.red;
  context.fillRect(Math.min(width - 2, Math.max(0, x - 1)), 0, 2, height);
}

// -- going somewhere --------------------------------------------------------------------------------------------------

function go(move) {
  player.seek(move);
  wanted = true;
}

function goStep(direction) {
  player.seekStep(direction);
  wanted = true;
}

function setPlaying(on) {
  if (on && player.at === player.length) player.seek(0);
  playing = on;
  [owed, before] = [0, performance.now()];
  $$("play").textContent = on ? "❚❚ pause" : "▸ play";
  $$("play").setAttribute("aria-label", on ? "Pause" : "Play");
  wanted = true;
}

function frame(time) {
  if (playing) {
    owed += (Math.max(0, time - before) / 1000) * Number($$("speed").value);
    before = time;
    const moves = Math.floor(owed);
    owed -= moves;
    if (moves) go(player.at + moves);
    if (player.at === player.length) setPlaying(false);
  }
  if (wanted) {
    wanted = false;
    drawGraph();
    matrices.forEach(drawMatrix);
    drawCode();
    drawCounters();
    drawTimeline();
  }
  requestAnimationFrame(frame);
}

function changeSpeed(by) {
  const speed = $$("speed");
  speed.selectedIndex = Math.min(SPEEDS.length - 1, Math.max(0, speed.selectedIndex + by));
}

const KEYS = {
  " ": () => setPlaying(!playing),
  ArrowRight: (event) => (event.shiftKey ? goStep(1) : go(player.at + 1)),
  ArrowLeft: (event) => (event.shiftKey ? goStep(-1) : go(player.at - 1)),
  Home: () => go(0),
  End: () => go(player.length),
  "[": () => changeSpeed(-1),
  "]": () => changeSpeed(1),
};

function watchControls() {
  for (const speed of SPEEDS) $$("speed").add(new Option(`${number.format(speed)} moves/s`, speed));
  $$("speed").selectedIndex = player.length > 20000 ? 5 : 3;
  const clicks = {
    first: () => go(0), "back-line": () => goStep(-1), back: () => go(player.at - 1), play: () => setPlaying(!playing),
    step: () => go(player.at + 1), "step-line": () => goStep(1), last: () => go(player.length),
  };
  for (const [id, action] of Object.entries(clicks)) $$(id).addEventListener("click", action);
  $$("scrub").max = player.length;
  $$("scrub").addEventListener("input", () => go(Number($$("scrub").value)));
  const scrub = (event) => go((event.offsetX / timeline.width) * player.length);
  timeline.canvas.addEventListener("pointerdown", (event) => {
    timeline.canvas.setPointerCapture(event.pointerId);
    scrub(event);
  });
  timeline.canvas.addEventListener("pointermove", (event) => { if (event.buttons) scrub(event); });
  document.addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    const own = event.target.tagName; // what the focused control does with the key by itself stays its business
    if (!action || event.ctrlKey || event.metaKey || event.altKey || own === "SELECT") return;
    if (own === "BUTTON" && event.key === " ") return;
    event.preventDefault();
    action(event);
  });
  window.addEventListener("hashchange", goToHash);
}

/** The page's address may name a move: game.html#1234. */
function goToHash() {
  const move = Number(location.hash.slice(1));
  if (location.hash.length > 1 && Number.isInteger(move)) go(move);
}

function fit() {
  readInk();
  fitGraph();
  fitMatrices();
  fitTimeline();
}

$$("title").textContent = game.title;
$$("verdict").textContent = game.verdict;
$$("verdict").classList.toggle("bad", !game.complete);
$$("length").textContent = number.format(player.length);
$$("M").textContent = number.format(game.M);
makeMatrices();
makeCode();
watchControls();
watchGraph();
fit();
goToHash();
new ResizeObserver(fit).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fit);
requestAnimationFrame(frame);
