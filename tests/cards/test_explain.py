"""`explain` without PyTorch: rules of choice, words and minima, times, the table and the page."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT

import pebblesim as ps
from pebblesim.advice import cards, pytorch_times
from pebblesim.advice.calls import AttentionCall, Recorded, SeenMask
from pebblesim.advice.pytorch_rules import Where, choose
from pebblesim.cli.printing import print_table
from pebblesim.core.errors import UsageError
from pebblesim.core.tables import Sheet
from pebblesim.explaining.judging import judge, table_bytes
from pebblesim.explaining.result import Explained, explained
from pebblesim.operator.plans import plan
from pebblesim.views.explained import page

CAUSAL = SeenMask("causal", None, 0)

HELD = SeenMask("window", 99, 0, given=True, shape=(1, 1, 512, 512), boolean=True)


def call(**others: object) -> AttentionCall:
    sizes = {"batch": 1, "heads": 8, "kv_heads": 8, "n_q": 512, "n_k": 512, "d_k": 128, "d_v": 128}
    given = {"entry": "sdpa", "dtype": "bfloat16", "mask": CAUSAL, "training": True}
    return AttentionCall(**{**given, **sizes, **others})  # type: ignore[arg-type]


H200, A100, ADA, NEW = Where("9.0", (2, 11)), Where("8.0", (2, 11)), Where("8.9", (2, 11)), Where("9.0", (2, 14))
WIDE = {"d_k": 256, "d_v": 256}


@pytest.mark.parametrize(
    ("asked", "where", "backend", "because"),
    [
        (call(), H200, "cudnn", ""),
        (call(), A100, "flash", ""),
        (call(), Where("10.0", (2, 11)), "cudnn", ""),
        (call(), Where("12.0", (2, 11)), "flash", ""),
        (call(), Where("7.5", (2, 11)), "math", "compute capability 7.5 is not between 8.0"),
        (call(dtype="float32"), H200, "efficient", "words are float32"),
        (call(dtype="float64"), H200, "math", "words are float64"),
        (call(**WIDE), H200, "cudnn", ""),
        (call(**WIDE), NEW, "flash", "a head dimension of 256 is above 128"),
        (call(**WIDE), Where("9.0", (2, 14), 92300), "cudnn", ""),
        (call(d_k=192, d_v=192), Where("9.0", (2, 14), 92300), "flash", "no gradients for head dimensions 192"),
        (call(d_k=512, d_v=512), H200, "efficient", "a head dimension of 512 is above 256"),
        (call(d_k=192, d_v=128), A100, "efficient", "it takes equal ones up to 256"),
        (call(d_k=100, d_v=100), H200, "flash", "not both multiples of 8"),
        (call(d_k=260, d_v=260), H200, "math", "head dimensions 260 and 260 are not both multiples of 8"),
        (call(d_k=200, d_v=200), ADA, "efficient", "need more shared memory"),
        (call(d_k=200, d_v=200, training=False), ADA, "flash", ""),
        (call(mask=HELD), A100, "efficient", "the mask is a tensor (window)"),
        (call(mask=HELD), H200, "cudnn", ""),
        (call(mask=HELD, kv_heads=2, enable_gqa=True), A100, "math", "which these kernels do not share"),
        (call(mask=HELD, kv_heads=2, enable_gqa=True), Where("8.0", (2, 14)), "efficient", "the mask is a tensor"),
        (call(dims=3), A100, "math", "tensors have 3 dimensions"),
        (call(dims=3), Where("8.0", (2, 14)), "flash", ""),
        (call(dims=5), Where("8.0", (2, 14)), "math", "tensors have 5 dimensions"),
        (call(dims=3, mask=replace(HELD, shape=(8, 512, 512))), Where("8.0", (2, 14)), "efficient", "the mask is a"),
        (call(kv_heads=1), A100, "math", "enable_gqa=True is not given"),
        (call(kv_heads=1), Where("8.0", (2, 14)), "flash", ""),
        (call(kv_heads=2), Where("8.0", (2, 14)), "math", "enable_gqa=True is not given"),
        (call(kv_heads=2), H200, "math", "enable_gqa=True is not given"),
        (call(kv_heads=3, enable_gqa=True), H200, "math", "3 heads of keys do not divide 8"),
        (
            call(mask=SeenMask("bias", given=True, shape=(1, 8, 512, 512), gradient=True)),
            H200,
            "efficient",
            "gradient",
        ),
        (call(mask=SeenMask("bias", given=True, shape=(8, 512, 512))), H200, "efficient", "shape (8, 512, 512)"),
        (call(deterministic=True), H200, "flash", "deterministic algorithms are asked for"),
        (call(n_q=1), A100, "efficient", "is_causal with 1 queries and 512 keys"),
        (call(n_q=1, n_k=1), H200, "flash", "there is one key"),
        (call(n_k=0), H200, "math", "no keys"),
        (call(dims=3), H200, "math", "tensors have 3 dimensions"),
        (call(plain=False), H200, "math", "do not lie side by side"),
        (call(off=("cudnn", "flash")), H200, "efficient", "it is switched off"),
        (call(), Where("", (2, 11)), "", "no compute capability is known"),
        (call(), Where("9.0", (2, 5)), "", "PyTorch 2.10 and later"),
    ],
)
def test_the_backend_and_the_reason(asked: AttentionCall, where: Where, backend: str, because: str) -> None:
    choice = choose(asked, where)
    assert choice.backend == backend
    assert because in str(choice), choice
    if backend:
        assert because or not choice.why
        assert backend not in dict(choice.why)


def judged(asked: AttentionCall, gpu: str = "H200") -> Explained:
    card = cards.card(gpu)
    found = Recorded((("layers.0.attn", asked), ("layers.1.attn", asked)), 10**9, "meta", (2, 11), None)
    return explained(found, card, card.capability, "tiny")


@pytest.mark.one_in(2)
def test_words_are_those_of_the_schedules_and_minima_those_of_the_bounds() -> None:
    """Under a flag a fused kernel leaves pairs out; under a mask in memory it computes all, and reads the mask."""
    M = 232448 // 2
    sizes = {"n": 512, "d": 128, "M": M, "heads": 8, "batch": 1}
    (row,) = judged(call(kv_heads=2, enable_gqa=True)).rows
    flag = row.passes["forward"]
    made = ps.count("flash2-forward", kv_heads=2, mask="causal", **sizes)
    assert (flag.words, flag.mask_words) == (made.total.io, 0)
    assert flag.least == made.every_way.value * made.times
    back = ps.count("flash2-backward", kv_heads=2, mask="causal", **sizes)
    assert row.passes["backward"].words == back.total.io
    copied = judged(call(mask=HELD, repeated=4)).rows[0].passes["forward"]
    assert copied.words == ps.count("flash2-forward", **sizes).total.io
    assert copied.mask_words == 8 * 512**2
    own = ps.count("flash2-forward", kv_heads=2, mask="window:100", **sizes)
    assert copied.least == own.every_way.value * own.times
    eager = judged(call(entry="eager", mask=HELD, training=False)).rows[0]
    assert [*eager.passes] == ["forward"]
    assert eager.passes["forward"].words == ps.count("standard-forward", **sizes).total.io
    for kind in ("dense", "unknown", "padding"):
        mask = SeenMask(kind, given=True, shape=(1, 1, 512, 512))
        assert judged(call(mask=mask)).rows[0].passes["forward"].least is None


def test_bytes_of_tables() -> None:
    scores = 8 * 512 * 512
    assert table_bytes(call(), "math") == 2 * 4 * scores  # 16-bit words are computed in 32 bits
    assert table_bytes(call(), "eager") == 2 * 2 * scores
    assert table_bytes(call(), "flash") == 4 * 8 * 512
    assert table_bytes(call(training=False), "flash") == 0
    assert table_bytes(call(mask=HELD), "efficient") == 2 * 512**2 + 4 * 8 * 512


def test_bytes_of_tables_are_those_that_a_card_measured() -> None:
    """In benchmarks/gpu/explain_times.jsonl; FlashAttention took more in one call, which it split."""
    near: Counter[tuple[str, bool]] = Counter()
    for line in (ROOT / "benchmarks" / "gpu" / "explain_times.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        shape, n = row["shape"], row["shape"]["n_q"]
        given = SeenMask("dense", given=True, shape=(1, 1, n, n), boolean=True)
        heads = shape["kv"] * shape["group"]
        sizes = {"heads": heads, "kv_heads": shape["kv"], "n_q": n, "n_k": n, "d_k": shape["d"], "d_v": shape["d_v"]}
        mask = given if shape["mask"] in ("boolean", "window") else SeenMask()
        said = table_bytes(call(batch=shape["batch"], mask=mask, **sizes), row["backend"])
        least, most = (0.55, 0.85) if row["backend"] == "math" else (0.95, 1.0)
        near[row["backend"], least <= said / row["bytes"]["theirs"] <= most] += 1
    assert near == {
        ("cudnn", True): 34,
        ("efficient", True): 7,
        ("flash", True): 6,
        ("flash", False): 1,
        ("math", True): 12,
    }


def test_rows_of_the_multiprocessor_that_ends_last() -> None:
    """Against dealing each block to whoever is free, one after the other, for small cards."""
    for n_q, n_k, causal, heads, block in (
        (300, 300, True, 50, 64),
        (1000, 700, False, 30, 128),
        (128, 128, True, 1, 64),
    ):
        done = [0] * pytorch_times.UNITS
        for _ in range(heads):
            for first in range(0, n_q, block):
                who = min(range(len(done)), key=lambda unit: done[unit])
                done[who] += block * (min(n_k, first + block) if causal else n_k)
        assert pytorch_times._dealt(n_q, n_k, causal, heads, block)[1] == max(done)


def test_pairs_that_a_band_allows() -> None:
    for n_q in range(1, 6):
        for n_k in range(1, 6):
            for left in (None, 0, 1, 3):
                for right in (None, -1, 0, 2):
                    counted = sum(
                        (left is None or i - j <= left) and (right is None or j - i <= right)
                        for i in range(n_q)
                        for j in range(n_k)
                    )
                    assert pytorch_times.allowed(SeenMask("window", left, right), n_q, n_k) == counted


@pytest.mark.one_in(3)
def test_times_are_estimates_only_where_they_were_measured() -> None:
    """At the sizes of the measurements the estimate is near them; elsewhere there is a least time, and it is less."""
    asked = call(n_q=16384, n_k=16384, heads=4, kv_heads=4, mask=SeenMask())
    took = pytorch_times.operations(asked, "forward") / 694e12  # benchmarks/gpu/hopper.jsonl: cudnn, d = 128
    made = pytorch_times.seconds(asked, "cudnn", "forward", "NVIDIA H200")
    assert made is not None and 0.8 < made / took < 1.2
    half = call(n_q=16384, n_k=16384, heads=4, kv_heads=4)
    took_half = 2 * 16384**2 * 256 * 4 / 2 / 532e12  # the same file: causal
    made = pytorch_times.seconds(half, "cudnn", "forward", "NVIDIA H200")
    assert made is not None and 0.8 < made / took_half < 1.2
    for card in cards.cards().values():
        least = pytorch_times.at_least(asked, "cudnn", "forward", card)
        if card.device != "NVIDIA H200":
            assert pytorch_times.seconds(asked, "cudnn", "forward", "NVIDIA A100-SXM4-80GB") is None
        elif least is not None:
            assert least < took
    assert judged(call(mask=HELD)).rows[0].measured  # one table of booleans, as measured
    assert not judged(call(mask=replace(HELD, boolean=False))).rows[0].measured
    assert not judged(call(mask=replace(HELD, shape=(1, 8, 512, 512)))).rows[0].measured
    assert pytorch_times.seconds(call(d_k=100, d_v=100), "cudnn", "forward", "NVIDIA H200") is not None
    assert pytorch_times.seconds(call(d_k=24, d_v=24), "cudnn", "forward", "NVIDIA H200") is None
    for n_q, n_k, known in ((1, 32768, False), (127, 128, False), (128, 129, True), (64, 64, True), (4096, 77, True)):
        sizes = {"n_q": n_q, "n_k": n_k, "mask": SeenMask()}  # kernels may split the keys of few queries: not measured
        assert (pytorch_times.seconds(call(**sizes), "cudnn", "forward", "NVIDIA H200") is not None) == known
    assert judged(call()).rows[0].measured
    assert judged(call(), "A100").rows[0].seconds("ours") is None


@pytest.mark.one_in(2)
def test_the_table_has_at_most_100_columns_and_four_lines_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    for gpu in ("H200", "RTX4090", "B200"):
        made = judged(call(mask=HELD, heads=64, kv_heads=64, repeated=8), gpu)
        first, *rest = made.parts()
        assert str(first).startswith("tiny on ") and "2 attention calls of 1 kind" in str(first)
        assert isinstance(rest[4], Sheet)
        assert all(len(str(line)) <= 130 for line in (first, *rest[:3]))
        sheet = rest[4]
        print_table(None, sheet.columns, sheet.lines, sheet.words, sheet.first, sheet.others)
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
        data = made.to_dict()
        assert json.loads(json.dumps(data)) == data
        assert data["rows"][0]["where"] == "layers.*.attn" and data["rows"][0]["numbers"] == "0–1"


def test_what_is_gained_in_the_step() -> None:
    """At most the difference ÷ (all else at the card's peak + PyTorch's attention)."""
    made = judged(call())
    assert made.both is not None and made.other_seconds is not None
    theirs, ours = made.both
    assert theirs == 2 * sum(each.theirs or 0 for each in made.rows[0].passes.values())
    assert made.other_seconds == 3e9 / 989e12
    percent = f"{(theirs - ours) / (made.other_seconds + theirs):.1%}".removeprefix("-")
    assert f"at most {percent}" in str(made.parts()[2])
    refused = judged(call(mask=SeenMask("bias", given=True, shape=(1, 8, 512, 512), gradient=True, also="padding")))
    assert refused.both is None and "its time is not forecast" in str(refused)
    assert refused.rows[0].passes["forward"].kernel == ""


def test_a_bias_is_forecast() -> None:
    """The gradient of the bias takes time, and a bias that all sequences share takes less than one for each."""
    seconds = {}
    for name, shape, gradient in (
        ("shared", (1, 8, 512, 512), True), ("without", (1, 8, 512, 512), False), ("own", (64, 8, 512, 512), True),
    ):  # fmt: skip
        mask = SeenMask("bias", given=True, shape=shape, gradient=gradient)
        (row,) = judged(call(batch=64, mask=mask, training=True)).rows
        assert not row.refusal and row.passes["backward"].kernel.startswith("kernels with a bias: dQ in tiles of")
        assert ("dB in tiles of" in row.passes["backward"].kernel) is gradient
        seconds[name] = {way: each.ours for way, each in row.passes.items()}
    assert seconds["shared"]["forward"] == seconds["without"]["forward"] > 0
    assert seconds["own"]["backward"] > seconds["shared"]["backward"] > seconds["without"]["backward"] > 0


def test_eager_masks_with_a_bias() -> None:
    joined = judged(call(entry="eager", mask=SeenMask("causal", None, 0, given=True, also="bias"))).rows[0]
    assert "its time is not forecast" in joined.refusal and joined.passes["forward"].least is not None


def test_a_page_says_what_the_command_says() -> None:
    made = judged(call(mask=HELD))
    text = page(made.page() | {"title": "<script>alert(1)</script>"})
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "layers.*.attn" in text and "determinism" in text
    assert (
        sorted(re.findall(r'class="bar (\w+)" style="width:(\d+)', text), key=lambda bar: int(bar[1]))[-1][1] == "100"
    )


def test_an_amd_card_has_no_rules_and_a_model_without_attention_no_table() -> None:
    (row,) = judged(call(), "MI300X").rows
    assert row.choice.backend == "" and row.passes["forward"].words is None
    none = explained(Recorded((), 0, "", (2, 11), None), cards.card("H200"), "9.0", "nothing")
    assert str(none) == "nothing: no attention was called" and "no attention" in page(none.page())


def test_without_pytorch_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="explain needs PyTorch, and torch is not here: pip install torch"):
        ps.explain(gpu="H200")


@pytest.mark.one_in(2)
def test_the_tile_for_a_small_card_fits_it() -> None:
    """Its kernel is the first for a card whose blocks have 99 KiB, and takes no more shared memory."""
    row = judge("", "", 1, call(d_k=256, d_v=256), cards.card("H200"), H200)
    best = plan(512, 256, 8, is_causal=True, card="RTX4090").forward[0]
    assert row.passes["forward"].small == str(best.tiling)
    assert all(launch.cost.storage.shared <= 99 * 1024 for launch in best.launches)
    assert row.our_cost is not None and row.our_cost >= 1
