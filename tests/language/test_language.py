"""The language of schedules: what it refuses, with the line of the schedule that is at fault, and what it records.

In the schedules below the comment `here` marks the line that the message must name, `before` a line it refers to.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pebblesim.analysis.count import count
from pebblesim.api.derive import show
from pebblesim.core.errors import TraceError, UsageError
from pebblesim.language import Block, Machine, Tensor, exp, log, maximum, program as ir, rowmax, rowsum
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, Schedule, schedule

Function = Callable[..., None]


def registered(function: Function, problem: str = "matmul", **rules: Any) -> Schedule:
    return schedule(problem=problem, source="this test", **rules)(function)


def place(function: Function, mark: str) -> int:
    """The number of the line that ends in the comment `mark`."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + offset for offset, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")]
    return number


REFUSED: list[Any] = []


def refused(message: str, *marks: Any) -> Callable[[Function], Function]:
    """The function is a matmul schedule that must be refused, with that message."""

    def collect(function: Function) -> Function:
        REFUSED.append(pytest.param(function, message, id=function.__name__, marks=marks))
        return function

    return collect


# -- tensors that are kept apart for tiles ---------------------------------------------------------------------------


@refused("T has shape (⌈k/b⌉, m, n); its first index must be that of an open loop over the tiles of k by b.")
def a_part_of_no_tile(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    T = m.tensor("T", m.quotient(A.shape[1], b), A.shape[0], B.shape[1])
    for k in m.tiles(A.shape[1], b):
        m.write(T, m.compute(m.read(A[:, k]) @ m.read(B[k, :])))  # here


@refused("T has shape (⌈k/b⌉, m); its first index must be that of an open loop over the tiles of k by b.")
def a_part_by_a_loop_with_another_block(m: Machine, A: Tensor, B: Tensor, *, b: Block, c: Block) -> None:
    T = m.tensor("T", m.quotient(A.shape[1], b), A.shape[0])
    for k in m.tiles(A.shape[1], c):
        m.write(T[k, :], m.compute(rowsum(m.read(A[:, k]))))  # here


@refused("T has shape (⌈k/b⌉, m); its first index must be that of an open loop over the tiles of k by b.")
def a_part_by_a_tile_of_a_tile(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    T = m.tensor("T", m.quotient(A.shape[1], b), A.shape[0])
    for j in m.tiles(A.shape[1], b):
        for k in m.tiles(j, b):
            m.write(T[k, :], m.compute(rowsum(m.read(A[:, k]))))  # here


@refused("output C has shape (m, n), not (⌈k/b⌉, m, n).")
def an_output_kept_apart(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    m.tensor("C", m.quotient(A.shape[1], b), A.shape[0], B.shape[1])  # here


@refused("T is kept apart for tiles; write tiles to it, no constant.")
def a_constant_kept_apart(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    T = m.tensor("T", m.quotient(A.shape[1], b), A.shape[0])
    for k in m.tiles(A.shape[1], b):
        m.write(T[k, :], 0)  # here


@refused("quotient takes a whole dimension, such as Q.shape[0], and a block.")
def tiles_of_a_tile_kept_apart(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for k in m.tiles(A.shape[1], b):
        m.quotient(k, b)  # here


@refused("T[m] is already in the cache, since line {before}; use that tile or a part of it.")
def a_tile_kept_apart_read_twice(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    T = m.tensor("T", m.quotient(A.shape[1], b), A.shape[0])
    for k in m.tiles(A.shape[1], b):
        m.write(T[k, :], m.compute(rowsum(m.read(A[:, k]))))
    for k in m.tiles(A.shape[1], b):
        first = m.read(T[k, :])  # before
        m.compute(first + m.read(T[k, :]))  # here


# -- what is in cache ------------------------------------------------------------------------------------------------


@refused("A_i is not in cache: it left the cache at the end of the loop in line {before}.")
def a_tile_used_after_its_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    B_ = m.read(B)
    for i in m.tiles(A.shape[0], b):  # before
        A_i = m.read(A[i, :])
    m.compute(A_i @ B_)  # here


@refused("A_ is not in cache: it left the cache at the end of phase 'first'.")
def a_tile_used_after_its_phase(m: Machine, A: Tensor, B: Tensor) -> None:
    with m.phase("first"):
        A_ = m.read(A)
        m.read(B)
    with m.phase("second"):
        m.compute(exp(A_))  # here


@refused("A_ is not in cache: it was deleted in line {before}.")
def compute_on_a_deleted_tile(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_ = m.read(A), m.read(B)
    m.delete(A_)  # before
    m.compute(A_ @ B_)  # here


@refused("A_ is not in cache: it was deleted in line {before}.")
def compute_an_expression_whose_tile_was_deleted_since(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    wanted = exp(A_)
    m.delete(A_)  # before
    m.compute(wanted)  # here


@refused("A_ is not in cache: it was deleted in line {before}.")
def delete_twice(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    m.delete(A_)  # before
    m.delete(A_)  # here


@refused("C_ is not in cache: it was deleted in line {before}.")
def add_to_a_deleted_tile(m: Machine, A: Tensor, B: Tensor) -> None:
    C_ = m.zeros(A.shape[0], B.shape[1])
    A_, B_ = m.read(A), m.read(B)
    m.delete(C_)  # before
    C_ += A_ @ B_  # here


@refused("C_ was never computed: it has no value yet.")
def compute_on_zeros(m: Machine, A: Tensor, B: Tensor) -> None:
    C_ = m.zeros(A.shape[0], B.shape[1])
    m.read(A)
    m.compute(exp(C_))  # here


@refused("C_ was never computed: it has no value yet.")
def add_an_elementwise_expression_to_zeros(m: Machine, A: Tensor, B: Tensor) -> None:
    C_ = m.zeros(*A.shape)
    A_ = m.read(A)
    C_ += exp(A_)  # here


@refused("C_ was never computed: it has no value yet.")
def write_zeros(m: Machine, A: Tensor, B: Tensor) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    C_ = m.zeros(*C.shape)
    m.read(A)
    m.write(C, C_)  # here


# -- memory ----------------------------------------------------------------------------------------------------------


@refused("writes an expression that was not computed; use m.compute(...) to make a tile.")
def write_an_expression(m: Machine, A: Tensor, B: Tensor) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    m.write(C, m.read(A) @ m.read(B))  # here


@refused("writes an expression that was not computed; use m.compute(...) to make a tile.")
def write_a_number(m: Machine, A: Tensor, B: Tensor) -> None:
    m.write(m.tensor("C", A.shape[0], B.shape[1]), 1)  # here


@refused("reads S, which was never written.")
def read_what_nobody_wrote(m: Machine, A: Tensor, B: Tensor) -> None:
    S = m.tensor("S", *A.shape)
    m.read(S)  # here


@refused("writes A, which is an input.")
def write_an_input(m: Machine, A: Tensor, B: Tensor) -> None:
    m.write(A, m.read(A))  # here


@refused("output C is never written. The schedule writes c: is C misspelt?")  # here
def misspell_the_output(m: Machine, A: Tensor, B: Tensor) -> None:
    m.write(m.tensor("c", A.shape[0], B.shape[1]), m.compute(m.read(A) @ m.read(B)))


@refused("output C is never written.")  # here
def forget_the_output(m: Machine, A: Tensor, B: Tensor) -> None:
    m.tensor("C", A.shape[0], B.shape[1])


@refused("output C has shape (m, n), not (m, k).")
def declare_an_output_of_another_shape(m: Machine, A: Tensor, B: Tensor) -> None:
    m.tensor("C", *A.shape)  # here


@refused("tensor A exists already.")
def declare_a_tensor_twice(m: Machine, A: Tensor, B: Tensor) -> None:
    m.tensor("A", *A.shape)  # here


@refused("the shape of S must be one or two whole dimensions.")
def declare_a_tensor_of_a_tile(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        m.tensor("S", i, A.shape[1])  # here


@refused("expected a part of a tensor in memory, such as A1[i, k].")
def read_a_tile(m: Machine, A: Tensor, B: Tensor) -> None:
    m.read(m.read(A))  # here


# -- shapes ----------------------------------------------------------------------------------------------------------


@refused("shapes do not match: (m, k) @ (n, k).")
def multiply_what_does_not_fit(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(m.read(A) @ m.read(B).T)  # here


@refused("shapes do not match: (m) @ (m, k).")
def multiply_by_a_vector(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    v = m.compute(rowsum(A_))
    m.compute(v @ A_)  # here


@refused("shapes do not match: add of (m, k) and (k, n).")
def add_what_does_not_fit(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(m.read(A) + m.read(B))  # here


@refused("shapes do not match: div of (k, n) and (m).")
def divide_by_the_rows_of_another(m: Machine, A: Tensor, B: Tensor) -> None:
    v = m.compute(rowsum(m.read(A)))
    m.compute(m.read(B) / v)  # here


@refused("shapes do not match: max of (i, k) and (j, k).")
def two_tiles_of_one_dimension_are_not_the_same(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    rows, _ = A.shape
    for i in m.tiles(rows, b):
        A_i = m.read(A[i, :])
        for j in m.tiles(rows, b):
            A_j = m.read(A[j, :])
            m.compute(maximum(A_i, A_j))  # here


@refused("shapes do not match: (m, k) += (m, n).")
def add_a_product_of_another_shape(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_, S_ = m.read(A), m.read(B), m.zeros(*A.shape)
    S_ += A_ @ B_  # here


@refused("shapes do not match: (k, n) into (m, k).")
def assign_another_shape(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_ = m.read(A), m.read(B)
    A_[:] = exp(B_)  # here


@refused(
    "a tile of shape (m, k) does not fit C[m, n]; a whole tile must be written to the part of a tensor with the same "
    "indices."
)
def write_another_shape(m: Machine, A: Tensor, B: Tensor) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    m.write(C, m.read(A))  # here


@refused(
    "a tile of shape (k, m) does not fit T[k, m]; a whole tile must be written to the part of a tensor with the same "
    "indices."
)
def write_a_transpose(m: Machine, A: Tensor, B: Tensor) -> None:
    T = m.tensor("T", *A.shape[::-1])
    m.write(T, m.read(A).T)  # here


@refused("A has shape (m, k), but got 1 indices.")
def too_few_indices(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        m.read(A[i])  # here


@refused("A has shape (m, k); index it with loops over that dimension or with ':'.")
def the_index_of_another_dimension(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for j in m.tiles(B.shape[1], b):
        m.read(A[j, :])  # here


@refused("A has shape (m, k); index it with loops over that dimension or with ':'.")
def a_number_for_an_index(m: Machine, A: Tensor, B: Tensor) -> None:
    m.read(A[0, :])  # here


@refused("tile A_i has 2 dimensions; index it with loops over that dimension or with ':'.")
def the_index_of_another_tile(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        A_i = m.read(A[i, :])
        for j in m.tiles(A.shape[0], b):
            m.read(A[j, :])
            m.compute(exp(A_i[j, :]))  # here


# -- expressions -----------------------------------------------------------------------------------------------------


@refused("an expression is never computed; use m.compute(...) to make a tile.")
def an_unused_expression(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_ = m.read(A), m.read(B)
    C_ = m.compute(A_ @ B_)
    _unused = exp(C_)  # here
    m.write(m.tensor("C", A.shape[0], B.shape[1]), C_)


@refused("compute takes an expression such as a @ b or exp(x), and returns a new tile.")
def compute_a_tile(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(m.read(A))  # here


@refused("a product takes two tiles; compute its operands first.")
def a_product_of_expressions(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_ = m.read(A), m.read(B)
    m.compute(exp(A_) @ B_)  # here


@refused("a product or row sum must be computed before exp can use it.")
def exp_of_a_product(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_ = m.read(A), m.read(B)
    m.compute(exp(A_ @ B_))  # here


@refused("add takes tiles that are not transposed; only products accept a transpose.")
def a_transpose_in_a_sum(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    m.compute(A_.T + A_.T)  # here


@refused("mul takes tiles and expressions over tiles; use m.read(...) to read a tile.")
def a_number_in_an_expression(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(m.read(A) * 2)  # here


@refused("log takes tiles and expressions over tiles; use m.read(...) to read a tile.")
def a_tensor_in_an_expression(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(log(A))  # here


@refused("rowsum takes a tile or an elementwise expression with rows and columns.")
def the_row_sum_of_a_product(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(rowsum(m.read(A) @ m.read(B)))  # here


@refused("x[:] = ... takes an elementwise expression.")
def assign_a_product(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_, C_ = m.read(A), m.read(B), m.zeros(A.shape[0], B.shape[1])
    C_[:] = A_ @ B_  # here


@refused("x[:] = ... takes an elementwise expression.")
def assign_a_tile_that_was_just_added_to(m: Machine, A: Tensor, B: Tensor) -> None:
    A_, B_ = m.read(A), m.read(B)
    C_, other = m.compute(A_ @ B_), m.compute(A_ @ B_)
    C_ += A_ @ B_
    other[:] = C_  # here


@refused("only an expression over tiles can be assigned.")
def assign_a_number(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    A_[:] = 0  # here


@refused("+= takes a product, a row sum or an elementwise expression.")
def add_a_number(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    A_ += 1  # here


@refused("+= adds; for a running maximum use maximum(x, y).")
def add_a_row_maximum(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    top = m.compute(rowmax(A_))
    top += rowmax(A_)  # here


@refused("a tile cannot be a term of its own sum.")
def add_a_tile_to_itself(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    square = m.compute(A_ @ A_.T)
    square += square @ square  # here


# -- values that are not there ---------------------------------------------------------------------------------------

LOOKED = "a schedule is traced once for all sizes, so it cannot use the value of {}; write a separate loop instead."


@refused(LOOKED.format("an index"))
def if_on_an_index(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        if i:  # here
            m.read(A[i, :])


@refused(LOOKED.format("an index"))
def compare_indices(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        for j in m.tiles(A.shape[0], b):
            if i <= j:  # here
                m.read(A[i, :])


@refused(LOOKED.format("a block size"))
def compare_a_number_with_a_block(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    if b != 1:  # here
        m.read(A)


@refused(LOOKED.format("a block size"))
def a_block_as_a_number(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    int(b)  # here


@refused(LOOKED.format("a block size"))
def a_range_of_a_block(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for _ in range(b):  # here
        m.read(A)


@refused(LOOKED.format("a tile"))
def the_length_of_a_tile(m: Machine, A: Tensor, B: Tensor) -> None:
    len(m.read(A))  # here


@refused(LOOKED.format("a tile"))
def if_on_an_expression(m: Machine, A: Tensor, B: Tensor) -> None:
    A_ = m.read(A)
    if exp(A_) > A_:  # here
        m.delete(A_)


@refused(LOOKED.format("a tile"))
def iterate_over_a_tile(m: Machine, A: Tensor, B: Tensor) -> None:
    for _ in m.read(A):  # here
        pass


# -- structure -------------------------------------------------------------------------------------------------------

RUNS_TO_THE_END = "the loop in line {before} was left with break or return"


@refused(RUNS_TO_THE_END + "; a schedule runs every loop to its end.")
def break_in_a_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):  # before
        m.read(A[i, :])
        break
    m.read(B)  # here


@refused(RUNS_TO_THE_END + "; a schedule runs every loop to its end.")
def break_in_a_phase(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    with m.phase("first"):
        for i in m.tiles(A.shape[0], b):  # before
            m.read(A[i, :])
            break
    with m.phase("second"):  # here
        m.read(B)


@refused(RUNS_TO_THE_END + ".")  # here
def return_in_a_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):  # before
        m.read(A[i, :])
        return


@refused("a statement between phases; move it into a phase.")
def a_statement_between_phases(m: Machine, A: Tensor, B: Tensor) -> None:
    with m.phase("first"):
        m.read(A)
    m.read(A)  # here
    with m.phase("second"):
        m.read(B)


STARTS = "phase 'inner' starts inside {}; phases must be at the top level of a schedule, one after another."


@refused(STARTS.format("another phase or a loop"))
def a_phase_in_a_phase(m: Machine, A: Tensor, B: Tensor) -> None:
    with m.phase("outer"), m.phase("inner"):  # here
        m.read(A)


@refused(STARTS.format("another phase or a loop"))
def a_phase_in_a_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    with m.phase("outer"):
        for _ in m.tiles(A.shape[0], b):
            with m.phase("inner"):  # here
                m.read(A)


@refused(STARTS.format("statements that belong to no phase"))
def a_phase_after_statements(m: Machine, A: Tensor, B: Tensor) -> None:
    m.read(A)
    with m.phase("inner"):  # here
        m.read(B)


@refused("A_ was created outside this loop, so the loop cannot delete it in every iteration.")
def delete_a_tile_in_every_iteration(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    A_ = m.read(A)
    for _ in m.tiles(A.shape[0], b):
        m.read(B)
        m.delete(A_)  # here


@refused("a part of A_ by index i is used after its loop.")
def a_part_of_a_tile_after_the_loop_of_its_index(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    A_, B_ = m.read(A), m.read(B)
    for i in m.tiles(A.shape[0], b):
        part = A_[i, :]
    m.compute(part @ B_)  # here


@refused("phase 'C' exists already; give each phase a different name.")
def two_phases_of_one_name(m: Machine, A: Tensor, B: Tensor) -> None:
    with m.phase("C"):
        m.read(A)
    with m.phase("C"):  # here
        m.read(B)


@refused("a shape is (rows,) or (rows, columns); got 3 indices.")
def zeros_of_three_dimensions(m: Machine, A: Tensor, B: Tensor) -> None:
    m.zeros(*A.shape, B.shape[1])  # here


@refused("tile A_ has 2 dimensions; index it with loops over that dimension or with ':'.")
def the_rows_of_a_transpose_are_columns(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    A_, B_ = m.read(A), m.read(B)
    for i in m.tiles(A.shape[0], b):
        m.compute(A_.T[i, :] @ B_)  # here


@refused("index i is used after its loop.")
def an_index_after_its_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        m.read(A[i, :])
    m.read(A[i, :])  # here


@refused("a shape must consist of dimensions and indices of open loops.")
def zeros_of_an_index_after_its_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        m.read(A[i, :])
    m.zeros(i)  # here


@refused("tiles takes a dimension, or the index of an open loop.")
def tiles_of_an_index_after_its_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        m.read(A[i, :])
    for _ in m.tiles(i, b):  # here
        m.read(A)


@refused("tiles takes a dimension, or the index of an open loop.")
def tiles_of_a_number(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for _ in m.tiles(8, b):  # here
        m.read(A)


@refused("a block must be a block size of the schedule or a positive number.")
def tiles_of_no_index(m: Machine, A: Tensor, B: Tensor) -> None:
    for _ in m.tiles(A.shape[0], 0):  # here
        m.read(A)


# -- loops ------------------------------------------------------------------------------------------------------------


def test_loops_within_comprehensions_and_helpers() -> None:
    def helped(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        def read(T: Tensor) -> None:
            for i in m.tiles(T.shape[0], b):
                m.read(T[i, :])

        [read(T) for T in (A, B)]
        m.write(m.tensor("C", A.shape[0], B.shape[1]), 0)

    assert (
        sum(t.reads for t in count(registered(helped).program, {"m": 4, "k": 2, "n": 3, "b": 2}).by_tensor.values())
        == 14
    )


# -- anything else ---------------------------------------------------------------------------------------------------


@refused("ZeroDivisionError: integer division or modulo by zero")
def an_exception_of_its_own(m: Machine, A: Tensor, B: Tensor) -> None:
    m.read(A)
    divmod(1, 0)  # here


def _fails(m: Machine, A: Tensor) -> None:
    m.read(A)[0, 0]


@refused("'Aa' is not defined; did you mean 'A'? The schedule has the inputs A, B and the block b.")
def an_input_that_is_misspelt(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    for i in m.tiles(A.shape[0], b):
        m.read(Aa[i, :])  # type: ignore[name-defined] # noqa: F821 # here


@refused("'Tile_of_a' is not defined; did you mean 'tile_of_A'? The schedule has the input A.")
def a_variable_in_other_case(m: Machine, A: Tensor) -> None:
    tile_of_A = m.read(A)
    m.delete(Tile_of_a)  # type: ignore[name-defined] # noqa: F821 # here
    m.delete(tile_of_A)


@refused("'A' is not defined; the schedule has no inputs.")
def an_input_that_is_not_named(m: Machine) -> None:
    m.read(A)  # type: ignore[name-defined] # noqa: F821 # here


@refused("'Machine' object has no attribute 'raed'; did you mean 'read'?")
def a_primitive_that_is_misspelt(m: Machine, A: Tensor) -> None:
    m.raed(A)  # type: ignore[attr-defined] # here


@refused("'Tile' object has no attribute 'largest'.")
def a_method_that_is_unlike_any(m: Machine, A: Tensor) -> None:
    m.read(A).largest()  # type: ignore[attr-defined] # here


@refused("'a' is not defined; did you mean 'A'? The schedule has the inputs A, B.")
def an_input_in_other_case(m: Machine, A: Tensor, B: Tensor) -> None:
    m.read(a)  # type: ignore[name-defined] # noqa: F821 # here


@refused("'sigmoid' is not defined; import it: from pebblesim.language import sigmoid.")
def a_function_that_is_not_imported(m: Machine, A: Tensor) -> None:
    m.compute(sigmoid(m.read(A)))  # type: ignore[name-defined] # noqa: F821 # here


@refused("'C' is not defined; the schedule has the inputs A, B and the block b.")
def an_exception_inside_phase_and_loop(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    with m.phase("first"):
        for i in m.tiles(A.shape[0], b):
            m.read(C[i, :])  # type: ignore[name-defined] # noqa: F821 # here


@refused("exp takes tiles and expressions over tiles; use m.read(...) to read a tile.")
def the_exponential_of_what_was_not_read(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(exp(A[:]))  # here


@refused("computes with data in memory; use m.read(...) to bring a tile into the cache.")
def a_product_of_what_was_not_read(m: Machine, A: Tensor, B: Tensor) -> None:
    m.compute(A[:] @ B[:])  # here


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_the_line_at_fault_is_named_and_what_is_wrong_with_it(function: Function, message: str) -> None:
    with pytest.raises(TraceError) as refusal:
        _ = registered(function).program
    if "{before}" in message:
        message = message.format(before=place(function, "before"))
    assert str(refusal.value) == f"{__file__}:{place(function, 'here')}: {message}"


def test_a_fault_in_a_helper_is_named_where_it_is() -> None:
    def helped(m: Machine, A: Tensor, B: Tensor) -> None:
        _fails(m, A)

    with pytest.raises(TraceError) as refusal:
        _ = registered(helped).program
    line = inspect.getsourcelines(_fails)[1] + 1
    assert str(refusal.value).startswith(f"{__file__}:{line}: ")


# -- the decorator ---------------------------------------------------------------------------------------------------


def plain(m: Machine, A: Tensor, B: Tensor, *, a: Block, b: Block) -> None:
    """Tiles of C, whole rows against whole columns.

    More is said here.
    """
    (rows, _), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    for i in m.tiles(rows, a, independent=True):
        A_i = m.read(A[i, :])
        for j in m.tiles(columns, b):
            B_j = m.read(B[:, j])
            C_ij = m.compute(A_i @ B_j)
            m.write(C[i, j], C_ij)


ONCE = "schedule 'plain': a rule must name each of its blocks once: a, b."


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"paper": {"c": "M"}}, "no block of schedule 'plain' is called 'c'; known: a, b."),
        ({"paper": {"a": "M"}}, ONCE),
        ({"closed": {"c": "M"}}, "no block of schedule 'plain' is called 'c'; known: a, b."),
        ({"closed": {"b": "M"}}, ONCE),
        ({"fit": ["a", "B"]}, "no block of schedule 'plain' is called 'B'; known: a, b."),
        ({"fit": ["a"]}, ONCE),
        ({"fit": [("a", "b"), "a"]}, ONCE),
        ({"fit": []}, ONCE),
        ({"io": "m*n*ceiling(k/c)"}, "no size in the I/O of schedule 'plain' is called 'c'; known: a, b, k, m, n."),
        ({"problem": "matmull"}, "no problem is called 'matmull'; did you mean 'matmul'?"),
        ({"problem": "forward"}, "no input of problem 'forward' is called 'A'; known: K, Q, V."),
    ],
)
def test_what_the_decorator_refuses(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        registered(plain, **rules)
    assert str(refusal.value) == message
    assert "plain" not in SCHEDULES


def test_the_decorator_reads_the_signature() -> None:
    made = registered(plain, paper={"b": "M", "a": "M"}, fit=[("b", "a")])
    assert SCHEDULES["plain"] is made
    assert (made.inputs, made.blocks, made.fit) == (("A", "B"), ("a", "b"), (("b", "a"),))
    assert made.summary == "Tiles of C, whole rows against whole columns."
    assert registered(plain).fit == (("a",), ("b",))
    assert registered(plain, name="other").name == "other"


def test_names_with_dashes() -> None:
    def two_words(m: Machine) -> None: ...

    assert registered(two_words).name == "two-words"


def test_a_schedule_is_traced_once() -> None:
    traced = []

    def counted(m: Machine, A: Tensor, B: Tensor) -> None:
        traced.append(m)
        m.write(m.tensor("C", A.shape[0], B.shape[1]), m.compute(m.read(A) @ m.read(B)))

    made = registered(counted)
    assert not traced
    program, runs = made.program, len(traced)
    assert made.program is program
    assert isinstance(traced[0], Machine) and not any(isinstance(m, Machine) for m in traced[1:])
    assert len(traced) == runs


# -- what a trace holds ----------------------------------------------------------------------------------------------


def outline(body: list[ir.Node]) -> list[Any]:
    """A body in short: a loop as (its name, its body), a deletion as the tile's name with - or, if implied, ~."""
    lines: list[Any] = []
    for node in body:
        match node:
            case ir.Loop():
                lines.append((node.range.name, outline(node.body)))
            case ir.Delete():
                lines.append(("~" if node.implied else "-") + node.tile.name)
            case ir.Compute():
                sign = {"new": "=", "assign": ":=", "add": "+="}[node.mode]
                lines.append(f"{node.target.tile.name} {sign}")
            case ir.Write():
                lines.append(f"write {node.tile.name}")
            case ir.Read() | ir.Zeros():
                lines.append(node.tile.name)
    return lines


def test_tiles_and_loops_are_named_as_in_the_schedule_and_leave_at_the_end_of_their_loop() -> None:
    program = registered(plain).program
    assert [phase.name for phase in program.phases] == ["plain"]
    assert (program.blocks, program.inputs, program.outputs) == (("a", "b"), ("A", "B"), ("C",))
    inner = ["B_j", "C_ij =", "write C_ij", "~B_j", "~C_ij"]
    assert outline(program.phases[0].body) == [("i", ["A_i", ("j", inner), "~A_i"])]
    loops = [node for node in ir.walk(program.phases[0].body) if isinstance(node, ir.Loop)]
    assert [(loop.range.dim, loop.range.block, loop.independent) for loop in loops] == [
        ("m", "a", True),
        ("n", "b", False),
    ]


def test_every_node_knows_its_line() -> None:
    lines, first = inspect.getsourcelines(plain)
    for node in ir.walk(registered(plain).program.phases[0].body):
        if not isinstance(node, ir.Delete):
            text = lines[node.line - first]
            assert {ir.Loop: "for", ir.Read: "m.read", ir.Compute: "m.compute", ir.Write: "m.write"}[type(node)] in text


def test_phases_and_deletions() -> None:
    def two(m: Machine, A: Tensor, B: Tensor) -> None:
        (rows, terms), (_, columns) = A.shape, B.shape
        S, C = m.tensor("S", rows, terms), m.tensor("C", rows, columns)
        with m.phase("S"):
            A_ = m.read(A)
            S_ = m.compute(exp(A_))
            m.delete(A_)
            m.write(S, S_)
        with m.phase("C"):
            S_, B_ = m.read(S), m.read(B)
            S_[:] = log(S_)
            C_ = m.zeros(rows, columns)
            C_ += S_ @ B_
            m.write(C, C_)

    program = registered(two).program
    assert {phase.name: outline(phase.body) for phase in program.phases} == {
        "S": ["A_", "S_ =", "-A_", "write S_", "~S_"],
        "C": ["S_", "B_", "S_ :=", "C_", "C_ +=", "write C_", "~S_", "~B_", "~C_"],
    }
    inputs = program_inputs(m=4, k=3, n=5)
    assert numbers(program, {"m": 4, "k": 3, "n": 5}, inputs)["C"] == pytest.approx(inputs["A"] @ inputs["B"])


def tiles_of_tiles(m: Machine, A: Tensor, B: Tensor, *, a: Block, b: Block) -> None:
    """Columns of a tile get their terms one tile of columns at a time, in place."""
    (rows, terms), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    for i in m.tiles(rows, a):
        C_i = m.zeros(i, columns)
        for k in m.tiles(terms, a):
            A_ik = m.read(A[i, k])
            for c in m.tiles(columns, b):
                C_i[:, c] += A_ik @ m.read(B[k, c])
        for r in m.tiles(i, b):
            C_i[r, :] = C_i[r, :] + C_i[r, :]
            C_i[r, :] += C_i[r, :] - C_i[r, :]
        m.write(C[i, :], C_i)


def program_inputs(**dims: int) -> dict[str, Any]:
    return registered(plain).problem.random_inputs(dims)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 3), (3, 2), (5, 2), (9, 9)])
def test_parts_of_a_tile_are_updated_in_place(a: int, b: int) -> None:
    program = registered(tiles_of_tiles).program
    sizes = {"m": 7, "k": 5, "n": 4, "a": a, "b": b}
    inputs = program_inputs(m=7, k=5, n=4)
    assert numbers(program, sizes, inputs)["C"] == pytest.approx(2 * inputs["A"] @ inputs["B"])
    assert count(program, sizes).by_tensor["C"].io == 7 * 4
    body = outline(program.phases[0].body)
    in_place = ("r", ["C_i :=", "C_i :="])
    assert body == [("i", ["C_i", ("k", ["A_ik", ("c", ["", "C_i +=", "~"]), "~A_ik"]), in_place, "write C_i", "~C_i"])]


def test_a_part_of_a_part() -> None:
    program = registered(tiles_of_tiles).program
    (update,) = [
        node for node in ir.walk(program.phases[0].body) if isinstance(node, ir.Compute) and node.mode == "add"
    ]
    assert [rng.name for rng in update.target.ranges] == ["i", "c"]
    assert [rng.name for rng in update.target.tile.ranges] == ["i", "n"]
    (rows,) = [n.range for n in ir.walk(program.phases[0].body) if isinstance(n, ir.Loop) and n.range.name == "r"]
    assert rows.parent is update.target.ranges[0]
    assert rows.dim == "m"
    assert "for r in tiles of i by b:" in show(registered(tiles_of_tiles))


def test_a_part_of_a_transpose_is_transposed() -> None:
    def transposed(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        (rows, _), (_, columns) = A.shape, B.shape
        A_, B_, C_ = m.read(A), m.read(B), m.zeros(rows, columns)
        for i in m.tiles(rows, b):
            A_Ti = A_.T[:, i]
            C_[i, :] += A_Ti.T @ B_
        m.write(m.tensor("C", rows, columns), C_)

    inputs = program_inputs(m=7, k=5, n=4)
    outputs = numbers(registered(transposed).program, {"m": 7, "k": 5, "n": 4, "b": 3}, inputs)
    assert outputs["C"] == pytest.approx(inputs["A"] @ inputs["B"])


def test_a_loop_whose_index_has_no_name_is_named_after_its_dimension() -> None:
    def nameless(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        C = m.tensor("C", A.shape[0], B.shape[1])

        def of_rows(*index: Any) -> None:
            A_i, B_ = m.read(A[index[0], :]), m.read(B)
            m.write(C[index[0], :], m.compute(A_i @ B_))

        for _ in map(of_rows, m.tiles(A.shape[0], b)):
            pass

    assert isinstance(registered(nameless).program.phases[0].body[0], ir.Loop)
    assert registered(nameless).program.phases[0].body[0].range.name


def test_names_that_are_taken() -> None:
    with pytest.raises(UsageError, match="a block cannot be called 'n', the name of a size"):

        @schedule(problem="matmul", source="test")
        def own(m: Machine, A: Tensor, B: Tensor, *, n: Block) -> None: ...

    with pytest.raises(UsageError, match="there is a schedule 'matmul-tiled' already"):

        @schedule(name="matmul-tiled", problem="matmul", source="test")
        def other(m: Machine, A: Tensor, B: Tensor) -> None: ...


def reads_a_part_of_what_is_there(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    A_ = m.read(A)
    B_ = m.read(B)
    C_ = m.zeros(*C.shape)
    for k in m.tiles(A.shape[1], b):
        C_ += m.read(A[:, k]) @ B_[k, :]
    m.write(C, C_)
    m.delete(A_)


def test_words_in_cache_are_not_read_again() -> None:
    first = inspect.getsourcelines(reads_a_part_of_what_is_there)[1]
    with pytest.raises(TraceError, match=f":{first + 6}: A.m, k. is already in the cache, since line {first + 2};"):
        _ = registered(reads_a_part_of_what_is_there).program


def test_words_that_left_or_changed_are_read_again() -> None:
    def again(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        C = m.tensor("C", A.shape[0], B.shape[1])
        A_ = m.read(A)
        A_[:] = exp(A_)  # other words now
        m.delete(m.read(A))
        m.write(C, m.compute(m.read(A) @ m.read(B)))

    assert len(registered(again).program.phases) == 1


def test_adding_to_memory_is_reading_adding_and_writing() -> None:
    def added(m: Machine, A: Tensor, B: Tensor, *, a: Block, c: Block) -> None:
        (rows, terms), columns = A.shape, B.shape[1]
        C = m.tensor("C", rows, columns)
        m.write(C, 0)
        for k in m.tiles(terms, c):
            for i in m.tiles(rows, a):
                A_ik, B_k = m.read(A[i, k]), m.read(B[k, :])
                m.add(C[i, :], A_ik @ B_k)

    def written_out(m: Machine, A: Tensor, B: Tensor, *, a: Block, c: Block) -> None:
        (rows, terms), columns = A.shape, B.shape[1]
        C = m.tensor("C", rows, columns)
        m.write(C, 0)
        for k in m.tiles(terms, c):
            for i in m.tiles(rows, a):
                A_ik, B_k = m.read(A[i, k]), m.read(B[k, :])
                product = A_ik @ B_k
                C_added = m.read(C[i, :])
                C_added += product
                m.write(C[i, :], C_added)
                m.delete(C_added)

    one, other = registered(added, name="added"), registered(written_out, name="written-out")
    assert show(one).split("\n")[1:] == show(other).split("\n")[1:]
    counted = count(one.program, {"m": 7, "k": 9, "n": 5, "a": 3, "c": 4})
    passes = 3  # over the terms, each reads and writes all of C
    assert (counted.by_tensor["C"].reads, counted.by_tensor["C"].writes) == (passes * 35, passes * 35 + 35)
