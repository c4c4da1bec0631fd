"""From the nodes of a launch to the statements of its kernel: what a block does, with its predicates and scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf, prod

from pebblesim.kernels import statements as st
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.passes.bias import begun, has_bias
from pebblesim.kernels.passes.masked_once import difference, exponent_of
from pebblesim.kernels.passes.sinks import SINKS, as_exponents
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.terms import (
    INFINITY,
    MINUS_INFINITY,
    NOTHING,
    Binary,
    Held,
    Name,
    Term,
    Word,
    all_of,
    call,
    constant,
    full,
    only,
    term,
)
from pebblesim.kernels.triton.copies import at_once, gather, gathered, read_copies
from pebblesim.kernels.triton.loops import Piece, bounds, fused as fused_pieces, pieces
from pebblesim.kernels.triton.places import Places
from pebblesim.kernels.triton.ranges import Scope
from pebblesim.kernels.triton.values import FROM_BASE_2, TO_BASE_2, State, Values
from pebblesim.language import program as ir

LARGE_TILE = 2**15
"""Entries of a tile of sums that leaves a multiprocessor no registers for a second block."""

Special = Mapping[ir.Node, Callable[[], None]]
"""Functions that make the statements of some nodes in another way."""


class Lowering:
    """Makes the statements of a block."""

    def __init__(self, values: Values, places: Places, special: Special | None = None) -> None:
        self.values, self.places, self.scope = values, places, values.scope
        self.facts, self.setting = values.facts, values.scope.setting
        self.special: Special = special or {}
        self.made: list[st.Statement] = []

    def say(self, *statements: st.Statement) -> None:
        """Add statements to those that are being made."""
        self.made += statements

    @contextmanager
    def apart(self) -> Iterator[list[st.Statement]]:
        """Make statements of a body of its own."""
        around, self.made = self.made, []
        yield self.made
        self.made = around

    # Blocks and loops

    def block(self) -> None:
        """The statements of a block; those that need predicates are made without them, too, for tiles in which all
        pairs are allowed. In a group of rows both versions together take more registers than two blocks have: not for a
        single predicate of a small tile.
        """
        body, tile, scope = self.scope.launch.block, _tile_of_pairs(self.scope), self.scope
        differ = [at for at, node in enumerate(body) if self.differs(node)]
        small = scope.around is not None and tile is not None and prod(map(scope.length, tile)) < LARGE_TILE
        if tile is None or not differ or (small and len(differ) == 1):
            self.body(body)
            return
        self.body(body[: differ[0]])
        before, bodies, condition = dict(self.values.states), [], scope.all_allowed(tile)
        for scope.whole in (True, False):
            self.values.states = dict(before)
            with self.apart() as made:
                self.body(body[differ[0] :])
            bodies.append(tuple(made))
        self.say(st.When(condition, *bodies))

    def differs(self, node: ir.Node) -> bool:
        """Whether a primitive needs a predicate where some pairs are not allowed."""
        match node:
            case ir.Write(tile=tile):
                return ir.over_pairs(tile.ranges)
            case ir.Compute(expr=ir.RowReduction(operand=operand)):
                return ir.over_pairs(operand.shape)
            case ir.Compute(expr=ir.MatMul(left=left, right=right)):
                return any(ir.over_pairs(ref.ranges) and ref.tile not in self.facts.zero for ref in (left, right))
        return False

    def body(self, body: list[ir.Node]) -> None:
        """The statements of nodes, one after the other."""
        for node in body:
            if node in self.special:
                self.special[node]()
            else:
                self.node(node)

    def node(self, node: ir.Node) -> None:
        """The statements of a node."""
        values = self.values
        match node:
            case ir.Loop(body=[ir.Loop(range=ir.Range(parent=outer)) as inner]) if outer is node.range:
                self.fused(node, inner)
            case ir.Loop():
                self.loop(node)
            case ir.Read():
                self.read(node)
            case ir.Write():
                self.write(node)
            case ir.Init(ranges=ranges, value=value):
                self.store(node, None, full(map(self.scope.length, ranges), constant(value)))
            case ir.Zeros(tile=tile):
                self.fill(tile, NOTHING)
                values.mark(tile, empty=True)
            case ir.Constant(tile=tile, value=value):
                self.fill(tile, constant(begun(value, self.scope.program)))
                if value == -inf:  # a maximum to come
                    values.mark(tile, base_2=True)
            case ir.Move(tile=tile, source=source):
                self.say(st.Map(values.named(tile), values.held(source), line=node.line))
                values.states[tile] = replace(values.state(source), empty=values.state(tile).empty)
            case ir.Delete():
                pass
            case ir.Compute():
                self.compute(node)

    def fused(self, outer: ir.Loop, inner: ir.Loop) -> None:
        """Tiles of a tile, with nothing between the loops, as one loop over the smaller tiles."""
        for piece in fused_pieces(self.scope, outer, inner):
            number = self.scope.names.new(inner.range.name)
            with self.apart() as made:
                self.say(*self.scope.named(inner.range, Name(number), self.scope.within(outer.range)))
                self.in_piece(inner, piece)
            self.say(piece.loop(number, made, inner))

    def loop(self, node: ir.Loop) -> None:
        """The pieces of a loop."""
        scope, prefetched = self.scope, None
        if _copies(node):
            if (number := at_once(scope, node, self.facts.turned)) > 1:
                self._across(node, number)
                return
            prefetched = self.places.prefetched(node)
        for piece in pieces(scope, node, any(map(self.differs, ir.walk(node.body)))):
            self.over(node, replace(piece, stages=piece.stages or prefetched))

    def over(self, node: ir.Loop, piece: Piece) -> None:
        """The loop over the tiles of a piece."""
        name = self.scope.names.new(node.range.name)
        number = self.scope.numbers[node.range] = Name(name)
        with self.apart() as made:
            if piece.jump is not None:
                begin, beyond = piece.jump
                self.say(st.Let((name,), (call("where", number < begin, number, number - begin + beyond),)))
            self.say(*self.scope.enter(node, number))
            self.in_piece(node, piece)
        self.say(piece.loop(name, made, node))

    def _across(self, loop: ir.Loop, number: int) -> None:
        """A loop over copies, so many at once."""
        (low, high), names = bounds(self.scope, loop), self.scope.names
        first, name = names.new(loop.range.name), names.new(f"all_{loop.range.name}")
        with self.apart() as made:
            self.say(st.Let((name,), (term(first) + call("arange", 0, number),)))
            self.values.copies = name, high
            reads = [node for node in loop.body if isinstance(node, ir.Read)]  # all under way before one is waited for
            self.looped([*reads, *(node for node in loop.body if not isinstance(node, ir.Read))])
            self.values.copies = None
            self.values.several.clear()
        self.say(st.For(first, low, high, tuple(made), step=term(number), of=loop))

    def in_piece(self, node: ir.Loop, piece: Piece) -> None:
        """The body of a loop in one of its pieces."""
        scope, around = self.scope, self.scope.whole
        scope.whole = around or piece.whole
        if piece.complete:
            scope.complete.add(node.range)
        self.looped(node.body)
        scope.complete.discard(node.range)
        scope.whole = around

    def looped(self, body: list[ir.Node]) -> None:
        """The statements of a loop; what it hands on to its next iteration is to the base that it began with."""
        values, nodes = self.values, list(ir.walk(body))
        before = dict(values.states)
        made = {tile for node in nodes if (tile := ir.entering(node))}
        for tile in made | {node.target.tile for node in nodes if isinstance(node, ir.Compute)}:
            values.mark(tile, barred=False, cleared=False)
        masked = dict(values.states)
        self.body(body)
        for tile in values.tiles:
            base_2 = before.get(tile, State()).base_2
            if values.state(tile).base_2 != base_2 and tile not in made:
                factor = TO_BASE_2 if base_2 else FROM_BASE_2
                self.say(st.Map(values.held(tile), values.held(tile) * factor))
        for tile, state in values.states.items():
            base_2, at_begin = before.get(tile, State()).base_2, masked.get(tile, State())
            kept = {"barred": at_begin.barred, "cleared": at_begin.cleared}
            values.states[tile] = replace(state, base_2=base_2, **kept)

    # Reads and writes

    def read(self, node: ir.Read) -> None:
        """Read a tile."""
        values, tile = self.values, node.tile
        self.places.check_written(node)
        if values.copies is not None:
            self.say(read_copies(values, node))
            return
        to, where = values.named(tile), all_of(self.places.inside(node.tensor, tile.ranges))
        address = self.places.in_box(node) or self.places.address(node.tensor, tile.ranges, node.at)
        self.bring(node, address, where)
        if node.tensor.name == SINKS:
            self.say(st.Map(to, as_exponents(to), line=node.line))
            values.states[tile] = State(base_2=True)

    def bring(self, node: ir.Read, address: Term, where: Term | None) -> None:
        """Copy a tile from memory; sums that are to be scaled come as they were before that."""
        values, tile, resumed = self.values, node.tile, node.tile in self.facts.resumed
        values.mark(tile, **{"unscaled" if resumed else "loaded": True})
        if node.tensor in self.setting.logarithms:
            values.mark(tile, base_2=True)
        rest = INFINITY if tile in self.facts.subtracted else NOTHING, values.scale if resumed else None
        self.say(st.Copy(values.named(tile), node.tensor, address, where, *rest, line=node.line))  # exp(-∞) = 0

    def written(self, node: ir.Write) -> Term:
        """The value of a tile for memory; beside a bias, an L of no term is +inf there.

        Logarithms that only other launches read stay to base 2.
        """
        tensor, value, base_2 = node.tensor, self.values.scaled(node.tile), self.values.state(node.tile).base_2
        if base_2 and tensor.name not in self.scope.program.outputs and tensor not in self.facts.reread:
            self.setting.logarithms.add(tensor)
        if base_2 and tensor.name in self.scope.program.outputs and has_bias(self.scope.program):
            value = only(value, [Binary("!=", value, MINUS_INFINITY)], INFINITY)
        alike = base_2 == (tensor in self.setting.logarithms)
        return value if alike else value * (FROM_BASE_2 if base_2 else TO_BASE_2)

    def nonzero(self, node: ir.Write, there: ir.Range | None = None) -> list[Term]:
        """The conditions of entries that memory gets as they are held; those of a table with no allowed pair are 0.

        `there`: the range along which those that do not exist are 0 already.
        """
        frame, ranges, made = node.tile in self.facts.turned, node.tile.ranges, list[Term]()
        if node.tensor in self.setting.tables.tiled:
            for axis, rng in enumerate(ranges):
                if not self.values.vanishes(node.tile, rng) and rng is not there:  # it is 0 there
                    made += self.scope.exist(rng, axis, frame)
        if not self.values.state(node.tile).cleared and not self.scope.past:
            made += self.scope.pairs(ranges, frame)
        return made

    def write(self, node: ir.Write) -> None:
        """Write a tile."""
        value = only(self.written(node), self.nonzero(node), NOTHING)
        self.store(node, node.at, call("trans", value) if node.tile in self.facts.turned else value)

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Store a value where a primitive writes it."""
        ranges, name = ir.moved_part(node), self.setting.of[node.tensor]
        where = all_of(self.places.written(node.tensor, ranges))
        place = self.places.address(node.tensor, ranges, at)
        self.say(st.Store(node.tensor, place, value.to(f"{name}.dtype.element_ty"), where, line=node.line))

    def fill(self, tile: ir.Tile, value: Term) -> None:
        """Make a tile of one value."""
        self.say(st.Map(self.values.named(tile), self.values.filled(tile, value)))

    # Computing

    def compute(self, node: ir.Compute) -> None:
        """Compute a tile."""
        values, tile, expr = self.values, node.target.tile, node.expr
        if node.mode != "new" and node.target.ranges != tile.ranges:
            raise values.part(tile, node.line)
        if values.copies is not None:
            if gathered(node, values.several) is not None:
                self.say(gather(values, node))
                return
            if not any(ref.tile in values.several for ref in ir.refs(expr)):
                copies, values.copies = values.copies, None
                self.compute(node)
                values.copies = copies
                return
            values.several.add(tile)
        self.bar(expr)
        clear = node.mode != "add" and values.clear(expr)
        self._keep_slope(node)
        to, frame, state = values.named(tile), tile in self.facts.turned, values.state(tile)
        logarithm = node.mode != "add" and values.is_logarithm(expr)
        scaled = values.makes_scores(expr)
        waiting = state.unscaled or (scaled and state.empty)
        if isinstance(expr, ir.MatMul) and (node.mode != "add" or scaled == waiting):
            onto: Term | None = None
            if node.mode == "add":
                onto = to.to(Word("float32")) if state.loaded else to
            self.multiply(to, onto, node, frame)
        elif node.mode == "add":
            values.biased |= {tile} if isinstance(expr, ir.Ref) and waiting else set()
            made = values.expr(expr, node.line, frame)
            made = made * values.scale if scaled else made
            if self.scope.past and not waiting:  # a sum over sequences, of which each leaves out other pairs
                made = only(made, self.scope.pairs(node.target.ranges, frame), NOTHING)
            self.say(st.Map(to, values.scaled(tile) + made if waiting else made, more=not waiting, line=node.line))
            scaled = False
        else:
            made = values.exponent(expr, node.line, frame) if logarithm else values.expr(expr, node.line, frame)
            self.say(st.Map(to, values.times_slope(made, node), line=node.line))
        values.states[tile] = State(base_2=logarithm, unscaled=scaled, cleared=clear)

    def multiply(self, to: Held, onto: Term | None, node: ir.Compute, frame: bool) -> None:
        """Multiply two tiles, and add to what there is; `frame`: the transpose is computed."""
        left, right = self.values.operands(factors(node), node.line, frame)
        self.say(st.Product(to, left, right, onto, self.values.precise, line=node.line))

    def bar(self, expr: ir.Expr) -> None:
        """Mask scores of which an expression is the first maximum or exponential."""
        scores, values = exponent_of(expr), self.values
        if scores is None or scores.tile not in self.facts.maskable or values.state(scores.tile).barred:
            return
        where = self.scope.pairs(scores.ranges, scores.tile in self.facts.turned, self.facts.columns_matter)
        if where:
            values.mark(scores.tile, barred=True)
            held = values.held(scores.tile)
            self.say(st.Map(held, only(held, where, MINUS_INFINITY)))

    def _keep_slope(self, node: ir.Compute) -> None:
        """Before scores become exponentials, keep the slope of the capped ones, if their gradient is computed here."""
        values = self.values
        match difference(node.expr):
            case (ir.Ref(tile=scores), _) if (
                self.setting.softcap and node.target.tile in self.facts.multiplied and values.state(scores).unscaled
            ):
                slope = self.scope.names.new("slope")
                values.slopes[node.target.tile] = Name(slope)
                self.say(st.Let((slope,), (values.slope(values.held(scores)),)))


def _tile_of_pairs(scope: Scope) -> ir.Ranges | None:
    """The rows and columns of a block, if it has one tile of pairs, on or below the diagonal of a causal mask."""
    grid, mask = scope.launch.grid, scope.mask
    tiles = [loop.range for loop in grid]
    if mask is None or mask.before is not None or (mask.after is None and not isinstance(mask, KeyRanges)):
        return None
    if scope.past:  # each sequence has ranges of its own
        return None
    asked = ((loop.when.rows, loop.when.columns) for loop in grid if loop.when)
    return next((pair for pair in asked if all(rng in tiles for rng in pair)), None)


def _copies(loop: ir.Loop) -> bool:
    """Whether a loop reads one of several copies of a tensor in each iteration, and nothing waits for tensor cores."""
    waits = products(loop.body) or any(isinstance(node, ir.Loop) for node in loop.body)
    return not waits and any(isinstance(node, ir.Read) and node.at is loop.range for node in loop.body)
