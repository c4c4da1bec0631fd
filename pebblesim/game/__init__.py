"""The red-blue pebble game: its moves, its referee, the numbering of vertices, and the search for the least I/O."""
