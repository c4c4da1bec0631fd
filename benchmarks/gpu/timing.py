"""Times of calls as a program has them: of the host, of the card, and what the program waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

L2 = 60 * 2**20
"""Bytes of a large L2: so many sets of tensors are used in turn that none is there."""

MOST_SETS = 6

LEAST, MOST = 3e-3, 8
"""Seconds that calls in a row take at least, and the most of them."""


def here(torch: Any) -> dict[str, str]:
    """The card, PyTorch, and whether the library in C++ is used, which is waited for: a row says it of its times."""
    from pebblesim.operator.known import native

    if (thread := native.begin()) is not None:  # PEBBLESIM_NATIVE=0: by Python alone
        thread.join()
    return {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "native": native.state()}


def sets_of(bytes_of_one: int) -> int:
    """Sets of tensors that are used in turn."""
    return max(1, min(MOST_SETS, -(-2 * L2 // max(bytes_of_one, 1))))


def waited(torch: Any, calls: list[Callable[[], Any]], times: int) -> float:
    """Microseconds a call, of `times` calls in a row, from the first line of Python until the card is idle."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(times):
        calls[number % len(calls)]()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times * 1e6


def of_card(torch: Any, calls: list[Callable[[], Any]], times: int, host: float) -> float:
    """Microseconds a call on the card alone, which waits for no launch: it sleeps while the host launches them.

    `host`: microseconds that a call takes of the host.
    """
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(int((host * times * 1.5 + 300) * 2000))  # cycles, of about 2 GHz
    begin.record()
    for number in range(times):
        calls[number % len(calls)]()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / times * 1e3


def of_host(torch: Any, call: Callable[[], Any], times: int = 40, before: Callable[[], Any] = int) -> float:
    """Microseconds that a call takes of the host while the card is idle: the median of many.

    `before` is called before each call, outside of the time.
    """
    found = []
    for _ in range(times):
        before()
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - begin) / 1e3)
    torch.cuda.synchronize()
    return median(found)


def together(torch: Any, calls: dict[str, list[Callable[[], Any]]], rounds: int = 5) -> dict[str, dict[str, float]]:
    """Microseconds of each contender's calls; their rounds alternate, so that all of them have the same clock."""
    times, host = {}, {}
    for name, each in calls.items():
        one = min(waited(torch, each, 2) for _ in range(2)) / 1e6
        times[name] = max(2, min(MOST, round(LEAST / one)))
        host[name] = of_host(torch, each[0], 9)
    found: dict[str, dict[str, list[float]]] = {name: {"wall_us": [], "card_us": []} for name in calls}
    for _ in range(rounds):
        for name, each in calls.items():
            found[name]["wall_us"].append(waited(torch, each, times[name]))
            found[name]["card_us"].append(of_card(torch, each, times[name], host[name]))
    made = {name: {what: median(values) for what, values in each.items()} for name, each in found.items()}
    for name, values in made.items():
        spread = sorted(found[name]["wall_us"])
        values |= {"host_us": host[name], "wall_least_us": spread[0], "wall_most_us": spread[-1]}
    return made


def by_kernel(torch: Any, call: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of each kernel of a call, by its name."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for each in seen.key_averages():
        micro = getattr(each, "device_time_total", 0.0) / 3
        found[each.key[:60]] = found.get(each.key[:60], 0.0) + micro
    return {name: round(micro, 1) for name, micro in sorted(found.items(), key=lambda pair: -pair[1])[:10]}
