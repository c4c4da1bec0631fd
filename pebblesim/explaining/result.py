"""The result of `explain`: as data, and as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pebblesim.advice.amounts import amount, duration
from pebblesim.advice.calls import AttentionCall, Recorded
from pebblesim.advice.cards import Card
from pebblesim.advice.pytorch_rules import Where
from pebblesim.advice.pytorch_times import TABLES
from pebblesim.core.results import Result
from pebblesim.core.tables import Sheet
from pebblesim.explaining.judging import UNTIMED, Judged, judge

UNMEASURED = "unmeasured"


@dataclass(frozen=True)
class Explained(Result):
    """A model's attention on a card.

    Attributes:
        model: name of the model.
        card: the card.
        place: the card and libraries whose rules choose.
        rows: the kinds of calls, in the order of the run.
        other: operations of products and convolutions outside attention, of the forward pass, at least.
        probed: whether PyTorch itself was asked for its backends, on the card.
    """

    model: str
    card: Card
    place: Where
    rows: tuple[Judged, ...]
    other: int
    probed: bool

    @property
    def training(self) -> bool:
        """Whether gradients are asked for."""
        return any(row.call.training for row in self.rows)

    @property
    def other_seconds(self) -> float | None:
        """The least seconds of all else in the step, at the card's peak rate; None if that is not known."""
        dtype = self.rows[0].call.dtype if self.rows else "bfloat16"
        peak = self.card.peak.get(dtype)
        return None if peak is None else self.other * (3 if self.training else 1) / peak.value

    @property
    def both(self) -> tuple[float, float] | None:
        """(theirs, ours): seconds of all kinds of calls for which both are known; None if there are none.

        Theirs are estimates, or least times of kinds that are not `measured`.
        """
        if not self._compared:
            return None
        theirs, ours = (sum(row.seconds(whose) or 0.0 for row in self._compared) for whose in ("theirs", "ours"))
        return theirs, ours

    @property
    def _compared(self) -> list[Judged]:
        """The kinds for which both times are known."""
        return [row for row in self.rows if None not in (row.seconds("theirs"), row.seconds("ours"))]

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim explain --json`."""
        theirs, ours = self.both or (None, None)
        return {
            "model": self.model,
            "card": self.card.name,
            "pytorch": ".".join(map(str, self.place.release)),
            "probed": self.probed,
            "training": self.training,
            "other_operations": self.other,
            "other_seconds_at_least": self.other_seconds,
            "seconds": {"theirs": theirs, "ours": ours},
            "rows": [_as_data(row) for row in self.rows],
        }

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def parts(self, wide: bool = False) -> list[str | Sheet]:
        """Return the parts to print: four lines, the table, and why; with `wide` all that is known of each kind."""
        if not self.rows:
            return [f"{self.model}: no attention was called"]
        parts: list[str | Sheet] = [*self._head(), "", self._sheet(), self._asked]
        for number, row in enumerate(self.rows, 1):
            parts += ["", *(_details(number, row) if wide else _why(number, row))]
        return parts

    def _head(self) -> list[str]:
        calls, kinds = sum(row.times for row in self.rows), len(self.rows)
        passes = "forward and backward" if self.training else "forward"
        first = f"{self.model} on {self.card.name}, {passes}: {calls:,} attention call{'s' * (calls > 1)} of {kinds} "
        return [first + f"kind{'s' * (kinds > 1)}", self._gain(), self._share(), self._memory()]

    @property
    def _asked(self) -> str:
        """Where the backends are from."""
        release = ".".join(map(str, self.place.release))
        if self.probed:
            return f"PyTorch {release} was asked for its backends on this card"
        return f"backends by the rules of PyTorch {release}, as for a card that is not here; none was probed"

    def _gain(self) -> str:
        """Say what our kernels change."""
        if all(row.refusal for row in self.rows):
            if (reason := next((row.refusal for row in self.rows if row.refusal in UNTIMED), None)) is not None:
                return f"gain: not known; {reason}"
            return "gain: none; no kernel of ours computes these calls"
        if self.both is None:
            ours = [each for row in self.rows if (each := row.seconds("ours")) is not None]
            takes = f"ours take {duration(sum(ours))} (forecast)" if ours else "so are ours"
            return f"gain: not known; PyTorch's kernels are unmeasured on this card, {takes}"
        theirs, ours_in_all = self.both
        more = " or more" * any(not row.measured for row in self._compared)
        said = (
            f"gain: attention takes {duration(ours_in_all)} in ours (forecast), {duration(theirs)}{more} in PyTorch's: "
        )
        said += f"{theirs / ours_in_all:.3g} x{more}"
        left_out = len(self.rows) - len(self._compared)
        if left_out:
            said += f"; {left_out} kind{'s' * (left_out > 1)} left out"
        return said if ours_in_all < theirs or more else f"{said}; stay with PyTorch's"

    def _share(self) -> str:
        """How much of a step that is."""
        outside = f"{amount(self.other, 'FLOP')} of other products in the forward pass"
        if self.other_seconds is None or self.both is None or any(not row.measured for row in self._compared):
            return f"step: how much less it takes is not known; there are {outside}"
        theirs, ours = self.both
        change = (theirs - ours) / (self.other_seconds + theirs)
        more = "less" if change >= 0 else "more"
        others = f"other products take {duration(self.other_seconds)} or more, at the card's peak"
        return f"step: at most {abs(change):.1%} {more} time; {others}"

    def _memory(self) -> str:
        stored = [row for row in self.rows if row.choice.backend in TABLES]
        if not stored:
            return "memory: no call stores its score matrix"
        worst = max(stored, key=lambda row: row.table_bytes)
        calls = sum(row.times for row in stored)
        return (
            f"memory: {calls:,} call{'s' * (calls > 1)} store score matrices, up to "
            f"{_bytes(worst.table_bytes)} each, in {worst.where or 'the model'}"
        )

    def _sheet(self) -> Sheet:
        columns = ("", "where", "mask", "PyTorch", "calls", "heads", "tokens", "d", "theirs", "ours", "÷ least")
        cells = [
            (
                str(number),
                row.where or "(no module)",
                str(row.call.mask),
                row.choice.backend or "not known",
                row.times,
                _heads(row.call),
                f"{row.call.n_q:,}" if row.call.n_q == row.call.n_k else f"{row.call.n_q:,} x {row.call.n_k:,}",
                str(row.call.d_k) if row.call.d_k == row.call.d_v else f"{row.call.d_k}, {row.call.d_v}",
                _time(row.seconds("theirs"), row.measured),
                ("not known" if row.refusal in UNTIMED else "none") if row.refusal else _time(row.seconds("ours")),
                _gap(row),
            )
            for number, row in enumerate(self.rows, 1)
        ]
        first = ("", "where", "PyTorch", "mask", "calls", "d", "theirs", "ours", "÷ least", "tokens", "heads")
        return Sheet(columns, cells, first, 4)

    def page(self) -> dict[str, Any]:
        """Return what `pebblesim.views.explained` writes: sentences, the table, and for each kind times and details."""
        sheet = self._sheet() if self.rows else Sheet((), ())
        most = max((row.seconds(whose) or 0.0 for row in self.rows for whose in ("theirs", "ours")), default=0.0)
        return {
            "title": f"Attention of {self.model} on {self.card.name}",
            "head": self._head() if self.rows else self.parts(),
            "columns": list(sheet.columns),
            "lines": sheet.lines,
            "words": sheet.words,
            "bars": [
                {whose: (row.seconds(whose) or 0.0) / most if most else 0.0 for whose in ("theirs", "ours")}
                for row in self.rows
            ],
            "details": [[line.strip() for line in _details(number, row)] for number, row in enumerate(self.rows, 1)],
        }


def explained(found: Recorded, card: Card, capability: str, model: str = "the model") -> Explained:
    """Return what is known of recorded calls on a card."""
    place = Where("" if card.name.startswith("AMD") else capability, found.release, found.cudnn)
    kinds: dict[tuple[str, AttentionCall], list[str]] = {}
    for path, call in found.calls:
        kinds.setdefault((re.sub(r"\d+", "*", path), call), []).append(path)
    rows = tuple(judge(where, _numbers(paths), len(paths), call, card, place) for (where, call), paths in kinds.items())
    probed = any(call.probed for _, call in found.calls)
    return Explained(model, card, place, rows, found.other, probed)


def _numbers(paths: Sequence[str]) -> str:
    """The first number of each path, as ranges, or as a row of equal steps."""
    each = (re.search(r"\d+", path) for path in paths)
    found = sorted({int(number[0]) for number in each if number})
    steps = {b - a for a, b in pairwise(found)}
    if len(found) > 3 and len(steps) == 1 and steps != {1}:
        return f"{found[0]}, {found[1]}, …, {found[-1]}"
    ranges: list[list[int]] = []
    for number in found:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in ranges)


def _heads(call: AttentionCall) -> str:
    heads = str(call.heads) if call.own_kv_heads == call.heads else f"{call.heads} on {call.own_kv_heads}"
    return heads if call.batch == 1 else f"{call.batch} x {heads}"


def _time(seconds: float | None, measured: bool = True) -> str:
    return UNMEASURED if seconds is None else duration(seconds) if measured else f"≥ {duration(seconds)}"


def _bytes(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def _gap(row: Judged) -> str:
    """Words of both passes ÷ their minimum."""
    moved = [None if each.words is None else each.words + each.mask_words for each in row.passes.values()]
    bound = [each.least for each in row.passes.values()]
    if None in moved or None in bound:
        return "not known"
    return f"{sum(filter(None, moved)) / sum(filter(None, bound)):.2f}"


def _why(number: int, row: Judged) -> list[str]:
    """Why this backend, and why none of ours."""
    probed = row.choice.why
    lines = [f"{number}. {row.choice.backend or 'not known'}: " + _reasons(probed)]
    if row.refusal:
        lines.append(f"   ours: {'' if row.refusal in UNTIMED else 'none, '}{row.refusal}")
    return lines


def _reasons(why: tuple[tuple[str, str], ...]) -> str:
    if not why:
        return "the first in PyTorch's order, and nothing speaks against it"
    return "; ".join(f"not {backend}, as {reason}" if backend else reason for backend, reason in why)


def _details(number: int, row: Judged) -> list[str]:
    """All that is known of a kind of call."""
    call = row.call
    where = row.where or "(no module)"
    lines = [*_why(number, row)]
    lines.append(f"   where: {where}{f', {row.numbers}' if row.numbers else ''}, {row.times} x, by {call.entry}")
    if call.repeated > 1:
        lines.append(f"   keys are copied {call.repeated} times before the call: {call.own_kv_heads} heads would do")
    for way, each in row.passes.items():
        moved = "not counted" if each.words is None else f"{each.words:,} words"
        moved += f" and {each.mask_words:,} of the mask" if each.mask_words else ""
        bound = "not known" if each.least is None else f"{each.least:,}"
        lines.append(f"   {way}: moves {moved}; the least is {bound}")
        known = "estimate" if each.measured else "unmeasured: by the card's published rates"
        lines.append(f"     PyTorch {_time(each.theirs, each.measured)} ({known}); ours {_time(each.ours)} (forecast)")
        if each.kernel:
            lines.append(f"     ours: {each.kernel}; with 99 KiB: {each.small or 'none fits'}")
    ours = "" if row.our_bytes is None else f"; ours {_bytes(row.our_bytes)}"
    lines.append(f"   bytes of tables, one call, at least: {_bytes(row.table_bytes)}{ours}")
    lines.append(f"   determinism: {row.same_bits}")
    if row.our_cost is not None:
        lines.append(
            f"     ours: gradients that are the same in each run take {row.our_cost:.2f} x the time (forecast)"
        )
    return lines


def _as_data(row: Judged) -> dict[str, Any]:
    passes = {
        way: {name: getattr(each, name) for name in each.__dataclass_fields__} for way, each in row.passes.items()
    }
    return {
        "where": row.where,
        "numbers": row.numbers,
        "calls": row.times,
        **row.call.to_dict(),
        "own_kv_heads": row.call.own_kv_heads,
        "backend": row.choice.backend,
        "probed": row.choice.probed,
        "why": [{"backend": backend, "reason": reason} for backend, reason in row.choice.why],
        "passes": passes,
        "table_bytes": row.table_bytes,
        "our_table_bytes": row.our_bytes,
        "refusal": row.refusal,
        "deterministic": row.same_bits,
        "our_deterministic_cost": row.our_cost,
    }
