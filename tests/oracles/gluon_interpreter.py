"""A small interpreter of the part of Gluon that our kernels use, over numpy: values, words moved, and no race.

The roles of a block run one at a time, each until it waits; who goes on is drawn. So is when a copy that was issued
arrives. What must have happened before is followed by vector clocks, so a race is found whatever was drawn:

- an operand in shared memory is read only after a wait for the barrier at which its words arrived;
- a slot is filled, or stored to, only when all products that read what was there before are known to have ended;
- what a role stores in shared memory is read by others after a fence and a barrier at which it arrived then;
- what is added to memory stays as it is until the role that adds it has waited for that;
- a product's result, and its operand in registers, are not touched until it was waited for;
- at the end nothing is on its way, every product was waited for, and every phase of each barrier is complete.

If all roles wait and nothing is on its way, they wait for ever: an error, too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton_interpreter
from triton_interpreter import LANGUAGE, TYPES, Array, Pointer, Type, Value


class Barrier:
    """Phases of `count` arrivals and the bytes that are expected in each."""

    def __init__(self, count: int) -> None:
        self.count, self.left, self.bytes, self.phase = count, count, 0, 0
        self.clock: Counter[int] = Counter()  # what happened before the arrivals of this phase
        self.before: Counter[int] = Counter()  # and before those of phases that are complete

    def arrive(self, clock: Counter[int], number: int = 1) -> None:
        assert self.left >= number, "more arrivals than the barrier counts"
        self.left -= number
        self.clock |= clock
        self.check()

    def check(self) -> None:
        if self.left == self.bytes == 0:
            self.before |= self.clock
            self.phase, self.left, self.clock = self.phase + 1, self.count, Counter()


class Slots:
    """A buffer in shared memory, or barriers: what a slot holds, how often it was filled, and who has read it."""

    def __init__(self, dtype: Type, shape: list[int]) -> None:
        self.dtype, self.values = dtype, np.full(shape, np.nan, np.float32)
        self.barriers: list[Barrier | None] = [None] * shape[0]
        self.filled: list[tuple[int, int] | None] = [None] * shape[0]  # event of the fill that is there
        self.reads: list[Counter[int]] = [Counter() for _ in range(shape[0])]  # last event of each role's reads
        self.reading = [0] * shape[0]  # products, or additions to memory, that are reading it
        self.stored: list[dict[int, tuple[int, int]]] = [{} for _ in range(shape[0])]  # who stored a row, and when

    def index(self, slot: Any) -> View:
        assert 0 <= slot < len(self.reading)
        values = self.values[int(slot)]
        return View(self, int(slot), values, np.arange(values.size).reshape(values.shape))


class View:
    """A slot, perhaps a part of it, reshaped or transposed; `places`: of its words in the slot."""

    def __init__(self, slots: Slots, slot: int, values: np.ndarray, places: np.ndarray) -> None:
        self.slots, self.slot, self.values, self.places = slots, slot, values, places

    @property
    def handle(self) -> View:
        return self

    def reshape(self, shape: list[int]) -> View:
        return View(self.slots, self.slot, self.values.reshape(shape), self.places.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> View:
        return View(self.slots, self.slot, self.values.transpose(order), self.places.transpose(order))

    def slice(self, start: int, length: int, dim: int = 0) -> View:
        assert 0 <= start <= start + length <= self.values.shape[dim]
        part = (slice(None),) * dim + (slice(start, start + length),)
        return View(self.slots, self.slot, self.values[part], self.places[part])

    def store(self, value: Any) -> None:
        """Store words from registers; what has to wait is whoever read what was there."""
        slots, slot, role = self.slots, self.slot, BLOCK.role
        added = any(each.slots is slots and each.slot == slot for each in role.adding)
        assert not slots.reading[slot] and not added, "a slot is stored to while something reads it"
        late = [other for other, event in slots.reads[slot].items() if role.clock[other] < event]
        assert not late, "a slot is stored to that may still be read"
        assert value.shape == self.values.shape
        self.values[:] = slots.dtype.round(_there(value))
        event = role.tick()
        slots.stored[slot] |= dict.fromkeys(self.places.reshape(-1).tolist(), (role.number, event))

    def load(self, layout: Any) -> Value:
        """Its words, in registers at once."""
        self.check_there()
        role = BLOCK.role
        self.slots.reads[self.slot][role.number] = role.tick()
        return self.values.copy().view(Kept if layout == OPERAND else Value)

    def check_there(self) -> None:
        stored, filled = self.slots.stored[self.slot], self.slots.filled[self.slot]
        if stored:
            known = {stored.get(place, (-1, 0)) for place in self.places.reshape(-1).tolist()}
            assert (-1, 0) not in known, "words that nobody stored"
            for number, event in known:
                assert BLOCK.fences[number] >= event, "words that are stored without a fence"
                assert BLOCK.role.clock[number] >= event, "words that may not have been stored"
            return
        assert filled is not None, "a slot that was never filled"
        copy, event = filled
        assert BLOCK.role.clock[copy] >= event, "a slot whose words may not have arrived"

    @property
    def barrier(self) -> Barrier:
        made = self.slots.barriers[self.slot]
        assert made is not None, "a barrier before it is made"
        return made


OPERAND = "operand"
"""The layout of left operands."""


class Kept(Value):
    """An operand that is loaded once, before the loop whose products take it: its registers are no others' in there."""


class Flying:
    """A product that was issued: its operands and what it is added to."""

    def __init__(self, left: Any, right: View, onto: Any) -> None:
        self.left, self.right, self.onto, self.value = left, right, onto, None

    @property
    def operands(self) -> list[View]:
        return [each for each in (self.left, self.right) if isinstance(each, View)]

    def end(self, role: Role) -> None:
        left = self.left.values if isinstance(self.left, View) else np.asarray(self.left)
        onto = self.onto.value if isinstance(self.onto, Flying) else self.onto
        self.value = (left @ self.right.values + onto).astype(np.float32).view(Value)
        for view in self.operands:
            view.slots.reading[view.slot] -= 1
            view.slots.reads[view.slot][role.number] = role.tick()


class Role:
    """A function that runs in a thread of Python, one at a time."""

    def __init__(self, number: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.number, self.clock = number, Counter({number: 1})
        self.flying: list[Flying] = []
        self.adding: list[View] = []  # what it adds to memory and has not waited for
        self.ready: Callable[[], bool] = lambda: True
        self.error: BaseException | None = None
        self.done = False
        self.go, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.go.acquire()
        try:
            if not BLOCK.over:
                with np.errstate(all="ignore"):
                    function(*arguments)
                assert not self.flying, "products that nobody waited for"
                assert not self.adding, "additions that nobody waited for"
        except BaseException as error:
            self.error = error
        self.done = True
        self.stopped.release()

    def tick(self) -> int:
        self.clock[self.number] += 1
        return self.clock[self.number]

    def pause(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self.stopped.release()
        self.go.acquire()
        if BLOCK.over:
            raise RuntimeError("the block is over")


class Block:
    """A block of threads: its roles, its barriers, and the copies that are on their way."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.over, self.number = chance, False, 1000
        self.copies: list[Callable[[], None]] = []
        self.fences: Counter[int] = Counter()  # the last event of each role before a fence of its own
        self.slots: list[Slots] = []
        self.role = Role(0, lambda: None, ())
        self.role.number = -1

    def run(self, roles: list[Role]) -> None:
        for role in roles:
            role.thread.start()
        try:
            while not all(role.done for role in roles):
                able: list[Any] = [role for role in roles if not role.done and role.ready()]
                able += self.copies
                assert able, "all roles wait, and nothing is on its way"
                chosen = self.chance.choice(able)
                if isinstance(chosen, Role):
                    self.role = chosen
                    chosen.go.release()
                    chosen.stopped.acquire()
                    if chosen.error is not None:
                        raise chosen.error
                else:
                    self.copies.remove(chosen)
                    chosen()
            assert not self.copies, "copies that nobody waited for"
            barriers = [each for slots in self.slots for each in slots.barriers if each is not None]
            assert all(each.left == each.count and not each.bytes for each in barriers), "a phase that is not complete"
        finally:
            self.over = True
            for role in roles:
                role.go.release()


BLOCK = Block(Random(0))
CHANCE = Random(0)


class Tiles:
    """A tensor for the copy engine, in blocks; beyond its sides there are zeros."""

    layout = None

    def __init__(self, array: Array, shape: list[int], strides: list[int], block: list[int], layout: Any) -> None:
        assert len(shape) == len(block) <= 5, "the copy engine knows five axes"
        self.array, self.shape, self.block = array, shape, block
        self.strides = strides if array.strides is not None or (strides and len(array.shape) != len(shape)) else None

    @staticmethod
    def from_tensor(array: Array, block: list[int], layout: Any) -> Tiles:
        return Tiles(array, list(array.shape), [], block, layout)

    @property
    def handle(self) -> Tiles:
        return self

    def places(self, at: list[int]) -> np.ndarray:
        """Where the words of a block that exist are in memory."""
        ends = [min(first + side, length) for first, side, length in zip(at, self.block, self.shape, strict=True)]
        inside = tuple(slice(int(first), int(max(first, end))) for first, end in zip(at, ends, strict=True))
        if self.strides is not None:
            axes = (np.arange(each.start, each.stop) * step for each, step in zip(inside, self.strides, strict=True))
            return sum(np.ix_(*axes), np.int64(0))
        return np.arange(self.array.values.size).reshape(self.array.shape)[inside]

    def write(self, at: list[int], words: np.ndarray) -> None:
        """Write a block to memory."""
        places = self.places(at)
        self.array.put(places, words[tuple(slice(0, side) for side in places.shape)])

    def add(self, at: list[int], words: np.ndarray) -> None:
        """Add a block to memory: each word that exists is read and written there."""
        places = self.places(at)
        self.array.put(places, self.array.get(places) + words[tuple(slice(0, side) for side in places.shape)])

    def read(self, at: list[int]) -> np.ndarray:
        made, places = np.zeros(self.block, np.float32), self.places(at)
        made[tuple(slice(0, side) for side in places.shape)] = self.array.get(places)
        return made


def _copy(tiles: Tiles, at: list[int], barrier: View, view: View) -> None:
    """Issue a copy: the slot is no more what it was, and its words arrive some time later."""
    role, slots, slot, target = BLOCK.role, view.slots, view.slot, barrier.barrier
    assert not slots.reading[slot], "a slot is filled while a product reads it"
    late = [other for other, event in slots.reads[slot].items() if role.clock[other] < event]
    assert not late, "a slot is filled that may still be read"
    previous = slots.filled[slot]
    assert previous is None or slots.reads[slot], "words that nobody read"
    BLOCK.number += 1
    assert all(each.slots is not slots or each.slot != slot for each in role.adding), "a slot that is being sent"
    copy, words = BLOCK.number, tiles.read([int(each) for each in at])
    slots.filled[slot], slots.reads[slot], slots.stored[slot] = (copy, 1), Counter(), {}
    view.values[:] = np.nan
    bits = words.size * slots.dtype.bits // 8

    def arrive() -> None:
        view.values[:] = words
        assert target.bytes >= bits, "more bytes than the barrier expects"
        target.bytes -= bits
        target.clock |= Counter({copy: 1})
        target.check()

    assert target.bytes >= bits, "bytes that nobody expects"
    BLOCK.copies.append(arrive)


def _added(kind: str, tiles: Tiles, at: list[int], view: View) -> None:
    """Issue an addition to memory, by the copy engine."""
    assert kind == "ADD"
    _sent(tiles.add, tiles, at, view)


def _written(tiles: Tiles, at: list[int], view: View) -> None:
    """Issue a copy to memory."""
    _sent(tiles.write, tiles, [int(each) for each in at], view)


def _sent(done: Callable[[list[int], np.ndarray], None], tiles: Tiles, at: list[int], view: View) -> None:
    """Issue what the copy engine does with words that this role has stored before a fence."""
    role = BLOCK.role
    assert view.values.shape == tuple(tiles.block)
    view.check_there()
    role.adding.append(view)

    def arrive() -> None:
        done(at, view.values)
        view.slots.reading[view.slot] -= 1

    view.slots.reading[view.slot] += 1
    BLOCK.copies.append(arrive)


def _added_all_but(number: int) -> None:
    """Wait until no more than `number` additions of this role are on their way."""
    role = BLOCK.role
    ended = role.adding[: len(role.adding) - number]
    role.pause(lambda: not any(view.slots.reading[view.slot] for view in ended))
    del role.adding[: len(ended)]


def _fence() -> None:
    BLOCK.fences[BLOCK.role.number] = BLOCK.role.clock[BLOCK.role.number]


SEMANTIC = SimpleNamespace(
    _convert_to_ir_values=lambda values, require_i64: [int(value) for value in values],
    builder=SimpleNamespace(create_async_tma_reduce=_added),
)


def _builtin(function: Callable[..., None]) -> Callable[..., None]:
    return lambda *arguments: function(*arguments, _semantic=SEMANTIC)


def _expect(view: View, number: int) -> None:
    view.barrier.bytes += number
    view.barrier.arrive(BLOCK.role.clock)


def _arrive(view: View, count: int) -> None:
    view.barrier.arrive(BLOCK.role.clock, count)


def _init(view: View, count: int) -> None:
    view.slots.barriers[view.slot] = Barrier(count)


def _wait(view: View, phase: Any) -> None:
    role, barrier = BLOCK.role, view.barrier
    role.pause(lambda: barrier.phase & 1 != int(phase))
    role.clock |= barrier.before


def _product(left: Any, right: View, onto: Any, use_acc: bool = True, is_async: bool = False) -> Flying:
    assert is_async and isinstance(right, View)
    assert isinstance(left, View | Value), "an operand that is not there yet"
    rows, terms = left.values.shape if isinstance(left, View) else left.shape
    assert rows % 64 == 0 and terms == right.values.shape[0] and terms % 16 == 0 and right.values.shape[1] % 8 == 0
    assert isinstance(onto, Flying | Value)
    made = Flying(left, right, onto if use_acc else np.float32(0))
    for view in made.operands:
        view.check_there()
        view.slots.reading[view.slot] += 1
    BLOCK.role.flying.append(made)
    return made


def _last_sum(product: Flying, flying: list[Flying]) -> Flying:
    """The last product on its way that is added onto this one, or onto one that is: it has its registers."""
    for each in flying:
        product = each if each.onto is product else product
    return product


def _waited(number: int, deps: tuple[Any, ...]) -> Any:
    """Wait until no more than `number` products are on their way; they end in order."""
    role = BLOCK.role
    while len(role.flying) > number:
        product = role.flying.pop(0)
        product.end(role)
        registers = [] if isinstance(product.left, View | Kept) else [product.left]
        last = _last_sum(product, role.flying)
        onward = last is not product and any(last is dep for dep in deps)
        for each in registers if onward else (product, *registers):
            assert any(each is dep for dep in deps), "what a product uses until it ends is not kept"
    results = tuple(dep.value if isinstance(dep, Flying) and dep.value is not None else dep for dep in deps)
    return results if len(results) > 1 else results[0]


def _specialize(roles: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]) -> None:
    assert len(roles) == len(warps) + 1 == len(registers) + 1
    BLOCK.run([Role(number, function, arguments) for number, (function, arguments) in enumerate(roles)])


def _jit(function: Any = None, do_not_specialize: Any = ()) -> Any:
    return Jit if function is None else Jit(function)


class Jit:
    """A function; `kernel[grid](…)` runs it for each block of the grid."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, num_warps: int, enable_fp_fusion: bool = True) -> None:
            global BLOCK
            assert num_warps == 4 and enable_fp_fusion
            given = [Pointer(each) if isinstance(each, Array) else each for each in arguments]
            given = [np.array(each).view(Value) if isinstance(each, int) else each for each in given]
            triton_interpreter.named(self.function, arguments)
            LANGUAGE.grid = (*grid, 1, 1)[:3]
            for last, head, program in np.ndindex(*LANGUAGE.grid[::-1]):
                LANGUAGE.programs, BLOCK = (program, head, last), Block(CHANCE)
                self.function(*given)

        return launch


def _allocate(dtype: Type, shape: list[int], layout: Any) -> Slots:
    BLOCK.slots.append(Slots(dtype, shape))
    return BLOCK.slots[-1]


def _there(x: Any) -> Any:
    assert not isinstance(x, Flying), "a result before its product has ended"
    return x


def _nothing(*arguments: Any) -> None:
    return None


def _blocked(per_thread: list[int], threads: list[int], warps: list[int], order: list[int]) -> int:
    """Numbers that the threads of a block have at once."""
    assert (threads, warps, order) == ([32], [4], [0]), "not 4 warps of 32 threads"
    return 128 * per_thread[0]


GLUON: Any = SimpleNamespace(
    constexpr=lambda x: x,
    static_range=range,
    program_id=LANGUAGE.program_id,
    num_programs=LANGUAGE.num_programs,
    cast=LANGUAGE.cast,
    arange=lambda start, stop, layout: LANGUAGE.arange(start, stop),
    full=lambda shape, value, dtype, layout: LANGUAGE.full(shape, value, dtype),
    zeros=lambda shape, dtype, layout: LANGUAGE.full(shape, 0.0, dtype),
    convert_layout=lambda x, layout: np.array(_there(x)).view(Value),
    exp2=LANGUAGE.math.exp2,
    allocate_shared_memory=_allocate,
    warp_specialize=_specialize,
    NVMMADistributedLayout=_nothing,
    DistributedLinearLayout=_nothing,
    SharedLinearLayout=_nothing,
    SliceLayout=_nothing,
    BlockedLayout=_blocked,
    DotOperandLayout=lambda number, of, words: OPERAND,
    NVMMASharedLayout=SimpleNamespace(get_default_for=_nothing),
    **{name: getattr(LANGUAGE, name) for name in ("load", "store", "log2", "maximum", "minimum", "where", "cdiv")},
    max=lambda x, axis: LANGUAGE.max(_there(x), axis),
    sum=lambda x, axis: LANGUAGE.sum(_there(x), axis),
    **TYPES,
)

TMA = {"3.6": ("async_copy_global_to_shared", "async_copy_shared_to_global"), "3.9": ("async_load", "async_store")}
"""What the functions of the copy engine are called, from some releases of Triton on."""


def tma(release: str) -> SimpleNamespace:
    """The functions of the copy engine by their names in a release, and by no others."""
    load, store = TMA["3.9" if release == "3.9" else "3.6"]
    return SimpleNamespace(**{load: _copy, store: _written, "store_wait": _added_all_but})


HOPPER = SimpleNamespace(
    mbarrier=SimpleNamespace(MBarrierLayout=_nothing, init=_init, wait=_wait, expect=_expect, arrive=_arrive),
    tma=tma("3.6"),
    fence_async_shared=_fence,
    warpgroup_mma=_product,
    warpgroup_mma_wait=_waited,
)

MODULES = {
    "triton.experimental": SimpleNamespace(gluon=SimpleNamespace(jit=_jit)),
    "triton.experimental.gluon": SimpleNamespace(language=GLUON),
    "triton.experimental.gluon.language.nvidia.hopper": HOPPER,
    "triton.experimental.gluon.language._core": SimpleNamespace(builtin=_builtin),
    "triton._C.libtriton": SimpleNamespace(ir=SimpleNamespace(DESCRIPTOR_REDUCE_KIND=SimpleNamespace(ADD="ADD"))),
    "triton.experimental.gluon.nvidia.hopper": SimpleNamespace(TensorDescriptor=Tiles),
}


def run(
    text: str, inputs: dict[str, np.ndarray], dtype: str, pairs: tuple[int, int] | None, seed: int, **options: Any
) -> tuple[dict[str, np.ndarray], Counter[tuple[str, str]]]:
    """The outputs of a module's `run`, and the words moved, as `triton_interpreter.run`; `seed`: of the order."""
    CHANCE.seed(seed)
    return triton_interpreter.run(text, inputs, dtype, pairs, others=MODULES, **options)
