"""The least I/O of a small graph without recomputation, set by set of what is computed; no queue, no single moves.

Between two computations a game is described by what is computed, what is red and what of it was written. Values are
written when they are computed or never, read only for the next computation, and leave only when their place is needed:
any game can be rearranged so and costs no more.
"""

from itertools import combinations

from pebblesim.graphs.cdag import Cdag


def least_by_layers(graph: Cdag, M: int) -> int:
    """Return the least I/O; M must be feasible. Vertices are numbered in a topological order."""
    n = graph.vertices
    inputs, outputs = set(graph.inputs.tolist()), set(graph.outputs.tolist())
    operands = [0 if v in inputs else sum(1 << u for u in set(graph.predecessors(v).tolist())) for v in range(n)]
    wanted = 0
    for v in reversed(range(n)):
        if v not in inputs and (v in outputs or any(wanted >> w & 1 and operands[w] >> v & 1 for w in range(v, n))):
            wanted |= 1 << v
    todo = [v for v in range(n) if wanted >> v & 1]
    users = [sum(1 << w for w in todo if operands[w] >> u & 1) for u in range(n)]
    given, final = sum(1 << v for v in inputs), sum(1 << v for v in outputs)
    layer = {(0, 0, given): 0}  # computed, red, readable -> words
    for _ in todo:
        after: dict[tuple[int, int, int], int] = {}
        for (done, red, readable), words in layer.items():
            for v in todo:
                needs = operands[v]
                missing = needs & ~red
                if done >> v & 1 or needs & ~(done | given) or missing & ~readable:
                    continue
                now = done | 1 << v
                others = [u for u in range(n) if (red & ~needs) >> u & 1]
                useful = {u for u in range(n) if users[u] & ~now}
                others = [u for u in others if u in useful]
                place = M - 1 - needs.bit_count()
                cost = words + missing.bit_count() + (final >> v & 1)
                for keep in combinations(others, min(place, len(others))):
                    if any(not readable >> u & 1 and u not in keep for u in others):
                        continue
                    held = sum(1 << u for u in (*keep, v, *(u for u in range(n) if needs >> u & 1)) if u in useful)
                    ways = [(readable | (final & 1 << v), cost)]
                    if v in useful and not final >> v & 1:
                        ways.append((readable | 1 << v, cost + 1))
                    for there, total in ways:
                        state = (now, held, there)
                        if total < after.get(state, 1 << 60):
                            after[state] = total
        layer = after
    return min(layer.values())
