"""The story of FlashAttention: in node it counts and judges as Python does; the page in a browser, offline."""

import json
import random
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli import main as cli
from pebblesim.core.errors import Infeasible
from pebblesim.language.registry import get, of_problem
from pebblesim.views.document import in_javascript, scripts
from pebblesim.views.recording import record
from pebblesim.views.story import ARITHMETIC, RUNNING, page
from pebblesim.views.story.content import SCHEDULES, data, of_schedule

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script by itself")

TOLD = [name for names in SCHEDULES.values() for name in names]

BEYOND = {
    "scores-partly-stored", "scores-stored-blocked", "scores-stored-in-rows", "scores-stored-resident",
    "first-rows-by-columns", "first-rows-keys-stay", "flash-decoding", "flash-decoding-blocked", "row-stationary-split",
    "small-cache-backward-kept", "small-cache-backward-resident-in-rows",
}  # fmt: skip
"""Schedules whose text does not say which of two tiles a name means, that keep copies of a tensor apart, or that name
a part of a part."""

RUN = """
console.log(JSON.stringify(given.map(({ text, sizes, M, ...schedule }) => {
  const ran = played(text, sizes, M, schedule);
  const by = Object.entries(ran.by).map(([name, { reads, writes }]) => [name, [reads, writes]]);
  const wrong = ran.wrong && [ran.wrong.line, ran.wrong.message];
  return { wrong, reads: ran.reads, writes: ran.writes, peak: ran.peak, by: Object.fromEntries(by) };
})));
"""


def in_node(script: str, given: Any, *more: str) -> Any:
    """The output, as JSON, of a script that knows the story's arithmetic and interpreter."""
    known = scripts("explore", *ARITHMETIC) + scripts("story", *RUNNING, *more)
    whole = "\n".join((known, f"const given = {json.dumps(given)};", script))
    ran = subprocess.run(["node", "-"], input=whole, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@cache
def told(name: str) -> dict[str, Any]:
    """What the interpreter needs of a schedule."""
    from pebblesim.language.text import text

    program = get(name).program
    tensors = {tensor.name: [*tensor.shape] for tensor in program.tensors.values()}
    return {"text": text(program), "tensors": tensors, "inputs": [*program.inputs], "outputs": [*program.outputs]}


Point = tuple[str, dict[str, Any], dict[str, int], int]


def drawn(names: list[str], each: int, seed: int) -> list[Point]:
    """(schedule, n and d, blocks, M) at random; blocks that fit, and others that may not."""
    rng, made = random.Random(seed), list[Point]()
    for name in names:
        for _ in range(each):
            dims, M = dict[str, Any](n=rng.randint(1, 9), d=rng.randint(1, 6)), rng.randint(8, 120)
            blocks = {block: rng.randint(1, 6) for block in get(name).blocks}
            if rng.random() < 0.5:
                try:
                    blocks = dict(ps.count(name, M=M, **dims).blocks)
                except Infeasible:
                    continue
            made.append((name, dims, blocks, M))
    return made


def compare(points: list[Point]) -> tuple[int, int]:
    """Compare the page with Python's count, and with the game where a line is illegal; return how many of each."""
    given = [{**told(name), "sizes": {**dims, **blocks}, "M": M} for name, dims, blocks, M in points]
    legal = illegal = 0
    for (name, dims, blocks, M), here in zip(points, in_node(RUN, given), strict=True):
        counted = ps.count(name, M=10**6, blocks=blocks, **dims)
        where = (name, dims, blocks, M, here["wrong"])
        if counted.peak_red <= M:
            assert here["wrong"] is None, where
            assert (here["reads"], here["writes"], here["peak"]) == (counted.reads, counted.writes, counted.peak_red), (
                where
            )
            assert here["by"] == {tensor: [*words] for tensor, words in counted.by_tensor.items()}, where
            legal += 1
        else:
            game = record(name, M=M, blocks=blocks, **dims)
            assert game.game.violation is not None
            assert "red pebble" in game.game.violation.message, game.game.violation.message
            assert here["wrong"] is not None and f"M = {M}" in here["wrong"][1], where
            whole = record(name, M=10**6, blocks=blocks, **dims)  # has the line of the move that was refused
            assert here["wrong"][0] == whole.line_at(len(game.moves) + 1), where
            illegal += 1
    return legal, illegal


def test_the_interpreter_counts_and_judges_as_python_does() -> None:
    legal, illegal = compare(drawn(TOLD, 4, seed=5))
    assert legal > 10 and illegal > 3


@pytest.mark.slow
def test_the_interpreter_counts_and_judges_as_python_does_for_all_schedules_it_understands() -> None:
    names = [each.name for problem in SCHEDULES for each in of_problem(problem) if each.problem.name == problem]
    legal, illegal = compare(drawn([name for name in names if name not in BEYOND], 40, seed=6))
    assert legal > 300 and illegal > 100


def test_the_reference_is_attention() -> None:
    script = """
    const made = attention(given.n, given.d);
    const plain = Object.entries(made).map(([name, { values }]) => [name, [...values]]);
    console.log(JSON.stringify(Object.fromEntries(plain)));
    """
    n, d = 7, 3
    values = {name: np.array(each) for name, each in in_node(script, {"n": n, "d": d}).items()}
    Q, K, V, dO = (values[name].reshape(n, d) for name in ("Q", "K", "V", "dO"))
    assert len({*values["Q"]}) == n * d and np.abs(values["Q"]).max() <= 1
    weights = np.exp(Q @ K.T)
    P = weights / weights.sum(axis=1, keepdims=True)
    dP = dO @ V.T
    dS = P * (dP - (P * dP).sum(axis=1, keepdims=True))
    expected = {
        "O": P @ V,
        "P": P,
        "L": np.log(weights.sum(axis=1)),
        "l": weights.sum(axis=1),
        "dQ": dS @ K,
        "dK": dS.T @ Q,
    }
    expected |= {"dV": P.T @ dO, "m": (Q @ K.T).max(axis=1)}
    for name, matrix in expected.items():
        np.testing.assert_allclose(values[name], matrix.ravel(), rtol=1e-12, atol=1e-12, err_msg=name)


def verdict(text: str, sizes: dict[str, int], M: int = 48, name: str = "flash2-forward") -> tuple[int, str] | None:
    (here,) = in_node(RUN, [{**told(name), "outputs": ["O"], "text": text, "sizes": {"n": 8, "d": 4, **sizes}, "M": M}])
    return None if here["wrong"] is None else (here["wrong"][0], here["wrong"][1])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("            delete K_j\n", "", 9, "needs 49 red pebbles, and the cache has M = 48"),
        ("            O_i ← diag(m_i) O_i\n", "", 22, "every line is legal, but the result is false: O[0, 0] is"),
        ("        write O[i, :] ← O_i\n", "", 22, "at the end O[0, 0] is not in memory"),
        ("        read Q[i, :] as Q_i\n", "", 7, "Q_i is not in the cache"),
        ("read V[j, :] as V_j", "read V[i, :] as V_j", 19, "the sum goes over 0…1 of n on the left, and 0…2"),
        ("read Q[i, :] as Q_i", "read P[i, :] as Q_i", 2, "there is no P in memory"),
        ("read Q[i, :] as Q_i", "read O[i, :] as Q_i", 2, "O[0…2, 0…3] is not in memory: nothing wrote it"),
        ("read Q[i, :] as Q_i", "reed Q[i, :]", 2, "not understood: “reed Q[i, :]”"),
        ("P ← exp(P − m_new)", "P ← exp(P − m_new", 13, "not understood: “exp(P − m_new”"),
        ("tiles of n by B_c", "tiles of n by B_x", 6, "B_x is no block size"),
    ],
)  # fmt: skip
def test_an_edit_is_judged(before: str, after: str, line: int, said: str) -> None:
    text = told("flash2-forward")["text"]
    assert before in text
    found = verdict(text.replace(before, after), {"B_r": 3, "B_c": 2})
    assert found is not None
    assert found[0] == line and said in found[1], found


def test_ascii_is_understood() -> None:
    text = told("flash2-forward")["text"]
    for sign, typed in (
        ("←", "<-"),
        (" · K_jᵀ", " @ K_j.T"),
        ("∘", "*"),
        ("−∞", "-inf"),
        ("⁻¹", "^-1"),
        (" − ", " - "),
    ):
        assert sign in text
        text = text.replace(sign, typed)
    assert verdict(text, {"B_r": 3, "B_c": 2}) is None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TOLD)
def test_closed_forms_by_tensor_and_by_phase_are_those_of_the_count(name: str) -> None:
    content = of_schedule(name)
    counted = ps.count(name, M=300, n=37, d=5)
    script = f"""
    const schedule = {in_javascript(content)}, s = asBig(given);
    const all = (pairs) => Object.fromEntries(pairs.map(([name, words]) => [name, String(words(s))]));
    const phases = Object.entries(schedule.byPhase).map(([name, {{ words }}]) => [name, words]);
    console.log(JSON.stringify([all(Object.entries(schedule.byTensor)), all(phases)]));
    """
    sizes = {"n": 37, "n_q": 37, "n_k": 37, "d": 5, "d_k": 5, "d_v": 5, **counted.blocks}
    by_tensor, by_phase = in_node(script, sizes)
    assert by_tensor == {tensor: str(sum(words)) for tensor, words in counted.by_tensor.items()}
    assert by_phase == {phase: str(sum(moved)) for phase, moved in counted.phases.items()}


@pytest.mark.one_in(2)
def test_blocks_are_the_largest_that_fit() -> None:
    points = [(name, dims, blocks, M) for name, dims, blocks, M in drawn(TOLD, 12, seed=7) if blocks]
    script = f"""
    const schedules = {in_javascript({name: of_schedule(name) for name in TOLD})};
    console.log(JSON.stringify(given.map(([name, {{ n, d }}, , M]) =>
      new AtSizes(schedules[name], {{ n_q: n, n_k: n, d, d_k: d, d_v: d }}).fitting(M))));
    """
    for (name, dims, _, M), here in zip(points, in_node(script, points), strict=True):
        try:
            assert here == dict(ps.count(name, M=M, **dims).blocks), (name, dims, M)
        except Infeasible:
            assert here is None, (name, dims, M)


def test_the_online_softmax_is_the_softmax() -> None:
    script = """
    console.log(JSON.stringify(given.map(([scores, values, block]) => {
      const steps = onlineSoftmax(scores, values, block), last = steps.at(-1);
      return [last.O / last.l, wholeSoftmax(scores, values), steps.length];
    })));
    """
    rng = np.random.default_rng(3)
    rows = [
        (rng.normal(0, 9, size).tolist(), rng.normal(size=size).tolist(), block)
        for size in (1, 7, 8)
        for block in (1, 3, 8)
    ]
    found = in_node(script, rows, "softmax.js")
    for (scores, values, block), (online, whole, steps) in zip(rows, found, strict=True):
        weights = np.exp(np.array(scores) - max(scores))
        assert online == pytest.approx(weights @ values / weights.sum(), rel=1e-12, abs=1e-12)
        assert whole == pytest.approx(online, rel=1e-12, abs=1e-12)
        assert steps == -(-len(scores) // block)


@pytest.mark.one_in(3)
def test_the_numbers_of_the_text_are_those_of_python() -> None:
    script = f"""
    const DATA = {in_javascript(data())}, schedules = DATA.problems.flatMap((each) => each.schedules);
    console.log(JSON.stringify(numbers()));
    """
    said = in_node(script, None, "lab.js", "story.js")
    full: dict[str, Any] = {"n": 8192, "d": 128, "M": 116_224}

    def io(name: str, **sizes: int) -> int:
        return ps.count(name, **{**full, **sizes}).io

    def millions(words: int) -> str:
        return f"{words / 1e6:,.0f} million"

    assert said["small-unfused"] == str(ps.count("standard-forward", n=8, d=4, M=48).io)
    assert said["small-flash"] == str(ps.count("flash2-forward", n=8, d=4, M=48).io)
    unfused, flash = io("standard-forward"), io("flash2-forward")
    assert said["unfused"] == millions(unfused) and said["flash2"] == millions(flash)
    assert said["fewer"] == f"{unfused / flash:.1f}"
    spilled = sum(sum(ps.count("standard-forward", **full).by_tensor[name]) for name in "SP")
    assert said["spilled"] == f"{spilled / unfused:.0%}"
    assert said["flash-rows"] == str(ps.count("flash2-forward", **full).blocks["B_r"])
    assert said["back-two"] == millions(io("backward-two-pass"))
    assert said["back-more"] == f"{100 * (io('flash2-backward') / io('backward-two-pass') - 1):.0f} %"
    assert said["gemma-back-flash"] == f"{io('flash2-backward', d=512) / 1e6:,.0f} million"
    assert said["gemma-small"] == millions(io("small-cache-forward-streamed", d=512))
    bound = ps.bounds("forward", **full).best.value
    assert said["gap"] in {f"{100 * (flash / (bound * share) - 1):.0f} %" for share in (1, 0.995)}
    assert said["gemma-back-unfused"] == millions(io("standard-backward", d=512))
    assert io("small-cache-backward-streamed", d=512) < io("standard-backward", d=512) < io("flash2-backward", d=512)
    for which, rows_stay, small in (
        ("", "flash2-forward", "small-cache-forward-streamed"),
        ("back-", "flash2-backward", "small-cache-backward-streamed"),
    ):
        crossing = int(said[f"{which}crossing"].replace(",", ""))
        assert said[f"{which}crossing-ratio"] == f"{crossing / 128**2:.1f}"
        for M, flash_wins in ((crossing, True), (crossing - 1, False)):
            assert (io(rows_stay, M=M) < io(small, M=M)) == flash_wins
        wide = int(said[f"{which}wide-d"])
        for d, small_wins in ((wide, True), (wide - 1, False), (512, True), (1024, True)):
            assert (io(small, d=d) < io(rows_stay, d=d)) == small_wins


# -- the command and the page ------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
def test_the_page_is_one_file() -> None:
    made = page()
    assert "default-src 'none'" in made
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", made)
    numbered = set(re.findall(r'data-number="([\w-]+)"', made))
    assert numbered <= set(re.findall(r'"([\w-]+)": ', scripts("story", "story.js")))


def test_a_story_takes_no_sizes(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli.app, ["explore", "forward", "--story", "-o", str(tmp_path / "s.html")])
    assert ran.exit_code != 0
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("look", [{"width": 1280, "height": 900}, {"width": 390, "height": 844}])
def test_the_story_is_told_offline_on_a_desk_and_on_a_phone(look: dict[str, int], offline: Any, tmp_path: Path) -> None:
    path = tmp_path / "story.html"
    assert CliRunner().invoke(cli.app, ["explore", "--story", "-o", str(path)]).exit_code == 0
    tab = offline(viewport=look).new_page()
    tab.goto(path.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= look["width"]  # nothing has to be scrolled sideways
    assert "264 words moved done" in tab.inner_text("#race").replace("\n", " ")

    def slide(lab: str, name: str, value: int) -> None:
        tab.eval_on_selector(
            f'{lab} input[aria-label="{name}"]',
            "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }",
            value,
        )

    slide("#tiles", "b", 4)
    assert "✗ Illegal at line" in tab.inner_text("#tiles .verdict")
    slide("#tiles", "M", 60)
    assert "✓ Legal" in tab.inner_text("#tiles .verdict")
    slide("#rows-stay", "M", 64)
    counted = ps.count("flash2-forward", n=8, d=4, M=64)
    assert f"= {counted.io} words" in tab.inner_text("#rows-stay .verdict")
    tab.click("#rows-stay .tabs button:nth-child(2)")
    counted = ps.count("flash1-forward", n=8, d=4, M=64)
    assert f"= {counted.io} words" in tab.inner_text("#rows-stay .verdict")
    slide("#cache", "cache M, in words", 12)
    assert "Small-cache moves the fewest." in tab.inner_text("#cache .verdict")
    for number, said in {
        2: "✗ line 3, step 1: i is no loop",
        3: "the result is false",
        4: "needs 49 red pebbles",
        5: "not in memory",
        6: "✓ Legal and right: 368 words",
        7: "✓ Legal and right: 640 words",
        1: "✓ Legal and right: 264 words",
    }.items():
        tab.click(f"#editor .tabs button:nth-child({number})")
        assert said in tab.inner_text("#editor .verdict"), number
    tab.click("#race + .transport button")
    tab.wait_for_timeout(300)
    assert tab.evaluate("story.race.at") > 0
