"use strict";
// The chapters: which labs, charts and numbers stand where.

const byId = (id) => document.getElementById(id);
const H100 = 116224; // words of 16 bits in the 227 KiB that a thread block has on an H100
const NAMES = { "standard-forward": "Unfused", "flash1-forward": "FlashAttention-1", "flash2-forward": "FlashAttention-2", "small-cache-forward-streamed": "Small-cache", "standard-backward": "Unfused", "flash2-backward": "FlashAttention-2", "backward-two-pass": "Two passes", "small-cache-backward-streamed": "Small-cache" };
const COLOURS_OF = { "standard-forward": 0, "flash1-forward": 1, "flash2-forward": 2, "small-cache-forward-streamed": 3 };
const millions = (words) => `${(Number(words) / 1e6).toLocaleString("en-US", { maximumFractionDigits: words < 1e7 ? 1 : 0 })} million`;
const share = (part, whole) => (Number(part) / Number(whole)).toLocaleString("en-US", { style: "percent", maximumFractionDigits: 0 });
const ratio = (a, b) => (Number(a) / Number(b)).toFixed(Number(a) < 10 * Number(b) ? 1 : 0);

/** Words of a schedule at M, with the largest blocks that fit; null if M is too small. */
function fittingWords(name, n, d, M) {
  const schedule = scheduleOf(name), blocks = blocksFor(schedule, n, d, M);
  return blocks && { schedule, blocks, words: wordsOf(schedule, n, d, blocks) };
}

/** Bars of the words of each tensor, at full size. */
function bars(root, names, { n, d, M }) {
  const rows = names.map((name) => fittingWords(name, n, d, M)), most = rows.reduce((all, { words }) => (words > all ? words : all), 0n);
  root.replaceChildren(...rows.map(({ schedule, blocks, words }) => {
    const parts = Object.entries(schedule.byTensor).map(([tensor, f]) => [tensor, f(asBig({ ...headSizes(n, d), ...blocks }))]).sort(([, a], [, b]) => (b > a ? 1 : b < a ? -1 : 0));
    const bar = make("div", { className: "bar" }, ...parts.filter(([, each]) => each * 400n > most).map(([tensor, each]) => {
      const spilled = schedule.tensors[tensor].join() === "n,n", wide = (100 * Number(each)) / Number(most);
      const part = make("span", { className: spilled ? "spill" : "", title: `${tensor}: ${many(each)} words` }, wide > 3 ? tensor : "");
      part.style.width = `${wide}%`;
      return part;
    }));
    return make("div", { className: "bars-row" }, make("p", {}, make("b", {}, NAMES[schedule.name]), ` ${millions(words)} words`), bar);
  }));
}

/** Curves over log2 of something: words of schedules and of the lower bound. */
function curves(names, places, at) {
  const made = names.map((name) => ({ name: NAMES[name], colour: COLOURS_OF[name], strong: 0, points: [], wins: [] })), floor = [];
  for (const place of places) {
    const { n, d, M } = at(place), x = Math.log2(place);
    const rows = names.map((name) => fittingWords(name, n, d, M)?.words ?? null), least = rows.filter((each) => each !== null).reduce((a, b) => (b < a ? b : a));
    floor.push([x, logOf(leastOf(problemOfSchedule(scheduleOf(names[0])), n, d, M))]);
    rows.forEach((words, index) => {
      if (words === null) return;
      made[index].points.push([x, logOf(words)]);
      if (words === least) made[index].wins.push(made[index].points.at(-1));
    });
  }
  return { curves: made, floor };
}

/** A chart with a slider under it. */
class Figure {
  constructor(root, { names, low, high, start, label, axis, at, marks, says, every = 4 }) {
    Object.assign(this, { low, high, at, says, marks, now: Math.log2(start), axis });
    const svg = drawn("svg", { class: "chart", role: "img", "aria-label": label });
    this.text = make("p", { className: "verdict" });
    this.input = make("input", { type: "range", min: low, max: high, step: 1 / 64, value: this.now, ariaLabel: axis });
    this.input.addEventListener("input", () => this.move(Number(this.input.value)));
    root.classList.add("lab");
    root.append(svg, this.input, this.text);
    const places = [...new Set(Array.from({ length: Math.round((high - low) * every) + 1 }, (_, at_) => Math.round(2 ** (low + at_ / every))))];
    Object.assign(this, curves(names, places, at));
    this.chart = new Chart(svg, (log) => this.move(log));
    this.move(this.now);
    addEventListener("resize", () => this.draw());
  }

  move(log) {
    this.now = log;
    this.input.value = log;
    this.text.replaceChildren(...this.says(Math.round(2 ** log)));
    this.draw();
  }

  draw() { this.chart.draw({ low: this.low, high: this.high, curves: this.curves, floor: this.floor, marks: this.marks, now: this.now, ratio: false, names: { x: this.axis, y: "words moved" } }); }
}

/** The words of schedules beside the lower bound, in a sentence. */
function compared(names, n, d, M) {
  const rows = names.map((name) => fittingWords(name, n, d, M)), least = leastOf(problemOfSchedule(scheduleOf(names[0])), n, d, M);
  const best = rows.filter(Boolean).sort((a, b) => (a.words < b.words ? -1 : 1))[0];
  const parts = rows.map((row, at) => (row ? `${NAMES[names[at]]} moves ${millions(row.words)} words (${ratio(row.words, least)} × the bound)` : `${NAMES[names[at]]} does not fit`));
  return [make("b", {}, best ? `${NAMES[best.schedule.name]} moves the fewest.` : ""), ` M = ${many(M)}, d = ${d}, M ÷ d² = ${(M / d ** 2).toFixed(2)}. ${parts.join("; ")}. The lower bound is ${millions(least)}.`];
}

/** A place, found by halving, from which on the first schedule moves fewer words than the second, and just before not. */
function passes(first, second, low, high, at) {
  const before = (place) => { const { n, d, M } = at(place), [a, b] = [first, second].map((name) => fittingWords(name, n, d, M)); return a !== null && (b === null || a.words < b.words); };
  if (before(low) === before(high)) return null;
  const wanted = before(high);
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (before(middle) === wanted) high = middle;
    else low = middle;
  }
  return high;
}

/** Numbers in the text: each has its formula here, by the name that it has in the page. */
function numbers() {
  const [n, d, M] = [8192, 128, H100], words = (name, width = d) => fittingWords(name, n, width, M).words;
  const spilled = (name) => { const { schedule, blocks } = fittingWords(name, n, d, M); return Object.entries(schedule.byTensor).filter(([tensor]) => schedule.tensors[tensor].join() === "n,n").reduce((sum, [, f]) => sum + f(asBig({ ...headSizes(n, d), ...blocks })), 0n); };
  const small = (name) => { const schedule = scheduleOf(name), blocks = blocksFor(schedule, 8, 4, 48); return wordsOf(schedule, 8, 4, blocks); };
  const forward = problemOf("forward"), backward = problemOf("backward-qkv");
  const crossing = passes("flash2-forward", "small-cache-forward-streamed", 4096, 9750, (place) => ({ n, d, M: place }));
  const backCrossing = passes("flash2-backward", "small-cache-backward-streamed", 4096, 65536, (place) => ({ n, d, M: place }));
  return {
    "small-unfused": many(small("standard-forward")), "small-flash": many(small("flash2-forward")),
    "unfused": millions(words("standard-forward")), "spilled": share(spilled("standard-forward"), words("standard-forward")),
    "flash1": millions(words("flash1-forward")), "flash2": millions(words("flash2-forward")), "flash-rows": many(blocksFor(scheduleOf("flash2-forward"), n, d, M).B_r),
    "fewer": ratio(words("standard-forward"), words("flash2-forward")), "gap": `${(100 * (Number(words("flash2-forward")) / Number(leastOf(forward, n, d, M)) - 1)).toFixed(0)} %`,
    "back-unfused": millions(words("standard-backward")), "back-flash": millions(words("flash2-backward")), "back-two": millions(words("backward-two-pass")), "back-least": millions(leastOf(backward, n, d, M)),
    "saved": many(n), "table": many(n * n), "crossing": many(crossing), "crossing-ratio": (crossing / d ** 2).toFixed(1), "back-crossing": many(backCrossing), "back-crossing-ratio": (backCrossing / d ** 2).toFixed(1),
    "gemma-flash": millions(words("flash2-forward", 512)), "gemma-small": millions(words("small-cache-forward-streamed", 512)), "gemma-least": millions(leastOf(forward, n, 512, M)),
    "gemma-back-flash": millions(words("flash2-backward", 512)), "gemma-back-small": millions(words("small-cache-backward-streamed", 512)), "gemma-back-unfused": millions(words("standard-backward", 512)),
    "gemma-ratio": (M / 512 ** 2).toFixed(2), "back-more": `${(100 * (Number(words("flash2-backward")) / Number(words("backward-two-pass")) - 1)).toFixed(0)} %`,
    "wide-d": many(passes("small-cache-forward-streamed", "flash2-forward", 64, 1024, (place) => ({ n, d: place, M }))),
    "back-wide-d": many(passes("small-cache-backward-streamed", "flash2-backward", 64, 1024, (place) => ({ n, d: place, M }))),
  };
}

function start() {
  const told_ = numbers();
  for (const place of document.querySelectorAll("[data-number]")) place.textContent = told_[place.dataset.number];
  const board = { n: 8, d: 4, M: 48 }, limits = { n: [2, 12], d: [1, 8], M: [12, 160] }, full = { n: 8192, d: 128, M: H100 };
  window.story = {
    race: new Race(byId("race"), { names: ["standard-forward", "flash2-forward"], titles: ["Unfused attention", "FlashAttention-2"], ...board }),
    unfused: new Lab(byId("unfused"), { names: ["standard-forward"], ...board, limits }),
    tiles: new Lab(byId("tiles"), { names: ["standard-forward"], ...board, limits: { n: [2, 12], d: [1, 8], M: [8, 120] }, phase: "S", outputs: ["S"], blocks: true }),
    softmax: new SoftmaxRow(byId("softmax")),
    rows: new Lab(byId("rows-stay"), { names: ["flash2-forward", "flash1-forward"], titles: ["Rows stay (FlashAttention-2)", "Keys stay (FlashAttention-1)"], ...board, limits, blocks: true }),
    backward: new Lab(byId("backward"), { names: ["flash2-backward", "backward-two-pass", "standard-backward"], titles: ["FlashAttention-2", "Two passes", "Unfused"], n: 8, d: 4, M: 80, limits: { n: [2, 12], d: [1, 8], M: [20, 200] }, blocks: true }),
    small: new Lab(byId("small"), { names: ["small-cache-forward-streamed", "flash2-forward"], titles: ["Small-cache", "FlashAttention-2"], n: 12, d: 8, M: 30, limits: { n: [2, 12], d: [1, 8], M: [12, 160] }, blocks: true }),
    editor: new Editor(byId("editor")),
  };
  bars(byId("bars"), ["standard-forward", "flash2-forward"], full);
  bars(byId("back-bars"), ["standard-backward", "flash2-backward", "backward-two-pass"], full);
  const forward = ["standard-forward", "flash1-forward", "flash2-forward", "small-cache-forward-streamed"];
  story.cache = new Figure(byId("cache"), { names: forward, low: 9, high: 22, start: H100, axis: "cache M, in words", label: "Words moved over M; the sentence below has the numbers", at: (M) => ({ n: 8192, d: 128, M }), marks: [{ log: 14, label: "M = d²" }, { log: Math.log2(H100), label: "H100, shared memory" }], says: (M) => compared(forward, 8192, 128, M) });
  const wide = ["standard-forward", "flash2-forward", "small-cache-forward-streamed"];
  story.width = new Figure(byId("width"), { names: wide, low: 5, high: 10, start: 512, axis: "head dimension d", label: "Words moved over d; the sentence below has the numbers", at: (d) => ({ n: 8192, d, M: H100 }), marks: [{ log: Math.log2(Math.sqrt(H100)), label: "d² = M" }, { log: 9, label: "Gemma 4" }], says: (d) => compared(wide, 8192, d, H100), every: 8 });
}
