"""Measure attention on several GPUs of one machine: bytes on NVLink beside the count, and times beside a plain ring.

    torchrun --nproc-per-node 2 benchmarks/gpu/devices.py -o FILE.jsonl

NVLink's counters are read through NVML. NCCL should send with its simple protocol, which adds fewest bytes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from pebblesim.operator.distributed import parallel
from pebblesim.parallel.count import Moved
from pebblesim.parallel.team import STATISTICS, Team


class Field(ctypes.Structure):
    """NVML's nvmlFieldValue_t."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


class NVLink:
    """The bytes that a GPU has sent and received over all its links."""

    SENT, RECEIVED, ALL_LINKS = 138, 139, 0xFFFFFFFF

    def __init__(self, index: int) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}".encode()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(self.device))

    def _call(self, name: str, *arguments: Any) -> None:
        if error := getattr(self.nvml, name)(*arguments):
            raise OSError(f"{name} answers {error}")

    def read(self) -> tuple[int, int]:
        fields = (Field * 2)()
        for field, number in zip(fields, (self.SENT, self.RECEIVED), strict=True):
            field.field, field.scope = number, self.ALL_LINKS
        self._call("nvmlDeviceGetFieldValues", self.device, 2, fields)
        if any(field.result for field in fields):
            raise OSError(f"the counters of NVLink answer {[field.result for field in fields]}")
        return fields[0].value * 1024, fields[1].value * 1024


def counted_bytes(moved: Moved, p: int, word: int) -> tuple[int, int]:
    """The bytes of inputs that device p receives, and of partial sums that it sends; statistics have 4 bytes."""
    traffic, words = moved.layout.team.traffic, moved.by_tensor(p)
    size = {name: number * (4 if name in STATISTICS else word) for name, number in words.items()}
    return (
        sum(size[name] for name in (*traffic.rows_in, *traffic.keys_in)),
        sum(size[name] for name in (*traffic.rows_out, *traffic.keys_out)),
    )


class Flash:
    """PyTorch's flash attention inside a device, forward."""

    def forward(self, Q: Any, K: Any, V: Any, causal: bool) -> tuple[Any, Any]:
        K, V = (each.repeat_interleave(Q.shape[1] // K.shape[1], 1) for each in (K, V))
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(Q, K, V, 0.0, causal)
        return out, lse.unsqueeze(-1)

    def backward(self, x: Any, causal: bool) -> Any:
        raise NotImplementedError


def plain_ring(Q: Any, K: Any, V: Any) -> Any:
    """Ring attention as one would write it: pass K and V on while attention to those at hand is computed."""
    rank, P, like = dist.get_rank(), dist.get_world_size(), torch.float32
    O, L = torch.zeros(Q.shape, dtype=like, device=Q.device), None
    for step in range(P):
        if step + 1 < P:
            new = torch.empty_like(K), torch.empty_like(V)
            sends = [dist.P2POp(dist.isend, each, (rank + 1) % P) for each in (K, V)]
            requests = dist.batch_isend_irecv([*sends, *(dist.P2POp(dist.irecv, each, (rank - 1) % P) for each in new)])
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(Q, K, V, 0.0, False)
        lse = lse.unsqueeze(-1)
        both = lse if L is None else torch.logaddexp(L, lse)
        O = out.float() if L is None else O * torch.exp(L - both) + out * torch.exp(lse - both)
        L = both
        if step + 1 < P:
            for request in requests:
                request.wait()
            K, V = new
    return O.to(Q.dtype)


def timed(what: Any, rounds: int) -> float:
    """Milliseconds of a call, the median over rounds."""
    marks = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        what()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in marks)[rounds // 2]


STILL, LONGEST = 1.0, 6.0
"""Counters are read until they have not changed for so many seconds, but no longer than that."""

Reading = tuple[int, int]


def settled(link: NVLink) -> tuple[Reading, list[list[float]]]:
    """The counters when they stand still, and each change after the first reading: seconds, bytes sent, received."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begin = changed = time.monotonic()
    counters, changes = link.read(), []
    while (now := time.monotonic()) - changed < STILL and now - begin < LONGEST:
        time.sleep(0.02)
        if (new := link.read()) != counters:
            changed = time.monotonic()
            changes.append([round(changed - begin, 2), new[0] - counters[0], new[1] - counters[1]])
            counters = new
    return counters, changes


def measure(link: NVLink, what: Any, rounds: int, windows: int = 1) -> dict[str, Any]:
    """The bytes that this GPU sends and receives in some rounds, the medians over windows, and those of each window.

    A window has all that counters say it brought, and how they changed after the first reading behind it.
    """
    before, all_ = settled(link)[0], []
    for _ in range(windows):
        dist.barrier()  # a device that reads longer is not sent anything
        for _ in range(rounds):
            what()
        after, changes = settled(link)
        all_.append([after[0] - before[0], after[1] - before[1], changes])
        before = after
    sent, received = (sorted(window[side] for window in all_)[windows // 2] for side in (0, 1))
    return {"sent": sent, "received": received, "windows": all_}


PACKED = [8, 4, 2, 1, 1]
"""Sixteenths of the tokens."""


def lengths(case: dict[str, Any], n: int) -> list[int]:
    """The tokens of each document."""
    return [n * part // 16 for part in case.get("documents", [16])]


def cases() -> list[dict[str, Any]]:
    """Schedules on 65,536 tokens; 16 heads, or 32 on 8; forward with PyTorch inside, and both ways with our kernels.

    Documents are parts of the tokens.
    """
    heads = {"heads": 16, "kv_heads": 16}
    shared = {"heads": 32, "kv_heads": 8}
    return [
        {**heads, "schedule": "ring", "inside": "flash"},
        {**heads, "schedule": "ulysses", "inside": "flash"},
        {**shared, "schedule": "ring", "inside": "flash"},
        {**shared, "schedule": "ulysses", "inside": "flash"},
        {**heads, "schedule": "ring", "inside": "flash", "is_causal": True},
        {**heads, "schedule": "query-ring", "inside": "flash"},
        {**heads, "schedule": "ring", "inside": "kernels", "backward": True},
        {**shared, "schedule": "best", "inside": "kernels", "backward": True, "is_causal": True},
        {**heads, "schedule": "ulysses", "inside": "kernels", "backward": True},
        {**heads, "schedule": "ring", "inside": "flash", "is_causal": True, "documents": PACKED},
        {**shared, "schedule": "best", "inside": "kernels", "backward": True, "is_causal": True, "documents": PACKED},
    ]


def run(case: dict[str, Any], link: NVLink, n: int, d: int, windows: int) -> dict[str, Any]:
    rank, P = dist.get_rank(), dist.get_world_size()
    causal, backward = case.get("is_causal", False), case.get("backward", False)
    own = "zig-zag" if causal else "contiguous"
    torch.manual_seed(rank)
    shape = {"Q": (1, case["heads"], n // P, d), "K": (1, case["kv_heads"], n // P, d)}
    x = [torch.randn(shape[name], device="cuda", dtype=torch.bfloat16) for name in "QKK"]
    inside, documents = Flash() if case["inside"] == "flash" else None, lengths(case, n)
    if backward:
        x = [each.requires_grad_() for each in x]

    def forward() -> Any:
        return parallel.attention(*x, schedule=case["schedule"], is_causal=causal, tokens=documents, inside=inside)

    grad = torch.randn_like(forward())

    def both() -> None:
        torch.autograd.grad(forward(), x, grad)

    call = both if backward else forward
    call()
    moved = [
        parallel.counted(case["schedule"], Team.square(tokens, d, case["heads"], case["kv_heads"], P, way, causal, own))
        for way in (False, True)[: 1 + backward]
        for tokens in documents
    ]
    mine = [sum(each) for each in zip(*(counted_bytes(one, rank, 2) for one in moved), strict=True)]
    theirs = [sum(each) for each in zip(*(counted_bytes(one, 1 - rank, 2) for one in moved), strict=True)]
    rounds = max(4, -(-(1 << 32) // (sum(mine) + sum(theirs))))  # for both devices
    measured = measure(link, call, rounds, windows)
    row = {
        **case, "n": n, "d": d, "P": P, "rank": rank, "rounds": rounds,
        "chosen": sorted({f"{one.schedule.name} {one.split}" for one in moved}),
        "counted_received": rounds * (mine[0] + theirs[1]), "counted_sent": rounds * (theirs[0] + mine[1]),
        **measured, "ms": timed(call, 8),
    }  # fmt: skip
    if case["schedule"] == "ring" and not backward and not causal and case["heads"] == case["kv_heads"]:
        plain_ring(*x)
        row["plain_ring_ms"] = timed(lambda: plain_ring(*x), 8)
        whole = [torch.cat([each, each], 2) for each in x[1:]]
        row["attention_alone_ms"] = timed(lambda: Flash().forward(x[0], *whole, False), 8)
        row["bytes_of_plain_ring"] = measure(link, lambda: plain_ring(*x), rounds)["windows"][0][:2]
    return row


def check(case: dict[str, Any], d: int) -> dict[str, Any]:
    """Outputs and gradients of a small case beside one device's, in float64 on this GPU."""
    rank, P, n = dist.get_rank(), dist.get_world_size(), 1024
    causal, backward = case.get("is_causal", False), case.get("backward", False)
    torch.manual_seed(7)
    heads, kv = case["heads"], case["kv_heads"]
    x = [torch.randn((1, h, n, d), device="cuda", dtype=torch.bfloat16) for h in (heads, kv, kv, heads)]
    documents = lengths(case, n)
    mine = parallel.tokens_of(rank, P, documents, "zig-zag" if causal else "contiguous").cuda()
    local = [each[:, :, mine].clone().requires_grad_(backward) for each in x[:3]]
    inside = Flash() if case["inside"] == "flash" else None
    out = parallel.attention(*local, schedule=case["schedule"], is_causal=causal, tokens=documents, inside=inside)
    wide = [each.double().requires_grad_() for each in x[:3]]
    Q, K, V = wide[0], *(each.repeat_interleave(heads // kv, 1) for each in wide[1:])
    parts = zip(*(each.split(documents, dim=2) for each in (Q, K, V)), strict=True)
    whole = torch.cat([torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal) for x in parts], dim=2)
    pairs = [(out, whole)]
    if backward:
        out.backward(x[3][:, :, mine])
        whole.backward(x[3].double())
        pairs += [(ours.grad, theirs.grad) for ours, theirs in zip(local, wide, strict=True)]
    pairs = [(ours.detach().double(), theirs.detach()) for ours, theirs in pairs]
    apart = [((ours - theirs[:, :, mine]).abs().max(), theirs.abs().max()) for ours, theirs in pairs]
    wrong = [float(difference / largest) for difference, largest in apart]
    return {"check": True, **case, "rank": rank, "largest_error": wrong}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-o", "--output", required=True, help="JSON lines, one for each case and device")
    options.add_argument("-n", type=int, default=65536, help="tokens")
    options.add_argument("-d", type=int, default=128, help="words of a row")
    options.add_argument("--seconds", type=float, default=80, help="no case begins later")
    options.add_argument("--windows", type=int, default=3, help="in which bytes are measured, in each case")
    options.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    given = options.parse_args()
    os.environ.setdefault("NCCL_PROTO", "Simple")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    link, begin = NVLink(rank), time.monotonic()
    first = settled(link)[0]
    for case in cases() if given.only is None else [cases()[number] for number in given.only]:
        late = torch.tensor([time.monotonic() - begin > given.seconds], device="cuda", dtype=torch.int32)
        dist.all_reduce(late)
        if late.item():
            break
        for step in (lambda one: check(one, given.d), lambda one: run(one, link, given.n, given.d, given.windows)):
            try:
                row = step(case)
            except Exception as error:  # the next case may do
                row = {**case, "rank": rank, "error": f"{type(error).__name__}: {error}"[:600]}
            with open(f"{given.output}.{rank}", "a") as file:
                file.write(json.dumps(row) + "\n")
    last = settled(link)[0]
    with open(f"{given.output}.{rank}", "a") as file:
        file.write(json.dumps({"rank": rank, "all": [last[0] - first[0], last[1] - first[1]]}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
