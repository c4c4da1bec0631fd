"""Lower bounds with constants: words that no schedule of a problem can go below, exact, for every n, d and M.

They are statements about the graph of a computation, and hold with recomputation and for every shape of the summation
trees; the proofs are in docs/lower-bounds.md, the arithmetic is in `pebblesim.theory.capacities`. Where a schedule
computes otherwise than by the definitions, its `graph` options say so (`Way`), and a bound whose proof does not cover
it does not apply: g from regrouped products, probabilities that are read instead of made, another association.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import NamedTuple

from pebblesim.errors import UsageError
from pebblesim.language.masks import Cut, Mask
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule
from pebblesim.theory.capacities import Box, Capacity, Cube, Fresh, Gradients, Rows, least_words

PROOFS = "docs/lower-bounds.md"


@dataclass(frozen=True)
class Form:
    """A closed form of a bound, as text that sympy can parse, and for which M it holds."""

    expr: str
    domain: str


@dataclass(frozen=True)
class LowerBound:
    """A number of words that no schedule can go below, and why.

    Attributes:
        name: as in the document of proofs, such as "D2".
        value: the bound in words, exact; 0 where it does not apply, and `why_not` says why.
        source: what it counts, and where its proof is.
        form: the closed form for this M, which `value` never falls below; None where the bound does not apply.
        forms: its closed forms for small M and for large.
        why_not: why it does not apply; empty if it does.
        recomputation: whether it holds where a vertex may be computed again.
        every_tree: whether it holds for every shape of the summation trees.
    """

    name: str
    value: int
    source: str
    form: Form | None
    forms: tuple[Form, ...] = ()
    why_not: str = ""
    recomputation: bool = True
    every_tree: bool = True


class Pairs(NamedTuple):
    """Allowed pairs of a query and a key; how many queries, and how many keys, have one (at least)."""

    number: int
    queries: int
    keys: int

    @classmethod
    def of(cls, given: Mask | int, n: int) -> Pairs:
        """Those of a mask; of a number alone, as few queries and keys as that many pairs can have.

        Raises:
            UsageError: there are not so many pairs, or the mask does not fit n.
        """
        if isinstance(given, Mask):
            each, whole = Cut(0, n, 1), Cut(0, n, n)
            return cls(given.pairs(n), given.tiles(n, each, whole), given.tiles(n, whole, each))
        if not 0 <= given <= n * n:
            raise UsageError(f"{given:,} allowed pairs were given; at n = {n:,} there are 0 to {n * n:,} of them.")
        return cls(given, -(-given // n), -(-given // n))


@dataclass(frozen=True)
class Way:
    """How a problem is computed, as far as the bounds can tell.

    Attributes:
        kept: inputs that the forward pass kept, by name.
        outputs: what is written; none for the outputs of the problem.
        graph: options of the problem's graph.
    """

    kept: Sequence[str] = ()
    outputs: Sequence[str] = ()
    graph: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Schedule) -> Way:
        """That of a schedule: from its signature, what it writes, and its graph options."""
        return cls(schedule.kept, schedule.program.outputs, schedule.graph)


STANDARD = Way()
"""By the definitions and with nothing kept, linear attention in its linear order; who keeps more can do no less."""


def lower_bounds(
    problem: Problem, dims: Mapping[str, int], M: int, way: Way = STANDARD, pairs: Mask | int | None = None
) -> list[LowerBound]:
    """All lower bounds on a problem, the compulsory one first.

    Args:
        problem, dims: what is computed, and its sizes.
        M: red pebbles.
        way: how it is computed.
        pairs: a mask, or Z, the number of allowed pairs, whichever these are; all n² by default.

    Raises:
        UsageError: the problem has no pairs, or not so many.
    """
    if pairs is not None and not problem.maskable:
        raise UsageError(f"problem {problem.name!r} has no pairs of queries and keys, so it takes no mask.")
    case = _Case(problem, dims, way, None if pairs is None else Pairs.of(pairs, dims["n"]))
    return [case.compulsory(), *(case.bound(claim, M) for claim in _claims(case))]


def best(
    problem: Problem, dims: Mapping[str, int], M: int, way: Way = STANDARD, pairs: Mask | int | None = None
) -> LowerBound:
    """The largest lower bound that applies; arguments and errors as for `lower_bounds`."""
    return largest(lower_bounds(problem, dims, M, way, pairs))


def largest(bounds: Sequence[LowerBound]) -> LowerBound:
    """The largest of several bounds that applies, the first of equals."""
    return max(bounds, key=lambda bound: bound.value)


def sparse_product(columns_of_A: Sequence[int], rows_of_B: Sequence[int], M: int) -> LowerBound:
    """The bound on C = A B of two given sparse matrices over a semiring, all of C's nonzeros written.

    Args:
        columns_of_A: the number of nonzeros in each column of A.
        rows_of_B: the same for each row of B.
        M: red pebbles.

    >>> sparse_product([5, 5], [5, 5], M=4).value
    76

    Raises:
        UsageError: A has not as many columns as B has rows.
    """
    if len(columns_of_A) != len(rows_of_B):
        raise UsageError(
            f"A was given {len(columns_of_A)} columns and B {len(rows_of_B)} rows; a product needs as many of each."
        )
    products = sum(a * b for a, b in zip(columns_of_A, rows_of_B, strict=True))
    cut = (least_words(products, Cube(), M) or 0) if products else 0
    form = Form(f"2*{products}/sqrt(M) - M", "every M")
    return LowerBound("sparse", cut, f"sparse, all elementary products ({PROOFS})", form, (form,))


class _Claim(NamedTuple):
    """One bound: which products are counted, how many fit, and what is moved besides.

    `free`, `tree` and `ragged` are as for `least_words`. A form is a closed form of the bound without what is moved
    besides, and holds for low·unit ≤ M ≤ high·unit, where `unit` is what M is compared with, as text and as number.
    """

    name: str
    what: str
    products: int
    capacity: Capacity
    forms: Sequence[tuple[str, Fraction | int, Fraction | int | None]]
    unit: tuple[str, int] = ("", 1)
    besides: Sequence[str] = ()
    free: int = 0
    tree: int | None = None
    ragged: bool = False
    why_not: str = ""


class _Case:
    """A problem at given sizes, with or without a mask: the numbers and names that bounds are made of."""

    def __init__(self, problem: Problem, dims: Mapping[str, int], way: Way, pairs: Pairs | None) -> None:
        self.problem, self.dims, self.way, self.masked = problem, dims, way, pairs is not None
        self.n, self.d = dims["n"], dims.get("d", 0)
        self.Z, self.queries, self.keys = pairs or Pairs(self.n**2, self.n, self.n)
        self.text = ("n**2", "n", "n") if pairs is None else ("Z", "r", "c")  # of these three
        self.outputs = tuple(way.outputs) or tuple(problem.outputs)
        self.kept = (*way.kept, *(name for name in self.outputs if name in problem.extra))

    def words(self, names: Sequence[str]) -> tuple[int, str]:
        """Words of these inputs and outputs that any game must move, as a number and as text."""
        words = dict(zip(names, map(self._tensor, names), strict=True))
        times = Counter(text for text, _ in words.values())
        text = " + ".join(f"{count}*{size}" if count > 1 else size for size, count in times.items())
        return sum(number for _, number in words.values()), text

    def _tensor(self, name: str) -> tuple[str, int]:
        """Text and number of the words of one, less what no allowed pair needs: r queries and c keys have one."""
        inputs = {**self.problem.inputs, **self.problem.kept}
        shape = inputs.get(name) or {**self.problem.outputs, **self.problem.extra}[name]
        sizes = dict(self.dims)
        if self.masked and name in inputs:
            if shape == ("n", "n"):
                return "Z", self.Z
            lines = (self.text[2], self.keys) if name in self.problem.keys else (self.text[1], self.queries)
            shape = tuple(lines[0] if dim == "n" else dim for dim in shape)
            sizes |= {lines[0]: lines[1], "d": self.d if self.Z else 0}
        text = f"{shape[0]}**2" if len(shape) == 2 and len(set(shape)) == 1 else "*".join(sorted(shape))
        return text, prod(sizes[dim] for dim in shape)

    def compulsory(self) -> LowerBound:
        words, expr = self.words((*self.problem.inputs, *self.way.kept, *self.outputs))
        form = Form(expr, "every M")
        source = "compulsory: each input read once, each output written once"
        return LowerBound("compulsory", words, source, form, (form,))

    def bound(self, claim: _Claim, M: int) -> LowerBound:
        besides, text = self.words(claim.besides)
        forms = [Form(f"{expr} + {text}" if text else expr, _domain(a, b, claim.unit[0])) for expr, a, b in claim.forms]
        source = f"{claim.name}: {claim.what} ({PROOFS})"
        words, why_not = None, claim.why_not
        if not why_not:
            words = least_words(claim.products, claim.capacity, M, claim.free, claim.tree, claim.ragged)
        if words is None:
            if not why_not and claim.forms[0][2] is not None and claim.forms[0][2] * claim.unit[1] < M:
                most = claim.forms[0][2] * claim.unit[1]
                why_not = f"M is above {most:,}, and making values again may save more than a word each"
            why_not = why_not or "what M words can hold is enough for all products"
            return LowerBound(claim.name, 0, source, None, tuple(forms), why_not)
        unit = claim.unit[1]
        here = [
            form
            for form, (_, low, high) in zip(forms, claim.forms, strict=True)
            if low * unit <= M and (high is None or high * unit >= M)
        ]
        return LowerBound(claim.name, max(0, words + besides), source, here[0] if here else None, tuple(forms))


def _domain(low: Fraction | int, high: Fraction | int | None, unit: str) -> str:
    """low·unit ≤ M ≤ high·unit, in words."""
    below = f"{low}·{unit} ≤ ".removeprefix("1·") if low else ""
    above = "" if high is None else f" ≤ {high}·{unit}"
    return f"{below}M{above}" if below or above else "every M"


def _claims(case: _Case) -> Iterator[_Claim]:
    """The bounds on a problem, beyond the compulsory one: what its `bounds` names below."""
    stated = case.problem.bounds
    if stated is not None:
        yield from BOUNDS[stated](case)


def _of_linear(case: _Case) -> Iterator[_Claim]:
    if case.way.graph.get("order", "linear") == "linear":
        yield _linear(case)
    else:
        yield from _forward(case, made=("S", "h"), weights=("X", "Y"), V="A3")


def _of_forward(case: _Case) -> Iterator[_Claim]:
    if _projected(case):
        yield from _forward(case, made=("Q", "K", "V"), weights=("W_Q", "W_K", "W_V"), V="A3")
    else:
        yield from _forward(case, made=(), weights=(), V="V")


def _of_backward_qkv(case: _Case) -> Iterator[_Claim]:
    of = _backward_qkv_from_P if "P" in case.way.kept else _backward_qkv
    yield from of(case, _projected(case))


def _projected(case: _Case) -> bool:
    """Whether Q, K and V are projections, made on the way."""
    return "W_Q" in case.problem.inputs


def _matrix_product(case: _Case) -> _Claim:
    """Theorem B. The three sides play the same part; a short one cannot fill its share of a segment."""
    sides = {name: case.dims[name] for name in ("k", "m", "n")}
    short = min(sides, key=lambda name: sides[name])
    long = "*".join(name for name in sides if name != short)
    forms = [
        (f"{long}*(1 + {short}**2/M) - M**2/{short}**2", 1, None),
        ("2*k*m*n/sqrt(M) - M", 0, None),
    ]
    m, k, n = (case.dims[name] for name in ("m", "k", "n"))
    unit = (f"{short}²", sides[short] ** 2)
    return _Claim("B", "products m·k·n", m * k * n, Box((m, k, n)), forms, unit)


def _linear(case: _Case) -> _Claim:
    """The four products of A1 (X (A2ᵀ A3) Y); each of W, XW and XWY may be made again."""
    n, d = case.n, case.d
    forms = [("4*(n*d**2 + d**3)/sqrt(M) - 3*d**2 - M", 0, 4)]
    unit = ("min(n, d)²", min(n, d) ** 2)
    products = 2 * n * d**2 + 2 * d**3
    return _Claim("L1", "all four products", products, Cube(), forms, unit, (), 3 * d**2, min(n, d))


Forms = list[tuple[str, Fraction | int, Fraction | int | None]]


def _forms_of_fresh(c: int, Z: str, less: str = "") -> Forms:
    """Closed forms of `Fresh` for a large, a small and a middle M: T = M, T = 2M and T = M."""
    small, large = Fraction(c * c, 81), Fraction(c * c, 54)
    return [
        (f"{c // 4}*{Z}*d**2/M{less}", large, None),
        (f"2*{Z}*d/sqrt(M) - M{less}", 0, small),
        (f"sqrt(27/8)*{Z}*d/sqrt(M){less}", small, large),
    ]


def _forms_of_rows(w: int, Z: str) -> Forms:
    """Closed forms of `Rows` with lines of w·d words, for a large and a small M: T = M and T = 4(wd)² - M."""
    w *= w
    return [
        (f"{w}*{Z}*d**2/M".removeprefix("1*"), 2 * w, None),
        (f"{Z}*(1 - M/({4 * w}*d**2)) - {4 * w}*d**2 + 2*M", 0, 2 * w),
    ]


def _forward(case: _Case, made: Sequence[str], weights: Sequence[str], V: str) -> Iterator[_Claim]:
    """Scores, a function of them, and their product with V. Of Q, K and V (S, A2 and h) some may be `made` first."""
    d, (Z, q, k), d2 = case.d, case.text, ("d²", case.d**2)
    pairs = case.Z * d
    queries = sum(name in ("Q", "S") for name in made)
    lines = queries * case.queries + (len(made) - queries) * case.keys
    more = _lines(queries, q, len(made) - queries, k)
    kept = (*weights, *case.kept)
    yield _Claim("C1", "products with V of pairs", pairs, Fresh(16, d), _forms_of_fresh(16, Z), d2, kept)
    form = f"4*{Z}*d/sqrt(M) - {Z} - M"
    if made:
        form = f"(4*{Z}*d + 2*({more})*d**2)/sqrt(M) - {Z} - ({more})*d - M"
    products, free = 2 * pairs + lines * d**2, case.Z + lines * d
    yield _Claim("C2", "all products", products, Cube(), [(form, 0, 4)], d2, case.kept, free, d)
    yield _Claim("C3", "pairs", case.Z, Rows(d), _forms_of_rows(1, Z), d2, (*kept, V, "O"))


def _backward(case: _Case, regrouped: bool) -> Iterator[_Claim]:
    """dL/dX: S = A1 X and h = A3 Y, scores and q, and g = A1ᵀ p A2 in either order, also without O and l.

    Under a mask, a row (or column) of few pairs may be made again for less than its share of a segment: such rows are
    left out of D1 and D2, and the products of g out of D1.
    """
    n, d, (Z, q, k), d2 = case.n, case.d, case.text, ("d²", case.d**2)
    pairs, lines, more = case.Z * d, case.queries + case.keys, _lines(1, q, 1, k)
    why_not = (
        "the graph has g as a sum over blocks of rows, which is not A1ᵀ p A2 with n²d products" if regrouped else ""
    )
    if case.masked:
        form = f"(6*{Z}*d + 2*({more})*d**2)/sqrt(M) - 2*{Z} - ({more} + n)*d - M"
        products, free = 3 * pairs + lines * d**2, 2 * case.Z + (lines + n) * d
        yield _Claim(
            "D1", "all products but those of g", products, Cube(), [(form, 0, 4)], d2, case.kept, free, d, True, why_not
        )
    else:
        form = "6*(n**2*d + n*d**2)/sqrt(M) - 2*n**2 - 3*n*d - M"
        products, free, least = 3 * pairs + 3 * n * d**2, 2 * case.Z + 3 * n * d, min(n, d)
        unit = ("min(n, d)²", least**2)
        yield _Claim(
            "D1", "all products", products, Cube(), [(form, 0, 4)], unit, case.kept, free, least, why_not=why_not
        )
    form = f"(4*{Z}*d + 2*({more})*d**2)/sqrt(M) - 2*{Z} - ({more})*d - M"
    products, free = 2 * pairs + lines * d**2, 2 * case.Z + lines * d
    yield _Claim(
        "D1r", "products of S, h, scores and q", products, Cube(), [(form, 0, 4)], d2, (*case.kept, "g"), free, d
    )
    besides = ("X", "Y", "g", *case.kept)
    forms = _forms_of_fresh(24, Z, " - n*d")
    tree, ragged = (None, True) if case.masked else (n, False)
    what = "products of p with A2 or A1"
    yield _Claim("D2", what, pairs, Fresh(24, d), forms, d2, besides, n * d, tree, ragged, why_not)
    yield _Claim("D3", "pairs", case.Z, Rows(2 * d), _forms_of_rows(2, Z), d2, besides)


def _backward_qkv(case: _Case, projected: bool) -> Iterator[_Claim]:
    """dQ, dK and dV from Q, K, V and dO, the probabilities made again from O and l, or m and l_m, or L."""
    d, (Z, q, k), d2 = case.d, case.text, ("d²", case.d**2)
    pairs, lines = case.Z * d, 0
    weights: tuple[str, ...] = ()
    form = f"150*{Z}*d/(17*sqrt(M)) - 2*{Z} - M"
    if projected:
        lines, more, weights = case.queries + 2 * case.keys, _lines(1, q, 2, k), ("W_Q", "W_K", "W_V")
        form = f"(150*{Z}*d/17 + 2*({more})*d**2)/sqrt(M) - 2*{Z} - ({more})*d - M"
    products, free = 75 * pairs + 17 * lines * d**2, 2 * case.Z + lines * d
    yield _Claim("E1", "all products", products, Cube(17), [(form, 0, 4)], d2, case.kept, free, 17 * d)
    besides = (*weights, *case.kept, "dK", "dV")
    yield _Claim("E2", "products of dQ", pairs, Fresh(24, d), _forms_of_fresh(24, Z), d2, besides)
    form = f"12*{Z}*d**2/(M + 81*d**2/16)"
    besides = (*weights, *case.kept)
    yield _Claim("E3", "products of dQ, dK and dV", 48 * pairs, Gradients(d), [(form, 0, None)], besides=besides)
    besides = (*besides, "dQ", "dK", "dV")
    yield _Claim("E4", "pairs", case.Z, Rows(2 * d), _forms_of_rows(2, Z), d2, besides)


def _backward_qkv_from_P(case: _Case, projected: bool) -> Iterator[_Claim]:
    """The same with the probabilities kept: every pair costs a word, and no scores are made."""
    d, (Z, q, k) = case.d, case.text
    pairs, lines, V = case.Z * d, 0, "V"
    weights: tuple[str, ...] = ()
    form = f"8*{Z}*d/sqrt(M) - {Z} - M"
    if projected:
        lines, V, weights = case.queries + 2 * case.keys, "A3", ("W_Q", "W_K", "W_V")
        more = _lines(1, q, 2, k)
        form = f"(8*{Z}*d + 2*({more})*d**2)/sqrt(M) - {Z} - ({more})*d - M"
    products, free = 4 * pairs + lines * d**2, case.Z + lines * d
    yield _Claim("E5", "all products, P kept", products, Cube(), [(form, 0, 4)], ("d²", d**2), (), free, d)
    form = f"6*{Z}*d/sqrt(M) - M"
    yield _Claim("E6", "products of dQ, dK and dV, P kept", 3 * pairs, Cube(), [(form, 0, None)], besides=(*weights, V))


def _lines(a: int, queries: str, b: int, keys: str) -> str:
    """a queries and b keys, as text: 3*n, or r + 2*c under a mask."""
    counts = Counter({queries: a})
    counts[keys] += b
    return " + ".join(f"{times}*{text}" if times > 1 else text for text, times in counts.items() if times)


BOUNDS: Mapping[str, Callable[[_Case], Iterator[_Claim]]] = {
    "matmul": lambda case: iter((_matrix_product(case),)),
    "linear": _of_linear,
    "forward": _of_forward,
    "backward": lambda case: _backward(case, regrouped="row_block" in case.way.graph),
    "backward-qkv": _of_backward_qkv,
}
"""By the name under which problems ask for them (`Problem.bounds`)."""
