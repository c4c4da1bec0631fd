"""Write files as a whole or not at all, and report damaged files in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.memory import readable, shortage


@contextmanager
def whole_file(path: Path, saying: str | None = None) -> Iterator[Path]:
    """Yield a temporary path in the same folder as `path`; rename it to `path` if the block succeeds.

    Args:
        path: the file.
        saying: start of the error message if the file cannot be written.

    If no file exists at the temporary path when the block ends, `path` does not change.

    A symbolic link stays, and the file that it leads to is written.

    Raises:
        UsageError: the file cannot be written.
    """
    check_place(path, saying)
    path = path.resolve() if path.is_symlink() else path
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


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, which is renamed to `path` if the block succeeds.

    Raises:
        UsageError: `path` is there already, or cannot be written.
    """
    check_folder(path)
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        unfinished.mkdir()
        yield unfinished
        os.rename(unfinished, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from error
    finally:
        rmtree(unfinished, ignore_errors=True)


def check_folder(path: Path) -> None:
    """Refuse a new folder that cannot be made, before the work that fills it.

    Raises:
        UsageError: it is there already, or nothing may be written where it is to be.
    """
    if path.exists():
        raise UsageError(f"{path} is there already; give another name, or delete it first.")
    check_place(path)


def check_place(path: Path, saying: str | None = None) -> None:
    """Refuse a file that cannot be written where it is to be, before the work that makes it.

    Args:
        path: the file.
        saying: start of the error message.

    Raises:
        UsageError: there is no such folder, or nothing may be written in it, or the path is a folder or a device.
    """
    shown = str(path) if len(str(path)) <= 300 else f"{str(path)[:60]}…"
    said = saying or f"cannot write {shown}"
    try:
        if path.is_dir():
            raise UsageError(f"{said}: this is a folder; give the name of a file in it.")
        if path.exists() and not path.is_file():
            raise UsageError(f"{said}: this is no file but a device or a pipe; give the name of a file.")
        if not path.parent.is_dir():
            raise UsageError(f"{said}: there is no folder {str(path.parent)[:300]!r}; make it first.")
    except OSError as error:  # a name that is too long
        raise UsageError(f"{said}: {error.strerror}.") from error
    except ValueError as error:  # a name with a NUL
        raise UsageError(f"{said}: {error}.") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{said}: nothing may be written in {str(path.parent)!r}; name a file elsewhere.")


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
    """Load the array of a .npy file. Pickled objects are refused.

    Raises:
        UsageError: `what`, the file, cannot be read.
    """
    import warnings

    import numpy as np

    with reading(what), open(path, "rb") as file, warnings.catch_warnings(action="ignore"):  # of unusual headers
        return np.lib.format.read_array(file, allow_pickle=False)


def names_of_arrays(path: str, what: str) -> list[str]:
    """Return the names in a .npz file.

    Raises:
        UsageError: `what`, the file, cannot be read.
    """
    with _archive(path, what) as held:
        return list(held.files)


def load_arrays(path: str, what: str, names: Iterable[str]) -> dict[str, Any]:
    """Load arrays of a .npz file by name, others not. Pickled objects are refused.

    Raises:
        UsageError: `what`, the file, cannot be read; or its arrays are too large for the memory, which is seen before
            they are expanded.
    """
    import numpy as np

    with _archive(path, what) as held:
        size = sum(_expanded(held, name) for name in names)
        if (available := shortage(size)) is not None:
            raise ValueError(f"its arrays take {readable(size)}, and {readable(available)} are available")
        arrays = {name: held[name] for name in names}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} in it is not an array")
        return arrays


@contextmanager
def _archive(path: str, what: str) -> Iterator[Any]:
    import warnings

    from numpy.lib.npyio import NpzFile

    # numpy does not close a damaged archive, and warns about unusual headers
    with (
        reading(what),
        open(path, "rb") as file,
        warnings.catch_warnings(action="ignore"),
        NpzFile(file, allow_pickle=False) as held,
    ):
        yield held


def _expanded(held: Any, name: str) -> int:
    """The bytes of an array in an archive, as its header says; 0 if it is none."""
    from math import prod

    from numpy.lib import format as npy

    with held.zip.open(name if name in held.zip.namelist() else f"{name}.npy") as file:
        if file.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
            return 0
        file.seek(0)
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
        return int(prod(shape)) * int(dtype.itemsize)
