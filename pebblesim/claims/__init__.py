"""Claims of the literature and our own, judged.

PROVED: true for all sizes of a region; "given" names the written proofs, if any, that this rests on. HOLDS: true on all
tested sizes. FAILS: false, with a counterexample. AGREES: two readings of one source agree. COMPUTED: it follows from
the text of a source alone. The last two are not proofs.

Evidence is text that was evaluated; it can be evaluated again after `import pebblesim as ps, pebblesim.claims`. If a
paper's claim is known to be false and is shown to be false, its status is FAILS, as stated here. Only findings that
contradict the statements here count as failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pebblesim.claims import (  # noqa: F401 - importing them registers their claims; `theorems` is the table of bounds
    caches,
    exact,
    games,
    lower,
    sparse,
    theorems,
    upper_bounds,
)
from pebblesim.claims.claim import (
    AGREES,
    CLAIMS,
    COMPUTED,
    FAILS,
    HOLDS,
    PROVED,
    STATUSES,
    UNDECIDED,
    Claim,
    Effort,
    Proofs,
    value,
)
from pebblesim.claims.errata import errata
from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result

__all__ = [
    "AGREES",
    "CLAIMS",
    "COMPUTED",
    "FAILS",
    "HOLDS",
    "PROVED",
    "UNDECIDED",
    "JudgedClaim",
    "Report",
    "value",
    "verify",
]


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and its finding; `given` are the written proofs that the finding rests on."""

    claim: Claim
    status: str
    evidence: str
    given: Proofs | None = None

    @property
    def agrees(self) -> bool:
        """Whether the finding equals the stated status."""
        return self.status == self.claim.expects

    @property
    def verdict(self) -> str:
        """The status, with the written proofs that it rests on: "PROVED given D3, docs/lower-bounds.md §4"."""
        return self.status if self.given is None else f"{self.status} given {self.given}"

    def to_dict(self) -> dict[str, Any]:
        """Return a row of `pebblesim verify --json`."""
        head: dict[str, Any] = {"claim": self.claim.name, "source": self.claim.source, "status": self.status}
        head |= {"given": None if self.given is None else str(self.given), "evidence": self.evidence}
        return head | {"says": self.claim.says, "expected": self.claim.expects}


@dataclass(frozen=True)
class Report(Result):
    """All rows."""

    rows: tuple[JudgedClaim, ...]

    @property
    def errata(self) -> str:
        """Return the page of errata, as in docs/ERRATA.md."""
        return errata(self.rows)

    @property
    def failed(self) -> int:
        """Number of findings that contradict the stated status."""
        return sum(not row.agrees for row in self.rows)

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            contradiction = "" if row.agrees else f"  CONTRADICTS what is stated here: {row.claim.expects}"
            verdict = f"{row.verdict:<10}" if row.given is None else f"{row.verdict}: "
            lines.append(f"{verdict}{row.claim.source}, {row.claim.name}: {row.claim.says}{contradiction}")
            lines += [f"{'':<10}{line}" for line in row.evidence.split("\n")]
        counts = Counter(row.status for row in self.rows)
        given = Counter(row.status for row in self.rows if row.given is not None)
        told = ", ".join(
            f"{counts[status]} {status}" + (f" ({given[status]} given written proofs)" if given[status] else "")
            for status in STATUSES
            if counts[status]
        )
        return "\n".join([*lines, f"{len(self.rows)} claims: {told}; {self.failed} contradict what is stated here"])

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim verify --json`."""
        return {"rows": [row.to_dict() for row in self.rows], "failed": self.failed}


@checked_kinds()
def verify(
    *names: str, full: bool = False, progress: Callable[[float], None] | None = None, errata_only: bool = False
) -> Report:
    """Judge claims.

    Args:
        names: parts of claim names, such as "C.9"; all claims by default.
        full: try larger and more samples; this takes minutes instead of seconds.
        progress: called from time to time with the fraction of the claims done.
        errata_only: judge only claims that are stated to be false.

    Returns:
        The verdicts, one for each claim. They print as text; `failed` counts those that contradict the stated status.

    >>> verify("Lemma C.9, count").rows[0].status
    'AGREES'

    Raises:
        UsageError: no claim has this name.
    """
    called = {f"{claim.source}, {claim.name}": claim for claim in CLAIMS}
    for name in names:
        if not isinstance(name, str) or not name or not any(name in full for full in called):
            raise UsageError(f"no claim has {name!r} in its name; `pebblesim verify` lists all.")
    chosen = [claim for full, claim in called.items() if not names or any(name in full for name in names)]
    chosen = [each for each in chosen if each.erratum or not errata_only]
    rows = []
    for each in chosen:
        rows.append(_judged(each, Effort(full)))
        if progress:
            progress(len(rows) / len(chosen))
    return Report(tuple(rows))


def _judged(claim: Claim, effort: Effort) -> JudgedClaim:
    try:
        finding = claim.judge(effort)
    except PebblesimError as error:
        return JudgedClaim(claim, UNDECIDED, f"{type(error).__name__}: {error}")
    return JudgedClaim(claim, finding.status, finding.evidence, finding.given)
