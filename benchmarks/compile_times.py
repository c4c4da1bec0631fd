"""CPU seconds that kernels of first calls take to compile, one by one, for Hopper, on a machine without a GPU.

    python benchmarks/compile_times.py -o FILE [--table]

Each kind of call of `attention` with gradients is gone through in a process of its own up to its launches, and each
kernel that it would launch is compiled by Triton alone. A row has each kernel's seconds by stage, those of the
assembler's process, too, and lines of machine code. What is there is not measured again; `--table` prints the table of
docs/host-time.md. Needs PyTorch, and Triton 3.6.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

MASKS = ("causal", "none", "packed", "16 heads on 2, causal")

KINDS = [(d, n, mask) for n in (2047, 16384) for d in (64, 128, 256, 512) for mask in MASKS[: 4 if n < 4096 else 2]]
"""Head dimension, tokens, and mask; four heads, but where the mask says otherwise."""


def seconds() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Timer:
    """Stands in for Triton's timer, with CPU seconds."""

    def __init__(self) -> None:
        self.marks = [("", seconds())]

    def finished_ir_initialization(self) -> None:
        """The front end is done."""
        self.stage_finished("front")

    def stage_finished(self, stage: str) -> None:
        """A stage is done."""
        self.marks.append((stage, seconds()))

    def end(self) -> dict[str, float]:
        """Seconds by stage."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return {stage: round(end - begin, 3) for (_, begin), (stage, end) in pairs}


def stand_in(torch: Any) -> None:
    """Let tensors of the CPU take the way of a card up to its launches."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from pebblesim.advice import cards
    from pebblesim.operator.launching import compiling, launching, layout

    there = {"device": lambda: 0, "target": lambda: GPUTarget("cuda", 90, 32), "stream": lambda device: 0}
    driver.set_active(SimpleNamespace(**{f"get_current_{name}": each for name, each in there.items()}))
    torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream = (lambda: 0), (lambda device: 0)
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=132)
    launching.card_of, layout.on_gpu = (lambda *given: cards.card("H200")), (lambda x: True)
    launching._is_short = lambda *given: False
    compiling._Threads.give_launchers = lambda self: None


def kernels(d: int, n: int, mask: str) -> list[dict[str, Any]]:
    """The kernels of a kind of call, with CPU seconds by stage."""
    import torch
    from triton import knobs
    from triton.compiler import compiler

    from pebblesim.operator.known import eager
    from pebblesim.operator.launching import compiling
    from pebblesim.operator.masks import Asked

    stand_in(torch)
    found, waiting = list[dict[str, Any]](), list[tuple[Any, Future[Any]]]()

    def submit(self: Any, compiled: Any, *given: Any) -> Future[Any]:
        waiting.append((compiled, Future()))
        return waiting[-1][1]

    def heard(*, src: Any, times: dict[str, float], metadata_group: dict[str, str], **rest: Any) -> None:
        text = next(Path(path) for name, path in metadata_group.items() if name.endswith(".ptx"))
        found.append({"kernel": src.name, **times, "lines": len(text.read_text(encoding="utf-8").splitlines())})

    mode = compiling._mode()
    leave = mode.__exit__

    def one_by_one(self: Any, *failed: Any) -> None:
        compiler.CompileTimer, knobs.compilation.listener = Timer, heard
        for compiled, future in waiting:
            future.set_result(compiled())
        leave(self, *failed)

    compiling._Threads.submit, mode.__exit__ = submit, one_by_one
    heads = (16, 2, 2) if "on" in mask.split() else (4, 4, 4)
    q, k, v = (torch.randn(1, each, n, d, dtype=torch.bfloat16).requires_grad_() for each in heads)
    causal = "causal" in mask
    ranges = [torch.full((1, n), each, dtype=torch.int32) if mask == "packed" else None for each in (0, n)]
    asked = Asked(*ranges, None, 0 if causal else None, False, d**-0.5, 0.0, None, False)
    eager.compile_for(q, k, v, None, asked)
    return found


STAGES = {"front end": ("front",), "passes": ("ttir", "ttgir"), "LLVM": ("llir",), "PTX": ("ptx",), "ptxas": ("cubin",)}
"""Stages of Triton's compiler, as a table names them."""


def total(kernel: dict[str, Any], stages: Any = None) -> float:
    """Seconds of a kernel's stages, or of some."""
    names = [name for each in STAGES.values() for name in each] if stages is None else stages
    return float(sum(kernel.get(name, 0.0) for name in names))


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of a table: of each kind its longest kernel, and all others together."""
    head = ["d", "tokens", "mask", "kernels", "the longest", *STAGES, "all others"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for row in rows:
        longest = max(row["kernels"], key=total)
        others = sum(map(total, row["kernels"])) - total(longest)
        cells = [str(row["d"]), f"{row['n']:,}", row["mask"], str(len(row["kernels"]))]
        cells += [f"{longest['kernel']}, {total(longest):.2f}"]
        cells += [f"{total(longest, names):.2f}" for names in STAGES.values()] + [f"{others:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Append rows, each from a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="the file of rows")
    parser.add_argument("--table", action="store_true", help="print the table of the rows that are there")
    parser.add_argument("--kind", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.kind:
        print(json.dumps(kernels(*asked.kind)))
        return
    rows = [json.loads(line) for line in asked.output.read_text().splitlines()] if asked.output.exists() else []
    if asked.table:
        print("\n".join(table(rows)))
        return
    known = [(row["d"], row["n"], row["mask"]) for row in rows]
    for d, n, mask in (kind for kind in KINDS if kind not in known):
        with TemporaryDirectory() as folder:
            given = [sys.executable, __file__, "--kind", json.dumps([d, n, mask])]
            environment = os.environ | {"TRITON_CACHE_DIR": folder}
            said = subprocess.run(given, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
        row = {"d": d, "n": n, "mask": mask, "kernels": json.loads(said.splitlines()[-1])}
        with asked.output.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        print(f"d = {d}, n = {n}, {mask}: {sum(map(total, row['kernels'])):.2f} s", flush=True)


if __name__ == "__main__":
    main()
