"""Attention whose heads share few keys, trained with these heads in parts and together; on a Hopper GPU.

    python benchmarks/gpu/heads_apart.py -o FOLDER [--seed 1] [--drawn 2] [--time-limit 150]
    python benchmarks/gpu/heads_apart.py -o FOLDER --groups [--time-limit 60]

Latent keys have 576 columns, of which the first 512 are the values. For 128 heads and 1,024 keys, for shapes that the
seed draws, and for some others, `attention` is timed with gradients: on the card alone, with launches, and kernel by
kernel, with so many parts of the heads. With `--groups`, groups of 8 heads have keys and values of d = 96 to 256. A row
has the times in microseconds, TFLOP/s of useful operations, errors against float64, and whether a
second call gives the same bits; `rested` has both passes with a pause before each call, and `load` the clock, the
power and the kernels while calls run one after the other. What is there is not measured again. `--table` shows the
rows, without a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from resumed import arguments, resumed


class Shape(NamedTuple):
    """Keys, query heads, KV heads, head dimensions, and whether values are the first columns of keys."""

    n: int
    heads: int
    kv_heads: int = 1
    d_k: int = 576
    d_v: int = 512
    latent: bool = True

    @property
    def name(self) -> str:
        """The shape, as rows name it."""
        if self.latent:
            return f"{self.heads} heads, n = {self.n}"
        return f"{self.heads} heads on {self.kv_heads}, n = {self.n}, d = {self.d_k}"


SHAPES = tuple(Shape(*each) for each in ((1024, 128), (1024, 64), (2048, 64), (2048, 128), (512, 128), (4096, 16)))
"""Latent attentions."""

GROUPS = tuple(
    Shape(n, heads, kv_heads, d, d, latent=False)
    for n, heads, kv_heads, d in ((8730, 16, 2, 96), (9672, 16, 2, 128), (7198, 64, 8, 192), (10486, 64, 8, 256))
)
"""Groups of heads: those of the race."""

CAUSAL = {9672: (False,)}
"""Masks of groups, where they are not causal alone."""

MOST_PAIRS = 2**28
"""Most pairs of queries and keys with which errors are found; where there are more, for some hundred keys."""

HEATING = 400
"""Calls before those whose kernels are timed under load."""

FEWEST, MOST = 300, 3000
"""Keys that are drawn."""


def rows(torch: Any, asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """A row for each shape, mask and number of parts; that which `attention` takes is the first."""
    from pebblesim.advice import cards
    from pebblesim.kernels.gluon import grid
    from pebblesim.operator.launching import launching

    if asked.together:
        grid.STREAMED_TOGETHER = asked.together * 2**20
    chance = random.Random(asked.seed)
    drawn = [Shape(chance.randint(FEWEST, MOST), chance.choice((16, 64, 128))) for _ in range(asked.drawn)]
    chosen, long_enough = launching.parts_of_heads, launching.long_enough
    for shape in GROUPS if asked.groups else (SHAPES[0], *drawn, *SHAPES[1:]):
        shared, n = shape.heads // shape.kv_heads, shape.n
        most = max(1, cards.of_device(torch.cuda.get_device_properties(0)).size("multiprocessors") // -(-n // 128))
        tried = [2**at for at in range(1, shared.bit_length()) if asked.groups or most / 4 < 2**at <= 2 * most]
        for causal in CAUSAL.get(n, (True,)) if asked.groups else (True, False):
            for parts in (0,) if asked.chosen else (0, 1, *tried):
                key = f"{shape.name}, {'causal' if causal else 'none'}, {parts or 'chosen'} parts"
                key += f", {asked.together} MiB" * (asked.together > 0)
                if key in known or (parts > 1 and asked.few and shape != SHAPES[0]):
                    continue
                seen: list[int] = []

                def some(*given: Any, parts: int = parts, seen: list[int] = seen) -> int:
                    seen.append(parts or chosen(*given))
                    return seen[-1]

                launching.parts_of_heads = some
                launching.long_enough = (lambda *given: True) if parts else long_enough
                row = {"key": key, **shape._asdict(), "causal": causal, "seed": asked.seed}
                row |= {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
                try:
                    yield row | measured(torch, shape, causal) | {"parts": seen[-1] if seen else 1}
                except Exception as error:
                    yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
                torch.cuda.empty_cache()


def forget() -> None:
    """Forget the passes that were made: the next ones may have other parts."""
    from pebblesim.operator.known import eager, recorded

    for table in (recorded._KINDS, recorded._KEPT, recorded._SEEN, eager._CHECKED, eager._ALIKE, eager._COMPILED):
        table.clear()


def right(torch: Any, leaves: list[Any], dO: Any, causal: bool) -> tuple[Any, ...]:
    """The gradients in float64."""
    wide = [each.detach().double().requires_grad_() for each in leaves]
    q, (k, v), n = wide[0], (wide[1], wide[-1][..., : dO.shape[-1]]), dO.shape[-2]
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, device="cuda", dtype=torch.bool).triu(1), -torch.inf)
    found: tuple[Any, ...] = torch.autograd.grad(torch.softmax(scores, -1) @ v, wide, dO.double())
    return found


def measured(torch: Any, shape: Shape, causal: bool) -> dict[str, Any]:
    """Times of both passes, and of forward alone; errors and bits."""
    from timing import by_kernel, rested, together, under_load

    from pebblesim.gpu.torch import attention

    def inputs(n: int) -> tuple[list[Any], Any]:
        make = torch.Generator(device="cuda").manual_seed(n)
        sizes = [(shape.heads, shape.d_k), (shape.kv_heads, shape.d_k), (shape.kv_heads, shape.d_v)]
        sizes = [*sizes[: 2 if shape.latent else 3], (shape.heads, shape.d_v)]
        *x, dO = (torch.randn(1, h, n, d, device="cuda", dtype=torch.bfloat16, generator=make) for h, d in sizes)
        return [each.requires_grad_() for each in x], dO

    def attend(*x: Any) -> Any:
        return attention(x[0], x[1], x[-1][..., : shape.d_v], is_causal=causal, enable_gqa=True)

    forget()
    leaves, dO = inputs(shape.n if shape.n**2 * shape.heads <= MOST_PAIRS else 131 + shape.n % 64)
    found, again = (torch.autograd.grad(attend(*leaves), leaves, dO) for _ in "12")
    pairs = zip(found, right(torch, leaves, dO, causal), strict=True)
    wrong = [float(f"{(a - b).norm() / b.norm():.2e}") for a, b in pairs]
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    del found, again
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    leaves, dO = inputs(shape.n)
    calls = {
        "forward": [lambda: attend(*(each.detach() for each in leaves))],
        "both": [lambda: torch.autograd.grad(attend(*leaves), leaves, dO)],
    }
    times = together(torch, calls, 3)
    number = shape.n**2 * shape.heads * (0.5 if causal else 1.0)
    useful = {"forward": 2 * number * (shape.d_k + shape.d_v), "both": 2 * number * (4 * shape.d_k + 3 * shape.d_v)}
    spent = {name: each["card_us"] for name, each in times.items()} | {"wall": times["both"]["wall_us"]}
    spent["backward"] = spent["both"] - spent["forward"]
    useful |= {"wall": useful["both"], "backward": useful["both"] - useful["forward"]}
    rates = {name: round(useful[name] / each * 1e-6) for name, each in spent.items()}
    both, host = calls["both"][0], times["both"]["host_us"]
    alone = {"us": round(rested(torch, both, host), 1)}
    alone |= {"tflops": round(useful["both"] / alone["us"] * 1e-6)}
    load = under_load(torch, both) | {"kernels": by_kernel(torch, both, HEATING)}
    peak = torch.cuda.max_memory_allocated() >> 20
    kernels = by_kernel(torch, both)
    return {"times": times, "tflops": rates, "errors": wrong, "same_bits": same, "MiB": peak, "kernels": kernels} | {
        "rested": alone,
        "load": load,
    }


def table(found: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = ["| heads, keys | mask | parts | forward | backward | both | both, with launches |", "|---" * 7 + "|"]
    for row in found:
        if "tflops" in row:
            mask, rates = "causal" if row["causal"] else "none", row["tflops"]
            shape, _, parts = row["key"].rpartition(f", {mask}, ")
            said = [shape, mask, parts]
            said += [str(rates[name]) for name in ("forward", "backward", "both", "wall")]
            lines.append(f"| {' | '.join(said)} |")
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__doc__, 150.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=2, help="shapes that the seed draws")
    parser.add_argument("--few", action="store_true", help="other numbers of parts for the first shape alone")
    parser.add_argument("--chosen", action="store_true", help="as many parts as attention chooses, and no others")
    parser.add_argument("--groups", action="store_true", help="groups of heads, with d = 96 to 256")
    parser.add_argument("--together", type=int, default=0, help="MiB of L2 that heads may share, in the place of 52")
    resumed(parser.parse_args(), "heads_apart.jsonl", rows, table)


if __name__ == "__main__":
    main()
