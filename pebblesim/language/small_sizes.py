"""Small sizes of a traced program at which each of its loops has several iterations, the last one often ragged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import NamedTuple

from pebblesim.language import program as ir

DRAWS, LEAST = 3, 4
"""How many sizes are drawn at which each loop has at least `LEAST` iterations: so many, one more, two more."""

MANY = (129, 65, 33, 17, 9, 6)
"""Iterations of one loop while the others have as few as two: the most for which there are few enough moves."""

MOVES, ALL_MOVES = 1200, 5000
"""About how many moves a program makes at such sizes, and at all of them together."""


class _Cut(NamedTuple):
    """A loop over the tiles by `block` of a dimension or of an outer tile; `whole` is its size, a name or a number."""

    whole: str | int
    block: str | int
    after: str | int | None
    first: bool


_Times = Mapping[_Cut, int]


def _cut(rng: ir.Range) -> _Cut:
    assert rng.parent is not None
    whole = rng.parent.name if rng.parent.parent is None else rng.parent.block
    return _Cut(whole, rng.block, rng.after, rng.first)


def small_sizes(program: ir.Program) -> Iterator[dict[str, int]]:
    """Yield sizes of the dimensions and blocks of a program; they depend on nothing but the program.

    If loops are nested so deep that the program would make too many moves, each has `LEAST` iterations at some sizes,
    and as few as one at the others. A loop over tiles of a given number of indices may have fewer.
    """
    loops = [node for phase in program.phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop)]
    cuts = list(dict.fromkeys(_cut(loop.range) for loop in loops))
    draw, made = Random(0), 0

    def chosen(times: _Times) -> _Sizes:
        seed = draw.random()
        larger = (_Sizes(program, times, seed, most) for most in (3, 2))
        return next((sizes for sizes in larger if sizes.moves <= MOVES), _Sizes(program, times, seed, 1))

    tried = [(2, turns) for turns in range(1, DRAWS + 1)] + [(1, turns) for turns in range(1, len(cuts) + 1)]
    for few, number in tried:
        turns = [{cut: LEAST if at % number == turn else few for at, cut in enumerate(cuts)} for turn in range(number)]
        if all(_Sizes(program, times, 0, 1).moves <= MOVES for times in turns):
            break
    for number in range(max(DRAWS, len(turns))):
        times = turns[number % len(turns)]
        sizes = chosen({cut: each + number % DRAWS if each == LEAST else each for cut, each in times.items()})
        sizes = sizes if sizes.moves <= MOVES else chosen(times)
        made += sizes.moves
        large = sizes.moves > 10 * MOVES  # because of blocks of many indices, with a loop over these
        yield {name: min(size, LEAST) for name, size in sizes.of.items()} if large else sizes.of
    for cut in cuts:
        for many in () if cut.first else MANY:
            sizes = chosen({**dict.fromkeys(cuts, 2), cut: many})
            if sizes.moves <= min(MOVES, ALL_MOVES - made):
                made += sizes.moves
                yield sizes.of
                break


class _Sizes:
    """Sizes at which each loop has so many iterations, or more where others need them.

    Attributes:
        of: the value of each dimension and block.
        moves: about how many moves the program makes.
    """

    def __init__(self, program: ir.Program, times: _Times, seed: float, most: int) -> None:
        """Blocks are drawn from 1 ... `most`, as far as the loops leave them free."""
        draw = Random(seed)
        self._times = times
        self._drawn = {name: draw.randint(1, most) for name in (*program.dims, *program.blocks)}
        self._last = draw.random()  # how much of a block the last tile has
        self.of = {name: self._least(name) for name in self._drawn}
        for block in program.blocks:
            self._enlarge(block)
        self.moves = sum(self._moves(phase.body) for phase in program.phases)

    def _least(self, name: str | int, around: tuple[str, ...] = ()) -> int:
        """The least that the loops over its tiles need; of two that cut each other's tiles, only one is heard."""
        if isinstance(name, int):
            return name
        size, around = self._drawn[name], (*around, name)
        for cut, times in self._times.items():
            if cut.whole == name and cut.block not in around:
                block = self._least(cut.block, around)
                before = self._least(cut.after or 0, around) + (times - 1) * block
                size = max(size, before + 1 + round(self._last * (block - 1)))
            elif cut.block == name and isinstance(cut.whole, int):
                size = min(size, _largest(cut.whole, times))
        return size

    def _enlarge(self, block: str) -> None:
        """Make a block as large as its loops allow, which may have more iterations than they need."""
        cuts = {cut: times for cut, times in self._times.items() if cut.block == block and cut.whole != block}
        if cuts and not any(cut.after == block for cut in self._times):
            most = min(_largest(self._whole(cut), times) for cut, times in cuts.items())
            self.of[block] = max(self.of[block], most)

    def _whole(self, cut: _Cut) -> int:
        return ir.length(cut.whole, self.of) - ir.length(cut.after or 0, self.of)

    def _moves(self, body: list[ir.Node]) -> int:
        moves = 0
        for node in body:
            if isinstance(node, ir.Loop):
                cut = _cut(node.range)
                times = 1 if cut.first else -(-self._whole(cut) // ir.length(cut.block, self.of))
                moves += 1 + times * (1 + self._moves(node.body))
            else:
                moves += not (isinstance(node, ir.Delete) and node.implied)
        return moves


def _largest(whole: int, times: int) -> int:
    """Return the largest block that cuts so many indices into so many tiles, or more."""
    return whole if times == 1 else max(1, (whole - 1) // (times - 1))
