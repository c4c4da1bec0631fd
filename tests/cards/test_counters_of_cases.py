"""`benchmarks/gpu/profiler.py`: what Nsight Compute prints becomes counters of each case."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

PRINTED = """==PROF== Connected
{"case": 3}
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","spin_kernel(long)","a.sum","byte","0"
"0","spin_kernel(long)","b.sum","byte","0"
"1","dQ(x)","a.sum","Kbyte","1,024.5"
"1","dQ(x)","b.sum","byte","32"
"2","spin_kernel(long)","a.sum","byte","0"
"2","spin_kernel(long)","b.sum","byte","0"
"3","dQ(x)","a.sum","Mbyte","2"
"""


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, where `ncu` says what it was given, prints the above, and ends with its last argument."""
    script = f'#!/bin/bash\necho "$@" > {tmp_path}/given\ncat {tmp_path}/printed\nexit ${{@: -1}}\n'
    (ncu := tmp_path / "ncu").write_text(script)
    ncu.chmod(0o755)
    (tmp_path / "printed").write_text(PRINTED)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "gpu")
    return importlib.import_module("profiler")


def test_counters_are_of_the_case_behind_whose_mark_they_stand(profiler: Any, tmp_path: Path) -> None:
    found, lines = profiler.counters({"a.sum": "read", "b.sum": "written"}, "script.py", "0")
    assert found == [[("dQ(x)", "read", 1024500.0), ("dQ(x)", "written", 32.0)], [("dQ(x)", "read", 2e6)]]
    assert lines == ["==PROF== Connected", '{"case": 3}']
    given = (tmp_path / "given").read_text()
    assert "--metrics a.sum,b.sum" in given and given.endswith("script.py 0\n")


def test_a_script_that_fails_ends_the_measurement_with_what_it_said(profiler: Any) -> None:
    with pytest.raises(SystemExit, match=r"(?s)script\.py 3 ended with 3.*Connected"):
        profiler.counters({"a.sum": "read", "b.sum": "written"}, "script.py", "3")
