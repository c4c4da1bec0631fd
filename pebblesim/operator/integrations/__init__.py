"""`attention` where people already are: transformers, diffusers, PyTorch's and FlashAttention's functions."""
