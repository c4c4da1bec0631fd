"""Schedules inside schedules on paths of memories: words, room, closed forms, games and numbers agree."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from games.test_trees import Sets
from hypothesis import example, given, settings, strategies as st
from strategies import amount
from typer.testing import CliRunner

from pebblesim import graphs
from pebblesim.advice.cards import card
from pebblesim.analysis.count import count, peak_words
from pebblesim.analysis.formula import formula
from pebblesim.analysis.peak import peak_red
from pebblesim.cli.main import app
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.game.board import IllegalMove
from pebblesim.game.moves import READ, WRITE
from pebblesim.game.trees import Tree, TreeGame, play
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.lower_bounds.bounds import best
from pebblesim.machines.finding import on_machine
from pebblesim.machines.machine import Level, Machine
from pebblesim.machines.named import machine
from pebblesim.machines.nesting import nested, tiles
from pebblesim.machines.playing import moves
from pebblesim.machines.routes import Nested

Inner = tuple[str, tuple[str, ...], dict[str, int]]
PRODUCTS = ("matmul-tiled", "matmul-streamed", "matmul-blocked", "matmul-resident")


class Case:
    """A nested schedule at some sizes, with its graph and its game on the smallest path that it fits on."""

    def __init__(self, name: str, dims: dict[str, int], blocks: dict[str, int], inner: list[Inner]) -> None:
        self.schedule, self.dims = get(name).in_dims(dims), dims
        self.nest, self.sizes = Nested(self.schedule.program), {**dims, **blocks}
        for product, below, sides in inner:
            self.nest = nested(self.nest, get(product), below)
            self.sizes |= {f"{block}_{self.nest.lowest}": side for block, side in sides.items()}
        options = self.schedule.graph_options(self.sizes)
        self.graph = graphs.build(self.schedule.problem.name, summation="chain", **dims, **options)
        lowest = self.nest.lowest
        self.room = [peak_words(self.nest.held(k), self.sizes) for k in range(1, lowest)]
        self.room.append(peak_red(self.nest.computed, self.sizes))
        self.tree = Tree.path(*(max(1, words) for words in self.room))
        self.moves = np.concatenate(list(moves(self.nest, self.sizes, self.graph, self.tree)))

    def play(self) -> TreeGame:
        return play(self.graph, self.tree, [self.moves])

    def agree(self) -> None:
        """Assert that all readings agree."""
        game = self.play()
        assert game.missing == []
        for number in range(1, self.nest.lowest + 1):
            program = self.nest.boundary(number)
            moved = count(program, self.sizes).total
            assert (game.down[number - 1], game.up[number - 1]) == (moved.reads, moved.writes)
            closed = formula(program)
            assert closed.function_of("reads")(**self.sizes) == moved.reads
            assert closed.function_of("writes")(**self.sizes) == moved.writes
        assert count(self.nest.boundary(1), self.sizes).total == count(self.schedule.program, self.sizes).total
        assert game.peak[-1] == self.room[-1]
        assert all(held <= room for held, room in zip(game.peak, self.room, strict=True))
        inputs = self.schedule.problem.random_inputs(self.dims, kept=self.schedule.kept)
        outputs, reference = (
            numbers(self.nest.computed, self.sizes, inputs),
            self.schedule.problem.reference(inputs, None),
        )
        for name in outputs:
            np.testing.assert_allclose(outputs[name], reference[name], rtol=1e-9, atol=1e-9)


@st.composite
def cases(draw: st.DrawFn, names: tuple[str, ...] = ()) -> tuple[Any, ...]:
    name = draw(st.sampled_from(names or sorted(SCHEDULES)))
    schedule = get(name)
    dims = {dim: draw(st.integers(1, 5)) for dim in schedule.problem.dims}
    blocks = {block: draw(st.integers(1, 4)) for block in schedule.blocks}
    known = sorted({tile.name for tile in tiles(schedule.program)} - {""})
    below = tuple(draw(st.sets(st.sampled_from(known)))) if known else ()
    inner = []
    for kept in (below, draw(st.sampled_from([(), below])))[: draw(st.integers(1, 2))]:
        product = draw(st.sampled_from(PRODUCTS))
        inner.append((product, kept, {block: draw(st.integers(1, 3)) for block in get(product).blocks}))
    return name, dims, blocks, inner


OLD_WORDS = (
    "flash1-forward",
    {"n": 1, "d": 1},
    {"B_r": 1, "B_c": 1},
    [("matmul-tiled", ("m_i", "l_block"), {"b": 1})],
)


@pytest.mark.one_in(4)
@given(cases())
@example(OLD_WORDS)
@settings(max_examples=amount(5, 1000))
def test_all_readings_of_a_nested_schedule_agree_or_it_is_refused(case: tuple[Any, ...]) -> None:
    try:
        made = Case(*case)
    except UsageError:
        return
    made.agree()


NESTED: dict[str, tuple[str, dict[str, int], dict[str, int], list[Inner]]] = {
    "matmul, four memories": (
        "matmul-tiled",
        {"m": 7, "k": 9, "n": 6},
        {"b": 4},
        [("matmul-tiled", (), {"b": 3}), ("matmul-streamed", (), {"a": 2, "b": 2})],
    ),
    "accumulators below": (
        "matmul-tiled",
        {"m": 5, "k": 7, "n": 3},
        {"b": 3},
        [("matmul-streamed", ("C_ij",), {"a": 2, "b": 2})],
    ),
    "rows and columns of one dimension": ("no-cache", {"n": 3, "d": 2}, {}, [("matmul-tiled", (), {"b": 2})]),
    "a sum is added to a value that came from above": (
        "flash2-forward",
        {"n": 1, "d": 1},
        {"B_r": 1, "B_c": 1},
        [("matmul-tiled", ("Q_i", "m_i", "O_i", "K_j", "m_new", "P"), {"b": 1})],
    ),
    "forward": (
        "flash2-forward",
        {"n": 5, "d": 3},
        {"B_r": 2, "B_c": 3},
        [("matmul-streamed", ("P", "l_i", "m_i", "m_new", "O_i"), {"a": 2, "b": 2})],
    ),
    "forward, four memories": (
        "flash2-forward",
        {"n": 5, "d": 3},
        {"B_r": 3, "B_c": 2},
        [
            ("matmul-tiled", ("P", "l_i", "m_i", "m_new", "O_i"), {"b": 2}),
            ("matmul-streamed", ("P", "l_i", "m_i", "m_new", "O_i"), {"a": 2, "b": 2}),
        ],
    ),
    "backward": (
        "flash2-backward",
        {"n": 5, "d": 3},
        {"B_r": 3, "B_c": 2},
        [("matmul-streamed", ("P", "dS", "dK_j", "dV_j"), {"a": 2, "b": 1})],
    ),
    "rows and columns of one range": (
        "no-cache",
        {"n": 5, "d": 3},
        {},
        [("matmul-tiled", (), {"b": 3}), ("matmul-streamed", (), {"a": 2, "b": 2})],
    ),
    "all above": ("small-cache", {"n": 5, "d": 3}, {"B": 3}, [("matmul-streamed", (), {"a": 2, "b": 2})]),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", NESTED.values(), ids=NESTED)
def test_nested_schedules_agree(case: tuple[Any, ...]) -> None:
    Case(*case).agree()


def tiles_of(length: int, *blocks: int) -> Iterator[int]:
    """The lengths of tiles of tiles, from the inside."""
    if not blocks:
        yield length
        return
    for start in range(0, length, blocks[0]):
        yield from tiles_of(min(blocks[0], length - start), *blocks[1:])


@given(st.tuples(*[st.integers(1, 9)] * 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=amount(20, 500))
def test_words_of_products_in_products_are_those_of_loops(
    shape: tuple[int, int, int], b: int, a_2: int, b_2: int
) -> None:
    """Square tiles in the first memory, rank-1 updates of a_2 x b_2 sums in the second, which go up after b terms."""
    m, k, n = shape
    nest = nested(Nested(get("matmul-tiled").program), get("matmul-streamed"))
    sizes = {"m": m, "k": k, "n": n, "b": b, "a_2": a_2, "b_2": b_2}
    words: Counter[str] = Counter()
    for rows in tiles_of(m, b):
        for columns in tiles_of(n, b):
            for number, terms in enumerate(tiles_of(k, b)):
                for r in tiles_of(rows, a_2):
                    for c in tiles_of(columns, b_2):
                        words["down"] += terms * (r + c) + (r * c if number else 0)
                        words["up"] += r * c
    moved = count(nest.boundary(2), sizes).total
    assert (moved.reads, moved.writes) == (words["down"], words["up"])


@pytest.mark.one_in(2)
@given(st.data())
@settings(max_examples=amount(20, 700))
def test_an_edited_nested_game_is_refused_or_right(data: st.DataObject) -> None:
    """The referee of trees says of an edit what sets of vertices say, and its words and peaks are theirs."""
    name = data.draw(st.sampled_from(["matmul, four memories", "accumulators below", "backward"]))
    program, _, blocks, inner = NESTED[name]
    dims = {dim: data.draw(st.integers(1, 3)) for dim in get(program).problem.dims}
    case = Case(program, dims, blocks, inner)
    shift = (len(case.tree.kinds) - 1).bit_length()
    stream = [(*case.tree.kinds[move & (1 << shift) - 1], move >> shift) for move in case.moves.tolist()]
    at, other = (data.draw(st.integers(0, len(stream) - 1)) for _ in range(2))
    match data.draw(st.sampled_from(["drop", "twice", "swap", "vertex", "place"])):
        case "drop":
            del stream[at]
        case "twice":
            stream.insert(other, stream[at])
        case "swap":
            stream[at], stream[other] = stream[other], stream[at]
        case "vertex":
            stream[at] = (*stream[at][:2], data.draw(st.integers(0, case.graph.vertices - 1)))
        case "place":
            stream[at] = (*data.draw(st.sampled_from(case.tree.kinds)), stream[at][2])
    sets = Sets(case.graph, case.tree, once=False)
    wrong = None
    for number, move in enumerate(stream, 1):
        if not sets.legal(move):
            wrong = number
            break
        sets.make(move)
    edited = case.tree.moves(*stream)
    if wrong is not None:
        with pytest.raises(IllegalMove, match=f"move {wrong}: "):
            play(case.graph, case.tree, [edited])
        return
    game = play(case.graph, case.tree, [edited])
    nodes = range(1, len(case.tree.names))
    assert (game.down, game.up) == tuple([sets.words[kind, node] for node in nodes] for kind in (READ, WRITE))
    assert game.peak == sets.peak
    held = {case.graph.describe(v) for v in sets.held[0]}
    assert set(game.missing) == {case.graph.describe(v) for v in case.graph.outputs.tolist()} - held


def test_what_cannot_be_nested_is_refused_in_a_sentence() -> None:
    flash, streamed = Nested(get("flash2-forward").program), get("matmul-streamed")
    with pytest.raises(UsageError, match="its tile m_i takes over the words of m_new; let m_i and m_new live in"):
        nested(flash, streamed)
    with pytest.raises(UnknownName, match="tile of flash2-forward"):
        nested(flash, streamed, ["S"])
    with pytest.raises(UsageError, match="products need one of matmul"):
        nested(flash, get("flash2-backward"))
    with pytest.raises(UsageError, match="its tile l_i still has old words of l_m when l_block replaces them; let l_i"):
        Case(*OLD_WORDS)
    with pytest.raises(UsageError, match="divide the rows of K_j, and P needs them across rows; let K_j stay"):
        nested(flash, streamed, ["K_j", "m_i", "m_new"], several=True)


def test_what_is_advised_for_tiles_below_can_be_done() -> None:
    """From one tile on, each refusal says what to give for --below, until the schedule is counted."""
    three = Machine("three", "memory", (Level("A", 2**15), Level("B", 2**14), Level("C", 2**13)))
    for name, below, place in (
        ("flash2-forward", ["P"], "H100"),
        ("flash2-forward", ["P"], three),
        ("flash1-forward", [], "H100"),
        ("small-cache", [], "H100"),
    ):
        counted = None
        while counted is None:
            try:
                counted = on_machine(name, machine=place, below=below, n=64, d=16)
            except UsageError as error:
                (said,) = re.findall(r"with --below (\S+) \(in Python: below=\[", str(error))
                assert {*below} < {*said.split(",")}
                below = said.split(",")
        assert counted.below == tuple(below)


def test_attention_with_products_in_tiles_agrees() -> None:
    """The schedule of docs/machines.md: rows in the first memory, products in tiles of the second."""
    page = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    code = page[page.index('@ps.schedule(problem="forward"') :].partition("\n\n\n")[0]
    with SCHEDULES.temporary():
        exec("import pebblesim as ps\nfrom pebblesim import Block, exp, rowsum\n" + code, {})
        for n, d, B_r, B_c, a in ((6, 4, 5, 3, 2), (5, 3, 2, 2, 3), (1, 1, 1, 1, 1)):
            inner = [("matmul-streamed", (), {"a": a, "b": a})]
            Case("tiles-of-scores", {"n": n, "d": d}, {"B_r": B_r, "B_c": B_c}, inner).agree()


MACHINE = (
    'name = "mine"\nroot = "DRAM"\n[[memory]]\nname = "SRAM"\ncapacity = "1KiB"\nbandwidth = 1e9\nenergy = 2e-12\n'
)
BELOW = '[[memory]]\nname = "registers"\ncapacity = 80\n'


def test_a_machine_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MACHINE + BELOW)
    sizes: dict[str, Any] = {"machine": str(file), "dtype": "float32", "m": 20, "k": 20, "n": 20}
    counted = on_machine("matmul-tiled", search=False, **sizes)
    shared, registers = counted.boundaries
    assert (shared.capacity, registers.capacity) == (256, 20)
    assert counted.blocks == {"b": 9, "a_2": 3, "b_2": 3}
    assert shared.words == count(get("matmul-tiled").program, {"m": 20, "k": 20, "n": 20, "b": 9}).total.io
    assert shared.seconds == shared.words * 4 / 1e9
    assert shared.joules == shared.words * 4 * 2e-12
    assert registers.seconds is None
    matmul = get("matmul-tiled").problem
    assert shared.bound == best(matmul, {"m": 20, "k": 20, "n": 20}, 276)
    assert registers.bound == best(matmul, {"m": 20, "k": 20, "n": 20}, 20)
    assert counted.feasible
    assert not on_machine("matmul-tiled", search=False, blocks={"a_2": 9, "b_2": 9}, **sizes).feasible
    with pytest.raises(Infeasible, match="registers holds 20 words, and matmul-tiled needs 21 there"):
        on_machine("matmul-tiled", search=False, blocks={"a_2": 9}, **sizes)


def test_machines_of_cards_have_their_figures() -> None:
    shared, registers = machine("H100").levels
    known = card("H100").figures
    assert (shared.capacity, registers.capacity) == (known["shared_per_multiprocessor"].value, known["registers"].value)
    assert shared.source == f"{known['shared_per_multiprocessor'].source}; bandwidth: {known['l2_bandwidth'].source}"
    assert machine("h100").peak["float16"] == card("H100").peak["float16"].value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "no entry of a machine"),
        ("", r"this is missing: name; root; a table \[\[memory\]\]\."),
        (
            MACHINE.replace('name = "SRAM"\n', "") + BELOW.replace("capacity = 80", ""),
            "name of memory 1.*capacity of memory 2",
        ),
        (MACHINE.replace('"1KiB"', "0"), "capacity = 0 is not a size in bytes"),
        (MACHINE.replace("1e9", '"fast"'), "bandwidth = 'fast' must be a number above 0"),
        (MACHINE.replace("energy", "power"), "no entry of a memory"),
        (MACHINE + BELOW.replace("registers", "SRAM"), "those of memories must differ"),
        ("name =", "is not TOML"),
    ],
)
def test_wrong_files_of_machines(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        machine(str(tmp_path / "m.toml"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("flash -n 8 -d 4", "Missing option '-M'; for example"),
        ("flash -n 8 -d 4 -M 99 --machine H100", "one of the two"),
        ("flash -n 8 -d 4 -M 99 --below P", "give one"),
        ("-n 8 -d 4 --machine H100", "0 were given"),
        ("flash2-forward -n 8 -d 4 --machine H100 --l2 4MiB", "--l2 cannot be given with it"),
        ("flash2-forward -n 8 -d 4 --machine H100 --below P", "its tile m_i takes over"),
        ("matmul-tiled -n 8 -d 4 --machine H100 --block x=3", "no block of matmul-tiled"),
        ("matmul-tiled -n 8 -d 4 --machine H100 --blocks best", "--blocks is for a cache"),
    ],
)
def test_count_on_a_machine_refuses(options: str, says: str) -> None:
    shown = CliRunner().invoke(app, ["count", *options.split()])
    assert shown.exit_code != 0
    assert says in str(shown.exception) + shown.output
