"""A schedule as plain data and JavaScript: the words it moves, the cache it needs, and its loops.

The page of `pebblesim explore` computes with them, in exact integers. A function of sizes is text in which `s` holds
dimensions and blocks by name, `up(a, b)` is ⌈a/b⌉, and each number ends in `@`: without it the text computes with
doubles, with `n` in its place with integers of any length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pebblesim.analysis.blocks import parts
from pebblesim.analysis.cache_needed import Levels, first_length, levels
from pebblesim.analysis.peak import (
    SPARED,
    changed_in_parts,
    changes_outside,
    fed_outside,
    intermediates,
    pebbles_of_a_term,
)
from pebblesim.analysis.terms_of_tiles import TermsOfTiles, Tiles
from pebblesim.analysis.words_moved import Words
from pebblesim.language import program as ir
from pebblesim.language.registry import Schedule

SAMPLE = 97
"""Any size: the terms of a schedule are the same at all sizes."""


def exported(schedule: Schedule) -> dict[str, Any] | None:
    """Return a schedule as plain data; None if its blocks are chosen by a search of all sizes.

    Returns:
        "words": the words moved; "masked": the same under a causal mask or a window, None if it takes none; "parts":
        for each part whose blocks are chosen together its `groups` of blocks, the dimensions that each block `cuts`,
        its `words`, and bounds `least` and `most` on its cache; "program": its loops, for the exact cache.
    """
    program, dims = schedule.program, dict.fromkeys(schedule.program.dims, SAMPLE)
    words = _words(Words(program.phases, dims, None))
    if words is None:
        return None
    made = []
    for part in parts(schedule, dims, "chain", None):
        if not part.words.nonincreasing:
            return None
        phases = part.room.program.phases
        high, low = _room(map(levels, phases))
        made.append(
            {
                "groups": part.groups,
                "cuts": {name: _cut_by(phases, name) for group in part.groups for name in group},
                "matter": sorted(part.words.blocks),
                "enumerate": sorted(map(str, part.words.blocks_to_enumerate)),
                "words": _words(part.words),
                "least": low,
                "most": high,
                "phases": [program.phases.index(phase) for phase in phases],
            }
        )
    return {"words": words, "masked": _masked(schedule), "parts": made, "program": _program(program)}


def _masked(schedule: Schedule) -> str | None:
    """Return the words under a mask that leaves each query and each key a pair; None if the schedule takes no mask."""
    from pebblesim.language.masks import of

    if not schedule.maskable:
        return None
    counted = Words(schedule.masked.phases, dict.fromkeys(schedule.program.dims, SAMPLE), of("causal"))
    without_pairs = (
        isinstance(node, ir.Loop) and node.when and node.when.none for body in counted.masked for node in body
    )
    return _words(counted) if all(without_pairs) else None


# -- words moved and cache needed, as text ----------------------------------------------------------------------------


def _words(words: Words) -> str | None:
    """Return the words as a function of the sizes; None if tiles of tiles are summed."""
    texts = []
    for term, times in words.terms.items():
        tiles = [*term.tiles, *((None, each) for each in term.pairs or () if each is not None)]
        if term.cut_twice or any(each.parts or each.power > 1 for _, each in tiles):
            return None
        texts.append("*".join([f"{times}@", *(f"s.{dim}" for dim in term.dims), *_factors(term)]))
    return " + ".join(texts) or "0@"


def _factors(term: TermsOfTiles) -> list[str]:
    factors = [_tiles(dim, tiles) for dim, tiles in term.tiles]
    if term.pairs is not None:
        (a, p), (b, q) = (("null", 0) if pair is None else (_size(pair.block), pair.power) for pair in term.pairs)
        factors.append(f"causal(s, {a}, {p}, {b}, {q})")
    return factors


def _tiles(dim: str, tiles: Tiles) -> str:
    """Return the number of tiles of a dimension, or of indices in them."""
    whole, block = f"s.{dim}", _size(tiles.block)
    if tiles.first:
        return f"min({whole}, {block})" if tiles.power else "1@"
    if tiles.after is not None:
        whole = f"max(0@, {whole} - {_size(tiles.after)})"
    return whole if tiles.power else f"up({whole}, {block})"


def _size(size: str | int) -> str:
    return f"s.{size}" if isinstance(size, str) else f"{size}@"


def _room(phases: Iterable[Levels]) -> tuple[str, str]:
    """Return an upper bound on the pebbles of smaller blocks, and a lower bound on those of larger blocks."""
    high, low = ["0"], ["0"]
    for phase in phases:
        high += [f"{_sum(words)} + {phase.passing}" for words in phase.high]
        for words, loops in phase.low:
            twice = " && ".join(sorted({_runs_twice(rng) for rng, _ in loops}))
            low.append(f"({twice} ? {_sum(words)} : 0)" if twice else _sum(words))
    return tuple(f"max({', '.join(dict.fromkeys(each))})" for each in (high, low))  # type: ignore[return-value]


def _runs_twice(rng: ir.Range) -> str:
    assert rng.parent is not None
    before = "" if rng.after is None else f" - {_number(rng.after)}"
    return f"{_length(first_length(rng.parent))}{before} >= 2 * {_number(rng.block)}"


def _sum(words: Mapping[tuple[Any, ...], int]) -> str:
    return " + ".join("*".join([str(times), *map(_length, lengths)]) for lengths, times in words.items()) or "0"


def _length(length: tuple[str, tuple[str | int, ...]]) -> str:
    dim, cuts = length
    return f"min({', '.join([f's.{dim}', *map(_number, cuts)])})" if cuts else f"s.{dim}"


def _number(size: str | int) -> str:
    return f"s.{size}" if isinstance(size, str) else str(size)


def _cut_by(phases: Iterable[ir.Phase], block: str) -> list[str]:
    """Return the dimensions that a block cuts."""
    loops = (node for phase in phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop))
    return sorted({loop.range.dim for loop in loops if loop.range.block == block})


# -- the loops, as plain data -----------------------------------------------------------------------------------------


def _program(program: ir.Program) -> dict[str, Any]:
    """Return the loops of a program, with what the peak of red pebbles depends on (`pebblesim.analysis.peak`)."""
    made = _Numbered()
    phases = [[made.node(node) for node in phase.body] for phase in program.phases]
    return {"phases": phases, "ranges": made.ranges, "tiles": made.tiles}


class _Numbered:
    """Ranges and tiles by number, in the order in which they are met.

    Attributes:
        ranges: [dimension, number of the parent or -1, block, whether first, block before or None] of each.
        tiles: the ranges of each.
    """

    def __init__(self) -> None:
        self.ranges: list[list[Any]] = []
        self.tiles: list[list[int]] = []
        self._numbers: dict[object, int] = {}

    def range(self, rng: ir.Range) -> int:
        if rng not in self._numbers:
            parent = -1 if rng.parent is None else self.range(rng.parent)
            self._numbers[rng] = len(self.ranges)
            self.ranges.append([rng.dim, parent, rng.block, rng.first, rng.after])
        return self._numbers[rng]

    def tile(self, tile: ir.Tile) -> int:
        if tile not in self._numbers:
            ranges = [self.range(rng) for rng in tile.ranges]
            self._numbers[tile] = len(self.tiles)
            self.tiles.append(ranges)
        return self._numbers[tile]

    def node(self, node: ir.Node) -> list[Any]:
        match node:
            case ir.Loop():
                fed, parts = (sorted(map(self.tile, found(node))) for found in (fed_outside, changed_in_parts))
                picked = 2 if fed else 1 if changes_outside(node) else 0
                return ["loop", self.range(node.range), picked, fed, parts, [self.node(each) for each in node.body]]
            case ir.Init():
                return ["init"]
            case ir.Move(tile=tile, source=source):
                return ["move", self.tile(tile), self.tile(source)]
            case ir.Compute(target=target, expr=expr, mode=mode):
                ranges = [self.range(rng) for rng in target.ranges]
                return ["compute", self.tile(target.tile), ranges, mode, *self._expression(expr)]
            case _:
                return [type(node).__name__.lower(), self.tile(node.tile)]

    def _expression(self, expr: ir.Expr) -> list[Any]:
        match expr:
            case ir.Elementwise():
                return ["elementwise", intermediates(expr)]
            case ir.MatMul(left=left, right=right):
                return ["sum", self.range(left.shape[1]), 1, SPARED, [self.tile(left.tile), self.tile(right.tile)]]
            case ir.RowReduction(operand=operand):
                term = pebbles_of_a_term(expr)
                return ["sum", self.range(operand.shape[1]), term, SPARED if isinstance(operand, ir.Ref) else term, []]
        raise TypeError(expr)
