"""The declaration of a problem; the built-in problems are in `pebblesim.catalogue`.

Schedules are compared only within one problem. The references are written for clarity, in float64 and without blocking.
They are the definition against which every schedule and every graph is tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from pebblesim.core.arithmetic import Arithmetic, function_of
from pebblesim.core.errors import UnknownName, UsageError, as_given
from pebblesim.core.kinds import check_kind
from pebblesim.language.catalogue import Catalogue, place
from pebblesim.language.program import Pairs, grid

if TYPE_CHECKING:
    from sympy import Expr

Array = Any
Shape = tuple[str, ...]

Scale = float | str
"""The factor of the scores: a number, or one of `ROOTS`."""

ROOTS = ("1/sqrt(d_k)", "1/sqrt(d)", "1/√d_k", "1/√d")
"""Names of the usual factor in practice: one over the square root of the number of words in a row of Q and of K."""


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Theta:
    """The expression inside a Θ, as text that sympy can parse, with its source.

    `expr` is the square case; `rectangle` is the expression in the problem's own dimensions, empty if it is not known.
    """

    expr: str
    source: str
    rectangle: str = ""

    def in_rectangle(self) -> Theta | None:
        """Return the expression in the problem's own dimensions; None if it is not known."""
        return Theta(self.rectangle, f"{self.source}; schedules and bounds for n_q ≠ n_k") if self.rectangle else None

    @property
    def sympy(self) -> Expr:
        """Return the expression as a `sympy.Expr`; its symbols have no assumptions."""
        from pebblesim.core.notation import parse

        return parse(self.expr)

    @property
    def written(self) -> str:
        """The expression as tables print it: d·n + min(d²·n²/M, d·n²/√M)."""
        raised = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(_RAISED), self.expr)
        signs = raised.replace("*", "·").replace("Min(", "min(").replace("Max(", "max(")
        return re.sub(r"sqrt\((\w+)\)", r"√\1", signs)

    def value(self, sizes: Mapping[str, int]) -> Decimal:
        """Return its value, a real number with 28 digits, of any magnitude."""
        return Decimal(_of_decimals(self.expr, tuple(sizes))(*map(Decimal, sizes.values())))

    def to_dict(self, value: Decimal) -> dict[str, Any]:
        """Return the expression and its value; the value is an integer if a float would lose digits or overflow."""
        return {"expr": self.expr, "value": float(value) if value < 2**53 else int(value)}

    def of_pairs(self) -> Theta:
        """Return the expression under a mask that allows Z pairs."""
        pairs = "n_q·n_k" if "n_q*n_k" in self.expr else "n²"
        expr = self.expr.replace("n_q*n_k", "Z").replace("n**2", "Z")
        return Theta(expr, f"{self.source}; under a mask with Z pairs for {pairs}")


@lru_cache(maxsize=64)  # the same for all schedules of a problem
def _of_decimals(expr: str, names: tuple[str, ...]) -> Callable[..., Decimal | int]:
    decimals: Arithmetic = {"number": Decimal, "sqrt": Decimal.sqrt, "Min": min, "Max": max}
    return function_of(expr, names, decimals)


@dataclass(frozen=True)
class Problem:
    """A problem: names, symbolic shapes, and a reference function.

    Attributes:
        name: as on the command line.
        dims: names of its dimensions, in the order of the paper.
        from_nd: for each dimension, whether it equals n or d if only n and d are given.
        inputs: shape of each input.
        kept: inputs saved by the forward pass, which only some schedules need.
        outputs: shape of each output.
        extra: outputs that only some schedules write, for use in a backward pass.
        values: the function behind `reference`, for inputs of the right shapes.
        source: where it is defined.
        queries: inputs (also saved ones) with a row for each query.
        keys: inputs (also saved ones) with a row for each key. Without queries and keys the problem takes no mask.
        graph: the function that declares its graph to a `pebblesim.graphs.builder.Builder`, or its location as
            "module:name"; None if games cannot be played.
        theta: the expression inside Θ; None if it is not known.
        bounds: the lower bounds besides the compulsory one: a `pebblesim.lower_bounds.cutting.Bounding`, or its name in
            `pebblesim.lower_bounds.bounds.BOUNDS`; None if there are none.
        totals: alternative sizes. Each is the sum of two dimensions, and may be given instead of the second one, with
            the first.
        scaled: inputs and outputs that are multiplied by s if all scores are. Attention with scores s Q Kᵀ is computed
            from the input s Q instead of Q; the gradient of Q is then s times the gradient of s Q. Empty if there are
            no scores.
        glossary: (formula, meaning) of each tensor: inputs, intermediates and outputs. The formula is in terms of other
            tensors, and empty for an input; the meaning is one line. Schedules may compute a tensor by another, equal
            formula.
        about: what it computes, in one line above its tables; empty if its name says it.
        rectangle: for the square case of a problem, the problem with all its dimensions.

    Raises:
        UsageError: a shape or `from_nd` does not match the dimensions; or the problem has queries and keys, and an
            input over n is in neither list.
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
    graph: Callable[..., Any] | str | None = field(default=None, repr=False)
    theta: Theta | None = None
    bounds: Any = field(default=None, repr=False)
    totals: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    scaled: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    glossary: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    about: str = ""
    rectangle: Problem | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if set(self.from_nd) != set(self.dims) or not {*self.from_nd.values()} <= {"n", "d"}:
            raise UsageError(
                f"problem {self.name!r}: from_nd must give n or d for each dimension ({', '.join(self.dims)}); it "
                f"was {dict(self.from_nd)}."
            )
        for name, shape in {**self.inputs, **self.kept, **self.outputs, **self.extra}.items():
            for dim in shape:
                if dim not in self.dims:
                    raise UnknownName(f"dimension of problem {self.name!r}, in the shape of {name},", dim, self.dims)
        if self.pairs is None:
            return
        tensors = {**self.inputs, **self.kept}
        lined = [name for name, shape in tensors.items() if sum(dim in self.pairs for dim in shape) == 1]
        sides = [
            (name, dim) for names, dim in zip((self.queries, self.keys), self.pairs, strict=True) for name in names
        ]
        if sorted(name for name, _ in sides) != sorted(lined) or any(
            tensors[name][0] != dim for name, dim in sides if name in tensors
        ):
            of = " or ".join(dict.fromkeys(self.pairs))
            raise UsageError(
                f"problem {self.name!r}: each input with one row for each index of {of} ({', '.join(lined)}) "
                f"must be listed either in queries or in keys; given as queries: {', '.join(self.queries) or 'none'}; "
                f"as keys: {', '.join(self.keys) or 'none'}."
            )

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def pairs(self) -> Pairs | None:
        """The dimensions of queries and of keys, from the shapes of `queries` and `keys`; None if there are none."""
        shapes = {**self.inputs, **self.kept}
        sides = [
            next((shapes[name][0] for name in names if name in shapes), None) for names in (self.queries, self.keys)
        ]
        queries, keys = sides[0] or sides[1], sides[1] or sides[0]
        return None if queries is None or keys is None else (queries, keys)

    def heading(self, sizes: str, options: bool = True) -> str:
        """Return what stands above a table: what is computed, and the sizes.

        options: also the options that lead to other problems, for commands that have them.
        """
        about = self.about if options else self.about.partition(" (")[0]
        return f"{self.name}: {about}\n{sizes}" if about else f"{self.name}: {sizes}"

    @property
    def maskable(self) -> bool:
        """Whether it has pairs of a query and a key, so that it takes a mask."""
        return self.pairs is not None

    def in_square(self) -> Problem:
        """Return the square case, with each dimension replaced by n or d as in `from_nd`."""
        names = self.from_nd

        def shapes(tensors: Mapping[str, Shape]) -> dict[str, Shape]:
            return {name: tuple(names[dim] for dim in shape) for name, shape in tensors.items()}

        dims = tuple(dict.fromkeys(names[dim] for dim in self.dims))
        own = replace(self, theta=self.theta and self.theta.in_rectangle())
        return replace(
            self,
            dims=dims,
            from_nd={dim: dim for dim in dims},
            rectangle=own,
            inputs=shapes(self.inputs),
            kept=shapes(self.kept),
            outputs=shapes(self.outputs),
            extra=shapes(self.extra),
        )

    def in_dims(self, names: Iterable[str]) -> Problem:
        """Return the problem in the given dimensions: as declared if they are its own, otherwise the square case."""
        return self.rectangle if self.rectangle and set(names) == set(self.rectangle.dims) else self

    def sizes(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return the size of each dimension: the given one, or that of n or d."""
        return {dim: given[dim if dim in given else self.from_nd[dim]] for dim in self.dims}

    def refuse_mask(self) -> None:
        """Refuse a mask where there are no pairs that it could allow.

        Raises:
            UsageError: the problem has no pairs of queries and keys.
        """
        if not self.maskable:
            raise UsageError(f"problem {self.name!r} has no pairs of queries and keys; leave the mask out.")

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the numbers of queries and of keys.

        Raises:
            UsageError: as for `refuse_mask`.
        """
        self.refuse_mask()
        return grid(self.pairs, sizes)

    def factor(self, scale: Scale, dims: Mapping[str, int]) -> float:
        """Return the factor of the scores: of "1/sqrt(d_k)" its value, where d_k is the number of words in a row of K.

        Raises:
            UsageError: `scale` is neither of these, or it is not 1 and the problem has no scores.
        """
        names, _ = self.scaled
        if scale in ROOTS and names:
            return float(sum(dims[self.inputs[name][-1]] for name in names)) ** -0.5
        try:
            factor = 0.0 if scale in ROOTS else float(scale)
        except (TypeError, ValueError):
            factor = nan
        if not isfinite(factor):
            raise UsageError(f"scale = {as_given(scale)} was given; it is a finite number, or {ROOTS[0]} by this name.")
        if factor != 1 and not names:
            raise UsageError(f"problem {self.name!r} has no scores that could be multiplied; leave the scale out.")
        return factor

    def with_scale(self, tensors: Mapping[str, Array], factor: float, outputs: bool = False) -> dict[str, Array]:
        """Return the tensors; the inputs of `scaled`, or with `outputs` its outputs, are multiplied by the factor."""
        names = self.scaled[outputs] if factor != 1 else ()
        return {name: value * factor if name in names else value for name, value in tensors.items()}

    def reference(
        self, inputs: Mapping[str, Array], allowed: Array | None = None, scale: Scale = 1
    ) -> dict[str, Array]:
        """Compute outputs from inputs, both by name, in float64; also the `kept` and `extra` values.

        Args:
            inputs: one array for each input, of any real type.
            allowed: booleans of shape (n_q, n_k), the allowed pairs; None for all. Other pairs have probability, or
                activation, 0. A row without an allowed pair has m = L = -inf, l = l_m = 0, and zeros in P, O and dQ; a
                column without one has zeros in dK and dV.
            scale: the factor of the scores: a number, 1 as in the paper, or "1/sqrt(d_k)" as in practice.

        Raises:
            UsageError: `allowed` is not such an array, or the problem has no pairs; or `scale` is not allowed, or the
                problem has no scores.
        """
        import numpy as np

        inputs = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
        shapes = {name: inputs[name].shape for name in self.inputs if name in inputs}
        sizes = {
            dim: size for name, shape in shapes.items() for dim, size in zip(self.inputs[name], shape, strict=True)
        }
        factor = self.factor(scale, sizes)
        inputs = self.with_scale(inputs, factor)
        if allowed is None:
            return self.with_scale(self.values(inputs), factor, outputs=True)
        self.refuse_mask()
        grid = tuple(len(inputs[names[0]]) for names in (self.queries or self.keys, self.keys or self.queries))
        if getattr(allowed, "dtype", None) != "bool" or allowed.shape != grid:
            got = f"{getattr(allowed, 'dtype', type(allowed).__name__)} of shape {getattr(allowed, 'shape', '()')}"
            raise UsageError(f"allowed pairs must be booleans of shape {grid}, one for each pair; got {got}.")
        return self.with_scale(self.values(inputs, allowed), factor, outputs=True)

    def random_inputs(
        self,
        dims: Mapping[str, int],
        seed: int = 0,
        kept: tuple[str, ...] = (),
        allowed: Array | None = None,
        scale: Scale = 1,
    ) -> dict[str, Array]:
        """Draw normal float64 inputs, scaled so that scores are of order one, with the requested `kept` values.

        The saved values are those of a forward pass with these `allowed` pairs and this scale, as for `reference`.
        """
        import numpy as np

        rng = np.random.default_rng(seed)
        inputs = {
            name: rng.standard_normal([dims[s] for s in shape]) / dims[shape[-1]] ** 0.5
            for name, shape in self.inputs.items()
        }
        if kept:
            values = self.reference(inputs, allowed, scale)
            inputs |= {name: values[name] for name in kept}
        return inputs


PROBLEMS: Catalogue[Problem] = Catalogue("pebblesim.catalogue")


def problem(name: str, **declared: Any) -> Problem:
    """Return the problem with this name, or, with the fields of a `Problem`, define a new one.

    A new problem replaces one of the same name defined in the same file or in a notebook. The result is the square
    case, in n and d, if the numbers of queries and keys can differ; its `rectangle` is the declared problem.

    Args:
        name: name of the problem.
        declared: fields of a `Problem`, to define a new one.

    Returns:
        The problem.

    >>> problem("matmul").outputs
    {'C': ('m', 'n')}

    Raises:
        UnknownName: there is no such problem; the message suggests similar names.
        UsageError: the name is already used, or a field is missing or unknown.
    """
    if not declared:
        if name not in PROBLEMS:
            raise UnknownName("problem", name, PROBLEMS)
        return PROBLEMS[name]
    for given, value in (("name", name), *declared.items()):
        check_kind(given, value, Problem.__annotations__.get(given, ""))
    try:
        made = Problem(name, **declared)
    except TypeError as error:
        takes = ", ".join(entry.name for entry in fields(Problem)[1:-1])
        why = (str(error).partition(") ")[2] or str(error)).partition(". Did you mean")[0]  # a guess of Python 3.13
        raise UsageError(f"problem {name!r}: {why}; it takes {takes}.") from None
    if name in PROBLEMS and place(PROBLEMS[name].values) != place(made.values):
        raise UsageError(f"there is a problem {name!r} already; choose another name.")
    if made.pairs and made.pairs[0] != made.pairs[1]:
        made = made.in_square()
    PROBLEMS[name] = made
    return made
