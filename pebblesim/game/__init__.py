"""The red-blue pebble game: moves, referee, and numbering of vertices."""
