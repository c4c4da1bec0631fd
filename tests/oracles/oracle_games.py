"""The least I/O of a small game, by Dijkstra over single moves, written from the words of the rules alone."""

from heapq import heappop, heappush
from itertools import count

from pebblesim.graphs.cdag import Cdag


def least_io(graph: Cdag, M: int, rules: str) -> int | None:
    """Every set of red, of blue and of computed vertices (under `partial`, terms) is a state; None if infeasible."""
    n = graph.vertices
    inputs, outputs = frozenset(graph.inputs.tolist()), frozenset(graph.outputs.tolist())
    preds = [frozenset(graph.predecessors(v).tolist()) for v in range(n)]
    weights = [1] * n if graph.weights is None else graph.weights.tolist()
    by_term = rules == "partial"
    start = (frozenset(), inputs, frozenset())
    queue, best, ties = [(0, 0, start)], {start: 0}, count(1)

    def complete(v, terms):
        return v in inputs or (preds[v] or {-1}) <= {u for u, w in terms if w == v}

    while queue:
        io, _, state = heappop(queue)
        red, blue, done = state
        if best[state] < io:
            continue
        if outputs <= blue and (not by_term or all(complete(v, done) for v in outputs)):
            return io
        room = M - sum(weights[v] for v in red)
        moves = []
        for v in range(n):
            if v in red:
                moves.append((0, (red - {v}, blue, done)))
                # Under `replace` a write takes the red pebble, and a read the blue one.
                moves.append((weights[v], (red - {v} if rules == "replace" else red, blue | {v}, done)))
            elif weights[v] <= room:
                if v in blue:
                    moves.append((weights[v], (red | {v}, blue - {v} if rules == "replace" else blue, done)))
                if not by_term and v not in inputs and preds[v] <= red and v not in done:
                    once = done | {v} if rules == "no-recompute" else done
                    moves.append((0, (red | {v}, blue, once)))
            if by_term and v not in inputs:
                begun = any(w == v for _, w in done)
                if v in red or (not begun and weights[v] <= room):
                    for u in preds[v] or {-1}:
                        if (u, v) not in done and (u < 0 or (u in red and complete(u, done))):
                            moves.append((0, (red | {v}, blue - {v}, done | {(u, v)})))
        for cost, after in moves:
            if io + cost < best.get(after, 1 << 30):
                best[after] = io + cost
                heappush(queue, (io + cost, next(ties), after))
    return None
