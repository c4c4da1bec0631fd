"""Build a graph tensor by tensor, in bulk.

First the tensors are declared in order. This is cheap, and gives the size of the graph for tensors of any size. Then
`finish` allocates the arrays once and fills them. The numbering is stated in `pebblesim.game.numbering`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from operator import index
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.memory import readable, shortage
from pebblesim.game.numbering import Family
from pebblesim.graphs import summation as sums
from pebblesim.graphs.cdag import Cdag, index_dtype, roots
from pebblesim.graphs.filling import element_edges, fill
from pebblesim.graphs.masked import Masking, Unplaced
from pebblesim.graphs.operands import ELEMENTWISE, UNARY

Mask: TypeAlias = NDArray[np.bool_] | None  # the allowed pairs, (n_q, n_k); None if all are allowed


class Builder:
    """Collects the tensors of a graph, then builds it.

    Operands are given by name; the suffix ".T" means transposed.

    Args:
        summation: the tree of every sum: "chain", "balanced" or "blocked:B" (see `pebblesim.game.numbering`).
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all. A tensor is over pairs if it is
            declared so, or if it is computed elementwise from such tensors. Under a mask all sums must be chains.

    Raises (all methods):
        UsageError: a size, shape, operation or summation is not allowed.
        UnknownName: an operand was not declared before.

    Example:
        >>> b = Builder("balanced")
        >>> b.input("A", (2, 4)), b.input("B", (4, 3))
        (None, None)
        >>> b.matmul("C", "A", "B")
        >>> b.finish(outputs=["C"])
        Cdag(62 vertices, 84 edges, tensors A B C)
    """

    def __init__(self, summation: str = "chain", mask: Mask = None) -> None:
        self._tree = sums.tree_block(summation)
        self._families: dict[str, Family] = {}
        self._loop: tuple[int, int, int] | None = None  # blocks, columns of a block, columns of the last
        self._restart = 0  # blocks of the loop after which running values start anew
        self._of_loop: list[Family] = []
        self._masking = None if mask is None else Masking(mask)
        self._unplaced: list[Unplaced] = []  # under a mask, the same families
        self.outputs: tuple[str, ...] = ()
        self.vertices = 0
        self.edges = 0

    @property
    def bytes_needed(self) -> int:
        """Memory of the graph's arrays, in bytes."""
        pointers = (self.vertices + 1) * index_dtype(self.edges, unsigned=True).itemsize
        return self.vertices + pointers + self.edges * index_dtype(self.vertices).itemsize

    def input(self, name: str, shape: tuple[int, ...], *, pairs: bool = False) -> None:
        """Declare an input of shape (rows, columns) or (rows,); `pairs` says whether it is over pairs."""
        if len(shape) not in (1, 2):
            raise UsageError(f"tensor {name} has shape {shape}; it is (rows, columns) or (rows,).")
        self._add(name, "input", (), tuple(whole(f"a size of {name}", size) for size in shape), pairs)

    def elementwise(self, name: str, op: str, *operands: str) -> None:
        """Declare exp, log, relu, step or sigmoid of one operand, or mul, add, sub, div or max of two.

        Element [i,j] uses entry [i] of a vector operand.
        """
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
        onto: str | None = None,
        row_block: int | None = None,
        pairs: bool = False,
        leave_out: bool = False,
    ) -> None:
        """Declare the product of an (m, k) and a (k, n) operand.

        Args:
            tree: tree block of these sums; by default that of the builder.
            start: each sum starts from an explicit constant 0.
            onto: a tensor; each sum is added to one of its entries.
            row_block: make a separate sum for each block of this many of the k terms (a regrouped tensor).
            pairs: the results are over pairs of a query and a key, such as S = Q Kᵀ.
            leave_out: under a mask, leave out terms of a row or column without an allowed pair. Such terms of a
                regrouped tensor are always left out.
        """
        (*rows, k), (inner, *columns) = shapes = self._shape(left), self._shape(right)
        if len(rows) != 1 or len(columns) != 1 or inner != k:
            raise self._mismatch(name, (left, right), shapes)
        blocks = [self._regrouped(operand) for operand in (left, right)]
        if min(blocks) > 1:
            raise UsageError(f"{name} sums over {left} and {right}, which are both regrouped; only one of them may be.")
        terms, shape = k * max(blocks), (*rows, *columns)
        self._sum(name, "matmul", (left, right), shape, terms, tree, start, onto, row_block, pairs, leave_out)

    def rowsum(
        self, name: str, operand: str, *, onto: str | None = None, tree: int | None = None, start: bool = False
    ) -> None:
        """Declare the sum of each row of an (m, k) operand, a vector of length m.

        `tree`, `start`, `onto` as for `matmul`.
        """
        self._reduce(name, "rowsum", operand, onto, tree, start)

    def rowmax(self, name: str, operand: str) -> None:
        """Declare the maximum of each row of an (m, k) operand, a vector of length m, as a tree of pairwise maxima."""
        self._reduce(name, "rowmax", operand, None, None, False)

    def _reduce(self, name: str, op: str, operand: str, onto: str | None, tree: int | None, start: bool) -> None:
        shape = self._shape(operand)
        if len(shape) != 2:
            raise UsageError(f"{name} needs the rows of {operand}, which is a vector; give a matrix.")
        terms = shape[1] * self._regrouped(operand)
        self._sum(name, op, (operand,), shape[:1], terms, tree, start, onto, None)

    @contextmanager
    def loop(self, columns: int, block: int, row_blocks: tuple[int, ...] = (), split: int = 0) -> Iterator[None]:
        """Declare tensors that are computed again for each block of columns, from those of the previous block.

        A sum over the columns has only the terms of the block. "m.prev" is m of the previous block.

        Args:
            row_blocks: rows of a tile, or of a tile and of the tiles that it is cut into. Under a mask, such a tile of
                rows has only the blocks in which it has an allowed pair.
            split: columns after which running values start anew, if any; under a mask, a tile of rows then has all
                blocks of a split with an allowed pair. In a loop over splits "m.ends" is m at the end of the split.
        """
        block, self._restart = _cut(columns, block, split)
        blocks = -(-columns // block)
        if self._masking is not None:
            self._masking.enter(block, row_blocks, max(self._restart, 1) * block)
        self._loop, self._of_loop, self._unplaced = (blocks, block, columns - (blocks - 1) * block), [], []
        yield
        self._loop = None
        for family in self._of_loop:
            if family.initial is not None:
                self._place(replace(family, initial_base=self.vertices), family.elements, 0)
        if self._masking is None:
            self._place_loop(blocks)
        else:
            self._masking.leave()
            self._place_masked(self._unplaced)

    def _place_loop(self, blocks: int) -> None:
        """Place the blocks of all families of a loop, interleaved."""
        families = [self._families[family.name] for family in self._of_loop]
        full = list(accumulate((f.elements * f.stride() for f in families), initial=0))
        last = list(accumulate((f.elements * f.stride(f.last_terms) for f in families), initial=0))
        first, of_last = self.vertices, self.vertices + (blocks - 1) * full[-1]
        for family, at, at_last in zip(families, full, last, strict=False):
            base = first + at if blocks > 1 else of_last + at_last
            placed = replace(family, base=base, step=full[-1], last_base=of_last + at_last)
            edges = (blocks - 1) * element_edges(family, family.terms) + element_edges(family, family.last_terms)
            self._place(placed, 0, family.elements * edges)
        self.vertices = of_last + last[-1]

    def _place_masked(self, families: list[Unplaced]) -> None:
        """Like `_place_loop`, under a mask, where each element has its own position."""
        sizes = np.stack([unplaced.owned.sum(axis=1) for unplaced in families], axis=1)  # (blocks, families)
        starts = self.vertices + (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape)
        for unplaced, first in zip(families, starts.T.tolist(), strict=True):
            initial_base = self._families.get(unplaced.family.name, unplaced.family).initial_base
            family = unplaced.place(first, self._families)
            self._place(replace(family, initial_base=initial_base), int(unplaced.owned.sum()), unplaced.edges)

    def running(self, name: str, shape: tuple[int, ...], initial: float) -> None:
        """Announce, in a loop, a tensor that starts from a constant and uses its previous value; define it later."""
        self._check_name(name)
        self._families[name] = Family(name, "", (), 0, shape, initial=initial)

    def finish(self, outputs: Iterable[str] | None = None) -> Cdag:
        """Build the graph. Its outputs are these tensors; by default `outputs` of the builder.

        Raises:
            UsageError: it does not fit into the available memory; nothing is allocated.
        """
        names = tuple(dict.fromkeys(self.outputs if outputs is None else outputs))
        results = [self._family(name) for name in names]
        if (available := shortage(self.bytes_needed)) is not None:
            raise UsageError(
                f"a graph of {self.vertices:,} vertices and {self.edges:,} edges needs {readable(self.bytes_needed)} "
                f"of memory, but {readable(available)} are available; use smaller sizes, or use `count` and "
                "`formula`, which need no graph."
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
            results=names,
        )

    def _family(self, operand: str) -> Family:
        name = operand.partition(".")[0]
        if name not in self._families:
            raise UnknownName("tensor", name, self._families)
        return self._families[name]

    def _shape(self, operand: str) -> tuple[int, ...]:
        shape = self._family(operand).shape
        return shape[::-1] if operand.endswith(".T") else shape

    def _regrouped(self, operand: str) -> int:
        """Number of blocks of the operand that a sum over it must take one after the other."""
        family = self._family(operand)
        return 1 if family.running else family.blocks

    def _plain_shape(self, name: str, operand: str) -> tuple[int, ...]:
        if self._regrouped(operand) > 1:
            raise UsageError(
                f"{name} uses {operand} elementwise, but it is regrouped; only sums accept a regrouped operand."
            )
        return self._shape(operand)

    @staticmethod
    def _mismatch(name: str, operands: Iterable[str], shapes: Iterable[tuple[int, ...]]) -> UsageError:
        described = " and ".join(f"{o} {s}" for o, s in zip(operands, shapes, strict=True))
        return UsageError(f"the shapes of the operands of {name} do not fit together: {described}.")

    def _sum(
        self,
        name: str,
        op: str,
        operands: tuple[str, ...],
        shape: tuple[int, ...],
        k: int,
        tree: int | None,
        start: bool,
        onto: str | None,
        row_block: int | None,
        pairs: bool = False,
        leave_out: bool = False,
    ) -> None:
        if self._loop is not None:
            row_block = self._loop[1]
        terms = k if row_block is None else min(k, whole(f"row_block of {name}", row_block))
        blocks = -(-k // terms)
        block = self._tree if tree is None else whole(f"tree of {name}", tree)
        self._add(
            name,
            op,
            operands if onto is None else (*operands, onto),
            shape,
            pairs,
            leave_out,
            terms=terms,
            tree=terms if block is None else min(block, terms),
            start=start,
            onto=onto is not None,
            blocks=blocks,
            last_terms=k - (blocks - 1) * terms,
        )

    def _add(
        self,
        name: str,
        op: str,
        operands: tuple[str, ...],
        shape: tuple[int, ...],
        pairs: bool = False,
        leave_out: bool = False,
        **of_sum: Any,
    ) -> None:
        announced = self._families.get(name)
        if announced is None or announced.op:
            self._check_name(name)
        initial = None if announced is None else announced.initial
        if self._loop is not None:
            of_loop = {"blocks": self._loop[0], "running": self._loop[1], "initial": initial, "restart": self._restart}
            family = Family(name, op, operands, 0, shape, **(of_sum | of_loop))
            self._families[name] = family
            self._of_loop.append(family)
            if self._masking is not None and (
                unplaced := self._masking.unplaced(family, self._families, pairs, leave_out)
            ):
                self._unplaced.append(unplaced)
            return
        family = Family(name, op, operands, self.vertices, shape, **of_sum)
        if self._masking is not None and (unplaced := self._masking.unplaced(family, self._families, pairs, leave_out)):
            self._place_masked([unplaced])
            return
        whole_blocks = (family.blocks - 1) * element_edges(family, family.terms)
        edges = family.elements * (whole_blocks + element_edges(family, family.last_terms))
        self._place(family, family.size, edges)

    def _place(self, family: Family, vertices: int, edges: int) -> None:
        self._families[family.name] = family
        self.vertices += vertices
        self.edges += edges

    def _check_name(self, name: str) -> None:
        if not re.fullmatch(r"\w+", name) or name in self._families:
            raise UsageError(
                f"tensor name {name!r} is already used, or has characters other than letters, digits and '_'."
            )


def _cut(columns: int, block: int, split: int) -> tuple[int, int]:
    """Columns of a block, and blocks of a split of the columns; 0 if there are no splits."""
    of_split = min(columns, split or columns)
    block = min(of_split, whole("a loop's block", block))
    if of_split < columns and of_split % block:
        raise UsageError(
            f"splits of {split} columns have blocks of different sizes if they are cut into blocks of {block}; take "
            f"splits of a multiple of {block}."
        )
    return block, -(-of_split // block) if split else 0


def in_memory(name: str, block: int | None, summation: str) -> dict[str, Any]:
    """Options of a sum in memory that starts from 0 and gets blocks of this many terms; none if it stays in cache."""
    if block is None:
        return {}
    terms = whole(f"{name}_block", block)
    return {"start": True, "tree": 1 if sums.tree_block(summation) == 1 else terms, "leave_out": True}


def whole(what: str, value: int) -> int:
    """Return `value` as a plain int.

    Raises:
        UsageError: it is not an integer, or less than 1.
    """
    try:
        number = 0 if isinstance(value, bool) else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{what} is {value!r}, but must be a whole number of at least 1.")
    return number


def sizes(**named: int) -> Iterator[int]:
    """Yield the sizes as plain ints, in order; errors as for `whole`."""
    return (whole(name, size) for name, size in named.items())


def _all_roots(families: list[Family], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *(roots(f, dtype).ravel() for f in families)])
