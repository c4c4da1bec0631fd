"""The rules of the game in words, generated from the referee's tables."""

from __future__ import annotations

from typing import Final

from pebblesim.core.errors import UnknownName
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE
from pebblesim.game.rules import BLUE, BY_TERM, COMPUTED, RED, RULES

MOVES: Final = {
    READ: "{v} is read from memory into the cache: 1 word of I/O.",
    WRITE: "{v} is written from the cache to memory: 1 word of I/O.",
    COMPUTE: "{v} is computed in the cache from values in the cache: free.",
    DELETE: "{v} is deleted from the cache: free.",
}
"""A sentence for each kind of move, on a vertex v of one word."""


def in_words(rules: str = "hong-kung") -> tuple[str, ...]:
    """Return the rules in five lines: the four moves, then the goal.

    Raises:
        UnknownName: the rule set is not known.

    >>> print(in_words("no-recompute")[2])
    compute  a value whose operands are all in cache (red) is made in cache (red): free, once only
    """
    if rules not in RULES:
        raise UnknownName("rule set", rules, RULES)
    table = RULES[rules]
    if rules in BY_TERM:
        compute = "a finished value in cache (red) is added as a term to a value in cache (red): free"
        compute += "; memory loses it" if table[COMPUTE].clears & BLUE else ""
    else:
        compute = "a value whose operands are all in cache (red) is made in cache (red): free"
        compute += ", once only" if table[COMPUTE].forbids & COMPUTED else ", as often as you like"
    read = "moves" if table[READ].clears & BLUE else "is copied"
    write = "moves" if table[WRITE].clears & RED else "is copied"
    return (
        f"read     a value {read} from memory (blue) to cache (red): 1 word of I/O",
        f"write    a value {write} from cache (red) to memory (blue): 1 word of I/O",
        f"compute  {compute}",
        "delete   a value leaves the cache: free",
        "The cache holds at most M words. Inputs start in memory, outputs must end there. The aim is the least I/O.",
    )
