"""Write graphs for other tools, and read the graphs of others.

Formats, by suffix: Graphviz (.dot), GraphML (.graphml), networkx node-link (.json), HyperDAG v1 (.hdag, .txt; Papp,
Anegg & Yzelman, https://github.com/Algebraic-Programming/HyperDAG_DB).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pebblesim.errors import UsageError
from pebblesim.files import whole_file
from pebblesim.graphs.cdag import Cdag


def save(graph: Cdag, path: str | Path) -> None:
    """Write a graph to a file, in the format that its suffix names. The file is written whole or not at all.

    HyperDAG knows neither tensors nor a choice of inputs and outputs: only vertices and edges survive there.

    Raises:
        UsageError: the suffix is unknown, the graph is too large to export, or the file cannot be written.
    """
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise UsageError(f"cannot tell a format from {path.name!r}; end it with one of {', '.join(WRITERS)}.")
    text = "\n".join(writer(graph)) + "\n"
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def load(path: str | Path) -> Cdag:
    """Read a graph from a HyperDAG file (.hdag, .txt); weights and types are ignored.

    Its inputs are the sources and its outputs the sinks.

    Raises:
        UsageError: the file cannot be read, or is no HyperDAG of an acyclic graph; the message names the line.
    """
    path = Path(path)
    if path.suffix.lower() not in (".hdag", ".txt"):
        raise UsageError(f"cannot read {path.name!r}; graphs are read from .hdag and .txt files (HyperDAG).")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    try:
        return _parse_hyperdag(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _dot(graph: Cdag) -> Iterator[str]:
    yield "digraph {"
    nx_graph = graph.to_networkx()
    for v, node in nx_graph.nodes(data=True):
        shape = ", shape=box" if node["input"] else ""
        doubled = ", peripheries=2" if node["output"] else ""
        yield f'  {v} [label="{node["label"]}", op="{node["op"]}"{shape}{doubled}];'
    for u, v in nx_graph.edges:
        yield f"  {u} -> {v};"
    yield "}"


def _graphml(graph: Cdag) -> Iterator[str]:
    import networkx as nx

    nx_graph = graph.to_networkx()
    for _, node in nx_graph.nodes(data=True):
        node["index"] = ",".join(map(str, node["index"]))  # GraphML has no lists
    yield from nx.generate_graphml(nx_graph)


def _json(graph: Cdag) -> Iterator[str]:
    import networkx as nx

    yield json.dumps(nx.node_link_data(graph.to_networkx(), edges="edges"), indent=1)


def _hyperdag(graph: Cdag) -> Iterator[str]:
    """Each vertex with successors is the first pin of one hyperedge, and they are the others; all weights are 1."""
    nx_graph = graph.to_networkx()
    sources = [v for v in nx_graph if nx_graph.out_degree(v)]
    yield "% HyperDAG v1: hyperedges, vertices, pins; then hyperedges, vertices, pins (hyperedge vertex), source first"
    yield f"{len(sources)} {len(nx_graph)} {len(sources) + nx_graph.number_of_edges()}"
    yield from (f"{edge} 1" for edge in range(len(sources)))
    yield from (f"{v} 1" for v in nx_graph)
    for edge, v in enumerate(sources):
        yield f"{edge} {v}"
        yield from (f"{edge} {successor}" for successor in nx_graph.successors(v))


WRITERS: Final[dict[str, Callable[[Cdag], Iterator[str]]]] = {
    ".dot": _dot,
    ".graphml": _graphml,
    ".json": _json,
    ".hdag": _hyperdag,
    ".txt": _hyperdag,
}


def _parse_hyperdag(text: str) -> Cdag:
    lines = [(number, line.split("%", 1)[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    rows = iter([(number, words) for number, words in lines if words])
    last = len(lines)

    def read(what: str, least: int, most: int) -> tuple[int, list[int]]:
        number, words = next(rows, (last, None))
        if words is None:
            raise UsageError(f"line {number}: the file ends where {what} should follow.")
        try:
            values = [int(word) for word in words]
        except ValueError:
            values = []
        if not least <= len(values) <= most or min(values) < 0:
            raise UsageError(f"line {number}: expected {what}, found {' '.join(words)!r}.")
        return number, values

    def check(number: int, what: str, value: int, total: int) -> int:
        if value >= total:
            raise UsageError(f"line {number}: {what} {value} does not exist; they are numbered 0 to {total - 1}.")
        return value

    _, (hyperedges, vertices, pins) = read("the header 'hyperedges vertices pins'", 3, 3)
    for what, total in (("hyperedge", hyperedges), ("vertex", vertices)):
        seen = set()
        for _ in range(total):
            number, (given, *_weights) = read(f"a {what}: its number and up to two weights", 1, 3)
            if check(number, what, given, total) in seen:
                raise UsageError(f"line {number}: {what} {given} is given twice.")
            seen.add(given)
    source: dict[int, int] = {}
    edges: dict[tuple[int, int], int] = {}
    for _ in range(pins):
        number, (hyperedge, v) = read("a pin 'hyperedge vertex'", 2, 2)
        check(number, "hyperedge", hyperedge, hyperedges)
        check(number, "vertex", v, vertices)
        if hyperedge not in source:
            source[hyperedge] = v
        elif edges.setdefault((source[hyperedge], v), number) != number:
            first = edges[source[hyperedge], v]
            raise UsageError(f"line {number}: the edge from {source[hyperedge]} to {v} stands already in line {first}.")
    number, words = next(rows, (last, None))
    if words is not None:
        raise UsageError(f"line {number}: expected the end of the file after {pins} pins, found {' '.join(words)!r}.")
    return Cdag.from_edges(vertices, list(edges))
