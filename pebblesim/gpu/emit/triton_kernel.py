"""The statements of a Triton kernel, as text: a launch, each independent iteration of which is one of its programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod

from pebblesim.gpu.emit.key_ranges import ARGUMENTS, KeyRanges
from pebblesim.gpu.emit.triton_copies import gathered
from pebblesim.gpu.emit.triton_grid import Grid
from pebblesim.gpu.emit.triton_loops import Piece
from pebblesim.gpu.emit.triton_ranges import Setting, only
from pebblesim.gpu.emit.triton_values import FROM_BASE_2, TO_BASE_2
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, blocks

LARGE_TILE = 2**15
"""Entries of a tile of sums that leaves a multiprocessor no registers for a second block."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of the text.

    Attributes:
        name: name of its function.
        launch: the launch.
        tensors: names of the tensors whose addresses are its arguments, in order.
        programs: number of programs for each head, in total over all times it is launched.
        numbers: names of its other arguments: those for rows around launches before the addresses, sizes and strides
            behind them.
    """

    name: str
    launch: Launch
    tensors: tuple[str, ...]
    programs: int
    numbers: tuple[tuple[str, ...], tuple[str, ...]]


class Writer(Grid):
    """Writes one kernel."""

    def __init__(self, setting: Setting, launch: Launch, name: str) -> None:
        super().__init__(setting, launch)
        self._name = name
        nodes = list(ir.walk(launch.block))
        self._tensors: dict[str, ir.Tensor] = {}
        for node in nodes:
            if isinstance(node, ir.Read | ir.Write | ir.Init):
                self._tensors.setdefault(node.tensor.name, node.tensor)
        self._reread = {node.tensor for node in nodes if isinstance(node, ir.Read)}
        self._resumed = {  # sums in memory that are to be scaled: read as if they had not been yet
            node.target.tile
            for node in nodes
            if isinstance(node, ir.Compute) and node.mode == "add" and setting.scale and self._makes_scores(node.expr)
        } & {node.tile for node in nodes if isinstance(node, ir.Read)}

    @property
    def kernel(self) -> Kernel:
        """The kernel, of which `text` is the source."""
        numbers = (self._of_rows, (*self._setting.free, *self._strides(self._tensors.values())))
        return Kernel(self._name, self._launch, tuple(self._tensors), blocks(self._launch, self._sizes, 1), numbers)

    @property
    def arguments(self) -> list[str]:
        """Names of its arguments, in order."""
        tensors = [self._setting.of[tensor] for tensor in self._tensors.values()]
        before, behind = self.kernel.numbers
        return [*before, *tensors, *(ARGUMENTS if self._ranged else ()), *behind]

    def call(self, options: str) -> list[str]:
        """The lines that launch it, in `run`."""
        each = "own, batch" if self._apart else "heads"
        return [f"    {self._name}[({self.programs}, {each})]({', '.join(self.arguments)}, {options})"]

    @property
    def _apart(self) -> bool:
        """Whether the grid has axes of heads and of batches: their numbers take no registers."""
        return bool(self._setting.strides.of)

    def text(self) -> str:
        """The source of the kernel."""
        strides = self._strides(self._tensors.values())
        general = [*(() if self._setting.even else (*self._of_rows, *self._setting.free)), *strides]
        self._lines = [
            "@triton.jit" + f"(do_not_specialize={general})".replace("'", '"') * bool(general),
            f"def {self._name}({', '.join(self.arguments)}):",
            "    head = tl.program_id(1).to(tl.int64)" + " + tl.program_id(2) * tl.num_programs(1)" * self._apart,
        ]
        self._at_head(self._tensors.values())
        if self._launch.name in self._setting.early:
            self._say(1, "tl.extra.cuda.gdc_wait()  # for the launch before, of which blocks may still run")
            self._say(1, "tl.extra.cuda.gdc_launch_dependents()  # earlier, they would crowd where blocks end first")
        self._describe()
        self._opening()
        self._grid()
        self._block()
        return "\n".join(self._lines)

    def _block(self) -> None:
        """The statements of a block; those that need predicates are written without them, too, for tiles in which all
        pairs are allowed. In a group of rows both versions together take more registers than two blocks have: not for a
        single predicate of a small tile.
        """
        body, tile = self._launch.block, self._tile_of_pairs()
        differ = [at for at, node in enumerate(body) if self._differs(node)]
        small = self._around is not None and tile is not None and prod(map(self._length, tile)) < LARGE_TILE
        if tile is None or not differ or (small and len(differ) == 1):
            self._body(body, 1)
            return
        self._body(body[: differ[0]], 1)
        kept = (self._loaded, self._unscaled, self._empty, self._base_2, self._barred, self._cleared)
        before = [set(each) for each in kept]
        condition = self._all_allowed(tile)
        for self._whole, line in ((True, f"if {condition}:"), (False, "else:")):
            for each, earlier in zip(kept, before, strict=True):
                each.clear()
                each.update(earlier)
            self._say(1, line)
            self._body(body[differ[0] :], 2)

    def _tile_of_pairs(self) -> ir.Ranges | None:
        """The rows and columns of a block, if it has one tile of pairs, on or below the diagonal of a causal mask."""
        tiles = [loop.range for loop in self._launch.grid]
        mask = self._mask
        if mask is None or mask.before is not None or (mask.after is None and not isinstance(mask, KeyRanges)):
            return None
        asked = ((loop.when.rows, loop.when.columns) for loop in self._launch.grid if loop.when)
        return next((pair for pair in asked if all(rng in tiles for rng in pair)), None)

    def _fused(self, outer: ir.Loop, inner: ir.Loop, depth: int) -> None:
        """Tiles of a tile, with nothing between the loops, as one loop over the smaller tiles."""
        small, parts = self._length(inner.range), self._parts(inner)
        total = self._total(outer.range)
        last = str(-(-int(total) // small)) if total.isdecimal() else f"tl.cdiv({total}, {small})"
        low, high = self._bounds(outer)
        start = "0" if low == "0" else f"({low}) * {parts}"
        stop = f"tl.minimum(({high}) * {parts}, {last})" if "minimum" in high else last
        full = f"{total} // {small}" if self._ragged(outer.range) and not total.isdecimal() else None
        for piece in self._split(start, stop, full, self._whole):
            number = self._names.new(inner.range.name)
            self._say(depth, f"for {number} in {piece.range}:")
            first = "start + " if self._within(outer.range) else ""
            self._named(inner.range, depth + 1, number, first)
            self._in_piece(inner, piece, depth)

    def _loop(self, node: ir.Loop, depth: int) -> None:
        if _copies(node) and (at_once := self._at_once(node)) > 1:
            self._across(node, at_once, depth)
            return
        prefetched = self._prefetched(node) if _copies(node) else None
        for piece in self._pieces(node, any(map(self._differs, ir.walk(node.body)))):
            number = self._names.new(node.range.name)
            self._numbers[node.range] = number
            self._say(depth, f"for {number} in {replace(piece, stages=piece.stages or prefetched).range}:")
            if piece.jump is not None:
                begin, beyond = piece.jump
                self._say(
                    depth + 1, f"{number} = tl.where({number} < {begin}, {number}, {number} - {begin} + {beyond})"
                )
            self._enter(node, depth + 1, number)
            self._in_piece(node, piece, depth)

    def _across(self, loop: ir.Loop, number: int, depth: int) -> None:
        """A loop over copies, so many at once."""
        low, high = self._bounds(loop)
        first, name = self._names.new(loop.range.name), self._names.new(f"all_{loop.range.name}")
        self._say(depth, f"for {first} in range({low}, {high}, {number}):")
        self._say(depth + 1, f"{name} = {first} + tl.arange(0, {number})")
        self._copy = name, high
        reads = [node for node in loop.body if isinstance(node, ir.Read)]  # all under way before one is waited for
        self._looped([*reads, *(node for node in loop.body if not isinstance(node, ir.Read))], depth + 1)
        self._copy = None
        self._several.clear()

    def _in_piece(self, node: ir.Loop, piece: Piece, depth: int) -> None:
        """The body of a loop in one of its pieces."""
        around = self._whole
        self._whole = around or piece.whole
        if piece.complete:
            self._complete.add(node.range)
        self._looped(node.body, depth + 1)
        self._complete.discard(node.range)
        self._whole = around

    def _differs(self, node: ir.Node) -> bool:
        """Whether a primitive needs a predicate where some pairs are not allowed."""
        match node:
            case ir.Write(tile=tile):
                return ir.over_pairs(tile.ranges)
            case ir.Compute(expr=ir.RowReduction(operand=operand)):
                return ir.over_pairs(operand.shape)
            case ir.Compute(expr=ir.MatMul(left=left, right=right)):
                return any(ir.over_pairs(ref.ranges) and ref.tile not in self._zero for ref in (left, right))
        return False

    def _body(self, body: list[ir.Node], depth: int) -> None:
        for node in body:
            match node:
                case ir.Loop(body=[ir.Loop(range=ir.Range(parent=outer)) as inner]) if outer is node.range:
                    self._fused(node, inner, depth)
                case ir.Loop():
                    self._loop(node, depth)
                case ir.Read():
                    self._read(depth, node)
                case ir.Write():
                    self._write(depth, node)
                case ir.Init():
                    shape = ", ".join(str(self._length(rng)) for rng in node.ranges)
                    self._store(depth, node, None, f"tl.full(({shape},), {constant(node.value)}, tl.float32)")
                case ir.Zeros():
                    self._fill(depth, node.tile, "0.0")
                    self._empty.add(node.tile)
                case ir.Constant():
                    self._fill(depth, node.tile, constant(node.value))
                    if node.value == -inf:  # a maximum to come
                        self._base_2.add(node.tile)
                case ir.Move():
                    self._say(depth, f"{self._tile(node.tile)} = {self._tiles[node.source]}")
                    for kind in (self._loaded, self._unscaled, self._base_2, self._barred, self._cleared):
                        (kind.add if node.source in kind else kind.discard)(node.tile)
                case ir.Delete():
                    pass
                case ir.Compute():
                    self._compute(depth, node)

    def _looped(self, body: list[ir.Node], depth: int) -> None:
        """The statements of a loop; what it hands on to its next iteration is to the base that it began with."""
        before, nodes = set(self._base_2), list(ir.walk(body))
        made = {tile for node in nodes if (tile := ir.entering(node))}
        changed = made | {node.target.tile for node in nodes if isinstance(node, ir.Compute)}
        self._barred, self._cleared = self._barred - changed, self._cleared - changed
        masked = set(self._barred), set(self._cleared)
        self._body(body, depth)
        self._barred, self._cleared = masked
        for tile in [tile for tile in self._tiles if tile in (self._base_2 ^ before) - made]:
            name, factor = self._tiles[tile], TO_BASE_2 if tile in before else FROM_BASE_2
            self._say(depth, f"{name} = {name} * {factor}")
        self._base_2 = before

    def _written(self, node: ir.Write) -> str:
        """The value of a tile for memory. Logarithms that only other launches read stay to base 2."""
        tensor, value = node.tensor, self._scaled(node.tile)
        if node.tile in self._base_2 and tensor.name not in self._program.outputs and tensor not in self._reread:
            self._setting.logarithms.add(tensor)
        if (node.tile in self._base_2) == (tensor in self._setting.logarithms):
            return value
        return f"({value} * {FROM_BASE_2 if node.tile in self._base_2 else TO_BASE_2})"

    def _read(self, depth: int, node: ir.Read) -> None:
        self._check_written(node)
        if self._copy is not None:
            self._read_copies(depth, node)
            return
        name, resumed = self._tile(node.tile), node.tile in self._resumed
        (self._unscaled if resumed else self._loaded).add(node.tile)
        if node.tensor in self._setting.logarithms:
            self._base_2.add(node.tile)
        inside, absent = self._inside(node.tensor, node.tile.ranges), "0.0"
        if node.tile in self._subtracted:
            absent = 'float("inf")'  # so that exponentials are 0 there
        edge = f", mask={inside}, other={absent}" if inside else ""
        unscaled = f" / {self._scale}" * resumed
        made = self._copied(node) or f"tl.load({self._place(node.tensor, node.tile.ranges, node.at)}{edge})"
        self._say(depth, f"{name} = {made}{unscaled}")

    def _write(self, depth: int, node: ir.Write) -> None:
        """Write a tile; entries of a table for which there is no pair, or no allowed one, are 0."""
        frame, ranges = node.tile in self._turned, node.tile.ranges
        exist: list[str] = []
        if node.tensor in self._setting.tables.tiled:
            exist = [
                self._exist(rng, axis, frame)
                for axis, rng in enumerate(ranges)
                if not self._vanishes(node.tile, rng)  # it is 0 there
            ]
        allowed = "" if node.tile in self._cleared else self._pairs(ranges, frame)
        value = only(self._written(node), " & ".join(filter(None, (*exist, allowed))), "0.0")
        self._store(depth, node, node.at, f"tl.trans({value})" if frame else value)

    def _fill(self, depth: int, tile: ir.Tile, value: str) -> None:
        shape = ", ".join(str(self._length(rng)) for rng in tile.ranges[:: -1 if tile in self._turned else 1])
        self._say(depth, f"{self._tile(tile)} = tl.full(({shape},), {value}, tl.float32)")

    def _compute(self, depth: int, node: ir.Compute) -> None:
        if node.mode != "new" and node.target.ranges != node.target.tile.ranges:
            raise self._part(node.target.tile, node.line)
        tile, expr = node.target.tile, node.expr
        if self._copy is not None:
            if gathered(node, self._several) is not None:
                self._gather(depth, node)
                return
            if not any(ref.tile in self._several for ref in ir.refs(expr)):
                copy, self._copy = self._copy, None
                self._compute(depth, node)
                self._copy = copy
                return
            self._several.add(tile)
        self._bar(depth, expr)
        clear = node.mode != "add" and self._clear(expr)
        self._keep_slope(depth, node)
        name, frame = self._tile(tile), node.target.tile in self._turned
        logarithm = node.mode != "add" and self._is_logarithm(expr)
        scaled = self._scale is not None and self._makes_scores(expr)
        waiting = tile in self._unscaled or (scaled and tile in self._empty)
        if node.mode == "add" and isinstance(expr, ir.MatMul) and scaled == waiting:
            onto = f"{name}.to(tl.float32)" if tile in self._loaded else name
            self._say(depth, f"{name} = {self._dot(expr, node.line, onto, frame)}")
        elif node.mode == "add":
            made = self._expr(expr, node.line, frame)
            made = f"{made} * {self._scale}" if scaled else made
            self._say(depth, f"{name} = {self._scaled(tile)} + {made}" if waiting else f"{name} += {made}")
            scaled = False
        else:
            made = self._exponent(expr, node.line, frame) if logarithm else self._expr(expr, node.line, frame)
            made += self._times_slope(node)
            self._say(depth, f"{name} = {made}")
        (self._base_2.add if logarithm else self._base_2.discard)(tile)
        (self._unscaled.add if scaled else self._unscaled.discard)(tile)
        (self._cleared.add if clear else self._cleared.discard)(tile)
        self._barred.discard(tile)
        self._empty.discard(tile)
        self._loaded.discard(tile)


def _copies(loop: ir.Loop) -> bool:
    """Whether a loop reads one of several copies of a tensor in each iteration, and nothing waits for matrix units."""
    return any(isinstance(node, ir.Read) and node.at is loop.range for node in loop.body) and not any(
        isinstance(node, ir.Loop) or (isinstance(node, ir.Compute) and isinstance(node.expr, ir.MatMul))
        for node in loop.body
    )


def constant(value: float) -> str:
    """A number as Python text, an infinite one too."""
    return repr(float(value)).replace("inf", 'float("inf")')
