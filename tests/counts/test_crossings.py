"""Crossings against a scan of every M, the exponent against measured ones, and the picture."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import strategies
from hypothesis import assume, given, strategies as st
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.analysis.blocks import choose
from pebblesim.analysis.count import io
from pebblesim.api.crossover import Curve, crossover, regimes, sweep
from pebblesim.api.crossover_result import Crossing
from pebblesim.api.overtaking import bound_exponent, crossing_exponent, overtakes
from pebblesim.cli.main import app
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.language.registry import SCHEDULES, Schedule, get, of_problem
from pebblesim.lower_bounds.bounds import best
from pebblesim.views.plots.crossover import io_over_M
from pebblesim.views.plots.style import save


def words(name: str, M: int, n: int, d: int) -> float:
    schedule, dims = get(name), {"n": n, "d": d}
    try:
        return io(schedule.program, {**dims, **choose(schedule, dims, M)})
    except Infeasible:
        return math.inf


BACKWARD = [schedule.name for schedule in of_problem("backward")]


FORWARD = [schedule.name for schedule in of_problem("forward")]


def _leads(of_a: list[float], of_b: list[float], names: tuple[str, str], sizes: list[int]) -> list[tuple[int, str]]:
    """Who leads from which size on, read off two lists."""
    found: list[tuple[int, str]] = []
    for size, a, b in zip(sizes, of_a, of_b, strict=True):
        leader = "neither" if a == b == math.inf else "both" if a == b else names[b < a]
        if not found or found[-1][1] != leader:
            found.append((size, leader))
    return found


@pytest.mark.one_in(2)
@strategies.draws(2, 20)
@given(st.lists(st.sampled_from(BACKWARD), min_size=2, max_size=2, unique=True), st.integers(1, 5), st.integers(1, 3))
def test_every_change_of_the_lead_is_found(pair: list[str], n: int, d: int) -> None:
    """Against a scan of every single M, up to where all blocks hold everything, and a little further."""
    a, b = pair
    (found,) = crossover(a, b, n=n, d=d, over_d=()).crossings
    end = 10 + max(Curve(get(name), {"n": n, "d": d}).most_M for name in pair)
    of_a, of_b = ([words(name, M, n, d) for M in range(end)] for name in pair)
    leads = _leads(of_a, of_b, (a, b), list(range(end)))
    assert leads.pop(0) == (0, "neither")
    assert list(found.leads) == leads
    assert found.changes == tuple(M for M, _ in leads[1:])
    second = found.schedules[1]
    assert second == next((leader for _, leader in leads[::-1] if leader in pair), max(pair))
    assert (leads[-1][0] if leads[-1][1] == second else None) == found.M
    assert found.first == next((M for M, leader in leads if leader == second), None)
    (turned,) = crossover(b, a, n=n, d=d, over_d=()).crossings
    assert turned == found
    assert str(turned) == str(found)


@pytest.mark.one_in(2)
def test_the_last_change_may_need_more_than_the_largest_blocks_do() -> None:
    """Blocks of 3 rows need 14 words, but 16 on the way, while the other block is 1: they are found at M = 14."""
    dims = {"n_q": 3, "n_k": 1, "d_k": 1, "d_v": 3}
    (found,) = crossover("first-rows-keys-stay", "keys-partly-resident-forward", **dims).crossings
    assert found.leads == ((10, "keys-partly-resident-forward"), (14, "both"))


@pytest.mark.one_in(4)
@strategies.draws(4, 30)
@given(st.data())
def test_every_change_of_the_lead_on_rectangles(data: st.DataObject) -> None:
    """In M for queries and keys that differ in number and width, and along a dimension looked at one by one."""
    a, b = data.draw(st.lists(st.sampled_from(FORWARD), min_size=2, max_size=2, unique=True))
    dims = {name: data.draw(st.integers(1, 5), name) for name in ("n_q", "n_k", "d_k", "d_v")}

    def moved(name: str, M: int, **changed: int) -> float:
        sizes = dims | changed
        schedule = get(name).in_dims(sizes)
        try:
            return io(schedule.program, {**sizes, **choose(schedule, sizes, M)})
        except Infeasible:
            return math.inf

    (found,) = crossover(a, b, **dims).crossings
    end = 10 + max(Curve(get(name).in_dims(dims), dims).most_M for name in (a, b))
    of_a, of_b = ([moved(name, M) for M in range(1, end)] for name in (a, b))
    leads = _leads(of_a, of_b, (a, b), list(range(1, end)))
    assert list(found.leads) == [each for each in leads if each[1] != "neither"]
    assert found.M_over_d2 is None or dims["d_k"] == dims["d_v"]
    assert found.exponent is None
    along, M = data.draw(st.sampled_from(sorted(dims))), data.draw(st.integers(10, 60))
    sizes = list(range(1, 9))
    fixed: dict[str, Any] = {name: size for name, size in dims.items() if name != along}
    (found,) = crossover(a, b, M=M, **fixed, **{along: sizes}).crossings
    of_a, of_b = ([moved(name, M, **{along: size}) for size in sizes] for name in (a, b))
    assert list(found.leads) == _leads(of_a, of_b, (a, b), sizes)
    assert found.along == along
    assert found.M is None


def test_the_crossing_along_a_dimension_is_where_the_counts_say() -> None:
    found = crossover("small-cache-forward", "flash2-forward", n_q="1:1k:x4", n_k=4096, d=128, M=2048)
    assert found.looked_at == (1, 4, 16, 64, 256, 1024)
    (crossing,) = found.crossings
    assert crossing.schedules == ("flash2-forward", "small-cache-forward")
    assert crossing.at is not None and crossing.at not in found.looked_at
    for n_q, less in ((crossing.at - 1, 0), (crossing.at, 1)):
        io = [ps.count(name, n_q=n_q, n_k=4096, d=128, M=2048).io for name in crossing.schedules]
        assert io[less] < io[1 - less]
    assert crossing.words == tuple(io)
    assert f"up to n_q = {crossing.at - 1}; from n_q = {crossing.at} on small-cache-forward does" in str(crossing)


def test_heads_that_share_cross_elsewhere_and_move_more() -> None:
    shape: dict[str, Any] = {"n_q": 1, "n_k": 64, "d": 8}
    pair = ("flash2-forward", "small-cache-forward")
    together = crossover(*pair, heads=8, kv_heads=2, batch=3, **shape)
    group = crossover(*pair, **shape | {"n_q": 4})
    assert together.crossings[0].leads == group.crossings[0].leads
    assert together.times == 6
    assert together.crossings[0].words == tuple(6 * words for words in group.crossings[0].words if words is not None)
    alone = crossover(*pair, heads=8, kv_heads=2, batch=3, separate=True, **shape)
    assert alone.crossings[0].leads == crossover(*pair, **shape).crossings[0].leads
    assert "8 heads (2 KV heads), 3 sequences: what moves is for all, 6 times" in str(together)


def test_sizes_of_any_problem_have_a_crossing() -> None:
    """Products of matrices have no d; in the end all that there is fits, and both schedules move each word once."""
    (found,) = crossover("matmul-tiled", "matmul-streamed", m=30, k=20, n=40).crossings
    last, leader = found.leads[-1]
    assert leader == "both" and found.M is None and found.M_over_d2 is None
    sizes = {"m": 30, "k": 20, "n": 40}
    io = {M: [ps.count(name, M=M, **sizes).io for name in found.schedules] for M in (last - 1, last)}
    assert io[last - 1][1] < io[last - 1][0]
    assert io[last] == [30 * 20 + 20 * 40 + 30 * 40] * 2
    assert f" up to {last - 1:,}; from M = {last:,} on matmul-tiled and matmul-streamed move the same" in str(found)
    assert "d²" not in str(found)


@pytest.mark.one_in(4)
@strategies.draws(6, 80)
@given(
    st.sampled_from([name for name, each in SCHEDULES.items() if each.problem.dims == ("n", "d")]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 400),
)
def test_io_does_not_rise_with_M(name: str, n: int, d: int, M: int) -> None:
    """The assumptions of the search hold for every schedule that it takes."""
    try:
        curve = Curve(get(name), {"n": n, "d": d})
    except UsageError as refusal:
        assert "compete for the same cache" in str(refusal)
        assume(False)
    assert (curve(M) < math.inf) == (curve.least_M <= M)
    assert curve(M) >= curve(M + 1) >= curve(curve.most_M) == curve(10**6)


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    ("n", "d"), [(1024, 32), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((4096, 64), (65536, 128)))]
)
def test_the_crossing_is_where_the_counts_say(n: int, d: int) -> None:
    for crossing in crossover(n=n, d=d, over_d=()).crossings:
        a, b = crossing.schedules
        assert crossing.M is not None and crossing.fits
        assert words(b, crossing.M, n, d) < words(a, crossing.M, n, d)
        assert words(b, crossing.M - 1, n, d) >= words(a, crossing.M - 1, n, d)
        assert crossing.M_over_d2 == Fraction(crossing.M, d * d)


@pytest.mark.one_in(2)
def test_a_schedule_that_leads_as_soon_as_it_fits_says_so() -> None:
    """keys-resident needs 182 words here, and moves each word once in them: 5nd + 3d² + n."""
    with pytest.raises(Infeasible) as refused:
        ps.count("keys-resident", n=16, d=4, M=1)
    (found,) = crossover("row-stationary", "keys-resident", n=16, d=4, over_d=()).crossings
    assert found.M == refused.value.least_M == 182 and not found.fits
    assert "keys-resident does (keys-resident does not fit below)" in str(found)
    assert found.words == (words("row-stationary", 182, 16, 4), 5 * 16 * 4 + 3 * 4**2 + 16)


@pytest.mark.one_in(8)
def test_back_and_forth_is_said() -> None:
    (found,) = crossover("small-cache", "flash", n=4096, d=64, over_d=()).crossings
    assert len(found.changes) == 3 and found.changes[-1] == found.M
    assert "the lead changes 3 times" in str(found)


@pytest.mark.one_in(2)
def test_lines_and_picture_say_how_often_the_lead_changes() -> None:
    """Against a scan of every M up to the last change: what is printed, and what stands at the crossing."""
    from matplotlib.figure import Figure

    n, d = 64, 8
    found = crossover(n=n, d=d, over_d=(), proofs=False)
    lines = "\n".join(map(str, found.parts())).splitlines()
    signs = [text.get_text() for text in io_over_M(sweep(found, points=8), Figure().subplots()).texts]
    seen = []
    for crossing in found.crossings:
        assert crossing.M is not None
        sizes = list(range(crossing.leads[0][0], crossing.M + 1))
        a, b = crossing.schedules
        _, *changes = _leads(*([words(name, M, n, d) for M in sizes] for name in (a, b)), (a, b), sizes)
        (at,) = (number for number, line in enumerate(lines) if line.startswith(f"from M = {crossing.M:,} = "))
        (sign,) = (text for text in signs if text.startswith(f"M = {crossing.M:,}\n"))
        if len(changes) > 1:
            says = f"change places {len(changes)} times, first at M = {changes[0][0]:,} = "
            assert says in lines[at + 1] and sign.endswith(f"\nlast of {len(changes)}")
        else:
            assert "change places" not in lines[at + 1] and "last" not in sign
        seen.append(len(changes))
    assert min(seen) == 1 < max(seen)


@pytest.mark.one_in(2)
def test_what_stands_beside_the_crossings_is_said_to_be_other_problems() -> None:
    """And Θ is written out: what the column divides by."""
    found = crossover(n=64, d=8, over_d=(), proofs=False)
    text = "\n".join(map(str, found.parts()))
    _, _, beside = text.partition(
        "other problems, attention's own passes, at M = 1,024 (for their crossings, name two schedules):\n"
    )
    for name, line in zip(("flash2-forward", "flash2-backward"), beside.splitlines(), strict=True):
        row = ps.count(name, n=64, d=8, M=1024)
        assert line.startswith(f"  {get(name).problem.name}: {name} (") and f" moves {row.io:,} words" in line
        assert get(name).problem is not found.solves
    assert "÷ Θ: I/O ÷ (d·n + min(d²·n²/M, d·n²/√M)), " in text
    row = found.around[-1].rows[0]
    assert row.bound_ratio == pytest.approx(row.io / (64 * 8 + min(64**2 * 8 / 32, 64**2 * 8**2 / 1024)))


@pytest.mark.one_in(2)
def test_the_head_dimensions_that_are_looked_at_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """At n = 64 d, from d = 8 to 256; a crossing at each of them takes seconds, so that none is looked for here."""
    asked: list[tuple[int, int]] = []
    found = crossover("matmul-tiled", "matmul-streamed", m=8, k=8, n=8).crossings[0]

    def noted(a: Schedule, b: Schedule, dims: dict[str, int], times: int) -> Crossing:
        asked.append((dims["n"], dims["d"]))
        return found

    monkeypatch.setattr("pebblesim.api.crossover._crossing", noted)
    monkeypatch.setattr("pebblesim.api.crossover._with_proofs", lambda crossings, pairs: list(crossings))
    assert len(crossover("small-cache", "large-cache", n=64, d=8).measured) == 6
    assert asked[1:] == [(64 * 2**power, 2**power) for power in range(3, 9)]


@pytest.mark.one_in(2)
def test_the_exponent_is_proved() -> None:
    found = crossover(n=256, d=16, over_d=())
    assert found.exponent == 2 and found.bounds[0] == 2


@pytest.mark.slow
def test_the_exponent_is_measured() -> None:
    assert crossover(n=4096, d=64, over_d=()).exponent == 2
    pairs = ("small-cache", "large-cache", "small-cache-streamed", "row-stationary")
    found = crossover(*pairs, n=4096, d=64, over_d=(64, 256))
    assert len(found.crossings) == 2
    for pair in (crossing.schedules for crossing in found.crossings):
        across = [(c.d, c.M) for c in found.measured if c.schedules == pair]
        (d0, M0), (d1, M1) = across
        assert M0 and M1
        assert abs(math.log(M1 / M0) / math.log(d1 / d0) - 2) < 0.06  # ceilings and terms in √M fade as d grows


@pytest.mark.one_in(4)
def test_the_regimes_of_the_lower_bound_meet_where_it_changes() -> None:
    backward, dims = get("small-cache").problem, {"n": 512, "d": 16}
    told: list[float] = []
    found = list(regimes(backward, dims, told.append))
    assert told == sorted(told) and told[-1] == 1 and len(told) > 20
    assert [*dict.fromkeys(name for _, name in found)] == ["D7", "D4r", "D3", "D6", "D5", "compulsory"]
    for (_, before), (M, name) in pairwise(found):
        assert (best(backward, dims, M - 1).name, best(backward, dims, M).name) == (before, name)
    d3 = next(M for M, name in found if name == "D3")
    assert 1 < d3 / 16**2 < 8  # M = Θ(d²) for the constants, too


@pytest.mark.one_in(2)
def test_an_exponent_that_is_not_there_is_not_claimed() -> None:
    assert overtakes("n**2*d/M", "n**2*d**4/M**2", "n >= d")[0] == 3
    assert overtakes("n*d", "n**2*d**2/M", "n >= d, M >= d")[1] == "the lead changes at no single power of d"
    assert overtakes("n**2*d**2/M", "n**2*d/sqrt(M)", "n >= d")[1] == "the first overtakes the second at M = d^2"
    assert "both grow as" in overtakes("n**2 + n", "3*n**2", "n >= d, M >= d")[1]
    assert bound_exponent()[0] == 2
    (found,) = crossover("small-cache", "no-cache", n=64, d=8, over_d=()).crossings
    assert found.exponent is None and "no block sizes in closed form" in found.proof


def test_a_schedule_of_ones_own_with_closed_blocks_has_an_exponent() -> None:
    flash = get("flash2-forward")

    def crossing(closed: dict[str, str] | None) -> Fraction | None:
        solves, paper = flash.problem.name, dict(flash.paper)
        make = ps.schedule(problem=solves, source="mine", name="mine", paper=paper, graph=flash.graph, closed=closed)
        return crossing_exponent(get("small-cache-forward"), make(flash.function))[0]

    assert crossing({"B_r": "floor((M - d - 6)/(2*d + 8))", "B_c": "1"}) == 2
    assert crossing(None) is None


@pytest.mark.one_in(8)
def test_the_answer_does_not_depend_on_the_order_of_names() -> None:
    for pair in (("row-stationary", "small-cache"), ("small-cache", "row-stationary")):
        (found,) = crossover(*pair, n=64, d=8, over_d=()).crossings
        assert found.schedules == ("small-cache", "row-stationary")
        assert found.exponent == 2
        assert found.M is not None
        says = f"small-cache moves fewer words than row-stationary up to M = {found.M - 1}; from M = {found.M} on"
        assert says in str(found)


def test_a_schedule_that_is_not_registered_is_counted_around_d2() -> None:
    (found,) = crossover(
        replace(get("flash"), name="mine"), "small-cache", n=32, d=4, over_d=(), proofs=False
    ).crossings
    (known,) = crossover("flash", "small-cache", n=32, d=4, over_d=(), proofs=False).crossings
    assert (found.M, found.words) == (known.M, known.words) and "mine" in found.schedules


@pytest.mark.one_in(2)
def test_schedules_that_never_cross() -> None:
    (found,) = crossover("flash2-forward", "small-cache-forward", n=64, d=8, over_d=()).crossings
    assert len(found.leads) == 1 or found.changes
    (same,) = crossover("small-cache", "small-cache", n=8, d=2, over_d=()).crossings
    assert same.M is None and same.first is None
    assert str(same).startswith("small-cache and small-cache move the same at every M from ")


@pytest.mark.one_in(2)
def test_a_schedule_whose_blocks_compete_has_a_crossing() -> None:
    """`fit` never moves more at a larger M, for such schedules either."""

    @ps.schedule(problem="backward", source="test", fit=["b", "c"], name="competing")
    def competing(m, A1, A2, A3, dO, X, Y, *, b, c):  # type: ignore[no-untyped-def]
        g = m.tensor("g", A1.shape[1], A1.shape[1])
        for i in m.tiles(A1.shape[0], b):
            m.read(A1[i, :])
            for j in m.tiles(A1.shape[0], c):
                m.read(A2[j, :])
                for k in m.tiles(A1.shape[0], 1):
                    m.read(A3[k, :])
        m.write(g, 0)

    found = [ps.count(competing, n=8, d=2, M=M).io for M in range(8, 50)]
    assert found == sorted(found, reverse=True) and len(set(found)) > 4
    (one,) = crossover("competing", "small-cache", n=8, d=2, over_d=()).crossings
    assert one.leads == ((one.M, "competing"),)  # it moves what it needs not even once: never worse than one that works


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("small-cache",), "in pairs"),
        (("small-cache", "matmul-tiled"), "schedules of different problems"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        crossover(*given, n=8, d=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": "8:64:x2", "d": 4}, "n has several sizes, so that the crossing is along it: give the cache, too, as M"),
        ({"n": "8:64:x2", "d": "4,8", "M": 99}, "n and d have several sizes each; a crossing is along one"),
        ({"n": 8, "d": 4, "M": 99}, "M = 99 and one size for each dimension were given, which leaves nothing to look"),
        ({"n_q": 8, "d_k": 4}, "problem 'backward' takes the sizes n, d, or n_q, n_k, d"),
    ],
)
def test_what_leaves_nothing_to_look_along_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        crossover("small-cache", "large-cache", **given)


@pytest.mark.one_in(4)
def test_the_data_of_a_picture_go_from_the_least_m_to_four_times_the_largest_input() -> None:
    data = sweep(crossover("small-cache", "flash", n=64, d=8, over_d=(), proofs=False), points=5)
    assert data.at[0] == min(Curve(get(name), {"n": 64, "d": 8}).least_M for name in data.io)
    assert data.at[-1] == 4 * 64 * 8
    ratios = [later / at for at, later in zip(data.at, data.at[1:], strict=False)]
    assert max(ratios) < 1.2 * min(ratios)


@pytest.mark.one_in(2)
def test_the_picture_along_a_dimension() -> None:
    from matplotlib.figure import Figure

    found = crossover("flash2-forward", "small-cache-forward", n_q="1:64:x4", n_k=256, d=16, M=300)
    ax = io_over_M(sweep(found, points=6), Figure().subplots())
    assert ax.get_xlabel() == "n_q"
    assert ax.get_title() == "forward, n_k = 256, d = 16, M = 300 words"
    assert not any("d²" in text.get_text() for text in ax.texts)


@pytest.mark.one_in(8)
def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebblesim.api.crossover.OVER_D", (8, 16))
    run = CliRunner().invoke(
        app, ["crossover", "small-cache-streamed", "row-stationary", "-n", "256", "-d", "16", "--json"]
    )
    assert run.exit_code == 0
    found = json.loads(run.stdout)
    assert found["n"] == 256 and found["exponent"]["value"] == 2
    (crossing,) = found["crossings"]
    assert crossing["schedules"] == ["small-cache-streamed", "row-stationary"]
    assert crossing["M_over_d2"] == crossing["M"] / 256
    assert {entry["d"] for entry in found["measured"]} == {8, 16}


@pytest.mark.one_in(4)
def test_the_picture_shows_every_curve(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    data = sweep(crossover(n=64, d=8, over_d=()), points=8)
    ax = io_over_M(data, Figure().subplots())
    labels = [line.get_label() for line in ax.lines]
    titles = [get(name).title for name in data.io]
    assert titles == ["Algorithm 6 (small-cache)", "Algorithm 9 (large-cache)", "FlashAttention (flash)"]
    assert [*titles, "best schedule", "Θ, without its constant", "lower bound for any schedule"] == [
        label for label in labels if not label.startswith("_")
    ]
    for M, least in data.best:
        assert least == ps.gaps(n=64, d=8, M=M).rows[0].io <= min(words(name, M, 64, 8) for name in data.io)
    styles = {(str(line.get_linestyle()), line.get_marker()) for line in ax.lines if line.get_label() in titles}
    assert len(styles) == len(data.io)  # told apart without colours
    for name, words_of in data.io.items():
        assert all(low <= io for low, io in zip(data.lower, words_of, strict=True) if io is not None), name
    text = " ".join(t.get_text() for t in ax.texts)
    assert "M = d²" in text and all(f"M = {crossing.M:,}" in text for crossing in data.crossover.crossings)

    def draw(figure: Figure) -> None:
        io_over_M(data, figure.subplots())

    save(draw, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000
    with pytest.raises(UsageError, match="cannot tell a format"):
        save(draw, tmp_path / "a.txt")
    with pytest.raises(UsageError, match="cannot write"):
        save(draw, tmp_path / "missing" / "a.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg"]
