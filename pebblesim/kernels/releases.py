"""The one place that knows each release of Triton, and what kernels need of it.

Texts are written for Triton 3.6. Gluon, of which the kernels for Hopper are made, is experimental: later releases call
some of its functions otherwise, and launch kernels otherwise. A release that is not listed runs Triton's own kernels
alone, since nobody has tried whether those of Gluon compile there, and are right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pebblesim.core.errors import UnknownName


@dataclass(frozen=True)
class Release:
    """The differences of a release of Triton from 3.6, the one that texts are written for.

    Attributes:
        renamed: names in texts of kernels, and what they are called in this release.
        options: options of each launch, as text.
        arguments_together: whether the function that launches takes the arguments of a kernel as one tuple, behind
            what Triton knows of their types.
        unread: arguments of the function that makes descriptors, behind those that it reads.
        two_rooms: whether a kernel takes two pieces of memory behind its arguments, and Triton keeps (warps, blocks of
            a cluster, bytes of shared memory) of it, so that the driver alone can launch it.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    options: str = ""
    arguments_together: bool = False
    unread: int = 0
    two_rooms: bool = False

    def text(self, written: str) -> str:
        """A text of kernels, written for 3.6, as this release takes it."""
        for name, here in self.renamed.items():
            written = re.sub(rf"{re.escape(name)}\b", here, written)
        return written.replace("num_warps=", f"{self.options}, num_warps=") if self.options else written


RELEASES = {
    "3.6": Release(two_rooms=True),
    "3.7": Release(arguments_together=True),
    "3.8": Release(arguments_together=True, unread=1),
    "3.9": Release(
        {
            "tma.async_copy_global_to_shared": "tma.async_load",
            "tma.async_copy_shared_to_global": "tma.async_store",
        },
        "enable_fp_fusion=True",  # as before 3.9, which warns where nobody says so: 3.10 will not fuse
        arguments_together=True,
        unread=1,
    ),
}
"""The releases of Triton whose Gluon kernels compile and are right, by their number."""

OLDEST, NEWEST = next(iter(RELEASES)), next(reversed(RELEASES))

INSTALL = f"pip install 'triton>={OLDEST},<{NEWEST.partition('.')[0]}.{int(NEWEST.partition('.')[2]) + 1}'"
"""The command that gets a release that is listed."""


def installed() -> str | None:
    """The version of Triton that is installed here; None if there is none."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def release_of(triton: str) -> Release | None:
    """The release of a version of Triton such as "3.9.0"; None if its release is not listed."""
    return RELEASES.get(".".join(triton.split(".")[:2]))


def release(name: str) -> Release:
    """The release of Triton with a number such as "3.9".

    Raises:
        UnknownName: it is not listed.
    """
    if name not in RELEASES:
        raise UnknownName("release of Triton", name, RELEASES)
    return RELEASES[name]


@cache
def here() -> Release:
    """The release of the Triton here; of one that is not listed the newest, and without Triton the oldest."""
    return release_of(installed() or OLDEST) or RELEASES[NEWEST]


def without_gluon(triton: str | None) -> str | None:
    """The reason why kernels of Gluon do not run with a version of Triton, None if they do: a part of a sentence."""
    if triton is None:
        return "Triton is not here"
    if release_of(triton) is None:
        return f"Triton here is {triton}, and kernels of Gluon are for {OLDEST} to {NEWEST}"
    return None
