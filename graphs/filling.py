"""Fill in the arrays of a graph, family by family: operations, predecessor counts and predecessors.

All elements of a family, or of one of its row blocks, look alike: the arrays of one element are repeated with offsets.
Everything is written in place, so that a large graph takes little more memory than its own arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.graphs import summation
from pebblesim.graphs.cdag import Op, index_dtype, roots, sections
from pebblesim.layout import Family

UNARY: Final = {"exp": Op.EXP, "log": Op.LOG}
BINARY: Final = {"mul": Op.MUL, "add": Op.ADD, "sub": Op.SUB, "div": Op.DIV, "max": Op.MAX}
ELEMENTWISE: Final = UNARY | BINARY


def fill(families: Sequence[Family], vertices: int, edges: int) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any]]:
    """`op`, `indptr` and `preds` of the graph of these families, which has that many vertices and edges in all."""
    by_name = {family.name: family for family in families}
    op = np.empty(vertices, dtype=np.uint8)
    indptr = np.empty(vertices + 1, dtype=index_dtype(edges, unsigned=True))
    preds = np.empty(edges, dtype=index_dtype(vertices))
    at = 0
    for family in families:
        at = _fill_family(family, _factors(family, by_name, preds.dtype), op, indptr, preds, at)
    indptr[-1] = at
    return op, indptr, preds


def _fill_family(
    family: Family,
    factors: list[NDArray[Any]],
    op: NDArray[np.uint8],
    indptr: NDArray[Any],
    preds: NDArray[Any],
    at: int,
) -> int:
    """Fill in one family, whose predecessors begin at `at`; returns where they end."""
    arity, done = len(factors), 0
    for base, terms in sections(family):
        stride, degree = family.stride(terms), element_edges(family, terms)
        owned = slice(base, base + family.elements * stride)
        edges = slice(at, at + family.elements * degree)
        op[owned].reshape(-1, stride)[:] = _element_ops(family, terms)
        first = at + degree * np.arange(family.elements, dtype=indptr.dtype)
        within = np.append(0, np.cumsum(_element_degrees(family, terms))[:-1]).astype(indptr.dtype)
        np.add(first[:, None], within, out=indptr[owned].reshape(-1, stride))

        element = preds[edges].reshape(*family.shape, degree)
        leaves, partial_sums = np.split(element, [arity * max(terms, 1)], axis=-1)
        for place, factor in enumerate(factors):
            leaves[..., place::arity] = factor[..., done : done + terms] if terms else factor
        if terms:
            first = base + stride * np.arange(family.elements, dtype=preds.dtype).reshape(*family.shape, 1)
            for side, offsets in enumerate(summation.tree(terms, family.tree, family.start)):
                np.add(first, offsets.astype(preds.dtype), out=partial_sums[..., side::2])
        at, done = edges.stop, done + terms
    return at


def _factors(family: Family, by_name: Mapping[str, Family], dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    """Ids of the operands' entries, in shapes that broadcast to (*element, terms), or (*element, 1) if no sum."""
    families = [by_name[operand.removesuffix(".T")] for operand in family.operands]
    entries = []
    for operand, source in zip(family.operands, families, strict=True):
        ids = roots(source, dtype)
        entries.append(ids.swapaxes(-1, -2) if operand.endswith(".T") and ids.ndim > 1 else ids)
    if not family.terms:
        return [ids[..., None] if ids.ndim == len(family.shape) else ids[:, None, None] for ids in entries]
    entries[1:] = [ids.swapaxes(-1, -2) for ids in entries[1:]]  # the summed dimension comes last in both factors
    blocks = max(source.blocks for source in families)
    if blocks > 1:
        entries = [np.concatenate(ids, axis=-1) if ids.ndim == 3 else np.tile(ids, (1, blocks)) for ids in entries]
    return entries if len(entries) == 1 else [entries[0][:, None, :], entries[1][None, :, :]]


def element_edges(family: Family, terms: int) -> int:
    """Number of edges into one element of a row block with that many terms."""
    if not terms:
        return len(family.operands)
    return terms * len(family.operands) + 2 * (terms if family.start else terms - 1)


def _element_degrees(family: Family, terms: int) -> NDArray[np.int64]:
    """Number of predecessors of each vertex of one element."""
    leaves, start = max(terms, 1), terms > 0 and family.start
    degrees = np.full(family.stride(terms), 2)
    degrees[:leaves] = len(family.operands)
    degrees[leaves : leaves + start] = 0
    return degrees


def _element_ops(family: Family, terms: int) -> NDArray[np.uint8]:
    """The operation of each vertex of one element."""
    if not terms:
        return np.array([ELEMENTWISE.get(family.op, Op.INPUT)], dtype=np.uint8)
    ops = np.full(family.stride(terms), Op.MAX if family.op == "rowmax" else Op.ADD, dtype=np.uint8)
    ops[:terms] = Op.MUL if family.op == "matmul" else Op.TERM
    ops[terms : terms + family.start] = Op.ZERO
    return ops
