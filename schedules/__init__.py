"""The algorithms, one file for each family; importing this package registers them all."""

if __name__ != "pebblesim.schedules":
    raise ImportError(f"import this package as 'pebblesim.schedules', not {__name__!r}")

from pebblesim.schedules import (
    activation,
    backward_qkv,
    blocked,
    flash,
    flash_forward,
    forward,
    kept_probabilities,
    large_cache,
    latent,
    linear,
    matmul,
    no_cache,
    partly_resident,
    projected,
    regrouped,
    resident,
    row_stationary,
    small_cache,
    small_cache_streamed,
    split_keys,
    standard,
    stored_pairs,
)

__all__ = [
    "activation",
    "backward_qkv",
    "blocked",
    "flash",
    "flash_forward",
    "forward",
    "kept_probabilities",
    "large_cache",
    "latent",
    "linear",
    "matmul",
    "no_cache",
    "partly_resident",
    "projected",
    "regrouped",
    "resident",
    "row_stationary",
    "small_cache",
    "small_cache_streamed",
    "split_keys",
    "standard",
    "stored_pairs",
]
