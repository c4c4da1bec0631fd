"""Launch kernels without Triton's own checks, which take longer than the launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from itertools import repeat
from typing import Any

import torch

from pebblesim.kernels import releases
from pebblesim.operator.known.symbols import Later, Number
from pebblesim.operator.known.tape import notes
from pebblesim.operator.launching import compiling
from pebblesim.operator.launching.boxes import Described, Place, start_of
from pebblesim.operator.launching.fresh import fresh


class Torch:
    """The module `torch` for generated modules: memory that they take is `fresh`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(*given: Any, **options: Any) -> Any:
        written = notes()
        return fresh((torch if written is None else written).empty(*given, **options))


class Triton:
    """The module `triton` for what runs on the host: it is quick, and leaves a user's allocator alone."""

    def __getattr__(self, name: str) -> Any:
        import triton

        return getattr(triton, name)

    @staticmethod
    def cdiv(x: int, y: int) -> int:
        """Divide, and round up: Triton's own function takes some microseconds, as kernels may call it, too."""
        return -(-x // y)

    @staticmethod
    def set_allocator(room: Any) -> None:
        """Do nothing: kernels get memory when they are launched."""


class Compiled:
    """A kernel as Triton has compiled it, and what a launch takes of it.

    Attributes:
        made: the kernel, which from Triton 3.8 on is unloaded when nothing holds it.
        run: Triton's launcher.
        function, metadata: what it takes first.
        made_as: what Triton knows of each descriptor that the kernel takes, in order.
        start: see `start_of`; None if there are no descriptors, or if Triton's launcher takes memory for the kernel.
        needs_room: whether it takes memory while it runs.
    """

    def __init__(self, made: Any) -> None:
        self.made = made
        self.run, self.function, self.metadata = made.run, made.function, made.packed_metadata
        self.made_as = getattr(made.metadata, "tensordesc_meta", None) or ()
        self.needs_room = self.run.global_scratch_size > 0
        self.start = start_of(self.run) if self.made_as and not self.needs_room else None


def launch(made: Compiled, grid: tuple[int, int, int], stream: int, arguments: Iterable[Any]) -> None:
    """Launch a compiled kernel; tensors may be given by their addresses."""
    run = made.run
    if made.start is None:
        whole = (*grid, stream, made.function, made.metadata, None, None, None, *map(for_triton, arguments))
        if made.needs_room:  # for descriptors that the kernel makes
            with_room(run, *whole)
        else:
            run(*whole)
        return
    given: list[Any] = []
    kinds = iter(made.made_as)
    for each in arguments:
        if type(each) is Described:
            given += each.boxes.at(each.address, next(kinds))
        else:
            given.append(each)
    at_once, before = run.launch_cooperative_grid, run.launch_pdl
    first = (*grid, stream, made.function, at_once, before)
    if releases.here().arguments_together:
        types = run.arg_annotations, run.kernel_signature
        made.start(*first, made.metadata, None, None, None, None, None, *types, tuple(given))
    else:
        made.start(*first, None, None, made.metadata, None, None, None, *given)


def with_room(start: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Start a kernel that takes memory while it runs: PyTorch's, and afterwards a user's own allocator again."""

    def started() -> Any:
        from triton import set_allocator

        set_allocator(_room)  # in the copied context alone
        return start(*given, **options)

    return copy_context().run(started)


def for_triton(argument: Any) -> Any:
    """An argument as Triton's own launcher takes it."""
    return argument.boxes.described(argument.address) if type(argument) is Described else argument


def _room(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Memory that a kernel needs while it runs; the allocator's addresses are multiples of 512 bytes."""
    return fresh(torch.empty(size, dtype=torch.int8, device="cuda"))


class Kernel:
    """A Triton kernel that is looked up by what it was specialised for, and then launched without Triton's own checks.

    Triton takes some 50 µs to find a kernel that it has compiled; here it is found by the alignment of its arguments.
    All arguments are given by position, constants among them, since a launcher counts these, too.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, params = kernel, getattr(kernel, "params", ())
        self._number = len(params)
        kinds = [CONSTANT if each.is_constexpr else PLAIN if each.do_not_specialize else ALIGNED for each in params]
        self._kinds = kinds or repeat(ALIGNED)
        self._made: dict[tuple[Any, ...], Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        x, y, z = (*grid, 1, 1)[:3]
        return partial(self._launch, (x, y, z))

    def _launch(self, grid: tuple[int, int, int], *arguments: Any, **options: Any) -> None:
        if not all(grid):
            return
        if self._number not in (0, len(arguments)):
            raise TypeError(f"a kernel takes {self._number} arguments by position, and {len(arguments)} are given.")
        from torch._C import _cuda_getCurrentRawStream as stream_of, _cuda_getDevice as current

        device = current()
        key = (device, *map(_specialised, arguments, self._kinds))
        made, written = self._made.get(key), notes()
        if written is not None and written.dry:
            if made is None:
                raise Later
            written.launched(made, grid, arguments)
            return
        if compiling.compiled_only():
            if made is None:
                given = [Place.of(each) if isinstance(each, torch.Tensor) else for_triton(each) for each in arguments]
                compiling.later(partial(self._kernel.run, *given, grid=grid, warmup=True, **options))
            return
        if made is None:
            made = self._made[key] = Compiled(with_room(self._kernel[grid], *map(for_triton, arguments), **options))
        else:
            launch(made, grid, stream_of(device), arguments)
        if written is not None:
            written.launched(made, grid, arguments)


ALIGNED, PLAIN, CONSTANT = range(3)
"""How a kernel is compiled for an argument: for its width and alignment, for its width alone, or for its value."""


def _specialised(argument: Any, kind: int = ALIGNED) -> Any:
    """The facts of an argument that a kernel is compiled for: the width of a number, and whether 16 divides it; of a
    tensor its type, too."""
    if kind == CONSTANT and isinstance(argument, int):
        return argument
    if isinstance(argument, int | Number):
        return argument >= 2**31 if kind == PLAIN else (argument == 1, argument % 16 == 0, argument >= 2**31)
    if type(argument) is Described:
        return None
    return argument.dtype, argument.data_ptr() % 16 == 0
