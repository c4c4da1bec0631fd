"""Attention over torch.distributed: four processes joined by gloo compute what one device does, with gradients."""

import math
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

P = 4
CASES: list[dict[str, Any]] = [
    {"schedule": name, "is_causal": causal}
    for name in ("best", "all-gather", "ring", "query-ring", "ulysses", "ulysses-rows", "tiles", "heads-tiles")
    for causal in (False, True)
] + [
    {"schedule": "ring", "is_causal": True, "ownership": "striped"},
    {"schedule": "tiles", "is_causal": True, "ownership": "contiguous", "inside": "differentiable"},
    {"schedule": "ring", "n": 31},
    {"schedule": "heads-tiles", "is_causal": True, "n": 31, "type": "bfloat16"},
    {"schedule": "ring", "is_causal": True, "n": (13, 1, 17)},
    {"schedule": "best", "is_causal": True, "n": (3, 24)},
    {"schedule": "ulysses", "n": [9, 20]},
    {"schedule": "ring", "is_causal": True, "batch": 0},
    {"schedule": "heads-tiles", "batch": 0},
]


def lengths(case: dict[str, Any]) -> Any:
    """The number of tokens of each document."""
    n = case.get("n", 32)
    return (n,) if isinstance(n, int) else n


def tensors(case: dict[str, Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    n, kind, batch = sum(lengths(case)), getattr(torch, case.get("type", "float64")), case.get("batch", 2)
    shapes = ((batch, 8, n, 6), (batch, 4, n, 6), (batch, 4, n, 5), (batch, 8, n, 5))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(kind) for shape in shapes]


def plain(Q: Any, K: Any, V: Any, causal: bool) -> tuple[Any, Any]:
    """Attention and its L by the definition; a causal mask is aligned at the end."""
    K, V = (each.repeat_interleave(Q.shape[1] // K.shape[1], 1) for each in (K, V))
    S = Q @ K.mT * Q.shape[-1] ** -0.5
    if causal:
        S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool).triu(S.shape[-1] - S.shape[-2] + 1), -torch.inf)
    return S.softmax(-1) @ V, S.logsumexp(-1)


def process(rank: int, folder: str) -> None:
    """Compute all cases as one of the processes, and save the outputs and gradients of its tokens, or an error."""
    from pebblesim.operator.distributed import parallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=P)
    results: list[Any] = []
    for case in CASES:
        try:
            *x, grad = tensors(case)
            own = case.get("ownership") or ("zig-zag" if case.get("is_causal") else "contiguous")
            mine = parallel.tokens_of(rank, P, lengths(case), own)
            x = [each[:, :, mine].clone().requires_grad_() for each in x]
            how = {name: case[name] for name in ("schedule", "is_causal", "ownership") if name in case}
            if "inside" in case:
                how["inside"] = parallel.Differentiable(plain)
            out = parallel.attention(*x, tokens=case.get("n"), **how)
            out.backward(grad[:, :, mine])
            results.append((mine, [out.detach(), *(each.grad for each in x)]))
        except Exception:
            results.append(traceback.format_exc())
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def loopback() -> Iterator[None]:
    """Let gloo use this machine alone, whatever its name resolves to."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(process, (str(folder),), P)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(P)]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: "-".join(map(str, CASES[number].values())))
def test_outputs_and_gradients_are_those_of_one_device(results: list[Any], number: int) -> None:
    case = CASES[number]
    *x, grad = tensors(case)
    x = [each.to(torch.float64).requires_grad_() for each in x]
    documents = zip(*(each.split(list(lengths(case)), dim=2) for each in x), strict=True)
    out = torch.cat([plain(*document, case.get("is_causal", False))[0] for document in documents], dim=2)
    out.backward(grad.to(torch.float64))
    expected = [out.detach(), *(each.grad for each in x)]
    seen = []
    for rank in range(P):
        assert not isinstance(results[rank][number], str), results[rank][number]
        mine, made = results[rank][number]
        seen += mine.tolist()
        for ours, whole in zip(made, expected, strict=True):
            assert ours.dtype == tensors(case)[0].dtype
            tolerance = {"rtol": 0, "atol": 0.06} if case.get("type") else {"rtol": 1e-9, "atol": 1e-11}
            torch.testing.assert_close(ours.to(torch.float64), whole[:, :, mine], **tolerance)
    assert sorted(seen) == list(range(sum(lengths(case))))


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"x": (torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4).double(), torch.ones(1, 2, 5, 4))},
        "key is of torch.float64",
    ),
    ({"x": (torch.ones(1, 2, 5, 4), torch.ones(2, 2, 5, 4), torch.ones(1, 2, 5, 4))}, "before the heads"),
    ({"x": (torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4), torch.ones(1, 1, 5, 4))}, "number of heads to key and"),
    ({"x": (torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 3), torch.ones(1, 2, 5, 4))}, "head dimensions 4 and 3"),
    ({"x": (None, torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4))}, "four dimensions"),
    ({"x": [torch.ones(1, 2, 5, 4).int()] * 3}, "of torch.int32"),
    (
        {"x": [torch.ones(1, 1, 2, 1025)] * 3},
        "a head dimension of 1,025, and kernels are for 1,024 at most; give other",
    ),
    ({"scale": math.nan}, "scale is nan"),
    ({"scale": "a"}, "scale is 'a'"),
    ({"is_causal": "yes"}, "is_causal is 'yes'"),
    ({"inside": plain}, "inside is of function; give an object with forward and backward"),
    ({"tokens": 5.0}, "tokens = 5.0 was given"),
    ({"tokens": torch.tensor([2, 3])}, "tokens = tensor"),
    ({"group": "x"}, "group is of str"),
    ({"ownership": "mine"}, "no ownership is called 'mine'"),
    ({"ownership": ["striped"]}, "no ownership is called"),
]


@pytest.mark.parametrize(
    ("rank", "P", "n"), [(-1, 2, 4), (2, 2, 4), (0, 0, 4), (0, 2, -1), (0, 2, (3, -1)), (0, 2, 1.5), ("a", 2, 4)]
)
def test_tokens_of_a_process_that_is_not_there(rank: Any, P: Any, n: Any) -> None:
    from pebblesim.core.errors import UsageError
    from pebblesim.operator.distributed.parallel import tokens_of

    with pytest.raises(UsageError):
        tokens_of(rank, P, n)


def test_wrong_shapes_and_schedules_get_a_sentence(tmp_path: Path) -> None:
    from pebblesim.core.errors import UsageError
    from pebblesim.operator.distributed.parallel import attention

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = torch.randn(1, 2, 5, 4)
        torch.testing.assert_close(attention(x, x, x), plain(x, x, x, False)[0])
        with pytest.raises(UsageError, match="owns 6 of 6 tokens, but query, key and value have 5, 5 and 5"):
            attention(x, x, x, tokens=6)
        with pytest.raises(UsageError, match="the length of each document"):
            attention(x, x, x, tokens=())
        with pytest.raises(UsageError, match=r"tokens = \(5, 0\) was given"):
            attention(x, x, x, tokens=(5, 0))
        with pytest.raises(UsageError, match="four dimensions"):
            attention(x[0], x[0], x[0])
        for wrong, said in WRONG:
            with pytest.raises(UsageError, match=said) as error:
                attention(*(wrong.pop("x", None) or (x, x, x)), **wrong)
            assert "\n" not in str(error.value)
        from pebblesim.operator.distributed.parallel import Differentiable

        with pytest.raises(UsageError, match="scale is for pebblesim's kernels"):
            attention(x, x, x, inside=Differentiable(plain), scale=0.9)
        with pytest.raises(UsageError, match="did you mean 'ring'"):
            attention(x, x, x, schedule="rings")
    finally:
        torch.distributed.destroy_process_group()
