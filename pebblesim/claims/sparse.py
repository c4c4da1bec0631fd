"""The sparse lower bounds, Lemmas F.1 and F.2 and Theorems F.3, F.4, 4.5 and 1.2, against games that move fewer words.

A game on sparse inputs computes only products of nonzeros; a softmax is over the nonzeros of a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from pebblesim.catalogue.literature import FALSE, MISPRINT, Erratum, statement
from pebblesim.claims.claim import (
    COMPUTED,
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
    tried,
)
from pebblesim.claims.playing import Playing
from pebblesim.core.notation import parse
from pebblesim.core.sizes import assigned
from pebblesim.game.referee import Game


def diagonal_game(n: int, M: int) -> Game:
    """Play C = AB for diagonal n x n matrices over a semiring: each product is computed from its two operands."""
    play = Playing()
    A, B = play.new(n), play.new(n)
    for a, b in zip(A, B, strict=True):
        play.read(a, b)
        play.write(play.make(a, b, dropping=(a, b)))
    return play.judged(M)


def _column(play: Playing, x: int, nonzeros: Sequence[int]) -> list[int]:
    """Read the nonzeros of a column of A1, and multiply each by the entry x of X; only the products stay."""
    play.read(x)
    S = []
    for a in nonzeros:
        play.read(a)
        S.append(play.make(a, x, dropping=(a,)))
    play.drop(x)
    return S


@cache
def one_per_row_game(n: int, d: int, M: int) -> Game:
    """Play A1 X A2ᵀ; X = I, A1 and A2 have one nonzero in each row and n/d in each column; all nonzeros are stored."""
    play, rows = Playing(), n // d  # rows of each column
    X, A1, A2 = play.new(d), play.new(n), play.new(n)
    for c in range(d):
        of_c = range(c * rows, (c + 1) * rows)
        S = _column(play, X[c], [A1[i] for i in of_c])
        for j in of_c:
            play.read(A2[j])
            for s in S:
                play.write(play.make(s, A2[j]))
            play.drop(A2[j])
        play.drop(*S)
    return play.judged(M)


def rank_one_game(n: int, d: int, M: int) -> Game:
    """Play A1 X A2ᵀ; A1 has one nonzero column, X one nonzero row, A2 is dense; A1 X is recomputed for each key."""
    play = Playing()
    X, A1 = play.new(d), play.new(n)
    S = [play.new(d) for _ in A1]
    play.edges += [
        (operand, s) for a, row in zip(A1, S, strict=True) for x, s in zip(X, row, strict=True) for operand in (a, x)
    ]
    play.read(*X)
    for _ in range(n):
        column = play.new(d)  # a row of A2
        play.read(*column)
        for a, row in zip(A1, S, strict=True):
            play.read(a)
            total = None
            for s, b in zip(row, column, strict=True):
                play.compute(s)
                term = play.make(s, b, dropping=(s,))
                total = term if total is None else play.make(total, term, dropping=(total, term))
            assert total is not None
            play.write(total)
            play.drop(a)
        play.drop(*column)
    return play.judged(M)


def sparse_forward_game(n: int, d: int, M: int) -> Game:
    """Play attention on the inputs of `one_per_row_game`, A3 like A2, Y = I; softmax over nonzeros; O is stored."""
    play, rows = Playing(), n // d
    X, Y, A1, A2, A3 = play.new(d), play.new(d), play.new(n), play.new(n), play.new(n)
    for c in range(d):
        of_c = range(c * rows, (c + 1) * rows)
        S = _column(play, X[c], [A1[i] for i in of_c])
        play.read(Y[c])
        sums: list[tuple[int, int]] = []  # of each row: l, and the sum of A h, which has one nonzero
        for j in of_c:
            play.read(A2[j], A3[j])
            h = play.make(A3[j], Y[c], dropping=(A3[j],))
            for i in range(rows):
                score = play.make(S[i], A2[j])
                A = play.make(score, dropping=(score,))  # its exponential
                term = play.make(A, h)
                sums = play.added(sums, i, A, term)
            play.drop(A2[j], h)
        play.drop(Y[c], *S)
        for l, total in sums:
            play.write(play.make(total, l, dropping=(total, l)))
    return play.judged(M)


def sparse_backward_game(n: int, d: int, M: int) -> Game:
    """Play dL/dX on the same inputs, dO like A1, n ≥ 2d; its d nonzeros are stored, exponentials computed twice."""
    play, rows = Playing(), n // d
    X, Y, A1, A2, A3, dO = play.new(d), play.new(d), *(play.new(n) for _ in range(4))
    for c in range(d):
        of_c = range(c * rows, (c + 1) * rows)
        play.read(X[c], Y[c])
        a1, S, q_of = [], [], [dO[i] for i in of_c]
        for i in of_c:
            play.read(A1[i], dO[i])
            a1.append(A1[i])
            S.append(play.make(A1[i], X[c]))
        A: dict[tuple[int, int], tuple[int, int]] = {}  # of each pair its score and exponential
        h: dict[int, int] = {}
        q: dict[tuple[int, int], int] = {}
        sums: list[tuple[int, int]] = []  # of each row: l, and the sum of A q
        for j in of_c:
            play.read(A2[j], A3[j])
            h[j] = play.make(A3[j], Y[c], dropping=(A3[j],))
            for i in range(rows):
                score = play.make(S[i], A2[j])
                exponential = play.make(score, dropping=(score,))
                A[i, j], q[i, j] = (score, exponential), play.make(q_of[i], h[j])
                term = play.make(exponential, q[i, j], dropping=(q[i, j],))
                sums = play.added(sums, i, exponential, term)
            play.drop(A2[j], h[j])
        v = [play.make(total, l, dropping=(total,)) for l, total in sums]
        g = None
        for j in of_c:
            play.read(A2[j], A3[j])
            play.compute(h[j], dropping=(A3[j],))
            for i in range(rows):
                score, exponential = A[i, j]
                play.compute(score)
                play.compute(exponential, dropping=(score,))
                play.compute(q[i, j])
                f = play.make(exponential, sums[i][0], dropping=(exponential,))
                less = play.make(q[i, j], v[i], dropping=(q[i, j],))
                p = play.make(f, less, dropping=(f, less))
                row = play.make(a1[i], p, dropping=(p,))
                term = play.make(row, A2[j], dropping=(row,))
                g = term if g is None else play.make(g, term, dropping=(g, term))
            play.drop(A2[j], h[j])
        assert g is not None
        play.write(g)
        play.drop(X[c], Y[c], *a1, *S, *q_of, *v, *(l for l, _ in sums))
    return play.judged(M)


_ONE_PER_ROW = {"Z_A": "n", "Z_X": "d", "Z_AX": "n", "Z_AXA": "n**2/d", "Z_input": "n", "Z_QK": "n**2/d"}
_DENSE = {"Z_A": "n*d", "Z_X": "d**2", "Z_AX": "n*d", "Z_AXA": "n**2", "Z_input": "n*d", "Z_QK": "n**2"}

_WORDS = {
    # for each game, its words, as a formula in the sizes for which its claims are decided
    "diagonal_game": "3*n",
    "one_per_row_game": "d + 2*n + n**2/d",
    "sparse_forward_game": "2*d + 4*n",
    "sparse_backward_game": "3*d + 6*n",
}


def _words(game: str, effort: Effort) -> Finding:
    """Return COMPUTED if a game moves the words of its formula, at several sizes, also ragged ones."""
    lines = []
    for n, d in ((4, 2), (9, 3), (30, 5), (64, 4))[: effort.some(3, 4)]:
        arguments = f"{n}, M=4" if game == "diagonal_game" else f"{n}, {d}, M=1000"
        text = f"ps.claims.sparse.{game}({arguments})"
        played, _ = shown(text)
        words, line = played.io, f"{text}.io → {played.io}"
        typed, _ = shown(f'ps.claims.value("{_WORDS[game]}", n={n}, d={d})')
        if not played.complete or words != typed:
            return Finding(FAILS, f"{line}, not {typed}")
        lines.append(line)
    return tried(len(lines), "\n".join([*lines, f"which is {_WORDS[game]}"]), COMPUTED)


def _undercut(game: str, arguments: str, bound: str, sizes: Mapping[str, int], verdict: str, effort: Effort) -> Finding:
    """Return FAILS if a game is complete, moves fewer words than a bound, and is not even Ω of the bound."""
    same = _words(game, effort)
    text = f"ps.claims.sparse.{game}({arguments})"
    played, _ = shown(text)
    words, line = played.io, f"{text}.io → {played.io}"
    inner = assigned(sizes)
    claimed, other = shown(f'ps.claims.value("{bound}", {inner})')
    asymptotic = refuted(verdict)
    undercut = played.complete and words < claimed and asymptotic.status == FAILS and same.status == COMPUTED
    status = FAILS if undercut else HOLDS
    return Finding(status, f"{same.evidence}\n{line}, legal and complete, against\n{other}\n{asymptotic.evidence}")


_F1, _F2 = statement("Li et al., Lemma F.1"), statement("Li et al., Lemma F.2")


@claim("Lemma F.1", "Li et al.", in_words(_F1, _F1.expr, "") + "; read for any operands given", FAILS, _F1.erratum)
def _diagonals(effort: Effort) -> Finding:
    assert _F1.expr
    n = effort.some(100, 10000)
    verdict = deciding(repr(_WORDS["diagonal_game"]), "Ω", _F1.expr, "", {"R1": "2*n", "R2": "n"})
    return _undercut("diagonal_game", f"{n}, M=4", _F1.expr, {"R1": 2 * n, "R2": n, "M": 4}, verdict, effort)


def _behind_scores(bound: str, found: Finding) -> Finding:
    """Put the game of Lemma F.2, which has no softmax, before what refutes a theorem that is derived from the lemma."""
    n, d, M = 4096, 256, 64
    game = f"ps.claims.sparse.one_per_row_game({n}, {d}, M={M})"
    claimed, other = shown(f'ps.claims.value("{bound}", {assigned(_numbers(bound, n, d, M))})')
    played = one_per_row_game(n, d, M)
    line = f"{game}.io → {played.io}, legal and complete, against"
    agrees = played.complete and played.io < claimed
    status = found.status if agrees else HOLDS
    return Finding(status, f"the scores alone, without a softmax:\n{line}\n{other}\nand with it:\n{found.evidence}")


def _numbers(bound: str, n: int, d: int, M: int) -> dict[str, int]:
    """Return the numbers of nonzeros that a bound speaks of, where each row has one, and M."""
    number = {name: int(parse(rule).subs({"n": n, "d": d})) for name, rule in _ONE_PER_ROW.items()}
    used = re.findall(r"\w+", bound)
    return {name: size for name, size in number.items() if name in used} | {"M": M}


def _register(title: str, game: str, n: int, d: int, M: int) -> None:
    stated = statement(f"Li et al., {title}")
    bound = stated.expr
    assert bound

    reading = "; read for any inputs given"
    softmax = "" if game == "one_per_row_game" else ", with a softmax over the nonzeros of a row"

    @claim(title, "Li et al.", in_words(stated, bound, "") + reading + softmax, FAILS, stated.erratum)
    def judge(effort: Effort) -> Finding:
        verdict = deciding(repr(_WORDS[game]), "Ω", bound, "n >= 3*d, M*d >= 8*n", _ONE_PER_ROW)
        found = _undercut(game, f"{n}, {d}, M={M}", bound, _numbers(bound, n, d, M), verdict, effort)
        return found if stated is _F2 else _behind_scores(bound, found)


for _of in (
    ("Lemma F.2", "one_per_row_game", 4096, 256, 64),
    ("Theorem F.3", "sparse_forward_game", 512, 64, 64),
    ("Theorem F.4", "sparse_backward_game", 512, 64, 64),
    ("Theorem 4.5", "sparse_forward_game", 512, 64, 64),
    ("Theorem 1.2", "sparse_forward_game", 512, 64, 64),
):
    _register(*_of)


@claim("Remark 4.6", "Li et al.", "with √(Z_A Z_X Z_AX), 4.5 is the bound of Theorem 1.1 for dense inputs", COMPUTED)
def _dense(effort: Effort) -> Finding:
    main = statement("Li et al., Theorem 1.1").expr
    assert _F2.expr and main
    return decided(deciding(repr(_F2.expr), "Θ", main, "", _DENSE), status=COMPUTED)


@claim(
    "Lemma F.2, as printed",
    "Li et al.",
    "with √(Z_A Z_X)·Z_AX, as printed in F.2 and Remark 4.7, it is the bound of Theorem 1.1 for dense inputs",
    FAILS,
    Erratum(MISPRINT, "√(Z_A Z_X Z_AX), as in its proof and in Theorem 4.5", "the proof", "no"),
)
def _printed(effort: Effort) -> Finding:
    main = statement("Li et al., Theorem 1.1").expr
    assert _F2.expr and main
    printed = _F2.expr.replace("sqrt(Z_A*Z_X*Z_AX)", "sqrt(Z_A*Z_X)*Z_AX")
    return refuted(deciding(repr(printed), "Θ", main, "", _DENSE))


@claim(
    "Lemma F.2, minimum of sums",
    "Li et al.",
    "if each of two products is bounded by a minimum, both together are bounded by the minimum of the sums",
    FAILS,
    Erratum(
        FALSE,
        "they are bounded by the sum of the minima, which can be smaller by a power of the sizes",
        "inputs where A1 X has at least as many nonzeros as each of A1, A2 and X, and A1 X A2ᵀ at least as many as A1 "
        "X: for example dense inputs",
        "Theorems 1.2 and 4.5 do",
    ),
)
def _minimum_of_sums(effort: Effort) -> Finding:
    """Use the full bound of Lemma F.1 for each product; A1 and A2 have the same number of nonzeros."""
    assert _F1.expr and _F2.expr
    first, second = (
        _F1.expr.replace("R1", f"({both})").replace("R2", made)
        for both, made in (("Z_A + Z_X", "Z_AX"), ("Z_AX + Z_A", "Z_AXA"))
    )
    apart = repr(f"{first} + {second}")
    finding = refuted(deciding(apart, "Ω", _F2.expr, "Z_AXA <= Z_A*Z_AX"))
    kept = decided(deciding(apart, "Ω", _F2.expr, "Z_A <= Z_AX, Z_X <= Z_AX, Z_AX <= Z_AXA"))
    wrong = finding.status == FAILS and kept.status == PROVED
    return Finding(FAILS if wrong else HOLDS, "\n".join([finding.evidence, kept.evidence.partition("\n")[0]]))


@claim(
    "products of nonzeros",
    "ours",
    "2N/√M - M, where N is the number of products of nonzeros, is a lower bound for one product of given matrices, but "
    "not for A1 X A2ᵀ",
    HOLDS,
)
def _products(effort: Effort) -> Finding:
    """Recomputed entries of A1 X need no I/O, so a segment can start with them for free."""
    n, d = effort.some(32, 128), 16
    game, M = f"ps.claims.sparse.rank_one_game({n}, {d}, M={2 * d + 5})", 2 * d + 5
    played, _ = shown(game)
    least, other = shown(f'ps.claims.value("2*(n*d + n**2*d)/sqrt(M) - M", n={n}, d={d}, M={M})')
    undercut = played.complete and played.io < least
    line = f"{game}.io → {played.io}, legal and complete, against"
    return Finding(HOLDS if undercut else FAILS, f"{line}\n{other}")


@claim("Theorem 1.2, dense", "Li et al.", "for dense inputs and n ≥ d it is the bound of Theorem 1.1", COMPUTED)
def _without_X(effort: Effort) -> Finding:
    bound, main = statement("Li et al., Theorem 1.2").expr, statement("Li et al., Theorem 1.1").expr
    assert bound and main
    return decided(deciding(repr(bound), "Θ", main, "n >= d", _DENSE), status=COMPUTED)


@claim(
    "masks as sparsity",
    "ours",
    "Theorem 1.2 is not a bound for masks: with Z_QK = Z allowed pairs and Z_input = nd, a schedule moves fewer words",
    HOLDS,
)
def _masks(effort: Effort) -> Finding:
    lines, ratios = [], []
    for n in (2**18, 2**20, 2**22):
        words, line = shown(f'ps.count("row-stationary-forward", n={n}, d=64, M=2**16, mask="window:128").io')
        pairs, _ = shown(f'ps.count("row-stationary-forward", n={n}, d=64, M=2**16, mask="window:128").pairs')
        bound, other = shown(
            f'ps.claims.value("Min(Z_input**2/M, Z_input*sqrt(Z_QK)/sqrt(M))", Z_input={n}*64, Z_QK={pairs}, M=2**16)'
        )
        lines += [f"{line} against", other]
        ratios.append(bound / words)
    falls = 1 < ratios[0] < ratios[1] < ratios[2]
    return Finding(HOLDS if falls else FAILS, "\n".join(lines))
