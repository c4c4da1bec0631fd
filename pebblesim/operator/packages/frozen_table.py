"""The table of a package of kernels: which kernels are chosen for which calls, and their texts.

A class of calls has one pass, one head dimension, one mask and one number of heads that share keys. For some lengths
and numbers of heads it has kernels in the order of their forecasts, up to the first that is for all calls of the class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from pebblesim.advice.cards import Card
from pebblesim.advice.tiles import Tiling
from pebblesim.core.errors import PebblesimError
from pebblesim.kernels.bands import tiles_across
from pebblesim.kernels.domains import KERNELS, expected
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.tables import GROUP_OF_WORDS, Tables, kept
from pebblesim.kernels.triton.triton import longest_sides
from pebblesim.kernels.words import word_bytes
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.operator import planning
from pebblesim.operator.packages.frozen_names import CAP, filled_in, name_of
from pebblesim.operator.pattern import Pattern, band_of
from pebblesim.operator.texts import Written, written

WAYS = ("forward", "backward")

TYPE, OTHER_TYPE, OTHER_SCALE, OTHER_CAP = "bfloat16", "float16", 0.37, 7.5
"""The type of words in texts, and another type, scale and cap with which `filled_in` is checked."""


@dataclass(frozen=True)
class Asked:
    """The calls that a package is for.

    Attributes:
        card: whose forecasts choose.
        widths: head dimensions, of keys and of values alike.
        limits: limits of j - i that kernels are made for, (left, right); None is no limit.
        ranges: whether there are kernels that read key ranges, which all other masks need.
        shared: heads of queries on each head of keys.
        softcap: whether there are kernels that cap scores, too, at the head dimensions at which `attention` does.
        lengths, heads: lengths, and heads of keys in all, for which kernels are chosen.
    """

    card: Card
    widths: tuple[int, ...] = (64, 128, 256)
    limits: tuple[tuple[int | None, int | None], ...] = ((None, None), (None, 0))
    ranges: bool = True
    shared: tuple[int, ...] = (1, 4)
    softcap: bool = False
    lengths: tuple[int, ...] = (1, 64, 256, 1024, 4096, 16384, 65536)
    heads: tuple[int, ...] = (8, 64)

    @property
    def capped(self) -> list[int]:
        """The head dimensions at which there are kernels that cap scores."""
        return [d for d in sorted(self.widths) if self.softcap and d <= KERNELS.softcap]

    def kinds(self) -> Iterator[tuple[int, Pattern]]:
        """The head dimension and the pattern of each two classes of calls."""
        for cap, widths in ((0.0, self.widths), (CAP, self.capped)):
            yield from ((d, pattern._replace(softcap=cap)) for d in widths for pattern in self._patterns())

    def _patterns(self) -> Iterator[Pattern]:
        for shared in self.shared:
            for left, right in self.limits:
                for at_end in (False, True) if (left, right) != (None, None) else (False,):
                    yield Pattern(band_of(left, right, at_end, shared), shared)
            if self.ranges:
                yield Pattern(KeyRanges(rows=shared), shared)


class Table:
    """The table of a package, and the texts of its kernels by the names of their files."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.texts = asked, dict[str, str]()

    @property
    def number(self) -> int:
        """The number of classes."""
        return len([*self.asked.kinds()]) * len(WAYS)

    def classes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Classes of calls, one after the other, since each takes some seconds: names and contents.

        Raises:
            UsageError: no kernel is for one of them.
        """
        for (d, pattern), way in product(self.asked.kinds(), WAYS):
            name = name_of(way, (d, d), pattern.mask, pattern.shared, pattern.softcap != 0)
            yield name, self._class(way, d, pattern)

    def _class(self, way: str, d: int, pattern: Pattern) -> dict[str, Any]:
        known: dict[Tiling, int] = {}

        def cell(n_q: int, n_k: int, heads: int) -> list[int]:
            dims = (("n_q", n_q * pattern.shared), ("n_k", n_k), ("d_k", d), ("d_v", d))
            ranked = _ranked(way, dims, heads, pattern, self.asked.card)
            return [known.setdefault(each, len(known)) for each in ranked]

        lengths, heads = self.asked.lengths, self.asked.heads
        grid = [[[cell(n_q, n_k, each) for each in heads] for n_k in lengths] for n_q in lengths]
        return {"grid": grid, "kernels": [self._kernel(each, d, pattern) for each in known]}

    def _kernel(self, tiling: Tiling, d: int, pattern: Pattern) -> dict[str, Any]:
        """A kernel as `frozen.Tiling` has it; its texts are kept here."""
        program = planning.program_of(tiling, pattern.mask)
        sizes = {"n_q": 2**14 * pattern.shared, "n_k": 2**14, "d_k": d, "d_v": d, **tiling.blocks}
        files = {}
        for even, dense in product((False,) if tiling.one_source else (False, True), (False, True)):
            made = _checked(tiling, d, even, dense, pattern)
            name = f"{tiling.schedule}-{hashlib.sha256(made.text.encode()).hexdigest()[:12]}.py"
            self.texts[name] = made.text
            files[f"{'even' if even else 'any'} {'dense' if dense else 'strided'}"] = name
        longest = max(size for name, size in tiling.blocks.items() if name not in "ce")
        return {
            "named": str(tiling),
            "gluon": tiling.gluon,
            "adds": not tiling.domain.same_bits,
            "multiple": longest if tiling.even else 1,
            "sides": None if tiling.one_source else longest_sides(program, sizes),
            "tables": tables_of(program, sizes, TYPE, expected(pattern.mask)),
            "texts": files,
            "fills": made.fills,
            "kernels": made.kernels,
            "takes": made.takes,
        }


def _ranked(way: str, dims: planning.Dims, heads: int, pattern: Pattern, card: Card) -> Iterator[Tiling]:
    """The kernels for some sizes, the fastest first, up to the first that is for all calls of its class."""
    _, found = planning.ranked_for(planning.Pass(way, dims, heads, TYPE, pattern, planning.ROOM, card))
    for each in found:
        yield each.tiling
        if not each.tiling.gluon and not each.tiling.even and each.tiling.domain.same_bits:
            break


def _checked(tiling: Tiling, d: int, even: bool, dense: bool, pattern: Pattern) -> Written:
    """A text of kernels for bfloat16, the scale 1/√d and the cap `CAP`, after `filled_in` was checked for it.

    Raises:
        PebblesimError: the text for another type, scale or cap differs in something else.
    """

    def text(dtype: str, scale: float, softcap: float) -> Written:
        own = pattern._replace(softcap=softcap)
        return written(tiling, (("d_k", d), ("d_v", d)), even, False, dense, dtype, own, scale)

    made, other = text(TYPE, d**-0.5, pattern.softcap), OTHER_CAP if pattern.softcap else 0.0
    if filled_in(made.text, d, OTHER_TYPE, OTHER_SCALE, other) != text(OTHER_TYPE, OTHER_SCALE, other).text:
        raise PebblesimError(f"the text of {tiling} for d = {d} does not follow from that for another type or number.")
    return made


def tables_of(program: ir.Program, sizes: ir.Sizes, dtype: str, mask: Mask | None) -> list[Any]:
    """The tables that `workspace` counts, as `frozen.Tiling.tables` has it, for all numbers of queries and keys."""
    made, taken = kept(program, sizes, mask)
    return [(word_bytes(program, each, dtype), _factors(made, each, sizes)) for each in taken]


def _factors(made: Tables, tensor: ir.Tensor, sizes: ir.Sizes) -> list[tuple[str, int, int | None, int]]:
    """The factors of a table's words: of a dimension, its tiles' side, the most tiles, and words of each."""
    sides = [(name, 1, 1) for name in tensor.shape]
    if tensor in made.aligned:
        sides[-1] = sides[-1][0], GROUP_OF_WORDS, GROUP_OF_WORDS
    if tensor in made.tiled:
        sides = [(name, side, side) for name, side in zip(tensor.shape, made.tiled[tensor], strict=True)]
    found: list[tuple[str, int, int | None, int]] = [(name, side, None, each) for name, side, each in sides]
    if tensor in made.parts:
        name, side, _, each = found[0]
        found[0] = name, side, -(-ir.length(made.parts[tensor].block, sizes) // side), each
    if tensor in made.tiled and made.band is not None:
        name, side, _, each = found[1]
        found[1] = name, side, tiles_across(made.band, *made.tiled[tensor]), each
    if tensor.apart is not None:
        found.insert(0, (tensor.apart.dim, ir.length(tensor.apart.block, sizes), None, 1))
    return found
