"""Automatic caches, which decide for themselves what stays: LRU, OPT, FIFO, sets and lines, an L2 that blocks share."""
