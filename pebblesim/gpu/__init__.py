"""What the GPU harness is made of; `pebblesim gpu` is its command line. Importing it needs no GPU."""
