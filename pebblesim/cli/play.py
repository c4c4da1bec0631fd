"""Play games: `play`, `watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pebblesim.cli.options import (
    AsJson,
    GameChoice,
    ScheduleName,
    command,
    family,
)
from pebblesim.cli.printing import print_json, print_rules, progress_bar, say
from pebblesim.errors import UsageError

app = family()


@command(app, example="pebblesim play small-cache -n 8 -d 4 -M 24")
def play(
    schedule: ScheduleName,
    *,
    game: GameChoice,
    save: Annotated[
        Path | None, typer.Option("--save", help="Save the moves to a file: .npy (packed) or .txt (text).")
    ] = None,
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
        )
    if as_json:
        print_json(played.to_dict())
    else:
        say(played)
        print_rules(game.rules)
    raise typer.Exit(0 if played.passed else 1)


@command(app, example="pebblesim watch small-cache -n 8 -d 4 -M 24 -o game.html")
def watch(
    schedule: ScheduleName,
    *,
    game: GameChoice,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file; SCHEDULE.html by default.", metavar="FILE")
    ] = None,
) -> None:
    """Write an HTML page that replays a game in any browser, offline."""
    from pebblesim.jobs.recording import record
    from pebblesim.language.registry import get
    from pebblesim.replay import MOST_MOVES, save

    path = output or Path(f"{get(schedule).name}.html")
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"unknown file format: {path.name!r}; the name of a page must end in .html.")
    recording = record(schedule, most=MOST_MOVES, **game.arguments)
    save(recording, path)
    say(f"{recording.title}\n{recording.game}\nwritten   {path}")
    raise typer.Exit(0 if recording.game.complete else 1)
