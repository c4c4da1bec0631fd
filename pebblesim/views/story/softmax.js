"use strict";
// The online softmax on one row of scores: after each tile a maximum, a sum and an output that are right for what was seen.

/** After each tile of scores: { seen, tile, m, factor, l, O }, O being divided by nothing yet. */
function onlineSoftmax(scores, values, block) {
  const steps = [];
  let m = -Infinity, l = 0, O = 0;
  for (let first = 0; first < scores.length; first += block) {
    const tile = scores.slice(first, first + block), before = m;
    m = Math.max(m, ...tile);
    const factor = Math.exp(before - m), weights = tile.map((score) => Math.exp(score - m));
    l = factor * l + weights.reduce((sum, weight) => sum + weight, 0);
    O = factor * O + weights.reduce((sum, weight, at) => sum + weight * values[first + at], 0);
    steps.push({ seen: first + tile.length, tile, m, factor, l, O });
  }
  return steps;
}

/** The softmax of a whole row, as its definition says, times the values. */
function wholeSoftmax(scores, values) {
  const most = Math.max(...scores), weights = scores.map((score) => Math.exp(score - most)), all = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.reduce((sum, weight, at) => sum + (weight / all) * values[at], 0);
}

class SoftmaxRow {
  constructor(root) {
    this.scores = [1.2, -0.4, 2.1, 0.3, 3.4, -1.0, 2.6, 0.8];
    this.values = [0.5, -1.0, 0.2, 0.9, -0.3, 0.7, 1.1, -0.6];
    this.block = slider("B_c", 1, 8, 2, (value) => { this.size = value; this.draw(); }, "keys in a tile");
    this.size = 2;
    this.rows = make("div", { className: "steps" });
    this.end = make("p", { className: "verdict" });
    root.classList.add("lab");
    root.append(make("div", { className: "sliders" }, this.block.whole), this.rows, this.end);
    this.draw();
  }

  draw() {
    this.block.set(this.size);
    const steps = onlineSoftmax(this.scores, this.values, this.size), f = (number) => number.toFixed(3).replace("-", "−");
    this.rows.replaceChildren(...steps.map(({ seen, tile, m, factor, l, O }, at) => {
      const cells = this.scores.map((score, place) => make("i", { className: place >= seen - tile.length && place < seen ? "here" : place < seen ? "past" : "" }, score.toFixed(1).replace("-", "−")));
      const changed = at && factor < 1;
      const facts = [["m", f(m)], ["old sums ×", at ? f(factor) : "none yet"], ["l", f(l)], ["O", f(O)]].map(([name, value]) => make("span", { className: name.startsWith("old") && changed ? "hot" : "" }, `${name} `, make("b", {}, value)));
      return make("div", { className: "step" }, make("div", { className: "row" }, ...cells), make("div", { className: "facts" }, ...facts));
    }));
    const { O, l } = steps.at(-1), whole = wholeSoftmax(this.scores, this.values);
    this.end.textContent = `O ÷ l = ${f(O / l)}; the softmax of the whole row at once gives ${f(whole)}. They differ by ${Math.abs(O / l - whole).toExponential(0)}, by rounding alone. The cache held ${this.size} ${this.size === 1 ? "score" : "scores"} at a time, not 8.`;
  }
}
