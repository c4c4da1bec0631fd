"""Tiles of pairs under a band mask with two limits, such as a sliding window: only these are held and launched."""

from __future__ import annotations

from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Mask


def limited(mask: Mask | None) -> Band | None:
    """The mask if it is a band that ends on both sides, so that each tile of rows meets a few tiles of columns."""
    return mask if isinstance(mask, Band) and mask.before is not None and mask.after is not None else None


def tiles_across(band: Band, height: int, width: int) -> int:
    """Most tiles of `width` columns that a tile of `height` rows meets: one more than fit into its keys but one."""
    assert band.before is not None and band.after is not None
    several = band.rows
    positions = height // several if height % several == 0 else (height - 2) // several + 2
    return (positions + band.before + band.after - 2) // width + 2


def launched_across(loop: ir.Loop, mask: Mask | None, sizes: ir.Sizes) -> int | None:
    """Tiles of a loop of a grid that are launched for each tile of rows; None if all of its tiles are."""
    when, band = loop.when, limited(mask)
    if band is None or when is None or when.columns is not loop.range or when.rows.parent is None or when.none:
        return None
    return tiles_across(band, ir.length(when.rows.block, sizes), ir.length(loop.range.block, sizes))
