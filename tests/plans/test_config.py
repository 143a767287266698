"""The config: a file, the default, the schema, changes from the command line and what each key becomes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.plans.config import Config, default_text, load, make_algorithm, make_graphs, make_scheme, parse
from confide.problems import registry

SMALL = {"problem": {"units": 3, "clients": 4, "samples": 5}, "algorithm": {"sampled": 2}}


def test_the_default_is_figure_a() -> None:
    c = Config()
    assert (c.rounds, c.repeats, c.seed) == (1000, 20, 0)
    assert (c.problem.name, c.problem.units, c.problem.clients, c.problem.samples) == ("regression", 10, 100, 100)
    assert (c.scheme.name, c.algorithm.step, c.algorithm.sampled) == ("homomorphic", 0.7, 11)
    algorithm = make_algorithm(c)
    assert algorithm.scheme.sigma == math.sqrt(0.1)
    assert (algorithm.local_steps, algorithm.batch) == ((1, 10), (5, 10))


def test_the_printed_default_is_the_default() -> None:
    assert parse(tomllib.loads(default_text())) == Config()
    for line in default_text().splitlines():
        if "=" in line.partition("#")[0]:
            assert line.partition("  # ")[2], f"no meaning beside {line}"


def test_every_key_of_the_default_is_printed_even_if_unset() -> None:
    text = default_text()
    for table in (Config(), Config().graph, Config().problem, Config().algorithm, Config().scheme, Config().output):
        for key in type(table).model_fields:
            assert f"{key} =" in text or f"[{key}]" in text


def test_the_schema_knows_every_table_and_forbids_the_rest() -> None:
    schema = json.loads(json.dumps(Config.model_json_schema()))
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == list(Config.model_fields)
    for definition in schema["$defs"].values():
        assert definition["additionalProperties"] is False
    mapping = schema["properties"]["problem"]["discriminator"]["mapping"]
    assert set(mapping) == {"regression", "clicks", "table", "digits", "arrays", "own"}


def test_every_key_of_every_problem_has_a_meaning() -> None:
    for kind in registry.BUILT_IN:
        assert [name for name, info in kind.model_fields.items() if not info.description] == []


def test_the_config_loads_no_heavy_library() -> None:
    """Not even where it names a problem that reads tables: the data may be on another machine."""
    code = (
        "import sys; from confide.plans.config import parse; parse({}, ['problem.name=clicks', 'problem.rows=60'])\n"
        "print([m for m in ('polars', 'numba', 'scipy', 'networkx', 'dp_accounting') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("place", "near"),
    [
        ({"round": 1}, "did you mean 'rounds'?"),
        ({"grph": {}}, "did you mean 'graph'?"),
        ({"algorithm": {"local_step": 1}}, "did you mean 'algorithm.local_steps'?"),
        ({"scheme": {"sigma_par": 1}}, "did you mean 'scheme.sigma_pair'?"),
        ({"problem": {"name": "clicks", "row": 1}}, "did you mean 'problem.rows'?"),
        ({"problem": {"cliens": 1}}, "did you mean 'problem.clients'?"),
        ({"output": {"foldr": "x"}}, "did you mean 'output.folder'?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(place: dict[str, Any], near: str) -> None:
    with pytest.raises(InputError, match="unknown key") as caught:
        parse(place)
    assert near in str(caught.value)


def test_an_unknown_key_like_nothing_lists_what_there_is() -> None:
    with pytest.raises(InputError, match=r"^zzz = 1: unknown key; known here: rounds, repeats, seed, graph"):
        parse({"zzz": 1})


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ({"rounds": "1"}, "rounds = '1': input should be a valid integer"),
        ({"rounds": 1.0}, "rounds = 1.0: input should be a valid integer"),
        ({"algorithm": {"batch": "x"}}, "algorithm.batch = 'x': input should be a valid integer; or .* list"),
        ({"algorithm": {"batch": [1, "x"]}}, "algorithm.batch.*'x'.*: input should be"),
        ({"graph": {"topology": 3}}, "graph.topology = 3: input should be a valid string; or .* list"),
        ({"algorithm": {"clip": "exmaple"}}, "algorithm.clip = 'exmaple': input should be 'none', 'example' or"),
        ({"problem": {"name": "table"}}, "problem.path = None: is missing"),
        ({"problem": {"name": "table", "path": "x"}}, "problem.label = None: is missing"),
        ({"problem": {"name": 3}}, "problem.name = 3: known: regression, clicks, table"),
        ({"rounds": "1", "graph": {"topology": 3}}, "rounds = '1': input should be a valid integer$"),
        ({"graph": {"failed_links": [[1, "x", 2]]}}, "graph.failed_links.0.1 = 'x': input should be a valid integer"),
        ({"scheme": []}, r"scheme = \[\]: must be a table, written \[scheme\]"),
    ],
)
def test_a_wrong_type_names_the_key_and_what_would_be_right(place: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=f"^{line}"):
        parse(place)


def test_changes_are_toml_values_or_bare_words() -> None:
    changes = ["rounds=7", "algorithm.step = 0.25", "scheme.name=shared", 'graph.topology=["ring","path"]']
    changes += ["algorithm.replacement=false", "problem.rho=1e-3", "output.folder=some where"]
    c = parse({}, changes)
    assert (c.rounds, c.algorithm.step, c.scheme.name, c.graph.topology) == (7, 0.25, "shared", ["ring", "path"])
    assert (c.algorithm.replacement, c.problem.rho, c.output.folder) == (False, 1e-3, "some where")


def test_the_last_change_wins_and_the_content_stays() -> None:
    content = {"rounds": 1}
    assert parse(content, ["rounds=2", "rounds=3"]).rounds == 3
    assert content == {"rounds": 1}


def test_another_problem_by_a_change() -> None:
    assert parse({}, ["problem.name=clicks", "problem.rows=60"]).problem.rows == 60


@pytest.mark.parametrize(
    ("name", "sigma"),
    [("homomorphic", math.sqrt(0.1)), ("none", 0.0), ("local-only", 0.0), ("central", math.sqrt(0.1))],
)
def test_sigma_defaults_to_the_papers_or_to_nothing(name: str, sigma: float) -> None:
    assert make_scheme(parse({"scheme": {"name": name}}).scheme).sigma == sigma


def test_every_key_reaches_its_object() -> None:
    c = parse(
        SMALL
        | {
            "rounds": 5,
            "repeats": 3,
            "seed": 9,
            "graph": {
                "topology": ["ring", "path:3"],
                "weights": "metropolis",
                "link_failure": 0.1,
                "unit_failure": 0.2,
                "failed_links": [[1, 0, 1]],
                "failed_units": [[2, 2]],
            },
            "algorithm": {
                "step": 0.3,
                "sampled": 2,
                "local_steps": 3,
                "batch": [2] * 12,
                "replacement": False,
                "clip": "update",
                "bound": 2.0,
                "norm": "l1",
                "dropout": 0.4,
                "arithmetic": "fixed",
                "fraction_bits": 20,
            },
            "scheme": {"name": "pairwise", "noise": "gaussian", "sigma": 0.5, "sigma_pair": 0.6},
        }
    )
    e = c.build()
    assert (e.rounds, e.repeats, e.seed) == (5, 3, 9)
    assert [(g.name, g.weights) for g in e.graph] == [("ring:3", "metropolis"), ("path:3", "metropolis")]
    f = e.algorithm.failures
    assert (f.link, f.unit, f.links, f.units) == (0.1, 0.2, ((1, 0, 1),), ((2, 2),))
    a = e.algorithm
    assert (a.step, a.sampled, a.local_steps, a.batch, a.replacement, a.dropout) == (0.3, 2, 3, [2] * 12, False, 0.4)
    assert (a.clip.kind, a.clip.bound, a.clip.norm) == ("update", 2.0, "l1")
    assert (a.arithmetic, a.fraction_bits) == ("fixed", 20)
    s = a.scheme
    assert (s.name, s.law.name, s.sigma, s.sigma_pair) == ("pairwise", "gaussian", 0.5, 0.6)


def test_a_bare_topology_takes_the_problems_size() -> None:
    c = parse(SMALL)
    for name in ("ring", "path", "star", "complete", "random", "small-world"):
        assert make_graphs(parse({"graph": {"topology": name}}), 7)[0].P == 7
    assert c.build().graph[0].P == 3


def test_matchings_take_turns() -> None:
    graphs = parse(SMALL | {"graph": {"topology": "path", "matchings": True}}).build().graph
    assert [g.edges.tolist() for g in graphs] == [[[0, 1]], [[1, 2]]]


def test_of_graphs_that_take_turns_the_product_must_mix(tmp_path: Path) -> None:
    """Each file alone is refused; together they reach everybody."""
    names = []
    for name, ends in (("a", (0, 1)), ("b", (1, 2))):
        A = np.eye(3)
        A[np.ix_(ends, ends)] = 0.5
        np.savetxt(tmp_path / name, A)
        names.append(f"file:{tmp_path / name}")

    def made(topology: Any) -> list[Any]:
        return parse(SMALL | {"graph": {"topology": topology, "weights": "given"}}).build().graph

    assert len(made(names)) == 2
    for alone in (names[0], [names[0]], [names[0], names[0]]):
        with pytest.raises(InputError, match=r"graph\.topology = .*must (be connected|mix)"):
            made(alone)


def test_seeds_follow_the_top_level_one_unless_given() -> None:
    def data(**changes: Any) -> tuple[Any, Any]:
        e = parse(SMALL | {"problem": SMALL["problem"] | {"units": 8}} | changes).build()
        return e.problem.federation.d.tobytes(), e.graph[0].edges.tobytes()

    assert data(seed=1) == data(seed=1)
    assert data(seed=1)[0] != data(seed=2)[0]
    fixed = {"problem": SMALL["problem"] | {"units": 8, "seed": 4}, "graph": {"seed": 5}}
    assert data(seed=1, **fixed) == data(seed=2, **fixed)
    assert data(seed=1, graph={"seed": 5})[1] == data(seed=2, graph={"seed": 5})[1]


def test_a_config_is_read_from_toml_and_from_a_saved_run(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("rounds = 3\n[problem]\nunits = 4\n", encoding="utf-8")
    c = load(tmp_path / "a.toml", ["repeats=2"])
    assert (c.rounds, c.repeats, c.problem.units) == (3, 2, 4)
    record = {"format": 1, "config": c.model_dump(mode="json", exclude_none=True)}
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert load(tmp_path / "run.json") == c


def test_two_numbers_are_a_range_and_more_are_one_a_client() -> None:
    pairs = parse({"algorithm": {"local_steps": [2, 4], "batch": [1, 2, 3]}})
    assert make_algorithm(pairs).local_steps == (2, 4)
    assert list(np.asarray(make_algorithm(pairs).batch)) == [1, 2, 3]
