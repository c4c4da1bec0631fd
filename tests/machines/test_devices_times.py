"""Times of schedules over two classes of links, computed by hand, and exact crossings of their words."""

import json

import numpy as np
import pytest
import sympy
from matplotlib.figure import Figure

import pebblesim as ps
from pebblesim.__main__ import main
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.parallel.count import best
from pebblesim.parallel.crossings import COMPARED, in_devices, in_sharing
from pebblesim.parallel.links import Link, Network, link, links, times
from pebblesim.parallel.schedules import SCHEDULES
from pebblesim.parallel.team import Team
from pebblesim.views.plots.devices import figure

NEAR, FAR = Link("near", 1e6, 1e-3, ("", "")), Link("far", 1e5, 1e-2, ("", ""))


def network(in_machine: int, rate: float = 1e9) -> Network:
    return Network(NEAR, FAR, in_machine, rate, word=2)


def test_a_ring_in_one_machine_and_in_two() -> None:
    """Three steps with K and V of 10 tokens, 4 words each; 2·8 operations for each of 10·40 pairs."""
    moved = best(SCHEDULES["ring"], Team.square(40, 4, 1, 1, 4))
    products = 2 * 8 * 400 / 1e9
    inside = 3 * (1e-3 + 160 / 1e6)
    found = times(moved, network(4))
    assert found == pytest.approx((products, inside, inside - 3 * products / 4))
    assert times(moved, network(2))[1] == pytest.approx(3 * (1e-2 + 160 / 1e5))
    assert times(moved, network(4, rate=1e3))[2] == 0  # slow products hide all


def test_a_tile_gets_rows_and_keys_of_both_classes_and_sends_sums() -> None:
    """Device 0 of four has the rows of 0 and 2 and the keys of 0 and 1; machines are {0, 1} and {2, 3}."""
    moved = best(SCHEDULES["tiles"], Team.square(40, 4, 1, 1, 4))
    assert str(moved.split) == "1 x 2 x 2" and moved.busiest == 0
    products = 2 * 8 * 400 / 1e9
    keys, rows, sums = 1e-3 + 10 * 8 * 2 / 1e6, 1e-2 + 10 * 4 * 2 / 1e5, 1e-2 + 10 * 5 * 2 / 1e5
    arriving = max(keys, rows)  # the two classes at the same time
    found = times(moved, network(2))
    assert found == pytest.approx((products, arriving + sums, arriving - products / 4 + sums))


def test_backward_ring_returns_sums_in_the_same_steps() -> None:
    moved = best(SCHEDULES["ring"], Team.square(40, 4, 1, 1, 4, True))
    assert times(moved, network(4))[1] == pytest.approx(3 * (1e-3 + 2 * 160 / 1e6))
    assert times(moved, network(4))[0] == pytest.approx(2 * 20 * 400 / 1e9)


@pytest.mark.parametrize("bandwidth, least", [(450e9, 2198), (50e9, 19780)])
def test_a_ring_is_hidden_from_the_block_that_its_paper_states(bandwidth: float, least: int) -> None:
    """Ring Attention, arXiv 2310.01889: blocks of F/B tokens, F operations and B bytes a second, two bytes a word."""
    free = Network(Link("", bandwidth, 0, ("", "")), FAR, 8, 989e12, word=2)
    assert least - 1 < 989e12 / bandwidth <= least
    for block, hidden in ((least - 1, False), (least, True)):
        moved = best(SCHEDULES["ring"], Team.square(8 * block, 128, 16, 16, 8))
        assert (times(moved, free).exposed == 0) is hidden


def test_passes_have_no_time() -> None:
    team = Team.square(40, 4, 1, 1, 4)
    with pytest.raises(UsageError, match="has no time here"):
        times(best(SCHEDULES["tiles-in-passes"], team, 10**6), network(4))
    result = ps.devices(n=40, d=4, P=4, M=10**6, network=network(4))
    assert {row["schedule"]: row["seconds"] is None for row in result.to_dict()["rows"]}["tiles-in-passes"]
    with pytest.raises(UsageError, match="must be more than 0"):
        network(0)


def test_the_command_prints_times_for_a_card(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["pebblesim", "devices", "-n", "64k", "-d", "128", "-P", "16", *words])
        with pytest.raises(SystemExit):
            main()
        return "".join(capsys.readouterr())

    rows = json.loads(run("--gpu", "H100", "--json"))["rows"]
    ring = next(row for row in rows if row["schedule"] == "ring")["seconds"]
    block = 2 * 4096 * 128 * 2
    assert ring["transfers"] == pytest.approx(15 * (14e-6 + block / 50e9))
    assert "NVLink 4 (450 GB/s) inside, InfiniBand NDR (50 GB/s) between" in " ".join(run("--gpu", "H100").split())
    assert "--inside takes NVLink 3" in " ".join(run("--gpu", "MI300X").split())
    assert "did you mean 'NVLink 4'" in run("--gpu", "H100", "--inside", "NVLink4")
    for wrong in ("foo=8", "P=8", "heads=2"):
        assert "devices has the sizes n_q, n_k, d_k and d_v" in run("--size", wrong)


def test_every_link_has_figures_and_sources() -> None:
    assert {name: each.bandwidth for name, each in links().items()}["InfiniBand NDR"] == 50e9
    assert all(each.bandwidth > 1e9 and 0 < each.latency < 1e-4 and all(each.sources) for each in links().values())
    with pytest.raises(UnknownName):
        link("NVLink 9")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "first, second, heads, kv_heads",
    [("ring", "ulysses", 32, 8), ("ring", "tiles", 32, 8), ("ulysses-rows", "tiles", 8, 1)],
)
def test_counted_words_cross_where_the_closed_forms_do(
    first: str, second: str, heads: int, kv_heads: int, backward: bool
) -> None:
    """The first schedule has fewer words below the crossing, and more above; both are counted."""
    d = 16
    roots = in_devices(first, second, d=d, heads=heads, kv_heads=kv_heads, backward=backward)
    assert roots and all(root.is_number for root in roots)

    def ahead(P: int) -> int:
        team = Team.square(P * 8, d, heads, kv_heads, P, backward)
        try:
            return best(SCHEDULES[first], team).words - best(SCHEDULES[second], team).words
        except UsageError:
            return 0

    assert len(roots) == 1
    assert ahead(2) <= 0 < roots[0] - 2  # tiles may be a ring
    above = [ahead(P) for P in (16, 32, 64, 128, 256) if roots[0] < P / 2]  # splits are whole numbers
    assert above and all(each >= 0 for each in above) and max(above) > 0


@pytest.mark.parametrize("backward", [False, True])
def test_at_a_crossing_the_counts_are_equal(backward: bool) -> None:
    """Ulysses and its rows agree at P = h_kv; rings of keys and queries where heads make up for statistics."""
    team = Team.square(64, 3, 16, 4, 4, backward)
    assert sympy.Integer(4) in in_devices("ulysses", "ulysses-rows", d=3, heads=16, kv_heads=4, backward=backward)
    assert best(SCHEDULES["ulysses"], team).words == best(SCHEDULES["ulysses-rows"], team).words
    (gamma,) = in_sharing("ring", "query-ring", d=2, backward=backward)
    assert gamma == (sympy.Rational(1) if backward else sympy.Rational(4, 5))
    if backward:
        alike = Team.square(8, 2, 3, 3, 4, True)
        assert best(SCHEDULES["ring"], alike).words == best(SCHEDULES["query-ring"], alike).words
    with pytest.raises(UnknownName):
        in_devices("all-gather", COMPARED[0], d=1, heads=1, kv_heads=1)


@pytest.mark.parametrize("ownership", ["contiguous", "zig-zag"])
def test_the_picture_of_times_shows_products_and_what_they_do_not_hide(ownership: str) -> None:
    results = [ps.devices(n=64, d=4, P=P, mask="causal", ownership=ownership, network=network(2)) for P in (2, 4, 8)]
    drawing = Figure()
    figure(results, drawing)
    (ax,) = drawing.axes
    lines = {str(line.get_label()): dict(np.asarray(line.get_xydata())) for line in ax.lines}
    for result in results:
        share = 2 * 8 * (64 * 65 / 2) / result.team.P / 1e9  # multiplications and additions of d_k + d_v columns
        for row in result.rows:
            found = result.times(row)
            assert found is not None
            seen = lines[row.schedule.name][result.team.P]
            assert seen == pytest.approx((found.products + found.exposed) / share)
            assert seen > 1
