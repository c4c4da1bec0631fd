"""The cache that a program needs, as a function of its block sizes, without running its loops.

The peak of red pebbles (`pebblesim.analysis.peak`) takes milliseconds. These bounds on it, closed forms that are
compiled once from the program, take microseconds, hold for all smaller or all larger blocks, and mostly meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from pebblesim.analysis.functions_of_blocks import Sizes, compiled, text_of
from pebblesim.analysis.peak import CHAINS, intermediates, peak_red, spared
from pebblesim.language import program as ir

_Length = tuple[str, tuple[str | int, ...]]  # length of the first tile: the dimension, and the blocks that cut it
_Exact = tuple[str, tuple[tuple[str | int, str | int | None], ...]]  # each with the block that its tiles come after
_Sum = dict[tuple[Any, ...], int]  # words as a sum of products of lengths, each with its coefficient
_Whole = tuple[ir.Range, int]  # a loop, and the whole tiles that it has at least


class CacheNeed:
    """The peak of red pebbles of some phases, for block sizes, on summation trees of one shape."""

    def __init__(self, program: ir.Program, dims: Sizes, summation: str) -> None:
        self.program, self.dims, self.summation = program, dims, summation
        phases = [levels(phase) for phase in program.phases]
        low = [(words, {(rng, 2) for rng, _ in loops}) for phase in phases for words, loops in phase.low]
        self._low = _largest([(words, 0, loops) for words, loops in low], dims, first_length)
        self._high = _largest(
            [(words, phase.passing, ()) for phase in phases for words in phase.high], dims, first_length
        )
        here = [(words, 0, loops) for phase in phases for words, loops in phase.low_here]
        self._low_here = _largest(here, dims, _exact_length)
        here = [(words, phase.passing, frozenset()) for phase in phases for words in phase.high_here]
        self._high_here = _largest(here, dims, _exact_length)
        self._spared = spared(summation)
        self._known: dict[tuple[int, ...], int] = {}

    def least(self, blocks: Sizes) -> int:
        """Return a lower bound on the pebbles of games with blocks of these sizes or larger."""
        return self._low(blocks) - self._spared

    def most(self, blocks: Sizes) -> int | None:
        """Return an upper bound on the pebbles of games with blocks of these sizes or smaller; None if not known."""
        return self._high(blocks) if self.summation in CHAINS else None

    def __call__(self, blocks: Sizes) -> int:
        """Return the largest number of red pebbles at any time of the game."""
        key = tuple(blocks[name] for name in self.program.blocks)
        if key not in self._known and self.summation == CHAINS[0]:
            least, most = self._low_here(blocks), self._high_here(blocks)
            if least == most:
                self._known[key] = most
        if key not in self._known:
            self._known[key] = peak_red(self.program, {**self.dims, **blocks}, self.summation)
        return self._known[key]


def _largest(
    levels: Iterable[tuple[_Sum, int, Iterable[_Whole]]], dims: Sizes, length_of: Callable[[ir.Range], Any]
) -> Callable[[Sizes], int]:
    """Return a function of the block sizes: the largest of these numbers of pebbles.

    Each is a sum of products of lengths, as `length_of` makes them, plus a number. It counts only where its loops have
    so many whole tiles; where lengths are exact, one tile need not be whole.
    """
    names: dict[str, str] = {}

    def name(length: Any) -> str:
        text = _text_of_length(length, dims)
        return names.setdefault(text, f"x{len(names)}") if length[1] else text

    def has(rng: ir.Range, whole_tiles: int) -> str:
        assert rng.parent is not None
        before = "" if rng.after is None else f" - {text_of(rng.after)}"
        block = "1" if length_of is _exact_length and whole_tiles == 1 else text_of(rng.block)
        return f"{name(length_of(rng.parent))}{before} >= {whole_tiles} * {block}"

    texts: dict[str, None] = {}
    for words, more, loops in levels:
        products = ("*".join([str(times), *map(name, lengths)]) for lengths, times in words.items())
        conditions = " and ".join(sorted(has(*loop) for loop in loops))
        texts[f"{' + '.join([*products, str(more)])}" + (f" if {conditions} else 0" if conditions else "")] = None
    named = "".join(f"({name} := {text}), " for text, name in names.items())
    return compiled(f"({named}max(0, 0, {', '.join(texts)}),)[-1]")


@lru_cache(maxsize=1024)
def levels(phase: ir.Phase) -> Levels:
    """Return the tiles that a phase holds; they are the same for all sizes."""
    return Levels(phase.body)


class Levels:
    """The tiles that a phase holds in the first iterations of its loops, where tiles are largest.

    Attributes:
        high: the words of all resident tiles, after each primitive that brings a tile or computes.
        high_here: the same, with lengths that are exact behind a first part, and so only for the given blocks.
        low: (words, loops) as a lower bound on the pebbles: like `high`, but without sums that may have no term yet,
            because these have no pebble, and with the intermediates of values that are computed in place or added to
            complete tiles. For first iterations, where a loop after a first part has a whole tile; and for second ones,
            where the loop has two.
        low_here: the same for the given blocks, with exact lengths; a loop after a first part has a tile.
        passing: largest number of additional pebbles, on intermediates.
    """

    def __init__(self, body: list[ir.Node]) -> None:
        self.resident: dict[ir.Tile, _Sum] = {}
        self.full: set[ir.Tile] = set()
        self.partly: dict[ir.Tile, ir.Ranges] = {}  # for each sum, the part that has terms already
        self.passing = 0
        self.high_here: list[_Sum] = []
        self._low: dict[frozenset[_Whole], list[_Sum]] = {}
        self._seen: set[object] = set()  # sets of resident tiles, with those that have a pebble for each word
        self._walk(body, frozenset())
        self.high = _outermost(map(_without_places, self.high_here))
        self.high_here = _outermost(self.high_here)
        self.low_here = _of_fewest_loops(self._low)
        self.low = _of_fewest_loops({loops: [*map(_without_places, each)] for loops, each in self._low.items()})

    def _walk(self, body: list[ir.Node], second: frozenset[_Whole]) -> None:
        for node in body:
            match node:
                case ir.Loop(range=ir.Range(first=True), body=inner):
                    self._walk(inner, second)
                    continue
                case ir.Loop(range=rng, body=inner):
                    sure = rng.after is None  # otherwise the loop may have no iteration
                    before = self._state()
                    first = second if sure else second | {(rng, 1)}
                    self._walk(inner, first)
                    after = self._state() if sure else before
                    if self._state() != before:  # otherwise further iterations are like the first
                        self._walk(inner, first | {(rng, 2)})
                    self.full, self.partly = set(after[0]), dict(after[1])
                    if sure:
                        self._covered(rng)
                    continue
                case ir.Init():
                    self._pass(1, second)
                    continue
                case ir.Move(tile=tile, source=source):
                    (self.full.add if source in self.full else self.full.discard)(tile)
                case ir.Compute(target=target):
                    known = node.mode != "new" and target.tile in self.full
                    self._pass(_passing(node), second if known else None)
                    if node.mode == "add":
                        self.partly[target.tile] = target.ranges
                        self._fill(target.tile)
                case _:
                    pass
            if entered := ir.entering(node):
                self.resident[entered] = _words(entered.ranges)
                (self.full.discard if isinstance(node, ir.Zeros) else self.full.add)(entered)
            if left := ir.leaving(node):
                self.resident.pop(left, None)
                self.full.discard(left)
                self.partly.pop(left, None)
            resident = frozenset(self.resident)
            if resident not in self._seen:
                self._seen.add(resident)
                self.high_here.append(_added(self.resident.values()))
            self._hold(0, second)

    def _state(self) -> tuple[set[ir.Tile], dict[ir.Tile, ir.Ranges]]:
        """Return what an iteration depends on: the tiles that are complete, and the sums that are complete in part."""
        return set(self.full), dict(self.partly)

    def _pass(self, pebbles: int, second: frozenset[_Whole] | None) -> None:
        """Record intermediates; in these iterations, unless None, they are held in addition to all complete tiles."""
        self.passing = max(self.passing, pebbles)
        if second is not None:
            self._hold(pebbles, second)

    def _hold(self, passing: int, second: frozenset[_Whole]) -> None:
        """Record the tiles that have a pebble for each word, with this number of additional pebbles."""
        held = frozenset(self.full.intersection(self.resident))
        if (second, held, passing) not in self._seen:
            self._seen.add((second, held, passing))
            words = (words for tile, words in self.resident.items() if tile in held)
            self._low.setdefault(second, []).append(_added((*words, {(): passing})))

    def _covered(self, rng: ir.Range) -> None:
        """Record that a loop over the parts of a range has covered the whole range."""
        for tile, ranges in self.partly.items():
            if rng in ranges and rng.parent is not None:
                self.partly[tile] = tuple(rng.parent if each is rng else each for each in ranges)
                self._fill(tile)

    def _fill(self, tile: ir.Tile) -> None:
        if self.partly[tile] == tile.ranges:
            self.full.add(tile)


def _words(ranges: ir.Ranges) -> _Sum:
    return {tuple(sorted(map(_exact_length, ranges), key=repr)): 1}


def _exact_length(rng: ir.Range) -> _Exact:
    """Return the length of the first tile of a range: the blocks that cut it, each with the part that comes before."""
    if rng.parent is None:
        return rng.name, ()
    dim, cuts = _exact_length(rng.parent)
    return dim, (*cuts, (rng.block, rng.after))


def _text_of_length(length: _Length | _Exact, dims: Sizes) -> str:
    """Return a length as a function of the block sizes; that of a tile that is not there is 0."""
    dim, cuts = length
    text = str(dims[dim])
    for cut in cuts:
        block, after = cut if isinstance(cut, tuple) else (cut, None)
        text = f"min({text if after is None else f'max(0, {text} - {text_of(after)})'}, {text_of(block)})"
    return text


def _without_places(words: _Sum) -> _Sum:
    """Replace exact lengths by those of `first_length`, which are no smaller."""
    lengths = (
        tuple(sorted(((dim, tuple(dict.fromkeys(block for block, _ in cuts))) for dim, cuts in each), key=repr))
        for each in words
    )
    return _added({length: times} for length, times in zip(lengths, words.values(), strict=True))


def _of_fewest_loops(sums: Mapping[frozenset[_Whole], list[_Sum]]) -> list[tuple[_Sum, frozenset[_Whole]]]:
    """Return the sums that none of fewer loops exceeds, with their loops."""
    kept: list[tuple[_Sum, frozenset[_Whole]]] = []
    for loops in sorted(sums, key=len):
        others = [words for words, fewer in kept if fewer <= loops]
        kept += [(words, loops) for words in _outermost(sums[loops]) if not _below(words, others)]
    return kept


def first_length(rng: ir.Range) -> _Length:
    """Return the length of the first tile of a range: the dimension, and the blocks that cut it."""
    if rng.parent is None:
        return rng.name, ()
    dim, blocks = first_length(rng.parent)
    return dim, tuple(dict.fromkeys((*blocks, rng.block)))


def _added(parts: Iterable[_Sum]) -> _Sum:
    total: _Sum = {}
    for part in parts:
        for lengths, times in part.items():
            total[lengths] = total.get(lengths, 0) + times
    return total


def _outermost(sums: Iterable[_Sum]) -> list[_Sum]:
    """Return the sums that no other sum exceeds term by term."""
    kept: list[_Sum] = []
    for each in sums:
        if not _below(each, kept):
            kept = [other for other in kept if not _below(other, [each])] + [each]
    return kept


def _below(words: _Sum, others: Iterable[_Sum]) -> bool:
    return any(all(times <= other.get(lengths, 0) for lengths, times in words.items()) for other in others)


def _passing(node: ir.Compute) -> int:
    """Return the largest number of pebbles on intermediates while a node computes, without the words of its target."""
    match node.expr:
        case ir.Elementwise():
            return intermediates(node.expr)
        case ir.RowReduction(operand=operand):
            return max(2, 1 + (not isinstance(operand, ir.Ref)), intermediates(operand))
    return 2
