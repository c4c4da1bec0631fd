"""Search for schedules: passes over a problem's equations, the cheapest sequence of them, and its source."""
