"""`pebblesim explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pebblesim.cli.options import AsJson, argument, command, family, option, output_file
from pebblesim.cli.printing import WIDE, print_json, say, show

app = family()


@command(app, "explain", example="pebblesim explain model.py:llama --gpu H200")
def explain(
    model: Annotated[str, argument("A Python file and a function in it that returns (model, batch).", "FILE:FUNCTION")],
    gpu: Annotated[
        str | None, option("--gpu", "A known card, or one calibrated here; by default the one that is here.", "NAME")
    ] = None,
    *,
    live: Annotated[
        bool, option("--live", "Run with real tensors, as the function makes them, instead of shapes alone.")
    ] = False,
    forward: Annotated[bool, option("--forward", "Look at the forward pass alone, without gradients.")] = False,
    output: Annotated[
        Path | None, output_file("--output -o", "Write a page for any browser as well, an HTML file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find every attention of a PyTorch model: the kernel that PyTorch takes and why, words, times, what ours gain."""
    from pebblesim.explaining.program import explain_file

    found = explain_file(model, gpu, live=live, forward=forward)
    if output is not None:
        from pebblesim.views.explained import save

        save(output, found.page())
    if as_json:
        print_json(found.to_dict())
        return
    show(*found.parts(WIDE.get()))
    if output is not None:
        say(f"written {output}")
