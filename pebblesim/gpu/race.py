"""A race: kernels that come out of our schedules beside every attention that PyTorch has, on this GPU, in one run.

Each contender computes the same attention on the same random arrays, several heads at once. Times are medians of many
runs; operations are the useful ones (4d for each allowed pair forward, 10d backward), so that what is computed twice
does not look efficient. Errors are those of the first head against float64.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pebblesim.errors import Infeasible, UsageError
from pebblesim.gpu.results import load, save
from pebblesim.jobs.count import count
from pebblesim.language import masks
from pebblesim.language.masks import Band
from pebblesim.language.registry import get
from pebblesim.readings.kernels.triton import triton, word_bytes

Row = dict[str, Any]

ENTRIES: Mapping[str, Mapping[str, tuple[tuple[Mapping[str, int], int, int], ...]]] = {
    "forward": {
        "flash2-forward": (
            ({"B_r": 128, "B_c": 128}, 8, 3),
            ({"B_r": 128, "B_c": 64}, 8, 3),
            ({"B_r": 128, "B_c": 64}, 8, 2),
            ({"B_r": 64, "B_c": 32}, 8, 2),
        ),
        "small-cache-forward-blocked": (
            ({"a": 128, "b": 256, "c": 64}, 8, 4),
            ({"a": 256, "b": 128, "c": 64}, 8, 3),
            ({"a": 128, "b": 128, "c": 64}, 8, 3),
        ),
    },
    "backward": {
        "small-cache-backward-blocked": (
            ({"a": 128, "b": 256, "c": 64}, 8, 4),
            ({"a": 256, "b": 128, "c": 64}, 8, 3),
            ({"a": 128, "b": 128, "c": 64}, 8, 3),
        ),
        "backward-two-pass-blocked": (
            ({"B_r": 128, "b_c": 128, "B_c": 128, "b_r": 128}, 8, 2),
            ({"B_r": 64, "b_c": 64, "B_c": 64, "b_r": 64}, 8, 2),
        ),
    },
}
"""Of each way, our schedules with blocks, warps and stages that are tried; the fastest counts."""

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
"""PyTorch's, and what it calls them."""

LARGEST_TABLE = 12 * 2**30
"""Most bytes of scores for which the unfused attention is tried."""


@dataclass(frozen=True)
class Track:
    """What is raced on: sizes, mask and type of a word.

    Attributes:
        way: "forward" or "backward".
        n, d, heads: of the attention; the arrays are (heads, n, d).
        mask: None, or "causal".
        dtype: "bfloat16" or "float16".
    """

    way: str
    n: int
    d: int
    heads: int
    mask: str | None = None
    dtype: str = "bfloat16"
    pairs: int = field(init=False)

    def __post_init__(self) -> None:
        if self.way not in ENTRIES:
            raise UsageError(f"way {self.way!r} was given; a race is forward or backward.")
        if self.mask not in (None, "causal"):
            raise UsageError(f"mask {self.mask!r} was given; PyTorch's attention knows causal, or none.")
        if self.dtype not in ("bfloat16", "float16"):
            raise UsageError(f"words of {self.dtype} were given; a race is in bfloat16 or float16.")
        band = masks.of(self.mask)
        object.__setattr__(self, "pairs", self.n**2 if band is None else band.pairs(self.n))

    @property
    def operations(self) -> int:
        """Useful operations of all heads."""
        return (4 if self.way == "forward" else 10) * self.pairs * self.d * self.heads

    def identity(self, contender: str) -> str:
        """A hash of all that defines a row."""
        text = json.dumps({**asdict(self), "contender": contender}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def race(track: Track, output: Path | None = None, tell: Callable[[Row], None] | None = None) -> list[Row]:
    """Run every contender that `output` does not hold yet; the rows, as they are kept there.

    Args:
        track: what is raced on.
        output: a file of JSON lines, added to after each contender, so that a race that was stopped goes on.
        tell: called with each new row.

    Raises:
        UsageError: there is no PyTorch with a GPU, or no Triton.
    """
    torch = _torch()
    known = {row["id"]: row for row in load(output)} if output else {}
    rows, field_ = [], None
    for contender in (*ENTRIES[track.way], *(f"torch-{name}" for name in BACKENDS)):
        key = track.identity(f"{contender} on {torch.cuda.get_device_name()}")
        if key not in known:
            field_ = field_ or _Field(torch, track)
            known[key] = {"id": key, **asdict(track), "contender": contender, **_run(torch, field_, contender)}
            if output:
                save(output, known.values())
            if tell:
                tell(known[key])
        rows.append(known[key])
    return rows


def _torch() -> Any:
    try:
        import torch
        import triton as _  # noqa: F401
    except ImportError as error:
        raise UsageError(f"a race needs PyTorch and Triton, and {error.name} is not here: pip install torch.") from None
    if not torch.cuda.is_available():
        raise UsageError("a race needs an NVIDIA GPU that PyTorch sees, and there is none here.")
    return torch


class _Field:
    """The arrays of a race, and what they should give in float64."""

    def __init__(self, torch: Any, track: Track) -> None:
        self.torch, self.track = torch, track
        torch.manual_seed(0)
        dtype = getattr(torch, track.dtype)
        shape = (track.heads, track.n, track.d)
        self.arrays = {name: (torch.randn(shape, device="cuda") / track.d**0.25).to(dtype) for name in "QKV"}
        self.arrays["dO"] = torch.randn(shape, device="cuda").to(dtype)
        self.expected = {name: torch.zeros(shape[1:], device="cuda", dtype=torch.float64) for name in self._outputs}
        self.arrays["O"] = torch.empty(shape, device="cuda", dtype=dtype)
        self.arrays["L"] = torch.empty(shape[:2], device="cuda")
        for head in range(track.heads):
            self._head(head)

    @property
    def _outputs(self) -> tuple[str, ...]:
        return ("O",) if self.track.way == "forward" else ("dQ", "dK", "dV")

    def _head(self, head: int, rows: int = 1024) -> None:
        """What the forward pass keeps of a head; of the first one, all outputs in float64."""
        torch, n = self.torch, self.track.n
        kind = torch.float64 if head == 0 else torch.float32
        Q, K, V, dO = (self.arrays[name][head].to(kind) for name in ("Q", "K", "V", "dO"))
        for start in range(0, n, rows):
            part = slice(start, min(start + rows, n))
            S = Q[part] @ K.T
            if self.track.mask:
                S.masked_fill_(torch.arange(n, device="cuda") > torch.arange(n, device="cuda")[part, None], -torch.inf)
            P = torch.softmax(S, 1)
            O = P @ V
            self.arrays["O"][head, part], self.arrays["L"][head, part] = O, torch.logsumexp(S, 1)
            if head:
                continue
            if self.track.way == "forward":
                self.expected["O"][part] = O
                continue
            dS = P * (dO[part] @ V.T - (dO[part] * O).sum(1, keepdim=True))
            self.expected["dQ"][part] = dS @ K
            self.expected["dK"] += dS.T @ Q[part]
            self.expected["dV"] += P.T @ dO[part]

    def errors(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """‖output - expected‖ / ‖expected‖ of the first head."""
        return {
            name: float((outputs[name][0].double() - true).norm() / true.norm()) for name, true in self.expected.items()
        }


def _run(torch: Any, field_: _Field, contender: str) -> Row:
    from triton.testing import do_bench

    def timed(call: Callable[[], Any]) -> Row:
        seconds = do_bench(call, warmup=20, rep=80, return_mode="median") / 1e3
        return {"seconds": seconds, "tflops": field_.track.operations / seconds / 1e12}

    try:
        if contender.startswith("torch-"):
            return _of_torch(torch, field_, contender.removeprefix("torch-"), timed)
        tried = list(_ours(field_, contender, timed))
    except torch.cuda.OutOfMemoryError:
        return {"error": "out of memory"}
    fine = [row for row in tried if "seconds" in row]
    return min(fine, key=lambda row: row["seconds"]) if fine else tried[-1]


def _ours(field_: _Field, name: str, timed: Callable[[Callable[[], Any]], Row]) -> Iterator[Row]:
    track, schedule = field_.track, get(name)
    band = masks.of(track.mask)
    assert band is None or isinstance(band, Band)
    program = schedule.program if band is None else schedule.masked
    order = [tensor for tensor in program.tensors if tensor in program.inputs]
    for blocks, warps, stages in ENTRIES[track.way][name]:
        row: Row = {"blocks": dict(blocks), "warps": warps, "stages": stages}
        try:
            counted = count(name, M=2**40, blocks=blocks, mask=band, n=track.n, d=track.d)
            source = triton(program, {**counted.dims, **blocks}, track.dtype, band, warps=warps, stages=stages)
            run = _module(source.text).run
            arrays = [field_.arrays[tensor] for tensor in order]
            row["errors"] = field_.errors(run(*arrays))
            row |= timed(lambda: run(*arrays))  # noqa: B023 - called before the next iteration
        except (UsageError, Infeasible) as error:
            yield row | {"error": str(error)}
            continue
        except Exception as error:  # Triton's: out of registers, of shared memory
            yield row | {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
            continue
        moved = {"read_bytes": 0, "written_bytes": 0}
        for tensor, (reads, writes) in counted.by_tensor.items():
            width = word_bytes(program.tensors[tensor], track.dtype) * track.heads
            moved["read_bytes"] += width * reads
            moved["written_bytes"] += width * writes
        yield row | moved


def _of_torch(torch: Any, field_: _Field, name: str, timed: Callable[[Callable[[], Any]], Row]) -> Row:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    track = field_.track
    if name == "math" and track.heads * track.n**2 * 2 > LARGEST_TABLE:
        return {"error": "its scores would not fit"}
    Q, K, V = (field_.arrays[each][None].detach().requires_grad_() for each in "QKV")
    attend = torch.nn.functional.scaled_dot_product_attention
    try:
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[name])):
            O = attend(Q, K, V, is_causal=track.mask is not None, scale=1.0)
            if track.way == "forward":
                errors = field_.errors({"O": O[0]})
                return {"errors": errors, **timed(lambda: attend(Q, K, V, is_causal=track.mask is not None, scale=1.0))}

            def back() -> Any:
                return torch.autograd.grad(O, (Q, K, V), field_.arrays["dO"][None], retain_graph=True)

            gradients = dict(zip(("dQ", "dK", "dV"), (each[0] for each in back()), strict=True))
            return {"errors": field_.errors(gradients), **timed(back)}
    except RuntimeError as error:
        return {"error": str(error).splitlines()[0][:120]}


def _module(text: str) -> Any:
    """A module of that text; Triton wants to read the source of a kernel from a file."""
    folder = TemporaryDirectory(prefix="pebblesim-")
    path = Path(folder.name) / "kernels.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("pebblesim_kernels", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.folder = folder  # type: ignore[attr-defined]  # lives as long as the module
    return module
