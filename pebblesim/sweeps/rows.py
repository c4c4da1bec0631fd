"""Compute the rows of a sweep point by point: on all cores, or on a cluster.

Each row is stored as soon as it is computed (`pebblesim.sweeps.store`), under a key of everything that defines it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pebblesim.api.own_bounds import Own
from pebblesim.api.play import play_run
from pebblesim.core import __version__
from pebblesim.core.errors import Infeasible, PebblesimError, UsageError
from pebblesim.counting.count import count_run
from pebblesim.counting.run import Run
from pebblesim.language import masks
from pebblesim.language.masks import AnyHeads, HeadMasks
from pebblesim.language.program import fingerprint
from pebblesim.language.registry import Schedule
from pebblesim.sweeps.definitions import definition
from pebblesim.sweeps.store import RowStore, StoredRow

FORMAT = 2
"""Version of the rows; stored rows of another version are ignored."""


PATIENCE = 10
"""Seconds in which a Dask scheduler must answer."""


IDLE = 20
"""Seconds after which an idle worker process ends, even if its sweep was killed."""


FEW = 100
"""For at most this many points, which take milliseconds each, no other processes are started."""


RESULTS = {
    "count": ("reads", "writes", "io", "peak_words", "peak_red", "feasible", "bound_ratio", "gap", "gap_of_way"),
    "formula": ("reads", "writes", "io", "peak_words"),
    "play": (
        *("vertices", "edges", "moves", "reads", "writes", "io", "peak_red"),
        *("legal", "complete", "passed", "violation"),
    ),
}
"""The possible kinds of rows, and their columns."""


@dataclass(frozen=True)
class Point:
    """Everything that defines a row.

    Attributes:
        what: "count", "formula" or "play".
        run: the schedule, the sizes, the mask and the heads; M is 0 if nothing depends on it.
        rules: as for `play`.
        program: a hash of the schedule's program under the mask, its problem and its bounds; see `describe`.
    """

    what: str
    run: Run
    rules: str
    program: str

    def key(self) -> str:
        """A hash of everything that defines the row: the sizes, and the program and its problem rather than names."""
        run = self.run
        sizes = [run.dims, run.M, run.blocks, run.summation, self.rules]
        sizes += [run.heads.to_dict()] if run.heads.is_given else []
        text = json.dumps([FORMAT, __version__, self.what, self.program, sizes], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def describe(algorithm: Schedule, mask: AnyHeads | None) -> str:
    """Return a hash of a schedule, what it does under a mask, its problem, and the bounds its rows are compared with.

    The problem counts with its reference, its graph, its Θ and its bounds, and users' own bounds with their functions.
    """
    program = fingerprint(algorithm.under(mask))
    declared = {entry.name: getattr(algorithm, entry.name) for entry in fields(algorithm) if entry.name != "function"}
    return definition(declared, program, _allowed(mask), Own.known().bounds_of_problems)


def _allowed(mask: AnyHeads | None) -> object:
    """Return the allowed pairs of a mask, as text or hashes: the name of a file says nothing."""
    if isinstance(mask, HeadMasks):
        return [_allowed(each) for each in mask.each]
    if isinstance(mask, masks.BlockMask) and not isinstance(mask, masks.BigBird):
        return mask.size, mask.table.shape, hashlib.sha256(mask.table.tobytes()).hexdigest()
    return str(mask)


@dataclass(frozen=True)
class Workers:
    """How points are computed: the store of rows, the number of processes or the cluster, and the progress callback."""

    store: Path | None
    jobs: int | None
    dask: str | None
    progress: Callable[[float], None] | None

    def rows(self, points: Sequence[Point]) -> list[StoredRow]:
        """Return a row for each point, in order; only rows that are not stored yet are computed.

        Raises:
            UsageError: some rows could not be computed; the others are stored.
        """
        keys = [point.key() for point in points]
        with RowStore(self.store) as store:
            done = store.known(keys)
            pending = {key: point for key, point in zip(keys, points, strict=True) if key not in done}
            failed = []
            for key, row, failure in self._computed(pending):
                if row is None:
                    failed.append(failure)
                else:
                    store.keep(key, row)
                    done[key] = row
                if self.progress:
                    self.progress((len(done) + len(failed)) / len(keys))
        if failed:
            where = f"; the others are kept in {self.store}" if self.store else ""
            raise UsageError(f"{len(failed)} of {len(keys)} rows could not be computed{where}. The first: {failed[0]}")
        return [done[key] for key in keys]

    def _computed(self, pending: Mapping[str, Point]) -> Iterator[tuple[str, StoredRow | None, str]]:
        if not pending:
            return
        from joblib import Parallel, cpu_count, delayed, parallel_config

        own = Own.known()
        jobs = min(self.jobs or cpu_count(), len(pending))
        if self.dask is None and len(pending) <= FEW and all(point.what != "play" for point in pending.values()):
            jobs = 1
        here = parallel_config(backend="loky", idle_worker_timeout=IDLE)
        with here if self.dask is None else _cluster(self.dask):
            yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(
                delayed(_work)(__version__, key, point, own) for key, point in pending.items()
            )


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Run joblib's work inside the block on the workers of a Dask scheduler.

    Raises:
        UsageError: no scheduler answers at that address, it has no workers, or Dask is missing.
    """
    try:
        import distributed
    except ImportError:
        raise UsageError("--dask takes two packages that are not here: pip install dask distributed.") from None
    from joblib import parallel_config

    connect: Any = distributed.Client
    try:
        client = connect(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address!r} ({error}); it is an address such as tcp://host:8786."
        ) from None
    with client:
        if not client.ncores():
            raise UsageError(
                f"the Dask scheduler at {address} has no workers yet; start some with `dask worker {address}`."
            )
        with parallel_config(backend="dask", client=client):
            yield


def _work(version: str, key: str, point: Point, own: Own) -> tuple[str, StoredRow | None, str]:
    """Return (key, row, "") or (key, None, reason of the failure); runs in another process."""
    try:
        if version != __version__:
            raise UsageError(f"a worker has pebblesim {__version__}, and this is {version}; install the same.")
        own.declare()
        return key, row_of(point), ""
    except PebblesimError as error:
        return key, None, str(error)


def row_of(point: Point) -> StoredRow:
    """Compute the values of a point, with its blocks; if M is too small, give the least M that is feasible."""
    try:
        if point.what == "formula":
            return {"blocks": point.run.parts[0].block_sizes}
        if point.what == "count":
            counted = count_run(point.run)
            shared = {} if counted.io_without_sharing is None else {"io_without_sharing": counted.io_without_sharing}
            values = {name: getattr(counted, name) for name in RESULTS["count"]}
            return values | {"blocks": dict(counted.blocks)} | shared
        played = play_run(point.run.parts[0], point.rules, strict=False)
        game = played.game.to_dict()
        game |= {"passed": played.passed, "violation": game["violation"] and game["violation"]["message"]}
        return {name: game[name] for name in RESULTS["play"]} | {"blocks": dict(played.blocks)}
    except Infeasible as error:
        return {"blocks": {}, "least_M": error.least_M} | ({"feasible": False} if point.what == "count" else {})
