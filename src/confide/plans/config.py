"""A run as one TOML file: names and types are checked here, ranges by the objects that the config makes."""

from __future__ import annotations

import copy
import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, create_model

from confide.base.entry_points import look_in, names_code
from confide.base.errors import InputError
from confide.base.tables import Table, checked
from confide.base.validation import either, whole
from confide.graph.graph import Graph, check_turns
from confide.plans.privacy import Privacy
from confide.problems import registry
from confide.problems.gaussian_config import RegressionConfig
from confide.problems.problem import Problem
from confide.problems.problem_config import ProblemConfig
from confide.rounds.algorithm import GFL, Failures, PerClient
from confide.rounds.clipping import Clip
from confide.rounds.schemes import KEYS, Scheme, scheme
from confide.secure.settings import Secure

# Larger counts are taken for typing mistakes: they would run for hours before Ctrl-C is seen.
LARGEST = 10**9
LARGEST_SEED = 2**63 - 1
LARGEST_FLOAT = 1e30  # of any other number: its square, and that times the data, must be finite


class GraphConfig(Table):
    topology: str | list[str] = Field(
        "random",
        description="ring, path, star, complete, random[:P[:PROBABILITY]], small-world:P:NEIGHBOURS:REWIRE, "
        "regular:P:DEGREE, grid:RxC, torus:RxC, hypercube:D or file:PATH; P defaults to the problem's units; "
        "several take turns, and only the product of their weights must mix",
    )
    matchings: bool = Field(False, description="gossip: edges take turns, so that a server has one neighbour a round")
    weights: str = Field("lazy", description="lazy, metropolis, uniform, constant or given")
    seed: int | None = Field(None, description="of a random graph; the top-level seed by default")
    link_failure: float = Field(0.0, description="probability that an edge has no flow in a round")
    unit_failure: float = Field(0.0, description="probability that a unit is absent from a round")
    failed_links: list[list[int]] = Field([], description="scheduled: [round, server, server], rounds from 1")
    failed_units: list[list[int]] = Field([], description="scheduled: [round, server]")


class AlgorithmConfig(Table):
    step: float = Field(0.7, description="mu")
    sampled: int = Field(11, description="L, clients drawn by every server in every round")
    local_steps: int | list[int] = Field([1, 10], description="E: one number, [low, high] drawn per client, or a list")
    batch: int | list[int] = Field([5, 10], description="mini-batch size, likewise")
    replacement: bool = Field(True, description="mini-batches with replacement")
    clip: Literal["none", "example", "update"] = Field("none", description="none, example or update")
    bound: float | None = Field(None, description="B, of the clip")
    norm: str = Field("l2", description="of the clip: l1 or l2")
    dropout: float = Field(0.0, description="probability that a sampled client vanishes")
    arithmetic: str = Field("float", description="float, or fixed (exact sums over servers; needs a clip; slower)")
    fraction_bits: int = Field(24, description="of fixed point")
    aggregation: Literal["plain", "secure"] = Field("plain", description="plain, or secure (needs fixed arithmetic)")


class SecureConfig(Table):
    ring_bits: int = Field(32, description="of aggregation = secure: 32 or 64")
    server: str = Field("curious", description="what the own server is trusted with: curious or active")
    corrupted: float = Field(0.1, description="fraction of sampled clients that may help the server")
    dropped: float = Field(0.25, description="fraction of sampled clients that may vanish in a session")
    threshold: int | None = Field(None, description="shares that put a secret together; the smallest safe by default")
    sigma: float = Field(0.0, description="noise inside the sum: standard deviation on psi from honest survivors")


class SchemeConfig(Table):
    name: str = Field(
        "homomorphic",
        description="none, homomorphic, shared, own-clean, per-link, per-link-clean, partial:C, pairwise, "
        "cancel-at-receiver, local-only, central",
    )
    noise: str = Field("laplace", description="laplace or gaussian")
    sigma: float | None = Field(
        None,
        description="standard deviation per coordinate; sqrt(0.1) by default, 0 where a scheme has no noise",
    )
    sigma_pair: float = Field(0.0, description="of pairwise: noise shared by the two ends of an edge")
    sigma_client: float = Field(
        0.0, description="of each client's noise on its own update, with any scheme; in a secure sum it is its share"
    )


class PrivacyConfig(Table):
    level: str = Field(
        "client",
        description="what may change: unit (all data of a server's organisation), client (all of a client's) or "
        "example (one row); needs algorithm.clip",
    )
    adjacency: str = Field("replace", description="replace or zero-out")
    proof: str = Field("none", description="none, regulariser:RHO or convex-glm:NU")
    participation: str = Field("all", description="all, cap:N, random:Q or amplified:Q")
    smoothness: float | None = Field(
        None, description="declared smoothness of every sampled loss; convex-glm credits more with it"
    )
    threat: str = Field(
        "links", description="the budget's adversary: links, colluders:1,2, neighbours, own-client, own-server"
    )
    release: str = Field(
        "none",
        description="revealed at the end: none, centroid:SIGMA (on the mean, one server's share not counted), local or "
        "consensus:T (after T combinations without noise)",
    )
    releases: int = Field(1, description="how many times the release may be made; each is paid for")
    unprotected: bool = Field(False, description="go on without an epsilon where one is missing; it is said first")
    delta: float = Field(1e-5, description="of epsilon(delta)")
    epsilon: float | None = Field(None, description="budget: the run stops before the round that would pass it")
    rho: float | None = Field(None, description="budget as zCDP, instead of epsilon")
    dataset: str | None = Field(
        None, description="name of the data; ledgers of all runs on it add up; a random id by default"
    )


class OutputConfig(Table):
    folder: str | None = Field(None, description="where results go; results/CONFIG-NAME by default")
    ledger: str | None = Field(
        None,
        description="file of what was spent on the data; by default one for each data set in the state folder",
    )
    evaluate_every: int | None = Field(None, description="rounds between evaluations; rounds / 100 by default")
    engine: str = Field("auto", description="auto, compiled, jax, torch or reference")
    device: str | None = Field(
        None, description="cpu or gpu, for the engines jax and torch; a GPU where there is one by default"
    )
    unreleased_models: bool = Field(
        False, description="keep the clean models of an accounted run on your own data: no epsilon covers them"
    )


if TYPE_CHECKING:
    AnyProblem = ProblemConfig
else:
    AnyProblem = registry.any_of(registry.BUILT_IN)


class Experiment(NamedTuple):
    """What a config stands for: the arguments of `confide.simulate`."""

    problem: Problem
    graph: list[Graph]
    algorithm: GFL
    rounds: int
    repeats: int
    seed: int
    privacy: Privacy | None


class Config(Table):
    rounds: int = Field(1000, description="T")
    repeats: int = Field(20, description="repetitions with other draws on the same data; 1 by default for a table")
    seed: int = Field(
        0, description="of everything; the same seed gives the same bits, but for noise on your own accounted data"
    )
    graph: GraphConfig = GraphConfig()  # type: ignore[call-arg]
    problem: AnyProblem = RegressionConfig()  # type: ignore[call-arg]
    algorithm: AlgorithmConfig = AlgorithmConfig()  # type: ignore[call-arg]
    secure: SecureConfig = SecureConfig()  # type: ignore[call-arg]
    scheme: SchemeConfig = SchemeConfig()  # type: ignore[call-arg]
    privacy: PrivacyConfig = PrivacyConfig()  # type: ignore[call-arg]
    output: OutputConfig = OutputConfig()  # type: ignore[call-arg]

    def build(self) -> Experiment:
        """The objects, every range checked."""
        with named_as_in_config():
            _check_sizes(self)
            algorithm, privacy = make_algorithm(self), make_privacy(self)  # before the problem, which may take long
            problem = self.problem.make(self.seed)
            graphs = make_graphs(self, problem.federation.P)
        return Experiment(problem, graphs, algorithm, self.rounds, self.repeats, self.seed, privacy)


_IN_CONFIG = {  # the objects' names for a setting, where the config has another
    "failures.link": "graph.link_failure",
    "failures.unit": "graph.unit_failure",
    "failures.links": "graph.failed_links",
    "failures.units": "graph.failed_units",
    "graph": "graph.topology",
    "engine": "output.engine",
    "device": "output.device",
    "evaluate_every": "output.evaluate_every",
    **{name: f"privacy.{name}" for name in PrivacyConfig.model_fields},
    "step": "algorithm.step",
    "clip": "algorithm.clip",
    "batch": "algorithm.batch",
    **{name: f"problem.{name}" for name in ("train", "train_config", "train_log")},
    **{f"model.{name}": f"problem.{name}" for name in ("weights", "framework")},
}


@contextmanager
def named_as_in_config() -> Iterator[None]:
    """A refusal names the key of the config, also where the object that refused calls it otherwise."""
    try:
        yield
    except InputError as e:
        if e.field not in _IN_CONFIG:
            raise
        raise InputError(_IN_CONFIG[e.field], e.value, e.remedy) from None


def _check_sizes(config: Config) -> None:
    """Refuse what would fill the memory or never end: nothing else would stop it before it did."""
    problem = config.problem
    for field, value in _numbers("", config.model_dump(exclude={"problem": set(problem.labels)})):
        if field.rpartition(".")[2] == "seed":
            whole(field, value, 0, LARGEST_SEED)
        elif (most := LARGEST if isinstance(value, int) else LARGEST_FLOAT) < abs(value) < math.inf:
            raise InputError(field, value, f"is too large; at most {most:g} makes sense")
    _check_memory("rounds", config.rounds, 8 * 8 * config.rounds * config.repeats, "rounds or repeats")
    if problem.sized_by:
        first = problem.sized_by[0]
        _check_memory(f"problem.{first}", getattr(problem, first), problem.memory(), either(problem.sized_by))


def _numbers(place: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of a config, each with its key."""
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _numbers(f"{place}.{key}".removeprefix("."), inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _numbers(place, inside)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def _check_memory(field: str, value: int, needed: int, remedy: str) -> None:
    if not hasattr(os, "sysconf"):  # Windows
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        sizes = f"needs about {needed / 2**30:.3g} GiB and this machine has {memory / 2**30:.3g}"
        raise InputError(field, value, f"{sizes}; lower {remedy}")


def make_privacy(config: Config) -> Privacy | None:
    """None where nothing was said and nothing bounds an update: the run is then not accounted."""
    if config.algorithm.clip == "none" and config.privacy == PrivacyConfig():  # type: ignore[call-arg]
        return None
    return Privacy(**config.privacy.model_dump())


def make_graphs(config: Config, units: int) -> list[Graph]:
    g = config.graph
    seed = config.seed if g.seed is None else g.seed
    specs = [g.topology] if isinstance(g.topology, str) else g.topology
    if not specs:
        raise InputError("graph.topology", specs, "at least one topology is needed")
    graphs = [_make_graph(s, units, g.weights, seed, turn=len(specs) > 1) for s in specs]
    if g.matchings:
        graphs = [matching for graph in graphs for matching in graph.matchings()]
    check_turns(graphs)
    return graphs


def _make_graph(spec: str, units: int, weights: str, seed: int, turn: bool) -> Graph:
    """A bare name such as "ring" takes its size from the problem."""
    kind, _, size = spec.partition(":")
    if kind not in ("file", "hypercube"):
        factors = size.split("x") if kind in ("grid", "torus") else [size.partition(":")[0]]
        servers = math.prod(int(n) for n in factors) if all(n.isdecimal() for n in factors) else None
        if servers and servers != units:  # refused before it is made: it may be enormous
            remedy = f"the problem has {units} units; the graph needs one server for each"
            raise InputError("graph.topology", spec, remedy)
    try:
        return Graph.parse(spec if ":" in spec else f"{spec}:{units}", weights=weights, seed=seed, turn=turn)
    except InputError as e:
        if e.field in ("graph.weights", "graph.seed"):
            raise
        remedy = e.remedy if e.field == "graph" else str(e).removeprefix("graph.")
        raise InputError("graph.topology", spec, remedy) from None


def make_algorithm(config: Config) -> GFL:
    a, g = config.algorithm, config.graph
    if a.clip == "none" and a.bound is not None:
        raise InputError("algorithm.bound", a.bound, "means nothing without algorithm.clip = 'example' or 'update'")
    if a.clip != "none" and a.bound is None:
        raise InputError("algorithm.bound", None, f"algorithm.clip = {a.clip!r} needs a bound B")
    secure = Secure(**config.secure.model_dump())
    if a.aggregation == "plain" and secure.sigma:
        remedy = "noise inside the sum needs a secure sum: algorithm.aggregation = 'secure'"
        raise InputError("secure.sigma", secure.sigma, remedy)
    return GFL(
        scheme=make_scheme(config.scheme),
        step=a.step,
        sampled=a.sampled,
        local_steps=_per_client(a.local_steps),
        batch=_per_client(a.batch),
        replacement=a.replacement,
        clip=None if a.bound is None else Clip(a.clip, a.bound, a.norm),
        dropout=a.dropout,
        failures=Failures(g.link_failure, g.unit_failure, g.failed_links, g.failed_units),  # type: ignore[arg-type]
        arithmetic=a.arithmetic,
        fraction_bits=a.fraction_bits,
        aggregation=None if a.aggregation == "plain" else secure,
    )


def doubt(config: Config) -> str:
    """What the settings of the secure sum mean with so few clients, where nobody would expect it; "" for nothing."""
    secure = make_algorithm(config).aggregation
    return "" if secure is None else secure.doubt(config.algorithm.sampled)


def make_scheme(s: SchemeConfig) -> Scheme:
    silent = scheme(s.name).places.isdisjoint(KEYS["sigma"])
    sigma = s.sigma if s.sigma is not None else 0.0 if silent else math.sqrt(0.1)
    return scheme(s.name, sigma, noise=s.noise, sigma_pair=s.sigma_pair, sigma_client=s.sigma_client)


def _per_client(value: int | list[int]) -> PerClient:
    """Two numbers are a range; any other list has one number a client."""
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else value


def load(path: str | Path, changes: Sequence[str] = ()) -> Config:
    """Read a config, or the config inside a saved run.json, and apply changes such as "algorithm.step=0.1"."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise InputError("config", str(path), "no such file; `confide simulate --print-default` prints one") from None
    except OSError as e:
        raise InputError("config", str(path), f"cannot be read ({e.strerror}); name a TOML file") from None
    except UnicodeDecodeError:
        raise InputError("config", str(path), "is not UTF-8 text; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as e:
        raise InputError("config", str(path), f"cannot be parsed: {e}; mend the file") from None
    if path.suffix == ".json":
        content = content.get("config") if isinstance(content, dict) else None
        if not isinstance(content, dict):
            raise InputError("config", str(path), "holds no config; give a TOML file, or a run.json made from one")
        _check_loads_nothing(content, changes)
    found = parse(content, changes)
    if any(names_code(getattr(found.problem, key)) for key in found.problem.entry_points):
        look_in(Path.cwd() if path.suffix == ".json" else path.parent)
    return found


def _check_loads_nothing(content: Mapping[str, Any], changes: Sequence[str]) -> None:
    """A record of a run may come from anybody: what code a run loads, its user says."""
    problem = content.get("problem")
    if isinstance(problem, dict):
        said = {change.partition("=")[0].strip() for change in changes}
        for key in registry.named(problem.get("name", "regression")).entry_points & problem.keys():
            if (name := f"problem.{key}") not in said and names_code(problem[key]):
                remedy = f"names code, which a run.json does not make confide load; say it yourself, --set {name}=..."
                raise InputError(name, problem[key], remedy)


def parse(content: Mapping[str, Any], changes: Sequence[str] = ()) -> Config:
    """Check names and types; the first mistake is an `InputError`."""
    tree: dict[str, Any] = copy.deepcopy(dict(content))
    for change in changes:
        _apply(tree, change)
    known = Config
    if isinstance(tree.get("problem"), dict):
        kind = registry.named(tree["problem"].setdefault("name", "regression"))
        known = _with(kind)
        if kind.one_release:
            tree.setdefault("repeats", 1)
    return checked(known, tree)


@cache
def _with(kind: type[ProblemConfig]) -> type[Config]:
    """The config as it is, or for the problem of an installed package one that knows it too."""
    if kind in registry.BUILT_IN:
        return Config
    problem = registry.any_of((*registry.BUILT_IN, kind)), Config.model_fields["problem"].default
    return create_model("Config", __base__=Config, problem=problem)


def _apply(tree: dict[str, Any], change: str) -> None:
    name, equals, value = change.partition("=")
    *tables, last = name.strip().split(".")
    if not equals or not all([*tables, last]):
        raise InputError("--set", change, "write table.key=value, e.g. algorithm.step=0.1")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise InputError("--set", change, f"{table} is not a table")
    try:
        tree[last] = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        tree[last] = value.strip()  # a word needs no quotes on the command line


def default_text() -> str:
    """The default config as TOML, each key with its meaning: figure 2 of the paper."""
    config = Config()  # type: ignore[call-arg]
    lines = ["# confide: graph federated learning, the paper's figure 2. Change what you like; the rest may go."]
    tables = []
    for name, info in Config.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            tables.append((name, value))
        else:
            lines.append(f"{name} = {json.dumps(value)}  # {info.description}")
    for name, table in tables:
        lines += ["", f"[{name}]"]
        if not type(table).model_fields:
            lines.append(f"# {' '.join((type(table).__doc__ or '').split())}")
        for key, info in type(table).model_fields.items():
            value = getattr(table, key)
            meaning = either(registry.names()) if (name, key) == ("problem", "name") else info.description
            lines.append(f"# {key} =   # {meaning}" if value is None else f"{key} = {json.dumps(value)}  # {meaning}")
    return "\n".join(lines) + "\n"
