"""Gradients by `kernels.backward` against float64, then microseconds by kernel with v within, and with its own launch."""
import json, sys, time
from functools import partial
from pathlib import Path
sys.path.insert(0, "benchmarks/gpu")
import torch
from timing import by_kernel
from pebblesim.operator.bias import bias as kernels, pairs, programs
from pebblesim.operator.launching import compiling
OUT, D = Path(sys.argv[1]), 32
OUT.mkdir(parents=True, exist_ok=True)
def layer(n, heads, R):
    normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    return [normal(R, heads, n, D) for _ in range(3)], normal(1, 1, heads, n, n), normal(R, heads, n, D), pairs.Limits(R, None, None, False, D**-0.5)
def both(x, b, dO, asked, of_L):
    out, made, dB = torch.empty_like(dO), tuple(map(torch.empty_like, x)), torch.empty_like(b)
    lse = kernels.forward(*x, b, None, out, asked)
    kernels.backward(dO, torch.zeros_like(lse) if of_L else None, *x, b, out, lse, None, made, dB, asked)
    return dict(zip(("O", "dQ", "dK", "dV", "dB"), (out, *made, dB)))
def true(x, b, dO):
    q, k, v, d, bias = (each.double() for each in (*x, dO, b[0, 0][None]))
    S = q @ k.mT * D**-0.5 + bias
    P = torch.softmax(S, -1); O = P @ v
    dS = P * (d @ v.mT - (d * O).sum(-1, keepdim=True))
    return {"O": O, "dQ": dS @ k * D**-0.5, "dK": dS.mT @ q * D**-0.5, "dV": P.mT @ d, "dB": dS.sum(0)[None, None]}
CHECKS = (384, 4, 64), (371, 4, 64), (768, 2, 48), (500, 3, 40), (100, 4, 96)
LAYERS = (384, 4, 512), (384, 4, 64), (384, 4, 256), (768, 4, 512), (768, 16, 64), (371, 4, 64)
def row(**what):
    print(what, flush=True)
    with open(OUT / "layers.jsonl", "a") as f: f.write(json.dumps(what) + "\n")
torch.manual_seed(0)
usual = kernels._at_once
kernels._at_once = lambda *given: True
began = time.monotonic()
if compiling.can():
    with compiling.together():
        for n, heads, R in {each[0]: each for each in (*CHECKS, *LAYERS)}.values():
            for of_L in (False, True): both(*layer(n, heads, R), of_L)
row(compiled=time.monotonic() - began)
for n, heads, R in CHECKS:
    given = layer(n, heads, R); its = true(*given[:3])
    for of_L in (False, True):
        mine = both(*given, of_L); again = both(*given, of_L)
        row(n=n, heads=heads, R=R, of_L=of_L, errors={k: float(f"{((mine[k].double() - its[k]).norm() / its[k].norm()).item():.3g}") for k in its}, same=all(torch.equal(mine[k], again[k]) for k in its))
kernels._at_once = usual
began = time.monotonic()
for n, heads, R in LAYERS:
    given = layer(n, heads, R)
    for of_L in (False, True, False, True):
        row(n=n, heads=heads, R=R, of_L=of_L, us=by_kernel(torch, partial(both, *given, of_L)))
    if time.monotonic() - began > 25: break
