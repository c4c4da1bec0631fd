"""Which kernels compute an attention, and what a limit of memory costs: without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pebblesim.advice import cards
from pebblesim.advice.amounts import amount
from pebblesim.advice.forecast import Forecast, forecast, forecasts
from pebblesim.advice.tiles import PART, PROBLEM, Tiling
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import BYTES, heads_on, listed, whole
from pebblesim.kernels import releases
from pebblesim.kernels.domains import HOPPER, Call, expected
from pebblesim.kernels.tables import workspaces
from pebblesim.kernels.triton_ranges import free_dimensions, largest_tiles
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language.masks import Band
from pebblesim.language.program import Program
from pebblesim.language.registry import get
from pebblesim.launches.launches import launches
from pebblesim.operator.cuts import UNIT, Cut, cuts as ways_to_cut
from pebblesim.operator.pattern import Pattern, band_of, limits
from pebblesim.operator.sizes import (
    check_flag,
    check_heads,
    check_workspace,
    met,
    refused,
    sharing,
    word_of,
)

CARD = "H200"
"""The card whose rates are used where no card is given."""

ROOM = 2**30
"""Bytes that score matrices and their gradients may take unless a workspace is given."""

STEPS = 8
"""Lengths are rounded up to multiples of this part of a power of two where memory is limited."""

MORE_BACKWARD = 4
"""Numbers of parts of the queries that are tried for a backward pass, from the least one on."""

KEPT = 4096
"""Choices, and forecasts for rounded lengths, that are kept by their arguments."""

LATENT = "forward-latent"
"""The problem of a forward pass whose values are a part of its keys."""

WORDS_OF_SINKS = {"forward": 2, "backward": 4}
"""Words of 16 bits that sinks move besides in each pass, for each query of a head, where numbers have 32 bits.

Forward, rows begin with the number of their head, which is in caches. Backward, L and the row sums of dO ∘ O are read
once more.
"""

Dims = tuple[tuple[str, int], ...]
"""Sizes by name, as a key of a table."""


@dataclass(frozen=True)
class Choice:
    """Kernels for some lengths.

    Attributes:
        forecast: their tiles, and their time for the lengths they were chosen for.
        even: whether their tiles divide these lengths.
        bytes: bytes of the tables that they keep for all heads that are computed at once.
        cut: the parts that are computed one after the other; None if it is computed as a whole.
    """

    forecast: Forecast
    even: bool
    bytes: int
    cut: Cut | None = None


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
            best = ranked[0]
            line = f"{way}: {best.tiling}{self._time(best, ': ')}, limited by {best.binds}"
            if lengths != (dims["n_q"], dims["n_k"]):
                line += f", chosen for {listed(dict(zip(('n_q', 'n_k'), lengths, strict=True)))}"
            other = next((each for each in ranked if each.tiling.schedule != best.tiling.schedule), None)
            if other is not None:
                time = self._time(other, " ") or f" {other.seconds / best.seconds:.2f} times as long"
                line += f"; {other.tiling.schedule} would take{time}, limited by {other.binds}"
            lines.append(line)
            if cut is not None:
                lines.append(f"  {cut.said(shared)}")
            if way == "backward" and self.side_by_side is not None:
                parts, made = self.side_by_side
                line = f"  but the {shared:,} heads that share keys are in {parts} parts side by side: {made.tiling}"
                lines.append(f"{line}{self._time(made, ': ')}, limited by {made.binds}")
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
    key, room, rates = tuple(dims.items()), ROOM if workspace is None else workspace, cards.with_rates(own)
    triton, lost = releases.installed(), list[Forecast]()
    if rates.capability == HOPPER and triton is not None and releases.without_gluon(triton):
        lacking = (chosen(way, key, heads, dtype, pattern, room, rates) for way in PROBLEM)
        lost = [first_at(each, dims, rates, dtype, heads, pattern) for each in lacking]
        pattern = pattern._replace(gluon=False)
    ranked, tables, unlimited, unlimited_tables, lengths, cuts = [], [], [], [], [], []
    for way in PROBLEM:
        best = chosen(way, key, heads, dtype, pattern, room, rates)
        free = chosen(way, key, heads, dtype, pattern, None, rates)
        rounded, found = ranked_for(way, key, heads, dtype, pattern, room, rates)
        rest = (each for each in found if best.cut is not None or each.tiling != best.forecast.tiling)
        at_sizes = (_at(each, dims, rates, dtype, heads, pattern) for each in rest)
        ranked.append((first_at(best, dims, rates, dtype, heads, pattern), *at_sizes))
        cuts.append(best.cut)
        tables.append(best.bytes)
        unlimited.append(_at(free.forecast, dims, rates, dtype, heads, pattern))
        unlimited_tables.append(free.bytes)
        lengths.append((dict(rounded)["n_q"] // shared, dict(rounded)["n_k"]))
    from pebblesim.operator.parts_of_heads import side_by_side  # which asks what is chosen

    return KernelPlan(
        dims,
        heads,
        pattern,
        rates.name,
        rates.scaled,
        room,
        ranked[0],
        ranked[1],
        (tables[0], tables[1]),
        (unlimited[0], unlimited[1]),
        (unlimited_tables[0], unlimited_tables[1]),
        (d, d_v),
        (lengths[0], lengths[1]),
        triton,
        (lost[0], lost[1]) if lost else None,
        n - n_q // shared,
        cuts[0],
        cuts[1],
        side_by_side(key, heads, dtype, pattern, room, rates),
        _words_of_sinks(n * of_queries) if sinks else None,
    )


def supported(name: str, option: str) -> cards.Card:
    """Return the card with a name that an option gave.

    Raises:
        UsageError: no card is known by it, or kernels do not run on it.
    """
    if not isinstance(name, str):
        raise UsageError(f"card is {name!r}; give the name of a card, such as {CARD}.")
    own = cards.card(name, option)
    if sentence := refused(Call({}, card=own.name, capability=own.capability)):
        raise UsageError(sentence)
    return own


def first_at(
    best: Choice, dims: Mapping[str, int], card: cards.Card, dtype: str, heads: int, pattern: Pattern
) -> Forecast:
    """The forecast of the kernels that are used, for these sizes: of some heads that share keys at a time."""
    if best.cut is None:
        return _at(best.forecast, dims, card, dtype, heads, pattern)
    some, own, rounds = _part(best.cut, tuple(dims.items()), heads, pattern)
    made = forecast(best.forecast.tiling, dict(some), card, dtype, best.cut.kv_heads, expected(own.mask))
    return replace(_launched(made), rounds=rounds)


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


@lru_cache(maxsize=KEPT)
def chosen(
    way: str, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card
) -> Choice:
    """Choose the kernels of a pass.

    Args:
        way: "forward" or "backward".
        dims: n_q (rows of all heads that share keys), n_k, d_k, d_v.
        heads: KV heads in all.
        dtype: type of the words of matrices.
        pattern: the pairs that are allowed.
        room: bytes that tables may take, or None.
        card: the card.

    Raises:
        UsageError: no kernel fits into this room.
    """
    free = _first(way, rounded_up(dims, pattern, 1), dims, heads, dtype, pattern, None, card)
    if room is None or free.bytes <= room:
        return free
    made = _parts_forward(free.bytes // heads, dims, heads, dtype, pattern, room, card)
    parts = [*(made if way == "forward" else _parts_backward(dims, heads, dtype, pattern, room, card))]
    try:
        parts.insert(0, _first(way, rounded_up(dims, pattern, STEPS), dims, heads, dtype, pattern, room, card))
    except UsageError:
        if not parts:
            raise

    def seconds(one: Choice) -> float:
        return first_at(one, dict(dims), card, dtype, heads, pattern).seconds

    return min(parts, key=seconds) if len(parts) > 1 else parts[0]


def _parts_forward(
    tables: int, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int, card: cards.Card
) -> Iterator[Choice]:
    """The kernels of a forward pass in parts, which have whole tables where those of all have no room.

    `tables`: bytes of those of all heads that share keys.
    """
    n_q, n_k = dict(dims)["n_q"] // pattern.shared, dict(dims)["n_k"]
    for cut in ways_to_cut(pattern, n_q, n_k, heads, tables, room):
        some, own, rounds = _part(cut, dims, heads, pattern)
        alone = _first("forward", rounded_up(some, own, 1), some, cut.kv_heads, dtype, own, None, card)
        _, taken = _of_lengths(alone.forecast.tiling, dims[2:], dtype, own.mask)
        blocks = {**dict(dims), **alone.forecast.tiling.blocks}
        most = cut.kv_heads * max(taken({**blocks, "n_q": n, "n_k": keys}) for n, keys in cut.sizes(pattern, n_k))
        if most <= room:
            yield Choice(replace(alone.forecast, rounds=rounds), alone.even, most, cut)


def _parts_backward(
    dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int, card: cards.Card
) -> Iterator[Choice]:
    """The kernels of a backward pass in parts, whose sums have their place in memory from one part to the next."""
    whole = dict(dims)
    n_q, n_k = whole["n_q"] // pattern.shared, whole["n_k"]
    tables = BYTES[dtype] * UNIT**2 * -(-whole["n_q"] // UNIT) * -(-n_k // UNIT)
    of_key = BYTES["float32"] * (whole["d_k"] + whole["d_v"])
    for cut in ways_to_cut(pattern, n_q, n_k, heads, tables, room, of_key * n_k, MORE_BACKWARD):
        some, own, rounds = _part(cut, dims, heads, pattern)
        alone = _suiting(PART, rounded_up(some, own, 1), some, cut.kv_heads, dtype, own, None, card)
        if alone is None:
            continue
        sides, taken = _of_lengths(alone.forecast.tiling, dims[2:], dtype, own.mask)
        each = [{**whole, **alone.forecast.tiling.blocks, "n_q": n, "n_k": keys} for n, keys in cut.sizes(pattern, n_k)]
        even = not any(size[name] % side for size in each for name, side in sides)
        most = cut.kv_heads * max(taken(size) + of_key * (n_k - size["n_k"]) for size in each)
        if most <= room:
            yield Choice(replace(alone.forecast, rounds=rounds), even, most, cut)


def _part(cut: Cut, dims: Dims, heads: int, pattern: Pattern) -> tuple[Dims, Pattern, int]:
    """The sizes of a part that has as many queries and keys as parts have in the mean, its pairs, and the number of
    parts."""
    keys, parts = cut.keys(pattern, dict(dims)["n_k"]), len(cut.ends)
    own = {"n_q": cut.ends[-1] // parts, "n_k": sum(keys) // parts}
    if parts > 1:
        own = {name: -(-size // UNIT) * UNIT for name, size in own.items()}
    own["n_q"] *= cut.heads
    some = tuple((name, own.get(name, size)) for name, size in dims)
    return some, cut.pattern(pattern), heads // cut.kv_heads * (pattern.shared // cut.heads) * parts


def ranked_for(
    way: str, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int, card: cards.Card
) -> tuple[Dims, tuple[Forecast, ...]]:
    """The rounded sizes that `chosen` looks at, and the kernels for these sizes in its order; arguments as for it."""
    free = chosen(way, dims, heads, dtype, pattern, None, card)
    limit, steps = (room, STEPS) if free.bytes > room else (None, 1)
    rounded = rounded_up(dims, pattern, steps)
    found = _forecasts(way, rounded, heads, dtype, pattern, limit, card)
    return rounded, tuple(each for each in found if each.tiling.refusal(pattern.call(dims, dtype, card)) is None)


def _first(
    way: str, rounded: Dims, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card
) -> Choice:
    """The first of the kernels for rounded lengths that are for these lengths, too."""
    if (found := _suiting(way, rounded, dims, heads, dtype, pattern, room, card)) is not None:
        return found
    widths = f"{dict(dims)['d_k']:,} and {dict(dims)['d_v']:,}"
    raise UsageError(
        f"no kernel for head dimensions {widths} fits into the shared memory of {card.name}; PyTorch computes it: "
        "torch.nn.functional.scaled_dot_product_attention."
    )


def _suiting(
    way: str, rounded: Dims, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card
) -> Choice | None:
    """The first of the kernels for rounded lengths that are for these lengths, too; None if there is none."""
    for made in _forecasts(way, rounded, heads, dtype, pattern, room, card):
        if made.tiling.refusal(pattern.call(dims, dtype, card)) is None:
            widths = tuple(each for each in dims if not each[0].startswith("n"))
            sides, taken = _of_lengths(made.tiling, widths, dtype, pattern.mask)
            sizes = {**dict(dims), **made.tiling.blocks}
            even = not made.tiling.one_source and all(sizes[name] % side == 0 for name, side in sides)
            return Choice(made, even, heads // made.rounds * taken(sizes))
    return None


@lru_cache(maxsize=KEPT)
def _of_lengths(
    tiling: Tiling, widths: Dims, dtype: str, mask: Band | None
) -> tuple[tuple[tuple[str, int], ...], Callable[[Mapping[str, int]], int]]:
    """The sides of tiles along the lengths, and a function that gives the bytes of the tables of a head."""
    program = program_of(tiling, mask)
    made, sizes = launches(program, masked=True, repeated=True), {**dict(widths), **tiling.blocks}
    sizes |= {name: 1 for name in program.dims if name not in sizes}
    sides = largest_tiles(made, free_dimensions(program, made), sizes)
    return tuple(sides.items()), workspaces(program, sizes, dtype, expected(mask))


@lru_cache(maxsize=KEPT)
def chosen_for_latent(dims: Dims, heads: int, dtype: str, pattern: Pattern, card: cards.Card) -> Choice | None:
    """The kernels of a forward pass that read keys and values together; None if there are none for these sizes.

    Args:
        dims: n_q (rows of all heads that share keys), n_k, d_v and d_r: words of a key that are its value, and others.
        heads, dtype, pattern, card: as for `chosen`.
    """
    return _suiting(LATENT, rounded_up(dims, pattern, 1), dims, heads, dtype, pattern, None, card)


@lru_cache(maxsize=KEPT)
def _forecasts(
    way: str, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card
) -> tuple[Forecast, ...]:
    """Forecasts of the kernels that fit, the fastest first."""
    found = forecasts(PROBLEM.get(way, way), pattern.call(dims, dtype, card), card, heads, room)
    return found if card.scaled else tuple(sorted(map(_launched, found), key=lambda made: made.seconds))


def _launched(made: Forecast) -> Forecast:
    """A forecast without launches for pairs that a mask leaves out: `attention` gives kernels only what has pairs."""
    return replace(made, launches=tuple(each for each in made.launches if each.cost.working))


def rounded_up(dims: Dims, pattern: Pattern, steps: int) -> Dims:
    """The sizes that kernels are chosen for, so that few kernels serve all lengths.

    Lengths are rounded up to powers of two or, with several `steps`, to multiples of a part of one.
    """

    def up(size: int) -> int:
        unit = max(1, 2 ** (size - 1).bit_length() // 2 // steps if steps > 1 else 2 ** (size - 1).bit_length())
        return int(-(-size // unit) * unit)

    return tuple(
        (name, up(-(-size // by)) * by if name.startswith("n") else size)
        for name, size in dims
        for by in (pattern.shared if name == "n_q" else 1,)
    )


def program_of(tiling: Tiling, mask: Band | None) -> Program:
    """The traced schedule of a tiling."""
    rectangle = get(tiling.schedule).problem.rectangle
    return tiling.traced(() if rectangle is None else rectangle.dims, mask)


def _at(
    made: Forecast, dims: Mapping[str, int], card: cards.Card, dtype: str, heads: int, pattern: Pattern
) -> Forecast:
    """The forecast of the kernels of another one, for these sizes."""
    at_once = heads // made.rounds
    found = forecast(made.tiling, dims, card, dtype, at_once, expected(pattern.mask))
    return replace(_launched(found), rounds=made.rounds)
