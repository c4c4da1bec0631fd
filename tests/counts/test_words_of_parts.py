"""How many words heads in parts move besides: sums of parts, and copies of keys and values. docs/hopper.md has them."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES
from pebblesim.operator.heads.parts import words_of_parts

NAME = "products-in-parts"


@pytest.fixture(scope="module", autouse=True)
def registered():
    with PROBLEMS.temporary(), SCHEDULES.temporary():

        @ps.schedule(problem="matmul", source="mine", name=NAME)
        def products_in_parts(m, A, B, *, S: ps.Block, b: ps.Block):
            """Terms in parts of S, each with a sum of its own in memory, and then the sums of these."""
            (rows, terms), columns = A.shape, B.shape[1]
            C, C_s = m.tensor("C", rows, columns), m.tensor("C_s", m.quotient(terms, S), rows, columns)
            with m.phase("parts"):
                for s in m.tiles(terms, S, independent=True):
                    for i in m.tiles(rows, b, independent=True):
                        for j in m.tiles(columns, b, independent=True):
                            C_ij = m.zeros(i, j)
                            for k in m.tiles(s, 1):
                                C_ij += m.read(A[i, k]) @ m.read(B[k, j])
                            m.write(C_s[s, i, j], C_ij)
            with m.phase("sums"):
                for i in m.tiles(rows, b, independent=True):
                    for j in m.tiles(columns, b, independent=True):
                        C_ij = m.constant(0, i, j)
                        for s in m.tiles(terms, S):
                            C_ij += m.read(C_s[s, i, j])
                        m.write(C[i, j], C_ij)

        yield


def test_sums_in_parts_move_two_words_more_for_each_part_and_entry():
    local = {"S": sympy.Symbol("S")}
    made, whole = (sympy.sympify(str(ps.formula(name).io), local) for name in (NAME, "matmul-blocked"))
    assert sympy.expand(made - whole.subs("a", "b") - sympy.sympify("2*m*n*ceiling(k/S)", local)) == 0


@pytest.mark.parametrize("S", [1, 3, 8])
def test_numbers_are_the_product(S):
    draw = np.random.default_rng(S)
    A, B = draw.normal(size=(5, 8)), draw.normal(size=(8, 4))
    made = ps.numbers(NAME, m=5, k=8, n=4, M=40, blocks={"S": S, "b": 2}, inputs={"A": A, "B": B})
    assert np.allclose(made["C"], A @ B, rtol=1e-12)


@given(
    parts=st.integers(1, 9),
    tiles=st.integers(1, 3),
    n_k=st.integers(1, 300),
    d_k=st.integers(1, 600),
    d_v=st.integers(1, 600),
)
def test_words_of_heads_in_parts(parts, tiles, n_k, d_k, d_v):
    """The schedule of all parts, beside that of all rows: what each part writes of the gradients of the keys."""
    blocks = {"a": 128, "b": 128, "c": 64, "e": 192}
    sizes = {"n_k": n_k, "d_k": d_k, "d_v": d_v, "M": 2**30, "blocks": blocks}
    rows = 128 * tiles
    each, whole = (ps.count("small-cache-backward-resident", n_q=n, **sizes).io for n in (rows, parts * rows))
    more = words_of_parts(n_k, d_k, d_v, 1, parts)
    assert parts * each - whole + (parts + 1) * n_k * (d_k + d_v) == more["summed"]
    assert more["summed"] == 2 * parts * n_k * (d_k + d_v) and more["copied"] == (parts + 1) * n_k * (d_k + d_v)
