"""Texts of kernels that are kept for reading, and cases of all kernels that are offered, of which hashes are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from pebblesim.advice.tiles import HOPPER, SMALL_TILINGS, TILINGS, Tiling, hopper_tiling
from pebblesim.core.errors import UsageError
from pebblesim.kernels.cuda.cuda import cuda, prelude
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.passes.bias import biased, gradient_of_bias
from pebblesim.kernels.passes.bias_stays import OF_PART, SPAN, gradients_at_once
from pebblesim.kernels.passes.sequences import together
from pebblesim.kernels.triton.triton import Source, triton
from pebblesim.language.masks import Band
from pebblesim.language.registry import get

EVEN, RAGGED = 2**14, 2**14 - 1
"""Lengths that all tiles divide, and lengths that none does."""

MASKS = {"causal": (None, 0), "window": (256, 0), "both": (100, 28)}
"""Limits of j - i, to the left and to the right."""


@dataclass(frozen=True)
class Case:
    """Kernels of one text.

    Attributes:
        tiling: a schedule and its tiles.
        d: the head dimension; of latent values, and 64 columns beside them.
        mask: a name of `MASKS`, "ranges", or None.
        n: numbers of keys and of positions.
        shared: heads that share keys; 0 for contiguous matrices of one head.
        dense, far, softcap: as for `triton`.
        at_end: whether the last query is at the last key.
        bias: whether scores have a bias.
    """

    tiling: Tiling
    d: int
    mask: str | None = None
    n: int = EVEN
    shared: int = 0
    dense: bool = True
    far: bool = False
    softcap: float = 0.0
    at_end: bool = False
    bias: bool = False

    def __str__(self) -> str:
        words = [f"d={self.d}", self.mask or "", "end" * self.at_end, "even" if self.n == EVEN else f"n={self.n}"]
        words += [f"shared={self.shared}" * bool(self.shared), "sparse" * (not self.dense), "far" * self.far]
        return " ".join(filter(None, [*words, f"softcap={self.softcap:g}" * bool(self.softcap)]))

    @property
    def band(self) -> Band | None:
        """The mask, in rows of queries."""
        rows = max(self.shared, 1)
        if self.mask == "ranges":
            return KeyRanges(rows=rows)
        return None if self.mask is None else Band(self.mask, *MASKS[self.mask], at_end=self.at_end, rows=rows)

    @property
    def sizes(self) -> dict[str, int]:
        """Dimensions and blocks by name."""
        d_v = min(self.d, self.tiling.widest["d_v"])
        own = {"n_q": self.n * max(self.shared, 1), "n_k": self.n, "d_v": d_v}
        beside = {"d_r": 64} if "latent" in self.tiling.schedule else {"d_k": self.d}
        return {**own, **beside, **self.tiling.blocks}

    def text(self) -> str:
        """The text, or what is said in its place."""
        try:
            return self.source().text
        except UsageError as error:
            return f"{error}\n"

    def source(self) -> Source:
        """The kernels."""
        tiling, mask = self.tiling, self.band
        schedule = get(tiling.schedule)
        schedule = schedule if schedule.problem.rectangle is None else schedule.in_dims(schedule.problem.rectangle.dims)
        program = schedule.program if mask is None else schedule.masked
        program = biased(program) if self.bias else program
        options = {**tiling.options_under(mask), "scale": 0.125, "shared": self.shared, "dense": self.dense}
        if tiling.gluon:
            return gluon(program, self.sizes, mask=mask, softcap=self.softcap, **options)
        far = self.far if self.shared else None
        return triton(program, self.sizes, mask=mask, far=far, softcap=self.softcap, **options)


@dataclass(frozen=True)
class InCuda:
    """Kernels in float32, of one text: for all sizes, or for some."""

    schedule: str
    workers: int = 1
    sizes: tuple[tuple[str, int], ...] = ()

    def text(self) -> str:
        """The text without what precedes all kernels."""
        sizes = dict(self.sizes) | {"workers": self.workers}
        assert prelude()
        return cuda(get(self.schedule).program, self.workers, sizes if self.sizes else None).text + "\n"


@dataclass(frozen=True)
class Shared:
    """Gradients with a bias that sequences share, for strides: of the bias, or of all matrices, some at a time."""

    of_bias: bool
    n: int = EVEN
    at_a_time: int = 1

    def text(self) -> str:
        """The source."""
        blocks = {"B_r": 64, "b_c": 64, "B_c": 64, "b_r": 64}
        sizes = {"n_q": self.n, "n_k": self.n, "d_k": 32, "d_v": 32, "R": 2, **blocks}
        schedule = get("backward-two-pass-blocked")
        assert schedule.problem.rectangle is not None
        program = schedule.in_dims(schedule.problem.rectangle.dims).program
        program = gradient_of_bias(biased(program)) if self.of_bias else biased(program, ("dK, dV",))
        program = program if self.at_a_time == 1 else together(program, self.at_a_time)
        return triton(program, sizes, scale=0.125, shared=1, far=False).text


@dataclass(frozen=True)
class AtOnce:
    """dQ and dB of a bias that sequences share, in one kernel for Hopper; `onward`: behind other keys; or with v."""

    n: int = EVEN
    onward: bool = False
    with_v: bool = False

    def text(self) -> str:
        """The source."""
        schedule = get("backward-two-pass-blocked")
        assert schedule.problem.rectangle is not None
        made = biased(schedule.in_dims(schedule.problem.rectangle.dims).program)
        program = gradients_at_once(made, self.onward, self.with_v)
        sizes = {
            "n_q": self.n,
            "n_k": self.n,
            "d_k": 32,
            "d_v": 32,
            "R": 2,
            OF_PART: 1,
            "B_r": 64,
            SPAN: 128,
            "b_c": 64,
        }
        return gluon(program, sizes, scale=0.125, shared=1).text


def _offered(schedule: str, number: int = 0, pool: str = "") -> Tiling:
    pools = [each for name, tilings in TILINGS.items() if pool in name for each in tilings]
    return [each for each in pools if each.schedule == schedule][number]


FORWARD, LARGE = _offered("flash2-forward"), _offered("small-cache-forward-blocked")
DECODING, SPLITS = _offered("flash-decoding"), _offered("flash-decoding-blocked")
STORED, IN_ROWS = _offered("scores-stored-blocked"), _offered("scores-stored-in-rows")
TWO_PASS, PAIRS = _offered("backward-two-pass-blocked"), _offered("small-cache-backward-blocked")
DS_STORED = _offered("dS-stored-blocked")

H_FORWARD, H_LATENT = hopper_tiling("flash2-forward", {"d": 64}), hopper_tiling("flash2-latent", {"d": 512})
H_STORED, H_WIDE = (hopper_tiling("scores-stored-resident", {"d": d}) for d in (128, 512))
H_BACKWARD = hopper_tiling("flash2-backward-blocked", {"d": 128})
H_PAIRS = hopper_tiling("small-cache-backward-resident", {"d": 128})
H_TWO_PASS = hopper_tiling("backward-two-pass-blocked", {"d": 64})
H_DS_STORED = hopper_tiling("dS-stored-resident", {"d": 128})

GOLDENS = {
    "triton-forward": Case(FORWARD, 64),
    "triton-forward-ragged": Case(FORWARD, 48, n=RAGGED),
    "triton-forward-causal": Case(FORWARD, 64, "causal"),
    "triton-forward-causal-ragged-shared": Case(FORWARD, 48, "causal", RAGGED, 4),
    "triton-forward-window-shared": Case(FORWARD, 64, "window", EVEN, 4),
    "triton-forward-window-at-end-ragged": Case(FORWARD, 64, "window", RAGGED, 1, at_end=True),
    "triton-forward-ranges": Case(FORWARD, 64, "ranges", EVEN, 1),
    "triton-forward-ranges-ragged-shared": Case(FORWARD, 64, "ranges", RAGGED, 4),
    "triton-forward-softcap-causal": Case(FORWARD, 64, "causal", EVEN, 1, softcap=50.0),
    "triton-forward-described": Case(_offered("flash2-forward", 2), 128, n=RAGGED, shared=1),
    "triton-decoding-shared": Case(DECODING, 128, None, RAGGED, 8),
    "triton-splits-causal": Case(SPLITS, 64, "causal", RAGGED, 1),
    "triton-products": Case(LARGE, 128),
    "triton-products-causal-ragged": Case(LARGE, 96, "causal", RAGGED),
    "triton-stored-ragged": Case(STORED, 256, None, RAGGED, 1),
    "triton-stored-window-shared": Case(STORED, 256, "window", EVEN, 2),
    "triton-stored-ranges": Case(STORED, 256, "ranges", RAGGED, 1),
    "triton-in-rows-causal-ragged": Case(IN_ROWS, 512, "causal", RAGGED, 1),
    "triton-two-pass": Case(TWO_PASS, 64),
    "triton-two-pass-causal-ragged-shared": Case(TWO_PASS, 64, "causal", RAGGED, 4),
    "triton-two-pass-window": Case(TWO_PASS, 64, "window", EVEN, 1),
    "triton-two-pass-ranges-ragged": Case(TWO_PASS, 64, "ranges", RAGGED, 2),
    "triton-two-pass-bias-ragged": Case(TWO_PASS, 64, None, RAGGED, bias=True),
    "triton-two-pass-softcap": Case(TWO_PASS, 64, None, EVEN, 1, softcap=30.0),
    "triton-dS-stored-causal": Case(DS_STORED, 64, "causal", RAGGED, 1),
    "triton-pairs": Case(PAIRS, 128),
    "triton-pairs-causal-ragged-shared": Case(PAIRS, 128, "causal", RAGGED, 4),
    "triton-pairs-both-far": Case(PAIRS, 128, "both", EVEN, 1, False, True),
    "gluon-forward": Case(H_FORWARD, 64),
    "gluon-forward-ragged-shared": Case(H_FORWARD, 64, None, RAGGED, 4),
    "gluon-forward-causal": Case(H_FORWARD, 64, "causal", EVEN, 1),
    "gluon-forward-window-ragged-shared": Case(H_FORWARD, 64, "window", RAGGED, 4, at_end=True),
    "gluon-forward-softcap-causal": Case(H_FORWARD, 64, "causal", EVEN, 1, softcap=50.0),
    "gluon-forward-ranges-ragged-shared": Case(H_FORWARD, 64, "ranges", RAGGED, 4),
    "gluon-latent-ragged-shared": Case(H_LATENT, 512, None, RAGGED, 128),
    "gluon-stored": Case(H_STORED, 128, None, EVEN, 1),
    "gluon-stored-causal-ragged": Case(H_WIDE, 512, "causal", RAGGED, 1),
    "gluon-backward": Case(H_BACKWARD, 128, None, EVEN, 1),
    "gluon-backward-causal-ragged-shared": Case(H_BACKWARD, 128, "causal", RAGGED, 4),
    "gluon-backward-ranges-ragged-shared": Case(H_BACKWARD, 128, "ranges", RAGGED, 4),
    "gluon-pairs": Case(H_PAIRS, 128),
    "gluon-pairs-window-ragged-shared": Case(H_PAIRS, 128, "window", RAGGED, 2),
    "gluon-two-pass-ragged": Case(H_TWO_PASS, 64, None, RAGGED, 1),
    "gluon-two-pass-causal": Case(H_TWO_PASS, 64, "causal"),
    "gluon-two-pass-ranges": Case(H_TWO_PASS, 64, "ranges"),
    "gluon-dS-stored": Case(H_DS_STORED, 128),
    "gluon-dS-stored-causal-ragged-shared": Case(H_DS_STORED, 96, "causal", RAGGED, 4),
    "gluon-forward-bias-causal-ragged": Case(H_FORWARD, 64, "causal", RAGGED, bias=True),
    "triton-bias-gradient": Shared(True),
    "triton-bias-gradient-ragged": Shared(True, RAGGED),
    "triton-bias-two-pass": Shared(False),
    "triton-bias-two-pass-of-two": Shared(False, RAGGED, 2),
    "gluon-bias-gradients": AtOnce(),
    "gluon-bias-gradients-ragged": AtOnce(RAGGED),
    "gluon-bias-gradients-onward": AtOnce(RAGGED, True),
    "gluon-bias-gradients-with-v": AtOnce(RAGGED, with_v=True),
    "gluon-two-pass-softcap-ragged": Case(H_TWO_PASS, 64, None, RAGGED, 1, softcap=30.0),
    "cuda-small-cache": InCuda("small-cache"),
    "cuda-large-cache-workers": InCuda("large-cache", 4),
    "cuda-flash2-forward": InCuda("flash2-forward", 1, (("n", 100), ("d", 24), ("B_r", 16), ("B_c", 32))),
    "cuda-flash2-backward": InCuda("flash2-backward"),
}
"""Texts for reading, by the names of their files."""


def offered() -> dict[str, Tiling]:
    """All kernels that are offered, by a name of their own."""
    pools = {"": TILINGS, "small ": SMALL_TILINGS, "hopper ": {"any": HOPPER}}
    return {
        f"{pool}{problem} {number}: {tiling}": tiling
        for pool, tilings in pools.items()
        for problem, each in tilings.items()
        for number, tiling in enumerate(each)
    }


def cases(tiling: Tiling) -> Iterator[Case]:
    """The kernels of a tiling whose text is hashed: masks, lengths, heads that share keys, widths."""
    (least, most), ranged = tiling.widths, not tiling.gluon or KeyRanges in tiling.domain.masks
    narrow = max(least, 3 * most // 4 // 8 * 8, 16)
    for d, mask, n, shared in (
        *((most, mask, n, shared) for mask in (None, "causal", "window") for n in (EVEN, RAGGED) for shared in (0, 4)),
        *((narrow, mask, RAGGED, 1) for mask in (None, "causal", "both")),
        *((most, "ranges", n, shared) for n, shared in ((EVEN, 1), (RAGGED, 4)) if ranged),
    ):
        yield Case(tiling, d, mask, n, shared)
    yield Case(tiling, most, "window", 1000, 3 - tiling.gluon, dense=False, at_end=True)
    yield Case(tiling, most, "causal", RAGGED, 1, far=True, softcap=0.0 if tiling.gluon else 20.0)


def hashed(tiling: Tiling) -> dict[str, str]:
    """The hash of each text of a tiling, by its case."""
    return {str(case): sha256(case.text().encode()).hexdigest()[:12] for case in cases(tiling)}
