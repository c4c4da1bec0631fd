"""Programs as CUDA kernels that move exactly their tiles."""
