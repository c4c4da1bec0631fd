"""FlashAttention's own tests over our `attention`: sets of their parameters that a seed draws, and what became of each.

`python benchmarks/gpu/flash_attention.py CHECKOUT --file tests --sets 2000 --seed 1` runs `tests/test_flash_attn.py` of
a checkout of Dao-AILab/flash-attention, `--file hopper` its `hopper/test_flash_attn.py`, each set in one of several
processes. Memory is filled before each call: the allocator's with 777, all that `attention` takes with NaN. A result is
in the rows as soon as there is one, and what is there is not run again. `--table` prints the table of
docs/attention-tests.md. `--package DIR` tests a package of kernels in our place, which `pebblesim gpu emit --target
package` has written.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
ROWS, OF_PACKAGE = HERE / "flash_attention.jsonl", HERE / "package.jsonl"

FIXED: dict[str, Any] = {
    "dropout_p": 0.0,
    "alibi": False,
    "paged_kv_block_size": None,
    "page_size": None,
    "new_kv": False,
    "rotary_fraction": 0.0,
}
"""Parameters of which only one value is drawn, since attention has no others."""

LEFT_OUT = {
    "test_flash_attn_generator_arg_must_be_none": "arguments of functions in C++",
    "test_flash_attn_varlen_paged_kv_num_splits": "pages of a cache",
    "test_flash_attn_kvcache_paged_block_table_bounds": "pages of a cache",
    "test_flash_attn_combine": "sums of splits are no function here",
    "test_flash_attn_varlen_combine_linearize": "sums of splits are no function here",
    "test_flash3_bw_compatibility": "schemas of their operators",
}
"""Tests that are not drawn, and why."""

SWITCHES = ("FP8", "PAGEDKV", "APPENDKV", "SPLIT", "PACKGQA")
"""FLASH_ATTENTION_DISABLE_* of the file for Hopper: what attention has not, and hints that change nothing here."""

ALONE = "race_condition"
"""Tests that take most of a card's memory: one at a time."""

DEALT = 100
"""Of so many sets, those that compile the fewest kernels are run first, and those of `ALONE` last."""


def tests_of(checkout: Path, file: str) -> dict[str, Callable[..., None]]:
    """The tests of a file, by name and in their order, over our interface."""
    import flash_interface

    os.environ |= {f"FLASH_ATTENTION_DISABLE_{name}": "TRUE" for name in SWITCHES}
    flash_interface.install(checkout)
    sys.path.insert(0, str(checkout / file))
    made = importlib.util.spec_from_file_location(f"{file}_of_flash_attention", checkout / file / "test_flash_attn.py")
    assert made is not None and made.loader is not None
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return {name: each for name, each in vars(module).items() if name.startswith("test_")}


def parameters_of(test: Callable[..., None]) -> dict[str, list[Any]]:
    """Names of a test's parameters, several of them with a comma between, and their values."""
    marks = [each for each in getattr(test, "pytestmark", ()) if each.name == "parametrize"]
    found = {}
    for names, values in (mark.args for mark in reversed(marks)):
        found[names] = [FIXED[names]] if FIXED.get(names, values[0]) in values and names in FIXED else list(values)
    return found


def drawn(tests: dict[str, Callable[..., None]], seed: int, sets: int) -> list[tuple[str, dict[str, Any]]]:
    """Sets of parameters that differ: a test, then a value of each parameter, all alike likely."""
    known = {name: parameters_of(test) for name, test in tests.items() if name not in LEFT_OUT}
    draw, found, seen = random.Random(seed), [], set()
    for _ in range(100 * sets):
        name = draw.choice(list(known))
        values = {names: draw.choice(several) for names, several in known[name].items()}
        skipped = values.get("has_qv") and values["d"] != 64  # by the test itself
        if (key := f"{name} {values}") not in seen and not skipped:
            seen.add(key)
            given = {}
            for names, value in values.items():
                own = names.split(",")
                given |= zip(map(str.strip, own), value if len(own) > 1 else [value], strict=True)
            found.append((name, given))
        if len(found) == sets:
            break
    return found


# -- one process that runs sets ----------------------------------------------------------------------------------


def poison(torch: Any) -> None:
    """Leave 777 in the memory that the allocator gives out next."""
    sizes = [2**each for each in (8, 10, 12, 14, 16, 18, 20, 22, 24) for _ in range(12)]
    held = [torch.full((size,), 777.0, dtype=torch.float16, device="cuda") for size in (*sizes, 2**28)]
    del held


def package_of(folder: Path) -> Any:
    """A package of kernels from its folder, by the name that the kernels library gives it; it fills memory itself."""
    os.environ["PEBBLESIM_FILL"] = "nan"
    built = folder / "build" / "torch-cuda"
    name = json.loads((built / "metadata.json").read_text(encoding="utf-8"))["id"]
    made = importlib.util.spec_from_file_location(name, built / "__init__.py")
    assert made is not None and made.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(made)
    made.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def work(options: argparse.Namespace) -> None:
    """Run the sets whose numbers come in, line by line, and print a row of each."""
    import torch

    if options.cpu:
        as_if_cuda(torch)
    import flash_interface

    from pebblesim.operator.launching.fresh import filled

    if options.package is not None:
        flash_interface.use(package_of(options.package), options.file == "tests")
    sets = drawn(tests := tests_of(options.checkout, options.file), options.seed, options.sets)
    if not options.cpu:
        flash_interface.BEFORE.append(lambda: poison(torch))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # tests print what they find
    for line in sys.stdin:
        number, begun = int(line), time.monotonic()
        name, given = sets[number]
        with filled(float("nan")):
            result, said = became(torch, lambda name=name, given=given: tests[name](**given))
        if ALONE in name and not options.cpu:
            torch.cuda.empty_cache()  # or the next of them, in another process, would find the card full
        row = {"number": number, "test": name, "result": result, "said": said, "seconds": time.monotonic() - begun}
        if result == "failed":
            row["set"] = {key: str(value) for key, value in given.items()}
        print(json.dumps(row), file=answers)
        if "CUDA error" in said:
            sys.exit(1)


def became(torch: Any, test: Callable[[], None]) -> tuple[str, str]:
    """What became of a test, "passed", "refused", "skipped" or "failed", and what was said."""
    import flash_interface
    from pytest import skip

    for waited in (5, 20, 60, 0):
        try:
            test()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return "passed", ""
        except flash_interface.Refused as error:
            return "refused", sentence(error)
        except skip.Exception as error:
            return "skipped", str(error)
        except torch.OutOfMemoryError as error:  # other processes have it
            if not waited:
                return "failed", str(error)[:300]
        except AssertionError as error:
            return "failed", compared(error)
        except Exception as error:  # of any kind; packages have their own class of errors
            if any(each.__name__ == "PebblesimError" for each in type(error).__mro__):
                return "refused", sentence(error)
            return "failed", f"{type(error).__name__}: {error}"[:300]
        torch.cuda.empty_cache()
        time.sleep(waited)
    raise AssertionError


def sentence(error: Exception) -> str:
    """What was said, whatever the numbers in it."""
    return re.sub(r"\d+(,\d{3})*", "N", str(error))


def compared(error: AssertionError) -> str:
    """What the comparison that failed was of, with its numbers."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    code, line = trace.tb_frame.f_code, trace.tb_lineno
    tree = ast.parse(Path(code.co_filename).read_text(encoding="utf-8"))
    said = next(x for x in ast.walk(tree) if isinstance(x, ast.Assert) and x.lineno <= line <= (x.end_lineno or line))
    if not (isinstance(said.test, ast.Compare) and isinstance(said.test.ops[0], ast.LtE)):
        return f"not so: {ast.unparse(said.test)}"
    of = trace.tb_frame.f_globals, trace.tb_frame.f_locals
    found, allowed = (eval(ast.unparse(each), *of) for each in (said.test.left, said.test.comparators[0]))
    return f"{ast.unparse(said.test.left)} is {found:.2g} for {allowed:.2g}"


def as_if_cuda(torch: Any) -> None:
    """Have "cuda" be the CPU: attention is computed by its definition, and the tests test the interface."""
    from torch.overrides import TorchFunctionMode

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    torch.cuda.get_device_capability = lambda *device: (9, 0)
    torch.cuda.get_device_properties = lambda *device: argparse.Namespace(total_memory=2**40)
    OnTheCpu().__enter__()


# -- all of them --------------------------------------------------------------------------------------------------


def kernels(given: dict[str, Any]) -> int:
    """About how many forward kernels a set compiles: the tests for Hopper run through widths of V, by d."""
    d, with_chunks = given.get("d", 0), "V_colmajor" in given or "add_unused_qkv" in given
    widths = 2 if given.get("has_qv") or 128 < d <= 192 else 3 if d <= 64 else 1
    return widths * (2 if with_chunks else 1)


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of the sets that were not run yet, as they come, until there is no more time."""
    until = time.monotonic() + options.seconds
    done = {each for row in rows_of(options.rows) if same(row, options) for each in numbers(row["done"])}
    sets = drawn(tests_of(options.checkout, options.file), options.seed, options.sets)
    wanted = [each for each, (_, given) in enumerate(sets) if not options.given or given.get(options.given)]
    dealt = sorted(wanted, key=lambda each: (each // DEALT, ALONE in sets[each][0], kernels(sets[each][1])))
    left = [each for each in dealt if each not in done][::-1]
    rows, alone, waits = [], threading.Lock(), threading.Condition()
    command = [sys.executable, __file__, *sys.argv[1:], "--work"]

    def deal() -> None:
        process = None
        while time.monotonic() < until and left:
            number = left.pop()
            name = sets[number][0]
            lock = alone if ALONE in name else None
            if lock is not None and not lock.acquire(blocking=False):
                left.insert(0, number)
                time.sleep(0.2)
                continue
            if process is None or process.poll() is not None:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            print(number, file=process.stdin, flush=True)
            begun = time.monotonic()
            killed = threading.Timer(max(1.0, until - time.monotonic()), process.kill)
            killed.start()
            line = process.stdout.readline()
            killed.cancel()
            if lock is not None:
                lock.release()
            if line:
                row = json.loads(line)
            elif time.monotonic() < until:
                row = {"number": number, "test": name, "result": "failed", "said": "the process ended"}
                row["seconds"] = time.monotonic() - begun
            else:
                break
            with waits:
                rows.append(row)
                waits.notify()
        if process is not None:
            with process:
                process.kill()

    threads = [threading.Thread(target=deal, daemon=True) for _ in range(options.workers)]
    for each in threads:
        each.start()
    while rows or any(each.is_alive() for each in threads):
        with waits:
            waits.wait_for(lambda: rows, timeout=0.2)
            found = rows[:]
            rows.clear()
        yield from found


def numbers(text: str) -> list[int]:
    """The numbers of a text such as "0-3,7"."""
    ends = [tuple(map(int, each.split("-"))) for each in text.split(",") if each]
    return [each for first, *last in ends for each in range(first, (last or [first])[0] + 1)]


def spans(found: list[int]) -> str:
    """Numbers as a text."""
    parts: list[list[int]] = []
    for each in sorted(found):
        if parts and parts[-1][1] == each - 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, one for each run; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows whole: a run that is stopped leaves what has ended."""
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


def same(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether a row is of these draws."""
    return (row["file"], row["seed"], row["on"]) == (options.file, options.seed, options.on)


def summary(options: argparse.Namespace, found: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of a run: results by test, refusals by sentence, and each set that failed."""
    results: dict[str, Counter[str]] = {}
    for each in found:
        results.setdefault(each["test"], Counter())[each["result"]] += 1
    said = {
        result: dict(Counter(each["said"] for each in found if each["result"] == result).most_common())
        for result in ("refused", "skipped")
    }
    failed = [each for each in found if each["result"] == "failed"]
    return {
        **{name: getattr(options, name) for name in ("file", "seed", "on", "commit")},
        "done": spans([each["number"] for each in found]),
        "seconds": {name: round(sum(each["seconds"] for each in found if each["test"] == name), 1) for name in results},
        "results": {name: dict(results[name]) for name in sorted(results)},
        **said,
        "failed": failed,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The table of docs/attention-tests.md: what became of the sets of each test, and why some were not computed."""
    lines = [
        "| file | test | sets | passed | failed | refused | skipped by itself |",
        "|" + "---|" * 7,
    ]
    kinds = ("passed", "failed", "refused", "skipped")
    for file in dict.fromkeys(row["file"] for row in rows):
        whole: dict[str, Counter[str]] = {}
        for row in rows:
            for name, results in row["results"].items() if row["file"] == file else ():
                whole.setdefault(name, Counter()).update(results)
        whole["all"] = sum(whole.values(), Counter())
        for name, results in whole.items():
            cells = [f"{number:,}" for number in (results.total(), *(results[kind] for kind in kinds))]
            shown = "all" if name == "all" else f"`{name.removeprefix('test_flash_attn_')}`"
            lines.append("| " + " | ".join([f"`{file}`", shown, *cells]) + " |")
    reasons: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for kind in ("refused", "skipped"):
            reasons.update({(kind, sentence): number for sentence, number in row[kind].items()})
    lines += ["", "| sets | not computed because |", "|---|---|"]
    lines += [
        f"| {number:,} | {kind}: {_in_words_of_today(sentence) or 'no reason'} |"
        for (kind, sentence), number in reasons.most_common()
    ]
    return "\n".join(lines)


def _in_words_of_today(sentence: str) -> str:
    """A refusal as it reads since rows were measured."""
    return sentence.replace("heads of queries on each head of keys", "query heads on each KV head")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--file", choices=["tests", "hopper"], default="tests")
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--with", dest="given", help="only sets in which this parameter is not 0, such as softcap")
    parser.add_argument("--rows", type=Path, help="file of the rows; another one for a package")
    parser.add_argument("--package", type=Path, help="folder of a package of kernels, which is tested in our place")
    parser.add_argument("--commit", default="0251105", help="of flash-attention, for the rows")
    parser.add_argument("--on", default="H200", help="the card, for the rows")
    parser.add_argument("--cpu", action="store_true", help="by the definition on the CPU: a test of the interface")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rows = options.rows or (ROWS if options.package is None else OF_PACKAGE)
    if options.work:
        work(options)
    elif options.table:
        print(table(rows_of(options.rows)))
    else:
        if options.cpu:
            import torch

            options.on = "CPU"
            as_if_cuda(torch)
        found, before = list[dict[str, Any]](), rows_of(options.rows)
        for row in run(options):
            found.append(row)
            if row["result"] == "failed":
                print(json.dumps(row), flush=True)
            keep(options.rows, [*before, summary(options, found)])
        print(table([summary(options, found)]))


if __name__ == "__main__":
    main()
