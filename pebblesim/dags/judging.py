"""Judge a saved game on a graph, in our formats or in the text format of OneStopParallel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import whole
from pebblesim.dags.orders import as_cdag
from pebblesim.game.moves import COMPUTE, DELETE, KINDS, READ, TEXT_LIMIT, WRITE, check_name, load, pack, saving
from pebblesim.game.referee import Game, referee
from pebblesim.game.rules import BY_TERM
from pebblesim.graphs.cdag import Cdag

_OTHER: Final = re.compile(r"(Compute|Evict|Send up|Send down) (\d+)\b(?:.*?\bproc(?:essor)? (\d+))?.*", re.IGNORECASE)
_PLAIN: Final = re.compile(r"(?!#)[^\s%]+( [^\s%]+)*")
_MEANS: Final = {"compute": COMPUTE, "evict": DELETE, "send up": WRITE, "send down": READ}


@checked_kinds()
def judge(graph: Any, game: str | Path | NDArray[Any], *, M: int, rules: str = "hong-kung") -> Game:
    """Judge a saved game or an array of moves. An illegal move ends the game; the result explains it.

    Args:
        graph: a `Cdag`, or a networkx DiGraph.
        game: packed moves, or a file: `.npy`; text with one move in a line, `read NAME`, `write NAME`, `compute NAME`
            or `delete NAME`; or the lines of OneStopParallel (`Compute 3 on proc 0 in superstep 1`, `Evict 3 from proc
            0`, `Send up 3 from proc 0`, `Send down 3 to proc 0`).
        M, rules: as for `referee`.

    Returns:
        The game, with its words read and written, and its `violation` if a move is illegal.

    >>> from pebblesim.dags.generators import generate
    >>> from pebblesim.dags.search import pebble
    >>> graph = generate("pyramid", rows=3)
    >>> found = pebble(graph, M=4, seconds=1)
    >>> judge(graph, found.moves, M=4).io == found.io
    True

    Raises:
        UsageError: the file cannot be read, or does not hold a game.
    """
    graph = as_cdag(graph)
    moves = saved(Path(game), graph) if isinstance(game, str | Path) else game
    return referee(graph, whole("M", M), [moves], rules, strict=False)


def saved(path: Path, graph: Cdag) -> NDArray[np.int64]:
    """The moves in a file; formats and errors as for `judge`."""
    return load(path) if path.suffix == ".npy" else _text(path, graph)


def check_game_file(path: Path, graph: Cdag, rules: str) -> None:
    """Refuse a file that cannot hold a game on a graph, before the game is searched.

    Raises:
        UsageError: the file's name does not end in .npy or .txt, or a .txt file is asked for where moves add single
            terms, which it cannot name, or where every game has more moves than it holds.
    """
    check_name(path)
    if path.suffix != ".txt":
        return
    if rules in BY_TERM:
        raise UsageError(
            f"moves under {rules!r} add single terms, which a .txt file cannot name; save to .npy instead."
        )
    if graph.has_usual_ends and (computed := graph.vertices - len(graph.inputs)) > TEXT_LIMIT:
        raise UsageError(
            f"every game computes {computed:,} vertices, and a .txt file holds at most {TEXT_LIMIT:,} moves; save to "
            ".npy instead."
        )


def save_game(path: Path, graph: Cdag, moves: NDArray[np.int64], rules: str) -> None:
    """Write the moves of a game to a file that `judge` reads.

    Raises:
        UsageError: as for `check_game_file`; or the file cannot be written, or there are too many moves for it.
    """
    check_game_file(path, graph, rules)
    text = path.suffix == ".txt"
    with saving(path, [moves], names_in_text(graph).__getitem__ if text else str):
        pass


def names_in_text(graph: Cdag) -> list[str]:
    """Return a name for each vertex that no other has, as a `.txt` file of moves needs them.

    It is that of `Cdag.describe`; #7 stands for a vertex 7 that a user gave a name of several lines, with a % (where
    comments begin), or of another vertex.
    """
    names = [graph.describe(v) for v in range(graph.vertices)]
    if graph.names is None:
        return names
    times = Counter(names)
    return [name if times[name] == 1 and _PLAIN.fullmatch(name) else f"#{v}" for v, name in enumerate(names)]


def meant(kind: str, name: str, number: Mapping[str, int]) -> str:
    """Return the move that is probably meant by one with an unknown vertex; empty if none is near."""
    import difflib

    near = (
        [f"vertex {name}"] if f"vertex {name}" in number else difflib.get_close_matches(name, number, n=1, cutoff=0.8)
    )
    return f"{kind} {near[0]}" if near and not name.startswith("vertex ") else ""


def _text(path: Path, graph: Cdag) -> NDArray[np.int64]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    number: dict[str, int] = {}
    moves = []
    for at, line in enumerate(lines, 1):
        text = line.split("%", 1)[0].strip()
        if not text:
            continue
        kind, _, name = text.partition(" ")
        if kind in KINDS and not number:
            number = {name: v for v, name in enumerate(names_in_text(graph))}
        if kind in KINDS and name in number:
            moves.append((KINDS.index(kind), number[name]))
            continue
        match = _OTHER.fullmatch(text)
        if match is None:
            near = meant(kind, name, number) if kind in KINDS else ""
            if near:
                raise UsageError(f"{path}, line {at}: {text[:60]!r} is not a move on this graph; '{near}' is meant.")
            raise UsageError(
                f"{path}, line {at}: {text[:60]!r} is not a move on this graph; a move is one of "
                f"{', '.join(KINDS)} and "
                "the name of a vertex, or a line of OneStopParallel."
            )
        if match[3] not in (None, "0"):
            raise UsageError(
                f"{path}, line {at}: processor {match[3]} moves; only games of one processor can be judged."
            )
        if len(match[2]) > 18:
            raise UsageError(f"{path}, line {at}: vertex {match[2][:20]}… does not exist.")
        moves.append((_MEANS[match[1].lower()], int(match[2])))
    return np.array([pack(kind, v) for kind, v in moves], dtype=np.int64)
