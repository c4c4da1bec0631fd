"""Values of tiles in a kernel: expressions in float32, products, and exponents to base 2.

Scores are multiplied by the scale as late as possible: in an exponent, together with the logarithm of e.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import e as euler, log, log2

from pebblesim.core.errors import UsageError
from pebblesim.kernels.facts import Facts, gradient_of, makes_scores, vanishes
from pebblesim.kernels.passes.bias import HIGHEST, has_bias
from pebblesim.kernels.passes.masked_once import exponent_of
from pebblesim.kernels.terms import (
    INFINITY,
    MINUS_INFINITY,
    NOTHING,
    Binary,
    Held,
    Number,
    Term,
    Word,
    call,
    dot,
    full,
    minimum,
    only,
    term,
)
from pebblesim.kernels.triton.ranges import Scope, along
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language import program as ir

TO_BASE_2, FROM_BASE_2 = Number(log2(euler)), Number(log(2))

ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


@dataclass(frozen=True)
class State:
    """How a tile is held at a place in the program.

    Attributes:
        loaded: in the words of memory, not in float32.
        unscaled: still to be multiplied by the scale.
        base_2: a logarithm, to base 2.
        empty: a sum without a term yet.
        barred: scores that are -inf where there is no pair.
        cleared: 0 where there is no pair.
    """

    loaded: bool = False
    unscaled: bool = False
    base_2: bool = False
    empty: bool = False
    barred: bool = False
    cleared: bool = False


class Values:
    """The values of a kernel's tiles, as terms, by how they are held at this place in the program."""

    def __init__(self, scope: Scope, facts: Facts) -> None:
        self.scope, self.facts, setting = scope, facts, scope.setting
        scale = setting.scale
        self.factor = 1.0 if scale is None else float(scale)
        self.scale = None if scale is None else Number(self.factor)
        self.states: dict[ir.Tile, State] = {}
        self.tiles: dict[ir.Tile, str] = {}
        self.slopes: dict[ir.Tile, Term] = {}  # exponentials of capped scores, and the slopes of these scores
        self.copies: tuple[str, Term] | None = None  # the numbers of the copies, and the one after the last
        self.several: set[ir.Tile] = set()  # tiles of several copies
        self.biased: set[ir.Tile] = set()  # scores that a bias was added to
        self.lacking = scope.mask is not None or has_bias(scope.program)  # whether a row may have no key

    # How tiles are held

    def state(self, tile: ir.Tile) -> State:
        """How a tile is held here."""
        return self.states.get(tile, State())

    def mark(self, tile: ir.Tile, **how: bool) -> None:
        """Note how a tile is held from here on."""
        self.states[tile] = replace(self.state(tile), **how)

    def named(self, tile: ir.Tile) -> Held:
        """A tile under its name, a new one if it has none yet."""
        if tile not in self.tiles:
            self.tiles[tile] = self.scope.names.new(tile.name)
        return self.held(tile)

    def held(self, tile: ir.Tile) -> Held:
        """A tile under its name."""
        return Held(self.tiles[tile], tile)

    def sides(self, tile: ir.Tile) -> tuple[int, ...]:
        """The lengths of a tile as it is held."""
        return tuple(map(self.scope.length, tile.ranges[:: -1 if tile in self.facts.turned else 1]))

    def filled(self, tile: ir.Tile, value: Term) -> Term:
        """A tile of one value."""
        return full(self.sides(tile), value)

    def among(self, tile: ir.Tile) -> Term:
        """A tile as an operand; where several copies are at once, one that all of them share has an axis of them."""
        held = self.held(tile)
        if self.copies is None or tile in self.several:
            return held
        return held.along(f"[None, :{', :' * (len(tile.ranges) - 1)}]")

    def along_rows(self, frame: bool) -> str:
        """The index that makes a vector one of rows, in an operation with a tile that has columns, too."""
        return along(0, frame) if self.copies is None else "[:, :, None]"

    def vanishes(self, tile: ir.Tile, along_range: ir.Range) -> bool:
        """Whether a tile is 0 where indices of a range do not exist, because what it is computed from is."""
        of_columns = self.state(tile).cleared and along_range is tile.ranges[1]
        return (tile, along_range) in self.facts.vanishing or of_columns

    def clear(self, expr: ir.Expr) -> bool:
        """Whether an expression is 0 where there is no pair."""
        match expr:
            case ir.Ref(tile=tile):
                return self.state(tile).cleared
            case ir.Elementwise(op="exp"):
                scores = exponent_of(expr)
                return scores is not None and self.state(scores.tile).barred
            case ir.Elementwise(op="div", operands=(numerator, _)):
                return self.clear(numerator)
        return vanishes(expr, self.clear)

    def makes_scores(self, made: ir.Expr) -> bool:
        """Whether it is a product that is to be multiplied by the scale."""
        return self.scale is not None and makes_scores(self.facts.scores, made)

    def scaled(self, tile: ir.Tile) -> Term:
        """The value of a tile, multiplied by the scale if that is still to be done."""
        value = self.among(tile)
        if not self.state(tile).unscaled:
            return value
        if ir.over_pairs(tile.ranges) and self.scope.setting.softcap:
            raise UsageError(f"{self.scope.program.name} keeps scores in memory, so it cannot cap them.")
        return value * self.scale

    def part(self, tile: ir.Tile, line: int) -> UsageError:
        """The error for a part of a tile."""
        return UsageError(
            f"{self.scope.program.name}: line {line} uses a part of tile {tile.name}, and a Triton kernel computes "
            "with whole tiles; read a tile of that size in its place."
        )

    # Expressions

    def ref(self, ref: ir.Ref, line: int) -> Term:
        """The value of a tile, in the frame that it is held in."""
        if ref.ranges != ref.tile.ranges:
            raise self.part(ref.tile, line)
        value = self.scaled(ref.tile)
        return value * FROM_BASE_2 if self.state(ref.tile).base_2 else value

    def facing(self, value: Term, ref: ir.Ref, frame: bool) -> Term:
        """A tile's value, transposed if it is not held as it is asked for; `frame`: the result is to be transposed."""
        return call("trans", value) if ref.transposed ^ (ref.tile in self.facts.turned) ^ frame else value

    def expr(self, expr: ir.Expr, line: int, frame: bool = False) -> Term:
        """An expression; `frame`: its transpose, of one that has rows and columns."""
        frame = frame and len(expr.shape) == 2
        match expr:
            case ir.Ref():
                value = self.ref(expr, line)
                value = value.to(Word("float32")) if self.state(expr.tile).loaded else value
                return self.facing(value, expr, frame)
            case ir.Elementwise(op="exp", operands=(operand,)):
                return call("exp2", self.exponent(operand, line, frame))
            case ir.Elementwise(op="log"):
                return self.exponent(expr, line, frame) * FROM_BASE_2
            case ir.Elementwise():
                return self.elementwise(expr, [self.expr(each, line, frame) for each in expr.operands], frame)
            case ir.RowReduction():
                frame = any(ref.tile in self.facts.turned for ref in ir.refs(expr.operand))
                return self.reduced(expr, self.expr(expr.operand, line, frame), frame)
            case ir.MatMul():
                return dot(*self.operands(expr, line, frame), None, self.precise)

    @property
    def precise(self) -> bool:
        """Whether products are of float32."""
        return self.scope.setting.dtype == "float32"

    def elementwise(self, expr: ir.Elementwise, values: list[Term], frame: bool) -> Term:
        """An operation on the values of its operands; a vector is for all columns."""
        wide = [len(operand.shape) == len(expr.shape) for operand in expr.operands]
        rows = self.along_rows(frame)
        values = self.met(expr, values, frame)
        given = [value if full else value.along(rows) for value, full in zip(values, wide, strict=True)]
        match expr.op:
            case "div" if not wide[1]:  # one division for each row
                return given[0] * self.reciprocal(values[1]).along(rows)
            case "max":
                return call("maximum", *given)
            case "relu":
                return call("maximum", *given, 0.0)
            case "step":
                return call("where", given[0] > 0, 1.0, 0.0)
            case "sigmoid":
                return self.sigmoid(given[0])
        made = Binary(ARITHMETIC[expr.op], *given)
        if self.lacking and expr.op == "div":  # a row without an allowed pair has 0/0 = 0
            return call("where", given[1].equals(NOTHING), 0.0, made)
        if self.lacking and expr.op == "sub" and len(expr.shape) == 1:  # and (-inf) - (-inf) = 0
            return call("where", given[0].equals(given[1]), 0.0, made)
        return made

    def met(self, expr: ir.Elementwise, values: list[Term], frame: bool) -> list[Term]:
        """The operands in layouts in which they meet; Triton finds these by itself."""
        return values

    def reduced(self, expr: ir.RowReduction, value: Term, frame: bool) -> Term:
        """The sum or maximum of each row of a value; `frame`: it is of the transpose."""
        shape, axis, scope = expr.operand.shape, 0 if frame else 1, self.scope
        reduction, nothing = ("sum", NOTHING) if expr.op == "rowsum" else ("max", MINUS_INFINITY)
        parts = [*scope.exist(shape[1], 1, frame), *scope.pairs(shape, frame)]
        scores = exponent_of(expr)
        if self.clear(expr.operand) if expr.op == "rowsum" else scores is not None and self.state(scores.tile).barred:
            parts = []
        return call(reduction, only(value, parts, nothing), axis=axis)

    def is_logarithm(self, expr: ir.Expr) -> bool:
        """Whether it is a logarithm or a maximum of scores, and so to base 2."""
        match expr:
            case ir.Ref(tile=tile):
                return self.state(tile).base_2
            case ir.Elementwise(op="add" | "sub" | "max", operands=operands):
                return len(expr.shape) == 1 and any(map(self.is_logarithm, operands))
            case ir.Elementwise(op="log") | ir.RowReduction(op="rowmax"):
                return True
        return False

    def exponent(self, expr: ir.Expr, line: int, frame: bool = False) -> Term:
        """An expression multiplied by log₂ e: 2 to its power is e to the power of the expression."""
        frame, turned = frame and len(expr.shape) == 2, self.facts.turned
        match expr:
            case ir.Ref(tile=tile) if self.state(tile).base_2 and expr.ranges == tile.ranges:
                return self.facing(self.among(tile), expr, frame)
            case ir.Ref(tile=tile) if self.state(tile).unscaled and expr.ranges == tile.ranges:
                return self.as_exponent(self.facing(self.held(tile), expr, frame))
            case ir.Elementwise(op="add" | "sub" | "max"):
                operands = [self.exponent(each, line, frame) for each in expr.operands]
                if self._of_maximum(expr):  # rows whose scores are too high
                    operands[1] = only(operands[1], [operands[1] < HIGHEST], INFINITY)
                elif self._minus_infinite(expr):  # rows without a pair
                    operands[1] = only(operands[1], [Binary("!=", operands[1], MINUS_INFINITY)], NOTHING)
                return self.elementwise(expr, operands, frame)
            case ir.Elementwise(op="log", operands=(operand,)):
                return call("log2", self.expr(operand, line, frame))
            case ir.RowReduction(op="rowmax", operand=ir.Ref(tile=tile) as ref) if (
                self.state(tile).unscaled and self.factor > 0
            ):
                value = self.facing(self.held(tile), ref, tile in turned)
                return self._at_most(self.as_exponent(self.reduced(expr, value, tile in turned)))
            case ir.RowReduction(op="rowmax", operand=ir.Ref(tile=tile) as ref) if tile in self.biased:
                value = self.facing(self.held(tile), ref, tile in turned)
                return self._at_most(self.reduced(expr, value, tile in turned) * TO_BASE_2)
            case ir.RowReduction(op="rowmax"):
                frame = any(ref.tile in turned for ref in ir.refs(expr.operand))
                return self.reduced(expr, self.exponent(expr.operand, line, frame), frame)
        return self.expr(expr, line, frame) * TO_BASE_2

    def _at_most(self, maximum: Term) -> Term:
        """A maximum of scores to base 2, which beside a bias is not infinite."""
        return minimum(maximum, HIGHEST) if has_bias(self.scope.program) else maximum

    def _of_maximum(self, expr: ir.Elementwise) -> bool:
        """Whether their maximum is subtracted from scores with a bias."""
        used = [each.tile for each in ir.refs(expr)]
        lacking = expr.op == "sub" and has_bias(self.scope.program)
        return lacking and len(expr.shape) == 2 and self.facts.subtracted.isdisjoint(used)

    def _minus_infinite(self, expr: ir.Elementwise) -> bool:
        """Whether scores and what is subtracted may both be -inf: beside a bias a maximum may, but no L that is read.

        Such an L is +inf for a row without a pair, so that its exponentials are 0.
        """
        if expr.op != "sub" or not self.lacking:
            return False
        used = [each.tile for each in ir.refs(expr)]
        if any(self.state(tile).barred for tile in used):
            return True
        return not self.biased.isdisjoint(used) and self.facts.subtracted.isdisjoint(used)

    def as_exponent(self, scores: Term) -> Term:
        """Scores as exponents of 2; capped, they are softcap · tanh(x) with tanh(x) = 2 σ(2x) - 1."""
        cap, to_base_2 = self.scope.setting.softcap, log2(euler)
        if not cap:
            return scores * (self.factor * to_base_2)
        return self._capped(scores) * (2 * cap * to_base_2) - cap * to_base_2

    def sigmoid(self, value: Term, times: float | None = None) -> Term:
        """σ of a value, multiplied by a number before."""
        return call("sigmoid", value if times is None else value * times)

    def _capped(self, scores: Term) -> Term:
        """σ(2x) of scores to be capped."""
        return self.sigmoid(scores, 2 * self.factor / self.scope.setting.softcap)

    def slope(self, scores: Term) -> Term:
        """The derivative of capped scores by the scaled ones: 1 - tanh² = 4 σ (1 - σ)."""
        sigmoid = self._capped(scores)
        return term(4.0) * sigmoid * (term(1.0) - sigmoid)

    def times_slope(self, value: Term, node: ir.Compute) -> Term:
        """A gradient of scores, made one of scores that were not capped yet."""
        probabilities = gradient_of(node)
        if not self.scope.setting.softcap or probabilities is None:
            return value
        if probabilities not in self.slopes:
            raise UsageError(
                f"{self.scope.program.name} has no scores where it computes their gradient: it cannot cap them."
            )
        return value * self.slopes[probabilities]

    def reciprocal(self, vector: Term) -> Term:
        """1 / vector; 0 for a row without an allowed pair, which a mask or a bias may leave: it has 0/0 = 0."""
        made = term(1.0) / vector
        return made if not self.lacking else call("where", vector.equals(NOTHING), 0.0, made)

    # Products

    def operands(self, expr: ir.MatMul, line: int, frame: bool = False) -> tuple[Term, Term]:
        """The operands of a product; `frame`: of its transpose, the product of the transposed operands."""
        for rng in (*expr.left.shape, *expr.right.shape):
            if self.scope.length(rng) < LEAST_SIDE:
                raise UsageError(
                    f"{self.scope.program.name}: tensor cores take tiles with sides of {LEAST_SIDE} and more, and one "
                    f"in line {line} has {self.scope.length(rng)} indices of {rng.dim}; take larger blocks."
                )
        terms, sides = expr.left.shape[1], (expr.right, expr.left) if frame else (expr.left, expr.right)
        left, right = (self.operand(ref, line, terms, 1 - axis, frame) for axis, ref in enumerate(sides))
        return left, right

    def operand(self, ref: ir.Ref, line: int, terms: ir.Range, axis: int, frame: bool) -> Term:
        """An operand of a product, in the words of memory; what no index stands for adds nothing.

        `axis`: along which its terms are; `frame`: it is the transpose of what the product says.
        """
        value, scope, state = self.ref(ref, line), self.scope, self.state(ref.tile)
        if ref.tile not in self.facts.zero and not state.cleared:
            value = only(value, scope.pairs(ref.ranges, ref.tile in self.facts.turned), 0.0)
        value = self.facing(value, ref, frame)
        if state.loaded:
            return value
        if not self.vanishes(ref.tile, terms):
            value = only(value, scope.exist(terms, axis), 0.0)
        return self.in_words(value)

    def in_words(self, value: Term) -> Term:
        """A value in the words of memory."""
        return value.to(Word(self.scope.setting.dtype))
