"""Results of `pebblesim.sparse_backward.backward` for a head, as plain data that prints as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from pebblesim.core.results import Result, plain
from pebblesim.core.tables import in_columns
from pebblesim.counting.count import Counted
from pebblesim.sparse_backward.similarity import Similarity


@dataclass(frozen=True)
class SelectionCost:
    """The additional cost of choosing tiles, in words; a flag counts as a word.

    Attributes:
        forward_writes: LSE_iJ for each row and each tile of columns, n·T_c.
        selection_reads: these values and L, n·T_c + n; then T_r·T_c tiles are ranked in the cache.
        selection_writes: a flag for each tile, T_r·T_c.
        backward_reads: the flags.
        work: operations to compute LSE_iJ = m_i + log(Σ) and p_iJ = exp(LSE_iJ - L_i), and to sum (for a threshold: to
            take the maximum of) p_iJ over the rows of a tile; comparisons of a ranking are not counted.
    """

    forward_writes: int
    selection_reads: int
    selection_writes: int
    backward_reads: int
    work: int

    @property
    def io(self) -> int:
        """All reads and writes, in words."""
        return self.forward_writes + self.selection_reads + self.selection_writes + self.backward_reads


def selection_cost(n: int, B_r: int, B_c: int) -> SelectionCost:
    """The cost of choosing tiles of B_r x B_c pairs."""
    T_r, T_c = -(-n // B_r), -(-n // B_c)
    return SelectionCost(n * T_c, n * T_c + n, T_r * T_c, T_r * T_c, 5 * n * T_c - T_r * T_c)


@dataclass(frozen=True)
class SparsePass:
    """The backward pass for one value of the rule's parameter.

    Attributes:
        parameter: ε, or the threshold.
        tiles, dropped: number of tiles, and number of left-out tiles.
        weight: fraction of all probability in the left-out tiles.
        counted: the result of `count` under the mask.
        io_saved, work_saved: fractions of the dense schedule's I/O and operations, with the same blocks.
        net_io_saved: the same with the words for recording added to the sparse side.
        gradients: similarity to the exact gradients of "dQ", "dK", "dV" and of "all" three as one vector.
    """

    parameter: float
    tiles: int
    dropped: int
    weight: float
    counted: Counted
    io_saved: float
    net_io_saved: float
    work_saved: float
    gradients: Mapping[str, Similarity]

    @property
    def sparsity(self) -> float:
        """Fraction of the tiles left out."""
        return self.dropped / self.tiles

    def to_dict(self, parameter: str) -> dict[str, Any]:
        """A line of the CSV file; `parameter` names the first column."""
        numbers_ = {
            parameter: self.parameter,
            "tile_sparsity": self.sparsity,
            **plain(self, "io_saved", "net_io_saved", "work_saved"),
            **plain(self.gradients["all"], "cosine", "l2"),
            **plain(self, dropped_weight="weight", tiles="tiles", dropped_tiles="dropped"),
            **plain(self.counted, io="io", work="operations", gap="gap"),
        }
        for name in ("dQ", "dK", "dV"):
            numbers_ |= {f"cosine_{name}": self.gradients[name].cosine, f"l2_{name}": self.gradients[name].l2}
        return {name: value if isfinite(value) else None for name, value in numbers_.items()}


@dataclass(frozen=True)
class Calibrated:
    """The largest parameter within the limits.

    Attributes:
        limits: least cosine and largest relative L2 difference, for dQ, dK, dV and all three as one vector.
        row: the backward pass for it; `row.parameter` is a short number in the interval.
        start, stop: the interval of parameters that leave out the same tiles; a threshold may be `stop` itself and not
            `start`, ε `start` and not `stop`.
        masks: number of masks among which it is the largest.
    """

    limits: Similarity
    row: SparsePass
    start: float
    stop: float
    masks: int


@dataclass(frozen=True)
class BackLite(Result):
    """Dynamic sparsity of one head: a row for each value of the rule's parameter.

    Attributes:
        dims, blocks, rule: the sizes, the tiles and the rule.
        dense: the schedule without sparsity.
        recording: the cost of choosing tiles.
        rows: the backward passes.
        calibrated: the largest parameter within given limits; None if none were given.
    """

    dims: Mapping[str, int]
    blocks: Mapping[str, int]
    rule: str
    dense: Counted
    recording: SelectionCost
    rows: Sequence[SparsePass]
    calibrated: Calibrated | None

    @property
    def parameter(self) -> str:
        """Name of the rule's parameter."""
        return "threshold" if self.rule == "threshold" else "epsilon"

    def lines(self) -> list[dict[str, Any]]:
        """Return the rows as plain data: the lines of the CSV file, with the calibrated row last."""
        lines = [row.to_dict(self.parameter) | {"calibrated": False} for row in self.rows]
        return lines + ([self.calibrated.row.to_dict(self.parameter) | {"calibrated": True}] if self.calibrated else [])

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and rows of the printed table, with the calibrated row last."""
        sign = "threshold" if self.rule == "threshold" else "ε"
        headings = (sign, "tile sparsity", "I/O saved", "net of recording", "work saved", "cosine", "L2 error")
        labelled = [(f"{row.parameter:g}", row) for row in self.rows]
        if self.calibrated:
            labelled.append((f"calibrated {self.calibrated.row.parameter!r}", self.calibrated.row))
        return headings, [
            (
                label,
                *(f"{value:.2%}" for value in (row.sparsity, row.io_saved, row.net_io_saved, row.work_saved)),
                f"{row.gradients['all'].cosine:.6f}",
                f"{row.gradients['all'].l2:.3g}",
            )
            for label, row in labelled
        ]

    def notes(self) -> list[str]:
        """Return the lines below the table."""
        kept = self.recording
        lines = [
            f"dense: {self.dense.io:,} words of I/O, {self.dense.operations:,} operations; gap {self.dense.gap:.2f}, "
            f"peak red {self.dense.peak_red:,}",
            f"recording: {kept.forward_writes:,} words written by the forward pass, {kept.selection_reads:,} read and "
            f"{kept.selection_writes:,} written to choose, {kept.backward_reads:,} read by the backward pass; "
            f"{kept.work:,} operations",
        ]
        if self.calibrated:
            best = self.calibrated
            first, last = ("<", "≤") if self.rule == "threshold" else ("≤", "<")
            cosine = min(each.cosine for each in best.row.gradients.values())
            l2 = max(each.l2 for each in best.row.gradients.values())
            lines.append(
                f"calibrated: the largest of {best.masks:,} masks with cosine ≥ {best.limits.cosine:g} and relative "
                f"L2 ≤ {best.limits.l2:g} for each of dQ, dK and dV and for all (worst: {cosine:.6f}, {l2:.3g}); the "
                f"same for {best.start:.6g} {first} {self.parameter} {last} {best.stop:.6g}"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim backlite --json`."""
        found = self.calibrated
        return {
            **self.dims,
            **plain(self, "blocks", "rule"),
            "dense": plain(self.dense, io="io", work="operations", gap="gap"),
            "recording": {**asdict(self.recording), "io": self.recording.io},
            "rows": [row.to_dict(self.parameter) for row in self.rows],
            "calibrated": found
            and {
                "limits": found.limits._asdict(),
                **plain(found, "start", "stop", "masks"),
                "row": found.row.to_dict(self.parameter),
            },
        }

    def __str__(self) -> str:
        headings, rows = self.table()
        return "\n".join([*in_columns([headings, *rows], [False] * len(headings)), *self.notes()])
