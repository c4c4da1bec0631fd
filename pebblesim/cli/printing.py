"""Output of commands: tables that fit the terminal, JSON, progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError
from pebblesim.tables import Sheet

if TYPE_CHECKING:
    from pebblesim.jobs.glossary import Glossary


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


def limit() -> int | None:
    """The longest that a line may be; None in a pipe, or with --wide."""
    return None if WIDE.get() or not sys.stdout.isatty() else get_terminal_size().columns


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
            print_table(None, part.columns, part.lines, part.words, part.first)
        else:
            say(part)


def print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int | Sequence[bool] = 1,
    first: Sequence[str] = (),
) -> None:
    """Print a table that fits the terminal, unless lines may be wide; in a pipe it is complete.

    Columns are left out, the last ones first, until the others fit; those in `first` are left out last, and the first
    of them never. Before one of these is left out, texts are wrapped. No cell is ever cut off.

    Args:
        title: printed above it.
        columns, rows: the table.
        left: how many columns, from the left, are text and aligned left; or, for each, whether it is.
        first: the columns that matter most, in that order.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    width = limit()
    text = [number < left for number in range(len(columns))] if isinstance(left, int) else left
    matter = [columns.index(name) for name in first if name in columns]
    order = matter + [number for number in range(len(columns)) if number not in matter]
    cells = list(zip(columns, *rows, strict=True))
    whole = [max(map(cell_len, column)) for column in cells]
    words = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in cells]

    def room(shown: Sequence[int], folded: Sequence[int]) -> int:
        """Return the width of a table in which cells of some columns are wrapped between words."""
        return 2 + sum(words[number] if number in folded else whole[number] for number in shown) + 2 * (len(shown) - 1)

    shown, folded = order, list[int]()
    while width is not None and room(shown, folded) + len(shown) - 1 > width and len(shown) > max(1, len(matter)):
        shown = shown[:-1]
    if width is not None and room(shown, folded) + len(shown) - 1 > width:
        folded = [number for number in order[1:] if text[number]]
        while room(shown, folded) > width and len(shown) > 1:
            shown = shown[:-1]
        folded = folded if room(shown, folded) <= width else order
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=bool(folded))
    for number in sorted(shown):
        justify: Any = "left" if text[number] else "right"
        table.add_column(columns[number], justify=justify, no_wrap=number not in folded, overflow="fold")
    for row in rows:
        table.add_row(*(row[number] for number in sorted(shown)))
    wide = width if folded and width else Console(width=100_000).measure(table).maximum
    console = Console(width=max(wide, 1), soft_wrap=not folded)
    if title is not None:
        say(title)
    with console.capture() as printed:  # Rich would end the program if the reader closes the pipe
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().split("\n")), end="")
    if len(shown) < len(columns):
        say(f"(left out, for --wide: {', '.join(columns[number] for number in sorted(order[len(shown) :]))})")


def print_tensors(entries: Glossary) -> None:
    """Print one line of explanation for each tensor."""
    for line in str(entries).split("\n"):
        say(f"  {line}")


def print_rules(rules: str) -> None:
    """Print the rules of the game in five lines."""
    from pebblesim.game.words import in_words

    say(f"\nrules of the game ({rules})")
    for line in in_words(rules):
        say(f"  {line}")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None] | None]:
    """Show a progress bar on a terminal, and nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def progress_line(what: str) -> Iterator[Callable[[float, str], None] | None]:
    """Show a progress bar with a changing text on a terminal, and nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done, text: bar.update(task, completed=done, description=f"{what}: {text}")
