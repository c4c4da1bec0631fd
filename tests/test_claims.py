"""`verify`: what it states is what it finds, its evidence can be run again, and a broken schedule makes it fail."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import pebblesim as ps
import pebblesim.claims
from pebblesim.claims import FAILS, HOLDS, PROVED, UNDECIDED, Report, Row, verify
from pebblesim.claims.claim import Claim, Effort, Finding
from pebblesim.claims.sparse import diagonal_game, one_per_row_game
from pebblesim.cli.main import app
from pebblesim.errors import UsageError
from pebblesim.language import exp
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.schedules.matmul import gemm
from pebblesim.theory.literature import SOURCES, STATEMENTS, TABLE_1, statement

ROOT = Path(__file__).resolve().parent.parent

NOT_JUDGED = {  # statements that no claim is about, and why
    "Li et al., Lemma E.6": "about any graph, see the optimum on small ones",
    "Li et al., Lemma E.7": "missing",
    "Li et al., Lemma E.8": "missing",
    "Li et al., Theorem F.3": "missing",
    "Li et al., Theorem F.4": "missing",
    "Saha & Ye, Theorem 4.8": "about any way to multiply, which no graph is for",
    "Dao et al., Proposition 4": "about block-sparse masks, see the tests of masks",
    "Hong & Kung, Lemma 3.1": "about any graph, see the optimum on small ones",
}


@pytest.fixture(scope="module")
def report() -> Report:
    return verify()


def test_nothing_contradicts_what_is_stated(report: Report) -> None:
    assert [f"{row.claim.name}: {row.status}, {row.evidence}" for row in report.rows if not row.agrees] == []
    assert report.failed == 0
    assert {row.status for row in report.rows} == {PROVED, HOLDS, FAILS}
    assert all(row.evidence for row in report.rows)


def test_the_errata_are_current(report: Report) -> None:
    """After a change that is meant: .venv/bin/pebblesim verify --errata docs/ERRATA.md"""
    page = (ROOT / "docs" / "ERRATA.md").read_text(encoding="utf-8")
    assert page == report.errata
    for name in ("Lemma C.9", "Theorem D.5", "Theorem 4.5", "Theorem 1.1", "Remark 5.1, linear attention"):
        assert f"{name}\n" in page or f"{name}, " in page


def test_what_is_corrected_fails_and_nothing_else(report: Report) -> None:
    for row in report.rows:
        assert (row.status == FAILS) == bool(row.claim.corrected), row.claim.name


def test_every_statement_is_judged(report: Report) -> None:
    judged = {f"{row.claim.source}, {row.claim.name}" for row in report.rows}
    missing = [each.title for each in STATEMENTS if not any(name.startswith(each.title) for name in judged)]
    assert set(missing) == set(NOT_JUDGED)


@pytest.mark.parametrize("name", ["C.9", "D.5", "1.1", "F.2", "words of"])
def test_evidence_can_be_run_again(report: Report, name: str) -> None:
    rows = [row for row in report.rows if name in row.claim.name]
    assert rows
    for row in rows:
        for line in row.evidence.split("\n"):
            text, arrow, value = line.partition(" → ")
            if arrow and text.startswith("ps."):
                again = eval(text, {"ps": ps})
                assert str(again).partition("\n")[0] == value.partition(", legal and complete")[0]


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
    assert {row.claim.name for row in found.rows if not row.agrees} == {"words of small-cache", "Lemma C.9, count"}
    assert found.failed == 2
    run = CliRunner().invoke(app, ["verify", "Lemma C.9"])
    assert run.exit_code == 1
    assert "CONTRADICTS" in run.stdout


def test_a_finding_that_differs_from_what_is_stated_counts() -> None:
    def judge(effort: Effort) -> Finding:
        return Finding(HOLDS, "nothing")

    for expects, failed in ((PROVED, 1), (FAILS, 1), (HOLDS, 0)):
        assert Report((Row(Claim("a", "b", "c", expects, "", judge), HOLDS, "nothing"),)).failed == failed


def test_a_judge_that_cannot_decide_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(effort: Effort) -> Finding:
        raise UsageError("too much was asked")

    monkeypatch.setattr(pebblesim.claims, "CLAIMS", [Claim("a", "b", "c", PROVED, "", judge)])
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
    assert "no other option" in str(refused.exception)


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_games_on_sparse_inputs(d: int, rows: int) -> None:
    n = d * rows
    assert diagonal_game(n, 3).complete and diagonal_game(n, 3).io == 3 * n
    game = one_per_row_game(n, d, M=rows + 3)
    assert game.complete
    assert (game.reads, game.writes) == (d + 2 * n, n * rows)


def test_statements_are_well_formed() -> None:
    assert len({each.title for each in STATEMENTS}) == len(STATEMENTS)
    for each in STATEMENTS:
        assert each.source in SOURCES and each.wording in ("read", "inferred", "missing")
        assert (each.wording == "missing") <= (each.expr is None)
        assert each.schedule is None or each.schedule in SCHEDULES
        for expr, domain in ((each.expr, each.domain), (each.repaired, each.repaired_domain)):
            if expr and not each.title.endswith("Proposition 4"):
                ps.decide(expr, "Θ", expr, domain)  # both can be read
    with pytest.raises(UsageError, match="did you mean"):
        statement("Li et al., Theorem 1.3")


def test_table_1_is_printed() -> None:
    run = CliRunner().invoke(app, ["theorems", "--table-1", "--json"])
    rows = json.loads(run.stdout)["rows"]
    assert len(rows) == len(TABLE_1) == 5
    assert {"attention": "backward", "bound": "lower"}.items() <= rows[3].items()
    assert ps.decide(rows[3]["large_cache"], "Θ", "n**2*d**2/M", "n >= d")
    everything = CliRunner().invoke(app, ["theorems"]).stdout
    assert all(each.title in everything for each in STATEMENTS)
