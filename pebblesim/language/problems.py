"""What a problem says of itself, in one place; those that ship with pebblesim are in `pebblesim.problems`.

Schedules are compared only within one problem. The references are written for reading, in float64 and without
any blocking: they are the definition that every schedule and every graph is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import cached_property
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from pebblesim.arithmetic import Arithmetic, function_of
from pebblesim.errors import UnknownName, UsageError
from pebblesim.language.catalogue import Catalogue, place
from pebblesim.language.program import Pairs, grid

if TYPE_CHECKING:
    from sympy import Expr

Array = Any
Shape = tuple[str, ...]

Scale = float | str
"""What scores are multiplied by: a number, or one of `ROOTS`."""

ROOTS = ("1/sqrt(d_k)", "1/sqrt(d)", "1/√d_k", "1/√d")
"""Names of one over the square root of the words in a row of queries and keys, the scale of practice."""


@dataclass(frozen=True)
class Theta:
    """An expression inside Θ, as text that sympy can parse, with its source.

    `rectangle` is it in the problem's own dimensions, where `expr` is the square case; empty if that is not known.
    """

    expr: str
    source: str
    rectangle: str = ""

    def in_rectangle(self) -> Theta | None:
        """The expression in the problem's own dimensions; None if that is not known."""
        return Theta(self.rectangle, f"{self.source}; schedules and bounds for n_q ≠ n_k") if self.rectangle else None

    @property
    def sympy(self) -> Expr:
        """The expression as a `sympy.Expr`, its symbols without assumptions."""
        from pebblesim.notation import parse

        return parse(self.expr)

    def value(self, sizes: Mapping[str, int]) -> Decimal:
        """Its value, a real number to 28 digits, of any magnitude."""
        decimals: Arithmetic = {"number": Decimal, "sqrt": Decimal.sqrt, "Min": min, "Max": max}
        return Decimal(function_of(self.expr, sizes, decimals)(*map(Decimal, sizes.values())))

    def to_dict(self, value: Decimal) -> dict[str, Any]:
        """The expression and a value of it: as a whole number where a float would lose digits, or overflow."""
        return {"expr": self.expr, "value": float(value) if value < 2**53 else int(value)}

    def of_pairs(self) -> Theta:
        """The same under a mask that allows Z pairs."""
        pairs = "n_q·n_k" if "n_q*n_k" in self.expr else "n²"
        expr = self.expr.replace("n_q*n_k", "Z").replace("n**2", "Z")
        return Theta(expr, f"{self.source}; under a mask with Z pairs for {pairs}")


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
        graph: the function that declares its graph to a `pebblesim.graphs.builder.Builder`, or where one is found, as
            "module:name"; None if games cannot be played.
        theta: the expression inside Θ; None if it is not known.
        bounds: the lower bounds that hold for it beyond the compulsory one, a `pebblesim.theory.cutting.Bounding`, or
            whose they are, by name (`pebblesim.theory.lower_bounds.BOUNDS`); None for no others.
        totals: sizes that may be given in the place of one of two dimensions, which add up to it; the first of both is
            then given, too.
        scaled: inputs that take in a factor of all scores, and outputs that it comes out of again: softmax(s Q Kᵀ) is
            that of s Q and K, and the gradient of Q is s times that of s Q. Empty if there are no scores.
        glossary: of each tensor, inputs and those on the way to the outputs, (formula, meaning): what it is equal to,
            in terms of the others, and one line of what it stands for. The formula of an input is empty. Schedules may
            compute a tensor in another way, and to a formula that is equal.
        rectangle: of the square case of a problem, the problem with all its dimensions.

    Raises:
        UsageError: a shape or `from_nd` does not fit the dimensions; or it has queries and keys, and an input over n
            is not said to belong to either.
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
    rectangle: Problem | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if set(self.from_nd) != set(self.dims) or not {*self.from_nd.values()} <= {"n", "d"}:
            raise UsageError(
                f"problem {self.name!r}: from_nd says of each dimension ({', '.join(self.dims)}) whether it is n or d "
                f"where only those are given; it was {dict(self.from_nd)}."
            )
        for name, shape in {**self.inputs, **self.kept, **self.outputs, **self.extra}.items():
            for dim in shape:
                if dim not in self.dims:
                    raise UnknownName(f"dimension of problem {self.name!r}, in the shape of {name},", dim, self.dims)
        if self.pairs is None:
            return
        given = {**self.inputs, **self.kept}
        lined = [name for name, shape in given.items() if sum(dim in self.pairs for dim in shape) == 1]
        sides = [
            (name, dim) for names, dim in zip((self.queries, self.keys), self.pairs, strict=True) for name in names
        ]
        if sorted(name for name, _ in sides) != sorted(lined) or any(
            given[name][0] != dim for name, dim in sides if name in given
        ):
            of = " or ".join(dict.fromkeys(self.pairs))
            raise UsageError(
                f"problem {self.name!r}: each input with one row for each index of {of} ({', '.join(lined)}) "
                f"belongs either to the queries or to the keys; given as queries: {', '.join(self.queries) or 'none'}; "
                f"as keys: {', '.join(self.keys) or 'none'}."
            )

    @cached_property
    def pairs(self) -> Pairs | None:
        """The dimension of queries and that of keys, from the shapes of those inputs; None without."""
        shapes = {**self.inputs, **self.kept}
        sides = [
            next((shapes[name][0] for name in names if name in shapes), None) for names in (self.queries, self.keys)
        ]
        queries, keys = sides[0] or sides[1], sides[1] or sides[0]
        return None if queries is None or keys is None else (queries, keys)

    @property
    def maskable(self) -> bool:
        """Whether it has pairs, of a query and a key, that a mask can forbid."""
        return self.pairs is not None

    def in_square(self) -> Problem:
        """The same with n for each dimension that is n where only n and d are given, and d for the others."""
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

    def in_dims(self, given: Iterable[str]) -> Problem:
        """The problem in those dimensions: as it was declared if they are its own, otherwise this, its square case."""
        return self.rectangle if self.rectangle and set(given) == set(self.rectangle.dims) else self

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The numbers of queries and of keys."""
        return grid(self.pairs, sizes)

    def factor(self, scale: Scale, dims: Mapping[str, int]) -> float:
        """What scores are multiplied by: a number, or "1/sqrt(d_k)", where d_k words are in a row of queries and keys.

        Raises:
            UsageError: it is neither, or it is not 1 and the problem has no scores.
        """
        names, _ = self.scaled
        if scale in ROOTS and names:
            return float(sum(dims[self.inputs[name][-1]] for name in names)) ** -0.5
        try:
            factor = 0.0 if scale in ROOTS else float(scale)
        except (TypeError, ValueError):
            factor = nan
        if not isfinite(factor):
            raise UsageError(f"scale = {scale!r} was given; it is a finite number, or {ROOTS[0]} by this name.")
        if factor != 1 and not names:
            raise UsageError(f"problem {self.name!r} has no scores that could be scaled; leave the scale out.")
        return factor

    def with_scale(self, tensors: Mapping[str, Array], factor: float, outputs: bool = False) -> dict[str, Array]:
        """Inputs that have taken in a factor of the scores; or outputs made of such, for the inputs as they were."""
        names = self.scaled[outputs] if factor != 1 else ()
        return {name: value * factor if name in names else value for name, value in tensors.items()}

    def reference(
        self, inputs: Mapping[str, Array], allowed: Array | None = None, scale: Scale = 1
    ) -> dict[str, Array]:
        """Outputs from inputs, both by name, in float64; also the `kept` and `extra` values it passes on its way.

        Args:
            inputs: one array for each input, of any real type.
            allowed: booleans of shape (n_q, n_k), the pairs that may meet; None for all. The others have probability,
                or activation, 0. A row without any has m = L = -inf, l = l_m = 0, and zeros in P, O and dQ; a column
                without any has zeros in dK and dV.
            scale: what scores are multiplied by: a number, 1 as in the paper, or "1/sqrt(d_k)" as in practice.

        Raises:
            UsageError: `allowed` is no such array, or the problem has no pairs; or it has no scores, or the scale is
                none.
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
        if not self.maskable:
            raise UsageError(f"problem {self.name!r} has no pairs that a mask could forbid; leave the mask out.")
        grid = tuple(len(inputs[names[0]]) for names in (self.queries or self.keys, self.keys or self.queries))
        if getattr(allowed, "dtype", None) != "bool" or allowed.shape != grid:
            given = f"{getattr(allowed, 'dtype', type(allowed).__name__)} of shape {getattr(allowed, 'shape', '()')}"
            raise UsageError(f"allowed pairs are booleans of shape {grid}, one for each pair; got {given}.")
        return self.with_scale(self.values(inputs, allowed), factor, outputs=True)

    def random_inputs(
        self,
        dims: Mapping[str, int],
        seed: int = 0,
        kept: tuple[str, ...] = (),
        allowed: Array | None = None,
        scale: Scale = 1,
    ) -> dict[str, Array]:
        """Normal float64 inputs, scaled so that scores are of order one, with the `kept` values that are asked for.

        These are what the forward pass keeps where only the `allowed` pairs meet and scores are scaled, as for
        `reference`.
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


PROBLEMS: Catalogue[Problem] = Catalogue("pebblesim.problems")


def problem(name: str, **declared: Any) -> Problem:
    """The problem of that name, or, with the fields of a `Problem`, a new one.

    A new one takes the place of one that was defined in the same file, or in a notebook. Of one whose queries and keys
    differ in number this is the square case, in n and d; its `rectangle` is as declared.

    Args:
        name: the problem's.
        declared: fields of a `Problem`, for a new one.

    Returns:
        The problem.

    >>> problem("matmul").outputs
    {'C': ('m', 'n')}

    Raises:
        UnknownName: there is none; the message suggests one.
        UsageError: the name is taken, or a field is missing or unknown.
    """
    if not declared:
        if name not in PROBLEMS:
            raise UnknownName("problem", name, PROBLEMS)
        return PROBLEMS[name]
    try:
        made = Problem(name, **declared)
    except TypeError as error:
        takes = ", ".join(each.name for each in fields(Problem)[1:-1])
        why = (str(error).partition(") ")[2] or str(error)).partition(". Did you mean")[0]  # a guess of Python 3.13
        raise UsageError(f"problem {name!r}: {why}; it takes {takes}.") from None
    if name in PROBLEMS and place(PROBLEMS[name].values) != place(made.values):
        raise UsageError(f"there is a problem {name!r} already; choose another name.")
    if made.pairs and made.pairs[0] != made.pairs[1]:
        made = made.in_square()
    PROBLEMS[name] = made
    return made
