"""Passes of new lengths by the library in C++: their words are those of the same expressions in Python."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings, strategies as st  # noqa: E402
from native_library import library_in_cpp  # noqa: E402
from told_card import Told, causal, in_library, packed, packed_apart, padding, padding_for_all, sinks  # noqa: E402

from pebblesim.operator import public  # noqa: E402
from pebblesim.operator.known import eager, native, recorded  # noqa: E402
from pebblesim.operator.known.lengths import AXES, Kind, symbols_of  # noqa: E402
from pebblesim.operator.known.symbols import Script, Words, plain  # noqa: E402
from pebblesim.operator.launching import compiling  # noqa: E402
from pebblesim.operator.launching.launching import loaded  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # A module's folder is deleted with it, when the cache of modules is cleared.
    pytest.mark.filterwarnings(
        "ignore:Implicitly cleaning up:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]

COMPARED = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}
COMPARED |= {">=": operator.ge}
GIVEN = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-40, 40),
    st.integers(-(2**62), 2**62),
    st.sampled_from([2**63 - 1, -(2**63), -1, 0]),
)
STRIDES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40), st.integers(0, 2**62)), min_size=3, max_size=3)


@pytest.fixture(scope="module")
def library() -> Any:
    """The library, compiled if need be."""
    return library_in_cpp()


def fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def followed(steps: Any, given: list[Any]) -> tuple[list[Any], list[bool], list[bool]]:
    """Numbers, decisions, and of each number whether 64 bits are enough for all up to it; as Python computes."""
    known, decided, enough = [*given], list[bool](), [True] * len(given)
    for what, one, other, number in steps:
        a, b = known[one % len(known)], known[other % len(known)] if number % 2 else number
        if what in COMPARED:
            decided.append(bool(COMPARED[what](a, b)))
        else:
            known.append(a.bit_length() if what == "bits" else GIVEN[what](a, b))
            enough.append(enough[-1] and fits(plain(known[-1])) and fits(number))
    return known, decided, enough


@settings(max_examples=400, deadline=None)
@given(
    sizes=STRIDES,
    others=STRIDES,
    steps=st.lists(st.tuples(st.sampled_from([*COMPARED, *GIVEN, "bits"]), *[NUMBERS] * 3), min_size=1, max_size=12),
)
def test_expressions_in_64_bits_are_those_of_python(library: Any, sizes: Any, others: Any, steps: Any) -> None:
    """Drawn expressions and decisions, of numbers of all sizes: the same words and decisions, or Python is asked."""
    script = Script()
    try:
        made, path, _ = followed(steps, [script.size(each) for each in sizes])
    except ZeroDivisionError:
        return
    words = Words(each for each in made if fits(plain(each)))
    (_, _, constants), _ = told = script.registers(((words, (), (), ()), (), ((), ()), (), ()))
    if not all(map(fits, constants)):
        return
    kind = library.kind((0,) * 6, (), (), (), (), (), 0, torch.zeros(0), (None, (), None))
    family = library.family(kind, (), (), *told)
    for here in (sizes, others):
        found = library.found((family,), (torch.empty_strided((1,) * 4, (*here, 1), device="meta"),))
        try:
            _, taken, enough = followed(steps, here)
        except ZeroDivisionError:
            assert found in (None, False)  # a decision before it may be another one
            continue
        if found is False:
            assert not all(enough)
        elif found is None:
            assert taken != path or not all(enough)
        else:
            assert taken == path and library.told(found[1])[0] == script.function(words)(here)


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    with pytest.MonkeyPatch.context() as patched:
        yield Told(patched)
    loaded.cache_clear()


def traced(told: Told, options: Any, d: int, shared: int) -> list[tuple[Kind, tuple[Any, ...]]]:
    """The families of calls of one kind, each with the tensors that it was traced for."""
    found, trace = list[Any](), Kind.traced.__func__
    with pytest.MonkeyPatch.context() as patched:

        def watched(cls: Any, function: Any, inputs: Any, rest: Any, by: Any) -> Kind:
            found.append((trace(cls, function, inputs, rest, by), tuple(inputs)))
            return found[-1][0]

        patched.setattr(Kind, "traced", classmethod(watched))
        patched.setattr(compiling, "can", lambda: False)
        for table in (recorded._KINDS, recorded._KEPT, recorded._SEEN, eager._CHECKED, eager._ALIKE):
            table.clear()
        for n in (500, 511, 512):
            batch = 1 if options in (packed, packed_apart) else 2
            x = [
                torch.empty(batch, 4 // by, n, d, dtype=torch.bfloat16, requires_grad=True)
                for by in (1, shared, shared)
            ]
            call = partial(public.attention, *x, enable_gqa=True, **options(n))
            for _ in range(3):
                torch.autograd.grad(out := call(), x, torch.empty_like(out))
    return found


def elsewhere(x: Any, lengths: dict[int, int], drawn: Random) -> Any:
    """A tensor without memory, with other lengths where these are symbols, and its strides for them, or drawn ones."""
    if x is None:
        return None
    long = AXES[x.dim()] if x.dim() < len(AXES) else ()
    sizes = [lengths[length] if at in long else length for at, length in enumerate(x.shape)]
    order, strides, words = sorted(range(x.dim()), key=lambda at: (x.stride(at), -at)), [1] * x.dim(), 1
    for axis in order:
        strides[axis], words = words, words * sizes[axis]
    if drawn.random() < 0.2:
        strides = [*(drawn.choice((each + 8, 2 * each, drawn.getrandbits(40))) for each in strides[:-1]), 1]
    return torch.empty_strided(sizes, strides, dtype=x.dtype, device="meta")


def divided(n: int) -> tuple[bool, bool]:
    """Facts of a length that most decisions are about."""
    return n % 16 == 0, n % 256 == 0


def tuples(given: Any) -> Any:
    return tuple(map(tuples, given)) if isinstance(given, list | tuple) else given


@pytest.mark.parametrize(
    ("options", "d", "shared"),
    [(causal, d, 1) for d in (64, 96, 128, 256, 512)]
    + [(causal, 128, 4), *((each, 64, 1) for each in (packed, packed_apart, padding, padding_for_all, sinks))],
)
def test_families_have_the_words_that_python_has(
    library: Any, told: Told, options: Any, d: int, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All passes of a kind of call, for drawn lengths and strides: their words, grids, memory and views."""
    in_library(told, monkeypatch)
    drawn, made = Random(f"{options.__name__} {d} {shared}"), 0
    families = traced(told, options, d, shared)
    monkeypatch.setattr(native, "library", library)
    assert len(families) >= 3
    for kind, inputs in families:
        family, tokens = kind.family(library), inputs[0].shape[2]
        for _ in range(40):
            own = {length for x in inputs if x is not None for length in x.shape}
            if drawn.random() < 0.7:  # as a call of other lengths has them
                n = drawn.choice([each for each in range(257, 513) if divided(each) == divided(tokens)])
                lengths = {each: each // tokens * n if each >= tokens else drawn.randint(2, 40) for each in own}
            else:
                most = drawn.choice((512, 5000, 10**9))
                lengths = {each: drawn.randint(1, most) for each in own}
            others = tuple(elsewhere(x, lengths, drawn) for x in inputs)
            try:
                right = kind.of(symbols_of(others))
            except Exception:  # what Python does not pack, the library leaves to it
                assert library.found((family,), others) is False
                continue
            found = library.found((family,), others)
            if right is None:
                assert found in (None, False)
                continue
            assert found is not None and found is not False
            (words, places, _, fills), memory, (rooms, begins), views, holds = right
            assert tuples(library.told(found[1])) == tuples(
                (words, places, fills, memory, rooms, begins, (*views, *holds))
            )
            made += 1
    assert made >= 20
