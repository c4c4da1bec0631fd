"""The page that replays a game: what it holds, its logic in node, and the whole of it in a headless browser."""

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
from pebblesim.cli import main as cli
from pebblesim.errors import UsageError
from pebblesim.game.moves import COMPUTE, DELETE, KINDS, READ, WRITE, unpack
from pebblesim.jobs.recording import Recording, record
from pebblesim.replay import data, page, save

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
TYPES = {"x": "<f4", "y": "<f4", "value": "u1", "tensor": "<u2"}


def decoded(content: dict[str, Any], name: str) -> Any:
    return np.frombuffer(base64.b64decode(content["arrays"][name]), TYPES.get(name, "<u4"))


@pytest.fixture(scope="module")
def game() -> Recording:
    """The example of the documentation."""
    return record("small-cache", n=8, d=4, M=24)


# -- what the page holds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more"),
    [("small-cache", {}), ("flash2-forward", {"mask": "causal"}), ("flash", {"M": 40}), ("large-cache", {"M": 60})],
)
def test_the_page_holds_the_game(name: str, more: dict[str, Any]) -> None:
    game = record(name, **({"n": 5, "d": 3, "M": 99} | more))
    content = data(game)
    for each, array in {"moves": game.moves, "starts": game.starts, "lines": game.lines}.items():
        assert decoded(content, each).tolist() == array.tolist()
    for vertex in range(game.graph.vertices):
        tensor = content["tensors"][decoded(content, "tensor")[vertex]]
        block, part = content["tails"][decoded(content, "tail")[vertex]]
        element = int(decoded(content, "cell")[vertex]) - tensor["cell"]
        index = str(element) if tensor["vector"] else ",".join(map(str, divmod(element, tensor["columns"])))
        assert game.graph.describe(vertex) == f"{tensor['name']}[{block}{index}]{part}"
        assert bool(decoded(content, "value")[vertex]) == (part in ("", " (not allowed)", " (no terms)"))
    roles = {tensor["name"]: tensor["role"] for tensor in content["tensors"]}
    algorithm = game.setup.schedule
    assert {name for name, role in roles.items() if role == "input"} >= set(algorithm.inputs)
    assert {name for name, role in roles.items() if role == "output"} == set(algorithm.program.outputs)


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
    assert json.loads(text.partition('id="game">')[2].partition("</script>")[0])["title"].endswith(f"mask {mask}")


# -- its logic --------------------------------------------------------------------------------------------------------

SCRIPT = """
const { Player } = require(process.argv[1]);
const { game, places } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const player = new Player(game);
const seen = (how) => {
  how();
  const { at, reads, writes, red, peak, line, vertex, move } = player;
  const tiles = Array.from(player.tileOf), states = Array.from(player.state);
  const cells = [player.redValues, player.redParts, player.blueValues].map((each) => Array.from(each));
  return { at, reads, writes, red, peak, line, vertex, move, tiles, states, cells };
};
const steps = [];
player.seek(0);
for (let i = 0; i < 12; i++) steps.push(seen(() => player.seekStep(1)).at);
for (let i = 0; i < 13; i++) steps.push(seen(() => player.seekStep(-1)).at);
console.log(JSON.stringify({ every: player.every, frames: player.frames.length, highest: player.highest,
  steps, seen: places.map((place) => seen(() => player.seek(place))) }));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script outside a browser")
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
    content = data(game)
    script = str(files("pebblesim.replay") / "player.js")
    given = json.dumps({"game": content, "places": places})
    ran = subprocess.run(["node", "-e", SCRIPT, script], input=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["frames"] == total // result["every"] + 1
    assert result["highest"] == game.game.peak_red
    starts, there, steps = game.starts.tolist(), 0, []
    for forward in [True] * 12 + [False] * 13:
        beyond = [start for start in starts if (start > there if forward else start < there)]
        there = min(beyond, default=total) if forward else max(beyond, default=0)
        steps.append(there)
    assert result["steps"] == steps
    wanted = {state["at"]: state for state in model(game, game.game.rules == "replace", content, set(places))}
    for place, seen in zip(places, result["seen"], strict=True):
        assert {key: seen[key] for key in wanted[place]} == wanted[place]
        assert seen["line"] == game.line_at(place)
        if place:
            kind, vertex = unpack(int(game.moves[place - 1]))
            assert seen["move"] == f"{KINDS[kind]} {game.graph.describe(vertex)}"


def model(game: Recording, replace: bool, content: dict[str, Any], places: set[int]) -> Iterator[dict[str, Any]]:
    """What is to be seen at some moves, from two sets."""
    red: set[int] = set()
    blue = set(game.graph.inputs.tolist())
    reads = writes = peak = 0
    tiles = [-1] * len(game.text)
    turns = game.turns.tolist()
    cell, value = decoded(content, "cell"), decoded(content, "value")
    last = content["tensors"][-1]
    count = last["cell"] + last["rows"] * last["columns"]
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


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    drive = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser is installed; one of {', '.join(BROWSERS)} is needed")
    with drive.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A page that may reach nothing, and complains of all that goes wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    tab = context.new_page()
    tab.asked, tab.wrong = [], []
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.on("console", lambda message: tab.wrong.append(message.text))
    yield tab
    context.close()


def counters(tab: Any) -> dict[str, int]:
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    names = ("at", "reads", "writes", "io", "red", "peak")
    return {name: int(tab.text_content(f"#{name}").replace(",", "")) for name in names}


def test_watching_a_game(game: Recording, tab: Any, tmp_path: Path) -> None:
    """Play, pause, step, scrub to the end: the counters are those of `play`, and nothing leaves the page."""
    file = tmp_path / "game.html"
    save(game, file)
    tab.goto(file.as_uri())
    assert counters(tab) == dict.fromkeys(("at", "reads", "writes", "io", "red", "peak"), 0)
    assert tab.text_content("#code div.now").strip() == "read A1[i, k]"

    tab.select_option("#speed", "1000")
    tab.click("#play")
    while counters(tab)["at"] < 50:
        pass
    tab.click("#play")
    assert tab.text_content("#play") == "▸ play"
    paused = counters(tab)
    kind = game.moves[: paused["at"]] & 3
    assert (paused["reads"], paused["writes"]) == ((kind == READ).sum(), (kind == WRITE).sum())
    assert paused["red"] == game.red[paused["at"] - 1]

    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("Space")
    assert tab.text_content("#play") == "❚❚ pause"
    tab.keyboard.press("Space")
    paused = counters(tab)
    tab.keyboard.press("ArrowRight")
    assert counters(tab)["at"] == paused["at"] + 1
    tab.click("#back")
    tab.click("#back")
    assert counters(tab)["at"] == paused["at"] - 1
    tab.keyboard.press("Home")
    tab.keyboard.press("Shift+ArrowRight")
    assert counters(tab)["at"] == game.starts[1]

    played = ps.play("small-cache", n=8, d=4, M=24).game
    tab.locator("#scrub").fill(str(played.moves))
    ended = {"at": played.moves, "reads": played.reads, "writes": played.writes, "io": played.io, "red": 0}
    assert counters(tab) == ended | {"peak": played.peak_red}
    assert tab.text_content("#verdict") == "legal and complete"
    box = tab.locator("#timeline").bounding_box()
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    assert abs(counters(tab)["at"] - played.moves / 2) < played.moves / 50

    tab.goto(f"{file.as_uri()}#3000")
    assert counters(tab)["at"] == 3000
    assert tab.text_content("#code div.now").strip().startswith(game.text[game.line_at(3000)].strip())
    assert tab.text_content("#move") == "delete h[0,2] (product 1 of 4)"
    assert tab.asked == [file.as_uri()]
    assert tab.wrong == []


def test_what_is_drawn_changes_with_the_pebbles(game: Recording, tab: Any, tmp_path: Path) -> None:
    """A word in cache is red in the matrix of its tensor, and only there."""
    save(game, tmp_path / "game.html")
    tab.goto((tmp_path / "game.html").as_uri() + "#190")
    counters(tab)
    red = """([tensor, row, column]) => {
        const { canvas, cell, context, tensor: { columns } } = matrices.find((each) => each.tensor.name === tensor);
        const scale = canvas.width / (cell * columns + 1);
        const at = [column, row].map((place) => Math.round((0.5 + (place + 0.5) * cell) * scale));
        const [r, g, b] = context.getImageData(...at, 1, 1).data;
        return r > 180 && g < 140 && b < 90;
    }"""
    located = [game.graph.locate(v) for v in np.flatnonzero(game.pebbles(190)[0]).tolist()]
    here = {(family.name, *index) for family, _, index, part in located if part.kind == "value" and len(index) == 2}
    sizes = {family.name: family.shape for family in game.graph.families if len(family.shape) == 2}
    places = [(name, i, j) for name, (rows, columns) in sizes.items() for i in range(rows) for j in range(columns)]
    parts = {(family.name, *index) for family, _, index, part in located if part.kind != "value"}
    drawn = {place for place in places if tab.evaluate(red, place)}
    assert drawn - parts == here - parts
    assert len({(i, j) for name, i, j in here} ^ {(j, i) for name, i, j in here}) > 8


def test_an_illegal_game_tells_its_story(tab: Any, tmp_path: Path) -> None:
    save(record("small-cache", n=8, d=4, M=24, rules="replace"), tmp_path / "game.html")
    tab.goto((tmp_path / "game.html").as_uri())
    tab.keyboard.press("End")
    assert counters(tab)["at"] == 88
    assert tab.text_content("#move").startswith("illegal move 89: read A1[0,0]: A1[0,0] has no blue pebble")
    assert tab.text_content("#verdict").startswith("illegal: move 89")
    assert tab.wrong == []


def test_a_game_of_a_hundred_thousand_moves_on_a_telephone_at_night(browser: Any, tmp_path: Path) -> None:
    long = record("small-cache", n=24, d=8, M=80)
    assert len(long.moves) > 10**5
    save(long, tmp_path / "game.html")
    context = browser.new_context(viewport={"width": 390, "height": 780}, color_scheme="dark")
    tab = context.new_page()
    tab.goto((tmp_path / "game.html").as_uri())
    places = random.Random(2).choices(range(1, len(long.moves) + 1), k=50)
    seen = tab.evaluate("(places) => places.map((place) => { player.seek(place); return player.red; })", places)
    assert seen == [long.red[place - 1] for place in places]
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    context.close()


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
    assert out.endswith("verdict   legal and complete\nwritten   small-cache.html\n")
    assert [path.name for path in tmp_path.iterdir()] == ["small-cache.html"]
    assert watch("small-cache -n 4 -d 1 -M 24 --rules replace -o b.html")[0] == 1
    assert watch("flash2-forward -n 4 -d 1 -M 24 --mask causal -o c.html")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.html", "c.html", "small-cache.html"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("small-cache -n 4 -d 2 -M 24 -o a.txt", "the name of a page must end in .html"),
        ("small-cache -n 400 -d 20 -M 240", "this game is too long to be kept"),
        ("small-cache -n 4 -d 2 -M 1", "is too small for small-cache"),
        ("small-cach -n 4 -d 2 -M 24", "did you mean 'small-cache'?"),
    ],
)
def test_what_cannot_be_watched(line: str, says: str, watch: Any, tmp_path: Path) -> None:
    code, out, err = watch(line)
    assert (code, out) == (2, "")
    assert says in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written(game: Recording, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        save(game, tmp_path / "nowhere" / "a.html")
