"""Correctness against float64, then times of each form in one run."""
import json, sys, time, threading, subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
import torch
HERE = Path(__file__).parent
OUT = Path(sys.argv[1]); OUT.mkdir(parents=True, exist_ok=True)
H, D, SCALE = 4, 32, 32**-0.5
Q_FORMS = ["q", "qa", "qv", "qa1", "qc1", "qc2", "qk", "qak"]
def load(name):
    spec = spec_from_file_location("form_" + name, HERE / f"form_{name}.py"); m = module_from_spec(spec); spec.loader.exec_module(m); return m
def parts(n, R):
    from pebblesim.operator.bias import programs
    return programs.parts_at_once(n, R, H, torch.cuda.get_device_properties("cuda").multi_processor_count)
class Layer:
    def __init__(self, n, R):
        torch.manual_seed(0)
        g = lambda *s: torch.randn(*s, device="cuda", dtype=torch.bfloat16)
        self.n, self.R = n, R
        self.Q, self.K, self.V, self.dO = (g(R, H, n, D) for _ in range(4))
        wide = -(-n // 8) * 8
        self.bias = g(1, 1, H, n, wide)[..., :n]
        self.across = torch.zeros(1, 1, H, n, wide, device="cuda", dtype=torch.bfloat16)[..., :n].copy_(self.bias.mT).expand(-1, R, -1, -1, -1)
        self.O, self.L = torch.empty_like(self.Q), torch.empty(R * H, n, device="cuda")
        for at in range(0, R, 64):
            s = slice(at, at + 64)
            S = self.Q[s].float() @ self.K[s].float().mT * SCALE + self.bias[0].float()
            self.L[at * H : (at + 64) * H] = torch.logsumexp(S, -1).flatten(0, 1) * 1.4426950408889634
            self.O[s] = (torch.softmax(S, -1) @ self.V[s].float()).bfloat16()
        self.v = (self.dO.float() * self.O.float()).sum(-1).flatten(0, 1)
        self.parts = parts(n, R)
    def right(self):
        Q, K, V, dO, O = (x.double() for x in (self.Q, self.K, self.V, self.dO, self.O))
        P = torch.exp2((Q @ K.mT * SCALE + self.bias[0].double()) * 1.4426950408889634 - self.L.double().view(self.R, H, self.n, 1))
        v = (dO * O).sum(-1, keepdim=True)
        dS = P * (dO @ V.mT - v)
        return {"dQ": dS @ K * SCALE, "dB": dS.sum(0)[None], "v": v.view(self.R * H, self.n), "dK": dS.mT @ Q * SCALE, "dV": P.mT @ dO}
    def call(self, name, m):
        if name[0] == "c":
            v = self.v
            if name == "ck":
                one = v.bfloat16(); left = v - one.float(); two = left.bfloat16(); three = (left - two.float()).bfloat16()
                v = torch.zeros(self.R, H, self.n, 16, device="cuda", dtype=torch.bfloat16)
                for at, x in enumerate((one, two, three)): v[..., at] = x.view(self.R, H, self.n)
            res = {"dK": torch.empty_like(self.K), "dV": torch.empty_like(self.V)}
            return res, lambda: m.run(self.Q, self.K, self.V, self.dO, self.L, self.across, v, results=res)
        wide = -(-self.n // 8) * 8
        dB = torch.zeros(1, self.parts.most, H, self.n, wide, device="cuda")[..., : self.n]
        res = {"dQ": torch.empty_like(self.Q)[None], "dB": dB, "v": torch.empty_like(self.v)}
        last = self.O[None] if name in ("qa", "qa1", "qak", "qc1", "qc2") else self.v.view(H, self.R, self.n)
        L = self.L.view(H, self.R, self.n)
        mats = [x[None] for x in (self.Q, self.K, self.V, self.dO, self.O)]
        if name in ("qv", "qx", "qxr"): return res, lambda: m.run(*mats, L, self.bias, results=res)
        return res, lambda: m.run(*mats[:4], L, self.bias, last, results=res)
def timed(call):
    call(); torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(4): call()
    times = []
    for _ in range(25):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); g.replay(); b.record(); b.synchronize(); times.append(a.elapsed_time(b) * 250)
    return [round(sorted(times)[12], 1), round(min(times), 1)]
def main():
    only, checks = sys.argv[3].split(",") if len(sys.argv) > 3 else [], sys.argv[2] == "check"
    for n, R, forms in ((384, 16, ["q", "qv", "qx"]), (371, 16, ["qr", "qxr"]), (384, 512, ["q", "qv", "qx"] * 2), (384, 64, ["q", "qv", "qx"] * 2), (371, 64, ["qr", "qxr"] * 2)):
        if checks != (R == 16) or (only and not {*only} & {*forms}): continue
        layer = Layer(n, R)
        true = layer.right() if R == 16 else None
        for name in forms:
            if only and name not in only: continue
            row = {"form": name, "n": n, "R": R}
            try:
                res, call = layer.call(name, load(name))
                if true is not None:
                    out = call(); torch.cuda.synchronize()
                    if "dB" in res:
                        res = dict(res) | ({"v": out["v"]} if "v" in out else {}); p = layer.parts
                        res["dB"] = torch.stack([res["dB"][0, : p.of(h), h].double().sum(0) for h in range(H)])[None]
                        if name in ("q", "qk", "qr", "qr2"): res.pop("v")
                    row["error"] = {k: float(f"{((x.double().reshape(true[k].shape) - true[k]).norm() / true[k].norm()).item():.3g}") for k, x in res.items()}
                else:
                    row["us"] = timed(call)
            except Exception as e:
                row["failed"] = f"{type(e).__name__}: {e}"[-600:]
            print(row, flush=True)
            with open(OUT / "forms.jsonl", "a") as f: f.write(json.dumps(row) + "\n")
main()
