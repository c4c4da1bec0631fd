"""Conversions of results: to plain data, to a pandas table, and to a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from pebblesim.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def pandas() -> Any:
    """Import and return pandas.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        return import_module("pandas")
    except ImportError:
        raise UsageError("to_frame() needs pandas: pip install pandas; or use to_dict().") from None


def plain(of: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Return attributes as plain data for JSON, by name: mappings are copied, and tuples are lists.

    "game.reads" is an attribute of an attribute, with the name "reads"; `n="team.n_q"` gives it another name. What has
    a `to_dict` is taken from that.
    """
    paths = {name.rpartition(".")[2]: name for name in names} | renamed
    return {name: _data(attrgetter(path)(of)) for name, path in paths.items()}


def _data(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _data(part) for name, part in value.items()}
    return [_data(part) for part in value] if isinstance(value, list | tuple) else value


class Result:
    """Base class of results; it converts them to other forms."""

    part: ClassVar[str] = "rows"
    """The key of the rows in `to_dict`, if the result is a table."""

    picture: ClassVar[Callable[[Result, Figure], None]]
    """Draws a result. The package sets it when it is imported: the layer of results is below the layer of pictures."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for `json.dumps`; sizes and counts are exact integers."""
        raise NotImplementedError

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Return one dictionary for each row; a result that is not a table is one row."""
        result = self.to_dict()
        rows: Sequence[Mapping[str, Any]] = result.get(self.part, [result])
        return rows

    def to_frame(self) -> DataFrame:
        """Return a `pandas.DataFrame` with the rows of `records`; parts of a value get columns such as "work.mul".

        Raises:
            UsageError: pandas is not installed.
        """
        return pandas().json_normalize([dict(record) for record in self.records()])

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the result.

        Args:
            figure: the matplotlib figure to draw on; a new one by default.

        Returns:
            The figure. A notebook shows it; its `savefig` saves it to a file.

        Raises:
            UsageError: this kind of result has no picture.
        """
        from matplotlib.figure import Figure as New

        figure = figure if figure is not None else New(figsize=(7.5, 5), layout="constrained")
        type(self).picture(self, figure)
        return figure
