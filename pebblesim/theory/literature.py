"""What the literature states about the I/O of attention: each bound as text that sympy can parse, with its domain.

Statements are data. Whether they hold is for `pebblesim.claims` to judge; `repaired` says what they should have said.
n is the sequence length, d the head dimension, M the cache in words. Z_… count nonzero entries: Z_A of A1 (or of A2,
if that has fewer), Z_X of X, Z_AX of A1 X, Z_AXA of A1 X A2ᵀ; R1 of both operands of a product together, R2 of the
product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pebblesim.errors import UnknownName

SOURCES = {
    "Li et al.": "On Fine-Grained I/O Complexity of Attention Backward Passes, arXiv 2410.09397",
    "Saha & Ye": "The I/O Complexity of Attention, or How Optimal is FlashAttention?, arXiv 2402.07443",
    "Dao et al.": "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness, arXiv 2205.14135",
    "Hong & Kung": "I/O Complexity: The Red-Blue Pebble Game, STOC 1981",
    "Kwasniewski et al.": "Red-Blue Pebbling Revisited (COSMA), SC 2019, arXiv 1908.09606",
}

LARGE, SMALL = "M >= d**2", "M <= d**2"
_UP_TO_ND = f"{LARGE}, M <= n*d, n >= d"
_SMALL_AND_LONG = f"{SMALL}, n >= d"


@dataclass(frozen=True)
class Statement:
    """A bound as its source states it.

    Attributes:
        name: as in the source, "Theorem 1.1".
        source: a key of SOURCES.
        about: what it bounds.
        relation: "O", "Ω", "Θ", or "≥" with explicit constants.
        expr: the bound; None if it is no expression in sizes, or if its text was not at hand.
        domain: where the source claims it, in the form that `tropical.decide` takes; "" means for all sizes.
        assumes: what else it assumes.
        schedule, phase: the schedule here that it is claimed for, and the phase if it is about one.
        wording: "read" in the source; "inferred" from its use or proof there, its exact words not at hand; "missing".
        repaired, repaired_domain: the statement corrected, where it needs to be.
        note: what is wrong, or missing.
    """

    name: str
    source: str
    about: str
    relation: str
    expr: str | None
    domain: str = ""
    assumes: str = "standard matrix products"
    schedule: str | None = None
    phase: str | None = None
    wording: str = "read"
    repaired: str | None = None
    repaired_domain: str = ""
    note: str = ""

    @property
    def title(self) -> str:
        """Source and name, "Li et al., Theorem 1.1"."""
        return f"{self.source}, {self.name}"


_BACKWARD = "backward pass of attention, dL/dX"
_LARGE_BOUND = "(n**2*d**2 + n*d**3)/M"
_SMALL_BOUND = "(n**2*d + n*d**2)/sqrt(M)"
_DENSE = "Min(d**2*n**2/M, d*n**2/sqrt(M))"
_SPARSE_LARGE = "(Z_A**2 + Z_A*Z_X)/M"
_SPARSE_SMALL = "(Z_A*sqrt(Z_AXA) + sqrt(Z_A*Z_X*Z_AX))/sqrt(M)"
_SPARSE = f"Min({_SPARSE_LARGE}, {_SPARSE_SMALL})"
_ROWS = "with B_r = Θ(M/d) rows; as printed Algorithm 9 moves Θ(n²) words for every M ≥ 4d², and needs more than M"
_WITHOUT_X = "survives Lemma C.9, since n² = O(n²d/√M) there; for M > n² the bound is less than the d² words of X"
_MISSING = "its text was not at hand, so nothing is stated here"
_NEEDS_SMALL = "needs M = O(d²) as well: the phase also moves n² words or more, whatever M is"


def _li(name: str, about: str, relation: str, expr: str | None, domain: str = "", **more: str) -> Statement:
    return Statement(name, "Li et al.", about, relation, expr, domain, **more)


STATEMENTS: tuple[Statement, ...] = (
    _li("Theorem 1.1", _BACKWARD, "Θ", f"Min({_LARGE_BOUND}, {_SMALL_BOUND})",
        repaired=f"d*n + {_DENSE}", repaired_domain="n >= d",
        note="too small for M above nd and for n < d, where inputs and outputs alone are more"),
    _li("Theorem 1.2", "attention with sparse inputs, forward and backward", "Ω",
        "Min(Z_A**2/M, Z_A*sqrt(Z_AXA)/sqrt(M))", assumes="sparse products over a semiring", wording="inferred",
        note="a worst case over inputs with so many nonzeros, and false for some of them"),
    _li("Theorem 4.1", "Algorithm 9", "O", _LARGE_BOUND, LARGE, schedule="large-cache",
        repaired=_LARGE_BOUND, repaired_domain=_UP_TO_ND, note=_ROWS),
    _li("Theorem 4.2", _BACKWARD, "Ω", _LARGE_BOUND, LARGE, note="informal version of E.9"),
    _li("Theorem 4.3", "Algorithm 6", "O", _SMALL_BOUND, SMALL, schedule="small-cache",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, note=_WITHOUT_X),
    _li("Theorem 4.4", _BACKWARD, "Ω", _SMALL_BOUND, SMALL, note="informal version of E.10"),
    _li("Theorem 4.5", "attention with sparse inputs, forward and backward", "Ω", _SPARSE,
        assumes="sparse products over a semiring, for any inputs with so many nonzeros",
        wording="inferred", note="informal version of F.2"),
    _li("Remark 4.7", "where the two bounds for dense inputs cross", "Θ", "d**2", wording="inferred",
        note="the printed condition n ≫ d is not needed"),
    _li("Remark 5.1", "attention with another activation in the place of the softmax", "Ω",
        f"Min({_LARGE_BOUND}, {_SMALL_BOUND})",
        assumes="standard matrix products, and an activation that keeps A1 X A2ᵀ from being regrouped",
        wording="inferred", repaired=f"d*n + {_DENSE}", repaired_domain="n >= d",
        note="not for linear attention, whose products can be regrouped"),
    _li("Lemma C.5", "Algorithm 2: f", "O", _SMALL_BOUND, schedule="small-cache", phase="f", wording="inferred",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, note=_NEEDS_SMALL),
    _li("Lemma C.7", "Algorithm 3: q", "O", _SMALL_BOUND, schedule="small-cache", phase="q", wording="inferred",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, note=_NEEDS_SMALL),
    _li("Lemma C.9", "Algorithm 4: p", "O", "n**2/sqrt(M)", schedule="small-cache", phase="p",
        repaired="n**2", note="moves exactly 5n² words: there are n²/B² iterations, not n²/B³"),
    _li("Lemma C.11", "Algorithm 5: g", "O", _SMALL_BOUND, schedule="small-cache", phase="g", wording="inferred",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, note=_NEEDS_SMALL),
    _li("Theorem C.12", "Algorithm 6", "O", _SMALL_BOUND, SMALL, schedule="small-cache",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG,
        note=_WITHOUT_X),
    _li("Lemma D.2", "Algorithm 7: S and h", "O", "n*d + n*d**3/M", LARGE, schedule="large-cache", phase="S, h",
        wording="inferred", repaired="n*d + n*d**3/M", repaired_domain=f"{LARGE}, n >= d",
        note="its number of row blocks, O(nd/M), is wrong for the printed B_r; for n ≥ d the bound survives"),
    _li("Lemma D.4", "Algorithm 8: g", "O", "n*d + n**2*d**2/M", f"{LARGE}, M <= n*d",
        schedule="large-cache", phase="g", wording="inferred",
        repaired="n*d + n**2*d**2/M", repaired_domain=f"{LARGE}, M <= n*d",
        note="with B_r = Θ(M/d) rows; the printed min(⌈M/4d⌉, d) makes n/d row blocks, not nd/M"),
    _li("Theorem D.5", "Algorithm 9", "O", _LARGE_BOUND, LARGE, schedule="large-cache",
        repaired=_LARGE_BOUND, repaired_domain=_UP_TO_ND,
        note=_ROWS),
    _li("Lemma E.6", "any graph", "≥", None, assumes="P(2M): parts of a least 2M-partition",
        note="Q ≥ M (P(2M) - 1), Hong & Kung's; the -1 is lost near M = nd, where the trivial bound must be added"),
    _li("Lemma E.7", "", "", None, wording="missing", note=_MISSING),
    _li("Lemma E.8", "", "", None, wording="missing", note=_MISSING),
    _li("Theorem E.9", _BACKWARD, "Ω", _LARGE_BOUND, LARGE,
        note="its proof confuses product nodes with sum nodes; for n ≥ d the term nd³/M is redundant"),
    _li("Theorem E.10", _BACKWARD, "Ω", _SMALL_BOUND, SMALL,
        note="its reduction must store an entry at its first computation only, and the entries of A1 X too"),
    _li("Lemma F.1", "a sparse product, R1 nonzeros in, R2 out", "Ω", "Min(R1**2/M, R1*sqrt(R2)/sqrt(M))",
        assumes="sparse products over a semiring, for any operands with so many nonzeros",
        note="Pagh & Stöckel's bound is a worst case over operands; two diagonal matrices cost 3n words"),
    _li("Theorem F.2", "attention with sparse inputs, forward and backward", "Ω", _SPARSE,
        assumes="sparse products over a semiring, for any inputs with so many nonzeros",
        wording="inferred", note="prints √(Z_A Z_X)·Z_AX where its proof has √(Z_A Z_X Z_AX)"),
    _li("Theorem F.3", "", "", None, wording="missing", note=_MISSING),
    _li("Theorem F.4", "", "", None, wording="missing", note=_MISSING),
    Statement("Theorem 3.1", "Saha & Ye", "forward pass of attention", "Θ", _DENSE,
              repaired=f"d*n + {_DENSE}", repaired_domain="n >= d",
              note="too small for M above nd, where inputs and outputs alone are more"),
    Statement("Theorem 3.2", "Saha & Ye", "FlashAttention's forward pass", "O", "n**2*d**2/M", f"{LARGE}, M <= n*d",
              schedule="flash1-forward", note="Dao et al., Theorem 2"),
    Statement("Lemma 3.4", "Saha & Ye", "forward pass of attention", "Ω", "n**2*d**2/M", LARGE),
    Statement("Theorem 3.5", "Saha & Ye", "Algorithm 1", "O", "n**2*d/sqrt(M)", _SMALL_AND_LONG,
              schedule="small-cache-forward"),
    Statement("Theorem 3.7", "Saha & Ye", "forward pass of attention", "Ω", "n**2*d/sqrt(M)", SMALL),
    Statement("Theorem 4.8", "Saha & Ye", "forward pass of attention", "Ω", "Min(n**2*d**2/M, n**2)",
              assumes="any way to multiply, entries of a field with more than n elements"),
    Statement("Theorem 2, standard attention", "Dao et al.", "Algorithm 0", "Θ", "n*d + n**2", "M >= d, M <= n*d",
              schedule="standard-forward", wording="read", repaired="n*d + n**2",
              repaired_domain="M >= d**2, M >= n, M <= n*d, n >= d",
              note="takes every operand of a product as read once, which needs M ≥ d², and a row of scores to fit"),
    Statement("Theorem 2, FlashAttention", "Dao et al.", "Algorithm 1", "Θ", "n**2*d**2/M", "M >= d, M <= n*d",
              schedule="flash1-forward"),
    Statement("Proposition 3", "Dao et al.", "forward pass of attention", "Ω", "n**2*d**2/M", "M >= d, M <= n*d",
              note="says that o(n²d²/M) is impossible for all M in the range at once; for M < d² alone it is possible"),
    Statement("Proposition 4", "Dao et al.", "block-sparse FlashAttention, a fraction s of the blocks", "Θ",
              "n*d + n**2*d**2*s/M", "M >= d, M <= n*d", assumes="s is at most 1"),
    Statement("Theorem 5, standard attention", "Dao et al.", "Algorithm 3", "Θ", "n*d + n**2", "M >= d, M <= n*d",
              schedule="standard-backward", repaired="n*d + n**2",
              repaired_domain="M >= d**2, M >= n, M <= n*d, n >= d",
              note="takes every operand of a product as read once, which needs M ≥ d², and a row of scores to fit"),
    Statement("Theorem 5, FlashAttention", "Dao et al.", "Algorithm 4", "Θ", "n**2*d**2/M", "M >= d, M <= n*d",
              schedule="flash1-backward"),
    Statement("Lemma 3.1", "Hong & Kung", "any graph", "≥", None, assumes="P(2M): parts of a least 2M-partition",
              note="Q ≥ M (P(2M) - 1)"),
    Statement("Corollary 6.2", "Hong & Kung", "C = AB, (m, k) by (k, n)", "Ω", "m*k*n/sqrt(M)",
              repaired="m*k + k*n + m*n + m*k*n/sqrt(M)", note="without the words of A, B and C themselves"),
    Statement("Theorem 1", "Kwasniewski et al.", "C = AB, (m, k) by (k, n)", "≥", "2*m*n*k/sqrt(M) + m*n",
              "M <= m*n, M <= m*k, M <= k*n",
              note="false for C = AB with k < 2√M: its proof lets every entry of C enter with a former partial sum"),
)  # fmt: skip

_BY_TITLE: Mapping[str, Statement] = {statement.title: statement for statement in STATEMENTS}


class Cell(NamedTuple):
    """A bound in a table, and whose it is."""

    bound: str
    of: Statement


def _cells(large: str, small: str) -> tuple[Cell, Cell]:
    """Cells of two statements, as they state them."""
    found = [_BY_TITLE[title] for title in (large, small)]
    return Cell(found[0].expr or "", found[0]), Cell(found[1].expr or "", found[1])


_OF_SPARSE = _BY_TITLE["Li et al., Theorem 4.5"]

TABLE_1: tuple[tuple[str, str, Cell, Cell], ...] = (
    # what, kind of bound, for M = Ω(d²) and for M = o(d²)
    ("forward", "upper", *_cells("Dao et al., Theorem 2, FlashAttention", "Saha & Ye, Theorem 3.5")),
    ("forward", "lower", *_cells("Saha & Ye, Lemma 3.4", "Saha & Ye, Theorem 3.7")),
    ("backward", "upper", *_cells("Li et al., Theorem 4.1", "Li et al., Theorem 4.3")),
    ("backward", "lower", *_cells("Li et al., Theorem 4.2", "Li et al., Theorem 4.4")),
    ("sparse", "lower", Cell(_SPARSE_LARGE, _OF_SPARSE), Cell(_SPARSE_SMALL, _OF_SPARSE)),
)
"""The paper's Table 1: the same bounds; the order of its rows and columns was not at hand."""


def statement(title: str) -> Statement:
    """The statement of that title, "Li et al., Theorem 1.1".

    Raises:
        UnknownName: there is none; the message suggests one.
    """
    if title not in _BY_TITLE:
        raise UnknownName("statement", title, _BY_TITLE)
    return _BY_TITLE[title]


def region_in_words(domain: str) -> str:
    """A domain as people write it: M ≥ d², M ≤ nd."""
    for old, new in ((">=", "≥"), ("<=", "≤"), ("**2", "²"), ("*", "")):
        domain = domain.replace(old, new)
    return domain or "all sizes"
