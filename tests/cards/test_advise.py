"""Advice for real cards: the table of cards, the arithmetic of the roofline, and the terms of the explanation."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import strategies
import sympy
from click.testing import Result
from command import Pebblesim
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.advice import cards
from pebblesim.advice.amounts import amount
from pebblesim.advice.boundaries import NEAR, SEARCHED
from pebblesim.advice.cards import FIGURES, TEXTS, Card, Figure
from pebblesim.analysis import terms
from pebblesim.analysis.masked_sums import symbol
from pebblesim.cli.main import app
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.sizes import BYTES
from pebblesim.language import masks
from pebblesim.language.registry import SCHEDULES, Schedule, get

BUILT_IN = [schedule for schedule in SCHEDULES.values() if schedule.function.__module__.startswith("pebblesim.")]

TOY = Card(
    "toy",
    {
        "shared_per_block": Figure(4096, ""),
        "l2": Figure(65536, ""),
        "l2_bandwidth": Figure(1e9, ""),
        "memory_bandwidth": Figure(1e8, ""),
    },
    {"float32": Figure(1e9, "")},
)


# -- Cards -----------------------------------------------------------------------------------------------------------


def test_every_figure_of_a_card_has_a_source_and_no_source_is_idle() -> None:
    text = (Path(cards.__file__).parent / "cards.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    sources, used = tables.pop("sources"), set()
    assert set(tables) == set(cards.cards()) and len(tables) > 6
    for table in tables.values():
        figures = [value for key, value in table.items() if key not in (*TEXTS, "peak", "rates", "besides")]
        for figure in (*figures, *table["peak"].values(), *table.get("rates", {}).values()):
            assert set(figure) == {"value", "source"}
            used.add(figure["source"])
    assert used == set(sources)


@pytest.mark.parametrize("name", cards.cards())
def test_the_figures_of_a_card_agree_with_each_other(name: str) -> None:
    card = cards.card(name)
    value = {key: figure.value for key, figure in card.figures.items()}
    assert set(value) <= set(FIGURES) and set(card.peak) <= set(BYTES)
    assert value["shared_per_block"] <= value["shared_per_multiprocessor"] < value["l2"] < value["memory"]
    assert value["l2"] % 2**16 == value["shared_per_block"] % 2**10 == 0
    assert value["memory_bandwidth"] < value.get("l2_bandwidth", 9e13) < 1e14
    peaks = [card.peak[dtype].value for dtype in ("float64", "float32", "float16", "float8") if dtype in card.peak]
    assert peaks == sorted(peaks) or name == "V100"
    assert min(peaks) > 1e12 and max(peaks) < 1e16


def test_a_card_is_found_however_it_is_spelled() -> None:
    assert cards.card("gtx 1060") is cards.card("GTX-1060") is cards.cards()["GTX1060"]
    for name in ("RTX 4090", "rtx4090", "4090", "GeForce RTX 4090"):
        assert cards.card(name) is cards.cards()["RTX4090"]
    for name in ("H20O", "H20", "RTX 4095", "NVIDIA", ""):  # one that is near, a part of a name, and one of many
        with pytest.raises(UsageError) as raised:
            cards.card(name)
        said = str(raised.value)
        assert "did you mean" not in said and "--gpu mine.toml" in said and "gpu calibrate" in said
        assert all(key in said for key in cards.cards())


CARD = """
name = "mine"
shared_per_block = 65536
l2 = { value = 1048576, source = "a manual" }
memory_bandwidth = 1e11
[peak]
fp32 = 2e12
"""


def test_a_card_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(CARD)
    advice = ps.advise(card=tmp_path / "mine.toml", problem_name="linear", n=256, d=16)
    assert [each.M for each in advice.boundaries] == [16384, 262144]
    assert advice.card.figures["l2"].source == "a manual" and advice.card.peak["float32"] == (2e12, "as given")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "mine"', "", "this is missing: name"),
        ("l2 =", "l5 =", "no figure of a card"),
        (
            "shared_per_block = 65536",
            "",
            "this is missing: shared_per_block, the bytes of shared memory that a block can have",
        ),
        ("65536", '"64KiB"', "shared_per_block = '64KiB' is not a size or rate"),
        ("65536", "-1", "is not a size or rate"),
        ("65536", "true", "is not a size or rate"),
        ("fp32", "int32", "no data type is called 'int32'"),
        ("[peak]", "[peak", "is not TOML"),
        ("65536", "1", "is less than one word of type bfloat16"),
    ],
)
def test_a_card_that_is_none_gets_a_sentence(old: str, new: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(CARD.replace(old, new))
    with pytest.raises(UsageError, match=says):
        ps.advise(card=tmp_path / "mine.toml", n=64, d=8)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        ps.advise(card=tmp_path / "other.toml", n=64, d=8)
    with pytest.raises(UsageError, match="either a known card"):
        ps.advise("A100", card=tmp_path / "mine.toml", n=64, d=8)


# -- Advice ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("problem", "mask"),
    [
        pytest.param("backward", "window:9", marks=pytest.mark.slow),
        ("forward", "causal"),
        ("matmul", None),
        pytest.param("backward", None, marks=pytest.mark.slow),
    ],
)
def test_the_first_schedule_moves_least_of_all_that_fit(problem: str, mask: str | None) -> None:
    sizes: dict[str, Any] = {"n": strategies.amount(30, 70), "d": strategies.amount(6, 12), "mask": mask}
    advice = ps.advise(TOY, problem_name=problem, dtype="float32", **sizes)
    for boundary, size in zip(advice.boundaries, (4096, 65536), strict=True):
        assert size // 4 == boundary.M
        counted = [row for row in ps.compare(problem, M=boundary.M, **sizes) if row.feasible]
        assert {row.schedule for row in counted} == {row.schedule for row in boundary.rows}
        assert all(row.feasible for row in boundary.rows)
        assert [row.io for row in boundary.rows] == sorted(row.io for row in boundary.rows)
        for row in boundary.rows:
            (same,) = (other for other in counted if other.schedule == row.schedule)
            assert row.io <= same.io or row.io > NEAR * boundary.best.io
            again = ps.count(row.schedule, M=boundary.M, blocks=row.blocks, mask=mask, **row.dims)
            assert again.io == row.io and again.io >= boundary.best.io


@pytest.mark.slow
def test_a_schedule_behind_the_first_three_has_blocks_for_the_mask_too() -> None:
    sizes: dict[str, Any] = {"n": 90, "d": 12, "mask": "causal"}
    inner = ps.advise(TOY, problem_name="forward", dtype="float32", **sizes).boundaries[0]
    (place,) = (place for place, row in enumerate(inner.rows) if row.schedule == "row-stationary-forward")
    assert place >= SEARCHED and inner.rows[place].io <= NEAR * inner.best.io
    assert inner.rows[place].io == ps.count("row-stationary-forward", M=inner.M, **sizes).io == 6570


@pytest.mark.one_in(2)
def test_the_roofline_is_what_the_figures_make_it() -> None:
    asked: dict[str, Any] = {"problem_name": "backward", "n": 70, "d": 12}
    one = ps.advise(TOY, **asked).to_dict()
    many = ps.advise(TOY, heads=3, batch=5, **asked).to_dict()
    times: dict[str, list[float]] = {}
    for boundary, bandwidth in zip(one["boundaries"], (1e9, 1e8), strict=True):
        for row in boundary["rows"]:
            assert row["bytes"] == 4 * row["io"]
            assert row["seconds_moving"] == pytest.approx(4 * row["io"] / bandwidth)
            assert row["seconds_computing"] == pytest.approx(sum(row["work"].values()) / 1e9)
            assert row["bound_by"] == ("memory" if row["seconds_moving"] > row["seconds_computing"] else "compute")
            if boundary["boundary"] == "SM":
                times[row["schedule"]] = [row["seconds_moving"], row["seconds_computing"]]
            elif row["schedule"] in times:
                times[row["schedule"]].append(row["seconds_moving"])
    assert one["roofline"]["seconds"] == pytest.approx(min(max(each) for each in times.values()), rel=0.01)
    assert one["roofline"]["seconds"] == pytest.approx(max(times[one["roofline"]["schedule"]]))
    assert one["roofline"]["limits"][one["roofline"]["limit"]] == one["roofline"]["seconds"]
    assert many["roofline"]["seconds"] == pytest.approx(15 * one["roofline"]["seconds"])
    assert {row["bound_by"] for boundary in one["boundaries"] for row in boundary["rows"]} == {"memory", "compute"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("problem", "d"),
    [
        ("forward", 128),
        pytest.param("backward-qkv", 128, marks=pytest.mark.slow),
        pytest.param("forward", 64, marks=pytest.mark.slow),
    ],
)
def test_the_work_and_the_time_are_those_of_one_tile(problem: str, d: int) -> None:
    """They were of two tiles: 559 µs "limited by arithmetic" stood beside 701 GFLOP at 989 TFLOP/s: 709 µs."""
    advice = ps.advise("H200", problem_name=problem, n=8192, d=d, dtype="bf16", heads=32)
    tile, kernel = advice.fastest, advice.kernels[0]  # a tile that a kernel can have: that of the shortest forecast
    assert (tile.schedule, dict(tile.blocks)) == (kernel.tiling.schedule, dict(kernel.tiling.blocks))
    counted = ps.count(tile.schedule, n=8192, d=d, M=advice.boundaries[0].M, blocks=tile.blocks)
    limits, allowed = advice.limits(tile), advice.allowed(tile)
    assert limits["arithmetic"] == pytest.approx(32 * sum(counted.work.values()) / 989e12)
    assert limits["SM"] == pytest.approx(32 * 2 * counted.io / advice.boundaries[0].bandwidth)
    assert allowed is not None and allowed[1] == max(limits.values()) < kernel.seconds
    said = re.search(r"roofline: (\S+) with (.*) is allowed .*\n  arithmetic: ([\d.]+) (T|G)FLOP at 989", advice.why())
    assert said and said[1] == tile.schedule
    assert said[2] == ", ".join(f"{name}={size}" for name, size in tile.blocks.items())
    operations = float(said[3]) * {"T": 1e12, "G": 1e9}[said[4]]
    assert operations / 989e12 == pytest.approx(limits["arithmetic"], rel=0.01)


@pytest.mark.one_in(4)
def test_doing_twice_is_not_useful() -> None:
    advice = ps.advise("H200", problem_name="backward-qkv", n=1024, d=64, dtype="bf16")
    products = 4 * 2 * 1024**2 * 64  # dP, dV, dQ and dK; the scores again are a fifth
    assert advice.useful == pytest.approx(products, rel=0.02)
    for row in advice.boundaries[0].rows:
        assert advice.per_byte(row) == pytest.approx(advice.useful / (2 * row.io)) and row.operations >= advice.useful
    by_name = {row.schedule: row for row in advice.boundaries[0].rows}
    assert by_name["backward-two-pass"].operations > 1.7 * advice.useful
    assert "are useful; the rest is recomputation and rescaling" in advice.why()


@pytest.mark.one_in(4)
def test_a_tile_of_the_readers_own() -> None:
    advice = ps.advise("A100", n=1024, d=64, dtype="fp16", blocks={"B_r": 128, "B_c": 64})
    inner, outer = advice.boundaries
    assert "\nyour tile\n" in advice.why()
    assert not outer.own and {row.schedule for row in inner.own} >= {"flash1-forward", "flash2-forward"}
    for row in inner.own:
        same = ps.count(row.schedule, n=1024, d=64, M=inner.M, blocks={"B_r": 128, "B_c": 64})
        assert row.blocks.items() >= {"B_r": 128, "B_c": 64}.items() and row.io == same.io and row.feasible
        (best,) = (other for other in inner.rows if other.schedule == row.schedule)
        assert f"{row.schedule}: {row.io / best.io:.2f} x the words of B_r={best.blocks['B_r']}" in advice.why()
    shown = advice.to_dict()["boundaries"][0]["own"]
    assert [each["allowed"]["operations"] for each in shown] == [sum(row.work.values()) for row in inner.own]
    large = ps.advise("GTX1060", n=4096, d=64, dtype="fp32", blocks={"B_r": 128, "B_c": 64})
    needed = ps.count("flash2-forward", n=4096, d=64, M=1, blocks={"B_r": 128, "B_c": 64}).peak_red
    assert f"flash2-forward: does not fit, it needs {needed:,} words, {needed / 12288:.2f} M" in large.why()
    partly = ps.advise("A100", problem_name="matmul", n=4096, d=64, blocks={"b": 8})
    assert all(row.blocks["b"] == 8 and row.feasible for row in partly.boundaries[0].own)
    with pytest.raises(UsageError, match="no schedule of problem 'forward' has such blocks"):
        ps.advise("A100", n=4096, d=64, blocks={"B_x": 64})


@pytest.mark.parametrize(
    ("problem", "mask"),
    [
        ("backward", None),
        *(
            pytest.param(problem, mask, marks=pytest.mark.slow)
            for problem, mask in (("forward", None), ("backward", "causal"), ("backward-qkv", None))
        ),
        pytest.param("forward", "causal", marks=pytest.mark.slow),
        pytest.param("backward-qkv", "causal", marks=pytest.mark.slow),
    ],
)
def test_sizes_however_large(problem: str, mask: str | None) -> None:
    """At n = 2^48 this took minutes and 4 GB, at 2^60 more memory than there is."""
    advice = ps.advise("H200", problem_name=problem, n=2**60, d=128, dtype="bf16", mask=mask)
    assert all(1 <= row.gap < 3 for row in (boundary.best for boundary in advice.boundaries))
    assert advice.why() and advice.allowed(advice.fastest)


@pytest.mark.slow
def test_tens_of_thousands_of_launches_under_a_mask_are_not_listed_one_by_one() -> None:
    """Each of the launches, for a few rows at a time, was listed with all its tiles: 2^30 rows took hours."""
    for n in (2**27, 2**30):
        advice = ps.advise("H200", problem_name="forward", n=n, d=128, dtype="bf16", mask="causal")
        assert advice.kernels and advice.fastest


def test_a_schedule_under_a_mask_at_sizes_however_large() -> None:
    assert 1 <= ps.count("flash2-forward", n=2**60, d=128, M=116_224, mask="causal").gap < 3


def test_a_time_beyond_all_numbers_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="beyond 1e308 s"):
        ps.advise("H200", problem_name="backward", n=2**256, d=2**256, heads=2**256).why()


@pytest.mark.one_in(2)
def test_the_papers_example_has_one_card_on_either_side_of_d_squared() -> None:
    large, small = (ps.advise(card, problem_name="backward", n=4096, d=128) for card in ("A100", "GTX1060"))
    assert large.boundaries[0].M == 163 * 1024 // 4 > 128**2 > small.boundaries[0].M == 48 * 1024 // 4
    assert "= 2.55 d², large cache: n²d²/M is below n²d/√M" in large.why()
    assert "= 0.75 d², small cache: n²d/√M is below n²d²/M" in small.why()
    assert small.boundaries[0].too_large["large-cache"] == 17_157  # g alone takes d² words
    assert "large-cache (M ≥ 17,157)" in next(line for line in small.why().splitlines() if "too large: " in line)


def test_what_is_not_known_is_said_and_left_out() -> None:
    advice = ps.advise("GTX1060", problem_name="linear", n=512, d=64, dtype="bf16")
    text = advice.why()
    assert "no time is given, since no peak rate for bfloat16 is known (known: float32)" in text
    assert "unknown" in text and "is allowed" not in text
    assert advice.allowed(advice.fastest) is None and advice.to_dict()["roofline"]["seconds"] is None
    assert "no bandwidth is known here" in ps.advise("GTX1060", problem_name="linear", n=512, d=64).why()
    words = 4 * 2**14 * 64 + 2 * 64 * 64  # A1, A2, A3, O; X, Y
    large, small = (
        ps.advise("GTX1060", problem_name="linear", n=2**14, d=64, batch=6366756864 // (4 * words) + more)
        for more in (1, 0)
    )
    assert ", more than the 6.37 GB of the card" in large.why()
    assert "inputs and outputs" not in small.why()


def test_no_schedule_fits() -> None:
    tiny = Card("tiny", TOY.figures | {"shared_per_block": Figure(16, "")}, {})
    with pytest.raises(Infeasible, match="no schedule of forward fits into 4 words"):
        ps.advise(tiny, problem_name="forward", dtype="fp32", n=8, d=4)


# -- The explanation -------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@strategies.draws(2, 8)
@given(st.data())
def test_the_terms_are_the_count_by_phase_and_by_tensor(data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from(BUILT_IN))
    mask = data.draw(st.sampled_from([None, "causal", "window:3"])) if schedule.maskable else None
    draw = st.integers(1, 30)
    dims = {dim: data.draw(draw) for dim in schedule.problem.dims}
    blocks = {block: data.draw(draw) for block in schedule.blocks}
    counted = ps.count(schedule, M=1, blocks=blocks, mask=mask, **dims)
    program, band = schedule.under(mask), masks.of(mask)
    assert band is None or isinstance(band, masks.Band)
    sizes = {**dims, **blocks}
    try:
        found = terms.terms(program, sizes, sizes, 1000, band)
    except UsageError as refused:
        needs = "tiles of a whole dimension" if schedule.name.endswith("-in-rows") else "tiles that are all alike"
        assert band is not None and f"needs {needs}" in str(refused)
        assert schedule.name.endswith("-in-rows") or not schedule.alike
        return
    assert sum(term.value for term in found) == sum(term.doubled for term in found) == counted.io
    by_phase: Counter[str] = Counter()
    by_tensor: Counter[str] = Counter()
    for term in found:
        shares = sum(origin.times for origin in term.origins)
        for origin in term.origins:
            by_phase[origin.phase] += term.value * origin.times / shares if shares else 0
            by_tensor[origin.tensor] += term.value * origin.times / shares if shares else 0
    if all(sum(origin.times for origin in term.origins) for term in found):
        assert {k: v for k, v in by_phase.items() if v} == {k: sum(v) for k, v in counted.phases.items() if sum(v)}
        assert {k: v for k, v in by_tensor.items() if v} == {k: sum(v) for k, v in counted.by_tensor.items() if sum(v)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "schedule", strategies.some([each for each in BUILT_IN if not each.alike], 4), ids=lambda each: each.name
)
def test_the_terms_of_a_schedule_with_a_part_that_stays(schedule: Schedule) -> None:
    """Its peak is a minimum of a size and a number, or a difference, which have no name."""
    dims, blocks = dict.fromkeys(schedule.problem.dims, 5), dict.fromkeys(schedule.blocks, 2)
    found = terms.terms(schedule.program, {**dims, **blocks}, {**dims, **blocks}, 1000)
    assert sum(term.value for term in found) == ps.count(schedule, M=1, blocks=blocks, **dims).io


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("schedule", "M", "leading"),
    [
        ("row-stationary", 2**13, "6*n**2*d**2/M"),
        ("row-stationary-one-pass", 2**13, "8*n**2*d**2/M"),
        ("large-cache", 2**15, "8*n**2*d**2/(M - d**2)"),
        ("flash2-forward", 2**13, "4*n**2*d**2/M"),
        ("small-cache", 2**8, "6*sqrt(3)*n**2*d/sqrt(M)"),
        ("small-cache-streamed", 2**8, "6*n**2*d/sqrt(M)"),
        ("matmul-tiled", 2**10, "2*sqrt(3)*m*n*k/sqrt(M)"),
    ],
)
def test_the_leading_terms_are_those_of_the_literature(schedule: str, M: int, leading: str) -> None:
    """Terms in more than one pass have a leading part; it is close to the term where n is much larger than d."""
    dims = {"n": 2**16, "d": 64}
    counted = ps.count(schedule, M=M, **dims)
    sizes = {**counted.dims, **counted.blocks}
    found = terms.terms(get(schedule).program, sizes, sizes, M)
    about = sympy.Add(*(term.about for term in found if term.about is not None))
    expected = sympy.sympify(leading, locals={name: symbol(name) for name in ("n", "d", "M", "m", "k")})
    values = {symbol(name): size for name, size in {**counted.dims, "M": M}.items()}
    biggest = max(sympy.Add.make_args(sympy.expand(about)), key=lambda term: float(term.subs(values)))
    power_of_n = sum(
        term for term in sympy.Add.make_args(sympy.expand(about)) if float((term / biggest).subs(values)) > 0.02
    )
    assert sympy.simplify(power_of_n - expected) == 0
    exact = sum(term.value for term in found if term.about is not None)
    assert float(about.subs(values)) == pytest.approx(exact, rel=0.12)


@pytest.mark.one_in(12)
def test_the_explanation_says_where_the_words_go_and_what_a_larger_cache_would_save() -> None:
    advice = ps.advise("A100", problem_name="backward", n=4096, d=128)
    text = advice.explain()
    best = advice.boundaries[0].best
    twice = ps.count(best.schedule, M=2 * advice.boundaries[0].M, blocks="best", n=4096, d=128)
    (first, *_) = advice.terms(advice.boundaries[0])
    assert first.doubled == 2 * 4096 * 128 * -(-4096 // twice.blocks["B_r"])
    assert (
        f"why {best.schedule} moves {best.io:,} words at the SM boundary\n2nd⌈n/B_r⌉ = {int(first.value):,} words"
        in text
    )
    assert f"phase {best.schedule} reads A2 (input), A3 (input)" in text
    assert (
        "phase dQ reads dS (made on the way)"
        in ps.advise("A100", problem_name="backward-qkv", n=4096, d=128, dtype="fp32").explain()
    )
    assert f"with twice the cache: {int(first.doubled):,} words, 0.51 x" in text
    assert "it is about 6n²d²/M = " in text


def test_a_mask_without_closed_forms_has_no_explanation() -> None:
    advice = ps.advise(TOY, problem_name="forward-relu", n=8, d=2, mask="bigbird:4:1:1:0")
    with pytest.raises(UsageError, match="no closed form to explain"):
        advice.explain()


@pytest.mark.one_in(8)
def test_under_a_mask_the_best_schedule_with_a_closed_form_is_explained() -> None:
    """The best one has a first part of queries apart, whose tiles are not those of the others."""
    advice = ps.advise(TOY, problem_name="forward", n=12, d=2, mask="causal")
    boundary = advice.boundaries[0]
    row = advice.explained(boundary)
    assert row is not boundary.best
    assert sum(int(term.value) for term in advice.terms(boundary)) == row.io
    text = advice.explain()
    assert text.startswith(f"why {row.schedule} moves {row.io:,} words at the {boundary.name} boundary\n(")
    assert f"({boundary.best.schedule} moves {boundary.best.io:,}, and has no closed form under a mask)" in text
    shown = advice.to_dict(explain=True)["boundaries"][0]
    assert (shown["explained"], sum(term["words"] for term in shown["terms"])) == (row.schedule, row.io)


@pytest.mark.one_in(4)
def test_on_the_command_line(pebblesim: Pebblesim) -> None:
    refused = pebblesim("advise --gpu h200 -n 512 -d 64 --dtype int4")
    assert refused.code == 2 and refused.err.startswith("error: no data type is called 'int4'")

    def run(line: str) -> Result:
        return CliRunner().invoke(app, ["advise", *line.split()])

    plain = run("-p linear --gpu h200 -n 512 -d 64 --dtype bf16 --explain --sources")
    assert plain.exit_code == 0 and "why " in plain.stdout and "l2 = 6.29146e+07: read on an H200" in plain.stdout
    shown: dict[str, Any] = json.loads(run("-p linear --gpu h200 -n 512 -d 64 --dtype bf16 --explain --json").stdout)
    assert shown["dtype"] == "bfloat16" and shown["boundaries"][0]["M"] == 227 * 1024 // 2
    assert sum(term["words"] for term in shown["boundaries"][0]["terms"]) == shown["boundaries"][0]["rows"][0]["io"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("heads", "kv_heads", "each"), [(4, 2, "KV head"), (3, 3, "head")])
def test_why_begins_with_the_bytes_of_the_advised_kernel(heads: int, kv_heads: int, each: str) -> None:
    shape: dict[str, Any] = {"n": 256, "d": 64, "heads": heads, "kv_heads": kv_heads, "batch": 2}
    advice = ps.advise("H200", **shape)
    first = advice.kernels[0].tiling
    own = ps.count(first.schedule, M=227 * 1024 // 2, blocks=first.blocks, **shape)
    said = f"  moves {amount(own.total.io * 2, 'B')} between L2 and the multiprocessors: {own.io:,} words a {each}, "
    assert f"{said}{own.gap:.2f} x the lower bound\n" in advice.why().partition("our kernels on")[0]


@pytest.mark.one_in(8)
def test_what_is_asked_on_the_command_line() -> None:
    def run(line: str) -> Result:
        return CliRunner().invoke(app, ["advise", "--gpu", "h200", "-n", "64", "-d", "8", *line.split()])

    lines = ("--block B_r=64 --block B_c=32", "--backward", "-p backward")
    forward, *backward = (json.loads(run(f"--json {line}").stdout) for line in lines)
    assert forward["problem"] == "forward" and forward["boundaries"][0]["own"]
    assert [advice["problem"] for advice in backward] == ["backward-qkv", "backward"]
    both = run("--backward -p matmul").exception
    assert isinstance(both, UsageError) and str(both).endswith("--problem matmul was given too; use one of them.")


@pytest.mark.one_in(12)
def test_gaps_at_a_boundary_rank_schedules_as_their_words_do() -> None:
    """With a bound of its own each, 275,775,488 words had gap 3.87, and 141,574,144 words 33.7."""
    for boundary in ps.advise("A100", problem_name="forward", n=4096, d=128).boundaries:
        assert [row.gap for row in boundary.rows] == sorted(row.gap for row in boundary.rows)
        assert len({row.every_way for row in boundary.rows}) == 1
        assert all(row.gap_of_way <= row.gap for row in boundary.rows)
