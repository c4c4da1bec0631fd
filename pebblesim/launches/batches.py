"""`Batch`: independent problems of equal sizes in one launch, in an order in which L2 helps least.

All heads do the same step at about the same time: the head is the fastest-varying part of a block's number. So between
two uses of a tile by a head, all other heads move theirs. A block that reads a tile again in each iteration of its own
loop uses it sooner: then only the blocks that run at once are between. Such a block serves several heads in turn, one
iteration of the loop each, and holds what a head carries from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

ALIGNED = 32
"""The words of a line of L2: each head's part of an array begins at one."""


@dataclass(frozen=True)
class Batch:
    """How many heads there are, and how many of them a block serves in turn."""

    heads: int = 1
    turns: int = 1

    @property
    def groups(self) -> int:
        """Blocks for each step of a head: a block serves head `group`, then `group + groups`, and so on."""
        return -(-self.heads // self.turns)

    def of(self, launch: Launch) -> Batch:
        """The batch as this launch has it: a block that holds a matrix through its loops serves one head."""
        loops = any(isinstance(node, ir.Loop) for node in launch.block)
        parks = all(len(tile.ranges) == 1 for tile in parked(launch))
        return replace(self, turns=min(self.turns, self.heads) if loops and parks else 1)

    def served(self, group: int) -> range:
        """The heads that a block of this group serves, in order."""
        return range(group, self.heads, self.groups)


ONE = Batch()
"""A single head."""


def parked(launch: Launch) -> list[ir.Tile]:
    """The tiles of a block that are in cache while its own loops run: each head in turn needs one of its own."""
    tiles = (ir.entering(node) for node in launch.block if not isinstance(node, ir.Loop))
    return [tile for tile in tiles if tile is not None]


def stretches(body: list[ir.Node]) -> Iterator[ir.Loop | list[ir.Node]]:
    """Yield the parts of a block's body after which it turns to its next head: an iteration of a loop, or what is
    between loops."""
    between: list[ir.Node] = []
    for node in body:
        if not isinstance(node, ir.Loop):
            between.append(node)
            continue
        if between:
            yield between
        yield node
        between = []
    if between:
        yield between


def apart(words: int) -> int:
    """Words from one head's part of an array to the next, for parts of so many words."""
    return -(-words // ALIGNED) * ALIGNED
