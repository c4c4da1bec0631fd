"""`pebblesim.gpu.torch.plan`, and what is said where there is no PyTorch: without PyTorch."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import pytest
from checkout import ROOT
from hypothesis import given, strategies as st
from strategies import draws

from pebblesim.advice import cards, tiles
from pebblesim.advice.tiles import Tiling
from pebblesim.core.errors import UsageError
from pebblesim.kernels import releases
from pebblesim.operator import planning
from pebblesim.operator.pattern import Pattern, band_of, limits
from pebblesim.operator.planning import ROOM, chosen
from pebblesim.operator.plans import plan

PAGE = ROOT / "docs" / "attention.md"


@pytest.mark.one_in(3)
def test_heads_or_rows_are_cut_for_a_workspace() -> None:
    """Tables of P, whose place dS takes, have two bytes a word; where rows are cut, dK and dV are sums of four."""

    def cut(n: int, heads: int, room: int) -> list[tuple[int | None, int]]:
        tiling = Tiling("small-cache-backward-blocked", {"a": 128, "b": 128, "c": 64})
        found = tiles.within(tiling, {"n": n, "d": 512}, heads, "bfloat16", room)
        assert all(
            at_once * (min(each.blocks.get("C", n), n) * n * 2 + 2 * n * 512 * 4 * ("C" in each.blocks)) <= room
            for each, at_once in found
        )
        return [(each.blocks.get("C"), at_once) for each, at_once in found]

    assert cut(16384, 2, 2**30) == [(None, 2)]
    assert cut(16384, 2, 2**29) == [(None, 1), (5632, 2)]  # evenly: three times
    assert cut(16384, 2, 2**28) == [(5632, 1), (2048, 2)]
    assert cut(16384, 2, 2**28 - 1) == [(5632, 1), (1792, 2)]
    assert cut(4096, 16, 2**28) == [(None, 8)]  # sums of 16 heads take it all
    assert cut(10000, 1, 256 * 10112 * 2 + 2 * 10000 * 512 * 4) == [(256, 1)]  # tables have whole tiles
    two_passes = plan(4096, 64, 16, workspace=1)  # keep no tables
    assert two_passes.backward[0].tiling.schedule == "backward-two-pass-blocked"
    for width in (64, 512):
        assert plan(16384, width, 2, workspace=0).tables == (0, 0)
    with pytest.raises(UsageError, match="workspace = 1,048,576 bytes is too little for any kernel; give 12,582,912"):
        plan(16384, 1024, 2, workspace=2**20)


@pytest.mark.one_in(2)
def test_a_plan_says_which_and_why() -> None:
    found = plan(4096, 64, 16)
    assert found.backward[0].tiling.gluon and found.forward[0].tiling.gluon
    assert found.tables == (0, 4 * 16 * 4096 * 64)  # sums of dQ in float32
    found = plan(4096, 64, 16, card="A100")
    assert found.backward[0].tiling.schedule == "backward-two-pass-blocked"
    assert "small-cache-backward-blocked would take" in str(found) or "dS-stored-blocked would take" in str(found)
    assert found.tables == (0, 0)
    wide = plan(4096, 512, 16)
    assert wide.backward[0].tiling.schedule.startswith("small-cache-backward-")
    assert str(wide).count("limited by") >= 2
    assert plan(64, 3, d_v=20, n_k=9).dims == {"n_q": 64, "n_k": 9, "d_k": 16, "d_v": 20}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("n", "n_k"), [(300, 1024), (1024, 300), (1, 500), (500, 1), (65, 64)])
@pytest.mark.parametrize("d", [64, 256])
def test_every_launch_takes_the_blocks_that_it_has(n: int, n_k: int, d: int) -> None:
    """Keys without any query: a launch of its own fills their gradients with zeros, and takes as good as no time."""
    found = plan(n, d, 16, n_k=n_k, is_causal=True)
    for made in (*found.forward, *found.backward):
        assert 0 < made.seconds < 1
        for launch in made.launches:
            assert (
                sum(alike * number for alike, each in launch.cost.rounds for _, number in each) == launch.cost.working
            )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("n", [65_536, *(pytest.param(n, marks=pytest.mark.slow) for n in (131_072, 100_001))])
def test_tables_are_bounded_by_default_and_a_plan_says_what_that_costs(n: int) -> None:
    found = plan(n, 512, 8, is_causal=True)
    assert all(taken <= ROOM for taken in found.tables)
    for ranked, free in zip((found.forward, found.backward), found.unlimited, strict=True):
        assert ranked[0].seconds > free.seconds
    assert str(found).count("without this limit") == 2
    small = plan(2048, 512, 8, is_causal=True)
    assert "without this limit" not in str(small)
    assert small.tables[1] == 2 * 8 * 2048**2  # a table of P, whose place dS takes


def test_what_a_limit_costs_stands_where_the_tables_are() -> None:
    said = str(plan(16_384, 128, 16, workspace=2**20, card="H100")).splitlines()
    (line,) = (line for line in said if "without this limit" in line)
    assert re.fullmatch(r"  tables: 0 MiB, and they may take 1 MiB; without this limit, .*, so it costs \d+%", line)


LIMITS = re.findall(r"^\| ([\d,]+) \|.* \| (\d+) % and (\d+) % \|$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("n", "forward", "backward"), LIMITS)
def test_what_the_page_says_that_the_limit_costs_is_what_a_plan_says(n: str, forward: str, backward: str) -> None:
    found = plan(int(n.replace(",", "")), 512, 8, is_causal=True)
    assert re.findall(r"so it costs (\d+)%", str(found)) == [forward, backward]
    lines = [line for line in str(found).splitlines() if line.startswith("  tables: ")]
    for line, taken, needed in zip(lines, found.tables, found.unlimited_tables, strict=True):
        assert taken <= ROOM < needed
        assert line.startswith(f"  tables: {taken / 2**20:,.0f} MiB, ") and f", with {needed / 2**20:,.0f} MiB" in line


@pytest.mark.slow
def test_a_limit_chooses_few_kernels_for_many_lengths() -> None:
    """So that a new length compiles nothing: lengths are rounded in eight steps for each power of two."""
    tilings = set()
    for n in range(40_000, 65_536, 2_777):
        dims = (("n_q", n), ("n_k", n), ("d_k", 512), ("d_v", 512))
        made = chosen("backward", dims, 2, "bfloat16", Pattern(band_of(right=0)), ROOM, cards.card("H200"))
        assert made.bytes <= ROOM
        tilings.add(made.forecast.tiling)
    assert len(tilings) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("gluon", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128, 256, 512])
def test_few_kernels_serve_all_lengths(d: int, causal: bool, gluon: bool) -> None:
    """At most 9 sources for each pass of 2, 16 or 64 heads, with tables of any size; with d = 512 of all of them.

    Those of powers of two, and of these less one, serve 50 lengths drawn by a seed. Sources for lengths that tiles cut
    evenly know that 16 divides them, too; other sources are for any number.
    """
    drawn, h200 = random.Random(25).choices(range(17, 16384), k=50), cards.card("H200")
    card, pattern = h200 if gluon else replace(h200, capability=""), Pattern(band_of(right=0 if causal else None))
    for way in ("forward", "backward"):

        def sources(lengths: list[int], heads: int, way: str = way) -> set[tuple[Tiling, bool]]:
            made = (
                chosen(way, (("n_q", n), ("n_k", n), ("d_k", d), ("d_v", d)), heads, "bfloat16", pattern, None, card)
                for n in lengths
            )
            return {(each.forecast.tiling, each.even) for each in made}

        seen = [sources([2**bits - less for bits in range(5, 15) for less in (0, 1)], heads) for heads in (2, 16, 64)]
        assert all(len(each) <= 9 for each in seen)
        assert len(set().union(*seen)) <= 9 or d < 512
        assert sources(drawn, 16) <= seen[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 0}, "n = 0 was given; n must be a whole number, 1 or more"),
        ({"n": 64.5}, "n = 64.5 was given"),
        ({"d": "64"}, "d = '64' was given"),
        ({"heads": 0}, "heads = 0 was given"),
        ({"heads": 2**40}, "there are 1,099,511,627,776 heads in all; give 65,535 at most at once"),
        ({"n_k": -1}, "n_k = -1 was given"),
        (
            {"d": 2048},
            "head dimension of 2,048, and kernels are for 1,024 at most; PyTorch computes it with",
        ),
        ({"d_v": 1025}, "there is a head dimension of 1,025"),
        ({"dtype": "float32"}, "dtype is 'float32', and kernels are for bfloat16 and float16"),
        ({"dtype": "x"}, "dtype is 'x', and kernels are for bfloat16 and float16"),
        ({"card": None}, "card is None; give the name of a card"),
        ({"card": "V100"}, "NVIDIA Tesla V100 SXM2 32GB has compute capability 7.0, and kernels need 8.0 or more"),
        ({"card": "x"}, "no card is called 'x'"),
        ({"workspace": 1.5}, "workspace is 1.5; give a number of bytes"),
        ({"heads": 6, "kv_heads": 4}, "6 heads cannot share 4 KV heads evenly"),
        ({"n": 10**12}, "Q, K, V and O are 512 TB, and NVIDIA H200 SXM 141GB has 141 GB of memory; give fewer"),
        ({"n": 1, "n_k": 2**30, "heads": 2}, "Q, K, V and O are 550 GB"),
        ({"is_causal": "no"}, "is_causal is 'no'; give True or False"),
        ({"heads": 2**17, "kv_heads": 1}, "there are 131,072 heads in all"),
    ],
)
def test_sizes_that_are_none(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(**({"n": 64, "d": 64} | given))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.one_in(2)
def test_narrow_heads_are_named_as_they_were_given() -> None:
    assert str(plan(1, 1)).startswith(
        "n_q = 1, n_k = 1, d_k = 1, d_v = 1 (filled up to 16 columns with zeros), 1 head, "
    )
    assert "d_k = 8, d_v = 32 (filled up to 16 " in str(plan(64, 8, 2, d_v=32))


@pytest.mark.one_in(3)
def test_heads_that_share_keys_are_planned_as_attention_computes_them() -> None:
    found = plan(4096, 128, 32, kv_heads=8, is_causal=True)
    pattern, dims = Pattern(band_of(right=0, rows=4), 4), {"n_q": 4 * 4096, "n_k": 4096, "d_k": 128, "d_v": 128}
    assert (found.dims, found.heads, found.pattern) == (dims, 8, pattern)
    for way, mine in (("forward", found.forward), ("backward", found.backward)):
        right = chosen(way, tuple(dims.items()), 8, "bfloat16", pattern, ROOM, cards.card("H200")).forecast
        assert mine[0].tiling == right.tiling
    assert str(found).startswith("n_q = 4,096, n_k = 4,096, d_k = 128, d_v = 128, 32 heads (8 KV heads), causal, rates")
    assert not plan(4096, 128, 6, kv_heads=2).forward[0].tiling.gluon  # three heads do not fill a tile together
    alone = plan(4096, 128, 32, kv_heads=32)
    assert alone == plan(4096, 128, 32)


@pytest.mark.one_in(2)
def test_cards_that_were_not_calibrated_get_kernels_and_no_times() -> None:
    for name in ("A100", "RTX4090"):
        found = plan(2048, 512, 8, is_causal=True, card=name)
        assert found.scaled
        assert "scaled from the card H200 to NVIDIA" in str(found)
        assert " ms" not in str(found)
        assert "times as long" in str(found)


@pytest.mark.one_in(2)
@draws(6, 60)
@given(
    n=st.integers(0, 13),
    n_k=st.integers(0, 13),
    d=st.sampled_from([64, 96, 256, 512, 1000]),
    heads=st.sampled_from([1, 3, 8]),
    causal=st.booleans(),
    room=st.sampled_from([None, 2**24, 2**26]),
    off=st.integers(0, 1),
)
def test_the_kernel_that_is_used_is_the_fastest_where_it_is_chosen(
    n: int, n_k: int, d: int, heads: int, causal: bool, room: int | None, off: int
) -> None:
    """None that is printed beside it is faster for lengths that are not rounded; others are said to be rounded."""
    try:
        found = plan(max(1, 2**n - off), d, heads, n_k=2**n_k, is_causal=causal, workspace=room)
    except UsageError as error:
        assert "too little for any kernel" in str(error)
        return
    for ranked, lengths in zip((found.forward, found.backward), found.lengths, strict=True):
        same = lengths == (found.dims["n_q"], found.dims["n_k"])
        assert not same or ranked[0].seconds <= min(each.seconds for each in ranked) * (1 + 1e-9)
        assert same or f"chosen for n_q = {lengths[0]:,}, n_k = {lengths[1]:,}" in str(found)
        assert all(at >= size for at, size in zip(lengths, (found.dims["n_q"], found.dims["n_k"]), strict=True))


@pytest.mark.one_in(3)
def test_windows() -> None:
    assert limits((5, 3), False, "start", 9, 9) == (5, 3, False)
    assert limits((5, -1), True, "end", 9, 9) == (5, 0, True)
    assert limits(None, False, "end", 9, 9) == (None, None, False)
    assert band_of(*limits((-1, None), False, "end", 9, 9)) is None
    for wrong in ((5,), 5, (-2, 0), (1.5, 0)):
        with pytest.raises(UsageError, match="numbers of keys before and after each query"):
            limits(wrong, False, "start", 9, 9)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bias is True, and plan has no forecast of calls with a bias; leave it out"):
        plan(64, 64, bias=True)
    with pytest.raises(UsageError, match=r'as card="mine\.toml"'):
        plan(64, 64, card="H300")
    with pytest.raises(UsageError, match='give "start" or "end"'):
        limits(None, True, "middle", 9, 9)
    near, far = (plan(8192, 256, 8, window=(each, 0)).forward[0].seconds for each in (511, 4095))
    assert near < far / 3


def test_without_pytorch_there_is_a_sentence() -> None:
    lines = """
import importlib, sys
sys.modules["torch"] = None
for module, name in (
    ("torch", "attention"), ("torch.parallel", "attention"), ("transformers", "register"), ("diffusers", "Processor")
):
    try:
        getattr(importlib.import_module(f"pebblesim.gpu.{module}"), name)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
    said = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    sentence = "UsageError: attention needs PyTorch, and torch is not here: pip install torch."
    assert said.stdout.splitlines() == [sentence] * 4


@pytest.mark.one_in(4)
def test_planning_loads_no_library() -> None:
    """What a user of `attention` waits for beside PyTorch."""
    heavy = ("sympy", "matplotlib", "numba", "networkx", "torch", "pebblesim.lower_bounds", "pebblesim.counting")
    lines = "import sys; from pebblesim.gpu.torch import plan; plan(4096, 512, 2, is_causal=True)"
    said = subprocess.run(
        [sys.executable, "-c", f"{lines}; print([each for each in {heavy} if each in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "[]"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("card", ["H200", "A100"])
def test_forecasts_are_kept(card: str) -> None:
    """Also those for a card that was not calibrated, whose rates are scaled anew at each call."""
    first = plan(3000, 64, 4, card=card)
    known = planning._forecasts.cache_info().misses
    assert plan(3001, 64, 4, card=card).forward[0].tiling == first.forward[0].tiling
    assert planning._forecasts.cache_info().misses == known


def test_blocks_in_the_same_order_take_the_same_time() -> None:
    """Heads on as many of keys, or on a quarter: Gluon kernels order causal tiles of all heads, the longest first."""
    apart, shared = (plan(4096, 128, 8, kv_heads=heads, is_causal=True).forward[0] for heads in (8, 2))
    assert apart.tiling.gluon and apart.tiling == shared.tiling
    assert apart.seconds == pytest.approx(shared.seconds, rel=0.05)


def test_the_table_of_versions_is_made_of_the_rows() -> None:
    """`benchmarks/gpu/versions.py` writes both: every kernel that was tried compiles, and no test failed but one.

    With old releases a wrong mask in a compiled `vmap` meets PyTorch's own error in place of our sentence.
    """
    spec = spec_from_file_location("versions", PAGE.parents[1] / "benchmarks" / "gpu" / "versions.py")
    assert spec is not None and spec.loader is not None
    versions = module_from_spec(spec)
    spec.loader.exec_module(versions)
    lines = (PAGE.parents[1] / "benchmarks" / "gpu" / "versions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert versions.BEGIN + versions.table(rows) + versions.END in versions.PAGE.read_text(encoding="utf-8")
    for row in rows:
        assert releases.release_of(row["triton"]) is not None
        failed = row.get("failed") or []
        assert not failed or row["torch"] in ("2.10.0", "2.11.0")
        assert all("test_padding_is_mapped_inside_and_outside_of_a_compiled_call[eager]" in each for each in failed)
        assert all(made["compiled"] == made["tried"] > 0 for made in row["compiled"].values())
