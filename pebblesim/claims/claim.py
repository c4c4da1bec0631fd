"""What a claim is, and how it is judged: by evaluating the very text that is shown as its evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pebblesim.growth.tropical import parse
from pebblesim.notation import written
from pebblesim.theory.literature import Statement, region_in_words

PROVED, HOLDS, FAILS, UNDECIDED = "PROVED", "HOLDS", "FAILS", "UNDECIDED"
"""Proved for all sizes of a region; true wherever it was tried; false, by a counterexample; no answer, which no claim
expects."""


@dataclass(frozen=True)
class Effort:
    """How much to try: `some(quick, full)` picks a number of samples."""

    full: bool = False

    def some(self, quick: int, full: int) -> int:
        """So many samples."""
        return full if self.full else quick


@dataclass(frozen=True)
class Finding:
    """The outcome of a judgement: a status, and evidence that a reader can run again, a piece in each line."""

    status: str
    evidence: str


@dataclass(frozen=True)
class Claim:
    """A claim, and what we state about it.

    Attributes:
        name: as its source names it, "Lemma C.9".
        source: who claims it.
        says: the claim in words.
        expects: the status that we state; a program that finds another one contradicts us.
        corrected: for the list of errata, what is true instead; "" if nothing is wrong with the source.
        judge: looks for itself.
    """

    name: str
    source: str
    says: str
    expects: str
    corrected: str
    judge: Callable[[Effort], Finding]


CLAIMS: list[Claim] = []


def claim(
    name: str, source: str, says: str, expects: str, corrected: str = ""
) -> Callable[[Callable[[Effort], Finding]], Callable[[Effort], Finding]]:
    """Register a judge."""

    def register(judge: Callable[[Effort], Finding]) -> Callable[[Effort], Finding]:
        CLAIMS.append(Claim(name, source, says, expects, corrected, judge))
        return judge

    return register


def shown(text: str) -> tuple[Any, str]:
    """The value of an expression in `ps`, and the expression together with the value, on one line."""
    import pebblesim

    value = eval(text, {"ps": pebblesim})  # our own text: it is the evidence
    head = str(value).partition("\n")[0]
    return value, f"{text} → {head}"


def value(bound: str, **sizes: int) -> int:
    """A bound as a number, rounded down."""
    import sympy

    expr = parse(bound)
    return int(sympy.floor(expr.subs({symbol: sizes[symbol.name] for symbol in expr.free_symbols})))


def deciding(form: str, relation: str, bound: str, region: str, where: object = None) -> str:
    """The text that decides a relation between a form, itself a text, and a bound."""
    return f"ps.decide({form}, {relation!r}, {bound!r}, {region!r}" + (f", {where!r})" if where else ")")


def decided(*texts: str) -> Finding:
    """PROVED if every one of these verdicts holds, FAILS with the first that does not."""
    lines = []
    for text in texts:
        verdict, line = shown(text)
        if not verdict:
            return Finding(FAILS, line)
        lines.append(line)
    return Finding(PROVED, "\n".join(lines))


def refuted(*texts: str) -> Finding:
    """FAILS if every one of these verdicts fails, each a counterexample of its own."""
    verdicts = [shown(text) for text in texts]
    status = FAILS if not any(verdict for verdict, _ in verdicts) else PROVED
    return Finding(status, "\n".join(line for _, line in verdicts))


def in_words(statement: Statement, expr: str | None, domain: str) -> str:
    """A statement, or its repaired form, in words."""
    assert expr
    inferred = "; its exact words were not at hand" if statement.wording == "inferred" else ""
    return f"{statement.about}: {statement.relation}({written(parse(expr))}) for {region_in_words(domain)}{inferred}"
