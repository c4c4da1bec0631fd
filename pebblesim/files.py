"""Files that are written whole or not at all, and files that may be damaged."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pebblesim.errors import UsageError


@contextmanager
def whole_file(path: Path, saying: str | None = None) -> Iterator[Path]:
    """A path beside `path` to write to, of which nobody else knows; it takes its place when all is well.

    Args:
        path: the file.
        saying: how the message begins if it cannot be written.

    If nothing is at the path that was yielded when the block ends, `path` stays as it was.

    Raises:
        UsageError: the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield unfinished
        if unfinished.exists():
            os.replace(unfinished, path)
    except OSError as error:
        raise UsageError(f"{saying or f'cannot write {path}'}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Whatever a library trips over in a damaged file, in one sentence.

    Raises:
        UsageError: `what` cannot be read.
    """
    try:
        yield
    except Exception as error:  # each format has many ways to be damaged, and its library an exception for each
        why = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{what} cannot be read: {why[:200].removesuffix('.')}.") from None


def load_numpy(path: str, what: str) -> Any:
    """The array of a .npy file, or the arrays of a .npz file by name; never pickled objects.

    Raises:
        UsageError: `what`, the file, cannot be read.
    """
    import warnings

    import numpy as np

    # numpy leaves a damaged archive open, and warns of headers that look like very old or very odd Python
    with reading(what), open(path, "rb") as file, warnings.catch_warnings(action="ignore"):
        if not path.endswith(".npz"):
            return np.lib.format.read_array(file, allow_pickle=False)
        with np.lib.npyio.NpzFile(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} in it is no array")
        return arrays
