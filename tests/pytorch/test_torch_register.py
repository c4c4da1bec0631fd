"""`register` refuses names and options at once, and leaves transformers' own attention alone."""

from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from transformers import AttentionInterface  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.operator.integrations.transformers import register  # noqa: E402

THEIRS = sorted({"eager", *AttentionInterface()} - {"pebblesim"})


@pytest.mark.parametrize("name", [*THEIRS, "", " ", None, 5, "mine/kernels", "paged|mine", "my_flash"])
def test_a_name_of_another_attention_is_refused(name: Any) -> None:
    before = dict(AttentionInterface().items())
    with pytest.raises(UsageError, match=r"^name is .*; give "):
        register(name)
    assert dict(AttentionInterface().items()) == before


@pytest.mark.parametrize("options", [{"fallback": "math"}, {"workspace": -1}, {"workspace": 10**30}])
def test_options_are_refused_when_they_are_given(options: Any) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(options))} is "):
        register("never-ours", **options)
    assert "never-ours" not in AttentionInterface()


def test_ours_may_be_registered_again() -> None:
    register("one-of-ours")
    register("one-of-ours", workspace=0)
    assert AttentionInterface()["one-of-ours"].keywords["workspace"] == 0
