"""Launches that were made once for some sizes, and are made again with other tensors of these sizes.

What kernels compute a call, and how they are launched, follows from sizes and options alone. It is found at the first
call, noted, and then costs the host no time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from pebblesim.gpu.torch.boxes import Described
from pebblesim.gpu.torch.launch import Notes, launch, noted
from pebblesim.gpu.torch.layout import BYTES, round_sums

MOST = 4096
"""Calls that are kept."""


class Again:
    """The launches of a call, made again with other tensors of its sizes."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], written: Notes) -> None:
        """Take the tensors of the noted call, each at an address of its own, and its notes."""
        addresses = [each.data_ptr() for each in (*inputs, *outputs, *written.made)]
        self._calls = []
        for kernel, grid, arguments in written.launches:
            kept = [_address(each) for each in arguments]
            numbers = [each for each, address in zip(arguments, kept, strict=True) if address is None]
            behind = iter(range(len(addresses), len(addresses) + len(numbers)))
            places = [next(behind) if address is None else addresses.index(address) for address in kept]
            described = [(at, each.boxes) for at, each in enumerate(arguments) if isinstance(each, Described)]
            self._calls.append((kernel, grid, itemgetter(*places), numbers, described))
        likes = [torch.empty_like(each, device="meta") for each in inputs]  # which takes no memory
        self._outputs = [_template(each, likes) for each in outputs]
        self._zeros = [at for at, each in enumerate(outputs) if each.data_ptr() in written.zeros]
        self._made = [  # of which PyTorch makes others fastest
            (torch.zeros_like if each.data_ptr() in written.zeros else torch.empty_like, _small(each))
            for each in written.made
        ]
        self._sums = [
            (addresses.index(sums.data_ptr()) - len(inputs) - len(outputs), at, kv_heads)
            for sums, matrix, kv_heads in written.sums
            for at, each in enumerate(outputs)
            if each.data_ptr() == matrix.data_ptr()
        ]
        self._index = inputs[0].get_device()
        self._stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]] | None:
        """The outputs, and the tensors between; None if the inputs are at other multiples of bytes."""
        given, together = [each.data_ptr() for each in inputs], 0
        for address in given:
            together |= address
        if together % BYTES:
            return None
        outputs = [
            torch.empty_like(inputs[at]) if at is not None else torch.empty_strided(*shape, **options)
            for at, shape, options in self._outputs
        ]
        for at in self._zeros:
            outputs[at].zero_()
        made = [make(each) for make, each in self._made]
        given += [each.data_ptr() for each in outputs]
        given += [each.data_ptr() for each in made]
        assert self._stream_of is not None
        stream = self._stream_of(self._index)
        for kernel, grid, places, numbers, described in self._calls:
            arguments = places(given + numbers)
            if described:
                taken = list(arguments)
                for at, boxes in described:
                    taken[at] = Described(boxes, taken[at])
                arguments = taken
            launch(kernel, grid, stream, arguments)
        for number, at, kv_heads in self._sums:
            round_sums(made[number], outputs[at], kv_heads)
        return outputs, made


_KEPT: dict[Hashable, tuple[Again, int | None] | None] = {}


def sizes_of(way: str, tensors: Sequence[Tensor], rest: tuple[Any, ...]) -> tuple[Hashable, ...] | None:
    """The sizes and options of a pass by which it may be kept; None if it may not be.

    Args:
        way: "forward" or "backward".
        tensors: its matrices and vectors, (batch, heads, n, …).
        rest: the arguments of the operator behind them: ranges of keys first.
    """
    first = tensors[0]
    if rest[0] is not None or not first.is_cuda or first.get_device() != torch.cuda.current_device():
        return None
    shapes = (each.shape for each in tensors)
    strides = (each.stride() for each in tensors)
    return (way, first.get_device(), first.dtype, rest, *shapes, *strides)


def again(sizes: tuple[Hashable, ...] | None, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | None] | None:
    """The outputs of a pass that was made before, and L if it makes it; None if it is not kept, or memory is short."""
    kept = None if sizes is None else _KEPT.get(sizes)
    if kept is None:
        return None
    try:
        made = kept[0](inputs)
    except torch.OutOfMemoryError:  # other kernels need less
        return None
    return None if made is None else (made[0], None if kept[1] is None else made[1][kept[1]])


class Pass:
    """A pass that is being made.

    Attributes:
        lse: its L, if it makes one.
        whole: whether it reads and writes whole tensors.
    """

    def __init__(self) -> None:
        self.lse: Tensor | None = None
        self.whole = False


@contextmanager
def keeping(sizes: tuple[Hashable, ...] | None, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Iterator[Pass]:
    """Keep the pass that is made meanwhile, if it does nothing but what can be done again."""
    made = Pass()
    if sizes is None or sizes in _KEPT or len(_KEPT) >= MOST or torch.cuda.is_current_stream_capturing():
        yield made
        return
    with noted() as written:
        yield made
    _KEPT[sizes] = None
    places = {each.data_ptr() for each in (*inputs, *outputs, *written.made)}
    if written.other or not made.whole or len(places) < len(inputs) + len(outputs) + len(written.made):
        return
    at = next((at for at, each in enumerate(written.made) if each is made.lse), None)
    if made.lse is None or at is not None:
        _KEPT[sizes] = Again(inputs, outputs, written), at


def _address(argument: Any) -> int | None:
    """The address of a tensor, or of what a descriptor is of; None for a number."""
    if isinstance(argument, Described):
        return argument.address
    return argument.data_ptr() if isinstance(argument, Tensor) else None


def _small(x: Tensor) -> Tensor:
    """A tensor of this shape that takes no memory."""
    return x.new_empty(()).expand(x.shape)


def _template(x: Tensor, likes: list[Tensor]) -> tuple[int | None, tuple[Any, ...], dict[str, Any]]:
    """How a tensor such as this one is made: as `torch.empty_like` does of an input, or by its shape and strides."""
    alike = (
        at for at, like in enumerate(likes) if (like.shape, like.stride(), like.dtype) == (x.shape, x.stride(), x.dtype)
    )
    return next(alike, None), (x.shape, x.stride()), {"dtype": x.dtype, "device": x.device}
