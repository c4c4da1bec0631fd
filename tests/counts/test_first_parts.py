"""A first part of a dimension apart: every reading of it, what the language refuses, and the schedules that use it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from strategies import draws

import pebblesim as ps
from pebblesim.analysis.blocks import choose
from pebblesim.analysis.count import io
from pebblesim.analysis.peak import peak_red
from pebblesim.cachesim.accesses import accesses
from pebblesim.cachesim.l2_traffic import kernels_of
from pebblesim.core.errors import TraceError, UsageError
from pebblesim.kernels.cuda.cuda import cuda
from pebblesim.kernels.triton.triton import triton
from pebblesim.language.expressions import Block, Tensor
from pebblesim.language.machine import Machine
from pebblesim.language.masks import from_array
from pebblesim.language.registry import SCHEDULES, get, schedule as register
from pebblesim.language.text import text


def partly(m: Machine, A: Tensor, B: Tensor, *, a: Block, b: Block, s: Block) -> None:
    """The first s columns of B stay; the others pass by each a rows of A, b at a time."""
    (rows, terms), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    for j in m.first(columns, s):
        B_j = m.read(B[:, j])
        for i in m.tiles(rows, a):
            A_i = m.read(A[i, :])
            m.write(C[i, j], m.compute(A_i @ B_j))
            for c in m.tiles(columns, b, after=s):
                C_ic = m.zeros(i, c)
                for k in m.tiles(terms, 1):
                    C_ic += A_i[:, k] @ m.read(B[k, c])
                m.write(C[i, c], C_ic)


def terms_in_parts(m: Machine, A: Tensor, B: Tensor, *, a: Block, b: Block, s: Block) -> None:
    """A sum over the first s terms goes on over the others, in memory meanwhile; the first tile is larger."""
    (rows, terms), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    for k in m.first(terms, s):
        B_k = m.read(B[k, :])
        for i in m.tiles(rows, a):
            m.write(C[i, :], m.compute(m.read(A[i, k]) @ B_k))
    for k in m.tiles(terms, b, after=s):
        for i in m.tiles(rows, a):
            C_i = m.read(C[i, :])
            C_i += m.read(A[i, k]) @ m.read(B[k, :])
            m.write(C[i, :], C_i)


with SCHEDULES.temporary():
    OWN = [register(problem="matmul", source="this test")(each) for each in (partly, terms_in_parts)]

SIZE = st.integers(1, 7)
DIMS = {"m": SIZE, "k": SIZE, "n": SIZE}
BLOCKS = {"a": SIZE, "b": SIZE, "s": SIZE}


def up(whole: int, block: int) -> int:
    return -(-whole // block)


def words_of(name: str, m: int, k: int, n: int, a: int, b: int, s: int) -> tuple[int, int]:
    """Reads and writes, by hand."""
    if name == "partly":
        return m * k + k * min(n, s) + k * (n - min(n, s)) * up(m, a), m * n
    tiles = up(max(0, k - s), b)
    rest = max(0, k - s)
    reads = min(k, s) * n + m * k + tiles * m * n + rest * n * up(m, a)
    return reads, m * n * (1 + tiles)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("schedule", OWN, ids=[each.name for each in OWN])
@given(dims=st.fixed_dictionaries(DIMS), blocks=st.fixed_dictionaries(BLOCKS))
@draws(4, 400)
def test_every_reading_agrees(schedule: Any, dims: dict[str, int], blocks: dict[str, int]) -> None:
    played = ps.play(schedule, M=10**6, blocks=blocks, **dims)
    counted = ps.count(schedule, M=10**6, blocks=blocks, **dims)
    assert played.passed
    assert played.game.peak_red == counted.peak_red
    reads, writes = words_of(schedule.name.replace("-", "_"), **dims, **blocks)
    assert (played.game.reads, played.game.writes) == (counted.reads, counted.writes) == (reads, writes)
    closed = ps.formula(schedule)
    assert closed.io.subs({**dims, **blocks}) == counted.io
    assert closed.peak_words.subs({**dims, **blocks}) == counted.peak_words
    stream = accesses(schedule.program, {**dims, **blocks}, "moves", "words")
    assert len(stream) == counted.io
    largest = stream.places[0]
    assert all(place.items == place.rows * place.columns for place in stream.places) and largest.name in "ABC"
    assert sum(stage.words for stage in counted.path) == counted.io  # nothing runs at once
    assert counted.work["mul"] == dims["m"] * dims["k"] * dims["n"]


def test_pseudo_code_says_which_tiles() -> None:
    lines = text(OWN[0].program).splitlines()
    assert "    for j in the first s of n:" in lines
    assert "            for c in tiles of n by b after the first s:" in lines


def in_a_tile(m: Machine, A: Tensor, B: Tensor, *, s: Block) -> None:
    for i in m.tiles(A.shape[0], s):
        for _ in m.first(i, s):
            m.read(A[i, :])


def after_in_a_tile(m: Machine, A: Tensor, B: Tensor, *, s: Block) -> None:
    for i in m.tiles(A.shape[0], s):
        for _ in m.tiles(i, 1, after=s):
            m.read(A[i, :])


def twice(m: Machine, A: Tensor, B: Tensor, *, s: Block) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    C_ = m.zeros(*C.shape)
    for _ in range(2):
        for k in m.first(A.shape[1], s):
            C_ += m.read(A[:, k]) @ m.read(B[k, :])
    m.write(C, C_)


def overlap(m: Machine, A: Tensor, B: Tensor, *, s: Block) -> None:
    for i in m.first(A.shape[0], s):
        m.read(A[i, :])
        for j in m.tiles(A.shape[0], 1):
            m.read(A[j, :])
            m.read(A[i, :])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (in_a_tile, "only a whole dimension is cut into a first part and the others"),
        (after_in_a_tile, "only a whole dimension is cut into a first part and the others"),
        (twice, "adds terms to C_ that line .* has added already"),
        (overlap, "A.* is already in the cache"),
    ],
)
def test_what_the_language_refuses(function: Any, said: str) -> None:
    with SCHEDULES.temporary():
        mine = register(problem="matmul", source="this test")(function)
        with pytest.raises(TraceError, match=said):
            _ = mine.program


def test_the_first_size_is_a_block_or_a_number() -> None:
    def wrong(m: Machine, A: Tensor, B: Tensor, *, s: Block) -> None:
        for _ in m.first(A.shape[0], 0):
            pass

    def no_dimension(m: Machine, A: Tensor, B: Tensor, *, s: Block) -> None:
        over: Any = 3
        for _ in m.first(over, s):
            pass

    with SCHEDULES.temporary():
        for number, (function, said) in enumerate(((wrong, "a positive number"), (no_dimension, "takes a dimension"))):
            mine = register(problem="matmul", source="this test", name=f"wrong-{number}")(function)
            with pytest.raises(TraceError, match=said):
                _ = mine.program


RESIDENT = ["keys-partly-resident-forward", "keys-partly-resident", "queries-partly-resident"]
BY_COLUMNS = ["first-rows-by-columns", "first-keys-by-columns"]
NEW = [
    *RESIDENT,
    *BY_COLUMNS,
    "first-rows-keys-stay",
    "values-in-columns",
    "values-in-columns-relu",
    "scores-partly-stored",
    "scores-partly-stored-relu",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NEW)
def test_kernels_are_refused_in_one_sentence(name: str) -> None:
    schedule = get(name)
    sizes = dict.fromkeys((*schedule.program.dims, *schedule.blocks), 16)
    for reading in (cuda, lambda made: triton(made, sizes), lambda made: kernels_of(made, sizes, False, None)):
        with pytest.raises(UsageError, match=f"{name} treats a first part of a dimension apart"):
            reading(schedule.program)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["queries-partly-resident", "first-keys-by-columns"])
def test_a_mask_is_refused_where_no_loop_asks_it(name: str) -> None:
    schedule = get(name)
    assert not schedule.maskable
    with pytest.raises(UsageError, match=re.escape(name) + " treats a first part .* no loop .* leave the mask out"):
        ps.count(name, n=8, d=2, M=1000, mask="causal")
    others = ps.compare(problem_name=schedule.problem.name, n=8, d=2, M=1000, mask="causal")
    assert name not in {row.schedule for row in others.rows} and len(others.rows) >= 2


def test_a_first_part_has_no_closed_form_under_a_mask() -> None:
    with pytest.raises(UsageError, match="a first part of n is apart"):
        ps.formula("keys-partly-resident-forward", mask="causal")


@given(data=st.data(), rows=SIZE, stay=SIZE)
@draws(10, 300)
def test_words_under_a_mask_where_keys_stay(data: st.DataObject, rows: int, stay: int) -> None:
    """The first keys and values are read once; each other one for each block of rows that sees it."""
    grid = data.draw(st.tuples(SIZE, SIZE))
    flat = data.draw(st.lists(st.booleans(), min_size=grid[0] * grid[1], max_size=grid[0] * grid[1]))
    allowed = np.array(flat).reshape(grid)
    given_, dims = {"B_r": rows, "B_s": stay}, {"n_q": grid[0], "n_k": grid[1], "d_k": 1, "d_v": 2}
    counted = ps.count(
        "keys-partly-resident-forward", M=10**6, blocks=given_, mask=from_array(allowed, size=(1, 1)), **dims
    )
    reads = grid[0] + 3 * min(stay, grid[1])
    for start in range(0, grid[0], rows):
        reads += 3 * int(allowed[start : start + rows, stay:].any(axis=0).sum())
    assert (counted.reads, counted.writes) == (reads, 3 * grid[0])


@pytest.mark.one_in(2)
def test_of_causal_queries_the_short_block_of_rows_is_the_first() -> None:
    """Three blocks of 420 rows need M = 27,761; they end at 184, 604 and 1,024, not at 420, 840 and 1,024."""
    sizes: dict[str, Any] = {"n": 1024, "d": 32, "M": 27_761, "mask": "causal"}
    found = ps.count("first-rows-by-columns", blocks="best", **sizes)
    assert found.io == 64 * 1024 + 1024 + 64 * (184 + 604 + 1024)
    assert found.blocks["B_s"] == 184


def test_dQ_waits_in_memory_as_a_part_of_a_chain() -> None:
    sizes: dict[str, Any] = {"n": 6, "d": 2, "M": 1000, "blocks": {"B_c": 3, "B_s": 1}}
    assert ps.play("queries-partly-resident", **sizes).passed
    with pytest.raises(UsageError, match="choose summation 'chain'"):
        ps.play("queries-partly-resident", summation="balanced", **sizes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "old"), list(zip(RESIDENT, ["row-stationary-forward", "regrouped-h", "flash2-backward"], strict=True))
)
@pytest.mark.parametrize("part", [(1, 2), (1, 1), (3, 2), (2, 1)])
def test_near_nd_a_part_that_stays_pays(name: str, old: str, part: tuple[int, int]) -> None:
    n, d = 4096, 64
    M = n * d * part[0] // part[1]
    new, before = (ps.count(each, n=n, d=d, M=M, blocks="best") for each in (name, old))
    assert new.feasible and new.io < before.io


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "old"), list(zip(BY_COLUMNS, [RESIDENT[0], RESIDENT[2]], strict=True)))
@pytest.mark.parametrize("part", [1, 2, 4])
def test_just_below_a_whole_number_of_blocks_columns_made_later_pay(name: str, old: str, part: int) -> None:
    """With k blocks of rows, words of nd/k: a pass over a matrix more, where a block more needs two or four."""
    n, d = 65536, 128
    M = n * d // part
    new, before = (ps.count(each, n=n, d=d, M=M, blocks="best") for each in (name, old))
    assert new.feasible and new.io < before.io
    k = 2 * part * (1 if name == BY_COLUMNS[0] else 2)
    passes = 2 * k + 2 if name == BY_COLUMNS[0] else 4 * k + 4
    assert n * d * (passes + 1) <= new.io < n * d * (passes + 1) + n * d * k // 10


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("part", "hundredths"), [(1, 674), (2, 1089)])
def test_with_half_of_the_columns_at_a_time_keys_may_stay_for_all_passes(part: int, hundredths: int) -> None:
    """First rows that take 1½d words each leave room for keys, which are read once: 7nd and 11nd without."""
    n, d = 65536, 128
    found = ps.count("first-rows-keys-stay", n=n, d=d, M=n * d // part, blocks="best")
    assert found.feasible and found.io < n * d * hundredths // 100
    assert found.blocks["B_k"] > n // 40 and abs(found.blocks["B_v"] - d // 2) < d // 20


@pytest.mark.one_in(2)
@given(n=st.integers(1, 60), d=st.integers(1, 12), extra=st.integers(0, 400))
@draws(8, 300)
def test_best_blocks_are_no_worse_than_any_on_a_grid(n: int, d: int, extra: int) -> None:
    """An independent search: for each number of row blocks, as many keys as then fit."""
    schedule = get("keys-partly-resident-forward")
    M = ps.count(schedule, n=n, d=d, M=10**9, blocks={"B_r": 1, "B_s": 1}).peak_red + extra
    best = ps.count(schedule, n=n, d=d, M=M, blocks="best")
    assert best.feasible
    for rows in {up(n, passes) for passes in range(1, n + 1)}:
        for stay in np.unique(np.linspace(1, n, 7).astype(int)).tolist():
            other = ps.count(schedule, n=n, d=d, M=M, blocks={"B_r": rows, "B_s": stay})
            assert not other.feasible or best.io <= other.io


@pytest.mark.parametrize(("n", "M"), [(97, 500), (97, 530), (97, 540), (89, 470)])
def test_a_part_that_stays_is_as_large_as_fits(n: int, M: int) -> None:
    """Its size is not rounded to a whole number of tiles: every row that stays saves words."""
    schedule, dims = get("keys-partly-resident-forward"), {"n": n, "d": 3}
    best = choose(schedule, dims, M, "best")
    assert n % best["B_s"] and peak_red(schedule.program, dims | best) <= M
    one_more = dims | best | {"B_s": best["B_s"] + 1}
    assert peak_red(schedule.program, one_more) > M
    assert io(schedule.program, one_more) < io(schedule.program, dims | best)


@pytest.mark.parametrize("summation", ["balanced", "blocked:2"])
def test_a_sum_that_begins_in_a_first_part_has_the_terms_of_all_of_them(summation: str) -> None:
    """Its tree goes on over the other keys, so three that stay are not a tree of their own."""
    name = "keys-partly-resident-forward"
    played = ps.play(name, M=10**6, n=5, d=2, blocks={"B_r": 2, "B_s": 3}, summation=summation)
    counted = ps.count(name, M=10**6, n=5, d=2, blocks={"B_r": 2, "B_s": 3}, summation=summation)
    assert played.game.peak_red == counted.peak_red
