"""Lower bounds of the literature, derived from ours with constants; and ours compared with counts and optima.

`pebblesim.lower_bounds.bounds` states each bound as a closed form for small M and one for large M;
docs/lower-bounds.md proves them. Whether they imply a bound of the literature is decided, region by region, from the
forms that hold for every way of computing. Some forms hold only for M ≥ c·d². Then the value at c·M is also a lower
bound at M, because I/O never decreases if the cache is smaller.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf, isqrt
from random import Random
from typing import Any, NamedTuple

from pebblesim.analysis.blocks import smallest
from pebblesim.analysis.peak import peak_red
from pebblesim.api.graph import graph as graph_of, graph_size, optimum
from pebblesim.catalogue.literature import LARGE, OUTSIDE, SMALL, Erratum, Statement, statement
from pebblesim.claims.claim import (
    COMPUTED,
    FAILS,
    HOLDS,
    PROVED,
    Effort,
    Finding,
    Proofs,
    claim,
    decided,
    deciding,
    in_words,
    shown,
    tried,
)
from pebblesim.claims.games import drawn
from pebblesim.core.errors import Infeasible
from pebblesim.core.notation import parse
from pebblesim.core.sizes import assigned
from pebblesim.counting.count import count
from pebblesim.language.problems import PROBLEMS, Problem, problem
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.lower_bounds.bounds import BOUNDS, Formulation, largest, lower_bounds
from pebblesim.lower_bounds.capacities import Cube
from pebblesim.lower_bounds.certificates import private_families
from pebblesim.lower_bounds.cutting import Cutting

_N, _D = 2**12, 2**6
"""Any sizes are possible here: only the text of the bounds is used, and the domain in which it holds."""


def _sizes(solves: Problem) -> dict[str, int]:
    """Return a size for each dimension of a problem."""
    return {dim: _N if given == "n" else _D for dim, given in solves.from_nd.items()}


class _Form(NamedTuple):
    """A lower bound's closed form as text, and the bounds whose written proofs it rests on."""

    text: str
    given: tuple[str, ...] = ()


def _words(of: str) -> _Form:
    """Return the compulsory words, which are the same for every way of computing."""
    solves = problem(of)
    first = lower_bounds(solves, _sizes(solves), 1)[0].form
    assert first is not None
    return _Form(first.expr)


def _form(of: str, *names: str, times: int = 1) -> _Form:
    """Return the largest of the compulsory words and these bounds at times·M, in the forms that hold for M = d²."""
    solves = problem(of)
    bounds = lower_bounds(solves, _sizes(solves), times * _D**2)
    forms = [next(bound.form for bound in bounds if bound.name == name and not bound.way) for name in names]
    M = parse("M")
    texts = [str(parse(form.expr).xreplace({M: times * M})) for form in forms if form]
    assert len(texts) == len(names)
    return _Form(f"Max({', '.join([_words(of).text, *texts])})", names)


def _follows(bound: str, *parts: tuple[_Form, str]) -> Finding:
    """PROVED, given the proofs of the forms, if on each region the form implies the bound."""
    found = decided(*(deciding(repr(form.text), "Ω", bound, region) for form, region in parts))
    names = tuple(dict.fromkeys(name for form, _ in parts for name in form.given))
    return replace(found, given=Proofs(4, names) if names and found.status == PROVED else None)


_LARGE = {"backward": ("D3", 8), "forward": ("C1", 5)}
_SMALL = {"backward": ("D4r", "D1m"), "forward": ("C2",)}
"""The bounds for large and small M that hold for every way of computing; the first hold from this multiple of d² on."""


def _large(of: str, way: str, bound: str, region: str) -> Finding:
    """Derive the bound from the form for large M up to M = nd, and from the compulsory words above."""
    name, times = _LARGE[way]
    form = _form(of, name, times=times)
    return _follows(bound, (form, f"{region}, M <= n*d"), (_words(of), f"{region}, M >= n*d"))


def _small(of: str, way: str, bound: str, region: str) -> Finding:
    """Derive the bound from the form for small M up to M = n², and from the compulsory words above."""
    form = _form(of, *_SMALL[way])
    return _follows(bound, (form, f"{region}, M <= n**2"), (_words(of), f"{region}, M >= n**2"))


def _both(*findings: Finding) -> Finding:
    """Return the first finding that is not PROVED, or else all of them together."""
    wrong = next((finding for finding in findings if finding.status != PROVED), None)
    if wrong is not None:
        return wrong
    names = tuple(dict.fromkeys(name for finding in findings if finding.given for name in finding.given.names))
    lines = dict.fromkeys("\n".join(finding.evidence for finding in findings).split("\n"))
    return Finding(PROVED, "\n".join(lines), Proofs(4, names) if names else None)


def _register(title: str, way: str, large: bool, read: str = "") -> None:
    stated: Statement = statement(title)
    assert stated.expr

    @claim(stated.name, stated.source, in_words(stated, stated.expr, stated.domain) + read, PROVED)
    def judge(effort: Effort) -> Finding:
        assert stated.expr
        return (_large if large else _small)(way, way, stated.expr, stated.domain)


_BOTH_ORDERS = ", for (A1 X) A2ᵀ, for A1 (X A2ᵀ), and where each pair has its own order of the two"

for _each in (
    ("Li et al., Theorem 4.2", "backward", True, _BOTH_ORDERS),
    ("Li et al., Theorem 4.4", "backward", False, _BOTH_ORDERS),
    ("Li et al., Theorem E.9", "backward", True, _BOTH_ORDERS),
    ("Li et al., Theorem E.10", "backward", False, _BOTH_ORDERS),
    ("Saha & Ye, Lemma 3.4", "forward", True),
    ("Saha & Ye, Theorem 3.7", "forward", False),
):
    _register(*_each)


def _whole(of: str, way: str, bound: str | None) -> Finding:
    """Decide a repaired bound for all M and n ≥ d."""
    assert bound
    return _both(_large(of, way, bound, "n >= d, M >= d**2"), _small(of, way, bound, "n >= d, M <= d**2"))


@claim("Theorem 1.1, repaired, lower bound", "Li et al.", "holds for all M and n ≥ d, for every way to compute", PROVED)
def _backward(effort: Effort) -> Finding:
    return _whole("backward", "backward", statement("Li et al., Theorem 1.1").repaired)


@claim("Theorem 3.1, repaired, lower bound", "Saha & Ye", "holds for all M and n ≥ d", PROVED)
def _forward(effort: Effort) -> Finding:
    return _whole("forward", "forward", statement("Saha & Ye, Theorem 3.1").repaired)


@claim("Table 1, lower bounds", "Li et al.", "each holds, for dense inputs and n ≥ d", PROVED)
def _table_1(effort: Effort) -> Finding:
    return _both(
        *(
            (_large if large else _small)(way, way, bound, f"n >= d, {region}")
            for way in ("forward", "backward")
            for large, bound, region in ((True, "n**2*d**2/M", LARGE), (False, "n**2*d/sqrt(M)", SMALL))
        )
    )


@claim(
    "Remark 5.1",
    "Li et al.",
    "the bound holds for non-linear activations: relu and sigmoid, forward and backward",
    PROVED,
)
def _activations(effort: Effort) -> Finding:
    bound = statement("Li et al., Remark 5.1").repaired
    return _both(*(_whole(f"{way}-{kind}", way, bound) for kind in ("relu", "sigmoid") for way in _LARGE))


def _product(effort: Effort) -> Finding:
    stated = statement("Hong & Kung, Corollary 6.2")
    assert stated.expr and stated.repaired
    solves = problem("matmul")
    forms = [form.expr for form in lower_bounds(solves, dict.fromkeys(solves.dims, 64), 16)[1].forms]
    form = _Form(f"Max({_words('matmul').text}, {next(form for form in forms if 'sqrt' in form)})", ("B",))
    inner, outer = "M**3 <= m**2*k**2*n**2", "M**3 >= m**2*k**2*n**2"
    texts = [(form, inner), (_words("matmul"), outer)]
    return _both(_follows(stated.repaired, *texts), _follows(stated.expr, *texts))


claim("Corollary 6.2", "Hong & Kung", "C = AB: Ω(mkn/√M), also with the words of A, B and C added", PROVED)(_product)
claim("Lemma E.8", "Li et al.", "C = AB, an n1 x d by a d x n2 matrix: Ω(n1·d·n2/√M)", PROVED)(_product)


@claim(
    "Lemma E.7",
    "Li et al.",
    "a part of an M-partition has O(M²/d) nodes of a product, because it meets at most M + max(M, (M/2d)²) trees",
    COMPUTED,
)
def _parts(effort: Effort) -> Finding:
    """Count trees with a node in the minimum set or the dominator, and trees with row and column in the dominator."""
    trees = "d*(M + Max(M, M**2/(4*d**2)))"
    return decided(deciding(repr(trees), "O", "M**2/d", LARGE), status=COMPUTED)


@claim(
    "Theorem E.9, the -1 of Lemma E.6",
    "Li et al.",
    "by Lemma E.6, Q ≥ M (P(2M) - 1) is Ω(n²d²/M) for all M ≥ d², if P(2M) is Θ(n²d²/M²)",
    FAILS,
    Erratum(
        OUTSIDE,
        "for M ≤ nd/(1 + ε); for larger M the inputs and outputs already give Ω(nd) words",
        "Lemma E.6 itself, and Theorem E.9, by our D3 and those words",
        "no: the bound of E.9 is true for all M ≥ d²",
    ),
)
def _minus_one(effort: Effort) -> Finding:
    bound = "n**2*d**2/M"
    left, line = shown('ps.claims.value("M*(n**2*d**2/M**2 - 1)", n=4096, d=64, M=4096*64)')
    below = decided(deciding('"n**2*d**2/M - M"', "Ω", bound, "1000*n*d >= 1001*M"))
    wrong = left == 0 and below.status == PROVED
    return Finding(FAILS if wrong else HOLDS, f"{line}, at M = nd\n{below.evidence}")


@claim("Proposition 3", "Dao et al.", "no algorithm moves o(n²d²/M) words for all M from d to nd", PROVED)
def _for_all_M(effort: Effort) -> Finding:
    stated = statement("Dao et al., Proposition 3")
    assert stated.expr
    return _follows(stated.expr, (_words("forward"), "M == n*d"))


@claim("Theorem E.9, nd³/M", "Li et al.", "for n ≥ d the term nd³/M is redundant, as nd²/√M is in E.10", COMPUTED)
def _redundant(effort: Effort) -> Finding:
    pairs = (("n*d**3/M", "n**2*d**2/M"), ("n*d**2/sqrt(M)", "n**2*d/sqrt(M)"))
    return decided(*(deciding(repr(small), "O", large, "n >= d") for small, large in pairs), status=COMPUTED)


class _Against:
    """Compares counts with all bounds that apply to a schedule, and keeps the closest ones, in its way of computing."""

    def __init__(self) -> None:
        self.number = 0
        self.biting: Counter[str] = Counter()
        self.closest: dict[str, tuple[float, str]] = {}

    def below(self, schedule: Schedule, M: int, sizes: dict[str, int]) -> Finding | None:
        """Return FAILS if the count is below a bound."""
        words = count(schedule, M=M, **sizes)  # type: ignore[arg-type]
        way = Formulation.of(schedule)
        text = f'ps.count("{schedule.name}", {assigned({**words.dims, "M": M})})'
        bounds = lower_bounds(schedule.problem, words.dims, M, way)
        bound = largest(bounds)
        if bound.value > words.io:
            return Finding(FAILS, f"{text}.io → {words.io}, below {bound.source}: {bound.value}")
        gap = words.io / bound.value
        self.number += 1
        self.biting.update([bound.name] if bound.value > bounds[0].value else [])
        name = schedule.problem.name
        self.closest[name] = min(self.closest.get(name, (inf, "")), (gap, f"{text}.gap_of_way → {gap:.4f}"))
        return None

    def held(self, what: str) -> Finding:
        """Return HOLDS if anything was counted."""
        least = min(self.closest.values(), default=(inf, ""))[1]
        return tried(self.number, f"{self.number} counts of {what}{_bite(self.biting)}\nthe closest: {least}")


def _bite(biting: Counter[str]) -> str:
    """Say in how many comparisons each theorem is the largest bound and exceeds the compulsory words."""
    told = ", ".join(f"{name} {number}" for name, number in sorted(biting.items()))
    return f"; above the compulsory words in {biting.total()} of them{f': {told}' if told else ''}"


@claim("lower bounds ≤ counts", "ours", "no schedule moves fewer words than any lower bound that applies to it", HOLDS)
def _counts(effort: Effort) -> Finding:
    random, against = Random(4), _Against()
    for schedule in SCHEDULES.values():
        for _ in range(effort.draws(2, 300)):
            sizes = drawn(schedule, random, random.choice([4, 12, 400]), random.choice([20, 500, 20000]))
            M = sizes.pop("M")
            if finding := against.below(schedule, M, sizes):
                return finding
    return against.held(f"{len(SCHEDULES)} schedules")


@claim(
    "capacities",
    "ours",
    "no split of X words among the families allows more products than w (X/3)^(3/2): for each table, private families "
    "prove this",
    PROVED,
)
def _capacities(effort: Effort) -> Finding:
    """Check the certificates; docs/lower-bounds.md has the theorem, and a bound without a certificate is not stated."""
    tables, line = set(), ""
    for solves in PROBLEMS.values():
        bounding = BOUNDS.get(solves.bounds) if isinstance(solves.bounds, str) else None
        if bounding is None:
            continue
        made = {name: of for name, of in bounding.made.items() if name not in solves.inputs}
        for way in bounding.ways.values():
            first = bounding.claims(Cutting(solves, _sizes(solves), way, None, made))
            for stated in (claimed for bound in first for claimed in (bound, *bound.others)):
                if isinstance(stated.capacity, Cube) and stated.table:
                    table = tuple((product[:3], product.weight) for product in stated.table)
                    private = private_families(table, stated.capacity.w)
                    if private is None:
                        return Finding(FAILS, f"{solves.name}, {stated.name}: no private families prove it")
                    tables.add(table)
                    line = f"{stated.name} of {solves.name}: {', '.join(sorted(private))} private"
    return Finding(PROVED, f"{len(tables)} tables, the last\n{line}", Proofs(3, ("several products",)))


FAR = 2**30
"""n/d, so large that only the leading term of a count matters."""


@claim(
    "lower bounds ≤ counts, far out",
    "ours",
    "the same if only leading terms matter: n/d up to 2^30, M/d² from 2^-6 to 2^12, for every way of computing",
    HOLDS,
)
def _far_out(effort: Effort) -> Finding:
    """Test large sizes, where the best schedules are within a few percent, so too large a constant would be noticed."""
    against, d = _Against(), 64
    halves = range(-12, 25, 2) if effort.full else (-8, 4, 24)  # of log2 M/d²
    ratios = (2**10, FAR) if effort.full else (FAR,)
    for schedule in effort.among(SCHEDULES.values()):
        for half, ratio in product(halves, ratios):
            M = isqrt(d**4 * 2 ** (half + 12) >> 12)
            sizes = {dim: ratio * d if dim in ("n", "m") else d for dim in schedule.problem.dims}
            if schedule.problem.name == "matmul":
                sizes["n"] = ratio * d if half % 2 else d
            try:
                if finding := against.below(schedule, M, sizes):
                    return finding
            except Infeasible:
                continue
    return against.held("schedules of " + ", ".join(against.closest))


def _small_games(most_vertices: int) -> list[tuple[Schedule, dict[str, int]]]:
    """Return schedules and sizes whose graph, with blocks of one index, is small enough for an exhaustive search."""
    games, vertices = [], cache(lambda problem, options: graph_size(problem, **dict(options)).vertices)
    for schedule in SCHEDULES.values():
        for numbers in product(range(1, 5), repeat=len(schedule.problem.dims)):
            sizes = dict(zip(schedule.problem.dims, numbers, strict=True))
            options = schedule.graph_options(smallest(schedule))
            if vertices(schedule.problem.name, tuple({**sizes, **options}.items())) <= most_vertices:
                games.append((schedule, sizes))
    return games


@claim(
    "lower bounds ≤ optimum ≤ counts",
    "ours",
    "on small graphs no lower bound exceeds the least I/O of any game, and no schedule goes below it",
    HOLDS,
)
def _optimum(effort: Effort) -> Finding:
    searched, line, biting = 0, "", Counter[str]()
    known: dict[str, tuple[int, int]] = {}  # the bound and I/O of each graph, on which many schedules are played
    for schedule, sizes in _small_games(effort.some(18, 28)):
        blocks = smallest(schedule)
        options: dict[str, Any] = {**sizes, **schedule.graph_options(blocks)}
        graph = graph_of(schedule.problem.name, **options)
        least_M = peak_red(schedule.program, {**sizes, **blocks})
        for M in range(least_M, least_M + effort.some(2, 5)):
            words = count(schedule, M=M, blocks=blocks, **sizes).io  # type: ignore[arg-type]
            bounds = lower_bounds(schedule.problem, sizes, M, Formulation.of(schedule))
            above = largest(bounds)
            biting.update([above.name] if above.value > bounds[0].value else [])
            arguments = ", ".join(f"{name}={value!r}" for name, value in {**options, "M": M}.items())
            text = f'ps.optimum("{schedule.problem.name}", {arguments}).io'
            if text not in known:
                found = optimum(graph, M=M, states=effort.some(100_000, 4_000_000))
                known[text] = found.bound, found.io
            bound, least = known[text]
            line = f"{text} → {least}, from {above.value} ({above.name}) to {words} of {schedule.name}"
            if not (above.value <= least and bound <= words):
                return Finding(FAILS, line)
            searched += 1
    return tried(searched, f"{len(known)} graphs searched for {searched} counts{_bite(biting)}; the last\n{line}")
