"""Calibration without a GPU: rates fitted to times that known rates make, card files, and the card that is here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer import get_app_dir
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.advice import cards
from pebblesim.advice.cards import Card, Figure
from pebblesim.advice.forecast import figures_of, forecasts, timed
from pebblesim.cli.main import app
from pebblesim.core.errors import UsageError
from pebblesim.kernels import module
from pebblesim.kernels.domains import Call
from pebblesim.measuring.calibrate import fit
from pebblesim.measuring.calibrate.calibrate import from_rows, write
from pebblesim.measuring.calibrate.measure import Measured, costs_of
from pebblesim.measuring.calibrate.shapes import Cell, Shape, drawn

H200 = cards.card("H200")


def properties(name: str, shared: int) -> SimpleNamespace:
    """What a driver says of a card with 100 multiprocessors."""
    return SimpleNamespace(
        major=8,
        minor=9,
        name=name,
        multi_processor_count=100,
        max_threads_per_multi_processor=1536,
        regs_per_multiprocessor=65536,
        shared_memory_per_multiprocessor=shared + 1024,
        shared_memory_per_block_optin=shared,
        L2_cache_size=2**25,
        total_memory=2**34,
        memory_clock_rate=10_000_000,
        memory_bus_width=256,
    )


def test_a_kind_of_few_launches_is_held_at_its_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that take twice their forecast: k of them give at most 2 ** (k / (k + held)), outliers less."""
    monkeypatch.setattr(fit, "_made", lambda cost, *_: 1.0)
    held, last = fit.HELD["launch"], 1.0
    for k in (1, 2, 5, 40):
        found = fit.besides([(SimpleNamespace(kinds=("masked",)), 2.0)] * k, {}, {})["masked"]  # type: ignore[list-item]
        assert last < found < 2.0
        assert found <= 2 ** (k / (k + held)) + 1e-9  # an outlier weighs at most as much as it would without weights
        last = found
    assert last > 1.97
    apart = [(SimpleNamespace(kinds=("a", "b")), 2.0)] + [(SimpleNamespace(kinds=("a",)), 1.0)] * 50
    both = fit.besides(apart, {}, {})  # type: ignore[arg-type]
    assert both["a"] < 1.01 < both["b"] < 2.0


@pytest.mark.one_in(8)
def test_rates_are_found_from_the_times_that_they_make() -> None:
    """The card is slower than the one the fit begins with, by another factor for each rate."""
    factors = (0.4, 0.5, 1.5, 0.5, 1.3, 0.5)
    rates = {name: figure.value for name, figure in H200.rates.items()}
    true = {name: value * factors[at % 6] for at, (name, value) in enumerate(rates.items())} | {"overlap": 0.7}
    card = replace(H200, rates={name: Figure(true[name], "") for name in ("memory", "launch")})
    shapes = [
        Shape(way, n, n, d, heads, mask=mask)
        for way in ("forward", "backward")
        for n, d, heads, mask in ((4096, 64, 8, None), (1500, 128, 8, "causal"), (2048, 512, 6, None))
    ]
    rows = []
    for cell in (Cell(shape, each.tiling) for shape in shapes for each in shape.ranked(H200, 3.0)):
        costs = costs_of(cell)
        launches = {cost.name: timed(cost, true, figures_of(card)).seconds - true["launch"] for cost in costs}
        seconds = sum(timed(cost, true, figures_of(card)).seconds for cost in costs)
        rows.append(Measured.of_row(Measured(cell, costs, seconds, launches).to_row()))
    before = [sum(timed(cost, rates, figures_of(card)).seconds for cost in row.costs) for row in rows]
    assert sum(abs(made / (row.seconds or 1) - 1) > 0.2 for made, row in zip(before, rows, strict=True)) > len(rows) / 3
    made = from_rows(card, rows, 1.0)
    assert made.card.calibrated and made.fitted_to + len(made.held_out) == len(rows)
    assert sorted(abs(each.error) for each in made.held_out)[-2] < 0.03
    assert "the forecast of" in str(made) and len(made.to_dict()["held_out"]) == len(made.held_out)


def test_too_few_kernels_are_no_calibration() -> None:
    cell = Cell(Shape("forward", 64, 64, 64, 1), H200_TILING)
    with pytest.raises(UsageError, match=r"only 0 kernels ran on .*, too few to fit its rates \(OutOfResources"):
        from_rows(H200, [Measured(cell, error="OutOfResources: shared memory")] * 20, 1.0)


H200_TILING = forecasts("forward", Call({"n": 64, "d": 64}, capability=""), H200)[0].tiling


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("config", ["/somewhere", "~/of mine", None])
def test_cards_are_in_the_folder_that_typer_has(
    config: str | None, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    if config is None:
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", config)
    assert cards.own_folder() == Path(get_app_dir("pebblesim")) / "cards"


@pytest.mark.one_in(4)
def test_a_calibrated_card_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cards._of_device.cache_clear()
    here = properties("NVIDIA Some Card 9", 99 * 1024)
    assert cards.of_device(here).scaled and cards.own_files() == []
    quoted = dict(H200.figures) | {"l2": Figure(2**24, "a 'quote\"")}
    mine = replace(H200, name="mine", device=here.name, capability="8.9", figures=quoted)
    path = cards.own_file(here.name)
    path.parent.mkdir(parents=True)
    write(mine, path)
    cards._of_device.cache_clear()
    assert path.name == "nvidia-some-card-9.toml" and cards.from_file(path) == mine
    assert cards.of_device(here) == cards.card("nvidia-some-card-9") == cards.card("NVIDIA Some Card 9") == mine
    shown = CliRunner().invoke(app, ["advise", "--card", str(path), "-n", "512", "-d", "64", "--why"])
    assert shown.exit_code == 0 and "no forecast" not in shown.stdout and "take flash2-forward" in shown.stdout
    before = path.read_text(encoding="utf-8")
    with pytest.raises(AttributeError):  # in the middle of writing
        write(replace(mine, rates={"launch": None}), path)  # type: ignore[dict-item]
    assert path.read_text(encoding="utf-8") == before and list(path.parent.iterdir()) == [path]
    cards._of_device.cache_clear()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shared", [64 * 1024, 99 * 1024, 163 * 1024])
def test_a_card_that_nobody_measured_gets_kernels_that_fit(
    shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cards._of_device.cache_clear()
    card = cards.of_device(properties("NVIDIA Some Card 9", shared))
    assert card.scaled and not card.calibrated
    assert card.size("memory_bandwidth") == 2 * 10_000_000 * 1000 * 256 // 8 and card.size("shared_per_block") == shared
    assert card.rates["memory"].value == pytest.approx(H200.rates["memory"].value * 640e9 / 4800e9)
    for problem in ("forward", "backward-qkv"):
        for d in (64, 128, 256, 512):
            made = forecasts(problem, Call({"n": 1024, "d": d}, capability=""), card, 4)
            assert made and all(each.cost.storage.shared <= shared for kernel in made for each in kernel.launches)
    known = cards.of_device(properties("NVIDIA H200", 232448))
    assert known.calibrated and known.name == H200.name
    cards._of_device.cache_clear()


def test_scaled_rates_are_those_of_the_peak() -> None:
    card = cards.with_rates(cards.card("RTX 4090"))
    share = 165.2e12 / 128 / (989e12 / 132)
    assert card.rates["products"].value == pytest.approx(H200.rates["products"].value * share)
    assert card.rates["launch"].value == H200.rates["launch"].value
    assert cards.with_rates(H200) is H200
    bare = Card("bare", {"shared_per_block": Figure(65536, "")}, {})
    assert cards.with_rates(bare).rates["products"].value == H200.rates["products"].value


def test_shapes_are_drawn_by_their_seed() -> None:
    shapes = list(drawn(27, 80))
    assert shapes == list(drawn(27, 80)) != list(drawn(28, 80))
    assert {shape.way for shape in shapes} == {"forward", "backward"}
    assert {shape.mask for shape in shapes} == {None, "causal", "window:1024"}
    assert any(shape.n_q == 1 for shape in shapes) and any(shape.group > 1 for shape in shapes)
    assert any(shape.n_k % 16 for shape in shapes) and any(shape.heads * shape.group == 1 for shape in shapes)


def test_without_a_gpu_there_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["gpu", "calibrate"])
    assert isinstance(result.exception, UsageError) and str(result.exception).startswith("calibration needs ")
    with pytest.raises(UsageError, match=r"or measure the one that is here with `pebblesim gpu calibrate`"):
        ps.advise("RTX 4095", n=64, d=64)


def test_a_library_that_cannot_be_loaded_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that fails for a shared object names no library."""

    def import_module(name: str) -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(module, "import_module", import_module)
    with pytest.raises(
        UsageError, match=r"^a race needs PyTorch, triton; one cannot be loaded: libcudart.so.13: [^.]*\.$"
    ):
        module.torch_with_gpu("a race", "triton")
