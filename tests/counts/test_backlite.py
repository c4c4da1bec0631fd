"""BackLite: tiles of little probability left out of the backward pass, against plain dense numpy and plain loops."""

import csv
import json
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Pebblesim, Run
from hypothesis import assume, given, strategies as st
from safetensors.numpy import save_file

import pebblesim as ps
from pebblesim.language import masks
from pebblesim.sparse_backward.result import selection_cost
from pebblesim.sparse_backward.weights import levels, row_weights

Arrays = dict[str, Any]


def safetensors(path: Path, kind: str, shape: tuple[int, int], data: bytes) -> None:
    """Q, K and V, all of these bytes, of a type that numpy has not: the format is a header in JSON before the words."""
    tensor = {"dtype": kind, "shape": shape}
    tensors = {name: tensor | {"data_offsets": (k * len(data), (k + 1) * len(data))} for k, name in enumerate("QKV")}
    header = json.dumps(tensors).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + 3 * data)


# -- an oracle: dense matrices, an explicit 0/1 mask, and lists of tiles ------------------------------------------


def probabilities(x: Arrays, scale: float) -> Any:
    scores = scale * x["Q"] @ x["K"].T
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def gradients(x: Arrays, scale: float, kept: Any, B_r: int, B_c: int) -> Arrays:
    """With 0 for P where a tile is left out, and D of the forward pass that leaves out nothing."""
    n, P = len(x["Q"]), probabilities(x, scale)
    D = (x["dO"] * (P @ x["V"])).sum(axis=1, keepdims=True)
    seen = kept[np.arange(n)[:, None] // B_r, np.arange(n) // B_c].astype(float)
    dS = seen * P * (x["dO"] @ x["V"].T - D)
    return {"dQ": scale * dS @ x["K"], "dK": scale * dS.T @ x["Q"], "dV": (seen * P).T @ x["dO"]}


def similarities(x: Arrays, scale: float, kept: Any, B_r: int, B_c: int) -> dict[str, tuple[float, float]]:
    exact = gradients(x, scale, np.ones_like(kept), B_r, B_c)
    found = gradients(x, scale, kept, B_r, B_c)
    pairs = {name: (exact[name].ravel(), found[name].ravel()) for name in exact}
    pairs["all"] = tuple(np.concatenate([pair[k] for pair in pairs.values()]) for k in (0, 1))
    out = {}
    for name, (a, b) in pairs.items():
        size, norms = np.linalg.norm(a), np.linalg.norm(a) * np.linalg.norm(b)
        out[name] = (float(a @ b / norms) if norms else 0.0, float(np.linalg.norm(a - b) / size) if size else 0.0)
    return out


def size_of(found: Arrays, name: str) -> float:
    return float(np.linalg.norm(np.concatenate(list(found.values())) if name == "all" else found[name]))


def tile_sums(P: Any, B_r: int, B_c: int) -> Any:
    n = len(P)
    return np.array([[P[i : i + B_r, j : j + B_c].sum() for j in range(0, n, B_c)] for i in range(0, n, B_r)])


def left_out(weights: dict[tuple[int, int], float], epsilon: float) -> set[tuple[int, int]]:
    """Take the lightest as long as it fits into the budget."""
    budget, taken = epsilon * sum(weights.values()), set()
    for tile in sorted(weights, key=weights.__getitem__):
        budget -= weights[tile]
        if budget < 0:
            break
        taken.add(tile)
    return taken


def clear(rule: str, P: Any, B_r: int, B_c: int) -> bool:
    """Whether rounding cannot change which tiles are left out, nor in which order."""
    n, sums = len(P), tile_sums(P, B_r, B_c)
    if rule == "threshold":
        sums = np.array([tile_sums(P, 1, B_c)[i : i + B_r].max(axis=0) for i in range(0, n, B_r)])
        if sums.max() > 1 - 1e-9:
            return False
    lines = np.sort(sums if rule == "row" else sums.reshape(1, -1), axis=1)
    return bool((np.diff(lines) > 1e-9 * lines[:, 1:]).all())


def expected_kept(rule: str, P: Any, B_r: int, B_c: int, parameter: float) -> Any:
    n, sums = len(P), tile_sums(P, B_r, B_c)
    kept = np.ones(sums.shape, bool)
    tiles = list(np.ndindex(*sums.shape))
    if rule == "threshold":
        for i, j in tiles:
            rows = range(i * B_r, min(n, (i + 1) * B_r))
            kept[i, j] = any(P[r, j * B_c : (j + 1) * B_c].sum() >= parameter for r in rows)
        return kept
    lines = [tiles] if rule == "head" else [[tile for tile in tiles if tile[0] == i] for i in range(len(sums))]
    for line in lines:
        for tile in left_out({tile: float(sums[tile]) for tile in line}, parameter):
            kept[tile] = False
    return kept


def random_head(n: int, d: int, seed: int, spread: float = 2.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: spread * rng.standard_normal((n, d)) for name in ("Q", "K", "V", "dO")}


HEADS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 14),
        "d": st.integers(1, 5),
        "B_r": st.integers(1, 5),
        "B_c": st.integers(1, 5),
        "seed": st.integers(0, 10**6),
        "rule": st.sampled_from(["head", "row", "threshold"]),
    }
).filter(lambda h: h["B_r"] <= h["n"] and h["B_c"] < max(2, h["n"]))  # one column of tiles: all weights tie


# -- what is left out, and what that does to the gradients --------------------------------------------------------


@pytest.mark.one_in(2)
@given(HEADS, st.floats(0, 0.99), st.none() | st.floats(0.1, 3))
def test_the_rows_say_what_dense_matrices_say(h: dict[str, Any], parameter: float, scale: float | None) -> None:
    x, blocks = random_head(h["n"], h["d"], h["seed"]), {"B_r": h["B_r"], "B_c": h["B_c"]}
    used = h["d"] ** -0.5 if scale is None else scale
    P = probabilities(x, used)
    expected, *near = (
        expected_kept(h["rule"], P, **blocks, parameter=parameter * by) for by in (1, 1 - 1e-9, 1 + 1e-9)
    )
    assume(clear(h["rule"], P, **blocks) and all(np.array_equal(expected, each) for each in near))
    found = ps.backlite(x, rule=h["rule"], parameters=[parameter], blocks=blocks, scale=scale)
    (row,) = found.rows
    np.testing.assert_array_equal(row.counted.mask.table, expected)
    assert (row.tiles, row.dropped) == (expected.size, expected.size - expected.sum())
    assert row.weight == pytest.approx((tile_sums(P, **blocks) * ~expected).sum() / h["n"], abs=1e-12)
    exact, rest = (gradients(x, used, kept, **blocks) for kept in (np.ones_like(expected), expected))
    for name, (cosine, l2) in similarities(x, used, expected, **blocks).items():
        if size_of(exact, name) > 1e-3:  # and not rounding alone
            assert row.gradients[name].l2 == pytest.approx(l2, abs=1e-7)
            if size_of(rest, name) > 1e-3:
                assert row.gradients[name].cosine == pytest.approx(cosine, abs=1e-7)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("rule", "seed", "spread"), [("head", 0, 2), ("row", 1, 2), ("threshold", 2, 2), ("head", 3, 100)]
)
def test_at_epsilon_0_the_gradients_are_the_exact_ones_bit_by_bit(rule: str, seed: int, spread: float) -> None:
    """Not even a tile of probability 0, which may go, changes a bit; with a spread of 100 there are many."""
    x = random_head(96, 8, seed, spread)
    found = ps.backlite(x, rule=rule, parameters=[0], blocks={"B_r": 8, "B_c": 16})
    (row,) = found.rows
    assert row.weight == 0
    assert (row.dropped > 10) if spread == 100 else (row.dropped == 0)
    assert set(row.gradients.values()) == {(1.0, 0.0)}
    sizes = {"n": 96, "d": 8, "M": 10**6, "blocks": {"B_r": 8, "B_c": 16}}
    x |= {"Q": x["Q"] * (1 / 8**0.5)}
    x |= ps.numbers("flash2-forward", **sizes, inputs={name: x[name] for name in "QKV"})
    dense = ps.numbers("flash2-backward", **sizes, inputs=x)
    sparse = ps.numbers("flash2-backward", **sizes, inputs=x, mask=row.counted.mask)
    assert all(np.array_equal(dense[name], sparse[name]) for name in ("dQ", "dK", "dV"))


@pytest.mark.one_in(6)
@given(HEADS, st.lists(st.floats(0, 0.99), min_size=2, max_size=5).map(sorted))
def test_a_larger_parameter_leaves_out_more(h: dict[str, Any], parameters: list[float]) -> None:
    x = random_head(h["n"], h["d"], h["seed"])
    found = ps.backlite(x, rule=h["rule"], parameters=parameters, blocks={"B_r": h["B_r"], "B_c": h["B_c"]})
    for less, more in pairwise(found.rows):
        assert not (more.counted.mask.table & ~less.counted.mask.table).any()
        assert more.counted.io <= less.counted.io and more.io_saved >= less.io_saved
        assert more.counted.operations <= less.counted.operations and more.work_saved >= less.work_saved
    if h["rule"] != "threshold":
        assert all(row.weight <= row.parameter + 1e-12 for row in found.rows)
        assert all(row.counted.mask.table.any() for row in found.rows)


def test_a_tile_stays_if_one_of_its_rows_looks_at_it() -> None:
    """The threshold's tile with one heavy row of four stays, where the tile's weight alone would let it go."""
    n = 8
    P = np.full((n, 2), 0.5)
    P[0], P[1:4] = (0.8, 0.2), (1.0, 0.0)
    table = levels("threshold", P, 4).table
    np.testing.assert_array_equal(table, [[1.0, 0.2], [0.5, 0.5]])
    np.testing.assert_array_equal(levels("threshold", P, 4).kept(0.2), [[True, True], [True, True]])
    np.testing.assert_array_equal(levels("threshold", P, 4).kept(0.21), [[True, False], [True, True]])
    np.testing.assert_allclose(levels("head", P, 4).weights, [[3.8, 0.2], [2, 2]])
    np.testing.assert_array_equal(levels("head", P, 4).kept(0.025), [[True, False], [True, True]])
    np.testing.assert_array_equal(levels("row", P, 4).kept(0.5), [[True, False], [False, True]])


@given(HEADS)
def test_weights_of_rows_are_sums_of_probabilities(h: dict[str, Any]) -> None:
    x = random_head(h["n"], h["d"], h["seed"])
    P = probabilities(x, 1.0)
    scores = x["Q"] @ x["K"].T
    L = np.log(np.exp(scores - scores.max()).sum(axis=1)) + scores.max()
    p = row_weights(x["Q"], x["K"], L, h["B_r"], h["B_c"])
    np.testing.assert_allclose(p, tile_sums(P, 1, h["B_c"]), atol=1e-9)


# -- calibration --------------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@given(HEADS, st.floats(-1, 1), st.floats(0, 1.5))
def test_calibration_finds_the_largest_mask_among_all(h: dict[str, Any], cosine: float, l2: float) -> None:
    assume(h["n"] > 1)
    x, blocks = random_head(h["n"], h["d"], h["seed"]), {"B_r": h["B_r"], "B_c": h["B_c"]}
    scale = h["d"] ** -0.5
    P = probabilities(x, scale)
    assume(clear(h["rule"], P, **blocks))
    found = ps.backlite(x, rule=h["rule"], parameters=[], blocks=blocks, limits=(cosine, l2)).calibrated
    assert found is not None

    # brute force: every mask there is, by a parameter between any two levels that a tile could have
    if h["rule"] == "threshold":
        at = [P[r, j : j + h["B_c"]].sum() for r in range(h["n"]) for j in range(0, h["n"], h["B_c"])]
    else:
        lines = [tile_sums(P, **blocks).ravel()] if h["rule"] == "head" else tile_sums(P, **blocks)
        at = [level for line in lines for level in np.cumsum(np.sort(line)) / line.sum()]
    edges = sorted({0.0, 1.0, *(float(level) for level in at if level < 1 - 1e-12)})
    tried = [(low + high) / 2 for low, high in pairwise(edges)]
    kept = {expected_kept(h["rule"], P, **blocks, parameter=t).tobytes(): t for t in tried}
    good = []
    for t in kept.values():
        mask = expected_kept(h["rule"], P, **blocks, parameter=t)
        each = similarities(x, scale, mask, **blocks).values()
        assume(all(abs(c - cosine) > 1e-7 and abs(e - l2) > 1e-7 for c, e in each))  # rounding decides nothing
        if mask.all() or all(c >= cosine and e <= l2 for c, e in each):
            good.append((np.size(mask) - mask.sum(), mask))
    assert found.masks == len(kept)
    most, mask = max(good, key=lambda pair: pair[0])
    assert found.row.dropped == most
    np.testing.assert_array_equal(found.row.counted.mask.table, mask)
    assert found.start <= found.row.parameter <= found.stop


def test_limits_that_nothing_keeps_leave_out_nothing_that_counts() -> None:
    found = ps.backlite(random_head(64, 4, 0), blocks={"B_r": 8, "B_c": 8}, parameters=[], limits=(1.0, 0.0)).calibrated
    assert found is not None and (found.row.dropped, found.row.gradients["all"]) == (0, (1.0, 0.0))
    assert found.start == 0 <= found.row.parameter < found.stop


# -- words and operations -----------------------------------------------------------------------------------------


@given(
    st.integers(1, 20), st.integers(1, 6), st.integers(1, 7), st.integers(1, 7), st.floats(0, 1), st.integers(0, 10**6)
)
def test_words_of_a_backward_pass_that_skips_tiles(n: int, d: int, B_r: int, B_c: int, p: float, seed: int) -> None:
    """5nd + n + 2Ad + (4d + 2)W: A the width of columns with a tile, W the height of all tiles that stay."""
    table = np.random.default_rng(seed).random((-(-n // B_r), -(-n // B_c))) < p
    A = W = 0
    for j in range(n):
        A += any(table[i // B_r, j // B_c] for i in range(n))
    for i in range(n):
        W += sum(table[i // B_r, J] for J in range(-(-n // B_c)))
    mask = masks.from_array(table, size=(B_r, B_c))
    found = ps.count("flash2-backward", n=n, d=d, M=10**6, blocks={"B_r": B_r, "B_c": B_c}, mask=mask)
    assert found.io == 5 * n * d + n + 2 * A * d + (4 * d + 2) * W


def test_what_is_saved_is_exact() -> None:
    found = ps.backlite(random_head(40, 3, 5), parameters=[0.1], blocks={"B_r": 7, "B_c": 9})
    (row,) = found.rows
    sizes = {"n": 40, "d": 3, "M": 10**6, "blocks": {"B_r": 7, "B_c": 9}}
    dense, sparse = ps.count("flash2-backward", **sizes), ps.count("flash2-backward", **sizes, mask=row.counted.mask)
    assert row.dropped > 0
    assert row.io_saved == float(1 - Fraction(sparse.io, dense.io))
    assert row.work_saved == float(1 - Fraction(sparse.operations, dense.operations))
    assert row.net_io_saved == float(1 - Fraction(sparse.io + found.recording.io, dense.io))
    assert row.counted.gap == sparse.gap and found.dense.gap == dense.gap


def test_the_sparse_schedule_wins_a_game_with_the_words_that_are_said() -> None:
    found = ps.backlite(random_head(12, 2, 4), parameters=[0.2], blocks={"B_r": 3, "B_c": 4})
    (row,) = found.rows
    assert row.dropped > 0
    sizes = {"n": 12, "d": 2, "M": found.dense.peak_red, "blocks": {"B_r": 3, "B_c": 4}}
    played = ps.play("flash2-backward", **sizes, mask=row.counted.mask)
    assert played.passed and played.io == row.counted.io


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 8))
def test_recording_is_what_a_loop_counts(n: int, B_r: int, B_c: int) -> None:
    written = chosen_read = chosen_written = flags_read = work = 0
    for i in range(0, n, B_r):
        rows = range(i, min(n, i + B_r))
        for _j in range(0, n, B_c):
            for _ in rows:
                written += 1  # LSE_iJ
                work += 2  # m + log(sum)
    for i in range(0, n, B_r):
        rows = range(i, min(n, i + B_r))
        chosen_read += len(rows)  # L
        for _j in range(0, n, B_c):
            for row in rows:
                chosen_read += 1
                work += 2 + (row > i)  # exp(LSE_iJ - L_i), and its sum
            chosen_written += 1
    for _j in range(0, n, B_c):
        for _i in range(0, n, B_r):
            flags_read += 1
    found = selection_cost(n, B_r, B_c)
    assert found.io == written + chosen_read + chosen_written + flags_read
    assert (found.forward_writes, found.selection_reads, found.selection_writes) == (
        written,
        chosen_read,
        chosen_written,
    )
    assert found.work == work


# -- synthetic heads and files ------------------------------------------------------------------------------------


def test_a_synthetic_head_is_local_with_heavy_columns_and_the_same_every_time() -> None:
    x = ps.synthetic_head(512, 64, seed=3)
    again, other = ps.synthetic_head(512, 64, seed=3), ps.synthetic_head(512, 64, seed=4)
    assert all(np.array_equal(x[name], again[name]) and not np.array_equal(x[name], other[name]) for name in x)
    P = probabilities(x, 1 / 8)
    near = abs(np.subtract.outer(np.arange(512), np.arange(512))) <= 48
    heavy = np.argsort(P.sum(axis=0))[-4:]
    assert 0 in heavy
    assert P[near].sum() / 512 > 3 * near.mean()
    assert P[:, heavy].sum() / 512 > 5 * 4 / 512
    flat = probabilities(ps.synthetic_head(512, 64, local=0, sinks=0, noise=0), 1 / 8)
    np.testing.assert_allclose(flat, 1 / 512)
    scores = ps.synthetic_head(400, 9, 0, local=0, sinks=0, noise=1.5)
    assert (scores["Q"] @ scores["K"].T / 3).std() == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 2), (5, 4), (1, 64)])
def test_a_synthetic_head_of_any_size(n: int, d: int) -> None:
    x = ps.synthetic_head(n, d)
    assert all(array.shape == (n, d) and np.isfinite(array).all() for array in x.values())


SMALL = "--block B_r=4 --block B_c=6"


def rows_of(run: Run) -> list[dict[str, Any]]:
    assert run.code == 0, run.err
    return list(json.loads(run.out)["rows"])


@pytest.mark.one_in(3)
def test_the_same_head_from_files_of_any_kind(pebblesim: Pebblesim) -> None:
    x = {name: array.astype(np.float32) for name, array in random_head(20, 3, 7).items()}
    for name, array in x.items():
        np.save(f"{name}.npy", array)
        x[name] = np.stack([array + 1, array])
    np.savez("head.npz", **{name: array[1] for name, array in x.items()})
    save_file({name.lower(): array for name, array in x.items()}, "heads.safetensors")
    np.savez("batch.npz", **{name: np.stack([array * 2, array]) for name, array in x.items()})
    options = f"{SMALL} --epsilon 0.05,0.1 --json"
    expected = rows_of(pebblesim(f"backlite --inputs head.npz {options}"))
    assert expected[1]["dropped_tiles"] > 0
    files = "--inputs Q=Q.npy --inputs K=K.npy --inputs V=V.npy --inputs dO=dO.npy"
    for line in (files, "--inputs heads.safetensors --head 1", "--inputs batch.npz --head 1,1"):
        assert rows_of(pebblesim(f"backlite {line} {options}")) == expected
    assert rows_of(pebblesim(f"backlite --inputs heads.safetensors --head 0 {options}")) != expected
    without = "--inputs Q=Q.npy --inputs K=K.npy --inputs V=V.npy"
    made_up = rows_of(pebblesim(f"backlite {without} {options}"))
    assert made_up == rows_of(pebblesim(f"backlite {without} --seed 0 {options}")) != expected
    assert made_up != rows_of(pebblesim(f"backlite {without} --seed 1 {options}"))


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.5], [3.140625, 0.0078125]], np.float32)
    words = np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16))
    safetensors(tmp_path / "head.safetensors", "BF16", (2, 2), words.tobytes())
    head = ps.load_head([str(tmp_path / "head.safetensors")])
    assert all(np.array_equal(head[name], values) and head[name].dtype == np.float64 for name in "QKV")
    assert head["dO"].shape == (2, 2)


# -- the command --------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
def test_the_table_the_json_and_the_csv_say_the_same(pebblesim: Pebblesim) -> None:
    line = f"backlite -n 50 -d 8 --seed 2 {SMALL} --epsilon 0.01,0.1 --calibrate --cosine 0.9 --l2 0.4 --csv out.csv"
    printed = pebblesim(line)
    assert printed.code == 0 and "0.1 " in printed.out and "calibrated" in printed.out
    assert "recording: 450 words written by the forward pass, 500 read" in printed.out
    found = json.loads(pebblesim(f"{line} --json").out)
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line.pop("calibrated") for line in lines] == ["False", "False", "True"]
    rows = [*found["rows"], found["calibrated"]["row"]]
    assert [{name: float(value) for name, value in line.items()} for line in lines] == rows
    assert list(lines[0])[:7] == [
        "epsilon",
        "tile_sparsity",
        "io_saved",
        "net_io_saved",
        "work_saved",
        "cosine",
        "l2",
    ]
    assert [row["epsilon"] for row in found["rows"]] == [0.01, 0.1]
    calibrated = found["calibrated"]
    assert min(calibrated["row"][f"cosine_{name}"] for name in ("dQ", "dK", "dV")) >= 0.9
    assert max(calibrated["row"][f"l2_{name}"] for name in ("dQ", "dK", "dV")) <= 0.4
    cosines, errors = (
        [calibrated["row"][f"{of}{name}"] for name in ("", "_dQ", "_dK", "_dV")] for of in ("cosine", "l2")
    )
    assert min(cosines) < max(cosines)
    assert f"(worst: {min(cosines):.6f}, {max(errors):.3g})" in " ".join(printed.out.split())
    assert calibrated["start"] <= calibrated["row"]["epsilon"] < calibrated["stop"]
    assert sorted(path.name for path in Path().iterdir()) == ["out.csv"]


def test_python_prints_the_table() -> None:
    text = str(ps.backlite(n=32, d=4, blocks={"B_r": 8, "B_c": 8}, parameters=[0, 0.25]))
    heading, zero, quarter, dense, *_ = text.splitlines()
    assert heading.split()[0] == "ε" and zero.split()[0] == "0" and quarter.split()[0] == "0.25"
    assert zero.split()[-2:] == ["1.000000", "0"] and dense.startswith("dense:")


@pytest.mark.one_in(2)
def test_blocks_fit_in_the_cache_that_is_given(pebblesim: Pebblesim) -> None:
    found = json.loads(pebblesim("backlite -n 60 -d 4 -M 300 --epsilon 0.1 --json").out)
    chosen = ps.count("flash2-backward", n=60, d=4, M=300)
    assert found["blocks"] == chosen.blocks and found["dense"]["io"] == chosen.io
    partly = json.loads(pebblesim("backlite -n 60 -d 4 -M 300 --block B_c=5 --epsilon 0.1 --json").out)
    assert partly["blocks"] == ps.count("flash2-backward", n=60, d=4, M=300, blocks={"B_c": 5}).blocks


BAD_FILES = [  # options, and what the sentence must say; the test makes the files
    ("--inputs none.npz", "there is no such file"),
    ("--inputs text.npz", "cannot be read"),
    ("--inputs text.safetensors", "cannot be read"),
    ("--inputs text.csv", "files end in .npy, .npz, .safetensors"),
    ("--inputs good.npy", "say which, as Q=good.npy"),
    ("--inputs X=good.npy", "one of Q, K, V, dO"),
    ("--inputs Q=good.npz", "goes with a .npy file"),
    ("--inputs Q=good.npy", "no K and no V in 'Q=good.npy'"),
    ("--inputs Q=good.npy --inputs Q=good.npy", "give it once"),
    ("--inputs Q=objects.npy --inputs K=good.npy --inputs V=good.npy", "cannot be read"),
    ("--inputs other.npz", "there is no Q, K, V, dO in it, but A, B"),
    ("--inputs twice.npz", "Do and do both could be dO"),
    ("--inputs integers.npz", "Q holds int64; it must hold floating-point numbers"),
    ("--inputs nan.npz", "V[3, 1] is nan, one of 2 that are not finite"),
    ("--inputs infinite.npz", "K[0, 0] is inf"),
    ("--inputs shapes.npz", "K has shape (12, 3) and Q has (12, 2)"),
    ("--inputs rows.npz", "V has shape (11, 2) and Q has (12, 2)"),
    ("--inputs flat.npz", "Q has shape (12,); one head has shape (n, d)"),
    ("--inputs empty.npz", "with at least one of each"),
    ("--inputs heads.npz", "--head chooses one index for each of the others, such as --head 0"),
    ("--inputs heads.npz --head 5", "--head 5 does not exist in Q of shape (2, 12, 2)"),
    ("--inputs heads.npz --head x", "it must be whole numbers"),
    ("--inputs good.npz --head 0", "is one head already; leave --head out"),
    ("--inputs batch.npz --head 1", "such as --head 0,0"),
    ("--inputs eighth.safetensors", "K in 'eighth.safetensors' holds F8_E4M3"),
    ("--inputs huge.npz --block B_r=4 --block B_c=4", "overflows or vanishes in float64"),
    ("--inputs good.npz", "n = 12 rows are not enough for a tile of 64 x 128 pairs"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD_FILES)
def test_bad_inputs_get_one_sentence(pebblesim: Pebblesim, options: str, sentence: str) -> None:
    good = np.random.default_rng(0).standard_normal((12, 2))
    everything = dict.fromkeys("QKV", good)
    nan, infinite = good.copy(), good.copy()
    nan[3, 1] = nan[4, 0] = np.nan
    infinite[0, 0] = np.inf
    np.save("good.npy", good)
    np.save("objects.npy", np.array([{}], dtype=object))
    for ending in ("npz", "safetensors", "csv"):
        Path(f"text.{ending}").write_text("no array")
    for name, arrays in {
        "good": everything,
        "other": {"A": good, "B": good},
        "twice": everything | {"Do": good, "do": good},
        "integers": everything | {"Q": good.astype(int)},
        "nan": everything | {"V": nan},
        "infinite": everything | {"K": infinite},
        "shapes": everything | {"K": np.ones((12, 3))},
        "rows": everything | {"V": good[1:]},
        "flat": everything | {"Q": good[:, 0]},
        "empty": dict.fromkeys("QKV", good[:0]),
        "heads": dict.fromkeys("QKV", np.stack([good, good])),
        "batch": dict.fromkeys("QKV", good[None, None]),
        "huge": everything | {"V": 1e200 * good},
    }.items():
        np.savez(f"{name}.npz", **arrays)
    safetensors(Path("eighth.safetensors"), "F8_E4M3", (12, 2), bytes(24))
    run = pebblesim(f"backlite {options}")
    assert run.code == 2 and run.out == "" and run.err.startswith("error: ") and run.err.count("\n") == 1
    assert sentence in run.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "give -n and -d for synthetic inputs, or your own inputs with --inputs"),
        ("-n 64", "give -n and -d"),
        ("-n 64 -d 4 --inputs x.npz", "leave them out with --inputs"),
        ("-n 64 -d 4 --head 1", "synthetic inputs have one head"),
        ("-n 64 -d 4 --seed -1", "a seed must be 0 or more"),
        ("-n 64 -d 4 --scale nan", "it must be a finite number"),
        ("-n 64 -d 4 --epsilon 0.1 --threshold 0.1", "choose one"),
        ("-n 64 -d 4 --by-row --threshold 0.1", "choose one"),
        ("-n 64 -d 4 --epsilon 0.1,x", "it must be numbers"),
        ("-n 64 -d 4 --epsilon 1", "from 0 to below 1"),
        ("-n 64 -d 4 --epsilon nan", "from 0 to below 1"),
        ("-n 64 -d 4 --threshold 1.5", "from 0 to 1"),
        ("-n 64 -d 4 --cosine 0.9", "limits for --calibrate"),
        ("-n 64 -d 4 --calibrate --cosine 2", "a cosine is between -1 and 1"),
        ("-n 64 -d 4 --calibrate --l2 -1", "it must be 0 or more"),
        ("-n 64 -d 4 --block B=3", "no block of flash2-backward is called 'B'"),
        ("-n 64 -d 4 --block B_r=0", "must be a whole number, 1 or more"),
        ("-n 64 -d 4 -M 3", "M = 3 words is too small"),
        ("-n 64 -d 4 --dtype float32", "add -M"),
        ("-n 64 -d 4", "n = 64 rows are not enough for a tile of 64 x 128 pairs"),
        ("-n 20000 -d 1", "n may be at most 16,384"),
        ("-n 64 -d 4 --block B_c=64 --csv no/such/folder.csv", "there is no folder 'no/such'"),
    ],
)
def test_bad_options_get_one_sentence(pebblesim: Pebblesim, options: str, sentence: str) -> None:
    run = pebblesim(f"backlite {options}")
    assert run.code == 2 and run.out == "" and run.err.startswith("error: ") and run.err.count("\n") == 1
    assert sentence in run.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "give n and d"),
        ({"inputs": random_head(4, 1, 0), "n": 4}, "either sizes or inputs"),
        ({"inputs": {"Q": np.ones((4, 1))}}, "input K is missing"),
        ({"inputs": random_head(4, 1, 0) | {"O": 0}}, "'O' is not an input"),
        ({"inputs": random_head(4, 1, 0) | {"Q": [[1, 2]]}}, "must hold floating-point numbers"),
        ({"n": 9, "d": 1, "rule": "rows"}, "did you mean 'row'"),
        ({"n": 9, "d": 1, "rule": "threshold"}, "at least one value"),
        ({"n": 9, "d": 1, "parameters": []}, "at least one value"),
    ],
)
def test_python_refuses_with_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ps.UsageError, match=re.escape(sentence)):
        ps.backlite(**arguments)


def test_progress_goes_from_nothing_to_everything() -> None:
    seen: list[float] = []
    ps.backlite(n=32, d=4, blocks={"B_r": 8, "B_c": 8}, parameters=[0, 0.1], limits=(0.9, 0.5), progress=seen.append)
    assert seen == sorted(seen) and seen[0] > 0 and seen[-1] == pytest.approx(1.0) and len(seen) > 6


@pytest.mark.slow
def test_a_head_of_4096_by_64() -> None:
    found = ps.backlite(n=4096, d=64, limits=(0.999, 0.05))
    assert [row.parameter for row in found.rows] == [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1]
    first, *_, last = found.rows
    assert set(first.gradients.values()) == {(1.0, 0.0)} and first.io_saved == 0
    assert last.sparsity > 0.5 and last.net_io_saved > 0.5 and last.gradients["all"].cosine > 0.98
    x = ps.synthetic_head(4096, 64)
    for name, (cosine, l2) in similarities(x, 1 / 8, last.counted.mask.table, 64, 128).items():
        assert last.gradients[name].cosine == pytest.approx(cosine, abs=1e-9)
        assert last.gradients[name].l2 == pytest.approx(l2, rel=1e-6)
    assert found.calibrated is not None
    assert all(each.cosine >= 0.999 and each.l2 <= 0.05 for each in found.calibrated.row.gradients.values())
