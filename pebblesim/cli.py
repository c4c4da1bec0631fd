"""The command line. Exit codes: 0 fine, 1 a check failed, 2 bad usage or infeasible."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pebblesim.errors import PebblesimError, UsageError
from pebblesim.sizes import parse, parse_words

if TYPE_CHECKING:
    from pebblesim.api import Counted

app = typer.Typer(
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
    from pebblesim.registry import SCHEDULES

    return [name for name in SCHEDULES if name.startswith(incomplete)]


def _complete_problem(incomplete: str) -> list[str]:
    from pebblesim.problems import PROBLEMS

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
Dtype = Annotated[str | None, typer.Option("--dtype", help="Type of a word, if -M is in bytes: float32, bfloat16, …")]
Blocks = Annotated[str, typer.Option("--blocks", help="Block rule: fit, paper or best.")]
Block = Annotated[list[str] | None, typer.Option("--block", help="A block size, e.g. B_r=128.", metavar="NAME=SIZE")]
Summation = Annotated[str, typer.Option("--summation", help="Summation trees: chain, balanced or blocked:b.")]
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
    as_json: AsJson = False,
) -> None:
    """Count reads, writes and peak occupancy of schedules, exactly, for any sizes."""
    from pebblesim import api
    from pebblesim.registry import get

    dims, words, rule = _dims(n, d, size), parse_words(m, dtype), _rule(blocks, block)
    names = list(dict.fromkeys(get(name).name for name in schedules or ()))
    problem = problem or (get(names[0]).problem.name if names else "backward")
    if len(names) == 1 and problem == get(names[0]).problem.name:
        rows = [api.count(names[0], M=words, blocks=rule, summation=summation, **dims)]
    else:
        rows = api.compare(names, problem_name=problem, M=words, blocks=rule, summation=summation, **dims)
    first = rows[0]
    values = {**first.dims, "M": words}
    nothing_fits = rule in ("fit", "best") and not any(row.feasible for row in rows)
    if as_json:
        value = first.bound_value  # as a whole number where a float would lose digits, or overflow
        bound = {"expr": first.bound.expr, "value": float(value) if value < 2**53 else int(value)}
        lower = {"value": first.lower_bound.value, "source": first.lower_bound.source}
        head = {"problem": first.problem, **values, "blocks": rule, "bound": bound, "lower_bound": lower}
        _print_json({**head, "rows": [row.to_dict() for row in rows]})
        raise typer.Exit(2 if nothing_fits else 0)
    sizes = ", ".join(f"{name} = {value:,}" for name, value in values.items())
    _print_table(
        f"{first.problem}: {sizes} words",
        ("schedule", "blocks", "reads", "writes", "I/O", "peak red", "I/O ÷ Θ", "gap"),
        [_row(row) for row in rows],
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
    print(f"gap: I/O ÷ {first.lower_bound.value:,} words ({first.lower_bound.source})")
    raise typer.Exit(2 if nothing_fits else 0)


def _row(row: Counted) -> tuple[str, ...]:
    sizes = ", ".join(f"{name}={size}" for name, size in row.blocks.items()) or "none"
    fits = "" if row.feasible else " > M"
    if row.least_M is not None:
        return (row.schedule, f"needs M ≥ {row.least_M:,}", "", "", "", f"{row.least_M:,} > M", "", "")
    return (
        row.schedule,
        sizes,
        f"{row.reads:,}",
        f"{row.writes:,}",
        f"{row.io:,}",
        f"{row.peak_red:,}{fits}",
        _ratio(row.bound_ratio),
        _ratio(row.gap),
    )


def _ratio(value: float) -> str:
    return f"{value:,.2f}" if value < 1e6 else f"{value:.3g}"


@app.command("list", epilog="Example: [bold]pebblesim list[/bold]")
def list_schedules(as_json: AsJson = False) -> None:
    """List the problems and their schedules."""
    from pebblesim import schedules  # noqa: F401 - importing it registers them
    from pebblesim.problems import PROBLEMS
    from pebblesim.registry import of_problem

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
    as_json: AsJson = False,
) -> None:
    """Derive the exact closed forms of a schedule: I/O, reads, writes and peak words."""
    from pebblesim import api
    from pebblesim.registry import get

    if latex and as_json:
        raise UsageError("--latex and --json print the same in two ways; choose one.")
    algorithm, closed = get(schedule), api.formula(schedule)
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

    print(f"{algorithm.name} ({algorithm.source})")
    for name, expr in lines.items():
        print(f"  {'I/O' if name == 'io' else name.replace('_', ' '):<11}= {written(expr)}")
    for name, rule in algorithm.paper.items():
        print(f"  {name:<11}= {rule} in the source; by default the largest that is feasible")
    print("by phase")
    wide = max(11, *map(len, closed.by_phase))
    for name, (reads, writes) in closed.by_phase.items():
        print(f"  {name:<{wide}}= {written(reads + writes)}")


@app.command(epilog="Example: [bold]pebblesim show large-cache[/bold]")
def show(schedule: ScheduleName, as_json: AsJson = False) -> None:
    """Print a schedule as pseudo-code."""
    from pebblesim import api
    from pebblesim.registry import get

    algorithm = get(schedule)
    if as_json:
        _print_json({"schedule": algorithm.name, "source": algorithm.source, "text": api.show(schedule)})
        return
    print(f"{algorithm.name}: {algorithm.summary}  ({algorithm.source})")
    print(f"reads {', '.join(algorithm.inputs)}; blocks {', '.join(algorithm.blocks) or 'none'}")
    print(api.show(schedule))


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
    as_json: AsJson = False,
) -> None:
    """Play a schedule move by move as a red-blue pebble game, under a referee."""
    from pebblesim import api

    with _progress("playing") as progress:
        played = api.play(
            schedule,
            M=parse_words(m, dtype),
            rules=rules,
            summation=summation,
            blocks=_rule(blocks, block),
            save=None if save is None else str(save),
            strict=False,
            progress=progress,
            **_dims(n, d, size),
        )
    if as_json:
        _print_json(played.to_dict())
    else:
        print(played)
    raise typer.Exit(0 if played.passed else 1)


@app.command(epilog="Example: [bold]pebblesim graph backward -n 4 -d 2 --summation balanced -o backward.dot[/bold]")
def graph(
    problem: Annotated[str, typer.Argument(help="A problem, see `pebblesim list`.", autocompletion=_complete_problem)],
    n: N = None,
    d: D = None,
    size: Sizes = None,
    summation: Summation = "chain",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", help="Of the graph's builder: order=U, kept=true, row_block=8, …", metavar="NAME=VALUE"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Export: .dot, .graphml, .json (networkx), .hdag or .txt (HyperDAG)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Size a computational DAG with its summation trees, or export it."""
    from pebblesim import graphs
    from pebblesim.api import problem_dims
    from pebblesim.problems import problem as find

    solves = find(problem)
    dims = problem_dims(solves, _dims(n, d, size))
    options = {name: _option(value) for name, value in _pairs(option, "--option")}
    for name in options:
        if name in (*dims, "summation", "outputs"):
            raise UsageError(f"--option {name}=… is not for sizes, sums and outputs; those have options of their own.")
    plan = graphs.plan(problem, summation, **dims, **options)
    if output is not None:
        from pebblesim.graphs.export import save

        save(graphs.build(problem, summation, **dims, **options), output)
    if as_json:
        _print_json({"problem": problem, **dims, "summation": summation, **options, **plan._asdict()})
        return
    print(f"{problem}, {', '.join(f'{k} = {v:,}' for k, v in dims.items())}, summation {summation}")
    print(f"vertices  {plan.vertices:,}\nedges     {plan.edges:,}\nmemory    {plan.bytes:,} bytes")
    if output is not None:
        print(f"written   {output}")


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


from pebblesim.gpu.cli import app as gpu  # noqa: E402 - it takes its options from above

app.add_typer(gpu, name="gpu")


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
