"""Our kernels as an attention of Hugging Face's transformers: `register()`, then `attn_implementation="pebblesim"`.

transformers describes masks by functions of a query and a key. Where such a function is a causal mask or a sliding
window, the kernels need nothing else; where it is another one (padding, packed sequences, caches of fixed size, images
that look both ways), the range of keys of each query is found from it, block by block.
"""

from __future__ import annotations

from pebblesim.gpu.torch import pytorch as _pytorch  # noqa: F401

# isort: split
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.gpu.torch.masks import promise
from pebblesim.gpu.torch.public import attention

NAME = "pebblesim"

AT_ONCE = 2**24
"""Pairs of a mask that are looked at together."""


def register(name: str = NAME, *, fallback: str | None = None, workspace: int | None = None) -> None:
    """Make our attention an `attn_implementation` of transformers.

    Args:
        name: the name of this implementation.
        fallback, workspace: as for `attention`.

    Raises:
        UsageError: transformers is not here, or has no interface for attention.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise UsageError(
            f"register needs transformers 5, and there is none here ({error}): pip install transformers."
        ) from None
    AttentionInterface.register(name, partial(attend, fallback=fallback, workspace=workspace))
    AttentionMaskInterface.register(name, ranges)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    *,
    fallback: str | None = None,
    workspace: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers.

    Args:
        module: the layer, which says whether it is causal.
        query, key, value: (batch, heads, n, d), with fewer heads of keys and values if they are shared.
        attention_mask: what `ranges` returned, or None: then a causal layer's last query is at the last key, and
            `sliding_window` holds.
        dropout, scaling, sliding_window, softcap, is_causal: as transformers gives them.
        fallback, workspace: as for `attention`.
        others: `position_bias` and `s_aux` (sinks) are refused.

    Returns:
        (batch, n, heads, d), and None for the probabilities.

    Raises:
        UsageError: the kernels do not support this layer.
    """
    for each in ("position_bias", "s_aux"):
        if others.get(each) is not None:
            raise UsageError(f"the pebblesim attention has no {each}; give this model another attn_implementation.")
    mask: dict[str, Any] = {}
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal:
            window = None if sliding_window is None else (sliding_window - 1, 0)
            mask = {"is_causal": True, "align": "end", "window": window}
    elif attention_mask.dtype == torch.int32:
        mask = {"key_ranges": (attention_mask[:, 0, :, 0], attention_mask[:, 0, :, 1])}
    else:
        mask = {"attn_mask": attention_mask[..., : key.shape[-2]]}
    out = attention(
        query,
        key,
        value,
        scale=scaling,
        enable_gqa=True,
        dropout_p=dropout,
        softcap=softcap,
        fallback=fallback,
        workspace=workspace,
        **mask,
    )
    return out.transpose(1, 2).contiguous(), None


def ranges(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    **others: Any,
) -> Tensor | None:
    """A mask function of transformers: None where causality and a window say all, else the keys that a query may see.

    Args:
        batch_size, q_length, kv_length, q_offset, kv_offset: sizes of the pairs, and positions of the first of them.
        mask_function: whether a query may see a key, by (batch, head, query, key).
        attention_mask: (batch, tokens) booleans, False where a token is padding.
        allow_is_causal_skip: the mask function is causal, or a causal window.
        allow_is_bidirectional_skip: the mask function allows all.
        device: of the mask.
        others: are not used.

    Returns:
        None, or int32 of shape (batch, 1, q_length, 2): the first key of each query, and the one after its last.

    Raises:
        UsageError: the keys of some query are not all those between two keys, or the ranges decrease.
    """
    assert mask_function is not None
    padding = _padding(attention_mask, kv_length, kv_offset)
    still = not torch.compiler.is_compiling()
    at_end = isinstance(q_offset, int) and q_length + q_offset == kv_length + kv_offset
    if (allow_is_bidirectional_skip or (allow_is_causal_skip and at_end)) and (
        padding is None or (still and bool(padding.all()))
    ):
        return None
    batches = torch.arange(batch_size, device=device)[:, None, None, None]
    keys = torch.arange(kv_length, device=device)[None, None, None, :]
    found = []
    for start in range(0, q_length, step := max(1, AT_ONCE // (kv_length * batch_size))):
        queries = torch.arange(start, min(start + step, q_length), device=device)[None, None, :, None]
        allowed = mask_function(batches, torch.zeros_like(batches), queries + q_offset, keys + kv_offset)
        if padding is not None:
            allowed = allowed & padding[:, None, None, :]
        found.append(_range(allowed.expand(batch_size, 1, queries.shape[2], kv_length), kv_length))
    return _rising(torch.cat(found, 2))


def _padding(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """(batch, kv_length) booleans; keys beyond those that the mask speaks of are padding."""
    if attention_mask is None:
        return None
    missing = max(0, kv_length + kv_offset - attention_mask.shape[-1])
    return torch.nn.functional.pad(attention_mask.bool(), (0, missing))[:, kv_offset : kv_offset + kv_length]


def _range(allowed: Tensor, n_k: int) -> Tensor:
    """The first allowed key of each row, and the one after the last; 0 and 0 if there is none."""
    number = allowed.sum(-1, dtype=torch.int32)
    first = allowed.to(torch.uint8).argmax(-1).int()
    end = torch.where(number > 0, n_k - allowed.flip(-1).to(torch.uint8).argmax(-1).int(), 0)
    _say(number == end - first, "a query sees keys with others between them that it does not see")
    return torch.stack((first, end), -1)


def _rising(found: Tensor) -> Tensor:
    """Ranges that do not decrease: queries without a key are put between others."""
    none = found[..., 1] == 0
    first, end = found[..., 0], found[..., 1]
    last = torch.cummax(torch.where(none, 0, end), -1).values
    first, end = torch.where(none, last, first), torch.where(none, last, end)
    rising = torch.stack((torch.cummax(first, -1).values, end), -1)
    _say((rising[..., 0] == first) & (end == last), "the keys that queries see begin or end earlier for a later query")
    return rising


def _say(holds: Tensor, what: str) -> None:
    sentence = f"the pebblesim attention does not support this mask, in which {what}; take another attn_implementation."
    if not torch.compiler.is_compiling() and not (holds.is_cuda and torch.cuda.is_current_stream_capturing()):
        if not holds.all():
            raise UsageError(sentence)
        return
    promise(holds, sentence)
