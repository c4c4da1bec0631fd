"""Masks: limits of j - i that hold for all queries, and ranges of keys that are tensors.

A range says for each query which keys it may attend to: first ≤ j < end. Ranges do not decrease from query to query.
Packed sequences, key padding, prefixes, spans that look both ways and caches of fixed size are ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import counted
from pebblesim.kernels.key_ranges import ARGUMENTS, KeyRanges
from pebblesim.operator.pattern import Pattern, Within, band_of

Ranges = tuple[Tensor, Tensor]


class Checked(NamedTuple):
    """Ranges of keys that hold what `check_ranges` asks for by how they were made, so that no layer looks again."""

    first: Tensor
    end: Tensor


INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
"""Types of positions."""


class Asked(NamedTuple):
    """The arguments of the operators behind the matrices, in their order.

    Attributes:
        first, end: ranges of keys of each query, (batch, n_q); None if limits say all.
        left, right, at_end: limits, as of `pattern.limits`.
        scale: factor of the scores.
        softcap: scores are capped so; 0 if they are not.
        workspace: bytes that tables may take; None for the limit that is usual.
        deterministic: whether results are to be the same to the last bit at each call.
    """

    first: Tensor | None
    end: Tensor | None
    left: int | None
    right: int | None
    at_end: bool
    scale: float
    softcap: float
    workspace: int | None
    deterministic: bool

    def pattern(self, query: Tensor, key: Tensor) -> Pattern:
        """The pairs that kernels for (…, heads, n, d) are compiled for; where both ends meet, those from the start."""
        at_end = self.at_end and query.shape[-2] != key.shape[-2]
        shared = query.shape[-3] // key.shape[-3]
        ranged, limits = self.first is not None, (self.left, self.right, at_end)
        mask = KeyRanges(rows=shared) if ranged else band_of(*limits, shared)
        return Pattern(mask, shared, self.softcap, self.deterministic)


def ranged(query: Tensor, key: Tensor, asked: Asked, masks_of: Mapping[str, Any]) -> Asked:
    """The arguments of the operators, with ranges in the place of limits if a mask, by its name, is a tensor."""
    if all(each is None for each in masks_of.values()):
        return asked
    sizes = prod(query.shape[:-3]), query.shape[-2], key.shape[-2]
    found = ranges_of(sizes, query.device, asked[2:5], **masks_of)
    if found is None:
        return asked
    first, end = (each.expand(sizes[:2]).contiguous() for each in found)
    return asked._replace(first=first, end=end, left=None, right=None, at_end=False)


def ranges_of(
    sizes: tuple[int, int, int],
    device: torch.device,
    within: Within,
    cu_seqlens: Any,
    key_padding_mask: Any,
    key_ranges: Any,
) -> Ranges | None:
    """The keys that each query may attend to, limits among them; None if no mask says.

    Args:
        sizes: batch, n_q and n_k.
        device: where the masks are.
        within: limits.
        cu_seqlens, key_padding_mask, key_ranges: as for `attention`.

    Raises:
        UsageError: a mask is not one for these queries and keys.
    """
    batch, n_q, n_k = sizes
    ranges = None
    if cu_seqlens is not None:
        ranges = ranges_of_sequences(cu_seqlens, n_q, n_k, *within)
    elif key_padding_mask is not None or key_ranges is not None:
        ranges = ranges_of_band(n_q, n_k, *within, device)
    if key_padding_mask is not None:
        ranges = both(ranges, ranges_of_padding(key_padding_mask, batch, n_q, n_k))
    if key_ranges is not None:
        ranges = both(ranges, check_ranges(key_ranges, batch, n_q, n_k))
    return ranges


def ranges_of_sequences(starts: Any, n_q: int, n_k: int, left: int | None, right: int | None, at_end: bool) -> Ranges:
    """Ranges of packed sequences, computed where their starts are, without waiting.

    Args:
        starts: (number of sequences + 1) positions at which sequences start, and the end of the last; or a pair of
            these, for queries and for keys.
        n_q, n_k: numbers of queries and keys.
        left, right, at_end: limits of j - i within a sequence.

    Raises:
        UsageError: they are not such tensors.
    """
    pair = starts if isinstance(starts, tuple | list) else (starts, starts)
    if len(pair) != 2 or not all(
        isinstance(each, Tensor) and each.dim() == 1 and each.dtype in INTEGERS and each.shape[0] > 1 for each in pair
    ):
        raise UsageError(
            f"cu_seqlens is {_described(starts)}; give a tensor of integers of shape (sequences + 1,), or a pair of "
            "these for queries and keys."
        )
    of_q, of_k = pair
    if of_q.shape != of_k.shape:
        raise UsageError(
            f"cu_seqlens are for {len(of_q) - 1} sequences of queries and {len(of_k) - 1} of keys; give as many of "
            "both."
        )
    of_q, of_k = (each if each.dtype in (torch.int32, torch.int64) else each.int() for each in (of_q, of_k))
    alike = of_k is of_q or pair[0] is pair[1]
    for each, n in ((of_q, min(n_q, n_k)),) if alike else ((of_q, n_q), (of_k, n_k)):
        promise(
            (each[0] == 0) & (each[1:] >= each[:-1]).all() & (each[-1] <= n),
            promised(n),
        )
    at = torch.arange(n_q, device=of_q.device, dtype=of_q.dtype)
    behind = torch.searchsorted(of_q, at, right=True)  # number of the sequence behind, that of the end without one
    ends = behind.clamp(max=len(of_q) - 1)
    first, end = of_k[behind - 1], of_k[ends]
    if left is not None or right is not None:
        position = at if alike and not at_end else (end - of_q[ends] if at_end else first - of_q[behind - 1]) + at
        seen = end if right is None else torch.minimum(end, position + right + 1)
        if left is not None:
            first = torch.minimum(torch.maximum(first, position - left), end)  # the next sequence begins there
        end = torch.maximum(seen, first)
    return first.clamp(max=n_k).int()[None], end.clamp(max=n_k).int()[None]


def promised(n: int | None) -> str:
    """The sentence where starts of sequences are wrong; n: tokens, if they are known."""
    return f"cu_seqlens must begin with 0, must not decrease, and may go up to the {_here(n, 'tokens')} that are here."


def _here(n: int | None, what: str) -> str:
    """How many there are, for a sentence; a graph that has the number in a text would be for this number alone."""
    return what if n is None or torch.compiler.is_compiling() else f"{counted(n)} {what}"


OUTSIDE = (
    "key_padding_mask has padding between two keys of the text; padding may be on the left and on the right of it."
)
"""The sentence where padding is between keys."""


def ranges_of_padding(padding: Any, batch: int, n_q: int, n_k: int) -> Ranges:
    """Ranges of keys without those that are padding, on the left and on the right.

    Args:
        padding: booleans of shape (batch, n_k) or (1, n_k), True where a key is padding.
        batch, n_q, n_k: sizes.

    Raises:
        UsageError: it has another shape or type, or padding is found between keys.
    """
    if (
        not isinstance(padding, Tensor)
        or padding.dtype != torch.bool
        or padding.dim() != 2
        or padding.shape[0] not in (1, batch)
        or padding.shape[1] != n_k
    ):
        raise UsageError(
            f"key_padding_mask is {_described(padding)}; give booleans of shape {_rows(batch, n_k)}, True where a key "
            "is padding."
        )
    if not n_k:
        first = end = padding.new_zeros((padding.shape[0], n_q), dtype=torch.int32)
        return first, end
    real = ~padding
    first = real.int().argmax(-1)
    end = torch.where(real.any(-1), n_k - real.flip(-1).int().argmax(-1), 0)
    promise(real.sum(-1) == end - first * real.any(-1), OUTSIDE)
    first, end = (each[:, None].expand(-1, n_q).int().contiguous() for each in (first, end))
    return first, end


def ranges_of_band(n_q: int, n_k: int, left: int | None, right: int | None, at_end: bool, device: Any) -> Ranges | None:
    """Limits of j - i as ranges; None if there are none."""
    if left is None and right is None:
        return None
    position = torch.arange(n_q, device=device, dtype=torch.int32)[None] + (n_k - n_q if at_end else 0)
    first = torch.zeros_like(position) if left is None else (position - left).clamp(0, n_k)
    end = torch.full_like(position, n_k) if right is None else (position + right + 1).clamp(0, n_k)
    return first, end


class Ranged(NamedTuple):
    """Ranges of keys for each query, (batch, n_q), and of queries for each key, (batch, n_k), as kernels take them."""

    first: Tensor
    end: Tensor
    above: Tensor
    below: Tensor


def arguments_of(first: Tensor | None, end: Tensor | None, n_k: int) -> dict[str, Tensor]:
    """The arguments of kernels that read ranges: those of keys for each query, and of queries for each key."""
    if first is None or end is None:
        return {}
    keys = torch.arange(n_k, device=first.device, dtype=torch.int32).expand(first.shape[0], n_k).contiguous()
    first, end = first.contiguous(), end.contiguous()
    above, below = (torch.searchsorted(each, keys, right=True, out_int32=True) for each in (end, first))
    return dict(zip(ARGUMENTS, (first, end, above, below), strict=False))


def both(one: Ranges | None, other: Ranges | None) -> Ranges | None:
    """The ranges of keys that are in both."""
    if one is None or other is None:
        return one or other
    return torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1])


def check_ranges(ranges: Any, batch: int, n_q: int, n_k: int) -> Ranges:
    """Key ranges as they are given, checked.

    Raises:
        UsageError: they are not two tensors (batch or 1, n_q) of int32, decrease, or go beyond the keys.
    """
    if (
        not isinstance(ranges, tuple | list)
        or len(ranges) != 2
        or not all(isinstance(x, Tensor) and x.dtype == torch.int32 and x.dim() == 2 for x in ranges)
        or any(x.shape[0] not in (1, batch) or x.shape[1] != n_q for x in ranges)
    ):
        raise UsageError(
            f"key_ranges is {_described(ranges)}; give (first, end), int32 tensors of shape {_rows(batch, n_q)}."
        )
    if isinstance(ranges, Checked):
        return ranges
    both = torch.stack([each.expand(max(x.shape[0] for x in ranges), n_q) for each in ranges])
    promise(
        (both.diff(dim=-1) >= 0).all() & (both >= 0).all() & (both <= n_k).all(),
        "key_ranges must not decrease from one query to the next, and must be between 0 and the "
        f"{_here(n_k, 'keys')} that are here.",
    )
    return ranges[0], ranges[1]


def _described(x: Any) -> str:
    """The type of an argument, and the shape if it is a tensor; of each, if they are several."""
    if isinstance(x, tuple | list) and any(isinstance(each, Tensor | tuple | list) for each in x):
        return f"({', '.join(map(_described, x))})"
    return f"of {x.dtype} and shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"of {type(x).__name__}"


def _rows(batch: int, n: int) -> str:
    """The shapes of a mask: a row for each sequence of the batch, or one for all."""
    return f"(1, {n})" if batch == 1 else f"({batch}, {n}) or (1, {n})"


def promise(holds: Tensor, sentence: str) -> None:
    """Check a tensor of booleans: at once on the CPU, and on a GPU when it is computed, without waiting.

    Under `vmap` it is checked for all calls that are made together. Where tensors have no numbers yet, as in a graph
    that is made for all sizes, the check becomes a part of the graph.

    Raises:
        UsageError: some are False (on the CPU).
    """
    torch.ops.pebblesim.promise(holds, sentence)


PROMISE = "pebblesim::promise"

torch.library.define(PROMISE, "(Tensor holds, str sentence) -> ()")


@torch.library.impl(PROMISE, "CompositeImplicitAutograd")
def _promised(holds: Tensor, sentence: str) -> None:
    if traced(holds) or holds.device.type != "cpu":
        one = holds if holds.numel() == 1 else holds.all()
        torch._assert_async(one, sentence.replace('"', "'"))  # torch.compile writes it into C++ as it is
    elif not holds.all():
        raise UsageError(sentence)


def _promised_together(info: Any, in_dims: tuple[int | None, ...], holds: Tensor, sentence: str) -> tuple[None, None]:
    promise(holds, sentence)
    return None, None


torch.library.register_vmap(PROMISE, _promised_together)


def traced(x: Tensor) -> bool:
    """Whether a tensor has no numbers to look at: a graph is made of what is done, or sizes are all that is known."""
    if torch.compiler.is_compiling() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        return True
    if type(x) is Tensor:
        return False
    from torch._subclasses.fake_tensor import is_fake

    return bool(is_fake(x))
