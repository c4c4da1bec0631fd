"""What launches cost the host: known passes by the library, with a driver that does nothing, and in a graph; on a GPU.

python benchmarks/gpu/launch_costs.py -o FOLDER

FOLDER/launch_costs.json has, for both passes of a causal and of a packed call, microseconds of the least of many short
runs: of the library's pass; of the same with functions that do nothing in the place of the driver's; and of a launch of
the pass as a CUDA graph, whose addresses stay.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import here

from pebblesim.gpu.torch import attention
from pebblesim.operator.known import eager, native


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the file")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    row: dict[str, Any] = {**here(torch)}
    starts = torch.tensor([0, 100, 300, 511], dtype=torch.int32, device="cuda")
    for name, batch, options in (("causal", 2, {"is_causal": True}), ("packed", 1, {"cu_seqlens": starts})):
        x = [torch.randn(batch, 8, 511, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "QKV"]
        made = list[tuple[Any, Any]]()
        _watch(made, lambda x=x, options=options: _both(x, options))
        for way, (one, given) in zip(("forward", "backward"), made[-2:], strict=True):
            row[f"{name}, {way}"] = _costs(one, given)
    (asked.output / "launch_costs.json").write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row, indent=1))


def _both(x: list[Any], options: dict[str, Any]) -> None:
    out = attention(*x, **options)
    torch.autograd.grad(out, x, torch.empty_like(out))


def _watch(made: list[tuple[Any, Any]], call: Callable[[], None]) -> None:
    """Note the passes that the last of several calls makes, and their inputs."""
    found = eager.Known.ready
    for _ in range(4):
        call()

    def watched(self: Any, step: Any) -> Any:
        one = found(self, step)
        made.append((one, step.inputs))
        return one

    eager.Known.ready = watched  # type: ignore[method-assign]
    try:
        with native.paused():
            eager._CHECKED.clear()
            call()
    finally:
        eager.Known.ready = found  # type: ignore[method-assign]


def _costs(one: Any, given: Any) -> dict[str, float]:
    stream = torch.cuda.current_stream().cuda_stream
    kind, by = one._kind, native.library
    launches = [each for each in kind._several.told if each[0] == "launch"]
    _, made = by.found((kind.family(by),), given)
    row: dict[str, float] = {"launches": len(launches), "pass_us": _least(lambda: by.run(made, given, stream))}
    nothing = ctypes.cast(ctypes.CDLL(None).pthread_getconcurrency, ctypes.c_void_p).value  # which gives 0
    there, kind._by = kind._by, _Nothing(kind._by, nothing)
    kind._family = None
    try:
        (_, empty) = by.found((kind.family(by),), given)
        row["nothing_us"] = _least(lambda: by.run(empty, given, stream))
    finally:
        kind._by, kind._family = there, None
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = by.run(made, given, torch.cuda.current_stream().cuda_stream)
    row["graph_us"] = _least(graph.replay)
    del kept
    return row


class _Nothing:
    """A driver that launches nothing, and describes as the real one does."""

    def __init__(self, by: Any, nothing: int | None) -> None:
        assert nothing is not None
        self.addresses = (*[nothing] * 5, by.addresses[5])


def _least(call: Callable[[], Any]) -> float:
    """Microseconds of a call: the least of many runs of eight calls, each of which begins on an idle card."""
    found = list[float]()
    for _ in range(60):
        torch.cuda.synchronize()
        found.append(timeit.timeit(call, number=8) / 8 * 1e6)
    return round(min(found), 2)


if __name__ == "__main__":
    main()
