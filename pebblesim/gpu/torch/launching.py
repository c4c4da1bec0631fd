"""Launch compiled kernels: for the device of the tensors, in rounds of heads, at little cost for a small call."""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterable
from functools import lru_cache, partial
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.gpu.advice import cards
from pebblesim.gpu.emit.key_ranges import ARGUMENTS
from pebblesim.gpu.emit.triton import far_away, triton
from pebblesim.gpu.module import module_of
from pebblesim.gpu.tiles import Tiling
from pebblesim.gpu.torch.planning import CARD, ROOM, Choice, Dims, Pattern, chosen, program_of

RESULTS = {"forward": ("O", "L"), "backward": ("dQ", "dK", "dV")}
"""The outputs of each pass that are kept."""

LEAST_ROOM = 2**26
"""Bytes of tables that are taken without asking how much memory is free."""


RECORDER = threading.local()
"""Its `launches`, if it has some, is a list to which each launch of a thread is added: kernel, grid and arguments."""


class Kernel:
    """A Triton kernel that is looked up by what it was specialised for, and then launched without Triton's own checks.

    Triton takes some 50 µs to find a kernel that it has compiled; here it is found by the alignment of its arguments.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._made: dict[tuple[Any, ...], Any] = {}

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, int], *arguments: Any, **options: Any) -> None:
        if not (grid[0] and grid[1]):
            return
        from torch._C import _cuda_getCurrentRawStream as stream_of, _cuda_getDevice as current

        device = current()
        key = (device, *map(_specialised, arguments))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._kernel[grid](*arguments, **options)
        else:
            launch(made, grid, stream_of(device), arguments)
        if (written := getattr(RECORDER, "launches", None)) is not None:
            written.append((made, grid, arguments))


def launch(made: Any, grid: tuple[int, int], stream: int, arguments: Iterable[Any]) -> None:
    """Launch a compiled kernel; tensors may be given by their addresses."""
    made.run(grid[0], grid[1], 1, stream, made.function, made.packed_metadata, None, None, None, *arguments)


def _specialised(argument: Any) -> Any:
    """The facts of an argument that a kernel is compiled for: the width of a number, and whether 16 divides it."""
    if isinstance(argument, int):
        return (argument == 1, argument % 16 == 0, argument >= 2**31)
    return argument.data_ptr() % 16 == 0


@lru_cache(maxsize=1024)
def loaded(
    tiling: Tiling, widths: Dims, even: bool, far: bool, dtype: str, pattern: Pattern, scale: float
) -> tuple[Any, tuple[str, ...]]:
    """The module that launches the kernels of a tiling for all lengths, and the names of the tensors it takes.

    `even`: for lengths that the tiles divide; `far`: see `triton`.
    """
    n = 2**14 if even else 2**14 - 1
    program = program_of(tiling, pattern.masked)
    source = triton(
        program,
        {"n_q": n * pattern.shared, "n_k": n, **dict(widths), **tiling.blocks},
        dtype,
        pattern.mask,
        scale=scale,
        warps=tiling.warps,
        stages=tiling.stages,
        apart=tiling.apart,
        far=far,
        softcap=pattern.softcap,
    )
    module = module_of(source.text)
    module.only_launches = not re.search(r"(fill|copy)_\(", source.text)  # and nothing else on the GPU
    for kernel in source.kernels:
        setattr(module, kernel.name, Kernel(getattr(module, kernel.name)))
    return module, tuple(name for name in program.tensors if name in program.inputs)


def compute(way: str, tensors: dict[str, Any], pattern: Pattern, scale: float, workspace: int | None) -> dict[str, Any]:
    """Compute a pass for all heads at once or, where tables would take too much memory, for groups of heads.

    Args:
        way: "forward" or "backward".
        tensors: by name: Q, dO and O of shape (heads, rows, d), K and V of shape (heads, n_k, d), L of shape (heads,
            rows); dL, of the natural L, like it; ranges by the names of `ARGUMENTS`, (batch, …), in int32; contiguous.
        pattern: the pairs that are allowed.
        scale: factor of the scores.
        workspace: bytes that tables may take.

    Returns:
        The outputs by name.
    """
    import torch

    Q = tensors["Q"]
    if Q.is_cuda and Q.device.index != torch.cuda.current_device():
        with torch.cuda.device(Q.device):
            return compute(way, tensors, pattern, scale, workspace)
    n_k, d_v = tensors["V"].shape[1:]
    choice, module, names = _prepared(torch, way, Q, Q.shape, n_k, d_v, pattern, scale, workspace)
    heads, rounds = Q.shape[0], choice.forecast.rounds
    others = {name: tensors[name] for name in (*ARGUMENTS[:-1], "dL") if name in tensors}
    if rounds == 1:
        results = module.run(*(tensors[each] for each in names), **others)
        return {name: _kept(torch, name, results[name], Q) for name in RESULTS[way]}
    whole: dict[str, Any] = {}
    for name in others.keys() & {*ARGUMENTS}:  # each head's own, since rounds may end within a batch
        others[name] = others[name].repeat_interleave(heads // others[name].shape[0], 0)
    for start in range(0, heads, heads // rounds):
        part = slice(start, start + heads // rounds)
        some = {name: each[part] for name, each in others.items()}
        results = module.run(*(tensors[each][part] for each in names), **some)
        for name in RESULTS[way]:
            made = _kept(torch, name, results[name], Q)
            if name not in whole:
                whole[name] = torch.empty((heads, *made.shape[1:]), dtype=made.dtype, device=Q.device)
            whole[name][part].copy_(made)
    return whole


def _prepared(
    torch: Any,
    way: str,
    Q: Any,
    shape: tuple[int, ...],
    n_k: int,
    d_v: int,
    pattern: Pattern,
    scale: float,
    workspace: int | None,
) -> tuple[Choice, Any, tuple[str, ...]]:
    """The kernels for these sizes, their module, and the names of the tensors it takes."""
    heads, rows, d_k = shape
    dtype, dims = str(Q.dtype).removeprefix("torch."), (("n_q", rows), ("n_k", n_k), ("d_k", d_k), ("d_v", d_v))
    choice = fitting(torch, way, dims, heads, dtype, pattern, workspace, Q.device)
    tiling = choice.forecast.tiling
    return choice, *loaded(tiling, dims[2:], choice.even, _far(tiling, dims), dtype, pattern, scale)


def loaded_for(
    way: str,
    Q: Any,
    shape: tuple[int, ...],
    n_k: int,
    d_v: int,
    pattern: Pattern,
    scale: float,
    workspace: int | None,
) -> Any:
    """The function that launches the kernels for these sizes; None if they keep large tables or run in rounds.

    Args:
        way: "forward" or "backward".
        Q: a tensor of the type and on the device of all.
        shape: heads, rows and head dimension of queries.
        n_k, d_v, pattern, scale, workspace: as for `compute`.
    """
    import torch

    choice, module, _ = _prepared(torch, way, Q, shape, n_k, d_v, pattern, scale, workspace)
    small = choice.forecast.rounds == 1 and choice.bytes <= LEAST_ROOM
    return module.run if small and module.only_launches else None


def _kept(torch: Any, name: str, made: Any, Q: Any) -> Any:
    """An output; sums of dK and dV may be in float32."""
    return made if name == "L" else made.to(Q.dtype)


@lru_cache(maxsize=4096)
def _far(tiling: Tiling, dims: Dims) -> bool:
    return far_away(program_of(tiling, False), dict(dims))


def fitting(
    torch: Any, way: str, dims: Dims, heads: int, dtype: str, pattern: Pattern, workspace: int | None, device: Any
) -> Choice:
    """The kernels for these sizes whose tables fit into the workspace and, if none is given, into the free memory."""
    card = card_of(device)
    choice = _chosen(way, dims, heads, dtype, pattern, ROOM if workspace is None else workspace, card)
    if workspace is not None or choice.bytes <= LEAST_ROOM or torch.cuda.is_current_stream_capturing():
        return choice
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free, room = torch.cuda.mem_get_info(device)[0] + kept, ROOM
    while choice.bytes > free and room > LEAST_ROOM:
        room //= 2
        choice = _chosen(way, dims, heads, dtype, pattern, room, card)
    return choice


_CHOSEN: dict[tuple[Hashable, ...], Choice] = {}


def _chosen(way: str, dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int, card: cards.Card) -> Choice:
    key = (way, dims, heads, dtype, pattern, room, id(card))
    if key not in _CHOSEN:
        _CHOSEN[key] = chosen(way, dims, heads, dtype, pattern, room, card)
    return _CHOSEN[key]


@lru_cache(maxsize=64)
def card_of(device: Any) -> cards.Card:
    """The card of a device, with the rates that forecasts need; on the CPU that of a plan."""
    if device.type != "cuda":
        return cards.card(CARD)
    import torch

    return cards.of_device(torch.cuda.get_device_properties(device))


def check_triton() -> None:
    """Check that Triton is here.

    Raises:
        UsageError: it is not.
    """
    try:
        import triton as _  # noqa: F401
    except ImportError:
        raise UsageError("attention on a GPU needs Triton, which is not here: pip install triton.") from None
