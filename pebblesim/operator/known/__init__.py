"""Calls of a kind that was seen before: what their passes do is noted, and done again without being found again."""
