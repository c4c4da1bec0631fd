"""The plan of an attention: which kernels compute it, why, and what a limit of memory costs. Without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pebblesim.advice import cards
from pebblesim.advice.amounts import amount
from pebblesim.advice.forecast import Forecast
from pebblesim.advice.tiles import PROBLEM
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import BYTES, heads_on, listed, whole
from pebblesim.kernels import releases
from pebblesim.kernels.domains import HOPPER, Call
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.operator.cuts import Cut
from pebblesim.operator.heads.parts import even_shares, side_by_side, sizes_of_part, words_of_parts
from pebblesim.operator.pattern import Pattern, band_of, limits
from pebblesim.operator.planning import CARD, ROOM, Choice, Pass, at_sizes, chosen, first_at, ranked_for, supported
from pebblesim.operator.sizes import (
    check_flag,
    check_heads,
    check_workspace,
    met,
    refused,
    sharing,
    word_of,
)

WORDS_OF_SINKS = {"forward": 2, "backward": 4}
"""Words of 16 bits that sinks move besides in each pass, for each query of a head, where numbers have 32 bits.

Forward, rows begin with the number of their head, which is in caches. Backward, L and the row sums of dO ∘ O are read
once more.
"""


@dataclass(frozen=True)
class KernelPlan:
    """The kernels that compute an attention of some size, and the reason.

    Attributes:
        dims: n_q, n_k, d_k and d_v as they are computed, without queries that see no key; heads that share keys are one
            with the rows of all.
        widths: d_k and d_v as given; matrices of fewer than 16 columns are filled up with zeros.
        heads: number of KV heads, computed all at once or in several rounds.
        pattern: the pairs that are allowed.
        card: the card whose rates are used in the forecasts.
        scaled: whether these are scaled ones of another card: they compare kernels, and say nothing about times.
        workspace: bytes that tables may take.
        forward, backward: forecasts of all kernels that fit, for these sizes. The first one is used: it is the fastest
            for the rounded `lengths`; on a card with scaled rates one with tables must be faster by a factor.
        tables: bytes of the tables of the forward pass, and of the backward pass.
        unlimited, unlimited_tables: forecasts of the kernels of both passes that would be used if tables had no limit,
            and the bytes of theirs.
        lengths: n_q and n_k, rounded up, for which the kernels of both passes are chosen.
        triton: the version of Triton here; None if there is none.
        lost: forecasts of the kernels of both passes that would be used if Gluon ran with the Triton here; None if it
            does, or the card has no use for it, or there is no Triton.
        without_keys: queries of each head that see no key, and are not computed.
        cut, cut_backward: the parts of each pass that are computed one after the other; None if it is computed as a
            whole.
        side_by_side: in how many parts a backward pass takes the heads that share keys at the same time, and the
            forecast of its kernels, without copies of keys and sums of gradients; None if it takes them together.
        sinks: words of 16 bits that sinks move besides, in the forward pass and for their gradient; None without sinks.
    """

    dims: Mapping[str, int]
    heads: int
    pattern: Pattern
    card: str
    scaled: bool
    workspace: int
    forward: tuple[Forecast, ...]
    backward: tuple[Forecast, ...]
    tables: tuple[int, int]
    unlimited: tuple[Forecast, Forecast]
    unlimited_tables: tuple[int, int]
    widths: tuple[int, int]
    lengths: tuple[tuple[int, int], tuple[int, int]]
    triton: str | None
    lost: tuple[Forecast, Forecast] | None
    without_keys: int = 0
    cut: Cut | None = None
    cut_backward: Cut | None = None
    side_by_side: tuple[int, Forecast] | None = None
    sinks: tuple[int, int] | None = None

    def __str__(self) -> str:
        band, rates = self.pattern.mask, f"rates of {self.card}"
        if self.scaled:
            rates = f"{cards.SCALED} to {self.card}: so kernels are compared, and times are not known"
        dims, shared = {**self.dims, "d_k": self.widths[0], "d_v": self.widths[1]}, self.pattern.shared
        padded = "" if dims == self.dims else f" (filled up to {LEAST_SIDE} columns with zeros)"
        dims["n_q"] //= shared
        heads = heads_on(self.heads * shared, self.heads)
        unseeing = f" ({self.without_keys:,} more queries see no key: O = 0)" if self.without_keys else ""
        here = "no Triton here" if self.triton is None else f"Triton {self.triton} here"
        lines = [f"{listed(dims)}{padded}{unseeing}, {heads}{f', {band.name}' if band else ''}, {rates}, {here}"]
        cuts = self.cut, self.cut_backward
        of_passes = self.tables, self.unlimited, self.unlimited_tables, self.lengths, cuts
        passes = zip(PROBLEM, (self.forward, self.backward), *of_passes, strict=True)
        for way, ranked, taken, free, needed, lengths, cut in passes:
            lines.append(self._first(way, ranked, lengths))
            if cut is not None:
                lines.append(f"  {cut.said(shared)}")
            if way == "backward" and self.side_by_side is not None:
                lines += self._side_by_side(*self.side_by_side)
            best = ranked[0]
            if taken or best.seconds > free.seconds:
                lines.append(f"  tables: {taken / 2**20:,.0f} MiB, and they may take {self.workspace / 2**20:,.0f} MiB")
            if best.seconds > free.seconds:
                cost = best.seconds / free.seconds - 1
                lines[-1] += f"; without this limit, with {needed / 2**20:,.0f} MiB,"
                lines[-1] += f"{self._time(free, ' ') or ' less time'}, so it costs {cost:.0%}"
        if self.sinks is not None:
            forward, backward = (f"{words:,} words of 16 bits" for words in self.sinks)
            lines.append(f"sinks: the softmax of each query begins with that of its head, {forward} from caches")
            lines.append(f"  for their gradient L and the row sums of dO ∘ O are read once more, {backward}")
        if self.lost is not None and (reason := releases.without_gluon(self.triton)):
            times = (
                f"{way}{self._time(each, ' ') or ' less time'}" for way, each in zip(PROBLEM, self.lost, strict=True)
            )
            lines.append(f"{reason}; with these {', '.join(times)}: {releases.INSTALL}")
        return "\n".join(lines)

    def _first(self, way: str, ranked: tuple[Forecast, ...], lengths: tuple[int, int]) -> str:
        """The kernels of a pass, and the first of another schedule."""
        best, n_q = ranked[0], self.dims["n_q"] // self.pattern.shared
        line = f"{way}: {best.tiling}{self._time(best, ': ')}, limited by {best.binds}"
        if lengths != (n_q, self.dims["n_k"]):
            line += f", chosen for {listed(dict(zip(('n_q', 'n_k'), lengths, strict=True)))}"
        other = next((each for each in ranked if each.tiling.schedule != best.tiling.schedule), None)
        if other is None:
            return line
        time = self._time(other, " ") or f" {other.seconds / best.seconds:.2f} times as long"
        return f"{line}; {other.tiling.schedule} would take{time}, limited by {other.binds}"

    def _side_by_side(self, parts: int, made: Forecast) -> Iterator[str]:
        """Lines of a backward pass in parts side by side."""
        together = f"the {self.pattern.shared:,} heads that share keys are in {parts} parts side by side"
        yield f"  but {together}: {made.tiling}{self._time(made, ': ')}, limited by {made.binds}"
        own = sizes_of_part(tuple(self.dims.items()), parts)
        shares = even_shares(made.tiling, own, self.heads, parts, self.pattern, cards.card(self.card))
        words = words_of_parts(self.dims["n_k"], self.dims["d_k"], self.dims["d_v"], self.heads, parts, shares)
        said = f"{words['copied']:,} words of 16 bits and {words['summed']:,} of float32"
        yield f"  besides, copies of keys and values, and sums of their gradients: {said}"

    def _time(self, kernel: Forecast, before: str) -> str:
        """The time of a kernel as text; empty where it is not known."""
        return "" if self.scaled else f"{before}{kernel.seconds * 1e3:.3g} ms"


def plan(
    n: int,
    d: int,
    heads: int = 1,
    *,
    kv_heads: int | None = None,
    n_k: int | None = None,
    d_v: int | None = None,
    dtype: str = "bfloat16",
    is_causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    align: str = "start",
    workspace: int | None = None,
    sinks: bool = False,
    bias: bool = False,
    card: str = CARD,
) -> KernelPlan:
    """Return the kernels for attention over n tokens with head dimension d, and the reason; print it to read it.

    They are those of a call without `key_padding_mask`, `key_ranges`, `cu_seqlens`, `softcap` and `deterministic`, and
    with a scale above 0, and with the Triton that is here or, if there is none, any that Gluon kernels are for; other
    calls may get other kernels.

    Args:
        n: number of queries of a head, n_q.
        d: head dimension of queries and keys, d_k, up to 1,024.
        heads: number of query heads, of all batches together.
        kv_heads: number of KV heads, of all batches together, a divisor of `heads`; `heads` if None.
        n_k: number of keys of a head; n if None.
        d_v: head dimension of values, up to 1,024; d if None.
        dtype: "bfloat16", "float16", or these types of PyTorch.
        is_causal, window, align, workspace: as for `attention`.
        sinks: True to say how many words sinks move besides.
        bias: True is refused, as calls with a bias have other kernels, whose times are not forecast.
        card: name of the card whose rates are used. Where its rates were not measured, those of an H200 are scaled;
            then kernels are compared, and no times are printed.

    Returns:
        Forecasts of both passes; that of the kernels that are used comes first in each.

    Raises:
        UsageError: `attention` does not take a size or an option, no kernel fits into the workspace, the card is not
            known or has a compute capability below 8.0, or its memory is too small for Q, K, V and O.

    >>> print(plan(16384, 512, 2))  # doctest: +ELLIPSIS
    n_q = 16,384, n_k = 16,384, d_k = 512, d_v = 512, 2 heads, rates of NVIDIA H200 SXM 141GB, ...
    forward: scores-stored-resident a=128, b=128, c=64, e=256, 8 stages, Gluon: ...
      tables: ... MiB, and they may take 1,024 MiB...
    backward: small-cache-backward-resident a=128, b=128, c=64, e=256, 8 stages, Gluon: ...
      tables: 1,024 MiB, and they may take 1,024 MiB
    """
    sizes = {"n": n, "d": d, "n_k": n if n_k is None else n_k, "d_v": d if d_v is None else d_v, "heads": heads}
    n, d, n_k, d_v, of_queries = (whole(name, size) for name, size in sizes.items())
    heads = of_queries if kv_heads is None else whole("kv_heads", kv_heads)
    shared = sharing(of_queries, heads)
    if sentence := refused(Call({"d_k": d, "d_v": d_v})):
        raise UsageError(sentence)
    check_heads(of_queries)
    check_workspace(workspace)
    check_flag("is_causal", is_causal)
    check_flag("sinks", sinks)
    check_flag("bias", bias)
    if bias:
        raise UsageError("bias is True, and plan has no forecast of calls with a bias; leave it out (docs/bias.md).")
    dtype, within = word_of(dtype), limits(window, is_causal, align, n, n_k)
    pattern, (seeing, _) = Pattern(band_of(*within, shared), shared), met(n, n_k, *within)
    n_q = (seeing.stop - seeing.start) * shared
    dims = {"n_q": n_q, "n_k": n_k, "d_k": max(d, LEAST_SIDE), "d_v": max(d_v, LEAST_SIDE)}
    own = supported(card, "card")
    _check_memory(heads * (n * shared + n_k) * (d + d_v) * BYTES[dtype], own)
    room, rates = ROOM if workspace is None else workspace, cards.with_rates(own)
    passes = [Pass(way, tuple(dims.items()), heads, dtype, pattern, room, rates) for way in PROBLEM]
    triton, lost = releases.installed(), None
    if rates.capability == HOPPER and triton is not None and releases.without_gluon(triton):
        forward, backward = (_at(chosen(*each), each) for each in passes)
        lost = forward, backward
        passes = [each._replace(pattern=pattern._replace(gluon=False)) for each in passes]
    ranked, tables, unlimited, unlimited_tables, lengths, cuts = zip(*map(_of_pass, passes), strict=True)
    (first, second), (cut, cut_backward) = ranked, cuts
    return KernelPlan(
        dims,
        heads,
        passes[0].pattern,
        rates.name,
        rates.scaled,
        room,
        first,
        second,
        tables,
        unlimited,
        unlimited_tables,
        (d, d_v),
        lengths,
        triton,
        lost,
        n - n_q // shared,
        cut,
        cut_backward,
        side_by_side(*passes[1][1:]),
        _words_of_sinks(n * of_queries) if sinks else None,
    )


def _at(best: Choice, asked: Pass) -> Forecast:
    """The forecast of kernels that were chosen for a pass."""
    return first_at(best, dict(asked.dims), asked.card, asked.dtype, asked.heads, asked.pattern)


def _of_pass(
    asked: Pass,
) -> tuple[tuple[Forecast, ...], int, Forecast, int, tuple[int, int], Cut | None]:
    """Forecasts of all kernels of a pass that fit and the bytes of the first one's tables, the forecast and bytes
    without a limit of memory, the lengths that kernels are chosen for, and the parts of the pass."""
    best, free = chosen(*asked), chosen(*asked._replace(room=None))
    rounded, found = ranked_for(asked)
    rest = (each for each in found if best.cut is not None or each.tiling != best.forecast.tiling)
    dims, others = dict(asked.dims), (asked.card, asked.dtype, asked.heads, asked.pattern)
    ranked = (_at(best, asked), *(at_sizes(each, dims, *others) for each in rest))
    lengths = asked._replace(dims=rounded).lengths
    return ranked, best.bytes, at_sizes(free.forecast, dims, *others), free.bytes, lengths, best.cut


def _words_of_sinks(queries: int) -> tuple[int, int]:
    """Words of 16 bits that sinks move besides, forward and backward, of so many queries of all heads together."""
    return queries * WORDS_OF_SINKS["forward"], queries * WORDS_OF_SINKS["backward"]


def _check_memory(held: int, card: cards.Card) -> None:
    """Check that Q, K, V and O, so many bytes, fit into a card's memory, where that is known.

    Raises:
        UsageError: they do not.
    """
    memory = card.rate("memory")
    if memory and held > memory:
        raise UsageError(
            f"Q, K, V and O are {amount(held, 'B')}, and {card.name} has {amount(memory, 'B')} of memory; give fewer "
            "tokens or heads, or deal them to several devices (`pebblesim devices`)."
        )
