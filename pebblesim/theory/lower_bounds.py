"""Lower bounds with constants: words that no schedule of a problem can go below, exact, for every n, d and M.

They are statements about the graph of a computation, and hold with recomputation and for every shape of the summation
trees; the proofs are in docs/lower-bounds.md, the arithmetic is in `pebblesim.theory.capacities`, and what is counted
of each problem in `pebblesim.theory.bounds_*`. Where a problem can be computed in several ways, each has bounds of its
own: what holds for all of them is the least, over the ways, of the largest bound on each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pebblesim.errors import UnknownName, UsageError
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem
from pebblesim.theory import bounds_backward, bounds_backward_qkv, bounds_forward, bounds_products
from pebblesim.theory.capacities import Cube, least_words, least_words_of_light_trees
from pebblesim.theory.cutting import Bounding, Case, Claim, Formulation, Pairs

if TYPE_CHECKING:
    from sympy import Expr

__all__ = [
    "Form",
    "Formulation",
    "LowerBound",
    "Pairs",
    "added_up",
    "best",
    "formulation_in_words",
    "largest",
    "lower_bounds",
    "sparse_product",
]

BOUNDS = {
    "matmul": bounds_products.MATMUL,
    "linear": bounds_forward.LINEAR,
    "forward": bounds_forward.FORWARD,
    "forward-latent": bounds_forward.LATENT,
    "backward": bounds_backward.BACKWARD,
    "backward-qkv": bounds_backward_qkv.BACKWARD_QKV,
}
"""What is proved, by the name under which problems ask for it (`Problem.bounds`); else the compulsory words are all."""

_NOTHING = Bounding((), lambda case: iter(()))


@dataclass(frozen=True)
class Form:
    """A closed form of a bound, as text that sympy can parse, and for which M it holds."""

    expr: str
    domain: str

    @property
    def sympy(self) -> Expr:
        """The closed form as a `sympy.Expr`, its symbols without assumptions."""
        from pebblesim.notation import parse

        return parse(self.expr)


@dataclass(frozen=True)
class LowerBound:
    """A number of words that no schedule can go below, and why.

    Attributes:
        name: as in the document of proofs, such as "D2".
        value: the bound in words, exact; 0 where it does not apply, and `why_not` says why.
        source: what it counts, and where its proof is.
        form: the closed form for this M, which `value` never falls below; None where the bound does not apply.
        forms: its closed forms for small M and for large.
        way: the way of computing that it holds for; empty if it holds for every way.
        why_not: why it does not apply; empty if it does.
        recomputation: whether it holds where a vertex may be computed again.
        every_tree: whether it holds for every shape of the summation trees.
    """

    name: str
    value: int
    source: str
    form: Form | None
    forms: tuple[Form, ...] = ()
    way: str = ""
    why_not: str = ""
    recomputation: bool = True
    every_tree: bool = True

    @property
    def of_way(self) -> str:
        """What it holds for, in words."""
        return self.way or "every way of computing"

    def to_dict(self) -> dict[str, str | int]:
        """As printed with `--json`, where it is what something else is compared with."""
        return {"name": self.name, "value": self.value, "source": self.source, "for": self.of_way}

    def __str__(self) -> str:
        return f"{self.value:,} words ({self.source}), for {self.of_way}"


def lower_bounds(
    problem: Problem,
    dims: Mapping[str, int],
    M: int,
    formulation: Formulation | None = None,
    pairs: Mask | int | None = None,
) -> list[LowerBound]:
    """All lower bounds on a problem, the compulsory one first.

    Args:
        problem, dims: what is computed, and its sizes.
        M: red pebbles.
        formulation: how it is computed. By default all bounds of all ways with nothing kept but what makes the way:
            first those that all ways have, then those of each, which name it.
        pairs: a mask, or Z, the number of allowed pairs, whichever these are; all n² by default.

    Raises:
        UsageError: the problem has no pairs, or not so many.
    """
    if formulation is not None:
        return [bound for bound, _ in _of_way(problem, dims, M, formulation, pairs)]
    ways = _of_ways(problem, dims, M, pairs)
    if len(ways) == 1:
        return [replace(bound, way="") for of_one in ways.values() for bound, _ in of_one]
    proved = {name: [bound for bound, claimed in of_one if claimed] for name, of_one in ways.items()}
    first, *others = ({replace(bound, way="") for bound in of_one} for of_one in proved.values())
    common = first.intersection(*others)
    all_bounds = [bound for of_one in proved.values() for bound in of_one]
    shared = dict.fromkeys(each for bound in all_bounds if (each := replace(bound, way="")) in common)
    return [*shared, *(bound for bound in all_bounds if replace(bound, way="") not in common)]


def best(
    problem: Problem,
    dims: Mapping[str, int],
    M: int,
    formulation: Formulation | None = None,
    pairs: Mask | int | None = None,
) -> LowerBound:
    """The largest lower bound that applies; arguments and errors as for `lower_bounds`.

    Without one it holds for every way: the least, over the ways, of the largest on each.
    """
    if formulation is not None:
        return largest(lower_bounds(problem, dims, M, formulation, pairs))
    return least_of_ways(best_of_ways(problem, dims, M, pairs))


def best_of_ways(
    problem: Problem, dims: Mapping[str, int], M: int, pairs: Mask | int | None = None
) -> dict[str, LowerBound]:
    """The largest lower bound on each way of computing, by its name; arguments and errors as for `lower_bounds`."""
    ways = _of_ways(problem, dims, M, pairs)
    return {name: largest([bound for bound, _ in of_one]) for name, of_one in ways.items()}


def least_of_ways(ways: Mapping[str, LowerBound]) -> LowerBound:
    """What holds for every way of computing: the least of what holds for each."""
    least = min(ways.values(), key=lambda bound: bound.value)
    if all(replace(bound, way="") == replace(least, way="") for bound in ways.values()):
        return replace(least, way="")
    return replace(least, way="", source=f"{least.source}; the least of all ways: {least.way}")


def largest(bounds: Sequence[LowerBound]) -> LowerBound:
    """The largest of several bounds that applies, the first of equals."""
    return max(bounds, key=lambda bound: bound.value)


def added_up(bounds: Sequence[LowerBound]) -> LowerBound:
    """A bound on several problems that share nothing, in one cache: a game on all of them is one on each."""
    first = bounds[0]
    if len(bounds) == 1:
        return first
    names, sources = (list(dict.fromkeys(each)) for each in zip(*((b.name, b.source) for b in bounds), strict=True))
    return replace(
        first,
        name=" + ".join(names),
        value=sum(bound.value for bound in bounds),
        source=f"{'; '.join(sources)}; the sum over {len(bounds):,} heads",
        form=None,
        why_not=first.why_not if all(bound.why_not for bound in bounds) else "",
    )


def formulation_in_words(problem: Problem, formulation: Formulation) -> str:
    """A way of computing: what bounds depend on, what is kept, and what is written besides the outputs."""
    kept = ", ".join(formulation.kept)
    extra = ", ".join(name for name in formulation.outputs if name not in problem.outputs)
    which = _bounding(problem).which(formulation)
    parts = (which, kept and kept not in which and f"{kept} kept", extra and f"{extra} written")
    return "; ".join(part for part in parts if part)


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
    products = bounds_products.sparse_products(columns_of_A, rows_of_B)
    cut = (least_words(products, Cube(), M) or 0) if products else 0
    form = Form(f"2*{products}/sqrt(M) - M", "every M")
    return LowerBound("sparse", cut, f"sparse, all elementary products ({_NOTHING.proofs})", form, (form,))


def _bounding(problem: Problem) -> Bounding:
    """What is proved of a problem.

    Raises:
        UsageError: it asks for bounds that there are not, or that speak of other inputs and outputs than it has.
    """
    if problem.bounds is None:
        return _NOTHING
    if not isinstance(problem.bounds, Bounding) and problem.bounds not in BOUNDS:
        raise UnknownName(f"bounds that problem {problem.name!r} asks for,", str(problem.bounds), BOUNDS)
    bounding = problem.bounds if isinstance(problem.bounds, Bounding) else BOUNDS[problem.bounds]
    known = {*problem.inputs, *problem.outputs}
    lacking = [name for name in bounding.names if name not in known and bounding.made.get(name) not in known]
    if lacking:
        whose = f"the bounds of {problem.bounds!r}" if isinstance(problem.bounds, str) else "bounds"
        raise UsageError(
            f"problem {problem.name!r} asks for {whose}, which speak of "
            f"{', '.join(bounding.names)}; it has no {', '.join(lacking)}."
        )
    return bounding


def _of_ways(
    problem: Problem, dims: Mapping[str, int], M: int, pairs: Mask | int | None
) -> dict[str, list[tuple[LowerBound, bool]]]:
    """Of each way of computing all bounds, and whether they are claimed of it."""
    return {
        name: list(_of_way(problem, dims, M, formulation, pairs))
        for name, formulation in _bounding(problem).ways.items()
    }


def _of_way(
    problem: Problem, dims: Mapping[str, int], M: int, formulation: Formulation, pairs: Mask | int | None
) -> Iterator[tuple[LowerBound, bool]]:
    if pairs is not None and not problem.maskable:
        raise UsageError(f"problem {problem.name!r} has no pairs of queries and keys, so it takes no mask.")
    bounding, of_way = _bounding(problem), formulation_in_words(problem, formulation)
    made = {name: source for name, source in bounding.made.items() if name not in problem.inputs}
    case = Case(problem, dims, formulation, None if pairs is None else Pairs.of(pairs, *problem.grid(dims)), made)
    yield _compulsory(case, of_way), True
    for claim in bounding.claims(case):
        yield _bound(case, claim, M, of_way, bounding.proofs), not claim.why_not


def _compulsory(case: Case, way: str) -> LowerBound:
    words, expr = case.words(case.all_words())
    form = Form(expr, "every M")
    source = "compulsory: each input read once, each output written once"
    return LowerBound("compulsory", words, source, form, (form,), way)


def _bound(case: Case, claim: Claim, M: int, way: str, proofs: str) -> LowerBound:
    besides, text = case.words(claim.besides)
    besides += sum(words for _, words in claim.beside)
    text = " + ".join(filter(None, (text, *(part for part, _ in claim.beside))))
    unit, size = claim.unit
    forms = tuple(Form(f"{expr} + {text}" if text else expr, _domain(a, b, unit)) for expr, a, b in claim.forms)
    source = f"{claim.name}: {claim.what} ({proofs})"
    words, why_not = None, claim.why_not
    if not why_not:
        words = _least_words(claim, M)
    if words is None:
        most = claim.forms[0][2]
        if not why_not and most is not None and most * size < M:
            why_not = f"M is above {most * size:,}, and making values again may save more than a word each"
        why_not = why_not or "what M words can hold is enough for all products"
        return LowerBound(claim.name, 0, source, None, forms, way, why_not)
    here = [
        form
        for form, (_, low, high) in zip(forms, claim.forms, strict=True)
        if low * size <= M and (high is None or high * size >= M)
    ]
    return LowerBound(claim.name, max(0, words + besides), source, here[0] if here else None, forms, way)


def _least_words(claim: Claim, M: int) -> int | None:
    if claim.at_once:
        return claim.products + min(words - times * M for words, times in claim.at_once)
    words = least_words(claim.products, claim.capacity, M, claim.free, claim.tree, claim.ragged)
    if claim.light is None:
        return words
    assert isinstance(claim.capacity, Cube) and claim.tree is not None
    others = claim.free - claim.light
    light = least_words_of_light_trees(claim.products, claim.capacity.w, M, claim.light, claim.tree, others)
    return light if words is None else max(words, light)


def _domain(low: Fraction | int, high: Fraction | int | None, unit: str) -> str:
    """low·unit ≤ M ≤ high·unit, in words."""
    below = f"{low}·{unit} ≤ ".removeprefix("1·") if low else ""
    above = "" if high is None else f" ≤ {high}·{unit}"
    return f"{below}M{above}" if below or above else "every M"
