"""Products that a Gluon kernel adds to memory: of a matrix that all warpgroups computed, with one that stays.

Each warpgroup computes some rows of the left operand, which goes through shared memory, so that all have it, and some
columns of the product. The copy engine adds these to memory, where many blocks add to the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pebblesim.kernels.products import factors
from pebblesim.kernels.terms import Name, Term
from pebblesim.language import program as ir

ROWS = 64
"""Rows of the tiles of a warpgroup, which `wgmma` has."""


def filled(name: str, at: Any) -> Term:
    """The barrier of a slot at which its bytes arrive."""
    return Name(f"{name}_full").index(at)


def freed(name: str, at: Any) -> Term:
    """The barrier of a slot at which those arrive who are done with it."""
    return Name(f"{name}_free").index(at)


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
        return factors(self.product).left.tile
