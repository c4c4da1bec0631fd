"""The list of errata, written from what `verify` found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pebblesim.claims.claim import FAILS
from pebblesim.theory.literature import SOURCES

if TYPE_CHECKING:
    from pebblesim.claims import Row

HEAD = """\
# Errata

What is wrong in the literature that pebblesim builds on, each with the evidence that the program gives and what is
true instead. This page is written by `pebblesim verify --errata docs/ERRATA.md`, and a test keeps it current.

Evidence is Python, to be run after `import pebblesim as ps, pebblesim.claims`. `ps.decide(f, "O", g, region, rules)`
decides whether f = O(g) on a region of sizes, with block sizes by rules; where it is not, it names sizes, as powers of
a growing t, along which the ratio grows. `ps.count` counts words, and a game is played under the referee.
"""

BY_READING = """\
## Found by reading, not by the program

- Theorem E.9's proof speaks of nd² and n²d *sum* nodes; so many are *product* nodes. Parts of O(M²/d) of them each give
  Ω(nd³/M) and Ω(n²d²/M).
- Theorem E.10's reduction must write an entry when it is computed *first*, or it adds more than n² words, and must
  write the entries of A1 X too.
- Definition E.4 forbids cycles through all parts; it must forbid any cycle among parts.
- Misprints: f = diag(l)⁻¹ A in Definition B.5 and Algorithm 8; S A2ᵀ in Lemma C.4; Algorithm 1 deletes l, not d, and
  starts g as d x d; Lemma C.7 ends with √M; C.9 and C.11 are phases 3 and 4; Algorithm 3 has an input f that it does
  not use; Algorithm 9 calls a Phase 4 that is Phase 2; T_c = ⌈n/B_c⌉ in Lemma D.4.

Of Lemmas E.7 and E.8 and Theorems F.3 and F.4 the text was not at hand; they are not judged. Statements marked
"inferred" in [pebblesim/theory/literature.py](../pebblesim/theory/literature.py) follow from their use or proof in the
paper.
"""


def errata(rows: Iterable[Row]) -> str:
    """The page, from the rows of claims that are false."""
    wrong = [row for row in rows if row.claim.corrected and row.status == FAILS]
    parts = [HEAD]
    for source in dict.fromkeys(("Li et al.", *(row.claim.source for row in wrong))):
        parts.append(f"## {source}\n\n{SOURCES[source]}.\n")
        parts += _sections([row for row in wrong if row.claim.source == source])
    return "\n".join([*parts, BY_READING])


def _sections(rows: list[Row]) -> Iterator[str]:
    """One section for all claims that say the same and fail for the same reason."""
    same: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        same.setdefault((row.claim.says, row.evidence, row.claim.corrected), []).append(row.claim.name)
    for (says, evidence, corrected), names in sorted(same.items(), key=lambda item: _order(item[1][0])):
        yield f"### {', '.join(names)}\n\nSays: {says}.\n\n```text\n{evidence}\n```\n\nInstead: {corrected}.\n"


def _order(name: str) -> tuple[str, ...]:
    """Numbered statements by their number, then the others."""
    import re

    number = re.search(r"([A-F]|\d+)\.(\d+)", name)
    return ("0" + number[1].zfill(3), number[2].zfill(3), name) if number else ("1", name)
