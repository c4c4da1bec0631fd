"""A bias of scores: the program with another input over pairs, of which a tile is added to each tile of scores.

The tile is read in front of the products that make the scores, and added behind the last of them, once these are
multiplied by the scale. Threads read it from memory: no product takes it. Where scores are computed transposed, it is
read from a transposed copy, in the orientation that they have.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import replace
from math import inf
from typing import TypeGuard

from pebblesim.core.errors import UsageError
from pebblesim.kernels.facts import OF_SCORES, makes_scores
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.terms import MINUS_INFINITY, Term, call, term, total
from pebblesim.kernels.triton.places import Places
from pebblesim.language import program as ir

BIAS = "bias"
"""The name of the input."""

TRANSPOSED = "bias_T"
"""The name of its transpose, for phases that read this in its place."""


LOWEST = -(2.0**20)
"""Where maxima of scores to base 2 begin beside a bias: a query all of whose scores are below it is one without a key.

In float32 such a maximum, rounded, is far from the score that it is of: their difference may have no exponential.
"""

HIGHEST = 2.0**24
"""Scores to base 2 beside a bias are below it: a query with a higher one is one without a key, too.

In float32 such scores have no fraction. Their maximum, rounded, is so far from them that exponentials may be infinite.
"""

LEAST = {"float32": -3.4e38, "bfloat16": -3.38e38, "float16": -65504.0}
"""Numbers of a type near its least one."""


def begun(value: float, program: ir.Program) -> float:
    """The constant of a program with which a vector begins, in kernels."""
    return LOWEST if value == -inf and has_bias(program) else value


def divisible(bias: Term, scale: float, kind: str = "float32") -> Term:
    """A bias in float32 of a type, where what float32 does not hold, divided by the scale, is -inf: it leaves keys out.

    The least numbers of bfloat16 and float32 are left out by all kernels, since scores to base 2 do not hold them. Of
    numbers above `HIGHEST` it does not matter how large they are.
    """
    least = max(LEAST["float32"] * min(abs(scale), 1.0), LEAST[kind])
    kept = call("where", bias < least, MINUS_INFINITY, bias)
    return kept if kind == "float16" else call("where", bias > 2 * HIGHEST, 2 * HIGHEST, kept)


def biased(program: ir.Program, transposed: Container[str] = ()) -> ir.Program:
    """A program whose scores are Q Kᵀ and a bias, a matrix (queries, keys) that is its last input.

    Args:
        program: a traced schedule.
        transposed: names of phases that read the transpose of the bias, another input behind it.

    Raises:
        UsageError: it makes no scores, adds up several products in them, or takes a bias already.
    """
    nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
    read = {node.tile for node in nodes if isinstance(node, ir.Read) and node.tensor.name in OF_SCORES}
    made = {node.target.tile: node for node in nodes if _scores(node, read)}
    if not made or BIAS in program.tensors:
        raise UsageError(f"{program.name} {'takes a bias already' if made else 'makes no scores to add a bias to'}.")
    first, second = next(iter(made)).ranges
    as_it_is, across = ir.Tensor(BIAS, (first.dim, second.dim)), ir.Tensor(TRANSPOSED, (second.dim, first.dim))

    def added(body: list[ir.Node], tensor: ir.Tensor) -> list[ir.Node]:
        """A body with the bias of the scores that enter the cache in it."""
        found = [replace(node, body=added(node.body, tensor)) if isinstance(node, ir.Loop) else node for node in body]
        tiles = {tile for node in body if (tile := ir.entering(node)) in made}
        at = [place for place, node in enumerate(body) if any(_scores(each, read, tiles) for each in ir.walk([node]))]
        if len(tiles) > 1 or len(at) > 1:
            raise UsageError(f"{program.name} adds up several products in its scores, and a bias is added to one.")
        for place, tile in zip(at, tiles, strict=True):
            assert tile is not None
            turned, line = tensor is across, made[tile].line
            bias = ir.Tile(tensor.name, tile.ranges[:: -1 if turned else 1])
            plus = ir.Compute(ir.Ref(tile, tile.ranges), ir.Ref(bias, bias.ranges, turned), "add", line)
            found[place : place + 1] = [ir.Read(bias, tensor, line), found[place], plus, ir.Delete(bias, True, line)]
        return found

    phases = [
        replace(phase, body=added(phase.body, across if phase.name in transposed else as_it_is))
        for phase in program.phases
    ]
    given = {name: program.tensors[name] for name in program.inputs}
    more = {each.name: each for each in ((as_it_is, across) if transposed else (as_it_is,))}
    tensors = {**given, **more, **program.tensors}
    return replace(program, inputs=(*program.inputs, *more), tensors=tensors, phases=phases)


def _scores(
    node: ir.Node, read: Collection[ir.Tile], tiles: Container[ir.Tile | None] | None = None
) -> TypeGuard[ir.Compute]:
    """Whether a product makes scores of tiles of Q or K that are read; `tiles`: the scores that it may make."""
    match node:
        case ir.Compute(target=ir.Ref(tile=tile), expr=ir.MatMul() as expr) if tiles is None or tile in tiles:
            return ir.over_pairs(tile.ranges) and makes_scores(read, expr)
    return False


def gradient_of_bias(program: ir.Program) -> ir.Program:
    """dB, the sum over R sequences of the gradients of the scores, from a backward pass for rows of queries.

    The loops of the pass are turned inside out: tiles (i, j) are outermost, each with its tile of the bias and of dB,
    and the sequences stream past them. What the pass computes in (i, j) is computed for each sequence; its dS is added
    to dB instead of multiplied by K. So dB is written once, in an order of sums that is the same in every run.

    Args:
        program: of `biased`, from a schedule with a loop over rows of queries, and in it one over keys that ends with
            the product dQ_i += dS K_j.

    Raises:
        UsageError: it is another one.
    """
    found = [pair for phase in program.phases if (pair := rows_and_keys(phase.body)) is not None]
    if len(found) != 1 or BIAS not in program.inputs:
        raise UsageError(f"{program.name} has no loop over rows of queries, with dS for a bias in it.")
    ((rows, keys),) = found
    of_row = [node for node in rows.body if isinstance(node, ir.Read)]
    line, pairs = keys.line, (rows.range, keys.range)
    dB = ir.Tensor("dB", (rows.range.dim, keys.range.dim))
    sequence = ir.Range("r", ir.Range(SEQUENCES), 1)
    apart = {
        name: ir.Tensor(name, tensor.shape, ir.Quotient(SEQUENCES, 1))
        for name, tensor in program.tensors.items()
        if name in {node.tensor.name for node in (*of_row, *keys.body) if isinstance(node, ir.Read)} - {BIAS}
    }

    def of_sequence(node: ir.Node) -> ir.Node:
        return replace(node, tensor=apart[node.tensor.name], at=sequence) if isinstance(node, ir.Read) else node

    sums = ir.Tile("dB", pairs)
    product = next(node for node in keys.body if adds_dQ(node))
    added = ir.Compute(ir.Ref(sums, pairs), next(ir.refs(product.expr)), "add", product.line)
    bias = [node for node in keys.body if isinstance(node, ir.Read | ir.Delete) and node.tile.name == BIAS]
    each = [added if node is product else of_sequence(node) for node in keys.body if node not in bias]
    each = [*map(of_sequence, of_row), *each, *(ir.Delete(node.tile, True, line) for node in of_row)]
    body: list[ir.Node] = [
        ir.Zeros(sums, line),
        bias[0],
        ir.Loop(sequence, each, False, line),
        ir.Write(sums, dB, line),
        *(ir.Delete(tile, True, line) for tile in (sums, bias[0].tile)),
    ]
    inner = replace(keys, body=body, independent=True)
    taken = [name for name in program.tensors if name in apart or name == BIAS]
    return ir.Program(
        f"{program.name}, dB",
        (SEQUENCES, *program.dims),
        tuple(str(each.block) for each in pairs),
        {**{name: apart.get(name, program.tensors[name]) for name in taken}, "dB": dB},
        tuple(taken),
        ("dB",),
        [ir.Phase("dB", [replace(rows, body=[inner])])],
        program.pairs,
    )


def rows_and_keys(body: list[ir.Node]) -> tuple[ir.Loop, ir.Loop] | None:
    """The loop over rows of queries, and the one over keys in it that adds to dQ."""
    for rows in (node for node in body if isinstance(node, ir.Loop)):
        for keys in (node for node in rows.body if isinstance(node, ir.Loop)):
            if any(map(adds_dQ, keys.body)):
                return rows, keys
    return None


def adds_dQ(node: ir.Node) -> TypeGuard[ir.Compute]:
    """Whether a product of a tile of pairs with keys is added to rows of dQ."""
    match node:
        case ir.Compute(mode="add", expr=ir.MatMul(left=ir.Ref(transposed=False) as left)):
            return ir.over_pairs(left.ranges)
    return False


def has_bias(program: ir.Program) -> bool:
    """Whether a bias is added to the scores of a program; then a row may have no key, all of whose scores are -inf."""
    return BIAS in program.inputs or TRANSPOSED in program.inputs


def is_bias(node: ir.Node) -> bool:
    """Whether a tile of the bias is read."""
    return isinstance(node, ir.Read) and node.tensor.name == BIAS


def check_bias(program: ir.Program, shared: int, softcap: float) -> None:
    """Check that kernels with a bias are asked for what they are for.

    Raises:
        UsageError: they are not.
    """
    if has_bias(program) and (shared > 1 or softcap):
        what, option = ("heads that share keys", "shared") if shared else ("softcap", "softcap")
        raise UsageError(f"{program.name}: kernels with a bias take no {what}; leave {option} out.")


class RowsPlaces(Places):
    """The places of the tiles that a warpgroup reads itself, in layouts of its indices."""

    def address(self, tensor: ir.Tensor, ranges: ir.Ranges, at: ir.Range | None) -> Term:
        """The addresses of a tile."""
        if tensor.name != BIAS:
            return super().address(tensor, ranges, at)
        (rows, columns), (_, width) = map(self.scope.index, ranges), self.setting.lengths(tensor)
        return total([term(self.setting.of[tensor]), rows.along("[:, None]") * width, columns.along("[None, :]")])
