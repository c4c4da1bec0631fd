"use strict";
// An editor of schedules: the reader's text is read, run and judged at each change.

const EDITS = [
  { title: "As it is", from: "flash2-forward", change: (text) => text, why: "FlashAttention-2 as pebblesim has it. Change a line, a block or M." },
  { title: "Swap the loops", from: "flash2-forward", change: swapLoops, why: "Queries are read in a loop that is not open yet. The other order needs other lines, too: see “Keys outside”." },
  { title: "Do not rescale O", from: "flash2-forward", change: (text) => text.replace(/\n.*O_i ← diag\(m_i\) O_i/, ""), why: "Every move is allowed, and the result is false: older terms are relative to an older maximum." },
  { title: "Keep K in the cache", from: "flash2-forward", change: (text) => text.replace(/\n.*delete K_j/, ""), why: "K_j takes the room that the next lines need. Make B_r or B_c smaller, or M larger." },
  { title: "Forget to write O", from: "flash2-forward", change: (text) => text.replace(/\n.*write O\[.*/, ""), why: "The output must end in memory." },
  { title: "Keys outside", from: "flash1-forward", change: (text) => text, why: "FlashAttention-1: keys stay, and O, l and m go through memory for each tile of keys." },
  { title: "Unfused", from: "standard-forward", change: (text) => text, why: "Three steps; S and P go through memory." },
];

/** The two loops of a schedule with one loop in another: their first lines change places. */
function swapLoops(text) {
  const lines = text.split("\n"), [outer, inner] = [...lines.keys()].filter((at) => lines[at].trim().startsWith("for "));
  const head = (at) => lines[at].trim(), space = (at) => /^ */.exec(lines[at])[0];
  return lines.map((line, at) => (at === outer ? space(outer) + head(inner) : at === inner ? space(inner) + head(outer) : line)).join("\n");
}

/** The names of blocks in a text: what tiles are cut by, unless it is a number. */
function blocksIn(text) {
  const found = [...text.matchAll(/ by ([A-Za-z]\w*)|first ([A-Za-z]\w*)/g)].map(([, a, b]) => a ?? b);
  return [...new Set(found)];
}

class Editor {
  constructor(root) {
    Object.assign(this, { root, n: 8, d: 4, M: 48, blocks: { B_r: 3, B_c: 2 } });
    this.buttons = EDITS.map((edit) => {
      const button = make("button", { type: "button" }, edit.title);
      button.addEventListener("click", () => this.take(edit));
      return button;
    });
    this.area = make("textarea", { spellcheck: false, ariaLabel: "The schedule, to be changed", rows: 24 });
    this.area.setAttribute("autocapitalize", "off");
    this.area.addEventListener("input", () => this.judge());
    this.area.addEventListener("scroll", () => { this.gutter.scrollTop = this.area.scrollTop; });
    this.gutter = make("pre", { className: "gutter" });
    this.gutter.setAttribute("aria-hidden", "true");
    this.sizes = make("div", { className: "sliders" });
    this.why = make("p", { className: "why" });
    this.verdict = make("p", { className: "verdict" });
    this.verdict.setAttribute("aria-live", "polite");
    this.table = make("p", { className: "by" });
    this.svg = drawn("svg", { class: "board", role: "img", "aria-label": "The tensors of the schedule" });
    this.board = new Board(this.svg);
    this.scrub = make("input", { type: "range", min: 0, value: 0, ariaLabel: "step", className: "scrub" });
    this.scrub.addEventListener("input", () => this.go(Number(this.scrub.value)));
    this.says = make("p", { className: "says" });
    root.classList.add("lab", "editor");
    root.append(make("div", { className: "tabs" }, ...this.buttons), this.why, this.sizes,
      make("div", { className: "paper" }, this.gutter, this.area), this.verdict, this.table, this.svg, this.scrub, this.says);
    this.take(EDITS[0]);
  }

  take(edit) {
    const schedule = scheduleOf(edit.from);
    this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(EDITS[at] === edit)));
    this.blocks = { ...blocksFor(schedule, this.n, this.d, this.M) ?? this.blocks };
    this.area.value = edit.change(schedule.text);
    this.why.textContent = edit.why;
    this.judge();
  }

  judge() {
    const text = this.area.value, names = blocksIn(text), { n, d, M } = this;
    const given = { n: [1, 12], d: [1, 8], M: [8, 200] };
    for (const name of names) if (!(name in this.blocks)) this.blocks[name] = 2;
    this.sizes.replaceChildren(...Object.entries(given).map(([name, [low, high]]) => slider(name, low, high, this[name], (value) => { this[name] = value; this.judge(); this.focus(name); }).whole),
      ...names.map((name) => slider(name, 1, Math.max(n, d), Math.min(this.blocks[name], Math.max(n, d)), (value) => { this.blocks[name] = value; this.judge(); this.focus(name); }).whole));
    const shown = scheduleOf("standard-forward"), tensors = { ...shown.tensors, ...scheduleOf("flash1-forward").tensors, ...scheduleOf("flash2-forward").tensors };
    const asked = { tensors, inputs: ["Q", "K", "V"], outputs: ["O"] };
    this.machine = played(text, { n, d, ...this.blocks }, M, asked);
    this.report(text);
    if (this.machine.unread) return;
    this.replay = new Replay(this.machine, asked.inputs);
    this.board.show(this.replay, "forward", ["O", "L", "l", "l_m", "m"].filter((name) => name === "O" || name in this.machine.by));
    this.scrub.max = this.replay.length;
    this.go(this.replay.length);
  }

  focus(name) { this.sizes.querySelector(`[aria-label="${name}"]`)?.focus(); }

  report(text) {
    const { machine, M } = this, { wrong } = machine, words = machine.reads + machine.writes;
    const inside = wrong && (machine.unread || wrong instanceof Illegal); // in a line, not at the end
    this.root.classList.toggle("illegal", Boolean(wrong));
    this.gutter.replaceChildren(...text.split("\n").map((_, at) => make("span", { className: inside && wrong.line === at ? "bad" : "" }, `${at + 1}\n`)));
    const where = inside ? `line ${wrong.line + 1}${machine.unread ? "" : `, step ${machine.steps.length + 1}`}: ` : "";
    this.verdict.textContent = wrong ? `✗ ${where}${wrong.message}.`
      : `✓ Legal and right: ${many(words)} words, ${many(machine.reads)} reads and ${many(machine.writes)} writes, at most ${machine.peak} of ${M} pebbles. No schedule moves fewer than ${many(leastOf(problemOf("forward"), this.n, this.d, M))}.`;
    const rows = Object.entries(machine.by).map(([name, { reads, writes }]) => `${name}: ${reads} read, ${writes} written`);
    this.table.textContent = rows.length ? `${inside ? "Until then: " : ""}${rows.join("; ")}.` : "";
  }

  go(at) {
    const place = Math.min(this.replay.length, at);
    this.board.seek(place);
    this.scrub.value = place;
    const { step, red } = this.replay;
    this.says.textContent = step ? `Step ${place}, line ${step.line + 1}: ${told(step)}; ${red} of ${this.M} words in the cache.` : told(null);
  }
}
