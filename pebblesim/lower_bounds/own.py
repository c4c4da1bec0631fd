"""Bounds of users that have passed their tests (see `pebblesim.api.own_bounds`), beside the proved ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pebblesim.core.errors import PebblesimError, UsageError, as_given
from pebblesim.core.sizes import as_whole
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem, problem
from pebblesim.lower_bounds.bounds import Formulation, LowerBound, best, largest


@dataclass(frozen=True, eq=False)
class OwnBound:
    """A bound that has passed its tests; calling it calls the function.

    Attributes:
        function: computes words from a graph and M, or from the sizes of a problem and M.
        name: name of the function.
        problem: the problem that it bounds; None for any DAG.
        rules: the rule sets under which it is claimed to hold.
        optima: number of proven optima in the test.
        tight: number of these optima that it equals.
    """

    function: Callable[..., Any]
    name: str
    problem: str | None
    rules: tuple[str, ...]
    optima: int = 0
    tight: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def words(self, where: str, *args: Any, **kwargs: Any) -> int:
        """Call the function, which must return a whole number of words.

        Raises:
            UsageError: it fails or returns something else; the message names `where`.
        """
        try:
            value = self.function(*args, **kwargs)
        except PebblesimError:
            raise
        except Exception as error:
            raise UsageError(f"{self.name} fails on {where}: {type(error).__name__}: {error}.") from error
        number = as_whole(value)
        if number is None:
            raise UsageError(
                f"{self.name} gives {as_given(value)} for {where}; a bound is a whole number of words; return "
                "math.ceil(…) of it."
            )
        return number

    @property
    def source(self) -> str:
        """Name of the bound, that it is a user's, and how it was tested."""
        return (
            f"{self.name}: a user's own, without proof: at most each of {self.optima:,} proven optima of small graphs"
        )

    def __str__(self) -> str:
        return f"{self.name}: at most each of {self.optima:,} proven optima, and equal to {self.tight:,} of them"


OWN: Final[dict[str, OwnBound]] = {}
"""All bounds that have passed, by name."""


def own_bounds(solves: Problem, sizes: Mapping[str, int], M: int) -> list[LowerBound]:
    """Return users' bounds on a problem in these dims, for all pairs, that are claimed with recomputation."""
    where = f"{solves.name} at M = {M}"
    return [
        LowerBound(own.name, own.words(where, **sizes, M=M), own.source, None, own=True)
        for own in OWN.values()
        if own.problem == solves.name and "hong-kung" in own.rules and set(problem(own.problem).dims) == set(sizes)
    ]


def best_with_own(
    solves: Problem,
    sizes: Mapping[str, int],
    M: int,
    formulation: Formulation | None = None,
    mask: Mask | None = None,
) -> LowerBound:
    """Return the largest lower bound, proved or a user's own; arguments and errors as for `bounds.best`."""
    proved = best(solves, sizes, M, formulation, mask)
    return proved if mask is not None else largest([proved, *own_bounds(solves, sizes, M)])
