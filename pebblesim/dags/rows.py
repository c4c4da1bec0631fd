"""Read rows of whole numbers from a text file with compiled code; keep line numbers for messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pebblesim.core.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TokenRows:
    """The tokens of a file, line by line; blank lines and comments are not rows.

    Attributes:
        data: the file.
        values: each token as a number if it is a whole number of at most 18 digits, otherwise -1.
        start: row r is `values[start[r]:start[r + 1]]`.
        line: line number of each row, counted from 1.
    """

    data: bytes
    values: NDArray[np.int64]
    start: NDArray[np.int64]
    line: NDArray[np.int64]

    @classmethod
    def of(cls, data: bytes, comments: bytes) -> TokenRows:
        """Split a file; a comment starts at any of these characters and ends with its line."""
        from pebblesim.dags.rows_kernel import scan

        skip = np.zeros(256, dtype=np.bool_)
        skip[list(comments)] = True
        return cls(data, *scan(np.frombuffer(data, dtype=np.uint8), skip))

    def __len__(self) -> int:
        return len(self.line)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Words in each row."""
        return np.diff(self.start)

    def take(self, first: int, number: int, what: str, least: int, most: int) -> NDArray[np.int64]:
        """Return rows `first` to `first + number` as a table with `least` columns.

        Raises:
            UsageError: the file ends too early, or a row has too few or too many tokens, or a token is not a whole
                number.
        """
        stop = first + number
        lengths = self.lengths[first:stop]
        wrong = (lengths < least) | (lengths > most)
        if len(lengths):
            bounds = self.start[first : first + len(lengths) + 1]
            negative = np.append(0, np.cumsum(self.values[bounds[0] : bounds[-1]] < 0))[bounds - bounds[0]]
            wrong |= negative[1:] > negative[:-1]
        if wrong.any():
            self.refuse(first + int(np.argmax(wrong)), f"expected {what}")
        if len(lengths) < number:
            last = self.data.count(b"\n") + (not self.data.endswith(b"\n") and bool(self.data))
            raise UsageError(f"line {last}: the file ends where {what} should follow.")
        return self.values[self.start[first:stop, None] + np.arange(least)]

    def each_once(self, first: int, number: int, what: str, described: str, most: int, least: int = 1) -> Any:
        """Return rows that begin with the number of a thing, 0 to `number` - 1, as `take` does.

        Raises:
            UsageError: as for `take`; or a number does not exist, or is given twice.
        """
        table = self.take(first, number, described, least, most)
        self.check(table[:, 0], first, what, number)
        if twice := self.once(table[:, 0], first):
            raise UsageError(f"line {self.line[twice[0]]}: {what} {table[twice[0] - first, 0]} is given twice.")
        return table

    def refuse(self, row: int, why: str) -> None:
        """Raise an error about a row that names its line and quotes it."""
        line = int(self.line[row])
        text = self.data.split(b"\n", line)[line - 1].split(b"%", 1)[0]
        words = " ".join(text.decode("utf-8", "replace").split())
        raise UsageError(f"line {line}: {why}, found {words[:80]!r}.")

    def check(self, ids: NDArray[np.int64], first: int, what: str, total: int, base: int = 0) -> None:
        """Check that all ids exist; there is one id for each row from `first` on.

        Raises:
            UsageError: an id does not exist; the message names the line.
        """
        wrong = (ids < base) | (ids >= total + base)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UsageError(
                f"line {self.line[first + row]}: {what} {ids[row]} does not exist; "
                f"they are numbered {base} to {total + base - 1}."
            )

    @staticmethod
    def once(codes: NDArray[np.int64], first: int = 0) -> tuple[int, int] | None:
        """Return the first row, from `first` on, whose code repeats, and the earlier row with it;

        None if all differ.
        """
        order = np.argsort(codes, kind="stable")
        again = np.flatnonzero(codes[order[1:]] == codes[order[:-1]])
        if not again.size:
            return None
        at = again[np.argmin(order[again + 1])]
        return first + int(order[at + 1]), first + int(order[at])


def words_of(words: NDArray[Any], what: str) -> NDArray[np.int64] | None:
    """Return the number of words of each vertex; None if each has one word.

    Raises:
        UsageError: a vertex has less than one word.
    """
    if (words < 1).any():
        v = int(np.argmax(words < 1))
        raise UsageError(f"{what} {v} has weight {words[v]}; a weight is a number of words, 1 or more.")
    return None if (words == 1).all() else words.astype(np.int64)
