"""The capacity of a bound on several matrix products against the most that its own table can make, found by ascent.

With x families of each kind within reach, a product of kinds a, b, c has at most √(abc) elements (Loomis and Whitney).
What all products of a table make together, by their weights, must not exceed w (X/3)^(3/2), whatever the shares of X.
"""

import numpy as np
import pytest

from pebblesim.language.problems import PROBLEMS
from pebblesim.theory.capacities import Cube
from pebblesim.theory.cutting import Case, Claim, Pairs
from pebblesim.theory.lower_bounds import BOUNDS

DIMS = {"n": 4096, "d": 64, "m": 4096, "k": 64}


def tables() -> dict[str, Claim]:
    found = {}
    for problem in PROBLEMS.values():
        bounding = BOUNDS.get(problem.bounds or "")
        if bounding is None:
            continue
        made = {name: source for name, source in bounding.made.items() if name not in problem.inputs}
        dims = {dim: DIMS[dim] for dim in problem.dims}
        for which, way in bounding.ways.items():
            for pairs in (None, Pairs.of(10**6, DIMS["n"]))[: 2 if problem.maskable else 1]:
                for claim in bounding.claims(Case(problem, dims, way, pairs, made)):
                    if claim.table and isinstance(claim.capacity, Cube):
                        found[f"{problem.name}, {claim.name}, {which}{', masked' * (pairs is not None)}"] = claim
    return found


TABLES = tables()


def most(claim: Claim) -> float:
    """The most weighted products for X = 1 that were found, from many starts."""
    kinds = list(dict.fromkeys(family for product in claim.table for family in product[:3]))
    used = np.array([[kinds.index(family) for family in product[:3]] for product in claim.table])
    weights = np.array([product.weight for product in claim.table], dtype=float)
    shares = np.random.default_rng(1).dirichlet(np.full(len(kinds), 0.5), size=60)
    for _ in range(400):  # each share becomes what its kind has part in: this never makes less (Baum and Eagon 1967)
        made = weights * np.sqrt(shares[:, used].prod(axis=2))
        part = np.zeros_like(shares)
        for place in range(3):
            np.add.at(part, (slice(None), used[:, place]), made)
        shares = part / part.sum(axis=1, keepdims=True)
    return float((weights * np.sqrt(shares[:, used].prod(axis=2))).sum(axis=1).max())


@pytest.mark.parametrize("name", TABLES)
def test_no_shares_make_more_than_the_capacity(name: str) -> None:
    claim = TABLES[name]
    assert isinstance(claim.capacity, Cube)
    allowed = claim.capacity.w / 27**0.5
    assert 0.999 * allowed < most(claim) <= (1 + 1e-9) * allowed  # and one product alone reaches it
