"""Read graphs from files with named vertices: DOT, GraphML and networkx's node-link JSON."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.graphs.cdag import Cdag

_DOT = re.compile(
    r"""(?P<skip>\s+ | //[^\n]* | /\*.*?\*/ | ^\#[^\n]*)
    | "(?P<quoted>(?:[^"\\]|\\.)*)"
    | (?P<word>-?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?) | [A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*)
    | (?P<sign>->|--|[{}\[\];,=:+])
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


def dot(data: bytes) -> Cdag:
    """Read a directed graph of Graphviz (https://graphviz.org/doc/info/lang.html); subgraphs are flattened.

    A vertex's `label` is its name. `words`, or OneStopParallel's `mem_weight`, is its number of words. A true `input`
    or `output` marks an input or output.
    """
    return _Dot(data.decode("utf-8")).graph()


class _Dot:
    """The tokens of a file, and the position of the reader."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.words = list(self._split())

    def _split(self) -> Iterator[tuple[str, str, int]]:
        """Yield (kind, text, position) of each token; the kind is "name", "sign" or "end"."""
        for match in _DOT.finditer(self.text):
            kind = match.lastgroup
            if kind == "other":
                raise self._error(match.start(), f"{match[0]!r} is not allowed in DOT")
            if kind == "quoted":
                yield "name", re.sub(r'\\(["\\])', r"\1", match[kind]), match.start()
            elif kind != "skip":
                yield "name" if kind == "word" else "sign", match[0], match.start()
        yield "end", "the end of the file", len(self.text)

    def _error(self, place: int, why: str) -> UsageError:
        return UsageError(f"line {self.text.count(chr(10), 0, place) + 1}: {why}.")

    def _next(self, *wanted: str) -> str:
        kind, word, place = self.words[self.at]
        if kind != "sign" and "name" in wanted and kind == "name":
            self.at += 1
            return word
        if kind == "sign" and word in wanted:
            self.at += 1
            return word
        raise self._error(
            place, f"expected {' or '.join('a name' if w == 'name' else w for w in wanted)}, found {word!r}"
        )

    def _is(self, *signs: str) -> bool:
        kind, word, _ = self.words[self.at]
        return kind == "sign" and word in signs

    def graph(self) -> Cdag:
        nodes: dict[Any, dict[str, Any]] = {}
        edges: dict[tuple[Any, Any], None] = {}
        first = self._next("name").lower()
        if first == "strict":
            first = self._next("name").lower()
        if first != "digraph":
            raise self._error(self.words[self.at - 1][2], f"a computation is a digraph, not a {first!r}")
        if not self._is("{"):
            self._next("name")
        self._next("{")
        depth = 1
        while depth:
            if self._is("}", "{", ";", ","):
                depth += {"}": -1, "{": 1}.get(self._next("}", "{", ";", ","), 0)
                continue
            place = self.words[self.at][2]
            name = self._next("name")
            if name.lower() == "subgraph":
                if not self._is("{"):
                    self._next("name")
                if not self._is("{"):
                    self._next("{")
            elif self._is("="):
                self._next("=")
                self._next("name")
            elif name.lower() in ("graph", "node", "edge"):
                self._attributes()
            else:
                chain = [self._vertex(name)]
                while self._is("->", "--"):
                    if self._next("->", "--") == "--":
                        raise self._error(place, "an edge of a digraph is written '->', not '--'")
                    chain.append(self._vertex(self._next("name")))
                attributes = self._attributes()
                for key in chain:
                    nodes.setdefault(key, {})
                if len(chain) == 1:
                    nodes[chain[0]] |= attributes
                for edge in pairwise(chain):
                    if edge in edges:
                        raise self._error(place, f"the edge from {edge[0]} to {edge[1]} is given twice")
                    edges[edge] = None
        kind, word, place = self.words[self.at]
        if kind != "end":
            raise self._error(place, f"expected the end of the file, found {word!r}")
        if not nodes:
            raise UsageError("it has no vertices; a graph has at least one.")
        return Cdag.from_nodes({key: _meaning(key, node, "mem_weight") for key, node in nodes.items()}, edges)

    def _vertex(self, name: str) -> Any:
        while self._is(":"):
            self._next(":")
            self._next("name")
        return int(name) if name.isdecimal() and name.isascii() and str(int(name[:18])) == name else name

    def _attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        while self._is("["):
            self._next("[")
            while not self._is("]"):
                if self._is(";", ","):
                    self._next(";", ",")
                    continue
                key = self._next("name")
                if self._is("="):
                    self._next("=")
                    attributes[key] = self._next("name")
            self._next("]")
        return attributes


def _meaning(name: Any, node: dict[str, Any], weight: str = "words") -> dict[str, Any]:
    """Return the used attributes of a vertex: name, words, and whether it is an input or an output.

    Raises:
        UsageError: the number of words is not a whole number, 1 or more.
    """
    kept: dict[str, Any] = {}
    if "label" in node:
        kept["label"] = str(node["label"])
    words = node.get("words", node.get(weight))
    if words is not None:
        text = str(words).strip()
        if isinstance(words, bool) or not (text.isascii() and text.isdecimal() and 0 < int(text[:18]) < 2**31):
            raise UsageError(
                f"vertex {str(name)[:40]!r} has {text[:40]!r} words; the number must be a whole number, 1 or more."
            )
        kept["words"] = int(text)
    for end in ("input", "output"):
        if end in node:
            kept[end] = node[end] in (True, "true", "True", "1")
    return kept


def graphml(data: bytes) -> Cdag:
    """Read GraphML with networkx; vertex attributes are as for DOT."""
    import networkx as nx

    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about attributes without a type, which are not used
            graph = nx.read_graphml(io.BytesIO(data))
    except Exception as error:  # the library raises many kinds of errors for broken files
        raise UsageError(f"it is not GraphML: {_line(error)}.") from None
    nodes = {_key(v): _meaning(v, node) for v, node in graph.nodes(data=True)}
    return _checked(graph, nodes, [(_key(u), _key(v)) for u, v in graph.edges()])


def node_link(data: bytes) -> Cdag:
    """Node-link JSON of networkx: {"nodes": [{"id": …}, …], "edges" or "links": [{"source": …, "target": …}, …]}."""
    try:
        document = json.loads(data.decode("utf-8"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"it is not JSON: {_line(error)}.") from None
    edges = document.get("edges", document.get("links")) if isinstance(document, dict) else None
    if not isinstance(edges, list) or not isinstance(document.get("nodes"), list):
        raise UsageError('node-link JSON is an object with the lists "nodes" and "edges" (or "links").')
    if document.get("directed") is False:
        raise UsageError("a computation is a directed graph, and this file says it is undirected.")
    nodes: dict[Any, dict[str, Any]] = {}
    for number, node in enumerate(document["nodes"]):
        key = node.get("id") if isinstance(node, dict) else None
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise UsageError(f'entry {number} of "nodes" has no "id" that is a number or a text.')
        if key in nodes:
            raise UsageError(f"vertex {key!r} is given twice.")
        nodes[key] = _meaning(key, node)
    pairs = []
    for number, edge in enumerate(edges):
        pair = (edge.get("source"), edge.get("target")) if isinstance(edge, dict) else (None, None)
        for key in pair:
            if not isinstance(key, str | int) or key not in nodes:
                raise UsageError(f'entry {number} of "edges" names {str(key)[:40]!r}, which is not a vertex.')
        pairs.append(pair)
    if not nodes:
        raise UsageError("it has no vertices; a graph has at least one.")
    return Cdag.from_nodes(nodes, pairs)


def _checked(graph: Any, nodes: dict[Any, dict[str, Any]], edges: list[tuple[Any, Any]]) -> Cdag:
    if not graph.is_directed() or graph.is_multigraph():
        raise UsageError("a computation is a directed graph without parallel edges.")
    if not nodes:
        raise UsageError("it has no vertices; a graph has at least one.")
    return Cdag.from_nodes(nodes, edges)


def _key(name: Any) -> Any:
    """Return a vertex name as a number, if it is one."""
    return int(name) if isinstance(name, str) and name.isdecimal() and str(int(name[:18])) == name else name


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def write_dot(graph: Cdag) -> bytes:
    lines = ["digraph {"]
    nx_graph = graph.to_networkx()
    for v, node in nx_graph.nodes(data=True):
        shape = ", shape=box" if node["input"] else ""
        doubled = ", peripheries=2" if node["output"] else ""
        words = f", words={node['words']}" if "words" in node else ""
        label = node["label"].replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  {v} [label="{label}", op="{node["op"]}"{words}{shape}{doubled}];')
    lines += [f"  {u} -> {v};" for u, v in nx_graph.edges]
    return "\n".join([*lines, "}", ""]).encode()


def write_graphml(graph: Cdag) -> bytes:
    import networkx as nx

    nx_graph = graph.to_networkx()
    for _, node in nx_graph.nodes(data=True):
        node["index"] = ",".join(map(str, node["index"]))  # GraphML has no lists
    return ("\n".join(nx.generate_graphml(nx_graph)) + "\n").encode()


def write_node_link(graph: Cdag) -> bytes:
    import networkx as nx

    return (json.dumps(nx.node_link_data(graph.to_networkx(), edges="edges"), indent=1) + "\n").encode()
