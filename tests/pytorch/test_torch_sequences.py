"""The kernel that finds ranges of packed sequences: run by Triton's own interpreter, and compiled for a card."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT, TESTS

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def expected(of_q: list[int], of_k: list[int], n_q: int, n_k: int, within: Any) -> list[tuple[int, int]]:
    """The first key and the end of each query, by one sequence after the other."""
    left, right, at_end = within
    found = [(of_k[-1], of_k[-1])] * n_q
    for number in range(len(of_q) - 1):
        begin, end = of_k[number], of_k[number + 1]
        length = of_q[number + 1] - of_q[number]
        for i in range(length):
            position = begin + i + (end - begin - length if at_end else 0)
            first = begin if left is None else min(max(begin, position - left), end)
            last = end if right is None else min(end, position + right + 1)
            found[of_q[number] + i] = first, max(last, first)
    return found


def starts(chance: random.Random, number: int, n: int, wrong: bool) -> list[int]:
    """Where so many sequences start in n tokens, and the end of the last; one of them may be wrong."""
    made = [0, *sorted(chance.randint(0, n) for _ in range(number))]
    if wrong:
        made[chance.randrange(len(made))] = chance.choice([0, 3, n, n + 5])
    return made


def right(made: list[int], n: int) -> bool:
    """Whether starts of sequences keep what they promise."""
    return made[0] == 0 and made == sorted(made) and made[-1] <= n


def numbers_are_integers() -> None:
    """Let Triton's interpreter take a number for an integer, as NumPy 2.5 does not for an array of one."""
    from triton.runtime import interpreter

    patch: Any = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def check(seed: int, draws: int) -> None:
    """Compare what the kernel finds, and what it says of the starts, with plain loops; under Triton's interpreter."""
    from pebblesim.operator import sequences

    numbers_are_integers()
    sequences._kernel, sequences.COUNTED = lambda *given: sequences.ranges, sequences.counted
    said: list[bool] = []
    sequences.promise = lambda holds, sentence: said.append(bool(holds))
    chance = random.Random(seed)
    for _ in range(draws):
        number, n_q, n_k = (
            chance.choice(some) for some in ([1, 2, 5, 31, 32, 127, 128, 300], [1, 7, 255, 256, 300], [1, 9, 256, 513])
        )
        pair, wrong, kind = chance.random() < 0.5, chance.random() < 0.3, chance.choice([torch.int32, torch.int64])
        limits = chance.choice([None, 0, 1, 30]), chance.choice([None, 0, 0, 2]), chance.random() < 0.3
        most = (n_q, n_k) if pair else (min(n_q, n_k),)
        given = [starts(chance, number, n, wrong) for n in most]
        tensors = [torch.tensor(each, dtype=kind) for each in given]
        said.clear()
        first, end = sequences.ranges_of_sequences(tensors[0], tensors[-1], n_q, n_k, limits)
        assert said == [right(each, n) for each, n in zip(given, most, strict=True)], (given, most)
        if all(said):
            found = list(zip(first[0].tolist(), end[0].tolist(), strict=True))
            assert found == expected(given[0], given[-1], n_q, n_k, limits), (given, n_q, n_k, limits)
            several = [torch.cat([each, each.clamp(max=n_k // 2)]) for each in (first, end)]
            above, below = sequences.above_and_below(*several, n_k)
            for which, made in ((1, above), (0, below)):
                for row, keys in zip(several[which].tolist(), made.tolist(), strict=True):
                    assert keys == [sum(each <= j for each in row) for j in range(n_k)]


def padded(row: list[bool], n_q: int, within: Any) -> list[tuple[int, int]]:
    """The first key and the end of each query, of one that is padding or not, by plain loops."""
    left, right, at_end = within
    real = [j for j, each in enumerate(row) if not each]
    found = []
    for i in range(n_q):
        position = i + (len(row) - n_q if at_end else 0)
        first = 0 if left is None else min(max(position - left, 0), len(row))
        end = len(row) if right is None else min(max(position + right + 1, 0), len(row))
        found.append((max(first, real[0] if real else 0), min(end, real[-1] + 1 if real else 0)))
    return found


def check_padding(seed: int, draws: int) -> None:
    """Compare what the kernel finds of padding, and what it says of it, with plain loops; by Triton's interpreter."""
    from pebblesim.operator import sequences

    numbers_are_integers()
    sequences.UNPADDED = sequences.unpadded
    said: list[list[bool]] = []
    sequences.promise = lambda holds, sentence: said.append(holds.tolist())
    chance = random.Random(seed)
    for _ in range(draws):
        batch, n_q, n_k = (chance.choice(some) for some in ([1, 2, 3], [1, 7, 255, 256, 300], [1, 9, 1024, 1100]))
        rows = []
        for _ in range(chance.choice([1, batch])):
            begin, end = sorted(chance.randint(0, n_k) for _ in "ab")
            rows.append([not begin <= j < end for j in range(n_k)])
            if chance.random() < 0.3:
                rows[-1][chance.randrange(n_k)] ^= True
        limits = chance.choice([None, 0, 1, 30]), chance.choice([None, 0, 0, 2]), chance.random() < 0.3
        said.clear()
        first, end = sequences.ranges_of_padding(torch.tensor(rows), batch, n_q, limits)
        rows = rows * batch if len(rows) < batch else rows
        texts = ["".join("-x"[each] for each in row).strip("x") for row in rows]
        assert said == [["x" not in text for text in texts]], rows
        for row, text, one, other in zip(rows, texts, first.tolist(), end.tolist(), strict=True):
            if "x" not in text:
                assert [*zip(one, other, strict=True)] == padded(row, n_q, limits), (row, n_q, limits)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["check", "check_padding"])
@pytest.mark.parametrize("seed", range(3))
def test_ranges_are_those_of_plain_loops(seed: int, of: str) -> None:
    told = f"import test_torch_sequences as tested; tested.{of}({seed}, 80)"
    folders = os.pathsep.join(map(str, (Path(__file__).parent, TESTS, ROOT)))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": folders}
    subprocess.run([sys.executable, "-c", told], env=environment, check=True)


@pytest.mark.parametrize("kind", ["*i32", "*i64"])
def test_the_kernel_compiles_for_hopper(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from pebblesim.operator.sequences import NUMBERS, ranges

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kinds = {
        "of_q": kind,
        "of_k": kind,
        "first": "*i32",
        "end": "*i32",
        "holds": "*i1",
        **dict.fromkeys(NUMBERS, "i32"),
    }
    source = ASTSource(ranges, signature={name: kinds[name] for name in ranges.arg_names}, constexprs={}, attrs={})
    assert compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["cubin"]


@pytest.mark.parametrize("name", ["counted", "unpadded"])
def test_other_kernels_compile_for_hopper(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from pebblesim.operator import sequences

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, numbers = getattr(sequences, name), ("first", "end", "above", "below")
    kinds = {
        each: "*i32" if each in numbers else "*i1" if each in ("padding", "holds") else "i32"
        for each in kernel.arg_names
    }
    source = ASTSource(kernel, signature=kinds, constexprs={}, attrs={})
    assert compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["cubin"]


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.int16])
def test_packed_sequences_alone_take_the_kernel(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts in other words, or with padding, are found by operations of PyTorch: with the same ranges."""
    from pebblesim.operator import masks, sequences
    from pebblesim.operator.known import eager, recorded

    monkeypatch.setattr(recorded, "here", lambda x: False)
    taken: list[Any] = []

    def ranges(of_q: Any, of_k: Any, *rest: Any) -> Any:
        taken.append((of_q, of_k, *rest[:3]))
        return masks.ranges_of_sequences((of_q, of_k) if of_k is not of_q else of_q, *rest[:2], *rest[2])

    monkeypatch.setattr(sequences, "ranges_of_sequences", ranges)
    q, k, starts = torch.empty(2, 3, 9, 16), torch.empty(2, 1, 9, 16), torch.tensor([0, 4, 4, 7], dtype=kind)
    asked = masks.Asked(None, None, 2, 0, False, 0.3, 0.0, None, True)
    padding = torch.arange(9)[None] > 5
    for given, pads in ((starts, None), (starts.as_subclass(OnGpu), None), (starts.as_subclass(OnGpu), padding)):
        masks_of = {"cu_seqlens": given, "key_padding_mask": pads, "key_ranges": None}
        found, right = eager.ranged(q, k, asked, masks_of), masks.ranged(q, k, asked, masks_of)
        assert found[2:] == right[2:] == (None, None, False, 0.3, 0.0, None, True)
        for one, other in ((found.first, right.first), (found.end, right.end)):
            assert one is not None and other is not None and one.shape == (2, 9) and (one == other).all()
    assert [each[2:] for each in taken] == [(9, 9, (2, 0, False))] * (kind != torch.int16)
