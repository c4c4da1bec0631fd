"""Every capacity that is not a `Cube`: its proof's inequalities, for all real numbers, decided by an SMT solver.

The steps, and why they are enough, are in section 3 of docs/lower-bounds.md. Sizes are in units of d words for lines,
and of d² for the rest, so that d is 1; a statement is proved if no real numbers contradict it. The one that takes a
solver long has an identity instead. `Cube` has certificates.
"""

from typing import Any

import pytest
import sympy
from oracle_reals import contradicted, needs_z3

from pebblesim.lower_bounds.capacities import Gradients

pytestmark = needs_z3


def reals(names: str) -> tuple[list[Any], list[Any]]:
    """Numbers of these names, and that none is negative."""
    numbers = list(sympy.symbols(f"{names},", real=True))
    return numbers, [each >= 0 for each in numbers]


def fresh_16(c: int) -> tuple[Any, Any, tuple[list[Any], list[Any]]]:
    """N² = v o (e + IJ) with v + o = y, I + J = z: y²/4·(e + z²/4) ≤ x³/27 or x⁴/c²; what either leaves, in whole."""
    (e, y, z), _ = numbers = reals("e y z")
    x, made = e + y + z, y**2 * (4 * e + z**2)
    return 16 * x**3 - 27 * made, 16 * x**4 - c**2 * made, numbers


def test_fresh_16() -> None:
    """As sums of terms, which are not negative for s = e + z ≤ 4, where z ≤ 4, or else for s ≥ 4: by hand."""
    short, long, ((e, y, z), _) = fresh_16(16)
    s = e + z
    assert sympy.expand(short - (4 * (y - 2 * s) ** 2 * (4 * y + s) + 27 * y**2 * z * (4 - z))) == 0
    rest = (y - s) ** 2 * ((y + s) ** 2 + 4 * y * s) + 16 * y**2 * e * (s - 4 + z)
    assert sympy.expand(long - 16 * rest) == 0


def test_fresh_17_is_contradicted() -> None:
    short, long, (_, signs) = fresh_16(17)
    assert contradicted(sympy.Or(short >= 0, long >= 0), *signs)


def kappa(low: bool, times: int = 1) -> tuple[Any, ...]:
    """(ij + e)u ≤ κ(j)²(2i + u + e)² for u ≤ i, where κ² is 1/4(3 - j) below j = 3/2, and j/9 above."""
    (i, j, e, u), signs = reals("i j e u")
    b = 2 * i + u + e
    claim = (i * j + e) * u * 4 * (3 - j) * times <= b**2 if low else 9 * (i * j + e) * u * times <= j * b**2
    return claim, *signs, u <= i, 2 * j <= 3 if low else 2 * j >= 3


def end_of_fresh_24(c: int) -> tuple[Any, ...]:
    """√(aj)·z/3 ≤ x²/c with x = a + j + z, squared."""
    (a, j, z), signs = reals("a j z")
    return c**2 * a * j * z**2 <= 9 * (a + j + z) ** 4, *signs


def test_fresh_24() -> None:
    assert not contradicted(*kappa(low=True))
    assert not contradicted(*kappa(low=False))
    (j,), signs = reals("j")
    assert not contradicted(
        sympy.Implies(4 * j < 9, sympy.ITE(2 * j < 3, 4 * (3 - j) > 4, 4 * j < 9)), *signs
    )  # κ < 1/2
    (a, z), signs = reals("a z")
    assert not contradicted(27 * a * z**2 <= 4 * (a + z) ** 3, *signs)  # √a·z/2 ≤ (x/3)^(3/2)
    assert not contradicted(*end_of_fresh_24(24))
    assert contradicted(*end_of_fresh_24(25))
    assert contradicted(*kappa(low=False, times=2))


def kappa_of_latent(low: bool, times: int = 1) -> tuple[Any, ...]:
    """(ij + e)u ≤ κ(j)²(ρi + u + e)² for u ≤ i; κ² is 1/4(1 + ρ - j) below j = (1 + ρ)/2, and j/(1 + ρ)² above."""
    (i, j, e, u, ρ), signs = reals("i j e u rho")
    b, made = ρ * i + u + e, (i * j + e) * u * times
    claim = made * 4 * (1 + ρ - j) <= b**2 if low else made * (1 + ρ) ** 2 <= j * b**2
    return claim, *signs, ρ >= 1, u <= i, 2 * j <= 1 + ρ if low else 2 * j >= 1 + ρ


def end_of_latent(less: int, wide: bool = False) -> tuple[Any, ...]:
    """√(aj)·z ≤ x²/4ρ for x = y + z, y = a + (ρ - 1)j, j ≤ a and ρ ≤ 2: as 4yz ≤ x², it is enough that ρ²aj ≤ y²."""
    (a, j, ρ), signs = reals("a j rho")
    return (ρ**2 + less) * a * j <= (a + (ρ - 1) * j) ** 2, *signs, ρ >= 1, wide or ρ <= 2, j <= a


def test_latent() -> None:
    assert not contradicted(*kappa_of_latent(low=True))
    assert not contradicted(*kappa_of_latent(low=False))
    assert contradicted(*kappa_of_latent(low=False, times=2))
    (j, ρ, y, z), signs = reals("j rho y z")
    below = 4 * j < (1 + ρ) ** 2  # where κ < 1/2, which is where κ² is below 1/4 in either form
    kappa = sympy.ITE(2 * j < 1 + ρ, 1 + ρ - j >= 1, 4 * j < (1 + ρ) ** 2)
    assert not contradicted(sympy.Implies(below, kappa), *signs, ρ >= 1)
    assert not contradicted(4 * y * z <= (y + z) ** 2, *signs)
    assert not contradicted(*end_of_latent(0))
    assert contradicted(*end_of_latent(1))
    assert contradicted(*end_of_latent(0, wide=True))  # so a key counts for 2d_v words at most


def test_gradients() -> None:
    dQ, dK, dV = Gradients.weights
    (δ, u, y, z, m), signs = reals("delta u y z m")
    assert not contradicted(dV * m <= 4 * (1 + δ) * (1 + z), *signs, m <= δ, m <= z)
    parts = [each <= 1 for each in (u, y, z)]
    made = dV * z + dQ * u + dK * y
    assert not contradicted(made <= 4 * (2 + u) * (2 + y + z), *signs, *parts)
    assert contradicted(made + 1 <= 4 * (2 + u) * (2 + y + z), *signs, *parts)
    (r,), signs = reals("r")  # √e in units of d; half·r ≤ 2r² + half²/8
    half = Gradients(1).half
    assert not contradicted(half * r <= 2 * r**2 + sympy.Rational(half**2, 8), *signs)
    assert contradicted(half * r < 2 * r**2 + sympy.Rational(half**2, 8), *signs)


def test_gradients_without_carried_pairs() -> None:
    """In units of d words for lines and d² for the rest: X ≥ 1377/8 leaves nothing for carried pairs to add."""
    (δ, z, m), signs = reals("delta z m")
    dV = Gradients.weights[2]
    for row, key in ((2, 1 + z), (1 + δ, 2 + z), (1 + δ, 1 + z)):  # not both whole: only P, at most 3αβ
        made = dV * (z if row == 2 else m)
        given = (*signs, m <= δ, m <= z, z <= 1, δ <= 1)
        assert not contradicted(made <= 3 * row * key, *given)
    assert contradicted(dV * m <= sympy.Rational(5, 2) * (1 + δ) * (1 + z), *signs, m <= δ, m <= z)
    (R, C, Rp, Cp), signs = reals("R C Rp Cp")
    whole = 3 * R * C + (R - Rp) * (C - Cp)
    assert not contradicted(whole <= 4 * R * C - (R * Cp + Rp * C) / 2, *signs, Rp <= R, Cp <= C)
    (r, t, X), signs = reals("r t X")  # r = √e, t² = R Cp
    most, half = 2 * Gradients(1).half, sympy.Rational(Gradients(1).half)
    assert not contradicted(most * r * t - t**2 / 2 <= most**2 / 2 * r**2, *signs)
    assert contradicted(most * r * t - t**2 / 2 <= (most**2 / 2 - 1) * r**2, *signs)
    e, square = r**2, sympy.Rational(*Gradients(1).whole.as_integer_ratio())
    few, many = (X - e) ** 2 + most**2 * e, (X - e) ** 2 + half * r * (X - e)
    given = (*signs, e <= X)
    assert not contradicted(many <= X**2, *given, r >= half / 2)
    assert not contradicted(few <= X**2, *given, r <= half / 2, square <= X)
    assert contradicted(few <= X**2, *given, r <= half / 2, square - 1 <= X)
    between = square - half**2 / 8
    assert not contradicted(few <= square * X, *given, r <= half / 2, between <= X, square >= X)


def box(third: bool, less: int = 0) -> tuple[Any, ...]:
    """N² ≤ abc, N ≤ sc, N ≤ tb, a + b + c ≤ X: no more than s(√(X + s²) - s)², or st(X - st)/(s + t).

    In units of s for sides, s² for families and s³ for products, so that s is 1.
    """
    (a, b, c, N, t, X, root), signs = reals("a b c N t X root")
    given = (*signs, t >= 1, a * b * c >= N**2, c >= N, a + b + c <= X, X >= 3)
    if third:
        return N * (1 + t) <= t * (X - t - less), *given, t * b >= N, t**2 + 2 * t <= X
    return X - less + 2 - 2 * root >= N, *given, sympy.Eq(root**2, X + 1)


@pytest.mark.slow
def test_box() -> None:
    assert not contradicted(*box(third=False))
    assert not contradicted(*box(third=True))
    assert contradicted(*box(third=False, less=1))
    assert contradicted(*box(third=True, less=1))


def test_rows() -> None:
    """I + J = l lines make l²/4 pairs at most, and l²/4 + X - wl, convex in l, is largest at an end."""
    (I, J, one, two, most, w, X), signs = reals("I J one two most w X")
    assert not contradicted(4 * I * J <= (I + J) ** 2, *signs)

    def pairs(lines: Any) -> Any:
        return lines**2 / 4 + X - w * lines

    between = (one <= two, two <= most)
    assert not contradicted(sympy.Or(pairs(two) <= pairs(one), pairs(two) <= pairs(most)), *signs, *between)
