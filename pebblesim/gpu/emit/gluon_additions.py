"""Products that a Gluon kernel adds to memory: of a matrix that all warpgroups computed, with one that stays.

Each warpgroup computes some rows of the left operand, which goes through shared memory, so that all have it, and some
columns of the product. The copy engine adds these to memory, where many blocks add to the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

from pebblesim.language import program as ir


@dataclass(frozen=True, eq=False)
class Addition:
    """A product that is added to a tensor in memory.

    Attributes:
        product: the primitive that computes it.
        write: the primitive that writes the sum.
        rows, columns: of the part that a warpgroup adds.
        depth: terms of each sum: rows of the block's tile.
        handed: the name of the left operand in shared memory, transposed; `{handed}_full` are its barriers.
        part: the name of what the copy engine adds.
    """

    product: ir.Compute
    write: ir.Write
    rows: int
    columns: int
    depth: int
    handed: str
    part: str

    @property
    def left(self) -> ir.Tile:
        """The tile that all warpgroups compute."""
        assert isinstance(self.product.expr, ir.MatMul)
        return self.product.expr.left.tile

    def shared(self, word: int, warpgroups: int, stages: int) -> int:
        """Bytes of shared memory, with a barrier of 8 bytes for each slot of the left operand."""
        return stages * (self.depth * self.rows * word + 8) + warpgroups * self.rows * self.columns * 4
