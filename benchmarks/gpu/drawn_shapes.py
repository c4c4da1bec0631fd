"""Attentions that are drawn by a seed, their tensors, and their results in float64."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

WIDTHS = (64, 64, 80, 96, 128, 128, 128, 160, 192, 256, 256, 256, 320, 448, 512, 512, 576, 768, 1024)
MASKS = ("causal",) * 4 + ("none",) * 2 + ("window", "packed")
SHARED = (1, 1, 1, 2, 4, 8)
LENGTHS = 6, 15
"""Logarithms to base 2 of the least and of the largest length."""

MOST_OPERATIONS, MOST_BYTES = 2e13, 2**29
"""Operations of a forward pass, and bytes of Q, that a shape may have."""

ROWS = 2**26
"""Scores that are computed at once in float64."""


@dataclass(frozen=True)
class Shape:
    """An attention of (batch, heads, n, d).

    Attributes:
        mask: "none", "causal", "window" (causal, with `left` keys before each query) or "packed" (causal in sequences).
        starts: where packed sequences begin, and the end of the last.
    """

    batch: int
    kv_heads: int
    shared: int
    n: int
    d: int
    mask: str
    left: int | None = None
    starts: tuple[int, ...] = ()

    @property
    def heads(self) -> int:
        """Heads of queries in each batch."""
        return self.kv_heads * self.shared

    @property
    def pairs(self) -> int:
        """Allowed pairs of a head."""
        n, left = self.n, self.left
        if self.mask == "none":
            return n * n
        if self.mask == "packed":
            return sum((b - a) * (b - a + 1) // 2 for a, b in zip(self.starts, self.starts[1:], strict=False))
        over = 0 if left is None else max(0, n - left - 1)
        return n * (n + 1) // 2 - over * (over + 1) // 2

    def operations(self, way: str) -> float:
        """Useful operations of a pass, or of "both"."""
        by = {"forward": 4, "backward": 10, "both": 14}[way]
        return float(by * self.pairs * self.d * self.heads * self.batch)

    def __str__(self) -> str:
        mask = {"window": f"window {self.left}", "packed": f"{len(self.starts) - 1} packed"}.get(self.mask, self.mask)
        return f"{self.batch} x {self.heads}/{self.kv_heads}, n = {self.n:,}, d = {self.d}, {mask}"

    def row(self) -> dict[str, Any]:
        """The shape, for a row of results."""
        return {**asdict(self), "starts": list(self.starts)}


GROUPS = (
    Shape(1, 2, 8, 9801, 512, "causal"),
    Shape(1, 2, 8, 16384, 512, "causal"),
    Shape(1, 4, 2, 16384, 512, "causal"),
    Shape(1, 4, 2, 32768, 512, "causal"),
    Shape(1, 2, 8, 8730, 96, "causal"),
    Shape(1, 2, 8, 9672, 128, "none"),
    Shape(1, 8, 8, 7198, 192, "causal"),
    Shape(1, 8, 8, 10486, 256, "causal"),
    Shape(4, 16, 1, 4096, 192, "none"),
    Shape(4, 16, 1, 4096, 192, "causal"),
)
"""Chosen shapes: heads that share keys, in which tables do not fit or others were ahead, and d = 192."""


def _short() -> Shape:
    """A batch of short sequences, as in fine-tuning and vision."""
    batch, kv_heads, shared = _SHORT.choice((8, 16, 32, 64)), _SHORT.choice((4, 8, 12)), _SHORT.choice((1, 1, 2, 4))
    n, d = round(2 ** _SHORT.uniform(6, 9)), _SHORT.choice((64, 64, 80, 96, 128, 128))
    return Shape(batch, kv_heads, shared, n, d, _SHORT.choice(("causal", "none")))


_SHORT = random.Random(4411)

SHORT = tuple(_short() for _ in range(12))
"""Short and many: shapes that a seed drew."""


def drawn_short(seed: int, number: int) -> Shape:
    """The short shape of this number: 32 to 512 tokens, also odd, of 8 to 512 heads in all."""
    chance = random.Random(f"short {seed}/{number}")
    n, heads = round(2 ** chance.uniform(5, 9)), 2 ** chance.uniform(3, 9)
    n = chance.choice((n, -(-n // 32) * 32))
    shared, kv_heads = chance.choice((1, 1, 1, 4)), chance.choice((2, 4, 8))
    batch = max(1, round(heads / shared / kv_heads))
    return Shape(batch, kv_heads, shared, n, chance.choice((64, 80, 96, 128)), chance.choice(("causal", "none")))


def drawn(seed: int, number: int) -> Shape:
    """The shape of this number; each is drawn apart, so that a longer race has the same first ones."""
    chance = random.Random(f"{seed}/{number}")
    d, mask, shared = chance.choice(WIDTHS), chance.choice(MASKS), chance.choice(SHARED)
    n = round(2 ** chance.uniform(*LENGTHS))
    if chance.random() < 0.4:  # as many texts are filled up
        n = max(64, n // 64 * 64)
    batch, kv_heads = 2 ** chance.randrange(6), 2 ** chance.randrange(5)
    left = 2 ** chance.randrange(6, 13) if mask == "window" else None
    starts = tuple(sorted({0, n, *(chance.randrange(1, n) for _ in range(chance.randrange(1, 16)))}))

    def made() -> Shape:
        packed = mask == "packed"
        return Shape(1 if packed else batch, kv_heads, shared, n, d, mask, left, starts if packed else ())

    while made().operations("forward") > MOST_OPERATIONS or batch * kv_heads * shared * n * d * 2 > MOST_BYTES:
        if batch > 1 and mask != "packed":
            batch //= 2
        elif kv_heads > 1:
            kv_heads //= 2
        elif shared > 1:
            shared //= 2
        else:
            n = n // 2 + 1
            starts = tuple(sorted({min(each, n) for each in starts}))
    return made()


def tensors(torch: Any, shape: Shape, seed: int = 0, laid: str = "heads") -> tuple[list[Any], Any]:
    """Q, K and V, which want gradients, and the gradient of O."""
    made = torch.Generator("cuda").manual_seed(seed)
    heads = shape.heads, shape.kv_heads, shape.kv_heads, shape.heads
    found = []
    for each in heads:
        sizes = (shape.batch, each, shape.n, shape.d) if laid == "heads" else (shape.batch, shape.n, each, shape.d)
        x = torch.randn(sizes, device="cuda", dtype=torch.bfloat16, generator=made)
        found.append(x if laid == "heads" else x.transpose(1, 2))
    return [each.requires_grad_() for each in found[:3]], found[3]


def allowed(torch: Any, shape: Shape, rows: slice) -> Any:
    """Booleans (rows, n): the pairs of some queries that are allowed; None for all."""
    if shape.mask == "none":
        return None
    i, j = torch.arange(shape.n, device="cuda")[rows, None], torch.arange(shape.n, device="cuda")
    found = j <= i
    if shape.mask == "window":
        found &= j >= i - shape.left
    if shape.mask == "packed":
        number = torch.bucketize(j, torch.tensor(shape.starts[1:], device="cuda"), right=True)
        found &= number[rows, None] == number
    return found


def right(torch: Any, shape: Shape, x: list[Any], dO: Any) -> dict[str, Any]:
    """O, dQ, dK and dV in float64 of the first batch's first head of keys, from the words of 16 bits."""
    shared, n = shape.shared, shape.n
    Q, K, V = (each.detach()[0, :heads].double() for each, heads in zip(x, (shared, 1, 1), strict=True))
    dO, K, V, scale = dO[0, :shared].double(), K[0], V[0], shape.d**-0.5
    found = {"O": torch.zeros_like(Q), "dQ": torch.zeros_like(Q), "dK": torch.zeros_like(K), "dV": torch.zeros_like(V)}
    for rows in _parts(n, max(1, ROWS // (n * shared))):
        S = Q[:, rows] @ K.T * scale
        if (mask := allowed(torch, shape, rows)) is not None:
            S.masked_fill_(~mask, -torch.inf)
        P = torch.softmax(S, -1)
        O = P @ V
        dS = P * (dO[:, rows] @ V.T - (dO[:, rows] * O).sum(-1, keepdim=True)) * scale
        found["O"][:, rows], found["dQ"][:, rows] = O, dS @ K
        found["dK"] += torch.einsum("hij,hid->jd", dS, Q[:, rows])
        found["dV"] += torch.einsum("hij,hid->jd", P, dO[:, rows])
    return found


def errors(true: dict[str, Any], made: dict[str, Any]) -> dict[str, float]:
    """‖made - true‖ / ‖true‖ of each result; of those of all heads the first is compared, with its group."""
    found = {}
    for name, right_one in true.items():
        own = made[name].detach()[0, : right_one.shape[0]] if right_one.dim() == 3 else made[name].detach()[0, 0]
        found[name] = float((own.double() - right_one).norm() / right_one.norm())
    return found


def _parts(n: int, rows: int) -> Iterator[slice]:
    return (slice(start, min(start + rows, n)) for start in range(0, n, rows))
