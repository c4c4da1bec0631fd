"""Tables of results with named columns: printed as text, and saved as .csv, .json or .parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file
from pebblesim.core.results import Result, pandas

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN = 40
"""Most rows that are printed."""

CHUNK = 50_000
"""Rows that are written at a time."""


@dataclass(frozen=True)
class Sheet:
    """A table for people, in the middle of a text.

    Attributes:
        columns, rows: what it says; cells are text, numbers, or None for an empty one.
        first: the columns that matter most, in that order, for where there is no room for all.
        left: how many columns, from the left, hold text; None for those without numbers.
        others: columns that are shown only where all are asked for.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    first: Sequence[str] = ()
    left: int | None = None
    others: Sequence[str] = ()

    @property
    def lines(self) -> list[list[str]]:
        """The cells as text."""
        return [list(map(_shown, row)) for row in self.rows]

    @property
    def words(self) -> list[bool]:
        """Whether a column holds text, and is aligned left."""
        if self.left is not None:
            return [number < self.left for number in range(len(self.columns))]
        return [all(isinstance(row[number], str) for row in self.rows) for number in range(len(self.columns))]

    def __str__(self) -> str:
        shown = [number for number, name in enumerate(self.columns) if name not in self.others]
        lines = [[line[number] for number in shown] for line in (self.columns, *self.lines)]
        return "\n".join(in_columns(lines, [self.words[number] for number in shown]))


@dataclass(frozen=True)
class Table(Result):
    """A table: columns of equal length. None stands for a missing value.

    Attributes:
        columns: values by column name, as lists or arrays.
    """

    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows, as dictionaries of Python numbers."""
        for chunk in self._chunks():
            for row in zip(*chunk, strict=True):
                yield dict(zip(self.columns, row, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the rows, each as a dictionary."""
        return {"rows": list(self)}

    def to_frame(self) -> DataFrame:
        """Return a `pandas.DataFrame` with the same columns.

        Raises:
            UsageError: pandas is not installed.
        """
        frame: DataFrame = pandas().DataFrame(dict(self.columns))
        return frame

    def _chunks(self) -> Iterator[list[list[Any]]]:
        for start in range(0, len(self), CHUNK):
            parts = (column[start : start + CHUNK] for column in self.columns.values())
            yield [part.tolist() if hasattr(part, "tolist") else list(part) for part in parts]

    def parts(self, first: Sequence[str] = ()) -> list[str | Sheet]:
        """Return the parts to print: the values that all rows have in common, the first rows, and the number of others.

        Columns named in `first` matter most.
        """
        rows = [row for row, _ in zip(self, range(SHOWN), strict=False)]
        same = {name: rows[0][name] for name in rows[0] if self._constant(name)} if len(rows) > 1 else {}
        names = [name for name in self.columns if name not in same and any(row[name] is not None for row in rows)]
        parts: list[str | Sheet] = [", ".join(f"{name} {value}" for name, value in same.items())] if same else []
        parts.append(Sheet(names, [[row[name] for name in names] for row in rows], first))
        return parts + ([f"… and {len(self) - SHOWN:,} more rows"] if len(self) > SHOWN else [])

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def _constant(self, name: str) -> bool:
        """Whether a column holds the same text in every row; it is then printed once, not in every row."""
        column = self.columns[name]
        return isinstance(column[0], str) and len(set(column)) == 1

    def save(self, path: Path) -> None:
        """Write the table to a file, as a whole or not at all.

        Raises:
            UsageError: the file cannot be written, or its format is not known.
        """
        write = format_of(path)
        with whole_file(path) as unfinished:
            write(self, unfinished)


def in_columns(rows: Sequence[Sequence[str]], left: Iterable[bool] | None = None) -> list[str]:
    """Return rows of text as lines with columns of equal width; `left`: which are aligned left, all by default."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.ljust if word else str.rjust for word in left or [True] * len(widths)]
    lines = ([pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)] for row in rows)
    return ["  ".join(line).rstrip() for line in lines]


def aligned(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a table as text: text aligned left, numbers aligned right."""
    return str(Sheet(head, list(rows)))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


def format_of(path: Path) -> Callable[[Table, Path], None]:
    """Return the function that writes a table in the format of this file name.

    Raises:
        UsageError: the format is not known, or a library for it is missing.
    """
    if path.suffix not in WRITERS:
        raise UsageError(f"-o {str(path)!r}: unknown format; the file name must end in one of {', '.join(WRITERS)}.")
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise UsageError(f"-o {str(path)!r} needs pyarrow: pip install pyarrow, or use .csv or .json.") from None
    return WRITERS[path.suffix]


def _csv(table: Table, path: Path) -> None:
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(table.columns)
        for chunk in table._chunks():
            logical = (isinstance(next((v for v in column if v is not None), None), bool) for column in chunk)
            columns = (
                [None if v is None else str(v).lower() for v in column] if is_logical else column
                for column, is_logical in zip(chunk, logical, strict=True)
            )
            out.writerows(zip(*columns, strict=True))


def _json(table: Table, path: Path) -> None:
    import json

    encode = json.JSONEncoder(ensure_ascii=False).encode
    with path.open("w", encoding="utf-8") as file:
        before = "["
        for row in table:
            file.write(f"{before}\n{encode(row)}")
            before = ","
        file.write("\n]\n" if before == "," else "[]\n")


def _parquet(table: Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    arrays = {}
    for name, column in table.columns.items():
        try:
            arrays[name] = pa.array(column, from_pandas=False)
        except (OverflowError, pa.ArrowInvalid):
            raise UsageError(
                f"{name} holds integers of more than 64 bits, which a .parquet file cannot hold; use .csv or .json."
            ) from None
    pyarrow.parquet.write_table(pa.table(arrays), path)


WRITERS: dict[str, Callable[[Table, Path], None]] = {".csv": _csv, ".json": _json, ".parquet": _parquet}
