"""The plan: everything that a run and its privacy statement rest on, as one frozen object with one hash.

    graph, algorithm, scheme, secure, privacy, units, deployment  ->  canonical text  ->  sha256

A simulation and a deployment have the same plan type. Two nodes have the same plan if and only if the hashes agree,
floats to the last bit. Fields are named like the tables of a config. A plan is plain data: it is checked when it is
made or read, and nothing in it is ever executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import write_text
from confide.base.validation import number, positive, positive_int, probability, whole
from confide.graph.graph import Graph, check_turns
from confide.plans import checks
from confide.plans.privacy import Privacy
from confide.plans.text import GIVEN, Elsewhere, decoded, differences, encoded
from confide.problems.models import NAMES, OWN, named
from confide.rounds.algorithm import Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import Scheme
from confide.secure.settings import SecureSum

VERSION: Final = 3
PROTOCOL: Final = 2
READ: Final = (1, PROTOCOL)  # plans of which a store or a bundle can still be read
LARGEST: Final = 64 * 2**20  # bytes of a plan file: a graph of some hundred thousand edges, or as many clients
NETWORK: Final = "network"  # as kind of a model: confide's local step on the gradients of a user's network


@dataclass(frozen=True)
class Start:
    """Initial weights: public, the same for all, and not in the plan themselves.

    Attributes:
        digest: sha256 of the tensors that are trained (`problems.networks.tensors.digest`), as `start.safetensors` has
            them.
        largest: |w_0| of no number is larger.
        frozen: the same digest of the part of a network that stays as it is; empty where there is none.
    """

    digest: str
    largest: float
    frozen: str = ""

    def __post_init__(self) -> None:
        for name, value in (("digest", self.digest), ("frozen", self.frozen)):
            if not canonical.is_digest(value) and (name, value) != ("frozen", ""):
                raise InputError(f"algorithm.model.start.{name}", value, "must be 32 bytes as 64 small hex digits")
        number("algorithm.model.start.largest", self.largest, 0.0)


@dataclass(frozen=True)
class Model:
    """What is learned.

    Attributes:
        kind: linear, logistic, softmax:CLASSES, network or own.  length: M, numbers in a model.  ridge: of rho |w|^2.
        convex: name of a model of the user's own of which only its declaration says that the loss is convex.
        built_in: whether clients take confide's own local step, which a proof may speak of.
        undeclared: why there is no price: the problem's rows were prepared from everybody's. Empty where there is one.
        start: where it begins; None is zero.
    """

    kind: str
    length: int
    ridge: float = 0.0
    convex: str = ""
    built_in: bool = True
    undeclared: tuple[str, ...] = ()
    start: Start | None = field(default=None, metadata=GIVEN)

    @property
    def largest_start(self) -> float:
        """|w_0| of no number is larger."""
        return 0.0 if self.start is None else self.start.largest

    def __post_init__(self) -> None:
        positive_int("algorithm.model.length", self.length)
        number("algorithm.model.ridge", self.ridge, 0.0)
        if self.kind not in (NETWORK, OWN) and self.features is None:
            raise InputError("algorithm.model.kind", self.kind, f"known: {', '.join((*NAMES, NETWORK, OWN))}")
        if self.convex and self.kind != OWN:  # whether confide's own are convex in one margin is known, not declared
            raise InputError("algorithm.model.convex", self.convex, f"is declared of a model of kind {OWN!r} alone")

    @property
    def features(self) -> int | None:
        """Of a row of data; None where only the owner of the model knows."""
        model = named(self.kind, self.ridge)
        return None if model is None else model.features(self.length)


@dataclass(frozen=True)
class Network:
    """Who talks to whom: one graph, or several that take turns, and what fails in a simulation."""

    graphs: tuple[Graph, ...]
    failures: Failures = Failures()

    def __post_init__(self) -> None:
        if not self.graphs:
            raise InputError("graph.topology", [], "at least one graph is needed")
        if any(g.P != self.P for g in self.graphs):
            raise InputError("graph.topology", len(self.graphs), f"all graphs must have {self.P} servers")
        check_turns(self.graphs)

    @property
    def P(self) -> int:
        return self.graphs[0].P


@dataclass(frozen=True)
class Learning:
    """A round inside a unit.

    Attributes:
        step: mu.  sampled: L.  clip: B in its norm.
        replacement: whether a mini-batch is drawn with replacement.
        dropout: probability that a sampled client of a simulation vanishes.
        fraction_bits: of fixed point; None is floating point.
    """

    model: Model
    step: float
    sampled: int
    clip: Clip
    replacement: bool = True
    dropout: float = 0.0
    fraction_bits: int | None = None

    def __post_init__(self) -> None:
        positive("algorithm.step", self.step)
        positive_int("algorithm.sampled", self.sampled)
        probability("algorithm.dropout", self.dropout)
        if self.fraction_bits is not None:
            whole("algorithm.fraction_bits", self.fraction_bits, 1, 52)
        _ = self.update_bound  # refused here, and not in the first round

    @property
    def update_bound(self) -> float:
        """mu B: what one client can add to a round's sum, in the clip's norm."""
        return self.clip.update_bound(self.step)


@dataclass(frozen=True)
class Clients:
    """Clients that are alike: in a deployment one, with its key; in a simulation as many as `count`."""

    local_steps: int
    batch: int
    count: int = 1
    identity: str = ""

    def __post_init__(self) -> None:
        for name in ("local_steps", "batch", "count"):
            positive_int(f"units.clients.{name}", getattr(self, name))


@dataclass(frozen=True)
class Unit:
    """A server with its clients; in a deployment with its keys, 32 bytes in hex, and its CA's fingerprint."""

    clients: tuple[Clients, ...]
    name: str = ""
    identity: str = ""
    key_agreement: str = ""
    authority: str = ""

    @property
    def size(self) -> int:
        """K."""
        return sum(c.count for c in self.clients)


@dataclass(frozen=True)
class Clocks:
    """Seconds.

    Attributes:
        begin: of round 1, since 1970; 0 is the start of a virtual clock.  adapt: until a round's sum must be there.
        tick: publications are at multiples of it.  neighbours: to wait for neighbours.  drain: to settle open flows at
            the end.
    """

    begin: float = 0.0
    adapt: float = 60.0
    tick: float = 60.0
    neighbours: float = 30.0
    drain: float = 300.0

    def __post_init__(self) -> None:
        number("deployment.clocks.begin", self.begin, 0.0)
        for name in ("adapt", "tick", "neighbours", "drain"):
            positive(f"deployment.clocks.{name}", getattr(self, name))
        if self.tick > self.adapt:
            raise InputError("deployment.clocks.tick", self.tick, f"must not exceed adapt, which is {self.adapt:g} s")


@dataclass(frozen=True)
class Deployment:
    """What real machines agree on beside the round: the protocol, the clocks, open flows of an edge at most."""

    clocks: Clocks
    window: int = 4
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        if self.protocol not in READ:
            raise InputError("deployment.protocol", self.protocol, f"this confide speaks {PROTOCOL}")
        if self.protocol == PROTOCOL and self.clocks.begin <= 0.0:
            remedy = "must say when round 1 opens, in seconds since 1970: it bounds what servers believe each other"
            raise InputError("deployment.clocks.begin", self.clocks.begin, remedy)
        whole("deployment.window", self.window, 2, 64)


@dataclass(frozen=True)
class Plan:
    """What was agreed; see the module.

    Attributes:
        rounds: T.
        graph, algorithm, scheme, privacy, secure, deployment: tables, whose docstrings tell their fields; `secure` is
            None where updates are summed in clear, `deployment` for the plan of a simulation.
        units: one for each server of the graph, in its order.
        version: of the format.

    Raises:
        InputError: tables contradict each other, or a proof does not hold for this algorithm; it names the key.
    """

    rounds: int
    graph: Network
    algorithm: Learning
    scheme: Scheme
    privacy: Privacy
    units: tuple[Unit, ...]
    secure: SecureSum | None = None
    deployment: Deployment | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InputError("version", self.version, _OTHER)
        positive_int("rounds", self.rounds)
        checks.check(self)
        _ = self.text  # fails here if a field has no canonical text

    # ---- what readers ask of all clients, computed and never stored

    @property
    def P(self) -> int:
        return self.graph.P

    @property
    def fewest_clients(self) -> int:
        """K of the smallest unit."""
        return min(unit.size for unit in self.units)

    @property
    def local_steps(self) -> tuple[int, int]:
        """Fewest and most of a client."""
        each = [c.local_steps for c in self.clients]
        return min(each), max(each)

    @property
    def batches(self) -> tuple[int, int]:
        """Smallest and largest mini-batch."""
        each = [c.batch for c in self.clients]
        return min(each), max(each)

    @property
    def clients(self) -> Iterator[Clients]:
        return (client for unit in self.units for client in unit.clients)

    @property
    def signed(self) -> bool:
        """Whether clients sign their keys: their server may lie."""
        return self.secure is not None and self.secure.parameters.server == "active"

    def deployed(self) -> Deployment:
        """The deployment, where there is one.

        Raises:
            InputError: this is the plan of a simulation.
        """
        if self.deployment is None:
            raise InputError("plan.deployment", None, "is missing: this is the plan of a simulation")
        return self.deployment

    # ---- text

    @cached_property
    def text(self) -> str:
        """Canonical: the same plan has the same text everywhere."""
        return canonical.dumps(self._data, "plan")

    @property
    def _data(self) -> dict[str, Any]:
        """Plain data. A function is named beside a digest of the weights that it gives here: two may have one name."""
        data: dict[str, Any] = encoded(self)
        s = self.scheme
        if s.receivers is not None and not isinstance(s.receivers, Elsewhere):
            given = [s.weights(g, len(s.wiring(g).draws)).tolist() for g in self.graph.graphs]
            data["scheme"]["receivers"] += f" {canonical.digest(canonical.dumps(given))}"
        return data

    @cached_property
    def hash(self) -> str:
        """sha256 of the canonical text, in hex."""
        return canonical.digest(self.text)

    def __hash__(self) -> int:
        return hash(self.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.hash == other.hash

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The plan of this canonical text; any other spelling is refused."""
        data = canonical.loads(text, "plan")
        if isinstance(data, dict) and data.get("version") != VERSION:
            raise InputError("plan.version", data.get("version"), _OTHER)
        plan: Self = decoded(cls, data, "")
        if plan.text != text:  # such as a weight that is written with another sign of zero
            wrong = differences("", data, canonical.loads(plan.text))
            raise InputError(
                "plan", wrong[0] if wrong else text[:80], "is not the text that confide writes for this plan"
            )
        return plan

    def save(self, path: str | Path) -> None:
        """Write the canonical text into a file, whole or not at all."""
        write_text(path, self.text + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The plan that `save` wrote.

        Raises:
            InputError: the file is not the text of a plan of this version, or the plan contradicts itself.
        """
        try:
            return cls.from_text(canonical.read_text(path, "plan", LARGEST))
        except InputError as e:
            if e.field == "plan":
                raise InputError("plan", str(path), e.remedy) from None
            raise

    def diff(self, other: Plan) -> list[str]:
        """The fields in which another plan differs, one line each; empty if and only if the hashes agree."""
        return differences("", self._data, other._data)


_OTHER = f"this confide reads version {VERSION}; make the plan again from its config: confide agree or simulate"
