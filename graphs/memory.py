"""How much memory there is."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def available_memory() -> int:
    """Bytes of memory that a new process may use; unlimited where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sys.maxsize


def readable(size: int) -> str:
    """A number of bytes for a reader, such as "1.5 GiB"."""
    value, units = float(size), iter(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = next(units)
    while value >= 1024 and (larger := next(units, None)):
        value, unit = value / 1024, larger
    return f"{value:,.1f} {unit}"
