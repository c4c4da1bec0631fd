"""The file that a command draws into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pebblesim.cli.options import Group, in_its_place, option
from pebblesim.cli.printing import say
from pebblesim.views.plots.style import check, save


def _or_of_the_command(context: typer.Context, path: Path | None) -> Path | None:
    """The file that was named, or one that is called as the command."""
    return in_its_place(context, path or Path(f"{context.info_name}.png"))


@dataclass(frozen=True)
class Drawing(Group):
    """The file of a picture; its name is checked before anything is computed for it."""

    output: Annotated[
        Path | None,
        option(
            "--output -o",
            "The picture: .png, .svg or .pdf; by default the command's name, .png.",
            "FILE",
            callback=_or_of_the_command,
        ),
    ] = None

    @property
    def path(self) -> Path:
        """The file."""
        assert self.output is not None
        return self.output

    def __post_init__(self) -> None:
        check(self.path)

    def save(self, draw: Callable[[Any], Any], height: float) -> None:
        """Let `draw` fill an empty figure of so many inches from top to bottom, save it, and say so."""
        save(draw, self.path, height)
        say(f"written {self.path}")
