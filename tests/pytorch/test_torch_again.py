"""Calls that are made again by the launches noted for their sizes: on the CPU, with stand-ins for kernels."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from math import log
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.kernels.key_ranges import ARGUMENTS  # noqa: E402
from pebblesim.operator import checks, definition, operators, planning, public  # noqa: E402
from pebblesim.operator.known import eager, recorded  # noqa: E402
from pebblesim.operator.known.recent import Recent  # noqa: E402
from pebblesim.operator.known.symbols import Later, Untraced  # noqa: E402
from pebblesim.operator.known.tape import noted, notes  # noqa: E402
from pebblesim.operator.launching import boxes, compiling  # noqa: E402
from pebblesim.operator.launching.launch import Torch  # noqa: E402
from pebblesim.operator.launching.layout import in_one_batch, numbers_from, numbers_of, round_sums  # noqa: E402


@pytest.fixture
def launched(monkeypatch: Any) -> list[Any]:
    """The arguments of all that is launched again."""
    made: list[Any] = []
    monkeypatch.setattr(recorded, "launch", lambda *given: made.append(given))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    return made


def inputs() -> list[Any]:
    """Three matrices (batch, heads, n, d), tokens first."""
    return [torch.randn(1, 8, 3, 16).half().transpose(1, 2) for _ in range(3)]


def noted_of(given: list[Any], call: Any) -> Any:
    """A pass made again, from the notes of a call that gives its results; None if it cannot be."""
    with noted(given) as written:
        views = [written.view(each) for each in call()]
    return None if written.other else recorded.Again(written, views, 0)


def test_a_kept_call_is_launched_with_other_tensors(launched: list[Any]) -> None:
    """Addresses of the inputs, of a new output and of new sums take the places of those noted; numbers stay."""
    x, told = inputs(), boxes.Boxes(None)

    def call() -> Any:
        out, L = Torch.empty(1, 3, 8, 16, dtype=torch.float16).transpose(1, 2), Torch.empty(3, 8)
        at = [boxes.Described(told, each.data_ptr()) for each in (x[0], x[2], x[1][:, :, 1:], L)]
        notes().launched("one", (4, 3, 1), (at[0], x[1], at[1], out, L, 8, 16))
        notes().launched("two", (1, 3, 1), (5, out, at[2], at[3], x[2][:, 2:]))
        return out, L

    again, new = noted_of(x, call), inputs()
    made, sums = again(new)
    assert (made.shape, made.stride(), made.dtype) == ((1, 8, 3, 16), (384, 16, 128, 1), torch.float16)
    assert (sums.shape, sums.dtype) == ((3, 8), torch.float32)
    (kernel, grid, stream, given), (other, _, _, others) = launched
    assert (kernel, grid, stream, other) == ("one", (4, 3, 1), 7, "two")
    places = [each.data_ptr() for each in (*new, made, sums)]
    assert list(given) == [(told, places[0]), places[1], (told, places[2]), *places[3:], 8, 16]
    parts = new[1][:, :, 1:].data_ptr(), new[2][:, 2:].data_ptr()
    assert list(others) == [5, places[3], (told, parts[0]), (told, places[4]), parts[1]]
    assert all(type(given[at]) is boxes.Described for at in (0, 2))
    assert again([new[0].flatten()[1:], *new[1:]]) is None  # of another alignment


@given(data=st.data())
def test_what_pytorch_does_in_a_pass_is_done_again(data: Any) -> None:
    """Drawn operations on parts of inputs and of what was made: results are those of the operations on new words."""
    shape = tuple(data.draw(st.lists(st.integers(2, 5), min_size=2, max_size=3)))
    whole = [torch.randn(*shape[:-1], 4 * shape[-1]) for _ in "ab"]
    given = [x for one in whole for x in one.split(shape[-1], -1)]  # several inputs are in one memory
    steps = data.draw(st.lists(st.tuples(*(st.integers(0, 30) for _ in range(4))), min_size=1, max_size=8))

    def call(x: list[Any]) -> Any:
        made: list[Any] = []
        for what, one, other, at in steps:
            known = [*x, *made]
            a, b = known[one % len(known)], known[other % len(known)]
            a, b = (each.select(0, at % each.shape[0]) if what % 2 and each.dim() > 1 else each for each in (a, b))
            if a.shape != b.shape:
                b = a
            kind = what % 5
            if kind == 0:
                made.append(torch.empty(b.shape).copy_(b))
            elif kind == 1:
                made.append(a + b)
            elif kind == 2 and made:
                made[-1].mul_(0.5).select(0, 0).fill_(float(at))
            elif kind == 3:
                made.append(torch.cat([a, b], -1))
            else:
                made.append(torch.where(a > 0, a, b).transpose(0, -1))
        return made or [x[0]]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorded, "BYTES", 4)
        patched.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
        if any(0 in each.shape for each in call(given)):
            return
        again = noted_of(given, lambda: call(given))
        fresh_ones = [x for one in (torch.randn_like(each) for each in whole) for x in one.split(shape[-1], -1)]
        if again is None:
            assert len({*map(id, given)}) < len(given)
            return
        for found, right in zip(again(fresh_ones), call(fresh_ones), strict=True):
            assert found.shape == right.shape and found.stride() == right.stride() and (found == right).all()


def test_a_kept_call_begins_with_zeros_and_rounds_its_sums(monkeypatch: Any, launched: list[Any]) -> None:
    """Sums of two heads that share keys are rounded to the order of their matrix, which begins with zeros."""
    x, found = inputs(), list[Any]()

    def call() -> Any:
        dQ, sums = Torch.empty(1, 4, 3, 8, dtype=torch.float16), Torch.empty(2, 6, 8).fill_(0.0)
        notes().launched("one", (1, 1, 1), (x[0], sums))
        round_sums(sums, dQ, 2)
        return (dQ,)

    def launch(*given: Any) -> None:
        at(given[3][1], (2, 6, 8), (48, 8, 1), torch.float32).add_(torch.arange(96.0).view(2, 6, 8))

    again = noted_of(x, call)
    monkeypatch.setattr(recorded, "launch", launch)
    for _ in range(2):
        found += again(inputs())
        assert (found[-1] == torch.arange(96.0).view(1, 2, 3, 2, 8).transpose(2, 3).reshape(1, 4, 3, 8)).all()
    assert found[0].data_ptr() != found[1].data_ptr()


def test_sums_of_heads_that_share_nothing_are_rounded_to_their_matrix() -> None:
    sums, x = torch.randn(6, 5, 8), torch.empty(2, 5, 3, 8).half().transpose(1, 2)
    round_sums(sums, x, 3)
    assert (x == sums.view(2, 3, 5, 8).half()).all()


def test_a_kept_call_frees_what_is_not_needed_before_it_takes_more(launched: list[Any], monkeypatch: Any) -> None:
    """Two rounds of tables at once would take more than the limit of memory."""
    x, made = inputs(), list[Any]()

    def call() -> Any:
        out = Torch.empty(8)
        for _ in range(3):
            table = Torch.empty(64)
            notes().launched("one", (1, 1, 1), (x[0], table))
            notes().launched("two", (1, 1, 1), (table, out))
        return (out,)

    again, before = noted_of(x, call), torch.empty_strided

    def watched(*given: Any, **options: Any) -> Any:
        assert sum(each() is not None for each in made) <= 1  # the output
        one = before(*given, **options)
        made.append(weakref.ref(one))
        return one

    monkeypatch.setattr(torch, "empty_strided", watched)
    (out,) = again(x)
    assert len(made) == 4 and len(launched) == 6 and out.shape == (8,)


def test_what_cannot_be_done_again_is_not_kept() -> None:
    x, elsewhere = inputs(), torch.empty(3)

    def kept(given: list[Any], *arguments: Any, other: bool = False) -> bool:
        def call() -> Any:
            written = notes()
            written.launched("kernel", (1, 1, 1), arguments)
            written.other |= other
            return (x[0],)

        return noted_of(given, call) is not None

    assert kept(x, x[1], 5)
    assert not kept(x, x[1], other=True)
    assert not kept(x, elsewhere), "a tensor of nobody"
    assert not kept([x[1], x[1], x[0]], x[1]), "one of two that are the same"
    assert not kept([x[0], x[0][:, :, 1:], x[2]], x[0][:, :, 1:]), "a part of two inputs"
    assert notes() is None


def test_what_is_kept_is_bounded_and_the_oldest_goes(monkeypatch: Any) -> None:
    kept: Recent[int, str] = Recent(3)
    for number in (1, 2, 3, 2, 4):
        kept[number] = f"of {number}"
    assert kept == {2: "of 2", 3: "of 3", 4: "of 4"}
    for table in (recorded._KEPT, recorded._SEEN, recorded._KINDS, eager._CHECKED, eager._ALIKE, boxes._MADE):
        assert isinstance(table, Recent) and table.most <= 2**14
    for function in (planning.chosen, planning._forecasts, planning._of_lengths):
        assert function.cache_info().maxsize <= 2**14  # type: ignore[operator]


def test_every_tensors_type_says_which_pass_is_kept(monkeypatch: Any) -> None:
    """Keys in other words than the queries are other passes, and so is L in other words."""
    monkeypatch.setattr(recorded, "here", lambda x: True)
    one, other = torch.empty(1, 2, 8, 16).half(), torch.empty(1, 2, 8, 16).bfloat16()
    found = {recorded.sizes_of("forward", each, (None, 1.0)) for each in ((one, one), (one, other), (other, one))}
    assert len(found) == 3


# Both passes by the definition, as kernels that take addresses: `compute` notes them as a launch, as Gluon kernels are.


def limits_of(pattern: Any) -> tuple[int | None, int | None, bool]:
    """Limits of a pattern, and whether the last query is at the last key."""
    band = pattern.mask
    return (None, None, False) if band is None else (band.before, band.after, band.at_end)


def at(address: int, shape: Any, stride: Any, dtype: Any) -> Any:
    """The tensor at an address."""
    words = 1 + sum(step * (length - 1) for step, length in zip(stride, shape, strict=True))
    room = (ctypes.c_char * (words * dtype.itemsize)).from_address(address)
    return torch.frombuffer(room, dtype=dtype).as_strided(shape, stride)


class Kernel:
    """A pass by the definition, launched with the addresses of the tensors it was made for."""

    def __init__(self, way: str, named: dict[str, Any], setting: Any) -> None:
        self.way, self.setting = way, setting
        self.told = {name: (each.shape, each.stride(), each.dtype) for name, each in named.items()}
        self.launches = 0

    def __call__(self, *addresses: int) -> None:
        self.launches += 1
        x = {name: at(where, *self.told[name]) for name, where in zip(self.told, addresses, strict=True)}
        ranges, limits = [x.get(name) for name in ARGUMENTS[:2]], limits_of(self.setting.pattern)
        mask = definition.allowed(
            x["Q"], x["K"], (*ranges, *((None, None, False) if ranges[0] is not None else limits))
        )
        rest = self.setting.scale, 0.0, mask
        kv_heads = x["K"].shape[1]
        if self.way == "forward":
            O, lse = definition.forward(x["Q"], x["K"], x["V"], *rest)
            if "sinks" in x:
                whole = torch.logaddexp2(lse, x["sinks"][..., None] / log(2))
                O, lse = O * torch.exp2(lse - whole)[..., None], whole
            x["O"].copy_(O)
            x["L"].copy_(numbers_of(lse, kv_heads))
            return
        lse = numbers_from(x["L"], x["Q"], kv_heads)
        dL = numbers_from(x["dL"], x["Q"], kv_heads) * log(2) if "dL" in x else None  # of L to base 2
        made = definition.backward(x["dO"], dL, x["Q"], x["K"], x["V"], x["O"], lse, *rest)
        for name, each in zip(("dQ", "dK", "dV"), made, strict=True):
            x[name].copy_(each)
        if "v" in x:
            less = 0 if dL is None else dL / log(2)
            x["v"].copy_(numbers_of((x["dO"] * x["O"]).sum(-1) - less, kv_heads))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Kernel]]:
    """Calls of tensors of the CPU are made as plain calls of a GPU; the kernels that were chosen, in order."""
    chosen: list[Kernel] = []

    def compute(way: str, tensors: dict[str, Any], results: dict[str, Any], setting: Any) -> Any:
        named = dict(tensors | results)
        batch, kv_heads = tensors["K"].shape[:2]
        of_rows = batch * kv_heads, tensors["Q"].shape[2] * tensors["Q"].shape[1] // kv_heads
        made = "L" if way == "forward" else "v" if setting.sinks else None
        assert all(tensors[name].is_contiguous() for name in ("L", "dL", *ARGUMENTS) if name in tensors)
        if made is not None:
            named[made] = Torch.empty(of_rows, dtype=torch.float32)
        kernel = Kernel(way, named, setting)
        chosen.append(kernel)
        kernel(*(each.data_ptr() for each in named.values()))
        if (written := notes()) is not None:
            written.launched(kernel, (1, 1, 1), tuple(named.values()))
        return None if made is None else named[made]

    monkeypatch.setattr(operators, "compute", compute)
    monkeypatch.setattr(operators, "check_triton", lambda: None)
    monkeypatch.setattr(compiling, "can", lambda: False)
    monkeypatch.setattr(recorded, "here", lambda x: True)
    monkeypatch.setattr(recorded, "launch", lambda kernel, grid, stream, given: kernel(*given))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    names = (recorded, "_KEPT"), (recorded, "_SEEN"), (recorded, "_KINDS"), (eager, "_CHECKED"), (eager, "_ALIKE")
    for module, name in names:
        monkeypatch.setattr(module, name, Recent(100))
    yield chosen


def drawn(shape: tuple[int, ...], layout: str) -> Any:
    """A matrix with this order of memory."""
    x = torch.randn(shape)
    return x.transpose(-3, -2).contiguous().transpose(-3, -2) if layout == "tokens first" else x


@settings(max_examples=12)
@given(
    sizes=st.tuples(*(st.integers(1, 3) for _ in range(3)), st.integers(1, 9), st.integers(1, 9)),
    flat=st.booleans(),
    learning=st.booleans(),
    causal=st.booleans(),
    layout=st.sampled_from(["heads first", "tokens first"]),
)
def test_calls_of_the_same_sizes_give_what_the_definition_gives(
    sizes: Any, flat: bool, learning: bool, causal: bool, layout: str
) -> None:
    """The first call of its sizes, which chooses kernels, and those that launch them again, each kernel once a call."""
    batch, kv_heads, shared, n_q, n_k = sizes
    before = () if flat else (batch,)
    shapes = (*before, kv_heads * shared, n_q, 16), (*before, kv_heads, n_k, 16), (*before, kv_heads, n_k, 8)
    with pytest.MonkeyPatch.context() as patched:
        chosen = next(made := kernels.__wrapped__(patched))  # type: ignore[attr-defined]
        ways = 2 if learning else 1
        for number in range(1, 5):
            x = [drawn(shape, layout).requires_grad_(learning) for shape in shapes]
            out = public.attention(*x, is_causal=causal, enable_gqa=True)
            y = [each.detach().double().requires_grad_() for each in x]
            with pytest.MonkeyPatch.context() as watched:
                watched.setattr(recorded, "here", lambda each: False)
                true = public.attention(*y, is_causal=causal, enable_gqa=True)
            torch.testing.assert_close(out.double(), true, atol=1e-5, rtol=1e-5)
            if learning:
                grad = torch.randn_like(out)
                pairs = zip(torch.autograd.grad(out, x, grad), torch.autograd.grad(true, y, grad.double()), strict=True)
                for mine, right in pairs:
                    torch.testing.assert_close(mine.double(), right, atol=1e-5, rtol=1e-5)
            if min(n_k, n_q) > 0 and all(
                limits_of(kernel.setting.pattern)[1] is None or n_q >= n_k for kernel in chosen
            ):
                assert [kernel.launches for kernel in chosen] == [*[1] * ways, *[number - 1] * ways * (number > 1)]
        made.close()


@settings(max_examples=12)
@given(
    sizes=st.tuples(*(st.integers(1, 3) for _ in range(3)), st.integers(1, 9)),
    beside=st.sampled_from(["sinks", "lse", "sinks and lse", "packed", "padding", "ranges"]),
    of_O=st.booleans(),
)
def test_calls_with_sinks_ranges_or_L_give_what_the_definition_gives(sizes: Any, beside: str, of_O: bool) -> None:
    """Without the dispatcher, the first call of its sizes and later ones, with gradients of all that has some."""
    batch, kv_heads, shared, n = sizes
    shapes = (batch, kv_heads * shared, n, 16), (batch, kv_heads, n, 16), (batch, kv_heads, n, 8)
    options: dict[str, Any] = {"is_causal": True, "enable_gqa": True, "return_lse": "lse" in beside}
    if beside == "packed":
        options["cu_seqlens"] = torch.tensor([0, n // 2, n], dtype=torch.int32)
    if beside == "padding":
        options["key_padding_mask"] = (torch.arange(n) >= n - n // 3)[None]
    if beside == "ranges":
        options["key_ranges"] = tuple(torch.full((1, n), at, dtype=torch.int32) for at in (0, n))
    with pytest.MonkeyPatch.context() as patched:
        chosen = next(made := kernels.__wrapped__(patched))  # type: ignore[attr-defined]
        for _ in range(4):
            found = []
            x = [torch.randn(shape) for shape in (*shapes, shapes[0][1:2])]
            grads = torch.randn(*shapes[0][:3], 8), torch.randn(shapes[0][:3])
            for here in (True, False):
                own = [each.clone().double() if not here else each.clone() for each in x]
                learned = [each.requires_grad_() for each in (own if "sinks" in beside else own[:3])]
                with pytest.MonkeyPatch.context() as watched:
                    watched.setattr(recorded, "here", lambda each, here=here: here)
                    given = {"sinks": own[3]} if "sinks" in beside else {}
                    made_here = public.attention(*own[:3], **given, **options)
                results = made_here if isinstance(made_here, tuple) else (made_here,)
                wanted = list(zip(results, grads, strict=False))[0 if of_O or len(results) == 1 else 1 :]
                total = sum((out * grad.to(out.dtype)).sum() for out, grad in wanted)
                found.append([*results, *torch.autograd.grad(total, learned, allow_unused=True)])
            for one, right in zip(*found, strict=True):
                right = torch.zeros_like(one).double() if right is None else right
                one = torch.zeros_like(right) if one is None else one.double()
                torch.testing.assert_close(one, right, atol=1e-5, rtol=1e-5)
        assert len(chosen) == 4 and all(kernel.launches > 0 for kernel in chosen)
        made.close()


def test_a_kept_call_keeps_none_of_its_tensors(kernels: list[Kernel]) -> None:
    x = inputs()
    public.attention(*x)
    out = public.attention(*x)
    gone = [weakref.ref(each) for each in (*x, out)]
    del x, out
    gc.collect()
    assert not any(each() is not None for each in gone)
    assert len(recorded._KEPT) == 1


def test_other_options_and_types_are_checked_also_where_a_call_is_kept(kernels: list[Kernel]) -> None:
    x = inputs()
    for _ in range(2):
        public.attention(*x)
    for options, said in (
        ({"fallback": "nonsense"}, "fallback is 'nonsense'"),
        ({"dropout_p": None}, "dropout_p is None"),
        ({"align": "middle"}, "align is 'middle'"),
        ({"window": [1, 2, 3]}, "window is"),
        ({"softcap": {}}, "softcap is"),
    ):
        with pytest.raises(UsageError, match=said):
            public.attention(*x, **options)
    with pytest.raises(UsageError, match=r"key is of .*bfloat16 and query of .*float16"):
        public.attention(x[0], x[1].bfloat16(), x[2])
    assert len(kernels) == 2


def test_a_call_with_gradients_is_checked_once(kernels: list[Kernel], monkeypatch: Any) -> None:
    x = [torch.randn(2, 1, 4, 16, requires_grad=True) for _ in range(3)]
    first = public.attention(*x, is_causal=True)
    monkeypatch.setattr(public, "checks", None)
    again = public.attention(*x, is_causal=True)
    assert (again == first).all() and again.requires_grad
    with pytest.raises(AttributeError):  # other options are checked
        public.attention(*x)


def test_other_lengths_of_a_kind_are_not_checked_again(kernels: list[Kernel], monkeypatch: Any) -> None:
    """Of a kind that was checked, with as many keys as values; others are, such as those without a token."""

    def called(n: int, n_k: int, n_v: int, **options: Any) -> Any:
        x = [torch.randn(1, 2, length, 16) for length in (n, n_k, n_v)]
        y = [each.double() for each in x]
        out = public.attention(*x, **options)
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(recorded, "here", lambda each: False)
            watched.setattr(public, "checks", checks)
            torch.testing.assert_close(out.double(), public.attention(*y, **options), atol=1e-5, rtol=1e-5)
        return out

    called(5, 6, 6, window=(2, None))
    called(5, 5, 5, is_causal=True)
    monkeypatch.setattr(public, "checks", None)
    called(7, 8, 8, window=(2, None))
    called(8, 8, 8, is_causal=True)
    for sizes, options in (
        ((7, 8, 6), {"window": (2, None)}),  # other tokens of values
        ((7, 7, 7), {"window": (2, None)}),  # as many queries as keys, which kernels may be made for
        ((20, 20, 20), {"is_causal": True}),  # other kernels may be faster
        ((0, 0, 0), {"is_causal": True}),
    ):
        with pytest.raises(AttributeError, match="check"):
            called(*sizes, **options)


def test_masks_of_other_lengths_are_not_checked_again(kernels: list[Kernel], monkeypatch: Any) -> None:
    """Packed texts of any number, padding and ranges that fit the tokens; those that do not fit are checked."""

    def called(n: int, **options: Any) -> None:
        x = [torch.randn(1, 2, n, 16) for _ in range(3)]
        out = public.attention(*x, **options)
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(recorded, "here", lambda each: False)
            watched.setattr(public, "checks", checks)
            right = public.attention(*(each.double() for each in x), **options)
        torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-5)

    def starts(*given: int) -> Any:
        return torch.tensor(given, dtype=torch.int32)

    def padding(n: int) -> Any:
        return (torch.arange(n) >= n - 2)[None]

    def ranges(n: int) -> Any:
        return tuple(torch.full((1, n), each, dtype=torch.int32) for each in (1, n))

    one = starts(0, 2, 5)
    for options in ({"cu_seqlens": one}, {"cu_seqlens": (one, starts(0, 3, 4))}, {"cu_seqlens": (one, one)}):
        called(5, **options)
    called(5, key_padding_mask=padding(5))
    called(5, key_ranges=ranges(5))
    for _ in range(3):  # one tensor for both is another input than two
        called(5, cu_seqlens=(one, starts(0, 3, 4)))
        called(5, cu_seqlens=(one, one))
    monkeypatch.setattr(public, "checks", None)
    called(7, cu_seqlens=starts(0, 7))
    called(8, cu_seqlens=starts(0, 1, 2, 8))
    called(8, cu_seqlens=(starts(0, 1, 2, 8), starts(0, 5, 6, 7)))
    called(6, cu_seqlens=(other := starts(0, 4, 6), other))
    called(7, key_padding_mask=padding(7))
    called(7, key_ranges=ranges(7))
    for options in (
        {"cu_seqlens": starts(0)},
        {"cu_seqlens": (starts(0, 7), starts(0, 3, 7))},
        {"cu_seqlens": starts(0, 7).long()},
        {"key_padding_mask": padding(6)},
        {"key_ranges": ranges(8)},
        {"cu_seqlens": starts(0, 7), "key_padding_mask": padding(7)},
    ):
        with pytest.raises(AttributeError, match="check"):
            called(7, **options)


def test_only_wanted_gradients_are_given_and_second_ones_are_refused(kernels: list[Kernel]) -> None:
    q, k, v = (torch.randn(1, 2, 5, 16) for _ in range(3))
    k.requires_grad_()
    for _ in range(2):
        out = public.attention(q, k, v)
        out.sum().backward()
        assert q.grad is None and v.grad is None and k.grad is not None
    first = torch.autograd.grad(public.attention(q, k, v).square().sum(), k, create_graph=True)[0]
    with pytest.raises(UsageError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), k)


def test_gradients_in_other_orders_of_memory_take_their_own_passes(kernels: list[Kernel]) -> None:
    """Those of a sum repeat one number; others lie as O does, or tokens first: in turn, for calls of the same sizes."""
    for turn in range(12):
        x = [torch.randn(2, 3, 5, 16, requires_grad=True) for _ in range(3)]
        whole = torch.randn(2, 3, 5, 16)
        grad = [whole, whole.transpose(1, 2).contiguous().transpose(1, 2), whole[:, :1, :1, :1].expand_as(whole)][
            turn % 3
        ]
        y = [each.detach().double().requires_grad_() for each in x]
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(recorded, "here", lambda each: False)
            right = torch.autograd.grad(public.attention(*y), y, grad.double())
        for made, true in zip(torch.autograd.grad(public.attention(*x), x, grad), right, strict=True):
            torch.testing.assert_close(made.double(), true, atol=1e-5, rtol=1e-5)
    (known,) = eager._CHECKED.values()
    assert len(known.passes) == 4 and eager.FORWARD in known.passes
    assert len(kernels) == 2 + 3 * 2  # each pass when it is first, and when it is noted


def test_saved_tensors_that_come_back_in_another_order_of_memory_are_read_in_it(kernels: list[Kernel]) -> None:
    """As they do from pinned memory with `torch.autograd.graph.save_on_cpu`: in turn with calls without it."""

    def packed(x: Any) -> Any:
        return torch.empty(x.shape, dtype=x.dtype).copy_(x)

    for turn in range(8):
        x = [drawn((2, 3, 5, 16), "tokens first").requires_grad_() for _ in range(3)]
        grad = drawn((2, 3, 5, 16), "tokens first")
        y = [each.detach().double().requires_grad_() for each in x]
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(recorded, "here", lambda each: False)
            right = torch.autograd.grad(public.attention(*y), y, grad.double())
        with torch.autograd.graph.saved_tensors_hooks(packed, packed) if turn % 2 else nullcontext():
            out = public.attention(*x)
        for made, true in zip(torch.autograd.grad(out, x, grad), right, strict=True):
            torch.testing.assert_close(made.double(), true, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 4), (1, 2), (2, 4)])
def test_a_gradient_of_L_in_any_order_of_memory_is_right(kernels: list[Kernel], batch: int, kv_heads: int) -> None:
    """Kernels take it with the numbers of each head next to each other, also of one batch with tokens first."""
    x = [torch.randn(batch, heads, 5, 16, requires_grad=True) for heads in (4, kv_heads, kv_heads)]
    y = [each.detach().double().requires_grad_() for each in x]
    grad = torch.randn(batch, 5, 4).transpose(1, 2)
    with pytest.MonkeyPatch.context() as watched:
        watched.setattr(recorded, "here", lambda each: False)
        right = torch.autograd.grad(public.attention(*y, enable_gqa=True, return_lse=True)[1], y[:2], grad.double())
    for _ in range(3):
        made = torch.autograd.grad(public.attention(*x, enable_gqa=True, return_lse=True)[1], x[:2], grad)
        for one, true in zip(made, right, strict=True):
            torch.testing.assert_close(one.double(), true, atol=1e-5, rtol=1e-5)


def test_calls_that_are_copied_into_one_batch_are_not_alike_to_others(kernels: list[Kernel]) -> None:
    """Whether several batches can be seen as one decides whether kernels get every second word, or a copy of these."""
    keys = torch.randn(2, 3, 2, 5, 16)
    seen = torch.randn(2, 3, 2, 5, 32)[..., ::2]
    copied = torch.randn(3, 2, 2, 5, 32)[..., ::2].transpose(0, 1)
    assert [in_one_batch(each).stride(-1) for each in (seen, copied)] == [2, 1]
    for _ in range(2):
        for query in (seen, copied):
            public.attention(query, keys, keys)
    families = [known.family for known in eager._CHECKED.values()]
    assert len(families) == 2 and families[0] is not families[1]


def test_gradients_of_several_at_once_go_through_the_operator(kernels: list[Kernel]) -> None:
    x = [torch.randn(1, 1, 4, 8, requires_grad=True) for _ in range(3)]
    out = public.attention(*x)
    several = torch.randn(3, *out.shape)
    found = torch.autograd.grad(out, x, several, is_grads_batched=True, retain_graph=True)
    for number, grad in enumerate(several):
        for made, right in zip(found, torch.autograd.grad(out, x, grad, retain_graph=True), strict=True):
            torch.testing.assert_close(made[number], right, atol=1e-5, rtol=1e-5)


def test_a_pass_for_which_memory_is_short_takes_other_kernels(kernels: list[Kernel], monkeypatch: Any) -> None:
    x = inputs()
    public.attention(*x)
    first = public.attention(*x)

    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(recorded, "launch", full)
    assert (public.attention(*x) == first).all() and len(kernels) == 3


def test_what_cannot_be_traced_for_the_moment_is_traced_later(kernels: list[Kernel], monkeypatch: Any) -> None:
    """Memory that is short at some calls does not leave a kind without traces; a refusal for good does."""
    asked, fails = list[Any](), [Later()] * 4

    def trace(*given: Any) -> Any:
        asked.append(given)
        raise fails.pop(0) if fails else Untraced()

    monkeypatch.setattr(recorded, "driver", object)
    monkeypatch.setattr(recorded.Kind, "traced", trace)
    kinds = recorded.Kinds(lambda *given: given, ())
    calls = [len(asked) for _ in range(40) if kinds.of(()) is None]
    assert len(calls) == 40 and [calls.index(number) for number in range(1, 6)] == [0, 2, 5, 10, 19]
    assert len(asked) == 5


def test_notes_are_for_one_thread_and_one_call() -> None:
    assert notes() is None
    with noted() as written:
        assert notes() is written
        written.other = True
        assert notes() is None
