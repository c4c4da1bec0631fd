"""How many words sinks move besides, from schedules: where O is computed, in a second pass, and for their gradient.

The formulas are those of docs/attention.md. The sink of a head is a matrix of one word, e = 1.
"""

from __future__ import annotations

import numpy as np
import pytest
import sympy
from checkout import ROOT

import pebblesim as ps
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES
from pebblesim.schedules.flash_forward import online_softmax, online_step, write_softmax

PAGE = ROOT / "docs" / "attention.md"


def reference(x):
    weights = np.exp(x["Q"] @ x["K"].T)
    total = weights.sum(1) + np.exp(x["s"][0, 0])
    return {"O": weights @ x["V"] / total[:, None], "L": np.log(total)}


def of_gradient(x):
    return {"ds": -(np.exp(x["s"] - x["L"][:, None]) * x["v"][:, None]).sum(0, keepdims=True)}


def add_sink(m, s_e, i, l_i, m_i, *sums):
    """One step of the online softmax with the sink as the score of each query."""
    ones = m.constant(0, i, s_e.shape[0])
    ones[:] = ps.exp(ones)
    online_step(m, m.compute(ones @ s_e), l_i, m_i, *sums)


@pytest.fixture(scope="module", autouse=True)
def registered():
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        declare()
        yield


def declare():
    ps.problem(
        "forward-sinks",
        dims=("n_q", "n_k", "d_k", "d_v", "e"),
        from_nd={"n_q": "n", "n_k": "n", "d_k": "d", "d_v": "d", "e": "d"},
        inputs={"Q": ("n_q", "d_k"), "K": ("n_k", "d_k"), "V": ("n_k", "d_v"), "s": ("e", "e")},
        outputs={"O": ("n_q", "d_v"), "L": ("n_q",)},
        values=reference,
        source="mine",
    )

    @ps.schedule(problem="forward-sinks", source="mine")
    def sinks_in_one_pass(m, Q, K, V, s, *, B_r: ps.Block, B_c: ps.Block):
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        O, L, s_e = m.tensor("O", n_q, d_v), m.tensor("L", n_q), m.read(s)
        for i in m.tiles(n_q, B_r):
            Q_i = m.read(Q[i, :])
            O_i, l_i, m_i = online_softmax(m, Q_i, K, V, n_k, B_c)
            add_sink(m, s_e, i, l_i, m_i, O_i)
            write_softmax(m, O, L, i, O_i, l_i, m_i)

    @ps.schedule(problem="forward-sinks", source="mine")
    def sinks_in_two_passes(m, Q, K, V, s, *, B_r: ps.Block, B_c: ps.Block):
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        O, L = m.tensor("O", n_q, d_v), m.tensor("L", n_q)
        with m.phase("keys"):
            for i in m.tiles(n_q, B_r):
                Q_i = m.read(Q[i, :])
                write_softmax(m, O, L, i, *online_softmax(m, Q_i, K, V, n_k, B_c))
        with m.phase("sinks"):
            s_e = m.read(s)
            for i in m.tiles(n_q, B_r):
                m_i, l_i, O_i = m.read(L[i]), m.constant(0, i), m.read(O[i, :])
                l_i[:] = ps.exp(l_i)
                add_sink(m, s_e, i, l_i, m_i, O_i)
                write_softmax(m, O, L, i, O_i, l_i, m_i)

    ps.problem(
        "gradient-of-a-sink",
        dims=("n_q", "e"),
        from_nd={"n_q": "n", "e": "d"},
        inputs={"v": ("n_q",), "L": ("n_q",), "s": ("e", "e")},
        outputs={"ds": ("e", "e")},
        values=of_gradient,
        source="mine",
    )

    @ps.schedule(problem="gradient-of-a-sink", source="mine")
    def gradient_of_a_sink(m, v, L, s, *, B_r: ps.Block):
        """From the row sums of dO ∘ O, which the backward pass has."""
        (n_q,), (e, _) = v.shape, s.shape
        s_e, ds = m.read(s), m.zeros(e, e)
        for i in m.tiles(n_q, B_r):
            v_i = m.read(v[i])
            ones, none = m.constant(0, i, e), m.constant(0, i, e)
            ones[:] = ps.exp(ones)
            P = m.compute(ones @ s_e)
            P[:] = ps.exp(P - m.read(L[i]))
            none[:] = none - v_i * ones
            ds += P.T @ none
        m.write(m.tensor("ds", e, e), ds)


ADDED = {
    "sinks-in-one-pass": ("flash2-forward", "1"),
    "sinks-in-two-passes": ("flash2-forward", "2*n_q*d_v + 2*n_q + 1"),
    "gradient-of-a-sink": (None, "2*n_q + 2"),
}
"""Words that each moves besides the schedule without sinks, for a head."""


@pytest.mark.parametrize("name", ADDED)
def test_words_are_those_of_the_page(name):
    plain, added = ADDED[name]
    made = sympy.sympify(str(ps.formula(name).io)).subs("e", 1)
    if plain is not None:
        made -= sympy.sympify(str(ps.formula(plain, rectangular=True).io))
    assert sympy.expand(made - sympy.sympify(added)) == 0
    assert f"| `{name}` | {added.replace('*', '·')} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("n_q", [1, 7])
def test_numbers_are_the_reference(name, n_q):
    schedule = SCHEDULES[name]
    dims = {dim: {"n_q": n_q, "e": 1}.get(dim, 4) for dim in schedule.problem.dims}
    inputs = schedule.problem.random_inputs(dims)
    true = schedule.problem.reference(inputs)
    made = ps.numbers(name, M=60, inputs=inputs, **dims)
    assert all(np.allclose(made[each], true[each], rtol=1e-12) for each in true)


def test_the_reference_is_a_softmax_with_one_more_column():
    """And its gradient a difference of sums."""
    draw = np.random.default_rng(0)
    x = {"Q": draw.normal(size=(3, 2)), "K": draw.normal(size=(4, 2)), "V": draw.normal(size=(4, 5))}
    dO = draw.normal(size=(3, 5))
    loss = lambda s: (reference(x | {"s": np.array([[s]])})["O"] * dO).sum()  # noqa: E731
    scores = np.concatenate([x["Q"] @ x["K"].T, np.full((3, 1), 0.3)], 1)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = reference(x | {"s": np.array([[0.3]])})
    assert np.allclose(found["O"], weights[:, :4] @ x["V"])
    ds = of_gradient({**found, "v": (dO * found["O"]).sum(1), "s": np.array([[0.3]])})["ds"]
    assert np.allclose(ds, (loss(0.3 + 1e-5) - loss(0.3 - 1e-5)) / 2e-5, rtol=1e-8)
