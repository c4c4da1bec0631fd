"""A machine for schedules that runs every loop, on tiles of numbers: the words that it reads and writes, by tensor.

It knows what the schedules of `test_every_iteration.py` use, and shares nothing with the language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

Shape = tuple[range, ...]


class Tensor:
    def __init__(self, name: str, shape: Shape) -> None:
        self.name, self.shape = name, shape

    def __getitem__(self, key: Any) -> tuple[str, Shape]:
        keys = key if isinstance(key, tuple) else (key,) * len(self.shape)
        return self.name, tuple(whole if isinstance(k, slice) else k for k, whole in zip(keys, self.shape, strict=True))


class Tile:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __matmul__(self, other: Tile) -> Tile:
        return Tile((self.shape[0], other.shape[1]))

    def __iadd__(self, other: Tile) -> Tile:
        assert self.shape == other.shape
        return self


class Machine:
    def __init__(self) -> None:
        self.words: Counter[tuple[str, str]] = Counter()

    def tensor(self, name: str, *shape: range) -> Tensor:
        return Tensor(name, shape)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def tiles(self, over: range, block: int) -> Iterator[range]:
        for start in range(over.start, over.stop, block):
            yield range(start, min(start + block, over.stop))

    def _move(self, verb: str, part: Any) -> Tile:
        name, shape = part[:] if isinstance(part, Tensor) else part
        self.words[verb, name] += prod(map(len, shape))
        return Tile(shape)

    def read(self, part: Any) -> Tile:
        return self._move("read", part)

    def write(self, part: Any, value: object) -> None:
        self._move("write", part)

    def zeros(self, *shape: range) -> Tile:
        return Tile(shape)

    def compute(self, value: Tile) -> Tile:
        return value

    def delete(self, *tiles: Tile) -> None:
        assert all(isinstance(tile, Tile) for tile in tiles)


def words(function: Any, sizes: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """The words that a schedule of `matmul` moves with blocks a and b, as ("read" or "write", tensor): words."""
    m, (rows, terms, columns) = Machine(), (range(sizes[dim]) for dim in "mkn")
    function(m, Tensor("A", (rows, terms)), Tensor("B", (terms, columns)), a=sizes["a"], b=sizes["b"])
    return dict(m.words)
