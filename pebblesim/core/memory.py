"""How much memory there is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CONTROL = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where control groups are mounted, and which ones this process is in."""
NEGLIGIBLE = 2**20
"""Bytes that are not worth asking for: to read what there is takes longer than to fill them."""


def shortage(size: int) -> int | None:
    """The bytes of memory that are available where so many are more than that, None where they fit."""
    if size <= NEGLIGIBLE or size <= (available := available_memory()):
        return None
    return available


def available_memory() -> int:
    """Bytes of memory that this process may use more, on the machine and in its container."""
    return min(_of_the_machine(), *_of_control_groups(*CONTROL))


def _of_the_machine() -> int:
    """Bytes of memory that the machine has left; unlimited where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sys.maxsize


def _of_control_groups(mount: Path, member: Path) -> Iterator[int]:
    """Yield the bytes that each control group around this process, of either version, has left.

    They are its limit less what it cannot drop; pages of files can be dropped.
    """
    for line in member.read_text().splitlines() if member.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, usage, total = mount, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            top, limit, usage = mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            total = "total_"
        else:
            continue
        group = top / path.lstrip("/")
        # Inside of a container the path may be the host's: what is mounted then is the container's own group.
        for each in (group, *group.parents[: len(group.parts) - len(top.parts)]):
            try:
                allowed, used = int((each / limit).read_text()), int((each / usage).read_text())
                stat = (each / "memory.stat").read_text()
            except (OSError, ValueError):  # there is no such group, or "max": no limit
                continue
            cached = re.findall(rf"^{total}(?:in)?active_file (\d+)$", stat, re.MULTILINE)
            yield max(0, allowed - used + sum(map(int, cached)))


def readable(size: int) -> str:
    """A number of bytes for a reader, such as "1.5 GiB"."""
    value, units = float(size), iter(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = next(units)
    while value >= 1024 and (larger := next(units, None)):
        value, unit = value / 1024, larger
    return f"{value:,.1f} {unit}"
