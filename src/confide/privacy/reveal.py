"""What is revealed at the end, with its noise sized: how much of the noise an adversary knows.

Every server adds a Gaussian share of the noise to a centroid, and knows it. The shares are so wide that those of all
servers but `colluders` put sigma on the mean, where `colluders` is one server, or those of the plan's own threat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from confide.base.validation import whole
from confide.graph import Graph
from confide.plans.words import Centroid, Nothing, Release, Threat, colluders


@dataclass(frozen=True)
class Reveal:
    """A release as a plan makes it.

    Attributes:
        release: what is revealed.
        colluders: servers whose shares of noise may be known; the others put sigma on the mean.
        count: how many times it may be made. Each time draws fresh noise about the same state, and the costs add up.
            A local model is the same every time.
    """

    release: Release = Nothing()
    colluders: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        whole("releases", self.count, 1)
        whole("release.colluders", self.colluders, 1)

    @classmethod
    def sized(cls, release: Release, threat: Threat, graphs: Sequence[Graph], count: int = 1) -> Reveal:
        """With shares that hide sigma from this adversary, and from any one server."""
        known = [known_shares(threat, graphs, p) for p in range(graphs[0].P)]
        return cls(release, max(1, *known), count)

    @property
    def sigma(self) -> float:
        """Standard deviation on the mean that the shares are sized for; 0 where there is no noise."""
        return self.release.sigma if isinstance(self.release, Centroid) else 0.0

    def hidden(self, P: int, known: int) -> float:
        """Standard deviation on the mean of the shares that an adversary with `known` of them does not know."""
        return self.sigma * math.sqrt((P - known) / (P - min(self.colluders, P - 1)))

    def share(self, P: int) -> float:
        """Standard deviation of one server's share on the sum."""
        return P * self.sigma / math.sqrt(P - min(self.colluders, P - 1))

    @property
    def words(self) -> str:
        return f"the release ({self})" if self.count == 1 else f"{self.count} releases ({self} each)"

    def __str__(self) -> str:
        return str(self.release)


def against(threat: Threat, graphs: Sequence[Graph], target: int) -> frozenset[int]:
    """The servers that collude against this target, in any of the graphs."""
    return colluders(threat, (int(m) for g in graphs for m in g.neighbours(target)))


def known_shares(threat: Threat, graphs: Sequence[Graph], target: int) -> int:
    """How many servers' shares of a release's noise this adversary knows, who looks at this target."""
    return 1 if threat.own_server else len(against(threat, graphs, target))
