"""Packages of kernels, which need PyTorch and Triton alone."""
