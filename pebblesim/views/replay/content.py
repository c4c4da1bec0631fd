"""The data of the page: graphs, games and rules as plain data, long arrays as base64 of little-endian numbers."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from pebblesim.api.glossary import Entry, glossary
from pebblesim.api.rules_in_words import MOVES, in_words
from pebblesim.game import rules as tables
from pebblesim.game.moves import KINDS
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.layers import inside, levels
from pebblesim.language.problems import Problem
from pebblesim.views.recording import Recording

FLAGS: Final = ("RED", "BLUE", "COMPUTED", "WRITTEN", "INPUT", "COMPLETE")
SWEEPS: Final = 4


def rules(name: str) -> dict[str, Any]:
    """Return a set of rules: the referee's table, with the names of flags, and the five lines of text."""

    def names(flags: int) -> list[str]:
        return [flag.lower() for flag in FLAGS if flags & getattr(tables, flag)]

    rows = tables.RULES[name]
    table = [{column: names(flags) for column, flags in rows[kind]._asdict().items()} for kind in range(len(KINDS))]
    return {"name": name, "table": table, "byTerm": name in tables.BY_TERM, "lines": list(in_words(name))}


def words() -> dict[str, Any]:
    """Return the names of the four moves, and a sentence for each."""
    return {"kinds": KINDS, "sentences": [MOVES[kind] for kind in range(len(KINDS))]}


def of_graph(graph: Cdag, entries: Iterable[Entry] = ()) -> dict[str, Any]:
    """Return a graph: its tensors, in the layers of a drawing, and the position of each vertex in its tensor.

    A tensor is a matrix of cells; a vertex has a cell and a position in it. A graph without tensors is one such matrix,
    with a column for each layer.
    """
    tensors, arrays = _of_tensors(graph, {entry.name: entry for entry in entries}) if graph.families else _plain(graph)
    arrays |= {
        "indptr": (graph.indptr, "<u4"),
        "preds": (graph.preds, "<u4"),
        "inputs": (graph.inputs, "<u4"),
        "outputs": (graph.outputs, "<u4"),
    }
    if graph.weights is not None:
        arrays["words"] = (graph.weights, "<u4")
    return {"tensors": tensors["tensors"], "tails": tensors["tails"], "names": tensors["names"], **_packed(arrays)}


def _of_tensors(graph: Cdag, entries: Mapping[str, Entry]) -> tuple[dict[str, Any], dict[str, Any]]:
    n = graph.vertices
    number = {family.name: index for index, family in enumerate(graph.families)}
    tensor, block = np.empty(n, np.uint16), np.empty(n, np.int64)
    index, place = np.zeros((n, 2), np.int64), np.empty((n, 2), np.float32)
    value, tail, tails = np.empty(n, bool), np.empty(n, np.uint32), dict[tuple[str, str], int]()
    for v in range(n):
        family, block[v], at, part = graph.locate(v)
        tensor[v] = number[family.name]
        index[v, : len(at)] = at
        place[v] = inside(family, part)
        value[v] = part.kind in ("value", "disallowed", "empty")
        called = re.fullmatch(r"\w+\[(\d+;)?[\d,]+\](.*)", graph.describe(v))
        assert called is not None
        tail[v] = tails.setdefault((called[1] or "", called[2]), len(tails))
    cell, made, first = np.empty(n, np.uint32), [], 0
    for level, family in zip(_late(graph.families), graph.families, strict=True):
        mine = np.flatnonzero(tensor == number[family.name])
        rows, width = family.shape[0], family.shape[1] if len(family.shape) == 2 else 1
        before = int(block[mine].min(initial=0))  # the constants that running values start from come in front
        columns = width * (int(block[mine].max(initial=0)) - before + 1)
        cell[mine] = first + index[mine, 0] * columns + (block[mine] - before) * width + index[mine, 1]
        place[mine] -= place[mine].min(axis=0, initial=0)
        deep, tall = (float(size) + 1 for size in place[mine].max(axis=0, initial=0))
        entry = entries.get(family.name)
        role = "input" if family.op == "input" else "output" if family.name in graph.results else ""
        made.append(
            {
                "name": family.name,
                "role": role,
                "formula": entry.formula if entry else "",
                "meaning": entry.meaning if entry else "",
                "vector": len(family.shape) == 1,
                "width": width,
                "rows": rows,
                "columns": columns,
                "cell": first,
                "level": level,
                "deep": deep,
                "tall": tall,
            }
        )
        first += rows * columns
    arrays = {
        "tensor": (tensor, "<u2"),
        "cell": (cell, "<u4"),
        "place": (place.ravel(), "<f4"),
        "value": (value, "<u1"),
        "tail": (tail, "<u4"),
    }
    return {"tensors": made, "tails": list(tails), "names": None}, arrays


def _late(families: Any) -> list[int]:
    """Return the layer of each tensor; an input is in the layer just before the first tensor that needs it."""
    level = levels(families)
    needed = {family.name: at for family, at in zip(families, level, strict=True)}
    first: dict[str, int] = {}
    for family in families:
        for operand in family.operands:
            name = operand.partition(".")[0]
            first[name] = min(first.get(name, len(families)), needed[family.name])
    return [
        max(0, first.get(family.name, 1) - 1) if family.op == "input" else at
        for family, at in zip(families, level, strict=True)
    ]


def _plain(graph: Cdag) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrange a graph without tensors in layers, inputs first; neighbours in a layer have near predecessors."""
    from pebblesim.graphs.topology import topological

    n = graph.vertices
    indptr, preds = graph.indptr.astype(np.int64), graph.preds.astype(np.int64)
    layer = np.zeros(n, np.int64)
    for v in topological(indptr, preds).tolist():
        layer[v] = 1 + layer[preds[indptr[v] : indptr[v + 1]]].max(initial=-1)
    targets = np.repeat(np.arange(n), np.diff(indptr))
    late = np.full(n, n)
    np.minimum.at(late, preds, layer[targets] - 1)
    start = (np.diff(indptr) == 0) & (late < n)
    layer[start] = late[start]
    members = [np.flatnonzero(layer == at) for at in range(int(layer.max(initial=-1)) + 1)]
    height = np.empty(n)
    for member in members:
        height[member] = np.arange(len(member)) - (len(member) - 1) / 2
    for sweep in range(SWEEPS):
        ends = (preds, targets) if sweep % 2 == 0 else (targets, preds)
        for each in members if sweep % 2 == 0 else reversed(members):
            total, count = (
                np.bincount(ends[1], weights, minlength=n)[each] for weights in (height[ends[0]], np.ones(len(preds)))
            )
            wanted = np.where(count > 0, total / np.maximum(count, 1), height[each])
            height[each[np.argsort(wanted, kind="stable")]] = np.arange(len(each)) - (len(each) - 1) / 2
    rows, columns = max(map(len, members), default=0), len(members)
    lowered = height + (rows - 1) / 2
    row = np.floor(lowered).astype(np.int64)
    tensor = {
        "name": "",
        "role": "",
        "formula": "",
        "meaning": "",
        "vector": False,
        "width": columns,
        "rows": rows,
        "columns": columns,
        "cell": 0,
        "level": 0,
        "deep": 1.0,
        "tall": 1.0,
    }
    arrays = {
        "tensor": (np.zeros(n), "<u2"),
        "cell": (row * columns + layer, "<u4"),
        "place": (np.stack([np.zeros(n), lowered - row], axis=1).ravel(), "<f4"),
        "value": (np.ones(n), "<u1"),
        "tail": (np.zeros(n), "<u4"),
    }
    return {"tensors": [tensor], "tails": [("", "")], "names": [graph.describe(v) for v in range(n)]}, arrays


def of_game(game: Recording, par: Mapping[str, Any] | None = None, solves: Problem | None = None) -> dict[str, Any]:
    """Return a game, with the graph it is played on.

    Args:
        game: the game.
        par: the known bounds on the least I/O on its graph.
        solves: the problem of the graph; its glossary explains the tensors.
    """
    outcome = game.game
    solves = game.run.schedule.problem if game.run else solves
    entries = glossary(solves) if solves else ()
    return {
        "title": game.title,
        "name": game.name.partition(",")[0],
        "verdict": str(outcome).rpartition("verdict")[2].strip(),
        "complete": outcome.complete,
        "violation": outcome.violation.message if outcome.violation else None,
        "M": outcome.M,
        "rules": rules(outcome.rules),
        "par": par,
        "text": game.text,
        "phases": game.phases,
        "graph": of_graph(game.graph, entries),
        **_packed(
            {
                "moves": (game.moves, "<u4"),
                "starts": (game.starts, "<u4"),
                "lines": (game.lines, "<u4"),
                "turns": (game.turns.ravel(), "<u4"),
            }
        ),
    }


def _packed(arrays: Mapping[str, tuple[ArrayLike, str]]) -> dict[str, Any]:
    packed = {name: np.asarray(array).astype(kind).tobytes() for name, (array, kind) in arrays.items()}
    return {"arrays": {name: base64.b64encode(data).decode() for name, data in packed.items()}}
