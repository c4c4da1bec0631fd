"""Attention on projections: Q = A1 W_Q, K = A2 W_K, V = A3 W_V, before the forward or the backward pass.

The inputs have rows of d words, those of Q and K have d_k, and those of V d_v.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pebblesim.catalogue.softmax import SPLIT_SCORES
from pebblesim.catalogue.theta import OF_PROJECTED, repaired
from pebblesim.language.problems import Array, problem


def projected(
    core: Callable[..., dict[str, Array]], x: Mapping[str, Array], allowed: Array | None = None
) -> dict[str, Array]:
    """Return the outputs of a problem on Q, K, V when these are projections."""
    return core({**x, "Q": x["A1"] @ x["W_Q"], "K": x["A2"] @ x["W_K"], "V": x["A3"] @ x["W_V"]}, allowed)


GLOSSARY = {
    "A1": ("", "input from which the queries are computed, one row for each query"),
    "A2": ("", "input from which the keys are computed, one row for each key"),
    "A3": ("", "input from which the values are computed, one row for each key"),
    "W_Q": ("", "weights of the queries"),
    "W_K": ("", "weights of the keys"),
    "W_V": ("", "weights of the values"),
    "Q": ("A1 W_Q", "queries, one row for each"),
    "K": ("A2 W_K", "keys, one row for each"),
    "V": ("A3 W_V", "values, one row for each key"),
}
"""(formula, meaning) of the tensors that projections add."""

_QW = {"QW": ("Q W_Kᵀ", "queries, already multiplied by the weights of the keys")}

ABSORBED = {
    "forward": _QW
    | {
        "KW": ("K W_Qᵀ", "keys, already multiplied by the weights of the queries"),
        "AV": ("A V", "the output before the division by the row sums; A A3 where W_V is absorbed"),
        "lO": (
            "diag(a) lO_prev + A_block V_block",
            "running output, before the division by the row sums; of A3 for V where W_V is absorbed",
        ),
        "PA": ("P A3", "for each query, the mean of the inputs of the values; O = PA W_V"),
    },
    "backward-qkv": _QW
    | {
        "dOW": ("dO W_Vᵀ", "gradient with respect to P A3, the mean of the inputs of the values"),
        "dSA2": ("dS A2", "gradient with respect to QW; dQ = dSA2 W_K"),
    },
}
"""(formula, meaning) of the tensors of schedules in which weights are absorbed."""


THEOREMS = {"forward": "Saha & Ye, Theorem 3.1", "backward-qkv": "Li et al., Theorem 1.1"}

for core in (problem(name).rectangle for name in THEOREMS):
    assert core
    problem(
        f"projected-{core.name}",
        dims=("n_q", "n_k", "d", "d_k", "d_v"),
        from_nd={**core.from_nd, "d": "d"},
        inputs={"A1": ("n_q", "d"), "A2": ("n_k", "d"), "A3": ("n_k", "d")}
        | {"W_Q": ("d", "d_k"), "W_K": ("d", "d_k"), "W_V": ("d", "d_v")}
        | {name: shape for name, shape in core.inputs.items() if name not in ("Q", "K", "V")},
        outputs=core.outputs,
        queries=("A1", *core.queries[1:]),
        keys=("A2", "A3"),
        scaled=(("W_Q",), core.scaled[1]),
        kept=core.kept,
        extra=core.extra,
        values=partial(projected, core.values),
        source=f"Li et al., arXiv 2410.09397, Definition 3.1, before {core.name}",
        graph=f"pebblesim.graphs.{core.name.replace('-', '_')}:declare",
        theta=repaired(
            THEOREMS[core.name],
            f"that of {core.name}, with three products by d x d weights added (for n ≥ d)",
            "d**2*n/sqrt(M) + ",
            OF_PROJECTED[core.name],
        ),
        bounds=f"projected-{core.name}",
        glossary={name: entry for name, entry in core.glossary.items() if name not in SPLIT_SCORES}
        | GLOSSARY
        | ABSORBED.get(core.name, {}),
    )
