"""Arguments of the public functions that have the wrong type get a sentence, as those of the wrong value do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pebblesim as ps

NO_NAMES = (1, 1.5, b"x", True, object(), [[1]], {"a": 1})
ASKS: dict[str, Callable[[Any], object]] = {
    "count": lambda wrong: ps.count(wrong, n=4, d=2, M=99),
    "compare": lambda wrong: ps.compare(wrong, n=4, d=2, M=99),
    "schedules": lambda wrong: ps.compare(schedules=[wrong], n=4, d=2, M=99),
    "sweep": lambda wrong: ps.sweep([wrong], n=4, d=2, M=99),
    "formula": ps.formula,
    "play": lambda wrong: ps.play(wrong, n=4, d=2, M=99),
    "graph": lambda wrong: ps.graph(wrong, n=4, d=2),
    "bounds": lambda wrong: ps.bounds(wrong, n=4, d=2, M=99),
    "gaps": lambda wrong: ps.gaps(wrong, n=4, d=2, M=99),
    "generate": lambda wrong: ps.generate(wrong, n=4),
    "search": lambda wrong: ps.search(wrong, n=4, d=2, M=99),
    "glossary": ps.glossary,
    "policy": lambda wrong: ps.cache("flash2-forward", n=4, d=2, M=99, policy=[wrong]),
}
TAKE_BLOCKS: dict[str, Callable[[Any], object]] = {
    "count": lambda wrong: ps.count("small-cache", n=4, d=2, M=99, blocks=wrong),
    "compare": lambda wrong: ps.compare(n=4, d=2, M=99, blocks=wrong),
    "sweep": lambda wrong: ps.sweep("small-cache", n=4, d=2, M=99, blocks=wrong),
    "play": lambda wrong: ps.play("small-cache", n=4, d=2, M=99, blocks=wrong),
    "gaps": lambda wrong: ps.gaps("forward", n=4, d=2, M=99, blocks=wrong),
    "cache": lambda wrong: ps.cache("small-cache", n=4, d=2, M=99, blocks=wrong),
    "advise": lambda wrong: ps.advise("H100", n=64, d=32, blocks=wrong),
}


@pytest.mark.parametrize("asked", ASKS)
def test_what_is_no_name_is_an_unknown_name(asked: str) -> None:
    for wrong in NO_NAMES:
        with pytest.raises(ps.UsageError, match=r"^no .* is called .*; known: |was given; .* must be (a text|a name)"):
            ASKS[asked](wrong)


@pytest.mark.parametrize("asked", TAKE_BLOCKS)
def test_blocks_are_a_rule_or_sizes(asked: str) -> None:
    for wrong in (1, 1.5, b"x", True, [[1]]):
        with pytest.raises(ps.UsageError, match=r"^blocks = .* was given; (give 'fit'.*, or|blocks must be) sizes"):
            TAKE_BLOCKS[asked](wrong)


def test_several_m_are_whole_numbers() -> None:
    for wrong in (1.5, object(), [2.5], []):
        with pytest.raises(ps.UsageError):
            ps.gaps("forward", n=4, d=2, M=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["", 0, None, ["C.9"], "nothing"])
def test_every_claim_that_is_named_is_known(wrong: Any) -> None:
    """An empty name was part of every claim, and a name of none was passed over beside one that is known."""
    with pytest.raises(ps.UsageError, match=r"no claim has .* in its name"):
        ps.verify("C.9", wrong)
