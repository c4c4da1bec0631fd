"""Modules that cannot be collected here: those that import PyTorch, where there is none."""

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent
HERE = find_spec("torch") is not None
FOLDERS = ("pebblesim/explaining", "pebblesim/operator", "tests")

collect_ignore = [
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not HERE and re.search(r"^(try:\n    )?(import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE)
]
if not HERE:  # oracles and stand-ins that import what needs it, and do not skip themselves as tests do
    collect_ignore += [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and "from pebblesim.operator import" in path.read_text(encoding="utf-8")
    ]
if not HERE:  # other paths of the modules above
    collect_ignore += [str(path.relative_to(ROOT)) for path in (ROOT / "pebblesim/gpu").rglob("*.py")]
