"""Machines: schedules inside schedules on paths and trees of memories, and files that describe machines."""
