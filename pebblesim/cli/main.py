"""The command line. Exit codes: 0 fine, 1 a check failed, 2 bad usage or infeasible."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pebblesim.errors import PebblesimError, UsageError
from pebblesim.sizes import bytes_of, parse, parse_words

if TYPE_CHECKING:
    from pebblesim.jobs.bounding import Bounds
    from pebblesim.jobs.count import Counted

IN_FILES = {
    "advise": "pebblesim.cli.advise",
    "backlite": "pebblesim.cli.backlite",
    "gpu": "pebblesim.cli.gpu",
    "plot": "pebblesim.cli.plot",
    "sweep": "pebblesim.cli.sweep",
}
"""Commands in files of their own, each with a Typer `app`; a file is read when its command is called."""


class _Commands(TyperGroup):
    def list_commands(self, context: Any) -> list[str]:
        return [*super().list_commands(context), *IN_FILES]

    def get_command(self, context: Any, name: str) -> Any:
        if name not in IN_FILES:
            return super().get_command(context, name)
        command = typer.main.get_command(import_module(IN_FILES[name]).app)
        command.name = name
        return command


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A laboratory for the I/O complexity of attention: count, derive and play tiled schedules.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pebblesim import __version__

        print(f"pebblesim {__version__}")
        raise typer.Exit


@app.callback()
def common(
    load: Annotated[
        list[Path] | None, typer.Option("--load", help="Run a Python file first, with schedules of your own.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    for path in load or ():
        if not path.is_file():
            raise UsageError(f"--load {str(path)!r}: there is no such file.")
        import runpy

        from pebblesim import schedules  # noqa: F401 - ours first, so that names are not taken twice

        runpy.run_path(str(path))


def _complete_schedule(incomplete: str) -> list[str]:
    from pebblesim import schedules  # noqa: F401 - importing it registers them
    from pebblesim.language.registry import SCHEDULES

    return [name for name in SCHEDULES if name.startswith(incomplete)]


def _complete_problem(incomplete: str) -> list[str]:
    from pebblesim.language.problems import PROBLEMS

    return [name for name in PROBLEMS if name.startswith(incomplete)]


ScheduleName = Annotated[
    str, typer.Argument(help="Name of a schedule, e.g. small-cache.", autocompletion=_complete_schedule)
]
Problem = Annotated[
    str | None,
    typer.Option(
        "--problem",
        "-p",
        help="Problem to solve, see `pebblesim list`; backward unless a schedule says otherwise.",
        autocompletion=_complete_problem,
    ),
]
N = Annotated[str | None, typer.Option("-n", help="Sequence length: 4096, 64k, 2^20.", metavar="N")]
D = Annotated[str | None, typer.Option("-d", help="Head dimension.", metavar="D")]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", help="A dimension by its own name, e.g. m=25.", metavar="DIM=N")
]
M = Annotated[str, typer.Option("-M", help="Cache: words, or bytes such as 192KiB with --dtype.", metavar="WORDS")]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Type of a word: float32, bfloat16, …; for -M in bytes, and work per byte."),
]
MaskText = Annotated[
    str | None,
    typer.Option(
        "--mask",
        help="Allowed pairs: causal, window:W, band:W, bigbird:BLOCK:WINDOW:GLOBAL:RANDOM[:SEED] or FILE.npy.",
        metavar="MASK",
    ),
]
Blocks = Annotated[str, typer.Option("--blocks", help="Block rule: fit, paper or best.")]
Block = Annotated[list[str] | None, typer.Option("--block", help="A block size, e.g. B_r=128.", metavar="NAME=SIZE")]
Summation = Annotated[str, typer.Option("--summation", help="Summation trees: chain, balanced or blocked:b.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", help="Of the graph's builder: order=U, kept=true, row_block=8, …", metavar="NAME=VALUE"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command(epilog="Example: [bold]pebblesim count -n 4096 -d 64 -M 16384[/bold]")
def count(
    schedules: Annotated[
        list[str] | None,
        typer.Argument(help="Schedules; all of the problem if none.", autocompletion=_complete_schedule),
    ] = None,
    n: N = None,
    d: D = None,
    size: Sizes = None,
    m: M = ...,  # type: ignore[assignment]
    dtype: Dtype = None,
    problem: Problem = None,
    blocks: Blocks = "fit",
    block: Block = None,
    summation: Summation = "chain",
    mask: MaskText = None,
    as_json: AsJson = False,
) -> None:
    """Count reads, writes and peak occupancy of schedules, exactly, for any sizes."""
    import pebblesim as ps
    from pebblesim.language import masks
    from pebblesim.language.registry import get

    dims, words, rule = _dims(n, d, size), parse_words(m, dtype), _rule(blocks, block)
    bytes_of(dtype or "float32")  # refuses an unknown type
    seen = masks.of(mask)
    names = list(dict.fromkeys(get(name).name for name in schedules or ()))
    problem = problem or (get(names[0]).problem.name if names else "backward")
    if len(names) == 1 and problem == get(names[0]).problem.name:
        rows = [ps.count(names[0], M=words, blocks=rule, summation=summation, mask=seen, **dims)]
    else:
        rows = ps.compare(names, problem_name=problem, M=words, blocks=rule, summation=summation, mask=seen, **dims)
    first = rows[0]
    values = {**first.dims, "M": words}
    nothing_fits = rule in ("fit", "best") and not any(row.feasible for row in rows)
    if as_json:
        value = first.bound_value  # as a whole number where a float would lose digits, or overflow
        bound = {"expr": first.bound.expr, "value": float(value) if value < 2**53 else int(value)}
        fitting = [row for row in rows if row.feasible] or rows
        least = min((row.lower_bound for row in fitting), key=lambda bound: bound.value)  # it holds for all of these
        lower = {"value": least.value, "source": least.source}
        head: dict[str, object] = {"problem": first.problem, **values, "blocks": rule}
        head |= {"bound": bound, "lower_bound": lower}
        head |= {} if seen is None else {"mask": str(seen), "pairs": first.pairs}
        _print_json({**head, "rows": [row.to_dict(dtype) for row in rows]})
        raise typer.Exit(2 if nothing_fits else 0)
    sizes = ", ".join(f"{name} = {value:,}" for name, value in values.items())
    under = "" if seen is None else f", mask {seen} ({first.pairs:,} of {first.dims['n'] ** 2:,} pairs)"
    per_byte = (f"ops/byte {dtype}",) if dtype else ()
    _print_table(
        f"{first.problem}: {sizes} words{under}",
        ("schedule", "blocks", "reads", "writes", "I/O", "peak red", *per_byte, "I/O ÷ Θ", "gap"),
        [_row(row, dtype) for row in rows],
        left=2,
        spare=("reads", "writes", "I/O ÷ Θ", "gap", "blocks"),
    )
    for row in rows:
        if row.warning:
            print(f"warning: {row.warning}")
    if len(rows) == 1:
        work = ", ".join(f"{number:,} {kind}" for kind, number in first.work.items())
        print(f"work: {work}; {first.intensity:.3g} operations per word")
        for title, traffic in (("phase", first.phases), ("tensor", first.by_tensor)):
            lines = [(name, f"{r:,}", f"{w:,}", f"{r + w:,}") for name, (r, w) in traffic.items()]
            _print_table(None, (title, "reads", "writes", "I/O"), lines)
    print(f"Θ: {first.bound.expr} = {first.bound_value:,.0f}  ({first.bound.source})")
    _print_lower_bounds(rows)
    raise typer.Exit(2 if nothing_fits else 0)


def _print_lower_bounds(rows: Sequence[Counted]) -> None:
    """What the gaps are relative to: schedules that keep other things, or compute in another way, have other bounds."""
    names: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        if row.least_M is None or len(rows) == 1:
            names.setdefault((row.lower_bound.source, row.lower_bound.value), []).append(row.schedule)
    bounds = [f"{value:,} words ({source})" for source, value in names]
    if len(bounds) == 1:
        print(f"gap: I/O ÷ {bounds[0]}")
    elif bounds:
        print("gap: I/O ÷ the largest lower bound for its way of computing:")
        for bound, schedules in zip(bounds, names.values(), strict=True):
            print(f"  {bound}: {', '.join(schedules)}")


def _row(row: Counted, dtype: str | None) -> tuple[str, ...]:
    sizes = ", ".join(f"{name}={size}" for name, size in row.blocks.items()) or "none"
    fits = "" if row.feasible else " > M"
    if row.least_M is not None:
        blank = ("",) * (3 if dtype else 2)
        return (row.schedule, f"needs M ≥ {row.least_M:,}", "", "", "", f"{row.least_M:,} > M", *blank)
    return (
        row.schedule,
        sizes,
        f"{row.reads:,}",
        f"{row.writes:,}",
        f"{row.io:,}",
        f"{row.peak_red:,}{fits}",
        *((f"{row.arithmetic_intensity(dtype):.1f}",) if dtype else ()),
        _ratio(row.bound_ratio),
        _ratio(row.gap),
    )


def _ratio(value: float) -> str:
    return f"{value:,.2f}" if value < 1e6 else f"{value:.3g}"


@app.command("list", epilog="Example: [bold]pebblesim list[/bold]")
def list_schedules(as_json: AsJson = False) -> None:
    """List the problems and their schedules."""
    from pebblesim import schedules  # noqa: F401 - importing it registers them
    from pebblesim.language.problems import PROBLEMS
    from pebblesim.language.registry import of_problem

    found = {name: of_problem(name) for name in PROBLEMS}
    if as_json:
        _print_json({name: [each.name for each in algorithms] for name, algorithms in found.items()})
        return
    for name, algorithms in found.items():
        solves = PROBLEMS[name]
        print(f"{name}: {', '.join(solves.inputs)} → {', '.join(solves.outputs)}  (sizes {', '.join(solves.dims)})")
        for each in algorithms:
            needs = f"  needs {', '.join(each.kept)}" if each.kept else ""
            print(f"  {each.name:<31} {each.summary}{needs}")


@app.command(epilog="Example: [bold]pebblesim formula small-cache[/bold]")
def formula(
    schedule: ScheduleName,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    mask: Annotated[
        str | None,
        typer.Option("--mask", help="causal, window:W or band:W; any: by how many tiles it leaves.", metavar="MASK"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Derive the exact closed forms of a schedule: I/O, reads, writes and peak words."""
    import pebblesim as ps
    from pebblesim.language.registry import get

    if latex and as_json:
        raise UsageError("--latex and --json print the same in two ways; choose one.")
    algorithm, closed = get(schedule), ps.formula(schedule, mask)
    lines = {"reads": closed.reads, "writes": closed.writes, "io": closed.io, "peak_words": closed.peak_words}
    if as_json:
        texts = {name: str(expr) for name, expr in lines.items()}
        _print_json({"schedule": algorithm.name, **texts, "blocks": dict(algorithm.paper), "source": algorithm.source})
        return
    if latex:
        import sympy

        for name, expr in lines.items():
            print(rf"\text{{{name.replace('_', ' ')}}} &= {sympy.latex(expr)} \\")
        return
    from pebblesim.notation import written

    print(f"{algorithm.name} ({algorithm.source})" + (f", mask {mask}" if mask else ""))
    for name, expr in lines.items():
        print(f"  {'I/O' if name == 'io' else name.replace('_', ' '):<11}= {written(expr)}")
    for name, rule in algorithm.paper.items():
        print(f"  {name:<11}= {rule} in the source; by default the largest that is feasible")
    print("by phase")
    wide = 1 + max(10, *map(len, closed.by_phase))
    for name, (reads, writes) in closed.by_phase.items():
        print(f"  {name:<{wide}}= {written(reads + writes)}")


@app.command(epilog="Example: [bold]pebblesim show large-cache[/bold]")
def show(schedule: ScheduleName, as_json: AsJson = False) -> None:
    """Print a schedule as pseudo-code."""
    import pebblesim as ps
    from pebblesim.language.registry import get

    algorithm = get(schedule)
    if as_json:
        _print_json({"schedule": algorithm.name, "source": algorithm.source, "text": ps.show(schedule)})
        return
    print(f"{algorithm.name}: {algorithm.summary}  ({algorithm.source})")
    print(f"reads {', '.join(algorithm.inputs)}; blocks {', '.join(algorithm.blocks) or 'none'}")
    print(ps.show(schedule))


@app.command(epilog="Example: [bold]pebblesim play small-cache -n 8 -d 4 -M 24[/bold]")
def play(
    schedule: ScheduleName,
    n: N = None,
    d: D = None,
    size: Sizes = None,
    m: M = ...,  # type: ignore[assignment]
    dtype: Dtype = None,
    rules: Annotated[str, typer.Option("--rules", help="hong-kung, replace or no-recompute.")] = "hong-kung",
    summation: Summation = "chain",
    blocks: Blocks = "fit",
    block: Block = None,
    save: Annotated[Path | None, typer.Option("--save", help="Keep the moves: .npy (packed) or .txt (words).")] = None,
    mask: MaskText = None,
    as_json: AsJson = False,
) -> None:
    """Play a schedule move by move as a red-blue pebble game, under a referee."""
    import pebblesim as ps

    with _progress("playing") as progress:
        played = ps.play(
            schedule,
            M=parse_words(m, dtype),
            rules=rules,
            summation=summation,
            blocks=_rule(blocks, block),
            save=None if save is None else str(save),
            strict=False,
            progress=progress,
            mask=mask,
            **_dims(n, d, size),
        )
    if as_json:
        _print_json(played.to_dict())
    else:
        print(played)
    raise typer.Exit(0 if played.passed else 1)


@app.command(epilog="Example: [bold]pebblesim watch small-cache -n 8 -d 4 -M 24 -o game.html[/bold]")
def watch(
    schedule: ScheduleName,
    n: N = None,
    d: D = None,
    size: Sizes = None,
    m: M = ...,  # type: ignore[assignment]
    dtype: Dtype = None,
    rules: Annotated[str, typer.Option("--rules", help="hong-kung, replace or no-recompute.")] = "hong-kung",
    summation: Summation = "chain",
    blocks: Blocks = "fit",
    block: Block = None,
    mask: MaskText = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; SCHEDULE.html by default.", metavar="FILE")
    ] = None,
) -> None:
    """Write a page that replays a game in any browser, without a network."""
    from pebblesim.jobs.recording import record
    from pebblesim.language.registry import get
    from pebblesim.replay import MOST_MOVES, save

    path = output or Path(f"{get(schedule).name}.html")
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"cannot tell a format from {path.name!r}; a page ends in .html.")
    game = record(
        schedule,
        M=parse_words(m, dtype),
        rules=rules,
        summation=summation,
        blocks=_rule(blocks, block),
        mask=mask,
        most=MOST_MOVES,
        **_dims(n, d, size),
    )
    save(game, path)
    print(f"{game.title}\n{game.game}\nwritten   {path}")
    raise typer.Exit(0 if game.game.complete else 1)


@app.command(epilog="Example: [bold]pebblesim graph backward -n 4 -d 2 --summation balanced -o backward.dot[/bold]")
def graph(
    problem: Annotated[str, typer.Argument(help="A problem, see `pebblesim list`.", autocompletion=_complete_problem)],
    n: N = None,
    d: D = None,
    size: Sizes = None,
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
    dims = problem_dims(solves, _dims(n, d, size))
    options = {name: _option(value) for name, value in _pairs(option, "--option")}
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
        _print_json({"problem": problem, **dims, "summation": summation, **options, **plan._asdict()})
        return
    print(f"{problem}, {', '.join(f'{k} = {v:,}' for k, v in dims.items())}, summation {summation}")
    print(f"vertices  {plan.vertices:,}\nedges     {plan.edges:,}\nmemory    {plan.bytes:,} bytes")
    if output is not None:
        print(f"written   {output}")


@app.command(epilog="Example: [bold]pebblesim optimum matmul --size m=2 --size k=2 --size n=2 -M 4[/bold]")
def optimum(
    problem: Annotated[str, typer.Argument(help="A problem, see `pebblesim list`.", autocompletion=_complete_problem)],
    n: N = None,
    d: D = None,
    size: Sizes = None,
    m: M = ...,  # type: ignore[assignment]
    dtype: Dtype = None,
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

    options = {name: _option(value) for name, value in _pairs(option, "--option")} | _dims(n, d, size)
    cdag = ps.graph(problem, summation=summation, mask=mask, **options)
    most = None if states is None else parse("--states", states)
    found = ps.optimum(cdag, M=parse_words(m, dtype), rules=rules, states=most)
    if save is not None:
        with saving(save, [found.moves], cdag.describe):
            pass
    game = referee(cdag, found.M, [found.moves], rules)
    if as_json:
        _print_json({"problem": problem, **options, **found.to_dict(), "complete": game.complete})
        return
    print(f"{problem}, {', '.join(f'{name} = {value}' for name, value in options.items())}: {cdag}")
    print(found)
    print(f"reads, writes   {game.reads:,}, {game.writes:,} words; the referee finds the game legal and complete")


@app.command(epilog="Example: [bold]pebblesim bounds -n 4096 -d 64 -M 64k[/bold]")
def bounds(
    n: N = None,
    d: D = None,
    size: Sizes = None,
    m: Annotated[
        str | None,
        typer.Option("-M", help="Cache, as for count; without it, the bounds at several M about d².", metavar="WORDS"),
    ] = None,
    dtype: Dtype = None,
    problem: Problem = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule", help="Bounds on its way of computing: what it keeps, what it regroups.", metavar="NAME"
        ),
    ] = None,
    mask: MaskText = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", help="Z, for every mask with so many allowed pairs.", metavar="Z")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every bound of a problem, in symbols and as numbers: Θ, and lower bounds with constants."""
    from pebblesim.jobs.bounding import bounds as bound
    from pebblesim.language.registry import get

    problem = problem or ("backward" if schedule is None else get(schedule).problem.name)
    dims, Z = _dims(n, d, size), None if pairs is None else parse("--pairs", pairs)

    def at(M: int) -> Bounds:
        return bound(problem, M=M, schedule=schedule, mask=mask, pairs=Z, **dims)

    one = at(1 if m is None else parse_words(m, dtype))
    if m is not None:
        several = [one]
    else:
        square = min(one.dims.get(side, one.dims["n"]) for side in ("d", "k", "m")) ** 2
        several = [at(M) for M in sorted({max(4, square * 4**k // 256) for k in range(9)})]
    if as_json:
        results = [each.to_dict() for each in several]
        _print_json(results[0] if m is not None else {"bounds": results})
        return
    sizes = ", ".join(f"{name} = {value:,}" for name, value in one.dims.items())
    sizes += "" if one.pairs is None else f", {one.pairs:,} allowed pairs"
    sizes += "" if m is None else f", M = {one.M:,} words"
    under = "" if one.schedule is None else f", as {one.schedule} computes it"
    if m is not None:
        rows = [("Θ", one.theta.expr, "", f"{one.theta_value:,.0f}", "")]
        for each in one.lower:
            form = each.form or (each.forms[0] if each.forms else None)
            value = "" if each.why_not else f"{each.value:,}"
            mark = "largest" if each is one.best else ""
            rows.append((each.name, form.expr if form else "", form.domain if form else "", value, mark))
        _print_table(f"{one.problem}{under}: {sizes}", ("bound", "closed form", "for", "words", ""), rows, left=3)
    else:
        forms = [("Θ", one.theta.expr, "")]
        forms += [(each.name, form.expr, form.domain) for each in one.lower for form in each.forms]
        _print_table(f"{one.problem}{under}: {sizes}", ("bound", "closed form", "for"), forms, left=3)
        names = [each.name for each in one.lower]
        lines = [
            (
                f"{each.M:,}",
                *("" if bound.why_not else f"{bound.value:,}" for bound in each.lower),
                each.best.name,
                f"{each.theta_value:,.0f}",
            )
            for each in several
        ]
        _print_table("in words", ("M", *names, "largest", "Θ"), lines)
    for each in one.lower:
        print(f"{each.source}" + (f"; not here: {each.why_not}" if m is not None and each.why_not else ""))
    print(f"Θ: {one.theta.source}")
    print("All lower bounds hold with recomputation, and for every summation tree. A value may exceed its closed form.")


@app.command(epilog="Example: [bold]pebblesim gaps -n 65536 -d 128[/bold]")
def gaps(
    n: N = None,
    d: D = None,
    size: Sizes = None,
    m: Annotated[
        list[str] | None, typer.Option("-M", help="At these M; all along the range by default.", metavar="WORDS")
    ] = None,
    dtype: Dtype = None,
    problem: Problem = None,
    blocks: Blocks = "fit",
    steps: Annotated[int, typer.Option("--steps", min=1, max=64, help="Without -M: how many to a doubling.")] = 1,
    as_json: AsJson = False,
) -> None:
    """How far the best schedule is from the best lower bound, over the whole range of M."""
    from pebblesim.jobs.bounding import gaps as gaps_of

    given = [parse_words(words, dtype) for words in m or ()]
    found = gaps_of(problem or "backward", M=given or None, blocks=blocks, steps=steps, **_dims(n, d, size))
    if as_json:
        _print_json(found.to_dict())
        return
    rows = [
        (
            row.schedule,
            row.lower_bound.name,
            f"{row.M:,}",
            f"{row.io:,}",
            f"{row.lower_bound.value:,}",
            f"{row.gap:.3f}",
        )
        for row in found.rows
    ]
    sizes = ", ".join(f"{name} = {value:,}" for name, value in found.dims.items())
    _print_table(
        f"{found.problem}: {sizes}", ("best schedule", "bound", "M", "I/O", "lower bound", "gap"), rows, left=2
    )
    print(f"largest gap: {found.worst.gap:.3f} at M = {found.worst.M:,} ({found.worst.schedule})")


@app.command(epilog="Example: [bold]pebblesim crossover -n 4096 -d 64 -o crossover.png[/bold]")
def crossover(
    schedules: Annotated[
        list[str] | None,
        typer.Argument(
            help="Pairs of schedules; the paper's two algorithms, and ours, if none.", autocompletion=_complete_schedule
        ),
    ] = None,
    n: N = None,
    d: D = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw I/O over M: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the exact M from which on one schedule moves fewer words than another, and prove the exponent."""
    from pebblesim.jobs.crossings import crossover as find, sweep

    if output is not None:
        from pebblesim.plots.style import check

        check(output)
    sizes: dict[str, Any] = dict(_dims(n, d, None))
    found = find(*schedules or (), **sizes)
    if output is not None:
        from pebblesim.plots.crossover import io_over_M
        from pebblesim.plots.style import save

        data = sweep(found)
        save(lambda figure: io_over_M(data, figure.subplots()), output)
    if as_json:
        _print_json(found.to_dict())
    else:
        print(found)
        if output is not None:
            print(f"written {output}")


@app.command(epilog="Example: [bold]pebblesim verify[/bold]")
def verify(
    claims: Annotated[
        list[str] | None, typer.Argument(help="Parts of names of claims, e.g. C.9; all claims if none.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Try more and larger samples: minutes, not seconds.")] = False,
    errata: Annotated[
        Path | None, typer.Option("--errata", help="Write the list of errata to a file instead.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge the claims of the literature and our own: proved, holding on the tested range, or failing."""
    from pebblesim import claims as judges

    if errata is not None and (claims or full or as_json):
        raise UsageError("--errata writes the whole list with the evidence of the quick run; it takes no other option.")
    with _progress("verifying") as progress:
        report = judges.verify(*claims or (), full=full, progress=progress, errata_only=errata is not None)
    if errata is not None:
        from pebblesim.files import whole_file

        with whole_file(errata) as unfinished:
            unfinished.write_text(report.errata, encoding="utf-8")
    elif as_json:
        _print_json(report.to_dict())
    else:
        print(report)
    raise typer.Exit(1 if report.failed else 0)


@app.command(epilog="Example: [bold]pebblesim theorems --table-1[/bold]")
def theorems(
    table_1: Annotated[bool, typer.Option("--table-1", help="Table 1 of Li et al. instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what the literature states, with domain and source."""
    from dataclasses import asdict

    from pebblesim.growth.tropical import parse
    from pebblesim.notation import written
    from pebblesim.theory.literature import STATEMENTS, TABLE_1, region_in_words

    def bound(relation: str, expr: str) -> str:
        return f"{relation}({written(parse(expr))})"

    if table_1:
        rows, found = [], []
        for way, side, large, small in TABLE_1:
            O = "O" if side == "upper" else "Ω"
            cells = (bound(O, large.bound), large.of.title, bound(O, small.bound), small.of.title)
            rows.append((f"{way}, {side} bound", *cells))
            found.append({"attention": way, "bound": side, "large_cache": large.bound, "small_cache": small.bound})
        if as_json:
            _print_json({"rows": found})
            return
        _print_table("Table 1 of Li et al.", ("attention", "M ≥ d²", "source", "M ≤ d²", "source"), rows, left=5)
    elif as_json:
        _print_json({"rows": [asdict(each) for each in STATEMENTS]})
    else:
        for each in STATEMENTS:
            lines = [f"{each.title}: {each.about or each.note}"]
            if each.expr:
                lines.append(f"{bound(each.relation, each.expr)} for {region_in_words(each.domain)}; {each.assumes}")
            lines += [each.note] if each.about and each.note else []
            print("\n  ".join(lines))


def _option(value: str) -> int | bool | str:
    """The value of a graph's option: a whole number, true or false, or a word."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if value.isdecimal() else value


def _dims(n: str | None, d: str | None, sizes: list[str] | None) -> dict[str, int]:
    dims = {name: parse(name, value) for name, value in (("n", n), ("d", d)) if value is not None}
    named = {name: parse(name, value) for name, value in _pairs(sizes, "--size")}
    if dims and named:
        raise UsageError("give the sizes with -n and -d, or each by its name with --size, not both.")
    return dims | named


def _rule(rule: str, sizes: list[str] | None) -> str | Mapping[str, int]:
    if not sizes:
        return rule
    if rule != "fit":
        raise UsageError(f"--blocks {rule} chooses all blocks; leave it out to choose some yourself with --block.")
    return {name: parse(name, value) for name, value in _pairs(sizes, "--block")}


def _pairs(given: list[str] | None, option: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} {text!r} was given; it takes NAME=VALUE.")
        if name in seen:
            raise UsageError(f"{option} {name}=… was given twice.")
        seen.add(name)
        yield name, value


def _print_json(result: Mapping[str, Any]) -> None:
    print(json.dumps(result, ensure_ascii=False))


def _print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    spare: Sequence[str] = (),
) -> None:
    """A table; the first `left` columns are words, the others numbers.

    Nothing is ever cut off: on a narrow terminal the `spare` columns are left out, one after the other.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shown = list(range(len(columns)))
    dropped: list[str] = []
    while True:
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
        for number in shown:
            table.add_column(columns[number], justify="left" if number < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[number] for number in shown))
        width = Console(width=100_000).measure(table).maximum
        if not console.is_terminal or width <= console.width or len(dropped) == len(spare):
            break
        dropped.append(spare[len(dropped)])
        shown = [number for number in shown if columns[number] not in dropped]
    Console(width=max(width, 1), soft_wrap=True).print(table)
    if dropped:
        print(f"(left out on a terminal this narrow: {', '.join(dropped)})")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float], None] | None]:
    """A progress bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def main() -> None:
    """Run the command line; a bad value is one sentence, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without ⌈ and √ shall not stop us
    try:
        app()
    except PebblesimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(0)
