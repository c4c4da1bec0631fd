"""How the vertices of a graph are numbered: the one convention that those who build it and those who play on it share.

A graph is a list of *families*. A family holds all vertices of one tensor: the entries of an input, the results
of an elementwise operation, or, for a sum, its terms and every partial sum. The numbering is stated here, in
words; the graph builder and the player each implement it for themselves, so that the referee can find a
mistake in either.

Numbering
---------
A family owns the consecutive vertices `base`, `base + 1`, ... Its elements come in row-major order.

*Inputs and elementwise families* (`terms == 0`): one vertex for each element.

*Sums* (`op` is "matmul", "rowsum" or "rowmax"; `terms` = k ≥ 1): each element owns the consecutive vertices

    k terms | one constant 0, if `start` | the partial sums

Terms are in the order of the summation index. For "matmul" term u is the product of the two operands' entries
(two predecessors); for "rowsum" it is the entry itself, taken times one (one predecessor): l = A·1; "rowmax" is the
same with maxima of two in the place of additions.
The terms are cut into blocks of `tree` = b consecutive terms, the last may be ragged. Inside a block of m terms the
sum is balanced: neighbours are added pairwise, layer by layer, and a last one without a neighbour moves up as it is.
The m - 1 partial sums of a block are numbered layer by layer, left to right. The block's total is then added to the
total of all blocks before it (`start`: of all blocks before it and the constant, so the first block has
such a vertex too); that vertex comes right after the block's m - 1, and the next block follows.
Predecessors of an addition: the left (earlier) one first.
So b = 1 is a chain, b ≥ k is the balanced tree of the paper's Fig. 3, and between them lies the block-caterpillar.
The last vertex of an element holds its value (its *root*); for k = 1 without `start` that is the term itself.

*Sums onto a value* (`onto`): the same as with `start`, but the total of the first block is added to an element of
another family, the last of the operands, and there is no constant.

*Regrouped sums* (`blocks` > 1): a sum is kept apart for each block of its terms, as Algorithm 8 does over rows with
T = A1_iᵀ p_i. The family is then `blocks` families of that shape, the first vertices of each `step` behind those of the
one before, and the last of them at `last_base` with `last_terms` terms instead of `terms`. Who sums over a regrouped
operand and a dimension of length K sums `blocks`·K terms: block s, index j is term s·K + j.

*Running values* (`initial` is a number): a family whose block s is made from its own block s - 1, like the running
maximum of the online softmax. Before the first block stands a constant for each element, at `initial_base`. An operand
"m.prev" is block s - 1 of m (the constant for s = 0), "m.last" its last block. An elementwise family over all columns
takes, for column c, the block of a running vector that c falls into. The blocks of all families of a loop are laid out
together: the first blocks of all of them, then the second ones, and so on, so that vertices are in topological order.

*Under a mask* rows i and columns j of scores meet only where the mask allows the pair (i, j). Elements then differ in
their number of vertices, so a family carries a `VertexTable` instead of relying on strides; elements still come in
row-major order and a block after the other, and each owns consecutive vertices as above, for its own number of terms.
- A tensor over pairs, such as S, A, f and p, has all its n x n elements; those not allowed are one vertex each, a
  constant 0 without predecessors. Inputs over pairs are as ever.
- A sum over pairs, such as l = A·1, O = P V or dV = Pᵀ dO, takes the allowed terms of its line (its row or column of
  pairs) alone, in their order. A sum without terms is one vertex, a constant: 0, or -inf for a maximum; with `start` it
  is that constant; with `onto` it has no vertex, and stands for the very value it would be added to.
- Regrouped over pairs (T with `row_block`), that holds for each block; who sums over a regrouped operand leaves out its
  sums without terms, be it a single block or several. A sum over rows in memory (g with `g_block`) leaves out the rows
  without an allowed pair.
- In a loop over columns, rows come in tiles, too (`row_block`): block s of a running value, and of all that is made in
  the loop, exists for the rows of those tiles that have an allowed pair in block s. "m.prev" is the last block before s
  that exists for the row, or the constant, "m.last" the last one of all, or the constant.
- Outside of loops, an elementwise result of nothing but values that are constant because the row has no allowed pair is
  a constant itself, 0 or -inf: 0/0 = 0, (-inf) - (-inf) = 0, log 0 = -inf.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class VertexTable:
    """Where the elements of a family are under a mask.

    Attributes:
        first: first vertex of each element, int64 of shape (blocks, elements); -1 where it has none of its own.
        roots: the vertex that holds its finished value, in the same shape; -1 where there is none. It is another
            family's where a sum without terms stands for the value that it would be added to.
        terms: number of terms of each element, in the same shape; 0 for a constant and for what is no sum.
        before: None, or of a sum that leaves out terms, the number of terms in front of each index of the summed
            dimension: int64 of shape (lines, K + 1), K indices in all (blocks·K' over a regrouped operand). Index u
            is a term of a line if before[line, u + 1] > before[line, u]. Of a sum kept apart in blocks it counts
            through all of them.
        line: which index of an element says its line, 0 or 1; None if `before` has one line for all.
    """

    first: NDArray[Any]
    roots: NDArray[Any]
    terms: NDArray[Any]
    before: NDArray[Any] | None = None
    line: Literal[0, 1] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """All vertices of one tensor.

    Attributes:
        name: the tensor's name, as in the paper ("S", "A1", "p").
        op: "input", "matmul", "rowsum", "rowmax" or an elementwise operation ("exp", "mul", ...).
        operands: names of the operand families, e.g. ("A1.T", "p"), with ".T" where one enters transposed.
        base: its first vertex.
        shape: (rows, columns), or (rows,) for a vector.
        terms: k, the number of terms of each sum; 0 if the family is no sum.
        tree: b, the number of terms in each balanced block (1: chain, k: balanced).
        start: whether each sum starts from an explicit constant 0.
        onto: whether each sum is added to a value of the last operand.
        blocks: number of blocks of terms the sum is kept apart for, or of steps of a running value.
        last_terms: number of terms in the last block; equals `terms` when `blocks` is 1.
        step: distance from a block's first vertex to the next one's; by default they follow each other directly.
        last_base: first vertex of the last block.
        running: of a family made block by block in a loop over columns, the columns of a block; otherwise 0.
        initial: the constant that a running value starts from; None if it is none.
        initial_base: first vertex of these constants.
        table: under a mask, where each element is; `base` and `step` are then of no use.
    """

    name: str
    op: str
    operands: tuple[str, ...]
    base: int
    shape: tuple[int, ...]
    terms: int = 0
    tree: int = 1
    start: bool = False
    onto: bool = False
    blocks: int = 1
    last_terms: int = 0
    step: int = 0
    last_base: int = -1
    running: int = 0
    initial: float | None = None
    initial_base: int = -1
    table: VertexTable | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.blocks == 1:
            object.__setattr__(self, "last_terms", self.terms)
        if self.step == 0:
            object.__setattr__(self, "step", self.elements * self.stride())
        if self.last_base < 0:
            object.__setattr__(self, "last_base", self.base + (self.blocks - 1) * self.step)

    @property
    def elements(self) -> int:
        """Number of elements of the tensor (of one block, if regrouped)."""
        rows, *columns = self.shape
        return rows * (columns[0] if columns else 1)

    def stride(self, terms: int | None = None) -> int:
        """Number of vertices of one element of a block with that many terms (default: a full block)."""
        k = self.terms if terms is None else terms
        if k == 0:
            return 1
        return 2 * k - 1 + 2 * self.start + self.onto

    @property
    def size(self) -> int:
        """Number of vertices of the family."""
        constants = self.initial is not None
        if self.table is not None:
            terms = self.table.terms[self.table.first >= 0]
            more = (2 * terms + (2 * self.start + self.onto - 2))[terms > 0]  # than one
            return self.elements * constants + terms.size + int(more.sum())
        return self.elements * ((self.blocks - 1) * self.stride() + self.stride(self.last_terms) + constants)

    def section(self, block: int) -> tuple[int, int]:
        """(first vertex, number of terms) of a block; block -1 are the constants that a running value starts from."""
        if block < 0:
            return self.initial_base, 0
        if block == self.blocks - 1:
            return self.last_base, self.last_terms
        return self.base + block * self.step, self.terms
