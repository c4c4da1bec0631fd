"""Lines of code of kernels by what they can do: `python benchmarks/size_by_capability.py`, in about five minutes.

Kernels are emitted, and their forecasts made, capability after capability: a line counts for the first one that
executes it. The first one is what there was when `size.txt` was printed, so that the room of today is compared with
that yardstick like for like. Lines are those of `make size`. A statement has all of its lines, and what stands at the
top of a file counts for the first capability that executes something in it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from size import BESIDE_KERNELS, KERNELS, ROOT, code_lines

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

NAMES = {path: str(path.relative_to(ROOT)) for path in sorted((ROOT / "pebblesim").rglob("*.py"))}
FILES = [path for path, name in NAMES.items() if name.startswith(KERNELS) and name not in BESIDE_KERNELS]

CHECKER = "rules.py"
"""The file with rules of Gluon programs, which all of them are asked for: nothing of that kind was there at first."""

Lines = set[tuple[str, int]]
"""Lines that were executed: a file, and a number."""


@contextmanager
def traced() -> Iterator[Lines]:
    """Collect the lines of kernels that are executed."""
    names, seen, left = set(map(str, FILES)), Lines(), dict[CodeType, set[int]]()

    def of_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            left[frame.f_code].discard(frame.f_lineno)
        return of_line

    def of_call(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in names:
            return None
        if code not in left:
            left[code] = {line for *_, line in code.co_lines() if line is not None and line != code.co_firstlineno}
        return of_line if left[code] else None  # nothing of it is new any more

    sys.settrace(of_call)
    try:
        yield seen
    finally:
        sys.settrace(None)


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


def start_of(each: Any) -> int:
    """The first line of a statement, of an expression, or of a case."""
    return int((each.pattern if isinstance(each, ast.match_case) else each).lineno)


def executed(path: Path, seen: Lines) -> set[int]:
    """The lines of code of a file that were executed, in whole statements."""
    text, here = path.read_text(encoding="utf-8"), {line for name, line in seen if name == str(path)}
    found = set[int]()
    for lines, by in statements(ast.parse(text).body):
        if here and (by is None or not here.isdisjoint(by)):
            found |= set(lines)
    return found & code_lines(text)


# What is emitted


def at_first() -> None:
    """Kernels of then: masks, ranges, strides, heads that share keys; bytes, forecasts and cuts of their tables."""
    from golden_texts import GOLDENS, cases, offered

    from pebblesim.advice.cards import card
    from pebblesim.advice.launch_costs import launch_costs
    from pebblesim.advice.tiles import hopper_tiling, kernels_for, least_room, too_large, within
    from pebblesim.kernels.domains import Call
    from pebblesim.kernels.gluon_bytes import crossing
    from pebblesim.kernels.gluon_widths import in_parts
    from pebblesim.kernels.storage import padded
    from pebblesim.language import masks
    from pebblesim.language.program import Range
    from pebblesim.language.registry import get

    def whole(d: int) -> bool:
        rng = Range("d", None)
        return in_parts(rng, {"d": d}) == padded(rng, {"d": d})

    for name, case in GOLDENS.items():
        if "bias" not in name and not ("gluon" in name and "softcap" in name):
            case.text()
    for tiling in offered().values():
        for case in cases(tiling):
            if not tiling.gluon or (whole(case.d) and whole(case.sizes["d_v"])):
                case.text()
    for tiling in offered().values():
        if tiling.gluon and not whole(tiling.widths[1]):
            continue
        schedule, d = get(tiling.schedule), tiling.widths[1]
        for n, mask in ((4096, None), (4095, None), (4095, "causal"), (4096, "window:200"), (4095, "band:200")):
            dims = {"n_q": n, "n_k": n, "d_k": d, "d_v": d, "d_r": 64}
            rectangle = schedule.problem.rectangle
            dims = {name: dims[name] for name in (schedule.problem if rectangle is None else rectangle).dims}
            band = masks.of(mask)
            with suppress(Exception):  # latent ones take no mask
                costs = launch_costs(tiling, dims, "bfloat16", 4, band)
                too_large(((each.name, each.storage) for each in costs), 2**17, 2**18)
            if tiling.gluon:
                with suppress(Exception):
                    crossing(schedule.in_dims(dims).under(band), {**dims, **tiling.blocks}, "bfloat16", band)
        tiling.refusal(Call(dims))
        within(tiling, dims, 4, "bfloat16", 2**24)
        least_room(tiling, dims, "bfloat16")
    hopper_tiling("flash2-forward", {"d": 128})
    kernels_for("forward", Call({"n": 4096, "d": 64}), card("H100").size("shared_per_block"))


def softcap() -> None:
    """Scores that are capped by Gluon kernels."""
    from golden_texts import GOLDENS

    for name, case in GOLDENS.items():
        if "softcap" in name:
            case.text()


def columns_in_parts() -> None:
    """Heads of 192 and 576 columns, and values narrower than keys, in Gluon kernels."""
    from golden_texts import cases, offered

    for tiling in offered().values():
        for case in cases(tiling) if tiling.gluon else ():
            case.text()


def bias() -> None:
    """A bias, its gradient, and several sequences that share one."""
    from golden_texts import GOLDENS

    for name, case in GOLDENS.items():
        if "bias" in name:
            case.text()


def sinks() -> None:
    """Softmaxes that begin with a sink."""
    from golden_texts import MASKS, offered

    from pebblesim.kernels.gluon import gluon
    from pebblesim.kernels.sinks import sinking
    from pebblesim.kernels.triton import triton
    from pebblesim.language.masks import Band
    from pebblesim.language.registry import get

    for tiling in offered().values():
        for n, mask in ((4096, None), (4095, Band("causal", *MASKS["causal"], at_end=True))):
            d = min(tiling.widths[1], 128)
            sizes = {"n_q": n, "n_k": n, "d_k": d, "d_v": d, "R": 2, **tiling.blocks}
            schedule = get(tiling.schedule)
            if schedule.problem.name == "forward":
                with suppress(Exception):
                    (gluon if tiling.gluon else triton)(
                        sinking(schedule.in_dims(sizes).under(mask)), sizes, mask=mask, shared=1, **tiling.options
                    )


CAPABILITIES: tuple[Callable[[], None], ...] = (at_first, softcap, columns_in_parts, bias, sinks)
"""What kernels can do, in the order in which it came."""


def main() -> None:
    import pebblesim.cli  # noqa: F401 — so that nothing of the files of kernels is loaded while lines are collected

    every = {path: code_lines(path.read_text(encoding="utf-8")) for path in FILES}
    left, sizes = {path: set(lines) for path, lines in every.items()}, dict[str, int]()
    for emits in CAPABILITIES:
        with traced() as seen:
            emits()
        found = {path: executed(path, seen) & left[path] for path in FILES}
        checked = sum(len(lines) for path, lines in found.items() if path.name == CHECKER)
        sizes[emits.__doc__ or ""] = sum(map(len, found.values())) - checked
        if checked:
            sizes["Rules that Gluon programs are checked by."] = checked
        left = {path: lines - found[path] for path, lines in left.items()}
    refused = {path: refusals(path) & lines for path, lines in left.items()}
    sizes["Refusals: what is raised, and what asks for it alone."] = sum(map(len, refused.values()))
    sizes["What none of these executes."] = sum(len(left[path] - refused[path]) for path in FILES)
    for what, number in sizes.items():
        print(f"{number:>6,}  {what}")
    print(f"{sum(map(len, every.values())):>6,}  all of kernels")
    for path in FILES if "-v" in sys.argv else ():
        for line in sorted(left[path] - refused[path]):
            print(f"{NAMES[path]}:{line}: {path.read_text(encoding='utf-8').splitlines()[line - 1]}")


def refusals(path: Path) -> set[int]:
    """The lines of statements that raise an error, and of branches that end so."""
    found = set[int]()
    for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Raise) and not each.orelse:
            found |= set(range(each.body[0].lineno, (each.end_lineno or 0) + 1))
        elif isinstance(each, ast.Raise):
            found |= set(range(each.lineno, (each.end_lineno or 0) + 1))
    return found


if __name__ == "__main__":
    main()
