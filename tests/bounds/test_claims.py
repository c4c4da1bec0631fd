"""`verify`: what it states is what it finds, its evidence can be run again, and a broken schedule makes it fail."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import strategies
from checkout import ROOT
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import pebblesim as ps
import pebblesim.claims
from pebblesim.catalogue.literature import (
    FALSE,
    FALSE_FOR_GIVEN,
    MISPRINT,
    OUTSIDE,
    SOURCES,
    STATEMENTS,
    TABLE_1,
    UNCLEAR,
    statement,
)
from pebblesim.claims import (
    AGREES,
    COMPUTED,
    FAILS,
    HOLDS,
    PROVED,
    UNDECIDED,
    JudgedClaim,
    Report,
    _judged,
    games,
    verify,
)
from pebblesim.claims.claim import CLAIMS, Claim, Effort, Finding, decided, deciding, refuted, tried
from pebblesim.claims.sparse import (
    diagonal_game,
    one_per_row_game,
    rank_one_game,
    sparse_backward_game,
    sparse_forward_game,
)
from pebblesim.cli.main import app
from pebblesim.core.errors import UsageError
from pebblesim.language import exp
from pebblesim.language.registry import SCHEDULES, Schedule, get
from pebblesim.schedules.matmul import gemm

VERDICTS = (PROVED, HOLDS, AGREES, COMPUTED, FAILS)
NOT_JUDGED = {  # statements that no claim is about, and why
    "Li et al., Lemma E.6": "Hong & Kung's Lemma 3.1",
    "Saha & Ye, Theorem 4.8": "about any way to multiply, which no graph is for",
    "Dao et al., Proposition 4": "about block-sparse masks, see the tests of masks",
    "Hong & Kung, Lemma 3.1": "about any graph, see the optimum on small ones",
}


class Little(Effort):
    """Half the draws of a quick `verify`, of a quarter of each problem's schedules; the full profile has all."""

    def draws(self, quick: int, full: int) -> int:
        return max(1, quick // 2)

    def among(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        chosen = super().among(schedules)
        problems = dict.fromkeys(each.problem.name for each in chosen)
        return [each for name in problems for each in [one for one in chosen if one.problem.name == name][::4]]


LONG = {
    "lower bounds ≤ optimum ≤ counts",
    "lower bounds ≤ counts",
    "lower bounds ≤ counts, far out",
    "game = count = closed form",
    "crossing of the algorithms",
    "blocks in closed form",
}
"""Claims that take long, of which most try at random what other tests try, too."""


@cache
def judged(number: int) -> JudgedClaim:
    return _judged(CLAIMS[number], strategies.amount(Little(), Effort()))


@pytest.fixture(scope="module")
def report() -> Report:
    """Every claim judged; by default without those that take long."""
    short = [number for number, claim in enumerate(CLAIMS) if claim.name not in LONG]
    return Report(tuple(map(judged, strategies.amount(short, list(range(len(CLAIMS)))))))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=f"{claim.source}, {claim.name}", marks=[pytest.mark.slow] * (claim.name in LONG))
        for number, claim in enumerate(CLAIMS)
    ],
)
def test_nothing_contradicts_what_is_stated(number: int) -> None:
    row = judged(number)
    assert row.agrees, f"{row.status}, {row.evidence}"
    assert row.evidence


def test_all_verdicts_are_there(report: Report) -> None:
    assert report.failed == 0
    assert {PROVED, HOLDS, COMPUTED, FAILS} <= {row.status for row in report.rows} <= {*VERDICTS}


def test_the_errata_are_current(report: Report) -> None:
    """After a change that is meant: .venv/bin/pebblesim verify --errata docs/ERRATA.md"""
    page = (ROOT / "docs" / "ERRATA.md").read_text(encoding="utf-8")
    assert page == report.errata
    for name in ("Lemma C.9", "Theorem D.5", "Theorem 4.5", "Theorem 1.1", "Lemma F.2", "Theorem E.10, proof"):
        assert f"{name}\n" in page or f"{name}, " in page


def test_an_erratum_fails_and_nothing_else(report: Report) -> None:
    for row in report.rows:
        assert (row.status == FAILS) == bool(row.claim.erratum), row.claim.name
        if row.claim.erratum:
            assert row.claim.erratum.kind in (FALSE, OUTSIDE, UNCLEAR, MISPRINT, FALSE_FOR_GIVEN)
            assert row.claim.erratum.survives and row.claim.erratum.matters


def test_what_the_paper_says_itself_is_no_erratum(report: Report) -> None:
    """Lemma D.2 holds, Remark 5.1 calls its bound loose, Table 1 is for n ≥ d, and masks are not in the paper."""
    status = {(row.claim.source, row.claim.name): row.status for row in report.rows}
    for name in ("Lemma D.2", "Remark 5.1", "Remark 5.1, linear attention"):
        assert status["Li et al.", name] == PROVED
    assert status["Li et al.", "Theorem 1.2, dense"] == COMPUTED
    assert ("ours", "masks as sparsity") in status and ("Li et al.", "Theorem 1.2, masks") not in status
    domains = {each.name: each.domain for each in STATEMENTS if each.source == "Li et al."}
    assert domains["Lemma D.4"] == domains["Theorem D.5"] == "M >= d**2, M <= n*d"
    assert all(domains[f"Lemma C.{k}"] == "M <= d**2" for k in (5, 7, 9, 11))


def test_the_errata_are_fair_to_their_authors(report: Report) -> None:
    """A step that main results rest on is no misprint, and a step is judged with all that its lemma gives it."""
    errata = {row.claim.name: row for row in report.rows if row.claim.erratum}
    for row in errata.values():
        assert row.claim.erratum
        if row.claim.erratum.kind in (MISPRINT, UNCLEAR):
            assert row.claim.erratum.matters.startswith("no"), row.claim.name
    assert "(Z_A + Z_X)**2/M" in errata["Lemma F.2, minimum of sums"].evidence
    # Lemma F.1 has a source that proves it for the worst operands; what was derived from it has none.
    assert errata["Lemma F.1"].claim.erratum.kind == UNCLEAR and "any operands given" in errata["Lemma F.1"].claim.says
    for name in ("Lemma F.2", "Theorem F.3", "Theorem F.4", "Theorem 4.5", "Theorem 1.2"):
        assert errata[name].claim.erratum.kind == FALSE_FOR_GIVEN and "open" in errata[name].claim.erratum.instead
        # A game without a softmax comes first: whether a softmax may be over nonzeros is a matter of reading.
        assert "sparse.one_per_row_game(" in "".join(errata[name].evidence.splitlines()[:2])
    # What the paper does not state is no erratum of it, and a lemma is not to blame for its use.
    assert not any(name.startswith(("Theorem 1.1, inputs", "Lemma E.6")) for name in errata)


@pytest.mark.parametrize(("n", "d"), [(16, 16), (24, 9), (20, 20)])
def test_products_of_nonzeros_bound_one_product_only(n: int, d: int) -> None:
    """A1 X is made again for each key from a column and a row; each entry of A1 X A2ᵀ costs two words."""
    M = 2 * d + 5
    game = rank_one_game(n, d, M)
    assert game.complete and game.peak_red == M - 1
    assert game.io == d + n * d + 2 * n * n
    assert game.io < 2 * (n * d + n * n * d) / M**0.5 - M


def test_a_proof_has_no_conditions_left_out(report: Report) -> None:
    """At M = d² + 6d + 5 Algorithm 9 moves 29 to 8204 times what was PROVED of it for M ≥ d²."""
    for row in report.rows:
        assert "given" not in row.evidence
        if row.claim.name in ("Theorem 4.1, repaired", "Lemma D.4, repaired", "Theorem D.5, repaired"):
            assert row.status == PROVED and "M ≥ (1 + 1/1000)d²" in row.claim.says
    assert "8204 times" in next(row.evidence for row in report.rows if row.claim.name == "Theorem D.5, at the edge")


def test_what_rests_on_a_written_proof_names_it(report: Report) -> None:
    """A bound of the literature that follows from one of ours is PROVED given ours; a closed form needs none."""
    given = {row.claim.name: row.given for row in report.rows if row.given}
    for name, bound in (("Theorem E.9", "D3"), ("Lemma 3.4", "C1"), ("Lemma E.8", "B")):
        assert given[name] is not None and bound in given[name].names, name
    for row in report.rows:
        if "ower bound" in row.claim.name and row.status == PROVED:
            assert row.given, row.claim.name
        if row.claim.name in ("Theorem C.12, repaired", "Table 1, upper bounds", "Theorem D.5, as printed"):
            assert (row.status, row.given, row.verdict) == (PROVED, None, PROVED)
    text, page = str(report), (ROOT / "docs" / "lower-bounds.md").read_text(encoding="utf-8")
    assert f"PROVED given {given['Theorem E.10']}: Li et al., Theorem E.10" in text
    for proofs in given.values():
        assert f"\n## {proofs.section}." in page
        section = page.partition(f"\n## {proofs.section}.")[2].partition("\n## ")[0]
        assert all(f"**{name}**" in section or f"**{name.capitalize()}" in section for name in proofs.names)


def test_every_statement_is_judged() -> None:
    names = {f"{claim.source}, {claim.name}" for claim in CLAIMS}
    missing = [each.title for each in STATEMENTS if not any(name.startswith(each.title) for name in names)]
    assert set(missing) == set(NOT_JUDGED)


@pytest.mark.parametrize("name", ["C.9", "D.5", "1.1", "F.3", "words of"])
def test_evidence_can_be_run_again(report: Report, name: str) -> None:
    rows = [row for row in report.rows if name in row.claim.name]
    assert rows
    for row in rows:
        for line in row.evidence.split("\n"):
            text, arrow, value = line.partition(" → ")
            if arrow and text.startswith("ps."):
                again = eval(text, {"ps": ps})
                assert str(again).partition("\n")[0] == re.split(", legal and|, [0-9]+ times", value)[0]


def broken(m, A1, A2, A3, dO, X, Y, *, B):  # type: ignore[no-untyped-def]
    """Algorithm 6, but the phase of p reads each tile of q once more."""
    n, d = A1.shape
    S, h, T = m.tensor("S", n, d), m.tensor("h", n, d), m.tensor("T", d, n)
    A, f, q, p = (m.tensor(name, n, n) for name in ("A", "f", "q", "p"))
    g = m.tensor("g", d, d)
    with m.phase("f"):
        gemm(m, S, A1, X, B)
        for i in m.tiles(n, B):
            l = m.zeros(i)
            for j in m.tiles(n, B):
                A_ij = m.zeros(i, j)
                for k in m.tiles(d, B):
                    A_ij += m.read(S[i, k]) @ m.read(A2[j, k]).T
                A_ij[:] = exp(A_ij)
                m.write(A[i, j], A_ij)
                l += ps.rowsum(A_ij)
            for j in m.tiles(n, B):
                A_ij = m.read(A[i, j])
                m.write(f[i, j], m.compute(A_ij / l))
    with m.phase("q"):
        gemm(m, h, A3, Y, B)
        gemm(m, q, dO, h, B, B_T=True)
    with m.phase("p"):
        for i in m.tiles(n, B):
            v = m.zeros(i)
            for j in m.tiles(n, B):
                m.delete(m.read(q[i, j]))
                f_ij, q_ij = m.read(f[i, j]), m.read(q[i, j])
                v += ps.rowsum(f_ij * q_ij)
            for j in m.tiles(n, B):
                f_ij, q_ij = m.read(f[i, j]), m.read(q[i, j])
                m.write(p[i, j], m.compute(f_ij * q_ij - v * f_ij))
    with m.phase("g"):
        gemm(m, T, A1, p, B, A_T=True)
        gemm(m, g, T, A2, B)


def test_a_broken_schedule_makes_verify_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still computes the gradient, and it is still O((n²d + nd²)/√M): but it moves n² words more than is stated."""
    honest = get("small-cache")
    monkeypatch.setitem(SCHEDULES, "small-cache", replace(honest, function=broken))
    assert ps.play("small-cache", n=5, d=2, M=40).passed
    found = verify("small-cache", "Lemma C.9", "Theorem C.12")
    stated = {"Lemma C.9", "Lemma C.9, repaired", "Theorem C.12", "Theorem C.12, repaired"}  # of a form that is refused
    differ = {row.claim.name for row in found.rows if not row.agrees}
    assert differ == {"words of small-cache", "Lemma C.9, count"} | stated
    assert found.failed == len(differ)
    run = CliRunner().invoke(app, ["verify", "Lemma C.9"])
    assert run.exit_code == 1
    assert "CONTRADICTS" in run.stdout


def test_a_finding_that_differs_from_what_is_stated_counts() -> None:
    def judge(effort: Effort) -> Finding:
        return Finding(HOLDS, "nothing")

    for expects, failed in ((PROVED, 1), (FAILS, 1), (HOLDS, 0)):
        assert Report((JudgedClaim(Claim("a", "b", "c", expects, None, judge), HOLDS, "nothing"),)).failed == failed


def test_nothing_tried_and_nothing_refuted_is_no_answer() -> None:
    assert tried(0, "").status == decided().status == refuted().status == UNDECIDED
    assert tried(1, "once").status == HOLDS
    holds, fails = 'ps.decide("n", "O", "n**2")', 'ps.decide("n**2", "O", "n")'
    assert refuted(fails).status == FAILS
    assert refuted(fails, holds).status == refuted(holds).status == UNDECIDED  # a failed refutation proves nothing
    assert decided(holds, fails).status == FAILS
    with pytest.raises(ValueError, match="compared with itself"):
        deciding("'n**2'", "Θ", "n**2", "")


@pytest.mark.parametrize(("full", "number"), [(False, 1), (True, 2)])
def test_both_efforts_say_how_much_they_tried(full: bool, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is that of the schedules that were played, not of those that a quick run would have played."""
    two = {name: get(name) for name in ("matmul-tiled", "projected-flash2-forward")}
    monkeypatch.setattr(games, "SCHEDULES", two)
    judge = next(each.judge for each in CLAIMS if each.name == "game = count = closed form")
    found = judge(Effort(full))
    assert found.status == AGREES
    assert found.evidence.startswith(f"{number * Effort(full).draws(1, 12)} games of {number} schedules")


def test_a_judge_that_cannot_decide_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(effort: Effort) -> Finding:
        raise UsageError("too much was asked")

    monkeypatch.setattr(pebblesim.claims, "CLAIMS", [Claim("a", "b", "c", PROVED, None, judge)])
    (row,) = verify().rows
    assert (row.status, row.agrees) == (UNDECIDED, False)


def test_the_command_prints_json_and_refuses_in_words(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["verify", "Lemma C.9", "--json"])
    assert run.exit_code == 0
    found = json.loads(run.stdout)
    assert found["failed"] == 0
    assert {"claim", "source", "status", "evidence"} <= set(found["rows"][0])
    assert [row["status"] for row in found["rows"] if row["claim"] == "Lemma C.9"] == [FAILS]
    assert isinstance(CliRunner().invoke(app, ["verify", "Lemma Z.9"]).exception, UsageError)
    refused = CliRunner().invoke(app, ["verify", "--full", "--errata", str(tmp_path / "a.md")])
    assert "leave out all other options" in str(refused.exception)


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_games_on_sparse_inputs(d: int, rows: int) -> None:
    n = d * rows
    assert diagonal_game(n, 3).complete and diagonal_game(n, 3).io == 3 * n
    game = one_per_row_game(n, d, M=rows + 3)
    assert game.complete
    assert (game.reads, game.writes) == (d + 2 * n, n * rows)
    whole = sparse_forward_game(n, d, M=3 * rows + 6)
    assert whole.complete and (whole.reads, whole.writes) == (2 * d + 3 * n, n)
    if rows > 1:
        gradient = sparse_backward_game(n, d, M=5 * rows + 8)
        assert gradient.complete and (gradient.reads, gradient.writes) == (2 * d + 6 * n, d)


def test_statements_are_well_formed() -> None:
    assert len({each.title for each in STATEMENTS}) == len(STATEMENTS)
    for each in STATEMENTS:
        assert each.source in SOURCES
        assert each.schedule is None or each.schedule in SCHEDULES
        for expr, domain in ((each.expr, each.domain), (each.repaired, each.repaired_domain)):
            if expr and not each.title.endswith("Proposition 4"):
                rules = SCHEDULES[each.schedule].closed if each.schedule else None
                ps.decide(expr, "Θ", expr, domain, rules)  # both can be read
    with pytest.raises(UsageError, match="did you mean"):
        statement("Li et al., Theorem 1.3")


def test_table_1_is_printed() -> None:
    run = CliRunner().invoke(app, ["theorems", "--table-1", "--json"])
    rows = json.loads(run.stdout)["rows"]
    assert len(rows) == len(TABLE_1) == 6
    assert {"attention": "backward", "bound": "lower"}.items() <= rows[3].items()
    assert ps.decide(rows[3]["large_cache"], "Θ", "n**2*d**2/M", "n >= d")
    everything = CliRunner().invoke(app, ["theorems"]).stdout
    assert all(each.title in everything for each in STATEMENTS)
