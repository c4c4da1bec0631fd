"""The library in C++ that makes known passes, for tests."""

from __future__ import annotations

from typing import Any

import pytest

from pebblesim.operator.known import native


def library_in_cpp() -> Any:
    """The library, compiled if it is not in Triton's cache; no other test uses it."""
    if native.compiler() is None or not all(each.exists() for each in native._headers()):
        pytest.skip("no compiler of C++, or no headers")
    before = native.library
    native._load(native.folder())
    found, native.library = native.library, before
    assert found is not None, native.state()
    return found
