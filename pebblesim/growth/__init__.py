"""Θ decided: growth of closed forms on cones of exponents, in exact arithmetic."""
