"""Write files as a whole or not at all, and report damaged files in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pebblesim.core.errors import UsageError


@contextmanager
def whole_file(path: Path, saying: str | None = None) -> Iterator[Path]:
    """Yield a temporary path in the same folder as `path`; rename it to `path` if the block succeeds.

    Args:
        path: the file.
        saying: start of the error message if the file cannot be written.

    If no file exists at the temporary path when the block ends, `path` does not change.

    Raises:
        UsageError: the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        yield unfinished
        if unfinished.exists():
            os.replace(unfinished, path)
    except OSError as error:
        raise UsageError(f"{saying or f'cannot write {path}'}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written where it is to be, before the work that makes it.

    Raises:
        UsageError: there is no such folder, or the path is a folder itself.
    """
    if path.is_dir():
        raise UsageError(f"cannot write {path}: this is a folder; give the name of a file in it.")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {str(path.parent)!r}; make it first.")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any error that a library raises for a damaged file into one sentence.

    Raises:
        UsageError: `what` cannot be read.
    """
    try:
        yield
    except Exception as error:  # libraries raise many kinds of exceptions for damaged files
        why = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{what} cannot be read: {why[:200].removesuffix('.')}.") from None


def load_numpy(path: str, what: str) -> Any:
    """Load the array of a .npy file, or the arrays of a .npz file by name. Pickled objects are refused.

    Raises:
        UsageError: `what`, the file, cannot be read.
    """
    import warnings

    import numpy as np

    # numpy does not close a damaged archive, and warns about unusual headers
    with reading(what), open(path, "rb") as file, warnings.catch_warnings(action="ignore"):
        if not path.endswith(".npz"):
            return np.lib.format.read_array(file, allow_pickle=False)
        with np.lib.npyio.NpzFile(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} in it is not an array")
        return arrays
