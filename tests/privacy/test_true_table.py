"""A user's table, item 14: what was computed from everybody's rows before any noise, no epsilon may cover.

Whoever changes one client's rows must find everything of every other client as it was, bit for bit; where that does not
hold there is no epsilon to print. `attained` is what a pair of tables gives that the test drives through `adapt`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import confide
from builders import deployed, forged_units, priced
from confide.base.errors import InputError
from confide.deploy.keys import announcement
from confide.engines.run import describe_model
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon
from confide.plans import config as settings
from confide.plans.plan import Plan
from confide.privacy.bundle import generate_key, load_key, make_bundle, save_bundle, verify_bundle
from confide.privacy.price import agreed, price
from confide.problems import clicks, table
from confide.problems.click_log import synthetic_log
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.reference import prepare
from confide.rounds.schemes import scheme

PAIR, K, N = Graph.path(2), 50, 10
HOW: dict[str, Any] = {"label": "y", "unit": "u", "client": "k", "numeric": ["x"]}
DECLARED: dict[str, Any] = {**HOW, "scaling": {"x": [0, 1]}}
# psi moves by at most 2 mu B / L, and the noise is four times as wide: 1.993 is printed.
ALGORITHM = GFL(
    scheme("shared", 4 * 2 * 0.1 / K / 2, noise="gaussian"), step=0.1, sampled=K, local_steps=1, batch=1,
    clip=Clip("example", 1.0),
)  # fmt: skip


def rows(first: int = N) -> pl.DataFrame:
    """Two units of 50 clients with ten rows each, the very first client with `first`; y is the row's own number."""
    sizes = np.full(2 * K, N)
    sizes[0] = first
    who = np.repeat(np.arange(2 * K), sizes)
    place = np.concatenate([np.arange(n) for n in sizes])
    return pl.DataFrame({"u": who // K, "k": who % K, "x": np.zeros(len(who)), "y": 1000.0 * who + place})


def problem(tmp_path: Path, frame: pl.DataFrame, **how: Any) -> Problem:
    frame.write_csv(tmp_path / "t.csv")
    return table(tmp_path / "t.csv", **{**DECLARED, **how})


def printed(made: Problem) -> float:
    found = priced(confide.Privacy(), made, [PAIR], ALGORITHM, 1).account(1).epsilon
    assert found is not None
    return found


def attained(pair: list[Problem]) -> float:
    """By who sees both servers' psi of one round, each through its noise."""
    psi = []
    for made in pair:
        r = prepare(made, [PAIR], ALGORITHM, 1, 0)(0)
        psi.append(np.concatenate([r.adapt(1, p, np.zeros(made.M), range(K)) for p in (0, 1)]))
    return gaussian_epsilon(float(np.linalg.norm(psi[1] - psi[0])) / ALGORITHM.scheme.sigma, 1e-5)


def of_clients(made: Problem) -> list[tuple[list[list[float]], list[float]]]:
    f = made.federation
    clients = [f.client(p, k) for p in range(f.P) for k in range(int(f.K[p]))]
    return [(X.tolist(), d.tolist()) for X, d in clients]


# ---- held-out rows


def test_rows_more_of_one_client_move_nobody_else_beyond_the_price(tmp_path: Path) -> None:
    """212 was attained where 1.993 is printed: one order over the whole table decided who is tested on what."""
    few, many = rows(), rows(N + 3)
    split = [problem(tmp_path, t, test_fraction=0.5) for t in (few, many)]
    trained = [set(p.federation.d) for p in split]
    one, other = trained[0] - trained[1], trained[1] - trained[0]

    def labelled(t: pl.DataFrame) -> pl.DataFrame:  # the worst that the draw allows: -1 before, +1 after
        return t.with_columns(y=pl.col("y").map_elements(lambda y: (y in other) - float(y in one), pl.Float64) * 1e3)

    pair = [problem(tmp_path, labelled(t), test_fraction=0.5) for t in (few, many)]
    assert printed(pair[0]) == pytest.approx(1.993, abs=1e-3)
    assert attained(pair) <= printed(pair[0])


def changed(t: pl.DataFrame, how: str) -> pl.DataFrame:
    """Other rows of client 1 of unit 0, at another place of the table too."""
    mine = (pl.col("u") == 0) & (pl.col("k") == 1)
    own, rest = t.filter(mine), t.filter(~mine)
    if how == "fewer":
        return pl.concat([rest, own.head(1)])
    if how == "more":
        return pl.concat([own, own, rest[:300], own, rest[300:]])
    return pl.concat([rest, own.with_columns(x=pl.lit(1e9), y=pl.lit(-1.0), c=pl.lit("HIV positive"), z=pl.lit("yes"))])


@pytest.mark.parametrize("how", ["fewer", "more", "others"])
@pytest.mark.parametrize("task", ["regression", "binary"])
def test_nothing_of_anybody_else_depends_on_one_clients_rows(tmp_path: Path, task: str, how: str) -> None:
    g = np.random.default_rng(0)
    t = rows().with_columns(
        x=g.normal(size=2 * K * N), c=g.choice(["a", "b"], 2 * K * N), z=g.choice(["yes", "no"], 2 * K * N)
    ).sample(fraction=1.0, shuffle=True, seed=0)  # fmt: skip
    settings: dict[str, Any] = {"categorical": ["c"], "categories": {"c": ["a", "b"]}}
    if task == "binary":
        settings |= {"label": "z", "task": task, "categories": {"c": ["a", "b"], "z": ["no", "yes"]}}
    one, other = (problem(tmp_path, made, **settings) for made in (t, changed(t, how)))
    before, after = of_clients(one), of_clients(other)
    assert before[1] != after[1]
    assert before[:1] + before[2:] == after[:1] + after[2:]
    assert describe_model(one) == describe_model(other)
    assert (one.spec, one.notes, one.undeclared, other.undeclared) == (other.spec, other.notes, (), ())

    def tested(made: Problem) -> list[list[float]]:
        """Of all but the changed client: its rows are told by x."""
        assert made.test is not None
        own = set(t.filter((pl.col("u") == 0) & (pl.col("k") == 1))["x"]) | {1e9}
        return [[*x, d] for x, d in zip(made.test[0].tolist(), made.test[1].tolist(), strict=True) if x[0] not in own]

    assert tested(one) == tested(other)
    assert len(tested(one)) > K


def test_one_row_that_changes_moves_no_other_row(tmp_path: Path) -> None:
    """At level `example`: held out by place, not by label, or one label more would shift the rows after it."""
    g = np.random.default_rng(0)
    t = rows().with_columns(x=g.normal(size=2 * K * N), z=g.choice(["yes", "no"], 2 * K * N))
    settings: dict[str, Any] = {"label": "z", "task": "binary", "categories": {"z": ["no", "yes"]}}
    for row in range(N):
        flipped = t["z"].to_list()
        flipped[row] = "no" if flipped[row] == "yes" else "yes"
        one, other = (problem(tmp_path, made, **settings) for made in (t, t.with_columns(z=pl.Series(flipped))))
        np.testing.assert_array_equal(one.federation.X, other.federation.X)
        assert (one.federation.d != other.federation.d).sum() <= 1


# ---- scaling, categories, labels


def test_scaling_by_everybodys_rows_has_no_epsilon(tmp_path: Path) -> None:
    """618 was attained where 1.993 was printed: one client's numbers turn everybody's features round."""
    mine = (pl.col("u") == 0) & (pl.col("k") == 0)
    tables = [rows(4000).with_columns(x=pl.when(mine).then(x).otherwise(50.0), y=pl.lit(1e3)) for x in (-1e6, 1e6)]
    computed = [problem(tmp_path, t, scaling=None) for t in tables]
    declared = [problem(tmp_path, t, scaling={"x": [50, 1]}) for t in tables]
    assert attained(declared) <= printed(declared[0]) < 2
    assert attained(computed) > 500
    with pytest.raises(InputError, match=r"problem = 'table'.*under \[problem.scaling\]: x = \[0, 1\].*unprotected"):
        printed(computed[0])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"scaling": None}, "[problem.scaling]: x = [0, 1]"),
        ({"categorical": ["c"]}, '[problem.categories]: c = ["a", "b"]'),
        ({"label": "z", "task": "binary"}, '[problem.categories]: z = ["no", "yes"]'),
        ({"label": "z", "task": "binary", "positive": "-"}, '[problem.categories]: z = ["no", "yes"]'),
        ({"numeric": [], "scaling": None, "categorical": ["odd name"]}, '"odd name" = ["a", "b"]'),
        ({"unit": None, "client": None, "split": "iid", "units": 2, "clients": 3}, 'split = "columns"'),
        ({"unit": None, "client": None, "split": "unequal", "units": 2, "clients": 3}, 'split = "columns"'),
        (
            {"unit": None, "client": None, "split": "dirichlet", "alpha": 1.0, "units": 2, "clients": 3},
            "everybody's labels",
        ),
    ],
)
def test_what_is_computed_is_named_and_how_to_declare_it(tmp_path: Path, how: dict[str, Any], words: str) -> None:
    private = "HIV positive"
    t = rows().with_columns(x=pl.Series(np.arange(2 * K * N) + 0.123456), c=pl.Series([private, "-"] * K * N))
    t = t.with_columns(z=pl.col("c"), **{"odd name": pl.col("c")})
    made = problem(tmp_path, t, **how)
    assert len(made.undeclared) == 1
    assert words in made.undeclared[0]
    assert private not in made.undeclared[0]
    assert "499.6" not in made.undeclared[0]  # the mean of x: suggested, it would be declared
    with pytest.raises(InputError, match=r"or privacy\.unprotected = true"):
        priced(confide.Privacy(), made, [PAIR], replace(ALGORITHM, sampled=2), 3)


def test_all_reasons_stand_side_by_side(tmp_path: Path) -> None:
    t = rows().with_columns(x=pl.Series(np.arange(2.0 * K * N)), c=pl.Series(["a", "b"] * K * N))
    made = problem(tmp_path, t.with_columns(z=pl.col("c")), scaling=None, categorical=["c"], label="z", task="binary")
    assert [why.split(" is ")[0].split(" are ")[0] for why in made.undeclared] == [
        "the scaling of x", "the categories of c", "the two labels of z",
    ]  # fmt: skip


# ---- declared labels


def test_declared_labels_are_those_of_the_model_whatever_the_rows_hold(tmp_path: Path) -> None:
    how: dict[str, Any] = {"label": "z", "task": "binary", "categories": {"z": ["ill", "well"]}}
    t = rows().with_columns(z=pl.lit("ill"))
    made = problem(tmp_path, t, **how)
    assert made.features is not None
    assert made.features["label"] == {"name": "z", "task": "binary", "negative": "ill", "positive": "well"}
    assert set(made.federation.d) == {-1.0}
    assert set(problem(tmp_path, t, **how, positive="ill").federation.d) == {1.0}
    numbers = problem(tmp_path, rows().with_columns(z=pl.lit(1)), **{**how, "categories": {"z": [0, 1]}})
    assert set(numbers.federation.d) == {1.0}
    for labels, words in (
        (["ill"], "two distinct labels"),
        (["ill", "ill"], "twice"),
        (["ill", "well", "dead"], "two distinct labels"),
        ("ill", "list"),
        (["well", "dead"], "row 1 holds 'ill'"),
    ):
        with pytest.raises(InputError, match=words):
            problem(tmp_path, t, **{**how, "categories": {"z": labels}})
    with pytest.raises(InputError, match="not among the columns"):
        problem(tmp_path, t, categories={"y": ["1", "2"]})


def test_a_declared_column_may_hold_one_value_or_none(tmp_path: Path) -> None:
    """A refusal would tell the rows: only what is computed from them needs two values."""
    t = rows().with_columns(x=pl.lit(None, pl.Float64), c=pl.lit("a"))
    made = problem(tmp_path, t, categorical=["c"], categories={"c": ["a", "b"]})
    np.testing.assert_array_equal(made.federation.X[0], [0, 1, 0, 0, 1])
    assert made.undeclared == ()


# ---- the click log


def test_a_click_log_of_ones_own_is_an_experiment(tmp_path: Path) -> None:
    log, _ = synthetic_log(600, 0)
    log.write_csv(tmp_path / "log.csv")
    for encoding in ("top", "hash"):
        made = clicks(tmp_path / "log.csv", units=2, clients=3, rows=60, test_rows=10, encoding=encoding)
        assert made.private
        assert "for experiments" in made.undeclared[0]
    assert clicks(units=2, clients=3, rows=60, test_rows=10).undeclared == ()


# ---- runs


def unprotected(tmp_path: Path, **privacy: Any) -> confide.Run:
    t = rows().with_columns(x=pl.Series(np.arange(2.0 * K * N)))
    made = problem(tmp_path, t, scaling=None)
    return confide.simulate(
        made, PAIR, ALGORITHM, rounds=4, privacy=confide.Privacy(unprotected=True, **privacy)
    )  # fmt: skip


def test_unprotected_runs_and_has_no_epsilon_anywhere(tmp_path: Path) -> None:
    run = unprotected(tmp_path, release="centroid:1")
    assert run.privacy is not None
    said = run.privacy["statement"]
    assert (said["accounts"], said["refused"]) == ([], [])
    assert "[problem.scaling]" in said["unprotected"][0]
    assert "epsilon" not in run.metrics
    assert "NOT PROTECTED" in repr(run)
    assert not [line for line in repr(run).splitlines() if "epsilon" in line and "NOT PROTECTED" not in line]
    costs = [*run.privacy["ledger"]["costs"], run.privacy["ledger"]["release"]]
    assert len(costs) == 5
    assert all(c["rho"] is None and c["epsilon"] is None for c in costs)


def test_the_plan_alone_says_that_nothing_has_a_price(tmp_path: Path) -> None:
    run = unprotected(tmp_path)
    run.save(tmp_path / "run")
    plan = Plan.load(tmp_path / "run" / "plan.json")
    assert run.privacy is not None
    assert price(plan).statement().to_dict() == run.privacy["statement"]
    generate_key(tmp_path / "key")
    text = make_bundle(
        plan, tmp_path / "run" / "ledger.jsonl", run.privacy["statement"], {}, load_key(tmp_path / "key")
    )  # fmt: skip
    save_bundle(tmp_path / "bundle.json", text)
    report = verify_bundle(tmp_path / "bundle.json")
    assert report.ok
    assert report.statement is not None
    assert report.statement["accounts"] == []
    assert report.statement["unprotected"] == run.privacy["statement"]["unprotected"]


@pytest.mark.parametrize("budget", [{"epsilon": 3.0}, {"rho": 0.1}])
def test_a_budget_cannot_be_kept_without_a_price(tmp_path: Path, budget: dict[str, float]) -> None:
    with pytest.raises(InputError, match="a budget cannot be kept"):
        unprotected(tmp_path, **budget)


def test_a_declared_table_is_priced_as_ever(tmp_path: Path) -> None:
    made = problem(tmp_path, rows())
    for flag in (False, True):
        run = confide.simulate(made, PAIR, ALGORITHM, rounds=1, privacy=confide.Privacy(unprotected=flag))
        assert run.privacy is not None
        assert run.privacy["statement"]["accounts"][0]["epsilon"] == pytest.approx(1.993, abs=1e-3)
        assert run.privacy["statement"]["unprotected"] == []


def test_who_takes_part_at_all_is_assumed_to_be_public(tmp_path: Path) -> None:
    run = confide.simulate(problem(tmp_path, rows()), PAIR, ALGORITHM, rounds=1, privacy=confide.Privacy())
    assert run.privacy is not None
    assert any("roster is public" in a for a in run.privacy["statement"]["accounts"][0]["assumptions"])


# ---- commands

Outcome = tuple[int, str, str]
CONFIG = """
rounds = 2
repeats = 1
[graph]
topology = "path"
[problem]
name = "table"
path = "t.csv"
label = "y"
unit = "u"
client = "k"
numeric = ["x"]
[algorithm]
sampled = 5
local_steps = 1
batch = 1
clip = "example"
bound = 1.0
[scheme]
noise = "gaussian"
name = "shared"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows().with_columns(x=pl.Series(np.arange(2.0 * K * N))).write_csv("t.csv")
    Path("c.toml").write_text(CONFIG)
    Path("declared.toml").write_text(CONFIG + "[problem.scaling]\nx = [500, 300]\n")
    return tmp_path


def test_the_command_refuses_and_says_what_to_write(command: Callable[..., Outcome], config: Path) -> None:
    code, out, err = command("simulate", "c.toml", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "[problem.scaling]: x = [0, 1]" in err
    assert command("simulate", "declared.toml", "--json")[0] == 0
    code, out, _ = command("simulate", "c.toml", "--set", "privacy.unprotected=true", "--json")
    assert code == 0
    assert json.loads(out)["privacy"]["statement"]["accounts"] == []
    code, out, _ = command("account", "results/c/ledger.jsonl")
    assert "NO BOUND" in out


def test_plan_does_not_try_schemes_on_somebodys_data(command: Callable[..., Outcome], config: Path) -> None:
    for name in ("c.toml", "declared.toml"):
        code, out, err = command("plan", name, "--epsilon", 3)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "nothing pays" in err
        assert "leave the config out" in err
    made = "[problem]" + CONFIG.partition("[problem]")[2]
    made = CONFIG.replace(made, "[problem]\nunits = 2\nclients = 5\n[algorithm]" + made.partition("[algorithm]")[2])
    Path("made.toml").write_text(made)
    assert command("plan", "made.toml", "--epsilon", 3, "--scheme", "shared")[0] == 0


@pytest.mark.parametrize("level", ["patient", "clients", "row", ""])
def test_an_unknown_level_is_answered_with_what_the_three_mean(
    command: Callable[..., Outcome], config: Path, level: str
) -> None:
    for words in (("simulate", "declared.toml", "--set", f"privacy.level={level!r}"), ("account", "--level", level)):
        code, out, err = command(*words)
        assert (code, out) == (2, "")
        assert "did you mean" not in err
        for meaning in ("unit (all data of one server's organisation)", "client (all data of one client)", "(one row"):
            assert meaning in err


def test_predict_applies_what_was_declared(command: Callable[..., Outcome], config: Path) -> None:
    t = rows().with_columns(
        x=pl.Series(np.arange(2.0 * K * N)), c=pl.Series(["a", "new"] * K * N), z=pl.Series(["no", "yes"] * K * N)
    )  # fmt: skip
    t.write_csv("t.csv")
    binary = CONFIG.replace('label = "y"', 'label = "z"\ntask = "binary"\ncategorical = ["c"]\nrho = 0.01')
    declared = '[problem.scaling]\nx = [500, 300]\n[problem.categories]\nc = ["a", "b"]\nz = ["no", "yes"]\n'
    Path("b.toml").write_text(binary + declared)
    assert command("simulate", "b.toml", "--set", "privacy.release=centroid:1", "--out", "run")[0] == 0
    code, out, _ = command("predict", "run", "t.csv", "--json")
    found = json.loads(out)
    assert (code, found["rows"]) == (0, t.height)
    assert set(found["predictions"]["prediction"]) <= {"no", "yes"}
    assert math.isfinite(found["metrics"]["error"])


# ---- deployments


def test_a_deployment_of_a_table_needs_it_declared(config: Path) -> None:
    fixed = {"arithmetic": "fixed", "fraction_bits": 20, "aggregation": "secure"}
    made = [
        settings.load(name, [f"algorithm.{k}={v}" for k, v in fixed.items()]) for name in ("c.toml", "declared.toml")
    ]
    with pytest.raises(InputError, match=r"\[problem\.scaling\]"):
        deployed(made[0].build())
    assert agreed(deployed(made[1].build())).plan.algorithm.model.length == 2
    counted = settings.load("declared.toml", ["problem.categorical=['x']", "problem.numeric=[]", "problem.scaling={}"])
    with pytest.raises(InputError, match=r"--features = None: would be counted from private rows"):
        announcement.agree(counted, forged_units([K] * 2))
