"""Attention on many devices: words played one by one, numbers, closed forms, bounds, and exact least words."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, isqrt
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import example, given, settings, strategies as st
from matplotlib.figure import Figure
from strategies import amount
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.catalogue import backward_qkv, forward
from pebblesim.cli.main import app
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.game.board import IllegalMove
from pebblesim.lower_bounds.capacities import Gradients
from pebblesim.parallel import pebbles, play
from pebblesim.parallel.bounds import any_memory, bounds, whole_pairs, with_memory
from pebblesim.parallel.count import Layout, Moved, best, splits
from pebblesim.parallel.formula import closed_form
from pebblesim.parallel.schedules import IN_PASSES, SCHEDULES, Parallel, Split
from pebblesim.parallel.team import Team
from pebblesim.parallel.tokens import OWNERSHIPS, owned
from pebblesim.views.plots.devices import figure


@st.composite
def teams(draw: st.DrawFn) -> Team:
    """Sizes that no device shares evenly, queries and keys that differ in number and width, latent values."""
    kv_heads, sharing = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (2, 4), (3, 1)]))
    n_q, d_k = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    latent = draw(st.booleans())
    return Team(
        n_q=n_q,
        n_k=draw(st.just(n_q) | st.integers(1, 9)),
        d_k=d_k,
        d_v=draw(st.integers(1, d_k if latent else 3)),
        heads=kv_heads * sharing,
        kv_heads=kv_heads,
        P=draw(st.integers(1, 12)),
        backward=draw(st.booleans()),
        causal=draw(st.booleans()),
        ownership=draw(st.sampled_from(OWNERSHIPS)),
        latent=latent,
    )


def every_split(team: Team) -> Iterator[tuple[Parallel, Split]]:
    for schedule in SCHEDULES.values():
        try:
            yield from ((schedule, split) for split in splits(schedule, team))
        except UsageError:
            continue


def words_of(team: Team) -> tuple[int, int]:
    """The words of a row and of a key, counted by hand."""
    d_k, d_v = team.d_k, team.d_v
    key = d_k if team.latent else d_k + d_v
    return (2 * d_k + d_v + 2, 2 * key) if team.backward else (d_k + d_v + 1, key)


def memory_for(team: Team, rows: int) -> int:
    """Words for this number of rows of others, one key of others, and what a device owns."""
    row, key = words_of(team)
    own = -(-team.n_q // team.P) * team.heads * row + -(-team.n_k // team.P) * team.kv_heads * key
    return own + rows * row + key


def owners(ownership: str, n: int, P: int) -> list[int]:
    """The device that owns each token."""
    if ownership == "striped":
        return [t % P for t in range(n)]
    chunks = P if ownership == "contiguous" else 2 * P
    sizes = [n // chunks + (q < n % chunks) for q in range(chunks)]
    return [min(q, 2 * P - 1 - q) if chunks > P else q for q, size in enumerate(sizes) for _ in range(size)]


class Oracle:
    """Devices as sets of words (tensor, head, token, column): who holds what, and what moved, word by word."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.inputs, self.outputs = (
            (("Q", "K", "V", "dO", "L", "D"), ("dQ", "dK", "dV")) if team.backward else (("Q", "K", "V"), ("O", "L"))
        )
        if team.latent:
            self.inputs = tuple(name for name in self.inputs if name != "V")
            self.outputs = tuple(name for name in self.outputs if name != "dV")
        of_rows, of_keys = (owners(team.ownership, n, team.P) for n in (team.n_q, team.n_k))
        self.mine = [
            {
                (name, h, t)
                for name in self.inputs + self.outputs
                for h in range(team.kv_heads if self.of_keys(name) else team.heads)
                for t, owner in enumerate(of_keys if self.of_keys(name) else of_rows)
                if owner == p
            }
            for p in range(team.P)
        ]
        self.has = [set(mine) for mine in self.mine]
        self.moved = [Counter[str]() for _ in range(team.P)]
        self.peak = [self.size(has) for has in self.has]
        self.pairs = Counter[tuple[int, int, int]]()
        self.by_device = Counter[int]()
        self.waiting: list[set[tuple[str, int, int]]] = [set() for _ in range(team.P)]

    @staticmethod
    def of_keys(name: str) -> bool:
        return name in ("K", "V", "dK", "dV")

    def size(self, words: set[tuple[str, int, int]]) -> int:
        wide = {"Q": self.team.d_k, "K": self.team.d_k, "dQ": self.team.d_k, "dK": self.team.d_k, "L": 1, "D": 1}
        return sum(wide.get(name, self.team.d_v) for name, _, _ in words)

    def follow(self, move: play.Move) -> None:
        p = move.device
        if isinstance(move, play.Compute):
            kv = move.head // (self.team.heads // self.team.kv_heads)
            allowed = [(i, j) for i in move.queries for j in move.keys if may_see(self.team, i, j)]
            for i, j in allowed:
                needs = {
                    (name, kv, j) if self.of_keys(name) else (name, move.head, i) for name in self.inputs + self.outputs
                }
                assert needs <= self.has[p]
                self.waiting[p] |= {each for each in needs if each[0] in self.outputs} - self.mine[p]
                self.pairs[move.head, i, j] += 1
            self.by_device[p] += len(allowed)
            return
        words = {(name, head, token) for head, token in move.rows for name in move.tensors}
        sums = {(name, head, token) for head, token in move.rows for name in move.sums}
        assert not (words | sums) & self.mine[p]
        if isinstance(move, play.Receive):
            assert not (words | sums) & self.has[p]
            self.has[p] |= words | sums
            moved = words
        else:
            assert words | sums <= self.has[p]
            self.has[p] -= words | sums
            self.waiting[p] -= sums
            moved = sums
        for word in moved:
            self.moved[p][word[0]] += self.size({word})
        self.peak[p] = max(self.peak[p], self.size(self.has[p]))


def may_see(team: Team, i: int, j: int) -> bool:
    """Whether the pair is allowed; a causal mask is aligned at the end."""
    return not team.causal or team.n_q - i <= team.n_k - j


def played(moved: Moved) -> Oracle:
    """Play, and check that each allowed pair of each head is computed once and that no partial sum is lost."""
    team, oracle = moved.layout.team, Oracle(moved.layout.team)
    for move in play.moves(moved):
        oracle.follow(move)
    pairs = itertools.product(range(team.heads), range(team.n_q), range(team.n_k))
    assert oracle.pairs == Counter((h, i, j) for h, i, j in pairs if may_see(team, i, j))
    assert len(oracle.pairs) == team.heads * team.pairs
    assert not any(oracle.waiting)
    return oracle


@pytest.mark.one_in(2)
@given(teams(), st.integers(1, 5), st.data())
@settings(max_examples=amount(20, 300))
def test_what_is_counted_is_what_is_played_word_by_word(team: Team, rows: int, data: st.DataObject) -> None:
    by_name = {
        schedule.name: (schedule, split) for schedule, split in data.draw(st.permutations(list(every_split(team))))
    }
    for schedule, split in by_name.values():
        check_words(
            Moved(schedule, Layout(team, split), memory_for(team, rows) if schedule.order == IN_PASSES else None)
        )


def check_words(moved: Moved) -> None:
    team, oracle = moved.layout.team, played(moved)
    assert moved.each == [each.total() for each in oracle.moved]
    for p, each in enumerate(oracle.moved):
        assert {name: words for name, words in moved.by_tensor(p).items() if words} == dict(each)
        assert sum(moved.by_step(p)) == moved.each[p]
    assert moved.words_held == max(oracle.peak)
    assert moved.M is None or moved.words_held <= moved.M
    assert moved.most_pairs == max(oracle.by_device.values())
    assert moved.words >= max(each.value for each in bounds(team, moved.words_held))


def inputs_of(team: Team, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random inputs, and the outputs of the catalogue's references, head by head."""
    random = np.random.default_rng(seed)
    n_q, n_k, d_k, d_v = team.n_q, team.n_k, team.d_k, team.d_v
    x = {name: random.standard_normal((team.heads, n_q, d)) for name, d in (("Q", d_k), ("dO", d_v))}
    x |= {name: random.standard_normal((team.kv_heads, n_k, d)) for name, d in (("K", d_k), ("V", d_v))}
    if team.latent:
        x["V"] = x["K"][..., :d_v]
    allowed = np.array([[may_see(team, i, j) for j in range(n_k)] for i in range(n_q)]) if team.causal else None
    shares = team.heads // team.kv_heads
    one = [{name: x[name][h // (shares if name in "KV" else 1)] for name in x} for h in range(team.heads)]
    made = [forward.reference(each, allowed) for each in one]
    out = {name: np.stack([each[name] for each in made]) for name in ("O", "L")}
    if not team.backward:
        return x, out
    x |= {"L": out["L"], "D": (x["dO"] * out["O"]).sum(-1)}
    grads = [backward_qkv.reference(each, allowed) for each in one]
    by_head = {name: np.stack([each[name] for each in grads]) for name in ("dQ", "dK", "dV")}
    of_keys = {name: by_head[name].reshape(team.kv_heads, shares, n_k, -1).sum(1) for name in ("dK", "dV")}
    if team.latent:
        of_keys["dK"][..., :d_v] += of_keys.pop("dV")
    return x, {"dQ": by_head["dQ"]} | of_keys


@given(teams(), st.integers(1, 5), st.data())
@settings(max_examples=amount(25, 300))
def test_devices_compute_the_reference_from_the_words_that_they_hold(
    team: Team, rows: int, data: st.DataObject
) -> None:
    schedule, split = data.draw(st.sampled_from(list(every_split(team))))
    M = memory_for(team, rows) if schedule.order == IN_PASSES else None
    x, expected = inputs_of(team)
    outputs = pebbles.numbers(Moved(schedule, Layout(team, split), M), x)
    assert set(outputs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.one_in(2)
def test_a_device_that_uses_a_word_that_it_was_not_sent_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team.square(4, 2, 1, 1, 2)
    moved = best(SCHEDULES["ring"], team)
    all_moves = list(play.moves(moved))
    lost = next(move for move in all_moves if isinstance(move, play.Receive) and move.rows)
    monkeypatch.setattr(pebbles, "moves", lambda _: [move for move in all_moves if move is not lost])
    with pytest.raises(IllegalMove, match=r"its term (Q|K|V)\[0,\d,0\] is not red"):
        pebbles.play(moved)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("backward", [False, True])
def test_the_closed_form_is_the_count_where_P_divides_n(name: str, backward: bool) -> None:
    schedule, form, seen = SCHEDULES[name], closed_form(SCHEDULES[name], backward), 0
    exact = {"ceiling": ceil, "floor": floor, "Max": max}
    value = sympy.lambdify(sympy.symbols("n d h h_kv P u a b M"), form, modules=[exact])
    for P, (h, h_kv), m in itertools.product((1, 2, 4, 6, 12), ((1, 1), (4, 2), (12, 12)), (1, 3)):
        team = Team.square(m * P, 2, h, h_kv, P, backward)
        try:
            options = splits(schedule, team)
        except UsageError:
            continue
        for split in options:
            M = memory_for(team, 4) if schedule.order == IN_PASSES else None
            moved = Moved(schedule, Layout(team, split), M)
            sizes = map(Fraction, (m * P, 2, h, h_kv, P, split.heads, split.rows, split.keys, M or 0))
            assert set(moved.each) == {value(*sizes)}
            seen += 1
    assert seen > 3


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_tokens_are_dealt_evenly_and_pairs_are_counted_in_progressions(ownership: str) -> None:
    for n, P in itertools.product((1, 2, 5, 8, 13), (1, 2, 3, 5)):
        own = owned(ownership, n, P)
        assert sorted(token for each in own for token in each) == list(range(n))
        assert {each.number for each in own} <= {n // P, -(-n // P)}
        for mine, other in itertools.product(own, own):
            assert mine.pairs_up_to(other) == sum(j <= i for i in mine for j in other)
            assert list(mine.clipped(1, n - 1)) == [token for token in mine if 1 <= token < n - 1]


@pytest.mark.parametrize("P", [4, 9, 16, 64])
def test_square_tiles_meet_the_bound_but_for_the_statistics_of_rows(P: int) -> None:
    side, d = isqrt(P), 2
    n = P * (10 if P < 64 else 8)
    team = Team.square(n, d, 1, 1, P)
    moved = best(SCHEDULES["tiles"], team)
    statistics = n // side - n // P
    assert moved.tensors()["L"] == statistics
    assert moved.words - statistics == any_memory(team) == whole_pairs(team) == 4 * n * d // side - 4 * n * d // P


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("P", [4, 16, 64])
def test_tiles_of_latent_values_are_above_all_bounds(P: int, backward: bool) -> None:
    """A word of a key serves as one of its value, too, so far fewer words are enough than with values of their own."""
    team = Team(64 * P, 64 * P, 2, 2, 1, 1, P, backward, latent=True)
    moved = best(SCHEDULES["tiles"], team)
    assert 0 < any_memory(team) <= whole_pairs(team) <= moved.words
    apart = Team.square(64 * P, 2, 1, 1, P, backward)
    if backward and P > 4:
        assert moved.words < any_memory(apart)


@pytest.mark.parametrize("P, n", [(12, 144), (48, 960)])
def test_backward_tiles_are_near_the_bound(P: int, n: int) -> None:
    team = Team.square(n, 2, 1, 1, P, backward=True)
    moved = best(SCHEDULES["tiles"], team)
    words = moved.words - moved.tensors()["L"] - moved.tensors()["D"]
    assert any_memory(team) <= whole_pairs(team) <= words
    assert 100 * words <= 105 * any_memory(team)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("heads", [(1, 1), (4, 1), (4, 2), (8, 2), (9, 3), (3, 3), (5, 5)])
def test_the_knapsack_is_the_best_of_whole_rows_and_keys_but_for_parts(
    heads: tuple[int, int], backward: bool, causal: bool
) -> None:
    for n, P in itertools.product((1, 2, 4), (1, 2, 3, 5)):
        check_knapsack(Team.square(n, 3, *heads, P, backward, causal))


@given(teams())
@settings(max_examples=amount(15, 400))
def test_so_it_is_for_queries_and_keys_that_differ_and_latent_values(team: Team) -> None:
    check_knapsack(team)


def check_knapsack(team: Team) -> None:
    """The oracle tries every rectangle of whole rows and keys in each head, by a table over words."""
    statistics = 2 if team.backward else 1
    row, key = words_of(team)[0] - statistics, words_of(team)[1]
    sharing, pairs = team.heads // team.kv_heads, itertools.product(range(team.n_q), range(team.n_k))
    allowed = sum(may_see(team, i, j) for i, j in pairs)
    rows, keys = sharing * -(-team.n_q // team.P), -(-team.n_k // team.P)
    later = 0
    if team.causal and team.n_q == team.n_k:  # of own rows and own keys
        later = sharing * sum(j > i for i in range(keys) for j in range(keys))
    one: dict[int, int] = {}
    for i, j in itertools.product(range(rows, sharing * team.n_q + 1), range(keys, team.n_k + 1)):
        words = row * (i - rows) + key * (j - keys)
        one[words] = max(one.get(words, 0), min(i * j - later, sharing * allowed))
    table = {0: 0}
    for _ in range(team.kv_heads):
        added: dict[int, int] = {}
        for (a, x), (b, y) in itertools.product(table.items(), one.items()):
            added[a + b] = max(added.get(a + b, 0), x + y)
        table = added
    least = min(words for words, made in table.items() if made * team.P >= team.heads * allowed)
    assert least - 2 * (row + key) <= whole_pairs(team) <= least


def least_words(n: int, backward: bool, d: int = 1, heads: int = 1) -> int:
    """The least words of the busiest of P = n devices with a token each: all ways to deal whole pairs to them."""
    row, key = (3 * d, 4 * d) if backward else (2 * d, 2 * d)
    for limit in itertools.count():
        options = [list(_rectangles(p, n, heads, row, key, limit)) for p in range(n)]
        if _covers((1 << heads * n * n) - 1, options):
            return limit
    raise AssertionError


def _rectangles(p: int, n: int, heads: int, row: int, key: int, limit: int) -> Iterator[int]:
    """The largest sets of pairs, as bits, that device p can compute with so many words: a rectangle in each head."""
    found = set()
    subsets = [s | 1 << p for s in range(1 << n) if not s >> p & 1]
    for chosen in itertools.product(itertools.product(subsets, subsets), repeat=heads):
        if sum(row * (I.bit_count() - 1) + key * (J.bit_count() - 1) for I, J in chosen) <= limit:
            found.add(sum(J << (h * n + i) * n for h, (I, J) in enumerate(chosen) for i in range(n) if I >> i & 1))
    yield from (each for each in found if not any(each != other and each & other == each for other in found))


def _covers(missing: int, options: list[list[int]]) -> bool:
    if not missing:
        return True
    if not options or sum(max((each & missing).bit_count() for each in one) for one in options) < missing.bit_count():
        return False
    return any(
        _covers(missing & ~each, options[1:]) for each in sorted(options[0], key=lambda e: -(e & missing).bit_count())
    )


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "n, heads", [(1, 1), (2, 1), (3, 1), (4, 1), pytest.param(5, 1, marks=pytest.mark.slow), (2, 2)]
)
def test_no_way_to_deal_whole_pairs_is_below_the_bounds(n: int, heads: int, backward: bool) -> None:
    """All assignments of pairs to n = P devices; and the schedules are no better than the best of them."""
    team = Team.square(n, 1, heads, heads, n, backward)
    least = least_words(n, backward, heads=heads)
    assert any_memory(team) <= least and whole_pairs(team) <= least
    found = min(
        moved.words - sum(moved.tensors().get(name, 0) for name in "LD")
        for moved in ps.devices(n=n, d=1, heads=heads, P=n, backward=backward).rows
    )
    assert found >= least
    if (n, heads, backward) == (4, 1, False):
        assert found == least == whole_pairs(team) == 4


@pytest.mark.parametrize("backward", [False, True])
def test_with_little_memory_the_passes_come_near_the_bound(backward: bool) -> None:
    """So little is owned beside M that P3 is larger than P2, which asks for no memory."""
    team = Team.square(2**12, 2, 1, 1, 512, backward)
    M = 3 * team.owned_words(8)
    moved = Moved(SCHEDULES["tiles-in-passes"], Layout(team, Split(1, 128, 4)), M)
    assert moved.words_held <= M
    assert whole_pairs(team) < with_memory(team, M) < moved.words < 3 * with_memory(team, M)


def test_the_command_prints_what_design_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    result = ps.devices(n=4096, d=64, heads=8, kv_heads=2, P=4)
    data = json.loads(json.dumps(result.to_dict()))
    assert {"n", "d", "heads", "kv_heads", "P", "rows", "lower_bound"} <= set(data)
    assert {"schedule", "words", "total", "words_held", "gap"} <= set(data["rows"][0])
    assert set(data["lower_bound"]) == {"value", "source"}
    assert [row["words"] for row in data["rows"]] == sorted(row["words"] for row in data["rows"])
    by_name = {row["schedule"]: row["words"] for row in data["rows"]}
    assert by_name["ring"] == by_name["all-gather"] == 2 * 2 * 4096 * 64 * 3 // 4


@pytest.mark.parametrize(
    ("heads", "said"),
    [((1, 1), ", 1 head, P"), ((2, 2), ", 2 heads, P"), ((2, 1), ", 2 heads (1 KV head), P")],
)
def test_heads_are_counted_in_words(heads: tuple[int, int], said: str) -> None:
    assert said in str(ps.devices(n=64, d=4, heads=heads[0], kv_heads=heads[1], P=2))


@pytest.mark.parametrize(
    "wrong, said",
    [
        (
            {"P": 3, "schedules": "ulysses"},
            "8 heads .2 KV heads. .* 3 groups .* nearest number of groups that works is 2",
        ),
        ({"P": 7, "schedules": "ulysses-rows"}, "multiple of 2, not 7; the nearest that works is 8"),
        ({"P": 0}, "P = 0 was given"),
        ({"P": 5000}, "up to 1,024 devices"),
        ({"kv_heads": 3}, "8 heads cannot share 3 KV heads.*the nearest is 9"),
        ({"mask": "window:64"}, "mask window:64 was given; on many devices the mask is causal, or there is none"),
        ({"mask": np.eye(64, dtype=bool)}, "the mask is causal, or there is none. Under a window no"),
        ({"schedules": "tiles-in-passes"}, "give its words, M"),
    ],
)
def test_wrong_devices_get_one_sentence_and_the_nearest_that_works(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ps.devices(**{"n": 64, "d": 4, "heads": 8, "kv_heads": 2, "P": 4} | wrong)  # type: ignore[arg-type]


def test_the_mask_of_a_count_is_taken() -> None:
    asked: dict[str, Any] = {"n": 8, "d": 2, "P": 2}
    mask = ps.count("flash2-forward", n=8, d=2, M=100, mask="causal").mask
    assert mask is not None and ps.devices(mask=mask, **asked).to_dict() == ps.devices(mask="causal", **asked).to_dict()
    assert ps.devices(mask="dense", **asked).to_dict() == ps.devices(**asked).to_dict()


def test_words_of_a_device_and_a_type_go_together() -> None:
    """The type says how many bytes are sent, also where M is in words."""
    line = "devices -n 24 -d 4 -P 4 -M 2000 --dtype fp16 --json"
    ran = CliRunner().invoke(app, line.split(" "))
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.output)["M"] == 2000


def test_too_little_memory_names_the_least_that_works() -> None:
    with pytest.raises(Infeasible, match="tiles-in-passes takes the least") as error:
        ps.devices(n=64, d=4, P=4, M=100)
    least = error.value.least_M
    assert any(row.words_held <= least for row in ps.devices(n=64, d=4, P=4, M=least).rows)
    with pytest.raises(Infeasible):
        ps.devices(n=64, d=4, P=4, M=least - 1)
    with pytest.raises(UnknownName, match="did you mean 'ulysses'"):
        ps.devices("ulises", n=64, d=4, P=4)


@pytest.mark.parametrize("backward", [False, True])
def test_no_schedule_is_below_the_bounds_where_many_heads_share_keys(backward: bool) -> None:
    for (heads, kv_heads), P in itertools.product(((64, 8), (32, 2), (8, 8), (128, 1)), (2, 3, 4, 8)):
        result = ps.devices(n=480, d=8, heads=heads, kv_heads=kv_heads, P=P, backward=backward)
        assert result.rows[0].words >= result.lower_bound.value


def test_the_picture_over_devices_shows_the_counts_and_the_bound() -> None:
    results = [ps.devices(n=64, d=4, heads=4, P=P) for P in (2, 4, 8)]
    drawing = Figure()
    figure(results, drawing)
    (ax,) = drawing.axes
    lines = {str(line.get_label()): dict(np.asarray(line.get_xydata())) for line in ax.lines}
    assert lines["ulysses"] == {r.team.P: w.words for r in results for w in r.rows if w.schedule.name == "ulysses"}
    assert sorted(lines["ulysses"]) == [2, 4]  # 8 devices cannot share 4 heads
    assert lines["lower bound"] == {each.team.P: each.lower_bound.value for each in results}


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_convex_capacity_of_gradients_is_no_less_and_has_slopes_that_never_fall(d: int) -> None:
    gradients = Gradients(d)
    products = [(gradients.convex(X), gradients(X)) for X in range(0, 230 * d**2, d)]
    assert all(convex >= exact for convex, exact in products)
    steps = [after - before for (before, _), (after, _) in pairwise(products)]
    assert all(later >= earlier - 2 for earlier, later in pairwise(steps))  # each value is rounded down
    exact = [after - before for (_, before), (_, after) in pairwise(products)]
    assert any(later < earlier - 2 for earlier, later in pairwise(exact))
    assert all(convex == capacity for convex, capacity in products[: 162 * d] + products[208 * d :])


@pytest.mark.one_in(4)
@given(n=st.integers(40, 60), heads=st.integers(2, 4), P=st.integers(2, 5))
@example(n=50, heads=5, P=3)
@settings(max_examples=amount(10, 150))
def test_p1_for_several_heads_is_no_more_than_any_split_of_the_words_needs(n: int, heads: int, P: int) -> None:
    """The most products for so many words, by trying all shares of all heads, one head after the other."""
    team = Team.square(n, 2, heads, heads, P, True)
    gradients, all_of_a_head, most = Gradients(2), 48 * n * n * 2, 14 * n * heads
    alone = np.array([min(gradients(X), all_of_a_head) for X in range(most)], np.int64)
    room = alone
    for _ in range(heads - 1):
        room = np.array([(room[: X + 1] + alone[X::-1]).max() for X in range(most)], np.int64)
    least = int(np.argmax(room * P >= heads * all_of_a_head))
    assert room[-1] * P >= heads * all_of_a_head
    own = heads * (3 * team.most_rows + 4 * team.most_keys) * 2
    assert any_memory(team) <= max(0, least - own)
