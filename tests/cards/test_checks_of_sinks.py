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
