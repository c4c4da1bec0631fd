"use strict";
// Attention as its definition says, without tiles: what a schedule's outputs are compared with. Matrices are by rows.

/** The same numbers each time, between -1 and 1. */
function drawnNumbers(count, seed) {
  let state = seed >>> 0;
  return Float64Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  });
}

/** C = A B of an a x b and a b x c matrix; with a flag, the transpose of either is taken. */
function times2(A, B, [a, b, c], turnedA = false, turnedB = false) {
  const made = new Float64Array(a * c);
  for (let i = 0; i < a; i++) {
    for (let j = 0; j < c; j++) {
      for (let k = 0; k < b; k++) made[i * c + j] += (turnedA ? A[k * a + i] : A[i * b + k]) * (turnedB ? B[j * b + k] : B[k * c + j]);
    }
  }
  return made;
}

/** All tensors of the forward and the backward pass of one head: { name: { shape, values } }. */
function attention(n, d) {
  const made = {}, rows = (values, f) => Float64Array.from({ length: n }, (_, i) => f([...values.subarray(i * n, i * n + n)]));
  const [Q, K, V, dO] = [1, 2, 3, 4].map((seed) => drawnNumbers(n * d, seed));
  const S = times2(Q, K, [n, d, n], false, true), m = rows(S, (row) => Math.max(...row));
  const L = rows(S, (row) => { const most = Math.max(...row); return most + Math.log(row.reduce((sum, each) => sum + Math.exp(each - most), 0)); });
  const P = S.map((each, place) => Math.exp(each - L[Math.floor(place / n)])), O = times2(P, V, [n, n, d]);
  const dP = times2(dO, V, [n, d, n], false, true), v = rows(P.map((each, place) => each * dP[place]), (row) => row.reduce((sum, each) => sum + each, 0));
  const dS = P.map((each, place) => each * (dP[place] - v[Math.floor(place / n)]));
  const [dQ, dK, dV] = [times2(dS, K, [n, n, d]), times2(dS, Q, [n, n, d], true), times2(P, dO, [n, n, d], true)];
  const l = L.map(Math.exp), l_m = L.map((each, i) => Math.exp(each - m[i]));
  for (const [name, values] of Object.entries({ Q, K, V, dO, O, dQ, dK, dV })) made[name] = { shape: ["n", "d"], values };
  for (const [name, values] of Object.entries({ S, P, dP, dS })) made[name] = { shape: ["n", "n"], values };
  for (const [name, values] of Object.entries({ m, l, l_m, L, v })) made[name] = { shape: ["n"], values };
  return made;
}

const CHECKED = ["O", "dQ", "dK", "dV"];

/**
 * A schedule played on one head: a Machine that has run. `tensors` are the shapes of those that memory has room for.
 * `wrong` is the first line that is illegal, or what is missing or false at the end.
 */
function played(text, sizes, M, { tensors, inputs, outputs }) {
  const truth = attention(sizes.n, sizes.d);
  let phases;
  try {
    phases = parse(text);
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    return { wrong: error, steps: [], reads: 0, writes: 0, red: 0, peak: 0, by: {}, memory: new Map(), unread: true };
  }
  const given = Object.fromEntries(Object.entries(tensors).map(([name, shape]) => [name, { shape, values: inputs.includes(name) ? truth[name].values : null }]));
  const ran = new Machine(phases, sizes, M, given).run();
  if (!ran.wrong) ran.wrong = falseAtTheEnd(ran, outputs, truth, text.trimEnd().split("\n").length - 1);
  return ran;
}

function falseAtTheEnd({ memory, sizes }, outputs, truth, last) {
  for (const name of outputs) {
    const tensor = memory.get(name), missing = tensor ? tensor.there.indexOf(0) : 0;
    if (missing < 0) continue;
    const width = tensor && tensor.shape.length < 2 ? 1 : sizes.d;
    return new Wrong(last, `at the end ${name}[${Math.floor(missing / width)}${width > 1 ? `, ${missing % width}` : ""}] is not in memory: the output is not complete`);
  }
  for (const name of outputs.filter((each) => CHECKED.includes(each))) {
    const { values } = memory.get(name), expected = truth[name].values;
    const place = values.findIndex((each, at) => !(Math.abs(each - expected[at]) <= 1e-9 * (1 + Math.abs(expected[at]))));
    if (place < 0) continue;
    return new Wrong(last, `every line is legal, but the result is false: ${name}[${Math.floor(place / sizes.d)}, ${place % sizes.d}] is ${values[place].toFixed(4)}, and should be ${expected[place].toFixed(4)}`);
  }
  return null;
}
