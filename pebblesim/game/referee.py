"""The referee of the red-blue pebble game: checks that a stream of moves is legal, and counts the words it moves.

The referee knows a graph, M, a table of rules and the moves. It knows nothing of tiles, tensors or schedules, so it can
find any mistake in them. One word is one pebble; reads, writes and I/O are in words.

A rule set is a table (`pebblesim.game.rules`). One loop interprets every row, so a variant of the game is another
table, not other code. Only `partial` needs a second loop, because there a vertex takes its terms one by one, along the
edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UnknownName, UsageError, as_given
from pebblesim.core.kinds import check_kind, checked_kinds
from pebblesim.core.sizes import quantity
from pebblesim.game.board import RED_BIT, Board, Row
from pebblesim.game.moves import COMPUTE, KINDS, READ, WRITE, as_chunk, unpack
from pebblesim.game.rules import (
    BLUE,
    BY_TERM,
    COMPLETE,
    COMPUTED,
    INPUT,
    RED,
    RULES,
    WRITTEN,
    Graph,
    Rule,
    without_idle,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """The first illegal move of a game.

    `number` counts moves from 1. `name` is the graph's name of the vertex. `red` is the number of red pebbles before
    the move. `reason` says which rule is broken; `message` is the whole report in one line. `source` is the file and
    line of the schedule that made the move, or None if it is not known.
    """

    number: int
    kind: str
    vertex: int
    name: str
    reason: str
    red: int
    M: int
    message: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Game:
    """The outcome of a game; it prints as labelled lines. Reads, writes and I/O are in words.

    Attributes:
        rules: name of the rule set.
        M: red pebbles allowed.
        vertices, edges: size of the graph.
        moves: legal moves played, of all four kinds.
        reads, writes: number of these moves, in words.
        peak_red: most red pebbles on the graph at any moment.
        missing_outputs: number of outputs without a blue pebble at the end; `first_missing` is the name of the first
            one.
        violation: the illegal move that ended the game, or None.
    """

    rules: str
    M: int
    vertices: int
    edges: int
    moves: int
    reads: int
    writes: int
    peak_red: int
    missing_outputs: int
    first_missing: str | None
    violation: Violation | None

    @property
    def io(self) -> int:
        """Words moved between memory and cache: reads + writes."""
        return self.reads + self.writes

    @property
    def legal(self) -> bool:
        """Whether every move was legal."""
        return self.violation is None

    @property
    def complete(self) -> bool:
        """Whether every move was legal and all outputs hold a blue pebble at the end."""
        return self.legal and not self.missing_outputs

    def to_dict(self) -> dict[str, Any]:
        """Return the game as plain data for JSON."""
        return asdict(self) | {"io": self.io, "legal": self.legal, "complete": self.complete}

    def __str__(self) -> str:
        if self.violation:
            verdict = f"illegal: {self.violation.message}"
        elif self.missing_outputs:
            verdict = f"legal but incomplete: outputs without a blue pebble: {self.missing_outputs:,}, "
            verdict += f"the first is {self.first_missing}"
        else:
            verdict = "legal and complete"
        lines = {
            "rules": self.rules,
            "graph": f"{self.vertices:,} vertices, {self.edges:,} edges",
            "moves": f"{self.moves:,}",
            "reads": quantity(self.reads, "word"),
            "writes": quantity(self.writes, "word"),
            "I/O": quantity(self.io, "word"),
            "peak red": f"{self.peak_red:,} of M = {quantity(self.M, 'word')}",
            "verdict": verdict,
        }
        return "\n".join(f"{label:<10}{value}" for label, value in lines.items())


class IllegalMove(PebblesimError):
    """A move is illegal under the rules.

    `game` is the game up to this move; the other attributes are those of `Violation`.
    """

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        assert game.violation is not None
        self.game = game
        self.violation = game.violation
        self.number, self.kind, self.vertex = self.violation.number, self.violation.kind, self.violation.vertex
        self.reason, self.red, self.M = self.violation.reason, self.violation.red, self.violation.M

    def __str__(self) -> str:
        return self.violation.message


class Referee:
    """A game in progress: call `play` for each chunk of moves, then `finish`.

    Args:
        graph: the graph; at the start, blue pebbles are on its inputs only.
        M: most red pebbles at any moment.
        rules: a name in `RULES`.
        idle: whether a vertex with a red pebble may get another one. The rules allow such a move, and it changes
            nothing. But a schedule that reads or computes a value that is already in the cache does not match its
            count.

    Attributes:
        moves: legal moves played so far.

    Raises:
        UnknownName: the rule set is not known.
        UsageError: M is not a positive whole number, or the graph's arrays are inconsistent.
    """

    def __init__(self, graph: Graph, M: int, rules: str = "hong-kung", *, idle: bool = True) -> None:
        if rules not in RULES:
            raise UnknownName("rule set", rules, RULES)
        if isinstance(M, bool) or not isinstance(M, int | np.integer) or M < 1:
            raise UsageError(f"M = {M!r} red pebbles were given; M must be a whole number, 1 or more.")
        self.graph, self.M, self.rules, self.moves = graph, int(M), rules, 0
        self._rules = RULES[rules] if idle else without_idle(RULES[rules])
        by_term = rules in BY_TERM
        rows = [Row(name, self._rules[kind], by_term=by_term and kind == COMPUTE) for kind, name in enumerate(KINDS)]
        self._board = Board(graph, rows, INPUT | BLUE | COMPLETE, {RED_BIT: self.M})
        self._violation: Violation | None = None
        self._waiting = np.empty(0, np.int64)  # a compute whose next move is not known yet

    @property
    def reads(self) -> int:
        """Words read so far."""
        return int(self._board.moved[READ])

    @property
    def writes(self) -> int:
        """Words written so far."""
        return int(self._board.moved[WRITE])

    @property
    def write_takes_red(self) -> bool:
        """Whether a write removes the red pebble; then no delete follows."""
        return bool(RULES[self.rules][WRITE].clears & RED)

    @property
    def red(self) -> int:
        """Red pebbles on the graph now."""
        return int(self._board.held[RED_BIT])

    def play(self, chunk: NDArray[Any]) -> None:
        """Play the next moves (packed, int64).

        Raises:
            IllegalMove: at the first illegal move. The game is then over, and further calls raise the same error.
            UsageError: the chunk is not a one-dimensional array of int64.
        """
        chunk = as_chunk(chunk)
        if self._board.takes_over is not None:
            chunk = np.append(self._waiting, chunk)
            known = chunk.size - (chunk.size > 0 and unpack(int(chunk[-1]))[0] == COMPUTE)
            chunk, self._waiting = chunk[:known], chunk[known:]
        self._play(chunk)
        if self._violation is not None:
            raise IllegalMove(self.finish())

    def _play(self, chunk: NDArray[Any]) -> None:
        """Play moves up to the first illegal one, which is then explained."""
        if self._violation is None:
            played = self._board.play(chunk)
            self.moves += played
            if played < chunk.size:
                self._violation = self._explain(int(chunk[played]))

    def finish(self) -> Game:
        """Return the outcome for the current pebbles."""
        last, self._waiting = self._waiting, self._waiting[:0]
        self._play(last)
        missing = self._board.missing()
        return Game(
            rules=self.rules,
            M=self.M,
            vertices=self.graph.vertices,
            edges=self.graph.edges,
            moves=self.moves,
            reads=self.reads,
            writes=self.writes,
            peak_red=int(self._board.peak[RED_BIT]),
            missing_outputs=missing.size,
            first_missing=self.graph.describe(int(missing[0])) if missing.size else None,
            violation=self._violation,
        )

    def _explain(self, move: int) -> Violation:
        """Explain why the kernel refused a move, from the state of the vertices."""
        kind, vertex = unpack(move)
        if self.rules in BY_TERM and kind == COMPUTE:
            return self._explain_term(vertex)
        name, detail = f"vertex {vertex}", f" (red {self.red} of {self.M})"
        if not 0 <= vertex < self.graph.vertices:
            reason = f"this vertex does not exist; the graph has {self.graph.vertices}, numbered from 0"
        else:
            name = self.graph.describe(vertex)
            broken = self._broken(self._rules[kind], vertex)
            reason = broken or f"needs a {_ordinal(self.M + 1)} red pebble, M = {self.M}"
            detail = detail if broken else ""
        return self._violated(kind, vertex, name, reason, detail)

    def _violated(self, kind: int, vertex: int, name: str, reason: str, detail: str) -> Violation:
        number = self.moves + 1
        message = f"move {number}: {KINDS[kind]} {name}: {reason}{detail}"
        return Violation(number, KINDS[kind], vertex, name, reason, self.red, self.M, message)

    def _explain_term(self, number: int) -> Violation:
        """Explain why a term cannot be added."""
        edges, detail = self._board.preds.size, f" (red {self.red} of {self.M})"
        if not 0 <= number < edges + self.graph.vertices:
            reason = f"this term does not exist; the graph has {edges} edges, numbered from 0, and vertices after them"
            return self._violated(COMPUTE, number, f"term {number}", reason, detail)
        v = int(self._board.targets[number]) if number < edges else number - edges
        name, state = self.graph.describe(v), int(self._board.state[v])
        terms, u = int(self._board.indptr[v + 1]) - int(self._board.indptr[v]), -1
        if number < edges:
            u = int(self._board.preds[number])
            name += f" (term {number - int(self._board.indptr[v]) + 1} of {terms}, {self.graph.describe(u)})"
        if state & INPUT:
            reason = f"{self.graph.describe(v)} is an input, which can be read but not computed"
        elif number < edges and self._board.added[number]:
            reason = "this term was already added"
        elif u >= 0 and not self._board.state[u] & RED:
            reason = f"predecessor {self.graph.describe(u)} has no red pebble"
        elif u >= 0 and not self._board.state[u] & COMPLETE:
            reason = f"predecessor {self.graph.describe(u)} is not complete, it lacks {int(self._board.left[u])} terms"
        elif u < 0 and terms:
            reason = f"its {terms} terms must be added one by one"
        elif u < 0 and state & COMPLETE:
            reason = f"{self.graph.describe(v)} was already computed"
        elif u >= 0 and self._board.left[v] < terms and not state & RED:
            reason = f"the sum {self.graph.describe(v)} is begun, but has no red pebble"
        else:
            reason, detail = f"needs a {_ordinal(self.M + 1)} red pebble, M = {self.M}", ""
        return self._violated(COMPUTE, v, name, reason, detail)

    def _broken(self, rule: Rule, vertex: int) -> str | None:
        """Return in words which precondition of the rule fails at a vertex; None if only the limit of M does."""
        state, name = int(self._board.state[vertex]), self.graph.describe(vertex)
        if state & rule.forbids & INPUT:
            return f"{name} is an input, which can be read but not computed"
        if state & rule.forbids & COMPUTED:
            return f"{name} was already computed, and under {self.rules!r} that is allowed only once"
        if state & rule.forbids & RED:
            return f"{name} has a red pebble already: it is in the cache, so it must not be read or computed again"
        if rule.needs & BLUE & ~state:
            return f"{name} has no blue pebble: {self._why_not_blue(state)}"
        if rule.needs & RED & ~state:
            return f"{name} has no red pebble{self._why_not_red(state)}"
        for p in self._board.preds[int(self._board.indptr[vertex]) : int(self._board.indptr[vertex + 1])].tolist():
            if rule.predecessors & ~int(self._board.state[p]):
                why = self._why_not_red(int(self._board.state[p]))
                return f"predecessor {self.graph.describe(p)} has no red pebble{why}"
        return None

    def _why_not_blue(self, state: int) -> str:
        if not state & (INPUT | WRITTEN):
            return "it is no input and was never written"
        took = f"under {self.rules!r} a read takes the blue pebble away, and the red one"
        again = "is lost" if state & INPUT else "must be computed again"
        return f"{took} is still there" if state & RED else f"{took} was deleted later, so the value {again}"

    def _why_not_red(self, state: int) -> str:
        if self.write_takes_red and state & WRITTEN and state & BLUE:
            return f": under {self.rules!r} a write takes the red pebble away"
        return ""


@checked_kinds()
def referee(
    graph: Graph, M: int, stream: Iterable[NDArray[Any]], rules: str = "hong-kung", *, strict: bool = True
) -> Game:
    """Play a whole game and judge it.

    Args:
        graph, M, rules: as for `Referee`.
        stream: the moves, as arrays of packed moves of any length. Only one array is used at a time.
        strict: raise an error at an illegal move; if False, return the game up to that move, with its `violation`.

    Returns:
        The game. If some output is not blue at the end, the game can be legal, but it is not `complete`.

    >>> from pebblesim.dags.generators import generate
    >>> from pebblesim.dags.search import pebble
    >>> graph = generate("pyramid", rows=3)
    >>> referee(graph, 4, [pebble(graph, M=4, seconds=1).moves]).complete
    True

    Raises:
        IllegalMove: at the first illegal move, if `strict`.
        UnknownName, UsageError: as for `Referee`, or the stream holds something other than arrays of int64.
    """
    check_kind("graph", graph, "Cdag")
    if not isinstance(stream, Iterable) or getattr(stream, "ndim", 1) == 0:  # numpy's numbers say that they are
        raise UsageError(f"stream = {as_given(stream)} was given; stream must be arrays of moves.")
    game = Referee(graph, M, rules)
    try:
        for chunk in stream:
            game.play(chunk)
    except IllegalMove:
        if strict:
            raise
    return game.finish()


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
