"""Claims that are tested by playing or counting a game."""

from __future__ import annotations

from random import Random
from typing import Any

from pebblesim.api.derive import formula
from pebblesim.api.play import play
from pebblesim.catalogue.literature import UNCLEAR, Erratum, statement
from pebblesim.claims import fused  # noqa: F401 - what plays the game that is shown
from pebblesim.claims.claim import (
    AGREES,
    COMPUTED,
    FAILS,
    HOLDS,
    PROVED,
    Effort,
    Finding,
    claim,
    shown,
    tried,
)
from pebblesim.core.errors import Infeasible
from pebblesim.core.sizes import assigned, evaluate_rule
from pebblesim.counting.count import count
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES, Schedule


@claim(
    "Theorem 1 (COSMA)",
    "Kwasniewski et al.",
    "every pebbling of C = AB moves at least 2mnk/√S + mn words if S < min(mn, mk, nk)",
    FAILS,
    statement("Kwasniewski et al., Theorem 1").erratum,
)
def _cosma(effort: Effort) -> Finding:
    lines, below = [], True
    for m, k, n, S in ((25, 3, 25, 20), (120, 10, 120, 150))[: effort.some(1, 2)]:
        undercut, _ = shown(f"ps.claims.fused.undercut({m}, {k}, {n}, {S})")
        below &= undercut.holds
        for what in ("game.io", "claimed"):
            lines.append(shown(f"ps.claims.fused.undercut({m}, {k}, {n}, {S}).{what}")[1])
    words, line = shown('ps.play("matmul-resident", m=25, k=3, n=25, M=20).io')
    lines.append(f"{line} on a graph with a vertex for each product")
    return Finding(FAILS if below and words < 1464 else HOLDS, "\n".join(lines))


@claim(
    "Definition 3.4",
    "Li et al.",
    "Algorithm 6 is a game under the rule that an input or output move replaces a pebble",
    FAILS,
    Erratum(
        UNCLEAR,
        "Hong & Kung's rules, under which a vertex may have pebbles of both colours",
        "every O and Ω: two colours on a vertex save at most a factor 2",
        "no: apart from these words the rules are Hong & Kung's",
    ),
)
def _replace(effort: Effort) -> Finding:
    game, line = shown('ps.play("small-cache", n=8, d=4, M=24, rules="replace", strict=False).game.violation.message')
    legal, other = shown('ps.play("small-cache", n=8, d=4, M=24).game.complete')
    return Finding(FAILS if game and legal else HOLDS, f"{line}\n{other} under the rules of Hong & Kung")


def drawn(schedule: Schedule, random: Random, largest: int, most_M: int) -> dict[str, int]:
    """Draw sizes at which a schedule is feasible; M is at least the smallest feasible one, and more often small."""
    dims = {dim: random.randint(1, largest) for dim in schedule.problem.dims}
    try:
        count(schedule, M=1, **dims)  # type: ignore[arg-type]
        least = 1
    except Infeasible as error:
        least = error.least_M
    return {**dims, "M": least + random.choice([0, 1, random.randint(0, most_M), random.randint(0, 8 * most_M)])}


@claim(
    "game = count = closed form",
    "ours",
    "for every schedule the game, the count and the closed form give the same words, and the values are correct",
    AGREES,
)
def _agreement(effort: Effort) -> Finding:
    random = Random(1)
    played = 0
    text = ""
    chosen = effort.among(SCHEDULES.values())
    for schedule in chosen:
        closed: Any = formula(schedule)
        for _ in range(effort.draws(1, 12)):
            sizes = drawn(schedule, random, 5, 40)
            text = f'ps.play("{schedule.name}", {assigned(sizes)})'
            game = play(schedule, strict=False, **sizes)  # type: ignore[arg-type]
            derived = closed.evaluate(**game.dims, **game.blocks)
            if not (game.passed and game.io == derived):
                return Finding(FAILS, f"{text}: game {game.io}, count {game.predicted['io']}, formula {derived}")
            played += 1
    return tried(played, f"{played} games of {len(chosen)} schedules, the last {text}", AGREES)


@claim(
    "blocks in closed form",
    "ours",
    "the block sizes in closed form, on which proofs depend, are feasible, and `fit` moves no more words than they do",
    HOLDS,
)
def _closed_blocks(effort: Effort) -> Finding:
    from pebblesim.analysis.peak import peak_red

    random, number = Random(2), 0
    schedules = [schedule for schedule in SCHEDULES.values() if schedule.closed]
    for schedule in schedules:
        for _ in range(effort.draws(10, 300)):
            sizes = drawn(schedule, random, random.choice([9, 300]), random.choice([50, 5000, 100000]))
            M = sizes.pop("M")
            blocks = {block: evaluate_rule(rule, {**sizes, "M": M}) for block, rule in schedule.closed.items()}
            if min(blocks.values()) < 1:
                continue
            number += 1
            words = count(schedule, M=M, blocks=blocks, **sizes)  # type: ignore[arg-type]
            fit = count(schedule, M=M, **sizes)  # type: ignore[arg-type]
            if peak_red(schedule.program, {**sizes, **blocks}) > M or fit.io > words.io:
                text = f'ps.count("{schedule.name}", {assigned(sizes)}, M={M}, blocks={blocks})'
                return Finding(FAILS, f'{text} against "fit"')
    return tried(number, f"{number} sizes for {len(schedules)} schedules")


@claim(
    "Algorithm 8, products",
    "Li et al.",
    "Algorithm 8 computes the graph of Algorithm 5, with nd² products A1ᵀ(…) by A2",
    FAILS,
    Erratum(
        UNCLEAR,
        "it regroups the sum over blocks of rows and computes ⌈n/B_r⌉ n d² products: the graph depends on the block "
        "sizes",
        "the gradient, and the I/O",
        "no: our lower bounds, from which theirs are derived, hold for regrouped sums, too",
    ),
)
def _regrouped(effort: Effort) -> Finding:
    lines, counts = [], set()
    for B_r in (1, 4, 16):
        text = f'ps.count("large-cache", n=16, d=4, M=10**4, blocks={{"B_r": {B_r}, "B_c": 1}}).work["mul"]'
        products, line = shown(text)
        counts.add(products)
        lines.append(line)
    return Finding(FAILS if len(counts) > 1 else HOLDS, "\n".join(lines))


@claim(
    "inputs of Algorithms 6 and 9",
    "ours",
    "Algorithm 9 is given O and l of the forward pass, as section D of Li et al. says, Algorithm 6 is not, and our "
    "row-stationary-one-pass, at 8n²d²/M, is not either",
    COMPUTED,
)
def _inputs(effort: Effort) -> Finding:
    lines, kept = [], []
    for name in ("small-cache", "large-cache", "row-stationary-one-pass"):
        value, line = shown(f'sorted(ps.count("{name}", n=8, d=2, M=400).by_tensor.keys() & {{"O", "l"}})')
        kept.append(bool(value))
        lines.append(line)
    return Finding(COMPUTED if kept == [False, True, False] else FAILS, "\n".join(lines))


@claim(
    "inequalities of the product",
    "Hong & Kung",
    "for every schedule of the matrix product I/O ≥ mkn/√(2S) - S and I/O ≥ mk + kn + mn, and S ≥ 3",
    HOLDS,
)
def _product(effort: Effort) -> Finding:
    random, number, text = Random(3), 0, ""
    for schedule in (each for each in SCHEDULES.values() if each.problem is PROBLEMS["matmul"]):
        for _ in range(effort.draws(20, 1000)):
            sizes = drawn(schedule, random, random.choice([5, 60]), 200)
            m, k, n, S = (sizes[name] for name in ("m", "k", "n", "M"))
            text = f'ps.count("{schedule.name}", {assigned(sizes)}).io'
            words = count(schedule, **sizes).io  # type: ignore[arg-type]
            number += 1
            if 2 * S * (words + S) ** 2 < (m * k * n) ** 2 or words < m * k + k * n + m * n or S < 3:
                return Finding(FAILS, f"{text} → {words}")
    return tried(number, f"{number} sizes, the last {text}")


@claim("Remark 4.7", "Li et al.", "the two bounds for dense inputs cross at M = d²", COMPUTED)
def _crossing(effort: Effort) -> Finding:
    (exponent, proof), _ = shown("ps.bound_exponent()")
    return Finding(COMPUTED if exponent == 2 else FAILS, f"ps.bound_exponent() → {proof}")


@claim(
    "Remark 4.7, n ≫ d",
    "Li et al.",
    "√M = (n²d² + nd³)/(n²d + nd²) is d for n ≫ d",
    FAILS,
    Erratum(UNCLEAR, "it is d for all n and d: d(n²d + nd²) is n²d² + nd³", "all of it", "no"),
)
def _needless(effort: Effort) -> Finding:
    same, line = shown('(ps.parse("d*(n**2*d + n*d**2)") - ps.parse("n**2*d**2 + n*d**3")).expand() == 0')
    return Finding(FAILS if same else COMPUTED, line)


@claim("crossing of the algorithms", "Li et al.", "Algorithms 6 and 9 cross at M = Θ(d²), and so do our two", PROVED)
def _algorithms_cross(effort: Effort) -> Finding:
    n, d = (4096, 64) if not effort.full else (65536, 128)
    crossed, _ = shown(f"ps.crossover(n={n}, d={d}, over_d=())")
    lines = [f"{' → '.join(c.schedules)}: M = {c.M}" for c in crossed.crossings]
    status = PROVED if crossed.exponent == 2 and all(c.M for c in crossed.crossings) else FAILS
    proofs = (f"{line}, {c.proof}" for line, c in zip(lines, crossed.crossings, strict=True))
    return Finding(status, "\n".join([f"pebblesim crossover -n {n} -d {d}", *proofs]))
