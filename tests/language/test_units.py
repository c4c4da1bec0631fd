"""Words and bytes do not add."""

import operator

import pytest
from hypothesis import given, strategies as st

from pebblesim.core.sizes import BYTES
from pebblesim.core.units import Bytes, Traffic

COUNTS = st.integers(0, 2**70)


@given(a=COUNTS, b=COUNTS, c=COUNTS, d=COUNTS, dtype=st.sampled_from(sorted(BYTES)))
def test_each_unit_adds_to_itself(a: int, b: int, c: int, d: int, dtype: str) -> None:
    words = sum([Traffic(a, b), Traffic(c, d)], Traffic())
    assert words == Traffic(a + c, b + d)
    assert words.io == a + b + c + d
    moved = Traffic(a, b).in_bytes(dtype) + Traffic(c, d).in_bytes(dtype)
    assert moved == words.in_bytes(dtype) == Bytes((a + c) * BYTES[dtype], (b + d) * BYTES[dtype])
    assert type(words.each(abs)) is Traffic


@pytest.mark.parametrize("other", [Bytes(1, 2), 3, 3.0, (1, 2)])
def test_and_to_nothing_else(other: object) -> None:
    words = Traffic(1, 2)
    for left, right in ((words, other), (other, words)):
        with pytest.raises(TypeError):
            operator.add(left, right)
    assert words != other
    with pytest.raises(AttributeError):
        words.reads = 3  # type: ignore[misc]
