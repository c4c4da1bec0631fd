"""Forward attention on several devices: who computes which heads and rows, and a schedule found for one device's part.

The split over devices and the words between them are those of `pebblesim.parallel`. Splits are taken in which a device
has all keys of its heads: what it computes is then the problem "forward" itself, for its own queries, and a search
finds how. Where keys are split or go round, O is put together from parts, which no schedule of this problem does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.tables import Sheet
from pebblesim.counting.arguments import problem_dims
from pebblesim.counting.heads import shared
from pebblesim.language.problems import problem
from pebblesim.parallel.count import Moved
from pebblesim.parallel.devices import Devices, devices
from pebblesim.parallel.schedules import AT_ONCE, SCHEDULES, Split
from pebblesim.synthesis.search import Found, search


@dataclass(frozen=True)
class OnDevice:
    """A split, and a schedule for the device with the most queries.

    Attributes:
        moved: the split, and the words between devices.
        queries, keys: those of a KV head on this device, of all query heads that share it.
        kv_heads: its KV heads.
        found: the schedule for one of them.
    """

    moved: Moved
    queries: int
    keys: int
    kv_heads: int
    found: Found

    @property
    def io(self) -> int:
        """Words between the cache and the memory of the device, for all its heads."""
        return self.kv_heads * self.found.io


@dataclass(frozen=True)
class FoundOnDevices(Result):
    """The result of a search on several devices.

    Attributes:
        devices: all schedules of `pebblesim devices` for these sizes, and the lower bounds.
        rows: the splits searched, the fewest words between devices first.
    """

    devices: Devices
    rows: tuple[OnDevice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim search -P … --json`."""
        rows = [
            plain(row.moved, schedule="schedule.name", split="split", words="words")
            | {"gap": self.devices.gap(row.moved)}
            | plain(row, "queries", "keys", "kv_heads", "io", "found")
            for row in self.rows
        ]
        return {"P": self.devices.team.P, "rows": rows, "lower_bound": self.devices.lower_bound.value}

    def __str__(self) -> str:
        team = self.devices.team
        columns = ["split as", "u x a x b", "between devices", "gap", "queries x keys", "heads", "I/O", "gap"]
        lines = [
            [
                row.moved.schedule.name,
                str(row.moved.split),
                row.moved.words,
                "" if (gap := self.devices.gap(row.moved)) is None else f"{gap:.3f}",
                f"{row.queries:,} x {row.keys:,}",
                row.kv_heads,
                row.io,
                f"{row.found.counted.gap:.3f}",
                row.found.schedule.name,
            ]
            for row in self.rows
        ]
        return "\n".join(
            [
                f"forward: {team.sizes}, {team.heads_in_words}, P = {team.P:,}, "
                f"M = {self.rows[0].found.counted.M:,} words",
                str(Sheet([*columns, "schedule"], lines, ("split as", "between devices", "I/O"), left=2)),
                "between devices: words that the busiest device moves",
                "heads: those of keys and values on a device, each with so many queries and keys",
                "I/O: words between its cache and its memory, for all its heads",
            ]
        )


@checked_kinds()
def search_on_devices(
    *,
    P: int,
    M: int,
    heads: int = 1,
    kv_heads: int | None = None,
    name: str = "found-forward",
    progress: Callable[[float], None] | None = None,
    **dims: int,
) -> FoundOnDevices:
    """Search a schedule for what each of P devices computes of forward attention, for all splits that leave keys whole.

    Args:
        P: devices; each owns ⌊n/P⌋ or ⌈n/P⌉ tokens.
        M: words in the cache of each device.
        heads, kv_heads: query heads, and KV heads (as many by default).
        name: the schedules found are called so, and like the split.
        progress: as for `search`.
        dims: n and d, or n_q, n_k, d_k and d_v.

    Returns:
        A row for each split, the fewest words between devices first: the split, and the schedule of one device.

    >>> found = search_on_devices(P=4, M=300, heads=4, n=64, d=8)
    >>> [(row.moved.schedule.name, row.moved.words, row.queries, row.io) for row in found.rows]
    [('ulysses', 1584, 64, 5120), ('all-gather', 3072, 16, 5120)]

    Raises:
        UsageError, Infeasible: as for `devices` and `search`; or no split leaves keys whole.
    """
    own = problem("forward")
    sizes: dict[str, Any] = shared(own).sizes(problem_dims(own, dims))
    counted = devices(P=P, heads=heads, kv_heads=kv_heads, **sizes)
    whole = [row for row in counted.rows if row.schedule.order == AT_ONCE and row.split.keys == 1]
    splits: dict[Split, Moved] = {}
    for row in sorted(whole, key=lambda row: [*SCHEDULES].index(row.schedule.name)):
        splits.setdefault(row.split, row)
    if not splits:
        raise UsageError(f"no split of {heads} heads to P = {P} devices leaves the keys of a head on one device.")
    rows = []
    for number, row in enumerate(sorted(splits.values(), key=lambda row: row.words), 1):
        share = max(row.layout.shares, key=lambda share: share.rows.number)
        queries = share.rows.number * share.sharing
        local = {**sizes, "n_q": queries, "n_k": share.keys.number}
        found = search("forward", M=M, name=f"{name}-{row.schedule.name}", **local)
        rows.append(OnDevice(row, queries, share.keys.number, len(share.kv_heads), found))
        if progress:
            progress(number / len(splits))
    return FoundOnDevices(counted, tuple(rows))
