"""Readings for GPUs: CUDA source, launches, memory sectors, streams of accesses."""
