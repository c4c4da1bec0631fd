"""Attention as an operator of PyTorch, of transformers and of diffusers, with kernels from our schedules."""
