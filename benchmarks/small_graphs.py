"""Hold all bounds, games and proven optima of small drawn graphs against a solver of its own, for each rule set.

    .venv/bin/python benchmarks/small_graphs.py --seed 46 --number 9000 --record counts.json

Each case is a graph of 3 to 8 vertices, some of whose sources may be no inputs and some of whose outputs may have uses,
a rule set, and M from the least that is possible up to two words more. The solver goes through all states of a game,
one word after the other, and shares nothing with the package but the graph. No bound may exceed what it finds,
`optimum` must prove just that, and no game of `pebble` may move fewer words. The bounds that exceed the compulsory
words are counted. The exit status is 1 if any of this is not so. A record is written after every hundred cases; a
second call with the same seed and record goes on there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numba
import numpy as np

from pebblesim.core.errors import Infeasible
from pebblesim.core.files import whole_file
from pebblesim.dags.bounds import lower_bounds
from pebblesim.dags.optimum import optimum
from pebblesim.dags.orders import Task
from pebblesim.dags.search import pebble
from pebblesim.graphs.cdag import Cdag

RULES = ("hong-kung", "no-recompute", "replace", "partial")
SEARCHED = ("hong-kung", "no-recompute", "partial")
"""Rule sets under which games and optima are searched."""

MOST, MOST_BITS = 8, 23
"""Most vertices, and most bits of a state: two for a vertex, and one for what may be computed once."""


@numba.njit(cache=False)
def _least(n: int, M: int, rules: int, needs: Any, vertex: Any, inputs: int, outputs: int, most: Any) -> int:
    """The least words of all games: all states that so many words reach, then those that one more reaches.

    A state is the red vertices, the blue ones, and what was computed: vertices, or terms under `partial`. Thing k to
    compute, of vertex[k], needs the vertices needs[k] red; most[v] are all things of vertex v.
    """
    red_of, things = (1 << n) - 1, len(vertex)
    seen = np.zeros(1 << (2 * n + (things if rules in (1, 3) else 0)), dtype=np.uint8)
    now, after = [inputs << n], [0]
    after.pop()
    for words in range(4 * n * n):
        while len(now):
            state = now.pop()
            if seen[state]:
                continue
            seen[state] = 1
            red, blue, done = state & red_of, (state >> n) & red_of, state >> (2 * n)
            whole = inputs
            for v in range(n):
                if rules == 3 and not (inputs >> v) & 1 and done & most[v] == most[v]:
                    whole |= 1 << v
            if blue & outputs == outputs and (rules != 3 or whole & outputs == outputs):
                return words
            number = 0
            for v in range(n):
                number += (red >> v) & 1
            for v in range(n):
                one = 1 << v
                if red & one:
                    now.append(state & ~one)
                    after.append((state | one << n) & ~one if rules == 2 else state | one << n)
                elif blue & one and number < M:
                    after.append((state | one) & ~(one << n) if rules == 2 else state | one)
            for k in range(things):
                one = 1 << vertex[k]
                if needs[k] & ~red:
                    continue
                if rules == 3:
                    begun, thing = done & most[vertex[k]], 1 << k
                    if not done & thing and not needs[k] & ~whole and (red & one or (not begun and number < M)):
                        now.append((state | one | thing << (2 * n)) & ~(one << n))
                elif not red & one and number < M and not (rules == 1 and (done >> k) & 1):
                    now.append(state | one | ((1 << k) << (2 * n) if rules == 1 else 0))
        now, after = after, now
    return -1


def least_words(graph: Cdag, M: int, rules: str) -> int | None:
    """Return the least words of all games on a graph of few vertices; None if there is no game."""
    inputs = {*graph.inputs.tolist()}
    computed = [v for v in range(graph.vertices) if v not in inputs]
    before = {v: sorted({*graph.predecessors(v).tolist()}) for v in computed}
    if rules == "partial":  # a vertex without operands has one term all the same
        things = [(v, operands) for v in computed for operands in ([u] for u in before[v])]
        things += [(v, []) for v in computed if not before[v]]
    else:
        things = [(v, before[v]) for v in computed]
    needs = np.array([sum(1 << u for u in operands) for _, operands in things], dtype=np.int64)
    vertex = np.array([v for v, _ in things], dtype=np.int64)
    most = np.array([sum(1 << k for k, (v, _) in enumerate(things) if v == w) for w in range(graph.vertices)])
    marks = (sum(1 << int(v) for v in some) for some in (inputs, graph.outputs.tolist()))
    found = _least(graph.vertices, M, RULES.index(rules), needs, vertex, *marks, most)
    return None if found < 0 else int(found)


def bits(graph: Cdag, rules: str) -> int:
    """Return the bits of a state."""
    more = graph.edges + graph.vertices if rules == "partial" else graph.vertices if rules == "no-recompute" else 0
    return 2 * graph.vertices + more


def drawn(dice: random.Random, most: int) -> Cdag:
    """Draw a graph: any pairs in order, or a sum to which few inputs are added again and again."""
    n, density = dice.choice([*range(3, most), *[most] * 4]), dice.choice([0.25, 0.35, 0.45])
    edges = {(u, v) for v in range(1, n) for u in range(v) if dice.random() < density}
    if dice.random() < 0.5:
        first = dice.randint(1, min(3, n - 1))
        edges = {(dice.randrange(first), v) for v in range(first, n)} | {(v - 1, v) for v in range(first + 1, n)}
    edges = edges or {(0, n - 1)}
    sources = sorted({*range(n)} - {v for _, v in edges})
    sinks = {*range(n)} - {u for u, _ in edges}
    inputs = sources if dice.random() < 0.8 else sources[1:]
    return Cdag.from_edges(
        n, sorted(edges), inputs, sorted(sinks | ({dice.randrange(n)} if dice.random() < 0.3 else set()))
    )


def judged(seed: int, number: int, rules: str, told: Counter[str]) -> str:
    """Judge one case, count which bounds bite, and say what is wrong; nothing if all is right."""
    dice = random.Random(f"{seed} {number} {rules}")
    graph = drawn(dice, MOST)
    while bits(graph, rules) > MOST_BITS:
        graph = drawn(dice, MOST)
    try:
        M = Task(graph, 2**40, rules).least_M + dice.choice([0, 0, 1, 2])
        bounds = lower_bounds(graph, M, rules, 0.2)
    except Infeasible:
        return ""
    least, told["cases"] = least_words(graph, M, rules), told["cases"] + 1
    if least is None:
        return f"{rules}, M = {M}: no game, edges {graph.edges}"
    compulsory = bounds[0].value
    told["above the compulsory words"] += least > compulsory
    for bound in bounds:
        told[bound.name] += bound.value > compulsory
    wrong = [f"{bound.name} {bound.value}" for bound in bounds if bound.value > least]
    if rules in SEARCHED:
        proved, game = optimum(graph, M, rules), pebble(graph, M=M, rules=rules, seconds=0, steps=2)
        wrong += [] if proved.bound == proved.io == least else [f"optimum {proved.bound} to {proved.io}"]
        wrong += [] if game.io >= least else [f"pebble {game.io}"]
    return f"case {number}, {rules}, M = {M}: {least} words, but {', '.join(wrong)}" if wrong else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--number", type=int, default=1_000, help="of cases for each rule set")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end after these, at a whole round of rules"
    )
    parser.add_argument("--record", type=Path, help="a file for the counts, from which a second call goes on")
    given = parser.parse_args()
    start, first, wrong = time.monotonic(), 0, list[str]()
    told = {rules: Counter[str]() for rules in RULES}
    if given.record and given.record.exists():
        known = json.loads(given.record.read_text(encoding="utf-8"))
        if known["seed"] != given.seed:
            parser.error(f"{given.record} is of seed {known['seed']}; give this seed, or another file")
        first, wrong, told = known["next"], known["wrong"], {rules: Counter(known[rules]) for rules in RULES}
    for number in range(first, given.number):
        if time.monotonic() - start > given.seconds:
            break
        for rules in RULES:
            if says := judged(given.seed, number, rules, told[rules]):
                wrong.append(says)
                print(says, flush=True)
        if given.record and (number % 100 == 99 or number == given.number - 1):
            with whole_file(given.record) as path:
                path.write_text(json.dumps({"seed": given.seed, "next": number + 1, "wrong": wrong} | told))
    for rules, counts in told.items():
        rest = ", ".join(f"{name} {times:,}" for name, times in counts.most_common() if times and name != "cases")
        print(f"{rules}: {counts['cases']:,} graphs; {rest}")
    print(f"{len(wrong)} wrong; {time.monotonic() - start:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
