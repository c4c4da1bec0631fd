"""The pictures of results, for their method `plot`."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from pebblesim.errors import UsageError
from pebblesim.jobs.bounding import Gaps
from pebblesim.jobs.cache import CacheTable
from pebblesim.jobs.compare import Comparison
from pebblesim.jobs.count import Counted
from pebblesim.jobs.crossings import Crossover
from pebblesim.jobs.crossover import sweep
from pebblesim.plots import caches, gaps, words
from pebblesim.plots.crossover import io_over_M

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@singledispatch
def draw(result: object, figure: Figure) -> None:
    """Draw a result on a figure.

    Raises:
        UsageError: this kind of result has no picture, or it is empty.
    """
    drawn = ", ".join(sorted(kind.__name__ for kind in draw.registry if kind is not object))
    raise UsageError(f"a {type(result).__name__} has no picture; pictures exist of {drawn}.")


@draw.register(Counted)
def _(result: Counted, figure: Figure) -> None:
    words.figure([result], figure)


@draw.register(Comparison)
def _(result: Comparison, figure: Figure) -> None:
    fitting = [row for row in result if row.feasible]
    if not fitting:
        raise UsageError(f"no schedule fits in M = {result.M:,} words, so there is nothing to draw.")
    words.figure(fitting, figure)


@draw.register(Gaps)
def _(result: Gaps, figure: Figure) -> None:
    gaps.figure([result], figure)


@draw.register(Crossover)
def _(result: Crossover, figure: Figure) -> None:
    io_over_M(sweep(result), figure.subplots())


@draw.register(CacheTable)
def _(result: CacheTable, figure: Figure) -> None:
    caches.figure(result.rows, figure)
