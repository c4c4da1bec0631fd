"""Devices as processes (or threads) joined by pipes (or queues), with numpy inside, for tests of the engine."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pebblesim.operator.distributed.exchange import Device
from pebblesim.parallel.count import Layout, Moved
from pebblesim.parallel.schedules import SCHEDULES, Split
from pebblesim.parallel.team import Team


class Numpy:
    """Attention in numpy, float64. A device may have one head of several that share keys."""

    def spread(self, of_keys: Any, Q: Any) -> Any:
        return np.repeat(of_keys, Q.shape[-3] // of_keys.shape[-3], -3)

    def scores(self, Q: Any, K: Any, causal: bool) -> Any:
        S = Q @ np.swapaxes(self.spread(K, Q), -1, -2)
        if causal:
            n_q, n_k = S.shape[-2:]
            S = np.where(np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q, S, -np.inf)
        return S

    def forward(self, Q: Any, K: Any, V: Any, causal: bool) -> tuple[Any, Any]:
        S = self.scores(Q, K, causal)
        assert (-np.inf < S).any(-1).all()
        L = np.asarray(np.logaddexp.reduce(S, axis=-1, keepdims=True))
        return np.exp(S - L) @ self.spread(V, Q), L

    def backward(self, x: Mapping[str, Any], causal: bool) -> dict[str, Any]:
        K, V = (self.spread(x[name], x["Q"]) for name in "KV")
        P = np.exp(self.scores(x["Q"], x["K"], causal) - x["L"])
        dS = P * (x["dO"] @ np.swapaxes(V, -1, -2) - x["D"])
        turned = np.swapaxes(dS, -1, -2), np.swapaxes(P, -1, -2)
        return {
            "dQ": dS @ K,
            "dK": self.shared(turned[0] @ x["Q"], x["K"]),
            "dV": self.shared(turned[1] @ x["dO"], x["V"]),
        }

    def shared(self, by_head: Any, like: Any) -> Any:
        return by_head.reshape(*like.shape[:-2], -1, *like.shape[-2:]).sum(-3)

    def merge(self, O: Any, L: Any, part: Any, part_L: Any) -> None:
        both = np.logaddexp(L, part_L)
        O[...] = O * np.exp(L - both) + part * np.exp(part_L - both)
        L[...] = both

    def empty(self, like: Any, heads: int, tokens: int, words: int, statistic: bool) -> Any:
        return np.full((*like.shape[:-3], heads, tokens, words), np.nan)

    def sums(self, like: Any, heads: int, tokens: int, words: int, value: float) -> Any:
        return np.full((*like.shape[:-3], heads, tokens, words), value)

    def rounded(self, sums: Any, like: Any) -> Any:
        return sums

    def join(self, arrays: Any) -> Any:
        return np.concatenate(list(arrays), axis=-2)


class Channels:
    """A transport over anything with put and get for each pair of devices; messages have the number of their call."""

    def __init__(self, rank: int, put: Callable[[int, Any], None], get: Callable[[int], Any]) -> None:
        self.rank, self.put, self.get = rank, put, get
        self.words, self.calls, self.early = 0, 0, dict[tuple[int, int], Any]()
        self.locks = defaultdict[int, threading.Lock](threading.Lock)

    def exchange(self, sends: Mapping[int, list[Any]], receives: Mapping[int, list[Any]], sums: bool) -> Any:
        self.words += sum(array.size for arrays in (sends if sums else receives).values() for array in arrays)
        number, self.calls = self.calls, self.calls + 1

        def send() -> None:
            for q, arrays in sends.items():
                with self.locks[q]:
                    self.put(q, (number, arrays))

        sender = threading.Thread(target=send)
        sender.start()

        class Waiting:
            def wait(_) -> None:
                for q, arrays in receives.items():
                    for array, got in zip(arrays, self.message(q, number), strict=True):
                        assert array.shape == got.shape
                        array[...] = got
                sender.join()

        return Waiting()

    def message(self, q: int, number: int) -> Any:
        while (q, number) not in self.early:
            early, arrays = self.get(q)
            self.early[q, early] = arrays
        return self.early.pop((q, number))


Case = tuple[Team, str, Split]


def part(case: Case, transport: Channels, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Run one device's part; return its outputs and the words that it moved."""
    team, name, split = case
    moved = Moved(SCHEDULES[name], Layout(team, split))
    return Device(moved, transport, Numpy(), inputs).run(), transport.words


def shards(team: Team, x: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Cut arrays into those of each device; statistics get a last axis of one word."""
    cut = []
    for p in range(team.P):
        own = {name: list((team.own_keys if name in "KV" else team.own_rows)[p]) for name in x}
        cut.append({name: a[:, own[name]][..., None] if a.ndim == 2 else a[:, own[name]] for name, a in x.items()})
    return cut


def in_threads(case: Case, x: Mapping[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """Run all devices, each in a thread."""
    P = case[0].P
    queues = {(a, b): queue.Queue[Any]() for a in range(P) for b in range(P)}
    results: list[Any] = [None] * P

    def one(p: int, mine: dict[str, Any]) -> None:
        channels = Channels(p, lambda q, what: queues[p, q].put(what), lambda q: queues[q, p].get(timeout=20))
        results[p] = part(case, channels, mine)

    threads = [threading.Thread(target=one, args=each) for each in enumerate(shards(case[0], x))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Processes:
    """P processes; each waits for cases, and has a pipe to each other one."""

    def __init__(self, P: int) -> None:
        context, self.P = get_context("spawn"), P
        between = {(a, b): context.Pipe() for a in range(P) for b in range(a)}
        self.ours, theirs = zip(*(context.Pipe() for _ in range(P)), strict=True)
        pipes = [{q: between[max(p, q), min(p, q)][p < q] for q in range(P) if q != p} for p in range(P)]
        self.processes = [context.Process(target=serve, args=(p, theirs[p], pipes[p]), daemon=True) for p in range(P)]
        for process in self.processes:
            process.start()

    def __call__(self, case: Case, x: Mapping[str, Any]) -> list[tuple[dict[str, Any], int]]:
        for pipe, mine in zip(self.ours, shards(case[0], x), strict=True):
            pipe.send((case, mine))
        return [pipe.recv() for pipe in self.ours]

    def end(self) -> None:
        for pipe in self.ours:
            pipe.send(None)
        for process in self.processes:
            process.join()


def serve(p: int, jobs: Connection, pipes: dict[int, Connection]) -> None:
    """A device's process."""
    while (job := jobs.recv()) is not None:
        case, mine = job
        jobs.send(part(case, Channels(p, lambda q, what: pipes[q].send(what), lambda q: pipes[q].recv()), mine))
