"""A bias in a package of kernels, which has no kernels for it."""

from __future__ import annotations

from typing import Any

from pebblesim.core.errors import UsageError


def attention_with_bias(*given: Any) -> Any:
    """Refuse a bias; as `with_bias.attention_with_bias`.

    Raises:
        UsageError: always.
    """
    raise UsageError("this package has no kernels for bias; leave it out.")
