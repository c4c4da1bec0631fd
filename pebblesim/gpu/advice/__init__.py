"""The path `pebblesim.gpu.advice.cards`; the code is in `pebblesim.advice`."""
