"""How fast is it? One table: what was measured, what it must reach (or a peer's figure), and the ratio of the two.

A ratio above 1 is better than asked. Every measurement runs in a fresh process, so that none profits from another's
caches or is charged for its memory. It measures and does not judge: the exit code is always 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Row = dict[str, Any]

PEER = 21e6  # moves/s: OneStopParallel's IsValid (C++) on one core
MIB, GIB = 2**20, 2**30


def row(what: str, measured: str, reach: str, ratio: float) -> Row:
    return {"what": what, "measured": measured, "reach": reach, "ratio": ratio, "met": ratio >= 1}


def speed(moves: float) -> str:
    return f"{moves / 1e6:.0f} M moves/s"


def best(job: Callable[[], Any], repeats: int, timer: Callable[[], float] = time.perf_counter) -> float:
    """The least wall time, or that of another timer, of some runs, in seconds."""
    return min(timeit.repeat(job, timer=timer, number=1, repeat=repeats))


def peak_rss() -> int:
    """The most memory this process has had resident, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def rss() -> int:
    """The memory resident now, in bytes; where the system does not tell, the most until now."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak_rss()


class Setup:
    """`small-cache` on its graph: everything that is ready before the first move."""

    def __init__(self, n: int, d: int, M: int) -> None:
        import pebblesim as ps
        from pebblesim.language.registry import get

        self.counted = ps.count("small-cache", n=n, d=d, M=M)
        self.program, self.sizes = get("small-cache").program, {"n": n, "d": d, **self.counted.blocks}
        self.graph, self.M = ps.graph("backward", n=n, d=d), M

    def moves(self) -> Any:
        from pebblesim.game.player import moves

        return moves(self.program, self.sizes, self.graph.families)

    def play(self, stream: Any, after_chunk: Callable[[], Any] = lambda: None) -> int:
        """Play on a fresh referee, check the outcome, and return the number of moves."""
        from pebblesim.game.referee import Referee

        game = Referee(self.graph, self.M)
        for chunk in stream:
            game.play(chunk)
            after_chunk()
        end = game.finish()
        assert end.complete and (end.io, end.peak_red) == (self.counted.io, self.counted.peak_red), str(end)
        return end.moves


def measure_games() -> list[Row]:
    """The referee alone, moves emitted and played, and the memory that takes."""
    import numpy as np

    small = Setup(8, 4, 24)
    small.play(small.moves())  # compiles, or loads what was compiled
    counts, grown, allowed = [], [], []
    for setup in [Setup(n, 64, 1024) for n in (64, 256)]:
        start, levels = rss(), [0]
        counts.append(setup.play(setup.moves(), lambda levels=levels: levels.append(rss())))
        grown.append((max(levels) - start) / MIB)
        allowed.append(setup.graph.vertices / MIB + 4)  # the referee's byte for each vertex, and some buffers
    both = counts[1] / best(lambda: setup.play(setup.moves()), 5)
    chunks = np.array_split(np.concatenate([chunk.copy() for chunk in setup.moves()]), 8)
    alone = counts[1] / best(lambda: setup.play(chunks), 5)
    game, streams = f"{counts[1] / 1e6:.1f} M moves", f"{counts[0] / 1e6:.1f} and {counts[1] / 1e6:.1f} M moves"
    memory, limits = (f"{sizes[0]:.0f} and {sizes[1]:.0f} MiB" for sizes in (grown, allowed))
    ratio = min(limit / size for limit, size in zip(allowed, grown, strict=True))
    return [
        row(f"referee alone on one core, {game}", speed(alone), "100 M moves/s", alone / 100e6),
        row("  against the best peer (C++, quoted)", speed(alone), speed(PEER), alone / PEER),
        row(f"emitted and played on one core, {game}", speed(both), "25 M moves/s", both / 25e6),
        row(f"  memory this adds, {streams}", memory, f"{limits} (pebbles + 4 MiB)", ratio),
    ]


def measure_play() -> list[Row]:
    """The whole of `play`: graph built, game played, values checked."""
    start = time.perf_counter()
    import pebblesim as ps

    played = ps.play("small-cache", n=256, d=64, M=1024)
    seconds, memory = time.perf_counter() - start, peak_rss()
    assert played.passed, str(played)
    return [
        row("play small-cache, n=256 d=64 M=1024, in full", f"{seconds:.1f} s", "60 s", 60 / seconds),
        row("  its peak of resident memory", f"{memory / GIB:.2f} GiB", "4 GiB", 4 * GIB / memory),
    ]


def measure_formula() -> list[Row]:
    """The closed form at one point, and over a sweep."""
    import numpy as np

    import pebblesim as ps

    def counted(n: int, d: int, B: int) -> int:
        return ps.count("small-cache", n=n, d=d, M=4 * B * B, blocks={"B": B}).io

    evaluate, point = ps.formula("small-cache").evaluate, {"n": 2**30, "d": 64, "B": 16}
    exact = evaluate(**point) == counted(**point)
    random = np.random.default_rng(0)
    sweep = {name: random.integers(1, top, 10**6) for name, top in (("n", 2**20), ("d", 257), ("B", 513))}
    values, sample = evaluate(**sweep), random.integers(0, 10**6, 100)
    exact_too = all(int(values[i]) == counted(**{name: int(sizes[i]) for name, sizes in sweep.items()}) for i in sample)
    once, many = best(lambda: evaluate(**point), 1000), best(lambda: evaluate(**sweep), 5)
    one, some = ("exact" if fine else "WRONG" for fine in (exact, exact_too))
    return [  # a wrong value is worth nothing
        row(f"closed form at n=2^30, against count: {one}", f"{once * 1e6:.1f} µs", "1 ms", exact * 1e-3 / once),
        row(f"  at 10^6 points, 100 against count: {some}", f"{many:.3f} s", "1 s", exact_too / many),
    ]


def tiled_product(n: int = 192, b: int = 16, requests: int = 10_000_000) -> Any:
    """A[i, k], B[k, j], C[i, j] for each multiplication of a product in tiles of b x b, as numbers of words."""
    import numpy as np

    at = np.indices((n // b,) * 3 + (b,) * 3, dtype=np.int32).reshape(6, -1)[:, : requests // 3 + 1]
    i, j, k = at[:3] * b + at[3:]
    words = [i * n + k, n * n + k * n + j, 2 * n * n + i * n + j]
    return np.ascontiguousarray(np.stack(words, -1).ravel()[:requests], np.int32)


def measure_caches() -> list[Row]:
    """LRU and OPT of a stream of requests, in turns with libCacheSim where it is installed, in processor time."""
    import tempfile

    import numpy as np

    from pebblesim.cachesim import policies, traces
    from pebblesim.cachesim.streams import of_ids

    M = 768
    stream = of_ids(tiled_product())
    every = np.arange(1, len(stream.sizes) + 1)
    ours: dict[str, Callable[[], Any]] = {
        "LRU of M = 768": lambda: policies.misses(stream, [M], "lru")[0].misses,
        "OPT of M = 768, next uses computed": lambda: policies.misses(stream, [M], "opt")[0].misses,
        "LRU of all M in one pass": lambda: int(policies.lru_counts(stream, every)[0, M - 1]),
    }
    found = [job() for job in ours.values()]
    right = "exact" if found == [624_309, 418_048, 624_309] else "WRONG"
    theirs: dict[str, Callable[[], Any]] = {}
    try:
        import libcachesim as lcs
    except ImportError:
        lcs = None
    with tempfile.TemporaryDirectory() as folder:
        if lcs is not None:
            path = Path(folder) / "product.oracleGeneral.bin"
            traces.save(stream, path)
            reader = lcs.TraceReader(trace=str(path), trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE)

            def replay(policy: Any) -> None:
                reader.reset()
                policy(M).process_trace(reader)

            theirs = {"LRU": lambda: replay(lcs.LRU), "OPT": lambda: replay(lcs.Belady)}
        times: dict[str, list[float]] = {name: [] for name in (*ours, *theirs)}
        for _ in range(5):
            for name, job in (*ours.items(), *theirs.items()):
                times[name].append(best(job, 1, time.process_time))
    rates = {name: len(stream) / min(seconds) for name, seconds in times.items()}
    one, opt, all_of_them = (rates[name] for name in ours)
    quoted = "" if theirs else ", quoted"
    peers = rates["LRU"] if theirs else 52e6, rates["OPT"] if theirs else 30e6

    def million(rate: float) -> str:
        return f"{rate / 1e6:.0f} M requests/s"

    correct = right == "exact"
    return [
        row(f"LRU of M = 768, 10 M requests: {right}", million(one), "200 M requests/s", correct * one / 200e6),
        row(
            "  against 4 x libCacheSim" + quoted,
            million(one),
            f"4 x {million(peers[0])}",
            correct * one / (4 * peers[0]),
        ),
        row("OPT of M = 768, next uses computed", million(opt), "30 M requests/s", correct * opt / 30e6),
        row(
            "  against libCacheSim, next uses given" + quoted, million(opt), million(peers[1]), correct * opt / peers[1]
        ),
        row("LRU of all M in one pass", million(all_of_them), "30 M requests/s", correct * all_of_them / 30e6),
    ]


def measure_start() -> list[Row]:
    """The command line from cold, in turns with importing numpy."""
    count = ["-m", "pebblesim", "count", "-n", "4096", "-d", "64", "-M", "16384"]
    commands = {"count": count, "numpy": ["-c", "import numpy"]}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(15):
        for name, arguments in commands.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - start)
    ours, numpy = (1e3 * min(seconds) for seconds in times.values())
    return [
        row("cold start of pebblesim count", f"{ours:.0f} ms", f"3 x {numpy:.0f} ms (import numpy)", 3 * numpy / ours)
    ]


MEASUREMENTS = {
    "games": measure_games,
    "play": measure_play,
    "formula": measure_formula,
    "caches": measure_caches,
    "start": measure_start,
}


def in_a_fresh_process(name: str) -> list[Row]:
    if sys.stderr.isatty():
        print(f"measuring: {name}", file=sys.stderr)
    done = subprocess.run([sys.executable, __file__, "--measure", name], stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else [row(name, "failed, see above", "", 0.0)]


def machine() -> str:
    versions = f"Python {platform.python_version()}, numpy {version('numpy')}, numba {version('numba')}"
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {versions}"


def print_table(rows: list[Row]) -> None:
    print(machine())
    lines = [["what", "measured", "reach", "ratio"]]
    marks = [f"{r['ratio']:.3g}" + ("" if r["met"] else "  MISSED") for r in rows]
    lines += [[r["what"], r["measured"], r["reach"], mark] for r, mark in zip(rows, marks, strict=True)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)  # in this process, as JSON
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(MEASUREMENTS[chosen.measure]()))
        return
    rows = [r for name in MEASUREMENTS for r in in_a_fresh_process(name)]
    print(json.dumps({"machine": machine(), "rows": rows}, ensure_ascii=False)) if chosen.json else print_table(rows)


if __name__ == "__main__":
    main()
