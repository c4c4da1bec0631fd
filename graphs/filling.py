"""Fill in the arrays of a graph, section by section: operations, predecessor counts and predecessors.

A section is a block of a family. All its elements have the same structure, so the arrays of one element are repeated
with offsets. (Under a mask elements differ: see `pebblesim.graphs.masked`.) Everything is written in place, so that
building a large graph needs little more memory than its own arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.numbering import Family
from pebblesim.graphs import masked, summation
from pebblesim.graphs.cdag import index_dtype, sections
from pebblesim.graphs.operands import ELEMENTWISE, PARTIAL_SUM, TERM, arity, entries, term_entries
from pebblesim.graphs.operations import Op


def fill(families: Sequence[Family], vertices: int, edges: int) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any]]:
    """Return `op`, `indptr` and `preds` of the graph of these families, with these numbers of vertices and edges."""
    by_name = {family.name: family for family in families}
    op = np.empty(vertices, dtype=np.uint8)
    indptr = np.empty(vertices + 1, dtype=index_dtype(edges, unsigned=True))
    preds = np.empty(edges, dtype=index_dtype(vertices))
    at = 0
    for _, family, block in sections(families):
        at = _fill_section(family, block, by_name, op, indptr, preds, at)
    indptr[-1] = at
    return op, indptr, preds


def _fill_section(
    family: Family,
    block: int,
    by_name: Mapping[str, Family],
    op: NDArray[np.uint8],
    indptr: NDArray[Any],
    preds: NDArray[Any],
    at: int,
) -> int:
    """Fill in one section. Its predecessors start at `at`; return where they end."""
    if family.table is not None and block >= 0:
        return masked.fill_section(family, block, by_name, op, indptr, preds, at)
    base, terms = family.section(block)
    if block < 0:
        op[base : base + family.elements] = Op.ZERO if family.initial == 0 else Op.MINUS_INFINITY
        indptr[base : base + family.elements] = at
        return at
    stride, degree = family.stride(terms), element_edges(family, terms)
    owned = slice(base, base + family.elements * stride)
    edges = slice(at, at + family.elements * degree)
    op[owned].reshape(-1, stride)[:] = _element_ops(family, terms)
    first = at + degree * np.arange(family.elements, dtype=indptr.dtype)
    within = np.append(0, np.cumsum(_element_degrees(family, terms))[:-1]).astype(indptr.dtype)
    np.add(first[:, None], within, out=indptr[owned].reshape(-1, stride))

    factors = _factors(family, block, by_name, preds.dtype)
    element = preds[edges].reshape(*family.shape, degree)
    leaves, partial_sums = np.split(element, [len(factors) * max(terms, 1)], axis=-1)
    for place, factor in enumerate(factors):
        leaves[..., place :: len(factors)] = factor
    if terms:
        first = base + stride * np.arange(family.elements, dtype=preds.dtype).reshape(*family.shape, 1)
        for side, offsets in enumerate(summation.tree(terms, family.tree, family.start or family.onto)):
            # with `onto` there is no constant: the vertices after it move up, and references to it mean the value
            moved = offsets - (offsets > terms) if family.onto else offsets
            np.add(first, moved.astype(preds.dtype), out=partial_sums[..., side::2])
            if family.onto and side == 0:
                value = entries(family.operands[-1], family, block, by_name, preds.dtype)
                partial_sums[..., 2 * np.flatnonzero(offsets == terms)] = value[..., None]
    return edges.stop


def _factors(family: Family, block: int, by_name: Mapping[str, Family], dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    """Return the ids of the operands' entries; they broadcast to (*element, terms), or (*element, 1) if not a sum."""
    if not family.terms:
        factors = [entries(operand, family, block, by_name, dtype) for operand in family.operands]
        return [ids[..., None] if ids.ndim == len(family.shape) else ids[:, None, None] for ids in factors]
    summed = slice(block * family.terms, block * family.terms + family.section(block)[1])
    left, *right = (ids[:, summed] for ids in term_entries(family, block, by_name, dtype))
    return [left[:, None, :], right[0][None, :, :]] if right else [left]


def element_edges(family: Family, terms: int) -> int:
    """Number of edges into one element of a block with this many terms."""
    if not terms:
        return len(family.operands)
    return terms * arity(family) + 2 * (terms if family.start or family.onto else terms - 1)


def _element_degrees(family: Family, terms: int) -> NDArray[np.int64]:
    """Number of predecessors of each vertex of one element."""
    leaves, start = max(terms, 1), terms > 0 and family.start
    degrees = np.full(family.stride(terms), 2)
    degrees[:leaves] = arity(family)
    degrees[leaves : leaves + start] = 0
    return degrees


def _element_ops(family: Family, terms: int) -> NDArray[np.uint8]:
    """The operation of each vertex of one element."""
    if not terms:
        return np.array([ELEMENTWISE.get(family.op, Op.INPUT)], dtype=np.uint8)
    ops = np.full(family.stride(terms), PARTIAL_SUM[family.op], dtype=np.uint8)
    ops[:terms] = TERM[family.op]
    ops[terms : terms + family.start] = Op.ZERO
    return ops
