"""Passes over the program of a kernel: each adds something to it or takes its loops apart, for every target."""
