"""Readings for real machines: CUDA source, launches, memory sectors, streams of accesses."""
