"""An attention call: its sizes, its mask and where it is, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KINDS = ("none", "causal", "window", "padding", "bias", "dense", "unknown")
"""Kinds of masks: bands; keys left out for all queries; numbers that are added; other pairs; pairs without values."""


@dataclass(frozen=True)
class SeenMask:
    """The mask of a call.

    Attributes:
        kind: one of `KINDS`.
        left, right: limits of j - i, counted from the first query and the first key; None for no limit.
        given: whether it is a tensor of the call, and not a flag of it.
        shape: of this tensor; () if there is none.
        boolean: whether the tensor holds booleans.
        gradient: whether a gradient of the tensor is asked for.
        plain: whether its rows lie in memory as words side by side.
        also: other kinds that are joined with it, such as "padding"; several with " + " between them.
    """

    kind: str = "none"
    left: int | None = None
    right: int | None = None
    given: bool = False
    shape: tuple[int, ...] = ()
    boolean: bool = False
    gradient: bool = False
    plain: bool = True
    also: str = ""

    @property
    def kinds(self) -> set[str]:
        """All kinds that are joined here."""
        return {self.kind, *filter(None, self.also.split(" + "))}

    def __str__(self) -> str:
        name = self.kind
        if self.kind == "window" and self.left is not None:
            name = f"window {self.left + 1}" if self.right == 0 else f"window {self.left}:{self.right}"
        return (f"{name} + {self.also}" if self.also else name) + (" tensor" if self.given else "")


@dataclass(frozen=True)
class AttentionCall:
    """One attention, as a model calls it.

    Attributes:
        entry: "sdpa", "flex_attention", "flash_attn", "eager" (a product, a softmax, a product) or "pebblesim".
        batch, heads, kv_heads, n_q, n_k, d_k, d_v: its sizes, as they are handed over.
        dtype: type of the words of the queries, such as "bfloat16".
        mask: its mask.
        training: whether gradients are asked for.
        repeated: number of times that each head of keys was copied before the call, as the module says; 1 if not.
        enable_gqa: whether the call itself shares heads of keys.
        dropout: probability.
        dims: dimensions of the tensors; fused kernels of PyTorch need 4.
        alike: whether batches and types of queries, keys and values are the same.
        plain: whether the rows of queries, keys and values lie in memory as words side by side.
        softcap: whether scores are capped.
        sinks: whether there are sinks.
        deterministic: whether deterministic algorithms are asked for.
        off: backends of PyTorch that are switched off.
        probed: the backend that PyTorch said it takes, on the card that is here; None if it was not asked.
        why: what PyTorch said against the backends before it, by backend.
    """

    entry: str
    batch: int
    heads: int
    kv_heads: int
    n_q: int
    n_k: int
    d_k: int
    d_v: int
    dtype: str
    mask: SeenMask = field(default_factory=SeenMask)
    training: bool = False
    repeated: int = 1
    enable_gqa: bool = False
    dropout: float = 0.0
    dims: int = 4
    alike: bool = True
    plain: bool = True
    softcap: bool = False
    sinks: bool = False
    deterministic: bool = False
    off: tuple[str, ...] = ()
    probed: str | None = None
    why: tuple[tuple[str, str], ...] = ()

    @property
    def own_kv_heads(self) -> int:
        """Heads of keys and values before they were copied."""
        return self.kv_heads // self.repeated if self.kv_heads % self.repeated == 0 else self.kv_heads

    @property
    def products(self) -> int:
        """Operations of the two products of a forward pass over all pairs: 2 for each multiplication and addition."""
        return 2 * self.batch * self.heads * self.n_q * self.n_k * (self.d_k + self.d_v)

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as plain data."""
        names = ("entry", "batch", "heads", "kv_heads", "n_q", "n_k", "d_k", "d_v", "dtype", "training", "repeated")
        return {name: getattr(self, name) for name in names} | {"mask": str(self.mask), "dropout": self.dropout}


@dataclass(frozen=True)
class Recorded:
    """The calls of a run.

    Attributes:
        calls: each call with the path of its module, in the order of the run.
        other: operations of products and convolutions outside attention, of the forward pass; at least, as some
            functions are not known.
        device: "meta", "cpu", "cuda", …: where the tensors of the last call were; "" if there was none.
        release: (major, minor) of the PyTorch here.
        cudnn: its cuDNN as PyTorch writes it, such as 91900; None if it has none.
    """

    calls: tuple[tuple[str, AttentionCall], ...]
    other: int
    device: str
    release: tuple[int, int]
    cudnn: int | None
