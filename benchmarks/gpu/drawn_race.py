"""The race that a user runs: attentions drawn by a seed, timed with their launches; on a GPU.

python benchmarks/gpu/drawn_race.py --seed 1 --shapes 40 --time-limit 600 -o FOLDER [--peer ffpa --peer flash-attn]
python benchmarks/gpu/drawn_race.py --host [--ours] --time-limit 200 -o FOLDER
python benchmarks/gpu/drawn_race.py --groups --time-limit 100 -o FOLDER [--peer ffpa]
python benchmarks/gpu/drawn_race.py --short --time-limit 60 -o FOLDER
python benchmarks/gpu/drawn_race.py --given 1,2,8,8730,96,causal … --time-limit 100 -o FOLDER
python benchmarks/gpu/drawn_race.py --first --time-limit 200 -o FOLDER

Each row is appended to FOLDER/race.jsonl (host.jsonl, groups.jsonl, short.jsonl, given.jsonl, first.jsonl) as soon as
it is measured, and what is there is not measured again: a race goes on where it was stopped. `--again` measures shapes
again whose rows are of another commit; of a shape, the last row counts. `--table` and `--picture
FILE` show what is there, and `--document` writes it into the documents, without a GPU.
`wall_us` is what a program waits for, with the launches, of some calls in a row over several sets of tensors; `card_us`
the same of a card that waits for no launch; `host_us` what the host takes while the card is idle.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from resumed import add, there

WAYS = ("forward", "both")

PEERS = {"ffpa": "ffpa_attn", "flash-attn": "flash_attn", "flash-attn-4": "flash_attn"}
"""Modules of packages that race where they are installed."""


def main() -> None:
    asked = arguments()
    if asked.document:
        from drawn_document import document

        document(asked.output)
        return
    if asked.table or asked.picture:
        from drawn_report import picture, table

        if asked.table:
            table(asked.output)
        if asked.picture:
            picture(asked.output, asked.picture)
        return
    warnings.simplefilter("ignore")  # PyTorch's, of kernels that do not take a call
    part, rows = "race", race
    if asked.host or asked.first:
        from drawn_host import first_calls, host_times

        part, rows = ("host", host_times) if asked.host else ("first", first_calls)
    if asked.groups or asked.short or asked.given:
        part = "groups" if asked.groups else "short" if asked.short else "given"
    file = asked.output / f"{part}.jsonl"
    asked.commit = asked.commit or commit()
    known = {row["key"] for row in there(file) if not asked.again or row.get("commit", "") == asked.commit}
    asked.until = time.monotonic() + asked.time_limit
    whose = {"commit": asked.commit} if asked.commit else {}
    add(file, (row | whose for row in rows(asked, known)))


def arguments() -> argparse.Namespace:
    """What is asked for; it ends with a sentence where a peer that shall race is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--seed", type=int, nargs="*", default=[1])
    parser.add_argument("--shapes", type=int, default=40, help="how many of each seed")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds after which nothing new is begun")
    parser.add_argument("--peer", action="append", default=[], choices=PEERS)
    parser.add_argument("--flex", choices=("masks", "all", "none"), default="none", help="where FlexAttention races")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile kernels before the race")
    parser.add_argument("--mask", choices=("none", "causal", "window", "packed"), help="shapes with this mask alone")
    parser.add_argument("--commit", help="whose code is raced, for the rows; left out, git says it")
    parser.add_argument("--again", action="store_true", help="also shapes whose rows are all of other commits")
    parser.add_argument("--host", action="store_true", help="microseconds of the host, by kind of call")
    parser.add_argument("--ours", action="store_true", help="with --host: ours alone, by Triton's launcher as well")
    parser.add_argument("--first", action="store_true", help="seconds of first calls, with an empty cache of Triton")
    parser.add_argument("--groups", action="store_true", help="heads that share keys, and d = 192: chosen shapes")
    parser.add_argument("--short", action="store_true", help="batches of short sequences, drawn by a seed of their own")
    parser.add_argument("--given", nargs="*", type=given, help="these shapes: batch,kv_heads,shared,n,d,mask")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--document", action="store_true", help="write what documents say of these rows")
    asked = parser.parse_args()
    for peer in () if asked.document or asked.table or asked.picture else asked.peer:
        if importlib.util.find_spec(PEERS[peer]) is None:
            parser.error(f"{peer} is not installed; python -m pip install {peer.replace('ffpa', 'ffpa-attn')}")
    return asked


def commit() -> str:
    """The commit of this checkout, and whether files of it were changed; nothing where git does not know."""
    said = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(said, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def given(text: str) -> Any:
    """A shape of its numbers and its mask, "none" or "causal"."""
    from drawn_shapes import Shape

    *numbers, mask = text.split(",")
    return Shape(*map(int, numbers), mask)


def race(asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """A row for each shape: who took how long, and how right they are."""
    import torch
    from drawn_shapes import GROUPS, SHORT, drawn
    from timing import here

    from pebblesim.operator.known import native

    native.begin()  # it is compiled beside kernels
    pairs = [(seed, number) for number in range(asked.shapes) for seed in asked.seed]
    chosen = GROUPS if asked.groups else SHORT if asked.short else asked.given
    named = {str(each): each for each in chosen} if chosen else {f"{a}/{b}": drawn(a, b) for a, b in pairs}
    wanted = [each for each in named.items() if each[0] not in known and asked.mask in (None, each[1].mask)]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, asked.workers), get_context("spawn")) as pool:
        shapes = [each for _, each in wanted[: MOST_COMPILED if asked.workers else 0]]
        made = sum(pool.map(partial(compiled, peers=tuple(asked.peer)), shapes))
    card = here(torch)
    print(f"compiled for {made} shapes in {time.monotonic() - began:.0f} s", flush=True)
    for key, shape in wanted:
        if time.monotonic() > asked.until:
            return
        began = time.monotonic()
        row = {"key": key, "shape": str(shape), **shape.row(), **card}
        try:
            row |= raced(torch, shape, asked)
        except torch.OutOfMemoryError:
            row["error"] = "out of memory"
        torch.cuda.empty_cache()
        yield row | {"seconds": round(time.monotonic() - began, 1)}


AGAIN = 3
"""Calls of which the last one's errors count: ours is then one that is made again."""

KEPT = ("ours", "flash-attn-4")
"""Contenders that compile kernels at their first call, and keep them on disk."""

MOST_COMPILED = 120
"""Shapes whose kernels are compiled before the race."""


def compiled(shape: Any, peers: tuple[str, ...]) -> int:
    """Make both passes of a shape once, so that caches on disk hold our kernels, and others; 1 if ours ran."""
    import torch
    from contenders import contenders
    from drawn_shapes import tensors

    x, dO = tensors(torch, shape)
    found, done = contenders(torch, shape, "none", peers), 0
    for name, attend in found.items():
        if name in KEPT:
            try:
                step(torch, "both", attend, x, dO)
                torch.cuda.synchronize()
                done |= name == "ours"
            except Exception as error:  # the race says what it is
                print(shape, name, str(error)[:200], flush=True)
    del x, dO
    torch.cuda.empty_cache()
    return done


def raced(torch: Any, shape: Any, asked: Any) -> dict[str, Any]:
    """Errors, times and refusals of all contenders for a shape."""
    from contenders import contenders
    from drawn_shapes import errors, right, tensors
    from timing import sets_of, together

    sets = [tensors(torch, shape, seed) for seed in range(sets_of(2 * shape.batch * shape.heads * shape.n * shape.d))]
    true = right(torch, shape, *sets[0])
    attends, refused, wrong = contenders(torch, shape, asked.flex, tuple(asked.peer)), {}, {}
    for name, attend in list(attends.items()):
        try:
            x, dO = sets[0]
            for _ in range(AGAIN):
                out = attend(*x)
                made = dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(out, x, dO), strict=True))
            wrong[name] = errors(true, made | {"O": out})
        except Exception as error:  # of PyTorch, of its compiler, or of another package
            refused[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            del attends[name]
    del true
    row: dict[str, Any] = {"errors": wrong, "refused": refused, "sets": len(sets)}
    for way in WAYS:
        calls = {name: [partial(step, torch, way, attend, *each) for each in sets] for name, attend in attends.items()}
        row[way] = together(torch, calls)
    return row


def step(torch: Any, way: str, attend: Callable[..., Any], x: list[Any], dO: Any) -> None:
    """A forward pass without gradients, or both passes."""
    if way == "forward":
        with torch.no_grad():
            attend(*x)
        return
    torch.autograd.grad(attend(*x), x, dO)


if __name__ == "__main__":
    main()
