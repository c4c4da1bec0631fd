"""The file that a command draws into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pebblesim.cli.options import Group, output_file
from pebblesim.cli.printing import say
from pebblesim.views.plots.style import check, save


@dataclass(frozen=True)
class Drawing(Group):
    """The file of a picture; its name is checked before anything is computed for it."""

    output: Annotated[Path, output_file("--output -o", "The picture: .png, .svg or .pdf.")]

    def __post_init__(self) -> None:
        check(self.output)

    def save(self, draw: Callable[[Any], Any], size: tuple[float, float], dpi: float = 160) -> None:
        """Let `draw` fill an empty figure of this size, save it, and say so."""
        save(draw, self.output, size, dpi)
        say(f"written {self.output}")
