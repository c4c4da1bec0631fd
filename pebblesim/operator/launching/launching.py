"""Launch compiled kernels: for the device of the tensors, in rounds of heads, at little cost for a small call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import torch

from pebblesim.advice import cards
from pebblesim.advice.tiles import HOPPER, Tiling
from pebblesim.core.errors import UsageError
from pebblesim.kernels import releases
from pebblesim.kernels.domains import GLUON, Call
from pebblesim.kernels.key_ranges import ARGUMENTS
from pebblesim.kernels.module import module_of
from pebblesim.kernels.passes.sinks import SINKS
from pebblesim.kernels.passes.sums_of_sinks import SUMS_OF
from pebblesim.kernels.triton.triton import APART, FAR, SHIFTED
from pebblesim.operator.cuts import Cut
from pebblesim.operator.heads import apart as heads_apart
from pebblesim.operator.heads.parts import (
    bytes_of_parts,
    even_shares,
    long_enough,
    of_part_of_heads,
    parts_of_heads,
)
from pebblesim.operator.known.symbols import Later, plain
from pebblesim.operator.known.tape import notes
from pebblesim.operator.launching import layout
from pebblesim.operator.launching.boxes import MAKERS, gluon_lost, remembered
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launch import Kernel, Torch, Triton
from pebblesim.operator.launching.layout import fits, fitted, room_for
from pebblesim.operator.once import warn_once
from pebblesim.operator.pattern import Pattern
from pebblesim.operator.planning import (
    CARD,
    ROOM,
    STEPS,
    Choice,
    Dims,
    chosen,
    chosen_for_latent,
    rounded_up,
)
from pebblesim.operator.texts import written

LEAST_ROOM = 2**26
"""Bytes of tables that are taken without asking how much memory is free."""


class Loaded(NamedTuple):
    """Kernels that can be launched.

    Attributes:
        run: launches them.
        takes, sums: as of `texts.Written`.
    """

    run: Any
    takes: tuple[str, ...]
    sums: bool

    def __call__(self, given: dict[str, Any], results: dict[str, Any], **beside: Any) -> Any:
        """Launch them with tensors by name, of which `run` takes some in order."""
        others = {name: each for name, each in given.items() if name not in self.takes}
        return self.run(*(given[name] for name in self.takes), results=results, **others, **beside)


@lru_cache(maxsize=1024)
def loaded(
    tiling: Tiling, widths: Dims, even: bool, far: bool, dense: bool, dtype: str, pattern: Pattern, scale: float
) -> Loaded:
    """The kernels of a tiling for all lengths.

    Arguments as for `written`.
    """
    source = written(tiling, widths, even, far, dense, dtype, pattern, scale)
    return Loaded(running(source.text, source.kernels).run, source.takes, source.sums)


def running(text: str, kernels: tuple[str, ...]) -> Any:
    """The module of a text, whose kernels, by their names, are launched at little cost."""
    module = module_of(text)
    for name in MAKERS:
        if hasattr(module, name):
            setattr(module, name, remembered(getattr(module, name)))
    module.torch, module.triton = Torch(), Triton()
    for name in kernels:
        setattr(module, name, Kernel(getattr(module, name)))
    return module


class Setting(NamedTuple):
    """The computation of kernels, beside the sizes of their tensors.

    Attributes:
        pattern: the pairs that are allowed.
        scale: factor of the scores.
        workspace: bytes that tables may take; None for the limit that is usual.
        sinks: whether a forward pass has sinks, and a backward pass returns what their gradient is made of.
        apart: by the name of a gradient of keys, of how many parts it is the sum, which are written in float32; where
            kernels write fewer parts, a pass says so there. None if gradients are whole.
        sums_of: of a backward pass without a gradient of L, sinks and where their gradient may be written, (heads,) or
            (batch, heads).
    """

    pattern: Pattern
    scale: float
    workspace: int | None
    sinks: bool = False
    apart: dict[str, int] | None = None
    sums_of: tuple[Any, Any] | None = None


def compute(way: str, tensors: dict[str, Any], results: dict[str, Any], setting: Setting) -> Any:
    """Compute a pass for all heads at once or, where tables would take too much memory, for groups of heads.

    Args:
        way: "forward" or "backward".
        tensors: by name: Q, dO and O of shape (batch, heads, n_q, d), K and V of shape (batch, kv_heads, n_k, d), with
            any strides; L and, of the natural L, dL of shape (batch · kv_heads, n_q · shared), contiguous; ranges by
            the names of `ARGUMENTS`, (batch, …), in int32, contiguous; sinks of a forward pass, (batch, heads), any
            words from batch to batch.
        results: matrices that are written, by name: O, or dQ, dK and dV.
        setting: what is computed.

    Returns:
        L, (batch · kv_heads, n_q · shared), of a forward pass; of a backward pass with sinks whose gradient was not
        written the row sums of dO ∘ O, less dL, in as many rows that may lie further apart, or in as many for each part
        of the heads; else None.
    """
    Q = tensors["Q"]
    if Q.is_cuda and Q.device.index != torch.cuda.current_device():
        with torch.cuda.device(Q.device):
            return compute(way, tensors, results, setting)
    given = {name: fitted(each) if each.dim() == 4 else each for name, each in tensors.items()}
    made = {name: each if fits(each) else room_for(each, each.shape[-1]) for name, each in results.items()}
    if way == "backward" and setting.apart is None and (number := groups_of(given, made, setting)) > 1:
        rows = _heads_apart(given, made, setting, number)
    else:
        choice, kernels, taken = _prepared(way, given, made, setting)
        if choice.cut is not None and way == "forward":
            return _in_parts(given, results, setting, choice.cut)
        if choice.cut is not None:
            rows = _gradients_in_parts(kernels, given, made, setting, choice.cut)
        else:
            rounds, tiling = choice.forecast.rounds, choice.forecast.tiling
            beside: dict[str, Any] = {APART: setting.apart} if setting.apart and rounds == 1 and tiling.gluon else {}
            if setting.sums_of is not None and rounds == 1 and kernels.sums:
                beside[SUMS_OF] = setting.sums_of
            rows = _in_rounds(rounds, kernels, taken, made, setting.pattern.shared, beside)
    for name, each in results.items():
        if made[name] is not each:
            each.copy_(made[name][..., : each.shape[-1]])
    return rows


def _in_rounds(
    rounds: int,
    kernels: Loaded,
    given: dict[str, Any],
    results: dict[str, Any],
    shared: int,
    beside: dict[str, Any],
) -> Any:
    """Compute a pass for some heads after others, and return numbers of the rows of all, if there are some.

    `beside`: arguments of `run` that are no tensors of heads; with `SUMS_OF` there are no numbers.
    """
    (batch, kv_heads), rows = next(given[name] for name in ("K", "C") if name in given).shape[:2], None
    parts = _parts(batch, kv_heads, batch * kv_heads // rounds)
    for part in parts:
        some, room = given, results
        if len(parts) > 1:
            some, room = (_of_part(each, part, shared, kv_heads) for each in (given, results))
        of_part = _launched(kernels, some, room, beside)
        if of_part is not None:
            rows = _joined(rows, of_part, part, batch, kv_heads)
    return None if SUMS_OF in beside else rows


def groups_of(given: dict[str, Any], results: dict[str, Any], setting: Setting) -> int:
    """The number of parts in which a backward pass takes the heads that share keys."""
    pattern, Q = setting.pattern, given["Q"]
    if pattern.shared == 1:
        return 1
    batch, kv_heads, n_k, d_v = given["V"].shape
    dims = (("n_q", Q.shape[2] * pattern.shared), ("n_k", n_k), ("d_k", Q.shape[3]), ("d_v", d_v))
    words, repeated, _ = _laid((given, results), pattern.shared)
    if GLUON.refusal(Call({}, scale=setting.scale, words=words, repeated=repeated)):
        return 1
    card, room = card_of(Q.device), ROOM if setting.workspace is None else setting.workspace
    rest = batch * kv_heads, _dtype(Q), _here(pattern), room, card
    if not long_enough(rounded_up(dims, pattern, 1), *rest):
        return 1
    parts = parts_of_heads(rounded_up(dims, pattern, STEPS), *rest)
    beside = bytes_of_parts(dims, batch * kv_heads, parts, rest[1])
    return 1 if parts > 1 and setting.workspace is None and _is_short(beside, Q.device) else parts


def _heads_apart(given: dict[str, Any], results: dict[str, Any], setting: Setting, parts: int) -> Any:
    """Compute a backward pass whose heads that share keys are in parts."""
    shared = setting.pattern.shared
    sums = dict.fromkeys(heads_apart.OF_KEYS, parts)
    own = setting._replace(pattern=of_part_of_heads(setting.pattern, parts), apart=sums)
    made = heads_apart.room_for_parts(results, parts)
    rows = compute("backward", heads_apart.given_to_parts(given, shared, parts), made, own)
    heads_apart.add_up(made, results, sums)
    return rows


def _in_parts(given: dict[str, Any], results: dict[str, Any], setting: Setting, cut: Cut) -> Any:
    """Compute a forward pass in parts, one after the other, and return L."""
    (batch, kv_heads, n_k, _), (pattern, n) = given["K"].shape, (setting.pattern, given["Q"].shape[2])
    lse, own = None, setting._replace(pattern=cut.pattern(pattern))
    spans = [*zip(cut.spans, cut.keys(pattern, n_k), strict=True)]
    for at_once in _parts(batch, kv_heads, cut.kv_heads):
        of_heads, made = (_of_part(each, at_once, pattern.shared, kv_heads) for each in (given, results))
        for first, (queries, keys) in product(range(0, pattern.shared, cut.heads), spans):
            heads = slice(first, first + cut.heads) if cut.heads < pattern.shared else slice(None)
            some = {name: each[:, :, :keys] if name in ("K", "V") else each for name, each in of_heads.items()}
            some["Q"] = of_heads["Q"][:, heads, queries]
            if SINKS in given:
                some[SINKS] = of_heads[SINKS][:, heads]
            L = compute("forward", some, {"O": made["O"][:, heads, queries]}, own)
            if lse is None:
                lse = fresh(L.new_empty((batch, kv_heads, n, pattern.shared)))
            there = lse[*at_once, queries, first : first + cut.heads]
            there.copy_(L.view(there.shape))
    assert lse is not None
    return lse.view(batch * kv_heads, n * pattern.shared)


def _gradients_in_parts(
    kernels: Loaded, given: dict[str, Any], made: dict[str, Any], setting: Setting, cut: Cut
) -> Any:
    """Compute a backward pass in parts, whose kernels add to dK and dV of one KV head after the other.

    Returns:
        With sinks, the row sums of dO ∘ O, less dL; else None.
    """
    (batch, kv_heads, n_k, _), pattern, n = given["K"].shape, setting.pattern, given["Q"].shape[2]
    spans, rows = [*zip(cut.spans, cut.keys(pattern, n_k), strict=True)], None
    for at_once in _parts(batch, kv_heads, cut.kv_heads):
        of_heads, into = (_of_part(each, at_once, pattern.shared, kv_heads) for each in (given, made))
        rooms = {name: fresh(into[name].new_empty(into[name].shape, dtype=torch.float32)) for name in SUMS}
        sums = {name: each.fill_(0.0) for name, each in rooms.items()}
        for first, (queries, keys) in product(range(0, pattern.shared, cut.heads), spans):
            heads = slice(first, first + cut.heads)
            part = partial(_of_cut, pattern.shared, heads, queries, keys)
            some, room = ({name: part(name, each) for name, each in of.items()} for of in (of_heads, into | sums))
            found = kernels(some, room)
            if setting.sinks:
                if rows is None:
                    rows = fresh(found[SHIFTED].new_empty((batch, kv_heads, n, pattern.shared)))
                there = rows[*at_once, queries, heads]
                of_part = found[SHIFTED][:, : there[0, 0].numel()]
                there.copy_(of_part.unflatten(1, there.shape[2:]).unflatten(0, there.shape[:2]))
        for name, each in sums.items():
            _rounded(each, into[name], into[name].shape[1])
    return None if rows is None else rows.view(batch * kv_heads, n * pattern.shared)


def _of_cut(shared: int, heads: slice, queries: slice, keys: int, name: str, x: Any) -> Any:
    """A part's rows of a matrix, or of numbers of the rows of each KV head; `heads`: of those that share keys."""
    if x.dim() < 4:
        part = x.unflatten(1, (-1, shared))[:, queries, heads]
        return (part if part.is_contiguous() else fresh(part.new_empty(part.shape)).copy_(part)).flatten(1)
    if name not in OF_QUERIES:
        return x[:, :, :keys]
    return x[:, heads if heads.stop - heads.start < shared else slice(None), queries]


def _launched(kernels: Loaded, given: dict[str, Any], room: dict[str, Any], beside: dict[str, Any]) -> Any:
    """Write the results of some heads, and return L, or the row sums of dO ∘ O, if there are some.

    Sums in float32 are given back to PyTorch before other heads need theirs.
    """
    found = kernels(given, room, **beside)
    kv_heads = next(given[name] for name in ("K", "C") if name in given).shape[1]
    for name, each in room.items():
        if found[name] is not each:  # sums in float32
            _rounded(found[name], each, kv_heads)
    return found.get("L", found.get(SHIFTED))


def _rounded(sums: Any, x: Any, kv_heads: int) -> None:
    if not layout.on_gpu(x):
        layout.round_sums(sums, x, kv_heads)
        return
    from pebblesim.operator.launching.rounding import round_on_gpu

    round_on_gpu(sums, x, kv_heads)


Part = tuple[slice, slice]
"""Batches, and KV heads in each of them."""

SUMS = ("dK", "dV")
"""Gradients that are sums over the queries of all heads that share keys."""

OF_QUERIES = ("Q", "dO", "O", "dQ", "Q_C", "Q_R")
"""Matrices with a row for each query."""


def _parts(batch: int, kv_heads: int, at_once: int) -> list[Part]:
    """Groups of heads: of several batches, or of one."""
    if at_once >= kv_heads:
        several = at_once // kv_heads
        return [(slice(each, each + several), slice(0, kv_heads)) for each in range(0, batch, several)]
    starts = range(0, kv_heads, at_once)
    return [(slice(each, each + 1), slice(start, start + at_once)) for each in range(batch) for start in starts]


def _of_part(tensors: dict[str, Any], part: Part, shared: int, kv_heads: int) -> dict[str, Any]:
    """The tensors of some heads."""
    batches, heads = part
    found = {}
    for name, each in tensors.items():
        if each.dim() == 4:
            by = shared if name in OF_QUERIES else 1
            found[name] = each[batches, heads.start * by : heads.stop * by]
        elif name == SINKS:
            found[name] = each[batches, heads.start * shared : heads.stop * shared]
        elif name in ARGUMENTS:
            found[name] = each[batches]
        else:
            found[name] = each.unflatten(0, (-1, kv_heads))[batches, heads].flatten(0, 1)
    return found


def _joined(whole: Any, made: Any, part: Part, batch: int, kv_heads: int) -> Any:
    """Numbers of the rows of all heads, such as L, with those of a part filled in."""
    if made.shape[0] == batch * kv_heads:
        return made
    if whole is None:
        whole = fresh(made.new_empty((batch * kv_heads, made.shape[1])))
    there = whole.unflatten(0, (batch, kv_heads))[part]
    there.copy_(made.view(there.shape))
    return whole


def _prepared(
    way: str, given: dict[str, Any], results: dict[str, Any], setting: Setting
) -> tuple[Choice, Loaded, dict[str, Any]]:
    """The choice for these sizes, its kernels, and the tensors that these take, by name."""
    pattern, scale, workspace, sinks, apart, _ = setting
    Q, (batch, kv_heads, n_k, d_v) = given["Q"], given["V"].shape
    dims = (("n_q", Q.shape[2] * pattern.shared), ("n_k", n_k), ("d_k", Q.shape[3]), ("d_v", d_v))
    dtype = _dtype(Q)
    choice = fitting(way, dims, batch * kv_heads, dtype, pattern, workspace, Q.device)
    words, repeated, dense = _laid((given, results), pattern.shared)
    far, unlike = words >= FAR, GLUON.refusal(Call({}, scale=scale, words=words, repeated=repeated))
    if way == "forward" and not unlike and (together := _together(given, pattern)) is not None:
        sizes, parts = together
        latent = chosen_for_latent(sizes, batch * kv_heads, dtype, _here(pattern), card_of(Q.device))
        if latent is not None and latent.forecast.seconds < choice.forecast.seconds:
            own = pattern._replace(sinks=sinks)
            return latent, loaded(latent.forecast.tiling, sizes[2:], latent.even, far, False, dtype, own, scale), parts
    if choice.forecast.tiling.gluon and unlike:
        choice = fitting(way, dims, batch * kv_heads, dtype, pattern._replace(gluon=False), workspace, Q.device)
    own = pattern if choice.cut is None else choice.cut.pattern(pattern)
    alike = own._replace(same_bits=False, gluon=True, sinks=sinks)  # without what says what is chosen
    if apart:
        tiling, (number, *_) = choice.forecast.tiling, apart.values()
        shares = even_shares(tiling, dims, batch * kv_heads // number, number, own, card_of(Q.device))
        alike = alike._replace(apart=True, in_shares=bool(shares) and choice.forecast.rounds == 1)
    return choice, loaded(choice.forecast.tiling, dims[2:], choice.even, far, dense, dtype, alike, scale), given


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _together(given: dict[str, Any], pattern: Pattern) -> tuple[Dims, dict[str, Any]] | None:
    """Sizes and matrices of an attention whose values are the first columns of its keys; None if they are not."""
    Q, K, V = (given[name] for name in "QKV")
    d_v, d_r = V.shape[3], K.shape[3] - V.shape[3]
    if d_r <= 0 or (K.data_ptr(), K.stride(), K.shape[:3]) != (V.data_ptr(), V.stride(), V.shape[:3]):
        return None
    dims = (("n_q", Q.shape[2] * pattern.shared), ("n_k", K.shape[2]), ("d_v", d_v), ("d_r", d_r))
    parts = {"Q_C": Q[..., :d_v], "Q_R": Q[..., d_v:], "C": V, "R": K[..., d_v:]}
    parts |= {name: given[name] for name in (SINKS,) if name in given}
    return dims, parts


def _laid(several: Sequence[dict[str, Any]], shared: int) -> tuple[int, bool, bool]:
    """How matrices lie in memory.

    Returns:
        The most words from the first to the last of heads that share keys, or more; whether words of a matrix have
        several places in it, which the copy engine does not know; and whether the rows of matrices with one head at
        each position are next to each other.
    """
    words, repeated, dense = 0, False, True
    for tensors in several:
        for name, each in tensors.items():
            if each.dim() == 4:
                (batch, heads, n, d), (far, wide, row, _) = each.shape, each.stride()
                words = max(words, n * row + shared * wide)
                repeated |= (not far and batch > 1) or (not wide and heads > 1) or (not row and n > 1)
                dense &= row == d or (shared > 1 and name in OF_QUERIES)
    return words, repeated, dense


def fitting(
    way: str,
    dims: Dims,
    heads: int,
    dtype: str,
    pattern: Pattern,
    workspace: int | None,
    device: Any,
) -> Choice:
    """The kernels for these sizes whose tables fit into the workspace and, if none is given, into the free memory."""
    card, room, here = card_of(device), ROOM if workspace is None else workspace, _here(pattern)
    written = notes()
    dry = written is not None and written.dry
    choose = chosen.__wrapped__ if dry else chosen
    choice = choose(way, dims, heads, dtype, here, room, card)
    if here != pattern and not dry:
        say_lost(way, chosen(way, dims, heads, dtype, pattern, room, card), choice)
    while workspace is None and room > LEAST_ROOM and _is_short(choice.bytes, device):
        room //= 2
        choice = chosen(way, dims, heads, dtype, here, room, card)
    return choice


def _is_short(taken: int, device: Any) -> bool:
    """Whether less memory is free than a pass takes, which then has other kernels, for this moment alone.

    Raises:
        Later: it is, and the pass is traced.
    """
    if taken <= LEAST_ROOM or torch.cuda.is_current_stream_capturing():
        return False
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if plain(taken) <= torch.cuda.mem_get_info(device)[0] + kept:
        return False
    if (written := notes()) is not None:  # kernels for this moment are not to be launched again
        if written.dry:
            raise Later
        written.other = True
    return True


def _here(pattern: Pattern) -> Pattern:
    """A pattern as it is computed with the Triton here."""
    return pattern if gluon_lost() is None else pattern._replace(gluon=False)


@lru_cache(maxsize=64)
def card_of(device: Any) -> cards.Card:
    """The card of a device, with the rates that forecasts need; on the CPU that of a plan, without kernels for it."""
    if device.type != "cuda":
        return replace(cards.card(CARD), capability="")
    return cards.of_device(torch.cuda.get_device_properties(device))


def say_lost(way: str, best: Choice, choice: Choice) -> None:
    """Warn, once, that a pass does not get the kernels for its card, if there are any for it."""
    if best.forecast.tiling.gluon:
        slower, names = choice.forecast.seconds / best.forecast.seconds, sorted({each.schedule for each in HOPPER})
        warn_once(
            f"{gluon_lost()}: the kernels for Hopper cards ({', '.join(names)}) do not run, and by the forecast this "
            f"{way} pass takes {slower:.2f} times as long; {releases.INSTALL}.",
            key=HOPPER,
        )


def check_triton() -> None:
    """Check that Triton is here.

    Raises:
        UsageError: it is not.
    """
    try:
        import triton as _  # noqa: F401
    except ImportError:
        raise UsageError("attention on a GPU needs Triton, which is not here: pip install triton.") from None
