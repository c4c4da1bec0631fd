"""Which attention a model computes, by which kernels of PyTorch, and what ours would change."""
