"""`explore`: a page in which sizes and the cache are moved by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pebblesim.cli.completion import problems
from pebblesim.cli.options import argument, command, family, output_file
from pebblesim.cli.printing import say

app = family()


@command(app, example="pebblesim explore -o page.html")
def explore(
    problems: Annotated[
        list[str] | None, argument("Problems; by default forward, backward-qkv and backward.", values=problems)
    ] = None,
    *,
    output: Annotated[Path, output_file("--output -o", "The page, an HTML file.")],
) -> None:
    """Write a page for any browser, offline: the words of every schedule, with sizes and M moved by hand."""
    from pebblesim.advice.cards import caches
    from pebblesim.views.explore import PROBLEMS, save

    print("deriving the closed forms and bounds of every schedule, some ten seconds …", file=sys.stderr, flush=True)
    save(output, problems or PROBLEMS, caches())
    say(f"written {output}")
