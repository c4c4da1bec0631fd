"""Advice for real cards."""
