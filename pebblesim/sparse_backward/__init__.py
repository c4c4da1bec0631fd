"""Dynamic sparsity: a backward pass that leaves out tiles with little probability (BackLite)."""
