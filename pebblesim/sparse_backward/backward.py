"""BackLite: FlashAttention-2's backward pass without tiles of little probability.

The forward pass is exact, and records the data that `pebblesim.sparse_backward.weights` needs to choose tiles. The
backward pass is the schedule flash2-backward under the mask of the remaining tiles, with L and O of the exact forward
pass: P_ij is exp(S_ij - L_i) in the remaining tiles and 0 in the others; it is not normalised again.

Source: BackLite (https://github.com/moonmath-ai/BackLite), on FlashAttention-3's kernels. Scores are Q Kᵀ / √d there
and here; Q is multiplied by the factor, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from pebblesim.core.errors import UnknownName, UsageError, as_given
from pebblesim.core.kinds import checked_kinds
from pebblesim.counting.count import count
from pebblesim.counting.run import Run
from pebblesim.language import masks
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import get
from pebblesim.sparse_backward.inputs import Array, check_room, checked, synthetic_head
from pebblesim.sparse_backward.result import BackLite, Calibrated, SparsePass, selection_cost
from pebblesim.sparse_backward.similarity import Similarity, similarities, without
from pebblesim.sparse_backward.weights import RULES, Levels, allowed, levels, row_weights

BLOCKS = {"B_r": 64, "B_c": 128}
"""BackLite's tiles on H100, for head dimensions up to 128."""

EPSILONS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

Progress = Callable[[float], None]


@checked_kinds("n", "d")
def backlite(
    inputs: Mapping[str, Any] | None = None,
    *,
    n: int | None = None,
    d: int | None = None,
    seed: int = 0,
    rule: str = "head",
    parameters: Iterable[float] | None = None,
    limits: tuple[float, float] | None = None,
    blocks: Mapping[str, int] | None = None,
    M: int | None = None,
    scale: float | None = None,
    progress: Progress | None = None,
) -> BackLite:
    """Leave tiles with little probability out of the backward pass; compute the words saved and the gradient error.

    Args:
        inputs: Q, K, V and optionally dO of one head, of shape (n, d); by default synthetic ones.
        n, d: sizes of synthetic inputs.
        seed: random seed of synthetic inputs, or of a missing dO.
        rule: "head", "row" or "threshold" (see `pebblesim.sparse_backward.weights.RULES`).
        parameters: values of ε, by default from 0.1 % to 10 %, or of the threshold; optional with `limits`.
        limits: (least cosine, largest relative L2 difference): also find the largest parameter that satisfies them.
        blocks: B_r and B_c; by default 64 and 128, or, if M is given, the largest that fit.
        M: red pebbles, in words; by default the number that the blocks need.
        scale: scale of the scores; 1/√d by default.
        progress: called from time to time with the fraction done.

    Returns:
        A row for each parameter: words saved, and error of the gradients.

    >>> found = backlite(n=96, d=4, blocks={"B_r": 8, "B_c": 8}, parameters=[0, 0.05])
    >>> [(row.dropped, row.counted.io) for row in found.rows]
    [(0, 23520), (101, 8528)]

    Raises:
        UsageError: an input, a size or a limit is not allowed.
        Infeasible: M is too small.
    """
    if inputs is None:
        if n is None or d is None:
            raise UsageError("give n and d of synthetic inputs, or Q, K and V of your own.")
        _check_rows(n)
        inputs = synthetic_head(n, d, seed)
    elif n is not None or d is not None:
        raise UsageError("n and d are those of the inputs; give either sizes or inputs.")
    if rule not in RULES:
        raise UnknownName("rule", rule, RULES)
    if parameters is None:
        parameters = () if rule == "threshold" else EPSILONS
    values = [allowed(rule, value) for value in parameters]
    if not values and limits is None:
        raise UsageError("give at least one value of ε or of the threshold, or limits to find one.")
    wanted = None if limits is None else _limits(limits)
    with threadpool_limits(1, "blas"):  # tiles are too small for several threads
        head = _Head(checked(inputs, seed), blocks, M, scale)
        steps = _Steps(progress, 4 + len(values) + 2 * (wanted is not None))
        head.run(steps)
        ranking = levels(rule, head.p, head.blocks["B_r"])
        rows = []
        for value in values:
            rows.append(head.play(value, ranking, ranking.kept(value)))
            steps.done()
        calibrated = None if wanted is None else _calibrated(head, ranking, wanted, steps)
    return BackLite(head.dims, head.blocks, rule, head.dense, head.recording, tuple(rows), calibrated)


def _check_rows(n: int) -> None:
    if n > masks.LARGEST_TABLE:
        raise UsageError(f"n = {n:,} is too large to run on arrays; n may be at most {masks.LARGEST_TABLE:,}.")


class _Steps:
    """Report progress, in steps of about a second."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.count = progress, total, 0.0

    def done(self, part: float = 1.0) -> None:
        self.count += part
        if self.progress:
            self.progress(min(1.0, self.count / self.total))


class _Head:
    """One head: its inputs, its exact gradients, and its schedule under any mask."""

    def __init__(
        self, inputs: Mapping[str, Array], blocks: Mapping[str, int] | None, M: int | None, scale: float | None
    ) -> None:
        n, d = inputs["Q"].shape
        self.dims = {"n": n, "d": d}
        self.scale = 1 / sqrt(d) if scale is None else scale
        if not isfinite(self.scale):
            raise UsageError(f"scale = {scale} was given; it must be a finite number.")
        self.schedule = get("flash2-backward")
        given = blocks or "fit" if M is not None else {**BLOCKS, **(blocks or {})}
        self.blocks = Run.of(self.schedule, self.dims, M=1 if M is None else M, blocks=given).block_sizes
        if n < max(self.blocks.values()):
            raise UsageError(
                f"n = {n} rows are not enough for a tile of {self.blocks['B_r']} x {self.blocks['B_c']} pairs; give "
                "smaller B_r and B_c."
            )
        _check_rows(n)
        check_room(n, d, arrays=24)  # inputs and gradients, and what they are computed from, twice
        self.inputs = {**inputs, "Q": inputs["Q"] * self.scale}
        self.sizes = {**self.dims, **self.blocks}
        self.M = count(self.schedule, M=1, blocks=self.blocks, **self.dims).peak_red if M is None else M
        self.dense = count(self.schedule, M=self.M, blocks=self.blocks, **self.dims)
        self.recording = selection_cost(n, self.blocks["B_r"], self.blocks["B_c"])

    def run(self, steps: _Steps) -> None:
        """Run the exact forward and backward passes, and compute the weights."""
        with np.errstate(all="ignore"):
            forward = {name: self.inputs[name] for name in ("Q", "K", "V")}
            self.inputs |= numbers(get("flash2-forward").program, self.sizes, forward)
            steps.done()
            self.exact = self._gradients(numbers(self.schedule.program, self.sizes, self.inputs))
            steps.done(2)
            self.squares = {name: float(np.vdot(g, g)) for name, g in self.exact.items()}
        for name, g in self.exact.items():
            if not isfinite(self.squares[name]) or (self.squares[name] == 0 and g.any()):
                raise UsageError(
                    f"{name} overflows or vanishes in float64: its largest entry is {np.abs(g).max():g}; scale the "
                    "inputs."
                )
        self.p = row_weights(self.inputs["Q"], self.inputs["K"], self.inputs["L"], **self.blocks)
        steps.done()

    def play(self, parameter: float, ranking: Levels, kept: Array) -> SparsePass:
        """Run the schedule under the mask of the remaining tiles."""
        mask = masks.from_array(kept, f"{ranking.rule}:{parameter:g}", (self.blocks["B_r"], self.blocks["B_c"]))
        counted = count(self.schedule, M=self.M, blocks=self.blocks, mask=mask, **self.dims)
        gradients = self._gradients(numbers(self.schedule.masked, self.sizes, self.inputs, mask))
        return SparsePass(
            parameter=parameter,
            tiles=kept.size,
            dropped=int(kept.size - np.count_nonzero(kept)),
            weight=ranking.share(kept),
            counted=counted,
            io_saved=_saved(counted.io, self.dense.io),
            net_io_saved=_saved(counted.io + self.recording.io, self.dense.io),
            work_saved=_saved(counted.operations, self.dense.operations),
            gradients=similarities(self.exact, gradients),
        )

    def dropping(self, order: Iterable[tuple[int, int]]) -> Iterator[dict[str, Similarity]]:
        """Yield the similarities after leaving out each tile (i, j), one after the other.

        The contributions of tiles to the gradients are independent, so one pass judges all masks of a ranking.
        """
        x, B_r, B_c = self.inputs, self.blocks["B_r"], self.blocks["B_c"]
        v = (x["dO"] * x["O"]).sum(axis=1)
        off = {name: np.zeros_like(g) for name, g in self.exact.items()}
        inner, square = dict.fromkeys(off, 0.0), dict.fromkeys(off, 0.0)
        for i, j in order:
            rows, columns = slice(i * B_r, (i + 1) * B_r), slice(j * B_c, (j + 1) * B_c)
            P = np.exp(x["Q"][rows] @ x["K"][columns].T - x["L"][rows, None])
            dS = P * (x["dO"][rows] @ x["V"][columns].T - v[rows, None])
            for name, part, lost in (
                ("dQ", rows, self.scale * (dS @ x["K"][columns])),
                ("dK", columns, dS.T @ x["Q"][rows]),
                ("dV", columns, P.T @ x["dO"][rows]),
            ):
                square[name] += 2 * float(np.vdot(off[name][part], lost)) + float(np.vdot(lost, lost))
                inner[name] += float(np.vdot(self.exact[name][part], lost))
                off[name][part] += lost
            yield without(self.squares, inner, square)

    def _gradients(self, computed: Mapping[str, Array]) -> dict[str, Array]:
        """Return dQ, dK, dV for the Q before scaling."""
        return {**computed, "dQ": computed["dQ"] * self.scale}


def _saved(words: int, of: int) -> float:
    return float(1 - Fraction(words, of))


def _limits(limits: tuple[float, float]) -> Similarity:
    if len(limits) != 2:
        raise UsageError(
            f"limits = {as_given(limits)} was given; limits must be a least cosine and a largest difference."
        )
    cosine, l2 = limits
    if not -1 <= cosine <= 1:
        raise UsageError(f"a least cosine of {cosine:g} was given; a cosine is between -1 and 1.")
    if not 0 <= l2 < inf:
        raise UsageError(f"a largest relative L2 difference of {l2:g} was given; it must be 0 or more.")
    return Similarity(cosine, l2)


def _calibrated(head: _Head, ranking: Levels, limits: Similarity, steps: _Steps) -> Calibrated:
    """Find the largest parameter within the limits: judge all masks by the lost terms, then run the one found.

    The similarity need not decrease with every further tile, so bisection could fail.
    """
    strict = ranking.rule == "threshold"
    order = np.argsort(ranking.table, axis=None, kind="stable")
    # The parameters in [start, stop), or, if strict, in (start, stop], leave out the same tiles.
    bounds = [0.0, *(float(level) for level in ranking.table.ravel()[order]), 1.0]
    exist = [count for count in range(len(order) + 1) if bounds[count] < bounds[count + 1] or (strict and count == 0)]
    keeps = {0}
    tiles = (divmod(int(tile), ranking.table.shape[1]) for tile in order)
    for number, similarity in enumerate(head.dropping(tiles), start=1):
        if _within(similarity, limits):
            keeps.add(number)
        steps.done(1 / len(order))
    for number in reversed(exist):
        if number in keeps:
            start, stop = bounds[number : number + 2]
            parameter = _short(start, stop, strict)
            row = head.play(parameter, ranking, ranking.kept(parameter))
            if _within(row.gradients, limits):  # true up to rounding
                steps.done()
                return Calibrated(limits, row, start, stop, len(exist))
    raise AssertionError("leaving out nothing that counts changes nothing")


def _within(by_tensor: Mapping[str, Similarity], limits: Similarity) -> bool:
    return all(each.cosine >= limits.cosine and each.l2 <= limits.l2 for each in by_tensor.values())


def _short(start: float, stop: float, strict: bool) -> float:
    """Return the number with the fewest digits in [start, stop), or, if `strict`, in (start, stop]."""
    for digits in range(1, 18):
        for candidate in (start, stop, (start + stop) / 2):
            value = float(f"{candidate:.{digits}g}")
            if start < value <= stop if strict else start <= value < stop:
                return value
    return stop if strict else start
