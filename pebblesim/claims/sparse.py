"""The sparse lower bounds, Lemma F.1 and Theorems F.2, 4.5 and 1.2, against games that move fewer words."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.claims.claim import (
    FAILS,
    HOLDS,
    PROVED,
    Effort,
    Finding,
    claim,
    decided,
    deciding,
    in_words,
    refuted,
    shown,
)
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, moves
from pebblesim.game.referee import Game, referee
from pebblesim.theory.literature import statement

_INSTEAD = (
    "as a worst case over all inputs with so many nonzeros; for given ones, if the outputs are stored, Q ≥ 2N/√M - 2M "
    "with the N products of nonzeros that there are"
)


def diagonal_game(n: int, M: int) -> Game:
    """C = AB for diagonal n x n matrices over a semiring: each product from its two operands."""
    from pebblesim.graphs.cdag import Cdag

    edges = [(operand, 2 * n + i) for i in range(n) for operand in (i, n + i)]
    played = []
    for i in range(n):
        a, b, c = i, n + i, 2 * n + i
        played += [(READ, a), (READ, b), (COMPUTE, c), (WRITE, c), (DELETE, a), (DELETE, b), (DELETE, c)]
    return referee(Cdag.from_edges(3 * n, edges), M, [moves(*played)])


def one_per_row_game(n: int, d: int, M: int) -> Game:
    """A1 X A2ᵀ with X = I, one nonzero in each row of A1 and A2 and n/d in each column; all its nonzeros are stored."""
    from pebblesim.graphs.cdag import Cdag

    rows = n // d  # rows of each column
    x, a1, a2, ax, s = 0, d, d + n, d + 2 * n, d + 3 * n
    edges, played = [], []
    for c in range(d):
        of_c = range(c * rows, (c + 1) * rows)
        played.append((READ, x + c))
        for i in of_c:
            edges += [(a1 + i, ax + i), (x + c, ax + i)]
            played += [(READ, a1 + i), (COMPUTE, ax + i), (DELETE, a1 + i)]
        played.append((DELETE, x + c))
        for j in of_c:
            played.append((READ, a2 + j))
            for i in of_c:
                edges += [(ax + i, s), (a2 + j, s)]
                played += [(COMPUTE, s), (WRITE, s), (DELETE, s)]
                s += 1
            played.append((DELETE, a2 + j))
        played += [(DELETE, ax + i) for i in of_c]
    return referee(Cdag.from_edges(s, edges), M, [moves(*played)])


def _undercut(game: str, bound: str, sizes: Mapping[str, int], *verdicts: str) -> Finding:
    """FAILS if a game is complete and moves fewer words than a bound, and every verdict fails as well."""
    played, _ = shown(game)
    words, line = shown(f"{game}.io")
    inner = ", ".join(f"{name}={size}" for name, size in sizes.items())
    claimed, other = shown(f'ps.claims.value("{bound}", {inner})')
    asymptotic = refuted(*verdicts)
    undercut = played.complete and words < claimed and asymptotic.status == FAILS
    status = FAILS if undercut else HOLDS
    return Finding(status, f"{line}, legal and complete, against\n{other}\n{asymptotic.evidence}")


_F1, _F2 = statement("Li et al., Lemma F.1"), statement("Li et al., Theorem F.2")
_1_2 = statement("Li et al., Theorem 1.2")
_ONE_PER_ROW = {"Z_A": "n", "Z_X": "d", "Z_AX": "n", "Z_AXA": "n**2/d"}
_DENSE = {"Z_A": "n*d", "Z_X": "d**2", "Z_AX": "n*d", "Z_AXA": "n**2"}


@claim("Lemma F.1", "Li et al.", in_words(_F1, _F1.expr, ""), FAILS, _INSTEAD)
def _diagonals(effort: Effort) -> Finding:
    assert _F1.expr
    n = effort.some(100, 10000)
    nonzeros = {"R1": "2*n", "R2": "n"}
    return _undercut(
        f"ps.claims.sparse.diagonal_game({n}, M=4)",
        _F1.expr,
        {"R1": 2 * n, "R2": n, "M": 4},
        deciding('"3*n"', "Ω", _F1.expr, "", nonzeros),
    )


def _one_per_row(effort: Effort) -> Finding:
    assert _F2.expr
    d = effort.some(256, 400)
    root = round(d**0.5)
    n, M = d * root, 4 * root
    sizes = {"Z_A": n, "Z_X": d, "Z_AX": n, "Z_AXA": n * n // d, "M": M}
    verdict = deciding('"d + 2*n + n**2/d"', "Ω", _F2.expr, "n >= d, M*d >= n", _ONE_PER_ROW)
    return _undercut(f"ps.claims.sparse.one_per_row_game({n}, {d}, M={M})", _F2.expr, sizes, verdict)


claim("Theorem 4.5", "Li et al.", in_words(_F2, _F2.expr, ""), FAILS, _INSTEAD)(_one_per_row)
claim("Theorem F.2", "Li et al.", in_words(_F2, _F2.expr, ""), FAILS, _INSTEAD)(_one_per_row)


@claim("Theorem 1.2", "Li et al.", in_words(_1_2, _1_2.expr, ""), FAILS, _INSTEAD)
def _theorem_1_2(effort: Effort) -> Finding:
    bound = _1_2.expr
    assert bound
    n, d, M = 4096, 256, 64
    return _undercut(
        f"ps.claims.sparse.one_per_row_game({n}, {d}, M={M})",
        bound,
        {"Z_A": n, "Z_AXA": n * n // d, "M": M},
        deciding('"d + 2*n + n**2/d"', "Ω", bound, "n >= d, M*d >= n", _ONE_PER_ROW),
    )


@claim(
    "Theorem F.2, dense inputs", "Li et al.", "with √(Z_A Z_X Z_AX) it is Theorem 1.1's bound for dense inputs", PROVED
)
def _dense(effort: Effort) -> Finding:
    main = statement("Li et al., Theorem 1.1").expr
    assert _F2.expr and main
    return decided(deciding(repr(_F2.expr), "Θ", main, "", _DENSE))


@claim(
    "Theorem F.2, as printed",
    "Li et al.",
    "with √(Z_A Z_X)·Z_AX, as F.2 and Remark 4.7 print, it is Theorem 1.1's bound for dense inputs",
    FAILS,
    "√(Z_A Z_X Z_AX), as in its proof",
)
def _printed(effort: Effort) -> Finding:
    main = statement("Li et al., Theorem 1.1").expr
    assert _F2.expr and main
    printed = _F2.expr.replace("sqrt(Z_A*Z_X*Z_AX)", "sqrt(Z_A*Z_X)*Z_AX")
    return refuted(deciding(repr(printed), "Θ", main, "", _DENSE))


@claim(
    "Theorem F.2, minimum of sums",
    "Li et al.",
    "two products, each bounded by a minimum, are bounded by the minimum of the sums",
    FAILS,
    "by the sum of the minima, which can be smaller by a power of the sizes",
)
def _minimum_of_sums(effort: Effort) -> Finding:
    apart = "Min(Z_A**2/M, Z_A*sqrt(Z_AXA)/sqrt(M)) + Min(Z_A*Z_X/M, sqrt(Z_A*Z_X*Z_AX)/sqrt(M))"
    assert _F2.expr
    return refuted(deciding(repr(apart), "Ω", _F2.expr, "Z_A <= Z_AX, Z_AX <= Z_AXA, Z_X <= Z_AX"))


@claim(
    "Theorem 1.2, dense",
    "Li et al.",
    "for dense inputs it is Theorem 1.1's bound",
    FAILS,
    "only for n ≥ d: it leaves out the terms of Z_X",
)
def _without_X(effort: Effort) -> Finding:
    bound, main = _1_2.expr, statement("Li et al., Theorem 1.1").expr
    assert bound and main
    kept = decided(deciding(repr(bound), "Θ", main, "n >= d", _DENSE))
    lost = refuted(deciding(repr(bound), "Θ", main, "", _DENSE))
    return Finding(lost.status if kept.status == PROVED else kept.status, f"{kept.evidence}\n{lost.evidence}")


@claim(
    "Theorem 1.2, masks",
    "Li et al.",
    "under a mask that allows Z pairs attention moves Ω(min((nd)²/M, nd √Z/√M)) words",
    FAILS,
    "with Z pairs for n²: Ω(nd + min(Zd²/M, Zd/√M))",
)
def _masks(effort: Effort) -> Finding:
    lines, ratios = [], []
    for n in (2**18, 2**20, 2**22):
        words, line = shown(f'ps.count("row-stationary-forward", n={n}, d=64, M=2**16, mask="window:128").io')
        pairs, _ = shown(f'ps.count("row-stationary-forward", n={n}, d=64, M=2**16, mask="window:128").pairs')
        bound, other = shown(
            f'ps.claims.value("Min(Z_A**2/M, Z_A*sqrt(Z_AXA)/sqrt(M))", Z_A={n}*64, Z_AXA={pairs}, M=2**16)'
        )
        lines += [f"{line} against", other]
        ratios.append(bound / words)
    falls = 1 < ratios[0] < ratios[1] < ratios[2]
    return Finding(FAILS if falls else HOLDS, "\n".join(lines))
