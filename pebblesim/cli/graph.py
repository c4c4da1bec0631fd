"""Graphs of problems: `graph`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pebblesim.cli.options import (
    AsJson,
    MaskText,
    Option,
    Sizes,
    Summation,
    command,
    complete_problem,
    family,
    option_value,
    pairs,
)
from pebblesim.cli.printing import print_json, say
from pebblesim.errors import UsageError

app = family()


@command(app, example="pebblesim graph backward -n 4 -d 2 --summation balanced -o backward.dot")
def graph(
    problem: Annotated[str, typer.Argument(help="A problem (see `pebblesim list`).", autocompletion=complete_problem)],
    *,
    sizes: Sizes,
    summation: Summation = "chain",
    mask: MaskText = None,
    option: Option = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to export to: .dot, .graphml, .json (networkx), .hdag (HyperDAG), .edges or .mtx.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the size of a computational DAG with its summation trees, or export it."""
    from pebblesim import graphs
    from pebblesim.jobs.arguments import problem_dims
    from pebblesim.language import masks
    from pebblesim.language.problems import problem as find

    solves = find(problem)
    dims = problem_dims(solves, sizes.dims)
    options = {name: option_value(value) for name, value in pairs(option, "--option")}
    for name in options:
        if name in (*dims, "summation", "outputs"):
            raise UsageError(
                f"--option {name}=… is not allowed; sizes, summation trees and the output file have their own options."
            )
    seen, solves = masks.of(mask), solves.in_dims(dims)
    allowed = None if seen is None else seen.allowed(*solves.grid(dims))
    plan = graphs.plan(problem, summation, mask=allowed, **dims, **options)
    if output is not None:
        from pebblesim.dags.formats import save_graph

        save_graph(graphs.build(problem, summation, mask=allowed, **dims, **options), output)
    if as_json:
        print_json({"problem": problem, **dims, "summation": summation, **options, **plan._asdict()})
        return
    say(f"{problem}, {', '.join(f'{k} = {v:,}' for k, v in dims.items())}, summation {summation}")
    say(f"vertices  {plan.vertices:,}\nedges     {plan.edges:,}\nmemory    {plan.bytes:,} bytes")
    if output is not None:
        say(f"written   {output}")
