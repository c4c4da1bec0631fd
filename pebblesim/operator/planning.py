"""Which kernels compute an attention, within a limit of memory: without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from pebblesim.advice import cards
from pebblesim.advice.forecast import Forecast, LaunchForecast, forecast, forecasts
from pebblesim.advice.tiles import PART, PROBLEM, Tiling
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import BYTES
from pebblesim.kernels.domains import Call, expected
from pebblesim.kernels.tables import workspaces
from pebblesim.kernels.triton.ranges import free_dimensions, largest_tiles
from pebblesim.language.masks import Band
from pebblesim.language.program import Program
from pebblesim.language.registry import get
from pebblesim.launches.launches import launches
from pebblesim.operator.cuts import UNIT, Cut, cuts as ways_to_cut
from pebblesim.operator.pattern import Pattern
from pebblesim.operator.sizes import refused

CARD = "H200"
"""The card whose rates are used where no card is given."""

ROOM = 2**30
"""Bytes that score matrices and their gradients may take unless a workspace is given."""

STEPS = 8
"""Lengths are rounded up to multiples of this part of a power of two where memory is limited."""

PARTS = 8
"""Parts of a pass whose times are forecast, at most: others take as long for each pair."""

KEPT = 4096
"""Choices, and forecasts for rounded lengths, that are kept by their arguments."""

LATENT = "forward-latent"
"""The problem of a forward pass whose values are a part of its keys."""

Dims = tuple[tuple[str, int], ...]
"""Sizes by name, as a key of a table."""

Sides = tuple[tuple[str, int], ...]
"""The sides of tiles along lengths."""

Taken = Callable[[Mapping[str, int]], int]
"""Gives the bytes of the tables of a head, of its sizes and those of blocks."""


class Pass(NamedTuple):
    """A pass that kernels are chosen for.

    Attributes:
        way: "forward" or "backward", or another problem or part of one.
        dims: n_q (rows of all heads that share keys), n_k, d_k, d_v.
        heads: KV heads in all.
        dtype: type of the words of matrices.
        pattern: the pairs that are allowed.
        room: bytes that tables may take, or None.
        card: the card.
    """

    way: str
    dims: Dims
    heads: int
    dtype: str
    pattern: Pattern
    room: int | None
    card: cards.Card

    @property
    def lengths(self) -> tuple[int, int]:
        """Queries of a head, and keys."""
        whole = dict(self.dims)
        return whole["n_q"] // self.pattern.shared, whole["n_k"]

    def rounded(self, steps: int = 1) -> Dims:
        """The sizes that kernels are chosen for."""
        return rounded_up(self.dims, self.pattern, steps)

    def part(self, cut: Cut, way: str) -> Pass:
        """A part that has as many queries and keys as parts have in the mean, as a whole pass of this way."""
        keys, parts = cut.keys(self.pattern, self.lengths[1]), len(cut.ends)
        own = {"n_q": cut.ends[-1] // parts, "n_k": sum(keys) // parts}
        if parts > 1:
            own = {name: -(-size // UNIT) * UNIT for name, size in own.items()}
        own["n_q"] *= cut.heads
        dims = tuple((name, own.get(name, size)) for name, size in self.dims)
        return Pass(way, dims, cut.kv_heads, self.dtype, cut.pattern(self.pattern), None, self.card)


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
    """The forecast of the kernels that were chosen for these sizes."""
    if best.cut is not None:
        return _of_parts(best.cut, best.forecast.tiling, tuple(dims.items()), heads, dtype, pattern, card)
    return at_sizes(best.forecast, dims, card, dtype, heads, pattern)


def _of_parts(
    cut: Cut, tiling: Tiling, dims: Dims, heads: int, dtype: str, pattern: Pattern, card: cards.Card
) -> Forecast:
    """The forecast of a pass in parts."""
    own, parts = cut.pattern(pattern), [*cut.sizes(pattern, dict(dims)["n_k"])]
    some = parts[:: -(-len(parts) // PARTS)]
    others = sum(rows * keys for rows, keys in parts) / sum(rows * keys for rows, keys in some)
    made = list[LaunchForecast]()
    for rows, keys in some:
        sizes = tuple({**dict(dims), "n_q": rows, "n_k": keys}.items())
        made += _of_part(tiling, sizes, card, dtype, cut.kv_heads, own.mask)
    rounds = heads // cut.kv_heads * (pattern.shared // cut.heads)
    return Forecast(tiling, tuple(replace(each, seconds=each.seconds * others) for each in made), rounds)


@lru_cache(maxsize=KEPT)
def _of_part(
    tiling: Tiling, sizes: Dims, card: cards.Card, dtype: str, heads: int, mask: Band | None
) -> tuple[LaunchForecast, ...]:
    """Forecasts of the launches of a part."""
    return launched(forecast(tiling, dict(sizes), card, dtype, heads, expected(mask))).launches


@lru_cache(maxsize=KEPT)
def chosen(
    way: str, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card
) -> Choice:
    """Choose the kernels of a pass, which `Pass` describes.

    Raises:
        UsageError: no kernel fits into this room.
    """
    asked = Pass(way, dims, heads, dtype, pattern, room, card)
    free = _first(asked._replace(room=None), asked.rounded())
    if room is None or free.bytes <= room:
        return free
    rounded = asked.rounded(STEPS)
    for lengths in rounded, dims:  # rounded ones may be equal, and can then be cut where these cannot
        plain = tuple((name, int(size)) for name, size in lengths)  # what is kept is for no expressions
        like = _fastest(asked._replace(dims=plain))
        if like.cut is None:
            break
        for made in _in_parts(asked, room, like.cut):
            return replace(made, forecast=replace(like.forecast, tiling=made.forecast.tiling))
    return _first(asked, rounded)


@lru_cache(maxsize=KEPT)
def _fastest(asked: Pass) -> Choice:
    """The kernels of a pass whose tables have no room together: in parts, or for some heads or rows at a time.

    Its lengths are rounded.
    """
    _, dims, heads, dtype, pattern, room, card = asked
    assert room is not None
    found = list[Choice]()
    for made in _in_parts(asked, room):
        assert made.cut is not None
        of_parts = _of_parts(made.cut, made.forecast.tiling, dims, heads, dtype, pattern, card)
        found.append(replace(made, forecast=of_parts))
    try:
        found.append(_first(asked, dims))
    except UsageError:
        if not found:
            raise
    return min(found, key=lambda made: first_at(made, dict(dims), card, dtype, heads, pattern).seconds)


def _in_parts(asked: Pass, room: int, like: Cut | None = None) -> Iterator[Choice]:
    """The kernels of a pass in parts that have room, with the forecast of a mean part; `like`: cut in this way."""
    if asked.way == "backward":
        yield from _parts_backward(asked, room, like)
    else:
        yield from _parts_forward(asked, room, like)


def _parts_forward(asked: Pass, room: int, like: Cut | None) -> Iterator[Choice]:
    """The kernels of a forward pass in parts, which have whole tables where those of all have no room."""
    tables = _first(asked._replace(room=None), asked.rounded()).bytes // asked.heads
    n_q, n_k = asked.lengths
    units = asked.card.size("multiprocessors")
    for cut in ways_to_cut(asked.pattern, n_q, n_k, asked.heads, tables, room, units, 0, like):
        alone = _first(some := asked.part(cut, "forward"), some.rounded())
        _, taken, sizes = _of_each(alone, asked, cut, some)
        most = cut.kv_heads * max(map(taken, sizes))
        if most <= room:
            yield Choice(alone.forecast, alone.even, most, cut)


def _parts_backward(asked: Pass, room: int, like: Cut | None) -> Iterator[Choice]:
    """The kernels of a backward pass in parts, whose sums have their place in memory from one part to the next."""
    whole, (n_q, n_k) = dict(asked.dims), asked.lengths
    tables = BYTES[asked.dtype] * UNIT**2 * -(-whole["n_q"] // UNIT) * -(-n_k // UNIT)
    of_key, units = BYTES["float32"] * (whole["d_k"] + whole["d_v"]), asked.card.size("multiprocessors")
    for cut in ways_to_cut(asked.pattern, n_q, n_k, asked.heads, tables, room, units, of_key * n_k, like):
        alone = _suiting(some := asked.part(cut, PART), some.rounded())
        if alone is None:
            continue
        sides, taken, sizes = _of_each(alone, asked, cut, some)
        even = not any(size[name] % side for size in sizes for name, side in sides)
        most = cut.kv_heads * max(taken(size) + of_key * (n_k - size["n_k"]) for size in sizes)
        if most <= room:
            yield Choice(alone.forecast, even, most, cut)


def _of_each(alone: Choice, asked: Pass, cut: Cut, part: Pass) -> tuple[Sides, Taken, list[dict[str, int]]]:
    """Return what `_of_lengths` gives for the kernels of a part, and the sizes of each part with their blocks."""
    sides, taken = _of_lengths(alone.forecast.tiling, asked.dims[2:], asked.dtype, part.pattern.mask)
    whole, parts = {**dict(asked.dims), **alone.forecast.tiling.blocks}, cut.sizes(asked.pattern, asked.lengths[1])
    return sides, taken, [{**whole, "n_q": rows, "n_k": keys} for rows, keys in parts]


def ranked_for(asked: Pass) -> tuple[Dims, tuple[Forecast, ...]]:
    """The rounded sizes that `chosen` looks at for a pass, and the kernels for these sizes in its order."""
    limited = asked.room is not None and chosen(*asked._replace(room=None)).bytes > asked.room
    rounded = asked.rounded(STEPS if limited else 1)
    found = _forecasts(asked._replace(dims=rounded, room=asked.room if limited else None))
    call = asked.pattern.call(asked.dims, asked.dtype, asked.card)
    return rounded, tuple(each for each in found if each.tiling.refusal(call) is None)


def _first(asked: Pass, rounded: Dims) -> Choice:
    """The first of the kernels for rounded lengths that are for these lengths, too."""
    if (found := _suiting(asked, rounded)) is not None:
        return found
    widths = f"{dict(asked.dims)['d_k']:,} and {dict(asked.dims)['d_v']:,}"
    raise UsageError(
        f"no kernel for head dimensions {widths} fits into the shared memory of {asked.card.name}; PyTorch computes "
        "it: torch.nn.functional.scaled_dot_product_attention."
    )


def _suiting(asked: Pass, rounded: Dims) -> Choice | None:
    """The first of the kernels for rounded lengths that are for these lengths, too; None if there is none."""
    call = asked.pattern.call(asked.dims, asked.dtype, asked.card)
    for made in _forecasts(asked._replace(dims=rounded)):
        if made.tiling.refusal(call) is None:
            widths = tuple(each for each in asked.dims if not each[0].startswith("n"))
            sides, taken = _of_lengths(made.tiling, widths, asked.dtype, asked.pattern.mask)
            sizes = {**dict(asked.dims), **made.tiling.blocks}
            even = not made.tiling.one_source and all(sizes[name] % side == 0 for name, side in sides)
            return Choice(made, even, asked.heads // made.rounds * taken(sizes))
    return None


@lru_cache(maxsize=KEPT)
def _of_lengths(tiling: Tiling, widths: Dims, dtype: str, mask: Band | None) -> tuple[Sides, Taken]:
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
    asked = Pass(LATENT, dims, heads, dtype, pattern, None, card)
    return _suiting(asked, asked.rounded())


@lru_cache(maxsize=KEPT)
def _forecasts(asked: Pass) -> tuple[Forecast, ...]:
    """Forecasts of the kernels that fit, the fastest first."""
    call, card = asked.pattern.call(asked.dims, asked.dtype, asked.card), asked.card
    found = forecasts(PROBLEM.get(asked.way, asked.way), call, card, asked.heads, asked.room)
    return found if card.scaled else tuple(sorted(map(launched, found), key=lambda made: made.seconds))


def launched(made: Forecast) -> Forecast:
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


def at_sizes(
    made: Forecast, dims: Mapping[str, int], card: cards.Card, dtype: str, heads: int, pattern: Pattern
) -> Forecast:
    """The forecast of the kernels of another one, for these sizes."""
    at_once = heads // made.rounds
    found = forecast(made.tiling, dims, card, dtype, at_once, expected(pattern.mask))
    return replace(launched(found), rounds=made.rounds)
