"""Passes that are traced for all lengths of a kind: they launch what is launched when nothing is traced.

On the CPU, with a stand-in for the driver that reads memory as the real one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import Phase, given, settings, strategies as st  # noqa: E402
from native_library import library_in_cpp  # noqa: E402
from told_card import (  # noqa: E402
    Told,
    a_part_of_padding,
    causal,
    in_library,
    packed,
    packed_apart,
    packed_with_sinks,
    padding,
    padding_for_all,
    sinks,
)

from pebblesim.operator import masks, operators, public  # noqa: E402
from pebblesim.operator.known import eager, known, lengths as passes_of_lengths, native, recorded  # noqa: E402
from pebblesim.operator.known.lengths import Kind, _rooms  # noqa: E402
from pebblesim.operator.known.symbols import Script, Words, plain  # noqa: E402
from pebblesim.operator.known.tape import Launched, Made, Place  # noqa: E402
from pebblesim.operator.launching import compiling  # noqa: E402
from pebblesim.operator.launching.launching import loaded  # noqa: E402
from pebblesim.operator.sinks import kernel as kernel_of_sinks  # noqa: E402

# A module's folder is deleted with it, when the cache of modules is cleared.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Implicitly cleaning up:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

SIZES = st.integers(1, 40)


@settings(max_examples=60)
@given(sizes=st.lists(SIZES, min_size=2, max_size=3), others=st.lists(SIZES, min_size=3, max_size=3), data=st.data())
def test_what_is_found_for_some_sizes_is_right_for_others_or_refused(sizes: list[int], others: Any, data: Any) -> None:
    """Drawn expressions and decisions of sizes: the function gives what Python gives of other sizes, or None."""
    steps = data.draw(st.lists(st.tuples(*(st.integers(0, 99) for _ in range(4))), min_size=1, max_size=14))

    def code(given: Any) -> Any:
        known, path = [*given], list[Any]()
        for what, one, other, number in steps:
            a, b = known[one % len(known)], known[other % len(known)] if number % 2 else number
            kind = what % 9
            if kind < 3:
                known.append(a + b if kind == 0 else b - a if kind == 1 else a * b)
            elif kind == 3 and b != 0:
                known.append(a // b)
            elif kind == 4 and b != 0:
                known.append(a % b)
            elif kind == 5:
                known.append(max(a, b))
            elif kind == 6:
                path.append(bool(a < b))
                known.append(a if a < b else -b)
            elif kind == 7:
                path.append(a == b)
            else:
                known.append((a * a).bit_length())
        return tuple(known), tuple(path)

    script = Script()
    made, path = code([script.size(each) for each in sizes])
    found, here = script.function(made), others[: len(sizes)]
    assert found(sizes) == code(sizes)[0]
    right, taken = code(here)
    words = script.function(Words(each for each in made if abs(plain(each)) < 2**63))
    assert words(sizes) == b"".join(
        each.to_bytes(8, "little", signed=True) for each in code(sizes)[0] if abs(each) < 2**63
    )
    assert (found(here) == right and taken == path) or found(here) is None
    if found(here) is None:
        assert here != sizes


def test_a_plain_integer_is_a_decision() -> None:
    script = Script()
    n = script.size(5)
    made = [*range(n)], {n: 1}, 2 ** (n + 1)
    assert made == ([0, 1, 2, 3, 4], {5: 1}, 64)
    found = script.function((n + 2, None, "x"))
    assert found([5]) == (7, None, "x") and found([6]) is None
    with pytest.raises(TypeError):
        n / 2
    assert (n == None) is False and n != "5"  # noqa: E711
    with pytest.raises(ZeroDivisionError):
        n // 0


@settings(max_examples=60)
@given(
    slots=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=9),
    little=st.sampled_from([2**10, 2**26]),
)
def test_memory_is_used_again_when_nothing_needs_it(slots: list[tuple[int, int, int]], little: int) -> None:
    """Drawn memory, by its size, the step that uses it first, and how many later the last one: none is used twice."""
    options = {"dtype": torch.float32}
    made = [Made(at, (128 * size,), (1,), options) for at, (size, _, _) in enumerate(slots)]
    times = [range(first, first + length + 1) for _, first, length in slots]
    order = sorted(made, key=lambda each: times[each.slot][0])
    steps = [
        Launched(None, (1, 1, 1), tuple(Place(at, 0) for at, its in enumerate(times) if step in {its[0], its[-1]}))
        for step in range(11)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pebblesim.operator.known.lengths.LITTLE", little)
        words, begins = _rooms(order, steps)
    assert len(words) == 1 or sum(words) * 4 > little
    places = {slot: (room, begin, begin + 512 * slots[slot][0]) for slot, room, begin in begins}
    assert all(end <= 4 * words[room] for room, _, end in places.values())
    for one, (room, begin, end) in places.items():
        for other, (its_room, its_begin, its_end) in places.items():
            together = max(times[one][0], times[other][0]) <= min(times[one][-1], times[other][-1])
            if one < other and together and room == its_room:
                assert end <= its_begin or its_end <= begin
    alike = [size for size, first, length in slots]
    if len({*alike}) == 1 and all(times[a.slot][-1] < times[b.slot][0] for a, b in pairwise(order)):
        assert sum(words) == 128 * alike[0]


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    with pytest.MonkeyPatch.context() as patched:
        yield Told(patched)
    loaded.cache_clear()


def matrices(sizes: Any, d: int, tokens_first: bool) -> Any:
    batch, kv_heads, shared, n_q, n_k = sizes
    of = (kv_heads * shared, n_q), (kv_heads, n_k), (kv_heads, n_k), (kv_heads * shared, n_q)
    if tokens_first:
        return [torch.empty(batch, n, heads, d, dtype=torch.bfloat16).transpose(1, 2) for heads, n in of]
    return [torch.empty(batch, heads, n, d, dtype=torch.bfloat16) for heads, n in of]


def check(
    told: Told,
    sizes: Any,
    d: int,
    left: Any,
    right: Any,
    tokens_first: bool = False,
    workspace: int | None = None,
    sinks: Any = None,
) -> int:
    """Both passes of these sizes, again and untraced; the number of those that were traced."""
    traced = 0
    asked = masks.Asked(None, None, left, right, False, d**-0.5, 0.0, workspace, False)
    Q, K, V, dO = matrices(sizes, d, tokens_first)
    for _ in range(2):  # kernels are compiled first
        out, L = operators.forward(Q, K, V, asked, sinks)
        operators.backward(dO, Q, K, V, out, L, asked, None, sinks)
    given = [] if sinks is None else [sinks]
    for call, inputs in (
        (lambda: operators.forward(Q, K, V, asked, sinks), [Q, K, V, *given]),
        (lambda: operators.backward(dO, Q, K, V, out, L, asked, None, sinks), [dO, Q, K, V, out, L, *given]),
    ):
        assert told.of(call, inputs, False) == told.of(call, inputs, True)
    for function, taken in (
        (operators.without_notes, (Q, K, V, sinks, None, None)),
        (operators.gradients_without_notes, (dO, None, Q, K, V, out, L, sinks, None, None)),
    ):
        traced += type(recorded.ready(function, taken, asked[2:])).__name__ == "Found"
    return traced


@pytest.mark.parametrize(
    "d",
    [
        64,
        pytest.param(128, marks=pytest.mark.slow),
        pytest.param(256, marks=pytest.mark.slow),
        pytest.param(512, marks=pytest.mark.slow),
    ],
)
def test_traced_passes_launch_what_untraced_ones_do(told: Told, d: int) -> None:
    """Lengths of all remainders, one after the other: kinds are traced at some of them and serve the others."""
    lengths = [500, 511, 497, 512, 400, 384, 272, 257, 505, 448, 300]
    recorded._KINDS.clear()
    assert all(check(told, (2, 3, 1, n, n), d, None, 0) == 2 for n in lengths)
    # both passes, of 16 and 256 tokens or not, and 448 tokens, which tiles divide along queries and not along keys
    assert sum(len(each.traced) for each in recorded._KINDS.values()) <= 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "right", "workspace", "lengths"),
    [
        ((1, 2, 8), 0, 2**24, (1500, 1536, 1499, 1490)),  # forward, queries of two KV heads at a time
        ((1, 1, 8), 0, 2**24, (1500, 1536, 1499, 1490)),
        ((1, 2, 8), None, 2**25, (1500, 1536, 1499, 1490)),
        ((1, 2, 8), 0, 2**28, (8000, 7936, 7984, 7777)),  # both
        ((2, 3, 1), 0, 2**22, (1500, 1536, 1499, 1490)),  # rounds of heads
    ],
)
@pytest.mark.parametrize("taught", [False, True])
def test_cut_passes_launch_what_untraced_ones_do(
    told: Told, sizes: Any, right: Any, workspace: int, lengths: Any, taught: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes whose score matrices have no room together."""
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
    rooms = passes_of_lengths._rooms

    def apart(made: Any, steps: Any) -> Any:
        """Memory that is not used twice, as `Told` has it of the others."""
        return rooms(made, [*steps, Launched(None, (1, 1, 1), tuple(Place(each.slot, 0) for each in made))])

    monkeypatch.setattr(passes_of_lengths, "_rooms", apart)
    recorded._KINDS.clear()
    sinks = torch.zeros(sizes[1] * sizes[2]) if taught else None
    found = [check(told, (*sizes, n, n), 512, None, right, False, workspace, sinks) for n in lengths]
    assert sum(found) >= 2 * len(lengths) - 1


@pytest.mark.slow
@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(
    heads=st.tuples(st.integers(1, 3), st.integers(1, 2), st.sampled_from([1, 2, 3, 4])),
    lengths=st.lists(st.tuples(st.integers(1, 700), st.integers(1, 700)), min_size=2, max_size=4),
    d=st.sampled_from([16, 64, 96, 128, 192]),
    limits=st.sampled_from([(None, None), (None, 0), (100, 0), (7, 30)]),
    tokens_first=st.booleans(),
)
def test_drawn_passes_launch_what_untraced_ones_do(
    told: Told, heads: Any, lengths: Any, d: int, limits: Any, tokens_first: bool
) -> None:
    """Groups of heads, queries without keys, windows and orders of memory."""
    for n_q, n_k in lengths:
        check(told, (*heads, n_q, n_k), d, *limits, tokens_first)
        check(told, (*heads, n_k, n_k), d, *limits, tokens_first)


@pytest.mark.parametrize("first", [False, True])
def test_values_that_are_a_part_of_keys_have_passes_of_their_own(told: Told, first: bool) -> None:
    """Keys and values of the same sizes, in one memory and in two: a trace of the one does not serve the other."""
    for table in (recorded._KINDS, recorded._KEPT, recorded._SEEN):
        table.clear()
    asked = masks.Asked(None, None, None, None, False, 0.1, 0.0, None, False)

    def inputs(n: int, together: bool) -> list[Any]:
        Q, K = (torch.empty(1, heads, n, 576, dtype=torch.bfloat16) for heads in (16, 1))
        V = torch.empty(K.shape, dtype=K.dtype)[..., :512]
        return [Q, K, K[..., :512] if together else V]

    for n in (130, 134):
        for together in (first, not first, first):
            x = inputs(n, together)
            for _ in range(3):
                operators.forward(*x, asked)
            call = partial(operators.forward, *x, asked)
            again = told.of(call, x, False)
            assert again == told.of(call, x, True) and again[0]
    (kinds,) = recorded._KINDS.values()
    assert kinds.traced and all(isinstance(each, Kind) for each in kinds.traced)


@pytest.mark.slow
@pytest.mark.parametrize("options", [packed, packed_apart, padding, a_part_of_padding, padding_for_all, sinks])
def test_calls_with_masks_and_sinks_launch_what_untraced_ones_do(
    told: Told, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lengths that are new: the kernels that find ranges, both passes, and the gradient of sinks."""
    monkeypatch.setattr(compiling, "can", lambda: False)
    monkeypatch.setattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)  # of the one that watches
    for table in (recorded._KINDS, recorded._KEPT, recorded._SEEN, eager._CHECKED, eager._ALIKE):
        table.clear()
    for n in (500, 511, 497, 400, 385):
        batch = 1 if options in (packed, packed_apart) else 2
        x = [torch.empty(batch, 4, n, 64, dtype=torch.bfloat16, requires_grad=True) for _ in "QKV"]
        dO, rest = torch.empty(batch, 4, n, 64, dtype=torch.bfloat16), options(n)
        learning = [*x, *(each for each in rest.values() if getattr(each, "requires_grad", False))]

        def call() -> Any:
            out = public.attention(*x, **rest)  # noqa: B023
            return [out, *torch.autograd.grad(out, learning, dO)]  # noqa: B023

        for _ in range(2):
            call()
        again = told.of(call, [*x, dO], False)
        assert again == told.of(call, [*x, dO], True) and len(again[0]) >= 4
    assert {type(each).__name__ for each in recorded._KEPT.values()} == {"Found"}


SINKS: dict[str, Any] = {
    "float32": lambda heads: torch.zeros(heads),
    "bfloat16": lambda heads: torch.zeros(heads, dtype=torch.bfloat16),
    "within others": lambda heads: torch.zeros(heads + 3, dtype=torch.bfloat16)[3:],
    "every other one": lambda heads: torch.zeros(2 * heads)[::2],
}


@pytest.mark.slow
@pytest.mark.parametrize("of", SINKS)
@pytest.mark.parametrize(
    ("sizes", "d", "options"),
    [
        ((2, 2, 4), 64, {"is_causal": True}),
        ((2, 2, 4), 64, {"window": (127, 0)}),
        ((3, 4, 1), 128, {"is_causal": True}),
        ((2, 2, 2, 40), 64, {"window": (20, 0)}),  # the last queries see no key
        ((2, 2, 2, 40), 64, {"is_causal": True, "align": "end"}),  # the first ones do not
        ((1, 2, 4), 64, {"is_causal": True, "cu_seqlens": torch.tensor([0, 100, 100, 380], dtype=torch.int32)}),
    ],
)
def test_passes_that_sum_for_sinks_launch_what_untraced_ones_do(
    told: Told, of: str, sizes: Any, d: int, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other tensors at each length; with L, too, and with gradients for some of them."""
    monkeypatch.setattr(compiling, "can", lambda: False)
    monkeypatch.setattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)  # of the one that watches
    apart, whole = list[Any](), kernel_of_sinks.summed
    monkeypatch.setattr(kernel_of_sinks, "summed", lambda *given: apart.append(1) or whole(*given))
    for table in (recorded._KINDS, recorded._KEPT, recorded._SEEN, eager._CHECKED, eager._ALIKE):
        table.clear()
    (batch, kv_heads, shared, *rest), alone = sizes, list[bool]()
    more = sum(rest)
    for n in (500, 511, 497, 512, 385, 511):
        Q, K, V, dO = matrices((batch, kv_heads, shared, n + more, n), d, n % 2 == 0)
        s, dL = SINKS[of](kv_heads * shared), torch.empty(batch, kv_heads * shared, n + more)
        for learning, with_L in (([Q, K, V, s], False), ([Q, K, V, s], True), ([s], False), ([K, s], False)):
            for each in (Q, K, V, s):
                each.requires_grad_(any(each is one for one in learning))

            def call() -> Any:
                made = public.attention(Q, K, V, sinks=s, enable_gqa=True, return_lse=with_L, **options)  # noqa: B023
                made, grads = (made, (dO, dL)) if with_L else ((made,), (dO,))  # noqa: B023
                return [*made, *torch.autograd.grad(made, learning, grads)]  # noqa: B023

            apart.clear()
            for _ in range(2):
                call()
            alone.append(not apart)
            inputs = [Q, K, V, s, dO, dL]
            again = told.of(call, inputs, False)
            assert again == told.of(call, inputs, True) and again[0]
    assert alone[0] is (of != "every other one")


def passes(told: Told, call: Any, backward: Any, inputs: list[Any]) -> Any:
    """What both passes tell the card, with names and order numbers in the place of addresses."""
    found, results = list[Any](), list[Any]()
    for which in (0, 1):
        told.noted.clear()
        results += backward(results[0]) if which else [call()]
        places = {each.data_ptr(): f"tensor {at}" for at, each in enumerate([*inputs, *results])}
        found.append([(what, *(told._place(each, places) for each in rest)) for what, *rest in told.noted])
    return found, [(each.shape, each.stride(), each.dtype) for each in results]


@pytest.mark.slow
@pytest.mark.parametrize("d", [64, 128, 512])
@pytest.mark.parametrize("options", [causal, padding, sinks, packed, packed_with_sinks])
def test_attention_launches_what_python_launches(
    told: Told, options: Any, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both passes of lengths that come first and again, and gradients in the order of O and in another one."""
    monkeypatch.setattr(compiling, "can", lambda: False)
    asked, library = list[Any](), library_in_cpp()
    in_library(told, monkeypatch)
    later, call_of = known._later, eager.call_of
    monkeypatch.setattr(known, "_later", lambda *given: asked.append(1) or later(*given))
    for table in (recorded._KINDS, recorded._KEPT, recorded._SEEN, eager._CHECKED, eager._ALIKE):
        table.clear()
    for n in (500, 511, 512):
        batch = 1 if options in (packed, packed_with_sinks) else 2
        x = [torch.empty(batch, 4, n, d, dtype=torch.bfloat16, requires_grad=True) for _ in "QKV"]
        rest = options(n)
        learning = [*x, *(each for each in rest.values() if getattr(each, "requires_grad", False))]
        whole = torch.empty(batch, n, 4, d, dtype=torch.bfloat16)
        for dO in (torch.empty_like(x[0]), whole.transpose(1, 2)):
            call = partial(public.attention, *x, **rest)
            ways = list[Any]()
            for turn, by in enumerate((None, None, None, library, library)):
                monkeypatch.setattr(native, "library", by)
                if turn == 4:  # nor does it ask what kind of call this is
                    monkeypatch.setattr(eager, "call_of", lambda *given: pytest.fail("the library knows this call"))
                asked.clear()
                backward = lambda out: torch.autograd.grad(out, learning, dO)  # noqa: B023, E731
                ways.append(passes(told, call, backward, [*learning, dO]))
            assert ways[-1] == ways[-2] == ways[-3] and len(ways[-1][0][1]) >= 3
            monkeypatch.setattr(eager, "call_of", call_of)
            assert not asked  # Python made no backward pass at last
