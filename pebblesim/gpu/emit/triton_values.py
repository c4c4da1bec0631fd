"""Values of tiles in a Triton kernel, as text: expressions in float32, products, and exponents to base 2.

Scores are multiplied by the scale as late as possible: in an exponent, together with the logarithm of e.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from math import e as euler, log, log2

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit.masked_once import columns_matter, exponent_of, masked_once
from pebblesim.gpu.emit.orientation import turned
from pebblesim.gpu.emit.triton_loops import Loops
from pebblesim.gpu.emit.triton_ranges import Setting, along, only
from pebblesim.gpu.emit.words import LEAST_SIDE
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

TO_BASE_2, FROM_BASE_2 = repr(log2(euler)), repr(log(2))

OF_SCORES = ("Q", "K", "Q_C", "Q_R")
"""Matrices whose products are scores, or gradients of what scores are products of."""

MINUS_INFINITY = 'float("-inf")'

OPERATIONS = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "div": "({} / {})",
    "max": "tl.maximum({}, {})",
    "relu": "tl.maximum({}, 0.0)",
    "step": "tl.where({} > 0, 1.0, 0.0)",
    "sigmoid": "tl.sigmoid({})",
}


class Values(Loops):
    """The values of a kernel's tiles."""

    def __init__(self, setting: Setting, launch: Launch) -> None:
        super().__init__(setting, launch)
        scale = setting.scale
        self._scale = None if scale is None else repr(float(scale))
        self._factor = 1.0 if scale is None else float(scale)
        self._steep = repr((1.0 if scale is None else float(scale)) * log2(euler))  # of scores, as exponents of 2
        self._rising = scale is None or scale > 0
        nodes = list(ir.walk(launch.block))
        self._multiplied = {gradient_of(node) for node in nodes if isinstance(node, ir.Compute)}
        self._sloped: dict[ir.Tile, str] = {}  # exponentials of capped scores, and the slopes of these scores
        self._turned = turned(nodes)
        self._find_vanishing(nodes)
        plain = self._factor > 0 and not setting.softcap  # so that -inf stays what it is
        self._maskable = masked_once(nodes) if plain else frozenset()
        self._columns_matter = columns_matter(nodes)
        self._barred: set[ir.Tile] = set()  # scores that are -inf where there is no pair
        self._cleared: set[ir.Tile] = set()  # 0 where there is no pair
        self._tiles: dict[ir.Tile, str] = {}
        self._loaded: set[ir.Tile] = set()  # in the words of memory, not in float32
        self._base_2: set[ir.Tile] = set()  # logarithms, to base 2
        self._unscaled: set[ir.Tile] = set()  # what is still to be multiplied by the scale
        self._empty: set[ir.Tile] = set()  # sums without a term yet
        self._of_scores = {node.tile for node in nodes if isinstance(node, ir.Read) and node.tensor.name in OF_SCORES}
        changed = [node.target.tile for node in nodes if isinstance(node, ir.Compute) and not _multiplies(node)]
        self._zero = {  # 0 where memory is: for pairs that are not allowed
            node.tile for node in nodes if isinstance(node, ir.Read) and node.tile not in changed
        }

    def _vanishes(self, tile: ir.Tile, along_range: ir.Range) -> bool:
        """Whether a tile is 0 where indices of a range do not exist, because what it is computed from is."""
        return (tile, along_range) in self._vanishing or (tile in self._cleared and along_range is tile.ranges[1])

    def _zeros(self, expr: ir.Expr, rng: ir.Range) -> bool:
        """Whether an expression is 0 where indices of a range do not exist."""
        match expr:
            case ir.Ref(tile=tile):
                return (tile, rng) in self._vanishing
            case ir.MatMul(left=left, right=right):
                return any(rng in ref.shape and self._zeros(ref, rng) for ref in (left, right))
            case ir.Elementwise(op="exp", operands=(ir.Elementwise(op="sub", operands=(_, ir.Ref(tile=tile))),)):
                return tile.ranges == (rng,) and tile in self._subtracted
            case ir.Elementwise(op="mul", operands=operands):
                return any(self._zeros(each, rng) for each in operands)
            case ir.Elementwise(op="add" | "sub", operands=operands):
                return all(self._zeros(each, rng) for each in operands)
        return False

    def _find_vanishing(self, nodes: list[ir.Node]) -> None:
        """Find the tiles that are 0 where indices do not exist, as all that are read are: however they are defined.

        Exponentials are, if a logarithm is subtracted that is read as infinite there.
        """
        computes = [node for node in nodes if isinstance(node, ir.Compute)]
        only_there = Counter(tile for node in computes if (tile := _subtracted(node.expr)))
        uses = Counter(ref.tile for node in computes for ref in ir.refs(node.expr))
        self._subtracted = {
            node.tile
            for node in nodes
            if isinstance(node, ir.Read)
            and node.tensor in self._setting.logarithms
            and only_there[node.tile] == uses[node.tile]
        }
        defined: list[tuple[ir.Tile, ir.Expr | None]] = []
        for node in nodes:
            match node:
                case ir.Compute(target=ir.Ref(tile=tile), expr=expr):
                    defined.append((tile, expr))
                case ir.Move(tile=tile, source=source):
                    defined.append((tile, ir.Ref(source, source.ranges)))
                case ir.Read(tile=tile) if tile in self._subtracted:
                    defined.append((tile, None))
                case ir.Constant(tile=tile, value=value) if value:
                    defined.append((tile, None))
        self._vanishing = {(tile, rng) for node in nodes if (tile := ir.entering(node)) for rng in tile.ranges}
        self._vanishing |= {(tile, rng) for tile, _ in defined for rng in tile.ranges}
        before = -1
        while before != len(self._vanishing):
            before = len(self._vanishing)
            for tile, made in defined:
                for rng in tile.ranges:
                    if made is None or not self._zeros(made, rng):
                        self._vanishing.discard((tile, rng))

    def _bar(self, depth: int, expr: ir.Expr) -> None:
        """Mask scores of which an expression is the first maximum or exponential."""
        scores = exponent_of(expr)
        if scores is None or scores.tile not in self._maskable - self._barred:
            return
        where = self._pairs(scores.ranges, scores.tile in self._turned, self._columns_matter)
        if where:
            self._barred.add(scores.tile)
            name = self._tiles[scores.tile]
            self._say(depth, f"{name} = {only(name, where, MINUS_INFINITY)}")

    def _clear(self, expr: ir.Expr) -> bool:
        """Whether an expression is 0 where there is no pair."""
        match expr:
            case ir.Ref(tile=tile):
                return tile in self._cleared
            case ir.Elementwise(op="exp"):
                scores = exponent_of(expr)
                return scores is not None and scores.tile in self._barred
            case ir.Elementwise(op="mul", operands=operands):
                return any(map(self._clear, operands))
            case ir.Elementwise(op="div", operands=(numerator, _)):
                return self._clear(numerator)
            case ir.Elementwise(op="add" | "sub", operands=operands):
                return all(map(self._clear, operands))
        return False

    def _makes_scores(self, made: ir.Expr) -> bool:
        """Whether it is a product of scores or of what they are a gradient of: Q or K takes part."""
        return isinstance(made, ir.MatMul) and any(ref.tile in self._of_scores for ref in ir.refs(made))

    def _held(self, tile: ir.Tile) -> str:
        """The name of a tile as an operand."""
        return self._tiles[tile]

    def _along_rows(self, frame: bool) -> str:
        """The index that makes a vector one of rows, in an operation with a tile that has columns, too."""
        return along(0, frame)

    def _scaled(self, tile: ir.Tile) -> str:
        """The value of a tile, multiplied by the scale if that is still to be done."""
        name = self._held(tile)
        if tile in self._unscaled and ir.over_pairs(tile.ranges) and self._setting.softcap:
            raise UsageError(f"{self._program.name} keeps scores in memory, so it cannot cap them.")
        return f"({name} * {self._scale})" if tile in self._unscaled else name

    def _part(self, tile: ir.Tile, line: int) -> UsageError:
        return UsageError(
            f"{self._program.name}: line {line} uses a part of tile {tile.name}, and a Triton kernel computes with "
            "whole tiles; read a tile of that size in its place."
        )

    def _ref(self, ref: ir.Ref, line: int) -> str:
        """The value of a tile, in the frame that it is held in."""
        if ref.ranges != ref.tile.ranges:
            raise self._part(ref.tile, line)
        value = self._scaled(ref.tile)
        return f"({value} * {FROM_BASE_2})" if ref.tile in self._base_2 else value

    def _facing(self, text: str, ref: ir.Ref, frame: bool) -> str:
        """A tile's text, transposed if it is not held as it is asked for; `frame`: the result is to be transposed."""
        return f"tl.trans({text})" if ref.transposed ^ (ref.tile in self._turned) ^ frame else text

    def _expr(self, expr: ir.Expr, line: int, frame: bool = False) -> str:
        """An expression; `frame`: its transpose, of one that has rows and columns."""
        frame = frame and len(expr.shape) == 2
        match expr:
            case ir.Ref():
                name = self._ref(expr, line)
                name = f"{name}.to(tl.float32)" if expr.tile in self._loaded else name
                return self._facing(name, expr, frame)
            case ir.Elementwise(op="exp", operands=(operand,)):
                return f"tl.math.exp2({bare(self._exponent(operand, line, frame))})"
            case ir.Elementwise(op="log"):
                return f"({self._exponent(expr, line, frame)} * {FROM_BASE_2})"
            case ir.Elementwise():
                return self._elementwise(expr, [self._expr(each, line, frame) for each in expr.operands], line, frame)
            case ir.RowReduction():
                frame = any(ref.tile in self._turned for ref in ir.refs(expr.operand))
                return self._reduced(expr, self._expr(expr.operand, line, frame), frame)
            case ir.MatMul():
                return self._dot(expr, line, None, frame)

    def _elementwise(self, expr: ir.Elementwise, texts: list[str], line: int, frame: bool) -> str:
        """An operation on the texts of its operands; a vector is for all columns."""
        wide = [len(operand.shape) == len(expr.shape) for operand in expr.operands]
        operands = [text if full else text + self._along_rows(frame) for text, full in zip(texts, wide, strict=True)]
        if expr.op == "div" and not wide[1]:  # one division for each row
            return f"({operands[0]} * {self._reciprocal(texts[1])}{self._along_rows(frame)})"
        made = OPERATIONS[expr.op].format(*operands)
        if self._mask is not None and expr.op == "div":  # a row without an allowed pair has 0/0 = 0
            return f"tl.where({operands[1]} == 0.0, 0.0, {made})"
        if self._mask is not None and expr.op == "sub" and len(expr.shape) == 1:  # and (-inf) - (-inf) = 0
            return f"tl.where({operands[0]} == {operands[1]}, 0.0, {made})"
        return made

    def _reduced(self, expr: ir.RowReduction, text: str, frame: bool) -> str:
        """The sum or maximum of each row of a text; `frame`: the text is of the transpose."""
        shape, axis = expr.operand.shape, 0 if frame else 1
        reduction, nothing = ("sum", "0.0") if expr.op == "rowsum" else ("max", MINUS_INFINITY)
        parts = (self._exist(shape[1], 1, frame), self._pairs(shape, frame))
        scores = exponent_of(expr)
        if self._clear(expr.operand) if expr.op == "rowsum" else scores is not None and scores.tile in self._barred:
            parts = ("", "")
        return f"tl.{reduction}({only(text, ' & '.join(filter(None, parts)), nothing)}, axis={axis})"

    def _is_logarithm(self, expr: ir.Expr) -> bool:
        """Whether it is a logarithm or a maximum of scores, and so to base 2."""
        match expr:
            case ir.Ref(tile=tile):
                return tile in self._base_2
            case ir.Elementwise(op="add" | "sub" | "max", operands=operands):
                return len(expr.shape) == 1 and any(map(self._is_logarithm, operands))
            case ir.Elementwise(op="log") | ir.RowReduction(op="rowmax"):
                return True
        return False

    def _exponent(self, expr: ir.Expr, line: int, frame: bool = False) -> str:
        """An expression multiplied by log₂ e: 2 to its power is e to the power of the expression."""
        frame = frame and len(expr.shape) == 2
        match expr:
            case ir.Ref(tile=tile) if tile in self._base_2 and expr.ranges == tile.ranges:
                return self._facing(self._held(tile), expr, frame)
            case ir.Ref(tile=tile) if tile in self._unscaled and expr.ranges == tile.ranges:
                return self._as_exponent(self._facing(self._tiles[tile], expr, frame))
            case ir.Elementwise(op="add" | "sub" | "max"):
                operands = [self._exponent(each, line, frame) for each in expr.operands]
                if self._mask is not None and expr.op == "sub" and self._barred & {each.tile for each in ir.refs(expr)}:
                    operands[1] = only(operands[1], f"{operands[1]} != {MINUS_INFINITY}", "0.0")  # rows without a pair
                return self._elementwise(expr, operands, line, frame)
            case ir.Elementwise(op="log", operands=(operand,)):
                return f"tl.log2({self._expr(operand, line, frame)})"
            case ir.RowReduction(op="rowmax", operand=ir.Ref(tile=tile) as ref) if (
                tile in self._unscaled and self._rising
            ):
                text = self._facing(self._tiles[tile], ref, tile in self._turned)
                return self._as_exponent(self._reduced(expr, text, tile in self._turned))
            case ir.RowReduction(op="rowmax"):
                frame = any(ref.tile in self._turned for ref in ir.refs(expr.operand))
                return self._reduced(expr, self._exponent(expr.operand, line, frame), frame)
        return f"{self._expr(expr, line, frame)} * {TO_BASE_2}"

    def _as_exponent(self, scores: str) -> str:
        """Scores as exponents of 2; capped, they are softcap · tanh(x) with tanh(x) = 2 σ(2x) - 1."""
        cap = self._setting.softcap
        if not cap:
            return f"{scores} * {self._steep}"
        return (
            f"(tl.sigmoid({scores} * {2 * self._factor / cap!r}) * {2 * cap * log2(euler)!r} - {cap * log2(euler)!r})"
        )

    def _slope(self, scores: str) -> str:
        """The derivative of capped scores by the scaled ones: 1 - tanh² = 4 σ (1 - σ)."""
        sigmoid = f"tl.sigmoid({scores} * {2 * self._factor / self._setting.softcap!r})"
        return f"(4.0 * {sigmoid} * (1.0 - {sigmoid}))"

    def _keep_slope(self, depth: int, node: ir.Compute) -> None:
        """Before scores become exponentials, keep the slope of the capped ones, if their gradient is computed here."""
        match node.expr:
            case ir.Elementwise(op="exp", operands=(ir.Elementwise(op="sub", operands=(ir.Ref(tile=scores), _)),)) if (
                self._setting.softcap and node.target.tile in self._multiplied and scores in self._unscaled
            ):
                self._sloped[node.target.tile] = slope = self._names.new("slope")
                self._say(depth, f"{slope} = {self._slope(self._tiles[scores])}")

    def _times_slope(self, node: ir.Compute) -> str:
        """The factor of a gradient of scores that makes it one of scores that were not capped yet."""
        probabilities = gradient_of(node)
        if not self._setting.softcap or probabilities is None:
            return ""
        if probabilities not in self._sloped:
            raise UsageError(
                f"{self._program.name} has no scores where it computes their gradient: it cannot cap them."
            )
        return f" * {self._sloped[probabilities]}"

    def _reciprocal(self, vector: str) -> str:
        """1 / vector; under a mask 0 for a row without an allowed pair, which has 0/0 = 0."""
        made = f"(1.0 / {vector})"
        return made if self._mask is None else f"tl.where({vector} == 0.0, 0.0, {made})"

    def _dot(self, expr: ir.MatMul, line: int, onto: str | None, frame: bool = False) -> str:
        """A product of tiles, added to `onto`; `frame`: its transpose, the product of the transposed operands."""
        terms = expr.left.shape[1]
        for rng in (*expr.left.shape, *expr.right.shape):
            if self._length(rng) < LEAST_SIDE:
                raise UsageError(
                    f"{self._program.name}: matrix units take tiles with sides of {LEAST_SIDE} and more, and one in "
                    f"line {line} has {self._length(rng)} indices of {rng.dim}; take larger blocks."
                )
        sides = (expr.right, expr.left) if frame else (expr.left, expr.right)
        left, right = (self._operand(ref, line, terms, 1 - axis, frame) for axis, ref in enumerate(sides))
        precise = ', input_precision="ieee"' if self._setting.dtype == "float32" else ""
        return f"tl.dot({left}, {right}{f', {onto}' if onto else ''}{precise})"

    def _operand(self, ref: ir.Ref, line: int, terms: ir.Range, axis: int, frame: bool) -> str:
        """An operand of a product, in the words of memory; what no index stands for adds nothing.

        `axis`: along which its terms are; `frame`: it is the transpose of what the product says.
        """
        text, held = self._ref(ref, line), ref.tile in self._turned
        if ref.tile not in self._zero | self._cleared:
            text = only(text, self._pairs(ref.ranges, held), "0.0")
        text = self._facing(text, ref, frame)
        if ref.tile in self._loaded:
            return text
        if not self._vanishes(ref.tile, terms):
            text = only(text, self._exist(terms, axis), "0.0")
        return f"{text}.to(tl.{self._setting.dtype})"


def gradient_of(node: ir.Compute) -> ir.Tile | None:
    """P, if an operation computes dS = P ∘ (dP - v), the gradient of the scores."""
    match node.expr:
        case ir.Elementwise(op="mul", operands=(ir.Ref(tile=tile), ir.Elementwise(op="sub"))):
            return tile if ir.over_pairs(tile.ranges) else None
    return None


def _subtracted(expr: ir.Expr) -> ir.Tile | None:
    """The vector of a difference that is an exponent, of a tile with rows and columns."""
    match expr:
        case ir.Elementwise(op="exp", operands=(ir.Elementwise(op="sub", operands=(_, ir.Ref(tile=tile))),)):
            return tile if len(expr.shape) == 2 and len(tile.ranges) == 1 else None
    return None


def bare(text: str) -> str:
    """A text without the parentheses around all of it."""
    inner = text[1:-1]
    depths = list(accumulate((char == "(") - (char == ")") for char in inner))
    return inner if text[:1] == "(" and text[-1:] == ")" and min(depths, default=0) >= 0 else text


def _multiplies(node: ir.Compute) -> bool:
    """Whether an operation only multiplies the entries of its target."""
    return (
        isinstance(node.expr, ir.Elementwise)
        and node.expr.op == "mul"
        and any(isinstance(each, ir.Ref) and each.tile is node.target.tile for each in node.expr.operands)
    )
