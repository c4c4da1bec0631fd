"""Automatic caches: every policy against a simulation that is written down as the definition says, word by word."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from strategies import draws
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cachesim import accesses, kernels, opt_kernels, policies, requests, reuse, traces
from pebblesim.cachesim.requests import Stream
from pebblesim.cachesim.reuse import Order, Reuse
from pebblesim.cachesim.streams import of_graph, of_ids
from pebblesim.cli.main import app
from pebblesim.core.errors import Infeasible, PebblesimError, UsageError
from pebblesim.language.registry import get

READ, WRITE, UPDATE = 1, 2, 3
Use = tuple[int, int]  # an item, and what is done with it


def words(uses: list[Use], sizes: list[int]) -> list[tuple[tuple[int, int], int]]:
    return [((item, word), kind) for item, kind in uses for word in range(sizes[item])]


def listed(
    uses: list[tuple[Any, int]], capacity: int, policy: str, kept: Any, sizes: list[int] | None = None
) -> tuple[int, int, int, int]:
    """(requests missed, words missed, fetched, written) of a cache of so many words, as a list with a victim.

    The words of a request come one after the other, so many as the sizes of the items say; one without sizes.
    """
    first: set[int] = set()  # the first words of the requests with a word that is not there
    begin = 0
    held: list[Any] = []
    dirty: set[Any] = set()
    missed = fetched = written = 0
    for now, (word, kind) in enumerate(uses):
        if sizes is None or word[1] == 0:
            begin = now
        if word in held:
            if policy in ("lru", "opt"):  # opt: of words never used again, the last used goes
                held.remove(word)
                held.append(word)
        else:
            first.add(begin)
            missed += 1
            fetched += kind in (READ, UPDATE)
            held.append(word)
            if len(held) > capacity:
                choice = {"lru": held, "fifo": held, "belady": held[:-1], "opt": held[::-1]}[policy]
                victim = (
                    choice[0] if policy in ("lru", "fifo") else max(choice, key=lambda word: _rank(uses, now, word))
                )
                held.remove(victim)
                if victim in dirty:
                    written += 1
                    dirty.discard(victim)
        if kind in (WRITE, UPDATE):
            if word in held:
                dirty.add(word)
            else:
                written += 1
    return len(first), missed, fetched, written + sum(kept(word) for word in dirty)


def _rank(uses: list[tuple[Any, int]], now: int, word: Any) -> tuple[int, int]:
    for later in range(now + 1, len(uses)):
        if uses[later][0] == word:
            return (int(uses[later][1] == WRITE), later)
    return (2, 0)


@st.composite
def streams(draw: st.DrawFn, largest: int = 4) -> tuple[list[Use], list[int], list[bool]]:
    """Uses of some items, their sizes, and which are kept."""
    items = draw(st.integers(1, 6))
    kinds = st.sampled_from(draw(st.sampled_from([[READ], [READ, WRITE, UPDATE]])))
    uses = draw(st.lists(st.tuples(st.integers(0, items - 1), kinds), max_size=40))
    sizes = draw(st.lists(st.integers(1, largest), min_size=items, max_size=items))
    return uses, sizes, draw(st.lists(st.booleans(), min_size=items, max_size=items))


def arrays(stream: tuple[list[Use], list[int], list[bool]]) -> tuple[Any, Any, Any, Any]:
    uses, sizes, kept = stream
    return (
        np.array([item for item, _ in uses], np.int32),
        np.array([kind for _, kind in uses], np.uint8),
        np.array(sizes, np.int64),
        np.array(kept, bool),
    )


PIECES = st.sampled_from([1, 3, 2**20])
"""Requests that are replayed at a time."""


@contextmanager
def in_pieces(number: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "PIECE", number)
        yield


def counted(stream: tuple[list[Use], list[int], list[bool]], capacity: int, policy: str) -> tuple[int, ...]:
    """(requests missed, words missed, fetched, written) as the package counts them."""
    (found,) = policies.misses(Stream(*arrays(stream)), [capacity], policy)
    return found.misses, found.missed_words, found.fetched, found.written


def distances_of(ids: Any, sizes: Any) -> list[int]:
    """All distances of a stream, a piece after the other."""
    order = Order(sizes)
    return [distance for piece in np.array_split(ids, 3) for distance in order.distances(piece).tolist()]


@given(streams(), st.integers(1, 20), PIECES)
def test_lru_of_items_is_lru_of_their_words(stream: Any, capacity: int, piece: int) -> None:
    uses, sizes, kept = stream
    expected = listed(words(uses, sizes), capacity, "lru", lambda word: kept[word[0]], sizes)
    assert counted(stream, capacity, "lru") == expected
    with in_pieces(piece):
        all_of_them = policies.lru_counts(Stream(*arrays(stream)), np.arange(1, 21))
    assert tuple(all_of_them[:, capacity - 1]) == expected


def test_a_stream_of_tiles_is_that_of_its_words_for_an_lru_of_any_size() -> None:
    """At 52 words, the last tile of scores is partly in the cache when the schedule ends."""
    tiles = ps.accesses("row-stationary", n=12, d=1, M=73)
    begins = np.cumsum(tiles.sizes) - tiles.sizes
    ids = np.concatenate([begins[item] + np.arange(tiles.sizes[item]) for item in tiles.ids]).astype(np.int32)
    each = tiles.sizes[tiles.ids]
    one = np.ones(tiles.sizes.sum(), np.int64)
    words = Stream(ids, tiles.kinds.repeat(each), one, tiles.kept.repeat(tiles.sizes))
    capacities = range(1, 121)
    together = policies.misses(tiles, capacities)
    assert [(each.fetched, each.written) for each in together] == [
        (each.fetched, each.written) for each in policies.misses(words, capacities)
    ]
    assert [policies.misses(tiles, [M])[0] for M in capacities] == together
    assert together[52 - 1].written == 169


@given(streams(largest=1), st.integers(1, 8), PIECES)
@example(([(0, READ), (1, READ), (0, WRITE), (2, READ)], [1, 1, 1], [False, False, False]), 2, 3)
def test_policies_for_single_words(stream: Any, capacity: int, piece: int) -> None:
    uses, sizes, kept = stream
    ids, _, size, _ = arrays(stream)
    single = [(word[0], kind) for word, kind in words(uses, sizes)]
    with in_pieces(piece):
        for policy in ("lru", "fifo", "opt"):
            assert counted(stream, capacity, policy) == listed(single, capacity, policy, lambda word: kept[word]), (
                policy
            )
    assert kernels.lru(ids, len(sizes), capacity) == listed(single, capacity, "lru", lambda word: True)[0]
    reads = [(word, READ) for word, _ in single]
    assert opt_kernels.opt(ids, len(sizes), capacity) == listed(reads, capacity, "belady", lambda word: True)[0]
    sized = kernels.sized_distances(ids, size, *kernels.sized_order(len(sizes)))
    assert distances_of(ids, size) == sized.tolist()


@given(streams(), st.integers(1, 12), PIECES)
def test_opt_of_items_is_opt_of_their_words(stream: Any, capacity: int, piece: int) -> None:
    uses, sizes, _ = stream
    with in_pieces(piece):
        *moved, _ = counted(stream, capacity, "opt")
    assert moved == [*listed(words(uses, sizes), capacity, "opt", lambda word: True, sizes)[:3]]


def test_many_items_and_gaps_between_them() -> None:
    """Long enough for the counters of all levels, and for closing the gaps, against times of last use."""
    rng = np.random.default_rng(3)
    items = 5000
    ids = np.concatenate([rng.permutation(items), rng.integers(0, items, 30_000), rng.zipf(1.3, 5000) % items])
    ids = ids.astype(np.int32)
    last = np.full(items, -1)
    expected = []
    for now, item in enumerate(ids.tolist()):
        expected.append(0 if last[item] < 0 else np.count_nonzero(last >= last[item]))
        last[item] = now
    one = np.ones(items, np.int64)
    assert distances_of(ids, one) == expected
    assert kernels.sized_distances(ids, one, *kernels.sized_order(items)).tolist() == expected


def test_many_items_in_the_optimal_cache() -> None:
    """The table of their next uses is half full, so that some lie next to each other."""
    ids = (np.random.default_rng(5).zipf(1.1, 4000) % 300).astype(np.int32)
    one, capacity = np.ones(300, np.int64), 126
    following = [next((at for at in range(t + 1, 4000) if ids[at] == ids[t]), 4000 + t) for t in range(4000)]
    held: dict[int, int] = {}
    misses = 0
    for item, after in zip(ids.tolist(), following, strict=True):
        misses += item not in held
        held[item] = after
        if len(held) > capacity:
            del held[max(held, key=lambda item: held[item])]
    with in_pieces(1000):
        (found,) = policies.misses(Stream(ids, np.full(len(ids), READ, np.uint8), one, one > 0), [capacity], "opt")
    assert found.misses == misses


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([READ, WRITE, UPDATE])), max_size=200), PIECES)
def test_words_at_each_distance_are_those_of_the_reads(uses: list[Use], piece: int) -> None:
    """More distances than the smallest table has room for, too."""
    sizes = [1 + item % 5 * 2**20 for item in range(41)]
    expected: dict[int, int] = {}
    for now, (item, kind) in enumerate(uses):
        before = max((at for at in range(now) if uses[at][0] == item), default=None)
        far = 0 if before is None else sum(sizes[other] for other in {other for other, _ in uses[before:now]})
        if kind != WRITE:
            expected[far] = expected.get(far, 0) + sizes[item]
    with in_pieces(piece), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "ROOM", 4)
        found = Reuse.of(Stream(*arrays((uses, sizes, [True] * 41))), [1])
    assert (found.compulsory, found.requested) == (
        expected.pop(0, 0),
        sum(sizes[x] for x, kind in uses if kind != WRITE),
    )
    assert dict(zip(found.distances.tolist(), found.words.tolist(), strict=True)) == expected
    assert found.distances.tolist() == sorted(expected)


# -- libCacheSim's trace of a tiled product ------------------------------------------------------------------------


def tiled_product(requests: int = 10_000_000, n: int = 192, b: int = 16) -> Any:
    """A[i, k], B[k, j], C[i, j] for each multiplication of a product of n x n matrices in tiles of b x b."""
    inside = np.stack(np.meshgrid(*[np.arange(b)] * 3, indexing="ij"), -1).reshape(-1, 3)
    parts: list[Any] = []
    for tile in np.ndindex(*[n // b] * 3):
        i, j, k = (inside + np.array(tile) * b).T
        parts.append(np.stack([i * n + k, n * n + k * n + j, 2 * n * n + i * n + j], -1).ravel())
        if sum(map(len, parts[-1:])) * len(parts) >= requests:
            break
    return np.concatenate(parts)[:requests].astype(np.int32)


MISSES = {  # M: LRU, OPT, as libCacheSim 0.3.5 counts them
    256: (3_750_003, 820_361),
    768: (624_309, 418_048),
    800: (622_818, 415_904),
    4_096: (434_128, 241_664),
    65_536: (72_704, 72_704),
}


@pytest.mark.one_in(4)
def test_misses_are_those_that_libcachesim_counts() -> None:
    found = ps.cache(tiled_product(), M=list(MISSES))
    assert {row.M: (row.lru.misses, row.opt.misses) for row in found} == MISSES
    assert found[0].compulsory == 72_704
    assert ps.cache(tiled_product(), M=768, policy="fifo")[0].fifo.misses == 522_068


def test_misses_are_those_of_libcachesim_itself(tmp_path: Path) -> None:
    lcs = pytest.importorskip("libcachesim")
    stream = of_ids(tiled_product(200_000))
    path = tmp_path / "product.oracleGeneral.bin"
    traces.save(stream, path)
    reader = lcs.TraceReader(trace=str(path), trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE)
    for policy, theirs in (("lru", lcs.LRU), ("fifo", lcs.FIFO), ("opt", lcs.Belady)):
        for M in (64, 256, 800, 4096):
            reader.reset()
            ratio, _ = theirs(M).process_trace(reader)
            assert round(ratio * len(stream)) == policies.misses(stream, [M], policy)[0].misses, (policy, M)


# -- streams of schedules ------------------------------------------------------------------------------------------

CHEAP = ["matmul-tiled", "matmul-streamed", "small-cache", "large-cache", "flash2-forward", "flash2-backward"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHEAP)
@draws(5, 60)
@given(data=st.data())
def test_what_must_hold(name: str, data: st.DataObject) -> None:
    """OPT ≤ LRU, FIFO and the schedule; misses fall with M; lower bounds ≤ OPT."""
    dims = {dim: data.draw(st.integers(1, 9), label=dim) for dim in get(name).problem.dims}
    least = ps.count(name, M=2**12, blocks=dict.fromkeys(get(name).blocks, 1), **dims).peak_red
    M = data.draw(st.integers(least, least + 60), label="M")
    counted = ps.count(name, M=M, **dims)
    sides = dict(counted.blocks)
    for grain in ("tiles", "words"):
        found = ps.cache(name, M=[M, M + 1], policy=("lru", "opt", "fifo"), blocks=sides, grain=grain, **dims)
        own, next_one = found
        for row in found:
            assert row.compulsory <= row.opt.fetched <= min(row.lru.fetched, row.fifo.fetched)
        assert own.opt.fetched <= counted.reads
        assert next_one.lru.fetched <= own.lru.fetched and next_one.opt.fetched <= own.opt.fetched
        if own.enough is not None:
            assert policies.misses(stream_of(name, sides, grain, dims), [own.enough])[0].fetched <= 1.1 * counted.reads
    # Words one after the other are a game with a few more pebbles: the operands, the product, the result.
    more = ps.count(name, M=M + 8, blocks=sides, **dims).lower_bound.value
    assert more <= own.opt.io


def stream_of(name: str, sides: dict[str, int], grain: Any, dims: dict[str, int]) -> Stream:
    return ps.accesses(name, M=2**20, blocks=sides, grain=grain, **dims)


@given(streams(largest=1), st.integers(1, 8), st.integers(0, 8))
def test_lru_is_competitive(stream: Any, h: int, more: int) -> None:
    """Sleator & Tarjan 1985, Theorem 6."""
    plain, k = of_ids(np.array([item for item, _ in stream[0]], int)), h + more
    (lru,), (opt,) = policies.misses(plain, [k], "lru"), policies.misses(plain, [h], "opt")
    assert lru.misses * (k - h + 1) <= k * opt.misses + h * (k - h + 1)


@given(streams(largest=1), st.integers(1, 8))
def test_what_an_lru_holds_a_larger_one_holds(stream: Any, capacity: int) -> None:
    """The stack property, by what hits: a request that M words answer, M + 1 answer."""
    ids, _, sizes, _ = arrays(stream)
    held: dict[int, list[int]] = {capacity: [], capacity + 1: []}
    for (item, _), distance in zip(stream[0], distances_of(ids, sizes), strict=True):
        for M, items in held.items():
            assert (item in items) == (0 < distance <= M)
            if item in items:
                items.remove(item)
            items.append(item)
            del items[:-M]
        assert set(held[capacity]) <= set(held[capacity + 1])


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("grain", "n", "mask"), [("words", 160, None), ("words", 160, "causal"), ("tiles", 1500, None)]
)
def test_no_array_of_all_requests_is_in_memory(
    grain: Any, n: int, mask: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of their items alone take four bytes for each."""
    for module, name, number in ((requests, "PIECE", 2**15), (accesses, "PIECE", 2**15), (accesses, "LONG", 2**12)):
        monkeypatch.setattr(module, name, number)
    tracemalloc.start()
    try:
        (row,) = ps.cache("flash2-forward", n=n, d=16, M=600, grain=grain, mask=mask, policy=policies.POLICIES)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * row.lru.requests


@pytest.mark.parametrize(
    ("name", "n", "M", "mask"), [("flash2-forward", 64, 400, "causal"), ("small-cache-forward", 64, 200, "window:5")]
)
def test_blocks_under_a_mask_are_those_of_the_count(name: str, n: int, M: int, mask: str) -> None:
    """A mask may make smaller blocks the better ones, for the words moved and so for the requests and an L2."""
    counted = ps.count(name, n=n, d=4, M=M, mask=mask)
    assert counted.blocks != ps.count(name, n=n, d=4, M=M).blocks
    stream = ps.accesses(name, n=n, d=4, M=M, mask=mask, machine="moves")
    assert stream.sizes[stream.ids].sum() == counted.io
    behind = ps.l2(name, n=n, d=4, M=M, mask=mask, size=2**20)
    assert behind.blocks == counted.blocks and behind.requested == 4 * counted.io


def test_enough_is_the_least_that_is() -> None:
    stream = ps.accesses("flash2-forward", n=40, d=4, M=60)
    sizes = range(int(stream.sizes.max()), stream.touched + 1)  # an item larger than the cache is never found
    fetched = [each.fetched for each in policies.misses(stream, sizes)]
    for words in (100, 900, 1000, 2000, max(fetched)):
        expected = next((M for M, each in zip(sizes, fetched, strict=True) if each <= words), None)
        assert Reuse.of(stream, [1]).enough(words) == expected


# -- sets and lines ------------------------------------------------------------------------------------------------


@given(streams(largest=1), st.integers(1, 3), st.integers(1, 3))
def test_sets_are_caches_of_their_own(stream: Any, sets: int, ways: int) -> None:
    uses, _, kept = stream
    given_stream = Stream(*arrays(stream))
    for policy in ("lru", "fifo", "opt"):
        expected = np.zeros(4, int)
        for number in range(sets):
            mine = [(item, kind) for item, kind in uses if item % sets == number]
            expected += listed(mine, ways, policy, lambda item: kept[item])
        if not given_stream.plain or policy != "opt":
            (found,) = policies.misses(given_stream, [sets * ways], policy, ways)
            assert [found.misses, found.missed_words, found.fetched, found.written] == expected.tolist()


def test_lines_are_fetched_whole_and_start_with_their_matrix() -> None:
    sizes: Any = {"m": 3, "k": 5, "n": 3, "M": 12, "blocks": {"b": 2}}
    stream = ps.accesses("matmul-tiled", line=16, **sizes)
    assert (len(stream.sizes), stream.unit) == (4 + 4 + 3, 4)  # 15, 15 and 9 words
    found = ps.cache("matmul-tiled", line=16, policy="lru", **(sizes | {"M": 2**12}))[0]
    assert (found.lru.fetched, found.lru.written) == (44, 12)  # C, too: a word is not all of its line
    assert found.compulsory == 44
    for M in (4, 8, 12, 20, 40):
        (row,) = ps.cache("matmul-tiled", line=16, policy=("lru", "opt", "fifo"), **(sizes | {"M": max(M, 16)}))
        uses = [(item, kind) for item, kind in zip(stream.ids.tolist(), stream.kinds.tolist(), strict=True)]
        for policy in ("lru", "opt", "fifo"):
            expected = listed(uses, max(M, 16) // 4, policy, lambda line: bool(stream.kept[line]))
            assert (row.by_policy[policy].fetched, row.by_policy[policy].written) == (4 * expected[2], 4 * expected[3])


def test_a_cache_larger_than_anything_holds_all() -> None:
    for policy in ("lru", "opt", "fifo"):
        row = ps.cache("flash2-forward", n=9, d=2, M=2**100, policy=policy)[0]
        assert row.by_policy[policy].fetched == row.compulsory == 3 * 9 * 2


# -- graphs --------------------------------------------------------------------------------------------------------


def test_a_graph_is_computed_in_the_order_that_is_given() -> None:
    from pebblesim.graphs.cdag import Cdag

    graph = Cdag.from_edges(5, [(0, 2), (1, 2), (0, 3), (2, 4), (3, 4)])
    stream = of_graph(graph)
    assert stream.ids.tolist() == [0, 1, 2, 0, 3, 2, 3, 4]
    assert stream.kinds.tolist() == [1, 1, 2, 1, 2, 1, 1, 2]
    assert of_graph(graph, [3, 2, 4]).ids.tolist() == [0, 3, 0, 1, 2, 2, 3, 4]
    found = ps.cache(graph, M=3, order=[3, 2, 4])[0]
    assert (found.opt.fetched, found.opt.written) == (2, 1)
    for order, message in (([3, 4, 2], "before one of its"), ([3, 2], "each vertex"), ([3, 2, 4, 9], "0 … 4")):
        with pytest.raises(UsageError, match=message):
            ps.cache(graph, M=3, order=order)


def test_a_graph_never_costs_less_than_its_optimum() -> None:
    graph = ps.graph("matmul", m=2, k=1, n=2)
    for M in (1, 2, 4):
        # An operation has its operands and its result at once, so that the game may need three more.
        assert ps.optimum(graph, M=M + 3).io <= ps.cache(graph, M=M)[0].opt.io


# -- traces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["oracleGeneral", "oracleGeneral.bin", "txt", "csv"])
def test_a_trace_comes_back(ending: str, tmp_path: Path) -> None:
    grain: Any = "words" if ending == "txt" else "tiles"
    stream = ps.accesses("flash2-forward", n=12, d=3, M=60, grain=grain)
    path = tmp_path / f"a.{ending}"
    said = traces.save(stream, path)
    back = traces.load(path)
    assert back.ids.tolist() == stream.ids.tolist()
    assert back.sizes.tolist() == stream.sizes.tolist()
    assert back.kinds.tolist() == (stream.kinds.tolist() if ending == "csv" else [])
    assert back.kept.tolist() == (stream.kept.tolist() if ending == "csv" else [])
    assert said == ("" if ending == "csv" else f"a.{ending} does not store which requests write; a .csv does.")
    if ending == "csv":
        assert not stream.kept.all()
        sizes = [60, 100, 1000]
        for policy in policies.POLICIES:
            assert policies.misses(back, sizes, policy) == policies.misses(stream, sizes, policy)


def test_what_a_format_cannot_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot store items of several words"):
        traces.save(of_ids([1, 2], [1, 2]), tmp_path / "a.txt")
    with pytest.raises(UsageError, match=r"cannot store items of 2\^32 words"):
        traces.save(of_ids([1, 2], [1, 2**32]), tmp_path / "a.oracleGeneral")
    assert not list(tmp_path.iterdir())
    numbers = [5, 2**40, 5, 2**63]
    for ending in ("csv", "txt", "oracleGeneral"):
        traces.save(of_ids(np.array(numbers, np.uint64)), tmp_path / f"a.{ending}")
        assert traces.load(tmp_path / f"a.{ending}").numbers.tolist() == [5, 2**40, 2**63]


def test_requests_of_no_bytes_are_left_out_as_by_libcachesim(tmp_path: Path) -> None:
    records = np.zeros(3, traces.RECORD)
    records["id"], records["size"] = [4, 5, 6], [1, 0, 2]
    records.tofile(tmp_path / "a.oracleGeneral")
    back = traces.load(tmp_path / "a.oracleGeneral")
    assert (back.ids.tolist(), back.sizes[[4, 6]].tolist()) == ([4, 6], [1, 2])


def by_hand(ids: list[int], sizes: dict[int, int], room: int) -> int:
    """Words that an LRU of whole items fetches."""
    held: list[int] = []
    fetched = 0
    for x in ids:
        if x not in held:
            fetched += sizes[x]
        held = [*(y for y in held if y != x), x]
        while sum(sizes[y] for y in held) > room:
            del held[0]
    return fetched


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([READ, WRITE, UPDATE])), min_size=1, max_size=30),
    st.lists(st.integers(1, 60), min_size=6, max_size=6),
    st.integers(1, 200),
)
def test_a_miss_ratio_is_of_words_and_at_most_one(requests: list[tuple[int, int]], sizes: list[int], M: int) -> None:
    ids, kinds = map(list, zip(*requests, strict=True))
    row = ps.cache(of_ids(ids, [sizes[x] for x in ids], kinds), M=M, policy=policies.POLICIES)[0]
    read = sum(sizes[x] for x, kind in requests if kind & READ)
    assert row.requested == read
    for policy in policies.POLICIES:
        ratio = row.ratio(policy)
        assert (
            ratio is None
            if not read
            else 0 <= ratio <= 1 and ratio * read == pytest.approx(row.by_policy[policy].fetched)
        )
    reads = ps.cache(of_ids(ids, [sizes[x] for x in ids]), M=M)[0]
    asked = sum(sizes[x] for x in ids)
    assert reads.ratio("lru") == by_hand(ids, dict(enumerate(sizes)), M) / asked
    assert reads.ratio("opt") <= reads.ratio("lru")


def test_objects_of_sixty_words_have_a_miss_ratio() -> None:
    row = ps.cache(of_ids([1, 2, 3, 4, 5], [60] * 5), M=60)[0]
    assert (row.opt.misses, row.ratio("opt"), row.ratio("lru")) == (5, 1.0, 1.0)
    assert [(each.misses, each.missed_words) for each in (row.lru, row.opt)] == [(5, 300)] * 2
    plain = ps.cache([1, 2, 3, 1, 2, 3], M=2)[0]
    assert (plain.ratio("lru"), plain.ratio("opt")) == (1.0, 4 / 6)


def queued(uses: list[Use], sizes: list[int], capacity: int) -> tuple[int, int]:
    """(requests missed, words missed) of a first-in, first-out cache of whole objects; larger ones pass by."""
    queue: list[int] = []
    missed = [0, 0]
    for item, _ in uses:
        if item not in queue:
            missed[0], missed[1] = missed[0] + 1, missed[1] + sizes[item]
            while queue and sum(sizes[each] for each in queue) + sizes[item] > capacity:
                queue.pop(0)
            queue += [item] if sizes[item] <= capacity else []
    return missed[0], missed[1]


@given(streams(), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_every_policy_counts_requests_that_miss_and_their_words(stream: Any, capacities: list[int]) -> None:
    """Misses were requests under LRU and words under OPT."""
    uses, sizes, _ = stream
    for row in ps.cache(Stream(*arrays(stream)), M=capacities, policy=policies.POLICIES):
        for policy, found in row.by_policy.items():
            expected = queued(uses, sizes, row.M)
            if policy != "fifo":
                expected = listed(words(uses, sizes), row.M, policy, lambda word: True, sizes)[:2]
            assert (found.misses, found.missed_words) == expected, policy
            told = row.to_dict()[policy]
            assert (told["misses"], told["missed_words"]) == expected


def test_the_table_of_a_trace_has_both(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,size\n1,7\n2,5\n1,7\n")
    given = ["cache", str(tmp_path / "a.csv"), "-M", "9", "--policy", "opt,lru"]
    out = CliRunner().invoke(app, [*given, "--wide"]).stdout
    assert "opt misses   opt misses, words" in out and "lru misses   lru misses, words" in out
    (row,) = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)["rows"]
    assert (row["opt"]["misses"], row["opt"]["missed_words"]) == (2, 12)  # 7 stay of 9, and 2 of the others come in
    assert (row["lru"]["misses"], row["lru"]["missed_words"]) == (3, 19)


@pytest.mark.parametrize("size", [2**61, 2**62 - 1])
def test_sizes_that_overflow_are_refused(size: int, tmp_path: Path) -> None:
    assert ps.cache(of_ids([1, 1], [size // 3] * 2), M=2**70)[0].lru.fetched == size // 3
    with pytest.raises(UsageError, match=r"of less than 2\^62 words"):
        of_ids([1, 2], [size] * 2)
    with pytest.raises(UsageError, match=r"of less than 2\^62 words"):
        of_ids([1, 2], [size] * 2, [WRITE] * 2)
    (tmp_path / "a.csv").write_text(f"id,size\n1,{size}\n2,{size}\n")
    with pytest.raises(UsageError, match=r"a\.csv: .*of less than 2\^62 words"):
        traces.load(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("sizes", "kinds", "says"),
    [
        ([1.5, 2], None, "sizes of a stream must be"),
        ([2**70, 2], None, "sizes of a stream must be"),
        (np.array([2**63, 2], np.uint64), None, "a size of less than 1, or of 2"),
        (None, [0, 1], "kind of a request is 1"),
        (None, [257, 1], "kind of a request is 1"),
        (None, ["r", "w"], "kinds of a stream must be"),
    ],
)
def test_a_stream_of_something_else_is_refused(sizes: Any, kinds: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        of_ids([1, 2], sizes, kinds)


def test_sets_follow_from_the_numbers_of_a_trace() -> None:
    """However far apart they are: addresses that are equal modulo the number of sets compete for one set."""
    for apart in (4, 2**20, -(2**20)):
        ids = np.array([0, apart, 2 * apart] * 5)
        (row,) = ps.cache(ids, M=4, ways=1, policy="lru")
        assert row.lru.misses == 15
        (row,) = ps.cache(ids + [0, 1, 2] * 5, M=4, ways=1, policy="lru")
        assert row.lru.misses == 3
    (huge,) = ps.cache([1, 2, 1], M=2**60, ways=1, policy="lru")
    assert huge.lru.misses == 2


def test_the_records_of_oracle_general(tmp_path: Path) -> None:
    path = tmp_path / "a.oracleGeneral.bin"
    traces.save(of_ids([7, 7, 3, 7]), path)
    raw = np.fromfile(path, "<u4").reshape(4, 6)  # time, id (2), size, next (2)
    assert raw[:, 0].tolist() == [0, 1, 2, 3] and raw[:, 1].tolist() == [7, 7, 3, 7] and raw[:, 3].tolist() == [1] * 4
    assert raw[:, 4:].copy().view("<i8").ravel().tolist() == [1, 3, -1, -1]


def test_objects_may_have_any_number(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"# objects\n{2**64 - 1}\n5\n\n{2**64 - 1}\n")
    assert traces.load(path).ids.tolist() == [1, 0, 1]
    assert ps.cache(str(path), M=2)[0].lru.misses == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.bin", "", "a trace is a file"),
        ("b.txt", None, "no such file"),
        ("a.txt", "1\nx\n", "line 2: 'x' is not an object"),
        ("a.txt", "-1\n", "0 or more"),
        ("a.txt", f"{2**64}\n", "too large|out of bounds|Python int"),
        ("a.csv", "object\n1\n", "first line must name the columns"),
        ("a.csv", "id,kind\n1,x\n", "r, w or u"),
        ("a.csv", 'id,kind\n1,"r', "a.csv, line 2: unexpected end of data"),
        ("a.csv", 'id,kind\n1,"r"x\n', "a.csv, line 2: "),
        ("a.csv", "id,kind\n1," + "r" * 200_000, "field larger than field limit"),
        ("a.csv", "id,id\n1,2\n", "first line must name the columns"),
        ("a.csv", "id\n1_0\n", "line 2: '1_0' is not an object"),
        ("a.csv", "id\n" + "1" * 5000, "is not an object; it must be"),
        ("a.csv", "id,size\n1,x\n", "line 2: 'x' is not a size"),
        ("a.csv", "id,kept\n1,2\n", "an object is kept .1. or not .0., not '2'"),
        ("a.csv", "id,kept\n1,1\n1,0\n", "kept in one line and not in another"),
        ("a.txt", "٣\n", "is not an object"),
        ("a.csv", "id,size\n1\n", "does not have the 2 columns"),
        ("a.csv", "id,size\n1,0\n", "size of less than 1"),
        ("a.oracleGeneral", "abc", "24-byte records"),
    ],
)
def test_bad_traces_get_a_sentence(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        traces.load(tmp_path / name)


# -- the command ---------------------------------------------------------------------------------------------------


def run(line: str) -> Any:
    return CliRunner().invoke(app, ["cache", *line.split()])


@pytest.mark.one_in(4)
def test_the_command_prints_what_the_function_finds(tmp_path: Path) -> None:
    line = "flash2-forward matmul-tiled -n 24 -d 4 -M 60:240:x2 --policy lru,opt,fifo"
    result = run(f"{line} --json")
    rows = json.loads(result.output)["rows"]
    assert len(rows) == 6
    for row in rows:
        found = ps.cache(row["name"], n=24, d=4, M=row["M"], policy=("lru", "opt", "fifo"))[0]
        assert row == found.to_dict()
    picture = tmp_path / "a.svg"
    shown = run(f"{line} -o {picture}")
    assert shown.exit_code == 0 and picture.stat().st_size > 1000
    assert f"{rows[0]['lru']['fetched']:,}" in shown.output


def test_a_stream_is_kept_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    line = f"flash2-forward -n 24 -d 4 -M 60 --words --save {path} --json"
    (row,) = json.loads(run(line).output)["rows"]
    (again,) = json.loads(run(f"{path} -M 60 --json").output)["rows"]
    assert again["lru"]["fetched"] == row["lru"]["fetched"] and again["opt"]["fetched"] == row["opt"]["fetched"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", ["--line 32B", "--line 16B --ways 2", "--ways 4", "", "--moves --line 16B"])
def test_what_is_saved_is_what_was_replayed(options: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    (row,) = json.loads(run(f"flash2-forward -n 24 -d 4 -M 64 {options} --save {path} --json").output)["rows"]
    sets = " ".join(options.split()[-2:]) if "--ways" in options else ""
    (again,) = json.loads(run(f"{path} -M 64 {sets} --json").output)["rows"]
    assert again["requests"] == row["requests"] and again["compulsory"] == row["compulsory"]
    for policy in ("lru", "opt"):
        assert again[policy]["fetched"] == row[policy]["fetched"]
        assert again[policy]["written"] == row[policy]["written"]


def test_the_command_says_what_a_saved_trace_leaves_out(tmp_path: Path) -> None:
    found = run(f"flash2-forward -n 24 -d 4 -M 64 --save {tmp_path / 'a.oracleGeneral'}")
    assert "a.oracleGeneral does not store which requests write; a .csv does." in found.output


def test_what_does_not_fit_is_said() -> None:
    found = run("flash2-forward -n 24 -d 4 -M 8,60")
    assert found.exit_code == 0 and "does not fit into 8 words; it needs 17" in found.output
    assert isinstance(run("flash2-forward -n 24 -d 4 -M 8").exception, Infeasible)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("flash2-forward -n 24 -d 4 -M 60 --policy mru", "no policy is called 'mru'"),
        ("flash2-forward -n 24 -d 4 -M 60 --line 6B", "not a whole number of words"),
        ("flash2-forward -n 24 -d 4 -M 60 --line 6", "not a size in bytes"),
        ("flash2-forward -n 24 -d 4 -M 60 --ways 7", "use a multiple of 7"),
        ("flash2-forward -n 24 -d 4 -M 60 --line 512B", "holds no line of 128 words"),
        ("flash2-forward -n 64k -d 4 -M 1k --words", "too many"),
        ("small-cache -n 64k -d 4 -M 1k --words", "too many to tell apart"),
        ("flash2-forward flash1-forward -n 24 -d 4 -M 60 --save a.txt", "one schedule for one M"),
        ("flash2-forward -n 24 -d 4 -M 60 --save a.bin", "a trace is a file"),
        ("flash2-forward -n 1M -d 64 -M 60 --words --save a.foo", "*.din, *.ramulator, *.gem5.txt, *.champsim"),
        ("flash2-forward -n 24 -d 4 -M 60 -o a.txt", "cannot tell a format"),
        ("nothing.txt -M 60", "there is no such file"),
        ("nothing.txt -M 60 -n 64", "a trace has its own requests"),
        ("nothing.txt -M 60 --words", "a trace has its own requests"),
        ("flash2-forward -n 24 -d 4 -M 60 --save a.txt", "cannot store items of several words"),
    ],
)
def test_bad_usage_gets_a_sentence(line: str, message: str) -> None:
    result = run(line)
    assert isinstance(result.exception, PebblesimError) and message in str(result.exception)


def test_separate_heads_have_the_bound_of_the_heads_that_share() -> None:
    """The cache may keep keys and values from one head to the next, so they are bounded as one."""
    sizes: dict[str, Any] = {"n_q": 8, "n_k": 16, "d": 4, "M": 100}
    (row,) = ps.cache("flash2-forward", heads=4, kv_heads=1, separate=True, **sizes)
    assert (
        row.bounded is not None
        and row.bounded.lower_bound == ps.count("flash2-forward", heads=4, kv_heads=1, **sizes).lower_bound
    )
    assert row.bounded.lower_bound != ps.count("flash2-forward", **sizes).lower_bound


def test_the_least_cache_that_is_enough_is_that_of_a_fully_associative_one() -> None:
    sizes: dict[str, Any] = {"n": 16, "d": 4, "M": 64}
    (full,), (in_sets,) = (ps.cache("flash2-forward", ways=ways, **sizes) for ways in (None, 2))
    assert full.enough is not None and in_sets.enough is None
