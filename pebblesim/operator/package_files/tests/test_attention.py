"""FlashAttention's contract: shapes, masks aligned at the end, errors of at most twice those of PyTorch in one type."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

BUILT = Path(__file__).resolve().parents[1] / "build" / "torch-cuda"


def load():
    name = json.loads((BUILT / "metadata.json").read_text())["id"]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BUILT / "__init__.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


kernels = load()
device = "cuda" if torch.cuda.is_available() else "cpu"


def reference(q, k, v, causal, window):
    """Attention with a table of all scores, in the type of its matrices."""
    n_q, n_k = q.shape[1], k.shape[1]
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    apart = torch.arange(n_k, device=q.device) - torch.arange(n_q, device=q.device)[:, None] - (n_k - n_q)
    seen = torch.ones_like(apart, dtype=torch.bool)
    if causal:
        seen &= apart <= 0
    if window[0] >= 0:
        seen &= apart >= -window[0]
    if window[1] >= 0:
        seen &= apart <= window[1]
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, -1).nan_to_num()
    return torch.einsum("bhqk,bkhd->bqhd", weights.to(v.dtype), v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d", [$widths])
@pytest.mark.parametrize("shared", [$shared])
@pytest.mark.parametrize(("causal", "window"), [(False, (-1, -1)), (True, (-1, -1)), (False, (33, 0)), (True, (7, 5))])
@pytest.mark.parametrize(("n_q", "n_k"), [(128, 128), (113, 203), (1, 239), (256, 131)])
def test_errors_are_at_most_twice_those_of_pytorch(dtype, d, shared, causal, window, n_q, n_k):
    torch.manual_seed(n_q)
    shapes = (2, n_q, 2 * shared, d), (2, n_k, 2, d), (2, n_k, 2, d)
    given = [torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in shapes]
    grad = torch.randn(shapes[0], device=device).to(dtype)

    def made(function, kind):
        x = [each.detach().to(kind).requires_grad_() for each in given]
        out = function(*x)
        return [out.detach(), *torch.autograd.grad(out, x, grad.to(kind))]

    ours = made(lambda q, k, v: kernels.flash_attn_func(q, k, v, causal=causal, window_size=window), dtype)
    plain = made(lambda q, k, v: reference(q, k, v, causal, window), dtype)
    exact = made(lambda q, k, v: reference(q, k, v, causal, window), torch.float64)
    for mine, theirs, true in zip(ours, plain, exact):
        assert mine.shape == true.shape and mine.dtype == dtype
        least = 2 * (true + 0.3 - 0.3 - true).abs().max().item() + 1e-5
        assert (mine - true).abs().max().item() <= 2 * (theirs - true).abs().max().item() + least


def test_packed_sequences_are_sequences_apart():
    starts = torch.tensor([0, 13, 13, 61, 100], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(100, 2, $first, device=device).bfloat16() for _ in range(3))
    out = kernels.flash_attn_varlen_func(q, k, v, starts, starts, 48, 48, causal=True)
    for first, end in zip(starts.tolist(), starts.tolist()[1:]):
        alone = kernels.flash_attn_func(*(x[None, first:end] for x in (q, k, v)), causal=True)
        assert (out[first:end] - alone[0]).abs().max().item() < 2e-2 if end > first else True


@pytest.mark.parametrize("asked", [{"dropout_p": 0.1}, {"alibi_slopes": torch.ones(2)}, {"softcap": 30.0}])
def test_what_is_not_supported_is_one_sentence(asked):
    x = torch.randn(1, 8, 2, $first, device=device).bfloat16()
    with pytest.raises(Exception, match="give|leave"):
        kernels.flash_attn_func(x, x, x, **asked)
