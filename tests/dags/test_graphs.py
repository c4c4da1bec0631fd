"""Graphs: against numpy, against a slow scalar builder that follows `pebblesim.game.numbering`, and as files."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import networkx as nx
import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

from pebblesim import graphs
from pebblesim.core import memory
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.dags.formats import load_graph as load, save_graph as save
from pebblesim.graphs import cdag as cdag_module
from pebblesim.graphs.builder import Builder
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.operations import Op
from pebblesim.language.problems import problem

SUMMATIONS = st.sampled_from(["chain", "balanced", "blocked:1", "blocked:2", "blocked:3", "blocked:16"])
FEW = strategies.draws(20, 120)


@st.composite
def backward_options(draw: st.DrawFn) -> dict[str, Any]:
    options = {"summation": draw(SUMMATIONS), "order": draw(st.sampled_from("TU")), "kept": draw(st.booleans())}
    block = "row_block" if options["order"] == "T" else "dQ_block"
    return options | {block: draw(st.none() | st.integers(1, 9))}


# A slow second builder: a dictionary from descriptions to the descriptions of the predecessors, in vertex order.


class Scalar:
    def __init__(self, summation: str) -> None:
        kind, _, size = summation.partition(":")
        self.block = {"chain": 1, "balanced": 10**9}.get(kind) or int(size)
        self.preds: dict[str, list[str]] = {}

    def leaf(self, name: str, *shape: int) -> None:
        for index in product(*map(range, shape)):
            self.preds[f"{name}[{','.join(map(str, index))}]"] = []

    def entrywise(self, name: str, n: int, *operands: str) -> None:
        """Operands are patterns such as "f[{i},{j}]" or "l[{i}]"."""
        for i, j in product(range(n), range(n)):
            self.preds[f"{name}[{i},{j}]"] = [operand.format(i=i, j=j) for operand in operands]

    def sum(self, name: str, noun: str, terms: list[list[str]], start: bool = False, block: int | None = None) -> None:
        """Add one element: its terms (each a list of predecessors), the constant, the partial sums."""
        k, found = len(terms), []

        def vertex(label: str, *preds: str) -> str:
            found.append((f"{name} ({label} of {k})" if label != "zero" else f"{name} (zero)", list(preds)))
            return found[-1][0]

        leaves = [vertex(f"{noun} {u + 1}", *preds) for u, preds in enumerate(terms)]
        total = vertex("zero") if start else None
        step = self.block if block is None else block
        for begin in range(0, k, step):
            layer = [(u, u + 1, leaves[u]) for u in range(begin, min(begin + step, k))]
            while len(layer) > 1:
                above = []
                for (a, _, x), (_, c, y) in zip(layer[0::2], layer[1::2], strict=False):
                    above.append((a, c, vertex(f"sum of terms {a + 1}-{c}", x, y)))
                layer = above + layer[2 * len(above) :]
            _, stop, here = layer[0]
            total = here if total is None else vertex(f"sum {stop}", total, here)
        found[-1] = (name, found[-1][1])  # nothing in the element refers to its last vertex
        self.preds.update(found)

    def matmul(self, name: str, m: int, n: int, k: int, left: str, right: str, **tree: Any) -> None:
        """Operands are patterns in the row i, the column j and the summation index u."""
        for i, j in product(range(m), range(n)):
            terms = [[left.format(i=i, j=j, u=u), right.format(i=i, j=j, u=u)] for u in range(k)]
            self.sum(f"{name}[{i},{j}]", "product", terms, **tree)

    def rowsum(self, name: str, m: int, k: int, operand: str) -> None:
        for i in range(m):
            self.sum(f"{name}[{i}]", "term", [[operand.format(i=i, u=u)] for u in range(k)])


def scalar_matmul(m: int, k: int, n: int, summation: str) -> Scalar:
    s = Scalar(summation)
    s.leaf("A", m, k)
    s.leaf("B", k, n)
    s.matmul("C", m, n, k, "A[{i},{u}]", "B[{u},{j}]")
    return s


def scalar_backward(
    n: int,
    d: int,
    summation: str,
    order: str,
    kept: bool,
    row_block: int | None = None,
    dQ_block: int | None = None,
) -> Scalar:
    s = Scalar(summation)
    for name in ("A1", "A2", "A3", "dO"):
        s.leaf(name, n, d)
    s.leaf("X", d, d)
    s.leaf("Y", d, d)
    if kept:
        s.leaf("O", n, d)
        s.leaf("l", n)
    s.matmul("S", n, d, d, "A1[{i},{u}]", "X[{u},{j}]")
    s.matmul("Z", n, n, d, "S[{i},{u}]", "A2[{j},{u}]")
    s.entrywise("A", n, "Z[{i},{j}]")
    if not kept:
        s.rowsum("l", n, n, "A[{i},{u}]")
    s.entrywise("f", n, "A[{i},{j}]", "l[{i}]")
    s.matmul("h", n, d, d, "A3[{i},{u}]", "Y[{u},{j}]")
    s.matmul("q", n, n, d, "dO[{i},{u}]", "h[{j},{u}]")
    s.entrywise("fq", n, "f[{i},{j}]", "q[{i},{j}]")
    if kept:
        for i, j in product(range(n), range(d)):
            s.preds[f"dOO[{i},{j}]"] = [f"dO[{i},{j}]", f"O[{i},{j}]"]
    s.rowsum("v", n, d if kept else n, "dOO[{i},{u}]" if kept else "fq[{i},{u}]")
    s.entrywise("vf", n, "v[{i}]", "f[{i},{j}]")
    s.entrywise("p", n, "fq[{i},{j}]", "vf[{i},{j}]")
    if order == "U":
        tree = (
            {} if dQ_block is None else {"start": True, "block": 1 if summation in ("chain", "blocked:1") else dQ_block}
        )
        s.matmul("dQ", n, d, n, "p[{i},{u}]", "A2[{u},{j}]", **tree)
        s.matmul("g", d, d, n, "A1[{u},{i}]", "dQ[{u},{j}]")
    elif row_block is None or row_block >= n:
        s.matmul("T", d, n, n, "A1[{u},{i}]", "p[{u},{j}]")
        s.matmul("g", d, d, n, "T[{i},{u}]", "A2[{u},{j}]")
    else:
        blocks = [range(begin, min(begin + row_block, n)) for begin in range(0, n, row_block)]
        for b, rows in enumerate(blocks):
            for i, j in product(range(d), range(n)):
                s.sum(f"T[{b};{i},{j}]", "product", [[f"A1[{u},{i}]", f"p[{u},{j}]"] for u in rows])
        for i, j in product(range(d), range(d)):
            terms = [[f"T[{b};{i},{u}]", f"A2[{u},{j}]"] for b in range(len(blocks)) for u in range(n)]
            s.sum(f"g[{i},{j}]", "product", terms)
    return s


def assert_same(graph: Cdag, scalar: Scalar) -> None:
    names = [graph.describe(v) for v in range(graph.vertices)]
    assert names == list(scalar.preds)
    for v, expected in enumerate(scalar.preds.values()):
        assert [names[u] for u in graph.predecessors(v)] == expected
        assert all(u < v for u in graph.predecessors(v))
        if names[v].endswith("(zero)"):
            assert graph.op[v] == Op.ZERO
        else:
            assert (graph.op[v] == Op.INPUT) == (not expected) == (v in graph.inputs)
    assert graph.indptr[-1] == graph.edges


@FEW
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 4), SUMMATIONS)
def test_matmul_is_what_the_layout_says(m: int, k: int, n: int, summation: str) -> None:
    assert_same(graphs.build("matmul", summation, m=m, k=k, n=n), scalar_matmul(m, k, n, summation))


@FEW
@given(st.integers(1, 8), st.integers(1, 4), backward_options())
def test_backward_is_what_the_layout_says(n: int, d: int, options: dict[str, Any]) -> None:
    assert_same(graphs.build("backward", n=n, d=d, **options), scalar_backward(n, d, **options))


@FEW
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 9), SUMMATIONS, st.integers(0, 99))
def test_matmul_computes_the_product(m: int, k: int, n: int, summation: str, seed: int) -> None:
    p = problem("matmul")
    inputs = p.random_inputs({"m": m, "k": k, "n": n}, seed)
    result = graphs.build("matmul", summation, m=m, k=k, n=n).evaluate(inputs)
    assert list(result) == ["C"]
    np.testing.assert_allclose(result["C"], p.reference(inputs)["C"], rtol=1e-10, atol=1e-13)


@FEW
@given(st.integers(1, 14), st.integers(1, 7), backward_options(), st.integers(0, 99))
def test_backward_computes_the_gradient(n: int, d: int, options: dict[str, Any], seed: int) -> None:
    p = problem("backward")
    inputs = p.random_inputs({"n": n, "d": d}, seed, kept=("O", "l") if options["kept"] else ())
    result = graphs.build("backward", n=n, d=d, **options).evaluate(inputs)
    assert list(result) == ["g"]
    np.testing.assert_allclose(result["g"], p.reference(inputs)["g"], rtol=1e-10, atol=1e-13)


def test_any_tensor_can_be_evaluated_and_row_blocks_come_first() -> None:
    p = problem("backward")
    inputs = p.random_inputs({"n": 7, "d": 2})
    graph = graphs.build("backward", n=7, d=2, row_block=3)
    values = graph.evaluate(inputs, names=["A1", "p", "T", "l"])
    np.testing.assert_allclose(values["l"], p.reference(inputs)["l"])
    assert graph.tensor("T").shape == values["T"].shape == (3, 2, 7)
    for block, rows in enumerate([slice(0, 3), slice(3, 6), slice(6, 7)]):
        np.testing.assert_allclose(values["T"][block], values["A1"][rows].T @ values["p"][rows])


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50), SUMMATIONS)
def test_matmul_sizes(m: int, k: int, n: int, summation: str) -> None:
    graph = graphs.build("matmul", summation, m=m, k=k, n=n)
    assert graph.vertices == m * k + k * n + m * n * (2 * k - 1)  # inputs, then k products and k - 1 sums each
    assert graph.edges == m * n * (2 * k + 2 * (k - 1))
    arrays = graph.op.nbytes + graph.indptr.nbytes + graph.preds.nbytes
    assert graphs.size("matmul", summation, m=m, k=k, n=n) == (graph.vertices, graph.edges, arrays)


@FEW
@given(st.integers(1, 12), st.integers(1, 5), backward_options())
def test_a_plan_is_what_gets_built(n: int, d: int, options: dict[str, Any]) -> None:
    graph = graphs.build("backward", n=n, d=d, **options)
    arrays = graph.op.nbytes + graph.indptr.nbytes + graph.preds.nbytes
    assert graphs.size("backward", n=n, d=d, **options) == (graph.vertices, graph.edges, arrays)
    assert len(graph.outputs) == d * d
    assert len(graph.inputs) == 4 * n * d + 2 * d * d + (n * d + n if options["kept"] else 0)


def test_a_plan_has_no_limit() -> None:
    n, d = 2**30, 64
    two_sums = 2 * n * d * (2 * d - 1) + 2 * n * n * (2 * d - 1)  # S and h, Z and q
    row_sums = 2 * n * (2 * n - 1)
    g = d * n * (2 * n - 1) + d * d * (2 * n - 1)  # T, then g
    expected = 4 * n * d + 2 * d * d + two_sums + row_sums + 5 * n * n + g  # A, f, fq, vf, p are elementwise
    assert graphs.size("backward", n=n, d=d).vertices == expected


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64])
def test_balanced_sums_have_the_layers_of_figure_3(k: int) -> None:
    graph = graphs.build("matmul", "balanced", m=2, k=k, n=1)
    depth = [0] * graph.vertices
    for v in range(graph.vertices):
        depth[v] = max((1 + depth[u] for u in graph.predecessors(v)), default=0)
    assert {depth[v] for v in graph.outputs} == {1 + math.ceil(math.log2(k))}


@pytest.mark.parametrize(
    ("summation", "options", "offset", "words"),
    [
        ("chain", {}, 0, "S[0,0] (product 1 of 4)"),
        ("chain", {}, 4, "S[0,0] (sum 2 of 4)"),
        ("chain", {}, 5, "S[0,0] (sum 3 of 4)"),
        ("chain", {}, 6, "S[0,0]"),
        ("balanced", {}, 4, "S[0,0] (sum of terms 1-2 of 4)"),
        ("balanced", {}, 5, "S[0,0] (sum of terms 3-4 of 4)"),
        ("balanced", {}, 6, "S[0,0]"),
        ("balanced", {}, 7 * 4 + 7 + 1, "S[1,1] (product 2 of 4)"),
        ("blocked:3", {"start": True}, 4, "S[0,0] (zero)"),
        ("blocked:3", {"start": True}, 5, "S[0,0] (sum of terms 1-2 of 4)"),
        ("blocked:3", {"start": True}, 6, "S[0,0] (sum of terms 1-3 of 4)"),
        ("blocked:3", {"start": True}, 7, "S[0,0] (sum 3 of 4)"),
        ("blocked:3", {"start": True}, 8, "S[0,0]"),
        ("chain", {"row_block": 3}, 3, "S[0;0,0] (sum 2 of 3)"),
        ("chain", {"row_block": 3}, 2 * 4 * 5 + 1, "S[1;0,1]"),
        ("blocked:2", {"row_block": 2, "start": True}, 2 * 4 * 5 + 2, "S[1;0,0] (zero)"),
    ],
)
def test_vertices_in_words(summation: str, options: dict[str, Any], offset: int, words: str) -> None:
    b = Builder(summation)
    b.input("A1", (2, 4))
    b.input("X", (4, 4))
    b.matmul("S", "A1", "X", **options)
    graph = b.finish(outputs=["S"])
    assert graph.describe(2 * 4 + 4 * 4 + offset) == words


def test_backward_in_words() -> None:
    graph = graphs.build("backward", n=2, d=2)
    assert graph.describe(0) == "A1[0,0]"
    assert graph.describe(3) == "A1[1,1]"
    l1 = graph.tensor("l")[1]
    assert [graph.describe(v) for v in (l1 - 2, l1 - 1, l1)] == ["l[1] (term 1 of 2)", "l[1] (term 2 of 2)", "l[1]"]
    assert [graph.describe(v) for v in graph.predecessors(graph.tensor("p")[0, 1])] == ["fq[0,1]", "vf[0,1]"]
    family, block, index, part = graph.locate(l1 - 1)
    assert (family.name, block, index, part.kind, part.first, part.stop) == ("l", 0, (1,), "term", 1, 2)


@FEW
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), SUMMATIONS, st.booleans())
def test_regrouped_operands_on_either_side(m: int, n: int, k: int, block: int, summation: str, right: bool) -> None:
    b = Builder(summation)
    b.input("A", (m, k))
    b.input("B", (k, n))
    b.input("C", (n, m))
    b.matmul("T", "A", "B", row_block=block)
    if right:
        b.matmul("R", "C", "T")
    else:
        b.matmul("R", "T", "C")
    b.matmul("N", "T.T", "A", start=True)
    b.rowsum("r", "T")
    graph = b.finish(outputs=["R", "r"])
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal(shape) for name, shape in (("A", (m, k)), ("B", (k, n)), ("C", (n, m)))}
    y = graph.evaluate(x, names=["R", "N", "r"])
    whole = x["A"] @ x["B"]
    np.testing.assert_allclose(y["R"], x["C"] @ whole if right else whole @ x["C"], atol=1e-12)
    np.testing.assert_allclose(y["N"], whole.T @ x["A"], atol=1e-12)
    np.testing.assert_allclose(y["r"], whole.sum(axis=1), atol=1e-12)


# Graphs of the user's own, and files.


def test_graphs_from_edges() -> None:
    graph = Cdag.from_edges(5, [(3, 0), (1, 0), (0, 4), (2, 4)])
    assert graph.predecessors(0).tolist() == [3, 1]
    assert graph.inputs.tolist() == [1, 2, 3]
    assert graph.outputs.tolist() == [4]
    assert set(graph.op) == {Op.GENERIC}
    assert graph.describe(4) == "vertex 4"
    given_ends = Cdag.from_edges(3, [(0, 1), (1, 2)], inputs=[0, 1], outputs=[1, 2])
    assert (given_ends.inputs.tolist(), given_ends.outputs.tolist()) == ([0, 1], [1, 2])
    assert Cdag.from_edges(2, []).outputs.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("n", "edges", "message"),
    [
        (3, [(0, 1), (1, 2), (2, 0)], r"cycle .*0 -> "),
        (2, [(1, 1)], "cycle 1 -> 1"),
        (3, [(0, 3)], "no vertex 3; 3 vertices are numbered 0 to 2"),
        (3, [(-1, 2)], "no vertex -1"),
        (3, [(0, 1), (2, 1), (0, 1)], "from 0 to 1 is given twice"),
        (3, [(0, 1, 2)], "pairs"),
        (3, [(0, 1), (2,)], "pairs"),
        (3, [(0.5, 1)], "whole numbers"),
        (0, [], "at least one vertex"),
    ],
)
def test_edges_that_are_refused(n: int, edges: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Cdag.from_edges(n, edges)


@pytest.fixture
def graph() -> Cdag:
    return graphs.build("backward", "blocked:2", n=3, d=2, order="U", dQ_block=2)


def edges_of(graph: Cdag) -> set[tuple[int, int]]:
    return {(int(u), v) for v in range(graph.vertices) for u in graph.predecessors(v)}


def test_networkx_nodes_say_what_they_are(graph: Cdag) -> None:
    exported = graph.to_networkx()
    assert set(exported.edges) == edges_of(graph)
    assert nx.is_directed_acyclic_graph(exported)
    v = int(graph.tensor("g")[1, 0])
    assert exported.nodes[v] == {
        "op": "add", "tensor": "g", "index": (1, 0), "label": "g[1,0]", "input": False, "output": True
    }  # fmt: skip
    assert [v for v, is_input in exported.nodes(data="input") if is_input] == graph.inputs.tolist()
    assert Cdag.from_edges(2, [(0, 1)]).to_networkx().nodes[0]["label"] == "vertex 0"


def test_node_link_and_graphml_come_back_whole(graph: Cdag, tmp_path: Any) -> None:
    exported = graph.to_networkx()
    save(graph, tmp_path / "g.json")
    again = nx.node_link_graph(json.loads((tmp_path / "g.json").read_text()), edges="edges")
    assert set(again.edges) == set(exported.edges)
    assert dict(again.nodes(data="label")) == dict(exported.nodes(data="label"))
    save(graph, tmp_path / "g.graphml")
    again = nx.read_graphml(tmp_path / "g.graphml", node_type=int)
    assert set(again.edges) == set(exported.edges)
    assert dict(again.nodes(data="label")) == dict(exported.nodes(data="label"))
    assert dict(again.nodes(data="output")) == dict(exported.nodes(data="output"))


def test_dot_is_readable(tmp_path: Any) -> None:
    save(graphs.build("matmul", m=1, k=2, n=1), tmp_path / "g.dot")
    assert (tmp_path / "g.dot").read_text() == (
        "digraph {\n"
        '  0 [label="A[0,0]", op="input", input=true, shape=box];\n'
        '  1 [label="A[0,1]", op="input", input=true, shape=box];\n'
        '  2 [label="B[0,0]", op="input", input=true, shape=box];\n'
        '  3 [label="B[1,0]", op="input", input=true, shape=box];\n'
        '  4 [label="C[0,0] (product 1 of 2)", op="mul"];\n'
        '  5 [label="C[0,0] (product 2 of 2)", op="mul"];\n'
        '  6 [label="C[0,0]", op="add", output=true, peripheries=2];\n'
        "  0 -> 4;\n  2 -> 4;\n  1 -> 5;\n  3 -> 5;\n  4 -> 6;\n  5 -> 6;\n"
        "}\n"
    )


@pytest.mark.parametrize("suffix", [".hdag", ".txt", ".HDAG"])
def test_hyperdags_come_back(tmp_path: Any, suffix: str) -> None:
    graph = graphs.build("matmul", "blocked:2", m=3, k=4, n=2)
    save(graph, tmp_path / f"g{suffix}")
    again = load(tmp_path / f"g{suffix}")
    assert (again.vertices, again.edges) == (graph.vertices, graph.edges)
    assert edges_of(again) == edges_of(graph)
    assert [path.name for path in tmp_path.iterdir()] == [f"g{suffix}"]


def test_hyperdags_of_others_are_read(tmp_path: Any) -> None:
    path = tmp_path / "g.hdag"
    path.write_text(
        "% made by hand\n\n2 4 5\n1 7 3\n0\n% vertices\n0 1 2\n3\n1 1\n2\n0 3\n1 0\n1 2 % a comment\n0 0\n1 1\n"
    )
    graph = load(path)
    assert edges_of(graph) == {(3, 0), (0, 2), (0, 1)}
    assert graph.inputs.tolist() == [3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0: the file ends where the header"),
        ("2 x 1\n", "line 1: expected the header 'hyperedges vertices pins' of a HyperDAG"),
        ("1 2 2\n0\n0\n2\n", "line 4: vertex 2 does not exist; they are numbered 0 to 1"),
        ("1 2 2\n0\n0\n0\n", "line 4: vertex 0 is given twice"),
        ("1 2 2\n0\n0\n1\n0 0\n1 1\n", "line 6: hyperedge 1 does not exist"),
        ("1 2 2\n0\n0\n1\n0 0\n0 -1\n", "line 6: expected a pin 'hyperedge vertex', found '0 -1'"),
        ("1 2 2\n0\n0\n1\n0 0\n", "line 5: the file ends where a pin"),
        ("1 2 2\n0\n0\n1\n0 0\n0 1\n0 1\n", "line 7: expected the end of the file after 2 pins"),
        ("1 2 3\n0\n0\n1\n0 0\n0 1\n0 1\n", "line 7: the edge from 0 to 1 is already in line 6"),
        ("2 2 4\n0\n1\n0\n1\n0 0\n0 1\n1 1\n1 0\n", "cycle"),
    ],
)
def test_broken_hyperdags_name_the_line(tmp_path: Any, text: str, message: str) -> None:
    path = tmp_path / "g.hdag"
    path.write_text(text)
    with pytest.raises(UsageError, match="g.hdag: .*" + message):
        load(path)


def test_files_that_cannot_be(graph: Cdag, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"'g.png'; end it with one of .dot, .gv, .graphml, .json, .hdag, .txt, .edges"
    ):
        save(graph, tmp_path / "g.png")
    with pytest.raises(UsageError, match="cannot write"):
        save(graph, tmp_path / "nowhere" / "g.dot")
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "nowhere.hdag")
    (tmp_path / "g.dot").write_text("before")
    monkeypatch.setattr(cdag_module, "EXPORT_LIMIT", 5)
    with pytest.raises(UsageError, match=rf"{graph.vertices} vertices is too large to export \(at most 5\); use"):
        save(graph, tmp_path / "g.dot")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"g.dot": "before"}


# Errors.


def test_a_graph_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"of memory, but .* are available; .*`count` and `formula`"):
        graphs.build("backward", n=2**30, d=64)
    need = graphs.size("matmul", m=3, k=4, n=5).bytes
    monkeypatch.setattr(memory, "NEGLIGIBLE", 0)
    monkeypatch.setattr(memory, "available_memory", lambda: need - 1)
    with pytest.raises(UsageError, match="137 vertices"):
        graphs.build("matmul", m=3, k=4, n=5)
    assert graphs.build("matmul", m=2, k=4, n=5).vertices == 2 * 4 + 4 * 5 + 2 * 5 * 7


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("matmul", {"m": 0, "k": 1, "n": 1}, "m is 0, but must be a whole number of at least 1"),
        ("matmul", {"m": 1, "k": 1.5, "n": 1}, "k is 1.5"),
        ("matmul", {"m": 1, "k": 1}, "missing a required argument: 'n'; it takes m, k, n"),
        ("matmul", {"m": 1, "k": 1, "n": 1, "order": "T"}, "unexpected keyword argument 'order'"),
        ("backward", {"n": 2, "d": 2, "order": "S"}, "order 'S' is not known"),
        ("backward", {"n": 2, "d": 2, "order": "U", "row_block": 1}, "needs order 'T'"),
        ("backward", {"n": 2, "d": 2, "dQ_block": 1}, "needs order 'U'"),
        ("backward", {"n": 2, "d": 2, "row_block": 0}, "row_block of T is 0"),
        ("backward", {"n": 2, "d": 2, "order": "U", "dQ_block": 0}, "dQ_block is 0"),
        ("backwards", {"n": 2, "d": 2}, "did you mean 'backward'"),
    ],
)
def test_options_that_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graphs.build(name, **options)
    with pytest.raises(UsageError, match=message):
        graphs.size(name, **options)


@pytest.mark.parametrize(
    "summation", ["", "tree", "blocked", "blocked:", "blocked:0", "blocked:-1", "blocked:x", "chain:2"]
)
def test_summations_that_are_refused(summation: str) -> None:
    with pytest.raises(UsageError, match=r"'chain', 'balanced' or 'blocked:b'"):
        graphs.build("matmul", summation, m=1, k=1, n=1)


def test_tensors_that_are_refused() -> None:
    b = Builder()
    b.input("A", (2, 3))
    b.input("B", (3, 2))
    b.input("v", (3,))
    b.matmul("T", "A", "B", row_block=1)
    with pytest.raises(UsageError, match=r"operands of C do not fit together: A \(2, 3\) and A \(2, 3\)"):
        b.matmul("C", "A", "A")
    with pytest.raises(UsageError, match="do not fit together"):
        b.matmul("C", "A", "v")
    with pytest.raises(UsageError, match="do not fit together"):
        b.elementwise("C", "add", "A", "v")
    with pytest.raises(UsageError, match="both regrouped"):
        b.matmul("C", "T", "T.T")
    with pytest.raises(UsageError, match="regrouped; only sums"):
        b.elementwise("C", "exp", "T")
    with pytest.raises(UsageError, match=r"exp takes 1 operand"):
        b.elementwise("C", "exp", "A", "A")
    with pytest.raises(UsageError, match="which is a vector"):
        b.rowsum("C", "v")
    with pytest.raises(UsageError, match=r"\(rows, columns\) or \(rows,\)"):
        b.input("C", (1, 2, 3))
    with pytest.raises(UsageError, match="'A' is already used"):
        b.input("A", (1, 2))
    with pytest.raises(UnknownName, match="elementwise operation"):
        b.elementwise("C", "sqrt", "A")
    with pytest.raises(UnknownName, match="tensor"):
        b.matmul("C", "A", "Q.T")
    with pytest.raises(UnknownName, match="tensor"):
        b.finish(outputs=["C"])


def test_evaluations_that_are_refused() -> None:
    graph = graphs.build("matmul", m=2, k=3, n=2)
    a, b = np.ones((2, 3)), np.ones((3, 2))
    with pytest.raises(UsageError, match="input B is missing; this graph needs A, B"):
        graph.evaluate({"A": a})
    with pytest.raises(UsageError, match=r"B has shape \(2, 3\), but this graph was built for \(3, 2\)"):
        graph.evaluate({"A": a, "B": a})
    with pytest.raises(UnknownName, match="input"):
        graph.evaluate({"A": a, "B": b, "C": b})
    with pytest.raises(UnknownName, match="tensor"):
        graph.evaluate({"A": a, "B": b}, names=["D"])
    with pytest.raises(UsageError, match="no operations"):
        Cdag.from_edges(1, []).evaluate({})
    with pytest.raises(UsageError, match="no vertex 22; this graph has vertices 0 to 21"):
        Cdag.from_edges(22, []).describe(22)
    with pytest.raises(UsageError, match="belong to no tensor"):
        Cdag.from_edges(1, []).locate(0)
