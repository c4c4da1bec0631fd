"""`formula`: the exact closed form of a program's traffic and peak, ceilings included, as sympy expressions.

A tile's traffic is the product of its lengths. Summed over the tiles of a range, power 0 of the length gives the number
of tiles, and power 1 the length of the range. Any other expression is evaluated at a full tile, times the number of
full tiles, plus once at the last tile. No formula is written by hand.

Under a mask the sums are over the tiles with an allowed pair: their number, rows, columns and pairs, as functions of
the blocks. For a band, such as a causal mask, these also have closed forms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import sympy

from pebblesim.analysis.compiled import compile_exact
from pebblesim.analysis.masked_sums import MaskSums, plain, size, symbol
from pebblesim.core.errors import UsageError
from pebblesim.core.notation import align, in_latex, written
from pebblesim.core.results import Result
from pebblesim.core.units import Traffic
from pebblesim.language import program as ir
from pebblesim.language.masks import Band

Lengths = dict[ir.Range, sympy.Expr]


@dataclass(frozen=True)
class Formula(Result):
    """Closed forms in the dimensions and block sizes, in words. A size is a `sympy.Symbol` without assumptions.

    Attributes:
        reads, writes: words moved into and out of the cache.
        peak_words: most words resident between two primitives. Under a band those of the largest tiles; where queries
            and keys differ in number, perhaps none of these has an allowed pair.
        by_tensor: (reads, writes) of each tensor.
        by_phase: (reads, writes) of each phase.
        variables: names of the dimensions and blocks, in order.
    """

    reads: sympy.Expr
    writes: sympy.Expr
    peak_words: sympy.Expr
    by_tensor: Mapping[str, tuple[sympy.Expr, sympy.Expr]]
    by_phase: Mapping[str, tuple[sympy.Expr, sympy.Expr]]
    variables: tuple[str, ...]

    @property
    def io(self) -> sympy.Expr:
        """Reads + writes."""
        return sympy.expand(self.reads + self.writes)

    @property
    def lines(self) -> dict[str, sympy.Expr]:
        """Reads, writes, I/O and peak words."""
        return {"reads": self.reads, "writes": self.writes, "I/O": self.io, "peak words": self.peak_words}

    def to_dict(self) -> dict[str, Any]:
        """Return the closed forms as texts that sympy can parse."""
        parts = {"by_tensor": self.by_tensor, "by_phase": self.by_phase}
        return {
            **{name: str(getattr(self, name)) for name in ("reads", "writes", "io", "peak_words")},
            **{
                key: {name: {"reads": str(reads), "writes": str(writes)} for name, (reads, writes) in part.items()}
                for key, part in parts.items()
            },
            "variables": list(self.variables),
        }

    def __str__(self) -> str:
        return "\n".join(f"{name:<11}= {written(expr)}" for name, expr in self.lines.items())

    @cached_property
    def evaluate(self) -> Callable[..., Any]:
        """The I/O as a function: `evaluate(n=…, d=…, B=…)` is an exact integer, or an array for arrays of sizes."""
        return self.function_of("io")

    def function_of(self, name: str) -> Callable[..., Any]:
        """Return "reads", "writes", "io" or "peak_words" as a function, like `evaluate`."""
        return compile_exact(getattr(self, name), self.variables)

    def latex(self) -> str:
        """Reads, writes, I/O and peak words, as an `align*` environment of LaTeX."""
        return align((rf"\text{{{name}}}", f"= {in_latex(expr)}") for name, expr in self.lines.items())


@lru_cache(maxsize=256)
def formula(program: ir.Program, mask: Band | None = None) -> Formula:
    """Derive the closed forms of a program; the result is cached for each program and mask.

    Args:
        program: a traced schedule, under a mask if there is one.
        mask: the band mask of the program, for closed forms in n and the blocks only. Without it, the closed forms of a
            program under a mask contain functions such as `tiles(B_r, B_c)`, the number of tiles with an allowed pair.
    """
    by_tensor: dict[str, Traffic] = defaultdict(Traffic)
    by_phase: dict[str, Traffic] = {}
    for phase in program.phases:
        moved = {name: traffic.each(sympy.expand) for name, traffic in _Sums(mask).traffic(phase.body, {}).items()}
        by_phase[phase.name] = sum(moved.values(), Traffic())  # of what is expanded, and so are all sums of it
        for name, traffic in moved.items():
            by_tensor[name] += traffic
    total = sum(by_phase.values(), Traffic())
    return Formula(
        plain(total.reads),
        plain(total.writes),
        plain(_largest([level for phase in program.phases for level in _levels(phase.body, {}, sympy.Integer(0))[0]])),
        {name: (plain(traffic.reads), plain(traffic.writes)) for name, traffic in by_tensor.items()},
        {name: (plain(traffic.reads), plain(traffic.writes)) for name, traffic in by_phase.items()},
        (*program.dims, *program.blocks),
    )


def _length(rng: ir.Range, lengths: Lengths) -> sympy.Expr:
    return symbol(rng.name) if rng.parent is None else lengths[rng]


def _longest(rng: ir.Range, lengths: Lengths) -> sympy.Expr:
    """Return the length of a range's first tile, which is the largest."""
    assert rng.parent is not None
    whole = _length(rng.parent, lengths)
    if rng.after is not None and rng.block != 1:
        whole = _remaining_length(rng, lengths)
    return _smaller(whole, size(rng))


@cache  # sympy tries to compare the two, which takes long
def _smaller(whole: sympy.Expr, block: sympy.Expr) -> sympy.Expr:
    return sympy.Min(whole, block)


@cache  # sympy asks whether it is a whole number, again and again
def _tiles(whole: sympy.Expr, block: sympy.Expr) -> sympy.Expr:
    return sympy.ceiling(whole / block)


def _remaining_length(rng: ir.Range, lengths: Lengths) -> sympy.Expr:
    """Return the number of indices after a first part."""
    assert rng.parent is not None and rng.after is not None
    whole = _length(rng.parent, lengths)
    return whole - _smaller(whole, symbol(rng.after) if isinstance(rng.after, str) else sympy.Integer(rng.after))


def _words(ranges: ir.Ranges, lengths: Lengths) -> sympy.Expr:
    return sympy.Mul(*(_length(rng, lengths) for rng in ranges))


class _Sums:
    """Add up the traffic of a program, loop by loop."""

    def __init__(self, mask: Band | None) -> None:
        self.tiles = MaskSums(mask)
        self.left: dict[sympy.Dummy, tuple[ir.MaskCondition, ir.Range, int]] = {}  # see `_left`

    def traffic(self, body: list[ir.Node], lengths: Lengths) -> dict[str, Traffic]:
        """Return the traffic of each tensor in a body, as a function of the lengths of the enclosing tiles."""
        moved: dict[str, Traffic] = defaultdict(Traffic)
        for node in body:
            if isinstance(node, ir.Read | ir.Write | ir.Init):
                words = _words(ir.moved_part(node), lengths)
                moved[node.tensor.name] += Traffic(words, 0) if isinstance(node, ir.Read) else Traffic(0, words)
            elif isinstance(node, ir.Loop) and node.range.first:
                for name, traffic in self.traffic(
                    node.body, lengths | {node.range: _longest(node.range, lengths)}
                ).items():
                    moved[name] += traffic
            elif isinstance(node, ir.Loop):
                length = sympy.Dummy("length", integer=True, positive=True)
                for name, traffic in self.traffic(node.body, lengths | {node.range: length}).items():
                    moved[name] += traffic.each(partial(self._over_tiles, length=length, loop=node, lengths=lengths))
        return moved

    def _over_tiles(self, words: sympy.Expr, length: sympy.Symbol, loop: ir.Loop, lengths: Lengths) -> sympy.Expr:
        """Sum an expression in the tile's length over all tiles of a range."""
        total = sympy.Integer(0)
        for term in sympy.Add.make_args(sympy.expand(words)) if words else ():
            factor, rest = term.as_independent(length)
            linked = [
                d for d in self.left if factor.has(d) and loop.range in (self.left[d][0].rows, self.left[d][0].columns)
            ]
            if linked:
                total += factor.subs(linked[0], 1) * self._both(linked[0], _power(rest, length), loop.range)
            elif loop.when is not None:
                total += factor * self._left(loop, _power(rest, length))
            else:
                total += factor * _over_all(rest, length, loop.range, lengths)
        return total

    def _left(self, loop: ir.Loop, power: int) -> sympy.Expr:
        """Return Σ length^power over the tiles of a loop that the mask allows.

        Their number differs between the tiles of the outer loop. So a symbol stands for this sum until the outer loop
        is summed.
        """
        assert loop.when
        if loop.when.rows.parent is not None and loop.when.rows.parent.parent is not None:
            raise UsageError(
                f"a closed form under a mask needs tiles of a whole dimension; those of {loop.when.rows.name} are cut "
                f"from tiles of {loop.when.rows.parent.block}. `count` takes any size."
            )
        inner_rows = loop.when.rows is loop.range
        other = loop.when.columns if inner_rows else loop.when.rows
        if other.parent is not None:
            dummy = sympy.Dummy("left", integer=True, nonnegative=True)
            self.left[dummy] = loop.when, loop.range, power
            return dummy
        some = self.tiles.sum(loop.when.rows, loop.when.columns, power * inner_rows, power * (not inner_rows))
        return self.tiles.all(loop.range, power) - some if loop.when.none else some

    def _both(self, dummy: sympy.Dummy, power: int, outer: ir.Range) -> sympy.Expr:
        """Sum length^power times the symbol's sum over an outer loop."""
        meeting, inner, inner_power = self.left[dummy]
        powers = {outer: power, inner: inner_power}
        return self.tiles.sum(meeting.rows, meeting.columns, powers[meeting.rows], powers[meeting.columns])


def _power(rest: sympy.Expr, length: sympy.Symbol) -> int:
    if rest not in (1, length):
        raise UsageError("a closed form under a mask needs traffic that is linear in the sizes of the tiles.")
    return int(rest == length)


def _over_all(rest: sympy.Expr, length: sympy.Symbol, rng: ir.Range, lengths: Lengths) -> sympy.Expr:
    """Sum a term over all tiles of a range: the full tiles and the last one."""
    assert rng.parent is not None
    whole, block = _length(rng.parent, lengths), size(rng)
    tiles = _tiles(whole, block)
    if rng.after is not None:
        whole = _remaining_length(rng, lengths)
        tiles = tiles - 1 if rng.after == rng.block else _tiles(whole, block)
    if rest == 1:
        return tiles
    if rest == length:
        return whole
    last = whole - (tiles - 1) * block
    return (tiles - 1) * rest.subs(length, block) + rest.subs(length, last)


def _levels(body: list[ir.Node], lengths: Lengths, resident: sympy.Expr) -> tuple[list[sympy.Expr], sympy.Expr]:
    """Return resident words after each entry of a tile and at the end, in first iterations (the largest tiles)."""
    levels = []
    for node in body:
        if isinstance(node, ir.Loop):
            inner, before = lengths | {node.range: _longest(node.range, lengths)}, resident
            inner_levels, resident = _levels(node.body, inner, resident)
            if node.range.after is not None:  # the loop may not run
                runs = sympy.Min(1, _remaining_length(node.range, lengths))
                inner_levels = [sympy.expand(before + runs * (level - before)) for level in inner_levels]
            levels += inner_levels
        elif tile := ir.entering(node):
            resident += _words(tile.ranges, lengths)
            levels.append(sympy.expand(resident))
        elif tile := ir.leaving(node):
            resident -= _words(tile.ranges, lengths)
    return levels, sympy.expand(resident)


def _largest(levels: list[sympy.Expr]) -> sympy.Expr:
    """Return the maximum of sums with positive terms, without sums that another one dominates term by term."""

    def below(a: sympy.Expr, b: sympy.Expr) -> bool:
        small, large = a.as_coefficients_dict(), b.as_coefficients_dict()
        return all(coefficient <= large.get(term, 0) for term, coefficient in small.items())

    kept: list[sympy.Expr] = []
    for level in dict.fromkeys(levels):
        if not any(below(level, other) for other in kept):
            kept = [other for other in kept if not below(other, level)] + [level]
    return kept[0] if len(kept) == 1 else sympy.Max(*kept, evaluate=False)
