"""Output of commands: tables that fit the terminal, JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pebblesim.core.errors import UsageError
from pebblesim.core.tables import Sheet

if TYPE_CHECKING:
    from pebblesim.api.glossary import Glossary


def one_way(latex: bool, as_json: bool) -> None:
    """Refuse --latex together with --json.

    Raises:
        UsageError: both options are given.
    """
    if latex and as_json:
        raise UsageError("--latex and --json cannot be combined; choose one.")


def print_json(result: Mapping[str, Any]) -> None:
    plain = "utf" not in (sys.stdout.encoding or "utf").lower()  # then escape what the encoding may lack
    import json

    print(json.dumps(result, ensure_ascii=plain))


WIDE = ContextVar("wide", default=False)
"""Whether lines may be wider than the terminal."""


MOST_COLUMNS = 100
"""The widest that a table is without --wide, on a terminal or in a pipe."""


def limit() -> int | None:
    """The longest that a line may be; None in a pipe, or with --wide."""
    return None if WIDE.get() or not sys.stdout.isatty() else get_terminal_size().columns


def widest_table() -> int | None:
    """The widest that a table may be; None with --wide."""
    return None if WIDE.get() else min(MOST_COLUMNS, limit() or MOST_COLUMNS)


def say(*texts: object) -> None:
    """Print texts, line by line; on a terminal, a line that is too long continues on the next line, indented."""
    width = limit()
    for line in (line for text in texts for line in str(text).split("\n")):
        if width is None or len(line) <= width:
            print(line)
            continue
        further = " " * (len(line) - len(line.lstrip()) + 2)
        for part in wrap(line, width, subsequent_indent=further, break_on_hyphens=False, drop_whitespace=True):
            print(part)


def show(*parts: str | Sheet) -> None:
    """Print texts and tables."""
    for part in parts:
        if isinstance(part, Sheet):
            print_table(None, part.columns, part.lines, part.words, part.first, part.others)
        else:
            say(part)


def print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int | Sequence[bool] = 1,
    first: Sequence[str] = (),
    others: Sequence[str] = (),
) -> None:
    """Print a table that fits the terminal and `MOST_COLUMNS`, unless lines may be wide.

    Columns are left out, the last ones first, until the others fit; those in `first` are left out last, and the first
    of them never. Before one of these is left out, texts are wrapped. No cell is ever cut off.

    Args:
        title: printed above it.
        columns, rows: the table.
        left: how many columns, from the left, are text and aligned left; or, for each, whether it is.
        first: the columns that matter most, in that order.
        others: the columns that are left out in any case, unless lines may be wide.
    """
    from rich.cells import cell_len

    width = widest_table()
    text = [number < left for number in range(len(columns))] if isinstance(left, int) else left
    matter = [columns.index(name) for name in first if name in columns]
    order = matter + [number for number in range(len(columns)) if number not in matter]
    cells = list(zip(columns, *rows, strict=True))
    whole = [max(map(cell_len, column)) for column in cells]
    words = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in cells]

    def room(shown: Sequence[int], folded: Sequence[int]) -> int:
        """Return the width of a table in which cells of some columns are wrapped between words."""
        return 1 + sum(words[number] if number in folded else whole[number] for number in shown) + 3 * (len(shown) - 1)

    order.sort(key=lambda number: columns[number] in others)
    kept = len(columns) if width is None else sum(name not in others for name in columns)
    shown, folded = order[:kept], list[int]()
    while width is not None and room(shown, folded) > width and len(shown) > max(1, len(matter)):
        shown = shown[:-1]
    if width is not None and room(shown, folded) > width:
        folded = [number for number in order[1:] if text[number]]
        while room(shown, folded) > width and len(shown) > 1:
            shown = shown[:-1]
        folded = folded if room(shown, folded) <= width else order
    if title is not None:
        say(title)
    lines: list[list[Sequence[str]]] = [[[line[number] for number in sorted(shown)]] for line in (columns, *rows)]
    widths = [whole[number] for number in sorted(shown)]
    if folded and width is not None:
        least = [words[number] if number in folded else whole[number] for number in sorted(shown)]
        lines = _folded(lines, least, widths, width)
    _print_lines(lines, [text[number] for number in sorted(shown)], widths)
    if len(shown) < len(columns):
        say(f"(--wide adds: {', '.join(columns[number] for number in sorted(order[len(shown) :]))})")


def _print_lines(rows: Sequence[Sequence[Sequence[str]]], left: Sequence[bool], widths: Sequence[int]) -> None:
    """Print the rows of a table, each of one line or more; the first row is the heading."""
    from rich.cells import cell_len

    def line(cells: Sequence[str]) -> str:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        parts = (cell + room if text else room + cell for cell, room, text in zip(cells, spaces, left, strict=True))
        return f" {'   '.join(parts)}".rstrip()

    heading, others = map(line, rows[0]), (line(cells) for row in rows[1:] for cells in row)
    bold = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    rule = " " + "─" * (sum(widths) + 3 * (len(widths) - 1))
    print("\n".join(("", *(f"\x1b[1m{each}\x1b[0m" if bold else each for each in heading), rule, *others, "")))


def _folded(
    rows: Sequence[Sequence[Sequence[str]]], least: Sequence[int], widths: list[int], width: int
) -> list[list[Sequence[str]]]:
    """Wrap cells, so that lines fit into a width; `widths` become those of the columns then.

    `least`: the widths down to which no word is broken; columns become narrower only where that is not enough.
    """
    from itertools import zip_longest

    while 1 + sum(widths) + 3 * (len(widths) - 1) > width and max(widths) > 1:
        *_, widest = max((size > least[number], size, number) for number, size in enumerate(widths))
        widths[widest] -= 1

    def wrapped(cells: Sequence[str]) -> list[Sequence[str]]:
        parts = [wrap(cell, size, break_on_hyphens=False) for cell, size in zip(cells, widths, strict=True)]
        return list(zip_longest(*parts, fillvalue=""))

    return [wrapped(line) for (line,) in rows]


def print_tensors(entries: Glossary) -> None:
    """Print one line of explanation for each tensor."""
    for line in str(entries).split("\n"):
        say(f"  {line}")


def print_rules(rules: str) -> None:
    """Print the rules of the game in five lines."""
    from pebblesim.api.rules_in_words import in_words

    say(f"\nrules of the game ({rules})")
    for line in in_words(rules):
        say(f"  {line}")


def print_rules_if_wide(rules: str) -> None:
    """Print the rules of the game with --wide, and otherwise that they are printed then."""
    if WIDE.get():
        print_rules(rules)
    else:
        say("(--wide adds: the rules of the game)")
