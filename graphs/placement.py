"""Vertices of a family's elements under a mask: the table of `pebblesim.game.numbering`, and which are pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.numbering import Family, VertexTable


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placement(VertexTable):
    """A table of a graph's family.

    Attributes:
        pairs: whether the elements are pairs.
    """

    pairs: bool

    def there(self, block: int) -> NDArray[np.int64]:
        """The elements of a block that have vertices of their own, in the order of these."""
        return np.flatnonzero(self.first[block] >= 0)


def placement(family: Family) -> Placement | None:
    """Return the placement of a family's elements; None if the mask does not affect it."""
    assert family.table is None or isinstance(family.table, Placement)
    return family.table
