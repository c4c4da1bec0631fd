"""Arguments of a call that all processes of a group must give alike, compared before words travel.

Words that one process sends and another does not expect would be lost, or be waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from pebblesim.core.errors import UsageError
from pebblesim.operator.launching.fresh import fresh


class Given(NamedTuple):
    """Arguments that a process gives.

    Attributes:
        options: by name; empty if something is wrong with them.
        wrong: a sentence about what is wrong in this process, or None.
    """

    options: Mapping[str, Any]
    wrong: str | None


def check_group(group: Any) -> tuple[int, int]:
    """Return the number of processes, and the number of this one.

    Raises:
        UsageError: there is no group, or this process is not in it.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError("there is no group of processes; start them with torchrun, and call init_process_group first.")
    if group not in (None, dist.GroupMember.NON_GROUP_MEMBER) and not isinstance(group, dist.ProcessGroup):
        raise UsageError(f"group is of {type(group).__name__}; give a group of torch.distributed, or None for all.")
    rank = dist.get_rank(group)
    if rank < 0:
        raise UsageError("this process is not in the group that was given; call attention in the processes that are.")
    return dist.get_world_size(group), rank


def check_agreement(given: Given, group: Any) -> None:
    """Check that all processes give the same options, and that nothing is wrong in any of them.

    All of them gather one number; what was given is gathered, too, where the numbers differ.

    Raises:
        UsageError: with the same sentence in each process.
    """
    captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    if not captured and not _alike(given, group):  # a captured call was made, and compared, before
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, given, group)
        raise UsageError(difference(gathered))
    if given.wrong is not None:
        raise UsageError(given.wrong)


def difference(gathered: list[Given]) -> str:
    """A sentence about a process that gives something else than most do, or finds something wrong."""
    P, options = len(gathered), [each.options for each in gathered]
    usual = dict(Counter(tuple(each.items()) for each in options).most_common(1)[0][0])
    different = [rank for rank in range(P) if options[rank] != usual]
    wrong = [rank for rank in range(P) if gathered[rank].wrong is not None]
    unknown = [rank for rank in wrong if not options[rank]]
    if unknown or not different:
        rank = (unknown or wrong)[0]
        return f"process {rank} of {P}: {gathered[rank].wrong}"
    rank, like = different[0], options.index(usual)
    names = [name for name in usual if options[rank][name] != usual[name]]
    one, its = (", ".join(f"{name} = {options[at][name]}" for name in names) for at in (rank, like))
    return f"process {rank} of {P} has {one}, and process {like} has {its}; give the same in all processes."


def _alike(given: Given, group: Any) -> bool:
    """Whether all processes give the same, from a number for each."""
    backends = dist.get_backend_config(group)
    device = "cpu" if "gloo" in backends or "mpi" in backends else "cuda"
    text = repr((sorted(given.options.items()), given.wrong))
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
    mine = torch.tensor([number], device=device)
    numbers = [fresh(torch.empty_like(mine)) for _ in range(dist.get_world_size(group))]
    dist.all_gather(numbers, mine, group)
    return len(set(torch.cat(numbers).tolist())) == 1
