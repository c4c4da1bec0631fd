"""Machines: schedules inside schedules on a path of memories, and files that describe machines."""
