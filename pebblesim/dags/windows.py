"""A lower bound on the I/O of any DAG, also with recomputation: what is read between fronts of it, added up.

docs/dags.md has the proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pebblesim.dags import windows_kernel as kernel
from pebblesim.dags.places_kernel import ancestors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pebblesim.dags.task_data import TaskData

    Ints = NDArray[np.int64]

MOST_VERTICES: Final = 30_000
"""Most vertices of a graph: the ancestors of each take a bit for every vertex."""

MOST_FRONTS: Final = 400
"""Most fronts; of more, so many are chosen evenly."""

SLACKS: Final = (0.0, 0.02, 0.1, 0.3, 1.0)
"""How much shorter than the longest path those through a front may be, as a share of it."""

PATHS: Final = 4
"""Fronts of single vertices that are tried: longest paths."""


def words(data: TaskData, again: bool) -> int:
    """Return the words that any game moves at least; `again`: values may be computed again."""
    start, preds = data.operands
    n, order = len(start) - 1, data.task.topological.astype(np.int64)
    uses = np.repeat(np.arange(n), np.diff(start))[np.argsort(preds, kind="stable")]
    use_start = np.append(0, np.cumsum(np.bincount(preds, minlength=n)))
    inputs = np.flatnonzero(data.is_input & (np.diff(use_start) > 0))
    computed = order[np.diff(use_start)[order] > 0]
    above, best = ancestors(data.task.order, start, preds), 0
    for place in _fronts(order, start, preds):
        places = int(place.max(initial=0)) + 2
        times = place, kernel.behind(order, start, preds, place), kernel.up_to(above, order, place, places)
        need, written = kernel.needed(inputs, use_start, uses, *times, places), 0
        if not again:
            kept = kernel.needed(computed[~data.is_output[computed]], use_start, uses, *times, places)
            written = max(0, int(kept[1:].max(initial=0)) - data.M + 1)
            need = need + kernel.needed(computed, use_start, uses, *times, places)
        best = max(best, int(kernel.most_reads(need, data.M)) + written)
    return best + int((data.is_output & ~data.is_input).sum())


def _fronts(order: Ints, start: Ints, preds: Ints) -> Iterator[Ints]:
    """Yield the fronts of all vertices: by depth along longest paths or all paths, and single vertices of a path."""
    critical = kernel.fronts(order, start, preds, 0)
    length = int(critical.max(initial=0))
    for slack in dict.fromkeys(int(length * share) for share in SLACKS):
        yield _thinned(kernel.fronts(order, start, preds, slack))
    for number in range(PATHS):
        yield _thinned(_path(critical, start, preds, np.random.default_rng(number)))


def _path(critical: Ints, start: Ints, preds: Ints, rng: np.random.Generator) -> Ints:
    """Return one vertex of each front along longest paths, each an operand of the next."""
    place, last = np.zeros_like(critical), int(critical.max(initial=0))
    among = np.flatnonzero(critical == last)
    for depth in range(last, 0, -1):
        v = int(rng.choice(among[critical[among] == depth]))
        place[v] = depth
        among = preds[start[v] : start[v + 1]]
    return place


def _thinned(place: Ints) -> Ints:
    """Leave out fronts until there are at most `MOST_FRONTS`."""
    most = int(place.max(initial=0))
    chosen = np.unique(np.linspace(1, most, min(most, MOST_FRONTS)).astype(int))
    number = np.zeros(most + 1, dtype=np.int64)
    number[chosen[chosen > 0]] = np.arange(1, np.count_nonzero(chosen > 0) + 1)
    return number[place]
