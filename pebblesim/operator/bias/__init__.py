"""Attention with a bias that is added to scores, and the gradient of the bias."""
