"""Tables of products, of which bounds are made: how much fits, how many there are, and what a mask makes of them.

The capacity of a bound on several matrix products is held against the most that its table can make, found by ascent.

With x families of each kind within reach, a product of kinds a, b, c has at most √(abc) elements (Loomis and Whitney).
What all products of a table make together, by their weights, must not exceed w (X/3)^(3/2), whatever the shares of X.
"""

from functools import cache

import numpy as np
import pytest
import strategies

from pebblesim.counting.count import count
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.lower_bounds.bounds import BOUNDS
from pebblesim.lower_bounds.capacities import Cube, least_words
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Formulation, Pairs

DIMS = {dim: {"n": 4096, "d": 64}[given] for problem in PROBLEMS.values() for dim, given in problem.from_nd.items()}


def every_claim() -> dict[str, tuple[CuttingBound, tuple[str, ...], bool]]:
    """All bounds of all ways, with the outputs of their problem, and whether they are under a mask."""
    found = {}
    for problem in PROBLEMS.values():
        bounding = BOUNDS.get(problem.bounds or "")
        if bounding is None:
            continue
        made = {name: source for name, source in bounding.made.items() if name not in problem.inputs}
        dims = {dim: DIMS[dim] for dim in problem.dims}
        for which, formulation in bounding.ways.items():
            for pairs in (None, Pairs.of(10**6, DIMS["n"]))[: 2 if problem.maskable else 1]:
                for first in bounding.claims(Cutting(problem, dims, formulation, pairs, made)):
                    for number, claim in enumerate((first, *first.others)):
                        weights = f", weights {number}" if number else ""
                        name = f"{problem.name}, {claim.name}{weights}, {which}{', masked' * (pairs is not None)}"
                        found[name] = claim, tuple(problem.outputs), pairs is not None
    return found


CLAIMS = every_claim()
TABLES = {name: claim for name, (claim, *_) in CLAIMS.items() if claim.table and isinstance(claim.capacity, Cube)}


def test_no_m_lies_between_the_closed_forms_of_a_bound() -> None:
    """From 0 to where the last of them ends."""
    several = 0
    for name, (first, *_) in CLAIMS.items():
        domains = sorted((low, high or 10**9) for each in (first, *first.others) for _, low, high in each.forms)
        if "weights" not in name and domains:
            assert all(low <= max([0, *(high for _, high in domains[:at])]) for at, (low, _) in enumerate(domains)), (
                name
            )
            several += len(domains) > 1
    assert several > 100


@cache  # many claims have the same table
def most(table: tuple[tuple[tuple[str, ...], int], ...]) -> float:
    """The most weighted products for X = 1 that were found, from many starts; families and weight of each product."""
    kinds = list(dict.fromkeys(family for families, _ in table for family in families))
    used = np.array([[kinds.index(family) for family in families] for families, _ in table])
    weights = np.array([weight for _, weight in table], dtype=float)
    shares = np.random.default_rng(1).dirichlet(np.full(len(kinds), 0.5), size=60)
    for _ in range(400):  # each share becomes what its kind has part in: this never makes less (Baum and Eagon 1967)
        made = weights * np.sqrt(shares[:, used].prod(axis=2))
        part = np.zeros_like(shares)
        for place in range(3):
            np.add.at(part, (slice(None), used[:, place]), made)
        shares = part / part.sum(axis=1, keepdims=True)
    return float((weights * np.sqrt(shares[:, used].prod(axis=2))).sum(axis=1).max())


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", TABLES)
def test_no_shares_make_more_than_the_capacity(name: str) -> None:
    claim = TABLES[name]
    assert isinstance(claim.capacity, Cube)
    allowed = claim.capacity.w / 27**0.5
    found = most(tuple((product[:3], product.weight) for product in claim.table))
    assert 0.999 * allowed < found <= (1 + 1e-9) * allowed  # and one product alone reaches it


@pytest.mark.parametrize("name", [name for name, (claim, _, masked) in CLAIMS.items() if masked and claim.table])
def test_trees_of_unknown_size_are_treated_so(name: str) -> None:
    """Under a mask a sum over queries or keys has as many terms as its line has pairs, which may be one.

    Such a tree may be made again for nothing, so that it must be known as ragged, and nothing counted may rest on it.
    """
    claim, outputs, _ = CLAIMS[name]
    loose = {each.result for each in claim.table if each.sides[1] in ("queries", "keys") and each.result not in outputs}
    assert claim.ragged or not loose
    assert not any(loose & {each.left, each.right} for each in claim.table)


@strategies.every(SCHEDULES, of=8)
def test_no_table_has_more_products_than_a_schedule_of_its_way_multiplies(schedule: Schedule) -> None:
    sizes = dict.fromkeys(schedule.problem.dims, 64)
    done = count(schedule, M=10**7, **sizes).work["mul"]
    bounding = BOUNDS.get(schedule.problem.bounds or "")
    if bounding is None:
        return
    problem = schedule.problem
    made = {name: source for name, source in bounding.made.items() if name not in problem.inputs}
    case = Cutting(problem, sizes, Formulation.of(schedule), None, made)
    for claim in bounding.claims(case):
        if not claim.why_not:
            counted = sum(case.size(product.sides)[1] for product in claim.table)
            assert counted <= done, claim.name


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, claim in TABLES.items()
        if claim.forms and claim.free and claim.tree and not claim.ragged and claim.light is None
    ],
)
def test_a_form_is_said_to_hold_as_far_as_trees_take_their_share(name: str) -> None:
    """Beyond it a tree that is made again takes less than its share of a segment, and the argument gives nothing."""
    claim = TABLES[name]
    ((_, _, high),), (_, unit) = claim.forms, claim.unit
    assert high is not None  # to whole hundredths for other weights than the first
    within, beyond = (
        least_words(10**6 * claim.products, claim.capacity, int(M), claim.free, claim.tree)
        for M in (0.95 * high * unit, 1.05 * high * unit)
    )
    assert within is not None and beyond is None


@pytest.mark.parametrize("name", [name for name, claim in TABLES.items() if claim.light and len(claim.forms) > 1])
def test_forms_of_light_trees_meet_where_these_begin_to_weigh_less(name: str) -> None:
    claim = TABLES[name]
    (small, _, high), (large, low, _) = claim.forms
    assert high == low and claim.unit[1] == DIMS["d"] ** 2
    M = float(low) * DIMS["d"] ** 2
    numbers = {**DIMS, "Z": 10**6, "r": 245, "c": 245, "M": M, "sqrt": lambda x: x**0.5}
    assert eval(small, numbers) == pytest.approx(eval(large, numbers) + 1)
