"""`register` and `Processor` as docs/attention.md and their docstrings have them: a blind test, on the CPU.

Written from the page alone: tiny random models against `eager`, a tiny VAE against diffusers' own processor.
"""

# ruff: noqa: E402
from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")

from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from judged_attention import refused
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM

from pebblesim.gpu.diffusers import Processor
from pebblesim.gpu.transformers import register

TEXTS, TOKENS, WORDS = 3, 12, 40
SHARED = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral": {"sliding_window": 4},
}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register()
    yield
    register()


def pair(kind: str, name: str = "pebblesim") -> tuple[Any, Any]:
    """A random model with eager attention, and the same with ours."""
    torch.manual_seed(3)
    made = [
        AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(kind, **SHARED, **MODELS[kind]), attn_implementation=how
        )
        for how in ("eager", name)
    ]
    assert [model.config._attn_implementation for model in made] == ["eager", name]
    made[1].load_state_dict(made[0].state_dict())
    return made[0].eval(), made[1].eval()


def text(seed: int = 0) -> Tensor:
    return torch.randint(3, WORDS, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(seed))


def side(where: str) -> Tensor | None:
    """What transformers calls an attention mask: 1 where a token is not padding."""
    seen = torch.ones(TEXTS, TOKENS, dtype=torch.long)
    if where == "left":
        seen[1, :5] = seen[2, :1] = 0
    elif where == "right":
        seen[1, 8:] = seen[2, 11:] = 0
    return None if where == "none" else seen


@pytest.mark.parametrize("where", ["none", "left", "right"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_has_the_loss_the_logits_and_the_gradients_of_eager(kind: str, where: str) -> None:
    seen, words = side(where), text()
    keep = torch.ones_like(words, dtype=torch.bool) if seen is None else seen.bool()
    learnt = keep & keep.roll(1, 1)  # a token after padding is not predicted from a token
    results = []
    for model in pair(kind):
        out = model(words, attention_mask=seen, labels=words.masked_fill(~learnt, -100))
        out.loss.backward()
        results.append([out.loss, out.logits[keep], *(x.grad for x in model.parameters() if x.grad is not None)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3_text"])
def test_generate_gives_the_tokens_of_eager(kind: str, cache: str) -> None:
    asked = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, "attention_mask": side("left")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = (model.generate(text(), **asked, disable_compile=True) for model in pair(kind))
    assert torch.equal(theirs, ours)


def test_packed_position_ids_are_texts_of_their_own() -> None:
    words = text()[:1]
    places = torch.cat([torch.arange(5), torch.arange(7)])[None]
    theirs, ours = (model(words, position_ids=places, use_cache=False).logits for model in pair("llama"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)
    alone = pair("llama")[1](words[:, 5:], use_cache=False).logits
    torch.testing.assert_close(ours[:, 5:], alone, rtol=1e-4, atol=2e-5)


def test_gradient_checkpointing_changes_nothing() -> None:
    gradients = []
    for kept in (False, True):
        model = pair("gemma2")[1].train()
        if kept:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        model(text(), labels=text(), use_cache=False).loss.backward()
        gradients.append([x.grad for x in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_the_name_is_the_one_that_was_asked_for() -> None:
    register("of-another-name")
    assert "of-another-name" in AttentionInterface()
    eager, ours = pair("llama", "of-another-name")
    torch.testing.assert_close(ours(text()).logits, eager(text()).logits, rtol=1e-4, atol=2e-5)


def holes() -> Tensor:
    """A dense mask of a user, True where a query sees a key, with holes."""
    made = torch.rand(TEXTS, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)) < 0.6
    return (made | torch.eye(TOKENS, dtype=torch.bool)).tril()


def test_a_mask_with_holes_is_computed() -> None:
    eager, ours = pair("llama")
    added = torch.zeros(holes().shape).masked_fill(~holes(), torch.finfo(torch.float32).min)
    torch.testing.assert_close(
        ours(text(), attention_mask=holes()).logits,
        eager(text(), attention_mask=added).logits,
        rtol=1e-4,
        atol=2e-5,
    )


def test_dropout_is_refused_or_pytorchs() -> None:
    torch.manual_seed(3)
    made = lambda: transformers.AutoConfig.for_model("llama", **SHARED, attention_dropout=0.5)  # noqa: E731
    model = AutoModelForCausalLM.from_config(made(), attn_implementation="pebblesim").train()
    refused(lambda: model(text()), "dropout")
    register(fallback="sdpa")
    sdpa = AutoModelForCausalLM.from_config(made(), attn_implementation="sdpa").train()
    sdpa.load_state_dict(model.state_dict())
    logits = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PyTorch's attention is used")
        for one in (model, sdpa):
            torch.manual_seed(4)
            logits.append(one(text()).logits)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("option", "says"), [({"fallback": "math"}, "fallback"), ({"workspace": -1}, "workspace")])
def test_an_option_that_attention_refuses_is_refused(option: dict[str, Any], says: str) -> None:
    def asked() -> None:
        register("refused", **option)
        pair("llama", "refused")[1](text())

    refused(asked, says)


@pytest.mark.parametrize("fallback", [None, "sdpa"])
@pytest.mark.parametrize("dense", [None, "booleans", "numbers"])
def test_a_position_bias_is_added_to_scores(dense: str | None, fallback: str | None) -> None:
    """With gradients, beside a dense mask or none, and where PyTorch's attention may take over."""
    register("with a fallback", fallback=fallback)
    layer = torch.nn.Module()
    layer.is_causal = False
    make = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, 5, 8, generator=make) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, generator=make, requires_grad=True)
    mask = torch.rand(2, 1, 5, 5, generator=make) < 0.7
    mask[..., 0] = True
    given = {None: None, "booleans": mask, "numbers": torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)}[dense]
    out, _ = AttentionInterface()["with a fallback"](layer, q, k, v, given, position_bias=bias, scaling=1.0)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) + bias
    scores = scores if dense is None else scores.masked_fill(~mask, -torch.inf)
    true = torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v)
    torch.testing.assert_close(out, true, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        *(torch.autograd.grad((each**2).sum(), bias)[0] for each in (out, true)), rtol=1e-4, atol=1e-5
    )


# diffusers


@contextmanager
def same_processor(vae: Any, processor: Any) -> Iterator[None]:
    before = vae.attn_processors
    vae.set_attn_processor(processor)
    yield
    vae.set_attn_processor(before)


def vae() -> Any:
    torch.manual_seed(5)
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 16), down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, norm_num_groups=4, latent_channels=2, sample_size=16,
    ).double()  # fmt: skip


def results(model: Any, processor: Any) -> list[Tensor]:
    """An image decoded from what it is encoded to, and the gradients of the image and the weights."""
    image = torch.randn(2, 3, 16, 12, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    image = image.to(next(model.parameters()).dtype).requires_grad_()
    model.zero_grad()
    with same_processor(model, processor):
        out = model.decode(model.encode(image).latent_dist.mode()).sample
        out.square().sum().backward()
    return [out, image.grad, *(x.grad.clone() for x in model.parameters() if x.grad is not None)]


@pytest.mark.parametrize("options", [{}, {"workspace": 2**20}, {"fallback": "sdpa"}])
def test_a_vae_is_that_of_diffusers_own_processor(options: dict[str, Any]) -> None:
    model = vae()
    torch.testing.assert_close(
        results(model, Processor(**options)), results(model, AttnProcessor2_0()), rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_vae_in_32_bits_is_rounded_where_it_is_asked_for(dtype: torch.dtype) -> None:
    model = vae().float()
    exact, rounded = results(model, AttnProcessor2_0()), results(model, Processor(compute_dtype=dtype))
    off = (rounded[0] - exact[0]).norm() / exact[0].norm()
    assert rounded[0].dtype == torch.float32 and 0 < off < torch.finfo(dtype).eps


LAYERS: list[dict[str, Any]] = [
    {}, {"cross_attention_dim": 10}, {"norm_num_groups": 4}, {"residual_connection": True}, {"bias": True},
    {"qk_norm": "layer_norm"}, {"qk_norm": "rms_norm"}, {"scale_qk": False}, {"rescale_output_factor": 2.0},
    {"query_dim": 32, "norm_num_groups": 4, "spatial_norm_dim": 6},
    {"cross_attention_dim": 10, "cross_attention_norm": "layer_norm"},
]  # fmt: skip


@pytest.mark.parametrize("options", LAYERS, ids=lambda options: " ".join(options) or "plain")
@pytest.mark.parametrize("spatial", [False, True])
def test_a_layer_is_that_of_diffusers_own_processor(options: dict[str, Any], spatial: bool) -> None:
    torch.manual_seed(7)
    layer = Attention(**{"query_dim": 16, "heads": 4, "dim_head": 4, **options}).double()
    width = options.get("query_dim", 16)
    shape = (2, width, 3, 5) if spatial or "spatial_norm_dim" in options else (2, 15, width)
    x = torch.randn(shape, dtype=torch.float64)
    others: dict[str, Any] = {}
    if "cross_attention_dim" in options:
        others["encoder_hidden_states"] = torch.randn(2, 7, 10, dtype=torch.float64)
    if "spatial_norm_dim" in options:
        others["temb"] = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    outs = []
    for processor in (layer.processor, Processor()):
        layer.set_processor(processor)
        given = x.clone().requires_grad_()
        out = layer(given, **others)
        outs.append([out, *torch.autograd.grad(out.square().sum(), (given, *layer.parameters()), allow_unused=True)])
    torch.testing.assert_close(*([y for y in one if y is not None] for one in outs), rtol=1e-8, atol=1e-9)


def test_a_layers_mask_is_refused() -> None:
    layer = Attention(query_dim=16, heads=4, dim_head=4, processor=Processor())
    refused(lambda: layer(torch.zeros(1, 5, 16), attention_mask=torch.zeros(1, 1, 5)), "mask")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compute_dtype": torch.float32}, "compute_dtype"),
        ({"workspace": -1}, "workspace"),
        ({"fallback": "math"}, "fallback"),
    ],
)
def test_a_processors_option_that_attention_refuses_is_refused(options: dict[str, Any], says: str) -> None:
    make = lambda: Attention(query_dim=16, heads=4, dim_head=4, processor=Processor(**options))  # noqa: E731
    refused(lambda: make()(torch.zeros(1, 5, 16)), says)
