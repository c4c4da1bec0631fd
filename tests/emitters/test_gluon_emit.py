"""`pebblesim gpu emit --target gluon`: what it writes, and what it refuses with advice that fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli.main import app
from pebblesim.core.errors import PebblesimError

FORWARD, PAIRS = "flash2-forward", "small-cache-backward-resident"


def emitted(schedule: str, *options: str) -> str:
    """The output; the error is raised."""
    made = CliRunner().invoke(app, ["gpu", "emit", schedule, "-n", "1024", *options])
    if made.exception is not None:
        raise made.exception
    return made.output


def test_heads_that_share_keys_and_a_window_are_one_head_with_more_rows(tmp_path: Path) -> None:
    sizes = "-d", "64", "-M", "128k", "--heads", "8", "--kv-heads", "2", "--mask", "window:256"
    for schedule in (FORWARD, PAIRS):
        data = json.loads(emitted(schedule, *sizes, "--target", "gluon", "--json", "-o", str(tmp_path / "kernels.py")))
        assert data["n_q"] == 4 * 1024 and data["n_k"] == 1024
        arguments = {"n": 1024, "d": 64, "M": 2**17, "heads": 8, "kv_heads": 2, "mask": "window:256"}
        counted = ps.count(schedule, blocks=data["blocks"], **arguments)  # type: ignore[arg-type]
        assert (data["reads"] + data["writes"], data["times"]) == (counted.io, counted.times)
        assert data["heads"] == counted.heads.to_dict()
        assert "// 4" in (tmp_path / "kernels.py").read_text(encoding="utf-8")  # four rows stand at each position


def test_tensor_cores_need_no_cache() -> None:
    """Tiles that were measured need no M, nor do tiles that are given; a rule that fills a cache does."""
    assert "B_r = 128, B_c = 128, bfloat16" in emitted(FORWARD, "-d", "64", "--target", "gluon")
    assert "B_r = 64, B_c = 64, bfloat16" in emitted(FORWARD, "-d", "64", "--target", "triton")
    given = "--block", "B_r=32", "--block", "B_c=16", "--stages", "2", "--dtype", "fp16"
    text = emitted(FORWARD, "-d", "64", "--target", "triton", *given)
    assert "B_r = 32, B_c = 16, float16" in text and "num_warps=8, num_stages=2)" in text
    for refused, said in (
        (("-d", "64", "--target", "triton", "--blocks", "paper"), "--blocks paper chooses blocks .*; add -M"),
        (("-d", "600", "--target", "triton"), "a head dimension of 600, .* 512 at most; give -M, or each --block"),
        (("-d", "64"), "emit needs a schedule and -M"),
    ):
        with pytest.raises(PebblesimError, match=said):
            emitted(FORWARD, *refused)
    with pytest.raises(PebblesimError, match=r"large-cache has no tiles for Triton kernels .*; give -M, or each"):
        emitted("large-cache", "-d", "64", "--target", "triton")


def test_blocks_that_are_left_out_are_those_of_the_measured_tiles() -> None:
    """The others were the largest that fit into M, which no kernel has."""
    data = json.loads(emitted(FORWARD, "-d", "64", "-M", "64k", "--target", "gluon", "--block", "B_r=64", "--json"))
    assert data["blocks"] == {"B_r": 64, "B_c": 128}
    with pytest.raises(PebblesimError, match="no block of flash2-forward is called 'a'"):
        emitted(FORWARD, "-d", "64", "-M", "64k", "--target", "gluon", "--block", "a=64")


@pytest.mark.parametrize(
    ("schedule", "options", "said"),
    [
        (FORWARD, "-d 64 -M 1k", "41,216 words on chip at once, and -M is 1,024; give -M 41216 or more"),
        (FORWARD, "-d 64 -M 1M", "more than a block of a Hopper card has on chip: 181,760 words"),
        (FORWARD, "-d 64 -M 600KiB --dtype fp16", "give -M 181760 or less"),
        (FORWARD, "-d 64 -M 128k --warps 4", "four warps for each 64 rows .*leave --warps out"),
        (FORWARD, "-d 64 -M 128k --workers 4", "leave --workers out"),
        (FORWARD, "-d 64 -M 128k --threads 64", "128 threads for each 64 rows .*leave --threads out"),
        (FORWARD, "-d 64 -M 128k --stages 1", "one stage .*take --stages 2 or more"),
        (FORWARD, "-d 64 -M 128k --stages 100", f"^{FORWARD} takes .* a block has 232,448; take fewer --stages"),
        (FORWARD, "-d 512 -M 128k", "of 512, and kernels are for 256 at most; give each --block, or take --target tri"),
        (PAIRS, "-d 20 -M 128k", "d_k in whole groups of 8 words, and it is 20; give each --block, or take --target"),
        (
            PAIRS,
            "-d 20 --block a=128 --block b=128 --block c=64 --block e=256",
            "as Gluon kernels: they take d_k in whole groups of 8 words, and it is 20; take --target triton",
        ),
        ("small-cache", "-d 64 -M 128k", f"no tiles for Gluon kernels; take {FORWARD}, "),
        (FORWARD, "-d 64 -M 128k --dtype float32", "words of 16 bits, and not of float32; add --dtype bf16"),
    ],
)
def test_what_gluon_kernels_do_not_have_is_refused(schedule: str, options: str, said: str) -> None:
    with pytest.raises(PebblesimError, match=said):
        emitted(schedule, *options.split(), "--target", "gluon")


@pytest.mark.parametrize(
    ("target", "option", "said"),
    [
        ("cuda", "--warps 4", "leave --warps out"),
        ("cuda", "--stages 4", "leave --stages out"),
        ("cuda", "--persistent", "use --target gluon"),
        ("triton", "--workers 4", "leave --workers out"),
        ("triton", "--threads 64", "leave --threads out"),
        ("triton", "--warps 3", "has 1, 2, 4, 8, 16, 32 warps, not 3"),
        ("triton", "--no-persistent", "use --target gluon"),
        (
            "triton",
            "--stages 1000",
            "with 1,000 stages a block of .* no card has more than 232,448; take fewer --stages",
        ),
        ("opencl", "--warps 4", "'opencl' is not known|opencl"),
    ],
)
def test_options_of_other_targets_are_refused(target: str, option: str, said: str) -> None:
    with pytest.raises(PebblesimError, match=said):
        emitted(FORWARD, "-d", "64", "-M", "64k", *option.split(), "--target", target)
