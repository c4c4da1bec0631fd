"""Words that a program moves and holds: totals, closed forms, peaks, masks, and the block sizes that fit a cache."""
