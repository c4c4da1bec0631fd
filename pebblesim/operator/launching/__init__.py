"""Launches of compiled kernels: tensors as kernels take them, memory, descriptors, compilation."""
