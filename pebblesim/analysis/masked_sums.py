"""Number of tiles that a mask allows, and their rows, columns and pairs: symbols, and closed forms for bands.

For an unknown mask these are functions: `tiles(B_r, B_c)`, the number of tiles with an allowed pair; `heights`, the sum
of their numbers of rows; `widths`, of columns; `areas`, of pairs; and for tiles of rows times all columns, or tiles of
columns times all rows, `row_tiles(B_r)`, `rows(B_r)`, `column_tiles(B_c)` and `columns(B_c)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import sympy

from pebblesim.analysis.compiled import exactly
from pebblesim.language import program as ir
from pebblesim.language.masks import Band


@cache
def symbol(name: str) -> sympy.Symbol:
    """Return the symbol of a dimension, a block or M, as a positive integer, for use during derivations."""
    return sympy.Symbol(name, integer=True, positive=True)


@cache
def plain(expr: sympy.Expr) -> sympy.Expr:
    """Replace the symbols of a derived form by symbols without assumptions, so that numbers can be substituted.

    Otherwise sympy can simplify wrongly: for positive integers, sympy 1.14 treats Max(0, 2*c - 6)/14 as an integer, and
    so drops the floor in ⌊Max(0, 2*c - 6)/14⌋.
    """
    if isinstance(expr, sympy.Symbol):
        return sympy.Symbol(expr.name)
    if isinstance(expr, sympy.Max | sympy.Min):  # their arguments are already chosen, and comparing them again is slow
        return expr.func(*map(plain, expr.args), evaluate=False)
    if isinstance(expr, sympy.Sum):
        return Total(*map(plain, expr.args))
    return expr.func(*map(plain, expr.args)) if expr.args else expr


def in_integers(expr: sympy.Expr) -> sympy.Expr:
    """Replace the symbols of a plain form by positive integers, for algebra."""
    return expr.xreplace({unknown: symbol(unknown.name) for unknown in expr.free_symbols})


class Total(sympy.Sum):
    """A sum that evaluates itself as soon as all its symbols except the index are numbers."""

    def __new__(cls, term: sympy.Expr, limits: tuple[sympy.Expr, ...], **assumptions: Any) -> sympy.Expr:
        index, first, last = limits
        if first.is_Integer and last.is_Integer and term.free_symbols <= {index}:
            return sympy.Integer(exactly(sympy.Sum(term, (index, first, last)), ())())
        return super().__new__(cls, term, limits, **assumptions)


def size(block: str | int) -> sympy.Expr:
    """Return a block size, which is a name or a number."""
    return symbol(block) if isinstance(block, str) else sympy.Integer(block)


class MaskSums:
    """Sums over the tiles of rows and columns that a mask allows.

    Args:
        mask: a band, for closed forms; None, for functions of the blocks.
    """

    def __init__(self, mask: Band | None) -> None:
        self.mask = mask

    def sum(self, rows: ir.Range, columns: ir.Range, of_rows: int, of_columns: int) -> sympy.Expr:
        """Return Σ height^of_rows · width^of_columns over the tiles with an allowed pair; powers are 0 or 1.

        A range without a parent is the whole dimension, one tile of n.
        """
        if self.mask is not None:
            height, width = (None if rng.parent is None else size(rng.block) for rng in (rows, columns))
            if rows.dim == columns.dim:
                return _closed(self.mask, symbol(rows.dim), height, width, of_rows, of_columns)
            grid = symbol(rows.dim), symbol(columns.dim)
            return _closed_of_rectangle(self.mask, grid, height, width, of_rows, of_columns)
        if rows.parent is not None and columns.parent is not None:
            name = {(0, 0): "tiles", (1, 0): "heights", (0, 1): "widths", (1, 1): "areas"}[of_rows, of_columns]
            return _function(name, size(rows.block), size(columns.block))
        if rows.parent is None:
            return (
                _function("columns" if of_columns else "column_tiles", size(columns.block))
                * symbol(rows.dim) ** of_rows
            )
        return _function("rows" if of_rows else "row_tiles", size(rows.block)) * symbol(columns.dim) ** of_columns

    def all(self, rng: ir.Range, power: int) -> sympy.Expr:
        """Return the same sum over all tiles of one range."""
        return _all(symbol(rng.dim), size(rng.block), power)


def _all(n: sympy.Expr, block: sympy.Expr, power: int) -> sympy.Expr:
    return n if power else sympy.ceiling(n / block)


@cache  # the same for all loops over the same tiles, in all programs
def _closed(
    mask: Band, n: sympy.Symbol, height: sympy.Expr | None, width: sympy.Expr | None, of_rows: int, of_columns: int
) -> sympy.Expr:
    """Return Σ height^of_rows · width^of_columns over the tiles with a pair in the band; None: all rows, or columns."""
    if height is None:  # every row and every column has its diagonal pair
        return _all(n, width, of_columns) * n**of_rows
    if width is None:
        return _all(n, height, of_rows) * n**of_columns
    last = sympy.ceiling(n / height) - 1
    cut = sympy.Integer(0)  # the tiles before it see the first column
    if mask.before is None:
        cut = last
    elif mask.before:
        cut = sympy.Min(last, sympy.ceiling(sympy.Integer(mask.before) / height))
    total = sympy.Integer(0)
    for start, stop, from_first in ((sympy.Integer(0), cut, True), (cut, last, False)):

        def seen(i: sympy.Symbol, from_first: bool = from_first) -> sympy.Expr:
            return _seen(mask, n, i * height, (i + 1) * height, width, of_columns, from_first)

        if start != stop:
            total += _sum(seen, start, stop)
    rest = n - last * height
    return height**of_rows * total + rest**of_rows * _seen(mask, n, last * height, n, width, of_columns, None)


@cache
def _closed_of_rectangle(
    mask: Band,
    grid: tuple[sympy.Symbol, sympy.Symbol],
    height: sympy.Expr | None,
    width: sympy.Expr | None,
    of_rows: int,
    of_columns: int,
) -> sympy.Expr:
    """Return the same for different numbers of queries and keys; some rows or columns may then have no allowed pair.

    The rows start ... stop - 1 have pairs with the columns from `begin` to `end`, if with any.
    """
    n_q, n_k = grid
    shift = n_k - n_q if mask.at_end else sympy.Integer(0)

    def seen(start: sympy.Expr, stop: sympy.Expr) -> sympy.Expr:
        end = n_k if mask.after is None else sympy.expand(stop + shift + mask.after)
        if mask.after is not None and (not mask.at_end or mask.after):  # else the last row sees the last column
            end = sympy.Min(end, n_k)
        begin = sympy.Integer(0)
        if mask.before is not None:
            begin = sympy.Max(sympy.expand(start + shift - mask.before), 0)
        some = sympy.Min(1, sympy.Max(0, end - begin))
        if width is None:
            return some * n_k**of_columns
        first, behind = sympy.floor(begin / width), sympy.ceiling(end / width)
        if not of_columns:
            return some * (behind - first)
        return some * ((n_k if end == n_k else sympy.Min(behind * width, n_k)) - first * width)

    if height is None:
        return n_q**of_rows * seen(sympy.Integer(0), n_q)
    last = sympy.ceiling(n_q / height) - 1
    i = sympy.Symbol("i", integer=True, nonnegative=True)
    total = sympy.Sum(seen(i * height, (i + 1) * height), (i, 0, last - 1))
    return height**of_rows * total + (n_q - last * height) ** of_rows * seen(last * height, n_q)


def _seen(
    mask: Band,
    n: sympy.Symbol,
    start: sympy.Expr,
    stop: sympy.Expr,
    width: sympy.Expr,
    power: int,
    from_first: bool | None,
) -> sympy.Expr:
    """Return the number of column tiles with which the rows start ... stop - 1 have pairs, or their number of columns.

    `from_first`: whether the first column is among them, if this is known.
    """
    before, after = mask.before, mask.after
    end = n if after is None or stop == n else stop if after == 0 else sympy.Min(stop + after, n)
    behind = sympy.ceiling(sympy.expand(end / width))
    first = sympy.Integer(0)
    if before is not None and not from_first:
        begin = start - before if from_first is False else sympy.Max(start - before, 0)
        first = sympy.floor(sympy.expand(begin / width))
    if not power:
        return behind - first
    whole_tiles = sympy.expand(behind * width - end) == 0
    return (end if whole_tiles or end == n else sympy.Min(behind * width, n)) - first * width


def _function(name: str, *blocks: sympy.Expr) -> sympy.Expr:
    return sympy.Function(name, integer=True, nonnegative=True)(*blocks)


def _sum(term: Callable[[sympy.Expr], sympy.Expr], start: sympy.Expr, stop: sympy.Expr) -> sympy.Expr:
    """Return Σ_{start ≤ i < stop} term(i), in closed form if the term is a polynomial in i."""
    i = sympy.Symbol("i", integer=True, nonnegative=True)
    each = sympy.expand(term(i))
    if each.is_polynomial(i):
        return sympy.expand(sympy.summation(each, (i, start, stop - 1)))
    return sympy.Sum(each, (i, start, stop - 1))
