"""Statements of the literature about the I/O of attention: each bound as text that sympy can parse, with its domain.

Statements are data. `pebblesim.claims` judges whether they hold; `repaired` is the corrected statement. n is the
sequence length, d the head dimension, M the cache in words. Z_… count nonzero entries: Z_A of A1 (or of A2, if that has
fewer), Z_X of X, Z_AX of A1 X, Z_AXA of A1 X A2ᵀ; Z_input of the input, Z_QK of the key-query matrix; R1 of both
operands of a product together, R2 of the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pebblesim.core.errors import UnknownName

if TYPE_CHECKING:
    from sympy import Expr

SOURCES = {
    "Li et al.": "On Fine-Grained I/O Complexity of Attention Backward Passes, arXiv 2410.09397",
    "Saha & Ye": "The I/O Complexity of Attention, or How Optimal is FlashAttention?, arXiv 2402.07443",
    "Dao et al.": "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness, arXiv 2205.14135",
    "Hong & Kung": "I/O Complexity: The Red-Blue Pebble Game, STOC 1981",
    "Kwasniewski et al.": "Red-Blue Pebbling Revisited (COSMA), SC 2019, arXiv 1908.09606",
}

LARGE, SMALL = "M >= d**2", "M <= d**2"
_LARGE_TO_ND = f"{LARGE}, M <= n*d"
_ABOVE_TO_ND = "M >= (1 + 1/1000)*d**2, M <= n*d"
_SMALL_AND_LONG = f"{SMALL}, n >= d"

FALSE, OUTSIDE, UNCLEAR, MISPRINT = "false", "false outside a domain", "unclear", "misprint"
FALSE_FOR_GIVEN = "false for given inputs, open for the worst"
"""Kinds of errata. A statement of the second kind is true in a smaller domain; an unclear one has a correct reading.
One of the last kind is false if it is meant for any inputs; for the worst inputs it is neither proved nor refuted here.
"""


@dataclass(frozen=True)
class Erratum:
    """An error in a statement.

    Attributes:
        kind: FALSE, OUTSIDE, UNCLEAR, MISPRINT or FALSE_FOR_GIVEN.
        instead: the correct statement.
        survives: the part of the statement that remains true.
        matters: whether the main results of its source depend on it.
    """

    kind: str
    instead: str
    survives: str
    matters: str


@dataclass(frozen=True)
class Statement:
    """A bound as stated in its source.

    Attributes:
        name: as in the source, "Theorem 1.1".
        source: a key of SOURCES.
        about: what it bounds.
        relation: "O", "Ω", "Θ", or "≥" with explicit constants.
        expr: the bound; None if it is not an expression in sizes.
        domain: where the source claims it, in the form that `tropical.decide` takes; "" means for all sizes.
        assumes: further assumptions.
        schedule, phase: the schedule here that the statement is about, and its phase if it is about one phase.
        repaired, repaired_domain: the corrected statement, if a correction is needed.
        by: the schedule that attains the repaired statement, if it is not `schedule`.
        note: further remarks.
        erratum: the error in the statement; None if there is none.
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
    repaired: str | None = None
    repaired_domain: str = ""
    by: str | None = None
    note: str = ""
    erratum: Erratum | None = None

    @property
    def sympy(self) -> Expr | None:
        """Return the bound as a `sympy.Expr` without assumptions on its symbols;

        None if it is not an expression in sizes.
        """
        from pebblesim.core.notation import parse

        return None if self.expr is None else parse(self.expr)

    @property
    def latex(self) -> str:
        r"""The bound in LaTeX's mathematics, such as `\Omega\left(d^{2}\right)`; empty if it is no expression."""
        from pebblesim.core.notation import in_latex

        if self.expr is None:
            return ""
        sign = {"Θ": r"\Theta", "Ω": r"\Omega", "≥": r"\ge"}.get(self.relation, self.relation)
        inner = in_latex(self.expr)
        return f"{sign} {inner}" if self.relation == "≥" else rf"{sign}\left({inner}\right)"

    @property
    def text(self) -> str:
        """The statement for people: what it bounds, by what, where, and what is wrong with it."""
        from pebblesim.core.notation import parse, written

        lines = [f"{self.marked}: {self.about or self.note}"]
        if self.expr:
            form = f"{self.relation}({written(parse(self.expr))})"
            lines.append(f"{form} for {region_in_words(self.domain)}; {self.assumes}")
        lines += [self.mark] if self.mark else []
        lines += [self.note] if self.about and self.note else []
        return "\n  ".join(lines)

    @property
    def title(self) -> str:
        """Source and name, "Li et al., Theorem 1.1"."""
        return f"{self.source}, {self.name}"

    @property
    def marked(self) -> str:
        """The title, with the kind of its error if it has one: "Li et al., Theorem 4.1 [false]"."""
        return self.title if self.erratum is None else f"{self.title} [{self.erratum.kind}]"

    @property
    def mark(self) -> str:
        """The kind of its error, what is true instead, and what remains true; empty if no error is known."""
        error = self.erratum
        return "" if error is None else f"{error.kind}; instead: {error.instead}; remains true: {error.survives}"


_BACKWARD = "backward pass of attention, dL/dX"
_LARGE_BOUND = "(n**2*d**2 + n*d**3)/M"
_SMALL_BOUND = "(n**2*d + n*d**2)/sqrt(M)"
_DENSE = "Min(d**2*n**2/M, d*n**2/sqrt(M))"
_SPARSE_LARGE = "(Z_A**2 + Z_A*Z_X)/M"
_SPARSE_SMALL = "(Z_A*sqrt(Z_AXA) + sqrt(Z_A*Z_X*Z_AX))/sqrt(M)"
_SPARSE = f"Min({_SPARSE_LARGE}, {_SPARSE_SMALL})"

_PRINTED_BLOCKS = Erratum(
    FALSE,
    "for M ≥ (1 + ε)d², any ε > 0, with B_r = Θ(M/d) rows and a few columns at a time; the printed sizes of B_r and "
    "B_c, exchanged, give this count, but do not fit into M words; at M = d² no blocks fit beside g, and just above d² "
    "only blocks of one row fit",
    "that some algorithm has this bound for d² ≤ M ≤ nd: our row-stationary needs no d² words beside its blocks",
    "no: the upper bound of Theorem 1.1 for large caches is true with the repaired blocks, and Table 1 credits it to "
    "Dao et al., whose backward pass is for dQ, dK and dV",
)
_SHORT = Erratum(
    OUTSIDE,
    "for n ≥ d, as in Table 1 of the paper; for n < d and M > n² the d² words of a d x d matrix must be added",
    "all of it for n ≥ d",
    "no: the summary of the main results assumes n ≥ d",
)
_SPARSE_PRODUCT = (
    "read as a statement on the worst operands with these numbers of nonzeros it is true, by Pagh & Stöckel; read for "
    "any operands given it is not; for those, if the nonzeros of the product are stored, Q ≥ 2N/√M - M, where N is the "
    "number of products of nonzeros"
)
_SPARSE_CHAIN = (
    "for a single product of given matrices, see Lemma F.1; for A1 X A2ᵀ not even Q ≥ 2N/√M - M holds, because "
    "entries of A1 X may be recomputed (claim: products of nonzeros); whether it is true for the worst inputs with "
    "these numbers of nonzeros is open: Lemma F.1 speaks of the worst operands of each product by itself"
)
_ABOVE_ND = Erratum(
    OUTSIDE,
    "nd + min(n²d/√M, n²d²/M) for n ≥ d: the words of inputs and outputs are added",
    "all of it for d ≤ n and M ≤ nd, where the two bounds are equal up to a constant factor",
    "it is a main result; only its case M > nd is false",
)


_STANDARD = Erratum(
    OUTSIDE,
    "for M ≥ d²: for M < d², a blocked product of matrices reads its operands more than once, n²d/√M words; the n² "
    "words of the scores do not depend on M",
    "all of it for d² ≤ M ≤ nd",
    "no: FlashAttention is compared with it, and if it moves more words, the comparison is stronger",
)


def _li(name: str, about: str, relation: str, expr: str | None, domain: str = "", **more: Any) -> Statement:
    return Statement(name, "Li et al.", about, relation, expr, domain, **more)


_SEMIRING = "sparse products over a semiring, for any inputs with these numbers of nonzeros"

STATEMENTS: tuple[Statement, ...] = (
    _li("Theorem 1.1", _BACKWARD, "Θ", f"Min({_LARGE_BOUND}, {_SMALL_BOUND})",
        repaired=f"d*n + {_DENSE}", repaired_domain="n >= d",
        erratum=replace(
            _ABOVE_ND,
            matters="it is the main result; its parts assume M ≤ nd (Theorem D.5) and n ≥ d (Table 1), and only the "
            "summary omits both conditions"),
        note="a summary of Theorems 4.1 to 4.4; Theorem D.5, the formal version of 4.1, assumes M ≤ nd"),
    _li("Theorem 1.2", "attention with sparse inputs, forward and backward", "Ω",
        "Min(Z_input**2/M, Z_input*sqrt(Z_QK)/sqrt(M))", assumes=_SEMIRING,
        note="informal version of 4.5",
        erratum=Erratum(FALSE_FOR_GIVEN, _SPARSE_CHAIN, "dense inputs, by Saha & Ye and by Theorems 4.2 and 4.4",
                        "it is a main result, on sparse attention; the dense results do not depend on it")),
    _li("Theorem 4.1", "Algorithm 9", "O", _LARGE_BOUND, LARGE, schedule="large-cache",
        repaired=_LARGE_BOUND, repaired_domain=_ABOVE_TO_ND, erratum=_PRINTED_BLOCKS,
        note="informal version of D.5, which also assumes M ≤ nd"),
    _li("Theorem 4.2", _BACKWARD, "Ω", _LARGE_BOUND, LARGE, note="informal version of E.9"),
    _li("Theorem 4.3", "Algorithm 6", "O", _SMALL_BOUND, SMALL, schedule="small-cache",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, erratum=_SHORT),
    _li("Theorem 4.4", _BACKWARD, "Ω", _SMALL_BOUND, SMALL, note="informal version of E.10"),
    _li("Theorem 4.5", "attention with sparse inputs, forward and backward", "Ω", _SPARSE, assumes=_SEMIRING,
        note="F.3 and F.4 together",
        erratum=Erratum(FALSE_FOR_GIVEN, _SPARSE_CHAIN, "dense inputs, by Saha & Ye and by Theorems 4.2 and 4.4",
                        "it is a main result, on sparse attention; the dense results do not depend on it")),
    _li("Remark 4.7", "where the two bounds for dense inputs cross", "Θ", "d**2",
        note="it assumes n ≫ d, but does not need it: (n²d² + nd³)/(n²d + nd²) is d"),
    _li("Remark 5.1", "attention with another non-linear activation instead of the softmax", "Ω",
        f"Min({_LARGE_BOUND}, {_SMALL_BOUND})", "n >= d, M <= n*d",
        assumes="standard matrix products; the remark itself calls the bound loose for linear attention",
        repaired=f"d*n + {_DENSE}", repaired_domain="n >= d"),
    _li("Lemma C.5", "Algorithm 2: f", "O", _SMALL_BOUND, SMALL, schedule="small-cache", phase="f",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, erratum=_SHORT),
    _li("Lemma C.7", "Algorithm 3: q", "O", _SMALL_BOUND, SMALL, schedule="small-cache", phase="q",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, erratum=_SHORT),
    _li("Lemma C.9", "Algorithm 4: p", "O", "n**2/sqrt(M)", SMALL, schedule="small-cache", phase="p",
        repaired="n**2",
        erratum=Erratum(FALSE, "it moves exactly 5n² words: there are n²/B² iterations, not n²/B³",
                        "that this phase is not the bottleneck: 5n² = O(n²d/√M) for M = O(d²)",
                        "no: Theorem C.12 is true with 5n² in its sum")),
    _li("Lemma C.11", "Algorithm 5: g", "O", _SMALL_BOUND, SMALL, schedule="small-cache", phase="g",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, erratum=_SHORT),
    _li("Theorem C.12", "Algorithm 6", "O", _SMALL_BOUND, SMALL, schedule="small-cache",
        repaired=_SMALL_BOUND, repaired_domain=_SMALL_AND_LONG, erratum=_SHORT),
    _li("Lemma D.2", "Algorithm 7: S and h", "O", _LARGE_BOUND, "M >= d, M <= n*d", schedule="large-cache",
        phase="S, h", note="true with the printed blocks, although the step T_r = O(nd/M) of its proof is false"),
    _li("Lemma D.4", "Algorithm 8: g", "O", _LARGE_BOUND, _LARGE_TO_ND, schedule="large-cache", phase="g",
        repaired=_LARGE_BOUND, repaired_domain=_ABOVE_TO_ND, erratum=_PRINTED_BLOCKS),
    _li("Theorem D.5", "Algorithm 9", "O", _LARGE_BOUND, _LARGE_TO_ND, schedule="large-cache",
        repaired=_LARGE_BOUND, repaired_domain=_ABOVE_TO_ND, erratum=_PRINTED_BLOCKS),
    _li("Lemma E.6", "any graph", "≥", None, assumes="P(2M): number of parts of a smallest 2M-partition",
        note="Q ≥ M (P(2M) - 1), by Hong & Kung"),
    _li("Lemma E.7", "product and sum nodes of a product of n1 x d by d x n2 in a part of an M-partition", "O",
        "M**2/d", LARGE, note="Saha & Ye's Lemma 3.3; E.6 counts parts of a 2M-partition, with at most four times as "
        "many nodes"),
    _li("Lemma E.8", "C = AB, (m, k) by (k, n)", "Ω", "m*k*n/sqrt(M)", note="Hong & Kung's Corollary 6.2"),
    _li("Theorem E.9", _BACKWARD, "Ω", _LARGE_BOUND, LARGE,
        note="for n ≥ d the term nd³/M is redundant; its proof, by the -1 of Lemma E.6, needs M ≤ nd/(1 + ε), and for "
        "larger M the words of inputs and outputs are enough"),
    _li("Theorem E.10", _BACKWARD, "Ω", _SMALL_BOUND, SMALL),
    _li("Lemma F.1", "a sparse product, R1 nonzeros in, R2 out", "Ω", "Min(R1**2/M, R1*sqrt(R2)/sqrt(M))",
        assumes="sparse products over a semiring, for any operands with these numbers of nonzeros",
        erratum=Erratum(UNCLEAR, _SPARSE_PRODUCT, "all of it for the worst operands, by Pagh & Stöckel",
                        "no, in the true reading; the proofs of Lemma F.2, and so of Theorems 1.2 and 4.5, need the "
                        "other one, for the operands that a product of three matrices gives")),
    _li("Lemma F.2", "A1 X A2ᵀ with sparse A1, X and A2", "Ω", _SPARSE, assumes=_SEMIRING,
        note="printed with √(Z_A Z_X)·Z_AX, where its proof has √(Z_A Z_X Z_AX)",
        erratum=Erratum(FALSE_FOR_GIVEN, _SPARSE_CHAIN, "dense inputs, by the bounds on dense products",
                        "Theorems 1.2 and 4.5 do")),
    _li("Theorem F.3", "attention with sparse inputs, forward", "Ω", _SPARSE, assumes=_SEMIRING,
        erratum=Erratum(FALSE_FOR_GIVEN, _SPARSE_CHAIN, "dense inputs, by Saha & Ye", "Theorems 1.2 and 4.5 do")),
    _li("Theorem F.4", "attention with sparse inputs, backward", "Ω", _SPARSE, assumes=_SEMIRING,
        erratum=Erratum(FALSE_FOR_GIVEN, _SPARSE_CHAIN, "dense inputs, by Theorems 4.2 and 4.4",
                        "Theorems 1.2 and 4.5 do")),
    Statement("Theorem 3.1", "Saha & Ye", "forward pass of attention", "Θ", _DENSE,
              repaired=f"d*n + {_DENSE}", repaired_domain="n >= d", erratum=_ABOVE_ND),
    Statement("Theorem 3.2", "Saha & Ye", "FlashAttention's forward pass", "O", "n**2*d**2/M", f"{LARGE}, M <= n*d",
              schedule="flash1-forward", note="Dao et al., Theorem 2"),
    Statement("Lemma 3.4", "Saha & Ye", "forward pass of attention", "Ω", "n**2*d**2/M", LARGE),
    Statement("Theorem 3.5", "Saha & Ye", "Algorithm 1", "O", "n**2*d/sqrt(M)", _SMALL_AND_LONG,
              schedule="small-cache-forward"),
    Statement("Theorem 3.7", "Saha & Ye", "forward pass of attention", "Ω", "n**2*d/sqrt(M)", SMALL),
    Statement("Theorem 4.8", "Saha & Ye", "forward pass of attention", "Ω", "Min(n**2*d**2/M, n**2)",
              assumes="any algorithm for matrix products, entries of a field with more than n elements"),
    Statement("Theorem 2, standard attention", "Dao et al.", "Algorithm 0", "Θ", "n*d + n**2", "M >= d, M <= n*d",
              schedule="standard-forward", repaired="n*d + n**2", repaired_domain=f"{_LARGE_TO_ND}",
              by="small-cache-forward", erratum=_STANDARD),
    Statement("Theorem 2, FlashAttention", "Dao et al.", "Algorithm 1", "Θ", "n**2*d**2/M", "M >= d, M <= n*d",
              schedule="flash1-forward"),
    Statement("Proposition 3", "Dao et al.", "forward pass of attention", "Ω", "n**2*d**2/M", "M >= d, M <= n*d",
              note="o(n²d²/M) is impossible for all M in the range at once; for M < d² alone it is possible"),
    Statement("Proposition 4", "Dao et al.", "block-sparse FlashAttention, a fraction s of the blocks", "Θ",
              "n*d + n**2*d**2*s/M", "M >= d, M <= n*d", assumes="s is at most 1"),
    Statement("Theorem 5, standard attention", "Dao et al.", "Algorithm 3", "Θ", "n*d + n**2", "M >= d, M <= n*d",
              schedule="standard-backward", repaired="n*d + n**2", repaired_domain=f"{_LARGE_TO_ND}",
              by="small-cache-backward-streamed", erratum=_STANDARD),
    Statement("Theorem 5, FlashAttention", "Dao et al.", "Algorithm 4", "Θ", "n**2*d**2/M", "M >= d, M <= n*d",
              schedule="flash1-backward"),
    Statement("Lemma 3.1", "Hong & Kung", "any graph", "≥", None,
              assumes="P(2M): number of parts of a smallest 2M-partition",
              note="Q ≥ M (P(2M) - 1)"),
    Statement("Corollary 6.2", "Hong & Kung", "C = AB, (m, k) by (k, n)", "Ω", "m*k*n/sqrt(M)",
              repaired="m*k + k*n + m*n + m*k*n/sqrt(M)", note="the words of A, B and C themselves may be added"),
    Statement("Theorem 1", "Kwasniewski et al.", "C = AB, (m, k) by (k, n)", "≥", "2*m*n*k/sqrt(M) + m*n",
              "M <= m*n, M <= m*k, M <= k*n",
              erratum=Erratum(FALSE, "2mnk/√S - S for all sizes; 2mnk/√S + mn for C += AB, where every entry of C has "
                              "an earlier value", "the leading term",
                              "not to leading order: mn is a lower-order term if k is large compared with √S"),
              note="S is M there; if k < 2√S, its proof assumes an earlier partial sum for every entry of C"),
)  # fmt: skip

_BY_TITLE: Mapping[str, Statement] = {statement.title: statement for statement in STATEMENTS}


class Cell(NamedTuple):
    """A bound in a table, and its source."""

    bound: str
    of: Statement


def _cells(large: tuple[str, str], small: tuple[str, str]) -> tuple[Cell, Cell]:
    """Return the bounds as printed in the table, with the titles of their statements."""
    (of_large, first), (of_small, second) = large, small
    return Cell(of_large, _BY_TITLE[first]), Cell(of_small, _BY_TITLE[second])


_N_LARGE, _N_SMALL = "n**2*d**2/M", "n**2*d/sqrt(M)"
_Z_LARGE, _Z_SMALL = "Z_input**2/M", "Z_input*sqrt(Z_QK)/sqrt(M)"
_OF_SPARSE = _cells((_Z_LARGE, "Li et al., Theorem 4.5"), (_Z_SMALL, "Li et al., Theorem 4.5"))

TABLE_1: tuple[tuple[str, str, Cell, Cell], ...] = (
    # what, kind of bound, for M = Ω(d²) and for M = o(d²)
    ("forward", "upper",
     *_cells((_N_LARGE, "Dao et al., Theorem 2, FlashAttention"), (_N_SMALL, "Saha & Ye, Theorem 3.5"))),
    ("forward", "lower", *_cells((_N_LARGE, "Saha & Ye, Lemma 3.4"), (_N_SMALL, "Saha & Ye, Theorem 3.7"))),
    ("backward", "upper",
     *_cells((_N_LARGE, "Dao et al., Theorem 5, FlashAttention"), (_N_SMALL, "Li et al., Theorem 4.3"))),
    ("backward", "lower", *_cells((_N_LARGE, "Li et al., Theorem 4.2"), (_N_SMALL, "Li et al., Theorem 4.4"))),
    ("sparse forward", "lower", *_OF_SPARSE),
    ("sparse backward", "lower", *_OF_SPARSE),
)  # fmt: skip
"""The paper's Table 1, for n ≥ d, which makes the terms in nd² and nd³ redundant."""


def statement(title: str) -> Statement:
    """Return the statement with this title, such as "Li et al., Theorem 1.1".

    Raises:
        UnknownName: there is no such statement; the message suggests similar titles.
    """
    if title not in _BY_TITLE:
        raise UnknownName("statement", title, _BY_TITLE)
    return _BY_TITLE[title]


def latex(statements: Iterable[Statement]) -> str:
    """Format the expressions of statements, each with its title and domain, as an `align*` environment of LaTeX.

    What is false, or true only in a domain, has a mark; a list below says what is true instead.
    """
    from pebblesim.core.notation import align, domain_in_latex, paragraph_in_latex, text_in_latex

    printed = [each for each in statements if each.expr]
    rows = (
        (
            text_in_latex(each.marked),
            each.latex,
            rf"\text{{for }} {domain_in_latex(each.domain)}" if each.domain else "",
        )
        for each in printed
    )
    alike: dict[str, list[str]] = {}
    for each in printed:
        if each.mark:
            alike.setdefault(each.mark, []).append(each.title)
    told = (paragraph_in_latex(f"{'; '.join(titles)}: {mark}.") for mark, titles in alike.items())
    items = "".join(f"  \\item {text}\n" for text in told)
    return align(rows) + (f"\n\\begin{{itemize}}\n{items}\\end{{itemize}}" if items else "")


def region_in_words(domain: str) -> str:
    """Format a domain for people: M ≥ d², M ≤ nd."""
    for old, new in ((">=", "≥"), ("<=", "≤"), ("==", "="), ("**2", "²"), ("*", "")):
        domain = domain.replace(old, new)
    return domain or "all sizes"
