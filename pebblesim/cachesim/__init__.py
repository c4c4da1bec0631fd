"""Automatic caches: LRU, OPT, FIFO, sets and lines, an L2 shared by thread blocks, and the requests they are given."""
