"""Packages of kernels: that they need nothing of pebblesim, and launch what `attention` launches."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from math import e, log2
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pebblesim.advice import cards
from pebblesim.core.errors import UsageError
from pebblesim.kernels.domains import expected
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.tables import workspace
from pebblesim.operator import planning
from pebblesim.operator.packages.copied import Copy
from pebblesim.operator.packages.frozen_names import CAP, filled_in
from pebblesim.operator.packages.frozen_table import Asked, tables_of
from pebblesim.operator.packages.package import emit, modules
from pebblesim.operator.pattern import Pattern, band_of
from pebblesim.operator.texts import written

H200 = cards.card("H200")
ASKED = Asked(H200, widths=(64,), lengths=(1, 128, 2048), shared=(1,), heads=(8,), softcap=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages") / "attention"
    emit(ASKED, made, "our-attention")
    return made


def loaded(folder: Path) -> ModuleType:
    """A package, as the kernels library imports one: a module of a name of its own, from its folder."""
    built = folder / "build" / "torch-cuda"
    name = json.loads((built / "metadata.json").read_text(encoding="utf-8"))["id"]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, built / "__init__.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name.split(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def test_modules_import_nothing_but_pytorch_and_triton_and_define_all_that_they_use(tmp_path: Path) -> None:
    made = modules(ASKED)
    for name, text in made.items():
        assert set(imported(text)) <= {*sys.stdlib_module_names, "torch", "triton"}, name
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "_ops.py").write_text("ops = add_op_namespace_prefix = None\n", encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", tmp_path], capture_output=True
    )
    assert found.returncode == 0, found.stdout.decode()
    for name, text in made.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level and node.module != "_ops":
                of = [node.module] if node.module else [each.name for each in node.names]
                assert {f"{each}.py" for each in of} <= made.keys(), name


def test_a_copy_has_what_is_needed_and_no_more(tmp_path: Path) -> None:
    made = Copy("pebblesim", {})
    made.need("pebblesim.kernels.strides", "WORDS")
    assert list(made.modules) == ["pebblesim.kernels.strides"]
    text = made.text("pebblesim.kernels.strides")
    assert "WORDS = 8" in text and "16 bytes" in text and "def strides" not in text and "import Term" not in text


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Any, ...]:
    mask = draw(st.sampled_from([None, band_of(right=0), band_of(right=0, at_end=True), band_of(33, 0), KeyRanges()]))
    d, way = draw(st.sampled_from([64, 128, 256, 512])), draw(st.sampled_from(["forward", "backward"]))
    pattern = Pattern(mask, softcap=CAP if d <= 256 and draw(st.booleans()) else 0.0)
    dims = (("n_q", 4096), ("n_k", 4096), ("d_k", d), ("d_v", d))
    _, found = planning.ranked_for(planning.Pass(way, dims, 8, "bfloat16", pattern, 2**30, H200))
    return draw(st.sampled_from(found)).tiling, pattern, d


@pytest.mark.slow
@settings(max_examples=20)
@given(kernel=kernels(), n_q=st.integers(1, 9000), n_k=st.integers(1, 9000))
def test_bytes_of_tables_are_those_of_the_workspace(kernel: Any, n_q: int, n_k: int) -> None:
    tiling, pattern, d = kernel
    program, sizes = planning.program_of(tiling, pattern.mask), {"d_k": d, "d_v": d, **tiling.blocks}
    made = tables_of(program, {"n_q": 2**14, "n_k": 2**14, **sizes}, "bfloat16", expected(pattern.mask))
    true = workspace(program, {"n_q": n_q, "n_k": n_k, **sizes}, "bfloat16", expected(pattern.mask))
    lengths, whole = {"n_q": n_q, "n_k": n_k, **sizes}, 0
    for words, factors in made:
        for name, side, most, each in factors:
            words *= each * min(-(-lengths[name] // side), lengths[name] if most is None else most)
        whole += words
    assert whole == true


@pytest.mark.slow
@settings(max_examples=15)
@given(
    kernel=kernels(),
    even=st.booleans(),
    dense=st.booleans(),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    softcap=st.sampled_from([1.5, 20.0, CAP, 50]),
)
@pytest.mark.parametrize("scale", [0.37, 1.0, 3, "folded"])
def test_texts_for_another_type_scale_and_cap_are_those_that_would_be_written(
    scale: Any, kernel: Any, even: bool, dense: bool, dtype: str, softcap: float
) -> None:
    """A scale with log₂(e) folded in is one of the numbers that stand in the text already."""
    tiling, pattern, d = kernel
    scale = d**-0.5 * log2(e) if scale == "folded" else scale
    other = pattern._replace(softcap=softcap if pattern.softcap else 0.0)
    rest = (("d_k", d), ("d_v", d)), even and not tiling.one_source, False, dense
    text = written(tiling, *rest, "bfloat16", pattern, d**-0.5).text
    assert filled_in(text, d, dtype, scale, other.softcap) == written(tiling, *rest, dtype, other, scale).text


# -- with PyTorch ------------------------------------------------------------------------------------------------


class Noted:
    """In the place of what launches a kernel: notes its name, its grid and its arguments."""

    launched: ClassVar[list[Any]] = []

    def __init__(self, kernel: Any) -> None:
        self.name = kernel.fn.__name__

    def __getitem__(self, grid: Any) -> Any:
        return lambda *given, **options: self.launched.append((self.name, grid, [*map(fact, given)], options))


def fact(argument: Any) -> Any:
    """What is alike of two arguments of kernels: numbers, shapes, boxes; addresses are not."""
    if hasattr(argument, "boxes"):
        one = argument.boxes.one
        return tuple(one.shape), tuple(one.strides), tuple(one.block_shape), str(one.layout)
    return (tuple(argument.shape), argument.stride(), argument.dtype) if hasattr(argument, "stride") else argument


def launches_of(launching: Any, operators: Any, patch: Any, card: Any, call: Any) -> tuple[list[str], list[Any]]:
    """Texts of the modules that are loaded for a call, and what they launch."""
    texts: list[str] = []
    module_of = launching.module_of
    patch.setattr(launching, "module_of", lambda text: texts.append(text) or module_of(text))
    patch.setattr(launching, "card_of", lambda device: card)
    patch.setattr(launching, "Kernel", Noted)
    launching.loaded.cache_clear()
    Noted.launched = []
    call(operators)
    launching.loaded.cache_clear()
    return texts, Noted.launched


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "scale", "same_bits", "softcap"),
    [
        ("bfloat16", 0.125, False, 0.0),
        ("float16", 1.0, False, 0.0),
        ("float16", 0.3, True, 0.0),
        ("float16", 1.0, False, 2.5),
    ],
)
@pytest.mark.parametrize("mask", ["all", "causal", "ranges"])
@pytest.mark.parametrize("n", [(128, 128), (2048, 2048), (1, 2048), (128, 2048), (2000, 2000), (2048, 2000)])
def test_a_package_launches_what_attention_launches(
    folder: Path,
    monkeypatch: Any,
    n: tuple[int, int],
    mask: str,
    dtype: str,
    scale: float,
    same_bits: bool,
    softcap: float,
) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("triton")
    from pebblesim.operator import operators
    from pebblesim.operator.launching import launching

    package = loaded(folder)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    ours = sys.modules[f"{package.__name__}.launching"], sys.modules[f"{package.__name__}.operators"]
    card = sys.modules[f"{package.__name__}.packages_frozen"].Card("H200", "9.0")
    n_q, n_k = n
    Q, dO, O = (torch.zeros(1, 8, n_q, 64, dtype=getattr(torch, dtype)) for _ in range(3))
    K, V = (torch.zeros(1, 8, n_k, 64, dtype=getattr(torch, dtype)) for _ in range(2))
    first, end = (torch.full((1, n_q), each, dtype=torch.int32) for each in (0, n_k))
    rest = (first, end, None, None, False) if mask == "ranges" else (None, None, None, 0 if mask == "causal" else None)
    rest = (*rest, *(() if mask == "ranges" else (True,)), scale, softcap, None, same_bits)
    if mask == "all":
        rest = (*rest[:4], False, *rest[5:])

    def call(operators: Any) -> None:
        made = operators.forward_on_gpu(Q, K, V, *rest)
        operators.backward_on_gpu(dO, None, Q, K, V, O, made[1], *rest)

    made = launches_of(*ours, monkeypatch, card, call)
    true = launches_of(launching, operators, monkeypatch, H200, call)
    assert made[0] == true[0] and len(true[0]) == 2
    assert made[1] == true[1] and len(true[1]) >= 2


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    lengths, mask = st.integers(1, 40), st.one_of(st.none(), st.integers(0, 9))
    options: dict[str, Any] = {"is_causal": draw(st.booleans()), "window": (draw(mask), draw(mask))}
    options |= {"align": draw(st.sampled_from(["start", "end"])), "scale": draw(st.sampled_from([None, 0.3]))}
    options |= {"return_lse": draw(st.booleans()), "enable_gqa": True, "softcap": draw(st.sampled_from([None, 1.5]))}
    widths = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    return {"sizes": (draw(lengths), draw(lengths), *widths), "options": options}


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(case=calls())
def test_on_the_cpu_a_package_computes_what_attention_computes(folder: Path, case: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from pebblesim.gpu.torch import attention

    (n_q, n_k, d_k, d_v), options = case["sizes"], case["options"]
    shapes = (2, 2, n_q, d_k), (2, 2, n_k, d_k), (2, 2, n_k, d_v)
    x = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    made, true = (function(*x, **options) for function in (loaded(folder).attention, attention))
    made, true = (each if isinstance(each, tuple) else (each,) for each in (made, true))
    for mine, right in zip(made, true, strict=True):
        torch.testing.assert_close(mine, right, atol=1e-12, rtol=1e-12)
    gradients = (torch.autograd.grad(each[0].square().sum(), x) for each in (made, true))
    for mine, right in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, right, atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"is_causal": True}, {"window": (2, 0)}, {"softcap": 3.0}], ids=str)
def test_a_call_of_a_package_compiles_as_one_graph(folder: Path, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    package, x = loaded(folder), torch.randn(1, 4, 5, 48, requires_grad=True)

    def called(each: Any) -> Any:
        return package.attention(each, each, each, **options)

    made = torch.compile(called, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(made, called(x))
    true, found = (torch.autograd.grad(each.square().sum(), x)[0] for each in (called(x), made))
    torch.testing.assert_close(found, true)


@pytest.mark.slow
def test_a_package_refuses_in_one_sentence_what_it_has_no_kernels_for(folder: Path, monkeypatch: Any) -> None:
    torch = pytest.importorskip("torch")
    package = loaded(folder)
    x = torch.randn(1, 4, 2, 64)
    for options in ({"alibi_slopes": x}, {"dropout_p": 0.1}, {"softmax_scale": -1.0}):
        with pytest.raises(Exception, match=r"(give|leave)[^.]*\.$") as said:
            package.flash_attn_func(x, x, x, **options)
        assert type(said.value).__name__ == "UsageError"
    with pytest.raises(Exception, match="no kernels for bias"):
        package.attention(x, x, x, bias=x[..., :2])
    wide = torch.randn(1, 4, 2, 72)
    with pytest.raises(Exception, match="softcap up to a head dimension of 64, and the call has 72"):
        package.flash_attn_func(wide, wide, wide, softcap=3.0)
    with pytest.raises(Exception, match=r"head dimensions up to 64, and for 1 heads .* head dimension 72 and 1 heads"):
        package.flash_attn_func(wide, wide, wide)
    with pytest.raises(Exception, match="the call has head dimension 64 and 2 heads on each"):
        package.flash_attn_func(x, x[:, :, :1], x[:, :, :1])
    with pytest.raises(Exception, match="and heads that divide those of q"):
        package.flash_attn_func(torch.randn(1, 4, 3, 64), x, x)
    with pytest.raises(Exception, match="pages"):
        package.flash_attn_varlen_func(x[0], x[0], x[0], None, None, block_table=x)
    frozen = sys.modules[f"{package.__name__}.packages_frozen"]
    pattern, rest = Pattern(None, 3), (8, "bfloat16")
    for dims, shared in (
        ((("n_q", 9), ("n_k", 9), ("d_k", 64), ("d_v", 64)), 3),
        ((("n_q", 9), ("n_k", 9), ("d_k", 80), ("d_v", 80)), 1),
    ):
        with pytest.raises(Exception, match="this package has kernels for head dimensions up to 64"):
            frozen.chosen("forward", dims, *rest, pattern._replace(shared=shared), 2**30, frozen.Card("H200", "9.0"))
    dims = tuple({"n_q": 9, "n_k": 9, "d_k": 64, "d_v": 64}.items())
    with pytest.raises(Exception, match=r"is for NVIDIA H200[^.]*9.0, and A100 has 8.0; emit"):
        frozen.chosen("forward", dims, *rest, Pattern(), 2**30, frozen.Card("A100", "8.0"))


@pytest.mark.slow
def test_two_packages_and_pebblesim_are_in_one_process(folder: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    other = tmp_path / "other"
    emit(
        Asked(H200, widths=(32,), lengths=(64,), shared=(1,), heads=(8,), limits=((None, None),), ranges=False),
        other,
        "other",
    )
    x = torch.randn(1, 4, 2, 32)
    first, second = (loaded(each).flash_attn_func(x, x, x) for each in (folder, other))
    assert torch.equal(first, second)
    with pytest.raises(Exception, match="no kernels that read key ranges"):
        loaded(other).flash_attn_func(x, x, x, window_size=(1, 0))
    with pytest.raises(Exception, match="no kernels for softcap; leave it out, or emit a package with --softcap"):
        loaded(other).flash_attn_func(x, x, x, softcap=3.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("Our Attention", "small letters"), ("-x", "small letters"), ("ok", "there already")]
)
def test_a_folder_or_a_name_that_cannot_be(folder: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        emit(ASKED, folder, name)


def test_the_command_refuses_in_one_sentence_what_a_package_has_not(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from pebblesim.cli.main import app

    whole = ["-d", "64", "-o", str(tmp_path / "made")]
    for asked, said in (
        ([], "a package needs -d and -o"),
        ([*whole, "--mask", "lengths:3,5"], "a package has dense, causal"),
        ([*whole, "--mask", "range"], "a package has dense, causal, window:W, band:W and ranges"),
        ([*whole, "--size", "n_q=1"], "--size was given"),
        ([*whole, "--scale", "2"], "any scale at each call"),
        ([*whole, "--kv-heads", "2"], "a package has --shared"),
        (["small-cache", *whole], "leave the schedule out"),
        ([*whole, "--name", "A B"], "give small letters"),
        ([*whole, "--dtype", "float16"], "leave --dtype out"),
        ([*whole, "--heads", "2"], "leave --heads out"),
        ([*whole, "--batch", "2"], "leave --batch out"),
        ([*whole, "--separate"], "leave --separate out"),
        ([*whole, "--blocks", "best"], "leave --blocks out"),
        ([*whole, "--block", "B_r=64"], "leave --block out"),
        (["-d", "512", *whole[2:], "--softcap"], "up to 256, not for 512; leave --softcap out"),
        (["-d", "64", "-o", str(tmp_path)], f"{tmp_path} is there already; give another name, or delete it first"),
        ([*whole, "--card", "no card"], "as --card mine.toml"),
        ([*whole, "--card", "V100"], "compute capability"),
    ):
        found = CliRunner().invoke(app, ["gpu", "emit", "--target", "package", *asked])
        assert said in str(found.exception), asked
    assert not [*tmp_path.iterdir()]
