"""When each word, and each pair of a query and a key, is in the cache: for proofs checked apart from graphs."""

from __future__ import annotations

from bisect import bisect_right

Name = tuple[str, int, int]
"""A word: side, line, number in the line; or a pair: P, query, key."""


class Spans:
    """Intervals of time, which goes on by 1 with each word or pair that is placed or deleted."""

    def __init__(self) -> None:
        self.now = 0
        self.since: dict[Name, int] = {}
        self.spans: dict[Name, list[tuple[int, int]]] = {}

    def place(self, name: Name) -> None:
        if name not in self.since:
            self.now += 1
            self.since[name] = self.now

    def delete(self, name: Name) -> None:
        if name in self.since:
            self.now += 1
            self.spans.setdefault(name, []).append((self.since.pop(name), self.now))

    def state(self, name: Name, t: int) -> str | int:
        """At time t: "late", "dead", "red", or the number of the gap it is in."""
        spans = self.spans[name]
        at = bisect_right(spans, (t, self.now + 1))
        if not at:
            return "late"
        if t < spans[at - 1][1]:
            return "red"
        return "dead" if at == len(spans) else at
