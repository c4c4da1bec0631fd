"""Masks: the pairs (row i of Q, row j of K) that attention may use, for all heads or for each, as a user gives them.

A mask is given as a text, as a file or an array of booleans, or as an object of `pebblesim.language.mask_kinds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pebblesim.core.errors import UsageError, as_given
from pebblesim.core.files import load_numpy
from pebblesim.core.sizes import parse_size, separated
from pebblesim.language.mask_kinds import (
    LARGEST_TABLE as LARGEST_TABLE,
    Band as Band,
    BigBird as BigBird,
    BlockMask as BlockMask,
    Mask as Mask,
    Packed as Packed,
)
from pebblesim.language.tile_ranges import Grid

Array = Any

KNOWN = (
    "dense, causal, window:W, band:W (each with :start if its diagonal starts at the first key, not at the last), "
    "lengths:3,5,8 (sequences, each for itself, or :causal behind it), "
    "bigbird:BLOCK:WINDOW:GLOBAL:RANDOM[:SEED], or a file of booleans such as mask.npy"
)


@dataclass(frozen=True, eq=False)
class HeadMasks:
    """A mask for each head: each head is counted under its own.

    Attributes:
        name: as a text.
        each: the masks, all of one shape.
    """

    name: str
    each: tuple[BlockMask, ...] = field(repr=False)

    def check(self, grid: Grid, heads: int) -> None:
        """
        Raises:
            UsageError: the number of masks is not the number of heads, or they do not fit the grid.
        """
        if len(self.each) != heads:
            shape = ", ".join(map(str, (heads, *grid)))
            raise UsageError(
                f"mask {self.name} is of {len(self.each):,} head{'s' * (len(self.each) > 1)}, and there "
                f"{'is' if heads == 1 else 'are'} {heads:,}; give an array of shape (heads, n_q, n_k) = ({shape}), or "
                f"say how many heads there are."
            )
        try:
            self.each[0]._size(grid)
        except UsageError as error:
            raise UsageError(f"{str(error).removesuffix('.')}, behind a first dimension of {heads} heads.") from None

    def among(self, sharing: int, grid: Grid) -> tuple[BlockMask, ...]:
        """Return the masks if groups of heads are counted as one head, with the rows of one position adjacent."""
        groups = (self.each[first : first + sharing] for first in range(0, len(self.each), sharing))
        return self.each if sharing == 1 else tuple(_side_by_side(self.name, group, grid) for group in groups)

    def __str__(self) -> str:
        return f"{self.name}, one for each head"


def _side_by_side(name: str, heads: Sequence[BlockMask], grid: Grid) -> BlockMask:
    """The mask of heads whose rows alternate: row i of the first, of the second, ..., then row i + 1 of the first."""
    import numpy as np

    height, width = heads[0]._size(grid)
    rows = [mask._table(grid).repeat(height, axis=0)[: grid[0]] for mask in heads]
    return BlockMask(name, np.stack(rows, axis=1).reshape(len(heads) * grid[0], -1), (1, width))


AnyHeads = Mask | HeadMasks
"""One mask for all heads, or one for each."""


def from_text(text: str) -> Mask | None:
    """Return the mask for a text such as "causal" or "window:256", or for a file's name; None for "dense".

    Raises:
        UsageError: there is no such mask or file, or the file does not contain a boolean table.
    """
    kind, *numbers = text.split(":")
    if text == "dense":
        return None
    at_end = numbers[-1:] != ["start"]
    widths = numbers if at_end else numbers[:-1]
    if kind == "causal" and not widths:
        return Band(text, None, 0, at_end=at_end)
    if kind in ("window", "band") and len(widths) == 1:
        width = _number(text, widths[0])
        before, after = (width - 1, 0) if kind == "window" else (width, width)
        return Band(text, before, after, at_end=at_end)
    if kind == "bigbird" and len(numbers) in (4, 5):
        block, window, globals_, random, *seed = (_number(text, number) for number in numbers)
        if block < 1:
            raise UsageError(f"mask {text!r}: a block has at least one row.")
        return BigBird(text, None, (block, block), block, window, globals_, random, *seed)
    if kind == "lengths" and numbers:
        return _packed(text, numbers[0], numbers[1:])
    if text.endswith(".npy"):
        return from_array(_load(text), Path(text).name)
    raise UsageError(f"mask {as_given(text)} is not known; it is {KNOWN}.")


def from_array(table: Array, name: str = "blocks", size: tuple[int, int] | None = None) -> BlockMask:
    """Return a mask from booleans, one for each pair or for each block of pairs, of shape (⌈n/B_r⌉, ⌈n/B_c⌉).

    Args:
        table: booleans, or numbers 0 and 1.
        name: its name in messages.
        size: (B_r, B_c), the rows and columns of a block; by default those that fit n.

    Raises:
        UsageError: the table is not of this form.
    """
    import numpy as np

    booleans = np.asarray(table)
    if booleans.ndim != 2 or 0 in booleans.shape:
        heads = "; `count`, `bounds`, `sweep` and `cache` take a mask for each head" if booleans.ndim == 3 else ""
        raise UsageError(
            f"mask {name} has shape {booleans.shape}; it must have rows and columns, one for each block of pairs"
            f"{heads}."
        )
    kind = booleans.dtype.kind
    if kind != "b" and (kind not in "iuf" or not np.isin(booleans, (0, 1)).all()):
        raise UsageError(f"mask {name} holds {booleans.dtype} values other than 0 and 1; it must be booleans.")
    return BlockMask(name, booleans.astype(bool), size)


def of(mask: Mask | str | Array | None) -> Mask | None:
    """Return the mask for an argument: a `Mask`, a text for `from_text`, an array for `from_array`, or None."""
    if mask is None or isinstance(mask, Mask):
        return mask
    return from_text(mask) if isinstance(mask, str) else from_array(mask)


def of_heads(mask: AnyHeads | str | Array | None) -> AnyHeads | None:
    """Like `of`; but an array, or a file, of three dimensions has a mask for each head.

    Raises:
        UsageError: as for `of`.
    """
    if isinstance(mask, HeadMasks):
        return mask
    if isinstance(mask, str) and mask.endswith(".npy"):
        name, table = Path(mask).name, _load(mask)
    elif mask is None or isinstance(mask, str | Mask):
        return of(mask)
    else:
        import numpy as np

        name, table = "blocks", np.asarray(mask)
    if table.ndim != 3 or 0 in table.shape:
        return from_array(table, name)
    return HeadMasks(name, tuple(from_array(each, f"{name}[{head}]") for head, each in enumerate(table)))


def _number(text: str, number: str) -> int:
    least = 0 if text.startswith(("band", "bigbird")) else 1
    if number == "0" and least == 0:
        return 0
    try:
        return parse_size("a number in a mask", number)
    except UsageError:
        raise UsageError(
            f"mask {text!r}: {number!r} is not a whole number, {least} or more, such as 256, 4k or 2^20; a mask is "
            f"{KNOWN}."
        ) from None


def _packed(text: str, lengths: str, within: list[str]) -> Packed:
    sides = [tuple(_number(text, each) for each in separated("lengths", side)) for side in lengths.split("/")]
    band = from_text(":".join(within)) if within else None
    if len(sides) > 2 or len(sides[0]) != len(sides[-1]) or not isinstance(band, Band | None):
        raise UsageError(
            f"mask {text!r}: it is lengths:3,5,8 for sequences of that many rows, or lengths:1,1/40,60 for queries and "
            "keys; :causal, :window:W or :band:W may follow."
        )
    return Packed(text, sides[0], sides[-1], band)


def _load(path: str) -> Array:
    if not Path(path).is_file():
        raise UsageError(f"mask {path!r}: there is no such file.")
    return load_numpy(path, f"mask {path!r}")
