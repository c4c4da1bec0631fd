"""The moves of the red-blue pebble game, packed into integers so that a game of 10^8 moves is a stream of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

READ: Final = 0  # put red on a vertex that holds blue (the paper's "input")
WRITE: Final = 1  # put blue on a vertex that holds red (the paper's "output")
COMPUTE: Final = 2  # put red on a vertex whose predecessors are all red
DELETE: Final = 3  # take the red pebble away

KINDS: Final = ("read", "write", "compute", "delete")


def pack(kind: Any, vertex: Any) -> Any:
    """One move as an integer, `vertex * 4 + kind`; works on numbers and on int64 arrays alike."""
    return vertex * 4 + kind


def unpack(move: Any) -> tuple[Any, Any]:
    """(kind, vertex) of a packed move, or of an array of them."""
    return move & 3, move >> 2


def moves(*pairs: tuple[int, int]) -> NDArray[Any]:
    """A short stream written by hand: `moves((READ, 0), (COMPUTE, 2))`."""
    import numpy as np

    return np.array([pack(kind, vertex) for kind, vertex in pairs], dtype=np.int64)
