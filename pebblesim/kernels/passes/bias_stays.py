"""dQ and dB at once: rows of the bias and of dB stay in a block, while the sequences that share them stream past.

`gradient_of_bias` computes dS for dB alone, once more than dQ needs it. Where a block has all keys of its rows, the dS
of a sequence is all that dQ of these rows is made of, too: so one kernel writes both, and computes dS once. It reads
each row of dO once, and may compute the row sums v of dO ∘ O, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from pebblesim.core.errors import UsageError
from pebblesim.kernels.passes.bias import BIAS, adds_dQ, rows_and_keys
from pebblesim.kernels.passes.sequences import SEQUENCES, OfSequence
from pebblesim.language import program as ir

OF_PART, SPAN = "B_R", "B_k"
"""Blocks: sequences that are added up in one dB, and the keys of a block, which are all keys."""

BEFORE = "dQ_before"
"""The input with what keys before these have added to dQ."""

SUMS, FACTOR = "v", "O"
"""The row sums of dO ∘ O, and its factor that only they need."""


def gradients_at_once(program: ir.Program, onward: bool = False, with_v: bool = False) -> ir.Program:
    """dQ of R sequences, and dB, the sum over parts of them, from a backward pass for rows of queries.

    The loops of the pass are turned inside out: parts of the sequences and rows i are outermost, each with its rows of
    the bias and of dB, then the sequences, and innermost the keys. What the pass computes in (i, j) is computed once
    for each sequence; its dS is multiplied by K, as there, and added to dB. So each dB is written once, in an order of
    sums that is the same in every run. It is for n_k up to `SPAN`: of more keys, each span goes on with the dQ of those
    before it.

    Args:
        program: of `biased`, as for `gradient_of_bias`.
        onward: whether dQ begins as another input, and not as 0.
        with_v: whether v is computed from rows of O, and written, and not read.

    Raises:
        UsageError: it is another one.
    """
    found = [pair for phase in program.phases if (pair := rows_and_keys(phase.body)) is not None]
    if len(found) != 1 or BIAS not in program.inputs:
        raise UsageError(f"{program.name} has no loop over rows of queries, with dS for a bias in it.")
    ((rows, keys),) = found
    assert keys.range.parent is not None
    part, span = ir.Range("p", ir.Range(SEQUENCES), OF_PART), ir.Range("s", keys.range.parent, SPAN)
    spanned = ir.Range(keys.range.name, span, keys.range.block)
    apart = {name: replace(tensor, apart=ir.Quotient(SEQUENCES, 1)) for name, tensor in program.tensors.items()}
    made = OfSequence(ir.Range("r", part, 1), apart, {keys.range: spanned})
    bias, sums = (ir.Tile(name, (rows.range, span)) for name in (BIAS, "dB"))
    across = [made.of(node) for node in keys.body if not _moves_bias(node)]
    across = [replace(node, expr=ir.Ref(bias, node.target.ranges)) if _adds_bias(node) else node for node in across]
    at, product = next((at, node) for at, node in enumerate(across) if adds_dQ(node))
    pairs = (rows.range, spanned)
    across.insert(at, ir.Compute(ir.Ref(sums, pairs), next(ir.refs(product.expr)), "add", product.line))
    stream = replace(keys, range=spanned, body=across)
    of_rows = [*_with_sums(program, rows)] if with_v else rows.body
    each = [stream if node is keys else made.of(node) for node in of_rows]
    if onward:
        before = replace(apart["dQ"], name=BEFORE)
        each = [
            ir.Read(node.tile, before, node.line, made.sequence) if isinstance(node, ir.Zeros) else node
            for node in each
        ]
    dB = ir.Tensor("dB", (rows.range.dim, keys.range.dim), ir.Quotient(SEQUENCES, OF_PART))
    body: list[ir.Node] = [
        ir.Zeros(sums, keys.line),
        ir.Read(bias, program.tensors[BIAS], keys.line),
        ir.Loop(made.sequence, each, False, rows.line),
        ir.Write(sums, dB, keys.line, part),
        *(ir.Delete(tile, True, keys.line) for tile in (sums, bias)),
    ]
    of_span = ir.Loop(span, body, True, keys.line)
    parts = ir.Loop(part, [replace(rows, body=[of_span])], True, rows.line)
    nodes = [node for node in ir.walk([parts]) if isinstance(node, ir.Read | ir.Write)]
    read = {node.tensor.name for node in nodes if isinstance(node, ir.Read)}
    taken = tuple(name for name in (*program.tensors, BEFORE) if name in read)
    tensors = {node.tensor.name: node.tensor for node in nodes}
    written = (*[SUMS] * with_v, "dQ", "dB")
    return ir.Program(
        f"{program.name}, dQ and dB",
        (SEQUENCES, *program.dims),
        (OF_PART, str(rows.range.block), SPAN, str(keys.range.block)),
        {name: tensors[name] for name in (*taken, *written)},
        taken,
        written,
        [ir.Phase("dQ, dB", [parts])],
        program.pairs,
    )


def _with_sums(program: ir.Program, rows: ir.Loop) -> Iterator[ir.Node]:
    """The nodes of rows in which v is computed as its own phase does, of whole rows, in the place of its read."""
    phases = (node for phase in program.phases for node in phase.body if isinstance(node, ir.Loop))
    alone = next(each for each in phases if any(map(_writes_sums, each.body)))
    (parts,) = (node for node in alone.body if isinstance(node, ir.Loop))
    (made,) = (node for node in parts.body if isinstance(node, ir.Compute))
    read, own = _tiles_read(parts.body), _tiles_read(rows.body)
    tiles = {tile: own.get(name, ir.Tile(f"{name}_i", own["dO"].ranges)) for name, tile in read.items()}
    tiles[made.target.tile] = own[SUMS]
    ranges = dict(zip(read["dO"].ranges, own["dO"].ranges, strict=True))

    def of_rows(part: ir.Part) -> ir.Part:
        match part:
            case ir.Tile():
                return tiles[part]
            case ir.Range():
                return ranges[part]
        return part

    body = [replace(each, mode="new") if each is made else each for each in parts.body]
    body = [each for each in body if not isinstance(each, ir.Read | ir.Delete) or each.tile is not read["dO"]]
    body += filter(_writes_sums, alone.body)
    for node in rows.body:
        if isinstance(node, ir.Read) and node.tensor.name == SUMS:
            yield from (ir.rebuilt(each, of_rows) for each in body)
        else:
            yield node


def _tiles_read(body: list[ir.Node]) -> dict[str, ir.Tile]:
    """The tiles that nodes of a body read, by the name of their tensor."""
    return {node.tensor.name: node.tile for node in body if isinstance(node, ir.Read)}


def _writes_sums(node: ir.Node) -> bool:
    """Whether v is written."""
    return isinstance(node, ir.Write) and node.tensor.name == SUMS


def _moves_bias(node: ir.Node) -> bool:
    """Whether a tile of the bias is read or deleted."""
    return isinstance(node, ir.Read | ir.Delete) and node.tile.name == BIAS


def _adds_bias(node: ir.Node) -> TypeGuard[ir.Compute]:
    """Whether a tile of the bias is added to scores."""
    return isinstance(node, ir.Compute) and isinstance(node.expr, ir.Ref) and node.expr.tile.name == BIAS
