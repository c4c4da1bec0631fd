"""Errors, sizes, units, notation, files, tables and compiled kernels: used by all rooms, using none."""

__version__ = "0.1.0"
