"""`explain`: the attention calls of drawn modules, against PyTorch's own record of the operations that ran."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import pebblesim as ps  # noqa: E402
from pebblesim.advice.calls import AttentionCall, SeenMask  # noqa: E402
from pebblesim.advice.pytorch_rules import Where, choose  # noqa: E402
from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.explaining import masks  # noqa: E402
from pebblesim.explaining.probing import release  # noqa: E402
from pebblesim.explaining.program import explain_file  # noqa: E402
from pebblesim.explaining.watching import recorded  # noqa: E402

STYLES = ("sdpa", "matmul", "bmm", "baddbmm", "einsum", "at", "split")
KINDS = ("none", "causal", "window", "padding", "bias", "dense")


@dataclass(frozen=True)
class Layer:
    """An attention of a drawn module."""

    style: str
    mask: str
    batch: int
    kv_heads: int
    group: int
    n_q: int
    n_k: int
    d: int
    d_v: int
    width: int

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


LAYERS = st.builds(
    Layer,
    st.sampled_from(STYLES),
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 7),
    st.integers(2, 7),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 2),
)


def table(layer: Layer) -> Tensor:
    """The allowed pairs, so that each kind is what its name says, whatever the sizes."""
    i, j = torch.arange(layer.n_q)[:, None], torch.arange(layer.n_k)
    if layer.mask == "causal":
        return j <= i
    if layer.mask == "window":
        return (j <= i) & (i - j < layer.width)
    if layer.mask == "padding":
        return (j < layer.n_k - 1).expand(layer.n_q, layer.n_k)
    if layer.mask == "dense":
        return (i + j) % 2 == 0
    return torch.ones(layer.n_q, layer.n_k, dtype=torch.bool)


class Attention(nn.Module):
    """An attention in one of the ways in which people write it."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer
        self.project = nn.Linear(layer.d, layer.d)
        self.bias = nn.Parameter(torch.randn(layer.heads, layer.n_q, layer.n_k))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layer, allowed = self.layer, table(self.layer).to(q.device)
        q = self.project(q)
        added = (
            self.bias[None] if layer.mask == "bias" else torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
        )
        if layer.style == "sdpa":
            mask = None if layer.mask in ("none", "causal") else added
            return F.scaled_dot_product_attention(
                q, k, v, mask, is_causal=layer.mask == "causal", enable_gqa=layer.group > 1
            )
        k, v = (x.repeat_interleave(layer.group, 1) for x in (k, v))
        if layer.style in ("bmm", "baddbmm"):
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            empty = torch.zeros(q.shape[0], layer.n_q, layer.n_k)
            s = torch.bmm(q, k.mT) if layer.style == "bmm" else torch.baddbmm(empty, q, k.mT, beta=0)
            s = s + (added.expand(layer.batch, *added.shape[1:]).flatten(0, 1) if added.dim() > 2 else added)
            return torch.bmm(F.softmax(s, -1), v)
        if layer.style == "einsum":
            s = torch.einsum("bhid,bhjd->bhij", q, k) * 0.5
            s += added
            return torch.einsum("bhij,bhjd->bihd", s.softmax(-1).to(v.dtype), v)
        s = q @ k.transpose(-1, -2) / 2 if layer.style == "at" else torch.matmul(q, k.transpose(-1, -2))
        if layer.style == "split" and layer.mask not in ("none", "bias"):
            return torch.softmax(s.masked_fill(~allowed, -torch.inf), dim=3).view(s.shape) @ v
        return F.dropout(F.softmax(s + added, dim=-1), 0.5, training=False) @ v


def inputs(layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(layer.batch, layer.heads, layer.n_q, layer.d),
        torch.randn(layer.batch, layer.kv_heads, layer.n_k, layer.d),
        torch.randn(layer.batch, layer.kv_heads, layer.n_k, layer.d_v),
    )


class Ran(TorchDispatchMode):
    """The sizes of all tables of probabilities, from the operations that ran: below what `explain` looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name in ("_softmax", "_safe_softmax"):
            x = args[0]
            self.tables.append((x.shape[:-2].numel(), x.shape[-2], x.shape[-1]))
        elif name.startswith("_scaled_dot_product"):
            q, k = args[:2]
            self.tables.append((q.shape[0] * q.shape[1], q.shape[2], k.shape[2]))
        return func(*args, **(kwargs or {}))


def expected(layer: Layer) -> tuple[str, int | None]:
    """The kind of the mask, and the window: for small sizes some kinds are other ones, too."""
    allowed = table(layer)
    if layer.mask == "bias":
        return "bias", None
    if bool(allowed.all()):
        return "none", None
    if bool((allowed == allowed[:1]).all()) and not (layer.style == "sdpa" and layer.mask == "causal"):
        return "padding", None
    i, j = torch.arange(layer.n_q)[:, None], torch.arange(layer.n_k)
    if bool((allowed == (j <= i)).all()):
        return "causal", None
    return layer.mask, layer.width if layer.mask == "window" else None


@given(st.lists(LAYERS, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_all_calls_are_found_with_their_sizes_and_masks(layers: list[Layer]) -> None:
    model = nn.ModuleList(map(Attention, layers))
    with Ran() as ran:
        found = recorded(lambda: [each(*inputs(layer)) for each, layer in zip(model, layers, strict=True)], model)
    assert [path for path, _ in found.calls] == [str(number) for number in range(len(layers))]
    seen = [(call.batch * call.heads, call.n_q, call.n_k) for _, call in found.calls]
    assert seen == ran.tables
    for (_, call), layer in zip(found.calls, layers, strict=True):
        assert (call.d_k, call.d_v) == (layer.d, layer.d_v)
        assert call.entry == ("sdpa" if layer.style == "sdpa" else "eager")
        assert call.kv_heads == (layer.kv_heads if layer.style == "sdpa" else layer.heads) or layer.style in (
            "bmm",
            "baddbmm",
        )
        kind, width = expected(layer)
        assert call.mask.kind == kind or (kind == "dense" and 2 in (layer.n_q, layer.n_k)), (layer, call.mask)
        if width is not None and call.mask.kind == "window" and layer.n_q == layer.n_k:
            assert call.mask.left == width - 1 and call.mask.right in (0, None)
        assert call.training and call.mask.gradient == (layer.mask == "bias")
    others = sum(2 * layer.batch * layer.heads * layer.n_q * layer.d**2 for layer in layers)
    assert found.other == others  # the projection of queries, and nothing of attention


@given(LAYERS)
@settings(max_examples=30, deadline=None)
def test_shapes_alone_give_the_same_calls(layer: Layer) -> None:
    real = recorded(lambda: Attention(layer)(*inputs(layer)))
    with torch.device("meta"):
        alone = recorded(lambda: Attention(layer)(*inputs(layer)))
    assert alone.device == "meta" and real.device == "cpu" and alone.other == real.other
    for (_, one), (_, other) in zip(alone.calls, real.calls, strict=True):
        same = ("entry", "batch", "heads", "kv_heads", "n_q", "n_k", "d_k", "d_v", "dtype", "training", "plain")
        assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
        assert one.mask.kind in (other.mask.kind, "unknown")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_kind_of_mask_is_the_mask(data: st.DataObject) -> None:
    """From the kind and its limits the table comes back; what is called dense is no band, as all bands show."""
    n_q, n_k = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    i, j = torch.arange(n_q)[:, None], torch.arange(n_k)
    low, high = data.draw(st.integers(-6, 6)), data.draw(st.integers(-6, 6))
    allowed = (j - i >= low) & (j - i <= high)
    if data.draw(st.booleans()):
        allowed = allowed & torch.tensor(data.draw(st.lists(st.booleans(), min_size=n_k, max_size=n_k)))
    if data.draw(st.booleans()):
        allowed = allowed ^ (torch.rand(n_q, n_k) < 0.1)
    found = masks.of_pairs(allowed[None, None], n_q, n_k)

    def band(left: int | None, right: int | None) -> Tensor:
        return (i - j <= (99 if left is None else left)) & (j - i <= (99 if right is None else right))

    if found.kind == "padding":
        assert bool((allowed == allowed[:1]).all())
    elif found.kind == "dense":
        limits = (None, *range(-7, 8))
        assert not any(bool((allowed == band(a, b)).all()) for a in limits for b in limits) or not allowed.any()
    else:
        rebuilt = band(found.left, found.right)
        rebuilt = rebuilt & allowed.any(0) if found.also else rebuilt
        assert bool((allowed == rebuilt).all())


SPECS = st.fixed_dictionaries(
    {
        "dims": st.sampled_from((*(4,) * 8, 3, 5)),
        "batch": st.integers(1, 2),
        "kv": st.integers(1, 2),
        "group": st.sampled_from((1, 1, 2)),
        "n_q": st.integers(1, 4),
        "n_k": st.integers(1, 4),
        "d": st.integers(1, 4),
        "d_v": st.sampled_from((*(None,) * 8, 3)),
        "dtype": st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.float64)),
        "mask": st.sampled_from((None, None, "causal", (1, 1, 0, 0), (0, 0), (2, 0, 0), (1, 1, 0, 1), (9, 9, 0, 0))),
        "across": st.sampled_from((*(False,) * 8, True)),
        "gradient": st.sampled_from((*(False,) * 5, True)),
        "gqa": st.sampled_from((True, True, True, False)),
        "dropout": st.sampled_from((*(0.0,) * 8, 0.5)),
        "enabled": st.sampled_from((*(True,) * 8, False)),
    }
)


@given(SPECS)
@settings(max_examples=200, deadline=None)
def test_the_rules_of_the_cpu_are_those_of_pytorch(spec: dict[str, Any]) -> None:
    """Shapes, masks, strides, types and switches, as cards check them, too."""
    lead = {3: (), 4: (spec["batch"],), 5: (spec["batch"], 1)}[spec["dims"]]
    heads = spec["kv"] * spec["group"]

    def made(*sides: int) -> Tensor:
        x = torch.zeros(*lead, *sides, dtype=spec["dtype"])
        return x.mT.contiguous().mT if spec["across"] else x

    d_v = spec["d_v"] or spec["d"]
    q, k, v = made(heads, spec["n_q"], spec["d"]), made(spec["kv"], spec["n_k"], spec["d"]), None
    v = made(spec["kv"], spec["n_k"], d_v)
    mask = None
    if isinstance(spec["mask"], tuple):
        full = {0: spec["n_q"], 1: spec["n_k"]}
        shape = spec["mask"]
        sides = [size or full[number] for number, size in enumerate(shape[-2:])]
        mask = torch.zeros(*shape[:-2], *sides, dtype=spec["dtype"], requires_grad=spec["gradient"])
    causal = spec["mask"] == "causal"
    with torch.nn.attention.sdpa_kernel(
        [torch.nn.attention.SDPBackend.MATH] + [torch.nn.attention.SDPBackend.FLASH_ATTENTION] * spec["enabled"]
    ):
        try:
            taken = torch._fused_sdp_choice(q, k, v, mask, spec["dropout"], causal, enable_gqa=spec["gqa"])
        except RuntimeError:
            return
        seen = SeenMask("causal", None, 0) if causal else SeenMask()
        if mask is not None:
            shape = tuple(mask.shape)
            seen = SeenMask("bias", given=True, shape=shape, gradient=spec["gradient"], plain=mask.stride(-1) == 1)
        call = AttentionCall(
            "sdpa",
            q.shape[:-3].numel(),
            heads,
            spec["kv"],
            spec["n_q"],
            spec["n_k"],
            spec["d"],
            d_v,
            str(spec["dtype"]).removeprefix("torch."),
            seen,
            enable_gqa=spec["gqa"],
            dropout=spec["dropout"],
            dims=spec["dims"],
            plain=all(x.stride(-1) == 1 for x in (q, k, v)),
            off=() if spec["enabled"] else ("flash",),
        )
    assert choose(call, Where("cpu", release())).backend == {0: "math", 1: "flash"}[int(taken)], spec


def test_everything_is_as_before_behind_the_block() -> None:
    def names() -> list[Any]:
        return [F.scaled_dot_product_attention, F.has_torch_function, torch.nn.attention.flex_attention.flex_attention]

    before, x = names(), torch.randn(1, 1, 3, 4)
    with pytest.raises(ZeroDivisionError), ps.explain(gpu="H200"):
        F.scaled_dot_product_attention(x, x, x)
        assert names()[:2] != before[:2]
        raise ZeroDivisionError
    assert names() == before
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    with ps.explain(model, gpu="H200"):
        pass
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.parametrize(("entry", "weights"), [("sdpa", False), ("eager", True)])
def test_pytorchs_own_layer_is_seen_from_inside(entry: str, weights: bool) -> None:
    """multi_head_attention_forward calls the fused function, or writes attention out where weights are asked for."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.one(x, x, x, need_weights=weights)[0]
            return made

    model, x = Around(), torch.randn(3, 5, 8)
    with ps.explain(model, gpu="H200") as found:
        model(x)
    ((row),) = found.result.rows
    assert (row.call.entry, row.where, row.call.n_q, row.call.d_k) == (entry, "one", 5, 4)
    assert row.call.batch * row.call.heads == 6


def test_several_masks_of_one_table_are_all_named() -> None:
    """A bias with a gradient, and behind it a causal mask; sinks and a cap are seen, too."""
    q, bias = torch.randn(1, 2, 4, 8), nn.Parameter(torch.randn(2, 4, 4))
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)

    def run() -> Tensor:
        scores = torch.tanh(q @ q.mT) * 30 + bias
        scores = torch.cat([scores.masked_fill(hidden, -torch.inf), torch.zeros(1, 2, 4, 1)], -1)
        scores = scores - scores.max(-1, keepdim=True).values
        return torch.softmax(scores, -1)[..., :-1] @ q

    ((_, call),) = recorded(run).calls
    assert (call.mask.kind, call.mask.also, call.sinks, call.softcap) == ("causal", "bias", True, True)


def test_a_function_that_computes_no_attention_has_none() -> None:
    """A router's softmax, and a product with weights, are no attention."""
    weight = nn.Parameter(torch.randn(6, 4))
    x = torch.randn(2, 5, 6)

    def run() -> Tensor:
        gates = torch.softmax(x @ weight, -1)
        return gates @ nn.Parameter(torch.randn(4, 3)) + F.log_softmax(x @ x.mT, -1).sum()

    assert recorded(run).calls == ()


def test_flex_attention_with_a_function_of_positions() -> None:
    flex = torch.nn.attention.flex_attention
    with torch.device("meta"):
        x = torch.randn(2, 4, 256, 16)
        block = flex.BlockMask.from_kv_blocks(
            torch.ones(1, 1, 2, dtype=torch.int32),
            torch.zeros(1, 1, 2, 2, dtype=torch.int32),
            mask_mod=lambda b, h, i, j: (j <= i) & (i - j < 100),
        )
        found = recorded(lambda: flex.flex_attention(x, x[:, :2], x[:, :2], block_mask=block, enable_gqa=True))
        biased = recorded(lambda: flex.flex_attention(x, x, x, score_mod=lambda s, b, h, i, j: s * 2))
    ((_, call),) = found.calls
    assert (call.entry, call.heads, call.kv_heads, call.mask.kind, call.mask.left) == (
        "flex_attention",
        4,
        2,
        "window",
        99,
    )
    assert biased.calls[0][1].mask.kind == "bias"


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_a_file_is_explained_by_shapes_alone_and_live(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch.nn import functional as F\n\n"
        "def shapes():\n    x = torch.randn(1, 4, 8192, 128, dtype=torch.bfloat16)\n"
        "    return lambda: F.scaled_dot_product_attention(x, x, x, is_causal=True)\n\n"
        "def looks():\n    x = torch.randn(1, 1, 4, 8)\n"
        "    return lambda: F.scaled_dot_product_attention(x, x, x) if x.sum() > -1e9 else None\n\n"
        "def wrong():\n    return 3\n\ndef fails():\n    return lambda: 1 / 0\n"
    )
    made = explain_file(f"{file}:shapes", "H200")
    (row,) = made.rows
    assert (row.call.n_q, row.choice.backend, row.call.mask.kind) == (8192, "cudnn", "causal")
    assert (
        row.passes["forward"].words
        == ps.count("flash2-forward", n=8192, d=128, M=116224, mask="causal", heads=4).total.io
    )
    assert explain_file(f"{file}:looks", "H200", live=True).rows[0].call.dtype == "float32"
    refused = {
        f"{file}:looks": "run it with --live",
        f"{file}:wrong": "the function returned int; it must return",
        f"{file}:fails": r"model.py:16: ZeroDivisionError",
        f"{file}:none": "has no function none",
        "nowhere.py:f": "does not exist",
        "model.py": "is no file and function",
    }
    for asked, sentence in refused.items():
        with pytest.raises(UsageError, match=sentence):
            explain_file(asked, "H200")
    with pytest.raises(UsageError, match="explain it before"), ps.explain(torch.compile(nn.Linear(2, 2)), gpu="H200"):
        pass
