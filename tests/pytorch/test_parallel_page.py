"""`pebblesim.gpu.torch.parallel.attention` as docs/parallel.md and its docstring have it: a blind test, over gloo.

Four processes compute calls that a seed draws, in groups of one to four of them; each holds its tokens of the same
tensors. Together their outputs and gradients are those of a dense mask in float64, made here of the page's sentences.
"""

# ruff: noqa: E402
from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from judged_attention import refused
from torch import Tensor, distributed as dist
from torch.multiprocessing.spawn import spawn

from pebblesim import UsageError
from pebblesim.gpu.torch.parallel import RUNNING, Differentiable, attention, tokens_of

PROCESSES, CALLS = 4, 40
OWNERSHIPS = ("contiguous", "zig-zag", "striped")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}


def dense(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool, scale: float | None) -> Tensor:
    """The definition: a query sees the keys of its document, under a causal mask those up to its own."""
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    i = torch.arange(len(documents))
    pairs = documents[:, None] == documents[None]
    if causal:
        pairs &= i[None] <= i[:, None]
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.softmax(scores.masked_fill(~pairs, -torch.inf), -1) @ v


def by_function(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Another attention inside a process, that returns O and L; its mask is aligned at the end."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        n_q, n_k = scores.shape[-2:]
        scores = scores.masked_fill(~torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q), -torch.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def drawn(seed: int, P: int) -> dict[str, Any]:
    random = Random(seed)
    documents = [random.choice((1, 2, 3, 7, 16, 33)) * random.choice((1, P)) for _ in range(random.randint(1, 3))]
    lengths = documents if random.random() < 0.4 else [sum(documents)]
    kv = random.choice((1, 2, 4, P))
    return {
        "lengths": lengths,
        "heads": kv * random.choice((1, 2, 3)),
        "kv": kv,
        "d": random.choice(((8, 8), (5, 3), (16, 24))),
        "dtype": random.choice((torch.float64, torch.float32)),
        "causal": random.random() < 0.5,
        "schedule": random.choice(("best", *RUNNING)),
        "ownership": random.choice((None, *OWNERSHIPS)),
        "scale": random.choice((None, None, 0.3, -0.2)),
        "function": random.random() < 0.2,
        "batch": random.randint(1, 2),
    }


def differs(seed: int, group: Any, ranks: list[int]) -> tuple[str, str]:
    """What is wrong with a call in a group, and how it was refused."""
    P, rank = len(ranks), ranks.index(dist.get_rank())
    c = drawn(seed, P)
    n, (d_k, d_v) = sum(c["lengths"]), c["d"]
    made = torch.Generator().manual_seed(seed)
    sizes = ((c["heads"], d_k), (c["kv"], d_k), (c["kv"], d_v), (c["heads"], d_v))
    *whole, dO = (torch.randn(c["batch"], h, n, d, generator=made, dtype=torch.float64) for h, d in sizes)
    whole = [x.to(c["dtype"]).double().requires_grad_() for x in whole]
    if c["function"]:
        c["scale"] = None
    tokens = c["lengths"] if len(c["lengths"]) > 1 else n
    owner = c["ownership"] or ("zig-zag" if c["causal"] else "contiguous")
    mine = tokens_of(rank, P, tokens, owner)
    parts = [x.detach()[:, :, mine].to(c["dtype"]).requires_grad_() for x in whole]
    options = {name: c[name] for name in ("schedule", "scale", "ownership") if c[name] is not None}
    if len(c["lengths"]) > 1 or n % P or seed % 2:
        options["tokens"] = tokens
    if c["function"]:
        options["inside"] = Differentiable(by_function)
    try:
        out = attention(*parts, group=group, is_causal=c["causal"], **options)
    except UsageError as error:
        return "", str(error)
    theirs = dense(*whole, c["lengths"], c["causal"], c["scale"])
    expected = [theirs, *torch.autograd.grad(theirs, whole, dO)]
    given = [out, *torch.autograd.grad(out, parts, dO[:, :, mine].to(c["dtype"]))]
    most = TOLERANCE[c["dtype"]]
    for name, ours, true in zip(("O", "dQ", "dK", "dV"), given, expected, strict=True):
        off = (ours.double() - true[:, :, mine]).norm() / max(true.norm().item(), 1.0)
        if ours.shape != true[:, :, mine].shape or not off <= most:
            return f"{name} of process {rank} of {P} is off by {off:.3g}: {c}", ""
    return "", ""


def work(rank: int, folder: str, seeds: range, found: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    teams = [list(range(P)) for P in (4, 3, 2, 1)] + [[1, 3]]
    groups = [None] + [dist.new_group(team) for team in teams[1:]]
    for seed in seeds:
        at = seed % len(teams)
        if rank in teams[at]:
            found.put((seed, *differs(seed, groups[at], teams[at])))
    dist.barrier()
    dist.destroy_process_group()


def test_the_processes_have_together_what_one_device_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = torch.multiprocessing.get_context("spawn").SimpleQueue()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # this machine alone, whatever its name resolves to
    running = spawn(work, (str(tmp_path), range(CALLS), found), nprocs=PROCESSES, join=False)
    said = []
    while not running.join(timeout=0.05):
        while not found.empty():
            said.append(found.get())
    while not found.empty():
        said.append(found.get())
    assert {seed for seed, _, _ in said} == set(range(CALLS))
    assert not [wrong for _, wrong, _ in said if wrong]
    refused = {seed: why for seed, _, why in said if why}
    assert len(refused) < CALLS / 4, refused
    assert all("heads" in why or "schedule" in why for why in refused.values()), refused


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


Q, K, V = (torch.ones(2, heads, 6, d, dtype=torch.float64) for heads, d in ((4, 8), (2, 8), (2, 5)))
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another schedule": (lambda: attention(Q, K, V, schedule="square"), "schedule"),
    "another ownership": (lambda: attention(Q, K, V, ownership="mine"), "ownership"),
    "more tokens": (lambda: attention(Q, K, V, tokens=7), "tokens"),
    "no tokens": (lambda: attention(Q, K, V, tokens=0), "tokens"),
    "no documents": (lambda: attention(Q, K, V, tokens=()), "tokens"),
    "a fraction of tokens": (lambda: attention(Q, K, V, tokens=6.0), "tokens"),
    "no batch": (lambda: attention(Q[0], K[0], V[0]), "batch|shape|dimensions"),
    "heads that cannot be shared": (lambda: attention(Q[:, :3], K, V), "heads"),
    "other tokens of queries": (lambda: attention(Q[:, :, :4], K, V), "tokens"),
    "other batches": (lambda: attention(Q[:1], K, V), "key|shape"),
    "other heads of values": (lambda: attention(Q, K, V[:, :1]), "value|shape|heads"),
    "another head dimension": (lambda: attention(Q, K[..., :7], V), "7"),
    "two types": (lambda: attention(Q, K.float(), V), "float32"),
    "integers": (lambda: attention(Q.int(), K.int(), V.int()), "int32"),
    "no tensor": (lambda: attention(None, K, V), "query"),
    "a scale that is not finite": (lambda: attention(Q, K, V, scale=math.nan), "scale"),
    "a word for a scale": (lambda: attention(Q, K, V, scale="a"), "scale"),
    "a flag that is a word": (lambda: attention(Q, K, V, is_causal="yes"), "is_causal"),
    "another scale inside": (lambda: attention(Q, K, V, scale=0.9, inside=Differentiable(by_function)), "scale"),
    "a function inside": (lambda: attention(Q, K, V, inside=by_function), "inside"),
    "no group": (lambda: attention(Q, K, V, group="all"), "group"),
    "tokens of no process": (lambda: tokens_of(2, 2, 4), "rank"),
    "tokens of a process below 0": (lambda: tokens_of(-1, 2, 4), "rank"),
    "tokens of no processes": (lambda: tokens_of(0, 0, 4), "P"),
    "tokens below 0": (lambda: tokens_of(0, 2, -1), "-1"),
    "documents below 0": (lambda: tokens_of(0, 2, (3, -1)), "-1"),
    "tokens of another ownership": (lambda: tokens_of(0, 2, 4, "mine"), "ownership"),
}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_page_refuses_is_refused_in_one_sentence(name: str) -> None:
    refused(*REFUSED[name])


def test_the_tokens_of_the_page() -> None:
    assert tokens_of(1, 2, 8, "zig-zag").tolist() == [2, 3, 4, 5]
    assert tokens_of(1, 2, (4, 4), "zig-zag").tolist() == [1, 2, 5, 6]
    for owner in OWNERSHIPS:
        for n in (1, 2, 7, 12, (3, 1, 9)):
            for P in (1, 2, 3, 4):
                dealt = sorted(t for rank in range(P) for t in tokens_of(rank, P, n, owner).tolist())
                assert dealt == list(range(n if isinstance(n, int) else sum(n)))
