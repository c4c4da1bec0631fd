"""How the vertices of a graph are numbered: the convention that graph builders and players share.

A graph is a list of *families*. A family holds all vertices of one tensor: the entries of an input, the results of an
elementwise operation, or, for a sum, its terms and every partial sum. The numbering is stated here in words. The graph
builder and the player implement it independently, so that the referee can find a mistake in either one.

A family owns the consecutive vertices `base`, `base + 1`, ... Its elements are in row-major order.

*Inputs and elementwise families* (`terms == 0`): one vertex for each element.

*Sums* (`op` is "matmul", "rowsum" or "rowmax"; `terms` = k ≥ 1): each element owns the consecutive vertices

    k terms | one constant 0, if `start` | the partial sums

Terms are in the order of the summation index. For "matmul" term u is the product of the two operands' entries (two
predecessors); for "rowsum" it is the entry times one (one predecessor): l = A·1; "rowmax" is the same, with the maximum
of two values instead of their sum. The terms are cut into blocks of `tree` = b consecutive terms; the last block may be
ragged. Inside a block of m terms the sum is balanced: neighbours are added pairwise, layer by layer; a last value
without a neighbour moves up unchanged. The m - 1 partial sums of a block are numbered layer by layer, left to right.
The block's total is then added to the total of all previous blocks (with `start`: of the constant and all previous
blocks, so the first block has such a vertex too). This vertex comes directly after the block's m - 1 partial sums; then
the next block follows. Predecessors of an addition: the left (earlier) one first. So b = 1 is a chain, b ≥ k is the
balanced tree of the paper's Fig. 3, and other b are block-caterpillars. The last vertex of an element holds its value
(its *root*); for k = 1 without `start` that is the term itself.

*Sums onto a value* (`onto`): the same as with `start`, but there is no constant: the total of the first block is added
to an element of another family, which is the last operand.

*Regrouped sums* (`blocks` > 1): there is a separate sum for each block of terms, as in Algorithm 8, which has T = A1_iᵀ
p_i for each block of rows. The family then consists of `blocks` families of this shape. The first vertex of each is
`step` after the first vertex of the previous one. The last one starts at `last_base` and has `last_terms` terms instead
of `terms`. A sum over a regrouped operand and a dimension of length K has `blocks`·K terms: block s, index j is term
s·K + j.

*Running values* (`initial` is a number): a family whose block s is computed from its own block s - 1, like the running
maximum of the online softmax. Each element starts from a constant; these constants are at `initial_base`. The operand
"m.prev" is block s - 1 of m (the constant for s = 0); "m.last" is its last block. An elementwise family over all
columns uses, for column c, the block of a running vector that contains c. The blocks of all families of a loop are
interleaved: the first blocks of all families, then the second blocks, and so on. So vertices are in topological order.

*Splits* (`restart` = r > 0): a running value starts anew, from the same constants, before each r blocks, as in the
splits of keys of FlashDecoding. Then "m.prev" of the first block of a split is the constant. In a loop with a block for
each split, "m.ends" is the last block of m in the split.

*Under a mask* a score of row i and column j exists only if the mask allows the pair (i, j). Elements then differ in
their number of vertices, so a family has a `VertexTable` instead of strides. Elements are still in row-major order,
block after block. Each element owns consecutive vertices as above, for its own number of terms.

A tensor over pairs, such as S, A, f and p, keeps all its n x n elements. An element that is not allowed is one vertex:
a constant 0 without predecessors. Inputs over pairs do not change.

A sum over pairs, such as l = A·1, O = P V or dV = Pᵀ dO, has only the allowed terms of its line (its row or column of
pairs), in their order. A sum without terms is one vertex, a constant: 0, or -inf for a maximum. With `start` it is the
constant of `start`. With `onto` it has no vertex; its value is the value that the sum would be added to.

For a sum that is regrouped over pairs (T with `row_block`), this holds for each block. A sum over a regrouped operand
leaves out the operand's sums without terms, for one block and for several. A sum over rows in memory (g with `g_block`)
leaves out rows without an allowed pair. So does g with `leave_out`; in the order T it leaves out keys.

In a loop over columns, rows are also cut into tiles (`row_block`). Block s of a running value, and of each value
computed in the loop, exists only for rows of tiles with an allowed pair in block s. "m.prev" is the last block before s
that exists for the row, or the constant if there is none; "m.last" is the last block that exists, or the constant.

Values can be constant because the row has no allowed pair. Outside of loops, an elementwise result whose operands are
all such constants is itself a constant, 0 or -inf: 0/0 = 0, (-inf) - (-inf) = 0, log 0 = -inf.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray


CONSTANTS = {0.0: 1, float("-inf"): 2}
"""The constants that an element may be under a mask, and how a `VertexTable` writes them; 0 there means no constant."""


@dataclass(frozen=True, slots=True, eq=False)
class VertexTable:
    """Vertices of the elements of a family under a mask.

    Attributes:
        first: first vertex of each element, int64 of shape (blocks, elements); -1 if the element has no vertex of its
            own.
        roots: the vertex that holds the element's final value, in the same shape; -1 if there is none. For a sum
            without terms that is added to a value, it is the vertex of that value, in another family.
        terms: number of terms of each element, in the same shape; 0 for constants and for elements that are not sums.
        constant: which of `CONSTANTS` an element is, uint8 in the same shape; 0 for any other element.
        before: None, or for a sum that leaves out terms, the number of terms before each index of the summed dimension:
            int64 of shape (lines, K + 1), where K is the number of indices (blocks·K' over a regrouped operand). Index
            u is a term of a line if before[line, u + 1] > before[line, u]. For a regrouped sum the count runs through
            all blocks.
        line: which index of an element is its line, 0 or 1; None if `before` has one line for all elements.
    """

    first: NDArray[Any]
    roots: NDArray[Any]
    terms: NDArray[Any]
    constant: NDArray[Any]
    before: NDArray[Any] | None = None
    line: Literal[0, 1] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """All vertices of one tensor.

    Attributes:
        name: the tensor's name, as in the paper ("S", "A1", "p").
        op: "input", "matmul", "rowsum", "rowmax" or an elementwise operation ("exp", "mul", ...).
        operands: names of the operand families, e.g. ("A1.T", "p"); ".T" marks a transposed operand.
        base: its first vertex.
        shape: (rows, columns), or (rows,) for a vector.
        terms: k, the number of terms of each sum; 0 if the family is not a sum.
        tree: b, the number of terms in each balanced block (1: chain, k: balanced).
        start: whether each sum starts from an explicit constant 0.
        onto: whether each sum is added to a value of the last operand.
        blocks: number of blocks of terms with a separate sum each, or of steps of a running value.
        last_terms: number of terms in the last block; equals `terms` when `blocks` is 1.
        step: distance between the first vertices of two consecutive blocks; by default the blocks are contiguous.
        last_base: first vertex of the last block.
        running: number of columns in a block, if the family is computed block by block in a loop over columns;
            otherwise 0.
        initial: the constant that a running value starts from; None if the family is not a running value.
        initial_base: first vertex of these constants.
        restart: number of blocks after which a running value starts from them again; 0 if it never does.
        table: under a mask, the vertices of each element; `base` and `step` are then not used.
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
    restart: int = 0
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
        """Number of elements of the tensor, or of one block if the family is regrouped."""
        rows, *columns = self.shape
        return rows * (columns[0] if columns else 1)

    def stride(self, terms: int | None = None) -> int:
        """Number of vertices of one element in a block with this many terms (default: a full block)."""
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

    def split(self, block: int) -> int:
        """Return the first block of the split that a block is in."""
        return block - block % self.restart if self.restart else 0

    def section(self, block: int) -> tuple[int, int]:
        """Return (first vertex, number of terms) of a block.

        Block -1 holds the constants that a running value starts from.
        """
        if block < 0:
            return self.initial_base, 0
        if block == self.blocks - 1:
            return self.last_base, self.last_terms
        return self.base + block * self.step, self.terms
