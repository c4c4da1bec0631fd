"""Lines of code of kernels by what they can do: `python benchmarks/size_by_capability.py [-v]`, in some two minutes.

Kernels are emitted, and their forecasts made: the lines that these execute are told apart by what only some kernels
can. Without what came since `size.txt` was printed, they are compared with that yardstick like for like. Lines are
those of `make size`. A statement has all of its lines; what stands at the top of a file is executed where something
else in it is. With -v the lines are listed that nothing executes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from size import BESIDE_KERNELS, KERNELS, ROOT, code_lines

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from golden_texts import EVEN, GOLDENS, Case, cases, offered  # noqa: E402

from pebblesim.advice.launch_costs import launch_costs  # noqa: E402
from pebblesim.advice.tiles import HOPPER, Tiling, least_room, too_large, within  # noqa: E402
from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.kernels.domains import Call  # noqa: E402
from pebblesim.kernels.gluon.bytes import crossing  # noqa: E402
from pebblesim.kernels.gluon.gluon import gluon  # noqa: E402
from pebblesim.kernels.gluon.widths import in_parts  # noqa: E402
from pebblesim.kernels.passes.sinks import sinking  # noqa: E402
from pebblesim.kernels.triton.storage import padded  # noqa: E402
from pebblesim.kernels.triton.triton import triton  # noqa: E402
from pebblesim.language import masks  # noqa: E402
from pebblesim.language.program import Range  # noqa: E402
from pebblesim.language.registry import get  # noqa: E402

NAMES = {path: str(path.relative_to(ROOT)) for path in sorted((ROOT / "pebblesim").rglob("*.py"))}
FILES = [path for path, name in NAMES.items() if name.startswith(KERNELS) and name not in BESIDE_KERNELS]

CHECKER = "rules.py"
"""The file with rules of Gluon programs, which all of them are asked for: nothing of that kind was there at first."""

Lines = set[tuple[Path, int]]
"""Lines of code: a file, and a number."""


def executed(emit: Callable[[], object]) -> Lines:
    """The lines of kernels that a call executes, in whole statements."""
    files, seen = {str(path): path for path in FILES}, dict[Path, set[int]]()
    left = dict[CodeType, set[int]]()

    def of_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen.setdefault(files[frame.f_code.co_filename], set()).add(frame.f_lineno)
            left[frame.f_code].discard(frame.f_lineno)
        return of_line

    def of_call(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        if code not in left:
            left[code] = {line for *_, line in code.co_lines() if line is not None and line != code.co_firstlineno}
        return of_line if left[code] else None  # nothing of it is new any more

    sys.settrace(of_call)
    try:
        emit()
    finally:
        sys.settrace(None)
    found = ((path, number) for path, here in seen.items() for number in whole_statements(path, here))
    return {line for line in found if line[1] in CODE[line[0]]}


def whole_statements(path: Path, here: set[int]) -> Iterator[int]:
    """Yield the lines of the statements of a file of which some were executed."""
    for lines, by in STATEMENTS[path]:
        if by is None or not here.isdisjoint(by):
            yield from lines


def statements(body: list[Any], at_top: bool = True) -> Iterator[tuple[range, range | None]]:
    """Yield the lines of each statement but those within, and lines that tell whether it is executed; None: its file.

    A function's first lines are executed where its body is.
    """
    for each in body:
        parts = ("body", "handlers", "orelse", "finalbody", "cases")
        within = [part for name in parts for part in getattr(each, name, [])]
        first = min(map(start_of, [each, *getattr(each, "decorator_list", [])]))
        end = (
            max(getattr(each, "end_lineno", 0), *(part.end_lineno or 0 for part in getattr(each, "body", [])), first)
            + 1
        )
        own = range(first, max(first + 1, min(map(start_of, within), default=end)))
        function = isinstance(each, ast.FunctionDef)
        yield own, range(own.stop, end) if function else None if at_top else own
        yield from statements(within, at_top and not function)
        for others in filter(None, [getattr(each, "orelse", [])]):  # the line with else is executed where they are
            yield range(each.body[-1].end_lineno + 1, start := start_of(others[0])), range(start, start + 1)


def start_of(each: Any) -> int:
    """The first line of a statement, of an expression, or of a case."""
    return int((each.pattern if isinstance(each, ast.match_case) else each).lineno)


TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}
CODE = {path: code_lines(text) for path, text in TEXTS.items()}
STATEMENTS = {path: [*statements(ast.parse(text).body)] for path, text in TEXTS.items()}


# What is emitted

SINCE = ("softcap on Gluon", "columns in parts", "bias", "sinks")
"""What came since `size.txt` was printed, in this order."""

OF_GOLDENS = {"cuda": "CUDA", "triton-bias": "bias"}
"""What the names of texts say that have no tiling."""

OF_SCHEDULES = {
    "flash-decoding": "splits of keys",
    "scores-stored-in-rows": "some rows at a time",
    "dS-stored-resident": "Gluon: tables of pairs",
    "scores-stored-resident": "Gluon: tables of pairs",
    "small-cache-backward-resident": "Gluon: tables of pairs",
    "flash2-latent": "Gluon: columns divided",
}
"""What only kernels of some schedules need, by the beginning of their names."""


def of_tiling(tiling: Tiling) -> set[str]:
    """What kernels need for a tiling that not all need."""
    labels = {label for begin, label in OF_SCHEDULES.items() if tiling.schedule.startswith(begin)}
    return labels | marked({"Gluon": tiling.gluon, "descriptors of Triton": tiling.described})


def marked(asked: Mapping[str, object]) -> set[str]:
    """The labels of what is asked."""
    return {label for label, is_asked in asked.items() if is_asked}


def of_case(case: Case) -> set[str]:
    """What kernels need for a case that not all need."""
    asked = {
        "masks": case.mask,
        "masks: ranges of keys": case.mask == "ranges",
        "lengths that tiles do not divide": case.n != EVEN,
        "strides": case.shared,
        "strides: heads that share keys": case.shared > 1,
        "bias": case.bias,
        "softcap on Gluon": case.softcap and case.tiling.gluon,
        "softcap": case.softcap,
        "columns in parts": case.tiling.gluon and in_some_parts(case.d, case.sizes["d_v"]),
    }
    return of_tiling(case.tiling) | marked(asked)


def in_some_parts(*widths: int) -> bool:
    """Whether a Gluon kernel has the columns of a head in parts, or values that are narrower than keys."""
    whole = (in_parts(Range("d"), {"d": width}) == padded(Range("d"), {"d": width}) for width in widths)
    return len({*widths}) > 1 or not all(whole)


def emitted() -> Iterator[tuple[set[str], Callable[[], object]]]:
    """Yield what emits kernels or makes forecasts, and what only some kernels can that it needs."""
    for name, golden in GOLDENS.items():
        of_name = {label for begin, label in OF_GOLDENS.items() if name.startswith(begin)}
        yield of_case(golden) if isinstance(golden, Case) else of_name, golden.text
    first = {each.schedule: each for each in reversed(offered().values()) if not each.gluon}
    for tiling in (*first.values(), *HOPPER):  # those of a schedule differ in numbers
        for case in cases(tiling):
            yield of_case(case), case.text
    for tiling in offered().values():
        dims = dims_of(tiling, 4095)
        parts = tiling.gluon and in_some_parts(*(dims[name] for name in ("d_k", "d_v") if name in dims))
        labels = of_tiling(tiling) | marked({"columns in parts": parts})
        for n, mask in ((4096, None), (4095, None), (4096, "causal"), (4095, "window:200"), (4095, "band:200")):
            more = marked({"lengths that tiles do not divide": n % 2, "masks": mask, "forecasts": True})
            yield labels | more, partial(forecasts_of, tiling, n, mask)
        yield labels | {"sinks", "lengths that tiles do not divide", "strides"}, partial(with_sinks, tiling)


def dims_of(tiling: Tiling, n: int) -> dict[str, int]:
    """Dimensions of the problem of a tiling."""
    problem = get(tiling.schedule).problem
    dims = {"n_q": n, "n_k": n, "d_r": 64, "d_k": tiling.widths[1], **tiling.widest}
    return {name: dims[name] for name in (problem if problem.rectangle is None else problem.rectangle).dims}


def forecasts_of(tiling: Tiling, n: int, mask: str | None) -> None:
    """What is said of kernels before they run: their work, bytes, and what of tables is cut."""
    dims, band = dims_of(tiling, n), masks.of(mask)
    if tiling.refusal(Call(dims, band)) is None:
        costs = launch_costs(tiling, dims, "bfloat16", 4, band)
        too_large(((each.name, each.storage) for each in costs), 2**17, 2**18)
        within(tiling, dims, 4, "bfloat16", 2**24)
        least_room(tiling, dims, "bfloat16")
        if tiling.gluon:
            crossing(get(tiling.schedule).in_dims(dims).under(band), {**dims, **tiling.blocks}, "bfloat16", band)


def with_sinks(tiling: Tiling) -> None:
    """Kernels of a forward pass with sinks."""
    dims = dims_of(tiling, 4095)
    with suppress(UsageError):  # it has no softmax
        program = sinking(get(tiling.schedule).in_dims(dims).program)
        (gluon if tiling.gluon else triton)(program, {**dims, **tiling.blocks}, shared=1, dense=True, **tiling.options)


def main() -> None:
    found = [(labels, executed(emit)) for labels, emit in emitted()]

    def of(chosen: Iterable[Lines]) -> Lines:
        return set().union(*chosen)

    then = of(lines for labels, lines in found if labels.isdisjoint(SINCE))
    checks = {line for line in then if line[0].name == CHECKER}
    print(f"{len(then - checks):>6,}  what kernels could at the first `make size`\n{len(checks):>6,}  {CHECKER}")
    known = set(then)
    for label in SINCE:
        more = of(lines for labels, lines in found if label in labels) - known
        known |= more
        print(f"{len(more):>6,}  {label}")
    left = {(path, number) for path, lines in CODE.items() for number in lines} - known
    refused = {line for line in left if line[1] in refusals(line[0])}
    print(f"{len(refused):>6,}  refusals\n{len(left - refused):>6,}  executed by none of these")
    print(f"{len(left | known):>6,}  all of kernels\n\nof the first, what nothing else executes:")
    first = [(labels, lines) for labels, lines in found if labels.isdisjoint(SINCE)]
    for label in dict.fromkeys(label for labels, _ in first for label in sorted(labels)):
        others = of(lines for labels, lines in first if label not in labels)
        print(f"{len(then - others):>6,}  {label}")
    for path, number in sorted(left - refused) if "-v" in sys.argv else ():
        print(f"{NAMES[path]}:{number}: {TEXTS[path].splitlines()[number - 1]}")


def refusals(path: Path) -> set[int]:
    """The lines of statements that raise an error, and of branches that end so."""
    found = set[int]()
    for each in ast.walk(ast.parse(TEXTS[path])):
        if isinstance(each, ast.Raise) or (isinstance(each, ast.If) and isinstance(each.body[-1], ast.Raise)):
            end = each.body[-1].end_lineno if isinstance(each, ast.If) else each.end_lineno
            found |= set(range(each.lineno, (end or 0) + 1))
    return found


if __name__ == "__main__":
    main()
