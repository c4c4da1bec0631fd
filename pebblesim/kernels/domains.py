"""The attentions that each kernel is for, declared once: whoever chooses kernels asks here.

A kernel is a schedule written as Triton or as Gluon. The tiles of a `Tiling` narrow its domain to the head dimensions,
masks and lengths with which no register is spilled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import NamedTuple

from pebblesim.core.sizes import counted
from pebblesim.kernels import releases
from pebblesim.kernels.gluon.block import ROWS
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.strides import WORDS as GROUP
from pebblesim.kernels.triton.triton import FAR
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language.masks import Band, Mask

HOPPER, OLDEST = "9.0", 8.0
"""The compute capability of Hopper cards, and that of the oldest ones whose tensor cores take words of bfloat16."""


class Call(NamedTuple):
    """An attention, as it decides which kernels are for it. What is not given is what all kernels take.

    Attributes:
        dims: dimensions of its problem; names of head dimensions begin with d, those of lengths with n.
        mask: the allowed pairs.
        grid: rows and columns of the pairs, if the mask may leave some of them without another.
        dtype: type of the words of matrices.
        shared: heads of queries that share keys.
        scale: factor of scores.
        softcap: scores are capped so; 0 if they are not.
        same_bits: whether results are the same to the last bit at each call.
        words: words from the first to the last of a head's matrix.
        repeated: whether some word has several places in a matrix.
        card, capability: name and compute capability of the card; "" if that is not known.
        triton: version of Triton; None if there is none.
    """

    dims: Mapping[str, int]
    mask: Mask | None = None
    grid: tuple[int, int] | None = None
    dtype: str = "bfloat16"
    shared: int = 1
    scale: float = 1.0
    softcap: float | None = 0.0
    same_bits: bool = False
    words: int = 0
    repeated: bool = False
    card: str = ""
    capability: str = HOPPER
    triton: str | None = releases.OLDEST


class Refusal(NamedTuple):
    """Why a call is outside of a domain, and what to do about it, both without a full stop; no advice is "".

    As a string it is both, with a semicolon between them.
    """

    why: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.why}; {self.advice}" if self.advice else self.why


def expected(mask: Mask | None) -> Mask | None:
    """The mask that forecasts are made for: for ranges a causal one, since they are known to the GPU alone."""
    return Band(mask.name, None, 0, at_end=False, rows=mask.rows) if isinstance(mask, KeyRanges) else mask


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The attentions that a kernel is for.

    Attributes:
        dtypes: types of the words of matrices.
        masks: kinds of masks.
        widths: least and largest of the widest head dimension.
        least: least head dimension.
        sides: least and largest of single head dimensions, by name.
        even: whether lengths are multiples of the sides of its tiles.
        shared: most heads that share keys, a power of two; 0 for any number.
        softcap: largest head dimension with which scores are capped; 0 if they are not.
        same_bits: whether sums are in the same order at each call.
        rows: most rows of queries; 0 for any number.
        alone: block of keys of which none may be without a query; "" for a single key, None if all may.
        copied: whether the copy engine of Hopper brings its tiles, by Gluon: rows of whole groups of 16 bytes.
        scale: the factor of scores is above it, where the copy engine brings tiles.
    """

    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    masks: tuple[type, ...] = (NoneType, Band, KeyRanges)
    widths: tuple[int, int] = (1, 1024)
    least: int = LEAST_SIDE
    sides: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    even: bool = False
    shared: int = 0
    softcap: int = 0
    same_bits: bool = True
    rows: int = 0
    alone: str | None = ""
    copied: bool = False
    scale: float = 0.0

    def refusal(self, call: Call, blocks: Mapping[str, int] | None = None) -> Refusal | None:
        """Why a call is outside; None if it is inside.

        Args:
            call: the call.
            blocks: block sizes of the kernel.
        """
        mask, blocks, (least, most) = call.mask, blocks or {}, self.widths
        if call.dtype not in self.dtypes:
            return Refusal(f"they take words of 16 bits, and not of {call.dtype}", "add --dtype bf16")
        if type(mask) not in self.masks:
            others = "ranges of keys" if NoneType not in self.masks else "no mask"
            known = "causal, window:W and band:W" if Band in self.masks else others
            return Refusal(f"they know {known}, and not {'all pairs' if mask is None else mask}")
        both = dict.fromkeys(("d_k", "d_v"), call.dims["d"]) if "d" in call.dims else {}
        widths = both | {name: size for name, size in call.dims.items() if name.startswith("d") and name != "d"}
        if (widest := max((0, *widths.values()))) > most:
            return Refusal(f"there is a head dimension of {counted(widest)}, and kernels are for {most:,} at most")
        if call.softcap and widest > self.softcap:
            limit = f"with softcap a head dimension may be up to {self.softcap}"
            return Refusal(f"{limit}, and one is {counted(widest)}", "leave out softcap")
        if 0 < widest < least:
            return Refusal(f"the widest head dimension is {widest}, and kernels are for {least:,} or more")
        for name, size in widths.items() if self.least > 1 else ():
            low, high = self.sides.get(name, (self.least, size))
            if size < low:
                return Refusal(
                    f"they take head dimensions of {low} and more, and one is {size}", "fill rows up with zeros"
                )
            if size > high or (self.copied and size % GROUP):
                known = f"{name} up to {high:,}" if size > high else name
                return Refusal(f"they take {known} in whole groups of {GROUP} words, and it is {size}")
        if self.shared and (call.shared > self.shared or call.shared & (call.shared - 1)):
            known = f"powers of two up to {self.shared:,} of heads that share keys"
            return Refusal(f"they take {known}, and not {call.shared:,}")
        if call.same_bits and not self.same_bits:
            return Refusal("memory adds their sums, in another order at each call")
        if self.rows and (rows := call.dims.get("n_q", call.dims.get("n", 0))) > self.rows:
            return Refusal(f"they take up to {self.rows:,} rows of queries, and there are {counted(rows)}")
        if self.even:
            longest = max(size for name, size in blocks.items() if name not in "ce")
            if any(size % longest for name, size in call.dims.items() if name.startswith("n")):
                return Refusal(f"they take multiples of {longest} tokens")
        if mask is not None and call.grid is not None:
            without = f", and mask {mask} leaves some without"
            if mask.empty(call.grid, 1, 0).any():
                return Refusal(f"they need a key for each query{without}", "leave these queries out")
            if self.alone is not None and mask.empty(call.grid, blocks.get(self.alone, 1), 1).any():
                return Refusal(f"they need a query for each tile of keys{without}", "leave these keys out")
        return self._not_on(call)

    def _not_on(self, call: Call) -> Refusal | None:
        """Why it does not run on the card of a call, with its matrices and the Triton there."""
        if self.copied and (call.scale <= self.scale or call.words >= FAR or call.repeated):
            known = f"scales above {self.scale:.3g}, and heads of less than {FAR:,} words, each of them in one place"
            return Refusal(f"they take {known}")
        if call.capability != HOPPER if self.copied else call.capability and float(call.capability) < OLDEST:
            needed = HOPPER if self.copied else f"{OLDEST} or more"
            return Refusal(f"{call.card} has compute capability {call.capability}, and kernels need {needed}")
        too_old = releases.without_gluon(call.triton) if self.copied else None
        return Refusal(too_old) if too_old else None


TRITON = Domain()

CAPPING = replace(TRITON, softcap=TRITON.widths[1])
"""Kernels that have scores and their gradients in one launch, and so can cap them."""

GLUON = replace(TRITON, masks=(NoneType, Band), shared=ROWS, alone=None, copied=True)

ADDING = replace(GLUON, sides={"d_k": (LEAST_SIDE + 1, 128)}, same_bits=False, alone="B_c")
"""Kernels that add to the gradient of the queries in memory: two warpgroups, tiles of twice 16 columns."""

LATENT = replace(GLUON, masks=(NoneType,), sides={"d_r": (LEAST_SIDE, ROWS)}, shared=2**15)
"""Kernels that read keys and values together; the heads of a position are rows of several tiles."""

STORED = replace(GLUON, shared=2**15)
"""Kernels with tables of pairs: the heads of a position may be rows of several tiles."""

STREAMED = replace(GLUON, masks=(NoneType,), widths=(1, 32), shared=1, scale=2.0**-64)
"""Kernels past whose rows of a bias sequences stream: these rows are divided by the scale, in float32."""

OF_TRITON = dict.fromkeys(
    ("flash2-forward", "flash-decoding", "flash-decoding-blocked", "backward-two-pass-blocked", "dS-stored-blocked"),
    CAPPING,
)
"""Domains of schedules as Triton kernels; of others it is `TRITON`."""

RANGED = (*GLUON.masks, KeyRanges)
"""Kinds of masks of kernels that go through the tiles of a block's ranges."""

OF_GLUON = {
    "flash2-forward": replace(GLUON, masks=RANGED),
    "backward-two-pass-blocked": replace(GLUON, masks=RANGED, alone="B_c"),
    "dS-stored-resident": replace(GLUON, alone="b"),
    "flash2-backward-blocked": replace(ADDING, masks=RANGED, softcap=64),
    "flash2-latent": LATENT,
    **dict.fromkeys(("scores-stored-resident", "small-cache-backward-resident"), STORED),
    "small-cache-backward-resident-in-rows": replace(STORED, alone="b"),
}
"""Domains of schedules as Gluon kernels; of others it is `GLUON`.

Of kernels that cap scores only those are offered that a card found faster than Triton's: where memory adds, for head
dimensions up to 64. Backward, the loops of the others spill registers; forward, σ takes as long in both.
"""

KERNELS = replace(TRITON, softcap=256, alone=None)
"""Calls that this refuses, all kernels refuse; of the others, each has kernels on every card that it is about."""

ATTENTION = replace(KERNELS, least=1)
"""The calls that `attention` takes: it fills up narrow heads with zeros."""
