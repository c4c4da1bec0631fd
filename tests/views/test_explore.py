"""The page of `explore`: in node its numbers equal Python's at random sizes; the whole page in a browser, offline."""

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli import main as cli
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.language.problems import problem
from pebblesim.language.registry import get
from pebblesim.views.document import in_javascript, scripts
from pebblesim.views.explore import PROBLEMS, page, save
from pebblesim.views.explore.content import data

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script by itself")

COUNT = """
console.log(JSON.stringify(given.map(({ problem: name, schedule, view }) => {
  const problem = DATA.problems.find((each) => each.name === name);
  const schedules = problem.schedules.filter((each) => each.name === schedule);
  const counts = new Counts({ ...problem, schedules }, view);
  if (!counts.at.length) return "takes no mask";
  const row = counts.row(0, view.M);
  return row && { words: String(row.words), blocks: row.blocks, bound: String(counts.bound(view.M).value) };
})));
"""


def in_node(content: dict[str, Any], script: str, given: Any) -> Any:
    """The output, as JSON, of a script that knows the page's data and arithmetic; `given` is its input."""
    known = f"const DATA = {in_javascript(content)}, given = {json.dumps(given)};"
    whole = "\n".join((scripts("explore", "exact.js", "blocks.js", "counts.js"), known, script))
    ran = subprocess.run(["node", "-"], input=whole, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


def drawn(content: dict[str, Any], number: int, seed: int, top: float) -> list[dict[str, Any]]:
    """Points at random: ragged, of size 1, with few queries or keys, M below what fits, shared heads."""
    rng = random.Random(seed)

    def size(bits: float) -> int:
        return int(2 ** rng.uniform(0, bits))

    points = []
    for _ in range(number):
        chosen = rng.choice(content["problems"])
        name, schedule = chosen["name"], rng.choice(chosen["schedules"])["name"]
        queries = size(top)
        keys = queries if rng.random() < 0.5 else size(top)
        kv_heads = rng.choice([1, 1, 2])
        heads = kv_heads * (1 if name == "backward" else rng.choice([1, 1, 4]))
        masked = queries <= keys and rng.random() < 0.4
        window = {"window": size(top)} if masked and queries == keys and rng.random() < 0.6 else {}
        sizes = {"queries": queries, "keys": keys, "d": size(8), "heads": heads, "kvHeads": kv_heads}
        view = {**sizes, "masked": masked, **window, "M": size(22)}
        points.append({"problem": name, "schedule": schedule, "view": view})
    return points


def dims_of(point: dict[str, Any]) -> dict[str, int]:
    view, own = point["view"], problem(point["problem"])
    if view["queries"] == view["keys"]:
        return {"n": view["queries"], "d": view["d"]}
    rectangle = own.rectangle
    assert rectangle is not None
    return {dim: {"n_q": view["queries"], "n_k": view["keys"]}.get(dim, view["d"]) for dim in rectangle.dims}


def mask_of(view: dict[str, Any]) -> str:
    return f"window:{view['window']}" if "window" in view else "causal"


def counted(point: dict[str, Any]) -> Any:
    """What the page must say of a point, by `count`; None if M is too small, a sentence if it takes no mask."""
    view = point["view"]
    shared = {"kv_heads": view["kvHeads"]} if point["problem"] != "backward" else {}
    given: dict[str, Any] = {"M": view["M"], "heads": view["heads"], "blocks": "best", **shared, **dims_of(point)}
    try:
        row = ps.count(point["schedule"], **given)
        if view["masked"]:
            row = ps.count(point["schedule"], mask=mask_of(view), **{**given, "blocks": dict(row.blocks)})
    except Infeasible:
        return None
    except UsageError as error:
        assert view["masked"], error
        return "takes no mask"
    return {"words": str(row.io * row.heads.times), "blocks": dict(row.blocks)}


def bound_of(point: dict[str, Any]) -> tuple[int, int]:
    """The lower bound on all heads at a point, by `bounds`, and the number of problems that it is the sum of."""
    view = point["view"]
    shared = {"kv_heads": view["kvHeads"]} if point["problem"] != "backward" else {}
    mask = {"mask": mask_of(view)} if view["masked"] else {}
    bounds = ps.bounds(point["problem"], M=view["M"], heads=view["heads"], **shared, **mask, **dims_of(point))
    return bounds.best.value * bounds.times, bounds.times


def compare(content: dict[str, Any], points: list[dict[str, Any]]) -> int:
    """Compare node with Python at all points; return the number of those with a count."""
    compared = 0
    for point, here in zip(points, in_node(content, COUNT, points), strict=True):
        expected = counted(point)
        if not isinstance(expected, dict) or not isinstance(here, dict):
            left_out = point["view"]["masked"] and here == "takes no mask"
            if left_out and (expected is None or not get(point["schedule"]).alike):
                continue  # M is too small, too; or it has a first part, which the page counts under no mask
            assert here == expected, point
            continue
        bound = int(here.pop("bound"))
        assert here == expected, point
        best, times = bound_of(point)
        assert 0 < bound <= best, point
        assert bound % times == 0, point
        compared += 1
    return compared


@pytest.mark.one_in(4)
@needs_node
def test_the_page_counts_as_python_does() -> None:
    content = data(["forward"])
    windows = [point for point in drawn(content, 400, seed=3, top=7) if "window" in point["view"]]
    assert compare(content, [*drawn(content, 50, seed=1, top=11), *windows[:30]]) > 40


@pytest.mark.slow
@needs_node
def test_the_page_counts_as_python_does_at_other_points_each_time() -> None:
    """So many as take half a minute; a point at which they differ is in the message."""
    content = data(PROBLEMS)
    assert compare(content, drawn(content, 1_500, seed=random.randrange(2**32), top=13)) > 800  # the others fit nowhere


@pytest.mark.one_in(4)
def test_the_page_leaves_out_what_it_cannot_choose_blocks_for() -> None:
    (forward,) = data(["forward"])["problems"]
    in_rows = {"small-cache-forward-in-rows", "scores-stored-in-rows"}
    assert {*forward["leftOut"]} == in_rows | {"first-rows-by-columns", "first-rows-keys-stay"}
    assert {*forward["leftOut"]} | {each["name"] for each in forward["schedules"]} == {
        each.name for each in ps.list("forward")["forward"]
    }


# -- the command and the page ------------------------------------------------------------------------------------------


def test_a_problem_without_queries_and_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="problem 'matmul' has no queries and keys; the page is for attention"):
        save(tmp_path / "page.html", ["matmul"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("look", [{"width": 1280, "height": 900}, {"width": 360, "height": 740}])
def test_the_page_answers_offline_on_a_desk_and_on_a_phone(look: dict[str, int], offline: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert CliRunner().invoke(cli.app, ["explore", "forward", "-o", str(path)]).exit_code == 0
    window = offline(viewport=look)
    tab = window.new_page()

    def finished() -> None:
        for _ in range(600):
            if tab.evaluate("Boolean(page.changes)"):
                return
            tab.wait_for_timeout(100)
        raise AssertionError("the page still counts after a minute")

    view = "problem=forward&queries=512&keys=512&d=32&heads=8&kvHeads=2&M=4096"
    tab.goto(f"{path.as_uri()}#{view}")
    finished()
    left_out = data(["forward"])["problems"][0]["leftOut"]
    rows = ps.compare("forward", n=512, d=32, M=4096, heads=8, kv_heads=2, blocks="best").rows
    best = next(row for row in rows if row.schedule not in left_out)
    assert best.schedule in tab.inner_text("#answer")
    assert f"{best.io * 2:,}" in tab.inner_text("#answer")
    assert tab.evaluate("document.documentElement.scrollWidth") <= look["width"]  # nothing has to be scrolled sideways
    assert tab.evaluate("document.querySelectorAll('#chart path').length") >= 15

    tab.fill("#M", "8k")
    assert "M=8192" in tab.evaluate("location.hash")
    tab.select_option("#card", "H100")
    assert "M=116224" in tab.evaluate("location.hash")
    assert "H100: a block's shared memory" in tab.inner_html("#chart")
    tab.select_option("#mask", "window")
    tab.fill("#window", "100")
    finished()
    windowed = ps.compare("forward", n=512, d=32, M=116_224, heads=8, kv_heads=2, mask="window:100")
    assert "mask=window&window=100" in tab.evaluate("location.hash").replace("%3A", ":")
    assert "--mask window:100" in tab.inner_text("#one-facts")
    assert any(f"{row.io * 2:,}" in tab.inner_text("#rows") for row in windowed.rows)
    tab.select_option("#mask", "")
    tab.fill("#M", "227KiB")
    assert "M=116224" in tab.evaluate("location.hash") and not tab.inner_text("#wrong")  # of two bytes each
    for typed in ("227Ki", "1KiB 2", "nan", "-4", "2^9999", ""):
        tab.fill("#M", typed)
        assert tab.inner_text("#wrong").startswith("cache: a whole number, 1 or more;")
        assert "NaN" not in tab.evaluate("location.hash") and "M=116224" in tab.evaluate("location.hash")
    tab.fill("#M", "8192")
    assert "M=8192" in tab.evaluate("location.hash") and not tab.inner_text("#wrong")
    spoilt = window.new_page()
    spoilt.goto(f"{path.as_uri()}#problem=forward&queries=NaN&d=0&heads=1e400&M=NaN")
    assert "moves the fewest words" in spoilt.inner_text("#answer")
    spoilt.close()
    tab.fill("#queries", "0.5")
    assert tab.inner_text("#wrong") == "queries: a whole number, 1 or more; 64k, 1M and 2^20 are understood."
    tab.fill("#queries", "2^8")
    finished()
    shown, here = tab.inner_text("#rows"), tab.evaluate("location.hash")
    again = window.new_page()
    again.goto(f"{path.as_uri()}{here}")
    assert again.inner_text("#rows") == shown


@pytest.mark.slow
def test_a_winner_that_needs_a_table_says_so(browser: Any, tmp_path: Path) -> None:
    """It was named the winner as if the forward pass kept the probabilities for nothing."""
    save(tmp_path / "page.html", ["backward-qkv"])
    tab = browser.new_page()
    tab.goto(f"{(tmp_path / 'page.html').as_uri()}#problem=backward-qkv&queries=8192&keys=8192&d=512&M=116224")
    rows = ps.compare("backward-qkv", n=8192, d=512, M=116_224, blocks="best").rows
    assert rows[0].schedule == "kept-dS-stored"
    other = next(row for row in rows if "P" not in get(row.schedule).kept)
    said = tab.inner_text("#answer")
    assert "It reads P, the matrix of probabilities, saved by the forward pass" in said
    assert f"Of the schedules that do not need P, {other.schedule} moves the fewest: {other.io:,}." in said
    tab.fill("#d", "64")
    assert "It reads P" not in tab.inner_text("#answer")
    tab.close()


@pytest.mark.parametrize(
    ("line", "view"),
    [
        ("explore forward", ""),
        (
            "explore forward -n 8k -d 128 -M 227KiB --dtype bf16",
            "problem=forward&queries=8192&keys=8192&d=128&M=116224&type=bfloat16",
        ),
        ("explore -M 64k", "problem=forward&M=65536"),
    ],
)
def test_the_page_opens_with_the_sizes_that_were_given(
    line: str, view: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pebblesim.views.explore.data", lambda names: {"problems": [], "types": {}})
    path = tmp_path / "page.html"
    assert CliRunner().invoke(cli.app, [*line.split(), "-o", str(path)]).exit_code == 0
    assert f'"view":{json.dumps(view)}' in path.read_text(encoding="utf-8")


def test_the_page_is_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebblesim.views.explore.data", lambda names: {"problems": [], "types": {}})
    made = page()
    assert "default-src 'none'" in made
    assert not re.search(r"(?:src|href)=\"(?!data:)", made)
