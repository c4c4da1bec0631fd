"""Claims and their judgement: the text shown as evidence is itself evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pebblesim.catalogue.literature import Erratum, Statement, region_in_words
from pebblesim.core.notation import parse, written

if TYPE_CHECKING:
    from pebblesim.language.registry import Schedule

PROVED, HOLDS, FAILS, UNDECIDED = "PROVED", "HOLDS", "FAILS", "UNDECIDED"
"""Proved for all sizes of a region; true wherever it was tried; false, by a counterexample; no answer, which no claim
expects."""

AGREES, COMPUTED = "AGREES", "COMPUTED"
"""Two readings of one source say the same, which makes neither of them true; follows from the text of a source by
computing, with no schedule, game or proof behind it."""

STATUSES = (PROVED, HOLDS, AGREES, COMPUTED, FAILS, UNDECIDED)


@dataclass(frozen=True)
class Effort:
    """The effort of a check: `some(quick, full)` chooses a size, `draws(quick, full)` a number of samples."""

    full: bool = False

    def some(self, quick: int, full: int) -> int:
        """Return the size of what is tried."""
        return full if self.full else quick

    def draws(self, quick: int, full: int) -> int:
        """Return the number of samples that are drawn by chance."""
        return self.some(quick, full)

    def among(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        """Return the schedules to try: in a quick run none that puts projections around another one."""
        return [schedule for schedule in schedules if self.full or not schedule.problem.name.startswith("projected-")]


@dataclass(frozen=True)
class Proofs:
    """Written proofs in docs/lower-bounds.md, which a finding rests on and no program checks.

    Attributes:
        section: where they are.
        names: what is proved there, such as "D1r".
    """

    section: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.names)}, docs/lower-bounds.md §{self.section}"


@dataclass(frozen=True)
class Finding:
    """The result of a judgement.

    Attributes:
        status: one of `STATUSES`.
        evidence: what a reader can run again, one piece in each line.
        given: the written proofs that it rests on; None if there are none.
    """

    status: str
    evidence: str
    given: Proofs | None = None


@dataclass(frozen=True)
class Claim:
    """A claim, and its stated status.

    Attributes:
        name: name in its source, such as "Lemma C.9".
        source: the source of the claim.
        says: the claim in words.
        expects: the stated status; a different finding is a contradiction.
        erratum: for the list of errata, the error in the source; None if there is none.
        judge: function that returns the finding.
    """

    name: str
    source: str
    says: str
    expects: str
    erratum: Erratum | None
    judge: Callable[[Effort], Finding]


CLAIMS: list[Claim] = []


def claim(
    name: str, source: str, says: str, expects: str, erratum: Erratum | None = None
) -> Callable[[Callable[[Effort], Finding]], Callable[[Effort], Finding]]:
    """Register a judge."""

    def register(judge: Callable[[Effort], Finding]) -> Callable[[Effort], Finding]:
        CLAIMS.append(Claim(name, source, says, expects, erratum, judge))
        return judge

    return register


def shown(text: str) -> tuple[Any, str]:
    """Evaluate an expression in `ps`; return its value, and the line "expression → value"."""
    import pebblesim

    value = eval(text, {"ps": pebblesim})  # our own text: it is the evidence
    head = str(value).partition("\n")[0]
    return value, f"{text} → {head}"


def value(bound: str, **sizes: int) -> int:
    """Return the value of a bound, rounded down."""
    import sympy

    expr = parse(bound)
    return int(sympy.floor(expr.subs({symbol: sizes[symbol.name] for symbol in expr.free_symbols})))


def deciding(form: str, relation: str, bound: str, region: str, where: object = None) -> str:
    """Return the text that decides a relation between a form, which is itself text, and a bound."""
    if form.strip("'\"") == bound:
        raise ValueError(f"{bound} is compared with itself, which shows nothing")
    return f"ps.decide({form}, {relation!r}, {bound!r}, {region!r}" + (f", {where!r})" if where else ")")


def fitting(region: str, blocks: Mapping[str, str]) -> str:
    """Return a region without the sizes at which a rounded-down block is empty."""
    return ", ".join(filter(None, (region, *(f"{name} >= 1" for name, rule in blocks.items() if "floor" in rule))))


def decided(*texts: str, status: str = PROVED) -> Finding:
    """PROVED, or another status, if every one of these verdicts holds; FAILS with the first that does not."""
    lines = []
    for text in texts:
        verdict, line = shown(text)
        if not verdict:
            return Finding(FAILS, line)
        lines.append(line)
    return tried(len(lines), "\n".join(lines), status)


def refuted(*texts: str) -> Finding:
    """FAILS if each of these verdicts fails with its own counterexample; otherwise UNDECIDED.

    One failed attempt at a refutation proves nothing.
    """
    verdicts = [shown(text) for text in texts]
    all_fail = bool(verdicts) and not any(verdict for verdict, _ in verdicts)
    return Finding(FAILS if all_fail else UNDECIDED, "\n".join(line for _, line in verdicts))


def tried(number: int, evidence: str, status: str = HOLDS) -> Finding:
    """HOLDS, or another status, if at least one case was tried."""
    return Finding(status if number else UNDECIDED, evidence or "nothing was tried")


def in_words(statement: Statement, expr: str | None, domain: str) -> str:
    """Describe a statement, or its repaired form, in words."""
    assert expr
    return f"{statement.about}: {statement.relation}({written(parse(expr))}) for {region_in_words(domain)}"
