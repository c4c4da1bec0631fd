"use strict";
// Block sizes: the largest that fit, as pebblesim.analysis.blocks chooses them, with the cache they need. A schedule is
// what pebblesim.analysis.in_javascript made of it; `s` holds sizes and blocks by name.

const MOST_BOXES = 2000, LARGEST_DOUBLE = 2 ** 52;

const asBig = (s) => Object.fromEntries(Object.entries(s).map(([name, size]) => [name, BigInt(size)]));

/** The largest number up to `high` for which a condition holds, which holds at `low` and up to some number. */
function lastThat(holds, low, high) {
  if (low >= high || holds(high)) return Math.max(low, high);
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (holds(middle)) low = middle;
    else high = middle;
  }
  return low;
}

/** Runs the loops of some phases on numbers of pebbles alone; see pebblesim.analysis.peak. */
class Occupancy {
  constructor(program, phases, sizes) {
    Object.assign(this, { program, sizes, peak: 0 });
    for (const phase of phases) {
      this.red = 0;
      this.live = new Map();
      this.fromMemory = new Set();
      this.values = new Set();
      this.apart = new Map();
      this.open = [];
      this.within = new Map();
      this.offset = new Map();
      this.length = new Map();
      this.body(program.phases[phase]);
    }
  }

  words(ranges) {
    let product = 1;
    for (const range of ranges) {
      const [dim, parent] = this.program.ranges[range];
      product *= parent < 0 ? this.sizes[dim] : this.length.get(range);
    }
    return product;
  }

  tileWords(tile) { return this.words(this.program.tiles[tile]); }
  size(block) { return typeof block === "string" ? this.sizes[block] : block; }
  reach(red) { if (red > this.peak) this.peak = red; }

  hold(tile, pebbles) {
    this.live.set(tile, (this.live.get(tile) ?? 0) + pebbles);
    this.red += pebbles;
    this.reach(this.red);
  }

  body(nodes) {
    for (const node of nodes) {
      const [kind, tile] = node;
      if (kind === "loop") this.loop(node);
      else if (kind === "read") {
        this.hold(tile, this.tileWords(tile));
        this.fromMemory.add(tile);
        this.values.delete(tile);
      } else if (kind === "zeros") {
        this.live.set(tile, 0);
        this.values.delete(tile);
        this.within.set(tile, new Set(this.open));
      } else if (kind === "constant") {
        this.hold(tile, this.tileWords(tile));
        this.values.add(tile);
        this.within.set(tile, new Set(this.open));
      } else if (kind === "move") this.move(tile, node[2]);
      else if (kind === "init") this.reach(this.red + 1);
      else if (kind === "delete") {
        this.red -= this.live.get(tile);
        this.live.delete(tile);
      } else if (kind === "compute") this.compute(node);
    }
  }

  move(tile, source) {
    this.red -= this.live.get(tile);
    this.live.set(tile, this.live.get(source));
    this.live.delete(source);
    for (const set of [this.values, this.fromMemory]) {
      if (set.has(source)) set.add(tile);
      else set.delete(tile);
    }
    for (const map of [this.apart, this.within]) {
      map.delete(tile);
      if (map.has(source)) {
        map.set(tile, map.get(source));
        map.delete(source);
      }
    }
  }

  loop([, range, picks, fed, parts, body]) {
    const [, parent, block, first, after] = this.program.ranges[range];
    const all = this.words([parent]), side = this.size(block);
    const begin = first || after === null ? 0 : Math.min(all, this.size(after));
    const whole = (first ? Math.min(all, side) : all) - begin, start = (this.offset.get(parent) ?? 0) + begin;
    if (!whole) return;
    const last = Math.floor((whole - 1) / side), ragged = whole % side > 0 ? 1 : 0;
    const wanted = [[0], [0, last], [0, 1, last - ragged, last]][picks];
    const picked = [...new Set(wanted)].filter((index) => 0 <= index && index <= last).sort((a, b) => a - b);
    const before = parts.map((tile) => [tile, this.values.has(tile), this.within.get(tile) ?? new Set()]);
    this.open.push(range);
    picked.forEach((index, place) => {
      this.offset.set(range, start + index * side);
      this.length.set(range, Math.min(side, whole - index * side));
      for (const [tile, isValue, within] of before) {
        if (isValue) this.values.add(tile);
        else this.values.delete(tile);
        this.within.set(tile, within);
      }
      const held = new Map(this.live);
      this.body(body);
      const following = place + 1 < picked.length ? picked[place + 1] : index + 1;
      if (index > 0) for (const [tile, n] of held) this.hold(tile, (this.live.get(tile) - n) * (following - index - 1));
    });
    this.open.pop();
    for (const tile of fed) if (this.ends(tile)) this.values.add(tile);
  }

  /** Whether a sum is a value, to which terms of another product may be added: behind the outermost loop over its terms. */
  ends(tile) {
    const within = this.within.get(tile) ?? new Set();
    const behind = within.size === this.open.length && this.open.every((range) => within.has(range));
    return behind && !this.fromMemory.has(tile) && this.live.get(tile) === this.tileWords(tile);
  }

  compute([, tile, ranges, mode, kind, ...how]) {
    const elements = this.words(ranges);
    if (kind === "elementwise") {
      this.values.add(tile);
      this.within.set(tile, new Set(this.open));
      this.reach(this.red + how[0] + (mode === "new" ? elements - 1 : 0));
      if (mode === "new") this.hold(tile, elements);
      return;
    }
    const [index, term, toAdd, operands] = how;
    const [left, right] = operands.map((operand) => this.apart.get(operand)), blocksOf = left ?? right;
    const count = this.words([index]), dim = this.program.ranges[index][0];
    if (mode === "new") {
      this.within.set(tile, new Set(this.open));
      if (!this.live.has(tile)) this.live.set(tile, 0);
    }
    const within = this.within.get(tile) ?? new Set(), scope = this.scope(index, within);
    let first = (this.offset.get(index) ?? 0) - (this.offset.get(scope) ?? 0), terms = this.words([scope]), started = false;
    if (mode === "new" || this.values.has(tile)) started = mode !== "new";
    else if (this.fromMemory.has(tile)) {
      [first, terms, started] = [this.offset.get(index) ?? 0, this.sizes[dim], true];
    } else if (blocksOf !== undefined) {
      const [cut, , size] = this.program.ranges[blocksOf], block = this.size(size);
      first += Math.floor(this.offset.get(blocksOf) / block) * terms;
      terms *= Math.ceil(this.sizes[cut] / block);
    }
    if (this.program.ranges[scope][1] >= 0 && !started) this.apart.set(tile, scope);
    const held = (done) => (done === terms || done > 0 || started ? 1 : 0);
    let peak = 0;
    for (let done = first; done < Math.min(first + count, first + 2); done++) {
      peak = Math.max(peak, held(done) + (done > 0 || started ? toAdd : term));
    }
    const [before, after] = [held(first), held(first + count)];
    this.reach(this.red - elements * before + (elements - 1) * Math.max(before, after) + peak);
    this.hold(tile, elements * (after - before));
  }

  /** All that a sum goes over: the tile of a loop that ran already when it began, or a whole dimension. */
  scope(index, within) {
    for (;;) {
      const [, parent, , first] = this.program.ranges[index];
      if (parent < 0 || (within.has(index) && !first)) return index;
      index = parent;
    }
  }
}

/** Phases of a schedule whose blocks are chosen together, at some sizes. */
class Part {
  constructor(part, program, sizes) {
    Object.assign(this, { ...part, program, sizes, matter: new Set(part.matter), known: new Map() });
    this.cutSizes = Object.fromEntries(Object.entries(part.cuts).map(([name, dims]) => [name, dims.length ? dims.map((dim) => sizes[dim]) : [1]]));
    this.blocks = part.groups.flat();
    const ones = { ...sizes, ...Object.fromEntries(this.blocks.map((name) => [name, 1])) };
    this.small = part.words.doubles(ones) < LARGEST_DOUBLE;
    this.climbed = new Map();
  }

  cap(name) { return Math.max(...this.cutSizes[name]); }
  moved(blocks) {
    const s = { ...this.sizes, ...blocks };
    return this.small ? this.words.doubles(s) : this.words.exact(asBig(s));
  }
  atLeast(blocks) { return this.least({ ...this.sizes, ...blocks }); }
  atMost(blocks) { return this.most({ ...this.sizes, ...blocks }); }
  room(blocks) {
    const key = this.blocks.map((name) => blocks[name]).join();
    if (!this.known.has(key)) this.known.set(key, new Occupancy(this.program, this.phases, { ...this.sizes, ...blocks }).peak);
    return this.known.get(key);
  }
  fits(M, blocks) { return this.atMost(blocks) <= M || (this.atLeast(blocks) <= M && this.room(blocks) <= M); }

  /** The largest size up to `cap` for which the blocks grown(size) fit; 0 if there is none. */
  largest(M, grown, cap) {
    const halves = Object.values(this.cutSizes).flat().map((cut) => Math.floor(cut / 2)).filter((cut) => cut < cap);
    const edges = [...new Set([0, cap, ...halves])].sort((a, b) => a - b);
    for (let place = edges.length - 1; place > 0; place--) {
      const [low, high] = [edges[place - 1], edges[place]];
      const top = lastThat((size) => this.atLeast(grown(size)) <= M, low, high);
      const sure = lastThat((size) => this.atMost(grown(size)) <= M, low, top);
      const size = lastThat((each) => this.room(grown(each)) <= M, sure, top);
      if (size > low) return size;
    }
    return 0;
  }

  /** The blocks, by the rule "fit"; `ones` are all blocks of one index. */
  fit(M, ones) {
    let best = this.inOrder(M, ones);
    if (this.groups.filter((group) => group.some((name) => this.matter.has(name))).length > 1) {
      best = this.shared(M, ones, this.blocks.filter((name) => this.matter.has(name)), best);
    }
    return this.filled(M, best, this.groups.map((group) => group.filter((name) => best[name] === 1)));
  }

  /** Blocks that do not change the words, as large as there is room for. */
  filled(M, blocks, groups) {
    for (const group of groups.map((each) => each.filter((name) => !this.matter.has(name)))) {
      if (!group.length) continue;
      const from = blocks, grown = (size) => ({ ...from, ...Object.fromEntries(group.map((name) => [name, Math.min(size, this.cap(name))])) });
      blocks = grown(Math.max(1, this.largest(M, grown, Math.max(...group.map((name) => this.cap(name))))));
    }
    return blocks;
  }

  /** The blocks with the fewest words; `start` are those of "fit". */
  best(M, start) {
    const names = this.blocks.filter((name) => this.matter.has(name)), rest = this.blocks.filter((name) => !this.matter.has(name));
    if (names.length < 2) return start; // "fit" has looked at all sizes
    const search = new BlockSearch(this, M, names, start, { ...start, ...Object.fromEntries(rest.map((name) => [name, 1])) });
    search.climb();
    search.prove();
    return search.best === start ? start : this.filled(M, search.best, rest.map((name) => [name]));
  }

  inOrder(M, ones) {
    let best = ones, least = this.moved(ones), end = ones;
    for (const group of this.groups) {
      const from = end, most = Math.max(...group.map((name) => this.cap(name)));
      const grown = (size) => ({ ...from, ...Object.fromEntries(group.map((name) => [name, Math.min(size, this.cap(name))])) });
      const limit = this.largest(M, grown, most);
      end = grown(limit);
      const words = this.moved(end);
      if (words <= least) [best, least] = [end, words];
      if (limit < most) break;
    }
    return best;
  }

  shared(M, ones, names, start) {
    const search = new BlockSearch(this, M, names, start, ones);
    search.climb();
    if (search.prove()) return search.best;
    let best = start, least = this.moved(start);
    for (let words = 1; words <= M; words *= 2) {
      if (!this.fits(words, ones)) continue;
      if (!this.climbed.has(words)) {
        const found = new BlockSearch(this, words, names, ones, ones);
        found.climb();
        this.climbed.set(words, found.best);
      }
      const blocks = this.climbed.get(words), moved = this.moved(blocks);
      if (moved <= least) [best, least] = [blocks, moved];
    }
    return best;
  }
}

/** Blocks of a part that compete for the cache: a local search, then a proof that none is better. */
class BlockSearch {
  constructor(part, M, names, start, others) {
    Object.assign(this, { part, M, names, others, best: start, least: part.moved(start) });
    this.caps = Object.fromEntries(names.map((name) => [name, part.cap(name)]));
  }

  with(changed) { return { ...this.others, ...changed }; }

  consider(blocks) {
    const made = { ...blocks };
    for (const name of this.names) made[name] = this.smaller(name, made[name]);
    const words = this.part.moved(made);
    if (words >= this.least || !this.part.fits(this.M, made)) return false;
    [this.best, this.least] = [made, words];
    return true;
  }

  /** The smallest block with the same numbers of tiles. */
  smaller(name, size) {
    if (this.part.enumerate.includes(name)) return size;
    return Math.max(...this.part.cutSizes[name].map((cut) => Math.ceil(cut / Math.ceil(cut / size))));
  }

  climb() {
    const { names, part } = this, ones = this.with(Object.fromEntries(names.map((name) => [name, 1])));
    names.forEach((_, first) => {
      let blocks = ones;
      for (const name of [...names.slice(first), ...names.slice(0, first)]) {
        this.consider(blocks);
        blocks = this.withLargest(blocks, name);
      }
      this.consider(blocks);
    });
    const all = (size) => this.with(Object.fromEntries(names.map((name) => [name, Math.min(size, this.caps[name])])));
    this.consider(all(lastThat((size) => part.fits(this.M, all(size)), 1, Math.max(...Object.values(this.caps)))));
    for (const divisor of [1, 2, 5, 12, 30, 80, null]) while (this.anyOf(this.steps(divisor)));
  }

  anyOf(steps) {
    for (const blocks of steps) if (this.consider(blocks)) return true;
    return false;
  }

  withLargest(blocks, name) {
    const size = this.part.largest(this.M, (each) => ({ ...blocks, [name]: each }), this.caps[name]);
    return { ...blocks, [name]: Math.max(1, size) };
  }

  *steps(divisor) {
    const base = this.with(Object.fromEntries(this.names.map((name) => [name, this.best[name]])));
    for (const name of this.names) {
      const size = base[name], cap = this.caps[name], tiles = Math.ceil(cap / size);
      const sizes = divisor === null
        ? [-1, 0, 1].flatMap((step) => [size + step, Math.ceil(cap / Math.max(1, tiles + step))])
        : [size + Math.floor(size / divisor), Math.floor((size * divisor) / (divisor + 1))];
      for (const other of [...new Set(sizes)].sort((a, b) => a - b)) {
        if (other < 1 || other === size) continue;
        const blocks = { ...base, [name]: Math.min(cap, other) };
        for (const further of this.names) if (further !== name) yield this.withLargest(blocks, further);
      }
    }
  }

  /** Looks at boxes of sizes, the most promising first; whether it is proved that none has better blocks. */
  prove() {
    const ones = this.with(Object.fromEntries(this.names.map((name) => [name, 1])));
    const boxes = [{ bound: 0, low: ones, high: this.tightened(ones, { ...ones, ...this.caps }) }];
    this.consider(boxes[0].high);
    for (let looked = 0; looked < MOST_BOXES; looked++) {
      if (!boxes.length) return true;
      let place = 0;
      boxes.forEach((box, at) => { if (box.bound < boxes[place].bound) place = at; });
      const [box] = boxes.splice(place, 1);
      if (box.bound >= this.least) return true;
      for (const half of this.halves(box.low, box.high)) {
        if (half.bound >= this.least) continue;
        this.consider(half.high);
        if (half.bound < this.least && this.names.some((name) => half.low[name] !== half.high[name])) boxes.push(half);
      }
    }
    return false;
  }

  halves(low, high) {
    let chosen = null;
    for (const name of this.names) {
      if (low[name] >= high[name]) continue;
      const middle = Math.floor(Math.sqrt(low[name] * high[name])), halves = [];
      for (const [first, last] of [[low, { ...high, [name]: middle }], [{ ...low, [name]: middle + 1 }, high]]) {
        if (this.part.atLeast(first) > this.M) continue;
        const tight = this.tightened(first, last);
        halves.push({ bound: this.part.moved(tight), low: first, high: tight });
      }
      const bounds = halves.map((half) => half.bound).sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
      const key = [halves.length < 2 ? 1 : 0, halves.length, ...bounds, high[name] / low[name]];
      if (chosen === null || above(key, chosen.key)) chosen = { key, halves };
    }
    return chosen === null ? [] : chosen.halves;
  }

  tightened(low, high) {
    const sizes = {};
    for (const name of this.names) {
      const size = lastThat((each) => this.part.atLeast({ ...low, [name]: each }) <= this.M, low[name], high[name]);
      sizes[name] = Math.max(low[name], this.smaller(name, size));
    }
    return { ...high, ...sizes };
  }
}

/** Whether a key comes after another in the order of lists. */
function above(key, other) {
  for (let place = 0; place < Math.min(key.length, other.length); place++) {
    if (key[place] !== other[place]) return key[place] > other[place];
  }
  return key.length > other.length;
}

/** A schedule at some sizes: its blocks, words and cache for any M. */
class AtSizes {
  constructor(schedule, sizes) {
    Object.assign(this, { schedule, sizes });
    this.parts = schedule.parts.map((part) => new Part(part, schedule.program, sizes));
    this.ones = Object.fromEntries(schedule.blocks.map((name) => [name, 1]));
    this.needs = this.peak(this.ones);
  }

  peak(blocks) {
    const { program } = this.schedule;
    return new Occupancy(program, program.phases.keys(), { ...this.sizes, ...blocks }).peak;
  }

  /** The largest blocks that fit into M words of cache; null if M is too small. */
  fitting(M) {
    if (this.needs > M) return null;
    return this.parts.reduce((blocks, part) => ({ ...blocks, ...part.fit(M, blocks) }), this.ones);
  }

  /** The best blocks for M words of cache; null if M is too small. */
  blocks(M) {
    const fit = this.fitting(M);
    return fit && this.parts.reduce((blocks, part) => ({ ...blocks, ...part.best(M, blocks) }), fit);
  }

  /** The words moved with these blocks, under a mask if one is given, as a whole number. */
  words(blocks, masked) {
    const s = asBig({ ...this.sizes, ...blocks });
    return (masked ? this.schedule.masked : this.schedule.words)(s);
  }
}
