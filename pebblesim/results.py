"""What every result can do besides being printed: become plain data, a table of pandas, or a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from pebblesim.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def pandas() -> Any:
    """The library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module("pandas")
    except ImportError:
        raise UsageError("to_frame() takes pandas: pip install 'pebblesim[frames]'; or use to_dict().") from None


class Result:
    """A result that converts to other forms; its class says what it holds."""

    part: ClassVar[str] = "rows"
    """Where `to_dict` has the rows, if it is a table."""

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data that `json.dumps` takes, sizes and counts as exact integers."""
        raise NotImplementedError

    def records(self) -> Sequence[Mapping[str, Any]]:
        """A dictionary for each row; of a result that is no table one row, itself."""
        result = self.to_dict()
        rows: Sequence[Mapping[str, Any]] = result.get(self.part, [result])
        return rows

    def to_frame(self) -> DataFrame:
        """A `pandas.DataFrame` with the rows of `records`; the parts of a value get columns such as "work.mul".

        Raises:
            UsageError: pandas is not installed.
        """
        return pandas().json_normalize([dict(record) for record in self.records()])

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the result.

        Args:
            figure: where to draw; a new one of matplotlib's by default.

        Returns:
            The figure, which a notebook shows, and whose `savefig` keeps it.

        Raises:
            UsageError: there is no picture of such a result.
        """
        from matplotlib.figure import Figure as New

        # By name, and only when asked for: results lie below the pictures of them.
        draw = import_module("pebblesim.plots.results").draw
        figure = figure if figure is not None else New(figsize=(7.5, 5), layout="constrained")
        draw(self, figure)
        return figure
