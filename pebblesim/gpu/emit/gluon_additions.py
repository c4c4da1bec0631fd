"""Products that a Gluon kernel adds to memory: of a matrix that all warpgroups computed, with one that stays.

Each warpgroup computes some rows of the left operand, which goes through shared memory, so that all have it, and some
columns of the product. The copy engine adds these to memory, where many blocks add to the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pebblesim.gpu.emit.products import factors
from pebblesim.gpu.emit.statements import Arrive, Send, Sent, Statement, put
from pebblesim.gpu.emit.terms import Items, Name, Term, sides, term
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

    def handing(self, value: Term) -> list[Statement]:
        """Put the rows that a warpgroup has of the left operand where all warpgroups read it."""
        rows = Name(self.handed).index("slot").call("slice", term("w") * ROWS, ROWS)
        return [*put(rows, value), Arrive(filled(self.handed, "slot"))]

    def adding(self, number: Term, value: Term) -> list[Statement]:
        """Add a warpgroup's columns to memory; what was added before has left their buffer."""
        part = Name(self.part).index("w")
        place = Items((Name("head"), number * self.rows, term("w") * self.columns))
        stored = put(part.call("reshape", sides(self.rows, self.columns)), value)
        return [Sent(), *stored, Send(f"{self.write.tensor.name}_tiles", place, part, added=True)]
