"""`confide.deploy` as a user meets it; what its functions do is tested where they stand, and by the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confide import deploy
from confide.base.errors import InputError
from confide.commands.main import app
from confide.plans.config import load
from confide.testing import forged_units

TOML = """
rounds = 4
[graph]
topology = "path"
[problem]
features = 3
[algorithm]
step = 0.1
sampled = 2
clip = "example"
bound = 1.0
arithmetic = "fixed"
[scheme]
name = "homomorphic"
noise = "gaussian"
sigma = 1.0
[privacy]
proof = "regulariser:0.1"
"""
CONFIG: dict[str, Any] = {
    "rounds": 4,
    "graph": {"topology": "path"},
    "problem": {"features": 3},
    "algorithm": {"step": 0.1, "sampled": 2, "clip": "example", "bound": 1.0, "arithmetic": "fixed"},
    "scheme": {"name": "homomorphic", "noise": "gaussian", "sigma": 1.0},
    "privacy": {"proof": "regulariser:0.1"},
}


def test_every_way_to_say_it_gives_the_same_plan(tmp_path: Path) -> None:
    """As tables, as a file, as a config; a unit, and its announcement's file."""
    (tmp_path / "run.toml").write_text(TOML)
    authority = deploy.Authority.create(tmp_path / "alpha")
    authority.issue("server", "one")
    for name in ("a", "b"):
        authority.issue("client", name)
    alpha = deploy.announce(authority, "alpha", out=tmp_path / "alpha.json")
    (beta,) = forged_units(1, 2)
    plans = [
        deploy.agree(CONFIG, [alpha, beta], window=3),
        deploy.agree(tmp_path / "run.toml", [tmp_path / "alpha.json", beta], window=3),
        deploy.agree(str(tmp_path / "run.toml"), [str(tmp_path / "alpha.json"), beta], window=3),
        deploy.agree(load(tmp_path / "run.toml"), [alpha, beta], window=3),
    ]
    assert {plan.hash for plan in plans} == {plans[0].hash}
    assert plans[0].diff(deploy.agree(CONFIG, [alpha, beta], window=4)) != []
    plans[0].save(tmp_path / "plan.json")
    assert deploy.Plan.load(tmp_path / "plan.json") == plans[0]
    assert deploy.price(plans[0]).after(4) is not None


def test_a_mistake_is_named_as_in_the_config() -> None:
    with pytest.raises(InputError, match=r"^algorithm\.bound = -1"):
        deploy.agree(CONFIG | {"algorithm": CONFIG["algorithm"] | {"bound": -1.0}}, forged_units(2, 2))
    with pytest.raises(InputError, match="name one announcement for each unit"):
        deploy.agree(CONFIG, [])


@pytest.mark.parametrize("ask", [deploy.Server, deploy.Client, deploy.status, deploy.release], ids=lambda f: f.__name__)
def test_a_toml_that_is_not_there(ask: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        ask(tmp_path / "none.toml")


def test_the_options_are_those_of_the_commands() -> None:
    """A command has no option that its function has not, but for how it prints."""
    import inspect

    import typer

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    functions = {"server": deploy.Server, "client": deploy.Client, "status": deploy.status, "release": deploy.release}
    for name, function in functions.items():
        options = {"json" if p.name == "as_json" else p.name for p in commands[name].params} - {"config"}
        given = set(inspect.signature(function).parameters) - {"path", "told"}
        assert options - given <= ({"json"} if name in ("status", "release") else set()), name
        assert given <= options, name
