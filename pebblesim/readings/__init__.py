"""The readings: each gives a traced program a meaning of its own, as a function over its tree."""
