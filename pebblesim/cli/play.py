"""Play games: `play`, `watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pebblesim.cli.completion import boards
from pebblesim.cli.dags import Format, GraphChoice, Save
from pebblesim.cli.options import (
    AsJson,
    GameChoice,
    HeadChoice,
    Option,
    ScheduleName,
    argument,
    check_page,
    command,
    family,
    option,
    output_file,
)
from pebblesim.cli.printing import print_json, print_rules, say
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from pebblesim.views.recording import Recording

app = family()

SEARCH = 2.0
"""Seconds in which a game on a graph is searched for."""


@command(app, example="pebblesim play small-cache -n 8 -d 4 -M 24")
def play(
    schedule: ScheduleName,
    *,
    game: GameChoice,
    heads: HeadChoice,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Play a schedule move by move as a red-blue pebble game; a referee checks each move."""
    import pebblesim as ps

    with progress_bar("playing") as progress:
        played = ps.play(
            schedule,
            save=None if save is None else str(save),
            strict=False,
            progress=progress,
            **game.arguments,
            **heads.arguments,
        )
    if as_json:
        print_json(played.to_dict())
    else:
        say(played)
        print_rules(game.rules)
    raise typer.Exit(0 if played.passed else 1)


@command(app, example="pebblesim watch small-cache row-stationary -n 8 -d 4 -M 24 -o game.html")
def watch(
    names: Annotated[
        list[str],
        argument(
            "What is played: a schedule, or any graph, from a file, a generator or a problem. Two are compared.",
            "NAME [NAME]",
            values=boards,
        ),
    ],
    *,
    game: GameChoice,
    option: Option = None,
    format: Format = None,
    moves: Annotated[
        Path | None, option("--game", "A saved game on the graph, .npy or .txt; by default one is searched.")
    ] = None,
    output: Annotated[Path | None, output_file("--output -o", "Output file; NAME.html by default.")] = None,
) -> None:
    """Write an HTML page that explains, replays and compares games, and lets you play, in any browser, offline."""
    from pebblesim.views.replay import save

    if len(names) > 2:
        raise UsageError(f"{len(names)} names were given; a page shows one game, or two side by side.")
    path = output or Path(f"{'-'.join(Path(name).stem for name in names)}.html")
    check_page(path)
    recordings = [_recorded(name, game, option, format, moves) for name in names]
    save(path, *recordings)
    for recording in recordings:
        say(f"{recording.title}\n{recording.game}")
    say(f"written   {path}")
    print_rules(game.rules)
    raise typer.Exit(0 if all(recording.game.complete for recording in recordings) else 1)


def _recorded(
    name: str, game: GameChoice, option: list[str] | None, format: str | None, moves: Path | None
) -> Recording:
    """The game of a schedule, or one on a graph."""
    from pebblesim.language.registry import SCHEDULES
    from pebblesim.views.recording import record, record_moves
    from pebblesim.views.replay import MOST_MOVES

    if name in SCHEDULES:
        if option or format or moves:
            raise UsageError(f"{name} is a schedule: --option, --format and --game are for graphs.")
        return record(name, most=MOST_MOVES, **game.arguments)
    if game.rule != "fit":
        raise UsageError(f"{name} is no schedule, so it has no blocks to choose; leave --block and --blocks out.")
    choice = GraphChoice(
        n=game.n, d=game.d, size=game.size, summation=game.summation, option=option, mask=game.mask, format=format
    )
    try:
        title, graph = choice.graph(name)
    except UnknownName:
        raise UnknownName("schedule, file, generator or problem", name, boards()) from None
    if moves is None:
        import pebblesim as ps

        with progress_bar("pebbling") as line:

            def on_progress(done: float, io: int, bound: int) -> None:
                line(done, f"I/O {io:,}, bound {bound:,}")

            played = ps.pebble(graph, M=game.words, rules=game.rules, seconds=SEARCH, progress=on_progress).moves
    else:
        from pebblesim.dags.judging import saved

        played = saved(moves, graph)
    return record_moves(title, graph, played, M=game.words, rules=game.rules, most=MOST_MOVES)
