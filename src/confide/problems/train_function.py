"""A train function of one's own as a problem: nothing of its data or its loss is known, only what a client's TOML says.

    [problem]
    name = "own"
    units = 2
    clients = 3
    length = 6                       # numbers in the model
    train = "train_numpy:train"      # (weights, round, config) -> update
    [problem.train_config]
    data = "/srv/clinic-{unit}/visits-{client}.npz"

The federation has a row of nothing for each client, so that whoever counts units and clients finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.entry_points import names_code
from confide.base.errors import InputError
from confide.base.validation import positive, positive_int
from confide.problems import start
from confide.problems.federation import Federation
from confide.problems.networks import tensors
from confide.problems.problem import Problem

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Own:
    """The model of a train function, which alone knows what it is.

    Attributes:
        train: "package.module:function".  length: M.
        config: what the function is told, with {unit} and {client} in its texts for their numbers, from 0.
        timeout: seconds that a training may take.
        log: file for what the function prints; nowhere if there is none.
        weights: safetensors file of where it begins, its tensors in the order of their names; at zero without one.
    """

    train: str
    length: int
    config: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0
    log: Path | None = None
    weights: Path | None = None
    name: ClassVar[str] = "own"
    rho: ClassVar[float] = 0.0  # a function of one's own has its regulariser inside

    def __post_init__(self) -> None:
        if not names_code(self.train):
            raise InputError("problem.train", self.train, "must be written package.module:function")
        positive_int("problem.length", self.length)
        positive("problem.train_timeout", self.timeout)

    def told(self, unit: int, client: int) -> dict[str, Any]:
        """The `[train_config]` of one client."""
        return {key: _filled(value, unit, client) for key, value in self.config.items()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Where it begins, by name."""
        return {"w": np.zeros(self.length)} if self.weights is None else tensors.read(self.weights)

    def start(self) -> Floats:
        found = start.flat(self.arrays())
        if len(found) != self.length:
            raise InputError("problem.weights", str(self.weights), f"has {len(found)} numbers, the model {self.length}")
        return found

    def dimension(self, features: int) -> int:
        return self.length

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        """Unknown."""
        return np.full(len(d), np.nan)

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        raise InputError("problem.train", self.train, "is a step of its own, of which no gradient is known")

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        return {}


def own(
    train: str,
    *,
    units: int,
    clients: int,
    length: int,
    train_config: Mapping[str, Any] = NOTHING,
    train_timeout: float = 600.0,
    train_log: str | Path | None = None,
    weights: str | Path | None = None,
) -> Problem:
    """A train function of your own, to be simulated as it will be deployed: in processes of its own.

        problem = own("train_numpy:train", units=2, clients=3, length=6, train_config={"data": "{unit}-{client}.npz"})

    Args:
        train: "package.module:function", as in a client's TOML; its module lies where Python finds it, or in the
            working folder.
        units, clients: P, and K of every unit.  length: M.
        train_config: what the function is told; {unit} and {client} in its texts become their numbers.
        train_timeout: seconds that a training may take; one that takes longer is killed and counts as zeros.
        train_log: file for what the function prints; nowhere by default.
        weights: safetensors file with the initial weights, all of which are trained; zeros by default.

    Returns:
        A problem on somebody's data, of which nothing is known: clip = "update" bounds what a client adds.
    """
    P, K = positive_int("problem.units", units), positive_int("problem.clients", clients)
    nothing = np.zeros((P * K, 1))
    return Problem(
        Federation(nothing, nothing[:, 0], np.arange(P * K + 1), np.arange(P + 1) * K),
        Own(train, length, dict(train_config), float(train_timeout), _path(train_log), _path(weights)),
        spec={"name": "own", "train": train, "units": P, "clients": K, "length": length},
    )


def _path(name: str | Path | None) -> Path | None:
    return None if name is None else Path(name)


def _filled(value: Any, unit: int, client: int) -> Any:
    if isinstance(value, str):
        return value.replace("{unit}", str(unit)).replace("{client}", str(client))
    if isinstance(value, Mapping):
        return {key: _filled(inside, unit, client) for key, inside in value.items()}
    if isinstance(value, list):
        return [_filled(inside, unit, client) for inside in value]
    return value
