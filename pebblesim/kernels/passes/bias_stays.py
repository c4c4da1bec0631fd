"""dQ and dB at once: rows of the bias and of dB stay in a block, while the sequences that share them stream past.

`gradient_of_bias` computes dS for dB alone, once more than dQ needs it. Where a block has all keys of its rows, the dS
of a sequence is all that dQ of these rows is made of, too: so one kernel writes both, and computes dS once.
"""

from __future__ import annotations

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


def gradients_at_once(program: ir.Program, onward: bool = False) -> ir.Program:
    """dQ of R sequences, and dB, the sum over parts of them, from a backward pass for rows of queries.

    The loops of the pass are turned inside out: parts of the sequences and rows i are outermost, each with its rows of
    the bias and of dB, then the sequences, and innermost the keys. What the pass computes in (i, j) is computed once
    for each sequence; its dS is multiplied by K, as there, and added to dB. So each dB is written once, in an order of
    sums that is the same in every run. It is for n_k up to `SPAN`: of more keys, each span goes on with the dQ of those
    before it.

    Args:
        program: of `biased`, as for `gradient_of_bias`.
        onward: whether dQ begins as another input, and not as 0.

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
    each = [stream if node is keys else made.of(node) for node in rows.body]
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
    return ir.Program(
        f"{program.name}, dQ and dB",
        (SEQUENCES, *program.dims),
        (OF_PART, str(rows.range.block), SPAN, str(keys.range.block)),
        {name: tensors[name] for name in (*taken, "dQ", "dB")},
        taken,
        ("dQ", "dB"),
        [ir.Phase("dQ, dB", [parts])],
        program.pairs,
    )


def _moves_bias(node: ir.Node) -> bool:
    """Whether a tile of the bias is read or deleted."""
    return isinstance(node, ir.Read | ir.Delete) and node.tile.name == BIAS


def _adds_bias(node: ir.Node) -> TypeGuard[ir.Compute]:
    """Whether a tile of the bias is added to scores."""
    return isinstance(node, ir.Compute) and isinstance(node.expr, ir.Ref) and node.expr.tile.name == BIAS
