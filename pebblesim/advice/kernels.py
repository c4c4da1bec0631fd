"""Our kernels on tensor cores for a card: which fit, their tiles in a kernel's words, and the least time of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from pebblesim.advice import amounts, cards
from pebblesim.advice.beside import beside
from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import Forecast, at_least, forecasts
from pebblesim.advice.own_tile import OwnTile, own_tiles
from pebblesim.advice.tiles import TILINGS, Tiling
from pebblesim.core.sizes import BYTES, assigned, quantity
from pebblesim.core.tables import Sheet
from pebblesim.counting.count import Counted, count
from pebblesim.kernels.domains import HOPPER, KERNELS, Call, Refusal
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.language.masks import Band, Mask
from pebblesim.language.problems import problem

NAMED = {
    "a": "BLOCK_M",
    "b": "BLOCK_N",
    "c": "BLOCK_D",
    "B_r": "BLOCK_M",
    "B_c": "BLOCK_N",
    "b_r": "BLOCK_M1",
    "b_c": "BLOCK_N1",
    "S": "SPLIT",
}
"""Names of the blocks in kernels."""


def kernels(
    problem_name: str,
    dims: Mapping[str, int],
    card: Card,
    dtype: str,
    heads: int,
    mask: Mask | None,
    blocks: Mapping[str, int] | None,
    workspace: int | None,
    shared: int = 1,
) -> tuple[tuple[Forecast, ...], tuple[OwnTile, ...]]:
    """Our kernels that fit on a card, the fastest first, and those with the user's tile.

    Those of Gluon are among them on Hopper cards that were calibrated. Where a card was not, the order is by the least
    time; see `forecasts`. `shared`: heads that share keys and values, whose rows are those of one problem.
    """
    call = call_of(problem_name, dims, card, dtype, mask, shared)
    if why_none(problem_name, card, call):
        return (), ()
    assert mask is None or isinstance(mask, Band)
    with_rates = cards.with_rates(card)
    ranked = forecasts(problem_name, call, with_rates, heads, workspace)
    others = beside([each for each in ranked if not each.tiling.gluon], dims, with_rates, dtype, heads, mask)
    if others:
        ranked = tuple(sorted((*ranked, *others), key=lambda each: each.seconds))
    own = own_tiles(blocks, ranked, dims, with_rates, dtype, heads, mask) if blocks else ()
    return ranked, tuple(own)


def call_of(problem_name: str, dims: Mapping[str, int], card: Card, dtype: str, mask: Mask | None, shared: int) -> Call:
    """The call that kernels are found for; those of Hopper are among them where their rates are known."""
    solves = problem(problem_name).in_dims(dims)
    words = max(prod(dims[dim] for dim in shape) for shape in (*solves.inputs.values(), *solves.outputs.values()))
    capability = "" if card.capability == HOPPER and not card.calibrated else card.capability
    grid = solves.grid(dims) if mask is not None else None
    return Call(dims, mask, grid, dtype, shared, words=words, card=card.name, capability=capability)


def why_none(problem_name: str, card: Card, call: Call) -> Refusal | None:
    """Why there are no kernels to advise; None if there may be some."""
    if problem_name not in TILINGS:
        return Refusal(f"none is written for the problem {problem_name}", f"there are some for {' and '.join(TILINGS)}")
    if card.peak and call.dtype in KERNELS.dtypes and call.dtype not in card.peak:
        known = f"{card.name} has no tensor cores for {call.dtype} that are known"
        return Refusal(f"{known} (known: {', '.join(card.peak)})")
    return KERNELS.refusal(call)


def tile(tiling: Tiling) -> str:
    """The blocks of a tiling, each beside its name in a Triton kernel; Gluon kernels have the schedule's."""
    if tiling.gluon:
        return assigned(tiling.blocks)
    return ", ".join(
        f"{name}={size}" if name not in NAMED else f"{NAMED[name]}={size} ({name})"
        for name, size in tiling.blocks.items()
    )


@dataclass(frozen=True, kw_only=True)
class OurKernels:
    """Our kernels for a card and an attention, to be shown.

    Attributes:
        card, problem, dtype, heads, kv_heads, batch, mask: what they are for.
        asked: the dimensions that were given; `dims` are those of a counted problem.
        useful: operations that the problem needs, for one head; a schedule may execute more, and repeat some.
        heads_per_problem: number of heads that share keys and values; they are counted as one head with this many times
            the queries.
        kernels: forecasts of kernels on tensor cores, fastest first; empty for other data types or an unmeasured card.
        own_kernels: the user's tile as a kernel of each schedule that has such blocks.
    """

    card: Card
    problem: str
    dims: Mapping[str, int]
    dtype: str
    heads: int
    batch: int
    mask: Mask | None
    useful: int
    heads_per_problem: int = 1
    kernels: tuple[Forecast, ...] = ()
    own_kernels: tuple[OwnTile, ...] = ()
    kv_heads: int | None = None
    asked: Mapping[str, int] = field(default_factory=dict)

    @property
    def times(self) -> int:
        """Number of counted problems: one for each head of each sequence, or for each group of heads counted as one."""
        return self.heads // self.heads_per_problem * self.batch

    def tile_of(self, kernel: Forecast) -> Counted:
        """The count of a kernel's tile at the multiprocessors."""
        dims: dict[str, Any] = dict(self.dims)
        return count(
            kernel.tiling.schedule,
            M=cards.words(self.card, "shared_per_block", self.dtype),
            blocks=kernel.tiling.blocks,
            mask=self.mask,
            **dims,
        )

    def as_data(self, kernel: Forecast) -> dict[str, Any]:
        """A kernel as printed by `pebblesim advise --json`; `seconds` are None where a card was not calibrated."""
        least = at_least(kernel, self.card, self.dtype)
        data = kernel.to_dict() | {"gap": self.tile_of(kernel).gap, "at_least": least}
        if not self.card.calibrated:
            unknown = {"seconds": None, "binds": None}
            data |= unknown | {"launches": [each | unknown | {"parts": None} for each in data["launches"]]}
        return data

    def own_as_data(self, own: OwnTile) -> dict[str, Any]:
        """A tile of the user's as printed by `pebblesim advise --json`; `why` says why it has no forecast."""
        spilling = {str(warps): held for warps, held in own.spilling.items()}
        head = {"schedule": own.schedule, "blocks": dict(own.blocks), "missing": [*own.missing]}
        head |= {"why": own.why, "spilling": spilling}
        return head | ({} if own.forecast is None else self.as_data(own.forecast))

    def shown_kernels(self) -> Iterator[str | Sheet]:
        """The part of an advice on kernels: what to take, and a table of all that fit."""
        call = call_of(self.problem, self.dims, self.card, self.dtype, self.mask, self.heads_per_problem)
        none = why_none(self.problem, self.card, call)
        if none is not None or not self.kernels:
            small = f"none of them fits into the {self.card.size('shared_per_block'):,} bytes of a block"
            if self.mask is not None:
                small += f", or mask {self.mask} leaves keys without a query: then leave these keys out"
            yield f"kernels on tensor cores: {none or small}"
            return
        best = self.kernels[0]
        yield f"take {best.tiling.schedule}{', Gluon' * best.tiling.gluon}: {_settings(best, self.dims)}"
        yield self._moved(best)
        yield from self._launches(best)
        if best.tiling.gluon:
            yield from self._without_gluon()
        yield ""
        yield "our kernels on tensor cores"
        yield self._kernels_table()
        if not self.card.calibrated:
            yield (
                f"no forecast: {self.card.name} was not calibrated; `pebblesim gpu calibrate` on one measures what "
                f"a forecast needs. The order is by rates of {cards.MODEL}, scaled; no kernel counts as faster than it "
                "can be, and those without tables in memory go before others that are near."
            )

    def judged(self) -> Iterator[str]:
        """The user's tile, judged in a sentence for each schedule that has such blocks."""
        if self.kernels:
            yield from (
                each.judged(self.kernels[0])
                for each in self.own_kernels
                if self.card.calibrated or each.forecast is None
            )

    def _launches(self, best: Forecast) -> Iterator[str]:
        heads = self.times // best.rounds
        for launch in best.launches:
            cost = launch.cost
            often = f"{cost.times} times " if cost.times > 1 else ""
            if best.tiling.gluon:  # a block has one tile or several
                said = f"  {cost.name}: {often}{quantity(cost.programs // cost.times, 'tile')}"
            else:
                said = f"  {cost.name}: {often}grid ({-(-cost.programs // heads // cost.times)}, {heads}), "
                said += f"{cost.storage.shared:,} bytes of shared memory"
                if (cost.warps, cost.stages) != (best.tiling.warps, best.tiling.stages):
                    said += f", {cost.warps} warps, {cost.stages} stages"
            if self.card.calibrated:
                said += f", {amounts.duration(launch.seconds)}, limited by {launch.binds}"
            yield said
        if best.rounds > 1:
            yield f"  all that {best.rounds} times, for {heads} heads each"
        yield self._source(best)

    def _moved(self, kernel: Forecast) -> str:
        """The words of a kernel's tile, which is in shared memory, as counted."""
        row, each = self.tile_of(kernel), "KV head" if self.heads_per_problem > 1 else "head"
        said = f"  moves {amounts.amount(row.io * BYTES[self.dtype] * self.times, 'B')} between L2 and the "
        said += f"multiprocessors: {row.io:,} words a {each}, {row.gap:.2f} x the lower bound"
        return said + row.on_pebbles

    def _without_gluon(self) -> Iterator[str]:
        for other in [each for each in self.kernels if not each.tiling.gluon][:1]:
            settings = f"{_settings(other, self.dims)}, {amounts.duration(other.seconds)}"
            taken = self.kernels[0].tiling
            others = "a softcap" if KeyRanges in taken.domain.masks else "a softcap or packed sequences"
            yield f"without Gluon, or with {others}, {other.tiling.schedule}: {settings}"
            yield self._source(other)

    def _source(self, kernel: Forecast) -> str:
        """How the source of a kernel is written."""
        tiling, mask = kernel.tiling, "" if self.mask is None else f" --mask {self.mask}"
        emit = f"  its source: pebblesim gpu emit {tiling.schedule} {self._options()} --dtype {self.dtype}"
        if not tiling.gluon:
            blocks = " ".join(f"--block {name}={size}" for name, size in tiling.blocks.items())
            return f"{emit} {blocks}{mask} --warps {tiling.warps} --stages {tiling.stages} --target triton"
        return f"{emit}{mask} --target gluon"  # which has the tiles of the table that tilings are made from

    def _options(self) -> str:
        """Sizes and heads as options of the command line."""
        sizes = (f"-{name} {size}" if len(name) == 1 else f"--size {name}={size}" for name, size in self.asked.items())
        heads, shared = self.heads, self.heads_per_problem
        return " ".join(sizes) + (f" --heads {heads} --kv-heads {heads // shared}" if shared > 1 else "")

    def _kernels_table(self) -> Sheet:
        useful = amounts.ratio(self.useful * self.times, 10**12)
        rows = []
        own = (each.forecast for each in self.own_kernels)
        for each in (*self.kernels, *(each for each in own if each and each not in self.kernels)):
            held = max(launch.cost.storage.shared for launch in each.launches)
            row = [
                each.tiling.schedule + ", Gluon" * each.tiling.gluon,
                tile(each.tiling),
                each.tiling.warps,
                each.tiling.stages,
                f"{held / 1024:,.0f} KiB",
                self.tile_of(each).gap,
                amounts.duration(at_least(each, self.card, self.dtype)),
            ]
            if self.card.calibrated:
                row += [amounts.duration(each.seconds), f"{useful / each.seconds:,.0f}", each.binds]
            rows.append(row if max(other.rounds for other in self.kernels) == 1 else [*row, self.times // each.rounds])
        columns = ["kernel", "tile", "warps", "stages", "shared", "gap", "at least"]
        columns += ["forecast", "useful TFLOP/s", "limited by"] if self.card.calibrated else []
        columns += ["heads at once"] if len(rows[0]) > len(columns) else []
        return Sheet(columns, rows, ("kernel", "tile", "forecast", "at least", "warps", "stages"))


def _settings(kernel: Forecast, dims: Mapping[str, int]) -> str:
    """The tile and the launch settings of a kernel, to paste."""
    tiling = kernel.tiling
    if tiling.gluon:
        return f"{tile(tiling)}, {tiling.stages} stages"
    widest = max(size for name, size in dims.items() if name.startswith("d"))
    whole = "" if "c" in tiling.blocks else f", BLOCK_D={1 << (widest - 1).bit_length()}"
    return f"{tile(tiling)}{whole}, num_warps={tiling.warps}, num_stages={tiling.stages}"
