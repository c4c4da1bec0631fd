"""Source code for GPUs: CUDA and Triton kernels of a schedule, and the storage they need."""
