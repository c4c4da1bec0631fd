"""`benchmarks/gpu/sinks.py --check`: of several calls the largest error is kept, and what is no number."""

from __future__ import annotations

import sys
from math import isnan, nan
from types import ModuleType
from typing import Any

import pytest
from checkout import ROOT


@pytest.mark.parametrize(("errors", "kept"), [([0.1, 0.3, 0.2], 0.3), ([nan, 0.2], nan), ([0.2, nan, 0.1], nan)])
def test_a_check_keeps_the_worst_error_of_several_calls(
    monkeypatch: pytest.MonkeyPatch, errors: list[float], kept: float
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    import sinks

    library = ModuleType("pebblesim.gpu.torch")
    library.attention = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pebblesim.gpu.torch", library)
    several = iter([*errors, *[0.0] * 8])
    monkeypatch.setattr(sinks, "_errors", lambda *given: {"ds": next(several)})
    found: Any = sinks.checked(None, 1, 0)["errors"]["ds"]
    assert isnan(found) if isnan(kept) else found == kept


def test_ratios_are_those_of_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are 2, 1.1 and 3, where medians have 11 to 10; and each contender begins rounds."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    import timing

    took = {"plain": [1.0, 10.0, 100.0], "more": [2.0, 11.0, 300.0]}
    said, order = {name: iter([1.0, 1.0, *each]) for name, each in took.items()}, list[str]()

    def waited(torch: Any, calls: list[Any], times: int) -> float:
        order.append(calls[0])
        return next(said[calls[0]])

    monkeypatch.setattr(timing, "waited", waited)
    monkeypatch.setattr(timing, "of_host", lambda *given: 1.0)
    monkeypatch.setattr(timing, "of_card", lambda torch, calls, *given: 4.0 if calls[0] == "plain" else 5.0)
    calls: Any = {name: [name] for name in took}
    found = timing.together(None, calls, 3, "plain")
    assert order[4:] == ["plain", "more", "more", "plain", "plain", "more"]
    assert found["more"]["wall_times"] == pytest.approx(2.0) and found["more"]["card_times"] == 1.25
    assert found["more"]["wall_us"] == 11.0 and found["plain"]["wall_times"] == found["plain"]["card_times"] == 1.0
