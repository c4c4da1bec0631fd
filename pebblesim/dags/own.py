"""The bounds of users that have passed their trial (`pebblesim.dags.own_bounds`), for whoever counts with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pebblesim.errors import PebblesimError, UsageError


@dataclass(frozen=True, eq=False)
class OwnBound:
    """A bound that has passed its trial; calling it calls the function.

    Attributes:
        function: gives words from a graph and M, or from the sizes of a problem and M.
        name: of the function.
        problem: the problem it is for; None for any DAG.
        rules: the rule sets under which it is claimed.
        optima: the number of proven optima that it was compared with.
        tight: how many of these it meets.
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
        """What the function gives, which must be a whole number of words.

        Raises:
            UsageError: it fails, or gives something else; the message says where.
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
        """Whose it is, and what speaks for it."""
        return f"a user's own, no proof: at most each of {self.optima:,} proven optima of small graphs"

    def __str__(self) -> str:
        return f"{self.name}: at most each of {self.optima:,} proven optima, and equal to {self.tight:,} of them"


OWN: Final[dict[str, OwnBound]] = {}
"""All that have passed, by name."""
