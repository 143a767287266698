"""With JAX and PyTorch installed, `import confide` still loads neither."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import confide
from confide.engines import device

FRAMEWORKS = ("jax", "torch")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_framework_is_here(name: str) -> None:
    assert importlib.import_module(name).__version__


def test_no_public_name_loads_a_framework() -> None:
    names = ", ".join(f"confide.{name}" for name in confide.__all__)
    program = f"import confide, json, sys; {names}; print(json.dumps([m for m in {FRAMEWORKS} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("absent", FRAMEWORKS)
def test_a_device_engine_needs_numpy_and_its_own_framework_alone(absent: str) -> None:
    """`bench/gpu.py` runs where nothing else is installed: of what its engine imports nothing else is missed."""
    hidden = ("numba", "polars", "pydantic", "typer", "rich", "matplotlib", "networkx", "msgpack", "grpc", absent)
    hidden += ("cryptography", "dp_accounting")
    names = ["confide.engines.driver", "confide.engines.plain", "confide.problems.gaussian"]
    names += [m.name for m in pkgutil.walk_packages(device.__path__, f"{device.__name__}.")]
    program = f"""
import importlib, json, sys
sys.modules.update(dict.fromkeys({hidden}))  # importing any of them fails
missed = set()
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as e:
        missed.add(e.name.partition(".")[0])
print(json.dumps(sorted(missed)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [absent]
