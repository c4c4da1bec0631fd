"""Graphs in files: what is written comes back, files of others are read, broken ones get one sentence."""

import json
import random
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import pebblesim as ps
from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.dags.formats import FORMATS, SUFFIXES, load_graph, save_graph, written
from pebblesim.dags.generators import generate
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.in_place import in_place

NAMED = [name for name, each in FORMATS.items() if each.named]
WEIGHTED = [*NAMED, "hyperdag", "converter"]


def edges_of(graph: Cdag) -> set[tuple[int, int]]:
    return {(int(u), v) for v in range(graph.vertices) for u in graph.predecessors(v)}


@st.composite
def graphs(draw: st.DrawFn) -> Cdag:
    """Graphs of any numbering, with operands in any order; with words, inputs and outputs of their own, or without."""
    n = draw(st.integers(1, 8))
    edges = [(u, v) for v in range(n) for u in draw(st.sets(st.integers(0, max(0, v - 1)), max_size=3)) if u < v]
    number = draw(st.just(range(n)) | st.permutations(range(n)))
    pairs = [(number[u], number[v]) for u, v in draw(st.permutations(edges))]
    words = draw(st.none() | st.lists(st.integers(1, 9), min_size=n, max_size=n))
    ends = (np.array(sorted(each), dtype=int) for each in draw(st.tuples(*[st.sets(st.integers(0, n - 1))] * 2)))
    inputs, outputs = ends if draw(st.booleans()) else (None, None)
    return Cdag.from_edges(n, np.array(pairs, dtype=int).reshape(-1, 2), inputs, outputs, weights=words)


def held_in(graph: Cdag) -> tuple[object, ...]:
    """All that the game depends on: vertices, operands in order, words, inputs, outputs."""
    operands = [list(dict.fromkeys(graph.predecessors(v).tolist())) for v in range(graph.vertices)]
    words = [1] * graph.vertices if graph.weights is None else graph.weights.tolist()
    return operands, words, graph.inputs.tolist(), graph.outputs.tolist()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FORMATS)
@given(graph=graphs())
@settings(max_examples=30)
def test_a_saved_graph_is_the_same_or_refused(name: str, graph: Cdag) -> None:
    known = FORMATS[name]
    edges = edges_of(graph)
    targets, sources = {v for _, v in edges}, {u for u, _ in edges}
    usual = [[v for v in range(graph.vertices) if v not in them] for them in (targets, sources)]
    lost = [
        what
        for what, there, kept in (
            ("the number of words of a vertex", graph.weights is not None, WEIGHTED),
            ("which vertices are inputs", [graph.inputs.tolist(), graph.outputs.tolist()] != usual, NAMED),
        )
        if there and name not in kept
    ]
    if lost:
        with pytest.raises(UsageError, match=rf"a \{known.suffixes[0]} file cannot store .*{lost[-1]}") as refused:
            written(graph, known)
        able = [suffix for suffix in str(refused.value).replace(",", "").rstrip(".").split() if suffix[0] == "."]
        for suffix in able[1:]:  # those which the sentence advises
            other = FORMATS[SUFFIXES[suffix]]
            assert held_in(other.read(written(graph, other))) == held_in(graph)
        assert len(able) > 3
    elif name == "edges" and targets | sources != set(range(graph.vertices)):
        with pytest.raises(UsageError, match="cannot name a vertex without edges"):
            written(graph, known)
    elif name == "matrix-market" and any(u > v for u, v in edges):
        with pytest.raises(UsageError, match="must increase along every edge"):
            written(graph, known)
    else:
        assert held_in(known.read(written(graph, known))) == held_in(graph)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_saved_graph_has_the_same_optimum(suffix: str, tmp_path: Path) -> None:
    """Outputs that are used again; and results of the forward pass that are not asked for, so no sinks are outputs."""
    chain = Cdag.from_edges(4, [(0, 1), (1, 2), (2, 3)], outputs=[1, 2, 3])
    assert ps.optimum(chain, M=3).io == 4
    forward = ps.graph("forward", n_q=1, n_k=2, d=1, softmax="flash2", column_block=2, row_block=1)
    assert len(forward.outputs) == 1
    for graph in (chain, forward):
        file = tmp_path / f"g{suffix}"
        if SUFFIXES[suffix] in NAMED:
            save_graph(graph, file)
            assert held_in(load_graph(file)) == held_in(graph)
            if graph is chain:
                assert ps.optimum(load_graph(file), M=3).io == 4
        else:
            with pytest.raises(UsageError, match=r"inputs and which are outputs; save to \.dot, \.graphml or \.json"):
                save_graph(graph, file)
            assert not file.exists()


@pytest.mark.parametrize("name", FORMATS)
def test_an_operand_that_is_used_twice_is_one_edge_in_a_file(name: str) -> None:
    graph = ps.graph("backward-sigmoid", n=1, d=1)
    pairs = [(int(u), v) for v in range(graph.vertices) for u in graph.predecessors(v)]
    assert len(pairs) > len(set(pairs))
    known = FORMATS[name]
    again = known.read(written(graph, known))
    assert edges_of(again) == set(pairs) and held_in(again) == held_in(graph)


def test_sums_in_place_are_not_saved(tmp_path: Path) -> None:
    graph = in_place(ps.graph("matmul", m=1, k=2, n=1))
    for suffix in SUFFIXES:
        with pytest.raises(UsageError, match="sums in place cannot be saved"):
            save_graph(graph, tmp_path / f"g{suffix}")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMED)
@given(names=st.lists(st.text(max_size=8), min_size=3, max_size=3, unique=True))
@settings(max_examples=30)
def test_any_names_come_back_or_are_refused(name: str, names: list[str]) -> None:
    graph = Cdag.from_edges(3, [(0, 2), (1, 2)], names=names)
    try:
        data = written(graph, FORMATS[name])
    except UsageError as refused:
        assert name == "graphml" and "XML" in str(refused)
        assert any(ord(letter) < 32 or ord(letter) in (0xFFFE, 0xFFFF) for letter in "".join(names))
        return
    assert FORMATS[name].read(data).names == tuple(names)


def test_names_that_no_utf_8_encodes(tmp_path: Path) -> None:
    graph = Cdag.from_edges(2, [(0, 1)], names=["a", "\ud800"])
    save_graph(graph, tmp_path / "g.json")
    assert load_graph(tmp_path / "g.json").names == graph.names
    with pytest.raises(UsageError, match=r"UTF-8 can encode.*save to \.json"):
        save_graph(graph, tmp_path / "g.dot")
    with pytest.raises(UsageError, match=r"XML cannot contain the name '\\ud800'"):
        save_graph(graph, tmp_path / "g.graphml")


@pytest.mark.parametrize("name", NAMED)
def test_names_come_back(name: str) -> None:
    graph = Cdag.from_networkx(nx.DiGraph([("a b", 'say "c"'), ("x\\y", 'say "c"')]))
    again = FORMATS[name].read(FORMATS[name].write(graph))
    assert again.names == graph.names == ("a b", 'say "c"', "x\\y")


def test_from_networkx_and_back() -> None:
    given = nx.DiGraph([(2, 0), (1, 0)])
    given.nodes[2]["words"] = 4
    graph = Cdag.from_networkx(given)
    assert edges_of(graph) == {(2, 0), (1, 0)}
    assert graph.weights.tolist() == [1, 1, 4]
    assert graph.names is None
    assert graph.to_networkx().nodes[2]["words"] == 4
    ends = nx.DiGraph([("a", "b"), ("b", "c")])
    ends.nodes["b"]["output"] = ends.nodes["c"]["output"] = True
    assert Cdag.from_networkx(ends).outputs.tolist() == [1, 2]
    for wrong, says in ((nx.Graph([(0, 1)]), "directed"), (nx.MultiDiGraph([(0, 1)]), "parallel")):
        with pytest.raises(UsageError, match=says):
            Cdag.from_networkx(wrong)
    given.nodes[1]["words"] = 0.5
    with pytest.raises(UsageError, match="whole numbers, 1 or more"):
        Cdag.from_networkx(given)


def test_files_of_others(tmp_path: Path) -> None:
    """OneStopParallel's HyperDAG and DOT, HyperDAG_DB's coarse vertices, an edge list with names, a matrix."""
    files = {
        "a.hdag": "%% Hyperedges: ID comm_weight mem_weight\n2 3 5\n0 9 2\n%x\n"
        "1 1 3\n0 5 1\n1 5 0 7\n2 5\n0 0\n0 1\n1 1\n1 2\n0 2\n",
        "a.dot": 'digraph { 0[work_weight="5";comm_weight="9";mem_weight="2";type="0";];\n1[mem_weight="3";];\n'
        '0->1 [comm_weight="1";]; 1->2; 0 -> 2;\n}',
        "a.edges": "% made by hand\na b # a comment\nb c {}\na c\n",
        "a.mtx": "%%MatrixMarket matrix coordinate real symmetric\n%\n3 3 4\n1 1 2.5\n2 1 1\n3 2 1e-3\n3 1 -4\n",
        "a.dag": "3 3\n0 1\n1 1\n2 1\n0 2\n1 3\n2 1\n0 1\n1 2\n0 2\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        graph = ps.load_graph(tmp_path / name)
        assert edges_of(graph) == {(0, 1), (1, 2), (0, 2)}, name
        if name not in ("a.edges", "a.mtx"):
            assert graph.weights.tolist() == [2, 3, 1], name
    (tmp_path / "strict").write_text(
        "strict digraph G { rankdir=LR; node [shape=box]; subgraph s { a -> b:n; } b -> c }"
    )
    assert load_graph(tmp_path / "strict", "dot").names == ("a", "b", "c")
    assert load_graph(tmp_path / "a.mtx", "matrix-market").vertices == 3
    for text in ("// two edges\n0 1\n  // in two lines\n1 2\n", "\ufeff0 1 // one\n1 2 {'weight': 2}\n"):
        (tmp_path / "b.edges").write_text(text)
        graph = load_graph(tmp_path / "b.edges")
        assert (edges_of(graph), graph.names) == ({(0, 1), (1, 2)}, None)
    quoted = FORMATS["dot"].read(b'digraph { "node" -> "edge"; "graph" [words=2]; "subgraph" -> "node" }')
    assert quoted.names == ("node", "edge", "graph", "subgraph")
    assert (edges_of(quoted), quoted.weights.tolist()) == ({(0, 1), (3, 0)}, [1, 1, 2, 1])
    key = '<key id="w" for="node" attr.name="words" attr.type="int"><default>4</default></key><graph '
    usual = FORMATS["graphml"].read(XML.format('<node id="a"/>').replace("<graph ", key).encode())
    assert usual.weights.tolist() == [4]


XML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">{}</graph></graphml>'


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("g.hdag", "1 2 2\n0 x\n0\n1\n0 0\n0 1\n", "line 2: expected a hyperedge: its number and up to two weights"),
        ("g.hdag", "1 2 2\n0 0\n0\n1\n0 0\n0 1\n", "vertex 0 has weight 0; a weight is a number of words, 1 or more"),
        ("g.hdag", "99999999999 99999999999 3\n", "line 1: the file ends where a hyperedge"),
        ("g.hdag", "0 0 0\n", "the header gives 0 vertices"),
        (
            "g.hdag",
            "2 3 4\n0 5\n1 6\n0\n1\n2\n0 0\n0 1\n1 0\n1 2\n",
            "line 2: hyperedge 0 says 5 words of vertex 0, and another hyperedge of this vertex says 6",
        ),
        (
            "g.mtx",
            "%%MatrixMarket matrix coordinate real general\n1000000000 1000000000 1\n2 1 5\n",
            "1,000,000,000 × 1,000,000,000 and has 1 entries, so that most of it is empty",
        ),
        ("g.edges", "1 2\n3\n", "line 2: expected an edge 'from to', found '3'"),
        ("g.edges", "# nothing\n", "it has no edges"),
        ("g.edges", "a b\n\nb c\nc a\na d\n", "line 4: the edge from c to a closes the cycle a -> b -> c -> a,"),
        ("g.edges", "0 1\n# 1 1\n2 1\n1 2\n", "line 4: the edge from 1 to 2 closes the cycle 1 -> 2 -> 1,"),
        ("g.edges", "7 7\n", "line 1: the edge from 7 to 7 closes the cycle 7 -> 7,"),
        ("g.edges", "a b\nc d\n\na b\n", "line 4: the edge from a to b is already in line 1."),
        ("g.edges", "5 9\n% no\n5 9 {}\n", "line 3: the edge from 5 to 9 is already in line 1."),
        ("g.edges", "a c\nb c d\n", "line 2: an edge has two vertices, 'from to'; found a third word, 'd'"),
        ("g.edges", "1 2\n2 3 4\n", "line 2: an edge has two vertices, 'from to'; found a third word, '4'; give each"),
        ("g.edges", "1 2 0.5\n", "line 1: an edge has two vertices, 'from to'; found a third word, '0.5'"),
        ("g.edges", "a b\nb c 2\n", "line 2: an edge has two vertices, 'from to'; found a third word, '2'"),
        ("g.edges", "0 1\n1 2 -1\n", "line 2: an edge has two vertices, 'from to'; found a third word, '-1'"),
        ("g.dag", "2 2\n0 1\n1 1\n0 1\n1 1\n0 1\n0 1\n", "line 7: the edge from 0 to 1 is already in line 6."),
        ("g.dag", "2 2\n0 1\n1 1\n0 1\n1 1\n1 0\n0 1\n", "line 7: the edge from 0 to 1 closes the cycle"),
        ("g.hdag", "2 2 4\n0\n1\n0\n1\n0 0\n0 1\n1 1\n1 0\n", "line 9: the edge from 1 to 0 closes the cycle"),
        (
            "g.edges",
            "1 2\n# a b c\n2 3 word\n",
            "line 3: an edge has two vertices, 'from to'; found a third word",
        ),
        (
            "g.json",
            '{"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": true}]}',
            "names 'True', which",
        ),
        ("g.dag", "2 1\n0 1\n1 1\n0 99999999999\n1 1\n0 1\n", "2 whole numbers, 1 or more, below 2^31"),
        ("g.mtx", "2 2 1\n2 1\n", "line 1: a MatrixMarket file of a sparse matrix starts"),
        ("g.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 5\n", "line 3: entry (1, 2) is above"),
        ("g.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 2\n2 1 5\n", "line 3: 2 entries are announced"),
        (
            "g.mtx",
            "%%MatrixMarket matrix coordinate real general\n3 3 1\n2 1 5\n\n3 1 5\n3 2 5\n",
            "line 5: 1 entries are announced, but 3 follow",
        ),
        (
            "g.mtx",
            "%%MatrixMarket matrix coordinate real general\n2 3 1\n2 1 5\n",
            "is 2 × 3; the matrix must be square",
        ),
        ("g.dot", "graph { a -- b }", "line 1: a computation is a digraph, not a 'graph'"),
        ("g.dot", "digraph {\n a -> }", "line 2: expected a name, found '}'"),
        ("g.dot", "digraph { a -> b; a -> b }", "the edge from a to b is given twice"),
        ("g.dot", 'digraph { a [words="x"] }', "vertex 'a' has 'x' words"),
        ("g.dot", "digraph { a -> b [mem_weight=0]; b [words=0] }", "vertex 'b' has '0' words"),
        ("g.json", '{"nodes": [{"id": 1, "words": 1.5}], "links": []}', "vertex '1' has '1.5' words"),
        ("g.dot", "digraph { a", "found 'the end of the file'"),
        ("g.json", "[1, 2", "it is not JSON"),
        ("g.json", "[1, 2]", 'an object with the lists "nodes" and "edges"'),
        ("g.json", '{"nodes": [{"id": 1}, {"id": 1}], "edges": []}', "vertex 1 is given twice"),
        ("g.json", '{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}', "names '2', which is not a vertex"),
        ("g.json", "[" * 100_000, "it is not JSON"),
        ("g.graphml", "<graphml><graph>", "it is not GraphML"),
        (
            "g.graphml",
            XML.format('<node id="a"/><edge source="a" target="b"/>'),
            "an edge names 'b', which is not a ver",
        ),
        ("g.graphml", XML.format('<node id="a"/><node id="a"/>'), "vertex 'a' is given twice"),
        ("g.graphml", XML.format("<node/>"), "a vertex has no id"),
        ("g.graphml", XML.format('<node id="a"><graph><node id="b"/></graph></node>'), "has no nested graphs"),
        ("g.graphml", XML.format('<node id="a"/></graph><graph><node id="b"/>'), "it has 2 graphs; a file holds one"),
        ("g.dot", "digraph {\n node [words=3]; a -> b }", "line 2: words is given for every node"),
        ("g.dot", "digraph { a [input=maybe] }", "vertex 'a' has input = 'maybe'; it is true or false"),
        ("g.json", '{"nodes": [{"id": 1' + "1" * 5000 + '}], "edges": []}', "it is not JSON"),
        ("g.dag", "2 1\n0 1\n1 1\n0 1\n1 1\n0 2\n", "line 6: vertex 2 does not exist; they are numbered 0 to 1"),
        ("g.xyz", "", "cannot tell a format from 'g.xyz'"),
    ],
)
def test_broken_files_get_one_sentence(name: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        load_graph(tmp_path / name)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, doubled, cut out or moved."""
    text = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(text) + 1), rng.randint(1, 8)
        match rng.randrange(5):
            case 0:
                text[at:at] = bytes(rng.choice(b' \n0123456789-."{}[]<>%#;,:=ax\xff\x00') for _ in range(size))
            case 1:
                del text[at : at + size]
            case 2:
                text[at:at] = text[at : at + 10 * size]
            case 3:
                text[at : at + 1] = b"9" * rng.randint(1, 25)
            case _:
                del text[at:]
    return bytes(text)


def fuzz(number: int, seed: int) -> int:
    """Read so many broken files; how many are graphs still. Anything else than a sentence is raised."""
    rng, fine = random.Random(seed), 0
    graph = Cdag.from_edges(6, [(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5)])
    weighted = Cdag.from_edges(6, sorted(edges_of(graph)), weights=[1, 2, 1, 3, 1, 1])
    samples = [(each, each.write(weighted if name in WEIGHTED else graph)) for name, each in FORMATS.items()]
    for _ in range(number):
        known, data = rng.choice(samples)
        began = time.monotonic()
        try:
            read = known.read(mutated(data, rng))
            assert read.vertices >= 1
            fine += 1
        except (PebblesimError, UnicodeDecodeError) as error:  # which `load_graph` turns into a sentence
            assert "\n" not in str(error)
        assert time.monotonic() - began < 20
    return fine


def test_a_thousand_mutated_files() -> None:
    assert 50 < fuzz(1000, seed=1) < 900


@pytest.mark.slow
def test_a_hundred_thousand_mutated_files() -> None:
    assert fuzz(100_000, seed=2) > 5000


def test_an_unreadable_file_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "g.edges").write_bytes(b"\xff\xfe a\n")
    with pytest.raises(UsageError, match="cannot read"):
        load_graph(tmp_path / "g.edges")
    save_graph(generate("fft", n=4), tmp_path / "f.json")
    assert json.loads((tmp_path / "f.json").read_text())["directed"] is True
    with pytest.raises(UsageError, match="numbers must increase"):
        save_graph(Cdag.from_edges(2, [(1, 0)]), tmp_path / "f.mtx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.json", "g.edges"]
