"""`explore`: a page in which sizes and the cache are moved by hand, or the story of FlashAttention."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from pebblesim.cli.completion import problems
from pebblesim.cli.options import D, N, TypedCache, argument, check_page, command, family, option, output_file
from pebblesim.cli.printing import say
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import dtype_of, parse_size

app = family()


@command(app, example="pebblesim explore -n 8k -d 128 -M 227KiB --dtype bf16 -o page.html")
def explore(
    problems: Annotated[
        list[str] | None, argument("Problems; by default forward, backward-qkv and backward.", values=problems)
    ] = None,
    *,
    n: N = None,
    d: D = None,
    m: Annotated[
        str | None, option("-M", "Cache at first: words, or bytes such as 192KiB with --dtype.", "WORDS")
    ] = None,
    dtype: Annotated[str | None, option("--dtype", "Type of a word at first, such as float16 or bf16.")] = None,
    story: Annotated[
        bool, option("--story", "Write the story of FlashAttention instead: a lesson with boards and an editor.")
    ] = False,
    output: Annotated[Path, output_file("--output -o", "The page, an HTML file.")],
) -> None:
    """Write a page for any browser, offline: the words of every schedule, with sizes and M moved by hand."""
    check_page(output)
    if story:
        if problems or any(value is not None for value in (n, d, m, dtype)):
            raise UsageError("--story is a page of its own: leave out problems, -n, -d, -M and --dtype.")
        from pebblesim.views.story import save as save_story

        save_story(output)
    else:
        from pebblesim.advice.cards import caches
        from pebblesim.views.explore import PROBLEMS, save

        view = _view((problems or PROBLEMS)[0], n, d, m, dtype)
        print("deriving the closed forms and bounds of every schedule, some ten seconds …", file=sys.stderr, flush=True)
        save(output, problems or PROBLEMS, caches(), view)
    say(f"written {output}")


def _view(problem: str, n: str | None, d: str | None, m: str | None, dtype: str | None) -> str:
    """Return what the page shows at first, as its address has it; empty if nothing was given.

    Raises:
        UsageError: a size is not a whole number, or the type is not known.
    """
    view: dict[str, object] = {}
    if n is not None:
        view["queries"] = view["keys"] = parse_size("n", n)
    if d is not None:
        view["d"] = parse_size("d", d)
    if m is not None:
        view["M"] = TypedCache(m=m, dtype=dtype).words
    if dtype is not None:
        view["type"] = dtype_of(dtype)
    return urlencode({"problem": problem} | view) if view else ""
