"""Attention with a bias that rows of an alignment share, and its gradients: which loop stays outside? `python FILE`.

R rows have Q, K, V (n x d) of their own and one bias B (n x n), as in AlphaFold 3. Each has P = exp(Q Kᵀ + B - L 1ᵀ),
and dB is the sum of their dS. The problems are one head; they are declared for a number of rows, whose tensors have
their number behind them. docs/bias.md has what this prints, and the proofs of the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import Parameter, Signature
from math import ceil, isqrt
from typing import Any

import pebblesim as ps
from pebblesim.graphs.builder import Builder, in_memory

ROWS = 16
SIZES = {"n": 384, "d": 32}
CACHES = 4096, 16384, 65536, 262144
GROUPS = 1, 2, 4, 8, 16
SOURCE = "docs/bias.md"
MATRICES = "Q", "K", "V", "dO", "O"
GRADIENTS = "dQ", "dK", "dV"

Tensors = Mapping[str, Any]


def reference(rows: int, x: Tensors) -> dict[str, Any]:
    """All gradients, in float64."""
    import numpy as np

    made, dB = dict[str, Any](), np.zeros_like(x["B"])
    for r in range(rows):
        Q, K, V, dO, O = (x[f"{name}{r}"] for name in MATRICES)
        P = np.exp(Q @ K.T + x["B"] - x[f"L{r}"][:, None])
        dS = P * (dO @ V.T - (dO * O).sum(1, keepdims=True))
        made |= {f"dQ{r}": dS @ K, f"dK{r}": dS.T @ Q, f"dV{r}": P.T @ dO}
        dB = dB + dS
    return made | {"dB": dB}


def declare(
    rows: int, n: int, d: int, summation: str = "chain", *, dQ_block: int | None = None, rows_block: int | None = None
) -> Builder:
    """The graph: that of backward-qkv with L for each row, B added to its scores, and the sum of all dS."""
    b = Builder(summation)
    b.input("B", (n, n))
    of_keys, of_queries = (in_memory(*each, summation) for each in (("rows", rows_block), ("dQ", dQ_block)))
    for r in range(rows):
        for name in MATRICES:
            b.input(f"{name}{r}", (n, d))
        b.input(f"L{r}", (n,))
        b.elementwise(f"dOO{r}", "mul", f"dO{r}", f"O{r}")
        b.rowsum(f"v{r}", f"dOO{r}")
        b.matmul(f"S{r}", f"Q{r}", f"K{r}.T")
        b.elementwise(f"SB{r}", "add", f"S{r}", "B")
        b.elementwise(f"SL{r}", "sub", f"SB{r}", f"L{r}")
        b.elementwise(f"P{r}", "exp", f"SL{r}")
        b.matmul(f"dP{r}", f"dO{r}", f"V{r}.T")
        b.elementwise(f"dPv{r}", "sub", f"dP{r}", f"v{r}")
        b.elementwise(f"dS{r}", "mul", f"P{r}", f"dPv{r}")
        b.matmul(f"dV{r}", f"P{r}.T", f"dO{r}", **of_keys)
        b.matmul(f"dK{r}", f"dS{r}.T", f"Q{r}", **of_keys)
        b.matmul(f"dQ{r}", f"dS{r}", f"K{r}", **of_queries)
    total = "dS0"
    for r in range(1, rows):
        b.elementwise(made := "dB" if r == rows - 1 else f"dB{r}", "add", total, f"dS{r}")
        total = made
    b.outputs = (*(f"{name}{r}" for r in range(rows) for name in GRADIENTS), total)
    return b


def forward_reference(rows: int, x: Tensors) -> dict[str, Any]:
    """O of all rows, in float64."""
    import numpy as np

    made = {}
    for r in range(rows):
        A = np.exp(x[f"Q{r}"] @ x[f"K{r}"].T + x["B"])
        made[f"O{r}"] = A @ x[f"V{r}"] / A.sum(1, keepdims=True)
    return made


def declare_forward(rows: int, n: int, d: int, summation: str = "chain") -> Builder:
    """The graph of the forward pass, with the division by the row sums behind the product with V."""
    b = Builder(summation)
    b.input("B", (n, n))
    for r in range(rows):
        for name in "QKV":
            b.input(f"{name}{r}", (n, d))
        b.matmul(f"S{r}", f"Q{r}", f"K{r}.T")
        b.elementwise(f"SB{r}", "add", f"S{r}", "B")
        b.elementwise(f"A{r}", "exp", f"SB{r}")
        b.rowsum(f"l{r}", f"A{r}")
        b.matmul(f"AV{r}", f"A{r}", f"V{r}")
        b.elementwise(f"O{r}", "div", f"AV{r}", f"l{r}")
    b.outputs = tuple(f"O{r}" for r in range(rows))
    return b


def forward_in_groups(m: Any, x: Tensors, rows: int, *, of: int, B_r: Any, B_c: Any) -> None:
    """Q and O of a group of rows stay; their keys and values, and tiles of B for all of them, pass by."""
    n, d = x["Q0"].shape
    out = [m.tensor(f"O{r}", n, d) for r in range(rows)]
    for first in range(0, rows, of):
        group = range(first, min(first + of, rows))
        for i in m.tiles(n, B_r):
            Q = {r: m.read(x[f"Q{r}"][i, :]) for r in group}
            O, l = {r: m.zeros(i, d) for r in group}, {r: m.zeros(i) for r in group}
            for j in m.tiles(n, B_c):
                B_ij = m.read(x["B"][i, j])
                for r in group:
                    K_j = m.read(x[f"K{r}"][j, :])
                    A = m.compute(Q[r] @ K_j.T)
                    m.delete(K_j)
                    A[:] = ps.exp(A + B_ij)
                    l[r] += ps.rowsum(A)
                    V_j = m.read(x[f"V{r}"][j, :])
                    O[r] += A @ V_j
                    m.delete(A, V_j)
            for r in group:
                O[r][:] = O[r] / l[r]
                m.write(out[r][i, :], O[r])


def begin(m: Any, x: Tensors, rows: int, block: Any, added: bool = True) -> dict[str, Any]:
    """Tensors of all gradients, and v = (dO ∘ O) · 1 of all rows, which is computed; dQ is 0 in memory if `added`."""
    n, d = x["Q0"].shape
    made = {f"{name}{r}": m.tensor(f"{name}{r}", n, d) for r in range(rows) for name in GRADIENTS}
    made["dB"] = m.tensor("dB", n, n)
    for r in range(rows):
        made[f"v{r}"] = m.tensor(f"v{r}", n)
        for i in m.tiles(n, block):
            dO_i, O_i = m.read(x[f"dO{r}"][i, :]), m.read(x[f"O{r}"][i, :])
            m.write(made[f"v{r}"][i], m.compute(ps.rowsum(dO_i * O_i)))
        if added:
            m.write(made[f"dQ{r}"], 0)
    return made


def of_tile(m: Any, x: Tensors, made: Tensors, r: int, i: Any, B_ij: Any, K_j: Any, V_j: Any) -> tuple[Any, ...]:
    """Rows of Q and dO, and P and dS of a tile."""
    Q_i, dO_i, L_i, v_i = of_rows(m, x, made, r, i)
    return Q_i, dO_i, *probabilities(m, B_ij, Q_i, dO_i, L_i, v_i, K_j, V_j)


def of_rows(m: Any, x: Tensors, made: Tensors, r: int, i: Any) -> tuple[Any, ...]:
    """Rows of Q and dO, and L and v of them."""
    return m.read(x[f"Q{r}"][i, :]), m.read(x[f"dO{r}"][i, :]), m.read(x[f"L{r}"][i]), m.read(made[f"v{r}"][i])


def probabilities(m: Any, B_ij: Any, Q_i: Any, dO_i: Any, L_i: Any, v_i: Any, K_j: Any, V_j: Any) -> tuple[Any, Any]:
    """P and dS of a tile."""
    P = m.compute(Q_i @ K_j.T)
    P[:] = ps.exp(P + B_ij - L_i)
    dS = m.compute(dO_i @ V_j.T)
    dS[:] = P * (dS - v_i)
    return P, dS


def add(m: Any, part: Any, term: Any) -> None:
    """Add a product to a part of a tensor in memory."""
    total = m.read(part)
    total += term
    m.write(part, total)
    m.delete(total)


def summed(m: Any, dB_ij: Any, dS: Any) -> Any:
    """The tile of dB with one more term."""
    if dB_ij is None:
        return dS
    dB_ij[:] = dB_ij + dS
    m.delete(dS)
    return dB_ij


def in_groups(m: Any, x: Tensors, rows: int, *, of: int, B_c: Any, B_r: Any) -> None:
    """FlashAttention-2 for groups of rows: their K, V, dK and dV stay, queries and tiles of B and dB pass by."""
    n, d = x["Q0"].shape
    made = begin(m, x, rows, B_r)
    for first in range(0, rows, of):
        group = range(first, min(first + of, rows))
        for j in m.tiles(n, B_c):
            K, V = ({r: m.read(x[f"{name}{r}"][j, :]) for r in group} for name in "KV")
            dK, dV = ({r: m.zeros(j, d) for r in group} for _ in range(2))
            for i in m.tiles(n, B_r):
                B_ij, dB_ij = m.read(x["B"][i, j]), m.read(made["dB"][i, j]) if first else None
                for r in group:
                    Q_i, dO_i, P, dS = of_tile(m, x, made, r, i, B_ij, K[r], V[r])
                    dV[r] += P.T @ dO_i
                    m.delete(P, dO_i)
                    dK[r] += dS.T @ Q_i
                    m.delete(Q_i)
                    add(m, made[f"dQ{r}"][i, :], dS @ K[r])
                    dB_ij = summed(m, dB_ij, dS)
                m.write(made["dB"][i, j], dB_ij)
            for r in group:
                m.write(made[f"dK{r}"][j, :], dK[r])
                m.write(made[f"dV{r}"][j, :], dV[r])


def tile_stays(m: Any, x: Tensors, rows: int, *, a: Any, b: Any) -> None:
    """A tile of B and one of dB stay while all rows pass by; dQ, dK and dV are added to in memory."""
    n, _ = x["Q0"].shape
    made = begin(m, x, rows, a)
    for r in range(rows):
        m.write(made[f"dK{r}"], 0)
        m.write(made[f"dV{r}"], 0)
    for i in m.tiles(n, a):
        for j in m.tiles(n, b):
            B_ij, dB_ij = m.read(x["B"][i, j]), None
            for r in range(rows):
                K_j, V_j = m.read(x[f"K{r}"][j, :]), m.read(x[f"V{r}"][j, :])
                Q_i, dO_i, P, dS = of_tile(m, x, made, r, i, B_ij, K_j, V_j)
                m.delete(V_j)
                add(m, made[f"dV{r}"][j, :], P.T @ dO_i)
                m.delete(P, dO_i)
                add(m, made[f"dK{r}"][j, :], dS.T @ Q_i)
                m.delete(Q_i)
                add(m, made[f"dQ{r}"][i, :], dS @ K_j)
                m.delete(K_j)
                dB_ij = summed(m, dB_ij, dS)
            m.write(made["dB"][i, j], dB_ij)


def as_attention(m: Any, x: Tensors, rows: int, *, a: Any, b: Any) -> None:
    """Kernels of `attention`: dQ, then dK and dV, of each row alone; then a tile of dB stays while all rows pass by."""
    n, d = x["Q0"].shape
    made = begin(m, x, rows, a, added=False)
    for r in range(rows):
        K, V = x[f"K{r}"], x[f"V{r}"]
        for i in m.tiles(n, a):
            of_i, dQ_i = of_rows(m, x, made, r, i), m.zeros(i, d)
            for j in m.tiles(n, b):
                B_ij, K_j, V_j = m.read(x["B"][i, j]), m.read(K[j, :]), m.read(V[j, :])
                P, dS = probabilities(m, B_ij, *of_i, K_j, V_j)
                m.delete(P)
                dQ_i += dS @ K_j
            m.write(made[f"dQ{r}"][i, :], dQ_i)
    for r in range(rows):
        for j in m.tiles(n, b):
            K_j, V_j = m.read(x[f"K{r}"][j, :]), m.read(x[f"V{r}"][j, :])
            dK_j, dV_j = m.zeros(j, d), m.zeros(j, d)
            for i in m.tiles(n, a):
                Q_i, dO_i, P, dS = of_tile(m, x, made, r, i, m.read(x["B"][i, j]), K_j, V_j)
                dV_j += P.T @ dO_i
                m.delete(P)
                dK_j += dS.T @ Q_i
            m.write(made[f"dK{r}"][j, :], dK_j)
            m.write(made[f"dV{r}"][j, :], dV_j)
    for i in m.tiles(n, a):
        for j in m.tiles(n, b):
            B_ij, dB_ij = m.read(x["B"][i, j]), None
            for r in range(rows):
                K_j, V_j = m.read(x[f"K{r}"][j, :]), m.read(x[f"V{r}"][j, :])
                Q_i, dO_i, P, dS = of_tile(m, x, made, r, i, B_ij, K_j, V_j)
                m.delete(Q_i, dO_i, P, K_j, V_j)
                dB_ij = summed(m, dB_ij, dS)
            m.write(made["dB"][i, j], dB_ij)


def schedule(
    problem: str, title: str, function: Callable[..., None], rows: int, blocks: tuple[str, ...], **graph: str
) -> str:
    """Register a schedule that takes all inputs of a problem, and return its name."""
    inputs = ps.problem(problem).inputs

    def named(m: Any, *given: Any, **sizes: Any) -> None:
        function(m, dict(zip(inputs, given, strict=True)), rows, **sizes)

    taken = [Parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in ("m", *inputs)]
    taken += [Parameter(each, Parameter.KEYWORD_ONLY) for each in blocks]
    named.__signature__ = Signature(taken)  # type: ignore[attr-defined]
    return ps.schedule(problem=problem, name=f"{title}-{rows}", source=SOURCE, graph=graph)(named).name


def groups(rows: int) -> tuple[int, ...]:
    """Numbers of rows at a time."""
    return tuple(of for of in GROUPS if of <= rows)


def register(rows: int) -> tuple[str, ...]:
    """Declare the gradients for so many rows, two or more, and return the names of their schedules."""
    name, matrix = f"pair-bias-{rows}", ("n", "d")
    inputs: dict[str, tuple[str, ...]] = {f"{each}{r}": matrix for r in range(rows) for each in MATRICES}
    ps.problem(
        name,
        dims=("n", "d"),
        from_nd={"n": "n", "d": "d"},
        inputs=inputs | {f"L{r}": ("n",) for r in range(rows)} | {"B": ("n", "n")},
        outputs={f"{each}{r}": matrix for r in range(rows) for each in GRADIENTS} | {"dB": ("n", "n")},
        values=partial(reference, rows),
        source=SOURCE,
        graph=partial(declare, rows),
    )
    return (
        *(
            schedule(name, f"in-groups-of-{of}", partial(in_groups, of=of), rows, ("B_c", "B_r"), dQ_block="B_c")
            for of in groups(rows)
        ),
        schedule(name, "tile-stays", tile_stays, rows, ("a", "b"), dQ_block="b", rows_block="a"),
        schedule(name, "as-attention", as_attention, rows, ("a", "b")),
    )


def register_forward(rows: int) -> tuple[str, ...]:
    """Declare the forward pass for so many rows, and return the names of its schedules."""
    name, matrix = f"pair-bias-forward-{rows}", ("n", "d")
    ps.problem(
        name,
        dims=("n", "d"),
        from_nd={"n": "n", "d": "d"},
        inputs={f"{each}{r}": matrix for r in range(rows) for each in "QKV"} | {"B": ("n", "n")},
        outputs={f"O{r}": matrix for r in range(rows)},
        values=partial(forward_reference, rows),
        source=SOURCE,
        graph=partial(declare_forward, rows),
    )
    return tuple(
        schedule(name, f"forward-in-groups-of-{of}", partial(forward_in_groups, of=of), rows, ("B_r", "B_c"))
        for of in groups(rows)
    )


def bound_of_rows(rows: int, n: int, d: int, M: int, forward: bool = False) -> int:
    """Theorem 1 of docs/bias.md: each row as if it were alone, and B and, behind it, dB once each."""
    alone = ps.bounds("forward" if forward else "backward-qkv", n=n, d=d, M=M).to_dict()["lower_bound"]["value"]
    own = 4 * n * d if forward else 8 * n * d + n
    return int(rows * max(ceil(alone), own) + (1 if forward else 2) * n * n)


def bound_of_shared_bias(rows: int, n: int, d: int, M: int) -> int:
    """Theorem 2 of docs/bias.md: scores of all rows, B among what they need."""
    most = max(3 * M, -(-(isqrt(M**3 - 1) + 1) // d))  # at least M^1.5/d
    return 2 * M * (-(-rows * n * n // most) - 1)


def lines(names: tuple[str, ...], forward: bool, rows: int, n: int, d: int) -> Iterator[str]:
    """A table of docs/bias.md."""
    titles = [name.removesuffix(f"-{rows}").removeprefix("forward-") for name in names]
    titles = [title.replace("in-groups-of-", "g = ").replace("-", " ") for title in titles]
    columns = [("M", *titles, "lower bound", "best gap")]
    for M in CACHES:
        counts = [ps.count(name, n=n, d=d, M=M, blocks="best").io for name in names]
        bound = max(bound_of_rows(rows, n, d, M, forward), bound_of_shared_bias(rows, n, d, M))
        cells = (f"**{count:,}**" if count == min(counts) else f"{count:,}" for count in counts)
        columns.append((f"{M:,}", *cells, f"{bound:,}", f"{min(counts) / bound:.2f}"))
    head, *others = (f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))
    yield from (head, "| --- |" + " ---: |" * len(CACHES), *others)


if __name__ == "__main__":
    for direction in (False, True):
        made = (register_forward if direction else register)(ROWS)
        print("forward" if direction else "gradients", *lines(made, direction, ROWS, **SIZES), "", sep="\n")
