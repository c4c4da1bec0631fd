"""The moves of the red-blue pebble game, packed into integers. A game of 10^8 moves is a stream of arrays.

A *stream* is any iterable of such arrays (*chunks*). On disk it is a `.npy` file of the packed int64 numbers, or a
readable `.txt` file with one move per line, such as `read A1[0,0]`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

READ: Final = 0  # put red on a vertex that holds blue (the paper's "input")
WRITE: Final = 1  # put blue on a vertex that holds red (the paper's "output")
COMPUTE: Final = 2  # put red on a vertex whose predecessors are all red
DELETE: Final = 3  # take the red pebble away

KINDS: Final = ("read", "write", "compute", "delete")

TEXT_LIMIT: Final = 10**6  # most moves in a .txt file


def pack(kind: Any, vertex: Any) -> Any:
    """Pack a move into an integer, `vertex * 4 + kind`; works on numbers and on int64 arrays."""
    return vertex * 4 + kind


def unpack(move: Any) -> tuple[Any, Any]:
    """Return (kind, vertex) of a packed move, or of an array of packed moves."""
    return move & 3, move >> 2


def moves(*pairs: tuple[int, int]) -> NDArray[Any]:
    """Make an array of packed moves by hand: `moves((READ, 0), (COMPUTE, 2))`."""
    import numpy as np

    return np.array([pack(kind, vertex) for kind, vertex in pairs], dtype=np.int64)


def as_chunk(array: Any) -> NDArray[Any]:
    """Return the array if it can be part of a stream.

    Raises:
        UsageError: it is not a one-dimensional array of int64.
    """
    if not _holds_moves(array):
        raise UsageError(
            f"a stream of moves holds one-dimensional arrays of int64, not {_described(array)}; "
            "put a single array into a list: [array]."
        )
    return array


def _holds_moves(array: Any) -> bool:
    import numpy as np

    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == np.int64


def _described(array: Any) -> str:
    import numpy as np

    return f"{array.ndim}-dimensional {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__


def chunks(array: NDArray[Any], size: int = 1 << 20) -> Iterator[NDArray[Any]]:
    """Cut a long array of moves, such as a file read by `load`, into chunks of `size` moves."""
    return (array[start : start + size] for start in range(0, array.size, size))


def load(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Load the moves in a `.npy` file as a read-only memory map.

    Raises:
        UsageError: the file does not exist, or does not hold packed moves.
    """
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or "it is not a file of one array, as numpy writes it"
        raise UsageError(f"cannot read moves from {os.fspath(path)!r}: {why}.") from error
    if not _holds_moves(array):
        raise UsageError(
            f"cannot read moves from {os.fspath(path)!r}: packed moves are a one-dimensional array of int64, and this "
            f"is {_described(array)}."
        )
    return array


def check_name(path: Path) -> None:
    """Refuse a file for moves whose name ends otherwise.

    Raises:
        UsageError: it does.
    """
    if path.suffix not in (".npy", ".txt"):
        raise UsageError(f"cannot save moves to {path.name!r}; its name must end in .npy or .txt.")


@contextlib.contextmanager
def saving(
    path: str | os.PathLike[str], stream: Iterable[NDArray[Any]], describe: Callable[[int], str] = str
) -> Iterator[Iterator[NDArray[Any]]]:
    """Save a stream while it is consumed: `with saving("game.npy", stream) as stream: referee(graph, M, stream)`.

    The file appears as a whole when the block ends; moves that the block did not consume are then fetched and saved
    too. If the block or the stream raises, no file appears.

    Args:
        path: a name ending in `.npy` or `.txt`.
        stream: the moves.
        describe: names the vertices in a `.txt` file.

    Raises:
        UsageError: the name has another ending, the folder cannot be written, or there are more than `TEXT_LIMIT` moves
            for a `.txt` file.
    """
    target = Path(path)
    check_name(target)
    formats: dict[str, type[_Packed | _Text]] = {".npy": _Packed, ".txt": _Text}
    with whole_file(target, f"cannot save moves to {str(target)!r}") as unfinished:
        with unfinished.open("wb") as file:
            out = formats[target.suffix](file, describe)
            passing = _tee(stream, out)
            yield passing
            for _ in passing:
                pass
        if not out.whole:  # the stream raised, but the block went on
            unfinished.unlink()


def _tee(stream: Iterable[NDArray[Any]], out: _Packed | _Text) -> Iterator[NDArray[Any]]:
    for chunk in stream:
        out.put(as_chunk(chunk))
        yield chunk
    out.end()
    out.whole = True


class _Packed:
    """A `.npy` file whose length is known only at the end. numpy reserves space for a longer number in the header."""

    def __init__(self, file: IO[bytes], describe: Callable[[int], str]) -> None:
        self.file, self.count, self.whole = file, 0, False
        self._header()

    def put(self, chunk: NDArray[Any]) -> None:
        self.file.write(chunk.tobytes())
        self.count += chunk.size

    def end(self) -> None:
        self.file.seek(0)
        self._header()

    def _header(self) -> None:
        from numpy.lib import format as npy

        npy.write_array_header_1_0(self.file, {"descr": "<i8", "fortran_order": False, "shape": (self.count,)})


class _Text:
    """A `.txt` file, one move per line."""

    def __init__(self, file: IO[bytes], describe: Callable[[int], str]) -> None:
        self.file, self.describe, self.count, self.whole = file, describe, 0, False

    def put(self, chunk: NDArray[Any]) -> None:
        self.count += chunk.size
        if self.count > TEXT_LIMIT:
            raise UsageError(f"a .txt file holds at most {TEXT_LIMIT:,} moves; save to .npy instead.")
        lines = (f"{KINDS[kind]} {self.describe(vertex)}\n" for kind, vertex in map(unpack, chunk.tolist()))
        self.file.write("".join(lines).encode())

    def end(self) -> None:
        """Do nothing: the file is complete."""
