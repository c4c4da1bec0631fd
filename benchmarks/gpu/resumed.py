"""Rows of a file that a measurement adds, one after the other, until its time is over: the next call goes on there."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def arguments(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """A parser of what all measurements are asked: a folder, a limit of seconds, and whether to show what is there."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=seconds)
    parser.add_argument("--table", action="store_true", help="show the rows that are there")
    return parser


def there(file: Path) -> list[Row]:
    """The rows of a file, which need not exist."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def known(file: Path, key: str = "key") -> set[str]:
    """The keys of the rows of a file, which need not exist."""
    return {row[key] for row in there(file)}


def add(file: Path, rows: Iterable[Row], until: float = inf) -> None:
    """Write rows behind those of a file as they are made, and show them; the last one is the first after `until`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(json.dumps(row)[:700], flush=True)
            if time.monotonic() > until:
                return


def resumed(
    asked: argparse.Namespace,
    name: str,
    rows: Callable[[Any, argparse.Namespace, set[str]], Iterable[Row]],
    table: Callable[[list[Row]], str],
) -> None:
    """Add rows to a file, or show the table of those that are there.

    Args:
        asked: what the command was asked.
        name: of the file in the folder.
        rows: makes rows, each with its "key", of torch, what was asked, and the keys of those that are there.
        table: the text of rows.
    """
    file, until = asked.output / name, time.monotonic() + asked.time_limit
    if asked.table:
        print(table(there(file)))
        return
    import torch

    add(file, rows(torch, asked, known(file)), until)
