"use strict";
// The picture: a curve for each schedule over M, both axes logarithmic, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7;

/** Shapes by which curves are told apart without their colours, about a point. */
const SHAPES = ["M-4 0A4 4 0 1 1 4 0A4 4 0 1 1 -4 0Z", "M-3.5 -3.5H3.5V3.5H-3.5Z", "M0 -4.8L4.4 3.2H-4.4Z", "M0 -5L5 0L0 5L-5 0Z", "M0 4.8L4.4 -3.2H-4.4Z", "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z", "M-4.5 -2.5L-2.5 -4.5L0 -2L2.5 -4.5L4.5 -2.5L2 0L4.5 2.5L2.5 4.5L0 2L-2.5 4.5L-4.5 2.5L-2 0Z"];
const APART = 64; // pixels between two shapes on a curve
const INK = { grey: 1, colour: 4, floor: 2, most: 9 }; // weights of lines under a name; a name with more is left out, the list below has it

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A count in short: 65,536 as 64k, 1,234,567 as 1.2e6. */
function short(number) {
  for (const [unit, size] of [["G", 2 ** 30], ["M", 2 ** 20], ["k", 2 ** 10]]) {
    if (number >= size && number % size === 0) return `${number / size}${unit}`;
  }
  return number < 1e5 ? String(Math.round(number)) : number.toExponential(1).replace("+", "").replace(".0", "");
}

const logOf = (words) => {
  const text = words.toString(), digits = Math.max(0, text.length - 15);
  return Math.log2(Number(text.slice(0, text.length - digits))) + digits * Math.log2(10);
};

class Chart {
  constructor(svg, moved) {
    Object.assign(this, { svg, moved, clip: `inside-${Chart.made++}` });
    const move = (event) => {
      if (event.buttons || event.type === "click") this.moved(this.at(event));
    };
    svg.addEventListener("pointermove", move);
    svg.addEventListener("click", move);
  }

  at(event) {
    const { left, right, low, high } = this, box = this.svg.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left - left) / (right - left)));
    return low + share * (high - low);
  }

  x(log) { return this.left + ((log - this.low) / (this.high - this.low)) * (this.right - this.left); }
  y(log) { return this.bottom - ((log - this.least) / (this.most - this.least)) * (this.bottom - this.top); }

  /**
   * Draws curves [{ name, colour, points: [[log M, log words]] }], colour null for grey, the lower bound's points, marks
   * [{ log, label }], the M that is chosen, and the names of the axes.
   */
  draw({ low, high, curves, floor, marks, now, ratio, names }) {
    const { width, height } = this.svg.getBoundingClientRect();
    Object.assign(this, { low, high, left: 46, right: width - 10, top: 26 + 14 * marks.length, bottom: height - 34 });
    const shown = [...curves.flatMap((curve) => curve.points), ...floor].map(([, log]) => log);
    this.least = ratio ? 0 : Math.min(...shown) - 0.7;
    this.most = Math.max(this.least + 1, ...curves.filter((curve) => curve.colour !== null).flatMap((curve) => curve.points.map(([, log]) => log)));
    this.most = Math.min(Math.max(...shown), this.most + 0.5);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    this.axes(ratio, names);
    const clip = element("clipPath", { id: this.clip });
    clip.append(element("rect", { x: this.left, y: this.top, width: this.right - this.left, height: this.bottom - this.top }));
    const inside = element("g", { "clip-path": `url(#${this.clip})` });
    this.svg.append(clip, inside);
    if (floor.length) {
      const below = `L${this.x(floor.at(-1)[0])} ${this.bottom}L${this.x(floor[0][0])} ${this.bottom}Z`;
      inside.append(element("path", { class: "floor", d: this.path(floor) + below }));
      inside.append(element("path", { d: this.path(floor), stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "2 3" }));
    }
    for (const curve of [...curves].sort((a, b) => (a.colour === null ? 0 : 1) - (b.colour === null ? 0 : 1) || a.strong - b.strong)) {
      const stroke = curve.colour === null ? "var(--grey)" : `var(--c${curve.colour})`;
      const line = element("path", { d: this.path(curve.points), stroke, "stroke-width": curve.strong ? 4 : curve.colour === null ? 1 : 2.2 });
      line.append(element("title", {}, curve.name));
      inside.append(line);
      if (curve.colour !== null) this.shapes(curve, inside);
    }
    for (const [place, { log, label }] of marks.entries()) {
      if (log < low || log > high) continue;
      inside.append(element("line", { class: "card", x1: this.x(log), x2: this.x(log), y1: this.top, y2: this.bottom }));
      const text = element("text", { class: "dim halo", y: 12 + 14 * place, "text-anchor": "middle" }, label);
      this.svg.append(text);
      const half = text.getBBox().width / 2;
      text.setAttribute("x", Math.min(this.right - half, Math.max(half + 2, this.x(log))));
    }
    this.svg.append(element("line", { class: "now", x1: this.x(now), x2: this.x(now), y1: this.top, y2: this.bottom }));
    this.labels(curves, floor, ratio);
  }

  path(points) { return points.map(([x, y], place) => `${place ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join(""); }

  axes(ratio, names) {
    const every = Math.max(1, Math.ceil((this.high - this.low) / ((this.right - this.left) / 55)));
    for (let log = Math.ceil(this.low); log <= this.high; log += every) {
      this.svg.append(element("line", { class: "grid", x1: this.x(log), x2: this.x(log), y1: this.top, y2: this.bottom }));
      this.svg.append(element("text", { class: "dim", x: this.x(log), y: this.bottom + 15, "text-anchor": "middle" }, short(2 ** log)));
    }
    this.svg.append(element("text", { class: "dim", x: this.right, y: this.bottom + 30, "text-anchor": "end" }, names.x));
    this.svg.append(element("text", { class: "dim", x: 2, y: this.top - 6 }, names.y));
    const range = this.most - this.least, step = ratio ? Math.log2(range > 4 ? 4 : range > 2 ? 2 : 1.25) : Math.log2(10) * (range > 24 ? 2 : 1);
    const start = Math.ceil(this.least / step - 1e-9) * step;
    for (let log = start; log <= this.most + 1e-9; log += step) {
      this.svg.append(element("line", { class: "grid", x1: this.left, x2: this.right, y1: this.y(log), y2: this.y(log) }));
      const text = ratio ? `${(2 ** log).toPrecision(3).replace(/\.?0+$/, "")} x` : `1e${Math.round(log / Math.log2(10))}`;
      this.svg.append(element("text", { class: "dim", x: this.left - 5, y: this.y(log) + 4, "text-anchor": "end" }, text));
    }
  }

  /** A shape on a curve, again and again; those of two curves stand at different places. */
  shapes({ points, colour }, inside) {
    let last = -Infinity;
    for (const [log, value] of points) {
      const x = this.x(log);
      if (x - last < (last === -Infinity ? -1 : APART) || x < this.left + 8 + 9 * colour) continue;
      last = x;
      inside.append(element("path", { class: "shape", d: SHAPES[colour], transform: `translate(${x} ${this.y(value)})`, style: `fill: var(--c${colour})` }));
    }
  }

  /** The name of each coloured curve, where it lies on no curve and on no other name, if there is such a place. */
  labels(curves, floor, ratio) {
    const lines = [...curves.map(({ points, colour }) => [points, colour === null ? INK.grey : INK.colour]), [floor, INK.floor]];
    const inked = lines.flatMap(([points, weight]) => this.along(points).map((place) => [...place, weight])), taken = [];
    for (const curve of curves.filter(({ colour, points }) => colour !== null && points.length)) {
      this.put(curve.name, curve.wins.length ? curve.wins : curve.points, curve.points, inked, taken, `fill: var(--c${curve.colour})`);
    }
    if (floor.length && !ratio) this.put("lower bound", floor, floor, inked, taken, "", [16, 30, 44]);
  }

  /** Places on a curve, a few pixels apart. */
  along(points) {
    return points.slice(1).flatMap(([log, value], at) => {
      const [x0, y0, x1, y1] = [this.x(points[at][0]), this.y(points[at][1]), this.x(log), this.y(value)];
      const steps = Math.max(1, Math.ceil(Math.hypot(x1 - x0, y1 - y0) / 4));
      return Array.from({ length: steps }, (_, step) => [x0 + ((x1 - x0) * step) / steps, y0 + ((y1 - y0) * step) / steps]);
    });
  }

  /** A name near the middle of the points that it should be at, or else near other points of its curve. */
  put(text, points, others, inked, taken, style, shifts = [-9, 18, -24, 33, -39, 48, -54, 63]) {
    const made = element("text", { class: "halo", "text-anchor": "middle", style }, text);
    this.svg.append(made);
    const { width } = made.getBBox(), middle = (points.length - 1) / 2;
    const near = points.map((point, at) => [Math.abs(at - middle), point]).sort(([a], [b]) => a - b).map(([, point]) => point);
    let best = null;
    for (const [log, value] of [...near, ...others]) {
      const x = Math.min(this.right - width / 2, Math.max(this.left + width / 2 + 2, this.x(log)));
      for (const shift of shifts) {
        const y = this.y(value) + shift, box = [x - width / 2 - 2, y - 12, x + width / 2 + 2, y + 4];
        if (box[1] < this.top || box[3] > this.bottom || taken.some(([a, b, c, d]) => box[0] < c && a < box[2] && box[1] < d && b < box[3])) continue;
        const ink = inked.reduce((sum, [px, py, weight]) => sum + (px > box[0] && px < box[2] && py > box[1] && py < box[3] ? weight : 0), 0) + Math.abs(shift) / 50;
        if (best === null || ink < best.ink) best = { x, y, box, ink };
      }
      if (best !== null && best.ink < 1) break;
    }
    if (best === null || best.ink > INK.most) return made.remove();
    taken.push(best.box);
    made.setAttribute("x", best.x);
    return made.setAttribute("y", best.y);
  }
}

Chart.made = 0; // each has its own clip path
