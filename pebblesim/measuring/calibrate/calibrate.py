"""`calibrate`: measure the card that is here, and write what a forecast needs into the user's configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from pebblesim.advice import cards
from pebblesim.advice.cards import RATES, Card, Figure
from pebblesim.advice.forecast import figures_of, launch_forecast
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file
from pebblesim.core.results import Result
from pebblesim.core.tables import Sheet
from pebblesim.measuring.calibrate.fit import besides, between_launches, fitted, launches_of, leaving
from pebblesim.measuring.calibrate.measure import Measured, ceilings, gpu, measured, near, seconds_in_graph
from pebblesim.measuring.calibrate.shapes import calibrating

HELD_OUT = 4
"""Each fourth kernel is not fitted to: the forecast is compared with it."""

NEAR = 0.2
"""Relative error of a forecast that is near."""


WITHIN = 1.6
"""Kernels are measured whose forecasts, with scaled rates of another card, are at most so many times the fastest."""

NEGLIGIBLE = 0.01
"""Factors of kinds of launches that are nearer to 1 are left out."""


@dataclass(frozen=True)
class Compared:
    """The forecast of a kernel, in seconds, beside what was measured."""

    row: Measured
    forecast: float

    @property
    def error(self) -> float:
        """Forecast ÷ measured - 1."""
        assert self.row.seconds
        return self.forecast / self.row.seconds - 1


@dataclass(frozen=True)
class Calibration(Result):
    """A card as it was measured.

    Attributes:
        card: the card, with its rates.
        held_out: kernels that the rates were not fitted to.
        fitted_to: number of kernels that they were fitted to.
        failed: kernels that could not be run here, each with why.
        rows: all kernels that were measured.
        seconds: how long it took.
    """

    card: Card
    held_out: tuple[Compared, ...]
    fitted_to: int
    failed: tuple[Measured, ...]
    rows: tuple[Measured, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim gpu calibrate --json`."""
        values = {name: figure.value for name, figure in self.card.figures.items()}
        rates = {name: figure.value for name, figure in self.card.rates.items()}
        rows = [compared.row.to_row() | {"forecast": compared.forecast} for compared in self.held_out]
        head = {"name": self.card.name, "figures": values, "rates": rates, "fitted_to": self.fitted_to}
        return head | {"held_out": rows, "failed": [each.to_row() for each in self.failed], "seconds": self.seconds}

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def parts(self) -> list[str | Sheet]:
        """Return the parts to print: sentences and a table."""
        said = f"{self.card.name}: {self.fitted_to} kernels fitted, in {self.seconds:.0f} s"
        lines = [said, *(f"  {name} = {figure.value:.4g}: {RATES[name]}" for name, figure in self.card.rates.items())]
        if self.failed:
            lines.append(f"{len(self.failed)} kernels could not be run here, such as {self.failed[0].cell.tiling}:")
            lines.append(f"  {self.failed[0].error}")
        errors = [abs(compared.error) for compared in self.held_out]
        near = sum(error <= NEAR for error in errors)
        lines.append(
            f"{len(errors)} other kernels, to which nothing was fitted: the forecast of {near} is within {NEAR:.0%} of "
            f"what was measured, and half of them within {median(errors):.0%}"
        )
        rows = [
            (
                f"{compared.row.cell.shape.way}, d = {compared.row.cell.shape.d}",
                f"n = {compared.row.cell.shape.n_q:,} x {compared.row.cell.shape.n_k:,}",
                compared.row.cell.shape.mask or "",
                str(compared.row.cell.tiling),
                f"{1e6 * (compared.row.seconds or 0):,.0f}",
                f"{1e6 * compared.forecast:,.0f}",
                f"{1 + compared.error:.2f}",
            )
            for compared in sorted(self.held_out, key=lambda compared: -abs(compared.error))
        ]
        return [*lines, Sheet(("", "sizes", "mask", "kernel", "µs", "forecast, µs", "ratio"), rows, left=4)]


def calibrate(
    output: Path | None = None, on_progress: Callable[[str, int, int], None] | None = None
) -> tuple[Calibration, Path]:
    """Measure the card that is here, and write its file, whole or not at all.

    Args:
        output: the file; if None, one in the user's configuration, where `advise`, `plan` and `attention` find it.
        on_progress: called with what is done, how much of it, and of how many.

    Raises:
        UsageError: there is no GPU, or the file cannot be written.
    """
    began = monotonic()
    torch = gpu()
    properties = torch.cuda.get_device_properties(0)
    path = output or cards.own_file(properties.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{str(path.parent)!r} cannot be made: {error.strerror}; give a file with -o.") from None
    unfitted = _measured_figures(torch, properties)
    cells = near(calibrating(), cards.with_rates(replace(unfitted, rates={})), WITHIN)
    done = dict.fromkeys(("compiled", "measured"), 0)

    def told(what: str) -> None:
        done[what] += 1
        if on_progress:
            on_progress(what, done[what], len(cells))

    made = from_rows(unfitted, list(measured(cells, on_progress=told)), monotonic() - began)
    write(made.card, path)
    return made, path


def from_rows(card: Card, rows: list[Measured], seconds: float) -> Calibration:
    """Fit a card's rates to kernels, without each fourth, and compare the forecast with these.

    `card.rates` are those to begin with that were measured by themselves.
    """
    fine = [row for row in rows if row.seconds]
    used = [row for number, row in enumerate(fine) if number % HELD_OUT]
    if len(used) < len(RATES):
        why = next((row.error for row in rows if row.error), "no kernel fits")
        raise UsageError(f"only {len(used)} kernels ran on {card.name}, too few to fit its rates ({why}).")
    start = {name: figure.value for name, figure in cards.with_rates(replace(card, rates={})).rates.items()}
    start |= {name: figure.value for name, figure in card.rates.items()}
    fixed = {"launch": between_launches(used)} | leaving(used, figures_of(card))
    rates = fitted(launches_of(used), start, fixed, figures_of(card))
    factors = besides(launches_of(used), rates, figures_of(card))
    said = f"fitted to {len(used)} kernels that were measured on the card, {date.today().isoformat()}"
    own = {name: Figure(float(f"{rates[name]:.4g}"), said) for name in RATES}
    said_factors = {kind: float(f"{each:.3g}") for kind, each in factors.items() if abs(each - 1) > NEGLIGIBLE}
    fitted_card = replace(card, rates=own, besides=said_factors)
    held = (row for number, row in enumerate(fine) if not number % HELD_OUT)
    compared = tuple(Compared(row, forecast_of(row, fitted_card)) for row in held)
    failed = tuple(row for row in rows if not row.seconds)
    return Calibration(fitted_card, compared, len(used), failed, tuple(fine), seconds)


def forecast_of(row: Measured, card: Card) -> float:
    """The forecast of a measured kernel, in seconds."""
    return sum(launch_forecast(cost, card).seconds for cost in row.costs)


def _measured_figures(torch: Any, properties: Any) -> Card:
    """The card that is here: what its driver says, bandwidths and a launch as measured; the rest of a built-in card."""
    known = next((model for model in cards.cards().values() if model.device == properties.name), None)
    reached = ceilings(torch)
    said = f"measured on the card, {date.today().isoformat()}"
    figures = (dict(known.figures) if known else {}) | dict(cards.read_figures(properties))
    if known:
        figures["memory_bandwidth"] = known.figures["memory_bandwidth"]
    figures.setdefault("memory_bandwidth", Figure(reached["memory"], said))
    figures["l2_bandwidth"] = Figure(reached["l2_bandwidth"], said)
    peak = (
        dict(known.peak) if known else {name: Figure(_product(torch, name), said) for name in ("bfloat16", "float16")}
    )
    rates = {"memory": Figure(reached["memory"], said), "l2": figures["l2_bandwidth"]}
    capability = cards.capability_of(properties)
    name = known.name if known else properties.name
    return Card(name, figures, peak, rates, device=properties.name, capability=capability)


def _product(torch: Any, dtype: str, side: int = 8192) -> float:
    """Operations per second of a large product of matrices."""
    a, b = (torch.randn(side, side, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    return float(2 * side**3 / seconds_in_graph(torch, lambda: a @ b, 5))


def write(card: Card, path: Path) -> None:
    """Write the file of a card, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    with whole_file(path, f"{str(path)!r} cannot be written") as unfinished:
        unfinished.write_text("\n".join(_lines(card)) + "\n", encoding="utf-8")


def save(rows: Iterable[Measured], path: Path) -> None:
    """Write measured kernels as JSON lines.

    Raises:
        UsageError: they cannot be written.
    """
    with whole_file(path, f"{str(path)!r} cannot be written") as unfinished:
        unfinished.write_text("".join(json.dumps(row.to_row()) + "\n" for row in rows), encoding="utf-8")


def load(path: Path) -> list[Measured]:
    """Read measured kernels."""
    return [Measured.of_row(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _lines(card: Card) -> Iterator[str]:
    yield f"name = {json.dumps(card.name)}"
    yield f"device = {json.dumps(card.device)}"
    yield f"capability = {json.dumps(card.capability)}"
    groups = (("", card.figures), ("peak.", card.peak), ("rates.", card.rates))
    for group, figures in groups:
        for name, figure in figures.items():
            yield f"{group}{name} = {{ value = {figure.value!r}, source = {json.dumps(figure.source)} }}"
    for kind, factor in card.besides.items():
        yield f"besides.{json.dumps(kind)} = {factor!r}"
