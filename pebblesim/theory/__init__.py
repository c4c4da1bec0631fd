"""Bounds on the least I/O: lower bounds with constants, Θ expressions, statements of the literature."""
