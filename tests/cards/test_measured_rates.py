"""What `advise` says of other attentions: the rows of races, or between two of them; nothing where none is near."""

import json
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from checkout import ROOT
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.advice.answer import beside, best_other, call, first_lines
from pebblesim.advice.calls import AttentionCall, SeenMask
from pebblesim.advice.cards import card
from pebblesim.advice.measured import FILE, Measured, Shape, measured, useful
from pebblesim.advice.pytorch_rules import Where
from pebblesim.advice.result import Advice
from pebblesim.cli.main import app
from pebblesim.explaining.judging import Judged, judge
from pebblesim.language import masks

sys.path.append(str(ROOT / "benchmarks" / "gpu"))

import measured as of_rows

ROWS = [
    json.loads(line)
    for name in ("hopper.jsonl", "h100/hopper.jsonl", "hopper_flex.jsonl")
    for line in (ROOT / "benchmarks" / "gpu" / name).read_text(encoding="utf-8").splitlines()
]
PARTS, H200 = 192, "NVIDIA H200"
"""The width, and its card, whose kernels were made anew: its rows are those of columns_in_parts.jsonl from 4,096 on."""

RACED = [
    row
    for row in ROWS
    if row.get("kernel") in ("cudnn", "flash", "efficient")
    and "tflops" in row
    and (row["d"], row["device"]) != (PARTS, H200)
]


def found(row: dict[str, Any], **others: Any) -> Measured:
    """What is known of the size of a row, but for what is given."""
    size = {"n": row["n"], "keys": others.get("n", row["n"]), "heads": row["heads"], "dtype": "bfloat16"} | others
    shape = Shape(row["way"], row["d"], row["d_v"], row["mask"] or "")
    sides, kv_heads = (size["n"], size["keys"]), others.get("kv_heads", size["heads"])
    return measured(row["device"], shape, sides, size["heads"], kv_heads, size["dtype"], operations({**row, **others}))


def operations(row: dict[str, Any]) -> int:
    """Two for each multiplication: S, O; or S, dP, dQ, dK of d_k or d_v terms, and dV."""
    k, v = row["d"], row["d_v"]
    products = k + v if row["way"] == "forward" else k + v + k + k + v
    return 2 * row["n"] ** 2 * products * row["heads"] // (1 if row["mask"] is None else 2)


def test_the_rates_in_the_package_are_those_of_the_rows() -> None:
    assert FILE.read_text(encoding="utf-8") == of_rows.written()


def test_columns_in_parts_have_the_times_of_the_kernels_that_do_not_pad_them() -> None:
    text = (ROOT / "benchmarks" / "gpu" / "columns_in_parts.jsonl").read_text(encoding="utf-8")
    rows = [row for row in map(json.loads, text.splitlines()) if row["d_k"] == PARTS and row["n"] > 1024]
    for row in rows:
        ours = [rate for kernel, rate in row["tflops"].items() if "B_r" in kernel and "padded" not in kernel]
        shape = {"d": row["d_k"], "device": H200, **row}
        rates = {"cudnn": row["tflops"]["cudnn"]} | ({"ours": max(ours)} if ours else {})
        for kernel, rate in rates.items():
            known = found(shape).seconds[kernel]
            assert abs(operations(shape) / known / 1e12 - rate) <= 0.5 + 1e-9
    assert len(rows) > 12


@given(st.sampled_from(RACED))
def test_a_size_that_was_measured_has_its_time(row: dict[str, Any]) -> None:
    known = found(row)
    assert known.exact and known.lengths == (row["n"],)
    assert known.seconds[row["kernel"]] == pytest.approx(operations(row) / row["tflops"] / 1e12, rel=1e-9)
    assert [*known.seconds.values()] == sorted(known.seconds.values())
    shape = Shape(row["way"], row["d"], row["d_v"], row["mask"] or "")
    assert useful(shape, row["n"], row["heads"]) == operations(row)


@given(st.data())
def test_between_two_lengths_the_rate_is_between_theirs(data: st.DataObject) -> None:
    shorter = data.draw(st.sampled_from([row for row in RACED if row["n"] in (1024, 4096)]))
    same = ("kernel", "way", "d", "d_v", "mask", "device")
    longer = next(
        row for row in RACED if row["n"] == 4 * shorter["n"] and all(row[name] == shorter[name] for name in same)
    )
    n = data.draw(st.integers(shorter["n"] + 1, longer["n"] - 1))
    heads = data.draw(st.integers(-(-32768 // n), 191))
    known = found(shorter, n=n, heads=heads)
    assert not known.exact and known.lengths == (shorter["n"], longer["n"])
    rate = operations({**shorter, "n": n, "heads": heads}) / known.seconds[shorter["kernel"]] / 1e12
    low, high = sorted((shorter["tflops"], longer["tflops"]))
    assert low * 0.999999 <= rate <= high * 1.000001


RACE = [
    json.loads(line)
    for name in ("race", "groups")
    for line in (ROOT / f"benchmarks/gpu/h200/drawn_race/{name}.jsonl").read_text(encoding="utf-8").splitlines()
]


def by_ffpa(row: dict[str, Any], way: str) -> float:
    """Microseconds of its fastest kernel for a pass; backward is what both passes take beside forward."""
    theirs = [name for name in row["forward"] if name.startswith("ffpa ") and name in row["both"]]
    forward, both = (min(row[each][name]["card_us"] for name in theirs) for each in ("forward", "both"))
    return float(forward if way == "forward" else both - forward)


def test_ffpa_has_the_time_of_its_race_and_of_no_length_far_from_it() -> None:
    """At the shapes of the races, to what a rate in whole TFLOP/s rounds; and half or twice a length away, at most.

    Where its kernels in the CuTe DSL ran for a head dimension and mask, rows without them do not count.
    """
    rows = [
        row | {"heads": row["batch"] * row["kv_heads"] * row["shared"]}
        for row in RACE
        if row["mask"] in ("none", "causal") and any(name.startswith("ffpa ") for name in row.get("both", ()))
    ]
    rows = [row for row in rows if row["n"] * row["heads"] >= 32768]
    of_cute = {(row["d"], row["mask"]) for row in rows if "ffpa cutedsl" in row["both"]}
    rows = [row for row in rows if "ffpa cutedsl" in row["both"] or (row["d"], row["mask"]) not in of_cute]
    assert len(of_cute) > 0 and len(rows) > 6
    seen = set()
    for row in rows:
        n, heads, mask = row["n"], row["heads"], None if row["mask"] == "none" else row["mask"]
        same = [each for each in rows if (each["d"], each["mask"]) == (row["d"], row["mask"])]
        for way in ("forward", "backward"):
            case = {"way": way, "d": row["d"], "d_v": row["d"], "n": n, "device": "NVIDIA H200", "mask": mask}
            (seconds, length) = found(case | {"heads": heads}, kv_heads=row["batch"] * row["kv_heads"]).raced["ffpa"]
            rate = max(
                operations(case | {"heads": each["heads"]}) / by_ffpa(each, way) / 1e6
                for each in same
                if each["n"] == n
            )
            case["heads"] = heads
            assert length == n and abs(operations(case) / seconds / 1e12 - rate) <= 0.5 + 1e-9
            for far in (2 * n + 1, (n - 1) // 2):
                near = [each["n"] for each in same if max(each["n"], far) <= 2 * min(each["n"], far)]
                if not near and far * heads >= 32768:
                    assert found(case, n=far).raced == {}
                    seen.add(far)
        assert found(case, dtype="float16").raced == found(case, keys=n - 1).raced == {}
    assert len(seen) > 3


def test_a_raced_kernel_is_named_with_the_length_of_its_race() -> None:
    heads = {"heads": 32, "kv_heads": 8, "mask": "causal"}
    shared = ps.advise("H200", n=8192, d=512, **heads)
    assert re.search(
        r"^others: FFPA [\d.]+ ms \([\d.]+ x, by its rate at n = 9,600\); others not measured with", str(shared), re.M
    )
    assert beside(shared).to_dict()["raced"]["ffpa"]["n"] == 9600


GROUPED = [
    ("H100", 8192, 128, (32, 8), "causal"),
    ("H200", 8192, 128, (32, 8), "causal"),
    ("H200", 4096, 64, (32, 8), None),
    ("H200", 8192, 192, (16, 4), "causal"),
    ("H200", 600, 100, (3, 1), None),
    ("H200", 32768, 128, (16, 16), "causal"),
]


def explained(gpu: str, n: int, d: int, heads: tuple[int, int], mask: str | None) -> Judged:
    """What `explain` says of one call of a model."""
    own, pattern = card(gpu), SeenMask("causal", None, 0) if mask else SeenMask()
    asked = AttentionCall("sdpa", 1, *heads, n, n, d, d, "bfloat16", pattern, training=True, enable_gqa=True)
    return judge("", "", 1, asked, own, Where(own.capability, (2, 12)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("gpu", "n", "d", "heads", "mask"), GROUPED[:1])
def test_estimates_are_those_of_explain(
    advice: Advice, gpu: str, n: int, d: int, heads: tuple[int, int], mask: str | None
) -> None:
    judged = explained(gpu, n, d, heads, mask)
    for way, problem in (("forward", "forward"), ("backward", "backward-qkv")):
        shared = {"heads": heads[0], "kv_heads": heads[1], "heads_per_problem": heads[0] // heads[1]}
        dims = {"n_q": n * heads[0] // heads[1], "n_k": n, "d": d}
        asked = replace(advice, card=card(gpu), problem=problem, dims=dims, mask=masks.of(mask), **shared)
        theirs = judged.passes[way].theirs
        assert theirs is not None and beside(asked).estimated == {judged.choice.backend: theirs}
        for ours, called in ((1.01 * theirs, "CUDNN_ATTENTION"), (theirs, "pebblesim.gpu.torch")):
            (launch,) = advice.kernels[0].launches
            kernel = replace(advice.kernels[0], launches=(replace(launch, seconds=ours),))
            assert called in next(first_lines(replace(asked, kernels=(kernel,))))


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "n", "d", "heads", "mask"), GROUPED)
def test_where_nothing_was_measured_advise_and_explain_say_the_same(
    gpu: str, n: int, d: int, heads: tuple[int, int], mask: str | None
) -> None:
    judged = explained(gpu, n, d, heads, mask)
    called = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}[judged.choice.backend]
    for way, problem in (("forward", "forward"), ("backward", "backward-qkv")):
        advice = ps.advise(gpu, n=n, d=d, heads=heads[0], kv_heads=heads[1], mask=mask, problem_name=problem)
        theirs, ours = judged.passes[way].theirs, advice.kernels[0].seconds
        assert theirs is not None and beside(advice).to_dict()["estimated"] == {judged.choice.backend: theirs}
        _, line, _, others, *_ = map(str, advice.parts())
        faster = theirs < ours
        assert (f"SDPBackend.{called}" in line) == faster == ("estimated: faster than ours)" in others)
        assert f" ({theirs / ours:.2f} x, estimated" in others and "others not measured " in others


@pytest.mark.parametrize(
    ("gpu", "options", "known"),
    [
        ("H200", {"mask": masks.of("causal"), "dims": {"n": 4096, "d": 128}}, {"cudnn"}),
        ("H200", {"mask": masks.of("window:64"), "dims": {"n": 4096, "d": 128}}, set()),
        ("H200", {"mask": masks.of("causal"), "dims": {"n_q": 64, "n_k": 4096, "d": 128}}, set()),
        ("A100", {"dims": {"n": 4096, "d": 128}}, set()),
        ("H200", {"dims": {"n_q": 1, "n_k": 4096, "d": 128}}, set()),
        ("H200", {"dims": {"n_q": 4096, "n_k": 77, "d": 128}}, {"cudnn"}),
    ],
)
def test_an_estimate_is_given_only_where_pytorchs_flags_say_the_attention(
    advice: Advice, gpu: str, options: dict[str, Any], known: set[str]
) -> None:
    """A window, and a causal mask that ends with the keys, need a mask in memory; decoding was not measured."""
    assert {*beside(replace(advice, card=card(gpu), dtype="float16", **options)).estimated} == known


ROW = next(row for row in RACED if (row["n"], row["d"], row["d_v"], row["mask"]) == (4096, 128, 128, None))


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"device": "NVIDIA A100"}, "on this card"),
        ({"dtype": "float16"}, "with words of float16"),
        ({"kv_heads": 4}, "with heads that share keys and values"),
        ({"keys": 8192}, "with fewer or more queries than keys"),
        ({"mask": "window:64"}, "under mask window:64"),
        ({"d": 72, "d_v": 72}, "at these head dimensions; at 64, 96, 128"),
        ({"heads": 7}, "with as few as 28,672 rows of queries"),
        ({"n": 32768, "heads": 16}, "at n = 32,768; from 1,024 to 16,384 they were"),
        ({"n": 1023, "heads": 64}, "at n = 1,023"),
    ],
)
def test_nothing_is_said_where_no_row_is_near(others: dict[str, Any], says: str) -> None:
    known = found({**ROW, **others}, **others)
    assert known.seconds == {} and known.lengths == () and says in known.why


def test_another_attention_is_advised_only_where_it_was_clearly_faster() -> None:
    assert best_other(Measured({"cudnn": 0.96, "ours": 1.0}), 1.0) == "cudnn"
    assert best_other(Measured({"cudnn": 0.98, "ours": 1.0, "flash": 2.0}), 1.0) is None
    assert best_other(Measured({"flex": 0.5, "ours": 1.0}), 1.0) is None  # is no line of Python
    assert best_other(Measured({}), 1.0) is None
    assert best_other(Measured({}, estimated={"flash": 0.99}), 1.0) == "flash"  # as `explain`, which adds passes up
    assert best_other(Measured({}, estimated={"flash": 1.0}), 1.0) is None


@pytest.fixture(scope="module")
def advice() -> Advice:
    return ps.advise("A100", n=64, d=32, heads=4)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, "Q, K, V"),
        ({"mask": "causal"}, "Q, K, V, is_causal=True"),
        ({"mask": "window:9"}, "Q, K, V, is_causal=True, window=(8, 0)"),
        ({"mask": "band:9"}, "Q, K, V, window=(9, 9)"),
        ({"mask": "causal", "sides": (64, 80)}, 'Q, K, V, is_causal=True, align="end"'),
        ({"mask": "causal:start", "sides": (64, 80)}, "Q, K, V, is_causal=True"),
        ({"kv_heads": 2}, "Q, K, V, enable_gqa=True"),
    ],
)
def test_the_call_has_the_arguments_of_the_attention(advice: Advice, options: dict[str, Any], arguments: str) -> None:
    mask, kv_heads, sides = (options.pop(name, None) for name in ("mask", "kv_heads", "sides"))
    dims = dict(advice.dims) if sides is None else dict(zip(("n_q", "n_k", "d"), (*sides, 32), strict=True))
    other = replace(advice, mask=masks.of(mask), kv_heads=kv_heads, dims=dims)
    assert call(other, None).endswith(f"attention({arguments})")
    assert call(other, "cudnn").endswith(f"SDPBackend.CUDNN_ATTENTION): O = {SDPA}({arguments})")


SDPA = "torch.nn.functional.scaled_dot_product_attention"


@pytest.mark.slow
def test_the_answer_has_four_lines_and_details_are_asked_for() -> None:
    asked = ["advise", "--gpu", "H200", "-n", "1024", "-d", "128", "--heads", "64", "--backward"]
    short = CliRunner().invoke(app, asked).output.splitlines()
    long = CliRunner().invoke(app, [*asked, "--why"]).output.splitlines()
    data = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)
    assert [line.split(":")[0] for line in short[1:5]] == ["call", "ours", "others", "times"] and len(short) == 6
    assert short[:5] == long[:5] and len(long) > 50 and "--why" in short[5]
    assert short[1] == f"call: {data['call']}" and "CUDNN" in data["call"]
    assert data["measured"]["seconds"]["cudnn"] < 0.97 * data["measured"]["seconds"]["ours"]
    assert max(map(len, short[2:])) <= 120


def test_how_far_interpolation_is_off_stands_in_the_document() -> None:
    """The middle length of three, guessed from the two others, which are sixteen times apart."""
    off, ratios = [], []
    for device, shapes in json.loads(FILE.read_text(encoding="utf-8")).items():
        for shape in shapes:
            if (shape["d_k"], device) == (PARTS, H200):  # its shortest length is that of other kernels
                continue
            rates = {
                kernel: {n: rate for n, heads, rate, *_ in rows if n * heads == 65536}
                for kernel, rows in shape["tflops"].items()
            }
            wrong = {
                kernel: by[4096] / (by[1024] + by[16384]) * 2
                for kernel, by in rates.items()
                if by.keys() >= {1024, 16384}
            }
            off += wrong.values()
            ratios += [each / wrong["ours"] for kernel, each in wrong.items() if kernel != "ours"]
    text = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
    said = f"the measured rate is {min(off):.2f} to {max(off):.2f} times the interpolated rate, and the measured ratio "
    said += f"to our rate is {min(ratios):.2f} to {max(ratios):.2f} times the interpolated ratio"
    assert said in re.sub(r"\s+", " ", text), said


def test_devices_in_the_file_are_those_of_cards() -> None:
    assert {card("H100").device, card("H200").device} == set(json.loads(FILE.read_text(encoding="utf-8")))
