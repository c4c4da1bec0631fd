"""Store the rows of a sweep in an SQLite file as soon as they are computed, so that a stopped sweep can resume."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pebblesim.core.errors import UsageError

HEAD = b"SQLite format 3\0"
APPLICATION = 0x70656262
"""Application id that marks our SQLite files: "pebb"."""

StoredRow = dict[str, Any]


def _may_be_ours(path: Path) -> bool:
    """Whether a file is empty, or begins as SQLite's files do: SQLite itself writes over a file of one byte."""
    try:
        with path.open("rb") as file:
            return file.read(len(HEAD)) in (b"", HEAD)
    except OSError:
        return True  # SQLite says why it cannot be read


class RowStore:
    """Rows by key. A key encodes everything that defines its row, so two rows are never confused."""

    def __init__(self, path: Path | None) -> None:
        """Open or create the file; None keeps the rows in memory.

        Raises:
            UsageError: the file cannot be opened, or holds other data.
        """
        self.path = path
        self._empty = path is not None and not path.exists()
        if path is not None and path.is_file() and not _may_be_ours(path):
            raise UsageError(f"--store {str(path)!r} is not a database of SQLite; give another name.")
        try:
            self._file = sqlite3.connect(path or ":memory:", timeout=60, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._file.close()
                raise
        except sqlite3.Error as error:
            raise UsageError(f"rows cannot be kept in {str(path)!r}: {error}.") from None

    def _prepare(self) -> None:
        (owner,) = self._file.execute("PRAGMA application_id").fetchone()
        (tables,) = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and owner != APPLICATION:
            raise UsageError(f"--store {str(self.path)!r} is an SQLite file of another program; give another name.")
        # Every row has been handed to the operating system when `keep` returns: killing the process loses none.
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = NORMAL")
        self._file.execute(f"PRAGMA application_id = {APPLICATION}")
        self._file.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID")

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._empty and self.path is not None:  # it was made for nothing
            self.path.unlink(missing_ok=True)

    def known(self, keys: Iterable[str]) -> dict[str, StoredRow]:
        """Return the rows that are already stored.

        Raises:
            UsageError: the file is damaged.
        """
        rows = {}
        try:
            for key in keys:
                for (row,) in self._file.execute("SELECT row FROM rows WHERE key = ?", (key,)):
                    rows[key] = json.loads(row)
        except (sqlite3.Error, ValueError) as error:
            raise UsageError(
                f"rows in {str(self.path)!r} cannot be read: {error}; delete it, or name another."
            ) from None
        return rows

    def keep(self, key: str, row: StoredRow) -> None:
        """Add a row.

        Raises:
            UsageError: the file cannot be written.
        """
        try:
            self._file.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, json.dumps(row)))
            self._empty = False
        except sqlite3.Error as error:
            raise UsageError(f"rows cannot be kept in {str(self.path)!r}: {error}.") from None
