"""Bounds of users that have passed their tests (see `pebblesim.dags.own_bounds`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pebblesim.core.errors import PebblesimError, UsageError


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
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise UsageError(f"{self.name} gives {value!r} for {where}; a bound is a whole number of words.")
        return int(value)

    @property
    def source(self) -> str:
        """Say that it is a user's, and how it was tested."""
        return f"a user's own, without proof: at most each of {self.optima:,} proven optima of small graphs"

    def __str__(self) -> str:
        return f"{self.name}: at most each of {self.optima:,} proven optima, and equal to {self.tight:,} of them"


OWN: Final[dict[str, OwnBound]] = {}
"""All bounds that have passed, by name."""
