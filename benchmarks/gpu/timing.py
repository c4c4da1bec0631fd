"""Times of calls as a program has them: of the host, of the card, and what the program waits for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from statistics import median
from typing import Any

L2 = 60 * 2**20
"""Bytes of a large L2: so many sets of tensors are used in turn that none is there."""

MOST_SETS = 6

PAUSE = 0.05
"""Seconds between calls of a card that rests."""

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


def together(
    torch: Any, calls: dict[str, list[Callable[[], Any]]], rounds: int = 5, beside: str = ""
) -> dict[str, dict[str, float]]:
    """Microseconds of each contender's calls; their rounds alternate, so that all of them have the same clock.

    `beside`: a contender; `wall_times` and `card_times` are then how often as long others took as it did in the same
    round: the median over the rounds, of which each begins with another contender.
    """
    times, host = {}, {}
    for name, each in calls.items():
        one = min(waited(torch, each, 2) for _ in range(2)) / 1e6
        times[name] = max(2, min(MOST, round(LEAST / one)))
        host[name] = of_host(torch, each[0], 9)
    found: dict[str, dict[str, list[float]]] = {name: {"wall_us": [], "card_us": []} for name in calls}
    names = list(calls)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name]["wall_us"].append(waited(torch, calls[name], times[name]))
            found[name]["card_us"].append(of_card(torch, calls[name], times[name], host[name]))
    made = {name: {what: median(values) for what, values in each.items()} for name, each in found.items()}
    for name, values in made.items():
        spread = sorted(found[name]["wall_us"])
        values |= {"host_us": host[name], "wall_least_us": spread[0], "wall_most_us": spread[-1]}
        if beside:
            values |= ratios(found[name], found[beside])
    return made


def ratios(one: dict[str, list[float]], other: dict[str, list[float]]) -> dict[str, float]:
    """How often as long a contender took as another one in the same round: the median over the rounds."""
    return {
        what.replace("_us", "_times"): median(a / b for a, b in zip(values, other[what], strict=True))
        for what, values in one.items()
    }


def rested(torch: Any, call: Callable[[], Any], host: float, times: int = 9) -> float:
    """Microseconds of a call on the card alone, each after a pause in which the card draws little power: the median."""
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        time.sleep(PAUSE)
        found.append(of_card(torch, [call], 1, host))
    return median(found)


def under_load(torch: Any, call: Callable[[], Any], seconds: float = 1.0) -> dict[str, float]:
    """The clock in MHz and the power in watts while calls run one after the other: medians; nothing without the tool.

    `limit`: the power that the card may draw.
    """
    asked = "clocks.sm", "power.draw", "power.limit"
    device = torch.cuda.get_device_properties(0).uuid
    tool = ["nvidia-smi", "-i", f"GPU-{device}", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits"]
    try:
        with subprocess.Popen([*tool, "-lms", "50"], stdout=subprocess.PIPE, text=True) as running:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                for _ in range(MOST):
                    call()
                torch.cuda.synchronize()
            running.terminate()
            said = running.communicate()[0]
    except OSError:
        return {}
    rows = [each.split(",") for each in said.splitlines()]
    numbers = [[float(each) for each in row] for row in rows if len(row) == len(asked) and "N/A" not in "".join(row)]
    later = numbers[len(numbers) // 2 :]
    names = "MHz", "W", "limit"
    return {name: median(column) for name, column in zip(names, zip(*later, strict=True), strict=True)} if later else {}


def by_kernel(torch: Any, call: Callable[[], Any], before: int = 1) -> dict[str, float]:
    """Microseconds of each kernel of a call, by its name; `before`: calls before it, of which many heat the card."""
    for _ in range(before):
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
