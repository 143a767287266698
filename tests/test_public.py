"""The front door: what `import confide` gives, and how little it costs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import confide

HEAVY = ("numba", "scipy", "polars", "matplotlib", "networkx")


def loaded_by(code: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return set(json.loads(done.stdout))


def test_the_import_loads_nothing_heavy() -> None:
    """Itself and a few small modules of Python's own; `confide bench accountant` has the seconds."""
    added = loaded_by("import confide") - loaded_by("pass")
    assert added - sys.stdlib_module_names == {"confide"}
    assert len(added) < 12


def test_a_deployed_client_needs_neither_numba_nor_scipy() -> None:
    """Local step, clip, model, federation and their errors are NumPy alone."""
    modules = "confide.rounds.local, confide.rounds.clipping, confide.problems.models, confide.problems.federation"
    loaded = loaded_by(f"import {modules}\nimport confide; confide.Clip, confide.Federation, confide.InputError")
    assert "numpy" in loaded
    assert not loaded & set(HEAVY)


def test_a_round_can_be_run_beside_a_framework_with_numpy_alone() -> None:
    """`bench/gpu.py` runs where only NumPy and JAX or PyTorch are installed."""
    absent = json.dumps([*HEAVY, "pydantic", "typer", "rich", "cryptography", "msgpack", "dp_accounting", "grpc"])
    rounds = "aggregate, algorithm, arithmetic, clipping, combine, consensus, local, schemes"
    loaded_by(
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"  # importing any of them fails
        "from confide.base import arrays, canonical, errors, randomness, validation\n"
        "from confide.engines import driver, engine, plain, recording\n"
        "from confide.graph import graph\n"
        "from confide.problems import federation, gaussian, models, problem\n"
        f"from confide.rounds import {rounds}\n"
        "gaussian.regression(2, 3, 4), graph.Graph.ring(4), algorithm.GFL()"
    )


def test_every_public_name_resolves_to_the_thing_itself() -> None:
    assert len(set(confide.__all__)) == len(confide.__all__)
    for name in confide.__all__:
        assert getattr(confide, name) is not None
    assert confide.Graph is importlib.import_module("confide.graph").Graph
    assert confide.problems is importlib.import_module("confide.problems")


def test_a_star_import_gives_exactly_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from confide import *", names)  # noqa: S102
    assert set(names) - {"__builtins__"} == set(confide.__all__)


def test_the_promised_names_are_there() -> None:
    promised = {"simulate", "Graph", "GFL", "Federation", "Clip", "Run", "problems", "schemes", "models"}
    assert promised | {"InputError", "RunError"} <= set(confide.__all__)


def test_dir_is_sorted_and_complete() -> None:
    assert confide.__dir__() == sorted(confide.__dir__())  # `dir` itself would sort
    assert set(dir(confide)) >= set(confide.__all__)


def test_the_type_checker_sees_the_same_names() -> None:
    """`if TYPE_CHECKING` imports by hand what `__getattr__` finds by name; neither may fall behind."""
    tree = ast.parse(Path(confide.__file__).read_text(encoding="utf-8"))
    (checked,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {a.asname or a.name for n in checked.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert seen == set(confide.__all__)


def test_no_submodule_takes_the_name_of_a_function() -> None:
    """Importing confide.simulate, were there one, would put a module where the function was."""
    functions = [n for n in confide.__all__ if type(getattr(confide, n)).__name__ == "function"]
    assert "simulate" in functions
    assert [n for n in functions if importlib.util.find_spec(f"confide.{n}")] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'confide' has no attribute 'simulat'"):
        confide.simulat  # noqa: B018
    with pytest.raises(ImportError):
        exec("from confide import simulat")  # noqa: S102


@pytest.mark.parametrize("name", ["confide.deploy", "confide.testing"])
def test_a_public_package_is_as_lazy_and_as_whole(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__ == sorted(package.__all__) == package.__dir__()
    for each in package.__all__:
        assert getattr(package, each).__doc__, each
        if type(getattr(package, each)).__name__ == "function":
            assert importlib.util.find_spec(f"{name}.{each}") is None, each
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (checked,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    assert {a.name for n in checked.body if isinstance(n, ast.ImportFrom) for a in n.names} == set(package.__all__)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'rehears'"):
        package.rehears  # noqa: B018
    added = loaded_by(f"import {name}") - loaded_by("pass")
    assert added - sys.stdlib_module_names == {"confide"}
