"""The pictures of results, for their method `plot`."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from pebblesim.api.bounding import Bounds
from pebblesim.api.crossover import sweep
from pebblesim.api.crossover_result import Crossover
from pebblesim.api.gaps import Gaps
from pebblesim.api.play import Played
from pebblesim.cachesim.result import CacheTable
from pebblesim.core.errors import UsageError
from pebblesim.counting.compare import Comparison
from pebblesim.counting.count import Counted
from pebblesim.dags.optimum import Optimum
from pebblesim.dags.search import Pebbling
from pebblesim.views.plots import bounds, caches, gaps, words
from pebblesim.views.plots.crossover import io_over_M
from pebblesim.views.plots.game import occupancy
from pebblesim.views.plots.style import titled
from pebblesim.views.recording import record, record_moves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@singledispatch
def draw(result: object, figure: Figure) -> None:
    """Draw a result on a figure.

    Raises:
        UsageError: this kind of result has no picture, or it is empty.
    """
    drawn = ", ".join(sorted(kind.__name__ for kind in draw.registry if kind is not object))
    raise UsageError(f"there is no picture of results such as {type(result).__name__}; there are some of {drawn}.")


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


@draw.register(Bounds)
def _(result: Bounds, figure: Figure) -> None:
    bounds.bounds(result, figure.subplots())


@draw.register(Played)
def _(result: Played, figure: Figure) -> None:
    game = record(
        result.algorithm,
        M=result.game.M,
        rules=result.game.rules,
        summation=result.summation,
        blocks=result.blocks,
        mask=result.mask,
        **result.dims,
    )
    titled(occupancy(game, figure.subplots()), game.title)


@draw.register(Pebbling)
@draw.register(Optimum)
def _(result: Pebbling | Optimum, figure: Figure) -> None:
    game = record_moves(f"I/O {result.io:,}", result.graph, result.moves, M=result.M, rules=result.rules)
    titled(occupancy(game, figure.subplots()), game.title)
