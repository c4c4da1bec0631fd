"use strict";
// What a view of the page counts: sizes of one problem, its words and its lower bound, times the heads.

/** The sizes that a view stands for: H/G heads that share keys and values are one head with H/G times the queries. */
function sizesOf(view, problem) {
  const R = problem.shared ? view.heads / view.kvHeads : 1;
  return { n_q: view.queries * R, n_k: view.keys, d: view.d, d_k: view.d, d_v: view.d, R, W: view.window ?? 0 };
}

/** The number of problems that share nothing. */
function timesOf(view, problem) { return BigInt(problem.shared ? view.kvHeads : view.heads); }

/** Why a view cannot be counted; empty if it can. */
function refusal(view, problem) {
  const wrong = ["queries", "keys", "d", "heads", "kvHeads", "M"].find((name) => !(view[name] >= 1));
  if (wrong) return `${LABELS[wrong]}: a whole number, 1 or more; 64k, 1M and 2^20 are understood${wrong === "M" ? ", and bytes, such as 227KiB" : ""}.`;
  if (view.heads % view.kvHeads) return `${view.heads} heads cannot share ${view.kvHeads} KV heads evenly.`;
  if (view.window !== undefined && !(view.window >= 1)) return "window: a whole number of keys, 1 or more.";
  if (view.window && view.queries !== view.keys) return "The page counts a window for as many queries as keys; `pebblesim count --mask window:W` takes others.";
  if (view.masked && view.queries > view.keys) return "A causal mask is aligned at the end: it needs no more queries than keys.";
  if (Math.max(view.queries * (view.heads / view.kvHeads), view.keys) > 2 ** 24) return "The page counts up to 16M queries and keys; pebblesim count takes any size.";
  if (view.d > 2 ** 16) return "The page counts head dimensions up to 64k; pebblesim count takes any size.";
  return "";
}

const LABELS = { queries: "queries", keys: "keys", d: "head dimension", heads: "heads", kvHeads: "KV heads", M: "cache" };

/** The largest closed form of the bounds of each way of computing, and the least of these: it holds for every way. */
function boundOf(problem, sizes, M, masked) {
  const shape = sizes.n_q === sizes.n_k ? "equal" : sizes.n_q < sizes.n_k ? "fewer" : "more";
  const s = asBig({ ...sizes, M }), positions = s.n_q / s.R;
  const seen = s.W ? leastBig(s.W, s.n_k) : s.n_k, unseen = s.W ? seen : positions; // by the last position; positions that see fewer
  Object.assign(s, { Z: s.R * (positions * seen - (unseen * (unseen - 1n)) / 2n), r: s.n_q, c: s.n_k, tau: s.n_q });
  let least = null;
  for (const [way, bounds] of Object.entries(problem.bounds[masked ? `${shape} masked` : shape])) {
    let best = null;
    for (const { name, source, provedFor, forms } of bounds) {
      if (provedFor !== null && !provedFor(s)) continue;
      for (const form of forms) {
        if (!form.holds(s)) continue;
        const value = form.value(s);
        if (best === null || value > best.value) best = { value, name, source, way, text: form.text };
      }
    }
    if (least === null || best.value < least.value) least = best;
  }
  return least;
}

/** A problem at the sizes of a view, for any M. */
class Counts {
  constructor(problem, view) {
    Object.assign(this, { problem, view, masked: view.masked, sizes: sizesOf(view, problem), times: timesOf(view, problem) });
    this.schedules = problem.schedules.filter((schedule) => !this.masked || schedule.masked !== null);
    this.at = this.schedules.map((schedule) => new AtSizes(schedule, this.sizes));
    this.known = new Map();
  }

  /** The row of a schedule at M: blocks, words of all heads; null if M is too small. */
  row(number, M) {
    const key = `${number} ${M}`;
    if (!this.known.has(key)) {
      const at = this.at[number], blocks = at.blocks(M);
      this.known.set(key, blocks && { number, schedule: at.schedule, blocks, words: this.times * at.words(blocks, this.masked) });
    }
    return this.known.get(key);
  }

  bound(M) {
    const bound = boundOf(this.problem, this.sizes, M, this.masked);
    return { ...bound, value: bound.value * this.times };
  }

  /** All rows at M, the fewest words first; then those that do not fit. */
  rows(M) {
    const rows = this.at.map((_, number) => this.row(number, M));
    return rows.filter(Boolean).sort((a, b) => (a.words < b.words ? -1 : a.words > b.words ? 1 : a.number - b.number));
  }

  /** The least M that any schedule fits into, if it is below this one. */
  firstFit(M) { return Math.min(M, ...this.at.map((at) => at.needs)); }

  winner(M) { return this.rows(M)[0] ?? null; }

  /** The least M above `low`, which is above another winner, at which the winner of `high` wins. */
  crossing(low, high) {
    const after = this.winner(high).number;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (this.winner(middle)?.number === after) high = middle;
      else low = middle;
    }
    return high;
  }
}
