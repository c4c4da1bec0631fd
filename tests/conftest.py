"""Settings that all tests share."""

import os

from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")

# No deadline: the first call of a compiled function takes seconds, and says nothing.
settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
