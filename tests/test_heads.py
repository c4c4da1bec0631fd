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
from pebblesim.errors import UsageError
from pebblesim.jobs.heads import Heads
from pebblesim.language.masks import TileRange, of
from pebblesim.language.problems import problem


def printed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", ["pebblesim", *line.split()])
    with pytest.raises(SystemExit):
        cli.main()
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command prints as JSON."""
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
    assert total["each_for_itself"] == 32 * (keys_and_values + 128 + 129)


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
    assert total["each_for_itself"] == 32 * (8192 * 128 + 2 * 128 * alone + 8192 * 129)


def test_each_head_for_itself_is_as_many_times_one_head(run: Any) -> None:
    line = "count flash2-forward -n 64 -d 8 -M 500 --dtype fp16 --heads 6 --kv-heads 2 --batch 5"
    (shared,), (separate,) = run(line)["totals"], run(f"{line} --separate")["totals"]
    one = ps.count("flash2-forward", n=64, d=8, M=500)
    assert separate["io"] == shared["each_for_itself"] == 30 * one.io
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
    dims, mask = Heads(4, 2).of(problem("forward"), {"n_q": n_q, "n_k": n_k, "d": d}, of("causal"))
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


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("count flash2-forward -n 8 -d 4 -M 99 --heads 32 --kv-heads 5", "32 heads cannot share 5 heads of keys and"),
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


def test_heads_of_other_problems_need_no_sharing() -> None:
    dims, _ = Heads(8, batch=2).of(problem("backward"), {"n": 9, "d": 3}, None)
    assert dims == {"n": 9, "d": 3}
    assert Heads(8, batch=2).times == 16
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
        "count -p forward-latent --size n_q=1 --size n_k=16384 --size d_k=576 --size d_v=512 -M 50MiB --dtype bf16 "
        "--heads 128 --kv-heads 1 --batch 2"
    )
    (row,), (total,) = found["rows"], found["totals"]
    keys = row["by_tensor"]["C"]["reads"] + row["by_tensor"]["R"]["reads"]
    assert 2 * keys == 16384 * 576 * 2 == 18_874_368
    assert total["reads"] == 2 * (16384 * 576 + 128 * 576)
    assert total["writes"] == 2 * 128 * (512 + 1)
    assert total["each_for_itself"] == 2 * 128 * (16384 * 576 + 576 + 513)
    assert row["gap"] == 1


def test_values_are_fewer_words_than_keys() -> None:
    with pytest.raises(
        UsageError, match="d_v = 8 was given, and d_k = 8; values are a part of the keys, so d_v is less"
    ):
        ps.count("flash2-latent", n_q=1, n_k=9, d_k=8, d_v=8, M=999)
