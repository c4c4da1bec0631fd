"""Tiles of kernels on tensor cores (`tilings.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import assigned
from pebblesim.kernels.domains import GLUON, OF_GLUON, OF_TRITON, TRITON, Call, Domain, Refusal
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.passes.in_parts import part_of
from pebblesim.kernels.tables import workspace
from pebblesim.kernels.triton.storage import Storage
from pebblesim.kernels.words import LEAST_SIDE, of_launch
from pebblesim.language.masks import Band, Mask
from pebblesim.language.program import Program
from pebblesim.language.registry import get

PROBLEM = {"forward": "forward", "backward": "backward-qkv"}
"""The problem that the kernels of each pass solve."""


IN_TURN = ("flash2-forward",)
"""Schedules whose blocks have several tiles under a band, too, long and short ones in turn."""


@dataclass(frozen=True)
class Tiling:
    """A schedule with block sizes, warps and stages of its kernels.

    Attributes:
        schedule: its name.
        blocks: its block sizes.
        warps: of each thread block.
        stages: copies of the operands in flight.
        apart: warps and stages of launches that have others, by the name of the launch; behind them, if given, the most
            registers of a thread, so that two blocks fit into a multiprocessor.
        widths: least and largest head dimension that they are for: with others they spill registers, or are slow.
        described: launches that read tiles by tensor descriptors.
        masked: whether they are tried under a mask alone; False: without one alone; None: both.
        even: whether they are for lengths that they divide, and no mask: with predicates their registers are too few.
        gluon: whether its kernels are those of the Gluon reading, whose stages are those of rings.
        persistent: whether these have as many blocks as multiprocessors: without a mask; those of `IN_TURN` under a
            band, too.
        early: whether launches begin while the one before them ends: on Hopper and later cards.
        one_source: whether all lengths have the source with predicates: for few rows, where it is as fast.
        sides: least and largest sizes of single head dimensions that they are for, by name.
        rows: most rows of queries that they are for; 0 for any number.
        ranged: whether they are for ranges of keys alone, as packed sequences are.
    """

    schedule: str
    blocks: Mapping[str, int]
    warps: int = 8
    stages: int = 3
    apart: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    widths: tuple[int, int] = (1, 1024)
    described: tuple[str, ...] = ()
    masked: bool | None = None
    even: bool = False
    gluon: bool = False
    persistent: bool = False
    early: bool = False
    one_source: bool = False
    sides: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0
    ranged: bool = False

    def __hash__(self) -> int:
        return hash((self.schedule, *self.blocks.items(), self.warps, self.stages, *self.apart.items()))

    def __str__(self) -> str:
        sizes = assigned(self.blocks)
        if self.gluon:
            return f"{self.schedule} {sizes}, {self.stages} stages, Gluon"
        apart = "".join("; {}: {} warps, {} stages".format(name, *own[:2]) for name, own in self.apart.items())
        return f"{self.schedule} {sizes}, {self.warps} warps, {self.stages} stages{apart}"

    @property
    def options(self) -> dict[str, Any]:
        """Options of `triton`, or of `gluon`, for its kernels."""
        if self.gluon:
            return {"stages": self.stages, "persistent": self.persistent}
        shape = {"warps": self.warps, "stages": self.stages, "apart": self.apart}
        return {**shape, "described": self.described, "early": self.early}

    def options_under(self, mask: Mask | None) -> dict[str, Any]:
        """Options of `triton`, or of `gluon`, for its kernels under a mask."""
        if not self.gluon:
            return self.options
        known = isinstance(mask, Band) and not isinstance(mask, KeyRanges)
        several = mask is None or (known and self.schedule in IN_TURN)
        return self.options | {"persistent": self.persistent and several}

    @property
    def widest(self) -> dict[str, int]:
        """The widest head dimensions that they are for."""
        most = self.widths[1]
        return {name: min(most, self.sides.get(name, (0, most))[1]) for name in ("d_k", "d_v")}

    @cached_property
    def domain(self) -> Domain:
        """The attentions that its kernels are for."""
        table, otherwise = (OF_GLUON, GLUON) if self.gluon else (OF_TRITON, TRITON)
        whole = table.get(self.schedule, otherwise)
        only = False if self.even else self.masked
        masks = tuple(kind for kind in whole.masks if only is None or only is (kind is not NoneType))
        masks = tuple(kind for kind in masks if kind is KeyRanges or not self.ranged)
        sides = {**whole.sides, **self.sides}
        return replace(whole, widths=self.widths, sides=sides, even=self.even, masks=masks, rows=self.rows)

    def refusal(self, call: Call) -> Refusal | None:
        """Why its kernels are not for a call; None if they are."""
        return self.domain.refusal(call, self.blocks)

    def generality(self) -> tuple[bool, bool, int]:
        """The order of tilings by the calls these are for: ranges or few rows alone, and narrow heads come first."""
        return not self.ranged, not self.rows, self.widths[1]

    def traced(self, dims: Iterable[str], mask: Mask | None = None) -> Program:
        """The program of its kernels, in these dimensions: of Gluon kernels for some rows at a time that of a part."""
        program = get(self.schedule).in_dims(dims).under(mask)
        return part_of(program) if self.gluon else program

    def of(self, launch: str) -> tuple[int, int]:
        """Return the warps and stages of a launch."""
        warps, stages, *_ = of_launch(self.apart, launch, (self.warps, self.stages))
        return warps, stages


def _read() -> dict[str, dict[str, tuple[Tiling, ...]]]:
    """The tables of `tilings.toml`, the kernels of each by their problem."""
    text = (Path(__file__).parent / "tilings.toml").read_text(encoding="utf-8")
    return {
        table: {problem: tuple(_entered(each, table == "hopper") for each in listed) for problem, listed in of.items()}
        for table, of in tomllib.loads(text).items()
    }


def _entered(line: Mapping[str, Any], gluon: bool) -> Tiling:
    """The kernels of a line; its lists are tuples."""
    lists = {name: tuple(value) for name, value in line.items() if isinstance(value, list)}
    tables = {key: {name: tuple(own) for name, own in line.get(key, {}).items()} for key in ("apart", "sides")}
    return Tiling(**{**line, **lists, **tables, "gluon": gluon})


_TABLES = _read()

TILINGS: Mapping[str, tuple[Tiling, ...]] = _TABLES["large"]
"""For each problem, the kernels that are forecast and raced."""

SMALL_TILINGS: Mapping[str, tuple[Tiling, ...]] = _TABLES["small"]
"""For blocks of threads that have less than `LARGE` bytes of shared memory: at most 163 KiB, many of them 64."""

HOPPER: tuple[Tiling, ...] = _TABLES["hopper"]["kernels"]
"""The kernels of Gluon for Hopper, from narrow heads to wide ones: of each schedule the fastest that spill nothing."""

LARGE = 200 * 1024
"""Bytes of shared memory of a block from which on the tiles of large cards fit: of Hopper and later ones.

Their tensor cores take operands from there, while those of earlier cards take them from registers. They have an engine
that copies tiles by descriptors, of which Triton makes addresses in registers elsewhere, and launches that begin while
others end.
"""

THREE_STAGES = 96 * 1024
"""Bytes of shared memory of a block for three stages of two operands of 128 x 64 words."""


def tilings(problem_name: str, shared: int, gluon: bool = False) -> tuple[Tiling, ...]:
    """The kernels to try for a problem where a block of threads can have so many bytes of shared memory.

    `gluon`: those for Hopper cards, too.
    """
    if problem_name == PART:
        return PARTS if gluon else ()
    known = (TILINGS if shared >= LARGE else SMALL_TILINGS).get(problem_name, ())
    if shared < THREE_STAGES:  # three stages do not fit, in all launches or in some; so two are for all lengths
        two = tuple(each for each in known if each.stages == 2 and (each.even or (8, 3) in each.apart.values()))
        known += tuple(replace(each, apart={}, even=False) for each in two)
    return known + tuple(each for each in HOPPER if gluon and get(each.schedule).problem.name == problem_name)


def kernels_for(problem_name: str, call: Call, shared: int) -> tuple[Tiling, ...]:
    """The kernels of `tilings` that are for a call."""
    return tuple(each for each in tilings(problem_name, shared, True) if each.refusal(call) is None)


def hopper_tiling(schedule: str, dims: Mapping[str, int]) -> Tiling:
    """The tiles of a schedule's Gluon kernels, for its dimensions; the narrowest ones also for narrower heads.

    Raises:
        UsageError: there are none; the sentence says why.
    """
    offered, why = [each for each in HOPPER if each.schedule == schedule], ""
    refused = [replace(each.domain, widths=(1, each.widths[1])).refusal(Call(dims), each.blocks) for each in offered]
    if None in refused:
        return offered[refused.index(None)]
    if offered:
        said = refused[max(range(len(offered)), key=lambda at: offered[at].generality())]
        why = f" for these sizes: {said.why}" if said else ""
    others = "" if offered else f"take {', '.join(dict.fromkeys(each.schedule for each in HOPPER))}, "
    raise UsageError(
        f"{schedule} has no tiles for Gluon kernels{why}; {others}give each --block, or take --target triton."
    )


IN_ROWS = {
    "scores-stored-blocked": "scores-stored-in-rows",
    "small-cache-backward-blocked": "small-cache-backward-in-rows",
}
"""Schedules whose kernels go through all rows at once, with those that go through some rows after the others."""

IN_PARTS = {"small-cache-backward-resident": "small-cache-backward-resident-in-rows"}
"""Schedules of kernels for Hopper that go through all rows, with those of a part of the rows, which adds to sums."""

PART = "a part of backward-qkv"
"""The problem of a part: the gradients of its queries, and terms of those of keys and values."""

PARTS = tuple(
    replace(each, schedule=IN_PARTS[each.schedule])
    for each in HOPPER
    if each.schedule in IN_PARTS and each.blocks["e"] >= each.blocks["a"]
)
"""The kernels for Hopper of a part: for passes so long that their tables have no room, and so with wide tiles alone."""

FEWEST_ROWS = 256
"""Rows are cut at multiples of this: longest side of the tiles."""


def within(
    tiling: Tiling, dims: Mapping[str, int], heads: int, dtype: str, room: int | None, mask: Mask | None = None
) -> list[tuple[Tiling, int]]:
    """A tiling as it is or, if its tables take more bytes than there is room for, cut: (tiling, heads at once).

    Heads are divided evenly; where one head needs more room still, its rows are, about evenly, and those of several
    heads at once, too. Empty if not even the fewest rows fit.
    """
    whole = workspace(tiling.traced(dims), {**dims, **tiling.blocks}, dtype, mask)
    if room is None or heads * whole <= room:
        return [(tiling, heads)]
    fitting = []
    for at_once in (each for each in range(1, heads + 1) if heads % each == 0):
        if at_once * whole <= room:
            fitting = [(tiling, at_once)]  # as many heads as fit
        elif _in_rows(tiling, dims) and (rows := _rows(tiling, dims, dtype, room // at_once, mask)):
            for width in {tiling.blocks["b"], min(tiling.blocks["b"], 128)}:
                cut = {"C": rows, **tiling.blocks, "e": width}
                fitting.append((replace(tiling, schedule=IN_ROWS[tiling.schedule], blocks=cut), at_once))
    return fitting


def _in_rows(tiling: Tiling, dims: Mapping[str, int]) -> bool:
    """Whether there are kernels for some rows at a time that keep their sums in registers.

    dK and dV add to what memory has. With 256 rows of keys at a time, and predicates for a last tile, they spill.
    """
    wide = tiling.schedule == "small-cache-backward-blocked" and max(tiling.blocks.values()) > 128
    return tiling.schedule in IN_ROWS and not (wide and replace(tiling, even=True).refusal(Call(dims)))


def least_room(tiling: Tiling, dims: Mapping[str, int], dtype: str, mask: Mask | None = None) -> int:
    """The fewest bytes of tables that a tiling can be cut to."""
    name, blocks = IN_ROWS.get(tiling.schedule, tiling.schedule), {"C": FEWEST_ROWS, "e": LEAST_SIDE, **tiling.blocks}
    return workspace(get(name).in_dims(dims).program, {**dims, **blocks}, dtype, mask)


def _rows(tiling: Tiling, dims: Mapping[str, int], dtype: str, room: int, mask: Mask | None) -> int:
    """Rows at once of one head, as evenly as multiples of `FEWEST_ROWS` can be; 0 if none fit."""
    program = get(IN_ROWS[tiling.schedule]).in_dims(dims).program
    n_q = dims.get("n_q", dims.get("n", 0))

    def taken(rows: int) -> int:
        return workspace(program, {**dims, **tiling.blocks, "C": rows, "e": LEAST_SIDE}, dtype, mask)

    if taken(FEWEST_ROWS) > room:
        return 0
    each = Fraction(taken(2 * FEWEST_ROWS) - taken(FEWEST_ROWS), FEWEST_ROWS)
    most_rows = FEWEST_ROWS + int((room - taken(FEWEST_ROWS)) / each) // FEWEST_ROWS * FEWEST_ROWS
    evenly = -(-n_q // -(-n_q // most_rows))
    return -(-evenly // FEWEST_ROWS) * FEWEST_ROWS


def too_large(held: Iterable[tuple[str, Storage]], shared: int, registers: int) -> Refusal | None:
    """Why the thread blocks of some launch do not fit into a multiprocessor; None if all do.

    Args:
        held: name of each launch, and storage of its thread blocks.
        shared, registers: bytes available to a thread block.
    """
    for name, each in held:
        for what, needed, room in (("shared memory", each.shared, shared), ("registers", each.registers, registers)):
            if needed > room:
                why = f"a block of {name} holds {needed:,} bytes in {what}, and {room:,} fit"
                return Refusal(why, "take smaller blocks or fewer stages")
    return None
