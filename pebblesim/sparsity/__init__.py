"""Dynamic sparsity: tiles that carry little probability, and a backward pass that leaves them out (BackLite)."""
