"""The referee against a model with two sets, against hand-written games, and against mutated ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import strategies
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.game.moves import (
    COMPUTE,
    DELETE,
    KINDS,
    READ,
    TEXT_LIMIT,
    WRITE,
    chunks,
    load,
    moves,
    pack,
    saving,
    unpack,
)
from pebblesim.game.referee import Game, IllegalMove, Referee, referee
from pebblesim.game.rules import RULES

Pairs = list[tuple[int, int]]


class Dag:
    """The least that the referee accepts as a graph."""

    def __init__(
        self, preds: list[list[int]], inputs: list[int], outputs: list[int], names: list[str] | None = None
    ) -> None:
        self.vertices, self.edges = len(preds), sum(map(len, preds))
        self.indptr = np.cumsum([0, *map(len, preds)]).astype(np.uint32)
        self.preds = np.array([p for row in preds for p in row], dtype=np.int32)
        self.inputs, self.outputs = np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64)
        self.names = names or [f"v{v}" for v in range(self.vertices)]

    def describe(self, v: int) -> str:
        return self.names[v]


def matmul(m: int, k: int, n: int) -> tuple[Dag, Pairs, int]:
    """Graph of C = AB with chain sums, a game that reads both factors of every product, and the least M for it."""
    a = {(i, u): i * k + u for i in range(m) for u in range(k)}
    b = {(u, j): m * k + u * n + j for u in range(k) for j in range(n)}
    names = [f"A[{i},{u}]" for i, u in a] + [f"B[{u},{j}]" for u, j in b]
    preds: list[list[int]] = [[] for _ in names]
    inputs, outputs, game = list(range(len(preds))), [], []
    for i in range(m):
        for j in range(n):
            total = -1
            for u in range(k):
                term = len(preds)
                preds.append([a[i, u], b[u, j]])
                names.append(f"C[{i},{j}] (product {u + 1} of {k})")
                game += [(READ, a[i, u]), (READ, b[u, j]), (COMPUTE, term), (DELETE, a[i, u]), (DELETE, b[u, j])]
                if u:
                    preds.append([total, term])
                    names.append(f"C[{i},{j}] (sum {u + 1} of {k})")
                    game += [(COMPUTE, term + 1), (DELETE, total), (DELETE, term)]
                total = len(preds) - 1
            outputs.append(total)
            game += [(WRITE, total), (DELETE, total)]
    return Dag(preds, inputs, outputs, names), game, 4 if k > 1 else 3


def play(graph: Dag, M: int, game: Pairs, rules: str = "hong-kung", *, strict: bool = True) -> Game:
    return referee(graph, M, [moves(*game)], rules, strict=strict)


class TwoSets:
    """The game written from the words of its rules: a set of red and a set of blue pebbles."""

    def __init__(self, preds: list[list[int]], inputs: set[int], M: int, rules: str) -> None:
        self.preds, self.inputs, self.M, self.rules = preds, inputs, M, rules
        self.red: set[int] = set()
        self.blue = set(inputs)
        self.ever: set[int] = set()
        self.reads = self.writes = self.peak = 0

    def legal(self, kind: int, v: int) -> bool:
        room = v in self.red or len(self.red) < self.M
        if kind == READ:
            return v in self.blue and room
        if kind == COMPUTE:
            again = self.rules == "no-recompute" and v in self.ever
            return v not in self.inputs and not again and self.red.issuperset(self.preds[v]) and room
        return v in self.red

    def play(self, kind: int, v: int) -> None:
        if kind == READ:
            self.reads += 1
            self.red.add(v)
            if self.rules == "replace":
                self.blue.remove(v)
        elif kind == WRITE:
            self.writes += 1
            self.blue.add(v)
            if self.rules == "replace":
                self.red.remove(v)
        elif kind == COMPUTE:
            self.ever.add(v)
            self.red.add(v)
        else:
            self.red.remove(v)
        self.peak = max(self.peak, len(self.red))


@st.composite
def dags(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    """Predecessors, inputs and outputs; some vertices without predecessors are constants, not inputs."""
    preds: list[list[int]] = []
    for v in range(draw(st.integers(1, 8))):
        preds.append(draw(st.lists(st.integers(0, v - 1), max_size=3, unique=True)) if v else [])
    vertices = st.sampled_from(range(len(preds)))
    inputs = [v for v, row in enumerate(preds) if not row and draw(st.integers(0, 3))]
    return preds, inputs, draw(st.lists(vertices, unique=True))


class AgainstTwoSets(RuleBasedStateMachine):
    """Any moves at all: referee and model must agree on each one, and on every count."""

    @initialize(dag=dags(), M=st.integers(1, 5), rules=st.sampled_from(sorted(set(RULES) - {"partial"})))
    def start(self, dag: tuple[list[list[int]], list[int], list[int]], M: int, rules: str) -> None:
        preds, inputs, outputs = dag
        self.graph, self.model = Dag(preds, inputs, outputs), TwoSets(preds, set(inputs), M, rules)
        self.played: Pairs = []
        self.game = Referee(self.graph, M, rules)

    def attempt(self, kind: int, v: int) -> None:
        if self.model.legal(kind, v):
            self.model.play(kind, v)
            self.game.play(moves((kind, v)))
            self.played.append((kind, v))
            return
        with pytest.raises(IllegalMove) as caught:
            self.game.play(moves((kind, v)))
        error = caught.value
        assert (error.number, error.kind, error.vertex) == (len(self.played) + 1, KINDS[kind], v)
        assert (error.red, error.M) == (len(self.model.red), self.model.M)
        assert ("needs a" in error.reason) == (len(self.model.red) == self.model.M and self.without_limit(kind, v))
        self.game = Referee(self.graph, self.model.M, self.model.rules)
        self.game.play(moves(*self.played))

    def without_limit(self, kind: int, v: int) -> bool:
        M, self.model.M = self.model.M, self.graph.vertices
        legal = self.model.legal(kind, v)
        self.model.M = M
        return legal

    @rule(kind=st.integers(0, 3), vertex=st.integers(0, 7))
    def any_move(self, kind: int, vertex: int) -> None:
        self.attempt(kind, vertex % self.graph.vertices)

    @rule(choice=st.integers(0, 31))
    def legal_move(self, choice: int) -> None:
        every = [(kind, v) for kind in range(4) for v in range(self.graph.vertices)]
        if legal := [move for move in every if self.model.legal(*move)]:
            self.attempt(*legal[choice % len(legal)])

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "game"):
            return
        game, model = self.game.finish(), self.model
        assert (game.moves, game.reads, game.writes) == (len(self.played), model.reads, model.writes)
        assert (self.game.red, game.peak_red, game.io) == (len(model.red), model.peak, model.reads + model.writes)
        missing = [v for v in self.graph.outputs.tolist() if v not in model.blue]
        assert (game.legal, game.complete, game.missing_outputs) == (True, not missing, len(missing))
        assert game.first_missing == (f"v{missing[0]}" if missing else None)


TestAgainstTwoSets = AgainstTwoSets.TestCase
TestAgainstTwoSets.settings = settings(strategies.draws(40, 200), stateful_step_count=40)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (2, 1, 3), (2, 3, 2), (3, 4, 2)])
def test_a_legal_game(m: int, k: int, n: int) -> None:
    graph, game, M = matmul(m, k, n)
    result = play(graph, M, game)
    assert (result.legal, result.complete, result.violation) == (True, True, None)
    assert (result.moves, result.peak_red) == (len(game), M)
    assert (result.reads, result.writes, result.io) == (2 * m * k * n, m * n, 2 * m * k * n + m * n)
    assert result.io >= m * k + k * n + m * n  # compulsory: every input read, every output written
    assert play(graph, M, game, "no-recompute").complete


# Vertices of matmul(1, 2, 1): A[0,0] A[0,1] B[0,0] B[1,0], then product 1, product 2, their sum.
A0, A1, B0, B1, P1, P2, S = range(7)
BOTH = [(READ, A0), (READ, B0)]
FACTORS = [*BOTH, (READ, A1), (READ, B1)]


@pytest.mark.parametrize(
    ("rules", "M", "game", "message"),
    [
        ("hong-kung", 9, [(READ, P1)],
         "move 1: read C[0,0] (product 1 of 2): C[0,0] (product 1 of 2) has no blue pebble: "
         "it is no input and was never written (red 0 of 9)"),
        ("hong-kung", 9, [(READ, A0), (WRITE, B0)], "move 2: write B[0,0]: B[0,0] has no red pebble (red 1 of 9)"),
        ("hong-kung", 9, [(DELETE, A1)], "move 1: delete A[0,1]: A[0,1] has no red pebble (red 0 of 9)"),
        ("hong-kung", 9, [(COMPUTE, A1)],
         "move 1: compute A[0,1]: A[0,1] is an input, which can be read but not computed (red 0 of 9)"),
        ("hong-kung", 9, [(READ, A0), (COMPUTE, P1)],
         "move 2: compute C[0,0] (product 1 of 2): predecessor B[0,0] has no red pebble (red 1 of 9)"),
        ("hong-kung", 9, [*FACTORS, (COMPUTE, P2), (COMPUTE, S)],
         "move 6: compute C[0,0] (sum 2 of 2): predecessor C[0,0] (product 1 of 2) has no red pebble (red 5 of 9)"),
        ("hong-kung", 2, [*BOTH, (COMPUTE, P1)],
         "move 3: compute C[0,0] (product 1 of 2): needs a 3rd red pebble, M = 2"),
        ("hong-kung", 1, BOTH, "move 2: read B[0,0]: needs a 2nd red pebble, M = 1"),
        ("hong-kung", 9, [(COMPUTE, 7)],
         "move 1: compute vertex 7: this vertex does not exist; the graph has 7, numbered from 0 (red 0 of 9)"),
        ("hong-kung", 9, [(READ, A0), (DELETE, -1)],
         "move 2: delete vertex -1: this vertex does not exist; the graph has 7, numbered from 0 (red 1 of 9)"),
        ("replace", 9, [(READ, A0), (DELETE, A0), (READ, A0)],
         "move 3: read A[0,0]: A[0,0] has no blue pebble: under 'replace' a read takes the blue pebble away, "
         "and the red one was deleted later, so the value is lost (red 0 of 9)"),
        ("replace", 9, [(READ, A0), (READ, A0)],
         "move 2: read A[0,0]: A[0,0] has no blue pebble: under 'replace' a read takes the blue pebble away, "
         "and the red one is still there (red 1 of 9)"),
        ("replace", 9, [*BOTH, (COMPUTE, P1), (WRITE, P1), (READ, P1), (DELETE, P1), (READ, P1)],
         "move 7: read C[0,0] (product 1 of 2): C[0,0] (product 1 of 2) has no blue pebble: under 'replace' a read "
         "takes the blue pebble away, and the red one was deleted later, so the value must be computed again "
         "(red 2 of 9)"),
        ("replace", 9, [*FACTORS, (COMPUTE, P1), (COMPUTE, P2), (WRITE, P1), (COMPUTE, S)],
         "move 8: compute C[0,0] (sum 2 of 2): predecessor C[0,0] (product 1 of 2) has no red pebble: "
         "under 'replace' a write takes the red pebble away (red 5 of 9)"),
        ("replace", 9, [(READ, A0), (WRITE, A0), (DELETE, A0)],
         "move 3: delete A[0,0]: A[0,0] has no red pebble: under 'replace' a write takes the red pebble away "
         "(red 0 of 9)"),
        ("replace", 9, [*BOTH, (COMPUTE, P1), (WRITE, P1), (READ, P1), (DELETE, P1), (WRITE, P1)],
         "move 7: write C[0,0] (product 1 of 2): C[0,0] (product 1 of 2) has no red pebble (red 2 of 9)"),
        ("no-recompute", 9, [*BOTH, (COMPUTE, P1), (DELETE, P1), (COMPUTE, P1)],
         "move 5: compute C[0,0] (product 1 of 2): C[0,0] (product 1 of 2) was already computed, "
         "and under 'no-recompute' that is allowed only once (red 2 of 9)"),
    ],
)  # fmt: skip
def test_an_illegal_move_tells_its_story(rules: str, M: int, game: Pairs, message: str) -> None:
    graph = matmul(1, 2, 1)[0]
    with pytest.raises(IllegalMove) as caught:
        play(graph, M, game, rules)
    error = caught.value
    assert str(error) == message
    kind, vertex = game[-1]
    assert (error.number, error.kind, error.vertex, error.M) == (len(game), KINDS[kind], vertex, M)
    assert error.reason in message
    assert (error.game.moves, error.game.legal, error.game.complete) == (len(game) - 1, False, False)
    assert error.game == play(graph, M, game, rules, strict=False)
    assert str(pickle.loads(pickle.dumps(error))) == message  # errors cross process boundaries


@pytest.mark.parametrize(("M", "word"), [(10, "11th"), (12, "13th"), (20, "21st"), (22, "23rd"), (111, "112th")])
def test_the_pebble_too_many_is_counted_as_people_do(M: int, word: str) -> None:
    graph = Dag([[]] * (M + 1), list(range(M + 1)), [])
    with pytest.raises(IllegalMove, match=f"needs a {word} red pebble, M = {M}$"):
        play(graph, M, [(READ, v) for v in range(M + 1)])


@pytest.mark.parametrize("vertex", [-1, 7, 2**61 - 1, -(2**61)])
def test_the_kernel_stays_within_its_arrays(vertex: int) -> None:
    graph = matmul(1, 2, 1)[0]
    game = Referee(graph, 9)
    game._state = np.full(9, 0xFF, dtype=np.uint8)[1:8]  # what lies around it would make any move legal
    for kind in range(4):
        with pytest.raises(IllegalMove, match="this vertex does not exist"):
            game.play(moves((kind, vertex)))
        assert game.moves == 0
        game._violation = None


def test_no_limit_is_too_high() -> None:
    graph, game, M = matmul(1, 2, 1)
    assert play(graph, 10**30, game).peak_red == M


def test_a_game_is_over_after_an_illegal_move() -> None:
    game = Referee(matmul(1, 2, 1)[0], 9)
    for chunk in (moves((READ, A0), (DELETE, A1)), moves((READ, B0))):
        with pytest.raises(IllegalMove, match=r"^move 2: delete"):
            game.play(chunk)
    assert (game.moves, game.reads, game.writes, game.red) == (1, 1, 0, 1)


def test_a_constant_is_computed_from_nothing() -> None:
    graph = Dag([[], []], inputs=[0], outputs=[1])
    assert play(graph, 1, [(COMPUTE, 1), (WRITE, 1)]).complete


def test_an_incomplete_game_is_legal() -> None:
    graph, game, M = matmul(2, 1, 2)
    result = play(graph, M, game[:-7])  # the last output is neither computed nor written
    assert (result.legal, result.complete, result.missing_outputs) == (True, False, 1)
    assert result.first_missing == "C[1,1] (product 1 of 1)"
    assert str(result).endswith("outputs without a blue pebble: 1, the first is C[1,1] (product 1 of 1)")


def test_what_a_game_prints_and_its_data() -> None:
    graph, game, M = matmul(1, 2, 1)
    result = play(graph, M, game)
    assert str(result).splitlines() == [
        "rules     hong-kung",
        "graph     7 vertices, 6 edges",
        f"moves     {len(game)}",
        "reads     4 words",
        "writes    1 word",
        "I/O       5 words",
        "peak red  4 of M = 4 words",
        "verdict   legal and complete",
    ]
    data = json.loads(json.dumps(result.to_dict()))
    assert (data["io"], data["legal"], data["complete"], data["violation"]) == (5, True, True, None)
    bad = play(graph, M, [(DELETE, S)], strict=False)
    assert bad.violation is not None
    assert str(bad).endswith(f"verdict   illegal: {bad.violation.message}")
    assert json.loads(json.dumps(bad.to_dict()))["violation"]["vertex"] == S


@pytest.mark.parametrize(("m", "k", "n"), [(1, 2, 1), (2, 3, 2)])
@pytest.mark.parametrize("rules", ["hong-kung", "no-recompute"])
def test_no_move_of_a_tight_game_can_be_left_out(m: int, k: int, n: int, rules: str) -> None:
    graph, game, M = matmul(m, k, n)
    for i, (kind, _) in enumerate(game):
        if kind != DELETE:
            assert not play(graph, M, game[:i] + game[i + 1 :], rules, strict=False).complete, f"move {i + 1}"
    with pytest.raises(IllegalMove, match=f"needs a {M}th red pebble"):
        play(graph, M - 1, game, rules)


def test_a_reread_input_is_lost_under_replace() -> None:
    graph, game, M = matmul(1, 1, 2)
    with pytest.raises(IllegalMove, match=r"^move 7: read A\[0,0\]: .* so the value is lost"):
        play(graph, M, [move for move in game if move != (DELETE, 3)], "replace")


@given(data=st.data(), cuts=st.lists(st.integers(0, 60)), rules=st.sampled_from(sorted(RULES)))
@settings(deadline=None)
def test_chunks_do_not_matter(data: st.DataObject, cuts: list[int], rules: str) -> None:
    graph, game, M = matmul(2, 2, 2)
    left_out = data.draw(st.integers(0, len(game)))
    stream = moves(*game[:left_out], *game[left_out + 1 :])
    whole = referee(graph, M, [stream], rules, strict=False)
    assert referee(graph, M, np.split(stream, sorted(cuts)), rules, strict=False) == whole
    assert referee(graph, M, chunks(stream, 3), rules, strict=False) == whole


@pytest.mark.one_in(3)
@pytest.mark.parametrize("index", [np.uint32, np.int64])
@pytest.mark.parametrize("vertex", [np.int32, np.int64])
def test_widths_of_the_graph_do_not_matter(index: type, vertex: type) -> None:
    graph, game, M = matmul(2, 2, 2)
    graph.indptr, graph.preds = graph.indptr.astype(index), graph.preds.astype(vertex)
    every_other = np.zeros(2 * len(game), dtype=np.int64)
    every_other[::2] = moves(*game)
    assert referee(graph, M, [every_other[::2]]).complete  # nor that a chunk is a strided view


def test_wrong_arguments() -> None:
    graph = matmul(1, 1, 1)[0]
    with pytest.raises(UnknownName, match="did you mean 'hong-kung'"):
        Referee(graph, 3, "hongkung")
    for M in (0, -1, 2.5, True, "3"):
        with pytest.raises(UsageError, match="M must be a whole number"):
            Referee(graph, M)  # type: ignore[arg-type]
    for stream in (moves((READ, 0)), [[0]], [np.zeros(1)], [np.zeros((1, 1), np.int64)]):
        with pytest.raises(UsageError, match="one-dimensional arrays of int64"):
            referee(graph, 3, stream)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("indptr", [0, 0, 2]),
        ("indptr", [0, 0, 0, 3]),
        ("indptr", [0, 2, 0, 2]),
        ("indptr", [1, 1, 1, 2]),
        ("preds", [0, 3]),
        ("preds", [-1, 0]),
        ("inputs", [3]),
        ("outputs", [-1]),
    ],
)
def test_a_graph_that_contradicts_itself(field: str, value: list[int]) -> None:
    graph = matmul(1, 1, 1)[0]  # two inputs and their product
    setattr(graph, field, np.array(value))
    with pytest.raises(UsageError, match=r"indptr must be|must be vertices"):
        Referee(graph, 3)


def test_an_empty_game() -> None:
    graph = Dag([], [], [])
    assert referee(graph, 1, []).complete
    with pytest.raises(IllegalMove, match="this vertex does not exist"):
        play(graph, 1, [(READ, 0)])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_saved_game_is_played_again(tmp_path: Path, size: int) -> None:
    graph, game, M = matmul(2, 3, 2)
    path = tmp_path / "game.npy"
    with saving(path, chunks(moves(*game), size)) as stream:
        result = referee(graph, M, stream)
    saved = load(path)
    assert saved.tolist() == moves(*game).tolist()
    assert referee(graph, M, chunks(saved, 5)) == referee(graph, M, [saved]) == result
    assert list(tmp_path.iterdir()) == [path]


def test_a_game_saved_for_people(tmp_path: Path) -> None:
    graph, game, _ = matmul(1, 1, 1)
    with saving(tmp_path / "game.txt", [moves(*game)], graph.describe):
        pass  # whole, though nobody looked at the stream
    lines = (tmp_path / "game.txt").read_text().splitlines()
    assert lines[:3] == ["read A[0,0]", "read B[0,0]", "compute C[0,0] (product 1 of 1)"]
    assert len(lines) == len(game)


def test_a_saved_illegal_game_is_whole_too(tmp_path: Path) -> None:
    graph, game, M = matmul(1, 2, 1)
    with saving(tmp_path / "game.npy", chunks(moves(*game), 2)) as stream:
        assert not referee(graph, M - 1, stream, strict=False).legal
    assert load(tmp_path / "game.npy").size == len(game)


def broken() -> Iterator[np.ndarray]:
    yield moves((READ, 0))
    raise RuntimeError("the schedule is wrong")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    graph, game, M = matmul(1, 2, 1)
    (tmp_path / "game.npy").write_bytes(b"an older game")
    with pytest.raises(IllegalMove), saving(tmp_path / "game.npy", [moves(*game)]) as stream:
        referee(graph, M - 1, stream)
    with pytest.raises(RuntimeError), saving(tmp_path / "game.npy", broken()) as stream:
        referee(graph, M, stream)
    with saving(tmp_path / "game.npy", broken()) as stream, pytest.raises(RuntimeError):
        referee(graph, M, stream)  # the error does not leave the block, but the stream is not whole
    with (
        pytest.raises(UsageError, match="holds at most"),
        saving(tmp_path / "game.txt", [np.zeros(TEXT_LIMIT + 1, int)]),
    ):
        pass
    with pytest.raises(UsageError, match=r"must end in \.npy or \.txt"), saving(tmp_path / "game.csv", []):
        pass
    with pytest.raises(UsageError, match="cannot save moves to"), saving(tmp_path / "no" / "game.npy", []):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["game.npy"]
    assert (tmp_path / "game.npy").read_bytes() == b"an older game"


def test_files_that_hold_no_moves(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("read A[0,0]")
    np.save(tmp_path / "floats.npy", np.zeros(3))
    for name in ("missing.npy", "text.npy", "floats.npy"):
        with pytest.raises(UsageError, match=r"cannot read moves|one-dimensional arrays of int64"):
            load(tmp_path / name)


@given(kind=st.integers(0, 3), vertex=st.integers(0, 2**60))
def test_a_packed_move_is_unpacked(kind: int, vertex: int) -> None:
    assert unpack(pack(kind, vertex)) == (kind, vertex)


def test_a_game_that_ends_in_an_illegal_move_is_not_complete() -> None:
    """Not even if all its outputs were in memory before."""
    dag = Dag([[], [0]], [0], [1])
    right = pack(*map(np.array, zip((READ, 0), (COMPUTE, 1), (WRITE, 1), strict=True)))
    wrong = np.append(right, pack(np.array([COMPUTE]), np.array([0])))
    assert referee(dag, 2, [right]).complete
    game = referee(dag, 2, [wrong], strict=False)
    assert not game.legal and not game.missing_outputs
    assert not game.complete and game.to_dict()["complete"] is False


def test_why_there_is_no_blue_pebble() -> None:
    """Under 'replace' a value that was written and read is in memory no more; one that never was, was never written."""
    dag = Dag([[], [0]], [0], [1])
    written = [(READ, 0), (COMPUTE, 1), (WRITE, 1), (READ, 1)]
    for moves_, reason in (
        ([(READ, 0), (READ, 1)], "it is no input and was never written"),
        ([*written, (READ, 1)], "under 'replace' a read takes the blue pebble away, and the red one is still there"),
        ([*written, (DELETE, 1), (READ, 1)], "deleted later, so the value must be computed again"),
        ([(READ, 0), (DELETE, 0), (READ, 0)], "deleted later, so the value is lost"),
    ):
        stream = pack(*map(np.array, zip(*moves_, strict=True)))
        with pytest.raises(IllegalMove, match=reason):
            referee(dag, 2, [stream], "replace")
    stream = pack(np.array([READ, READ]), np.array([0, 1]))
    with pytest.raises(IllegalMove, match="it is no input and was never written"):
        referee(dag, 2, [stream])
