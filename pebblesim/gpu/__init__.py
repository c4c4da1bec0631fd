"""Code for GPUs: kernels of schedules, advice, the operator for PyTorch, measurements. Importing it needs no GPU."""
