"""Queries and keys that differ in number, and in width: every schedule, in every reading, and the bounds."""

from collections import Counter
from typing import Any

import numpy as np
import oracle_loops
import pytest
import strategies
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim import graphs
from pebblesim.analysis.count import count
from pebblesim.analysis.formula import formula
from pebblesim.analysis.masked_peak import masked_peak_red
from pebblesim.analysis.work import KINDS, work
from pebblesim.cachesim.accesses import accesses, accesses_of_blocks
from pebblesim.cli.main import app
from pebblesim.core.errors import UsageError
from pebblesim.game.moves import COMPUTE, unpack
from pebblesim.game.player import moves
from pebblesim.game.referee import Referee
from pebblesim.graphs.operations import Op
from pebblesim.language import Block, Machine, Tensor, exp, log, maximum, program as ir, rowmax, rowsum
from pebblesim.language.masks import Mask, from_array, of
from pebblesim.language.numbers import numbers
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.language.tile_ranges import TileRange
from pebblesim.launches.launches import launches
from pebblesim.launches.path import path

RECTANGULAR = {
    name: schedule.in_dims(schedule.problem.rectangle.dims)
    for name, schedule in SCHEDULES.items()
    if schedule.problem.rectangle
}
side = st.one_of(st.just(1), st.integers(1, 7))


def test_all_problems_with_queries_and_keys_are_rectangular() -> None:
    attention = {name for name, problem in PROBLEMS.items() if problem.maskable}
    assert {schedule.problem.name for schedule in RECTANGULAR.values()} == attention


@st.composite
def masks(draw: st.DrawFn, n_q: int, n_k: int) -> Mask | None:
    """None, bands at both ends, and any pairs, with queries and keys that see nothing."""
    kind = draw(st.sampled_from(["none", "band", "table"]))
    if kind == "none":
        return None
    if kind == "band":
        name = draw(
            st.sampled_from(["causal", f"window:{draw(st.integers(1, n_k + 1))}", f"band:{draw(st.integers(0, 3))}"])
        )
        return of(name + draw(st.sampled_from(["", ":start"])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return from_array(rng.random((n_q, n_k)) < draw(st.sampled_from([0.3, 0.8])), size=(1, 1))


def drawn(data: st.DataObject, schedule: Schedule) -> tuple[dict[str, int], Mask | None]:
    sizes = {name: data.draw(side, name) for name in (*schedule.problem.dims, *schedule.blocks)}
    return sizes, data.draw(masks(sizes["n_q"], sizes["n_k"])) if schedule.maskable else None


def of_mask(schedule: Schedule, mask: Mask | None) -> Any:
    return schedule.under(mask)


@strategies.every(RECTANGULAR, of=6)
@given(data=st.data())
@strategies.draws(2, 30)
def test_game_count_closed_form_peak_and_work_agree(schedule: Schedule, data: st.DataObject) -> None:
    sizes, mask = drawn(data, schedule)
    check_game(schedule, strategies.in_whole_blocks(schedule, sizes), mask)


def check_game(schedule: Schedule, sizes: dict[str, int], mask: Mask | None) -> None:
    program = of_mask(schedule, mask)
    predicted = count(program, sizes, mask=mask)
    peak = predicted.peak_red if mask is None else masked_peak_red(program, sizes, mask)
    allowed = None if mask is None else mask.allowed(sizes["n_q"], sizes["n_k"])
    dims = {dim: sizes[dim] for dim in schedule.problem.dims}
    graph = graphs.build(schedule.problem.name, mask=allowed, **dims, **schedule.graph_options(sizes))
    referee, computed = Referee(graph, peak), Counter[str]()
    for chunk in moves(program, sizes, graph.families, mask=mask):
        kinds, vertices = unpack(chunk)
        ops, times = np.unique(graph.op[vertices[kinds == COMPUTE]], return_counts=True)
        computed.update({Op(op).name.lower(): int(number) for op, number in zip(ops, times, strict=True)})
        referee.play(chunk)
    game = referee.finish()
    assert game.complete
    assert (game.reads, game.writes, game.peak_red) == (predicted.total.reads, predicted.total.writes, peak)
    assert work(program, sizes, mask) == {kind: computed[kind] for kind in KINDS if computed[kind]}
    stream = accesses(program, sizes, mask=mask)
    assert int(stream.sizes[stream.ids].sum()) == predicted.total.io


@strategies.every(RECTANGULAR, of=8)
@given(data=st.data())
@strategies.draws(2, 30)
def test_the_closed_form_is_the_count(schedule: Schedule, data: st.DataObject) -> None:
    sizes = {name: data.draw(side, name) for name in (*schedule.problem.dims, *schedule.blocks)}
    closed, counted = formula(schedule.program), count(schedule.program, sizes)
    assert closed.evaluate(**sizes) == counted.total.io
    assert closed.function_of("peak_words")(**sizes) == counted.peak_words


BAND_FORMS = [
    ("flash1-forward", "causal"),
    ("flash2-forward", "window:4:start"),
    ("flash2-backward", "causal:start"),
    ("flash1-forward", "window:3"),
    pytest.param("small-cache-forward", "window:3", marks=pytest.mark.slow),
    pytest.param("small-cache", "band:1", marks=pytest.mark.slow),
    ("flash-decoding", "causal"),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "band"), BAND_FORMS)
@given(data=st.data())
@strategies.draws(4, 60)
def test_bands_have_closed_forms_on_rectangles(name: str, band: str, data: st.DataObject) -> None:
    """The peak is that of a full tile, which there may be none of that has an allowed pair."""
    schedule, mask = RECTANGULAR[name], of(band)
    closed = formula(schedule.masked, mask)
    size = st.one_of(st.just(1), st.integers(1, 20))
    drawn = {name: data.draw(size, name) for name in (*schedule.problem.dims, *schedule.blocks)}
    for sizes in (drawn, drawn | {"n_q": drawn["n_q"] + drawn["n_k"]}):  # the first of many queries may see no key
        counted = count(schedule.masked, sizes, mask=mask)
        assert closed.evaluate(**sizes) == counted.total.io
        assert closed.peak_is_bound and closed.function_of("peak_words")(**sizes) >= counted.peak_words
        if sizes["n_q"] == sizes["n_k"]:
            assert closed.function_of("peak_words")(**sizes) == counted.peak_words


def visited(program: ir.Program, sizes: dict[str, int], allowed: np.ndarray | None) -> int:
    """Most words in the cache, tile by tile: each pair of tiles is looked for in the table of the mask."""
    place: dict[ir.Range, tuple[int, int]] = {}
    peak = held = 0

    def at(rng: ir.Range) -> tuple[int, int]:
        return place.get(rng, (0, sizes[rng.dim]))

    def length(block: str | int) -> int:
        return sizes[block] if isinstance(block, str) else block

    def run(body: list[ir.Node]) -> None:
        nonlocal peak, held
        for node in body:
            if isinstance(node, ir.Loop):
                rng = node.range
                start, stop = at(rng.parent)
                stop = min(stop, start + length(rng.block)) if rng.first else stop
                start = start if rng.after is None else min(stop, start + length(rng.after))
                for first in range(start, stop, length(rng.block)):
                    place[rng] = first, min(first + length(rng.block), stop)
                    if node.when is not None and allowed is not None:
                        rows, columns = at(node.when.rows), at(node.when.columns)
                        if allowed[slice(*rows), slice(*columns)].any() == node.when.none:
                            continue
                    run(node.body)
                place.pop(rng, None)
            elif tile := ir.entering(node) or ir.leaving(node):
                words = int(np.prod([stop - start for start, stop in map(at, tile.ranges)]))
                held += words if ir.entering(node) else -words
                peak = max(peak, held)

    for phase in program.phases:
        held = 0
        run(phase.body)
    return peak


@strategies.every(RECTANGULAR, of=4)
@given(data=st.data())
@strategies.draws(2, 40)
def test_peak_words_are_those_of_the_tiles_that_are_visited(schedule: Schedule, data: st.DataObject) -> None:
    sizes, mask = drawn(data, schedule)
    program = of_mask(schedule, mask)
    allowed = None if mask is None else mask.allowed(sizes["n_q"], sizes["n_k"])
    assert count(program, sizes, mask=mask).peak_words == visited(program, sizes, allowed)


def test_a_closed_form_says_where_its_peak_is_a_bound() -> None:
    """A query sees the last of nine keys only, in a tile of one: 7 words; the first tile, of eight, would need 21."""
    name, sizes = "scores-stored-resident", {"n_q": 1, "n_k": 9, "d_k": 3, "d_v": 1}
    blocks = {"a": 1, "b": 8, "c": 1, "e": 1}
    counted = ps.count(name, **sizes, M=69, blocks=blocks, mask="band:0")
    closed = ps.formula(name, "band:0", rectangular=True)
    assert (counted.peak_words, closed.function_of("peak_words")(**sizes, **blocks)) == (7, 21)
    assert closed.peak_is_bound and "peak words ≤ " in str(closed) and r"\le" in closed.latex()
    assert not ps.formula(name, "band:0").peak_is_bound and "peak words = " in str(ps.formula(name, "band:0"))
    assert ps.formula(name, "any").peak_is_bound and not ps.formula(name, rectangular=True).peak_is_bound


@strategies.every(RECTANGULAR, of=6)
@given(data=st.data())
@strategies.draws(2, 30)
def test_the_critical_path_is_that_of_the_blocks_that_move_most(schedule: Schedule, data: st.DataObject) -> None:
    """Block by block, from the stream of what each of them moves."""
    sizes = {name: data.draw(side, name) for name in (*schedule.problem.dims, *schedule.blocks)}
    found = []
    for launch in launches(schedule.program):
        stream = accesses_of_blocks(schedule.program, sizes, launch.body, launch.grid)
        ends = np.append(0, np.cumsum(stream.sizes[stream.ids]))[stream.starts]
        found.append((launch.name, len(ends) - 1, int(np.diff(ends).max())))
    assert [tuple(stage) for stage in path(schedule.program, sizes)] == found


@strategies.every(RECTANGULAR, of=6)
@given(data=st.data())
@strategies.draws(2, 100)
def test_no_word_is_moved_that_the_source_does_not_state(schedule: Schedule, data: st.DataObject) -> None:
    """The closed forms in all four sizes, one query and one column of values among them."""
    if schedule.problem.name.removeprefix("projected-") in (
        "forward",
        "backward-qkv",
        "forward-latent",
        "backward-latent",
    ):
        assert schedule.io, f"{schedule.name} states no closed form for n_q ≠ n_k"
    if schedule.io:
        size = st.one_of(st.just(1), st.integers(1, 40))
        sizes = {name: data.draw(size, name) for name in (*schedule.problem.dims, *schedule.blocks)}
        assert oracle_loops.stated(schedule.io, sizes) == count(schedule.program, sizes).total.io


@strategies.every(RECTANGULAR, of=4)
@given(data=st.data())
@strategies.draws(2, 30)
def test_the_numbers_are_the_reference(schedule: Schedule, data: st.DataObject) -> None:
    sizes, mask = drawn(data, schedule)
    allowed = None if mask is None else mask.allowed(sizes["n_q"], sizes["n_k"])
    inputs = schedule.problem.random_inputs(sizes, seed=1, kept=schedule.kept, allowed=allowed)
    reference = schedule.problem.reference(inputs, allowed)
    for name, output in numbers(of_mask(schedule, mask), sizes, inputs, mask).items():
        np.testing.assert_allclose(output, reference[name], rtol=1e-10, atol=1e-12)


@given(data=st.data())
@strategies.draws(60, 500)
def test_masks_of_rectangles_pair_by_pair(data: st.DataObject) -> None:
    """Aligned at the end: query i sees key j if it would in the last rows of a square; else from the start."""
    n_q, n_k, width = (data.draw(st.integers(1, 9)) for _ in range(3))
    name, start = data.draw(st.sampled_from(["causal", "window", "band"])), data.draw(st.booleans())
    mask = of((name if name == "causal" else f"{name}:{width}") + (":start" if start else ""))
    assert mask is not None
    table = np.zeros((n_q, n_k), bool)
    for i in range(n_q):
        for j in range(n_k):
            behind = (i if start else n_k - n_q + i) - j  # how far the key lies before the query's own place
            low = -width if name == "band" else 0
            high = {"causal": n_k + n_q, "window": width - 1, "band": width}[name]
            table[i, j] = low <= behind <= high
    assert np.array_equal(mask.allowed(n_q, n_k), table)
    assert mask.pairs(n_q, n_k) == table.sum()
    rows, columns = (
        TileRange(*sorted(data.draw(st.tuples(*2 * [st.integers(0, n)]))), data.draw(st.integers(1, 10)))
        for n in (n_q, n_k)
    )
    seen = [
        [
            bool(table[i : min(i + rows.block, rows.stop), j : min(j + columns.block, columns.stop)].any())
            for j in range(columns.start, columns.stop, columns.block)
        ]
        for i in range(rows.start, rows.stop, rows.block)
    ]
    assert mask.tiles((n_q, n_k), rows, columns) == sum(map(sum, seen))
    if rows.start < rows.stop and columns.start < columns.stop:
        assert mask.met((n_q, n_k), rows, columns).tolist() == [sum(row) for row in seen]
        assert mask.met((n_q, n_k), rows, columns, 1).tolist() == [sum(column) for column in zip(*seen, strict=True)]
    for axis, n in enumerate((n_q, n_k)):
        block = data.draw(st.integers(1, n))
        lines = table if axis == 0 else table.T
        empty = [not lines[i // block * block : i // block * block + block].any() for i in range(n)]
        assert np.broadcast_to(mask.empty((n_q, n_k), block, axis), n).tolist() == empty


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((1, 32768), {"n": 32768, "d": 64}), ((9, 1), {"n": 9, "d": 2}), ((4, 8), {"n_q": 8, "n_k": 4, "d": 2})],
)
def test_a_mask_of_another_problem_is_refused_with_what_fits(shape: tuple[int, int], dims: dict[str, int]) -> None:
    n_q, n_k = dims.get("n_q", dims.get("n")), dims.get("n_k", dims.get("n"))
    with pytest.raises(UsageError, match=rf"mask blocks has .* = \({n_q}, {n_k}\)"):
        ps.count("flash2-forward", **dims, M=2**18, mask=np.ones(shape, bool))


def test_one_row_of_a_mask_is_a_mask_of_one_query() -> None:
    row = np.arange(40)[None, :] % 10 < 3
    counted = ps.count("flash2-forward", n_q=1, n_k=40, d=4, M=200, mask=row, blocks={"B_r": 1, "B_c": 10})
    assert counted.pairs == 12
    assert counted.reads == 4 + 40 * 8  # each tile of ten keys has an allowed one


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n_q": 1, "n_k": 5}, "takes the sizes n, d, or n_q, n_k, d_k, d_v, where n and d set the dimensions"),
        ({"n": 4, "d": 2, "n_q": 1, "n_k": 5}, "it got n = 4, d = 2, n_q = 1, n_k = 5"),
        ({"n": 4, "d": 2, "m": 1}, "problem 'forward' takes the sizes n, d, or"),
        ({"n": 4}, "it got n = 4"),
        ({"n_qq": 8, "n_k": 8, "d": 4}, r"d = 4; did you mean n_q\?$"),
        ({"n_q": 8, "nk": 8, "d_k": 4}, r"d_k = 4; d_v is missing; did you mean n_k\?$"),
        (
            {"n": 4, "d": 2, "B_c": 4},
            "d = 2, B_c = 4; sizes of blocks are given as blocks={'B_c': 4}, or --block",
        ),
    ],
)
def test_sizes_given_twice_or_of_another_problem(given: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ps.count("flash2-forward", M=100, **given)


def test_n_and_d_stand_for_what_is_not_given() -> None:
    named = ps.count("flash2-forward", n_q=1, n_k=64, d_k=8, d_v=8, M=300)
    for sizes in ({"n_q": 1, "n": 64, "d": 8}, {"n_q": 1, "n_k": 64, "d": 8}, {"n_q": 1, "n": 64, "d_k": 8, "d_v": 8}):
        assert ps.count("flash2-forward", M=300, **sizes).io == named.io
    assert ps.count("flash2-forward", n=64, d=8, M=300).dims == {"n": 64, "d": 8}


def test_closed_forms_in_four_symbols() -> None:
    """FlashAttention-2 by hand: each block of queries reads all keys and values."""
    assert str(ps.formula("flash2-forward", rectangular=True).io) == (
        "d_k*n_k*ceiling(n_q/B_r) + d_k*n_q + d_v*n_k*ceiling(n_q/B_r) + d_v*n_q + n_q"
    )
    assert str(ps.formula("flash2-forward").io) == "2*d*n*ceiling(n/B_r) + 2*d*n + n"
    assert "tiles of n_q by B_r" in ps.show("flash2-forward", rectangular=True)
    with pytest.raises(UsageError, match="no other sizes than m, k, n"):
        ps.formula("matmul-tiled", rectangular=True)


@strategies.every(RECTANGULAR, of=8)
@given(data=st.data())
@strategies.draws(2, 60)
def test_no_schedule_goes_below_a_bound(schedule: Schedule, data: st.DataObject) -> None:
    size = st.integers(1, 200)
    dims, blocks = (
        {name: data.draw(size, name) for name in names} for names in (schedule.problem.dims, schedule.blocks)
    )
    some = st.sampled_from(["causal", "causal:start", "window:7"]).map(of) if schedule.maskable else st.none()
    mask = data.draw(st.one_of(st.none(), some))
    counted = ps.count(schedule, M=1, blocks=blocks, mask=mask, **dims)
    assert counted.io >= counted.lower_bound.value >= counted.every_way.value


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [name for name, problem in PROBLEMS.items() if problem.rectangle])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_bounds_of_a_square_in_all_its_dimensions_are_those_in_n_and_d(name: str, mask: str | None) -> None:
    for n, d, M in strategies.some(((9, 30, 100), (60, 8, 40), (60, 8, 1000), (64, 4, 3000)), 2):
        own = {dim: n if short == "n" else d for dim, short in PROBLEMS[name].rectangle.from_nd.items()}
        found, square = (ps.bounds(name, M=M, mask=mask, **dims) for dims in (own, {"n": n, "d": d}))
        assert [(each.name, each.value) for each in found.lower] == [(each.name, each.value) for each in square.lower]
        assert (found.theta is None) == (square.theta is None)


OPTIMA = [
    ("forward", {"n_q": 1, "n_k": 2, "d_k": 1, "d_v": 1}, 4),
    ("forward", {"n_q": 2, "n_k": 1, "d_k": 1, "d_v": 2}, 4),
    ("forward-relu", {"n_q": 1, "n_k": 2, "d_k": 2, "d_v": 1}, 4),
    ("forward-relu", {"n_q": 2, "n_k": 1, "d_k": 1, "d_v": 2}, 3),
    ("forward-latent", {"n_q": 1, "n_k": 2, "d_v": 1, "d_r": 1}, 4),
    ("forward-latent", {"n_q": 2, "n_k": 1, "d_v": 1, "d_r": 1}, 4),
    ("backward-latent", {"n_q": 1, "n_k": 1, "d_v": 1, "d_r": 1}, 4),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("problem", "dims", "M"), OPTIMA)
def test_exact_optima_of_rectangles_are_no_lower_than_their_bounds(problem: str, dims: dict[str, int], M: int) -> None:
    found = ps.optimum(problem, M=M, seconds=20, **dims)
    assert found.io is not None
    assert found.io >= ps.bounds(problem, M=M, **dims).best.value


@pytest.mark.one_in(2)
def test_dimensions_of_other_names_work_under_masks() -> None:
    def values(x: dict[str, Any], allowed: Any = None) -> dict[str, Any]:
        E = np.exp(x["readers"] @ x["books"].T)
        return {"E": E if allowed is None else E * allowed}

    def scores(m: Machine, readers: Tensor, books: Tensor, *, B: Block) -> None:
        (people, depth), (titles, _) = readers.shape, books.shape
        E = m.tensor("E", people, titles)
        for i in m.tiles(people, B):
            for j in m.tiles(titles, B, keys_of=i, otherwise={}):
                E_ij = m.zeros(i, j)
                for k in m.tiles(depth, 1):
                    E_ij += m.read(readers[i, k]) @ m.read(books[j, k]).T
                E_ij[:] = exp(E_ij)
                m.write(E[i, j], E_ij)

    with PROBLEMS.temporary(), SCHEDULES.temporary():
        ps.problem(
            "reading",
            dims=("people", "titles", "depth"),
            from_nd={"people": "n", "titles": "n", "depth": "d"},
            inputs={"readers": ("people", "depth"), "books": ("titles", "depth")},
            outputs={"E": ("people", "titles")},
            queries=("readers",),
            keys=("books",),
            values=values,
            source="this test",
        )
        mine = ps.schedule(problem="reading", source="this test")(scores)
        dims = {"people": 5, "titles": 7, "depth": 3}
        counted = ps.count(mine, M=100, mask="causal", blocks={"B": 2}, **dims)
        table = np.tril(np.ones((5, 7), bool), 2)
        tiles = [table[i : i + 2, j : j + 2] for i in range(0, 5, 2) for j in range(0, 7, 2)]
        seen = [tile.shape for tile in tiles if tile.any()]
        assert counted.reads == sum(3 * (height + width) for height, width in seen)
        assert counted.pairs == table.sum()
        rectangle = mine.in_dims(dims)
        inputs = rectangle.problem.random_inputs(dims)
        outputs = ps.numbers(mine, M=100, mask="causal", blocks={"B": 2}, inputs=inputs, **dims)
        expected = rectangle.problem.reference(inputs, table)["E"]
        np.testing.assert_allclose(outputs["E"][table], expected[table])
        assert ps.count(mine, M=100, n=5, d=3, mask="causal", blocks={"B": 2}).pairs == 15


@pytest.mark.parametrize("name", ["flash-decoding", "row-stationary-split"])
@pytest.mark.parametrize("P", [1, 8, 132])
def test_one_query_against_keys_in_splits(name: str, P: int) -> None:
    """By hand: K and V once; q for each split; O_s and a word beside it written, and read by the merge; O and L."""
    n_k, d = 32768, 128
    S = -(-n_k // P)
    counted = ps.count(name, n_q=1, n_k=n_k, d=d, M=49152, blocks={"B_r": 1, "S": S})
    splits, merge = counted.phases["splits"], counted.phases["merge"]
    assert sum(splits) == 2 * n_k * d + P * d + P * (d + 1)
    assert merge == (P * (d + 1), d + 1)
    assert [tuple(stage) for stage in counted.path] == [
        ("splits", P, 2 * S * d + d + d + 1),
        ("merge", 1, (P + 1) * (d + 1)),
    ]


@pytest.mark.parametrize("name", ["flash-decoding", "flash-decoding-blocked", "row-stationary-split"])
@pytest.mark.parametrize("mask", [None, "window:4", "causal:start"])
def test_three_splits_are_merged(name: str, mask: str | None) -> None:
    """The last one ragged; under a mask some rows see nothing of some splits."""
    blocks = {"B_r": 2, "S": 4} | {block: 2 for block in SCHEDULES[name].blocks if block not in ("B_r", "S")}
    played = ps.play(name, n_q=5, n_k=11, d_k=2, d_v=3, M=200, blocks=blocks, mask=mask)
    assert played.passed and played.values_match


def test_splits_with_columns_in_turn_merge_columns_of_their_own() -> None:
    """By hand: K, V and q as with whole rows; the merge reads L_s twice, and writes L, for each of four parts of O."""
    counted = ps.count(
        "flash-decoding-blocked", n_q=4, n_k=2048, d=128, M=2**20, blocks={"B_r": 16, "S": 512, "c": 32, "e": 32}
    )
    assert counted.phases["splits"] == (2 * 2048 * 128 + 4 * 4 * 128, 4 * 4 * (128 + 1))
    assert counted.phases["merge"] == (4 * 4 * (128 + 2 * 4), 4 * (128 + 4))
    assert [(phase, workers) for phase, workers, _ in counted.path] == [("splits", 4), ("merge", 4)]


def test_count_prints_the_critical_path_where_there_is_more_than_one_worker() -> None:
    """Splits of eight keys: 2·8·2 words of K and V, 2 of q, 2 + 1 written; the merge reads these and writes O, L."""
    sizes = ["--size", "n_q=1", "-n", "32", "-d", "2", "-M", "400", "--block"]
    split = CliRunner().invoke(app, ["count", "flash-decoding", *sizes, "S=8"])
    path = "critical path, all independent iterations at once: 52 words: splits 37 (each of 4), merge 15"
    assert path in split.output
    assert "critical path" not in CliRunner().invoke(app, ["count", "flash2-forward", *sizes, "B_c=8"]).output


def test_a_split_that_is_merged_twice_is_told_by_the_game() -> None:
    def twice(m: Machine, Q: Tensor, K: Tensor, V: Tensor, *, S: Block) -> None:
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        splits = m.quotient(n_k, S)
        AV_s, l_s = m.tensor("AV_s", splits, n_q, d_v), m.tensor("l_s", splits, n_q)
        O = m.tensor("O", n_q, d_v)
        with m.phase("splits"):
            Q_ = m.read(Q)
            for s in m.tiles(n_k, S):
                A = m.compute(Q_ @ m.read(K[s, :]).T)
                A[:] = exp(A)
                m.write(l_s[s, :], m.compute(rowsum(A)))
                m.write(AV_s[s, :, :], m.compute(A @ m.read(V[s, :])))
        with m.phase("merge"):
            O_, l = m.constant(0, n_q, d_v), m.constant(0, n_q)
            for s in m.tiles(n_k, S):
                l += m.read(l_s[s, :])
                of_split = m.read(AV_s[s, :, :])
                O_ += of_split
                O_ += of_split
            O_[:] = O_ / l
            m.write(O, O_)

    wrong = strategies.unregistered(twice, "forward", softmax="split-sums", column_block="S")
    with pytest.raises(UsageError, match=r"uses O_, which holds AV\[0,0\] of block 1 of 3, where the constant that AV"):
        ps.play(wrong, n=6, d=2, M=100, blocks={"S": 2})


def test_an_online_softmax_that_goes_on_in_the_next_split_is_told_by_the_game() -> None:
    """Each split of FlashDecoding starts anew; here the maximum and the sums of the first split go on in the second."""

    def goes_on(m: Machine, Q: Tensor, K: Tensor, V: Tensor, *, S: Block, B_c: Block) -> None:
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        splits = m.quotient(n_k, S)
        O_s, L_s = m.tensor("O_s", splits, n_q, d_v), m.tensor("L_s", splits, n_q)
        O = m.tensor("O", n_q, d_v)
        Q_ = m.read(Q)
        top, l, sums = m.constant(-np.inf, n_q), m.constant(0, n_q), m.constant(0, n_q, d_v)
        for s in m.tiles(n_k, S):
            for j in m.tiles(s, B_c):
                P = m.compute(Q_ @ m.read(K[j, :]).T)
                new = m.compute(rowmax(P))
                new[:] = maximum(top, new)
                top[:] = exp(top - new)
                P[:] = exp(P - new)
                l[:] = top * l
                l += rowsum(P)
                sums[:] = top * sums
                sums += P @ m.read(V[j, :])
                m.move(new, top)
            m.write(O_s[s, :, :], m.compute(sums / l))
            m.write(L_s[s, :], m.compute(top + log(l)))
        all_O, W, top = m.constant(0, n_q, d_v), m.constant(0, n_q), m.constant(-np.inf, n_q)
        for s in m.tiles(n_k, S):
            w = m.read(L_s[s, :])
            new = m.compute(maximum(top, w))
            top[:] = exp(top - new)
            w[:] = exp(w - new)
            W[:] = top * W + w
            all_O[:] = top * all_O + w * m.read(O_s[s, :, :])
            m.move(new, top)
        m.write(O, m.compute(all_O / W))

    wrong = strategies.unregistered(goes_on, "forward", softmax="split", column_block="B_c", split="S")
    with pytest.raises(
        UsageError, match=r"uses top, which holds m\[0\] of block 2 of 4, where the constant that m\[0\] starts"
    ):
        ps.play(wrong, n=8, d=2, M=200, blocks={"S": 4, "B_c": 2})


def test_splits_of_blocks_of_different_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"splits of 3 columns .* take splits of a multiple of 2"):
        ps.play("flash-decoding", n=8, d=2, M=200, blocks={"B_r": 2, "S": 3, "B_c": 2})
    assert ps.play("flash-decoding", n=8, d=2, M=200, blocks={"B_r": 2, "S": 8, "B_c": 3}).passed  # one split
    assert ps.play("flash-decoding", n=8, d=2, M=200, blocks={"B_r": 2, "S": 2, "B_c": 5}).passed  # a split is a block


@pytest.mark.parametrize("table", [[[False, True]], [[False, True], [True, True]], [[True, False, False, True]]])
@pytest.mark.parametrize("B_c", [1, 2])
def test_a_block_of_a_split_without_a_pair_has_no_term_to_be_compared(table: list[list[bool]], B_c: int) -> None:
    sizes = {"n_q": len(table), "n_k": len(table[0]), "d_k": 1, "d_v": 1, "B_r": len(table), "S": 2, "B_c": B_c}
    check_game(RECTANGULAR["flash-decoding"], sizes, from_array(np.array(table), size=(1, 1)))


@pytest.mark.one_in(4)
def test_cross_attention_with_77_keys() -> None:
    """4,096 pixels look at 77 tokens: by hand, all keys and values fit, so each word moves once."""
    counted = ps.count("flash2-forward", n_q=4096, n_k=77, d=64, M=49152, blocks={"B_r": 128, "B_c": 77})
    assert counted.reads == 4096 * 64 + 4096 // 128 * 77 * 128
    assert counted.writes == 4096 * 64 + 4096
    rows = ps.compare("forward", n_q=4096, n_k=77, d=64, M=49152)
    assert rows[0].io >= 2 * 4096 * 64 + 2 * 77 * 64
