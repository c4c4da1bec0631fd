"""Traffic of a schedule's thread blocks between a shared L2 and the memory behind it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import bytes_of, whole
from pebblesim.counting.arguments import AnyMask, BlockRule
from pebblesim.counting.heads import Heads
from pebblesim.counting.run import Run
from pebblesim.language import masks, program as ir
from pebblesim.language.loops import EveryTile
from pebblesim.language.masks import Mask
from pebblesim.language.registry import Schedule

if TYPE_CHECKING:
    from pebblesim.cachesim.l2 import Accesses
    from pebblesim.cachesim.requests import Stream
    from pebblesim.launches.launches import Launch

AT_ONCE = 132
"""Default number of thread blocks that run at once: one on each multiprocessor of an H200."""


@dataclass(frozen=True)
class L2(Result):
    """Traffic through L2, in bytes, for all heads.

    Attributes:
        schedule, dims, blocks, heads, mask: what was launched, `heads` times; heads that share keys and values count as
            one unless each is for itself.
        order, at_once: order of launch, and most blocks at once.
        size, chiplets, partitions: bytes of L2 on each chiplet, chiplets, and partitions of each L2.
        requested: bytes that all blocks move from and to L2.
        read, written: bytes that L2 reads from and writes to the memory behind it.
    """

    schedule: str
    dims: Mapping[str, int]
    blocks: Mapping[str, int]
    heads: int
    order: str
    at_once: int
    size: int
    chiplets: int
    requested: int
    read: int
    written: int
    mask: Mask | None = None
    partitions: int = 1

    @property
    def moved(self) -> int:
        """Bytes read from memory and written to it."""
        return self.read + self.written

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim count --l2 … --json`."""
        names = "size", "chiplets", "partitions", "order", "at_once", "heads", "requested", "read", "written"
        return plain(self, *names)

    def __str__(self) -> str:
        heads = f"{self.heads:,} head{'s' * (self.heads > 1)}"
        each = " in two halves" if self.partitions > 1 else ""
        each += f" on each of {self.chiplets} chiplets" if self.chiplets > 1 else ""
        return (
            f"{self.schedule}, {heads}, {self.order}, {self.at_once:,} blocks at once, L2 of {self.size:,} bytes"
            f"{each}: blocks move {self.requested:,} bytes, memory reads {self.read:,} and writes {self.written:,}"
        )


@checked_kinds()
def l2(
    schedule: str | Schedule,
    *,
    M: int,
    size: int,
    order: str = "head-first",
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    at_once: int | Sequence[int] = AT_ONCE,
    chiplets: int = 1,
    contiguous: bool = False,
    partitions: int = 1,
    dtype: str = "float32",
    blocks: BlockRule = "fit",
    mask: AnyMask | None = None,
    **dims: int,
) -> L2:
    """Predict the traffic behind an L2 that all thread blocks share (see `pebblesim.cachesim.l2`).

    Args:
        schedule, M, blocks, mask, dims: as for `pebblesim.count`; M is the scratchpad of one thread block. Iterations
            that are independent, or share only sums in memory, are thread blocks; other loops run inside a block, or
            around launches that are repeated for some rows after the others.
        size: bytes of L2 on each chiplet.
        order: "head-first", "row-major", "grouped:G", "sawtooth" or "swizzled:X".
        heads, kv_heads, batch, separate: as for `pebblesim.count`. Heads that share keys and values are launched as
            one with all their queries, or, if `separate`, each for itself, and find in L2 what others of them read.
        at_once: number of thread blocks that run at once, on all chiplets together, or one number for each launch.
        chiplets: number of chiplets with a separate L2 each; blocks are assigned to them in turn.
        contiguous: assign to each chiplet as many consecutive blocks as it runs at once, instead of one.
        partitions: 2 if an L2 has two halves, and each block reads through that on its side; otherwise 1.
        dtype: data type of a word.

    Returns:
        Bytes that all blocks request, and bytes that the memory behind the L2 reads and writes.

    >>> sizes = {"n": 8192, "d": 64, "blocks": {"B_r": 64, "B_c": 64}, "M": 2**15, "size": 2**21}
    >>> forth, back = (l2("flash2-forward", order=order, at_once=16, **sizes) for order in ("head-first", "sawtooth"))
    >>> round(back.read / forth.read, 1)
    0.7

    Raises:
        Infeasible, UsageError: as for `pebblesim.count`; or the order is not known, or there are too many tiles.
    """
    from pebblesim.cachesim.l2 import Chip, HeadsAtOnce, order_of, traffic

    wanted, among = order_of(order), Heads(heads, kv_heads, batch, separate)
    launched = Run.of(schedule, dims, M=M, blocks=blocks, mask=masks.of(mask), heads=among)
    (run,) = launched.parts
    if wanted.kind == "swizzled" and chiplets not in (1, wanted.number):
        raise UsageError(f"--order {order} is for {wanted.number} chiplets, and there are {chiplets}.")
    given = at_once if isinstance(at_once, Iterable) else [at_once]
    several = [whole("at_once", each) for each in given]
    if not several:
        raise UsageError("at_once = () was given; at_once must be a whole number, or one for each launch.")
    most_at_once = max(several)
    if partitions not in (1, 2):
        raise UsageError(f"partitions = {partitions} was given; an L2 has 1 or 2.")
    chip = Chip(most_at_once, whole("size", size), whole("chiplets", chiplets), contiguous, partitions)
    kernels = kernels_of(run.program, run.sizes, wanted.kind == "sawtooth", run.only_mask)
    if given is at_once:
        if len(several) != (number := len({kernel.number for kernel in kernels})):
            raise UsageError(f"at_once has {len(several)} numbers, and {run.schedule.name} has {number} launches.")
        kernels = [replace(kernel, at_once=several[kernel.number]) for kernel in kernels]
    solves = run.schedule.problem
    shared_keys = tuple(name for name in solves.keys if name in solves.inputs)
    at_once_heads = HeadsAtOnce(launched.times, among.sharing if separate else 1, shared_keys)
    moved = traffic(kernels, at_once_heads, bytes_of(dtype), wanted, chip)
    return L2(
        run.schedule.name,
        run.dims,
        run.block_sizes,
        launched.times,
        order,
        most_at_once,
        size,
        wanted.number if wanted.kind == "swizzled" else chiplets,
        moved.requested,
        moved.read,
        moved.written,
        run.only_mask,
        partitions,
    )


def kernels_of(program: ir.Program, sizes: ir.Sizes, sawtooth: bool, mask: Mask | None) -> list[Accesses]:
    """The kernels of a program in order, as `pebblesim.cachesim.l2` takes them.

    Launches that are repeated for some rows after the others are kernels each time that they run. Tensors that only
    these rows need have the same place each time.
    """
    from pebblesim.launches.launches import check_alike, launches, used_in_turn

    check_alike(program)
    all_launches = launches(program, masked=True, repeated=True, adding=True)
    in_turn = {tensor.name for tensor in used_in_turn(program, all_launches)}
    made, at = [], EveryTile(sizes)
    for around, several in groupby(enumerate(all_launches), lambda each: each[1].around):
        repeated = list(several)
        for _ in (1,) if around is None else at.iterations(around):
            rows = {} if around is None else {around.range: at.bounds(around.range)}
            for number, launch in repeated:
                kernel = _kernel(program, sizes, launch, rows, sawtooth, mask, number)
                start = 0 if around is None else rows[around.range][0]
                made.append(_moved_up(kernel, in_turn, start) if start else kernel)
    return made


def _moved_up(kernel: Accesses, names: Container[str], start: int) -> Accesses:
    """A kernel with the rows of some tensors from `start` on in the place of their first ones."""

    def moved(stream: Stream) -> Stream:
        ids = stream.ids.copy()
        for matrix in stream.places:
            if matrix.name in names:
                own = (stream.ids >= matrix.first) & (stream.ids < matrix.first + matrix.items)
                ids[own] -= start // matrix.height * matrix.across
        return replace(stream, ids=ids)

    return replace(kernel, forth=moved(kernel.forth), back=None if kernel.back is None else moved(kernel.back))


def _kernel(
    program: ir.Program,
    sizes: ir.Sizes,
    launch: Launch,
    rows: Mapping[ir.Range, tuple[int, int]],
    sawtooth: bool,
    mask: Mask | None,
    number: int,
) -> Accesses:
    """A launch, `number` in its program; `rows`: those of the loop around it."""
    from pebblesim.cachesim.accesses import accesses_of_blocks
    from pebblesim.cachesim.l2 import Accesses

    body = launch.body
    if launch.around is not None:
        (loop,) = body
        assert isinstance(loop, ir.Loop)
        body = loop.body
    forth = accesses_of_blocks(program, sizes, body, launch.grid, mask, rows=rows)
    back = accesses_of_blocks(program, sizes, body, launch.grid, mask, True, rows) if sawtooth else None
    columns = 1
    if len(launch.grid) > 1:
        inner = launch.grid[-1].range
        start, stop = rows.get(inner.parent, (0, sizes[inner.dim])) if inner.parent else (0, sizes[inner.dim])
        columns = -(-(stop - start) // ir.length(inner.block, sizes))
    return Accesses(forth, back, columns, number=number)
