"""With JAX and PyTorch installed, `import confide` still loads neither."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import confide

FRAMEWORKS = ("jax", "torch")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_framework_is_here(name: str) -> None:
    assert importlib.import_module(name).__version__


def test_no_public_name_loads_a_framework() -> None:
    names = ", ".join(f"confide.{name}" for name in confide.__all__)
    program = f"import confide, json, sys; {names}; print(json.dumps([m for m in {FRAMEWORKS} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
