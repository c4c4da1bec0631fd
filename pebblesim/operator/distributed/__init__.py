"""Attention on many GPUs, each with a part of the tokens."""
