"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
