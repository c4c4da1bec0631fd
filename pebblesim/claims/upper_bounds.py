"""Upper bounds of the literature, each decided for the schedule that the source names for it.

A bound as stated is checked with the printed block sizes, if the source prints any; a repaired bound is checked with
blocks that fit. A region excludes the sizes at which a block would be empty, by an explicit condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from pebblesim.catalogue.literature import FALSE, LARGE, SMALL, STATEMENTS, Erratum, Statement, statement
from pebblesim.claims.claim import (
    CLAIMS,
    COMPUTED,
    FAILS,
    PROVED,
    Claim,
    Effort,
    Finding,
    claim,
    decided,
    deciding,
    fitting,
    in_words,
    refuted,
    shown,
)
from pebblesim.language.problems import problem
from pebblesim.language.registry import get


def _form(schedule: str, phase: str | None) -> str:
    if phase is None:
        return f'ps.formula("{schedule}").io'
    return f'sum(ps.formula("{schedule}").by_phase["{phase}"])'


def _reaches(schedule: str, relation: str, bound: str, region: str, phase: str | None = None) -> str:
    """Return the text that decides a relation between a bound and the I/O of a schedule with blocks in closed form."""
    blocks = get(schedule).closed
    return deciding(_form(schedule, phase), relation, bound, fitting(region, blocks), blocks)


def _printed(of: Statement) -> Mapping[str, str]:
    assert of.schedule
    return get(of.schedule).paper or get(of.schedule).closed


def _register(of: Statement) -> None:
    assert of.schedule and of.expr
    stated = fitting(of.domain, _printed(of))

    def as_stated(effort: Effort) -> Finding:
        assert of.schedule and of.expr
        return decided(deciding(_form(of.schedule, of.phase), of.relation, of.expr, stated, _printed(of)))

    expects = FAILS if of.erratum else PROVED
    CLAIMS.append(Claim(of.name, of.source, in_words(of, of.expr, stated), expects, of.erratum, as_stated))
    if of.repaired:
        schedule = of.by or of.schedule
        bound, blocks = of.repaired, get(schedule).closed
        region = fitting(of.repaired_domain, blocks)

        def as_repaired(effort: Effort) -> Finding:
            return decided(deciding(_form(schedule, of.phase), of.relation, bound, region, blocks))

        words = in_words(of, bound, region) + (f", by {of.by}" if of.by else "")
        CLAIMS.append(Claim(f"{of.name}, repaired", of.source, words, PROVED, None, as_repaired))


for _each in STATEMENTS:
    if _each.schedule:
        _register(_each)


def _reached(of: Statement, small: str, large: str, above: str = LARGE) -> Finding:
    """Decide if two schedules together reach the repaired bound for all M, up to the given constants times d²."""
    assert of.repaired
    return decided(
        *(
            _reaches(name, "O", of.repaired, f"{of.repaired_domain}, {side}")
            for name, side in ((small, "M <= 2*d**2"), (large, above))
        )
    )


_MAIN = statement("Li et al., Theorem 1.1")
_FORWARD = statement("Saha & Ye, Theorem 3.1")


@claim("Theorem 1.1", "Li et al.", in_words(_MAIN, _MAIN.expr or "", ""), FAILS, _MAIN.erratum)
def _main(effort: Effort) -> Finding:
    inputs = '"n*d + d**2"'
    assert _MAIN.expr
    return refuted(
        deciding(inputs, "O", _MAIN.expr, "n >= d, M >= n*d"), deciding(inputs, "O", _MAIN.expr, "n <= d, M >= n**2")
    )


@claim("Theorem 1.1, range", "Li et al.", "as printed it equals the repaired form for n ≥ d and M ≤ nd", COMPUTED)
def _main_range(effort: Effort) -> Finding:
    assert _MAIN.expr and _MAIN.repaired
    return decided(deciding(repr(_MAIN.expr), "Θ", _MAIN.repaired, "n >= d, M <= n*d"), status=COMPUTED)


@claim(
    "Theorem 1.1, repaired, upper bound",
    "Li et al.",
    "reached by the two algorithms, the first for M ≤ 2d², the second for M ≥ (1 + 1/1000)d², if their blocks fit",
    PROVED,
)
def _main_reached(effort: Effort) -> Finding:
    return _reached(_MAIN, "small-cache", "large-cache", "M >= (1 + 1/1000)*d**2")


@claim(
    "Theorem 1.1, repaired, upper bound, ours",
    "ours",
    "reached by our two schedules, the second for M ≥ d², if their blocks fit",
    PROVED,
)
def _main_ours(effort: Effort) -> Finding:
    return _reached(_MAIN, "small-cache-streamed", "row-stationary")


@claim("Theorem 3.1", "Saha & Ye", in_words(_FORWARD, _FORWARD.expr or "", ""), FAILS, _FORWARD.erratum)
def _forward(effort: Effort) -> Finding:
    assert _FORWARD.expr
    return refuted(deciding('"n*d"', "O", _FORWARD.expr, "n >= d, M >= n*d"))


@claim("Theorem 3.1, repaired, upper bound", "Saha & Ye", "reached, by row-stationary-forward for M ≥ d²", PROVED)
def _forward_reached(effort: Effort) -> Finding:
    return _reached(_FORWARD, "small-cache-forward", "row-stationary-forward")


@claim(
    "latent attention, Θ",
    "ours",
    "d_v = d_r = d: reached by two schedules, the first for M ≤ 2d², the second for M ≥ d², if their blocks fit",
    PROVED,
)
def _latent_reached(effort: Effort) -> Finding:
    theta = problem("forward-latent").theta
    assert theta is not None
    return decided(
        _reaches("small-cache-latent-streamed", "O", theta.expr, "n >= d, M <= 2*d**2"),
        _reaches("row-stationary-latent", "O", theta.expr, f"n >= d, {LARGE}"),
    )


_TABLE_1 = (
    # bound, region, and schedules that reach it; the lower bounds of the same table are in `pebblesim.claims.lower`
    ("n**2*d**2/M", f"n >= d, {LARGE}, M <= n*d", ("row-stationary-forward", "flash1-forward")),
    ("n**2*d/sqrt(M)", f"n >= d, {SMALL}", ("small-cache-forward",)),
    ("n**2*d**2/M", f"n >= d, {LARGE}, M <= n*d", ("row-stationary", "flash")),
    ("n**2*d/sqrt(M)", f"n >= d, {SMALL}", ("small-cache", "small-cache-streamed")),
)


@claim("Table 1, upper bounds", "Li et al.", "each is reached by a schedule, for n ≥ d, and M ≤ nd if M ≥ d²", PROVED)
def _table_1(effort: Effort) -> Finding:
    return decided(*(_reaches(name, "O", bound, region) for bound, region, names in _TABLE_1 for name in names))


_ROWS = Erratum(
    FALSE,
    "T_r = ⌈n/B_r⌉ = O(nd/M + n/d), since B_r is at most d; T_c is a misprint for ⌈d/B_c⌉ and ⌈n/B_c⌉, as in the "
    "algorithms' own lines",
    "Lemma D.2: T_r d² = O(nd + nd³/M) is still true",
    "Theorem D.5 does, through Lemma D.4, where T_r is multiplied by nd words",
)


@claim("Lemmas D.2 and D.4, steps", "Li et al.", "T_r = ⌈n/B_r⌉ = O(nd/M), and T_c = ⌈d/B_r⌉, ⌈n/B_r⌉", FAILS, _ROWS)
def _steps(effort: Effort) -> Finding:
    blocks = dict(get("large-cache").paper)
    finding = refuted(deciding('"ceiling(n/B_r)"', "O", "n*d/M", f"{LARGE}, M <= n*d", blocks))
    kept = decided(deciding('"ceiling(n/B_r)"', "O", "n*d/M + n/d", f"{LARGE}, M <= n*d", blocks))
    columns, line = shown('ps.formula("large-cache").io.has(ps.parse("ceiling(d/B_r)"))')
    wrong = finding.status == FAILS and kept.status == PROVED and not columns
    return Finding(FAILS if wrong else PROVED, "\n".join([finding.evidence, kept.evidence, line]))


@claim(
    "Theorem D.5, at the edge",
    "ours",
    "Algorithm 9 with blocks of one row moves more than O((n²d² + nd³)/M) words at its smallest feasible M",
    PROVED,
)
def _edge(effort: Effort) -> Finding:
    """The reason why the repaired theorem assumes M ≥ (1 + ε)d²."""
    bound = statement("Li et al., Theorem D.5").expr
    assert bound
    at = {"M": "d**2 + 6*d + 5", "B_r": "1", "B_c": "1"}
    finding = refuted(deciding('ps.formula("large-cache").io', "O", bound, "n >= d", at))
    lines, ratios = [finding.evidence], []
    for d in (8, 64, 512, 4096):
        n, M = 64 * d, d * d + 6 * d + 5
        words, line = shown(f'ps.count("large-cache", n={n}, d={d}, M={M}).io')
        ratios.append(words * M // (n * n * d * d + n * d**3))
        lines.append(f"{line}, {ratios[-1]} times (n²d² + nd³)/M")
    grows = all(4 * before < after for before, after in pairwise(ratios))
    return Finding(PROVED if finding.status == FAILS and grows else FAILS, "\n".join(lines))
