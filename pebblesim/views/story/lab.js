"use strict";
// A lab: one schedule on a small board, with what the reader may move, its count, its cache over time, and its text.

const make = (name, attributes = {}, ...inside) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...inside);
  return made;
};
const many = (number) => number.toLocaleString("en-US");
const problemOf = (name) => DATA.problems.find((each) => each.name === name);
const scheduleOf = (name) => DATA.problems.flatMap((each) => each.schedules).find((each) => each.name === name);
const problemOfSchedule = (schedule) => DATA.problems.find((each) => each.schedules.includes(schedule));

/** The sizes of one head of attention, by all the names that closed forms and bounds have for them. */
const headSizes = (n, d) => ({ n, n_q: n, n_k: n, d, d_k: d, d_v: d, R: 1, W: 0 });

/** The largest blocks that fit into M words, as `count` chooses them; null if M is too small. */
function blocksFor(schedule, n, d, M) { return new AtSizes(schedule, headSizes(n, d)).fitting(M); }

/** The words of a schedule with these blocks, by its closed form. */
function wordsOf(schedule, n, d, blocks) { return schedule.words(asBig({ ...headSizes(n, d), ...blocks })); }

/** The proved lower bound on the words of a problem. */
function leastOf(problem, n, d, M) { return boundOf(problem, headSizes(n, d), M, false).value; }

function slider(label, low, high, value, changed, hint = "") {
  const shown = make("output", {}, many(value));
  const input = make("input", { type: "range", min: low, max: high, value, ariaLabel: label });
  input.addEventListener("input", () => changed(Number(input.value)));
  const whole = make("label", { className: "slider", title: hint }, make("span", {}, label, " = ", shown), input);
  return { whole, set: (to, most = high) => { input.max = most; input.value = to; shown.textContent = many(to); }, input };
}

const VERBS = { read: "read into the cache", write: "written to memory", fill: "written to memory", constant: "starts in the cache", delete: "leaves the cache", move: "takes another name", compute: "is computed, in the cache" };

/** What a step does, in words. */
function told(step) {
  if (!step) return "At the start, memory holds the inputs and the cache is empty.";
  const words = step.read + step.written, many_ = words === 1 ? "1 word" : `${words} words`;
  const loops = step.loops.map(([name, { start, length }]) => `${name}: ${length > 1 ? `${start}…${start + length - 1}` : start}`).join(", ");
  return `${step.name} ${VERBS[step.kind]}${words ? `: ${many_}` : ", for free"}${loops ? ` (${loops})` : ""}`;
}

class Lab {
  /**
   * @param root the element that it fills.
   * @param options { names: schedules to choose from, titles, n, d, M, limits: { n, d, M }, blocks: whether the reader may
   *   move blocks, phase: the only phase that is played, outputs: then what it writes, fixed: blocks at first }.
   */
  constructor(root, options) {
    Object.assign(this, { root, options, n: options.n, d: options.d, M: options.M, manual: options.fixed ?? null });
    this.schedule = scheduleOf(options.names[0]);
    this.build();
    this.renew();
  }

  build() {
    const { names, titles = [], limits } = this.options;
    this.tabs = names.length < 2 ? [] : names.map((name, at) => {
      const tab = make("button", { type: "button" }, titles[at] ?? name);
      tab.addEventListener("click", () => { this.schedule = scheduleOf(name); this.manual = null; this.renew(); });
      return tab;
    });
    this.sliders = Object.fromEntries(Object.entries(limits).map(([name, [low, high]]) => [name, slider(name, low, high, this[name], (value) => { this[name] = value; if (name !== "M" || !this.options.fixed) this.manual = null; this.renew(); })]));
    this.blockSliders = make("div", { className: "sliders" });
    this.counters = make("p", { className: "counters" });
    this.svg = drawn("svg", { class: "board", role: "img" });
    this.board = new Board(this.svg);
    this.time = drawn("svg", { class: "time", preserveAspectRatio: "none" });
    this.scrub = make("input", { type: "range", min: 0, value: 0, ariaLabel: "step", className: "scrub" });
    this.scrub.addEventListener("input", () => { this.pause(); this.go(Number(this.scrub.value)); });
    this.playing = make("button", { type: "button", className: "play" }, "Play");
    this.playing.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    const step = (by, text, label) => {
      const button = make("button", { type: "button", ariaLabel: label }, text);
      button.addEventListener("click", () => { this.pause(); this.go(this.replay.at + by); });
      return button;
    };
    this.says = make("p", { className: "says" });
    this.verdict = make("p", { className: "verdict" });
    this.code = make("pre", { className: "code", tabIndex: 0 });
    this.root.classList.add("lab");
    this.root.append(
      make("div", { className: "tabs", hidden: !this.tabs.length }, ...this.tabs),
      make("div", { className: "sliders" }, ...Object.values(this.sliders).map(({ whole }) => whole)), this.blockSliders,
      this.counters, this.svg, make("p", { className: "caption" }, "Words in the cache over time; dashed: M"), this.time, this.scrub,
      make("div", { className: "transport" }, step(-1, "‹", "one step back"), this.playing, step(1, "›", "one step on"), this.says),
      this.verdict, make("details", {}, make("summary", {}, "The schedule, as pebblesim show prints it"), this.code),
    );
  }

  get text() {
    const { phase } = this.options, whole = this.schedule.text;
    return phase ? whole.split(/\n(?=phase )/).find((each) => each.startsWith(`phase ${phase}:`)) : whole;
  }

  /** The schedule is played anew: other sizes, other blocks. */
  renew() {
    const { schedule, n, d, M } = this, { phase, outputs } = this.options;
    this.tabs.forEach((tab, at) => tab.setAttribute("aria-pressed", String(this.options.names[at] === schedule.name)));
    const fitting = blocksFor(schedule, n, d, M);
    this.blocks = this.manual ?? fitting ?? Object.fromEntries(schedule.blocks.map((name) => [name, 1]));
    const wanted = phase ? { ...schedule, outputs, inputs: schedule.inputs.filter((name) => this.text.includes(`read ${name}[`)) } : schedule;
    this.machine = played(this.text, { n, d, ...this.blocks }, M, wanted);
    this.replay = new Replay(this.machine, wanted.inputs);
    this.board.show(this.replay, problemOfSchedule(schedule).name, wanted.outputs);
    this.svg.setAttribute("aria-label", `The tensors of ${schedule.name}; the sentence below says what each step does`);
    this.scrub.max = this.replay.length;
    this.list();
    this.showBlocks(fitting);
    this.judge();
    this.paintTime();
    for (const [name, { set }] of Object.entries(this.sliders)) set(this[name]);
    this.go(this.options.open === "end" ? this.replay.length : Math.min(this.replay.length, Math.round(this.replay.length * 0.45)));
  }

  showBlocks(fitting) {
    this.blockSliders.hidden = !this.options.blocks;
    if (!this.options.blocks) return;
    const names = this.schedule.blocks.filter((name) => new RegExp(`by ${name}\\b`).test(this.text));
    this.blockSliders.replaceChildren(...names.map((name) => {
      const { whole } = slider(name, 1, Math.max(this.n, this.d), this.blocks[name], (value) => {
        this.manual = { ...this.blocks, [name]: value };
        this.renew();
        this.blockSliders.querySelector(`[aria-label="${name}"]`).focus();
      });
      return whole;
    }));
    const back = make("button", { type: "button", hidden: !this.manual || !fitting }, "the largest that fit");
    back.addEventListener("click", () => { this.manual = null; this.renew(); });
    this.blockSliders.append(back);
  }

  judge() {
    const { machine, M, n, d, schedule } = this, { wrong } = machine, words = machine.reads + machine.writes;
    this.root.classList.toggle("illegal", Boolean(wrong));
    if (wrong) {
      this.verdict.textContent = `✗ Illegal at line ${wrong.line + 1}, step ${machine.steps.length + 1}: ${wrong.message}.`;
      return;
    }
    const form = this.options.phase ? schedule.byPhase[this.options.phase].text : schedule.square;
    const least = this.options.phase ? null : leastOf(problemOfSchedule(schedule), n, d, M);
    this.verdict.replaceChildren(make("span", {}, `✓ Legal: at most ${machine.peak} of ${M} pebbles. Closed form: `), make("code", {}, form), ` = ${many(words)} words.`,
      least === null ? "" : ` No schedule moves fewer than ${many(least)}.`);
  }

  list() {
    this.lines = this.text.split("\n").map((line, at) => make("span", {}, `${String(at + 1).padStart(2)}  ${line}`));
    this.code.replaceChildren(...this.lines);
  }

  /** Words in the cache after each step, M as a dashed line. */
  paintTime() {
    const { replay, M, machine } = this, most = Math.max(M, machine.peak) * 1.08, width = Math.max(1, replay.length);
    const y = (red) => (40 * (1 - red / most)).toFixed(2);
    const line = replay.steps.map(({ red }, at) => `L${at} ${y(red)}L${at + 1} ${y(red)}`).join("");
    this.time.setAttribute("viewBox", `0 0 ${width} 40`);
    this.now = drawn("line", { class: "now", y1: 0, y2: 40 });
    this.time.replaceChildren(drawn("path", { class: "area", d: `M0 40${line}L${width} 40Z` }), drawn("line", { class: "limit", x1: 0, x2: width, y1: y(M), y2: y(M) }), this.now);
  }

  go(at) {
    const place = Math.min(this.replay.length, Math.max(0, at)), { M, replay } = this;
    this.board.seek(place);
    this.scrub.value = place;
    for (const side of ["x1", "x2"]) this.now.setAttribute(side, place);
    const { step } = replay, io = replay.moved, all = this.machine.reads + this.machine.writes;
    this.counters.replaceChildren(make("b", {}, many(io)), ` of ${many(all)} words moved`, make("span", {}, `${step?.reads ?? 0} reads, ${step?.writes ?? 0} writes`), make("span", {}, `${replay.red} of ${M} words in the cache`));
    this.says.textContent = told(step);
    this.lines.forEach((line, number) => line.classList.toggle("now", number === step?.line));
    this.lines.forEach((line, number) => line.classList.toggle("bad", number === this.machine.wrong?.line));
  }

  play() {
    if (this.replay.at >= this.replay.length) this.go(0);
    this.playing.textContent = "Pause";
    const each = Math.max(1, Math.round(this.replay.length / 160));
    this.timer = setInterval(() => {
      this.go(this.replay.at + each);
      if (this.replay.at >= this.replay.length) this.pause();
    }, 60);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.playing.textContent = "Play";
  }
}

/** Two schedules side by side. Their clock is the words that have moved, since all else is free. */
class Race {
  constructor(root, { names, titles, n, d, M }) {
    root.classList.add("race");
    this.runners = names.map((name, at) => {
      const schedule = scheduleOf(name), blocks = blocksFor(schedule, n, d, M), machine = played(schedule.text, { n, d, ...blocks }, M, schedule);
      const replay = new Replay(machine, schedule.inputs), svg = drawn("svg", { class: "board", role: "img", "aria-label": `The tensors of ${titles[at]}` });
      const board = new Board(svg), bar = make("span"), count = make("p", { className: "counters" });
      board.show(replay, "forward", schedule.outputs);
      root.append(make("section", {}, make("h3", {}, titles[at]), make("div", { className: "lane" }, bar), count, svg));
      return { replay, board, bar, count, io: machine.reads + machine.writes };
    });
    this.length = Math.max(...this.runners.map(({ io }) => io));
    this.scrub = make("input", { type: "range", min: 0, max: this.length, ariaLabel: "words moved", className: "scrub" });
    this.scrub.addEventListener("input", () => { this.pause(); this.go(Number(this.scrub.value)); });
    this.button = make("button", { type: "button", className: "play" }, "Play");
    this.button.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    root.after(make("div", { className: "transport race-bar" }, this.button, this.scrub));
    this.go(Math.min(...this.runners.map(({ io }) => io)));
  }

  go(words) {
    this.at = Math.min(this.length, words);
    this.scrub.value = this.at;
    for (const { replay, board, bar, count, io } of this.runners) {
      board.seek(replay.stepsAt(this.at));
      bar.style.width = `${(100 * Math.min(io, this.at)) / this.length}%`;
      count.replaceChildren(make("b", {}, many(replay.moved)), " words moved", make("span", {}, this.at >= io ? "done" : `of ${many(io)}`));
    }
  }

  play() {
    if (this.at >= this.length) this.go(0);
    this.button.textContent = "Pause";
    this.timer = setInterval(() => {
      this.go(this.at + Math.max(1, Math.round(this.length / 240)));
      if (this.at >= this.length) this.pause();
    }, 50);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
  }
}
