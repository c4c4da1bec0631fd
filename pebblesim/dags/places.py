"""A lower bound on the I/O of any DAG without recomputation: linear programs over orders and places in the cache.

The variables say, of a game: whether moment x is before v (for vertices in neither order), whether value u is red
when x is computed, whether u is read between two of its events p and q (its computation, or a use), whether it is
written, and how often it is read again. Every game satisfies the inequalities, so the least cost is a lower bound;
docs/dags.md has the proof. The solver only proposes multipliers: what they prove is evaluated in whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags import places_kernel as kernel
from pebblesim.dags.start_kernel import heights

if TYPE_CHECKING:
    from pebblesim.dags.task_data import TaskData

Ints = NDArray[np.int64]

MOST_VERTICES: Final = 30_000
"""Most vertices of a graph: the ancestors of each take a bit for every vertex."""

MOST_EVENTS: Final = 10
"""Most events of a value that are looked at; of more uses, so many are chosen evenly."""

MOST_CELLS: Final = 4_000_000
"""Most pairs of a moment and a vertex."""

BLOCK: Final = 2_500
"""Vertices of a block, about: fewer cut more values off their uses, more leave most moments without a row."""

MOST_ROWS: Final = 50_000
"""Most rows of a program for values that may be lost at a moment, about."""

MOST_ITERATIONS: Final = 20_000
"""Most iterations of the solver."""

SMALL: Final = 250_000
"""Terms of programs that are solved however short the time is; a program of `MOST_ROWS` has no more."""

WORK: Final = 10**9
"""Most terms times iterations of such a program: 7 seconds of the processor, where 2 are usual."""

WORK_IN_A_SECOND: Final = 3 * 10**8
"""Terms times iterations of other programs in a second."""

TO_BUILD: Final = 50
"""Iterations that take as long as to build a program."""

GOLDEN: Final = 0.6180339887498949
"""Multiples of it, without their whole parts, are spread evenly."""

SCALE: Final = 2**20
"""The unit of multipliers: each is a whole number of 1/SCALE."""

MOST_TIMES: Final = 64
"""Most times that a row is added; a program of 10^7 terms then stays far below 2^63."""

ROOM, LOST, READ, WRITTEN, RUNS = range(5)
"""Kinds of inequalities; each is about some of the vertices u, p, q, x (-1 for the others).

ROOM: the values that are red when x is computed, besides x and its operands, are at most M - 1 - operands of x.
LOST: if x is computed between p and q, two events of u, then u is red at x, or it is read between p and q.
READ: if u is read between p and q, it is read again.
WRITTEN: if u is read between p and q, it is written.
RUNS: u is read again at least as often as it has events but the first, less the pairs of events (with no other event
forced between them) between which it is not read.
"""


class Layout:
    """Operands, uses and ancestors of a graph, for the programs of all its blocks.

    Attributes:
        start, preds: the distinct operands of each vertex that is computed.
        use_start, uses: the uses of each vertex, by depth.
        above: ancestors of each vertex, in bits.
        order: the vertices to compute, by depth: the number of edges on the longest path to each.
    """

    def __init__(self, data: TaskData) -> None:
        n, (self.start, self.preds) = data.task.graph.vertices, data.operands
        self.degree = np.diff(self.start)
        depth, _, _ = heights(self.start, self.preds, data.task.order)
        self.above = kernel.ancestors(data.task.order, self.start, self.preds)
        users = np.repeat(np.arange(n), self.degree)
        self.uses = users[np.lexsort((depth[users], self.preds))]
        self.use_start = np.append(0, np.cumsum(np.bincount(self.preds, minlength=n)))
        vertices = data.task.topological.astype(np.int64)
        self.order = vertices[np.argsort(depth[vertices], kind="stable")]

    def operands(self, v: int) -> Ints:
        return self.preds[self.start[v] : self.start[v + 1]]

    def used_by(self, moments: Ints) -> NDArray[np.bool_]:
        """Return, for each of some moments, which vertices it uses."""
        used = np.zeros((len(moments), len(self.degree)), dtype=np.bool_)
        for i, x in enumerate(moments.tolist()):
            used[i, self.operands(x)] = True
        return used


class Block(NamedTuple):
    """Values whose I/O a program counts, with the events of each, and vertices that may be its moments."""

    values: Ints
    event_start: Ints
    events: Ints
    moments: Ints


def blocks(data: TaskData, layout: Layout, size: int) -> Iterator[Block]:
    """Cut the vertices to compute, by depth, into blocks of about a size, and yield the values of each.

    A value that is computed belongs to its own block, with all its uses. An input belongs to every block, with those of
    its uses there that descend from all uses in earlier blocks: then its reads between uses of one block differ from
    those between uses of another one, and add up.
    """
    order = layout.order
    number = max(1, len(order) // size) if len(order) else 0
    taken: dict[int, list[int]] = {}
    for k in range(number):
        mine, ahead = (order[len(order) * k // number : len(order) * end // number] for end in (k + 1, k + 2))
        inside = np.zeros(len(layout.degree), dtype=np.bool_)
        inside[mine] = True
        operands = np.concatenate([layout.operands(v) for v in mine.tolist()])
        values, lists = [], []
        for u in np.union1d(mine, operands[data.is_input[operands]]).tolist():
            own = layout.uses[layout.use_start[u] : layout.use_start[u + 1]]
            if data.is_input[u]:
                own = own[inside[own]]
                own = own[kernel.behind_all(layout.above, np.array(taken.get(u, []), dtype=np.int64), own)]
            else:
                own = np.append(u, own)
            own = own[np.linspace(0, len(own) - 1, min(len(own), MOST_EVENTS)).astype(int)]
            if len(own) > 1:
                values.append(u)
                lists.append(own)
            if data.is_input[u]:
                taken.setdefault(u, []).extend(own.tolist())
        if values:
            ends = np.append(0, np.cumsum([len(own) for own in lists]))
            yield Block(np.array(values), ends, np.concatenate(lists), ahead)


@dataclass(frozen=True, eq=False)
class Program:
    """Minimise `cost` z over A z <= `right`, 0 <= z <= `most`, in whole numbers.

    Attributes:
        rows, columns, coefficients: A.
        what: for each row its kind, u, p, q and x.
    """

    rows: Ints
    columns: Ints
    coefficients: Ints
    right: Ints
    cost: Ints
    most: Ints
    what: Ints

    def proved(self, multipliers: Ints) -> int:
        """Return the words that these multipliers of the rows prove, each in units of 1/SCALE.

        Each row is added to the cost as often as its multiplier says; then each variable takes the end of its range at
        which the sum is least. What is proved does not depend on who proposed them: a negative multiplier counts as 0,
        one that is too large as the largest, and right sides, which may be near M, are multiplied without overflow.
        """
        times = np.clip(multipliers, 0, MOST_TIMES * SCALE)
        reduced = self.cost * SCALE
        np.add.at(reduced, self.columns, times[self.rows] * self.coefficients)
        least = int(np.minimum(reduced, 0) @ self.most) - int(times.astype(object) @ self.right.astype(object))
        return max(0, -(-least // SCALE))


class _Rows:
    """The rows of a program, kind by kind."""

    def __init__(self) -> None:
        self.parts: list[tuple[Ints, ...]] = []
        self.count = 0

    def add(self, kind: int, terms: tuple[Any, Any, Any], right: Any, *about: Any) -> None:
        """Add rows of a kind.

        Args:
            terms: row (counted from 0), column and coefficient of each term; columns below 0 stand for none.
            right: the right sides.
            about: u, p, q and x of the rows.
        """
        rows, columns, coefficients = (np.asarray(part, dtype=np.int64) for part in np.broadcast_arrays(*terms))
        there, ends = columns >= 0, np.asarray(right, dtype=np.int64)
        what = np.stack(np.broadcast_arrays(kind, *about, ends)[:5], axis=1).astype(np.int64)
        self.parts.append((rows[there] + self.count, columns[there], coefficients[there], ends, what))
        self.count += len(ends)

    def program(self, cost: Ints, most: Ints) -> Program:
        rows, columns, coefficients, right, what = (np.concatenate(part) for part in zip(*self.parts, strict=True))
        return Program(rows, columns, coefficients, right, cost, most, what)


def program(data: TaskData, layout: Layout, block: Block, most_rows: int) -> Program | None:
    """Return the program of a block with as many moments as fit into a number of rows; None if no value needs a place.

    Moments with most operands are chosen first, spread evenly over the block.
    """
    pairs = kernel.neighbours(layout.above, block.event_start, block.events, block.values)
    moments = block.moments[np.argsort((np.arange(len(block.moments)) * GOLDEN) % 1)]
    moments = moments[np.argsort(-layout.degree[moments], kind="stable")][: max(1, MOST_CELLS // len(layout.degree))]
    used = layout.used_by(moments)
    brings = kernel.rows_of_moments(layout.above, used, moments, block.values, pairs)
    moments, used, brings = moments[brings > 0], used[brings > 0], brings[brings > 0]
    if not len(moments):
        return None
    fit = max(1, int(np.searchsorted(np.cumsum(brings), most_rows, side="right")))
    lost = int(brings[:fit].sum())
    names = kernel.names(moments[:fit], len(layout.degree), len(pairs) + 2 * len(block.values), 3 * lost)
    rows = _Rows()
    between = kernel.reads_between(layout.above, used[:fit], names, block.values, pairs, lost)
    terms, signs, right, pair, moment = between
    number = np.arange(len(right))[:, None]
    rows.add(LOST, (number, terms, signs), right, block.values[pairs[pair, 0]], *pairs[pair, 1:3].T, moment)
    meaning = names.meaning[: names.free[0]]
    kept = np.flatnonzero(meaning[:, 0] >= 0)
    room = data.M - 1 - layout.degree[moments[:fit]]
    rows.add(ROOM, (meaning[kept, 0], names.first + kept, 1), room, -1, -1, -1, moments[:fit])
    _reads_and_writes(data, block, pairs, rows)
    columns = names.first + len(meaning)
    cost, most = np.zeros(columns, dtype=np.int64), np.ones(columns, dtype=np.int64)
    cost[len(pairs) : names.first] = 1
    most[len(pairs) : len(pairs) + len(block.values)] = np.diff(block.event_start) - 1
    return rows.program(cost, most)


def _reads_and_writes(data: TaskData, block: Block, pairs: Any, rows: _Rows) -> None:
    """Add the rows that bind reads between events to reads and writes of values.

    The columns are: a read between each pair, then the reads again of each value, then its writes.
    """
    again = len(pairs)
    written = again + len(block.values)
    event = np.cumsum(pairs[:, 3] == 0) - 1  # two events; both of their orders are one row
    heads = pairs[pairs[:, 3] == 0]
    values = block.values[heads[:, 0]]
    plain = ~(data.is_input | data.is_output)[values]
    for kind, column, chosen in ((READ, again, np.ones(len(heads), dtype=np.bool_)), (WRITTEN, written, plain)):
        at, mine, own = np.cumsum(chosen) - 1, np.flatnonzero(chosen[event]), np.flatnonzero(chosen)
        terms = (
            np.append(at[event[mine]], at[own]),
            np.append(mine, column + heads[own, 0]),
            np.append(np.ones(len(mine)), -np.ones(len(own))),
        )
        rows.add(kind, terms, np.zeros(len(own)), values[own], heads[own, 1], heads[own, 2], -1)
    near = np.bincount(heads[:, 0], minlength=len(block.values))
    several = near > 1
    at, mine, own = np.cumsum(several) - 1, np.flatnonzero(several[pairs[:, 0]]), np.flatnonzero(several)
    terms = (
        np.append(at[pairs[mine, 0]], at[own]),
        np.append(mine, again + own),
        np.append(np.ones(len(mine)), -np.ones(len(own))),
    )
    rows.add(RUNS, terms, (near - np.diff(block.event_start) + 1)[own], block.values[own], -1, -1, -1)


def solve(made: Program, most: int) -> tuple[Ints, int]:
    """Propose multipliers by a first-order method (PDLP of OR-tools), in units of 1/SCALE, and tell the iterations.

    Args:
        made: the program.
        most: most iterations.

    Raises:
        ImportError: OR-tools or scipy is not installed.
    """
    from ortools.pdlp import solvers_pb2
    from ortools.pdlp.python import pdlp
    from scipy.sparse import csc_matrix

    shape = len(made.right), len(made.cost)
    linear = pdlp.QuadraticProgram()
    linear.resize_and_initialize(shape[1], shape[0])
    linear.objective_vector = made.cost.astype(float)
    linear.constraint_matrix = csc_matrix((made.coefficients.astype(float), (made.rows, made.columns)), shape)
    linear.constraint_lower_bounds = np.full(shape[0], -np.inf)
    linear.constraint_upper_bounds = made.right.astype(float)
    linear.variable_lower_bounds = np.zeros(shape[1])
    linear.variable_upper_bounds = made.most.astype(float)
    asked = solvers_pb2.PrimalDualHybridGradientParams()
    enough = asked.termination_criteria.simple_optimality_criteria
    enough.eps_optimal_relative, enough.eps_optimal_absolute = 1e-3, 0.1
    asked.termination_criteria.iteration_limit = most
    solved = pdlp.primal_dual_hybrid_gradient(linear, asked)
    dual = -np.array(solved.dual_solution)
    multipliers = np.floor(np.clip(np.nan_to_num(dual), 0, MOST_TIMES) * SCALE).astype(np.int64)
    return multipliers, int(solved.solve_log.iteration_count)


class Certificate(NamedTuple):
    """A program and multipliers, which prove that values of a block cost so many words above the compulsory ones."""

    block: Block
    made: Program
    multipliers: Ints

    @property
    def words(self) -> int:
        """The words proved."""
        return self.made.proved(self.multipliers)


def certificates(data: TaskData, seconds: float, size: int = BLOCK, rows: int = MOST_ROWS) -> Iterator[Certificate]:
    """Yield what is proved block by block, with the work of about so many seconds; the words add up.

    The first programs, up to `SMALL` terms together, are solved in any case.

    Raises:
        ImportError: OR-tools or scipy is not installed.
    """
    layout, left, terms = Layout(data), int(seconds * WORK_IN_A_SECOND), 0
    for block in blocks(data, layout, size):
        if terms > SMALL and left <= 0:
            return
        if (made := program(data, layout, block, rows)) is None:
            continue
        count = len(made.coefficients)
        terms += count
        most = min(MOST_ITERATIONS, (WORK if terms <= SMALL else left) // count)
        if most > 0:
            multipliers, done = solve(made, most)
            left -= (done + TO_BUILD) * count
            yield Certificate(block, made, multipliers)
