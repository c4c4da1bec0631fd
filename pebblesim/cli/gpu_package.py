"""`pebblesim gpu emit --target package`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pebblesim.cli.completion import cards
from pebblesim.cli.options import Group, Sizes, option
from pebblesim.cli.printing import print_json, say
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError
from pebblesim.core.files import check_folder
from pebblesim.core.sizes import parse_size, separated, several

NAME = "pebblesim-attention"

RANGES = "ranges"
"""The name of the masks that kernels read, among those of --mask."""


@dataclass(frozen=True)
class PackageChoice(Group):
    """Options of a package of kernels."""

    shared: Annotated[
        str | None, option("--shared", "For package: query heads on each KV head, such as 1,4.", "SIZES")
    ] = None
    card: Annotated[
        str | None, option("--card", "For package: the card that kernels are chosen for.", "NAME", values=cards)
    ] = None
    softcap: Annotated[
        bool, option("--softcap", "For package: kernels that cap scores, too, for head dimensions up to 256.")
    ] = False
    name: Annotated[str | None, option("--name", f"For package: its name; {NAME} by default.", "NAME")] = None

    @property
    def given(self) -> dict[str, str | bool | None]:
        """The options by their names."""
        return {"shared": self.shared, "card": self.card, "softcap": self.softcap or None, "name": self.name}


def write_package(sizes: Sizes, mask: str | None, chosen: PackageChoice, output: Path | None, as_json: bool) -> None:
    """Write a package of kernels: -d head dimensions, -n lengths for which kernels are chosen, --mask several masks.

    Raises:
        UsageError: an option is missing, or has a value that is not allowed.
    """
    from pebblesim.advice import cards
    from pebblesim.operator.packages.frozen_table import Asked
    from pebblesim.operator.packages.package import emit
    from pebblesim.operator.planning import CARD, supported

    if output is None or sizes.d is None:
        raise UsageError("a package needs -d and -o: head dimensions, and a folder; such as -d 64,128 -o attention.")
    if sizes.size:
        raise UsageError("--size was given; a package has head dimensions, -d, and lengths, -n.")
    given: dict[str, Any] = {"widths": several("d", sizes.d), "softcap": chosen.softcap}
    check_folder(output)
    _check_capped(given["widths"], chosen.softcap, as_json)
    if sizes.n is not None:
        given["lengths"] = tuple(sorted(several("n", sizes.n, lambda text: parse_size("n", text))))
    if chosen.shared is not None:
        given["shared"] = several("shared", chosen.shared)
    named = separated("mask", mask or f"dense,causal,{RANGES}")
    bands = tuple(_limits(each) for each in named if each != RANGES)
    asked = Asked(
        cards.with_rates(supported(chosen.card or CARD, "--card")), limits=bands, ranges=RANGES in named, **given
    )
    with progress_bar("choosing kernels") as progress:

        def told(each: str, done: float) -> None:
            progress(done)
            if not as_json:
                say(f"chosen    {each}")

        written = emit(asked, output, chosen.name or NAME, told)
    if as_json:
        print_json({"folder": str(output), **written})
    else:
        say(f"written   {output}: {written['kernels']:,} texts of kernels for {written['classes']:,} classes of calls")


def _check_capped(widths: Collection[int], softcap: bool, quiet: bool) -> None:
    """Say for which head dimensions kernels that cap scores are made, if not for all.

    Raises:
        UsageError: for none.
    """
    from pebblesim.kernels.domains import KERNELS

    wide = [str(d) for d in sorted(widths) if d > KERNELS.softcap]
    if not (softcap and wide):
        return
    said = f"kernels that cap scores are made for head dimensions up to {KERNELS.softcap}, not for {', '.join(wide)}"
    if len(wide) == len(widths):
        raise UsageError(f"{said}; leave --softcap out, or give a smaller -d besides.")
    if not quiet:
        say(f"note      {said}")


def _limits(text: str) -> tuple[int | None, int | None]:
    """The limits of j - i of a mask.

    Raises:
        UsageError: it is not known, or not of this kind.
    """
    from pebblesim.language import masks

    mask = masks.from_text(text) if text.partition(":")[0] in ("dense", "causal", "window", "band") else text
    if mask is None:
        return None, None
    if not isinstance(mask, masks.Band):
        raise UsageError(f"--mask {text} was given; a package has dense, causal, window:W, band:W and {RANGES}.")
    return mask.before, mask.after
