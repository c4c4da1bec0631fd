"""Attention on many devices: who owns which tokens, which words each device moves, schedules, and lower bounds."""
