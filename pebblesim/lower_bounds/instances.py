"""Problems at given sizes, as the cutting argument sees them: their pairs, their matrix products, and their words.

Each size is a text and a number. A mask counts by its number of pairs, and of queries and keys that have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple, Self

from pebblesim.core.errors import UsageError
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule
from pebblesim.language.tile_ranges import TileRange
from pebblesim.lower_bounds.closed_forms import monomial, summed
from pebblesim.lower_bounds.covers import least_cover


class Pairs(NamedTuple):
    """The number of allowed pairs of a query and a key, and the (least) numbers of queries and of keys with a pair.

    `cover` is a lower bound on the number of queries and keys that it takes to have one of every pair. Only of a mask
    the numbers of queries and keys are `known`; those of a number of pairs are the least that are possible.
    """

    number: int
    queries: int
    keys: int
    cover: int = 0
    known: bool = True

    @classmethod
    def of(cls, allowed: Mask | int, n_q: int, n_k: int | None = None) -> Pairs:
        """Count the pairs of a mask. For a number alone, use the smallest numbers of queries and keys that are
        possible.

        Raises:
            UsageError: there are fewer pairs, or the mask does not fit.
        """
        n_k = n_q if n_k is None else n_k
        grid = n_q, n_k
        if isinstance(allowed, Mask):
            each, whole = (
                tuple(TileRange(0, n, block) for n, block in zip(grid, by, strict=True)) for by in ((1, 1), grid)
            )
            queries, keys = allowed.tiles(grid, each[0], whole[1]), allowed.tiles(grid, whole[0], each[1])
            return cls(allowed.pairs(n_q, n_k), queries, keys, least_cover(allowed, grid))
        if not 0 <= allowed <= n_q * n_k:
            sizes = f"n = {n_q:,}" if n_q == n_k else f"n_q = {n_q:,}, n_k = {n_k:,}"
            raise UsageError(f"{allowed:,} allowed pairs were given; at {sizes} there are 0 to {n_q * n_k:,} of them.")
        return cls(allowed, -(-allowed // n_k), -(-allowed // n_q), -(-allowed // max(n_q, n_k)), known=False)


ANY_ORDER = "any order of the products"
"""Way of computing in which products with weights are associated in any order, which may differ from pair to pair."""


@dataclass(frozen=True)
class Formulation:
    """The way of computing a problem, as the bounds see it.

    Attributes:
        kept: inputs that the forward pass saved, by name.
        outputs: the tensors written; empty for the outputs of the problem.
        graph: options of the problem's graph.
    """

    kept: Sequence[str] = ()
    outputs: Sequence[str] = ()
    graph: Mapping[str, object] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((*self.kept, *self.outputs, *self.graph))

    @classmethod
    def of(cls, schedule: Schedule) -> Formulation:
        """Return the formulation of a schedule, from its signature, the tensors it writes, and its graph options."""
        return cls(schedule.kept, schedule.program.outputs, schedule.graph)


Sides = tuple[str, str, str]


class Product(NamedTuple):
    """result[i, j] = Σ_t left[i, t] right[t, j] in the cutting argument: each product has three families.

    `sides` are those of i, t and j: "queries", "keys", "fewer" for the fewer of both, "cover" for as many queries and
    keys as it takes to have one of every pair, or a dimension of the problem, which in the square case is d for d_k and
    d_v. Each elementary product counts `weight` times. A transposed operand,
    or a pair family for several values of the pair, is used under its own name.
    """

    result: str
    left: str
    right: str
    sides: Sides
    weight: int = 1

    @property
    def of_pairs(self) -> tuple[str, tuple[str, str]] | None:
        """The family that belongs to pairs, and the two others, which are of queries and of keys; None without it."""
        rows, terms, columns = self.sides
        sides = {self.result: {rows, columns}, self.left: {rows, terms}, self.right: {terms, columns}}
        pairs = [name for name, each in sides.items() if each == {"queries", "keys"}]
        if len(pairs) != 1:
            return None
        left, right = (name for name in sides if name != pairs[0])
        return pairs[0], (left, right)


class Lines(NamedTuple):
    """The operands of a pair: operands with a row for its query, and operands with a row for its key.

    `widths` are the words in a row of each operand; they are the same for queries and keys.
    """

    query: tuple[str, ...]
    key: tuple[str, ...]
    widths: tuple[str, ...] = ("d", "d")


class Instance:
    """A problem at given sizes, with a way of computing, with or without a mask.

    Attributes:
        problem, dims, formulation: as given.
        masked: whether there is a mask, or a number of pairs.
        outputs: the tensors written.
        made: for each matrix that is computed from an input and weights, that input.
    """

    def __init__(
        self,
        problem: Problem,
        dims: Mapping[str, int],
        formulation: Formulation,
        pairs: Pairs | None,
        made: Mapping[str, str] | None = None,
    ) -> None:
        self.problem, self.dims, self.formulation, self.masked = problem, dims, formulation, pairs is not None
        self.made = made or {}
        sides = problem.pairs or ("n", "n")
        n_q, n_k = (dims.get(side, 0) for side in sides)  # without pairs there may be none
        self._pairs = pairs or Pairs(n_q * n_k, n_q, n_k, min(n_q, n_k))
        self.outputs = tuple(formulation.outputs) or tuple(problem.outputs)
        queries, keys = ("r", "c") if self.masked else sides
        fewer, more = sides if n_q <= n_k else sides[::-1]
        self._sizes = {**dims, "queries": self._pairs.queries, "keys": self._pairs.keys}
        self._sizes |= {"fewer": min(n_q, n_k), "more": max(n_q, n_k), "cover": self._pairs.cover}
        self._texts = {name: name for name in dims} | {"queries": queries, "keys": keys, "fewer": fewer, "more": more}
        self._texts["cover"] = "tau" if self.masked else fewer
        # Trees that bring no products are subtracted: of a number of pairs, those of all lines that there may be.
        for line, side, number in (("queries", sides[0], n_q), ("keys", sides[1], n_k)):
            most = (self._sizes[line], self._texts[line]) if self._pairs.known else (number, side)
            self._sizes[f"most {line}"], self._texts[f"most {line}"] = most
        for dim in ("d_k", "d_v", "d_r"):
            self._sizes.setdefault(dim, dims.get("d", 0))
            self._texts.setdefault(dim, "d")
        for total, parts in problem.totals.items():
            self._sizes[total] = sum(self._sizes[part] for part in parts)
            self._texts[total] = f"({summed(Counter(self._texts[part] for part in parts))})"

    # -- sizes, as text and as number --------------------------------------------------------------------------------

    @property
    def Z(self) -> int:
        """Number of allowed pairs."""
        return self._pairs.number

    @property
    def Z_text(self) -> str:
        """Number of allowed pairs, as text."""
        return "Z" if self.masked else self.size(("queries", "keys"))[0]

    def size(self, sides: Iterable[str]) -> tuple[str, int]:
        """Number of elements of a matrix with these sides; over queries and keys it has one for each pair."""
        names, number = list(sides), 1
        texts = []
        if self.masked and {"queries", "keys"} <= set(names):
            names.remove("queries")
            names.remove("keys")
            texts, number = ["Z"], self.Z
        texts += [self._texts[name] for name in names]
        return monomial(texts), number * prod(self._sizes[name] for name in names)

    def by_size(self, one: str, other: str) -> tuple[str, str]:
        """Return two sides, the smaller one first."""
        return (one, other) if self._sizes[one] <= self._sizes[other] else (other, one)

    def without_kept(self, name: str) -> Self:
        """Return the same case without an input that the forward pass saved, which is not needed for all pairs."""
        kept = [each for each in self.formulation.kept if each != name]
        pairs = self._pairs if self.masked else None
        return type(self)(self.problem, self.dims, replace(self.formulation, kept=kept), pairs, self.made)

    def ragged(self, product: Product) -> bool:
        """Whether, under a mask, the trees of a product's result differ in their number of products."""
        return self.masked and product.sides[1] in ("queries", "keys")

    def trees(self, product: Product) -> tuple[str, int]:
        """Return the number of elements of a product's result, as text and number.

        Depending on the order of association, a sum over pairs goes over keys or over queries; then this is the larger
        of the two numbers of elements.
        """
        rows, terms, columns = product.sides
        if terms in ("queries", "keys"):
            rows, columns = ("more" if side in ("queries", "keys") else side for side in (rows, columns))
        return self.size((rows, columns))

    def terms(self, product: Product) -> tuple[str, int]:
        """Return the number of products in a tree of the result; for a sum over pairs the smaller of n_q and n_k."""
        terms = product.sides[1]
        return self.size(("fewer" if terms in ("queries", "keys") else terms,))

    def width(self, lines: Lines) -> tuple[str, int]:
        """Return the least width of the rows from which a pair is computed, as text and number."""
        return min(
            (self.size((width,)) for width in dict.fromkeys(lines.widths[: len(lines.query)])),
            key=lambda width: width[1],
        )

    # -- words -------------------------------------------------------------------------------------------------------

    def words(self, names: Iterable[str]) -> tuple[int, str]:
        """Return the words of these inputs and outputs that any game must move, as a number and as text."""
        words = {name: self._tensor(name) for name in names}
        return sum(number for _, number in words.values()), summed(Counter(text for text, _ in words.values()))

    def _tensor(self, name: str) -> tuple[str, int]:
        """Return text and number of the words of a tensor, without the words that no allowed pair needs."""
        inputs = {**self.problem.inputs, **self.problem.kept}
        if name not in inputs:
            shape = {**self.problem.outputs, **self.problem.extra}[name]
            return monomial(shape), prod(self.dims[dim] for dim in shape)
        shape = inputs[name]
        if not self.masked:
            return monomial(shape), prod(self.dims[dim] for dim in shape)
        if not self.Z:
            return "0", 0
        if shape == self.problem.pairs:
            return self.size(("queries", "keys"))
        line = "keys" if name in self.problem.keys else "queries"
        return self.size(line if dim in (self.problem.pairs or ()) else dim for dim in shape)

    def columns_besides(self, lines: Lines, families: Iterable[str]) -> list[tuple[str, int]]:
        """Return the words of these inputs and outputs in columns beyond the width of `lines`, as text and number."""
        width, number = self.width(lines)
        shapes = {**self.problem.inputs, **self.problem.kept, **self.problem.outputs}
        wider = []
        for name in dict.fromkeys(families):
            if name in shapes and len(shapes[name]) == 2 and name in self.all_words():
                text, words = self._tensor(name)
                own = self.dims[shapes[name][1]]
                if own > number:
                    rows = text.removesuffix(f"*{shapes[name][1]}")
                    wider.append((f"{rows}*({shapes[name][1]} - {width})", words // own * (own - number)))
        return wider

    def without_pairs(self, products: Iterable[Product], narrow: bool) -> list[tuple[str, int]]:
        """Return the words of outputs over queries or keys in lines without a pair, as text and number.

        Args:
            products: those whose results are looked at.
            narrow: whether only as many columns are asked for as the narrower of d_k and d_v has.
        """
        if not (self.masked and self._pairs.known and self.problem.pairs):
            return []
        sides, found = dict(zip(("queries", "keys"), self.problem.pairs, strict=True)), []
        written = {each.result: each.sides for each in products if each.result in self.outputs}  # each of them once
        for rows, _, columns in written.values():
            if rows in sides and (lines := self.dims[sides[rows]] - self._sizes[rows]):
                width = self.by_size("d_k", "d_v")[0] if narrow else columns
                text = f"({sides[rows]} - {self._texts[rows]})*{self._texts[width]}"
                found.append((text, lines * self._sizes[width]))
        return found

    def besides(self, families: Iterable[str]) -> tuple[str, ...]:
        """Return inputs and outputs that are in none of these families, and from which none of them is computed."""
        within = {*families}
        within |= {self.made[name] for name in within if name in self.made}
        return tuple(name for name in self.all_words() if name not in within)

    def all_words(self) -> tuple[str, ...]:
        """Return all inputs, kept inputs, and outputs."""
        return (*self.problem.inputs, *self.formulation.kept, *self.outputs)
