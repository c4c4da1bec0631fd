"""The list of attention calls while a model runs, and in which module each is; needs PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pebblesim.advice.calls import AttentionCall, Recorded, SeenMask
from pebblesim.explaining import probing

GROUPS = ("num_key_value_groups", "n_rep")
"""Attributes of modules that say how often each head of keys is copied before the call."""


class Recorder:
    """Calls and operations that are found while a model runs.

    Attributes:
        calls: each call with the path of its module.
        other: operations of products outside attention.
        made: what is known of mask tensors by how they were made.
    """

    def __init__(self, model: Any = None) -> None:
        self.calls: list[tuple[str, AttentionCall]] = []
        self.other = 0
        self.made = WeakTensorKeyDictionary()
        self._model = model if isinstance(model, torch.nn.Module) else None
        self._inside: list[tuple[str, Any]] = []
        self._device = ""

    def record(
        self,
        entry: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: SeenMask,
        *,
        probe: probing.Options | None = None,
        rounded: torch.dtype | None = None,
        **others: Any,
    ) -> None:
        """Add a call with tensors (…, heads, n, d).

        Args:
            probe: other arguments of `scaled_dot_product_attention`.
            rounded: the type to which the call rounds tensors of any type.
        """
        heads, kv_heads = (x.shape[-3] if x.dim() > 2 else 1 for x in (q, k))
        path, module = self._inside[-1] if self._inside else ("", None)
        copies = next((n for name in GROUPS if isinstance(n := getattr(module, name, None), int)), 1)
        training = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        off, same_bits = probing.settings()
        dtype, *others_of = (rounded or probing.dtype_of(x) for x in (q, k, v))
        self._device = q.device.type
        probed, why = probing.asked(q, k, v, probe) if probe is not None and q.is_cuda else (None, ())
        call = AttentionCall(
            entry,
            q.shape[:-3].numel(),
            heads,
            kv_heads,
            q.shape[-2],
            k.shape[-2],
            q.shape[-1],
            v.shape[-1],
            str(dtype).removeprefix("torch."),
            mask,
            training,
            copies if copies > 1 and kv_heads == heads and heads % copies == 0 else 1,
            dims=q.dim(),
            alike=len({x.shape[:-3] for x in (q, k, v)}) == 1 and {dtype} == {*others_of},
            plain=all(x.stride(-1) == 1 for x in (q, k, v)),
            off=off,
            deterministic=same_bits,
            probed=probed,
            why=why,
            **others,
        )
        self.calls.append((path, call))

    def result(self) -> Recorded:
        """Return what was found."""
        return Recorded(tuple(self.calls), self.other, self._device, probing.release(), probing.cudnn())

    @contextmanager
    def following(self) -> Iterator[None]:
        """Know in which module each call is: those of the model by their paths, others by their classes."""
        hooks = torch.nn.modules.module
        if self._model is None:
            handles = [
                hooks.register_module_forward_pre_hook(lambda module, x: self._enter(type(module).__name__, module)),
                hooks.register_module_forward_hook(lambda module, x, y: self._leave(), always_call=True),
            ]
        else:
            handles = []
            for name, module in self._model.named_modules():
                handles.append(module.register_forward_pre_hook(lambda module, x, name=name: self._enter(name, module)))
                handles.append(module.register_forward_hook(lambda module, x, y: self._leave(), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._inside.clear()

    def _enter(self, name: str, module: Any) -> None:
        if self._model is None and self._inside:
            name = f"{self._inside[-1][0]}.{name}"
        self._inside.append((name, module))

    def _leave(self) -> None:
        if self._inside:
            self._inside.pop()
