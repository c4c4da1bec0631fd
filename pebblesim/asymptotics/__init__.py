"""Decide O, Ω and Θ between closed forms, on cones of exponents and in exact arithmetic."""
