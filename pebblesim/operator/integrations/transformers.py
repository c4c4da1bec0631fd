"""Our kernels as an attention of Hugging Face's transformers: `register()`, then `attn_implementation="pebblesim"`.

What a layer's queries see is said by its mask alone (`transformers_masks.Seen`), which is made of transformers' mask
function; a layer's own `sliding_window` and whether it says of itself that it is causal add nothing to it.
"""

from __future__ import annotations

from pebblesim.operator import pytorch as _pytorch  # noqa: F401

# isort: split
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import counted
from pebblesim.operator.checks import check_numbers, check_version
from pebblesim.operator.integrations import transformers_masks as masks
from pebblesim.operator.public import attention

NAME = "pebblesim"

NEEDED = "transformers>=5.4,<6"
"""The versions of transformers whose masks and layers these functions are for."""

REFUSED = {
    "block_indices": "block_indices",
    "cache": "cache",
}
"""Arguments of transformers' layers that these kernels do not have: keys that are chosen block by block, and caches in
pages."""

OWN = {"prepare_dynamic_mask": "masks of numbers that a layer makes itself"}
"""Attributes of layers that these kernels do not have. A layer of Doge leaves our mask out of the one that it makes."""


def register(name: str = NAME, *, fallback: str | None = None, workspace: int | None = None) -> None:
    """Make our attention an `attn_implementation` of transformers.

    Args:
        name: the name of this implementation, which must not be one of transformers' own, nor have "/", "|" or "flash"
            in it.
        fallback, workspace: as for `attention`.

    Raises:
        UsageError: transformers is not here, or has no such interface for attention; or an argument is not allowed.
    """
    check_numbers(None, None, workspace, 0.0, None, fallback)
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, __version__
    except ImportError as error:
        raise UsageError(
            f"register needs transformers, which cannot be imported here ({error}): pip install {NEEDED}."
        ) from None
    check_version("register", NEEDED, __version__)
    _check_name(name, AttentionInterface())
    AttentionInterface.register(name, partial(attend, fallback=fallback, workspace=workspace))
    AttentionMaskInterface.register(name, seen)


def _check_name(name: Any, known: Any) -> None:
    """Check that no other attention has this name: its models would take ours without a word."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"name is {name!r}; give the text that attn_implementation is to be, such as {NAME!r}.")
    ours = getattr(known.get(name), "func", None) is attend
    if name == "eager" or (name in known and not ours):
        raise UsageError(f"name is {name!r}, which transformers has for an attention of its own; give another name.")
    if (part := next((part for part in ("/", "|", "flash") if part in name), None)) is not None:
        raise UsageError(
            f"name is {name!r}, and transformers looks elsewhere for an attention whose name has {part!r}; give "
            "another name."
        )


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    *,
    fallback: str | None = None,
    workspace: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers.

    Args:
        module: the layer.
        query, key, value: (batch, heads, n, d), with fewer KV heads if they are shared.
        attention_mask: what `seen` returned; a dense mask, of booleans or numbers; or None: then a layer that
            is causal has as many queries as keys, or one, and others see all keys.
        dropout, scaling, sliding_window, softcap, is_causal: as transformers gives them. With a mask, `sliding_window`
            and `is_causal` are not looked at.
        s_aux: sinks, a number for each head; a layer that has sinks hands them over.
        position_bias: numbers that are added to scores, of a shape that broadcasts to (batch, heads, n_q, n_k).
        sinks: sinks that differ from query to query, (batch, heads, n_q, 1).
        indices: keys that were chosen one by one for each query, (batch, n_q, several): no others are seen.
        fallback, workspace: as for `attention`.
        others: those of `REFUSED` are.

    Returns:
        (batch, n, heads, d), and None for the probabilities.

    Raises:
        UsageError: the kernels do not support this layer.
    """
    asked = [what for name, what in REFUSED.items() if others.get(name) is not None]
    asked += (
        ["sinks that a layer keeps to itself"] if s_aux is None and getattr(module, "sinks", None) is not None else []
    )
    asked += [what for name, what in OWN.items() if getattr(module, name, None) is not None]
    if asked:
        what = asked[0]
        raise UsageError(f"the pebblesim attention has no {what}; give this model another attn_implementation.")
    if dropout and fallback is None:
        raise UsageError(
            f"this layer has a dropout of {dropout}, and the pebblesim attention has none; set "
            'config.attention_dropout=0, or register(fallback="sdpa").'
        )
    n_q, n_k = query.shape[-2], key.shape[-2]
    if isinstance(attention_mask, masks.Seen):
        mask = attention_mask.options(n_q, n_k, query.device)
    elif attention_mask is not None:
        mask = {"attn_mask": attention_mask}
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = {"is_causal": _triangle(n_q, n_k, sliding_window) if causal else False}
    if indices is not None:
        only = query.new_zeros((*indices.shape[:2], n_k), dtype=torch.bool).scatter(-1, indices.long(), True)[:, None]
        mask |= {"attn_mask": only if "attn_mask" not in mask else _both(mask["attn_mask"], only)}
    if position_bias is not None:
        mask |= _added(position_bias, mask.get("attn_mask"), fallback)
    made = attention(
        query,
        key,
        value,
        scale=scaling,
        enable_gqa=True,
        dropout_p=dropout,
        softcap=softcap,
        sinks=s_aux,
        fallback=fallback,
        workspace=workspace,
        return_lse=sinks is not None,
        **mask,
    )
    if sinks is not None:
        out, lse = made
        made = (out * torch.sigmoid(lse[..., None] - sinks)).to(out.dtype)
    return made.transpose(1, 2).contiguous(), None


def _both(dense: Tensor, only: Tensor) -> Tensor:
    """A dense mask, of booleans or numbers, where some keys alone are seen."""
    return dense & only if dense.dtype == torch.bool else dense.masked_fill(~only, -torch.inf)


def _added(position_bias: Tensor, dense: Tensor | None, fallback: str | None) -> dict[str, Any]:
    """A bias, and perhaps a dense mask beside it, as `attention` takes them: as one mask where it has a fallback."""
    if fallback is None:
        return {"bias": position_bias}
    if dense is None:
        return {"attn_mask": position_bias}
    return {
        "attn_mask": torch.where(dense, position_bias, -torch.inf)
        if dense.dtype == torch.bool
        else position_bias + dense
    }


def _triangle(n_q: int, n_k: int, window: int | None) -> bool:
    """Whether a causal layer without a mask leaves out keys: one query, the last, sees all.

    Raises:
        UsageError: which keys the queries see is not known.
    """
    if window is not None and n_k > window:
        raise UsageError(
            f"a layer with a window of {counted(window)} tokens came without a mask, and has {counted(n_k)} keys; give "
            "this model another attn_implementation."
        )
    if n_q not in (1, n_k):
        raise UsageError(
            f"a causal layer of {counted(n_q)} queries and {counted(n_k)} keys came without a mask, which would say "
            "where the queries are; give this model another attn_implementation."
        )
    return n_q > 1


def seen(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: Any = "cpu",
    config: Any = None,
    **others: Any,
) -> Any:
    """A mask function of transformers: the keys that each query may see.

    Args:
        batch_size, q_length, kv_length, q_offset, kv_offset: sizes of the pairs, and positions of the first of them.
        mask_function: whether a query may see a key, by (batch, head, query, key); causal if None.
        attention_mask: (batch, tokens) booleans, False where a token is padding.
        allow_is_causal_skip, allow_is_bidirectional_skip: one is set where the mask function is a plain one. The
            function says itself what it is; only torch.compile is kept from those that index tensors with positions.
        use_vmap: as transformers has it.
        device: of the mask.
        config: the model's.
        others: are not used.

    Returns:
        `Seen`; or booleans (batch, 1, q_length, kv_length), a dense mask, if the keys of some query have holes, or
        begin or end earlier for a later query.

    Raises:
        UsageError: the model's layers ask for no attention by its name, and would take this for numbers.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    _check_layers(type(config))

    mask_function = causal_mask_function if mask_function is None else mask_function

    def dense(start: int, number: int) -> Tensor:
        """The mask of some queries, as transformers makes it."""
        return sdpa_mask(
            batch_size=batch_size,
            q_length=number,
            kv_length=kv_length,
            q_offset=q_offset + start,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=use_vmap,
            device=device,
        )

    shape = (batch_size, 1, q_length, kv_length)
    simple = allow_is_causal_skip or allow_is_bidirectional_skip or not torch.compiler.is_compiling()
    band = masks.band_of(mask_function) if simple else None
    padding = _padding(attention_mask, kv_length, kv_offset)
    try:
        if band is not None and padding is None and isinstance(q_offset, int):
            return masks.Seen(shape, band.moved(q_offset - kv_offset), None, device)
        if band is not None:
            ranges = masks.ranges_of_band(band, q_length, kv_length, q_offset - kv_offset, device)
            if padding is not None:
                first, end = (each[:, None] for each in masks.ranges_of(padding))
                ranges = torch.maximum(ranges[0], first), torch.minimum(ranges[1], end)
        else:
            step = max(1, masks.AT_ONCE // (kv_length * batch_size))
            found = [
                masks.ranges_of(dense(start, min(step, q_length - start))[:, 0]) for start in range(0, q_length, step)
            ]
            ranges = masks.rising(*(torch.cat(each, 1) for each in zip(*found, strict=True)))
    except masks.Holes:
        return dense(0, q_length)
    return masks.Seen(shape, None, tuple(each.expand(batch_size, q_length).contiguous() for each in ranges))


def _check_layers(kind: type) -> None:
    """Check, by a configuration, that the code of its model asks for an attention by name, if it is transformers' own.

    transformers itself looks for this in `set_attn_implementation`, but not where a model is made.
    """
    where = kind.__module__
    code = sys.modules.get(where.replace("configuration_", "modeling_")) if where.startswith("transformers.") else None
    if code is None or hasattr(code, "ALL_ATTENTION_FUNCTIONS"):
        return
    if any("Attention" in name and getattr(it, "__module__", "") == code.__name__ for name, it in vars(code).items()):
        raise UsageError(
            f"a model of {kind.__name__} computes attention itself, and takes no other one; leave out "
            "attn_implementation (docs/transformers-models.md)."
        )


def _padding(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """(batch, kv_length) booleans, False for padding, as which keys count that the mask does not speak of.

    None if no key is padding, which is not asked while a graph is made.
    """
    if attention_mask is None:
        return None
    missing = max(0, kv_length + kv_offset - attention_mask.shape[-1])
    padding = torch.nn.functional.pad(attention_mask.bool(), (0, missing))[:, kv_offset : kv_offset + kv_length]
    return None if masks.may_look(padding) and bool(padding.all()) else padding
