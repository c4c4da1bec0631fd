"""Arguments that attention refuses, each in one sentence, and what it leaves behind then."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention, flash_attn_func, flash_attn_varlen_func  # noqa: E402
from pebblesim.operator import checks, definition  # noqa: E402


def refused(*x: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as error:
        attention(*x, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_attention_cannot_do_is_said_in_a_sentence() -> None:
    def tensors(*shapes: tuple[int, ...], dtype: Any = torch.float32) -> list[Any]:
        return [torch.zeros(shape, dtype=dtype) for shape in shapes]

    good = (1, 2, 8, 16)
    x = tensors(good, good, good)
    assert "has no dropout" in refused(*x, dropout_p=0.1)
    assert "dropout_p was given with attn_mask" in refused(*x, attn_mask=torch.ones(8, 8), dropout_p=0.1)
    assert "value is of torch.bfloat16 and query of torch.float32" in refused(*x[:2], x[2].bfloat16())
    assert "is of torch.int32; give bfloat16 or float16" in refused(*tensors(good, good, good, dtype=torch.int32))
    assert "query is of list" in refused([1], *x[1:])
    assert "key is on meta and query on cpu" in refused(x[0], x[1].to("meta"), x[2])
    with FakeTensorMode(allow_non_fake_inputs=True):
        elsewhere = torch.empty(good, device="mps")
        assert "query is on mps:0; give all on one GPU, or the CPU" in refused(elsewhere, elsewhere, elsewhere)
    assert "query is of layout torch.sparse_coo; give a dense tensor" in refused(x[0].to_sparse(), *x[1:])
    ragged = torch.nested.nested_tensor([torch.zeros(2, 3, 16), torch.zeros(2, 5, 16)], layout=torch.jagged)
    assert "query is nested; give a dense tensor, or sequences of several lengths" in refused(ragged, ragged, ragged)
    assert "key and value have 8 and 9 tokens" in refused(*tensors(good, good, (1, 2, 9, 16)))
    assert "head dimensions 16 and 24" in refused(*tensors(good, (1, 2, 8, 24), good))
    one = (1, 1, 8, 16)
    assert "query has 2 heads and key 1" in refused(*tensors(good, one, one))
    assert "a number that divides 2" in refused(*tensors(good, (1, 3, 8, 16), (1, 3, 8, 16)), enable_gqa=True)
    assert "the same number of heads to key and value" in refused(*tensors(good, good, one))
    assert "give (…, heads, tokens" in refused(*tensors((8, 16), (8, 16), (8, 16)))
    many = (40, 2000, 1, 16)
    assert "80,000 heads in all" in refused(*tensors(many, many, many))


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, [1], torch.tensor(0.5)])
@pytest.mark.parametrize("name", ["scale", "softcap", "dropout_p", "workspace", "compute_dtype", "fallback"])
def test_options_of_other_types(name: str, value: Any) -> None:
    x = [torch.zeros(1, 2, 8, 16) for _ in range(3)]
    if value is None and name != "dropout_p":
        attention(*x, **{name: value})
    else:
        assert f"{name} is {value!r}; give" in refused(*x, **{name: value})


def test_masks_that_are_none() -> None:
    x = [torch.zeros(1, 2, 8, 16) for _ in range(3)]
    assert "softcap is -1" in refused(*x, softcap=-1)
    assert "workspace is 1.5" in refused(*x, workspace=1.5)
    assert "workspace is True" in refused(*x, workspace=True)
    assert "compute_dtype is torch.float32" in refused(*x, compute_dtype=torch.float32)
    for wrong in ([0, 8], torch.tensor([0.0, 8.0]), torch.tensor([8]), (torch.tensor([0, 8]),) * 3):
        assert "; give a tensor of integers of shape (sequences + 1,)" in refused(*x, cu_seqlens=wrong)
    assert "cu_seqlens is (of list, of list); give" in refused(*x, cu_seqlens=([0, 8], [0, 8]))
    for starts in ([0, 9, 4, 8], [-3, 4, 8], [2, 4, 8], [0, 4, 9]):
        assert "cu_seqlens must begin with 0, must not decrease, and may go up to the 8 tokens" in refused(
            *x, cu_seqlens=torch.tensor(starts)
        )
    assert "up to the 8 tokens" in refused(*x, cu_seqlens=(torch.tensor([0, 8]), torch.tensor([0, 9])))
    for first, end in ((-1, 8), (0, 9)):
        ranges = torch.full((1, 8), first).int(), torch.full((1, 8), end).int()
        assert "between 0 and the 8 keys" in refused(*x, key_ranges=ranges)
    meta = torch.zeros(1, 8, device="meta")
    for name in ("cu_seqlens", "key_padding_mask", "attn_mask"):
        assert f"{name} is on meta and query on cpu" in refused(*x, **{name: meta})
    assert "key_ranges is on meta" in refused(*x, key_ranges=(meta.int(), meta.int()))


def test_masks_that_pytorch_does_not_take_either() -> None:
    x = [torch.zeros(1, 2, 8, 16) for _ in range(3)]
    yes = torch.ones(8, 8, dtype=torch.bool)
    assert "attn_mask has shape (7, 8), which does not broadcast to (1, 2, 8, 8)" in refused(
        *x, attn_mask=yes[:7], fallback="sdpa"
    )
    assert "attn_mask has shape (7, 8); give one that broadcasts to (1, 2, 8, 8)" in refused(
        *x, attn_mask=yes[:7], fallback="sdpa", dropout_p=0.1
    )
    assert "attn_mask is of torch.int32; give" in refused(*x, attn_mask=yes.int(), fallback="sdpa")
    assert "attn_mask is of str; give" in refused(*x, attn_mask="causal", fallback="sdpa")
    said = refused(*x, attn_mask=yes, fallback="sdpa", return_lse=True, softcap=2.0)
    assert said == (
        'softcap was given with attn_mask, and these kernels do not have both, and fallback="sdpa" has no return_lse; '
        "leave out the one or the other."
    )


def test_a_refused_call_and_a_failing_pass_leave_no_gradient(monkeypatch: Any) -> None:
    x = [torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3)]
    refused(*x, scale=math.nan)
    out = attention(*x)

    def fails(*given: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(definition, "backward", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        out.sum().backward()
    assert all(each.grad is None for each in x)


def test_numbers_that_are_none_stay_in_their_rows() -> None:
    """As with PyTorch's attention: a query with NaN or infinity has no finite result, and others have theirs."""
    x = [torch.randn(1, 2, 8, 16) for _ in range(3)]
    for wrong in (math.nan, math.inf):
        q = x[0].clone()
        q[0, 1, 3, 5] = wrong
        x[1][0, 1, :, 5] = 1.0  # times infinity, and not its negative, which leaves keys out
        made, plain = attention(q, *x[1:]), attention(*x)
        assert not made[0, 1, 3].isfinite().any()
        made[0, 1, 3] = plain[0, 1, 3]
        assert torch.allclose(made, plain, atol=1e-6)


def test_tables_that_do_not_fit_into_the_memory() -> None:
    x = torch.zeros(1).expand(1, 2, 2**22, 16)
    assert "keeps all scores, 131,072 GiB here, and there is less memory; give fewer tokens" in refused(x, x, x)


def test_cards_that_are_too_old(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    checks._too_old.cache_clear()
    assert "Tesla V100 has compute capability 7.0, and kernels need 8.0 or more" in str(
        checks._too_old(torch.device("cuda", 0))
    )
    checks._too_old.cache_clear()


def test_what_only_a_gpu_cannot_do() -> None:
    class OnGpu(torch.Tensor):
        is_cuda = True

    def said(dtype: Any, d: int = 16) -> str:
        x = torch.zeros(1, 1, 2, d, dtype=dtype).as_subclass(OnGpu)
        return str(checks.unsupported(x, x, 0.0, None))

    assert "compute_dtype=torch.bfloat16 to round to it" in said(torch.float32)
    assert "there is a head dimension of 1,025, and kernels are for 1,024 at most" in said(torch.bfloat16, 1025)


def test_limits_of_numbers_are_named() -> None:
    x = [torch.zeros(1, 2, 4, 8)] * 3
    assert "workspace is -1; give a number of bytes from 0 to below 2^63" in refused(*x, workspace=-1)
    assert "window is (-2, 0); give (left, right), numbers of keys" in refused(*x, window=(-2, 0))
    assert "from 0 to below 2^31, or None or -1 where there is no limit" in refused(*x, window=(-2, 0))


def test_shapes_of_flash_attention_are_named_in_its_order() -> None:
    q, wide, more = (torch.zeros(1, 4, heads, d) for heads, d in ((2, 8), (2, 9), (3, 8)))
    order = "which are (batch, tokens, heads, d)"
    for k, v in ((more, more), (wide, q), (q[:, :3], q)):
        with pytest.raises(UsageError) as said:
            flash_attn_func(q, k, v)
        assert order in str(said.value) and str(tuple(k.shape)) in str(said.value)
    for wrong, given in ((q[0], "q has shape (4, 2, 8)"), ([1], "q is of list")):
        with pytest.raises(UsageError) as said:
            flash_attn_func(wrong, q, q)
        assert f"{given}; give a tensor of shape (batch, tokens, heads, d)" in str(said.value)
    with pytest.raises(UsageError, match=r"q has shape .*; give a tensor of shape \(tokens, heads, d\)"):
        flash_attn_varlen_func(q, q, q, None, None)
    for size in (3, ("a", 3), (1, 2, 3), (0.5, 0)):
        with pytest.raises(UsageError, match=r"window_size is .*; give \(left, right\), numbers of keys"):
            flash_attn_func(q, q, q, window_size=size)
    assert flash_attn_func(q, q[:, :, :1], q[:, :, :1], window_size=[2, -5]).shape == q.shape
