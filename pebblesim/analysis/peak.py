"""The largest number of red pebbles in a game, computed without playing it.

The game has a pebble for each word in cache, except for sums without a term, plus pebbles for the intermediates of the
element being computed: for example a term and a new partial sum, or all partial sums that a balanced tree keeps. The
program is run only on numbers of pebbles. Iterations that cannot differ are run once. If a loop adds to no sum outside
it, the first iteration represents all but the last. If it changes nothing outside it, and sums are chains, the first
represents the last, too, because a smaller tile holds no more. If it adds to sums outside it, and sums are chains,
every iteration after the first changes the same pebbles by the same number; if that is 0, the second represents all
after it. Only other summation trees need every iteration.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache, lru_cache
from typing import Any

from pebblesim.analysis.totals import words
from pebblesim.core.errors import UsageError
from pebblesim.core.sums import unknown_summation
from pebblesim.language import program as ir

IN_PLACE = "in-place"
CHAINS = ("chain", IN_PLACE)
"""Summations in which terms are added one after the other."""

SPARED = 2
"""Pebbles that sums in place do without: on a chain, a step needs one for the product and one for the new sum."""

MOST_STEPS = 3_000_000
"""Largest number of primitives that are run to find the peak, for summation trees other than chains."""


def spared(summation: str) -> int:
    """Return the largest number of pebbles that a game with these sums needs less than on chains."""
    return SPARED if summation == IN_PLACE else 0


def peak_red(program: ir.Program, sizes: ir.Sizes, summation: str = "chain") -> int:
    """Return the largest number of red pebbles at any time of the game.

    Args:
        program: a traced schedule.
        sizes: the value of each dimension and block, by name.
        summation: "chain", "balanced" or "blocked:b", the shape of the summation trees; or "in-place", chains whose
            next term is added in one step, a multiply-add: neither the product nor the new sum has a pebble of its own.

    Raises:
        UsageError: unknown summation, or a tree other than a chain at sizes too large for enumeration.
    """
    return _peak_red(program, frozenset(sizes.items()), summation)


@lru_cache(maxsize=4096)  # whoever chooses blocks asks, and again whoever counts what was chosen
def _peak_red(program: ir.Program, sizes: frozenset[tuple[str, int]], summation: str) -> int:
    return max(Occupancy(dict(sizes), summation, begun(program)).run(phase) for phase in program.phases)


@cache
def begun(program: ir.Program) -> frozenset[ir.Tensor]:
    """The tensors that memory has before any term, given or filled with a constant: terms are added in blocks."""
    nodes = (node for phase in program.phases for node in ir.walk(phase.body))
    filled = {node.tensor for node in nodes if isinstance(node, ir.Init)}
    return frozenset(filled.union(program.tensors[name] for name in program.inputs))


def tree_block(summation: str, terms: int) -> int:
    """Return the number of terms in each balanced block of a sum of this number of terms.

    Raises:
        UsageError: the summation is not "chain", "balanced", "blocked:b" or "in-place".
    """
    if summation in CHAINS:
        return 1
    if summation == "balanced":
        return terms
    kind, _, block = summation.partition(":")
    if kind == "blocked" and block.isdecimal() and int(block) > 0:
        return int(block)
    raise unknown_summation(summation, ("chain", "balanced", "blocked:b", IN_PLACE))


def intermediates(expr: ir.Expr) -> int:
    """Most pebbles on intermediates, and the result, while one element of an expression is computed."""
    if isinstance(expr, ir.Ref):
        return 0
    assert isinstance(expr, ir.Elementwise)
    held = peak = 0
    for operand in expr.operands:
        peak = max(peak, held + intermediates(operand))
        held += not isinstance(operand, ir.Ref)
    return max(peak, held + 1)


def pebbles_of_a_term(expr: ir.RowReduction) -> int:
    """Most pebbles while a term is computed from its operand, and the term."""
    return max(1 + (not isinstance(expr.operand, ir.Ref)), intermediates(expr.operand))


class Occupancy:
    """Runs a phase on numbers of pebbles only."""

    def __init__(self, sizes: ir.Sizes, summation: str, begun: Set[ir.Tensor] = frozenset()) -> None:
        self.sizes, self.summation, self.begun = sizes, summation, begun
        self.chain = tree_block(summation, 2) == 1
        self.red = self.peak = self.steps = 0
        self.live: dict[ir.Tile, int] = {}  # pebbles on each tile
        self.from_memory: set[ir.Tile] = set()
        self.in_blocks: set[ir.Tile] = set()  # of these, what sums in memory began with
        self.values: set[ir.Tile] = set()  # tiles that hold a value which is no sum in progress
        self.alone: set[ir.Tile] = set()  # of these, those to which nothing was added since
        self.ended: set[ir.Tile] = set()  # sums whose last terms were added
        self.stored: set[ir.Tensor] = set()  # tensors that were last written from such tiles
        self.regrouped: dict[ir.Tile, ir.Range] = {}  # sums over one tile of a dimension, kept apart from the others
        self.open: list[ir.Range] = []  # the loops that are running
        self.within: dict[ir.Tile, frozenset[ir.Range]] = {}  # ... and that ran when a sum began
        self.offset: dict[ir.Range, int] = {}
        self.length: dict[ir.Range, int] = {}

    def run(self, phase: ir.Phase) -> int:
        self._body(phase.body)
        return self.peak

    def _words(self, ranges: ir.Ranges) -> int:
        return words(ranges, self.sizes, self.length)

    def _reach(self, red: int) -> None:
        if red > self.peak:
            self.peak = red

    def _hold(self, tile: ir.Tile, pebbles: int) -> None:
        self.live[tile] = self.live.get(tile, 0) + pebbles
        self.red += pebbles
        self._reach(self.red)

    def _body(self, body: list[ir.Node]) -> None:
        for node in body:
            self._before(node)
            match node:
                case ir.Loop():
                    self._loop(node)
                    continue
                case ir.Read(tile=tile, tensor=tensor):
                    self._hold(tile, self._words(tile.ranges))
                    self.from_memory.add(tile)
                    (self.in_blocks.add if tensor in self.begun else self.in_blocks.discard)(tile)
                    self._keeps(tile, tensor in self.stored)
                case ir.Zeros(tile=tile):
                    self.live[tile] = 0
                    self._keeps(tile, False)
                    self.within[tile] = frozenset(self.open)
                case ir.Constant(tile=tile):
                    self._hold(tile, self._words(tile.ranges))
                    self._keeps(tile, True)
                case ir.Move(tile=tile, source=source):
                    self.red -= self.live[tile]
                    self.live[tile] = self.live.pop(source)
                    for kind in (self.values, self.alone, self.from_memory, self.in_blocks):
                        (kind.add if source in kind else kind.discard)(tile)
                    transfer_state(self.regrouped, source, tile)
                    transfer_state(self.within, source, tile)
                case ir.Init():
                    self._reach(self.red + 1)
                case ir.Delete(tile=tile):
                    self.red -= self.live.pop(tile)
                case ir.Compute():
                    self._compute(node)
                case ir.Write(tile=tile, tensor=tensor):
                    (self.stored.add if tile in self.alone else self.stored.discard)(tensor)
            self.steps += 1

    def _keeps(self, tile: ir.Tile, value: bool) -> None:
        """From here on, a tile holds a value to which a sum may be added; or it does not."""
        for kind in (self.values, self.alone):
            (kind.add if value else kind.discard)(tile)
        if value:
            self.within[tile] = frozenset(self.open)

    def _loop(self, loop: ir.Loop) -> None:
        rng = loop.range
        assert rng.parent is not None
        begin, end = ir.stretch(rng, self._words((rng.parent,)), self.sizes)
        whole, block = end - begin, ir.length(rng.block, self.sizes)
        start, last = self.offset.get(rng.parent, 0) + begin, (whole - 1) // block
        if not whole:
            return
        picked = self._picked(loop, last, ragged=whole % block > 0)
        parts = {tile: (tile in self.values, self.within.get(tile, frozenset())) for tile in changed_in_parts(loop)}
        self.open.append(rng)
        for position, index in enumerate(picked):
            self.offset[rng] = start + index * block
            self.length[rng] = min(block, whole - index * block)
            if not self._runs(loop.when):
                continue
            for tile, (is_value, within) in parts.items():  # the next part is still what it was before the loop
                (self.values.add if is_value else self.values.discard)(tile)
                self.within[tile] = within
            before = dict(self.live)
            self._body(loop.body)
            following = picked[position + 1] if position + 1 < len(picked) else index + 1
            if index > 0 and self._is_steady(before):
                break
            for tile, pebbles in before.items() if index > 0 else ():
                self._hold(tile, (self.live[tile] - pebbles) * (following - index - 1))
        self.open.pop()
        self._end(loop)

    def _end(self, loop: ir.Loop) -> None:
        """Behind the outermost loop over its terms a sum is a value, to which those of another product may be added."""
        around = frozenset(self.open)
        for tile in fed_outside(loop) - self.from_memory:
            ended = self.chain or tile in self.ended  # of a chain the last terms were perhaps not run
            one_each = self.live.get(tile) == self._words(tile.ranges)
            if ended and one_each and self.within.get(tile) == around:
                self.values.add(tile)

    def _is_steady(self, before: dict[ir.Tile, int]) -> bool:
        """Whether an iteration after the first changed no number of pebbles outside: on chains no later one does."""
        return self.chain and all(self.live[tile] == pebbles for tile, pebbles in before.items())

    def _before(self, node: ir.Node) -> None:
        """Prepare for a node; without a mask there is nothing to do."""

    def _runs(self, when: ir.MaskCondition | None) -> bool:
        """Whether a loop runs for the tile it is at; without a mask, for all but those that a mask would leave out."""
        return when is None or not when.none

    def _picked(self, loop: ir.Loop, last: int, ragged: bool) -> list[int]:
        """The iterations that have to be run; `ragged`: whether the last tile is smaller than the others."""
        if self.chain and not changes_outside(loop):
            return [0]
        if not fed_outside(loop):
            return sorted({0, last})
        if self.chain:
            return sorted({index for index in (0, 1, last - ragged, last) if 0 <= index <= last})
        self._charge(last)
        return list(range(last + 1))

    def _charge(self, steps: int) -> None:
        """Refuse sizes whose enumeration would take too long."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise UsageError(
                f"the peak for summation {self.summation!r} is found by enumeration, and these sizes need more "
                f"than {MOST_STEPS:,} steps; use smaller sizes, or summation 'chain'."
            )

    def _compute(self, node: ir.Compute) -> None:
        tile, expr = node.target.tile, node.expr
        elements = self._words(node.target.ranges)
        if isinstance(expr, ir.Elementwise):
            self._keeps(tile, True)
            if node.mode == "new":
                self._reach(self.red + elements - 1 + intermediates(expr))
                self._hold(tile, elements)
            else:
                self._reach(self.red + intermediates(expr))
            return
        index, term, blocks_of = ir.index_of(expr), 1, None
        if isinstance(expr, ir.MatMul):
            blocks_of = self.regrouped.get(expr.left.tile) or self.regrouped.get(expr.right.tile)
        elif isinstance(expr, ir.RowReduction):
            term = pebbles_of_a_term(expr)
        self.alone.discard(tile)
        count = self._words((index,))
        tree = None
        if node.mode == "new":
            self.within[tile] = frozenset(self.open)
            self.live.setdefault(tile, 0)
        if node.mode == "new" or tile in self.values:  # in a value's place, the sum is added to the value
            first, terms = self._among(index, self.within[tile])
            started = node.mode != "new"
        elif tile in self.from_memory:  # memory holds the sum between the tiles of the outermost loop over its terms
            first, terms, started = self.offset.get(index, 0), self.sizes[index.dim], tile in self.in_blocks
            if started:
                tree = 1 if self.chain else min(terms, ir.length(index.outermost.block, self.sizes))
        else:
            first, terms = self._among(index, self.within[tile])
            started = False
            if blocks_of is not None:
                block = ir.length(blocks_of.block, self.sizes)
                first += self.offset[blocks_of] // block * terms
                terms *= -(-self.sizes[blocks_of.dim] // block)
        apart = summation_scope(index, self.within.get(tile, frozenset()))
        if apart.parent is not None and not started:
            self.regrouped[tile] = apart
        tree = tree or tree_block(self.summation, terms)
        if tree > 1:
            self._charge(count)
        before, after, peak = _sum(first, first + count, terms, tree, started, term, self._to_add(expr))
        others = self.red - elements * before
        self._reach(others + (elements - 1) * max(before, after) + peak)
        self._hold(tile, elements * (after - before))
        (self.ended.add if first + count == terms else self.ended.discard)(tile)

    def _to_add(self, expr: ir.Expr) -> int:
        """Most pebbles beside a sum while a term is computed and added to it."""
        if isinstance(expr, ir.RowReduction) and not isinstance(expr.operand, ir.Ref):
            return intermediates(expr.operand) if self.summation == IN_PLACE else pebbles_of_a_term(expr)
        return 0 if self.summation == IN_PLACE else SPARED

    def _among(self, index: ir.Range, within: frozenset[ir.Range]) -> tuple[int, int]:
        """(first, number of all) of a sum's terms, for the part of them that a tile of `index` gives it."""
        whole = summation_scope(index, within)
        return self.offset.get(index, 0) - self.offset.get(whole, 0), self._words((whole,))


def transfer_state(kept: dict[ir.Tile, Any], source: ir.Tile, tile: ir.Tile) -> None:
    """Move an entry of `kept` from a tile to the one that takes over its words."""
    kept.pop(tile, None)
    if source in kept:
        kept[tile] = kept.pop(source)


def summation_scope(index: ir.Range, within: frozenset[ir.Range]) -> ir.Range:
    """Return all that a sum goes over: the tile of a loop that ran already when the sum began, or a whole dimension.

    A first part of a dimension is never all of it: the sum goes on over the others.
    """
    while index.parent is not None and (index not in within or index.first):
        index = index.parent
    return index


@lru_cache(maxsize=4096)
def _sum(first: int, end: int, terms: int, block: int, started: bool, term: int, to_add: int) -> tuple[int, int, int]:
    """Pebbles on a sum before it takes the terms first..end-1, after them, and at most in between.

    Terms come in order; inside a block of a balanced tree the partial sums held are the binary digits of the
    number of terms so far. `term` is the number of pebbles that computing a term takes, `to_add` that of computing and
    adding it.
    """

    def held(done: int) -> int:
        if done == terms:
            return 1
        blocks, inside = divmod(done, block)
        return (blocks > 0 or started) + inside.bit_count()

    peak = 0
    steps = range(first, end) if block > 1 else range(first, min(end, first + 2))
    for done in steps:
        blocks, inside = divmod(done, block)
        complete = inside + 1 == min(block, terms - blocks * block)
        adds = inside % 2 == 1 or (complete and (inside > 0 or blocks > 0 or started))
        peak = max(peak, held(done) + (to_add if adds else term))
    return held(first), held(end), peak


@cache
def changed_in_parts(loop: ir.Loop) -> frozenset[ir.Tile]:
    """The tiles of which each iteration gives a part of its own another value."""
    return frozenset(
        node.target.tile
        for node in ir.walk(loop.body)
        if isinstance(node, ir.Compute)
        and node.mode == "assign"
        and any(rng.within(loop.range) for rng in node.target.ranges)
        and not any(rng.within(loop.range) for rng in node.target.tile.ranges)
    )


@cache
def changes_outside(loop: ir.Loop) -> bool:
    """Whether a tile from outside the loop gets another value inside it."""
    inner = list(ir.walk(loop.body))
    entered = {ir.entering(node) for node in inner}
    return any(
        (isinstance(node, ir.Compute) and node.target.tile not in entered)
        or (isinstance(node, ir.Move) and node.tile not in entered)
        for node in inner
    )


@cache
def fed_outside(loop: ir.Loop) -> frozenset[ir.Tile]:
    """The tiles from outside the loop that get terms inside it."""
    inner = list(ir.walk(loop.body))
    entered = {node.tile for node in inner if isinstance(node, ir.Read | ir.Zeros)}
    entered |= {node.target.tile for node in inner if isinstance(node, ir.Compute) and node.mode == "new"}
    return frozenset(
        node.target.tile
        for node in inner
        if isinstance(node, ir.Compute) and node.mode == "add" and node.target.tile not in entered
    )
