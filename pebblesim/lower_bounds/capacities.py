"""Lower bounds on the words of a game from the number of products that fit between two cuts, in exact integers.

A *capacity* G(X) is the largest number of products that can be evaluated while X families of values are within reach.
docs/lower-bounds.md has the argument and the proof of each capacity; this module does the arithmetic, for numbers of
any magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, floor, isqrt
from typing import ClassVar, Protocol

from pebblesim.core.bisection import first_beyond, first_that, last_that

MANY = 8
"""From this number of segments on, one segment or two, of more families each, are not tried."""


class Capacity(Protocol):
    """The largest number of products from X families; it never decreases with X."""

    def __call__(self, X: int, /) -> int: ...

    def turns(self, M: int, /) -> Iterator[int]:
        """Yield values of X near which the bound may be largest: at peaks of pieces of G, and where pieces meet."""
        ...


@dataclass(frozen=True)
class Cube:
    """N ≤ w (X/3)^(3/2)/√ω, by Loomis and Whitney; in integers 27 ω N² ≤ w² X³.

    Each product has three families and counts at most w times. One of its families has a weight of at least ω ≤ 1, the
    two others have weight 1. X is the sum of the weights.
    """

    w: int = 1
    lightest: Fraction = Fraction(1)

    def __call__(self, X: int) -> int:
        return isqrt(self.w**2 * X**3 * self.lightest.denominator // (27 * self.lightest.numerator))

    def turns(self, M: int) -> Iterator[int]:
        yield 3 * M - 1


@dataclass(frozen=True)
class Columns(Cube):
    """`Cube` for products of pairs that are all counted w times, in whole columns where X is small.

    A column of operands with m words within reach has at most min(c, ⌊m²/4⌋) products with c pairs. `scores` is the
    weight of one more matrix product, whose operands others have, too, so that it has as many again.
    """

    scores: int = 0

    def __call__(self, X: int) -> int:
        return (self.w + self.scores) * (_in_columns()[X] if X <= IN_COLUMNS else isqrt(X**3 // 27))

    def turns(self, M: int) -> Iterator[int]:
        yield 3 * M - 1
        if 3 * M <= IN_COLUMNS:  # whole tiles may be far from it
            yield from (3 * M - 12, 3 * M + 10)


IN_COLUMNS = 200
"""The largest X at which whole columns are counted: M ≤ 64. Beyond they would lower a capacity by 3 % or less."""


@cache
def _in_columns() -> list[int]:
    """The most products of pairs with operands, by the number X of pairs' families and words within reach."""
    most = [0] * (IN_COLUMNS + 1)
    for pairs in range(1, IN_COLUMNS + 1):
        widest = isqrt(4 * pairs - 1) + 1  # the least m with m²/4 ≥ pairs
        products = [min(pairs, m * m // 4) for m in range(widest + 1)]
        of_words = [0]
        for words in range(1, IN_COLUMNS - pairs + 1):
            of_words.append(max(of_words[words - m] + products[m] for m in range(1, min(words, widest) + 1)))
        for words, number in enumerate(of_words):
            most[pairs + words] = max(most[pairs + words], number)
    return most


@dataclass(frozen=True)
class Box:
    """Like `Cube`, but each family belongs to a limited number of products.

    An element of A belongs to at most n products, one of B to m, and one of C to k. G is the largest N for which the
    minimum of a + b + c, under abc ≥ N², a ≥ N/n, b ≥ N/m and c ≥ N/k, is at most X. `sides` are m, k and n.
    """

    sides: tuple[int, int, int]

    def __call__(self, X: int) -> int:
        return min(self.of_sides(X), _in_columns()[X]) if X <= IN_COLUMNS else self.of_sides(X)

    def of_sides(self, X: int) -> int:
        """Return what numbers of families allow, with three sides; whole columns may hold less."""
        s, t, u = sorted(self.sides)
        if 3 * s**2 >= X:
            return isqrt(X**3 // 27)
        if t**2 + 2 * s * t >= X:  # s (√(X + s²) - s)²
            root = isqrt(4 * s**4 * (X + s**2) - 1) + 1
            return s * (X + 2 * s**2) - root
        return min(s * t * (X - s * t) // (s + t), s * t * u)

    def turns(self, M: int) -> Iterator[int]:
        s, t, _ = sorted(self.sides)
        yield from Columns().turns(M)
        yield from (3 * s**2, 2 * M + M**2 // s**2 - 1, t**2 + 2 * s * t)


@dataclass(frozen=True)
class Fresh:
    """max{(X/3)^(3/2), X²/(c d)}: products of pairs with a third matrix; computing a pair needs whole lines.

    A line has d words. A pair needs `query` lines of its query and `key` lines of its key. `joined`: the third matrix
    is one of these lines. The capacity is proved for one line each if not joined, and for two lines each if joined.

    Raises:
        ValueError: no capacity is proved for these numbers.
    """

    d: int
    query: int
    key: int
    joined: bool

    def __post_init__(self) -> None:
        if (self.query, self.key, self.joined) not in ((1, 1, False), (2, 2, True)):
            raise ValueError(f"no capacity is proved for {self}")

    @property
    def c(self) -> int:
        """With X words, at most X²/cd products of computed pairs are possible.

        If not joined, the two kinds of lines, the third matrix and the result each get a quarter of X. If joined, half
        of X is for the lines of keys, which include the third matrix, and half for the lines of queries and of the
        result.
        """
        return 4 * self.key * (self.query + 1) if self.joined else 16 * self.query * self.key

    def __call__(self, X: int) -> int:
        return max(isqrt(X**3 // 27), X**2 // (self.c * self.d))

    def turns(self, M: int) -> Iterator[int]:
        yield from (3 * M - 1, 2 * M - 1, (self.c * self.d) ** 2 // 27)


@dataclass(frozen=True)
class Latent:
    """max{(X/3)^(3/2), d_v X²/4w(r + d_v)}, w = min(d_k, 2d_v): products of pairs with a part of their own keys.

    To compute a pair takes r words of its query and d_k words of its key, d_v of which are its value. Queries and keys
    may change places.

    Attributes:
        d_k: words of the side with the operand that pairs are multiplied by.
        d_v: words of this operand; no more than d_k.
        row: words r of the other side, no fewer than d_v; 0 if they are d_k.
    """

    d_k: int
    d_v: int
    row: int = 0

    @property
    def per_square(self) -> Fraction:
        """The divisor 4w(r + d_v)/d_v of X² in the capacity."""
        return Fraction(4 * min(self.d_k, 2 * self.d_v) * ((self.row or self.d_k) + self.d_v), self.d_v)

    def __call__(self, X: int) -> int:
        return max(isqrt(X**3 // 27), floor(X**2 / self.per_square))

    def turns(self, M: int) -> Iterator[int]:
        yield from (3 * M - 1, 2 * M - 1, floor(self.per_square**2 / 27))


@dataclass(frozen=True)
class Gradients:
    """X·max{X, min{X + 81/8·d², 1377/8·d²}}/d: products of pairs for three gradients: dQ, dK and dV, by their weights.

    Pairs that are carried add to those that are made from whole lines only as long as X is below 1377/8·d².
    """

    d: int
    weights: ClassVar[tuple[int, int, int]] = (18, 18, 12)

    @property
    def half(self) -> int:
        """Half the largest weight: e carried pairs have at most half·√e·(X - e) products."""
        return max(self.weights) // 2

    @property
    def carried(self) -> Fraction:
        """Products that carried pairs add at most, in units of d·X."""
        return Fraction(self.half**2, 8)

    @property
    def whole(self) -> Fraction:
        """Least X, in units of d², from which on carried pairs add nothing.

        Besides whole lines, e carried pairs have at most (2·half)²·e·d products. So they cost X more than they bring,
        2Xe/d, for all e < (half/2)²·d², and there are no more of them.
        """
        return ((2 * self.half) ** 2 + Fraction(self.half, 2) ** 2) / 2

    def __call__(self, X: int) -> int:
        square = self.d**2
        worth = max(Fraction(X), min(X + self.carried * square, self.whole * square))
        return floor(X * worth / self.d)

    def convex(self, X: int) -> int:
        """A convex function of X that is never less: where the slope falls, it goes on until X²/d is more."""
        square = self.d**2
        bend = (self.whole - self.carried) * square
        before, slope = min(Fraction(X), bend), (2 * bend + self.carried * square) / self.d
        steady = before * (before + self.carried * square) / self.d + slope * (X - before)
        return floor(max(Fraction(X**2, self.d), steady))

    def turns(self, M: int) -> Iterator[int]:
        yield from (2 * M - 1, M - 1 + isqrt(M**2 + self.half**2 * self.d**2 * M // 8), ceil(self.whole * self.d**2))


@dataclass(frozen=True)
class Rows:
    """Only pairs are counted: I rows and J columns of w words give I·J pairs; each other word is one carried pair."""

    w: int

    def __call__(self, X: int) -> int:
        lines = X // self.w
        return max(X, lines**2 // 4 + X - self.w * lines)  # I + J = lines; convex in their number

    def turns(self, M: int) -> Iterator[int]:
        yield from (2 * M - 1, 4 * self.w**2)


def least_words(
    products: int, capacity: Capacity, M: int, free: int = 0, tree: int | None = None, ragged: bool = False
) -> int | None:
    """Return the largest bound of the cutting argument, or None if there is none.

    Number the episodes of a game by their start, and cut it into segments: X episodes in the first, T = X - (M - 1) in
    each further one. If s G(X) < N there are more than s segments, so at least s T + M episodes. At most one episode
    for each of the `free` trees moves no word, unless a tree is recomputed completely, which uses a part of a segment.

    Args:
        products: N, the number of products that must be evaluated.
        capacity: G.
        M: red pebbles.
        free: number of trees that can be computed without moving a word.
        tree: products in the smallest of these trees.
        ragged: whether the size of some of these trees is unknown. The smallest ones are then left out of N, which is
            always valid.
    """
    best = None
    for X, G in _choices(products, capacity, M, tree if free else None).items():
        T = X - (M - 1)
        full = (products - 1) // G
        if full < 1:
            continue
        words = full * T + M - free
        if free:  # recomputed trees can fill the rest of the last segment
            if (M if ragged else 1) > T or (tree is not None and T * tree < G):
                continue
            room = (full + 1) * G - products
            words -= room * T // G if ragged or tree is None else room // tree
        if best is None or best < words:
            best = words
    return best


def least_words_of_light_trees(products: int, w: int, M: int, light: int, tree: int, others: int) -> int:
    """Return the largest bound of the cutting argument if the free episodes of some trees weigh less than 1.

    The starts of a segment have a total weight above T - 1, and families of a total weight of at most X = M - 1 + T are
    within reach. A recomputed light tree adds `tree` products; its start may have a weight ω with ω G ≤ (T - 1)·tree.

    Args:
        products: N, the number of products that must be evaluated, each counted up to w times.
        w: the weight w of the capacity `Cube`.
        M: red pebbles.
        light: number of light trees.
        tree: least number of products that a free episode of one of them makes, so counted.
        others: number of other trees that can be computed without moving a word. No other counted product needs them.
    """
    bounds = []
    for T in (M + 1, M + M // 2 + 1, 2 * M + 1):
        X = M - 1 + T
        worth = Fraction(27 * (T - 1) ** 2, w**2 * X**3)  # ((T - 1)/G)² where all weigh 1
        largest = tree**2 * worth
        best = Fraction(products, 2 * max(1, light)) ** 2 * worth  # where (T - 1) N √ω/G - ω·light is largest
        lightest = min(Fraction(1), largest, best)
        G = Cube(w, lightest)(X) if lightest else 0
        if G > 1:
            bounds.append(Fraction((T - 1) * (products - G), G) + M - 1 - lightest * light - others)
    return floor(max(bounds)) + 1 if bounds else 0


def _choices(products: int, capacity: Capacity, M: int, tree: int | None) -> dict[int, int]:
    """Return values of X to try (any X is valid), and G(X) of each.

    They are the turns, the X near them that fill a whole number of segments, and the least X at which no tree of this
    size is recomputed.
    """
    G = cache(capacity)  # bisections ask for the same X again and again
    turns = {max(M, X) for X in capacity.turns(M)}
    near = {X for turn in turns for X in range(max(M, turn - 6), turn + 7)}  # small X: G takes few values
    segments = {max(1, products // max(1, G(X)) + more) for X in turns for more in (-1, 0, 1)}
    if min(segments) < MANY:  # more segments than these move more words than one or two
        segments |= {1, 2}
    ends = set()
    for share in {(products - 1) // number for number in segments}:
        beyond = first_beyond(G, share)
        ends |= {beyond - 1, beyond}
    if tree is not None:  # a tree is dear for an interval of X, as G is convex: around its middle, or for none

        def dear(X: int) -> bool:
            return (X - M + 1) * tree >= G(X)

        middle = first_that(lambda X: G(X + 1) - G(X) > tree or X > M << 8, M)
        inside = [X for X in (*turns, middle) if dear(X)]
        if inside:
            first = last_that(lambda X: not dear(X), M - 1, min(inside)) + 1
            ends |= {first, first + 1}
    return {X: G(X) for X in near | ends if G(X) > 0}
