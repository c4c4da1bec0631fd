"""The readings: each interprets a traced program in its own way, as a function over the program's tree."""
