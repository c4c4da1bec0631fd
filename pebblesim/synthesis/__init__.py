"""Search for schedules: passes over a problem's equations, the sequence with the least I/O, and its source code."""
