"""Pictures show the numbers they are given, and files are whole pictures or are not there."""

import re
import runpy
from functools import cache
from math import isqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given, strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from PIL import Image
from strategies import SUMMATIONS
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli import main as cli
from pebblesim.core.errors import UsageError
from pebblesim.counting.useful import useful_operations
from pebblesim.game.moves import COMPUTE, READ, unpack
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.layers import LETTER, layers
from pebblesim.language.problems import problem as problem_of
from pebblesim.language.registry import get, of_problem
from pebblesim.views.plots.crossover import io_over_M
from pebblesim.views.plots.game import LANE, move, occupancy, tiles
from pebblesim.views.plots.gaps import gaps
from pebblesim.views.plots.graph import graph
from pebblesim.views.plots.race import race
from pebblesim.views.plots.roofline import height, roofline
from pebblesim.views.plots.skislope import gap, skislope
from pebblesim.views.plots.style import WIDTH, line, save
from pebblesim.views.plots.words import figure, legend, words
from pebblesim.views.recording import record


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(6, 4)).subplots()


CACHES = (40, 90, 250, 800)


@cache
def compared() -> list[ps.Counted]:
    return [row for M in CACHES for row in ps.compare(n=40, d=6, M=M, blocks="best")]


def best(M: int) -> ps.Counted:
    fit = [row for row in compared() if row.M == M and row.peak_red <= M]
    return sorted(fit, key=lambda row: row.reads + row.writes)[0]


@pytest.mark.one_in(2)
def test_the_ski_slope_goes_through_what_was_counted(ax: Axes) -> None:
    assert skislope(compared()[::-1], ax) is ax
    curves = {each.get_label(): list(zip(*each.get_data(), strict=True)) for each in ax.get_lines()}
    assert curves.pop("the least of all") == [(M, best(M).io) for M in CACHES]
    assert curves.pop("lower bound for any schedule") == [
        (M, ps.bounds("backward", n=40, d=6, M=M).best.value) for M in CACHES
    ]
    winners = {name for name in curves if name[0] != "_" and "others" not in name}
    others = {row.schedule for row in compared() if row.feasible} - winners
    assert curves.pop(f"{len(others)} others, nowhere the least") == []
    assert set(curves) == {*winners, *(f"_{name}" for name in others)}  # what begins with _ is in no legend
    least = {M: {row.schedule for row in compared() if row.M == M and row.io == best(M).io} for M in CACHES}
    assert all(least[M] & winners for M in CACHES) and winners <= set().union(*least.values())
    for name, curve in curves.items():
        mine = name.removeprefix("_")
        assert curve == [(row.M, row.io) for row in compared() if row.schedule == mine and row.feasible]
    assert "words" in ax.get_xlabel() and "words" in ax.get_ylabel()


def least_without(M: int, names: set[str]) -> int:
    """The lower bound for every way of computing without some bounds, from the bounds for each way."""
    found = ps.bounds("backward", n=40, d=6, M=M)
    kept = {
        way: [bound.value for bound in found.lower if bound.way in ("", way) and bound.name not in names]
        for way in found.ways
    }
    return min(map(max, kept.values()))


def test_the_gap_of_a_problem_with_and_without_some_bounds(ax: Axes) -> None:
    found = ps.gaps("backward", n=40, d=6, M=CACHES)
    assert gaps(found, ax, ("D3", "D4r", "D5")) is ax
    without, whole, _ = (list(zip(*each.get_data(), strict=True)) for each in ax.get_lines())
    assert whole == [(M, best(M).gap) for M in CACHES]
    for row, (M, gap_without) in zip(found.rows, without, strict=True):
        assert gap_without == row.io / least_without(M, {"D3", "D4r", "D5"})
    assert any(above > below for (_, above), (_, below) in zip(without, whole, strict=True))
    named = [each.xy[0] for each in ax.texts if isinstance(each, Annotation) and each.xy[1] == 0.03]
    assert named and all(CACHES[0] < at < CACHES[-1] for at in named)


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("D1,q-stord", "no bound or schedule of these problems is called 'q-stord'; did you mean 'q-stored'?"),
        (",".join(each.name for each in of_problem("backward")), "--without leaves no schedule of 'backward'"),
    ],
)
def test_what_cannot_be_left_out(without: str, says: str, pebblesim: Any, tmp_path: Path) -> None:
    code, _, error = pebblesim(f"plot gaps backward -n 8 -d 2 -M 40,80 --without {without} -o gaps.png")
    assert code != 0 and says in " ".join(error.split()) and not list(tmp_path.iterdir())


def test_the_gap_without_some_schedules_is_of_the_best_of_the_others(ax: Axes) -> None:
    others = [name for name in {row.schedule for row in compared()} if name != best(250).schedule]
    before = ps.gaps("backward", schedules=others, n=40, d=6, M=CACHES)
    gaps(ps.gaps("backward", n=40, d=6, M=CACHES), ax, ("D1",), before)
    drawn, *_ = (dict(zip(*each.get_data(), strict=True)) for each in ax.get_lines())
    for M in CACHES:
        io = min(row.io for row in compared() if row.feasible and row.M == M and row.schedule in others)
        assert drawn[M] == io / least_without(M, {"D1"})


def test_the_gap_is_that_of_the_least(ax: Axes) -> None:
    assert gap(compared(), ax) is ax
    drawn = dict(zip(*ax.get_lines()[0].get_data(), strict=True))
    assert drawn == {M: pytest.approx(best(M).io / best(M).every_way.value) for M in CACHES}


def test_no_two_lines_look_the_same() -> None:
    assert len({tuple(line(number).values()) for number in range(385)}) == 385


@pytest.mark.one_in(2)
@pytest.mark.parametrize("by", ["tensor", "phase"])
def test_the_bars_are_as_long_as_what_is_moved(by: Any, ax: Axes) -> None:
    rows = [row for row in compared() if row.M == 800 and row.feasible]
    assert words(rows, ax, by) is ax
    bars: dict[float, list[float]] = {}
    for patch in ax.patches:
        if not patch.get_fill():  # every part has an outline of its own
            bars.setdefault(-(patch.get_y() + patch.get_height() / 2), []).append(patch.get_width())
    lengths = [sum(bars[y]) for y in sorted(bars)]
    assert lengths == [moved for row in rows for moved in (row.reads, row.writes)]
    parts = sum(min(moved) > 0.02 * max(row.reads for row in rows) for row in rows for moved in row.by_tensor.values())
    assert by == "phase" or len(ax.texts) >= len(rows) + parts // 2


def test_the_roofline(ax: Axes) -> None:
    rows = [row for row in compared() if row.M == 250]
    assert roofline(rows, ax, peak=1e12, bandwidth=2e11, dtype="float16") is ax
    points = {each.get_label().partition(":")[0]: each for each in ax.get_lines() if ":" in each.get_label()}
    assert set(points) == {row.schedule for row in rows if row.feasible}
    useful = useful_operations("backward", rows[0].dims)
    assert useful < min(sum(row.work.values()) for row in rows) * 1.01
    for row in rows:
        if row.feasible:
            ((x,), (y,)) = points[row.schedule].get_data()
            assert x == pytest.approx(useful / (2 * (row.reads + row.writes)))
            assert y == pytest.approx(min(1e12 * useful / sum(row.work.values()), 2e11 * x))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("M", [250, 83_456])
def test_the_legend_of_the_roofline_is_below_the_picture(M: int) -> None:
    rows = ps.compare(n=8192, d=128, M=M) if M > 250 else [row for row in compared() if row.M == M]
    figure = Figure(figsize=(WIDTH, height(rows)), layout="constrained")
    ax = roofline(rows, figure.subplots(), peak=1e12, bandwidth=2e11, dtype="float16")
    figure.draw_without_rendering()
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 >= 0 and legend.get_window_extent().y1 < ax.bbox.y0


def test_a_race_has_a_legend_for_ours_and_one_for_others() -> None:
    names = ("flash2-forward", "torch-cudnn", "small-cache-forward-blocked", "torch-math")
    rows = [
        {"n": 64, "d": d, "mask": None, "way": way, "contender": name, "tflops": 100.0 * number + d}
        for number, name in enumerate(names)
        for d in (64, 128)
        for way in ("forward", "backward")
    ]
    drawn = race(rows, Figure(), 64)
    legends = {each.get_title().get_text(): [text.get_text() for text in each.texts] for each in drawn.legends}
    assert legends == {"pebblesim": [names[0], names[2]], "PyTorch": ["cudnn", "math"]}
    for ax in drawn.axes:
        for each in ax.lines:
            grey = len(set(to_rgb(each.get_color()))) == 1
            assert grey == each.get_label().startswith("torch") == (each.get_markerfacecolor() == "white")
            assert list(each.get_ydata()) == [100.0 * names.index(each.get_label()) + d for d in (64, 128)]


# -- games ------------------------------------------------------------------------------------------------------------


@cache
def game() -> ps.Recording:
    return record("small-cache", n=4, d=3, M=40)


def test_the_occupancy_is_what_the_referee_counted(ax: Axes) -> None:
    assert occupancy(game(), ax) is ax
    count, red = [0], set()
    for kind, vertex in map(unpack, game().moves.tolist()):
        (red.add if kind in (READ, COMPUTE) else red.discard if kind == 3 else bool)(vertex)
        count.append(len(red))
    drawn = [patch.get_data().values for patch in ax.patches]
    assert [list(values) for values in drawn] == [count, count]  # an area, and its outline
    assert max(count) == game().game.peak_red
    assert f"peak: {max(count)} at move {count.index(max(count)):,}" in [text.get_text() for text in ax.texts]
    assert "M = 40" in [text.get_text() for text in ax.texts]


def test_a_long_game_shows_the_most_of_every_few_moves(ax: Axes) -> None:
    game = record("matmul-tiled", m=8, k=9, n=7, M=40)
    assert len(game.moves) > 2400
    occupancy(game, ax)
    high, low = (patch.get_data() for patch in ax.patches)
    red = np.append(0, game.red)
    for values, extreme in ((high, max), (low, min)):
        assert len(values.values) == 2400
        spans = zip(values.edges[:-1].astype(int), values.edges[1:].astype(int), strict=True)
        assert list(values.values) == [extreme(red[a:b]) for a, b in spans]


def test_the_tiles_are_where_the_pebbles_are(ax: Axes) -> None:
    game = record("small-cache", n=4, d=2, M=30)
    assert tiles(game, ax) is ax
    picture = np.asarray(ax.get_images()[0].get_array())
    names = [label.get_text().partition(" ")[0] for label in ax.get_yticklabels()]
    assert picture.shape == (LANE * len(names), len(game.moves) + 1)
    for move_number in range(0, len(game.moves), 7):
        expected = np.zeros((len(names), LANE), int)
        for vertex in np.flatnonzero(game.pebbles(move_number)[0]).tolist():
            family, _, index, part = game.graph.locate(vertex)
            element = index[0] * (family.shape[1] if len(index) == 2 else 1) + index[-1] * (len(index) == 2)
            rows = [r for r in range(LANE) if r * family.elements // LANE == element]
            level = 2 if part.kind == "value" else 1
            lane = names.index(family.name)
            expected[lane, rows] = np.maximum(expected[lane, rows], level)
        assert (picture[:, move_number].reshape(len(names), LANE) == expected).all()


def test_a_move_in_words() -> None:
    assert move(game(), 0) == "before the first move"
    assert move(game(), 1) == f"move 1 of {len(game().moves):,}: read A1[0,0]   (read A1[i, k])"


def test_the_pebbles_of_a_graph(ax: Axes) -> None:
    red, blue = game().pebbles(100)
    assert graph(game().graph, ax, red=red, blue=blue, vertex=7) is ax
    sizes = [len(each.get_offsets()) for each in ax.collections if hasattr(each, "get_sizes") and len(each.get_sizes())]
    assert sizes == [(~red & ~blue).sum(), blue.sum(), (blue & ~red).sum(), red.sum()]
    assert {text.get_text() for text in ax.texts} == {family.name for family in game().graph.families}


# -- layers -----------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["backward", "forward", "backward-qkv", "linear"]),
    st.integers(1, 4),
    st.integers(1, 4),
    SUMMATIONS,
    st.sampled_from([0.5, 1.6, 4]),
)
def test_no_vertex_stands_on_another_and_edges_lead_to_the_right(problem, n, d, summation, aspect) -> None:
    cdag = ps.graph(problem, n=n, d=d, summation=summation)
    at = layers(cdag, aspect)
    assert len({*zip(at.x.tolist(), at.y.tolist(), strict=True)}) == cdag.vertices
    target = np.repeat(np.arange(cdag.vertices), np.diff(cdag.indptr))
    step = at.x[target] - at.x[cdag.preds]
    other = at.family[target] != at.family[cdag.preds]
    assert (step[other] > 0).all()
    assert (step >= 0).all()
    assert (at.x.min(), at.y.max()) == pytest.approx((0, at.height))
    assert at.x.max() <= at.width <= at.x.max() + 0.6 * max(len(family.name) for family in cdag.families)
    assert at.value.sum() == sum(family.elements * family.blocks for family in cdag.families)


def test_a_balanced_sum_has_one_layer_for_each_doubling() -> None:
    """The paper's Fig. 3: 1 + log2 d layers."""
    cdag = ps.graph("matmul", m=1, k=8, n=1, summation="balanced")
    at = layers(cdag)
    of_sum = at.x[at.family == 2]
    assert sorted(np.unique(of_sum - of_sum.min(), return_counts=True)[1].tolist()) == [1, 2, 4, 8]


def test_an_aspect_is_kept_where_it_is_possible() -> None:
    at = layers(ps.graph("backward", n=8, d=4), 1.6)
    assert 1.1 < at.width / at.height < 2


@pytest.mark.parametrize("name", ["forward", "backward", "backward-qkv", "projected-forward"])
def test_the_name_of_a_narrow_tensor_ends_before_the_next_begins(name: str) -> None:
    """Tensors of one element each, and names of which some are longer: they are in the drawing, too."""
    for aspect in (0.5, 1.6, 4.0):
        at = layers(ps.graph(name, **dict.fromkeys(problem_of(name).dims, 1)), aspect)
        for text, x, y in at.names:
            behind = [other for _, other, beside in at.names if other > x and beside == y]
            assert all(end >= x + LETTER * len(text) for end in (at.width, *behind)), text


def test_a_graph_of_edges_has_no_layers() -> None:
    with pytest.raises(UsageError, match="was made from edges"):
        layers(Cdag.from_edges(2, [(0, 1)]))


def test_a_picture_of_words_says_what_its_tensors_are() -> None:
    rows = [ps.count("small-cache", n=64, d=8, M=512)]
    assert legend(rows).replace("\N{NO-BREAK SPACE}", " ").startswith("S = A1 X;  h = A3 Y;  ")
    picture = Figure(layout="constrained")
    figure(rows, picture)
    assert "S = A1 X" in picture.get_supxlabel().replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.one_in(3)
def test_no_line_crosses_the_text_at_a_crossing() -> None:
    """Two crossings near each other, with a bound below them, as in the picture of the README."""
    M = [2**k for k in range(4, 21)]
    io = {
        "small-cache": [10**10 // isqrt(m) for m in M],
        "large-cache": [10**12 // m if m >= 2**10 else None for m in M],
        "row-stationary": [3 * 10**11 // m if m >= 2**6 else None for m in M],
    }
    crossings = [
        SimpleNamespace(schedules=("small-cache", other), at=at, d=64, changes=range(900, at + 1))
        for other, at in (("large-cache", 2**13), ("row-stationary", 900))
    ]
    named = {name: get(name) for name in io}
    found = SimpleNamespace(
        along="M", crossings=crossings, title="a title", named=named, solves=named["small-cache"].problem
    )
    data: Any = SimpleNamespace(
        crossover=found, at=M, io=io, theta=[], lower=[3 * 10**9 // isqrt(m) for m in M], own=[], best=[]
    )
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    ax = io_over_M(data, figure.subplots())
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in ax.texts if "\n" in text.get_text()]
    assert len(boxes) == 2 and not boxes[0].overlaps(boxes[1])
    for box in boxes:
        assert ax.bbox.x0 < box.x0 and box.x1 < ax.bbox.x1 and ax.bbox.y0 < box.y0 and box.y1 < ax.bbox.y1
        for curve in ax.get_lines():
            corners = curve.get_transform().transform(curve.get_xydata())
            along = np.linspace(corners[:-1], corners[1:], 200).reshape(-1, 2)
            assert not ((along > box.min) & (along < box.max)).all(axis=1).any(), curve.get_label()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["words", "roofline"])
def test_pictures_need_neither_sizes_nor_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    titles = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda ax, text, **_: titles.append(text))
    ran = CliRunner().invoke(cli.app, ["plot", name])
    assert ran.exit_code == 0, ran.output
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.png"]
    assert titles[0].startswith("forward, n = 4,096, d = 64, M = ")


def test_a_phase_has_the_colour_of_its_tensor() -> None:
    rows = [ps.count("standard-forward", n=16, d=4, M=200)]
    looks: dict[str, list[Any]] = {}
    for by in ("tensor", "phase"):
        ax = words(rows, Figure().subplots(), by)
        for text in ax.texts:
            x, y = text.get_position()
            under = [bar for bar in ax.patches if bar.get_hatch() is not None and bar.get_bbox().contains(x, y)]
            if text.get_text() in ("S", "P"):
                looks.setdefault(text.get_text(), []).append((under[0].get_facecolor(), under[0].get_hatch()))
    assert {name: (len(each), len({*each})) for name, each in looks.items()} == {"S": (4, 1), "P": (4, 1)}
    assert looks["S"][0] != looks["P"][0]


# -- the document -----------------------------------------------------------------------------------------------------

DOCS = ROOT / "docs"


def test_every_picture_of_the_document_is_there_and_has_its_command() -> None:
    """Made anew by docs/make_pictures.py; here they need only be whole and small."""
    text = (DOCS / "pictures.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\((pictures/\S+)\)", text)
    made = re.findall(
        r"^pebblesim (?:plot|crossover|watch|cache|devices) .* -o docs/(pictures/\S+)$", text, re.MULTILINE
    )
    assert [Path(name).stem for name in made] == [Path(name).stem for name in shown]
    for name in shown:
        assert (DOCS / name).read_bytes().startswith(MAGIC["png"])
        assert (DOCS / name).stat().st_size < 150_000
    for name in re.findall(r"\]\((pictures/\S+)\)", (DOCS / "game.md").read_text(encoding="utf-8")):
        assert (DOCS / name).read_bytes().startswith(MAGIC["png"])
        assert (DOCS / name).stat().st_size < 150_000
    assert {name for name in dir_of_commands() if f"pebblesim plot {name} " not in text} == set()


MADE = runpy.run_path(str(DOCS / "make_pictures.py"))


@pytest.mark.slow
@pytest.mark.parametrize("command", MADE["commands"]())
def test_pictures_of_the_document_show_what_is_drawn_today(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DOCS.parent)
    drawn = MADE["draw"](command.replace("docs/pictures", str(tmp_path)))
    if command.endswith(".png"):
        with Image.open(command.split()[-1]) as picture:
            assert picture.info["Drawn"] == drawn
    else:
        assert drawn is None and any(tmp_path.iterdir())


def dir_of_commands() -> list[str]:
    from typer.main import get_command

    from pebblesim.cli.plot import app

    return list(get_command(app).commands)


# -- files ------------------------------------------------------------------------------------------------------------

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


COMMANDS = {
    "skislope": "plot skislope -n 64 -d 8 -M 50:5000 --points 4",
    "gaps": "plot gaps forward backward -n 64 -d 8 -M 50:5000 --points 4 --without C2w,D4,q-stored,q-tiled",
    "words": "plot words small-cache flash -n 64 -d 8 -M 500",
    "roofline": "plot roofline -n 64 -d 8 -M 500 --peak 312T --bandwidth 1.5e12",
    "roofline of a card": "plot roofline --gpu A100 -n 64 -d 8 --dtype fp16",
    "occupancy": "plot occupancy small-cache -n 4 -d 2 -M 24",
    "occupancy of an illegal game": "plot occupancy small-cache -n 4 -d 1 -M 24 --rules replace",
    "tiles": "plot tiles flash2-forward -n 5 -d 2 -M 60 --mask causal",
    "graph": "plot graph small-cache -n 2 -d 2 -M 24 --at 60 --summation balanced",
    "graph of a problem": "plot graph matmul -n 2 -d 2",
    "measured": f"plot measured {ROOT / 'benchmarks/gpu/exact.jsonl'}",
}


ALIKE = ("roofline of a card", "occupancy of an illegal game", "graph of a problem", "gaps", "skislope")
"""Pictures that are drawn as others are, or that other tests here draw."""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "command",
    [pytest.param(line, id=name, marks=[pytest.mark.slow] if name in ALIKE else []) for name, line in COMMANDS.items()],
)
@pytest.mark.parametrize("suffix", ["png"])
def test_every_picture_has_a_command(command: str, suffix: str, pebblesim: Any, tmp_path: Path) -> None:
    assert pebblesim(f"{command} -o a.{suffix}") == (0, f"written a.{suffix}\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [f"a.{suffix}"]
    assert (tmp_path / f"a.{suffix}").read_bytes().startswith(MAGIC[suffix])


def test_measured_traffic_is_told_apart_from_predicted() -> None:
    from matplotlib.figure import Figure

    from pebblesim.views.plots.measured import QUANTITIES, measured

    predicted = dict.fromkeys(QUANTITIES, 1000)
    rows = [{"total": {"predicted": predicted, "measured": predicted | {"sm_read": 1032}}}, {"total": {"measured": {}}}]
    ax = measured(rows, Figure().subplots())
    labels = [mark.get_label() for mark in ax.lines]
    assert "words read: 1 of 1 as predicted, exactly" in labels
    assert "bytes into the SMs: 0 of 1 as predicted, exactly" in labels
    off = {mark.get_label().partition(":")[0]: list(mark.get_ydata()) for mark in ax.lines}
    assert off["words read"] == [0] and off["bytes into the SMs"] == [3.2]
    with pytest.raises(UsageError, match="no run with a prediction"):
        measured([], ax)


@pytest.mark.one_in(2)
def test_measured_schedules_are_drawn_over_m() -> None:
    """As lines what is counted, as marks what HBM gave, and times beside; crossings have their values."""
    from typer.testing import CliRunner

    from pebblesim.cli.main import app
    from pebblesim.measuring.crossings import crossings, points, summary
    from pebblesim.measuring.results import load
    from pebblesim.views.plots.measured import crossing

    results, dims = DOCS.parent / "benchmarks" / "gpu" / "hbm.jsonl", {"n": 768, "d": 64}
    names = ["small-cache", "large-cache", "flash"]
    measured = points([row for row in load(results) if row["dims"] == dims], names)
    figure = Figure()
    crossing(measured, names, summary(measured, names)["crossings"], dims, figure, "a title")
    bytes_, times = figure.axes
    marks = {line.get_label(): line for line in bytes_.lines if line.get_linestyle() == "None"}
    for name in names:
        known = [(point["M"], point[name]) for point in measured if name in point]
        called = get(name).known_as
        assert [tuple(xy) for xy in marks[f"{called}, measured"].get_xydata()] == [
            (M, each["hbm"]) for M, each in known
        ]
        (drawn,) = (line for line in times.lines if line.get_label() == f"{called}, measured")
        assert list(drawn.get_ydata()) == [each["seconds"] for _, each in known]
        (curve,) = (line for line in bytes_.lines if line.get_label() == f"{called}, counted")
        M, words = curve.get_xydata()[-1]
        assert words == 4 * ps.count(name, M=int(M), **dims).io
    texts = [text.get_text() for text in bytes_.texts]
    for other in names[1:]:
        (found,) = crossings(measured, "small-cache", other, "hbm")
        assert f"{found.at / 64**2:.2f} d²" in texts
    with pytest.raises(UsageError, match="no M at which small-cache and flash was measured for many heads"):
        crossing([], ["small-cache", "flash"], [], dims, Figure(), "")
    for asked, says in (
        (
            ["--crossing", "small-cache,flash"],
            "at one size on one card, are needed (`pebblesim gpu crossover` makes them); give -n and -d. There are:",
        ),
        (["--crossing", "small-cache"], "it takes some schedules"),
        (["-n", "512"], "sizes choose runs for --crossing"),
    ):
        result = CliRunner().invoke(app, ["plot", "measured", str(results), *asked, "-o", "x.png"])
        assert result.exit_code != 0 and says in f"{result.output}{result.exception}", result


@pytest.mark.one_in(3)
@pytest.mark.parametrize("suffix", MAGIC)
def test_the_same_picture_is_the_same_file(suffix: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(lambda figure: words(compared()[:1], figure.subplots()), tmp_path / f"{name}.{suffix}")
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first == second
    assert first.startswith(MAGIC[suffix])


def test_a_picture_that_fails_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("older")
    with pytest.raises(ZeroDivisionError):
        save(lambda figure: 1 // 0, tmp_path / "a.png")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.png", "older")]
    with pytest.raises(UsageError, match="cannot write"):
        save(lambda figure: figure.subplots(), tmp_path / "nowhere" / "a.png")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("plot skislope -n 9 -d 3 -M 50:90 -o a.gif", "end it with one of .png, .svg, .pdf"),
        ("plot skislope -n 9 -d 3 -M 50 -o a.png", "it must be several sizes, LOW:HIGH"),
        ("plot skislope -n 9 -d 3 -M 90:50 -o a.png", "the first size must be less than the second"),
        ("plot skislope -n 9 -d 3 -M 2:3 -o a.png", "none of these schedules fits into a cache of 3 words"),
        ("plot words -n 9 -d 3 -M 3 -o a.png", "the smallest feasible M is"),
        ("plot roofline -n 9 -d 3 -M 99 --peak fast --bandwidth 1 -o a.png", "--peak 'fast' was given"),
        ("plot roofline -n 9 -d 3 -M 99 --peak 1T --bandwidth 0 -o a.png", "--bandwidth '0' was given"),
        ("plot roofline -n 9 -d 3 -M 99 --peak 1T -o a.png", "--bandwidth is missing"),
        ("plot roofline -n 9 -d 3 -M 99 --gpu A100 -o a.png", "--gpu replaces -M, --peak and --bandwidth"),
        ("plot roofline -n 9 -d 3 --gpu A100 --level l1 -o a.png", "no level is called 'l1'"),
        ("plot roofline -n 9 -d 3 --gpu GTX1060 --dtype float32 -o a.png", "use --level l2"),
        ("plot roofline -n 9 -d 3 --gpu GTX1060 --level l2 --dtype float16 -o a.png", "a peak for float16"),
        ("plot graph backward -n 9 -d 3 -M 99 -o a.png", "backward is a problem"),
        ("plot graph small-cache -n 9 -d 3 -o a.png", "a game of small-cache needs a cache"),
        ("plot graph small-cache -n 2 -d 2 -M 99 --at 9999 -o a.png", "move 9999 was asked for"),
        ("plot graph backward -n 64 -d 16 -o a.png", "is too large to draw"),
        ("plot measured nowhere.jsonl -o a.png", "'nowhere.jsonl': this file of results does not exist"),
        ("plot occupancy nothing -n 9 -d 3 -M 99 -o a.png", "no schedule is called 'nothing'"),
    ],
)
def test_what_cannot_be_drawn(command: str, says: str, pebblesim: Any, tmp_path: Path) -> None:
    code, out, err = pebblesim(command)
    assert (code, out) == (2, "")
    assert says in err and err.startswith("error: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
