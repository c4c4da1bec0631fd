"""No line that was printed is asked what is in it: kernels are known by their programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from golden_texts import GOLDENS

from pebblesim.kernels import statements, terms
from pebblesim.kernels.gluon import writer as gluon_writer
from pebblesim.kernels.triton import kernel as triton_kernel, triton

ASKING = "find index rfind rindex count startswith endswith replace split rsplit splitlines partition rpartition "
ASKING += "removeprefix removesuffix translate __contains__ __getitem__ __iter__"


class Printed(str):
    """A printed text, which may be put into another one, and is not read."""


def refuse(self: Printed, *_: Any) -> NoReturn:
    raise AssertionError(f"this text was searched: {self!s}")


for name in ASKING.split():
    setattr(Printed, name, refuse)


def marked(made: Any) -> Any:
    return Printed(made) if isinstance(made, str) else [*map(marked, made)] if isinstance(made, list) else made


def printing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Mark what a function returns as printed."""
    function: Callable[..., Any] = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **named: marked(function(*args, **named)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name",
    ["triton-two-pass-ranges-ragged", "triton-bias-two-pass", "gluon-pairs-window-ragged-shared", "gluon-forward"],
)
def test_what_was_printed_is_put_together_and_not_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GOLDENS[name].text()
    for module in (terms, statements, triton, triton_kernel):
        printing(monkeypatch, module, "text")
    for module in (statements, triton_kernel, gluon_writer):
        printing(monkeypatch, module, "printed")
    for writer in (triton_kernel.Writer, gluon_writer.GluonWriter):
        printing(monkeypatch, writer, "text")
    lines = triton_kernel.Launching.lines.fget
    assert lines is not None
    monkeypatch.setattr(triton_kernel.Launching, "lines", property(lambda self: marked(lines(self))))
    assert GOLDENS[name].text() == expected
