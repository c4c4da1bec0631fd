"""Fit the factors of pebblesim/advice/factors.toml anew, to the committed rows, with the rates as they are.

    python benchmarks/gpu/factors.py

To be run when what is read off the kernels' programs changes. Of each set of rows it fits all that was fitted to them;
factors without rows there stay. It needs no GPU.
"""

from __future__ import annotations

from pathlib import Path

from pebblesim.advice import cards
from pebblesim.advice.forecast import figures_of
from pebblesim.measuring.calibrate.calibrate import HELD_OUT, NEGLIGIBLE, load
from pebblesim.measuring.calibrate.fit import besides, launches_of

HERE = Path(__file__).parent
FACTORS = Path(cards.__file__).parent / "factors.toml"
STREAMED = "flash2-forward:"
"""Kernels whose factors are of an H200's other rows, for both cards."""

ROWS = (
    ("H100", "h100/calibrating.jsonl", HELD_OUT, lambda kind: ", Gluon" not in kind and not kind.startswith(STREAMED)),
    ("H200", "h200/calibrating.jsonl", HELD_OUT, lambda kind: ", Gluon" not in kind and not kind.startswith(STREAMED)),
    ("H100", "h100/gluon_calibrating.jsonl", 0, lambda kind: ", Gluon" in kind),
    ("H200", "h200/gluon_calibrating.jsonl", 0, lambda kind: ", Gluon" in kind),
    ("H200", "h200/others_calibrating.jsonl", 0, lambda kind: kind.startswith(STREAMED)),
    ("H200", "h200/stored_calibrating.jsonl", 0, lambda kind: kind.startswith("dS-stored-resident: ")),
)
"""A card, its rows, every how manyth kernel of them is held out, and the kinds of launches that are fitted to them."""


def main() -> None:
    found = {name: dict(cards.cards()[name].besides) for name in ("H100", "H200")}
    for name, path, held_out, of in ROWS:
        card = cards.cards()[name]
        fine = [row for row in load(HERE / path) if row.seconds]
        used = [row for number, row in enumerate(fine) if not held_out or number % held_out]
        rates = {rate: figure.value for rate, figure in card.rates.items()}
        fitted = {kind: each for kind, each in besides(launches_of(used), rates, figures_of(card)).items() if of(kind)}
        rounded = {kind: float(f"{each:.3g}") if abs(each - 1) > NEGLIGIBLE else 1.0 for kind, each in fitted.items()}
        changed = {kind: each for kind, each in rounded.items() if each != found[name].get(kind, 1.0)}
        print(f"{name}: {len(fitted)} factors of {len(used)} kernels, {len(changed)} changed ({path})")
        found[name] |= changed
    head, _, _ = FACTORS.read_text(encoding="utf-8").partition("\n[")
    lines = [head.rstrip("\n")]
    for name, factors in found.items():
        lines += ["", f"[{name}]", *(f'"{kind}" = {each}' for kind, each in sorted(factors.items()) if each != 1)]
    FACTORS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
