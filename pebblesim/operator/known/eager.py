"""Calls outside of any tracing: checked once for their sizes, then made without PyTorch's dispatcher.

`torch.compile`, `vmap` and other transformations need the operators of `torch.library`, which cost the host more than
all else. A plain call of tensors of the current GPU goes to what these operators do, its gradients by one function.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from math import e, log2
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pebblesim.operator import masks, operators
from pebblesim.operator.known import native, recorded
from pebblesim.operator.known.known import FORWARD, Family, Forward, Known, Places, Step, Way, by_passes, learns, made
from pebblesim.operator.known.lengths import length_class
from pebblesim.operator.known.recent import Recent
from pebblesim.operator.launching import compiling, layout
from pebblesim.operator.launching.layout import in_one_batch, numbers_from, numbers_of
from pebblesim.operator.masks import Asked
from pebblesim.operator.pattern import LONG
from pebblesim.operator.sinks.operators import afterwards, from_definition
from pebblesim.operator.texts import BEGIN_WITH_SINKS

MOST = 4096
"""Calls whose arguments are kept."""


_CHECKED: Recent[Hashable, Known] = Recent(MOST)


def call_of(
    query: Any, key: Any, value: Any, beside: tuple[Any, ...], options: tuple[Hashable, ...]
) -> tuple[Hashable, ...] | None:
    """The sizes, types and options of a plain call, which its checks depend on; None if it is another one.

    `beside`: any number of tensors of masks, sinks or a bias, pairs of these, or None.
    """
    if not plain(query, key, value) or torch.is_autocast_enabled("cuda"):
        return None
    shapes = query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride()
    kinds = None
    for each in beside:  # == of a tensor and None would take longer than all else
        if each is not None:
            kinds = tuple(map(_kind, beside))
            if False in kinds:
                return None
            break
    return (*shapes, query.dtype, key.dtype, value.dtype, query.get_device(), kinds, *options)


_COMPILED: Recent[Hashable, bool] = Recent(MOST)


def _kind(x: Any) -> Hashable:
    """The sizes and the type of a plain tensor, or of several; False of anything else."""
    if x is None:
        return None
    if isinstance(x, tuple | list):
        return type(x), len(x) == 2 and x[0] is x[1], *((False if each is None else _kind(each)) for each in x)
    return (x.shape, x.stride(), x.dtype) if plain(x) else False


PLAIN = (Tensor, torch.nn.Parameter)
"""Types of tensors that do what tensors do; other subclasses may do something else."""


def plain(*tensors: Any) -> bool:
    """Whether these are dense tensors of the current GPU, and nothing traces or transforms what is done with them."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        return False
    for each in tensors:
        if type(each) not in PLAIN or not recorded.here(each) or each.is_nested or each.layout is not torch.strided:
            return False
        if torch._C._functorch.is_legacy_batchedtensor(each):  # as `is_grads_batched` makes
            return False
        if each.is_neg() or each._is_zerotensor():  # its memory has other numbers, or there is none
            return False
    return True


def known_of(
    query: Any, key: Any, value: Any, beside: tuple[Any, ...], options: tuple[Hashable, ...]
) -> tuple[tuple[Any, ...] | None, Known | None]:
    """The results of `call_of` and `checked`; of a call that is known, the library in C++ says them in their place."""
    by, short = native.library, None
    if by is not None and not torch.compiler.is_compiling():
        laid = by.laid(query, key, value, *beside)
        try:
            if laid is not None and (known := _CHECKED.get(short := (laid, options))) is not None:
                return None, known
        except TypeError:  # as in `checked`
            short = None
    call = call_of(query, key, value, beside, options)
    return call, checked(call, short)


def checked(call: tuple[Any, ...] | None, short: Hashable = None) -> Known | None:
    """Arguments and passes of plain calls like this one, if one was checked and made; else None.

    It has the same options and sizes, or other lengths and strides with which nothing is refused, and its kernels are
    compiled. `short`: what the library says of such a call; it is known by this from now on.
    """
    try:
        known = None if call is None else _CHECKED.get(call)
        if known is None and call is not None and (family := _ALIKE.get(_alike(call))) is not None:
            known = _CHECKED[short or call] = Known(family)
        elif known is not None and short is not None:
            _CHECKED[short] = known
    except TypeError:  # attention takes no option without a hash
        return None
    return known


def keep(call: tuple[Any, ...], known: Known) -> None:
    """Keep what is known of plain calls like this one, which was checked and made."""
    native.begin()
    _CHECKED[call] = known
    if (kind := _alike(call)) is not None:
        _ALIKE[kind] = known.family


_ALIKE: Recent[Hashable, Family] = Recent(MOST)
"""Calls that are alike but for their lengths and strides."""


def _alike(call: tuple[Any, ...]) -> Hashable:
    """A key that calls which are checked, compiled and asked for alike have in common; None if all sizes matter.

    That is the case with a limit of memory, where limits may leave out no pair, and with several axes of batches, which
    are copied into one or not by their strides.
    """
    if len(call) < 22 or (call[10] is not None and call[10][-1] is not None):  # with a bias
        return None
    (query, key, value), strides, kinds, window, workspace = call[:3], call[3:6], call[10], call[14], call[17]
    n_q, n_k = query[-2], key[-2]
    masks_of = None if kinds is None else _masks_alike(kinds, n_q, n_k)
    if max(map(len, call[:3])) > 4:
        return None
    if masks_of is False or workspace is not None or not n_q or not n_k or value[-2] != n_k:
        return None
    if window is not None and not all(each is None or each < LONG for each in window):
        return None
    widths = query[:-2], query[-1], key[:-2], key[-1], value[:-2], value[-1], *(each[-1] for each in strides)
    return *widths, n_q == n_k, length_class(n_q), length_class(n_k), *call[6:10], masks_of, *call[11:]


def _masks_alike(kinds: tuple[Any, ...], n_q: int, n_k: int) -> Hashable:
    """Facts of masks and sinks, alike for all numbers of tokens and sequences; False if they may be refused."""
    *of_masks, sinks, _ = kinds
    found: list[Hashable] = [sinks]
    for kind, n in zip(of_masks, (None, n_k, n_q), strict=True):  # starts of any number of sequences
        if kind is None:
            found.append(None)
            continue
        several, said = ((kind,), ()) if isinstance(kind[0], torch.Size) else (kind[2:], kind[:2])
        shape = several[0][0]
        if len(shape) != (1 if n is None else 2) or any(each[0] != shape for each in several):
            return False
        if shape[-1] < 2 if n is None else shape[-1] != n:
            return False
        found.append((said, shape[:-1], *((stride[-1], dtype) for _, stride, dtype in several)))
    return tuple(found)


def ranged(query: Tensor, key: Tensor, asked: Asked, masks_of: dict[str, Any]) -> Asked:
    """As `masks.ranged`, for masks that are right but for their numbers: sequences or padding alone by one kernel."""
    Q, K = in_one_batch(query), in_one_batch(key)
    if (alone := _alone(Q, K, masks_of)) is None:
        return masks.ranged(query, key, asked, masks_of)
    first, end = recorded.made(_ranges, (Q, K, *alone), asked[2:5])
    return asked._replace(first=first, end=end, left=None, right=None, at_end=False)


Alone = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Starts of sequences of queries, of keys if they are others, and padding: one of both."""


def _alone(query: Tensor, key: Tensor, masks_of: dict[str, Any]) -> Alone | None:
    """The mask whose ranges one kernel finds, if it is the only one."""
    starts, padding = masks_of["cu_seqlens"], masks_of["key_padding_mask"]
    if masks_of["key_ranges"] is not None or (starts is None) is (padding is None):
        return None
    if 0 in (*query.shape[:-3], query.shape[-2], key.shape[-2]):
        return None
    if starts is None:
        return (None, None, _aligned(padding)) if layout.on_gpu(padding) else None
    of_q, of_k = pair = starts if isinstance(starts, tuple | list) else (starts, starts)
    if not all(layout.on_gpu(each) and each.dtype in WHOLE and each.is_contiguous() for each in pair):
        return None
    return _aligned(of_q), None if of_k is of_q else _aligned(of_k), None


def _aligned(x: Tensor) -> Tensor:
    """Itself, or a copy that passes which are made again take: a part of a mask may begin anywhere."""
    as_it_is = x.data_ptr() % layout.BYTES == 0 and x.is_contiguous()
    return x if as_it_is else x.clone(memory_format=torch.contiguous_format)


def _ranges(query: Tensor, key: Tensor, *given: Any) -> masks.Ranges:
    """Ranges (batch, n_q) of the keys of each query; arguments as for `_room`."""
    return _room(query, key, *given).ranged[:2]


def _room(
    query: Tensor, key: Tensor, of_q: Tensor | None, of_k: Tensor | None, padding: Tensor | None, *within: Any
) -> Any:
    """A `sequences.Room` with the ranges of the keys of each query, and not yet those of queries for each key."""
    from pebblesim.operator.sequences import Room, ranges_of_padding, ranges_of_sequences

    batch, n_q, n_k = query.shape[0], query.shape[2], key.shape[2]
    room = Room.of(query, batch, n_q, n_k, 2 if padding is None else batch)
    if padding is not None:
        ranges_of_padding(padding, batch, n_q, within, room)
        return room
    assert of_q is not None
    found = ranges_of_sequences(of_q, of_q if of_k is None else of_k, n_q, n_k, within, room if batch == 1 else None)
    if batch > 1:
        for one, all_of_them in zip(found, room.ranged, strict=False):
            all_of_them.copy_(one.expand(batch, n_q))
    return room


def _with_ranges(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    of_q: Tensor | None,
    of_k: Tensor | None,
    padding: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """O, L, and the memory of all ranges, of the arguments of `Asked` without ranges.

    Those of queries for each key are written by the backward pass, which alone reads them.
    """
    room = _room(query, key, of_q, of_k, padding, *rest[:3])
    out, L = operators.without_notes(query, key, value, sinks, room.ranged, None, None, None, False, *rest[3:])
    return out, L, room.whole


def _gradients_with_ranges(*given: Any) -> tuple[Tensor, ...]:
    """As `operators.gradients_without_notes`, with the memory of all ranges in the place of ranges of keys."""
    from pebblesim.operator.sequences import Room, above_and_below

    grad, grad_L, query, key, value, out, L, sinks, whole, *rest = given
    ranged = Room.within(whole, query.shape[0], query.shape[2], key.shape[2]).ranged
    above_and_below(ranged.first, ranged.end, key.shape[2], ranged[2:])
    return operators.gradients_without_notes(grad, grad_L, query, key, value, out, L, sinks, ranged, None, *rest)


WHOLE = (torch.int32, torch.int64)
"""Types of positions that the kernel of packed sequences takes."""


def compile_for(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, asked: Asked) -> None:
    """Compile the kernels of a plain call side by side, those of its backward pass, too, if gradients are wanted.

    They are for all lengths of its kind, and for those that kernels are chosen for alike; once for each kind.
    """
    learning = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    alike = map(length_class, (query.shape[-2], key.shape[-2]))
    widths, pattern = (query.shape[-1], value.shape[-1]), asked.pattern(query, key)
    kind = query.dtype, *widths, pattern, asked.scale, asked.workspace, query.get_device(), learning
    taught = sinks is not None and sinks.requires_grad
    known = *kind, None if sinks is None else (sinks.dtype, taught), *alike
    if known in _COMPILED or torch.cuda.is_current_stream_capturing() or not compiling.can():
        return
    _COMPILED[known] = True
    Q, K, V = (in_one_batch(each.detach()) for each in (query, key, value))
    with suppress(torch.OutOfMemoryError), torch.no_grad(), compiling.together():
        out, L = operators.without_notes(Q, K, V, sinks if BEGIN_WITH_SINKS else None, *asked)
        if learning:
            operators.gradients_without_notes(
                out, None, Q, K, V, out, L, sinks if BEGIN_WITH_SINKS and taught else None, *asked
            )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    asked: Asked,
    return_lse: bool,
    known: Known | None = None,
    masks_of: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """O of a plain call, (…, heads, n_q, d_v), and L to base 2 if it is wanted, with gradients if they are wanted.

    `masks_of`: masks by their names, which are right but for their numbers; None if `asked` has their ranges.
    """
    alone = None
    if masks_of is not None and any(each is not None for each in masks_of.values()):
        alone = _alone(query, key, masks_of) if sinks is None or BEGIN_WITH_SINKS else None
        asked = ranged(query, key, asked, masks_of) if alone is None else asked

    given = query, key, value, sinks, *((asked.first, asked.end) if alone is None else alone)
    taught = learns(given[:4])
    if known is not None and not return_lse and (found := known.at_once(given, taught)) is not None:
        return found, None
    Q, K, _ = x = in_one_batch(query), in_one_batch(key), in_one_batch(value)
    places = None if return_lse else _places(alone is not None, taught)

    def forward() -> Forward:
        out, L, ranges, rest = _forward((*x, *given[3:]), asked, known, alone is not None)
        lse = numbers_from(L, Q, K.shape[1]) if return_lse else None
        return Forward((out, lse), (*x, out, L, sinks, *ranges), rest, given, places)

    out, lse = by_passes((*x, sinks), taught, forward, _backward, _gradients, known)
    return out if Q is query else out.reshape(*query.shape[:-1], value.shape[-1]), lse


def _places(alone: bool, taught: bool | None) -> Places:
    """Where what is saved comes from: Q, K, V, O, L, sinks and ranges; `alone`: a kernel finds ranges."""
    saved = (0, 1, 2, 7, 8, 3, 9) if alone else (0, 1, 2, 6, 7, 3, 4, 5)
    return saved, tuple([-1 if at == 3 and not (taught and BEGIN_WITH_SINKS) else at for at in saved])


Ranges = tuple[Tensor | None, ...]
"""First keys and ends of queries; or the memory of all ranges, where a kernel found them."""


def _forward(
    given: tuple[Any, ...], asked: Asked, known: Known | None, alone: bool
) -> tuple[Tensor, Tensor, Ranges, tuple[Any, ...]]:
    """O and L by kernels, those that are known if some are, ranges, and the arguments behind them."""
    if not alone:
        function = operators.without_notes if given[3] is None or BEGIN_WITH_SINKS else afterwards
        out, L = made(known, FORWARD, function, given, asked[2:])
        return out, L, asked[:2], asked[2:]
    out, L, whole = made(known, FORWARD, _with_ranges, given, asked[2:])
    return out, L, (whole,), asked._replace(left=None, right=None, at_end=False)[2:]


def _backward(dO: Tensor, grad_L: Tensor | None, saved: Any, taught: bool, rest: Any) -> Step:
    """The backward pass for these gradients, and sinks that have one or not."""
    query, key, value, out, L, sinks, *ranges = saved
    inputs = dO, grad_L, query, key, value, out, L, sinks if taught and BEGIN_WITH_SINKS else None, *ranges
    function = operators.gradients_without_notes if len(ranges) == 2 else _gradients_with_ranges
    return Step(Way.back(dO, grad_L, taught), function, inputs, rest)


def _gradients(known: Known | None, grads: Any, saved: Any, rest: Any, needed: Any) -> tuple[Tensor | None, ...]:
    """Gradients of queries, keys, values and sinks from those of O and the natural L."""
    (grad, grad_lse), (query, key, value, out, L, sinks, *ranges), kv_heads = grads, saved, saved[1].shape[1]
    dO, taught = torch.zeros_like(out) if grad is None else grad, sinks is not None and needed[3]
    found: tuple[Tensor | None, ...] = (None,) * 3
    if any(needed[:3]) and not torch.is_grad_enabled() and plain(dO) and (grad_lse is None or plain(grad_lse)):
        grad_L = None if grad_lse is None else numbers_of(grad_lse * log2(e), kv_heads)
        found = made(known, *_backward(dO, grad_L, saved, taught, rest))
    elif any(needed[:3]):
        if len(ranges) == 1:
            from pebblesim.operator.sequences import Room

            ranges = Room.within(ranges[0], query.shape[0], query.shape[2], key.shape[2]).ranged[:2]
        given = dO, grad_lse, query, key, value, out, numbers_from(L, query, kv_heads), *ranges, *rest
        found = torch.ops.pebblesim.attention_backward(*given)
    if taught and len(found) < 4:
        found = *found, from_definition(grad, grad_lse, out, numbers_from(L, query, kv_heads), sinks)
    return *found, *(None,) * (4 - len(found))
