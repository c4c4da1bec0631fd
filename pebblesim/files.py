"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pebblesim.errors import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes its place when all is well.

    Raises:
        UsageError: the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from error
    finally:
        unfinished.unlink(missing_ok=True)
