"""Errors of `attention` with masks and options in combination, beside 16-bit kernels of PyTorch; on a GPU.

python benchmarks/gpu/combined_errors.py -o FOLDER [--calls 100] [--seed 0] [--edges] [--time-limit 140] [--table]

Each call is drawn by its number and made three times. With `--edges` more of its options are at the end of what is
allowed: head dimensions up to 1,024, little or no workspace, sinks of -∞, a bias and a dense mask together. Errors are
those of O, L and all gradients against scores that are written out in float64. The peer is PyTorch's
`scaled_dot_product_attention` with a dense mask of numbers, keys and values repeated for each head, and sinks as one
more key. It has neither softcap nor a gradient of L: there, and where its 16-bit kernels refuse a call, the peer is a
16-bit kernel written out: sums in float32, P and dS rounded to 16 bits.
FOLDER/combined_errors.jsonl has a row for each call; calls that are there are not made again. With `--device cpu`
calls are in float64, and each result is right or not.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

from resumed import Row, arguments, resumed

DIMS = (
    *((16, 16), (32, 32), (64, 64), (64, 64), (128, 128), (128, 128), (80, 48), (128, 64)),
    *((192, 128), (256, 256), (256, 256), (512, 512), (576, 512)),
)
ADDED = "dB", "dM"
"""The gradients of what is added to scores: the first mask of numbers, and one beside a bias."""

MOST = 1.5
"""The largest ratio of errors that is right."""

LEAST = 1 / 16, 1 / 4
"""Errors below this part of one rounding of each term are as good as none; the second is for results of few numbers."""

FEW = 256


WIDE = (512, 512), (576, 512), (640, 640), (1024, 1024), (1024, 64), (96, 1024), (776, 512)
EDGES = " edges"
"""The end of the keys of calls with options at the end of what is allowed."""


def drawn(key: str) -> dict[str, Any]:
    """The call with this key: sizes, layout, masks and options."""
    draw = random.Random(f"combined {key}")
    maybe = lambda part: draw.random() < part  # noqa: E731
    lengths = [1 if maybe(0.06) else int(2 ** draw.uniform(1, 10.4)) for _ in range(2)]
    n_q, n_k = (lengths[0],) * 2 if maybe(0.5) else lengths
    d, d_v = draw.choice([*DIMS, (8 * draw.randint(1, 32), 8 * draw.randint(1, 32))])
    kv_heads, lead = draw.choice([1, 2, 3]), draw.choice([[], [1], [2], [1, 3], [2, 2]])
    case: dict[str, Any] = {
        "key": key,
        "lead": lead,
        "kv_heads": kv_heads,
        "heads": kv_heads * draw.choice([1, 1, 2, 4]),
    }
    case |= {"n_q": n_q, "n_k": n_k, "d": d, "d_v": d_v, "dtype": draw.choice(["bfloat16", "float16"])}
    case |= {"layout": draw.choice(["heads first", "tokens first", "cut from wider"]), "causal": maybe(0.4)}
    case |= {"align": "end" if maybe(0.3) else "start", "deterministic": maybe(0.3), "lse": maybe(0.25)}
    case["scale"] = draw.choice([-1, 1]) * draw.uniform(0.2, 2) * d**-0.5 if maybe(0.2) else None
    case["workspace"] = draw.choice([2**26, 2**28]) if maybe(0.2) else None
    batches = math.prod(lead)
    if maybe(0.25):
        case["window"] = [draw.choice([None, draw.randint(0, n_k), draw.randint(0, 64)]) for _ in range(2)]
    if maybe(0.25):
        pair, pieces = n_q != n_k or maybe(0.5), draw.randint(0, 5)
        ends = [n if maybe(0.7) else draw.randint(0, n) for n in ((n_q, n_k) if pair else (n_q,))]
        case["packed"] = [[0, *sorted(draw.randint(0, end) for _ in range(pieces)), end] for end in ends]
    if maybe(0.2):
        case["padded"] = [sorted(draw.sample(range(n_k + 1), 2)) for _ in range(draw.choice([1, batches]))]
    if maybe(0.2):
        sides = range(draw.choice([1, batches]))
        case["ranges"] = [[sorted(draw.randint(0, n_k) for _ in range(n_q)) for _ in sides] for _ in range(2)]
    if maybe(0.3):
        case["sinks"] = draw.choice(["bfloat16", "float32"])
    if max(d, d_v) <= 128 and maybe(0.5):
        heads = [case["heads"]]
        shapes = [heads, [1] * len(lead) + heads, [*lead, 1], lead + heads, []]
        case["dense"] = draw.choice(["bias", "bias", "numbers", "booleans"])
        case["dense_shape"] = [*draw.choice(shapes), draw.choice([n_q, n_q, 1]), n_k]
        case["dense_type"], case["holes"] = draw.choice([case["dtype"], "float32"]), maybe(0.5)
    elif max(d, d_v) <= 256 and maybe(0.3):
        case["softcap"] = draw.uniform(2, 30)
    return at_edges(case, draw) if key.endswith(EDGES) else case


def at_edges(case: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """A call with more of its options at the end of what is allowed."""
    if "dense" in case:
        lead, heads = case["lead"], case["heads"]
        shapes = [[heads], [*lead, 1], [*lead, heads], []]
        case |= {"dense": "bias", "beside": draw.choice(["numbers", "booleans"])}
        case["beside_shape"] = [*draw.choice(shapes), draw.choice([case["n_q"], 1]), case["n_k"]]
    elif "softcap" not in case:
        case["d"], case["d_v"] = draw.choice([*[(case["d"], case["d_v"])] * len(WIDE), *WIDE])
        case["workspace"] = draw.choice([0, 0, 2**20]) if max(case["d"], case["d_v"]) <= 512 else 2**28
    if draw.random() < 0.6:
        case["sinks"] = draw.choice(["bfloat16", "float32"])
        case["no_sink"] = [draw.random() < 0.5 for _ in range(case["heads"])]
    return case


def allowed(torch: Any, case: dict[str, Any], device: str) -> Any:
    """The pairs that masks other than a dense one allow: booleans (batch or 1, 1, n_q, n_k)."""
    n_q, n_k = case["n_q"], case["n_k"]
    i, j = torch.arange(n_q, device=device)[:, None], torch.arange(n_k, device=device)[None, :]
    pairs = torch.ones(1, 1, n_q, n_k, dtype=torch.bool, device=device)
    p, at = i + (n_k - n_q) * (case["align"] == "end"), j
    if packed := case.get("packed"):
        of_q, of_k, p, at = i - i - 1, j - j - 2, i.clone(), j.clone()
        starts = zip(packed[0], packed[0][1:], packed[-1], packed[-1][1:], strict=False)
        for number, (q0, q1, k0, k1) in enumerate(starts):
            mine, theirs = (i >= q0) & (i < q1), (j >= k0) & (j < k1)
            of_q, of_k = of_q.masked_fill(mine, number), of_k.masked_fill(theirs, number)
            shift = (k1 - k0) - (q1 - q0) if case["align"] == "end" else 0
            p, at = torch.where(mine, i - q0 + shift, p), torch.where(theirs, j - k0, at)
        pairs = pairs & (of_q == of_k)
    left, right = case.get("window", (None, None))
    if case["causal"]:
        right = 0
    if left is not None:
        pairs = pairs & (at >= p - left)
    if right is not None:
        pairs = pairs & (at <= p + right)
    if padded := case.get("padded"):
        first, end = torch.tensor(padded, device=device).mT[..., None, None, None]
        pairs = pairs & (j >= first) & (j < end)
    if ranges := case.get("ranges"):
        first, end = (torch.tensor(each, device=device)[:, None, :, None] for each in ranges)
        pairs = pairs & (j >= first) & (j < end)
    return pairs


def options(torch: Any, case: dict[str, Any], device: str) -> dict[str, Any]:
    """The arguments of `attention` that are not differentiated."""
    given = {name: case[name] for name in ("align", "deterministic", "scale", "workspace")}
    given |= {"enable_gqa": True, "is_causal": case["causal"], "return_lse": case["lse"]}
    given |= {name: case[name] for name in ("softcap",) if name in case}
    if "window" in case:
        given["window"] = tuple(case["window"])
    if "packed" in case:
        starts = [torch.tensor(each, dtype=torch.int32, device=device) for each in case["packed"]]
        given["cu_seqlens"] = tuple(starts) if len(starts) > 1 else starts[0]
    if "padded" in case:
        first, end = torch.tensor(case["padded"], device=device).mT[..., None]
        j = torch.arange(case["n_k"], device=device)
        given["key_padding_mask"] = (j < first) | (j >= end)
    if "ranges" in case:
        given["key_ranges"] = tuple(torch.tensor(each, dtype=torch.int32, device=device) for each in case["ranges"])
    return given


class Tensors:
    """Tensors of a call; `leaves` are differentiated, by the names of their gradients."""

    def __init__(self, torch: Any, case: dict[str, Any], device: str) -> None:
        self.case, self.torch = case, torch
        torch.manual_seed(random.Random(case["key"]).getrandbits(32))
        exact = device == "cpu"
        self.kind = kind = torch.float64 if exact else getattr(torch, case["dtype"])
        of = lambda name: torch.float64 if exact else getattr(torch, name)  # noqa: E731
        self.numbers = lambda *shape: torch.randn(*shape, device=device).to(kind)

        def tensor(heads: int, n: int, d: int) -> Any:
            if case["layout"] == "tokens first":
                return self.numbers(*case["lead"], n, heads, d).transpose(-3, -2)
            return self.numbers(*case["lead"], heads, n, d + 8 * (case["layout"] == "cut from wider"))[..., :d]

        h, g, n_q, n_k = (case[name] for name in ("heads", "kv_heads", "n_q", "n_k"))
        self.leaves = {
            "dQ": tensor(h, n_q, case["d"]),
            "dK": tensor(g, n_k, case["d"]),
            "dV": tensor(g, n_k, case["d_v"]),
        }
        self.dO, self.dL = tensor(h, n_q, case["d_v"]), torch.randn(*case["lead"], h, n_q, device=device)
        self.pairs, self.booleans = allowed(torch, case, device), None
        for name, part in (("dB", "dense"), ("dM", "beside")):
            if part not in case:
                continue
            shape = case[f"{part}_shape"]
            holes = torch.rand(shape, device=device) < 0.3 * case["holes"]
            if case[part] == "booleans":
                self.booleans = ~holes
            else:  # numbers that 16 bits have, as does their sum, so that the peer is given the same ones
                bias = self.numbers(*shape)
                bias = (bias * 8).round() / 8 if "beside" in case else bias
                self.leaves[name] = bias.to(of(case["dense_type"])).masked_fill(holes, -torch.inf)
            self.pairs = self.pairs & ~self.flat(holes)
        self.empty = ~self.pairs.any(-1)
        if "sinks" in case:
            sinks = (2 * torch.randn(h, device=device)).bfloat16().to(of(case["sinks"]))
            without = torch.tensor(case.get("no_sink", [False] * h), device=device)
            self.leaves["ds"] = sinks.masked_fill(without, -torch.inf)
            self.alone = self.empty & without[:, None]
        else:
            self.alone = self.empty

    def flat(self, x: Any) -> Any:
        """With one dimension of batches in the place of several; broadcast where it is shared."""
        lead = self.case["lead"]
        x = x.reshape((1,) * (len(lead) + 3 - x.ndim) + x.shape)
        given, rest = x.shape[: len(lead)], x.shape[len(lead) :]
        return x.expand(*(lead if any(each > 1 for each in given) else given), *rest).reshape(-1, *rest)

    def results(self, call: Any, kind: Any = None) -> dict[str, Any]:
        """O, L if there is one, and gradients of a function of leaves."""
        leaves = {name: each.detach().to(kind or each.dtype).requires_grad_() for name, each in self.leaves.items()}
        made = call(leaves)
        outs = made if isinstance(made, tuple) else (made,)
        shapes = {"O": self.dO, "L": self.dL}
        grads = [like.to(out.dtype).reshape(out.shape) for like, out in zip(shapes.values(), outs, strict=False)]
        found = self.torch.autograd.grad(outs, [*leaves.values()], grads)
        results = {name: out.detach().reshape(shapes[name].shape) for name, out in zip(shapes, outs, strict=False)}
        return results | dict(zip(leaves, found, strict=True))

    def ours(self, leaves: dict[str, Any]) -> Any:
        from pebblesim.gpu.torch import attention

        given = options(self.torch, self.case, self.dO.device.type)
        if "ds" in leaves:
            given["sinks"] = leaves["ds"]
        for name, part in (("dB", "dense"), ("dM", "beside")):
            if name in leaves:
                given["bias" if self.case[part] == "bias" else "attn_mask"] = leaves[name]
        if self.booleans is not None:
            given["attn_mask"] = self.booleans
        return attention(leaves["dQ"], leaves["dK"], leaves["dV"], **given)

    def heads_of(self, leaves: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Q, K and V of each query head, with one dimension of batches."""
        q, k, v = (leaves[name].reshape(-1, *leaves[name].shape[-3:]) for name in ("dQ", "dK", "dV"))
        shared = self.case["heads"] // self.case["kv_heads"]
        return q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)

    @property
    def scale(self) -> float:
        return self.case["d"] ** -0.5 if self.case["scale"] is None else self.case["scale"]

    def scores(self, leaves: dict[str, Any], S: Any) -> Any:
        """Scores with all masks; the last column is the sink, or stands for the keys of a query without a key."""
        for name in ADDED:
            if name in leaves:
                bias = self.flat(leaves[name])
                S = S + bias.masked_fill(bias == -self.torch.inf, 0)
        S = S.masked_fill(~self.pairs, -self.torch.inf)
        column = leaves["ds"][:, None, None] if "ds" in leaves else S.new_full((), -self.torch.inf)
        column = self.torch.where(self.alone[..., None], 0.0, column)
        return self.torch.cat([S, column.expand(*S.shape[:-1], 1)], -1)

    def true(self, leaves: dict[str, Any]) -> Any:
        q, k, v = self.heads_of(leaves)
        S = q @ k.mT * self.scale
        if cap := self.case.get("softcap"):
            S = cap * (S / cap).tanh()
        S = self.scores(leaves, S)
        O = S.softmax(-1)[..., :-1] @ v
        if not self.case["lse"]:
            return O
        L = S.logsumexp(-1)
        return O, L.masked_fill(self.alone, -self.torch.inf)

    def sdpa(self, leaves: dict[str, Any]) -> Any:
        """PyTorch's attention; a query without a key takes all, and then its O is 0."""
        pad = self.torch.nn.functional.pad
        q, k, v = self.heads_of(leaves)
        mask = self.scores(leaves, self.torch.zeros(*q.shape[:-1], k.shape[-2], dtype=self.kind, device=q.device))
        mask = mask.masked_fill(self.empty[..., None], 0.0)
        if "ds" in leaves:
            k, v = (pad(each, (0, 0, 0, 1)) for each in (k, v))
        else:
            mask = mask[..., :-1]
        mask = pad(mask.to(self.kind), (0, -mask.shape[-1] % 8))[..., : mask.shape[-1]]
        O = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=self.scale)
        return O.masked_fill(self.empty[..., None], 0.0)

    def written_out(self, kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Results of a 16-bit kernel, and the root of the sum of squares of the terms of each result."""
        x = {name: each.float() for name, each in self.leaves.items()}
        rounded = lambda a: a.to(kind).float()  # noqa: E731
        q, k, v = self.heads_of(x)
        dO, dL = (
            self.dO.float().reshape(-1, *self.dO.shape[-3:]),
            self.dL.reshape(-1, *self.dL.shape[-2:], 1) * self.case["lse"],
        )
        S = q @ k.mT * self.scale
        slope = 1.0
        if cap := self.case.get("softcap"):
            S = cap * (S / cap).tanh()
            slope = 1 - (S / cap) ** 2
        S = self.scores(x, S)
        m = S.amax(-1, keepdim=True)
        p = (S - m).exp()
        l = p.sum(-1, keepdim=True)
        O = rounded(rounded(p[..., :-1]) @ v / l)
        P, p_sink, dP = p[..., :-1] / l, p[..., -1:] / l, dO @ v.mT
        D, most = (dO * O).sum(-1, keepdim=True) - dL, (dO * O).norm(dim=-1, keepdim=True) + dL.abs()
        dS, dS_most = P * (dP - D), P * (dP.abs() + most)

        def of_keys(a: Any, like: Any) -> Any:
            return a.unflatten(1, (like.shape[-3], -1)).sum(2).reshape(like.shape)

        shape_of = lambda a, name: a.reshape(self.leaves[name].shape)  # noqa: E731
        made = {"O": O.reshape(self.dO.shape), "dV": of_keys(rounded(P).mT @ dO, x["dV"])}
        terms = {"O": ((P**2) @ v**2).sqrt(), "dV": ((P**2).mT @ dO**2).sqrt()}
        made["dQ"] = shape_of(self.scale * rounded(dS * slope) @ k, "dQ")
        made["dK"] = of_keys(self.scale * rounded(dS * slope).mT @ q, x["dK"])
        terms["dQ"], terms["dK"] = (self.scale * (a**2 @ b**2).sqrt() for a, b in ((dS_most, k), (dS_most.mT, q)))
        full = dS.reshape(*self.case["lead"], *dS.shape[-3:])
        for name in (each for each in ADDED if each in x):
            made[name], terms[name] = full.sum_to_size(x[name].shape), dS_most
        if "ds" in x:
            p_sink = p_sink.masked_fill(self.alone[..., None], 0.0)
            made["ds"], terms["ds"] = -(p_sink * D).sum((0, 2, 3)), p_sink * most
        if self.case["lse"]:
            L = (m + l.log()).squeeze(-1).masked_fill(self.alone, -self.torch.inf)
            made["L"] = L.reshape(self.dL.shape)
        types = {"L": self.torch.float32} | {name: each.dtype for name, each in self.leaves.items()}
        return {name: each.to(types.get(name, kind)) for name, each in made.items()}, terms


def rounding(torch: Any, unit: float, result: Any, terms: Any) -> float:
    """What one rounding of each term changes, and then one of the result to its own type."""
    return math.hypot(
        unit * float(terms.double().norm()), torch.finfo(result.dtype).eps * float(result.double().norm())
    )


def errors(torch: Any, case: dict[str, Any], device: str) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    its = Tensors(torch, case, device)
    right = its.results(its.true, torch.float64)
    calls = [its.results(its.ours) for _ in range(1 if device == "cpu" else 3)]
    theirs, terms = its.written_out(its.kind if device == "cuda" else torch.float32)
    row: dict[str, Any] = {"peer": "written out", "empty": float(its.empty.float().mean())}
    if device == "cuda" and not case["lse"] and "softcap" not in case:
        try:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
                theirs, row["peer"] = its.results(its.sdpa), "sdpa"
        except RuntimeError as error:
            row["refused"] = str(error)[:80]
    unit = 2e-8 if device == "cpu" else torch.finfo(its.kind).eps
    row["results"], row["differ"] = (
        {},
        [name for name in right if not all(torch.equal(calls[0][name], each[name]) for each in calls)],
    )
    for name, b in right.items():
        found = [each[name].double() for each in (*calls, theirs)]
        if name == "L":
            infinite = b == -torch.inf
            found = [each.masked_fill(infinite & (each == -torch.inf), 0) for each in found]
            b = b.masked_fill(infinite, 0)
        far = [float((each - b).norm()) for each in found]
        far = [each if each == each else float("inf") for each in far]
        if name == "L":
            least = 2**-18 * float(torch.hypot(b, torch.ones_like(b)).norm())
        else:
            least = LEAST[b.numel() < FEW] * rounding(torch, unit, calls[0][name], terms[name])
        least = max(least, 1e-30)
        ours, peer = max(max(far[:-1]), least), max(far[-1], least)
        scale = float(b.norm()) or 1.0
        row["results"][name] = [
            float(f"{each:.4g}")
            for each in (max(far[:-1]) / scale, far[-1] / scale, ours / (least if device == "cpu" else peer))
        ]
    row["ratio"] = max(three[2] for three in row["results"].values())
    if max(case["d"], case["d_v"]) <= 128 and not case["deterministic"] and "dQ" in row["differ"]:
        row["differ"].remove("dQ")
        row["free"] = True
    return row


def shown(case: dict[str, Any]) -> dict[str, Any]:
    """A call without its key ranges, which are many numbers."""
    return case | ({"ranges": len(case["ranges"][0])} if "ranges" in case else {})


def made(device: str, key: str) -> Row:
    import torch

    torch.set_num_threads(1)
    case, began = drawn(key), time.monotonic()
    try:
        row = errors(torch, case, device)
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:400]}
    return shown(case) | row | {"seconds": round(time.monotonic() - began, 2)}


def rows(torch: Any, asked: argparse.Namespace, there: set[str]) -> Any:
    end = EDGES if asked.edges else ""
    keys = [key for at in range(asked.calls) if (key := f"{asked.seed}.{at}{end}") not in there]
    make, until = partial(made, asked.device), time.monotonic() + asked.time_limit
    if asked.workers < 2:
        yield from map(make, keys)
        return
    pool = ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn"))
    try:
        waiting = [pool.submit(make, key) for key in keys]
        for each in as_completed(waiting, timeout=until - time.monotonic()):
            yield each.result()
    except TimeoutError:
        print("time is over")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


def table(found: list[Row]) -> str:
    """The largest ratio by result and peer, and what went wrong."""
    good, ratios = [each for each in found if "results" in each], defaultdict[tuple[str, str], list[float]](list)
    for row in good:
        for name, (_, _, ratio) in row["results"].items():
            ratios[name, row["peer"]].append(ratio)
    lines = ["| result | peer | calls | largest error ÷ peer's |", "| --- | --- | --- | --- |"]
    lines += [f"| {name} | {peer} | {len(each)} | {max(each):.2f} |" for (name, peer), each in sorted(ratios.items())]
    within = sum(row["ratio"] <= MOST for row in good)
    same = sum(not row["differ"] for row in good)
    lines.append(f"\n{len(found)} calls, {len(good)} computed; {within} within {MOST}; {same} with the same bits.")
    lines += [json.dumps(row) for row in found if "error" in row or row["ratio"] > MOST or row["differ"]]
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__doc__, 140.0)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edges", action="store_true", help="options at the end of what is allowed")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    resumed(parser.parse_args(), "combined_errors.jsonl", rows, table)


if __name__ == "__main__":
    main()
