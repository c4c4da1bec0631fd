"""Attention with sinks, and the gradient of the sinks."""
