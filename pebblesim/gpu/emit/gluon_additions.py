"""Products that a Gluon kernel adds to memory: of a matrix that all warpgroups computed, with one that stays.

Each warpgroup computes some rows of the left operand, which goes through shared memory, so that all have it, and some
columns of the product. The copy engine adds these to memory, where many blocks add to the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

from pebblesim.language import program as ir

ROWS = 64
"""Rows of the tiles of a warpgroup, which `wgmma` has."""


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

    def handing(self, text: str) -> list[str]:
        """The lines that put the rows that a warpgroup has of the left operand where all warpgroups read it."""
        return [
            f"{self.handed}.index(slot).slice(w * {ROWS}, {ROWS}).store({text})",
            "fence_async_shared()",
            f"mbarrier.arrive({self.handed}_full.index(slot), count=1)",
        ]

    def adding(self, number: str, text: str) -> list[str]:
        """The lines that add a warpgroup's columns to memory; what was added before has left their buffer."""
        return [
            "tma.store_wait(0)",
            f"{self.part}.index(w).reshape([{self.rows}, {self.columns}]).store({text})",
            "fence_async_shared()",
            f"tma_add({self.write.tensor.name}_tiles, [head, {number} * {self.rows}, w * {self.columns}], "
            f"{self.part}.index(w))",
        ]
