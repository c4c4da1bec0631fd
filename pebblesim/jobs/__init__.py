"""The jobs behind the commands and the public functions, from arguments to results."""
