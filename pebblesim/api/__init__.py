"""The public questions about schedules and problems: closed forms, games, bounds, crossovers, glossaries."""
