"""Families that a mask concerns: how many vertices each element has, where they are, and what is before them.

The numbering is the one stated in `pebblesim.game.numbering` under a mask. All sums are chains there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pebblesim.core.errors import UsageError
from pebblesim.core.memory import readable, shortage
from pebblesim.core.sizes import tile_starts
from pebblesim.game.numbering import CONSTANTS, Family
from pebblesim.graphs.operands import ELEMENTWISE, PARTIAL_SUM, TERM, arity, entries, term_entries
from pebblesim.graphs.operations import Op
from pebblesim.graphs.placement import Placement, placement

ZERO, MINUS_INFINITY = CONSTANTS[0.0], CONSTANTS[float("-inf")]
OPS: Final = np.array([Op.INPUT, Op.ZERO, Op.MINUS_INFINITY])
"""The operations of vertices, by what a table says of an element that is a constant."""

Ids = NDArray[np.int64]
Bools = NDArray[np.bool_]

CHUNK: Final = 1 << 20  # vertices that are filled in at once
BYTES: Final = 6 * 8  # that it takes to place an element

# What becomes of constants; what is not here has a vertex of its own.
OF_CONSTANTS: Final[dict[str, Callable[..., Any]]] = {
    "exp": np.exp,
    "log": np.log,
    "mul": np.multiply,
    "add": np.add,
    "sub": np.subtract,
    "div": np.divide,
    "max": np.maximum,
}


def checked(allowed: ArrayLike, grid: tuple[int, int]) -> Bools:
    """The pairs that a mask allows, as booleans of shape (n_q, n_k).

    Raises:
        UsageError: they are not booleans, or of another shape.
    """
    table = np.asarray(allowed)
    if table.dtype != np.bool_ or table.shape != grid:
        sizes = f"n = {grid[0]}" if grid[0] == grid[1] else f"n_q = {grid[0]}, n_k = {grid[1]}"
        raise UsageError(
            f"a graph for {sizes} takes a mask of booleans of shape {grid}, one for each pair; got {table.dtype} "
            f"of shape {table.shape}."
        )
    return table


@dataclass(frozen=True, slots=True, eq=False)
class Unplaced:
    """A family whose elements have no vertices yet; arrays have the shape (blocks, elements).

    Attributes:
        family: without a table.
        terms, before, line: as in its table.
        owned: number of vertices of each element.
        constant, pairs: as in its placement.
    """

    family: Family
    terms: Ids
    owned: Ids
    constant: NDArray[np.uint8]
    pairs: bool = False
    before: Ids | None = None
    line: int | None = None

    @property
    def edges(self) -> int:
        """Number of edges into the family's vertices."""
        if not self.family.terms:
            return arity(self.family) * int(np.count_nonzero((self.owned > 0) & (self.constant == 0)))
        started = self.family.start or self.family.onto
        sums = int(self.terms.sum()) - (0 if started else int(np.count_nonzero(self.terms)))
        return arity(self.family) * int(self.terms.sum()) + 2 * sums

    def place(self, starts: Sequence[int], by_name: Mapping[str, Family]) -> Family:
        """The family with its table, each block's vertices from one of `starts` on."""
        first = np.cumsum(self.owned, axis=1) - self.owned + np.array(starts)[:, None]
        none = self.owned == 0
        roots = first + self.owned - 1 if self.family.terms else first
        first[none] = roots[none] = -1
        if self.family.onto:
            for block, ids in enumerate(roots):
                onto = entries(self.family.operands[-1], self.family, block, by_name, first.dtype).ravel()
                ids[none[block]] = onto[none[block]]
        return replace(
            self.family,
            base=int(first[~none].min()) if not none.all() else starts[0],
            table=Placement(
                first=first,
                terms=self.terms,
                before=self.before,
                line=self.line,  # type: ignore[arg-type] # 0, 1 or None
                roots=roots,
                constant=self.constant,
                pairs=self.pairs,
            ),
        )


class Masking:
    """A mask, as a builder uses it.

    Args:
        allowed: booleans of shape (n_q, n_k), the pairs that may meet.
    """

    def __init__(self, allowed: Bools) -> None:
        self.allowed = allowed
        self.pairs: set[str] = set()  # the tensors over pairs
        self.made: Bools | None = None  # in a loop, of shape (blocks, n_q): whether a row has that block

    def enter(self, block: int, row_blocks: tuple[int, ...], split: int) -> None:
        """Begin a loop over blocks of columns, with rows in tiles, in tiles of these, and so on; and columns in splits,
        all blocks of which are there or none.
        """
        if not row_blocks:
            raise UsageError("under a mask, a loop over columns needs a row_block: rows come in tiles there, too.")
        n_q, n_k = self.allowed.shape
        starts = tile_starts(n_q, *row_blocks)
        tall = np.logical_or.reduceat(self.allowed, starts)
        met = np.logical_or.reduceat(tall, range(0, n_k, split), 1)[:, np.arange(0, n_k, block) // split]
        self.made = met.repeat(np.diff([*starts, n_q]), axis=0).T

    def leave(self) -> None:
        """End it."""
        self.made = None

    def unplaced(self, family: Family, by_name: Mapping[str, Family], pairs: bool, leave_out: bool) -> Unplaced | None:
        """Return a family with places for the allowed pairs alone; None if the mask does not concern it.

        Args:
            family: all of it but where it is.
            by_name: the families told before.
            pairs: whether it is a product over pairs.
            leave_out: whether a sum leaves out the constants of rows and columns without an allowed pair.
        """
        if not family.terms:
            pairs = pairs or any(_name(operand) in self.pairs for operand in family.operands)
        if pairs:
            self._add_pairs(family)
        if family.op == "input":
            return None
        size = family.blocks * family.elements * BYTES
        if (available := shortage(size)) is not None:
            raise UsageError(
                f"{family.name} needs {readable(size)} of memory to know its place under the mask, but "
                f"{readable(available)} are available; take smaller sizes, or use `count`."
            )
        if family.terms:
            return self._sum(family, by_name, pairs, leave_out)
        shape = (family.blocks, family.elements)
        if pairs:
            constant = np.where(self.allowed, 0, ZERO)
        elif self.made is not None:
            constant = np.zeros(shape)
        elif any(by_name[_name(operand)].table is not None for operand in family.operands):
            constant = _constants(family, by_name)
        else:
            return None
        constant = constant.astype(np.uint8).reshape(shape)
        return Unplaced(family, np.zeros(shape, np.int64), self._made(family).astype(np.int64), constant, pairs)

    def _sum(self, family: Family, by_name: Mapping[str, Family], pairs: bool, leave_out: bool) -> Unplaced | None:
        before, line = self._before(family, by_name, leave_out)
        if before is None and not pairs and self.made is None:
            return None
        if pairs and before is not None:
            raise UsageError(f"{family.name} is over pairs and sums over pairs; under a mask only one of them may be.")
        rows, columns = (*family.shape, 1)[:2]
        ends = np.minimum(np.arange(family.blocks + 1) * family.terms, _summed(family))
        terms = np.diff(ends)[:, None] if before is None else np.diff(before[:, ends]).T  # (blocks, lines)
        if pairs:
            terms = np.where(self.allowed.ravel(), terms, 0)
        elif line == 1:
            terms = np.tile(terms, (1, rows))
        else:
            terms = np.repeat(terms, columns if line == 0 else family.elements, axis=1)
        made = self._made(family)
        terms = np.where(made, terms, 0)
        empty = made & (terms == 0)
        owned = np.where(terms, 2 * terms - 1 + 2 * family.start + family.onto, empty & (not family.onto))
        constant = np.where(empty & (not family.onto), MINUS_INFINITY if family.op == "rowmax" else ZERO, 0)
        return Unplaced(family, terms, owned, constant.astype(np.uint8), pairs, before, line)

    def _add_pairs(self, family: Family) -> None:
        turned = [operand for operand in family.operands if operand.endswith(".T") and _name(operand) in self.pairs]
        if family.shape != self.allowed.shape or family.blocks > 1 or turned:
            raise UsageError(
                f"{family.name} of shape {family.shape} cannot be over pairs of shape {self.allowed.shape}, which are "
                "neither transposed nor kept apart in blocks."
            )
        self.pairs.add(family.name)

    def _made(self, family: Family) -> Bools:
        """Whether an element is made in a block, of shape (blocks, elements)."""
        if self.made is None:
            return np.ones((family.blocks, family.elements), bool)
        return self.made.repeat(family.elements // family.shape[0], axis=1)

    def _before(
        self, family: Family, by_name: Mapping[str, Family], leave_out: bool
    ) -> tuple[Ids, int | None] | tuple[None, None]:
        """`before` and `line` of the table of a sum that leaves out terms."""
        tables: list[tuple[Ids, int | None]] = []
        for place, operand in enumerate(family.operands[: arity(family)]):
            source = by_name[_name(operand)]
            table = placement(source)
            if source.name in self.pairs:
                taken = self.allowed[None]
            elif table and (leave_out or source.blocks > 1) and not source.running:
                taken = (table.constant == 0).reshape(-1, *source.shape)
            else:
                continue
            if operand.endswith(".T") != (place == 1):  # the summed dimension comes last
                taken = taken.swapaxes(1, 2)
            taken = np.concatenate(list(taken), axis=-1)
            alike = source.name not in self.pairs and bool((taken == taken[:1]).all())
            before = np.cumsum(taken[:1] if alike else taken, axis=1)
            tables.append((np.pad(before, ((0, 0), (1, 0))), None if alike else place))
        if len(tables) > 1:
            raise UsageError(f"both operands of {family.name} are over pairs; under a mask only one of them may be.")
        return tables[0] if tables else (None, None)


def fill_section(
    family: Family,
    block: int,
    by_name: Mapping[str, Family],
    op: NDArray[np.uint8],
    indptr: NDArray[Any],
    preds: NDArray[Any],
    at: int,
) -> int:
    """Fill in one block of a family with a table, whose predecessors begin at `at`; returns where they end."""
    table = placement(family)
    assert table is not None
    there = table.there(block)
    vertices = table.first[block, there] - table.first[block, there[0]]
    leaves_of = (_terms if family.terms else _entries_of_elements)(family, table, block, by_name, preds.dtype)
    onto = entries(family.operands[-1], family, block, by_name, preds.dtype).ravel() if family.onto else None
    for elements in np.split(there, np.searchsorted(vertices, np.arange(CHUNK, vertices[-1] + 1, CHUNK))):
        if elements.size:  # none where an element has more vertices than are filled in at once
            at = _fill_elements(family, table, block, elements, leaves_of, onto, op, indptr, preds, at)
    return at


def _fill_elements(
    family: Family,
    table: Placement,
    block: int,
    elements: Ids,
    leaves_of: Callable[[Ids, Ids], list[NDArray[Any]]],
    onto: NDArray[Any] | None,
    op: NDArray[np.uint8],
    indptr: NDArray[Any],
    preds: NDArray[Any],
    at: int,
) -> int:
    """Fill in some elements of a family with a table, whose vertices follow each other; return where they end.

    Args:
        leaves_of: from elements and the number of a term in each, the predecessors of that term.
        onto: what the sums are added to, by element.
    """
    constant, first = table.constant[block, elements], table.first[block, elements]
    start, stop = int(first[0]), int(table.roots[block, elements[-1]]) + 1
    first = first - start
    leaves = table.terms[block, elements] if family.terms else (constant == 0).astype(np.int64)
    owner, u = _ragged(leaves)
    leaf = first[owner] + u
    of_sum, j = _ragged(leaves if family.start or family.onto else np.maximum(leaves - 1, 0))
    partial_sum = first[of_sum] + leaves[of_sum] + family.start + j

    codes = np.full(stop - start, PARTIAL_SUM.get(family.op, Op.INPUT), np.uint8)
    degrees = np.full(stop - start, 2)
    codes[first], degrees[first] = OPS[constant], 0
    codes[leaf], degrees[leaf] = (TERM | ELEMENTWISE)[family.op], arity(family)
    if family.start:
        codes[first + leaves], degrees[first + leaves] = Op.ZERO, 0
    op[start:stop] = codes
    where = at + np.cumsum(degrees) - degrees
    indptr[start:stop] = where

    for place, ids in enumerate(leaves_of(elements[owner], u)):
        preds[where[leaf] + place] = ids
    left = start + partial_sum - 1
    if onto is not None:
        left = np.where(j == 0, onto[elements[of_sum]], left)
    elif not family.start:
        left = np.where(j == 0, start + first[of_sum], left)
    preds[where[partial_sum]] = left
    preds[where[partial_sum] + 1] = start + first[of_sum] + j + (not family.start and not family.onto)
    return at + int(degrees.sum())


def _terms(
    family: Family, table: Placement, block: int, by_name: Mapping[str, Family], dtype: np.dtype[Any]
) -> Callable[[Ids, Ids], list[NDArray[Any]]]:
    """Return the function that gives the predecessors of the u-th terms of elements of a sum."""
    factors = term_entries(family, block, by_name, dtype)
    columns = (*family.shape, 1)[1]
    summed = before = np.empty(0, np.int64)
    if table.before is not None:  # the indices that are terms, line after line, and where each line's block begins
        summed = np.nonzero(np.diff(table.before))[1]
        before = np.cumsum(table.before[:, -1]) - table.before[:, -1] + table.before[:, block * family.terms]

    def predecessors(elements: Ids, u: Ids) -> list[NDArray[Any]]:
        index = np.divmod(elements, columns)
        if table.before is None:
            u = u + block * family.terms
        else:
            u = summed[u + before[0 if table.line is None else index[table.line]]]
        return [ids[lines, u] for ids, lines in zip(factors, index, strict=False)]

    return predecessors


def _entries_of_elements(
    family: Family, table: Placement, block: int, by_name: Mapping[str, Family], dtype: np.dtype[Any]
) -> Callable[[Ids, Ids], list[NDArray[Any]]]:
    """Return the function that gives the predecessors of elements of an elementwise family, their only terms."""
    factors = [_of_elements(family, entries(operand, family, block, by_name, dtype)) for operand in family.operands]
    return lambda elements, _: [ids[elements] for ids in factors]


def _of_elements(family: Family, values: NDArray[Any]) -> NDArray[Any]:
    """An operand's values by the family's elements; those of a vector stand for whole rows."""
    return values.ravel().repeat(family.elements // values.size)


def _ragged(counts: Ids) -> tuple[Ids, Ids]:
    """(row, place in it) of each entry of rows of these lengths, one row after the other."""
    rows = np.arange(len(counts)).repeat(counts)
    return rows, np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]


def _constants(family: Family, by_name: Mapping[str, Family]) -> NDArray[Any]:
    """Which elements of an elementwise family are constants, since all that they are made from is."""
    values = [_of_elements(family, _constant_values(operand, by_name)) for operand in family.operands]
    if family.op not in OF_CONSTANTS:
        return np.zeros(family.elements)
    with np.errstate(all="ignore"):
        result = OF_CONSTANTS[family.op](*values)
    if family.op in ("sub", "div"):
        x, y = values
        result[(x == y) & (x == (0 if family.op == "div" else -np.inf))] = 0
    return np.where(result == 0, ZERO, np.where(np.isneginf(result), MINUS_INFINITY, 0))


def _constant_values(operand: str, by_name: Mapping[str, Family]) -> NDArray[np.float64]:
    """An operand's entries where they are constants for want of an allowed pair; nan where they are not."""
    name, _, how = operand.partition(".")
    source = by_name[name]
    table = placement(source)
    values = np.full(source.shape, np.nan)
    if table is None:
        return values
    if how == "last" and source.initial is not None:
        values[(table.roots < 0).all(axis=0).reshape(source.shape)] = source.initial
    elif not source.running:
        constant = table.constant[0].reshape(source.shape)
        values[constant == ZERO] = 0
        values[constant == MINUS_INFINITY] = -np.inf
    return values.T if how == "T" else values


def _summed(family: Family) -> int:
    """Number of indices that a family sums over, through all blocks."""
    return (family.blocks - 1) * family.terms + family.last_terms


def _name(operand: str) -> str:
    return operand.partition(".")[0]
