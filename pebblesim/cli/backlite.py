"""`pebblesim backlite`: dynamic sparsity of the backward pass, as a table, JSON and CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pebblesim.cli.options import command, family, option, output_file, pairs, words_in
from pebblesim.cli.printing import print_json, print_table, say
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file
from pebblesim.core.sizes import listed, parse_size

app = family()


@command(app, "backlite", example="pebblesim backlite -n 4096 -d 64 --epsilon 0.01,0.05")
def backlite(
    inputs: Annotated[
        list[str] | None,
        option("--inputs", "Q, K, V and optionally dO: a .npz or .safetensors file, or Q=q.npy and so on.", "FILE"),
    ] = None,
    head: Annotated[
        str | None,
        option("--head", "The head to use: H for arrays (heads, n, d); B,H for arrays (batch, heads, n, d)."),
    ] = None,
    n: Annotated[str | None, option("-n", "Number of rows of a synthetic head: 4096, 4k.", "N")] = None,
    d: Annotated[str | None, option("-d", "Head dimension of a synthetic head.", "D")] = None,
    seed: Annotated[int, option("--seed", "Random seed of synthetic inputs, or of a missing dO.")] = 0,
    scale: Annotated[float | None, option("--scale", "Scale of the scores; 1/√d by default.")] = None,
    block: Annotated[
        list[str] | None,
        option("--block", "Tile sizes; B_r=64 and B_c=128 by default, or what fits in -M.", "NAME=SIZE"),
    ] = None,
    m: Annotated[str | None, option("-M", "Cache: words, or bytes with --dtype.", "WORDS")] = None,
    dtype: Annotated[str | None, option("--dtype", "Data type of a word, if -M is in bytes: float32, …")] = None,
    epsilon: Annotated[
        str | None, option("--epsilon", "Largest fractions of the weight to leave out: 0.001,0.01,0.1.")
    ] = None,
    by_row: Annotated[
        bool,
        option("--by-row", "Apply ε to each row of tiles, as BackLite's kernels do, instead of to the whole head."),
    ] = False,
    threshold: Annotated[
        str | None,
        option("--threshold", "Use instead of ε: leave out tiles with exp(LSE_tile - LSE_row) below this value."),
    ] = None,
    calibrate: Annotated[
        bool, option("--calibrate", "Find the largest ε (or threshold) that satisfies --cosine and --l2.")
    ] = False,
    cosine: Annotated[float | None, option("--cosine", "Least cosine similarity allowed; 0.999 by default.")] = None,
    l2: Annotated[
        float | None, option("--l2", "Largest relative difference (L2 norm) allowed; 0.05 by default.")
    ] = None,
    csv_file: Annotated[Path | None, output_file("--csv", "Also write the table to a CSV file.")] = None,
    as_json: Annotated[bool, option("--json", "Print the result as JSON.")] = False,
) -> None:
    """Leave tiles with little probability out of the backward pass; show the words saved and the gradient error.

    Without --inputs, the head is synthetic: local attention, a few heavy columns and noise.
    """
    if threshold is not None and (epsilon is not None or by_row):
        raise UsageError("--threshold cannot be combined with --epsilon or --by-row; choose one.")
    if not calibrate and (cosine is not None or l2 is not None):
        raise UsageError("--cosine and --l2 are limits for --calibrate; add --calibrate.")
    if inputs and (n is not None or d is not None):
        raise UsageError("-n and -d are sizes of synthetic inputs; leave them out with --inputs.")
    if head is not None and not inputs:
        raise UsageError("--head chooses a head of --inputs; synthetic inputs have one head.")
    if not inputs and (n is None or d is None):
        raise UsageError("give -n and -d for synthetic inputs, or your own inputs with --inputs.")
    if seed < 0:
        raise UsageError(f"--seed {seed} was given; a seed must be 0 or more.")

    values, thresholds = _values("--epsilon", epsilon), _values("--threshold", threshold)
    sizes = {name: parse_size(name, value) for name, value in pairs(block, "--block")}
    words = words_in(m, dtype)
    indices = _indices(head)
    import pebblesim as ps

    arrays = ps.load_head(inputs, indices, seed) if inputs else None
    synthetic = {} if inputs else {"n": parse_size("n", str(n)), "d": parse_size("d", str(d))}
    with progress_bar("running") as progress:
        result = ps.backlite(
            arrays,
            **synthetic,
            seed=seed,
            rule="threshold" if thresholds is not None else "row" if by_row else "head",
            parameters=values if thresholds is None else thresholds,
            limits=(0.999 if cosine is None else cosine, 0.05 if l2 is None else l2) if calibrate else None,
            blocks=sizes,
            M=words,
            scale=scale,
            progress=progress,
        )
    if csv_file is not None:
        save(result.lines(), csv_file)
    if as_json:
        print_json(result.to_dict())
        return
    shown = listed({**result.dims, **result.blocks})
    headings, rows = result.table()
    print_table(f"flash2-backward without light tiles: {shown}", headings, rows)
    for note in result.notes():
        say(note)


def save(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write lines as CSV, as a whole file or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    with (
        whole_file(path, f"cannot write {str(path)!r}") as unfinished,
        unfinished.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def _values(option: str, text: str | None) -> list[float] | None:
    """Parse numbers separated by commas."""
    if text is None:
        return None
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text!r} was given; it must be numbers such as 0.001,0.01,0.1.") from None


def _indices(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not all(part.isdecimal() for part in text.split(",")):
        raise UsageError(f"--head {text!r} was given; it must be whole numbers, 0 or more, such as 3 or 0,3.")
    return tuple(map(int, text.split(",")))
