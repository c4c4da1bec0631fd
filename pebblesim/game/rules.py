"""The rules of the red-blue pebble game and of its variants, as tables that the referee interprets; and its board.

A rule set has one row for each kind of move: conditions on the vertex and its predecessors, and the changes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from numpy.typing import NDArray

from pebblesim.core.errors import UnknownName
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE

# Flags of a vertex. The kernel counts red pebbles by bit 0.
RED: Final = 1
BLUE: Final = 2
COMPUTED: Final = 4  # at some time
WRITTEN: Final = 8  # at some time; recorded if the rules can take blue pebbles away
INPUT: Final = 16
COMPLETE: Final = 32  # under `partial`: all terms have been added
SUM: Final = 64  # on many devices: a sum of which several devices may have a part


class Graph(Protocol):
    """The interface of a graph for the referee: predecessors in CSR form, inputs, outputs, and names for messages.

    A graph may also have `weights`, the number of words of each vertex. If it is missing or None, each vertex has one
    word. And it may have `takes_over`, the predecessor whose pebble a vertex may take over, -1 for none: if its compute
    is followed at once by the deletion of that predecessor, the two moves are one step, with no pebble in between.
    """

    @property
    def vertices(self) -> int: ...
    @property
    def edges(self) -> int: ...
    @property
    def indptr(self) -> NDArray[Any]: ...
    @property
    def preds(self) -> NDArray[Any]: ...
    @property
    def inputs(self) -> NDArray[Any]: ...
    @property
    def outputs(self) -> NDArray[Any]: ...
    def describe(self, v: int, /) -> str: ...


class Rule(NamedTuple):
    """One kind of move: flags that its vertex needs, must not have, gains and loses; flags its predecessors need."""

    needs: int = 0
    forbids: int = 0
    sets: int = 0
    clears: int = 0
    predecessors: int = 0


HONG_KUNG: Final = {
    READ: Rule(needs=BLUE, sets=RED),
    WRITE: Rule(needs=RED, sets=BLUE),
    COMPUTE: Rule(forbids=INPUT, predecessors=RED, sets=RED | COMPUTED),
    DELETE: Rule(needs=RED, clears=RED),
}

RULES: Final[dict[str, dict[int, Rule]]] = {
    # Hong & Kung 1981: both colours may stand on a vertex, and it may be computed again.
    "hong-kung": HONG_KUNG,
    # Def. 3.4 of arXiv 2410.09397, taken literally: a pebble is replaced by one of the other colour.
    "replace": HONG_KUNG
    | {
        READ: Rule(needs=BLUE, sets=RED, clears=BLUE),
        WRITE: Rule(needs=RED, sets=BLUE | WRITTEN, clears=RED),
    },
    # One-shot game (Papp & Wattenhofer 2020, arXiv 2005.08609): each vertex is computed at most once.
    "no-recompute": HONG_KUNG | {COMPUTE: Rule(forbids=INPUT | COMPUTED, predecessors=RED, sets=RED | COMPUTED)},
    # Partial computations (Papp, Sobczyk & Yzelman, arXiv 2410.22237): a compute adds one term, from a complete
    # operand, and each term once; the copy in memory is then out of date. The move's number is that of the edge, in the
    # order of the predecessors. For a vertex v without predecessors it is the number of edges + v.
    "partial": HONG_KUNG
    | {COMPUTE: Rule(forbids=INPUT, predecessors=RED | COMPLETE, sets=RED | COMPUTED, clears=BLUE)},
}

BY_TERM: Final = ("partial",)
"""Rule sets in which the terms of a vertex are added one by one."""


def check_rules_of_schedules(rules: str) -> None:
    """Check that schedules can be played under this rule set: they compute a vertex at once.

    Raises:
        UnknownName: there is no such rule set, or its terms are added one by one.
    """
    if rules not in RULES or rules in BY_TERM:
        kind = "rule set for schedules" if rules in BY_TERM else "rule set"
        raise UnknownName(kind, rules, [name for name in RULES if name not in BY_TERM])


def without_idle(rules: dict[int, Rule]) -> dict[int, Rule]:
    """Return these rules, except that a vertex with a red pebble must not get another one."""
    return {kind: rule._replace(forbids=rule.forbids | (rule.sets & RED)) for kind, rule in rules.items()}
