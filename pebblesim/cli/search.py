"""`pebblesim search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pebblesim.cli.completion import problems
from pebblesim.cli.options import (
    AsJson,
    Cache,
    HeadChoice,
    MaskText,
    Sizes,
    argument,
    command,
    family,
    option,
    output_file,
    pairs,
)
from pebblesim.cli.printing import print_json, say
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file
from pebblesim.core.sizes import parse_size, parse_words

app = family()


@command(app, "search", example="pebblesim search backward-qkv -n 1024 -d 64 -M 4162 --save found.py")
def search(
    problem: Annotated[str, argument("A problem (see `pebblesim list`).", values=problems)],
    *,
    sizes: Sizes,
    cache: Cache,
    summation: Annotated[str, option("--summation", "Shape of the sums: chain or in-place.")] = "chain",
    name: Annotated[str | None, option("--name", "Name of the schedule; found-PROBLEM by default.")] = None,
    saved: Annotated[
        str | None, option("--saved --kept", "Inputs saved by the forward pass, as O,l; any by default.", "NAMES")
    ] = None,
    save: Annotated[
        Path | None, output_file("--save", "Save its source to a file; `--load FILE` loads it again.", "FILE.py")
    ] = None,
    mask: MaskText = None,
    word_bytes: Annotated[
        str | None,
        option("--word-bytes", "Bytes of words, as Q=2,K=2,V=1; 4 for other tensors. -M is then in bytes.", "BYTES"),
    ] = None,
    heads: HeadChoice,
    devices: Annotated[
        str | None, option("-P", "Devices: forward attention split over them, each with a schedule of its own.", "P")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search for the schedule with the least I/O, print it, count it, and play it under the referee."""
    import pebblesim as ps

    if devices is not None:
        if problem != "forward" or any((saved, save, mask, word_bytes, heads.separate)) or summation != "chain":
            raise UsageError("search -P takes the problem forward, with sizes, -M, --heads and --kv-heads only.")
        if heads.batch != 1:
            raise UsageError("search -P deals the heads of one sequence; leave --batch out, or ask for more --heads.")
        dealt_to: dict[str, Any] = {"P": parse_size("P", devices), "heads": heads.heads, "kv_heads": heads.kv_heads}
        with progress_bar("searching") as progress:
            dealt = ps.search_on_devices(
                M=cache.words, name=name or "found-forward", progress=progress, **dealt_to, **sizes.dims
            )
        print_json(dealt.to_dict()) if as_json else say(dealt)
        return
    asked: dict[str, Any] = {"M": cache.words} if word_bytes is None else _in_bytes(cache, word_bytes)
    if saved is not None:
        asked["saved"] = tuple(filter(None, (each.strip() for each in saved.split(","))))
    asked |= {"summation": summation, "name": name, "mask": mask, **heads.arguments, **sizes.dims}
    with progress_bar("searching") as progress:
        result = ps.search(problem, progress=progress, **asked)
    if save is not None and result.new:
        with whole_file(save) as part:
            part.write_text(result.source, encoding="utf-8")
    if as_json:
        print_json(result.to_dict())
    else:
        say(result)
        if save is None:
            print(f"\n{result.source}", end="")
        elif result.new:
            say(f"written to {save}")
    if save is not None and not result.new:
        known = result.schedule.name
        typer.echo(
            f"{save} is not written: {known} is already in the catalogue, see `pebblesim show {known}`", err=True
        )
        raise typer.Exit(1)


def _in_bytes(cache: Cache, word_bytes: str) -> dict[str, Any]:
    """M in bytes, and the bytes of a word of each tensor, from a text such as Q=2,K=1."""
    if cache.dtype is not None:
        raise UsageError("--dtype is one type for all words, --word-bytes has one for each tensor; take one.")
    named = dict(pairs([each.strip() for each in word_bytes.split(",")], "--word-bytes"))
    for name, size in named.items():
        if not size.isdecimal():
            raise UsageError(f"--word-bytes has {size!r} for {name}, not a number of bytes; write Q=2,K=2,V=1.")
    return {
        "M": parse_words(cache.m, "float8"),
        "word_bytes": {name: int(size) for name, size in named.items()},
    }
