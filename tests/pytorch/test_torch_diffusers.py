"""The processor for diffusers, on the CPU, against the one that diffusers has."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel  # noqa: E402
from diffusers.models.attention_processor import Attention, AttnProcessor2_0  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.operator.integrations.diffusers import Processor  # noqa: E402


def results(module: Any, *x: Any, **others: Any) -> list[Any]:
    """The output, and the gradients of all parameters."""
    module.zero_grad()
    made = module(*x, **others)
    made = getattr(made, "sample", made)
    made.square().sum().backward()
    return [made.detach(), *(each.grad.clone() for each in module.parameters() if each.grad is not None)]


def same(module: Any, *x: Any, **others: Any) -> None:
    take = module.set_processor if isinstance(module, Attention) else module.set_attn_processor
    found = []
    for processor in (module.processor if isinstance(module, Attention) else AttnProcessor2_0(), Processor()):
        take(processor)
        found.append(results(module.double(), *(each.double() for each in x), **others))
    for a, b in zip(*found, strict=True):
        assert float((a - b).norm()) <= 1e-9 * float(b.norm()) + 1e-12


def test_a_vae_whose_middle_blocks_have_one_head() -> None:
    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    )
    assert [each.heads for each in vae.modules() if isinstance(each, Attention)] == [1, 1]
    same(vae, torch.randn(2, 3, 12, 8))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True, "residual_connection": True, "rescale_output_factor": 2.0, "norm_num_groups": 2},
        {"cross_attention_dim": 6, "cross_attention_norm": "layer_norm"},
        {"qk_norm": "layer_norm"},
        {"scale_qk": False},
        {"spatial_norm_dim": 8, "norm_num_groups": None},
    ],
)
def test_layers(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    if "spatial_norm_dim" in options:
        options = options | {"query_dim": 32}
    layer = Attention(**{"query_dim": 8, "heads": 2, "dim_head": 4} | options)
    image = options.get("residual_connection") or "spatial_norm_dim" in options
    x = torch.randn(2, layer.query_dim, 5, 3) if image else torch.randn(2, 7, 8)
    others = {"encoder_hidden_states": torch.randn(2, 9, 6).double()} if "cross_attention_dim" in options else {}
    if "spatial_norm_dim" in options:
        others["temb"] = torch.randn(2, 8, 5, 3).double()
    same(layer, x, **others)


@pytest.mark.parametrize("option", [{"compute_dtype": "bfloat16"}, {"workspace": -1}, {"fallback": "math"}])
def test_an_option_is_refused_before_a_layer_is_computed(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        Processor(**option)


def test_what_it_would_leave_out_is_refused() -> None:
    layer, x = Attention(query_dim=8, heads=2, dim_head=4, processor=Processor()), torch.randn(1, 3, 8)
    with pytest.raises(UsageError, match="takes no attention_mask"):
        layer(x, attention_mask=torch.zeros(1, 3))
    with pytest.raises(UsageError, match="takes no image_rotary_emb"):
        Processor()(layer, x, image_rotary_emb=torch.zeros(3, 4))
    assert Processor()(layer, x, image_rotary_emb=None).shape == x.shape
    other = Attention(query_dim=8, heads=2, dim_head=4, added_kv_proj_dim=6, processor=Processor())
    with pytest.raises(UsageError, match="takes no layer with add_k_proj"):
        other(x, encoder_hidden_states=torch.randn(1, 5, 6))


@pytest.mark.parametrize("version", ["0.29.2", "1.0.0"])
def test_a_processor_names_the_versions_that_it_is_for(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("pebblesim.operator.integrations.diffusers.version", lambda name: version)
    with pytest.raises(UsageError, match=f"is for diffusers>=0.30,<1, and here is diffusers {version}: pip install"):
        Processor()


@pytest.mark.slow
def test_a_pipeline_makes_the_same_images_within_the_replaced_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of the transformer and the middle block of the VAE come here; with the processor the VAE's, too."""
    from pebblesim.operator.integrations import sdpa

    torch.manual_seed(0)
    sizes = {"in_channels": 4, "out_channels": 8, "num_layers": 2, "sample_size": 8, "num_embeds_ada_norm": 1000}
    transformer = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, **sizes).eval()
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    vae = AutoencoderKL(block_out_channels=(32, 64), latent_channels=4, norm_num_groups=8, **blocks).eval()
    pipeline = DiTPipeline(transformer, vae, DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)

    def images() -> torch.Tensor:
        start = torch.Generator().manual_seed(3)
        made = pipeline(class_labels=[1], generator=start, num_inference_steps=3, output_type="np")
        return torch.from_numpy(made.images)

    plain, calls, whole = images(), list[Any](), sdpa.attention
    monkeypatch.setattr(sdpa, "on_gpu", lambda query: True)
    monkeypatch.setattr(sdpa, "attention", lambda *given, **options: calls.append(options) or whole(*given, **options))
    with sdpa.replaced_sdpa():
        torch.testing.assert_close(images(), plain, atol=1e-5, rtol=0)
        assert len(calls) == 3 * 2 + 1
        vae.set_attn_processor(Processor())
        torch.testing.assert_close(images(), plain, atol=1e-5, rtol=0)
    assert len(calls) == 7 + 3 * 2
