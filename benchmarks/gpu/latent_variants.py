"""Variants of the backward kernels of 128 heads on one latent, timed kernel by kernel (an experiment)."""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

PRODUCT = '''
@gluon.jit
def {out}_loads(table_tiles, x_tiles, part_, x_0, {more}full, free, n_q, n_k, heads, workers, own):
    tiles, wide = n_k // 128, {wide}
    filled = 0
    pairs = gl.cdiv(tiles, 2)
    for turn in range(2):
        pair, rest = gl.program_id(0) // (wide * workers), gl.program_id(0) % (wide * workers)
        worker, j = rest // wide, rest % wide
        i = pair if turn == 0 else tiles - 1 - pair
        low, high = i * 128 * 8 // 128 * heads, n_q // 128 * heads
        count = gl.cdiv(high - low - worker, workers)
        for k in range(2 * count):
            slot, phase = (filled + k) % {stages}, ((filled + k) // {stages}) & 1
            at = k // 2 if turn == 0 else count - 1 - k // 2
            q = high - 1 - worker - workers * at
            head, row = q % heads, q // heads
            batch, key_head = head // own, head % own
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), {bytes})
            tma.async_copy_global_to_shared(table_tiles, [((head * gl.cdiv(n_q, 128) + row) * gl.cdiv(n_k, 128) + i) * 128 + k % 2 * 64, 0], full.index(slot), part_.index(slot))
{copies}
        filled += 2 * count

@gluon.jit
def {out}_rows(w: gl.constexpr, part_, x_0, {more}full, free, {out}_ptr, n_q, n_k, heads, workers, own, {out}_batch, {out}_head, {out}_row):
    {out}_head, {out}_row = {out}_head * 8, {out}_row * 8
    tiles, wide = n_k // 128, {wide}
    filled = 0
    for turn in range(2):
        pair, rest = gl.program_id(0) // (wide * workers), gl.program_id(0) % (wide * workers)
        worker, j = rest // wide, rest % wide
        i = pair if turn == 0 else tiles - 1 - pair
        low, high = i * 128 * 8 // 128 * heads, n_q // 128 * heads
        count = gl.cdiv(high - low - worker, workers)
        end = 2 * count
        at = {out}_ptr + gl.cast(worker, gl.int64) * {out}_head
        part = i * 2 + w
{zeros}
        for k in range(end):
            slot, phase = (filled + k) % {stages}, ((filled + k) // {stages}) & 1
            mbarrier.wait(full.index(slot), phase)
{issues}
            {sums} = warpgroup_mma_wait({number}, deps=({sums}))
            if k > 0:
                mbarrier.arrive(free.index((filled + k - 1) % {stages}), count=1)
        {sums} = warpgroup_mma_wait(0, deps=({sums}))
        if end > 0:
            mbarrier.arrive(free.index((filled + end - 1) % {stages}), count=1)
        down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
        across = j * {width} + gl.arange(0, 64, gl.SliceLayout(0, tile_64))
{stores}
        filled += end

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "workers", "own", "{out}_batch", "{out}_head", "{out}_row"])
def {out}(table_tiles, x_tiles, {out}_ptr, n_q, n_k, heads, workers, own, {out}_batch, {out}_head, {out}_row):
    part_ = gl.allocate_shared_memory(gl.bfloat16, [{stages}, 64, 128], table_tiles.layout)
{rooms}
    full, free = barriers({stages}, 1), barriers({stages}, 2)
    gl.warp_specialize([
        ({out}_rows, (0, part_, x_0, {more}full, free, {out}_ptr, n_q, n_k, heads, workers, own, {out}_batch, {out}_head, {out}_row)),
        ({out}_rows, (1, part_, x_0, {more}full, free, {out}_ptr, n_q, n_k, heads, workers, own, {out}_batch, {out}_head, {out}_row)),
        ({out}_loads, (table_tiles, x_tiles, part_, x_0, {more}full, free, n_q, n_k, heads, workers, own)),
    ], [4, 1], [240, 24])
'''


def product(out: str, number: int, columns: int, stages: int = 4) -> str:
    """A product of pairs of key tiles, with `number` parts of 64 columns."""
    width, every = 64 * number, range(number)
    copy = "            tma.async_copy_global_to_shared(x_tiles, [batch, key_head, (row * 128 + k % 2 * 64) // 8, 0, j * {width} + {at}], full.index(slot), x_{n}.index(slot))"
    issue = "            C_{n} = warpgroup_mma(part_.index(slot).slice(w * 64, 64, dim=1).permute((1, 0)), x_{n}.index(slot).reshape([64, 64]), C_{n}, is_async=True)"
    store = "        gl.store(at + down[:, None] * {out}_row + (across + {at})[None, :], C_{n} * {factor}, mask=(across + {at})[None, :] < {columns})"
    given = dict(out=out, width=width, columns=columns, factor=0.041666666666666664 if out == "dK" else 1.0)
    return PRODUCT.format(
        **given,
        stages=stages,
        wide=-(-columns // width),
        number=number,
        bytes=16384 + 8192 * number,
        more="".join(f"x_{n}, " for n in every if n),
        sums=", ".join(f"C_{n}" for n in every),
        zeros="\n".join(f"        C_{n} = gl.full([64, 64], 0.0, gl.float32, tile_64)" for n in every),
        copies="\n".join(copy.format(n=n, at=64 * n, **given) for n in every),
        issues="\n".join(issue.format(n=n) for n in every),
        stores="\n".join(store.format(n=n, at=64 * n, **given) for n in every),
        rooms="\n".join(f"    x_{n} = gl.allocate_shared_memory(gl.bfloat16, [{stages}, 1, 1, 8, 8, 64], x_tiles.layout)" for n in every),
    )


def without(text: str, *names: str) -> str:
    """The text without these functions and their decorators."""
    for name in names:
        text = re.sub(rf"@gluon\.jit(?:\([^\n]*\))?\ndef {name}\(.*?\n(?=\n*(?:@|def ))", "", text, flags=re.S)
    return text


def paired(text: str, out: str, table: str, x: str, number: int, columns: int, stages: int = 4) -> str:
    """The text with dK or dV of pairs of key tiles."""
    text = without(text, f"{out}_loads", f"{out}_rows", out)
    before, after = text.split("\n\ndef run(")
    after = re.sub(
        rf"    {out}\[\(.*?\)\]\(",
        f"    workers = max(most // (triton.cdiv(triton.cdiv(n_k, 128), 2) * {-(-columns // (64 * number))}), 1)\n"
        f"    {out}[(triton.cdiv(triton.cdiv(n_k, 128), 2) * {-(-columns // (64 * number))} * workers, 1)](",
        after,
    )
    after = re.sub(rf"(    {out}\[.*?n_k, heads, )together, ", r"\1workers, ", after)
    return f"{before}\n{product(out, number, columns, stages)}\n\ndef run({after}"


ROW_SUMS = '''
@triton.jit(do_not_specialize=["n", "dO_batch", "dO_head", "dO_row", "O_batch", "O_head", "O_row"])
def v(dO_ptr, O_ptr, v_ptr, n, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, ROWS: tl.constexpr):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 512)
    head = tl.program_id(1)  # of all 8 of a part
    x = tl.load(dO_ptr + (head.to(tl.int64) * dO_head + rows.to(tl.int64) * dO_row)[:, None] * 8 + columns[None, :])
    y = tl.load(O_ptr + (head.to(tl.int64) * O_head + rows.to(tl.int64) * O_row)[:, None] * 8 + columns[None, :])
    sums = tl.sum(x.to(tl.float32) * y.to(tl.float32), axis=1)
    tl.store(v_ptr + head // 8 * n * 8 + rows * 8 + head % 8, sums)
'''


def rows_of(text: str, rows: int, warps: int) -> str:
    """The text with row sums of a few rows of a head."""
    text = re.sub(r"@triton\.jit\([^\n]*\)\ndef v\(.*?\n(?=\n*(?:@|def ))", ROW_SUMS, text, flags=re.S)
    launch = f"    v[(n_q // 8 // {rows}, own * 8)](dO_ptr, O_ptr, v_ptr, n_q // 8, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, {rows}, num_warps={warps})"
    return re.sub(r"    v\[.*", launch, text)


def within(text: str, out: str) -> str:
    """The text whose dS makes the row sums of dO and O, which come through the ring."""
    begin, end = text.index("@gluon.jit\ndef dS_loads"), text.index("@gluon.jit\ndef dQ_loads")
    body = text[begin:end]
    body = body.replace("def dS_loads(dO_tiles, ", "def dS_loads(dO_tiles, O_tiles, ")
    body = body.replace("def dS(dO_tiles, ", "def dS(dO_tiles, O_tiles, ").replace("(dS_loads, (dO_tiles, ", "(dS_loads, (dO_tiles, O_tiles, ")
    body = body.replace("filled * 8 + turn * 6 + k)", "filled * 8 + turn * 14 + 2 * k)").replace("(turn + 1) * 6", "(turn + 1) * 14")
    more = '''
            slot, phase = (filled * 8 + turn * 14 + {at}) % 8, ((filled * 8 + turn * 14 + {at}) // 8) & 1
            mbarrier.wait(V_j_free.index(slot), phase ^ 1)
            mbarrier.expect(V_j_full.index(slot), 16384)
            tma.async_copy_global_to_shared(O_tiles, [batch, key_head, i * 128 // 8, 0, k * 64], V_j_full.index(slot), V_j.index(slot).reshape([1, 1, 16, 8, 64]))'''
    one = "V_j_full.index(slot), V_j.index(slot).reshape([1, 1, 16, 8, 64]))"
    body = body.replace(one, one + more.format(at="2 * k + 1"), 1)
    two = "dO_i_full.index(k - 6), dO_i.index(k - 6))"
    body = body.replace(two, two + more.format(at="6 + k"), 1)
    took = "            mbarrier.arrive(V_j_free.index(slot), count=1)\n        for k in gl.static_range(6, 8):\n            mbarrier.wait(dO_i_full.index(k - 6), turn & 1)\n        v_i = gl.load(v_at + at_i)\n"
    assert took in body
    layout = "gl.DotOperandLayout(0, tile_128, 2)"
    tail = f'''            mbarrier.arrive(V_j_free.index(slot), count=1)
            slot, phase = (filled * 8 + turn * 14 + 2 * k + 1) % 8, ((filled * 8 + turn * 14 + 2 * k + 1) // 8) & 1
            mbarrier.wait(V_j_full.index(slot), phase)
            O_k = V_j.index(slot).reshape([128, 64]).slice(w * 64, 64).load({layout})
            fence_async_shared()
            mbarrier.arrive(V_j_free.index(slot), count=1)
            sums += dO_i_kept[k].to(gl.float32) * O_k.to(gl.float32)
        for k in gl.static_range(6, 8):
            mbarrier.wait(dO_i_full.index(k - 6), turn & 1)
            slot, phase = (filled * 8 + turn * 14 + 6 + k) % 8, ((filled * 8 + turn * 14 + 6 + k) // 8) & 1
            mbarrier.wait(V_j_full.index(slot), phase)
            O_k = V_j.index(slot).reshape([128, 64]).slice(w * 64, 64).load({layout})
            fence_async_shared()
            mbarrier.arrive(V_j_free.index(slot), count=1)
            dO_k = dO_i.index(k - 6).reshape([128, 64]).slice(w * 64, 64).load({layout})
            sums += dO_k.to(gl.float32) * O_k.to(gl.float32)
        v_i = gl.convert_layout(gl.sum(gl.convert_layout(sums, tile_64), 1), gl.SliceLayout(1, tile_128))
'''
    body = body.replace(took, tail)
    body = body.replace("        dO_i_kept = ()", f"        sums = gl.full([64, 64], 0.0, gl.float32, {layout})\n        dO_i_kept = ()")
    text = text[:begin] + body + text[end:]
    text = re.sub(r"    v\[.*\n", "", text)
    text = text.replace("](dO_tiles, V_tiles, dS_tiles, P_tiles, v_ptr", "](dO_tiles, O_tiles, V_tiles, dS_tiles, P_tiles, v_ptr")
    return text.replace("    V_tiles = tiles_of(V_ptr", "    O_tiles = tiles_of(O_ptr, 128, 64, 8)\n    V_tiles = tiles_of(V_ptr")


def turned(text: str, name: str) -> str:
    """The text whose blocks begin with tiles of different lengths."""
    begin = text.index(f"@gluon.jit\ndef {name}_loads")
    end = text.index("@gluon.jit(", begin)
    body = text[begin:end]
    of = "group, rank = tile // (tiles * together), tile % (tiles * together)"
    assert of in body
    many = "((tiles * heads - 1 - gl.program_id(0)) // gl.num_programs(0) + 1)"
    mine = f"own_tile = gl.program_id(0) + gl.num_programs(0) * ((turn + gl.program_id(0)) % {many})"
    body = body.replace(of, f"{mine}\n        group, rank = own_tile // (tiles * together), own_tile % (tiles * together)")
    return text[:begin] + body + text[end:]


def early(text: str) -> str:
    """The text of P whose rows that stay are the first ones, given back one after the other."""
    begin, end = text.index("@gluon.jit\ndef P_loads"), text.index("@gluon.jit(", text.index("@gluon.jit\ndef P_rows"))
    body = text[begin:end]
    ring = body[body.index("        for k in range(5):"): body.index("        for k in range(5, 9):")]
    stay = body[body.index("        for k in range(5, 9):"): body.index("        for j in range(")]
    first = stay.replace("range(5, 9)", "range(4)").replace("k - 5", "k")
    then = ring.replace("0, k * 64]", "0, (k + 4) * 64]")
    body = body.replace(ring + stay, first + then)
    body = body.replace("        for k in gl.static_range(5, 9):\n            mbarrier.wait(Q_i_full.index(k - 5), turn & 1)", "        for k in gl.static_range(4):\n            mbarrier.wait(Q_i_full.index(k), turn & 1)")
    body = body.replace("Q_i_kept[k] if k < 5 else Q_i.index(k - 5)", "Q_i_kept[k - 4] if k >= 4 else Q_i.index(k)")
    last = "            if j + 1 == gl.minimum((((i + 1) * 128 - 1) // 8 + 1 + 127) // 128, n_k // 128):\n"
    given = f"{last}                for k in gl.static_range(5, 9):\n                    mbarrier.arrive(Q_i_free.index(k - 5), count=1)\n"
    assert given in body
    body = body.replace(given, "")
    behind = "                    mbarrier.arrive(K_j_free.index(last), count=1)\n                last = slot"
    assert behind in body
    body = body.replace(behind, behind.replace("\n                last", f"\n                if k > 0 and k < 5 and j + 1 == gl.minimum((((i + 1) * 128 - 1) // 8 + 1 + 127) // 128, n_k // 128):\n                    mbarrier.arrive(Q_i_free.index(k - 1), count=1)\n                last"))
    return text[:begin] + body + text[end:]


def flipped(text: str) -> str:
    """The text whose dQ has the short tiles of every other head first."""
    begin = text.index("@gluon.jit\ndef dQ_loads")
    end = text.index("@gluon.jit(", begin)
    body = text[begin:end].replace("i = tiles - 1 - i\n", "i += (1 - head % 2) * (tiles - 1 - 2 * i)\n")
    return text[:begin] + body + text[end:]


def variants() -> dict[str, tuple[str, str]]:
    """Texts by name, and the kernels that are another's."""
    text = Path(__file__).with_name("latent_before.txt").read_text(encoding="utf-8")
    dK, dV = ("dK", "dS", "Q"), ("dV", "P", "dO")
    v_16, v_32 = rows_of(text, 16, 4), rows_of(text, 32, 8)
    return {
        "as it is": text,
        "pairs, v 16 rows, P early, dQ flipped": flipped(early(paired(paired(v_16, *dK, 3, 576), *dV, 3, 512))),
        "pairs, dV 256, v 32 rows, P dS turned": turned(
            turned(paired(paired(v_32, *dK, 3, 576), *dV, 4, 512), "P"), "dS"
        ),
        "v within dS, P early and turned": turned(early(within(text, "dS")), "P"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=50.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--texts", action="store_true", help="write the texts, and compute nothing")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    if asked.texts:
        for name, text in variants().items():
            (asked.output / f"{name.replace(' ', '_').replace(',', '')}.py").write_text(text)
        return
    import torch
    from timing import by_kernel

    from pebblesim.kernels.module import module_of

    until = time.monotonic() + asked.time_limit
    make = torch.Generator(device="cuda").manual_seed(1)

    def drawn(*sizes: int) -> Any:
        return torch.randn(1, *sizes, device="cuda", dtype=torch.bfloat16, generator=make)

    q, k, dO = drawn(128, 1024, 576), drawn(1, 1024, 576), drawn(128, 1024, 512)
    s = (q[0].float() @ k[0, 0].float().T) * 576**-0.5
    s.masked_fill_(torch.ones(1024, 1024, device="cuda", dtype=torch.bool).triu(1), -torch.inf)
    L = torch.logsumexp(s, -1)
    O = (torch.exp(s - L[..., None]) @ k[0, 0, :, :512].float()).to(torch.bfloat16)[None]
    del s
    L = (L * 1.4426950408889634).view(16, 8, 1024).transpose(1, 2).reshape(16, 8192).contiguous()
    K = k.expand(1, 16, 1024, 576).contiguous()
    right = None
    with (asked.output / "latent_variants.jsonl").open("a") as out:
        for name, text in variants().items():
            if asked.only and name not in asked.only.split(";"):
                continue
            try:
                run = module_of(text).run
                results = {"dQ": torch.empty_like(q)}
                results |= {g: torch.zeros(1, 16, 1024, d, device="cuda") for g, d in (("dK", 576), ("dV", 512))}

                def call() -> None:
                    run(q, K, K[..., :512], dO, O, L, results=results)

                call()
                torch.cuda.synchronize()
                found = [results["dQ"].float(), results["dK"].sum(1), results["dV"].sum(1)]
                right = right or found
                wrong = [float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True)]
                row = {"name": name, "wrong": wrong, "kernels": by_kernel(torch, call)}
            except Exception as error:
                row = {"name": name, "error": f"{type(error).__name__}: {error}"[:600]}
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(json.dumps(row), flush=True)
            if time.monotonic() > until:
                return


if __name__ == "__main__":
    main()
