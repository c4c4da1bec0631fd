"""Lower bounds on the words that the busiest of P devices moves; docs/parallel.md has the proofs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from pebblesim.core.bisection import first_beyond, first_that
from pebblesim.lower_bounds.capacities import Fresh, Gradients, Latent
from pebblesim.parallel.team import Team


@dataclass(frozen=True)
class DeviceBound:
    """A lower bound.

    Attributes:
        name: P1, P2 or P3.
        value: the busiest device moves at least this number of words.
        domain: the schedules that it holds for.
    """

    name: str
    value: int
    domain: str

    def __str__(self) -> str:
        return f"{self.name}, {self.domain}"


def bounds(team: Team, M: int | None = None) -> list[DeviceBound]:
    """Return all bounds, the largest first; P3 if there is a memory of M words."""
    found = [
        DeviceBound("P1", any_memory(team), "for products dealt to devices in any way"),
        DeviceBound("P2", whole_pairs(team), "for pairs that one device computes whole"),
    ]
    if M is not None:
        found.append(DeviceBound("P3", with_memory(team, M), "for products dealt in any way, M words in each device"))
    return sorted(found, key=lambda each: -each.value)


@dataclass(frozen=True)
class Products:
    """Products of pairs that P1 and P3 count, by weight.

    Attributes:
        of_a_pair: the products of a pair.
        capacity: the most products with X words within reach.
        convex: the same, or more, as a convex function of X; None if the capacity is convex.
        row, key: the words of a row and of a key that are within reach for nothing if the device owns them.
    """

    of_a_pair: int
    capacity: Callable[[int], int]
    row: int
    key: int
    convex: Callable[[int], int] | None = None


def products_of(team: Team) -> Products:
    if not team.backward:
        capacity = Latent(team.d_k, team.d_v) if team.latent else Fresh(team.d_k, 1, 1, False)
        return Products(team.d_v, capacity, *team.line_words)
    columns = min(team.d_k, team.d_v)  # of all seven matrices; the others need not be counted
    gradients = Gradients(columns)
    weight = sum(Gradients.weights)
    if team.latent:  # a word of K is a word of V as well, and one of dK is one of dV
        row, key = 3 * columns, 2 * columns
        return Products(columns * weight, lambda X: gradients(2 * X), row, key, lambda X: gradients.convex(2 * X))
    return Products(columns * weight, gradients, 3 * columns, 4 * columns, gradients.convex)


def any_memory(team: Team) -> int:
    """P1: the words that so many products take, less what a device owns.

    Products that one head can have take the fewest words there, as capacity(X) / X never falls; of more, by the convex
    capacity, heads that are used wholly and a rest do.
    """
    products = products_of(team)
    of_heads = team.sharing * team.pairs * products.of_a_pair
    full, rest = divmod(-(-team.kv_heads * of_heads // team.P), of_heads)
    room = products.capacity
    if full and team.kv_heads > 1:
        room = products.convex or room
    touched = full * (first_that(lambda X: room(X) >= of_heads, 1) - 1) if full else 0
    touched += first_that(lambda X: room(X) >= rest, 0)
    own = team.heads * team.most_rows * products.row + team.kv_heads * team.most_keys * products.key
    return max(0, touched - own)


def whole_pairs(team: Team) -> int:
    """P2: a knapsack of heads. The pairs of those that share keys are convex in their words, or have two slopes."""
    pairs = _pairs_for(team)
    free = pairs(0)
    missing = -(-team.heads * team.pairs // team.P) - team.kv_heads * free
    if missing <= 0:
        return 0
    slopes = _slopes(team)
    if slopes is not None:  # all heads use the first, then all the second
        first, words, second = slopes
        gain = team.kv_heads * (pairs(words) - free)
        return ceil(missing / first if missing <= gain else team.kv_heads * words + (missing - gain) / second)
    of_heads = team.sharing * team.pairs
    full, rest = divmod(missing, of_heads - free)
    all_words = first_that(lambda words: pairs(words) >= of_heads, 0)
    if team.causal:
        all_words -= 1  # it is rounded up; without a mask it is a whole number
    return int(full * all_words + first_that(lambda words: pairs(words) >= free + rest, 0))


def _slopes(team: Team) -> tuple[Fraction, int, Fraction] | None:
    """Pairs per word while one side grows, the words until it is complete, and pairs per word then, for the other side.

    None if the sides cost the same before one of them is complete.
    """
    row, key = team.line_words
    own_rows, own_keys = team.sharing * team.most_rows, team.most_keys
    all_rows, all_keys = team.sharing * team.n_q, team.n_k
    if row * own_rows > key * all_keys:
        return Fraction(own_rows, key), key * (all_keys - own_keys), Fraction(all_keys, row)
    if key * own_keys > row * all_rows:
        return Fraction(own_keys, row), row * (all_rows - own_rows), Fraction(all_rows, key)
    return None


def _pairs_for(team: Team) -> Callable[[int], Fraction]:
    """The most pairs of the heads that share keys for a number of words: a rectangle, partly of own rows and keys.

    Under a causal mask a row sees no later key of the same device's tokens.
    """
    row, key = team.line_words
    own_rows, own_keys = team.sharing * team.most_rows, team.most_keys
    all_rows, all_keys = team.sharing * team.n_q, team.n_k
    same_tokens = team.causal and team.n_q == team.n_k
    later = team.sharing * own_keys * (own_keys - 1) // 2 if same_tokens else 0

    def pairs(words: int) -> Fraction:
        budget = Fraction(words + row * own_rows + key * own_keys)
        rows = min(max(budget / (2 * row), Fraction(own_rows)), Fraction(words, row) + own_rows)
        rows = min(max(rows, (budget - key * all_keys) / row), Fraction(all_rows))
        keys = min((budget - row * rows) / key, Fraction(all_keys))
        return min(rows * keys - later, Fraction(team.sharing * team.pairs))

    return pairs


def with_memory(team: Team, M: int) -> int:
    """P3: after each T words at most M + T are within reach; at most M words never leave."""
    each = products_of(team)
    return max(0, most_starts(each.capacity, -(-team.heads * team.pairs * each.of_a_pair // team.P), M) - M)


def most_starts(capacity: Callable[[int], int], products: int, M: int) -> int:
    """The most starts sT, s segments of T, that are too few for so many products; `capacity` of M + T in a segment."""
    return max((segments * T for segments, T in _segments(capacity, products, M)), default=0)


def _segments(capacity: Callable[[int], int], products: int, M: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of full segments and lengths T for which so many segments do not evaluate all products."""
    typical = [(products - 1) // max(1, capacity(X)) for X in (2 * M, 3 * M)]  # best for X² and for X^(3/2)
    for segments in {1, 2, 3, *(max(1, each + more) for each in typical for more in range(-3, 4))}:
        T = first_beyond(capacity, (products - 1) // segments) - 1 - M
        if T > 0:
            yield segments, T
