"""A bias in a package of kernels, which has no kernels for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pebblesim.core.errors import UsageError


def why_not_with_bias(matrices: Any, given: Mapping[str, Any], enable_gqa: bool) -> str | None:
    """A sentence where `fallback` is to compute a call; as `with_bias.why_not_with_bias`."""
    return None if given["fallback"] is None or given["bias"] is not None else _none(given)


def attention_with_bias(matrices: Any, given: Mapping[str, Any], *others: Any) -> Any:
    """Refuse a bias; as `with_bias.attention_with_bias`.

    Raises:
        UsageError: always.
    """
    raise UsageError(_none(given))


def with_bias(*given: Any) -> Any:
    """Refuse a bias; as `with_bias.with_bias`, which computes calls that are known. In a package no such call is.

    Raises:
        UsageError: always.
    """
    raise UsageError(_none({"bias": given}))


def _none(given: Mapping[str, Any]) -> str:
    return f"this package has no kernels for {'attn_mask' if given['bias'] is None else 'bias'}; leave it out."
