"""Parse sizes as people write them, and evaluate the block rules of papers to exact integers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import isqrt
from operator import index
from typing import Any

from pebblesim.core.arithmetic import Arithmetic, function_of
from pebblesim.core.errors import UnknownName, UsageError, as_given

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
"""Bytes in a word of each data type."""

SHORT = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
"""Short names of the data types."""

MOST_SIZES = 10_000_000
"""Most sizes in one range."""

LARGEST = 2**256
"""The largest size: far beyond any machine, while ratios of counts still fit into a float."""


def quantity(amount: int, noun: str) -> str:
    """A number of things: "1 word", "2,048 words"."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"


def counted(size: Any) -> str:
    """A size as text, 4,096; in a graph that is made for all sizes, the name that it has there."""
    text = f"{size}"  # a symbol takes no format
    return f"{int(text):,}" if text.isdecimal() else text


def heads_on(heads: int, kv_heads: int | None) -> str:
    """Return numbers of heads as text: 1 head, 32 heads, 32 heads (8 KV heads)."""
    return quantity(heads, "head") + (f" ({quantity(kv_heads, 'KV head')})" if kv_heads not in (None, heads) else "")


DTYPE_ON_MACHINES = "float16"
"""The type of words on a machine of several memories for which none is given: 16 bits, as kernels have."""


def listed(sizes: Mapping[str, int]) -> str:
    """Return sizes as a line of text: n = 4,096, d = 64."""
    return ", ".join(f"{name} = {size:,}" for name, size in sizes.items())


def assigned(sizes: Mapping[str, int]) -> str:
    """Return sizes as they are given to a function or an option: B_r=128, B_c=64."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def tile_starts(length: int, *blocks: int) -> list[int]:
    """Return where tiles start: of the first block's size, each cut into tiles of the second block's size, and so on.

    >>> tile_starts(10, 5, 2)
    [0, 2, 4, 5, 7, 9]
    """
    if not blocks:
        return [0]
    return [
        first + start
        for first in range(0, length, blocks[0])
        for start in tile_starts(min(blocks[0], length - first), *blocks[1:])
    ]


def whole(what: str, value: Any) -> int:
    """Return `value` if it is a whole number, 1 or more.

    Raises:
        UsageError: it is not; the message calls it `what`.
    """
    number = _at_least(what, value, 1)
    if number > LARGEST:
        raise UsageError(f"{what} is larger than 2^256; sizes go up to there.")
    return number


def whole_or_zero(what: str, value: Any) -> int:
    """Return `value` if it is a whole number, 0 or more, such as the seed of random numbers.

    Raises:
        UsageError: it is not.
    """
    return _at_least(what, value, 0)


def as_whole(value: Any) -> int | None:
    """Return a whole number of any type as Python's; None for what is none, such as a flag or an array.

    >>> import numpy as np
    >>> as_whole(np.int64(4)), as_whole(4.0), as_whole(True)
    (4, None, None)
    """
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def _at_least(what: str, value: Any, least: int) -> int:
    number = as_whole(value)
    if number is None or number < least:
        raise UsageError(f"{what} = {as_given(value)} was given; {what} must be a whole number, {least} or more.")
    return number


def whole_groups(heads: int, kv_heads: Any) -> None:
    """Check that all KV heads serve equally many query heads.

    Raises:
        UsageError: kv_heads is no whole number, or does not divide the number of heads.
    """
    if heads % whole("kv_heads", kv_heads):
        near = max(1, round(heads / kv_heads)) * kv_heads
        raise UsageError(
            f"{heads} heads cannot share {kv_heads} KV heads evenly; the number of heads must be a "
            f"multiple of the KV heads, and the nearest is {near}."
        )


_NUMBER = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\^([0-9]{1,4})|([kKMGT]))?")
"""Commas group thousands, as in 1,048,576; underscores stand between any digits."""

MOST_LETTERS = 1000
"""A longer text is not a size."""


def parse_size(what: str, text: str) -> int:
    """Parse a number such as 4096, 4,096, 64k, 1M or 2^20 (k, M, G, T are powers of 1024).

    Raises:
        UsageError: the text is not such a number, or the number is less than 1.
    """
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= MOST_LETTERS else None
    base = int(re.sub("[,_]", "", match[1])) if match else 0
    if not match or base < 1 or int(match[2] or 0) > 4096:
        shown = text if len(text) <= 60 else f"{text[:60]}…"
        why = f"{what} = {shown!r} was given; {what} must be a whole number, 1 or more, such as 4096, 64k, 1M or 2^20"
        commas = re.fullmatch(r"\s*[0-9,]*[0-9],[0-9][0-9,]*[kKMGT]?\s*", text)
        raise UsageError(
            f"{why}; commas group thousands, as in 4,096, and do not separate sizes." if commas else f"{why}."
        )
    power, suffix = match[2], match[3]
    return whole(what, base ** int(power) if power else base * 1024 ** (" KMGT".index(suffix.upper()) if suffix else 0))


def separated(what: str, text: str) -> list[str]:
    """Return the parts of a text between commas, where commas separate sizes.

    Raises:
        UsageError: a part begins with a 0 that another digit follows, so that a comma was meant to group thousands.
    """
    parts = [part.strip() for part in text.split(",")]
    if grouped := next((part for part in parts if re.match("0[0-9]", part)), None):
        raise UsageError(
            f"{what} = {text!r} was given; here commas separate sizes, and {grouped!r} is not a size; write 4096, not "
            "4,096."
        )
    return parts


def check_type_is_used(text: str, dtype: str | None) -> None:
    """Check that a data type goes with M in bytes, in at least one of several sizes.

    Raises:
        UsageError: all of them are in words, or there is no such type.
    """
    if dtype is not None and bytes_of(dtype) and "B" not in text:
        raise UsageError(
            f"M = {text!r} is in words, and dtype {dtype} changes nothing here; leave --dtype out, or give M in bytes."
        )


def parse_words(text: str, dtype: str | None) -> int:
    """Parse M in words, from a number or from a size in bytes such as 192KiB together with a data type.

    Args:
        text: the size.
        dtype: type of a word; None if it was not given.

    Raises:
        UsageError: the text is neither, or is in bytes without a data type.
    """
    if not text.strip().endswith("B"):
        return parse_size("M", text)
    if dtype is None:
        parse_bytes("M", text)
        raise UsageError(f"M = {text!r} is in bytes; give its data type with --dtype, one of {', '.join(BYTES)}.")
    width, size = bytes_of(dtype), parse_bytes("M", text)
    if size < width:
        raise UsageError(f"M = {text!r} is less than one word of type {dtype}, which takes {width} bytes.")
    return whole("M", size // width)


def parse_bytes(what: str, text: str) -> int:
    """Parse a size in whole bytes, such as 192KiB, 1.5MiB or 32B.

    Raises:
        UsageError: the text is not such a size.
    """
    number = r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(\.[0-9]+)?"
    match = re.fullmatch(rf"{number}\s*([KMGT]i)?B", text.strip()) if len(text) <= MOST_LETTERS else None
    if not match:
        raise UsageError(f"{what} = {text[:60]!r} is not a size in bytes; write e.g. 192KiB, 1.5MiB or 4096B.")
    figure = Fraction(match[1].replace(",", "") + (match[2] or ""))
    size = figure * 1024 ** (" KMGT".index(match[3][0]) if match[3] else 0)
    if size.denominator > 1:
        raise UsageError(f"{what} = {text!r} is not a whole number of bytes; write e.g. {int(size)}B.")
    return int(size)


def several(what: str, text: str, one: Callable[[str], int] | None = None) -> tuple[int, ...]:
    """Parse a list of sizes such as 64,128; ranges such as 256:1M:x2 (each twice the previous one) and 64:512:+64 may
    be mixed in.

    A range includes its start, and its end if a step reaches it. Repeated sizes are dropped.

    Args:
        what: name of the sizes, for error messages.
        text: the sizes.
        one: parses a single size; `parse_size` by default.

    >>> several("n", "1k:4k:x2,64:192:+64")
    (1024, 2048, 4096, 64, 128, 192)

    Raises:
        UsageError: the text is not such a list.
    """
    read = one or (lambda size: parse_size(what, size))
    sizes: dict[int, None] = {}
    for part in separated(what, text):
        ends = part.split(":")
        if len(ends) == 1:
            sizes[read(part)] = None
            continue
        if len(ends) != 3 or ends[2][:1] not in ("x", "+"):
            raise UsageError(
                f"{what} = {part!r} was given; a range is FIRST:LAST:xFACTOR or FIRST:LAST:+STEP, such as "
                "256:1M:x2 or 64:512:+64."
            )
        first, last = read(ends[0]), read(ends[1])
        step = parse_size(f"the factor of {what}", ends[2][1:]) if ends[2][0] == "x" else read(ends[2][1:])
        if first > last or (ends[2][0] == "x" and step == 1):
            raise UsageError(
                f"{what} = {part!r} never grows; a range needs a factor of 2 or more, or a step of 1 or more."
            )
        if ends[2][0] == "+" and (last - first) // step >= MOST_SIZES:
            raise UsageError(f"{what} = {part!r} has more than {MOST_SIZES:,} sizes; use larger steps.")
        size = first
        while size <= last:
            sizes[size] = None
            size = size * step if ends[2][0] == "x" else size + step
    return tuple(sizes)


def axis(what: str, sizes: int | str | Iterable[int]) -> tuple[int, ...]:
    """One size or more: a number, several, or a text for `several`; each once.

    Raises:
        UsageError: they are no sizes, or none.
    """
    if isinstance(sizes, str):
        return several(what, sizes)
    chosen = tuple(dict.fromkeys(whole(what, size) for size in (sizes if isinstance(sizes, Iterable) else (sizes,))))
    if not chosen:
        raise UsageError(f"no sizes were given for {what}.")
    return chosen


def dtype_of(name: str) -> str:
    """Return the full name of a data type; short names such as "bf16" are allowed.

    Raises:
        UnknownName: the type is not known.
    """
    if SHORT.get(name, name) not in BYTES:
        raise UnknownName("data type", name, (*BYTES, *SHORT))
    return SHORT.get(name, name)


def bytes_of(dtype: str) -> int:
    """Return the number of bytes in a word of a data type.

    Raises:
        UnknownName: the type is not known.
    """
    return BYTES[dtype_of(dtype)]


def check_rule(rule: object) -> None:
    """Refuse what is neither the name of a block rule nor sizes by name.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(rule, str | Mapping):
        rules = "'fit', 'paper' or 'best', or sizes such as {'B_r': 64}"
        raise UsageError(f"blocks = {as_given(rule)} was given; give {rules}.")


def evaluate_rule(rule: str, values: Mapping[str, int]) -> int:
    """Evaluate a block rule such as "Min(ceiling(M/(4*d)), d)" in exact arithmetic."""
    return int(function_of(rule, values, EXACT)(*map(Fraction, values.values())))


class _Root:
    """The square root of x, exact until it is rounded."""

    def __init__(self, square: Fraction) -> None:
        self.square = Fraction(square)


def _floor(x: Fraction | _Root) -> Fraction:
    return Fraction(isqrt(int(x.square // 1)) if isinstance(x, _Root) else x // 1)


def _ceiling(x: Fraction | _Root) -> Fraction:
    if isinstance(x, _Root):
        root = isqrt(int(x.square // 1))
        return Fraction(root + (root * root < x.square))
    return Fraction(-(-x // 1))


EXACT: Arithmetic = {"number": Fraction, "floor": _floor, "ceiling": _ceiling, "sqrt": _Root, "Min": min, "Max": max}
"""Arithmetic of rational numbers, with square roots that are rounded to integers."""
