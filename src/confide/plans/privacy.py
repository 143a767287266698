"""What a user says about privacy: whose data, against whom, by which proof, within which budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

from confide.base.errors import InputError
from confide.base.validation import number, positive, positive_int
from confide.plans import words
from confide.plans.text import HIDDEN
from confide.plans.words import Adjacency, Level, Participation, Proof, Release, Threat


class Spent(Protocol):
    """What a run may tell, however that is counted."""

    def used(self, budget: Budget) -> float:
        """In the budget's own unit; infinite where there is no bound."""


@dataclass(frozen=True)
class Budget:
    """What a run may cost, either as epsilon at delta or as rho.

    Attributes:
        epsilon: of (epsilon, delta)-differential privacy.
        rho: of zero-concentrated differential privacy, in place of epsilon.
        delta: at which epsilon is meant.

    Raises:
        InputError: not exactly one of epsilon and rho is given, or a number is out of its range.

    >>> Budget(epsilon=1.0).limit
    1.0
    """

    epsilon: float | None = None
    rho: float | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.rho is None):
            raise InputError("epsilon", self.epsilon, "give a budget either as epsilon or as rho")
        for name in ("epsilon", "rho"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if not 0.0 < number("delta", self.delta) < 1.0:
            raise InputError("delta", self.delta, "must lie strictly between 0 and 1")

    @property
    def limit(self) -> float:
        """Epsilon or rho, whichever is given."""
        return float(self.epsilon if self.rho is None else self.rho)  # type: ignore[arg-type]

    def allows(self, spent: Spent) -> bool:
        """Whether that is within it, but for rounding."""
        return spent.used(self) <= self.limit * (1 + 1e-12)

    def part(self, share: float) -> Budget:
        """A share of rho; of an epsilon its root, because about its square adds up."""
        if self.rho is not None:
            return replace(self, rho=share * self.rho)
        return replace(self, epsilon=math.sqrt(share) * self.limit)


@dataclass(frozen=True, init=False)
class Privacy:
    """Whose data, against whom, by which proof, within which budget.

    Words may be given as text (`proof="convex-glm:0.1"`); they are parsed once, here.

    Attributes:
        level: whose data may change: unit (all data of a server's organisation), client, or example (one row).
        adjacency: how: replace (any other data) or zero-out (no contribution).
        proof: what is known of the training: none, regulariser:RHO or convex-glm:NU.
        participation: all, cap:N, random:Q or amplified:Q.
        smoothness: declared bound on the smoothness of every sampled loss. convex-glm credits more with it; it decides
            which steps are allowed, and a run whose data break it is refused.
        threat: the adversary that the budget is about: links, colluders:1,2, neighbours, own-client or own-server. The
            statement names all of them.
        release: what is revealed at the end: none, centroid:SIGMA, local or consensus:T.
        releases: how many times the release may be made; each is paid for.
        unprotected: agree to a plan without a price for its own adversary or for links, or run a table that was
            prepared from everybody's rows; the statement says so first.
        delta: of epsilon(delta).
        epsilon, rho: budget, at most one; a run stops before the round that would pass it.
        dataset: name of the data, under which ledgers of several runs add up. It is no part of a plan.

    Raises:
        InputError: a word is not known, or a number is out of its range.

    >>> Privacy(level="unit", release="centroid:0.3").release
    Centroid(sigma=0.3)
    """

    level: Level
    adjacency: Adjacency
    proof: Proof
    participation: Participation
    smoothness: float | None
    threat: Threat
    release: Release
    releases: int
    unprotected: bool
    delta: float
    epsilon: float | None
    rho: float | None
    dataset: str | None = field(compare=False, metadata=HIDDEN)

    def __init__(
        self,
        level: str = "client",
        adjacency: str = "replace",
        proof: str | Proof = "none",
        participation: str | Participation = "all",
        smoothness: float | None = None,
        threat: str | Threat = "links",
        release: str | Release = "none",
        releases: int = 1,
        unprotected: bool = False,
        delta: float = 1e-5,
        epsilon: float | None = None,
        rho: float | None = None,
        dataset: str | None = None,
    ) -> None:
        if not isinstance(unprotected, bool):
            raise InputError("privacy.unprotected", unprotected, "must be true or false")
        if not 0.0 < number("privacy.delta", delta) < 1.0:
            raise InputError("privacy.delta", delta, "must lie strictly between 0 and 1")
        if epsilon is not None and rho is not None:
            raise InputError("privacy.rho", rho, "give a budget either as epsilon or as rho")
        numbers = {"smoothness": smoothness, "epsilon": epsilon, "rho": rho}
        values = {name: None if x is None else positive(f"privacy.{name}", x) for name, x in numbers.items()} | {
            "level": words.chosen(Level, level, "privacy.level"),
            "adjacency": words.chosen(Adjacency, adjacency, "privacy.adjacency"),
            "proof": words.proof(proof),
            "participation": words.participation(participation),
            "threat": words.threat(threat),
            "release": words.release(release),
            "releases": positive_int("privacy.releases", releases),
            "unprotected": unprotected,
            "delta": float(delta),
            "dataset": dataset,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def budget(self) -> Budget | None:
        """None where neither epsilon nor rho is given."""
        if self.epsilon is None and self.rho is None:
            return None
        return Budget(self.epsilon, self.rho, self.delta)
