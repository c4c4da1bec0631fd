"""What is computed: shapes, given values, outputs and a plain numpy reference of each problem.

Schedules are compared only within one problem. The references are written for reading, in float64 and without
any blocking: they are the definition that every schedule and every graph is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pebblesim.errors import UnknownName, UsageError
from pebblesim.language.program import PAIRS

ACTIVATIONS = ("relu", "sigmoid")
"""Elementwise activations in the place of exp, without normalisation."""

Array = Any
Shape = tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """A problem: names and symbolic shapes, and a function that computes it.

    Attributes:
        name: as on the command line.
        dims: names of its dimensions, in the order of the paper.
        from_nd: which of n and d each dimension is when only those two are given.
        inputs: shape of each input.
        kept: inputs that only some schedules ask for because the forward pass kept them.
        outputs: shape of each output.
        extra: outputs that only some schedules write, for a backward pass to keep.
        values: what `reference` returns for inputs that fit.
        source: where it is defined.
        queries: inputs, kept ones too, with a row for each query.
        keys: inputs, kept ones too, with a row for each key. Without queries and keys there are no pairs to forbid.

    Raises:
        UsageError: it has queries and keys, and an input over n is not said to belong to either.
    """

    name: str
    dims: tuple[str, ...]
    from_nd: Mapping[str, str]
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    values: Callable[..., dict[str, Array]] = field(repr=False)
    source: str
    kept: Mapping[str, Shape] = field(default_factory=dict)
    extra: Mapping[str, Shape] = field(default_factory=dict)
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lined = [name for name, shape in {**self.inputs, **self.kept}.items() if shape.count(PAIRS) == 1]
        if self.maskable and sorted((*self.queries, *self.keys)) != sorted(lined):
            raise UsageError(
                f"problem {self.name!r}: each input with one row for each index of {PAIRS} ({', '.join(lined)}) "
                f"belongs either to the queries or to the keys; given as queries: {', '.join(self.queries) or 'none'}; "
                f"as keys: {', '.join(self.keys) or 'none'}."
            )

    @property
    def maskable(self) -> bool:
        """Whether it has pairs, of a query and a key, that a mask can forbid."""
        return bool(self.queries or self.keys)

    def reference(self, inputs: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
        """Outputs from inputs, both by name, in float64; also the `kept` and `extra` values it passes on its way.

        Args:
            inputs: one array for each input, of any real type.
            allowed: booleans of shape (n, n), the pairs that may meet; None for all. The others have probability, or
                activation, 0. A row without any has m = L = -inf, l = l_m = 0, and zeros in P, O and dQ; a column
                without any has zeros in dK and dV.

        Raises:
            UsageError: `allowed` is no such array, or the problem has no pairs.
        """
        import numpy as np

        inputs = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
        if allowed is None:
            return self.values(inputs)
        if not self.maskable:
            raise UsageError(f"problem {self.name!r} has no pairs that a mask could forbid; leave the mask out.")
        n = len(inputs[next(iter(self.inputs))])
        if getattr(allowed, "dtype", None) != "bool" or allowed.shape != (n, n):
            given = f"{getattr(allowed, 'dtype', type(allowed).__name__)} of shape {getattr(allowed, 'shape', '()')}"
            raise UsageError(f"allowed pairs are booleans of shape ({n}, {n}), one for each pair; got {given}.")
        return self.values(inputs, allowed)

    def random_inputs(
        self, dims: Mapping[str, int], seed: int = 0, kept: tuple[str, ...] = (), allowed: Array | None = None
    ) -> dict[str, Array]:
        """Normal float64 inputs, scaled so that scores are of order one, with the `kept` values that are asked for.

        These are what the forward pass keeps where only the `allowed` pairs meet, as for `reference`.
        """
        import numpy as np

        rng = np.random.default_rng(seed)
        inputs = {
            name: rng.standard_normal([dims[s] for s in shape]) / dims[shape[-1]] ** 0.5
            for name, shape in self.inputs.items()
        }
        if kept:
            values = self.reference(inputs, allowed)
            inputs |= {name: values[name] for name in kept}
        return inputs


def _softmax(scores: Array, allowed: Array | None) -> dict[str, Array]:
    """Row maxima m, sums l_m = Σ exp(S - m) and l = Σ exp(S), L = log l and P = exp(S - L), over the allowed pairs.

    Only differences from the maximum are raised to a power, so that P, L, m and l_m are right for scores of any size.
    l overflows to inf where its true value exceeds the largest float64, from scores of 709.8 on.
    """
    import numpy as np

    S = scores if allowed is None else np.where(allowed, scores, -np.inf)
    m = S.max(axis=1)
    A = np.exp(S - np.where(np.isneginf(m), 0, m)[:, None])
    l_m = A.sum(axis=1)
    some = l_m > 0
    L = m + np.log(l_m, out=np.zeros_like(l_m), where=some)
    with np.errstate(over="ignore"):
        l = np.exp(m) * l_m
    return {"l": l, "m": m, "l_m": l_m, "L": L, "P": A / np.where(some, l_m, 1)[:, None]}


def _backward(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """dL/dX of attention, straight from the definitions (Li et al., Defs. 3.2 and B.3-B.9)."""
    kept = _softmax(x["A1"] @ x["X"] @ x["A2"].T, allowed)
    f = kept["P"]
    h = x["A3"] @ x["Y"]
    q = x["dO"] @ h.T
    p = f * q - (f * q).sum(axis=1)[:, None] * f
    return {"g": x["A1"].T @ p @ x["A2"], "O": f @ h, "l": kept["l"]}


def _forward(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """Softmax attention and what a backward pass may keep of it: l, or m and l_m, or L, or P."""
    kept = _softmax(x["Q"] @ x["K"].T, allowed)
    return {"O": kept["P"] @ x["V"], **kept}


def _linear(x: Mapping[str, Array]) -> dict[str, Array]:
    """Linear attention: no softmax, so that the product is associative (Li et al., Remark 5.1)."""
    return {"O": x["A1"] @ x["X"] @ (x["A2"].T @ x["A3"]) @ x["Y"]}


def _activations() -> dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]]:
    """Elementwise activations that stand for exp, without normalisation, and their derivatives."""
    import numpy as np

    def sigmoid(z: Array) -> Array:
        t = np.exp(-np.abs(z))  # never overflows
        return np.where(z < 0, t, 1) / (1 + t)

    return {
        "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(z.dtype)),
        "sigmoid": (sigmoid, lambda z: sigmoid(z) * sigmoid(-z)),
    }


def _forward_with(activation: str, x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    value, _ = _activations()[activation]
    A = value(x["Q"] @ x["K"].T)
    return {"O": (A if allowed is None else A * allowed) @ x["V"]}


def _backward_with(activation: str, x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """dL/dX of A(A1 X A2ᵀ) A3 Y with an elementwise activation A."""
    _, slope = _activations()[activation]
    p = (x["dO"] @ (x["A3"] @ x["Y"]).T) * slope(x["A1"] @ x["X"] @ x["A2"].T)
    return {"g": x["A1"].T @ (p if allowed is None else p * allowed) @ x["A2"]}


def _backward_qkv(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """The gradients with respect to Q, K and V (Dao et al. 2022, appendix B.2)."""
    forward = _forward(x, allowed)
    P = forward["P"]
    dP = x["dO"] @ x["V"].T
    dS = P * (dP - (P * dP).sum(axis=1)[:, None])
    return {"dQ": dS @ x["K"], "dK": dS.T @ x["Q"], "dV": P.T @ x["dO"], **forward}


def _projected(
    core: Callable[..., dict[str, Array]], x: Mapping[str, Array], allowed: Array | None = None
) -> dict[str, Array]:
    """What comes out of a problem on Q, K, V when these are projections."""
    return core({**x, "Q": x["A1"] @ x["W_Q"], "K": x["A2"] @ x["W_K"], "V": x["A3"] @ x["W_V"]}, allowed)


def _matmul(x: Mapping[str, Array]) -> dict[str, Array]:
    return {"C": x["A"] @ x["B"]}


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            name="backward",
            dims=("n", "d"),
            from_nd={"n": "n", "d": "d"},
            inputs={
                "A1": ("n", "d"),
                "A2": ("n", "d"),
                "A3": ("n", "d"),
                "dO": ("n", "d"),
                "X": ("d", "d"),
                "Y": ("d", "d"),
            },
            kept={"O": ("n", "d"), "l": ("n",)},
            outputs={"g": ("d", "d")},
            queries=("A1", "dO", "O", "l"),
            keys=("A2", "A3"),
            values=_backward,
            source="Li et al., arXiv 2410.09397, Definitions 3.2 and B.3-B.9",
        ),
        Problem(
            name="forward",
            dims=("n", "d"),
            from_nd={"n": "n", "d": "d"},
            inputs={"Q": ("n", "d"), "K": ("n", "d"), "V": ("n", "d")},
            outputs={"O": ("n", "d")},
            extra={"l": ("n",), "m": ("n",), "l_m": ("n",), "L": ("n",), "P": ("n", "n")},
            queries=("Q",),
            keys=("K", "V"),
            values=_forward,
            source="Saha & Ye 2024, arXiv 2402.07443; Dao et al. 2022, arXiv 2205.14135",
        ),
        Problem(
            name="backward-qkv",
            dims=("n", "d"),
            from_nd={"n": "n", "d": "d"},
            inputs={"Q": ("n", "d"), "K": ("n", "d"), "V": ("n", "d"), "dO": ("n", "d")},
            kept={"O": ("n", "d"), "l": ("n",), "m": ("n",), "l_m": ("n",), "L": ("n",), "P": ("n", "n")},
            outputs={"dQ": ("n", "d"), "dK": ("n", "d"), "dV": ("n", "d")},
            queries=("Q", "dO", "O", "l", "m", "l_m", "L"),
            keys=("K", "V"),
            values=_backward_qkv,
            source="Dao et al. 2022, arXiv 2205.14135, appendix B.2",
        ),
        *(
            Problem(
                name=f"forward-{activation}",
                dims=("n", "d"),
                from_nd={"n": "n", "d": "d"},
                inputs={"Q": ("n", "d"), "K": ("n", "d"), "V": ("n", "d")},
                outputs={"O": ("n", "d")},
                queries=("Q",),
                keys=("K", "V"),
                values=partial(_forward_with, activation),
                source="Li et al., arXiv 2410.09397, Remark 5.1",
            )
            for activation in ACTIVATIONS
        ),
        *(
            Problem(
                name=f"backward-{activation}",
                dims=("n", "d"),
                from_nd={"n": "n", "d": "d"},
                inputs=dict.fromkeys(("A1", "A2", "A3", "dO"), ("n", "d")) | {"X": ("d", "d"), "Y": ("d", "d")},
                outputs={"g": ("d", "d")},
                queries=("A1", "dO"),
                keys=("A2", "A3"),
                values=partial(_backward_with, activation),
                source="Li et al., arXiv 2410.09397, Remark 5.1",
            )
            for activation in ACTIVATIONS
        ),
        Problem(
            name="linear",
            dims=("n", "d"),
            from_nd={"n": "n", "d": "d"},
            inputs=dict.fromkeys(("A1", "A2", "A3"), ("n", "d")) | {"X": ("d", "d"), "Y": ("d", "d")},
            outputs={"O": ("n", "d")},
            values=_linear,
            source="Li et al., arXiv 2410.09397, Remark 5.1",
        ),
        Problem(
            name="matmul",
            dims=("m", "k", "n"),
            from_nd={"m": "n", "k": "d", "n": "n"},
            inputs={"A": ("m", "k"), "B": ("k", "n")},
            outputs={"C": ("m", "n")},
            values=_matmul,
            source="Hong & Kung 1981, section 6",
        ),
    )
}


for _core in ("forward", "backward-qkv"):
    _of = PROBLEMS[_core]
    PROBLEMS[f"projected-{_core}"] = Problem(
        name=f"projected-{_core}",
        dims=_of.dims,
        from_nd=_of.from_nd,
        inputs=dict.fromkeys(("A1", "A2", "A3"), ("n", "d"))
        | dict.fromkeys(("W_Q", "W_K", "W_V"), ("d", "d"))
        | {name: shape for name, shape in _of.inputs.items() if name not in ("Q", "K", "V")},
        outputs=_of.outputs,
        queries=("A1", *_of.queries[1:]),
        keys=("A2", "A3"),
        kept=_of.kept,
        extra=_of.extra,
        values=partial(_projected, _of.values),
        source=f"Li et al., arXiv 2410.09397, Definition 3.1, before {_core}",
    )


def problem(name: str) -> Problem:
    """The problem of that name.

    Raises:
        UnknownName: there is none; the message suggests one.
    """
    if name not in PROBLEMS:
        raise UnknownName("problem", name, PROBLEMS)
    return PROBLEMS[name]
