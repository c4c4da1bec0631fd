"""`explore`: a page in which sizes and the cache are moved by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pebblesim.cli.options import command, complete_problem, family
from pebblesim.cli.printing import say

app = family()


@command(app, example="pebblesim explore -o page.html")
def explore(
    problems: Annotated[
        list[str] | None,
        typer.Argument(
            help="Problems; by default forward, backward-qkv and backward.",
            autocompletion=complete_problem,
        ),
    ] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page, an HTML file.", metavar="FILE")],
) -> None:
    """Write a page for any browser, offline: the words of every schedule, with sizes and M moved by hand."""
    from pebblesim.gpu.advice.cards import caches
    from pebblesim.views.explore import PROBLEMS, save

    print("deriving the closed forms and bounds of every schedule, some ten seconds …", file=sys.stderr, flush=True)
    save(output, problems or PROBLEMS, caches())
    say(f"written {output}")
