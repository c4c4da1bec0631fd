"""A step of a small Gemma 4 on several devices with FSDP2, against the step of one device: loss and gradients.

torchrun --nproc-per-node 2 benchmarks/gpu/fsdp.py -o benchmarks/gpu/fsdp.jsonl

Parameters are sharded layer by layer and gathered in bfloat16 on GPUs (NCCL) and in float32 on CPUs (gloo). Each device
has a text of its own; the gradient is that of the mean of both losses.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

from pebblesim.operator.integrations.transformers import register


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-n", type=int, default=1024, help="tokens of each device")
    parser.add_argument("--hidden", type=int, default=512)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rank = int(os.environ["RANK"])
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    register()
    row = compared(asked, device, rank)
    if rank == 0:
        asked.output.write_text(json.dumps(row) + "\n", encoding="utf-8")
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def compared(asked: argparse.Namespace, device: str, rank: int) -> dict[str, Any]:
    """Relative differences of sharded steps from those of one device, with our attention and with eager's."""
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(1, 512, (size, 1, asked.n), generator=generator).to(device)
    whole = model_of(asked.hidden, device, torch.float32, "eager")
    true = sum(loss_of(whole, text) for text in texts) / size
    true.backward()
    right = {name: each.grad for name, each in whole.named_parameters() if each.grad is not None}
    row: dict[str, Any] = {
        "device": device,
        "devices": size,
        "n": asked.n,
        "hidden": asked.hidden,
        "loss": float(true.detach()),
    }
    for attention in ("pebblesim", "eager"):
        model = model_of(asked.hidden, device, torch.float32, attention)
        policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        loss = loss_of(model, texts[rank])
        loss.backward()
        total = loss.detach().float()
        dist.all_reduce(total)
        gathered = {name: each.grad.full_tensor() for name, each in model.named_parameters() if each.grad is not None}
        assert gathered.keys() == right.keys()
        off = sum(float((gathered[name].float() - each).square().sum()) for name, each in right.items())
        norm = sum(float(each.square().sum()) for each in right.values())
        row[attention] = {
            "loss": abs(float((total / size - true).detach() / true.detach())),
            "gradients": (off / norm) ** 0.5,
        }
    return row


def model_of(hidden: int, device: str, kind: torch.dtype, attention: str) -> Any:
    """A model of six layers with the same random weights in every process."""
    config = Gemma4TextConfig(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=256 if device == "cuda" else 16,
        global_head_dim=512 if device == "cuda" else 32,
        sliding_window=100 if device == "cuda" else 5,
        hidden_size_per_layer_input=0,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = Gemma4ForCausalLM(config)
    for name, weight in model.named_parameters():
        if name.endswith("q_norm.weight"):
            weight.data.fill_(0.125)  # random weights have scores of up to the head dimension otherwise
    model.set_attn_implementation(attention)
    return model.to(device, kind)


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(ids, labels=ids).loss


if __name__ == "__main__":
    main()
