"""Our kernels as an attention processor of diffusers: `vae.set_attn_processor(Processor())`.

It is made for the middle block of a VAE, one head of 512 over all pixels, which PyTorch computes slowly.
"""

from __future__ import annotations

from pebblesim.operator import pytorch as _pytorch  # noqa: F401

# isort: split
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.checks import check_numbers, check_version
from pebblesim.operator.public import attention

NEEDED = "diffusers>=0.30,<1"
"""The versions of diffusers whose layers have what a processor asks them for."""


class Processor:
    """Computes the attention of a layer of diffusers, `diffusers.models.attention_processor.Attention`."""

    def __init__(
        self, *, compute_dtype: torch.dtype | None = None, workspace: int | None = None, fallback: str | None = None
    ) -> None:
        """Make a processor, which any number of layers may share.

        Args:
            compute_dtype: torch.bfloat16 or torch.float16, to which queries, keys and values are rounded; needed on a
                GPU where a layer is in float32. The layer's output keeps its type. If None, nothing is rounded.
            workspace, fallback: as for `attention`.

        Raises:
            UsageError: `attention` does not take an option, or diffusers is here in a version that this is not for.
        """
        check_numbers(None, None, workspace, 0.0, compute_dtype, fallback)
        with suppress(PackageNotFoundError):  # layers may be of anybody who has the like
            check_version("this processor", NEEDED, version("diffusers"))
        self._options: dict[str, Any] = {"compute_dtype": compute_dtype, "workspace": workspace, "fallback": fallback}

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Compute a layer.

        Args:
            attn: the layer.
            hidden_states: (batch, channels, height, width) or (batch, tokens, channels), of which queries are made.
            encoder_hidden_states: (batch, tokens, channels), of which keys and values are made; those of queries if
                None.
            attention_mask: is refused.
            temb: is given to the layer's spatial norm, if it has one.
            others: are refused, unless they are None.

        Returns:
            The layer's output, in the shape of `hidden_states`.

        Raises:
            UsageError: there is a mask or another argument, the layer has keys and values of a second text
                (`add_k_proj`), or `attention` refuses its tensors.
        """
        given = [name for name, each in {"attention_mask": attention_mask, **others}.items() if each is not None]
        if getattr(attn, "add_k_proj", None) is not None:
            given.append("layer with add_k_proj")
        if given:
            raise UsageError(f"this processor takes no {given[0]}; leave this layer with the processor it had.")
        x = hidden_states if attn.spatial_norm is None else attn.spatial_norm(hidden_states, temb)
        image = x.shape[2:] if x.dim() == 4 else None
        x = x if image is None else x.flatten(2).transpose(1, 2)
        x = x if attn.group_norm is None else attn.group_norm(x.transpose(1, 2)).transpose(1, 2)
        source = x if encoder_hidden_states is None else encoder_hidden_states
        if encoder_hidden_states is not None and attn.norm_cross:
            source = attn.norm_encoder_hidden_states(source)
        query, key, value = (
            made.unflatten(-1, (attn.heads, -1)).transpose(1, 2)
            for made in (attn.to_q(x), attn.to_k(source), attn.to_v(source))
        )
        query = query if attn.norm_q is None else attn.norm_q(query)
        key = key if attn.norm_k is None else attn.norm_k(key)
        made = attention(query, key, value, scale=attn.scale, **self._options)
        for each in attn.to_out:  # a linear layer, and dropout
            made = each(made.transpose(1, 2).flatten(2) if made.dim() == 4 else made)
        made = made if image is None else made.transpose(1, 2).unflatten(2, image)
        made = made + hidden_states if attn.residual_connection else made
        return made / attn.rescale_output_factor
