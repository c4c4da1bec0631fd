"""What `fallback="sdpa"` hands to PyTorch: tensors that its kernels can read, whatever the layout that was given."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

from pebblesim.gpu.torch import attention  # noqa: E402

TYPES = (torch.float16, torch.bfloat16, torch.float32)


def laid_out(shape: tuple[int, ...], dtype: Any, before: int, behind: int, turned: bool) -> Any:
    """Random numbers with some words before them and behind each row; `turned`: rows of all heads side by side."""
    *others, rows, words = shape
    room = torch.randn(*others[:-1], *((rows, others[-1]) if turned else (others[-1], rows)), before + words + behind)
    room = room.to(dtype)[..., before : before + words]
    return room.transpose(-3, -2) if turned else room


@settings(deadline=None, max_examples=60)
@given(
    dtype=st.sampled_from(TYPES),
    d=st.sampled_from((8, 16, 40, 64)),
    n_q=st.integers(1, 9),
    n_k=st.integers(1, 40),
    edges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=3, max_size=3),
    of_mask=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_pytorch_gets_rows_that_begin_at_multiples_of_16_bytes(
    dtype: Any, d: int, n_q: int, n_k: int, edges: list[tuple[int, int, bool]], of_mask: tuple[int, int] | None
) -> None:
    shapes = (2, 2, n_q, d), (2, 2, n_k, d), (2, 2, n_k, d)
    x = [laid_out(shape, dtype, *edge).requires_grad_() for shape, edge in zip(shapes, edges, strict=True)]
    mask = torch.ones(n_q, n_k, dtype=torch.bool)
    if of_mask is not None:
        mask = laid_out((1, n_q, n_k), dtype, *of_mask, turned=False)[0]
    theirs, taken = torch.nn.functional.scaled_dot_product_attention, []

    def seen(*given: Any, **options: Any) -> Any:
        taken.extend(each for each in given if isinstance(each, torch.Tensor))
        return theirs(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
        patch.setattr("warnings.warn", lambda *said, **options: None)
        made = attention(*x, mask, dropout_p=2**-40, fallback="sdpa")  # with dropout it is PyTorch's to compute
    assert len(taken) == 4
    for each in taken:
        assert each.data_ptr() % 16 == 0
        of_rows = [stride for stride, size in zip(each.stride()[:-1], each.shape, strict=False) if size > 1]
        assert each.is_contiguous() or not any(stride * each.element_size() % 16 for stride in of_rows)
    assert torch.allclose(made.float(), theirs(*x, mask).float(), atol=2e-2)
    made.float().sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in x)
