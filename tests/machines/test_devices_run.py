"""The engine that runs on real devices, with numpy inside: outputs, and words moved, of every schedule."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given, settings, strategies as st
from machines.test_devices import inputs_of, may_see
from piped import Case, Processes, in_threads
from strategies import amount

from pebblesim.core.errors import UsageError
from pebblesim.operator.distributed.exchange import Device, pieces
from pebblesim.parallel.count import Layout, Moved, best, splits
from pebblesim.parallel.schedules import IN_PASSES, SCHEDULES
from pebblesim.parallel.team import Team
from pebblesim.parallel.tokens import OWNERSHIPS


def check(case: Case, results: list[tuple[dict[str, Any], int]], expected: dict[str, Any]) -> None:
    """Each device's outputs are its tokens' rows of the references, and it moved what is counted."""
    team, name, split = case
    moved = Moved(SCHEDULES[name], Layout(team, split))
    assert [words for _, words in results] == moved.each
    for p, (made, _) in enumerate(results):
        assert set(made) == set(expected)
        for tensor, whole in expected.items():
            own = list((team.own_keys if tensor in ("dK", "dV") else team.own_rows)[p])
            mine = whole[:, own, None] if tensor == "L" else whole[:, own]
            np.testing.assert_allclose(made[tensor], mine, rtol=1e-9, atol=1e-11)


@st.composite
def cases(draw: st.DrawFn, P: st.SearchStrategy[int]) -> Case:
    kv_heads, sharing = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)]))
    n_q = draw(st.integers(1, 20))
    causal = draw(st.booleans())
    n_k = draw(st.just(n_q) | st.integers(n_q if causal else 1, 20))
    devices, ownership = draw(P), draw(st.sampled_from(OWNERSHIPS))
    team = Team(n_q, n_k, 3, 2, kv_heads * sharing, kv_heads, devices, draw(st.booleans()), causal, ownership)
    options = []
    for schedule in SCHEDULES.values():
        if schedule.order != IN_PASSES:
            try:
                options += [(team, schedule.name, split) for split in splits(schedule, team)]
            except UsageError:
                continue
    return draw(st.sampled_from(options))


@given(cases(st.integers(1, 8)))
@settings(max_examples=amount(15, 400), deadline=None)
def test_devices_in_threads_compute_the_reference_and_move_what_is_counted(case: Case) -> None:
    x, expected = inputs_of(case[0])
    check(case, in_threads(case, x), expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backward", [False, True])
def test_devices_with_one_of_several_heads_that_share_keys(backward: bool) -> None:
    team = Team.square(5, 2, 4, 1, 8, backward)
    for split in splits(SCHEDULES["heads-tiles"], team):
        x, expected = inputs_of(team)
        check((team, "heads-tiles", split), in_threads((team, "heads-tiles", split), x), expected)


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    processes = Processes(4)
    yield processes
    processes.end()


@pytest.mark.parametrize("name", [name for name, each in SCHEDULES.items() if each.order != IN_PASSES])
@pytest.mark.parametrize("backward", [False, True])
def test_four_processes_joined_by_pipes(four: Processes, name: str, backward: bool) -> None:
    for causal, ownership in ((False, "contiguous"), (True, "zig-zag"), (True, "striped")):
        team = Team.square(37, 4, 8, 4, 4, backward, causal, ownership)
        case = team, name, best(SCHEDULES[name], team).split
        x, expected = inputs_of(team)
        check(case, four(case, x), expected)


@given(
    st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(1, 9), st.integers(-5, 5), st.integers(1, 4)
)
@settings(max_examples=amount(80, 2000))
def test_pieces_have_the_allowed_pairs_once(i: int, rows: int, j: int, keys: int, ahead: int, step: int) -> None:
    """A causal piece is aligned at its end; each of its rows sees a key."""
    I, J = range(i, i + rows * step, step), range(j, j + keys * step, step)
    team = Team(99, 99 + ahead, 1, 1, 1, 1, 1, causal=True)
    seen = []
    for piece in pieces(I, J, ahead):
        mine, its = I[piece.rows], J[piece.keys]
        assert mine and its
        late = len(its) - len(mine)
        assert not piece.causal or late >= 0
        seen += [(a, b) for t, a in enumerate(mine) for s, b in enumerate(its) if not piece.causal or s <= t + late]
    assert sorted(seen) == [(a, b) for a in I for b in J if may_see(team, a, b)]


def test_passes_and_latent_values_are_refused() -> None:
    for team, name in (
        (Team.square(8, 2, 1, 1, 2), "tiles-in-passes"),
        (Team(8, 8, 2, 1, 1, 1, 2, latent=True), "ring"),
    ):
        schedule = SCHEDULES[name]
        moved = Moved(schedule, Layout(team, splits(schedule, team)[0]))
        with pytest.raises(UsageError, match="does not run on devices"):
            Device(moved, None, None, {})  # type: ignore[arg-type]


@pytest.mark.one_in(8)
def test_the_record_of_nvlinks_counters_is_the_count() -> None:
    """Packets of synchronisation are some bytes more; at times 32 MiB or 64 of received bytes are counted late."""
    text = (ROOT / "benchmarks" / "gpu" / "devices.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    measured = [row for row in rows if "counted_sent" in row]
    assert len(measured) == 26 and not any("error" in row for row in rows)
    late = 0
    for row in measured:
        windows = row.get("windows", [[row["sent"], row["received"]]])
        for sent, received, *_ in windows:
            assert 0 <= sent - row["counted_sent"] < row["counted_sent"] / 1000
            over = (received - row["counted_received"]) % 2**25
            assert 0 <= over < row["counted_received"] / 1000
            late += received - row["counted_received"] > over
        if "windows" in row:
            assert 0 <= row["received"] - row["counted_received"] < row["counted_received"] / 1000
    assert late == 5
    one, other = (row["all"] for row in rows if "all" in row)
    assert one == other[::-1]
    assert max(max(row["largest_error"]) for row in rows if row.get("check")) < 0.007
