"""Measurements on a GPU: counters, races, calibration. Importing it needs no GPU."""
