"""Processes that give different arguments to attention on many devices: one sentence in each, and none waits."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from strategies import amount  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.operator.distributed.agreement import Given, check_agreement, difference  # noqa: E402

P = 3

USUAL: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "d_k": 4, "d_v": 3, "n": 12, "type": "float64"}
USUAL |= {"is_causal": False, "scale": None, "schedule": "ring", "ownership": None, "tokens": None, "gradients": True}

OTHERS: dict[str, list[Any]] = {
    "batch": [1, 3],
    "heads": [2, 6, 3],
    "kv_heads": [1, 4],
    "d_k": [5, 2048],
    "d_v": [4, 8],
    "n": [15, 9],
    "type": ["float32", "bfloat16", "int32", "float8_e5m2"],
    "is_causal": [True, "yes"],
    "scale": [0.3, -1, "1"],
    "schedule": ["all-gather", "ulysses-rows", "best", "rings", ["ring"]],
    "ownership": ["striped", "by rows"],
    "tokens": [13, (6, 6), (), "12"],
    "gradients": [False],
}
"""What one process gives otherwise: that other processes could give, too, and what none could."""

SAID = {"kv_heads": "KV heads", "n": "tokens"}
"""Names of options in the sentence, where they are others."""


def cases(seed: int, number: int) -> list[dict[int, dict[str, Any]]]:
    """What processes give otherwise, by process: each option once, then some at random; also nothing, or all alike."""
    draw = random.Random(seed)
    found = [{draw.randrange(P): {name: value}} for name, values in OTHERS.items() for value in values]
    for _ in range(number):
        names = draw.sample(list(OTHERS), draw.randint(0, 3))
        other = {name: draw.choice(OTHERS[name]) for name in names}
        found.append(dict.fromkeys(draw.sample(range(P), draw.choice([1, 1, 2, P])), other))
    return found


def call(rank: int, given: dict[str, Any]) -> Any:
    """Attention of this process's tokens, with its gradients if they are wanted."""
    from pebblesim.operator.distributed import parallel
    from pebblesim.parallel.tokens import OWNERSHIPS

    own = given["ownership"] if given["ownership"] in OWNERSHIPS else "contiguous"
    n, tokens = given["n"], given["tokens"]
    mine = len(parallel.tokens_of(rank, P, tokens if isinstance(tokens, tuple) and tokens else n, own))
    widths = (given["heads"], given["d_k"]), (given["kv_heads"], given["d_k"]), (given["kv_heads"], given["d_v"])
    kind = getattr(torch, given["type"])
    x = [torch.ones(given["batch"], heads, mine, d).to(kind) for heads, d in widths]
    wanted = given["gradients"] and kind.is_floating_point
    x = [each.requires_grad_(wanted) for each in x]
    how = {name: given[name] for name in ("is_causal", "scale", "schedule", "ownership", "tokens")}
    out = parallel.attention(*x, **how)
    if wanted:
        out.sum().backward()
    return out.detach()


def process(rank: int, folder: str, seed: int, number: int) -> None:
    """Make all calls as one of the processes, and save what came of each; between them, one that all make alike."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=P, timeout=timedelta(seconds=30)
    )
    results: list[Any] = []
    for case in cases(seed, number):
        try:
            made: Any = call(rank, USUAL | case.get(rank, {})).shape
        except UsageError as error:
            made = str(error)
        again = call(rank, USUAL)
        assert torch.equal(again, torch.ones_like(again)), "means of ones"
        results.append(made)
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_that_disagree_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names the process and all that it gives otherwise, or what is wrong in it; then they compute as before."""
    if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # this machine alone, whatever its name resolves to
    seed, number = 1, amount(60, 300)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(process, (folder, seed, number), P)
        results = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(P)]
    refused = 0
    for at, case in enumerate(cases(seed, number)):
        made = [each[at] for each in results]
        if len({repr(case.get(rank, {})) for rank in range(P)}) == 1:  # all alike
            assert len({type(each) for each in made}) == 1, (case, made)
            continue
        assert isinstance(made[0], str) and made == [made[0]] * P, (case, made)
        assert "\n" not in made[0] and (made[0].startswith("process ")), (case, made[0])
        refused += 1
        rank, told = int(made[0].split()[1].rstrip(":")), made[0].endswith("; give the same in all processes.")
        assert rank in case or (len(case) == 2 and told), (case, made[0])
        if told:
            names = {SAID.get(name, name) for name in next(iter(case.values()))} - {"gradients"}
            assert all(f"{name} = " in made[0] for name in names), (case, made[0])
    assert refused > number // 2


def test_the_sentence_names_who_differs_and_in_what() -> None:
    one, two = {"tokens": 12, "scale": None, "is_causal": True}, {"tokens": 13, "scale": None, "is_causal": False}
    assert difference([Given(one, None), Given(two, None), Given(one, None)]) == (
        "process 1 of 3 has tokens = 13, is_causal = False, and process 0 has tokens = 12, is_causal = True; give the "
        "same in all processes."
    )
    assert difference([Given(two, None), Given(one, None), Given(one, None)]).startswith(
        "process 0 of 3 has tokens = 13"
    )
    assert difference([Given(one, None), Given(two, "not so many"), Given(one, None)]).startswith("process 1 of 3 has")
    assert difference([Given(one, None), Given(one, "not so many")]) == "process 1 of 2: not so many"
    assert difference([Given(one, None), Given(two, None), Given({}, "a tensor")]) == "process 2 of 3: a tensor"


def test_what_is_wrong_here_is_refused_also_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is gathered: the calls of the graph were compared when they were made before."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    check_agreement(Given({"tokens": 12}, None), None)
    with pytest.raises(UsageError, match="not so many"):
        check_agreement(Given({}, "not so many."), None)
