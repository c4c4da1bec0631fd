"""A computational graph as compact arrays: one operation for each vertex, and the predecessors in CSR form."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.game.numbering import Family
from pebblesim.graphs.edges import checked_edges, checked_ids, checked_weights, edges_once
from pebblesim.graphs.operations import Op
from pebblesim.graphs.placement import placement
from pebblesim.graphs.summation import PARTS, Role, role

if TYPE_CHECKING:
    import networkx as nx

EXPORT_LIMIT: Final = 200_000  # vertices; networkx needs about 1 kB for each
CONSTANTS: Final = ("zero", "initial", "disallowed", "empty")


# Family, row block (0 unless regrouped), index of the element, and role of the vertex within its element.
Location: TypeAlias = tuple[Family, int, tuple[int, ...], Role]


@dataclass(frozen=True, eq=False, repr=False)
class Cdag:
    """A computational directed acyclic graph.

    Attributes:
        op: an `Op` for each vertex, uint8.
        indptr: the predecessors of v are `preds[indptr[v]:indptr[v + 1]]`, the left operand first.
        preds: vertex ids, int32 where they fit.
        families: the tensors, in the order of their vertices (see `pebblesim.game.numbering`); empty for a graph from
            `from_edges`. With families, vertex ids are in topological order.
        inputs: ids of the vertices that start with a blue pebble.
        outputs: ids of the vertices that must end with one.
        results: the tensors whose elements are the outputs.
        weights: number of words of each vertex, int64; None if each has one word.
        takes_over: the vertex of which each may take over the pebble, -1 for none (see `pebblesim.graphs.in_place`).
        names: names of the vertices of a graph without families; None if the names are the numbers.
    """

    op: NDArray[np.uint8]
    indptr: NDArray[Any]
    preds: NDArray[Any]
    families: tuple[Family, ...]
    inputs: NDArray[Any]
    outputs: NDArray[Any]
    results: tuple[str, ...] = ()
    weights: NDArray[np.int64] | None = None
    takes_over: NDArray[np.int64] | None = None
    names: tuple[str, ...] | None = None

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.op)

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.preds)

    @property
    def has_usual_ends(self) -> bool:
        """Whether the inputs are exactly the sources, and the outputs exactly the sinks."""
        source, sink = np.diff(self.indptr.astype(np.int64)) == 0, np.ones(self.vertices, dtype=np.bool_)
        sink[self.preds] = False
        return all(
            np.array_equal(np.unique(ends), np.flatnonzero(usual))
            for ends, usual in ((self.inputs, source), (self.outputs, sink))
        )

    def __repr__(self) -> str:
        tensors = f", tensors {' '.join(f.name for f in self.families)}" if self.families else ""
        return f"Cdag({self.vertices:,} vertices, {self.edges:,} edges{tensors})"

    def predecessors(self, v: int) -> NDArray[Any]:
        """Ids of the predecessors of v, the left operand first."""
        return self.preds[self.indptr[v] : self.indptr[v + 1]]

    def locate(self, v: int) -> Location:
        """Return the tensor, row block, index and part of vertex v.

        Raises:
            UsageError: the vertex does not exist, or the graph has no tensors.
        """
        self._check_vertex(v)
        if not self.families:
            raise UsageError("this graph was made from edges, so its vertices belong to no tensor.")
        base, family, block = self._sections[bisect_right(self._sections, v, key=lambda section: section[0]) - 1]
        table, empty = (placement(family) if block >= 0 else None), False
        if table is None:
            terms = family.section(block)[1]
            element, offset = divmod(v - base, family.stride(terms))
        else:
            there, first = self._there[family.name, block]
            place = int(np.searchsorted(first, v, side="right")) - 1
            element, offset = int(there[place]), v - int(first[place])
            terms, empty = int(table.terms[block, element]), bool(table.constant[block, element])
        index = (element,) if len(family.shape) == 1 else divmod(element, family.shape[1])
        if block < 0:
            return family, block, index, Role("initial")
        if table is not None and empty:
            return family, block, index, Role("disallowed" if table.pairs else "empty")
        if not terms:
            return family, block, index, Role("value")
        after_terms = family.onto and offset >= terms  # numbered like a sum with a constant, but without the constant
        return family, block, index, role(offset + after_terms, terms, family.tree, family.start or family.onto)

    def pairs(self) -> NDArray[np.int64]:
        """Return the edges as (from, to) pairs, by target, left operand first; an operand used twice is one edge."""
        return edges_once(self.indptr, self.preds)

    def describe(self, v: int) -> str:
        """Return the name of vertex v; indices count from 0, terms from 1.

        For example `S[1,1]` (the final value), `S[1,1] (product 2 of 4)`, `S[1,1] (sum 2 of 4)` (the first two terms),
        `S[1,1] (sum of terms 3-4 of 4)`, `dQ[0,1] (zero)`, `T[2;0,5]` (row block 2), `vertex 7`; under a mask also
        `f[0,1] (not allowed)` and `l[3] (no terms)`.
        """
        self._check_vertex(v)
        if not self.families:
            return self.names[v] if self.names else f"vertex {v}"
        family, block, index, part = self.locate(v)
        prefix = f"{block};" if family.blocks > 1 and block >= 0 else ""
        name = f"{family.name}[{prefix}{','.join(map(str, index))}]"
        if part.kind == "value":
            return name
        if part.kind in CONSTANTS:
            return f"{name} ({PARTS[part.kind][0]})"
        if part.kind == "inner":
            return f"{name} (sum of terms {part.first + 1}-{part.stop} of {part.terms})"
        noun = "sum" if part.kind == "running" else "product" if family.op == "matmul" else "term"
        return f"{name} ({noun} {part.stop} of {part.terms})"

    def tensor(self, name: str) -> NDArray[np.int64]:
        """Return the ids of the vertices that hold a tensor's final values, in its shape; the axis of row blocks is
        first.

        Under a mask, -1 marks rows of a tensor in a loop that no iteration computes.

        Raises:
            UnknownName: the graph has no such tensor.
        """
        return roots(self._family(name))

    def evaluate(
        self, inputs: Mapping[str, ArrayLike], names: Iterable[str] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Compute every vertex in order, in float64. Return the output tensors, or the tensors in `names`.

        Under a mask 0/0 and (-inf) - (-inf) are 0, so that rows without an allowed pair are 0.

        Raises:
            UsageError: an input is missing or has the wrong shape, or the graph has no tensors.
            UnknownName: the graph has no tensor, or no input, of a given name.
        """
        from pebblesim.graphs.evaluation import evaluate

        if not self.families:
            raise UsageError("this graph was made from edges, so its vertices have no operations.")
        wanted = {name: self.tensor(name) for name in (self.results if names is None else names)}
        input_families = {f.name: f for f in self.families if f.op == "input"}
        for name in inputs:
            if name not in input_families:
                raise UnknownName("input", name, input_families)
        values = np.zeros(self.vertices)
        for name, family in input_families.items():
            if name not in inputs:
                raise UsageError(f"input {name} is missing; this graph needs {', '.join(input_families)}.")
            array = np.asarray(inputs[name], dtype=np.float64)
            if array.shape != family.shape:
                raise UsageError(f"input {name} has shape {array.shape}, but this graph was built for {family.shape}.")
            values[family.base : family.base + family.size] = array.ravel()
        evaluate(self.op, self.indptr, self.preds, values, any(f.table is not None for f in self.families))
        return {name: np.where(ids < 0, np.nan, values[ids]) for name, ids in wanted.items()}

    @classmethod
    def from_edges(
        cls,
        n: int,
        edges: ArrayLike,
        inputs: ArrayLike | None = None,
        outputs: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> Cdag:
        """Make a graph from vertices 0 ... n-1, which keep their numbers, and edges, which are (from, to) pairs.

        Args:
            n: number of vertices.
            edges: pairs; predecessors keep the order of the edges.
            inputs, outputs: vertex numbers; by default the sources and the sinks.
            weights: number of words of each vertex, 1 or more; 1 by default.
            names: names of the vertices.

        Raises:
            UsageError: a vertex is out of range or has no name, an edge is not a pair or is given twice, there is a
                cycle, or a weight is not a positive whole number.
        """
        if names is not None and len(names) != n:
            raise UsageError(f"{len(names)} names were given for {n} vertices; give each vertex a name.")
        source, target = checked_edges(n, edges, names)
        indegree, outdegree = np.bincount(target, minlength=n), np.bincount(source, minlength=n)
        return cls(
            op=np.full(n, Op.GENERIC, dtype=np.uint8),
            indptr=np.append(0, np.cumsum(indegree)).astype(index_dtype(len(source), unsigned=True)),
            preds=source.astype(index_dtype(n)),
            families=(),
            inputs=np.flatnonzero(indegree == 0) if inputs is None else np.unique(checked_ids(n, inputs, "inputs")),
            outputs=np.flatnonzero(outdegree == 0)
            if outputs is None
            else np.unique(checked_ids(n, outputs, "outputs")),
            weights=checked_weights(n, weights),
            names=None if names is None else tuple(names),
        )

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph, weight: str = "words") -> Cdag:
        """Convert a networkx graph. Nodes 0 ... n-1 keep their numbers; other nodes are numbered in order, and keep
        their names.

        Args:
            graph: directed and acyclic, without parallel edges. If any node has an `input` attribute, the nodes where
                it is true are the inputs; otherwise the sources are. The same holds for `output` and the sinks. A
                `label` is the node's name.
            weight: the attribute with a node's number of words; a node without it has one word.

        Raises:
            UsageError: it is undirected or has parallel edges or a cycle, or a weight is not a positive whole number.
        """
        if not getattr(graph, "is_directed", bool)() or graph.is_multigraph():
            raise UsageError(f"a computation is a directed graph without parallel edges, not a {type(graph).__name__}.")
        return cls.from_nodes(dict(graph.nodes(data=True)), graph.edges(), weight)

    @classmethod
    def from_nodes(
        cls, nodes: Mapping[Any, Mapping[str, Any]], edges: Iterable[tuple[Any, Any]], weight: str = "words"
    ) -> Cdag:
        """Make a graph from nodes with attributes and edges between them; see `from_networkx`."""
        n = len(nodes)
        numbered = all(type(key) is int and 0 <= key < n for key in nodes)
        keys = range(n) if numbered else nodes
        number = {key: v for v, key in enumerate(keys)}
        pairs = np.array([(number[u], number[v]) for u, v in edges], dtype=np.int64).reshape(-1, 2)
        ends = {
            end: [number[key] for key, node in nodes.items() if node.get(end)]
            if any(end in node for node in nodes.values())
            else None
            for end in ("input", "output")
        }
        named = not numbered or any("label" in node for node in nodes.values())
        return cls.from_edges(
            n,
            pairs,
            ends["input"],
            ends["output"],
            weights=[nodes[key].get(weight, 1) for key in keys]
            if any(weight in node for node in nodes.values())
            else None,
            names=[str(nodes[key].get("label", key)) for key in keys] if named else None,
        )

    def to_networkx(self) -> nx.DiGraph:
        """Convert to networkx: nodes have `op`, `tensor`, `index`, `label`, `input` and `output`; edges have no
        attributes, and an operand that is used twice is one edge.

        If the graph has weights, nodes also have `words`.

        Raises:
            UsageError: it has more than `EXPORT_LIMIT` vertices.
        """
        import networkx as nx

        if self.vertices > EXPORT_LIMIT:
            raise UsageError(
                f"a graph of {self.vertices:,} vertices is too large to export (at most {EXPORT_LIMIT:,}); "
                "use smaller sizes, or use its arrays `op`, `indptr` and `preds`."
            )
        inputs, outputs = set(self.inputs.tolist()), set(self.outputs.tolist())
        graph = nx.DiGraph()
        for v, op in enumerate(self.op.tolist()):
            family, _, index, _ = self.locate(v) if self.families else (None, 0, (), None)
            graph.add_node(
                v,
                op=Op(op).name.lower(),
                tensor=family.name if family else "",
                index=index,
                label=self.describe(v),
                input=v in inputs,
                output=v in outputs,
                **({} if self.weights is None else {"words": int(self.weights[v])}),
            )
        graph.add_edges_from(self.pairs().tolist())
        return graph

    def _check_vertex(self, v: int) -> None:
        if not 0 <= v < self.vertices:
            raise UsageError(f"there is no vertex {v}; this graph has vertices 0 to {self.vertices - 1}.")

    def _family(self, name: str) -> Family:
        for family in self.families:
            if family.name == name:
                return family
        raise UnknownName("tensor", name, (f.name for f in self.families))

    @cached_property
    def _sections(self) -> list[tuple[int, Family, int]]:
        return sections(self.families)

    @cached_property
    def _there(self) -> dict[tuple[str, int], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Under a mask, for each block of each family: elements with their own vertices, and the first vertices."""
        tables = [(family, table) for family in self.families if (table := placement(family))]
        blocks = [(family.name, block, table) for family, table in tables for block in range(family.blocks)]
        return {(name, b): (there := table.there(b), table.first[b, there]) for name, b, table in blocks}


def sections(families: Iterable[Family]) -> list[tuple[int, Family, int]]:
    """Return (first vertex, family, block) of every block with vertices, in the order of the vertices."""
    blocks = []
    for family in families:
        table = placement(family)
        for block in range(0 if family.initial is None else -1, family.blocks):
            if table is None or block < 0:
                blocks.append((family.section(block)[0], family, block))
            elif (there := table.there(block)).size:
                blocks.append((int(table.first[block, there[0]]), family, block))
    return sorted(blocks, key=lambda section: section[0])


def section_roots(family: Family, block: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Return the ids of the vertices with the final values of a block, in its shape; -1 if there is none."""
    table = placement(family)
    if table is not None and block >= 0:
        return table.roots[block].astype(dtype).reshape(family.shape)
    base, terms = family.section(block)
    return (np.arange(1, family.elements + 1, dtype=dtype) * family.stride(terms) + (base - 1)).reshape(family.shape)


def latest_roots(family: Family, behind: int, dtype: DTypeLike = np.int64, first: int = 0) -> NDArray[Any]:
    """Return the ids of the final values of a running family's last block before block `behind`, from block `first` on;
    where there is none, those of its constants.

    Under a mask this block differs from row to row. Later blocks have higher ids.
    """
    if family.table is None:
        return section_roots(family, behind - 1 if behind > first else -1, dtype)
    blocks = [*([] if family.initial is None else [-1]), *range(first, behind)]
    return np.maximum.reduce([section_roots(family, block, dtype) for block in blocks])


def roots(family: Family, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Return the ids of the vertices with a family's final values, in its shape; row blocks are the first axis if
    regrouped.

    For a running family these are the values of the last block.
    """
    if family.running:
        return latest_roots(family, family.blocks, dtype)
    if family.blocks == 1:
        return section_roots(family, 0, dtype)
    return np.stack([section_roots(family, block, dtype) for block in range(family.blocks)])


def index_dtype(largest: int, unsigned: bool = False) -> np.dtype[Any]:
    """Return the smallest integer type, of 32 or 64 bits, that holds 0 to `largest`."""
    small = np.dtype(np.uint32 if unsigned else np.int32)
    return small if largest <= np.iinfo(small).max else np.dtype(np.int64)
