"""Programs as Triton kernels on tensor cores: grids, loops, ranges, places and values, as text."""
