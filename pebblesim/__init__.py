"""pebblesim: a laboratory for the I/O complexity of attention."""
