"""Options and checks that the commands of `pebblesim gpu` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pebblesim.cli.options import option, output_file
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import dtype_of

if TYPE_CHECKING:
    from pebblesim.measuring.cases import Case

Workers = Annotated[
    int,
    option(
        "--workers -P", "Thread blocks among which a loop with running sums is divided; 1 in the paper.", "P", min=1
    ),
]
Threads = Annotated[
    int | None, option("--threads", "Threads in a thread block; by default chosen by its words.", "T", min=1)
]
Output = Annotated[
    Path | None, output_file("--output -o", "File of results, .jsonl; a run adds to it, and skips what is in it.")
]


def check_float32(dtype: str | None) -> None:
    """Refuse a data type that the kernels do not support."""
    if dtype is not None and dtype_of(dtype) != "float32":
        raise UsageError(
            f"--dtype {dtype} was given; these kernels use float32 only; give float32 or leave --dtype out."
        )


def case_of(
    schedule: str,
    dims: Mapping[str, int],
    words: int,
    rule: str | Mapping[str, int],
    workers: int,
    threads: int | None,
) -> Case:
    from pebblesim.measuring.cases import case

    return case(schedule, M=words, blocks=rule, workers=workers, threads=threads, **dims)
