"""Calls outside of any tracing: checked once for their sizes, then made without PyTorch's dispatcher.

`torch.compile`, `vmap` and other transformations need the operators of `torch.library`, which cost the host more than
all else. A plain call of tensors of the current GPU goes to what these operators do, its gradients by one function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from math import e, log2
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pebblesim.operator import compiling, layout, masks, operators, recorded
from pebblesim.operator.layout import in_one_batch, numbers_from, numbers_of
from pebblesim.operator.lengths import Found, length_class
from pebblesim.operator.masks import Asked
from pebblesim.operator.operators_of_sinks import afterwards, from_definition
from pebblesim.operator.pattern import LONG
from pebblesim.operator.recent import Recent
from pebblesim.operator.recorded import Again, Kinds
from pebblesim.operator.texts import BEGIN_WITH_SINKS

MOST = 4096
"""Calls whose arguments are kept."""


Pass = Again | Found


class Way(NamedTuple):
    """A forward or backward pass of some calls.

    Attributes:
        alike: the kind of the gradients of O and L, and whether sinks have one; None for a forward pass.
        strides: those of the gradient of O.
    """

    alike: Hashable = None
    strides: tuple[int, ...] = ()

    @staticmethod
    def back(grad: Tensor, grad_L: Tensor | None, sinks: Tensor | None) -> Way:
        """The backward pass for these gradients, and sinks that have one."""
        strides = grad.stride()
        return Way((grad.dtype, strides[-1], grad_L is None, sinks is None), strides)


FORWARD = Way()


class Family:
    """Plain calls that are alike but for their lengths and strides.

    Attributes:
        asked: the arguments of the operators, without ranges.
        kinds: traced passes, by what is alike in a `Way` for all lengths.
    """

    __slots__ = ("asked", "kinds")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.kinds: dict[Hashable, Kinds] = {}


class Known:
    """Passes of plain calls of some sizes, types and options, which were checked.

    Attributes:
        family: the calls that are alike but for their lengths and strides.
        passes: passes that are made again.
    """

    __slots__ = ("family", "passes")

    def __init__(self, family: Family) -> None:
        self.family = family
        self.passes: dict[Way, Pass] = {}

    def ready(
        self, way: Way, function: Callable[..., Any], inputs: Sequence[Tensor | None], rest: tuple[Any, ...]
    ) -> Pass | None:
        """The pass that is made again, if there is one; arguments as of `recorded.made`."""
        known = self.passes.get(way)
        if known is None:
            kinds = self.family.kinds.get(way.alike)
            known = None if kinds is None else kinds.of(inputs)
            if known is None:
                known = recorded.ready(function, inputs, rest)
            if known is not None and len(self.passes) < MOST_GRADIENTS:
                self.passes[way] = known
                if kinds is None and (kinds := recorded.kinds_of(function, inputs, rest)) is not None:
                    self.family.kinds[way.alike] = kinds
        return known

    def prepare(self, way: Way, inputs: Sequence[Tensor | None]) -> None:
        """Find a pass that is made later, if others that are alike were."""
        kinds = None if way in self.passes else self.family.kinds.get(way.alike)
        if kinds is not None and (found := kinds.of(inputs)) is not None:
            self.passes[way] = found


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


def plain(*tensors: Any) -> bool:
    """Whether these are dense tensors of the current GPU, and nothing traces or transforms what is done with them."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        return False
    for each in tensors:
        if type(each) is not Tensor or not recorded.here(each) or each.is_nested or each.layout is not torch.strided:
            return False
        if torch._C._functorch.is_legacy_batchedtensor(each):  # as `is_grads_batched` makes
            return False
    return True


def checked(call: tuple[Any, ...] | None) -> Known | None:
    """Arguments and passes of plain calls like this one, if one was checked and made; else None.

    It has the same options and sizes, or other lengths and strides with which nothing is refused, and its kernels are
    compiled.
    """
    try:
        known = None if call is None else _CHECKED.get(call)
        if known is None and call is not None and (family := _ALIKE.get(_alike(call))) is not None:
            known = _CHECKED[call] = Known(family)
    except TypeError:  # attention takes no option without a hash
        return None
    return known


def keep(call: tuple[Any, ...], asked: Asked) -> None:
    """Keep the arguments of the operators for plain calls like this one, which was checked and made."""
    family = Family(asked)
    _CHECKED[call] = Known(family)
    if (kind := _alike(call)) is not None:
        _ALIKE[kind] = family


_ALIKE: Recent[Hashable, Family] = Recent(MOST)
"""Calls that are alike but for their lengths and strides."""


def _alike(call: tuple[Any, ...]) -> Hashable:
    """A key that calls which are checked, compiled and asked for alike have in common; None if all sizes matter.

    That is the case with a limit of memory, where limits may leave out no pair, and with several axes of batches, which
    are copied into one or not by their strides.
    """
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
    *of_masks, sinks = kinds
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
    if not (query.shape[0] and query.shape[2] and key.shape[2]):
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


def _ranges(
    query: Tensor, key: Tensor, of_q: Tensor | None, of_k: Tensor | None, padding: Tensor | None, *within: Any
) -> masks.Ranges:
    """Ranges (batch, n_q) of the keys of each query."""
    from pebblesim.operator.sequences import ranges_of_padding, ranges_of_sequences

    batch, n_q, n_k = query.shape[0], query.shape[2], key.shape[2]
    if of_q is None:
        return ranges_of_padding(padding, batch, n_q, within)
    found = ranges_of_sequences(of_q, of_q if of_k is None else of_k, n_q, n_k, within)
    return found if batch == 1 else tuple(each.expand(batch, n_q).contiguous() for each in found)


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
    """O, L, and the ranges of keys, of the arguments of `Asked` without ranges."""
    first, end = _ranges(query, key, of_q, of_k, padding, *rest[:3])
    out, L = operators.without_notes(query, key, value, sinks, first, end, None, None, False, *rest[3:])
    return out, L, first, end


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
            compiling.let_through()
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
    Q, K, V, alone = in_one_batch(query), in_one_batch(key), in_one_batch(value), None
    if masks_of is not None and any(each is not None for each in masks_of.values()):
        alone = _alone(Q, K, masks_of) if sinks is None or BEGIN_WITH_SINKS else None
        asked = ranged(query, key, asked, masks_of) if alone is None else asked
    lse = None
    learning = Q.requires_grad or K.requires_grad or V.requires_grad or (sinks is not None and sinks.requires_grad)
    if learning and torch.is_grad_enabled():
        out, lse = _Passes.apply(Q, K, V, sinks, return_lse, asked, known, alone)
    else:
        out, L, _ = _forward(Q, K, V, sinks, asked, known, alone)
        lse = numbers_from(L, Q, K.shape[1]) if return_lse else None
    return out if Q is query else out.reshape(*query.shape[:-1], value.shape[-1]), lse


def _made(
    known: Known | None,
    way: Way,
    function: Callable[..., Any],
    inputs: Sequence[Tensor | None],
    rest: tuple[Any, ...],
) -> tuple[Any, ...]:
    """The results of a pass: of one that is known, if it is; arguments as of `recorded.made`."""
    again = None if known is None else known.ready(way, function, inputs, rest)
    found = None if again is None else again.if_room(inputs)
    return recorded.made(function, inputs, rest) if found is None else found


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    asked: Asked,
    known: Known | None,
    alone: Alone | None,
) -> tuple[Tensor, Tensor, Asked]:
    """O and L by kernels, those that are known if some are, and the arguments with ranges."""
    if alone is None:
        function = operators.without_notes if sinks is None or BEGIN_WITH_SINKS else afterwards
        inputs = query, key, value, sinks, asked.first, asked.end
        out, L = _made(known, FORWARD, function, inputs, asked[2:])
        return out, L, asked
    out, L, first, end = _made(known, FORWARD, _with_ranges, (query, key, value, sinks, *alone), asked[2:])
    return out, L, asked._replace(first=first, end=end, left=None, right=None, at_end=False)


MOST_GRADIENTS = 16
"""Passes that are kept for the calls of some sizes."""


class _Passes(torch.autograd.Function):
    """The forward and the backward pass as one autograd function; L stays as kernels have it."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        return_lse: bool,
        asked: Asked,
        known: Known | None,
        alone: Alone | None,
    ) -> tuple[Tensor, Tensor | None]:
        out, L, asked = _forward(query, key, value, sinks, asked, known, alone)
        ctx.known, ctx.rest = known, asked[2:]
        ctx.save_for_backward(query, key, value, out, L, sinks, asked.first, asked.end)
        ctx.set_materialize_grads(False)
        if known is not None:  # the thread of gradients has to wake up, and its caches are cold
            taught = sinks if BEGIN_WITH_SINKS and ctx.needs_input_grad[3] else None
            inputs = out, None, query, key, value, out, L, taught, asked.first, asked.end
            known.prepare(Way.back(out, None, taught), inputs)
        return out, numbers_from(L, query, key.shape[1]) if return_lse else None

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None and grad_lse is None:
            return (None,) * 8
        query, key, value, out, L, sinks, *ranges = ctx.saved_tensors
        needed, kv_heads = ctx.needs_input_grad, key.shape[1]
        dO = torch.zeros_like(out) if grad is None else grad
        made, of_sinks = list[Tensor | None](), None
        if any(needed[:3]) and not torch.is_grad_enabled() and plain(dO) and (grad_lse is None or plain(grad_lse)):
            grad_L = None if grad_lse is None else numbers_of(grad_lse * log2(e), kv_heads)
            taught = sinks if BEGIN_WITH_SINKS and needed[3] else None
            inputs = dO, grad_L, query, key, value, out, L, taught, *ranges
            way = Way.back(dO, grad_L, taught)
            made += _made(ctx.known, way, operators.gradients_without_notes, inputs, ctx.rest)
            of_sinks = made[3] if taught is not None else None
        elif any(needed[:3]):
            given = dO, grad_lse, query, key, value, out, numbers_from(L, query, kv_heads), *ranges, *ctx.rest
            made += torch.ops.pebblesim.attention_backward(*given)
        if needed[3] and of_sinks is None:
            of_sinks = from_definition(grad, grad_lse, out, numbers_from(L, query, kv_heads), sinks)
        wanted = (each if needs else None for each, needs in zip(made[:3] or (None,) * 3, needed, strict=False))
        return *wanted, of_sinks, None, None, None, None
