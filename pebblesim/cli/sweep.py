"""`pebblesim sweep`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pebblesim.cli.completion import schedules
from pebblesim.cli.options import (
    AsJson,
    Blocks,
    Dtype,
    HeadChoice,
    MaskText,
    Problem,
    Ranges,
    Summation,
    all_words_in,
    command,
    family,
    option,
    output_file,
    pairs,
    words_in,
)
from pebblesim.cli.printing import print_json, say, show
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError

app = family()


@command(app, "sweep", example="pebblesim sweep --schedule large-cache -n 1k:1M:x4 -d 64 -M 16k:1M:x2 -o large.csv")
def sweep(
    *,
    schedule: Annotated[
        list[str] | None,
        option("--schedule -s", "A schedule, or several with commas; by default all of the problem.", values=schedules),
    ] = None,
    sizes: Ranges,
    m: Annotated[str | None, option("-M", "Cache sizes: words, or bytes with --dtype.", "SIZES")] = None,
    dtype: Dtype = None,
    problem: Problem = None,
    what: Annotated[
        str, option("--what", "What each row is: count, formula (closed forms) or play (a game).")
    ] = "count",
    blocks: Blocks = "fit",
    block: Annotated[list[str] | None, option("--block", "Sizes of a block, e.g. B=16:256:+16.", "NAME=SIZES")] = None,
    mask: MaskText = None,
    heads: HeadChoice,
    summation: Summation = "chain",
    rules: Annotated[str, option("--rules", "Rules of the games: hong-kung, replace or no-recompute.")] = "hong-kung",
    output: Annotated[Path | None, output_file("--output -o", "The table: .csv, .json or .parquet.")] = None,
    store: Annotated[
        Path | None,
        output_file("--store", "Where each row is stored once it is computed; by default beside the output."),
    ] = None,
    jobs: Annotated[int | None, option("--jobs", "Processes; by default one for each core.", "J", min=1)] = None,
    dask: Annotated[str | None, option("--dask", "Run on the workers of a Dask scheduler.", "ADDRESS")] = None,
    as_json: AsJson = False,
) -> None:
    """Count, evaluate or play over ranges of sizes, into one table; a sweep that was stopped goes on.

    Sizes are lists and ranges: 64,128 or 256:1M:x2 (doubling) or 64:512:+64.
    """
    import pebblesim as ps

    for name, text in (*sizes.dims.items(), ("M", m or "")):
        if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
            typer.echo(f"{name} = {text} is a list of sizes: {text.replace(',', ', ')}", err=True)
    named = [name.strip() for text in schedule or () for name in text.split(",")]
    axes: dict[str, Any] = {**heads.arguments, **sizes.dims}
    own = dict(pairs(block, "--block"))
    if own and blocks != "fit":
        raise UsageError(f"--blocks {blocks} chooses all blocks; leave it out to choose some yourself with --block.")
    if store is None and output is not None:
        store = output.with_suffix(".sqlite")
    typed = heads.is_given
    if m is None:
        words_in(m, dtype, typed)
    with progress_bar("sweeping") as progress:
        try:
            table = ps.sweep(
                named,
                what=what,
                problem_name=problem,
                M=None if m is None else all_words_in(m, dtype, typed),
                blocks=own or blocks,
                mask=mask,
                summation=summation,
                rules=rules,
                output=output,
                store=store,
                jobs=jobs,
                dask=dask,
                progress=progress,
                dtype=dtype,
                **axes,
            )
        except KeyboardInterrupt:
            kept = f"; the rows so far are in {store}, and the same command goes on" if store and store.exists() else ""
            typer.echo(f"stopped{kept}.", err=True)
            raise typer.Exit(130) from None
    if as_json:
        print_json({"rows": list(table)})
    elif output is None:
        show(*table.parts(("schedule", *sizes.dims, "M", "io", "passed", "least_M", "gap", "total_io")))
    else:
        say(f"written {output}: {len(table):,} rows")
    passed = table.columns.get("passed", ())
    raise typer.Exit(1 if any(each is False for each in passed) else 0)
