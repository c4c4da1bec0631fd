"""Sums of floors, for pairs below a mask that are counted without looking at each."""

from __future__ import annotations


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Σ_{i<n} ⌊(a·i + b) / m⌋ for a ≥ 0, in as many steps as Euclid's algorithm takes on a and m."""
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        n, b = divmod(a * n + b, m)
        m, a = a, m
    return total
