"""Attentions by ranges of keys that are drawn by a seed: packed, padded, any, or none; and their results in float64."""

from __future__ import annotations

import random
from functools import partial
from typing import Any


def calls(seed: int, heads: tuple[int, int, int], number: int, odd: bool) -> list[dict[str, Any]]:
    """So many calls of a seed; each third one has the lengths of the one before it, and only `odd` ones if so asked."""
    chance = random.Random(f"{seed}/{heads}")
    found: list[dict[str, Any]] = []
    while len(found) < number:
        made = drawn(chance, odd)
        if len(found) % 3 == 2 and found[-1]["form"] in ("packed", "ranges", "nothing"):
            like = found[-1]
            while (made["form"], made["batch"]) != (like["form"], like["batch"]):
                made = drawn(chance, odd)
            made = _with_sizes(chance, made, like)
        found.append(made)
    return found


def _with_sizes(chance: random.Random, made: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Other ranges for the lengths of another call."""
    made |= {name: like[name] for name in ("kv_heads", "n_q", "n_k", "causal")}
    if made["form"] == "packed":
        made["of_q"] = made["of_k"] = _starts(chance, like["n_q"], len(like["of_q"]) - 2)
        return made
    for name in ("first", "end"):
        made[name] = [sorted(chance.randint(0, like["n_k"]) for _ in range(like["n_q"])) for _ in range(like["batch"])]
    return made


def drawn(chance: random.Random, odd: bool) -> dict[str, Any]:
    """Sizes, and ranges of keys for each query of each batch as lists, or what they are made of."""
    form = chance.choice(("packed", "packed", "two", "padding", "ranges", "ranges", "nothing"))
    batch = 1 if form in ("packed", "two") else chance.choice((1, 2, 3))
    n = chance.choice((chance.randint(1, 70), chance.randint(1, 700), 128 * chance.randint(1, 6), 16))
    n_k = n if form == "packed" else chance.choice((n, chance.randint(1, 700), 128 * chance.randint(1, 5)))
    if odd:  # so that kernels for lengths that tiles divide need not be compiled
        n, n_k = n | 1, n_k | 1
    made = {"form": form, "batch": batch, "kv_heads": chance.choice((1, 2, 3)), "n_q": n, "n_k": n_k}
    made["causal"] = chance.random() < 0.6
    if form in ("packed", "two"):
        cuts = chance.choice((0, 1, 3, 9, min(n, 60)))
        made["of_q"] = _starts(chance, n, cuts)
        made["of_k"] = made["of_q"] if form == "packed" else _starts(chance, n_k, cuts)
    if form == "padding":
        made["real"] = [sorted((chance.randint(0, n_k), chance.randint(0, n_k))) for _ in range(batch)]
    if form in ("ranges", "nothing"):
        high = n_k if form == "ranges" else chance.randint(0, n_k)
        first = [sorted(chance.randint(0, high) for _ in range(n)) for _ in range(batch)]
        made["first"] = first
        made["end"] = first if form == "nothing" else [sorted(chance.randint(0, n_k) for _ in range(n)) for _ in first]
        made["causal"] = False
    return made


def _starts(chance: random.Random, n: int, cuts: int) -> list[int]:
    last = n if chance.random() < 0.7 else chance.randint(0, n)
    return [0, *sorted(chance.randint(0, last) for _ in range(cuts)), last]


def options_of(torch: Any, call: dict[str, Any]) -> dict[str, Any]:
    """The masks as `attention` takes them."""
    put = partial(torch.tensor, device="cuda", dtype=torch.int32)
    if "of_q" in call:
        starts = put(call["of_q"])
        if call["form"] == "packed":
            return {"cu_seqlens": starts, "is_causal": call["causal"]}
        return {"cu_seqlens": (starts, put(call["of_k"])), "is_causal": call["causal"]}
    if "real" in call:
        keys = torch.arange(call["n_k"], device="cuda")
        begin, end = put(call["real"]).unbind(-1)
        padding = (keys < begin[:, None]) | (keys >= end[:, None])
        return {"key_padding_mask": padding, "is_causal": call["causal"]}
    return {"key_ranges": (put(call["first"]), put(call["end"]))}


def allowed(torch: Any, call: dict[str, Any]) -> Any:
    """The allowed pairs, (batch, n_q, n_k), by the definition."""
    n_q, n_k = call["n_q"], call["n_k"]
    i, j = torch.arange(n_q, device="cuda")[:, None], torch.arange(n_k, device="cuda")[None]
    found = torch.zeros((call["batch"], n_q, n_k), dtype=torch.bool, device="cuda")
    if "of_q" in call:
        for a, b, c, d in zip(call["of_q"], call["of_q"][1:], call["of_k"], call["of_k"][1:], strict=False):
            inside = (i >= a) & (i < b) & (j >= c) & (j < d)
            found |= inside & (j - c <= i - a) if call["causal"] else inside
        return found
    for each in range(call["batch"]):
        if "real" in call:
            begin, end = call["real"][each]
            found[each] = (j >= begin) & (j < end) & ((j <= i) | torch.tensor(not call["causal"], device="cuda"))
        else:
            first, end = (torch.tensor(call[name][each], device="cuda")[:, None] for name in ("first", "end"))
            found[each] = (j >= first) & (j < end)
    return found


def true_results(torch: Any, call: dict[str, Any], x: list[Any], shared: int, scale: float) -> dict[str, Any]:
    """O, dQ, dK and dV in float64."""
    Q, K, V, dO = (each.detach().double() for each in x)
    K, V = (each.repeat_interleave(shared, 1) for each in (K, V))
    mask = allowed(torch, call)[:, None]
    S = (Q @ K.mT * scale).masked_fill(~mask, -torch.inf)
    P = torch.softmax(S, -1).nan_to_num(0.0)
    O = P @ V
    dS = P * (dO @ V.mT - (dO * O).sum(-1, keepdim=True)) * scale
    dK, dV = (each.unflatten(1, (-1, shared)).sum(2) for each in (dS.mT @ Q, P.mT @ dO))
    return {"O": O, "dQ": dS @ K, "dK": dK, "dV": dV}
