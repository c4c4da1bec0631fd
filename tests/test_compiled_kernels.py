"""Kernels that are offered, compiled for sm_90 without a GPU: no thread spills a register. Needs Triton."""

from __future__ import annotations

import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit.words import is_float32
from pebblesim.gpu.race import Track, fits, source_of
from pebblesim.gpu.tiles import TILINGS, Tiling
from pebblesim.language.registry import get

WAYS = {"forward": "forward", "backward-qkv": "backward"}
OFFERED = [
    (problem, tiling, d)
    for problem, tilings in TILINGS.items()
    for tiling in tilings
    for d in (64, 128, 256, 512)
    if tiling.widths[0] <= d <= tiling.widths[1] and "small-cache-forward" not in tiling.schedule
]


def spilled(kernel: Any, arguments: dict[str, str], warps: int, stages: int, folder: Path) -> int:
    """Stores to local memory in the machine code of a kernel; `arguments`: types of the arguments, by name."""
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(arguments) if arguments[name].startswith("*")}
    source = ASTSource(kernel, signature=arguments, attrs=aligned)
    options = {"num_warps": warps, "num_stages": stages}
    made = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    (folder / "kernel.cubin").write_bytes(made.asm["cubin"])
    tool = Path(compiler.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    listed = subprocess.run([tool, "-c", folder / "kernel.cubin"], capture_output=True, text=True, check=True).stdout
    assert "EXIT" in listed
    return len(re.findall(r"\bSTL\b", listed))


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "tiling", "d"), OFFERED, ids=lambda each: str(each).replace(" ", "-"))
def test_no_kernel_that_is_offered_spills(
    problem: str, tiling: Tiling, d: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For lengths that the tiles divide, without a mask; what a multiprocessor has no room for is not offered."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    track, program = Track(WAYS[problem], 4096, d, 1), get(tiling.schedule).program
    source = source_of(track, tiling)
    try:
        fits(tiling, source, track)
    except UsageError as error:
        assert "fit" in str(error)
        return
    (tmp_path / "kernels.py").write_text(source.text, encoding="utf-8")
    made = spec_from_file_location("kernels", tmp_path / "kernels.py")
    assert made is not None and made.loader is not None
    module, found = module_from_spec(made), {}
    made.loader.exec_module(module)
    for kernel in source.kernels:
        types = ["*fp32" if is_float32(program, program.tensors[name]) else "*bf16" for name in kernel.tensors]
        before, behind = (["i32"] * len(names) for names in kernel.numbers)
        function = getattr(module, kernel.name)
        arguments = dict(zip(function.arg_names, [*before, *types, *behind], strict=True))
        found[kernel.name] = spilled(function, arguments, *tiling.of(kernel.launch.name), tmp_path)
    assert not any(found.values()), found
