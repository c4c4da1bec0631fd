"""The words moved in tiles that a mask lets run, in closed form: those of primitives under one condition of it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from pebblesim.analysis.functions_of_blocks import Sizes, compiled
from pebblesim.analysis.terms_of_tiles import conditions_on, cut_in, parts_of, term_of
from pebblesim.analysis.totals import kinds_of
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.tile_ranges import Copies, Grid, TileRange

_Cut = tuple[tuple[str | int, bool, str | int | None], ...]  # block, first, after: of tiles, and of those that they cut


class _Condition(NamedTuple):
    """Which tiles of rows and of columns run: those with an allowed pair, or those without; alike for many loops."""

    rows: _Cut
    columns: _Cut
    none: bool


class WordsOfPairs:
    """The words of primitives, each of which runs for tiles of rows and of columns with a pair, or without one."""

    def __init__(self, dims: Sizes) -> None:
        self._dims = dims
        self._texts: dict[_Condition, list[str]] = {}
        self._ends: dict[_Condition, tuple[ir.Range, ir.Range]] = {}
        self._words: list[tuple[_Condition, Callable[..., int]]] = []

    def add(self, ranges: ir.Ranges, times: int, loops: tuple[ir.Loop, ...]) -> bool:
        """Add so many tiles of these ranges in these loops, unless they have no closed form; whether they have one."""
        met = conditions_on(loops)
        if len(met) != 1:
            return False
        inside, ends = cut_in(loops), (met[0].rows, met[0].columns)
        texts = [term_of(ranges, loops, met[0]).total(times, self._dims)]
        for rng, length in zip(ends, ("tall", "wide"), strict=True):
            if rng.parent is None:
                continue  # the whole dimension
            outer = rng.parent if rng.parent.parent else None
            if rng not in inside.get(rng.parent, ()) or (outer and (outer in ranges or inside[outer] != [rng])):
                return False  # it is not in a loop over it, or the words depend on what it is cut from
            if outer and outer is not rng.outermost:
                return False
            power, parts = parts_of(rng, ranges, inside)
            texts += [*[length] * power, *(part.total(length) for part in parts)]
        condition = _Condition(_cut(ends[0]), _cut(ends[1]), met[0].none)
        self._ends[condition] = ends
        self._texts.setdefault(condition, []).append(" * ".join(map("({})".format, texts)))
        return True

    def compile(self) -> None:
        """Make one function of all words under the same condition."""
        self._words = [(each, compiled(" + ".join(texts), "s, tall, wide")) for each, texts in self._texts.items()]

    def __call__(self, mask: Mask, grid: Grid, blocks: Sizes) -> int:
        total = 0
        for condition, words in self._words:
            rows, columns = map(_places, self._ends[condition], grid, (blocks, blocks))
            for tall in rows:
                for wide in columns:
                    met = mask.tiles_of_copies(grid, tall, wide)
                    if condition.none:
                        met = prod(each.number * each.tiles.number for each in (tall, wide)) - met
                    if met:
                        total += met * words(blocks, tall.tiles.block, wide.tiles.block)
        return total


def _cut(rng: ir.Range) -> _Cut:
    return tuple((each.block, each.first, each.after) for each in rng.around if each.parent is not None)


def _places(rng: ir.Range, whole: int, sizes: Sizes) -> list[Copies]:
    """The tiles of each length among so many indices of a dimension."""
    if rng.parent is None:
        return [Copies(TileRange(0, whole, whole))]
    if rng.parent.parent is None:
        return [Copies(kind) for kind in kinds_of(rng, whole, sizes)]
    found = []
    for outer in kinds_of(rng.parent, whole, sizes):
        kinds = kinds_of(rng, outer.block, sizes)
        if len({kind.block for kind in kinds}) == 1 and kinds[-1].stop - kinds[0].start == outer.block:
            found.append(Copies(outer._replace(block=kinds[0].block)))  # all alike, and one after the other
            continue
        for kind in kinds:
            place = TileRange(outer.start + kind.start, outer.start + kind.stop, kind.block)
            found.append(Copies(place, outer.block, outer.number))
    return found
