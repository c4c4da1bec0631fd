"""Lines of code by room, without docstrings, comments and blank lines: `make size`.

A line is one of code if a token begins, ends or goes on in it that is neither a comment nor a text that stands alone.
`size.txt` has the output at the commit that it names: the yardstick of what is added and taken away since.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
BESIDE = ("tests", "benchmarks")
"""Folders that are counted apart: they are not installed."""

KERNELS = ("pebblesim/kernels/", "pebblesim/advice/tiles.py", "pebblesim/advice/launch_")
"""What turns a launch of a schedule into a kernel, and what is said of it before it runs."""

BESIDE_KERNELS = tuple(f"pebblesim/kernels/{name}.py" for name in ("domains", "module", "nearest", "releases"))
"""Files of that room which `size.txt` has among others."""

PARTS = {
    "terms, statements, text": ("terms", "statements", "words", "identifiers"),
    "lowering, masks, values": (
        *("lowering", "triton/ranges", "triton/loops", "triton/values", "triton/places", "facts", "passes/masked_once"),
        *("orientation", "products", "bands", "key_ranges", "passes/fills"),
    ),
    "tensors in memory": ("tables", "strides"),
    "Triton": ("triton/triton", "triton/kernel", "triton/grid", "triton/copies"),
    "bias, sinks": (
        "passes/bias",
        "passes/bias_stays",
        "passes/sequences",
        "passes/sequences_past",
        "passes/sinks",
        "passes/sums_of_sinks",
    ),
    "Gluon: blocks, roles, text": (
        *(
            "gluon/gluon",
            "gluon/block",
            "gluon/boxes",
            "gluon/plan",
            "gluon/grid",
            "gluon/roles",
            "gluon/scope",
            "gluon/text",
            "gluon/widths",
        ),
        "gluon/writer",
    ),
    "Gluon: rows": ("gluon/consumer", "gluon/tables"),
    "Gluon: scores, products": (
        "gluon/parts",
        "gluon/parts_plan",
        "gluon/scores",
        "gluon/product",
        "gluon/shares",
        "passes/in_parts",
    ),
    "Gluon: columns": ("gluon/columns", "gluon/columns_plan"),
    "Gluon: bias": ("gluon/sequences", "gluon/sequences_plan", "gluon/gradients", "gluon/gradients_plan"),
    "rules of Gluon programs": ("rules",),
    "CUDA": ("cuda/cuda", "cuda/places"),
    "forecasts": (
        *("launch_costs", "launch_amounts", "launch_rounds"),
        *("triton/storage", "readings", "additions", "gluon/bytes"),
    ),
    "tiles": ("tiles",),
}
"""What the files of kernels are for, by their paths in their room without `.py`; some stand in the room of advice."""

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> set[int]:
    """Numbers of the lines of a Python file that are neither blank, nor comments, nor texts that stand alone."""
    alone = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and not (token.type == tokenize.STRING and token.start in alone):
            code.update(range(token.start[0], token.end[0] + 1))
    return code


def room_of(path: Path) -> str:
    """The room of a file: its folder in the package, or at the top."""
    folders = path.relative_to(ROOT).parent.parts
    if folders[0] != "pebblesim":
        return folders[0]
    return "/".join(folders[1:2]) or "(top)"


def files() -> list[Path]:
    """All Python files of the project, once each: the folders at the top are also links within the package."""
    found = (path for folder in ("pebblesim", "graphs", "schedules", *BESIDE) for path in (ROOT / folder).rglob("*.py"))
    kept = ("pebblesim/graphs/", "pebblesim/schedules/", "tests/goldens/")
    return sorted(path for path in found if not str(path.relative_to(ROOT)).startswith(kept))


def main() -> None:
    lines: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for path in files():
        size, room = len(code_lines(path.read_text(encoding="utf-8"))), room_of(path)
        name = str(path.relative_to(ROOT))
        of_kernels = name.startswith(KERNELS) and name not in BESIDE_KERNELS and path.name != "__init__.py"
        inside = name.removesuffix(".py").removeprefix(
            KERNELS[0] if name.startswith(KERNELS[0]) else "pebblesim/advice/"
        )
        parts = [f"  {part}" for part, names in PARTS.items() if of_kernels and inside in names]
        for part in (room, *["all"] * (room not in BESIDE), *["all of kernels"] * of_kernels, *parts):
            lines[part] += size
            number[part] += 1
    assert lines["all of kernels"] == sum(lines[f"  {part}"] for part in PARTS), "a file of kernels has no part"
    print(f"{'room':<28}{'files':>6}{'lines of code':>15}")
    rooms = sorted((name for name in lines if name[0] != " " and name[:3] != "all"), key=lambda x: (x in BESIDE, x))
    for name in (*rooms, "all", "all of kernels", *(f"  {part}" for part in PARTS)):
        print(f"{name:<28}{number[name]:>6}{lines[name]:>15,}")
    print("tests and benchmarks are not part of all; kernels: what size.txt has as gpu/emit, tiles, launch costs")


if __name__ == "__main__":
    main()
