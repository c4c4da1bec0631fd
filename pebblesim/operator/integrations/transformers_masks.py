"""Masks of transformers as the keys that each query sees: `Seen`, and how it is found from a mask function.

transformers describes a mask by a function of a query's and a key's position. A function is called with symbols first:
one that only compares the two positions (causal, a window on either side, all) is a band, low ≤ key - query ≤ high, for
any lengths. Another one (padding, packed sequences, chunks, images that look both ways) is evaluated for blocks of
queries by transformers itself. Flags that say what a function is, or that it may be left out, are not looked at.
"""

from __future__ import annotations

from pebblesim.operator import pytorch as _pytorch  # noqa: F401

# isort: split
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import counted
from pebblesim.operator.masks import Checked, promise, traced

AT_ONCE = 2**24
"""Pairs of a mask that are looked at together."""

OTHERWISE = "give this model another attn_implementation"


class _Unknown:
    """A value that is not known: a mask function that decides by it, in an if, is not a band."""

    def __bool__(self) -> bool:
        raise TypeError("the value of a position is not known")

    def __eq__(self, other: Any) -> bool:
        raise TypeError("the value of a position is not known")

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError("there are no numbers to calculate with")


class Band(_Unknown):
    """low ≤ key - query ≤ high; None for no limit."""

    def __init__(self, low: int | None, high: int | None) -> None:
        self.low, self.high = low, high

    def __and__(self, other: Any) -> Band:
        if not isinstance(other, Band):
            raise TypeError("only bands are joined with bands")
        return Band(_one_of(max, self.low, other.low), _one_of(min, self.high, other.high))

    @property
    def device(self) -> None:
        """None: mask functions move results to the device of others."""
        return None

    def to(self, device: None) -> Band:
        """This band: mask functions move results."""
        return self

    def moved(self, by: int) -> Band:
        """The band with these added to both limits."""
        return Band(None if self.low is None else self.low + by, None if self.high is None else self.high + by)


def _one_of(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else choose(a, b)


class _Position(_Unknown):
    """queries · q + keys · k + number, where q and k are positions, 0 or more."""

    def __init__(self, queries: int, keys: int, number: int) -> None:
        self.queries, self.keys, self.number = queries, keys, number

    def __add__(self, other: Any) -> _Position:
        if isinstance(other, _Position):
            return _Position(self.queries + other.queries, self.keys + other.keys, self.number + other.number)
        if type(other) is not int:
            raise TypeError("only integers are added to positions")
        return _Position(self.queries, self.keys, self.number + other)

    __radd__ = __add__

    def __neg__(self) -> _Position:
        return _Position(-self.queries, -self.keys, -self.number)

    def __sub__(self, other: Any) -> _Position:
        return self + -other

    def __rsub__(self, other: Any) -> _Position:
        return -self + other

    def __le__(self, other: Any) -> Band:
        less = self - other
        if (less.queries, less.keys) == (-1, 1):
            return Band(None, -less.number)
        if (less.queries, less.keys) == (1, -1):
            return Band(less.number, None)
        if max(less.queries, less.keys, less.number) <= 0:
            return Band(None, None)
        raise TypeError("not a band")

    def __ge__(self, other: Any) -> Band:
        return -self <= -other

    def __lt__(self, other: Any) -> Band:
        return self + 1 <= other

    def __gt__(self, other: Any) -> Band:
        return self - 1 >= other

    def __abs__(self) -> _Distance:
        return _Distance(self)

    def new_ones(self, shape: Any, dtype: Any) -> Band:
        """Where everything is allowed: what mask functions begin with to join others."""
        return Band(None, None)


class _Distance(_Unknown):
    """|position|, which may be compared with a number."""

    def __init__(self, of: _Position) -> None:
        self.of = of

    def __le__(self, most: Any) -> Band:
        return (self.of <= most) & (self.of >= -most)

    def __lt__(self, most: Any) -> Band:
        return self <= most - 1


def band_of(mask_function: Callable[..., Any]) -> Band | None:
    """The band that a mask function is, for any positions; None if it is something else.

    Args:
        mask_function: whether a query may see a key, by (batch, head, query, key).
    """
    try:
        found = mask_function(None, None, _Position(1, 0, 0), _Position(0, 1, 0))
    except Exception:  # whatever it does with numbers that are no numbers, it is no band
        return None
    return found if isinstance(found, Band) else None


class Holes(UsageError):
    """Keys that queries see are no ranges."""


class NotNumbers(UsageError, AttributeError):
    """A model's code takes the keys that queries see for a tensor."""


def _refused(name: str) -> NotNumbers:
    return NotNumbers(
        f"the pebblesim attention has the first and the last key of each query in the place of a mask, and this "
        f"model's code asks the mask for {name}; {OTHERWISE}."
    )


class Seen(BlockMask):
    """The keys that each query sees, where models of transformers hand on a mask.

    A model hands on a `BlockMask` as it is, so this cannot be taken for a mask that somebody made of numbers, and no
    arithmetic of a model's own code can change it without being noticed: all is refused but slices, and what means the
    same for booleans, as whose tensor it then counts: a dense mask, which has True where a query sees a key.

    Attributes:
        shape: (batch, 1, n_q, n_k).
        band: limits of key - query, counted from the first of each; None if there are ranges.
        ranges: (first, end) of each query's keys, int32 (batch, n_q); None if there is a band.
        device: where the mask is wanted.
        dtype: that of the dense mask.
    """

    dtype = torch.bool

    shape: tuple[int, ...] = ()

    def __init__(
        self,
        shape: tuple[int, ...],
        band: Band | None = None,
        ranges: tuple[Tensor, Tensor] | None = None,
        device: Any = "cpu",
    ) -> None:
        self.shape, self.band, self.ranges = shape, band, ranges
        self.device = torch.device(device) if ranges is None else ranges[0].device

    def dense(self) -> Tensor:
        """Booleans of this shape, True where a query sees a key."""
        batch, _, n_q, n_k = self.shape
        if self.ranges is None:
            assert self.band is not None
            first, end = ranges_of_band(self.band, n_q, n_k, 0, self.device)
        else:
            first, end = self.ranges
        keys = torch.arange(n_k, device=first.device)
        return ((keys >= first[..., None]) & (keys < end[..., None])).expand(batch, n_q, n_k)[:, None]

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if Ellipsis in index:
            at = index.index(Ellipsis)
            index = (*index[:at], *[slice(None)] * (5 - len(index)), *index[at + 1 :])
        parts = (*index, *[slice(None)] * (4 - len(index)))
        if len(parts) != 4 or not all(isinstance(each, slice) for each in parts):
            return self.dense()[index]
        spans = [each.indices(n) for each, n in zip(parts, self.shape, strict=True)]
        if any(step != 1 for _, _, step in spans) or spans[3][0] != 0:
            return self.dense()[index]
        shape = tuple(max(0, end - start) for start, end, _ in spans)
        if self.band is not None:
            return Seen(shape, self.band.moved(spans[2][0]), None, self.device)
        assert self.ranges is not None
        first, end = (each[spans[0][0] : spans[0][1], spans[2][0] : spans[2][1]] for each in self.ranges)
        return Seen(shape, None, (first.clamp(max=shape[3]), end.clamp(max=shape[3])))

    @property
    def ndim(self) -> int:
        """4."""
        return len(self.shape)

    def dim(self) -> int:
        """4."""
        return len(self.shape)

    def contiguous(self) -> Seen:
        """This mask."""
        return self

    def to(self, device: Any, *others: Any, **options: Any) -> Seen:
        """This mask on another device."""
        if not isinstance(device, str | int | torch.device):
            raise _refused("numbers")
        ranges = None if self.ranges is None else (self.ranges[0].to(device), self.ranges[1].to(device))
        return Seen(self.shape, self.band, ranges, device)

    def options(self, n_q: int, n_k: int, device: Any) -> dict[str, Any]:
        """The arguments of `attention` that this mask is.

        Args:
            n_q, n_k: numbers of queries and keys of a layer.
            device: where they are.

        Raises:
            UsageError: the mask is for other numbers of queries and keys.
        """
        if self.shape[2:] != (n_q, n_k):
            raise UsageError(
                f"the mask of this layer is {counted(self.shape[2])} x {counted(self.shape[3])}, queries x keys, "
                f"and the layer has {counted(n_q)} x {counted(n_k)}; {OTHERWISE}."
            )
        if self.ranges is not None:
            return {"key_ranges": Checked(*self.ranges)}
        assert self.band is not None
        low = None if self.band.low is None or self.band.low <= 1 - n_q else self.band.low
        high = None if self.band.high is None or self.band.high >= n_k - 1 else self.band.high
        if low is high is None:
            return {}
        if (low is None or low <= n_k - n_q) and (high is None or high >= 0):  # every query sees a key
            for align, shift in ("end", n_k - n_q), ("start", 0):
                window = (None if low is None else shift - low, None if high is None else high - shift)
                if all(each is None or each >= 0 for each in window):
                    return {"window": window, "align": align}
        return {"key_ranges": Checked(*ranges_of_band(self.band, n_q, n_k, 0, device))}

    def __repr__(self) -> str:
        what = "ranges" if self.band is None else f"{self.band.low} to {self.band.high}"
        return f"Seen({self.shape}, {what})"

    def __getattr__(self, name: str) -> Any:
        raise _refused(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in OF_BOOLEANS or not all(map(_is_of_booleans, _conditions(func, args))):
            raise _refused(getattr(func, "__name__", "numbers"))
        return func(*_dense(args), **(kwargs or {}))

    def __invert__(self) -> Tensor:
        return ~self.dense()

    def __and__(self, other: Any) -> Tensor:
        return _of_booleans(torch.logical_and, self, other)

    def __or__(self, other: Any) -> Tensor:
        return _of_booleans(torch.logical_or, self, other)

    __rand__, __ror__ = __and__, __or__

    def _operator(self, *others: Any) -> Any:
        raise _refused("numbers")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operator
    __xor__ = __rxor__ = __neg__ = _operator
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __setitem__ = __len__ = __iter__ = _operator
    __hash__ = object.__hash__


OF_BOOLEANS: tuple[Any, ...] = (
    torch.cat,
    torch.where,
    *(torch.logical_and, torch.logical_or, torch.logical_not),
    *(Tensor.__and__, Tensor.__or__, Tensor.masked_fill),
)
"""Functions that mean the same for a dense mask of booleans, whatever a model takes its mask for."""


def _dense(given: Any) -> Any:
    """Arguments with tensors in the place of `Seen`, in lists, too."""
    if isinstance(given, Seen):
        return given.dense()
    return type(given)(map(_dense, given)) if isinstance(given, tuple | list) else given


def _conditions(function: Any, given: tuple[Any, ...]) -> list[Any]:
    """The arguments of such a function that are to be booleans; what is given by name is none of them."""
    if not any(isinstance(each, Seen | tuple | list) for each in given):
        return [None]
    if function is torch.cat:
        return list(given[0])
    if function is torch.where:  # values that are chosen beside ours are to be booleans, too
        return list(given if any(isinstance(each, Seen) for each in given[1:]) else given[:1])
    return [given[1]] if function is Tensor.masked_fill else list(given)


def _is_of_booleans(x: Any) -> bool:
    return isinstance(x, bool) or getattr(x, "dtype", None) == torch.bool


def _of_booleans(function: Any, one: Seen, other: Any) -> Tensor:
    other = _dense(other)
    if not isinstance(other, Tensor) or other.dtype != torch.bool:
        raise _refused("numbers")
    made: Tensor = function(one.dense(), other)
    return made


def ranges_of_band(band: Band, n_q: int, n_k: int, shift: Any, device: Any) -> tuple[Tensor, Tensor]:
    """A band as ranges of keys, int32 (1, n_q).

    Args:
        band: limits of key - query, in positions.
        n_q, n_k: sizes.
        shift: the position of the first query less that of the first key, an integer or a tensor of one.
        device: of the ranges.
    """
    at = torch.arange(n_q, device=device)[None] + shift
    first = torch.zeros_like(at) if band.low is None else (at + band.low).clamp(0, n_k)
    end = torch.full_like(at, n_k) if band.high is None else (at + band.high + 1).clamp(0, n_k)
    return first.int(), end.int()


def ranges_of(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The first allowed key of each row, and the one after the last; 0 and 0 if there is none.

    Args:
        allowed: booleans (…, n_k).

    Raises:
        UsageError: a row has keys that are not allowed between others that are.
    """
    number, first = allowed.sum(-1, dtype=torch.int32), allowed.to(torch.uint8).argmax(-1).int()
    end = torch.where(number > 0, allowed.shape[-1] - allowed.flip(-1).to(torch.uint8).argmax(-1).int(), 0)
    _say(number == end - first, "a query sees keys with others between them that it does not see")
    return first, end


def rising(first: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Ranges that do not decrease: queries without a key are put between others.

    Raises:
        UsageError: they decrease where there are keys.
    """
    none = end == 0
    last = torch.cummax(torch.where(none, 0, end), -1).values
    first, end = torch.where(none, last, first), torch.where(none, last, end)
    risen = torch.cummax(first, -1).values
    _say((risen == first) & (end == last), "the keys that queries see begin or end earlier for a later query")
    return risen, last


def _say(holds: Tensor, what: str) -> None:
    sentence = (
        f"the pebblesim attention does not support this mask, in which {what}; {OTHERWISE}, or "
        'register(fallback="sdpa").'
    )
    if may_look(holds):
        if not holds.all():
            raise Holes(sentence)
        return
    promise(holds, sentence)


def may_look(tensor: Tensor) -> bool:
    """Whether numbers of a tensor may be looked at now: not of shapes alone, nor while a graph is made."""
    return not (traced(tensor) or tensor.is_meta) and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
