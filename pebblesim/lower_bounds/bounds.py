"""Lower bounds with constants on the I/O of any schedule of a problem, exact for every n, d and M.

They are statements about the graph of a computation, and hold with recomputation and for every shape of the summation
trees. The proofs are in docs/lower-bounds.md, the arithmetic is in `pebblesim.lower_bounds.capacities`, and the counted
products of each problem are in `pebblesim.lower_bounds.bounds_*`. If a problem can be computed in several ways, each
way has its own bounds. The bound for all ways is the minimum, over the ways, of the largest bound for each way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem
from pebblesim.lower_bounds import bounds_backward, bounds_backward_qkv, bounds_forward, bounds_products
from pebblesim.lower_bounds.capacities import Columns, Cube, least_words, least_words_of_light_trees
from pebblesim.lower_bounds.cutting import Bounding, Cutting, CuttingBound
from pebblesim.lower_bounds.further_episodes import NewGradients, least_words_of_sums
from pebblesim.lower_bounds.instances import Formulation, Instance, Pairs
from pebblesim.lower_bounds.parts_of_sums import Parts, least_words_of_parts

if TYPE_CHECKING:
    from sympy import Expr

__all__ = [
    "SIZES",
    "Form",
    "Formulation",
    "LowerBound",
    "Pairs",
    "added_up",
    "best",
    "claimed",
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
    "backward-latent": bounds_forward.LATENT_BACKWARD,
    "backward": bounds_backward.BACKWARD,
    "backward-qkv": bounds_backward_qkv.BACKWARD_QKV,
    "projected-forward": bounds_forward.PROJECTED_FORWARD,
    "projected-backward-qkv": bounds_backward_qkv.PROJECTED_BACKWARD_QKV,
}
"""The proved bounds, by the names that `Problem.bounds` uses; other problems have only the compulsory bound."""

SIZES: Mapping[str, int] = {"n": 2**16, "d": 2**6}
"""Sizes for closed forms; what is claimed depends on whether sizes are equal, n ≥ d, and n ≥ 24d."""

_NOTHING = Bounding((), lambda case: iter(()))


@dataclass(frozen=True)
class Form:
    """A closed form of a bound, as text that sympy can parse, and the M for which it holds.

    Attributes:
        expr: the closed form.
        domain: the M for which it holds, in words.
        low, high: the least and the largest such M, as text that sympy can parse; empty without a limit.
    """

    expr: str
    domain: str
    low: str = ""
    high: str = ""

    @property
    def sympy(self) -> Expr:
        """Return the closed form as a `sympy.Expr`; its symbols have no assumptions."""
        from pebblesim.core.notation import parse

        return parse(self.expr)


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on the I/O of any schedule, in words, with its source.

    Attributes:
        name: name in docs/lower-bounds.md, such as "D2".
        value: the bound in words, exact; 0 if it does not apply, and `why_not` is the reason.
        source: what the bound counts, and where its proof is.
        form: the closed form for this M, which is at most `value`; None if the bound does not apply.
        forms: its closed forms for small and for large M.
        way: the way of computing for which it holds; empty if it holds for all ways.
        why_not: why the bound does not apply; empty if it applies.
        proved_for: the sizes for which it is proved, as a comparison such as "n >= 24*d"; empty for all sizes.
        recomputation: whether it holds with recomputation.
        every_tree: whether it holds for every shape of the summation trees.
        own: whether it is a user's own, without proof.
    """

    name: str
    value: int
    source: str
    form: Form | None
    forms: tuple[Form, ...] = ()
    way: str = ""
    why_not: str = ""
    proved_for: str = ""
    recomputation: bool = True
    every_tree: bool = True
    own: bool = False

    @property
    def of_way(self) -> str:
        """The way of computing for which it holds, in words."""
        return self.way or "every way of computing"

    @property
    def label(self) -> str:
        """Name of the bound in pictures and tables; for a user's own bound it says so."""
        return f"{self.name}, a user's own" if self.own else self.name

    @property
    def brief(self) -> str:
        """The bound in one short line, without what it counts."""
        return f"{self.value:,} words, lower bound {self.label} for {self.of_way}"

    def to_dict(self) -> dict[str, str | int]:
        """Return the data for `--json` where another number is compared with this bound."""
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
    """Compute all lower bounds on a problem; the compulsory one is the first of those of a way.

    Args:
        problem, dims: the problem and its sizes.
        M: red pebbles.
        formulation: the way of computing. By default the bounds of all ways are returned, without kept inputs that a
            way does not require: first the bounds common to all ways, then those of each way, which name it.
        pairs: a mask, or Z, the number of allowed pairs (for any mask with Z pairs); by default all n² pairs.

    Raises:
        UsageError: the problem has no pairs, or fewer pairs.
    """
    if formulation is not None:
        return [bound for bound, _ in _of_way(problem, dims, M, formulation, pairs)]
    ways = _of_ways(problem, dims, M, pairs)
    if len(ways) == 1:
        return [replace(bound, way="") for of_one in ways.values() for bound, _ in of_one]
    proved = claimed(problem, dims, M, pairs)
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
    """Return the largest lower bound that applies; arguments and errors as for `lower_bounds`.

    Without a formulation the result holds for all ways: it is the minimum, over the ways, of the largest bound for
    each.
    """
    if formulation is not None:
        return largest(lower_bounds(problem, dims, M, formulation, pairs))
    return least_of_ways(best_of_ways(problem, dims, M, pairs))


def best_of_ways(
    problem: Problem, dims: Mapping[str, int], M: int, pairs: Mask | int | None = None
) -> dict[str, LowerBound]:
    """Return the largest lower bound for each way of computing, by name; arguments and errors as for `lower_bounds`."""
    return {name: largest(bounds) for name, bounds in bounds_of_ways(problem, dims, M, pairs).items()}


def bounds_of_ways(
    problem: Problem, dims: Mapping[str, int], M: int, pairs: Mask | int | None = None
) -> dict[str, list[LowerBound]]:
    """Return all bounds of each way of computing, by its name; arguments and errors as for `lower_bounds`."""
    ways = _of_ways(problem, dims, M, pairs)
    return {name: [bound for bound, _ in of_one] for name, of_one in ways.items()}


def claimed(
    problem: Problem, dims: Mapping[str, int], M: int, pairs: Mask | int | None = None
) -> dict[str, list[LowerBound]]:
    """Return the bounds that are proved for each way of computing at these sizes; arguments as for `lower_bounds`."""
    ways = _of_ways(problem, dims, M, pairs)
    return {name: [bound for bound, proved in of_one if proved] for name, of_one in ways.items()}


def least_of_ways(ways: Mapping[str, LowerBound]) -> LowerBound:
    """Return the bound for all ways of computing: the minimum of the bounds for each way."""
    least = min(ways.values(), key=lambda bound: bound.value)
    if all(replace(bound, way="") == replace(least, way="") for bound in ways.values()):
        return replace(least, way="")
    return replace(least, way="", source=f"{least.source}; the least of all ways: {least.way}")


def largest(bounds: Sequence[LowerBound]) -> LowerBound:
    """Return the largest of several bounds; the first one if several are equal."""
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
    """Describe a way of computing: its name, the kept inputs, and the tensors written besides the outputs."""
    kept = ", ".join(formulation.kept)
    extra = ", ".join(name for name in formulation.outputs if name not in problem.outputs)
    which = _bounding(problem).which(formulation)
    parts = (which, kept and kept not in which and f"{kept} kept", extra and f"{extra} written")
    return "; ".join(part for part in parts if part)


def sparse_product(columns_of_A: Sequence[int], rows_of_B: Sequence[int], M: int) -> LowerBound:
    """Compute the bound on C = A B for two given sparse matrices over a semiring, with all nonzeros of C written.

    Args:
        columns_of_A: the number of nonzeros in each column of A.
        rows_of_B: the number of nonzeros in each row of B.
        M: red pebbles.

    >>> sparse_product([5, 5], [5, 5], M=4).value
    76

    Raises:
        UsageError: the number of columns of A differs from the number of rows of B.
    """
    products = bounds_products.sparse_products(columns_of_A, rows_of_B)
    cut = (least_words(products, Columns(), M) or 0) if products else 0
    form = Form(f"2*{products}/sqrt(M) - M", "every M")
    return LowerBound("sparse", cut, f"sparse, all elementary products ({_NOTHING.proofs})", form, (form,))


def _bounding(problem: Problem) -> Bounding:
    """Return the proved bounds of a problem.

    Raises:
        UsageError: the problem names bounds that do not exist, or bounds about inputs and outputs that it does not
            have.
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
            f"problem {problem.name!r} names {whose}, which are about {', '.join(bounding.names)}; it has no "
            f"{', '.join(lacking)}."
        )
    return bounding


def _of_ways(
    problem: Problem, dims: Mapping[str, int], M: int, pairs: Mask | int | None
) -> dict[str, list[tuple[LowerBound, bool]]]:
    """Return all bounds of each way of computing, and whether they are claimed for it."""
    return {
        name: list(_of_way(problem, dims, M, formulation, pairs))
        for name, formulation in _bounding(problem).ways.items()
    }


def _of_way(
    problem: Problem, dims: Mapping[str, int], M: int, formulation: Formulation, pairs: Mask | int | None
) -> Iterator[tuple[LowerBound, bool]]:
    if pairs is not None:
        problem.refuse_mask()
    of_way = formulation_in_words(problem, formulation)
    case, claims = _claims(
        problem, tuple(dims.items()), formulation, None if pairs is None else Pairs.of(pairs, *problem.grid(dims))
    )
    yield _compulsory(case, of_way), True
    for claim in claims:
        yield _bound(case, claim, M, of_way, _bounding(problem).proofs), not claim.why_not


@lru_cache(maxsize=256)  # whoever looks along M asks for the same case hundreds of times
def _claims(
    problem: Problem, dims: tuple[tuple[str, int], ...], formulation: Formulation, pairs: Pairs | None
) -> tuple[Cutting, tuple[CuttingBound, ...]]:
    """Return a problem at its sizes, and what is claimed for one of its ways of computing at any M."""
    bounding = _bounding(problem)
    made = {name: source for name, source in bounding.made.items() if name not in problem.inputs}
    case = Cutting(problem, dict(dims), formulation, pairs, made)
    claims = bounding.claims(case)
    if isinstance(claims, CuttingBound):
        raise UsageError(
            f"the bounds of problem {problem.name!r} are one claim; `yield` it, since there may be several."
        )
    return case, tuple(claims)


def _compulsory(case: Instance, way: str) -> LowerBound:
    words, expr = case.words(case.all_words())
    form = Form(expr, "every M")
    source = "compulsory: each input read once, each output written once"
    return LowerBound("compulsory", words, source, form, (form,), way)


def _bound(case: Cutting, claim: CuttingBound, M: int, way: str, proofs: str) -> LowerBound:
    besides, text = case.words(claim.besides)
    beside = [*claim.beside, *case.without_pairs(claim.table, narrow=bool(claim.beside))]
    besides += sum(words for _, words in beside)
    text = " + ".join(filter(None, (text, *(part for part, _ in beside))))
    unit, size = claim.unit
    variants = (claim, *claim.others)
    between = [each for variant in variants for each in variant.forms]
    forms = tuple(
        Form(f"{expr} + {text}" if text else expr, _domain(a, b, unit), *_limits(a, b, unit)) for expr, a, b in between
    )
    source = f"{claim.name}: {claim.what} ({proofs})"
    words, why_not = None, claim.why_not
    if not why_not:
        words = max((least for each in variants if (least := _least_words(each, M)) is not None), default=None)
    if words is None:
        last = claim.forms[0][2]
        if not why_not and last is not None and last * size < M:
            why_not = f"M is above {floor(last * size):,}, and making values again may save more than a word each"
        why_not = why_not or "M words are enough for all products"
        return LowerBound(claim.name, 0, source, None, forms, way, why_not, claim.proved_for)
    here = [
        form
        for form, (_, low, high) in zip(forms, between, strict=True)
        if low * size <= M and (high is None or high * size >= M)
    ]
    value, form = max(0, words + besides), here[0] if here else None
    return LowerBound(claim.name, value, source, form, forms, way, proved_for=claim.proved_for)


def _least_words(claim: CuttingBound, M: int) -> int | None:
    if claim.at_once:
        return claim.products + min(words - times * M for words, times in claim.at_once)
    if claim.sums is not None:
        assert isinstance(claim.capacity, NewGradients)
        return least_words_of_sums(claim.products, claim.capacity, M, claim.sums)
    if isinstance(claim.capacity, Parts):
        return least_words_of_parts(claim.products, claim.capacity, M, claim.free)
    words = least_words(claim.products, claim.capacity, M, claim.free, claim.tree, claim.ragged)
    if claim.light is None:
        return words
    assert isinstance(claim.capacity, Cube) and claim.tree is not None
    others = claim.free - claim.light
    light = least_words_of_light_trees(claim.products, claim.capacity.w, M, claim.light, claim.tree, others)
    return light if words is None else max(words, light)


def _domain(low: Fraction | int, high: Fraction | int | None, unit: str) -> str:
    """Format low·unit ≤ M ≤ high·unit."""
    below = f"{low}·{unit} ≤ ".removeprefix("1·") if low else ""
    above = "" if high is None else f" ≤ {unit}" if high == 1 else f" ≤ {high}·{unit}"
    return f"{below}M{above}" if below or above else "every M"


def _limits(low: Fraction | int, high: Fraction | int | None, unit: str) -> tuple[str, str]:
    """Return low·unit and high·unit as text that sympy can parse; empty without a limit."""
    text = unit.replace("²", "**2").replace("·", "*").replace("min(", "Min(")
    return f"{low}*{text}" if low else "", "" if high is None else f"{high}*{text}"
