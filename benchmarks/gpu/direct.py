"""Passes that are made again by the driver of the card, against their first calls: errors and results; on a GPU.

python benchmarks/gpu/direct.py

Prints a line for each kind of call: the largest relative difference of its results, or the error.
"""

from __future__ import annotations

import threading
from typing import Any


def main() -> None:
    import torch
    from drawn_host import _calls, _off, kinds

    from pebblesim.operator import recorded

    print(torch.cuda.get_device_name(), "driver:", recorded.driver())
    for kind in kinds():
        if kind.extra == "lengths":
            continue
        _, call, sets = next(_calls(torch, kind))  # ours are the first
        try:
            print(kind.name, _off(torch, call, sets), *_taken(recorded), flush=True)
        except Exception as error:  # which is what this is about
            print(kind.name, type(error).__name__, str(error)[:300], flush=True)
    thread = threading.Thread(target=lambda: print("another thread:", _off(torch, call, sets)))
    thread.start()
    thread.join()


def _taken(recorded: Any) -> list[str]:
    """What the passes that are kept consist of: commands of the driver, memory, and operations of PyTorch."""
    from pebblesim.operator.direct import Direct

    def said(each: Any) -> str:
        return f"{len(each._made)} commands" if isinstance(each, Direct) else "other"

    return [f"{key[0]}: {', '.join(map(said, kept._calls))};" for key, kept in recorded._KEPT.items()]


if __name__ == "__main__":
    main()
