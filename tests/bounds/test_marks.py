"""What `verify` knows to be false, or true only in a domain, has a mark wherever its statement is printed."""

import json
import re

import pytest
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.catalogue.literature import STATEMENTS, TABLE_1, Statement, latex
from pebblesim.claims import CLAIMS, FAILS
from pebblesim.claims.claim import Claim
from pebblesim.cli.main import app
from pebblesim.core.notation import paragraph_in_latex, text_in_latex
from pebblesim.language.problems import PROBLEMS

OF_A_PROOF = {
    "Li et al., Remark 4.7, n ≫ d": "it assumes n ≫ d, but does not need it",
    "Li et al., Theorem E.9, the -1 of Lemma E.6": "its proof, by the -1 of Lemma E.6, needs M ≤ nd/(1 + ε)",
}
"""Claims that judge not a statement but how it is proved, or what it assumes: the note that the statement has."""


def of(claim: Claim) -> Statement | None:
    """The statement that a claim is about: the longest title that its name begins with."""
    name = f"{claim.source}, {claim.name}"
    about = [each for each in STATEMENTS if re.match(rf"{re.escape(each.title)}(?![\w.])", name)]
    return max(about, key=lambda each: len(each.title), default=None)


JUDGED_FALSE = [(claim, each) for claim in CLAIMS if claim.expects == FAILS and (each := of(claim)) is not None]


def printed(*options: str) -> str:
    result = CliRunner().invoke(app, ["theorems", *options], env={"COLUMNS": "10000"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_there_are_some_of_each_source() -> None:
    assert len(JUDGED_FALSE) >= 22
    assert {each.source for _, each in JUDGED_FALSE} >= {"Li et al.", "Saha & Ye", "Dao et al.", "Kwasniewski et al."}


@pytest.mark.parametrize(
    ("claim", "each"), JUDGED_FALSE, ids=[f"{claim.source}, {claim.name}" for claim, _ in JUDGED_FALSE]
)
def test_a_claim_that_fails_marks_its_statement(claim: Claim, each: Statement) -> None:
    name = f"{claim.source}, {claim.name}"
    if name in OF_A_PROOF:
        assert OF_A_PROOF[name] in each.note
        return
    assert each.erratum is not None, f"{each.title} is printed unmarked, and {name} is judged {FAILS}"
    if claim.name == each.name or claim.erratum is None:
        assert claim.erratum == each.erratum


def test_what_is_not_judged_false_has_no_mark() -> None:
    wrong = {each.title for _, each in JUDGED_FALSE}
    assert [each.title for each in STATEMENTS if each.mark and each.title not in wrong] == []


MARKED = [each for each in STATEMENTS if each.erratum is not None]


def test_each_mark_is_printed_as_text() -> None:
    """Theorem 4.1 stood there as if it were true."""
    blocks = {
        block.partition("\n")[0].partition(":")[0]: block for block in re.split(r"\n(?=\S)", printed()) if ": " in block
    }
    for each in STATEMENTS:
        kind = "" if each.erratum is None else f" [{each.erratum.kind}]"
        (block,) = (text for head, text in blocks.items() if head == each.title + kind)
        if each.erratum is not None:
            for part in (each.erratum.kind, each.erratum.instead, each.erratum.survives):
                assert part in block
        assert each.note in block


def test_each_mark_is_in_json() -> None:
    rows = {f"{row['source']}, {row['name']}": row["mark"] for row in json.loads(printed("--json"))["rows"]}
    assert [*rows] == [each.title for each in STATEMENTS]
    for each in STATEMENTS:
        assert bool(rows[each.title]) == (each.erratum is not None)
        if each.erratum is not None:
            assert each.erratum.instead in rows[each.title]


def test_each_mark_is_in_latex() -> None:
    text = printed("--latex")
    assert text.strip() == latex(STATEMENTS) and text.isascii()
    environment, _, items = text.partition(r"\end{align*}")
    lines = {line.strip().partition(" &")[0]: line for line in environment.splitlines()}
    for each in (each for each in MARKED if each.expr):
        assert each.erratum is not None
        assert text_in_latex(f"{each.title} [{each.erratum.kind}]") in lines
        (item,) = (line for line in items.splitlines() if paragraph_in_latex(each.title) in re.split(": |; ", line[8:]))
        assert paragraph_in_latex(each.erratum.instead) in item
    assert latex([each for each in STATEMENTS if each.erratum is None]).count("itemize") == 0


def test_each_mark_is_in_table_1() -> None:
    text, rows = printed("--table-1", "--wide"), json.loads(printed("--table-1", "--json"))["rows"]
    assert "for n ≥ d" in text.splitlines()[0]
    for (_, _, *cells), row in zip(TABLE_1, rows, strict=True):
        for cell, side in zip(cells, ("large_cache", "small_cache"), strict=True):
            assert (row[f"{side}_source"], row[f"{side}_mark"]) == (cell.of.title, cell.of.mark)
            assert (
                (f"{cell.of.title} *" in text) == (f"* {cell.of.title}: {cell.of.mark}" in text) == bool(cell.of.mark)
            )
    marked = sum(bool(cell.of.mark) for *_, large, small in TABLE_1 for cell in (large, small))
    assert printed("--table-1").partition("(--wide adds")[0].count(") *") == marked > 0  # where sources are left out


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", sorted(name for name, each in PROBLEMS.items() if each.theta is not None))
def test_the_bounds_of_a_problem_name_what_is_not_as_printed(name: str) -> None:
    """Θ is the repaired form; its source says what is added and for which sizes, in LaTeX, too, where it was not."""
    solves = PROBLEMS[name]
    sizes = dict(zip(solves.dims, (9, 4, 3), strict=False))
    found = ps.bounds(name, M=50, **sizes)
    assert found.theta is not None
    command = ["bounds", *(f"--size={dim}={size}" for dim, size in sizes.items()), "-M", "50", "-p", name]
    for option in ((), ("--json",), ("--latex",)):
        out = CliRunner().invoke(app, [*command, *option], env={"COLUMNS": "10000"}).stdout
        said = text_in_latex(found.theta.source) if option == ("--latex",) else found.theta.source
        assert said in (json.loads(out)["bound"]["source"] if option == ("--json",) else out)
    about = [each for each in MARKED if each.repaired and found.theta.source.startswith(each.title)]
    assert all(each.expr != found.theta.expr and "for n ≥ d" in found.theta.source for each in about)
