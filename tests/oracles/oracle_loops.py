"""An oracle: the paper's algorithms as plain loops over real blocks in a simulated two-level memory.

It follows the pseudo-code of its sources and shares no code with the schedules it judges; of pebblesim it imports only
the problems (shapes, random inputs). The sources: Li et al. 2024 (arXiv 2410.09397), Algorithms 1 to 5 and 7 and 8 of
its appendices B to D, which Algorithms 6 and 9 call in turn; Dao 2023 (arXiv 2307.08691), Algorithm 2; Hong & Kung
1981, section 6; Kwasniewski et al. 2019 (COSMA), Listing 1. Each function names its own. It runs one algorithm on
float64 arrays, block by block, in the order of the pseudo-code, and returns a `Result`: words read and written (in all,
per tensor, per phase), the peak number of words in fast memory, and the computed arrays.

Conventions:
    * "FMA occupancy": the words in fast memory are the array elements of live blocks. C += A B takes no room for
      products, and an elementwise statement such as p = f∘q - diag(v) f is fused: it takes room for its target only.
    * exp is in place. f = diag(l)^-1 A has its own block in Algorithms 2 and 8, as the paper's names say; in `flash`
      it overwrites A, and p overwrites q.
    * A ragged block counts its actual words. A zero tile and a deletion cost nothing.
    * Fast memory is empty at the start and at the end of each phase.

The `by_hand_*` functions are closed forms, added up by hand from the same pseudo-code with b_x = ceil(x/B) and
T_x = ceil(n/B_x). The loops do not use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor

import numpy as np

from pebblesim.language.problems import PROBLEMS

Slices = tuple[slice, ...]


# ------------------------------------------------------------------------------------------------ the memory
class OutOfFastMemory(Exception):
    """More words in fast memory than its capacity M."""


class WrongUse(Exception):
    """An algorithm used a deleted block, read words that nobody wrote, left blocks behind, or the like."""


class Block:
    """An array in fast memory. `a` is the array, to be changed in place only; after deletion `a` raises `WrongUse`."""

    def __init__(self, array: np.ndarray) -> None:
        self._array: np.ndarray | None = array

    @property
    def a(self) -> np.ndarray:
        if self._array is None:
            raise WrongUse("a deleted block was used")
        return self._array


@dataclass
class Phase:
    """The words that one phase of an algorithm moved, and the most that it held in fast memory at a time."""

    reads: int = 0
    writes: int = 0
    peak_words: int | None = 0

    @property
    def io(self) -> int:
        return self.reads + self.writes


@dataclass
class Result:
    """The words that an algorithm moved and held.

    Attributes:
        reads, writes, io: words moved from slow to fast memory, back, and their sum.
        peak_words: most words in fast memory at any time (None where it was not tracked).
        by_tensor: name -> (reads, writes).
        by_phase: name -> `Phase`, in the order of execution.
        outputs: the problem's outputs, by name.
        tensors: everything in slow memory at the end: inputs, intermediate arrays and outputs.
    """

    reads: int
    writes: int
    peak_words: int | None
    by_tensor: dict[str, tuple[int, int]]
    by_phase: dict[str, Phase]
    outputs: dict[str, np.ndarray]
    tensors: dict[str, np.ndarray] = field(repr=False)

    @property
    def io(self) -> int:
        return self.reads + self.writes


class Memory:
    """Slow memory of named arrays, and fast memory of at most M words (any number if M is None)."""

    def __init__(self, M: int | None = None) -> None:
        self.M = M
        self.slow: dict[str, np.ndarray] = {}
        self.known: dict[str, np.ndarray] = {}
        self.live: list[Block] = []
        self.resident = 0
        self.peak = 0
        self.tensor_reads: dict[str, int] = {}
        self.tensor_writes: dict[str, int] = {}
        self.phases: dict[str, Phase] = {}
        self.current: Phase | None = None

    # -- slow memory, before the start: free of charge
    def place(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Puts inputs into slow memory."""
        for name, array in inputs.items():
            self.slow[name] = np.array(array, dtype=np.float64)
            self.known[name] = np.ones(array.shape, dtype=bool)

    def reserve(self, name: str, *shape: int) -> None:
        """Gives an array that is yet to be written a place in slow memory."""
        self.slow[name] = np.full(shape, np.nan)
        self.known[name] = np.zeros(shape, dtype=bool)

    # -- moves
    def read(self, name: str, where: Slices) -> Block:
        """Copies a block of a slow array into fast memory."""
        if not self.known[name][where].all():
            raise WrongUse(f"{name}: words were read that had not been written")
        block = self._allocate(self.slow[name][where].copy())
        self._phase().reads += block.a.size
        self.tensor_reads[name] = self.tensor_reads.get(name, 0) + block.a.size
        return block

    def write(self, name: str, where: Slices, block: Block) -> None:
        """Copies a block to its place in a slow array; it stays in fast memory."""
        if self.slow[name][where].shape != block.a.shape:
            raise WrongUse(f"{name}: a block of shape {block.a.shape} was written to {self.slow[name][where].shape}")
        self.slow[name][where] = block.a
        self.known[name][where] = True
        self._phase().writes += block.a.size
        self.tensor_writes[name] = self.tensor_writes.get(name, 0) + block.a.size

    def new(self, *shape: int) -> Block:
        """A zero block in fast memory."""
        return self._allocate(np.zeros(shape))

    def delete(self, *blocks: Block) -> None:
        """Frees the words of live blocks."""
        for block in blocks:
            self.resident -= block.a.size
            self.live.remove(block)
            block._array = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attributes the moves inside to a phase, which must leave fast memory empty."""
        if self.live or self.current is not None or name in self.phases:
            raise WrongUse(f"phase {name} cannot start here")
        self.current = self.phases[name] = Phase()
        yield
        self.current = None
        if self.live or self.resident:
            raise WrongUse(f"phase {name} left {len(self.live)} blocks in fast memory")

    def result(self, *outputs: str) -> Result:
        """The report, once every phase is over."""
        for name in outputs:
            if not self.known[name].all():
                raise WrongUse(f"{name} was not written in full")
        names = sorted(self.tensor_reads.keys() | self.tensor_writes.keys())
        return Result(
            reads=sum(self.tensor_reads.values()),
            writes=sum(self.tensor_writes.values()),
            peak_words=self.peak,
            by_tensor={name: (self.tensor_reads.get(name, 0), self.tensor_writes.get(name, 0)) for name in names},
            by_phase=dict(self.phases),
            outputs={name: self.slow[name] for name in outputs},
            tensors=dict(self.slow),
        )

    def _phase(self) -> Phase:
        if self.current is None:
            raise WrongUse("a move outside of any phase")
        return self.current

    def _allocate(self, array: np.ndarray) -> Block:
        phase, resident = self._phase(), self.resident + array.size
        if self.M is not None and resident > self.M:
            raise OutOfFastMemory(f"{resident} words > M = {self.M}")
        block = Block(array)
        self.live.append(block)
        self.resident = resident
        self.peak = max(self.peak, resident)
        phase.peak_words = max(phase.peak_words or 0, resident)
        return block


# ------------------------------------------------------------------------------------------------ helpers of the loops
def spans(size: int, width: int) -> list[slice]:
    """0..size in blocks of that width, the last one ragged."""
    if size < 1 or width < 1:
        raise ValueError("sizes and block widths are positive")
    return [slice(start, min(start + width, size)) for start in range(0, size, width)]


def _len(span: slice) -> int:
    return span.stop - span.start


def _flip(where: Slices, transposed: bool) -> Slices:
    return where[::-1] if transposed else where


def _product(
    mem: Memory,
    out: str,
    left: str,
    right: str,
    m: int,
    k: int,
    n: int,
    B: int,
    left_T: bool = False,
    right_T: bool = False,
) -> None:
    """out (m x n) = left (m x k) right (k x n) by B x B x B tiles as in Algorithm 2(a); `_T`: stored transposed."""
    mem.reserve(out, m, n)
    for i in spans(m, B):
        for j in spans(n, B):
            C = mem.new(_len(i), _len(j))
            for kk in spans(k, B):
                L = mem.read(left, _flip((i, kk), left_T))
                R = mem.read(right, _flip((kk, j), right_T))
                C.a[...] += (L.a.T if left_T else L.a) @ (R.a.T if right_T else R.a)
                mem.delete(L, R)
            mem.write(out, (i, j), C)
            mem.delete(C)


def _backward_memory(
    n: int, d: int, M: int | None, inputs: Mapping[str, np.ndarray] | None, seed: int, kept: tuple[str, ...] = ()
) -> Memory:
    """Memory holding the backward problem's inputs and those kept values, the given ones or random ones."""
    names = ("A1", "A2", "A3", "dO", "X", "Y", *kept)
    if inputs is None:
        inputs = PROBLEMS["backward"].random_inputs({"n": n, "d": d}, seed, kept=kept)
    mem = Memory(M)
    mem.place({name: inputs[name] for name in names})
    return mem


# ------------------------------------------------------------------------------------------------ backward
def no_cache(n: int, d: int, *, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Result:
    """Li et al., Algorithm 1, in unlimited fast memory: reads the six inputs once, writes g once.

    Occupancy is not tracked (`peak_words` None).
    """
    mem = _backward_memory(n, d, None, inputs, seed)
    mem.reserve("g", d, d)
    rows, cols = slice(0, n), slice(0, d)
    with mem.phase("g"):
        A1 = mem.read("A1", (rows, cols))
        A2 = mem.read("A2", (rows, cols))
        A3 = mem.read("A3", (rows, cols))
        dO = mem.read("dO", (rows, cols))
        X = mem.read("X", (cols, cols))
        Y = mem.read("Y", (cols, cols))
        f = np.exp(A1.a @ X.a @ A2.a.T)
        f /= f.sum(axis=1, keepdims=True)
        q = dO.a @ (A3.a @ Y.a).T
        p = f * (q - (f * q).sum(axis=1, keepdims=True))
        g = mem.new(d, d)
        g.a[...] = A1.a.T @ p @ A2.a
        mem.write("g", (cols, cols), g)
        mem.delete(A1, A2, A3, dO, X, Y, g)
    result = mem.result("g")
    result.peak_words = None
    result.by_phase["g"].peak_words = None
    return result


def small_cache(
    n: int, d: int, B: int, *, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0, M: int | None = None
) -> Result:
    """Li et al., Algorithm 6: Algorithms 2, 3, 4 and 5 in turn (phases f, q, p, g), tiles of B x B."""
    mem = _backward_memory(n, d, M, inputs, seed)
    with mem.phase("f"):
        _algorithm_2(mem, n, d, B)
    with mem.phase("q"):
        _algorithm_3(mem, n, d, B)
    with mem.phase("p"):
        _algorithm_4(mem, n, B)
    with mem.phase("g"):
        _algorithm_5(mem, n, d, B)
    return mem.result("g")


def _algorithm_2(mem: Memory, n: int, d: int, B: int) -> None:
    """Li et al., Algorithm 2 (f, Def. B.4): S = A1 X; A = exp(S A2^T) and l = A 1; f = diag(l)^-1 A.

    l stays in fast memory for a row of blocks.
    """
    _product(mem, "S", "A1", "X", n, d, d, B)
    mem.reserve("A", n, n)
    mem.reserve("f", n, n)
    for i in spans(n, B):
        l_i = mem.new(_len(i))
        for j in spans(n, B):
            A = mem.new(_len(i), _len(j))
            for k in spans(d, B):
                S = mem.read("S", (i, k))
                A2 = mem.read("A2", (j, k))
                A.a[...] += S.a @ A2.a.T
                mem.delete(S, A2)
            np.exp(A.a, out=A.a)
            mem.write("A", (i, j), A)
            l_i.a[...] += A.a.sum(axis=1)
            mem.delete(A)
        for j in spans(n, B):
            A = mem.read("A", (i, j))
            f = mem.new(_len(i), _len(j))
            f.a[...] = A.a / l_i.a[:, None]
            mem.write("f", (i, j), f)
            mem.delete(A, f)
        mem.delete(l_i)


def _algorithm_3(mem: Memory, n: int, d: int, B: int) -> None:
    """Li et al., Algorithm 3 (h and q of Defs. B.6 and B.8): h = A3 Y; q = dO h^T."""
    _product(mem, "h", "A3", "Y", n, d, d, B)
    _product(mem, "q", "dO", "h", n, d, n, B, right_T=True)


def _algorithm_4(mem: Memory, n: int, B: int) -> None:
    """Li et al., Algorithm 4 (p, Def. B.9): v = (f∘q) 1; p = f∘q - diag(v) f.

    v stays in fast memory for a row of blocks.
    """
    mem.reserve("p", n, n)
    for i in spans(n, B):
        v_i = mem.new(_len(i))
        for j in spans(n, B):
            f = mem.read("f", (i, j))
            q = mem.read("q", (i, j))
            v_i.a[...] += (f.a * q.a).sum(axis=1)
            mem.delete(f, q)
        for j in spans(n, B):
            f = mem.read("f", (i, j))
            q = mem.read("q", (i, j))
            p = mem.new(_len(i), _len(j))
            p.a[...] = f.a * q.a - v_i.a[:, None] * f.a
            mem.write("p", (i, j), p)
            mem.delete(f, q, p)
        mem.delete(v_i)


def _algorithm_5(mem: Memory, n: int, d: int, B: int) -> None:
    """Li et al., Algorithm 5 (g = dL/dX of Def. 3.2): T = A1^T p (d x n); g = T A2."""
    _product(mem, "T", "A1", "p", d, n, n, B, left_T=True)
    _product(mem, "g", "T", "A2", d, n, d, B)


def large_cache(
    n: int,
    d: int,
    B_r: int,
    B_c: int,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    M: int | None = None,
) -> Result:
    """Li et al., Algorithm 9: Algorithms 7 (phase Sh) and 8 (phase g).

    O and l are inputs; h_j and p are freed after each j.
    """
    mem = _backward_memory(n, d, M, inputs, seed, kept=("O", "l"))
    with mem.phase("Sh"):
        _algorithm_7(mem, n, d, B_r, B_c)
    with mem.phase("g"):
        _algorithm_8(mem, n, d, B_r, B_c)
    return mem.result("g")


def _algorithm_7(mem: Memory, n: int, d: int, B_r: int, B_c: int) -> None:
    """Li et al., Algorithm 7: S = A1 X and h = A3 Y: rows in blocks of B_r, columns of X and Y in blocks of B_c."""
    full = slice(0, d)
    mem.reserve("S", n, d)
    mem.reserve("h", n, d)
    for i in spans(n, B_r):
        A1 = mem.read("A1", (i, full))
        A3 = mem.read("A3", (i, full))
        for j in spans(d, B_c):
            X = mem.read("X", (full, j))
            S = mem.new(_len(i), _len(j))
            S.a[...] = A1.a @ X.a
            mem.write("S", (i, j), S)
            mem.delete(S, X)
            Y = mem.read("Y", (full, j))
            h = mem.new(_len(i), _len(j))
            h.a[...] = A3.a @ Y.a
            mem.write("h", (i, j), h)
            mem.delete(h, Y)
        mem.delete(A1, A3)


def _algorithm_8(mem: Memory, n: int, d: int, B_r: int, B_c: int) -> None:
    """Li et al., Algorithm 8: g (d x d, in fast memory throughout) from S, h, O, dO, A1, A2, l: row blocks of B_r
    outside, B_c inside.
    """
    full = slice(0, d)
    mem.reserve("g", d, d)
    g = mem.new(d, d)
    for i in spans(n, B_r):
        S = mem.read("S", (i, full))
        O_i = mem.read("O", (i, full))
        dO = mem.read("dO", (i, full))
        A1 = mem.read("A1", (i, full))
        l_i = mem.read("l", (i,))
        v_i = mem.new(_len(i))
        v_i.a[...] = (dO.a * O_i.a).sum(axis=1)
        mem.delete(O_i)
        for j in spans(n, B_c):
            h = mem.read("h", (j, full))
            q = mem.new(_len(i), _len(j))
            q.a[...] = dO.a @ h.a.T
            A2 = mem.read("A2", (j, full))
            A = mem.new(_len(i), _len(j))
            A.a[...] = S.a @ A2.a.T
            np.exp(A.a, out=A.a)
            f = mem.new(_len(i), _len(j))
            f.a[...] = A.a / l_i.a[:, None]
            mem.delete(A)
            p = mem.new(_len(i), _len(j))
            p.a[...] = f.a * q.a - v_i.a[:, None] * f.a
            mem.delete(f, q)
            T = mem.new(d, _len(j))
            T.a[...] = A1.a.T @ p.a
            g.a[...] += T.a @ A2.a
            mem.delete(T, A2)
            mem.delete(h, p)
        mem.delete(S, A1, dO, l_i, v_i)
    mem.write("g", (full, full), g)
    mem.delete(g)


def flash(
    n: int,
    d: int,
    B: int,
    B_r: int,
    B_c: int,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    M: int | None = None,
) -> Result:
    """Dao 2023, Algorithm 2, for dL/dX: column blocks outside, dQ = p A2 accumulated in slow memory.

    Phases: S = A1 X and h = A3 Y by B x B tiles; v = rowsum(dO∘O) by row blocks of B_r; dQ (set to zero in slow
    memory, a row block at a time, then updated for each column block of B_c and row block of B_r); g = A1^T dQ by
    B x B tiles. O and l are inputs.
    """
    mem = _backward_memory(n, d, M, inputs, seed, kept=("O", "l"))
    full = slice(0, d)
    with mem.phase("S"):
        _product(mem, "S", "A1", "X", n, d, d, B)
    with mem.phase("h"):
        _product(mem, "h", "A3", "Y", n, d, d, B)
    with mem.phase("v"):
        mem.reserve("v", n)
        for i in spans(n, B_r):
            dO = mem.read("dO", (i, full))
            O_i = mem.read("O", (i, full))
            v_i = mem.new(_len(i))
            v_i.a[...] = (dO.a * O_i.a).sum(axis=1)
            mem.delete(dO, O_i)
            mem.write("v", (i,), v_i)
            mem.delete(v_i)
    with mem.phase("dQ"):
        mem.reserve("dQ", n, d)
        for i in spans(n, B_r):
            zero = mem.new(_len(i), d)
            mem.write("dQ", (i, full), zero)
            mem.delete(zero)
        for j in spans(n, B_c):
            A2 = mem.read("A2", (j, full))
            h = mem.read("h", (j, full))
            for i in spans(n, B_r):
                S = mem.read("S", (i, full))
                l_i = mem.read("l", (i,))
                A = mem.new(_len(i), _len(j))
                A.a[...] = S.a @ A2.a.T
                np.exp(A.a, out=A.a)
                f = A
                f.a[...] = A.a / l_i.a[:, None]
                mem.delete(S, l_i)
                dO = mem.read("dO", (i, full))
                q = mem.new(_len(i), _len(j))
                q.a[...] = dO.a @ h.a.T
                mem.delete(dO)
                v_i = mem.read("v", (i,))
                p = q
                p.a[...] = f.a * q.a - v_i.a[:, None] * f.a
                mem.delete(f, v_i)
                dQ = mem.read("dQ", (i, full))
                dQ.a[...] += p.a @ A2.a
                mem.write("dQ", (i, full), dQ)
                mem.delete(p, dQ)
            mem.delete(A2, h)
    with mem.phase("g"):
        _product(mem, "g", "A1", "dQ", d, n, d, B, left_T=True)
    return mem.result("g")


# ------------------------------------------------------------------------------------------------ matmul
def _matmul_memory(m: int, k: int, n: int, M: int | None, inputs: Mapping[str, np.ndarray] | None, seed: int) -> Memory:
    if inputs is None:
        inputs = PROBLEMS["matmul"].random_inputs({"m": m, "k": k, "n": n}, seed)
    mem = Memory(M)
    mem.place({name: inputs[name] for name in ("A", "B")})
    return mem


def matmul_tiled(
    m: int,
    k: int,
    n: int,
    B: int,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    M: int | None = None,
) -> Result:
    """C = A B (m x k times k x n) by B x B x B tiles (Hong & Kung 1981, section 6).

    A tile of C stays while tiles of A and B pass (phase C).
    """
    mem = _matmul_memory(m, k, n, M, inputs, seed)
    with mem.phase("C"):
        _product(mem, "C", "A", "B", m, k, n, B)
    return mem.result("C")


def matmul_streamed(
    m: int,
    k: int,
    n: int,
    a: int,
    b: int,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    M: int | None = None,
) -> Result:
    """C = A B by a x b tiles of C (COSMA, Listing 1): for each k a column of the A block, and the row of B word by
    word (phase C).
    """
    mem = _matmul_memory(m, k, n, M, inputs, seed)
    with mem.phase("C"):
        mem.reserve("C", m, n)
        for i in spans(m, a):
            for j in spans(n, b):
                C = mem.new(_len(i), _len(j))
                for kk in spans(k, 1):
                    column = mem.read("A", (i, kk))
                    for jj in range(j.start, j.stop):
                        word = mem.read("B", (kk, slice(jj, jj + 1)))
                        C.a[:, jj - j.start] += column.a[:, 0] * word.a[0, 0]
                        mem.delete(word)
                    mem.delete(column)
                mem.write("C", (i, j), C)
                mem.delete(C)
    return mem.result("C")


# ------------------------------------------------------------------------------------------------ closed forms
def _ceil(p: int, q: int) -> int:
    return -(-p // q)


def by_hand_trivial_reads(n: int, d: int) -> int:
    """The six inputs of the backward problem, once."""
    return 4 * n * d + 2 * d**2


def by_hand_alg2_io(n: int, d: int, B: int) -> int:
    """b_d nd + b_n d^2 + nd + 2 b_n nd + 3n^2."""
    bn, bd = _ceil(n, B), _ceil(d, B)
    return bd * n * d + bn * d**2 + n * d + 2 * bn * n * d + 3 * n**2


def by_hand_alg2_peak(n: int, d: int, B: int) -> int:
    """max(2xy+y^2, x+x^2+2xy, x+2x^2), x = min(n,B), y = min(d,B)."""
    x, y = min(n, B), min(d, B)
    return max(2 * x * y + y**2, x + x**2 + 2 * x * y, x + 2 * x**2)


def by_hand_alg3_io(n: int, d: int, B: int) -> int:
    """b_d nd + b_n d^2 + nd + 2 b_n nd + n^2."""
    bn, bd = _ceil(n, B), _ceil(d, B)
    return bd * n * d + bn * d**2 + n * d + 2 * bn * n * d + n**2


def by_hand_alg3_peak(n: int, d: int, B: int) -> int:
    """max(2xy+y^2, x^2+2xy)."""
    x, y = min(n, B), min(d, B)
    return max(2 * x * y + y**2, x**2 + 2 * x * y)


def by_hand_alg4_io(n: int, d: int, B: int) -> int:
    """5n^2."""
    return 5 * n**2


def by_hand_alg4_peak(n: int, d: int, B: int) -> int:
    """x+3x^2."""
    x = min(n, B)
    return x + 3 * x**2


def by_hand_alg5_io(n: int, d: int, B: int) -> int:
    """b_n nd + b_d n^2 + nd + 2 b_d nd + d^2."""
    bn, bd = _ceil(n, B), _ceil(d, B)
    return bn * n * d + bd * n**2 + n * d + 2 * bd * n * d + d**2


def by_hand_alg5_peak(n: int, d: int, B: int) -> int:
    """max(2xy+x^2, y^2+2xy)."""
    x, y = min(n, B), min(d, B)
    return max(2 * x * y + x**2, y**2 + 2 * x * y)


def by_hand_alg6_io(n: int, d: int, B: int) -> int:
    """5 b_n nd + b_d n^2 + 4 b_d nd + 2 b_n d^2 + 9n^2 + 3nd + d^2."""
    bn, bd = _ceil(n, B), _ceil(d, B)
    return 5 * bn * n * d + bd * n**2 + 4 * bd * n * d + 2 * bn * d**2 + 9 * n**2 + 3 * n * d + d**2


def by_hand_alg6_peak(n: int, d: int, B: int) -> int:
    """The largest of Algorithms 2 to 5 (the paper: at most 4B^2, Lemmas C.5 to C.11)."""
    return max(peak(n, d, B) for peak in (by_hand_alg2_peak, by_hand_alg3_peak, by_hand_alg4_peak, by_hand_alg5_peak))


def by_hand_alg7_io(n: int, d: int, B_r: int, B_c: int) -> int:
    """4nd + 2 T_r d^2."""
    return 4 * n * d + 2 * _ceil(n, B_r) * d**2


def by_hand_alg7_peak(n: int, d: int, B_r: int, B_c: int) -> int:
    """2rd + cd + rc, r = min(n,B_r), c = min(d,B_c)."""
    r, c = min(n, B_r), min(d, B_c)
    return 2 * r * d + c * d + r * c


def by_hand_alg8_io(n: int, d: int, B_r: int, B_c: int) -> int:
    """4nd + n + 2 T_r nd + d^2."""
    return 4 * n * d + n + 2 * _ceil(n, B_r) * n * d + d**2


def by_hand_alg8_peak(n: int, d: int, B_r: int, B_c: int) -> int:
    """max{ d^2+4rd+2r, d^2+3rd+2r+2cd+max(3rc, rc+dc) }, r = min(n,B_r), c = min(n,B_c)."""
    r, c = min(n, B_r), min(n, B_c)
    first = d**2 + 4 * r * d + 2 * r
    return max(first, d**2 + 3 * r * d + 2 * r + 2 * c * d + max(3 * r * c, r * c + d * c))


def by_hand_alg8_rows(d: int, M: int) -> int:
    """The feasible B_r for B_c = 1 (docs/ERRATA.md, Algorithm 8).

    It is min{ floor((M-d^2)/(4d+2)), floor((M-d^2-3d)/(3d+5)) }.
    """
    return min((M - d**2) // (4 * d + 2), (M - d**2 - 3 * d) // (3 * d + 5))


def by_hand_alg9_io(n: int, d: int, B_r: int, B_c: int) -> int:
    """Algorithms 7 and 8 in turn."""
    return by_hand_alg7_io(n, d, B_r, B_c) + by_hand_alg8_io(n, d, B_r, B_c)


def by_hand_alg9_peak(n: int, d: int, B_r: int, B_c: int) -> int:
    """The larger of Algorithms 7 and 8."""
    return max(by_hand_alg7_peak(n, d, B_r, B_c), by_hand_alg8_peak(n, d, B_r, B_c))


def by_hand_matmul_io(m: int, k: int, n: int, a: int, b: int) -> int:
    """mk ceil(n/b) + kn ceil(m/a) + mn, for a x b tiles of C; square tiles: a = b = B."""
    return m * k * _ceil(n, b) + k * n * _ceil(m, a) + m * n


def by_hand_matmul_streamed_peak(m: int, k: int, n: int, a: int, b: int) -> int:
    """ab + a + 1, a and b no larger than m and n."""
    a, b = min(a, m), min(b, n)
    return a * b + a + 1


def by_hand_matmul_tiled_peak(m: int, k: int, n: int, B: int) -> int:
    """One tile of each of C, A and B."""
    x, z, y = min(m, B), min(k, B), min(n, B)
    return x * y + x * z + z * y


def by_hand_flash_io(n: int, d: int, B: int, B_r: int, B_c: int) -> int:
    """S, h: 2(b_d nd + b_n d^2 + nd); v: 2nd+n; dQ: 3nd + T_c(4nd+2n); g: 2 b_d nd + d^2."""
    bn, bd, tc = _ceil(n, B), _ceil(d, B), _ceil(n, B_c)
    products = 2 * (bd * n * d + bn * d**2 + n * d)
    return products + 2 * n * d + n + 3 * n * d + tc * (4 * n * d + 2 * n) + 2 * bd * n * d + d**2


def by_hand_flash_peak(n: int, d: int, B: int, B_r: int, B_c: int) -> int:
    """max{ 2xy+y^2 (S, h, g), 2rd+r (v), 2cd+rd+2rc (dQ) }, r = min(n,B_r), c = min(n,B_c)."""
    x, y, r, c = min(n, B), min(d, B), min(n, B_r), min(n, B_c)
    return max(2 * x * y + y**2, 2 * r * d + r, 2 * c * d + r * d + 2 * r * c)


def stated(io: str, sizes: Mapping[str, int]) -> Fraction:
    """The value of a closed form that a schedule states, without sympy, which derived ones go through."""
    functions = {"ceiling": ceil, "floor": floor, "Min": min, "Max": max}
    return Fraction(eval(io, functions, {name: Fraction(size) for name, size in sizes.items()}))
