"""Matrices as frameworks have them, (batch, heads, n, columns) with strides of their own, in Triton kernels, as text.

A kernel's rows of queries are those of all heads that share keys, `shared` at each position, next to each other.
Strides are arguments in groups of 8 words: so it is known that rows begin where accesses of 16 bytes can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pebblesim.kernels.identifiers import Identifiers
from pebblesim.kernels.statements import Let, Statement
from pebblesim.kernels.terms import Term, call, term
from pebblesim.kernels.words import is_float32
from pebblesim.language import program as ir

WORDS = 8
"""Words of 16 bits that a stride is a multiple of: 16 bytes."""

QUERIES = ("Q", "Q_C", "dO")
"""Matrices with a row for each query: a program has one of them, the first of which says how many."""

GRADIENT = "dB"
"""The gradient of a bias; its rows have room for whole groups of `WORDS`, which kernels write."""

OF_KEYS = ("K", "V")
"""Matrices that heads share."""

OVER_PAIRS = ("bias", "bias_T", GRADIENT)
"""Matrices over queries and keys, which batches may share."""

RESULTS = "results"
"""The argument of `run` that has the matrices to be written, by name."""


def whole_groups(words: Term) -> Term:
    """The words of a row with those behind it that memory has: whole groups of `WORDS`."""
    return call("cdiv", words, WORDS) * WORDS


@dataclass(frozen=True, eq=False)
class Strides:
    """The matrices with strides of their own.

    Attributes:
        of: for each of them the names of its strides: from batch to batch, head to head, and row to row.
        shared: heads of queries that share keys.
        queries: the dimension of queries.
        dense: of matrices whose rows follow one another, the words from row to row: constants take no registers.
        copies: of matrices with several copies, the name of the stride from one to the next.
        inner: of matrices that batches share, the names of how many batches a group has, and of the stride within it;
            the stride from batch to batch is then one from group to group.
        grouped: heads of queries that share keys, if their rows are not together.
    """

    of: Mapping[ir.Tensor, tuple[str, str, str]]
    shared: int
    queries: str
    dense: Mapping[ir.Tensor, int]
    copies: Mapping[ir.Tensor, str]
    inner: Mapping[ir.Tensor, tuple[str, str]]
    grouped: int = 1

    def names(self, tensors: Iterable[ir.Tensor]) -> list[str]:
        """Names of the strides of some tensors, in order."""
        return [name for tensor in tensors for name in (*self.of.get(tensor, ()), *self._more(tensor))]

    def _more(self, tensor: ir.Tensor) -> tuple[str, ...]:
        """Names beside those of the strides that each matrix has."""
        return self.inner.get(tensor, ()) + ((self.copies[tensor],) if tensor in self.copies else ())

    def several(self, tensor: ir.Tensor) -> int:
        """Rows of a kernel's matrix at each position."""
        return self.shared if tensor in self.of and tensor.shape[0] == self.queries else 1

    def opening(self, tensor: ir.Tensor, pointer: str) -> list[Statement]:
        """Statements of a kernel that move an address to the rows of its head, and count strides in words."""
        batch, head, _ = self.of[tensor]
        heads, at = term("own") * self.several(tensor), term("batch")
        if self.grouped > 1 and tensor.name in OF_KEYS:
            heads = term("own") // self.grouped
        first = at * batch * WORDS
        if tensor in self.inner:
            number, within = self.inner[tensor]
            first = at // number * batch * WORDS + at % number * within * WORDS
        made: list[Statement] = [self.in_words(tensor), Let((pointer,), (first + heads * head,), more=True)]
        if tensor in self.copies:
            made.append(Let((self.copies[tensor],), (term(self.copies[tensor]) * WORDS,)))
        return made

    def in_words(self, tensor: ir.Tensor) -> Let:
        """The statement of a kernel that counts strides from head to head, and row to row, in words."""
        _, head, row = self.of[tensor]
        apart = term(self.dense[tensor]) if tensor in self.dense else term(row) * WORDS
        return Let((head, row), (term(head) * WORDS, apart))

    def places(self, tensor: ir.Tensor, first: Term, size: int) -> list[Term]:
        """Where rows begin, from the first on, as a column: terms of a sum."""
        (*_, row), shared, numbers = self.of[tensor], self.several(tensor), call("arange", 0, size)
        if size % shared:
            return self.places_of(tensor, first + numbers)
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
        first, *others = self.of[tensor]
        more = self._more(tensor)[-1:]
        taken = f"(each // {WORDS} for each in {pointer}.stride()[:{3 + len(more)}])"
        line = f"    {', '.join([first, *more, *others])} = {taken}"
        if tensor in self.inner:
            line += f"\n    {self.inner[tensor][0]} = {pointer}.shape[1]"
        return line


def strides(
    program: ir.Program,
    sizes: ir.Sizes,
    shared: int,
    dense: bool,
    names: Identifiers,
    onto: Collection[ir.Tensor] = (),
) -> Strides:
    """The matrices with strides of their own: all that `run` is given or returns, but for sums in float32.

    `onto`: of these, the sums that `run` is given, to be added to.
    """
    given = {*program.inputs, *program.outputs}
    of = {
        tensor: tuple(names.new(f"{name}_{part}") for part in ("batch", "head", "row"))
        for name, tensor in program.tensors.items()
        if shared and name in given and len(tensor.shape) == 2
        if tensor in onto or tensor.apart is not None or not is_float32(program, tensor)
    }
    queries = next((program.tensors[name].shape[0] for name in QUERIES if name in given), "")
    alone = [tensor for tensor in of if shared == 1 or tensor.shape[0] != queries] if dense else []
    over_pairs = {tensor for tensor in of if tensor.name in OVER_PAIRS}
    copies = {tensor: names.new(f"{tensor.name}_copy") for tensor in of if tensor.apart is not None}
    inner = {
        tensor: (names.new(f"{tensor.name}_several"), names.new(f"{tensor.name}_within"))
        for tensor in over_pairs
        if tensor.name in program.inputs
    }
    rows = {tensor: tensor.sides(sizes)[-1] for tensor in alone if tensor not in over_pairs}
    return Strides(of, shared, queries, rows, copies, inner)  # type: ignore[arg-type]
