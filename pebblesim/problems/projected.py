"""Attention on projections: Q = A1 W_Q, K = A2 W_K, V = A3 W_V, before the forward or the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pebblesim.language.problems import Array, problem
from pebblesim.theory.theta import repaired


def projected(
    core: Callable[..., dict[str, Array]], x: Mapping[str, Array], allowed: Array | None = None
) -> dict[str, Array]:
    """What comes out of a problem on Q, K, V when these are projections."""
    return core({**x, "Q": x["A1"] @ x["W_Q"], "K": x["A2"] @ x["W_K"], "V": x["A3"] @ x["W_V"]}, allowed)


THEOREMS = {"forward": "Saha & Ye, Theorem 3.1", "backward-qkv": "Li et al., Theorem 1.1"}

for core in map(problem, THEOREMS):
    problem(
        f"projected-{core.name}",
        dims=core.dims,
        from_nd=core.from_nd,
        inputs=dict.fromkeys(("A1", "A2", "A3"), ("n", "d"))
        | dict.fromkeys(("W_Q", "W_K", "W_V"), ("d", "d"))
        | {name: shape for name, shape in core.inputs.items() if name not in ("Q", "K", "V")},
        outputs=core.outputs,
        queries=("A1", *core.queries[1:]),
        keys=("A2", "A3"),
        kept=core.kept,
        extra=core.extra,
        values=partial(projected, core.values),
        source=f"Li et al., arXiv 2410.09397, Definition 3.1, before {core.name}",
        graph=f"pebblesim.graphs.{core.name.replace('-', '_')}:projected",
        theta=repaired(
            THEOREMS[core.name],
            f"that of {core.name}, with three products by d x d weights added (for n ≥ d)",
            "d**2*n/sqrt(M) + ",
        ),
        bounds=core.bounds,
    )
