"""What each release of Triton needs: texts, launches, and what is said where kernels do not run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pebblesim.advice import cards  # noqa: E402
from pebblesim.advice.tiles import hopper_tiling  # noqa: E402
from pebblesim.core.errors import UnknownName  # noqa: E402
from pebblesim.gpu.torch import plan  # noqa: E402
from pebblesim.kernels import releases  # noqa: E402
from pebblesim.kernels.gluon.gluon import gluon  # noqa: E402
from pebblesim.kernels.triton.triton import triton  # noqa: E402
from pebblesim.language.registry import get  # noqa: E402
from pebblesim.operator import once, planning  # noqa: E402
from pebblesim.operator.launching import boxes, launch, launching  # noqa: E402
from pebblesim.operator.pattern import Pattern, band_of  # noqa: E402

DIMS = {"n_q": 4096, "n_k": 4096, "d_k": 128, "d_v": 128}


def texts() -> Iterator[str]:
    for name in ("flash2-forward", "flash2-backward-blocked", "small-cache-backward-resident"):
        tiles, program = hopper_tiling(name, DIMS), get(name).in_dims(DIMS).program
        yield gluon(program, {**DIMS, **tiles.blocks}, **tiles.options).text
    yield triton(get("flash2-forward").in_dims(DIMS).program, {**DIMS, "B_r": 128, "B_c": 64}).text


def test_texts_are_written_for_the_oldest_release_and_renamed_for_others() -> None:
    for text in texts():
        assert releases.release("3.6").text(text) == releases.release("3.7").text(text) == text
        newest = releases.release("3.9").text(text)
        assert "async_copy" not in newest
        assert newest.count("tma.async_load(") == text.count("tma.async_copy_global_to_shared(")
        assert newest.count("tma.async_store(") == text.count("tma.async_copy_shared_to_global(")
        assert newest.count("enable_fp_fusion=True, num_warps=") == text.count("num_warps=") > 0


def test_texts_name_what_the_triton_here_has() -> None:
    """Each function of the copy engine, of barriers and of products that a text calls."""
    pytest.importorskip("triton")
    hopper = import_module("triton.experimental.gluon.language.nvidia.hopper")
    for text in map(releases.here().text, texts()):
        if "import gluon" not in text:
            continue
        called = re.findall(r"\b(tma|mbarrier)\.(\w+)\(", text)
        assert called and all(hasattr(getattr(hopper, of), name) for of, name in called)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.6.0", None),
        ("3.9.0+git1234", None),
        ("3.10.0", "Triton here is 3.10.0, and kernels of Gluon are for 3.6 to 3.9"),
        ("3.5.1", "Triton here is 3.5.1, and kernels of Gluon are for 3.6 to 3.9"),
        (None, "Triton is not here"),
    ],
)
def test_the_reason_why_gluon_does_not_run(version: str | None, reason: str | None) -> None:
    assert releases.without_gluon(version) == reason


def test_a_release_that_is_not_listed() -> None:
    with pytest.raises(UnknownName, match=r"no release of Triton is called '3\.5'"):
        releases.release("3.5")


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton 3.10 on a Hopper card, neither of which is here."""
    monkeypatch.setattr(releases, "installed", lambda: "3.10.0")
    monkeypatch.setattr(launching, "card_of", lambda device: cards.card("H200"))
    boxes.gluon_lost.cache_clear()
    once._SAID.clear()
    yield
    boxes.gluon_lost.cache_clear()
    once._SAID.clear()


def test_a_pass_that_loses_its_kernels_says_so_once(newer: None) -> None:
    device = torch.device("cuda", 0)

    def fitting(way: str, pattern: Pattern) -> Any:
        return launching.fitting(way, tuple(DIMS.items()), 16, "bfloat16", pattern, 2**30, device)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitting("forward", Pattern(softcap=1.0))  # has no kernels of Gluon to lose
    with pytest.warns(UserWarning) as said:
        made = fitting("forward", Pattern())
        fitting("backward", Pattern())
        fitting("forward", Pattern(band_of(right=0)))
    best = planning.chosen("forward", tuple(DIMS.items()), 16, "bfloat16", Pattern(), 2**30, cards.card("H200"))
    slower = made.forecast.seconds / best.forecast.seconds
    assert [str(each.message) for each in said] == [
        "Triton here is 3.10.0, and kernels of Gluon are for 3.6 to 3.9: the kernels for Hopper cards "
        "(backward-two-pass-blocked, dS-stored-resident, flash2-backward-blocked, flash2-forward, flash2-latent, "
        "scores-stored-resident, small-cache-backward-resident) do not run, and by the forecast this forward pass "
        f"takes {slower:.2f} times as long; pip install 'triton>=3.6,<3.10'."
    ]
    assert slower > 1 and best.forecast.tiling.gluon and not made.forecast.tiling.gluon


def test_a_plan_says_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for version in ("3.9.0", "3.10.0", None):
        monkeypatch.setattr(releases, "installed", lambda version=version: version)
        found[version] = plan(4096, 128, 16)
    assert str(found["3.9.0"]).splitlines()[0].endswith("rates of NVIDIA H200 SXM 141GB, Triton 3.9.0 here")
    assert str(found[None]).splitlines()[0].endswith(", no Triton here")
    assert found[None].forward == found["3.9.0"].forward and found[None].lost is found["3.9.0"].lost is None
    newer = found["3.10.0"]
    assert not any(each.tiling.gluon for each in (*newer.forward, *newer.backward))
    best = (found["3.9.0"].forward[0], found["3.9.0"].backward[0])
    assert newer.lost == best and all(each.tiling.gluon for each in best)
    assert str(newer).splitlines()[-1] == (
        "Triton here is 3.10.0, and kernels of Gluon are for 3.6 to 3.9; with these "
        f"forward {best[0].seconds * 1e3:.3g} ms, backward {best[1].seconds * 1e3:.3g} ms: "
        "pip install 'triton>=3.6,<3.10'"
    )
    monkeypatch.setattr(releases, "installed", lambda: "3.10.0")
    assert plan(4096, 128, 16, card="A100").lost is None


def kernel_of(run: Any, **metadata: Any) -> Any:
    return SimpleNamespace(
        run=run, function="f", packed_metadata="m", metadata=SimpleNamespace(tensordesc_meta=None, **metadata)
    )


def test_a_users_allocator_is_kept_and_kernels_get_their_own_room(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from triton import set_allocator
    from triton.runtime._allocation import _allocator

    taken: list[Any] = []

    class Run:
        global_scratch_size = 64

        def __call__(self, *given: Any) -> None:
            taken.append(_allocator.get())

    def users(size: int, alignment: int, stream: int | None) -> Any:
        raise AssertionError("memory of a user's own kernels")

    set_allocator(users)
    run = Run()
    launch.launch(launch.Compiled(kernel_of(run)), (1, 1, 1), 7, (16,))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    first = launch.Kernel({(1, 1, 1): lambda *given, **options: run() or kernel_of(run)})
    first[1, 1, 1](16)
    launch.Triton().set_allocator(launch._room)  # as texts of kernels do
    assert taken == [launch._room] * 2 and _allocator.get() is users


def test_a_kernel_is_held_while_it_is_launched_again() -> None:
    """Triton 3.8 and later unload one that nothing holds."""
    kernel = kernel_of(SimpleNamespace(global_scratch_size=0))
    assert launch.Compiled(kernel).made is kernel


@pytest.mark.parametrize("release", ["3.6", "3.7", "3.8", "3.9"])
def test_a_launch_gives_arguments_as_the_release_takes_them(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    """From 3.7 on Triton's own function takes what it knows of the types, and all arguments as one tuple."""
    monkeypatch.setattr(releases, "here", lambda: releases.RELEASES[release])
    monkeypatch.setattr(boxes.Boxes, "at", lambda self, address, made_as: (f"at {address}", made_as))
    started: list[Any] = []
    run = SimpleNamespace(launch_cooperative_grid=0, launch_pdl=1, arg_annotations="types", kernel_signature="signed")
    made = SimpleNamespace(
        run=run, function="f", metadata="m", made_as=["as"], start=lambda *given: started.append(given)
    )
    launch.launch(made, (1, 2, 1), 7, (boxes.Described(boxes.Boxes(None), 16), 5))
    given = ("at 16", "as", 5)
    first = (1, 2, 1, 7, "f", 0, 1)
    assert started == [
        (*first, None, None, "m", None, None, None, *given)
        if release == "3.6"
        else (*first, "m", None, None, None, None, None, "types", "signed", given)
    ]
