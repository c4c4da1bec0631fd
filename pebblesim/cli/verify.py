"""`verify`: judge the claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pebblesim.cli.options import AsJson, argument, command, family, option, output_file
from pebblesim.cli.printing import print_json, say
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError

app = family()


@command(app, example="pebblesim verify")
def verify(
    claims: Annotated[list[str] | None, argument("Parts of claim names, e.g. C.9; all claims by default.")] = None,
    full: Annotated[
        bool, option("--full", "Try more and larger samples; this takes minutes instead of seconds.")
    ] = False,
    errata: Annotated[
        Path | None, output_file("--errata", "Write the list of errata to a file instead of printing the claims.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge the claims of the literature and our own: proved, true on the tested range, or false."""
    import pebblesim as ps

    if errata is not None and (claims or full or as_json):
        raise UsageError(
            "--errata writes the whole list with the evidence of the quick run; leave out all other options."
        )
    with progress_bar("verifying") as progress:
        report = ps.verify(*claims or (), full=full, progress=progress, errata_only=errata is not None)
    if errata is not None:
        from pebblesim.core.files import whole_file

        with whole_file(errata) as unfinished:
            unfinished.write_text(report.errata, encoding="utf-8")
        say(f"written {errata}")
    elif as_json:
        print_json(report.to_dict())
    else:
        say(report)
    raise typer.Exit(1 if report.failed else 0)
