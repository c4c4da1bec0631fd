"""Read and write GraphML with networkx; what its reader would skip without a word is refused."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.dags.named_formats import line_of, meaning, vertex_of
from pebblesim.graphs.cdag import Cdag

_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, and the one, a carriage return, that it changes."""


def read(data: bytes) -> Cdag:
    """Read a directed graph of GraphML (http://graphml.graphdrawing.org); vertex attributes are as for DOT.

    Raises:
        UsageError: it is not GraphML, or not one directed graph; or a vertex is declared twice, or not at all.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about attributes without a type, which are not used
            graph, edges = _parsed(data)
    except UsageError:
        raise
    except Exception as error:  # the library raises many kinds of errors for broken files
        raise UsageError(f"it is not GraphML: {line_of(error)}.") from None
    if not graph.is_directed() or graph.is_multigraph():
        raise UsageError("a computation is a directed graph without parallel edges.")
    usual = graph.graph["node_default"]
    nodes = {vertex_of(v): meaning(v, usual | node) for v, node in graph.nodes(data=True)}
    if not nodes:
        raise UsageError("it has no vertices; a graph has at least one.")
    return Cdag.from_nodes(nodes, [(vertex_of(u), vertex_of(v)) for u, v in edges])


def _parsed(data: bytes) -> tuple[Any, list[tuple[str, str]]]:
    """Return (the graph of networkx, its edges in the order of the file)."""
    from networkx.readwrite.graphml import GraphMLReader

    edges: list[tuple[str, str]] = []

    class Reader(GraphMLReader):
        def add_node(self, graph: Any, element: Any, *rest: Any) -> None:
            name = element.get("id")
            if name is None or name in graph:
                raise UsageError(f"vertex {name!r} is given twice." if name else "a vertex has no id.")
            if element.find(f"{{{self.NS_GRAPHML}}}graph") is not None:
                raise UsageError(f"vertex {name!r} contains a graph of its own; a computation has no nested graphs.")
            super().add_node(graph, element, *rest)

        def add_edge(self, graph: Any, element: Any, *rest: Any) -> None:
            pair = element.get("source"), element.get("target")
            for name in pair:
                if name not in graph:
                    raise UsageError(f"an edge names {str(name)[:40]!r}, which is not a vertex.")
            edges.append(pair)
            super().add_edge(graph, element, *rest)

    if b"<graphml>" in data:  # without a namespace
        data = data.replace(b"<graphml>", b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">', 1)
    found = list(Reader()(path=io.BytesIO(data)))
    if len(found) != 1:
        raise UsageError(f"it has {len(found)} graphs; a file holds one.")
    return found[0], edges


def write(graph: Cdag) -> bytes:
    """Write GraphML: vertices with the attributes of `Cdag.to_networkx`, and edges in the order of operands.

    Raises:
        UsageError: a name has a character that XML cannot contain.
    """
    from networkx.readwrite.graphml import GraphMLWriter

    class Writer(GraphMLWriter):
        def add_edges(self, _: Any, element: Any) -> None:
            element.extend([self.myElement("edge", source=str(u), target=str(v)) for u, v in graph.pairs().tolist()])

    vertices = graph.to_networkx()
    for _, node in vertices.nodes(data=True):
        if _NOT_IN_XML.search(node["label"]):
            raise UsageError(f"XML cannot contain the name {node['label']!r}; save to .json or .dot.")
        node["index"] = ",".join(map(str, node["index"]))  # GraphML has no lists
    writer = Writer(encoding="utf-8", prettyprint=True)
    writer.add_graph_element(vertices)
    return f"{writer}\n".encode()
