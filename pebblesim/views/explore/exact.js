"use strict";
// Exact arithmetic: whole numbers of any length, quotients rounded up, square roots, and tiles under a mask.

const upBig = (a, b) => (a > 0n ? (a + b - 1n) / b : -(-a / b));
const downBig = (a, b) => -upBig(-a, b);
const leastBig = (first, ...others) => others.reduce((a, b) => (b < a ? b : a), first);
const mostBig = (first, ...others) => others.reduce((a, b) => (b > a ? b : a), first);
const { min, max } = Math;
const up = (a, b) => Math.ceil(a / b); // of whole numbers below 2^52, whose quotient is rounded to no other side

/** The largest whole number whose square is at most a. */
function root(a) {
  if (a < 2n) return a;
  let x = 1n << BigInt((a.toString(2).length + 1) >> 1);
  for (;;) {
    const y = (x + a / x) >> 1n;
    if (y >= x) return x;
    x = y;
  }
}

/** Σ over i < n of ⌊(a·i + b) / m⌋, for a, b ≥ 0. */
function floorSum(n, m, a, b) {
  let total = 0n;
  while (n > 0n) {
    total += ((n * (n - 1n)) / 2n) * (a / m) + n * (b / m);
    a %= m;
    b %= m;
    const all = a * n + b;
    n = all / m;
    b = all % m;
    [m, a] = [a, m];
  }
  return total;
}

/**
 * Σ height^p·width^q over the tiles of a x b that a causal mask leaves, aligned at the end; null is a whole side.
 * The s.R rows of a position are adjacent: R heads that share their keys. Each row of a window sees s.W keys, if any.
 */
function causal(s, a, p, b, q) {
  const [rows, columns, R] = [s.n_q, s.n_k, s.R];
  a = a === null ? rows : leastBig(a, rows);
  b = b === null ? columns : leastBig(b, columns);
  const shift = columns - rows / R, tall = upBig(rows, a), wide = upBig(columns, b);
  const seen = (end) => mostBig(0n, (end - 1n) / R + 1n + shift); // columns that the rows up to `end` see
  const width = (tiles) => (q ? leastBig(columns, b * tiles) : tiles);
  const full = tall - 1n; // tiles of a rows, before the last one
  const first = shift >= 0n ? 0n : leastBig(full, (-shift * R) / a); // those before it see nothing
  const count = full - first;
  let sum = count > 0n ? floorSum(count, b * R, a, a * (first + 1n) - 1n + R * (shift + b)) : 0n;
  if (q) {
    const whole = mostBig(first, upBig(R * (b * (wide - 1n) - shift) + 1n, a) - 1n); // from here on all are seen
    sum = sum * b - (whole < full ? (full - whole) * (b * wide - columns) : 0n);
  }
  return (p ? a : 1n) * sum + (p ? rows - full * a : 1n) * width(upBig(seen(rows), b)) - (s.W ? outside(s, a, p, b, q) : 0n);
}

/** Σ height^p·b^q over the tiles of a causal mask that lie before the window of s.W keys, for as many positions as keys. */
function outside(s, a, p, b, q) {
  const [rows, R, hidden] = [s.n_q, s.R, s.W - 1n];
  const full = upBig(rows, a) - 1n, first = upBig(R * hidden, a); // tiles of rows before it see the first key
  const whole = first < full ? floorSum(full - first, R * b, a, a * first - R * hidden) : 0n;
  const begin = mostBig(0n, (full * a) / R - hidden); // the first key that the last tile sees
  return (q ? b : 1n) * ((p ? a : 1n) * whole + (p ? rows - full * a : 1n) * (begin / b));
}

/** ⌈A/B + √(C/D)⌉ for whole numbers, B and D above 0. */
function roundedUp([A, B], square) {
  if (square === null) return upBig(A, B);
  const [C, D] = square, under = C * B * B, floor = root(under / D);
  return floor * floor * D === under ? upBig(A + floor, B) : downBig(A + floor, B) + 1n;
}
