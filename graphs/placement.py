"""Vertices of a family's elements under a mask: the table of `pebblesim.game.numbering`, with values and constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.numbering import Family, VertexTable


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placement(VertexTable):
    """A table that also knows values and constants; all arrays have the shape (blocks, elements).

    Attributes:
        constant: the `Op` of an element that is a constant, uint8; 0 for any other.
        pairs: whether the elements are pairs.
    """

    constant: NDArray[np.uint8]
    pairs: bool

    def there(self, block: int) -> NDArray[np.int64]:
        """The elements of a block that have vertices of their own, in the order of these."""
        return np.flatnonzero(self.first[block] >= 0)


def placement(family: Family) -> Placement | None:
    """Return the placement of a family's elements; None if the mask does not affect it."""
    assert family.table is None or isinstance(family.table, Placement)
    return family.table
