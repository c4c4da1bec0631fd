"""The cases that are measured: a schedule at fixed sizes, as kernels with all sizes constant."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pebblesim.analysis.blocks import choose
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.results import plain
from pebblesim.core.sizes import listed, whole
from pebblesim.counting.arguments import problem_dims
from pebblesim.kernels.cuda.cuda import Source, cuda, memory, prelude
from pebblesim.kernels.cuda.places import WORKERS
from pebblesim.language import program as ir
from pebblesim.language.registry import Schedule, get
from pebblesim.launches.batches import Batch, apart
from pebblesim.launches.sectors import moved

PREFIX = "pebblesim_"
"""Prefix of our kernels' names, by which they are distinguished in a profile."""

BYTES = 4
"""Bytes in a word: float32."""

RESERVED = 1024
"""Bytes of shared memory that each block takes of a multiprocessor besides its own."""


@dataclass(frozen=True)
class Case:
    """A schedule, its sizes and how it is launched.

    Attributes:
        schedule: its name.
        dims, M, blocks: as for `pebblesim.count`.
        workers: largest number of blocks for a loop that carries sums.
        threads: threads of each block.
        heads, turns: problems of these sizes in each launch, and how many of them a block serves in turn.
        resident: most blocks that a multiprocessor may hold at once; 0: as many as it can.
    """

    schedule: str
    dims: Mapping[str, int]
    M: int
    blocks: Mapping[str, int]
    workers: int = 1
    threads: int = 256
    heads: int = 1
    turns: int = 1
    resident: int = 0

    @property
    def algorithm(self) -> Schedule:
        """The schedule itself."""
        return get(self.schedule).in_dims(self.dims)

    @property
    def program(self) -> ir.Program:
        """Traced program of the schedule."""
        return self.algorithm.program

    @property
    def sizes(self) -> dict[str, int]:
        """All sizes, including the number of workers."""
        return {**self.dims, **self.blocks, WORKERS: self.workers}

    @property
    def batch(self) -> Batch:
        """The heads of each launch."""
        return Batch(self.heads, self.turns)

    @cached_property
    def source(self) -> Source:
        """Kernels of the program."""
        return cuda(self.program, self.workers, self.sizes, PREFIX, self.batch)

    @property
    def text(self) -> str:
        """The complete source for a compiler."""
        return "\n".join([prelude(), self.source.text])

    @property
    def shared_words(self) -> int:
        """Largest number of words of shared memory that a block uses."""
        return max(kernel.shared_words(self.sizes) for kernel in self.source.kernels)

    @property
    def apart(self) -> dict[str, int]:
        """For each array in memory, the words from one head's part to the next."""
        room = memory(self.source.kernels, self.program, self.sizes)
        return {name: apart(words) if self.heads > 1 else words for name, words in room.items()}

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of all arrays, of all heads."""
        return BYTES * self.heads * sum(self.apart.values())

    @property
    def launches(self) -> list[dict[str, Any]]:
        """Each launch as plain data, with its kernel and the words and bytes that it moves."""
        return [
            {
                "name": kernel.launch.name,
                "kernel": kernel.name,
                "blocks": kernel.blocks(self.sizes),
                "shared_words": kernel.shared_words(self.sizes),
                "arrays": list(kernel.tensors),
                **vars(moved(kernel.launch, self.sizes, self.workers).times(self.heads)),
            }
            for kernel in self.source.kernels
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `Case(**data)` restores the case."""
        batch = ("heads", "turns", "resident") if self.heads > 1 else ()
        return plain(self, "schedule", "dims", "M", "blocks", "workers", "threads", *batch)

    def identity(self, **where: Any) -> str:
        """A hash of everything that defines a measurement: the case, its kernels' source, and the GPU and tools."""
        defined = {**self.to_dict(), "text": self.text, **where}
        return hashlib.sha256(json.dumps(defined, sort_keys=True).encode()).hexdigest()[:16]


def case(
    schedule: str | Schedule,
    *,
    M: int,
    blocks: str | Mapping[str, int] = "fit",
    workers: int = 1,
    threads: int | None = None,
    heads: int = 1,
    turns: int = 1,
    **dims: int,
) -> Case:
    """Return a checked case: threads by the words in use, and blocks as `pebblesim.count` chooses them for M words.

    A sum without a term occupies space on a GPU, but has no pebbles in the game. If this does not fit, which is rare,
    blocks are chosen for the largest smaller M for which it fits.

    Raises:
        Infeasible, UsageError: as for `pebblesim.count`; or the layout of the tiles needs more than M words.
    """
    algorithm = get(schedule)
    sizes, M, workers = problem_dims(algorithm.problem, dims), whole("M", M), whole("workers", workers)
    batch = {"heads": whole("heads", heads), "turns": whole("turns", turns)}
    if beyond := {name: size for name, size in sizes.items() if size >= 2**31}:
        raise UsageError(f"{listed(beyond)} was given; CUDA kernels count rows and columns up to 2^31 - 1.")
    algorithm = algorithm.in_dims(sizes)
    if threads is not None and not (isinstance(threads, int) and threads % 32 == 0 and 32 <= threads <= 512):
        raise UsageError(f"threads = {threads!r} was given; a block has 32, 64, … or 512 threads.")
    chosen = choose(algorithm, sizes, M, blocks)
    free = blocks in ("fit", "best") or (not isinstance(blocks, str) and len(blocks) < len(algorithm.blocks))
    smaller = M
    while (words := Case(algorithm.name, sizes, M, chosen, workers, **batch).shared_words) > M:
        smaller -= words - M
        try:
            if not free or smaller < 1:
                raise Infeasible("", words)
            chosen = choose(algorithm, sizes, smaller, blocks)
        except Infeasible:
            raise UsageError(
                f"the tiles of {algorithm.name} take {words} words of shared memory, and M = {M}; give a larger M, or "
                "smaller blocks."
            ) from None
    if threads is None:  # a thread for 64 words in use, 64 at least
        threads = min(512, max(64, 2 ** (words // 64).bit_length() // 2))
    return Case(algorithm.name, sizes, M, chosen, workers, threads, **batch)
