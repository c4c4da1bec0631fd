"""When the library in C++ is compiled and used, and when not; nothing is compiled here."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pebblesim.operator.known import native  # noqa: E402


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Nothing was found out before, and nothing is loaded."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "_load", lambda where: pytest.fail("nothing may be compiled here"))
    found = native.why_not, native.begin
    for each in found:
        each.cache_clear()
    yield
    for each in found:
        each.cache_clear()


def test_without_a_card_nothing_is_compiled() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    assert native.begin() is None and native.state().startswith("off: ")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("variable", "PEBBLESIM_NATIVE is 0"),
        ("filled", "PEBBLESIM_FILL is set"),
        ("compiler", "there is no compiler of C++"),
        ("source", "there is no"),
        ("card", "PyTorch sees no GPU"),
    ],
)
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, reason: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: what != "card")
    monkeypatch.setattr(native, "compiler", lambda: None if what == "compiler" else "c++")
    monkeypatch.setattr(native, "_headers", lambda: (tmp_path, tmp_path))
    if what == "source":
        monkeypatch.setattr(native, "SOURCE", tmp_path / "none.cpp")
    if what in ("variable", "filled"):
        monkeypatch.setenv({"variable": native.VARIABLE, "filled": native.FILLED}[what], "0")
    assert native.begin() is None and native.state().startswith(f"off: {reason}")


def test_the_state_says_what_the_first_call_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "why_not", lambda: None)
    assert native.state() == "off: the first call of attention on the GPU begins to compile it"
    native.folder().mkdir()
    (native.folder() / f"{native.NAME}.so").write_text("")
    assert native.state() == "off: the first call of attention on the GPU loads it"
    (native.folder() / native.FAILED).write_text("another compiler\nno")
    assert native.state() == "off: the first call of attention on the GPU loads it"
    (native.folder() / native.FAILED).write_text(f"{native._of_compiler()}\nno")
    assert "it could not be compiled, see" in native.state() and "delete it" in native.state()
    monkeypatch.setattr(native, "library", object())
    assert native.state() == "on"


def test_the_command_fails_where_there_is_no_library_afterwards(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv(native.VARIABLE, "0")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(native.__file__), run_name="__main__")
    assert ended.value.code and capsys.readouterr().out == "off: PEBBLESIM_NATIVE is 0\n"


def test_another_pytorch_or_source_is_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (other := tmp_path / "native.cpp").write_text("other")
    folders = {native.folder()}
    with monkeypatch.context() as patched:
        patched.setattr(native, "SOURCE", other)
        folders.add(native.folder())
    monkeypatch.setattr(torch, "__version__", "9.9")
    folders.add(native.folder())
    assert len(folders) == 3 and {each.parent for each in folders} == {tmp_path}


def test_pauses_within_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is used again when the last of them ends."""
    turns: list[bool] = []
    monkeypatch.setattr(native, "_loaded", one := SimpleNamespace(turn=turns.append))
    monkeypatch.setattr(native, "library", one)
    with native.paused():
        with native.paused():
            assert native.library is None
        assert native.library is None and True not in turns
    assert native.library is one and turns[-1]


def test_processors_that_share_a_home_have_libraries_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = set()
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr(native.platform, "machine", lambda machine=machine: machine)
        folders.add(native.folder())
    assert len(folders) == 2
