"""The page of games: what it holds, its logic in node, and the whole of it in a headless browser, offline."""

import base64
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pebblesim as ps
from pebblesim.api.rules_in_words import MOVES, in_words
from pebblesim.cli import main as cli
from pebblesim.core.errors import UsageError
from pebblesim.game.moves import COMPUTE, DELETE, KINDS, READ, WRITE, pack, unpack
from pebblesim.game.rules import BY_TERM, RULES
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.registry import SCHEDULES
from pebblesim.views.recording import Recording, record, record_moves
from pebblesim.views.replay import SCRIPTS, data, page, save
from pebblesim.views.replay.content import of_graph

TYPES = {"place": "<f4", "value": "u1", "tensor": "<u2"}


def decoded(content: dict[str, Any], name: str) -> Any:
    return np.frombuffer(base64.b64decode(content["arrays"][name]), TYPES.get(name, "<u4"))


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is spent on better games than the one that is shown."""
    monkeypatch.setattr("pebblesim.views.replay.lessons.BETTER", 0.0)
    monkeypatch.setattr("pebblesim.cli.play.SEARCH", 0.0)


@pytest.fixture(scope="module")
def game() -> Recording:
    """The example of the documentation."""
    return record("small-cache", n=8, d=4, M=24)


# -- what the page holds ----------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
def test_a_graph_numbered_from_the_other_end_is_drawn_upside_down() -> None:
    """Vertices in layers, about a middle line; whatever the order of numbers decides, it decides the other way."""

    def drawn(graph: Cdag) -> tuple[Any, Any, int]:
        """Columns, heights, and the number of rows."""
        made = of_graph(graph)
        (tensor,) = made["tensors"]
        row, column = np.divmod(decoded(made, "cell"), tensor["columns"])
        return column, row + decoded(made, "place").reshape(-1, 2)[:, 1], tensor["rows"]

    dice = random.Random(2)
    for _ in range(400):
        n, share = dice.randint(1, 24), dice.choice([0.1, 0.2, 0.4])
        edges = [(u, v) for u in range(n) for v in range(u + 1, n) if dice.random() < share]
        column, height, rows = drawn(Cdag.from_edges(n, edges))
        turned_column, turned_height, _ = drawn(Cdag.from_edges(n, [(n - 1 - u, n - 1 - v) for u, v in edges]))
        assert turned_column.tolist() == column[::-1].tolist()
        assert turned_height.tolist() == (rows - 1 - height[::-1]).tolist()


@pytest.mark.parametrize(
    ("name", "more"),
    [("small-cache", {}), ("flash2-forward", {"mask": "causal"}), ("flash", {"M": 40}), ("large-cache", {"M": 60})],
)
def test_the_page_holds_the_game(name: str, more: dict[str, Any]) -> None:
    game = record(name, **({"n": 5, "d": 3, "M": 99} | more))
    (content,) = data(game)["games"]
    for each, array in {"moves": game.moves, "starts": game.starts, "lines": game.lines}.items():
        assert decoded(content, each).tolist() == array.tolist()
    graph = content["graph"]
    tensor, cell, value = (decoded(graph, each) for each in ("tensor", "cell", "value"))
    for v in range(game.graph.vertices):
        family, _, index, part = game.graph.locate(v)
        mine = graph["tensors"][tensor[v]]
        row, column = divmod(int(cell[v]) - mine["cell"], mine["columns"])
        assert (mine["name"], row) == (family.name, index[0])
        assert column % mine["width"] == (index[1] if len(index) == 2 else 0)
        assert bool(value[v]) == (part.kind in ("value", "disallowed", "empty"))
    roles = {each["name"]: each["role"] for each in graph["tensors"]}
    algorithm = SCHEDULES[name]
    assert {name for name, role in roles.items() if role == "input"} >= set(algorithm.inputs)
    assert {name for name, role in roles.items() if role == "output"} == set(algorithm.program.outputs)
    assert all(each["meaning"] for each in graph["tensors"])


def test_the_page_asks_nobody_for_anything(game: Recording) -> None:
    """No address of anything else; and the browser is told to refuse any."""
    text = page(game)
    assert not re.findall(r"""(?:https?:)?//[\w.]+\.\w+|\b(?:src|href)=(?!"data:)|@import|\burl\(|\bfetch\(""", text)
    assert "default-src 'none'" in text


def test_a_text_in_the_data_cannot_end_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mask = "<b>&<script>.npy"
    np.save(mask, np.ones((4, 4), bool))
    text = page(record("flash2-forward", n=4, d=2, M=60, mask=mask))
    assert text.count("<script") == 2
    assert "mask &lt;b&gt;&amp;&lt;script&gt;.npy</title>" in text
    found = json.loads(text.partition('id="page">')[2].partition("</script>")[0])
    assert found["games"][0]["title"].endswith(f"mask {mask}")


def test_par_is_the_least_io_where_it_is_known(game: Recording) -> None:
    made = data(record("matmul-tiled", m=1, k=2, n=1, M=5))
    assert made["games"][0]["par"] == {"bound": 5, "source": "the proven least", "best": 5}
    assert [board["par"]["best"] for board in made["boards"]] == [5, 7, ps.optimum("matmul", m=2, k=2, n=2, M=5).io]
    large = data(game)["games"][0]["par"]
    assert ps.count("small-cache", n=8, d=4, M=24).lower_bound.value <= large["bound"] <= large["best"] <= game.game.io


def test_a_page_shows_one_game_or_two(game: Recording) -> None:
    with pytest.raises(UsageError, match="one, or two"):
        data(game, game, game)


# -- its logic --------------------------------------------------------------------------------------------------------

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script by itself")


def in_node(script: str, given: Any) -> Any:
    """The output, as JSON, of a script that knows the page's classes and `given`."""
    sources = [(files("pebblesim.views.replay") / name).read_text(encoding="utf-8") for name in SCRIPTS[:3]]
    whole = "\n".join([*sources, 'const given = JSON.parse(require("fs").readFileSync(0, "utf8"));', script])
    ran = subprocess.run(["node", "-e", whole], input=json.dumps(given), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


REPLAY = """
const graph = new Graph(given.game.graph), player = new Player(given.game, graph);
const seen = (how) => {
  how();
  const { at, line, vertex, referee } = player, { reads, writes, red, peak } = referee;
  const states = Array.from(referee.state, (state) => state & 3), tiles = Array.from(player.tileOf);
  const cells = [referee.redValues, referee.redParts, referee.blueValues].map((each) => Array.from(each));
  return { at, reads, writes, red, peak, line, vertex, tiles, states, cells };
};
const steps = [], transfers = [];
player.seek(0);
for (let i = 0; i < 12; i++) steps.push(seen(() => player.seekStep(1)).at);
for (let i = 0; i < 13; i++) steps.push(seen(() => player.seekStep(-1)).at);
for (let words = 0; words <= player.io; words++) {
  player.seekTransfer(words);
  transfers.push([player.at, player.referee.io]);
}
const { every, frames, highest } = player;
console.log(JSON.stringify({ every, frames: frames.length, highest, steps, transfers,
  names: Array.from({ length: graph.vertices }, (_, v) => graph.name(v)),
  seen: given.places.map((place) => seen(() => player.seek(place))) }));
"""


@pytest.mark.one_in(3)
@needs_node
@pytest.mark.parametrize(
    ("name", "more"),
    [("small-cache", {}), ("small-cache", {"rules": "replace"}), ("flash2-forward", {"mask": "causal", "M": 120})],
)
def test_the_player_knows_every_move(name: str, more: dict[str, Any]) -> None:
    """Anywhere, in any order, what the script says is what two sets and a few counters say."""
    game = record(name, **({"n": 8, "d": 4, "M": 24} | more))
    total = len(game.moves)
    places = [total, 0, 1, total - 1, 512, 511, 513, 1024, *random.Random(1).choices(range(total + 1), k=12)]
    places = [min(place, total) for place in places]
    (content,) = data(game)["games"]
    result = in_node(REPLAY, {"game": content, "places": places})
    assert result["frames"] == total // result["every"] + 1
    assert result["highest"] == game.game.peak_red
    assert result["names"] == [game.graph.describe(v) for v in range(game.graph.vertices)]
    starts, there, steps = game.starts.tolist(), 0, []
    for forward in [True] * 12 + [False] * 13:
        beyond = [start for start in starts if (start > there if forward else start < there)]
        there = min(beyond, default=total) if forward else max(beyond, default=0)
        steps.append(there)
    assert result["steps"] == steps
    costly = np.flatnonzero(game.moves & 3 <= WRITE).tolist()
    assert result["transfers"] == [[at, words] for words, at in enumerate([*costly, total])]
    wanted = {state["at"]: state for state in model(game, game.game.rules == "replace", content["graph"], set(places))}
    for place, seen in zip(places, result["seen"], strict=True):
        assert {key: seen[key] for key in wanted[place]} == wanted[place]
        assert seen["line"] == game.line_at(place)


def model(game: Recording, replace: bool, graph: dict[str, Any], places: set[int]) -> Iterator[dict[str, Any]]:
    """The state to be seen at some moves, from two sets."""
    red: set[int] = set()
    blue = set(game.graph.inputs.tolist())
    reads = writes = peak = 0
    tiles = [-1] * len(game.text)
    turns = game.turns.tolist()
    cell, value = decoded(graph, "cell"), decoded(graph, "value")
    count = sum(each["rows"] * each["columns"] for each in graph["tensors"])
    for place in range(len(game.moves) + 1):
        vertex = -1
        if place:
            kind, vertex = unpack(int(game.moves[place - 1]))
            reads, writes = reads + (kind == READ), writes + (kind == WRITE)
            red |= {vertex} if kind in (READ, COMPUTE) else set()
            blue |= {vertex} if kind == WRITE else set()
            red -= {vertex} if kind == DELETE or (replace and kind == WRITE) else set()
            blue -= {vertex} if replace and kind == READ else set()
            peak = max(peak, len(red))
        while turns and turns[0][0] < max(place, 1):
            _, line, tiles[line] = turns.pop(0)
        if place not in places:
            continue
        cells = [
            np.bincount([cell[v] for v in standing if value[v] == finished], minlength=count).tolist()
            for standing, finished in ((red, 1), (red, 0), (blue, 1))
        ]
        states = [(v in red) + 2 * (v in blue) for v in range(game.graph.vertices)]
        head = {"at": place, "reads": reads, "writes": writes, "red": len(red), "peak": peak, "vertex": vertex}
        yield head | {"tiles": tiles.copy(), "states": states, "cells": cells}


JUDGE = """
const results = given.map(({ game, proposals }) => {
  const graph = new Graph(game.graph), referee = new Referee(graph, game.M, game.rules), told = [];
  const before = referee.save();
  for (const [kind, number] of proposals) {
    const why = referee.broken(kind, number);
    if (!why) referee.play(kind, number);
    told.push(why === "");
  }
  const { reads, writes, red, peak, missing } = referee, cells = Array.from(referee.redValues);
  referee.restore(referee.save());
  const same = JSON.stringify(cells) === JSON.stringify(Array.from(referee.redValues));
  referee.restore(before);
  return { told, reads, writes, red, peak, missing, same, undone: referee.io + referee.red };
});
console.log(JSON.stringify(results));
"""


LOST = [(READ, 0), (READ, 1), (COMPUTE, 0), (DELETE, 2), (COMPUTE, 1)]
"""Under `partial`: a sum that is begun and then lost takes no other term."""


@pytest.mark.one_in(2)
@needs_node
def test_the_page_judges_as_the_referee_does() -> None:
    """Random moves on random graphs, under all rules, with and without weights: the same are legal."""
    rng = random.Random(7)
    cases, wanted = [], []
    for number in range(40):
        rules = list(RULES)[number % len(RULES)]
        n, M = rng.randint(2, 7), rng.randint(2, 6)
        edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.4]
        weights = [rng.randint(1, 2) for _ in range(n)] if number % 3 == 0 else None
        if number == 3:
            n, M, edges, weights = 3, 3, [(0, 2), (1, 2)], None
        graph = ps.Cdag.from_edges(n, edges, weights=weights)
        highest = n + (len(edges) if rules in BY_TERM else 0)
        played: list[int] = []
        proposals, legal = [], []
        for step in range(60):
            kind = rng.choice((READ, WRITE, COMPUTE, COMPUTE, DELETE))
            proposals.append((kind, rng.randrange(highest if kind == COMPUTE else n)))
            if number == 3 and step < len(LOST):
                proposals[-1] = LOST[step]
            tried = [*played, pack(*proposals[-1])]
            outcome = ps.referee(graph, M, [np.array(tried, np.int64)], rules, strict=False)
            legal.append(outcome.legal)
            played = tried if outcome.legal else played
        end = ps.referee(graph, M, [np.array(played, np.int64)], rules)
        content = data(record_moves("random", graph, np.array(played, np.int64), M=M, rules=rules))["games"][0]
        cases.append({"game": content, "proposals": proposals})
        wanted.append((legal, end.reads, end.writes, end.peak_red, end.missing_outputs))
    for result, expected in zip(in_node(JUDGE, cases), wanted, strict=True):
        found = result["told"], result["reads"], result["writes"], result["peak"], len(result["missing"])
        assert found == expected
        assert result["same"] and result["undone"] == 0
    assert 200 < sum(sum(legal) for legal, *_ in wanted) < 40 * 60 - 200


PLACES = """
const graph = new Graph(given.graph), found = [];
for (const [width, height, open] of given.frames) {
  graph.tiles.forEach((tile, index) => { tile.open = Boolean(open[index % open.length]); });
  graph.arrange(width, height);
  const tiles = graph.tiles.map(({ x, y, width, height }) => [x, y, width, height]);
  const vertices = Array.from({ length: graph.vertices }, (_, v) => v).filter((v) => graph.shown(v));
  const points = vertices.map((v) => [graph.x[v], graph.y[v], graph.tile(v).number]);
  found.push({ size: [graph.width, graph.height], tiles, points });
}
console.log(JSON.stringify(found));
"""


@pytest.mark.one_in(3)
@needs_node
@pytest.mark.parametrize("name", ["small-cache", "flash1-forward", "fft"])
def test_nothing_lies_on_anything_else(name: str) -> None:
    """However tiles are opened, and whatever the frame: tiles are apart, vertices are, and each is in its tile."""
    if name == "fft":
        graph = ps.generate("fft", n=16)
        game = record_moves(name, graph, ps.pebble(graph, M=8, seconds=0).moves, M=8)
    else:
        game = record(name, n=6, d=3, M=40)
    rng = random.Random(3)
    frames = [[w, h, [rng.random() < p for _ in range(50)]] for w, h in ((300, 500), (1000, 500)) for p in (0, 0.3, 1)]
    for found in in_node(PLACES, {"graph": data(game)["games"][0]["graph"], "frames": frames}):
        tiles = np.array(found["tiles"])
        left, top, right, bottom = tiles[:, 0], tiles[:, 1], tiles[:, 0] + tiles[:, 2], tiles[:, 1] + tiles[:, 3]
        assert left.min() >= 0 and top.min() >= 0
        assert right.max() <= found["size"][0] + 0.01 and bottom.max() <= found["size"][1] + 0.01
        apart = (right[:, None] <= left + 1e-6) | (left[:, None] >= right - 1e-6)
        apart |= (bottom[:, None] <= top + 1e-6) | (top[:, None] >= bottom - 1e-6)
        assert apart[~np.eye(len(tiles), dtype=bool)].all()
        if not found["points"]:
            continue
        x, y, tile = np.array(found["points"]).T
        tile = tile.astype(int)
        assert (x > left[tile]).all() and (x < right[tile]).all() and (y > top[tile]).all() and (y < bottom[tile]).all()
        distance = np.hypot(x[:, None] - x, y[:, None] - y) + 9 * np.eye(len(x))
        assert distance.min() > 0.7  # discs have a radius of 0.29


# -- in a browser -----------------------------------------------------------------------------------------------------


WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def opened(offline: Any, tmp_path: Path) -> Iterator[Any]:
    """Open the page of some games; it may reach nothing, and nothing may go wrong in it."""
    tabs = []

    def open_page(*games: Recording, place: str = "", **look: Any) -> Any:
        file = tmp_path / f"{len(tabs)}.html"
        save(file, *games)
        tab = offline(**(look or WIDE)).new_page()
        tab.asked, tab.wrong, tab.file = [], [], file
        tab.on("request", lambda request: tab.asked.append(request.url))
        tab.on("console", lambda message: tab.wrong.append(message.text))
        tab.goto(file.as_uri() + place)
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        assert tab.wrong == []
        assert {url.partition("#")[0] for url in tab.asked} == {tab.file.as_uri()}


@pytest.fixture(scope="module")
def tiny() -> Recording:
    return record("matmul-tiled", m=1, k=2, n=1, M=5)


def drawn(tab: Any) -> None:
    """Wait until the page has drawn what it was told."""
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def counters(tab: Any, board: int = 0) -> dict[str, int]:
    drawn(tab)
    names = ("io", "reads", "writes", "red", "peak")
    return {name: int(tab.text_content(f"#board-{board} .counters .{name}").replace(",", "")) for name in names}


def at(tab: Any) -> int:
    drawn(tab)
    return int(tab.text_content("#at").replace(",", ""))


def says(tab: Any) -> str:
    drawn(tab)
    return str(tab.text_content("#says"))


@pytest.mark.slow
def test_the_tour(opened: Any, game: Recording) -> None:
    """It comes first, has a sentence for each kind of move, and ends with a board to play on."""
    tab = opened(game)
    assert tab.get_attribute("#modes button[data-mode=learn]", "aria-selected") == "true"
    assert tab.text_content("#card") == "A computation is a graph"
    told = [says(tab)]
    while tab.is_visible("#tour-next"):
        tab.click("#tour-next")
        told.append(says(tab))
    for sentence in MOVES.values():
        assert any(sentence.partition("{v}")[2] in each for each in told)
    assert counters(tab)["io"] == 5 and "Done, with 5 words" in tab.text_content("#card")
    tab.keyboard.press("ArrowLeft")
    assert says(tab) == told[-2]
    tab.keyboard.press("End")
    tab.click("#tour-play")
    assert tab.is_visible("#do-read") and not tab.is_visible("#tour-next")


@pytest.mark.slow
def test_watching_a_game(opened: Any, game: Recording) -> None:
    """Play, pause, step, scrub to the end: the counters are those of `play`; step, back and scrub pause the game."""
    tab = opened(game, place="#watch")
    assert counters(tab) == dict.fromkeys(("reads", "writes", "io", "red", "peak"), 0)
    assert tab.text_content("#code div.now").strip() == "read A1[i, k]"
    tab.select_option("#speed", "1000")
    tab.click("#play")
    while at(tab) < 50:
        pass
    tab.click("#play")
    assert tab.text_content("#play") == "▸ play"
    paused, there = counters(tab), at(tab)
    kind = game.moves[:there] & 3
    assert (paused["reads"], paused["writes"]) == ((kind == READ).sum(), (kind == WRITE).sum())
    assert paused["red"] == game.red[there - 1]

    tab.select_option("#speed", "1")
    tab.evaluate("document.activeElement.blur()")
    for press in ("ArrowRight", "ArrowLeft", "Shift+ArrowRight", "Home"):
        tab.keyboard.press("Space")
        assert tab.text_content("#play") == "❚❚ pause"
        tab.keyboard.press(press)
        assert tab.text_content("#play") == "▸ play"
    for button in ("#step", "#back", "#step-line", "#back-line"):
        tab.click("#play")
        tab.click(button)
        assert tab.text_content("#play") == "▸ play"
    tab.keyboard.press("Home")
    tab.keyboard.press("Shift+ArrowRight")
    assert at(tab) == game.starts[1]
    tab.click("#play")
    played = ps.play("small-cache", n=8, d=4, M=24).game
    tab.locator("#scrub").fill(str(played.moves))
    ended = {"reads": played.reads, "writes": played.writes, "io": played.io, "red": 0, "peak": played.peak_red}
    assert counters(tab) == ended
    assert tab.text_content("#play") == "▸ play"
    assert tab.text_content("#board-0 .verdict") == "legal and complete"
    box = tab.locator("#timeline").bounding_box()
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    assert abs(at(tab) - played.moves / 2) < played.moves / 50

    tab.goto(f"{tab.file.as_uri()}#3000")
    assert at(tab) == 3000
    assert tab.text_content("#code div.now").strip().startswith(game.text[game.line_at(3000)].strip())
    assert says(tab) == MOVES[DELETE].replace("{v}", "h[0,2] (product 1 of 4)")
    assert tab.get_attribute("#says", "aria-live") == "polite"
    assert tab.text_content("#tensors li.now b") == "h"


@pytest.mark.slow
def test_what_is_drawn_changes_with_the_pebbles(opened: Any, game: Recording) -> None:
    """A word in cache is a disc in the tile of its tensor, and only there."""
    tab = opened(game, place="#watch-190")
    drawn(tab)
    red = """(places) => {
        const board = page.boards[0], { graph, canvas } = board, scale = canvas.width / board.width;
        const { data } = board.context.getImageData(0, 0, canvas.width, canvas.height);
        return places.map(([tensor, row, column]) => {
            const { cell, columns } = graph.tensors.find(({ name }) => name === tensor);
            const at = cell + row * columns + column;
            const [x, y] = [board.x0 + board.unit * graph.cellX[at], board.y0 + board.unit * graph.cellY[at]];
            const first = 4 * (Math.round(y * scale) * canvas.width + Math.round(x * scale));
            return data[first] > 180 && data[first + 1] < 140 && data[first + 2] < 90;
        });
    }"""
    located = [game.graph.locate(v) for v in np.flatnonzero(game.pebbles(190)[0]).tolist()]
    here = {(family.name, *index) for family, _, index, part in located if part.kind == "value" and len(index) == 2}
    sizes = {family.name: family.shape for family in game.graph.families if len(family.shape) == 2}
    places = [(name, i, j) for name, (rows, columns) in sizes.items() for i in range(rows) for j in range(columns)]
    parts = {(family.name, *index) for family, _, index, part in located if part.kind != "value"}
    around = (*unpack(int(game.moves[189])),)[1]
    now = game.graph.locate(around)
    covered = parts | {(now[0].name, *now[2])}  # a ring stands there
    seen = {place for place, there in zip(places, tab.evaluate(red, places), strict=True) if there}
    assert seen - covered == here - covered
    assert any((name, j, i) not in here for name, i, j in here)  # rows are rows, and columns columns


@pytest.mark.slow
def test_tiles_open_and_close(opened: Any, game: Recording) -> None:
    """A graph of many vertices starts as tiles; a click opens one, and its vertices can be told apart."""
    tab = opened(game, place="#watch-190")
    are_open = "page.boards[0].graph.tiles.filter(({ open }) => open).map(({ tensor }) => tensor.name)"
    assert tab.evaluate(are_open) == []
    place = """(name) => {
        const board = page.boards[0], tensor = board.graph.tensors.find((each) => each.name === name);
        const [x, y, width, height] = board.box(tensor.tiles[0][0]);
        const { left, top } = board.canvas.getBoundingClientRect();
        return [left + x + width / 2, top + y + height / 2];
    }"""
    tab.mouse.click(*tab.evaluate(place, "S"))
    drawn(tab)
    assert tab.evaluate("page.boards[0].graph.tiles.filter(({ open }) => open).map(({ tensor }) => tensor.name)") == [
        "S"
    ]
    tab.mouse.move(*tab.evaluate("""() => {
        const board = page.boards[0], { graph } = board, { left, top } = board.canvas.getBoundingClientRect();
        const v = Array.from(graph.cell).findIndex((_, v) => graph.shown(v));
        return [left + board.px(v), top + board.py(v)];
    }"""))  # fmt: skip
    assert tab.text_content("#board-0 .hint").startswith("S[0,0] (product 1 of 4): ")
    tab.click("#board-0 .open")
    assert tab.evaluate("page.boards[0].graph.tiles.every(({ open }) => open)")
    tab.click("#board-0 .close")
    tab.click("#tensors li:first-child button")
    assert set(tab.evaluate(are_open)) == {"A1"}


STROKES = """(open) => {
    const board = page.boards[0], { graph } = board, found = { lines: 0, curves: 0 };
    const pairs = new Set(), tensor = (v) => graph.tensor[v];
    for (let e = 0; e < graph.targets.length; e++)
        pairs.add(`${tensor(graph.preds[e])} ${tensor(graph.targets[e])}`);
    for (let each = 0; each < graph.tensors.length; each++) pairs.delete(`${each} ${each}`);
    const widest = Math.max(...graph.tiles.map((tile) => Math.hypot(...board.box(tile).slice(2))));
    const spied = [[Path2D, "moveTo"], [Path2D, "lineTo"], [CanvasRenderingContext2D, "bezierCurveTo"]];
    const real = spied.map(([type, name]) => type.prototype[name]);
    let from = [0, 0];
    Path2D.prototype.moveTo = function (x, y) { from = [x, y]; real[0].call(this, x, y); };
    Path2D.prototype.lineTo = function (x, y) {
        found.lines += Math.hypot(x - from[0], y - from[1]) > widest;
        real[1].call(this, x, y);
    };
    CanvasRenderingContext2D.prototype.bezierCurveTo = function (...all) { found.curves++; real[2].apply(this, all); };
    open === null ? board.toggle(graph.tensors.find(({ name }) => name === "g").tiles[0][0]) : board.openAll(open);
    spied.forEach(([type, name], at) => { type.prototype[name] = real[at]; });
    return { ...found, pairs: pairs.size };
}"""
"""What is drawn when tiles open or close: lines longer than a tile, curves between tensors, and such pairs."""


@pytest.mark.slow
def test_open_tiles_are_no_hairball(opened: Any, game: Recording) -> None:
    """Of one tile all operands are lines. Of all tiles that would be thousands: pairs of tensors have a curve each."""
    tab = opened(game, place="#watch-190")
    closed = tab.evaluate(STROKES, False)
    assert closed == {"lines": 0, "curves": closed["pairs"], "pairs": closed["pairs"]} and closed["pairs"] > 10
    assert 0 < tab.evaluate(STROKES, None)["lines"] < 600
    whole = tab.evaluate(STROKES, True)
    assert whole["lines"] == 0 and whole["curves"] == whole["pairs"]


@pytest.mark.slow
def test_two_games_race(opened: Any) -> None:
    """The page opens with both. Its clock is the words that have moved, and its counters are those of `count`."""
    slow, fast = (record(name, n=4, d=2, M=24) for name in ("small-cache", "row-stationary"))
    tab = opened(slow, fast)
    assert tab.get_attribute("#modes button[data-mode=race]", "aria-selected") == "true"
    least = fast.game.io
    assert least < slow.game.io
    tab.locator("#scrub").fill(str(least))
    assert (counters(tab, 0)["io"], counters(tab, 1)["io"]) == (least, least)
    assert "row-stationary is done" in says(tab)
    tab.keyboard.press("End")
    assert counters(tab, 0)["io"] == ps.count("small-cache", n=4, d=2, M=24).io
    assert counters(tab, 1)["io"] == ps.count("row-stationary", n=4, d=2, M=24).io
    assert f"{slow.game.io - least} words fewer" in says(tab)
    assert tab.text_content("#board-1 .lane b") == f"done, {least} words"
    tab.keyboard.press("Home")
    tab.select_option("#speed", "60")
    tab.click("#play")
    while at(tab) < 5:
        pass
    tab.click("#back")
    assert tab.text_content("#play") == "▸ play"
    assert counters(tab, 0)["io"] == counters(tab, 1)["io"] == at(tab)


@pytest.mark.slow
def test_there_is_nothing_to_compare_with_one_game(opened: Any, tiny: Recording) -> None:
    tab = opened(tiny, place="#race")
    assert not tab.is_visible("#modes button[data-mode=race]")
    assert tab.is_visible("#tour-next")


KEYS = {READ: "r", WRITE: "w", COMPUTE: "c", DELETE: "d"}


def choose(tab: Any, vertex: int, again: bool = False) -> None:
    """Click on a vertex, unless it is chosen already."""
    if not again and tab.evaluate("page.boards[0].cursor?.vertex") == vertex:
        return
    tab.mouse.click(*tab.evaluate("""(v) => {
        const board = page.boards[0], { left, top } = board.canvas.getBoundingClientRect();
        return [left + board.px(v), top + board.py(v)];
    }""", vertex))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("by", ["buttons", "keys"])
def test_a_game_is_won(by: str, opened: Any, tiny: Recording) -> None:
    """The moves of the best game, made by hand, win it at par; nothing is won before the last write."""
    tab = opened(tiny, place="#play-1")
    assert "short of cache" in tab.text_content("#board-choice option:checked") and "is 7" in tab.text_content("#par")
    best = ps.optimum("matmul", m=1, k=2, n=1, M=3)
    for number, (kind, vertex) in enumerate(unpack(move) for move in best.moves.tolist()):
        assert "least!" not in says(tab) and "changes nothing" not in says(tab)
        choose(tab, vertex)
        if by == "keys":
            tab.keyboard.press(KEYS[kind])
        else:
            tab.click(f"#do-{KINDS[kind]}")
        drawn(tab)
        assert tab.text_content("#moves-made") == str(number + 1)
        if "least!" in says(tab):
            break
    assert says(tab).endswith("Done, with 7 words of I/O. That is the least!")
    assert counters(tab)["io"] == 7


@pytest.mark.slow
def test_rules_are_kept_and_moves_taken_back(opened: Any, tiny: Recording) -> None:
    tab = opened(tiny, place="#play-0")
    product = 4  # the first product of C[0,0]
    choose(tab, product)
    assert says(tab) == "C[0,0] (product 1 of 2): neither in cache nor in memory. No move is allowed: " \
        "C[0,0] (product 1 of 2) needs A[0,0], which is not in cache."  # fmt: skip
    tab.click("#do-compute", force=True)  # which is marked as not allowed, but tells why
    assert says(tab) == "Not allowed: C[0,0] (product 1 of 2) needs A[0,0], which is not in cache."
    assert tab.get_attribute("#do-compute", "aria-disabled") == "true"
    assert tab.text_content("#moves-made") == "0"
    choose(tab, 0)
    assert says(tab) == "A[0,0], an input: in memory. You may read."
    choose(tab, 0, again=True)  # a second click does what is likely: it reads
    assert counters(tab)["io"] == 1
    for vertex in (2, product, 1):
        choose(tab, vertex)
        choose(tab, vertex, again=True)
    assert counters(tab) == {"io": 3, "reads": 3, "writes": 0, "red": 4, "peak": 4}
    choose(tab, 3)
    choose(tab, 3, again=True)
    assert says(tab) == "Not allowed: The cache is full: it holds 4 of 4. Delete something first."
    tab.keyboard.press("u")
    assert says(tab) == "Taken back: read A[0,1]."
    tab.click("#undo")
    assert counters(tab) == {"io": 2, "reads": 2, "writes": 0, "red": 2, "peak": 2}
    choose(tab, 0)
    tab.keyboard.press("w")  # it is in memory already
    assert says(tab).strip() == "A[0,0] is written from the cache to memory: 1 word of I/O. " \
        "The same value was in memory already: this write changes nothing."  # fmt: skip
    assert counters(tab) == {"io": 3, "reads": 2, "writes": 1, "red": 2, "peak": 2}
    tab.click("#restart")
    assert counters(tab)["io"] == 0 and tab.is_disabled("#undo")


@pytest.mark.slow
def test_a_board_is_played_by_the_keyboard_alone(opened: Any, tiny: Recording) -> None:
    """Arrows go from vertex to vertex, and Enter does what is likely; each step is said."""
    tab = opened(tiny, place="#play-0")
    tab.keyboard.press("ArrowRight")
    assert says(tab) == "A[0,0], an input: in memory. You may read."
    tab.keyboard.press("Enter")
    assert says(tab).strip() == MOVES[READ].replace("{v}", "A[0,0]")
    seen = set()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowDown", "ArrowUp"):
        tab.keyboard.press(key)
        seen.add(says(tab))
    assert len(seen) >= 5
    assert tab.evaluate("document.querySelectorAll('#modes button:not([hidden])').length") == 3
    tab.focus("#modes button[data-mode=play]")
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate("document.activeElement.dataset.mode") == "watch" and tab.is_visible("#play")


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["hong-kung", "partial"])
def test_any_graph_is_watched_and_played(rules: str, opened: Any) -> None:
    """A graph without tensors, under rules of both kinds: its game replays, and can be played by hand to the end."""
    graph = ps.generate("pyramid", rows=3)
    found = ps.pebble(graph, M=4, rules=rules, seconds=0)
    tab = opened(record_moves("pyramid", graph, found.moves, M=4, rules=rules), place="#watch")
    assert not tab.is_visible("#code-panel") and not tab.is_visible("#tensors-panel")
    tab.keyboard.press("End")
    assert counters(tab)["io"] == found.io
    tab.goto(f"{tab.file.as_uri()}#play-3")
    moves = record_moves("pyramid", graph, found.moves, M=4, rules=rules).acted
    for kind, vertex in zip(*(each.tolist() for each in moves), strict=True):
        choose(tab, vertex)
        tab.keyboard.press(KEYS[kind])
        assert "Not allowed" not in says(tab)
        if "Done" in says(tab):
            break
    assert f"Done, with {found.io} words of I/O" in says(tab)


@pytest.mark.slow
def test_an_illegal_game_tells_its_story(opened: Any) -> None:
    tab = opened(record("small-cache", n=8, d=4, M=24, rules="replace"), place="#watch")
    tab.keyboard.press("End")
    assert at(tab) == 88
    assert says(tab).startswith("Illegal: move 89: read A1[0,0]: A1[0,0] has no blue pebble")
    assert tab.text_content("#board-0 .verdict").startswith("illegal: move 89")
    assert in_words("replace")[0].removeprefix("read     ") in tab.text_content("#rules")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["#learn", "#watch-100", "#race-20", "#play-2"])
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_everything_is_in_its_place_at_any_width(width: int, place: str, opened: Any, tiny: Recording) -> None:
    """Nothing sticks out, boards have room, signs stand beside them, buttons are large enough for a finger."""
    look = PHONE if width == 360 else {"viewport": {"width": width, "height": 860}}
    tab = opened(tiny, record("matmul-tiled", m=2, k=2, n=2, M=8), place=place, **look, color_scheme="dark")
    drawn(tab)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    boxes = """(board) => ["canvas", ".key", ".buttons", ".counters", "h2", ".hint"]
        .map((name) => document.querySelector(`#board-${board} ${name}`).getBoundingClientRect())
        .filter(({ width }) => width).map(({ left, right, top, bottom }) => [left, right, top, bottom])"""
    for board in (0, 1) if place.startswith("#race") else (0,):
        canvas, *others = tab.evaluate(boxes, board)
        assert canvas[1] - canvas[0] > min(300, 0.3 * width) and canvas[3] - canvas[2] > 150
        for left, right, top, bottom in others:
            assert right <= canvas[0] or left >= canvas[1] or bottom <= canvas[2] + 1 or top >= canvas[3] - 1
    if width == 360:
        small = tab.evaluate("""[...document.querySelectorAll("footer button, #modes button")]
            .map((each) => each.getBoundingClientRect()).filter(({ width }) => width)
            .filter(({ width, height }) => Math.min(width, height) < 36).length""")  # fmt: skip
        assert small == 0


@pytest.mark.slow
def test_a_board_is_played_with_a_finger(opened: Any, tiny: Recording) -> None:
    tab = opened(tiny, place="#play-0", **PHONE)
    drawn(tab)
    spot = tab.evaluate("""() => {
        const board = page.boards[0], { left, top } = board.canvas.getBoundingClientRect();
        return [left + board.px(0), top + board.py(0)];
    }""")  # fmt: skip
    tab.touchscreen.tap(*spot)
    tab.touchscreen.tap(*spot)
    assert counters(tab)["reads"] == 1


@pytest.mark.slow
def test_a_game_of_a_hundred_thousand_moves(opened: Any) -> None:
    long = record("small-cache", n=24, d=8, M=80)
    assert len(long.moves) > 10**5
    tab = opened(long, place="#watch", **PHONE)
    places = random.Random(2).choices(range(1, len(long.moves) + 1), k=50)
    script = "(places) => places.map((at) => { page.mode.player.seek(at); return page.mode.player.referee.red; })"
    assert tab.evaluate(script, places) == [long.red[place - 1] for place in places]


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pebblesim", "watch", *line.split()])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        return (code, *capsys.readouterr())

    return run


def test_the_command_writes_a_page(watch: Any, tmp_path: Path) -> None:
    code, out, err = watch("small-cache -n 4 -d 2 -M 24")
    assert (code, err) == (0, "")
    assert "verdict   legal and complete\nwritten   small-cache.html\n" in out
    assert [path.name for path in tmp_path.iterdir()] == ["small-cache.html"]
    assert watch("small-cache -n 4 -d 1 -M 24 --rules replace -o b.html")[0] == 1
    assert watch("flash2-forward -n 4 -d 1 -M 24 --mask causal -o c.html")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.html", "c.html", "small-cache.html"]


def test_any_graph_can_be_watched(watch: Any, tmp_path: Path) -> None:
    """A generator, a problem, a file with a saved game; two names are two games."""
    code, out, err = watch("matmul matmul-tiled --size n=2 --size m=2 --size k=2 -M 8")
    assert (code, err) == (0, "")
    assert "written   matmul-matmul-tiled.html\n" in out and out.count("legal and complete") == 2
    graph = ps.generate("pyramid", rows=3)
    ps.save_graph(graph, tmp_path / "mine.hdag")
    found = ps.pebble(graph, M=4, seconds=0)
    np.save(tmp_path / "g.npy", found.moves)
    code, out, err = watch("mine.hdag -M 4 --game g.npy")
    assert (code, err) == (0, "") and f"I/O       {found.io} words" in out and "written   mine.html" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("small-cache -n 4 -d 2 -M 24 -o a.txt", "the name of a page must end in .html"),
        ("small-cache -n 400 -d 20 -M 240", "this game is too long to be kept"),
        ("small-cache -n 4 -d 2 -M 1", "is too small for small-cache"),
        ("small-cach -n 4 -d 2 -M 24", "no schedule, file, generator or problem is called 'small-cach'; did you mean"),
        ("small-cache --game g.npy -n 4 -d 2 -M 24", "--game are for graphs"),
        ("fft -n 4 -M 8 --block B=2", "no blocks to choose"),
        ("fft fft fft -n 4 -M 8", "3 names were given"),
        ("fft -n 4 -M 8 --game nowhere.npy", "nowhere.npy"),
    ],
)
def test_what_cannot_be_watched(line: str, says: str, watch: Any, tmp_path: Path) -> None:
    code, out, err = watch(line)
    assert (code, out) == (2, "")
    assert says in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written(game: Recording, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        save(tmp_path / "nowhere" / "a.html", game)


def test_an_input_stands_right_before_its_first_use() -> None:
    """A chain of sums, each with an input of its own: two vertices in a layer, not all inputs in the first."""
    edges = [(0, 4), (4, 5), (1, 5), (5, 6), (2, 6), (6, 7), (3, 7)]
    (only,) = of_graph(Cdag.from_edges(8, edges))["tensors"]
    assert (only["width"], only["rows"]) == (5, 2)
