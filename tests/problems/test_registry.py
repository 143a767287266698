"""Which problems a config can name, what their tables say without data, and a problem of one's own."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

from confide import problems
from confide.base.errors import InputError
from confide.plans.config import Config, load, parse
from confide.problems import registry
from confide.problems.gaussian_config import RegressionConfig

EXAMPLES = Path(__file__).parents[2] / "examples"

BUILT_IN = ("regression", "clicks", "table", "digits", "arrays", "own")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, in which a package announces problems, with what it announces."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(tmp_path))
    announced = tmp_path / "weather-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: weather\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text(
        "[confide.problems]\nwaves = own_problem:Waves\nother = own_problem:Waves\nclicks = own_problem:Waves\n"
        "gone = own_problem:Gone\nbroken = broken_problem:Waves\nfunction = math:sqrt\n"
    )
    (tmp_path / "broken_problem.py").write_text("1 / 0\n")
    for name in ("own_problem", "broken_problem"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize(("name", "kind"), [*zip(BUILT_IN, registry.BUILT_IN, strict=True)])
def test_a_key_and_the_argument_of_the_function_have_one_default(name: str, kind: type[problems.ProblemConfig]) -> None:
    arguments = inspect.signature(getattr(problems, name)).parameters
    keys = {key: info for key, info in kind.model_fields.items() if key != "name"}
    assert set(keys) == set(arguments)
    for key in set(keys) - {"seed"}:
        default = arguments[key].default
        if keys[key].is_required():
            assert default is inspect.Parameter.empty
        else:
            assert keys[key].default == (list(default) if isinstance(default, tuple) else default)


def test_the_seed_of_the_config_is_for_a_table_that_has_none() -> None:
    small = {"units": 2, "clients": 3, "samples": 4}
    assert RegressionConfig(**small).make(7).spec["seed"] == 7
    assert RegressionConfig(**small, seed=0).make(7).spec["seed"] == 0


def test_what_is_known_without_data_is_what_the_data_say() -> None:
    kind = RegressionConfig(units=2, clients=3, features=5, rho=0.3)
    model, features = kind.without_data()
    made = kind.make(0)
    assert (model, features) == (made.model, made.federation.M)
    assert kind.memory() >= made.federation.X.nbytes


def test_a_config_names_a_problem_of_ones_own(installed: Path) -> None:
    config = parse({"problem": {"name": "waves", "units": 3, "readings": 4}, "seed": 2})
    assert isinstance(config, Config)
    assert config == parse(config.model_dump(exclude_none=True))
    problem = config.problem.make(config.seed)
    assert (problem.federation.P, problem.federation.samples) == (3, 3 * 20 * 4)
    assert parse({}) == Config()
    assert registry.names() == [*BUILT_IN, "broken", "function", "gone", "other", "waves"]
    path = installed / "a.toml"
    path.write_text('rounds = 2\nrepeats = 1\n[graph]\ntopology = "ring"\n[problem]\nname = "waves"\nunits = 3\n')
    experiment = load(path).build()
    np.testing.assert_array_equal(experiment.problem.federation.d[:2], load(path).build().problem.federation.d[:2])


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"name": "waves", "reading": 4}, "problem.reading = 4: unknown key; did you mean 'problem.readings'?"),
        ({"name": "waves", "noise": "x"}, "problem.noise = 'x': input should be a valid number"),
        ({"name": "wave"}, "problem.name = 'wave': known: regression, clicks, table, digits, arrays, own, broken"),
        ({"name": "other"}, "problem.name = 'other': own_problem:Waves must be .* name: Literal\\[\"other\"\\]"),
        ({"name": "function"}, "problem.name = 'function': math:sqrt must be a confide.problems.ProblemConfig"),
        ({"name": "gone"}, "problem.name = 'gone': loading own_problem:Gone raised AttributeError"),
        ({"name": "broken"}, "problem.name = 'broken': loading broken_problem:Waves raised ZeroDivisionError"),
    ],
)
def test_a_mistake_with_a_problem_of_ones_own(installed: Path, table: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=f"^{line}"):
        parse({"problem": table})


def test_a_package_cannot_take_the_name_of_a_built_in_problem(installed: Path) -> None:
    assert parse({"problem": {"name": "clicks"}}).problem.name == "clicks"
    assert "own_problem" not in sys.modules


def test_a_name_that_two_packages_announce_is_refused(installed: Path) -> None:
    (installed / "weather-1.0.dist-info").rename(installed / "climate-1.0.dist-info")
    again = installed / "weather-2.0.dist-info"
    again.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        text = (installed / "climate-1.0.dist-info" / name).read_text()
        (again / name).write_text(text)
        (installed / "climate-1.0.dist-info" / name).write_text(text.replace("Name: weather", "Name: climate"))
    with pytest.raises(InputError, match=r"^problem.name = 'waves': several installed packages bring it"):
        parse({"problem": {"name": "waves"}})
