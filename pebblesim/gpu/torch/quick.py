"""A small call without gradients costs the host little: what was found for its sizes is kept and launched at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from pebblesim.gpu.torch.boxes import Described
from pebblesim.gpu.torch.launching import RECORDER, Setting, launch, loaded_for
from pebblesim.gpu.torch.layout import BYTES, empty_like, fits
from pebblesim.gpu.torch.masks import Asked, seen_keys

MOST = 4096
"""Calls that are kept."""

Replay = Callable[[Tensor, Tensor, Tensor], Tensor | None]
"""A launch of query, key and value; None if their alignment is another one."""

_KEPT: dict[Hashable, Replay | None] = {}


def kept(query: Any, key: Any, value: Any, rest: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
    """The sizes and options of a call by which it may be kept; None if it may not be.

    Args:
        query, key, value: its tensors.
        rest: its other arguments.
    """
    if (
        type(query) is not Tensor
        or type(key) is not Tensor
        or type(value) is not Tensor
        or torch.compiler.is_compiling()
        or not query.is_cuda
        or torch.is_autocast_enabled("cuda")
        or (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad))
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None
    ):
        return None
    device = torch._C._cuda_getDevice()
    if not (query.get_device() == key.get_device() == value.get_device() == device):
        return None
    shapes = query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride()
    return (*shapes, query.dtype, key.dtype, value.dtype, device, rest)


def known(sizes: tuple[Hashable, ...] | None) -> Replay | None:
    """The launch of a call that was made before; None if there was none, or if it is not kept."""
    try:
        return None if sizes is None else _KEPT.get(sizes)
    except TypeError:  # an option that has no hash is none that attention takes
        return None


def keep(sizes: tuple[Hashable, ...] | None, query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> None:
    """Keep a call that has just been made, if all its heads are computed at once from tensors where they are.

    Args:
        sizes: from `kept`.
        query, key, value, asked: as of the operator, with any dimensions of batches.
    """
    if sizes is None or sizes in _KEPT or len(_KEPT) >= MOST or torch.cuda.is_current_stream_capturing():
        return
    if len({each.data_ptr() for each in (query, key, value)}) < 3:
        return  # which of them a launch took could not be told
    _KEPT[sizes] = _launch(query, key, value, asked)


def _launch(query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> Replay | None:
    """A function that launches the kernels of these sizes, or None."""
    n_k, pattern = key.shape[-2], asked.pattern(query, key)
    if pattern.ranged or seen_keys(query.shape[-2], n_k, pattern) != slice(0, n_k):
        return None
    inputs = (query, key, value)
    Q, K, V = (each.reshape(-1, *each.shape[-3:]) for each in inputs)
    O = empty_like(Q, value.shape[-1])
    out = O.reshape(*query.shape[:-1], value.shape[-1])
    there = all(a.data_ptr() == b.data_ptr() for a, b in zip((Q, K, V, O), (*inputs, out), strict=True))
    if not there or not all(map(fits, (Q, K, V, O))):
        return None
    run = loaded_for({"Q": Q, "K": K, "V": V}, {"O": O}, Setting(pattern, asked.scale, asked.workspace))
    if run is None:
        return None
    recorded: list[Any] = []
    RECORDER.launches = recorded
    try:
        run(Q, K, V, {"O": O})
    finally:
        RECORDER.launches = None
    return _replayed(inputs, out, recorded)


def _replayed(inputs: tuple[Tensor, ...], out: Tensor, recorded: list[Any]) -> Replay:
    """A function that launches what was recorded, with other inputs of the same sizes.

    Args:
        inputs: the inputs of the recorded launches, each at an address of its own.
        out: their output, as it is returned.
        recorded: kernels, grids and arguments.
    """
    addresses = [each.data_ptr() for each in (*inputs, out)]
    between: dict[int, Tensor] = {}
    for _, _, arguments in recorded:
        for each in arguments:
            if isinstance(each, Tensor) and each.data_ptr() not in addresses:
                between.setdefault(each.data_ptr(), each)
    addresses += between
    made = [each.new_empty(()).expand(each.shape) for each in between.values()]  # of which PyTorch makes others fastest
    calls = []
    for kernel, grid, arguments in recorded:
        kept = [_address(each) for each in arguments]
        numbers = [each for each, address in zip(arguments, kept, strict=True) if address is None]
        behind = iter(range(len(addresses), len(addresses) + len(numbers)))
        places = [next(behind) if address is None else addresses.index(address) for address in kept]
        described = [(at, each.boxes) for at, each in enumerate(arguments) if isinstance(each, Described)]
        calls.append((kernel, grid, itemgetter(*places), numbers, described))
    like_query = torch.empty_like(inputs[0])
    as_query = (like_query.shape, like_query.stride()) == (out.shape, out.stride())
    shape, strides, options = out.shape, out.stride(), {"dtype": out.dtype, "device": out.device}
    index = out.get_device()
    stream_of = torch._C._cuda_getCurrentRawStream

    def replay(query: Tensor, key: Tensor, value: Tensor) -> Tensor | None:
        given = [query.data_ptr(), key.data_ptr(), value.data_ptr()]
        if (given[0] | given[1] | given[2]) % BYTES:
            return None
        result = torch.empty_like(query) if as_query else torch.empty_strided(shape, strides, **options)
        given.append(result.data_ptr())
        held = [torch.empty_like(each) for each in made]
        given += [each.data_ptr() for each in held]
        stream = stream_of(index)
        for kernel, grid, places, numbers, described in calls:
            arguments = places(given + numbers)
            if described:
                taken = list(arguments)
                for at, boxes in described:
                    taken[at] = Described(boxes, taken[at])
                arguments = tuple(taken)
            launch(kernel, grid, stream, arguments)
        return result

    return replay


def _address(argument: Any) -> int | None:
    """The address of a tensor, or of what a descriptor is of; None for a number."""
    if isinstance(argument, Described):
        return argument.address
    return argument.data_ptr() if isinstance(argument, Tensor) else None
