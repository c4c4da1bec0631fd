"""Graphs of problems, of generators and in files: `graph`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pebblesim.cli.dags import GraphChoice, SourceName, literature
from pebblesim.cli.options import AsJson, command, family, option_value, output_file, pairs
from pebblesim.cli.printing import print_json, say
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import listed

app = family()


@command(app, example="pebblesim graph backward -n 4 -d 2 --summation balanced -o backward.dot")
def graph(
    source: SourceName,
    *,
    made: GraphChoice,
    output: Annotated[
        Path | None,
        output_file(
            "--output -o", "File to export to: .dot, .graphml, .json (networkx), .hdag (HyperDAG), .edges or .mtx."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the size of a computational DAG, or export it: that of a problem, a generator, or a file."""
    from pebblesim.dags.formats import save_graph
    from pebblesim.language.problems import PROBLEMS

    if source in PROBLEMS and made.format is None:
        _of_problem(source, made, output, as_json)
        return
    name, built = made.graph(source)
    if output is not None:
        save_graph(built, output)
    known = literature(source, made)
    sizes = {
        "vertices": built.vertices,
        "edges": built.edges,
        "inputs": len(built.inputs),
        "outputs": len(built.outputs),
    }
    if as_json:
        print_json({"graph": name, **sizes, **({} if known is None else {"literature": known._asdict()})})
        return
    say(name, *(f"{what:<10}{count:,}" for what, count in sizes.items()))
    if known is not None:
        say(f"known     {known}")
    if output is not None:
        say(f"written   {output}")


def _of_problem(problem: str, made: GraphChoice, output: Path | None, as_json: bool) -> None:
    """Print the size of a problem's graph, which is known before it is built."""
    from pebblesim.api.graph import graph, graph_size
    from pebblesim.counting.arguments import problem_dims
    from pebblesim.dags.formats import save_graph
    from pebblesim.language.problems import problem as find

    dims = problem_dims(find(problem), made.dims)
    options: dict[str, Any] = {name: option_value(value) for name, value in pairs(made.option, "--option")}
    for name in options:
        if name in (*dims, "summation", "outputs"):
            raise UsageError(
                f"--option {name}=… is not allowed; sizes, summation trees and the output file have their own options."
            )
    asked: dict[str, Any] = {"summation": made.summation, "mask": made.mask, **dims, **options}
    size = graph_size(problem, **asked)
    if output is not None:
        save_graph(graph(problem, **asked), output)
    if as_json:
        print_json({"problem": problem, **dims, "summation": made.summation, **options, **size._asdict()})
        return
    say(f"{problem}, {listed(dims)}, summation {made.summation}")
    say(f"vertices  {size.vertices:,}\nedges     {size.edges:,}\nmemory    {size.bytes:,} bytes")
    if output is not None:
        say(f"written   {output}")
