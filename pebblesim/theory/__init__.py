"""Bounds on the least I/O: lower bounds with constants, expressions in Θ, and statements of the literature."""
