"""Lower bounds of the literature, derived from ours with constants; and ours against everything that was ever counted.

`pebblesim.theory.lower_bounds` states each bound as a closed form for small M and one for large; docs/lower-bounds.md
proves them. That they imply a bound of the literature is decided, region by region. A form may hold from a multiple of
d² on alone: that is enough, since nobody needs fewer words with less cache.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

from pebblesim import graphs
from pebblesim.claims.claim import FAILS, HOLDS, PROVED, Effort, Finding, claim, decided, deciding, in_words
from pebblesim.claims.games import drawn, in_sizes
from pebblesim.jobs.blocks import smallest
from pebblesim.jobs.count import count
from pebblesim.jobs.graph import optimum
from pebblesim.language.problems import problem
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.readings.peak import peak_red
from pebblesim.theory.literature import Statement, statement
from pebblesim.theory.lower_bounds import Way, largest, lower_bounds

_SIZES = {"n": 2**12, "d": 2**6, "m": 2**12, "k": 2**6}
"""Any sizes do: what is taken from the bounds is their text."""


def _form(of: str, name: str, M: int) -> str:
    """The closed form of a bound for such an M, together with the compulsory words."""
    solves = problem(of)
    bounds = {bound.name: bound for bound in lower_bounds(solves, {dim: _SIZES[dim] for dim in solves.dims}, M)}
    found, words = bounds[name].form, bounds["compulsory"].form
    assert found is not None and words is not None
    return f"Max({words.expr}, {found.expr})"


def _compulsory(of: str) -> str:
    solves = problem(of)
    form = lower_bounds(solves, {dim: _SIZES[dim] for dim in solves.dims}, 1)[0].form
    assert form is not None
    return form.expr


def _follows(bound: str, *parts: tuple[str, str]) -> Finding:
    """PROVED if on each region the form implies the bound."""
    return decided(*(deciding(repr(form), "Ω", bound, region) for form, region in parts))


_SMALL_M, _LARGE_M = 2**8, 2**17


def _register(title: str, of: str, name: str, large: bool) -> None:
    stated: Statement = statement(title)
    assert stated.expr

    @claim(stated.name, stated.source, in_words(stated, stated.expr, stated.domain), PROVED)
    def judge(effort: Effort) -> Finding:
        assert stated.expr
        form = _form(of, name, _LARGE_M if large else _SMALL_M)
        inner, outer = ("M <= n*d", "M >= n*d") if large else ("M <= n**2", "M >= n**2")
        words = _compulsory(of)
        return _follows(stated.expr, (form, f"{stated.domain}, {inner}"), (words, f"{stated.domain}, {outer}"))


for _each in (
    ("Li et al., Theorem 4.2", "backward", "D2", True),
    ("Li et al., Theorem 4.4", "backward", "D1", False),
    ("Li et al., Theorem E.9", "backward", "D2", True),
    ("Li et al., Theorem E.10", "backward", "D1", False),
    ("Saha & Ye, Lemma 3.4", "forward", "C1", True),
    ("Saha & Ye, Theorem 3.7", "forward", "C2", False),
):
    _register(*_each)


def _whole(of: str, small: str, large: str, bound: str | None) -> Finding:
    """A repaired bound for all M, n ≥ d: from the two forms, and from the compulsory words above nd."""
    assert bound
    return _follows(
        bound,
        (_form(of, small, _SMALL_M), "n >= d, M <= d**2"),
        (_form(of, large, _LARGE_M), "n >= d, M >= d**2, M <= n*d"),
        (_compulsory(of), "n >= d, M >= n*d"),
    )


@claim("Theorem 1.1, repaired, lower bound", "Li et al.", "holds for all M and n ≥ d", PROVED)
def _backward(effort: Effort) -> Finding:
    return _whole("backward", "D1", "D2", statement("Li et al., Theorem 1.1").repaired)


@claim("Theorem 3.1, repaired, lower bound", "Saha & Ye", "holds for all M and n ≥ d", PROVED)
def _forward(effort: Effort) -> Finding:
    return _whole("forward", "C2", "C1", statement("Saha & Ye, Theorem 3.1").repaired)


@claim(
    "Remark 5.1, lower bound",
    "Li et al.",
    "the repaired bound holds with relu and sigmoid, forward and backward",
    PROVED,
)
def _activations(effort: Effort) -> Finding:
    bound = statement("Li et al., Remark 5.1").repaired
    lines = []
    for kind in ("relu", "sigmoid"):
        for way, small, large in (("forward", "C2", "C1"), ("backward", "D1", "D2")):
            found = _whole(f"{way}-{kind}", small, large, bound)
            if found.status != PROVED:
                return found
            lines.append(found.evidence)
    return Finding(PROVED, "\n".join(dict.fromkeys("\n".join(lines).split("\n"))))


@claim("Corollary 6.2", "Hong & Kung", "C = AB: Ω(mkn/√M), and with A, B and C themselves", PROVED)
def _product(effort: Effort) -> Finding:
    stated = statement("Hong & Kung, Corollary 6.2")
    assert stated.expr and stated.repaired
    solves = problem("matmul")
    forms = [form.expr for form in lower_bounds(solves, dict.fromkeys(solves.dims, 64), 16)[1].forms]
    form = f"Max({_compulsory('matmul')}, {next(form for form in forms if 'sqrt' in form)})"
    inner, outer = "M**3 <= m**2*k**2*n**2", "M**3 >= m**2*k**2*n**2"
    texts = [(form, inner), (_compulsory("matmul"), outer)]
    found = _follows(stated.repaired, *texts)
    return found if found.status != PROVED else _follows(stated.expr, *texts)


@claim("Proposition 3", "Dao et al.", "nothing moves o(n²d²/M) words for all M from d to nd", PROVED)
def _for_all_M(effort: Effort) -> Finding:
    stated = statement("Dao et al., Proposition 3")
    assert stated.expr
    return _follows(stated.expr, (_compulsory("forward"), "M == n*d"))


@claim("Theorem E.9, nd³/M", "Li et al.", "for n ≥ d the term nd³/M is redundant, as nd²/√M is in Theorem E.10", PROVED)
def _redundant(effort: Effort) -> Finding:
    pairs = (("n*d**3/M", "n**2*d**2/M"), ("n*d**2/sqrt(M)", "n**2*d/sqrt(M)"))
    return decided(*(deciding(repr(small), "O", large, "n >= d") for small, large in pairs))


@claim("lower bounds ≤ counts", "ours", "no schedule moves fewer words than any lower bound that applies to it", HOLDS)
def _counts(effort: Effort) -> Finding:
    random, tried, text = Random(4), 0, ""
    closest: tuple[float, str] = (float("inf"), "")
    for schedule in SCHEDULES.values():
        for _ in range(effort.some(12, 300)):
            sizes = drawn(schedule, random, random.choice([4, 12, 400]), random.choice([20, 500, 20000]))
            M = sizes.pop("M")
            words = count(schedule, M=M, **sizes)  # type: ignore[arg-type]
            text = f'ps.count("{schedule.name}", {in_sizes({**words.dims, "M": M})})'
            for bound in lower_bounds(schedule.problem, words.dims, M, Way.of(schedule)):
                if bound.value > words.io:
                    return Finding(FAILS, f"{text}.io → {words.io}, below {bound.source}: {bound.value}")
            closest = min(closest, (words.gap, f"{text}.gap → {words.gap:.4f}"))
            tried += 1
    return Finding(HOLDS, f"{tried} counts of {len(SCHEDULES)} schedules, the last {text}\nthe closest: {closest[1]}")


def _small_games(most_vertices: int) -> list[tuple[Schedule, dict[str, int]]]:
    """Schedules and sizes whose graph, in blocks of one index, an exhaustive search can take."""
    found = []
    for schedule in SCHEDULES.values():
        for numbers in product(range(1, 5), repeat=len(schedule.problem.dims)):
            sizes = dict(zip(schedule.problem.dims, numbers, strict=True))
            options = schedule.graph_options(smallest(schedule))
            plan = graphs.plan(schedule.problem.name, **{**sizes, **options})  # type: ignore[arg-type]
            if plan.vertices <= most_vertices:
                found.append((schedule, sizes))
    return found


@claim(
    "lower bounds ≤ optimum ≤ counts",
    "ours",
    "on small graphs no lower bound exceeds the least I/O of any game, and no schedule goes below it",
    HOLDS,
)
def _optimum(effort: Effort) -> Finding:
    searched, line = 0, ""
    for schedule, sizes in _small_games(effort.some(18, 28)):
        blocks = smallest(schedule)
        options: dict[str, Any] = {**sizes, **schedule.graph_options(blocks)}
        graph = graphs.build(schedule.problem.name, **options)
        least_M = peak_red(schedule.program, {**sizes, **blocks})
        for M in range(least_M, least_M + effort.some(2, 5)):
            least = optimum(graph, M=M, states=effort.some(100_000, 4_000_000))
            words = count(schedule, M=M, blocks=blocks, **sizes).io  # type: ignore[arg-type]
            above = largest(lower_bounds(schedule.problem, sizes, M, Way.of(schedule)))
            given = ", ".join(f"{name}={value!r}" for name, value in {**options, "M": M}.items())
            line = f'ps.optimum("{schedule.problem.name}", {given}).io → {least.io}'
            line += f", from {above.value} ({above.name}) to {words} of {schedule.name}"
            if not (above.value <= least.io and least.bound <= words):
                return Finding(FAILS, line)
            searched += 1
    return Finding(HOLDS, f"{searched} graphs searched, the last\n{line}")
