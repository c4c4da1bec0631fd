"""Thread blocks that run at once: launches, the tiles that each block moves, sectors of memory, critical paths."""
