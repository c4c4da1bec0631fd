"""Try PyTorch 2.10 to 2.15, each with the Triton that it asks for: tests on the CPU, kernels compiled without a card.

python benchmarks/gpu/versions.py [-o benchmarks/gpu/versions.jsonl] [--only 2.15.0 2.13.0:3.6.0 …] [--wheels FOLDER]
                                  [--cuda FOLDER]

Each version gets an environment of its own, which is deleted again, and a row; a second run keeps the rows of other
versions, and compiles nothing with a Triton that another one had. Behind a colon stands another Triton. Then the table
in docs/attention-tests.md is written from the rows. PyTorch's wheels need NVIDIA's libraries to be imported, also
without a card: they are installed with it or, if there are such in FOLDER, taken from there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "attention-tests.md"
BEGIN, END = "<!-- versions -->\n", "<!-- end of versions -->\n"

PYTORCH = ("2.10.0", "2.11.0", "2.12.1", "2.13.0:3.6.0", "2.13.0:3.7.1", "2.14.1", "2.15.0")
"""Versions, each with the Triton that it asks for; a build of 2.13 for the CPU asks for none, and 3.6 was on a card."""

ON_CPU = ("operator", "graphs", "releases", "refusals")
"""Files of tests, behind `tests/pytorch/test_torch_`."""

FOR_TRITON = (80, 90, 100, 120)
"""Compute capabilities that Triton's kernels are compiled for; those of Gluon are for Hopper, 90."""

SAMPLE = ("flash2-forward", "backward-two-pass-blocked")
"""Schedules whose kernels of Triton are compiled, all tiles for a head dimension of 128."""

OF_TESTS = ("pytest", "pytest-xdist", "hypothesis", "numpy", "scipy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "gpu" / "versions.jsonl")
    parser.add_argument("--only", nargs="*", default=PYTORCH, help="versions of PyTorch, or PyTorch:Triton")
    parser.add_argument("--wheels", type=Path, help="wheels that are here already")
    parser.add_argument("--cuda", type=Path, help="NVIDIA's libraries for CUDA 13, as pip installs them")
    parser.add_argument("--compile", action="store_true", help="compile here, and print what was compiled")
    asked = parser.parse_args()
    if asked.compile:
        print(json.dumps(compiled()))
        return
    rows = {}
    if asked.output.exists():
        rows = {(row["torch"], row["triton"]): row for row in map(json.loads, asked.output.read_text().splitlines())}
    for version, _, triton in (each.partition(":") for each in asked.only):
        with tempfile.TemporaryDirectory(prefix=f"torch-{version}-", dir=ROOT.parent) as folder:
            known = {row["triton"]: row["compiled"] for row in rows.values()}
            row = tried(version, triton, Path(folder), asked.wheels, asked.cuda, known)
        rows[version, row["triton"]] = row
        print(json.dumps(row), flush=True)
        rows = {pair: rows[pair] for pair in sorted(rows, key=numbers)}
        asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, _, behind = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(rows.values()) + END + behind.partition(END)[2], encoding="utf-8")


def numbers(pair: tuple[str, str]) -> list[int]:
    """The numbers of two versions, by which they are sorted."""
    return [int(each) for version in pair for each in version.split(".")]


def tried(
    version: str, triton: str, folder: Path, wheels: Path | None, cuda: Path | None, known: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Install a version of PyTorch and try it.

    Args:
        version: PyTorch's.
        triton: Triton's; "" is the one that PyTorch asks for.
        folder: where the environment is made.
        wheels, cuda: see `main`.
        known: what was compiled before, by versions of Triton.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    found = ["--find-links", str(wheels)] if wheels else []
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", *found]
    subprocess.run([*pip, *(["--no-deps"] if cuda else []), f"torch=={version}"], check=True)
    needs = "from importlib.metadata import requires; print(*requires('torch'), sep='\\n')"
    asked = subprocess.run([python, "-c", needs], capture_output=True, text=True, check=True).stdout.splitlines()
    others = [each for each in asked if not re.match(r"nvidia|cuda", each) and "extra ==" not in each]
    if triton:
        others = [each for each in others if not each.startswith("triton")] + [f"triton=={triton}"]
    subprocess.run([*pip, *OF_TESTS, *others, "--editable", str(ROOT)], check=True)
    if cuda:
        (site,) = folder.glob("lib/python3.*/site-packages")
        (site / "cuda.pth").write_text(f"{cuda.resolve()}\n")
    of_triton = "import torch, triton, sys; print(torch.__version__, triton.__version__, *sys.version_info[:2])"
    whole, triton, *of_python = run([python, "-W", "ignore", "-c", of_triton]).split()
    files = [f"tests/pytorch/test_torch_{name}.py" for name in ON_CPU]
    tests = subprocess.run(
        [python, "-m", "pytest", "-q", "-n0", "-m", "not gpu", "--show-capture=no", "-p", "no:cacheprovider", *files],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    ).stdout
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", tests.splitlines()[-1])}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", tests, re.M)
    made = known.get(triton) or json.loads(run([python, "-W", "ignore", __file__, "--compile"]).splitlines()[-1])
    row = {"torch": version, "build": whole, "triton": triton, "python": ".".join(of_python), "tests": counts}
    return row | ({"failed": failed} if failed else {}) | {"compiled": made}


def run(command: list[Any]) -> str:
    """The output of a program."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout


def compiled() -> dict[str, Any]:
    """Kernels that compile here, of those that were tried, by what they are for; and stores to local memory of each."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "pytorch")]
    found: dict[str, Any] = {}
    for target, name, spills in (*of_gluon(), *of_triton()):
        row = found.setdefault(target, {"tried": 0, "compiled": 0, "spilling": {}, "errors": {}})
        row["tried"] += 1
        if isinstance(spills, str):
            row["errors"][name] = spills
        else:
            row["compiled"] += 1
            if spills:
                row["spilling"][name] = spills
    return found


def of_gluon() -> Iterator[tuple[str, str, int | str]]:
    """Each kernel for Hopper, of the widest heads of its tiles, without a mask: stores in its loops, or the error."""
    import test_compiled_gluon as of_tests

    from pebblesim.advice.tiles import HOPPER
    from pebblesim.kernels.gluon.gluon import gluon, plans
    from pebblesim.kernels.words import is_float32
    from pebblesim.language.registry import get

    def stores(text: str, name: str, vectors: set[str], folder: Path) -> int:
        code, _ = of_tests.compiled(text, name, vectors, folder)
        return len(of_tests.spilled(code))

    for tiles in HOPPER:
        d = tiles.widths[1]
        widths = {"d_v": d, "d_r": 64} if tiles.schedule in of_tests.TOGETHER else {**tiles.widest, "d_k": d}
        dims = {"n_q": 4096, "n_k": 4096, **widths}
        program, sizes = get(tiles.schedule).in_dims(dims).program, {**dims, **tiles.blocks}
        made = gluon(program, sizes, scale=0.1, shared=1, dense=True, **tiles.options)
        vectors = {f"{name}_ptr" for name, tensor in program.tensors.items() if is_float32(program, tensor)}
        kept = plans(program, sizes, **tiles.options)
        for kernel in (each for each in made.kernels if each.launch.name in kept):
            yield "gluon sm_90", f"{tiles}: {kernel.name}", number_of(stores, made.text, kernel.name, vectors)


def of_triton() -> Iterator[tuple[str, str, int | str]]:
    """Each kernel of a sample of Triton's, for each kind of card: stores to local memory, or the error."""
    import test_compiled_kernels as of_tests

    def stores(case: Any, source: Any, kernel: Any, folder: Path) -> int:
        return of_tests.spilled(case, kernel, getattr(of_tests.module_in(folder, source), kernel.name), folder)

    of_tests.ARCHITECTURES.setdefault(100, "B200")
    for architecture in FOR_TRITON:
        for case in of_tests.cases(128, architecture=architecture, odd=True, strided=True):
            source = of_tests.offered(case) if case.tiling.schedule in SAMPLE else None
            for kernel in () if source is None else source.kernels:
                found = number_of(stores, case, source, kernel)
                yield f"triton sm_{architecture}", f"{case}: {kernel.name}", found


def number_of(make: Callable[..., int], *given: Any) -> int | str:
    """The number that a function gives, which compiles in an empty folder; or the first line of its error."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            return make(*given, Path(folder))
        except Exception as error:  # whatever a compiler raises
            return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def table(rows: Any) -> str:
    """The table of the document."""

    def cell(made: dict[str, Any] | None) -> str:
        if made is None:
            return ""
        of = f"{made['compiled']}" + f" of {made['tried']}" * (made["compiled"] < made["tried"])
        return of + f", {len(made['spilling'])} spill" * bool(made["spilling"])

    targets = ("gluon sm_90", *(f"triton sm_{each}" for each in FOR_TRITON))
    lines = [
        f"| PyTorch | Triton | tests | {' | '.join(targets)} |",
        "| --- | --- | --- |" + " --- |" * len(targets),
    ]
    for row in rows:
        tests = ", ".join(f"{number} {what}" for what, number in row["tests"].items()) or "not run"
        cells = (cell(row["compiled"].get(target)) for target in targets)
        lines.append(f"| {row['build']} | {row['triton']} | {tests} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
