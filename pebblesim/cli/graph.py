"""Graphs: `graph`, and the least I/O of a small one, `optimum`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pebblesim.cli.options import (
    AsJson,
    Cache,
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
from pebblesim.cli.printing import print_json
from pebblesim.errors import UsageError
from pebblesim.sizes import parse

if TYPE_CHECKING:
    pass

app = family()


@command(app, example="pebblesim graph backward -n 4 -d 2 --summation balanced -o backward.dot")
def graph(
    problem: Annotated[str, typer.Argument(help="A problem, see `pebblesim list`.", autocompletion=complete_problem)],
    *,
    sizes: Sizes,
    summation: Summation = "chain",
    mask: MaskText = None,
    option: Option = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Export: .dot, .graphml, .json (networkx), .hdag or .txt (HyperDAG)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Size a computational DAG with its summation trees, or export it."""
    from pebblesim import graphs
    from pebblesim.jobs.arguments import problem_dims
    from pebblesim.language import masks
    from pebblesim.language.problems import problem as find

    solves = find(problem)
    dims = problem_dims(solves, sizes.dims)
    options = {name: option_value(value) for name, value in pairs(option, "--option")}
    for name in options:
        if name in (*dims, "summation", "outputs"):
            raise UsageError(f"--option {name}=… is not for sizes, sums and outputs; those have options of their own.")
    seen = masks.of(mask)
    allowed = None if seen is None else seen.allowed(dims["n"])
    plan = graphs.plan(problem, summation, mask=allowed, **dims, **options)
    if output is not None:
        from pebblesim.graphs.export import save

        save(graphs.build(problem, summation, mask=allowed, **dims, **options), output)
    if as_json:
        print_json({"problem": problem, **dims, "summation": summation, **options, **plan._asdict()})
        return
    print(f"{problem}, {', '.join(f'{k} = {v:,}' for k, v in dims.items())}, summation {summation}")
    print(f"vertices  {plan.vertices:,}\nedges     {plan.edges:,}\nmemory    {plan.bytes:,} bytes")
    if output is not None:
        print(f"written   {output}")


@command(app, example="pebblesim optimum matmul --size m=2 --size k=2 --size n=2 -M 4")
def optimum(
    problem: Annotated[str, typer.Argument(help="A problem, see `pebblesim list`.", autocompletion=complete_problem)],
    *,
    sizes: Sizes,
    cache: Cache,
    rules: Annotated[str, typer.Option("--rules", help="hong-kung or no-recompute.")] = "hong-kung",
    summation: Summation = "chain",
    option: Option = None,
    mask: MaskText = None,
    states: Annotated[
        str | None, typer.Option("--states", help="Give up at that many states, some 60 bytes each.", metavar="N")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Keep the moves: .npy (packed) or .txt (words).")] = None,
    as_json: AsJson = False,
) -> None:
    """Search all games on a small graph for the least I/O."""
    import pebblesim as ps
    from pebblesim.game.moves import saving
    from pebblesim.game.referee import referee

    options = {name: option_value(value) for name, value in pairs(option, "--option")} | sizes.dims
    cdag = ps.graph(problem, summation=summation, mask=mask, **options)
    most = None if states is None else parse("--states", states)
    found = ps.optimum(cdag, M=cache.words, rules=rules, states=most)
    if save is not None:
        with saving(save, [found.moves], cdag.describe):
            pass
    game = referee(cdag, found.M, [found.moves], rules)
    if as_json:
        print_json({"problem": problem, **options, **found.to_dict(), "complete": game.complete})
        return
    print(f"{problem}, {', '.join(f'{name} = {value}' for name, value in options.items())}: {cdag}")
    print(found)
    print(f"reads, writes   {game.reads:,}, {game.writes:,} words; the referee finds the game legal and complete")
