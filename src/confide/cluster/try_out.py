"""A config that can be deployed, out of one that was written for simulations; everything that was changed is said."""

from __future__ import annotations

from typing import Any, Final

from confide.base.errors import InputError
from confide.base.validation import positive_int
from confide.plans.config import Config, named_as_in_config, parse

ROUNDS: Final = 20
TRY_OUT: Final[dict[str, Any]] = {
    "rounds": ROUNDS,
    "repeats": 1,
    "graph": {"topology": "ring"},
    "problem": {"name": "regression", "units": 3, "clients": 4, "test_rows": 1000},
    "algorithm": {
        "step": 0.05, "sampled": 4, "clip": "example", "bound": 1.0, "arithmetic": "fixed", "aggregation": "secure",
    },
    "scheme": {"name": "homomorphic", "noise": "gaussian", "sigma": 5.0},
    "privacy": {"proof": "convex-glm:0.2", "smoothness": 38.0},
}  # fmt: skip
"""What `confide cluster` runs without a config: the paper's regression, small, with as much noise as privacy takes.

Epsilon is 1.0 on links and 3.5 for neighbours that have the release. With twelve clients that leaves little to learn:
the mean of the models is 0.7 (squared) from the optimum, which is 1.0 from where it began; single models are noise.
"""

RELEASE: Final = "centroid:0.3"


def deployable(
    config: Config,
    *,
    units: int | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    release: bool = False,
) -> tuple[Config, tuple[str, ...]]:
    """The config with these sizes and what a deployment cannot do without, and a line for each setting that is new.

    A config that is deployable as it is keeps its own settings: sums in clear, say, if it wants them.
    """
    table, notes = config.model_dump(mode="json", exclude_none=True), []

    def put(place: str, value: Any, why: str = "") -> None:
        name, _, key = place.rpartition(".")
        inside = table.setdefault(name, {}) if name else table
        if inside.get(key) != value:
            if why:
                notes.append(f"{place} = {value!r}: {why}")
            inside[key] = value

    for key, given in (("units", units), ("clients", clients)):
        if given is not None:
            if (why := config.problem.fixed(key)) is not None:
                raise InputError(f"--{key}", given, why)
            put(f"problem.{key}", positive_int(f"--{key}", given))
    if rounds is not None:
        put("rounds", positive_int("--rounds", rounds))
    put("repeats", 1)
    a = config.algorithm
    simulated = a.clip == "none" or a.arithmetic != "fixed"
    if a.clip == "none":
        put("algorithm.clip", "update", "something must bound what a client adds")
        put("algorithm.bound", 1.0 if a.bound is None else a.bound, "of the clip")
    if a.arithmetic != "fixed":
        put("algorithm.arithmetic", "fixed", "servers compute with integers")
    if simulated and a.aggregation == "plain":
        put("algorithm.aggregation", "secure", "the server is to see sums only")
    _no_simulated_failures(config, put)
    fewest = _fewest_clients(parse(table))
    if a.sampled > fewest:
        put("algorithm.sampled", fewest, f"a unit has {fewest} clients")
    if release and config.privacy.release == "none":
        put("privacy.release", RELEASE, "the mean of the models is released, with noise")
    return parse(table), tuple(notes)


def _no_simulated_failures(config: Config, put: Any) -> None:
    why = "a real network has failures of its own"
    if config.algorithm.dropout:
        put("algorithm.dropout", 0.0, why)
    for name, none in (("link_failure", 0.0), ("unit_failure", 0.0), ("failed_links", []), ("failed_units", [])):
        if getattr(config.graph, name):
            put(f"graph.{name}", none, why)


def _fewest_clients(config: Config) -> int:
    clients = config.problem.given("clients")
    if clients is not None:
        return int(clients)
    with named_as_in_config():
        return int(config.problem.make(config.seed).federation.K.min())
