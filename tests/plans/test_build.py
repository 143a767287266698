"""From what a user writes to the plan: both doors say the same of the same config, and nothing of the data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import deployed, forged_units
from confide.base.errors import InputError
from confide.graph import Graph
from confide.plans.build import model_of, of_deployment, of_run
from confide.plans.config import Experiment, parse
from confide.plans.plan import Clocks, Plan
from confide.plans.privacy import Privacy
from confide.plans.text import encoded
from confide.problems import regression
from confide.problems.models import Linear, Logistic, Softmax
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.arithmetic import on_grid
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalTask
from confide.rounds.schemes import scheme
from confide.secure.settings import Secure

PROBLEM = regression(units=3, clients=4, samples=6, rho=0.1, seed=1)
CLIPPED = GFL(step=0.3, sampled=2, local_steps=(1, 4), batch=(2, 5), clip=Clip("example", 1.0))
GRAPH = Graph.ring(3)
CONFIG: dict[str, Any] = {
    "rounds": 7,
    "problem": {"units": 3, "clients": 4, "samples": 6},
    "algorithm": {"sampled": 3, "clip": "example", "bound": 1, "arithmetic": "fixed", "replacement": False,
                  "aggregation": "secure", "local_steps": [1, 4], "batch": [2, 5]},
    "scheme": {"name": "shared", "sigma": 1, "noise": "gaussian"},
    "secure": {"sigma": 0.5},
    "privacy": {"level": "example", "threat": "colluders:1", "release": "centroid:0.5", "epsilon": 9, "dataset": "x"},
}  # fmt: skip


FLOAT = {"arithmetic": "float", "aggregation": "plain"}


def experiment(**tables: Any) -> Experiment:
    return parse({name: table | tables.get(name, {}) if isinstance(table, dict) else table
                  for name, table in CONFIG.items()}).build()  # fmt: skip


def run(e: Experiment) -> Plan:
    assert e.privacy is not None
    return of_run(e.problem, e.graph, e.algorithm, e.rounds, e.seed, e.privacy)


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_both_doors_make_the_same_tables_of_one_config(aggregation: str) -> None:
    """But for keys, clocks and the order in which clients are written: in a simulation alike ones share a row."""
    changes = {"algorithm": {"aggregation": aggregation}} | (
        {"secure": {"sigma": 0.0}} if aggregation == "plain" else {}
    )
    e = experiment(**changes)
    played, real = run(e), deployed(e)
    for table in ("rounds", "graph", "algorithm", "scheme", "privacy", "secure", "version"):
        assert encoded(getattr(played, table)) == encoded(getattr(real, table))
    for a, b in zip(played.units, real.units, strict=True):
        assert a.size == b.size == 4
        one = sorted((c.local_steps, c.batch) for c in a.clients for _ in range(c.count))
        assert one == sorted((c.local_steps, c.batch) for c in b.clients)
    assert (played.deployment, real.deployment) == (None, replace(real.deployed(), clocks=Clocks(begin=1.0)))


def test_every_client_is_counted_with_its_own_work() -> None:
    E, batch = CLIPPED.settle(PROBLEM.federation, 5)
    made = of_run(PROBLEM, [GRAPH], CLIPPED, 9, 5, Privacy())
    for p, unit in enumerate(made.units):
        mine = slice(4 * p, 4 * p + 4)
        found = sorted((c.local_steps, c.batch) for c in unit.clients for _ in range(c.count))
        assert found == sorted(zip(E.ravel().tolist()[mine], batch.ravel().tolist()[mine], strict=True))
        assert len({(c.local_steps, c.batch) for c in unit.clients}) == len(unit.clients)
    assert made.local_steps == (E.min(), E.max())
    assert made.batches == (batch.min(), batch.max())


def test_floats_keep_their_law_and_weights_fixed_point_has_its_grid() -> None:
    assert of_run(PROBLEM, [GRAPH], CLIPPED, 9, 0, Privacy()).algorithm.fraction_bits is None
    noise = scheme("shared", 1.0, noise="gaussian")
    fixed = replace(CLIPPED, arithmetic="fixed", fraction_bits=20, scheme=noise)
    made, real = of_run(PROBLEM, [GRAPH], fixed, 9, 0, Privacy()), replace(fixed, arithmetic="float")
    assert (str(made.scheme.law), made.algorithm.fraction_bits) == ("discrete-gaussian", 20)
    assert np.array_equal(made.graph.graphs[0].A, on_grid(GRAPH).A)
    made = of_run(PROBLEM, [GRAPH], real, 9, 0, Privacy())
    assert str(made.scheme.law) == "gaussian"
    assert np.array_equal(made.graph.graphs[0].A, GRAPH.A)


def test_what_fails_in_a_simulation_is_in_its_plan() -> None:
    algorithm = replace(CLIPPED, dropout=0.25, failures=Failures(0.1, 0.2, ((1, 0, 1),), ((2, 2),)))
    made = of_run(PROBLEM, [GRAPH, Graph.path(3)], algorithm, 9, 0, Privacy())
    assert made.graph.failures == algorithm.failures
    assert made.algorithm.dropout == 0.25
    assert [g.name for g in made.graph.graphs] == ["ring:3", "path:3"]
    assert Plan.from_text(made.text) == made


def test_numbers_of_any_type_make_the_same_plan() -> None:
    one = replace(CLIPPED, step=np.float64(0.5), clip=Clip("example", 1), sampled=np.int64(2), scheme=scheme("none"))
    other = replace(CLIPPED, step=0.5, clip=Clip("example", 1.0), sampled=2, scheme=scheme("none"))
    plans = [of_run(PROBLEM, [GRAPH], a, 9, 0, Privacy()) for a in (one, other)]
    assert plans[0].hash == plans[1].hash
    assert Plan.from_text(plans[0].text) == plans[1]


def test_without_a_clip_there_is_no_plan() -> None:
    with pytest.raises(InputError, match=r"algorithm.clip = 'none': without a clip nothing bounds"):
        of_run(PROBLEM, [GRAPH], GFL(sampled=2), 9, 0, Privacy())


def test_a_deployment_states_what_it_protects() -> None:
    algorithm = replace(CLIPPED, arithmetic="fixed")
    with pytest.raises(InputError, match="privacy = None: a deployment states what it protects"):
        of_deployment(forged_units([4] * 3), [GRAPH], algorithm, model_of(PROBLEM, algorithm), 9, 0, None)


def test_clocks_default_to_one_publication_each_round() -> None:
    algorithm = replace(CLIPPED, arithmetic="fixed", scheme=scheme("none"))
    arguments = (forged_units([4] * 3), [GRAPH], algorithm, model_of(PROBLEM, algorithm), 9, 0, Privacy())
    made = of_deployment(*arguments, adapt=7, exchange=3, start=11).deployed()
    assert made.clocks == Clocks(begin=11.0, adapt=7.0, tick=7.0, neighbours=3.0, drain=300.0)
    assert of_deployment(*arguments, adapt=7, tick=2).deployed().clocks.tick == 2.0
    assert of_deployment(*arguments, window=9).deployed().window == 9


def test_what_a_deployment_refuses_a_simulation_may_do() -> None:
    """The list of docs/design/plan.md: each runs as a simulation."""
    for changes, field in (
        ({"algorithm": FLOAT, "secure": {"sigma": 0}}, "algorithm.arithmetic"),
        ({"graph": {"topology": ["ring", "path"]}}, "graph.topology"),
        ({"graph": {"link_failure": 0.5}}, "graph.link_failure"),
        ({"algorithm": {"dropout": 0.5}}, "algorithm.dropout"),
        ({"scheme": {"name": "local-only", "sigma": 0}}, "scheme.name"),
    ):  # fmt: skip
        e = parse({name: CONFIG.get(name, {}) | changes.get(name, {}) if name != "rounds" else 7
                   for name in CONFIG | changes}).build()  # fmt: skip
        run(e)
        with pytest.raises(InputError) as refused:
            deployed(e)
        assert refused.value.field == field


def test_a_softmax_model_is_named_with_its_classes() -> None:
    f = PROBLEM.federation
    classes = Problem(replace(f, d=np.arange(f.samples) % 3.0), Softmax(0.1, classes=3))
    plan = of_run(classes, [GRAPH], CLIPPED, 7, 0, Privacy())
    model = plan.algorithm.model
    assert (model.kind, model.length, model.features, model.ridge) == ("softmax:3", 6, 2, 0.1)
    assert Plan.from_text(plan.text) == plan
    assert model_of(classes, replace(CLIPPED, clip=None, local=own)).kind == "own"
    for wrong in ({"length": 7}, {"kind": "softmax:1"}, {"kind": "softmax"}, {"kind": "tree"}):
        with pytest.raises(InputError, match=r"multiple of the 3 classes|known: linear"):
            replace(model, **wrong)


def own(w: np.ndarray, X: np.ndarray, d: np.ndarray, task: LocalTask) -> np.ndarray:
    return -0.1 * w


class Declared(Linear):
    convex = True


class Undeclared(Linear):
    pass


class Any_:
    rho = 0.2

    def dimension(self, features: int) -> int:
        return features


@pytest.mark.parametrize(
    ("model", "changes", "kind", "built_in", "convex"),
    [
        (Linear(0.1), {}, "linear", True, ""),
        (Logistic(0.1), {}, "logistic", True, ""),
        (Linear(0.1), {"local": own, "clip": Clip("update", 1.0)}, "own", False, ""),
        (Declared(0.1), {}, "own", True, "Declared"),
        (Undeclared(0.1), {}, "own", True, ""),
        (Any_(), {}, "own", True, ""),
    ],
)
def test_what_a_plan_says_of_a_model(
    model: Any, changes: dict[str, Any], kind: str, built_in: bool, convex: str
) -> None:
    f = PROBLEM.federation
    problem = Problem(replace(f, d=np.sign(f.d)) if kind == "logistic" else f, model)
    found = model_of(problem, replace(CLIPPED, **changes))
    assert (found.kind, found.built_in, found.convex) == (kind, built_in, convex)
    if built_in:  # what a step of one's own makes of the regulariser, nobody knows
        assert found.ridge == model.rho
    assert found.length == PROBLEM.M


def test_secure_sums_have_the_parameters_of_their_settings() -> None:
    settings = Secure(sigma=1)
    algorithm = replace(CLIPPED, sampled=3, arithmetic="fixed", aggregation=settings, scheme=scheme("none"))
    found = of_run(PROBLEM, [GRAPH], algorithm, 9, 0, Privacy()).secure
    assert found is not None
    assert (found.parameters, found.sigma, found.ring_bits) == (settings.parameters(3), 1.0, settings.ring_bits)
