"""Any DAG: `pebble`, `optimum`, `judge`, and `dags` for a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pebblesim.cli.completion import all_rules, rules_of_optima, sources
from pebblesim.cli.options import (
    AsJson,
    Cache,
    Group,
    MaskText,
    Option,
    Sizes,
    Summation,
    argument,
    command,
    family,
    option,
    option_value,
    output_file,
    pairs,
)
from pebblesim.cli.printing import print_json, print_rules_if_wide, say, show
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.sizes import parse_bytes, parse_size, quantity

if TYPE_CHECKING:
    from pebblesim import Cdag
    from pebblesim.dags.search import Pebbling

app = family()

FEW = 40
"""Vertices of a graph whose least I/O `optimum` mostly proves in seconds."""


SourceName = Annotated[
    str,
    argument(
        "A graph: a file, a generator such as fft or pyramid, or a problem (see `pebblesim list`).",
        "FILE|GENERATOR|PROBLEM",
        values=sources,
    ),
]
Rules = Annotated[str, option("--rules", "hong-kung, no-recompute, replace or partial.", values=all_rules)]
Save = Annotated[Path | None, output_file("--save", "Save the moves to a file: .npy (packed) or .txt (text).")]
Seconds = Annotated[str | None, option("--seconds", "Stop after this many seconds.", "S")]
Format = Annotated[
    str | None, option("--format", "File format, if the file name does not show it: hyperdag, dot, converter, …")
]


@dataclass(frozen=True)
class _GraphOptions(Group):
    """Options that build a graph, besides its name."""

    summation: Summation = "chain"
    option: Option = None
    mask: MaskText = None
    format: Format = None


@dataclass(frozen=True)
class GraphChoice(_GraphOptions, Sizes):
    """A graph from a file, a generator or a problem."""

    def is_file(self, name: str) -> bool:
        """Whether a graph of this name is read from a file."""
        from pebblesim.dags.formats import SUFFIXES

        return self.format is not None or Path(name).suffix.lower() in SUFFIXES or Path(name).is_file()

    def graph(self, name: str) -> tuple[str, Cdag]:
        """Return (the graph's title, the graph).

        Raises:
            UnknownName: `name` is not a file, a generator or a problem.
            UsageError: `name` is a folder.
        """
        import pebblesim as ps
        from pebblesim.dags.generators import GENERATORS
        from pebblesim.language.problems import PROBLEMS

        options: dict[str, Any] = {key: option_value(value) for key, value in pairs(self.option, "--option")}
        options |= self.dims
        path = Path(name)
        if name and path.is_dir() and name not in {*PROBLEMS, *GENERATORS}:
            raise UsageError(f"{name} is a folder; name one of its files, or see `pebblesim dags {name}` for them all.")
        if self.is_file(name):
            if options or self.mask or self.summation != "chain":
                raise UsageError(f"{name} is a file; leave out sizes and the options of problems.")
            return path.name, ps.load_graph(path, self.format)
        if name in PROBLEMS and not (name in GENERATORS and set(options) == {"n"}):
            graph = ps.graph(name, summation=self.summation, mask=self.mask, **options)
        elif name in GENERATORS:
            if self.mask or self.summation != "chain":
                raise UsageError(f"{name} is a generator; leave out --mask and --summation.")
            graph = ps.generate(name, **options)
        else:
            raise UnknownName("file, generator or problem", name, {*PROBLEMS, *GENERATORS})
        return ", ".join([name, *(f"{key} = {value}" for key, value in options.items())]), graph


class Known(NamedTuple):
    """A bound of the literature on the I/O of a family of graphs."""

    bound: str
    source: str

    def __str__(self) -> str:
        return f"{self.bound} ({self.source})"


def literature(name: str, made: GraphChoice) -> Known | None:
    """The bound of the literature for a generator's graphs; None for a file or a problem."""
    from pebblesim.dags.generators import GENERATORS
    from pebblesim.language.problems import PROBLEMS

    if name in PROBLEMS or name not in GENERATORS or made.is_file(name):
        return None
    return Known(GENERATORS[name].bound, GENERATORS[name].source)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"--seconds {text!r} was given; it takes a number of seconds, 0 or more.")
    return value


@command(app, example="pebblesim pebble fft -n 64 -M 16 --seconds 5")
def pebble(
    source: SourceName,
    *,
    made: GraphChoice,
    cache: Cache,
    rules: Rules = "hong-kung",
    seconds: Annotated[
        str | None,
        option("--seconds", "Seconds to search for a better game, or with --steps for bounds; 10 by default.", "S"),
    ] = None,
    steps: Annotated[
        int | None,
        option("--steps", "Search for so many steps instead: the same seed then gives the same game.", "K", min=1),
    ] = None,
    seed: Annotated[int, option("--seed", "Seed of the random choices.", min=0)] = 0,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Find a good game on any DAG; print its I/O, the best lower bound, and the gap."""
    import pebblesim as ps

    name, graph = made.graph(source)
    _check_save(save, graph, rules)
    with progress_bar("pebbling") as line:

        def on_progress(done: float, io: int, bound: int) -> None:
            line(done, f"I/O {io:,}, bound {bound:,}")

        limit = 10.0 if seconds is None else _seconds(seconds)
        pebbling = ps.pebble(
            graph, M=cache.words, rules=rules, seconds=limit, steps=steps, seed=seed, progress=on_progress
        )
    with _saved(save, graph, pebbling.moves, rules) as written:
        if as_json:
            bounds = [bound.to_dict() for bound in pebbling.bounds]
            print_json({"graph": name, **pebbling.to_dict(), "bounds": bounds})
        else:
            _tell(name, pebbling, literature(source, made), written)


def _tell(name: str, pebbling: Pebbling, known: Known | None, written: str) -> None:
    """Print a game, its bounds, and what to do next."""
    from pebblesim.dags.optimum_states import searchable

    graph = pebbling.graph
    say(f"{name}: {graph}\n{pebbling}")
    for bound in pebbling.bounds:
        say(f"  {bound.name:<14}{bound.why_not or quantity(bound.value, 'word')}")
    if known is not None:
        say(f"known     {known}")
    if graph.vertices <= FEW and searchable(graph, pebbling.rules) and pebbling.gap > 1:
        say(f"{graph.vertices} vertices are few: `pebblesim optimum` with the same sizes searches for the proven least")
    say(*filter(None, [written]))
    print_rules_if_wide(pebbling.rules)


def _check_save(path: Path | None, graph: Cdag, rules: str) -> None:
    """Refuse a file that cannot hold the game, before the search."""
    from pebblesim.dags.judging import check_game_file

    if path is not None:
        check_game_file(path, graph, rules)


@contextmanager
def _saved(path: Path | None, graph: Cdag, moves: Any, rules: str) -> Iterator[str]:
    """Save the moves of a game, if a file was named, before its result is printed: a reader may stop reading.

    It yields the line that says so. If saving fails, that is raised after the result, so that it is not lost.
    """
    from pebblesim.dags.judging import save_game

    failed = None
    try:
        if path is not None:
            save_game(path, graph, moves, rules)
    except UsageError as error:
        failed = error
    yield "" if path is None or failed else f"written   {path}"
    if failed is not None:
        raise failed


@command(app, example="pebblesim optimum matmul --size m=2 --size k=2 --size n=2 -M 4")
def optimum(
    source: SourceName,
    *,
    made: GraphChoice,
    cache: Cache,
    rules: Annotated[
        str, option("--rules", "hong-kung, no-recompute or partial.", values=rules_of_optima)
    ] = "hong-kung",
    seconds: Seconds = None,
    memory: Annotated[
        str, option("--memory", "Stop when the states of the search take this much memory.", "BYTES")
    ] = "4GiB",
    states: Annotated[
        str | None, option("--states", "Stop at this number of states, whatever the memory.", "N")
    ] = None,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Search all games on a graph for the least I/O. Ctrl-C stops the search and prints the interval reached."""
    import pebblesim as ps
    from pebblesim.dags.optimum_states import searchable

    name, graph = made.graph(source)
    _check_save(save, graph, rules)
    most = None if states is None else parse_size("--states", states)
    room = parse_bytes("--memory", memory) if memory[-1:] == "B" else parse_size("--memory", memory)  # a byte each
    with progress_bar("searching") as line:

        def on_progress(done: float, bound: int, io: int, kept: int) -> None:
            line(done, f"{bound:,} to {quantity(io, 'word')}, {quantity(kept, 'state')}")

        limit = None if seconds is None else _seconds(seconds)
        result = ps.optimum(
            graph, M=cache.words, rules=rules, seconds=limit, memory=room, states=most, progress=on_progress
        )
    game = ps.referee(graph, result.M, [result.moves], rules)
    with _saved(save, graph, result.moves, rules) as written:
        if as_json:
            print_json({"graph": name, **result.to_dict(), "complete": game.complete})
            return
        say(f"{name}: {graph}\n{result}")
        say(f"reads, writes   {game.reads:,}, {game.writes:,} words; the referee judges the game legal and complete")
        if not result.proven and searchable(graph, rules):
            say("most of the time went into the proof; `pebblesim pebble` searches for a better game alone")
        say(*filter(None, [written.replace("written", "written      ")]))
        print_rules_if_wide(rules)


@command(app, example="pebblesim judge graph.hdag game.npy -M 8")
def judge(
    source: SourceName,
    game: Annotated[Path, argument("A saved game: .npy, .txt, or OneStopParallel's text.")],
    *,
    made: GraphChoice,
    cache: Cache,
    rules: Annotated[
        str | None,
        option("--rules", "hong-kung (the default), no-recompute, replace or partial.", values=all_rules),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a saved game on a graph; exit with 1 if it is illegal or incomplete."""
    import pebblesim as ps

    name, graph = made.graph(source)
    outcome = ps.judge(graph, game, M=cache.words, rules=rules or "hong-kung")
    if as_json:
        print_json({"graph": name, **outcome.to_dict()})
    else:
        say(outcome)
        if rules is None and not outcome.complete:
            say("A saved game does not store its rules; these are the default, and --rules RULES names those it has.")
    raise typer.Exit(0 if outcome.complete else 1)


@command(app, example="pebblesim dags my-graphs --seconds 2 -o table.csv")
def dags(
    folder: Annotated[Path, argument("A folder of graphs; of one with a costs.csv, the graphs and M of its rows.")],
    *,
    rules: Rules = "no-recompute",
    seconds: Annotated[str, option("--seconds", "Seconds for each row of the table.", "S")] = "5",
    output: Annotated[
        Path | None, output_file("--output -o", "Save the table to a file: .csv, .json or .parquet.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pebble each graph of a folder at several M.

    The table has the game found, the bound, and the costs of others from costs.csv.
    """
    from pebblesim.core.tables import Sheet, Table, format_of
    from pebblesim.dags.comparing import rows, summary

    if output is not None:
        format_of(output)
    table = []
    with progress_bar("pebbling") as progress:
        table = list(rows(folder, rules, _seconds(seconds), progress))
    columns = {name: [row[name] for row in table] for name in table[0]}
    if output is not None:
        Table(columns).save(output)
    if as_json:
        print_json({"rows": table})
        return
    shown = [name for name in columns if any(value is not None for value in columns[name])]
    show(Sheet(shown, [[row[name] for name in shown] for row in table], shown[:2]))
    say(summary(table))
    if output is not None:
        say(f"written   {output}")
