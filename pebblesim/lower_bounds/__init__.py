"""Lower bounds on the I/O of any schedule of a problem, with constants."""
