"""Compare schedules of attention on many devices: `ps.devices`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import bytes_of, whole
from pebblesim.core.tables import Sheet
from pebblesim.language import masks
from pebblesim.language.masks import Mask
from pebblesim.parallel.bounds import DeviceBound, bounds
from pebblesim.parallel.count import Moved, best
from pebblesim.parallel.links import Network, Times, times
from pebblesim.parallel.schedules import SCHEDULES, Parallel
from pebblesim.parallel.team import Team


@dataclass(frozen=True)
class Devices(Result):
    """Schedules of attention on P devices.

    Attributes:
        team: sizes, direction, mask, and who owns which tokens.
        M: words in each device, or None for no limit.
        rows: the counted schedules; those that fit into M first, the fewest words of the busiest device first.
        left_out: why other schedules are impossible, by name.
        lower_bounds: lower bounds on the words of the busiest device, the largest first.
        dtype: the type of a word, for a column of bytes.
        network: links and rates, for columns of times.
    """

    team: Team
    M: int | None
    rows: Sequence[Moved]
    left_out: Mapping[str, str]
    lower_bounds: Sequence[DeviceBound]
    dtype: str | None = None
    network: Network | None = None

    def times(self, row: Moved) -> Times | None:
        """Return the times of a schedule on the network; None without a network, and for passes."""
        return None if self.network is None or row.schedule.order.in_passes else times(row, self.network)

    @property
    def lower_bound(self) -> DeviceBound:
        """The largest lower bound; every schedule here computes each pair whole, on one device."""
        return self.lower_bounds[0]

    def gap(self, row: Moved) -> float | None:
        """Return the words of a schedule ÷ the largest lower bound; None if this is 0 and the words are not."""
        value = self.lower_bound.value
        return row.words / value if value else (None if row.words else 1.0)

    def fits(self, row: Moved) -> bool:
        """Return whether every device holds at most M words."""
        return self.M is None or row.words_held <= self.M

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim devices --json`."""
        kept = ("n_k", "d_v", "latent", "heads", "kv_heads", "P")
        return {
            **plain(self, n="team.n_q", d="team.d_k", **{name: f"team.{name}" for name in kept}, M="M"),
            "backward": self.team.backward,
            "mask": "causal" if self.team.causal else None,
            "ownership": self.team.ownership,
            "rows": [self._row(row) for row in self.rows],
            "left_out": dict(self.left_out),
            "lower_bound": {"value": self.lower_bound.value, "source": str(self.lower_bound)},
            "lower_bounds": {bound.name: bound.value for bound in self.lower_bounds},
        }

    def _row(self, row: Moved) -> dict[str, Any]:
        return {
            **plain(row, schedule="schedule.name", source="schedule.source", split="split"),
            **plain(row, "words", "total", "words_held"),
            "fits": self.fits(row),
            "gap": self.gap(row),
            "steps": _steps(row),
            "most_pairs": row.most_pairs,
            "by_tensor": dict(row.tensors()),
            "seconds": None if (found := self.times(row)) is None else found._asdict(),
        }

    def parts(self) -> list[str | Sheet]:
        """Return the parts to print: a row for each schedule, those that are impossible, and the lower bounds."""
        team = self.team
        columns = ["schedule", "u x a x b", "words", "gap", "total", "words held", "steps", "pairs ÷ mean"]
        rows: list[list[Any]] = [
            [
                row.schedule.name,
                str(row.split),
                row.words,
                "" if self.gap(row) is None else f"{self.gap(row):.3f}",
                row.total,
                row.words_held,
                _steps(row),
                f"{row.most_pairs * team.P / (team.heads * team.pairs):.3f}",
            ]
            for row in self.rows
        ]
        if self.dtype is not None:
            columns.insert(3, f"bytes, {self.dtype}")
            for line, row in zip(rows, self.rows, strict=True):
                line.insert(3, row.words * bytes_of(self.dtype))
        if self.network is not None:
            behind = columns.index("gap") + 1  # what was asked for is not what a narrow terminal leaves out
            columns[behind:behind] = ["products, ms", "transfers, ms", "exposed, ms"]
            for line, row in zip(rows, self.rows, strict=True):
                found = self.times(row)
                line[behind:behind] = [""] * 3 if found is None else [f"{1e3 * each:,.2f}" for each in found]
        if self.M is not None:
            columns.append("fits")
            for line, row in zip(rows, self.rows, strict=True):
                line.append(self.fits(row))
        memory = "" if self.M is None else f", M = {self.M:,} words in each device"
        title = (
            f"attention, {'backward' if team.backward else 'forward'}{', causal' if team.causal else ''}: "
            f"{team.sizes}, {team.heads_in_words}, "
            f"P = {team.P:,}, {team.ownership} tokens{memory}"
        )
        return [
            title,
            Sheet(columns, rows, ("schedule", "words", "gap"), left=2),
            *(f"not here: {name}: {why}" for name, why in self.left_out.items()),
            "words: received inputs and sent partial sums of the busiest device",
            "u x a x b: groups of heads, parts of the queries, parts of the keys",
            *([] if self.network is None else [f"times: {self.network}; exposed: not hidden behind products"]),
            *(f"lower bound {bound}: {bound.value:,}" for bound in self.lower_bounds),
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))


@checked_kinds()
def devices(
    schedules: str | Iterable[str] | None = None,
    *,
    P: int,
    n: int | None = None,
    d: int | None = None,
    n_q: int | None = None,
    n_k: int | None = None,
    d_k: int | None = None,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    M: int | None = None,
    backward: bool = False,
    mask: Mask | str | None = None,
    ownership: str | None = None,
    latent: bool = False,
    dtype: str | None = None,
    network: Network | None = None,
) -> Devices:
    """Count the words that attention moves between P devices, under each schedule.

    Args:
        schedules: names of schedules; all by default.
        P: devices; each owns ⌊n/P⌋ or ⌈n/P⌉ tokens: their inputs and their outputs.
        n: tokens, each with a query, a key and a value in every head; or else n_q queries and n_k keys.
        d: words in a row of a head; or else d_k words in a row of Q and K, and d_v in one of V and O.
        n_q, n_k, d_k, d_v: where they differ from n and d.
        heads, kv_heads: query heads, and KV heads (as many by default).
        M: words in a device; no limit by default.
        backward: count the backward pass: dQ, dK and dV from Q, K, V, dO, and two statistics of each row.
        mask: None or "causal", or that mask as a record, such as that of a count.
        ownership: "contiguous", "zig-zag" or "striped"; by default zig-zag for a causal mask, and contiguous without.
        latent: the values are the first d_v columns of the keys.
        dtype: the type of a word, for a column of bytes.
        network: links and rates (`pebblesim.parallel.links.Network`), for columns of times.

    Returns:
        The counted schedules and lower bounds.

    >>> result = devices(n=4096, d=64, P=16)
    >>> result.rows[0].schedule.name, str(result.rows[0].split), result.rows[0].words
    ('tiles', '1 x 4 x 4', 197376)
    >>> result.lower_bound.value
    196608

    Raises:
        UsageError: a name or size is not allowed, or a named schedule is impossible with these heads and devices.
        Infeasible: M words are too few for each schedule.
    """
    causal = _is_causal(mask)
    M = None if M is None else whole("M", M)
    if dtype is not None:
        bytes_of(dtype)
    of_tokens = ("zig-zag" if causal else "contiguous") if ownership is None else ownership
    given = {"n_q": (n_q, n), "n_k": (n_k, n), "d_k": (d_k, d), "d_v": (d_v, d)}
    sizes = {name: own if own is not None else both for name, (own, both) in given.items()}
    if missing := [name for name, size in sizes.items() if size is None]:
        raise UsageError(f"{' and '.join(missing)} must be given, or n and d, which stand for n_q, n_k and d_k, d_v.")
    team = Team(
        **sizes,  # type: ignore[arg-type]
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        P=P,
        backward=backward,
        causal=causal,
        ownership=of_tokens,
        latent=latent,
    )
    names = [schedules] if isinstance(schedules, str) else list(SCHEDULES if schedules is None else schedules)
    counted, left_out = [], dict[str, str]()
    for schedule in _named(names, M, schedules is None):
        try:
            counted.append(best(schedule, team, M))
        except UsageError as error:
            if schedules is not None:
                raise
            left_out[schedule.name] = str(error)
    if not counted:
        why = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise UsageError(f"no schedule is possible with these heads, tokens and devices: {why}")
    result = Devices(team, M, counted, left_out, bounds(team, M), dtype, network)
    if not any(map(result.fits, counted)):
        least = min(counted, key=lambda row: row.words_held)
        raise Infeasible(
            f"M = {M:,} words in each device are too few; {least.schedule.name} takes the least, {least.words_held:,}; "
            "take that many, or more devices.",
            least.words_held,
        )
    order = sorted(counted, key=lambda row: (not result.fits(row), row.words, row.total, row.words_held))
    return Devices(team, M, order, left_out, result.lower_bounds, dtype, network)


def _named(names: Iterable[str], M: int | None, every: bool) -> list[Parallel]:
    for name in names:
        if name not in SCHEDULES:
            raise UnknownName("schedule for many devices", name, SCHEDULES)
    chosen = [SCHEDULES[name] for name in dict.fromkeys(names)]
    if M is None and not every and any(schedule.order.in_passes for schedule in chosen):
        raise UsageError("tiles-in-passes takes as many passes as a memory asks for; give its words, M.")
    return [schedule for schedule in chosen if M is not None or not schedule.order.in_passes]


def _steps(row: Moved) -> int:
    """The number of steps of the busiest device in which words move."""
    return sum(words > 0 for words in row.by_step(row.busiest))


def _is_causal(mask: Mask | str | None) -> bool:
    """Whether there is a mask, which is then causal; devices have no other."""
    pattern = masks.of(mask)
    if pattern not in (None, masks.of("causal")):
        raise UsageError(
            f"mask {pattern} was given; on many devices the mask is causal, or there is none. Under a window no "
            "schedule moves more words than under the causal mask."
        )
    return pattern is not None
