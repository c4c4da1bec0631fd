"""Pictures and pages: plots, replays of games, and the recordings they are made from."""
