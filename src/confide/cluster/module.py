"""The user's code beside a client's TOML: a copy of their module, or one that names a built-in network."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Final

from confide.base.entry_points import home, names_code
from confide.problems.models import Model
from confide.problems.networks.built_in import MLP
from confide.problems.networks.network import Network
from confide.problems.problem_config import ProblemConfig

BUILT_IN: Final = "built_in_network"  # module that is written for one


def code_of(problem: ProblemConfig, place: Path) -> str | None:
    """What the TOML in this folder is to name, "module:name"; None where nothing is loaded."""
    named = (getattr(problem, key) for key in sorted(problem.entry_points))
    found = next((name for name in named if names_code(name)), None)
    return f"{BUILT_IN}:network" if found is None and (place / f"{BUILT_IN}.py").exists() else found


def put_code(problem: ProblemConfig, model: Model, place: Path) -> None:
    """The module of that into the folder."""
    if (code := code_of(problem, place)) is not None:
        _copy(code, place)
    elif isinstance(model, Network) and model.description is not None:
        (place / f"{BUILT_IN}.py").write_text(_written(model), encoding="utf-8")


def _copy(code: str, place: Path) -> None:
    """What is installed needs no copy."""
    found = home(code)
    if found is None or found.is_relative_to(sysconfig.get_path("purelib")):
        return
    if found.is_dir():
        shutil.copytree(found, place / found.name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(found, place)


def _written(model: Network) -> str:
    """The same network; where it begins a client is told by its server."""
    found = model.description
    if isinstance(found, MLP):
        said = f'"mlp", features={found.sizes[0]}, classes={found.classes}, hidden={list(found.sizes[1:-1])}'
    else:
        assert found is not None  # noqa: S101 - only called for a built-in network
        said = f'"cnn", features={found.side**2}, classes={found.classes}, hidden={list(found.channels)}'
    return (
        "from confide.problems.networks.named import built_in\n\n"
        f'network = built_in({said}, framework="{model.framework}")\n'
    )
