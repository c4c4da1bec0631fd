"""Sinks: the program whose softmaxes begin with one more term, exp(s), where they began with none.

An online softmax keeps the maximum m of a row's scores so far and the sum l of their exponentials relative to it. It
begins with m = -∞ and l = 0; with a sink, the score s of one more key whose value is 0, it begins with m = s and l = 1.
So O and L are those with sinks, and no other operation changes. Where l is added up once m is final, it gets exp(s - m)
before. Where keys are split, the softmax that puts the splits together has the sink, and each split is as it was. A
query without a key has L = s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import e, inf, log2

from pebblesim.core.errors import UsageError
from pebblesim.kernels.terms import Number, Term, Word, minimum, term, wide
from pebblesim.language import program as ir

SINKS = "sinks"
"""The name of the input: a number for each row and, beside matrices with strides, for each head of queries."""

SINKS_BATCH = "sinks_batch"
"""The argument of a kernel that says how many numbers lie from those of a batch to those of the next one."""


def numbers_of_sinks(tensors: Iterable[ir.Tensor], apart: bool) -> list[str]:
    """The arguments besides addresses of a kernel that reads sinks; `apart`: beside matrices with strides."""
    return [SINKS_BATCH] * (apart and any(tensor.name == SINKS for tensor in tensors))


HIGHEST = 2.0**127
"""The highest exponent of 2 that a sink is taken for: it has finite differences from all others."""


def first_of_head(start: Term, head: str, shared: int) -> Term:
    """The address of the first sink of a head of keys, where `batch` and the head are known."""
    return start + wide("batch") * SINKS_BATCH + wide(term(head) * shared)


def as_exponents(sinks: Term) -> Term:
    """Sinks, in any type, as exponents of 2 in float32."""
    return minimum(sinks.to(Word("float32")) * Number(log2(e)), Number(HIGHEST))


def sinking(program: ir.Program) -> ir.Program:
    """A program whose softmaxes have sinks, a vector (queries) that is its last input.

    Raises:
        UsageError: it writes no L of a softmax that begins with no term, or has sinks already.
    """
    sums = _softmaxes(program)
    if not sums or SINKS in program.tensors:
        what = "has sinks already" if SINKS in program.tensors else "writes no L of a softmax"
        raise UsageError(f"{program.name} {what}.")
    L = program.tensors["L"]
    sinks = ir.Tensor(SINKS, L.shape)
    nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
    online = {l for l in sums.values() if any(_rescaled(node, l) for node in nodes)}

    def made(node: ir.Node) -> list[ir.Node]:
        """The nodes in the place of one."""
        match node:
            case ir.Loop(body=body):
                return [replace(node, body=begun(body))]
            case ir.Constant(tile=tile, line=line) if tile in sums:
                return [ir.Read(tile, sinks, line)]
            case ir.Constant(tile=tile, line=line) | ir.Zeros(tile=tile, line=line) if tile in online:
                return [ir.Constant(tile, 1.0, line)]
            case ir.Init(tensor=tensor, ranges=ranges, line=line) if tensor is L:
                tile = ir.Tile(SINKS, ranges)
                return [ir.Read(tile, sinks, line), ir.Write(tile, L, line), ir.Delete(tile, True, line)]
        return [node]

    def begun(body: list[ir.Node]) -> list[ir.Node]:
        """A body whose softmaxes have sinks, which are read before all else: matrices take longer."""
        found = [each for node in body for each in made(node)]
        found.sort(key=lambda node: not (isinstance(node, ir.Read) and node.tile in sums))
        for m, l in sums.items():
            final = [at for at, node in enumerate(found) if isinstance(node, ir.Loop) and _changes(node, m)]
            if l not in online and final and any(ir.entering(node) is m for node in found):
                found[final[-1] + 1 : final[-1] + 1] = _added(m, l, sinks, found[final[-1]].line)
        return found

    phases = [replace(phase, body=begun(phase.body)) for phase in program.phases]
    given = {name: program.tensors[name] for name in program.inputs}
    tensors = {**given, SINKS: sinks, **program.tensors}
    return replace(program, inputs=(*program.inputs, SINKS), tensors=tensors, phases=phases)


def _added(m: ir.Tile, l: ir.Tile, sinks: ir.Tensor, line: int) -> list[ir.Node]:
    """Add exp(s - m) to l."""
    tile = ir.Tile(SINKS, m.ranges)
    s, of_m, of_l = (ir.Ref(each, m.ranges) for each in (tile, m, l))
    less = ir.Elementwise("sub", (s, of_m), m.ranges)
    return [
        ir.Read(tile, sinks, line),
        ir.Compute(s, ir.Elementwise("exp", (less,), m.ranges), "assign", line),
        ir.Compute(of_l, ir.Elementwise("add", (of_l, s), m.ranges), "assign", line),
        ir.Delete(tile, True, line),
    ]


def _changes(loop: ir.Loop, tile: ir.Tile) -> bool:
    """Whether a loop computes a tile."""
    return any(isinstance(node, ir.Compute) and node.target.tile is tile for node in ir.walk(loop.body))


def _rescaled(node: ir.Node, tile: ir.Tile) -> bool:
    """Whether an operation multiplies a tile, and perhaps adds to it."""

    def multiplied(expr: ir.Expr) -> bool:
        match expr:
            case ir.Elementwise(op="mul", operands=operands):
                return any(isinstance(each, ir.Ref) and each.tile is tile for each in operands)
            case ir.Elementwise(op="add", operands=operands):
                return any(map(multiplied, operands))
        return False

    return isinstance(node, ir.Compute) and node.target.tile is tile and multiplied(node.expr)


def _softmaxes(program: ir.Program) -> dict[ir.Tile, ir.Tile]:
    """The maxima m that become L = m + log l and are written, and the sums l."""
    nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
    written = {node.tile for node in nodes if isinstance(node, ir.Write) and node.tensor.name == "L"}
    begun = {node.tile for node in nodes if isinstance(node, ir.Constant) and node.value == -inf}
    found = {}
    for node in nodes:
        match node:
            case ir.Compute(
                target=ir.Ref(tile=tile),
                expr=ir.Elementwise(
                    op="add", operands=(ir.Ref(tile=m), ir.Elementwise(op="log", operands=(ir.Ref(tile=l),)))
                ),
            ) if tile is m and m in written & begun:
                found[m] = l
    return found
