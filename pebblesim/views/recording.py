"""Record a whole game: its moves, and the primitive and pseudo-code line of each move.

Pictures of games are drawn from recordings. The pebbles at each move follow from the moves and the table of rules. The
referee has judged the moves.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.analysis.peak import IN_PLACE
from pebblesim.api.graph import graph_of, size_of_graph
from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import listed
from pebblesim.counting.arguments import AnyMask, BlockRule
from pebblesim.counting.run import Run
from pebblesim.game.moves import COMPUTE, unpack
from pebblesim.game.player import steps
from pebblesim.game.referee import Game, IllegalMove, Referee, referee as judge
from pebblesim.game.rules import BLUE, BY_TERM, RED, RULES, check_rules_of_schedules
from pebblesim.graphs.cdag import Cdag
from pebblesim.language import masks
from pebblesim.language.registry import Schedule
from pebblesim.language.text import numbered

Ints = NDArray[np.int64]

MOST_MOVES: Final = 10**7
"""Most moves of a recording: 80 MB."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A game from the first move to the last legal one. Moves are numbered from 1; "at move t" means after move t.

    Attributes:
        name: what was played, such as "small-cache, n = 8, d = 4".
        graph: what it was played on.
        game: the referee's result.
        moves: the legal moves, packed (see `pebblesim.game.moves`).
        text: the pseudo-code, line by line; empty if the game is not from a schedule.
        starts, lines: a step is a run of moves of one primitive or, without a schedule, the moves up to the next
            compute; the number of moves before each step, and the index of its line in `text`.
        turns: one row for each iteration of a loop: number of moves before it, index of the loop's line, number of the
            tile.
        run: the schedule and its sizes; None if the game was not made by a schedule.
    """

    name: str
    graph: Cdag
    game: Game
    moves: Ints
    text: tuple[str, ...]
    starts: Ints
    lines: Ints
    turns: Ints
    run: Run | None = None

    @property
    def title(self) -> str:
        """Name, sizes and rules, such as "small-cache, n = 8, d = 4, M = 24, B = 2"."""
        parts = [self.name, f"M = {self.game.M:,}"]
        if self.run:
            parts += [f"{name} = {size:,}" for name, size in self.run.block_sizes.items()]
            parts += [f"mask {self.run.mask}"] if self.run.mask else []
            parts += [f"summation {self.run.summation}"] if self.run.summation != "chain" else []
        parts += [f"rules {self.game.rules}"] if self.game.rules != "hong-kung" else []
        return ", ".join(parts)

    @cached_property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """The name of each phase, and the number of moves before it."""
        if not self.text:
            return ()
        heads = [index for index, line in enumerate(self.text) if not line.startswith(" ")]
        phase = np.searchsorted(heads, self.lines, side="right") - 1  # phase of each step
        first = np.append(self.starts, len(self.moves))[np.searchsorted(phase, np.arange(len(heads)))]
        return tuple((self.text[head][6:-1], int(start)) for head, start in zip(heads, first, strict=True))

    def line_at(self, move: int) -> int:
        """Return the index in `text` of a move's line; for move 0, that of the first move."""
        return int(self.lines[max(0, bisect_right(self.starts, max(move, 1) - 1) - 1)]) if len(self.lines) else 0

    @cached_property
    def red(self) -> Ints:
        """Words in cache after each move; their largest number is the game's peak."""
        change = np.zeros(len(self.moves), np.int64)
        vertex, at, change_there = self._changes
        change[at] = change_there if self.graph.weights is None else change_there * self.graph.weights[vertex]
        return np.cumsum(change)

    @cached_property
    def acted(self) -> tuple[Ints, Ints]:
        """(kind, vertex) of each move; where terms are added one by one, the vertex that a term is added to."""
        kind, number = unpack(self.moves)
        if self.game.rules in BY_TERM:
            target = np.repeat(np.arange(self.graph.vertices), np.diff(self.graph.indptr))
            by_number = np.append(target, np.arange(self.graph.vertices))
            number = np.where(kind == COMPUTE, by_number[np.where(kind == COMPUTE, number, 0)], number)
        return kind, number

    @cached_property
    def intervals(self) -> tuple[Ints, Ints, Ints]:
        """Intervals of red vertices: (vertex, first move, move that removes the pebble or one after the last move)."""
        vertex, at, change = self._changes
        on, off = change > 0, change < 0
        last = np.zeros(self.graph.vertices, bool)
        last[vertex[on]] = True
        last &= self.pebbles(len(self.moves))[0]
        left = np.flatnonzero(last)
        off_vertex = np.concatenate([vertex[off], left])
        off_at = np.concatenate([at[off] + 1, np.full(len(left), len(self.moves) + 1)])
        order = np.lexsort((off_at, off_vertex))  # pairs up with `on`, which is in this order
        return vertex[on], at[on] + 1, off_at[order]

    def pebbles(self, move: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the vertices with a red pebble, and those with a blue one, at a move; 0 is before the first move.

        Raises:
            UsageError: the move does not exist.
        """
        if not 0 <= move <= len(self.moves):
            raise UsageError(f"move {move} was asked for; this game has moves 0 (the start) to {len(self.moves)}.")
        kind, vertex = (column[:move] for column in self.acted)
        red, blue = (np.zeros(self.graph.vertices, bool) for _ in range(2))
        blue[self.graph.inputs] = True
        for flag, standing in ((RED, red), (BLUE, blue)):
            after = self._after(flag)[kind]
            touched = after >= 0
            standing[vertex[touched]] = after[touched] > 0  # if several moves touch a vertex, the last one counts
        return red, blue

    def _after(self, flag: int) -> Ints:
        """For each kind of move: 1 if it sets the flag, 0 if it clears it, -1 if it does not change it."""
        rules = RULES[self.game.rules]
        return np.array([1 if rules[kind].sets & flag else 0 if rules[kind].clears & flag else -1 for kind in range(4)])

    @cached_property
    def _changes(self) -> tuple[Ints, Ints, Ints]:
        """Return the moves that place a red pebble (+1) or remove one (-1), sorted by vertex and then by time."""
        kind, vertex = self.acted
        after = self._after(RED)[kind]
        at = np.flatnonzero(after >= 0)
        at = at[np.argsort(vertex[at], kind="stable")]
        vertex, after = vertex[at], after[at]
        before = np.zeros_like(after)
        before[1:] = np.where(vertex[1:] == vertex[:-1], after[:-1], 0)
        changed = after != before
        return vertex[changed], at[changed], (after - before)[changed]


@checked_kinds("most")
def record(
    schedule: str | Schedule,
    *,
    M: int,
    rules: str = "hong-kung",
    summation: str = "chain",
    blocks: BlockRule = "fit",
    mask: AnyMask | None = None,
    most: int = MOST_MOVES,
    **dims: int,
) -> Recording:
    """Play a schedule and record the game.

    Args:
        schedule, M, rules, summation, blocks, mask, dims: as for `play`.
        most: largest allowed number of moves.

    Returns:
        The recording. A game with an illegal move is recorded up to that move, and `game.violation` explains it.

    >>> int(record("small-cache", n=8, d=4, M=24).red.max())
    16

    Raises:
        Infeasible, UsageError: as for `play`, or the game is too long.
    """
    if summation == IN_PLACE:
        raise UsageError("a game with sums in place is played and counted, not recorded; choose summation 'chain'.")
    check_rules_of_schedules(rules)
    run = Run.of(schedule, dims, M=M, blocks=blocks, summation=summation, mask=masks.of(mask))
    if (vertices := size_of_graph(run).vertices) > most:
        raise _too_long(f"it has {vertices:,} vertices", most)
    graph = graph_of(run)
    referee = Referee(graph, run.M, rules, idle=False)
    text, line_of = numbered(run.program)
    chunks, starts, lines, turns, done = [np.empty(0, np.int64)], [], [], [], 0
    taken = referee.write_takes_red
    for step in steps(run.program, run.sizes, graph.families, write_takes_red=taken, mask=run.only_mask):
        if step.tile is not None:
            turns.append((done, line_of[step.node], step.tile))
            continue
        chunks.append(step.moves.copy())
        starts.append(done)
        lines.append(line_of[step.node])
        done += len(step.moves)
        if done > most:
            raise _too_long(f"it has more than {most:,} moves", most)
    moves = np.concatenate(chunks)
    try:
        referee.play(moves)
    except IllegalMove as illegal:
        done = illegal.game.moves
    kept = [number for number, start in enumerate(starts) if start < done]
    return Recording(
        name=f"{run.schedule.name}, {listed(run.dims)}",
        graph=graph,
        run=run,
        game=referee.finish(),
        moves=moves[:done],
        text=tuple(text),
        starts=np.array(starts, np.int64)[kept],
        lines=np.array(lines, np.int64)[kept],
        turns=np.array([turn for turn in turns if turn[0] <= done], np.int64).reshape(-1, 3),
    )


def record_moves(
    name: str, graph: Cdag, moves: Ints, *, M: int, rules: str = "hong-kung", most: int = MOST_MOVES
) -> Recording:
    """Record a game on any graph, from its moves.

    Args:
        name: name of the graph.
        graph, M, rules: as for `referee`.
        moves: packed.
        most: largest allowed number of moves.

    Raises:
        UsageError: as for `referee`, or the game is too long.
    """
    if max(len(moves), graph.vertices) > most:
        raise _too_long(f"it has {len(moves):,} moves on {graph.vertices:,} vertices", most)
    game = judge(graph, M, [moves], rules, strict=False)
    moves = np.asarray(moves[: game.moves])
    starts = np.append(0, np.flatnonzero(moves & 3 == COMPUTE) + 1)
    starts = starts[starts < len(moves)]
    none = np.empty((0, 3), np.int64)
    return Recording(name, graph, game, moves, (), starts, np.zeros(len(starts), np.int64), none)


def _too_long(why: str, most: int) -> UsageError:
    return UsageError(f"this game is too long to be kept: {why}, and {most:,} are allowed; take smaller sizes.")
