"""Every key of a config with every kind of nonsense: it runs, or one line names the key. Never anything else."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.base.tables import Table
from confide.engines import own
from confide.engines.run import DivergenceWarning, NoNoiseWarning, Run
from confide.plans.config import AnyProblem, Config, named_as_in_config, parse
from exploring import more
from patience import LIMIT

NAN, INF = math.nan, math.inf
WORDS = ["", "x", "a\nb", "\0", "none", "constant", "missing_col", "label", "k"]
GRAPHS = ["ring:0", "ring:9", "random:2:0", "random:2:nan", "ring:1e3", "ring:-1", "grid:0x2", "grid:1x2", "torus:"]
GRAPHS += [
    "grid:100000000000x1000000",
    "ring:100000000000000000",
    "small-world:2:2:0.1",
    "hypercube:-1",
    "hypercube:99",
]
GRAPHS += ["file:", "file:/nonexistent", "file:/etc", "star:2:3:4", "file:\0"]
SCHEMES = ["partial:0.5", "partial:nan", "partial:2", "partial:", "partial:C", "pairwise", "central", "per-link"]
CHOICES = [
    "fixed",
    "reference",
    "compiled",
    "gaussian",
    "example",
    "update",
    "binary",
    "iid",
    "dirichlet",
    "hash",
    "given",
]
NUMBERS = [-1, 0, 1, 3, 2**63, 10**18, -(10**18), 10**400, True, False]
NUMBERS += [0.0, 0.5, -0.5, NAN, INF, -INF, 1e308, -1e308, 1e9, 1e-320]
LISTS = [[], [0], [-1], [1, 2], [2, 1], [1, 2, 3], [0.0, 0.0], [NAN, NAN], [INF, 1.0], [1e200, 1e300], [True, True]]
LISTS += [["x"], ["x", "x"], ["ring:2", "path:2"], ["ring:2", "path:3"], [None], [[]], [[1]], [[1, 0]], [[1, 0, 1]]]
LISTS += [[[1, 1, 1]], [[0, 0]], [[-1, 0, 0]], [[1, 10**30, 1]], [["a"]], [[[[1]]]]]
TABLES = [
    {},
    {"x": 1},
    {"x": [0, 1]},
    {"x": [0, 0]},
    {"x": [NAN, 1]},
    {"x": [1]},
    {"y": [1, 2]},
    {"c": ["a", "a"]},
    {"c": []},
]
VALUES: list[Any] = [None, *WORDS, *GRAPHS, *SCHEMES, *CHOICES, *NUMBERS, *LISTS, *TABLES]

REGRESSION = {"name": "regression", "units": 2, "clients": 3, "samples": 4}
CLICKS = {"name": "clicks", "units": 2, "clients": 3, "rows": 40, "test_rows": 10, "top": 2, "buckets": 8}
TABLE = {"name": "table", "path": "rows.csv", "label": "label", "unit": "u", "client": "k"}
TABLE |= {"numeric": ["x"], "categorical": ["c"]}
DIGITS = {"name": "digits", "units": 2, "clients": 3}
ARRAYS = {"name": "arrays", "path": "rows.npz", "unit": "u", "client": "k", "classes": 3}
OWN = {"name": "own", "units": 2, "clients": 3, "length": 2, "train": "operator:setitem"}
PROBLEMS: dict[str, dict[str, Any]] = {
    "regression": REGRESSION,
    "clicks": CLICKS,
    "table": TABLE,
    "digits": DIGITS,
    "arrays": ARRAYS,
    "own": OWN,
}

# The line may name another key where the two only contradict each other.
RELATED = {
    "problem.units": ("graph.topology",),
    "problem.clients": ("algorithm.sampled",),
    "problem.client": ("algorithm.sampled", "problem.numeric"),
    "problem.unit": ("problem.client", "problem.numeric", "graph.topology", "algorithm.sampled"),
    "problem.label": ("problem.unit", "problem.client", "problem.numeric"),
    "problem.rows": ("problem.clients",),
    "problem.samples": ("problem.units",),  # too much memory in all
    "problem.features": ("problem.units", "problem.unit", "problem.client", "problem.label"),
    "problem.split": ("problem.unit", "problem.units", "problem.alpha"),
    "problem.task": ("problem.label",),
    "problem.numeric": ("problem.label",),
    "algorithm.clip": ("algorithm.bound",),
    "repeats": ("rounds",),
}
ZERO_IS_FINE = {
    "secure.corrupted",
    "secure.dropped",
    "secure.sigma",
    "seed",
    "graph.seed",
    "problem.seed",
    "problem.rho",
    "problem.test_rows",
    "problem.feature_noise",
}
ZERO_IS_FINE |= {"problem.test_fraction", "algorithm.dropout", "graph.link_failure", "graph.unit_failure"}
ZERO_IS_FINE |= {"scheme.sigma", "scheme.sigma_pair", "scheme.sigma_client"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place to work in, with a small table in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(csv())
    monkeypatch.setattr(own, "TrainingProcess", Still)
    return tmp_path


class Still:
    """In place of a process for every value: what a client's own says of values, `tests/deploy/node` asks."""

    timeout = 0.0

    def __init__(self, *_: object) -> None:
        pass

    def load(self) -> None:
        pass

    def __call__(self, weights: Any, round: int, config: Any) -> Any:
        return np.ones(len(weights))

    def close(self) -> None:
        pass


def csv(rows: int = 24) -> str:
    rng = np.random.default_rng(0)
    lines = ["u,k,x,c,label,constant,missing_col"]
    for n in range(rows):
        kind = "ab"[n % 2 if n % 3 else 0]
        lines.append(f"{n % 2},{n // 2 % 3},{rng.normal():.3f},{kind},{n % 2},1,{'' if n % 2 else 'q'}")
    return "\n".join(lines) + "\n"


def arrays() -> None:
    """The same as arrays, and some that do not fit."""
    n, X = np.arange(24), np.random.default_rng(0).normal(size=(24, 2))
    np.savez("rows.npz", X=X, y=n % 3, u=n % 2, k=n // 2 % 3, x=X[:, :1], label=X[:, 0], none=n[1:])


def content(problem: str = "regression") -> dict[str, Any]:
    if problem == "arrays":
        arrays()
    return {
        "rounds": 2,
        "repeats": 1,
        "graph": {"topology": "ring"},
        "problem": dict(PROBLEMS[problem]),
        "algorithm": {"sampled": 2, "local_steps": [1, 2], "batch": [1, 2]}
        | ({"clip": "update", "bound": 1.0} if problem == "own" else {}),
    }


def put(tree: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    *tables, last = key.split(".")
    inner = tree
    for t in tables:
        inner = inner.setdefault(t, {})
    inner[last] = value
    return tree


def simulate(tree: dict[str, Any]) -> Run:
    """As the command does it."""
    config = parse(copy.deepcopy(tree))
    e, o = config.build(), config.output
    with named_as_in_config():
        return confide.simulate(
            e.problem,
            e.graph,
            e.algorithm,
            rounds=e.rounds,
            repeats=e.repeats,
            seed=e.seed,
            evaluate_every=o.evaluate_every,
            engine=o.engine,
        )


def tables() -> Iterator[tuple[str, str, type[Table]]]:
    """(problem, name of the table, its type), each table once."""
    for name, info in Config.model_fields.items():
        kind = info.annotation
        if name == "problem":
            for p in typing.get_args(typing.get_args(AnyProblem)[0]):
                yield typing.get_args(p.model_fields["name"].annotation)[0], "problem", p
        elif isinstance(kind, type) and issubclass(kind, Table):
            yield "regression", name, kind


def fields() -> list[tuple[str, str, Any]]:
    """(problem, dotted name, annotation) of every key there is."""
    top = [("regression", n, i.annotation) for n, i in Config.model_fields.items()]
    inner = [(p, f"{t}.{k}", i.annotation) for p, t, kind in tables() for k, i in kind.model_fields.items()]
    return [*top, *inner]


def numeric_fields() -> list[tuple[str, str, type]]:
    """Keys that hold one number, perhaps besides None or a list."""
    found = []
    for problem, name, annotation in fields():
        options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
        kind = next((k for k in (float, int) if k in options), None)
        if kind and name != "problem.positive":  # a label, whatever it is
            found.append((problem, name, kind))
    return found


def by_name(field: tuple[str, str, Any]) -> str:
    return f"{field[0]}-{field[1]}"


def test_the_walk_sees_every_key() -> None:
    names = {(p, n) for p, n, _ in fields()}
    assert {("regression", "rounds"), ("regression", "graph.failed_links"), ("clicks", "problem.top")} < names
    assert {("table", "problem.scaling"), ("regression", "output.engine"), ("regression", "scheme.sigma")} < names
    assert len(names) >= 75
    assert len(numeric_fields()) >= 35


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_untouched_configs_run(problem: str) -> None:
    run = simulate(content(problem))
    assert run.rounds == 2
    assert np.isfinite(run.models).all()


@pytest.mark.parametrize("field", fields(), ids=by_name)
def test_nonsense_runs_or_is_one_line_that_names_the_key(field: tuple[str, str, Any]) -> None:
    problem, name, _ = field
    for value in VALUES:
        tree = put(content(problem), name, value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DivergenceWarning)  # an absurd step is no bad input: exit 1
                warnings.simplefilter("ignore", NoNoiseWarning)  # nor is one unit
                run = simulate(tree)
        except InputError as error:
            assert_one_line(error, name, value)
        else:
            assert_finite(run, value)


def assert_one_line(error: InputError, name: str, value: object) -> None:
    line = str(error)
    assert "\n" not in line
    assert len(line) < 500, line
    allowed = (name, *RELATED.get(name, ()))
    assert any(error.field == a or error.field.startswith((f"{a}.", f"{a}[")) for a in allowed), (value, line)
    assert line.startswith(f"{error.field} = ")
    assert len(error.remedy) > 5, line


def assert_finite(run: Run, value: object) -> None:
    assert np.isfinite(run.models).all(), value
    for metric in ("disagreement", "residual", "participants"):
        assert np.isfinite(run.metrics[metric]).all(), (value, metric)
    assert run.diverged or run.rounds == run.inputs["rounds"]
    json.dumps(run.summary(), allow_nan=False)


@pytest.mark.parametrize("field", numeric_fields(), ids=by_name)
def test_what_is_no_number_in_its_range_is_refused(field: tuple[str, str, type]) -> None:
    problem, name, kind = field
    wrong = ["x", "", True, {}, {"x": 1}, [[]], NAN, INF, -INF, -1, -0.5, 10**400]
    wrong += [0.5] if kind is int else []
    wrong += [] if name in ZERO_IS_FINE else [0]
    for value in wrong:
        with pytest.raises(InputError) as caught:
            simulate(put(content(problem), name, value))
        assert_one_line(caught.value, name, value)


@pytest.mark.parametrize("name", sorted(ZERO_IS_FINE))
def test_zero_is_allowed_where_it_means_something(name: str) -> None:
    problem = next(p for p, n, _ in fields() if n == name)
    assert simulate(put(content(problem), name, 0)).rounds == 2


# ---- values that contradict each other or the data


@pytest.mark.parametrize(
    ("problem", "changes", "line"),
    [
        ("regression", {"algorithm.sampled": 4}, "algorithm.sampled = 4: unit 0 has only 3 clients"),
        (
            "regression",
            {"algorithm.batch": 5, "algorithm.replacement": False},
            "algorithm.batch = 5: client 0 has only 4 samples; use smaller batches or replacement = true",
        ),
        ("regression", {"graph.topology": "ring:3"}, "graph.topology = 'ring:3': the problem has 2 units"),
        ("regression", {"graph.topology": "hypercube:2"}, "graph.topology = .*the problem has 2 units"),
        ("regression", {"graph.topology": []}, "graph.topology = .*at least one topology is needed"),
        ("regression", {"algorithm.bound": 1.0}, "algorithm.bound = 1.0: means nothing without algorithm.clip"),
        ("regression", {"algorithm.clip": "update"}, "algorithm.bound = None: .* needs a bound B"),
        ("regression", {"algorithm.arithmetic": "fixed"}, "algorithm.arithmetic = 'fixed': .* needs a clip"),
        ("regression", {"scheme.name": "none", "scheme.sigma": 1.0}, "scheme.sigma = 1.0: only .* has no noise"),
        ("regression", {"scheme.sigma_pair": 1.0}, "scheme.sigma_pair = 1.0: only .*'pairwise'"),
        ("regression", {"graph.failed_links": [[3, 0, 1]]}, "graph.failed_links = .* there are 2 rounds"),
        ("regression", {"graph.failed_units": [[1, 2]]}, "graph.failed_units = .*servers 0 to 1"),
        ("regression", {"graph.link_failure": 1.5}, "graph.link_failure = 1.5: must be between 0 and 1"),
        ("regression", {"output.engine": "gpu"}, "output.engine = 'gpu': known: auto, compiled, jax, torch, reference"),
        ("regression", {"output.evaluate_every": 0}, "output.evaluate_every = 0: must be at least 1"),
        ("regression", {"seed": -1}, "seed = -1: must be between 0 and"),
        ("regression", {"problem.covariance": [0.5, 0.1]}, "problem.covariance = .*low end must not exceed"),
        ("regression", {"algorithm.local_steps": [2, 1]}, "algorithm.local_steps = .*low end must not exceed"),
        ("regression", {"algorithm.local_steps": [1, 2, 3]}, "algorithm.local_steps = '3 numbers': .* the 6 clients"),
        ("clicks", {"problem.rows": 5}, "problem.clients = 3: 2 units of 3 clients need at least 6 rows"),
        ("table", {"problem.numeric": ["constant"]}, "problem.numeric = 'constant': has one value only"),
        ("table", {"problem.categorical": ["constant"]}, "problem.categorical = 'constant': has one value only"),
        ("table", {"problem.label": "missing_col"}, "problem.label = 'missing_col': 12 rows have no label"),
        ("table", {"problem.unit": "missing_col"}, "problem.unit = 'missing_col': 12 rows name no unit"),
        ("table", {"problem.client": "missing_col"}, "problem.client = 'missing_col': 12 rows name no client"),
        ("table", {"problem.numeric": ["y"]}, "problem.numeric = 'y': no such column; the table has u, k, x"),
        ("table", {"problem.positive": 1}, "problem.positive = 1: only a task = \"binary\""),
        ("table", {"problem.task": "binary", "problem.positive": 7}, "problem.positive = 7: must be one of the labels"),
        ("table", {"problem.alpha": 0.5}, "problem.alpha = 0.5: .* has no alpha"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(problem: str, changes: dict[str, Any], line: str) -> None:
    tree = content(problem)
    for name, value in changes.items():
        put(tree, name, value)
    with pytest.raises(InputError, match=f"^{line}"):
        simulate(tree)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rounds": 10**9, "repeats": 10**6}, "rounds = 1000000000: needs about .* GiB .*; lower rounds or repeats"),
        ({"problem.clients": 10**8, "problem.samples": 10**6}, "problem.units = 2: needs about .* GiB"),
        ({"problem.features": 10**8}, "problem.units = 2: needs about .* GiB"),
        ({"algorithm.local_steps": 10**10}, "algorithm.local_steps = 10000000000: is too large"),
        ({"algorithm.step": 1e31}, "algorithm.step = 1e\\+31: is too large"),
    ],
)
def test_what_would_fill_the_memory_is_refused_before_it_does(changes: dict[str, Any], line: str) -> None:
    tree = content()
    for name, value in changes.items():
        put(tree, name, value)
    with pytest.raises(InputError, match=f"^{line}"):
        simulate(tree)


# ---- through the command


Outcome = tuple[int, str, str]


CONFIG = """
rounds = 2
repeats = 1
graph.topology = "ring"
problem = {units = 2, clients = 3, samples = 4}
algorithm = {sampled = 2, local_steps = 1, batch = 2}
"""


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def refused(outcome: Outcome, *parts: str, code: int = 2, word: str = "error: ") -> None:
    assert outcome[0] == code, outcome
    assert outcome[1] == ""
    assert outcome[2].count("\n") == 1, outcome
    assert outcome[2].startswith(word)
    for part in parts:
        assert part in outcome[2], outcome


SETTINGS = [
    ("rounds=0", "rounds = 0: must be at least 1"),
    ("rounds=ten", "rounds = 'ten': input should be a valid integer"),
    ("repeats=1.5", "repeats = 1.5"),
    ("seed=-1", "seed = -1"),
    ("algorithm.step=nan", "algorithm.step = nan: must be finite"),
    ("algorithm.step=-inf", "algorithm.step = -inf: must be finite"),
    ("algorithm.step=true", "algorithm.step = True"),
    ("algorithm.sampled=7", "algorithm.sampled = 7: unit 0 has only 3 clients"),
    ("algorithm.stepp=1", "algorithm.stepp = 1: unknown key; did you mean 'algorithm.step'?"),
    ("algoritm.step=1", "algoritm = {'step': 1}: unknown key; did you mean 'algorithm'?"),
    ("problem.name=tabel", "problem.name = 'tabel': known: regression, clicks, table"),
    ("problem.sample=1", "problem.sample = 1: unknown key; did you mean 'problem.samples'?"),
    ("graph.weights=lasy", "graph.weights = 'lasy'"),
    ("graph.topology=rong", "graph.topology = 'rong': unknown topology; the nearest is ring:P"),
    ("scheme.name=homomorfic", "scheme.name = 'homomorfic': did you mean 'homomorphic'?"),
    ("scheme.sigma=-1", "scheme.sigma = -1"),
    ("privacy.epsilom=1", "privacy.epsilom = 1: unknown key; did you mean 'privacy.epsilon'?"),
    ("privacy.epsilon=1", "algorithm.clip = 'none': without a clip nothing bounds a client's influence"),
    ("graph=1", "graph = 1: must be a table, written [graph]"),
    ("problem=1", "problem = 1: must be a table, written [problem]"),
    ("rounds", "--set = 'rounds': write table.key=value"),
    ("=1", "--set = '=1': write table.key=value"),
    ("graph..seed=1", "--set = 'graph..seed=1': write table.key=value"),
    ("rounds.x=1", "--set = 'rounds.x=1': rounds is not a table"),
    ("problem.name=table", "problem.path = None: is missing: CSV"),
    ("output.folder=rows.csv/x", "output.folder = "),
]


@pytest.mark.parametrize(("change", "line"), SETTINGS, ids=lambda v: v if isinstance(v, str) and len(v) < 25 else "")
def test_a_wrong_setting_is_one_line_and_code_2(
    command: Callable[..., Outcome], folder: Path, change: str, line: str
) -> None:
    Path("c.toml").write_text(CONFIG)
    refused(command("simulate", "c.toml", "--set", change, "--json"), f"error: {line}")
    assert everything(folder) == ["c.toml", "rows.csv"]  # not even an empty folder


def test_mistakes_in_a_real_process(folder: Path) -> None:
    """The same through the installed command: what is refused in a config, by its parser, and by the command line."""
    Path("c.toml").write_text(CONFIG)
    chosen = [["simulate", "c.toml", "--set", "algorithm.sampled=7"], ["simulate", "none.toml"], ["nonsense"]]
    others = [["simulate", "c.toml", "--set", change] for change, _ in SETTINGS[::3]]
    others += [
        ["simulate"],
        ["simulate", "--bogus"],
        ["predict", "a", "b"],
        ["bench", "speed"],
        ["reproduce", "figures"],
    ]
    for arguments in more(chosen, chosen + others):
        line = [Path(sys.executable).with_name("confide"), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT)
        refused((done.returncode, done.stdout, done.stderr))
        assert "Traceback" not in done.stderr
    assert everything(folder) == ["c.toml", "rows.csv"]


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["simulate", "--bogus"], "No such option: --bogus"),
        (["simulate", "c.toml", "extra"], "extra"),
        (["simulate", "--set"], "--set"),
        (["simulate"], "CONFIG = None: name a config file"),
        (["predict"], "Missing argument"),
        (["predict", "a", "b"], "run = 'a'"),
        (
            ["reproduce", "figures"],
            "experiment = 'figures': known: regression, classification, privacy, ",
        ),
        (["reproduce", "clasification"], "did you mean 'classification'?"),
        (["reproduce", "--repeats", "0"], "repeats = 0: must be at least 1"),
        (["reproduce", "--repeats", "-3"], "repeats = -3: must be at least 1"),
        (["reproduce", "--repeats", "many"], "--repeats"),
        (["reproduce", "--repeats", "nan"], "--repeats"),
        (["reproduce", "--seed", "-1"], "seed = -1: must be between 0"),
        (["reproduce", "--seed", "x"], "--seed"),
        (["reproduce", "--out", "rows.csv"], "output.folder = "),
        (["reproduce", "--out", "rows.csv/x"], "output.folder = "),
        (["reproduce", "--data", "none.csv"], "data = 'none.csv': no such file"),
        (["reproduce", "regression", "--data", "rows.csv"], "data = 'rows.csv': only the classification reads a file"),
        (["bench", "speed"], "NAME = 'speed': known: regression"),
        (["bench", "regression", "--seed", "-1"], "seed = -1"),
        (["bench", "regression", "--seed", "1.5"], "--seed"),
    ],
)
def test_a_wrong_argument_is_one_line_and_code_2(
    command: Callable[..., Outcome], folder: Path, arguments: list[str], line: str
) -> None:
    refused(command(*arguments), line)
    assert everything(folder) == ["rows.csv"]


def test_a_log_with_a_missing_column_leaves_nothing(command: Callable[..., Outcome], folder: Path) -> None:
    code, out, err = command("reproduce", "classification", "--data", "rows.csv", "--out", "deep/er")
    assert (code, out) == (2, "")
    assert "problem.path = 'rows.csv': no column click" in err.splitlines()[-1]
    assert everything(folder) == ["rows.csv"]


# ---- files


@pytest.mark.parametrize(
    ("name", "written", "line"),
    [
        ("none.toml", None, "no such file; `confide simulate --print-default` prints one"),
        ("a.toml", b"\xff\xfe\x00", "is not UTF-8 text; save it as UTF-8"),
        ("a.toml", b"rounds = ", "cannot be parsed"),
        ("a.toml", b"rounds = 1\nrounds = 2", "cannot be parsed"),
        ("a.toml", b"x = " + b"[" * 5000, "cannot be parsed"),
        ("a.json", b"", "cannot be parsed"),
        ("a.json", b'{"config": {"rounds"', "cannot be parsed"),
        ("a.json", b"[]", "holds no config"),
        ("a.json", b'{"config": 5}', "holds no config"),
        ("a.json", b'{"config": null}', "holds no config"),
        ("a.json", b'{"config": {"round": 5}}', "did you mean 'rounds'?"),
    ],
)
def test_a_config_that_cannot_be_read(
    command: Callable[..., Outcome], folder: Path, name: str, written: bytes | None, line: str
) -> None:
    if written is not None:
        Path(name).write_bytes(written)
    refused(command("simulate", name), line)
    assert not (folder / "results").exists()


def test_a_folder_is_no_config(command: Callable[..., Outcome], folder: Path) -> None:
    refused(command("simulate", folder), "config = ", "name a TOML file")


def test_an_empty_config_is_the_default(folder: Path) -> None:
    Path("a.toml").write_text("")
    from confide.plans.config import load

    assert load("a.toml") == Config()


@pytest.mark.parametrize(
    ("name", "written", "line"),
    [
        ("none.csv", None, "no such file"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"u,k,x,c,label\n", "holds no row"),
        ("t.csv", csv().encode()[:-8], "truncated or ragged: line 25 has fewer fields"),
        ("t.csv", csv().encode("utf-16"), "is not UTF-8"),
        ("t.csv", csv().encode().replace(b",a,", b",\xff,"), "is not UTF-8"),
        ("t.csv", csv().encode().replace(b",x,", b",z,", 1), "no such column; the table has"),
        ("t.csv", csv().encode().replace(b",1,q", b",1,q,7", 1), "is ragged"),
        ("t.parquet", b"PAR1 and then nothing", "truncated or damaged"),
        ("t.csv.gz", b"\x1f\x8b\x08\x00", "t.csv.gz"),
        ("t.xlsx", b"x", "unknown kind of file"),
    ],
)
def test_a_table_that_cannot_be_read(
    command: Callable[..., Outcome], folder: Path, name: str, written: bytes | None, line: str
) -> None:
    if written is not None:
        Path(name).write_bytes(written)
    Path("t.toml").write_text(
        f'rounds = 2\n[graph]\ntopology = "ring"\n[problem]\nname = "table"\npath = "{name}"\nlabel = "label"\n'
        'unit = "u"\nclient = "k"\nnumeric = ["x"]\ncategorical = ["c"]\n[algorithm]\nsampled = 2\n'
    )
    before = everything(folder)
    refused(command("simulate", "t.toml"), "problem.", line)
    assert everything(folder) == before


# ---- places to write


def test_a_place_that_cannot_be_written(command: Callable[..., Outcome], folder: Path) -> None:
    Path("c.toml").write_text(CONFIG)
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter").write_text("years of work")
    before = everything(folder)
    for place in ("rows.csv", "rows.csv/deeper", "thesis", "/proc/confide", "x" * 300):
        refused(command("simulate", "c.toml", "--out", place), "output.folder = ", "name a")
    for place in ("rows.csv/deeper", "/proc/confide", "x" * 300):
        refused(command("reproduce", "--out", place), "output.folder = ", "name another")
    assert everything(folder) == before


@pytest.fixture
def tiny_disk(folder: Path) -> Iterator[Path]:
    """A real disk of 64 KiB, where this process may mount one."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no right to mount a small disk; the simulated one below stands in")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up(command: Callable[..., Outcome], tiny_disk: Path) -> None:
    Path("c.toml").write_text(CONFIG)
    small = ("simulate", "c.toml", "--out", tiny_disk / "run", "--set")
    assert confide_run(tiny_disk).save(tiny_disk / "run")
    before = {p: p.read_bytes() for p in tiny_disk.rglob("*") if p.is_file()}
    assert len(before) == 3
    refused(command(*small, "rounds=4000"), "run: the disk is full", code=1, word="failed: ")
    assert {p: p.read_bytes() for p in tiny_disk.rglob("*") if p.is_file()} == before
    assert everything(tiny_disk) == ["run", "run/metrics.parquet", "run/model.npz", "run/run.json"]
    code, out, err = command("reproduce", "regression", "--quick", "--repeats", 1, "--out", tiny_disk / "figures")
    assert (code, out) == (1, "")
    assert "the disk is full" in err.splitlines()[-1]
    assert [p for p in everything(tiny_disk) if "/." in p] == []


def confide_run(folder: Path) -> Run:
    tree = content()
    return simulate(tree)


def test_a_full_disk_simulated(command: Callable[..., Outcome], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.toml").write_text(CONFIG)
    assert command("simulate", "c.toml", "--out", "run")[0] == 0
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.savez", full)
    refused(command("simulate", "c.toml", "--out", "run"), "run: the disk is full", code=1, word="failed: ")
    refused(command("simulate", "c.toml", "--out", "new/run"), "the disk is full", code=1, word="failed: ")
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_stdout() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [Path(sys.executable).with_name("confide"), "simulate", "--print-default"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
        )
    refused((done.returncode, "", done.stderr), "the disk is full", code=1, word="failed: ")


def test_too_little_memory_is_a_failed_run(command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*arguments: object, **options: object) -> None:
        raise MemoryError("Unable to allocate 9 TiB")

    Path("c.toml").write_text(CONFIG)
    monkeypatch.setattr("confide.engines.driver.simulate", greedy)
    refused(command("simulate", "c.toml"), "not enough memory (Unable to allocate 9 TiB)", code=1, word="failed: ")
