"""A bias of scores: the program with another input over pairs, of which a tile is added to each tile of scores.

The tile is read in front of the products that make the scores, and added behind the last of them, once these are
multiplied by the scale. Threads read it from memory: no product takes it, so it is never in shared memory.

No card has measured such kernels, and no domain offers them: they are written for a program that `biased` returns.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import replace
from typing import TypeGuard

from pebblesim.core.errors import UsageError
from pebblesim.kernels.facts import OF_SCORES, makes_scores
from pebblesim.kernels.terms import Term, term, total
from pebblesim.kernels.triton_places import Places
from pebblesim.language import program as ir

BIAS = "bias"
"""The name of the input."""


def biased(program: ir.Program) -> ir.Program:
    """A program whose scores are Q Kᵀ and a bias, a matrix (queries, keys) that is its last input.

    Raises:
        UsageError: it makes no scores, adds up several products in them, or takes a bias already.
    """
    nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
    read = {node.tile for node in nodes if isinstance(node, ir.Read) and node.tensor.name in OF_SCORES}
    made = {node.target.tile: node for node in nodes if _scores(node, read)}
    if not made or BIAS in program.tensors:
        raise UsageError(f"{program.name} {'takes a bias already' if made else 'makes no scores to add a bias to'}.")
    first, second = next(iter(made)).ranges
    tensor = ir.Tensor(BIAS, (first.dim, second.dim))

    def added(body: list[ir.Node]) -> list[ir.Node]:
        """A body with the bias of the scores that enter the cache in it."""
        found = [replace(node, body=added(node.body)) if isinstance(node, ir.Loop) else node for node in body]
        tiles = {tile for node in body if (tile := ir.entering(node)) in made}
        at = [place for place, node in enumerate(body) if any(_scores(each, read, tiles) for each in ir.walk([node]))]
        if len(tiles) > 1 or len(at) > 1:
            raise UsageError(f"{program.name} adds up several products in its scores, and a bias is added to one.")
        for place, tile in zip(at, tiles, strict=True):
            assert tile is not None
            bias, line = ir.Tile(BIAS, tile.ranges), made[tile].line
            plus = ir.Compute(ir.Ref(tile, tile.ranges), ir.Ref(bias, bias.ranges), "add", line)
            found[place : place + 1] = [ir.Read(bias, tensor, line), found[place], plus, ir.Delete(bias, True, line)]
        return found

    phases = [replace(phase, body=added(phase.body)) for phase in program.phases]
    given = {name: program.tensors[name] for name in program.inputs}
    tensors = {**given, BIAS: tensor, **program.tensors}
    return replace(program, inputs=(*program.inputs, BIAS), tensors=tensors, phases=phases)


def _scores(
    node: ir.Node, read: Collection[ir.Tile], tiles: Container[ir.Tile | None] | None = None
) -> TypeGuard[ir.Compute]:
    """Whether a product makes scores of tiles of Q or K that are read; `tiles`: the scores that it may make."""
    match node:
        case ir.Compute(target=ir.Ref(tile=tile), expr=ir.MatMul() as expr) if tiles is None or tile in tiles:
            return ir.over_pairs(tile.ranges) and makes_scores(read, expr)
    return False


def is_bias(node: ir.Node) -> bool:
    """Whether a tile of the bias is read."""
    return isinstance(node, ir.Read) and node.tensor.name == BIAS


def check_bias(program: ir.Program, shared: int, softcap: float) -> None:
    """Check that kernels with a bias are asked for what they are for.

    Raises:
        UsageError: they are not.
    """
    if BIAS in program.inputs and (shared or softcap):
        what, option = ("strides or heads that share keys", "shared") if shared else ("softcap", "softcap")
        raise UsageError(f"{program.name}: kernels with a bias take no {what}; leave {option} out.")


class RowsPlaces(Places):
    """The places of the tiles that a warpgroup reads itself, in layouts of its indices."""

    def address(self, tensor: ir.Tensor, ranges: ir.Ranges, at: ir.Range | None) -> Term:
        """The addresses of a tile."""
        if tensor.name != BIAS:
            return super().address(tensor, ranges, at)
        (rows, columns), (_, width) = map(self.scope.index, ranges), self.setting.lengths(tensor)
        return total([term(self.setting.of[tensor]), rows.along("[:, None]") * width, columns.along("[None, :]")])
