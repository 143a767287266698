"""What is said where a framework is not installed."""

from __future__ import annotations

import sys

import pytest

import confide
from confide.problems.networks import named


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_framework_that_is_not_installed(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"confide.problems.networks.from_{framework}", raising=False)
    with pytest.raises(confide.InputError) as error:
        getattr(confide.models, framework)(None, None)
    assert str(error.value).endswith(f"'{framework}': is not installed: pip install 'confide[{framework}]'")


def test_neither_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    with pytest.raises(confide.InputError, match=r"a network needs JAX or PyTorch: pip install 'confide\[jax\]'"):
        named.built_in("mlp", features=4, classes=3)
