"""Automatic caches: LRU, OPT, FIFO, sets and lines, and an L2 shared by thread blocks."""
