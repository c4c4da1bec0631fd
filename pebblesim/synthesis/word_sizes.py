"""Words of different sizes: the bytes that a word of each tensor takes, in memory as in the cache.

All values of a tensor have one size, its partial sums and products, too. Then a schedule is a game on a graph with
weights, which the referee plays; words moved become bytes, and M is a number of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pebblesim.analysis.peak import SPARED
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import BYTES
from pebblesim.counting.count import Counted
from pebblesim.counting.run import Run
from pebblesim.language.registry import Schedule

if TYPE_CHECKING:
    from pebblesim.game.referee import Game

ALLOWED = sorted({*BYTES.values()})


@dataclass(frozen=True)
class WordSizes:
    """Bytes in a word of each tensor: those named, and all others."""

    named: Mapping[str, int] = field(default_factory=dict)
    others: int = 4

    def __getitem__(self, tensor: str) -> int:
        return self.named.get(tensor, self.others)

    @property
    def largest(self) -> int:
        """Bytes of the largest word."""
        return max((self.others, *self.named.values()))

    @property
    def smallest(self) -> int:
        """Bytes of the smallest word."""
        return min((self.others, *self.named.values()))

    @property
    def spare(self) -> int:
        """Room for the intermediates of an expression, beside whole tiles.

        These are two words where the element that is computed has a word in its tile; it may have a smaller one.
        """
        return SPARED if self.largest == 1 else (SPARED + 1) * self.largest

    def moved(self, counted: Counted) -> int:
        """Return the bytes that a counted schedule moves."""
        return sum(self[name] * (reads + writes) for name, (reads, writes) in counted.by_tensor.items())

    def __str__(self) -> str:
        named = ", ".join(f"{name} {size}" for name, size in self.named.items())
        return f"bytes of a word: {named}, all others {self.others}"


WORDS = WordSizes(others=1)
"""All words alike: what is moved and what the cache holds are numbers of words."""


def word_sizes(given: Mapping[str, int], tensors: set[str]) -> WordSizes:
    """Return the sizes of words, from those of some tensors.

    Raises:
        UsageError: there is no such tensor, or no such size.
    """
    for name, size in given.items():
        if name not in tensors:
            raise UsageError(f"no tensor here is called {name!r}; those with words are {', '.join(sorted(tensors))}.")
        if size not in ALLOWED:
            raise UsageError(f"a word of {name} has {', '.join(map(str, ALLOWED))} bytes, not {size!r}.")
    return WordSizes(dict(given), others=4 if tensors - set(given) else max(given.values()))


def game(schedule: Schedule, dims: Mapping[str, int], blocks: Mapping[str, int], sizes: WordSizes, M: int) -> Game:
    """Play a schedule on its graph with these words in M bytes; reads, writes and the peak are in bytes.

    Raises:
        IllegalMove: the schedule does not fit, or is wrong.
    """
    import numpy as np

    from pebblesim.api.graph import graph_of
    from pebblesim.game.player import moves
    from pebblesim.game.referee import Referee

    run = Run.of(schedule, dims, M=M, blocks=blocks)
    graph = graph_of(run)
    ends = [*(family.base for family in graph.families[1:]), graph.vertices]
    words = [np.full(end - each.base, sizes[each.name]) for each, end in zip(graph.families, ends, strict=True)]
    referee = Referee(replace(graph, weights=np.concatenate(words)), M, idle=False)
    for chunk in moves(run.program, run.sizes, graph.families):
        referee.play(chunk)
    return referee.finish()
