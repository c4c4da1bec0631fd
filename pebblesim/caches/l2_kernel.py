"""The loops of an L2 that many thread blocks share, compiled by numba: order of requests, and units of tiles."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from pebblesim.kernels import kernel


@kernel()
def take_turns(starts: Any, wait: Any, spend: Any, blocks: Any, at_once: int) -> Any:
    """Return the requests of many thread blocks in order of time, as (number in `blocks`, request).

    Block b makes the requests starts[b] … starts[b + 1] - 1, one after the other: `wait` is its time before each, and
    `spend` the time that each takes. `at_once` blocks run at the same time, in the order of `blocks`; when one ends,
    the next one starts.
    """
    total = 0
    for b in blocks:
        total += starts[b + 1] - starts[b]
    who, what = np.empty(total, np.int32), np.empty(total, np.int32)
    queue = [(0.0, 0, 0) for _ in range(0)]  # when, which of `blocks`, its next request
    coming, done = 0, 0
    now = 0.0
    while done < total:
        while coming < len(blocks) and len(queue) < at_once:
            first = starts[blocks[coming]]
            if first < starts[blocks[coming] + 1]:
                heappush(queue, (now + wait[first], coming, first))
            coming += 1
        now, block, request = queue[0]
        who[done], what[done] = block, request
        done += 1
        now += spend[request]
        if request + 1 < starts[blocks[block] + 1]:
            heapreplace(queue, (now + wait[request + 1], block, request + 1))
        else:
            heappop(queue)
    return who, what


@kernel()
def spread(order: Any, first: Any, rows: Any, units: Any, stride: Any, kinds: Any) -> Any:
    """Return the units of tiles, in the order of the tiles: `rows` runs of `units`, from `first` on, `stride` apart."""
    total = 0
    for n in order:
        total += rows[n] * units[n]
    ids, each = np.empty(total, np.int32), np.empty(total, np.uint8)
    at = 0
    for n in order:
        for row in range(rows[n]):
            for unit in range(units[n]):
                ids[at] = first[n] + row * stride[n] + unit
                each[at] = kinds[n]
                at += 1
    return ids, each
