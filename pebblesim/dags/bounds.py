"""Lower bounds on the I/O of any DAG, in exact words. Each bound has its source and the idea of its proof.

Each bound states the rules under which it holds; bounds that are false with recomputation are not used there.
docs/dags.md has short proofs, and tests compare all bounds with proven optima.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from math import floor
from typing import Any, Final

import numpy as np

from pebblesim.core import cp_sat
from pebblesim.core.results import plain
from pebblesim.dags.orders import Task, as_cdag
from pebblesim.dags.task_data import TaskData
from pebblesim.lower_bounds.own import OWN

ANY: Final = ("hong-kung", "no-recompute", "replace", "partial")
AT_ONCE: Final = ("hong-kung", "no-recompute", "replace")
"""Rules under which a vertex is computed from all its predecessors at once."""

ONE_SHOT: Final = ("no-recompute",)
"""Rules under which each vertex is computed at most once, from all its predecessors at once."""

ARCS_IN_A_SECOND: Final = 10**9
"""Arcs that the search of a cut walks over in a second."""

TO_TAKE_OUT: Final = 25
"""Walks over an arc that take as long as to take a part out of the graph, for each arc of this."""

QUICK: Final = 0.2
"""Seconds' worth of walks that wavefronts take, however short the time is, so that one of a usual graph ends."""

MOST_FOR_SPECTRUM: Final = 600
"""Most vertices of a graph whose eigenvalues are computed."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on the I/O of any game on a graph, in words.

    Attributes:
        name: name of the bound.
        value: words; 0 if the bound does not apply, and `why_not` is the reason.
        source: what the bound counts, and who proved it.
        rules: the rule sets under which it holds.
        why_not: why the bound does not apply; empty if it applies.
    """

    name: str
    value: int
    source: str
    rules: tuple[str, ...] = ANY
    why_not: str = ""

    @property
    def recomputation(self) -> bool:
        """Whether the bound holds with recomputation."""
        return "hong-kung" in self.rules

    def to_dict(self) -> dict[str, Any]:
        """Return the bound as plain data."""
        return plain(self, "name", "value", "source", "recomputation", "why_not")


def at_once(data: TaskData) -> list[Bound]:
    """Return the bounds that need no time: the compulsory one."""
    source = "compulsory: each input that is used is read once, each output written once"
    return [Bound("compulsory", data.words, source)]


def slowly(data: TaskData, seconds: float) -> list[Bound]:
    """Return the bounds that need time, as `of_theorems` does, and those of users."""
    bounds = of_theorems(data, seconds)
    bounds += [
        Bound(own.name, own.words(f"this graph at M = {data.M}", data.task.graph, data.M), own.source, own.rules)
        for own in OWN.values()
        if own.problem is None
    ]
    return [bound if data.rules in bound.rules else _off(bound) for bound in bounds]


def of_theorems(data: TaskData, seconds: float) -> list[Bound]:
    """Return the bounds that need time, under all rules.

    Each gets as much work as takes a quarter of these seconds on a processor of 2023 that does nothing else. Work is
    counted, not timed, so no bound depends on the machine, or on what else that does.
    """
    quarter = seconds / 4
    bounds = [products(data), windows(data), trees(data), wavefronts(data, max(quarter, QUICK)), spectral(data)]
    return [*bounds, paths(data, quarter), places(data, quarter), parts(data, quarter), partition(data, quarter)]


def _off(bound: Bound) -> Bound:
    return Bound(bound.name, 0, bound.source, bound.rules, f"it holds only under {', '.join(bound.rules)}")


def largest(bounds: Iterable[Bound]) -> Bound:
    """Return the largest of several bounds; the first one if several are equal."""
    return max(bounds, key=lambda bound: bound.value)


def lower_bounds(graph: Any, M: int, rules: str = "hong-kung", seconds: float = 5.0) -> list[Bound]:
    """Compute all lower bounds on the I/O of a graph.

    Args:
        graph: a `Cdag`, or a networkx DiGraph.
        M: red pebbles, in words.
        rules: "hong-kung", "no-recompute", "replace" or "partial".
        seconds: the work to do, in about the seconds that it takes; the same value gives the same bounds anywhere.

    Raises:
        Infeasible: M is too small for any game.
    """
    data = TaskData(Task(as_cdag(graph), M, rules), M)
    return at_once(data) + slowly(data, seconds)


def products(data: TaskData) -> Bound:
    """Bound by elementary products of two inputs that are added up into outputs, as in a product of matrices."""
    from pebblesim.dags.products import words

    name = "products"
    source = "products: three families to each (Hong & Kung 1981; Loomis & Whitney 1949), also with recomputation"
    why_not = _unfit(data, AT_ONCE)
    return Bound(name, 0 if why_not else words(data), source, AT_ONCE, why_not)


def windows(data: TaskData) -> Bound:
    """Bound by what is read between fronts of the graph; without recomputation, of values computed before, too."""
    from pebblesim.dags.windows import MOST_VERTICES, words

    name, n = "windows", data.task.graph.vertices
    source = "windows: what is needed between fronts of the graph, less what the cache holds, also with recomputation"
    why_not = f"{n:,} vertices; it allows at most {MOST_VERTICES:,}" if n > MOST_VERTICES else ""
    if why_not := _unfit(data, AT_ONCE) or why_not:
        return Bound(name, 0, source, AT_ONCE, why_not)
    return Bound(name, words(data, again=data.rules not in ONE_SHOT), source, AT_ONCE)


def paths(data: TaskData, seconds: float) -> Bound:
    """Bound by values of parts that are read, or else the last open path to a value closes too late.

    These are values that are computed. The reads of inputs that `windows` counts with recomputation are others.
    """
    from pebblesim.dags import windows as fronts
    from pebblesim.dags.open_paths import MOST_VERTICES, words

    name, n = "paths", data.task.steps
    source = (
        "paths: what is read in parts, or all paths to a value close with fewer pebbles than they need; and windows"
    )
    why_not = f"{n:,} vertices to compute; it allows at most {MOST_VERTICES:,}" if n > MOST_VERTICES else ""
    if why_not := _unfit(data, AT_ONCE) or why_not:
        return Bound(name, 0, source, AT_ONCE, why_not)
    return Bound(name, fronts.words(data, again=True) + words(data, seconds), source, AT_ONCE)


def trees(data: TaskData) -> Bound:
    """Bound by trees of values: the least number of them that leave the cache, two words each."""
    from pebblesim.dags.trees import cuts

    name = "trees"
    source = "trees of values that do not fit, by labels (Sethi & Ullman 1970), also with recomputation"
    why_not = _unfit(data, AT_ONCE)
    return Bound(name, 0 if why_not else data.words + 2 * cuts(data), source, AT_ONCE, why_not)


def _unfit(data: TaskData, rules: tuple[str, ...] = ONE_SHOT) -> str:
    """Why bounds for values of one word under some rules do not apply; empty if they do."""
    if data.task.weights is not None:
        return "values are of several words"
    if data.rules in rules:
        return ""
    return "it holds only without recomputation" if rules == ONE_SHOT else f"it holds only under {', '.join(rules)}"


def wavefronts(data: TaskData, seconds: float) -> Bound:
    """Bound by convex minimum cuts of disjoint parts of the graph.

    When x is computed, its ancestors have been computed, and its descendants have not. So at least as many values are
    needed later as a minimum convex cut between them holds. All but M of these values are in memory: each was written,
    and is read again. Disjoint parts have separate reads and writes, so their excesses add up.
    """
    from pebblesim.dags.cut_kernel import wavefront

    name = "wavefront"
    source = "wavefronts: convex minimum cuts of disjoint parts (Elango et al. 2014), without recomputation"
    if why_not := _unfit(data):
        return Bound(name, 0, source, ONE_SHOT, why_not)
    order = data.task.topological[data.inner[data.task.topological]].astype(np.int64)
    best, parts, left = 0, 1, int(seconds * ARCS_IN_A_SECOND)
    while parts * (data.M + 1) <= len(order) and left > 0:
        total, level = 0, left // 2
        left -= level
        for number, vertices in enumerate(np.array_split(order, parts)):
            if (level := level - TO_TAKE_OUT * data.task.graph.edges) < 0 < number:
                break
            arrays = data.part(vertices)
            arcs, peak, share = len(vertices) + len(arrays[1]), 0, level // (parts - number)
            level -= share
            for x in _spread(len(vertices), 24 if parts > 1 else 64):
                paths = share // arcs - 2  # each is found by a walk over all arcs at most, as is that there is no more
                if paths <= peak:
                    break
                found = int(wavefront(*arrays, x, min(paths, len(vertices))))  # type: ignore[arg-type, call-arg]
                peak, share = max(peak, found), share - arcs * (found + 2)
            level += share
            total += 2 * max(0, peak - data.M)
        best, left, parts = max(best, total), left + level, 2 * parts
    return Bound(name, data.words + best, source, ONE_SHOT)


def _spread(n: int, limit: int) -> list[int]:
    """Return at most `limit` numbers below n: the middle first, then evenly spaced ones."""
    numbers = np.unique(np.linspace(0, n - 1, min(n, limit)).astype(int)).tolist()
    return sorted(numbers, key=lambda x: abs(2 * x - n))


def spectral(data: TaskData) -> Bound:
    """Bound by eigenvalues of the Laplacian with weight 1/outdegree(u) on the edges of u.

    Cut a game into k segments with equal numbers of vertices. The k smallest eigenvalues give a lower bound on the
    weight of the edges between segments. Beyond 2M for each segment, this weight is reads and writes.
    """
    name, source = "spectral", "spectral: Laplacian eigenvalues (Jain & Zaharia 2020), without recomputation"
    n = int(data.inner.sum())
    if why_not := _unfit(data):
        return Bound(name, 0, source, ONE_SHOT, why_not)
    if not 2 <= n <= MOST_FOR_SPECTRUM:
        return Bound(name, 0, source, ONE_SHOT, f"{n:,} inner vertices; it needs 2 to {MOST_FOR_SPECTRUM:,}")
    start, preds, succ_start, _ = data.part(np.flatnonzero(data.inner))
    weight = 1.0 / np.maximum(1, np.diff(succ_start))[preds]
    laplacian = np.zeros((n, n))
    targets = np.repeat(np.arange(n), np.diff(start))
    np.add.at(laplacian, (preds, targets), -weight)
    np.add.at(laplacian, (targets, preds), -weight)
    np.fill_diagonal(laplacian, 0)
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    values = np.maximum(np.linalg.eigvalsh(laplacian) - 1e-9 * n, 0)
    best = 0.0
    for k in range(1, n + 1):
        sizes = np.full(k, n // k)
        sizes[: n % k] += 1
        best = max(best, float(sizes @ values[:k]) - 2 * k * data.M)
    return Bound(name, data.words + max(0, floor(best - 1e-6)), source, ONE_SHOT)


def places(data: TaskData, seconds: float) -> Bound:
    """Bound by a linear program over orders of computation, and the places of the cache that values keep meanwhile."""
    from pebblesim.dags import places as program

    name = "places"
    source = "places: a linear program over orders and the values kept, checked in whole numbers, without recomputation"
    if why_not := _unfit(data):
        return Bound(name, 0, source, ONE_SHOT, why_not)
    n = data.task.graph.vertices
    if n > program.MOST_VERTICES:
        return Bound(name, 0, source, ONE_SHOT, f"{n:,} vertices; it allows at most {program.MOST_VERTICES:,}")
    try:
        words = sum(certificate.words for certificate in program.certificates(data, seconds))
    except ImportError:
        return Bound(name, 0, source, ONE_SHOT, _missing("ortools", "scipy"))
    return Bound(name, data.words + words, source, ONE_SHOT)


def _missing(*packages: str) -> str:
    """Say which of the packages that a bound needs are not here."""
    missing = [package for package in packages if find_spec(package) is None] or packages
    return f"it needs {' and '.join(missing)}: pip install {' '.join(missing)}"


def parts(data: TaskData, seconds: float) -> Bound:
    """Bound by the proven optima of disjoint parts, each of which counts the reads and writes of its own values.

    With recomputation, what a part gets from others costs it nothing.
    """
    from pebblesim.dags.parts import MOST_STEPS, MOST_VERTICES, words

    name, source = "parts", "parts: the proven optima of disjoint parts added up, also with recomputation"
    steps, why_not = data.task.steps, _unfit(data, AT_ONCE)
    if not why_not and not MOST_STEPS < steps <= MOST_VERTICES:
        why_not = f"{steps:,} vertices to compute; it needs {MOST_STEPS + 1:,} to {MOST_VERTICES:,}"
    again = data.rules not in ONE_SHOT
    return Bound(name, 0 if why_not else data.words + words(data, seconds, again), source, AT_ONCE, why_not)


def partition(data: TaskData, seconds: float) -> Bound:
    """Bound by S-partitions: a segment of a game with T reads and writes computes only what M + T values lead to.

    An integer program finds, or its solver bounds, the largest number of vertices that this many values can lead to.
    All predecessors of each such vertex are among the values and the vertices themselves.
    """
    name, source = "S-partition", "S-partitions (Hong & Kung 1981), also with recomputation"
    rules = ("hong-kung", "no-recompute")
    if data.task.weights is not None:
        return Bound(name, 0, source, rules, "values are of several words")
    if data.rules not in rules:
        return Bound(name, 0, source, rules, f"it holds only under {', '.join(rules)}")
    needed = np.flatnonzero(data.task.needed == 1)
    if not len(needed) <= 300:
        return Bound(name, 0, source, rules, f"{len(needed):,} vertices to compute; it allows at most 300")
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return Bound(name, 0, source, rules, _missing("ortools"))
    best = 0
    for T in sorted({max(1, data.M // 2), data.M, 2 * data.M}):
        model = cp_model.CpModel()
        computed = {int(v): model.new_bool_var(f"x{v}") for v in needed}
        held = {int(v): model.new_bool_var(f"y{v}") for v in np.flatnonzero(data.used)}
        for v, x in computed.items():
            for u in data.preds[data.indptr[v] : data.indptr[v + 1]].tolist():
                model.add_bool_or([x.negated(), held[u], *([computed[u]] if u in computed else [])])
        model.add(sum(held.values()) <= data.M + T)
        model.maximize(sum(computed.values()))
        solver = cp_sat.solver(float("inf"), workers=1)
        solver.parameters.max_deterministic_time = seconds / 3  # counts work, as `seconds` does here
        solver.solve(model)
        largest_part = floor(solver.best_objective_bound + 1e-6)
        if largest_part > 0:
            best = max(best, T * (-(-len(needed) // largest_part) - 1))
    return Bound(name, best, source, rules)
