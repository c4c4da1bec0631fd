"""Tables of what was found for some sizes: of bounded length, so that a program with ever new lengths keeps little."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class Recent(OrderedDict[Key, Found]):
    """A table with at most some number of entries: a new one takes the place of the oldest.

    Entries are added one at a time, also by several threads.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self._adding = Lock()

    def __setitem__(self, key: Key, found: Found) -> None:
        with self._adding:
            if key not in self and len(self) >= self.most:
                self.popitem(last=False)
            super().__setitem__(key, found)
