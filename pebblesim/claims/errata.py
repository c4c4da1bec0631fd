"""The list of errata, written from the findings of `verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pebblesim.catalogue.literature import FALSE, FALSE_FOR_GIVEN, MISPRINT, OUTSIDE, SOURCES, UNCLEAR, Erratum
from pebblesim.claims.claim import FAILS

if TYPE_CHECKING:
    from pebblesim.claims import JudgedClaim

HEAD = f"""\
# Errata

This page lists errors in the literature that pebblesim is based on. Each entry gives the evidence of the program, what
is true instead, what remains true, and whether the main results of the source depend on it. The page is written by
`pebblesim verify --errata docs/ERRATA.md`, and a test keeps it current.

A statement is *{FALSE}*; *{OUTSIDE}*, if it is true in a smaller domain, which is named; *{UNCLEAR}*, if it has a
correct reading; a *{MISPRINT}*; or *{FALSE_FOR_GIVEN}*, if a bound is not true for
any inputs, and nothing here proves or refutes it for the worst inputs of these sizes. If a source states a domain, the
statement is checked only there.

Evidence is Python, to be run after `import pebblesim as ps, pebblesim.claims`. `ps.decide(f, "O", g, region, rules)`
decides whether f = O(g) on a region of sizes; the rules give the block sizes, and a condition such as `B >= 1` excludes
empty blocks. If f is not O(g), it gives sizes, as powers of a growing t, for which the ratio grows without bound.
`ps.count` counts words, and the referee checks each game.
"""

READ: tuple[tuple[str, str, Erratum], ...] = (
    # found by reading: the place of each error, and the statement
    (
        "Theorem E.9, proof",
        "nd² and n²d sum nodes; Ω(n²d/M) for A1 X",
        Erratum(
            MISPRINT,
            "these are the numbers of product nodes; with O(M²/d) of them in each part, Ω(nd³/M) and Ω(n²d²/M) follow",
            "the theorem",
            "no",
        ),
    ),
    (
        "Theorem E.9, M-partitions",
        "Lemma E.7 bounds the parts of M-partitions, and Lemma E.6 counts the parts of 2M-partitions",
        Erratum(
            UNCLEAR,
            "Lemma E.7 with 2M instead of M, since 2M = Ω(d²), too: parts have at most about four times as many nodes",
            "both lemmas, and the theorem with another constant",
            "no",
        ),
    ),
    (
        "Theorem E.9, A1 X",
        "Lemma E.7, on a product of two inputs, is used for (A1 X) A2ᵀ, where A1 X is computed, and, in the other "
        "order, for A1 (X A2ᵀ), where X A2ᵀ is",
        Erratum(
            UNCLEAR,
            "a row of A1 X needs d vertices of a dominator set in any case: its own entries, or the row of A1 from "
            "which they are computed; a column of X A2ᵀ likewise; so the lemma's argument holds in each order",
            "the theorem",
            "no",
        ),
    ),
    (
        "Theorem E.10, proof",
        "whenever a red pebble is placed on an entry of A1 X A2ᵀ, a blue one is too, which adds n² words",
        Erratum(
            UNCLEAR,
            "an entry should be written only when it is computed for the first time, and the same for entries of A1 X "
            "in (A1 X) A2ᵀ, and of X A2ᵀ in A1 (X A2ᵀ); otherwise this adds more than n² words if entries are "
            "recomputed",
            "the theorem, in both orders, and where each pair has its own; it follows from our D4r and D1m as well",
            "no",
        ),
    ),
    (
        "Definition E.4",
        "a cycle goes through all parts",
        Erratum(UNCLEAR, "no cycle may go through any of the parts, as in Hong & Kung", "its use in the paper", "no"),
    ),
    (
        "Definition B.5, Algorithm 8",
        "f = diag(l) A",
        Erratum(MISPRINT, "f = diag(l)⁻¹ A, as in the algorithms' own lines", "all", "no"),
    ),
    ("Lemma C.4", "A = S A1ᵀ", Erratum(MISPRINT, "S A2ᵀ, as in Algorithm 2", "all", "no")),
    (
        "Algorithm 1",
        "deletes d after f, starts g with n x n zeros",
        Erratum(MISPRINT, "it deletes l, and g is d x d", "all", "no"),
    ),
    ("Lemma C.7, proof", "ends with (n²d + nd²)/M", Erratum(MISPRINT, "√M instead of M, as in the lemma", "all", "no")),
    ("Lemmas C.9 and C.11, proofs", "of Phase 2", Erratum(MISPRINT, "phases 3 and 4", "all", "no")),
    ("Algorithm 3", "has an input f", Erratum(MISPRINT, "it does not use it", "all", "no")),
    ("Algorithm 9", "calls a Phase 4", Erratum(MISPRINT, "it is Phase 2, Algorithm 8", "all", "no")),
    (
        "Algorithm 8",
        "h_j and p_ij are never deleted",
        Erratum(MISPRINT, "both must be deleted together with A2_j", "all", "no"),
    ),
)


def errata(rows: Iterable[JudgedClaim]) -> str:
    """Return the page, from the rows of false claims."""
    wrong = [row for row in rows if row.claim.erratum and row.status == FAILS]
    parts = [HEAD]
    for source in dict.fromkeys(("Li et al.", *(row.claim.source for row in wrong))):
        parts.append(f"## {source}\n\n{SOURCES[source]}.\n")
        parts += _sections([row for row in wrong if row.claim.source == source])
        if source == "Li et al.":
            parts.append("## Found by reading, not by the program\n\nIn the same paper.\n")
            parts += [_section(name, says, erratum) for name, says, erratum in READ]
    return "\n".join(parts)


def _sections(rows: list[JudgedClaim]) -> Iterator[str]:
    """Yield one section for all claims with the same statement and the same error."""
    same: dict[tuple[str, str, Erratum], list[str]] = {}
    for row in rows:
        assert row.claim.erratum
        same.setdefault((row.claim.says, row.evidence, row.claim.erratum), []).append(row.claim.name)
    for (says, evidence, erratum), names in sorted(same.items(), key=lambda item: _order(item[1][0])):
        yield _section(", ".join(names), says, erratum, evidence)


def _section(names: str, says: str, erratum: Erratum, evidence: str = "") -> str:
    shown = f"```text\n{evidence}\n```\n\n" if evidence else ""
    return (
        f"### {names}\n\n*{erratum.kind}*. Statement: {says}.\n\n{shown}Instead: {erratum.instead}.\n\n"
        f"Remains true: {erratum.survives}. Do main results depend on it: {erratum.matters}.\n"
    )


def _order(name: str) -> tuple[str, ...]:
    """Sort key: numbered statements by number, then the others."""
    import re

    number = re.search(r"([A-F]|\d+)\.(\d+)", name)
    return ("0" + number[1].zfill(3), number[2].zfill(3), name) if number else ("1", name)
