"""Quotients, times and amounts of any size, as text."""

from __future__ import annotations

from fractions import Fraction

from pebblesim.core.errors import UsageError


def ratio(amount: int, of: float) -> float:
    """Return a quotient of numbers of any size.

    Raises:
        UsageError: it is too large for a float.
    """
    try:
        return float(Fraction(amount) / Fraction(of))
    except OverflowError:
        raise UsageError("these sizes give times beyond 1e308 s; use smaller ones, or `count`.") from None


def duration(seconds: float | None) -> str:
    """A time in three digits, or "unknown"."""
    if seconds is None:
        return "unknown"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def amount(value: float, unit: str) -> str:
    """A number in three digits, with a prefix."""
    value = ratio(value, 1)  # type: ignore[arg-type]
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
