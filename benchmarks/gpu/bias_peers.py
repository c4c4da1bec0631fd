"""Who computes attention with a bias that sequences share: ours, PyTorch's kernels, and others that are installed.

A call takes Q, K and V, (sequences, heads, n, d), and the bias, (1, heads, n, n), and returns O; gradients are those of
autograd. "sdpa" is PyTorch's attention with the bias expanded to all sequences, "flex" FlexAttention with a captured
bias, whose gradient is added up by atomic additions, and "atomic" our own kernels with dB added up so in the kernel of
dQ. "openfold3 VERSION" are the Triton kernels of that release of openfold3, which adds up dB by atomic additions up to
0.4.1 and dQ from 0.5.0 on; they are read from a file `evoformer.py` of its wheel. "cuequivariance" is NVIDIA's
triangle_attention, where cuequivariance_ops_torch is installed.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

D = 32

Call = Callable[[Any, Any, Any, Any], Any]

MOST_OF_SDPA = 24 * 2**30
"""Bytes of an expanded bias and its gradient up to which PyTorch's attention is timed."""


def contenders(sequences: int, heads: int, n: int, openfold: dict[str, Path]) -> dict[str, Call]:
    """The calls that may compute a layer, by name; `openfold`: files with kernels, by release."""
    found: dict[str, Call] = {"ours": ours, "atomic": _atomic, "flex": _flex()}
    if 4 * sequences * heads * n * n <= MOST_OF_SDPA:
        found["sdpa"] = _dense
    found |= {f"openfold3 {release}": partial(_openfold, path) for release, path in openfold.items()}
    if importlib.util.find_spec("cuequivariance_ops_torch"):
        found["cuequivariance"] = _cuequivariance
    return found


def ours(q: Any, k: Any, v: Any, b: Any) -> Any:
    """`attention`, as a user calls it."""
    from pebblesim.gpu.torch import attention

    return attention(q, k, v, bias=b)


def _openfold(path: Path, q: Any, k: Any, v: Any, b: Any) -> Any:
    """Kernels of openfold3, which take (batch, sequences, n, heads, d): no copy of these, which are views of such."""
    apply, mask = _evoformer(path), _no_mask(q.shape[0], q.shape[2], q.dtype, q.device)
    return apply(*(x.transpose(1, 2)[None] for x in (q, k, v)), mask, b[None])[0].transpose(1, 2)


@cache
def _evoformer(path: Path) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"evoformer_{path.parent.name.replace('.', '_')}", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    warnings.filterwarnings("ignore", message=".*non-HIP")
    apply: Callable[..., Any] = module.TritonEvoformer
    return apply


@cache
def _no_mask(sequences: int, n: int, dtype: Any, device: Any) -> Any:
    """A mask that leaves no key out, which these kernels read for each sequence."""
    import torch

    return torch.zeros(1, sequences, 1, 1, n, dtype=dtype, device=device)


def _cuequivariance(q: Any, k: Any, v: Any, b: Any) -> Any:
    from cuequivariance_ops_torch import triangle_attention

    return triangle_attention(q[None], k[None], v[None], b[None])[0]


def _dense(q: Any, k: Any, v: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, b.expand(q.shape[0], -1, -1, -1))


@cache
def _flex() -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)

    def attend(q: Any, k: Any, v: Any, b: Any) -> Any:
        bias = b[0]
        return compiled(q, k, v, score_mod=lambda score, batch, h, i, j: score + bias[h, i, j])

    return attend


def _atomic(q: Any, k: Any, v: Any, b: Any) -> Any:
    return _with_atomics().apply(q, k, v, b)


@cache
def _with_atomics() -> Any:
    """Our kernels of one sequence at a time, in tiles of 64 x 64, with dB added up in memory by the kernel of dQ."""
    import torch

    from pebblesim.operator.bias import bias as kernels, launches, pairs, programs

    alone = {("16 bits", 64): programs.tilings(*[(1, 64, 64, 4, 3)] * 4)}

    @cache
    def module(n: int, scale: float, dtype: str) -> Any:
        from pebblesim.kernels.triton.triton import triton
        from pebblesim.operator.launching.launching import running

        made = alone["16 bits", 64].of_queries
        sizes = {"n_q": 2**14, "n_k": 2**14, "d_k": D, "d_v": D, **made.tiling.blocks}
        program, options = programs.program(programs.OF_QUERIES, made), programs.launched(made.tiling)
        source = triton(program, sizes, dtype, scale=scale, far=False, shared=1, **options)
        return running(with_atomics(source.text), tuple(each.name for each in source.kernels))

    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, b: Any) -> Any:
            ctx.asked = pairs.Limits(q.shape[0], None, None, False, q.shape[-1] ** -0.5)
            out = torch.empty_like(q)
            with patch.object(programs, "TILINGS", alone):
                lse = kernels.forward(q, k, v, b[None], None, out, ctx.asked)
            ctx.save_for_backward(q, k, v, b, out, lse)
            return out

        @staticmethod
        def backward(ctx: Any, dO: Any) -> Any:
            q, k, v, b, out, lse = ctx.saved_tensors
            dB = torch.zeros(b.shape[1:], dtype=torch.float32, device=b.device)
            made = tuple(map(torch.empty_like, (q, k, v)))
            with patch.object(programs, "TILINGS", alone):
                met = pairs.meet(q, k, v, b[None], None, ctx.asked, True)
                L, dO, scale = lse.flatten(0, 1), dO.contiguous(), ctx.asked.scale
                run = module(q.shape[2], scale, str(q.dtype).removeprefix("torch.")).run
                sums = run(dB, q, k, v, dO, out, L, met.bias, results={"dQ": made[0]})["v"]
                given = {"Q": q, "K": k, "V": v, "dO": dO, "L": L, "bias_T": met.transposed, "v": sums}
                launches.run(programs.ACROSS, met, given, dict(zip(("dK", "dV"), made[1:], strict=True)))
            return *made, dB.to(b.dtype)[None]

    return Passes


def with_atomics(text: str) -> str:
    """The text of the kernels of dQ, in which each dS is added to dB; tiles divide the lengths."""
    place = "dB_ptr + own * dB_head + at_i[:, None] * dB_row + at_j[None, :]"
    adding = rf'\1\2\n\1tl.atomic_add({place}, dS, sem="relaxed")'
    text, found = re.subn(r"^( +)(dS = P \* .*)$", adding, text, count=1, flags=re.M)
    assert found, "no line of the kernel makes dS"
    text = text.replace("def dQ(", "def dQ(dB_ptr, dB_head, dB_row, ").replace("def run(", "def run(dB_ptr, ")
    return re.sub(r"^( +dQ\[.*\]\()", r"\1dB_ptr, dB_ptr.stride(0), dB_ptr.stride(1), ", text, count=1, flags=re.M)
