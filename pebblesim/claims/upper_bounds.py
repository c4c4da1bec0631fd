"""Upper bounds of the literature, each decided for the schedule that is said to reach it.

As stated they are judged with the printed block sizes, where the source prints any; repaired, with blocks that fit.
"""

from __future__ import annotations

from pebblesim.claims.claim import (
    CLAIMS,
    FAILS,
    PROVED,
    Claim,
    Effort,
    Finding,
    claim,
    decided,
    deciding,
    in_words,
    refuted,
)
from pebblesim.growth.closed_blocks import CLOSED_BLOCKS
from pebblesim.language.registry import get
from pebblesim.theory.literature import LARGE, SMALL, STATEMENTS, TABLE_1, Statement, statement


def _form(of: Statement) -> str:
    if of.phase is None:
        return f'ps.formula("{of.schedule}").io'
    return f'sum(ps.formula("{of.schedule}").by_phase["{of.phase}"])'


def _register(of: Statement) -> None:
    assert of.schedule and of.expr

    def as_stated(effort: Effort) -> Finding:
        assert of.schedule and of.expr
        blocks = dict(get(of.schedule).paper) or CLOSED_BLOCKS[of.schedule]
        return decided(deciding(_form(of), of.relation, of.expr, of.domain, blocks))

    expects = FAILS if of.repaired else PROVED
    corrected = f"{in_words(of, of.repaired, of.repaired_domain)}; {of.note}" if of.repaired else ""
    CLAIMS.append(Claim(of.name, of.source, in_words(of, of.expr, of.domain), expects, corrected, as_stated))
    if of.repaired:

        def as_repaired(effort: Effort) -> Finding:
            assert of.schedule and of.repaired
            blocks = CLOSED_BLOCKS[of.schedule]
            return decided(deciding(_form(of), of.relation, of.repaired, of.repaired_domain, blocks))

        words = in_words(of, of.repaired, of.repaired_domain)
        CLAIMS.append(Claim(f"{of.name}, repaired", of.source, words, PROVED, "", as_repaired))


for _each in STATEMENTS:
    if _each.schedule:
        _register(_each)


def _reached(of: Statement, small: str, large: str) -> Finding:
    """Whether two schedules together reach the repaired bound for all M."""
    assert of.repaired
    return decided(
        *(
            deciding(f'ps.formula("{name}").io', "O", of.repaired, f"{of.repaired_domain}, {side}", CLOSED_BLOCKS[name])
            for name, side in ((small, "M <= d**2"), (large, "M >= d**2"))
        )
    )


_MAIN = statement("Li et al., Theorem 1.1")
_FORWARD = statement("Saha & Ye, Theorem 3.1")


@claim("Theorem 1.1", "Li et al.", in_words(_MAIN, _MAIN.expr, ""), FAILS,
       f"{in_words(_MAIN, _MAIN.repaired, 'n >= d')}; {_MAIN.note}")  # fmt: skip
def _main(effort: Effort) -> Finding:
    inputs = '"n*d + d**2"'
    assert _MAIN.expr
    return refuted(
        deciding(inputs, "O", _MAIN.expr, "n >= d, M >= n*d"), deciding(inputs, "O", _MAIN.expr, "n <= d, M >= n**2")
    )


@claim("Theorem 1.1, range", "Li et al.", "as printed it equals the repaired form for n ≥ d and M ≤ nd", PROVED)
def _main_range(effort: Effort) -> Finding:
    assert _MAIN.expr and _MAIN.repaired
    return decided(deciding(repr(_MAIN.expr), "Θ", _MAIN.repaired, "n >= d, M <= n*d"))


@claim("Theorem 1.1, repaired, upper bound", "Li et al.", "reached for all M by the two algorithms", PROVED)
def _main_reached(effort: Effort) -> Finding:
    return _reached(_MAIN, "small-cache", "large-cache")


@claim("Theorem 1.1, repaired, upper bound, ours", "ours", "reached for all M by our two schedules", PROVED)
def _main_ours(effort: Effort) -> Finding:
    return _reached(_MAIN, "small-cache-streamed", "row-stationary")


@claim("Theorem 3.1", "Saha & Ye", in_words(_FORWARD, _FORWARD.expr, ""), FAILS,
       f"{in_words(_FORWARD, _FORWARD.repaired, 'n >= d')}; {_FORWARD.note}")  # fmt: skip
def _forward(effort: Effort) -> Finding:
    assert _FORWARD.expr
    return refuted(deciding('"n*d"', "O", _FORWARD.expr, "n >= d, M >= n*d"))


@claim("Theorem 3.1, repaired, upper bound", "Saha & Ye", "reached for all M, with our row-stationary schedule", PROVED)
def _forward_reached(effort: Effort) -> Finding:
    return _reached(_FORWARD, "small-cache-forward", "row-stationary-forward")


@claim("Table 1", "Li et al.", "upper and lower bounds are the same, dense inputs, n ≥ d, in both regimes", PROVED)
def _table_1(effort: Effort) -> Finding:
    texts = []
    for way in ("forward", "backward"):
        upper, lower = (cells for what, _, *cells in TABLE_1 if what == way)
        for region, above, below in zip((LARGE, SMALL), upper, lower, strict=True):
            texts.append(deciding(repr(above.bound), "Θ", below.bound, f"n >= d, {region}"))
    return decided(*texts)
