"use strict";
// The page: what is asked for, in the form and in the address; the answer, the picture and the tables.

const FIELDS = ["queries", "keys", "d", "heads", "kvHeads", "window", "M"];
const START = { problem: "forward", queries: 4096, keys: 4096, d: 64, heads: 1, kvHeads: 1, mask: "", window: 1024, type: "bfloat16", card: "", M: 65536, show: "words", one: "" };
const FRAME = 30; // milliseconds of counting between two drawings
const LEAD = 1.5; // a schedule that leads over a smaller range of M, as a factor, is not listed
const KNOWN = { "flash2-forward": "FlashAttention-2", "flash2-backward": "FlashAttention-2", flash: "FlashAttention-2 between its projections", "standard-forward": "unfused attention", "standard-backward": "unfused attention", "small-cache": "the paper's Algorithm 6" };
const FLASH = ["flash2-forward", "flash2-backward", "flash"]; // drawn in colour, whether it wins or not
const byId = (id) => document.getElementById(id);

const UNITS = { "": 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };

/** A size as people write it: 4096, 4,096, 64k, 1M, 2^20, and with the bytes of a word 227KiB; NaN for anything else. */
function parsed(text, width) {
  const plain = String(text).trim().replaceAll(",", "").replaceAll("_", "");
  const [, base, power] = /^(\d+)\^(\d+)$/.exec(plain) ?? [];
  const [, number, unit] = /^(\d+)([kKmMgG]?)$/.exec(plain) ?? [];
  const [, bytes, binary] = /^(\d+(?:\.\d+)?) ?(?:([KMG])i)?B$/.exec(plain) ?? [];
  const size = base ? Number(base) ** Number(power) : number ? Number(number) * UNITS[unit.toLowerCase()]
    : bytes && width ? Math.floor((Number(bytes) * UNITS[(binary ?? "").toLowerCase()]) / width) : NaN;
  return Number.isSafeInteger(size) ? size : NaN;
}

const many = (number) => number.toLocaleString("en-US");
const times = (words, bound) => Number((words * 100000n) / bound) / 100000;
const ratioText = (words, bound) => times(words, bound).toFixed(words < 2n * bound ? 3 : 1);

/** Bytes in the unit that fits them. */
function bytes(words, each) {
  let size = Number(words) * each;
  for (const unit of ["bytes", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024) return `${unit === "bytes" ? size : size.toPrecision(3)} ${unit}`;
    size /= 1024;
  }
  return `${size.toPrecision(4)} PiB`;
}

function read(hash) {
  const asked = { ...START, ...Object.fromEntries(new URLSearchParams(hash)) };
  for (const name of FIELDS) asked[name] = parsed(asked[name]) >= 1 ? parsed(asked[name]) : START[name];
  if (!DATA.problems.some(({ name }) => name === asked.problem)) asked.problem = DATA.problems[0].name;
  if (!(asked.type in DATA.types)) asked.type = START.type;
  if (!(asked.card in DATA.cards)) asked.card = "";
  if (!["causal", "window"].includes(asked.mask)) asked.mask = "";
  return asked;
}

function address(state) {
  const differs = Object.entries(state).filter(([name, value]) => name in START && (value !== START[name] || name === "problem"));
  return new URLSearchParams(differs).toString().replaceAll("%2C", ",");
}

class Page {
  constructor() {
    this.state = read(location.hash.slice(1) || DATA.view);
    this.chart = new Chart(byId("chart"), (log) => this.set({ M: Math.max(1, Math.round(2 ** log)) }));
    this.fill();
    byId("sizes").addEventListener("input", (event) => this.typed(event.target));
    byId("sizes").addEventListener("submit", (event) => event.preventDefault());
    for (const button of byId("views").children) button.addEventListener("click", () => this.set({ show: button.dataset.show }));
    addEventListener("hashchange", () => {
      if (location.hash.slice(1) !== address(this.state)) { this.state = read(location.hash.slice(1)); this.renew(); }
    });
    addEventListener("resize", () => this.draw());
    this.renew();
  }

  fill() {
    const options = (id, pairs) => byId(id).replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
    options("problem", DATA.problems.map(({ name, inputs, outputs }) => [name, `${name}: ${inputs.join(", ")} → ${outputs.join(", ")}`]));
    options("type", Object.entries(DATA.types).map(([name, size]) => [name, `${name}, ${size} byte${size > 1 ? "s" : ""}`]));
    options("card", [["", "none"], ...Object.keys(DATA.cards).map((name) => [name, name])]);
  }

  typed(field) {
    const { id } = field;
    if (id === "slider") return this.set({ M: Math.max(1, Math.round(2 ** Number(field.value))) });
    if (!FIELDS.includes(id)) return this.set({ [id]: field.value, ...(id === "problem" ? { one: "" } : {}), ...(id === "card" ? this.cardM(field.value) : {}) });
    const value = parsed(field.value, id === "M" && DATA.types[this.state.type]), change = { [id]: value };
    if (id === "queries" && Object.is(this.state.keys, this.state.queries)) change.keys = value; // also if both are NaN
    if (id === "heads" && Object.is(this.state.kvHeads, this.state.heads)) change.kvHeads = value;
    return this.set(change, id);
  }

  /** A card that is chosen: M is what a block of threads can have there. */
  cardM(name) {
    const [size] = Object.values(DATA.cards[name] ?? {});
    return size ? { M: Math.floor(size / DATA.types[this.state.type]) } : {};
  }

  set(change, typing) {
    const counted = ["problem", "queries", "keys", "d", "heads", "kvHeads", "mask", "window"].some((name) => name in change && change[name] !== this.state[name])
      || !(this.state.M >= 1 && (change.M ?? 1) >= 1); // what is wrong is said, or said no more
    Object.assign(this.state, change);
    if (counted) this.renew(typing);
    else this.show(typing);
  }

  /** Counts anew: another problem, other sizes. */
  renew(typing) {
    const { state } = this, problem = DATA.problems.find(({ name }) => name === state.problem);
    const windowed = state.mask === "window";
    this.mask = windowed ? `window:${state.window}` : state.mask;
    this.view = { ...state, masked: state.mask !== "", window: windowed ? state.window : undefined };
    const wrong = refusal(this.view, problem);
    byId("wrong").hidden = !wrong;
    byId("wrong").textContent = wrong;
    for (const name of FIELDS) byId(name).setAttribute("aria-invalid", String(!(state[name] >= 1)));
    clearTimeout(this.next);
    if (wrong) return this.controls(typing);
    this.counts = new Counts(problem, this.view);
    this.samples = new Map();
    const least = Math.min(...this.counts.at.map((at) => at.needs)), { n_q, n_k, d } = this.counts.sizes;
    this.low = Math.log2(Math.max(2, least));
    this.high = Math.max(Math.ceil(Math.log2(6 * Math.max(n_q, n_k) * d)), Math.ceil(this.low) + 4);
    this.waiting = this.places();
    this.changes = null;
    this.show(typing);
    this.work();
  }

  /** M at which curves are counted: coarse first, then in between. */
  places() {
    const steps = [], range = this.high - this.low, all = 96;
    for (let step = 32; step >= 1; step /= 2) {
      for (let place = 0; place <= all; place += step) {
        const M = Math.round(2 ** (this.low + (range * place) / all));
        if (!steps.includes(M)) steps.push(M);
      }
    }
    return steps;
  }

  work() {
    const end = performance.now() + FRAME;
    while (this.waiting.length && performance.now() < end) {
      const M = this.waiting.shift();
      this.samples.set(M, { rows: this.counts.rows(M), bound: this.counts.bound(M) });
    }
    if (!this.waiting.length && this.changes === null) this.changes = this.crossings();
    this.draw();
    if (this.waiting.length) this.next = setTimeout(() => this.work(), 0);
    else this.list();
  }

  /** [M, winner] from each M at which another schedule begins to win, for more than a short while. */
  crossings() {
    const leads = [];
    for (const M of [...this.samples.keys()].sort((a, b) => a - b)) {
      const number = this.samples.get(M).rows[0]?.number;
      if (number === undefined) continue;
      if (leads.at(-1)?.number === number) leads.at(-1).last = M;
      else leads.push({ number, first: M, last: M });
    }
    const long = leads.filter(({ first, last }, place) => last >= LEAD * first || place === leads.length - 1);
    const changes = [];
    for (const { number, first } of long) {
      if (changes.at(-1)?.number === number) continue;
      const before = leads[leads.findIndex((lead) => lead.first === first) - 1];
      const M = before ? this.counts.crossing(before.last, first) : this.counts.firstFit(first);
      changes.push({ number, M });
    }
    this.short = leads.length > changes.length;
    return changes;
  }

  colourOf(schedule) {
    const seen = [...new Set((this.changes ?? []).map(({ number }) => this.counts.schedules[number].name))];
    for (const name of [...FLASH, this.state.one]) if (name && !seen.includes(name) && this.counts.schedules.some((each) => each.name === name)) seen.push(name);
    const place = seen.indexOf(schedule.name);
    return place < 0 ? null : place % COLOURS;
  }

  show(typing) {
    this.controls(typing);
    if (!byId("wrong").hidden) return;
    history.replaceState(null, "", `#${address(this.state)}`);
    const { M } = this.state;
    this.rows = this.counts.rows(M);
    this.bound = this.counts.bound(M);
    this.answer();
    this.table();
    this.single();
    this.draw();
  }

  controls(typing) {
    for (const name of FIELDS) if (name !== typing && this.state[name] >= 1) byId(name).value = many(this.state[name]);
    for (const name of ["problem", "mask", "type", "card"]) byId(name).value = this.state[name];
    for (const button of byId("views").children) button.setAttribute("aria-pressed", String(button.dataset.show === this.state.show));
    const { shared } = DATA.problems.find(({ name }) => name === this.state.problem);
    byId("kvHeads").disabled = !shared;
    byId("window").disabled = this.state.mask !== "window";
    if (this.state.M >= 1) Object.assign(byId("slider"), { min: this.low ?? 1, max: this.high ?? 30, value: Math.log2(this.state.M) });
    if (this.state.M >= 1) byId("slider").setAttribute("aria-valuetext", `${many(this.state.M)} words`);
  }

  answer() {
    const [best] = this.rows, { M, type } = this.state, each = DATA.types[type], cache = `M = ${many(M)} words (${bytes(M, each)} in ${type})`;
    if (!best) {
      byId("answer").textContent = `With ${cache} no schedule fits; the least that one needs is ${many(this.counts.firstFit(Infinity))} words.`;
      return;
    }
    const bold = document.createElement("strong");
    bold.textContent = best.schedule.name;
    const others = this.rows.slice(1).filter(({ schedule }) => schedule.name in KNOWN)
      .map(({ schedule, words }) => `${KNOWN[schedule.name]} moves ${ratioText(words, best.words)} times as many`);
    const among = this.counts.problem.leftOut.length ? " of the schedules on this page" : "";
    byId("answer").replaceChildren(`With ${cache}, `, bold, ` moves the fewest words${among}: ${many(best.words)}, which is ${bytes(best.words, each)}`
      + ` and ${ratioText(best.words, this.bound.value)} times the lower bound.${this.needs(best.schedule)}${others.length ? ` ${others.join("; ")}.` : ""}`);
  }

  /** What a schedule needs saved by the forward pass, if that is P, and the first schedule that does not need it. */
  needs(schedule) {
    if (!schedule.needs.includes("P")) return "";
    const other = this.rows.find((each) => !each.schedule.needs.includes("P"));
    return ` It reads P, the matrix of probabilities, saved by the forward pass: a word for each pair, written there.${
      other ? ` Of the schedules that do not need P, ${other.schedule.name} moves the fewest: ${many(other.words)}.` : ""}`;
  }

  draw() {
    if (!this.samples || !byId("wrong").hidden) return;
    const ratio = this.state.show === "gap", sampled = [...this.samples.keys()].sort((a, b) => a - b);
    const floor = sampled.map((M) => [Math.log2(M), logOf(this.samples.get(M).bound.value)]);
    const curves = this.counts.schedules.map((schedule, number) => {
      const points = [], wins = [];
      for (const [place, M] of sampled.entries()) {
        const row = this.samples.get(M).rows.find((each) => each.number === number);
        if (!row) continue;
        const point = [Math.log2(M), logOf(row.words) - (ratio ? floor[place][1] : 0)];
        points.push(point);
        if (this.samples.get(M).rows[0] === row) wins.push(point);
      }
      return { name: schedule.name, colour: this.colourOf(schedule), strong: Number(schedule.name === this.state.one), points, wins };
    });
    this.chart.draw({ low: this.low, high: this.high, curves, floor: ratio ? [] : floor, marks: this.marks(), now: Math.log2(this.state.M), ratio, names: { x: "cache M, in words", y: ratio ? "words ÷ the lower bound" : "words moved" } });
    const rest = this.waiting.length ? " Counting…" : "";
    byId("caption").textContent = (ratio ? "Words moved ÷ the lower bound for every way of computing." : "Words moved, for all heads together; no schedule can lie in the shaded part.")
      + ` In colours and with shapes: the winners listed below, FlashAttention-2, and the schedule that is chosen; grey: the others.${rest}`;
  }

  marks() {
    const each = DATA.types[this.state.type];
    return Object.entries(DATA.cards[this.state.card] ?? {}).map(([label, size]) => ({ log: Math.log2(size / each), label: `${this.state.card}: ${label}, ${bytes(size, 1)}` }));
  }

  swatch(schedule) {
    const colour = this.colourOf(schedule), made = element("svg", { class: "swatch", viewBox: "-6 -6 12 12", "aria-hidden": "true" });
    made.append(element("path", { d: colour === null ? "M-4 -1H4V1H-4Z" : SHAPES[colour], style: `fill: var(${colour === null ? "--grey" : `--c${colour}`})` }));
    return made;
  }

  choose(name, inside) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...inside, name);
    button.addEventListener("click", () => this.set({ one: name }));
    return button;
  }

  list() {
    byId("crossings").replaceChildren(...this.changes.map(({ M, number }) => {
      const schedule = this.counts.schedules[number], item = document.createElement("li"), at = document.createElement("button");
      at.type = "button";
      at.textContent = `M = ${many(M)}`;
      at.addEventListener("click", () => this.set({ M, one: schedule.name }));
      item.append("from ", at, " on: ", this.swatch(schedule), schedule.name, `, ${ratioText(this.counts.row(number, M).words, this.counts.bound(M).value)} times the lower bound there`);
      return item;
    }));
    byId("short").hidden = !this.short;
    this.table();
    this.single();
  }

  table() {
    const cells = (kind, texts) => {
      const row = document.createElement("tr");
      row.append(...texts.map((text) => { const cell = document.createElement(kind); cell.append(text); return cell; }));
      return row;
    };
    const each = DATA.types[this.state.type];
    byId("table-M").textContent = many(this.state.M);
    const head = cells("th", ["schedule", "words", "bytes", "÷ bound", "blocks"]);
    head.lastChild.className = "left";
    byId("rows").tHead.replaceChildren(head);
    byId("rows").tBodies[0].replaceChildren(...this.rows.map((row) => {
      const blocks = Object.entries(row.blocks).map(([name, size]) => `${name} = ${many(size)}`).join(", ") || "none";
      const made = cells("td", [this.choose(row.schedule.name, [this.swatch(row.schedule)]), many(row.words), bytes(row.words, each), ratioText(row.words, this.bound.value), blocks]);
      made.lastChild.className = "left";
      made.setAttribute("aria-current", String(row.schedule.name === this.chosen()?.name));
      return made;
    }));
    const { problem, schedules, at } = this.counts, small = schedules.filter((_, number) => at[number].needs > this.state.M);
    const notes = [];
    if (small.length) notes.push(`M is too small for ${small.map(({ name }) => name).join(", ")}.`);
    const unmasked = problem.schedules.filter((schedule) => !schedules.includes(schedule));
    if (unmasked.length) notes.push(`Not counted under a mask here: ${unmasked.map(({ name }) => name).join(", ")}.`);
    if (problem.leftOut.length) notes.push(`Their blocks need a longer search, so they are left to pebblesim count: ${problem.leftOut.join(", ")}.`);
    byId("others").textContent = notes.join(" ");
  }

  /** The schedule that is described: the chosen one, or the winner. */
  chosen() { return this.counts.schedules.find(({ name }) => name === this.state.one) ?? this.rows[0]?.schedule ?? null; }

  single() {
    const schedule = this.chosen();
    byId("one").hidden = schedule === null;
    if (schedule === null) return;
    const { n_q, n_k } = this.counts.sizes, row = this.rows.find((each) => each.schedule === schedule);
    byId("one-name").replaceChildren(this.swatch(schedule), schedule.name);
    byId("one-summary").textContent = `${schedule.summary} (${schedule.source})`;
    const facts = [
      [this.view.masked ? "words of one head, without the mask" : "words of one head", n_q === n_k ? schedule.square : schedule.form],
      ...(this.view.masked ? [["closed form under the mask", `pebblesim formula ${schedule.name} --mask ${this.mask}${n_q === n_k ? "" : " --rectangular"}`]] : []),
      ["needs", schedule.needs.length ? `${schedule.needs.join(", ")}, saved from the forward pass` : "the inputs alone"],
      ["lower bound", `${this.bound.text} = ${many(this.bound.value)}${this.times()} (${this.bound.source})`],
      ["in a terminal", this.command(schedule, row)],
    ];
    byId("one-facts").replaceChildren(...facts.flatMap(([name, text]) => {
      const term = document.createElement("dt"), fact = document.createElement("dd"), code = document.createElement("code");
      term.textContent = name;
      code.textContent = text;
      fact.append(name === "needs" ? text : code);
      return [term, fact];
    }));
  }

  times() { return this.counts.times > 1n ? ` for ${this.counts.times} heads` : ""; }

  command(schedule, row) {
    const { queries, keys, d, heads, kvHeads, M } = this.state, sizes = queries === keys ? `-n ${queries}` : `--size n_q=${queries} --size n_k=${keys}`;
    const shared = this.counts.problem.shared && kvHeads !== heads ? ` --kv-heads ${kvHeads}` : "";
    const blocks = !this.view.masked ? " --blocks best" : row ? Object.entries(row.blocks).map(([name, size]) => ` --block ${name}=${size}`).join("") : "";
    return `pebblesim count ${schedule.name} ${sizes} -d ${d} -M ${M}${heads > 1 ? ` --heads ${heads}` : ""}${shared}${this.view.masked ? ` --mask ${this.mask}` : ""}${blocks}`;
  }
}

const ABOUT = "A word is one element of a matrix; M is the number of words that fit into the cache. The counts are exact: the closed form of"
  + " each schedule, with its best blocks, in whole numbers of any length, the same as those of pebblesim count --blocks best. Under a mask"
  + " the blocks are those chosen without it; pebblesim count --mask also tries others, which a mask can make better."
  + " The lower bound is the largest proved closed form for each way of computing, and the least of these; pebblesim bounds sometimes gets"
  + " a few percent more, because it does not round. Heads that share keys and values read them once.";

function start() {
  byId("about").textContent = ABOUT;
  window.page = new Page();
}
