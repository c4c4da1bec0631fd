"""Constants of kernels of Triton are arguments of a launch, too: they are counted, and tell kernels apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pebblesim.operator.bias import parts, transposes  # noqa: E402
from pebblesim.operator.bias.programs import Parts  # noqa: E402
from pebblesim.operator.heads import kernels  # noqa: E402
from pebblesim.operator.launching import launch, rounding  # noqa: E402


@contextmanager
def launched(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, tuple[Any, ...], dict[str, Any]]]]:
    """What kernels are launched with, in place of launches."""
    found: list[Any] = []
    patch.setattr(launch.Kernel, "_launch", lambda self, grid, *given, **how: found.append((self._kernel, given, how)))
    yield found


def test_launches_give_all_that_a_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By position; Triton's own options alone have names."""
    x = torch.zeros(1, 2, 2, 16, 24)
    with launched(monkeypatch) as found:
        transposes.transpose(x, torch.zeros(1, 2, 2, 24, 16))
        transposes.transpose(x[..., 3:], torch.zeros(1, 2, 2, 21, 16))
        parts.add_up(x, x[:, 0], Parts(5, 3))
        kernels.repeat(x[0], torch.zeros(2, 6, 16, 24))
        kernels.add_up(torch.zeros(2, 6, 16, 24), x[0], 3)
        kernels.order(torch.zeros(4, 32), torch.zeros(8, 16), 8, 2, 2)
        rounding.round_on_gpu(torch.zeros(4, 16, 24), x[0], 2)
    assert len(found) == 7
    for kernel, given, how in found:
        assert len(given) == len(kernel.params) and set(how) <= {"num_warps", "num_stages"}, kernel
    assert [given[-1] for _, given, _ in found[:2]] == [8, 1]


def test_a_launch_with_too_few_arguments_is_refused() -> None:
    params = [SimpleNamespace(is_constexpr=each, do_not_specialize=False) for each in (False, True)]
    kernel = launch.Kernel(SimpleNamespace(params=params))
    with pytest.raises(TypeError, match="takes 2 arguments by position, and 1 are given"):
        kernel[(1,)](3, SIDE=4)


def test_kernels_are_told_apart_by_their_constants() -> None:
    asked = launch._specialised
    assert asked(4, launch.CONSTANT) != asked(8, launch.CONSTANT)
    assert asked(4, launch.ALIGNED) == asked(8, launch.ALIGNED) != asked(16, launch.ALIGNED)
    assert asked(4, launch.PLAIN) == asked(16, launch.PLAIN) != asked(2**31, launch.PLAIN)


def test_no_launch_in_the_operator_names_a_constant() -> None:
    """`kernel[grid](…, SIDE=4)` would do at the first launch alone."""
    folder, seen = Path(launch.__file__).parents[1], 0
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and node.keywords:
                names = {each.arg for each in node.keywords}
                if "num_warps" in names:
                    seen += 1
                    assert names <= {"num_warps", "num_stages"}, (path.name, node.lineno)
    assert seen >= 6
