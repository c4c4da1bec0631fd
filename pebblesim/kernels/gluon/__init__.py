"""Programs as Gluon kernels for Hopper: what a block has, its roles, and their text."""
