"""`formula`: the exact closed form of a program's traffic and peak, ceilings included, as sympy expressions.

A tile's traffic is the product of its lengths. Summed over the tiles of a range, power 0 of the length gives the number
of tiles, and power 1 the length of the range. Any other expression is evaluated at a full tile, times the number of
full tiles, plus once at the last tile. No formula is written by hand.

Under a mask the sums are over the tiles with an allowed pair: their number, rows, columns and pairs, as functions of
the blocks. For a band, such as a causal mask, these also have closed forms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import product
from typing import Any

import sympy

from pebblesim.analysis.compiled import compile_exact
from pebblesim.analysis.masked_sums import MaskSums, plain, size, symbol
from pebblesim.analysis.terms_of_tiles import Tiles, conditions_on, term_of
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
        peak_words: most words resident between two primitives, where the largest tiles have an allowed pair.
        peak_is_bound: whether perhaps none of them has one, so that `peak_words` is an upper bound: under an unknown
            mask, and under a band where queries and keys differ in number. `count` has the peak for given sizes.
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
    peak_is_bound: bool = False

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
            "peak_is_bound": self.peak_is_bound,
        }

    def __str__(self) -> str:
        return "\n".join(f"{name:<11}{self._relation(name, '≤')} {written(expr)}" for name, expr in self.lines.items())

    def _relation(self, name: str, bounded: str) -> str:
        """Return the sign between a quantity and its closed form."""
        return bounded if name == "peak words" and self.peak_is_bound else "="

    @cached_property
    def evaluate(self) -> Callable[..., Any]:
        """The I/O as a function: `evaluate(n=…, d=…, B=…)` is an exact integer, or an array for arrays of sizes."""
        return self.function_of("io")

    def function_of(self, name: str) -> Callable[..., Any]:
        """Return "reads", "writes", "io" or "peak_words" as a function, like `evaluate`."""
        return compile_exact(getattr(self, name), self.variables)

    def latex(self) -> str:
        """Reads, writes, I/O and peak words, as an `align*` environment of LaTeX."""
        return align(
            (rf"\text{{{name}}}", " ".join((self._relation(name, r"\le"), in_latex(expr))))
            for name, expr in self.lines.items()
        )


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
        moved: dict[str, Traffic] = defaultdict(Traffic)
        for name, traffic in _traffic(phase.body, mask):
            moved[name] += traffic.each(sympy.expand)
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
        any(_may_miss_the_largest(phase.body, mask) for phase in program.phases),
    )


def _may_miss_the_largest(body: list[ir.Node], mask: Band | None) -> bool:
    """Whether a mask may leave out the first tiles, the largest; in a square a band has their diagonal pair."""
    conditions = (node.when for node in ir.walk(body) if isinstance(node, ir.Loop) and node.when)
    return any(mask is None or when.rows.dim != when.columns.dim for when in conditions)


def _traffic(body: list[ir.Node], mask: Band | None, loops: tuple[ir.Loop, ...] = ()) -> Iterator[tuple[str, Traffic]]:
    """Yield the tensor and the traffic of each primitive of a body that moves words, over all its iterations."""
    for node in body:
        if isinstance(node, ir.Loop):
            yield from _traffic(node.body, mask, (*loops, node))
        elif isinstance(node, ir.Read | ir.Write | ir.Init):
            words = _moved(ir.moved_part(node), loops, mask)
            yield node.tensor.name, Traffic(words, 0) if isinstance(node, ir.Read) else Traffic(0, words)


def _moved(ranges: ir.Ranges, loops: tuple[ir.Loop, ...], mask: Band | None) -> sympy.Expr:
    """Return the words of a tile, summed over all iterations of the loops around it."""
    met = conditions_on(loops)
    term = term_of(ranges, loops, met[0] if met else None)
    words = sympy.Mul(*map(symbol, term.dims), *(_sum(tiles, symbol(dim)) for dim, tiles in term.tiles))
    return words * _over_pairs(met[0], term.pairs, mask) if term.pairs else words


def _over_pairs(condition: ir.MaskCondition, pairs: tuple[Tiles | None, Tiles | None], mask: Band | None) -> sympy.Expr:
    """Return Σ f(height) · g(width) over the tiles that the mask allows, or over those that it does not.

    f and g are the words of one tile of rows and of columns.
    """
    sides = condition.rows, condition.columns
    for rng in sides:
        if rng.apart:
            raise UsageError(
                f"a closed form under a mask needs tiles that are all alike; a first part of {rng.dim} is apart. "
                "`count` takes any size."
            )
        if rng.parent is not None and rng.parent.parent is not None:
            raise UsageError(
                f"a closed form under a mask needs tiles of a whole dimension; those of {rng.name} are cut "
                f"from tiles of {rng.parent.block}. `count` takes any size."
            )
    sums, total = MaskSums(mask), sympy.Integer(0)
    for powers in product(*(_linear(tiles, symbol(rng.dim)) for rng, tiles in zip(sides, pairs, strict=True))):
        of_rows, of_columns = powers
        some = sums.sum(*sides, of_rows[0], of_columns[0])
        if condition.none:
            (cut,) = (number for number, rng in enumerate(sides) if rng.parent is not None)
            some = sums.all(sides[cut], powers[cut][0]) - some
        total += of_rows[1] * of_columns[1] * some
    return total


def _linear(tiles: Tiles | None, whole: sympy.Expr) -> list[tuple[int, sympy.Expr]]:
    """Write the words of one tile as a + b · length, and return the pairs (0, a) and (1, b), or one of them.

    Tiles have two lengths, the block and that of the last tile, and a line goes through any two values.
    """
    if tiles is None or (not tiles.parts and tiles.power < 2):
        return [(0 if tiles is None else tiles.power, sympy.Integer(1))]
    block = size(tiles.block)
    last = whole - (_tiles(whole, block) - 1) * block
    slope = (_of_one(tiles, block) - _of_one(tiles, last)) / sympy.Max(1, block - last)
    return [(0, _of_one(tiles, last) - slope * last), (1, slope)]


def _of_one(tiles: Tiles, length: sympy.Expr) -> sympy.Expr:
    """The words of one tile of this length."""
    return sympy.Mul(length**tiles.power, *(_sum(part, length) for part in tiles.parts))


@cache
def _sum(tiles: Tiles, whole: sympy.Expr) -> sympy.Expr:
    """Sum over the tiles of this number of indices: the full tiles and the last one."""
    block, number = size(tiles.block), _tiles(whole, size(tiles.block))
    if tiles.first:
        return _of_one(tiles, _smaller(whole, block))
    if tiles.after is not None:
        whole = whole - _smaller(whole, size(tiles.after))
        number = number - 1 if tiles.after == tiles.block else _tiles(whole, block)
    total, length = sympy.Integer(0), sympy.Dummy("length", integer=True, positive=True)
    for term in sympy.Add.make_args(sympy.expand(_of_one(tiles, length))):
        factor, rest = term.as_independent(length)
        if rest in (1, length):
            total += factor * (number if rest == 1 else whole)
        else:
            last = whole - (number - 1) * block
            total += factor * ((number - 1) * rest.subs(length, block) + rest.subs(length, last))
    return total


@cache  # sympy tries to compare the two, which takes long
def _smaller(whole: sympy.Expr, block: sympy.Expr) -> sympy.Expr:
    return sympy.Min(whole, block)


@cache  # sympy asks whether it is a whole number, again and again
def _tiles(whole: sympy.Expr, block: sympy.Expr) -> sympy.Expr:
    return sympy.ceiling(whole / block)


def _length(rng: ir.Range, lengths: Lengths) -> sympy.Expr:
    return symbol(rng.name) if rng.parent is None else lengths[rng]


def _remaining_length(rng: ir.Range, lengths: Lengths) -> sympy.Expr:
    """Return the number of indices after a first part."""
    assert rng.parent is not None and rng.after is not None
    whole = _length(rng.parent, lengths)
    return whole - _smaller(whole, size(rng.after))


def _longest(rng: ir.Range, lengths: Lengths) -> sympy.Expr:
    """Return the length of a range's first tile, which is the largest."""
    assert rng.parent is not None
    apart = rng.after is not None and rng.block != 1
    return _smaller(_remaining_length(rng, lengths) if apart else _length(rng.parent, lengths), size(rng.block))


def _words(ranges: ir.Ranges, lengths: Lengths) -> sympy.Expr:
    return sympy.Mul(*(_length(rng, lengths) for rng in ranges))


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
