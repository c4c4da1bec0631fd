"""Capacities in whole columns, "Whole columns" in docs/lower-bounds.md, against sets of families, one word at a time.

What a set of families makes is counted here product by product: one is made if its three families are in the set.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import product as every

import pytest
from bounds.test_tables_of_products import CLAIMS

from pebblesim.lower_bounds.bounds_backward_qkv import GRADIENTS, SCORES
from pebblesim.lower_bounds.capacities import IN_COLUMNS, Box, Columns, Cube, least_words
from pebblesim.lower_bounds.certificates import in_columns
from pebblesim.lower_bounds.instances import Product

Family = tuple[str, int, int]
Triples = list[tuple[tuple[Family, Family, Family], int]]

MATMUL = [Product("C", "A", "B", ("queries", "d", "keys"))]


def triples(table: Sequence[Product], sizes: dict[str, int]) -> Triples:
    """The families and the weight of each elementary product."""
    made: Triples = []
    for each in table:
        named = [(side, sizes.get(side, sizes["d"])) for side in each.sides]
        for i, t, j in every(*(range(size) for _, size in named)):
            at = dict(zip(each.sides, (i, t, j), strict=True))
            families = []
            for name, sides in zip(each[:3], ((0, 2), (0, 1), (1, 2)), strict=True):
                one, other = sorted((each.sides[side] for side in sides), key=("queries", "keys").count, reverse=True)
                if {one, other} == {"queries", "keys"}:
                    one, other = "queries", "keys"
                families.append((name, at[one], at[other]))
            made.append(((families[0], families[1], families[2]), each.weight))
    return made


def most_found(made: Triples, X: int, dice: random.Random, steps: int) -> int:
    """The most products, by weight, of X families: from random ones, exchange two as long as that loses little."""
    families = sorted({family for each, _ in made for family in each})
    of_family = defaultdict(list)
    for number, (each, _) in enumerate(made):
        for family in each:
            of_family[family].append(number)
    here = set(dice.sample(families, min(X, len(families))))
    lacking = [sum(family not in here for family in each) for each, _ in made]
    value = best = sum(weight for (_, weight), lack in zip(made, lacking, strict=True) if not lack)

    def change(family: Family, by: int) -> int:
        gain = 0
        for number in of_family[family]:
            before = lacking[number]
            lacking[number] += by
            gain += made[number][1] * ((lacking[number] == 0) - (before == 0))
        return gain

    outside = [family for family in families if family not in here]
    inside = list(here)
    for step in range(steps if outside else 0):
        out, to = dice.randrange(len(inside)), dice.randrange(len(outside))
        gain = change(inside[out], 1) + change(outside[to], -1)
        if gain < -2 * dice.random() * (1 - step / steps):
            change(inside[out], -1)
            change(outside[to], 1)
            continue
        inside[out], outside[to] = outside[to], inside[out]
        value += gain
        best = max(best, value)
    return best


def test_all_sets_of_two_by_two_by_two() -> None:
    """For each X the most that any set makes is the capacity, to the product."""
    made = triples(MATMUL, {"queries": 2, "keys": 2, "d": 2})
    families = sorted({family for each, _ in made for family in each})
    masks = [sum(1 << families.index(family) for family in each) for each, _ in made]
    most = [0] * 13
    for chosen in range(1 << 12):
        words = chosen.bit_count()
        most[words] = max(most[words], sum(chosen & mask == mask for mask in masks))
    assert most == [Columns()(X) for X in range(13)] == [Box((2, 2, 2))(X) for X in range(13)]


def test_tiles_are_met_and_no_number_of_words_is_allowed_more_than_loomis_and_whitney() -> None:
    capacity = Columns()
    for a, b, columns in every(range(1, 5), repeat=3):
        assert capacity(a * b + (a + b) * columns) >= a * b * columns  # as many products as a tile makes
    for side in range(1, 9):
        assert capacity(3 * side**2) == side**3
    values = [capacity(X) for X in range(IN_COLUMNS + 10)]
    assert values == sorted(values)
    assert all(value <= Cube()(X) for X, value in enumerate(values))
    assert sum(value < Cube()(X) for X, value in enumerate(values)) > 150


IN_WHOLE_COLUMNS = {
    (*claim.table, *([SCORES] if claim.capacity.scores else [])): claim.capacity
    for claim, *_ in CLAIMS.values()
    if isinstance(claim.capacity, Columns)
}
"""The tables that bounds in whole columns count."""


def test_tables_of_pairs_are_counted_in_whole_columns() -> None:
    names = {claim.name for claim, *_ in CLAIMS.values() if isinstance(claim.capacity, Columns)}
    assert names >= {"C2", "C2w", "D1", "D4r", "E1h", "E5", "E6"}
    assert not names & {"D4", "V2", "E1"}


@pytest.mark.parametrize(
    "table", IN_WHOLE_COLUMNS, ids=lambda table: " ".join(f"{each.weight}{each[0]}" for each in table)
)
def test_no_families_make_more_than_the_capacity(table: tuple[Product, ...]) -> None:
    dice, made = random.Random(str(table)), triples(table, {"queries": 3, "keys": 3, "d": 2})
    for _ in range(6):
        X = dice.randint(3, 40)
        assert most_found(made, X, dice, 400) <= IN_WHOLE_COLUMNS[table](X)


@pytest.mark.parametrize("X", [8, 12, 16, 21])
def test_random_families_come_as_far_as_the_capacity(X: int) -> None:
    dice, made = random.Random(X), triples(MATMUL, {"queries": 3, "keys": 3, "d": 2})
    assert max(most_found(made, X, dice, 3000) for _ in range(12)) == Columns()(X)


def test_one_family_of_pairs_twice_in_a_component_makes_more() -> None:
    """Nine pairs, and three words each of three operands in a column: 18 products of 18 families."""
    star = [Product("P", "K", "Q", ("keys", "d", "queries")), Product("R", "P", "Q", ("keys", "queries", "d"))]
    assert not in_columns([each.of_pairs for each in star if each.of_pairs])
    made = triples(star, {"queries": 3, "keys": 3, "d": 1})
    assert len(made) == 18 > Columns()(len({family for each, _ in made for family in each}))
    apart = [star[0], star[1]._replace(left="O")]
    assert in_columns([each.of_pairs for each in apart if each.of_pairs])


def test_scores_count_besides_as_their_operands_are_those_of_others() -> None:
    """All of three queries and keys in two columns, and both families of their pairs: 54 products of 42 families."""
    made = triples([SCORES, *GRADIENTS[:2]], {"queries": 3, "keys": 3, "d": 2})
    words = len({family for each, _ in made for family in each})
    assert Columns()(words) < len(made) <= Columns(scores=1)(words)


@pytest.mark.parametrize(("M", "words"), [(5, 1250), (8, 857), (9, 800), (16, 560)])
def test_a_thousand_products_and_more(M: int, words: int) -> None:
    """In thousandths of a word for each of many products: 12/14 at M = 8, where numbers of families allow 12/15."""
    many = 10**9
    found = least_words(many, Columns(), M)
    assert found is not None
    assert round(found * 1000 / many) == words
