"""Build a graph tensor by tensor, in bulk.

First the tensors are told in order, which costs nothing: sizes are known at once, however large. Then `finish` fills
arrays that were allocated once. The numbering is the one stated in `pebblesim.layout`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.errors import UnknownName, UsageError
from pebblesim.graphs import summation as sums
from pebblesim.graphs.cdag import Cdag, index_dtype, roots
from pebblesim.graphs.filling import ELEMENTWISE, UNARY, element_edges, fill
from pebblesim.graphs.memory import available_memory, readable
from pebblesim.layout import Family


class Builder:
    """Collects the tensors of a graph, then builds it.

    Operands are named; ".T" appended to a name means transposed.

    Args:
        summation: the tree of every sum: "chain", "balanced" or "blocked:B" (see `pebblesim.layout`).

    Raises (all methods):
        UsageError: a size, shape, operation or summation is not allowed.
        UnknownName: an operand was not told before.

    Example:
        >>> b = Builder("balanced")
        >>> b.input("A", (2, 4)), b.input("B", (4, 3))
        (None, None)
        >>> b.matmul("C", "A", "B")
        >>> b.finish(outputs=["C"])
        Cdag(62 vertices, 84 edges, tensors A B C)
    """

    def __init__(self, summation: str = "chain") -> None:
        self._tree = sums.parse(summation)
        self._families: dict[str, Family] = {}
        self.vertices = 0
        self.edges = 0

    @property
    def bytes_needed(self) -> int:
        """Memory of the finished graph's arrays, in bytes."""
        pointers = (self.vertices + 1) * index_dtype(self.edges, unsigned=True).itemsize
        return self.vertices + pointers + self.edges * index_dtype(self.vertices).itemsize

    def input(self, name: str, shape: tuple[int, ...]) -> None:
        """An input of that shape, (rows, columns) or (rows,)."""
        if len(shape) not in (1, 2):
            raise UsageError(f"tensor {name} has shape {shape}; it is (rows, columns) or (rows,).")
        self._add(name, "input", (), tuple(whole(f"a size of {name}", size) for size in shape))

    def elementwise(self, name: str, op: str, *operands: str) -> None:
        """exp or log of one operand, or mul, add, sub, div, max of two; [i,j] uses entry [i] of a vector operand."""
        if op not in ELEMENTWISE:
            raise UnknownName("elementwise operation", op, ELEMENTWISE)
        arity = 1 if op in UNARY else 2
        if len(operands) != arity:
            raise UsageError(f"{op} takes {arity} operand(s), but {name} was given {len(operands)}.")
        shapes = [self._plain_shape(name, operand) for operand in operands]
        shape = max(shapes, key=len)
        if any(s not in (shape, shape[:1]) for s in shapes):
            raise self._mismatch(name, operands, shapes)
        self._add(name, op, operands, shape)

    def matmul(
        self,
        name: str,
        left: str,
        right: str,
        *,
        tree: int | None = None,
        start: bool = False,
        row_block: int | None = None,
    ) -> None:
        """The product of an (m, k) and a (k, n) operand.

        Args:
            tree: tree block of these sums, instead of the builder's.
            start: each sum starts from an explicit constant 0.
            row_block: keep the sum apart for each block of that many of the k terms (a regrouped tensor).
        """
        (*rows, k), (inner, *columns) = shapes = self._shape(left), self._shape(right)
        if len(rows) != 1 or len(columns) != 1 or inner != k:
            raise self._mismatch(name, (left, right), shapes)
        spread = [self._family(operand).blocks for operand in (left, right)]
        if min(spread) > 1:
            raise UsageError(f"{name} sums over {left} and {right}, which are both regrouped; only one of them may be.")
        self._sum(name, "matmul", (left, right), (*rows, *columns), k * max(spread), tree, start, row_block)

    def rowsum(self, name: str, operand: str, *, tree: int | None = None, start: bool = False) -> None:
        """The sum of each row of an (m, k) operand: a vector of length m. `tree` and `start` as for `matmul`."""
        shape = self._shape(operand)
        if len(shape) != 2:
            raise UsageError(f"{name} sums the rows of {operand}, which is a vector; give it a matrix.")
        self._sum(name, "rowsum", (operand,), shape[:1], shape[1] * self._family(operand).blocks, tree, start, None)

    def rowmax(self, name: str, operand: str) -> None:
        """The maximum of each row of an (m, k) operand: a vector of length m, as a tree of maxima of two."""
        shape = self._shape(operand)
        if len(shape) != 2:
            raise UsageError(f"{name} is the maximum of the rows of {operand}, which is a vector; give it a matrix.")
        self._sum(name, "rowmax", (operand,), shape[:1], shape[1], None, False, None)

    def finish(self, outputs: Iterable[str]) -> Cdag:
        """Build the graph with these tensors as outputs.

        Raises:
            UsageError: it does not fit into the memory that is available; nothing has been allocated then.
        """
        results = [self._family(name) for name in outputs]
        available = available_memory()
        if self.bytes_needed > available:
            raise UsageError(
                f"a graph of {self.vertices:,} vertices and {self.edges:,} edges needs {readable(self.bytes_needed)} "
                f"of memory, but {readable(available)} are available; "
                "take smaller sizes, or use `count` and `formula`, which answer for sizes like these."
            )
        families = tuple(self._families.values())
        op, indptr, preds = fill(families, self.vertices, self.edges)
        return Cdag(
            op=op,
            indptr=indptr,
            preds=preds,
            families=families,
            inputs=_all_roots([f for f in families if f.op == "input"], preds.dtype),
            outputs=_all_roots(results, preds.dtype),
        )

    def _family(self, operand: str) -> Family:
        name = operand.removesuffix(".T")
        if name not in self._families:
            raise UnknownName("tensor", name, self._families)
        return self._families[name]

    def _shape(self, operand: str) -> tuple[int, ...]:
        shape = self._family(operand).shape
        return shape[::-1] if operand.endswith(".T") else shape

    def _plain_shape(self, name: str, operand: str) -> tuple[int, ...]:
        if self._family(operand).blocks > 1:
            raise UsageError(f"{name} takes {operand} entry by entry, but it is regrouped; only sums accept that.")
        return self._shape(operand)

    @staticmethod
    def _mismatch(name: str, operands: Iterable[str], shapes: Iterable[tuple[int, ...]]) -> UsageError:
        given = " and ".join(f"{o} {s}" for o, s in zip(operands, shapes, strict=True))
        return UsageError(f"the shapes of the operands of {name} do not fit together: {given}.")

    def _sum(
        self,
        name: str,
        op: str,
        operands: tuple[str, ...],
        shape: tuple[int, ...],
        k: int,
        tree: int | None,
        start: bool,
        row_block: int | None,
    ) -> None:
        terms = k if row_block is None else min(k, whole(f"row_block of {name}", row_block))
        blocks = -(-k // terms)
        block = self._tree if tree is None else whole(f"tree of {name}", tree)
        self._add(
            name,
            op,
            operands,
            shape,
            terms=terms,
            tree=terms if block is None else min(block, terms),
            start=start,
            blocks=blocks,
            last_terms=k - (blocks - 1) * terms,
        )

    def _add(self, name: str, op: str, operands: tuple[str, ...], shape: tuple[int, ...], **of_sum: Any) -> None:
        if not re.fullmatch(r"\w+", name) or name in self._families:
            raise UsageError(f"tensor name {name!r} is taken, or has other characters than letters, digits and '_'.")
        family = Family(name, op, operands, self.vertices, shape, **of_sum)
        self._families[name] = family
        self.vertices += family.size
        whole_blocks = (family.blocks - 1) * element_edges(family, family.terms)
        self.edges += family.elements * (whole_blocks + element_edges(family, family.last_terms))


def in_memory(name: str, block: int | None, summation: str) -> dict[str, Any]:
    """Of a sum that waits in memory, 0 at first, between blocks of so many terms; none if it stays in cache."""
    if block is None:
        return {}
    return {"start": True, "tree": 1 if sums.parse(summation) == 1 else whole(f"{name}_block", block)}


def whole(what: str, value: int) -> int:
    """`value` as a plain int.

    Raises:
        UsageError: it is no integer, or below 1.
    """
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{what} is {value!r}, but must be a whole number of at least 1.")
    return number


def _all_roots(families: list[Family], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *(roots(f, dtype).ravel() for f in families)])
