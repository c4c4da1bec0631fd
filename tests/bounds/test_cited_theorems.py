"""One theorem for a paper: `pebblesim theorems NAME`, and the closed forms of `bounds --latex` without sizes."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.catalogue.literature import STATEMENTS
from pebblesim.claims.cited import cited
from pebblesim.claims.theorems import theorems
from pebblesim.cli.main import app
from pebblesim.core.errors import UnknownName, UsageError


def printed(command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "10000"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.one_in(2)
def test_one_of_ours_has_statement_domain_proof_and_an_entry() -> None:
    text = printed("theorems C2w --latex")
    assert text.isascii()
    assert text.count(r"\begin{theorem}[C2w~\cite{pebblesim}]") == text.count(r"\end{theorem}") > 1
    assert text.count("@misc{pebblesim,") == 1
    assert r"docs/lower-bounds.md \S{}4, C2w" in text and r"\frac{4 d^{2} n^{2}}{M}" in text
    (row,) = (row for row in theorems() if (row.name, row.problem) == ("C2w", "forward"))
    assert "every mask" in row.domain and row.domain.split(";")[0].replace("_", r"\_") in text


def test_one_of_the_literature_says_what_is_wrong_with_it() -> None:
    text = printed("theorems 'Theorem 4.1' --latex")
    assert text.isascii() and "\n  false; instead: for M" in text and "eprint = {2410.09397}" in text
    data = json.loads(printed("theorems 'Theorem 4.1' --json"))
    (one,) = data["statements"]
    assert one["mark"].startswith("false; instead:") and one["bibtex"].startswith("@misc{li,")


@pytest.mark.parametrize("title", [each.title for each in STATEMENTS])
def test_each_statement_is_found_and_braces_close(title: str) -> None:
    (one,) = cited(title)
    for text in (one.latex, one.bibtex):
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}") and one.latex.isascii()


def test_an_unknown_name_gets_one_sentence() -> None:
    with pytest.raises(UnknownName, match="no theorem is called 'E99'; "):
        cited("E99")
    result = CliRunner().invoke(app, ["theorems", "E8", "--table-1"])
    assert isinstance(result.exception, UsageError) and "leave out the name" in str(result.exception)


def test_closed_forms_need_no_sizes() -> None:
    with_sizes = ps.bounds("backward", M=1, n=4096, d=64).latex()
    assert printed("bounds --latex").strip() == with_sizes
    assert r"\mathrm{IO}_{\text{D3}} & \ge" in with_sizes and "Q_" not in with_sizes
