"""Matrices as frameworks have them, (batch, heads, n, columns) with strides of their own, in Triton kernels, as text.

A kernel's rows of queries are those of all heads that share keys, `shared` at each position, next to each other.
Strides are arguments in groups of 8 words: so it is known that rows begin where accesses of 16 bytes can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pebblesim.kernels.identifiers import Identifiers
from pebblesim.kernels.statements import Let, Statement
from pebblesim.kernels.terms import Group, Term, call, several, term
from pebblesim.kernels.words import is_float32
from pebblesim.language import program as ir

WORDS = 8
"""Words of 16 bits that a stride is a multiple of: 16 bytes."""

QUERIES = ("Q", "Q_C")
"""Matrices with a row for each query: a program has one of them."""

RESULTS = "results"
"""The argument of `run` that has the matrices to be written, by name."""


@dataclass(frozen=True, eq=False)
class Strides:
    """The matrices with strides of their own.

    Attributes:
        of: for each of them the names of its strides: from batch to batch, head to head, and row to row.
        shared: heads of queries that share keys.
        queries: the dimension of queries.
        dense: of matrices whose rows follow one another, the words from row to row: constants take no registers.
    """

    of: Mapping[ir.Tensor, tuple[str, str, str]]
    shared: int
    queries: str
    dense: Mapping[ir.Tensor, int]

    def names(self, tensors: Iterable[ir.Tensor]) -> list[str]:
        """Names of the strides of some tensors, in order."""
        return [name for tensor in tensors for name in self.of.get(tensor, ())]

    def several(self, tensor: ir.Tensor) -> int:
        """Rows of a kernel's matrix at each position."""
        return self.shared if tensor.shape[0] == self.queries else 1

    def opening(self, tensor: ir.Tensor, pointer: str) -> list[Statement]:
        """Statements of a kernel that move an address to the rows of its head, and count strides in words."""
        batch, head, _ = self.of[tensor]
        heads = several("own", self.several(tensor))
        return [self.in_words(tensor), Let((pointer,), (term("batch") * batch * WORDS + heads * head,), more=True)]

    def in_words(self, tensor: ir.Tensor) -> Let:
        """The statement of a kernel that counts strides from head to head, and row to row, in words."""
        _, head, row = self.of[tensor]
        apart = term(self.dense[tensor]) if tensor in self.dense else term(row) * WORDS
        return Let((head, row), (term(head) * WORDS, apart))

    def places(self, tensor: ir.Tensor, first: Term, size: int) -> list[Term]:
        """Where rows begin, from the first on, as a column: terms of a sum."""
        (*_, row), shared, numbers = self.of[tensor], self.several(tensor), call("arange", 0, size)
        if shared == 1:
            return [first * row, numbers.along("[:, None]") * row]
        if size % shared:
            return self.places_of(tensor, Group(first + numbers))
        return [first // shared * row, *self.places_of(tensor, numbers)]

    def places_of(self, tensor: ir.Tensor, numbers: Term) -> list[Term]:
        """Where the rows with these numbers begin, as a column: terms of a sum."""
        (_, head, row), shared = self.of[tensor], self.several(tensor)
        if shared == 1:
            return [numbers.along("[:, None]") * row]
        position, beside = numbers // shared, numbers % shared
        return [position.along("[:, None]") * row, beside.along("[:, None]") * head]

    def found(self, tensor: ir.Tensor, pointer: str) -> str:
        """The line of `run` that finds the strides of a tensor."""
        return f"    {', '.join(self.of[tensor])} = (each // {WORDS} for each in {pointer}.stride()[:3])"


def strides(program: ir.Program, sizes: ir.Sizes, shared: int, dense: bool, names: Identifiers) -> Strides:
    """The matrices with strides of their own: all that `run` is given or returns, but for sums in float32."""
    given = {*program.inputs, *program.outputs}
    of = {
        tensor: tuple(names.new(f"{name}_{part}") for part in ("batch", "head", "row"))
        for name, tensor in program.tensors.items()
        if shared and name in given and len(tensor.shape) == 2 and not is_float32(program, tensor)
    }
    queries = next(program.tensors[name].shape[0] for name in QUERIES if name in given) if of else ""
    alone = [tensor for tensor in of if shared == 1 or tensor.shape[0] != queries] if dense else []
    return Strides(of, shared, queries, {tensor: tensor.sides(sizes)[1] for tensor in alone})  # type: ignore[arg-type]
