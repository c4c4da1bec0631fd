"""Load generated Triton source as Python modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def module_of(text: str) -> Any:
    """Return a module with this source; Triton must be able to read the source of a kernel from a file."""
    folder = TemporaryDirectory(prefix="pebblesim-")
    path = Path(folder.name) / "kernels.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("pebblesim_kernels", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.folder = folder  # type: ignore[attr-defined]  # lives as long as the module
    return module
