"""Output of commands: tables that fit the terminal, JSON, progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError

if TYPE_CHECKING:
    from pebblesim.jobs.glossary import Entry


def listed(sizes: Mapping[str, int]) -> str:
    """Sizes as a line of text: n = 4,096, d = 64."""
    return ", ".join(f"{name} = {size:,}" for name, size in sizes.items())


def one_way(latex: bool, as_json: bool) -> None:
    """Refuse --latex together with --json.

    Raises:
        UsageError: both options are given.
    """
    if latex and as_json:
        raise UsageError("--latex and --json cannot be combined; choose one.")


def print_json(result: Mapping[str, Any]) -> None:
    print(json.dumps(result, ensure_ascii=False))


def print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    spare: Sequence[str] = (),
) -> None:
    """Print a table. The first `left` columns are text, aligned left; the others are numbers, aligned right.

    No cell is ever cut off. On a narrow terminal the `spare` columns are left out one by one.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shown = list(range(len(columns)))
    dropped: list[str] = []
    while True:
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
        for number in shown:
            table.add_column(columns[number], justify="left" if number < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[number] for number in shown))
        width = Console(width=100_000).measure(table).maximum
        if not console.is_terminal or width <= console.width or len(dropped) == len(spare):
            break
        dropped.append(spare[len(dropped)])
        shown = [number for number in shown if columns[number] not in dropped]
    console = Console(width=max(width, 1), soft_wrap=True)
    with console.capture() as text:  # Rich would end the program if the reader closes the pipe
        console.print(table)
    print(text.get(), end="")
    if dropped:
        print(f"(columns left out on this narrow terminal: {', '.join(dropped)})")


def print_tensors(entries: Sequence[Entry]) -> None:
    """Print one line of explanation for each tensor."""
    wide = max((len(entry.name) for entry in entries), default=0)
    shapes = [" × ".join(entry.shape) for entry in entries]
    formulas = [f"= {entry.formula}" if entry.formula else entry.role for entry in entries]
    widths = [max(map(len, column), default=0) for column in (shapes, formulas)]
    for entry, shape, formula in zip(entries, shapes, formulas, strict=True):
        print(f"  {entry.name:<{wide}}  {shape:<{widths[0]}}  {formula:<{widths[1]}}  {entry.meaning}")


def print_rules(rules: str) -> None:
    """Print the rules of the game in five lines."""
    from pebblesim.game.words import in_words

    print(f"\nrules of the game ({rules})")
    for line in in_words(rules):
        print(f"  {line}")


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
