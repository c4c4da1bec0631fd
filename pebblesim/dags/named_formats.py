"""Read and write graphs as files with named vertices: DOT, and networkx's node-link JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
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


_MEANT = {"words", "mem_weight", "input", "output"}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def dot(data: bytes) -> Cdag:
    """Read a directed graph of Graphviz (https://graphviz.org/doc/info/lang.html); subgraphs are flattened.

    A vertex's `label` is its name. `words`, or OneStopParallel's `mem_weight`, is its number of words. A true `input`
    or `output` marks an input or output. Of a text in angle brackets, its tags are left out.
    """
    return _Dot(data.decode("utf-8")).graph()


class _Dot:
    """The tokens of a file, and the position of the reader."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.words = list(self._split())

    def _split(self) -> Iterator[tuple[str, str, int]]:
        """Yield (kind, text, position) of each token; the kind is "name", "quoted", "sign" or "end"."""
        at = 0
        while match := _DOT.match(self.text, at):
            kind, at = match.lastgroup, match.end()
            if kind == "other" and match[0] == "<":
                at = self._end_of_html(match.start())
                yield "quoted", unescape(re.sub("<[^<>]*>", "", self.text[match.end() : at - 1])), match.start()
            elif kind == "other":
                why = "a quote begins that does not end" if match[0] == '"' else f"{match[0]!r} is not allowed in DOT"
                raise self._error(match.start(), why)
            elif kind == "quoted":
                yield "quoted", re.sub(r'\\(["\\])', r"\1", match[kind]), match.start()
            elif kind != "skip":
                yield "name" if kind == "word" else "sign", match[0], match.start()
        yield "end", "the end of the file", len(self.text)

    def _end_of_html(self, start: int) -> int:
        """Return the end of a text in angle brackets, which may hold others."""
        depth = 0
        for match in re.finditer("[<>]", self.text[start:]):
            depth += 1 if match[0] == "<" else -1
            if not depth:
                return start + match.end()
        raise self._error(start, "a '<' begins a text that does not end")

    def _error(self, place: int, why: str) -> UsageError:
        return UsageError(f"line {self.text.count(chr(10), 0, place) + 1}: {why}.")

    def _next(self, *wanted: str) -> str:
        kind, word, place = self.words[self.at]
        if (kind in ("name", "quoted") and "name" in wanted) or (kind == "sign" and word in wanted):
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
            self._statement(nodes, edges)
        kind, word, place = self.words[self.at]
        if kind != "end":
            raise self._error(place, f"expected the end of the file, found {word!r}")
        if not nodes:
            raise UsageError("it has no vertices; a graph has at least one.")
        return Cdag.from_nodes({key: meaning(key, node, "mem_weight") for key, node in nodes.items()}, edges)

    def _statement(self, nodes: dict[Any, dict[str, Any]], edges: dict[tuple[Any, Any], None]) -> None:
        """Read vertices, edges, or a setting of the drawing; a name in quotes is never a keyword."""
        kind, _, place = self.words[self.at]
        name = self._next("name")
        keyword = name.lower() if kind == "name" else ""
        if keyword == "subgraph":
            if not self._is("{"):
                self._next("name")
            if not self._is("{"):
                self._next("{")
        elif self._is("="):
            self._next("=")
            self._next("name")
        elif keyword in ("graph", "node", "edge"):
            if meant := sorted(_MEANT & self._attributes().keys()):
                raise self._error(place, f"{meant[0]} is given for every {keyword}; give it to each vertex by itself")
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

    def _vertex(self, name: str) -> Any:
        while self._is(":"):
            self._next(":")
            self._next("name")
        return vertex_of(name)

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


def vertex_of(name: str) -> int | str:
    """Return the name of a vertex as a number, if it is one as Python would write it."""
    return int(name) if name.isdecimal() and name.isascii() and str(int(name[:18])) == name else name


def meaning(name: Any, node: dict[str, Any], weight: str = "words") -> dict[str, Any]:
    """Return the used attributes of a vertex: name, words, and whether it is an input or an output.

    Raises:
        UsageError: the number of words is not a whole number, 1 or more, or an end is neither true nor false.
    """
    kept: dict[str, Any] = {}
    if "label" in node:
        kept["label"] = str(node["label"])
    words = node.get("words", node.get(weight))
    if words is not None:
        text = str(words).strip()
        if isinstance(words, bool) or not (text.isascii() and text.isdecimal() and 0 < int(text[:18]) < 2**31):
            raise UsageError(
                f"vertex {str(name)[:40]!r} has {text[:40]!r} words; the number must be a whole number, 1 or more, "
                "below 2^31."
            )
        kept["words"] = int(text)
    for end in ("input", "output"):
        if end in node:
            said = str(node[end]).strip().lower()
            if said not in _TRUTH:
                raise UsageError(f"vertex {str(name)[:40]!r} has {end} = {said[:40]!r}; it is true or false.")
            kept[end] = _TRUTH[said]
    return kept


def node_link(data: bytes) -> Cdag:
    """Node-link JSON of networkx: {"nodes": [{"id": …}, …], "edges" or "links": [{"source": …, "target": …}, …]}."""
    try:
        text = data.decode("utf-8")
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, or a number of thousands of digits
        raise UsageError(f"it is not JSON: {line_of(error)}.") from None
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
        nodes[key] = meaning(key, node)
    pairs = []
    for number, edge in enumerate(edges):
        pair = (edge.get("source"), edge.get("target")) if isinstance(edge, dict) else (None, None)
        for key in pair:
            if not isinstance(key, str | int) or isinstance(key, bool) or key not in nodes:
                raise UsageError(f'entry {number} of "edges" names {str(key)[:40]!r}, which is not a vertex.')
        pairs.append(pair)
    if not nodes:
        raise UsageError("it has no vertices; a graph has at least one.")
    return Cdag.from_nodes(nodes, pairs)


def line_of(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def write_dot(graph: Cdag) -> bytes:
    """Write DOT: `input=true` marks inputs, which are boxes; `output=true` outputs, with a double border.

    If there are no inputs, or no outputs, every vertex says so: without the attribute they are sources or sinks.
    """
    lines = ["digraph {"]
    none = [f", {end}=false" for end, ids in (("input", graph.inputs), ("output", graph.outputs)) if not len(ids)]
    for v, node in graph.to_networkx().nodes(data=True):
        first = ", input=true, shape=box" if node["input"] else ""
        last = ", output=true, peripheries=2" if node["output"] else ""
        words = f", words={node['words']}" if "words" in node else ""
        label = node["label"].replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  {v} [label="{label}", op="{node["op"]}"{words}{first}{last}{"".join(none)}];')
    lines += [f"  {u} -> {v};" for u, v in graph.pairs().tolist()]
    return "\n".join([*lines, "}", ""]).encode()


def write_node_link(graph: Cdag) -> bytes:
    """Write the node-link JSON of networkx, with the edges in the order of operands."""
    import networkx as nx

    document = nx.node_link_data(graph.to_networkx(), edges="edges")
    document["edges"] = [{"source": u, "target": v} for u, v in graph.pairs().tolist()]
    return (json.dumps(document, indent=1) + "\n").encode()
