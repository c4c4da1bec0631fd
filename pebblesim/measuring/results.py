"""Results on disk: a JSON object in each line, with an `id` of everything that defines it, so that runs can resume."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file

Row = dict[str, Any]


def load(path: Path) -> list[Row]:
    """Return the rows of a file; none if there is no file.

    Raises:
        UsageError: the file is not a file of results.
    """
    if not path.exists():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        if any(not isinstance(row, dict) or "id" not in row for row in rows):
            raise ValueError("a row without an id")
    except (ValueError, OSError) as error:
        raise UsageError(
            f"{str(path)!r} is no file of results ({error}); give the name of one, or of a new file for --output."
        ) from None
    return rows


def save(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows, all or none, in a folder that may be new; of rows with the same id the last one counts.

    Raises:
        UsageError: the file cannot be written.
    """
    kept = {row["id"]: row for row in rows}
    with suppress(OSError):  # then the file cannot be written either, which is said
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, f"{str(path)!r} cannot be written") as unfinished:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in kept.values())
        unfinished.write_text("".join(lines), encoding="utf-8")
