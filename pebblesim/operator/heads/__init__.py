"""Passes in which the heads that share keys are in parts."""
