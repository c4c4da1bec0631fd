"""Read and write graphs as files of whole numbers: HyperDAG, edge lists, triangular matrices, and converters' text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pebblesim.core.errors import UsageError
from pebblesim.dags.rows import TokenRows, words_of
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.edges import Cyclic

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_EMPTY_ROWS: Final = 1_000_000
"""A matrix may have this many rows without entries, so that a short file cannot ask for any amount of memory."""

NEWLINE: Final = b"\n"
WORD: Final = re.compile(rb"[^\x00-\x20]+")
THIRD: Final = re.compile(
    rb"(?m)^[\x00-\x09\x0b-\x20]*(?:[^\x00-\x20#%]+[\x00-\x09\x0b-\x20]+){2}([^\x00-\x20#%{][^\x00-\x20#%]*)"
)
"""A third word in a line of an edge list, unless data in braces follows the two vertices."""


def hyperdag(data: bytes) -> Cdag:
    """HyperDAG v1 (Papp, Anegg & Yzelman, https://github.com/Algebraic-Programming/HyperDAG_DB).

    The file has a header "hyperedges vertices pins"; a row for each hyperedge: its number, optionally a communication
    weight and a memory weight; a row for each vertex: its number, optionally weights and types of work, which are
    ignored; and a row for each pin, "hyperedge vertex", with the source of a hyperedge first. The number of words of a
    value is the memory weight of its hyperedge, or the communication weight if there is no memory weight.
    """
    rows = TokenRows.of(data, b"%")
    ((hyperedges, vertices, pins),) = rows.take(
        0, 1, "the header 'hyperedges vertices pins' of a HyperDAG (edges, one a line: add --format edges)", 3, 3
    ).tolist()
    if not vertices:
        raise UsageError("the header gives 0 vertices; a graph has at least one.")
    numbers = rows.each_once(1, hyperedges, "hyperedge", "a hyperedge: its number and up to two weights", 3)[:, 0]
    rows.each_once(1 + hyperedges, vertices, "vertex", "a vertex: its number and up to three weights", 4)
    first = 1 + hyperedges + vertices
    table = rows.take(first, pins, "a pin 'hyperedge vertex'", 2, 2)
    if len(rows) > first + pins:
        rows.refuse(first + pins, f"expected the end of the file after {pins} pins")
    edge, vertex = table.T
    rows.check(edge, first, "hyperedge", hyperedges)
    rows.check(vertex, first, "vertex", vertices)
    source = np.full(hyperedges, -1, dtype=np.int64)
    source[edge[::-1]] = vertex[::-1]  # the first pin of each hyperedge is its source
    where = np.full(hyperedges, -1, dtype=np.int64)
    where[edge[::-1]] = np.arange(pins - 1, -1, -1)
    follows = where[edge] != np.arange(pins)
    u, v = source[edge], vertex
    if twice := rows.once(np.where(follows, u * vertices + v, -1 - np.arange(pins)), first):
        a, b = twice
        raise UsageError(
            f"line {rows.line[a]}: the edge from {u[a - first]} to {v[a - first]} is already in line {rows.line[b]}."
        )
    lengths = rows.lengths[1 : 1 + hyperedges]  # the last of two weights counts
    weights = np.where(lengths > 1, rows.values[rows.start[1 : 1 + hyperedges] + lengths - 1], 1)
    words = np.full(vertices, -1, dtype=np.int64)
    used = np.flatnonzero(source[numbers] >= 0)
    words[source[numbers[used]]] = weights[used]
    if (differ := used[words[source[numbers[used]]] != weights[used]]).size:
        at = int(differ[0])
        raise UsageError(
            f"line {rows.line[1 + at]}: hyperedge {numbers[at]} says {weights[at]} words of vertex "
            f"{source[numbers[at]]}, and another hyperedge of this vertex says {words[source[numbers[at]]]}."
        )
    words[words < 0] = 1
    pairs, lines = np.column_stack([u, v])[follows], rows.line[first:][follows]
    return _graph(vertices, pairs, lines, weights=words_of(words, "vertex"))


def edge_list(data: bytes) -> Cdag:
    """Read one edge "from to" in each line. A comment begins with #, %, or // behind a space, and ends with its line.

    So that networkx's files can be read, data in braces behind the two vertices is ignored; anything else there, a
    number too, is refused: a game has no weights of edges.

    Vertices may be numbers or names. Numbers that are not 0 ... n-1 are treated as names.
    """
    if b"//" in data:
        data = re.sub(rb"(?m)(?<![^\x00-\x20])//.*$", b"", data)
    rows = TokenRows.of(data, b"#%")
    first = rows.start[:-1]
    if not len(rows):
        raise UsageError("it has no edges; a line of an edge list is 'from to'.")
    if (rows.lengths < 2).any():
        rows.refuse(int(np.argmax(rows.lengths < 2)), "expected an edge 'from to'")
    if (rows.lengths > 2).any() and (wrong := THIRD.search(data)):
        raise UsageError(
            f"line {data.count(NEWLINE, 0, wrong.start(1)) + 1}: an edge has two vertices, 'from to'; found a third "
            f"word, {wrong[1].decode('utf-8', 'replace')[:80]!r}; give each edge a line of its own, without a weight."
        )
    ends = np.column_stack([rows.values[first], rows.values[first + 1]])
    if (ends < 0).any():
        return _named_edges(data, rows.line)
    ids, places = np.unique(ends, return_inverse=True)
    names = None if ids[-1] == len(ids) - 1 else [str(v) for v in ids.tolist()]
    return _graph(len(ids), places.reshape(ends.shape), rows.line, names)


def _named_edges(data: bytes, lines: NDArray[np.int64]) -> Cdag:
    text, number = data.split(NEWLINE), dict[str, int]()
    ends = [WORD.findall(re.split(b"[#%]", text[line - 1], maxsplit=1)[0])[:2] for line in lines.tolist()]
    pairs = [[number.setdefault(word.decode("utf-8"), len(number)) for word in pair] for pair in ends]
    return _graph(len(number), np.array(pairs), lines, list(number))


def _graph(
    n: int,
    pairs: NDArray[np.int64],
    lines: NDArray[np.int64],
    names: Sequence[str] | None = None,
    weights: NDArray[np.int64] | None = None,
) -> Cdag:
    """Make a graph from the edges in lines of a file.

    Raises:
        UsageError: an edge is given twice, or there is a cycle; the message names the line.
    """
    if twice := TokenRows.once(pairs[:, 0] * n + pairs[:, 1]):
        u, v = (str(end) if names is None else names[end] for end in pairs[twice[0]])
        raise UsageError(f"line {lines[twice[0]]}: the edge from {u} to {v} is already in line {lines[twice[1]]}.")
    try:
        return Cdag.from_edges(n, pairs, names=names, weights=weights)
    except Cyclic as error:
        edges = {*pairwise(error.cycle)}
        last = max(at for at, pair in enumerate(pairs.tolist()) if tuple(pair) in edges)
        u, v = (str(end) if names is None else names[end] for end in pairs[last])
        raise UsageError(
            f"line {lines[last]}: the edge from {u} to {v} closes the cycle {error.shown}, but a computation must "
            "have none."
        ) from None


def matrix_market(data: bytes) -> Cdag:
    """Read the graph of a lower triangular solve: entry (r, c) below the diagonal is the edge from c to r.

    https://math.nist.gov/MatrixMarket/formats.html; vertex v is row v + 1.
    """
    size, r, c = matrix_entries(data, lower=True)
    if size[0] != size[1]:
        raise UsageError(f"the matrix is {size[0]} × {size[1]}; the matrix must be square.")
    below = r > c
    return Cdag.from_edges(size[0], np.column_stack([c[below] - 1, r[below] - 1]))


def matrix_entries(
    data: bytes, whole: bool = False, lower: bool = False
) -> tuple[tuple[int, int], NDArray[Any], NDArray[Any]]:
    """Return (size, row of each entry, column of each entry) of a sparse matrix in a MatrixMarket file.

    The file of a symmetric matrix holds one triangle; if `whole`, the other one is added. If `lower`, an entry above
    the diagonal is refused.
    """
    head = data.split(b"\n", 1)[0].decode("utf-8", "replace").lower().split()
    if head[:3] != ["%%matrixmarket", "matrix", "coordinate"]:
        raise UsageError(
            "line 1: a MatrixMarket file of a sparse matrix starts with '%%MatrixMarket matrix coordinate'."
        )
    rows = TokenRows.of(data, b"%")
    ((height, width, entries),) = rows.take(0, 1, "the size 'rows columns entries'", 3, 3).tolist()
    if not height or not width:
        raise UsageError(f"the matrix is {height} × {width}; a graph has at least one vertex.")
    if max(height, width) > MOST_EMPTY_ROWS + 2 * entries:
        raise UsageError(
            f"the matrix is {height:,} × {width:,} and has {entries:,} entries, so that most of it is empty; leave out "
            f"rows and columns without entries, or keep at most {MOST_EMPTY_ROWS:,}."
        )
    short = rows.lengths[1:] < 2
    if short.any():
        rows.refuse(1 + int(np.argmax(short)), "expected an entry 'row column value'")
    if len(rows) - 1 != entries:
        last = rows.line[min(entries + 1, len(rows) - 1)]
        raise UsageError(f"line {last}: {entries} entries are announced, but {len(rows) - 1} follow.")
    at = rows.start[1:-1]
    r, c = rows.values[at], rows.values[at + 1]
    if (np.minimum(r, c) < 0).any():
        rows.refuse(
            1 + int(np.argmax(np.minimum(r, c) < 0)),
            "expected an entry 'row column value', in whole numbers but for the value",
        )
    rows.check(r, 1, "row", height, 1)
    rows.check(c, 1, "column", width, 1)
    if twice := rows.once(r * (width + 1) + c, 1):
        raise UsageError(f"line {rows.line[twice[0]]}: the entry is already in line {rows.line[twice[1]]}.")
    above = r < c
    if lower and above.any():
        wrong = int(np.argmax(above))
        raise UsageError(
            f"line {rows.line[1 + wrong]}: entry ({r[wrong]}, {c[wrong]}) is above the diagonal; the matrix must be "
            "lower triangular."
        )
    if whole and head[4:5] not in ([], ["general"]):
        if above.any():
            rows.refuse(
                1 + int(np.argmax(above)),
                f"a {head[4]} matrix stores its lower triangle, 'row column' with row ≥ column",
            )
        r, c = np.append(r, c[r > c]), np.append(c, r[r > c])
    return (height, width), r, c


def converter(data: bytes) -> Cdag:
    """Read the text of OneStopParallel's converters:

    "vertices edges"; for each vertex "v work", then "v words"; edges "u v".
    """
    rows = TokenRows.of(data, b"%#")
    ((vertices, edges),) = rows.take(0, 1, "the header 'vertices edges'", 2, 2).tolist()
    if not vertices:
        raise UsageError("the header gives 0 vertices; a graph has at least one.")
    rows.each_once(1, vertices, "vertex", "a vertex and its work", 2, 2)
    ids, values = rows.each_once(1 + vertices, vertices, "vertex", "a vertex and its words", 2, 2).T
    words = np.empty(vertices, dtype=np.int64)
    words[ids] = values
    first = 1 + 2 * vertices
    pairs = rows.take(first, edges, "an edge 'from to'", 2, 2)
    if len(rows) > first + edges:
        rows.refuse(first + edges, f"expected the end of the file after {edges} edges")
    for column in pairs.T:
        rows.check(column, first, "vertex", vertices)
    return _graph(vertices, pairs, rows.line[first:], weights=words_of(words, "vertex"))


def write_hyperdag(graph: Cdag) -> bytes:
    """Write HyperDAG: each vertex with successors is the first pin of a hyperedge; the successors are the others.

    All sources come before all successors, which are sorted by vertex, so that each vertex keeps the order of its
    operands.
    """
    u, v = graph.pairs().T
    words = np.ones(graph.vertices, dtype=np.int64) if graph.weights is None else graph.weights
    sources = np.flatnonzero((np.bincount(u, minlength=graph.vertices) > 0) | (words > 1))
    number = np.zeros(graph.vertices, dtype=np.int64)
    number[sources] = np.arange(len(sources))
    pins = np.concatenate([np.column_stack([np.arange(len(sources)), sources]), np.column_stack([number[u], v])])
    head = (
        "% HyperDAG v1: hyperedges, vertices, pins; then hyperedges (number, words moved, words held), vertices and\n"
        "% pins (hyperedge, vertex), the source of a hyperedge first\n"
        f"{len(sources)} {graph.vertices} {len(pins)}\n"
    )
    edges = np.column_stack([np.arange(len(sources)), words[sources], words[sources]])
    vertices = np.column_stack([np.arange(graph.vertices), np.ones(graph.vertices, dtype=np.int64)])
    return head.encode() + b"".join(map(_table, (edges, vertices, pins)))


def write_edge_list(graph: Cdag) -> bytes:
    """Write an edge "from to" in each line.

    Raises:
        UsageError: a vertex has no edge, so that no line would name it.
    """
    pairs = graph.pairs()
    if len(np.unique(pairs)) < graph.vertices:
        raise UsageError("an edge list cannot name a vertex without edges; save to .hdag, .json, .graphml or .dot.")
    return _table(pairs)


def write_matrix_market(graph: Cdag) -> bytes:
    """Write the pattern of a lower triangular matrix with a full diagonal.

    Raises:
        UsageError: the numbers of vertices do not increase along every edge.
    """
    u, v = graph.pairs().T
    if (u > v).any():
        at = int(np.argmax(u > v))
        raise UsageError(
            f"the edge from {u[at]} to {v[at]} would be above the diagonal; in a .mtx file the vertex numbers "
            "must increase along every edge."
        )
    n = graph.vertices
    head = f"%%MatrixMarket matrix coordinate pattern general\n{n} {n} {n + len(u)}\n"
    diagonal = np.arange(1, n + 1)
    return head.encode() + _table(np.column_stack([diagonal, diagonal])) + _table(np.column_stack([v + 1, u + 1]))


def write_converter(graph: Cdag) -> bytes:
    """Write the text of OneStopParallel's converters, with work 1 for each vertex."""
    ids, pairs = np.arange(graph.vertices), graph.pairs()
    words = np.ones(graph.vertices, dtype=np.int64) if graph.weights is None else graph.weights
    parts = [np.column_stack([ids, np.ones_like(ids)]), np.column_stack([ids, words]), pairs]
    return f"{graph.vertices} {len(pairs)}\n".encode() + b"".join(map(_table, parts))


def _table(rows: NDArray[np.int64]) -> bytes:
    columns: Sequence[Any] = rows.tolist()
    return "".join([f"{' '.join(map(str, row))}\n" for row in columns]).encode()
