"""Launches that were made once for some sizes, and are made again with other tensors of these sizes.

What kernels compute a pass, and how they are launched, follows from sizes and options alone. It is found when a pass of
these sizes is made first, noted meanwhile, and then costs the host no time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator.boxes import Described
from pebblesim.operator.fresh import fresh
from pebblesim.operator.launch import Notes, launch, noted
from pebblesim.operator.layout import BYTES, round_sums
from pebblesim.operator.recent import Recent

MOST = 4096
"""Passes that are kept."""


class Pass:
    """A pass that is made and noted.

    Attributes:
        inputs, outputs: its tensors.
        L: what it returns besides, if it is a forward pass.
        whole: whether it reads and writes whole tensors.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.L: Tensor | None = None
        self.whole = False

    def again(self, written: Notes) -> Again | None:
        """The pass with other tensors, from its notes; None if launches are not all that it does.

        Each tensor that a kernel took must be known by its address: as an input, an output, or made for the pass.
        """
        tensors = (*self.inputs, *self.outputs, *written.made)
        places = {each.data_ptr(): at for at, each in enumerate(tensors)}
        taken = {address for _, _, given in written.launches for address in map(_address, given)} - {None}
        taken |= written.zeros | {each.data_ptr() for sums in written.sums for each in sums[:2]}
        if self.L is not None:
            taken.add(self.L.data_ptr())
        if written.other or not self.whole or len(places) < len(tensors) or not taken <= places.keys():
            return None
        return Again(self, written, places)


class Again:
    """The launches of a pass, made again with other tensors of its sizes."""

    def __init__(self, made: Pass, written: Notes, places: dict[int, int]) -> None:
        """Take a pass, its notes, and the place of each address among its inputs, outputs and what was made."""
        self._calls = []
        for kernel, grid, arguments in written.launches:
            numbers = [each for each in arguments if _address(each) is None]
            behind = iter(range(len(places), len(places) + len(numbers)))
            at = [next(behind) if (address := _address(each)) is None else places[address] for each in arguments]
            described = [(at, each.boxes) for at, each in enumerate(arguments) if isinstance(each, Described)]
            self._calls.append((kernel, grid, itemgetter(*at), numbers, described))
        likes = [torch.empty_like(each, device="meta") for each in made.inputs]  # which takes no memory
        self._outputs = [_template(each, likes) for each in made.outputs]
        self._zeros = [at for at, each in enumerate(made.outputs) if each.data_ptr() in written.zeros]
        self._made = [  # of which PyTorch makes others fastest
            (torch.zeros_like if each.data_ptr() in written.zeros else _fresh_like, _small(each))
            for each in written.made
        ]
        first, last = len(made.inputs), len(made.inputs) + len(made.outputs)
        self._sums = [
            (places[sums.data_ptr()] - last, places[matrix.data_ptr()] - first, kv_heads)
            for sums, matrix, kv_heads in written.sums
        ]
        self._L = None if made.L is None else places[made.L.data_ptr()] - last
        self._index = made.inputs[0].get_device()
        self._stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | None] | None:
        """The outputs, and L of a forward pass; None if the inputs are at other multiples of bytes."""
        given, together = [each.data_ptr() for each in inputs], 0
        for address in given:
            together |= address
        if together % BYTES:
            return None
        outputs = [
            _fresh_like(inputs[at]) if at is not None else fresh(torch.empty_strided(*shape, **options))
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
        return outputs, None if self._L is None else made[self._L]


_KEPT: Recent[Hashable, Again] = Recent(MOST)


def here(x: Tensor) -> bool:
    """Whether a tensor is on the GPU that is the current one."""
    return x.is_cuda and x.get_device() == torch._C._cuda_getDevice()


def sizes_of(way: str, tensors: Sequence[Tensor], rest: tuple[Any, ...]) -> tuple[Hashable, ...] | None:
    """The sizes and options of a pass by which it may be kept; None if it may not be.

    Args:
        way: "forward" or "backward".
        tensors: its matrices and vectors, (batch, heads, n, …).
        rest: the arguments of the operator behind them: ranges of keys first.
    """
    if rest[0] is not None or not here(tensors[0]):
        return None
    return way, tensors[0].get_device(), rest, *((each.shape, each.stride(), each.dtype) for each in tensors)


def again(sizes: tuple[Hashable, ...] | None, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | None] | None:
    """The outputs of a pass that was made before, and L if it makes it; None if it is not kept, or memory is short."""
    kept = None if sizes is None else _KEPT.get(sizes)
    if kept is None:
        return None
    try:
        return kept(inputs)
    except torch.OutOfMemoryError:  # other kernels need less
        return None


@contextmanager
def keeping(sizes: tuple[Hashable, ...] | None, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Iterator[Pass]:
    """Keep the pass that is made meanwhile, if it does nothing but what can be done again."""
    made = Pass(inputs, outputs)
    if sizes is None or sizes in _KEPT or torch.cuda.is_current_stream_capturing():
        yield made
        return
    with noted() as written:
        yield made
    if (found := made.again(written)) is not None:
        _KEPT[sizes] = found


def _address(argument: Any) -> int | None:
    """The address of a tensor, or of what a descriptor is of; None for a number."""
    if isinstance(argument, Described):
        return argument.address
    return argument.data_ptr() if isinstance(argument, Tensor) else None


def _fresh_like(x: Tensor) -> Tensor:
    return fresh(torch.empty_like(x))


def _small(x: Tensor) -> Tensor:
    """A tensor of this shape that takes no memory."""
    return x.new_zeros(()).expand(x.shape)


def _template(x: Tensor, likes: list[Tensor]) -> tuple[int | None, tuple[Any, ...], dict[str, Any]]:
    """How a tensor such as this one is made: as `torch.empty_like` does of an input, or by its shape and strides."""
    alike = (
        at for at, like in enumerate(likes) if (like.shape, like.stride(), like.dtype) == (x.shape, x.stride(), x.dtype)
    )
    return next(alike, None), (x.shape, x.stride()), {"dtype": x.dtype, "device": x.device}
