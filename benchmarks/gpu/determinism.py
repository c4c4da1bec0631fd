"""The price of the same bits in PyTorch's own backward passes, beside that of `attention`; on a GPU.

    python benchmarks/gpu/determinism.py -o FOLDER [--time-limit 60]

For the shapes of docs/determinism.md each kernel runs backward as it is and under
torch.use_deterministic_algorithms(True): FlashAttention-2 (as PyTorch has it), cuDNN's, and ours. A row of
FOLDER/determinism.jsonl has the microseconds of the card alone, whether five calls have the same bits, and the bytes
that a call allocates. What is there is not measured again. `--table` shows the rows, without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from resumed import arguments, resumed

SHAPES = tuple((n, d, 65536 // n) for n, d in product((1024, 4096, 16384), (64, 96, 128)))
"""Tokens, head dimension and heads."""

KERNELS = {"ours": None, "FlashAttention-2": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION"}
"""Backends of PyTorch, by what they are called."""


@contextmanager
def asking(torch: Any, same_bits: bool) -> Iterator[None]:
    """Ask PyTorch for the same bits at each call, or not, without that it fills new memory."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(same_bits)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def backward(torch: Any, backend: str | None, x: list[Any], dO: Any) -> Callable[[], Any]:
    """A backward pass, of a forward pass that is made now."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from pebblesim.gpu.torch import attention

    if backend is None:
        out = attention(*x)
    else:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            out = torch.nn.functional.scaled_dot_product_attention(*x)
    return lambda: torch.autograd.grad(out, x, dO, retain_graph=True)


def rows(torch: Any, asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """A row for each shape: times of all kernels, both ways."""
    from timing import together

    for n, d, heads in SHAPES:
        key = f"{heads} heads, n = {n}, d = {d}"
        if key in known:
            continue
        x = [torch.randn(1, heads, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"]
        dO, calls, same, room = torch.randn_like(x[0]), dict[str, list[Any]](), dict[str, bool](), dict[str, int]()
        refused: dict[str, str] = {}
        for (name, backend), same_bits in product(KERNELS.items(), (False, True)):
            named = f"{name}{', same bits' if same_bits else ''}"
            with asking(torch, same_bits):
                try:
                    call = backward(torch, backend, x, dO)
                    first = call()
                    same[named] = all(torch.equal(a, b) for _ in range(4) for a, b in zip(first, call(), strict=True))
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    call()
                    room[named] = torch.cuda.max_memory_allocated() - before
                    calls[named] = [with_bits(torch, call, same_bits)]
                except Exception as error:
                    refused[named] = f"{type(error).__name__}: {error}"[:200]
        times = {name: round(each["card_us"], 1) for name, each in together(torch, calls, 5).items()}
        row = {"key": key, "n": n, "d": d, "heads": heads, "us": times, "same_bits": same, "bytes": room}
        yield row | {"refused": refused, "card": torch.cuda.get_device_name(), "torch": torch.__version__}


def with_bits(torch: Any, call: Callable[[], Any], same_bits: bool) -> Callable[[], Any]:
    """A call that asks for the same bits, or does not."""

    def asked() -> Any:
        with asking(torch, same_bits):
            return call()

    return asked


def table(found: list[dict[str, Any]]) -> str:
    """The rows as a table: microseconds as they are, and the time with the same bits divided by that."""
    lines = ["| n | d | heads | " + " | ".join(f"{name}: µs; same bits" for name in KERNELS) + " |"]
    lines.append("|---" * (3 + len(KERNELS)) + "|")
    for row in found:
        said = []
        for name in KERNELS:
            one, other = (row["us"].get(f"{name}{end}") for end in ("", ", same bits"))
            said.append("–" if not one or not other else f"{one:,.0f}; {other / one:.2f}")
        lines.append(f"| {row['n']:,} | {row['d']} | {row['heads']} | {' | '.join(said)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    resumed(arguments(__doc__, 60.0).parse_args(), "determinism.jsonl", rows, table)
