"""Passes that are made again by the driver of the card, against their first calls: errors and results; on a GPU.

python benchmarks/gpu/direct.py [-o FOLDER] [--time-limit 120]

Prints a line for each kind of call: the largest relative difference of its results, or the error. Then for other
lengths, which passes that were traced serve: against passes that nothing is known of. Then in CUDA graphs, on several
streams, in several threads, and with tensors that are freed before later calls. FOLDER/direct.jsonl has the lines.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

SAME = 2e-3
"""Largest relative difference of results whose sums in float32 are added in another order."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="folder of the rows")
    parser.add_argument("--time-limit", type=float, default=240.0, help="seconds after which nothing new is begun")
    parser.add_argument("--part", action="append", default=[], help="lengths, masked, latent …: these alone, in order")
    asked = parser.parse_args()
    until = time.monotonic() + asked.time_limit
    if asked.output:
        asked.output.mkdir(parents=True, exist_ok=True)

    def say(**row: Any) -> None:
        print(json.dumps(row)[:300], flush=True)
        if asked.output:
            with (asked.output / "direct.jsonl").open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")

    import torch
    from timing import here

    from pebblesim.operator.known import recorded

    say(driver=recorded.driver() is not None, **here(torch))
    parts = _graphs, _streams, _threads, _freed, _biased, _latent, _masked, _lengths, _kinds
    for part in [globals()[f"_{name}"] for name in asked.part] or parts:
        try:
            part(torch, say, until)
        except Exception as error:  # which is what this is about
            say(part=part.__name__, error=f"{type(error).__name__}: {error}"[:300])


def _kinds(torch: Any, say: Callable[..., None], until: float) -> None:
    """Each kind of call, made again."""
    from drawn_host import _calls, _off, kinds

    from pebblesim.operator.known import recorded

    for kind in kinds():
        if kind.extra in ("lengths", "nothing") or time.monotonic() > until:
            continue
        _, call, sets = next(_calls(torch, kind))  # ours are the first
        try:
            say(kind=kind.name, off=_off(torch, call, sets), passes=_taken(recorded))
        except Exception as error:  # which is what this is about
            say(kind=kind.name, error=f"{type(error).__name__}: {error}"[:300])


def _taken(recorded: Any) -> list[str]:
    """How the passes that are kept are made."""
    return [f"{key[0]}: {type(each).__name__}" for key, each in recorded._KEPT.items()]


SHAPES = (
    (2, 4, 1, 128, {"is_causal": True}),
    (2, 4, 1, 64, {"is_causal": True}),
    (1, 2, 4, 128, {"is_causal": True}),
    (2, 3, 1, 256, {"is_causal": True}),
    (1, 2, 1, 512, {"is_causal": True}),
    (1, 2, 4, 512, {"is_causal": True}),
    (2, 4, 1, 128, {}),
    (2, 3, 1, 96, {"window": (100, 0)}),
    (1, 2, 2, 192, {"is_causal": True}),
    (3, 1, 1, 64, {}),
)
"""Batches, KV heads, query heads of each, head dimension, and options."""


def _tensors(torch: Any, shape: Any, n: int, n_k: int | None = None) -> list[Any]:
    batch, kv_heads, shared, d, _ = shape
    of = (kv_heads * shared, n), (kv_heads, n_k or n), (kv_heads, n_k or n), (kv_heads * shared, n)
    made = [torch.randn(batch, length, heads, d, device="cuda", dtype=torch.bfloat16) for heads, length in of]
    return [each.transpose(1, 2).requires_grad_(at < 3) for at, each in enumerate(made)]


def _made(torch: Any, shape: Any, x: list[Any]) -> list[Any]:
    from pebblesim.gpu.torch import attention

    out = attention(*x[:3], enable_gqa=True, **shape[-1])
    return [out, *torch.autograd.grad(out, x[:3], x[3])]


@contextmanager
def _unknown() -> Any:
    """Let nothing be known of any pass."""
    from pebblesim.operator.known import eager, recorded
    from pebblesim.operator.known.recent import Recent

    found, recorded.sizes_of = recorded.sizes_of, lambda *given: None
    alike, eager._ALIKE = eager._ALIKE, Recent(eager.MOST)
    eager._CHECKED.clear()
    try:
        yield
    finally:
        recorded.sizes_of, eager._ALIKE = found, alike
        eager._CHECKED.clear()


def _far(made: list[Any], right: list[Any]) -> float:
    return max(
        float((a.float() - b.float()).norm() / b.float().norm().clamp(min=1e-6))
        for a, b in zip(made, right, strict=True)
    )


def _lengths(torch: Any, say: Callable[..., None], until: float) -> None:
    """Drawn lengths, each of them new: what was traced serves them."""
    from pebblesim.operator.known import recorded

    for shape in SHAPES:
        if time.monotonic() > until:
            return
        drawn, worst = random.Random(7), 0.0
        for turn in range(20):
            n = drawn.choice((drawn.randint(1, 64), drawn.randint(257, 512), drawn.randint(257, 512), 512, 384))
            x = _tensors(torch, shape, n, n if turn % 5 else drawn.randint(257, 512))
            made = _made(torch, shape, x)
            with _unknown():
                right = _made(torch, shape, x)
            worst = max(worst, far := _far(made, right))
            if far > SAME:
                say(part="lengths", shape=str(shape), n=n, n_k=x[1].shape[2], off=far)
        traced = sum(len(each.traced) for each in recorded._KINDS.values())
        say(part="lengths", shape=str(shape), off=worst, right=worst <= SAME, traced=traced)


def _latent(torch: Any, say: Callable[..., None], until: float) -> None:
    """Values that are a part of the keys, or lie elsewhere in turn; the last shape has tables of scores."""
    from pebblesim.gpu.torch import attention

    drawn = random.Random(11)
    for heads, lengths in ((16, [drawn.randint(130, 250) for _ in range(6)]), (128, [1024, 1000, 1024])):
        worst = 0.0
        for turn, n in enumerate(lengths * 2):
            q, k = (torch.randn(1, each, n, 576, device="cuda", dtype=torch.bfloat16) for each in (heads, 1))
            dO, elsewhere = torch.randn(1, heads, n, 512, device="cuda", dtype=torch.bfloat16), turn % 3 == 2
            x = [each.requires_grad_() for each in (q, k)]

            def made(x: Any = x, dO: Any = dO, elsewhere: bool = elsewhere) -> list[Any]:
                value = x[1][..., :512]
                out = attention(*x, value.clone() if elsewhere else value, is_causal=True, enable_gqa=True)
                return [out, *torch.autograd.grad(out, x, dO)]

            found = [made() for _ in range(2)]
            with _unknown():
                right = made()
            worst = max(worst, *(_far(each, right) for each in found))
        say(part="latent", heads=heads, off=worst, right=worst <= SAME)


def _masked(torch: Any, say: Callable[..., None], until: float) -> None:
    """Drawn packed and padded sequences, and sinks."""
    from pebblesim.gpu.torch import attention

    drawn = random.Random(3)

    def packed(n: int) -> dict[str, Any]:
        starts = [0, *sorted(drawn.randint(0, n) for _ in range(drawn.randint(1, 5)))]
        return {"cu_seqlens": torch.tensor(starts, dtype=torch.int32, device="cuda"), "is_causal": n % 2 == 0}

    def padding(n: int) -> dict[str, Any]:
        mask = torch.zeros(2, n, dtype=torch.bool, device="cuda")
        mask[0, drawn.randint(1, n) :] = True
        mask[1, : drawn.randint(0, n - 1)] = True
        return {"key_padding_mask": mask, "is_causal": n % 2 == 0}

    def sinks(n: int) -> dict[str, Any]:
        return {"sinks": torch.randn(4, device="cuda", requires_grad=True), "is_causal": n % 2 == 0}

    for draw in (packed, padding, sinks):
        for d in (64, 128, 256):
            worst = 0.0
            for _ in range(16):
                n = drawn.randint(257, 512)
                x, rest = _tensors(torch, (2, 4, 1, d, {}), n), draw(n)
                learning = [*x[:3], *(each for each in rest.values() if getattr(each, "requires_grad", False))]
                found = []
                for _ in range(3):
                    out = attention(*x[:3], **rest)
                    found.append([out, *torch.autograd.grad(out, learning, x[3])])
                with _unknown():
                    out = attention(*x[:3], **rest)
                    right = [out, *torch.autograd.grad(out, learning, x[3])]
                worst = max(worst, *(_far(each, right) for each in found))
            say(part="masked", of=draw.__name__, d=d, off=worst, right=worst <= SAME)


def _biased(torch: Any, say: Callable[..., None], until: float) -> None:
    """A bias with a gradient, of each head or of all, again and again, also with the gradient of O in another order."""
    from pebblesim.gpu.torch import attention

    for n, heads, shared in ((256, 4, False), (320, 4, True), (301, 4, False)):
        worst = 0.0
        for turn in range(6):
            x = _tensors(torch, (2, 4, 1, 64, {}), n)
            bias = torch.randn(1, 1 if shared else heads, n, n, device="cuda", requires_grad=True)
            dO = x[3] if turn % 3 else x[3].contiguous()
            found = []
            for unknown in (False, True):
                with _unknown() if unknown else nullcontext():
                    out = attention(*x[:3], bias=bias)
                    found.append([out, *torch.autograd.grad(out, [*x[:3], bias], dO)])
            worst = max(worst, _far(*found))
        say(part="biased", n=n, shared=shared, off=worst, right=worst <= SAME)


def _graphs(torch: Any, say: Callable[..., None], until: float) -> None:
    """Passes that are captured: traced before, and for a length that is new at the capture."""
    for shape in SHAPES[:6]:
        for n in (300, 301, 450):
            _made(torch, shape, _tensors(torch, shape, n))
        for n in (301, 333, 449):
            x = _tensors(torch, shape, n)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = _made(torch, shape, x)
            with torch.no_grad():
                for each in x:
                    each.copy_(torch.randn_like(each))
            graph.replay()
            with _unknown():
                right = _made(torch, shape, x)
            say(part="graphs", shape=str(shape), n=n, off=(far := _far(made, right)), right=far <= SAME)


def _streams(torch: Any, say: Callable[..., None], until: float) -> None:
    """Calls on several streams in turn, of several lengths."""
    shape, streams = SHAPES[0], [torch.cuda.Stream() for _ in range(4)]
    sets = [_tensors(torch, shape, 260 + 7 * at) for at in range(24)]
    torch.cuda.synchronize()
    made = []
    for at, x in enumerate(sets * 2):
        with torch.cuda.stream(streams[at % 4]):
            made.append(_made(torch, shape, x))
    torch.cuda.synchronize()
    with _unknown():
        far = max(_far(each, _made(torch, shape, x)) for each, x in zip(made, sets * 2, strict=True))
    say(part="streams", off=far, right=far <= SAME)


def _threads(torch: Any, say: Callable[..., None], until: float) -> None:
    """Threads whose lengths differ, of one kind."""
    shape, found = SHAPES[0], list[Any]()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(20):
                x = _tensors(torch, shape, 257 + (37 * turn + 11 * number) % 250)
                found.append((x, _made(torch, shape, x)))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with _unknown():
        far = max(_far(made, _made(torch, shape, x)) for x, made in found)
    say(part="threads", calls=len(found), off=far, right=far <= SAME and len(found) == 80)


def _freed(torch: Any, say: Callable[..., None], until: float) -> None:
    """Inputs and outputs of earlier calls are freed, and their memory is written, while later ones are made."""
    shape, worst = SHAPES[0], 0.0
    for turn in range(30):
        x = _tensors(torch, shape, 257 + 8 * turn)
        made = [each.clone() for each in _made(torch, shape, x)]
        kept = [each.detach().clone().requires_grad_(each.requires_grad) for each in x]
        del x
        torch.full((2**22,), float("nan"), device="cuda")
        with _unknown():
            worst = max(worst, _far(made, _made(torch, shape, kept)))
    say(part="freed", off=worst, right=worst <= SAME)


if __name__ == "__main__":
    main()
