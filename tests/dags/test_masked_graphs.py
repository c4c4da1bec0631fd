"""Graphs under a mask: against a slow builder that follows `pebblesim.game.numbering`, and the references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

from pebblesim import graphs
from pebblesim.core import memory
from pebblesim.core.errors import UsageError
from pebblesim.dags.formats import save_graph as save
from pebblesim.game.numbering import Family
from pebblesim.graphs import masked as masked_module
from pebblesim.graphs.builder import Builder
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.operations import Op
from pebblesim.language.problems import problem
from pebblesim.language.registry import SCHEDULES, Schedule

Index = tuple[int, ...]
Terms = dict[int, list[str]]  # the predecessors of each term, by its index in the summed dimension

MASKABLE = {name: each for name, each in SCHEDULES.items() if each.maskable}


class Slow:
    """A graph of chains as a dictionary from descriptions to those of the predecessors, in vertex order."""

    def __init__(self, allowed: Any) -> None:
        self.n, self.allowed = len(allowed), allowed.tolist()
        self.preds: dict[str, list[str]] = {}
        self.places: dict[tuple[str, int, Index], tuple[int, list[int]]] = {}  # first vertex, indices of the terms
        self.values: dict[tuple[str, int, Index], str] = {}

    def __call__(self, name: str, *index: int, block: int = 0) -> str:
        """The vertex that holds a value."""
        return self.values[name, block, index]

    def keys(self, i: int) -> list[int]:
        return [j for j in range(self.n) if self.allowed[i][j]]

    def queries(self, j: int) -> list[int]:
        return [i for i in range(self.n) if self.allowed[i][j]]

    def entry(self, name: str, index: Index, preds: list[str], note: str = "", block: str = "", at: int = 0) -> None:
        """A vertex that is all of its element; `block` is the number of its block, if it has several."""
        self.places[name, at, index] = len(self.preds), []
        self.values[name, at, index] = f"{name}[{block}{','.join(map(str, index))}]{note}"
        self.preds[self(name, *index, block=at)] = preds

    def total(
        self, name: str, index: Index, terms: Terms, start: bool = False, onto: str = "", block: str = "", at: int = 0
    ) -> None:
        """A sum: its terms, the constant, the partial sums."""
        label, k = f"{name}[{block}{','.join(map(str, index))}]", len(terms)
        if not terms and not onto:
            return self.entry(name, index, [], " (no terms)", block, at)
        if not terms:
            self.places[name, at, index] = -1, []
            self.values[name, at, index] = onto
            return None
        self.places[name, at, index] = len(self.preds), list(terms)
        noun = "product" if len(next(iter(terms.values()))) == 2 else "term"
        found = [(f"{label} ({noun} {u} of {k})", preds) for u, preds in enumerate(terms.values(), 1)]
        held, *rest = [name for name, _ in found]
        if start or onto:
            rest = [held, *rest]
            held = onto or f"{label} (zero)"
            found += [] if onto else [(held, [])]
        for done, term in enumerate(rest, k - len(rest) + 1):
            found.append((f"{label} (sum {done} of {k})", [held, term]))
            held = found[-1][0]
        self.preds.update([*found[:-1], (label, found[-1][1])])
        self.values[name, at, index] = label
        return None

    # whole tensors

    def inputs(self, **shapes: Index) -> None:
        for name, shape in shapes.items():
            for index in product(*map(range, shape)):
                self.entry(name, index, [])

    def sums(self, name: str, shape: Index, terms: Callable[..., Terms], start: bool = False) -> None:
        for index in product(*map(range, shape)):
            self.total(name, index, terms(*index), start)

    def product(self, name: str, left: str, right: str, rows: int, inner: int, columns: int) -> None:
        """A product that no mask concerns."""
        self.sums(name, (rows, columns), lambda i, j: {u: [self(left, i, u), self(right, u, j)] for u in range(inner)})

    def by_rows(self, name: str, left: str, right: str, rows: int, inner: int, columns: int) -> None:
        """left rightᵀ, which no mask concerns."""
        self.sums(name, (rows, columns), lambda i, j: {u: [self(left, i, u), self(right, j, u)] for u in range(inner)})

    def scores(self, name: str, left: str, right: str, d: int) -> None:
        """left rightᵀ, over pairs."""
        for i, j in product(range(self.n), repeat=2):
            if self.allowed[i][j]:
                self.total(name, (i, j), {u: [self(left, i, u), self(right, j, u)] for u in range(d)})
            else:
                self.entry(name, (i, j), [], " (not allowed)")

    def each_pair(self, name: str, *operands: str | Callable[[int, int], str]) -> None:
        """Entry by entry; an operand with a "|" is a vector, by row."""

        def entry(operand: str | Callable[[int, int], str], i: int, j: int) -> str:
            if callable(operand):
                return operand(i, j)
            return self(operand[:-1], i) if operand.endswith("|") else self(operand, i, j)

        for i, j in product(range(self.n), repeat=2):
            if self.allowed[i][j]:
                self.entry(name, (i, j), [entry(operand, i, j) for operand in operands])
            else:
                self.entry(name, (i, j), [], " (not allowed)")

    def each_row(self, name: str, shape: Index, preds: Callable[..., list[str]], empty: Callable[[int], bool]) -> None:
        """Entry by entry; a constant in rows that are empty."""
        for index in product(*map(range, shape)):
            if empty(index[0]):
                self.entry(name, index, [], " (no terms)")
            else:
                self.entry(name, index, preds(*index))

    def row_sums(self, name: str, operand: str) -> None:
        self.sums(name, (self.n,), lambda i: {j: [self(operand, i, j)] for j in self.keys(i)})

    def over_keys(self, name: str, left: str, right: str, d: int, start: bool = False) -> None:
        """left right, for pairs on the left."""
        self.sums(
            name, (self.n, d), lambda i, c: {j: [self(left, i, j), self(right, j, c)] for j in self.keys(i)}, start
        )

    def over_queries(self, name: str, left: str, right: str, d: int) -> None:
        """leftᵀ right, for pairs on the left."""
        self.sums(name, (self.n, d), lambda j, c: {i: [self(left, i, j), self(right, i, c)] for i in self.queries(j)})


def qkv(s: Slow, d: int, projected: bool, absorbed: str = "") -> tuple[str, str, str]:
    """Q, K and V, or what is in their place in scores and values where weights are absorbed."""
    if not projected:
        s.inputs(Q=(s.n, d), K=(s.n, d), V=(s.n, d))
        return "Q", "K", "V"
    for source, name in (("A1", "Q"), ("A2", "K"), ("A3", "V")):
        s.inputs(**{source: (s.n, d), f"W_{name}": (d, d)})
    for source, name in (("A1", "Q"), ("A2", "K"), ("A3", "V")):
        if f"W_{name}" not in absorbed:
            s.product(name, source, f"W_{name}", s.n, d, d)
    values = "A3" if "W_V" in absorbed else "V"
    if "W_K" in absorbed:
        s.by_rows("QW", "Q", "W_K", s.n, d, d)
        return "QW", "A2", values
    if "W_Q" in absorbed:
        s.by_rows("KW", "K", "W_Q", s.n, d, d)
        return "A1", "KW", values
    return "Q", "K", values


def slow_forward(
    s: Slow,
    d: int,
    softmax: str = "early",
    column_block: int = 0,
    row_block: int = 0,
    projected: bool = False,
    absorbed: str = "",
    outputs: Any = None,
) -> None:
    queries, keys, values = qkv(s, d, projected, absorbed)
    s.scores("S", queries, keys, d)
    if softmax.startswith("flash"):
        return slow_flash(s, d, softmax, column_block, row_block)
    if softmax == "safe":
        s.sums("m", (s.n,), lambda i: {j: [s("S", i, j)] for j in s.keys(i)})
        s.each_pair("Sm", "S", "m|")
    s.each_pair("A", "Sm" if softmax == "safe" else "S")
    l = "l_m" if softmax == "safe" else "l"
    s.row_sums(l, "A")
    result = "PA" if "W_V" in absorbed else "O"
    if softmax == "late":
        s.over_keys("AV", "A", values, d)
        s.each_row(result, (s.n, d), lambda i, c: [s("AV", i, c), s("l", i)], lambda i: not s.keys(i))
    else:
        s.each_pair("P", "A", l + "|")
        s.over_keys(result, "P", values, d)
    if result == "PA":
        s.product("O", "PA", "W_V", s.n, d, d)
    return None


def slow_flash(s: Slow, d: int, softmax: str, width: int, height: int) -> None:
    n, blocks = s.n, -(-s.n // width)

    def columns(block: int) -> range:
        return range(block * width, min(n, (block + 1) * width))

    def made(i: int, block: int) -> bool:
        first = i - i % height
        return any(s.allowed[r][j] for r in range(first, min(n, first + height)) for j in columns(block))

    def latest(name: str, *index: int, before: int = blocks) -> str:
        steps = [block for block in range(before) if made(index[0], block)]
        return s(name, *index, block=steps[-1] if steps else -1)

    def loop(*families: tuple[str, Index, Callable[..., list[str] | Terms], Callable[..., str] | None]) -> None:
        """Families as (name, shape, predecessors of element and block, what a sum is added to)."""
        for block in range(blocks):
            for name, shape, preds, onto in families:
                for index in product(*map(range, shape)):
                    if made(index[0], block):
                        found, prefix = preds(block, *index), f"{block};" * (blocks > 1)
                        if isinstance(found, dict):
                            value = onto(block, *index) if onto else ""
                            s.total(name, index, found, onto=value, block=prefix, at=block)
                        else:
                            s.entry(name, index, found, block=prefix, at=block)

    def initial(*families: tuple[str, Index]) -> None:
        for name, shape in families:
            for index in product(*map(range, shape)):
                s.entry(name, index, [], " (initial)", at=-1)

    def seen(i: int, block: int) -> list[int]:
        return [j for j in columns(block) if s.allowed[i][j]]

    def of(*names: str) -> Callable[..., list[str]]:
        """Operands of an element; "x|" is a vector, "x<" the one of the step before."""

        def preds(b: int, i: int, *c: int) -> list[str]:
            found = []
            for name in names:
                index = (i,) if "|" in name else (i, *c)
                plain = name.strip("|<")
                found.append(latest(plain, *index, before=b) if "<" in name else s(plain, *index, block=b))
            return found

        return preds

    v, w = (n,), (n, d)
    m_block = ("m_block", v, lambda b, i: {j: [s("S", i, j)] for j in seen(i, b)}, None)
    if softmax == "flash1":
        loop(m_block)
        s.each_pair("Sm", "S", lambda i, j: s("m_block", i, block=j // width))
        s.each_pair("A", "Sm")
        initial(("m", v), ("l_m", v), ("O", w))
        loop(
            ("l_block", v, lambda b, i: {j: [s("A", i, j)] for j in seen(i, b)}, None),
            ("m", v, of("m<", "m_block"), None),
            ("down", v, of("m<", "m"), None),
            ("a", v, of("down"), None),
            ("down_block", v, of("m_block", "m"), None),
            ("a_block", v, of("down_block"), None),
            ("al", v, of("a", "l_m<"), None),
            ("al_block", v, of("a_block", "l_block"), None),
            ("l_m", v, of("al", "al_block"), None),
            ("AV", w, lambda b, i, c: {j: [s("A", i, j), s("V", j, c)] for j in seen(i, b)}, None),
            ("aAV", w, of("a_block|", "AV"), None),
            ("alO", w, of("al|", "O<"), None),
            ("lO", w, of("alO", "aAV"), None),
            ("O", w, of("lO", "l_m|"), None),
        )
        return
    initial(("m", v))
    loop(m_block, ("m", v, of("m<", "m_block"), None), ("down", v, of("m<", "m"), None), ("a", v, of("down"), None))
    s.each_pair("Sm", "S", lambda i, j: s("m", i, block=j // width))
    s.each_pair("A", "Sm")
    initial(("l_m", v), ("lO", w))
    loop(
        ("al", v, of("a", "l_m<"), None),
        ("l_m", v, lambda b, i: {j: [s("A", i, j)] for j in seen(i, b)}, lambda b, i: s("al", i, block=b)),
        ("aO", w, of("a|", "lO<"), None),
        (
            "lO",
            w,
            lambda b, i, c: {j: [s("A", i, j), s("V", j, c)] for j in seen(i, b)},
            lambda b, i, c: s("aO", i, c, block=b),
        ),
    )

    def empty(i: int) -> bool:
        return not any(made(i, block) for block in range(blocks))

    s.each_row("O", w, lambda i, c: [latest("lO", i, c), latest("l_m", i)], empty)
    s.each_row("log_l", v, lambda i: [latest("l_m", i)], empty)
    s.each_row("L", v, lambda i: [latest("m", i), s("log_l", i)], empty)


def slow_backward(
    s: Slow,
    d: int,
    order: str = "T",
    kept: bool = False,
    centred: bool = False,
    row_block: int | None = None,
    dQ_block: int | None = None,
    g_block: int | None = None,
    absorbed: str = "",
    leave_out: bool = False,
) -> None:
    n = s.n
    s.inputs(A1=(n, d), A2=(n, d), A3=(n, d), dO=(n, d), X=(d, d), Y=(d, d))
    if kept:
        s.inputs(O=(n, d), l=(n,))
    if "X" in absorbed:
        s.by_rows("A2X", "A2", "X", n, d, d)
        s.scores("Z", "A1", "A2X", d)
    else:
        s.product("S", "A1", "X", n, d, d)
        s.scores("Z", "S", "A2", d)
    s.each_pair("A", "Z")
    if not kept:
        s.row_sums("l", "A")
    if order != "one-pass":
        s.each_pair("f", "A", "l|")
    if "Y" in absorbed:
        s.by_rows("dOY", "dO", "Y", n, d, d)
        s.scores("q", "dOY", "A3", d)
    else:
        s.product("h", "A3", "Y", n, d, d)
        s.scores("q", "dO", "h", d)
    if order == "one-pass":

        def empty(i: int) -> bool:
            return not s.keys(i)

        s.each_pair("Aq", "A", "q")
        s.row_sums("w", "Aq")
        s.over_keys("U1", "Aq", "A2", d)
        s.over_keys("U2", "A", "A2", d)
        s.each_row("wl", (n,), lambda i: [s("w", i), s("l", i)], empty)
        s.each_row("wU", (n, d), lambda i, c: [s("wl", i), s("U2", i, c)], empty)
        s.each_row("U", (n, d), lambda i, c: [s("U1", i, c), s("wU", i, c)], empty)
        s.each_row("dQ", (n, d), lambda i, c: [s("U", i, c), s("l", i)], empty)
    else:
        if not (centred and kept):
            s.each_pair("fq", "f", "q")
        if kept:
            s.each_row("dOO", (n, d), lambda i, c: [s("dO", i, c), s("O", i, c)], lambda i: False)
            s.sums("v", (n,), lambda i: {c: [s("dOO", i, c)] for c in range(d)})
        else:
            s.row_sums("v", "fq")
        if centred:
            s.each_pair("qv", "q", "v|")
            s.each_pair("p", "f", "qv")
        else:
            s.each_pair("vf", "v|", "f")
            s.each_pair("p", "fq", "vf")
    if order == "T":
        tiles = [range(r, min(n, r + (row_block or n))) for r in range(0, n, row_block or n)]
        for t, rows in enumerate(tiles):
            for k, j in product(range(d), range(n)):
                terms = {i: [s("A1", i, k), s("p", i, j)] for i in s.queries(j) if i in rows}
                s.total("T", (k, j), terms, block=f"{t};" * (len(tiles) > 1), at=t)

        def terms_of_g(k: int, c: int) -> Terms:
            return {
                t * n + j: [s("T", k, j, block=t), s("A2", j, c)]
                for t, rows in enumerate(tiles)
                for j in range(n)
                if not (leave_out or row_block) or any(s.allowed[i][j] for i in rows)
            }

        s.sums("g", (d, d), terms_of_g)
        return
    if order == "U":
        s.over_keys("dQ", "p", "A2", d, start=dQ_block is not None)
    rows = [i for i in range(n) if not (leave_out or g_block) or s.keys(i)]
    s.sums("g", (d, d), lambda k, c: {i: [s("A1", i, k), s("dQ", i, c)] for i in rows}, g_block is not None)


def slow_backward_qkv(
    s: Slow, d: int, kept: str = "l", dQ_block: int | None = None, projected: bool = False, absorbed: str = ""
) -> None:
    n = s.n
    queries, keys, values = qkv(s, d, projected, absorbed)
    s.inputs(dO=(n, d))
    if kept == "P":
        s.inputs(P=(n, n))
    else:
        s.inputs(O=(n, d), **dict.fromkeys({"l": ["l"], "L": ["L"], "m": ["l_m", "m"]}[kept], (n,)))
        s.scores("S", queries, keys, d)
        if kept == "l":
            s.each_pair("A", "S")
            s.each_pair("P", "A", "l|")
        elif kept == "L":
            s.each_pair("SL", "S", "L|")
            s.each_pair("P", "SL")
        else:
            s.each_pair("Sm", "S", "m|")
            s.each_pair("A", "Sm")
            s.each_pair("P", "A", "l_m|")
    if "W_V" in absorbed:
        s.by_rows("dOW", "dO", "W_V", n, d, d)
    s.scores("dP", "dOW" if "W_V" in absorbed else "dO", values, d)
    if kept == "P":
        s.each_pair("PdP", "P", "dP")
        s.row_sums("v", "PdP")
    else:
        s.each_row("dOO", (n, d), lambda i, c: [s("dO", i, c), s("O", i, c)], lambda i: False)
        s.sums("v", (n,), lambda i: {c: [s("dOO", i, c)] for c in range(d)})
    s.each_pair("dPv", "dP", "v|")
    s.each_pair("dS", "P", "dPv")
    s.over_queries("dV", "P", "dO", d)
    of_Q, of_K = ("dQ", "K"), ("dK", "Q")
    if "W_K" in absorbed:
        of_Q = "dSA2", "A2"
    if "W_Q" in absorbed:
        of_K = "dSA1", "A1"
    s.over_keys(of_Q[0], "dS", of_Q[1], d, start=dQ_block is not None)
    if "W_K" in absorbed:
        s.product("dQ", "dSA2", "W_K", n, d, d)
    s.over_queries(of_K[0], "dS", of_K[1], d)
    if "W_Q" in absorbed:
        s.product("dK", "dSA1", "W_Q", n, d, d)


def slow_forward_with_activation(s: Slow, d: int) -> None:
    qkv(s, d, projected=False)
    s.scores("S", "Q", "K", d)
    s.each_pair("A", "S")
    s.over_keys("O", "A", "V", d)


def slow_backward_with_activation(s: Slow, d: int, activation: str) -> None:
    n = s.n
    s.inputs(A1=(n, d), A2=(n, d), A3=(n, d), dO=(n, d), X=(d, d), Y=(d, d))
    s.product("S", "A1", "X", n, d, d)
    s.scores("Z", "S", "A2", d)
    if activation == "relu":
        s.each_pair("slope", "Z")
    else:
        s.each_pair("A", "Z")
        s.each_pair("AA", "A", "A")
        s.each_pair("slope", "A", "AA")
    s.product("h", "A3", "Y", n, d, d)
    s.scores("q", "dO", "h", d)
    s.each_pair("p", "slope", "q")
    s.over_keys("dQ", "p", "A2", d)
    s.sums("g", (d, d), lambda k, c: {i: [s("A1", i, k), s("dQ", i, c)] for i in range(n)})


SLOW: dict[str, Callable[..., None]] = {
    "forward": slow_forward,
    "projected-forward": lambda s, d, **options: slow_forward(s, d, projected=True, **options),
    "backward": slow_backward,
    "backward-qkv": slow_backward_qkv,
    "projected-backward-qkv": lambda s, d, **options: slow_backward_qkv(s, d, projected=True, **options),
    "forward-relu": slow_forward_with_activation,
    "forward-sigmoid": slow_forward_with_activation,
    "backward-relu": lambda s, d: slow_backward_with_activation(s, d, "relu"),
    "backward-sigmoid": lambda s, d: slow_backward_with_activation(s, d, "sigmoid"),
}

every_problem = pytest.mark.parametrize("name", SLOW)


@st.composite
def cases(draw: st.DrawFn, name: str, largest: int = 7) -> tuple[dict[str, int], dict[str, Any], Any]:
    """Sizes, options and pairs; blocks are smaller and larger than what they cut."""
    n, d = draw(st.sampled_from(range(1, largest + 1))), draw(st.integers(1, 4))
    block, maybe = st.integers(1, n + 2), st.none() | st.integers(1, n + 2)
    options: dict[str, Any] = {}
    if name.endswith("forward"):
        options["softmax"] = draw(st.sampled_from(["early", "late", "safe", "flash1", "flash2"]))
        if options["softmax"].startswith("flash"):
            options |= {"column_block": draw(block), "row_block": draw(block)}
    elif name == "backward":
        options |= {"order": draw(st.sampled_from(["T", "U", "one-pass"])), "leave_out": draw(st.booleans())}
        if options["order"] != "one-pass":
            options |= {"kept": draw(st.booleans()), "centred": draw(st.booleans())}
        blocks = {"T": ["row_block"], "U": ["dQ_block", "g_block"], "one-pass": ["g_block"]}[options["order"]]
        options |= {name: draw(maybe) for name in blocks}
    elif name.endswith("backward-qkv"):
        options |= {"kept": draw(st.sampled_from(["l", "L", "m", "P"])), "dQ_block": draw(maybe)}
    if name == "backward" or name.startswith("projected-"):
        both = ["X", "Y", "X,Y"] if name == "backward" else ["W_K", "W_Q", "W_V", "W_K,W_V", "W_Q,W_V"]
        blocks_of_values = str(options.get("softmax")).startswith("flash")
        options["absorbed"] = draw(st.sampled_from(["", *(w for w in both if not (blocks_of_values and "W_V" in w))]))
    return {"n": n, "d": d}, options, draw(strategies.allowed_pairs(n))


def kept_by(name: str, options: dict[str, Any]) -> tuple[str, ...]:
    if name == "backward":
        return ("O", "l") if options.get("kept") else ()
    return {"l": ("O", "l"), "L": ("O", "L"), "m": ("O", "l_m", "m"), "P": ("P",), None: ()}[options.get("kept")]


def assert_table(family: Family, slow: Slow) -> None:
    """The table says of every element what the slow builder did."""
    table = family.table
    assert table is not None
    numbers = {vertex: number for number, vertex in enumerate(slow.preds)}
    assert table.first.shape == table.roots.shape == table.terms.shape == (family.blocks, family.elements)
    summed = (family.blocks - 1) * family.terms + family.last_terms
    for block in range(family.blocks):
        for element, index in enumerate(product(*map(range, family.shape))):
            first, indices = slow.places.get((family.name, block, index), (-1, []))
            assert table.first[block, element] == first
            root = slow.values.get((family.name, block, index))
            assert table.roots[block, element] == (-1 if root is None else numbers[root])
            if table.before is not None:
                line = table.before[0 if table.line is None else index[table.line]]
                assert len(line) == summed + 1
                of_block = range(block * family.terms, min(summed, (block + 1) * family.terms))
                found = [u for u in of_block if line[u + 1] > line[u]]
                assert found == indices or first < 0
            assert table.terms[block, element] == len(indices)


def assert_same(graph: Cdag, slow: Slow) -> None:
    names = [graph.describe(v) for v in range(graph.vertices)]
    assert names == list(slow.preds)
    for v, expected in enumerate(slow.preds.values()):
        assert [names[u] for u in graph.predecessors(v)] == expected
        assert all(u < v for u in graph.predecessors(v))
        tensor, _, note = names[v].partition("[")[0], *names[v].partition(" ")[1:]
        if note in ("(no terms)", "(initial)", "(not allowed)", "(zero)"):
            infinite = tensor in ("m", "m_block", "L", "log_l") and note != "(not allowed)"
            assert graph.op[v] == (Op.MINUS_INFINITY if infinite else Op.ZERO)
        else:
            assert (graph.op[v] == Op.INPUT) == (not expected) == (v in graph.inputs)
    assert graph.indptr[-1] == graph.edges
    for family in graph.families:
        owned = [v for v, name in enumerate(names) if name.partition("[")[0] == family.name]
        assert family.size == len(owned)
        if family.table is not None:
            assert_table(family, slow)
            made = [v for v in owned if not names[v].endswith("(initial)")]
            assert not made or family.base == made[0]


@pytest.mark.one_in(3)
@every_problem
@given(data=st.data())
@strategies.draws(4, 60)
def test_masked_graphs_are_what_the_layout_says(name: str, data: st.DataObject) -> None:
    sizes, options, allowed = data.draw(cases(name, largest=6))
    slow = Slow(allowed)
    SLOW[name](slow, sizes["d"], **options)
    graph = graphs.build(name, mask=allowed, **sizes, **options)
    assert_same(graph, slow)
    assert [graph.describe(v) for v in graph.inputs] == [
        vertex for vertex, preds in slow.preds.items() if not preds and not vertex.endswith(")")
    ]
    arrays = graph.op.nbytes + graph.indptr.nbytes + graph.preds.nbytes
    assert graphs.size(name, mask=allowed, **sizes, **options) == (graph.vertices, graph.edges, arrays)


@pytest.mark.one_in(2)
@every_problem
@given(data=st.data(), seed=st.integers(0, 99))
@strategies.draws(5, 50)
def test_masked_graphs_compute_the_masked_reference(name: str, data: st.DataObject, seed: int) -> None:
    sizes, options, allowed = data.draw(cases(name, largest=12))
    kinds = {"early": ("l", "P"), "late": ("l",), "safe": ("m", "l_m", "P"), "flash1": ("m", "l_m"), "flash2": ("L",)}
    if "softmax" in options:
        options["outputs"] = ("O", *kinds[options["softmax"]])
    inputs = problem(name).random_inputs(sizes, seed, kept_by(name, options), allowed)
    reference = problem(name).reference(inputs, allowed)
    graph = graphs.build(name, mask=allowed, **sizes, **options)
    values = graph.evaluate(inputs)
    assert tuple(values) == tuple(options.get("outputs", problem(name).outputs))
    for output, value in values.items():
        np.testing.assert_allclose(value, reference[output], rtol=1e-10, atol=1e-12)


@strategies.every(MASKABLE, of=6)
@given(data=st.data())
@strategies.draws(2, 5)
def test_what_schedules_are_played_on_computes_the_masked_reference(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule))
    dims = {dim: sizes[dim] for dim in schedule.problem.dims}
    allowed = data.draw(strategies.allowed_pairs(sizes["n"]))
    graph = graphs.build(schedule.problem.name, mask=allowed, **dims, **schedule.graph_options(sizes))
    inputs = schedule.problem.random_inputs(dims, 1, schedule.kept, allowed)
    reference = schedule.problem.reference(inputs, allowed)
    for output, value in graph.evaluate(inputs).items():
        np.testing.assert_allclose(value, reference[output], rtol=1e-10, atol=1e-12)


@pytest.mark.one_in(2)
@every_problem
@given(data=st.data())
@strategies.draws(4, 25)
def test_a_mask_that_allows_everything_changes_nothing(name: str, data: st.DataObject) -> None:
    sizes, options, _ = data.draw(cases(name, largest=12))
    everything = np.ones((sizes["n"], sizes["n"]), bool)
    dense = graphs.build(name, **sizes, **options)
    masked = graphs.build(name, mask=everything, **sizes, **options)
    for array in ("op", "indptr", "preds", "inputs", "outputs"):
        assert np.array_equal(getattr(dense, array), getattr(masked, array))
    useless = ("table", "step", "last_base")  # of families with a table
    for family, same in zip(dense.families, masked.families, strict=True):
        assert {f.name: getattr(family, f.name) for f in fields(Family) if f.name not in useless} == {
            f.name: getattr(same, f.name) for f in fields(Family) if f.name not in useless
        }
        assert family.size == same.size


@every_problem
@given(data=st.data(), chunk=st.integers(1, 40))
@strategies.draws(3, 10)
def test_graphs_are_filled_in_by_parts(name: str, data: st.DataObject, chunk: int) -> None:
    sizes, options, allowed = data.draw(cases(name, largest=12))
    at_once = graphs.build(name, mask=allowed, **sizes, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked_module, "CHUNK", chunk)
        by_parts = graphs.build(name, mask=allowed, **sizes, **options)
    for array in ("op", "indptr", "preds"):
        assert np.array_equal(getattr(at_once, array), getattr(by_parts, array))


@given(data=st.data(), turned=st.booleans(), right=st.booleans(), block=st.integers(1, 7))
def test_regrouped_operands_leave_out_their_sums_without_terms(
    data: st.DataObject, turned: bool, right: bool, block: int
) -> None:
    n, d = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    allowed = data.draw(strategies.allowed_pairs(n))
    b = Builder(mask=allowed)
    b.input("P", (n, n), pairs=True)
    b.input("A", (n, d))
    b.input("B", (n, d))
    if turned:  # T is (n, d), a row of it without terms where a column of P is empty
        b.matmul("T", "P.T", "A", row_block=block)
        b.matmul("R", *(("B.T", "T") if right else ("T.T", "B")))
    else:
        b.matmul("T", "A.T", "P", row_block=block)
        b.matmul("R", *(("B.T", "T.T") if right else ("T", "B")))
    b.matmul("N", *(("T", "A.T") if turned else ("T.T", "A.T")))  # over d: rows of T without terms are left out whole
    graph = b.finish(outputs=["R", "N"])
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal(shape) for name, shape in (("P", (n, n)), ("A", (n, d)), ("B", (n, d)))}
    values, whole = graph.evaluate(x), (x["P"] * allowed).T @ x["A"]
    np.testing.assert_allclose(values["R"], x["B"].T @ whole if right else whole.T @ x["B"], atol=1e-12)
    np.testing.assert_allclose(values["N"], whole @ x["A"].T, atol=1e-12)
    tiles = [allowed[r : r + block].any(axis=0) for r in range(0, n, block)]
    products = [graph.describe(v).partition("[")[0] for v in np.flatnonzero(graph.op == Op.MUL)]
    if len(tiles) > 1:
        assert products.count("R") == d * d * sum(map(np.count_nonzero, tiles))
        assert products.count("N") == n * d * sum(map(np.count_nonzero, tiles))


@given(data=st.data(), row_block=st.integers(1, 7), block=st.integers(1, 7))
def test_sums_of_a_loop_that_are_not_over_pairs_take_all_terms(data: st.DataObject, row_block: int, block: int) -> None:
    n = data.draw(st.integers(1, 6))
    allowed = data.draw(strategies.allowed_pairs(n))
    b = Builder(mask=allowed)
    b.input("B", (n, n))
    with b.loop(n, block, (row_block,)):
        b.running("r", (n,), 0.0)
        b.rowsum("s", "B")
        b.elementwise("r", "add", "r.prev", "s")
    expected, x = np.zeros(n), np.random.default_rng(0).standard_normal((n, n))
    for i, j in product(range(n), range(0, n, block)):
        first = i - i % row_block
        if allowed[first : first + row_block, j : j + block].any():
            expected[i] += x[i, j : j + block].sum()
    np.testing.assert_allclose(b.finish(outputs=["r"]).evaluate({"B": x})["r"], expected, atol=1e-13)


def test_masked_vertices_in_words(tmp_path: Any) -> None:
    allowed = np.array([[True, False, True], [False, False, False], [False, False, True]])
    graph = graphs.build("backward", n=3, d=2, mask=allowed)

    def words(name: str, *index: int) -> str:
        return graph.describe(int(graph.tensor(name)[index]))

    assert words("f", 0, 1) == "f[0,1] (not allowed)"
    assert words("f", 0, 2) == "f[0,2]"
    assert words("l", 1) == "l[1] (no terms)"
    assert words("T", 1, 1) == "T[1,1] (no terms)"
    l0 = int(graph.tensor("l")[0])
    assert [graph.describe(v) for v in (l0 - 2, l0 - 1, l0)] == ["l[0] (term 1 of 2)", "l[0] (term 2 of 2)", "l[0]"]
    assert [graph.describe(v) for v in graph.predecessors(l0 - 1)] == ["A[0,2]"]
    family, block, index, part = graph.locate(int(graph.tensor("l")[1]))
    assert (family.name, block, index, part.kind, part.terms) == ("l", 0, (1,), "empty", 0)
    node = graph.to_networkx().nodes[int(graph.tensor("Z")[1, 0])]
    assert (node["label"], node["op"], node["input"]) == ("Z[1,0] (not allowed)", "zero", False)
    save(graph, tmp_path / "g.json")
    save(graph, tmp_path / "g.dot")


def test_rows_that_no_step_of_a_loop_has_made() -> None:
    allowed = np.array([[True, False], [False, False]])
    inputs = problem("forward").random_inputs({"n": 2, "d": 1})
    graph = graphs.build("forward", n=2, d=1, softmax="flash1", column_block=1, row_block=1, mask=allowed)
    assert [graph.describe(v) for v in graph.tensor("m_block")[:1]] == ["m_block[0;0]"]  # the last block there is
    assert graph.tensor("m_block")[1] == -1
    assert [graph.describe(v) for v in graph.tensor("m")] == ["m[0;0]", "m[1] (initial)"]
    values, score = graph.evaluate(inputs, ["m", "m_block"]), inputs["Q"][0, 0] * inputs["K"][0, 0]
    np.testing.assert_array_equal(values["m"], [score, -np.inf])
    np.testing.assert_array_equal(values["m_block"], [score, np.nan])


@pytest.mark.parametrize(
    ("name", "mask", "options", "message"),
    [
        (
            "forward",
            np.ones((3, 2), bool),
            {},
            r"booleans of shape \(3, 3\), one for each pair; got bool of shape \(3, 2\)",
        ),
        ("forward", np.ones((3, 3)), {}, r"got float64 of shape \(3, 3\)"),
        ("forward", "causal", {}, r"takes a mask of booleans .* got <U6 of shape \(\)"),
        ("linear", np.ones((3, 3), bool), {}, "graph 'linear' has no pairs"),
        (
            "forward",
            np.ones((3, 3), bool),
            {"summation": "balanced"},
            "supports only chains; use summation 'chain' instead of 'bal",
        ),
        (
            "forward",
            np.ones((3, 3), bool),
            {"softmax": "flash1", "column_block": 2},
            "row_block is required under a mask with",
        ),
        ("forward", np.ones((3, 3), bool), {"n": 0}, "n_q is 0, but must be a whole number"),
    ],
)
def test_masks_that_are_refused(name: str, mask: Any, options: dict[str, Any], message: str) -> None:
    for make in (graphs.build, graphs.size):
        with pytest.raises(UsageError, match=message):
            make(name, mask=mask, **({"n": 3, "d": 2} | options))


def test_row_blocks_that_are_refused() -> None:
    with pytest.raises(UsageError, match="row_block is required under a mask with"):
        graphs.build("forward", n=2, d=2, softmax="late", row_block=1)
    with pytest.raises(UsageError, match="row_block is 0"):
        graphs.build("forward", n=2, d=2, softmax="flash2", column_block=1, row_block=0)
    dense = graphs.build("forward", n=5, d=2, softmax="flash2", column_block=2)
    assert graphs.size("forward", n=5, d=2, softmax="flash2", column_block=2, row_block=3).edges == dense.edges


def test_masked_tensors_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder(mask=np.ones((2, 2), bool))
    b.input("P", (2, 2), pairs=True)
    b.input("B", (2, 2))
    with pytest.raises(UsageError, match="both operands of C are over pairs"):
        b.matmul("C", "P", "P")
    with pytest.raises(UsageError, match="S is over pairs and sums over pairs"):
        b.matmul("S", "P", "B", pairs=True)
    with pytest.raises(UsageError, match=r"C of shape \(2, 3\) cannot be over pairs of shape \(2, 2\)"):
        b.input("C", (2, 3), pairs=True)
    with pytest.raises(UsageError, match=r"E of shape .* neither transposed nor"):
        b.elementwise("E", "mul", "P", "P.T")
    with pytest.raises(UsageError, match="needs a row_block"), b.loop(2, 1):
        pass
    monkeypatch.setattr(memory, "NEGLIGIBLE", 0)
    monkeypatch.setattr(memory, "available_memory", lambda: 100)
    with pytest.raises(UsageError, match=r"Q needs 192\.0 bytes of memory .* but 100\.0 bytes are available"):
        b.elementwise("Q", "exp", "P")
