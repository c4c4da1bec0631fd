"""Results as plain data, as tables of pandas, as pictures, and in sympy and LaTeX."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sympy
from checkout import ROOT

import pebblesim as ps
from pebblesim.catalogue.literature import STATEMENTS, latex, statement
from pebblesim.core.errors import UsageError
from pebblesim.core.notation import domain_in_latex, text_in_latex
from pebblesim.language.problems import PROBLEMS

SMALL: dict[str, int] = {"n": 16, "d": 4, "M": 200}


@cache
def results() -> dict[str, ps.Result]:
    """One result of each kind that costs nothing."""
    return {
        "count": ps.count("small-cache", **SMALL),
        "compare": ps.compare(schedules=["small-cache", "large-cache"], **SMALL),
        "bounds": ps.bounds("backward", **SMALL),
        "gaps": ps.gaps("backward", n=16, d=4, M=[100, 200]),
        "crossover": ps.crossover("small-cache", "large-cache", n=16, d=4, over_d=()),
        "cache": ps.cache("small-cache", n=8, d=4, M=[40]),
        "list": ps.list("linear"),
        "play": ps.play("small-cache", n=4, d=2, M=40),
        "formula": ps.formula("small-cache"),
        "glossary": ps.glossary("matmul"),
        "pebble": ps.pebble(ps.generate("fft", n=4), M=12, seconds=0),
        "optimum": ps.optimum("fft", n=4, M=12),
        "sweep": ps.sweep("small-cache", what="formula", n=[8, 16], d=4, blocks={"B": 2}),
    }


DRAWN = ("count", "compare", "bounds", "gaps", "crossover", "cache", "play", "pebble", "optimum")
NAMES = (*DRAWN, "list", "formula", "glossary", "sweep")
ROWS = {"compare": 2, "gaps": 2, "list": 2, "sweep": 2, "glossary": 3}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_plain_data_and_a_frame(name: str) -> None:
    pytest.importorskip("pandas")
    result = results()[name]
    assert isinstance(json.loads(json.dumps(result.to_dict())), dict)
    frame = result.to_frame()
    assert len(frame) == ROWS.get(name, 1)
    assert len(frame.columns) > 1


@pytest.mark.parametrize("name", NAMES)
def test_a_result_prints_for_people(name: str) -> None:
    text = str(results()[name])
    assert type(results()[name]).__name__ + "(" not in text
    assert len(text.splitlines()) > 1


def test_gaps_print_as_the_command_does_and_take_one_m() -> None:
    one = ps.gaps("backward", n=16, d=4, M=200)
    assert ps.gaps("backward", n=16, d=4, M=100).rows[0].io == ps.count("regrouped", n=16, d=4, M=100).io == 896
    assert [row.M for row in one.rows] == [200]
    (row,) = one.rows
    line = f"{row.schedule}  200  {row.io:,}  {row.every_way.value:>11,}  {row.gap:.3f}"
    assert line in str(one)
    assert f"largest gap: {row.gap:.3f} at M = 200 ({row.schedule})" in str(one)


def test_a_frame_holds_the_very_numbers() -> None:
    pytest.importorskip("pandas")
    big = ps.count("small-cache", n=2**40, d=64, M=2**20)
    frame = big.to_frame()
    assert int(frame["io"][0]) == big.io > 2**64
    assert int(frame["work.mul"][0]) == big.work["mul"]
    frame = results()["compare"].to_frame()
    assert [*frame["schedule"]] == [row.schedule for row in results()["compare"]]  # type: ignore[attr-defined]


def test_without_pandas_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="to_frame\\(\\) needs pandas: pip install pandas;"):
        results()["count"].to_frame()


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", DRAWN)
def test_a_result_draws_itself(name: str) -> None:
    figure = results()[name].plot()
    assert figure.axes
    assert any(ax.get_xlabel() for ax in figure.axes)
    figure.draw_without_rendering()


def test_what_has_no_picture_says_what_has() -> None:
    with pytest.raises(UsageError, match=r"results such as Listing; there are some of Bounds, CacheTable, Comp"):
        results()["list"].plot()
    nothing = ps.compare(schedules=["small-cache"], n=16, d=4, M=5)
    with pytest.raises(UsageError, match="no schedule fits in M = 5 words"):
        nothing.plot()


# -- sympy -----------------------------------------------------------------------------------------------------------


def test_bounds_and_theorems_are_expressions_of_sympy() -> None:
    n, d, M = sympy.symbols("n d M")
    found = ps.bounds("backward", n=4096, d=64, M=16384)
    assert found.theta is not None
    assert found.theta.sympy == d * n + sympy.Min(d**2 * n**2 / M, d * n**2 / sympy.sqrt(M))
    for bound in found.lower:
        if bound.form is not None:
            value = bound.form.sympy.subs({n: 4096, d: 64, M: 16384})
            assert value <= bound.value
    assert statement("Li et al., Lemma C.9").sympy == n**2 / sympy.sqrt(M)
    assert statement("Li et al., Lemma E.6").sympy is None


# -- LaTeX -----------------------------------------------------------------------------------------------------------


def in_latex() -> str:
    formulas = [ps.formula("small-cache"), ps.formula("flash2-backward", "any"), ps.formula("flash2-forward", "causal")]
    gaps, bounds = results()["gaps"], ps.bounds("forward", n_q=5, n_k=9, d_k=3, d_v=2, M=99)
    return "\n".join([*(each.latex() for each in (*formulas, results()["bounds"], bounds, gaps)), latex(STATEMENTS)])  # type: ignore[attr-defined]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_bounds_of_every_problem_in_latex(name: str) -> None:
    """In sizes of the problem, nothing is divided by 1, and no form is for no M at all."""
    square = PROBLEMS[name]
    for problem in (square, square.rectangle or square):
        sizes = dict(zip(problem.dims, (5, 7, 3, 2, 4), strict=False))
        found = ps.bounds(name, M=99, **sizes)
        text = found.latex()
        forms = " ".join(f"{form.expr}; {form.domain};" for bound in found.lower for form in bound.forms)
        assert re.search(r"(?<![\d/])1·|/1\b|≤ 0·", forms) is None
        for symbol in re.findall(r"[a-zA-Z]+_\{[^}]*\}", re.sub(r"\\[a-z]+(\{[^}]*\})?|Q_\{[^&]*&", " ", text)):
            assert symbol.replace("{", "").replace("}", "") in sizes


def test_latex_has_no_signs_that_latex_does_not_know() -> None:
    text = in_latex()
    assert text.isascii()
    assert text.count("{") == text.count("}")
    assert text.count(r"\begin{align*}") == text.count(r"\end{align*}") == 6
    assert text.count(r"\begin{tabular}") == 1
    assert [each.title for each in STATEMENTS if each.expr and text_in_latex(each.title)[:-1] not in text] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    head = r"\documentclass{article}\usepackage{amsmath}\begin{document}"
    (tmp_path / "all.tex").write_text(f"{head}\n{in_latex()}\n\\end{{document}}\n", encoding="ascii")
    run: Any = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:]


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        ("4·d² ≤ M", r"4 d^{2} \le M"),
        ("M ≤ 4·min(n, d)²", r"M \le 4 \min\left(d, n\right)^{2}"),
        ("256/81·d² ≤ M ≤ 128/27·d²", r"\frac{256 d^{2}}{81} \le M \le \frac{128 d^{2}}{27}"),
        ("M >= d**2, M <= n*d", r"M \ge d^{2},\ M \le d n"),
        ("every M", r"\text{every M}"),
    ],
)
def test_domains_in_latex(domain: str, said: str) -> None:
    assert domain_in_latex(domain) == said


def test_words_in_latex() -> None:
    assert text_in_latex("g = A1ᵀ p A2 & 5 %") == r"\text{g = A1$^{\top}$ p A2 \& 5 \%}"


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_type_checker_refuses_a_name_that_there_is_not(tmp_path: Path) -> None:
    asks = tmp_path / "asks.py"
    asks.write_text("import pebblesim as ps\nps.count('small-cache', n=8, d=4, M=24)\nps.cuont('small-cache')\n")
    settings = {**os.environ, "MYPYPATH": str(ROOT)}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", str(asks)]
    run = subprocess.run(command, env=settings, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.findall(r'asks.py:(\d+): error: Module has no attribute "cuont"', run.stdout) == ["3"], run.stdout
