"""Heads that share keys and values, and the shapes that people run, with answers computed by hand."""

import json
import sys
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim.cli import main as cli
from pebblesim.core.errors import UsageError
from pebblesim.counting.heads import Heads
from pebblesim.language.masks import from_array, of
from pebblesim.language.problems import problem
from pebblesim.language.tile_ranges import TileRange


def printed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", ["pebblesim", *line.split()])
    with pytest.raises(SystemExit):
        cli.main()
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The output of a command, as JSON."""
    return lambda line: json.loads(printed(f"{line} --json", capsys, monkeypatch)[0])


def test_decoding_of_llama_3_8b_by_hand(run: Any) -> None:
    """One query a head against 32,768 keys: each group of 4 heads reads its K and V once, and its 4 queries."""
    found = run(
        "count flash2-forward --size n_q=1 --size n_k=32768 -d 128 -M 227KiB --dtype bf16 --heads 32 --kv-heads 8"
    )
    (total,) = found["totals"]
    keys_and_values = 2 * 32768 * 128
    assert total["reads"] == 8 * (keys_and_values + 4 * 128) == 67_112_960
    assert total["writes"] == 32 * (128 + 1)  # O, and the row's logsumexp
    assert total["bytes"] == 2 * total["io"]
    assert total["io_without_sharing"] == 32 * (keys_and_values + 128 + 129)


def test_prefill_of_llama_3_8b_by_hand(run: Any) -> None:
    """n = 8192 under a causal mask: rows of 4 heads side by side, so 512 of them are 128 positions."""
    found = run(
        "count flash2-forward -n 8192 -d 128 -M 227KiB --dtype bf16 --mask causal --heads 32 --kv-heads 8 "
        "--block B_r=512 --block B_c=64"
    )
    (total,) = found["totals"]
    seen = sum(128 * (i + 1) for i in range(8192 // 128))  # keys that each block of 128 positions needs
    assert total["reads"] == 8 * (4 * 8192 * 128 + 2 * 128 * seen)
    assert total["writes"] == 32 * 8192 * 129
    alone = sum(-(-min(8192, 512 * (i + 1)) // 64) * 64 for i in range(8192 // 512))
    assert total["io_without_sharing"] == 32 * (8192 * 128 + 2 * 128 * alone + 8192 * 129)


def test_each_head_for_itself_is_as_many_times_one_head(run: Any) -> None:
    line = "count flash2-forward -n 64 -d 8 -M 500 --dtype fp16 --heads 6 --kv-heads 2 --batch 5"
    (shared,), (separate,) = run(line)["totals"], run(f"{line} --separate")["totals"]
    one = ps.count("flash2-forward", n=64, d=8, M=500)
    assert separate["io"] == shared["io_without_sharing"] == 30 * one.io
    grouped = ps.count("flash2-forward", n_q=192, n_k=64, d=8, M=500)
    assert shared["io"] == 10 * grouped.io < separate["io"]


@given(data=st.data())
@strategies.draws(50, 400)
def test_rows_of_one_position_share_what_it_may_see(data: st.DataObject) -> None:
    n_q, n_k, rows, width = (data.draw(st.integers(1, 7)) for _ in range(4))
    kind = data.draw(st.sampled_from(["causal", "causal:start", f"window:{width}", f"band:{width}:start", "table"]))
    if kind == "table":
        table = np.random.default_rng(data.draw(st.integers(0, 99))).random((n_q, n_k)) < 0.5
        mask = of(table)
        if table.shape != (n_q, n_k) or 1 in table.shape:
            return
    else:
        mask = of(kind)
    assert mask is not None
    grouped, grid = mask.grouped(rows, (n_q, n_k)), (n_q * rows, n_k)
    allowed = mask.allowed(n_q, n_k).repeat(rows, axis=0)
    assert np.array_equal(grouped.allowed(*grid), allowed)
    cuts = [
        TileRange(*sorted(data.draw(st.tuples(*2 * [st.integers(0, n)]))), data.draw(st.integers(1, 9))) for n in grid
    ]
    seen = [
        [
            bool(allowed[i : min(i + cuts[0].block, cuts[0].stop), j : min(j + cuts[1].block, cuts[1].stop)].any())
            for j in range(cuts[1].start, cuts[1].stop, cuts[1].block)
        ]
        for i in range(cuts[0].start, cuts[0].stop, cuts[0].block)
    ]
    assert grouped.tiles(grid, *cuts) == sum(map(sum, seen))
    if all(cut.start < cut.stop for cut in cuts):
        assert grouped.met(grid, *cuts).tolist() == [sum(row) for row in seen]
        assert grouped.met(grid, *cuts, axis=1).tolist() == [sum(column) for column in zip(*seen, strict=True)]


def test_numbers_of_heads_that_share_are_those_of_each_head() -> None:
    """Rows of one position stand together: row i·g + h is row i of head h."""
    n_q, n_k, d, sharing = 3, 5, 4, 2
    dims, (mask,), _ = Heads(4, 2).cases(problem("forward"), {"n_q": n_q, "n_k": n_k, "d": d}, of("causal"))
    assert dims == {"n_q": sharing * n_q, "n_k": n_k, "d_k": d, "d_v": d}
    rng = np.random.default_rng(0)
    heads = [rng.standard_normal((n_q, d)) for _ in range(sharing)]
    K, V = rng.standard_normal((2, n_k, d))
    together = np.stack(heads, axis=1).reshape(-1, d)
    found = ps.numbers("flash2-forward", M=200, mask=mask, inputs={"Q": together, "K": K, "V": V}, **dims)["O"]
    for head, Q in enumerate(heads):
        scores = np.where(np.tril(np.ones((n_q, n_k)), n_k - n_q) > 0, Q @ K.T, -np.inf)
        weights = np.exp(scores - scores.max(axis=1)[:, None])
        np.testing.assert_allclose(found[head::sharing], weights / weights.sum(axis=1)[:, None] @ V)


def test_a_head_that_sees_nothing_does_no_work() -> None:
    asked: dict[str, Any] = {"n": 6, "d": 2, "M": 60, "blocks": {"B_r": 2, "B_c": 2}}
    everything, nothing = np.ones((6, 6), bool), np.zeros((6, 6), bool)
    alone = ps.count("flash2-forward", mask=everything, **asked)
    both = ps.count("flash2-forward", mask=np.stack([everything, nothing, everything]), heads=3, **asked)
    assert ps.count("flash2-forward", mask=nothing, **asked).work == {}
    assert both.work == {kind: 2 * number for kind, number in alone.work.items()}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("count flash2-forward -n 8 -d 4 -M 99 --heads 32 --kv-heads 5", "32 heads cannot share 5 KV heads"),
        (
            "count flash -n 8 -d 4 -M 999 --heads 4 --kv-heads 2",
            "problem 'backward' has more inputs than queries, keys",
        ),
        ("count flash2-forward -n 8 -d 4 -M 99 --separate", "--separate is for heads that share keys and values"),
        ("count flash2-forward -n 8 -d 4 --size n=9 -M 99", "n was given twice, with -n and with --size"),
    ],
)
def test_what_heads_cannot_do_is_one_sentence(
    line: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = printed(line, capsys, monkeypatch)
    assert says in err and not out
    assert "Traceback" not in err


def test_a_game_of_heads_is_the_game_of_one_group(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 of 8 heads share 6 keys: their 2 queries each are 8 rows, and there are 2 groups in each of 3 sequences."""
    line = "flash2-forward --size n_q=2 --size n_k=6 -d 2 -M 40 --heads 8 --kv-heads 2 --batch 3"
    counted, played = run(f"count {line}"), run(f"play {line}")
    assert (played["n_q"], played["n_k"], played["times"]) == (4 * 2, 6, 2 * 3)
    assert played["total_io"] == 6 * played["io"] == counted["totals"][0]["io"] and played["complete"]
    said = printed(f"play {line}", capsys, monkeypatch)[0]
    assert "4 that share keys and values in one game: 6 such games, 528 words of I/O\n" in said
    alone = ps.play("flash2-forward", M=40, n_q=2, n_k=6, d=2, heads=8, kv_heads=2, separate=True)
    assert (alone.times, alone.dims["n_q"]) == (8, 2) and "in one game" not in str(alone)
    assert "in all" not in str(ps.play("flash2-forward", M=40, n=2, d=2))


def test_heads_of_other_problems_need_no_sharing() -> None:
    dims, masks, times = Heads(8, batch=2).cases(problem("backward"), {"n": 9, "d": 3}, None)
    assert (dims, masks, times) == ({"n": 9, "d": 3}, (None,), 16)
    with pytest.raises(UsageError, match="heads = 0 was given"):
        Heads(0)


def test_a_packed_batch_by_hand() -> None:
    """Sequences of 300, 500 and 224 tokens in one call: a block of queries reads the keys of the sequences it is in."""
    counted = ps.count(
        "flash2-forward", n=1024, d=64, M=2**15, mask="lengths:300,500,224", blocks={"B_r": 128, "B_c": 32}
    )
    assert counted.pairs == 300**2 + 500**2 + 224**2
    lengths, tiles = (300, 500, 224), 0
    for i in range(0, 1024, 128):
        seen, start = set(), 0
        for length in lengths:
            if i < start + length and i + 128 > start:
                seen |= {j // 32 for j in range(start, start + length)}
            start += length
        tiles += len(seen)
    assert counted.reads == 1024 * 64 + 2 * 32 * 64 * tiles
    causal = ps.count("flash2-forward", n=1024, d=64, M=2**15, mask="lengths:300,500,224:causal")
    assert causal.pairs == sum(n * (n + 1) // 2 for n in lengths)
    assert causal.io < counted.io


def test_decoding_of_deepseek_by_hand(run: Any) -> None:
    """128 heads on one latent of 576 words, 512 of which are the value: 16,384 keys are moved once for all heads."""
    found = run(
        "count flash2-latent --size n_q=1 --size n_k=16384 --size d_k=576 --size d_v=512 -M 50MiB --dtype bf16 "
        "--heads 128 --kv-heads 1 --batch 2"
    )
    (row,), (total,) = found["rows"], found["totals"]
    keys = row["by_tensor"]["C"]["reads"] + row["by_tensor"]["R"]["reads"]
    assert 2 * keys == 16384 * 576 * 2 == 18_874_368
    assert total["reads"] == 2 * (16384 * 576 + 128 * 576)
    assert total["writes"] == 2 * 128 * (512 + 1)
    assert total["io_without_sharing"] == 2 * 128 * (16384 * 576 + 576 + 513)
    assert row["gap_of_way"] == 1 < row["gap"] < 1.0001  # L is written for a backward pass


def test_values_are_fewer_words_than_keys() -> None:
    with pytest.raises(UsageError, match="d_v = 8 was given, and d_k = 8; values are a part of the keys, so d_v must"):
        ps.count("flash2-latent", n_q=1, n_k=9, d_k=8, d_v=8, M=999)


DECODING: dict[str, Any] = {"n_q": 1, "n_k": 32768, "d": 128, "heads": 32, "kv_heads": 8}


def test_without_numbers_there_is_one_head_of_one_sequence() -> None:
    assert not Heads().is_given
    assert (Heads().times, Heads().sharing) == (1, 1)


def test_one_style_in_python() -> None:
    """Decoding of Llama-3 8B: 4 queries and all K and V for each group, whatever asks."""
    M, words = 2**16, 8 * (2 * 32768 * 128 + 4 * 128) + 32 * 129
    one = ps.count("flash2-forward", M=M, **DECODING)
    assert one.total.io == words
    assert one.total.in_bytes("bf16").io == 2 * words
    assert ps.compare("forward", schedules=["flash2-forward"], M=M, **DECODING)[0].total.io == words
    bounds = ps.bounds("forward", M=M, schedule="flash2-forward", **DECODING)
    assert bounds.total == words
    assert f"8 times that, {words:,} words" in str(bounds)
    (row,) = ps.sweep("flash2-forward", M=M, dtype="bf16", **DECODING)
    assert (row["total_io"], row["total_bytes"], row["times"]) == (words, 2 * words, 8)
    assert row["io_without_sharing"] == 32 * (2 * 32768 * 128 + 128 + 129)
    (closed,) = ps.sweep("flash2-forward", what="formula", M=M, dtype="bf16", **DECODING)
    assert (closed["total_io"], closed["total_bytes"], closed["n_q"]) == (words, 2 * words, 1)
    (seen,) = ps.cache("flash2-forward", M=M, policy="opt", machine="moves", **DECODING)
    assert seen.own is not None
    assert 8 * seen.own.io == words == seen.total("opt").io


@given(data=st.data())
@strategies.draws(6, 100)
def test_totals_are_those_of_heads_by_themselves(data: st.DataObject) -> None:
    """Against counts of each group in its own sizes, times as many as there are."""
    kv_heads, sharing, batch, n_q, n_k, d = (data.draw(st.integers(1, 4)) for _ in range(6))
    mask = data.draw(st.sampled_from([None, "causal", "window:2"]))
    name = data.draw(st.sampled_from(["flash2-forward", "flash2-backward", "standard-forward"]))
    asked: dict[str, Any] = {"heads": kv_heads * sharing, "kv_heads": kv_heads, "batch": batch, "mask": mask}
    sizes = {"n_q": n_q, "n_k": n_k, "d": d}
    found = ps.count(name, M=500, **asked, **sizes)
    alike = None if mask is None else of(mask).grouped(sharing, (n_q, n_k))  # type: ignore[union-attr]
    group = ps.count(name, M=500, mask=alike, **{**sizes, "n_q": sharing * n_q})
    assert found.total.reads == kv_heads * batch * group.reads
    assert found.total.writes == kv_heads * batch * group.writes
    alone = kv_heads * sharing * batch * ps.count(name, M=500, mask=mask, **sizes).io
    assert found.io_without_sharing == (None if sharing == 1 else alone)
    assert ps.count(name, M=500, separate=True, **asked, **sizes).total.io == alone
    (row,) = ps.sweep(name, M=500, **asked, **sizes)
    assert row["total_io"] == found.total.io
    assert ps.bounds(solves := found.problem, M=500, **asked, **sizes).total <= found.total.io, solves


@pytest.mark.one_in(2)
@given(data=st.data())
@strategies.draws(4, 60)
def test_each_head_is_counted_under_its_own_mask(data: st.DataObject) -> None:
    """Against the mask of each group spelled out row by row, and counted alone."""
    kv_heads, sharing, batch, n_q, n_k, d = (data.draw(st.integers(1, most)) for most in (2, 2, 3, 4, 4, 3))
    heads = kv_heads * sharing
    table = np.random.default_rng(data.draw(st.integers(0, 999))).random((heads, n_q, n_k)) < 0.5
    if 1 in (n_q, n_k) and n_q != n_k:
        n_q = n_k = 2
        table = np.random.default_rng(0).random((heads, 2, 2)) < 0.5
    sizes: dict[str, Any] = {"n_q": n_q, "n_k": n_k, "d": d, "M": 500, "blocks": {"B_r": 2, "B_c": 2}}
    asked: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "batch": batch, "mask": table}
    found = ps.count("flash2-forward", **asked, **sizes)
    reads = writes = pairs = 0
    for group in range(kv_heads):
        rows = [table[group * sharing + h, i] for i in range(n_q) for h in range(sharing)]
        whole = from_array(np.array(rows), size=(1, 1))
        one = ps.count("flash2-forward", mask=whole, **{**sizes, "n_q": sharing * n_q})
        reads, writes, pairs = reads + one.reads, writes + one.writes, pairs + int(np.sum(rows))
    assert (found.reads, found.writes, found.pairs) == (reads, writes, pairs)
    assert found.total.io == batch * (reads + writes)
    apart = [ps.count("flash2-forward", mask=from_array(each, size=(1, 1)), **sizes).io for each in table]
    assert ps.count("flash2-forward", separate=True, **asked, **sizes).total.io == batch * sum(apart)
    bounds = ps.bounds("forward", M=500, schedule="flash2-forward", n_q=n_q, n_k=n_k, d=d, **asked)
    assert found.lower_bound.value == bounds.best.value <= found.io
    (row,) = ps.sweep("flash2-forward", **asked, **sizes)
    assert row["total_io"] == found.total.io
    (cached,) = ps.cache("flash2-forward", machine="moves", **asked, **sizes)
    assert cached.own is not None
    assert cached.own.io == found.io
    each_fetches = [part.opt.fetched for part in _of_parts(found, sizes)]
    assert cached.opt.fetched == sum(each_fetches)


def _of_parts(found: ps.Counted, sizes: dict[str, Any]) -> list[ps.Cached]:
    shape = {name: size for name, size in sizes.items() if name in ("M", "blocks")}
    return [
        ps.cache("flash2-forward", machine="moves", mask=part.mask, **shape, **part.dims)[0]
        for part in found.parts or [found]
    ]


def test_a_mask_for_each_head_from_a_file(run: Any, tmp_path: Any) -> None:
    """Three heads of 8 rows in blocks of 4: all pairs, the diagonal blocks, and nothing but the first block."""
    table = np.zeros((3, 2, 2), bool)
    table[0], table[1], table[2, 0, 0] = True, np.eye(2), True
    np.save(tmp_path / "heads.npy", table)
    line = f"count flash2-forward -n 8 -d 2 -M 100 --mask {tmp_path}/heads.npy --block B_r=4 --block B_c=4 --dtype fp16"
    found = run(f"{line} --heads 3 --batch 5")
    (row,), (total,) = found["rows"], found["totals"]
    assert [each["reads"] for each in row["heads"]] == [16 + 4 * 16, 16 + 2 * 16, 8 + 16]  # no row of the last block
    assert row["writes"] == 3 * (16 + 8)
    assert total["io"] == 5 * row["io"]
    assert total["bytes"] == 2 * total["io"]
    assert found["pairs"] == 16 * (4 + 2 + 1)


def test_pairs_are_said_of_all_pairs() -> None:
    """One table for all heads, none, and one for each head."""
    alone = {"n": 8, "d": 2, "M": 100}
    assert "mask causal (36 of 64 pairs)" in str(
        ps.compare("forward", schedules=["flash2-forward"], mask="causal", **alone)
    )  # type: ignore[arg-type]
    assert ps.count("flash2-forward", **alone).all_pairs == 64  # type: ignore[arg-type]
    heads = ps.count("flash2-forward", mask=np.ones((3, 1, 1), bool), heads=3, **alone)  # type: ignore[arg-type]
    assert heads.all_pairs == 3 * 64


@pytest.mark.one_in(2)
def test_heads_with_masks_of_their_own_have_their_own_blocks_and_pairs() -> None:
    """Together they have block sizes only where these are the same for all; pairs and bounds add up."""
    table = np.zeros((3, 4, 4), bool)
    table[0], table[1], table[2, 0, 0] = True, np.eye(4), True
    sizes: dict[str, Any] = {"n": 16, "d": 2, "M": 60}
    alone = [ps.count("flash2-forward", mask=from_array(each), blocks="best", **sizes) for each in table]
    together = ps.count("flash2-forward", mask=table, heads=3, blocks="best", **sizes)
    assert len({tuple(each.blocks.items()) for each in alone}) > 1
    assert (together.blocks, together.io) == ({}, sum(each.io for each in alone))
    assert ps.count("flash2-forward", mask=table[:2] | True, heads=2, blocks="best", **sizes).blocks == alone[0].blocks

    bounds = ps.bounds("forward", mask=table, heads=3, **sizes)
    assert bounds.pairs == 16 * (16 + 4 + 1)
    assert bounds.best.value == sum(ps.bounds("forward", mask=from_array(each), **sizes).best.value for each in table)


def test_heads_one_after_the_other_find_their_keys_in_the_cache() -> None:
    """K and V of a group are fetched once where the cache holds them, and by each head where it does not."""
    shape: dict[str, Any] = {
        "n_q": 1,
        "n_k": 64,
        "d": 4,
        "heads": 6,
        "kv_heads": 2,
        "batch": 5,
        "blocks": {"B_r": 1, "B_c": 8},
    }
    large, small = ps.cache("flash2-forward", M=[4096, 200], machine="moves", separate=True, **shape)
    assert large.lru.fetched == 2 * 64 * 4 + 3 * 4
    assert small.lru.fetched == 3 * (2 * 64 * 4 + 4)
    assert large.times == small.times == 10
    together = ps.cache("flash2-forward", M=4096, machine="moves", **shape | {"blocks": {"B_r": 3, "B_c": 8}})[0]
    assert together.lru.fetched == large.lru.fetched


def test_as_many_requests_of_all_heads_as_are_allowed_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {"n": 8, "d": 2, "M": 100, "heads": 2, "kv_heads": 1, "separate": True}
    number = ps.cache("flash2-forward", **shape)[0].lru.requests
    monkeypatch.setattr("pebblesim.cachesim.streams.MOST_REQUESTS", number)
    assert ps.cache("flash2-forward", **shape)[0].lru.requests == number
    monkeypatch.setattr("pebblesim.cachesim.streams.MOST_REQUESTS", number - 1)
    with pytest.raises(UsageError, match="requests of all heads are too many to go through"):
        ps.cache("flash2-forward", **shape)


def test_heads_that_share_find_each_others_keys_in_l2() -> None:
    """Behind an L2 that holds all, K and V of a group are read once, though each head is launched for itself."""
    shape: dict[str, Any] = {"n": 64, "d": 16, "M": 4096, "blocks": {"B_r": 16, "B_c": 16}, "size": 2**26}
    words = 64 * 16
    for separate, sharing in ((True, 3), (False, 3), (True, 1)):
        heads: dict[str, Any] = {"heads": 6, "kv_heads": 6 // sharing, "batch": 2, "separate": separate}
        found = ps.l2("flash2-forward", **shape, **heads)
        assert found.read == 4 * 2 * (6 * words + 6 // sharing * 2 * words)
        assert found.heads == (12 if separate else 4)
    own = ps.l2("flash2-forward", heads=12, **shape)
    assert own.read == 4 * 12 * 3 * words


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bounds -p forward -n 8 -d 4 -M 99 --heads 32 --kv-heads 5", "32 heads cannot share 5 KV heads"),
        (
            "sweep -s flash2-forward -n 8 -d 4 -M 99 --heads 32 --kv-heads 5",
            "32 heads cannot share 5 KV heads",
        ),
        ("cache flash2-forward -n 8 -d 4 -M 99 --heads 32 --kv-heads 5", "32 heads cannot share 5 KV heads"),
        ("sweep -s matmul-tiled -n 8 -d 4 -M 99 --heads 4 --kv-heads 2", "problem 'matmul' has more inputs than"),
        (
            "sweep -s flash2-forward --what formula --mask causal -n 8 -d 4 -M 99 --heads 4 --kv-heads 2",
            "closed forms under a mask, here causal, are of a head for itself; sweep by count, or leave one out.",
        ),
        ("bounds -p forward -n 8 -d 4 -M 99 --pairs 9 --heads 4 --kv-heads 2", "a number of pairs is for a head alone"),
        ("cache nowhere.csv -M 99 --heads 4", "sizes, heads, lines and masks are for a schedule"),
    ],
)
def test_what_heads_cannot_do_elsewhere(
    line: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = printed(line, capsys, monkeypatch)
    assert says in err and not out
    assert "Traceback" not in err


def test_masks_of_heads_that_do_not_fit() -> None:
    sizes: dict[str, Any] = {"n": 9, "d": 2, "M": 100}
    for heads, shape, says in (
        (4, (3, 9, 9), r"mask blocks is of 3 heads, and there are 4; give .* \(heads, n_q, n_k\) = \(4, 9, 9\)"),
        (1, (2, 9, 9), r"mask blocks is of 2 heads, and there is 1; give an array of shape .* = \(1, 9, 9\)"),
        (
            2,
            (2, 4, 4),
            r"\[0\] has 4 rows of blocks, .* or of \(n, n\) = \(9, 9\), behind a first dimension of 2 heads",
        ),
        (2, (2, 1, 9), r"one row for all; .* behind a first dimension of 2 heads"),
    ):
        with pytest.raises(UsageError, match=says):
            ps.count("flash2-forward", mask=np.ones(shape, bool), heads=heads, **sizes)
    with pytest.raises(
        UsageError, match=r"has shape \(2, 9, 9\); it must have rows and columns, .*; `count`, `bounds`"
    ):
        ps.play("flash2-forward", mask=np.ones((2, 9, 9), bool), **sizes)
    with pytest.raises(UsageError, match=r"\[1\] holds int64 values other than 0 and 1"):
        ps.count("flash2-forward", mask=np.array([np.ones((9, 9)), np.full((9, 9), 2)]).astype(int), heads=2, **sizes)
    with pytest.raises(UsageError, match="problem 'matmul' has no pairs of queries and keys; leave the mask out"):
        ps.count("matmul-tiled", mask=np.ones((2, 9, 9), bool), heads=2, **sizes)
    with pytest.raises(UsageError, match="a game is of one head, and mask blocks, one for each head; sweep by count"):
        ps.sweep("flash2-forward", what="play", mask=np.ones((2, 9, 9), bool), heads=2, **sizes)
