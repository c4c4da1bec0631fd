"""Where the tests are, and the checkout that they test."""

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent
ROOT: Final = TESTS.parent
