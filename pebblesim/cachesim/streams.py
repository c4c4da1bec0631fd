"""Streams without a schedule: traces of other programs, and graphs whose vertices are computed in some order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pebblesim.cachesim.requests import (
    MOST_REQUESTS,
    MOST_WORDS,
    READ,
    UPDATE,
    WRITE,
    Part,
    StoredMatrix,
    Stream,
    StreamInParts,
)
from pebblesim.core.errors import UsageError, as_given

if TYPE_CHECKING:
    from pebblesim.graphs.cdag import Cdag

NOTHING = np.empty(0, np.uint8)


def of_ids(ids: Any, sizes: Any = None, kinds: Any = None) -> Stream:
    """Make a stream from integers that name objects.

    Args:
        ids: the object of each request; any integers.
        sizes: the size of the object at each request, 1 by default; if the size changes, the largest is used.
        kinds: READ, WRITE or UPDATE for each; all reads by default.

    Raises:
        UsageError: the ids, sizes or kinds are not such numbers, there are too many, or a size is less than 1 or too
            large.
    """
    requested = _whole_numbers(ids, "a stream")
    if any(other is not None and len(other) != len(requested) for other in (sizes, kinds)):
        raise UsageError(
            f"the stream has {len(requested):,} requests; give a size and a kind for each request, or for none."
        )
    if len(requested) > MOST_REQUESTS:
        raise UsageError(f"the stream has {len(requested):,} requests; {MOST_REQUESTS:,} is the most.")
    numbers = None
    if len(requested) and (int(requested.min()) < 0 or int(requested.max()) >= max(2**16, 2 * len(requested))):
        numbers, requested = np.unique(requested, return_inverse=True)  # numbered anew, in their order
    dense = np.ascontiguousarray(requested, np.int32)
    items = int(dense.max()) + 1 if len(dense) else 0
    largest = np.ones(items, np.int64)
    if sizes is not None:
        words = _whole_numbers(sizes, "the sizes of a stream")
        if len(words) and (int(words.min()) < 1 or int(words.max()) >= MOST_WORDS):
            raise UsageError("an object of the stream has a size of less than 1, or of 2^62 or more.")
        np.maximum.at(largest, dense, words.astype(np.int64))
    made = NOTHING
    if kinds is not None:
        made = _whole_numbers(kinds, "the kinds of a stream")
        if not np.isin(made, (READ, WRITE, UPDATE)).all():
            raise UsageError(f"the kind of a request is {READ} (read), {WRITE} (overwritten) or {UPDATE} (both).")
    return Stream(dense, made.astype(np.uint8), largest, np.empty(0, bool), numbers=numbers)


def _whole_numbers(given: Any, what: str) -> Any:
    array = np.asarray(given)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise UsageError(f"{what} must be a one-dimensional array of whole numbers of 64 bits, one for each request.")
    return array


def of_graph(graph: Cdag, order: Any = None) -> Stream:
    """Make the stream of a graph without a scratchpad: the predecessors of each vertex are read, then it is written.

    Args:
        graph: a computational DAG; sources are in memory; computing them makes no request.
        order: vertices in the order in which they are computed, predecessors first; inputs may be left out. By default
            that of their numbers.

    Raises:
        UsageError: the order misses a vertex, repeats one, or has one before a predecessor.
    """
    there = np.zeros(graph.vertices, bool)
    there[np.asarray(graph.inputs, np.int64)] = True
    try:
        computed = np.arange(graph.vertices) if order is None else np.array(order, np.int64, ndmin=1)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"order = {as_given(order)} was given; order must be the numbers of vertices.") from None
    if len(computed) and (computed.min() < 0 or computed.max() >= graph.vertices):
        raise UsageError(f"the order names a vertex that the graph does not have; it has 0 … {graph.vertices - 1}.")
    computed = computed[~there[computed]]
    position = np.where(there, -1, graph.vertices)
    position[computed] = np.arange(len(computed))
    if len(np.unique(computed)) != len(computed) or (position == graph.vertices).any():
        raise UsageError("the order must contain each vertex that is not an input exactly once.")
    begins, ends = graph.indptr[computed].astype(np.int64), graph.indptr[computed + 1].astype(np.int64)
    terms = ends - begins
    last = np.cumsum(terms + 1) - 1  # position of the vertex itself
    ids, kinds = np.empty(int((terms + 1).sum()), np.int32), np.full(int((terms + 1).sum()), READ, np.uint8)
    ids[last], kinds[last] = computed, WRITE
    of_term = np.repeat(np.arange(len(computed)), terms)
    within = np.arange(len(of_term)) - np.repeat(np.cumsum(terms) - terms, terms)
    ids[kinds == READ] = graph.preds[begins[of_term] + within]
    if (position[ids[kinds == READ]] >= of_term).any():
        raise UsageError("the order computes a vertex before one of its predecessors.")
    kept = np.zeros(graph.vertices, bool)
    kept[np.asarray(graph.outputs, np.int64)] = True
    return Stream(ids, kinds, np.ones(graph.vertices, np.int64), kept)


def one_after_another(streams: Sequence[StreamInParts], sharing: int = 1, shared: Sequence[str] = ()) -> StreamInParts:
    """The requests of heads, one head after the other.

    Args:
        streams: of each head, by `pebblesim.cachesim.accesses`.
        sharing: so many heads in turn have the same items of some tensors; all others are their own.
        shared: the names of these tensors.

    Raises:
        UsageError: there are too many requests, or the heads that share a tensor cut it into other tiles.
    """
    number = sum(map(len, streams))
    if number > MOST_REQUESTS:
        raise UsageError(
            f"{number:,} requests of all heads are too many to go through, {MOST_REQUESTS:,} is the most; take larger "
            "blocks, or fewer heads."
        )
    parts: list[Part] = []
    places: list[StoredMatrix] = []
    end = 0
    for head, stream in enumerate(streams):
        if head % sharing == 0:
            common: dict[str, StoredMatrix] = {}
        moved = np.empty(len(stream.sizes), np.int32)
        for place in stream.places:
            new = common.get(place.name)
            if new is None:
                new = replace(place, first=end)
                places.append(new)
                end += new.items
                if place.name in shared and sharing > 1:
                    common[place.name] = new
            elif new != replace(place, first=new.first):
                raise UsageError(
                    f"heads that share {place.name} cut it into tiles of different sizes; give their blocks."
                )
            moved[place.first : place.first + place.items] = new.first + np.arange(place.items)
        parts += stream.renamed(moved)
    sizes = np.concatenate([place.sizes() for place in places])
    kept = np.concatenate([np.full(place.items, place.kept) for place in places])
    return StreamInParts(parts, sizes, kept, tuple(places))
