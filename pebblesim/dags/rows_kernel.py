"""The loop that splits a file into whole numbers.

It is a separate module so that numba is imported only when a file is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel

_MOST = 10**17  # numbers below ten times this have at most 18 digits


@kernel()
def scan(data: Any, skip: Any) -> Any:
    """Return (values, start of each row, line of each row); a token that is not a whole number is -1."""
    words, lines, before = 0, 1, False
    for byte in data:
        space = byte <= 32
        words += before and space
        before = not space
        lines += byte == 10
    values = np.empty(words + 1, dtype=np.int64)
    start = np.empty(lines + 1, dtype=np.int64)
    line = np.empty(lines, dtype=np.int64)
    count, rows, number, state, comment, first = 0, 0, 1, 0, False, 0  # state: 0 space, 1 number, 2 other
    value = np.int64(0)
    for i in range(data.size + 1):
        byte = data[i] if i < data.size else np.uint8(10)
        if skip[byte]:
            comment = True
        if comment or byte <= 32:
            if state:
                values[count] = value if state == 1 else -1
                count += 1
                state = 0
            if byte == 10:
                if count > first:
                    start[rows], line[rows] = first, number
                    rows += 1
                    first = count
                number += 1
                comment = False
        elif 48 <= byte <= 57 and state < 2:
            value = value * 10 + (byte - 48) if state else np.int64(byte - 48)
            state = 1 if value < 10 * _MOST else 2
        else:
            state = 2
    start[rows] = count
    return values[:count], start[: rows + 1], line[:rows]
