"""Sweeps: a row for each schedule and each combination of sizes, by count, by closed form or by playing the game.

Closed forms are evaluated for all points at once. Slower computations, above all games, run point by point
(`pebblesim.sweeps.rows`). The rows are in the order of the points, so a sweep that was stopped and resumed gives
the same file, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pebblesim.api.derive import formula
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import axis, bytes_of, check_rule
from pebblesim.core.tables import Table, format_of
from pebblesim.counting.arguments import AnyMask, dims_meant
from pebblesim.counting.checked_theta import check_theta
from pebblesim.counting.heads import Heads, shared
from pebblesim.counting.run import Run
from pebblesim.game.rules import RULES
from pebblesim.language import masks
from pebblesim.language.masks import HeadMasks
from pebblesim.language.problems import Problem, problem
from pebblesim.language.registry import Schedule, get_all, some_of_problem
from pebblesim.sweeps.rows import RESULTS, Point, Workers, describe, row_of

MOST_POINTS = 10_000_000

Sizes = int | str | Iterable[int]


@checked_kinds("jobs")
def sweep(
    schedules: str | Schedule | Iterable[str | Schedule] | None = None,
    *,
    what: str = "count",
    problem_name: str | None = None,
    M: Sizes | None = None,
    blocks: str | Mapping[str, Sizes] = "fit",
    mask: AnyMask | None = None,
    summation: str = "chain",
    rules: str = "hong-kung",
    output: str | Path | None = None,
    store: str | Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    progress: Callable[[float], None] | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    dtype: str | None = None,
    **dims: Sizes,
) -> Table:
    """Compute one row for each schedule and each combination of sizes.

    Args:
        schedules: one or several schedules; by default all of the problem.
        what: "count", "formula" (closed forms, the fastest) or "play" (a game for each row).
        problem_name: "backward" unless a schedule says otherwise.
        M: red pebbles, in words. Sizes are a number, several, or a text such as "64,128" or "256:1M:x2".
        blocks: "fit", "paper", "best", or sizes by name; a block without sizes follows "fit".
        mask, summation, rules: as for `count` and `play`.
        output: a .csv, .json or .parquet for the table, written whole or not at all.
        store: an SQLite file that stores each row as soon as it is computed; by default next to the output. The same
            sweep resumes where it was stopped, and a larger sweep reuses the stored rows.
        jobs: processes; as many as there are cores by default.
        dask: address of a Dask scheduler whose workers compute the rows.
        progress: called from time to time with the fraction done.
        heads, kv_heads, batch, separate: as for `count`; the columns that begin with total are for all heads and
            sequences, the others for one head, or for those that are counted as one.
        dtype: type of a word, for totals in bytes.
        dims: sizes of the dimensions of the problem, such as n="1k:1M:x4", d=(64, 128).

    Returns:
        The table, in the order of the points.

    >>> table = sweep("small-cache", what="formula", n="1k:4k:x2", d=64, blocks={"B": (32, 64)})
    >>> table.columns["io"][:3].tolist()
    [23007232, 16322560, 90050560]

    Raises:
        UsageError: a size, name or file is not allowed, or some rows could not be computed; the other rows are in the
            store.
    """
    if what not in RESULTS:
        raise UnknownName("kind of row", what, RESULTS)
    if rules not in RULES:
        raise UnknownName("rule set", rules, RULES)
    if dtype is not None:
        bytes_of(dtype)
    check_rule(blocks)
    algorithms = get_all(schedules)
    by_schedule = algorithms[0].problem.name if algorithms else "backward"
    solves = problem(by_schedule if problem_name is None else problem_name)
    axes = {name: axis(name, sizes) for name, sizes in dims.items()}
    meant = dims_meant(solves, axes)
    axes = axes if M is None else {**axes, "M": axis("M", M)}
    own = {} if isinstance(blocks, str) else {name: axis(name, sizes) for name, sizes in blocks.items()}
    pairs, among = masks.of_heads(mask), Heads(heads, kv_heads, batch, separate)
    if among.heads_per_problem > 1:
        own_dims = shared(solves)
        meant = {dim: meant.get(dim, own_dims.from_nd[dim]) for dim in own_dims.dims}
    algorithms = algorithms or some_of_problem(solves.name, meant, mask is not None)
    rule = blocks if isinstance(blocks, str) else "fit"
    run = Run(algorithms[0], {}, 0, rule, summation, pairs, among)
    _check(what, algorithms, solves, run, own, M is None)
    points = len(algorithms) * prod(map(len, (*axes.values(), *own.values())))
    if points > MOST_POINTS:
        raise UsageError(f"these are {points:,} points; a sweep has {MOST_POINTS:,} at most.")
    workers = Workers(_place_of_rows(output, store), jobs, dask, progress)
    swept = [
        _Swept(axes, meant, own, Point(what, replace(run, schedule=algorithm), rules, describe(algorithm, pairs)))
        for algorithm in (algorithm.in_dims(meant) for algorithm in algorithms)
    ]
    table = _formulas(swept, workers) if what == "formula" else _one_by_one(swept, workers)
    table = _with_totals(table, run, dtype)
    if output is not None:
        table.save(Path(output))
    return table


def _check(
    what: str, algorithms: Sequence[Schedule], solves: Problem, run: Run, blocks: Iterable[str], without_M: bool
) -> None:
    """Raise a UsageError for a sweep that has no rows: `run` has its mask and heads, and `blocks` are given by name."""
    several_masks = isinstance(run.mask, HeadMasks)
    if what == "formula" and run.mask is not None and (run.heads.heads_per_problem > 1 or several_masks):
        raise UsageError(
            f"closed forms under a mask, here {run.mask}, are of a head for itself; sweep by count, or leave one out."
        )
    if what == "play" and several_masks:
        raise UsageError(f"a game is of one head, and mask {run.mask}; sweep by count, or give one mask for all.")
    for algorithm in algorithms:
        if algorithm.problem is not solves:
            raise UsageError(
                f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}; sweep each by itself."
            )
        for name in blocks:
            if name not in algorithm.blocks:
                raise UnknownName(f"block of {algorithm.name}", name, algorithm.blocks)
        if without_M and (what != "formula" or set(blocks) != set(algorithm.blocks)):
            raise UsageError(
                f"M is missing; without it {algorithm.name} is swept by formula alone, with sizes for all its blocks."
            )
    if what == "count":
        check_theta(solves)


def _place_of_rows(output: str | Path | None, store: str | Path | None) -> Path | None:
    """Return the file that keeps the rows; None if they are not kept."""
    if output is None:
        return None if store is None else Path(store)
    format_of(Path(output))
    kept = Path(output).with_suffix(".sqlite") if store is None else Path(store)
    if kept.resolve() == Path(output).resolve():
        raise UsageError(f"the table and the stored rows would both be {str(output)!r}; give the store another name.")
    return kept


@dataclass(frozen=True)
class _Swept:
    """One schedule of a sweep: its axes, those of its blocks, and what its points have in common.

    Attributes:
        axes: the sizes of each dimension that was named, and of M.
        meant: the axis of each dimension of the problem.
        blocks: the sizes of the blocks that were given.
        common: a point without sizes.
    """

    axes: Mapping[str, tuple[int, ...]]
    meant: Mapping[str, str]
    blocks: Mapping[str, tuple[int, ...]]
    common: Point

    @property
    def run(self) -> Run:
        """The run that the points have in common, without sizes."""
        return self.common.run

    @property
    def all_axes(self) -> Mapping[str, tuple[int, ...]]:
        return {**self.axes, **{f"block {name}": sizes for name, sizes in self.blocks.items()}}

    def point(self, values: Mapping[str, int]) -> Point:
        run = replace(
            self.run,
            dims={dim: values[axis] for dim, axis in self.meant.items()},
            M=values.get("M", 0),
            blocks={name: values[f"block {name}"] for name in self.blocks} or self.run.blocks,
        )
        return replace(self.common, run=run)

    @property
    def total(self) -> int:
        """Number of points."""
        return prod(map(len, self.all_axes.values()))

    def points(self) -> Iterator[Point]:
        names, sizes = self.all_axes.keys(), self.all_axes.values()
        return (self.point(dict(zip(names, values, strict=True))) for values in product(*sizes))


def _one_by_one(swept: Sequence[_Swept], workers: Workers) -> Table:
    points = [point for one in swept for point in one.points()]
    rows = workers.rows(points)
    columns = _head(swept)
    for name in swept[0].meant:
        columns[name] = [point.run.dims[name] for point in points]
    columns["M"] = [point.run.M or None for point in points]
    for name in _blocks(swept):
        columns[f"block_{name}"] = [row["blocks"].get(name) for row in rows]
    compared = ("io_without_sharing",) if any("io_without_sharing" in row for row in rows) else ()
    for name in (*RESULTS[swept[0].common.what], "least_M", *compared):
        columns[name] = [row.get(name) for row in rows]
    return Table(columns)


def _with_totals(table: Table, run: Run, dtype: str | None) -> Table:
    """Add the words moved for all heads and sequences, if these were given."""
    if not run.heads.is_given:
        return table
    columns: dict[str, Any] = dict(table.columns)
    apart = {"io_without_sharing": columns.pop("io_without_sharing")} if "io_without_sharing" in columns else {}

    def all_heads(name: str, factor: int) -> list[int | None]:
        return [None if words is None else int(words) * factor for words in table.columns[name]]

    totals = {f"total_{name}": all_heads(name, run.times) for name in ("reads", "writes", "io")}
    totals |= {} if dtype is None else {"total_bytes": all_heads("io", run.times * bytes_of(dtype))}
    said = {name: [value] * len(table) for name, value in (run.heads.to_dict() | {"times": run.times}).items()}
    names = list(columns)
    before = names[: names.index("problem") + 1]
    return Table({**{name: columns[name] for name in before}, **said, **columns, **totals, **apart})


def _blocks(swept: Sequence[_Swept]) -> list[str]:
    """Return the blocks of all schedules, without repetition."""
    return list(dict.fromkeys(name for one in swept for name in one.run.schedule.blocks))


def _head(swept: Sequence[_Swept]) -> dict[str, Sequence[Any]]:
    """Return the columns that identify the rows, besides their sizes."""
    common, run = swept[0].common, swept[0].run
    constants: dict[str, object] = {"problem": swept[0].run.schedule.problem.name}
    constants |= {"mask": None if run.mask is None else str(run.mask)}
    constants |= {"blocks": "given" if swept[0].blocks else run.blocks}
    constants |= {"summation": run.summation} if common.what != "formula" else {}
    constants |= {"rules": common.rules} if common.what == "play" else {}
    names = [one.run.schedule.name for one in swept for _ in range(one.total)]
    return {"schedule": names, **{name: [value] * len(names) for name, value in constants.items()}}


def _formulas(swept: Sequence[_Swept], workers: Workers) -> Table:
    """Evaluate closed forms for all points at once."""
    import numpy as np

    parts = [_formula(one, workers) for one in swept]
    columns: dict[str, Any] = dict(_head(swept))
    blocks = (f"block_{name}" for name in _blocks(swept))
    for name in (*swept[0].meant, "M", *blocks, *RESULTS["formula"], "least_M"):
        values = (part.get(name, np.full(one.total, None)) for part, one in zip(parts, swept, strict=True))
        columns[name] = np.concatenate(list(values))
    return Table(columns)


def _formula(one: _Swept, workers: Workers) -> dict[str, Any]:
    """The columns of one schedule, as arrays."""
    import numpy as np

    grids = np.meshgrid(*map(_array, one.all_axes.values()), indexing="ij")
    points = {name: grid.ravel() for name, grid in zip(one.all_axes, grids, strict=True)}
    columns = {dim: points[name] for dim, name in one.meant.items()}
    counted = dict(columns)
    if (together := one.run.heads.heads_per_problem) > 1:
        pairs = shared(one.run.schedule.problem).pairs
        assert pairs is not None
        counted[pairs[0]] = _array([size * together for size in columns[pairs[0]].tolist()])
    columns |= {"M": points["M"]} if "M" in points else {}
    blocks, least_M = _chosen(one, workers, points)
    columns |= {f"block_{name}": sizes for name, sizes in blocks.items()} | {"least_M": least_M}
    feasible = least_M == np.array(None)
    closed = formula(one.run.schedule, one.run.mask)
    sizes = {name: (columns | counted | blocks)[name] for name in closed.variables}
    if not feasible.all():
        sizes = {name: _array(values[feasible].tolist()) for name, values in sizes.items()}
    for name in ("reads", "writes", "peak_words"):
        values = np.broadcast_to(closed.function_of(name)(**sizes), feasible.sum())
        if not feasible.all():
            values, some = np.full(one.total, None), values
            values[feasible] = some
        columns[name] = values
    return columns | {"io": _sum(columns["reads"], columns["writes"])}


def _array(sizes: Sequence[int]) -> Any:
    """An array of exact integers."""
    import numpy as np

    return np.array(sizes, dtype=np.int64 if max(sizes, default=0) < 2**63 else object)


def _sum(a: Any, b: Any) -> Any:
    """Return a + b, exactly; None where a value is missing."""
    import numpy as np

    if a.dtype == b.dtype == np.int64 and max(a.max(), b.max()) < 2**62:
        return a + b
    total = np.full(len(a), None)
    total[:] = [None if x is None else x + y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return total


def _chosen(one: _Swept, workers: Workers, points: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the blocks at all points, by name, and the least feasible M where M is too small, None elsewhere."""
    import numpy as np

    names = one.run.schedule.blocks
    if "M" not in points or (names and set(one.blocks) == set(names)):
        return {name: points[f"block {name}"] for name in names}, np.full(one.total, None)
    if one.run.blocks != "paper":
        chosen = workers.rows(list(one.points()))
    else:  # a printed rule depends on a few axes, and is asked once for each of their values
        used = set(re.findall(r"[A-Za-z_]\w*", " ".join(one.run.schedule.paper.values())))
        used = {one.meant.get(name, name) for name in used}
        axes = {name: sizes if name in used else sizes[:1] for name, sizes in one.axes.items()}
        few = (one.point(dict(zip(axes, values, strict=True))) for values in product(*axes.values()))
        rows = np.empty(list(map(len, axes.values())), dtype=object)
        rows.ravel()[:] = [row_of(point) for point in few]
        chosen = np.broadcast_to(rows, list(map(len, one.axes.values()))).ravel().tolist()
    blocks = {name: np.array([row["blocks"].get(name) for row in chosen]) for name in names}
    return blocks, np.array([row.get("least_M") for row in chosen], dtype=object)
