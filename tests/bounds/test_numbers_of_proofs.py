"""The numbers that bounds are made of, each found again in another way: in graphs, by search, by exact fractions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st
from strategies import allowed_pairs

from pebblesim import graphs
from pebblesim.analysis.blocks import choose
from pebblesim.analysis.count import count
from pebblesim.graphs.cdag import Cdag, Op
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import get
from pebblesim.lower_bounds.bounds import BOUNDS, lower_bounds
from pebblesim.lower_bounds.bounds_backward_qkv import ANGLES, EVEN, Weights
from pebblesim.lower_bounds.bounds_forward import OUTPUT, SCORES
from pebblesim.lower_bounds.capacities import Cube, Fresh, Gradients, Latent, Rows
from pebblesim.lower_bounds.certificates import Weighted, private_families, proves
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Formulation, Lines, Pairs

N, D = 3, 2


def case_of(name: str, formulation: Formulation, mask: Any = None, n: int = N, d: int = D) -> Cutting:
    solves = PROBLEMS[name]
    made = {each: of for each, of in BOUNDS[solves.bounds or ""].made.items() if each not in solves.inputs}
    pairs = None if mask is None else Pairs(int(mask.sum()), int(mask.any(1).sum()), int(mask.any(0).sum()))
    dims = {dim: {"k": d, "d": d, "m": n + 1}.get(dim, n) for dim in solves.dims}
    return Cutting(solves, dims, formulation, pairs, made)


def claims_of(case: Cutting) -> dict[str, CuttingBound]:
    return {claim.name: claim for claim in BOUNDS[case.problem.bounds or ""].claims(case)}


def products_of(graph: Cdag) -> dict[str, Counter[tuple[int, ...]]]:
    """The number of products of each element that some output depends on, for each tensor that a product makes."""
    needed, stack = set(graph.outputs.tolist()), graph.outputs.tolist()
    while stack:
        for u in graph.predecessors(stack.pop()).tolist():
            if u not in needed:
                needed.add(u)
                stack.append(u)
    made: dict[str, Counter[tuple[int, ...]]] = {}
    summed = {family.name for family in graph.families if family.op == "matmul"}
    for v in needed:
        if graph.op[v] == Op.MUL:
            family, _, index, _ = graph.locate(v)
            if family.name in summed:
                made.setdefault(family.name, Counter())[index] += 1
    return made


GRAPHS = [  # problem, formulation, graph options, bound on all products, weights, "" that of the others
    ("forward", Formulation(), {}, "C2", {}),
    ("projected-forward", Formulation(), {}, "C2", {}),
    ("forward-relu", Formulation(), {}, "C2", {}),
    ("linear", Formulation(graph={"order": "quadratic"}), {"order": "quadratic"}, "C2", {}),
    ("linear", Formulation(), {}, "L1", {}),
    ("matmul", Formulation(), {}, "B", {}),
    ("backward", Formulation(), {"order": "U"}, "D1", {}),
    ("backward", Formulation(), {"order": "T"}, "D1", {}),
    ("backward-sigmoid", Formulation(), {}, "D1", {}),
    ("backward-qkv", Formulation(), {"kept": "l"}, "E1", {"S": 24, "dQ": 20, "dK": 20, "": 25}),
    ("projected-backward-qkv", Formulation(), {"kept": "L"}, "E1p", {"dQ": 12, "dK": 12, "": 17}),
    ("backward-qkv", Formulation(kept=("P",)), {"kept": "P"}, "E5", {}),
    ("projected-backward-qkv", Formulation(kept=("P",)), {"kept": "P"}, "E5", {}),
]


@pytest.mark.parametrize(("name", "formulation", "options", "bound", "weights"), GRAPHS)
@pytest.mark.parametrize("n", [3, 1])
def test_products_and_trees_are_those_of_the_graph(
    name: str, formulation: Formulation, options: dict[str, Any], bound: str, weights: dict[str, int], n: int
) -> None:
    case = case_of(name, formulation, n=n)
    claim = claims_of(case)[bound]
    graph = graphs.build(name, **case.dims, **options)
    made = products_of(graph)
    most = weights.get("", 1)
    assert claim.products == sum(sum(each.values()) * weights.get(name, most) for name, each in made.items())
    inner = {tensor: each for tensor, each in made.items() if tensor not in case.problem.outputs}
    assert claim.free == sum(map(len, inner.values()))
    sizes = {size * weights.get(tensor, most) for tensor, each in inner.items() for size in each.values()}
    assert claim.tree == min(sizes, default=None)
    assert isinstance(claim.capacity, Cube) or bound == "B"
    assert bound == "B" or claim.capacity.w == most


@pytest.mark.parametrize(("name", "n", "d"), [("backward", 40, 3), ("forward", 50, 2), ("backward-qkv", 60, 2)])
def test_the_unit_of_a_bound_is_the_number_beside_it(name: str, n: int, d: int) -> None:
    case = case_of(name, Formulation(), n=n, d=d)
    for claim in claims_of(case).values():
        text, number = claim.unit
        assert not text or eval(text.replace("·", "*").replace("²", "**2"), {**case.dims}) == number, claim.name


@pytest.mark.parametrize("mask", [None, "causal"])
def test_products_of_one_family_a_pair_count_as_the_page_says(mask: str | None) -> None:
    """D4: a score, q and p A2 count 12, 17 and 12 times; of a pair both first products may be made for nothing."""
    allowed = np.tri(5, dtype=bool) if mask else None
    for kept, of_a_pair in (((), 12), (("l",), 12 + 17)):
        case = case_of("backward", Formulation(kept=kept), allowed, n=5)
        claim, pairs, d = claims_of(case)["D4"], 15 if mask else 25, case.dims["d"]
        assert claim.products == (12 + 17 + 12) * pairs * d
        assert claim.tree == of_a_pair * d


@given(data=st.data())
@strategies.draws(4, 25)
def test_products_and_trees_under_a_mask_are_those_of_the_graph(data: st.DataObject) -> None:
    """But for g, whose products are not counted, as the trees of dQ have as many products as there happen to be."""
    mask = data.draw(allowed_pairs(N))
    if not mask.any():
        mask[0, 0] = True
    name, formulation, options, bound, weights = data.draw(
        st.sampled_from([each for each in GRAPHS if each[2] != {"order": "T"}])
    )
    if not PROBLEMS[name].maskable:
        return
    case = case_of(name, formulation, mask)
    claim = claims_of(case)[bound]
    made = products_of(graphs.build(name, mask=mask, **case.dims, **options))
    made.pop("g", None)
    most = weights.get("", 1)
    assert claim.products == sum(sum(each.values()) * weights.get(name, most) for name, each in made.items())
    inner = {tensor: each for tensor, each in made.items() if tensor not in case.problem.outputs}
    assert claim.free >= sum(map(len, inner.values()))
    assert claim.ragged == (case.problem.bounds == "backward")
    sizes = {tensor: each.values() for tensor, each in inner.items() if tensor not in ("dQ", "T")}
    even = [size * weights.get(tensor, most) for tensor, each in sizes.items() for size in each]
    assert claim.tree == min(even, default=None)


@pytest.mark.parametrize("order", ["T", "U"])
@pytest.mark.parametrize("row", [True, False])
def test_ragged_trees_are_enough_in_either_order(order: str, row: bool) -> None:
    """One query meets all keys, or one key all queries: the trees of T are over keys, those of dQ over queries."""
    mask = np.zeros((N, N), bool)
    mask[(0, slice(None)) if row else (slice(None), 0)] = True
    case = case_of("backward", Formulation(), mask)
    made = products_of(graphs.build("backward", mask=mask, **case.dims, order=order))
    assert claims_of(case)["D1"].free >= sum(len(each) for tensor, each in made.items() if tensor != "g")
    assert claims_of(case)["D2"].free >= len(made["T" if order == "T" else "dQ"])


def test_what_is_counted_of_every_way_is_whole_where_rows_are_regrouped() -> None:
    case = case_of("backward", Formulation(graph={"row_block": 1}))
    claims = claims_of(case)
    made = products_of(graphs.build("backward", **case.dims, row_block=1))
    whole = {tensor: each for tensor, each in made.items() if tensor in ("S", "h", "Z", "q")}
    assert claims["D1r"].products == sum(sum(each.values()) for each in whole.values())
    assert claims["D1r"].free == sum(map(len, whole.values()))
    assert {name for name, claim in claims.items() if not claim.why_not} == {"D1r", "D1m", "D3", "D4r", "D7", "D5"}


@pytest.mark.parametrize(
    ("name", "formulation", "options", "bounds"),
    [
        ("forward", Formulation(), {}, ("C1", "C3")),
        ("projected-forward", Formulation(), {}, ("C1", "C3")),
        ("linear", Formulation(graph={"order": "quadratic"}), {"order": "quadratic"}, ("C1", "C3")),
        ("backward", Formulation(), {}, ("D2", "D3")),
        ("backward-relu", Formulation(), {}, ("D2", "D3")),
        ("backward-qkv", Formulation(), {"kept": "l"}, ("E2", "E4")),
        ("projected-backward-qkv", Formulation(), {"kept": "l"}, ("E2", "E4")),
    ],
)
def test_a_pair_costs_the_lines_that_the_graph_makes_it_from(
    name: str, formulation: Formulation, options: dict[str, Any], bounds: tuple[str, str]
) -> None:
    """As many as matrix products make values of pairs; the third matrix is one of them or another one."""
    case = case_of(name, formulation)
    one, pairs = (claims_of(case)[bound] for bound in bounds)
    families = graphs.build(name, **case.dims, **options).families
    of_pairs = [family for family in families if family.op == "matmul" and family.shape == (N, N)]
    assert isinstance(one.capacity, Fresh) and isinstance(pairs.capacity, Rows)
    assert (one.capacity.query, one.capacity.key) == (len(of_pairs), len(of_pairs))
    assert pairs.capacity.w == len(of_pairs) * D
    assert one.products == pairs.products * D == N * N * D
    (counted,) = one.table
    (third,) = {counted.left, counted.right} - {"Σ", "Θ"}
    assert one.capacity.joined == any(third in str(operand) for family in of_pairs for operand in family.operands)


@pytest.mark.parametrize(("d_v", "d_r"), [(2, 2), (3, 1), (1, 3), (4, 3)])
def test_products_of_latent_attention_are_those_of_the_graph(d_v: int, d_r: int) -> None:
    dims = {"n_q": 3, "n_k": 2, "d_v": d_v, "d_r": d_r}
    solves = PROBLEMS["forward-latent"].rectangle
    assert solves is not None
    claims = claims_of(Cutting(solves, dims, Formulation(), None))
    made = products_of(graphs.build("forward-latent", **dims))
    number = {name: sum(each.values()) for name, each in made.items()}
    assert claims["V1"].products == number["O"]
    assert claims["V2"].products == 12 * number["S_C"] + 17 * number["S_R"] + 12 * number["O"]
    assert claims["V2"].free == claims["V2"].light == claims["V3"].products == len(made["S_C"])
    of_score = 12 * made["S_C"][0, 0] + 17 * made["S_R"][0, 0]
    assert claims["V2"].tree is not None and of_score * 3 / 5 <= claims["V2"].tree <= of_score
    assert claims["V1"].capacity == Latent(made["S_C"][0, 0] + made["S_R"][0, 0], d_v)
    assert claims["V3"].capacity == Rows(d_v + d_r)


@pytest.mark.parametrize(("d_v", "d_r"), [(2, 2), (3, 1), (1, 3), (4, 3)])
def test_products_of_latent_gradients_are_those_of_the_graph(d_v: int, d_r: int) -> None:
    dims = {"n_q": 3, "n_k": 2, "d_v": d_v, "d_r": d_r}
    solves = PROBLEMS["backward-latent"].rectangle
    assert solves is not None
    claims = claims_of(Cutting(solves, dims, Formulation(), None))
    made = products_of(graphs.build("backward-latent", **dims))
    number = {name: sum(each.values()) for name, each in made.items()}
    with_theta = 15 * (number["dP"] + number["dQ_C"] + number["dC"]) + 18 * (number["dQ_R"] + number["dR"])
    assert claims["V4"].products == 18 * (number["S_C"] + number["dV"]) + 26 * number["S_R"] + with_theta
    assert claims["V4"].light == claims["V4"].free == 2 * len(made["S_C"])
    assert claims["V5"].products == len(made["S_C"]) and claims["V5"].capacity == Rows(d_v + d_r)
    assert claims["V4"].tree == 15 * made["dP"][0, 0] <= 18 * made["S_C"][0, 0] + 26 * made["S_R"][0, 0]


# -- capacities -------------------------------------------------------------------------------------------------------


def tables() -> Iterator[tuple[str, CuttingBound]]:
    for name, solves in PROBLEMS.items():
        if solves.bounds is not None:
            for formulation in BOUNDS[solves.bounds].ways.values():
                for mask in (None, np.tri(N, dtype=bool)) if solves.maskable else (None,):
                    for first in claims_of(case_of(name, formulation, mask)).values():
                        for claim in (first, *first.others):
                            if isinstance(claim.capacity, Cube) and claim.table:
                                yield f"{name} {claim.name}", claim


def most_of_table(products: Sequence[Weighted], w: int, draws: int = 100) -> float:
    """The most Σ weight·√(abc)/w over all splits of 3 into these families: ascents from the even one and others."""
    families = sorted({family for three, _ in products for family in three})
    index = np.array([[families.index(family) for family in three] for three, _ in products])
    weights = np.array([weight for _, weight in products]) / w
    uses = np.zeros((len(index), len(families)))
    np.put_along_axis(uses, index, 1, axis=1)
    even = np.ones((1, len(families))) / len(families)
    split = 3 * np.concatenate([even, np.random.default_rng(0).dirichlet(np.full(len(families), 0.2), draws)])
    for _ in range(300):
        split = (weights * np.sqrt(split[:, index].prod(axis=2))) @ uses + 1e-300
        split *= 3 / split.sum(axis=1, keepdims=True)
    return float((weights * np.sqrt(split[:, index].prod(axis=2))).sum(axis=1).max())


once_of_table = cache(most_of_table)
"""Many claims have the same table."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "claim"), list(tables()), ids=lambda each: each if isinstance(each, str) else "")
def test_every_cube_has_a_certificate_and_is_reached(name: str, claim: CuttingBound) -> None:
    table = tuple((each[:3], each.weight) for each in claim.table)
    assert isinstance(claim.capacity, Cube)
    private = private_families(table, claim.capacity.w)
    assert private and proves(table, claim.capacity.w, private)
    assert once_of_table(table, claim.capacity.w) == pytest.approx(1, abs=2e-3)
    if claim.light is not None:
        if claim.name == "E1h":  # some pairs have a score that is made
            of_score = {each.full: each.scores for each in (EVEN, *map(Weights.at, ANGLES))}
            table += ((SCORES[:3], of_score[claim.capacity.w]),)
        pairs = frozenset(family for three, _ in table for family in three if family in ("Σ", "Θ", "Π"))
        assert pairs == private_families(table, claim.capacity.w, pairs)


THREE = st.lists(st.sampled_from("abcdef"), min_size=3, max_size=3, unique=True).map(sorted).map(tuple)


@given(products=st.lists(st.tuples(THREE, st.integers(1, 6)), min_size=1, max_size=5), w=st.integers(1, 8))
@strategies.draws(60, 1000)
def test_what_has_a_certificate_is_true(products: list[Weighted], w: int) -> None:
    if private_families(tuple(products), w):
        assert most_of_table(products, w, 30) <= 1 + 1e-9
    heaviest = max(weight for _, weight in products)
    assert heaviest <= w or private_families(tuple(products), w) is None


CHAIN = (("x", "a", "b"), ("y", "b", "c"), ("x", "c", "d"))


@given(outer=st.tuples(st.integers(1, 40), st.integers(1, 40)), middle=st.integers(1, 40), w=st.integers(1, 40))
@strategies.draws(60, 2000)
def test_a_chain_of_three_products_has_a_certificate_where_no_split_makes_more(
    outer: tuple[int, int], middle: int, w: int
) -> None:
    """With equal outer weights, which the condition is exact for; a middle product that weighs 1 more is too much."""
    a, s = max(outer), middle
    products = tuple(zip(CHAIN, (outer[0], s, outer[1]), strict=True))
    if private_families(products, w, frozenset("xy")):
        assert most_of_table(products, w, 30) <= 1 + 1e-9
    if w**2 <= 2 * a**2 and a < w:
        known = private_families(tuple(zip(CHAIN, (a, s, a), strict=True)), w, frozenset("xy"))
        assert (known is not None) == (w**2 * s**2 <= 4 * a**2 * (w**2 - a**2))


@pytest.mark.parametrize("angle", ANGLES)
def test_weights_are_met_by_some_split_and_no_more_is_proved(angle: tuple[int, int]) -> None:
    weights = Weights.at(angle)
    s, a, w = weights
    assert w**2 * s**2 == 4 * a**2 * (w**2 - a**2)
    for more, proved in ((0, True), (1, False)):
        table = tuple(zip(CHAIN, (a, s + more, a), strict=True))
        assert (private_families(table, w, frozenset("xy")) is not None) == proved
        assert proved or most_of_table(table, w, 200) > 1


def test_what_is_false_has_no_certificate() -> None:
    """(13/17)² + (13/17)² > 1, two products of the same three families, an odd circle, a light family that is not."""
    assert private_families(((("P", "a", "b"), 12), (("P", "b", "c"), 12)), 17) == frozenset("P")
    assert private_families(((("P", "a", "b"), 13), (("P", "b", "c"), 13)), 17, frozenset("P")) is None
    assert private_families(((("a", "b", "c"), 3), (("a", "b", "c"), 4)), 5) is None  # 3² + 4² = 5², but 3 + 4 > 5
    circle = ((("P", "a", "b"), 1), (("P", "b", "c"), 1), (("P", "c", "a"), 1))
    assert private_families(circle, 2, frozenset("P")) is None
    scores = ((("Σ", "Q", "K"), 1), (("O", "Σ", "V"), 1))
    assert private_families(scores, 1, frozenset("QK")) is None
    case = case_of("forward", Formulation())
    with pytest.raises(ValueError, match="nothing proves"):
        case.of_light_pairs("?", "?", Lines(("Q",), ("K",)), [SCORES, OUTPUT._replace(left="K", right="Q")], 1)


def most_of(products: Any, kinds: int, x: float, rounds: int = 60) -> float:
    """The most products over all splits of x into so many kinds of words: a random search that closes in."""
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.full(kinds, 0.5), 6000)
    for step in np.geomspace(1, 1e-4, rounds):
        best = shares[np.argsort(products(shares * x))[-300:]]
        near = best.repeat(8, axis=0) * np.exp(step * rng.standard_normal((2400, kinds)))
        shares = np.concatenate([best, near / near.sum(axis=1, keepdims=True)])
    return float(products(shares * x).max())


def products_apart(split: Any) -> Any:
    """A line of Q or K each; V and O by themselves; pairs carried."""
    rows, columns, e, v, o = split.T
    return np.sqrt((e + rows * columns) * v * o)


def products_joined(split: Any) -> Any:
    """Two lines each, of the columns' one is the operand a; results in rows of fresh pairs, and elsewhere."""
    rows, columns, more, u1, u2, e1, e2 = split.T
    I, J = rows / 2, columns / 2
    a = J + more
    return np.sqrt(a) * (np.sqrt((I * J + e1) * np.minimum(u1, I)) + np.sqrt(e2 * u2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("x", [3.0, 12.0, 20.0, 30.0, 200.0])
@pytest.mark.parametrize(
    ("name", "bound", "products", "kinds"),
    [
        ("forward", "C1", products_apart, 5),
        ("backward", "D2", products_joined, 7),
        ("backward-qkv", "E2", products_joined, 7),
    ],
)
def test_the_best_split_makes_as_many_products_as_fit(
    x: float, name: str, bound: str, products: Any, kinds: int
) -> None:
    """In units of d words for lines and of d² for the rest, so that d = 1 stands for all."""
    d = 1000
    capacity = claims_of(case_of(name, Formulation(), d=d))[bound].capacity
    fit = capacity(int(x * d * d)) / d**3
    found = most_of(products, kinds, x)
    assert 0.99 * fit <= found <= 1.0001 * fit


def test_no_kind_of_row_and_column_makes_more_products_of_gradients_than_fit() -> None:
    """v ≤ 4αβ for a row of α d words and a column of β d words whose pairs have v d products, by weight: exactly.

    Then all pairs together have at most 4(Σα)(Σβ)d ≤ (Σα + Σβ)²d. A row has Q, a part δ of dO, and, if all of dO, a
    part u of dQ; a column has K, and V or not, and parts y of dK (if V) and z of dV. All is linear in each part where
    the others are given, but for what rows and columns have of dO and dV in common, the less of the two.
    """
    dQ, dK, dV = Gradients.weights
    ends = (Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1))
    tight = 0
    for δ, u, V, y, z in product(ends, repeat=5):
        full = δ == 1 and V == 1
        if V not in (0, 1) or (u and δ < 1) or (y and not V):
            continue
        made = dV * min(δ, z) + (dQ * u + dK * y if full else 0)
        words = (1 + δ + u) * (1 + V + y + z)
        assert made <= 4 * words
        tight += made == 4 * words
    assert tight > 0
    claim = claims_of(case_of("backward-qkv", Formulation()))["E3"]
    assert claim.products == sum(Gradients.weights) * N * N * D == 48 * N * N * D
    assert [each.weight for each in claim.table] == [dQ, dK, dV]
    e, d = 50, 7  # carried: half·√e·Y ≤ 2eY/d + half²/8·dY, with equality where √e = half·d/4
    half = Gradients(d).half
    assert half == max(Gradients.weights) / 2
    assert Fraction(half**2, 8) * d * 2 * e / d == (Fraction(half, 2)) ** 2 * e


@pytest.mark.parametrize(
    ("name", "bound", "schedule", "once", "below"),
    [
        ("forward", "C4", "flash2-forward", 4, 2),
        ("backward", "D5", "keys-resident", 5, 2),
        ("backward-qkv", "E7", "queries-resident", 8, 3),
    ],
)
def test_no_schedule_moves_each_word_once_in_much_less_than_those_that_do(
    name: str, bound: str, schedule: str, once: int, below: int
) -> None:
    """In units of nd, for n ≫ d: the compulsory words, and what M lacks of two or three of these besides."""
    n, d = 2**20, 16
    formulation = Formulation.of(get(schedule))
    for quarter in range(1, 4 * below):
        (found,) = (
            each
            for each in lower_bounds(PROBLEMS[name], {"n": n, "d": d}, quarter * n * d // 4, formulation)
            if each.name == bound
        )
        assert found.value / (n * d) == pytest.approx(once + below - quarter / 4, abs=0.07)
    enough = below * n * d + 4 * n + 10 * d**2
    assert count(
        get(schedule).program, {"n": n, "d": d} | choose(get(schedule), {"n": n, "d": d}, enough)
    ).total.io == (pytest.approx(once * n * d, rel=0.02))
