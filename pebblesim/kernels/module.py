"""Load generated Triton source as Python modules, and the libraries that run them."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from pebblesim.core.errors import UsageError
from pebblesim.kernels import releases


def module_of(text: str) -> Any:
    """Return a module with this source, as the Triton here takes it, which must read a kernel's source from a file."""
    folder = mkdtemp(prefix="pebblesim-")
    path = Path(folder) / "kernels.py"
    path.write_text(releases.here().text(text), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("pebblesim_kernels", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    finalize(module, rmtree, folder, ignore_errors=True)  # it lives as long as the module
    spec.loader.exec_module(module)
    return module


def torch_with_gpu(what: str, *libraries: str) -> Any:
    """Return PyTorch, for something that also needs these libraries and a GPU.

    Raises:
        UsageError: a library is missing, or PyTorch sees no GPU; the message says what needs it.
    """
    try:
        torch, *_ = map(import_module, ("torch", *libraries))
    except ImportError as error:
        found = f"{error.name} is missing: pip install {error.name}" if error.name else f"one cannot be loaded: {error}"
        raise UsageError(f"{what} needs {', '.join(('PyTorch', *libraries))}; {found}.") from None
    if not torch.cuda.is_available():
        raise UsageError(f"{what} needs an NVIDIA GPU that PyTorch sees, and there is none here.")
    return torch
