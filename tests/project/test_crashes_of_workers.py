"""A worker of the tests that crashes fails its test, and nothing that is known to crash workers is in them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import TESTS

CRASHES_ONCE = """
import os
from pathlib import Path

def test_crashes_once():
    crashed = Path(__file__).with_name("crashed")
    if not crashed.exists():
        crashed.touch()
        os.abort()
"""


def test_no_test_imports_z3() -> None:
    """Whoever collects garbage while z3 is at work in another thread damages its heap; see oracle_reals.py."""
    imports = re.compile(r"^\s*(import|from) z3\b|importorskip\(.z3", re.MULTILINE)
    files = [path for path in TESTS.rglob("*.py") if path.parent.name != "oracles"]
    assert len(files) > 200
    assert [path.name for path in files if imports.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_a_crash_fails_the_run(tmp_path: Path) -> None:
    """A second try would succeed, and is not made."""
    (tmp_path / "test_it.py").write_text(CRASHES_ONCE)
    asked = ["-c", os.devnull, "--rootdir", tmp_path, "-p", "conftest", "-n1", "-q", tmp_path]
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *asked],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "crashed while running" in run.stdout
    assert (tmp_path / "crashed").exists()
