"""Sizes that attention takes, and sentences about others: without PyTorch."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import SHORT, counted
from pebblesim.kernels.domains import ATTENTION, Call

MOST_HEADS = 65535
"""Largest number of heads of all sequences together: a launch can have this number of rows of thread blocks."""


def refused(call: Call) -> str | None:
    """A sentence where no kernel is for a call, else None."""
    said = ATTENTION.refusal(call)
    return said and f"""{said.why}; {said.advice or 'PyTorch computes it with fallback="sdpa"'}."""


def check_heads(heads: int) -> None:
    """Check the number of heads of all sequences.

    Raises:
        UsageError: one launch cannot have as many.
    """
    if heads > MOST_HEADS:
        raise UsageError(f"there are {counted(heads)} heads in all; give {MOST_HEADS:,} at most at once.")


def sharing(heads: int, kv_heads: int) -> int:
    """Return how many query heads share a KV head.

    Raises:
        UsageError: they cannot be as many for each.
    """
    if heads % kv_heads:
        raise UsageError(f"{heads:,} heads cannot share {kv_heads:,} KV heads evenly; give a multiple of these.")
    return heads // kv_heads


def check_workspace(workspace: Any) -> None:
    """Check a limit of memory.

    Raises:
        UsageError: it is not a number of bytes.
    """
    if workspace is not None and not is_count(workspace, 2**63):
        raise UsageError(
            f"workspace is {workspace!r}; give a number of bytes from 0 to below 2^63, or None for 1 GiB at most."
        )


def is_count(x: Any, limit: int, least: int = 0) -> bool:
    """Whether something is an integer from a least one up, below a limit: of Python or of NumPy."""
    return isinstance(x, (int, Integral)) and not isinstance(x, bool) and least <= int(x) < limit


def check_flag(name: str, x: Any) -> None:
    """Check an argument that is True or False.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(x, bool):
        raise UsageError(f"{name} is {x!r}; give True or False.")


def word_of(dtype: Any) -> str:
    """Return the full name of a type of words: of its name, a short one such as "bf16", or a type of PyTorch.

    Raises:
        UsageError: kernels do not take this type.
    """
    name = str(dtype).removeprefix("torch.")
    if (name := SHORT.get(name, name)) not in ATTENTION.dtypes:
        raise UsageError(f"dtype is {dtype!r}, and kernels are for bfloat16 and float16; give one of these.")
    return name


def met(n_q: int, n_k: int, left: int | None, right: int | None, at_end: bool) -> tuple[slice, slice]:
    """The queries that see some key, and the keys that some query sees; others have gradients of 0.

    Args:
        n_q, n_k: numbers of queries and keys.
        left, right: limits of j - i.
        at_end: the last query is at the last key.
    """
    shift = n_k - n_q if at_end else 0
    back, forth = (n_q + n_k if each is None else each for each in (left, right))  # of no limit: beyond all
    queries = slice(max(0, -shift - forth), min(n_q, n_k - shift + back))
    return queries, slice(max(0, shift - back), min(n_k, n_q + shift + forth))
