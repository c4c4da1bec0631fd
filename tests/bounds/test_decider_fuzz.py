"""Random decisions against numbers: what is decided for a region must not be contradicted along any ray in it.

Expressions have differences, powers, roots, quotients, ceilings, floors, minima and maxima; regions have constants.
Numbers are exact, from an evaluator of this file that shares nothing with the decider.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from random import Random

import pytest

from pebblesim.asymptotics.tropical import Undecided, decide
from pebblesim.asymptotics.verdicts import Witness
from pebblesim.core.errors import UsageError

NAMES = ("n", "d", "M")
BITS = (20, 40, 80, 160)
"""Rays are followed to t = 2^40, and twice as far twice, which tells a slow power from a constant."""


REFUSED = ("is not positive", "no growth to compare", "is not a valid expression")
"""Reasons to refuse a question."""


class Undefined(ArithmeticError):
    """A division by 0."""


class Imaginary(ArithmeticError):
    """The root of a negative number: such sizes are left out, since sympy takes (√x)² for x before anyone can look."""


@dataclass(frozen=True)
class Term:
    """A node: a name, a number, or an operation on its parts."""

    op: str
    parts: tuple["Term", ...] = ()

    def __str__(self) -> str:
        inner = [str(part) for part in self.parts]
        match self.op:
            case "+" | "-" | "*" | "/":
                return f"({inner[0]} {self.op} {inner[1]})"
            case "square":
                return f"({inner[0]})**2"
            case "sqrt" | "floor" | "ceiling" | "Min" | "Max":
                return f"{self.op}({', '.join(inner)})"
        return self.op

    def at(self, sizes: Mapping[str, int]) -> Fraction:
        inner = [part.at(sizes) for part in self.parts]
        match self.op:
            case "+":
                return inner[0] + inner[1]
            case "-":
                return inner[0] - inner[1]
            case "*":
                return inner[0] * inner[1]
            case "/":
                if not inner[1]:
                    raise Undefined
                return inner[0] / inner[1]
            case "square":
                return inner[0] ** 2
            case "sqrt":
                return root(inner[0])
            case "floor":
                return Fraction(inner[0].numerator // inner[0].denominator)
            case "ceiling":
                return Fraction(-(-inner[0].numerator // inner[0].denominator))
            case "Min":
                return min(inner)
            case "Max":
                return max(inner)
        return Fraction(sizes[self.op] if self.op in sizes else int(self.op))


def root(x: Fraction) -> Fraction:
    """Exact where it is rational, else to thousands of digits relative to its size."""
    if x < 0:
        raise Imaginary
    digits = 3000
    return Fraction(isqrt(x.numerator * x.denominator << 2 * digits), x.denominator << digits)


def drawn(random: Random, size: int) -> Term:
    if size <= 1 or random.random() < 0.1:
        return Term(random.choice([*NAMES, *NAMES, *NAMES, "1", "2", "7"]))
    op = random.choice(["+", "+", "-", "-", "-", "*", "*", "/", "square", "sqrt", "floor", "ceiling", "Min", "Max"])
    if op in ("square", "sqrt", "floor", "ceiling"):
        return Term(op, (drawn(random, size - 1),))
    left = random.randint(1, size - 1)
    return Term(op, (drawn(random, left), drawn(random, size - left)))


def added(f: Term) -> Term:
    """A term with a sum for each difference of f: f is of its order unless something cancels."""
    return Term("+" if f.op == "-" else f.op, tuple(map(added, f.parts)))


Sizes = Mapping[str, int]
REGIONS: dict[str, Callable[[int, int, int], bool]] = {
    "": lambda n, d, M: True,
    "n >= d": lambda n, d, M: n >= d,
    "d >= n": lambda n, d, M: d >= n,
    "n >= 2*d": lambda n, d, M: n >= 2 * d,
    "n >= d + 1": lambda n, d, M: n >= d + 1,
    "3*n >= 4*d": lambda n, d, M: 3 * n >= 4 * d,
    "n == d": lambda n, d, M: n == d,
    "n >= d, M >= d**2": lambda n, d, M: n >= d and d * d <= M,
    "n >= 3*d, M >= 2*d**2": lambda n, d, M: n >= 3 * d and 2 * d * d <= M,
    "M >= d**2 + 3*d + 2": lambda n, d, M: d * d + 3 * d + 2 <= M,
    "M >= 4*d, M <= n*d": lambda n, d, M: 4 * d <= M <= n * d,
    "3*M <= 2*d**2, n >= d": lambda n, d, M: 2 * d * d >= 3 * M and n >= d,
    "M == d**2, n >= d": lambda n, d, M: d * d == M and n >= d,
    "n >= 7, d >= 2": lambda n, d, M: n >= 7 and d >= 2,
}


def ray(random: Random) -> Callable[[int], dict[str, int]]:
    """A curve n(t), d(t), M(t): powers of t with a factor, or as near to another size as terms need to cancel."""
    powers = [random.randint(0, 4) for _ in NAMES]
    factors = [random.choice([1, 1, 1, 2, 3, 7]) for _ in NAMES]
    kind, low, more = random.randint(0, 7), random.randint(-2, 3), random.randint(0, 7)

    def at(bits: int) -> dict[str, int]:
        n, d, M = (factor << bits * power for power, factor in zip(powers, factors, strict=True))
        if kind == 1:
            n = d + low
        elif kind == 2:
            M = d * d + more * d + low
        elif kind == 3:
            n, M = factors[0] * d, d * d + more * d + low
        elif kind == 4:
            d = n + low
        elif kind == 5:
            n, M = d + low, d * d
        elif kind == 6:
            n, M = d * factors[0], factors[2] * d * d
        elif kind == 7:
            M = n * d // factors[2]
        return {"n": n, "d": d, "M": M}

    return at


def inside(region: str, sizes: Sizes) -> bool:
    return min(sizes.values()) >= 1 and REGIONS[region](**sizes)


def grows(f: Term, g: Term, along: list[Sizes]) -> str | None:
    """The sizes that contradict |f| = O(g) and g > 0 at some sizes, the last of them far out; None if nothing does."""
    ratios = []
    for sizes in along:
        try:
            above, below = abs(f.at(sizes)), g.at(sizes)
        except Imaginary:
            return None
        except Undefined:
            return f"undefined at {sizes}"
        if below <= 0:
            return f"{below} at {sizes}"
        ratios.append(above / below)
    if len(ratios) < len(BITS) or not all(ratios[-3:]):
        return None
    slower, faster = (bits(ratios[k + 1]) - bits(ratios[k]) for k in (-3, -2))
    return f"ratio grows by 2^{slower}, then 2^{faster}, at {along[-1]}" if slower >= 4 and faster >= 8 else None


def positive(f: Term, g: Term, curve: Callable[[int], Sizes], region: str) -> str | None:
    """Where both are positive far out along a ray, if anywhere."""
    sizes = curve(BITS[-1])
    try:
        far = inside(region, sizes) and f.at(sizes) > 0 and g.at(sizes) > 0
    except (Imaginary, Undefined):
        return None
    return f"Both are positive at {sizes}." if far else None


def bits(x: Fraction) -> int:
    return x.numerator.bit_length() - x.denominator.bit_length()


def contradiction(f: Term, g: Term, witness: Witness, region: str) -> str | None:
    """The mistake of a refutation; None if there is none."""
    above, below = (f, g) if witness.ratio == "f/g" else (g, f)
    ratios = []
    for far in BITS[2:]:
        sizes = dict.fromkeys(NAMES, 1) | witness.at(2**far)
        if region == "n == d" or not set(NAMES) <= set(witness.exponents):  # a name that is in no expression
            sizes = completed(witness.at(2**far), region)
        if not inside(region, sizes):
            return f"{sizes} is outside of the region"
        try:
            top, bottom = abs(above.at(sizes)), abs(below.at(sizes))
        except Imaginary:
            return None
        except Undefined:
            return f"undefined at {sizes}"
        if not bottom and top:
            return None  # it is as large as a ratio can be
        ratios.append(top / bottom if bottom else Fraction(0))
    if not all(ratios):
        return "the ratio is 0"
    grown = bits(ratios[1]) - bits(ratios[0])
    return None if grown >= 80 * witness.growth - 24 else f"the ratio grows by 2^{grown}"


def completed(some: dict[str, int], region: str) -> dict[str, int]:
    """Sizes that the expressions do not mention, so that the region allows them."""
    largest = max(some.values(), default=1)
    for value in (1, largest, largest**2, largest**4, 7 * largest):
        sizes = dict.fromkeys(NAMES, value) | some
        if inside(region, sizes):
            return sizes
    return dict.fromkeys(NAMES, 1) | some


def judged(random: Random) -> Iterator[tuple[str, str]]:
    """One random decision: its outcome, and what is wrong with it, if anything."""
    f, g = drawn(random, random.randint(2, 7)), drawn(random, random.randint(1, 4))
    if random.random() < 0.4:
        g = added(f)
    region = random.choice(list(REGIONS))
    relation = random.choice("OΩΘ")
    asked = f"decide({str(f)!r}, {relation!r}, {str(g)!r}, {region!r})"
    try:
        verdict = decide(str(f), relation, str(g), region)
    except Undecided:
        yield "undecided", ""
        return
    except UsageError as error:
        assert any(reason in str(error) for reason in REFUSED), error
        wrong = next(filter(None, (positive(f, g, ray(random), region) for _ in range(5))), None)
        yield "refused", f"{asked} is refused, {error} {wrong}" if wrong and "not positive" in str(error) else ""
        return
    if not verdict:
        assert verdict.witness
        wrong = contradiction(f, g, verdict.witness, region)
        yield "fails", f"{asked} fails at {verdict.witness}: {wrong}" if wrong else ""
        return
    for _ in range(40):
        curve = ray(random)
        along = [curve(far) for far in BITS]
        along = [sizes for sizes in along if inside(region, sizes)]
        small = {name: random.randint(1, 9) for name in NAMES}
        for points in (along, [small] if inside(region, small) else []):
            for above, below in ((f, g),) * (relation in "OΘ") + ((g, f),) * (relation in "ΩΘ"):
                if wrong := grows(above, below, points):
                    yield "holds", f"{asked} holds: {wrong}"
                    return
    yield "holds", ""


def run(seed: int, number: int) -> Counter[str]:
    random, outcomes, wrong = Random(seed), Counter[str](), []
    for _ in range(number):
        for outcome, error in judged(random):
            outcomes[outcome] += 1
            wrong += [error] if error else []
    assert not wrong, "\n".join(wrong)
    return outcomes


@pytest.mark.one_in(4)
def test_random_decisions_are_not_contradicted_by_numbers() -> None:
    outcomes = run(seed=1, number=150)
    assert min(outcomes["holds"], outcomes["fails"]) >= 15, outcomes  # or nothing was tried


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_thousands_of_random_decisions(seed: int) -> None:
    run(seed, 600)
