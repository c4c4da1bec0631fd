"use strict";
// The picture: a curve for each schedule over M, both axes logarithmic, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7;

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
    Object.assign(this, { svg, moved });
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
   * [{ log, label }] and the M that is chosen.
   */
  draw({ low, high, curves, floor, marks, now, ratio }) {
    const { width, height } = this.svg.getBoundingClientRect();
    Object.assign(this, { low, high, left: 46, right: width - 10, top: 12 + 14 * marks.length, bottom: height - 34 });
    const shown = [...curves.flatMap((curve) => curve.points), ...floor].map(([, log]) => log);
    this.least = ratio ? 0 : Math.min(...shown) - 0.7;
    this.most = Math.max(this.least + 1, ...curves.filter((curve) => curve.colour !== null).flatMap((curve) => curve.points.map(([, log]) => log)));
    this.most = Math.min(Math.max(...shown), this.most + 0.5);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    this.axes(ratio);
    const clip = element("clipPath", { id: "inside" });
    clip.append(element("rect", { x: this.left, y: this.top, width: this.right - this.left, height: this.bottom - this.top }));
    const inside = element("g", { "clip-path": "url(#inside)" });
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

  axes(ratio) {
    const every = Math.max(1, Math.ceil((this.high - this.low) / ((this.right - this.left) / 55)));
    for (let log = Math.ceil(this.low); log <= this.high; log += every) {
      this.svg.append(element("line", { class: "grid", x1: this.x(log), x2: this.x(log), y1: this.top, y2: this.bottom }));
      this.svg.append(element("text", { class: "dim", x: this.x(log), y: this.bottom + 15, "text-anchor": "middle" }, short(2 ** log)));
    }
    this.svg.append(element("text", { class: "dim", x: this.right, y: this.bottom + 30, "text-anchor": "end" }, "cache M, in words"));
    const range = this.most - this.least, step = ratio ? Math.log2(range > 4 ? 4 : range > 2 ? 2 : 1.25) : Math.log2(10) * (range > 24 ? 2 : 1);
    const start = Math.ceil(this.least / step - 1e-9) * step;
    for (let log = start; log <= this.most + 1e-9; log += step) {
      this.svg.append(element("line", { class: "grid", x1: this.left, x2: this.right, y1: this.y(log), y2: this.y(log) }));
      const text = ratio ? `${(2 ** log).toPrecision(3).replace(/\.?0+$/, "")} x` : `1e${Math.round(log / Math.log2(10))}`;
      this.svg.append(element("text", { class: "dim", x: this.left - 5, y: this.y(log) + 4, "text-anchor": "end" }, text));
    }
  }

  /** The name of each coloured curve where it is lowest of all, and does not lie over another name. */
  labels(curves, floor, ratio) {
    const taken = [];
    const put = (text, x, y, colour) => {
      const made = element("text", { class: "halo", x, y, "text-anchor": "middle", style: colour === undefined ? "" : `fill: var(--c${colour})` }, text);
      this.svg.append(made);
      const { width } = made.getBBox();
      const middle = Math.min(this.right - width / 2, Math.max(this.left + width / 2, x));
      for (const shift of [0, -16, 16, -32, 32, -48, 48, -64]) {
        const box = [middle - width / 2, y + shift - 12, middle + width / 2, y + shift + 3];
        if (box[1] < this.top || box[3] > this.bottom) continue;
        if (taken.some(([a, b, c, d]) => box[0] < c && a < box[2] && box[1] < d && b < box[3])) continue;
        taken.push(box);
        made.setAttribute("x", middle);
        made.setAttribute("y", y + shift);
        return;
      }
      made.remove();
    };
    for (const curve of curves.filter((each) => each.colour !== null && each.wins.length)) {
      const [log, value] = curve.wins[Math.floor(curve.wins.length / 2)];
      put(curve.name, this.x(log), this.y(value) - 9, curve.colour);
    }
    if (floor.length && !ratio) {
      const [log, value] = floor[Math.floor(floor.length * 0.3)];
      put("lower bound", this.x(log), this.y(value) + 16);
    }
  }
}
