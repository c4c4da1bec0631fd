"""Sizes as people write them, and printed block rules; sympy's rational arithmetic is the oracle."""

import math
from fractions import Fraction

import pytest
import sympy
from hypothesis import given, strategies as st

from pebblesim.core.arithmetic import function_of, names_in
from pebblesim.core.errors import UsageError
from pebblesim.core.notation import parse
from pebblesim.core.sizes import BYTES, evaluate_rule, parse_bytes, parse_size, parse_words, several, whole
from pebblesim.language.masks import from_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 4096 ", 4096),
        ("007", 7),
        ("64k", 65536),
        ("64K", 65536),
        ("1M", 2**20),
        ("3G", 3 * 2**30),
        ("2T", 2**41),
        ("2^20", 2**20),
        ("10^3", 1000),
        ("5^0", 1),
        ("1_000_000", 10**6),
        ("1,048,576", 2**20),
        ("64,128", 64128),
        ("1,024k", 2**20),
    ],
)
def test_sizes_that_are_understood(text: str, value: int) -> None:
    assert parse_size("n", text) == value
    assert parse_words(text, None) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "0", "-1", "+1", "1.5", "1e6", "k", "64kk", "64 k", "64P", "2^", "^2", "2^-1", "2^1.5", "2^20k"),
        *("1" * 5000, "1__0", "_1", "1_", "1_000,000", "٣", "2^" + "1" * 5000),
        *("0k", "0^0", "0x10", "n", "nan", "inf", "2**3", "2^2^2", "2^100000", "1/2", "½", "²"),
    ],
)
def test_sizes_that_are_not(text: str) -> None:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    message = f"n = {shown!r} was given; n must be a whole number, 1 or more, such as 4096, 64k, 1M or 2^20."
    with pytest.raises(UsageError) as refusal:
        parse_size("n", text)
    assert str(refusal.value) == message


@pytest.mark.parametrize("text", ["1,0", "1,024,", "1,0240", "10,24", "1,024,00", ",1", "1,,024", "1,2k"])
def test_commas_group_thousands_or_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"n = .* was given; n must be a whole number"):
        parse_size("n", text)
    if text.strip(",") == text and ",," not in text:
        with pytest.raises(UsageError, match=r"commas group thousands, as in 4,096, and do not separate sizes\.$"):
            parse_size("n", text)


def test_in_a_list_commas_separate() -> None:
    assert several("n", "64,128") == (64, 128)
    assert several("n", "16, 384") == (16, 384)
    for text in ("4,096", "1k,4,096:8,192:x2", "1,024"):
        with pytest.raises(UsageError, match="here commas separate sizes, and '0"):
            several("n", text)
    assert from_text("lengths:3,5").queries == (3, 5)
    with pytest.raises(UsageError, match="here commas separate sizes, and '024' is not a size; write 4096, not 4,096"):
        from_text("lengths:1,024")


@pytest.mark.parametrize("text", ["1.1MiB", "0.3B", "1.0001KiB", "2.5B"])
def test_a_part_of_a_byte_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a whole number of bytes; write e\.g\. \d+B\.$"):
        parse_bytes("M", text)


def test_bytes_may_be_grouped_too() -> None:
    assert parse_bytes("M", "1,024KiB") == parse_bytes("M", "1024KiB") == 2**20
    for text in ("10,24KiB", "1" * 5000 + "B"):
        with pytest.raises(UsageError, match="is not a size in bytes"):
            parse_bytes("M", text)


@given(value=st.integers(1, 2**70), at=st.integers(0, 3))
def test_suffixes_are_powers_of_1024(value: int, at: int) -> None:
    assert parse_size("n", f"{value}{['', 'k', 'M', 'G'][at]}") == value * 1024**at
    assert parse_size("n", f"{value:,}") == parse_size("n", f"{value:_}") == value


@pytest.mark.parametrize(
    ("text", "dtype", "words"),
    [
        ("192KiB", "float32", 49152),
        ("192 KiB", "bfloat16", 98304),
        ("192KiB", "float64", 24576),
        ("1MiB", "float8", 2**20),
        ("1TiB", "float64", 2**37),
        ("2GiB", "float16", 2**30),
        ("64B", "float32", 16),
        ("67B", "float32", 16),  # a part of a word holds no pebble
        ("1.5MiB", "float32", 393216),
        ("0.5KiB", "float64", 64),
    ],
)
def test_bytes_become_words(text: str, dtype: str, words: int) -> None:
    assert parse_words(text, dtype) == words


@given(size=st.integers(1, 10**9), dtype=st.sampled_from(sorted(BYTES)), at=st.integers(0, 3))
def test_words_fit_into_the_bytes_and_one_more_does_not(size: int, dtype: str, at: int) -> None:
    size += 8
    words = parse_words(f"{size}{['', 'Ki', 'Mi', 'Gi'][at]}B", dtype)
    assert words * BYTES[dtype] <= size * 1024**at < (words + 1) * BYTES[dtype]


@pytest.mark.parametrize(
    ("text", "dtype", "says"),
    [
        ("192KiB", None, "is in bytes; give its data type with --dtype, one of float64, float32, "),
        ("B", None, "is not a size in bytes; write e.g. 192KiB"),
        ("KiB", "float32", "is not a size in bytes"),
        ("64kB", "float32", "is not a size in bytes"),
        ("48KB", None, "is not a size in bytes"),
        ("-1KiB", "float32", "is not a size in bytes"),
        ("0B", "float8", "M = '0B' is less than one word of type float8, which takes 1 bytes."),
        ("7B", "float64", "M = '7B' is less than one word of type float64, which takes 8 bytes."),
    ],
)
def test_words_that_are_refused(text: str, dtype: str | None, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_words(text, dtype)
    assert str(refusal.value).startswith("M = ")
    assert says in str(refusal.value)


def test_words_need_no_data_type_and_an_unknown_one_is_refused() -> None:
    assert parse_words("16384", "float32") == 16384
    with pytest.raises(UsageError, match="no data type is called 'float31'; did you mean 'float32'"):
        parse_words("192KiB", "float31")


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, 2.5])
def test_no_whole_number(value: object) -> None:
    with pytest.raises(UsageError, match=r"d = .* was given; d must be a whole number, 1 or more\."):
        whole("d", value)


def test_whole_numbers_of_any_kind() -> None:
    numpy = pytest.importorskip("numpy")
    assert whole("d", 2**100) == 2**100
    made = whole("d", numpy.int32(7))
    assert made == 7
    assert type(made) is int


POSITIVE = st.integers(1, 10**9)


def exact(text: str, values: dict[str, int]) -> int:
    """The value that sympy gives a rule; it must come out whole."""
    result = sympy.sympify(text).subs({sympy.Symbol(name): sympy.Integer(value) for name, value in values.items()})
    assert result.is_Integer
    return int(result)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "rule",
    [
        "floor(sqrt(M/4))",
        "floor(sqrt(M/3))",
        "ceiling(sqrt(M/7))",
        "floor(sqrt(M + 1)) - 1",
        "ceiling(M/(4*d))",
        "floor(M/(4*d))",
        "Min(ceiling(M/(4*d)), d)",
        "Max(floor(M/d - 2*d), 1)",
        "floor((M - d)/(3*d + 1)) + ceiling(d/2)",
        "Min(floor(sqrt(M/2)), d, n)",
        "floor(-M/d)",
        "M",
        "2**3*d",
    ],
)
@given(M=POSITIVE, d=POSITIVE, n=POSITIVE)
def test_rules_are_exact(rule: str, M: int, d: int, n: int) -> None:
    values = {"M": M, "d": d, "n": n}
    assert evaluate_rule(rule, values) == exact(rule, values)


@given(root=st.integers(1, 10**40), parts=st.sampled_from([3, 4, 5]), off=st.integers(-1, 1))
def test_roots_are_exact_where_floats_are_not(root: int, parts: int, off: int) -> None:
    M = parts * root * root + off
    below = math.isqrt(M // parts)
    above = below if parts * below * below == M else below + 1
    assert evaluate_rule(f"floor(sqrt(M/{parts}))", {"M": M}) == below
    assert evaluate_rule(f"ceiling(sqrt(M/{parts}))", {"M": M}) == above


def test_a_rule_is_no_program() -> None:
    with pytest.raises(NameError):
        evaluate_rule("open('x')", {"M": 1})
    with pytest.raises(NameError):
        evaluate_rule("floor(m)", {"M": 1})


@pytest.mark.parametrize(
    "text", ["n.real", "[n for n in (1,)]", "n if n else 1", "n < 2", "'n'", "n +", "().__class__"]
)
def test_an_expression_is_no_program_in_any_arithmetic(text: str) -> None:
    """Nor does sympy ever see the text of a user, which it would run."""
    with pytest.raises((SyntaxError, NameError, TypeError, ValueError)):
        evaluate_rule(text, {"n": 1})
    with pytest.raises(UsageError, match="is not a valid expression in"):
        parse(text)


@given(M=st.integers(1, 10**9), d=st.integers(1, 10**6))
def test_numbers_in_a_text_are_those_of_the_arithmetic(M: int, d: int) -> None:
    """One half is neither 0 nor a float, and one third is exact."""
    text = "M/2 + d*1/3 - 7/6*(-d)**3"
    value = Fraction(M, 2) + Fraction(d, 3) + Fraction(7, 6) * d**3
    assert function_of(text, ["M", "d"], {"number": Fraction})(M, d) == value
    assert parse(text).subs({"M": M, "d": d}) == value
    assert names_in(text) == {"M", "d"}
