"""`bounds --all`: the table of all theorems has what the page proves, and says where each holds as the bounds do."""

import json
import re
from typing import Any

import pytest
from checkout import ROOT
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.claims.theorems import Theorem, latex, theorems
from pebblesim.cli.main import app
from pebblesim.core.errors import UsageError
from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import LowerBound

PAGE = (ROOT / "docs" / "lower-bounds.md").read_text(encoding="utf-8")
ROWS = theorems()


def test_each_theorem_that_the_page_states_is_in_the_table_and_no_other() -> None:
    section = PAGE.partition("## 4. The bounds")[2].partition("\n## 5.")[0]
    stated = set(re.findall(r"^(?:- )?(?:<a id=.*?</a>)?\*\*([A-Z]\d?[a-z]?)\*\*", section, re.MULTILINE))
    assert stated == {each.name for each in ROWS}


def test_the_address_that_bounds_prints_leads_to_the_theorem() -> None:
    for solves in ("forward", "backward", "backward-qkv"):
        printed = CliRunner().invoke(app, ["bounds", solves, "-n", "400", "-d", "4", "-M", "16"]).output
        addresses = re.findall(r"^(\w+): .*\(docs/lower-bounds\.md#(\w+)\)", printed, re.MULTILINE)
        assert {name for name, _ in addresses} == {each.name for each in ROWS if each.problem == solves}
        for name, anchor in addresses:
            assert f'<a id="{anchor}"></a>**{name}**' in PAGE
        assert f"pebblesim bounds {solves} --all" in printed


def test_a_bound_with_the_closed_form_of_another_says_where_it_goes_on() -> None:
    printed = CliRunner().invoke(app, ["bounds", "forward", "-n", "4096", "-d", "64", "-M", "8192", "--wide"]).output
    (line,) = re.findall(r"^C2w: .*", printed, re.MULTILINE)
    assert "; for M ≤ 4·d² the same as C2, by another proof, and " in line
    beyond = ps.bounds("forward", n=4096, d=64, M=5 * 64**2)
    (further,) = (one.form for one in beyond.lower if one.name == "C2w" and one.form)
    assert line.endswith(f"{further.expr} for {further.domain}")
    (apart,) = (one.why_not for one in beyond.lower if one.name == "C2")
    assert apart
    assert "the same as" not in printed.replace(line, "")


def _bound(each: Theorem, mask: str | None, **sizes: int) -> list[LowerBound]:
    """Its bounds for its ways; if a problem has several ways, those that are not proved are left out."""
    arguments: dict[str, Any] = {"mask": mask, **sizes}
    found = ps.bounds(each.problem, M=16, **arguments).lower
    ways = set(each.ways)
    return [one for one in found if one.name == each.name and (not one.way or not ways or one.way in ways)]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("each", ROWS, ids=lambda each: f"{each.problem}-{each.name}")
def test_where_a_theorem_is_said_to_hold_it_does(each: Theorem) -> None:
    """At other sizes than those that the table is made from, and by why it does not apply, in words."""
    refused = "proved where|proved for"
    if each.masks is not None:
        under = _bound(each, "window:9", n=400, d=4)
        assert (bool(under) and all(not re.search(refused, one.why_not) for one in under)) == each.masks
    if each.rectangles is not None:
        view = PROBLEMS[each.problem].rectangle
        assert view is not None
        widths = {"d": 7, "d_k": 6, "d_v": 5, "d_r": 3, "n_q": 400, "n_k": 370}
        apart = _bound(each, None, **{dim: widths[dim] for dim in view.dims})
        assert (bool(apart) and all(not re.search(refused, one.why_not) for one in apart)) == each.rectangles


@pytest.mark.one_in(3)
def test_the_table_in_json_and_latex() -> None:
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["bounds", "--all", "--json"]).output)["theorems"]
    assert len(rows) == len(ROWS) and {row["theorem"] for row in rows} == {each.name for each in ROWS}
    (row,) = [row for row in rows if row["theorem"] == "C5" and row["problem"] == "forward"]
    assert (row["rectangles"], row["masks"], row["evidence"]["theorem"]) == (False, False, "C5")
    text = runner.invoke(app, ["bounds", "--all", "--problem", "forward", "--latex"]).output
    assert text.strip() == latex(each for each in ROWS if each.problem == "forward")
    lines = [line for line in text.splitlines() if " & " in line]
    assert len(lines) == 1 + sum(each.problem == "forward" for each in ROWS)
    assert all(len(line.split(" & ")) == 7 and line.count("$") % 2 == 0 for line in lines)
    table = runner.invoke(app, ["bounds", "--all", "--wide", "--problem", "matmul"]).output
    assert re.search(r"50 counts, I/O at least 1\.00\d of it", table) and "k² ≤ M" in table


def test_sizes_beside_all_are_refused() -> None:
    with pytest.raises(UsageError, match="leave out n, M"):
        CliRunner().invoke(app, ["bounds", "--all", "-n", "64", "-M", "9"], catch_exceptions=False)
