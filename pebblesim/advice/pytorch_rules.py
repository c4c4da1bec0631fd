"""Which kernels PyTorch's `scaled_dot_product_attention` takes, by its own rules, without PyTorch.

PyTorch goes through its backends in an order, and takes the first whose conditions all hold. Order and conditions are
those of its sources, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, for CUDA and PyTorch 2.10 and later; they
differ from release to release, and where cards, releases and cuDNN matter is written beside each condition. On a card
that is here PyTorch itself is asked instead (`pebblesim.explaining.probing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pebblesim.advice.calls import AttentionCall

BACKENDS = ("cudnn", "flash", "efficient", "math")

OLDEST = (2, 10)
"""The first release that the rules are for."""

SHIPPED = {(2, 10): 91500, (2, 11): 91900, (2, 12): 92000}
"""cuDNN of the CUDA wheels, as PyTorch writes it; later releases have this or a later one."""

WIDE_BY_VERSION = (2, 14)
"""The first release whose cuDNN needs to be above 9.22 for head dimensions above 128 on Hopper."""

EFFICIENT_SHARES = (2, 14)
"""The first release whose memory-efficient kernels take fewer heads of keys."""

ONE_FOR_ALL = (2, 14)
"""The first release whose fused kernels take one head of keys for all of queries, also without enable_gqa."""

UNBATCHED = (2, 14)
"""The first release whose fused kernels take tensors of three dimensions, as one batch."""


@dataclass(frozen=True)
class Choice:
    """A backend, and why.

    Attributes:
        backend: one of `BACKENDS`; "" if no rule is known.
        why: (backend, reason) for each backend before it in the order, or one that says why nothing is known.
        probed: whether PyTorch was asked on the card; otherwise it is by the rules.
    """

    backend: str
    why: tuple[tuple[str, str], ...]
    probed: bool = False

    def __str__(self) -> str:
        return "; ".join(f"{backend}: {reason}" if backend else reason for backend, reason in self.why)


@dataclass(frozen=True)
class Where:
    """The card and the libraries.

    Attributes:
        capability: compute capability, such as "9.0"; "cpu" for PyTorch's kernels of the CPU, "" if it is not known.
        release: (major, minor) of PyTorch.
        cudnn: version, such as 91900; None for that of the wheel.
    """

    capability: str
    release: tuple[int, int]
    cudnn: int | None = None

    @property
    def sm(self) -> tuple[int, int]:
        """(major, minor) of the compute capability."""
        major, _, minor = self.capability.partition(".")
        return int(major), int(minor or 0)

    @property
    def own_cudnn(self) -> int:
        """The version of cuDNN, or of the release's wheel."""
        shipped = SHIPPED.get(self.release, max(SHIPPED.values()))
        return shipped if self.cudnn is None else self.cudnn


def choose(call: AttentionCall, where: Where) -> Choice:
    """Return the backend that `scaled_dot_product_attention` takes for a call."""
    if call.dims == 3 and where.release >= UNBATCHED:
        shape = call.mask.shape and (1,) * (4 - len(call.mask.shape)) + call.mask.shape
        call = replace(call, dims=4, mask=replace(call.mask, shape=shape))
    if where.capability == "cpu":
        reason = next(_against_cpu(call, where), None)
        return Choice("flash", ()) if reason is None else Choice("math", (("flash", reason),))
    if not where.capability:
        return Choice("", (("", "no compute capability is known of this card, so no rule of PyTorch applies"),))
    if where.release < OLDEST:
        return Choice("", (("", f"the rules are those of PyTorch {_dotted(OLDEST)} and later"),))
    why: list[tuple[str, str]] = []
    for backend in order(where):
        reason = "it is switched off" if backend in call.off else next(AGAINST[backend](call, where), None)
        if reason is None:
            return Choice(backend, tuple(why))
        why.append((backend, reason))
    return Choice("math", tuple(why))


def order(where: Where) -> tuple[str, ...]:
    """Return the backends in the order in which they are tried; behind math nothing is."""
    major, minor = where.sm
    first = major in (9, 10) and (major == 9 or minor in (0, 3)) and where.own_cudnn > 91500
    return BACKENDS if first else BACKENDS[1:]


def _shapes(call: AttentionCall, where: Where, shares: bool = True) -> Iterator[str]:
    """Demands of all fused kernels on the tensors; `shares`: whether they take fewer heads of keys."""
    if call.dims != 4:
        yield f"tensors have {call.dims} dimensions, and fused kernels take 4: batch, heads, tokens, words"
    if not call.alike:
        yield "batches or types of queries, keys and values differ"
    if 0 in (call.n_q, call.n_k):
        yield "there are no queries, or no keys"
    if call.heads != call.kv_heads and not (call.kv_heads == 1 and where.release >= ONE_FOR_ALL):
        if not (shares and call.enable_gqa):
            means = "; enable_gqa=True is not given" if shares else ", which these kernels do not share"
            yield f"there are {call.heads} heads of queries and {call.kv_heads} of keys{means}"
        elif call.heads % call.kv_heads:
            yield f"{call.kv_heads} heads of keys do not divide {call.heads} of queries"


def _mask_shape(call: AttentionCall) -> Iterator[str]:
    mask = call.mask
    if not mask.given:
        return
    if mask.gradient:
        yield "the bias has a gradient"
    full = (call.batch, call.heads, call.n_q, call.n_k)
    fits = len(mask.shape) in (2, 4) and all(
        size in (1, own) for size, own in zip(mask.shape, full[4 - len(mask.shape) :], strict=False)
    )
    if not fits:
        yield f"the mask has the shape {mask.shape}"


def _strides(call: AttentionCall, one_word: bool) -> Iterator[str]:
    """`one_word`: whether strides do not matter at head dimension 1."""
    if not (call.plain or (one_word and call.d_k == 1)) or not call.mask.plain:
        yield "the words of a row do not lie side by side in memory"


def _halves(call: AttentionCall, where: Where) -> Iterator[str]:
    known = ("float16", "bfloat16") if where.sm >= (8, 0) else ("float16",)
    if call.dtype not in known:
        yield f"words are {call.dtype}, and it takes {' and '.join(known)}"


def _on(where: Where, oldest: tuple[int, int]) -> Iterator[str]:
    if not oldest <= where.sm <= (12, 1):
        yield f"compute capability {where.capability} is not between {_dotted(oldest)} and 12.1"


def _against_cudnn(call: AttentionCall, where: Where) -> Iterator[str]:
    if call.deterministic:
        yield "deterministic algorithms are asked for, and its gradients are not"
    yield from _shapes(call, where)
    yield from _halves(call, where)
    yield from _mask_shape(call)
    yield from _on(where, (8, 0))
    yield from _strides(call, one_word=True)
    yield from _cudnn_sizes(call, where)


def _cudnn_sizes(call: AttentionCall, where: Where) -> Iterator[str]:
    hopper, wide = where.sm == (9, 0), (call.d_k, call.d_v) == (192, 128)
    if where.release >= WIDE_BY_VERSION:
        large = (hopper or where.sm[0] == 10) and where.own_cudnn > 92200
        most = 256 if large else 192 if wide and (hopper or where.sm[0] == 10) else 128
        backward = max(call.d_k, call.d_v) <= 128 or wide or (call.d_k, call.d_v) == (256, 256)
        if large and call.training and not backward:
            yield f"it has no gradients for head dimensions {call.d_k} and {call.d_v}"
    else:
        most = 256 if hopper else 192 if wide and where.sm[0] == 10 else 128
    if max(call.d_k, call.d_v) > most:
        yield f"a head dimension of {max(call.d_k, call.d_v)} is above {most}"
    if call.d_k % 8 or call.d_v % 8:
        yield f"head dimensions {call.d_k} and {call.d_v} are not both multiples of 8"
    if call.n_k == 1:
        yield "there is one key"
    if call.dropout and call.n_q == 1:
        yield "there is dropout, and one query"


def _against_flash(call: AttentionCall, where: Where) -> Iterator[str]:
    if call.dims == 4 and call.mask.given:
        yield f"the mask is a tensor ({call.mask.kind}), and it takes is_causal only"
    if not (call.d_k == call.d_v <= 256):
        yield f"head dimensions are {call.d_k} and {call.d_v}; it takes equal ones up to 256"
    yield from _on(where, (8, 0))
    few = (8, 6) <= where.sm <= (8, 9) or (12, 0) <= where.sm <= (12, 1)
    if call.training and few and (192 < call.d_k <= 224 or (call.d_k > 224 and call.dropout)):
        yield f"gradients at a head dimension of {call.d_k} need more shared memory than this card has"
    if call.mask.kind == "causal" and not call.mask.given and call.n_q != call.n_k:
        yield f"is_causal with {call.n_q} queries and {call.n_k} keys"
    yield from _halves(call, where)
    yield from _shapes(call, where)
    yield from _strides(call, one_word=True)


def _against_efficient(call: AttentionCall, where: Where) -> Iterator[str]:
    yield from _on(where, (5, 0))
    half = call.dtype in ("float16", "bfloat16")
    cores = where.sm >= (8, 0) or (where.sm >= (7, 0) and half)
    group = max(4 if where.sm >= (8, 0) else 1, (8 if half else 4) if cores else 1)
    if call.d_k % group or call.d_v % group:
        yield f"head dimensions {call.d_k} and {call.d_v} are not both multiples of {group}"
    yield from _shapes(call, where, shares=where.release >= EFFICIENT_SHARES)
    yield from _strides(call, one_word=False)
    known = ("float16", "float32", *(("bfloat16",) if where.sm >= (8, 0) else ()))
    if call.dtype not in known:
        yield f"words are {call.dtype}, and it takes {', '.join(known)}"


def _against_cpu(call: AttentionCall, where: Where) -> Iterator[str]:
    """Reasons against the fused kernels of the CPU (sdp_utils_cpp.cpp)."""
    if "flash" in call.off:
        yield "it is switched off"
    if call.dropout:
        yield "there is dropout"
    yield from _shapes(call, where)
    yield from _mask_shape(call)
    if call.d_k != call.d_v:
        yield f"head dimensions are {call.d_k} and {call.d_v}; it takes equal ones"
    yield from _strides(call, one_word=False)
    if call.dtype not in ("float64", "float32", "bfloat16", "float16"):
        yield f"words are {call.dtype}"


AGAINST: dict[str, Callable[[AttentionCall, Where], Iterator[str]]] = {
    "cudnn": _against_cudnn,
    "flash": _against_flash,
    "efficient": _against_efficient,
    "math": lambda call, where: iter(()),
}
"""For each backend, the reasons against it."""


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
