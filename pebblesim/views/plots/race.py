"""Draw speed over the head dimension, from the results of `pebblesim gpu race`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pebblesim.core.errors import UsageError
from pebblesim.views.plots.style import line, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def race(rows: Sequence[Mapping[str, Any]], figure: Figure, n: int, card: str = "") -> Figure:
    """Draw useful operations per second over d, forward above backward, without a mask: ours, and those of others.

    Kernels of ours have colours and filled marks, others are grey with hollow marks; each group has its own legend.

    Args:
        rows: results of `pebblesim gpu race`.
        figure: where to draw.
        n: the sequence length whose rows are drawn.
        card: name of the card, for the axis.

    Raises:
        UsageError: there is no such row.
    """
    fine = [row for row in rows if row.get("n") == n and row.get("mask") is None and "tflops" in row]
    if not fine:
        raise UsageError(f"these results hold no race without a mask at n = {n:,}; `pebblesim gpu race` runs some.")
    styles = _styles(list(dict.fromkeys(row["contender"] for row in fine)))
    ways = [way for way in ("forward", "backward") if any(row["way"] == way for row in fine)]
    for ax, way in zip(figure.subplots(len(ways), 1, sharex=True, squeeze=False)[:, 0], ways, strict=True):
        _way(ax, [row for row in fine if row["way"] == way], styles)
        _widths(ax, sorted({row["d"] for row in fine}))
        titled(ax, f"{way}, n = {n:,}")
        ax.set_ylabel(f"useful TFLOP/s, {card}" if card else "useful TFLOP/s")
        ax.set_xlabel("d, head dimension" if way == ways[-1] else "")
    lines = {line.get_label(): line for ax in figure.axes for line in ax.lines}
    for title, other in (("pebblesim", False), ("PyTorch", True)):
        group = {name.removeprefix("torch-"): lines[name] for name in styles if name.startswith("torch") is other}
        looks: dict[str, Any] = {"title": title, "fontsize": 9, "title_fontsize": 10, "frameon": False}
        place: Any = "outside lower right" if other else "outside lower left"
        figure.legend(group.values(), group, loc=place, alignment="left", **looks)
    return figure


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the look of each line: kernels of ours in colours, those of PyTorch in greys; all differ in marks."""
    ours, torch = ([name for name in names if name.startswith("torch") is of] for of in (False, True))
    greys = {"cudnn": "0", "flash": "0.3", "efficient": "0.5", "math": "0.65", "flex": "0.2"}
    looks = {name: line(number) for number, name in enumerate(ours)}
    for number, name in enumerate(torch, len(ours)):
        looks[name] = {
            **line(number),
            "color": greys.get(name.removeprefix("torch-"), "0.4"),
            "markerfacecolor": "white",
        }
    return looks


def crossing(rows: Sequence[Mapping[str, Any]], figure: Figure, n: int, card: str = "") -> Figure:
    """Draw where the small-cache kernels become better than the others as d grows, in counted bytes and in time.

    The curves are ratios of bytes into and out of multiprocessors, and of seconds: the fastest Triton kernels of each
    other schedule over those of the small-cache schedule. Above 1 the small-cache schedule is better.

    Args:
        rows: results of `pebblesim gpu race`.
        figure: where to draw.
        n: the sequence length whose rows are drawn.
        card: name of the card, for the titles.

    Raises:
        UsageError: there is nothing to compare.
    """
    ours = [made for row in rows if row.get("n") == n and row.get("mask") is None and (made := _in_triton(row))]
    ways = [way for way in ("forward", "backward") if len({r["contender"] for r in ours if r["way"] == way}) > 1]
    if not ways:
        raise UsageError(f"these results hold no two schedules of ours without a mask at n = {n:,}.")
    for ax, way in zip(figure.subplots(len(ways), 1, squeeze=False)[:, 0], ways, strict=True):
        by_case = {(row["contender"], row["d"]): row for row in ours if row["way"] == way}
        base = next(name for name, _ in by_case if name.startswith("small-cache"))
        others = [name for name in dict.fromkeys(name for name, _ in by_case) if name != base]
        for number, name in enumerate(others):
            for what, of in (("bytes, counted", _bytes), ("time, measured", lambda row: row["seconds"])):
                widths = [d for other, d in by_case if other == name and (base, d) in by_case]
                points = sorted((d, of(by_case[name, d]) / of(by_case[base, d])) for d in widths)
                dashes = {**line(number), "linestyle": "-" if what.startswith("time") else ":"}
                ax.plot(*zip(*points, strict=True), **dashes, markersize=5, linewidth=1.3, label=f"{name}: {what}")
        ax.axhline(1, color="black", linewidth=0.8)
        titled(ax, f"{way}, n = {n:,}{f', {card}' if card else ''}")
        _widths(ax, sorted({d for _, d in by_case}))
        ax.set_yscale("log")
        ax.set_ylabel(f"bytes and time, ÷ those of\n{base}", fontsize=9)
        ax.set_yticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
        ax.minorticks_off()
        ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2)
    return figure


def _in_triton(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of a schedule with its fastest kernels in Triton; empty if there are none."""
    kernels = [made for made in row.get("tried", ()) if "read_bytes" in made and not made.get("gluon", False)]
    return {**row, **min(kernels, key=lambda made: made["seconds"])} if kernels else {}


def _bytes(row: Mapping[str, Any]) -> int:
    return int(row["read_bytes"] + row["written_bytes"])


def _widths(ax: Axes, widths: Sequence[int]) -> None:
    ax.set(xscale="log", xlabel="d, head dimension")
    ax.set_xticks(widths, [str(d) for d in widths], rotation=60)
    ax.minorticks_off()


def _way(ax: Axes, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, Mapping[str, Any]]) -> None:
    for name, style in styles.items():
        points = sorted((row["d"], row["tflops"]) for row in rows if row["contender"] == name)
        if points:
            ax.plot(*zip(*points, strict=True), **style, markersize=5, linewidth=1.3, label=name)
    ax.set_ylim(0, None)
