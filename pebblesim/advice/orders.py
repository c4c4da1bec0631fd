"""Find the launch order of the advised schedule's thread blocks with the least HBM traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pebblesim.cachesim.l2_traffic import L2, l2
from pebblesim.core.errors import UsageError
from pebblesim.core.tables import Sheet

if TYPE_CHECKING:
    from pebblesim.advice.result import Advice

TRIED = ("head-first", "row-major", "grouped:8", "sawtooth")


@dataclass(frozen=True)
class Orders:
    """Traffic behind L2 for each launch order, the least first."""

    rows: tuple[L2, ...]

    @property
    def best(self) -> L2:
        """The order with the least memory traffic; the simplest one if several are equal."""
        return self.rows[0]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the data of `pebblesim advise --orders --json`."""
        return [row.to_dict() for row in self.rows]

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def parts(self) -> list[str | Sheet]:
        """Return the parts to print: a sentence and the table."""
        first = self.best
        rows = [(row.order, row.read, row.written) for row in self.rows]
        return [
            f"launch {first.schedule} {first.order}: of {first.requested:,} bytes that blocks move, HBM moves "
            f"{first.moved:,} ({first.at_once} blocks at once)",
            Sheet(("order", "HBM reads, bytes", "HBM writes, bytes"), rows),
        ]


def orders(advice: Advice) -> Orders:
    """Replay the advised schedule through the card's L2 in each order, with one block on each multiprocessor.

    Raises:
        UsageError: the card's number of multiprocessors is not known, or there are too many tiles to replay.
    """
    figures = advice.card.figures
    if "multiprocessors" not in figures:
        raise UsageError(
            f"{advice.card.name}: the number of its multiprocessors is not known, so no order can be tried."
        )
    row = advice.fastest
    arguments: dict[str, Any] = {"M": row.M, "blocks": row.blocks or "fit", "mask": advice.mask, **advice.dims}
    chip: dict[str, Any] = {"size": advice.card.size("l2"), "partitions": advice.card.l2_partitions}
    chip["at_once"] = int(figures["multiprocessors"].value)
    arguments |= {"batch": advice.times}  # heads that share keys and values are one in the sizes of the advice
    if advice.heads_per_problem == 1:
        arguments |= {"heads": advice.heads, "kv_heads": advice.kv_heads, "batch": advice.batch, "separate": True}
    replays = [l2(row.schedule, order=order, dtype=advice.dtype, **chip, **arguments) for order in TRIED]
    return Orders(tuple(sorted(replays, key=lambda each: each.moved)))
