"""Models for `pebblesim explain` of configurations alone: `pebblesim explain benchmarks/explained_models.py:llama`.

`python benchmarks/explained_models.py` writes what the command prints for each into docs/explain.md. No weights are
loaded and no memory is taken, as tensors have shapes alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 8192
PAGE = Path(__file__).resolve().parent.parent / "docs" / "explain.md"


def _text(model: Any) -> tuple[Any, dict[str, Any]]:
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    return model.to(torch.bfloat16), {"input_ids": ids, "use_cache": False}


def llama() -> Any:
    """Llama 3 8B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    return _text(LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=TOKENS)))


def gemma_4() -> Any:
    """Gemma 4, the text model of transformers' own configuration."""
    from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

    return _text(Gemma4ForCausalLM(Gemma4TextConfig()))


def gpt_oss() -> Any:
    """gpt-oss, of transformers' own configuration, which writes attention out because of its sinks."""
    from transformers import GptOssConfig, GptOssForCausalLM

    return _text(GptOssForCausalLM(GptOssConfig()))


def vae() -> Any:
    """The decoder of Stable Diffusion's VAE, for an image of 1,024 x 1,024."""
    from diffusers import AutoencoderKL

    widths = (128, 256, 512, 512)
    model = AutoencoderKL(
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
    ).to(torch.bfloat16)
    latent = torch.randn(1, 4, 128, 128, dtype=torch.bfloat16)
    return model.decoder, latent


def dit() -> Any:
    """DiT-XL/2, for latents of 64 x 64 and a batch of 8."""
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=28, sample_size=64
    ).to(torch.bfloat16)
    latents = torch.randn(8, 4, 64, 64, dtype=torch.bfloat16)
    when, kind = (torch.zeros(8, dtype=torch.long) for _ in range(2))
    return model, {"hidden_states": latents, "timestep": when, "class_labels": kind}


class PairBias(nn.Module):
    """Attention of tokens with a bias of each pair, as in AlphaFold 3 and Boltz."""

    def __init__(self, fused: bool = False, width: int = 384, pair: int = 128, heads: int = 16) -> None:
        super().__init__()
        self.fused, self.heads = fused, heads
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.bias = nn.Sequential(nn.LayerNorm(pair), nn.Linear(pair, heads, bias=False))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor, pairs: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (self.heads, -1)) for x in self.project(tokens).chunk(3, -1))
        bias = self.bias(pairs).permute(0, 3, 1, 2)
        if self.fused:
            x = (each.transpose(1, 2) for each in (q, k, v))
            made = nn.functional.scaled_dot_product_attention(*x, attn_mask=bias)
            return self.out(made.transpose(1, 2).flatten(-2))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5 + bias
        return self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(-2))


class Trunk(nn.Module):
    """24 such layers."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PairBias(fused) for _ in range(24))

    def forward(self, tokens: Tensor, pairs: Tensor) -> Tensor:
        for layer in self.layers:
            tokens = tokens + layer(tokens, pairs)
        return tokens


def pair_bias(fused: bool = False) -> Any:
    """Pair bias for 768 tokens."""
    tokens = torch.randn(1, 768, 384, dtype=torch.bfloat16)
    return Trunk(fused).to(torch.bfloat16), (tokens, torch.randn(1, 768, 768, 128, dtype=torch.bfloat16))


def fused_pair_bias() -> Any:
    """The same by PyTorch's attention, with the bias as a mask in memory."""
    return pair_bias(fused=True)


def printed(command: str) -> str:
    """What `pebblesim explain` prints for one of these models."""
    import io
    from contextlib import redirect_stdout

    from pebblesim.cli.printing import WIDE, show
    from pebblesim.explaining.program import explain_file

    model, *options = command.split()
    gpu = options[options.index("--gpu") + 1]
    found = explain_file(f"{Path(__file__).parent.parent / model.partition(':')[0]}:{model.partition(':')[2]}", gpu)
    out, wide = io.StringIO(), "--wide" in options
    before = WIDE.set(wide)
    with redirect_stdout(out):
        show(*found.parts(wide))
    WIDE.reset(before)
    return re.sub(r" +$", "", out.getvalue().rstrip(), flags=re.MULTILINE)


def with_output(document: str) -> str:
    """The page with what each command of it prints."""

    def block(match: re.Match[str]) -> str:
        return f"```text\n$ pebblesim explain {match[1]}\n{printed(match[1])}\n```"

    return re.sub(r"```text\n\$ pebblesim explain (.+)\n(?:(?!```).*\n)*```", block, document)


if __name__ == "__main__":
    PAGE.write_text(with_output(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
