"""The peak of red pebbles of a game under a mask, computed without playing it.

Like `peak`, but every tile of rows and columns is visited, because tiles differ in their allowed pairs, and elements of
a sum differ in their numbers of terms. A sum without terms has no pebble until it is used; then it is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.analysis.masked_constants import Constants
from pebblesim.analysis.peak import Occupancy, pebbles_of_a_term, summation_scope, transfer_state
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask

Array = NDArray[Any]


def masked_peak_red(program: ir.Program, sizes: ir.Sizes, mask: Mask, summation: str = "chain") -> int:
    """Most red pebbles at any moment of the game on chains, or with sums in place, under a mask.

    Raises:
        UsageError: the sizes are too large to visit all tiles.
    """
    allowed, left_out = mask.allowed(*program.grid(sizes)), Constants(program, sizes, mask).left_out
    return max(_MaskedOccupancy(sizes, summation, allowed, left_out).run(phase) for phase in program.phases)


class _MaskedOccupancy(Occupancy):
    """Run a phase on numbers of pebbles, element by element where sums differ."""

    def __init__(self, sizes: ir.Sizes, summation: str, allowed: Array, left_out: Mapping[int, Array]) -> None:
        super().__init__(sizes, summation)
        self.allowed, self.left_out = allowed, left_out
        self.done: dict[ir.Tile, Array] = {}  # for a partial sum: whether its elements have terms
        self.empty: dict[ir.Tile, Array] = {}  # ... and whether they will never have terms
        self.apart: dict[ir.Tile, Array] = {}  # for a separate sum: whether its elements have terms

    def _runs(self, when: ir.MaskCondition | None) -> bool:
        return when is None or bool(self._pairs((when.rows, when.columns)).any()) != when.none

    def _picked(self, loop: ir.Loop, last: int, ragged: bool) -> list[int]:
        if loop.range.pairs is None:  # what is filled in the first iteration, is held in the last
            return sorted({*super()._picked(loop, last, ragged), last})
        self._charge(last)
        return list(range(last + 1))

    def _is_steady(self, before: Mapping[ir.Tile, int]) -> bool:
        return False

    def _end(self, loop: ir.Loop) -> None:
        """Nothing to do: it is known for each element whether it has terms."""

    def _slice(self, rng: ir.Range) -> slice:
        if rng.parent is None:
            return slice(0, self.sizes[rng.name])
        return slice(self.offset[rng], self.offset[rng] + self.length[rng])

    def _pairs(self, ranges: ir.Ranges) -> Array:
        return self.allowed[tuple(map(self._slice, ranges))]

    def _shape(self, ranges: ir.Ranges) -> tuple[int, ...]:
        return tuple(self._words((rng,)) for rng in ranges)

    def _before(self, node: ir.Node) -> None:
        match node:
            case ir.Zeros(tile=tile):
                self.done[tile] = np.zeros(self._shape(tile.ranges), bool)
                self.empty[tile] = np.ones((1,) * len(tile.ranges), bool)
            case ir.Delete(tile=tile):
                self.done.pop(tile, None)
            case ir.Write(tile=tile):
                self._fill(tile, tile.ranges)
            case ir.Move(tile=tile, source=source):
                self._fill(source, source.ranges)
                self.done.pop(tile, None)
                transfer_state(self.apart, source, tile)
            case ir.Compute(target=target, expr=expr, mode=mode):
                for ref in (*ir.refs(expr), *([target] if mode == "assign" else ())):
                    self._fill(ref.tile, ref.ranges)

    def _fill(self, tile: ir.Tile, ranges: ir.Ranges) -> None:
        """Turn sums without terms into constants.

        If only a part of the tile is used, the other sums are still in progress.
        """
        if tile in self.done:
            done, part = self.done[tile], self._within(ranges, tile)
            without = (self.empty[tile] & ~done)[part]
            self._hold(tile, int(without.sum()))
            done[part] |= without
            if ranges == tile.ranges:
                del self.done[tile]

    def _compute(self, node: ir.Compute) -> None:
        tile, expr, ranges = node.target.tile, node.expr, node.target.ranges
        self.apart.pop(tile, None)
        if isinstance(expr, ir.Elementwise):
            super()._compute(node)
            return
        term = 1
        if isinstance(expr, ir.RowReduction):
            term = pebbles_of_a_term(expr)
        shape = self._shape(ranges)
        new = np.broadcast_to(self._new_terms(node, ranges), shape)
        if node.mode == "new":
            self.live.setdefault(tile, 0)
            self.within[tile] = frozenset(self.open)
            before, after = np.zeros(shape, bool), np.ones(shape, bool)
        elif tile in self.done:
            before = self.done[tile][self._within(ranges, tile)]
            after = before | (new > 0)
        else:  # the sum is added to a value, or to a partial sum from memory
            before = after = np.ones(shape, bool)
        peak = np.where(before, 0, np.where(new > 0, max(term, 1), after))
        peak = np.maximum(peak, np.where((new > 0) & (before + new > 1), 1 + self._to_add(expr), 0))
        self._in_turn(*(x.astype(np.int64).ravel() for x in (before, after, peak)))
        self._hold(tile, int(after.sum()) - int(before.sum()))
        if node.mode == "new" or (tile in self.done and tile not in self.values):
            whole = summation_scope(ir.index_of(expr), self.within[tile])
            without = self._without_terms(node, whole)
            if isinstance(expr, ir.MatMul) and whole.parent is not None:
                self.apart[tile] = np.broadcast_to(~without, self._shape(tile.ranges))
        if tile in self.done:
            self.done[tile][self._within(ranges, tile)] = after
            self.empty[tile] = without

    def _in_turn(self, before: Array, after: Array, peak: Array) -> None:
        """Add the terms of the target's elements, one element after the other."""
        others = self.red - int(before.sum())
        held = np.cumsum(after) - after + before.sum() - np.cumsum(before) + peak
        if peak.any():
            self._reach(others + int(held[peak > 0].max()))

    def _within(self, ranges: ir.Ranges, tile: ir.Tile) -> tuple[slice, ...]:
        parts, whole = map(self._slice, ranges), map(self._slice, tile.ranges)
        return tuple(slice(p.start - w.start, p.stop - w.start) for p, w in zip(parts, whole, strict=True))

    def _new_terms(self, node: ir.Compute, ranges: ir.Ranges) -> Array:
        """Number of terms that each element of a target gets."""
        expr = node.expr
        if isinstance(expr, ir.MatMul) and expr.left.tile in self.apart:  # sums without terms are not among these
            present = self.apart[expr.left.tile]
            return np.asarray((present.T if expr.left.transposed else present)[0].sum())
        index = ir.index_of(expr)
        lines = self._lines(node, ranges)
        if lines is not None:
            return lines[..., self._slice(index)].sum(axis=-1)
        terms = np.asarray(self._words((index,)))
        if id(node) in self.left_out:
            terms -= np.broadcast_to(self.left_out[id(node)], self.sizes[index.dim])[self._slice(index)].sum()
        return terms * self._pairs(ranges) if ir.over_pairs(ranges) else terms

    def _without_terms(self, node: ir.Compute, whole: ir.Range) -> Array:
        """Return the elements of the target that get no terms, here or anywhere else in the range of the sum."""
        tile = node.target.tile
        if isinstance(node.expr, ir.MatMul) and node.expr.left.tile in self.apart and tile in self.done:
            return np.asarray(~self.done[tile])
        lines = self._lines(node, tile.ranges)
        if lines is not None:
            return np.asarray(~lines[..., self._slice(whole)].any(axis=-1))
        return ~self._pairs(tile.ranges) if ir.over_pairs(tile.ranges) else np.zeros((1,) * len(tile.ranges), bool)

    def _lines(self, node: ir.Compute, ranges: ir.Ranges) -> Array | None:
        """For a sum over pairs: the pairs of each element's line, in a shape that broadcasts to (*ranges, line)."""
        expr = node.expr
        if isinstance(expr, ir.RowReduction):
            return self.allowed[self._slice(ranges[0])] if ir.over_pairs(expr.operand.shape) else None
        assert isinstance(expr, ir.MatMul)
        if ir.over_pairs(expr.left.tile.ranges):
            return (self.allowed.T if expr.left.transposed else self.allowed)[self._slice(ranges[0]), None]
        if ir.over_pairs(expr.right.tile.ranges):
            return (self.allowed if expr.right.transposed else self.allowed.T)[None, self._slice(ranges[1])]
        return None
