"""The decision procedure against an oracle of its own kind: exponents at points of a grid, and numbers at t = 2^k."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import isqrt

import pytest
import strategies
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim.asymptotics.cones import Cone, dot
from pebblesim.asymptotics.tropical import Undecided, decide
from pebblesim.asymptotics.verdicts import Verdict
from pebblesim.core.errors import UsageError

NAMES = ("n", "d", "M")


@dataclass(frozen=True)
class Node:
    """An expression: op is a name, a number, or what is done to the parts."""

    op: str
    parts: tuple["Node", ...] = ()

    def text(self) -> str:
        inner = [part.text() for part in self.parts]
        if self.op in "+*":
            return "(" + f" {self.op} ".join(inner) + ")"
        return {"/": "({0})/({1})", "sqrt": "sqrt({0})", "ceil": "ceiling({0})", "min": "Min({0}, {1})"}.get(
            self.op, "Max({0}, {1})" if self.op == "max" else self.op
        ).format(*inner)

    def exponent(self, x: Mapping[str, int]) -> Fraction:
        """At one direction, straight from the rules of growth."""
        inner = [part.exponent(x) for part in self.parts]
        match self.op:
            case "+" | "max":
                return max(inner)
            case "*":
                return sum(inner, Fraction(0))
            case "/":
                return inner[0] - inner[1]
            case "sqrt":
                return inner[0] / 2
            case "ceil":
                return max(Fraction(0), inner[0])
            case "min":
                return min(inner)
        return Fraction(x.get(self.op, 0))

    def value(self, at: Mapping[str, int]) -> Fraction:
        """As a number; roots are exact to 1000 binary digits, relative to their size."""
        inner = [part.value(at) for part in self.parts]
        match self.op:
            case "+":
                return sum(inner, Fraction(0))
            case "*":
                total = Fraction(1)
                for one in inner:
                    total *= one
                return total
            case "/":
                return inner[0] / inner[1]
            case "sqrt":
                root = isqrt(inner[0].numerator * inner[0].denominator * 4**1000)
                return Fraction(root, inner[0].denominator * 2**1000)
            case "ceil":
                return Fraction(-(-inner[0]).__floor__())
            case "min":
                return min(inner)
            case "max":
                return max(inner)
        return Fraction(at.get(self.op, self.op))


LEAVES = st.sampled_from([*NAMES, *NAMES, "1", "7"]).map(Node)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: Node("+", (a, b)), inner, inner),
        st.builds(lambda a, b: Node("*", (a, b)), inner, inner),
        st.builds(lambda a, b: Node("/", (a, b)), inner, inner),
        st.builds(lambda a, b: Node("min", (a, b)), inner, inner),
        st.builds(lambda a, b: Node("max", (a, b)), inner, inner),
        st.builds(lambda a: Node("sqrt", (a,)), inner),
        st.builds(lambda a: Node("ceil", (a,)), inner),
    ),
    max_leaves=7,
)
REGIONS = {  # as text, and as a test of a direction
    "": lambda n, d, M: True,
    "n >= d": lambda n, d, M: n >= d,
    "M <= d**2, n >= 3*d": lambda n, d, M: 2 * d >= M and n >= d,
    "M >= d**2 + d, M <= n*d": lambda n, d, M: 2 * d <= M <= n + d,
    "M == d**2": lambda n, d, M: 2 * d == M,
}
ALL = "n >= 1, d >= 1, M >= 1"  # symbols that sympy cancels count, too
GRID = list(product(range(7), repeat=3))
BITS = 400


@strategies.draws(20, 80)
@given(f=EXPRESSIONS, g=EXPRESSIONS, region=st.sampled_from(list(REGIONS)))
def test_the_verdict_is_that_of_the_exponents_on_a_grid(f: Node, g: Node, region: str) -> None:
    """A proof has no counterexample on the grid; a refutation is one, by its exponents and by numbers of 400 bits."""
    verdict = decide(f.text(), "O", g.text(), f"{ALL}, {region}")
    directions = [dict(zip(NAMES, x, strict=True)) for x in GRID if REGIONS[region](*x)]
    assert verdict.holds or verdict.witness
    if verdict.holds:
        assert all(f.exponent(x) <= g.exponent(x) for x in directions)
        return
    witness = verdict.witness
    assert witness is not None
    x = {name: witness.exponents.get(name, 0) for name in NAMES}
    assert REGIONS[region](*x.values())
    assert f.exponent(x) - g.exponent(x) == witness.growth > 0
    at = dict.fromkeys(NAMES, 1) | witness.at(2**BITS)
    ratio = f.value(at) / g.value(at)
    grown = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    assert abs(grown - BITS * witness.growth) < 64  # constants: at most 7 leaves, none above 7


@given(f=EXPRESSIONS, region=st.sampled_from(list(REGIONS)))
def test_pieces_give_the_exponents_of_both_functions(f: Node, region: str) -> None:
    verdict = decide(f.text(), "Θ", f"3*({f.text()}) + ({f.text()})/2", f"{ALL}, {region}")
    assert verdict.holds
    for x in GRID:
        if not any(x) or not REGIONS[region](*x):
            continue
        point = [x[NAMES.index(name)] for name in verdict.symbols]
        here = [
            piece
            for piece in verdict.pieces
            if all(sum(a * b for a, b in zip(h, point, strict=True)) >= 0 for h in piece.cone.halfspaces)
        ]
        assert here, "the pieces do not cover the region"
        for piece in here:
            assert sum(a * b for a, b in zip(piece.f, point, strict=True)) == f.exponent(
                dict(zip(NAMES, x, strict=True))
            )


def test_theta_of_the_closed_form_of_algorithm_6() -> None:
    closed, rule = ps.formula("small-cache").io, {"B": "floor(sqrt(M/4))"}
    bound = "(n**2*d + n*d**2)/sqrt(M)"
    assert decide(closed, "Theta", bound, "n >= d, M <= d**2, B >= 1", rule)
    above = decide(closed, "O", bound, "n >= d, M >= d**2, B >= 1", rule)
    assert above.witness is not None
    for bits in (20, 40, 80):  # the printed blocks, counted: 9n² is left when M passes d²
        sizes = above.witness.at(2**bits)
        B = isqrt(sizes["M"] // 4)
        words = ps.formula("small-cache").evaluate(n=sizes["n"], d=sizes["d"], B=B)
        claimed = (sizes["n"] ** 2 * sizes["d"] + sizes["n"] * sizes["d"] ** 2) // isqrt(sizes["M"])
        assert words // claimed >= 2 ** int(bits * above.witness.growth)


def test_the_numbers_of_these_tests_are_right_for_very_small_roots() -> None:
    """At M = 2^400 the root of 1/M⁷ is far below 2^-1000, to which absolute digits once were kept: 0 came out."""
    small = Node("sqrt", (Node("/", (Node("1"), Node("M"))),))
    for _ in range(6):
        small = Node("*", (small, Node("sqrt", (Node("/", (Node("1"), Node("M"))),))))
    seventh = Node("/", (Node("1"), Node("*", (Node("M"),) * 7)))
    at = {"n": 1, "d": 1, "M": 2**BITS}
    assert Node("sqrt", (seventh,)).value(at) == small.value(at) == Fraction(1, 2 ** (7 * BITS // 2))


BLOCKS = {"B_r": "floor((M - d**2)/(4*d + 2))", "B_c": "1"}
CLAIMED = "(n**2*d**2 + n*d**3)/M"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("margin", ["2*M >= 3*d**2", "1000*M >= 1001*d**2"])
def test_constants_of_the_region_decide_what_a_difference_leaves(margin: str) -> None:
    closed = ps.formula("large-cache").io
    assert decide(closed, "Θ", CLAIMED, f"{margin}, n >= d, M <= n*d, B_r >= 1", BLOCKS)
    with pytest.raises(Undecided, match="may cancel unless M ≥ 2d²"):
        decide(closed, "Θ", CLAIMED, "M >= d**2, n >= d, M <= n*d, B_r >= 1", BLOCKS)
    with pytest.raises(Undecided, match="may be 0 unless"):
        decide(closed, "Θ", CLAIMED, f"{margin}, n >= d, M <= n*d", BLOCKS)


@pytest.mark.parametrize(
    ("f", "relation", "g", "region"),
    [
        ("(1 - d)**2", "O", "1", ""),
        ("(n - d)**2 + 1", "O", "n**2", "d >= n"),
        ("(n - d)*(n - 2*d)", "O", "n**2", "d >= n"),
        ("sqrt((n - d)**2)", "O", "n", "d >= n"),
        ("(n - d)*M", "O", "n", "d >= n, M == d"),
        ("n - d + 1", "Θ", "n", "n >= d"),  # it is 1 at n = d
        ("n - d + 1", "Ω", "n", "n >= d"),
        ("(n + 1)*d - n*d", "Ω", "n*d", ""),
    ],
)
def test_what_is_taken_off_may_be_more(f: str, relation: str, g: str, region: str) -> None:
    """Each of these was once said to hold, on a bound P for P - N, or given a condition that the answer left out."""
    assert not decide(f, relation, g, region)


@pytest.mark.parametrize("region", ["", "n >= d", "n <= 2*d, n >= d", "M >= d**2"])
@pytest.mark.parametrize("f", ["n - d", "floor(n/(2*d))", "floor(M/d**2) - 1", "n - floor(n/d)*d"])
def test_an_unmet_condition_is_no_proof(f: str, region: str) -> None:
    for relation in "ΩΘ":
        try:
            assert not decide(f, relation, "n", region)
        except Undecided as undecided:
            assert "unless" in str(undecided)


@pytest.mark.parametrize(
    ("f", "region"),
    [
        ("n - d", ""),  # d may be larger
        ("n - d", "n >= d**2"),  # nothing is left at n = d = 1
        ("sqrt(n) - 2", "n >= 4"),
        ("floor(sqrt(n)) - 2", "n >= 8"),
        ("Max(n, d) - n", "n >= d"),  # nothing is left
        ("n*ceiling(n/B) - n", ""),  # nothing is left if B ≥ n
        ("floor((n + d)/(4*n))", "n >= d"),  # is 0
        ("1/floor(n/d)", ""),  # is a division by 0 where n < d
        ("floor(M/n) + 1 - floor(M/n)*d/(2*d + 1)", "M >= n"),
    ],
)
def test_what_may_cancel_is_not_guessed(f: str, region: str) -> None:
    """No lower bound on the difference proves that it is Ω(1), and no upper bound refutes it."""
    with pytest.raises(Undecided, match=r"may cancel|may be 0|may be negative"):
        decide(f, "O" if "1/" in f else "Ω", "1", region)


def test_a_floor_that_is_zero_is_no_constant() -> None:
    assert not decide("floor(n/d)", "Ω", "1")
    assert decide("floor(n/d)", "Θ", "n/d", "n >= d")
    assert decide("Max(1, floor(n/d))", "Ω", "n/d")  # a floor without a bound is not needed here


@pytest.mark.parametrize(
    ("f", "relation", "g", "region"),
    [
        ("floor((1 - n)/n**2)", "O", "1/n", "n >= 2"),  # it is -1
        ("ceiling((n - d)/n**2)", "O", "n/d", ""),  # it is 0 where n = d, and below 0 where n < d
        ("1/ceiling((n - d)/n**2)", "O", "1", ""),
        ("Min(d - n, 1)", "O", "1", ""),  # it is as large as n, below 0
        ("(d - n)**3 + n", "O", "d**3", ""),
        ("(d - n)**3", "Ω", "n**3", "n >= 2*d"),
        ("M*(d - n)**3", "Ω", "M", "n >= 2*d"),
    ],
)
def test_what_is_below_zero_is_no_less(f: str, relation: str, g: str, region: str) -> None:
    with suppress(Undecided):
        assert not decide(f, relation, g, region)


def test_a_root_of_what_may_be_negative_is_no_size() -> None:
    for f in ("sqrt(n - d)", "n + sqrt(n - d)", "(n - d)**Rational(1, 3)"):
        with pytest.raises(Undecided, match="negative under a root"):
            decide(f, "O", "n")
    assert decide("sqrt(n - d)", "O", "sqrt(n)", "n >= d")


def test_what_is_undefined_somewhere_is_not_decided() -> None:
    """At M = 7 there is a division by 0, though the larger of the two is at least d wherever there is one."""
    with pytest.raises(Undecided, match="may be 0 in a denominator"):
        decide("Max(d/(M - 7)**2, d)", "Ω", "d")
    assert decide("Max(d/(M - 7)**2, d)", "Ω", "d", "M >= 8")


def test_differences_where_the_bounds_are_enough() -> None:
    assert decide("n*(ceiling(n/B) - 1)*B", "O", "n**2 + n*B")  # from above nothing is missing
    assert decide("n - d", "Θ", "n", "n >= d**2, n >= 2*d")
    assert decide("n - d", "Ω", "n", "5*n >= 6*d")
    assert decide("(n + 1)*d - n*d", "Θ", "d")  # the products cancel before anything is bounded
    assert decide("M - d**2 - 3*d - 2", "Ω", "M", "M >= 2*d**2, M >= d**2 + 7*d + 10")
    refuted = decide("n**2 - d", "O", "n", "n >= d")
    assert refuted.witness is not None
    at = refuted.witness.at(2**50)
    assert (at["n"] ** 2 - at["d"]) // at["n"] >= 2**40


def test_a_region_that_holds_no_size_is_refused() -> None:
    """Everything would hold in a region without sizes."""
    for region in ("M >= 4*d**2, M <= 2*d**2", "n >= 2*d, n <= d", "n >= d + 1, n <= d"):
        with pytest.raises(UsageError, match="holds no sizes"):
            decide("n", "O", "d", f"{region}, M >= d")


def test_what_sympy_takes_for_granted_is_not() -> None:
    """For positive integers sympy 1.14 takes the larger of n and n/(d·M) to be n/(d·M)."""
    assert decide("n", "Θ", "Max(n, n/(d*M))")
    refuted = decide("n", "O", "Min(n, n/(d*M))")
    assert refuted.witness is not None and refuted.witness.growth > 0


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_powers_are_compared_exactly(a: int, b: int, c: int) -> None:
    verdict: Verdict = decide(f"n**Rational({a}, {b})", "O", f"n**Rational({c}, 3)")
    assert verdict.holds == (Fraction(a, b) <= Fraction(c, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("n", "o", "n"), "relation 'o'"),
        (("n +", "O", "n"), "not a valid expression in"),
        (("2**n", "O", "n"), "Pow is not a sum"),
        (("log(n)", "O", "n"), "not a valid expression in"),
        (("n", "O", "-n"), "not positive"),
        (("n - n", "O", "n"), "not positive"),
        (("n", "O", "n", "n > d"), "is not a comparison"),
        (("n", "O", "n", "n >= d + M, d + n >= M"), "larger side of .* is not a monomial"),
        (("n - d", "O", "n", "n == d"), "not positive"),
        (("n", "O", "d", "n <= 1, d <= 2"), "no size that grows"),
        (("n/B", "O", "n", "", {"B": "C + 1", "C": "d"}), "has a rule too"),
    ],
)
def test_what_is_outside_is_refused_in_words(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decide(*arguments)  # type: ignore[arg-type]


@given(cuts=st.lists(st.tuples(*[st.integers(-2, 2)] * 3).filter(any), max_size=4), equal=st.integers(0, 1))
def test_equations_and_facets_describe_the_cone(cuts: list[tuple[int, ...]], equal: int) -> None:
    cone = Cone.orthant(3)
    forms = [*cuts, *(tuple(-x for x in h) for h in cuts[:equal])]
    for h in forms:
        cone = cone.cut(h)
    for x in product(range(5), repeat=3):
        described = all(dot(h, x) == 0 for h in cone.equations) and all(dot(h, x) >= 0 for h in cone.facets)
        assert described == all(dot(h, x) >= 0 for h in forms)


def test_a_region_that_is_an_equation_keeps_its_other_inequalities() -> None:
    verdict = decide("n*d + M", "Θ", "n**2 + M", "n >= d, n <= d")
    assert str(verdict).splitlines()[1:] == [
        "  f ~ M, g ~ M where n = d, n ≥ 1, M ≥ nd",
        "  f ~ nd, g ~ n² where n = d, M ≥ 1, nd ≥ M",
    ]
